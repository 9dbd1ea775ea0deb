/* SPDX-License-Identifier: Apache-2.0 */
/* bench_dispatch.h - the parts of `tessera bench dispatch`: calls whose plan is found, calls whose
 * plan is made, the list form.
 *
 * Each part is measured twice by the same code: by the clock here, and in instructions by this
 * program under callgrind (count.h). The child walks through the parts in the same order, and a
 * part is as many numbers there as it takes from `counted` here. */
#ifndef BENCH_DISPATCH_H
#define BENCH_DISPATCH_H

#include "bench.h"
#include "bench_lines.h"
#include "count.h"

enum { DISPATCH_BATCH = 64, DISPATCH_SECTIONS = 96 };

typedef struct dispatch_bench {
    bench_lines lines;
    int64_t calls;
    bool counting;                     /* this is the child: only sections are run */
    double counted[DISPATCH_SECTIONS]; /* of the child */
    size_t counted_used;
    const char *not_counted; /* why, or NULL */
} dispatch_bench;

/* Child: a section. Parent: its number. */
double dispatch_count(dispatch_bench *self, void (*run)(void *, int64_t), void *context,
                      int64_t times);
/* Instructions of one time: what a longer section has more than a short one. */
double dispatch_count_each(dispatch_bench *self, void (*run)(void *, int64_t), void *context,
                           int64_t few, int64_t many);
/* A line of instructions below a line of time; or a word about it in the note of that line. */
void dispatch_line_count(dispatch_bench *self, bench_line *time, double value, double wanted,
                         const char *name);

size_t dispatch_miss_sections(void); /* that dispatch_misses takes */
void dispatch_misses(dispatch_bench *self, ts_rank *me, ts_mesh *mesh);

#endif
