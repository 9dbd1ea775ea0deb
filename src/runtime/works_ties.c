/* SPDX-License-Identifier: Apache-2.0 */
/* works_ties.c - blocks of a recorded step, and what keeps its order. See works.h. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "runtime/works.h"

/* ---- lives ----------------------------------------------------------------------------------- */

/* One that another thread gave back, without a word, ended before this one begins. */
static void taken(void *context, void *memory, size_t bytes, uint32_t tag)
{
    (void)tag;
    tsi_works *w = context;
    uintptr_t before =
        (uintptr_t)tsi_map_remove(&w->there, (uint64_t)(uintptr_t)memory, NULL, NULL);
    if (before > 0) w->block[before - 1].to = w->kept->count;
    if (w->status == TS_OK)
        w->status = tsi_room(&w->block, w->block_count, &w->block_capacity, sizeof *w->block,
                             "blocks of a step");
    if (w->status != TS_OK) return;
    w->block[w->block_count++] =
        (tsi_taken){ .memory = memory, .bytes = (int64_t)bytes, .from = w->kept->count, .to = -1 };
    w->status =
        tsi_map_insert(&w->there, (uint64_t)(uintptr_t)memory, (void *)(uintptr_t)w->block_count);
}

static void given(void *context, void *memory)
{
    tsi_works *w = context;
    uintptr_t number =
        (uintptr_t)tsi_map_remove(&w->there, (uint64_t)(uintptr_t)memory, NULL, NULL);
    if (number > 0) w->block[number - 1].to = w->kept->count;
}

void tsi_works_begin(tsi_works *works, const tsi_kept *kept, tsi_pool *pool)
{
    *works = (tsi_works){ .kept = kept, .watch = { taken, given, works, NULL } };
    tsi_pool_watch_by(pool, &works->watch);
}

void tsi_works_end(tsi_works *works, tsi_pool *pool)
{
    tsi_pool_watch_by(pool, NULL);
    tsi_map_release(&works->there);
    works->there = (tsi_map){ 0 };
}

void tsi_works_release(tsi_works *works, tsi_pool *pool)
{
    for (int64_t b = 0; b < works->block_count; b++) {
        const tsi_taken *k = &works->block[b];
        if (k->held) tsi_pool_free(pool, k->memory, (size_t)k->bytes, TSI_TAG_OTHER);
    }
    if (works->arena)
        tsi_pool_free(works->home, works->arena, (size_t)works->arena_bytes, TSI_TAG_OTHER);
    tsi_pool_destroy(works->home);
    tsi_free(works->block);
    tsi_free(works->begin);
    tsi_free(works->recorded);
    tsi_free(works->piece);
    tsi_free(works->touch);
    tsi_free(works->pair);
    tsi_free(works->order);
    *works = (tsi_works){ 0 };
}

/* ---- which block an address meant ------------------------------------------------------------ */

