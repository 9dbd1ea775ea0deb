/* SPDX-License-Identifier: Apache-2.0 */
/* bench_lines.h - results of a bench that is a list of single numbers: a table for a person, the
 * common JSON form for a machine. */
#ifndef BENCH_LINES_H
#define BENCH_LINES_H

#include "cli.h"

enum { BENCH_LINES_MAX = 256 };

typedef struct bench_line {
    char name[96], unit[16];
    double value;
    char floor_name[64]; /* "": there is none */
    double floor;        /* measured in the same run */
    double wanted;       /* what it is meant to be at most; 0: nothing was said */
    char note[96];
} bench_line;

typedef struct bench_lines {
    bench_line line[BENCH_LINES_MAX];
    size_t count;
} bench_lines;

/* A new line; its name is formatted, everything else is zero. Beyond the last it is the last. */
bench_line *bench_lines_add(bench_lines *lines, const char *unit, double value, const char *format,
                            ...) TS_PRINTF(4, 5);
void bench_line_floor(bench_line *line, double value, const char *name);
void bench_line_note(bench_line *line, const char *format, ...) TS_PRINTF(2, 3);
/* 0, or 1 if it cannot be written. */
int bench_lines_print(const bench_lines *lines, bool json);
/* Sorts, and returns the middle one. */
double bench_median(double *values, size_t count);

#endif
