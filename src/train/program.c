/* SPDX-License-Identifier: Apache-2.0 */
/* program.c - the step of a configuration as a program of all its ranks, before there is any.
 *
 * A rank is recorded in a world without data (estimate.c). Ranks whose coordinates differ in an
 * axis do the same if the first and the last of that axis do: where shards are uneven these two
 * differ, and then every coordinate of the axis is recorded. Lists are written in the wide form
 * (plan/step_wide.h): groups by the digits in which their members differ, peers by distance. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "layout/mesh.h"
#include "plan/program.h"
#include "plan/step_wide.h"
#include "train/run.h"

enum { RECORDED_MAX = 4096, CHANNELS_MAX = 64 };

typedef struct axis {
    int64_t size, stride;
    bool differs; /* ranks along it do different things */
} axis;

typedef struct writer {
    const ts_train_config *config;
    tsi_program_how how;
    int64_t ranks;
    axis axis[TS_NDIM_MAX];
    int32_t ndim;
    tsi_step *wide;
    char **text; /* [section]: to find equal ones; owned */
    int32_t *of; /* [rank]: its section; -1: it was not recorded */
    int64_t text_count, capacity;
} writer;

/* ---- from one rank's words to everybody's ---------------------------------------------------- */

/* The digits in which members differ; false: they are no product of such. */
static bool digits_of(const tsi_step_group *group, tsi_family *out)
{
    int64_t block = 1; /* members that the digits so far make up */
    *out = (tsi_family){ 0 };
    while (block < group->count) {
        if (out->digits == TSI_WIDE_DIGITS || group->count % block != 0) return false;
        int64_t stride = group->member[block] - group->member[0], count = 1;
        while (count * block < group->count &&
               group->member[count * block] == group->member[0] + count * stride)
            count++;
        memmove(&out->count[1], &out->count[0], 3 * sizeof out->count[0]);
        memmove(&out->stride[1], &out->stride[0], 3 * sizeof out->stride[0]);
        out->count[0] = count;
        out->stride[0] = stride;
        out->digits++;
        block *= count;
    }
    if (out->digits == 0) {
        out->digits = 1;
        out->count[0] = out->stride[0] = 1;
    }
    for (int64_t i = 0; i < group->count; i++)
        if (tsi_family_member(out, group->member[0], i) != group->member[i]) return false;
    return tsi_family_base(out, group->member[0]) == group->member[0];
}

static ts_status family_of(writer *w, const tsi_step_group *group, int32_t *out)
{
    char name[160];
    tsi_family family;
    if (!digits_of(group, &family))
        return TSI_FAIL(TS_ERR_ARG, "program: group %s of %d ranks is no grid of ranks",
                        group->name, group->count);
    size_t length =
        (size_t)snprintf(name, sizeof name, "%.40s", group->along ? group->along : "group");
    for (int32_t d = 0; d < family.digits; d++)
        length += (size_t)snprintf(name + length, sizeof name - length, ".%lldx%lld",
                                   (long long)family.count[d], (long long)family.stride[d]);
    TSI_TRY(tsi_wide_family(w->wide, name, &family, out));
    return group->along ? tsi_step_group_along(w->wide, *out, group->along) : TS_OK;
}

/* Channels are numbers of a rank's own teams: they count from 0 in the order of their use. */
typedef struct channels {
    int32_t known[CHANNELS_MAX], count;
} channels;

static int32_t channel_of(channels *c, int32_t recorded)
{
    for (int32_t i = 0; i < c->count; i++)
        if (c->known[i] == recorded) return i;
    if (c->count == CHANNELS_MAX) return CHANNELS_MAX + recorded % 1000;
    c->known[c->count] = recorded;
    return c->count++;
}

static ts_status add_action(writer *w, int64_t rank, int64_t section, const tsi_step *from,
                            const tsi_action *a, channels *messages)
{
    const tsi_step_list *list = tsi_step_list_of(from, rank);
    tsi_action action = *a;
    TSI_TRY(tsi_step_queue(w->wide, from->queue[a->queue], &action.queue));
    if (a->group >= 0) TSI_TRY(family_of(w, &from->group[a->group], &action.group));
    if (a->peer >= 0) {
        action.away = (int32_t)(a->peer - rank);
        action.peer = -1;
        action.channel = channel_of(messages, a->channel);
    }
    return tsi_step_append_as(w->wide, section, &action, tsi_step_touches(list, a),
                              a->touch_count > 0 ? list->form + a->touch_first : NULL,
                              a->touch_count);
}