/* By address, then by time; blocks of one address follow each other in time. */
static int compare_taken(const void *a, const void *b)
{
    const tsi_taken *x = a, *y = b;
    if (x->memory != y->memory) return x->memory < y->memory ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Of places that two blocks share in part it is not known whose they were: memory was scarce, and
 * went back to the device meanwhile. */
static void sort_blocks(tsi_works *w)
{
    if (w->block_count > 0)
        qsort(w->block, (size_t)w->block_count, sizeof *w->block, compare_taken);
    const char *below = NULL, *reach = NULL; /* the ends of those that begin below it; of all */
    for (int64_t i = 0; i < w->block_count; i++) {
        const tsi_taken *b = &w->block[i];
        if (i > 0 && b[-1].memory != b->memory) below = reach;
        w->unclear = w->unclear || (below && below > b->memory);
        if (!reach || b->memory + b->bytes > reach) reach = b->memory + b->bytes;
    }
}

/* The block in which the address lay when piece `work` was kept; -1: none of the step's. */
static int32_t block_at(const tsi_works *w, const char *address, int64_t work)
{
    int64_t low = 0, high = w->block_count; /* the last that begins at or before it */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const tsi_taken *b = &w->block[middle];
        if (b->memory < address || (b->memory == address && b->from <= work))
            low = middle + 1;
        else
            high = middle;
    }
    for (int64_t i = low - 1; i >= 0 && w->block[i].memory == w->block[low - 1].memory; i--) {
        const tsi_taken *b = &w->block[i];
        bool there = b->from <= work && (b->to < 0 || work < b->to);
        if (there && address < b->memory + (b->bytes > 0 ? b->bytes : 1)) return (int32_t)i;
    }
    return -1;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static tsi_kept_order order_of(const tsi_kept_work *work)
{
    return work->kind ? work->kind->order : TSI_KEPT_FENCE;
}

/* Of each piece of work, what it touches? */
static bool all_known(const tsi_kept *kept)
{
    for (int64_t i = 0; i < kept->count; i++)
        if (!kept->work[i].kind) return false;
    return true;
}

/* From the begin of a batch to its end; else one. */
static int32_t length_of_piece(const tsi_works *w, int64_t first, int64_t count)
{
    int64_t last = first;
    if (order_of(&w->recorded[first]) != TSI_KEPT_BATCH) return 1;
    while (last + 1 < count && order_of(&w->recorded[last]) != TSI_KEPT_CLOSE)
        last++;
    return (int32_t)(last - first + 1);
}

/* A batch meets, as far as it is known: if somebody waits for it later, it is said below. */
static tsi_kept_order order_of_piece(const tsi_works *w, const tsi_piece *p)
{
    return p->count == 1 ? order_of(&w->recorded[p->first]) : TSI_KEPT_MEET;
}

static ts_status cut_pieces(tsi_works *w)
{
    int64_t count = w->kept->count;
    w->recorded = tsi_alloc_array((size_t)count + 1, sizeof *w->recorded);
    w->piece = tsi_alloc_array((size_t)count + 1, sizeof *w->piece);
    w->order = tsi_alloc_array((size_t)count + 1, sizeof *w->order);
    if (!w->recorded || !w->piece || !w->order || count > INT32_MAX)
        return tsi_fail_memory("an order of a step", (size_t)count * sizeof *w->piece);
    for (int64_t i = 0; i < count; i++) {
        w->recorded[i] = w->kept->work[i];
        w->order[i] = (int32_t)i;
    }
    for (int64_t i = 0; i < count; i += w->piece[w->piece_count - 1].count) {
        tsi_piece p = { .first = (int32_t)i, .count = length_of_piece(w, i, count) };
        p.order = order_of_piece(w, &p);
        w->piece[w->piece_count++] = p;
    }
    return TS_OK;
}

int32_t tsi_works_piece_of(const tsi_works *w, int64_t work)
{
    int64_t low = 0, high = w->piece_count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (w->piece[middle].first <= work)
            low = middle;
        else
            high = middle;
    }
    return (int32_t)low;
}

static ts_status tie(tsi_works *w, int64_t before, int64_t after)
{
    if (before < 0 || before == after) return TS_OK;
    TSI_TRY(tsi_room(&w->pair, w->pair_count + 1, &w->pair_capacity, sizeof *w->pair, "ties"));
    w->pair[w->pair_count++] = (int32_t)before;
    w->pair[w->pair_count++] = (int32_t)after;
    return TS_OK;
}

/* ---- touches --------------------------------------------------------------------------------- */

typedef struct telling {
    tsi_works *works;
    int32_t piece;
    int64_t work;
    ts_status status;
} telling;

static void add_touch(telling *t, const tsi_work_touch *touch)
{
    tsi_works *w = t->works;
    if (t->status == TS_OK)
        t->status =
            tsi_room(&w->touch, w->touch_count, &w->touch_capacity, sizeof *w->touch, "a step");
    if (t->status == TS_OK) w->touch[w->touch_count++] = *touch;
}

static void hear_touch(void *to, const tsi_kept_touch *touch)
{
    telling *t = to;
    tsi_works *w = t->works;
    tsi_work_touch is = { .is = *touch, .piece = t->piece };
    is.block = block_at(w, touch->low, t->work);
    if (is.block >= 0) {
        tsi_taken *b = &w->block[is.block];
        if (touch->high > b->memory + b->bytes && t->status == TS_OK)
            t->status = TSI_FAIL(TS_ERR_STATE, "step: a piece of work reaches beyond its block");
        if (touch->at) is.offset = (const char *)*touch->at - b->memory;
        if (!touch->at || b->to < 0) b->stays = true;
    }
    add_touch(t, &is);
}

