/* SPDX-License-Identifier: Apache-2.0 */
/* op_index.c - operators with index tensors, masks and scans: every row on placements of one and
 * two axes against replicas, what stays, gradients, in-place forms, indices out of range. */
#include "dist/op_family.h"

static const char *const rows[] = { "index_select",     "index_select_backward",
                                    "index_add",        "gather",
                                    "gather_backward",  "scatter",
                                    "scatter_add",      "index_get",
                                    "index_put",        "take",
                                    "cumsum",           "cumprod",
                                    "cummax",           "cummin",
                                    "cumprod_backward", NULL };

TS_TEST_RANKS(rows_on_one_axis, 1, 2, 3, 5)
{
    family_sweep(t, ts_mesh_create(t->me, "x=*"), rows, 40);
}

TS_TEST_RANKS(rows_on_two_axes, 4, 6)
{
    family_sweep(t, ts_mesh_create(t->me, t->count == 4 ? "x=2, y=2" : "x=2, y=3"), rows, 40);
}

TS_TEST_RANKS(rows_on_other_cuts, 2, 3)
{
    family_cuts(t, ts_mesh_create(t->me, "x=*"), rows);
}

/* ---- what stays ------------------------------------------------------------------------------ */

static ts_tensor *matrix(ts_mesh *mesh, const char *place)
{
    ts_meta meta = { .shape = TS_SHAPE(8, 12), .dtype = TS_DTYPE_F64 };
    return family_input(mesh, 0, &meta, place);
}

static ts_tensor *indices(ts_mesh *mesh, ts_shape shape, const char *place)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_I64 };
    return family_input(mesh, 1, &meta, place);
}

TS_TEST_RANKS(placements_that_pass, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *whole = matrix(mesh, NULL), *rows_ = matrix(mesh, "S(0)"),
              *columns = matrix(mesh, "S(1)"), *most = matrix(mesh, "P(max)"),
              *sum = matrix(mesh, "P(sum)");
    ts_tensor *list = indices(mesh, TS_SHAPE(6), NULL), *cut = indices(mesh, TS_SHAPE(6), "S(0)");
    family_plan(t, ts_index_select(columns, 0, list), "S(1)", "index_select beside the cut");
    family_plan(t, ts_index_select(rows_, 0, list), "P(sum)", "index_select of the cut dim");
    family_plan(t, ts_index_select(whole, 0, cut), "S(0)", "index_select by a cut list");
    family_plan(t, ts_index_select(most, 0, list), "P(max)", "index_select of a maximum");
    ts_tensor *full = indices(mesh, TS_SHAPE(8, 12), "S(1)");
    family_plan(t, ts_gather(columns, 0, full), "S(1)", "gather, cut alike");
    family_plan(t, ts_gather(columns, 0, indices(mesh, TS_SHAPE(3, 5), NULL)), "P(sum)",
                "gather with a shorter index");
    family_plan(t, ts_scatter_add(rows_, 0, indices(mesh, TS_SHAPE(8, 12), NULL), whole), "S(0)",
                "scatter_add into a cut dim");
    ts_tensor *part = indices(mesh, TS_SHAPE(8, 12), "S(0)");
    family_plan(t, ts_scatter_add(whole, 0, part, rows_), "P(sum)", "scatter_add of cut terms");
    family_plan(t, ts_scatter_value(sum, 1, full, 0.0), "P(sum)", "scatter of zeros");
    family_plan(t, ts_cumsum(rows_, 0), "S(0)", "cumsum of the cut dim");
    family_plan(t, ts_cumsum(sum, -1), "P(sum)", "cumsum of terms");
    ts_tensor *by[] = { list };
    ts_index_options options = TS_INIT(ts_index_options);
    options.index = by;
    options.count = 1;
    family_plan(t, ts_index(columns, &options), "S(1)", "index");
    family_plan(t, ts_index(rows_, &options), "P(sum)", "index of the cut dim");
}

/* ---- masks ----------------------------------------------------------------------------------- */

