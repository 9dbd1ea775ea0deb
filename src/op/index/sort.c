/* SPDX-License-Identifier: Apache-2.0 */
/* sort.c - sort and topk along a dim: values, and where they were.
 *
 * Stable: equal elements keep their order; a NaN counts as larger than any number. Other dims may
 * stay sharded. A sharded dim is gathered for sort; topk takes the k candidates of each rank
 * together and chooses among them, so that not more than k elements of a rank travel. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/index/index.h"
#include "tessera/comm.h"

static const tsi_attribute sort_table[] = {
    TSI_ATTR(tsi_sort_attributes, dim, INT, "dim", "-1"),
    TSI_ATTR(tsi_sort_attributes, descending, BOOL, "descending", "false"),
    { 0 },
};
static const tsi_attribute topk_table[] = {
    TSI_ATTR(tsi_sort_attributes, k, INT, "k", NULL),
    TSI_ATTR(tsi_sort_attributes, dim, INT, "dim", "-1"),
    TSI_ATTR(tsi_sort_attributes, descending, BOOL, "largest", "true"),
    TSI_ATTR(tsi_sort_attributes, sorted, BOOL, "sorted", "true"), /* they always are */
    { 0 },
};

static ts_status sort_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    return tsi_normalise_dim(op->name, &((tsi_sort_attributes *)attributes)->dim, in[0].shape.ndim);
}

static ts_status sort_infer(const tsi_op_call *call)
{
    const tsi_sort_attributes *a = call->attributes;
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: complex numbers have no order", call->op->name);
    call->out[0] = call->out[1] = call->in[0];
    call->out[1].dtype = TS_DTYPE_I64;
    if (call->op == &tsi_op_sort) return TS_OK;
    const ts_shape *x = &call->in[0].shape;
    int64_t extent = x->ndim ? x->extent[a->dim] : 1;
    if (a->k < 0 || a->k > extent)
        return TSI_FAIL(TS_ERR_ARG, "topk: %lld of the %lld elements of dim %lld cannot be chosen",
                        (long long)a->k, (long long)extent, (long long)a->dim);
    if (x->ndim) call->out[0].shape.extent[a->dim] = call->out[1].shape.extent[a->dim] = a->k;
    return TS_OK;
}

static void sort_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_sort_attributes *a = call->attributes;
    if (call->in[0].shape.ndim == 0) return;
    tsi_rules_batch(rules, call->in[0].shape.ndim, 1u << a->dim);
    if (call->op == &tsi_op_sort) return;
    tsi_role *row = tsi_rules_add_with(rules, 1, 0);
    row[0] = TSI_S(a->dim);
}

/* ---- one line -------------------------------------------------------------------------------- */

typedef struct item {
    double real;
    int64_t whole, at;
} item;

/* Must y stand before x? Of equal ones the smaller index does. */
static bool before(const item *y, const item *x, bool real, bool descending)
{
    if (!real && y->whole != x->whole)
        return descending ? y->whole > x->whole : y->whole < x->whole;
    if (real && isnan(x->real) != isnan(y->real))
        return descending ? isnan(y->real) : isnan(x->real);
    if (real && y->real != x->real && !isnan(x->real))
        return descending ? y->real > x->real : y->real < x->real;
    return y->at < x->at;
}

/* Merge sort from the bottom: `from` and `to` swap roles; returns the one that holds the result. */
static item *merge_sort(item *from, item *to, int64_t count, bool real, bool descending)
{
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t start = 0; start < count; start += 2 * width) {
            int64_t middle = start + width < count ? start + width : count;
            int64_t end = start + 2 * width < count ? start + 2 * width : count;
            int64_t i = start, j = middle;
            for (int64_t k = start; k < end; k++) {
                bool right =
                    j < end && (i >= middle || before(&from[j], &from[i], real, descending));
                to[k] = from[right ? j++ : i++];
            }
        }
        item *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

typedef struct line_job {
    const tsi_block *in, *values, *indices;
    int64_t in_at, values_at, indices_at;
    int64_t in_step, values_step, indices_step;
    int64_t count, wanted;
    bool real, descending;
    const tsi_span_list *list; /* global indices of the line; NULL: positions */
    item *one, *other;
} line_job;

static void load_line(const line_job *job)
{
    for (int64_t i = 0; i < job->count; i++) {
        const void *element = tsi_block_at(job->in, job->in_at + i * job->in_step);
        job->one[i] = (item){ .at = job->list ? tsi_span_list_at(job->list, i) : i };
        if (job->real)
            job->one[i].real = tsi_load_real((ts_dtype)job->in->dtype, element);
        else
            job->one[i].whole = tsi_load_int((ts_dtype)job->in->dtype, element);
    }
}

