/* SPDX-License-Identifier: Apache-2.0 */
/* op_family.h - what the tests of operator families share: inputs with any placement on any mesh,
 * filled by global index, the comparison of an operator on placements with the same on replicas,
 * and gradients against central differences.
 *
 * Values are small halves, so that sums and products of terms are exact in f64. Terms of partial
 * inputs are adversarial: of both signs, with decoys near and far for extremes. */
#ifndef TESTS_DIST_OP_FAMILY_H
#define TESTS_DIST_OP_FAMILY_H

#include <math.h>

#include "array/image.h"
#include "base/alloc.h"
#include "harness/test.h"
#include "op/core/dispatch.h"
#include "op/core/element.h"
#include "tessera/autograd.h"

static inline double family_value(int32_t input, int64_t i, ts_dtype dtype)
{
    double x = (double)((i * 37 + input * 11) % 17 - 8) / 2.0;
    if (dtype == TS_DTYPE_BOOL) return (double)((i * 7 + input) % 3 == 0);
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_INT) return floor(fabs(x));
    return x == 0.0 ? 1.5 : x;
}

/* The same between 0 and 1, in sixteenths. */
static inline double family_chance(int32_t input, int64_t i)
{
    return (double)((i * 37 + input * 11) % 15 + 1) / 16.0;
}

/* What holder r of n has of a value that is pending a reduction. */
static inline double family_term(double x, ts_reduce reduce, int64_t i, int64_t r, int64_t n)
{
    int64_t owner = (i * 5 + 1) % n;
    double others = 0, twos = 1;
    for (int64_t q = 0; q < n; q++) {
        if (q == owner) continue;
        others += (double)((i * 7 + q * 3) % 5 - 2);
        twos *= (i + q) % 2 ? 2.0 : -1.0;
    }
    if (reduce == TS_REDUCE_SUM || reduce == TS_REDUCE_AVG) {
        double whole = reduce == TS_REDUCE_AVG ? (double)n * x : x;
        return r == owner ? whole - others : (double)((i * 7 + r * 3) % 5 - 2);
    }
    double decoy = 0.5 + (double)((i + r) % 2) * 30;
    if (reduce == TS_REDUCE_MAX) return r == owner ? x : x - decoy;
    if (reduce == TS_REDUCE_MIN) return r == owner ? x : x + decoy;
    return r == owner ? x / twos : (i + r) % 2 ? 2.0 : -1.0;
}

/* A tensor with the given placements whose logical value at global index i is family_value, or
 * family_chance. */
static inline ts_tensor *family_fill(ts_mesh *mesh, int32_t input, const ts_meta *meta,
                                     const char *place, bool chances)
{
    ts_tensor *t = ts_empty(mesh, (ts_dtype)meta->dtype, meta->shape, place);
    if (!t || ts_tensor_wait(t) != TS_OK) return NULL;
    tsi_arena arena = { 0 };
    tsi_region region;
    tsi_block lies = tsi_array_block(t->array);
    tsi_image image;
    if (tsi_image_open(t->rank, &lies, TSI_IMAGE_WRITE, &image) != TS_OK) return NULL;
    tsi_block block = image.block;
    int64_t holders = 1, holder = 0;
    ts_reduce reduce = TS_REDUCE_NONE;
    for (int32_t k = 0; k < mesh->desc->ndim; k++) {
        const ts_placement *p = &t->layout->sharding->place[k];
        if (p->kind != TS_PLACE_PARTIAL) continue;
        reduce = (ts_reduce)p->reduce;
        holder = holder * mesh->desc->size[k] + mesh->coord[k];
        holders *= mesh->desc->size[k];
    }
    (void)ts_tensor_wait(t);
    if (mesh->member && tsi_layout_region(t->layout, mesh->coord, &arena, &region)) {
        tsi_loop loop = tsi_loop_over(&block);
        for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
            int64_t i = 0;
            for (int32_t d = 0; d < block.ndim; d++)
                i = i * meta->shape.extent[d] + tsi_span_list_at(&region.dim[d], loop.index[d]);
            double x =
                chances ? family_chance(input, i) : family_value(input, i, (ts_dtype)meta->dtype);
            if (reduce) x = family_term(x, reduce, i, holder, holders);
            tsi_store_real((ts_dtype)meta->dtype, tsi_block_at(&block, loop.at[0]), x);
        }
    }
    tsi_arena_release(&arena);
    return tsi_image_close(&image) == TS_OK ? t : NULL;
}

