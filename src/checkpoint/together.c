/* SPDX-License-Identifier: Apache-2.0 */
/* together.c - tasks of a common reading: see the head of together.h.
 *
 *   world --> boards --> board  { next task; member[local rank]: items, busy }
 *
 * INV: a member's items are looked at by a rank that is busy alone; one that leaves takes them back
 * first and then waits until nobody who may have seen them is busy (both orders are seq_cst). */
#include "checkpoint/together.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/rank.h"
#include "base/thread.h"

/* The tape keeps what it has per rank, so the world's side of its slot is this level's. */
enum { SLOT = TSI_SLOT_AUTOGRAD, SPIN_NS = 20000, AT_ONCE_MAX = 8, PORTIONS_MIN = 8 };
static const int64_t TURN_NS = 10000000000; /* more than a task takes on any disk that is well */

typedef struct member {
    _Atomic(const tsi_together_item *) item; /* NULL: not here, or gone */
    tsi_word busy;                           /* 1: at a task */
    int32_t reserved;
} member;

typedef struct board {
    struct board *next;
    uint64_t id;
    int64_t references;
    int64_t count, member_count;
    _Atomic int64_t next_task;
    tsi_word reading;               /* members that joined and did not end yet */
    _Atomic int32_t status;         /* of the first task that failed */
    char error[TSI_ERROR_TEXT_MAX]; /* written under the lock, before the status */
    member member[];                /* by local rank */
} board;

typedef struct boards { /* of a world */
    pthread_mutex_t lock;
    board *first;
} boards;

struct tsi_together {
    boards *all;
    board *board;
    ts_rank *rank;
    const tsi_together_item *item;
    tsi_archive_target *target;                       /* [member_count] of the task at hand */
    int64_t at_item, at_block, at_chunk, chunk_count; /* the task at hand, */
    int64_t number;                                   /* and which one it is; -1: none yet */
    bool ended;
};

/* ---- meeting --------------------------------------------------------------------------------- */

static void boards_destroy(void *slot)
{
    boards *all = slot;
    TSI_ASSERT(!all->first);
    pthread_mutex_destroy(&all->lock);
    tsi_free(all);
}

static void *boards_create(ts_world *world)
{
    (void)world;
    boards *all = tsi_calloc(1, sizeof *all);
    if (all)
        pthread_mutex_init(&all->lock, NULL);
    else
        tsi_fail_memory("what ranks read together", sizeof *all);
    return all;
}

/* The items in a word: those who come with other ones do not meet. */
static uint64_t sign(uint64_t id, const ts_archive *archive, const tsi_together_item *item,
                     int64_t count)
{
    id = tsi_hash_text(id, archive->path);
    for (int64_t i = 0; i < count; i++) {
        id = tsi_hash_mix(id, (uint64_t)(item[i].entry - archive->entry));
        id = tsi_hash_mix(id, item[i].target.layout->interned.hash);
    }
    return tsi_hash_mix(id, archive->index.save + archive->unverified);
}

/* With the lock. NULL: recorded. */
static board *find_board(boards *all, uint64_t id, int64_t count, int64_t members)
{
    for (board *b = all->first; b; b = b->next)
        if (b->id == id && b->count == count) return b;
    size_t bytes = sizeof(board) + (size_t)members * sizeof(member);
    board *b = tsi_calloc(1, bytes);
    if (!b) {
        tsi_fail_memory("what ranks read together", bytes);
        return NULL;
    }
    b->id = id;
    b->count = count;
    b->member_count = members;
    b->next = all->first;
    all->first = b;
    return b;
}

static void drop_board(boards *all, board *b)
{
    pthread_mutex_lock(&all->lock);
    bool last = --b->references == 0;
    for (board **place = &all->first; last && *place; place = &(*place)->next)
        if (*place == b) {
            *place = b->next;
            break;
        }
    pthread_mutex_unlock(&all->lock);
    if (last) tsi_free(b);
}

tsi_together *tsi_together_join(ts_rank *rank, uint64_t id, const ts_archive *archive,
                                const tsi_together_item *item, int64_t count)
{
    int64_t members = rank->world->local_count;
    boards *all = tsi_world_slot(rank->world, (tsi_slot)SLOT, boards_create, boards_destroy);
    if (!all) return NULL;
    size_t bytes = sizeof(tsi_together) + (size_t)members * sizeof(tsi_archive_target);
    tsi_together *me = tsi_calloc(1, bytes);
    if (!me) {
        tsi_fail_memory("what ranks read together", bytes);
        return NULL;
    }
    *me = (tsi_together){ .all = all,
                          .rank = rank,
                          .item = item,
                          .target = (tsi_archive_target *)(void *)(me + 1),
                          .at_block = -1,
                          .number = -1 };
    pthread_mutex_lock(&all->lock);
    me->board = find_board(all, sign(id, archive, item, count), count, members);
    if (me->board) {
        me->board->references++;
        atomic_fetch_add_explicit(&me->board->reading, 1, memory_order_relaxed);
        atomic_store_explicit(&me->board->member[rank->local_index].item, item,
                              memory_order_seq_cst);
    }
    pthread_mutex_unlock(&all->lock);
    if (me->board) return me;
    tsi_free(me);
    return NULL;
}