static ts_status add_section(writer *w, int64_t rank, int64_t section, const tsi_step *from)
{
    const tsi_step_list *list = tsi_step_list_of(from, rank);
    channels messages = { .count = 0 };
    int32_t same;
    for (int32_t v = 0; v < list->value_count; v++)
        TSI_TRY(tsi_step_value(w->wide, section, &list->value[v], &same));
    for (int32_t i = 0; i < list->action_count; i++)
        TSI_TRY(add_action(w, rank, section, from, &list->action[i], &messages));
    if (section < w->wide->list_count) w->wide->list[section].peak = list->peak;
    return TS_OK;
}

/* The last section, which is the same as an older one, goes. */
static void drop_section(writer *w)
{
    tsi_step_list *last = &w->wide->list[--w->wide->list_count];
    tsi_free(last->value);
    tsi_free(last->action);
    tsi_free(last->touch);
    tsi_free(last->form);
    tsi_map_release(&last->values);
    *last = (tsi_step_list){ 0 };
}

static char *section_text(const tsi_step *step, int64_t section)
{
    tsi_text text = { 0 };
    const tsi_step_list *list = tsi_step_list_of(step, section);
    tsi_text_printf(&text, "%lld\n", (long long)list->peak);
    for (int32_t v = 0; v < list->value_count; v++)
        tsi_text_printf(&text, "%s %lld %d %d %s\n", list->value[v].name,
                        (long long)list->value[v].bytes, list->value[v].life, list->value[v].memory,
                        list->value[v].form ? list->value[v].form : "");
    for (int32_t i = 0; i < list->action_count; i++) {
        tsi_step_print_action(step, section, &list->action[i], &text);
        tsi_text_add(&text, "\n");
    }
    return tsi_text_take(&text);
}

/* Records a rank, once: there are no more sections than ranks. Its section is the one that does
 * what it does. */
static ts_status record_rank(writer *w, int64_t rank)
{
    tsi_step *one = NULL;
    int64_t section = w->wide->list_count;
    if (w->of[rank] >= 0) return TS_OK;
    TSI_TRY(tsi_train_record_rank(w->config, rank, &w->how, &one));
    ts_status status = add_section(w, rank, section, one);
    tsi_step_destroy(one);
    TSI_TRY(status);
    if (w->wide->list_count == section)
        return TSI_FAIL(TS_ERR_STATE, "program: a rank without work");
    char *text = section_text(w->wide, section);
    if (!text) return TS_ERR_MEMORY;
    for (int32_t i = 0; i < section; i++) {
        if (strcmp(w->text[i], text) != 0) continue;
        drop_section(w);
        tsi_free(text);
        w->of[rank] = i;
        return TS_OK;
    }
    status = tsi_room(&w->text, section, &w->capacity, sizeof *w->text, "a program");
    if (status != TS_OK) {
        tsi_free(text);
        return status;
    }
    w->text[w->text_count++] = text;
    w->of[rank] = (int32_t)section;
    return TS_OK;
}

/* ---- which ranks ----------------------------------------------------------------------------- */

static ts_status find_axes(writer *w)
{
    tsi_cursor cursor = tsi_cursor_of("mesh", w->config->parallel.mesh);
    tsi_mesh_desc draft = { 0 };
    int32_t star;
    TSI_TRY(tsi_mesh_parse_axes(&cursor, &draft, &star));
    w->ndim = draft.ndim;
    int64_t stride = 1, count = 1;
    for (int32_t k = draft.ndim - 1; k >= 0; k--) {
        w->axis[k] = (axis){ .size = draft.size[k], .stride = stride };
        stride *= draft.size[k];
    }
    TSI_TRY(record_rank(w, 0));
    for (int32_t k = 0; k < draft.ndim; k++) {
        if (draft.size[k] < 2) continue;
        int64_t last = (draft.size[k] - 1) * w->axis[k].stride;
        TSI_TRY(record_rank(w, last));
        w->axis[k].differs = w->of[last] != w->of[0] || strcmp(draft.name[k], "pp") == 0;
        if (w->axis[k].differs) count *= draft.size[k];
    }
    if (count > RECORDED_MAX)
        return TSI_FAIL(TS_ERR_ARG,
                        "program: the ranks of \"%s\" do %lld different things, because shards are "
                        "uneven; at most %d can be recorded",
                        w->config->parallel.mesh, (long long)count, RECORDED_MAX);
    return TS_OK;
}

