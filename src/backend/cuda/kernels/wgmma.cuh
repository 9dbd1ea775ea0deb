/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.cuh - products of four warps on the tensor cores of sm_90a: 64 rows by 256 columns, 16
 * deep, factors in shared memory, which is read while the warps go on.
 *
 * A factor in shared memory is blocks of rows of 64 elements (128 bytes), turned as chunk_at<64>
 * turns them (mma.cuh): either its rows are multiplied along them, all below each other, or across
 * them, 64 of its columns a block, the next 64 in the next block.
 *
 *   along them    row 0: k 0 .. 63        across them   k 0: columns 0 .. 63   | columns 64 .. 127
 *                 row 1: k 0 .. 63                      k 1: columns 0 .. 63   | columns 64 .. 127
 *
 * The four warps have the product as mma.cuh says, 16 rows each, 32 times 8 columns.
 *
 * There is nothing of it in code for others (sm_80, and the PTX that later GPUs run): the host asks
 * for these kernels on GPUs of 9.0 alone (tsi_cuda.wide). */
#ifndef TSI_BACKEND_CUDA_KERNELS_WGMMA_CUH
#define TSI_BACKEND_CUDA_KERNELS_WGMMA_CUH

#include "backend/cuda/kernels/mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TSI_HAS_WGMMA 1
#else
#define TSI_HAS_WGMMA 0
#endif

/* The numbers of 128 registers in an instruction, and the registers. */
#define WGMMA_REGISTERS                                                                            \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127}"
#define WGMMA_FOUR(x) "+f"((x)[0]), "+f"((x)[1]), "+f"((x)[2]), "+f"((x)[3])
#define WGMMA_16(x, i)                                                                             \
    WGMMA_FOUR((x)[i]), WGMMA_FOUR((x)[(i) + 1]), WGMMA_FOUR((x)[(i) + 2]), WGMMA_FOUR((x)[(i) + 3])
#define WGMMA_SUMS(x)                                                                              \
    WGMMA_16(x, 0), WGMMA_16(x, 4), WGMMA_16(x, 8), WGMMA_16(x, 12), WGMMA_16(x, 16),              \
        WGMMA_16(x, 20), WGMMA_16(x, 24), WGMMA_16(x, 28)

typedef float wide_sums[32][4]; /* of a thread */

/* Where a factor begins, and the bytes from its first eight rows to the next, and from a block to
 * the next one; rows of 128 bytes, turned. */
__device__ inline uint64_t factor_at(uint32_t shared, uint32_t block)
{
    enum { EIGHT_ROWS = 1024 };
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)(block >> 4) << 16 |
           (uint64_t)(EIGHT_ROWS >> 4) << 32 | (uint64_t)1 << 62;
}

#if TSI_HAS_WGMMA
#define WGMMA_MULTIPLY(type)                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                      \
                 " " WGMMA_REGISTERS ", %128, %129, 1, 1, 1, %130, %131;"                          \
                 : WGMMA_SUMS(sum)                                                                 \
                 : "l"(left), "l"(right), "n"(LEFT_TURNED ? 1 : 0), "n"(RIGHT_TURNED ? 1 : 0))
#else
#define WGMMA_MULTIPLY(type) ((void)sum, (void)left, (void)right, __trap())
#endif

/* sum += left right, later. TURNED: the factor is multiplied across its rows. */
template <bool LEFT_TURNED, bool RIGHT_TURNED>
__device__ inline void multiply_later(of_bf16, wide_sums &sum, uint64_t left, uint64_t right)
{
    WGMMA_MULTIPLY("bf16");
}
template <bool LEFT_TURNED, bool RIGHT_TURNED>
__device__ inline void multiply_later(of_f16, wide_sums &sum, uint64_t left, uint64_t right)
{
    WGMMA_MULTIPLY("f16");
}

/* Before the first product, whose sums were written otherwise. */
__device__ inline void products_begin()
{
#if TSI_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void products_end()
{
#if TSI_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* Until all products but those of the last `LATER` ends are done. */
template <int LATER = 0> __device__ inline void products_wait()
{
#if TSI_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
#endif
}

/* What this thread has written or fetched into shared memory is seen by products behind a barrier.
 */
__device__ inline void show_products()
{
#if TSI_HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#endif
