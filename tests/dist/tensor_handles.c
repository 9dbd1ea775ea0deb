/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_handles.c - handles that outlive their tensors: every use is a sentence, none another
 * tensor; references given back twice, by other threads, and after the world. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness/test.h"
#include "tensor/body.h"
#include "tessera/tessera.h"

/* Tensors of the rank that have not ended. */
static int64_t live_count(ts_rank *me)
{
    const tsi_tensor_state *state = tsi_tensor_state_of(me);
    int64_t used = 0;
    for (const tsi_slab *slab = state->slabs; slab; slab = slab->next)
        used += slab->used;
    return used - state->ended_count;
}

static ts_scope catching(ts_rank *me)
{
    return ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .catches = 1));
}

/* Closes the scope, which must have caught TS_ERR_STATE with these words. */
static void caught(test *t, ts_scope scope, const char *call, const char *words)
{
    ts_status status = ts_scope_close(scope);
    TEST_SAY(t, status == TS_ERR_STATE, "%s: %s", call, ts_status_name(status));
    const ts_error *error = ts_rank_error(t->me);
    if (!error) return;
    TEST_SAYS(t, error->text, words);
    TEST_SAYS(t, error->text, call);
}

/* A tensor that ended with scope "step". */
static ts_tensor *ended_tensor(test *t, ts_mesh *mesh)
{
    ts_scope step = ts_scope_open(t->me, "step");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "S(0)");
    TEST_OK(t, ts_scope_close(step));
    return x;
}

/* ---- uses ------------------------------------------------------------------------------------ */

typedef void (*use_fn)(ts_tensor *old, ts_tensor *x);

static void use_add(ts_tensor *old, ts_tensor *x)
{
    ts_add(old, x);
}
static void use_add_second(ts_tensor *old, ts_tensor *x)
{
    ts_add(x, old);
}
static void use_in_place(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_tril_(old, 0);
}
static void use_sum(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_sum(old, NULL, 0, 0);
}
static void use_cast(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_cast(old, TS_DTYPE_F32);
}
static void use_outer(ts_tensor *old, ts_tensor *x)
{
    ts_outer(old, x);
}
static void use_trace(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_trace(old);
}
static void use_redistribute(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_redistribute(old, "R");
}
static void use_full(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_tensor_full(old);
}
static void use_local(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_tensor_local(old);
}
static void use_wait(ts_tensor *old, ts_tensor *x)
{
    (void)x, (void)ts_tensor_wait(old);
}
static void use_retain(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_tensor_retain(old);
}
static void use_release(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_tensor_release(old);
}
static void use_watch(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_watch(old);
}
static void use_backward(ts_tensor *old, ts_tensor *x)
{
    (void)x, (void)ts_backward(old, NULL);
}
static void use_seed(ts_tensor *old, ts_tensor *x)
{
    (void)ts_backward_from(&x, &old, 1, NULL);
}
static void use_shift(ts_tensor *old, ts_tensor *x)
{
    (void)x, ts_shift(old, "x", 1);
}
static void use_grad_clear(ts_tensor *old, ts_tensor *x)
{
    (void)x, (void)ts_tensor_grad_clear(old);
}
static void use_item(ts_tensor *old, ts_tensor *x)
{
    double value;
    (void)x, (void)ts_tensor_item(old, &value);
}
static void use_view(ts_tensor *old, ts_tensor *x)
{
    ts_array view = TS_INIT(ts_array);
    (void)x, (void)ts_tensor_view(old, &view);
}
static void use_text(ts_tensor *old, ts_tensor *x)
{
    char text[64];
    (void)x, (void)ts_tensor_text(old, text, sizeof text);
}
static void use_dlpack(ts_tensor *old, ts_tensor *x)
{
    struct DLManagedTensorVersioned *out;
    (void)x, (void)ts_tensor_dlpack(old, &out);
}
static void use_write(ts_tensor *old, ts_tensor *x)
{
    ts_tensor *variable = ts_variable(ts_tensor_rank(x));
    (void)ts_tensor_write(variable, old);
    ts_tensor_release(variable);
}
static void use_written(ts_tensor *old, ts_tensor *x)
{
    (void)ts_tensor_write(old, x);
}
static void use_list(ts_tensor *old, ts_tensor *x)
{
    ts_tensor *a[] = { x, old }, *b[] = { x, x };
    (void)ts_foreach_add((ts_list){ a, 2 }, (ts_list){ b, 2 }, 1.0, NULL);
}
static void use_leave(ts_tensor *old, ts_tensor *x)
{
    ts_scope_leave(ts_scope_open(ts_tensor_rank(x), "inner"), old);
}
static void use_turn(ts_tensor *old, ts_tensor *x)
{
    ts_scope scope = ts_scope_open(ts_tensor_rank(x), "inner");
    ts_scope_turn(scope, old);
    ts_scope_close(scope);
}

