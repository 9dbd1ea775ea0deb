/* SPDX-License-Identifier: Apache-2.0 */
/* copy_team.h - plain copies and reads by several threads: the floor of kernels that only move
 * memory.
 *
 * Helpers wait for the next copy by looking at a counter for a while, then sleep, so that they take
 * nothing from what is measured in between. */
#ifndef BENCH_COPY_TEAM_H
#define BENCH_COPY_TEAM_H

#include <stddef.h>

typedef struct copy_team copy_team;

copy_team *copy_team_start(int threads); /* NULL: out of memory or threads */
void copy_team_end(copy_team *team);     /* accepts NULL */
/* memcpy, each thread one part. */
void copy_team_copy(copy_team *team, void *to, const void *from, size_t bytes);
/* Only reads, each thread one part, four places of it at once: the floor of what only reads. */
void copy_team_read(copy_team *team, const void *from, size_t bytes);

#endif
