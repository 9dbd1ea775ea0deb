/* SPDX-License-Identifier: Apache-2.0 */
/* lists.c - operators whose kernels go by lists, lines and bins, at sizes that samples do not have:
 * on one rank, where the host may do nothing of it, and on three that share the GPU and a tensor.
 */
#include "gpu/gpu.h"

#include <math.h>

#include "tessera/tensor.h"

/* Of a tensor that is placed as `cut` says; indices are whole on every rank. */
typedef ts_tensor *(*make_fn)(ts_mesh *m, const char *cut);

static ts_tensor *reals(ts_mesh *m, ts_shape shape, const char *cut)
{
    return ts_randn(m, TS_DTYPE_F32, shape, cut);
}

static ts_tensor *wholes(ts_mesh *m, int64_t low, int64_t high, ts_shape shape, const char *cut)
{
    return ts_randint(m, TS_DTYPE_I64, shape, cut,
                      TS_OPTIONS(ts_random_options, .low = low, .high = high));
}

/* ---- by indices ------------------------------------------------------------------------------ */

static ts_tensor *make_get(ts_mesh *m, const char *cut)
{
    ts_tensor *at[] = { wholes(m, -40, 40, TS_SHAPE(50, 1), "R"),
                        wholes(m, -7, 7, TS_SHAPE(90), "R") };
    return ts_index(reals(m, TS_SHAPE(40, 7, 3), cut),
                    TS_OPTIONS(ts_index_options, .index = at, .count = 2));
}

static ts_tensor *put(ts_mesh *m, const char *cut, int64_t claims, int32_t accumulate)
{
    ts_tensor *at[] = { wholes(m, -5, 5, TS_SHAPE(claims), "R") };
    return ts_index_put(
        reals(m, TS_SHAPE(5, 3), cut), reals(m, TS_SHAPE(claims, 3), "R"),
        TS_OPTIONS(ts_index_options, .index = at, .count = 1, .accumulate = accumulate));
}

static ts_tensor *make_put(ts_mesh *m, const char *cut)
{
    return put(m, cut, 5000, 0);
}

/* Lists of more claims than a block has bits for at a time. */
static ts_tensor *make_put_sums(ts_mesh *m, const char *cut)
{
    return put(m, cut, 300000, 1);
}

static ts_tensor *make_scatter(ts_mesh *m, const char *cut)
{
    return ts_scatter(reals(m, TS_SHAPE(50, 60), cut), 0, wholes(m, 0, 50, TS_SHAPE(700, 33), "R"),
                      reals(m, TS_SHAPE(700, 40), "R"));
}

/* So many that walks would be long. */
static ts_tensor *make_scatter_add(ts_mesh *m, const char *cut)
{
    return ts_scatter_add(reals(m, TS_SHAPE(500, 12), cut), 0,
                          wholes(m, 0, 500, TS_SHAPE(2900, 12), "R"),
                          reals(m, TS_SHAPE(2900, 12), "R"));
}

static ts_tensor *make_index_add(ts_mesh *m, const char *cut)
{
    return ts_index_add(reals(m, TS_SHAPE(500, 12), cut), 0, wholes(m, 0, 500, TS_SHAPE(2900), "R"),
                        reals(m, TS_SHAPE(2900, 12), "R"));
}

static ts_tensor *make_take(ts_mesh *m, const char *cut)
{
    return ts_take(reals(m, TS_SHAPE(40, 7, 3), cut), wholes(m, -840, 840, TS_SHAPE(3000), "R"));
}

static ts_tensor *make_nll(ts_mesh *m, const char *cut)
{
    return ts_nll_loss_with(reals(m, TS_SHAPE(5000, 11), cut),
                            wholes(m, 0, 11, TS_SHAPE(5000), cut),
                            TS_OPTIONS(ts_cross_entropy_options, .ignore_index = 4,
                                       .weight = ts_rand(m, TS_DTYPE_F32, TS_SHAPE(11), "R")));
}

/* ---- lines and groups ------------------------------------------------------------------------ */

static ts_tensor *extremes(ts_tensor *x, bool least, bool places)
{
    ts_tensor *values = NULL, *at = NULL;
    (void)(least ? ts_cummin(x, 1, &values, &at) : ts_cummax(x, 1, &values, &at));
    return places ? at : values;
}

static ts_tensor *make_cummax(ts_mesh *m, const char *cut)
{
    return extremes(reals(m, TS_SHAPE(9, 1000), cut), false, false);
}

/* Many are equal, and some are none: the square root of what is below 0. */
static ts_tensor *make_cummin_places(ts_mesh *m, const char *cut)
{
    ts_tensor *x = ts_cast(wholes(m, -1, 300, TS_SHAPE(9, 1000), cut), TS_DTYPE_F32);
    return extremes(ts_sqrt(x), true, true);
}

