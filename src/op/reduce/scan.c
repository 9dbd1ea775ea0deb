/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c - cumsum, cumprod, cummax, cummin, and the gradient of cumprod.
 *
 * Other dims may stay cut. A scan along a cut dim carries the totals of the ranks before in
 * (scan_prefix.c). Sums and averages pass through cumsum, products through cumprod. */
#include "op/reduce/scan.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

static const tsi_attribute sum_table[] = { TSI_ATTR(tsi_scan_attributes, dim, INT, "dim", NULL),
                                           TSI_ATTR(tsi_scan_attributes, reverse, BOOL, "reverse",
                                                    "false"),
                                           { 0 } };
static const tsi_attribute scan_table[] = { TSI_ATTR(tsi_scan_attributes, dim, INT, "dim", NULL),
                                            { 0 } };

/* ---- kinds ----------------------------------------------------------------------------------- */

static void step_sum(tsi_category category, tsi_scan_value *value, const tsi_scan_value *next)
{
    if (category == TSI_CATEGORY_COMPLEX)
        value->both += next->both;
    else if (category == TSI_CATEGORY_REAL)
        value->real += next->real;
    else
        value->whole = (int64_t)((uint64_t)value->whole + (uint64_t)next->whole);
}

static void step_prod(tsi_category category, tsi_scan_value *value, const tsi_scan_value *next)
{
    if (category == TSI_CATEGORY_COMPLEX)
        value->both *= next->both;
    else if (category == TSI_CATEGORY_REAL)
        value->real *= next->real;
    else
        value->whole = (int64_t)((uint64_t)value->whole * (uint64_t)next->whole);
}

/* Equal values: the later one counts. A NaN is met for good. */
static bool takes(tsi_category category, const tsi_scan_value *value, const tsi_scan_value *next,
                  bool most)
{
    if (next->at < 0 || value->at < 0) return next->at >= 0;
    if (category != TSI_CATEGORY_REAL)
        return most ? next->whole >= value->whole : next->whole <= value->whole;
    if (isnan(next->real)) return true;
    if (isnan(value->real)) return false;
    return most ? next->real >= value->real : next->real <= value->real;
}

static void step_max(tsi_category category, tsi_scan_value *value, const tsi_scan_value *next)
{
    if (takes(category, value, next, true)) *value = *next;
}

static void step_min(tsi_category category, tsi_scan_value *value, const tsi_scan_value *next)
{
    if (takes(category, value, next, false)) *value = *next;
}

static const tsi_scan_kind sum_kind = { { .at = -1 }, step_sum, false };
static const tsi_scan_kind prod_kind = { { .both = 1, .real = 1, .whole = 1, .at = -1 },
                                         step_prod,
                                         false };
static const tsi_scan_kind max_kind = { { .at = -1 }, step_max, true };
static const tsi_scan_kind min_kind = { { .at = -1 }, step_min, true };

/* ---- shapes and rules ------------------------------------------------------------------------ */

static ts_status scan_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    return tsi_normalise_dim(op->name, &((tsi_scan_attributes *)attributes)->dim, in[0].shape.ndim);
}

/* Sums and products of bool and integers are i64. */
static ts_status scan_infer(const tsi_op_call *call)
{
    const tsi_scan_kind *kind = call->op->family;
    tsi_category category = tsi_dtype_category((ts_dtype)call->in[0].dtype);
    call->out[0] = call->in[0];
    if (!kind->extreme) {
        if (category <= TSI_CATEGORY_INT) call->out[0].dtype = TS_DTYPE_I64;
        return TS_OK;
    }
    if (category == TSI_CATEGORY_COMPLEX)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: complex numbers have no order", call->op->name);
    call->out[1] = call->in[0];
    call->out[1].dtype = TS_DTYPE_I64;
    return TS_OK;
}

