/* SPDX-License-Identifier: Apache-2.0 */
/* op_sweep.c - every operator of the table, on sampled placements of every input, against one rank.
 *
 * Inputs are small whole numbers and halves, so that sums are exact in f64; terms of partial inputs
 * are adversarial: unequal, of both signs, with decoys near and far for extremes. Which placements
 * are tried is drawn from the seed. */
#include <math.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "op/op.h"

enum { PLACES_PER_VARIANT = 14, PLACE_MAX = 32, WHAT_MAX = 400 };

/* The logical value of element i of input k. */
static double value_at(int32_t k, int64_t i, ts_dtype dtype)
{
    double x = (double)((i * 37 + k * 11) % 17 - 8) / 2.0;
    if (dtype == TS_DTYPE_BOOL) return (double)((i * 7 + k) % 3 == 0);
    if (dtype == TS_DTYPE_I64 || dtype == TS_DTYPE_I32) return floor(fabs(x));
    return x == 0.0 ? 1.5 : x;
}

/* What rank r of n holds of a value that is pending a reduction. */
static double term_of(double x, ts_reduce reduce, int64_t i, int64_t r, int64_t n)
{
    int64_t owner = (i * 5 + 1) % n;
    double noise = (double)((i * 7 + r * 3) % 5 - 2);
    double others = 0, twos = 1;
    for (int64_t q = 0; q < n; q++) {
        if (q != owner) others += (double)((i * 7 + q * 3) % 5 - 2);
        if (q != owner) twos *= (i + q) % 2 ? 2.0 : -1.0;
    }
    bool mine = r == owner;
    switch (reduce) {
    case TS_REDUCE_SUM:
        return mine ? x - others : noise;
    case TS_REDUCE_AVG:
        return mine ? (double)n * x - others : noise;
    case TS_REDUCE_MAX:
        return mine ? x : x - 0.5 - (double)((i + r) % 2) * 30;
    case TS_REDUCE_MIN:
        return mine ? x : x + 0.5 + (double)((i + r) % 2) * 30;
    case TS_REDUCE_PROD:
        return mine ? x / twos : (i + r) % 2 ? 2.0 : -1.0;
    case TS_REDUCE_AND:
        return mine ? x : 1.0;
    case TS_REDUCE_OR:
        return mine ? x : 0.0;
    case TS_REDUCE_NONE:
    case TS_REDUCE_BAND:
    case TS_REDUCE_BOR:
    case TS_REDUCE_COUNT:
        break;
    }
    return x;
}

typedef struct filling {
    int32_t input;
    ts_dtype dtype;
    const ts_shape *shape;
    ts_reduce reduce;
    int64_t rank, ranks;
} filling;

static void element(const int64_t *global, void *out, void *context)
{
    const filling *f = context;
    int64_t i = 0;
    for (int32_t d = 0; d < f->shape->ndim; d++)
        i = i * f->shape->extent[d] + global[d];
    double x = value_at(f->input, i, f->dtype);
    if (f->reduce) x = term_of(x, f->reduce, i, f->rank, f->ranks);
    tsi_block to = { .data = out, .dtype = (int32_t)f->dtype },
              from = { .data = &x, .dtype = TS_DTYPE_F64 };
    tsi_device_cpu()->copy(tsi_device_cpu(), &to, &from, NULL);
}

/* An input on a 1-axis mesh with the placement `code`: 0 R, 1 + d S(d), then partials. */
static ts_tensor *input_of(ts_mesh *mesh, int32_t k, const ts_meta *meta, int32_t code, char *text)
{
    static const ts_reduce kinds[] = { TS_REDUCE_SUM, TS_REDUCE_AVG, TS_REDUCE_MAX, TS_REDUCE_MIN,
                                       TS_REDUCE_PROD };
    filling f = { k,
                  (ts_dtype)meta->dtype,
                  &meta->shape,
                  TS_REDUCE_NONE,
                  ts_mesh_coord(mesh, "x"),
                  ts_mesh_size(mesh, "x") };
    int32_t ndim = meta->shape.ndim;
    if (code == 0)
        snprintf(text, PLACE_MAX, "R");
    else if (code <= ndim)
        snprintf(text, PLACE_MAX, "S(%d)", code - 1);
    else if (meta->dtype == TS_DTYPE_F64) {
        f.reduce = kinds[(code - ndim - 1) % 5];
        snprintf(text, PLACE_MAX, "P(%s)", ts_reduce_name(f.reduce));
    } else
        snprintf(text, PLACE_MAX, "R");
    if (!f.reduce) return ts_from_function(element, &f, ts_sharding_get(mesh, text), *meta);
    ts_tensor *t = ts_empty(mesh, f.dtype, meta->shape, text);
    ts_array view = TS_INIT(ts_array);
    if (ts_tensor_view(t, &view) != TS_OK) return NULL;
    int64_t count = ts_shape_count(&meta->shape);
    for (int64_t i = 0; i < count; i++)
        ((double *)view.data)[i] = term_of(value_at(k, i, f.dtype), f.reduce, i, f.rank, f.ranks);
    return t;
}

