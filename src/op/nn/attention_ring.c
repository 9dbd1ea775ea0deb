/* SPDX-License-Identifier: Apache-2.0 */
/* attention_ring.c - attention over a cut sequence from one member's keys after the other's.
 *
 *   step i    the keys that I see of member me - i, while those of the step before are computed;
 *             the kernel goes on from the result so far: O and its log-sum-exp L are a softmax
 *             over all keys before, with sum 1 at the top L
 *             gradients of these keys go home to their owner during the next step, who adds them up
 *             in the order in which members follow him
 *             on devices messages are in queues of the engine, kernels in the rank's: a wait puts
 *             one behind the other, and the host goes on
 *   in place  where the host reads the memory of members nothing travels: one fence before the
 *             reading tells where keys lie, one after it lets their owners write there again
 *
 * Offsets at which nobody needs anything take no step. Beside results a rank holds keys and
 * gradients of two members at a time, however many there are.
 *
 * INV: a query that sees nothing keeps O = 0 and L = -inf. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/comm.h"
#include "op/nn/attention_travel.h"

enum { ARRAYS = 12 };

typedef struct ring {
    tsi_travel *t;
    tsi_array *array[ARRAYS];
    int arrays;
    tsi_block kv[2][2];   /* two places: what is computed, and what comes */
    tsi_block sum[2];     /* of all so far: o, lse; or dq */
    tsi_block grad[2][2]; /* dk and dv of one member's keys: what is computed, and what goes */
    tsi_block own[2];     /* sums of dk and dv of my keys */
    int64_t *offset;      /* at which anybody needs anything */
    int64_t steps;
    ts_work *coming, *going;
    bool in_place;
    tsi_lending lending; /* in place */
    int64_t (*lent)[2];  /* in place: the first part of each member's keys and values; -1: none */
} ring;

static int64_t owner_at(const ring *r, int64_t step)
{
    return (r->t->c.me + r->t->c.size - r->offset[step]) % r->t->c.size;
}

/* Positions of a member's keys that the kernel gets: of keys in place all, where I see any. */
static tsi_span_list list_of(const ring *r, int64_t from)
{
    const tsi_travel *t = r->t;
    return r->in_place && t->need[from].total > 0 ? t->c.keys[from] : t->need[from];
}

/* ---- one member's keys ----------------------------------------------------------------------- */

static tsi_block rows_at(const tsi_block *block, int64_t count)
{
    tsi_block rows = *block;
    rows.extent[2] = count;
    return rows;
}

/* The kernel on a member's keys, joined to what there is; mine are the first. `grad` gets dk and
 * dv.
 */
static ts_status take(ring *r, int64_t from, const tsi_block kv[2], const tsi_block *grad)
{
    tsi_travel *t = r->t;
    bool first = from == t->c.me;
    tsi_span_list list = list_of(r, from);
    if (!first && list.total == 0) return TS_OK;
    const tsi_block rows[2] = { rows_at(&kv[0], list.total), rows_at(&kv[1], list.total) };
    tsi_block result[TSI_OUTPUT_MAX] = { r->sum[0], r->sum[1] };
    for (int i = 0; t->backward && i < 2; i++)
        result[1 + i] = rows_at(&grad[i], list.total);
    return tsi_travel_kernel(t, &(tsi_travel_keys){ rows, &list, !first }, result);
}

static ts_status wait_for(ts_work **work)
{
    ts_work *waited = *work;
    *work = NULL;
    return waited ? ts_work_wait(waited) : TS_OK;
}

/* Gradients of the keys of a step begin their way home; mine that others computed are added to my
 * own: a chain of two parts is folded into the first. */
