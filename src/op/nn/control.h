/* SPDX-License-Identifier: Apache-2.0 */
/* control.h - the numbers a step decides by, and how: read by C and by kernels of devices alike.
 *
 * They are f64 and lie on the rank's device. The first are written from the host before the step,
 * the others by the step itself. */
#ifndef TSI_OP_NN_CONTROL_H
#define TSI_OP_NN_CONTROL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum tsi_control_number {
    TSI_CONTROL_RATE,     /* the learning rate */
    TSI_CONTROL_SCALE,    /* gradients times this are those of the loss */
    TSI_CONTROL_NORM_MAX, /* clip to it; 0: do not */
    TSI_CONTROL_ENDS,     /* 1: what is not finite ends all later updates, too; 0: this one */
    TSI_CONTROL_BETA1,
    TSI_CONTROL_BETA2,
    TSI_CONTROL_INPUTS,
    TSI_CONTROL_NUMBER = TSI_CONTROL_INPUTS, /* of the step; from the host, when it begins */
    TSI_CONTROL_LOSS,                        /* by a copy; 0: there is none */
    TSI_CONTROL_NORM,                        /* of gradients times scale, before clipping */
    TSI_CONTROL_FACTOR,                      /* gradients are multiplied by it */
    TSI_CONTROL_GO,                          /* 1: the update runs */
    TSI_CONTROL_ENDED,                       /* 1: no update runs any more */
    TSI_CONTROL_STEPS,                       /* updates that ran */
    TSI_CONTROL_CORRECTION1,                 /* 1 - beta^steps */
    TSI_CONTROL_CORRECTION2,
    TSI_CONTROL_COUNT = 16
} tsi_control_number;

#ifdef __CUDACC__
#define TSI_CONTROL_FN __device__ static inline
#else
#define TSI_CONTROL_FN static inline
#endif

/* ---- moments in bf16: rounded up or down by chance, so that what is too small for one step adds
 * up over many. The chance is a function of seed, step, tensor and global index alone. */

TSI_CONTROL_FN uint64_t tsi_noise_key(uint64_t seed, double steps, uint64_t salt)
{
    uint64_t x = seed ^ (uint64_t)steps * 0x9e3779b97f4a7c15u ^ salt * 0xd1342543de82ef95u;
    x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

/* 16 bits for the first moment, 16 for the second. */
TSI_CONTROL_FN uint32_t tsi_noise_at(uint64_t key, uint64_t index)
{
    uint64_t x = key + index * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* The bits of an f32 to bf16; noise 0 .. 65535. */
TSI_CONTROL_FN uint16_t tsi_bf16_by_chance(uint32_t bits, uint32_t noise)
{
    bool special = (bits & 0x7f800000u) == 0x7f800000u; /* inf stays, a NaN stays one */
    if (special) return (uint16_t)(bits >> 16 | ((bits & 0xffffu) ? 0x40u : 0u));
    return (uint16_t)((bits + (noise & 0xffffu)) >> 16);
}

/* From the sums of squares of the step's gradients: does its update run, and how? */
TSI_CONTROL_FN void tsi_control_decide_numbers(const double *sum, int64_t count, double *c)
{
    double squares = 0.0;
    for (int64_t i = 0; i < count; i++)
        squares += sum[i];
    double norm = sqrt(squares) * c[TSI_CONTROL_SCALE], max = c[TSI_CONTROL_NORM_MAX];
    double clip = max > 0.0 ? max / (norm + 1e-6) : 1.0;
    int finite = isfinite(norm) && isfinite(c[TSI_CONTROL_LOSS]);
    int go = finite && c[TSI_CONTROL_ENDED] == 0.0;
    c[TSI_CONTROL_NORM] = norm;
    c[TSI_CONTROL_FACTOR] = c[TSI_CONTROL_SCALE] * (clip < 1.0 ? clip : 1.0);
    c[TSI_CONTROL_GO] = go;
    if (!finite && c[TSI_CONTROL_ENDS] != 0.0) c[TSI_CONTROL_ENDED] = 1.0;
    if (!go) return;
    c[TSI_CONTROL_STEPS] += 1.0;
    c[TSI_CONTROL_CORRECTION1] = 1.0 - pow(c[TSI_CONTROL_BETA1], c[TSI_CONTROL_STEPS]);
    c[TSI_CONTROL_CORRECTION2] = 1.0 - pow(c[TSI_CONTROL_BETA2], c[TSI_CONTROL_STEPS]);
}

#endif
