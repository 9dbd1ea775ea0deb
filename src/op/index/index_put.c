/* SPDX-License-Identifier: Apache-2.0 */
/* index_put.c - index and index_put: several dims indexed at once by tensors that broadcast.
 *
 *   x [.., i, .., j, ..]  indices of shape B for dims i and j  ->  [.., B, ..rest..]
 *
 * B stands where the first indexed dim stood if the indexed dims are neighbours, else in front.
 * Negative indices count from the end. Dims that are not indexed may be cut; so may the indices
 * (and with them the result), and an indexed dim: each rank does what it holds. */
#include <string.h>

#include "op/index/index.h"

static const tsi_attribute index_table[] = {
    TSI_ATTR(tsi_index_put_attributes, dims, DIMS, "dims", "[]"), { 0 }
};
static const tsi_attribute put_table[] = {
    TSI_ATTR(tsi_index_put_attributes, dims, DIMS, "dims", "[]"),
    TSI_ATTR(tsi_index_put_attributes, accumulate, BOOL, "accumulate", "false"),
    { 0 }
};

/* ---- where what stands ----------------------------------------------------------------------- */

static tsi_index_geometry geometry_of(const tsi_op_call *call)
{
    return tsi_index_geometry_of(call->op == &tsi_op_index_get ? 1 : 2,
                                 &((const tsi_index_put_attributes *)call->attributes)->dims,
                                 call->in, call->input_count);
}

static ts_status put_normalise_of(const char *op, const ts_meta *in, int32_t indices, void *given)
{
    tsi_index_put_attributes *a = given;
    uint32_t seen = 0;
    if (a->dims.count <= 0)
        for (a->dims.count = 0; a->dims.count < indices && a->dims.count < TS_NDIM_MAX;
             a->dims.count++)
            a->dims.value[a->dims.count] = a->dims.count;
    if (a->dims.count != indices || indices > in[0].shape.ndim)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d index tensors for %d dims of a tensor of %d", op,
                        indices, a->dims.count, in[0].shape.ndim);
    for (int32_t i = 0; i < indices; i++) {
        TSI_TRY(tsi_normalise_dim(op, &a->dims.value[i], in[0].shape.ndim));
        if (seen >> a->dims.value[i] & 1)
            return TSI_FAIL(TS_ERR_ARG, "%s: dim %lld is indexed twice", op,
                            (long long)a->dims.value[i]);
        seen |= 1u << a->dims.value[i];
    }
    return TS_OK;
}

static ts_status index_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                 void *attributes)
{
    (void)op;
    return put_normalise_of("index_get", in, count - 1, attributes);
}

static ts_status put_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                               void *attributes)
{
    (void)op;
    return put_normalise_of("index_put", in, count - 2, attributes);
}

/* The shape of x[indices]. */
static ts_status result_shape(const tsi_op_call *call, const tsi_index_geometry *g, ts_shape *out)
{
    ts_shape lines;
    for (int32_t i = 0; i < g->count; i++)
        TSI_TRY(tsi_index_dtype(call->op->name, &call->in[g->first + i]));
    tsi_op_call broadcast = *call;
    broadcast.in = call->in + g->first;
    broadcast.input_count = g->count;
    TSI_TRY(tsi_infer_broadcast(&broadcast, &lines));
    if (g->lines + g->rest > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: the result would have %d dims, at most %d",
                        call->op->name, g->lines + g->rest, TS_NDIM_MAX);
    *out = (ts_shape){ .ndim = g->lines + g->rest };
    for (int32_t j = 0; j < g->lines; j++)
        out->extent[g->at + j] = lines.extent[j];
    for (int32_t k = 0; k < g->rest; k++)
        out->extent[g->to[k]] = call->in[0].shape.extent[g->from[k]];
    return TS_OK;
}

static ts_status index_infer(const tsi_op_call *call)
{
    tsi_index_geometry g = geometry_of(call);
    call->out[0] = (ts_meta){ .dtype = call->in[0].dtype };
    return result_shape(call, &g, &call->out[0].shape);
}

