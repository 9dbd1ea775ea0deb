/* SPDX-License-Identifier: Apache-2.0 */
/* A thousand random programs: mixed collectives on random groups, blocking, asynchronous on any
 * channel and in batches, checked against the oracle. All ranks draw the same program from the same
 * seed, which is printed when a check fails. Public API only. */
#include "dist/comm_oracle.h"

enum { PROGRAMS = 200, GROUPS = 4, OPS_MAX = 24, RANKS_MAX = 8 };

typedef enum verb {
    BARRIER,
    BROADCAST,
    SCATTER,
    GATHER,
    ALL_GATHER,
    REDUCE,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    EXCHANGE,
    SEND_RECV,
    VERB_COUNT
} verb;
static const char *const verb_name[VERB_COUNT] = { "barrier",    "broadcast",      "scatter",
                                                   "gather",     "all_gather",     "reduce",
                                                   "all_reduce", "reduce_scatter", "all_to_all",
                                                   "exchange",   "send_recv" };

typedef struct step {
    verb verb;
    ts_group *group;
    int64_t n, me, root, peer;
    int64_t ranks[RANKS_MAX];
    int64_t rows[RANKS_MAX], first[RANKS_MAX + 1]; /* rows of each member */
    ts_dtype dtype;
    ts_reduce reduce;
    uint64_t key;
    int64_t cols;
    bool gaps, later, done;
    int32_t channel;
    grid in, out;
    ts_work *work[2]; /* a rank may send and receive */
} step;

typedef struct program {
    test *t;
    uint64_t seed;
    ts_group *group[GROUPS];
    step step[OPS_MAX];
    int64_t count;
} program;

/* ---- drawing: the same on every rank --------------------------------------------------------- */

static ts_group *draw_group(test *t)
{
    int64_t ranks[RANKS_MAX], count = 1 + test_random_below(t, t->count);
    for (int64_t i = 0; i < t->count; i++)
        ranks[i] = i;
    for (int64_t i = 0; i < count; i++) {
        int64_t j = i + test_random_below(t, t->count - i), rank = ranks[i];
        ranks[i] = ranks[j];
        ranks[j] = rank;
    }
    return ts_group_create(t->me, ranks, count, NULL);
}

