/* SPDX-License-Identifier: Apache-2.0 */
/* report_places.c - parts of the page that set what was planned beside what was: traffic by axis
 * and kind, where parameters lie, and which ranks the others waited for. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "train/run.h"

static const ts_train_traffic *find(const ts_train_traffic *row, int32_t count,
                                    const ts_train_traffic *like)
{
    for (int32_t i = 0; i < count; i++)
        if (strcmp(row[i].axes, like->axes) == 0 && strcmp(row[i].kind, like->kind) == 0)
            return &row[i];
    return NULL;
}

static void traffic_row(tsi_text *out, const ts_train_traffic *planned, const ts_train_traffic *was)
{
    const ts_train_traffic none = { 0 }, *named = planned ? planned : was;
    char a[32], b[32];
    planned = planned ? planned : &none;
    was = was ? was : &none;
    tsi_text_printf(out,
                    "<tr><td>%s</td><td>%s</td><td>%lld</td><td>%s</td><td>%lld</td><td>%s</td>"
                    "</tr>",
                    named->axes, named->kind, (long long)planned->count,
                    tsi_text_bytes(a, sizeof a, planned->bytes), (long long)was->count,
                    tsi_text_bytes(b, sizeof b, was->bytes));
}

void tsi_report_traffic(tsi_text *out, const tsi_run *run)
{
    const ts_train_cost *c = run->cost;
    const tsi_traffic *t = &run->traffic;
    if (!c || t->count == 0) return;
    tsi_text_add(out, "<h2>What rank 0 receives in a step, by axis and kind</h2><table><tr><th>axes"
                      "</th><th>kind</th><th>planned</th><th>bytes</th><th>was</th><th>bytes</th>"
                      "</tr>");
    for (int32_t i = 0; i < c->traffic_count; i++)
        traffic_row(out, &c->traffic[i], find(t->row, t->count, &c->traffic[i]));
    for (int32_t i = 0; i < t->count; i++)
        if (!find(c->traffic, c->traffic_count, &t->row[i])) traffic_row(out, NULL, &t->row[i]);
    tsi_text_add(out, "</table><p>Of the second step of this process. The plan has forward and "
                      "backward; norms and the update are beside it.</p>\n");
}

void tsi_report_layout(tsi_text *out, const tsi_run *run)
{
    char bytes[32];
    if (!run->cost) return;
    tsi_text_add(out, "<h2>Where parameters lie</h2><table><tr><th>parameters</th><th>number</th>"
                      "<th>shape</th><th>placements</th><th>of rank 0</th></tr>");
    for (int32_t i = 0; i < run->cost->param_count; i++) {
        const ts_train_param *p = &run->cost->param[i];
        tsi_text_printf(out, "<tr><td>%s</td><td>%lld</td><td>%s</td><td>%s</td><td>%s</td></tr>",
                        p->pattern, (long long)p->count, p->shape, p->layout,
                        tsi_text_bytes(bytes, sizeof bytes, p->bytes));
    }
    tsi_text_add(out, "</table>\n");
}

/* The rank that most steps waited for, and how often; -1: there were no steps. */
static int64_t slowest(const tsi_history *h, int64_t ranks, int64_t *steps)
{
    int64_t *count = tsi_calloc((size_t)ranks, sizeof *count), most = -1;
    for (int64_t i = 0; count && i < h->count; i++) {
        int64_t rank = h->step[i].busy_rank;
        if (rank < 0 || rank >= ranks) continue;
        count[rank]++;
        if (most < 0 || count[rank] > count[most]) most = rank;
    }
    *steps = most >= 0 ? count[most] : 0;
    tsi_free(count);
    return most;
}

void tsi_report_ranks(tsi_text *out, const tsi_run *run)
{
    const tsi_history *h = &run->history;
    int64_t steps, rank = slowest(h, run->plan.ranks, &steps);
    double most = 0, least = 0;
    if (rank < 0 || run->plan.ranks < 2) return;
    for (int64_t i = 0; i < h->count; i++) {
        most += h->step[i].busy_most;
        least += h->step[i].busy_least;
    }
    tsi_text_printf(out,
                    "<h2>Ranks</h2><p>Without waiting for others, the slowest rank takes %.2f ms a "
                    "step and the fastest %.2f ms. Rank %lld is the slowest most often, in %lld of "
                    "%lld steps that were looked at.</p>\n",
                    1e3 * most / (double)h->count, 1e3 * least / (double)h->count, (long long)rank,
                    (long long)steps, (long long)h->count);
}
