/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - what the schedule of units costs the host.
 *
 *   host     processor time of this rank's thread in what units do before and after their modules:
 *            looking at the order, issuing gathers and reductions, binding and letting go. Who
 *            comes last to a reduction wakes a peer that sleeps there, and carries it out at once
 *            where it is small (some KiB, threads/engine.c): that is host time too
 *   waited   the rest of the time in there: for peers, for what they send (moving some of it
 *            itself), for a core, where helpers that move data have it, and what the clocks take
 *
 * A processor's clock is a call of the system, which takes 0.3 us warm and several times that where
 * a unit begins, after kernels that left nothing in the caches: as much as the work. So none is
 * read unless somebody asked (TS_FSDP_TIMES), and the time of day, which needs no such call, is
 * read inside of it.
 *
 *   begin  thread day ..work.. day thread  ..waiting..  thread day ..work.. day thread  end
 *
 * INV: neither of the two differences is less than the processor time of the work. The thread's has
 * the clock's own call besides, the day's whatever had the core meanwhile: the smaller one counts,
 * and nothing is taken off. */
#include "base/clock.h"
#include "base/intmath.h"
#include "parallel/unit.h"

static bool is_timed(const tsi_units *all)
{
    return all && all->timed;
}

void tsi_watch_set(tsi_units *all, bool timed)
{
    all->timed = timed;
}

static void work_begin(tsi_units *all)
{
    all->work_thread_ns = tsi_clock_thread_ns();
    all->work_ns = tsi_clock_ns();
}

static void work_end(tsi_units *all)
{
    int64_t day_ns = tsi_clock_ns() - all->work_ns;
    int64_t thread_ns = tsi_clock_thread_ns() - all->work_thread_ns;
    all->work_ns = 0;
    all->stats.host_ns += tsi_min_i64(day_ns, thread_ns);
}

tsi_watch tsi_watch_begin(const tsi_unit *u)
{
    if (!is_timed(u->all)) return (tsi_watch){ 0 };
    tsi_watch w = { tsi_clock_ns(), u->all->stats.host_ns };
    work_begin(u->all);
    return w;
}

void tsi_watch_end(const tsi_unit *u, const tsi_watch *w)
{
    if (!is_timed(u->all) || w->begin_ns == 0) return;
    if (u->all->work_ns != 0) work_end(u->all); /* else a wait failed */
    int64_t host_ns = u->all->stats.host_ns - w->host_ns;
    u->all->stats.waited_ns += tsi_clock_ns() - w->begin_ns - host_ns;
}

bool tsi_watch_wait(tsi_units *all)
{
    if (!is_timed(all) || all->work_ns == 0) return false;
    work_end(all);
    return true;
}

void tsi_watch_waited(tsi_units *all, bool was_at_work)
{
    if (was_at_work) work_begin(all);
}
