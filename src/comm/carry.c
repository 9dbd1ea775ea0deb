/* SPDX-License-Identifier: Apache-2.0 */
/* carry.c - the data movement of collectives between works of one process: one copy per byte.
 *
 * An operation is cut into equal parts that different threads run. Where all members end with the
 * same array, or fold into one, a part is a slice of the full array, whoever owns its rows, so that
 * uneven rows do not make uneven parts; otherwise a part is a range of members.
 *
 *   all_reduce, slice p:   in_0 ... in_n-1  --fold-->  out_0  --copy (hot in cache)-->  out_1 ...
 *
 * INV: a slice is read and written by one part only, and an element's inputs are all read before
 * its output is written: in and out of an all_reduce may be the same memory. With a stream this
 * holds in its order, and nothing is cut for caches. Copies of one operation are independent of
 * each other, so a device that takes lists of them gets them together. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/slots.h"

enum {
    SMALL = 12, /* blocks that fit a canvas without allocation */
    CHUNK_BYTES =
        1 << 18,         /* all blocks of one step together: they stay in the second-level cache */
    CHUNK_MIN = 1 << 12, /* of one block: below it the calls cost more than the misses */
    SLICE_ALIGN = 32     /* elements: slices of dense arrays begin on whole cache lines */
};

/* ---- copies and folds ------------------------------------------------------------------------ */

ts_status tsi_mover_flush(tsi_mover by)
{
    if (by.moves == NULL || by.moves->count == 0) return TS_OK;
    int64_t count = by.moves->count;
    by.moves->count = 0;
    return by.device->copy_list(by.device, by.moves->to, by.moves->from, count, by.stream);
}

ts_status tsi_mover_copy(tsi_mover by, const tsi_block *to, const tsi_block *from)
{
    tsi_moves *moves = by.moves;
    if (moves == NULL) return by.device->copy(by.device, to, from, by.stream);
    moves->to[moves->count] = *to;
    moves->from[moves->count++] = *from;
    return moves->count == TSI_MOVES_MAX ? tsi_mover_flush(by) : TS_OK;
}

ts_status tsi_mover_fold(tsi_mover by, const tsi_block *to, const tsi_block *const *from,
                         int64_t count, ts_reduce reduce, int64_t avg_count)
{
    TSI_TRY(tsi_mover_flush(by));
    return by.device->fold(by.device, to, from, count, reduce, avg_count, by.stream);
}

/* ---- boxes: a range of row-major positions as few rectangular pieces ------------------------- */

typedef struct box {
    int64_t start[TS_NDIM_MAX], extent[TS_NDIM_MAX];
} box;

/* The largest box that begins at `position` and holds at most `most` (>= 1) elements; its count. */
static int64_t next_box(const tsi_block *space, int64_t position, int64_t most, box *out)
{
    int64_t rest = position, inner = 1;
    int32_t d = space->ndim - 1;
    for (int32_t i = d; i >= 0; i--) {
        out->start[i] = rest % space->extent[i];
        out->extent[i] = 1;
        rest /= space->extent[i];
    }
    while (d > 0 && out->start[d] == 0 && inner * space->extent[d] <= most) {
        out->extent[d] = space->extent[d];
        inner *= space->extent[d];
        d--;
    }
    out->extent[d] = tsi_min_i64(most / inner, space->extent[d] - out->start[d]);
    return inner * out->extent[d];
}

static void block_at(const tsi_block *block, const box *where, tsi_block *out)
{
    int64_t skip = 0;
    out->dtype = block->dtype;
    out->ndim = block->ndim;
    for (int32_t d = 0; d < block->ndim; d++) {
        skip += where->start[d] * block->stride[d];
        out->extent[d] = where->extent[d];
        out->stride[d] = block->stride[d];
    }
    out->data = (char *)block->data + skip * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
}

/* ---- a canvas: blocks of equal extents, the first `ins` of them read, the others written ----- */

typedef struct canvas {
    tsi_mover by;
    int64_t ins, outs;
    ts_reduce reduce; /* NONE: copy the one input */
    tsi_block *base, *sub;
    const tsi_block **from;
    void *heap;
    tsi_block small_base[SMALL], small_sub[SMALL];
    const tsi_block *small_from[SMALL];
} canvas;

static ts_status canvas_open(canvas *c, tsi_mover by, const tsi_work *work, int64_t ins,
                             int64_t outs)
{
    c->by = by;
    c->ins = ins;
    c->outs = outs;
    c->reduce = (ts_reduce)work->print.reduce;
    c->heap = NULL;
    c->base = c->small_base;
    c->sub = c->small_sub;
    c->from = c->small_from;
    if (ins + outs <= SMALL) return TS_OK;
    size_t count = (size_t)(ins + outs);
    c->heap = tsi_alloc_array(count, 2 * sizeof(tsi_block) + sizeof(void *));
    if (c->heap == NULL) return TS_ERR_MEMORY;
    c->base = c->heap;
    c->sub = c->base + count;
    c->from = (const tsi_block **)(void *)(c->sub + count);
    return TS_OK;
}