static ts_tensor *make_group_norm(ts_mesh *m, const char *cut)
{
    return ts_group_norm(reals(m, TS_SHAPE(5, 12, 50, 11), cut), reals(m, TS_SHAPE(12), "R"),
                         reals(m, TS_SHAPE(12), "R"),
                         TS_OPTIONS(ts_group_norm_options, .groups = 4, .epsilon = 1e-5));
}

static ts_tensor *make_norm(ts_mesh *m, const char *cut)
{
    return ts_vector_norm(ts_mul_scalar(reals(m, TS_SHAPE(9, 3000), cut), 1e10),
                          TS_OPTIONS(ts_norm_options, .p = 3));
}

/* Of sizes that are 30 orders apart: powers of the largest one's multiples would overflow. */
static ts_tensor *make_norm_low(ts_mesh *m, const char *cut)
{
    return ts_vector_norm(ts_exp(ts_mul_scalar(reals(m, TS_SHAPE(9, 300), cut), 12)),
                          TS_OPTIONS(ts_norm_options, .p = -2.5));
}

/* Few rows for each of many results: by units, and of odd lengths. */
static ts_tensor *make_middle(ts_mesh *m, const char *cut)
{
    return ts_sum(reals(m, TS_SHAPE(300, 5, 64), cut), (int64_t[]){ 1 }, 1, 0);
}

static ts_tensor *make_middle_narrow(ts_mesh *m, const char *cut)
{
    ts_tensor *x = ts_cast(reals(m, TS_SHAPE(30, 7, 9, 72), cut), TS_DTYPE_BF16);
    return ts_sum(x, (int64_t[]){ 2 }, 1, 0);
}

static ts_tensor *make_middle_most(ts_mesh *m, const char *cut)
{
    ts_tensor *x = ts_cast(reals(m, TS_SHAPE(30, 64, 40), cut), TS_DTYPE_BF16);
    return ts_amax(x, (int64_t[]){ 1 }, 1, 0);
}

static ts_tensor *make_middle_odd(ts_mesh *m, const char *cut)
{
    return ts_sum(reals(m, TS_SHAPE(300, 5, 67), cut), (int64_t[]){ 1 }, 1, 0);
}

static ts_tensor *make_bernoulli(ts_mesh *m, const char *cut)
{
    return ts_bernoulli(ts_rand(m, TS_DTYPE_F32, TS_SHAPE(50, 70), cut));
}

/* ---- grouped products ------------------------------------------------------------------------ */

/* Rows times the matrix of their group, one of seven: [rows, inner] to [rows, outer]. */
typedef struct grouping {
    ts_dtype dtype;
    int64_t rows, inner, outer;
    bool turned; /* matrices are contiguous along outer */
} grouping;

static ts_tensor *numbers(ts_mesh *m, ts_dtype dtype, ts_shape shape, const char *cut)
{
    return ts_cast(reals(m, shape, cut), dtype);
}

static ts_tensor *matrices(ts_mesh *m, const grouping *g, const char *cut)
{
    if (g->turned)
        return ts_transpose(numbers(m, g->dtype, TS_SHAPE(7, g->inner, g->outer), cut), 1, 2);
    return numbers(m, g->dtype, TS_SHAPE(7, g->outer, g->inner), cut);
}

static ts_tensor *grouped(ts_mesh *m, const char *cut, grouping g)
{
    return ts_grouped_linear(numbers(m, g.dtype, TS_SHAPE(g.rows, g.inner), cut),
                             matrices(m, &g, "R"), wholes(m, 0, 7, TS_SHAPE(g.rows), cut));
}

static ts_tensor *grouped_sums(ts_mesh *m, const char *cut, grouping g)
{
    return ts_grouped_linear_backward(numbers(m, g.dtype, TS_SHAPE(g.rows, g.outer), cut),
                                      numbers(m, g.dtype, TS_SHAPE(g.rows, g.inner), cut),
                                      wholes(m, 0, 6, TS_SHAPE(g.rows), cut), 7);
}

#define MAKE_GROUPED(name, call, ...)                                                              \
    static ts_tensor *make_##name(ts_mesh *m, const char *cut)                                     \
    {                                                                                              \
        return call(m, cut, (grouping){ __VA_ARGS__ });                                            \
    }
