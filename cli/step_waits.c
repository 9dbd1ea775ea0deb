/* SPDX-License-Identifier: Apache-2.0 */
/* step_waits.c - what the ranks of a program wait for: by kind of collective and the axes of its
 * group.
 *
 * A gap on the main queue ends with what was waited for; of several that ended then, the latest
 * begun counts. An operation of the main queue itself is waited for as long as it takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "step.h"

static step_wait *row_of(step_waits *all, const char *kind, const char *axes)
{
    enum { MOST = sizeof all->row / sizeof all->row[0] };
    for (int i = 0; i < all->count; i++)
        if (strcmp(all->row[i].kind, kind) == 0 && strcmp(all->row[i].axes, axes) == 0)
            return &all->row[i];
    if (all->count == MOST) return &all->row[MOST - 1];
    all->row[all->count] = (step_wait){ .kind = kind, .axes = axes };
    return &all->row[all->count++];
}

/* The operation of this rank that ended when the wait did; NULL: none, so a peer's did. */
static const ts_program_bar *ended_with(const ts_program_bar *wait)
{
    for (int64_t back = 1; back <= wait->index; back++) {
        const ts_program_bar *before = wait - back;
        if (before->communicates && fabs(before->end_us - wait->begin_us) < 1e-6) return before;
    }
    return NULL;
}

static void count_rank(const ts_program_bar *bar, int64_t count, step_waits *out)
{
    double until = 0;
    for (int64_t i = 0; i < count; i++) {
        const ts_program_bar *b = &bar[i];
        if (strcmp(b->queue, "main") != 0) continue;
        double gap = (b->communicates ? b->end_us : b->begin_us) - until;
        if (b->end_us > until) until = b->end_us;
        if (gap < 1e-3) continue;
        const ts_program_bar *of = b->communicates ? b : ended_with(b);
        step_wait *row = of ? row_of(out, of->kind, of->along) : row_of(out, "other", "");
        row->us += gap * (double)(b->alike + 1);
        row->count += b->alike + 1;
    }
}

static int most_first(const void *a, const void *b)
{
    double x = ((const step_wait *)a)->us, y = ((const step_wait *)b)->us;
    return x < y ? 1 : x > y ? -1 : 0;
}

void step_count_waits(const step_bars *bars, step_waits *out)
{
    *out = (step_waits){ .count = 0 };
    for (int64_t i = 0, end; i < bars->count; i = end) {
        for (end = i + 1; end < bars->count && bars->bar[end].rank == bars->bar[i].rank;)
            end++;
        out->ranks += bars->bar[i].alike + 1;
        count_rank(bars->bar + i, end - i, out);
    }
    qsort(out->row, (size_t)out->count, sizeof out->row[0], most_first);
}