static const struct {
    const char *call;
    use_fn fn;
} uses[] = {
    { "add: input 0", use_add },
    { "add: input 1", use_add_second },
    { "tril", use_in_place },
    { "sum", use_sum },
    { "cast", use_cast },
    { "outer", use_outer },
    { "trace", use_trace },
    { "redistribute", use_redistribute },
    { "full", use_full },
    { "local", use_local },
    { "wait", use_wait },
    { "ts_tensor_retain", use_retain },
    { "ts_tensor_release", use_release },
    { "watch", use_watch },
    { "backward", use_backward },
    { "backward", use_seed },
    { "shift", use_shift },
    { "grad_clear", use_grad_clear },
    { "item", use_item },
    { "view", use_view },
    { "text", use_text },
    { "dlpack", use_dlpack },
    { "write", use_write },
    { "write", use_written },
    { "foreach_add", use_list },
    { "ts_scope_pass", use_leave },
    { "ts_scope_turn", use_turn },
};

TS_TEST_RANKS(repair_15_an_ended_tensor_is_refused, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_full(3.0, mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "S(0)");
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        ts_tensor *old = ended_tensor(t, mesh);
        ts_scope scope = catching(t->me);
        uses[i].fn(old, x);
        caught(t, scope, uses[i].call, "scope \"step\" closed");
    }
    TEST_CHECK(t, ts_tensor_layout(ended_tensor(t, mesh)) == NULL);
    TEST_EQ(t, ts_tensor_shape(ended_tensor(t, mesh)).ndim, 0);
}

/* A body is used again, but only after many others ended. */
TS_TEST(repair_15_bodies_are_used_again_late)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 1;
    options.handles_kept = 5000;
    ts_world *world = NULL;
    ts_rank *me = NULL;
    TEST_OK(t, ts_world_open(&options, &world));
    TEST_OK(t, ts_rank_attach(world, 0, &me));
    ts_mesh *mesh = ts_mesh_self(me);
    ts_scope step = ts_scope_open(me, "step");
    ts_tensor *old = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2), NULL);
    ts_scope_close(step);
    int64_t after = 0;
    for (ts_tensor *x = NULL; x != old && after < 20000; after++) {
        step = ts_scope_open(me, "later");
        x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2), NULL);
        ts_scope_close(step);
    }
    TEST_EQ(t, after, 5001);
    ts_world_close(world);
}

/* ---- references ------------------------------------------------------------------------------ */

TS_TEST_RANKS(repair_12_a_release_too_many_is_refused, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope step = ts_scope_open(t->me, "step");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "S(0)");
    ts_scope scope = catching(t->me);
    ts_tensor_release(x); /* never retained */
    caught(t, scope, "ts_tensor_release", "owned by scope \"step\" and was not retained");
    TEST_CHECK(t, ts_tensor_retain(x) == x);
    ts_tensor_release(x);
    scope = catching(t->me);
    ts_tensor_release(x); /* twice */
    caught(t, scope, "ts_tensor_release", "owned by scope \"step\"");
    TEST_CHECK(t, ts_tensor_retain(x) == x);
    TEST_OK(t, ts_scope_close(step));
    TEST_CHECK(t, ts_add(x, x) != NULL);
    ts_tensor_release(x);
    scope = catching(t->me);
    ts_tensor_release(x); /* after it ended */
    caught(t, scope, "ts_tensor_release", "of scope \"step\" ended with its last release");
    ts_tensor_drop(x); /* harmless */
    TEST_OK(t, ts_rank_status(t->me));
}

