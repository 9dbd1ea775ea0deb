/* SPDX-License-Identifier: Apache-2.0 */
/* attention_bias.h - attention with a bias that is a tensor. */
#ifndef TSI_OP_ATTENTION_BIAS_H
#define TSI_OP_ATTENTION_BIAS_H

#include "op/nn/attention.h"

/* given: q, k, v, and a bias [B, H, T, S] or with extents of 1, real or (seen: true) bool; out: the
 * result and its log-sum-exp. Recorded, on tapes too. */
ts_status tsi_attention_biased(ts_tensor *const given[4], const tsi_attention_attributes *a,
                               ts_tensor *out[2]);

#endif
