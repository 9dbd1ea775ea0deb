/* SPDX-License-Identifier: Apache-2.0 */
/* replay_faults.c - a replay in which a rank fails, stalls or leaves, or the n-th allocation fails:
 * it ends like a step that is run as usual, with a sentence on all ranks within the timeout, and
 * after recovering the next replay is right. In the recorded order, in a new one, with operations
 * that go as one, and with some that go in parts. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "device/device.h"
#include "fault/order.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { SIDE = 6, PLACES = 3, TIMEOUT_MS = 1000 };
typedef enum fault_kind { FAILS, STALLS, LEAVES, LACKS } fault_kind;

typedef struct fault {
    test *t;
    fault_kind kind;
    int32_t place;
    order_kind order;
    int64_t fail_at, tried; /* allocation of the replay */
    bool graphs;            /* out: the device has the step as graphs, which keep their order */
} fault;

typedef struct rank_state {
    ts_rank *me;
    const fault *fault;
    ts_tensor *x, *sum;
    int32_t armed; /* at which place; -1: not */
} rank_state;

typedef struct strike_at {
    rank_state *state;
    int32_t place;
} strike_at;

/* Kept as a piece of work, so that it is where a kernel of the replay would be. */
static ts_status strike(void *context)
{
    const strike_at *s = context;
    if (s->state->armed != s->place) return TS_OK;
    s->state->armed = -1;
    if (s->state->fault->kind == STALLS) usleep(1000 * (TIMEOUT_MS + 80));
    return s->state->fault->kind == FAILS
               ? ts_rank_fail(s->state->me, TS_ERR_STATE, "the rank broke in place %d", s->place)
               : TS_OK;
}

static ts_status place(rank_state *s, int32_t number)
{
    strike_at *at = tsi_alloc(sizeof *at);
    if (!at) return TS_ERR_MEMORY;
    *at = (strike_at){ s, number };
    return tsi_keep_work(s->me, (tsi_kept_work){ strike, at, tsi_free, &order_loose });
}

/* Moves under way before, between and after the places. */
static ts_status step(void *context)
{
    rank_state *s = context;
    ts_scope scope = ts_scope_open(s->me, NULL);
    ts_tensor *whole = ts_redistribute(s->x, "R");
    ts_status status = place(s, 0);
    ts_tensor *terms = ts_redistribute(ts_sum(s->x, (int64_t[]){ 0 }, 1, 1), "R");
    ts_tensor *squares = ts_redistribute(ts_sum(ts_mul(s->x, s->x), (int64_t[]){ 0 }, 1, 1), "R");
    ts_tensor *product = ts_tanh(ts_matmul(whole, whole));
    if (status == TS_OK) status = place(s, 1);
    ts_tensor *part = ts_redistribute(ts_add(ts_add(product, terms), squares), "S(0)");
    ts_list to = { &s->sum, 1 }, by = { &part, 1 };
    if (status == TS_OK) status = ts_foreach_add(to, by, 1.0, NULL);
    if (status == TS_OK) status = place(s, 2);
    ts_tensor *end = ts_redistribute(part, "R");
    if (status == TS_OK && !end) status = ts_rank_status(s->me);
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static ts_status element(const int64_t *global, void *out, void *context)
{
    (void)context;
    *(float *)out = 0.01f * (float)((7 * global[0] + 5 * global[1]) % 37) - 0.1f;
    return TS_OK;
}

static void look(const fault *f, const rank_state *s, float *out)
{
    ts_array to = TS_INIT(ts_array);
    to.meta =
        (ts_meta){ .shape = TS_SHAPE(SIDE / ts_rank_count(s->me), SIDE), .dtype = TS_DTYPE_F32 };
    to.data = out;
    TEST_OK(f->t, ts_tensor_read(s->sum, &to));
}

/* From the beginning: the sum is zero again. */
static ts_status begin_anew(ts_step *again, rank_state *s)
{
    ts_scope scope = ts_scope_open(s->me, NULL);
    ts_status status = ts_step_input(again, s->sum, ts_zeros_like(s->sum));
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static ts_status disturbed(ts_step *again, rank_state *s, fault *shared)
{
    const fault *f = s->fault;
    bool victim = ts_rank_index(s->me) == 1;
    if (victim && f->kind == LEAVES) return TS_ERR_STATE;
    s->armed = victim && f->kind != LACKS ? f->place : -1;
    if (victim && f->kind == LACKS) (void)tsi_alloc_fail_at(f->fail_at);
    ts_status status = ts_step_replay(again);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(s->me), NULL);
    if (victim && f->kind == LACKS) shared->tried = tsi_alloc_fail_at(0);
    /* Until then the next allocation of any rank may be the one. */
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(s->me), NULL);
    return status;
}

