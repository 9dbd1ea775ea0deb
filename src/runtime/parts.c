/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c - see parts.h. */
#include "runtime/parts.h"

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_reorder.h"
#include "runtime/together.h"

enum { BEHIND = TSI_PARTS_LIVE - 1 }; /* parts behind the first */

/* ---- room ------------------------------------------------------------------------------------ */

/* Of each work the number that it has with room behind others; [count]: of all. Inside of a batch
 * operations begin together. */
static void number_anew(const tsi_kept *kept, int64_t *number)
{
    bool batch = false;
    int64_t next = 0;
    for (int64_t i = 0; i < kept->count; i++) {
        const tsi_kept_work *work = &kept->work[i];
        tsi_kept_order order = work->kind ? work->kind->order : TSI_KEPT_FENCE;
        number[i] = next++;
        batch = (batch || order == TSI_KEPT_BATCH) && order != TSI_KEPT_CLOSE;
        if (!batch && tsi_again_may_part(work)) next += BEHIND;
    }
    number[kept->count] = next;
}

/* Blocks are there from and to a number of works. */
static void renumber_blocks(tsi_works *w, const int64_t *number)
{
    for (int64_t b = 0; b < w->block_count; b++) {
        w->block[b].from = number[w->block[b].from];
        if (w->block[b].to >= 0) w->block[b].to = number[w->block[b].to];
    }
}

static void fill_room(const ts_step *s, const int64_t *number, tsi_kept_work *work, int32_t *action)
{
    for (int64_t i = 0; i < s->kept.count; i++) {
        const tsi_kept_work *own = &s->kept.work[i];
        for (int64_t at = number[i]; at < number[i + 1]; at++) {
            work[at] = at == number[i] ? *own : tsi_again_part_of(own);
            action[at] = i < s->worked.count ? s->worked.action[i] : -1;
        }
    }
}

ts_status tsi_parts_make_room(ts_step *s)
{
    if (s->works.recorded || s->works.status != TS_OK) return TS_OK;
    int64_t *number = tsi_alloc_array((size_t)s->kept.count + 1, sizeof *number);
    if (!number) return tsi_fail_memory("parts of a step", (size_t)s->kept.count * sizeof *number);
    number_anew(&s->kept, number);
    int64_t count = number[s->kept.count];
    int32_t *action = tsi_alloc_array((size_t)count + 1, sizeof *action);
    tsi_kept_work *work = tsi_alloc_array((size_t)count + 1, sizeof *work);
    ts_status status =
        action && work ? TS_OK : tsi_fail_memory("parts of a step", (size_t)count * sizeof *work);
    if (status == TS_OK) {
        fill_room(s, number, work, action);
        renumber_blocks(&s->works, number);
        tsi_free(s->kept.work);
        tsi_free(s->worked.action);
        s->room = count - s->kept.count;
        s->kept.work = work;
        s->kept.count = s->kept.capacity = count;
        s->worked = (tsi_worked){ .action = action, .count = count, .capacity = count };
    } else {
        tsi_free(action);
        tsi_free(work);
    }
    tsi_free(number);
    return status;
}

/* ---- wanted ---------------------------------------------------------------------------------- */

static bool is_first_part(const tsi_action *action)
{
    tsi_part_name part;
    return tsi_is_part(action, &part) && part.index == 0;
}

/* Where each part begins: of `count` in the program the first of each run of neighbours. */
static void find_places(tsi_parted *op, const tsi_step_list *given, const int32_t *whole)
{
    tsi_part_name part;
    (void)tsi_is_part(&given->action[op->action], &part);
    int32_t count = part.count, parts = count < TSI_PARTS_LIVE ? count : TSI_PARTS_LIVE, next = 0;
    for (int32_t i = op->action; i < given->action_count && next < parts; i++) {
        if (whole[i] != whole[op->action] || !tsi_is_part(&given->action[i], &part)) continue;
        if (part.index == next * count / parts) op->place[next++] = i;
    }
    op->parts = next;
}

