/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_linear.c - rows, each multiplied by the matrix of its group, and the gradient of the
 * matrices.
 *
 *   x [M.., C]   weight [E, F, C]   group [M..]   ->   y [M.., F],  y[m] = weight[group[m]] x[m]
 *
 * So a mixture of experts computes the experts that were chosen and no others. Rows, F and C may be
 * sharded, and so may the groups: a rank computes the rows whose matrix it holds and leaves zeros
 * for the others, which makes the result a partial sum; no row moves. Where rows and groups are cut
 * over the same ranks, rows go to their matrices and results come back (grouped_exchange.c). */
#include "op/matrix/grouped_linear.h"

#include <string.h>

#include "base/alloc.h"
#include "op/core/common.h"

typedef struct grouped_attributes {
    int64_t groups;
} grouped_attributes;

static ts_status check_rows(const char *op, const ts_meta *x, const ts_meta *group)
{
    char a[96], b[96];
    if (!tsi_shape_is_rows(&group->shape, &x->shape))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: groups %s do not fit rows %s", op,
                        tsi_shape_text(&group->shape, a, sizeof a),
                        tsi_shape_text(&x->shape, b, sizeof b));
    if (tsi_dtype_category((ts_dtype)group->dtype) != TSI_CATEGORY_INT)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: groups are integers, not %s", op,
                        ts_dtype_name((ts_dtype)group->dtype));
    if (tsi_dtype_category((ts_dtype)x->dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", op,
                        ts_dtype_name((ts_dtype)x->dtype));
    return TS_OK;
}

ts_status tsi_grouped_refuse(const char *op, int64_t group, int64_t groups, bool cut)
{
    return TSI_FAIL_BLAST(cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED, TS_ERR_ARG,
                          "%s: group %lld is out of range for %lld groups", op, (long long)group,
                          (long long)groups);
}

/* The place of a group in a rank's block, -1 if another rank holds it, -2 if nobody does. */
static int64_t local_group(const tsi_operand *weight, int64_t group)
{
    if (group < 0 || group >= weight->global->shape.extent[0]) return -2;
    return tsi_operand_local(weight, 0, group);
}

/* Roles of the inputs, then of the result; those of an absent input stay NONE. */
static void add_rule(tsi_rules *rules, uint8_t algorithm, const tsi_role *row)
{
    tsi_role *to = tsi_rules_add_with(rules, algorithm, 0);
    for (int32_t i = 0; i <= rules->input_count; i++)
        if (to[i] != TSI_ROLE_NONE) to[i] = row[i];
}

/* ---- the products ---------------------------------------------------------------------------- */

static ts_status linear_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[0].shape, *weight = &call->in[1].shape;
    char a[96], b[96];
    TSI_TRY(check_rows("grouped_linear", &call->in[0], &call->in[2]));
    if (weight->ndim != 3 || x->extent[x->ndim - 1] != weight->extent[2])
        return TSI_FAIL(TS_ERR_SHAPE,
                        "grouped_linear: x %s and weight %s do not fit: [.., C] and [E, F, C]",
                        tsi_shape_text(x, a, sizeof a), tsi_shape_text(weight, b, sizeof b));
    if (call->in[0].dtype != call->in[1].dtype)
        return TSI_FAIL(TS_ERR_DTYPE, "grouped_linear: x is %s, weight is %s",
                        ts_dtype_name((ts_dtype)call->in[0].dtype),
                        ts_dtype_name((ts_dtype)call->in[1].dtype));
    call->out[0] = call->in[0];
    call->out[0].shape.extent[x->ndim - 1] = weight->extent[1];
    return TS_OK;
}

