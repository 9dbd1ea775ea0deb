/* SPDX-License-Identifier: Apache-2.0 */
/* query_run.c - a query's call made with numbers, on many ranks and on one, and compared.
 *
 * Every rank makes both calls: on the query's mesh with its blocks and terms, and on itself alone
 * with the whole values. Beside the calls only the size of pending terms is communicated, and the
 * verdict is about what this rank can see: the whole of every output. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "array/image.h"
#include "op/ask/numbers.h"
#include "op/ask/query.h"
#include "tensor/scope.h"

enum { STREAM = 42 }; /* of random operators: both calls draw the same */
static const int64_t limit_max = (int64_t)1 << 40; /* numbers beyond are no extents */

typedef struct run {
    const ts_op_query *query;
    ts_rank *rank;
    ts_mesh *mesh;
    int32_t pattern, reserved;
    int64_t limit; /* of indices */
    char *verdict;
    size_t size;
} run;

/* ---- inputs ---------------------------------------------------------------------------------- */

static tsi_numbers numbers_of(const run *r, int32_t input)
{
    const tsi_op_plan *plan = r->query->plan;
    tsi_numbers n = { .meta = plan->in_meta[input], .pattern = r->pattern, .operand = input };
    if (!r->query->is_index || r->query->is_index >> (input & 63) & 1) n.limit = r->limit;
    if (r->query->op->flags & TSI_OP_DATA_SHAPE) { /* the mask sets what the shape says */
        n.counted = 1;
        bool selects = plan->op == &tsi_op_masked_select;
        n.set = ts_shape_count(&(selects ? plan->out_meta : plan->in_meta)[0].shape);
    }
    n.positive = plan->op == &tsi_op_cross_entropy && input == 2; /* a mean divides by their sum */
    const ts_sharding *s = plan->in[input]->sharding;
    for (int32_t k = 0; k < s->ndim; k++) {
        const ts_placement *place = &s->place[k];
        n.positive |= place->kind == TS_PLACE_NORM;
        n.truth |= place->kind == TS_PLACE_PARTIAL &&
                   (place->reduce == TS_REDUCE_AND || place->reduce == TS_REDUCE_OR);
    }
    return n;
}

static ts_tensor *input_of(const run *r, int32_t input, ts_mesh *mesh, const ts_layout *layout)
{
    tsi_numbers n = numbers_of(r, input);
    ts_dtype dtype = (ts_dtype)n.meta.dtype;
    tsi_array *array = tsi_tensor_block(mesh, layout, dtype);
    if (!array) return NULL;
    tsi_arena arena = { 0 };
    tsi_block block = tsi_array_block(array);
    tsi_image image = { .mode = 0 };
    bool good = true;
    if (mesh->member) {
        good = tsi_image_open(mesh->rank, &block, TSI_IMAGE_WRITE, &image) == TS_OK &&
               tsi_numbers_fill(&n, layout, mesh->coord, &arena, &image.block);
        good = tsi_image_close(&image) == TS_OK && good;
    }
    tsi_arena_release(&arena);
    if (good) return tsi_tensor_make(mesh, layout, dtype, array, NULL);
    tsi_array_release(array);
    return NULL;
}

/* The layout of an input on another world's mesh, by its text; on one rank: whole. */
static const ts_layout *layout_on(const run *r, int32_t input, ts_mesh *mesh)
{
    const ts_layout *layout = r->query->plan->in[input];
    char text[1024];
    if (mesh != r->mesh) return tsi_tensor_layout_of(mesh, NULL, layout->shape);
    ts_sharding_text(layout->sharding, text, sizeof text);
    return tsi_tensor_layout_of(mesh, text, layout->shape);
}

static ts_status call_on(const run *r, ts_mesh *mesh, ts_tensor **out)
{
    const tsi_op_plan *plan = r->query->plan;
    ts_tensor *in[TSI_INPUT_MAX] = { NULL };
    for (int32_t i = 0; i < plan->input_count; i++) {
        if (!plan->in[i]) continue;
        const ts_layout *layout = layout_on(r, i, mesh);
        in[i] = layout ? input_of(r, i, mesh, layout) : NULL;
        ts_layout_release(layout);
        if (!in[i]) return ts_rank_status(r->rank);
    }
    tsi_op_state *state = tsi_op_state_of(r->rank);
    if (!state) return ts_rank_status(r->rank);
    tsi_op_args args = { plan->op, in, plan->input_count, plan->in_place, r->query->attributes };
    state->stream_is_forced = 1;
    state->stream_forced = STREAM;
    ts_status status = tsi_op_run(&args, out);
    state->stream_is_forced = 0;
    /* Data that a kernel refuses behind us are part of the verdict. */
    return status != TS_OK ? status : tsi_rank_device_sync(r->rank);
}

