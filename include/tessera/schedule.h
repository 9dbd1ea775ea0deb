/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h - the order in which the ranks of a pipeline do their work, before there are ranks.
 *
 * A model is cut into stages, a batch into micro-batches; each rank has some of the stages. A
 * schedule says in which order a rank computes the forwards and the gradients of its stages'
 * micro-batches. It is a value: made by a published rule or by search, read from text, printed,
 * checked, timed under costs and lowered to what is executed. Its text is one line a rank, actions
 * with commas between them:
 *
 *   0F0,0F1,0B0,0B1        stage 0: forward of micro-batches 0 and 1, then their backwards
 *   1F0,1B0,1F1,1B1
 *
 * F forward, B backward, I and W its two halves (gradient of inputs, gradient of weights),
 * (0F7;7B3)OVERLAP_F_B two at once, an empty cell an idle slot, which means nothing. With
 * communication also SEND_F RECV_F SEND_B RECV_B, UNSHARD RESHARD REDUCE_GRAD.
 *
 * All functions are local and may be called by any thread. */
#ifndef TESSERA_SCHEDULE_H
#define TESSERA_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "status.h"

typedef struct ts_schedule ts_schedule;

/* Name, text, whether it has a micro-batch. */
#define TS_CELL_LIST(X)                                                                            \
    X(IDLE, "", 0)                                                                                 \
    X(FORWARD, "F", 1)                                                                             \
    X(BACKWARD, "B", 1)                                                                            \
    X(INPUT, "I", 1)                                                                               \
    X(WEIGHT, "W", 1)                                                                              \
    X(SEND_FORWARD, "SEND_F", 1)                                                                   \
    X(RECEIVE_FORWARD, "RECV_F", 1)                                                                \
    X(SEND_BACKWARD, "SEND_B", 1)                                                                  \
    X(RECEIVE_BACKWARD, "RECV_B", 1)                                                               \
    X(GATHER, "UNSHARD", 0)                                                                        \
    X(RELEASE, "RESHARD", 0)                                                                       \
    X(REDUCE, "REDUCE_GRAD", 0)

typedef enum ts_cell_kind {
#define TS_CELL_ENUM(name, text, micro) TS_CELL_##name,
    TS_CELL_LIST(TS_CELL_ENUM)
#undef TS_CELL_ENUM
        TS_CELL_KINDS
} ts_cell_kind;

typedef struct ts_cell {
    int32_t kind;   /* ts_cell_kind */
    int32_t stage;  /* of a receive: the one that receives; idle: -1 */
    int32_t micro;  /* -1: it has none */
    int32_t joined; /* 1: runs together with the next cell */
    int32_t link;   /* of a message: which tensor between stages (on a line: the stage that makes
                       it); else -1 */
    int32_t peer;   /* of a message: the other rank; else -1 */
} ts_cell;

typedef struct ts_schedule_options {
    size_t struct_size;
    int64_t ranks, micro_batches;
    int64_t stages_per_rank; /* 0: what the schedule needs: 1, or 2 where one is too few */
} ts_schedule_options;

/* What one stage costs for one micro-batch, in any unit of time. A backward takes input + weight.
 */
typedef struct ts_stage_cost {
    double forward, input, weight;
    double send;   /* of what it gives to a stage on another rank, and of a gradient to it */
    double memory; /* kept from its forward to its weight gradient */
} ts_stage_cost;

typedef struct ts_schedule_costs {
    size_t struct_size;
    const ts_stage_cost *stage; /* NULL: 1, 1, 1, no communication, 1 */
    int64_t count;              /* 1: alike for all; else one for each stage */
} ts_schedule_costs;

typedef struct ts_schedule_times { /* may grow at the end */
    size_t struct_size;
    double makespan;
    double bubble;   /* time a rank does not compute: makespan - work, the mean of the ranks */
    double fraction; /* bubble / makespan */
    double peak;     /* memory kept at once, the largest of any rank */
} ts_schedule_times;

