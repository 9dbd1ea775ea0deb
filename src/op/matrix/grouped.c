/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.c - products of groups of rows with a matrix each: what experts do with their tokens.
 *
 * a [T, K] whose rows are sorted by group, b [G, K, N], ends [G]: group g has the rows from
 * ends[g-1] to ends[g]; rows from the last end on belong to none and give zeros. The result is
 * [T, N].
 *
 * Rows, columns, the summed dim (as a partial sum) and groups (as a partial sum of results that are
 * zero where the group is another rank's) may stay sharded: kernels know which global rows and
 * groups they hold. */
#include <string.h>

#include "base/alloc.h"
#include "op/index/index.h"

typedef struct grouped_attributes {
    int64_t groups; /* of the gradient of b */
} grouped_attributes;
static const tsi_attribute backward_table[] = {
    TSI_ATTR(grouped_attributes, groups, INT, "groups", NULL), { 0 }
};

/* ---- shapes and rules ------------------------------------------------------------------------ */

static ts_status check_ends(const tsi_op_call *call, int64_t groups)
{
    char text[96];
    TSI_TRY(tsi_index_dtype(call->op->name, &call->in[2]));
    if (call->in[2].shape.ndim == 1 && call->in[2].shape.extent[0] == groups) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE, "%s: the ends of %lld groups are one dim of that extent, not %s",
                    call->op->name, (long long)groups,
                    tsi_shape_text(&call->in[2].shape, text, sizeof text));
}

static ts_status grouped_infer(const tsi_op_call *call)
{
    const ts_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    char one[96], other[96];
    if (a->ndim != 2 || b->ndim != 3 || a->extent[1] != b->extent[1])
        return TSI_FAIL(TS_ERR_SHAPE,
                        "grouped_mm: takes [T, K] and [G, K, N] with one K, not %s and %s",
                        tsi_shape_text(a, one, sizeof one), tsi_shape_text(b, other, sizeof other));
    TSI_TRY(check_ends(call, b->extent[0]));
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)call->in[0].dtype, (ts_dtype)call->in[1].dtype);
    call->out[0] =
        (ts_meta){ .shape = TS_SHAPE(a->extent[0], b->extent[2]), .dtype = (int32_t)dtype };
    return TS_OK;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const grouped_attributes *at = call->attributes;
    const ts_shape *a = &call->in[0].shape, *dy = &call->in[1].shape;
    char one[96], other[96];
    if (a->ndim != 2 || dy->ndim != 2 || a->extent[0] != dy->extent[0])
        return TSI_FAIL(
            TS_ERR_SHAPE, "grouped_mm_backward: takes [T, K] and [T, N] with one T, not %s and %s",
            tsi_shape_text(a, one, sizeof one), tsi_shape_text(dy, other, sizeof other));
    if (at->groups < 0)
        return TSI_FAIL(TS_ERR_ARG, "grouped_mm_backward: %lld groups have no meaning",
                        (long long)at->groups);
    TSI_TRY(check_ends(call, at->groups));
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)call->in[0].dtype, (ts_dtype)call->in[1].dtype);
    call->out[0] = (ts_meta){ .shape = TS_SHAPE(at->groups, a->extent[1], dy->extent[1]),
                              .dtype = (int32_t)dtype };
    return TS_OK;
}

static void add_rows(tsi_rules *rules, tsi_role table[][3], int32_t count)
{
    for (int32_t r = 0; r < count; r++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = table[r][0];
        row[1] = table[r][1];
        row[3] = table[r][2];
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 3 };
    tsi_rules_partials(rules, &linear);
}

static void grouped_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    tsi_role table[][3] = { { TSI_S(0), TSI_ROLE_R, TSI_S(0) },
                            { TSI_ROLE_R, TSI_S(2), TSI_S(1) },
                            { TSI_S(1), TSI_S(1), TSI_P(TS_REDUCE_SUM) },
                            { TSI_ROLE_R, TSI_S(0), TSI_P(TS_REDUCE_SUM) } };
    add_rows(rules, table, 4);
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    tsi_role table[][3] = { { TSI_S(0), TSI_S(0), TSI_P(TS_REDUCE_SUM) },
                            { TSI_S(1), TSI_ROLE_R, TSI_S(1) },
                            { TSI_ROLE_R, TSI_S(1), TSI_S(2) } };
    add_rows(rules, table, 3);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Ends that rise within the rows; refused otherwise, with the values. */
