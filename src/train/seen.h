/* SPDX-License-Identifier: Apache-2.0 */
/* seen.h - one step in pictures: time of all ranks, memory of this one. */
#ifndef TSI_TRAIN_SEEN_H
#define TSI_TRAIN_SEEN_H

#include <stdbool.h>

#include "base/observe.h"
#include "tessera/train.h"
#include "train/tracker.h"

/* Memory by kind after each call of an operator; also of a world without data. */
typedef struct tsi_curve {
    ts_rank *me;
    tsi_observer hears;
    ts_train_curve *curve;
    int64_t calls, stride; /* calls to a point */
} tsi_curve;
ts_status tsi_curve_begin(tsi_curve *c, ts_rank *me, ts_train_curve *out);
void tsi_curve_end(tsi_curve *c);

enum { TSI_SEEN_CELLS = 480, TSI_SEEN_SPANS = 512, TSI_SEEN_WAITS = 100 };
typedef struct tsi_seen_span {
    int64_t from_ns, to_ns;
    int32_t phase;
} tsi_seen_span;

typedef struct tsi_seen {
    ts_rank *me;
    bool watching;
    int64_t begin_ns, end_ns;
    uint64_t event, event_last;
    tsi_seen_span span[TSI_SEEN_SPANS];
    int32_t span_count;
    unsigned char *cell;  /* [rank][TSI_SEEN_CELLS]: 0 nothing, 1 + phase, or TSI_SEEN_WAITS */
    ts_train_curve *held; /* memory */
    tsi_curve curve;
    tsi_tracker tracker;
    ts_train_peak *peak; /* its largest moment */
} tsi_seen;
ts_status tsi_seen_begin(tsi_seen *w, ts_rank *me, ts_module *root);
/* What the rank did in a while; nothing unless a step is watched. */
void tsi_seen_phase(tsi_seen *w, int32_t phase, int64_t from_ns, int64_t to_ns);
/* [coll] Rows of all ranks. */
ts_status tsi_seen_end(tsi_seen *w, ts_group *all, ts_module *root, ts_optimizer *optimizer);
void tsi_seen_release(tsi_seen *w);

#endif