TS_TEST_RANKS(masked_select_on_any_placement, 1, 2, 3, 4)
{
    static const char *const places[] = { "R", "S(0)", "S(1)", "P(sum)", "P(max)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_meta bits = { .shape = TS_SHAPE(8, 12), .dtype = TS_DTYPE_BOOL };
    ts_tensor *want = ts_masked_select(matrix(mesh, NULL), family_input(mesh, 2, &bits, NULL));
    TEST_EQ(t, ts_tensor_shape(want).extent[0], 32);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 3; j++) {
            ts_tensor *mask = family_input(mesh, 2, &bits, places[j]);
            family_same(t, ts_masked_select(matrix(mesh, places[i]), mask), want, places[i]);
        }
    ts_tensor *rows_ = ts_masked_select(matrix(mesh, "S(0)"), family_input(mesh, 2, &bits, "S(0)"));
    if (t->count > 1) family_plan(t, rows_, "S(0)", "masked_select of rows");
    bits.shape = TS_SHAPE(12); /* broadcast */
    ts_tensor *line = family_input(mesh, 2, &bits, NULL);
    TEST_EQ(t, ts_tensor_shape(ts_masked_select(matrix(mesh, "S(0)"), line)).extent[0], 32);
    ts_tensor *none =
        ts_masked_select(matrix(mesh, "S(0)"), ts_logical_and(line, ts_logical_not(line)));
    TEST_EQ(t, ts_tensor_shape(none).extent[0], 0);
}

TS_TEST_RANKS(masked_select_on_two_axes, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=2, y=2");
    ts_meta bits = { .shape = TS_SHAPE(8, 12), .dtype = TS_DTYPE_BOOL };
    ts_tensor *want = ts_masked_select(matrix(mesh, NULL), family_input(mesh, 2, &bits, NULL));
    const char *const places[] = { "S(0), S(0)", "S(0)[1], S(0)[0]", "S(0), R", "S(0), S(1)" };
    for (int i = 0; i < 4; i++) {
        ts_tensor *mask = family_input(mesh, 2, &bits, places[i]);
        family_same(t, ts_masked_select(matrix(mesh, places[i]), mask), want, places[i]);
    }
}

/* ---- scans of other dtypes ------------------------------------------------------------------- */

TS_TEST_RANKS(scans_of_other_dtypes, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_dtype dtypes[] = { TS_DTYPE_BOOL, TS_DTYPE_I32, TS_DTYPE_F32, TS_DTYPE_C64 };
    for (int k = 0; k < 4; k++) {
        ts_meta meta = { .shape = TS_SHAPE(7, 2), .dtype = (int32_t)dtypes[k] };
        ts_tensor *x = family_input(mesh, 1, &meta, "S(0)"),
                  *r = family_input(mesh, 1, &meta, NULL);
        family_same(t, ts_cumsum(x, 0), ts_cumsum(r, 0), "cumsum");
        TEST_EQ(t, ts_tensor_dtype(ts_cumsum(x, 0)), k < 2 ? TS_DTYPE_I64 : dtypes[k]);
        if (dtypes[k] == TS_DTYPE_C64) continue;
        ts_tensor *a, *b, *c, *d;
        TEST_OK(t, ts_cummin(x, 0, &a, &b));
        TEST_OK(t, ts_cummin(r, 0, &c, &d));
        family_same(t, a, c, "cummin");
        family_same(t, b, d, "indices of cummin");
    }
}

/* ---- in place -------------------------------------------------------------------------------- */

