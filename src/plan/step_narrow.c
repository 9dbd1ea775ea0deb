/* SPDX-License-Identifier: Apache-2.0 */
/* step_narrow.c - classes of ranks, and the step of one rank each. See step_wide.h for why that is
 * enough.
 *
 * INV: a class has one list; all its ranks have, for every distance and family that the list names,
 * a peer of one class and groups with equally many ranks of each class. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_graph.h"
#include "plan/step_wide.h"

enum { NOBODY = -1, CLASSES_MAX = 1 << 16, ACTIONS_MAX = 1 << 25 };
/* Ranks looked at while classes split. A chain splits one rank at either end a round, so that its
 * length squared counts; pipelines take a round for each two stages. */
enum { LOOKS_MAX = 1 << 30 };

typedef struct uses { /* of a list: what its communication names */
    bool *group;      /* [group] */
    int32_t *away;    /* distances of messages, sorted */
    int32_t away_count;
} uses;

typedef struct narrow {
    const tsi_step *step;
    tsi_findings *found; /* where sentences about the step go; NULL: the first is an error */
    bool broken;         /* there is one, so there are no classes */
    int64_t ranks;
    int32_t lists;
    uses *use;       /* [list] */
    int32_t *list;   /* [rank]: NOBODY: it does nothing */
    int32_t *class_; /* [rank] */
    uint64_t *key;   /* [rank] */
    uint64_t *sum;   /* [rank]: of a group, at its least rank */
    int32_t classes;
    int64_t *first, *size; /* [class]: its least rank; how many */
    int32_t *slot;         /* a table of keys */
    int64_t *way;          /* channels of messages, by distance: sorted, each once */
    int32_t way_count;
    int32_t *group; /* [(copy * classes + class) * groups + group]: of the small step, or -1 */
    bool doubled;   /* every class twice: messages go to the other copy */
    tsi_step *out;
    tsi_arena memory;
} narrow;

/* ---- lists ----------------------------------------------------------------------------------- */

static ts_status refuse(narrow *n, tsi_finding_kind kind, tsi_text *sentence)
{
    n->broken = true;
    return tsi_step_refuse(n->found, kind, sentence);
}

static ts_status refuse_lists(narrow *n, int64_t rank)
{
    tsi_text text = { 0 };
    tsi_text_printf(&text, "rank %lld has two lists", (long long)rank);
    return refuse(n, TSI_FINDING_TWICE, &text);
}

static ts_status assign_lists(narrow *n)
{
    const tsi_wide *wide = n->step->wide;
    for (int64_t r = 0; r < n->ranks; r++)
        n->list[r] = NOBODY;
    for (int64_t s = 0; s < wide->span_count; s++) {
        const tsi_ranks *span = &wide->span[s];
        int64_t twice = NOBODY; /* the first of the span; the others are no news */
        TSI_ASSERT(span->list < n->lists);
        for (int64_t r = span->first; r <= span->last; r += span->stride) {
            if (n->list[r] != NOBODY && twice == NOBODY) twice = r;
            n->list[r] = span->list;
        }
        if (twice != NOBODY) TSI_TRY(refuse_lists(n, twice));
    }
    return TS_OK;
}

static int compare_numbers(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static ts_status note_uses(narrow *n, int32_t index)
{
    const tsi_step_list *list = &n->step->list[index];
    uses *u = &n->use[index];
    size_t most = (size_t)list->action_count + 1;
    u->group = tsi_arena_calloc(&n->memory, (size_t)n->step->group_count + 1, sizeof *u->group);
    u->away = tsi_arena_calloc(&n->memory, most, sizeof *u->away);
    if (!u->group || !u->away) return tsi_fail_memory("classes of ranks", most * sizeof *u->away);
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (a->group >= 0) u->group[a->group] = true;
        if (a->away != 0) u->away[u->away_count++] = a->away;
    }
    if (u->away_count > 0) qsort(u->away, (size_t)u->away_count, sizeof *u->away, compare_numbers);
    int32_t kept = 0;
    for (int32_t i = 0; i < u->away_count; i++)
        if (i == 0 || u->away[i] != u->away[kept - 1]) u->away[kept++] = u->away[i];
    u->away_count = kept;
    return TS_OK;
}