static void scan_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_scan_attributes *)call->attributes)->dim;
    int32_t ndim = call->in[0].shape.ndim;
    tsi_rules_batch(rules, ndim, 1u << dim);
    if (ndim == 0) return;
    tsi_role *row = tsi_rules_add_with(rules, 1, TSI_RULE_PLAIN);
    for (int32_t i = 0; i < 1 + call->output_count; i++)
        row[i] = TSI_S(dim);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

int64_t tsi_scan_lines(const tsi_block *in, int32_t dim)
{
    int64_t lines = 1;
    for (int32_t d = 0; d < in->ndim; d++)
        if (d != dim) lines *= in->extent[d];
    return lines;
}

static tsi_scan_value value_at(const tsi_block *in, tsi_category category, int64_t offset)
{
    tsi_scan_value value = { .at = -1 };
    const void *element = tsi_block_at(in, offset);
    ts_dtype dtype = (ts_dtype)in->dtype;
    if (category == TSI_CATEGORY_COMPLEX)
        value.both = tsi_load_complex(dtype, element);
    else if (category == TSI_CATEGORY_REAL)
        value.real = tsi_load_real(dtype, element);
    else
        value.whole = tsi_load_int(dtype, element);
    return value;
}

static void store_at(const tsi_block *out, tsi_category category, int64_t offset,
                     const tsi_scan_value *value)
{
    void *element = tsi_block_at(out, offset);
    ts_dtype dtype = (ts_dtype)out->dtype;
    if (category == TSI_CATEGORY_COMPLEX)
        tsi_store_complex(dtype, element, value->both);
    else if (category == TSI_CATEGORY_REAL)
        tsi_store_real(dtype, element, value->real);
    else
        tsi_store_int(dtype, element, value->whole);
}

static void scan_line(const tsi_scan_job *job, const int64_t *at, tsi_scan_value *value)
{
    tsi_category category = tsi_dtype_category((ts_dtype)job->in->dtype);
    int64_t n = job->in->ndim ? job->in->extent[job->dim] : 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = job->reverse ? n - 1 - k : k, d = job->dim;
        tsi_scan_value next = value_at(job->in, category, at[0] + i * job->in->stride[d]);
        next.at = job->kind->extreme ? job->offset + i : -1;
        job->kind->step(category, value, &next);
        if (job->out) store_at(job->out, category, at[1] + i * job->out->stride[d], value);
        if (job->index)
            tsi_store_int(TS_DTYPE_I64, tsi_block_at(job->index, at[2] + i * job->index->stride[d]),
                          value->at);
    }
}

void tsi_scan_run(const tsi_scan_job *job)
{
    const tsi_block *out = job->out ? job->out : job->in, *index = job->index ? job->index : out;
    tsi_loop loop = { .ndim = job->in->ndim,
                      .operand_count = 3,
                      .stride = { job->in->stride, out->stride, index->stride } };
    memcpy(loop.extent, job->in->extent, sizeof loop.extent);
    if (job->in->ndim > 0) loop.extent[job->dim] = 1;
    int64_t line = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop), line++) {
        tsi_scan_value value = job->carry ? job->carry[line] : job->kind->identity;
        scan_line(job, loop.at, &value);
        if (job->total) job->total[line] = value;
    }
}

