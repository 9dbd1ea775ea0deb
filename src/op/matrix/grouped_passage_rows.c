/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_passage_rows.c - rows to the experts that were chosen for them, and what they made of
 * them back; one number for each choice the same ways. See grouped_passage.h. */
#include <string.h>

#include "base/alloc.h"
#include "op/matrix/grouped_passage.h"
#include "tessera/comm.h"

static char *data_of(const ts_tensor *t)
{
    return tsi_array_data(t->array);
}

ts_tensor *tsi_passage_sum(const tsi_passage *p, ts_tensor *rows, ts_tensor *place, int64_t count)
{
    if (!rows) return NULL;
    ts_dtype own = (ts_dtype)rows->dtype;
    ts_shape shape = ts_tensor_shape(rows);
    bool small = ts_dtype_size(own) < 4;
    shape.extent[0] = count;
    ts_tensor *to = tsi_passage_zeros(p, small ? TS_DTYPE_F32 : own, shape);
    ts_tensor *sum = (ts_index_add_)(to, 0, place, small ? ts_cast(rows, TS_DTYPE_F32) : rows);
    return small ? ts_cast(sum, own) : sum;
}

/* ---- moving rows ----------------------------------------------------------------------------- */

typedef struct parts {
    ts_part *part;
    int64_t count;
} parts;

/* Elements from a block's `first` on; what follows the part before without a gap joins it. */
static void add_part(parts *to, int64_t peer, char *data, int64_t count, size_t size, int combine)
{
    ts_part *last = to->count > 0 ? &to->part[to->count - 1] : NULL;
    if (count == 0) return;
    if (last && !combine && last->peer == peer && !last->combine &&
        (char *)last->data + (size_t)last->extent[0] * size == data) {
        last->extent[0] += count;
        return;
    }
    to->part[to->count++] = (ts_part){ .peer = peer,
                                       .data = data,
                                       .ndim = 1,
                                       .combine = combine,
                                       .extent = { count },
                                       .stride = { 1 } };
}

static ts_status parts_make(tsi_passage *p, int64_t count, parts *out)
{
    size_t bytes = ((size_t)count + 1) * sizeof *out->part;
    *out = (parts){ tsi_arena_alloc(&p->arena, bytes), 0 };
    return out->part ? TS_OK : tsi_fail_memory("the parts of an exchange", bytes);
}

/* `work` not NULL: goes on by itself until that is waited for. */
static ts_status swap(const tsi_passage *p, const ts_tensor *like, const parts *send,
                      const parts *recv, ts_work **work)
{
    ts_exchange round = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    round.dtype = (int32_t)like->dtype;
    round.reduce = TS_REDUCE_SUM;
    round.device = tsi_array_device(like->array);
    round.send = send->part;
    round.send_count = send->count;
    round.recv = recv->part;
    round.recv_count = recv->count;
    options.name = p->io->op->name;
    options.work = work;
    return (ts_group_exchange)(p->group, &round, &options);
}

/* Rows for one member; where there is no data, as many from the first on. */
static void add_rows(parts *send, int64_t j, const tsi_route_leg *l, char *data, int64_t length,
                     size_t size)
{
    int64_t row = length * (int64_t)size;
    for (int64_t i = l->out_first[j]; l->out_row && i < l->out_first[j + 1]; i++)
        add_part(send, j, data + l->out_row[i] * row, length, size, 0);
    if (!l->out_row)
        add_part(send, j, data, (l->out_first[j + 1] - l->out_first[j]) * length, size, 0);
}

/* Rows of `from` go to who holds their experts: [held, C] in `to`; the own ones `with_own`. */
static ts_status send_rows(tsi_passage *p, int leg, const ts_tensor *from, const ts_tensor *to,
                           bool with_own, ts_work **work)
{
    const tsi_route_leg *l = &p->route.leg[leg];
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    int64_t row = p->width * (int64_t)size, me = ts_group_index(p->group);
    parts send, recv;
    TSI_TRY(parts_make(p, l->out_row ? l->out_first[p->size] : p->size, &send));
    TSI_TRY(parts_make(p, p->size, &recv));
    for (int64_t j = 0; j < p->size; j++) {
        if (j == me && !with_own) continue;
        add_rows(&send, j, l, data_of(from), p->width, size);
        add_part(&recv, j, data_of(to) + l->in_first[j] * row,
                 (l->in_first[j + 1] - l->in_first[j]) * p->width, size, 0);
    }
    return swap(p, to, &send, &recv, work);
}

/* ---- results --------------------------------------------------------------------------------- */

