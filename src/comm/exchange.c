/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.c - lists of strided blocks, matched as streams of elements.
 *
 * The send parts of p for me, one after another and row-major each, are a stream; my recv parts
 * from p eat it in list order. A recv part and those that combine with it are one target with
 * several streams:
 *
 *   recv: [block B from 2] [B from 0, combine] [B from 1, combine]
 *   B = fold(stream 2, stream 0, stream 1)
 *
 * Blocks of a target that can be given the same extents (a dense block may be cut anywhere a
 * strided one is) move whole; otherwise in runs that are straight lines in every block. Rows, of
 * which there may be very many, are lines as they come.
 *
 * Where members lend each other their memory (comm.h), nothing is written but where parts lie.
 *
 * INV: nothing is written before the counts of all streams of this member were found to agree. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/slots.h"

enum { SMALL = 16 };

/* ---- streams --------------------------------------------------------------------------------- */

typedef struct stream {
    const ts_part *part, *end; /* the rest of the parts for me */
    int64_t offset;            /* elements of *part that are eaten */
    int64_t left;              /* elements in all */
    bool straight;             /* each part is a line without gaps */
} stream;

static bool is_line(const ts_part *part)
{
    return part->ndim == 1 && part->stride[0] == 1;
}

/* The first part for `peer` or a later one; send parts are in order of peers. */
static const ts_part *lower_bound(const tsi_work *work, int64_t peer)
{
    int64_t low = 0, high = work->send_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (work->send[middle].peer < peer)
            low = middle + 1;
        else
            high = middle;
    }
    return work->send + low;
}

static stream stream_open(const tsi_work *from, int64_t to)
{
    stream s = { 0 };
    if (from->send_count == 0) return s;
    s.part = lower_bound(from, to);
    s.end = lower_bound(from, to + 1);
    s.straight = true;
    for (const ts_part *part = s.part; part < s.end; part++) {
        s.left += tsi_part_elements(part);
        s.straight = s.straight && is_line(part);
    }
    return s;
}

static void stream_skip(stream *s, int64_t count)
{
    s->left -= count;
    s->offset += count;
    while (s->part < s->end && s->offset >= tsi_part_elements(s->part)) {
        s->offset -= tsi_part_elements(s->part);
        s->part++;
    }
}

/* ---- runs: straight lines in a block --------------------------------------------------------- */

/* Merges neighbouring dims that one stride walks. */
static void simplify(tsi_block *block)
{
    tsi_block other = *block;
    tsi_block_coalesce_pair(block, &other);
    if (block->ndim > 0) return;
    block->ndim = 1;
    block->extent[0] = 1;
    block->stride[0] = 1;
}

/* The straight line at row-major position `at` of a simplified block, at most `most` long. */
static tsi_block run_at(const tsi_block *block, int64_t at, int64_t most)
{
    int32_t last = block->ndim - 1;
    int64_t rest = at, skip = 0;
    for (int32_t d = last; d >= 0; d--) {
        skip += rest % block->extent[d] * block->stride[d];
        rest /= block->extent[d];
    }
    tsi_block run = { .dtype = block->dtype, .ndim = 1 };
    run.data = (char *)block->data + skip * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    run.extent[0] = tsi_min_i64(most, block->extent[last] - at % block->extent[last]);
    run.stride[0] = block->stride[last];
    return run;
}

/* ---- the same extents ------------------------------------------------------------------------ */

/* Where row-major position `inner` of a block's innermost elements falls: the dim, and how many
 * elements lie in the dims inside it. */
static int32_t dim_at(const tsi_block *block, int64_t inner, int64_t *inside)
{
    int32_t d = block->ndim - 1;
    *inside = 1;
    while (d > 0 && *inside * block->extent[d] <= inner)
        *inside *= block->extent[d--];
    return d;
}

/* Cuts dims of simplified blocks of `count` elements each, so that all have the same extents; their
 * order is kept. False: there are no such extents, and nothing was changed. */