/* Messages of different distances never meet: each has channels of its own. */
static int64_t way_of(const narrow *n, const tsi_action *a)
{
    int64_t step = a->kind == TSI_ACTION_SEND ? a->away : -(int64_t)a->away;
    return (int64_t)a->channel * 2 * n->ranks + step + n->ranks;
}

static int compare_ways(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static ts_status number_ways(narrow *n)
{
    size_t most = (size_t)tsi_step_action_count(n->step) + 1;
    n->way = tsi_arena_calloc(&n->memory, most, sizeof *n->way);
    if (!n->way) return tsi_fail_memory("channels of classes", most * sizeof *n->way);
    int64_t count = 0;
    for (int32_t l = 0; l < n->lists; l++)
        for (int32_t i = 0; i < n->step->list[l].action_count; i++)
            if (n->step->list[l].action[i].away != 0)
                n->way[count++] = way_of(n, &n->step->list[l].action[i]);
    qsort(n->way, (size_t)count, sizeof *n->way, compare_ways);
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || n->way[i] != n->way[n->way_count - 1]) n->way[n->way_count++] = n->way[i];
    return TS_OK;
}

static ts_status refuse_distance(narrow *n, const tsi_step_list *list, int32_t away, int64_t rank)
{
    const tsi_action *a = list->action;
    tsi_text text = { 0 };
    while (a->away != away)
        a++;
    tsi_text_printf(&text, "%s%s%s%s%s of rank %lld is with rank %lld; there are %lld",
                    tsi_action_names[a->kind], a->what ? " " : "", a->what ? a->what : "",
                    a->place ? " at " : "", a->place ? a->place : "", (long long)rank,
                    (long long)(rank + away), (long long)n->ranks);
    return refuse(n, TSI_FINDING_UNMET, &text);
}

/* Peers are ranks of the step: of a span, those of its ends are farthest out. */
static ts_status check_distances(narrow *n)
{
    const tsi_wide *wide = n->step->wide;
    for (int64_t s = 0; s < wide->span_count; s++) {
        const tsi_ranks *span = &wide->span[s];
        const uses *u = &n->use[span->list];
        if (u->away_count == 0) continue;
        const tsi_step_list *list = &n->step->list[span->list];
        int32_t least = u->away[0], most = u->away[u->away_count - 1];
        if (span->first + least < 0) TSI_TRY(refuse_distance(n, list, least, span->first));
        if (span->last + most < n->ranks) continue;
        int64_t inside = n->ranks - most - span->first; /* ranks from here on are too far */
        int64_t steps = inside > 0 ? (inside + span->stride - 1) / span->stride : 0;
        TSI_TRY(refuse_distance(n, list, most, span->first + steps * span->stride));
    }
    return TS_OK;
}

/* ---- classes --------------------------------------------------------------------------------- */

/* Numbers classes by key, in order of their first rank; returns how many there are. */
static int32_t number_classes(narrow *n, int64_t slots)
{
    int32_t count = 0;
    memset(n->slot, 0xff, (size_t)slots * sizeof *n->slot); /* -1 */
    for (int64_t r = 0; r < n->ranks; r++) {
        int64_t at = (int64_t)(n->key[r] % (uint64_t)slots);
        while (n->slot[at] >= 0 && n->key[n->first[n->slot[at]]] != n->key[r])
            at = (at + 1) % slots;
        if (n->slot[at] < 0) {
            n->first[count] = r;
            n->size[count] = 0;
            n->slot[at] = count++;
        }
        n->class_[r] = n->slot[at];
        n->size[n->class_[r]]++;
    }
    return count;
}

/* Mixing begins with "exclusive or", so that small numbers would meet each other there: class 2
 * with a peer of class 1 was class 3 alone. Each kind of number has high bits of its own, and only
 * what was mixed is mixed further. */
