/* SPDX-License-Identifier: Apache-2.0 */
/* make.c - factories: tensors whose blocks each rank fills by itself. Nothing is communicated.
 *
 * Values depend on the global index alone, never on the mesh. A partial placement is refused, since
 * every rank would contribute the value once more; ts_empty and ts_empty_like alone take
 * it. */
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "tensor/fill.h"
#include "tensor/tensor.h"

static bool is_partial(const ts_layout *layout)
{
    return layout->axes_partial != 0;
}

/* What every factory needs before it fills: checked arguments, layout and block. */
typedef struct making {
    const char *what;
    const ts_layout *layout;
    tsi_array *array;
} making;

static ts_status making_begin(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                              const char *what, making *out)
{
    *out = (making){ .what = what };
    if (!mesh) {
        ts_rank *rank = tsi_rank_current();
        if (rank) TSI_TRY(tsi_rank_enter(rank));
        return TSI_FAIL(TS_ERR_NULL, "%s: the mesh is NULL", what);
    }
    if (!mesh->rank)
        return TSI_FAIL(TS_ERR_MESH, "%s: the mesh is a description without ranks", what);
    TSI_TRY(tsi_rank_enter(mesh->rank));
    if (ts_dtype_size(dtype) == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: unknown dtype %d", what, dtype);
    out->layout = tsi_tensor_layout_of(mesh, placements, shape);
    if (!out->layout) return ts_rank_status(mesh->rank);
    if (out->layout->count < 0) {
        ts_layout_release(out->layout);
        return TSI_FAIL(TS_ERR_SHAPE, "%s: the shape has more than 2^63 elements", what);
    }
    out->array = tsi_tensor_block(mesh, out->layout, dtype);
    if (out->array) return TS_OK;
    ts_layout_release(out->layout);
    return ts_rank_status(mesh->rank);
}

static ts_tensor *making_end(ts_mesh *mesh, ts_dtype dtype, making *made, ts_status status)
{
    ts_tensor *t = NULL;
    if (status == TS_OK)
        t = tsi_tensor_make(mesh, made->layout, dtype, made->array, NULL);
    else
        tsi_array_release(made->array);
    ts_layout_release(made->layout);
    if (t) tsi_tell(t->rank, TSI_NEWS_FILL, &(tsi_filled){ .made = t, .how = made->what });
    return t;
}

static ts_status refuse_partial(const making *made, const char *what)
{
    if (!is_partial(made->layout)) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: a partial placement (%s) would count the value once per rank; make it "
                    "replicated, or use ts_empty",
                    what, made->layout->text);
}

ts_tensor *ts_empty(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements)
{
    making made;
    if (making_begin(mesh, dtype, shape, placements, "empty", &made) != TS_OK) return NULL;
    return making_end(mesh, dtype, &made, TS_OK);
}

ts_tensor *ts_empty_like(ts_tensor *x)
{
    if (!tsi_tensor_enter(x, "empty_like")) return NULL;
    making made = { .what = "empty_like", .layout = ts_layout_retain(x->layout) };
    made.array = tsi_tensor_block(x->mesh, made.layout, (ts_dtype)x->dtype);
    if (made.array) return making_end(x->mesh, (ts_dtype)x->dtype, &made, TS_OK);
    ts_layout_release(made.layout);
    return NULL;
}

static ts_status check_number(const char *what, ts_number value, ts_dtype dtype)
{
    if (value.kind < TS_NUMBER_INT || value.kind > TS_NUMBER_COMPLEX)
        return TSI_FAIL(TS_ERR_ARG, "%s: a number of kind %d is none", what, value.kind);
    if (value.kind != TS_NUMBER_COMPLEX || tsi_dtype_is_complex((int32_t)dtype)) return TS_OK;
    return TSI_FAIL(TS_ERR_DTYPE, "%s: %g%+gi is complex, which %s cannot hold", what, value.real,
                    value.imaginary, ts_dtype_name(dtype));
}

static ts_tensor *constant(ts_number value, ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                           const char *placements, const char *what)
{
    making made;
    if (making_begin(mesh, dtype, shape, placements, what, &made) != TS_OK) return NULL;
    ts_status status = refuse_partial(&made, what);
    if (status == TS_OK) status = check_number(what, value, dtype);
    if (status == TS_OK) status = tsi_fill_constant(made.array, value);
    return making_end(mesh, dtype, &made, status);
}

