/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the library as a binding of another language drives it: a scope whose caller owns on
 * every rank, objects whose handles a finalizer's thread gives back, callbacks that fail, and
 * finalizers that run when the world is gone. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tessera/tessera.h"

typedef char *(*touch_fn)(int value);
TS_API int binding_run(touch_fn touch, int *passed);

enum { RANKS = 2, ROUNDS = 300, HEAP_MAX = 1 << 14 };

static touch_fn touch_hog;
static _Atomic int failures;

static void check(int condition, const char *what, int line)
{
    if (condition) return;
    failures++;
    printf("  line %d: %s\n", line, what);
}
#define CHECK(condition) check((condition), #condition, __LINE__)

static void says(const char *text, const char *words, int line)
{
    if (strstr(text, words)) return;
    failures++;
    printf("  line %d: \"%s\" does not say \"%s\"\n", line, text, words);
}
#define SAYS(text, words) says((text), (words), __LINE__)

/* ---- the garbage heap: objects nobody refers to, and the thread that finalizes them ---------- */

typedef struct heap {
    pthread_mutex_t lock;
    ts_tensor *garbage[HEAP_MAX];
    int count, closing;
} heap;

static heap the_heap = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void discard(ts_tensor *t)
{
    if (!t) return;
    pthread_mutex_lock(&the_heap.lock);
    CHECK(the_heap.count < HEAP_MAX);
    the_heap.garbage[the_heap.count++] = t;
    pthread_mutex_unlock(&the_heap.lock);
}

/* Takes one; false: there is none and there will be none. */
static int collect(ts_tensor **out)
{
    pthread_mutex_lock(&the_heap.lock);
    *out = the_heap.count > 0 ? the_heap.garbage[--the_heap.count] : NULL;
    int more = *out || !the_heap.closing;
    pthread_mutex_unlock(&the_heap.lock);
    return more;
}

static void *finalizer(void *unused)
{
    ts_tensor *t;
    int number = 0;
    while (collect(&t)) {
        if (!t)
            sched_yield();
        else if (++number % 3 == 0)
            ts_tensor_drop(t);
        else
            ts_tensor_release(t);
    }
    CHECK(touch_hog(3) != NULL);
    return unused;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static ts_status element(const int64_t *global, void *out, void *context)
{
    *(float *)out = (float)global[0];
    return global[0] == *(const int64_t *)context ? TS_ERR_ARG : TS_OK;
}

/* An exception in a callback: the call fails alone, and the rank goes on. */
static void failing_callback(ts_rank *me, ts_mesh *mesh)
{
    const ts_sharding *whole = ts_sharding_get(mesh, "R");
    ts_meta meta = { .shape = TS_SHAPE(4), .dtype = TS_DTYPE_F32 };
    int64_t at = 3, never = -1;
    ts_scope scope =
        ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .catches = 1, .caller_owns = 1));
    CHECK(ts_from_function(element, &at, whole, meta) == NULL);
    CHECK(ts_scope_close(scope) == TS_ERR_ARG);
    SAYS(ts_rank_error(me)->text, "returned TS_ERR_ARG for element (3)");
    ts_tensor *fine = ts_from_function(element, &never, whole, meta);
    CHECK(fine != NULL);
    discard(fine);
    ts_sharding_release(whole);
}

/* ---- one rank -------------------------------------------------------------------------------- */

typedef struct rank_thread {
    ts_world *world;
    int64_t index;
    pthread_t thread;
    ts_tensor *left; /* held when the world closes */
} rank_thread;

