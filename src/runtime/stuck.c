/* SPDX-License-Identifier: Apache-2.0 */
/* stuck.c - a rank that sleeps or loops in the program's own code while the others have failed.
 *
 * No call of ours can end such a thread. It is stuck if it has given no sign, an event, for the
 * world's timeout, or if the failure, of which any call that waits for a peer would have told it,
 * is older than the timeout (a loop of local operators gives signs for ever). */
#include <stdio.h>
#include <unistd.h>

#include "runtime/runtime.h"

enum { GRACE_NS = 250000000 }; /* for ranks that are on their way out */

/* When the rank last began or ended something; before that, when it was started. */
static int64_t last_sign(const ts_rank *rank, int64_t start_ns, int64_t now_ns)
{
    tsi_event event;
    uint64_t last = tsi_ring_last(rank->ring);
    if (last == 0) return start_ns;
    if (!tsi_ring_read(rank->ring, last, &event)) return now_ns; /* it is being written */
    return event.end_ns != 0 ? event.end_ns : event.begin_ns;
}

bool tsi_rank_stuck(const ts_rank *rank, int64_t start_ns, int64_t failed_ns, int64_t now_ns)
{
    int64_t timeout_ns = rank->world->timeout_ms * 1000000;
    if (now_ns - failed_ns > timeout_ns) return true;
    return now_ns - failed_ns > GRACE_NS && now_ns - last_sign(rank, start_ns, now_ns) > timeout_ns;
}

void tsi_end_process(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDERR_FILENO, text, length);
        if (written <= 0) break;
        text += written;
        length -= (size_t)written;
    }
    /* The stuck thread may sit in a read or write with the stream locked. */
    if (ftrylockfile(stdout) == 0) {
        (void)fflush(stdout);
        funlockfile(stdout);
    }
    _exit(1);
}