/* ---- one rank alone -------------------------------------------------------------------------- */

/* Indices lie below an extent, or below a number among the attributes: those, from the largest down
 * to 1. Whole numbers that need not be indices are tried without a limit (0) first. */
static int64_t next_limit(const run *r, int64_t below)
{
    const tsi_op_plan *plan = r->query->plan;
    int64_t best = 1;
    for (const tsi_attribute *a = plan->op->attribute; a && a->name; a++) {
        if (a->type != TS_ATTRIBUTE_INT) continue;
        int64_t number = *(const int64_t *)((const char *)plan->attributes + a->offset);
        if (number < below && number > best) best = number;
    }
    for (int32_t i = 0; i < plan->input_count; i++)
        for (int32_t d = 0; plan->in[i] && d < plan->in_meta[i].shape.ndim; d++) {
            int64_t extent = plan->in_meta[i].shape.extent[d];
            if (extent < below && extent > best) best = extent;
        }
    return best;
}

/* The call alone, with the largest indices that it accepts. The outputs go to the caller's scope.
 */
static ts_status call_alone(run *r, ts_tensor **out)
{
    ts_mesh *self = ts_mesh_self(r->rank);
    if (!self) return ts_rank_status(r->rank);
    int64_t first = r->query->is_index ? next_limit(r, limit_max) : 0;
    for (r->limit = first;; r->limit = next_limit(r, r->limit ? r->limit : limit_max)) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        options.implicit_moves = TS_MOVES_ALLOW;
        ts_scope scope = ts_scope_open_with(r->rank, &options);
        ts_status status = call_on(r, self, out);
        for (int32_t o = 0; status == TS_OK && o < r->query->plan->output_count; o++)
            out[o] = ts_scope_pass(scope, out[o]);
        ts_scope_close(scope);
        if (status == TS_OK) return TS_OK;
        if (r->limit == 1) break;
    }
    snprintf(r->verdict, r->size, "not run: on one rank: %s",
             ts_rank_error(r->rank) ? ts_rank_error(r->rank)->text : "failed");
    return TS_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void say_difference(const run *r, int32_t output, int64_t i, double complex x,
                           double complex y)
{
    ts_shape shape = r->query->plan->out_meta[output].shape;
    char text[160] = "(";
    size_t used = 1;
    int64_t index[TS_NDIM_MAX];
    for (int32_t d = shape.ndim - 1; d >= 0; d--) {
        index[d] = i % shape.extent[d];
        i /= shape.extent[d];
    }
    for (int32_t d = 0; d < shape.ndim; d++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", d ? ", " : "",
                                 (long long)index[d]);
    snprintf(r->verdict, r->size,
             "pattern %d, rank %lld, output %d, element %s): %.9g%+.9gi, on one rank %.9g%+.9gi",
             r->pattern, (long long)r->rank->index, output, text, creal(x), cimag(x), creal(y),
             cimag(y));
}

/* Terms of few digits are rounded one by one, relative to their own size and not to their sum's:
 * the dtype of the terms where something is pending, be the result of a finer one. */
static ts_dtype rough_terms(const run *r, ts_dtype dtype)
{
    const tsi_op_plan *plan = r->query->plan;
    uint32_t pending = 0;
    bool f16 = dtype == TS_DTYPE_F16, bf16 = dtype == TS_DTYPE_BF16;
    for (int32_t i = 0; i < plan->input_count; i++) {
        if (!plan->in[i]) continue;
        pending |= plan->in[i]->axes_partial;
        f16 |= plan->in[i]->axes_partial && plan->in_meta[i].dtype == TS_DTYPE_F16;
        bf16 |= plan->in[i]->axes_partial && plan->in_meta[i].dtype == TS_DTYPE_BF16;
    }
    for (int32_t o = 0; o < plan->output_count; o++)
        pending |= plan->out[o]->axes_partial;
    if (!pending || tsi_dtype_category(dtype) < TSI_CATEGORY_REAL) return TS_DTYPE_NONE;
    return bf16 ? TS_DTYPE_BF16 : f16 ? TS_DTYPE_F16 : TS_DTYPE_NONE;
}

static double largest_of(const tsi_block *block)
{
    double largest = 0;
    tsi_loop loop = tsi_loop_over(block);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double size =
            cabs(tsi_number_load((ts_dtype)block->dtype, tsi_block_at(block, loop.at[0])));
        if (isfinite(size) && size > largest) largest = size;
    }
    return largest;
}

