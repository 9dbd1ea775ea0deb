/* SPDX-License-Identifier: Apache-2.0 */
/* argmax.c - where the largest or smallest element of a dim is: argmax, argmin, and max, min with
 * values and indices.
 *
 * Indices are global, equal elements give the smallest index, a NaN is more extreme than any
 * number. Kept dims may stay sharded. A reduced dim that is sharded is searched where it lies; each
 * rank's best value travels with its index, and all take the best of these. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/reduce/reduce.h"
#include "tessera/comm.h"

static const tsi_attribute arg_table[] = {
    TSI_ATTR(tsi_reduce_attributes, dims, DIMS, "dim", "null"), /* none: the flattened tensor */
    TSI_ATTR(tsi_reduce_attributes, keepdim, BOOL, "keepdim", "false"),
    { 0 },
};
static const tsi_attribute extreme_table[] = {
    TSI_ATTR(tsi_reduce_attributes, dims, DIMS, "dim", NULL),
    TSI_ATTR(tsi_reduce_attributes, keepdim, BOOL, "keepdim", "false"),
    { 0 },
};

static bool is_least(const tsi_op_desc *op)
{
    return op == &tsi_op_argmin || op == &tsi_op_min;
}

static ts_status arg_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                               void *attributes)
{
    tsi_reduce_attributes *a = attributes;
    if (a->dims.count > 1)
        return TSI_FAIL(TS_ERR_ARG, "an index is along one dim or all, not %d dims",
                        (int)a->dims.count);
    return tsi_reduce_normalise(op, in, count, attributes);
}

static ts_status arg_infer(const tsi_op_call *call)
{
    const tsi_reduce_attributes *a = call->attributes;
    char text[96];
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: complex numbers have no order", call->op->name);
    for (int32_t i = 0; i < a->dims.count; i++)
        if (call->in[0].shape.extent[a->dims.value[i]] == 0)
            return TSI_FAIL(TS_ERR_SHAPE, "%s: dim %lld of %s has no elements", call->op->name,
                            (long long)a->dims.value[i],
                            tsi_shape_text(&call->in[0].shape, text, sizeof text));
    TSI_TRY(tsi_reduce_infer(call));
    call->out[call->output_count - 1].dtype = TS_DTYPE_I64;
    return TS_OK;
}

/* ---- searching ------------------------------------------------------------------------------- */

typedef struct best {
    int64_t at;   /* row-major global index over the reduced dims; -1: nothing yet */
    int64_t bits; /* the value: a whole number, or the bits of a double */
} best;

static double real_of(const best *b)
{
    double value;
    memcpy(&value, &b->bits, sizeof value);
    return value;
}

/* Does x go before y? */
static bool beats(const best *x, const best *y, bool real, bool least)
{
    if (x->at < 0 || y->at < 0) return y->at < 0 && x->at >= 0;
    if (!real) {
        if (x->bits == y->bits) return x->at < y->at;
        return least ? x->bits < y->bits : x->bits > y->bits;
    }
    double a = real_of(x), b = real_of(y);
    if (isnan(a) || isnan(b)) return isnan(a) && (!isnan(b) || x->at < y->at);
    if (a == b) return x->at < y->at;
    return least ? a < b : a > b;
}

typedef struct search {
    const tsi_block *in;
    const tsi_region *region; /* NULL: everything */
    const ts_shape *shape;    /* global */
    uint32_t mask;
    bool real, least, keepdim;
} search;

/* The global index, over the reduced dims, of the position of the inner loop. */
static int64_t index_of(const search *s, const tsi_loop *inner)
{
    int64_t index = 0;
    int32_t place = 0;
    for (int32_t d = 0; d < s->in->ndim; d++) {
        if (!(s->mask >> d & 1)) continue;
        int64_t i = inner->index[place++];
        if (s->region) i = tsi_span_list_at(&s->region->dim[d], i);
        index = index * s->shape->extent[d] + i;
    }
    return index;
}

static best best_of(const search *s, tsi_reduce_loops *loops)
{
    best top = { -1, 0 };
    for (bool more = tsi_loop_begin(&loops->inner); more; more = tsi_loop_next(&loops->inner)) {
        const void *element = tsi_block_at(s->in, loops->outer.at[0] + loops->inner.at[0]);
        best next = { index_of(s, &loops->inner), 0 };
        if (s->real) {
            double value = tsi_load_real((ts_dtype)s->in->dtype, element);
            memcpy(&next.bits, &value, sizeof value);
        } else {
            next.bits = tsi_load_int((ts_dtype)s->in->dtype, element);
        }
        if (beats(&next, &top, s->real, s->least)) top = next;
    }
    return top;
}

