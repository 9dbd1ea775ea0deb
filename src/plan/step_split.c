/* SPDX-License-Identifier: Apache-2.0 */
/* step_split.c - a large collective goes in parts, and others pass between them.
 *
 *   whole    L............ U..          U is begun while L is under way, and waits for all of it
 *   parts    L1... U.. L2... L3...      it waits for a part
 *
 * Part i of k moves the i-th k-th of the elements of each block, so the parts together move what
 * the whole did, and an element is folded as before. The first makes what the whole made, the
 * others write it; the last says in which form it is then. Each stands where the one before it is
 * over by the simulation, at the latest before the wait that the whole was waited for with.
 *
 * Why that is legal: nothing touches what the whole made, changes what it reads, or relies on it
 * having ended before that wait, else it is left whole. So parts may stand anywhere up to there;
 * nothing else changes its place. On all ranks the same number of operations passes each part, so
 * members of a group keep one order; the check tells where other groups do not.
 *
 * INV: parts of an operation follow each other in order on one queue and channel, and the bytes of
 * all are those of the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_prove.h"
#include "plan/step_reorder.h"

enum { PARTS_MAX = 64, NAME_MAX_WHOLE = 200 };

/* ---- names ----------------------------------------------------------------------------------- */

bool tsi_is_part(const tsi_action *action, tsi_part_name *out)
{
    const char *at = action->what;
    if (action->group < 0 || !at || strncmp(at, TSI_PART_PREFIX, sizeof TSI_PART_PREFIX - 1) != 0)
        return false;
    char *end = NULL;
    long index = strtol(at + sizeof TSI_PART_PREFIX - 1, &end, 10);
    if (*end != '/') return false;
    long count = strtol(end + 1, &end, 10);
    if (*end != '.' || count < 2 || count > PARTS_MAX || index < 1 || index > count) return false;
    *out = (tsi_part_name){ (int32_t)index - 1, (int32_t)count, end + 1 };
    return true;
}

/* What it is called, or the whole that it is a part of. */
static const char *whole_name(const tsi_action *a)
{
    tsi_part_name part;
    if (tsi_is_part(a, &part)) return part.of;
    return a->what ? a->what : "";
}

static bool begins_whole(const tsi_action *a, const tsi_whole *like)
{
    tsi_part_name part;
    return a->group >= 0 && a->kind == like->kind && strcmp(whole_name(a), like->what) == 0 &&
           (!tsi_is_part(a, &part) || part.index == 0);
}

/* Where the operation stands in a list; -1: it is not there, or in parts. */
static int32_t find_whole(const tsi_step_list *list, const tsi_whole *op)
{
    tsi_part_name part;
    int32_t nth = op->nth;
    for (int32_t i = 0; i < list->action_count; i++)
        if (begins_whole(&list->action[i], op) && nth-- == 0)
            return tsi_is_part(&list->action[i], &part) ? -1 : i;
    return -1;
}

/* ---- what can be cut ------------------------------------------------------------------------- */

static bool communicates(const tsi_action *a)
{
    return a->group >= 0 || a->peer >= 0;
}

static bool is_cuttable(const tsi_action *a)
{
    tsi_part_name part;
    return tsi_goes_in_buckets(a) && a->queue != 0 && a->bytes > PARTS_MAX && !tsi_is_bucket(a) &&
           !tsi_is_part(a, &part) && strlen(whole_name(a)) <= NAME_MAX_WHOLE;
}

/* Does a wait hold until the operation has ended? */
static bool waits_for(const tsi_step_list *list, const tsi_action *wait, const tsi_action *op)
{
    const tsi_touch *x = tsi_step_touches(list, wait), *y = tsi_step_touches(list, op);
    bool named = false;
    for (int32_t i = 0; i < wait->touch_count; i++) {
        if (x[i].how != TSI_READS) continue;
        named = true;
        for (int32_t k = 0; k < op->touch_count; k++)
            if (x[i].value == y[k].value) return true;
    }
    return !named;
}

/* Others that would pass it if they could: those of its queue or channel. */
static bool meets_way_of(const tsi_action *a, const tsi_action *op)
{
    return communicates(a) &&
           (a->queue == op->queue || (a->group == op->group && a->channel == op->channel));
}

