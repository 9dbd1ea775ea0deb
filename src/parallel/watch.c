/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - what the schedule of units costs the host.
 *
 *   host     processor time of this rank's thread in what units do before and after their modules:
 *            looking at the order, issuing gathers and reductions, binding and letting go
 *   waited   the rest of the time in there: for peers, for what they send (moving some of it
 *            itself), and for a core, where helpers that move data have it
 *
 * A processor's clock is a call of the system: none is read unless somebody asked (TS_FSDP_TIMES),
 * and what reading it takes is taken off. */
#include "base/clock.h"
#include "parallel/unit.h"

static bool is_timed(const tsi_units *all)
{
    return all && all->timed;
}

void tsi_watch_set(tsi_units *all, bool timed)
{
    enum { TRIES = 32 };
    all->timed = timed;
    all->read_ns = INT64_MAX;
    for (int i = 0; timed && i < TRIES; i++) {
        int64_t first = tsi_clock_thread_ns(), took_ns = tsi_clock_thread_ns() - first;
        if (took_ns < all->read_ns) all->read_ns = took_ns;
    }
}

tsi_watch tsi_watch_begin(const tsi_unit *u)
{
    if (!is_timed(u->all)) return (tsi_watch){ 0 };
    int64_t wall_ns = tsi_clock_ns();
    return (tsi_watch){ wall_ns, tsi_clock_thread_ns(), u->all->aside_ns };
}

void tsi_watch_end(const tsi_unit *u, const tsi_watch *w)
{
    if (!is_timed(u->all) || w->wall_ns == 0) return;
    int64_t host_ns = tsi_clock_thread_ns() - w->thread_ns - (u->all->aside_ns - w->aside_ns);
    host_ns = host_ns > u->all->read_ns ? host_ns - u->all->read_ns : 0;
    u->all->stats.host_ns += host_ns;
    u->all->stats.waited_ns += tsi_clock_ns() - w->wall_ns - host_ns;
}

int64_t tsi_watch_wait(const tsi_units *all)
{
    return is_timed(all) ? tsi_clock_thread_ns() : 0;
}

void tsi_watch_waited(tsi_units *all, int64_t begin)
{
    /* Half of each of the two reads is outside of what they measure. */
    if (is_timed(all) && begin > 0) all->aside_ns += tsi_clock_thread_ns() - begin + all->read_ns;
}
