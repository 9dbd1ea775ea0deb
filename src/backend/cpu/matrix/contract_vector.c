/* SPDX-License-Identifier: Apache-2.0 */
/* contract_vector.c - products with a vector: a matrix is read once, so memory sets the pace.
 *
 *   numbers of k lie together   each result is an inner product of a row and the vector
 *   results lie together        rows of k are added up, four at a time, into a strip of sums in
 *                               the first-level cache
 *
 * f32, f64 and bf16, the last with sums in f32. Few results of a long k are cut along k, by sizes
 * alone, and the parts added up in order; so is k where results lie together, for long reads.
 * INV: the number of threads does not change a bit of the result. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"
#include "device/number.h"

enum { PIECE = 512, STRIP = 2048, SLICE = 16384, FEW = 16, ROWS = 128, SLICES = 16 };

/* c[j] = sum of x[l] w[l, j]; strides in elements. */
typedef struct by_vector {
    const void *x, *w;
    void *c;
    int64_t n, k, xk, wk, wn, cn;
    ts_dtype dtype;
    bool accumulate;
    double *part;         /* [n][slices] of sums, or NULL: whole ones */
    void *sums;           /* [slices][n], f32 or f64, where results lie together */
    int64_t slices, rows; /* rows of k in a slice */
    const void *dense;    /* x with stride 1 */
} by_vector;

static void store(const by_vector *v, int64_t j, double sum)
{
    if (v->dtype == TS_DTYPE_F64) {
        double *c = (double *)v->c + j * v->cn;
        *c = v->accumulate ? *c + sum : sum;
    } else if (v->dtype == TS_DTYPE_F32) {
        float *c = (float *)v->c + j * v->cn;
        *c = v->accumulate ? *c + (float)sum : (float)sum;
    } else {
        uint16_t *c = (uint16_t *)v->c + j * v->cn;
        float before = v->accumulate ? tsi_f32_of_bf16(*c) : 0.0f;
        *c = tsi_bf16_of_f32(before + (float)sum);
    }
}

/* ---- numbers of k lie together --------------------------------------------------------------- */

static double dot_f64(const double *x, const double *y, int64_t count)
{
    double lane[8] = { 0 }, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += x[i + j] * y[i + j];
    for (; i < count; i++)
        lane[0] += x[i] * y[i];
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

static double dot_bf16(const uint16_t *x, const uint16_t *y, int64_t count)
{
    const tsi_bf16_tile *tile = tsi_bf16_tile_of_machine();
    if (tile && tile->dot) return (double)tile->dot(x, y, count);
    const tsi_row_set *set = tsi_rows();
    float a[PIECE], b[PIECE];
    double sum = 0;
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t n = count - i < PIECE ? count - i : PIECE;
        set->widen(a, x + i, n);
        set->widen(b, y + i, n);
        sum += set->dot(a, b, n);
    }
    return sum;
}

static double dot(const by_vector *v, int64_t row, int64_t begin, int64_t end)
{
    int64_t at = row * v->wn + begin, count = end - begin;
    if (v->dtype == TS_DTYPE_F32)
        return tsi_rows()->dot((const float *)v->dense + begin, (const float *)v->w + at, count);
    if (v->dtype == TS_DTYPE_F64)
        return dot_f64((const double *)v->dense + begin, (const double *)v->w + at, count);
    return dot_bf16((const uint16_t *)v->dense + begin, (const uint16_t *)v->w + at, count);
}

static void run_dots(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const by_vector *v = context;
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task / v->slices, first = task % v->slices * SLICE;
        if (!v->part) {
            store(v, task, dot(v, task, 0, v->k));
            continue;
        }
        v->part[task] = dot(v, row, first, v->k - first < SLICE ? v->k : first + SLICE);
    }
}

