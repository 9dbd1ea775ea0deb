/* SPDX-License-Identifier: Apache-2.0 */
/* contract_small.c - the kernels of products, and very small ones straight from the operator's
 * blocks.
 *
 * Reading an equation, sorting letters and calling BLAS takes longer than some thousand products of
 * numbers. Here b is copied into rows of a multiple of four, and rows of a are multiplied by it in
 * registers. Sums go along k one by one, fused, as BLAS does; bf16 is added up in f32.
 *
 * Larger products, other dtypes and biases go the equation's way (contract.c). */
#include "backend/cpu/matrix/contract.h"
#include "base/compiler.h"
#include "device/number.h"

enum { WORK_F32 = 32768, WORK_BF16 = 4096, WORK_F64 = 2048, ROOM = 2048 };

typedef struct little {
    int64_t batches, m, n, k;
    int64_t ab, am, ak, bb, bk, bn, cb, cm, cn; /* strides: of the batch, of m, n and k */
    const void *a, *b;
    void *c;
    ts_dtype dtype;
} little;

/* ---- f32 and bf16 ---------------------------------------------------------------------------- */

static TSI_INLINE float get_f32(const void *x, int64_t at, bool narrow)
{
    return narrow ? tsi_f32_of_bf16(((const uint16_t *)x)[at]) : ((const float *)x)[at];
}

/* Two rows of a (or one, twice) by `width` columns of b. */
static TSI_INLINE void rows_f32(const little *p, const int64_t *a, const int64_t *c, const float *b,
                                int64_t ld, int64_t count, int width, bool narrow)
{
    float sum[2][16] = { { 0 } };
    for (int64_t l = 0; l < p->k; l++) {
        float x = get_f32(p->a, a[0] + l * p->ak, narrow);
        float y = get_f32(p->a, a[1] + l * p->ak, narrow);
        for (int j = 0; j < width; j++) {
            sum[0][j] = TSI_FMAF(x, b[l * ld + j], sum[0][j]);
            sum[1][j] = TSI_FMAF(y, b[l * ld + j], sum[1][j]);
        }
    }
    for (int r = 0; r < 2; r++)
        for (int64_t j = 0; j < count; j++) {
            int64_t at = c[r] + j * p->cn;
            if (narrow)
                ((uint16_t *)p->c)[at] = tsi_bf16_of_f32(sum[r][j]);
            else
                ((float *)p->c)[at] = sum[r][j];
        }
}

static TSI_INLINE void one_f32(const little *p, int64_t batch, bool narrow)
{
    float b[ROOM];
    int64_t ld = (p->n + 3) / 4 * 4, from = batch * p->bb;
    for (int64_t l = 0; l < p->k; l++)
        for (int64_t j = 0; j < ld; j++)
            b[l * ld + j] = j < p->n ? get_f32(p->b, from + l * p->bk + j * p->bn, narrow) : 0.0f;
    for (int64_t i = 0; i < p->m; i += 2) {
        int64_t next = i + 1 < p->m ? 1 : 0, j = 0;
        int64_t a[2] = { batch * p->ab + i * p->am }, c[2] = { batch * p->cb + i * p->cm };
        a[1] = a[0] + next * p->am;
        c[1] = c[0] + next * p->cm;
        for (; j < ld; c[0] += 16 * p->cn, c[1] += 16 * p->cn, j += 16) {
            int64_t left = p->n - j;
            if (ld - j < 16) break;
            rows_f32(p, a, c, b + j, ld, left < 16 ? left : 16, 16, narrow);
        }
        for (; j < ld; c[0] += 4 * p->cn, c[1] += 4 * p->cn, j += 4)
            rows_f32(p, a, c, b + j, ld, p->n - j < 4 ? p->n - j : 4, 4, narrow);
    }
}

/* ---- f64 ------------------------------------------------------------------------------------- */

