/* SPDX-License-Identifier: Apache-2.0 */
/* Launching, attaching, failing and recovering on the threads engine, with the words that are said.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "tessera/comm.h"
#include "tessera/event.h"

static ts_status launch(int64_t ranks, ts_work_fn work, void *arg, char *error, size_t size)
{
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = ranks, .timeout_ms = 20000
    };
    return ts_launch_with(&options, work, arg, error, size);
}

static ts_status sum_of_ranks(ts_rank *me, int64_t *sum)
{
    int64_t mine = ts_rank_index(me) + 1;
    ts_array in = { .struct_size = sizeof in, .data = &mine, .meta = { .dtype = TS_DTYPE_I64 } };
    ts_array out = in;
    out.data = sum;
    return ts_group_all_reduce(ts_group_world(me), &in, &out, TS_REDUCE_SUM, NULL);
}

static ts_status work_sum(ts_rank *me, void *arg)
{
    int64_t sum = 0, n = ts_rank_count(me);
    ts_status status = sum_of_ranks(me, &sum);
    if (sum == n * (n + 1) / 2) atomic_fetch_add((_Atomic int64_t *)arg, 1);
    return status;
}

TS_TEST(launch_sizes)
{
    static const int64_t sizes[] = { 1, 2, 3, 4, 8, 17 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        _Atomic int64_t good = 0;
        char error[256] = "untouched";
        TEST_OK(t, launch(sizes[i], work_sum, &good, error, sizeof error));
        TEST_EQ(t, good, sizes[i]);
        TEST_TEXT(t, error, "");
    }
}

TS_TEST(launch_many)
{
    int64_t count = TSI_SANITIZED ? 64 : 1000;
    _Atomic int64_t good = 0;
    TEST_OK(t, launch(count, work_sum, &good, NULL, 0));
    TEST_EQ(t, good, count);
}

TS_TEST(launch_leaves_nothing)
{
    int64_t before = tsi_alloc_live();
    _Atomic int64_t good = 0;
    TEST_OK(t, launch(4, work_sum, &good, NULL, 0));
    TEST_EQ(t, tsi_alloc_live(), before);
}

/* ---- errors ---------------------------------------------------------------------------------- */
static ts_status work_fails_in_two(ts_rank *me, void *arg)
{
    (void)arg;
    int64_t sum = 0;
    if (ts_rank_index(me) == 2) return ts_rank_fail(me, TS_ERR_IO, "the disk of rank two is full");
    return sum_of_ranks(me, &sum);
}

TS_TEST(launch_first_error)
{
    char error[512];
    int64_t before = tsi_alloc_live();
    TEST_STATUS(t, launch(4, work_fails_in_two, NULL, error, sizeof error), TS_ERR_IO);
    TEST_SAYS(t, error, "rank 2: the disk of rank two is full");
    TEST_SAYS(t, error, "3 other ranks stopped with it");
    TEST_EQ(t, tsi_alloc_live(), before);
}

static ts_status work_returns_without_words(ts_rank *me, void *arg)
{
    (void)arg;
    return ts_rank_index(me) == 1 ? TS_ERR_SHAPE : TS_OK;
}

TS_TEST(launch_error_without_words)
{
    char error[512];
    TEST_STATUS(t, launch(3, work_returns_without_words, NULL, error, sizeof error), TS_ERR_SHAPE);
    TEST_SAYS(t, error, "rank 1: work returned TS_ERR_SHAPE without saying why");
}

static ts_status work_forgets_its_error(ts_rank *me, void *arg)
{
    (void)arg;
    ts_rank_fail(me, TS_ERR_ARG, "seven is not a colour");
    return TS_OK;
}

TS_TEST(launch_same_error_once)
{
    char error[512];
    TEST_STATUS(t, launch(5, work_forgets_its_error, NULL, error, sizeof error), TS_ERR_ARG);
    TEST_SAYS(t, error, "and 4 more: seven is not a colour");
}