/* The rank that stands for this one: coordinates that make no difference are 0. */
static int64_t model_of(const writer *w, int64_t rank)
{
    int64_t at = 0;
    for (int32_t k = 0; k < w->ndim; k++)
        if (w->axis[k].differs)
            at += rank / w->axis[k].stride % w->axis[k].size * w->axis[k].stride;
    return at;
}

static ts_status assign(writer *w)
{
    for (int64_t r = 0; r < w->ranks; r++) {
        int64_t model = model_of(w, r);
        TSI_ASSERT(model <= r);
        if (model < r)
            w->of[r] = w->of[model];
        else
            TSI_TRY(record_rank(w, r));
    }
    return TS_OK;
}

/* Ranks of a section as spans, each as long as it goes. */
static ts_status write_spans(writer *w, int32_t section)
{
    tsi_ranks span = { .first = -1, .list = section };
    for (int64_t r = 0; r < w->ranks; r++) {
        if (w->of[r] != section) continue;
        bool begun = span.first >= 0,
             fits = begun && (span.last == span.first || r - span.last == span.stride);
        if (begun && !fits) TSI_TRY(tsi_wide_span(w->wide, &span));
        if (!fits) span = (tsi_ranks){ r, r, 1, section };
        if (fits && span.last == span.first) span.stride = r - span.first;
        span.last = r;
    }
    return span.first >= 0 ? tsi_wide_span(w->wide, &span) : TS_OK;
}

static ts_status write_all(writer *w)
{
    TSI_TRY(tsi_step_create(w->ranks, &w->wide));
    TSI_TRY(tsi_step_widen(w->wide));
    w->of = tsi_alloc_array((size_t)w->ranks, sizeof *w->of);
    if (!w->of) return tsi_fail_memory("a program", (size_t)w->ranks * sizeof *w->of);
    for (int64_t r = 0; r < w->ranks; r++)
        w->of[r] = -1;
    TSI_TRY(find_axes(w));
    TSI_TRY(assign(w));
    for (int32_t s = 0; s < w->wide->list_count; s++)
        TSI_TRY(write_spans(w, s));
    return TS_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static ts_status record_apart(const writer *w, tsi_step **out)
{
    tsi_step **part = tsi_calloc((size_t)w->ranks, sizeof *part);
    ts_status status = part ? TS_OK : tsi_fail_memory("a program", (size_t)w->ranks * sizeof *part);
    for (int64_t r = 0; r < w->ranks && status == TS_OK; r++)
        status = tsi_train_record_rank(w->config, r, &w->how, &part[r]);
    if (status == TS_OK) status = tsi_step_join(part, w->ranks, out);
    for (int64_t r = 0; part && r < w->ranks; r++)
        tsi_step_destroy(part[r]);
    tsi_free(part);
    return status;
}

static ts_status record_wide(writer *w, tsi_step **out)
{
    ts_status status = write_all(w);
    for (int64_t s = 0; s < w->text_count; s++)
        tsi_free(w->text[s]);
    tsi_free(w->text);
    tsi_free(w->of);
    if (status == TS_OK)
        *out = w->wide;
    else
        tsi_step_destroy(w->wide);
    return status;
}

ts_status ts_train_program(const ts_train_config *config, const ts_train_program_options *options,
                           ts_program **out)
{
    if (!config || !out) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    ts_train_program_options given = { .struct_size = sizeof given };
    ts_roles roles;
    tsi_step *step = NULL;
    *out = NULL;
    if (options)
        memcpy(&given, options,
               options->struct_size < sizeof given ? options->struct_size : sizeof given);
    writer w = { .config = config };
    w.how.flops_per_second = given.flops_per_second > 0 ? given.flops_per_second : 1e11;
    w.how.bytes_per_second = given.bytes_per_second > 0 ? given.bytes_per_second : 1e10;
    TSI_TRY(tsi_train_config_meaning(config));
    TSI_TRY(tsi_train_vocabulary(config, &w.how.vocab));
    TSI_TRY(ts_roles_parse(config->parallel.mesh, &roles));
    if (roles.ranks == 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "parallel.mesh: \"%s\" has an axis \"*\", and there are no ranks",
                        config->parallel.mesh);
    w.ranks = roles.ranks;
    if (given.apart && w.ranks > RECORDED_MAX)
        return TSI_FAIL(TS_ERR_ARG, "program: %lld lists apart; at most %d", (long long)w.ranks,
                        RECORDED_MAX);
    TSI_TRY(given.apart ? record_apart(&w, &step) : record_wide(&w, &step));
    return tsi_program_make(step, out);
}