MAKE_GROUPED(grouped_f32, grouped, TS_DTYPE_F32, 300, 70, 90, false)
MAKE_GROUPED(grouped_f64, grouped, TS_DTYPE_F64, 300, 70, 90, true)
MAKE_GROUPED(grouped_bf16, grouped, TS_DTYPE_BF16, 1500, 200, 136, false)
MAKE_GROUPED(grouped_f16, grouped, TS_DTYPE_F16, 900, 64, 300, false)
MAKE_GROUPED(grouped_odd, grouped, TS_DTYPE_BF16, 400, 201, 131, false)
MAKE_GROUPED(grouped_turned, grouped, TS_DTYPE_BF16, 1500, 140, 200, true)
MAKE_GROUPED(grouped_many, grouped, TS_DTYPE_BF16, 9001, 16, 24, false)
MAKE_GROUPED(sums_f32, grouped_sums, TS_DTYPE_F32, 300, 70, 90, false)
MAKE_GROUPED(sums_bf16, grouped_sums, TS_DTYPE_BF16, 1500, 200, 136, false)
MAKE_GROUPED(sums_f16, grouped_sums, TS_DTYPE_F16, 90, 264, 8, false)

/* Each row for three choices, without a copy, and matrices that ranks share. */
static ts_tensor *make_grouped_choices(ts_mesh *m, const char *cut)
{
    grouping g = { TS_DTYPE_BF16, 500, 96, 160, false };
    ts_tensor *x = numbers(m, g.dtype, TS_SHAPE(g.rows, 1, g.inner), "R");
    return ts_grouped_linear(ts_expand(x, TS_SHAPE(g.rows, 3, g.inner)), matrices(m, &g, cut),
                             wholes(m, 0, 7, TS_SHAPE(g.rows, 3), "R"));
}

/* Seven groups that end somewhere before row 1400. */
static ts_tensor *ends_of(ts_mesh *m)
{
    return ts_cumsum(wholes(m, 0, 200, TS_SHAPE(7), "R"), 0);
}

static ts_tensor *make_grouped_mm(ts_mesh *m, const char *cut)
{
    return ts_grouped_mm(numbers(m, TS_DTYPE_BF16, TS_SHAPE(1500, 72), cut),
                         numbers(m, TS_DTYPE_BF16, TS_SHAPE(7, 72, 264), "R"), ends_of(m));
}

static ts_tensor *make_grouped_mm_experts(ts_mesh *m, const char *cut)
{
    return ts_grouped_mm(numbers(m, TS_DTYPE_F32, TS_SHAPE(1500, 33), "R"),
                         numbers(m, TS_DTYPE_F32, TS_SHAPE(7, 33, 50), cut), ends_of(m));
}

static ts_tensor *make_grouped_mm_sums(ts_mesh *m, const char *cut)
{
    ts_tensor *out = NULL;
    ts_tensor *in[] = { numbers(m, TS_DTYPE_BF16, TS_SHAPE(1500, 72), cut),
                        numbers(m, TS_DTYPE_BF16, TS_SHAPE(1500, 264), cut), ends_of(m) };
    (void)ts_op_call_json(ts_op_find(tsi_rank_current(), "grouped_mm_backward"), in, 3,
                          "{\"groups\": 7}", &out);
    return out;
}

/* ---- counts ---------------------------------------------------------------------------------- */

static ts_tensor *make_histc(ts_mesh *m, const char *cut)
{
    return ts_histc(reals(m, TS_SHAPE(40, 500), cut), TS_OPTIONS(ts_histc_options, .bins = 10));
}

static ts_tensor *make_many_bins(ts_mesh *m, const char *cut)
{
    return ts_histc(reals(m, TS_SHAPE(40, 500), cut),
                    TS_OPTIONS(ts_histc_options, .bins = 5000, .min = -1, .max = 2));
}

static ts_tensor *make_bincount(ts_mesh *m, const char *cut)
{
    return ts_bincount(wholes(m, 0, 90, TS_SHAPE(20000), cut), NULL, 100);
}

static ts_tensor *make_weighted(ts_mesh *m, const char *cut)
{
    return ts_bincount(wholes(m, 0, 90, TS_SHAPE(20000), cut), reals(m, TS_SHAPE(20000), cut), 0);
}

static ts_tensor *make_unique(ts_mesh *m, const char *cut)
{
    return ts_count_unique(wholes(m, -5000, 5000, TS_SHAPE(40, 500), cut));
}

