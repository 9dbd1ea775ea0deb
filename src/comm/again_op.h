/* SPDX-License-Identifier: Apache-2.0 */
/* again_op.h - one operation of a recorded step, for the files that issue it: again.c as it was or
 * with others (buckets), again_parts.c in parts. */
#ifndef TSI_COMM_AGAIN_OP_H
#define TSI_COMM_AGAIN_OP_H

#include "comm/again.h"

typedef struct again {
    tsi_call call; /* of one operation: group, options, blocks; its lists are copies */
    void *lists;
    char *name;
    const char *where;
    ts_rank *rank;
    ts_work *work; /* under way; NULL: it is not, or the caller waits in the call */
    uint64_t event[TSI_PARTS_LIVE]; /* in the rank's ring, of its latest run, by parts; 0: none */
    bool posted;                    /* the caller waits later */
    /* Of operations that go as one: the last of them, which takes all along, and the next one. Of
     * the last: the first, where the elements of all lie side by side (NULL: they stay where they
     * are), and the epoch of which it was agreed: after it some ranks may know of newer orders, so
     * each goes alone. */
    struct again *with, *next, *first;
    char *room;
    uint64_t epoch;
    /* In parts: how many, as it was agreed in `parts_epoch` (0: whole), how many have begun in this
     * run, and those behind the first that are under way. */
    int32_t parts, begun;
    uint64_t parts_epoch;
    ts_work *more[TSI_PARTS_LIVE - 1];
} again;

/* ---- as an exchange -------------------------------------------------------------------------- */
typedef struct tsi_exchange_lists {
    ts_part *send, *recv;
    int64_t send_count, recv_count;
} tsi_exchange_lists;
/* Adds the most parts that an operation has. */
void tsi_exchange_room(const tsi_work *work, int64_t *sends, int64_t *recvs);
/* What it gives to each member and gets from it; terms fold in the order of members. */
void tsi_exchange_add(tsi_exchange_lists *to, const tsi_work *work);
/* The call becomes an exchange of these lists, which stay until it was issued. */
void tsi_exchange_become(tsi_call *call, const tsi_exchange_lists *lists);

/* ---- parts ----------------------------------------------------------------------------------- */
/* In how many it goes now; 0: whole. */
int32_t tsi_again_parts(const again *a);
/* Issues the next one; its handle is in a->work or a->more. */
ts_status tsi_again_next_part(again *a);
/* The kept work that begins the next one, where there is one. */
ts_status tsi_again_part_run(void *context);

#endif