/* What a tape or a leaf holds cannot be released by the program. */
TS_TEST_RANKS(repair_12_a_gradient_is_the_leafs, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(3), NULL));
    ts_tensor *y = ts_mul(x, x);
    ts_scope scope = catching(t->me);
    ts_tensor_release(y); /* the tape and the scope have references, the program none */
    caught(t, scope, "ts_tensor_release", "not retained");
    TEST_OK(t, ts_backward(ts_sum(y, NULL, 0, 0), NULL));
    scope = catching(t->me);
    ts_tensor_release(ts_tensor_grad(x));
    caught(t, scope, "ts_tensor_release", "not the caller's");
    double grad = 0;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_tensor_grad(x), NULL, 0, 0), &grad));
    TEST_CHECK(t, grad == 6.0);
}

/* Ranks of one process see each other's handles; a variable takes none of them. */
TS_TEST_RANKS(a_value_of_another_rank_is_refused, 2)
{
    static ts_tensor *of_rank[2];
    if (ts_world_local_count(ts_rank_world(t->me)) < 2) return;
    of_rank[t->index] = ts_ones(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(4), NULL);
    ts_tensor *variable = ts_variable(t->me);
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    ts_scope scope = catching(t->me);
    (void)ts_tensor_write(variable, of_rank[1 - t->index]);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "write: the value is of rank");
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    ts_tensor_release(variable);
}

/* ---- other threads --------------------------------------------------------------------------- */

static void *release_thread(void *tensor)
{
    ts_tensor_release(tensor);
    return NULL;
}
static void *drop_thread(void *tensor)
{
    ts_tensor_drop(tensor);
    return NULL;
}
static void *retain_thread(void *tensor)
{
    return ts_tensor_retain(tensor);
}

static void *on_thread(void *(*fn)(void *), void *argument)
{
    pthread_t thread;
    void *result = NULL;
    if (pthread_create(&thread, NULL, fn, argument) == 0) pthread_join(thread, &result);
    return result;
}

TS_TEST_RANKS(repair_13_another_thread_drops, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    int64_t before = live_count(t->me);
    ts_scope step = ts_scope_open(t->me, "step");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "S(0)");
    on_thread(drop_thread, x);
    TEST_EQ(t, live_count(t->me), before + 1);
    ts_scope scope = catching(t->me);
    (void)ts_tensor_wait(x); /* its gate drains first */
    caught(t, scope, "wait", "was dropped from scope \"step\"");
    TEST_EQ(t, live_count(t->me), before);
    TEST_OK(t, ts_scope_close(step));
}

TS_TEST_RANKS(repair_13_posts_are_drained, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    int64_t before = live_count(t->me);
    ts_scope step = ts_scope_open(t->me, "step");
    ts_tensor *x = ts_tensor_retain(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "S(0)"));
    ts_tensor_retain(x);
    TEST_OK(t, ts_scope_close(step));
    TEST_CHECK(t, on_thread(retain_thread, x) == NULL); /* counting up is the rank's alone */
    on_thread(release_thread, x);
    TEST_EQ(t, live_count(t->me), before + 1);
    TEST_OK(t, ts_tensor_wait(x)); /* one reference is left */
    on_thread(release_thread, x);
    TEST_EQ(t, live_count(t->me), before + 1);
    TEST_OK(t, ts_rank_sync(t->me));
    TEST_EQ(t, live_count(t->me), before);
    /* Other processes may still be above when one fails here, and would fail with it. */
    if (strcmp(t->engine, "threads") != 0) return;
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    on_thread(release_thread, x); /* one too many: the rank's next call says so */
    TEST_STATUS(t, ts_rank_sync(t->me), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "ts_tensor_release");
    TEST_OK(t, ts_rank_recover(t->me));
}

typedef struct closing {
    ts_tensor *kept, *variable;
} closing;

static ts_status leave_tensors(ts_rank *me, void *argument)
{
    closing *out = argument;
    ts_tensor *x = ts_ones(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(64), NULL);
    out->kept = ts_tensor_retain(ts_tensor_retain(x));
    out->variable = ts_variable(me);
    return ts_tensor_write(out->variable, x);
}

