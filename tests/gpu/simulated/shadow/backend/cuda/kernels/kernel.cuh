/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.cuh - the simulated GPU's in place of src/backend/cuda/kernels/kernel.cuh: a kernel is a
 * function of one thread, and stands in the list that the driver looks kernels up in. */
#ifndef TSI_BACKEND_CUDA_KERNELS_KERNEL_CUH
#define TSI_BACKEND_CUDA_KERNELS_KERNEL_CUH

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/ptx.cuh"

#define TSI_KERNEL(name, args) TSI_KERNEL_OF(name, args, 0)
#define TSI_KERNEL_BOUNDED(name, args, ...) TSI_KERNEL_OF(name, args, TSI_FIRST(__VA_ARGS__, 0))
#define TSI_FIRST(first, ...) first
#define TSI_KERNEL_OF(name, args, threads)                                                         \
    static void name##_body(const args &a);                                                        \
    static void name##_run(const void *a)                                                          \
    {                                                                                              \
        name##_body(*(const args *)a);                                                             \
    }                                                                                              \
    __attribute__((section("simulated_kernels"), used)) static const simulated_kernel              \
        name##_entry = { #name, name##_run, sizeof(args), threads };                               \
    static void name##_body(const args &a)

#define TSI_BLOCK_MEMORY(type, name) type *name = (type *)simulated_room()

#endif
