/* SPDX-License-Identifier: Apache-2.0 */
/* step.c - building a step.
 *
 * Everything that a list may not contain is refused when it is appended, so that a step which
 * exists has indices, ranks and names that mean something; whether it can run is the proof's
 * question. */
#include "plan/step.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/error.h"
#include "base/intmath.h"
#include "plan/step_wide.h"

#define ACTION_NAME(name, text, class_, once) #text,
const char *const tsi_action_names[] = { TSI_ACTION_LIST(ACTION_NAME) NULL };
#undef ACTION_NAME
#define MEMORY_NAME(name, text) #text,
const char *const tsi_step_memory_names[] = { TSI_STEP_MEMORY_LIST(MEMORY_NAME) NULL };
#undef MEMORY_NAME
const char *const tsi_life_names[] = { "value", "takes", "leaves", "holds", NULL };
const char *const tsi_touch_names[] = { "reads", "writes", "makes", "frees", "views", NULL };

tsi_action_class tsi_action_class_of(int32_t kind)
{
#define CLASS_OF(name, text, class_, once) TSI_CLASS_##class_,
    static const uint8_t class_of[] = { TSI_ACTION_LIST(CLASS_OF) };
#undef CLASS_OF
    TSI_ASSERT(kind >= 0 && (size_t)kind < TSI_COUNT_OF(class_of));
    return (tsi_action_class)class_of[kind];
}

/* Room for `more` items behind `count`. */
static bool grow(void *array, int64_t count, int64_t more, int64_t *capacity, size_t item)
{
    return more == 0 || tsi_room(array, count + more - 1, capacity, item, "a step") == TS_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

ts_status tsi_step_create(int64_t ranks, tsi_step **out)
{
    *out = NULL;
    if (ranks < 1 || ranks > TSI_STEP_RANKS_MAX)
        return TSI_FAIL(TS_ERR_ARG, "step: %lld ranks; 1 to %d are possible", (long long)ranks,
                        TSI_STEP_RANKS_MAX);
    tsi_step *step = tsi_calloc(1, sizeof *step);
    if (!step) return tsi_fail_memory("a step", sizeof *step);
    step->rank_count = (int32_t)ranks;
    step->queue_count = 1;
    step->queue[0] = "main";
    *out = step;
    return TS_OK;
}

void tsi_step_destroy(tsi_step *step)
{
    if (!step) return;
    for (int32_t r = 0; r < step->list_count; r++) {
        tsi_free(step->list[r].value);
        tsi_free(step->list[r].action);
        tsi_free(step->list[r].touch);
        tsi_free(step->list[r].form);
        tsi_map_release(&step->list[r].values);
    }
    tsi_free(step->list);
    tsi_free(step->group);
    tsi_wide_destroy(step->wide);
    tsi_map_release(&step->names);
    tsi_map_release(&step->groups);
    tsi_arena_release(&step->memory);
    tsi_free(step);
}

ts_status tsi_step_stages(tsi_step *step, int64_t stages, int64_t micro_batches)
{
    if (stages < 0 || stages > INT32_MAX || micro_batches < 0 || micro_batches > INT32_MAX ||
        (stages == 0) != (micro_batches == 0))
        return TSI_FAIL(TS_ERR_ARG, "step: %lld stages and %lld micro-batches; both or none are 0",
                        (long long)stages, (long long)micro_batches);
    step->stage_count = (int32_t)stages;
    step->micro_count = (int32_t)micro_batches;
    return TS_OK;
}

const tsi_step_list *tsi_step_list_of(const tsi_step *step, int64_t rank)
{
    static const tsi_step_list none = { 0 };
    TSI_ASSERT(rank >= 0 && rank < step->rank_count);
    return rank < step->list_count ? &step->list[rank] : &none;
}

int64_t tsi_step_action_count(const tsi_step *step)
{
    int64_t count = 0;
    for (int32_t r = 0; r < step->list_count; r++)
        count += step->list[r].action_count;
    return count;
}

/* The list of a rank, made with all before it. */
static ts_status list_for(tsi_step *step, int64_t rank, tsi_step_list **out)
{
    *out = NULL;
    if (rank < 0 || rank >= step->rank_count)
        return TSI_FAIL(TS_ERR_ARG, "step: rank %lld of %d", (long long)rank, step->rank_count);
    int64_t more = rank + 1 - step->list_count;
    if (more > 0) {
        if (!grow(&step->list, step->list_count, more, &step->list_capacity, sizeof *step->list))
            return tsi_fail_memory("the lists of a step", (size_t)more * sizeof *step->list);
        memset(&step->list[step->list_count], 0, (size_t)more * sizeof *step->list);
        step->list_count = (int32_t)(rank + 1);
    }
    *out = &step->list[rank];
    return TS_OK;
}

ts_status tsi_step_list_make(tsi_step *step, int64_t rank)
{
    tsi_step_list *list;
    return list_for(step, rank, &list);
}

/* ---- names, queues, groups ------------------------------------------------------------------- */

static bool text_equal(const void *value, const void *wanted)
{
    return strcmp(value, wanted) == 0;
}

static bool name_fits(const char *text)
{
    size_t length = strcspn(text, " ,=#");
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f) return false;
    return length > 0 && length <= TSI_STEP_NAME_MAX && text[length] == '\0';
}

