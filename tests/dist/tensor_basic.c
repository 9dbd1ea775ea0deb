/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_basic.c - making, moving, reading tensors: the smallest programs of tensor.h and scope.h.
 */
#include "harness/test.h"
#include "tessera/tensor.h"

/* Every element of a replicated arange-like tensor has its own index as value. */
static bool is_iota(ts_tensor *t)
{
    ts_array view = TS_INIT(ts_array);
    if (test_view(t, &view) != TS_OK) return false;
    int64_t count = ts_shape_count(&view.meta.shape);
    for (int64_t i = 0; i < count; i++)
        if (((const float *)view.data)[i] != (float)i) return false;
    return true;
}

TS_TEST_RANKS(gather_of_every_shard, 1, 2, 3, 4, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const char *place[] = { "S(0)", "S(1)", "R", "SS(0,2)", "SS(1,3)", "HT(0)" };
    for (size_t i = 0; i < sizeof place / sizeof place[0]; i++) {
        ts_scope s = ts_scope_open(t->me, "case");
        ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(7, 5), place[i], NULL);
        ts_tensor *y = ts_tensor_full(x);
        TEST_SAY(t, y && is_iota(y), "%s: %s", place[i],
                 ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "wrong values");
        ts_scope_close(s);
    }
}

TS_TEST_RANKS(partial_sum_reduces, 1, 2, 3, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(7, 5), "P(sum)");
    ts_array view = TS_INIT(ts_array);
    TEST_OK(t, test_view(x, &view));
    for (int64_t i = 0; i < 35; i++)
        ((float *)view.data)[i] = (float)(i * (t->index + 1));
    TEST_OK(t, test_written(x, &view));
    int64_t factor = t->count * (t->count + 1) / 2;
    const char *place[] = { "R", "S(0)", "S(1)" };
    for (int k = 0; k < 3; k++) {
        ts_tensor *y = ts_tensor_full(ts_redistribute(x, place[k]));
        ts_array full = TS_INIT(ts_array);
        TEST_OK(t, test_view(y, &full));
        for (int64_t i = 0; full.data && i < 35; i++)
            TEST_EQ(t, ((const float *)full.data)[i], i * factor);
    }
}

enum { UNIFORM, NORMAL, WHOLE };

static ts_tensor *drawn(int kind, ts_mesh *mesh, ts_dtype dtype, const char *place)
{
    ts_random_options r = TS_INIT(ts_random_options);
    r.low = 0;
    r.high = 100;
    r.stream = "same";
    if (kind == WHOLE) return ts_randint(mesh, dtype, TS_SHAPE(9, 10), place, &r);
    return kind == NORMAL ? ts_randn_with(mesh, dtype, TS_SHAPE(9, 10), place, &r)
                          : ts_rand_with(mesh, dtype, TS_SHAPE(9, 10), place, &r);
}

