/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - kernels over contiguous elements, once per instruction set: what the
 * drivers call.
 *
 * A driver (pointwise.c, reduce.c, softmax.c, ...) turns a call into rows; a
 * row kernel is a plain loop in rows_body.h, compiled for the base instruction
 * set and, on x86_64, for AVX2 and AVX-512. tsi_rows() is the best set this
 * machine runs.
 *
 * INV: rows are computed in f32 (those of bf16 too), f64 or i64; other dtypes
 * are widened by the driver. Sums of f32 are added up in blocks of
 * TSI_SUM_BLOCK (those of bf16 of TSI_SUM_BLOCK_BF16) in f32 lanes, and blocks
 * in double, in order: the result depends on the length alone, not on the
 * instruction set's width. */
#ifndef TSI_BACKEND_CPU_ROWS_H
#define TSI_BACKEND_CPU_ROWS_H

#include <stdint.h>

#include "tessera/types.h"

enum { TSI_SUM_BLOCK = 1024, TSI_SUM_BLOCK_BF16 = 2048 }; /* 4 KiB */

/* One elementwise row: out[i] = f(in[0][i * step[0]], ...). Steps are 0 or 1; out may be an input.
 * An empty row reads and writes nothing, and has no memory. */
typedef struct tsi_row {
    void *out;
    const void *in[3];
    int32_t step[3], reserved;
    int64_t count;
    const void *number; /* the attributes of operators with numbers: a double or ts_numbers, which
                         * begin with one */
} tsi_row;
typedef void (*tsi_row_fn)(const tsi_row *row);

/* Rows are found by operators: TSI_ROW_add, ... */
typedef enum tsi_row_id {
#define TS_OP(id, name) TSI_ROW_##name,
#include "op/ops.def"
#undef TS_OP
    TSI_ROW_COUNT
} tsi_row_id;

/* What a row of numbers is reduced by; the same for f32, f64 and i64 rows. */
typedef enum tsi_fold {
    TSI_BY_SUM,
    TSI_BY_SQUARES, /* the sum of squares */
    TSI_BY_PROD,
    TSI_BY_MAX, /* a NaN wins */
    TSI_BY_MIN,
    TSI_BY_COUNT
} tsi_fold;

