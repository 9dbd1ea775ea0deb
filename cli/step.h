/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - what the files of `tessera step` share. */
#ifndef CLI_STEP_H
#define CLI_STEP_H

#include "cli.h"

typedef struct step_bars { /* of one program, with its times */
    ts_program_bar *bar;
    int64_t count, capacity;
    bool failed;
    ts_program_times times;
} step_bars;

typedef struct step_wait { /* of all ranks together */
    const char *kind, *axes;
    double us;
    int64_t count;
} step_wait;
typedef struct step_waits {
    step_wait row[32];
    int count;
    int64_t ranks;
} step_waits;

/* Options of costs that several subjects take. */
typedef struct step_costs {
    const char *topology, *compute, *collectives;
    bool meeting;
} step_costs;
#define STEP_COST_OPTIONS(costs)                                                                   \
    CLI_TEXT("topology", &(costs).topology, "NAME|FILE", "links of the ranks (threads)"),          \
        CLI_TEXT("costs", &(costs).collectives, "NAME",                                            \
                 "of collectives: links (of --topology), or as NCCL's model has v100, a100, h100 " \
                 "or b200, 8 a node"),                                                             \
        CLI_TEXT("compute", &(costs).compute, "US", "of operators that do not say it (1)"),        \
        CLI_FLAG("meeting", &(costs).meeting, "a send ends with its receive; else it is buffered")

/* Exit codes as elsewhere; -1: go on. */
int step_read(const char *command, const char *path, ts_program **out);
int step_costs_of(const char *command, const step_costs *given, ts_program_costs *out);
int step_simulate(const char *command, const ts_program *program, const ts_program_costs *costs,
                  step_bars *out);
void step_bars_release(step_bars *bars);

void step_count_waits(const step_bars *bars, step_waits *out); /* step_waits.c */

/* ---- pictures (step_picture.c) --------------------------------------------------------------- */
void step_draw(const step_bars *bars, int64_t ranks, FILE *out);
int step_write_svg(const step_bars *bars, int64_t ranks, const char *path);

/* ---- subjects -------------------------------------------------------------------------------- */
int step_record(int argc, char **argv);  /* step_record.c */
int step_reorder(int argc, char **argv); /* step_reorder.c */

#endif
