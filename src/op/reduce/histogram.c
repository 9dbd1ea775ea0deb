/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.c - how many elements fall into bins (histc), and how often whole numbers occur
 * (bincount).
 *
 * Counts of shards add up: any cut of the input gives a partial sum. histc without bounds takes
 * those of the whole tensor; where that is cut, its extremes are reduced first. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/reduce/reduce.h"
#include "tensor/scope.h"

static const tsi_attribute histc_table[] = {
    TSI_ATTR(tsi_histc_attributes, bins, INT, "bins", "100"),
    TSI_ATTR(tsi_histc_attributes, min, REAL, "min", "0"),
    TSI_ATTR(tsi_histc_attributes, max, REAL, "max", "0"),
    { 0 },
};

static ts_status histc_infer(const tsi_op_call *call)
{
    const tsi_histc_attributes *a = call->attributes;
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "histc: is not defined for %s", ts_dtype_name(dtype));
    if (a->bins < 1)
        return TSI_FAIL(TS_ERR_ARG, "histc: %lld bins have no meaning", (long long)a->bins);
    if (!isfinite(a->min) || !isfinite(a->max) || a->min > a->max)
        return TSI_FAIL(TS_ERR_ARG, "histc: bounds from %g to %g have no meaning", a->min, a->max);
    call->out[0] = (ts_meta){ .shape = TS_SHAPE(a->bins), .dtype = call->in[0].dtype };
    return TS_OK;
}

static void histc_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_histc_attributes *a = call->attributes;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add_with(rules, a->min == a->max ? 1 : 0, 0);
        row[0] = TSI_S(d);
        row[1] = TSI_P(TS_REDUCE_SUM);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static void bounds_of(const tsi_block *x, double *min, double *max)
{
    tsi_loop loop = tsi_loop_over(x);
    double low = (double)INFINITY, high = -(double)INFINITY;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double value = tsi_block_real(x, loop.at[0]);
        if (value < low) low = value;
        if (value > high) high = value;
    }
    if (low <= high) {
        *min = low;
        *max = high;
    }
    if (*min == *max) { /* all alike: a bin on each side */
        *min -= 1;
        *max += 1;
    }
}

static void clear(const tsi_block *out)
{
    tsi_loop loop = tsi_loop_over(out);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        tsi_block_set_real(out, loop.at[0], 0.0);
}

static void count_up(const tsi_block *out, int64_t place, double by)
{
    void *at = tsi_block_at(out, place * out->stride[0]);
    tsi_store_real((ts_dtype)out->dtype, at, tsi_load_real((ts_dtype)out->dtype, at) + by);
}

static ts_status histc_reference(const tsi_kernel_io *io)
{
    const tsi_histc_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *out = &io->out[0].block;
    double min = a->min, max = a->max;
    if (min == max) bounds_of(x, &min, &max);
    int64_t *counted = tsi_calloc((size_t)a->bins + 1, sizeof *counted);
    if (!counted) return tsi_fail_memory("the bins of a histogram", (size_t)a->bins * 8);
    tsi_loop loop = tsi_loop_over(x);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double value = tsi_block_real(x, loop.at[0]);
        if (!(value >= min && value <= max)) continue;
        int64_t bin = (int64_t)((value - min) / (max - min) * (double)a->bins);
        counted[bin < a->bins ? bin : a->bins - 1]++;
    }
    for (int64_t bin = 0; bin < a->bins; bin++)
        tsi_block_set_real(out, bin * out->stride[0], (double)counted[bin]);
    tsi_free(counted);
    return TS_OK;
}

/* ---- bounds of the whole --------------------------------------------------------------------- */

static ts_status histc_bounded(const tsi_algorithm_io *io)
{
    tsi_histc_attributes a = *(const tsi_histc_attributes *)io->attributes;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *y = NULL;
    if (ts_shape_count(&io->call->in[0].shape) > 0 &&
        ts_tensor_item(ts_amin(io->in[0], NULL, 0, 0), &a.min) == TS_OK)
        (void)ts_tensor_item(ts_amax(io->in[0], NULL, 0, 0), &a.max);
    if (a.min == a.max) {
        a.min -= 1;
        a.max += 1;
    }
    if (ts_rank_status(io->rank) == TS_OK) y = tsi_op_make(&tsi_op_histc, io->in, 1, &a);
    return tsi_algorithm_end(io, scope, &y);
}

static int64_t histc_bytes(const tsi_op_call *call, int64_t n)
{
    return tsi_algorithm_share(2 * 2 * (int64_t)ts_dtype_size((ts_dtype)call->in[0].dtype), n);
}

static const tsi_algorithm histc_algorithms[] = { { "bounds first", histc_bounded, histc_bytes },
                                                  { 0 } };

static bool sample_histc(tsi_sample *s)
{
    static const tsi_histc_attributes kinds[] = { { 4, -2, 3 }, { 3, 0, 0 }, { 8, 0, 1 } };
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 3));
    *(tsi_histc_attributes *)s->attributes = kinds[s->variant % 3];
    return s->variant < 3;
}

const tsi_op_desc tsi_op_histc = {
    .name = "histc",
    .what = "how many elements fall into each of some equal bins; min = max: those of the data",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD,
    TSI_ATTRIBUTES(histc_table, tsi_histc_attributes),
    .infer = histc_infer,
    .rules = histc_rules,
    .reference = histc_reference,
    .algorithm = histc_algorithms,
    .sample = sample_histc,
};