static void draw_step(test *t, const program *p, step *s)
{
    *s = (step){ .verb = (verb)test_random_below(t, VERB_COUNT) };
    s->group = p->group[test_random_below(t, GROUPS)];
    s->n = ts_group_size(s->group);
    s->me = ts_group_index(s->group);
    s->root = test_random_below(t, s->n);
    s->peer = test_random_below(t, s->n);
    s->dtype = (ts_dtype)(1 + test_random_below(t, TS_DTYPE_COUNT - 1));
    do
        s->reduce = (ts_reduce)(1 + test_random_below(t, TS_REDUCE_COUNT - 1));
    while (!oracle_allowed(s->reduce, s->dtype));
    s->key = test_random(t);
    s->cols = test_random_below(t, 20) == 0 ? 3000 : 1 + test_random_below(t, 5);
    s->gaps = test_random_below(t, 2) == 0;
    s->later = test_random_below(t, 2) == 0;
    s->channel = (int32_t)test_random_below(t, TS_CHANNEL_COUNT);
    for (int64_t i = 0; i < s->n; i++) {
        s->ranks[i] = ts_group_rank(s->group, i);
        s->rows[i] = test_random_below(t, 4);
        s->first[i + 1] = s->first[i] + s->rows[i];
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* all_to_all and exchange: member i sends pair(i, j) rows to member j. */
static int64_t pair_rows(const step *s, int64_t from, int64_t to)
{
    return (int64_t)(oracle_hash(s->key, (uint64_t)from, (uint64_t)to) % 3);
}

static int64_t pair_first(const step *s, int64_t from, int64_t to)
{
    int64_t first = 0;
    for (int64_t j = 0; j < to; j++)
        first += pair_rows(s, from, j);
    return first;
}

static void make_arrays(step *s)
{
    int64_t in = s->rows[s->me], out = s->rows[s->me], all = s->first[s->n];
    bool full_in = s->verb == SCATTER || s->verb == REDUCE || s->verb == ALL_REDUCE ||
                   s->verb == REDUCE_SCATTER;
    bool full_out = s->verb == BROADCAST || s->verb == GATHER || s->verb == ALL_GATHER ||
                    s->verb == REDUCE || s->verb == ALL_REDUCE;
    if (full_in) in = all;
    if (full_out) out = all;
    if (s->verb == ALL_TO_ALL || s->verb == EXCHANGE) {
        in = pair_first(s, s->me, s->n);
        out = 0;
        for (int64_t i = 0; i < s->n; i++)
            out += pair_rows(s, i, s->me);
    }
    if (s->verb == SEND_RECV) in = out = s->rows[s->root];
    s->in = grid_make(s->dtype, in, s->cols, s->gaps);
    s->out = grid_make(s->dtype, out, s->cols, !s->gaps);
    grid_fill(&s->in, s->key, s->ranks[s->me], 0);
    if (s->verb == BROADCAST && s->me == s->root) grid_fill(&s->out, s->key, s->ranks[s->me], 0);
}

static ts_status run_exchange(step *s, const ts_comm_options *options)
{
    ts_part send[RANKS_MAX], recv[RANKS_MAX];
    int64_t at = 0;
    int64_t in_row = s->gaps ? s->in.array.stride[0] : s->cols, in_col = s->gaps ? 2 : 1;
    int64_t out_row = s->gaps ? s->cols : s->out.array.stride[0], out_col = s->gaps ? 1 : 2;
    for (int64_t k = 0; k < s->n; k++) {
        int64_t p = (s->me + k) % s->n;
        send[k] = (ts_part){ .peer = p,
                             .data = grid_place(&s->in, pair_first(s, s->me, p) * s->cols),
                             .ndim = 2,
                             .extent = { pair_rows(s, s->me, p), s->cols },
                             .stride = { in_row, in_col } };
        recv[k] = (ts_part){ .peer = k,
                             .data = grid_place(&s->out, at * s->cols),
                             .ndim = 2,
                             .extent = { pair_rows(s, k, s->me), s->cols },
                             .stride = { out_row, out_col } };
        at += pair_rows(s, k, s->me);
    }
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .device = s->out.array.device,
                             .dtype = (int32_t)s->dtype,
                             .send = send,
                             .send_count = s->n,
                             .recv = recv,
                             .recv_count = s->n };
    return ts_group_exchange(s->group, &exchange, options);
}

static ts_status run_all_to_all(step *s, ts_comm_options *options)
{
    int64_t send[RANKS_MAX], recv[RANKS_MAX];
    for (int64_t i = 0; i < s->n; i++) {
        send[i] = pair_rows(s, s->me, i);
        recv[i] = pair_rows(s, i, s->me);
    }
    options->send_rows = send;
    options->recv_rows = recv;
    return ts_group_all_to_all(s->group, &s->in.array, &s->out.array, options);
}

/* One message from root to peer. A rank that sends to itself must not wait for itself. */
static ts_status run_message(step *s, bool in_batch)
{
    ts_status status = TS_OK;
    bool self = s->root == s->peer;
    ts_comm_options options = TS_INIT(ts_comm_options);
    if (!in_batch && (s->later || self)) options.work = &s->work[0];
    if (s->me == s->root) status = ts_group_send(s->group, &s->in.array, s->peer, &options);
    if (!in_batch) options.work = s->later ? &s->work[1] : NULL;
    if (status == TS_OK && s->me == s->peer)
        status = ts_group_recv(s->group, &s->out.array, s->root, &options);
    return status;
}

static ts_status run_step(step *s, bool in_batch)
{
    if (s->me < 0) return TS_OK;
    make_arrays(s);
    const ts_array *in = &s->in.array, *out = &s->out.array;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.channel = s->channel;
    options.name = verb_name[s->verb];
    if (s->later && !in_batch) options.work = &s->work[0];
    switch (s->verb) {
    case BARRIER:
        return ts_group_barrier(s->group, &options);
    case BROADCAST:
        return ts_group_broadcast(s->group, out, s->root, &options);
    case SCATTER:
        options.send_rows = s->rows;
        return ts_group_scatter(s->group, in, out, s->root, &options);
    case GATHER:
        options.recv_rows = s->rows;
        return ts_group_gather(s->group, in, out, s->root, &options);
    case ALL_GATHER:
        options.recv_rows = s->rows;
        return ts_group_all_gather(s->group, in, out, &options);
    case REDUCE:
        return ts_group_reduce(s->group, in, out, s->reduce, s->root, &options);
    case ALL_REDUCE:
        return ts_group_all_reduce(s->group, in, out, s->reduce, &options);
    case REDUCE_SCATTER:
        options.send_rows = s->rows;
        return ts_group_reduce_scatter(s->group, in, out, s->reduce, &options);
    case ALL_TO_ALL:
        return run_all_to_all(s, &options);
    case EXCHANGE:
        return run_exchange(s, &options);
    case SEND_RECV:
        return run_message(s, in_batch);
    case VERB_COUNT:
        break;
    }
    return TS_OK;
}

/* ---- checking -------------------------------------------------------------------------------- */

static bool pairs_arrived(const step *s)
{
    bool good = true;
    for (int64_t i = 0, at = 0; i < s->n; at += pair_rows(s, i, s->me), i++)
        good = good && grid_rows_are(&s->out, at, pair_rows(s, i, s->me), s->key, s->ranks[i],
                                     pair_first(s, i, s->me) * s->cols);
    return good;
}

static bool gathered(const step *s)
{
    bool good = true;
    for (int64_t i = 0; i < s->n; i++)
        good = good && grid_rows_are(&s->out, s->first[i], s->rows[i], s->key, s->ranks[i], 0);
    return good;
}

static bool is_right(const step *s)
{
    int64_t from = s->first[s->me] * s->cols;
    switch (s->verb) {
    case BROADCAST:
        return grid_rows_are(&s->out, 0, s->out.rows, s->key, s->ranks[s->root], 0);
    case SCATTER:
        return grid_rows_are(&s->out, 0, s->out.rows, s->key, s->ranks[s->root], from);
    case GATHER:
        return s->me != s->root || gathered(s);
    case ALL_GATHER:
        return gathered(s);
    case REDUCE:
        return s->me != s->root || grid_is_folded(&s->out, s->key, s->reduce, s->ranks, s->n, 0);
    case ALL_REDUCE:
        return grid_is_folded(&s->out, s->key, s->reduce, s->ranks, s->n, 0);
    case REDUCE_SCATTER:
        return grid_is_folded(&s->out, s->key, s->reduce, s->ranks, s->n, from);
    case ALL_TO_ALL:
    case EXCHANGE:
        return pairs_arrived(s);
    case SEND_RECV:
        return s->me != s->peer ||
               grid_rows_are(&s->out, 0, s->out.rows, s->key, s->ranks[s->root], 0);
    case BARRIER:
    case VERB_COUNT:
        break;
    }
    return true;
}

static void finish_step(program *p, int64_t i)
{
    step *s = &p->step[i];
    if (s->done || s->me < 0) return;
    s->done = true;
    ts_status status = ts_work_wait(s->work[0]), other = ts_work_wait(s->work[1]);
    if (status == TS_OK) status = other;
    bool good = status == TS_OK && is_right(s);
    bool guarded = grid_guarded(&s->out);
    TEST_SAY(p->t, good && guarded, "program seed %llu step %d: %s %s %s on %d members: %s%s",
             (unsigned long long)p->seed, (int)i, verb_name[s->verb], ts_dtype_name(s->dtype),
             ts_reduce_name(s->reduce), (int)s->n,
             status != TS_OK ? ts_rank_error(p->t->me)->text
             : good          ? ""
                             : "wrong elements",
             guarded ? "" : " (wrote outside)");
    grid_free(&s->in);
    grid_free(&s->out);
}

static void run_program(test *t, program *p)
{
    p->t = t;
    p->seed = test_random(t);
    t->random = p->seed;
    for (int g = 0; g < GROUPS; g++)
        p->group[g] = g == 0 ? ts_group_world(t->me) : draw_group(t);
    p->count = 4 + test_random_below(t, OPS_MAX - 3);
    int64_t batch_left = 0, batch_first = 0;
    for (int64_t i = 0; i < p->count; i++) {
        draw_step(t, p, &p->step[i]);
        if (batch_left == 0 && test_random_below(t, 5) == 0) {
            batch_left = 1 + test_random_below(t, 4);
            batch_first = i;
            TEST_OK(t, ts_group_batch_begin(t->me));
        }
        bool in_batch = batch_left > 0;
        TEST_OK(t, run_step(&p->step[i], in_batch));
        if (in_batch && (--batch_left == 0 || i + 1 == p->count)) {
            batch_left = 0;
            TEST_OK(t, ts_group_batch_end(t->me, NULL));
            for (int64_t k = batch_first; k <= i; k++)
                finish_step(p, k);
        } else if (!in_batch && !p->step[i].later && p->step[i].verb != SEND_RECV) {
            finish_step(p, i);
        }
        /* Sometimes an old asynchronous step is waited for in between; each rank chooses its own.
         */
        int64_t old =
            (int64_t)(oracle_hash(p->seed, (uint64_t)t->index, (uint64_t)i) % (uint64_t)(i + 1));
        if (!in_batch && p->step[old].later && old < i) finish_step(p, old);
    }
    for (int64_t i = 0; i < p->count; i++)
        finish_step(p, i);
    for (int g = 1; g < GROUPS; g++)
        ts_group_release(p->group[g]);
}

TS_TEST_RANKS(comm_random_programs, 1, 2, 3, 4, 8)
{
    program *p = malloc(sizeof *p);
    for (int i = 0; i < PROGRAMS && p != NULL && !test_failed(t); i++) {
        uint64_t random = t->random;
        run_program(t, p);
        t->random = random + 0x9E3779B97F4A7C15u; /* the next program does not depend on this one */
    }
    free(p);
}