typedef struct results { /* of rows that were sent */
    int64_t count;       /* rows */
    int64_t *first;      /* [count + 1]: where those of a row begin */
    int64_t *holder;     /* who has one, in the order of members */
    bool gaps;           /* there is a row without any */
} results;

/* A stable sort of what was sent by row. Where there is no data nobody asks. */
static ts_status results_of(tsi_passage *p, int leg, int64_t count, results *r)
{
    const tsi_route_leg *l = &p->route.leg[leg];
    int64_t out = l->out_first[p->size];
    *r = (results){ .count = count };
    if (!l->out_row) return TS_OK;
    r->first = tsi_arena_calloc(&p->arena, (size_t)count + 2, sizeof *r->first);
    r->holder = tsi_arena_alloc(&p->arena, ((size_t)out + 1) * sizeof *r->holder);
    if (!r->first || !r->holder) return tsi_fail_memory("the results of rows", (size_t)out * 8);
    for (int64_t i = 0; i < out; i++)
        r->first[l->out_row[i] + 2]++;
    for (int64_t row = 0; row < count; row++)
        r->first[row + 2] += r->first[row + 1];
    for (int64_t j = 0; j < p->size; j++)
        for (int64_t i = l->out_first[j]; i < l->out_first[j + 1]; i++)
            r->holder[r->first[l->out_row[i] + 1]++] = j;
    for (int64_t row = 0; row < count; row++)
        r->gaps |= r->first[row] == r->first[row + 1];
    return TS_OK;
}

/* Do two rows have their results with the same holders? */
static bool alike(const results *r, int64_t a, int64_t b)
{
    int64_t count = r->first[b + 1] - r->first[b];
    return r->first[a + 1] - r->first[a] == count &&
           memcmp(r->holder + r->first[a], r->holder + r->first[b],
                  (size_t)count * sizeof *r->holder) == 0;
}

/* Rows [begin, end), which are alike: what this rank made of them first, if `own` is its number (it
 * lies there), then those of holders. */
static void add_results(parts *recv, const results *r, int64_t begin, int64_t end, int64_t own,
                        ts_part block)
{
    block.extent[0] *= end - begin;
    if (own >= 0) {
        block.peer = own;
        recv->part[recv->count++] = block;
        block.combine = 1;
    }
    for (int64_t i = r->first[begin]; i < r->first[begin + 1]; i++) {
        block.peer = r->holder[i];
        recv->part[recv->count++] = block;
        block.combine = 1;
    }
}

/* What holders made of rows comes back and folds into `to`, row by row. On the second leg this rank
 * has made a part of each itself, which lies there. */
static ts_status return_rows(tsi_passage *p, int leg, const ts_tensor *from, const ts_tensor *to,
                             const results *r, ts_work **work)
{
    const tsi_route_leg *l = &p->route.leg[leg];
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    int64_t row_bytes = p->width * (int64_t)size, me = ts_group_index(p->group);
    int64_t out = l->out_first[p->size], own = leg ? me : -1, count = r->first ? r->count : 0;
    parts send, recv;
    TSI_TRY(parts_make(p, out + p->size, &send));
    TSI_TRY(parts_make(p, 2 * out + p->size, &recv));
    for (int64_t j = 0; j < p->size; j++) {
        add_part(&send, j, data_of(from) + l->in_first[j] * row_bytes,
                 (l->in_first[j + 1] - l->in_first[j]) * p->width, size, 0);
        for (int64_t row = 0; leg && j == me && row < count; row++)
            if (r->first[row] < r->first[row + 1])
                add_part(&send, me, data_of(to) + row * row_bytes, p->width, size, 0);
        if (!r->first)
            add_part(&recv, j, data_of(to), (l->out_first[j + 1] - l->out_first[j]) * p->width,
                     size, 0);
    }
    for (int64_t row = 0, end; row < count; row = end) {
        ts_part block = { .data = data_of(to) + row * row_bytes,
                          .ndim = 1,
                          .extent = { p->width },
                          .stride = { 1 } };
        for (end = row + 1; end < count && alike(r, row, end);)
            end++;
        if (r->first[row] < r->first[row + 1]) add_results(&recv, r, row, end, own, block);
    }
    return swap(p, to, &send, &recv, work);
}

