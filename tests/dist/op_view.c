/* SPDX-License-Identifier: Apache-2.0 */
/* op_view.c - parts, joins and other indices of dims: every row on placements of one and two axes
 * against replicas, what stays and what moves, aliasing, gradients, refusals. */
#include "dist/op_family.h"
#include "tessera/event.h"

static const char *const rows[] = {
    "slice",   "slice_backward", "select",  "diagonal",  "diagonal_backward",
    "pad",     "flip",           "roll",    "repeat",    "repeat_interleave",
    "cat",     "stack",          "tril",    "triu",      "reshape",
    "permute", "transpose",      "squeeze", "unsqueeze", "expand",
    NULL
};

TS_TEST_RANKS(rows_on_one_axis, 1, 2, 3, 5)
{
    family_sweep(t, ts_mesh_create(t->me, "x=*"), rows, 24);
}

TS_TEST_RANKS(rows_on_two_axes, 4, 6)
{
    family_sweep(t, ts_mesh_create(t->me, t->count == 4 ? "x=2, y=2" : "x=2, y=3"), rows, 30);
}

TS_TEST_RANKS(rows_on_other_cuts, 2, 3)
{
    family_cuts(t, ts_mesh_create(t->me, "x=*"), rows);
}

/* A block of such a cut counts its dims as one, on an axis of one rank too. */
TS_TEST_RANKS(cuts_over_several_dims_on_an_axis_of_one_rank, 1, 2, 3)
{
    static const char *const places[] = { "S(0-1), R", "R, S(0-1)", "S(0-1), S(0-1)",
                                          "S(0-1), S(2)", "S(1-2), S(0)" };
    char axes[32];
    snprintf(axes, sizeof axes, "a=1, b=%lld", (long long)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, axes);
    ts_shape shape = TS_SHAPE(2, 3, 2);
    ts_tensor *b = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(3, 1), "R, R", NULL);
    ts_tensor *r = ts_arange(mesh, TS_DTYPE_F64, shape, "R, R", NULL);
    for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
        ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, shape, places[k], NULL);
        ts_tensor *got[] = { ts_clone(x), ts_add(x, b), ts_transpose(x, 0, 1), ts_cumsum(x, 1),
                             ts_reshape(x, TS_SHAPE(3, 4)) };
        ts_tensor *want[] = { r, ts_add(r, b), ts_transpose(r, 0, 1), ts_cumsum(r, 1),
                              ts_reshape(r, TS_SHAPE(3, 4)) };
        for (size_t i = 0; i < sizeof got / sizeof got[0]; i++) {
            int same = 0;
            TEST_OK(t, ts_equal(got[i], want[i], &same));
            TEST_SAY(t, same, "(%s), operator %zu of the list", places[k], i);
        }
    }
    ts_mesh_release(mesh);
}

/* ---- what stays, and what is a view ---------------------------------------------------------- */

static ts_tensor *matrix(ts_mesh *mesh, const char *place)
{
    ts_meta meta = { .shape = TS_SHAPE(8, 12), .dtype = TS_DTYPE_F64 };
    return family_input(mesh, 0, &meta, place);
}

static int64_t moved_by(test *t, const tsi_op_desc *op, ts_tensor *const *in, int32_t count,
                        const void *attributes, int32_t *algorithm)
{
    tsi_op_args args = { op, in, count, 0, attributes };
    tsi_op_plan *plan = tsi_op_plan_make(t->me, &args);
    TEST_CHECK(t, plan != NULL);
    int64_t bytes = plan ? plan->moved_total + plan->algorithm_bytes : -1;
    *algorithm = plan ? plan->algorithm : -1;
    tsi_op_plan_destroy(plan);
    return bytes;
}

