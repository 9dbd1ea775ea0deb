/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.cuh - products of four warps on the tensor cores of sm_90a: 64 rows by 64, 128, 192 or 256
 * columns, 16 deep. The right factor is in shared memory, the left one there or in registers; both
 * are read while the warps go on.
 *
 * A factor in shared memory is blocks of rows of 64 elements (128 bytes), turned as chunk_at<64>
 * turns them (mma.cuh): either its rows are multiplied along them, all below each other, or across
 * them, 64 of its columns a block, the next 64 in the next block.
 *
 *   along them    row 0: k 0 .. 63        across them   k 0: columns 0 .. 63   | columns 64 .. 127
 *                 row 1: k 0 .. 63                      k 1: columns 0 .. 63   | columns 64 .. 127
 *
 * The four warps have the product as mma.cuh says, 16 rows each, 8 columns after the other.
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

typedef float wide_sums[32][4]; /* of a thread: 256 columns */

/* Where a factor begins, and the bytes from its first eight rows to the next, and from a block to
 * the next one; rows of 128 bytes, turned. */
__device__ inline uint64_t factor_at(uint32_t shared, uint32_t block)
{
    enum { EIGHT_ROWS = 1024 };
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)(block >> 4) << 16 |
           (uint64_t)(EIGHT_ROWS >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same, so many bytes further on. */
__device__ inline uint64_t factor_on(uint64_t factor, uint32_t bytes)
{
    return factor + (bytes >> 4);
}

/* ---- one instruction ------------------------------------------------------------------------- */

/* The numbers of a thread's sums in an instruction, and the sums: 32, 64, 96 or 128. */
#define WGMMA_FIRST_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_FIRST_64                                                                             \
    WGMMA_FIRST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "      \
                   "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "   \
                   "%61, %62, %63"
#define WGMMA_FIRST_96                                                                             \
    WGMMA_FIRST_64                                                                                 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "      \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_FIRST_128                                                                            \
    WGMMA_FIRST_96                                                                                 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
    "%126, %127"
#define WGMMA_FOUR(x) "+f"((x)[0]), "+f"((x)[1]), "+f"((x)[2]), "+f"((x)[3])
#define WGMMA_16(x, i)                                                                             \
    WGMMA_FOUR((x)[i]), WGMMA_FOUR((x)[(i) + 1]), WGMMA_FOUR((x)[(i) + 2]), WGMMA_FOUR((x)[(i) + 3])
#define WGMMA_SUMS_32(x) WGMMA_16(x, 0), WGMMA_16(x, 4)
#define WGMMA_SUMS_64(x) WGMMA_SUMS_32(x), WGMMA_16(x, 8), WGMMA_16(x, 12)
#define WGMMA_SUMS_96(x) WGMMA_SUMS_64(x), WGMMA_16(x, 16), WGMMA_16(x, 20)
#define WGMMA_SUMS_128(x) WGMMA_SUMS_96(x), WGMMA_16(x, 24), WGMMA_16(x, 28)

#if TSI_HAS_WGMMA
/* Both factors in shared memory; `a` to `e` are the numbers behind those of the sums. */
#define WGMMA_OF_MEMORY(type, columns, count, a, b, c, d, e, ...)                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type              \
                 " {" WGMMA_FIRST_##count "}, " a ", " b ", " c ", 1, 1, " d ", " e ";"            \
                 : WGMMA_SUMS_##count(sum)                                                         \
                 : "l"(left), "l"(right), "n"(FRESH ? 0 : 1), "n"(LEFT_TURNED ? 1 : 0),            \
                   "n"(RIGHT_TURNED ? 1 : 0))
/* The left one in registers. */
#define WGMMA_OF_REGISTERS(type, columns, count, a, b, c, d, e, f, g)                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type              \
                 " {" WGMMA_FIRST_##count "}, {" a ", " b ", " c ", " d "}, " e ", " f             \
                                          ", 1, 1, " g ";"                                         \
                 : WGMMA_SUMS_##count(sum)                                                         \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),             \
                   "n"(FRESH ? 0 : 1), "n"(RIGHT_TURNED ? 1 : 0))
#else
#define WGMMA_OF_MEMORY(...) ((void)sum, (void)left, (void)right, __trap())
#define WGMMA_OF_REGISTERS(...) ((void)sum, (void)left, (void)right, __trap())
#endif

/* sum += left right, later; FRESH: sum = left right. TURNED: the factor is multiplied across its
 * rows. A left factor in registers lies there as a product does, 16 of its columns in four pairs of
 * a dtype (mma.cuh), and stays until the product is done. */
#define WGMMA_FUNCTIONS(half, type, columns, count, ...)                                           \
    template <bool LEFT_TURNED, bool RIGHT_TURNED, bool FRESH = false>                             \
    __device__ inline void multiply_later(half, float(&sum)[count / 4][4], uint64_t left,          \
                                          uint64_t right)                                          \
    {                                                                                              \
        WGMMA_OF_MEMORY(type, columns, count, __VA_ARGS__);                                        \
    }                                                                                              \
    template <bool RIGHT_TURNED, bool FRESH = false>                                               \
    __device__ inline void multiply_later(half, float(&sum)[count / 4][4],                         \
                                          const uint32_t(&left)[4], uint64_t right)                \
    {                                                                                              \
        WGMMA_OF_REGISTERS(type, columns, count, __VA_ARGS__);                                     \
    }
#define WGMMA_WIDTHS(half, type)                                                                   \
    WGMMA_FUNCTIONS(half, type, "64", 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")         \
    WGMMA_FUNCTIONS(half, type, "128", 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")        \
    WGMMA_FUNCTIONS(half, type, "192", 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")     \
    WGMMA_FUNCTIONS(half, type, "256", 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
WGMMA_WIDTHS(of_bf16, "bf16")
WGMMA_WIDTHS(of_f16, "f16")

/* ---- their order ----------------------------------------------------------------------------- */

/* Before the first product, whose sums, or whose factor in registers, were written otherwise. */
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

/* What is computed with these numbers before it is computed before it, and behind it behind: the
 * compiler knows nothing of waits, and would move sums before one, or other work behind it. */
template <int N> __device__ inline void products_there(float (&sum)[N][4])
{
#if TSI_HAS_WGMMA
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : WGMMA_FOUR(sum[n])::"memory");
#endif
}

/* Until all products are done, behind weights that were computed while they went on. The assembler
 * moves a wait ahead of what does not depend on it, but not ahead of a branch: this one is taken
 * where a weight is negative, which none is. */
template <int N> __device__ inline void products_wait_behind(const float (&weight)[N][4])
{
    uint32_t any = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
        any |= __float_as_uint(weight[n][0]) | __float_as_uint(weight[n][1]) |
               __float_as_uint(weight[n][2]) | __float_as_uint(weight[n][3]);
    if (!__all_sync(0xffffffffu, any >> 31 == 0)) __trap();
    products_wait();
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
