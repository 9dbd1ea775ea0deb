/* SPDX-License-Identifier: Apache-2.0 */
/* reorder_machine.h - random steps for tests of other orders: a machine draws what a step does, the
 * same each time it runs; a trial has it as usual and recorded, and compares bits. */
#ifndef TESTS_DIST_REORDER_MACHINE_H
#define TESTS_DIST_REORDER_MACHINE_H

#include <string.h>

#include "base/alloc.h"
#include "device/device.h"
#include "harness/test.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "runtime/works.h"
#include "tessera/tessera.h"

/* ---- random steps ---------------------------------------------------------------------------- */

enum { HELD = 4, LIVE = 12, LINES = 24, SIDE = 6 };

typedef struct machine {
    ts_rank *me;
    ts_mesh *mesh;
    uint64_t seed;         /* of the step: the same work each time */
    ts_tensor *held[HELD]; /* the second half of them is what the step changes */
    ts_tensor *live[LIVE]; /* of the scope that is open */
    bool whole[LIVE];      /* on every rank, or cut by rows */
    int32_t count;
    enum { ANYTHING, SUMS, SHARDS } moves; /* many of a kind that nobody waits for at once */
    uint64_t state;
} machine;

static inline uint32_t next(machine *m, uint32_t below)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->state >> 33) % below;
}

static inline void push(machine *m, ts_tensor *x, bool whole)
{
    int32_t at = m->count < LIVE ? m->count++ : (int32_t)next(m, LIVE);
    m->live[at] = x;
    m->whole[at] = whole;
}

/* Terms on every rank become sums, there or in shards; or shards become whole. */
static inline void move_shard(machine *m, ts_tensor *x, uint32_t what)
{
    if (m->moves == SHARDS && what > 0) {
        push(m, ts_redistribute(x, "R"), true);
        return;
    }
    ts_tensor *terms = ts_matmul(ts_transpose(x, 0, 1), ts_mul_scalar(x, 0.125));
    bool whole = m->moves == SUMS;
    push(m, ts_redistribute(terms, whole ? "R" : "S(0)"), whole);
}

/* One line of the step: kernels, moves that other ranks take part in, changes in place. */
static inline ts_status line(machine *m)
{
    int32_t a = (int32_t)next(m, (uint32_t)m->count), b = (int32_t)next(m, (uint32_t)m->count);
    ts_tensor *x = m->live[a], *y = m->live[b];
    ts_list to = { &m->held[HELD / 2 + next(m, HELD / 2)], 1 };
    uint32_t what = next(m, 6);
    /* What is on its way to others is not changed meanwhile: a copy of it goes. */
    for (int32_t i = HELD / 2; what < 3 && i < HELD; i++)
        if (x == m->held[i]) x = ts_tanh(x);
    if (m->moves != ANYTHING && what < 3 && !m->whole[a]) {
        move_shard(m, x, what);
        return TS_OK;
    }
    switch (what) {
    case 0:
        push(m, ts_redistribute(x, m->whole[a] ? "S(0)" : "R"), !m->whole[a]);
        return TS_OK;
    case 1:
        push(m, ts_redistribute(ts_sum(x, (int64_t[]){ 0 }, 1, 1), "R"), true);
        m->live[m->count - 1] = ts_add(ts_zeros(m->mesh, TS_DTYPE_F32, TS_SHAPE(SIDE, SIDE), "R"),
                                       m->live[m->count - 1]);
        m->whole[m->count - 1] = true;
        return TS_OK;
    case 2:
        return ts_foreach_add(
            to, (ts_list){ (ts_tensor *[]){ m->whole[a] ? ts_redistribute(x, "S(0)") : x }, 1 },
            0.25, NULL);
    case 3:
        if (m->whole[a]) push(m, ts_tanh(ts_matmul(x, x)), true);
        return TS_OK;
    default:
        if (m->whole[a] == m->whole[b]) push(m, ts_tanh(ts_add(x, ts_mul(x, y))), m->whole[a]);
        return TS_OK;
    }
}

/* A few scopes one after another: what one frees the next lies over. */
static inline ts_status random_step(void *context)
{
    machine *m = context;
    ts_status status = TS_OK;
    m->state = m->seed;
    for (int32_t part = 0; part < 3 && status == TS_OK; part++) {
        ts_scope scope = ts_scope_open(m->me, NULL);
        m->count = 0;
        for (int32_t i = 0; i < HELD; i++)
            push(m, m->held[i], false);
        for (int32_t i = 0; i < LINES / 3 && status == TS_OK; i++)
            status = line(m);
        if (status == TS_OK) status = ts_rank_status(m->me);
        ts_status closed = ts_scope_close(scope);
        if (status == TS_OK) status = closed;
    }
    return status;
}

static inline ts_status element(const int64_t *global, void *out, void *context)
{
    int32_t salt = *(const int32_t *)context;
    *(float *)out = 0.01f * (float)((7 * global[0] + 5 * global[1] + 11 * salt) % 37) - 0.1f;
    return TS_OK;
}

static inline machine machine_of(test *t, ts_mesh *mesh, uint64_t seed)
{
    machine m = { .me = t->me, .mesh = mesh, .seed = seed };
    ts_meta meta = { .shape = TS_SHAPE(SIDE, SIDE), .dtype = TS_DTYPE_F32 };
    for (int32_t i = 0; i < HELD; i++)
        m.held[i] = ts_from_function(element, &i, ts_sharding_get(mesh, "S(0)"), meta);
    return m;
}