static const uint64_t list_seed = 0xa54ff53a5f1d36f1u, class_seed = 0xbb67ae8584caa73bu;
static const uint64_t member_seed = 0x6a09e667f3bcc908u, peer_seed = 0x3c6ef372fe94f82bu;

static void add_groups(narrow *n, int32_t group)
{
    memset(n->sum, 0, (size_t)n->ranks * sizeof *n->sum);
    const tsi_family *family = &n->step->wide->family[group];
    for (int64_t r = 0; r < n->ranks; r++)
        n->sum[tsi_family_base(family, r)] += tsi_hash_mix(member_seed, (uint64_t)n->class_[r]);
    for (int64_t r = 0; r < n->ranks; r++)
        if (n->list[r] >= 0 && n->use[n->list[r]].group[group])
            n->key[r] = tsi_hash_mix(n->key[r], n->sum[tsi_family_base(family, r)]);
}

static void add_peers(narrow *n)
{
    for (int64_t r = 0; r < n->ranks; r++) {
        if (n->list[r] < 0) continue;
        const uses *u = &n->use[n->list[r]];
        for (int32_t i = 0; i < u->away_count; i++) {
            int64_t peer = r + u->away[i];
            uint64_t class_ = tsi_hash_mix(peer_seed, (uint64_t)n->class_[peer]);
            n->key[r] = tsi_hash_mix(n->key[r], class_);
        }
    }
}

/* Splits classes until nothing splits any more, or there are too many to build a step of. */
static ts_status refine(narrow *n, int64_t slots)
{
    int64_t looks = 0;
    for (int64_t r = 0; r < n->ranks; r++)
        n->key[r] = tsi_hash_mix(list_seed, (uint64_t)(n->list[r] + 1));
    for (int32_t before = 0; n->classes != before || before == 0;) {
        before = n->classes;
        n->classes = number_classes(n, slots);
        if (n->classes == before || n->classes > CLASSES_MAX) break;
        looks += n->ranks;
        if (looks > LOOKS_MAX)
            return TSI_FAIL(TS_ERR_ARG,
                            "step: its ranks do %d different things, and more are found after %lld "
                            "rounds; %lld ranks cannot be looked at more often",
                            n->classes, (long long)(looks / n->ranks), (long long)n->ranks);
        for (int64_t r = 0; r < n->ranks; r++)
            n->key[r] = tsi_hash_mix(class_seed, (uint64_t)n->class_[r]);
        for (int32_t g = 0; g < n->step->group_count; g++)
            if (tsi_step_is_family(n->step, g)) add_groups(n, g);
        add_peers(n);
    }
    return TS_OK;
}

/* ---- the small step -------------------------------------------------------------------------- */

static int32_t copies_of(const narrow *n)
{
    return n->doubled ? 2 : 1;
}

/* A message to the own class goes to the other copy, so that nobody sends to itself. */
static bool any_within(const narrow *n)
{
    for (int32_t c = 0; c < n->classes; c++) {
        int32_t list = n->list[n->first[c]];
        for (int32_t i = 0; list >= 0 && i < n->use[list].away_count; i++) {
            int64_t peer = n->first[c] + n->use[list].away[i];
            if (n->class_[peer] == c) return true;
        }
    }
    return false;
}

static bool takes_part(const narrow *n, int32_t class_, int32_t group)
{
    int32_t list = n->list[n->first[class_]];
    return list >= 0 && n->use[list].group[group];
}

enum { GROUP_NAME = TSI_STEP_NAME_MAX + 1 };
/* By the least class that takes part, of which each is in one kind of group: one that does not may
 * be in several. Of a name that is too long the number is said. */
static void name_group(const narrow *n, int32_t group, const int32_t *member, int32_t copy,
                       char out[GROUP_NAME])
{
    enum { WHOLE = 230, CUT = 210 };
    const char *name = n->step->group[group].name;
    while (!takes_part(n, *member - copy * n->classes, group))
        member++; /* who asks does */
    if (strlen(name) <= WHOLE)
        (void)snprintf(out, GROUP_NAME, "%.*s.%d", WHOLE, name, *member);
    else
        (void)snprintf(out, GROUP_NAME, "%.*s~%d.%d", CUT, name, group, *member);
}

