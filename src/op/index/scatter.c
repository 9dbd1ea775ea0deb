/* SPDX-License-Identifier: Apache-2.0 */
/* scatter.c - gather, its gradient, scatter and scatter_add: an index for every element, along one
 * dim.
 *
 *   gather        out[i, j] = x[index[i, j], j]          (dim 0)
 *   scatter       out = x; out[index[i, j], j] = src[i, j]   row-major, the last one stays
 *   scatter_add   out = x; out[index[i, j], j] += src[i, j]
 *
 * Index and source may be shorter than x in any dim. Each rank does the elements whose place it
 * holds, so dims of different extents need not be gathered either. */
#include <string.h>

#include "op/index/index.h"

static const tsi_attribute along_table[] = { TSI_ATTR(tsi_scatter_attributes, dim, INT, "dim", "0"),
                                             { 0 } };
static const tsi_attribute scatter_table[] = {
    TSI_ATTR(tsi_scatter_attributes, dim, INT, "dim", "0"),
    TSI_ATTR(tsi_scatter_attributes, value, NUMBER, "value", "0"),
    { 0 }
};
static const tsi_attribute backward_table[] = {
    TSI_ATTR(tsi_scatter_attributes, dim, INT, "dim", "0"),
    TSI_ATTR(tsi_scatter_attributes, shape, DIMS, "shape", NULL),
    { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static ts_status along_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                 void *attributes)
{
    (void)count;
    return tsi_normalise_dim(op->name, &((tsi_scatter_attributes *)attributes)->dim,
                             in[0].shape.ndim);
}

/* The index has no more than `shape` in any dim but `but`. */
static ts_status check_within(const tsi_op_call *call, const ts_shape *index, const ts_shape *shape,
                              int64_t but)
{
    char one[96], other[96];
    for (int32_t d = 0; d < index->ndim; d++)
        if (d != but && index->extent[d] > shape->extent[d])
            return TSI_FAIL(TS_ERR_SHAPE, "%s: the index %s is longer than %s in dim %d",
                            call->op->name, tsi_shape_text(index, one, sizeof one),
                            tsi_shape_text(shape, other, sizeof other), d);
    return TS_OK;
}

static ts_status check_index(const tsi_op_call *call, const ts_meta *x)
{
    TSI_TRY(tsi_index_dtype(call->op->name, &call->in[1]));
    TSI_TRY(tsi_index_ndim(call->op->name, x, &call->in[1]));
    return check_within(call, &call->in[1].shape, &x->shape,
                        ((const tsi_scatter_attributes *)call->attributes)->dim);
}

static ts_status gather_infer(const tsi_op_call *call)
{
    TSI_TRY(check_index(call, &call->in[0]));
    call->out[0] = (ts_meta){ .shape = call->in[1].shape, .dtype = call->in[0].dtype };
    return TS_OK;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const tsi_scatter_attributes *a = call->attributes;
    call->out[0] = (ts_meta){ .shape = { .ndim = a->shape.count }, .dtype = call->in[0].dtype };
    memcpy(call->out[0].shape.extent, a->shape.value, sizeof call->out[0].shape.extent);
    TSI_TRY(check_index(call, &call->out[0]));
    TSI_TRY(tsi_index_ndim(call->op->name, &call->in[0], &call->in[1]));
    return check_within(call, &call->in[1].shape, &call->in[0].shape, -1);
}

static ts_status scatter_infer(const tsi_op_call *call)
{
    TSI_TRY(check_index(call, &call->in[0]));
    call->out[0] = call->in[0];
    if (call->input_count < 3) return TS_OK;
    TSI_TRY(tsi_index_ndim(call->op->name, &call->in[2], &call->in[1]));
    TSI_TRY(check_within(call, &call->in[1].shape, &call->in[2].shape, -1));
    bool adds = call->op == &tsi_op_scatter_add;
    if (call->in[2].dtype != call->in[0].dtype || (adds && call->in[0].dtype == TS_DTYPE_BOOL))
        return TSI_FAIL(TS_ERR_DTYPE, "%s: %s cannot be %s %s", call->op->name,
                        ts_dtype_name((ts_dtype)call->in[2].dtype), adds ? "added to" : "put into",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void gather_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_scatter_attributes *)call->attributes)->dim;
    const ts_shape *x = &call->in[0].shape, *index = &call->in[1].shape;
    for (int32_t d = 0; d < x->ndim; d++) {
        bool alike = d != dim && x->extent[d] == index->extent[d];
        if (alike) tsi_index_rule(rules, (tsi_role[]){ TSI_S(d), TSI_S(d), TSI_S(d) });
        tsi_index_rule(rules, (tsi_role[]){ TSI_ROLE_R, TSI_S(d), TSI_S(d) });
        if (!alike)
            tsi_index_rule(rules,
                           (tsi_role[]){ TSI_S(d), TSI_ROLE_R, tsi_index_joined(&call->in[0]) });
    }
    tsi_index_pass(rules, 0);
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_scatter_attributes *)call->attributes)->dim;
    tsi_role sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    const int64_t *dy = call->in[0].shape.extent, *index = call->in[1].shape.extent;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        if (dy[d] != index[d]) continue;
        bool alike = d != dim && call->out[0].shape.extent[d] == index[d];
        tsi_index_rule(rules, (tsi_role[]){ TSI_S(d), TSI_S(d), alike ? TSI_S(d) : sum });
    }
    tsi_index_rule(rules, (tsi_role[]){ sum, TSI_ROLE_R, sum });
    tsi_index_rule(rules, (tsi_role[]){ avg, TSI_ROLE_R, avg });
}

