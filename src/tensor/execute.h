/* SPDX-License-Identifier: Apache-2.0 */
/* execute.h - running plans on real blocks.
 *
 *   execute.c         one plan: local work, rounds of exchanges, sequences of collectives
 *   execute_many.c    several plans in common rounds
 *   execute_finish.c  what reductions do besides folding: powers, roots, divisions
 *
 * INV: the source is only read. Extra memory is tagged TSI_TAG_COMM and is what the plan stated:
 * the arrays between the steps of a sequence and, for p-norms, one copy of what is reduced. */
#ifndef TSI_TENSOR_EXECUTE_H
#define TSI_TENSOR_EXECUTE_H

#include "tensor/move.h"
#include "tensor/program.h"

enum { TSI_EXECUTION_HOLD = 2 };

typedef struct tsi_execution {
    ts_rank *rank;
    ts_plan *plan;
    tsi_array *from;  /* this rank's source block (an empty one outside the source mesh) */
    tsi_array *to;    /* this rank's target block, not yet filled */
    const char *name; /* for events */
    ts_work **work;   /* not NULL: the last exchange may stay in flight */
    /* Filled by the run: blocks in use by what is in flight, a reference each. */
    tsi_array *hold[TSI_EXECUTION_HOLD];
    int32_t hold_count;
    int32_t reserved;
    /* Of execute_many.c. */
    tsi_program *program;
    const tsi_array *source; /* what is sent: `from`, or its powers */
} tsi_execution;

/* [coll] over both meshes of the plan. Whatever it returns, hold[] is the caller's to release when
 * the work is complete. */
ts_status tsi_execute(tsi_execution *execution);
/* [coll] over all meshes. The plans are direct or local; exchanges of one group, dtype and
 * reduction travel together, and all exchanges of a round are in flight together. `work`, if it is
 * not NULL: of all that stays in flight, which are all rounds where they may follow each other
 * (tsi_comm_follows), else the last; set even where this fails. */
ts_status tsi_execute_many(ts_rank *rank, tsi_execution *execution, int64_t count, const char *name,
                           ts_work **work);
void tsi_execution_release(tsi_execution *execution); /* drops hold[] */

/* ---- between the files ---------------------------------------------------------------------- */
/* Everything before the exchanges: fill, powers, local copies (unless `deferred`, see
 * tsi_program_defers). Sets x->source; may add to hold[]. */
ts_status tsi_program_begin(tsi_execution *x, const tsi_program *program, bool deferred);
/* May local copies travel with the exchange, so that an asynchronous move returns at once? */
bool tsi_program_defers(const tsi_program *program);
/* Of several moves in common rounds: those that take two because replicas share the work of a sum
 * go before all others if they are the smaller part, as sums of vectors beside those of matrices.
 * Only the last round may stay in flight: it has the larger part then. From the plans alone, so
 * that all members do alike. */
typedef struct tsi_common_rounds {
    int64_t shared, others;              /* elements */
    int64_t shared_rounds, other_rounds; /* of those in which this rank takes part, the most */
} tsi_common_rounds;
void tsi_rounds_count(tsi_common_rounds *rounds, const tsi_program *program); /* one of them */
int64_t tsi_rounds_all(const tsi_common_rounds *rounds);
/* What a move has for a common round; NULL: nothing. After all were counted. */
tsi_exchange_round *tsi_rounds_at(const tsi_common_rounds *rounds, const tsi_program *program,
                                  int64_t at);
/* The plan of a move that travels with others, held. */
ts_status tsi_plan_together(ts_rank *rank, const ts_layout *from, const ts_layout *to,
                            ts_dtype dtype, ts_plan **plan);
/* Plans speak of row-major blocks: a view of another order is copied first. Retained. */
tsi_array *tsi_array_dense(ts_rank *rank, tsi_array *array);
/* Addresses of this run's arrays into the blocks of a round. */
void tsi_round_patch(tsi_exchange_round *round, const tsi_array *source, const tsi_array *to);

/* Do reductions need a last step of their own? */
bool tsi_program_finishes(const tsi_program *program);
/* After a folding round: the blocks that were results of folds. */
ts_status tsi_round_finish(ts_rank *rank, const tsi_program *program,
                           const tsi_exchange_round *round, const tsi_array *to);
/* |x|^p of the source, in a block of its own; NULL: recorded. */
tsi_array *tsi_powered(ts_rank *rank, const tsi_array *from, double power);

#endif