static ts_status work_leaves_early(ts_rank *me, void *arg)
{
    int64_t sum = 0;
    if (ts_rank_index(me) == 0) return TS_OK;
    ts_status status = sum_of_ranks(me, &sum);
    if (status == TS_ERR_PEER) atomic_fetch_add((_Atomic int64_t *)arg, 1);
    return status;
}

TS_TEST(launch_early_return)
{
    char error[512];
    _Atomic int64_t told = 0;
    TEST_STATUS(t, launch(3, work_leaves_early, &told, error, sizeof error), TS_ERR_PEER);
    TEST_EQ(t, told, 2);
    TEST_SAYS(t, error, "rank 0");
    TEST_SAYS(t, error, "all_reduce");
}

TS_TEST(launch_bad_options)
{
    char error[512];
    ts_world_options options = { .struct_size = sizeof options, .rank_count = -1 };
    TEST_STATUS(t, ts_launch_with(&options, work_sum, NULL, error, sizeof error), TS_ERR_ARG);
    TEST_SAYS(t, error, "rank_count");
    TEST_SAYS(t, error, "-1");
    TEST_STATUS(t, launch(2, NULL, NULL, error, sizeof error), TS_ERR_NULL);
    TEST_SAYS(t, error, "work is NULL");
    options =
        (ts_world_options){ .struct_size = sizeof options, .rank_count = 2, .device = "abacus" };
    TEST_STATUS(t, ts_launch_with(&options, work_sum, NULL, error, sizeof error), TS_ERR_MISSING);
    TEST_SAYS(t, error, "abacus");
}

static ts_status work_nests(ts_rank *me, void *arg)
{
    (void)me;
    ts_status status = launch(2, work_sum, arg, NULL, 0);
    if (ts_rank_current() != me) return ts_rank_fail(me, TS_ERR_INTERNAL, "the rank was lost");
    return status;
}

TS_TEST(launch_nested)
{
    _Atomic int64_t good = 0;
    TEST_OK(t, launch(2, work_nests, &good, NULL, 0));
    TEST_EQ(t, good, 4);
}

/* Every allocation of a small launch fails once: each time it says so, and nothing is lost. */
TS_TEST_LONG(launch_allocation_failures, 120)
{
    for (int64_t n = 1; n < 2000; n++) {
        int64_t before = tsi_alloc_live();
        char error[512];
        _Atomic int64_t good = 0;
        tsi_alloc_fail_at(n);
        ts_status status = launch(2, work_sum, &good, error, sizeof error);
        bool hit = tsi_alloc_fail_at(0) >= n;
        TEST_SAY(t, tsi_alloc_live() == before, "allocation %lld: %lld live, %lld before",
                 (long long)n, (long long)tsi_alloc_live(), (long long)before);
        TEST_SAY(t, status == TS_OK || error[0] != '\0', "allocation %lld: no sentence",
                 (long long)n);
        if (!hit) {
            TEST_OK(t, status);
            TEST_SAY(t, n > 5, "only %lld allocations", (long long)n);
            return;
        }
        if (test_failed(t)) return;
    }
    TEST_SAY(t, false, "a launch makes more than 2000 allocations");
}

/* ---- recovering ------------------------------------------------------------------------------ */
static ts_status work_recovers(ts_rank *me, void *arg)
{
    int64_t sum = 0;
    for (int round = 0; round < 3; round++) {
        if (ts_rank_index(me) == round) ts_rank_fail(me, TS_ERR_MEMORY, "round %d", round);
        ts_status status = sum_of_ranks(me, &sum);
        if (status == TS_OK)
            return ts_rank_fail(me, TS_ERR_INTERNAL, "round %d went through", round);
        status = ts_rank_recover(me);
        if (status != TS_OK) return status;
        const ts_error *caught = ts_rank_error(me);
        if (caught == NULL || caught->status == TS_OK) return TS_ERR_INTERNAL;
    }
    return work_sum(me, arg);
}