/* A cut of x: everybody writes what it holds. Index and source cut like x where they are as long.
 */
static void scatter_cuts(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_scatter_attributes *)call->attributes)->dim;
    const int64_t *x = call->in[0].shape.extent, *index = call->in[1].shape.extent;
    bool has_source = call->input_count == 3;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        bool alike = d != dim && x[d] == index[d] &&
                     (!has_source || call->in[2].shape.extent[d] == index[d]);
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[call->input_count] = TSI_S(d);
        if (!alike) continue;
        row[1] = TSI_S(d);
        if (has_source) row[2] = TSI_S(d);
    }
}

static void scatter_rules(const tsi_op_call *call, tsi_rules *rules)
{
    double complex value =
        tsi_number_both(((const tsi_scatter_attributes *)call->attributes)->value);
    scatter_cuts(call, rules);
    for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR; reduce++) {
        bool has_source = call->input_count == 3;
        bool adds = reduce == TS_REDUCE_SUM, multiplies = reduce == TS_REDUCE_PROD;
        if (!has_source && value != 0.0 && (adds || (multiplies && value != 1.0))) continue;
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[call->input_count] = TSI_P(reduce);
        if (has_source) row[2] = TSI_P(reduce);
    }
}

static void scatter_add_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG),
             least = TSI_P(TS_REDUCE_MIN), most = TSI_P(TS_REDUCE_MAX);
    scatter_cuts(call, rules);
    tsi_index_rule(rules, (tsi_role[]){ sum, r, sum, sum });
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        bool alike = call->in[1].shape.extent[d] == call->in[2].shape.extent[d];
        tsi_index_rule(rules, (tsi_role[]){ sum, TSI_S(d), alike ? TSI_S(d) : r, sum });
    }
    tsi_index_rule(rules, (tsi_role[]){ avg, r, avg, avg });
    tsi_index_rule(rules, (tsi_role[]){ avg, r, r, avg });
    tsi_index_rule(rules, (tsi_role[]){ r, r, avg, avg });
    tsi_index_rule(rules, (tsi_role[]){ least, r, r, least });
    tsi_index_rule(rules, (tsi_role[]){ most, r, r, most });
}

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct along {
    const tsi_operand *index, *far, *near; /* far: what the index points into; near: index-shaped */
    int32_t dim;
    tsi_offsets to_far, to_near;
    tsi_loop loop; /* over the index */
} along;

static ts_status along_begin(along *a)
{
    a->to_far.memory = a->to_near.memory = NULL;
    a->loop = tsi_loop_over(&a->index->block);
    TSI_TRY(tsi_offsets_make(a->index, a->far, 1u << a->dim, &a->to_far));
    if (!a->near) return TS_OK;
    ts_status status = tsi_offsets_make(a->index, a->near, 0, &a->to_near);
    if (status != TS_OK) tsi_offsets_free(&a->to_far);
    return status;
}

static void along_end(along *a)
{
    tsi_offsets_free(&a->to_far);
    tsi_offsets_free(&a->to_near);
}