TS_TEST(repair_13_releases_after_the_world)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 1;
    closing left = { NULL, NULL };
    TEST_OK(t, ts_launch_with(&options, leave_tensors, &left, NULL, 0));
    on_thread(release_thread, left.variable);
    ts_tensor_drop(left.kept);
    ts_tensor_release(left.kept);
    on_thread(release_thread, left.kept);
    TEST_TEXT(t, ts_last_error(), "");
    ts_tensor_release(left.kept);
    TEST_SAYS(t, ts_last_error(), "released more often than it was retained, after its world");
    TEST_CHECK(t, ts_add(left.kept, left.kept) == NULL);
    TEST_SAYS(t, ts_last_error(), "add: input 0 is a tensor that ended when its world was closed");
    TEST_STATUS(t, ts_tensor_wait(left.kept), TS_ERR_NULL);
}

/* ---- scopes whose caller owns ---------------------------------------------------------------- */

typedef ts_tensor *(*make_fn)(ts_tensor *x, ts_tensor *index);

static ts_tensor *make_add(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_add(x, x);
}
static ts_tensor *make_moved(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_redistribute(x, "S(1)");
}
static ts_tensor *make_mixed(ts_tensor *x, ts_tensor *index) /* moves what lies otherwise */
{
    ts_tensor *y = ts_redistribute(x, "S(1)"), *z = ts_mm(x, y);
    ts_tensor_release(y);
    return (void)index, z;
}
static ts_tensor *make_same(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_cast(x, TS_DTYPE_F32);
}
static ts_tensor *make_softmax(ts_tensor *x, ts_tensor *index) /* over a cut dim */
{
    return (void)index, ts_softmax(x, 0);
}
static ts_tensor *make_attention(ts_tensor *x, ts_tensor *index)
{
    ts_tensor *y = ts_reshape(x, TS_SHAPE(1, 1, 4, 4)), *z = ts_attention(y, y, y, NULL);
    ts_tensor_release(y);
    return (void)index, z;
}
static ts_tensor *make_nanmean(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_nanmean(x, NULL, 0, 0);
}
static ts_tensor *make_median(ts_tensor *x, ts_tensor *index)
{
    ts_tensor *out[2] = { NULL, NULL };
    (void)index;
    if (ts_median(x, 0, out) != TS_OK) return NULL;
    ts_tensor_release(out[1]);
    return out[0];
}
static ts_tensor *make_trace(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_trace(x);
}
static ts_tensor *make_unit(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_normalize(x, 0, 1e-3);
}
static ts_tensor *make_cosine(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_cosine_similarity(x, x, 0);
}
static ts_tensor *make_one_hot(ts_tensor *x, ts_tensor *index)
{
    return (void)x, ts_one_hot(index, 5);
}
static ts_tensor *make_filled(ts_tensor *x, ts_tensor *index)
{
    return ts_index_fill(x, 0, index, 2.0);
}
static ts_tensor *make_glu(ts_tensor *x, ts_tensor *index)
{
    return (void)index, ts_glu(x, 0);
}
static ts_tensor *make_rolled(ts_tensor *x, ts_tensor *index)
{
    int64_t by = 3;
    return (void)index, ts_roll(x, &by, NULL, 1);
}
static ts_tensor *make_repeated(ts_tensor *x, ts_tensor *index)
{
    int64_t times[] = { 2, 1, 1 };
    return (void)index, ts_repeat(x, times, 3);
}
static ts_tensor *make_counts(ts_tensor *x, ts_tensor *index)
{
    return (void)x, ts_bincount(index, NULL, 2);
}
static ts_tensor *make_selected(ts_tensor *x, ts_tensor *index)
{
    ts_tensor *mask = ts_gt(x, x), *z = ts_masked_select(x, mask);
    ts_tensor_release(mask);
    return (void)index, z;
}
static ts_tensor *make_grad(ts_tensor *x, ts_tensor *index)
{
    ts_scope scope = ts_scope_open(ts_tensor_rank(x), "gradient");
    ts_tape_begin(ts_tensor_rank(x));
    ts_tensor *leaf = ts_watch(x), *grad = NULL;
    (void)index, (void)ts_grad(ts_sum(ts_mul(leaf, x), NULL, 0, 0), &leaf, 1, &grad);
    return ts_scope_leave(scope, grad);
}

