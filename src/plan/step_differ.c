/* SPDX-License-Identifier: Apache-2.0 */
/* step_differ.c - the first difference between two steps, as a sentence.
 *
 * Steps are equal if their texts are: names are compared as texts, for each step has its own. */
#include <string.h>

#include "plan/step.h"

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Whether two numbers of the head differ. */
static bool differ_number(const char *what, int64_t a, int64_t b, tsi_text *why)
{
    if (a == b) return false;
    tsi_text_printf(why, "%s: %lld and %lld", what, (long long)a, (long long)b);
    return true;
}

static bool differ_head(const tsi_step *a, const tsi_step *b, tsi_text *why)
{
    if (differ_number("ranks", a->rank_count, b->rank_count, why) ||
        differ_number("stages", a->stage_count, b->stage_count, why) ||
        differ_number("micro-batches", a->micro_count, b->micro_count, why) ||
        differ_number("queues", a->queue_count, b->queue_count, why) ||
        differ_number("groups", a->group_count, b->group_count, why))
        return true;
    for (int32_t q = 0; q < a->queue_count; q++) {
        if (same_text(a->queue[q], b->queue[q])) continue;
        tsi_text_printf(why, "queue %d: %s and %s", q, a->queue[q], b->queue[q]);
        return true;
    }
    for (int32_t g = 0; g < a->group_count; g++) {
        const tsi_step_group *x = &a->group[g], *y = &b->group[g];
        bool same = same_text(x->name, y->name) && x->count == y->count;
        if (same && memcmp(x->member, y->member, (size_t)x->count * sizeof *x->member) == 0)
            continue;
        tsi_text_printf(why, "group %d: %s of %d ranks and %s of %d ranks%s", g, x->name, x->count,
                        y->name, y->count, same ? ", which are others" : "");
        return true;
    }
    return false;
}

static bool differ_values(const tsi_step_list *a, const tsi_step_list *b, int32_t rank,
                          tsi_text *why)
{
    for (int32_t v = 0; v < a->value_count && v < b->value_count; v++) {
        const tsi_value *x = &a->value[v], *y = &b->value[v];
        if (same_text(x->name, y->name) && x->bytes == y->bytes && x->memory == y->memory &&
            x->life == y->life)
            continue;
        tsi_text_printf(why, "value %d of rank %d: %s %s %lld %s and %s %s %lld %s", v + 1, rank,
                        tsi_life_names[x->life], x->name, (long long)x->bytes,
                        tsi_step_memory_names[x->memory], tsi_life_names[y->life], y->name,
                        (long long)y->bytes, tsi_step_memory_names[y->memory]);
        return true;
    }
    if (a->value_count == b->value_count) return false;
    tsi_text_printf(why, "rank %d has %d and %d values", rank, a->value_count, b->value_count);
    return true;
}

/* The lists' values are alike, so that touches can be compared by index. */
static bool same_action(const tsi_step_list *a, const tsi_action *x, const tsi_step_list *b,
                        const tsi_action *y)
{
    return x->kind == y->kind && x->queue == y->queue && x->stage == y->stage &&
           x->micro == y->micro && x->peer == y->peer && x->group == y->group &&
           x->channel == y->channel && x->bytes == y->bytes && x->us == y->us &&
           same_text(x->what, y->what) && x->touch_count == y->touch_count &&
           (x->touch_count == 0 || memcmp(tsi_step_touches(a, x), tsi_step_touches(b, y),
                                          (size_t)x->touch_count * sizeof(tsi_touch)) == 0);
}

static bool differ_actions(const tsi_step *a, const tsi_step *b, int32_t rank, tsi_text *why)
{
    const tsi_step_list *x = tsi_step_list_of(a, rank), *y = tsi_step_list_of(b, rank);
    for (int32_t i = 0; i < x->action_count && i < y->action_count; i++) {
        if (same_action(x, &x->action[i], y, &y->action[i])) continue;
        tsi_text_printf(why, "action %d of rank %d: '", i + 1, rank);
        tsi_step_print_action(a, rank, &x->action[i], why);
        tsi_text_add(why, "' and '");
        tsi_step_print_action(b, rank, &y->action[i], why);
        tsi_text_add(why, "'");
        return true;
    }
    if (x->action_count == y->action_count) return false;
    tsi_text_printf(why, "rank %d has %d and %d actions; the first more is '", rank,
                    x->action_count, y->action_count);
    if (x->action_count > y->action_count)
        tsi_step_print_action(a, rank, &x->action[y->action_count], why);
    else
        tsi_step_print_action(b, rank, &y->action[x->action_count], why);
    tsi_text_add(why, "'");
    return true;
}

bool tsi_step_differ(const tsi_step *a, const tsi_step *b, tsi_text *why)
{
    tsi_text unread = { 0 };
    tsi_text *text = why ? why : &unread;
    bool differ = differ_head(a, b, text);
    int32_t ranks = a->list_count > b->list_count ? a->list_count : b->list_count;
    for (int32_t r = 0; r < ranks && !differ; r++)
        differ = differ_values(tsi_step_list_of(a, r), tsi_step_list_of(b, r), r, text) ||
                 differ_actions(a, b, r, text);
    tsi_text_release(&unread);
    return differ;
}