static bool has_context(const tsi_works *w, const tsi_piece *p, const void *context)
{
    for (int32_t i = p->first; i < p->first + p->count; i++)
        if (w->recorded[i].context == context) return true;
    return false;
}

/* A wait, or a part, touches what the operation touches: until then it is under way. */
static void touch_as_begun(telling *t, const tsi_piece *wait)
{
    tsi_works *w = t->works;
    for (int32_t i = t->piece - 1; i >= 0; i--) {
        tsi_piece *p = &w->piece[i];
        bool begins = p->order == TSI_KEPT_ISSUE || p->order == TSI_KEPT_MEET;
        if (!begins || !has_context(w, p, w->recorded[wait->first].context)) continue;
        p->order = TSI_KEPT_ISSUE; /* of a batch too */
        if (t->status == TS_OK) t->status = tie(w, i, t->piece);
        for (int64_t k = 0; k < p->touch_count; k++) {
            tsi_work_touch same = w->touch[p->touch_first + k];
            same.piece = t->piece;
            same.is.at = NULL; /* given another address there */
            add_touch(t, &same);
        }
        return;
    }
}

static ts_status collect_touches(tsi_works *w)
{
    telling t = { .works = w };
    for (int32_t i = 0; i < w->piece_count && t.status == TS_OK; i++) {
        tsi_piece *p = &w->piece[i];
        p->touch_first = w->touch_count;
        t.piece = i;
        if (p->order == TSI_KEPT_WAIT || p->order == TSI_KEPT_PART) touch_as_begun(&t, p);
        for (int32_t k = p->first; k < p->first + p->count; k++) {
            const tsi_kept_work *work = &w->recorded[k];
            t.work = k;
            if (work->kind && work->kind->touches)
                work->kind->touches(work->context, hear_touch, &t);
        }
        p->touch_count = w->touch_count - p->touch_first;
    }
    return t.status;
}

/* ---- ties by memory -------------------------------------------------------------------------- */

/* Touches of one block, or of one stretch of memory from outside, in the order of pieces. */
typedef struct places {
    const tsi_work_touch **touch;
    int64_t count;
    const tsi_work_touch **live; /* that later ones may be tied to */
} places;