/* The bits of every kind of number and dtype, placed in every way. */
static void compare_draws(test *t, const char *mesh_text, const char *const *place, int places)
{
    static const struct {
        int kind;
        ts_dtype dtype;
    } draws[] = { { UNIFORM, TS_DTYPE_F32 }, { UNIFORM, TS_DTYPE_F64 }, { UNIFORM, TS_DTYPE_BF16 },
                  { UNIFORM, TS_DTYPE_C64 }, { NORMAL, TS_DTYPE_F32 },  { NORMAL, TS_DTYPE_F64 },
                  { NORMAL, TS_DTYPE_F16 },  { NORMAL, TS_DTYPE_C128 }, { WHOLE, TS_DTYPE_I32 },
                  { WHOLE, TS_DTYPE_I64 },   { WHOLE, TS_DTYPE_U8 } };
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text), *self = ts_mesh_self(t->me);
    for (size_t d = 0; d < sizeof draws / sizeof *draws; d++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_dtype dtype = draws[d].dtype;
        ts_array want = TS_INIT(ts_array), have = TS_INIT(ts_array);
        TEST_OK(t, test_view(drawn(draws[d].kind, self, dtype, NULL), &want));
        for (int k = 0; k < places; k++) {
            ts_tensor *x = ts_tensor_full(drawn(draws[d].kind, mesh, dtype, place[k]));
            TEST_OK(t, test_view(x, &have));
            TEST_SAY(t,
                     have.data && want.data &&
                         memcmp(have.data, want.data, 90 * ts_dtype_size(dtype)) == 0,
                     "kind %d of %s as (%s) on %s differs", draws[d].kind, ts_dtype_name(dtype),
                     place[k], mesh_text);
        }
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(random_is_independent_of_the_mesh, 1, 2, 3, 4, 6, 8)
{
    static const char *const one[] = { "R", "S(0)", "S(1)", "SS(0,3)", "SS(1,2)", "HT(1)" };
    static const char *const two[] = { "S(0), S(1)", "S(1), S(0)",  "S(0), S(0)",
                                       "R, S(0)",    "HT(1), S(0)", "S(0)[1], S(0)[0]" };
    compare_draws(t, "x=*", one, 6);
    compare_draws(t, "x=*, y=1", two, 6);
    if (t->count % 2 == 0) compare_draws(t, "x=2, y=*", two, 6);
    if (t->count % 4 == 0) compare_draws(t, "x=*, y=2", two, 6);
    if (t->count % 3 == 0) compare_draws(t, "x=3, y=*", two, 6);
}

static ts_status index_product(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = global[0] * 100 + global[1];
    return TS_OK;
}

TS_TEST_RANKS(distribute_from_a_root, 1, 2, 3, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    int64_t whole[7 * 5];
    for (int64_t i = 0; i < 35; i++)
        whole[i] = i / 5 * 100 + i % 5;
    ts_array array = TS_INIT(ts_array);
    array.data = whole;
    array.meta = (ts_meta){ .shape = TS_SHAPE(7, 5), .dtype = TS_DTYPE_I64 };
    const char *place[] = { "S(0)", "S(1)", "R", "SS(0,2)" };
    for (int k = 0; k < 4; k++) {
        const ts_sharding *sharding = ts_sharding_get(mesh, place[k]);
        ts_tensor *x = ts_distribute(&array, sharding, array.meta, t->count - 1);
        ts_tensor *y = ts_from_function(index_product, NULL, sharding, array.meta);
        ts_array a = TS_INIT(ts_array), b = TS_INIT(ts_array);
        TEST_OK(t, test_view(x, &a));
        TEST_OK(t, test_view(y, &b));
        int64_t n = ts_shape_count(&a.meta.shape);
        TEST_SAY(t, n == 0 || memcmp(a.data, b.data, (size_t)n * 8) == 0, "%s", place[k]);
    }
}

TS_TEST_RANKS(from_local_believes_nobody, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_sharding *rows = ts_sharding_get(mesh, "S(0)");
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    options.agree = mesh;
    ts_scope s = ts_scope_open_with(t->me, &options);
    ts_tensor *block =
        ts_zeros(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(t->index == 1 ? 3 : 2, 4), NULL);
    TEST_CHECK(t, ts_from_local(block, rows, TS_SHAPE(2 * t->count, 4)) == NULL);
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_SHAPE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "rank 1: the block is (3, 4)");
    TEST_OK(t, ts_rank_status(t->me));
    block = ts_zeros(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(2, 4), NULL);
    TEST_CHECK(t, ts_from_local(block, rows, TS_SHAPE(2 * t->count, 4)) != NULL);
}

TS_TEST_RANKS(a_catching_scope_undoes_writes, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *v = ts_variable(t->me);
    TEST_OK(t, ts_tensor_write(v, ts_full(1.0, mesh, TS_DTYPE_F32, TS_SHAPE(1), NULL)));
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    options.agree = mesh;
    ts_scope s = ts_scope_open_with(t->me, &options);
    TEST_OK(t, ts_tensor_write(v, ts_full(2.0, mesh, TS_DTYPE_F32, TS_SHAPE(1), NULL)));
    ts_rank_fail(t->me, TS_ERR_ARG, "no");
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_ARG);
    double value = 0;
    TEST_OK(t, ts_tensor_item(v, &value));
    TEST_CHECK(t, value == 1.0);
    ts_tensor_release(v);
}

