/* SPDX-License-Identifier: Apache-2.0 */
/* op_policy.c - implicit moves: forbidden ones fail at the call, with its place in the program, its
 * bytes and the fix, in gradients too; a budget warns; all of them are counted. */
#include "op_family.h"
#include "tessera/model.h"
#include "tessera/op.h"
#include "tessera/op_query.h"

static ts_scope open_with(test *t, int32_t moves, int64_t bytes)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    options.implicit_moves = moves;
    options.implicit_bytes_max = bytes;
    return ts_scope_open_with(t->me, &options);
}

static int64_t moved(test *t)
{
    ts_op_cache_stats stats = TS_INIT(ts_op_cache_stats);
    TEST_OK(t, ts_op_cache_statistics(t->me, &stats));
    return stats.implicit_bytes;
}

static const char *place_text(int line, char *out, size_t size)
{
    snprintf(out, size, "op_policy.c:%d", line);
    return out;
}

TS_TEST_RANKS(a_forbidden_gather_fails_at_the_call, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    int64_t before = moved(t);
    ts_scope s = open_with(t, TS_MOVES_FORBID, 0);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(0)", NULL);
    ts_tensor *w = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(4, 6), "R", NULL);
    ts_tensor *h = ts_relu(ts_matmul(x, w)); /* free: the batch stays cut */
    TEST_CHECK(t, h != NULL);
    ts_tensor *y = ts_tensor_full(ts_redistribute(h, "S(1)")); /* asked for: never forbidden */
    TEST_CHECK(t, y != NULL);
    ts_tensor *other = ts_redistribute(h, "S(1)");
    char here[64];
    place_text(__LINE__ + 1, here, sizeof here);
    TEST_CHECK(t, ts_add(h, other) == NULL);
    const ts_error *error = ts_rank_error(t->me);
    TEST_CHECK(t, error && error->status == TS_ERR_POLICY);
    TEST_SAYS(t, error->text, "add at ");
    TEST_SAYS(t, error->text, here);
    TEST_SAYS(t, error->text, " B");
    TEST_SAYS(t, error->text, "ts_redistribute(x, \"S(");
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_POLICY);
    TEST_EQ(t, moved(t), before); /* nothing was moved */
    TEST_OK(t, ts_rank_status(t->me));
}

/* An algorithm communicates by itself: the policy judges its bytes. */
TS_TEST_RANKS(a_forbidden_algorithm_fails_at_the_call, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = open_with(t, TS_MOVES_FORBID, 0);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(256, 512), "S(1)", NULL);
    TEST_CHECK(t, ts_softmax(x, 0) != NULL);
    TEST_CHECK(t, ts_softmax(x, 1) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "by its own algorithm");
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_POLICY);
}