static void store_line(const line_job *job, const item *done)
{
    for (int64_t i = 0; i < job->wanted; i++) {
        void *value = tsi_block_at(job->values, job->values_at + i * job->values_step);
        if (job->real)
            tsi_store_real((ts_dtype)job->values->dtype, value, done[i].real);
        else
            tsi_store_int((ts_dtype)job->values->dtype, value, done[i].whole);
        tsi_store_int(TS_DTYPE_I64,
                      tsi_block_at(job->indices, job->indices_at + i * job->indices_step),
                      done[i].at);
    }
}

/* The job of all lines, and the loop over them. */
static void lines_make(const void *attributes, line_job *job, tsi_loop *loop)
{
    const tsi_sort_attributes *a = attributes;
    const tsi_block *in = job->in;
    job->real = tsi_dtype_category((ts_dtype)in->dtype) == TSI_CATEGORY_REAL;
    job->descending = a->descending;
    job->count = in->ndim ? in->extent[a->dim] : 1;
    job->wanted = in->ndim ? job->values->extent[a->dim] : 1;
    *loop = (tsi_loop){ .ndim = in->ndim,
                        .operand_count = 3,
                        .stride = { in->stride, job->values->stride, job->indices->stride } };
    memcpy(loop->extent, in->extent, sizeof loop->extent);
    if (in->ndim == 0) return;
    loop->extent[a->dim] = 1;
    job->in_step = in->stride[a->dim];
    job->values_step = job->values->stride[a->dim];
    job->indices_step = job->indices->stride[a->dim];
}

static void line_at(line_job *job, const tsi_loop *loop)
{
    job->in_at = loop->at[0];
    job->values_at = loop->at[1];
    job->indices_at = loop->at[2];
}

static ts_status sort_reference(const tsi_kernel_io *io)
{
    line_job job = { .in = &io->in[0].block,
                     .values = &io->out[0].block,
                     .indices = &io->out[1].block };
    tsi_loop loop;
    lines_make(io->attributes, &job, &loop);
    if (job.wanted == 0) return TS_OK;
    job.one = tsi_alloc_array((size_t)job.count * 2, sizeof *job.one);
    if (!job.one) return tsi_fail_memory("a line to sort", (size_t)job.count * sizeof *job.one);
    job.other = job.one + job.count;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        line_at(&job, &loop);
        load_line(&job);
        store_line(&job, merge_sort(job.one, job.other, job.count, job.real, job.descending));
    }
    tsi_free(job.one);
    return TS_OK;
}

/* ---- topk of a sharded dim ------------------------------------------------------------------- */

static ts_status exchange(const tsi_algorithm_io *io, item *mine, item *all, int64_t count)
{
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = io->op->name;
    int64_t words = count * (int64_t)(sizeof(item) / sizeof(int64_t));
    ts_array from = TS_INIT(ts_array), to = TS_INIT(ts_array);
    from.data = mine;
    from.meta = (ts_meta){ .shape = TS_SHAPE(words), .dtype = TS_DTYPE_I64 };
    to.data = all;
    to.meta = from.meta;
    to.meta.shape.extent[0] *= ts_group_size(io->group);
    return (ts_group_all_gather)(io->group, &from, &to, &options);
}

/* The first k of each local line; places that are left over have no index. */
static int64_t take_local(line_job *job, tsi_loop *loop, item *mine)
{
    int64_t lines = 0;
    for (bool more = tsi_loop_begin(loop); more; more = tsi_loop_next(loop), lines++) {
        line_at(job, loop);
        load_line(job);
        const item *best = merge_sort(job->one, job->other, job->count, job->real, job->descending);
        for (int64_t i = 0; i < job->wanted; i++)
            mine[lines * job->wanted + i] = i < job->count ? best[i] : (item){ .at = -1 };
    }
    return lines;
}

/* The candidates of all ranks for one line, one after another. */
static int64_t collect(const line_job *job, const item *all, int64_t line, int64_t lines, int64_t n)
{
    int64_t found = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < job->wanted; i++) {
            const item *next = &all[(r * lines + line) * job->wanted + i];
            if (next->at >= 0) job->one[found++] = *next;
        }
    return found;
}

