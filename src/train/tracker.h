/* SPDX-License-Identifier: Apache-2.0 */
/* tracker.h - whose the memory of a rank is when it holds most, and what went on then. */
#ifndef TSI_TRAIN_TRACKER_H
#define TSI_TRAIN_TRACKER_H

#include "array/pool.h"
#include "base/hash.h"
#include "base/observe.h"
#include "runtime/record.h"
#include "tessera/train.h"

typedef struct tsi_tracker_row {
    char name[64];
    int64_t now[TS_MEMORY_KINDS], then[TS_MEMORY_KINDS]; /* `then`: at the peak, if noted for it */
    int64_t noted;                                       /* the peak that `then` is of */
} tsi_tracker_row;

typedef struct tsi_tracker_block {
    int64_t bytes;
    int32_t row, kind;
    int64_t free; /* 1 + the next block that is none any more */
} tsi_tracker_block;

/* Watches the pool of a rank, of a world without data too. */
typedef struct tsi_tracker {
    ts_rank *me;
    tsi_pool *pool; /* NULL: nothing is watched */
    tsi_pool_watch watch;
    tsi_observer hears;
    const char *phase; /* what goes on while no backward does */
    tsi_map there;     /* memory -> 1 + its block */
    tsi_tracker_block *block;
    int64_t block_count, block_capacity, free;
    tsi_map labels; /* label -> 1 + its row */
    tsi_tracker_row *row;
    int64_t row_count, row_capacity;
    int64_t peak, peaks;           /* bytes; how many there were */
    int64_t step, peak_step;       /* a peak of an older step gives way to one as high */
    int64_t kind[TS_MEMORY_KINDS]; /* of the whole pool, at the peak */
    const char *peak_phase, *peak_label, *peak_op;
    int32_t peak_kind;
    bool op_pending; /* who took the memory is told when it has ended */
    ts_status status;
} tsi_tracker;

/* Rows are those of the model's parameters, declared or there; by the rank's thread. */
ts_status tsi_tracker_begin(tsi_tracker *t, ts_rank *me, ts_module *root);
/* From here on it is another step: what was taken before is of no module, but for states. */
void tsi_tracker_step(tsi_tracker *t, const char *phase);
void tsi_tracker_phase(tsi_tracker *t, const char *phase); /* outside of backward; a literal */
/* Whose states are, and the account; it watches no more, and is empty. `optimizer` may be NULL. */
ts_status tsi_tracker_end(tsi_tracker *t, ts_module *root, ts_optimizer *optimizer,
                          ts_train_peak *out);
void tsi_tracker_release(tsi_tracker *t); /* on any way out */

#endif
