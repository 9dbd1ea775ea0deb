/* SPDX-License-Identifier: Apache-2.0 */
/* attention_travel.c - attention over a cut sequence in which keys and values come to the queries:
 * all that are seen at once (gather), or from one member after the other (ring).
 *
 *   gather   one exchange: of each member the keys that my queries see, and no others; one kernel
 *   ring     step i: the keys that I see of member me - i, while those of the step before are
 *            computed; results are merged by their log-sum-exp:
 *                L' = log(e^L + e^l)    O' = O + e^(l - L') (o - O)
 *            offsets at which nobody needs anything take no step
 *   gradients of keys and values go home in one exchange that folds them in the order of ranks
 *
 * INV: rows that a member does not see are not sent to it; a query that sees nothing keeps O = 0
 * and L = -inf, whatever the other results are. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/core/kernel.h"
#include "op/nn/attention_context.h"
#include "tessera/comm.h"

enum { Q, K, V, OUT, LSE, D_OUT };

typedef struct travel {
    const tsi_algorithm_io *io;
    tsi_context c;
    tsi_arena arena;
    tsi_span_list *need;           /* of each member's keys, what I see */
    int64_t *at;                   /* ring: where each member's keys begin in the gradients */
    const tsi_rank_device *device; /* mine */
    ts_dtype sum;                  /* of partial results: f32, or f64 */
    tsi_region region[TSI_INPUT_MAX];
    tsi_block in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    bool backward, gathers;
} travel;

/* ---- parts of exchanges ---------------------------------------------------------------------- */

typedef struct parts {
    ts_part *part;
    int64_t count, room;
} parts;

static ts_status parts_make(travel *t, int64_t room, parts *out)
{
    *out = (parts){ tsi_arena_alloc(&t->arena, ((size_t)room + 1) * sizeof *out->part), 0, room };
    return out->part ? TS_OK : tsi_fail_memory("parts of an exchange", (size_t)room * 200);
}

/* Rows [first, first + count) of dim 2 of a block. */
static void add_rows(parts *to, const tsi_block *block, int64_t peer, int64_t first, int64_t count)
{
    ts_part *part = &to->part[to->count];
    *part = (ts_part){ .peer = peer, .ndim = 4 };
    for (int32_t d = 0; d < 4; d++) {
        part->extent[d] = d == 2 ? count : block->extent[d];
        part->stride[d] = block->stride[d];
        if (part->extent[d] == 0) return;
    }
    part->data = tsi_block_at(block, first * block->stride[2]);
    TSI_ASSERT(to->count < to->room);
    to->count++;
}