TS_TEST_RANKS(a_slice_of_a_sharded_dim_exchanges_rows, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=4");
    ts_tensor *x = matrix(mesh, "S(0)");
    int64_t attributes[] = { 0, 1, 5, 1, 0 };
    int32_t algorithm;
    /* ranks 0, 1, 2, 3 get rows 1, 2, 3, 4; they have 0-1, 2-3, 4-5, 6-7 */
    int64_t bytes = moved_by(t, &tsi_op_slice, &x, 1, attributes, &algorithm);
    TEST_EQ(t, algorithm, 1);
    TEST_EQ(t, bytes, 2 * 12 * 8);
    family_plan(
        t, ts_slice(x, 0, TS_OPTIONS(ts_slice_options, .start = 1, .end = 5, .end_is_given = 1)),
        "S(0)", "slice");
    int64_t whole[] = { 0, 0, 8, 1, 0 };
    TEST_EQ(t, moved_by(t, &tsi_op_slice, &x, 1, whole, &algorithm), 0);
    TEST_EQ(t, algorithm, 0);
    int64_t stepped[] = { 0, 0, 8, 2, 0 }; /* rows 0, 2, 4, 6: one each, all at home */
    TEST_EQ(t, moved_by(t, &tsi_op_slice, &x, 1, stepped, &algorithm), 0);
    struct {
        tsi_dims dims;
    } turned = { { .count = 1 } };
    TEST_EQ(t, moved_by(t, &tsi_op_flip, &x, 1, &turned, &algorithm), 8 * 12 * 8);
    struct {
        tsi_dims shifts, dims;
    } shifted = { { .count = 1, .value = { 1 } }, { .count = 1 } };
    TEST_EQ(t, moved_by(t, &tsi_op_roll, &x, 1, &shifted, &algorithm), 4 * 12 * 8);
}

TS_TEST_RANKS(placements_that_pass, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *columns = matrix(mesh, "S(1)"), *rows_ = matrix(mesh, "S(0)"),
              *sum = matrix(mesh, "P(sum)"), *most = matrix(mesh, "P(max)"),
              *whole = matrix(mesh, NULL);
    ts_slice_options part = TS_INIT(ts_slice_options);
    part.start = 1;
    family_plan(t, ts_slice(columns, 0, &part), "S(1)", "slice of another dim");
    family_plan(t, ts_slice(most, 0, &part), "P(max)", "slice of a pending maximum");
    family_plan(t, ts_select(columns, 0, -1), "S(0)", "select before the cut dim");
    family_plan(t, ts_select(columns, 1, 3), "P(sum)", "select of the cut dim");
    family_plan(t, ts_tril(columns, 0), "S(1)", "tril");
    family_plan(t, ts_tril(most, 0), "P(max)", "tril of a pending maximum");
    family_plan(t, ts_pad(sum, (int64_t[]){ 1, 1 }, 2, 0.0), "P(sum)", "pad with zero");
    family_plan(t, ts_pad(most, (int64_t[]){ 1, 1 }, 2, 3.0), "P(max)", "pad with three");
    family_plan(t, ts_pad(columns, (int64_t[]){ 0, 0, 1, 0 }, 4, 3.0), "S(1)", "pad elsewhere");
    ts_tensor *two[] = { whole, most }, *cut[] = { rows_, rows_ }, *mixed[] = { whole, columns };
    family_plan(t, ts_cat(two, 2, 0), "P(max)", "cat of R and P(max)");
    family_plan(t, ts_cat(cut, 2, 0), "S(0)", "cat along the cut dim");
    family_plan(t, ts_cat(mixed, 2, 0), "S(1)", "cat of R and another cut dim");
    family_plan(t, ts_stack(cut, 2, 0), "S(1)", "stack");
    family_plan(t, ts_stack(cut, 2, -1), "S(0)", "stack behind");
    family_plan(t, ts_flip(sum, (int64_t[]){ 0 }, 1), "P(sum)", "flip");
}