static ts_status scan_reference(const tsi_kernel_io *io)
{
    const tsi_scan_attributes *a = io->attributes;
    tsi_scan_job job = { .kind = io->op->family,
                         .dim = (int32_t)a->dim,
                         .reverse = a->reverse,
                         .in = &io->in[0].block,
                         .out = &io->out[0].block };
    if (job.kind->extreme) job.index = &io->out[1].block;
    tsi_scan_run(&job);
    return TS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Each element counts in all sums after it: the scan from the other end. */
static ts_status sum_grad(const tsi_grad_io *io)
{
    tsi_scan_attributes a = *(const tsi_scan_attributes *)io->attributes;
    a.reverse = !a.reverse;
    ts_tensor *dx = tsi_op_make(&tsi_op_cumsum, io->out_grad, 1, &a);
    return tsi_grad_give(io, ts_cast(dx, (ts_dtype)io->in_meta[0].dtype));
}

static ts_status prod_grad(const tsi_grad_io *io)
{
    ts_tensor *in[] = { io->out_grad[0], io->in[0] };
    return tsi_grad_give(io, tsi_op_make(&tsi_op_cumprod_backward, in, 2, io->attributes));
}

static ts_status extreme_grad(const tsi_grad_io *io)
{
    const tsi_scan_attributes *a = io->attributes;
    if (io->out_grad[0])
        io->in_grad[0] =
            ts_gather_backward(io->out_grad[0], (int32_t)a->dim, io->out[1], io->in_meta[0].shape);
    return ts_rank_status(io->rank);
}

static bool sample_scan(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    if (s->variant == 2) s->in[0].shape = TS_SHAPE(2, 7, 3);
    ((tsi_scan_attributes *)s->attributes)->dim = s->variant == 0 ? 0 : s->variant == 1 ? -1 : 1;
    return s->variant < 3;
}

static bool sample_sum(tsi_sample *s)
{
    bool more = tsi_sample_as(s, s->variant % 3, sample_scan);
    ((tsi_scan_attributes *)s->attributes)->reverse = s->variant >= 3;
    return more && s->variant < 6;
}

#define SCAN                                                                                       \
    .input_min = 1, .input_max = 1, .attribute_bytes = sizeof(tsi_scan_attributes),                \
    .normalise = scan_normalise, .infer = scan_infer, .rules = scan_rules,                         \
    .reference = scan_reference, .algorithm = tsi_scan_prefix, .flags = TSI_OP_ONE_ROUND

const tsi_op_desc tsi_op_cumsum = {
    .name = "cumsum",
    .what = "running sums along a dim",
    SCAN,
    .output_count = 1,
    .attribute = sum_table,
    .family = &sum_kind,
    .traits = { .flow = TSI_LINEAR_ALL },
    .grad = sum_grad,
    .sample = sample_sum,
};
const tsi_op_desc tsi_op_cumprod = {
    .name = "cumprod",
    .what = "running products along a dim",
    SCAN,
    .output_count = 1,
    .saves = 1,
    .attribute = scan_table,
    .family = &prod_kind,
    .traits = { .flow = TSI_MULTIPLICATIVE },
    .grad = prod_grad,
    .sample = sample_scan,
};
const tsi_op_desc tsi_op_cummax = {
    .name = "cummax",
    .what = "running maxima along a dim, and their indices; of equal ones the later",
    .dtypes = TSI_DTYPES_ORDERED,
    SCAN,
    .output_count = 2,
    .saves = (uint64_t)1 << (TSI_SAVE_OUT + 1),
    .attribute = scan_table,
    .family = &max_kind,
    .grad = extreme_grad,
    .sample = sample_scan,
};
const tsi_op_desc tsi_op_cummin = {
    .name = "cummin",
    .what = "running minima along a dim, and their indices; of equal ones the later",
    .dtypes = TSI_DTYPES_ORDERED,
    SCAN,
    .output_count = 2,
    .saves = (uint64_t)1 << (TSI_SAVE_OUT + 1),
    .attribute = scan_table,
    .family = &min_kind,
    .grad = extreme_grad,
    .sample = sample_scan,
};

/* ---- the gradient of cumprod ----------------------------------------------------------------- */

static ts_status backward_infer(const tsi_op_call *call)
{
    const ts_meta *dy = &call->in[0], *x = &call->in[1];
    char one[96], other[96];
    if (!tsi_shape_same(&dy->shape, &x->shape))
        return TSI_FAIL(TS_ERR_SHAPE, "cumprod_backward: a gradient of %s for %s",
                        tsi_shape_text(&dy->shape, one, sizeof one),
                        tsi_shape_text(&x->shape, other, sizeof other));
    if (tsi_dtype_category((ts_dtype)x->dtype) < TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "cumprod_backward: is not defined for %s",
                        ts_dtype_name((ts_dtype)x->dtype));
    call->out[0] = *x;
    return TS_OK;
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_scan_attributes *)call->attributes)->dim;
    tsi_rules_batch(rules, call->in[0].shape.ndim, 1u << dim);
}