static void store(const best *b, bool real, const tsi_block *value, void *at)
{
    if (real)
        tsi_store_real((ts_dtype)value->dtype, at, real_of(b));
    else
        tsi_store_int((ts_dtype)value->dtype, at, b->bits);
}

/* Writes one result per line; `ready` holds them, or NULL: they are searched here. */
static void write_all(const search *s, const tsi_block *const *out, int32_t count,
                      const best *ready)
{
    tsi_reduce_loops loops, places;
    tsi_reduce_loops_make(s->in, out[count - 1], s->mask, s->keepdim, &loops);
    tsi_reduce_loops_make(s->in, out[0], s->mask, s->keepdim, &places);
    bool more = tsi_loop_begin(&loops.outer);
    tsi_loop_begin(&places.outer);
    for (int64_t line = 0; more; line++) {
        best top = ready ? ready[line] : best_of(s, &loops);
        tsi_store_int(TS_DTYPE_I64, tsi_block_at(out[count - 1], loops.outer.at[1]), top.at);
        if (count > 1) store(&top, s->real, out[0], tsi_block_at(out[0], places.outer.at[1]));
        more = tsi_loop_next(&loops.outer);
        tsi_loop_next(&places.outer);
    }
}

static search search_make(const tsi_op_desc *op, const void *attributes, const tsi_block *in)
{
    const tsi_reduce_attributes *a = attributes;
    return (search){ .in = in,
                     .mask = tsi_reduce_mask(a),
                     .real = tsi_dtype_category((ts_dtype)in->dtype) == TSI_CATEGORY_REAL,
                     .least = is_least(op),
                     .keepdim = a->keepdim };
}

static ts_status arg_reference(const tsi_kernel_io *io)
{
    search s = search_make(io->op, io->attributes, &io->in[0].block);
    s.shape = &io->in[0].global->shape; /* reduced dims are whole: no region is needed */
    const tsi_block *out[2] = { &io->out[0].block, &io->out[io->output_count - 1].block };
    write_all(&s, out, io->output_count, NULL);
    return TS_OK;
}

/* ---- a sharded dim --------------------------------------------------------------------------- */

static int64_t lines_of(const tsi_reduce_loops *loops)
{
    int64_t lines = 1;
    for (int32_t d = 0; d < loops->outer.ndim; d++)
        lines *= loops->outer.extent[d];
    return lines;
}

static ts_status exchange(const tsi_algorithm_io *io, const best *mine, best *all, int64_t lines)
{
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = io->op->name;
    ts_array from = TS_INIT(ts_array), to = TS_INIT(ts_array);
    best *first; /* the library does not write through a source */
    memcpy(&first, &mine, sizeof first);
    from.data = first;
    from.meta = (ts_meta){ .shape = TS_SHAPE(2 * lines), .dtype = TS_DTYPE_I64 };
    to.data = all;
    to.meta = from.meta;
    to.meta.shape.extent[0] *= ts_group_size(io->group);
    return (ts_group_all_gather)(io->group, &from, &to, &options);
}

static ts_status search_everywhere(const tsi_algorithm_io *io, const tsi_block *block,
                                   tsi_arena *arena)
{
    const tsi_block *out[2] = { &block[1], &block[io->output_count] };
    search s = search_make(io->op, io->attributes, &block[0]);
    tsi_region region;
    if (!tsi_layout_region(io->in[0]->layout, io->mesh->coord, arena, &region))
        return ts_rank_status(io->rank);
    s.region = &region;
    s.shape = &io->call->in[0].shape;
    tsi_reduce_loops loops;
    tsi_reduce_loops_make(&block[0], out[1], s.mask, s.keepdim, &loops);
    int64_t lines = lines_of(&loops), n = ts_group_size(io->group), line = 0;
    best *mine = tsi_arena_calloc(arena, (size_t)lines + 1, sizeof *mine);
    best *all = tsi_arena_calloc(arena, (size_t)(lines * n) + 1, sizeof *all);
    if (!mine || !all) return tsi_fail_memory("the extremes of ranks", (size_t)lines * 16);
    for (bool more = tsi_loop_begin(&loops.outer); more; more = tsi_loop_next(&loops.outer))
        mine[line++] = best_of(&s, &loops);
    TSI_TRY(exchange(io, mine, all, lines));
    for (int64_t i = 0; i < lines * n; i++)
        if (beats(&all[i], &mine[i % lines], s.real, s.least)) mine[i % lines] = all[i];
    write_all(&s, out, io->output_count, mine);
    return TS_OK;
}

static ts_status arg_everywhere(const tsi_algorithm_io *io)
{
    return tsi_algorithm_on_host(io, search_everywhere);
}