ts_status tsi_step_name(tsi_step *step, const char *text, const char **out)
{
    uint64_t key = tsi_hash_text(1, text);
    *out = tsi_map_find(&step->names, key, text_equal, text);
    if (*out) return TS_OK;
    if (!name_fits(text))
        return TSI_FAIL(TS_ERR_ARG,
                        "step: '%.60s' is no name: 1 to %d bytes without blanks, ',', '=' and '#'",
                        text, TSI_STEP_NAME_MAX);
    char *copy = tsi_arena_strdup(&step->memory, text);
    if (!copy || tsi_map_insert(&step->names, key, copy) != TS_OK)
        return tsi_fail_memory("a name of a step", strlen(text) + 1);
    *out = copy;
    return TS_OK;
}

const char *tsi_step_find_name(const tsi_step *step, const char *text)
{
    return tsi_map_find(&step->names, tsi_hash_text(1, text), text_equal, text);
}

/* Names are one pointer each, so the pointer is the key of a map to index + 1. */
static uint64_t pointer_key(const char *own)
{
    return (uint64_t)(uintptr_t)own;
}

static int32_t find_index(const tsi_step *step, const tsi_map *map, const char *name)
{
    const char *own = tsi_step_find_name(step, name);
    void *found = own ? tsi_map_find(map, pointer_key(own), NULL, NULL) : NULL;
    return (int32_t)((intptr_t)found - 1);
}

static ts_status note_index(tsi_map *map, const char *own, int32_t index)
{
    return tsi_map_insert(map, pointer_key(own), (void *)((intptr_t)index + 1));
}

ts_status tsi_step_queue(tsi_step *step, const char *name, int32_t *out)
{
    *out = 0;
    for (int32_t q = 0; q < step->queue_count; q++) {
        *out = q;
        if (strcmp(step->queue[q], name) == 0) return TS_OK;
    }
    *out = 0;
    if (step->queue_count == TSI_STEP_QUEUES)
        return TSI_FAIL(TS_ERR_ARG, "step: '%.60s' would be one queue more than %d", name,
                        TSI_STEP_QUEUES);
    const char *own;
    TSI_TRY(tsi_step_name(step, name, &own));
    step->queue[step->queue_count] = own;
    *out = step->queue_count++;
    return TS_OK;
}

static ts_status check_members(const tsi_step *step, const char *name, const int32_t *member,
                               int64_t count)
{
    if (count < 1 || step->member_count + count > TSI_STEP_MEMBERS_MAX)
        return TSI_FAIL(TS_ERR_ARG,
                        "step: group %.60s has %lld members; groups have 1 to %d, all "
                        "together",
                        name, (long long)count, TSI_STEP_MEMBERS_MAX);
    for (int64_t i = 0; i < count; i++) {
        if (member[i] < 0 || member[i] >= step->rank_count)
            return TSI_FAIL(TS_ERR_ARG, "step: group %.60s has rank %d of %d", name, member[i],
                            step->rank_count);
        if (i > 0 && member[i] <= member[i - 1])
            return TSI_FAIL(TS_ERR_ARG, "step: group %.60s has rank %d after %d; members ascend",
                            name, member[i], member[i - 1]);
    }
    return TS_OK;
}