TS_TEST_RANKS(parts_are_views, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = matrix(mesh, "S(0)"), *parts[3], *lines[12];
    TEST_OK(t, ts_chunk(x, 1, 3, parts));
    for (int i = 0; i < 3; i++)
        TEST_CHECK(t, parts[i] && parts[i]->array->storage == x->array->storage);
    TEST_OK(t, ts_unbind(x, 1, 12, lines));
    TEST_CHECK(t, lines[7] && lines[7]->array->storage == x->array->storage);
    TEST_OK(t, ts_split(x, -1, (int64_t[]){ 5, 0, 7 }, 3, parts));
    ts_tensor *again = ts_cat(parts, 3, 1), *stacked = ts_stack(lines, 12, 1);
    family_same(t, again, x, "cat of the parts");
    family_same(t, stacked, x, "stack of the lines");
    ts_tensor *square = ts_narrow(x, 1, (ts_interval){ 2, 10 });
    if (t->count == 1) {
        ts_tensor *diagonal = ts_diagonal(square, 1, 0, 1);
        TEST_CHECK(t, diagonal && diagonal->array->storage == x->array->storage);
    }
    ts_tensor *self = ts_tril_(x, 0);
    TEST_CHECK(t, self == x);
    family_same(t, x, ts_tril(matrix(mesh, NULL), 0), "tril_");
}

/* An index of a cut dim is a pending sum of copies, also where one rank has the whole dim: what is
 * written into it is not seen in what it was taken from. */
TS_TEST_RANKS(an_index_of_a_cut_dim_is_a_copy, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *row = ts_full(3.0, mesh, TS_DTYPE_F64, TS_SHAPE(1, 4), "S(0)");
    ts_tensor *line[] = { ts_select(row, 0, 0), ts_diagonal(row, 0, 0, 1) };
    ts_tensor *more = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(6), "S(0)");
    for (int i = 0; i < 2; i++) {
        ts_tensor *at = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(6), "S(0)");
        ts_tensor *sum = ts_index_add_(line[i], 0, at, more);
        family_plan(t, sum, "P(sum)", "terms");
        family_same(t, ts_narrow(sum, 0, (ts_interval){ 0, 1 }),
                    ts_full(9.0, mesh, TS_DTYPE_F64, TS_SHAPE(1), NULL), "the sum");
        family_same(t, row, ts_full(3.0, mesh, TS_DTYPE_F64, TS_SHAPE(1, 4), NULL), "its source");
    }
}

/* Rows and columns of several intervals, evenly spaced or not. */
TS_TEST_RANKS(triangles_of_scattered_rows, 1, 2, 3)
{
    static const char *const places[] = { "SS(0,2)", "SS(1,3)", "HT(0)", "HT(1)", "S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t i = 0; i < TSI_COUNT_OF(places); i++)
        for (int64_t diagonal = -9; diagonal <= 13; diagonal += 2) {
            ts_tensor *x = matrix(mesh, places[i]), *whole = matrix(mesh, NULL);
            family_same(t, ts_tril(x, diagonal), ts_tril(whole, diagonal), places[i]);
            family_same(t, ts_triu(x, diagonal), ts_triu(whole, diagonal), places[i]);
        }
}

/* A layout that no rule can keep is refused before anything is written: an update is never lost. */
TS_TEST_RANKS(no_update_is_lost, 2, 3)
{
    static const char *const places[] = { "S(0-1)", "SS(0,2)", "HT(1)", "P(max)", "P(prod)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int p = 0; p < 5; p++) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        ts_tensor *x = matrix(mesh, places[p]), *self = ts_triu_(x, 1);
        TEST_CHECK(t, self == x || ts_rank_status(t->me) == TS_ERR_POLICY);
        if (self) family_same(t, x, ts_triu(matrix(mesh, NULL), 1), places[p]);
        (void)ts_scope_close(scope);
    }
}

TS_TEST_RANKS(flat_roll_and_wider_repeat, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = matrix(mesh, "S(0)"), *flat = ts_reshape(matrix(mesh, NULL), TS_SHAPE(96));
    ts_tensor *want = ts_roll(flat, (int64_t[]){ -5 }, (int64_t[]){ 0 }, 1);
    family_same(t, ts_roll(x, (int64_t[]){ -5 }, NULL, 0), want, "roll without dims");
    ts_tensor *wide = ts_repeat(x, (int64_t[]){ 2, 1, 1 }, 3);
    TEST_EQ(t, ts_tensor_shape(wide).ndim, 3);
    family_same(t, ts_select(wide, 0, 1), x, "repeat into a new dim");
}

/* A dim that a reshape leaves alone keeps its cut, of whatever kind: nothing moves. */
TS_TEST_RANKS(reshape_keeps_cuts_of_other_dims, 2, 3)
{
    static const char *const places[][3] = { { "HT(0)", "RS(0:3,2|0,3)", "S(0)" },
                                             { "HT(0)", "RS(0:3,0,2|1,1,1)", "S(0)" } };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int i = 0; i < 3; i++) {
        ts_tensor *x = matrix(mesh, places[t->count - 2][i]);
        ts_shape s = ts_tensor_shape(x);
        uint64_t since = ts_rank_event(t->me);
        ts_tensor *y = ts_reshape(x, TS_SHAPE(1, s.extent[0], 2, s.extent[1] / 2));
        ts_tensor *z = ts_reshape(y, s);
        ts_counts counts = TS_INIT(ts_counts);
        TEST_OK(t, ts_rank_counts(t->me, since, &counts));
        TEST_EQ(t, counts.row_count, 0);
        family_same(t, z, matrix(mesh, NULL), places[t->count - 2][i]);
    }
}

