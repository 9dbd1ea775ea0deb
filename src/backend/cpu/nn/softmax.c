/* SPDX-License-Identifier: Apache-2.0 */
/* softmax.c - softmax and log_softmax of narrow reals over one dim, logsumexp over any, row by row.
 *
 * A row is read three times while it lies in the cache: its largest element, its exponentials with
 * their sum, the quotient. Contiguous rows of f32 are used where they lie, those of bf16 too but
 * for their exponentials, which are kept in f32; other rows go through a buffer. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/reduce/reduce_lines.h"
#include "base/compiler.h"
#include "device/number.h"
#include "op/nn/attributes.h"

enum { GRAIN = 8192 };

typedef struct softmax {
    tsi_walk walk; /* operand 0: the input, its last dim the own one; 1: the result */
    const tsi_row_set *set;
    ts_dtype in_dtype, out_dtype;
    float *buffer;             /* per worker: a row */
    bool logs, direct, narrow; /* rows where they lie: of f32, of bf16 */
} softmax;

static void softmax_row(const softmax *s, float *to, const float *x, int64_t count)
{
    float top = (float)s->set->fold_f32[TSI_BY_MAX](x, count);
    if (!isfinite(top)) { /* a NaN, an infinity above all, or nothing but minus
                             infinities */
        for (int64_t i = 0; i < count; i++)
            to[i] = NAN;
        return;
    }
    if (s->logs) {
        double sum = s->set->exp_sum(x, top, count);
        s->set->shift(to, x, top, (float)-log(sum), count);
    } else {
        double sum = s->set->exp_store(to, x, top, count);
        s->set->scale(to, to, (float)(1.0 / sum), count);
    }
}

static void softmax_row_bf16(const softmax *s, uint16_t *to, const uint16_t *x, float *powers,
                             int64_t count)
{
    float top = s->set->top_bf16(x, count);
    if (!isfinite(top)) {
        for (int64_t i = 0; i < count; i++)
            to[i] = 0x7FC0; /* not a number */
        return;
    }
    if (s->logs) {
        double sum = s->set->exp_sum_bf16(x, top, count);
        s->set->shift_bf16(to, x, top, (float)-log(sum), count);
    } else {
        double sum = s->set->exp_store_bf16(powers, x, top, count);
        s->set->scale_bf16(to, powers, (float)(1.0 / sum), count);
    }
}

static void run_softmax(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const softmax *s = context;
    const tsi_walk *walk = &s->walk;
    int32_t last = walk->ndim - 1;
    float *buffer = s->buffer ? s->buffer + worker * walk->length : NULL;
    tsi_walker at;
    tsi_walker_start(&at, walk, begin);
    for (int64_t row = begin; row < end; row++, tsi_walker_next(&at)) {
        if (s->direct) {
            softmax_row(s, (float *)(void *)at.at[1], (const float *)(const void *)at.at[0],
                        walk->length);
            continue;
        }
        if (s->narrow) {
            softmax_row_bf16(s, (uint16_t *)(void *)at.at[1],
                             (const uint16_t *)(const void *)at.at[0], buffer, walk->length);
            continue;
        }
        tsi_gather(TS_DTYPE_F32, buffer, s->in_dtype, at.at[0], walk->stride[0][last],
                   walk->length);
        softmax_row(s, buffer, buffer, walk->length);
        tsi_scatter(s->out_dtype, at.at[1], walk->stride[1][last], TS_DTYPE_F32, buffer,
                    walk->length);
    }
}

static ts_status run(const tsi_kernel_io *io, softmax *s)
{
    tsi_scratch scratch = { 0 };
    if (!s->direct)
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(tsi_parallel_threads(io->rank) * s->walk.length),
                                sizeof(float)));
    s->buffer = scratch.data;
    tsi_parallel_for(io->rank, s->walk.rows, GRAIN / s->walk.length + 1, run_softmax, s);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* Whether the rows of an operand are contiguous elements of that dtype. */
static bool lies(const softmax *s, int32_t operand, ts_dtype dtype)
{
    int64_t stride = s->walk.stride[operand][s->walk.ndim - 1];
    return (operand == 0 ? s->in_dtype : s->out_dtype) == dtype &&
           (s->walk.length == 1 || stride == (int64_t)ts_dtype_size(dtype));
}

ts_status tsi_cpu_softmax(const tsi_kernel_io *io)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    if (!tsi_is_small_real(in->dtype) || in->ndim == 0) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(in) == 0) return TS_OK;
    uint32_t dim = 1u << ((const tsi_softmax_attributes *)io->attributes)->dim;
    tsi_block from = tsi_block_with_last(in, dim), to = tsi_block_with_last(out, dim);
    const tsi_block *block[] = { &from, &to };
    softmax s = { .set = tsi_rows(), .logs = io->op == &tsi_op_log_softmax };
    s.in_dtype = (ts_dtype)in->dtype;
    s.out_dtype = (ts_dtype)out->dtype;
    tsi_walk_make(&s.walk, block, 2, 1);
    s.direct = lies(&s, 0, TS_DTYPE_F32) && lies(&s, 1, TS_DTYPE_F32);
    s.narrow = lies(&s, 0, TS_DTYPE_BF16) && lies(&s, 1, TS_DTYPE_BF16);
    return run(io, &s);
}

/* ---- log of the sum -------------------------------------------------------------------------- */

static double row_lse(const tsi_row_set *set, const float *x, int64_t count)
{
    float top = (float)set->fold_f32[TSI_BY_MAX](x, count);
    if (!isfinite(top)) return (double)top; /* all of them are, or one exceeds the others by far */
    return (double)top + log(set->exp_sum(x, top, count));
}

static double row_lse_bf16(const tsi_row_set *set, const uint16_t *x, int64_t count)
{
    float top = set->top_bf16(x, count);
    if (!isfinite(top)) { /* a NaN beside it counts */
        for (int64_t i = 0; i < count; i++)
            if (isnan(tsi_f32_of_bf16(x[i]))) top = NAN;
        return (double)top;
    }
    return (double)top + log(set->exp_sum_bf16(x, top, count));
}

static void run_lse(const tsi_lines *l, const void *x, char *const *out)
{
    double lse = l->narrow ? row_lse_bf16(l->set, x, l->in.count) : row_lse(l->set, x, l->in.count);
    tsi_store_real((ts_dtype)l->io->out[0].block.dtype, out[0], lse);
}

ts_status tsi_cpu_logsumexp(const tsi_kernel_io *io)
{
    tsi_lines l = { .io = io, .run = run_lse, .takes_narrow = true };
    return tsi_lines_reduce(&l);
}