/* `off`: how far, as a part of the largest element; 0: the same numbers. */
static const struct {
    const char *name;
    make_fn make;
    double off;
} cases[] = {
    { "index", make_get, 0 },
    { "index_put", make_put, 0 },
    { "index_put, sums", make_put_sums, 1e-4 },
    { "scatter", make_scatter, 0 },
    { "scatter_add", make_scatter_add, 1e-5 },
    { "index_add", make_index_add, 1e-5 },
    { "take", make_take, 0 },
    { "nll_loss", make_nll, 1e-6 },
    { "cummax", make_cummax, 0 },
    { "cummin, places", make_cummin_places, 0 },
    { "group_norm", make_group_norm, 1e-5 },
    { "vector_norm", make_norm, 1e-5 },
    { "vector_norm, a negative power", make_norm_low, 1e-5 },
    { "sum of the middle", make_middle, 1e-6 },
    { "sum of the middle, bf16", make_middle_narrow, 0x1p-8 },
    { "amax of the middle", make_middle_most, 0 },
    { "sum of the middle, odd", make_middle_odd, 1e-6 },
    { "bernoulli", make_bernoulli, 0 },
    { "grouped_linear, f32", make_grouped_f32, 1e-5 },
    { "grouped_linear, f64", make_grouped_f64, 1e-13 },
    { "grouped_linear, bf16", make_grouped_bf16, 0x1p-8 },
    { "grouped_linear, f16", make_grouped_f16, 0x1p-10 },
    { "grouped_linear, odd rows", make_grouped_odd, 0x1p-8 },
    { "grouped_linear, turned", make_grouped_turned, 0x1p-8 },
    { "grouped_linear, many rows", make_grouped_many, 0x1p-8 },
    { "grouped_linear, choices", make_grouped_choices, 0x1p-8 },
    { "grouped_linear_backward, f32", make_sums_f32, 1e-5 },
    { "grouped_linear_backward, bf16", make_sums_bf16, 0x1p-8 },
    { "grouped_linear_backward, f16", make_sums_f16, 0x1p-10 },
    { "grouped_mm, bf16", make_grouped_mm, 0x1p-8 },
    { "grouped_mm, f32, experts cut", make_grouped_mm_experts, 1e-5 },
    { "grouped_mm_backward, bf16", make_grouped_mm_sums, 0x1p-8 },
    { "histc", make_histc, 0 },
    { "histc of many bins", make_many_bins, 0 },
    { "bincount", make_bincount, 0 },
    { "bincount with weights", make_weighted, 1e-5 },
    { "count_unique", make_unique, 0 },
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct results {
    const char *cut;
    int64_t count[CASES];
    double *value[CASES];
} results;

static void keep(results *out, int c, ts_tensor *whole)
{
    ts_shape shape = ts_tensor_shape(whole);
    ts_array array = TS_INIT(ts_array);
    out->count[c] = ts_shape_count(&shape);
    out->value[c] = calloc((size_t)out->count[c] + 1, sizeof(double));
    array.meta = (ts_meta){ .shape = shape, .dtype = TS_DTYPE_F64 };
    array.data = out->value[c];
    (void)ts_tensor_read(whole, &array);
}

static ts_status compute(ts_rank *me, void *context)
{
    results *out = context, mine = { .cut = NULL };
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    for (int c = 0; c < CASES && ts_rank_status(me) == TS_OK; c++) {
        ts_scope scope = ts_scope_open(me, NULL);
        ts_tensor *whole = ts_tensor_full(cases[c].make(mesh, out->cut));
        if (whole) keep(ts_rank_index(me) == 0 ? out : &mine, c, whole);
        free(mine.value[c]);
        (void)ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

static void check(test *t, int c, const results *got, const results *want)
{
    double most = 0, worst = 0;
    bool both = got->value[c] && want->value[c] && got->count[c] == want->count[c];
    for (int64_t i = 0; both && i < want->count[c]; i++) {
        double off = fabs(got->value[c][i] - want->value[c][i]);
        most = fmax(most, fabs(want->value[c][i]));
        if (!(off <= worst)) worst = off;
    }
    TEST_SAY(t, both && worst <= cases[c].off * most, "%s, %s: off by %g of %g%s", cases[c].name,
             want->cut, worst, most, both ? "" : ", or no result");
}

static void compare(test *t, int64_t ranks, const char *cut)
{
    results host = { .cut = cut }, gpu = { .cut = cut };
    gpu_launch(t, "cpu", ranks, 3, compute, &host);
    gpu_launch(t, "cuda", ranks, 3, compute, &gpu);
    for (int c = 0; c < CASES; c++) {
        check(t, c, &gpu, &host);
        free(host.value[c]);
        free(gpu.value[c]);
    }
}

TS_TEST_LONG(long_lists_are_the_hosts, 120)
{
    (void)setenv("TESSERA_FALLBACK", "forbid", 1);
    compare(t, 1, "R");
    (void)unsetenv("TESSERA_FALLBACK");
}

TS_TEST_LONG(long_lists_of_ranks_that_share_them, 120)
{
    compare(t, 3, "S(0)");
}
