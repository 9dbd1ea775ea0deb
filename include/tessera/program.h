/* SPDX-License-Identifier: Apache-2.0 */
/* program.h - a step as a program: a value that is printed, saved, compared, checked, timed, drawn
 * and reordered without running it.
 *
 *   ts_train_program(config, ...)    of a configuration, before there is data or a rank
 *   ts_step_program(step)            of a step that was recorded while it ran
 *   ts_program_read(path)            of its text (docs/steps.md)
 *
 * A program has a list of actions per rank: operators, collectives (begun on a queue, waited for by
 * a wait), messages, updates, releases; and values, which are blocks of memory with a life. One
 * list may stand for all ranks that do the same, so that programs of many thousands of ranks are
 * small and are checked on all of them.
 *
 * All functions are local, may be called by any thread, and leave why they failed as all do: with
 * the rank whose thread it is (ts_rank_error), else in ts_last_error(). */
#ifndef TESSERA_PROGRAM_H
#define TESSERA_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "status.h"

typedef struct ts_program ts_program;

typedef struct ts_program_summary { /* may grow at the end */
    size_t struct_size;
    int64_t ranks, lists; /* lists below ranks: some stand for many */
    int64_t actions, values, groups, queues;
    int64_t collectives, messages, waits; /* among the actions */
} ts_program_summary;

/* ---- checking -------------------------------------------------------------------------------- */
typedef struct ts_program_rules {
    size_t struct_size;
    int64_t memory_bytes_max; /* of a rank; 0: no cap */
    int32_t meeting;          /* 1: a send ends with its receive; 0: it is buffered */
    int32_t no_hidden;        /* 1: operators may not move inputs for themselves */
} ts_program_rules;
/* kind: "race", "unmet", "deadlock" ...; text: a sentence with actions and places. */
typedef void (*ts_program_finding_fn)(const char *kind, const char *text, void *context);

/* ---- times ----------------------------------------------------------------------------------- */
/* Who says what a collective or a message takes: the links of a topology, or NCCL's own model of a
 * machine, 8 ranks a node (the least of its algorithms and protocols). */
typedef enum ts_costs {
    TS_COSTS_LINKS,
    TS_COSTS_V100,
    TS_COSTS_A100,
    TS_COSTS_H100,
    TS_COSTS_B200
} ts_costs;
typedef struct ts_program_costs {
    size_t struct_size;
    const char *topology; /* preset or file, for what has bytes; NULL: "threads" */
    double compute_us;    /* of an operator that does not say how long it takes; 0: 1 */
    int32_t meeting;
    int32_t collectives; /* a ts_costs */
    /* What operations take of a rank's computing while they are under way, 0 to 1: where those who
     * compute move the bytes themselves, on cores that are all busy, one over the threads of a
     * rank. Of ts_program_simulate: orders are weighed without it. */
    double moving;
} ts_program_costs;

typedef struct ts_program_times { /* may grow at the end */
    size_t struct_size;
    double makespan_us;
    double compute_us;  /* of the rank with most */
    double exposed_us;  /* of the rank with most: time in which its main queue does not compute */
    double bubble;      /* share of all ranks' time that is no compute */
    int64_t peak_bytes; /* of the rank with most */
    int64_t peak_rank;
    /* Of the rank with most: operations under way while it computes. Only with costs.moving, of
     * which the makespan has so much more. */
    double hidden_us;
} ts_program_times;

typedef struct ts_program_bar { /* one action of the drawing */
    int64_t rank, alike;        /* the rank, and how many more do the same */
    int64_t index;              /* in its list */
    const char *kind, *what;    /* "gather"; a name or "" */
    const char *queue, *group;  /* "main"; of a collective, else "" */
    int32_t communicates, waits, critical, reserved;
    double begin_us, end_us;
    int64_t bytes, memory_bytes; /* moved; held while it runs */
    const char *along;           /* axes of the group, "fsdp+tp", else "" */
} ts_program_bar;
typedef void (*ts_program_bar_fn)(const ts_program_bar *bar, void *context);

