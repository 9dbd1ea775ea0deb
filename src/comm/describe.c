/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c - what the ranks of this process are doing, read from their event rings. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/slots.h"

/* "all_reduce 'loss' #3 (train.c:88), for 2.1 s" or "... ended 0.3 s ago". */
void tsi_rank_doing(const ts_rank *rank, char *out, size_t size)
{
    tsi_event event;
    if (!tsi_ring_read(rank->ring, tsi_ring_last(rank->ring), &event)) {
        (void)snprintf(out, size, "nothing yet");
        return;
    }
    int64_t now = tsi_clock_ns();
    char number[32] = "", name[96] = "", where[96] = "", when[48];
    if (event.sequence > 0) (void)snprintf(number, sizeof number, " #%" PRIu64, event.sequence);
    if (event.name[0] != '\0') (void)snprintf(name, sizeof name, " '%s'", event.name);
    if (event.where[0] != '\0') (void)snprintf(where, sizeof where, " (%s)", event.where);
    if (event.end_ns == 0)
        (void)snprintf(when, sizeof when, "for %.1f s", 1e-9 * (double)(now - event.begin_ns));
    else
        (void)snprintf(when, sizeof when, "ended %.1f s ago", 1e-9 * (double)(now - event.end_ns));
    (void)snprintf(out, size, "%s%s%s%s, %s", event.kind_name, name, number, where, when);
}

void tsi_comm_describe(ts_world *world, char *out, size_t size)
{
    if (size == 0) return;
    out[0] = '\0';
    size_t at = 0;
    for (int64_t i = 0; i < world->local_count && at + 1 < size; i++) {
        char doing[320];
        tsi_rank_doing(world->rank[i], doing, sizeof doing);
        int length =
            snprintf(out + at, size - at, "rank %" PRId64 ": %s\n", world->rank[i]->index, doing);
        if (length > 0) at += (size_t)length;
    }
    const tsi_engine *engine = tsi_comm_engine(world);
    if (engine == NULL || engine->describe == NULL || at + 1 >= size) return;
    engine->describe(tsi_comm_engine_state(world), out + at, size - at);
}
