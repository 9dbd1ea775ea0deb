/* SPDX-License-Identifier: Apache-2.0 */
/* execute_many.c - several moves in common rounds.
 *
 *   round k of tensor 0, 3, 4  (group g, f32)          --> one exchange
 *   round k of tensor 1        (group g, bf16)         --> one exchange    all in flight together
 *   round k of tensor 2        (group h, f32, sum)     --> one exchange
 *
 * The rounds of a tensor are of one group and channel, so each is behind the one before it there:
 * where nothing has to be done between them they are issued one after another, and none is waited
 * for. Peers issue the same operations in the same order whether they wait between them or not.
 *
 * Small tensors that take two rounds may go before all others (tsi_common_rounds): nobody waits for
 * what is large because the small ones have a round more.
 *
 * Blocks between two ranks match in order, so concatenated lists match too, because every rank has
 * the tensors in the same order (the caller's). What may travel together follows from the plans
 * alone, so all members of a group fuse alike. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/comm.h"
#include "tensor/execute.h"

enum { CHANNEL_MOVE = 0 };

typedef struct bundle { /* blocks of one exchange */
    ts_group *group;
    int32_t dtype, reduce, device;
    ts_part *send, *recv;
    int64_t send_count, recv_count, avg_count;
} bundle;

typedef struct wave { /* one round of all tensors */
    tsi_execution *x;
    int64_t count, round, rounds;
    tsi_common_rounds common;
    bool deferred, follow; /* something, or every round, may stay in flight */
    ts_work *work;         /* of all rounds in flight */
    bundle *bundle;        /* room for one per tensor */
    int64_t bundle_count;
    tsi_arena *scratch; /* blocks of a round, gone after it */
} wave;

static bool shares(const ts_plan *plan)
{
    return plan->pair.src.terms > 1 && plan->pair.dst.replicas > 1;
}

void tsi_rounds_count(tsi_common_rounds *rounds, const tsi_program *program)
{
    bool shared = shares(program->plan);
    int64_t *most = shared ? &rounds->shared_rounds : &rounds->other_rounds;
    *(shared ? &rounds->shared : &rounds->others) += program->plan->pair.count;
    if (program->member) *most = tsi_max_i64(*most, program->round_count);
}

/* Rounds of shared sums alone. */
static int64_t rounds_before(const tsi_common_rounds *rounds)
{
    bool apart = rounds->shared > 0 && rounds->shared < rounds->others;
    return apart ? rounds->shared_rounds : 0;
}

int64_t tsi_rounds_all(const tsi_common_rounds *rounds)
{
    return tsi_max_i64(rounds->shared_rounds, rounds_before(rounds) + rounds->other_rounds);
}

tsi_exchange_round *tsi_rounds_at(const tsi_common_rounds *rounds, const tsi_program *program,
                                  int64_t at)
{
    int64_t round = at - (shares(program->plan) ? 0 : rounds_before(rounds));
    bool has = program->member && round >= 0 && round < program->round_count;
    return has ? &program->round[round] : NULL;
}

static tsi_exchange_round *round_of(const wave *w, const tsi_execution *x)
{
    return x->program ? tsi_rounds_at(&w->common, x->program, w->round) : NULL;
}

static bool with_local(const wave *w, const tsi_execution *x)
{
    return w->deferred && tsi_program_defers(x->program);
}

static bundle *bundle_of(wave *w, const tsi_execution *x, const tsi_exchange_round *round)
{
    int32_t reduce = round->reduces ? x->program->part.reduce : 0;
    int64_t avg_count = reduce ? x->program->part.avg_count : 0;
    for (int64_t i = 0; i < w->bundle_count; i++) {
        bundle *b = &w->bundle[i];
        if (b->group == x->program->group && b->dtype == x->to->dtype && b->reduce == reduce &&
            b->avg_count == avg_count)
            return b;
    }
    bundle *b = &w->bundle[w->bundle_count++];
    *b = (bundle){ .group = x->program->group,
                   .dtype = x->to->dtype,
                   .reduce = reduce,
                   .avg_count = avg_count,
                   .device = tsi_array_device(x->to) };
    return b;
}

/* Counts the blocks of every bundle, makes room, then fills them in the order of the tensors. */
static ts_status gather_blocks(wave *w)
{
    int64_t total = 0;
    w->bundle_count = 0;
    for (int64_t i = 0; i < w->count; i++) {
        tsi_exchange_round *round = round_of(w, &w->x[i]);
        if (!round) continue;
        bool local = with_local(w, &w->x[i]);
        bundle *b = bundle_of(w, &w->x[i], round);
        b->send_count += local ? round->send_all : round->send_count;
        b->recv_count += local ? round->recv_all : round->recv_count;
    }
    for (int64_t i = 0; i < w->bundle_count; i++)
        total += w->bundle[i].send_count + w->bundle[i].recv_count;
    size_t bytes = (size_t)total * sizeof(ts_part);
    ts_part *next = tsi_arena_alloc(w->scratch, bytes);
    if (!next) return tsi_fail_memory("the blocks of an exchange", bytes);
    for (int64_t i = 0; i < w->bundle_count; i++) {
        bundle *b = &w->bundle[i];
        b->send = next;
        b->recv = next + b->send_count;
        next = b->recv + b->recv_count;
        b->send_count = b->recv_count = 0;
    }
    for (int64_t i = 0; i < w->count; i++) {
        tsi_exchange_round *round = round_of(w, &w->x[i]);
        if (!round) continue;
        bool local = with_local(w, &w->x[i]);
        int64_t sends = local ? round->send_all : round->send_count;
        int64_t recvs = local ? round->recv_all : round->recv_count;
        bundle *b = bundle_of(w, &w->x[i], round);
        tsi_round_patch(round, w->x[i].source, w->x[i].to);
        memcpy(b->send + b->send_count, round->send, (size_t)sends * sizeof *b->send);
        memcpy(b->recv + b->recv_count, round->recv, (size_t)recvs * sizeof *b->recv);
        b->send_count += sends;
        b->recv_count += recvs;
    }
    return TS_OK;
}