static ts_status same_members(const tsi_step_group *group, const int32_t *member, int64_t count)
{
    if (group->count == count && memcmp(group->member, member, (size_t)count * sizeof *member) == 0)
        return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "step: group %.60s is there already with other members",
                    group->name);
}

int32_t tsi_step_find_group(const tsi_step *step, const char *name)
{
    return find_index(step, &step->groups, name);
}

ts_status tsi_step_group_of(tsi_step *step, const char *name, const int32_t *member, int64_t count,
                            int32_t *out)
{
    *out = -1;
    const char *own;
    TSI_TRY(tsi_step_name(step, name, &own));
    int32_t known = tsi_step_find_group(step, own);
    if (known >= 0) {
        TSI_TRY(same_members(&step->group[known], member, count));
        *out = known;
        return TS_OK;
    }
    TSI_TRY(check_members(step, name, member, count));
    size_t bytes = (size_t)count * sizeof *member;
    int32_t *copy = tsi_arena_alloc(&step->memory, bytes);
    if (!copy ||
        !grow(&step->group, step->group_count, 1, &step->group_capacity, sizeof *step->group) ||
        note_index(&step->groups, own, step->group_count) != TS_OK)
        return tsi_fail_memory("a group of a step", bytes);
    memcpy(copy, member, bytes);
    step->group[step->group_count] =
        (tsi_step_group){ own, copy, (int32_t)count, count, member[0], member[count - 1], NULL };
    step->member_count += count;
    *out = step->group_count++;
    return TS_OK;
}