static ts_status go_home(ring *r, int64_t step)
{
    tsi_travel *t = r->t;
    int64_t me = t->c.me, from = owner_at(r, step), to = (me + r->offset[step]) % t->c.size;
    tsi_travel_parts send, recv;
    tsi_span_list mine, rows = list_of(r, from);
    TSI_TRY(tsi_context_need(&t->c, to, me, &t->arena, &mine));
    int64_t room = 2 * (tsi_span_list_intervals(&mine) + tsi_span_list_intervals(&t->need[from]));
    TSI_TRY(tsi_travel_room(t, room, &send));
    TSI_TRY(tsi_travel_room(t, 2 * room, &recv));
    tsi_context_walk walk = { .list = &t->need[from] };
    while (tsi_context_next(&walk))
        for (int i = 0; i < 2; i++)
            tsi_travel_add(&send, &r->grad[step % 2][i], from,
                           tsi_span_list_find(&rows, walk.begin), walk.count);
    walk = (tsi_context_walk){ .list = &mine };
    while (tsi_context_next(&walk))
        for (int i = 0; i < 2; i++) {
            int64_t at = tsi_span_list_find(&t->c.keys[me], walk.begin), count = recv.count;
            tsi_travel_add(&send, &r->own[i], me, at, walk.count);
            tsi_travel_add(&recv, &r->own[i], me, at, walk.count);
            tsi_travel_add(&recv, &r->own[i], to, at, walk.count);
            if (recv.count > count) recv.part[recv.count - 1].combine = 1;
        }
    TSI_TRY(wait_for(&r->going));
    return tsi_travel_go(t, &(tsi_travel_round){ &send, &recv, t->sum, TS_REDUCE_SUM }, &r->going);
}

static ts_status take_step(ring *r, int64_t step, const tsi_block kv[2])
{
    TSI_TRY(take(r, owner_at(r, step), kv, r->grad[step % 2]));
    return r->t->backward ? go_home(r, step) : TS_OK;
}

/* ---- keys travel ----------------------------------------------------------------------------- */

static ts_status start(ring *r, int64_t step)
{
    tsi_travel *t = r->t;
    tsi_travel_parts send, recv;
    tsi_span_list out;
    if (step == r->steps) return TS_OK;
    int64_t to = (t->c.me + r->offset[step]) % t->c.size, from = owner_at(r, step);
    TSI_TRY(tsi_context_need(&t->c, to, t->c.me, &t->arena, &out));
    TSI_TRY(tsi_travel_room(t, 2 * tsi_span_list_intervals(&out), &send));
    TSI_TRY(tsi_travel_room(t, 2 * tsi_span_list_intervals(&t->need[from]), &recv));
    TSI_TRY(tsi_travel_send(t, to, &send));
    tsi_travel_recv(t, from, &t->need[from], r->kv[step % 2], &recv);
    tsi_travel_round round = { &send, &recv, (ts_dtype)t->in[TSI_K].dtype, TS_REDUCE_NONE };
    return tsi_travel_go(t, &round, &r->coming);
}

static ts_status travelling(ring *r)
{
    tsi_travel *t = r->t;
    const tsi_block mine[2] = { t->in[TSI_K], t->in[TSI_V] };
    TSI_TRY(start(r, 0));
    TSI_TRY(take(r, t->c.me, mine, r->own));
    for (int64_t step = 0; step < r->steps; step++) {
        TSI_TRY(wait_for(&r->coming));
        TSI_TRY(start(r, step + 1));
        TSI_TRY(take_step(r, step, r->kv[step % 2]));
    }
    return TS_OK;
}

/* ---- keys are read where they lie ------------------------------------------------------------ */