static int compare_places(const void *a, const void *b)
{
    const tsi_work_touch *x = *(const tsi_work_touch *const *)a,
                         *y = *(const tsi_work_touch *const *)b;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    if (x->block < 0 && x->is.low != y->is.low) return x->is.low < y->is.low ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int compare_order(const void *a, const void *b)
{
    const tsi_work_touch *x = *(const tsi_work_touch *const *)a,
                         *y = *(const tsi_work_touch *const *)b;
    return x < y ? -1 : x > y;
}

/* One that is written over needs no ties any more: whoever meets it meets the writer. */
static ts_status tie_group(tsi_works *w, const places *group)
{
    int64_t live = 0;
    for (int64_t i = 0; i < group->count; i++) {
        const tsi_work_touch *t = group->touch[i];
        int64_t left = 0;
        for (int64_t k = 0; k < live; k++) {
            const tsi_work_touch *o = group->live[k];
            bool meet = t->is.low < o->is.high && o->is.low < t->is.high;
            if (meet && (t->is.writes || o->is.writes)) TSI_TRY(tie(w, o->piece, t->piece));
            bool over = t->is.writes && t->piece != o->piece && t->is.low <= o->is.low &&
                        o->is.high <= t->is.high;
            if (!over) group->live[left++] = o;
        }
        group->live[left++] = t;
        live = left;
    }
    return TS_OK;
}

static ts_status tie_by_memory(tsi_works *w)
{
    size_t n = (size_t)w->touch_count + 1;
    places all = { tsi_alloc_array(n, sizeof(void *)), 0, tsi_alloc_array(n, sizeof(void *)) };
    ts_status status = all.touch && all.live ? TS_OK : tsi_fail_memory("ties", n * 16);
    for (int64_t i = 0; status == TS_OK && i < w->touch_count; i++)
        all.touch[i] = &w->touch[i];
    if (status == TS_OK) qsort(all.touch, n - 1, sizeof *all.touch, compare_places);
    for (int64_t i = 0; status == TS_OK && i < w->touch_count;) {
        places group = { all.touch + i, 0, all.live };
        const tsi_work_touch *first = group.touch[0];
        const char *reach = first->is.high;
        while (i < w->touch_count && all.touch[i]->block == first->block &&
               (first->block >= 0 || all.touch[i]->is.low < reach)) {
            if (all.touch[i]->is.high > reach) reach = all.touch[i]->is.high;
            i++;
            group.count++;
        }
        qsort(group.touch, (size_t)group.count, sizeof *group.touch, compare_order);
        status = tie_group(w, &group);
    }
    tsi_free(all.touch);
    tsi_free(all.live);
    return status;
}

/* ---- ties by kind ---------------------------------------------------------------------------- */

typedef struct latest {
    int64_t fence, random, last; /* pieces; -1: none */
    int64_t since;               /* the first that nothing which comes last is behind of */
} latest;

static ts_status tie_all_since(tsi_works *w, latest *l, int64_t piece)
{
    for (; l->since < piece; l->since++)
        TSI_TRY(tie(w, l->since, piece));
    return TS_OK;
}

/* Those that begin operations keep one order, which is said when they are ordered. */
static ts_status add_begin(tsi_works *w, int64_t piece)
{
    TSI_TRY(tsi_room(&w->begin, w->begin_count, &w->begin_capacity, sizeof *w->begin, "ties"));
    w->begin[w->begin_count++] = (int32_t)piece;
    return TS_OK;
}

static ts_status tie_by_kind(tsi_works *w, latest *l, int64_t i)
{
    TSI_TRY(tie(w, l->fence, i));
    switch (w->piece[i].order) {
    case TSI_KEPT_FREE:
    case TSI_KEPT_PART: /* between begin and wait by what it touches */
        return TS_OK;
    case TSI_KEPT_RANDOM:
        TSI_TRY(tie(w, l->random, i));
        l->random = i;
        return TS_OK;
    case TSI_KEPT_WAIT:
        return tie(w, l->last, i);
    case TSI_KEPT_DRAWN:
        TSI_TRY(tie(w, l->random, i));
        l->random = i;
        TSI_TRY(tie(w, l->last, i));
        return add_begin(w, i);
    case TSI_KEPT_MEET:
        TSI_TRY(tie(w, l->last, i));
        return add_begin(w, i);
    case TSI_KEPT_ISSUE:
        return add_begin(w, i);
    case TSI_KEPT_LAST:
        TSI_TRY(tie(w, l->last, i));
        l->last = i;
        return tie_all_since(w, l, i);
    case TSI_KEPT_FENCE:
    case TSI_KEPT_BATCH: /* alone: never closed */
    case TSI_KEPT_CLOSE:
        break;
    }
    TSI_TRY(tie(w, l->last, i));
    TSI_TRY(tie_all_since(w, l, i));
    *l = (latest){ .fence = i, .random = -1, .last = -1, .since = i };
    return TS_OK;
}

static ts_status tie_pieces(tsi_works *w)
{
    w->unclear = w->unclear || !all_known(w->kept);
    sort_blocks(w);
    if (w->unclear) return TS_OK;
    TSI_TRY(cut_pieces(w));
    TSI_TRY(collect_touches(w));
    TSI_TRY(tie_by_memory(w));
    latest l = { .fence = -1, .random = -1, .last = -1 };
    for (int64_t i = 0; i < w->piece_count; i++)
        TSI_TRY(tie_by_kind(w, &l, i));
    return TS_OK;
}

ts_status tsi_works_tie(tsi_works *w)
{
    if (w->status == TS_OK && !w->recorded && !w->unclear) w->status = tie_pieces(w);
    if (w->status == TS_OK) return TS_OK;
    return TSI_FAIL(w->status, "step: it keeps the order in which it was recorded");
}