/* With P(i) the product before i and s(i) = dy(i) + x(i+1) s(i+1): dx(i) = P(i) s(i). No division,
 * so zeros are no special case. */
static void backward_line(const tsi_kernel_io *io, const int64_t *at, int32_t dim,
                          double complex *s)
{
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block, *dx = &io->out[0].block;
    int64_t n = x->ndim ? x->extent[dim] : 1;
    ts_dtype of_dy = (ts_dtype)dy->dtype, of_x = (ts_dtype)x->dtype, of_dx = (ts_dtype)dx->dtype;
    double complex next = 0.0, before = 1.0; /* x(i+1) s(i+1); P(i) */
    for (int64_t i = n - 1; i >= 0; i--) {
        s[i] = tsi_load_complex(of_dy, tsi_block_at(dy, at[0] + i * dy->stride[dim])) + next;
        next = s[i] * tsi_load_complex(of_x, tsi_block_at(x, at[1] + i * x->stride[dim]));
    }
    for (int64_t i = 0; i < n; i++) {
        tsi_store_complex(of_dx, tsi_block_at(dx, at[2] + i * dx->stride[dim]), before * s[i]);
        before *= tsi_load_complex(of_x, tsi_block_at(x, at[1] + i * x->stride[dim]));
    }
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    int32_t dim = (int32_t)((const tsi_scan_attributes *)io->attributes)->dim;
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block, *dx = &io->out[0].block;
    tsi_loop loop = TSI_LOOP(x, dy->stride, x->stride, dx->stride);
    size_t n = x->ndim ? (size_t)x->extent[dim] : 1;
    double complex *line = tsi_alloc_array(n + 1, sizeof *line);
    if (!line) return tsi_fail_memory("a line of cumprod_backward", n * sizeof *line);
    if (x->ndim > 0) loop.extent[dim] = 1;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        backward_line(io, loop.at, dim, line);
    tsi_free(line);
    return TS_OK;
}

static bool sample_backward(tsi_sample *s)
{
    if (!sample_scan(s)) return false;
    s->in[s->count++] = s->in[0];
    return true;
}

const tsi_op_desc tsi_op_cumprod_backward = {
    .name = "cumprod_backward",
    .what = "the gradient of cumprod",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_NO_GRAD,
    .traits = { .flow = TSI_LINEAR_EACH, .linear_in = 1 },
    TSI_ATTRIBUTES(scan_table, tsi_scan_attributes),
    .normalise = scan_normalise,
    .infer = backward_infer,
    .rules = backward_rules,
    .reference = backward_reference,
    .sample = sample_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_cumsum)(ts_tensor *x, int32_t dim)
{
    return tsi_op_make(&tsi_op_cumsum, &x, 1, &(tsi_scan_attributes){ .dim = dim });
}

ts_tensor *(ts_cumprod)(ts_tensor *x, int32_t dim)
{
    return tsi_op_make(&tsi_op_cumprod, &x, 1, &(tsi_scan_attributes){ .dim = dim });
}

static ts_status extreme(const tsi_op_desc *op, ts_tensor *x, int32_t dim, ts_tensor **values,
                         ts_tensor **indices)
{
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_scan_attributes a = { .dim = dim };
    tsi_op_args args = { op, &x, 1, 0, &a };
    ts_status status = tsi_op_run(&args, out);
    *values = out[0];
    if (indices) *indices = out[1];
    return status;
}

ts_status(ts_cummax)(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices)
{
    return extreme(&tsi_op_cummax, x, dim, values, indices);
}

ts_status(ts_cummin)(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices)
{
    return extreme(&tsi_op_cummin, x, dim, values, indices);
}