ts_tensor *ts_full(double value, ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                   const char *placements)
{
    return constant(ts_number_real(value), mesh, dtype, shape, placements, "full");
}

ts_tensor *ts_full_number(ts_number value, ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                          const char *placements)
{
    return constant(value, mesh, dtype, shape, placements, "full");
}

ts_tensor *ts_zeros(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements)
{
    return constant(ts_number_int(0), mesh, dtype, shape, placements, "zeros");
}

ts_tensor *ts_ones(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements)
{
    return constant(ts_number_int(1), mesh, dtype, shape, placements, "ones");
}

ts_tensor *ts_arange_number(ts_number start, ts_number step, ts_mesh *mesh, ts_dtype dtype,
                            ts_shape shape, const char *placements)
{
    making made;
    if (making_begin(mesh, dtype, shape, placements, "arange", &made) != TS_OK) return NULL;
    ts_status status = refuse_partial(&made, "arange");
    if (status == TS_OK) status = check_number("arange", start, TS_DTYPE_F64);
    if (status == TS_OK) status = check_number("arange", step, TS_DTYPE_F64);
    if (status == TS_OK) status = tsi_fill_arange(mesh, made.layout, made.array, start, step);
    return making_end(mesh, dtype, &made, status);
}

ts_tensor *ts_arange(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                     const ts_arange_options *options)
{
    double start = options ? options->start : 0.0;
    bool exact =
        options && options->struct_size > offsetof(ts_arange_options, exact) && options->exact;
    double step = options && (options->step != 0.0 || exact) ? options->step : 1.0;
    return ts_arange_number(ts_number_real(start), ts_number_real(step), mesh, dtype, shape,
                            placements);
}

/* ---- random ---------------------------------------------------------------------------------- */

/* No stream: the scope's next. Ranks outside the mesh draw too, so that counters stay alike. */
static ts_tensor *random_tensor(ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                                const char *placements, tsi_random random,
                                const ts_random_options *options, const char *what)
{
    making made;
    ts_random_options o = TS_INIT(ts_random_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (making_begin(mesh, dtype, shape, placements, what, &made) != TS_OK) return NULL;
    ts_status status = refuse_partial(&made, what);
    random.seed = o.seed_is_given ? o.seed : mesh->rank->world->seed;
    random.stream = tsi_random_stream(mesh->rank, o.stream);
    if (status == TS_OK) status = tsi_fill_random(mesh, made.layout, made.array, &random);
    return making_end(mesh, dtype, &made, status);
}

ts_tensor *ts_rand_with(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                        const ts_random_options *options)
{
    tsi_random random = { .kind = TSI_RANDOM_UNIFORM, .a = 0.0, .b = 1.0 };
    return random_tensor(mesh, dtype, shape, placements, random, options, "rand");
}

ts_tensor *ts_rand(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements)
{
    return ts_rand_with(mesh, dtype, shape, placements, NULL);
}

ts_tensor *ts_randn_with(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                         const ts_random_options *options)
{
    tsi_random random = { .kind = TSI_RANDOM_NORMAL, .a = 0.0, .b = 1.0 };
    return random_tensor(mesh, dtype, shape, placements, random, options, "randn");
}

ts_tensor *ts_randn(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements)
{
    return ts_randn_with(mesh, dtype, shape, placements, NULL);
}

ts_tensor *ts_randint(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                      const ts_random_options *options)
{
    if (!options || options->high <= options->low) {
        ts_rank *rank = tsi_rank_current();
        if (rank && tsi_rank_enter(rank) != TS_OK) return NULL;
        TSI_FAIL(TS_ERR_ARG, "randint: the range [%lld, %lld) is empty",
                 options ? (long long)options->low : 0LL, options ? (long long)options->high : 0LL);
        return NULL;
    }
    tsi_random random = { .kind = TSI_RANDOM_INTEGER, .low = options->low, .high = options->high };
    return random_tensor(mesh, dtype, shape, placements, random, options, "randint");
}