/* Where its last part may stand at the latest, and how many operations stand before that. */
static tsi_whole_state look(const tsi_step_list *list, int32_t at, int32_t *until, int32_t *between)
{
    const tsi_action *op = &list->action[at];
    bool passed = false;
    *between = 0;
    for (*until = at + 1; *until < list->action_count; ++*until) {
        const tsi_action *a = &list->action[*until];
        if (a->kind == TSI_ACTION_WAIT && waits_for(list, a, op))
            return passed ? TSI_WHOLE_CUTTABLE : TSI_WHOLE_ALONE;
        if (tsi_touches_of(list, op, a)) return TSI_WHOLE_UNWAITED;
        *between += communicates(a);
        passed = passed || meets_way_of(a, op);
    }
    return TSI_WHOLE_UNWAITED;
}

/* Of all ranks that have it. */
static tsi_whole_state look_at_all(const tsi_step *step, const tsi_whole *op, int32_t *between)
{
    *between = INT32_MAX;
    for (int32_t r = 0; r < step->list_count; r++) {
        int32_t at = find_whole(&step->list[r], op), until, here;
        if (at < 0) continue;
        if (!is_cuttable(&step->list[r].action[at])) return TSI_WHOLE_UNWAITED;
        tsi_whole_state state = look(&step->list[r], at, &until, &here);
        if (state != TSI_WHOLE_CUTTABLE) return state;
        if (here < *between) *between = here;
    }
    return TSI_WHOLE_CUTTABLE;
}

static int compare_wholes(const void *x, const void *y)
{
    const tsi_whole *a = x, *b = y;
    if (a->us != b->us) return a->us > b->us ? -1 : 1;
    return a->found < b->found ? -1 : a->found > b->found;
}

static bool is_known(const tsi_step *step, int32_t lists, const tsi_whole *op)
{
    for (int32_t r = 0; r < lists; r++)
        if (find_whole(&step->list[r], op) >= 0) return true;
    return false;
}

static ts_status add_whole(const tsi_step *step, int32_t rank, int32_t at, double us,
                           tsi_wholes *out)
{
    const tsi_step_list *list = &step->list[rank];
    tsi_whole op = { .what = whole_name(&list->action[at]),
                     .kind = list->action[at].kind,
                     .us = us,
                     .found = out->count };
    for (int32_t i = 0; i < at; i++)
        op.nth += begins_whole(&list->action[i], &op);
    if (is_known(step, rank, &op)) return TS_OK;
    int32_t between;
    op.state = look_at_all(step, &op, &between);
    op.what = tsi_arena_strdup(&out->names, op.what);
    TSI_TRY(tsi_room(&out->op, out->count, &out->capacity, sizeof *out->op, "operations"));
    if (!op.what) return tsi_fail_memory("a name", NAME_MAX_WHOLE);
    out->op[out->count++] = op;
    return TS_OK;
}

ts_status tsi_wholes_find(const tsi_step *step, const double *us, const int64_t *first,
                          tsi_wholes *out)
{
    *out = (tsi_wholes){ 0 };
    for (int32_t r = 0; r < step->list_count; r++)
        for (int32_t i = 0; i < step->list[r].action_count; i++)
            if (is_cuttable(&step->list[r].action[i]))
                TSI_TRY(add_whole(step, r, i, us[first[r] + i], out));
    if (out->count > 1) qsort(out->op, (size_t)out->count, sizeof *out->op, compare_wholes);
    return TS_OK;
}

void tsi_wholes_release(tsi_wholes *wholes)
{
    tsi_arena_release(&wholes->names);
    tsi_free(wholes->op);
    *wholes = (tsi_wholes){ 0 };
}

/* ---- places ---------------------------------------------------------------------------------- */

typedef struct cut { /* of one list */
    const tsi_split_job *job;
    int64_t rank;
    int32_t at, until;
    double part_us;           /* of each part */
    int32_t place[PARTS_MAX]; /* the action that part i stands before; of the first: its own */
} cut;

/* One latency more for each part, by what is measured or the model says, whichever is more. */
static double part_takes(const tsi_split_job *job, const tsi_step_list *list, const tsi_action *a,
                         double us)
{
    double latency = tsi_step_latency_us(job->cost, job->step, a);
    double measured = a->us >= 0 ? tsi_latency_of(list, a) : 0;
    if (measured > latency) latency = measured;
    if (latency > us) latency = us;
    return latency + (us - latency) / job->parts;
}