static void canvas_flatten(canvas *c)
{
    int64_t blocks = c->ins + c->outs, count = tsi_block_count(&c->base[0]);
    for (int64_t i = 0; i < blocks; i++)
        if (!tsi_block_is_dense(&c->base[i])) return;
    for (int64_t i = 0; i < blocks; i++) {
        c->base[i].ndim = 1;
        c->base[i].extent[0] = count;
        c->base[i].stride[0] = 1;
    }
}

static ts_status copy_to(const canvas *c, const tsi_block *from, int64_t first)
{
    for (int64_t i = first; i < c->ins + c->outs; i++) {
        if (c->sub[i].data == from->data) continue; /* in place */
        TSI_TRY(tsi_mover_copy(c->by, &c->sub[i], from));
    }
    return TS_OK;
}

static ts_status paint_box(const canvas *c)
{
    if (c->reduce == TS_REDUCE_NONE) return copy_to(c, &c->sub[0], c->ins);
    const tsi_block *target = &c->sub[c->ins];
    TSI_TRY(tsi_mover_fold(c->by, target, c->from, c->ins, c->reduce, 0));
    return copy_to(c, target, c->ins + 1);
}

/* Positions [begin, end) of the blocks. */
static ts_status canvas_paint(canvas *c, int64_t begin, int64_t end)
{
    if (begin >= end || c->outs == 0) return TS_OK;
    int64_t blocks = c->ins + c->outs, most = end - begin;
    if (c->outs > 1 && !c->by.stream) { /* what is folded once is written while it is still near */
        int64_t bytes = tsi_max_i64(CHUNK_BYTES / blocks, CHUNK_MIN);
        most = bytes / (int64_t)ts_dtype_size((ts_dtype)c->base[0].dtype);
    }
    canvas_flatten(c);
    for (int64_t i = 0; i < c->ins; i++)
        c->from[i] = &c->sub[i];
    while (begin < end) {
        box piece = { 0 };
        begin += next_box(&c->base[0], begin, tsi_min_i64(most, end - begin), &piece);
        for (int64_t i = 0; i < blocks; i++)
            block_at(&c->base[i], &piece, &c->sub[i]);
        TSI_TRY(paint_box(c));
    }
    return TS_OK;
}

static ts_status canvas_close(canvas *c, ts_status status)
{
    tsi_free(c->heap);
    return status;
}

/* ---- slices ---------------------------------------------------------------------------------- */

typedef struct slice {
    int64_t begin, end;
} slice;

static slice slice_of(int64_t count, int64_t part, int64_t parts)
{
    slice s = { .begin = 0, .end = count };
    if (part > 0) s.begin = count / parts * part + count % parts * part / parts;
    if (part + 1 < parts) s.end = count / parts * (part + 1) + count % parts * (part + 1) / parts;
    if (part > 0) s.begin -= s.begin % SLICE_ALIGN;
    if (part + 1 < parts) s.end -= s.end % SLICE_ALIGN;
    return s;
}

static ts_status move_broadcast(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                                int64_t parts)
{
    const tsi_work *root = work[work[0]->print.root];
    canvas c;
    TSI_TRY(canvas_open(&c, by, root, 1, count - 1));
    c.base[0] = root->out;
    int64_t outs = 0;
    for (int64_t i = 0; i < count; i++)
        if (work[i] != root) c.base[1 + outs++] = work[i]->out;
    slice s = slice_of(tsi_block_count(&root->out), part, parts);
    return canvas_close(&c, canvas_paint(&c, s.begin, s.end));
}

static ts_status move_reduce(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                             int64_t parts)
{
    bool all = work[0]->print.kind == TSI_COMM_ALL_REDUCE;
    int64_t outs = all ? count : 1;
    canvas c;
    TSI_TRY(canvas_open(&c, by, work[0], count, outs));
    for (int64_t i = 0; i < count; i++)
        c.base[i] = work[i]->in;
    for (int64_t i = 0; i < outs; i++) /* the part's own output first: it stays near its thread */
        c.base[count + i] = all ? work[(part + i) % count]->out : work[work[0]->print.root]->out;
    slice s = slice_of(tsi_block_count(&work[0]->in), part, parts);
    return canvas_close(&c, canvas_paint(&c, s.begin, s.end));
}

/* The rows of member j in the full array of all_gather (out) or reduce_scatter (in). */
static slice owner_range(const tsi_work *work, int64_t first, int64_t j, slice s)
{
    bool gather = work->print.kind == TSI_COMM_ALL_GATHER;
    const int64_t *rows = gather ? work->recv_rows : work->send_rows;
    const tsi_block *full = gather ? &work->out : &work->in;
    int64_t own = rows != NULL ? rows[j] : full->extent[0] / work->team->size;
    int64_t row = full->extent[0] > 0 ? tsi_block_count(full) / full->extent[0] : 0;
    slice overlap = { .begin = tsi_max_i64(s.begin, first),
                      .end = tsi_min_i64(s.end, first + own * row) };
    return overlap;
}

static int64_t owner_count(const tsi_work *work, int64_t j)
{
    slice everything = { 0, INT64_MAX };
    return owner_range(work, 0, j, everything).end;
}