static ts_status send_bundle(const bundle *b, const char *name, ts_work **work)
{
    ts_exchange exchange = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    exchange.dtype = b->dtype;
    exchange.device = b->device;
    exchange.reduce = b->reduce;
    exchange.avg_count = b->avg_count;
    exchange.send = b->send;
    exchange.send_count = b->send_count;
    exchange.recv = b->recv;
    exchange.recv_count = b->recv_count;
    options.name = name;
    options.channel = CHANNEL_MOVE;
    options.work = work;
    return (ts_group_exchange)(b->group, &exchange, &options);
}

static ts_status send_all(ts_rank *rank, const wave *w, const char *name, ts_work **work)
{
    if (w->bundle_count == 1) return send_bundle(&w->bundle[0], name, work);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.work = work;
    TSI_TRY(ts_group_batch_begin(rank));
    ts_status status = TS_OK;
    for (int64_t i = 0; i < w->bundle_count && status == TS_OK; i++)
        status = send_bundle(&w->bundle[i], name, NULL);
    ts_status together = ts_group_batch_end(rank, &options);
    return status != TS_OK ? status : together;
}

/* Must the ranks do something themselves after this round? */
static bool finishes(const wave *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        const tsi_exchange_round *round = round_of(w, &w->x[i]);
        if (round && round->reduces && tsi_program_finishes(w->x[i].program)) return true;
    }
    return false;
}

static ts_status run_wave(ts_rank *rank, wave *w, const char *name)
{
    tsi_arena_mark mark = tsi_arena_save(w->scratch);
    ts_status status = gather_blocks(w);
    bool last = w->deferred && w->round == w->rounds - 1 && !finishes(w);
    ts_work *one = NULL;
    if (status == TS_OK && w->bundle_count > 0)
        status = send_all(rank, w, name, w->follow || last ? &one : NULL);
    if (one) {
        tsi_work_behind(one, w->work);
        w->work = one;
    }
    tsi_arena_rewind(w->scratch, mark);
    for (int64_t i = 0; status == TS_OK && i < w->count; i++) {
        tsi_exchange_round *round = round_of(w, &w->x[i]);
        if (!round || !round->reduces) continue;
        tsi_round_patch(round, w->x[i].source, w->x[i].to); /* programs may serve several tensors */
        status = tsi_round_finish(rank, w->x[i].program, round, w->x[i].to);
    }
    return status;
}

static ts_status begin_all(ts_rank *rank, wave *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        tsi_execution *x = &w->x[i];
        if (x->plan->family == TS_PLAN_NONE) continue;
        x->program = tsi_program_get(rank, x->plan); /* holds it: the cache may drop it meanwhile */
        if (!x->program) return ts_rank_status(rank);
        tsi_rounds_count(&w->common, x->program);
        if (!x->program->member) continue;
        TSI_TRY(tsi_program_begin(x, x->program, with_local(w, x)));
    }
    w->rounds = tsi_rounds_all(&w->common);
    w->follow = w->deferred && w->rounds > 1;
    for (int64_t i = 0; i < w->count && w->follow; i++) {
        const tsi_execution *x = &w->x[i];
        bool finishes_alone = x->program && tsi_program_finishes(x->program);
        w->follow = !finishes_alone && tsi_comm_follows(rank, tsi_array_device(x->to));
    }
    return TS_OK;
}

ts_status tsi_execute_many(ts_rank *rank, tsi_execution *execution, int64_t count, const char *name,
                           ts_work **work)
{
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (!state) return ts_rank_status(rank);
    TSI_TRY(tsi_comm_now(rank, "redistribute"));
    wave w = {
        .x = execution, .count = count, .deferred = work != NULL, .scratch = &state->scratch
    };
    tsi_arena_mark mark = tsi_arena_save(w.scratch);
    w.bundle = tsi_arena_alloc(w.scratch, (size_t)count * sizeof *w.bundle);
    if (!w.bundle) return tsi_fail_memory("a list of moves", (size_t)count * sizeof *w.bundle);
    ts_status status = begin_all(rank, &w);
    for (w.round = 0; status == TS_OK && w.round < w.rounds; w.round++)
        status = run_wave(rank, &w, name);
    if (work) *work = w.work;
    for (int64_t i = 0; i < count; i++)
        tsi_program_release(execution[i].program);
    tsi_arena_rewind(w.scratch, mark);
    return status;
}