static inline ts_tensor *family_input(ts_mesh *mesh, int32_t input, const ts_meta *meta,
                                      const char *place)
{
    return family_fill(mesh, input, meta, place, false);
}

/* The whole of a tensor as doubles; the caller frees. NULL: it failed. */
static inline double *family_numbers(ts_tensor *t, int64_t *count)
{
    ts_tensor *full = ts_tensor_full(t);
    if (!full || ts_tensor_wait(full) != TS_OK) return NULL;
    ts_array to = TS_INIT(ts_array);
    to.meta = (ts_meta){ .shape = ts_tensor_shape(full), .dtype = TS_DTYPE_F64 };
    *count = ts_shape_count(&to.meta.shape);
    double *out = tsi_alloc_array((size_t)*count + 1, sizeof *out);
    to.data = out;
    if (ts_tensor_read(full, &to) == TS_OK) return out;
    tsi_free(out);
    return NULL;
}

static inline void family_same(test *t, ts_tensor *have, ts_tensor *want, const char *what)
{
    int64_t n = 0, m = 0;
    double *x = family_numbers(have, &n), *y = family_numbers(want, &m);
    TEST_SAY(t, x && y && n == m, "%s: %lld elements, not %lld", what, (long long)n, (long long)m);
    for (int64_t i = 0; x && y && i < n && i < m; i++) {
        bool ok = x[i] == y[i] || fabs(x[i] - y[i]) <= 1e-9 * (1 + fabs(y[i]));
        TEST_SAY(t, ok, "%s: element %lld is %g, not %g", what, (long long)i, x[i], y[i]);
        if (!ok) break;
    }
    tsi_free(x);
    tsi_free(y);
}

/* ---- rows of the table on placements -------------------------------------------------------- */

typedef struct family_call {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count;
    _Alignas(16) unsigned char attributes[512];
    char text[400];
} family_call;

/* What the call takes: it may be a function of chances alone. */
static inline ts_tensor *family_given(const family_call *c, ts_mesh *mesh, int32_t input,
                                      const char *place)
{
    return family_fill(mesh, input, &c->in[input], place, c->op == &tsi_op_bce);
}

/* One axis of a placement by number: 0 R, then S(d), then partials. */
static inline int32_t family_choices(const ts_meta *meta)
{
    return 1 + meta->shape.ndim + (meta->dtype == TS_DTYPE_F64 ? 5 : 0);
}

static inline void family_place(const ts_meta *meta, int32_t code, char *out)
{
    static const char *const kinds[] = { "P(sum)", "P(avg)", "P(max)", "P(min)", "P(prod)" };
    int32_t ndim = meta->shape.ndim;
    if (code == 0)
        strcpy(out, "R");
    else if (code <= ndim)
        sprintf(out, "S(%d)", code - 1);
    else
        strcpy(out, kinds[code - ndim - 1]);
}

/* Runs the call with the given codes per input and axis; codes that do not mix are made R. */
static inline ts_status family_run(family_call *c, ts_mesh *mesh, int32_t code[][2],
                                   ts_tensor **out)
{
    ts_tensor *in[TSI_INPUT_MAX] = { NULL };
    int32_t axes = ts_mesh_ndim(mesh);
    size_t used = (size_t)sprintf(c->text, "%s(", c->op->name);
    for (int32_t i = 0; i < c->input_count; i++) {
        char place[64] = "";
        int32_t ndim = c->in[i].shape.ndim;
        bool both = axes == 2 && code[i][0] > ndim && code[i][1] > ndim;
        if (both && code[i][0] != code[i][1]) code[i][1] = 0;
        for (int32_t k = 0; k < axes; k++) {
            if (k) strcat(place, ", ");
            family_place(&c->in[i], code[i][k], place + strlen(place));
        }
        in[i] = family_given(c, mesh, i, place);
        if (used < 300) used += (size_t)sprintf(c->text + used, "%s%s", i ? "; " : "", place);
    }
    sprintf(c->text + used, ")");
    tsi_op_args args = { c->op, in, c->input_count, 0, c->attributes };
    return tsi_op_run(&args, out);
}