/* Other dtypes travel bit for bit. */
TS_TEST_RANKS(other_dtypes, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_dtype dtypes[] = { TS_DTYPE_BOOL, TS_DTYPE_I32, TS_DTYPE_BF16, TS_DTYPE_U8 };
    for (int k = 0; k < 4; k++) {
        ts_meta meta = { .shape = TS_SHAPE(5, 4), .dtype = (int32_t)dtypes[k] };
        ts_tensor *x = family_input(mesh, 1, &meta, "S(0)"),
                  *r = family_input(mesh, 1, &meta, NULL);
        int64_t zero = 0;
        family_same(t, ts_flip(x, &zero, 1), ts_flip(r, &zero, 1), "flip");
        family_same(t, ts_select(x, 0, 3), ts_select(r, 0, 3), "select");
        family_same(t, ts_pad(x, (int64_t[]){ 0, 0, 2, 1 }, 4, 1),
                    ts_pad(r, (int64_t[]){ 0, 0, 2, 1 }, 4, 1), "pad");
        family_same(t, ts_diagonal(x, -1, 0, 1), ts_diagonal(r, -1, 0, 1), "diagonal");
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *by_slice(ts_tensor *x, void *context)
{
    return ts_slice(x, 0, TS_OPTIONS(ts_slice_options, .start = 1, .step = *(int *)context));
}
static ts_tensor *by_select(ts_tensor *x, void *context)
{
    return ts_select(x, *(int *)context % 2, 2);
}
static ts_tensor *by_diagonal(ts_tensor *x, void *context)
{
    return ts_diagonal(x, *(int *)context - 2, 0, 1);
}
static ts_tensor *by_pad(ts_tensor *x, void *context)
{
    int64_t pad[] = { 1, -1, *(int *)context, 2 };
    return ts_pad(x, pad, 4, 0.5);
}
static ts_tensor *by_flip(ts_tensor *x, void *context)
{
    int64_t dims[] = { *(int *)context % 2 };
    return ts_flip(x, dims, 1);
}
static ts_tensor *by_roll(ts_tensor *x, void *context)
{
    int64_t shifts[] = { *(int *)context, 2 }, dims[] = { 0, 1 };
    return ts_roll(x, shifts, dims, 2);
}
static ts_tensor *by_repeat(ts_tensor *x, void *context)
{
    int64_t repeats[] = { *(int *)context, 2 };
    return ts_repeat(x, repeats, 2);
}
static ts_tensor *by_interleave(ts_tensor *x, void *context)
{
    return ts_repeat_interleave(x, 2, *(int *)context % 2);
}
static ts_tensor *by_cat(ts_tensor *x, void *context)
{
    ts_tensor *in[] = { x, ts_mul_scalar(x, 2), x };
    return ts_cat(in, 3, *(int *)context % 2);
}
static ts_tensor *by_stack(ts_tensor *x, void *context)
{
    ts_tensor *in[] = { x, ts_mul_scalar(x, 2) };
    return ts_stack(in, 2, *(int *)context - 1);
}
static ts_tensor *by_triu(ts_tensor *x, void *context)
{
    return ts_triu(x, *(int *)context - 2);
}

TS_TEST_RANKS(gradients, 1, 2, 3)
{
    static const struct {
        const char *name;
        family_fn fn;
    } row[] = { { "slice", by_slice },
                { "select", by_select },
                { "diagonal", by_diagonal },
                { "pad", by_pad },
                { "flip", by_flip },
                { "roll", by_roll },
                { "repeat", by_repeat },
                { "cat", by_cat },
                { "stack", by_stack },
                { "triu", by_triu },
                { "repeat_interleave", by_interleave } };
    static const char *const places[] = { "R", "S(0)", "S(1)" };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++)
        for (int p = 0; p < 3; p++)
            for (int context = 1; context < 3; context++)
                family_gradient(t, mesh, row[k].fn, &context, TS_SHAPE(5, 4), places[p],
                                row[k].name);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TS_TEST_RANKS(refusals_name_the_values, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = matrix(mesh, "S(0)"), *parts[4];
    ts_tensor *clash[] = { x, ts_select(x, 0, 0) }, *mixed[] = { x, ts_cast(x, TS_DTYPE_F32) };
    FAMILY_REFUSES(t, "slice: dim 2 is out of range for 2 dims", ts_slice(x, 2, NULL));
    FAMILY_REFUSES(t, "step -1 is not positive",
                   ts_slice(x, 0, TS_OPTIONS(ts_slice_options, .step = -1)));
    FAMILY_REFUSES(t, "index 12 is out of range for dim 1 of extent 12", ts_select(x, 1, 12));
    FAMILY_REFUSES(t, "flatten: dim 2 is out of range for 2 dims", ts_flatten(x, 0, 2));
    FAMILY_REFUSES(t, "flatten: dim 1 does not come before dim 0", ts_flatten(x, 1, 0));
    FAMILY_REFUSES(t, "unflatten: dim 0 of extent 8 does not become (3, -1)",
                   ts_unflatten(x, 0, TS_SHAPE(3, -1)));
    FAMILY_REFUSES(t, "6 from 3 on do not lie in dim 0 of extent 8",
                   ts_narrow(x, 0, (ts_interval){ 3, 9 }));
    FAMILY_REFUSES(t, "3 parts of 11 in all, but dim 1 has 12",
                   ts_split(x, 1, (int64_t[]){ 5, 0, 6 }, 3, parts));
    FAMILY_REFUSES(t, "dim 0 has extent 8, room is for 4", ts_unbind(x, 0, 4, parts));
    FAMILY_REFUSES(t, "input 1 is (12), which does not go with (8, 12)", ts_cat(clash, 2, 0));
    FAMILY_REFUSES(t, "input 1 is f32, the others f64", ts_cat(mixed, 2, 0));
    FAMILY_REFUSES(t, "3 numbers are not pairs", ts_pad(x, (int64_t[]){ 1, 2, 3 }, 3, 0));
    FAMILY_REFUSES(t, "pad: -5 before and -4 after dim 0 of extent 8",
                   ts_pad(x, (int64_t[]){ 0, 0, -5, -4 }, 4, 0));
    FAMILY_REFUSES(t, "flip: dim 0 is given twice", ts_flip(x, (int64_t[]){ 0, -2 }, 2));
    FAMILY_REFUSES(t, "roll: dim -3 is out of range",
                   ts_roll(x, (int64_t[]){ 1 }, (int64_t[]){ -3 }, 1));
    FAMILY_REFUSES(t, "repeat: 1 numbers for a tensor of 2 dims",
                   ts_repeat(x, (int64_t[]){ 1 }, 1));
    FAMILY_REFUSES(t, "both dims are 1", ts_diagonal(x, 0, 1, -1));
    FAMILY_REFUSES(t, "tril: needs two dims, the tensor has 1", ts_tril(ts_select(x, 0, 0), 0));
    TEST_OK(t, ts_rank_status(t->me));
}
