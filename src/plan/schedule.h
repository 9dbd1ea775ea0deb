/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h - orders of work of a pipeline, and what its stages give each other.
 *
 *   generate, parse, search --> ts_schedule: cells per rank, compute only
 *          lower            --> ts_schedule: the same with messages, gathers and reductions
 *          step             --> tsi_step: values, queues and channels; proved, simulated, executed
 *
 * Stages are nodes of a graph whose links are tensors: a link goes from the stage that makes it to
 * all that use it, over any number of stages. On a line, link g is what stage g gives to g + 1.
 * A stage's number is above those of the stages it gets anything from, so there is no cycle. */
#ifndef TSI_PLAN_SCHEDULE_H
#define TSI_PLAN_SCHEDULE_H

#include "plan/step.h"
#include "tessera/schedule.h"

enum { TSI_SCHEDULE_CELLS_MAX = 1 << 24, TSI_SCHEDULE_GATHERED = 3 };

typedef struct tsi_schedule_list { /* of one rank */
    ts_cell *cell;
    int64_t count, capacity;
} tsi_schedule_list;

struct ts_schedule {
    int32_t ranks, stages, micros;
    bool messages;           /* sends and receives are among the cells */
    bool failed;             /* an append found no memory */
    int32_t *rank_of;        /* [stages]; -1: on no rank */
    tsi_schedule_list *list; /* [ranks] */
};

/* Stages of all ranks and no cells. */
ts_status tsi_schedule_create(int64_t ranks, int64_t stages, int64_t micros, ts_schedule **out);
/* Never fails by itself: tsi_schedule_done tells, once. */
void tsi_schedule_add(ts_schedule *schedule, int32_t rank, const ts_cell *cell);
ts_status tsi_schedule_copy(const ts_schedule *schedule,
                            ts_schedule **out); /* idle cells left out */
/* Gives it out, or destroys it where an append had failed. */
ts_status tsi_schedule_done(ts_schedule *schedule, ts_status status, ts_schedule **out);

/* Every stage is on a rank and does for each micro-batch what it must, once. */
ts_status tsi_schedule_complete(const ts_schedule *schedule);

static inline ts_cell tsi_cell_of(int32_t kind, int32_t stage, int32_t micro)
{
    return (ts_cell){ .kind = kind, .stage = stage, .micro = micro, .link = -1, .peer = -1 };
}
static inline bool tsi_cell_computes(const ts_cell *cell)
{
    return cell->kind >= TS_CELL_FORWARD && cell->kind <= TS_CELL_WEIGHT;
}
static inline bool tsi_cell_is_message(const ts_cell *cell)
{
    return cell->kind >= TS_CELL_SEND_FORWARD && cell->kind <= TS_CELL_RECEIVE_BACKWARD;
}

/* Whether the rule of that number is defined for so many stages a rank. */
bool tsi_schedule_rule_has(int64_t index, int64_t per);
/* Would ts_schedule_find know it? A file is not looked for. */
ts_status tsi_schedule_check(const char *name);

/* ---- tensors between stages (schedule_graph.c) ----------------------------------------------- */
typedef struct tsi_stage_link {
    const char *name;  /* of values in the step; NULL: "stage3" */
    const int32_t *to; /* stages that use it, ascending, all above `from` */
    int32_t from, to_count;
    int64_t bytes;
    bool gradient; /* one comes back */
} tsi_stage_link;

typedef struct tsi_stage_graph {
    int32_t stages, count;
    tsi_stage_link *link;
    int32_t *in_first, *in;   /* [stages + 1]: links into a stage */
    int32_t *out_first, *out; /* links out of it */
    tsi_arena memory;
} tsi_stage_graph;

/* `link` is copied. */
ts_status tsi_stage_graph_make(int32_t stages, const tsi_stage_link *link, int32_t count,
                               tsi_stage_graph *out);
ts_status tsi_stage_graph_line(int32_t stages, tsi_stage_graph *out);
void tsi_stage_graph_release(tsi_stage_graph *graph);

/* ---- an order in which everything can run (schedule_walk.c) ---------------------------------- */
/* Visits the cells of all ranks that are not idle, each once what it needs was visited: rounds over
 * the ranks, one cell each (two that are joined are one). Only compute needs something. Where no
 * rank can go on: a sentence with the cycle. */
typedef ts_status (*tsi_walk_fn)(void *context, int32_t rank, int64_t index, int32_t count);
ts_status tsi_schedule_walk(const ts_schedule *schedule, const tsi_stage_graph *graph,
                            tsi_walk_fn visit, void *context);

/* ---- lowering (schedule_lower.c, schedule_step.c) -------------------------------------------- */
typedef struct tsi_lower_options {
    int32_t gathered; /* stages of a rank gathered at once; 0: no gathers and reductions */
    int32_t prefetch; /* a receive stands at most so many computations before its use, or where
                         sends that wait for it need it; 0: as early as its send */
} tsi_lower_options;
ts_status tsi_schedule_lower(const ts_schedule *schedule, const tsi_stage_graph *graph,
                             const tsi_lower_options *options, ts_schedule **out);
/* The step of a lowered schedule. Activations take `activation` bytes of a stage (NULL: none). */
ts_status tsi_schedule_step(const ts_schedule *lowered, const tsi_stage_graph *graph,
                            const int64_t *activation, tsi_step **out);

/* Lowers where it must, and proves the step under sends that meet and under buffered ones. */
ts_status tsi_schedule_prove(const ts_schedule *schedule, const tsi_stage_graph *graph,
                             const tsi_lower_options *options, tsi_step **out);

/* ---- costs (schedule_time.c) ----------------------------------------------------------------- */
/* That of a stage; refused where they are neither one nor as many as stages, or no numbers. */
ts_status tsi_stage_costs(const ts_schedule_costs *costs, int32_t stages, ts_stage_cost *out);
double tsi_cell_cost(const ts_stage_cost *stage, int32_t kind);

#endif
