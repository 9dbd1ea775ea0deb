/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - what the schedule of units costs the host.
 *
 *   host     processor time of this rank's thread in what units do before and after their modules:
 *            looking at the order, issuing gathers and reductions, binding and letting go
 *   waited   the rest of the time in there: for peers, for what they send (moving some of it
 *            itself), and for a core, where helpers that move data have it
 *
 * A processor's clock is a call of the system, which takes 0.3 us warm and several times that where
 * a unit begins, after kernels that left nothing in the caches. So none is read unless somebody
 * asked (TS_FSDP_TIMES), and what the instrument takes is measured there and then: every beginning
 * reads twice, and the time between the two is what a read takes at this place.
 *
 *   begin  r r' ..work.. wait r r' ..waiting.. r''  ..work.. end r
 *
 * INV: of each read one whole is taken off, and nothing else. */
#include "base/clock.h"
#include "parallel/unit.h"

static bool is_timed(const tsi_units *all)
{
    return all && all->timed;
}

void tsi_watch_set(tsi_units *all, bool timed)
{
    all->timed = timed;
}

tsi_watch tsi_watch_begin(const tsi_unit *u)
{
    if (!is_timed(u->all)) return (tsi_watch){ 0 };
    int64_t wall_ns = tsi_clock_ns(), first = tsi_clock_thread_ns(), then = tsi_clock_thread_ns();
    return (tsi_watch){ wall_ns, then + (then - first), u->all->aside_ns };
}

void tsi_watch_end(const tsi_unit *u, const tsi_watch *w)
{
    if (!is_timed(u->all) || w->wall_ns == 0) return;
    int64_t host_ns = tsi_clock_thread_ns() - w->thread_ns - (u->all->aside_ns - w->aside_ns);
    if (host_ns < 0) host_ns = 0;
    u->all->stats.host_ns += host_ns;
    u->all->stats.waited_ns += tsi_clock_ns() - w->wall_ns - host_ns;
}

int64_t tsi_watch_wait(const tsi_units *all)
{
    if (!is_timed(all)) return 0;
    int64_t first = tsi_clock_thread_ns(), then = tsi_clock_thread_ns();
    return first - (then - first);
}

void tsi_watch_waited(tsi_units *all, int64_t begin)
{
    if (is_timed(all) && begin != 0) all->aside_ns += tsi_clock_thread_ns() - begin;
}