/* y = 2 x summed over the ranks' parts; every handle becomes garbage. */
static void one_round(ts_mesh *mesh, int round)
{
    ts_tensor *x = ts_full(round, mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(0)");
    ts_tensor *y = ts_add(x, x), *moved = ts_redistribute(y, "S(1)");
    ts_tensor *sum = ts_sum(moved, NULL, 0, 0);
    discard(x);
    discard(y);
    double value = 0;
    CHECK(ts_tensor_item(sum, &value) == TS_OK);
    CHECK(value == 64.0 * round);
    discard(moved);
    discard(sum);
}

static void stale_handle(ts_rank *me, ts_mesh *mesh)
{
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(8), NULL);
    ts_tensor_release(x);
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .catches = 1));
    CHECK(ts_neg(x) == NULL);
    CHECK(ts_scope_close(scope) == TS_ERR_STATE);
    SAYS(ts_rank_error(me)->text, "scope \"binding\" ended with its last release");
}

static void *rank_main(void *argument)
{
    rank_thread *self = argument;
    ts_rank *me = NULL;
    CHECK(touch_hog(2) != NULL);
    CHECK(ts_rank_attach(self->world, self->index, &me) == TS_OK);
    if (!me) return NULL;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_scope scope =
        ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .label = "binding", .caller_owns = 1));
    for (int round = 1; round <= ROUNDS && ts_rank_status(me) == TS_OK; round++)
        one_round(mesh, round);
    failing_callback(me, mesh);
    stale_handle(me, mesh);
    self->left = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(1000), NULL);
    CHECK(ts_scope_close(scope) == TS_OK);
    CHECK(ts_rank_sync(me) == TS_OK);
    if (ts_rank_error(me) && ts_rank_status(me) != TS_OK) printf("  %s\n", ts_rank_error(me)->text);
    ts_rank_detach(me);
    return NULL;
}

static void test_ranks(void)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = RANKS;
    ts_world *world = NULL;
    CHECK(ts_world_open(&options, &world) == TS_OK);
    pthread_t collector;
    rank_thread ranks[RANKS];
    the_heap.closing = 0;
    CHECK(pthread_create(&collector, NULL, finalizer, NULL) == 0);
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (rank_thread){ .world = world, .index = i };
        CHECK(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    ts_world_close(world); /* while the finalizer is at work */
    for (int i = 0; i < RANKS; i++)
        discard(ranks[i].left);
    pthread_mutex_lock(&the_heap.lock);
    the_heap.closing = 1;
    pthread_mutex_unlock(&the_heap.lock);
    pthread_join(collector, NULL);
    ts_tensor_release(ranks[0].left); /* once more, after everything */
    SAYS(ts_last_error(), "released more often than it was retained, after its world was closed");
    CHECK(ts_tensor_retain(ranks[0].left) == NULL);
}

/* ---- work that fails ------------------------------------------------------------------------- */

static ts_status failing_work(ts_rank *me, void *arg)
{
    CHECK(touch_hog(4) != NULL);
    if (ts_rank_index(me) == *(const int64_t *)arg)
        return TS_ERR_IO; /* its exception is elsewhere */
    ts_tensor *x = ts_ones(ts_mesh_create(me, "x=*"), TS_DTYPE_F32, TS_SHAPE(4), "S(0)");
    double value;
    return ts_tensor_item(ts_sum(x, NULL, 0, 0), &value);
}

static void test_work(void)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = RANKS;
    char error[512] = "";
    int64_t who = 1, nobody = -1;
    CHECK(ts_launch_with(&options, failing_work, &nobody, error, sizeof error) == TS_OK);
    CHECK(ts_launch_with(&options, failing_work, &who, error, sizeof error) == TS_ERR_IO);
    SAYS(error, "rank 1: work returned TS_ERR_IO");
}

/* ---- all of it ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*fn)(void);
} tests[] = {
    { "ranks_and_finalizers", test_ranks },
    { "ranks_and_finalizers_again", test_ranks }, /* with bodies of the first world around */
    { "work_that_fails", test_work },
};

int binding_run(touch_fn touch, int *passed)
{
    int failed = 0;
    touch_hog = touch;
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        failures = 0;
        tests[i].fn();
        printf("%s %s\n", failures ? "FAIL" : "ok  ", tests[i].name);
        *passed += failures == 0;
        failed += failures != 0;
    }
    return failed;
}
