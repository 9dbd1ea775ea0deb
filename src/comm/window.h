/* SPDX-License-Identifier: Apache-2.0 */
/* window.h - what ranks of several processes on one node show each other: memory of each member
 * that all of them address (tessera/symmetric.h), kept for a group and used again.
 *
 *   use k      the member writes half k % 2 of its own, all meet, each reads the others' halves
 *   use k + 1  the other half; who comes to that meeting has read the first one
 *   use k + 2  so nobody reads any more what is written now
 *
 * INV: members use a group's window in one order, each use with one meeting (tsi_group_meet)
 * between writing and reading. A recovery begins anew, without what was there. */
#ifndef TSI_COMM_WINDOW_H
#define TSI_COMM_WINDOW_H

#include "comm/comm.h"

typedef struct tsi_window tsi_window;

/* May the members of the group have one? Not where they are threads, which lend (comm.h), nor if it
 * is known that they do not share a node. The same answer on all of them. */
bool tsi_group_has_window(const ts_group *group);
/* [coll] For one use of `bytes` bytes of each member, as many on all. *out NULL, and TS_OK: they
 * cannot address the same memory, and tsi_group_has_window says so from now on. */
ts_status tsi_group_window(ts_group *group, size_t bytes, tsi_window **out);
/* A member's half of this use; aligned to 64 bytes. */
char *tsi_window_of(const tsi_window *window, int64_t member);
/* [coll] Complete when all members came; counted as an exchange in which this rank receives so many
 * bytes. */
ts_status tsi_group_meet(ts_group *group, ts_dtype dtype, int64_t bytes,
                         const ts_comm_options *options);

#endif