/* all_gather: the rows of `owner` go to every member. */
static ts_status gather_rows(tsi_mover by, tsi_work *const *work, int64_t count, int64_t owner,
                             slice s)
{
    canvas c;
    TSI_TRY(canvas_open(&c, by, work[owner], 1, count));
    c.base[0] = work[owner]->in;
    for (int64_t i = 0; i < count; i++)
        (void)tsi_work_recv_block(work[i], owner, &c.base[1 + i]);
    return canvas_close(&c, canvas_paint(&c, s.begin, s.end));
}

/* reduce_scatter: the rows of `owner` in every member fold into its out. */
static ts_status scatter_rows(tsi_mover by, tsi_work *const *work, int64_t count, int64_t owner,
                              slice s)
{
    canvas c;
    TSI_TRY(canvas_open(&c, by, work[owner], count, 1));
    for (int64_t i = 0; i < count; i++)
        (void)tsi_work_send_block(work[i], owner, &c.base[i]);
    c.base[count] = work[owner]->out;
    return canvas_close(&c, canvas_paint(&c, s.begin, s.end));
}

static ts_status move_rows(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                           int64_t parts)
{
    bool gather = work[0]->print.kind == TSI_COMM_ALL_GATHER;
    slice s = slice_of(work[0]->print.count, part, parts);
    int64_t first = 0;
    for (int64_t j = 0; j < count && first < s.end; j++) {
        slice own = owner_range(work[0], first, j, s);
        int64_t next = first + owner_count(work[0], j);
        if (own.begin < own.end) {
            slice local = { own.begin - first, own.end - first };
            TSI_TRY(gather ? gather_rows(by, work, count, j, local)
                           : scatter_rows(by, work, count, j, local));
        }
        first = next;
    }
    return TS_OK;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static ts_status move_pair(tsi_mover by, const tsi_work *from, const tsi_work *to)
{
    tsi_block source, target;
    if (!tsi_work_send_block(from, to->member, &source)) return TS_OK;
    if (!tsi_work_recv_block(to, from->member, &target)) return TS_OK;
    if (source.data == target.data) return TS_OK; /* in place */
    return tsi_mover_copy(by, &target, &source);
}

/* Starts beside the member itself, so that members do not all read the same peer at once. */
static ts_status move_to_member(tsi_mover by, tsi_work *const *work, int64_t count, int64_t member)
{
    for (int64_t k = 0; k < count; k++)
        TSI_TRY(move_pair(by, work[(member + k) % count], work[member]));
    return TS_OK;
}

static ts_status move_members(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                              int64_t parts, char *sentence, size_t size)
{
    tsi_comm_kind kind = (tsi_comm_kind)work[0]->print.kind;
    int64_t root = work[0]->print.root;
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts; i++) {
        if (kind == TSI_COMM_SCATTER)
            TSI_TRY(move_pair(by, work[root], work[i]));
        else if (kind == TSI_COMM_GATHER)
            TSI_TRY(move_pair(by, work[i], work[root]));
        else if (kind == TSI_COMM_ALL_TO_ALL)
            TSI_TRY(move_to_member(by, work, count, i));
        else
            TSI_TRY(tsi_move_exchange(by, work, count, i, sentence, size));
    }
    return TS_OK;
}

static ts_status move_kind(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                           int64_t parts, char *sentence, size_t size)
{
    switch ((tsi_comm_kind)work[0]->print.kind) {
    case TSI_COMM_BROADCAST:
        return move_broadcast(by, work, count, part, parts);
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_REDUCE:
        return move_reduce(by, work, count, part, parts);
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_REDUCE_SCATTER:
        return move_rows(by, work, count, part, parts);
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_EXCHANGE:
        return move_members(by, work, count, part, parts, sentence, size);
    case TSI_COMM_BARRIER:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return TS_OK;
}

static ts_status move_together(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                               int64_t parts, char *sentence, size_t size)
{
    tsi_moves moves;
    moves.count = 0;
    by.moves = &moves;
    TSI_TRY(move_kind(by, work, count, part, parts, sentence, size));
    return tsi_mover_flush(by);
}

const char *tsi_move_reason(const tsi_device *device, ts_status status)
{
    const char *fault = device != NULL && device->fault != NULL ? device->fault(device) : NULL;
    return fault != NULL ? fault : ts_status_meaning(status);
}

ts_status tsi_move_part(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                        int64_t parts, char *sentence, size_t size)
{
    sentence[0] = '\0';
    bool lists = by.stream != NULL && by.device->copy_list != NULL;
    for (int64_t i = 0; i < count && lists; i++) /* between devices a copy is the driver's */
        lists = work[i]->device == by.device;
    ts_status status = lists ? move_together(by, work, count, part, parts, sentence, size)
                             : move_kind(by, work, count, part, parts, sentence, size);
    if (status == TS_OK || sentence[0] != '\0') return status;
    char what[200];
    tsi_fingerprint_text(&work[0]->print, what, sizeof what);
    (void)snprintf(sentence, size, "%s: %s while data was moved", what,
                   tsi_move_reason(by.device, status));
    return status;
}