static inline void same_bits(test *t, const machine *a, const machine *b, const char *when)
{
    for (int32_t i = 0; i < HELD; i++) {
        float x[SIDE * SIDE] = { 0 }, y[SIDE * SIDE] = { 0 };
        ts_array to = TS_INIT(ts_array);
        to.meta = (ts_meta){ .shape = TS_SHAPE(SIDE / t->count, SIDE), .dtype = TS_DTYPE_F32 };
        to.data = x;
        TEST_OK(t, ts_tensor_read(a->held[i], &to));
        to.data = y;
        TEST_OK(t, ts_tensor_read(b->held[i], &to));
        TEST_SAY(t, memcmp(x, y, sizeof x) == 0, "%s, seed %llu, tensor %d: %g, %g", when,
                 (unsigned long long)a->seed, i, (double)x[0], (double)y[0]);
    }
}

/* The list in a random order that keeps its ties: drawn by a machine, alike on all ranks; or each
 * rank draws one of its own. Operations that are early keep their order among themselves. */
static inline void shuffle_early(test *t, tsi_step_list *list, const bool *early, machine *by)
{
    tsi_ties ties;
    TEST_OK(t, tsi_ties_make_early(list, early, &ties));
    int64_t pairs = 0, count = list->action_count;
    int32_t *pair = tsi_calloc((size_t)(2 * ties.first[count]) + 1, sizeof *pair);
    int32_t *order = tsi_calloc((size_t)count + 1, sizeof *order);
    int64_t *key = tsi_calloc((size_t)count + 1, sizeof *key);
    for (int32_t i = 0; i < count; i++) {
        key[i] = by ? next(by, 1 << 20) : test_random_below(t, 1 << 20);
        for (int32_t k = ties.first[i]; k < ties.first[i + 1]; k++) {
            pair[pairs++] = ties.before[k];
            pair[pairs++] = i;
        }
    }
    TEST_OK(t, tsi_pieces_by_key(count, pair, pairs, key, order));
    TEST_OK(t, tsi_list_permute(list, order));
    tsi_free(pair);
    tsi_free(order);
    tsi_free(key);
    tsi_ties_release(&ties);
}

static inline void shuffle(test *t, tsi_step_list *list, machine *by)
{
    shuffle_early(t, list, NULL, by);
}

enum { ORDERS = 20 };

static inline int moves_of(uint64_t seed)
{
    return seed % 3 == 0 ? SHARDS : seed % 3 == 1 ? SUMS : ANYTHING;
}

typedef struct trial { /* a random step as usual, and recorded; stays where it is */
    test *t;
    ts_scope scope;
    machine usual, again;
    ts_step *step;
    ts_step_summary was;
} trial;

static inline void trial_begin(trial *x, test *t, ts_mesh *mesh, uint64_t seed, int moves)
{
    *x = (trial){ .t = t, .scope = ts_scope_open(t->me, NULL), .was = TS_INIT(ts_step_summary) };
    x->usual = machine_of(t, mesh, seed);
    x->again = machine_of(t, mesh, seed);
    x->usual.moves = x->again.moves = moves;
    TEST_OK(t, random_step(&x->usual));
    x->step = ts_step_record(t->me, random_step, &x->again);
    TEST_SAY(t, x->step != NULL, "%s", ts_rank_error(t->me)->text);
    same_bits(t, &x->usual, &x->again, "recorded");
    TEST_OK(t, ts_step_summarise(x->step, &x->was));
}

static inline bool trial_goes_on(const trial *x, int32_t n)
{
    return x->step && n < ORDERS && !ts_rank_status(x->t->me);
}

static inline void trial_runs(trial *x, int32_t times, const char *how)
{
    for (int32_t i = 0; i < times; i++) {
        TEST_OK(x->t, ts_step_replay(x->step));
        TEST_OK(x->t, random_step(&x->usual));
        same_bits(x->t, &x->usual, &x->again, how);
    }
}

static inline void trial_end(trial *x)
{
    ts_step_destroy(x->step);
    TEST_OK(x->t, ts_scope_close(x->scope));
}

/* After what may have failed for want of memory: all come back. Returns whether a rank tried n
 * allocations. */
static inline bool all_come_back(test *t, ts_status status, int64_t tried, int64_t n)
{
    for (int tries = 0; tries < 3; tries++) { /* until nobody fails any more */
        int64_t most = tried;
        ts_array all = TS_INIT(ts_array);
        all.data = &most;
        all.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
        if (status == TS_OK)
            status = ts_group_all_reduce(ts_group_world(t->me), &all, &all, TS_REDUCE_MAX, NULL);
        if (status == TS_OK) return most >= n;
        const ts_error *why = ts_rank_error(t->me);
        TEST_SAY(t, why->status == status && (status == TS_ERR_MEMORY || status == TS_ERR_PEER),
                 "%s: %s", ts_status_meaning(status), why->text);
        status = ts_rank_recover(t->me);
    }
    TEST_OK(t, status);
    return false;
}

/* On a device that has steps as graphs they keep their order. */
static inline bool keeps_order(test *t, ts_mesh *mesh)
{
    if (tsi_rank_device_of(t->me)->device->host_readable) return false;
    ts_scope scope = ts_scope_open(t->me, NULL);
    machine m = machine_of(t, mesh, 5);
    ts_step *step = ts_step_record(t->me, random_step, &m);
    TEST_STATUS(t, ts_step_reorder(step, NULL, 0, NULL), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "the device has it as graphs");
    TEST_OK(t, ts_rank_recover(t->me));
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
    return true;
}

#endif
