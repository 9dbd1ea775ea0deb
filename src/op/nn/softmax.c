/* SPDX-License-Identifier: Apache-2.0 */
/* softmax.c - softmax, log_softmax and logsumexp over one or several dims.
 *
 * Other dims may stay sharded. A sharded dim of the softmax itself is done in two phases instead of
 * being gathered: the largest element and the sum of exponentials are reduced, each as large as the
 * result of a reduction; the elements stay where they are. */
#include <math.h>
#include <string.h>

#include "op/core/algorithm.h"
#include "op/nn/attributes.h"
#include "op/reduce/reduce.h"

static const tsi_attribute softmax_table[] = {
    TSI_ATTR(tsi_softmax_attributes, dim, INT, "dim", "-1"), { 0 }
};

static ts_status softmax_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)count;
    return tsi_normalise_dim(op->name, &((tsi_softmax_attributes *)attributes)->dim,
                             in[0].shape.ndim);
}

static ts_status refuse_complex(const tsi_op_call *call)
{
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_COMPLEX) return TS_OK;
    return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                    ts_dtype_name((ts_dtype)call->in[0].dtype));
}

static ts_status softmax_infer(const tsi_op_call *call)
{
    call->out[0] = call->in[0];
    call->out[0].dtype = (int32_t)tsi_dtype_to_real((ts_dtype)call->in[0].dtype);
    return refuse_complex(call);
}

/* Any dim but the own one; the own one by the two-phase algorithm. */
static void softmax_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t own = (int32_t)((const tsi_softmax_attributes *)call->attributes)->dim;
    tsi_rules_batch(rules, call->in[0].shape.ndim, 1u << own);
    if (call->in[0].shape.ndim == 0) return;
    bool empty = call->in[0].shape.extent[own] == 0; /* then there is nothing to agree on */
    tsi_role *row = tsi_rules_add_with(rules, empty ? 0 : 1, 0);
    row[0] = row[1] = TSI_S(own);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* One row: the largest element and the sum of exponentials relative to it. */
static double row_sum(const tsi_block *in, const tsi_reduce_loops *at, tsi_loop *inner,
                      double *largest)
{
    double top = -INFINITY, sum = 0;
    for (bool more = tsi_loop_begin(inner); more; more = tsi_loop_next(inner)) {
        double x = tsi_block_real(in, at->outer.at[0] + inner->at[0]);
        if (x > top || isnan(x)) top = x;
    }
    *largest = top;
    if (isinf(top) && top < 0) top = 0;
    for (bool more = tsi_loop_begin(inner); more; more = tsi_loop_next(inner))
        sum += exp(tsi_block_real(in, at->outer.at[0] + inner->at[0]) - top);
    return sum;
}

static ts_status softmax_reference(const tsi_kernel_io *io)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    uint32_t own = 1u << ((const tsi_softmax_attributes *)io->attributes)->dim;
    bool logs = io->op == &tsi_op_log_softmax;
    tsi_reduce_loops loops, places;
    tsi_reduce_loops_make(in, out, in->ndim ? own : 0, true, &loops);
    tsi_reduce_loops_make(out, in, in->ndim ? own : 0, true, &places);
    bool more = tsi_loop_begin(&loops.outer);
    for (tsi_loop_begin(&places.outer); more;
         more = tsi_loop_next(&loops.outer), tsi_loop_next(&places.outer)) {
        double top, sum = row_sum(in, &loops, &loops.inner, &top);
        if (isinf(top) && top < 0) top = 0;
        bool next = tsi_loop_begin(&loops.inner);
        for (tsi_loop_begin(&places.inner); next;
             next = tsi_loop_next(&loops.inner), tsi_loop_next(&places.inner)) {
            double x = tsi_block_real(in, loops.outer.at[0] + loops.inner.at[0]) - top;
            tsi_block_set_real(out, places.outer.at[0] + places.inner.at[0],
                               logs ? x - log(sum) : exp(x) / sum);
        }
    }
    return TS_OK;
}

