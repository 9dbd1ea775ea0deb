/* SPDX-License-Identifier: Apache-2.0 */
/* attention_travel.h - what gather and ring share: one call of attention over a cut sequence, in
 * which keys and values come to the queries.
 *
 *   attention_travel.c   beginning, messages of keys and values, the kernel
 *   attention_gather.c   all that I see at once; one run of the kernel
 *   attention_ring.c     from one member after the other, or read where it lies with each
 *
 * INV: rows that a member does not see are not sent to it. */
#ifndef TSI_OP_ATTENTION_TRAVEL_H
#define TSI_OP_ATTENTION_TRAVEL_H

#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/core/kernel.h"
#include "op/nn/attention_context.h"
#include "tessera/comm.h"

enum { TSI_Q, TSI_K, TSI_V }; /* inputs of attention and of its gradient */

typedef struct tsi_travel {
    const tsi_algorithm_io *io;
    tsi_context c;
    tsi_arena arena;
    tsi_span_list *need;           /* of each member's keys, what I see */
    const tsi_rank_device *device; /* mine */
    ts_dtype sum;                  /* of partial results: f32, or f64 */
    tsi_region region[TSI_INPUT_MAX];
    tsi_block in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    bool backward;
} tsi_travel;

/* The parts of one side of an exchange. */
typedef struct tsi_travel_parts {
    ts_part *part;
    int64_t count, room;
} tsi_travel_parts;

/* Runs one of the algorithms on a call: blocks of outputs, their tensors. */
ts_status tsi_travel_run(const tsi_algorithm_io *io, ts_status (*run)(tsi_travel *t));

ts_status tsi_travel_room(tsi_travel *t, int64_t room, tsi_travel_parts *out);
/* Rows [first, first + count) of dim 2 of a block. */
void tsi_travel_add(tsi_travel_parts *to, const tsi_block *block, int64_t peer, int64_t first,
                    int64_t count);
/* My rows that a member needs: its keys, then its values, interval by interval; and what comes from
 * a member into rows that hold the keys of `list`. */
ts_status tsi_travel_send(tsi_travel *t, int64_t to, tsi_travel_parts *out);
void tsi_travel_recv(tsi_travel *t, int64_t from, const tsi_span_list *list,
                     const tsi_block block[2], tsi_travel_parts *out);
/* The exchange of such parts; `reduce`: of receive parts that combine. work NULL: it is waited for.
 */
typedef struct tsi_travel_round {
    const tsi_travel_parts *send, *recv;
    ts_dtype dtype;
    ts_reduce reduce;
} tsi_travel_round;
ts_exchange tsi_travel_exchange(const tsi_travel *t, const tsi_travel_round *round);
ts_status tsi_travel_go(tsi_travel *t, const tsi_travel_round *round, ts_work **work);

/* Two arrays [B, G, rows, D] and [B, G, rows, E]. */
ts_status tsi_travel_rows(tsi_travel *t, int64_t rows, ts_dtype dtype, tsi_array *array[2],
                          tsi_block block[2]);
/* One run of the kernel: my queries against keys and values that stand at the positions of a list;
 * results of any dtype, joined to what they hold if `adds`. */
typedef struct tsi_travel_keys {
    const tsi_block *kv; /* two */
    const tsi_span_list *list;
    bool adds;
} tsi_travel_keys;
ts_status tsi_travel_kernel(tsi_travel *t, const tsi_travel_keys *keys, const tsi_block *result);
/* Sums of gradients of my keys into the outputs, in their dtype. */
ts_status tsi_travel_settle(tsi_travel *t, const tsi_block sums[2]);

/* The ring, reading keys and values of members where they lie; only where they can. */
bool tsi_travel_in_place(const tsi_algorithm_io *io);
ts_status tsi_ring_in_place(tsi_travel *t);

#endif