static ts_status along(ts_rank *rank, by_vector *v)
{
    tsi_scratch part = { 0 };
    v->slices = v->n <= FEW && v->k > 2 * SLICE ? (v->k - 1) / SLICE + 1 : 1;
    if (v->slices > 1) {
        TSI_TRY(tsi_scratch_get(&part, rank, (size_t)(v->n * v->slices), sizeof(double)));
        v->part = part.data;
    }
    int64_t length = v->slices > 1 ? SLICE : v->k;
    tsi_parallel_for(rank, v->n * v->slices, 32768 / (length + 1) + 1, run_dots, v);
    for (int64_t j = 0; v->part && !tsi_dry(rank) && j < v->n; j++) {
        double sum = 0;
        for (int64_t s = 0; s < v->slices; s++)
            sum += v->part[j * v->slices + s];
        store(v, j, sum);
    }
    tsi_scratch_done(&part);
    return TS_OK;
}

/* ---- results lie together -------------------------------------------------------------------- */

static void add_rows_f32(float *restrict sum, const float *w, int64_t wk, const float *x,
                         int64_t count)
{
    const float *a = w, *b = w + wk, *c = w + 2 * wk, *d = w + 3 * wk;
    for (int64_t j = 0; j < count; j++)
        sum[j] = TSI_FMAF(d[j], x[3],
                          TSI_FMAF(c[j], x[2], TSI_FMAF(b[j], x[1], TSI_FMAF(a[j], x[0], sum[j]))));
}

static void add_rows_f64(double *restrict sum, const double *w, int64_t wk, const double *x,
                         int64_t count)
{
    const double *a = w, *b = w + wk, *c = w + 2 * wk, *d = w + 3 * wk;
    for (int64_t j = 0; j < count; j++)
        sum[j] += (a[j] * x[0] + b[j] * x[1]) + (c[j] * x[2] + d[j] * x[3]);
}

static float wide(uint16_t x)
{
    return tsi_f32_of_bf16(x);
}

static void add_rows_bf16(float *restrict sum, const uint16_t *w, int64_t wk, const float *x,
                          int64_t count)
{
    const uint16_t *a = w, *b = w + wk, *c = w + 2 * wk, *d = w + 3 * wk;
    for (int64_t j = 0; j < count; j++)
        sum[j] = TSI_FMAF(wide(d[j]), x[3],
                          TSI_FMAF(wide(c[j]), x[2],
                                   TSI_FMAF(wide(b[j]), x[1], TSI_FMAF(wide(a[j]), x[0], sum[j]))));
}

/* One row alone: zeros for others would meet its infinities. */
static void add_row_f32(float *restrict sum, const float *w, float x, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        sum[j] = TSI_FMAF(w[j], x, sum[j]);
}

static void add_row_f64(double *restrict sum, const double *w, double x, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        sum[j] += w[j] * x;
}

static void add_row_bf16(float *restrict sum, const uint16_t *w, float x, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        sum[j] = TSI_FMAF(wide(w[j]), x, sum[j]);
}

static float number_of(const by_vector *v, int64_t l)
{
    return v->dtype == TS_DTYPE_F32 ? ((const float *)v->dense)[l]
                                    : wide(((const uint16_t *)v->dense)[l]);
}

/* Sums of rows begin .. end of one strip; what is left of k after fours is added one by one. */
static void strip_f32(const by_vector *v, int64_t column, int64_t count, const int64_t *rows,
                      float *sum)
{
    bool narrow = v->dtype == TS_DTYPE_BF16;
    int64_t l = rows[0];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (; l + 4 <= rows[1]; l += 4) {
        const float x[] = { number_of(v, l), number_of(v, l + 1), number_of(v, l + 2),
                            number_of(v, l + 3) };
        int64_t at = l * v->wk + column;
        if (narrow)
            add_rows_bf16(sum, (const uint16_t *)v->w + at, v->wk, x, count);
        else
            add_rows_f32(sum, (const float *)v->w + at, v->wk, x, count);
    }
    for (; l < rows[1]; l++) {
        int64_t at = l * v->wk + column;
        if (narrow)
            add_row_bf16(sum, (const uint16_t *)v->w + at, number_of(v, l), count);
        else
            add_row_f32(sum, (const float *)v->w + at, number_of(v, l), count);
    }
}