TS_TEST_RANKS(a_scope_that_agrees_fails_alike, 2, 3)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    options.agree = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open_with(t->me, &options);
    if (t->index == 1) ts_rank_fail(t->me, TS_ERR_STATE, "rank 1 alone");
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "rank 1 alone");
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(a_catching_scope_takes_its_own_errors, 1, 3)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_rank_fail(t->me, TS_ERR_ARG, "before");
    ts_scope s = ts_scope_open_with(t->me, &options);
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_ARG);
    TEST_STATUS(t, ts_rank_status(t->me), TS_ERR_ARG); /* it was not raised inside */
    s = ts_scope_open_with(t->me, &options);
    TEST_OK(t, ts_rank_recover(t->me));
    ts_rank_fail(t->me, TS_ERR_STATE, "inside");
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_STATE);
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(ranks_outside_a_mesh_never_hang, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=2 : 2 0");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(5), "S(0)", NULL);
    ts_tensor *y = ts_tensor_full(x);
    TEST_CHECK(t, y != NULL);
    TEST_CHECK(t, !ts_mesh_is_member(mesh) || is_iota(y));
    ts_mesh *other = ts_mesh_create(t->me, "y=2 : 1 2");
    ts_tensor *z = ts_redistribute_to(x, ts_sharding_get(other, "R"));
    TEST_CHECK(t, z != NULL);
    TEST_CHECK(t, !ts_mesh_is_member(other) || is_iota(z));
    char text[512];
    TEST_OK(t, ts_tensor_text(z, text, sizeof text));
}

/* ---- functions that fail --------------------------------------------------------------------- */

static ts_status fails_at(const int64_t *global, void *element, void *context)
{
    ts_rank *me = context;
    *(float *)element = 0;
    if (global[0] != 2 || global[1] != 1) return TS_OK;
    return me ? ts_rank_fail(me, TS_ERR_IO, "page %lld is torn", (long long)global[0]) : TS_ERR_IO;
}

TS_TEST_RANKS(friction_4_an_element_function_fails, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_sharding *whole = ts_sharding_get(mesh, "R");
    ts_meta meta = { .shape = TS_SHAPE(4, 3), .dtype = TS_DTYPE_F32 };
    const char *words[] = { "from_function: the function returned TS_ERR_IO for element (2, 1)",
                            "page 2 is torn" };
    for (int i = 0; i < 2; i++) {
        ts_group_barrier(ts_group_world(t->me), NULL);
        TEST_CHECK(t, ts_from_function(fails_at, i ? t->me : NULL, whole, meta) == NULL);
        /* Of a rank that is late the other's failure may be heard first: the same sentence. */
        ts_status status = ts_rank_status(t->me);
        TEST_CHECK(t, status == TS_ERR_IO || (t->count > 1 && status == TS_ERR_PEER));
        TEST_SAYS(t, ts_rank_error(t->me)->text, words[i]);
        TEST_OK(t, ts_rank_recover(t->me));
    }
    ts_sharding_release(whole);
}

/* Friction 3: numbers that a double cannot hold. */
TS_TEST_RANKS(a_whole_number_keeps_its_bits, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const int64_t odd = (INT64_C(1) << 53) + 1;
    ts_number got;
    ts_tensor *x = ts_full_number(ts_number_int(odd), mesh, TS_DTYPE_I64, TS_SHAPE(5), "S(0)");
    int64_t block[5];
    ts_array to = TS_INIT(ts_array);
    to.data = block;
    to.meta = (ts_meta){ .shape = ts_tensor_shape(ts_tensor_local(x)), .dtype = TS_DTYPE_I64 };
    TEST_OK(t, ts_tensor_read(x, &to));
    for (int64_t i = 0; i < ts_shape_count(&to.meta.shape); i++)
        TEST_EQ(t, block[i], odd);
    ts_tensor *one = ts_full_number(ts_number_int(-odd), mesh, TS_DTYPE_I64, TS_SHAPE_SCALAR, NULL);
    TEST_OK(t, ts_tensor_number(one, &got));
    TEST_CHECK(t, got.kind == TS_NUMBER_INT && got.whole == -odd);
    ts_tensor *range = ts_arange_number(ts_number_int(odd), ts_number_int(3), mesh, TS_DTYPE_I64,
                                        TS_SHAPE(5), "S(0)");
    TEST_OK(t, ts_tensor_read(ts_tensor_full(range),
                              &(ts_array){ .struct_size = sizeof(ts_array),
                                           .data = block,
                                           .meta = { TS_SHAPE(5), TS_DTYPE_I64, 0 } }));
    for (int64_t i = 0; i < 5; i++)
        TEST_EQ(t, block[i], odd + 3 * i);
    ts_tensor *z =
        ts_full_number(ts_number_complex(1.5, -2), mesh, TS_DTYPE_C64, TS_SHAPE(1), NULL);
    TEST_OK(t, ts_tensor_number(z, &got));
    TEST_CHECK(t, got.kind == TS_NUMBER_COMPLEX && got.real == 1.5 && got.imaginary == -2);
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    TEST_CHECK(t, !ts_full_number(ts_number_complex(1, 2), mesh, TS_DTYPE_F32, TS_SHAPE(1), NULL));
    TEST_EQ(t, (int)ts_scope_close(scope), TS_ERR_DTYPE);
}