/* ---- reordering ------------------------------------------------------------------------------ */
enum {
    TS_PASS_HOIST = 1,     /* begin collectives as early as their inputs are there */
    TS_PASS_SINK = 2,      /* wait when their results, or their memory, are needed */
    TS_PASS_BUCKET = 4,    /* several small ones as one */
    TS_PASS_PREFETCH = 8,  /* gathers ahead of the module before */
    TS_PASS_FILL = 16,     /* weight gradients into the gaps */
    TS_PASS_SCHEDULE = 32, /* everything by cost, under the cap */
    TS_PASS_SEARCH = 64,   /* single moves, as long as they help */
    TS_PASS_SPLIT = 128,   /* large collectives in parts, so that others pass between them */
    TS_PASS_DEFER = 256,   /* sums that nobody needs soon, behind what is needed sooner */
    TS_PASS_ALL = 511
};
typedef struct ts_reorder_options {
    size_t struct_size;
    ts_program_costs costs;   /* whose makespan decides */
    int64_t memory_bytes_max; /* of a rank; 0: what the program itself needs */
    int64_t bucket_bytes;     /* a bucket has at most so many; 0: 1 MiB, or what uses 0.9 of
                               * a machine's bandwidth (costs.collectives) */
    int64_t tries;            /* of the search; 0: 2000 */
    uint64_t seed;
    uint32_t passes; /* TS_PASS_*; 0: all */
    uint32_t reserved;
} ts_reorder_options;
typedef struct ts_reorder_report { /* of one pass */
    const char *pass;
    int64_t moves;
    double makespan_before_us, makespan_after_us;
    double exposed_before_us, exposed_after_us;
    int64_t peak_before, peak_after;
    int32_t kept, reserved; /* 0: it did not help, or would not fit, and was taken back */
    const char *why;        /* a sentence */
} ts_reorder_report;
typedef void (*ts_reorder_fn)(const ts_reorder_report *report, void *context);

TS_BEGIN_C

/* [any] Real defaults (types.h). */
TS_API void ts_reorder_options_init(ts_reorder_options *options);

/* Refused with the line and what stands there. */
TS_API TS_NODISCARD ts_status ts_program_parse(const char *text, ts_program **out);
TS_API TS_NODISCARD ts_status ts_program_read(const char *path, ts_program **out);
TS_API TS_NODISCARD ts_status ts_program_write(const ts_program *program, const char *path);
TS_API void ts_program_destroy(ts_program *program); /* accepts NULL */
TS_API size_t ts_program_text(const ts_program *program, char *out,
                              size_t size); /* like snprintf */
TS_API TS_NODISCARD ts_status ts_program_summarise(const ts_program *program,
                                                   ts_program_summary *out);
/* The first difference as a sentence, like snprintf; 0: they are equal. */
TS_API size_t ts_program_differ(const ts_program *a, const ts_program *b, char *why, size_t size);
/* Tells everything that is wrong with it, and counts it; of very many, 200 are told. `rules` may be
 * NULL. What is found is no failure. TS_ERR_ARG: there is too much to look at, as lists for more
 * than 65,536 different kinds of ranks; nothing is told then. */
TS_API TS_NODISCARD ts_status ts_program_check(const ts_program *program,
                                               const ts_program_rules *rules,
                                               ts_program_finding_fn tell, void *context,
                                               int64_t *count);
/* When every action would begin and end; `visit` may be NULL, as may `costs`. Refused where actions
 * do not pair up or wait for each other in a circle. */
TS_API TS_NODISCARD ts_status ts_program_simulate(const ts_program *program,
                                                  const ts_program_costs *costs,
                                                  ts_program_times *out, ts_program_bar_fn visit,
                                                  void *context);
/* The same results in a better order: makespan and peak are at most those before, and each pass is
 * told, kept or not. The program must have nothing wrong with it. A program in which lists stand
 * for many ranks becomes one of a rank of each kind. */
TS_API TS_NODISCARD ts_status ts_program_reorder(const ts_program *program,
                                                 const ts_reorder_options *options,
                                                 ts_reorder_fn tell, void *context,
                                                 ts_program **out);

TS_END_C
#endif
