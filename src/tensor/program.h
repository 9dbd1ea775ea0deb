/* SPDX-License-Identifier: Apache-2.0 */
/* program.h - a plan compiled for one rank: what to copy here, what to exchange with whom, ready to
 * run again.
 *
 * A direct plan is one program; a sequence of collectives is one program per step. Blocks are kept
 * as offsets into the source and target arrays; a run only adds the arrays' addresses. Programs are
 * cached per rank, bounded. */
#ifndef TSI_TENSOR_PROGRAM_H
#define TSI_TENSOR_PROGRAM_H

#include "plan/plan.h"
#include "tensor/tensor.h"

enum { TSI_PROGRAM_CACHE = 256 }; /* places in tsi_tensor_state.program */

typedef struct tsi_exchange_round {
    ts_part *send,
        *recv; /* peers are members of the group; data is an offset until a run patches it */
    int64_t *send_offset, *recv_offset; /* in elements */
    uint8_t *send_from_target;          /* results of a fold are sent on from the target array */
    int64_t send_count, recv_count;
    int64_t send_all,
        recv_all; /* with local copies as blocks from the rank to itself, at the end */
    int32_t reduces, reserved;
} tsi_exchange_round;

typedef struct tsi_program {
    ts_plan *plan;                /* retained */
    ts_group *group;              /* all ranks that exchange; retained by its owner */
    ts_mesh *src_mesh, *dst_mesh; /* borrowed from the rank's handles */
    tsi_part part;                /* local copies, fill, norm power, division */
    tsi_exchange_round *round;
    int64_t round_count;
    int64_t references;
    int32_t member; /* this rank takes part */
    uint32_t used;  /* for eviction */
    tsi_arena memory;
} tsi_program;

/* The program of a direct (or local) plan on this rank; cached, borrowed until the next call. NULL:
 * recorded. */
tsi_program *tsi_program_of(ts_rank *rank, ts_plan *plan);
tsi_program *tsi_program_get(ts_rank *rank, ts_plan *plan); /* the same, held */
void tsi_program_release(tsi_program *program);             /* accepts NULL */
void tsi_programs_release(tsi_tensor_state *state);

#endif