static void linear_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    int32_t last = call->in[0].shape.ndim - 1;
    for (int32_t d = 0; d < last; d++)
        add_rule(rules, 0, (tsi_role[]){ TSI_S(d), r, TSI_S(d), TSI_S(d) });
    add_rule(rules, 0, (tsi_role[]){ r, TSI_S(1), r, TSI_S(last) });
    add_rule(rules, 0, (tsi_role[]){ TSI_S(last), TSI_S(2), r, sum });
    add_rule(rules, 0, (tsi_role[]){ r, TSI_S(0), r, sum });
    for (int32_t d = 0; d < last; d++)
        add_rule(rules, 1, (tsi_role[]){ TSI_S(d), TSI_S(0), TSI_S(d), TSI_S(d) });
    add_rule(rules, 0, (tsi_role[]){ sum, r, r, sum });
    add_rule(rules, 0, (tsi_role[]){ avg, r, r, avg });
    add_rule(rules, 0, (tsi_role[]){ r, sum, r, sum });
    add_rule(rules, 0, (tsi_role[]){ r, avg, r, avg });
}

/* One row: `to` is weight[e] times `from`; zeros where e is -1. */
static void multiply_row(const tsi_kernel_io *io, int64_t e, int64_t from, int64_t to)
{
    const tsi_block *x = &io->in[0].block, *w = &io->in[1].block, *y = &io->out[0].block;
    int32_t last = x->ndim - 1;
    for (int64_t f = 0; f < y->extent[last]; f++) {
        double sum = 0;
        int64_t at = e * w->stride[0] + f * w->stride[1];
        for (int64_t c = 0; e >= 0 && c < x->extent[last]; c++)
            sum += tsi_block_real(x, from + c * x->stride[last]) *
                   tsi_block_real(w, at + c * w->stride[2]);
        tsi_block_set_real(y, to + f * y->stride[last], sum);
    }
}

static ts_status linear_reference(const tsi_kernel_io *io)
{
    const tsi_block *group = &io->in[2].block;
    tsi_loop loop = TSI_LOOP(group, group->stride, io->in[0].block.stride, io->out[0].block.stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t index = tsi_block_int(group, loop.at[0]);
        int64_t e = local_group(&io->in[1], index);
        if (e == -2)
            return tsi_grouped_refuse("grouped_linear", index, io->in[1].global->shape.extent[0],
                                      io->in[2].region != NULL);
        multiply_row(io, e, loop.at[1], loop.at[2]);
    }
    return TS_OK;
}

ts_tensor *tsi_grouped_sums(ts_tensor *dy, ts_tensor *x, ts_tensor *group, ts_tensor *weight)
{
    ts_tensor *in[] = { dy, x, group, weight };
    grouped_attributes at = { weight ? ts_tensor_shape(weight).extent[0] : 0 };
    return tsi_op_make(&tsi_op_grouped_linear_backward, in, 4, &at);
}

static ts_status linear_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0];
    if (io->needs & 1)
        io->in_grad[0] = (ts_grouped_linear)(dy, ts_transpose(io->in[1], 1, 2), io->in[2]);
    if (io->needs & 2) io->in_grad[1] = tsi_grouped_sums(dy, io->in[0], io->in[2], io->in[1]);
    return ts_rank_status(io->rank);
}

static bool sample_linear(tsi_sample *s)
{
    s->count = 3;
    int32_t rows = 1 + s->variant;
    s->in[0] =
        (ts_meta){ .shape = { .ndim = rows + 1, .extent = { 5, 4, 3 } }, .dtype = TS_DTYPE_F64 };
    s->in[1] = tsi_meta_f64(TS_SHAPE(7, 5, s->variant ? 3 : 4));
    s->in[2] = (ts_meta){ .shape = { .ndim = rows, .extent = { 5, s->variant ? 4 : 0 } },
                          .dtype = TS_DTYPE_I64 };
    return s->variant < 2;
}

static double linear_flops(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[0].shape;
    return 2.0 * (double)x->extent[x->ndim - 1] * (double)ts_shape_count(&call->out[0].shape);
}

const tsi_op_desc tsi_op_grouped_linear = {
    .name = "grouped_linear",
    .what = "rows times the matrix of their group",
    TSI_OPERANDS(3, 3, 1),
    .saves = 7,
    .infer = linear_infer,
    .rules = linear_rules,
    .reference = linear_reference,
    .algorithm = tsi_grouped_linear_exchange,
    .flags = TSI_OP_TWO_ROUNDS,
    .grad = linear_grad,
    .flops = linear_flops,
    .sample = sample_linear,
};