static void one_f64(const little *p, int64_t batch)
{
    double b[ROOM];
    int64_t ld = (p->n + 3) / 4 * 4;
    const double *from = (const double *)p->b + batch * p->bb;
    for (int64_t l = 0; l < p->k; l++)
        for (int64_t j = 0; j < ld; j++)
            b[l * ld + j] = j < p->n ? from[l * p->bk + j * p->bn] : 0.0;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < ld; j += 4) {
            double sum[4] = { 0 };
            const double *a = (const double *)p->a + batch * p->ab + i * p->am;
            for (int64_t l = 0; l < p->k; l++)
                for (int s = 0; s < 4; s++)
                    sum[s] += a[l * p->ak] * b[l * ld + j + s];
            double *c = (double *)p->c + batch * p->cb + i * p->cm + j * p->cn;
            for (int64_t s = 0; s < 4 && j + s < p->n; s++)
                c[s * p->cn] = sum[s];
        }
}

static void run_some(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const little *p = context;
    for (int64_t batch = begin; batch < end; batch++) {
        if (p->dtype == TS_DTYPE_F32)
            one_f32(p, batch, false);
        else if (p->dtype == TS_DTYPE_BF16)
            one_f32(p, batch, true);
        else
            one_f64(p, batch);
    }
}

/* ---- the call ------------------------------------------------------------------------------ */

/* [m, k] by [k, n], or batches of them, one of them perhaps for all; `turned`: b is [n, k]. Where
 * an extent of 1 stands for many the equation's way goes on. */
static bool describe(const tsi_kernel_io *io, bool turned, little *p)
{
    const tsi_block *a = &io->in[0].block, *b = &io->in[1].block, *c = &io->out[0].block;
    int32_t d = a->ndim - 2, e = b->ndim - 2;
    if (io->input_count != 2 || d < 0 || e < 0 || d > 1 || e > d || c->ndim != a->ndim)
        return false;
    if (a->dtype != b->dtype || a->dtype != c->dtype) return false;
    *p = (little){ .batches = d ? a->extent[0] : 1, .m = a->extent[d], .k = a->extent[d + 1] };
    p->n = b->extent[turned ? e : e + 1];
    p->dtype = (ts_dtype)a->dtype;
    int64_t most = p->dtype == TS_DTYPE_F32    ? WORK_F32
                   : p->dtype == TS_DTYPE_BF16 ? WORK_BF16
                                               : WORK_F64;
    if (p->m * p->n * p->k > most || (p->n + 3) * p->k > ROOM) return false;
    if (b->extent[turned ? e + 1 : e] != p->k || (e == 1 && b->extent[0] != p->batches))
        return false;
    p->ab = d ? a->stride[0] : 0;
    p->bb = e ? b->stride[0] : 0;
    p->cb = d ? c->stride[0] : 0;
    p->am = a->stride[d];
    p->ak = a->stride[d + 1];
    p->bk = b->stride[turned ? e + 1 : e];
    p->bn = b->stride[turned ? e : e + 1];
    p->cm = c->stride[d];
    p->cn = c->stride[d + 1];
    p->a = a->data;
    p->b = b->data;
    p->c = c->data;
    return p->dtype == TS_DTYPE_F32 || p->dtype == TS_DTYPE_BF16 || p->dtype == TS_DTYPE_F64;
}

/* false: it is not small, and nothing was done. */
static bool run_small(const tsi_kernel_io *io, bool turned)
{
    little p;
    if (!describe(io, turned, &p) || p.k == 0) return false;
    if (p.batches == 1 && !tsi_dry(io->rank))
        run_some(&p, 0, 1, 0);
    else
        tsi_parallel_for(io->rank, p.batches, 100000 / (p.m * p.n * p.k + 64) + 1, run_some, &p);
    return true;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

ts_status tsi_cpu_product(const tsi_kernel_io *io)
{
    return run_small(io, false) ? TS_OK : tsi_product_by(io, tsi_cpu_contract, tsi_cpu_blend);
}

ts_status tsi_cpu_linear(const tsi_kernel_io *io)
{
    return run_small(io, true) ? TS_OK : tsi_product_by(io, tsi_cpu_contract, tsi_cpu_blend);
}

ts_status tsi_cpu_einsum(const tsi_kernel_io *io)
{
    return tsi_einsum_by(io, tsi_cpu_contract);
}

ts_status tsi_cpu_einsum_add(const tsi_kernel_io *io)
{
    return tsi_product_by(io, tsi_cpu_contract, tsi_cpu_blend);
}