static ts_status exchange(travel *t, ts_dtype dtype, const parts *send, const parts *recv,
                          ts_work **work)
{
    ts_exchange round = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    round.dtype = (int32_t)dtype;
    round.device = tsi_array_device(t->io->in[K]->array);
    round.send = send->part;
    round.send_count = send->count;
    round.recv = recv->part;
    round.recv_count = recv->count;
    options.name = t->io->op->name;
    options.work = work;
    return (ts_group_exchange)(t->io->group, &round, &options);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static ts_status regions(travel *t)
{
    const tsi_algorithm_io *io = t->io;
    for (int32_t i = 0; i < io->input_count; i++) {
        t->in[i] = tsi_array_block(io->in[i]->array);
        if (!tsi_layout_region(io->in[i]->layout, io->mesh->coord, &t->arena, &t->region[i]))
            return tsi_fail_memory("a region", sizeof(tsi_region));
    }
    return TS_OK;
}

static ts_status begin(travel *t, const tsi_algorithm_io *io, bool gathers)
{
    *t = (travel){ .io = io, .backward = io->input_count > 3, .gathers = gathers };
    t->device = tsi_rank_device_of(io->rank);
    if (!t->device) return ts_rank_status(io->rank);
    t->sum = io->call->in[Q].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    const ts_layout *layout[TSI_INPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        layout[i] = io->in[i]->layout;
    tsi_context_place place = { io->mesh->desc, io->mesh->coord, io->axes };
    TSI_TRY(tsi_context_make(io->call, layout, &place, &t->arena, &t->c));
    TSI_TRY(regions(t));
    t->need = tsi_arena_calloc(&t->arena, (size_t)t->c.size, sizeof *t->need);
    t->at = tsi_arena_calloc(&t->arena, (size_t)t->c.size + 1, sizeof *t->at);
    if (!t->need || !t->at) return tsi_fail_memory("what a rank needs", (size_t)t->c.size * 96);
    for (int64_t s = 0; s < t->c.size; s++) {
        TSI_TRY(tsi_context_need(&t->c, t->c.me, s, &t->arena, &t->need[s]));
        t->at[s + 1] = t->at[s] + t->need[s].total;
    }
    return TS_OK;
}

/* ---- keys and values to the queries ---------------------------------------------------------- */

/* My rows that a member needs; its keys, then its values, interval by interval. */
static ts_status send_to(travel *t, int64_t to, parts *out)
{
    tsi_span_list need;
    TSI_TRY(tsi_context_need(&t->c, to, t->c.me, &t->arena, &need));
    tsi_context_walk walk = { .list = &need };
    while (tsi_context_next(&walk)) {
        int64_t first = tsi_span_list_find(&t->c.keys[t->c.me], walk.begin);
        add_rows(out, &t->in[K], to, first, walk.count);
        add_rows(out, &t->in[V], to, first, walk.count);
    }
    return TS_OK;
}

/* What comes from a member, into rows that hold the keys of `list`. */
static void recv_from(travel *t, int64_t from, const tsi_span_list *list, const tsi_block block[2],
                      parts *out)
{
    tsi_context_walk walk = { .list = &t->need[from] };
    while (tsi_context_next(&walk)) {
        int64_t first = tsi_span_list_find(list, walk.begin);
        add_rows(out, &block[0], from, first, walk.count);
        add_rows(out, &block[1], from, first, walk.count);
    }
}

static int64_t intervals_all(travel *t, bool sent, int64_t *count)
{
    *count = 0;
    for (int64_t s = 0; s < t->c.size; s++) {
        tsi_span_list need = t->need[s];
        if (sent && tsi_context_need(&t->c, s, t->c.me, &t->arena, &need) != TS_OK) return -1;
        *count += 2 * tsi_span_list_intervals(&need);
    }
    return *count;
}

/* Two arrays [B, G, rows, D] and [B, G, rows, E], of the dtype of k or of sums. */
static ts_status make_rows(travel *t, int64_t rows, ts_dtype dtype, tsi_array *array[2],
                           tsi_block block[2])
{
    for (int i = 0; i < 2; i++) {
        const tsi_block *like = &t->in[K + i];
        ts_shape shape = TS_SHAPE(like->extent[0], like->extent[1], rows, like->extent[3]);
        array[i] = tsi_array_create(t->io->rank, dtype, &shape);
        if (!array[i]) return ts_rank_status(t->io->rank);
        block[i] = tsi_array_block(array[i]);
    }
    return TS_OK;
}

static ts_status gather_rows(travel *t, const tsi_block block[2])
{
    parts send, recv;
    int64_t sends, recvs;
    if (intervals_all(t, true, &sends) < 0 || intervals_all(t, false, &recvs) < 0)
        return TS_ERR_MEMORY;
    TSI_TRY(parts_make(t, sends, &send));
    TSI_TRY(parts_make(t, recvs, &recv));
    for (int64_t s = 0; s < t->c.size; s++) {
        TSI_TRY(send_to(t, s, &send));
        recv_from(t, s, &t->c.sees[t->c.me], block, &recv);
    }
    return exchange(t, (ts_dtype)t->in[K].dtype, &send, &recv, NULL);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* One run of the kernel: my queries against keys and values that stand at the positions of a list;
 * results of any dtype. */
static ts_status run_kernel(travel *t, const tsi_block kv[2], const tsi_span_list *list,
                            const tsi_block *result)
{
    const tsi_algorithm_io *io = t->io;
    tsi_operand in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    tsi_region region[2] = { t->region[K], t->region[V] };
    ts_meta meta[TSI_OUTPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = (tsi_operand){ t->in[i], &io->call->in[i], &t->region[i] };
    for (int i = 0; i < 2; i++) {
        region[i].dim[2] = *list;
        in[K + i].block = kv[i];
        in[K + i].region = &region[i];
    }
    for (int32_t o = 0; o < io->output_count; o++) {
        meta[o] = io->call->out[o];
        meta[o].dtype = result[o].dtype;
        const tsi_region *of = t->backward && o > 0 ? &region[o - 1] : &t->region[Q];
        out[o] = (tsi_operand){ result[o], &meta[o], of };
    }
    tsi_kernel_io kernel = { .op = io->op,
                             .attributes = io->attributes,
                             .in = in,
                             .out = out,
                             .input_count = io->input_count,
                             .output_count = io->output_count,
                             .rank = io->rank,
                             .device = t->device->device,
                             .queue = t->device->queue };
    return tsi_kernel_run(tsi_kernel_of(t->device->device, io->op), &kernel);
}

/* ---- gradients go home ----------------------------------------------------------------------- */

/* Which members see each key of an owner, as runs of keys that the same ones see. */
typedef struct home {
    int64_t owner, rows;
    unsigned char *seen; /* [size][rows] */
    int64_t begin, end;  /* of the run */
} home;

static ts_status home_make(travel *t, int64_t owner, home *out)
{
    const tsi_span_list *keys = &t->c.keys[owner];
    *out = (home){ .owner = owner, .rows = keys->total };
    size_t bytes = (size_t)(t->c.size * keys->total) + 1;
    out->seen = tsi_arena_calloc(&t->arena, bytes, 1);
    if (!out->seen) return tsi_fail_memory("who sees a key", bytes);
    for (int64_t r = 0; r < t->c.size; r++) {
        tsi_span_list need;
        TSI_TRY(tsi_context_need(&t->c, r, owner, &t->arena, &need));
        tsi_context_walk walk = { .list = &need };
        while (tsi_context_next(&walk))
            memset(out->seen + r * keys->total + tsi_span_list_find(keys, walk.begin), 1,
                   (size_t)walk.count);
    }
    return TS_OK;
}

/* A run also ends where positions do not follow each other: rows elsewhere may lie apart. */
static bool home_next(const travel *t, home *h)
{
    const tsi_span_list *keys = &t->c.keys[h->owner];
    h->begin = h->end;
    if (h->begin == h->rows) return false;
    bool same = true;
    while (same && ++h->end < h->rows) {
        same = tsi_span_list_at(keys, h->end) == tsi_span_list_at(keys, h->end - 1) + 1;
        for (int64_t r = 0; r < t->c.size && same; r++)
            same = h->seen[r * h->rows + h->end] == h->seen[r * h->rows + h->end - 1];
    }
    return true;
}

/* Where the gradient of a member's key lies here. */
static int64_t row_of(const travel *t, int64_t owner, int64_t position)
{
    if (t->gathers) return tsi_span_list_find(&t->c.sees[t->c.me], position);
    return t->at[owner] + tsi_span_list_find(&t->need[owner], position);
}

static ts_status send_home(travel *t, home *h, const tsi_block from[2], parts *send)
{
    int64_t me = t->c.me;
    while (home_next(t, h)) {
        if (!h->seen[me * h->rows + h->begin]) continue;
        int64_t position = tsi_span_list_at(&t->c.keys[h->owner], h->begin);
        for (int i = 0; i < 2; i++)
            add_rows(send, &from[i], h->owner, row_of(t, h->owner, position), h->end - h->begin);
    }
    return TS_OK;
}

static void recv_home(travel *t, home *h, const tsi_block to[2], parts *recv)
{
    while (home_next(t, h))
        for (int i = 0; i < 2; i++) {
            int64_t first = recv->count;
            for (int64_t r = 0; r < t->c.size; r++) {
                if (!h->seen[r * h->rows + h->begin]) continue;
                add_rows(recv, &to[i], r, h->begin, h->end - h->begin);
                if (recv->count > first + 1) recv->part[recv->count - 1].combine = 1;
            }
        }
}

/* Sums of gradients of my keys: mine and what others computed, in the order of ranks. */
static ts_status bring_home(travel *t, const tsi_block from[2], const tsi_block to[2])
{
    parts send, recv;
    int64_t mine = t->c.keys[t->c.me].total, all = 0;
    for (int64_t s = 0; s < t->c.size; s++)
        all += t->c.keys[s].total;
    TSI_TRY(parts_make(t, 2 * all, &send));
    TSI_TRY(parts_make(t, 2 * mine * t->c.size, &recv));
    for (int64_t s = 0; s < t->c.size; s++) {
        home h;
        TSI_TRY(home_make(t, s, &h));
        TSI_TRY(send_home(t, &h, from, &send));
        h.end = 0;
        if (s == t->c.me) recv_home(t, &h, to, &recv);
    }
    ts_exchange round = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    round.dtype = (int32_t)t->sum;
    round.reduce = TS_REDUCE_SUM;
    round.device = tsi_array_device(t->io->in[K]->array);
    round.send = send.part;
    round.send_count = send.count;
    round.recv = recv.part;
    round.recv_count = recv.count;
    options.name = t->io->op->name;
    return (ts_group_exchange)(t->io->group, &round, &options);
}

/* dk and dv from where they were computed into the outputs, in their dtype. */
static ts_status settle_gradients(travel *t, const tsi_block from[2])
{
    tsi_array *array[2] = { NULL };
    tsi_block sums[2] = { t->out[1], t->out[2] };
    bool wide = (ts_dtype)t->out[1].dtype == t->sum;
    ts_status status = TS_OK;
    if (!wide) status = make_rows(t, t->in[K].extent[2], t->sum, array, sums);
    if (status == TS_OK) status = bring_home(t, from, sums);
    const tsi_device *device = t->device->device;
    for (int i = 0; i < 2 && status == TS_OK && !wide; i++)
        status = device->copy(device, &t->out[1 + i], &sums[i], t->device->queue);
    tsi_array_release(array[0]);
    tsi_array_release(array[1]);
    return status;
}

/* ---- gather ---------------------------------------------------------------------------------- */

static ts_status gather(travel *t)
{
    tsi_array *array[4] = { NULL };
    tsi_block kv[2], sums[2];
    const tsi_span_list *list = &t->c.sees[t->c.me];
    ts_status status = make_rows(t, list->total, (ts_dtype)t->in[K].dtype, array, kv);
    if (status == TS_OK && t->backward) status = make_rows(t, list->total, t->sum, array + 2, sums);
    if (status == TS_OK) status = gather_rows(t, kv);
    tsi_block result[TSI_OUTPUT_MAX] = { t->out[0], t->out[1] };
    if (t->backward) {
        result[1] = sums[0];
        result[2] = sums[1];
    }
    if (status == TS_OK) status = run_kernel(t, kv, list, result);
    if (status == TS_OK && t->backward) status = settle_gradients(t, sums);
    for (int i = 0; i < 4; i++)
        tsi_array_release(array[i]);
    return status;
}

/* ---- ring ------------------------------------------------------------------------------------ */

typedef struct ring {
    tsi_array *array[10]; /* sums, parts, places, gradients */
    tsi_block kv[2][2];   /* two places: what is computed, and what comes */
    tsi_block part[2];    /* forward: o and lse of one member's keys; backward: dq of them */
    tsi_block sum[2];     /* of all so far: o, lse; or dq */
    tsi_block grad[2];    /* dk and dv of all keys that I see, member after member */
    ts_work *work;
} ring;

static double number(const tsi_block *x, int64_t i)
{
    return x->dtype == TS_DTYPE_F64 ? ((const double *)x->data)[i]
                                    : (double)((const float *)x->data)[i];
}

static void put_number(const tsi_block *x, int64_t i, double value)
{
    if (x->dtype == TS_DTYPE_F64)
        ((double *)x->data)[i] = value;
    else
        ((float *)x->data)[i] = (float)value;
}

/* One more result: rows of o weighed by their log-sum-exp. Blocks are dense. */
static void merge(const tsi_block sum[2], const tsi_block part[2])
{
    int64_t rows = tsi_block_count(&sum[1]), width = sum[0].extent[3];
    for (int64_t r = 0; r < rows; r++) {
        double have = number(&sum[1], r), more = number(&part[1], r);
        if (isinf(more) && more < 0) continue; /* nothing was seen: o is nothing to add */
        bool first = isinf(have) && have < 0;
        double top = have > more ? have : more;
        double both = first ? more : top + log1p(exp(-fabs(have - more)));
        double weight = first ? 1.0 : exp(more - both);
        for (int64_t e = r * width; e < (r + 1) * width; e++) {
            double old = number(&sum[0], e), new = number(&part[0], e);
            put_number(&sum[0], e, first ? new : old + weight *(new - old));
        }
        put_number(&sum[1], r, both);
    }
}

static void add(const tsi_block *sum, const tsi_block *part)
{
    int64_t count = tsi_block_count(sum);
    for (int64_t i = 0; i < count; i++)
        put_number(sum, i, number(sum, i) + number(part, i));
}

/* Rows of gradients of one member's keys. */
static tsi_block rows_at(const tsi_block *block, int64_t first, int64_t count)
{
    tsi_block rows = *block;
    rows.data = tsi_block_at(block, first * block->stride[2]);
    rows.extent[2] = count;
    return rows;
}

/* One member's keys: the kernel, and what it adds to. */
static ts_status take(travel *t, ring *r, int64_t from, const tsi_block kv[2], bool first)
{
    const tsi_span_list *list = &t->need[from];
    const tsi_block rows[2] = { rows_at(&kv[0], 0, list->total), rows_at(&kv[1], 0, list->total) };
    tsi_block result[TSI_OUTPUT_MAX] = { first ? r->sum[0] : r->part[0],
                                         first ? r->sum[1] : r->part[1] };
    if (!first && list->total == 0) return TS_OK;
    if (t->backward)
        for (int i = 0; i < 2; i++)
            result[1 + i] = rows_at(&r->grad[i], t->at[from], list->total);
    TSI_TRY(run_kernel(t, rows, list, result));
    if (first) return TS_OK;
    if (t->backward)
        add(&r->sum[0], &r->part[0]);
    else
        merge(r->sum, r->part);
    return TS_OK;
}

/* Starts what comes at an offset; *any: whether anybody needs anything there. */
static ts_status start(travel *t, ring *r, int64_t offset, int place, bool *any)
{
    int64_t size = t->c.size, to = (t->c.me + offset) % size;
    int64_t from = (t->c.me + size - offset) % size;
    parts send, recv;
    *any = false;
    tsi_arena_mark mark = tsi_arena_save(&t->arena);
    for (int64_t m = 0; m < size && !*any; m++) {
        tsi_span_list need;
        TSI_TRY(tsi_context_need(&t->c, m, (m + size - offset) % size, &t->arena, &need));
        *any = need.total > 0;
    }
    tsi_arena_rewind(&t->arena, mark);
    if (!*any) return TS_OK;
    tsi_span_list out;
    TSI_TRY(tsi_context_need(&t->c, to, t->c.me, &t->arena, &out));
    TSI_TRY(parts_make(t, 2 * tsi_span_list_intervals(&out), &send));
    TSI_TRY(parts_make(t, 2 * tsi_span_list_intervals(&t->need[from]), &recv));
    TSI_TRY(send_to(t, to, &send));
    recv_from(t, from, &t->need[from], r->kv[place], &recv);
    return exchange(t, (ts_dtype)t->in[K].dtype, &send, &recv, &r->work);
}

/* The next offset at which something travels, started; `size`: there is none. */
static ts_status start_next(travel *t, ring *r, int64_t offset, int place, int64_t *next)
{
    bool any = false;
    ts_status status = TS_OK;
    for (*next = offset + 1; *next < t->c.size && status == TS_OK; (*next)++) {
        status = start(t, r, *next, place, &any);
        if (any) return status;
    }
    return status;
}

static ts_status ring_steps(travel *t, ring *r)
{
    int64_t size = t->c.size, next;
    int place = 0;
    const tsi_block own[2] = { t->in[K], t->in[V] };
    TSI_TRY(start_next(t, r, 0, place, &next));
    TSI_TRY(take(t, r, t->c.me, own, true));
    while (next < size) {
        int64_t now = next;
        ts_work *work = r->work;
        r->work = NULL;
        TSI_TRY(ts_work_wait(work));
        TSI_TRY(start_next(t, r, now, !place, &next));
        TSI_TRY(take(t, r, (t->c.me + size - now) % size, r->kv[place], false));
        place = !place;
    }
    return TS_OK;
}

static ts_status make_sums(travel *t, ring *r)
{
    const tsi_block *q = &t->in[Q];
    int64_t last = t->backward ? q->extent[3] : t->in[V].extent[3];
    ts_shape shape[2] = { TS_SHAPE(q->extent[0], q->extent[1], q->extent[2], last),
                          TS_SHAPE(q->extent[0], q->extent[1], q->extent[2]) };
    for (int i = 0; i < 4; i++) {
        r->array[i] = tsi_array_create(t->io->rank, t->sum, &shape[i % 2]);
        if (!r->array[i]) return ts_rank_status(t->io->rank);
    }
    for (int i = 0; i < 2; i++) {
        r->sum[i] = tsi_array_block(r->array[i]);
        r->part[i] = tsi_array_block(r->array[2 + i]);
    }
    return TS_OK;
}

static ts_status ring_run(travel *t, ring *r)
{
    const tsi_device *device = t->device->device;
    int64_t most = 0;
    for (int64_t s = 0; s < t->c.size; s++)
        if (s != t->c.me) most = tsi_max_i64(most, t->need[s].total);
    TSI_TRY(make_sums(t, r));
    ts_dtype dtype = (ts_dtype)t->in[K].dtype;
    for (int place = 0; place < 2; place++)
        TSI_TRY(make_rows(t, most, dtype, r->array + 4 + 2 * place, r->kv[place]));
    if (t->backward) TSI_TRY(make_rows(t, t->at[t->c.size], t->sum, r->array + 8, r->grad));
    TSI_TRY(ring_steps(t, r));
    if (t->backward) TSI_TRY(settle_gradients(t, r->grad));
    for (int o = 0; o < (t->backward ? 1 : 2); o++)
        TSI_TRY(device->copy(device, &t->out[o], &r->sum[o], t->device->queue));
    return TS_OK;
}

static ts_status in_ring(travel *t)
{
    ring r = { .work = NULL };
    ts_status status = ring_run(t, &r);
    if (r.work) { /* a step failed while the next was on its way */
        ts_status late = ts_work_wait(r.work);
        if (status == TS_OK) status = late;
    }
    for (int i = 0; i < 10; i++)
        tsi_array_release(r.array[i]);
    return status;
}

/* ---- both ------------------------------------------------------------------------------------ */

static ts_status run(const tsi_algorithm_io *io, bool gathers)
{
    travel t;
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = begin(&t, io, gathers);
    if (status == TS_OK) status = tsi_algorithm_blocks(io, result);
    for (int32_t o = 0; o < io->output_count && status == TS_OK; o++)
        t.out[o] = tsi_array_block(result[o]);
    if (status == TS_OK) status = gathers ? gather(&t) : in_ring(&t);
    tsi_arena_release(&t.arena);
    return tsi_algorithm_finish(io, result, status);
}

ts_status tsi_context_gather(const tsi_algorithm_io *io)
{
    return run(io, true);
}

/* The host merges: on a device it cannot read, everything is gathered. */
ts_status tsi_context_ring(const tsi_algorithm_io *io)
{
    const tsi_rank_device *mine = tsi_rank_device_of(io->rank);
    return run(io, mine && !mine->device->host_readable);
}