/* ---- two phases ------------------------------------------------------------------------------ */

static int64_t two_phase_bytes(const tsi_op_call *call, int64_t n)
{
    const tsi_softmax_attributes *a = call->attributes;
    ts_meta rows = { .shape = tsi_shape_reduce(&call->in[0].shape, 1u << a->dim, true),
                     .dtype = call->out[0].dtype };
    return tsi_algorithm_share(tsi_algorithm_bytes(&rows, 2 * 2), n);
}

static ts_status two_phase(const tsi_algorithm_io *io)
{
    const tsi_softmax_attributes *a = io->attributes;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_cast(io->in[0], (ts_dtype)io->call->out[0].dtype);
    ts_tensor *top = tsi_algorithm_settle(io, ts_amax(x, &a->dim, 1, 1));
    ts_tensor *shifted = ts_sub(x, top), *powers = ts_exp(shifted);
    ts_tensor *sum = tsi_algorithm_settle(io, ts_sum(powers, &a->dim, 1, 1));
    ts_tensor *y =
        io->op == &tsi_op_log_softmax ? ts_sub(shifted, ts_log(sum)) : ts_div(powers, sum);
    return tsi_algorithm_end(io, scope, &y);
}

static const tsi_algorithm two_phases[] = { { "two-phase", two_phase, two_phase_bytes }, { 0 } };

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_status softmax_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_softmax_attributes *)io->attributes)->dim;
    return tsi_grad_give(io, ts_softmax_backward(io->out_grad[0], io->out[0], (int32_t)dim));
}

static ts_status log_softmax_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_softmax_attributes *)io->attributes)->dim;
    return tsi_grad_give(io, ts_log_softmax_backward(io->out_grad[0], io->out[0], (int32_t)dim));
}

static bool sample_softmax(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(s->variant == 2 ? TS_SHAPE(5, 4, 3) : TS_SHAPE(5, 4));
    ((tsi_softmax_attributes *)s->attributes)->dim = s->variant == 0 ? 0 : -1;
    return s->variant < 3;
}

#define SOFTMAX                                                                                    \
    .input_min = 1, .input_max = 1, .output_count = 1, .attribute = softmax_table,                 \
    .attribute_bytes = sizeof(tsi_softmax_attributes), .normalise = softmax_normalise,             \
    .infer = softmax_infer, .rules = softmax_rules, .reference = softmax_reference,                \
    .algorithm = two_phases, .sample = sample_softmax, .saves = (uint64_t)1 << TSI_SAVE_OUT

const tsi_op_desc tsi_op_softmax = {
    .name = "softmax",
    .what = "exponentials over a dim divided by their sum",
    .dtypes = TSI_DTYPES_ORDERED,
    SOFTMAX,
    .grad = softmax_grad,
};
const tsi_op_desc tsi_op_log_softmax = {
    .name = "log_softmax",
    .what = "the logarithm of softmax",
    .dtypes = TSI_DTYPES_ORDERED,
    SOFTMAX,
    .grad = log_softmax_grad,
};

/* ---- logsumexp ------------------------------------------------------------------------------- */

static ts_status logsumexp_infer(const tsi_op_call *call)
{
    TSI_TRY(tsi_reduce_infer(call));
    call->out[0].dtype = (int32_t)tsi_dtype_to_real((ts_dtype)call->in[0].dtype);
    return refuse_complex(call);
}

/* Kept dims as they are; a reduced one by the two-phase algorithm, which leaves the result
 * replicated there. */
static void logsumexp_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_reduce_attributes *a = call->attributes;
    uint32_t mask = tsi_reduce_mask(a);
    int32_t kept = 0;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        bool gone = mask >> d & 1;
        bool empty = ts_shape_count(&call->in[0].shape) == 0; /* nothing to agree on: -inf */
        tsi_role *row = tsi_rules_add_with(rules, gone && !empty ? 1 : 0, 0);
        row[0] = TSI_S(d);
        if (!gone) row[1] = TSI_S(a->keepdim ? d : kept++);
    }
}