/* Draws `rounds` placements of one sampled call and compares each with replicas. */
static inline void family_variant(test *t, ts_mesh *mesh, family_call *c, int32_t rounds)
{
    ts_scope scope = ts_scope_open(t->me, c->op->name);
    ts_tensor *want[TSI_OUTPUT_MAX] = { NULL }, *have[TSI_OUTPUT_MAX] = { NULL };
    int32_t code[TSI_INPUT_MAX][2] = { { 0 } };
    TEST_SAY(t, family_run(c, mesh, code, want) == TS_OK, "%s: %s", c->text,
             ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    for (int32_t r = 0; r < rounds && ts_rank_status(t->me) == TS_OK; r++) {
        if (!test_tries(t)) continue;
        ts_scope inner = ts_scope_open(t->me, "places");
        for (int32_t i = 0; i < c->input_count; i++)
            for (int32_t k = 0; k < 2; k++)
                code[i][k] = (int32_t)test_random_below(t, family_choices(&c->in[i]));
        if (c->input_count == 1 && ts_mesh_ndim(mesh) == 1)
            code[0][0] = r % family_choices(&c->in[0]);
        if (family_run(c, mesh, code, have) != TS_OK)
            test_fail(t, __FILE__, __LINE__, "%s: %s", c->text, ts_rank_error(t->me)->text);
        for (int32_t o = 0; o < c->op->output_count && ts_rank_status(t->me) == TS_OK; o++)
            family_same(t, have[o], want[o], c->text);
        ts_scope_close(inner);
    }
    ts_scope_close(scope);
}

/* Cuts that are not plain chunks, of one input and dim at a time; the other inputs are replicated.
 */
static inline void family_other_cuts(test *t, ts_mesh *mesh, family_call *c)
{
    ts_tensor *want[TSI_OUTPUT_MAX] = { NULL }, *have[TSI_OUTPUT_MAX] = { NULL };
    int32_t code[TSI_INPUT_MAX][2] = { { 0 } };
    if (family_run(c, mesh, code, want) != TS_OK) return;
    for (int32_t i = 0; i < c->input_count; i++)
        for (int32_t d = 0; d < c->in[i].shape.ndim; d++)
            for (int32_t kind = 0; kind < 3 && ts_rank_status(t->me) == TS_OK; kind++) {
                ts_scope inner = ts_scope_open(t->me, "cut");
                ts_tensor *in[TSI_INPUT_MAX];
                char place[64], what[128];
                long long extent = (long long)c->in[i].shape.extent[d];
                sprintf(place, kind == 0 ? "SS(%d,2)" : kind == 1 ? "HT(%d)" : "RS(%d:", d);
                for (int64_t r = 0; kind == 2 && r < t->count; r++)
                    sprintf(place + strlen(place), "%lld%s",
                            r == 0              ? extent / 2
                            : r == t->count - 1 ? extent - extent / 2
                                                : 0LL,
                            r + 1 < t->count ? "," : ")");
                for (int32_t j = 0; j < c->input_count; j++)
                    in[j] = family_given(c, mesh, j, i == j ? place : NULL);
                sprintf(what, "%s: input %d is %s", c->op->name, i, place);
                tsi_op_args args = { c->op, in, c->input_count, 0, c->attributes };
                TEST_SAY(t, tsi_op_run(&args, have) == TS_OK, "%s: %s", what,
                         ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
                for (int32_t o = 0; o < c->op->output_count && have[o]; o++)
                    family_same(t, have[o], want[o], what);
                ts_scope_close(inner);
            }
}

/* Every sampled call of the rows; rounds 0: on cuts that are not plain chunks. */
static inline void family_each(test *t, ts_mesh *mesh, const char *const *names, int32_t rounds)
{
    for (; *names; names++) {
        family_call c = { .op = tsi_op_find(*names) };
        TEST_SAY(t, c.op && c.op->sample, "%s has no sample", *names);
        for (int32_t variant = 0; c.op && c.op->sample; variant++) {
            uint64_t random = t->seed + (uint64_t)variant;
            memset(c.attributes, 0, sizeof c.attributes);
            memset(c.in, 0, sizeof c.in);
            c.input_count = c.op->input_max;
            if (!tsi_op_sample(c.op, &random, variant, c.in, &c.input_count, c.attributes)) break;
            if (rounds)
                family_variant(t, mesh, &c, rounds);
            else
                family_other_cuts(t, mesh, &c);
        }
    }
}

static inline void family_sweep(test *t, ts_mesh *mesh, const char *const *names, int32_t rounds)
{
    family_each(t, mesh, names, rounds);
}

static inline void family_cuts(test *t, ts_mesh *mesh, const char *const *names)
{
    family_each(t, mesh, names, 0);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* A function of one tensor; `context` is handed on. */
typedef ts_tensor *(*family_fn)(ts_tensor *x, void *context);

/* Numbers that differ from element to element, so that a mixed-up order is seen. */
static inline ts_tensor *family_weights(ts_tensor *y)
{
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = 0.3;
    range.step = 0.17;
    return ts_arange(ts_tensor_mesh(y), TS_DTYPE_F64, ts_tensor_shape(y), NULL, &range);
}

static inline double family_loss(family_fn fn, ts_tensor *x, void *context)
{
    double loss = NAN;
    ts_tensor *y = fn(x, context);
    if (y) (void)ts_tensor_item(ts_sum(ts_mul(y, family_weights(y)), NULL, 0, 0), &loss);
    return loss;
}

/* d sum(w fn(x)) / dx against central differences; fn is linear or smooth around the values. */
static inline void family_gradient(test *t, ts_mesh *mesh, family_fn fn, void *context,
                                   ts_shape shape, const char *place, const char *name)
{
    ts_scope scope = ts_scope_open(t->me, name);
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F64 };
    ts_tensor *x = ts_watch(family_input(mesh, 3, &meta, place));
    ts_tape_begin(t->me);
    ts_tensor *y = fn(x, context);
    ts_backward_options options = TS_INIT(ts_backward_options);
    options.seed = y ? family_weights(y) : NULL;
    TEST_SAY(t, y && ts_backward(y, &options) == TS_OK, "%s on %s: %s", name, place,
             ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    if (ts_rank_status(t->me) != TS_OK) return;
    int64_t n = 0;
    double *dx = family_numbers(ts_tensor_grad(x), &n), h = 1e-5;
    TEST_EQ(t, n, ts_shape_count(&shape));
    for (int64_t i = 0; dx && i < n; i++) {
        ts_scope inner = ts_scope_open(t->me, "difference");
        ts_tensor *base = ts_tensor_full(ts_detach(x));
        ts_tensor *hot = ts_arange(mesh, TS_DTYPE_F64, shape, NULL, NULL);
        hot = ts_cast(ts_lt(ts_abs(ts_add_scalar(hot, -(double)i)),
                            ts_full(0.5, mesh, TS_DTYPE_F64, TS_SHAPE_SCALAR, NULL)),
                      TS_DTYPE_F64);
        double up = family_loss(fn, ts_add(base, ts_mul_scalar(hot, h)), context);
        double down = family_loss(fn, ts_add(base, ts_mul_scalar(hot, -h)), context);
        double want = (up - down) / (2 * h);
        TEST_SAY(t, fabs(dx[i] - want) <= 1e-5 * (1 + fabs(want)),
                 "%s on %s: gradient %lld is %.9g, not %.9g", name, place, (long long)i, dx[i],
                 want);
        ts_scope_close(inner);
    }
    tsi_free(dx);
    ts_scope_close(scope);
}

/* ---- plans and messages ---------------------------------------------------------------------- */

/* Placements of the result, and the bytes that were moved for it on all ranks. */
static inline void family_plan(test *t, ts_tensor *y, const char *place, const char *what)
{
    char text[128] = "";
    if (y) ts_sharding_text(y->layout->sharding, text, sizeof text);
    TEST_SAY(t, y && strcmp(text, place) == 0, "%s: the result is (%s), not (%s)", what, text,
             place);
}

/* The call failed on this rank with a sentence that contains the words; the error is taken away. */
#define FAMILY_REFUSES(t, words, ...)                                                              \
    do {                                                                                           \
        ts_scope_options family_options_ = TS_INIT(ts_scope_options);                              \
        family_options_.catches = 1;                                                               \
        ts_scope family_scope_ = ts_scope_open_with((t)->me, &family_options_);                    \
        (void)(__VA_ARGS__);                                                                       \
        (void)ts_rank_sync((t)->me); /* what a kernel finds that runs later */                     \
        const ts_error *family_error_ = ts_rank_error((t)->me);                                    \
        TEST_SAYS(t, family_error_ ? family_error_->text : "no error", words);                     \
        (void)ts_scope_close(family_scope_);                                                       \
    } while (0)

#endif