static ts_status put_infer(const tsi_op_call *call)
{
    const tsi_index_put_attributes *a = call->attributes;
    tsi_index_geometry g = geometry_of(call);
    ts_shape shape;
    char one[96], other[96];
    TSI_TRY(result_shape(call, &g, &shape));
    const ts_shape *values = &call->in[1].shape;
    bool fits = values->ndim <= shape.ndim;
    for (int32_t d = 0; fits && d < values->ndim; d++) {
        int64_t extent = values->extent[d];
        fits = extent == 1 || extent == shape.extent[shape.ndim - values->ndim + d];
    }
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "index_put: values of %s do not broadcast to %s",
                        tsi_shape_text(values, one, sizeof one),
                        tsi_shape_text(&shape, other, sizeof other));
    if (call->in[1].dtype != call->in[0].dtype ||
        (a->accumulate && call->in[0].dtype == TS_DTYPE_BOOL))
        return TSI_FAIL(TS_ERR_DTYPE, "index_put: %s cannot be %s %s",
                        ts_dtype_name((ts_dtype)call->in[1].dtype),
                        a->accumulate ? "added to" : "put into",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    call->out[0] = call->in[0];
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* Dim j of B cut: each index tensor that has it, and not by broadcast. False: none has. */
static bool cut_lines(const tsi_op_call *call, const tsi_index_geometry *g, int32_t j,
                      tsi_role *row)
{
    int64_t extent = 1;
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t i = g->first; i < g->first + g->count; i++) {
            int32_t d = j - (g->lines - call->in[i].shape.ndim);
            int64_t here = d >= 0 ? call->in[i].shape.extent[d] : 1;
            if (pass == 0 && here != 1) extent = here;
            if (pass == 1 && d >= 0 && here == extent) row[i] = TSI_S(d);
        }
    return extent != 1;
}

/* The role of the values where dim d of the result is cut. */
static tsi_role values_role(const tsi_op_call *call, const tsi_index_geometry *g, int32_t d)
{
    const ts_shape *values = &call->in[1].shape;
    int32_t own = d - (g->lines + g->rest - values->ndim);
    return own >= 0 && values->extent[own] != 1 ? TSI_S(own) : TSI_ROLE_R;
}

static void index_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_index_geometry g = geometry_of(call);
    tsi_role *row;
    for (int32_t k = 0; k < g.rest; k++) {
        row = tsi_rules_add(rules);
        row[0] = TSI_S(g.from[k]);
        row[call->input_count] = TSI_S(g.to[k]);
    }
    for (int32_t j = 0; j < g.lines; j++) {
        tsi_role cut[TSI_INPUT_MAX + 1] = { 0 };
        if (!cut_lines(call, &g, j, cut)) continue;
        cut[call->input_count] = TSI_S(g.at + j);
        tsi_index_rule(rules, cut);
    }
    for (int32_t i = 0; i < g.count; i++) {
        row = tsi_rules_add(rules);
        row[0] = TSI_S(((const tsi_index_put_attributes *)call->attributes)->dims.value[i]);
        row[call->input_count] = tsi_index_joined(&call->in[0]);
    }
    tsi_index_pass(rules, 0);
}

static void put_partial(tsi_rules *rules, tsi_role x, tsi_role values)
{
    tsi_role *row = tsi_rules_add(rules);
    row[0] = x;
    row[1] = values;
    row[rules->input_count] = x == TSI_ROLE_R ? values : x;
}

static void put_partials(const tsi_op_call *call, const tsi_index_geometry *g, tsi_rules *rules)
{
    if (!((const tsi_index_put_attributes *)call->attributes)->accumulate) {
        for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR; reduce++)
            put_partial(rules, TSI_P(reduce), TSI_P(reduce));
        return;
    }
    tsi_role sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    put_partial(rules, sum, sum);
    put_partial(rules, avg, avg);
    put_partial(rules, avg, TSI_ROLE_R);
    put_partial(rules, TSI_ROLE_R, avg);
    put_partial(rules, TSI_P(TS_REDUCE_MIN), TSI_ROLE_R);
    put_partial(rules, TSI_P(TS_REDUCE_MAX), TSI_ROLE_R);
    for (int32_t j = 0; j < g->lines; j++) { /* each rank adds up its own indices */
        tsi_role cut[TSI_INPUT_MAX + 1] = { 0 };
        if (!cut_lines(call, g, j, cut)) continue;
        cut[0] = cut[call->input_count] = sum;
        cut[1] = values_role(call, g, g->at + j);
        tsi_index_rule(rules, cut);
    }
}

static void put_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_index_geometry g = geometry_of(call);
    tsi_role *row;
    for (int32_t k = 0; k < g.rest; k++) {
        row = tsi_rules_add(rules);
        row[0] = row[call->input_count] = TSI_S(g.from[k]);
        row[1] = values_role(call, &g, g.to[k]);
    }
    for (int32_t i = 0; i < g.count; i++) {
        row = tsi_rules_add(rules);
        row[0] = row[call->input_count] =
            TSI_S(((const tsi_index_put_attributes *)call->attributes)->dims.value[i]);
    }
    put_partials(call, &g, rules);
}

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct walk {
    const tsi_kernel_io *io;
    const tsi_index_put_attributes *a;
    tsi_index_geometry g;
    const tsi_operand *far; /* what the indices point into */
    tsi_loop loop;          /* over B; operand i is index tensor i */
    int64_t stride[TSI_LOOP_OPERANDS][TS_NDIM_MAX];
} walk;