/* Classes of the group that a class is in, each once, ascending. */
static ts_status make_group(narrow *n, int32_t group, int32_t class_, int32_t copy, int32_t *out)
{
    const tsi_family *family = &n->step->wide->family[group];
    const tsi_step_group *wide = &n->step->group[group];
    TSI_ASSERT(tsi_step_is_family(n->step, group));
    int64_t size = tsi_family_size(family), base = tsi_family_base(family, n->first[class_]);
    int32_t *member = tsi_alloc_array((size_t)size, sizeof *member), count = 0;
    if (!member) return tsi_fail_memory("a group of classes", (size_t)size * sizeof *member);
    for (int64_t i = 0; i < size; i++)
        member[i] = n->class_[tsi_family_member(family, base, i)] + copy * n->classes;
    qsort(member, (size_t)size, sizeof *member, compare_numbers);
    for (int64_t i = 0; i < size; i++)
        if (i == 0 || member[i] != member[count - 1]) member[count++] = member[i];
    char name[GROUP_NAME];
    name_group(n, group, member, copy, name);
    ts_status status = tsi_step_group_of(n->out, name, member, count, out);
    tsi_free(member);
    if (status != TS_OK) return status;
    tsi_step_group *made = &n->out->group[*out];
    made->size = size;
    made->low = base;
    made->high = tsi_family_member(family, base, size - 1);
    return wide->along ? tsi_step_group_along(n->out, *out, wide->along) : TS_OK;
}

static ts_status group_for(narrow *n, int32_t group, int32_t class_, int32_t copy, int32_t *out)
{
    int64_t at = ((int64_t)copy * n->classes + class_) * n->step->group_count + group;
    if (n->group[at] < 0) TSI_TRY(make_group(n, group, class_, copy, &n->group[at]));
    *out = n->group[at];
    return TS_OK;
}

static int32_t channel_of(const narrow *n, const tsi_action *a)
{
    int64_t way = way_of(n, a);
    const int64_t *at = bsearch(&way, n->way, (size_t)n->way_count, sizeof *n->way, compare_ways);
    return (int32_t)(at - n->way);
}

static ts_status copy_action(narrow *n, int32_t class_, int32_t copy, const tsi_action *a)
{
    const tsi_step_list *list = &n->step->list[n->list[n->first[class_]]];
    int64_t rank = class_ + (int64_t)copy * n->classes, peer = n->first[class_] + a->away;
    tsi_action action = *a;
    if (a->group >= 0) TSI_TRY(group_for(n, a->group, class_, copy, &action.group));
    if (a->away != 0) {
        int32_t other = n->doubled ? 1 - copy : 0;
        action.peer = n->class_[peer] + other * n->classes;
        action.channel = channel_of(n, a);
        action.away = 0;
    }
    TSI_TRY(tsi_step_queue(n->out, n->step->queue[a->queue], &action.queue));
    return tsi_step_append_as(n->out, rank, &action, tsi_step_touches(list, a),
                              a->touch_count > 0 ? list->form + a->touch_first : NULL,
                              a->touch_count);
}

static ts_status copy_class(narrow *n, int32_t class_, int32_t copy)
{
    int32_t index = n->list[n->first[class_]];
    int64_t rank = class_ + (int64_t)copy * n->classes;
    TSI_TRY(tsi_step_list_make(n->out, rank));
    n->out->list[rank].first = n->first[class_];
    n->out->list[rank].alike = n->size[class_] - 1;
    if (index < 0) return TS_OK;
    const tsi_step_list *list = &n->step->list[index];
    int32_t same;
    for (int32_t v = 0; v < list->value_count; v++)
        TSI_TRY(tsi_step_value(n->out, rank, &list->value[v], &same));
    for (int32_t i = 0; i < list->action_count; i++)
        TSI_TRY(copy_action(n, class_, copy, &list->action[i]));
    n->out->list[rank].peak = list->peak;
    return TS_OK;
}

