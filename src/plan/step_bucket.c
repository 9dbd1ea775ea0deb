/* SPDX-License-Identifier: Apache-2.0 */
/* step_bucket.c - neighbouring collectives of one group, kind, channel and queue become one.
 *
 * Which ones is decided on the first member's list by what all members have alike: kinds, bytes and
 * the order of a channel. The bucket stands where its last member stood: by then all inputs are
 * there, and nobody waited for the others yet, else they are left alone. What each read and made
 * stays in the same order, so the i-th result is still that of the i-th input.
 *
 * INV: all members of a group join the same operations of a channel. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_reorder.h"

enum { MEMBERS_MAX = 64 };

bool tsi_is_bucket(const tsi_action *action)
{
    return action->group >= 0 && action->what &&
           strncmp(action->what, TSI_BUCKET_PREFIX, sizeof TSI_BUCKET_PREFIX - 1) == 0;
}

bool tsi_goes_in_buckets(const tsi_action *action)
{
    return action->kind == TSI_ACTION_GATHER || action->kind == TSI_ACTION_REDUCE ||
           action->kind == TSI_ACTION_ALL_REDUCE || action->kind == TSI_ACTION_EXCHANGE;
}

static bool can_join(const tsi_action *a, const tsi_action *b)
{
    tsi_part_name part;
    if (tsi_is_part(a, &part) || tsi_is_part(b, &part)) return false;
    return tsi_goes_in_buckets(a) && a->kind == b->kind && a->group == b->group &&
           a->channel == b->channel && a->queue == b->queue && a->queue != 0 &&
           (a->us < 0) == (b->us < 0) && a->bytes > 0 &&
           b->bytes > 0; /* a program that is read back finds the members by their bytes */
}

bool tsi_touches_of(const tsi_step_list *list, const tsi_action *a, const tsi_action *b)
{
    const tsi_touch *x = tsi_step_touches(list, a), *y = tsi_step_touches(list, b);
    for (int32_t i = 0; i < a->touch_count; i++)
        for (int32_t k = 0; k < b->touch_count; k++)
            if (x[i].value == y[k].value && (x[i].how != TSI_READS || y[k].how != TSI_READS))
                return true;
    return false;
}

/* How many operations from `at` on go as one, on this list: the actions in `member`. */
static int32_t run_of(const tsi_step_list *list, int32_t at, int64_t bytes_max, int32_t *member)
{
    const tsi_action *head = &list->action[at];
    int64_t bytes = head->bytes;
    int32_t count = 1;
    member[0] = at;
    for (int32_t i = at + 1; i < list->action_count && count < MEMBERS_MAX; i++) {
        const tsi_action *a = &list->action[i];
        for (int32_t m = 0; m < count; m++)
            if (tsi_touches_of(list, &list->action[member[m]], a)) return count;
        bool unnamed = a->kind == TSI_ACTION_WAIT && a->touch_count == 0;
        if (unnamed) return count;
        if (a->group < 0 && a->peer < 0) continue;
        if (!can_join(head, a) || bytes + a->bytes > bytes_max) return count;
        bytes += a->bytes;
        member[count++] = i;
    }
    return count;
}

/* The n-th operation of the channel on this list; -1: there are fewer. */
static int32_t find_nth(const tsi_step_list *list, const tsi_action *like, int32_t nth)
{
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (a->group == like->group && a->channel == like->channel && nth-- == 0) return i;
    }
    return -1;
}

static int32_t number_of(const tsi_step_list *list, int32_t at)
{
    int32_t number = 0;
    for (int32_t i = 0; i < at; i++)
        number += list->action[i].group == list->action[at].group &&
                  list->action[i].channel == list->action[at].channel;
    return number;
}