static ts_status topk_run(const tsi_algorithm_io *io, const tsi_block *block, tsi_arena *arena)
{
    tsi_region region;
    if (!tsi_layout_region(io->in[0]->layout, io->mesh->coord, arena, &region))
        return ts_rank_status(io->rank);
    line_job job = { .in = &block[0], .values = &block[1], .indices = &block[2] };
    tsi_loop loop;
    lines_make(io->attributes, &job, &loop);
    job.list = &region.dim[((const tsi_sort_attributes *)io->attributes)->dim];
    int64_t n = ts_group_size(io->group), lines = 1;
    for (int32_t d = 0; d < loop.ndim; d++)
        lines *= loop.extent[d];
    int64_t room = n * job.wanted > job.count ? n * job.wanted : job.count;
    item *mine = tsi_arena_calloc(arena, (size_t)(lines * job.wanted) + 1, sizeof *mine);
    item *all = tsi_arena_calloc(arena, (size_t)(lines * job.wanted * n) + 1, sizeof *all);
    job.one = tsi_arena_calloc(arena, (size_t)room * 2 + 1, sizeof *job.one);
    if (!mine || !all || !job.one)
        return tsi_fail_memory("the candidates of topk", (size_t)room * sizeof *mine);
    job.other = job.one + room;
    (void)take_local(&job, &loop, mine);
    TSI_TRY(exchange(io, mine, all, lines * job.wanted));
    int64_t line = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop), line++) {
        line_at(&job, &loop);
        int64_t found = collect(&job, all, line, lines, n);
        store_line(&job, merge_sort(job.one, job.other, found, job.real, job.descending));
    }
    return TS_OK;
}

static ts_status topk_candidates(const tsi_algorithm_io *io)
{
    return tsi_algorithm_on_host(io, topk_run);
}

static int64_t topk_bytes(const tsi_op_call *call, int64_t n)
{
    return tsi_mul_most(tsi_mul_most(ts_shape_count(&call->out[0].shape), (int64_t)sizeof(item)),
                        n - 1);
}

static const tsi_algorithm topk_algorithms[] = { { "candidates", topk_candidates, topk_bytes },
                                                 { 0 } };

/* ---- gradient and rows ----------------------------------------------------------------------- */

static ts_status sort_grad(const tsi_grad_io *io)
{
    if (!io->out_grad[0]) return TS_OK;
    if (io->in_meta[0].shape.ndim == 0)
        io->in_grad[0] = io->out_grad[0];
    else
        io->in_grad[0] = ts_gather_backward(
            io->out_grad[0], (int32_t)((const tsi_sort_attributes *)io->attributes)->dim,
            io->out[1], io->in_meta[0].shape);
    return ts_rank_status(io->rank);
}

static bool sample_sort(tsi_sample *s)
{
    tsi_sort_attributes *a = s->attributes;
    s->count = 1;
    s->in[0] = (ts_meta){ .shape = { .ndim = 2 + (s->variant == 2), .extent = { 5, 4, 0 } },
                          .dtype = s->variant == 3 ? TS_DTYPE_I64 : TS_DTYPE_F64 };
    if (s->variant == 2) s->in[0].shape.extent[2] = 3;
    *a = (tsi_sort_attributes){ .dim = s->variant == 0 ? 0 : -1,
                                .k = 2,
                                .descending = s->variant & 1 };
    a->sorted = 1;
    return s->variant < 4;
}

#define SORT                                                                                       \
    .input_min = 1, .input_max = 1, .output_count = 2,                                             \
    .attribute_bytes = sizeof(tsi_sort_attributes), .infer = sort_infer, .rules = sort_rules,      \
    .reference = sort_reference, .grad = sort_grad, .saves = (uint64_t)2 << TSI_SAVE_OUT,          \
    .sample = sample_sort

const tsi_op_desc tsi_op_sort = {
    .name = "sort",
    .what = "a dim in ascending or descending order, and where its elements were; stable",
    .dtypes = TSI_DTYPES_ORDERED,
    SORT,
    .attribute = sort_table,
    .normalise = sort_normalise,
};

const tsi_op_desc tsi_op_topk = {
    .name = "topk",
    .what = "the k largest or smallest of a dim in order, and where they were",
    .dtypes = TSI_DTYPES_ORDERED,
    SORT,
    .attribute = topk_table,
    .normalise = sort_normalise,
    .algorithm = topk_algorithms,
    .flags = TSI_OP_ONE_ROUND,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_status run_sort(const tsi_op_desc *op, ts_tensor *x, const tsi_sort_attributes *a,
                          ts_tensor **out)
{
    tsi_op_args args = { op, &x, 1, 0, a };
    return tsi_op_run(&args, out);
}

ts_status(ts_sort)(ts_tensor *x, const ts_sort_options *options, ts_tensor **values,
                   ts_tensor **indices)
{
    tsi_sort_attributes a = { .dim = -1 };
    if (options) a.dim = options->dim;
    if (options) a.descending = options->descending != 0;
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = run_sort(&tsi_op_sort, x, &a, out);
    if (values) *values = out[0];
    if (indices) *indices = out[1];
    return status;
}

ts_status(ts_topk)(ts_tensor *x, const ts_topk_options *options, ts_tensor **values,
                   ts_tensor **indices)
{
    tsi_sort_attributes a = { .dim = -1, .k = 1, .descending = 1, .sorted = 1 };
    if (options) {
        a.dim = options->dim;
        a.k = options->k;
        a.descending = options->smallest == 0;
    }
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = run_sort(&tsi_op_topk, x, &a, out);
    if (values) *values = out[0];
    if (indices) *indices = out[1];
    return status;
}