TS_TEST(recover_new_epoch)
{
    char error[512];
    _Atomic int64_t good = 0;
    ts_status status = launch(3, work_recovers, &good, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
    TEST_EQ(t, good, 3);
}

static ts_status work_lost(ts_rank *me, void *arg)
{
    ts_rank_fail(me, TS_ERR_LOST, "the device fell out");
    *(ts_status *)arg = ts_rank_recover(me);
    return ts_rank_status(me);
}

TS_TEST(recover_not_from_lost)
{
    ts_status recovered = TS_OK;
    TEST_STATUS(t, launch(1, work_lost, &recovered, NULL, 0), TS_ERR_LOST);
    TEST_EQ(t, recovered, TS_ERR_LOST);
}

/* ---- embedding ------------------------------------------------------------------------------- */
typedef struct own_thread {
    ts_world *world;
    int64_t local_index, sum;
    ts_status status;
} own_thread;

static void *own_thread_main(void *argument)
{
    own_thread *self = argument;
    ts_rank *me = NULL;
    self->status = ts_rank_attach(self->world, self->local_index, &me);
    if (self->status == TS_OK) self->status = sum_of_ranks(me, &self->sum);
    if (self->status == TS_OK) self->status = ts_rank_sync(me);
    ts_rank_detach(me);
    return NULL;
}

TS_TEST(attach_own_threads)
{
    ts_world *world = NULL;
    TEST_OK(t, ts_world_open(TS_OPTIONS(ts_world_options, .engine = "threads", .rank_count = 3),
                             &world));
    TEST_EQ(t, ts_world_size(world), 3);
    TEST_EQ(t, ts_world_local_count(world), 3);
    TEST_TEXT(t, ts_world_engine(world), "threads");
    for (int round = 0; round < 2;
         round++) { /* a rank moves to another thread by detach and attach */
        own_thread thread[3];
        pthread_t id[3];
        for (int i = 0; i < 3; i++) {
            thread[i] = (own_thread){ .world = world, .local_index = i };
            pthread_create(&id[i], NULL, own_thread_main, &thread[i]);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(id[i], NULL);
            TEST_OK(t, thread[i].status);
            TEST_EQ(t, thread[i].sum, 6);
        }
    }
    ts_world_close(world);
}

TS_TEST(attach_refused)
{
    ts_world *world = NULL;
    ts_rank *me = NULL, *again = NULL;
    TEST_OK(t, ts_world_open(TS_OPTIONS(ts_world_options, .engine = "threads", .rank_count = 2),
                             &world));
    TEST_STATUS(t, ts_rank_attach(world, 2, &me), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "no local rank 2");
    TEST_STATUS(t, ts_rank_attach(world, -1, &me), TS_ERR_ARG);
    TEST_STATUS(t, ts_rank_attach(NULL, 0, &me), TS_ERR_NULL);
    TEST_OK(t, ts_rank_attach(world, 0, &me));
    TEST_STATUS(t, ts_rank_attach(world, 1, &again), TS_ERR_STATE);
    TEST_CHECK(t, again == NULL && ts_rank_current() == me);
    ts_rank_detach(me);
    ts_rank_detach(me);   /* harmless */
    ts_rank_detach(NULL); /* harmless */
    TEST_CHECK(t, ts_rank_current() == NULL);
    ts_world_close(world);
    ts_world_close(NULL);
}

TS_TEST(engine_find)
{
    char text[512];
    TEST_OK(t, ts_engine_find("threads", text, sizeof text));
    TEST_OK(t, ts_engine_find("model", NULL, 0));
    TEST_STATUS(t, ts_engine_find("carrier pigeon", text, sizeof text), TS_ERR_ARG);
    TEST_SAYS(t, text, "carrier pigeon");
    setenv("TESSERA_MPI", "nompi", 1);
    TEST_STATUS(t, ts_engine_find("mpi", text, sizeof text), TS_ERR_ARG);
    TEST_SAYS(t, text, "nompi");
}
