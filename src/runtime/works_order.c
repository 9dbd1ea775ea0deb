/* SPDX-License-Identifier: Apache-2.0 */
/* works_order.c - kept work by keys, and places for its blocks. See works.h. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "runtime/works.h"

/* ---- order ----------------------------------------------------------------------------------- */

typedef struct sorting {
    int64_t count;
    int64_t *first; /* [count + 1]: those tied behind i are after[first[i]] .. */
    int32_t *after;
    int32_t *left;   /* [count]: those before it that have not come */
    int64_t *urgent; /* [count]: the least key of it and of all behind it */
    int32_t *heap;
    int64_t heap_count;
} sorting;

static bool comes_first(const sorting *s, int32_t a, int32_t b)
{
    return s->urgent[a] < s->urgent[b] || (s->urgent[a] == s->urgent[b] && a < b);
}

static void heap_push(sorting *s, int32_t piece)
{
    int64_t at = s->heap_count++;
    for (; at > 0 && comes_first(s, piece, s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = piece;
}

static int32_t heap_pop(sorting *s)
{
    int32_t top = s->heap[0], last = s->heap[--s->heap_count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= s->heap_count) break;
        if (child + 1 < s->heap_count && comes_first(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!comes_first(s, s->heap[child], last)) break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

/* Who is tied behind whom: a counting sort by the earlier one. */
static void sort_pairs(sorting *s, const int32_t *pair, int64_t pair_count)
{
    int64_t *next = s->first + 1, sum = 0;
    for (int64_t i = 0; i < pair_count; i += 2) {
        next[pair[i]]++;
        s->left[pair[i + 1]]++;
    }
    for (int64_t i = 0; i < s->count; i++) {
        int64_t here = next[i];
        next[i] = sum;
        sum += here;
    }
    for (int64_t i = 0; i < pair_count; i += 2)
        s->after[next[pair[i]]++] = pair[i + 1];
}

/* Each after all that it is tied behind, whatever the keys: `order` has as many as is returned. */
static int64_t sort_topologically(sorting *s, int32_t *order)
{
    int64_t done = 0;
    for (int32_t i = 0; i < s->count; i++)
        if (s->left[i] == 0) order[done++] = i;
    for (int64_t at = 0; at < done; at++)
        for (int64_t t = s->first[order[at]]; t < s->first[order[at] + 1]; t++)
            if (--s->left[s->after[t]] == 0) order[done++] = s->after[t];
    return done;
}

/* What something urgent stands behind is as urgent. Counts again who is tied behind others. */
static void find_urgent(sorting *s, const int64_t *key, const int32_t *order)
{
    for (int64_t at = s->count - 1; at >= 0; at--) {
        int32_t i = order[at];
        s->urgent[i] = key[i];
        for (int64_t t = s->first[i]; t < s->first[i + 1]; t++) {
            s->left[s->after[t]]++;
            if (s->urgent[s->after[t]] < s->urgent[i]) s->urgent[i] = s->urgent[s->after[t]];
        }
    }
}

static void sort_by_urgency(sorting *s, int32_t *order)
{
    int64_t done = 0;
    for (int32_t i = 0; i < s->count; i++)
        if (s->left[i] == 0) heap_push(s, i);
    while (s->heap_count > 0) {
        int32_t next = heap_pop(s);
        order[done++] = next;
        for (int64_t t = s->first[next]; t < s->first[next + 1]; t++)
            if (--s->left[s->after[t]] == 0) heap_push(s, s->after[t]);
    }
    TSI_ASSERT(done == s->count);
}

ts_status tsi_pieces_by_key(int64_t count, const int32_t *pair, int64_t pair_count,
                            const int64_t *key, int32_t *order)
{
    size_t n = (size_t)count + 2;
    sorting s = { .count = count,
                  .first = tsi_calloc(n, sizeof *s.first),
                  .after = tsi_calloc((size_t)pair_count / 2 + 1, sizeof *s.after),
                  .left = tsi_calloc(n, sizeof *s.left),
                  .urgent = tsi_calloc(n, sizeof *s.urgent),
                  .heap = tsi_calloc(n, sizeof *s.heap) };
    bool room = s.first && s.after && s.left && s.urgent && s.heap;
    if (room) sort_pairs(&s, pair, pair_count);
    bool straight = room && sort_topologically(&s, order) == count;
    if (straight) {
        find_urgent(&s, key, order);
        sort_by_urgency(&s, order);
    }
    tsi_free(s.first);
    tsi_free(s.after);
    tsi_free(s.left);
    tsi_free(s.urgent);
    tsi_free(s.heap);
    if (!room) return tsi_fail_memory("an order of a step", n * 40);
    return straight ? TS_OK : TS_ERR_STATE;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

typedef struct neighbours {
    sorting pairs;          /* who is tied behind whom */
    int32_t *order, *place; /* piece at a place, place of a piece */
    int32_t *late;          /* scratch: those that go below */
    bool *behind;           /* [piece]: it is tied behind the one that is moved */
} neighbours;

/* Marks what stands above `lower` and is tied behind `upper`. Is nothing from `lower` to `last`
 * tied behind that? */
static bool mark_behind(neighbours *n, int32_t upper, int32_t lower, int32_t last)
{
    const sorting *s = &n->pairs;
    int32_t run = n->place[lower], end = n->place[last];
    n->behind[upper] = true;
    for (int32_t at = n->place[upper]; at < run; at++) {
        int32_t piece = n->order[at];
        for (int64_t t = s->first[piece]; n->behind[piece] && t < s->first[piece + 1]; t++) {
            int32_t to = n->place[s->after[t]];
            if (to < run) n->behind[s->after[t]] = true;
            if (to >= run && to <= end && piece != upper) return false;
        }
    }
    return true;
}

/* The upper one goes down to the others, which stand together up to `last`, and what is tied behind
 * it below them; the rest of what was between comes before. */
static void move_down(neighbours *n, int32_t upper, int32_t lower, int32_t last)
{
    int32_t to = n->place[upper], run = n->place[lower], end = n->place[last], late = 0;
    for (int32_t at = to + 1; at < run; at++) {
        if (n->behind[n->order[at]])
            n->late[late++] = n->order[at];
        else
            n->order[to++] = n->order[at];
    }
    n->order[to++] = upper;
    memmove(n->order + to, n->order + run, (size_t)(end - run + 1) * sizeof *n->order);
    memcpy(n->order + to + (end - run + 1), n->late, (size_t)late * sizeof *n->order);
}

/* Brings the upper one before `lower`, if the pairs allow it. */
static bool bring(neighbours *n, int32_t upper, int32_t lower, int32_t last)
{
    int32_t from = n->place[upper], end = n->place[last];
    if (from >= n->place[lower]) return false;
    bool free = mark_behind(n, upper, lower, last);
    if (free) move_down(n, upper, lower, last);
    for (int32_t at = from; at <= end; at++) {
        n->place[n->order[at]] = at;
        n->behind[n->order[at]] = false;
    }
    return free;
}

static void bring_all(neighbours *n, const tsi_members *members)
{
    int32_t last = -1; /* of those that stand together */
    for (int64_t i = members->count - 1; i > 0; i--) {
        tsi_member *m = &members->member[i];
        if (last < 0) last = m->piece;
        m->follows = m->follows && bring(n, m[-1].piece, m->piece, last);
        if (!m->follows) last = -1;
    }
}

ts_status tsi_pieces_together(int64_t count, const int32_t *pair, int64_t pair_count,
                              const tsi_members *members, int32_t *order)
{
    size_t size = (size_t)count + 2;
    neighbours n = { .pairs = { .count = count,
                                .first = tsi_calloc(size, sizeof *n.pairs.first),
                                .after = tsi_calloc((size_t)pair_count / 2 + 1, sizeof(int32_t)),
                                .left = tsi_calloc(size, sizeof *n.pairs.left) },
                     .order = order,
                     .place = tsi_calloc(size, sizeof *n.place),
                     .late = tsi_calloc(size, sizeof *n.late),
                     .behind = tsi_calloc(size, sizeof *n.behind) };
    bool room = n.pairs.first && n.pairs.after && n.pairs.left && n.place && n.late && n.behind;
    if (room) sort_pairs(&n.pairs, pair, pair_count);
    for (int32_t i = 0; room && i < count; i++)
        n.place[order[i]] = i;
    if (room) bring_all(&n, members);
    tsi_free(n.pairs.first);
    tsi_free(n.pairs.after);
    tsi_free(n.pairs.left);
    tsi_free(n.place);
    tsi_free(n.late);
    tsi_free(n.behind);
    return room ? TS_OK : tsi_fail_memory("an order of a step", size * 24);
}

/* ---- places ---------------------------------------------------------------------------------- */

enum { ALIGN = 64 }; /* as blocks of the pool: kernels see the same addresses up to that */

static int64_t rounded(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int compare_spans(const void *a, const void *b) /* the largest first */
{
    const tsi_span_of_use *x = *(tsi_span_of_use *const *)a, *y = *(tsi_span_of_use *const *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* The lowest place that is free all the while; `placed` ascend by offset. Returns where to insert.
 */
static int64_t find_place(tsi_span_of_use *span, tsi_span_of_use *const *placed, int64_t count)
{
    int64_t at = 0, bytes = rounded(span->bytes);
    for (int64_t i = 0; i < count; i++) {
        const tsi_span_of_use *p = placed[i];
        if (p->last < span->first || span->last < p->first) continue;
        if (p->offset - at >= bytes) break;
        int64_t end = p->offset + rounded(p->bytes);
        if (end > at) at = end;
    }
    span->offset = at;
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (placed[middle]->offset <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ts_status tsi_arena_places(tsi_span_of_use *span, int64_t count, int64_t *bytes)
{
    size_t n = (size_t)count + 1;
    tsi_span_of_use **by_size = tsi_alloc_array(n, sizeof *by_size),
                    **placed = tsi_alloc_array(n, sizeof *placed);
    ts_status status = by_size && placed ? TS_OK : tsi_fail_memory("places", n * 16);
    int64_t used = 0, end = 0;
    for (int64_t i = 0; status == TS_OK && i < count; i++)
        if (span[i].last >= span[i].first && span[i].bytes > 0) by_size[used++] = &span[i];
    if (status == TS_OK && used > 0) qsort(by_size, (size_t)used, sizeof *by_size, compare_spans);
    for (int64_t i = 0; status == TS_OK && i < used; i++) {
        int64_t at = find_place(by_size[i], placed, i);
        memmove(placed + at + 1, placed + at, (size_t)(i - at) * sizeof *placed);
        placed[at] = by_size[i];
        int64_t last = by_size[i]->offset + rounded(by_size[i]->bytes);
        if (last > end) end = last;
    }
    *bytes = end;
    tsi_free(by_size);
    tsi_free(placed);
    return status;
}

/* ---- both for a step ------------------------------------------------------------------------- */

static bool may_move(const tsi_taken *b)
{
    return b->to >= 0 && !b->stays;
}

/* From the first to the last piece that touches it, in places of the order. */
static void find_spans(const tsi_works *w, const int32_t *place, tsi_span_of_use *span)
{
    for (int64_t b = 0; b < w->block_count; b++)
        span[b] = (tsi_span_of_use){ w->block[b].bytes, INT64_MAX, -1, 0 };
    for (int64_t i = 0; i < w->touch_count; i++) {
        const tsi_work_touch *t = &w->touch[i];
        if (t->block < 0 || !may_move(&w->block[t->block])) continue;
        tsi_span_of_use *s = &span[t->block];
        int64_t at = place[t->piece];
        if (at < s->first) s->first = at;
        if (at > s->last) s->last = at;
    }
}

/* Of those that follow each other, with the first: from there until nobody waits any more. */
static void find_rooms(const tsi_members *members, const int32_t *place, tsi_span_of_use *span)
{
    tsi_span_of_use *run = NULL;
    for (int64_t i = 0; i < members->count; i++) {
        const tsi_member *m = &members->member[i];
        bool followed = i + 1 < members->count && m[1].follows;
        span[i] = (tsi_span_of_use){ 0, INT64_MAX, -1, 0 };
        if (!m->follows) run = followed ? &span[i] : NULL;
        if (!run) continue;
        run->bytes += m->bytes;
        if (place[m->piece] < run->first) run->first = place[m->piece];
        if (place[m->until] > run->last) run->last = place[m->until];
    }
}

static void give_rooms(const tsi_members *members, const tsi_span_of_use *span, char *arena)
{
    for (int64_t i = 0; i < members->count; i++)
        members->member[i].room = span[i].bytes > 0 ? arena + span[i].offset : NULL;
}

/* What stays, and the most that the rest needs at one place. */
static ts_status count_bytes(const tsi_works *w, const tsi_span_of_use *span, int64_t spans,
                             tsi_works_report *report)
{
    int64_t *change = tsi_calloc((size_t)w->piece_count + 2, sizeof *change), held = 0, stays = 0;
    if (!change) return tsi_fail_memory("places", (size_t)w->piece_count * sizeof *change);
    for (int64_t b = 0; b < w->block_count; b++)
        if (!may_move(&w->block[b]) && w->block[b].to < 0) stays += w->block[b].bytes;
    for (int64_t b = 0; b < spans; b++) {
        if (span[b].last < span[b].first) continue;
        change[span[b].first] += span[b].bytes;
        change[span[b].last + 1] -= span[b].bytes;
    }
    report->bytes_needed = 0;
    for (int64_t i = 0; i <= w->piece_count; i++) {
        held += change[i];
        if (held > report->bytes_needed) report->bytes_needed = held;
    }
    report->bytes_needed += stays;
    report->bytes += stays;
    tsi_free(change);
    return TS_OK;
}

static void give_addresses(const tsi_works *w, const tsi_span_of_use *span, char *arena)
{
    for (int64_t i = 0; i < w->touch_count; i++) {
        const tsi_work_touch *t = &w->touch[i];
        if (!t->is.at || t->block < 0 || !may_move(&w->block[t->block])) continue;
        *t->is.at = arena + span[t->block].offset + t->offset;
    }
}

static void give_order(tsi_works *w, const int32_t *order, tsi_kept *kept)
{
    int64_t at = 0;
    for (int64_t i = 0; i < w->piece_count; i++) {
        const tsi_piece *p = &w->piece[order[i]];
        for (int32_t k = p->first; k < p->first + p->count; k++, at++) {
            kept->work[at] = w->recorded[k];
            w->order[at] = k;
        }
    }
    TSI_ASSERT(at == kept->count);
}

typedef struct ordered {
    int32_t *order, *place; /* piece at a place, place of a piece */
    tsi_span_of_use *span;  /* [block], then [member] */
} ordered;

static void ordered_release(ordered *o)
{
    tsi_free(o->order);
    tsi_free(o->place);
    tsi_free(o->span);
    *o = (ordered){ 0 };
}

/* Ties, and the order in which operations begin; the caller frees. */
static int32_t *all_pairs(const tsi_works *w, const tsi_begins *begins, int64_t *count)
{
    const int32_t *begin = begins->piece ? begins->piece : w->begin;
    int64_t begin_count = begins->piece ? begins->count : w->begin_count;
    int64_t more = begin_count > 1 ? 2 * (begin_count - 1) : 0;
    int32_t *pair = tsi_alloc_array((size_t)(w->pair_count + more) + 1, sizeof *pair);
    if (!pair) return NULL;
    if (w->pair_count > 0) memcpy(pair, w->pair, (size_t)w->pair_count * sizeof *pair);
    *count = w->pair_count;
    for (int64_t i = 1; i < begin_count; i++) {
        pair[(*count)++] = begin[i - 1];
        pair[(*count)++] = begin[i];
    }
    return pair;
}

static ts_status sort_pieces(const tsi_works *w, const int64_t *key, const tsi_begins *begins,
                             const tsi_members *members, int32_t *order)
{
    int64_t count = 0;
    int32_t *pair = all_pairs(w, begins, &count);
    if (!pair) return tsi_fail_memory("an order of a step", (size_t)w->pair_count * 4);
    ts_status status = tsi_pieces_by_key(w->piece_count, pair, count, key, order);
    if (status == TS_OK && members->count > 0)
        status = tsi_pieces_together(w->piece_count, pair, count, members, order);
    tsi_free(pair);
    return status;
}

/* Pieces that were recorded and do not stand where they did among each other. */
static int64_t count_moved(const tsi_works *w, const int32_t *order)
{
    int64_t moved = 0;
    int32_t recorded = 0; /* the piece that stood there */
    for (int32_t i = 0; i < w->piece_count; i++) {
        if (w->piece[order[i]].order == TSI_KEPT_PART) continue;
        while (w->piece[recorded].order == TSI_KEPT_PART)
            recorded++;
        moved += order[i] != recorded++;
    }
    return moved;
}

/* TS_ERR_STATE, not recorded: operations cannot begin in that order. */
static ts_status plan_order(const tsi_works *w, const int64_t *key, const tsi_begins *begins,
                            const tsi_members *members, ordered *o, int64_t *bytes,
                            tsi_works_report *report)
{
    int64_t spans = w->block_count + members->count;
    size_t n = (size_t)w->piece_count + 1;
    *report = (tsi_works_report){ 0 };
    o->order = tsi_alloc_array(n, sizeof *o->order);
    o->place = tsi_alloc_array(n, sizeof *o->place);
    o->span = tsi_alloc_array((size_t)spans + 1, sizeof *o->span);
    if (!o->order || !o->place || !o->span) return tsi_fail_memory("an order of a step", n * 8);
    TSI_TRY(sort_pieces(w, key, begins, members, o->order));
    for (int32_t i = 0; i < w->piece_count; i++)
        o->place[o->order[i]] = i;
    report->moved = count_moved(w, o->order);
    find_spans(w, o->place, o->span);
    find_rooms(members, o->place, o->span + w->block_count);
    TSI_TRY(tsi_arena_places(o->span, spans, bytes));
    report->bytes = *bytes > 0 ? (int64_t)tsi_pool_rounded((size_t)*bytes) : 0;
    return count_bytes(w, o->span, spans, report);
}

/* Nobody follows anybody. Did somebody? */
static bool disperse(const tsi_members *members)
{
    bool any = false;
    for (int64_t i = 0; i < members->count; i++) {
        any = any || members->member[i].follows;
        members->member[i].follows = false;
    }
    return any;
}

/* Blocks that replays write where they were: somebody had them when the recording ended, and may
 * have let them go since. */
static void hold_what_stays(tsi_works *w, tsi_pool *pool)
{
    for (int64_t b = 0; b < w->block_count; b++) {
        tsi_taken *k = &w->block[b];
        if (!may_move(k) && !k->held)
            k->held = tsi_pool_retake(pool, k->memory, (size_t)k->bytes, TSI_TAG_OTHER);
    }
}

static ts_status take_arena(tsi_works *w, const tsi_pool *pool, int64_t bytes, char **arena)
{
    if (!w->home)
        w->home = tsi_pool_create(tsi_pool_device(pool), tsi_pool_queue(pool), tsi_pool_rank(pool));
    *arena = w->home ? tsi_pool_alloc(w->home, (size_t)bytes, TSI_TAG_OTHER) : NULL;
    return *arena ? TS_OK : TS_ERR_MEMORY; /* recorded */
}

static void give_all(tsi_works *w, tsi_kept *kept, const ordered *o, const tsi_members *members,
                     char *arena, int64_t bytes)
{
    give_addresses(w, o->span, arena);
    give_rooms(members, o->span + w->block_count, arena);
    give_order(w, o->order, kept);
    if (w->arena) tsi_pool_free(w->home, w->arena, (size_t)w->arena_bytes, TSI_TAG_OTHER);
    w->arena = arena;
    w->arena_bytes = bytes;
}

ts_status tsi_works_order(tsi_works *w, tsi_kept *kept, const int64_t *key,
                          const tsi_begins *begins, const tsi_members *members, tsi_pool *pool,
                          int64_t bytes_max, tsi_works_report *report)
{
    ordered o = { 0 };
    int64_t bytes = 0;
    char *arena = NULL;
    ts_status status = plan_order(w, key, begins, members, &o, &bytes, report);
    report->fits = status == TS_OK && (bytes_max == 0 || report->bytes <= bytes_max);
    if (status == TS_OK && !report->fits && disperse(members)) {
        ordered_release(&o);
        status = plan_order(w, key, begins, members, &o, &bytes, report);
        report->fits = status == TS_OK && report->bytes <= bytes_max;
    }
    if (report->fits) hold_what_stays(w, pool);
    if (report->fits && bytes > 0) status = take_arena(w, pool, bytes, &arena);
    bool can = report->fits && status == TS_OK;
    report->fits = begins->all_can ? begins->all_can(begins->context, can) : can;
    if (can && report->fits) {
        give_all(w, kept, &o, members, arena, bytes);
        tsi_pool_trim(pool); /* where the blocks lay before */
        if (w->home) tsi_pool_trim(w->home);
    } else if (arena) {
        tsi_pool_free(w->home, arena, (size_t)bytes, TSI_TAG_OTHER);
    }
    ordered_release(&o);
    return status == TS_ERR_STATE ? TS_OK : status; /* a circle: it does not fit */
}
