/* SPDX-License-Identifier: Apache-2.0 */
/* step_pairs.c - which actions of different ranks meet.
 *
 * A channel is (group, number) for collectives and (sender, receiver, number) for messages. Sorted
 * by channel, then rank, then place, the actions of a channel are one run per member; the k-th of
 * every run meet, and must say the same. Runs of one channel also order each rank's own actions. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_graph.h"

typedef struct entry {
    int32_t group;    /* -1: a message */
    int32_t from, to; /* of messages; else -1 */
    int32_t channel;
    int32_t rank, number;
} entry;

static int compare_channels(const entry *a, const entry *b)
{
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->from != b->from) return a->from < b->from ? -1 : 1;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    if (a->channel != b->channel) return a->channel < b->channel ? -1 : 1;
    return 0;
}

static int compare_entries(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    int channel = compare_channels(a, b);
    if (channel != 0) return channel;
    return a->number < b->number ? -1 : a->number > b->number; /* numbers ascend with ranks */
}

static const tsi_action *action_of(const tsi_step_graph *g, const entry *e)
{
    return &tsi_step_list_of(g->step, e->rank)->action[e->number - g->first[e->rank]];
}

static int32_t collect(const tsi_step_graph *g, entry *out)
{
    int32_t count = 0;
    for (int32_t r = 0; r < g->step->list_count; r++) {
        const tsi_step_list *list = &g->step->list[r];
        for (int32_t i = 0; i < list->action_count; i++) {
            const tsi_action *a = &list->action[i];
            bool sends = a->kind == TSI_ACTION_SEND;
            if (a->group < 0 && a->peer < 0) continue;
            out[count++] = (entry){ .group = a->group,
                                    .from = a->peer < 0 ? -1
                                            : sends     ? r
                                                        : a->peer,
                                    .to = a->peer < 0 ? -1
                                          : sends     ? a->peer
                                                      : r,
                                    .channel = a->channel,
                                    .rank = r,
                                    .number = g->first[r] + i };
        }
    }
    return count;
}

/* ---- one channel ----------------------------------------------------------------------------- */

typedef struct run { /* a member's actions of a channel */
    const entry *first;
    int32_t count;
    int32_t rank;
} run;

static void add_channel(const tsi_step_graph *g, const entry *e, tsi_text *text)
{
    if (e->group >= 0)
        tsi_text_printf(text, "group %s", g->step->group[e->group].name);
    else
        tsi_text_printf(text, "the messages from rank %lld to rank %lld",
                        (long long)tsi_step_shown(g->step, e->from),
                        (long long)tsi_step_shown(g->step, e->to));
    if (!g->step->narrowed || e->group >= 0) tsi_text_printf(text, " on channel %d", e->channel);
}

/* An exchange brings each member bytes of its own. */
static bool says_same(const tsi_action *a, const tsi_action *b)
{
    return a->what == b->what && a->micro == b->micro &&
           (a->bytes == b->bytes || a->kind == TSI_ACTION_EXCHANGE) &&
           (a->group < 0 || a->kind == b->kind);
}

static ts_status refuse_mismatch(tsi_step_graph *g, const entry *a, const entry *b, int32_t k)
{
    tsi_text text = { 0 };
    tsi_text_printf(&text, "number %d of ", k + 1);
    add_channel(g, a, &text);
    tsi_text_add(&text, " is ");
    tsi_step_graph_cite(g, a->number, &text);
    tsi_text_printf(&text, " with %lld bytes and ", (long long)action_of(g, a)->bytes);
    tsi_step_graph_cite(g, b->number, &text);
    tsi_text_printf(&text, " with %lld bytes", (long long)action_of(g, b)->bytes);
    g->broken = true;
    return tsi_step_refuse(g->found, TSI_FINDING_MISMATCH, &text);
}

static ts_status refuse_missing(tsi_step_graph *g, const entry *there, int32_t rank)
{
    tsi_text text = { 0 };
    tsi_step_graph_cite(g, there->number, &text);
    tsi_text_printf(&text, " is met by nothing on rank %lld: of ",
                    (long long)tsi_step_shown(g->step, rank));
    add_channel(g, there, &text);
    tsi_text_add(&text, " it has fewer");
    g->broken = true;
    return tsi_step_refuse(g->found, TSI_FINDING_UNMET, &text);
}

/* The k-th of both runs meet; a buffered send goes before its receive instead. */
static ts_status meet(tsi_step_graph *g, const run *a, const run *b, bool buffered)
{
    int32_t both = a->count < b->count ? a->count : b->count;
    for (int32_t k = 0; k < both; k++) {
        const entry *x = &a->first[k], *y = &b->first[k];
        if (!says_same(action_of(g, x), action_of(g, y))) return refuse_mismatch(g, x, y, k);
        if (x->group < 0 && buffered) {
            bool sends = x->rank == x->from;
            TSI_TRY(tsi_step_graph_edge(g, sends ? x->number : y->number,
                                        sends ? y->number : x->number, TSI_EDGE_MESSAGE));
        } else {
            g->meet[y->number] = g->meet[x->number];
        }
    }
    if (a->count > both) return refuse_missing(g, &a->first[both], b->rank);
    return b->count > both ? refuse_missing(g, &b->first[both], a->rank) : TS_OK;
}

static int32_t member_at(const tsi_step_graph *g, const entry *e, int32_t i)
{
    if (e->group >= 0) return g->step->group[e->group].member[i];
    return (i == 0) == (e->from < e->to) ? e->from : e->to;
}

/* Entries first .. first + count are one channel; both they and members ascend by rank. */
static ts_status pair_channel(tsi_step_graph *g, const entry *first, int32_t count, bool buffered)
{
    int32_t members = first->group >= 0 ? g->step->group[first->group].count : 2, at = 0;
    run zero = { 0 };
    for (int32_t i = 0; i < members; i++) {
        run one = { .first = first + at, .rank = member_at(g, first, i) };
        while (at < count && first[at].rank == one.rank) {
            if (one.count > 0)
                TSI_TRY(tsi_step_graph_edge(g, first[at - 1].number, first[at].number,
                                            TSI_EDGE_CHANNEL));
            one.count++;
            at++;
        }
        if (i == 0)
            zero = one;
        else
            TSI_TRY(meet(g, &zero, &one, buffered));
    }
    TSI_ASSERT(at == count);
    return TS_OK;
}

ts_status tsi_step_graph_pairs(tsi_step_graph *g, bool buffered)
{
    entry *all = tsi_alloc_array((size_t)g->count + 1, sizeof *all);
    if (!all) return tsi_fail_memory("the messages of a step", (size_t)g->count * sizeof *all);
    int32_t count = collect(g, all);
    ts_status status = TS_OK;
    if (count > 0) qsort(all, (size_t)count, sizeof *all, compare_entries);
    for (int32_t i = 0, end; i < count && status == TS_OK; i = end) {
        for (end = i + 1; end < count && compare_channels(&all[i], &all[end]) == 0;)
            end++;
        status = pair_channel(g, &all[i], end - i, buffered);
    }
    tsi_free(all);
    return status;
}
