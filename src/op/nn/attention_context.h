/* SPDX-License-Identifier: Apache-2.0 */
/* attention_context.h - attention over a sequence that is cut among ranks.
 *
 *   attention_context.c   who needs what of whom
 *   attention_weigh.c     which algorithm runs
 *   attention_travel.h    gather and ring: keys and values come to the queries
 *   attention_by_heads.c  heads: the cut goes from the sequence to the heads, and back
 *
 * INV: everything here but the running is a pure function of layouts and mask, so all ranks agree
 * on what is sent without a word. */
#ifndef TSI_OP_ATTENTION_CONTEXT_H
#define TSI_OP_ATTENTION_CONTEXT_H

#include "mask/mask.h"
#include "op/nn/attention.h"

/* As in the table of algorithms, from 1. */
enum { TSI_CONTEXT_GATHER = 1, TSI_CONTEXT_RING, TSI_CONTEXT_HEADS, TSI_CONTEXT_TWO_LEVEL };
extern const tsi_algorithm tsi_attention_contexts[];

/* The members of a group that differ in `axes` alone. */
typedef struct tsi_context {
    int64_t size, me;
    tsi_span_list *queries, *keys; /* of each: positions it holds */
    tsi_span_list *sees;           /* of each: keys its queries may see, and its own */
} tsi_context;

typedef struct tsi_context_place { /* which group: that of a coordinate */
    tsi_mesh_desc *mesh;
    const int64_t *coord;
    uint32_t axes;
} tsi_context_place;

ts_status tsi_context_make(const tsi_op_call *call, const ts_layout *const *in,
                           const tsi_context_place *place, tsi_arena *arena, tsi_context *out);
/* Keys of member `from` that member `to` needs; all of its own. */
ts_status tsi_context_need(const tsi_context *c, int64_t to, int64_t from, tsi_arena *arena,
                           tsi_span_list *out);
ts_status tsi_attention_pick(const tsi_algorithm_request *request, tsi_algorithm_choice *out);
/* How often each group of keys is repeated, so that groups divide as heads do among the ranks of
 * these axes and of those that cut heads already. */
int64_t tsi_context_repeats(const tsi_op_call *call, const ts_layout *q, uint32_t axes);
int64_t tsi_context_bytes(const tsi_op_call *call, int64_t n);
/* The mask of a call, retained. */
ts_status tsi_context_mask(const tsi_op_call *call, ts_world *world, const ts_mask **out);

/* Layouts on the way to heads, retained: with each group of keys repeated, and cut as the heads of
 * q; with the cut of these axes on the heads, as the last cut of them. NULL:
 * recorded. */
const ts_layout *tsi_context_repeated(const ts_layout *layout, const ts_layout *q, int64_t repeats);
const ts_layout *tsi_context_turned(const ts_layout *layout, uint32_t axes);
uint32_t tsi_context_inner(uint32_t axes); /* the one of several that two levels turn */

/* Intervals of a list, one after the other. */
typedef struct tsi_context_walk {
    const tsi_span_list *list;
    int64_t span, step;
    int64_t begin, count;
} tsi_context_walk;
bool tsi_context_next(tsi_context_walk *walk);

ts_status tsi_context_gather(const tsi_algorithm_io *io);
ts_status tsi_context_ring(const tsi_algorithm_io *io);
ts_status tsi_context_heads(const tsi_algorithm_io *io);
ts_status tsi_context_two_level(const tsi_algorithm_io *io);

#endif