/* One number for each choice, to the holder (or back, from all of them). */
static ts_status pass_slots(tsi_passage *p, const ts_tensor *from, const ts_tensor *to, bool back)
{
    const int64_t *out = back ? p->route.slot_in_first : p->route.slot_out_first;
    const int64_t *in = back ? p->route.slot_out_first : p->route.slot_in_first;
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    parts send, recv;
    TSI_TRY(parts_make(p, p->size, &send));
    TSI_TRY(parts_make(p, p->size, &recv));
    for (int64_t j = 0; j < p->size; j++) {
        add_part(&send, j, data_of(from) + out[j] * (int64_t)size, out[j + 1] - out[j], size, 0);
        add_part(&recv, j, data_of(to) + in[j] * (int64_t)size, in[j + 1] - in[j], size, 0);
    }
    return swap(p, to, &send, &recv, NULL);
}

/* ---- rows there and back --------------------------------------------------------------------- */

ts_status tsi_passage_bring(tsi_passage *p, ts_tensor *t, bool with_own, tsi_bringing *b)
{
    *b = (tsi_bringing){ .rows = tsi_passage_block(p, t, p->width) };
    b->held = b->rows;
    if (!b->rows || !p->group) return tsi_passage_status(p);
    b->held = tsi_passage_room(p, (ts_dtype)b->rows->dtype, TS_SHAPE(p->route.held, p->width));
    if (!b->held) return tsi_passage_status(p);
    return send_rows(p, 0, b->rows, b->held, with_own, &b->work);
}

ts_tensor *tsi_passage_brought(tsi_passage *p, tsi_bringing *b)
{
    ts_status status = ts_work_wait(b->work);
    if (status == TS_OK && b->held && p->group && p->route.has_second)
        status = send_rows(p, 1, b->held, b->held, true, NULL);
    return status == TS_OK ? b->held : NULL;
}

/* The choices of this rank's rows by holder. */
static ts_tensor *choices_out(const tsi_passage *p)
{
    int64_t count = p->route.slot_out_first[p->size];
    return p->route.slot_out ? tsi_passage_index(p, p->route.slot_out, count)
                             : tsi_passage_room(p, TS_DTYPE_I64, TS_SHAPE(count));
}

ts_tensor *tsi_passage_bring_weights(tsi_passage *p)
{
    ts_tensor *weight = tsi_passage_block(p, p->in[TSI_MLP_WEIGHT], p->choices), *came = NULL;
    weight = (ts_reshape)(weight, TS_SHAPE(p->rows * p->choices));
    weight = (ts_index_select)(weight, 0, choices_out(p));
    if (weight && p->group) {
        came = tsi_passage_room(p, (ts_dtype)weight->dtype, TS_SHAPE(p->slots));
        if (!came || pass_slots(p, weight, came, false) != TS_OK) return NULL;
        weight = came;
    }
    return (ts_index_select)(weight, 0, p->slot);
}

/* The move holds what peers read and what they are read into. */
static tsi_move *on_its_way(const tsi_passage *p, ts_work *work, const ts_tensor *from,
                            const ts_tensor *to)
{
    tsi_move *move = tsi_move_create(p->io->rank, work, 2);
    if (!move) return NULL;
    tsi_move_hold(move, from->array);
    tsi_move_hold(move, to->array);
    return move;
}

ts_tensor *tsi_passage_return(tsi_passage *p, ts_tensor *back, const ts_shape *block,
                              tsi_move **move)
{
    results r;
    ts_work *work = NULL;
    *move = NULL;
    if (!back || !p->group) return (ts_reshape)(back, *block);
    if (p->route.has_second && (results_of(p, 1, p->route.held, &r) != TS_OK ||
                                return_rows(p, 1, back, back, &r, NULL) != TS_OK))
        return NULL;
    if (results_of(p, 0, p->rows, &r) != TS_OK) return NULL;
    ts_dtype dtype = (ts_dtype)back->dtype;
    ts_tensor *home = (r.gaps ? tsi_passage_zeros : tsi_passage_room)(p, dtype, *block);
    if (!home || return_rows(p, 0, back, home, &r, &work) != TS_OK) return NULL;
    *move = on_its_way(p, work, back, home);
    return *move ? home : NULL;
}

ts_tensor *tsi_passage_return_weights(tsi_passage *p, ts_tensor *made, const ts_shape *block)
{
    int64_t out = p->route.slot_out_first[p->size];
    ts_tensor *back = tsi_passage_sum(p, made, p->slot, p->slots);
    if (back && p->group) {
        ts_tensor *home = tsi_passage_room(p, (ts_dtype)back->dtype, TS_SHAPE(out));
        if (!home || pass_slots(p, back, home, true) != TS_OK) return NULL;
        back = home;
    }
    back = tsi_passage_sum(p, back, choices_out(p), p->rows * p->choices);
    return (ts_reshape)(back, *block);
}