/* The element the index points to, or NULL if another rank holds it. */
static void *far_of(const along *a)
{
    const tsi_block *index = &a->index->block;
    int64_t rest = tsi_offsets_of(&a->to_far, &a->loop);
    if (rest == TSI_ELSEWHERE) return NULL;
    int64_t i = tsi_block_int(index, a->loop.at[0]);
    int64_t at = tsi_operand_local(a->far, a->dim, i);
    return at < 0 ? NULL : tsi_block_at(&a->far->block, rest + at * a->far->block.stride[a->dim]);
}

/* The index-shaped operand's element at the loop's position, or NULL. */
static void *near_of(const along *a)
{
    int64_t at = tsi_offsets_of(&a->to_near, &a->loop);
    return at == TSI_ELSEWHERE ? NULL : tsi_block_at(&a->near->block, at);
}

static int32_t dim_of(const tsi_kernel_io *io)
{
    return (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim;
}

static int64_t extent_of(const tsi_operand *far, int32_t dim)
{
    return far->global->shape.ndim ? far->global->shape.extent[dim] : 1;
}

static ts_status gather_reference(const tsi_kernel_io *io)
{
    along a = { .index = &io->in[1], .far = &io->in[0], .near = &io->out[0], .dim = dim_of(io) };
    TSI_TRY(tsi_index_check(io, 1, extent_of(a.far, a.dim), false));
    TSI_TRY(along_begin(&a));
    size_t size = ts_dtype_size((ts_dtype)io->out[0].block.dtype);
    for (bool more = tsi_loop_begin(&a.loop); more; more = tsi_loop_next(&a.loop)) {
        void *to = near_of(&a);
        const void *from = far_of(&a);
        if (to && from) memcpy(to, from, size);
        if (to && !from) memset(to, 0, size);
    }
    along_end(&a);
    return TS_OK;
}

/* out[index] += near */
static ts_status add_all(const tsi_kernel_io *io, const tsi_operand *near)
{
    along a = { .index = &io->in[1], .far = &io->out[0], .near = near, .dim = dim_of(io) };
    TSI_TRY(along_begin(&a));
    for (bool more = tsi_loop_begin(&a.loop); more; more = tsi_loop_next(&a.loop)) {
        void *to = far_of(&a);
        const void *from = near_of(&a);
        if (to && from) tsi_element_add((ts_dtype)io->out[0].block.dtype, to, from);
    }
    along_end(&a);
    return TS_OK;
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    TSI_TRY(tsi_index_check(io, 1, extent_of(&io->out[0], dim_of(io)), false));
    TSI_TRY(tsi_block_zero(io, &io->out[0].block));
    return add_all(io, &io->in[0]);
}

/* The result begins as x, unless it is x. */
static ts_status begin_as_x(const tsi_kernel_io *io)
{
    TSI_TRY(tsi_index_check(io, 1, extent_of(&io->out[0], dim_of(io)), false));
    if (io->in_place || tsi_block_count(&io->out[0].block) == 0) return TS_OK;
    return io->device->copy(io->device, &io->out[0].block, &io->in[0].block, NULL);
}

static ts_status scatter_reference(const tsi_kernel_io *io)
{
    along a = { .index = &io->in[1], .far = &io->out[0], .dim = dim_of(io) };
    if (io->input_count == 3) a.near = &io->in[2];
    ts_dtype dtype = (ts_dtype)io->out[0].block.dtype;
    unsigned char value[16] = { 0 };
    tsi_store_number(dtype, value, ((const tsi_scatter_attributes *)io->attributes)->value);
    TSI_TRY(begin_as_x(io));
    TSI_TRY(along_begin(&a));
    for (bool more = tsi_loop_begin(&a.loop); more; more = tsi_loop_next(&a.loop)) {
        void *to = far_of(&a);
        const void *from = a.near ? near_of(&a) : value;
        if (to && from) memcpy(to, from, ts_dtype_size(dtype));
    }
    along_end(&a);
    return TS_OK;
}

static ts_status scatter_add_reference(const tsi_kernel_io *io)
{
    TSI_TRY(begin_as_x(io));
    return add_all(io, &io->in[2]);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *call2(const tsi_op_desc *op, ts_tensor *x, ts_tensor *index, int64_t dim)
{
    ts_tensor *in[] = { x, index };
    return tsi_op_make(op, in, 2, &(tsi_scatter_attributes){ .dim = dim });
}

static ts_status gather_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_scatter_attributes *)io->attributes)->dim;
    if (io->needs & 1)
        io->in_grad[0] =
            ts_gather_backward(io->out_grad[0], (int32_t)dim, io->in[1], io->in_meta[0].shape);
    return ts_rank_status(io->rank);
}