/* The best line through the times that those of its group, kind and channel are said to take. */
double tsi_latency_of(const tsi_step_list *list, const tsi_action *like)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0, least = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (a->us < 0 || a->kind != like->kind || a->group != like->group ||
            a->channel != like->channel)
            continue;
        double bytes = (double)a->bytes;
        least = n == 0 || a->us < least ? a->us : least;
        n++;
        x += bytes;
        y += a->us;
        xx += bytes * bytes;
        xy += bytes * a->us;
    }
    double spread = n * xx - x * x;
    if (n < 2 || spread <= 1e-9 * n * xx) return 0;
    double slope = (n * xy - x * y) / spread, rest = (y - slope * x) / n;
    return rest < 0 ? 0 : rest > least ? least : rest;
}

static ts_status join_on(tsi_step *step, int64_t rank, const int32_t *member, int32_t count)
{
    tsi_step_list *list = &step->list[rank];
    tsi_action joined = list->action[member[count - 1]];
    char name[TSI_STEP_NAME_MAX + 1];
    int32_t touches = 0;
    for (int32_t m = 0; m < count; m++)
        touches += list->action[member[m]].touch_count;
    tsi_touch *touch = tsi_alloc_array((size_t)touches + 1, sizeof *touch);
    const char **form = tsi_alloc_array((size_t)touches + 1, sizeof *form);
    ts_status status = touch && form ? TS_OK : tsi_fail_memory("a bucket", (size_t)touches * 16);
    bool timed = joined.us >= 0;
    if (timed) joined.us = -tsi_latency_of(list, &joined) * (count - 1);
    joined.bytes = 0;
    (void)snprintf(name, sizeof name, TSI_BUCKET_PREFIX "%.200s",
                   list->action[member[0]].what ? list->action[member[0]].what : "");
    for (int32_t m = 0, at = 0; status == TS_OK && m < count; m++) {
        const tsi_action *a = &list->action[member[m]];
        joined.bytes += a->bytes;
        if (timed) joined.us += a->us;
        for (int32_t k = 0; k < a->touch_count; k++, at++) {
            touch[at] = tsi_step_touches(list, a)[k];
            form[at] = tsi_step_form(list, a, k);
        }
    }
    if (timed && joined.us < 0) joined.us = 0;
    joined.what = name;
    if (status == TS_OK) status = tsi_step_append_as(step, rank, &joined, touch, form, touches);
    tsi_free(touch);
    tsi_free(form);
    TSI_TRY(status);
    list = &step->list[rank];
    list->action[member[count - 1]] = list->action[--list->action_count];
    for (int32_t m = count - 2; m >= 0; m--, list->action_count--)
        memmove(&list->action[member[m]], &list->action[member[m] + 1],
                (size_t)(list->action_count - member[m] - 1) * sizeof *list->action);
    return TS_OK;
}

/* As many as every member of the group can join, from the n-th operation of the channel on. */
static ts_status join_all(tsi_step *step, const tsi_action *like, int32_t nth, int64_t bytes_max,
                          int64_t *moves)
{
    const tsi_step_group *group = &step->group[like->group];
    int32_t member[MEMBERS_MAX], least = MEMBERS_MAX;
    tsi_action head = *like;
    for (int32_t g = 0; g < group->count; g++) {
        const tsi_step_list *list = tsi_step_list_of(step, group->member[g]);
        int32_t at = find_nth(list, &head, nth);
        int32_t count = at >= 0 ? run_of(list, at, bytes_max, member) : 0;
        if (count < least) least = count;
    }
    if (least < 2) return TS_OK;
    for (int32_t g = 0; g < group->count; g++) {
        const tsi_step_list *list = tsi_step_list_of(step, group->member[g]);
        (void)run_of(list, find_nth(list, &head, nth), bytes_max, member);
        TSI_TRY(join_on(step, group->member[g], member, least));
    }
    *moves += least;
    return TS_OK;
}

ts_status tsi_pass_bucket(tsi_step *step, int64_t bucket_bytes, int64_t *moves)
{
    for (int32_t r = 0; r < step->list_count; r++) {
        for (int32_t i = 0; i < step->list[r].action_count; i++) {
            const tsi_action like = step->list[r].action[i];
            if (like.group < 0 || step->group[like.group].member[0] != r) continue;
            TSI_TRY(join_all(step, &like, number_of(&step->list[r], i), bucket_bytes, moves));
        }
    }
    return TS_OK;
}