/* Asks every member I see keys of where they lie, and tells those who see mine. */
static ts_status borrow(ring *r)
{
    tsi_travel *t = r->t;
    int64_t size = t->c.size, sends = 0, recvs = 0;
    tsi_travel_parts send, recv;
    for (int64_t s = 0; s < size; s++) {
        tsi_span_list need;
        if (s == t->c.me) continue;
        TSI_TRY(tsi_context_need(&t->c, s, t->c.me, &t->arena, &need));
        sends += 2 * tsi_span_list_intervals(&need);
        recvs += 2 * tsi_span_list_intervals(&t->need[s]);
    }
    TSI_TRY(tsi_travel_room(t, sends, &send));
    TSI_TRY(tsi_travel_room(t, recvs, &recv));
    tsi_storage **storage = tsi_arena_calloc(&t->arena, (size_t)(2 * size + 2), sizeof *storage);
    r->lent = tsi_arena_calloc(&t->arena, (size_t)size, sizeof *r->lent);
    ts_part *lent = tsi_arena_calloc(&t->arena, (size_t)recvs + 1, sizeof *lent);
    if (!storage || !r->lent || !lent) return tsi_fail_memory("what ranks lend", (size_t)size * 32);
    tsi_block nowhere[2] = { t->in[TSI_K], t->in[TSI_V] };
    nowhere[0].data = nowhere[1].data = NULL;
    for (int64_t s = 0; s < size; s++) {
        if (s == t->c.me) continue;
        int64_t first = recv.count;
        TSI_TRY(tsi_travel_send(t, s, &send));
        tsi_travel_recv(t, s, &t->c.keys[s], nowhere, &recv);
        bool both = t->in[TSI_K].extent[3] > 0 && t->in[TSI_V].extent[3] > 0;
        bool any = recv.count > first;
        r->lent[s][0] = any && t->in[TSI_K].extent[3] > 0 ? first : -1;
        r->lent[s][1] = any && t->in[TSI_V].extent[3] > 0 ? first + both : -1;
    }
    storage[2 * size] = t->io->in[TSI_K]->array->storage;
    storage[2 * size + 1] = t->io->in[TSI_V]->array->storage;
    r->lending = (tsi_lending){ storage + 2 * size, 2, lent, storage };
    tsi_travel_round round = { &send, &recv, (ts_dtype)t->in[TSI_K].dtype, TS_REDUCE_NONE };
    ts_exchange exchange = tsi_travel_exchange(t, &round);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = t->io->op->name;
    options.work = &r->coming;
    return tsi_group_lend(t->io->group, &exchange, &r->lending, &options);
}

/* All of a member's keys and values, from where the first that I see of them lies. */
static void lent_of(const ring *r, int64_t from, tsi_block kv[2])
{
    const tsi_travel *t = r->t;
    tsi_context_walk walk = { .list = &t->need[from] };
    for (int i = 0; i < 2; i++)
        kv[i] = t->in[TSI_K + i];
    if (!tsi_context_next(&walk)) return;
    int64_t row = tsi_span_list_find(&t->c.keys[from], walk.begin);
    for (int i = 0; i < 2; i++) {
        if (r->lent[from][i] < 0) continue; /* no elements */
        const ts_part *part = &r->lending.lent[r->lent[from][i]];
        if (!part->data) continue; /* a world without data */
        memcpy(kv[i].stride, part->stride, sizeof kv[i].stride);
        int64_t size = (int64_t)ts_dtype_size((ts_dtype)kv[i].dtype);
        kv[i].data = (char *)part->data - row * part->stride[2] * size;
    }
}

static ts_status read_all(ring *r)
{
    tsi_travel *t = r->t;
    const tsi_block mine[2] = { t->in[TSI_K], t->in[TSI_V] };
    if (r->steps > 0) TSI_TRY(borrow(r));
    TSI_TRY(take(r, t->c.me, mine, r->own));
    TSI_TRY(wait_for(&r->coming));
    for (int64_t step = 0; step < r->steps; step++) {
        tsi_block kv[2];
        lent_of(r, owner_at(r, step), kv);
        TSI_TRY(take_step(r, step, kv));
    }
    if (r->steps == 0) return TS_OK;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = t->io->op->name;
    options.work = &r->coming;
    return (ts_group_barrier)(t->io->group, &options);
}

/* ---- the algorithm --------------------------------------------------------------------------- */

static ts_status count_steps(ring *r)
{
    tsi_travel *t = r->t;
    int64_t size = t->c.size;
    r->offset = tsi_arena_alloc(&t->arena, (size_t)size * sizeof *r->offset);
    if (!r->offset) return tsi_fail_memory("steps of a ring", (size_t)size * sizeof *r->offset);
    for (int64_t offset = 1; offset < size; offset++) {
        bool any = false;
        tsi_arena_mark mark = tsi_arena_save(&t->arena);
        for (int64_t m = 0; m < size && !any; m++) {
            tsi_span_list need;
            TSI_TRY(tsi_context_need(&t->c, m, (m + size - offset) % size, &t->arena, &need));
            any = need.total > 0;
        }
        tsi_arena_rewind(&t->arena, mark);
        if (any) r->offset[r->steps++] = offset;
    }
    return TS_OK;
}