static bool can_part(const ts_step *s, const tsi_parted *op)
{
    const tsi_works *w = &s->works;
    if (op->work < 0 || !tsi_again_may_part(&w->recorded[op->work])) return false;
    bool room =
        op->piece + BEHIND < w->piece_count && w->piece[op->piece + BEHIND].order == TSI_KEPT_PART;
    return room && tsi_again_can_part(&w->recorded[op->work]);
}

ts_status tsi_parts_find(tsi_parteds *all, const ts_step *s, const tsi_step_list *given,
                         const int32_t *whole, int64_t recorded)
{
    int64_t count = 0;
    for (int32_t i = 0; i < given->action_count; i++)
        count += is_first_part(&given->action[i]);
    int64_t *last = tsi_alloc_array((size_t)recorded + 1, sizeof *last);
    all->op = tsi_calloc((size_t)count + 1, sizeof *all->op);
    bool room = last && all->op;
    if (room) tsi_last_works(s, last, recorded);
    for (int32_t i = 0; room && i < given->action_count; i++) {
        if (!is_first_part(&given->action[i])) continue;
        tsi_parted *op = &all->op[all->count++];
        *op = (tsi_parted){ .action = i, .work = last[whole[i]], .piece = -1 };
        if (op->work >= 0) op->piece = tsi_works_piece_of(&s->works, op->work);
        find_places(op, given, whole);
        if (!can_part(s, op)) op->parts = 1;
    }
    tsi_free(last);
    return room ? TS_OK : tsi_fail_memory("parts of a step", (size_t)recorded * sizeof *last);
}

void tsi_parts_release(tsi_parteds *all)
{
    tsi_free(all->op);
    *all = (tsi_parteds){ 0 };
}

const tsi_parted *tsi_parts_of(const tsi_parteds *all, int32_t piece)
{
    for (int64_t i = 0; i < all->count; i++)
        if (all->op[i].piece == piece && all->op[i].parts > 1) return &all->op[i];
    return NULL;
}

/* ---- agreement ------------------------------------------------------------------------------- */

static const char of_parts[] = "parts of a step";

static void stay_whole(const tsi_parteds *all)
{
    for (int64_t i = 0; i < all->count; i++)
        all->op[i].parts = 1;
}

static ts_status take_least(const tsi_parteds *all, const ts_step *s, const tsi_step *given,
                            int64_t *least, int64_t count)
{
    int64_t me = s->rank->index;
    for (int64_t i = 0; i < count; i++)
        least[i] = INT64_MAX;
    for (int64_t i = 0; i < all->count; i++) {
        int64_t number = tsi_number_of(given, me, all->op[i].action, is_first_part);
        if (number >= 0) least[number] = all->op[i].parts;
    }
    TSI_TRY(tsi_reduce_of_all(s->rank, of_parts, TS_REDUCE_MIN, least, count));
    for (int64_t i = 0; i < all->count; i++) {
        tsi_parted *op = &all->op[i];
        int64_t number = tsi_number_of(given, me, op->action, is_first_part);
        if (number < 0 || least[number] != op->parts) op->parts = 1;
    }
    return TS_OK;
}

ts_status tsi_parts_agree(const tsi_parteds *all, const ts_step *s, const tsi_step *given)
{
    if (s->rank->world->rank_count < 2) return TS_OK;
    int64_t count = tsi_number_of(given, s->rank->index, -1, is_first_part);
    int64_t *least = tsi_alloc_array((size_t)count + 1, sizeof *least);
    bool agree = tsi_all_can(s->rank, of_parts, least != NULL, tsi_hash_of_operations(given));
    ts_status status = ts_rank_status(s->rank);
    if (!agree) stay_whole(all);
    if (agree && status == TS_OK && count > 0) status = take_least(all, s, given, least, count);
    tsi_free(least);
    return status;
}

void tsi_parts_refuse(const ts_step *s)
{
    (void)tsi_all_can(s->rank, of_parts, false, 0);
}

int64_t tsi_parts_take(const tsi_parteds *all, const ts_step *s, bool taken)
{
    int64_t count = 0;
    for (int64_t i = 0; taken && i < all->count; i++) {
        const tsi_parted *op = &all->op[i];
        if (op->parts < 2) continue;
        tsi_again_go_in_parts(&s->works.recorded[op->work], op->parts);
        count++;
    }
    return count;
}
