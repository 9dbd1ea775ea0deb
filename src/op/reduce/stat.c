/* SPDX-License-Identifier: Apache-2.0 */
/* stat.c - variance and standard deviation over dims.
 *
 * Kept dims may stay sharded. A reduced dim that is sharded is done in two phases instead of being
 * gathered: the mean, then the squares of what differs from it, each as large as the result. Counts
 * are global, so shards may be uneven or empty. */
#include <math.h>
#include <string.h>

#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/reduce/reduce.h"

static const tsi_attribute stat_table[] = {
    TSI_ATTR(tsi_stat_attributes, over.dims, DIMS, "dims", "[]"),
    TSI_ATTR(tsi_stat_attributes, over.keepdim, BOOL, "keepdim", "false"),
    TSI_ATTR(tsi_stat_attributes, correction, REAL, "correction", "1"),
    { 0 },
};

static ts_status stat_infer(const tsi_op_call *call)
{
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    if (tsi_dtype_category(dtype) < TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s, cast to a real dtype first",
                        call->op->name, ts_dtype_name(dtype));
    TSI_TRY(tsi_reduce_infer(call));
    if (dtype == TS_DTYPE_C64) call->out[0].dtype = TS_DTYPE_F32;
    if (dtype == TS_DTYPE_C128) call->out[0].dtype = TS_DTYPE_F64;
    return TS_OK;
}

double tsi_stat_divisor(const ts_meta *in, const tsi_stat_attributes *a)
{
    double count = 1;
    for (int32_t i = 0; i < a->over.dims.count; i++)
        count *= (double)in->shape.extent[a->over.dims.value[i]];
    return fmax(count - a->correction, 0.0);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static double squares_of(const tsi_block *in, tsi_reduce_loops *loops)
{
    double complex mean = 0;
    double count = 0, sum = 0;
    for (bool more = tsi_loop_begin(&loops->inner); more; more = tsi_loop_next(&loops->inner)) {
        mean += tsi_block_complex(in, loops->outer.at[0] + loops->inner.at[0]);
        count += 1;
    }
    mean /= count;
    for (bool more = tsi_loop_begin(&loops->inner); more; more = tsi_loop_next(&loops->inner)) {
        double complex d = tsi_block_complex(in, loops->outer.at[0] + loops->inner.at[0]) - mean;
        sum += creal(d) * creal(d) + cimag(d) * cimag(d);
    }
    return sum;
}

static ts_status stat_reference(const tsi_kernel_io *io)
{
    const tsi_stat_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    double divisor = tsi_stat_divisor(io->in[0].global, a);
    bool root = io->op == &tsi_op_std;
    tsi_reduce_loops loops;
    tsi_reduce_loops_make(in, out, tsi_reduce_mask(a), a->over.keepdim, &loops);
    for (bool more = tsi_loop_begin(&loops.outer); more; more = tsi_loop_next(&loops.outer)) {
        double value = squares_of(in, &loops) / divisor;
        tsi_block_set_real(out, loops.outer.at[1], root ? sqrt(value) : value);
    }
    return TS_OK;
}

/* ---- two phases ------------------------------------------------------------------------------ */

static int64_t stat_bytes(const tsi_op_call *call, int64_t n)
{
    int64_t wide = call->in[0].dtype == TS_DTYPE_C128 ? 24 : 16;
    return tsi_algorithm_share(tsi_mul_most(2 * wide, ts_shape_count(&call->out[0].shape)), n);
}

static ts_dtype wide_dtype(ts_dtype dtype)
{
    return tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX ? TS_DTYPE_C128 : TS_DTYPE_F64;
}

static ts_status stat_two_phase(const tsi_algorithm_io *io)
{
    const tsi_stat_attributes *a = io->attributes;
    const tsi_dims *dims = &a->over.dims;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_cast(io->in[0], wide_dtype((ts_dtype)io->call->in[0].dtype));
    ts_tensor *mean = tsi_algorithm_settle(io, ts_mean(x, dims->value, dims->count, 1));
    ts_tensor *squares = ts_square(ts_abs(ts_sub(x, mean)));
    ts_tensor *sum = tsi_algorithm_settle(io, ts_sum(squares, dims->value, dims->count, 1));
    ts_tensor *y = ts_div_scalar(sum, tsi_stat_divisor(&io->call->in[0], a));
    if (io->op == &tsi_op_std) y = ts_sqrt(y);
    y = ts_reshape(ts_cast(y, (ts_dtype)io->call->out[0].dtype), io->call->out[0].shape);
    return tsi_algorithm_end(io, scope, &y);
}

static const tsi_algorithm stat_phases[] = { { "two-phase", stat_two_phase, stat_bytes }, { 0 } };

/* ---- gradients ------------------------------------------------------------------------------- */

/* d var = 2 (x - mean) / divisor; d std is that over 2 std, 0 where the deviation is 0. */
static ts_status stat_grad(const tsi_grad_io *io)
{
    const tsi_stat_attributes *a = io->attributes;
    const tsi_dims *dims = &a->over.dims;
    double factor = 2.0 / tsi_stat_divisor(&io->in_meta[0], a);
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], a);
    if (io->op == &tsi_op_std) {
        ts_tensor *y = tsi_grad_unreduce(io->out[0], &io->in_meta[0], a);
        dy = ts_masked_fill(ts_div(dy, ts_mul_scalar(y, 2.0)), ts_logical_not(y), 0.0);
    }
    ts_tensor *centred = ts_sub(io->in[0], ts_mean(io->in[0], dims->value, dims->count, 1));
    return tsi_grad_give(io, ts_mul(ts_mul_scalar(centred, factor), dy));
}