static bool close_enough(double x, double y, ts_dtype dtype)
{
    double eps = dtype == TS_DTYPE_F64 ? 1e-9 : dtype == TS_DTYPE_F32 ? 1e-4 : 2e-2;
    return (isnan(x) && isnan(y)) || x == y || fabs(x - y) <= eps * (1 + fabs(y));
}

/* The whole of a tensor as doubles; the caller frees. */
static double *numbers_of(ts_tensor *t, int64_t *count)
{
    ts_tensor *full = ts_tensor_full(t);
    if (!full || ts_tensor_wait(full) != TS_OK) return NULL;
    ts_shape shape = ts_tensor_shape(full);
    *count = ts_shape_count(&shape);
    double *out = tsi_alloc_array((size_t)*count + 1, sizeof *out);
    tsi_block from = tsi_array_block(full->array),
              to = { .data = out, .dtype = TS_DTYPE_F64, .ndim = from.ndim };
    int64_t stride = 1;
    for (int32_t d = from.ndim - 1; d >= 0; stride *= from.extent[d--])
        to.stride[d] = stride;
    memcpy(to.extent, from.extent, sizeof to.extent);
    tsi_device_cpu()->copy(tsi_device_cpu(), &to, &from, NULL);
    return out;
}

typedef struct sweep {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count;
    _Alignas(16) unsigned char attributes[512];
} sweep;

static ts_status call(const sweep *s, ts_mesh *mesh, const int32_t *code, char *what,
                      ts_tensor **out)
{
    ts_tensor *in[TSI_INPUT_MAX] = { NULL };
    char place[PLACE_MAX];
    size_t used = (size_t)snprintf(what, WHAT_MAX, "%s(", s->op->name);
    for (int32_t i = 0; i < s->input_count; i++) {
        if (s->in[i].dtype != TS_DTYPE_NONE)
            in[i] = input_of(mesh, i, &s->in[i], code[i], place);
        else
            snprintf(place, sizeof place, "-");
        if (used < 200)
            used += (size_t)snprintf(what + used, WHAT_MAX - used, "%s%s", i ? ", " : "", place);
    }
    snprintf(what + used, WHAT_MAX - used, ")");
    tsi_op_args args = { s->op, in, s->input_count, 0, s->attributes };
    return tsi_op_run(&args, out);
}

static void compare(test *t, const sweep *s, ts_tensor **have, ts_tensor **want, const char *what)
{
    for (int32_t o = 0; o < s->op->output_count; o++) {
        if (!have[o] || !want[o]) continue;
        int64_t n = 0, m = 0;
        double *x = numbers_of(have[o], &n), *y = numbers_of(want[o], &m);
        TEST_SAY(t, x && y && n == m, "%s: output %d has %lld elements, not %lld", what, o,
                 (long long)n, (long long)m);
        for (int64_t i = 0; x && y && i < n && i < m; i++) {
            bool ok = close_enough(x[i], y[i], ts_tensor_dtype(want[o]));
            TEST_SAY(t, ok, "%s: output %d, element %lld is %g, not %g", what, o, (long long)i,
                     x[i], y[i]);
            if (!ok) break;
        }
        tsi_free(x);
        tsi_free(y);
    }
}

static void sweep_variant(test *t, ts_mesh *mesh, const sweep *s)
{
    ts_scope scope = ts_scope_open(t->me, s->op->name);
    ts_tensor *want[TSI_OUTPUT_MAX] = { NULL }, *have[TSI_OUTPUT_MAX];
    int32_t code[TSI_INPUT_MAX] = { 0 };
    char what[WHAT_MAX];
    ts_mesh *one =
        ts_mesh_create(t->me, "x=1 : 0"); /* rank 0 alone is the oracle, then everybody hears it */
    (void)one;
    TEST_SAY(t, call(s, mesh, code, what, want) == TS_OK, "%s on R: %s", what,
             ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    for (int round = 0; round < PLACES_PER_VARIANT && ts_rank_status(t->me) == TS_OK; round++) {
        for (int32_t i = 0; i < s->input_count; i++)
            code[i] = (int32_t)test_random_below(t, s->in[i].shape.ndim + (round % 2 ? 6 : 1));
        ts_scope inner = ts_scope_open(t->me, "places");
        if (call(s, mesh, code, what, have) == TS_OK)
            compare(t, s, have, want, what);
        else
            test_fail(t, __FILE__, __LINE__, "%s: %s", what, ts_rank_error(t->me)->text);
        ts_scope_close(inner);
    }
    ts_scope_close(scope);
}

TS_TEST_RANKS(every_operator_on_sampled_placements, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int32_t k = 0; k < TSI_OP_ID_COUNT && ts_rank_status(t->me) == TS_OK; k++) {
        sweep s = { .op = tsi_op_at(k) };
        if (!s.op->sample || s.op->flags & (TSI_OP_RANDOM | TSI_OP_HOST | TSI_OP_DATA_SHAPE))
            continue;
        for (int32_t variant = 0;; variant++) {
            uint64_t random = t->seed + (uint64_t)variant;
            memset(s.attributes, 0, sizeof s.attributes);
            memset(s.in, 0, sizeof s.in);
            s.input_count = s.op->input_max;
            bool more = s.op->sample(&random, variant, s.in, &s.input_count, s.attributes);
            if (!more) break;
            sweep_variant(t, mesh, &s);
        }
    }
}