/* Repair 18: the same draw on two meshes of one world. */
TS_TEST_RANKS(a_seed_and_a_stream_draw_alike_on_two_meshes, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*"), *self = ts_mesh_self(t->me);
    ts_random_options options = TS_INIT(ts_random_options);
    options.stream = "weights";
    options.seed = 7;
    options.seed_is_given = 1;
    options.high = 1000;
    typedef ts_tensor *(*draw_fn)(ts_mesh *, ts_dtype, ts_shape, const char *,
                                  const ts_random_options *);
    const draw_fn draw[] = { ts_rand_with, ts_randn_with, ts_randint };
    for (int k = 0; k < 3; k++) {
        ts_dtype dtype = k == 2 ? TS_DTYPE_I64 : TS_DTYPE_F64;
        ts_array a = TS_INIT(ts_array), b = TS_INIT(ts_array), c = TS_INIT(ts_array);
        ts_tensor *cut = draw[k](mesh, dtype, TS_SHAPE(7, 5), "S(0)", &options);
        (void)ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(2), NULL); /* other draws are no matter */
        ts_tensor *alone = draw[k](self, dtype, TS_SHAPE(7, 5), NULL, &options);
        TEST_OK(t, test_view(ts_tensor_full(cut), &a));
        TEST_OK(t, test_view(alone, &b));
        TEST_CHECK(t, memcmp(a.data, b.data, 35 * sizeof(double)) == 0);
        options.seed = 8;
        TEST_OK(t, test_view(draw[k](self, dtype, TS_SHAPE(7, 5), NULL, &options), &c));
        TEST_CHECK(t, memcmp(c.data, b.data, 35 * sizeof(double)) != 0);
        options.seed = 7;
    }
}

/* What is refused is refused by ranks that have nothing to fill, too. */
TS_TEST_RANKS(ranges_of_random_numbers_are_refused_alike, 1, 3)
{
    ts_mesh *mesh[] = { ts_mesh_create(t->me, "x=*"), ts_mesh_create(t->me, "x=1 : 0") };
    ts_random_options options = TS_INIT(ts_random_options);
    options.high = 257;
    for (int k = 0; k < 6; k++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        ts_mesh *on = mesh[k & 1];
        ts_tensor *x = k / 2 == 0   ? ts_randint(on, TS_DTYPE_U8, TS_SHAPE(2), "S(0)", &options)
                       : k / 2 == 1 ? ts_randint(on, TS_DTYPE_U8, TS_SHAPE(0), "S(0)", &options)
                                    : ts_rand(on, TS_DTYPE_I32, TS_SHAPE(2), "S(0)");
        TEST_CHECK(t, x == NULL);
        TEST_STATUS(t, ts_scope_close(scope), k / 2 == 2 ? TS_ERR_DTYPE : TS_ERR_ARG);
    }
}

/* The same text on any number of ranks: of -0, and of tensors of many dims. */
TS_TEST_RANKS(texts_are_those_of_one_rank, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    char text[16384];
    TEST_OK(t, ts_tensor_text(ts_full(-0.0, mesh, TS_DTYPE_F32, TS_SHAPE(2), "S(0)"), text,
                              sizeof text));
    TEST_SAYS(t, text, "[-0 -0]");
    ts_shape wide = { .ndim = 8 };
    for (int32_t d = 0; d < 8; d++)
        wide.extent[d] = d == 7 ? 9 : 3;
    TEST_OK(t, ts_tensor_text(ts_ones(mesh, TS_DTYPE_U8, wide, "S(7)"), text, sizeof text));
    TEST_SAYS(t, text, "[1 ... 1]");
    TEST_OK(t, ts_tensor_text(ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(7, 7, 7, 7, 7), "S(0)", NULL),
                              text, sizeof text));
    TEST_SAYS(t, text, "[    0     1 ...     5     6]");
    TEST_SAYS(t, text, "16806]");
}

TS_TEST_RANKS(an_error_inside_is_told_by_who_closes_it, 1, 2)
{
    ts_scope outer = ts_scope_open(t->me, "outer");
    (void)ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    (void)ts_scope_open(t->me, "innermost");
    (void)ts_rank_fail(t->me, TS_ERR_ARG, "inside");
    TEST_STATUS(t, ts_scope_close(outer), TS_ERR_ARG);
    TEST_OK(t, ts_rank_status(t->me));
}