/* Each part stands where the one before it is over; `passed` operations pass it, if that is >= 0,
 * else at most `most`. Returns how many do. */
static int32_t place_part(cut *c, int32_t part, int32_t passed, int32_t most)
{
    const tsi_step_list *list = &c->job->step->list[c->rank];
    const double *us = c->job->us + c->job->first[c->rank];
    const double *end = c->job->end + c->job->first[c->rank];
    double over = end[c->at] - us[c->at] + part * c->part_us;
    int32_t seen = 0, at = c->at + 1;
    for (; at < c->until; at++) {
        const tsi_action *a = &list->action[at];
        bool late = a->queue == 0 && end[at] > over;
        if (late && seen >= passed) break;
        if (communicates(a) && seen == (passed >= 0 ? passed : most)) break;
        seen += communicates(a);
    }
    c->place[part] = at;
    return seen;
}

/* ---- cutting --------------------------------------------------------------------------------- */

static ts_status append_part(const cut *c, const tsi_action *whole, int32_t index)
{
    tsi_step *step = c->job->step;
    const tsi_step_list *list = &step->list[c->rank];
    int32_t parts = c->job->parts, count = whole->touch_count;
    tsi_touch *touch = tsi_alloc_array((size_t)count + 1, sizeof *touch);
    const char **form = tsi_alloc_array((size_t)count + 1, sizeof *form);
    ts_status status = touch && form ? TS_OK : tsi_fail_memory("a part", (size_t)count * 16);
    for (int32_t i = 0; status == TS_OK && i < count; i++) {
        touch[i] = tsi_step_touches(list, whole)[i];
        form[i] = tsi_step_form(list, whole, i);
        if (touch[i].how != TSI_READS && index + 1 < parts) form[i] = NULL;
        if (touch[i].how == TSI_MAKES && index > 0) touch[i].how = TSI_WRITES;
    }
    char name[TSI_STEP_NAME_MAX + 1];
    (void)snprintf(name, sizeof name, TSI_PART_PREFIX "%d/%d.%s", index + 1, parts,
                   whole_name(whole));
    tsi_action part = *whole;
    part.what = name;
    part.bytes = whole->bytes / parts + (index < whole->bytes % parts);
    if (whole->us >= 0) part.us = c->part_us;
    if (status == TS_OK) status = tsi_step_append_as(step, c->rank, &part, touch, form, count);
    tsi_free(touch);
    tsi_free(form);
    return status;
}

/* Parts that were appended go to their places; the first replaces the whole. */
static ts_status settle(const cut *c, int32_t before)
{
    tsi_step_list *list = &c->job->step->list[c->rank];
    int32_t parts = c->job->parts, next = 1, at = 0;
    int32_t *order = tsi_alloc_array((size_t)list->action_count, sizeof *order);
    if (!order) return tsi_fail_memory("a new order", (size_t)list->action_count * 4);
    list->action[c->at] = list->action[before];
    memmove(&list->action[before], &list->action[before + 1],
            (size_t)(parts - 1) * sizeof *list->action);
    list->action_count--;
    for (int32_t i = 0; i < before; i++) {
        for (; next < parts && c->place[next] == i; next++)
            order[at++] = before + next - 1;
        order[at++] = i;
    }
    TSI_ASSERT(at == list->action_count); /* a wait stands behind the last part */
    ts_status status = tsi_list_permute(list, order);
    tsi_free(order);
    return status;
}

static ts_status cut_list(cut *c)
{
    const tsi_step_list *list = &c->job->step->list[c->rank];
    const tsi_action whole = list->action[c->at];
    int32_t before = list->action_count;
    for (int32_t i = 0; i < c->job->parts; i++)
        TSI_TRY(append_part(c, &whole, i));
    return settle(c, before);
}