static bool equalise(tsi_block *const *block, int64_t blocks, int64_t count)
{
    int64_t step[TS_NDIM_MAX + 1] = { 1 }, inside; /* elements inside of each new dim */
    int32_t dims = 0;
    for (; step[dims] < count; dims++) {
        int64_t inner = step[dims], least = INT64_MAX;
        if (dims == TS_NDIM_MAX) return false;
        for (int64_t i = 0; i < blocks; i++) {
            int32_t d = dim_at(block[i], inner, &inside);
            least = tsi_min_i64(least, inside * block[i]->extent[d] / inner);
        }
        for (int64_t i = 0; i < blocks; i++) {
            int32_t d = dim_at(block[i], inner, &inside);
            if (inside * block[i]->extent[d] / inner % least != 0) return false;
        }
        step[dims + 1] = inner * least;
    }
    for (int64_t i = 0; i < blocks; i++) {
        tsi_block cut = { .data = block[i]->data, .dtype = block[i]->dtype, .ndim = dims };
        for (int32_t k = 0; k < dims; k++) {
            int32_t d = dim_at(block[i], step[k], &inside);
            cut.extent[dims - 1 - k] = step[k + 1] / step[k];
            cut.stride[dims - 1 - k] = block[i]->stride[d] * (step[k] / inside);
        }
        *block[i] = cut;
    }
    return true;
}

ts_status tsi_move_stream(tsi_mover by, const tsi_block *to, const tsi_block *from)
{
    int64_t count = tsi_block_count(to);
    if (count == 0) return TS_OK;
    if (to->ndim == from->ndim &&
        memcmp(to->extent, from->extent, (size_t)to->ndim * sizeof *to->extent) == 0)
        return tsi_mover_copy(by, to, from);
    tsi_block target = *to, source = *from;
    simplify(&target);
    simplify(&source);
    if (equalise((tsi_block *const[]){ &target, &source }, 2, count))
        return tsi_mover_copy(by, &target, &source);
    for (int64_t at = 0; at < count;) {
        tsi_block left = run_at(&target, at, count - at);
        tsi_block right = run_at(&source, at, left.extent[0]);
        left.extent[0] = right.extent[0];
        TSI_TRY(tsi_mover_copy(by, &left, &right));
        at += left.extent[0];
    }
    return TS_OK;
}

/* ---- one target ------------------------------------------------------------------------------ */

typedef struct source {
    stream stream;
    tsi_block block; /* of this step */
} source;

typedef struct target {
    tsi_mover by;
    const tsi_work *work;
    const ts_part *part; /* the first of the chain */
    int64_t chain;       /* how many parts it has */
    source *source;      /* room for the longest chain */
    const tsi_block **from;
    tsi_block **same; /* room for the chain and its target */
} target;

static ts_status put_blocks(const target *t, const tsi_block *to)
{
    if (t->chain == 1) {
        if (to->data == t->source[0].block.data) return TS_OK; /* a part sent to itself, in place */
        return tsi_mover_copy(t->by, to, &t->source[0].block);
    }
    for (int64_t i = 0; i < t->chain; i++)
        t->from[i] = &t->source[i].block;
    return tsi_mover_fold(t->by, to, t->from, t->chain, (ts_reduce)t->work->print.reduce,
                          t->work->avg_count);
}

/* Blocks of the sources, if each is one whole part of its stream. */
static bool whole_parts(const target *t, int64_t count)
{
    for (int64_t i = 0; i < t->chain; i++) {
        const stream *s = &t->source[i].stream;
        if (s->offset != 0 || tsi_part_elements(s->part) != count) return false;
        t->source[i].block = tsi_part_block(s->part, t->work->print.dtype);
    }
    return true;
}

static bool same_extents(const target *t)
{
    for (int64_t i = 0; i < t->chain; i++) {
        const tsi_block *block = &t->source[i].block;
        if (block->ndim != t->part->ndim) return false;
        for (int32_t d = 0; d < t->part->ndim; d++)
            if (block->extent[d] != t->part->extent[d]) return false;
    }
    return true;
}

/* The target and its sources as blocks of the same extents. */
static bool moves_whole(const target *t, int64_t count, tsi_block *to)
{
    if (!whole_parts(t, count)) return false;
    *to = tsi_part_block(t->part, t->work->print.dtype);
    if (same_extents(t)) return true;
    simplify(to);
    for (int64_t i = 0; i < t->chain; i++) {
        t->same[i] = &t->source[i].block;
        simplify(t->same[i]);
    }
    t->same[t->chain] = to;
    return equalise(t->same, t->chain + 1, count);
}

