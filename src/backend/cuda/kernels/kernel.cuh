/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.cuh - how a kernel is declared, so that it may begin before the one ahead of it has ended.
 *
 * A launch of ours (launch.c) lets a GPU of 9.0 and up place a kernel's blocks as soon as every
 * block of the kernel ahead has let it or has ended, where otherwise the GPU sees the last store
 * out and then begins to place blocks. Such a kernel may touch nothing until it has waited:
 *
 *   kernel ahead  |begins, lets the next one begin| works ................ |ends, stores are out
 *   this kernel        |begins, lets the next one begin| waits ........... |works .......
 *
 * INV: every thread of every kernel waits before its first access to global memory and before it
 * returns. So a kernel ends after the one ahead of it, and what waits for one has waited for all
 * before it: also a third kernel that begins while the first one works, events, copies, and kernels
 * of libraries, which are launched without the permission and begin when all ahead have ended.
 * INV: kernels are declared by TSI_KERNEL alone (scripts/check-source looks): none can forget.
 * GPUs before 9.0 run code without the two instructions and are launched without the permission;
 * code for 9.0 is always there for later ones (cmake/cuda.cmake). */
#ifndef TSI_BACKEND_CUDA_KERNELS_KERNEL_CUH
#define TSI_BACKEND_CUDA_KERNELS_KERNEL_CUH

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/ptx.cuh"

/* Only a grid of few blocks lets the next kernel begin beside it, where most of its time is the
 * way to the first and from the last block; a large one would share its units and memory with
 * blocks that wait. Behind that the next kernel's blocks come as its own end. */
enum { TSI_CUDA_FEW_BLOCKS = 528 }; /* four for each unit of an H200 */

static __device__ __forceinline__ void wait_for_kernel_ahead()
{
#if __CUDA_ARCH__ >= 900
    if (gridDim.x <= TSI_CUDA_FEW_BLOCKS) let_next_begin();
    wait_for_ahead();
#endif
}

/* TSI_KERNEL(name, type of its arguments a) { body }; bounds are what __launch_bounds__ takes. A
 * kernel without them has blocks of 256 threads at most: for more of them the compiler may have
 * taken registers that a multiprocessor has not. */
#define TSI_KERNEL(name, args) TSI_KERNEL_OF(name, args, )
#define TSI_KERNEL_BOUNDED(name, args, ...)                                                        \
    TSI_KERNEL_OF(name, args, __launch_bounds__(__VA_ARGS__))
#define TSI_KERNEL_OF(name, args, bounds)                                                          \
    static __device__ __forceinline__ void name##_body(const args &a);                             \
    extern "C" __global__ void bounds name(const __grid_constant__ args a)                         \
    {                                                                                              \
        wait_for_kernel_ahead();                                                                   \
        name##_body(a);                                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void name##_body(const args &a)

/* Shared memory of a block as elements from `name` on: as much as the launch says. */
#define TSI_BLOCK_MEMORY(type, name) extern __shared__ type name[]

#endif