/* The outputs themselves, unless they are too narrow for sums. */
static ts_status make_sums(ring *r)
{
    const tsi_travel *t = r->t;
    for (int i = 0; i < (t->backward ? 1 : 2); i++) {
        r->sum[i] = t->out[i];
        if ((ts_dtype)t->out[i].dtype == t->sum) continue;
        ts_shape shape = { .ndim = t->out[i].ndim };
        memcpy(shape.extent, t->out[i].extent, sizeof shape.extent);
        tsi_array *array = tsi_array_create(t->io->rank, t->sum, &shape);
        if (!array) return ts_rank_status(t->io->rank);
        r->array[r->arrays++] = array;
        r->sum[i] = tsi_array_block(array);
    }
    return TS_OK;
}

static ts_status make_rows(ring *r, int64_t rows, ts_dtype dtype, tsi_block block[2])
{
    ts_status status = tsi_travel_rows(r->t, rows, dtype, r->array + r->arrays, block);
    r->arrays += 2;
    return status;
}

/* Places for what comes and goes; sums of my gradients where the outputs are too narrow. */
static ts_status make_places(ring *r)
{
    tsi_travel *t = r->t;
    int64_t most = 0;
    for (int64_t s = 0; s < t->c.size; s++)
        if (s != t->c.me) most = tsi_max_i64(most, list_of(r, s).total);
    int places = r->steps < 2 ? (int)r->steps : 2;
    for (int place = 0; place < places && !r->in_place; place++)
        TSI_TRY(make_rows(r, most, (ts_dtype)t->in[TSI_K].dtype, r->kv[place]));
    if (!t->backward) return TS_OK;
    for (int place = 0; place < places; place++)
        TSI_TRY(make_rows(r, most, t->sum, r->grad[place]));
    r->own[0] = t->out[1];
    r->own[1] = t->out[2];
    if ((ts_dtype)t->out[1].dtype == t->sum) return TS_OK;
    return make_rows(r, t->in[TSI_K].extent[2], t->sum, r->own);
}

static ts_status run_steps(ring *r)
{
    tsi_travel *t = r->t;
    const tsi_device *device = t->device->device;
    TSI_TRY(count_steps(r));
    TSI_TRY(make_sums(r));
    TSI_TRY(make_places(r));
    TSI_TRY(r->in_place ? read_all(r) : travelling(r));
    TSI_TRY(wait_for(&r->going));
    if (t->backward) TSI_TRY(tsi_travel_settle(t, r->own));
    for (int o = 0; o < (t->backward ? 1 : 2); o++)
        if (r->sum[o].data != t->out[o].data)
            TSI_TRY(device->copy(device, &t->out[o], &r->sum[o], t->device->queue));
    return wait_for(&r->coming);
}

static ts_status run_ring(tsi_travel *t, bool in_place)
{
    ring r = { .t = t, .in_place = in_place };
    ts_status status = run_steps(&r);
    /* A step failed while something was on its way: it ends before its memory goes. */
    ts_status late = wait_for(&r.coming), last = wait_for(&r.going);
    if (status == TS_OK) status = late != TS_OK ? late : last;
    if (r.lending.held) tsi_lending_end(t->io->group, &r.lending);
    for (int i = 0; i < r.arrays; i++)
        tsi_array_release(r.array[i]);
    return status;
}

static ts_status in_ring(tsi_travel *t)
{
    return run_ring(t, false);
}

ts_status tsi_ring_in_place(tsi_travel *t)
{
    return run_ring(t, true);
}

/* Of the world: a rank that records a step has a device of its own, on which nothing is read. One
 * without data is the host where it takes the scratch of its kernels. */
static bool host_reads(const tsi_algorithm_io *io)
{
    ts_world *world = io->rank->world;
    return tsi_world_describes(world) ? world->scratch : tsi_world_device(world)->host_readable;
}

bool tsi_travel_in_place(const tsi_algorithm_io *io)
{
    return host_reads(io) && tsi_group_lends(io->group);
}

ts_status tsi_context_ring(const tsi_algorithm_io *io)
{
    return tsi_travel_run(io, tsi_travel_in_place(io) ? tsi_ring_in_place : in_ring);
}