/* ---- bincount -------------------------------------------------------------------------------- */

typedef struct bincount_attributes {
    int64_t length;
} bincount_attributes;
static const tsi_attribute bincount_table[] = {
    TSI_ATTR(bincount_attributes, length, INT, "length", NULL), { 0 }
};

static ts_status bincount_infer(const tsi_op_call *call)
{
    const bincount_attributes *a = call->attributes;
    const ts_meta *x = &call->in[0], *weights = call->input_count > 1 ? &call->in[1] : NULL;
    bool whole = tsi_dtype_category((ts_dtype)x->dtype) == TSI_CATEGORY_INT;
    if (!whole || x->shape.ndim != 1)
        return TSI_FAIL(whole ? TS_ERR_SHAPE : TS_ERR_DTYPE,
                        "bincount: takes one dim of integers, not %d dims of %s",
                        (int)x->shape.ndim, ts_dtype_name((ts_dtype)x->dtype));
    if (a->length < 0)
        return TSI_FAIL(TS_ERR_ARG, "bincount: length %lld has no meaning", (long long)a->length);
    call->out[0] = (ts_meta){ .shape = TS_SHAPE(a->length), .dtype = TS_DTYPE_I64 };
    if (!weights || weights->dtype == TS_DTYPE_NONE) return TS_OK;
    char one[96], other[96];
    if (weights->shape.ndim != 1 || weights->shape.extent[0] != x->shape.extent[0])
        return TSI_FAIL(TS_ERR_SHAPE,
                        "bincount: weights of shape %s do not fit numbers of shape %s",
                        tsi_shape_text(&weights->shape, one, sizeof one),
                        tsi_shape_text(&x->shape, other, sizeof other));
    if (tsi_dtype_category((ts_dtype)weights->dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "bincount: weights are reals, not %s",
                        ts_dtype_name((ts_dtype)weights->dtype));
    call->out[0].dtype = weights->dtype;
    return TS_OK;
}

static void bincount_rules(const tsi_op_call *call, tsi_rules *rules)
{
    bool weighed = call->input_count > 1 && call->in[1].dtype != TS_DTYPE_NONE;
    tsi_role *row = tsi_rules_add(rules);
    row[0] = TSI_S(0);
    if (weighed) row[1] = TSI_S(0);
    row[call->input_count] = TSI_P(TS_REDUCE_SUM);
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 2 };
    if (weighed) tsi_rules_partials(rules, &linear);
}

static ts_status bincount_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *out = &io->out[0].block;
    const tsi_block *weights =
        io->input_count > 1 && io->in[1].global->dtype ? &io->in[1].block : NULL;
    int64_t length = io->out[0].global->shape.extent[0];
    clear(out);
    for (int64_t i = 0; i < x->extent[0]; i++) {
        int64_t value = tsi_block_int(x, i * x->stride[0]);
        if (value < 0 || value >= length)
            return TSI_FAIL(TS_ERR_ARG, "bincount: %lld is not in 0 .. %lld", (long long)value,
                            (long long)length - 1);
        count_up(out, value, weights ? tsi_block_real(weights, i * weights->stride[0]) : 1.0);
    }
    return TS_OK;
}

static ts_status bincount_grad(const tsi_grad_io *io)
{
    if (io->needs & 2) io->in_grad[1] = ts_index_select(io->out_grad[0], 0, io->in[0]);
    return ts_rank_status(io->rank);
}

static bool sample_bincount(tsi_sample *s)
{
    s->count = 1 + s->variant;
    s->in[0] = (ts_meta){ .shape = TS_SHAPE(7), .dtype = TS_DTYPE_I64 };
    s->in[1] = tsi_meta_f64(TS_SHAPE(7));
    ((bincount_attributes *)s->attributes)->length = 9;
    return s->variant < 2;
}

const tsi_op_desc tsi_op_bincount = {
    .name = "bincount",
    .what = "how often each whole number below a length occurs, or the sum of its weights",
    .dtypes = TSI_DTYPES_WHOLE,
    TSI_OPERANDS(1, 2, 1),
    .saves = 1,
    TSI_ATTRIBUTES(bincount_table, bincount_attributes),
    .infer = bincount_infer,
    .rules = bincount_rules,
    .reference = bincount_reference,
    .grad = bincount_grad,
    .sample = sample_bincount,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_histc)(ts_tensor *x, const ts_histc_options *options)
{
    tsi_histc_attributes a = { .bins = 100 };
    if (options) a = (tsi_histc_attributes){ options->bins, options->min, options->max };
    return tsi_op_make(&tsi_op_histc, &x, 1, &a);
}

ts_tensor *(ts_bincount)(ts_tensor *x, ts_tensor *weights, int64_t minlength)
{
    bincount_attributes a = { .length = minlength };
    ts_shape shape = ts_tensor_shape(x);
    double top = -1;
    ts_scope inner = tsi_scope_inner(x);
    if (x && ts_shape_count(&shape) > 0 && ts_tensor_item(ts_amax(x, NULL, 0, 0), &top) != TS_OK)
        return ts_scope_leave(inner, NULL);
    if ((int64_t)top + 1 > a.length) a.length = (int64_t)top + 1;
    ts_tensor *in[] = { x, weights };
    return ts_scope_leave(inner, tsi_op_make(&tsi_op_bincount, in, weights ? 2 : 1, &a));
}
