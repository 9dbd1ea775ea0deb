/* SPDX-License-Identifier: Apache-2.0 */
/* list.h - what the list forms share: checks of lists, moves before anything is written, norms. */
#ifndef TSI_OP_LIST_H
#define TSI_OP_LIST_H

#include "op/op.h"

/* News (base/observe.h): items of lists are changed where they lie. */
typedef struct tsi_listed {
    const char *name; /* of the form */
    const char *of;   /* the parameter's, where it is one; else NULL */
    const ts_list *lists;
    int32_t count;
    uint32_t written; /* bit per list; the others were read */
    int32_t by_calls; /* 1: item by item, by calls of an operator that tapes know */
    int32_t reserved;
} tsi_listed;

/* All lists have the count of the first, no item is missing, all on one rank: *rank. An empty list
 * is fine: *rank is NULL. `name` is that of the form. */
ts_status tsi_list_check(const char *name, const ts_list *lists, int32_t count, ts_rank **rank);

/* May all items be written? Asked before any of them is. */
ts_status tsi_list_writable(const char *name, ts_list list);

/* Has nobody who hears of it anything against changing list 0 in place? Asked before any of it is
 * changed. */
ts_status tsi_list_ask(const char *name, const ts_list *lists, int32_t count, bool by_calls);

/* `x` in the layout of `like`: itself, or a new tensor of the innermost scope. The caller has asked
 * the policy; `implicit` as in tsi_moved. NULL: recorded. */
ts_tensor *tsi_list_moved(const char *name, ts_tensor *x, const ts_tensor *like, bool implicit);
/* May x be moved to the layout of `like` implicitly? Equal shapes, the policy of the scope. */
ts_status tsi_list_movable(const char *name, int64_t item, ts_tensor *x, ts_tensor *like);

/* ---- the total norm (list_norm.c): squares stay on the device until they are asked for ------- */
/* Sums of squares of local blocks, by the mesh and the axes that cut them: each is reduced over
 * those axes once. */
enum { TSI_NORM_MASKS = 64 };
typedef struct tsi_norm_sums { /* zero: empty */
    int32_t count, reserved;
    ts_mesh *mesh[TSI_NORM_MASKS];
    uint32_t axes[TSI_NORM_MASKS];
    ts_rank *rank;
    struct tsi_norm_item *item; /* private */
    int64_t items, capacity;
} tsi_norm_sums;
/* Of a tensor that is ready and not partial; its block is read by tsi_norm_total. */
ts_status tsi_norm_add(tsi_norm_sums *sums, ts_tensor *x);
/* [coll] The sums of squares, one f64 for each way tensors lie, on the rank's device; the host
 * waits for nothing but what a reduction over ranks waits for. NULL: recorded. */
tsi_array *tsi_norm_squares(tsi_norm_sums *sums);
/* [coll] One kernel for all blocks, one reduction for each way they lie; the host waits once. */
ts_status tsi_norm_total(tsi_norm_sums *sums, double *squares);
void tsi_norm_drop(tsi_norm_sums *sums); /* what tsi_norm_add holds; may follow either */

#endif