/* Extents of B here: those of the local index tensors, broadcast. */
static ts_status walk_begin(walk *w, const tsi_kernel_io *io, const tsi_operand *far)
{
    ts_meta in[TSI_INPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = *io->in[i].global;
    *w = (walk){ .io = io, .a = io->attributes, .far = far };
    w->g = tsi_index_geometry_of(io->op == &tsi_op_index_get ? 1 : 2, &w->a->dims, in,
                                 io->input_count);
    w->loop = (tsi_loop){ .ndim = w->g.lines, .operand_count = w->g.count };
    for (int32_t j = 0; j < w->g.lines; j++) {
        w->loop.extent[j] = 1;
        for (int32_t i = 0; i < w->g.count; i++) {
            const tsi_block *index = &io->in[w->g.first + i].block;
            int32_t d = j - (w->g.lines - index->ndim);
            bool stretched = d < 0 || io->in[w->g.first + i].global->shape.extent[d] == 1;
            if (!stretched) w->loop.extent[j] = index->extent[d];
        }
    }
    for (int32_t i = 0; i < w->g.count; i++) {
        const tsi_operand *index = &io->in[w->g.first + i];
        int64_t extent = far->global->shape.extent[w->a->dims.value[i]];
        TSI_TRY(tsi_index_check(io, w->g.first + i, extent, true));
        tsi_broadcast_strides(&index->block, w->g.lines, w->loop.extent, w->stride[i]);
        w->loop.stride[i] = w->stride[i];
    }
    return TS_OK;
}

/* Where the indices at the loop's position point, as the offset of its rest; TSI_ELSEWHERE: not
 * here. */
static int64_t walk_at(const walk *w)
{
    int64_t offset = 0;
    for (int32_t i = 0; i < w->g.count; i++) {
        const tsi_block *index = &w->io->in[w->g.first + i].block;
        int32_t dim = (int32_t)w->a->dims.value[i];
        int64_t v = tsi_block_int(index, w->loop.at[i]);
        if (v < 0) v += w->far->global->shape.extent[dim];
        int64_t at = tsi_operand_local(w->far, dim, v);
        if (at < 0) return TSI_ELSEWHERE;
        offset += at * w->far->block.stride[dim];
    }
    return offset;
}

/* The rest of x at an offset, as a block. */
static tsi_block far_rest(const walk *w, int64_t offset)
{
    const tsi_block *far = &w->far->block;
    tsi_block rest = { .dtype = far->dtype, .ndim = w->g.rest };
    for (int32_t k = 0; k < w->g.rest; k++) {
        rest.extent[k] = far->extent[w->g.from[k]];
        rest.stride[k] = far->stride[w->g.from[k]];
    }
    rest.data = tsi_block_at(far, offset);
    return rest;
}

/* The rest of a result-shaped block (strides by result dim) at the loop's position. */
static tsi_block near_rest(const walk *w, const tsi_block *near, const int64_t *stride)
{
    tsi_block rest = far_rest(w, 0);
    int64_t offset = 0;
    for (int32_t k = 0; k < w->g.rest; k++)
        rest.stride[k] = stride[w->g.to[k]];
    for (int32_t j = 0; j < w->g.lines; j++)
        offset += w->loop.index[j] * stride[w->g.at + j];
    rest.data = tsi_block_at(near, offset);
    return rest;
}

static ts_status index_reference(const tsi_kernel_io *io)
{
    walk w;
    TSI_TRY(walk_begin(&w, io, &io->in[0]));
    const tsi_block *out = &io->out[0].block;
    if (tsi_block_count(out) == 0) return TS_OK;
    for (bool more = tsi_loop_begin(&w.loop); more; more = tsi_loop_next(&w.loop)) {
        int64_t at = walk_at(&w);
        tsi_block to = near_rest(&w, out, out->stride);
        if (at == TSI_ELSEWHERE) {
            TSI_TRY(tsi_block_zero(io, &to));
            continue;
        }
        tsi_block from = far_rest(&w, at);
        TSI_TRY(io->device->copy(io->device, &to, &from, NULL));
    }
    return TS_OK;
}

static ts_status put_reference(const tsi_kernel_io *io)
{
    walk w;
    const tsi_block *out = &io->out[0].block, *values = &io->in[1].block;
    TSI_TRY(walk_begin(&w, io, &io->out[0]));
    if (tsi_block_count(out) == 0) return TS_OK;
    if (!io->in_place) TSI_TRY(io->device->copy(io->device, out, &io->in[0].block, NULL));
    int64_t extent[TS_NDIM_MAX] = { 0 }, stride[TS_NDIM_MAX];
    for (int32_t j = 0; j < w.g.lines; j++)
        extent[w.g.at + j] = w.loop.extent[j];
    for (int32_t k = 0; k < w.g.rest; k++)
        extent[w.g.to[k]] = out->extent[w.g.from[k]];
    tsi_broadcast_strides(values, w.g.lines + w.g.rest, extent, stride);
    for (bool more = tsi_loop_begin(&w.loop); more; more = tsi_loop_next(&w.loop)) {
        int64_t at = walk_at(&w);
        if (at == TSI_ELSEWHERE) continue;
        tsi_block to = far_rest(&w, at), from = near_rest(&w, values, stride);
        const tsi_block *terms[] = { &to, &from };
        TSI_TRY(w.a->accumulate
                    ? io->device->fold(io->device, &to, terms, 2, TS_REDUCE_SUM, 0, NULL)
                    : io->device->copy(io->device, &to, &from, NULL));
    }
    return TS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *run(const tsi_op_desc *op, ts_tensor *const *head, int32_t heads,
                      ts_tensor *const *indices, int32_t count, const tsi_index_put_attributes *a)
{
    ts_tensor *in[2 + TS_NDIM_MAX] = { head[0], heads > 1 ? head[1] : NULL };
    for (int32_t i = 0; i < count; i++)
        in[heads + i] = indices[i];
    return tsi_op_make(op, in, heads + count, a);
}

static ts_status index_grad(const tsi_grad_io *io)
{
    tsi_index_put_attributes a = *(const tsi_index_put_attributes *)io->attributes;
    a.accumulate = 1;
    if (!(io->needs & 1)) return TS_OK;
    ts_tensor *zeros = ts_zeros(ts_tensor_mesh(io->out_grad[0]), (ts_dtype)io->in_meta[0].dtype,
                                io->in_meta[0].shape, NULL);
    ts_tensor *head[] = { zeros, io->out_grad[0] };
    return tsi_grad_give(io, run(&tsi_op_index_put, head, 2, io->in + 1, io->input_count - 1, &a));
}

/* What reaches the values; one that a later one of equal indices replaced has no part in it. */
static ts_tensor *values_grad(const tsi_grad_io *io, const tsi_index_put_attributes *a)
{
    tsi_index_put_attributes plain = { .dims = a->dims };
    ts_tensor *const *indices = io->in + 2;
    int32_t count = io->input_count - 2;
    ts_tensor *dy = run(&tsi_op_index_get, io->out_grad, 1, indices, count, &plain);
    if (!dy || a->accumulate) return dy;
    ts_mesh *mesh = ts_tensor_mesh(dy);
    ts_shape whole = ts_tensor_shape(io->out_grad[0]);
    ts_tensor *number = ts_arange(mesh, TS_DTYPE_I64, ts_tensor_shape(dy), NULL, NULL);
    ts_tensor *head[] = { ts_zeros(mesh, TS_DTYPE_I64, whole, NULL), number };
    ts_tensor *stayed = run(&tsi_op_index_put, head, 2, indices, count, &plain);
    return tsi_index_of_stayed(dy, run(&tsi_op_index_get, &stayed, 1, indices, count, &plain),
                               number);
}

static ts_status put_grad(const tsi_grad_io *io)
{
    tsi_index_put_attributes a = *(const tsi_index_put_attributes *)io->attributes, plain = a;
    plain.accumulate = 0;
    int32_t count = io->input_count - 2;
    if (io->needs & 1 && a.accumulate) io->in_grad[0] = io->out_grad[0];
    if (io->needs & 1 && !a.accumulate) { /* what was replaced has no part in it */
        ts_tensor *zero = ts_zeros(ts_tensor_mesh(io->out_grad[0]), (ts_dtype)io->in_meta[0].dtype,
                                   TS_SHAPE_SCALAR, NULL);
        ts_tensor *head[] = { io->out_grad[0], zero };
        io->in_grad[0] = run(&tsi_op_index_put, head, 2, io->in + 2, count, &plain);
    }
    if (io->needs >> 1 & 1)
        io->in_grad[1] = tsi_grad_unbroadcast(values_grad(io, &a), &io->in_meta[1]);
    return ts_rank_status(io->rank);
}

/* ---- samples: indices of the sweeps are 0 to 4 ----------------------------------------------- */

static void sample_indices(int32_t variant, ts_meta *x, ts_meta *index, int32_t *count,
                           tsi_index_put_attributes *a)
{
    *x = (ts_meta){ .shape = TS_SHAPE(5, 6, 5), .dtype = TS_DTYPE_F64 };
    index[0] = (ts_meta){ .shape = TS_SHAPE(4), .dtype = TS_DTYPE_I64 };
    *count = 1;
    if (variant == 0) {
        a->dims = (tsi_dims){ .count = 1, .value = { -2 } };
    } else if (variant == 1) { /* the first two dims, broadcast */
        index[0].shape = TS_SHAPE(3, 1);
        index[(*count)++] = (ts_meta){ .shape = TS_SHAPE(4), .dtype = TS_DTYPE_I64 };
    } else { /* dims that are no neighbours */
        a->dims = (tsi_dims){ .count = 2, .value = { 2, 0 } };
        index[(*count)++] = index[0];
    }
}

static bool sample_index(tsi_sample *s)
{
    if (s->variant >= 3) return false;
    sample_indices(s->variant, s->in, s->in + 1, &s->count, s->attributes);
    s->count += 1;
    return true;
}

static bool sample_put(tsi_sample *s)
{
    static const ts_shape values[] = { { .ndim = 3, .extent = { 5, 4, 5 } },
                                       { .ndim = 3, .extent = { 3, 4, 5 } },
                                       { .ndim = 2, .extent = { 4, 6 } },
                                       { .ndim = 2, .extent = { 1, 5 } } };
    if (s->variant >= 8) return false;
    int32_t kind = s->variant / 2;
    sample_indices(kind == 3 ? 0 : kind, s->in, s->in + 2, &s->count, s->attributes);
    s->in[1] = tsi_meta_f64(values[kind]);
    ((tsi_index_put_attributes *)s->attributes)->accumulate = s->variant % 2;
    s->count += 2;
    return true;
}

const tsi_op_desc tsi_op_index_get = {
    .name = "index_get",
    .what = "elements by one index tensor per indexed dim",
    TSI_OPERANDS(2, 1 + TS_NDIM_MAX, 1),
    .saves = 0x1fe,
    TSI_ATTRIBUTES(index_table, tsi_index_put_attributes),
    .normalise = index_normalise,
    .infer = index_infer,
    .rules = index_rules,
    .reference = index_reference,
    .grad = index_grad,
    .sample = sample_index,
};
const tsi_op_desc tsi_op_index_put = {
    .name = "index_put",
    .what = "values put or added where one index tensor per indexed dim points",
    TSI_OPERANDS(3, 2 + TS_NDIM_MAX, 1),
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .saves = 0x3fc,
    TSI_ATTRIBUTES(put_table, tsi_index_put_attributes),
    .normalise = put_normalise,
    .infer = put_infer,
    .rules = put_rules,
    .reference = put_reference,
    .grad = put_grad,
    .sample = sample_put,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_status attributes_of(const ts_index_options *options, tsi_index_put_attributes *a)
{
    *a = (tsi_index_put_attributes){ .accumulate = options->accumulate != 0 };
    if (options->count < 1 || options->count > TS_NDIM_MAX || !options->index)
        return TSI_FAIL(TS_ERR_ARG, "index: %d index tensors, from 1 to %d", options->count,
                        TS_NDIM_MAX);
    for (int32_t i = 0; options->dims && i < options->count; i++)
        a->dims.value[a->dims.count++] = options->dims[i];
    return TS_OK;
}

ts_tensor *(ts_index)(ts_tensor *x, const ts_index_options *options)
{
    tsi_index_put_attributes a;
    if (attributes_of(options, &a) != TS_OK) return NULL;
    a.accumulate = 0;
    return run(&tsi_op_index_get, &x, 1, options->index, options->count, &a);
}

static ts_tensor *put(ts_tensor *x, ts_tensor *values, const ts_index_options *options,
                      int32_t in_place)
{
    tsi_index_put_attributes a;
    if (attributes_of(options, &a) != TS_OK) return NULL;
    ts_tensor *in[2 + TS_NDIM_MAX] = { x, values }, *out[TSI_OUTPUT_MAX];
    for (int32_t i = 0; i < options->count; i++)
        in[2 + i] = options->index[i];
    tsi_op_args args = { &tsi_op_index_put, in, 2 + options->count, in_place, &a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_index_put)(ts_tensor *x, ts_tensor *values, const ts_index_options *options)
{
    return put(x, values, options, 0);
}

ts_tensor *(ts_index_put_)(ts_tensor *x, ts_tensor *values, const ts_index_options *options)
{
    return put(x, values, options, 1);
}