typedef struct ts_schedule_search_options {
    size_t struct_size;
    ts_schedule_options size; /* stages_per_rank 0: what is best of 1 and 2 */
    ts_schedule_costs costs;  /* of several: as many as ranks * stages_per_rank */
    double memory_max;        /* kept at once on a rank; 0: no cap */
    double seconds;           /* it ends by then with the best it has; 0: 1 */
} ts_schedule_search_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_schedule_options_init(ts_schedule_options *options);
TS_API void ts_schedule_costs_init(ts_schedule_costs *costs);
TS_API void ts_schedule_search_options_init(ts_schedule_search_options *options);

/* The names of the published rules, by number; NULL after the last: GPipe, 1F1B, LoopedBFS,
 * Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV. */
TS_API const char *ts_schedule_name(int64_t index);
/* By name, upper or lower case; also zb1p, zbv, dualpipev. Numbers for which the rule has no
 * meaning are refused with the reason. */
TS_API TS_NODISCARD ts_status ts_schedule_generate(const char *name,
                                                   const ts_schedule_options *options,
                                                   ts_schedule **out);
/* By what users write: the name of a rule, "search" (ts_schedule_search with costs of 1), or a file
 * with its text: a name with '/' or '.' is one, and then the numbers are the file's. */
TS_API TS_NODISCARD ts_status ts_schedule_find(const char *name, const ts_schedule_options *size,
                                               ts_schedule **out);
TS_API bool ts_schedule_is_file(const char *name);
/* From its text; errors say rank and column. Whether it makes sense is asked by ts_schedule_check.
 */
TS_API TS_NODISCARD ts_status ts_schedule_parse(const char *text, ts_schedule **out);
/* The same order with gathers, reductions, sends and receives: what is executed. Up to `gathered`
 * stages of a rank are gathered at once (0: 3). */
TS_API TS_NODISCARD ts_status ts_schedule_lower(const ts_schedule *schedule, int64_t gathered,
                                                ts_schedule **out);
/* The best order that can be found under the costs and the cap: never worse than that of any rule
 * that keeps it. `bound`, if not NULL: no order is shorter. */
TS_API TS_NODISCARD ts_status ts_schedule_search(const ts_schedule_search_options *options,
                                                 ts_schedule **out, double *bound);
TS_API void ts_schedule_destroy(ts_schedule *schedule); /* accepts NULL */

TS_API size_t ts_schedule_text(const ts_schedule *schedule, char *out, size_t size); /* snprintf */
TS_API int64_t ts_schedule_ranks(const ts_schedule *schedule);
TS_API int64_t ts_schedule_stages(const ts_schedule *schedule);
TS_API int64_t ts_schedule_micro_batches(const ts_schedule *schedule);
TS_API int64_t ts_schedule_rank_of(const ts_schedule *schedule, int64_t stage); /* -1: none */
TS_API int64_t ts_schedule_count(const ts_schedule *schedule, int64_t rank);    /* of cells */
TS_API ts_cell ts_schedule_cell(const ts_schedule *schedule, int64_t rank, int64_t index);
TS_API size_t ts_cell_text(const ts_cell *cell, char *out, size_t size); /* "0F3"; like snprintf */

/* TS_OK: every stage does for each micro-batch one forward, then one backward or its two halves;
 * what a message brings is there when it is needed; sends and receives pair up and no order of
 * events ends in a deadlock, whether sends wait for their receives or not; no rank keeps more than
 * memory_max (0: no cap). Else a sentence that names the actions. */
TS_API TS_NODISCARD ts_status ts_schedule_check(const ts_schedule *schedule,
                                                const ts_schedule_costs *costs, double memory_max);
/* When everything runs if nobody waits longer than needed; begin, end (one number for each cell of
 * rank 0, then rank 1, ...) and peak (one for each rank) may be NULL. */
TS_API TS_NODISCARD ts_status ts_schedule_simulate(const ts_schedule *schedule,
                                                   const ts_schedule_costs *costs,
                                                   ts_schedule_times *out, double *begin,
                                                   double *end, double *peak);

/* Blocks in order to stages, at least one each: out[g] is how many stage g has. `cost` has a number
 * for each block, and the dearest stage is as cheap as can be; NULL: sizes differ by at most one.
 */
TS_API TS_NODISCARD ts_status ts_stage_cut(const double *cost, int64_t blocks, int64_t stages,
                                           int64_t *out);

TS_END_C
#endif
