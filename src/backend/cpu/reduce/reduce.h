/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - a reduction as rows or columns, and what reduce.c, reduce_rows.c and
 * reduce_columns.c share.
 *
 *   the fastest dim is reduced     rows      [kept .., reduced .., row]   one number per row
 *   the fastest dim is kept        columns   [kept .., reduced .., column]  rows folded into rows
 *
 * INV: long reductions are cut into chunks by their sizes alone; chunks are folded in order. Sums
 * of narrow reals are added up in f32 for at most a block of terms, then in double, and rounded
 * once. */
#ifndef TSI_BACKEND_CPU_REDUCTION_H
#define TSI_BACKEND_CPU_REDUCTION_H

#include "backend/cpu/cpu.h"

enum { TSI_REDUCE_CHUNK = 65536, TSI_REDUCE_GRAIN = 32768 }; /* elements of a chunk, of a task */

/* Dims of one kind, outermost first; strides in bytes. */
typedef struct tsi_reduce_dims {
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX], in[TS_NDIM_MAX], out[TS_NDIM_MAX];
    int64_t count; /* positions */
} tsi_reduce_dims;

/* What is done to each element before it is folded, in double. */
typedef enum tsi_reduce_map { TSI_MAP_NONE, TSI_MAP_POWER, TSI_MAP_NONZERO } tsi_reduce_map;

typedef struct tsi_reduction {
    tsi_reduce_dims kept, gone;            /* without the row or column dim */
    int64_t length, in_stride, out_stride; /* of the row or column */
    const char *in;
    char *out;
    ts_dtype in_dtype, out_dtype, compute; /* compute: f32, f64 or i64 */
    const tsi_row_set *set;
    tsi_fold fold;
    bool columns;
    tsi_reduce_map map;
    double power;        /* of TSI_MAP_POWER: |x|^power */
    double divide, root; /* of what is stored: total / divide, total^(1 / root); 0: no root */
    double start;        /* the identity, also as an integer */
    int64_t start_i64;
    int64_t rows_per_chunk, pieces,
        chunks;    /* pieces: of a row; chunks per result (or row of results) */
    void *partial; /* [results][chunks] doubles or int64; NULL: one chunk */
} tsi_reduction;

/* Adds the offsets in bytes of a position to those of input and result. */
void tsi_reduce_offsets(const tsi_reduce_dims *x, int64_t index, int64_t *in, int64_t *out);
/* Elements of the row or column as `compute` and mapped: where they lie, or in the tile. */
const void *tsi_reduce_take(const tsi_reduction *r, const char *from, int64_t count, void *tile);
/* What is stored of a total. */
double tsi_reduce_finish(const tsi_reduction *r, double total);
double tsi_fold_two(tsi_fold fold, double a, double b);
int64_t tsi_fold_two_i64(tsi_fold fold, int64_t a, int64_t b);

ts_status tsi_reduce_rows(tsi_reduction *r, ts_rank *rank);    /* reduce_rows.c */
ts_status tsi_reduce_columns(tsi_reduction *r, ts_rank *rank); /* reduce_columns.c */

#endif