/* [coll] The size of the largest term of any rank; 0: nothing is pending. */
static ts_status terms_of(const run *r, const ts_tensor *t, double *size)
{
    *size = 0;
    if (!t->layout->axes_partial || !r->mesh->member) return TS_OK;
    ts_group *group = tsi_mesh_axes_group(r->mesh, (1u << r->mesh->desc->ndim) - 1);
    tsi_block block = tsi_array_block(t->array);
    tsi_image image;
    TSI_TRY(tsi_image_open(r->rank, &block, TSI_IMAGE_READ, &image));
    ts_status status = tsi_rank_device_sync(r->rank);
    if (status == TS_OK) *size = largest_of(&image.block);
    tsi_image_drop(&image);
    if (status != TS_OK) return status;
    ts_array all = TS_INIT(ts_array);
    all.data = size;
    all.meta = (ts_meta){ .shape = TS_SHAPE_SCALAR, .dtype = TS_DTYPE_F64 };
    return group ? (ts_group_all_reduce)(group, &all, &all, TS_REDUCE_MAX, NULL)
                 : ts_rank_status(r->rank);
}

static bool compare_blocks(const run *r, int32_t output, const tsi_block *x, const tsi_block *y,
                           double terms)
{
    ts_dtype dtype = (ts_dtype)y->dtype;
    if (x->dtype != y->dtype || tsi_block_count(x) != tsi_block_count(y)) {
        snprintf(r->verdict, r->size, "output %d: %s and %lld elements, on one rank %s and %lld",
                 output, ts_dtype_name((ts_dtype)x->dtype), (long long)tsi_block_count(x),
                 ts_dtype_name(dtype), (long long)tsi_block_count(y));
        return false;
    }
    ts_dtype rough = rough_terms(r, dtype), digits = rough ? rough : dtype;
    double scale = fmax(tsi_terms_scale(digits, terms), largest_of(y));
    tsi_loop loop = TSI_LOOP(y, x->stride, y->stride);
    if (rough) scale *= 10;
    int64_t i = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop), i++) {
        double complex a = tsi_number_load(dtype, tsi_block_at(x, loop.at[0])),
                       b = tsi_number_load(dtype, tsi_block_at(y, loop.at[1]));
        bool pending = r->query->plan->out[output]->axes_partial != 0; /* inf may be inf - inf */
        if (tsi_number_close(a, b, digits, scale) ||
            (pending && !isfinite(cabs(a)) && !isfinite(cabs(b))))
            continue;
        say_difference(r, output, i, a, b);
        return false;
    }
    return true;
}

static ts_status compare_images(const run *r, int32_t output, const tsi_array *have,
                                const tsi_array *want, double terms)
{
    tsi_block x = tsi_array_block(have), y = tsi_array_block(want);
    tsi_image a = { .mode = 0 }, b = { .mode = 0 };
    ts_status status = tsi_image_open(r->rank, &x, TSI_IMAGE_READ, &a);
    if (status == TS_OK) status = tsi_image_open(r->rank, &y, TSI_IMAGE_READ, &b);
    if (status == TS_OK) status = tsi_rank_device_sync(r->rank);
    if (status == TS_OK) (void)compare_blocks(r, output, &a.block, &b.block, terms);
    tsi_image_drop(&a);
    tsi_image_drop(&b);
    return status;
}

static ts_status compare(const run *r, ts_tensor *const *have, ts_tensor *const *want)
{
    for (int32_t o = 0; o < r->query->plan->output_count; o++) {
        if (!have[o] || !want[o]) continue;
        double terms = 0;
        ts_tensor *full = (ts_tensor_full)(have[o]);
        if (!full || ts_tensor_wait(full) != TS_OK || ts_tensor_wait(want[o]) != TS_OK)
            return ts_rank_status(r->rank);
        TSI_TRY(terms_of(r, have[o], &terms));
        if (!r->mesh->member) continue;
        if (strcmp(r->verdict, "ok") == 0)
            TSI_TRY(compare_images(r, o, full->array, want[o]->array, terms));
    }
    return ts_rank_status(r->rank);
}

ts_status ts_op_query_run(const ts_op_query *query, ts_rank *me, int32_t pattern, char *verdict,
                          size_t size)
{
    char mesh[512];
    TSI_TRY(tsi_rank_enter(me));
    snprintf(verdict, size, "ok");
    ts_mesh_text(query->mesh, mesh, sizeof mesh);
    run r = { .query = query,
              .rank = me,
              .mesh = ts_mesh_create(me, mesh),
              .pattern = pattern,
              .verdict = verdict,
              .size = size };
    if (!r.mesh) return ts_rank_status(me);
    ts_tensor *have[TSI_OUTPUT_MAX] = { NULL }, *want[TSI_OUTPUT_MAX] = { NULL };
    ts_scope scope = ts_scope_open(me, query->op->name);
    ts_status status = call_alone(&r, want);
    if (status == TS_OK && strcmp(verdict, "ok") == 0) {
        status = call_on(&r, r.mesh, have);
        if (status == TS_OK) status = compare(&r, have, want);
    }
    ts_scope_close(scope);
    ts_mesh_release(r.mesh);
    return status;
}