static ts_status logsumexp_reference(const tsi_kernel_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    tsi_reduce_loops loops;
    tsi_reduce_loops_make(in, out, tsi_reduce_mask(a), a->keepdim, &loops);
    for (bool more = tsi_loop_begin(&loops.outer); more; more = tsi_loop_next(&loops.outer)) {
        double top, sum = row_sum(in, &loops, &loops.inner, &top);
        double y = isinf(top) ? top : top + log(sum); /* an infinite one outweighs the others */
        tsi_block_set_real(out, loops.outer.at[1], y);
    }
    return TS_OK;
}

static int64_t logsumexp_bytes(const tsi_op_call *call, int64_t n)
{
    return tsi_algorithm_share(tsi_algorithm_bytes(&call->out[0], 2 * 2), n);
}

static ts_status logsumexp_two_phase(const tsi_algorithm_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_cast(io->in[0], (ts_dtype)io->call->out[0].dtype);
    ts_tensor *top = tsi_algorithm_settle(io, ts_amax(x, a->dims.value, a->dims.count, 1));
    top = ts_masked_fill(top, ts_isinf(top), 0.0); /* inf - inf is no number, log(e^inf) is inf */
    ts_tensor *sum =
        tsi_algorithm_settle(io, ts_sum(ts_exp(ts_sub(x, top)), a->dims.value, a->dims.count, 1));
    ts_tensor *y = ts_reshape(ts_add(top, ts_log(sum)), io->call->out[0].shape);
    return tsi_algorithm_end(io, scope, &y);
}

static const tsi_algorithm logsumexp_phases[] = {
    { "two-phase", logsumexp_two_phase, logsumexp_bytes }, { 0 }
};

/* dy times the weights e^(x - y), made to sum to one: y is rounded. Equal infinities share. */
static ts_status logsumexp_grad(const tsi_grad_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    ts_tensor *x = io->in[0], *y = tsi_grad_unreduce(io->out[0], &io->in_meta[0], a);
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], a);
    ts_tensor *weight = ts_exp(ts_masked_fill(ts_sub(x, y), ts_eq(x, y), 0.0));
    weight = ts_div(weight, ts_sum(weight, a->dims.value, a->dims.count, 1));
    return tsi_grad_give(io, ts_mul(dy, weight));
}

const tsi_op_desc tsi_op_logsumexp = {
    .name = "logsumexp",
    .what = "log of the sum of exponentials over dims",
    .dtypes = TSI_DTYPES_ORDERED,
    TSI_OPERANDS(1, 1, 1),
    TSI_ATTRIBUTES(tsi_reduce_table, tsi_reduce_attributes),
    .normalise = tsi_reduce_normalise,
    .infer = logsumexp_infer,
    .rules = logsumexp_rules,
    .reference = logsumexp_reference,
    .algorithm = logsumexp_phases,
    .grad = logsumexp_grad,
    .saves = 1 | (uint64_t)1 << TSI_SAVE_OUT,
    .sample = tsi_sample_reduce,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_softmax)(ts_tensor *x, int32_t dim)
{
    return tsi_op_make(&tsi_op_softmax, &x, 1, &(tsi_softmax_attributes){ dim });
}

ts_tensor *(ts_log_softmax)(ts_tensor *x, int32_t dim)
{
    return tsi_op_make(&tsi_op_log_softmax, &x, 1, &(tsi_softmax_attributes){ dim });
}

ts_tensor *(ts_logsumexp)(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim)
{
    tsi_reduce_attributes a = { .keepdim = keepdim != 0 };
    a.dims.count = dims ? count : 0;
    for (int32_t i = 0; i < a.dims.count && i < TS_NDIM_MAX; i++)
        a.dims.value[i] = dims[i];
    return tsi_op_make(&tsi_op_logsumexp, &x, 1, &a);
}
