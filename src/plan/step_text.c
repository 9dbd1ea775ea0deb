/* SPDX-License-Identifier: Apache-2.0 */
/* step_text.c - a step as text: one line per value and action, in one spelling.
 *
 * What has its default is not printed, so that equal steps are equal texts. docs/steps.md has the
 * grammar; step_parse.c reads it back. */
#include "plan/step_wide.h"

static void add_number(tsi_text *text, const char *key, int64_t value)
{
    tsi_text_add(text, key);
    tsi_text_int(text, value);
}

/* "0..6:2" where members are evenly spaced, else "0,1,5". */
static void add_members(const tsi_step_group *group, tsi_text *text)
{
    const int32_t *m = group->member;
    int32_t stride = group->count > 2 ? m[1] - m[0] : 0;
    for (int32_t i = 2; i < group->count && stride > 0; i++)
        if (m[i] - m[i - 1] != stride) stride = 0;
    if (stride > 0) {
        tsi_text_int(text, m[0]);
        add_number(text, "..", m[group->count - 1]);
        if (stride > 1) add_number(text, ":", stride);
        return;
    }
    for (int32_t i = 0; i < group->count; i++)
        add_number(text, i ? "," : "", m[i]);
}

static void add_touches(const tsi_step_list *list, const tsi_action *a, tsi_text *text)
{
    const tsi_touch *touch = tsi_step_touches(list, a);
    for (int32_t i = 0; i < a->touch_count; i++) {
        if (i == 0 || touch[i].how != touch[i - 1].how)
            tsi_text_printf(text, " %s=", tsi_touch_names[touch[i].how]);
        else
            tsi_text_add(text, ",");
        tsi_text_add(text, list->value[touch[i].value].name);
        const char *form = tsi_step_form(list, a, i);
        if (form) tsi_text_printf(text, "@%s", form);
    }
}

/* What the action is, without what it touches and costs. In sentences, ranks that stand for many
 * are called by their numbers, and channels that narrowing made up by none. */
static void add_head(const tsi_step *step, const tsi_action *a, bool sentence, tsi_text *text)
{
    bool narrow = sentence && step->narrowed;
    tsi_text_add(text, tsi_action_names[a->kind]);
    if (a->what) {
        tsi_text_add(text, " ");
        tsi_text_add(text, a->what);
    }
    if (a->stage >= 0) add_number(text, " stage=", a->stage);
    if (a->micro >= 0) add_number(text, " micro=", a->micro);
    const char *key = a->kind == TSI_ACTION_SEND ? " to=" : " from=";
    if (a->peer >= 0) add_number(text, key, narrow ? tsi_step_shown(step, a->peer) : a->peer);
    if (a->away != 0) tsi_text_printf(text, "%s%+d", key, a->away);
    if (a->group >= 0) tsi_text_printf(text, " over=%s", step->group[a->group].name);
    if (a->channel > 0 && !(narrow && a->peer >= 0)) add_number(text, " channel=", a->channel);
}

void tsi_step_print_action(const tsi_step *step, int64_t rank, const tsi_action *a, tsi_text *text)
{
    add_head(step, a, false, text);
    if (a->queue > 0) tsi_text_printf(text, " queue=%s", step->queue[a->queue]);
    if (a->bytes > 0) add_number(text, " bytes=", a->bytes);
    add_touches(tsi_step_list_of(step, rank), a, text);
    if (a->us >= 0) {
        tsi_text_add(text, " us=");
        tsi_text_real(text, a->us);
    }
    if (a->hidden) tsi_text_add(text, " hidden=1");
    if (a->place) tsi_text_printf(text, " at=%s", a->place);
}

void tsi_step_cite(const tsi_step *step, int64_t rank, int32_t index, tsi_text *text)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    const tsi_action *a = &list->action[index];
    add_head(step, a, true, text);
    if (a->place) tsi_text_printf(text, " at %s", a->place);
    tsi_text_printf(text, " (action %d of rank %lld", index + 1,
                    (long long)tsi_step_shown(step, rank));
    if (list->alike > 0) tsi_text_printf(text, " and %lld like it", (long long)list->alike);
    tsi_text_add(text, ")");
}

/* "0..8190:2", or one rank. */
static void add_span(const tsi_ranks *span, tsi_text *text)
{
    tsi_text_int(text, span->first);
    if (span->last > span->first) add_number(text, "..", span->last);
    if (span->last > span->first && span->stride > 1) add_number(text, ":", span->stride);
}

/* The ranks that a list stands for. */
static void add_ranks(const tsi_step *step, int32_t list, tsi_text *text)
{
    tsi_text_add(text, "rank ");
    if (!step->wide) tsi_text_int(text, list);
    const tsi_ranks *span = NULL;
    int64_t count = step->wide ? tsi_wide_spans_of(step->wide, list, &span) : 0;
    for (int64_t i = 0; i < count; i++) {
        if (i > 0) tsi_text_add(text, ",");
        add_span(&span[i], text);
    }
    tsi_text_add(text, "\n");
}

void tsi_step_print_group(const tsi_step *step, int32_t group, tsi_text *text)
{
    bool family = tsi_step_is_family(step, group);
    tsi_text_printf(text, "%s %s ", family ? "groups" : "group", step->group[group].name);
    if (!family) add_members(&step->group[group], text);
    const tsi_family *f = family ? &step->wide->family[group] : NULL;
    for (int32_t d = 0; f && d < f->digits; d++)
        tsi_text_printf(text, "%s%lld:%lld", d ? "," : "", (long long)f->count[d],
                        (long long)f->stride[d]);
    if (step->group[group].along) tsi_text_printf(text, " %s", step->group[group].along);
}

void tsi_step_print_value(const tsi_value *value, tsi_text *text)
{
    tsi_text_printf(text, "%s %s %lld %s", tsi_life_names[value->life], value->name,
                    (long long)value->bytes, tsi_step_memory_names[value->memory]);
    if (value->form) tsi_text_printf(text, " %s", value->form);
}

void tsi_step_print(const tsi_step *step, tsi_text *text)
{
    tsi_text_printf(text, "step 1\nranks %d\n", step->rank_count);
    if (step->wide) tsi_text_add(text, "wide\n");
    if (step->stage_count > 0)
        tsi_text_printf(text, "stages %d micro-batches %d\n", step->stage_count, step->micro_count);
    for (int32_t q = 1; q < step->queue_count; q++)
        tsi_text_printf(text, "queue %s\n", step->queue[q]);
    for (int32_t g = 0; g < step->group_count; g++) {
        tsi_step_print_group(step, g, text);
        tsi_text_add(text, "\n");
    }
    for (int32_t r = 0; r < step->list_count; r++) {
        const tsi_step_list *list = &step->list[r];
        add_ranks(step, r, text);
        if (list->peak > 0) tsi_text_printf(text, "peak %lld\n", (long long)list->peak);
        for (int32_t v = 0; v < list->value_count; v++) {
            tsi_step_print_value(&list->value[v], text);
            tsi_text_add(text, "\n");
        }
        for (int32_t i = 0; i < list->action_count; i++) {
            tsi_step_print_action(step, r, &list->action[i], text);
            tsi_text_add(text, "\n");
        }
    }
}