/* ---- the gradient of the matrices ------------------------------------------------------------ */

static const tsi_attribute groups_table[] = {
    TSI_ATTR(grouped_attributes, groups, INT, "groups", NULL), { 0 }
};

static ts_status backward_infer(const tsi_op_call *call)
{
    const ts_shape *dy = &call->in[0].shape, *x = &call->in[1].shape;
    TSI_TRY(check_rows("grouped_linear_backward", &call->in[0], &call->in[2]));
    TSI_TRY(check_rows("grouped_linear_backward", &call->in[1], &call->in[2]));
    int64_t groups = ((const grouped_attributes *)call->attributes)->groups;
    if (groups < 0)
        return TSI_FAIL(TS_ERR_ARG, "grouped_linear_backward: %lld groups", (long long)groups);
    bool has_like = call->input_count > 3 && call->in[3].dtype != TS_DTYPE_NONE;
    const ts_shape *like = has_like ? &call->in[3].shape : NULL;
    if (like &&
        (like->ndim != 3 || like->extent[0] != groups ||
         like->extent[1] != dy->extent[dy->ndim - 1] || like->extent[2] != x->extent[x->ndim - 1]))
        return TSI_FAIL(TS_ERR_SHAPE,
                        "grouped_linear_backward: the matrices are not of %lld groups, %lld x %lld",
                        (long long)groups, (long long)dy->extent[dy->ndim - 1],
                        (long long)x->extent[x->ndim - 1]);
    call->out[0] = (ts_meta){ .shape = { .ndim = 3,
                                         .extent = { groups, dy->extent[dy->ndim - 1],
                                                     x->extent[x->ndim - 1] } },
                              .dtype = call->in[0].dtype };
    return TS_OK;
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    int32_t last = call->in[0].shape.ndim - 1;
    if (rules->input_count < 4) { /* nobody said where the sums are wanted */
        for (int32_t d = 0; d < last; d++)
            add_rule(rules, 0, (tsi_role[]){ TSI_S(d), TSI_S(d), TSI_S(d), sum });
        add_rule(rules, 0, (tsi_role[]){ TSI_S(last), r, r, TSI_S(1) });
        add_rule(rules, 0, (tsi_role[]){ r, TSI_S(last), r, TSI_S(2) });
        add_rule(rules, 0, (tsi_role[]){ sum, r, r, sum });
        add_rule(rules, 0, (tsi_role[]){ avg, r, r, avg });
        add_rule(rules, 0, (tsi_role[]){ r, sum, r, sum });
        add_rule(rules, 0, (tsi_role[]){ r, avg, r, avg });
        return;
    }
    for (int32_t d = 0; d < last; d++) {
        add_rule(rules, 0, (tsi_role[]){ TSI_S(d), TSI_S(d), TSI_S(d), r, sum });
        add_rule(rules, 1, (tsi_role[]){ TSI_S(d), TSI_S(d), TSI_S(d), TSI_S(0), TSI_S(0) });
    }
    add_rule(rules, 0, (tsi_role[]){ r, r, r, TSI_S(0), TSI_S(0) });
    add_rule(rules, 0, (tsi_role[]){ TSI_S(last), r, r, TSI_S(1), TSI_S(1) });
    add_rule(rules, 0, (tsi_role[]){ TSI_S(last), r, r, r, TSI_S(1) });
    add_rule(rules, 0, (tsi_role[]){ r, TSI_S(last), r, TSI_S(2), TSI_S(2) });
    add_rule(rules, 0, (tsi_role[]){ r, TSI_S(last), r, r, TSI_S(2) });
    add_rule(rules, 0, (tsi_role[]){ sum, r, r, r, sum });
    add_rule(rules, 0, (tsi_role[]){ avg, r, r, r, avg });
    add_rule(rules, 0, (tsi_role[]){ r, sum, r, r, sum });
    add_rule(rules, 0, (tsi_role[]){ r, avg, r, r, avg });
}

