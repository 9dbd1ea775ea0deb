/* SPDX-License-Identifier: Apache-2.0 */
/* router.h - what a router does beside choosing: its losses, room, counts and selection bias.
 *
 * INV: counts are of first forwards (a forward that runs again adds nothing), in whatever parts a
 * batch comes; they stay pending sums until somebody reads them, and tokens that several ranks have
 * count once. */
#ifndef TSI_MODEL_ROUTER_H
#define TSI_MODEL_ROUTER_H

#include "model/part.h"

typedef struct tsi_router {
    ts_model *model;
    int64_t layer;
    ts_tensor *bias;    /* [E], of choosing alone; or NULL */
    ts_module *experts; /* whose parameters are the matrices */
    tsi_router_counts counted;
    uint64_t kept_in;          /* number of the recording whose step counts; 0: none */
    int64_t *copy, copy_count; /* experts that every rank computes for its own rows, ascending */
} tsi_router;

/* What a router made of the tokens of one call. */
typedef struct tsi_routed {
    ts_tensor *logits_BTE, *scores_BTE; /* scores: each token's add up to 1 */
    ts_tensor *which_BTK, *weight_BTK;
} tsi_routed;

/* The weights with what the options ask for: room, losses that come along; counted but for `again`.
 */
ts_tensor *tsi_router_weights(tsi_router *router, const tsi_routed *routed, bool again);
/* One more of a model, which owns it. NULL: recorded. */
tsi_router *tsi_router_add(ts_model *model, int64_t layer, ts_tensor *bias);
/* Does it do any of this? */
bool tsi_router_works(const ts_model *model);
/* TS_HOOK_RESET: what a step that is abandoned counted is forgotten. */
ts_status tsi_router_reset(ts_module *m, void *router);

#endif
