/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - the attributes of attention, for its reference and its fast kernels. */
#ifndef TSI_OP_ATTENTION_H
#define TSI_OP_ATTENTION_H

#include <stdint.h>

typedef struct tsi_attention_attributes {
    double scale; /* 0: 1 / sqrt(D) */
    int32_t causal, reserved;
} tsi_attention_attributes;

#endif