/* What a stream gives next, at most `most` elements of one straight line. */
static tsi_block next_run(const stream *s, int32_t dtype, int64_t most)
{
    if (s->part->ndim == 1) { /* rows, of which there may be very many */
        tsi_block run = { .dtype = dtype, .ndim = 1 };
        run.data = (char *)s->part->data +
                   s->offset * s->part->stride[0] * (int64_t)ts_dtype_size((ts_dtype)dtype);
        run.extent[0] = tsi_min_i64(most, s->part->extent[0] - s->offset);
        run.stride[0] = s->part->stride[0];
        return run;
    }
    tsi_block part = tsi_part_block(s->part, dtype);
    simplify(&part);
    return run_at(&part, s->offset, most);
}

static ts_status move_runs(const target *t)
{
    int32_t dtype = t->work->print.dtype;
    tsi_block whole = tsi_part_block(t->part, dtype);
    int64_t count = tsi_part_elements(t->part);
    simplify(&whole);
    for (int64_t at = 0; at < count;) {
        tsi_block to = run_at(&whole, at, count - at);
        for (int64_t i = 0; i < t->chain; i++) {
            source *s = &t->source[i];
            s->block = next_run(&s->stream, dtype, to.extent[0]);
            to.extent[0] = s->block.extent[0];
        }
        for (int64_t i = 0; i < t->chain; i++) {
            t->source[i].block.extent[0] = to.extent[0];
            stream_skip(&t->source[i].stream, to.extent[0]);
        }
        TSI_TRY(put_blocks(t, &to));
        at += to.extent[0];
    }
    return TS_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* The target and its sources as lines; only where they begin and how long they are changes. */
static bool are_lines(const target *t, tsi_block *to)
{
    if (!is_line(t->part)) return false;
    for (int64_t i = 0; i < t->chain; i++)
        if (!t->source[i].stream.straight) return false;
    *to = tsi_part_block(t->part, t->work->print.dtype);
    for (int64_t i = 0; i < t->chain; i++)
        t->source[i].block = *to;
    return true;
}

/* What a source gives next, past empty parts. */
static void line_next(source *s, size_t size)
{
    stream *line = &s->stream;
    while (line->offset == line->part->extent[0]) {
        line->part++;
        line->offset = 0;
    }
    s->block.data = (char *)line->part->data + (size_t)line->offset * size;
    s->block.extent[0] = line->part->extent[0] - line->offset;
}

static ts_status move_lines(const target *t, tsi_block *to)
{
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    for (int64_t rest = to->extent[0], run; rest > 0; rest -= run) {
        run = rest;
        for (int64_t i = 0; i < t->chain; i++) {
            line_next(&t->source[i], size);
            run = tsi_min_i64(run, t->source[i].block.extent[0]);
        }
        for (int64_t i = 0; i < t->chain; i++) {
            t->source[i].block.extent[0] = run;
            t->source[i].stream.offset += run;
        }
        to->extent[0] = run;
        TSI_TRY(put_blocks(t, to));
        to->data = (char *)to->data + (size_t)run * size;
    }
    return TS_OK;
}

static ts_status move_target(target *t, stream *from)
{
    int64_t count = tsi_part_elements(t->part);
    if (count == 0) return TS_OK;
    for (int64_t i = 0; i < t->chain; i++) {
        stream *s = &from[t->part[i].peer];
        stream_skip(s, 0); /* past empty parts */
        t->source[i].stream = *s;
        stream_skip(s, count);
    }
    tsi_block to;
    if (are_lines(t, &to)) return move_lines(t, &to);
    return moves_whole(t, count, &to) ? put_blocks(t, &to) : move_runs(t);
}

/* ---- one member ------------------------------------------------------------------------------ */

static ts_status counts_agree(tsi_work *const *work, int64_t count, int64_t member, stream *from,
                              char *sentence, size_t size)
{
    const tsi_work *to = work[member];
    for (int64_t p = 0; p < count; p++)
        from[p] = stream_open(work[p], member);
    for (int64_t i = 0; i < to->recv_count; i++)
        from[to->recv[i].peer].left -= tsi_part_elements(&to->recv[i]);
    for (int64_t p = 0; p < count; p++) {
        if (from[p].left == 0) continue;
        char text[256];
        int64_t sent = stream_open(work[p], member).left;
        tsi_fingerprint_text(&to->print, text, sizeof text);
        (void)snprintf(sentence, size,
                       "ranks disagree: rank %" PRId64 " sends %" PRId64
                       " elements to rank %" PRId64 " in exchange (%s), which expects %" PRId64
                       " in %s",
                       work[p]->print.rank, sent, to->print.rank, work[p]->print.where,
                       sent - from[p].left, text);
        return TS_ERR_PEER;
    }
    return TS_OK;
}

static int64_t chain_length(const tsi_work *work, int64_t first)
{
    int64_t length = 1;
    while (first + length < work->recv_count && work->recv[first + length].combine != 0)
        length++;
    return length;
}

static ts_status move_all(const tsi_work *to, stream *from, target *t)
{
    for (int64_t i = 0; i < to->recv_count; i += t->chain) {
        t->part = &to->recv[i];
        t->chain = chain_length(to, i);
        TSI_TRY(move_target(t, from));
    }
    return TS_OK;
}

/* ---- nothing moves --------------------------------------------------------------------------- */

static ts_status refuse_loan(const tsi_work *from, const tsi_work *to, char *sentence, size_t size)
{
    (void)snprintf(sentence, size,
                   "ranks disagree: rank %" PRId64 " reads memory of rank %" PRId64
                   " in exchange (%s), which lends it in other parts (%s)",
                   to->print.rank, from->print.rank, to->print.where, from->print.where);
    return TS_ERR_PEER;
}

/* All works are here and none has ended, so that what they lend can be retained. */
static ts_status lend_all(tsi_work *const *work, int64_t count, const tsi_work *to, stream *from,
                          char *sentence, size_t size)
{
    const tsi_lending *l = to->lending;
    for (int64_t p = 0; p < count; p++)
        if (!work[p]->lending || work[p]->lending->own_count != l->own_count)
            return refuse_loan(work[p], to, sentence, size);
    for (int64_t i = 0; i < to->recv_count; i++) {
        int64_t peer = to->recv[i].peer, elements = tsi_part_elements(&to->recv[i]);
        stream *s = &from[peer];
        stream_skip(s, 0); /* past empty parts */
        if (elements == 0) continue;
        if (s->offset != 0 || tsi_part_elements(s->part) != elements)
            return refuse_loan(work[peer], to, sentence, size);
        l->lent[i] = *s->part;
        stream_skip(s, elements);
        for (int64_t k = 0; k < l->own_count; k++) {
            tsi_storage **held = &l->held[peer * l->own_count + k];
            if (*held) continue;
            *held = work[peer]->lending->own[k];
            tsi_storage_retain(*held);
        }
    }
    return TS_OK;
}

ts_status tsi_move_exchange(tsi_mover by, tsi_work *const *work, int64_t count, int64_t member,
                            char *sentence, size_t size)
{
    const tsi_work *to = work[member];
    int64_t longest = 1;
    for (int64_t i = 0; i < to->recv_count; i += chain_length(to, i))
        longest = tsi_max_i64(longest, chain_length(to, i));
    stream small_stream[SMALL];
    source small_source[SMALL];
    const tsi_block *small_from[SMALL];
    tsi_block *small_same[SMALL + 1];
    target t = { by, .work = to, .source = small_source, .from = small_from, .same = small_same };
    stream *from = small_stream;
    void *heap = NULL;
    if (count > SMALL || longest > SMALL) {
        size_t bytes = (size_t)count * sizeof *from +
                       ((size_t)longest + 1) * (sizeof(source) + 2 * sizeof(void *));
        heap = tsi_alloc(bytes);
        if (heap == NULL) return TS_ERR_MEMORY;
        from = heap;
        t.source = (source *)(void *)(from + count);
        t.from = (const tsi_block **)(void *)(t.source + longest);
        t.same = (tsi_block **)(void *)(t.from + longest);
    }
    ts_status status = counts_agree(work, count, member, from, sentence, size);
    if (status == TS_OK && to->lending)
        status = lend_all(work, count, to, from, sentence, size);
    else if (status == TS_OK)
        status = move_all(to, from, &t);
    tsi_free(heap);
    return status;
}