ts_status tsi_pass_split(const tsi_split_job *job, const tsi_whole *op, int64_t *moves)
{
    tsi_step *step = job->step;
    int32_t passed[PARTS_MAX], most, between;
    TSI_ASSERT(job->parts >= 2 && job->parts <= PARTS_MAX);
    memset(passed, 0xff, sizeof passed); /* -1: the first list says */
    if (look_at_all(step, op, &most) != TSI_WHOLE_CUTTABLE) return TS_OK;
    for (int32_t r = 0; r < step->list_count; r++) {
        cut c = { .job = job, .rank = r, .at = find_whole(&step->list[r], op) };
        if (c.at < 0) continue;
        const tsi_action *a = &step->list[r].action[c.at];
        (void)look(&step->list[r], c.at, &c.until, &between);
        c.part_us = part_takes(job, &step->list[r], a, job->us[job->first[r] + c.at]);
        for (int32_t i = 1; i < job->parts; i++)
            passed[i] = place_part(&c, i, passed[i], most);
        TSI_TRY(cut_list(&c));
        ++*moves;
    }
    return TS_OK;
}

/* ---- are all parts there --------------------------------------------------------------------- */

static bool same_whole(const tsi_action *a, const tsi_action *b)
{
    return a->kind == b->kind && a->group == b->group && a->channel == b->channel &&
           a->queue == b->queue && strcmp(whole_name(a), whole_name(b)) == 0;
}

static bool is_of_whole(const void *value, const void *wanted)
{
    return same_whole(value, wanted);
}

static uint64_t whole_key(const tsi_action *a)
{
    uint64_t h = tsi_hash_text(1, whole_name(a));
    h = tsi_hash_mix(h, (uint64_t)a->kind << 32 | (uint32_t)a->group);
    return tsi_hash_mix(h, (uint64_t)a->channel << 32 | (uint32_t)a->queue);
}

/* Is b the part behind a, or before it, if there is to be one? NULL: b is not there. */
static bool goes_on(const tsi_action *a, const tsi_action *b, int32_t way)
{
    tsi_part_name part, other;
    (void)tsi_is_part(a, &part);
    if (part.index == (way > 0 ? part.count - 1 : 0)) return true;
    return b && tsi_is_part(b, &other) && other.count == part.count &&
           other.index == part.index + way;
}

static ts_status refuse_part(const tsi_step *step, int64_t rank, const tsi_action *a, int32_t way,
                             tsi_findings *found)
{
    tsi_part_name part;
    tsi_text text = { 0 };
    (void)tsi_is_part(a, &part);
    tsi_step_cite(step, rank, (int32_t)(a - tsi_step_list_of(step, rank)->action), &text);
    tsi_text_printf(&text, " is not %s part %d of %d: that is missing, or elsewhere",
                    way > 0 ? "followed by" : "preceded by", part.index + way + 1, part.count);
    return tsi_step_refuse(found, TSI_FINDING_UNMET, &text);
}

/* A part beside the one before it of its whole; it is the latest of that from now on. */
static ts_status meet_part(const tsi_step *step, int64_t rank, tsi_action *a, tsi_map *latest,
                           tsi_findings *found)
{
    const tsi_action *before = tsi_map_remove(latest, whole_key(a), is_of_whole, a);
    if (!goes_on(a, before, -1)) TSI_TRY(refuse_part(step, rank, a, -1, found));
    if (before && !goes_on(before, a, 1)) TSI_TRY(refuse_part(step, rank, before, 1, found));
    return tsi_map_insert(latest, whole_key(a), a);
}

/* Those behind which there is none. */
static ts_status end_parts(const tsi_step *step, int64_t rank, const tsi_map *latest,
                           tsi_findings *found)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    tsi_part_name part;
    for (int32_t i = 0; latest->count > 0 && i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (!tsi_is_part(a, &part) || goes_on(a, NULL, 1)) continue;
        if (tsi_map_find(latest, whole_key(a), is_of_whole, a) == a)
            TSI_TRY(refuse_part(step, rank, a, 1, found));
    }
    return TS_OK;
}

ts_status tsi_step_prove_parts(const tsi_step *step, int64_t rank, tsi_findings *found)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    tsi_part_name part;
    tsi_map latest = { 0 };
    ts_status status = TS_OK;
    for (int32_t i = 0; i < list->action_count && status == TS_OK; i++)
        if (tsi_is_part(&list->action[i], &part))
            status = meet_part(step, rank, &list->action[i], &latest, found);
    if (status == TS_OK) status = end_parts(step, rank, &latest, found);
    tsi_map_release(&latest);
    return status;
}