typedef struct tsi_row_set {
    const char *name; /* "neon", "avx2", "base" */
    /* NULL: no row of that kind. Comparisons and logic write bytes of 0 or 1, the others what they
     * read. */
    tsi_row_fn f32[TSI_ROW_COUNT], bf16[TSI_ROW_COUNT], f64[TSI_ROW_COUNT], i64[TSI_ROW_COUNT];

    /* bf16 to f32 and back, rounded once */
    void (*widen)(float *to, const uint16_t *x, int64_t count);
    void (*narrow)(uint16_t *to, const float *x, int64_t count);

    /* Contiguous elements to one number; an empty row gives the identity. */
    double (*fold_f32[TSI_BY_COUNT])(const float *x, int64_t count);
    double (*fold_bf16[TSI_BY_COUNT])(const uint16_t *x, int64_t count); /* NULL: none (prod) */
    double (*fold_f64[TSI_BY_COUNT])(const double *x, int64_t count);
    int64_t (*fold_i64[TSI_BY_COUNT])(const int64_t *x, int64_t count);
    /* The same of rows `stride` elements apart, each at most a block long; NULL: none (prod) */
    void (*rows_f32[TSI_BY_COUNT])(double *to, const float *x, int64_t stride, int64_t rows,
                                   int64_t count);
    void (*rows_bf16[TSI_BY_COUNT])(double *to, const uint16_t *x, int64_t stride, int64_t rows,
                                    int64_t count);
    /* to[i] = fold(to[i], x[i]) */
    void (*join_f32[TSI_BY_COUNT])(float *to, const float *x, int64_t count);
    void (*join_f64[TSI_BY_COUNT])(double *to, const double *x, int64_t count);
    void (*join_f64_f32[TSI_BY_COUNT])(double *to, const float *x, int64_t count);
    void (*join_i64[TSI_BY_COUNT])(int64_t *to, const int64_t *x, int64_t count);

    /* Four rows at once, of f32 or bf16; NULL: none (prod) */
    void (*four_f32[TSI_BY_COUNT])(float *to, const float *const *rows, int64_t count);
    void (*four_bf16[TSI_BY_COUNT])(float *to, const uint16_t *const *rows, int64_t count);

    /* ---- softmax: x - top <= 0; a NaN makes the sum one. top_bf16 may pass over a NaN. */
    float (*top_bf16)(const uint16_t *x, int64_t count);
    double (*exp_sum)(const float *x, float top, int64_t count);
    double (*exp_sum_bf16)(const uint16_t *x, float top, int64_t count);
    double (*exp_store)(float *to, const float *x, float top, int64_t count); /* and the sum */
    double (*exp_store_bf16)(float *to, const uint16_t *x, float top, int64_t count);
    void (*scale)(float *to, const float *x, float factor, int64_t count);
    void (*scale_bf16)(uint16_t *to, const float *x, float factor, int64_t count);
    /* to[i] = (x[i] - top) + add */
    void (*shift)(float *to, const float *x, float top, float add, int64_t count);
    void (*shift_bf16)(uint16_t *to, const uint16_t *x, float top, float add, int64_t count);
    /* to[i] = (e^(x[i] - top)) * factor */
    void (*exp_scale)(float *to, const float *x, float top, float factor, int64_t count);
    void (*exp_scale_bf16)(uint16_t *to, const uint16_t *x, float top, float factor, int64_t count);

    /* ---- gradients from the result y: to = y (dy - sum), and to = dy - e^y sum */
    void (*softmax_back)(float *to, const float *dy, const float *y, float sum, int64_t count);
    void (*log_softmax_back)(float *to, const float *dy, const float *y, float sum, int64_t count);

    /* ---- attention: to = e^(scale x - top), and the sum; and of p = q k^T, dp =
     * do v^T with numbers { scale, lse, delta }: p = e^(scale p - lse), dp = p
     * (dp - delta) scale */
    double (*exp_scaled)(float *to, const float *x, float scale, float top, int64_t count);
    void (*attend_back)(float *p, float *dp, const float *numbers, int64_t count);

    /* ---- norms: the mean and the sum of squares about it (of at least one element); and
     * to = (x - mean) * scale * weight + bias, where weight and bias may be NULL */
    void (*moments)(const float *x, int64_t count, double *mean_squares);
    void (*moments_bf16)(const uint16_t *x, int64_t count, double *mean_squares);
    void (*normalise)(float *to, const float *x, const float *const *weight_bias, float mean,
                      float scale, int64_t count);
    void (*normalise_bf16)(uint16_t *to, const uint16_t *x, const float *const *weight_bias,
                           float mean, float scale, int64_t count);
    /* the same with one weight and bias, numbers { mean, scale, weight, bias } */
    void (*normalise_by)(float *to, const float *x, const float *numbers, int64_t count);
    void (*normalise_by_bf16)(uint16_t *to, const uint16_t *x, const float *numbers, int64_t count);

    /* ---- their gradients, from { dy, x, weight } and numbers { mean, scale }: with g = dy weight
     * and v = (x - mean) scale the sums of g and g v; and with these over the count as two more
     * numbers dx = scale (g - numbers[2] - v numbers[3]), dw += dy v, db += dy (NULL: none) */
    void (*norm_back_sums)(const float *const *from, const float *numbers, int64_t count,
                           double *sums);
    void (*norm_back)(float *dx, float *const *dw_db, const float *const *from,
                      const float *numbers, int64_t count);

    /* ---- rotary positions: halves (a, b) -> (a c - b s, b c + a s) */
    void (*rotate)(float *const *to, const float *const *from, const float *const *cos_sin,
                   float sign, int64_t count);

    /* ---- sums and products of two rows */
    double (*dot)(const float *x, const float *y, int64_t count);
    void (*add_scaled)(float *to, const float *x, float factor, int64_t count); /* to += factor x */

    /* ---- optimisers (op/nn/update.h): x = { p, g, m, v }; numbers { beta1, beta2, 1 - beta1,
     * 1 - beta2, decay, rate, root, epsilon, factor of g }, and { lr, momentum, weight_decay,
     * factor of g } with m or NULL */
    void (*adamw)(float *const *x, const float *numbers, int64_t count);
    void (*sgd)(float *const *x, const float *numbers, int32_t nesterov, int64_t count);
    double (*squares_wide)(const float *x, int64_t count); /* added up in double */
} tsi_row_set;

const tsi_row_set *tsi_rows(void); /* the best this machine runs */
extern const tsi_row_set tsi_rows_base, tsi_rows_neon, tsi_rows_neon_bf16, tsi_rows_avx2,
    tsi_rows_avx512;

#endif
