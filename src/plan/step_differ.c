/* SPDX-License-Identifier: Apache-2.0 */
/* step_differ.c - the first difference between two steps, as a sentence.
 *
 * Steps are equal if their texts are: names are compared as texts, for each step has its own. */
#include <string.h>

#include "plan/step_wide.h"

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

static bool differ_wide(const tsi_wide *a, const tsi_wide *b, tsi_text *why)
{
    if (differ_number("wide", a != NULL, b != NULL, why)) return true;
    if (!a) return false;
    if (differ_number("spans of ranks", a->span_count, b->span_count, why)) return true;
    for (int64_t i = 0; i < a->span_count; i++) {
        const tsi_ranks *x = &a->span[i], *y = &b->span[i];
        if (x->first == y->first && x->last == y->last && x->stride == y->stride &&
            x->list == y->list)
            continue;
        tsi_text_printf(why,
                        "span %lld of ranks: %lld..%lld:%lld of list %d and %lld..%lld:%lld of "
                        "list %d",
                        (long long)i + 1, (long long)x->first, (long long)x->last,
                        (long long)x->stride, x->list, (long long)y->first, (long long)y->last,
                        (long long)y->stride, y->list);
        return true;
    }
    return false;
}

static bool same_family(const tsi_family *a, const tsi_family *b)
{
    bool same = a->digits == b->digits;
    for (int32_t d = 0; same && d < a->digits; d++)
        same = a->count[d] == b->count[d] && a->stride[d] == b->stride[d];
    return same;
}

/* Steps that are both wide or both not. */
static bool same_group(const tsi_step *a, const tsi_step *b, int32_t group)
{
    const tsi_step_group *x = &a->group[group], *y = &b->group[group];
    bool named = same_text(x->name, y->name) && same_text(x->along, y->along);
    if (a->wide) return named && same_family(&a->wide->family[group], &b->wide->family[group]);
    return named && x->count == y->count &&
           memcmp(x->member, y->member, (size_t)x->count * sizeof *x->member) == 0;
}

static bool differ_head(const tsi_step *a, const tsi_step *b, tsi_text *why)
{
    if (differ_number("ranks", a->rank_count, b->rank_count, why) ||
        differ_number("stages", a->stage_count, b->stage_count, why) ||
        differ_number("micro-batches", a->micro_count, b->micro_count, why) ||
        differ_number("queues", a->queue_count, b->queue_count, why) ||
        differ_number("groups", a->group_count, b->group_count, why) ||
        differ_wide(a->wide, b->wide, why))
        return true;
    for (int32_t q = 0; q < a->queue_count; q++) {
        if (same_text(a->queue[q], b->queue[q])) continue;
        tsi_text_printf(why, "queue %d: %s and %s", q, a->queue[q], b->queue[q]);
        return true;
    }
    for (int32_t g = 0; g < a->group_count; g++) {
        if (same_group(a, b, g)) continue;
        tsi_text_printf(why, "group %d: '", g);
        tsi_step_print_group(a, g, why);
        tsi_text_add(why, "' and '");
        tsi_step_print_group(b, g, why);
        tsi_text_add(why, "'");
        return true;
    }
    return false;
}

/* `rank` is the one that is named. */
static bool differ_values(const tsi_step_list *a, const tsi_step_list *b, int64_t rank,
                          tsi_text *why)
{
    for (int32_t v = 0; v < a->value_count && v < b->value_count; v++) {
        const tsi_value *x = &a->value[v], *y = &b->value[v];
        if (same_text(x->name, y->name) && x->bytes == y->bytes && x->memory == y->memory &&
            x->life == y->life && same_text(x->form, y->form))
            continue;
        tsi_text_printf(why, "value %d of rank %lld: ", v + 1, (long long)rank);
        tsi_step_print_value(x, why);
        tsi_text_add(why, " and ");
        tsi_step_print_value(y, why);
        return true;
    }
    if (a->peak != b->peak) {
        tsi_text_printf(why, "peak of rank %lld: %lld and %lld", (long long)rank,
                        (long long)a->peak, (long long)b->peak);
        return true;
    }
    if (a->value_count == b->value_count) return false;
    tsi_text_printf(why, "rank %lld has %d and %d values", (long long)rank, a->value_count,
                    b->value_count);
    return true;
}

/* The lists' values are alike, so that touches can be compared by index. */
static bool same_touches(const tsi_step_list *a, const tsi_action *x, const tsi_step_list *b,
                         const tsi_action *y)
{
    const tsi_touch *s = tsi_step_touches(a, x), *t = tsi_step_touches(b, y);
    bool same = x->touch_count == y->touch_count;
    for (int32_t i = 0; same && i < x->touch_count; i++)
        same = s[i].value == t[i].value && s[i].how == t[i].how &&
               same_text(tsi_step_form(a, x, i), tsi_step_form(b, y, i));
    return same;
}

static bool same_action(const tsi_step_list *a, const tsi_action *x, const tsi_step_list *b,
                        const tsi_action *y)
{
    return x->kind == y->kind && x->queue == y->queue && x->stage == y->stage &&
           x->micro == y->micro && x->peer == y->peer && x->group == y->group &&
           x->channel == y->channel && x->bytes == y->bytes && x->us == y->us &&
           x->away == y->away && x->hidden == y->hidden && same_text(x->what, y->what) &&
           same_text(x->place, y->place) && same_touches(a, x, b, y);
}

static bool differ_actions(const tsi_step *a, const tsi_step *b, int32_t list, tsi_text *why)
{
    const tsi_step_list *x = tsi_step_list_of(a, list), *y = tsi_step_list_of(b, list);
    long long rank = (long long)tsi_wide_shown(a, list);
    for (int32_t i = 0; i < x->action_count && i < y->action_count; i++) {
        if (same_action(x, &x->action[i], y, &y->action[i])) continue;
        tsi_text_printf(why, "action %d of rank %lld: '", i + 1, rank);
        tsi_step_print_action(a, list, &x->action[i], why);
        tsi_text_add(why, "' and '");
        tsi_step_print_action(b, list, &y->action[i], why);
        tsi_text_add(why, "'");
        return true;
    }
    if (x->action_count == y->action_count) return false;
    tsi_text_printf(why, "rank %lld has %d and %d actions; the first more is '", rank,
                    x->action_count, y->action_count);
    if (x->action_count > y->action_count)
        tsi_step_print_action(a, list, &x->action[y->action_count], why);
    else
        tsi_step_print_action(b, list, &y->action[x->action_count], why);
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
        differ = differ_values(tsi_step_list_of(a, r), tsi_step_list_of(b, r), tsi_wide_shown(a, r),
                               text) ||
                 differ_actions(a, b, r, text);
    tsi_text_release(&unread);
    return differ;
}
