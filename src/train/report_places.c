/* SPDX-License-Identifier: Apache-2.0 */
/* report_places.c - parts of the page that set what was planned beside what was: traffic by axis
 * and kind, where parameters lie, whose memory is at its largest moment, and which ranks the others
 * waited for. */
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

/* ---- memory by module ------------------------------------------------------------------------ */

static int64_t row_bytes(const ts_train_module *row)
{
    int64_t sum = 0;
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        sum += row->bytes[k];
    return sum;
}

static int64_t bytes_named(const ts_train_peak *peak, const char *name)
{
    for (int32_t i = 0; i < peak->row_count; i++)
        if (strcmp(peak->row[i].name, name) == 0) return row_bytes(&peak->row[i]);
    return 0;
}

static void peak_row(tsi_text *out, const char *what, int64_t planned, int64_t held)
{
    char a[32], b[32];
    tsi_text_printf(out, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>", what,
                    tsi_text_bytes(a, sizeof a, planned), tsi_text_bytes(b, sizeof b, held));
}

static void place(tsi_text *out, const char *what, const ts_train_peak *p)
{
    char bytes[32];
    tsi_text_printf(out, "%s %s in %s%s%s%s%s", what, tsi_text_bytes(bytes, sizeof bytes, p->bytes),
                    p->phase, p->module[0] ? " of " : "", p->module, p->op[0] ? ", by " : "",
                    p->op);
}

/* The largest modules of the plan, and the others as one. */
static void peak_rows(tsi_text *out, const ts_train_peak *plan, const ts_train_peak *held)
{
    enum { ROWS = 10 };
    bool shown[TS_TRAIN_MODULES_MAX] = { false };
    int64_t planned = plan->bytes, was = held->bytes;
    for (int32_t n = 0; n < ROWS && n < plan->row_count; n++) {
        int32_t most = -1;
        for (int32_t i = 0; i < plan->row_count; i++)
            if (!shown[i] && (most < 0 || row_bytes(&plan->row[i]) > row_bytes(&plan->row[most])))
                most = i;
        const char *name = plan->row[most].name;
        int64_t here = bytes_named(held, name);
        shown[most] = true;
        peak_row(out, name[0] ? name : "outside the modules", row_bytes(&plan->row[most]), here);
        planned -= row_bytes(&plan->row[most]);
        was -= here;
    }
    if (planned != 0 || was != 0) peak_row(out, "others", planned, was);
}

/* "planned 3.0 MiB (rank 2) to 4.1 MiB (rank 0)" */
static void range(tsi_text *out, const char *what, const int64_t *peak, int64_t ranks)
{
    char a[32], b[32];
    int64_t least = 0, most = 0;
    for (int64_t i = 1; i < ranks; i++) {
        if (peak[i] < peak[least]) least = i;
        if (peak[i] > peak[most]) most = i;
    }
    tsi_text_printf(out, "%s %s (rank %lld) to %s (rank %lld)", what,
                    tsi_text_bytes(a, sizeof a, peak[least]), (long long)least,
                    tsi_text_bytes(b, sizeof b, peak[most]), (long long)most);
}

void tsi_report_peak(tsi_text *out, const tsi_run *run)
{
    const ts_train_peak *held = run->seen.peak;
    if (!run->cost || !held || held->row_count == 0) return;
    const ts_train_peak *plan = &run->cost->peak;
    tsi_text_add(out, "<h2>Whose memory it is when rank 0 holds most</h2><p>");
    place(out, "Planned:", plan);
    place(out, ". Held in the second step of this process:", held);
    tsi_text_add(out, ".</p><table><tr><th>module</th><th>planned</th><th>held</th></tr>");
    peak_rows(out, plan, held);
    tsi_text_add(out, "</table>");
    if (run->peak_of && run->plan.ranks > 1) {
        range(out, "<p>Of all ranks at most: planned", run->peak_of, run->plan.ranks);
        range(out, ", held", run->peak_of + run->plan.ranks, run->plan.ranks);
        tsi_text_add(out, ".</p>");
    }
    tsi_text_add(out, "\n");
}

/* ---- ranks ----------------------------------------------------------------------------------- */

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