static ts_status ends_of(const tsi_kernel_io *io, int64_t rows, int64_t *end)
{
    const tsi_block *block = &io->in[2].block;
    int64_t before = 0;
    for (int64_t g = 0; g < block->extent[0]; g++) {
        end[g] = tsi_block_int(block, g * block->stride[0]);
        if (end[g] < before || end[g] > rows)
            return TSI_FAIL(
                TS_ERR_ARG, "%s: group %lld ends at row %lld, which is not in %lld .. %lld",
                io->op->name, (long long)g, (long long)end[g], (long long)before, (long long)rows);
        before = end[g];
    }
    return TS_OK;
}

/* The group of a global row, or -1. */
static int64_t group_of(const int64_t *end, int64_t groups, int64_t row)
{
    int64_t low = 0, high = groups;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (end[middle] <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < groups ? low : -1;
}

static double complex at2(const tsi_block *x, int64_t i, int64_t j)
{
    return tsi_block_complex(x, i * x->stride[0] + j * x->stride[1]);
}

static void product_row(const tsi_block *a, const tsi_block *b, const tsi_block *out, int64_t row,
                        int64_t group)
{
    for (int64_t n = 0; n < out->extent[1]; n++) {
        double complex sum = 0;
        for (int64_t k = 0; group >= 0 && k < a->extent[1]; k++)
            sum += at2(a, row, k) *
                   tsi_block_complex(b, group * b->stride[0] + k * b->stride[1] + n * b->stride[2]);
        tsi_block_set_complex(out, row * out->stride[0] + n * out->stride[1], sum);
    }
}

static ts_status grouped_reference(const tsi_kernel_io *io)
{
    int64_t groups = io->in[2].block.extent[0];
    int64_t *end = tsi_alloc_array((size_t)groups + 1, sizeof *end);
    if (!end) return tsi_fail_memory("the ends of groups", (size_t)groups * sizeof *end);
    ts_status status = ends_of(io, io->in[0].global->shape.extent[0], end);
    for (int64_t row = 0; status == TS_OK && row < io->out[0].block.extent[0]; row++) {
        int64_t group = group_of(end, groups, tsi_operand_global(&io->in[0], 0, row));
        if (group >= 0 && io->in[1].region) /* -1: another rank's */
            group = tsi_span_list_find(&io->in[1].region->dim[0], group);
        product_row(&io->in[0].block, &io->in[1].block, &io->out[0].block, row, group);
    }
    tsi_free(end);
    return status;
}

/* out[g, k, n] = sum over the rows of g of a[row, k] dy[row, n] */
static ts_status backward_sums(const tsi_kernel_io *io, const int64_t *end, int64_t groups)
{
    const tsi_block *a = &io->in[0].block, *dy = &io->in[1].block, *out = &io->out[0].block;
    int64_t count = tsi_block_count(out), inner = out->extent[1] * out->extent[2];
    double complex *sum = tsi_calloc((size_t)count + 1, sizeof *sum);
    if (!sum) return tsi_fail_memory("the sums of groups", (size_t)count * sizeof *sum);
    for (int64_t row = 0; row < a->extent[0]; row++) {
        int64_t group = group_of(end, groups, tsi_operand_global(&io->in[0], 0, row));
        if (group >= 0 && io->out[0].region)
            group = tsi_span_list_find(&io->out[0].region->dim[0], group);
        for (int64_t i = 0; group >= 0 && i < inner; i++)
            sum[group * inner + i] +=
                at2(a, row, i / out->extent[2]) * at2(dy, row, i % out->extent[2]);
    }
    tsi_loop loop = tsi_loop_over(out);
    int64_t i = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        tsi_block_set_complex(out, loop.at[0], sum[i++]);
    tsi_free(sum);
    return TS_OK;
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    int64_t groups = io->in[2].block.extent[0];
    int64_t *end = tsi_alloc_array((size_t)groups + 1, sizeof *end);
    if (!end) return tsi_fail_memory("the ends of groups", (size_t)groups * sizeof *end);
    ts_status status = ends_of(io, io->in[0].global->shape.extent[0], end);
    if (status == TS_OK) status = backward_sums(io, end, groups);
    tsi_free(end);
    return status;
}

static ts_status grouped_grad(const tsi_grad_io *io)
{
    ts_tensor *a = io->in[0], *b = io->in[1], *ends = io->in[2], *dy = io->out_grad[0];
    if (io->needs & 1)
        io->in_grad[0] = ts_cast((ts_grouped_mm)(dy, ts_transpose(b, 1, 2), ends),
                                 (ts_dtype)io->in_meta[0].dtype);
    grouped_attributes at = { io->in_meta[1].shape.extent[0] };
    ts_tensor *in[] = { a, dy, ends };
    if (io->needs & 2)
        io->in_grad[1] = ts_cast(tsi_op_make(&tsi_op_grouped_mm_backward, in, 3, &at),
                                 (ts_dtype)io->in_meta[1].dtype);
    return ts_rank_status(io->rank);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* One group, so that any index in range is an end the rows allow. */
static bool sample_grouped(tsi_sample *s)
{
    s->count = 3;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    s->in[1] = tsi_meta_f64(TS_SHAPE(1 + s->variant, 4, 3));
    s->in[2] = (ts_meta){ .shape = TS_SHAPE(1 + s->variant), .dtype = TS_DTYPE_I64 };
    return s->variant < 2;
}

static bool sample_backward(tsi_sample *s)
{
    bool more = sample_grouped(s);
    s->in[1].shape = TS_SHAPE(5, 3);
    ((grouped_attributes *)s->attributes)->groups = 1 + s->variant;
    return more;
}

#define GROUPED                                                                                    \
    .input_min = 3, .input_max = 3, .output_count = 1,                                             \
    .dtypes = ~(1u << TS_DTYPE_BOOL | 1u << TS_DTYPE_I64 | 1u << TS_DTYPE_I32 |                    \
                1u << TS_DTYPE_I16 | 1u << TS_DTYPE_I8 | 1u << TS_DTYPE_U8)

/* Rows that belong to no group are counted as if they did. */
static double grouped_flops(const tsi_op_call *call)
{
    bool back = call->op == &tsi_op_grouped_mm_backward;
    const ts_shape *a = &call->in[0].shape, *wide = back ? &call->in[1].shape : &call->out[0].shape;
    return 2.0 * (double)ts_shape_count(a) * (double)wide->extent[wide->ndim - 1];
}

const tsi_op_desc tsi_op_grouped_mm = {
    .name = "grouped_mm",
    .what = "groups of rows times a matrix each: a [T, K] by b [G, K, N], rows of group g up to "
            "ends[g]",
    GROUPED,
    .saves = 7,
    .infer = grouped_infer,
    .rules = grouped_rules,
    .reference = grouped_reference,
    .grad = grouped_grad,
    .flops = grouped_flops,
    .sample = sample_grouped,
};
const tsi_op_desc tsi_op_grouped_mm_backward = {
    .name = "grouped_mm_backward",
    .what = "the gradient of grouped_mm for its matrices, of a, dy and the ends",
    GROUPED,
    .flags = TSI_OP_NO_GRAD,
    TSI_ATTRIBUTES(backward_table, grouped_attributes),
    .infer = backward_infer,
    .rules = backward_rules,
    .reference = backward_reference,
    .flops = grouped_flops,
    .sample = sample_backward,
};

ts_tensor *(ts_grouped_mm)(ts_tensor *a, ts_tensor *b, ts_tensor *ends)
{
    ts_tensor *in[] = { a, b, ends };
    return tsi_op_make(&tsi_op_grouped_mm, in, 3, NULL);
}
