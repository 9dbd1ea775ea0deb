/* SPDX-License-Identifier: Apache-2.0 */
/* model_engine.h - the engine without data: it counts what a rank would receive and lets a clock
 * run.
 *
 * Bytes and messages are by information: what comes from each peer, by the class of the link to it
 * (inside a node, between nodes), whatever algorithm an engine would use. The clock is an
 * alpha-beta model: latency times the depth of a tree over the peers of a class, plus bytes over
 * bandwidth; exchanges and all_to_all pay an overhead per message instead of a tree. A rank's clock
 * does not wait for those of others: representatives of different classes run independently. */
#ifndef TSI_COMM_MODEL_MODEL_ENGINE_H
#define TSI_COMM_MODEL_MODEL_ENGINE_H

#include "comm/engine.h"

enum { TSI_LINK_NODE, TSI_LINK_NETWORK, TSI_LINK_COUNT };

typedef struct tsi_model_counts {
    double seconds;
    int64_t operations;
    int64_t messages[TSI_LINK_COUNT]; /* received */
    int64_t bytes[TSI_LINK_COUNT];    /* received */
} tsi_model_counts;

/* The machine that is modelled; per link class. */
typedef struct tsi_model_machine {
    int64_t ranks_per_node;
    double latency_s[TSI_LINK_COUNT];
    double bandwidth[TSI_LINK_COUNT]; /* bytes per second and rank */
    double overhead_s;                /* of each further message of an exchange */
} tsi_model_machine;

const tsi_engine *tsi_engine_model(void);
/* "ranks_per_node=8, latency_us=2/10, bandwidth_gb_s=200/25, overhead_us=0.2": node / network. NULL
 * or missing keys: the defaults, which are the numbers of this example. */
ts_status tsi_model_machine_parse(const char *text, tsi_model_machine *out);
/* What one operation costs the rank that calls it; a pure function of the work. Adds to *out. */
void tsi_model_cost(const tsi_model_machine *machine, const tsi_work *work, tsi_model_counts *out);
/* Lets time pass on a rank's clock. */
void tsi_model_compute(void *state, ts_rank *rank, double seconds);

#endif