static void strip_f64(const by_vector *v, int64_t column, int64_t count, const int64_t *rows,
                      double *sum)
{
    const double *x = v->dense, *w = (const double *)v->w + column;
    int64_t l = rows[0];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (; l + 4 <= rows[1]; l += 4)
        add_rows_f64(sum, w + l * v->wk, v->wk, x + l, count);
    for (; l < rows[1]; l++)
        add_row_f64(sum, w + l * v->wk, x[l], count);
}

static void run_strips(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const by_vector *v = context;
    for (int64_t task = begin; task < end; task++) {
        int64_t slice = task % v->slices, column = task / v->slices * STRIP, at;
        int64_t count = v->n - column < STRIP ? v->n - column : STRIP;
        int64_t last = (slice + 1) * v->rows;
        const int64_t rows[2] = { slice * v->rows, last < v->k ? last : v->k };
        at = slice * v->n + column;
        if (v->dtype == TS_DTYPE_F64)
            strip_f64(v, column, count, rows, (double *)v->sums + at);
        else
            strip_f32(v, column, count, rows, (float *)v->sums + at);
    }
}

static ts_status across(ts_rank *rank, by_vector *v)
{
    bool full = v->dtype == TS_DTYPE_F64;
    int64_t slices = v->k / ROWS < SLICES ? v->k / ROWS : SLICES;
    v->rows = slices > 1 ? ((v->k - 1) / slices / 4 + 1) * 4 : v->k;
    v->slices = (v->k - 1) / v->rows + 1;
    tsi_scratch sums;
    TSI_TRY(tsi_scratch_get(&sums, rank, (size_t)(v->slices * v->n), full ? 8 : 4));
    v->sums = sums.data;
    int64_t strips = (v->n - 1) / STRIP + 1, width = v->n < STRIP ? v->n : STRIP;
    tsi_parallel_for(rank, strips * v->slices, 32768 / (v->rows * width) + 1, run_strips, v);
    bool joins = !tsi_dry(rank);
    for (int64_t s = 1; joins && s < v->slices; s++) {
        if (full)
            tsi_rows()->join_f64[TSI_BY_SUM](sums.data, (double *)sums.data + s * v->n, v->n);
        else
            tsi_rows()->join_f32[TSI_BY_SUM](sums.data, (float *)sums.data + s * v->n, v->n);
    }
    for (int64_t j = 0; joins && j < v->n; j++)
        store(v, j, full ? ((double *)sums.data)[j] : (double)((float *)sums.data)[j]);
    tsi_scratch_done(&sums);
    return TS_OK;
}

/* ---- the product ----------------------------------------------------------------------------- */

bool tsi_gemm_is_vector(ts_dtype dtype, const tsi_gemm *g)
{
    if (dtype != TS_DTYPE_F32 && dtype != TS_DTYPE_F64 && dtype != TS_DTYPE_BF16) return false;
    if (g->m == 1) return g->bk == 1 || g->bn == 1 || g->k == 1;
    return g->n == 1 && (g->ak == 1 || g->am == 1 || g->k == 1);
}

ts_status tsi_gemm_vector(ts_rank *rank, ts_dtype dtype, const tsi_gemm *g)
{
    by_vector v = { .k = g->k, .dtype = dtype, .accumulate = g->accumulate, .c = g->c };
    if (g->m == 1) {
        v.x = g->a, v.w = g->b, v.n = g->n;
        v.xk = g->ak, v.wk = g->bk, v.wn = g->bn, v.cn = g->cn;
    } else {
        v.x = g->b, v.w = g->a, v.n = g->m;
        v.xk = g->bk, v.wk = g->ak, v.wn = g->am, v.cn = g->cm;
    }
    tsi_scratch dense = { 0 };
    size_t size = ts_dtype_size(dtype);
    v.dense = v.x;
    if (v.xk != 1 && v.k > 1) {
        TSI_TRY(tsi_scratch_get(&dense, rank, (size_t)v.k, size));
        if (!tsi_dry(rank)) tsi_gather(dtype, dense.data, dtype, v.x, v.xk * (int64_t)size, v.k);
        v.dense = dense.data;
    }
    ts_status status = v.wk == 1 || v.k == 1 ? along(rank, &v) : across(rank, &v);
    tsi_scratch_done(&dense);
    return status;
}