/* A gradient of the index's shape as one of the source's; the rest of the source had no part. */
static ts_tensor *widen(ts_tensor *dy, const ts_shape *have, const ts_shape *want)
{
    for (int32_t d = 0; d < want->ndim; d++)
        if (have->extent[d] != want->extent[d])
            dy = ts_slice_backward(
                dy, d, want->extent[d],
                TS_OPTIONS(ts_slice_options, .end = have->extent[d], .end_is_given = 1));
    return dy;
}

static ts_status backward_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_scatter_attributes *)io->attributes)->dim;
    if (io->needs & 1)
        io->in_grad[0] = widen(call2(&tsi_op_gather, io->out_grad[0], io->in[1], dim),
                               &io->in_meta[1].shape, &io->in_meta[0].shape);
    return ts_rank_status(io->rank);
}

ts_tensor *tsi_index_of_stayed(ts_tensor *dy, ts_tensor *found, ts_tensor *number)
{
    return ts_masked_fill(dy, ts_ne(found, number), 0.0);
}

static ts_tensor *source_grad(const tsi_grad_io *io, int64_t dim, bool adds)
{
    ts_tensor *index = io->in[1];
    ts_tensor *dy = call2(&tsi_op_gather, io->out_grad[0], index, dim);
    if (dy && !adds) {
        ts_mesh *mesh = ts_tensor_mesh(dy);
        ts_shape whole = ts_tensor_shape(io->out_grad[0]);
        ts_tensor *number = ts_arange(mesh, TS_DTYPE_I64, ts_tensor_shape(index), NULL, NULL);
        ts_tensor *none = ts_zeros(mesh, TS_DTYPE_I64, whole, NULL);
        ts_tensor *stayed = (ts_scatter)(none, (int32_t)dim, index, number);
        dy = tsi_index_of_stayed(dy, call2(&tsi_op_gather, stayed, index, dim), number);
    }
    return widen(dy, &io->in_meta[1].shape, &io->in_meta[2].shape);
}

static ts_status scatter_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_scatter_attributes *)io->attributes)->dim;
    bool adds = io->op == &tsi_op_scatter_add;
    if (io->needs & 1)
        io->in_grad[0] =
            adds ? io->out_grad[0] : call2(&tsi_op_scatter, io->out_grad[0], io->in[1], dim);
    if (io->needs >> 2 & 1) io->in_grad[2] = source_grad(io, dim, adds);
    return ts_rank_status(io->rank);
}

/* ---- samples: indices of the sweeps are 0 to 4 ----------------------------------------------- */

static const struct {
    int64_t dim, x[2], index[2], source[2];
} samples[] = {
    { 0, { 7, 4 }, { 5, 4 }, { 5, 4 } },
    { -1, { 4, 6 }, { 4, 3 }, { 4, 3 } },
    { 0, { 5, 4 }, { 6, 2 }, { 7, 3 } },
    { 1, { 5, 5 }, { 3, 7 }, { 3, 7 } },
};
enum { SAMPLES = 4 };

static ts_meta meta_of(const int64_t *extent, ts_dtype dtype)
{
    return (ts_meta){ .shape = TS_SHAPE(extent[0], extent[1]), .dtype = (int32_t)dtype };
}

static bool sample_gather(tsi_sample *s)
{
    if (s->variant >= SAMPLES) return false;
    s->count = 2;
    s->in[0] = meta_of(samples[s->variant].x, TS_DTYPE_F64);
    s->in[1] = meta_of(samples[s->variant].index, TS_DTYPE_I64);
    ((tsi_scatter_attributes *)s->attributes)->dim = samples[s->variant].dim;
    return true;
}

static bool sample_backward(tsi_sample *s)
{
    if (!sample_gather(s)) return false;
    s->in[0] = meta_of(samples[s->variant].source, TS_DTYPE_F64);
    ((tsi_scatter_attributes *)s->attributes)->shape =
        (tsi_dims){ .count = 2, .value = { samples[s->variant].x[0], samples[s->variant].x[1] } };
    return true;
}