/* The forward call is free, its gradient is not: dy comes cut the other way. */
TS_TEST_RANKS(a_forbidden_move_of_a_gradient_fails_too, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = open_with(t, TS_MOVES_FORBID, 0);
    ts_tensor *x = ts_watch(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(0)", NULL));
    ts_tape_begin(t->me);
    char here[64];
    place_text(__LINE__ + 1, here, sizeof here);
    ts_tensor *y = ts_exp(x);
    ts_backward_options options = TS_INIT(ts_backward_options);
    options.seed = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(1)", NULL);
    TEST_STATUS(t, ts_backward(y, &options), TS_ERR_POLICY);
    const ts_error *error = ts_rank_error(t->me);
    TEST_SAYS(t, error->text, "backward of exp: ");
    TEST_SAYS(t, error->text, here); /* of the forward call, not a line of the library */
    TEST_SAYS(t, error->text, "ts_redistribute(x, ");
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_POLICY);
    /* The same where it is allowed. */
    ts_scope free_one = open_with(t, TS_MOVES_ALLOW, 0);
    x = ts_watch(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(0)", NULL));
    ts_tape_begin(t->me);
    int64_t before = moved(t);
    options.seed = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(1)", NULL);
    TEST_OK(t, ts_backward(ts_exp(x), &options));
    TEST_CHECK(t, moved(t) > before);
    TEST_OK(t, ts_scope_close(free_one));
}

/* A whole step of a model whose weights are cut where its plan would not cut them: it fails at the
 * call, before anything moved; where it is allowed, it is done and its bytes are told. */
TS_TEST_RANKS(a_step_of_a_model_fails_at_the_call, 2)
{
    ts_model_config c = TS_INIT(ts_model_config);
    c.family = TS_MODEL_GPT2;
    c.vocab = 16;
    c.hidden = 8;
    c.intermediate = 8;
    c.layers = 1;
    c.heads = c.kv_heads = 2;
    c.head_dim = 4;
    ts_model_options options = TS_INIT(ts_model_options);
    options.plan = "*: S(0)";
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    ts_model *model = ts_model_create(mesh, &c, &options);
    ts_tensor *ids = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(2, 4), "R");
    int64_t before = moved(t);
    ts_scope forbids = open_with(t, TS_MOVES_FORBID, 0);
    char here[64];
    place_text(__LINE__ + 1, here, sizeof here);
    TEST_CHECK(t, ts_model_loss(model, ids, ids) == NULL);
    const ts_error *error = ts_rank_error(t->me);
    TEST_SAYS(t, error->text, here);
    TEST_SAYS(t, error->text, " B");
    TEST_SAYS(t, error->text, "forbidden here");
    TEST_STATUS(t, ts_scope_close(forbids), TS_ERR_POLICY);
    TEST_EQ(t, moved(t), before);
    ts_scope allows = open_with(t, TS_MOVES_ALLOW, 0);
    ts_tape_begin(t->me);
    TEST_OK(t, ts_backward(ts_model_loss(model, ids, ids), NULL));
    TEST_CHECK(t, moved(t) > before);
    TEST_OK(t, ts_scope_close(allows));
    ts_model_destroy(model);
}

/* A budget: below it silence, above it a warning and the result. Inner scopes inherit. */
TS_TEST_RANKS(a_budget_warns_and_goes_on, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(0)", NULL);
    ts_tensor *y = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(1)", NULL);
    for (int64_t budget = 0; budget < 2; budget++) {
        ts_scope s = open_with(t, TS_MOVES_WARN, budget * 1000000);
        ts_scope inner = ts_scope_open(t->me, "inner");
        TEST_CHECK(t, ts_add(x, y) != NULL);
        ts_scope_close(inner);
        TEST_OK(t, ts_scope_close(s));
    }
    ts_scope forbids = open_with(t, TS_MOVES_FORBID, 0);
    ts_scope inner = ts_scope_open(t->me, "inner");
    TEST_CHECK(t, ts_add(x, y) == NULL); /* inherited */
    ts_scope_close(inner);
    TEST_STATUS(t, ts_scope_close(forbids), TS_ERR_POLICY);
}

/* Allowed moves add up: an all-to-all of 8x4 doubles between two ranks is half of them. */
TS_TEST_RANKS(allowed_moves_are_counted, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(0)", NULL);
    ts_tensor *y = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(1)", NULL);
    int64_t before = moved(t);
    for (int i = 0; i < 3; i++)
        TEST_CHECK(t, ts_add(x, y) != NULL);
    TEST_EQ(t, moved(t) - before, t->count == 1 ? 0 : 3 * 8 * 4 * 8 / 2);
    char text[512] = "";
    TEST_OK(t, ts_op_cache_text(t->me, text, sizeof text));
    TEST_SAYS(t, text, "implicit_bytes");
}

/* What an algorithm of the operator's own moves is refused where moves are, and counted as they
 * are.
 */
