/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_passage.h - one call of the experts' feed-forward that is cut over ranks: who has which
 * rows, who gets them, and the tensors of this rank alone that products are made of.
 *
 *   grouped_passage.c        choices of all members, the route, rows by expert
 *   grouped_passage_rows.c   rows there and back, and one number for each choice
 *
 * INV: lists are functions of all members' choices; both ends of an exchange make the same. */
#ifndef TSI_OP_MATRIX_GROUPED_PASSAGE_H
#define TSI_OP_MATRIX_GROUPED_PASSAGE_H

#include "base/arena.h"
#include "op/core/algorithm.h"
#include "op/matrix/grouped_mlp.h"
#include "op/matrix/grouped_route.h"
#include "tensor/move.h"

typedef struct tsi_passage {
    const tsi_algorithm_io *io;
    ts_tensor *const *in; /* the forward's operands, as they are used */
    ts_group *group;      /* that exchanges; NULL: nobody */
    int64_t size;         /* of it */
    uint32_t axes;        /* of the mesh, that it goes along */
    int64_t rows, width, choices;
    ts_mesh *self;
    tsi_arena arena;
    tsi_route route;
    int64_t slots, own;    /* choices that come here; of this rank's rows: they are the first */
    ts_tensor *row, *slot; /* of them, by expert: the held row, the place they came in */
    ts_tensor *token;      /* of the own ones: the row at home */
    tsi_mlp_rows product;
} tsi_passage;

/* Rows move over `axes`; 0: what is here meets the experts that are here. */
ts_status tsi_passage_begin(tsi_passage *p, uint32_t axes, bool nodes);
ts_status tsi_passage_status(const tsi_passage *p);

/* ---- tensors of this rank alone -------------------------------------------------------------- */

ts_tensor *tsi_passage_room(const tsi_passage *p, ts_dtype dtype, ts_shape shape);
ts_tensor *tsi_passage_zeros(const tsi_passage *p, ts_dtype dtype, ts_shape shape);
/* Of memory that outlives the call's tensors. */
ts_tensor *tsi_passage_index(const tsi_passage *p, int64_t *data, int64_t count);
/* This rank's block of a tensor of rows, dense: [rows, length]. */
ts_tensor *tsi_passage_block(const tsi_passage *p, ts_tensor *t, int64_t length);
/* Rows that share a place added up, in their order: [count, ..]; rounded once. */
ts_tensor *tsi_passage_sum(const tsi_passage *p, ts_tensor *rows, ts_tensor *place, int64_t count);

/* ---- rows there and back --------------------------------------------------------------------- */

typedef struct tsi_bringing { /* of rows to the ranks of their experts */
    ts_tensor *rows, *held;   /* here, [rows, C]; what comes here, [held, C] */
    ts_work *work;
} tsi_bringing;

/* Begins; the rows of this rank that its own experts want come along `with_own`, else their places
 * stay empty. tsi_passage_brought ends it, whatever happened. */
ts_status tsi_passage_bring(tsi_passage *p, ts_tensor *t, bool with_own, tsi_bringing *b);
ts_tensor *tsi_passage_brought(tsi_passage *p, tsi_bringing *b); /* [held, C] */
ts_tensor *tsi_passage_bring_weights(tsi_passage *p);            /* [slots] */
/* What holders made of rows, [held, C], at home: the block of an output, on its way while there is
 * a move. */
ts_tensor *tsi_passage_return(tsi_passage *p, ts_tensor *back, const ts_shape *block,
                              tsi_move **move);
/* The same of one number for each choice, [slots]. */
ts_tensor *tsi_passage_return_weights(tsi_passage *p, ts_tensor *made, const ts_shape *block);

#endif