static ts_status build(narrow *n)
{
    int64_t actions = 0;
    n->doubled = any_within(n);
    for (int32_t c = 0; c < n->classes; c++)
        if (n->list[n->first[c]] >= 0) actions += n->step->list[n->list[n->first[c]]].action_count;
    if (n->classes > CLASSES_MAX || actions > ACTIONS_MAX)
        return TSI_FAIL(TS_ERR_ARG,
                        "step: its ranks do %d different things, %lld actions in all; at most %d "
                        "and %d can be looked at together",
                        n->classes, (long long)actions, CLASSES_MAX, ACTIONS_MAX);
    size_t known = (size_t)n->classes * (size_t)copies_of(n) * (size_t)n->step->group_count;
    n->group = tsi_arena_calloc(&n->memory, known + 1, sizeof *n->group);
    if (!n->group) return tsi_fail_memory("groups of classes", known * sizeof *n->group);
    memset(n->group, 0xff, known * sizeof *n->group); /* -1 */
    TSI_TRY(tsi_step_create((int64_t)n->classes * copies_of(n), &n->out));
    n->out->narrowed = true;
    for (int32_t copy = 0; copy < copies_of(n); copy++)
        for (int32_t c = 0; c < n->classes; c++)
            TSI_TRY(copy_class(n, c, copy));
    return tsi_step_stages(n->out, n->step->stage_count, n->step->micro_count);
}

static ts_status prepare(narrow *n, int64_t slots)
{
    size_t ranks = (size_t)n->ranks;
    n->use = tsi_arena_calloc(&n->memory, (size_t)n->lists + 1, sizeof *n->use);
    n->list = tsi_arena_calloc(&n->memory, ranks, sizeof *n->list);
    n->class_ = tsi_arena_calloc(&n->memory, ranks, sizeof *n->class_);
    n->key = tsi_arena_calloc(&n->memory, ranks, sizeof *n->key);
    n->sum = tsi_arena_calloc(&n->memory, ranks, sizeof *n->sum);
    n->first = tsi_arena_calloc(&n->memory, ranks, sizeof *n->first);
    n->size = tsi_arena_calloc(&n->memory, ranks, sizeof *n->size);
    n->slot = tsi_arena_calloc(&n->memory, (size_t)slots, sizeof *n->slot);
    if (!n->use || !n->list || !n->class_ || !n->key || !n->sum || !n->first || !n->size ||
        !n->slot)
        return tsi_fail_memory("classes of ranks", ranks * 48);
    for (int32_t i = 0; i < n->lists; i++)
        TSI_TRY(note_uses(n, i));
    TSI_TRY(assign_lists(n));
    TSI_TRY(number_ways(n));
    return check_distances(n);
}

static ts_status copy_whole(const tsi_step *step, tsi_step **out)
{
    tsi_step **part = tsi_alloc_array((size_t)step->rank_count, sizeof *part);
    if (!part) return tsi_fail_memory("a step", (size_t)step->rank_count * sizeof *part);
    for (int32_t r = 0; r < step->rank_count; r++)
        memcpy(&part[r], &step, sizeof step); /* read only */
    ts_status status = tsi_step_join(part, step->rank_count, out);
    tsi_free(part);
    return status;
}

ts_status tsi_step_narrow(const tsi_step *step, tsi_findings *found, tsi_step **out)
{
    *out = NULL;
    if (!step->wide) return copy_whole(step, out);
    narrow n = {
        .step = step, .found = found, .ranks = step->rank_count, .lists = step->list_count
    };
    int64_t slots = 2 * n.ranks + 1;
    ts_status status = prepare(&n, slots);
    if (status == TS_OK && !n.broken) {
        status = refine(&n, slots);
        if (status == TS_OK) status = build(&n);
    }
    tsi_arena_release(&n.memory);
    if (status == TS_OK)
        *out = n.out;
    else
        tsi_step_destroy(n.out);
    return status;
}