static ts_status work(ts_rank *me, void *argument)
{
    fault own = *(fault *)argument;
    rank_state s = { .me = me, .fault = &own, .armed = -1 };
    float first[SIDE * SIDE] = { 0 }, next[SIDE * SIDE] = { 0 };
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_meta meta = { .shape = TS_SHAPE(SIDE, SIDE), .dtype = TS_DTYPE_F32 };
    s.x = ts_from_function(element, NULL, ts_sharding_get(mesh, "S(0)"), meta);
    s.sum = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(SIDE, SIDE), "S(0)");
    ts_step *again = ts_step_record(me, step, &s);
    if (!again) return ts_rank_status(me);
    look(&own, &s, first);
    own.graphs = !tsi_rank_device_of(me)->device->host_readable;
    if (ts_rank_index(me) == 0) ((fault *)argument)->graphs = own.graphs;
    ts_status status = own.graphs ? TS_OK : order_anew(own.t, again, own.order);
    if (status == TS_OK) status = begin_anew(again, &s);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    if (status == TS_OK) status = disturbed(again, &s, argument);
    bool comes_back = own.kind == FAILS || own.kind == LACKS;
    TEST_SAY(own.t, status != TS_OK || own.kind == LACKS, "rank %d went on",
             (int)ts_rank_index(me));
    if (comes_back && status != TS_OK) {
        TEST_OK(own.t, ts_rank_recover(me));
        status = begin_anew(again, &s);
        if (status == TS_OK) status = ts_step_replay(again);
    }
    if (comes_back && status == TS_OK) {
        look(&own, &s, next);
        TEST_SAY(own.t, memcmp(first, next, sizeof first) == 0,
                 "order %d, place %d, allocation %lld: %g, %g", own.order, own.place,
                 (long long)own.fail_at, (double)first[0], (double)next[0]);
    }
    ts_step_destroy(again);
    return status;
}

static ts_status launch(fault *f, char *error, size_t size)
{
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = 3,
                                 .seed = 5,
                                 .timeout_ms = f->kind == STALLS ? TIMEOUT_MS : 20000 };
    return ts_launch_with(&options, work, f, error, size);
}

TS_TEST_LONG(replay_a_rank_fails, 120)
{
    char error[1024] = "";
    for (int32_t i = 0; i < ORDER_KINDS * PLACES; i++) {
        fault f = { .t = t, .kind = FAILS, .place = i % PLACES, .order = (order_kind)(i / PLACES) };
        TEST_SAY(t, launch(&f, error, sizeof error) == TS_OK, "order %d, place %d: %s", f.order,
                 f.place, error);
    }
}

TS_TEST_LONG(replay_a_rank_stalls_or_leaves, 120)
{
    char error[1024] = "";
    bool graphs = false;
    for (int32_t i = 0; i < ORDER_KINDS && !graphs; i++) {
        fault stalls = { .t = t, .kind = STALLS, .place = i % PLACES, .order = (order_kind)i };
        TEST_CHECK(t, launch(&stalls, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "rank");
        fault leaves = { .t = t, .kind = LEAVES, .order = (order_kind)i };
        TEST_CHECK(t, launch(&leaves, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "rank 1");
        graphs = leaves.graphs;
    }
}

/* As many as a replay in this order makes. False: there is no other order. */
static bool every_allocation(test *t, order_kind order)
{
    char error[1024] = "";
    bool reached = true, graphs = false;
    for (int64_t n = 1; reached && n < 200 && !test_failed(t); n++) {
        fault f = { .t = t, .kind = LACKS, .fail_at = n, .order = order };
        TEST_SAY(t, launch(&f, error, sizeof error) == TS_OK, "order %d, allocation %lld: %s",
                 order, (long long)n, error);
        reached = f.tried >= n;
        graphs = f.graphs;
    }
    TEST_CHECK(t, !reached);
    return !graphs;
}

TS_TEST_LONG(replay_every_allocation_may_fail, 120)
{
    for (int32_t i = 0; i < ORDER_KINDS; i++)
        if (!every_allocation(t, (order_kind)i)) break;
}
