/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.h - what the lines of `tessera bench kernels` share: numbers to work on, copies to
 * stand beside, and the time of the whole run.
 *
 * The lines are gone through twice: first they are only counted, then each is measured for its
 * share of the time that is left. So set-ups and lines that take longer than their share are made
 * up for by those that follow. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "bench_lines.h"
#include "contest.h"
#include "copy_team.h"

typedef struct bench_kernels {
    bench_lines lines;
    ts_rank *me;
    ts_mesh *mesh;
    copy_team *team;
    int64_t threads, seconds;
    const char *only; /* lines whose name contains it; NULL: all */
    char *from, *to;  /* for copies */
    size_t copy_bytes;
    ts_tensor *numbers[2]; /* normal, f32: all inputs are made from them */
    double end;            /* when all lines are to be done */
    double exp_rate; /* exponentials of f32 added up in the first cache, by all threads; 0: not
                        measured yet */
    int64_t left;    /* lines that are not measured yet */
    double rest;     /* contest.rest */
    bool counting, json;
} bench_kernels;

/* Whether the line of this name is to be measured now. */
bool bench_kernels_turn(bench_kernels *self, const char *name);
/* Normal numbers, of a whole dtype rounded to zero; which: 0 or 1, numbers that differ. At most
 * 2^24 of them. */
ts_tensor *bench_kernels_numbers(const bench_kernels *self, int which, ts_dtype dtype,
                                 ts_shape shape);
/* Contenders in turns, for a line's share of the time. */
ts_status bench_kernels_measure(bench_kernels *self, int contenders,
                                ts_status (*run)(void *context, int who), void *context,
                                contest_times *times);
/* Waits for a result and drops it; NULL: what went wrong. */
ts_status bench_kernels_drop(const bench_kernels *self, ts_tensor *result);
/* A plain copy that reads and writes as many bytes in all, up to twice copy_bytes. */
void bench_kernels_copy(const bench_kernels *self, double bytes);

/* Operators that are bound by memory; matrix products and attention; operators that move, pick,
 * sort and draw numbers, and convolutions. */
ts_status bench_kernels_memory(bench_kernels *self);
ts_status bench_kernels_products(bench_kernels *self);
ts_status bench_kernels_data(bench_kernels *self);

#endif
