/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_backward.c - gradients of softmax and log_softmax, from the result y:
 *
 *   softmax        dx = y (dy - sum(dy y))            log_softmax    dx = dy - e^y sum(dy)
 *
 * Linear in dy, so a pending sum passes. A sharded own dim is done in two phases: the sum is
 * reduced, the elements stay where they are. */
#include <math.h>
#include <string.h>

#include "op/core/algorithm.h"
#include "op/nn/attributes.h"
#include "op/reduce/reduce.h"

static const tsi_attribute back_table[] = { TSI_ATTR(tsi_softmax_attributes, dim, INT, "dim", "-1"),
                                            { 0 } };

static ts_status back_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    return tsi_normalise_dim(op->name, &((tsi_softmax_attributes *)attributes)->dim,
                             in[1].shape.ndim);
}

static ts_status back_infer(const tsi_op_call *call)
{
    const ts_shape *dy = &call->in[0].shape, *y = &call->in[1].shape;
    char a[96], b[96];
    if (!tsi_shape_same(dy, y))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: dy has shape %s, y %s", call->op->name,
                        tsi_shape_text(dy, a, sizeof a), tsi_shape_text(y, b, sizeof b));
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)call->in[0].dtype, (ts_dtype)call->in[1].dtype);
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                        ts_dtype_name(dtype));
    call->out[0] = call->in[1];
    call->out[0].dtype = (int32_t)dtype;
    return TS_OK;
}

static void back_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t own = (int32_t)((const tsi_softmax_attributes *)call->attributes)->dim;
    const ts_shape *shape = &call->in[1].shape;
    tsi_rules_batch(rules, shape->ndim, 1u << own);
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 1 };
    tsi_rules_partials(rules, &linear);
    if (shape->ndim == 0) return;
    tsi_role *row = tsi_rules_add_with(rules, shape->extent[own] == 0 ? 0 : 1, 0);
    row[0] = row[1] = row[2] = TSI_S(own);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static void back_row(const tsi_kernel_io *io, const tsi_loop *loop, int64_t length,
                     const int64_t *step)
{
    const tsi_block *dy = &io->in[0].block, *y = &io->in[1].block, *dx = &io->out[0].block;
    bool logs = io->op == &tsi_op_log_softmax_backward;
    double sum = 0;
    for (int64_t i = 0; i < length; i++)
        sum += tsi_block_real(dy, loop->at[0] + i * step[0]) *
               (logs ? 1.0 : tsi_block_real(y, loop->at[1] + i * step[1]));
    for (int64_t i = 0; i < length; i++) {
        double g = tsi_block_real(dy, loop->at[0] + i * step[0]),
               v = tsi_block_real(y, loop->at[1] + i * step[1]);
        tsi_block_set_real(dx, loop->at[2] + i * step[2], logs ? g - exp(v) * sum : v * (g - sum));
    }
}

static ts_status back_reference(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *y = &io->in[1].block, *dx = &io->out[0].block;
    int32_t own = (int32_t)((const tsi_softmax_attributes *)io->attributes)->dim;
    int64_t length = y->ndim ? y->extent[own] : 1, step[3] = { 0 };
    tsi_loop loop = TSI_LOOP(y, dy->stride, y->stride, dx->stride);
    if (y->ndim) {
        loop.extent[own] = length > 0;
        step[0] = dy->stride[own];
        step[1] = y->stride[own];
        step[2] = dx->stride[own];
    }
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        back_row(io, &loop, length, step);
    return TS_OK;
}

/* ---- two phases ------------------------------------------------------------------------------ */

static int64_t back_bytes(const tsi_op_call *call, int64_t n)
{
    uint32_t own = 1u << ((const tsi_softmax_attributes *)call->attributes)->dim;
    ts_meta rows = { .shape = tsi_shape_reduce(&call->in[1].shape, own, true),
                     .dtype = call->out[0].dtype };
    return tsi_algorithm_share(tsi_algorithm_bytes(&rows, 2), n);
}

static ts_status back_two_phase(const tsi_algorithm_io *io)
{
    int64_t dim = ((const tsi_softmax_attributes *)io->attributes)->dim;
    bool logs = io->op == &tsi_op_log_softmax_backward;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *dy = io->in[0], *y = io->in[1];
    ts_tensor *sum = tsi_algorithm_settle(io, ts_sum(logs ? dy : ts_mul(dy, y), &dim, 1, 1));
    ts_tensor *dx = logs ? ts_sub(dy, ts_mul(ts_exp(y), sum)) : ts_mul(y, ts_sub(dy, sum));
    return tsi_algorithm_end(io, scope, &dx);
}

static const tsi_algorithm back_phases[] = { { "two-phase", back_two_phase, back_bytes }, { 0 } };

static bool sample_back(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(s->variant == 2 ? TS_SHAPE(5, 4, 3) : TS_SHAPE(5, 4));
    s->in[1] = s->in[0];
    ((tsi_softmax_attributes *)s->attributes)->dim = s->variant == 0 ? 0 : -1;
    return s->variant < 3;
}

#define BACK                                                                                       \
    .input_min = 2, .input_max = 2, .output_count = 1, .attribute = back_table,                    \
    .attribute_bytes = sizeof(tsi_softmax_attributes), .flags = TSI_OP_NO_GRAD,                    \
    .normalise = back_normalise, .infer = back_infer, .rules = back_rules,                         \
    .reference = back_reference, .algorithm = back_phases, .sample = sample_back

const tsi_op_desc tsi_op_softmax_backward = {
    .name = "softmax_backward",
    .what = "gradient of softmax from its result y: y (dy - sum(dy y))",
    BACK,
};
const tsi_op_desc tsi_op_log_softmax_backward = {
    .name = "log_softmax_backward",
    .what = "gradient of log_softmax from its result y: dy - e^y sum(dy)",
    BACK,
};

ts_tensor *ts_softmax_backward(ts_tensor *dy, ts_tensor *y, int32_t dim)
{
    ts_tensor *in[] = { dy, y };
    return tsi_op_make(&tsi_op_softmax_backward, in, 2, &(tsi_softmax_attributes){ dim });
}

ts_tensor *ts_log_softmax_backward(ts_tensor *dy, ts_tensor *y, int32_t dim)
{
    ts_tensor *in[] = { dy, y };
    return tsi_op_make(&tsi_op_log_softmax_backward, in, 2, &(tsi_softmax_attributes){ dim });
}