static void end(tsi_together *me)
{
    if (me->ended) return;
    me->ended = true;
    atomic_fetch_sub_explicit(&me->board->reading, 1, memory_order_acq_rel);
    tsi_wake_all(&me->board->reading);
}

void tsi_together_leave(tsi_together *me)
{
    if (!me) return;
    board *b = me->board;
    end(me);
    atomic_store_explicit(&b->member[me->rank->local_index].item, NULL, memory_order_seq_cst);
    for (int64_t i = 0; i < b->member_count; i++)
        while (atomic_load_explicit(&b->member[i].busy, memory_order_seq_cst) == 1)
            (void)tsi_wait_word(&b->member[i].busy, 1, SPIN_NS, INT64_MAX);
    drop_board(me->all, b);
    tsi_free(me);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Goes on to task `number`; false: there are fewer. */
static bool go_to(tsi_together *me, int64_t number)
{
    while (me->at_item < me->board->count && me->number < number) {
        const tsi_entry *entry = me->item[me->at_item].entry;
        if (++me->at_chunk < me->chunk_count) {
            me->number++;
        } else if (++me->at_block < tsi_archive_block_count(entry)) {
            me->chunk_count = tsi_archive_chunk_count(entry, me->at_block);
            me->at_chunk = -1;
        } else {
            me->at_item++;
            me->at_block = -1;
            me->chunk_count = 0;
        }
    }
    return me->at_item < me->board->count;
}

static void fail_all(tsi_together *me, ts_status status)
{
    board *b = me->board;
    pthread_mutex_lock(&me->all->lock);
    if (atomic_load_explicit(&b->status, memory_order_relaxed) == TS_OK) {
        snprintf(b->error, sizeof b->error, "%s", ts_last_error());
        atomic_store_explicit(&b->status, (int32_t)status, memory_order_release);
    }
    pthread_mutex_unlock(&me->all->lock);
}

static ts_status run_task(tsi_together *me, ts_archive *archive)
{
    board *b = me->board;
    member *mine = &b->member[me->rank->local_index];
    int64_t count = 0;
    atomic_store_explicit(&mine->busy, 1, memory_order_seq_cst);
    for (int64_t i = 0; i < b->member_count; i++) {
        const tsi_together_item *item =
            atomic_load_explicit(&b->member[i].item, memory_order_seq_cst);
        if (item && item[me->at_item].target.data) me->target[count++] = item[me->at_item].target;
    }
    ts_status status = tsi_archive_serve_chunk(archive, me->item[me->at_item].entry, me->at_block,
                                               me->at_chunk, me->target, count);
    if (status != TS_OK) fail_all(me, status);
    atomic_store_explicit(&mine->busy, 0, memory_order_seq_cst);
    tsi_wake_all(&mine->busy);
    return status;
}

static bool is_interrupted(const tsi_together *me)
{
    return atomic_load_explicit(&me->rank->world->interrupted, memory_order_relaxed) != 0;
}

static ts_status status_of(const board *b)
{
    return (ts_status)atomic_load_explicit(&b->status, memory_order_acquire);
}

/* Tasks that a rank takes at once, one after the other in a file: the kernel reads ahead of it and
 * keeps large pages, which it does not where ranks take single ones in turn. Fewer where there are
 * few, so that no rank is without any while others have many. */
static int64_t tasks_at_once(const tsi_together *me)
{
    int64_t tasks = 0, portions = PORTIONS_MIN * me->board->member_count;
    for (int64_t i = 0; i < me->board->count; i++) {
        const ts_meta *meta = &me->item[i].entry->meta;
        int64_t size = (int64_t)ts_dtype_size((ts_dtype)meta->dtype);
        tasks += tsi_ceil_div(ts_shape_count(&meta->shape) * size, TSI_CHUNK_BYTES);
    }
    return tsi_max_i64(1, tsi_min_i64(tasks / portions, AT_ONCE_MAX));
}

static ts_status take_tasks(tsi_together *me, ts_archive *archive)
{
    board *b = me->board;
    ts_status status = TS_OK;
    int64_t at_once = tasks_at_once(me), number = 0, left = 0;
    for (; status == TS_OK && status_of(b) == TS_OK && !is_interrupted(me); number++, left--) {
        if (left == 0) {
            number = atomic_fetch_add_explicit(&b->next_task, at_once, memory_order_relaxed);
            left = at_once;
        }
        if (!go_to(me, number)) break;
        status = run_task(me, archive);
    }
    return status;
}

/* Those that are slow, or hang, are found by what ranks do together next. */
static void wait_for_others(const tsi_together *me)
{
    board *b = me->board;
    int64_t deadline = tsi_clock_ns() + TURN_NS;
    uint32_t left;
    while ((left = atomic_load_explicit(&b->reading, memory_order_acquire)) > 0 &&
           status_of(b) == TS_OK && !is_interrupted(me) && tsi_clock_ns() < deadline)
        (void)tsi_wait_word(&b->reading, left, SPIN_NS, deadline);
}

ts_status tsi_together_read(tsi_together *me, ts_archive *archive)
{
    ts_status status = take_tasks(me, archive);
    end(me);
    if (status != TS_OK) return status;
    wait_for_others(me);
    status = status_of(me->board);
    return status == TS_OK ? TS_OK : TSI_FAIL(status, "%s", me->board->error);
}