TS_TEST_RANKS(algorithms_are_counted, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4096, 4), "S(0)", NULL);
    int64_t before = moved(t);
    TEST_CHECK(t, ts_softmax(x, 0) != NULL); /* two-phase: maxima and sums, not the rows */
    int64_t by_algorithm = moved(t) - before;
    TEST_CHECK(t, by_algorithm > 0 && by_algorithm < 4096 * 4 * 8);
    ts_scope forbids = open_with(t, TS_MOVES_FORBID, 0);
    TEST_CHECK(t, ts_softmax(x, 0) == NULL);
    TEST_STATUS(t, ts_scope_close(forbids), TS_ERR_POLICY);
    TEST_EQ(t, moved(t) - before, by_algorithm);
}

/* ---- the cache of plans ---------------------------------------------------------------------- */

static ts_op_cache_stats cache_of(test *t)
{
    ts_op_cache_stats stats = TS_INIT(ts_op_cache_stats);
    TEST_OK(t, ts_op_cache_statistics(t->me, &stats));
    return stats;
}

/* A new size is a new plan, but not a new choice where every input stays as it is. */
TS_TEST_RANKS(new_sizes_need_no_search, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *w = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "R");
    for (int64_t n = 0; n < 20; n++) {
        ts_op_cache_stats before = cache_of(t);
        ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(n, 4), "S(0)");
        TEST_CHECK(t, ts_add(x, x) && ts_mm(x, w) && ts_softmax(x, 1) && ts_add(x, x));
        ts_op_cache_stats after = cache_of(t);
        TEST_EQ(t, after.misses - before.misses, 3);
        TEST_EQ(t, after.matched - before.matched, 3);
        TEST_EQ(t, after.hits - before.hits, 1);
        ts_tensor *y = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(n, 4), "S(1)");
        TEST_CHECK(t, ts_mul(x, y) != NULL); /* one of them moves: a search */
        TEST_EQ(t, cache_of(t).matched - after.matched, t->count == 1 ? 1 : 0);
    }
}

/* Plans beyond the capacity push out older ones; what they take stays bounded. */
TS_TEST_RANKS(the_cache_is_bounded, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(0)");
    ts_op_cache_stats stats = cache_of(t);
    int64_t capacity = stats.capacity, bytes = 0;
    for (int64_t n = 0; n < 3 * capacity; n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        TEST_CHECK(t, ts_mul_scalar(x, (double)n) != NULL);
        (void)ts_scope_close(scope);
        if (n == capacity) bytes = cache_of(t).bytes;
    }
    stats = cache_of(t);
    TEST_CHECK(t, stats.live > capacity / 2 && stats.live <= capacity);
    TEST_EQ(t, stats.misses, stats.live + stats.evicted);
    TEST_CHECK(t, stats.bytes <= 2 * bytes && stats.bytes / stats.live < 4096);
    int64_t hits = stats.hits;
    TEST_CHECK(t, ts_mul_scalar(x, (double)(3 * capacity - 1)) != NULL); /* the latest is there */
    TEST_EQ(t, cache_of(t).hits, hits + 1);
}

/* ---- plans that differ ----------------------------------------------------------------------- */

TS_TEST_RANKS(a_rank_with_another_plan_is_named, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(0)", NULL);
    ts_tensor *y = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(8, 4), "S(1)", NULL);
    TEST_OK(t, ts_op_check_plans(t->me, 1));
    TEST_CHECK(t, ts_add(x, y) && ts_add(x, x) && ts_softmax(y, 1));
    ts_tensor *z = ts_clamp(x, 0, t->index == 1 ? 2 : 1); /* rank 1 says something else */
    TEST_CHECK(t, z == NULL);
    const ts_error *error = ts_rank_error(t->me);
    TEST_CHECK(t, error != NULL);
    if (error) TEST_SAYS(t, error->text, "rank 0 and rank 1 gave different arguments");
    if (error) TEST_SAYS(t, error->text, "clamp of [8, 4](S(0)) here");
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, ts_op_check_plans(t->me, 0));
    TEST_CHECK(t, ts_clamp(x, 0, t->index == 1 ? 2 : 1) != NULL); /* nobody looks */
}