static const struct {
    const char *name;
    make_fn fn;
} makes[] = {
    { "add", make_add },           { "moved", make_moved },     { "mixed", make_mixed },
    { "same", make_same },         { "softmax", make_softmax }, { "attention", make_attention },
    { "nanmean", make_nanmean },   { "median", make_median },   { "trace", make_trace },
    { "unit", make_unit },         { "cosine", make_cosine },   { "one_hot", make_one_hot },
    { "filled", make_filled },     { "glu", make_glu },         { "rolled", make_rolled },
    { "repeated", make_repeated }, { "counts", make_counts },   { "selected", make_selected },
    { "grad", make_grad },
};

/* What a maker returns is the caller's until it is released, and nothing else is left behind. */
TS_TEST_RANKS(friction_1_the_caller_owns, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_full(0.5, mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "S(0)");
    ts_tensor *index = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(3), NULL, NULL);
    for (size_t i = 0; i < sizeof makes / sizeof makes[0]; i++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .caller_owns = 1));
        int64_t before = live_count(t->me);
        ts_tensor *y = makes[i].fn(x, index);
        TEST_SAY(t, y != NULL, "%s: %s", makes[i].name,
                 ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
        TEST_SAY(t, live_count(t->me) == before + (y != x), "%s leaves %lld tensors", makes[i].name,
                 (long long)(live_count(t->me) - before));
        TEST_OK(t, ts_scope_close(scope));
        TEST_OK(t, ts_tensor_wait(y)); /* the scope had nothing */
        ts_tensor_release(y);
        TEST_SAY(t, live_count(t->me) == before, "%s is not released", makes[i].name);
        TEST_OK(t, ts_rank_status(t->me));
    }
    TEST_OK(t, ts_tensor_wait(x)); /* its own scope still has it */
}

TS_TEST_RANKS(friction_1_the_caller_drops, 1)
{
    int64_t before = live_count(t->me);
    ts_scope scope = ts_scope_open_with(
        t->me, TS_OPTIONS(ts_scope_options, .label = "binding", .caller_owns = 1));
    ts_tensor *x = ts_ones(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(3), NULL);
    ts_tensor_drop(x);
    TEST_EQ(t, live_count(t->me), before);
    ts_tensor *y = ts_ones(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(3), NULL);
    on_thread(release_thread, y);
    TEST_OK(t, ts_scope_close(scope));
    TEST_EQ(t, live_count(t->me), before);
    scope = catching(t->me);
    ts_tensor_release(y);
    caught(t, scope, "ts_tensor_release", "of scope \"binding\" ended with its last release");
}

/* ---- a root scope that grows ----------------------------------------------------------------- */

/* What the rank says on standard error while it makes so many tensors, each in a scope or not. */
static void said_while_growing(test *t, bool scoped, char *text, size_t size)
{
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    (void)dup2(fileno(file), STDERR_FILENO);
    ts_tensor *x = ts_ones(ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(1), NULL);
    for (int i = 0; i < 70000; i++) {
        ts_scope scope = { 0 };
        if (scoped) scope = ts_scope_open(t->me, NULL);
        (void)ts_reshape(x, TS_SHAPE_SCALAR);
        if (scoped) (void)ts_scope_close(scope);
    }
    (void)dup2(saved, STDERR_FILENO);
    (void)close(saved);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    (void)fclose(file);
}

TS_TEST_RANKS(a_root_scope_that_grows_is_told_once, 1)
{
    char text[2048];
    said_while_growing(t, true, text, sizeof text);
    TEST_TEXT(t, text, "");
    said_while_growing(t, false, text, sizeof text);
    said_while_growing(t, false, text + strlen(text), sizeof text - strlen(text));
    const char *first = strstr(text, "the root scope holds ");
    TEST_SAY(t, first && strstr(first, "only grows") && !strstr(first + 1, "the root scope"), "%s",
             text);
}
