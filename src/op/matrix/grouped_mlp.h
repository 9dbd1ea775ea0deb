/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp.h - what the files of the experts' feed-forward share.
 *
 *   x [M.., C]  which [M.., K]  weight [M.., K]  in [E, 2, F, C]  out [E, C, F]   ->   y [M.., C]
 *
 *   grouped_mlp.c            shapes, rules, the gradient
 *   grouped_mlp_reference.c  the same as plain loops
 *   grouped_mlp_local.c      the products of rows that are here, and their gradients
 *   grouped_mlp_weigh.c      the algorithms' bytes and times, and which of them runs
 *   grouped_mlp_exchange.c   rows to the ranks that hold their experts, and results back
 *   grouped_mlp_whole.c      all rows of a group, with nothing for the host to know
 *   grouped_passage.c        what one such call knows and moves
 *   grouped_route.c          who sends which rows to whom: pure */
#ifndef TSI_OP_MATRIX_GROUPED_MLP_H
#define TSI_OP_MATRIX_GROUPED_MLP_H

#include "op/op.h"
#include "tensor/move.h"

typedef struct tsi_mlp_attributes {
    int32_t activation; /* place in tsi_mlp_activations */
    int32_t algorithm;  /* 0: by cost, else of the operator's list */
    int32_t skips;      /* a choice of -1 is none */
} tsi_mlp_attributes;

/* f(scale x) / scale; NULL: x itself. */
typedef struct tsi_mlp_activation {
    const tsi_op_desc *op;
    double scale;
} tsi_mlp_activation;
extern const tsi_mlp_activation tsi_mlp_activations[];

/* Operands of the forward; those of the gradient are dy, then these. */
enum { TSI_MLP_X, TSI_MLP_WHICH, TSI_MLP_WEIGHT, TSI_MLP_IN, TSI_MLP_OUT, TSI_MLP_INPUTS };
enum { TSI_MLP_DX, TSI_MLP_DWEIGHT, TSI_MLP_DIN, TSI_MLP_DOUT, TSI_MLP_GRADS };

enum { TSI_MLP_ROWS = 1, TSI_MLP_NODES, TSI_MLP_GATHER }; /* algorithms, from 1 */
extern const tsi_algorithm tsi_mlp_algorithms[];          /* of both operators */

ts_status tsi_mlp_reference(const tsi_kernel_io *io); /* of both (grouped_mlp_reference.c) */

/* ---- grouped_mlp_weigh.c --------------------------------------------------------------------- */

/* The axes that cut both rows and experts: over them rows have to move. */
uint32_t tsi_mlp_axes(const ts_layout *x, const ts_layout *in);
/* The node of each member, from the world's topology; NULL: the group lies in one. */
ts_status tsi_mlp_nodes(tsi_mesh_desc *mesh, ts_group *group, tsi_arena *arena, int64_t **out);
int64_t tsi_mlp_bytes(const tsi_op_call *call, int64_t n);
ts_status tsi_mlp_pick(const tsi_algorithm_request *request, tsi_algorithm_choice *out);

/* ---- grouped_mlp_exchange.c ------------------------------------------------------------------ */

/* A block of this rank as its part of output o, which is pending over `axes`. */
ts_tensor *tsi_mlp_part(const tsi_algorithm_io *io, ts_tensor *block, int32_t o, uint32_t axes,
                        tsi_move *move /* takes */);

/* ---- grouped_mlp_whole.c --------------------------------------------------------------------- */

/* Is it the device alone that can read choices, and does the operator go without them? */
bool tsi_mlp_defers(const ts_world *world, const tsi_mlp_attributes *attributes);
/* The operator on rows of the whole group; results of rows are pending over `summed`. */
ts_status tsi_mlp_whole(const tsi_algorithm_io *io, ts_tensor *const *in, uint32_t summed,
                        ts_tensor **out);

/* ---- grouped_mlp_local.c: all on one mesh, of operators -------------------------------------- */

/* The activation of the gate, times up. */
ts_tensor *tsi_mlp_gate(int32_t activation, ts_tensor *gate, ts_tensor *up);
/* Its gradients. */
ts_status tsi_mlp_gate_grad(int32_t activation, ts_tensor *const gate_up[2], ts_tensor *dy,
                            ts_tensor *d[2]);

/* Rows [S, C], each with the expert [S] it goes to and a weight [S]. */
typedef struct tsi_mlp_rows {
    ts_tensor *x, *expert, *weight;
    ts_tensor *in, *out; /* [E, 2F, C], [E, C, F] */
    int32_t activation;
    /* The matrices are a cut of all experts': products with them, zero for rows of others, go on
     * as values of this rank. Rows may then be of several dims, [.., C]. */
    bool terms;
} tsi_mlp_rows;
ts_tensor *tsi_mlp_product(const tsi_mlp_rows *rows); /* [S, C] */
/* The gradients in three steps, so that what they need may come late. */
typedef struct tsi_mlp_back {
    const tsi_mlp_rows *rows;
    ts_tensor *dy;                             /* [S, C], before the second step */
    ts_tensor *gate_up[2], *gated, *gate_up_d; /* [S, F], [S, F], [S, 2F] */
} tsi_mlp_back;
ts_status tsi_mlp_back_begin(tsi_mlp_back *b);                             /* the first product */
ts_status tsi_mlp_back_rows(tsi_mlp_back *b, ts_tensor *d[TSI_MLP_GRADS]); /* dx, dweight */
ts_status tsi_mlp_back_experts(tsi_mlp_back *b, ts_tensor *d[TSI_MLP_GRADS]); /* din, dout */

#endif