ts_status tsi_step_group_along(tsi_step *step, int32_t group, const char *axes)
{
    const char *own;
    TSI_ASSERT(group >= 0 && group < step->group_count);
    TSI_TRY(tsi_step_name(step, axes, &own));
    step->group[group].along = own;
    return TS_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

int32_t tsi_step_find_value(const tsi_step *step, int64_t rank, const char *name)
{
    return find_index(step, &tsi_step_list_of(step, rank)->values, name);
}

ts_status tsi_step_value(tsi_step *step, int64_t rank, const tsi_value *value, int32_t *out)
{
    *out = -1;
    tsi_step_list *list;
    const char *own;
    TSI_TRY(list_for(step, rank, &list));
    TSI_TRY(tsi_step_name(step, value->name, &own));
    if (value->bytes < 0 || value->memory < 0 || value->memory >= TSI_STEP_MEMORY_KINDS ||
        value->life < 0 || value->life >= TSI_LIFE_COUNT)
        return TSI_FAIL(TS_ERR_ARG, "step: value %s has %lld bytes, memory %d, life %d", own,
                        (long long)value->bytes, value->memory, value->life);
    const char *form = NULL;
    if (value->form) TSI_TRY(tsi_step_name(step, value->form, &form));
    int32_t found = tsi_step_find_value(step, rank, own);
    if (found >= 0) {
        const tsi_value *old = &list->value[found];
        if (old->bytes != value->bytes || old->memory != value->memory || old->life != value->life)
            return TSI_FAIL(TS_ERR_ARG,
                            "step: value %s of rank %lld is %s %lld %s already, and not %s %lld %s",
                            own, (long long)rank, tsi_life_names[old->life], (long long)old->bytes,
                            tsi_step_memory_names[old->memory], tsi_life_names[value->life],
                            (long long)value->bytes, tsi_step_memory_names[value->memory]);
        *out = found;
        return TS_OK;
    }
    if (list->value_count == INT32_MAX - 1 ||
        !grow(&list->value, list->value_count, 1, &list->value_capacity, sizeof *list->value) ||
        note_index(&list->values, own, list->value_count) != TS_OK)
        return tsi_fail_memory("a value of a step", sizeof *list->value);
    list->value[list->value_count] = *value;
    list->value[list->value_count].name = own;
    list->value[list->value_count].form = form;
    *out = list->value_count++;
    return TS_OK;
}

/* ---- actions --------------------------------------------------------------------------------- */

static bool is_member(const tsi_step_group *group, int64_t rank)
{
    int32_t low = 0, high = group->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (group->member[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < group->count && group->member[low] == rank;
}

/* Whom it meets: a pair has a peer, a collective a group, the rest nobody. */
static ts_status check_partners(const tsi_step *step, int64_t rank, const tsi_action *a)
{
    const char *name = tsi_action_names[a->kind];
    bool pair = tsi_action_class_of(a->kind) == TSI_CLASS_PAIR;
    bool collective = tsi_action_class_of(a->kind) == TSI_CLASS_COLLECTIVE;
    bool wide = step->wide && a->away != 0 && a->peer < 0; /* by distance */
    if (pair != (a->peer >= 0 || wide) || a->peer >= step->rank_count || a->peer == rank)
        return TSI_FAIL(TS_ERR_ARG, "step: %s of rank %lld has peer %d; %s", name, (long long)rank,
                        a->peer, pair ? "it needs another rank" : "it has none");
    if (collective != (a->group >= 0) || a->group >= step->group_count)
        return TSI_FAIL(TS_ERR_ARG, "step: %s of rank %lld has group %d; %s", name, (long long)rank,
                        a->group, collective ? "it needs one of the step's" : "it has none");
    if (collective && !tsi_step_is_family(step, a->group) &&
        !is_member(&step->group[a->group], rank))
        return TSI_FAIL(TS_ERR_ARG,
                        "step: rank %lld takes part in a %s over group %s, of which it "
                        "is no member",
                        (long long)rank, name, step->group[a->group].name);
    return TS_OK;
}

static ts_status check_action(const tsi_step *step, int64_t rank, const tsi_action *a)
{
    if (a->kind < 0 || a->kind >= TSI_ACTION_KINDS)
        return TSI_FAIL(TS_ERR_ARG, "step: action kind %d", a->kind);
    const char *name = tsi_action_names[a->kind];
    if (a->queue < 0 || a->queue >= step->queue_count)
        return TSI_FAIL(TS_ERR_ARG, "step: %s on queue %d of %d", name, a->queue,
                        step->queue_count);
    if (a->stage < -1 || a->micro < -1 || a->channel < 0 || a->bytes < 0)
        return TSI_FAIL(TS_ERR_ARG, "step: %s has stage %d, micro %d, channel %d, bytes %lld", name,
                        a->stage, a->micro, a->channel, (long long)a->bytes);
    if (isnan(a->us) || a->us > 1e18)
        return TSI_FAIL(TS_ERR_ARG, "step: %s takes %g us", name, a->us);
    return check_partners(step, rank, a);
}

static ts_status check_touches(const tsi_step_list *list, const tsi_action *a,
                               const tsi_touch *touch, int32_t count)
{
    const char *name = tsi_action_names[a->kind];
    bool release = a->kind == TSI_ACTION_RELEASE, wait = a->kind == TSI_ACTION_WAIT;
    for (int32_t i = 0; i < count; i++) {
        if (touch[i].value < 0 || touch[i].value >= list->value_count || touch[i].how < 0 ||
            touch[i].how >= TSI_TOUCH_COUNT)
            return TSI_FAIL(TS_ERR_ARG, "step: %s touches value %d of %d", name, touch[i].value,
                            list->value_count);
        const char *how = tsi_touch_names[touch[i].how], *value = list->value[touch[i].value].name;
        bool frees = touch[i].how == TSI_FREES;
        if (frees && a->queue != 0)
            return TSI_FAIL(TS_ERR_ARG,
                            "step: %s frees %s on another queue than main; wait for it there", name,
                            value);
        if ((release && !frees) || (wait && !frees && touch[i].how != TSI_READS))
            return TSI_FAIL(TS_ERR_ARG, "step: %s %s %s; it only %s", name, how, value,
                            release ? "frees" : "reads and frees");
    }
    return TS_OK;
}

/* Room for one action and what it touches. */
static bool room_for(tsi_step_list *list, int32_t count)
{
    return list->action_count < INT32_MAX - 1 &&
           grow(&list->action, list->action_count, 1, &list->action_capacity,
                sizeof *list->action) &&
           grow(&list->touch, list->touch_count, count, &list->touch_capacity,
                sizeof *list->touch) &&
           grow(&list->form, list->touch_count, count, &list->form_capacity, sizeof *list->form);
}

ts_status tsi_step_append(tsi_step *step, int64_t rank, const tsi_action *action,
                          const tsi_touch *touch, int32_t count)
{
    return tsi_step_append_as(step, rank, action, touch, NULL, count);
}

ts_status tsi_step_append_as(tsi_step *step, int64_t rank, const tsi_action *action,
                             const tsi_touch *touch, const char *const *form, int32_t count)
{
    tsi_step_list *list;
    TSI_TRY(list_for(step, rank, &list));
    TSI_TRY(check_action(step, rank, action));
    TSI_TRY(check_touches(list, action, touch, count));
    const char *what = NULL, *place = NULL, *seen;
    if (action->what) TSI_TRY(tsi_step_name(step, action->what, &what));
    if (action->place) TSI_TRY(tsi_step_name(step, action->place, &place));
    for (int32_t i = 0; form && i < count; i++)
        if (form[i]) TSI_TRY(tsi_step_name(step, form[i], &seen));
    if (!room_for(list, count)) return tsi_fail_memory("an action of a step", sizeof *list->action);
    tsi_action *own = &list->action[list->action_count++];
    *own = *action;
    own->what = what;
    own->place = place;
    own->us = action->us < 0 ? -1 : action->us;
    own->touch_first = list->touch_count;
    own->touch_count = count;
    for (int32_t how = 0; how < TSI_TOUCH_COUNT; how++) {
        for (int32_t i = 0; i < count; i++) {
            if (touch[i].how != how) continue;
            seen = NULL; /* it is there: entered above */
            if (form && form[i]) TSI_TRY(tsi_step_name(step, form[i], &seen));
            list->form[list->touch_count] = seen;
            list->touch[list->touch_count++] = touch[i];
        }
    }
    return TS_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

static ts_status join_action(const tsi_step *from, int64_t rank, const tsi_action *a, tsi_step *to)
{
    const tsi_step_list *list = tsi_step_list_of(from, rank);
    tsi_action action = *a;
    TSI_TRY(tsi_step_queue(to, from->queue[a->queue], &action.queue));
    if (a->group >= 0) {
        const tsi_step_group *group = &from->group[a->group];
        TSI_TRY(tsi_step_group_of(to, group->name, group->member, group->count, &action.group));
        if (group->along) TSI_TRY(tsi_step_group_along(to, action.group, group->along));
    }
    return tsi_step_append_as(to, rank, &action, tsi_step_touches(list, a),
                              a->touch_count > 0 ? list->form + a->touch_first : NULL,
                              a->touch_count);
}

static ts_status join_list(const tsi_step *from, int64_t rank, tsi_step *to)
{
    const tsi_step_list *list = tsi_step_list_of(from, rank);
    int32_t same;
    for (int32_t v = 0; v < list->value_count; v++) {
        TSI_TRY(tsi_step_value(to, rank, &list->value[v], &same));
        TSI_ASSERT(same == v);
    }
    for (int32_t i = 0; i < list->action_count; i++)
        TSI_TRY(join_action(from, rank, &list->action[i], to));
    if (rank < to->list_count) to->list[rank].peak = list->peak;
    return TS_OK;
}

ts_status tsi_step_join(tsi_step *const *part, int64_t count, tsi_step **out)
{
    TSI_TRY(tsi_step_create(count, out));
    ts_status status = TS_OK;
    for (int64_t r = 0; r < count && status == TS_OK; r++)
        status = join_list(part[r], r, *out);
    if (status == TS_OK) status = tsi_step_stages(*out, part[0]->stage_count, part[0]->micro_count);
    if (status == TS_OK) return TS_OK;
    tsi_step_destroy(*out);
    *out = NULL;
    return status;
}