static int64_t arg_bytes(const tsi_op_call *call, int64_t n)
{
    return tsi_mul_most(tsi_mul_most(ts_shape_count(&call->out[0].shape), (int64_t)sizeof(best)),
                        n - 1);
}

static const tsi_algorithm arg_algorithms[] = { { "best of ranks", arg_everywhere, arg_bytes },
                                                { 0 } };

/* ---- gradient and rows ----------------------------------------------------------------------- */

/* The chosen element receives it all. */
static ts_status extreme_grad(const tsi_grad_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    if (!io->out_grad[0]) return TS_OK;
    if (io->in_meta[0].shape.ndim == 0) {
        io->in_grad[0] = io->out_grad[0];
        return TS_OK;
    }
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], a);
    ts_tensor *at = tsi_grad_unreduce(io->out[1], &io->in_meta[0], a);
    return tsi_grad_give(
        io, ts_gather_backward(dy, (int32_t)a->dims.value[0], at, io->in_meta[0].shape));
}

static bool sample_arg(tsi_sample *s)
{
    static const tsi_dims dims[] = { { .count = 1, .value = { 0 } },
                                     { .count = 1, .value = { -1 } },
                                     { .count = 1, .value = { 1 } },
                                     { .count = -1 } };
    (void)tsi_sample_reduce(s);
    ((tsi_reduce_attributes *)s->attributes)->dims = dims[s->variant % 4];
    return s->variant < 4;
}

static bool sample_extreme(tsi_sample *s)
{
    (void)sample_arg(s);
    return s->variant < 3;
}

#define ARG                                                                                        \
    .input_min = 1, .input_max = 1, .attribute_bytes = sizeof(tsi_reduce_attributes),              \
    .normalise = arg_normalise, .infer = arg_infer, .rules = tsi_reduce_rules_steps,               \
    .reference = arg_reference, .algorithm = arg_algorithms
#define INDEX                                                                                      \
    ARG, .attribute = arg_table, .output_count = 1, .flags = TSI_OP_NO_GRAD | TSI_OP_ONE_ROUND
#define EXTREME                                                                                    \
    ARG, .attribute = extreme_table, .output_count = 2, .grad = extreme_grad,                      \
         .saves = (uint64_t)2 << TSI_SAVE_OUT, .sample = sample_extreme, .flags = TSI_OP_ONE_ROUND

const tsi_op_desc tsi_op_argmax = {
    .name = "argmax",
    .what = "the index of the largest of a dim, or of the flattened tensor",
    .dtypes = TSI_DTYPES_ORDERED,
    INDEX,
    .sample = sample_arg,
};
const tsi_op_desc tsi_op_argmin = {
    .name = "argmin",
    .what = "the index of the smallest of a dim, or of the flattened tensor",
    .dtypes = TSI_DTYPES_ORDERED,
    INDEX,
    .sample = sample_arg,
};
const tsi_op_desc tsi_op_max = {
    .name = "max",
    .what = "the largest of a dim, and its index",
    .dtypes = TSI_DTYPES_ORDERED,
    EXTREME,
};
const tsi_op_desc tsi_op_min = {
    .name = "min",
    .what = "the smallest of a dim, and its index",
    .dtypes = TSI_DTYPES_ORDERED,
    EXTREME,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static tsi_reduce_attributes along(int32_t dim, int keepdim)
{
    return (tsi_reduce_attributes){ .dims = { .count = 1, .value = { dim } },
                                    .keepdim = keepdim != 0 };
}

ts_tensor *(ts_argmax)(ts_tensor *x, int32_t dim, int keepdim)
{
    tsi_reduce_attributes a = along(dim, keepdim);
    return tsi_op_make(&tsi_op_argmax, &x, 1, &a);
}

ts_tensor *(ts_argmin)(ts_tensor *x, int32_t dim, int keepdim)
{
    tsi_reduce_attributes a = along(dim, keepdim);
    return tsi_op_make(&tsi_op_argmin, &x, 1, &a);
}

static ts_status extreme(const tsi_op_desc *op, ts_tensor *x, const tsi_reduce_attributes *a,
                         ts_tensor **out)
{
    tsi_op_args args = { op, &x, 1, 0, a };
    return tsi_op_run(&args, out);
}

ts_status(ts_max)(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices)
{
    tsi_reduce_attributes a = along(dim, 0);
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = extreme(&tsi_op_max, x, &a, out);
    if (values) *values = out[0];
    if (indices) *indices = out[1];
    return status;
}

ts_status(ts_min)(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices)
{
    tsi_reduce_attributes a = along(dim, 0);
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = extreme(&tsi_op_min, x, &a, out);
    if (values) *values = out[0];
    if (indices) *indices = out[1];
    return status;
}