static bool sample_stat(tsi_sample *s)
{
    ((tsi_stat_attributes *)s->attributes)->correction = s->variant == 3 ? 0.0 : 1.0;
    return tsi_sample_reduce(s);
}

#define STAT                                                                                       \
    .input_min = 1, .input_max = 1, .output_count = 1, .attribute = stat_table,                    \
    .attribute_bytes = sizeof(tsi_stat_attributes), .normalise = tsi_reduce_normalise,             \
    .infer = stat_infer, .rules = tsi_reduce_rules_steps, .reference = stat_reference,             \
    .algorithm = stat_phases, .grad = stat_grad, .sample = sample_stat

const tsi_op_desc tsi_op_var = {
    .name = "var",
    .what = "the variance over dims, divided by count - correction",
    .dtypes = TSI_DTYPES_REAL,
    STAT,
    .saves = 1,
};
const tsi_op_desc tsi_op_std = {
    .name = "std",
    .what = "the standard deviation over dims, divided by count - correction",
    .dtypes = TSI_DTYPES_REAL,
    STAT,
    .saves = 1 | (uint64_t)1 << TSI_SAVE_OUT,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_tensor *stat(const tsi_op_desc *op, ts_tensor *x, const ts_stat_options *options)
{
    tsi_stat_attributes a = { .correction = 1.0 };
    if (options) {
        a.correction = options->correction;
        a.over.keepdim = options->keepdim != 0;
        a.over.dims.count = options->dims ? options->count : 0;
        if (a.over.dims.count > TS_NDIM_MAX) a.over.dims.count = TS_NDIM_MAX;
        for (int32_t i = 0; i < a.over.dims.count; i++)
            a.over.dims.value[i] = options->dims[i];
    }
    return tsi_op_make(op, &x, 1, &a);
}

ts_tensor *(ts_var)(ts_tensor *x, const ts_stat_options *options)
{
    return stat(&tsi_op_var, x, options);
}

ts_tensor *(ts_std)(ts_tensor *x, const ts_stat_options *options)
{
    return stat(&tsi_op_std, x, options);
}