static bool sample_scatter(tsi_sample *s)
{
    bool alone = s->variant >= SAMPLES; /* a number instead of a source */
    if (!tsi_sample_as(s, alone ? s->variant - SAMPLES : s->variant, sample_gather) ||
        s->variant > SAMPLES + 1)
        return false;
    if (!alone) {
        s->in[s->count++] = meta_of(samples[s->variant].source, TS_DTYPE_F64);
        return true;
    }
    ((tsi_scatter_attributes *)s->attributes)->value =
        tsi_number_real(s->variant == SAMPLES ? 2.5 : 0.0);
    return true;
}

static bool sample_scatter_add(tsi_sample *s)
{
    return s->variant < SAMPLES && sample_scatter(s);
}

#define ALONG                                                                                      \
    .output_count = 1, .attribute_bytes = sizeof(tsi_scatter_attributes),                          \
    .normalise = along_normalise, .saves = 2

const tsi_op_desc tsi_op_gather = {
    .name = "gather",
    .what = "an element of a dim for every element of an index",
    .input_min = 2,
    .input_max = 2,
    ALONG,
    .attribute = along_table,
    TSI_INDEXED(gather),
};
const tsi_op_desc tsi_op_gather_backward = {
    .name = "gather_backward",
    .what = "the gradient of gather: sums at the indices, zeros elsewhere",
    .input_min = 2,
    .input_max = 2,
    ALONG,
    .attribute = backward_table,
    TSI_INDEXED(backward),
};
const tsi_op_desc tsi_op_scatter = {
    .name = "scatter",
    .what = "elements of a source, or a number, put at the indices of a dim",
    .input_min = 2,
    .input_max = 3,
    ALONG,
    .flags = TSI_OP_IN_PLACE,
    .attribute = scatter_table,
    TSI_INDEXED(scatter),
};
const tsi_op_desc tsi_op_scatter_add = {
    .name = "scatter_add",
    .what = "elements of a source added at the indices of a dim",
    .input_min = 3,
    .input_max = 3,
    ALONG,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .attribute = along_table,
    .infer = scatter_infer,
    .rules = scatter_add_rules,
    .reference = scatter_add_reference,
    .grad = scatter_grad,
    .sample = sample_scatter_add,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_gather)(ts_tensor *x, int32_t dim, ts_tensor *index)
{
    return call2(&tsi_op_gather, x, index, dim);
}

ts_tensor *(ts_gather_backward)(ts_tensor *dy, int32_t dim, ts_tensor *index, ts_shape shape)
{
    tsi_scatter_attributes a = { .dim = dim, .shape = { .count = shape.ndim } };
    memcpy(a.shape.value, shape.extent, sizeof a.shape.value);
    for (int32_t d = shape.ndim; d < TS_NDIM_MAX; d++)
        a.shape.value[d] = 0;
    ts_tensor *in[] = { dy, index };
    return tsi_op_make(&tsi_op_gather_backward, in, 2, &a);
}

static ts_tensor *put(const tsi_op_desc *op, ts_tensor *const *in, int32_t count,
                      const tsi_scatter_attributes *a, int32_t in_place)
{
    ts_tensor *out[TSI_OUTPUT_MAX];
    tsi_op_args args = { op, in, count, in_place, a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_scatter)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return put(&tsi_op_scatter, (ts_tensor *[]){ x, index, source }, 3,
               &(tsi_scatter_attributes){ .dim = dim }, 0);
}

ts_tensor *(ts_scatter_)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return put(&tsi_op_scatter, (ts_tensor *[]){ x, index, source }, 3,
               &(tsi_scatter_attributes){ .dim = dim }, 1);
}

ts_tensor *(ts_scatter_value)(ts_tensor *x, int32_t dim, ts_tensor *index, double value)
{
    return put(&tsi_op_scatter, (ts_tensor *[]){ x, index }, 2,
               &(tsi_scatter_attributes){ .dim = dim, .value = tsi_number_real(value) }, 0);
}

ts_tensor *(ts_scatter_add)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return put(&tsi_op_scatter_add, (ts_tensor *[]){ x, index, source }, 3,
               &(tsi_scatter_attributes){ .dim = dim }, 0);
}

ts_tensor *(ts_scatter_add_)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return put(&tsi_op_scatter_add, (ts_tensor *[]){ x, index, source }, 3,
               &(tsi_scatter_attributes){ .dim = dim }, 1);
}