/* Adds the product of two rows to the matrix of a group, in `sums` [group][f][c]: rounded once,
 * when all are there. */
static void add_outer(const tsi_kernel_io *io, int64_t e, int64_t at_dy, int64_t at_x, double *sums)
{
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block, *dw = &io->out[0].block;
    int64_t step_dy = dy->stride[dy->ndim - 1], step_x = x->stride[x->ndim - 1];
    for (int64_t f = 0; f < dw->extent[1]; f++) {
        double left = tsi_block_real(dy, at_dy + f * step_dy);
        for (int64_t c = 0; c < dw->extent[2]; c++) {
            double right = tsi_block_real(x, at_x + c * step_x);
            sums[(e * dw->extent[1] + f) * dw->extent[2] + c] += left * right;
        }
    }
}

static ts_status add_rows(const tsi_kernel_io *io, double *sums)
{
    const tsi_block *group = &io->in[2].block;
    tsi_loop loop = TSI_LOOP(group, group->stride, io->in[0].block.stride, io->in[1].block.stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t index = tsi_block_int(group, loop.at[0]);
        int64_t e = local_group(&io->out[0], index);
        if (e == -2)
            return tsi_grouped_refuse("grouped_linear_backward", index,
                                      io->out[0].global->shape.extent[0], io->in[2].region != NULL);
        if (e >= 0) add_outer(io, e, loop.at[1], loop.at[2], sums);
    }
    return TS_OK;
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    const tsi_block *dw = &io->out[0].block;
    size_t count = (size_t)tsi_block_count(dw);
    double *sums = tsi_calloc(count + 1, sizeof *sums);
    if (!sums) return tsi_fail_memory("sums of groups", count * sizeof *sums);
    ts_status status = add_rows(io, sums);
    tsi_loop loop = tsi_loop_over(dw);
    const double *sum = sums;
    for (bool more = status == TS_OK && tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        tsi_block_set_real(dw, loop.at[0], *sum++);
    tsi_free(sums);
    return status;
}

static bool sample_backward(tsi_sample *s)
{
    s->count = 3;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    s->in[1] = tsi_meta_f64(TS_SHAPE(5, 3));
    s->in[2] = (ts_meta){ .shape = { .ndim = 1, .extent = { 5 } }, .dtype = TS_DTYPE_I64 };
    s->in[3] = tsi_meta_f64(TS_SHAPE(7, 4, 3));
    ((grouped_attributes *)s->attributes)->groups = 7;
    s->count = 3 + s->variant;
    return s->variant < 2;
}

static double backward_flops(const tsi_op_call *call)
{
    const ts_shape *y = &call->in[1].shape;
    return 2.0 * (double)y->extent[y->ndim - 1] * (double)ts_shape_count(&call->in[0].shape);
}

const tsi_op_desc tsi_op_grouped_linear_backward = {
    .name = "grouped_linear_backward",
    .what = "gradient of the matrices of groups: sums over the rows of each, and where the "
            "matrices lie "
            "if they are given",
    TSI_OPERANDS(3, 4, 1),
    .flags = TSI_OP_NO_GRAD | TSI_OP_TWO_ROUNDS,
    TSI_ATTRIBUTES(groups_table, grouped_attributes),
    .infer = backward_infer,
    .rules = backward_rules,
    .reference = backward_reference,
    .algorithm = tsi_grouped_backward_exchange,
    .flops = backward_flops,
    .sample = sample_backward,
};

/* ---- public ---------------------------------------------------------------------------------- */

ts_tensor *(ts_grouped_linear)(ts_tensor *x, ts_tensor *weight, ts_tensor *group)
{
    ts_tensor *in[] = { x, weight, group };
    return tsi_op_make(&tsi_op_grouped_linear, in, 3, NULL);
}

ts_tensor *ts_grouped_linear_backward(ts_tensor *dy, ts_tensor *x, ts_tensor *group, int64_t groups)
{
    ts_tensor *in[] = { dy, x, group };
    return tsi_op_make(&tsi_op_grouped_linear_backward, in, 3, &groups);
}
