/* SPDX-License-Identifier: Apache-2.0 */
/* trial.h - what trials of products (product_choice.c) call kernels with. */
#ifndef TSI_BACKEND_CUDA_KERNELS_TRIAL_H
#define TSI_BACKEND_CUDA_KERNELS_TRIAL_H

#include <stdint.h>

/* trial.cu: words of two numbers each, bits that are the same in all of them and bits that are
 * drawn. */
typedef struct tsi_cuda_trial_fill_args {
    uint32_t *to;
    int64_t words;
    uint32_t same, drawn;
} tsi_cuda_trial_fill_args;

/* trial.cu: 1 to *differs where a word of one is not the other's; else it stays as it is. */
typedef struct tsi_cuda_trial_differs_args {
    const uint32_t *one, *other;
    int64_t words;
    uint32_t *differs;
} tsi_cuda_trial_differs_args;

#endif
