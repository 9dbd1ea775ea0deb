/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_route.h - who sends which rows to whom, so that each row reaches the ranks that hold its
 * experts once, whatever number of them is there.
 *
 *   leg 0   home -> a holder of one of its experts        y  <- fold over holders
 *   leg 1   that holder -> others of its node             its partial sum <- fold over them
 *
 * Without nodes there is no leg 1. A row crosses to another node once: the first holder there that
 * gets it passes it on, and what the node makes of it comes back as one row.
 *
 * INV: a pure function of all members' choices, which everybody knows: no counts are sent. Both
 * ends of a leg list their rows in the order of (home, row). */
#ifndef TSI_OP_MATRIX_GROUPED_ROUTE_H
#define TSI_OP_MATRIX_GROUPED_ROUTE_H

#include <stdbool.h>

#include "base/arena.h"
#include "tessera/status.h"

typedef struct tsi_route_request {
    int64_t size, me;    /* members; which of them asks */
    int64_t choices;     /* of each row */
    const int64_t *rows; /* [size] of each member */
    /* Experts: of all rows of member 0, then of member 1, ...; -1: none. NULL: there is no data,
     * and choices that stand for it are counted. */
    const int32_t *which;
    int64_t experts;
    const int64_t *owner; /* [experts]: the member that holds it, or -1: none of these */
    const int64_t *node;  /* [size] of each member; NULL: all are neighbours */
} tsi_route_request;

/* Lists of rows and choices are NULL where nothing but counts is known. */
typedef struct tsi_route_leg {
    int64_t *out_first; /* [size + 1]: where those for a member begin */
    int64_t *out_row;   /* which of my rows: at home, or among those I hold */
    int64_t *in_first;  /* [size + 1]: where those from a member begin, among those I hold */
} tsi_route_leg;

typedef struct tsi_route {
    int64_t size, held; /* held: rows that come to me */
    tsi_route_leg leg[2];
    int64_t *slot_out_first, *slot_out; /* my choices (row * choices + k) by holder */
    int64_t *slot_in_first;
    int64_t *slot_row, *slot_expert; /* of choices that come to me: the held row, the expert */
    bool has_second;
} tsi_route;

ts_status tsi_route_make(const tsi_route_request *request, tsi_arena *arena, tsi_route *out);

/* What stands for a choice where no data is: spread over the experts, no two of a row alike as long
 * as there are enough. Of many rows the first few stand for all. */
int32_t tsi_route_modelled(int64_t member, int64_t row, int64_t choice, int64_t experts);

#endif