TS_TEST_RANKS(in_place_forms_write_into_x, 1, 2, 3)
{
    static const char *const places[] = { "R", "S(0)", "S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int p = 0; p < 3; p++) {
        ts_tensor *x = matrix(mesh, places[p]), *whole = matrix(mesh, NULL);
        ts_tensor *index = indices(mesh, TS_SHAPE(8, 12), NULL),
                  *list = indices(mesh, TS_SHAPE(8), NULL);
        ts_tensor *want = ts_scatter_add(whole, 0, index, whole);
        TEST_CHECK(t, ts_scatter_add_(x, 0, index, whole) == x);
        family_same(t, x, want, "scatter_add_");
        want = ts_index_add(want, 0, list, whole);
        TEST_CHECK(t, ts_index_add_(x, 0, list, whole) == x);
        family_same(t, x, want, "index_add_");
        want = ts_scatter(want, 1, index, whole);
        TEST_CHECK(t, ts_scatter_(x, 1, index, whole) == x);
        family_same(t, x, want, "scatter_");
        ts_index_options options = TS_INIT(ts_index_options);
        options.index = &list;
        options.count = 1;
        want = ts_index_put(want, whole, &options);
        TEST_CHECK(t, ts_index_put_(x, whole, &options) == x);
        family_same(t, x, want, "index_put_");
    }
    ts_tensor *product = matrix(mesh, "P(prod)"), *whole = matrix(mesh, NULL);
    if (t->count > 1) /* it would have to be reduced: refused, and nothing is lost */
        FAMILY_REFUSES(t, "would have to leave its layout",
                       ts_index_add_(product, 0, indices(mesh, TS_SHAPE(8), NULL), whole));
    family_same(t, product, whole, "the refused tensor");
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *by_index_select(ts_tensor *x, void *context)
{
    ts_mesh *mesh = ts_tensor_mesh(x);
    return ts_index_select(x, 0, indices(mesh, TS_SHAPE(7), context));
}
static ts_tensor *by_index_add(ts_tensor *x, void *context)
{
    ts_mesh *mesh = ts_tensor_mesh(x);
    return ts_index_add(x, 0, indices(mesh, TS_SHAPE(5), context), ts_mul_scalar(x, 3));
}
static ts_tensor *by_gather(ts_tensor *x, void *context)
{
    return ts_gather(x, 0, indices(ts_tensor_mesh(x), TS_SHAPE(7, 3), context));
}
static ts_tensor *by_scatter(ts_tensor *x, void *context)
{
    ts_tensor *index = indices(ts_tensor_mesh(x), TS_SHAPE(1, 4), context);
    return ts_scatter(x, 0, index, ts_mul_scalar(x, 3));
}
static ts_tensor *by_scatter_value(ts_tensor *x, void *context)
{
    return ts_scatter_value(x, 0, indices(ts_tensor_mesh(x), TS_SHAPE(3, 4), context), 7);
}
static ts_tensor *by_scatter_add(ts_tensor *x, void *context)
{
    ts_tensor *index = indices(ts_tensor_mesh(x), TS_SHAPE(4, 3), context);
    return ts_scatter_add(x, 0, index, ts_mul_scalar(x, 3));
}
static ts_tensor *by_index(ts_tensor *x, void *context)
{
    ts_tensor *by = indices(ts_tensor_mesh(x), TS_SHAPE(3, 2), context);
    return ts_index(x, TS_OPTIONS(ts_index_options, .index = &by, .count = 1));
}
static ts_tensor *by_index_put(ts_tensor *x, void *context)
{
    int64_t dim = 0;
    ts_tensor *by = indices(ts_tensor_mesh(x), TS_SHAPE(1), context);
    ts_tensor *values = ts_mul_scalar(ts_select(x, 0, 4), 3);
    ts_tensor *added = ts_index_put(
        x, values,
        TS_OPTIONS(ts_index_options, .index = &by, .dims = &dim, .count = 1, .accumulate = 1));
    by = ts_add_scalar(ts_mul_scalar(by, 0), 1);
    return ts_index_put(added, values, TS_OPTIONS(ts_index_options, .index = &by, .count = 1));
}
static ts_tensor *by_take(ts_tensor *x, void *context)
{
    return ts_take(x, indices(ts_tensor_mesh(x), TS_SHAPE(6, 2), context));
}
static ts_tensor *by_mask(ts_tensor *x, void *context)
{
    ts_meta bits = { .shape = TS_SHAPE(5, 4), .dtype = TS_DTYPE_BOOL };
    return ts_masked_select(x, family_input(ts_tensor_mesh(x), 1, &bits, context));
}
static ts_tensor *by_cumsum(ts_tensor *x, void *context)
{
    (void)context;
    return ts_add(ts_cumsum(x, 0), ts_cumsum(x, 1));
}
static ts_tensor *by_cumprod(ts_tensor *x, void *context)
{
    (void)context;
    return ts_cumprod(ts_add_scalar(x, -1.5), 0); /* has zeros */
}
static ts_tensor *by_cummax(ts_tensor *x, void *context)
{
    ts_tensor *values;
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.step = 0.01; /* no ties */
    (void)context;
    x = ts_add(x, ts_arange(ts_tensor_mesh(x), TS_DTYPE_F64, TS_SHAPE(5, 4), NULL, &range));
    (void)ts_cummax(x, 0, &values, NULL);
    return values;
}

TS_TEST_RANKS(gradients, 1, 2, 3)
{
    static const struct {
        const char *name;
        family_fn fn;
    } row[] = { { "index_select", by_index_select },
                { "index_add", by_index_add },
                { "gather", by_gather },
                { "scatter", by_scatter },
                { "scatter_add", by_scatter_add },
                { "scatter_value", by_scatter_value },
                { "index", by_index },
                { "index_put", by_index_put },
                { "take", by_take },
                { "masked_select", by_mask },
                { "cumsum", by_cumsum },
                { "cumprod", by_cumprod },
                { "cummax", by_cummax } };
    static const char *const places[] = { "R", "S(0)", "S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    char whole[] = "R", cut[] = "S(0)";
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++)
        for (int p = 0; p < 3; p++)
            for (int c = 0; c < 2; c++)
                family_gradient(t, mesh, row[k].fn, c ? cut : whole, TS_SHAPE(5, 4), places[p],
                                row[k].name);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TS_TEST_RANKS(refusals_name_the_values, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = matrix(mesh, "S(0)"), *list = indices(mesh, TS_SHAPE(6), NULL);
    ts_tensor *far = ts_add_scalar(list, 5), *square = indices(mesh, TS_SHAPE(8, 12), NULL);
    ts_tensor *negative = ts_add_scalar(ts_mul_scalar(list, 0), -1);
    FAMILY_REFUSES(t, "index_select: index 8 is out of range for extent 8",
                   ts_index_select(x, 0, far));
    FAMILY_REFUSES(t, "index -1 is out of range for extent 8", ts_index_select(x, 0, negative));
    FAMILY_REFUSES(t, "index 12 is out of range for extent 8",
                   ts_gather(x, 0, ts_mul_scalar(square, 4)));
    FAMILY_REFUSES(t, "indices are integers, not f64", ts_gather(x, 0, x));
    FAMILY_REFUSES(t, "the index (6) has not as many dims as (8, 12)", ts_gather(x, 0, list));
    FAMILY_REFUSES(t, "is longer than (8, 12) in dim 0",
                   ts_gather(x, 1, indices(mesh, TS_SHAPE(9, 1), NULL)));
    FAMILY_REFUSES(t, "a source of (8, 12) for 6 indices", ts_index_add(x, 0, list, x));
    FAMILY_REFUSES(t, "the index has 2 dims, not 1", ts_index_select(x, 0, square));
    FAMILY_REFUSES(t, "index 96 is out of range for extent 96",
                   ts_take(x, ts_add_scalar(ts_mul_scalar(list, 0), 96)));
    FAMILY_REFUSES(t, "f32 cannot be put into f64",
                   ts_scatter(x, 0, square, ts_cast(x, TS_DTYPE_F32)));
    FAMILY_REFUSES(t, "the mask is bool, not f64", ts_masked_select(x, x));
    FAMILY_REFUSES(t, "cummax: is not defined for c64, but for f64 f32",
                   ts_cummax(ts_cast(x, TS_DTYPE_C64), 0, &(ts_tensor *){ NULL }, NULL));
    /* In place: nothing is written when an index is out of range. */
    ts_tensor *kept = matrix(mesh, NULL);
    FAMILY_REFUSES(
        t, "index 8 is out of range for extent 8",
        ts_index_add_(x, 0, far, ts_narrow(matrix(mesh, NULL), 0, (ts_interval){ 0, 6 })));
    family_same(t, x, kept, "after a refused index_add_");
    TEST_OK(t, ts_rank_status(t->me));
}

/* Ranks that see different indices fail alone: the others hear of it in their next step together,
 * or at the next call after the news has reached them. */
TS_TEST_RANKS(a_bad_index_on_one_rank, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = 3;
    ts_tensor *index = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(6), "S(0)", &range); /* 3 .. 8 */
    ts_tensor *from = matrix(mesh, NULL);
    /* Who leaves it first may have failed before the others leave: they hear of it here then. */
    (void)ts_group_barrier(ts_group_world(t->me), NULL);
    ts_tensor *y = ts_index_select(from, 0, index);
    if (y) (void)ts_tensor_wait(y); /* kernels that run later tell here */
    const ts_error *error = ts_rank_error(t->me);
    bool last = t->index == t->count - 1;
    TEST_CHECK(t, !last || error);
    if (last || error) TEST_SAYS(t, error ? error->text : "none", "index 8 is out of range");
    if (last) TEST_EQ(t, error->blast, TS_BLAST_LOCAL);
    ts_tensor *sum = ts_tensor_full(ts_sum(matrix(mesh, "S(0)"), NULL, 0, 0));
    if (sum) (void)ts_tensor_wait(sum);
    TEST_SAYS(t, ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "none",
              "index 8 is out of range");
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, ts_tensor_wait(ts_tensor_full(matrix(mesh, "S(0)"))));
}
