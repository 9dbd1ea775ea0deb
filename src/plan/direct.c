/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c - bytes and predicted time of a direct exchange, in closed form.
 *
 * Bytes are exact (overlap.c). Time looks at the busiest rank: along every axis that cuts the
 * source, how many coordinates does one target block meet, and is the rank's own among them? From
 * these follow the number of messages and the bytes on every level of the machine; no rank is
 * enumerated, so a million ranks cost what eight cost. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/intmath.h"
#include "plan/exchange.h"
#include "plan/space.h"

typedef struct profile {
    double meets[TS_NDIM_MAX]; /* by source axis: coordinates that one target block meets */
    bool own[TS_NDIM_MAX];     /* the rank's own coordinate is surely among them */
    double largest;            /* elements of the largest target block */
    double before[TS_NDIM_MAX], after[TS_NDIM_MAX]; /* extents of the largest blocks */
} profile;

/* Does the target cut dim d by the same axes in the same way, up to and including level i? */
static bool same_prefix(const tsi_pair *pair, int32_t d, int32_t i)
{
    if (!pair->same_mesh) return false;
    for (int32_t j = 0; j <= i; j++) {
        int32_t axis = pair->src.dim_axis[d][j];
        if (j >= pair->dst.dim_count[d] || pair->dst.dim_axis[d][j] != axis) return false;
        ts_placement a = pair->src.layout->sharding->place[axis];
        ts_placement b = pair->dst.layout->sharding->place[axis];
        a.order = b.order = 0;
        if (!tsi_placement_equal(&a, &b, pair->src.mesh->size[axis])) return false;
    }
    return true;
}

static void profile_dim(const tsi_pair *pair, int32_t d, profile *out)
{
    int64_t wanted = pair->extent[d];
    for (int32_t i = 0; i < pair->dst.dim_count[d]; i++) {
        int32_t axis = pair->dst.dim_axis[d][i];
        ts_placement place = pair->dst.layout->sharding->place[axis];
        wanted = tsi_place_longest(&place, wanted, pair->dst.mesh->size[axis]);
    }
    out->largest *= (double)wanted;
    int64_t length = pair->extent[d];
    bool dense = (pair->dst.dim_plain & pair->src.dim_plain) >> d & 1u;
    for (int32_t i = 0; i < pair->src.dim_count[d]; i++) {
        int32_t axis = pair->src.dim_axis[d][i];
        int64_t n = pair->src.mesh->size[axis];
        ts_placement place = pair->src.layout->sharding->place[axis];
        int64_t below = tsi_max_i64(tsi_place_longest(&place, length, n), 1);
        int64_t meets = tsi_ceil_div(wanted, below) + (dense && wanted % below == 0 ? 0 : 1);
        if (!dense && wanted > 1) meets = n;
        if (same_prefix(pair, d, i)) {
            meets = 1;
            out->own[axis] = true;
        }
        out->meets[axis] = (double)tsi_max_i64(1, tsi_min_i64(meets, n));
        if (meets >= n) out->own[axis] = true;
        length = below;
    }
    out->before[d] = (double)length;
    out->after[d] = (double)wanted;
}

/* What the runs cost of which `bytes` are made. */
static double runs_us(const tsi_pair *pair, const profile *p, double bytes)
{
    if (pair->links->run <= 0) return 0;
    double run = tsi_run_bytes(pair->dims, p->before, p->after, (double)pair->item);
    return tsi_time_runs(pair->links, bytes, run);
}

static void profile_make(const tsi_pair *pair, profile *out)
{
    memset(out, 0, sizeof *out);
    out->largest = 1;
    for (int32_t k = 0; k < TS_NDIM_MAX; k++)
        out->meets[k] = 1;
    for (int32_t d = 0; d < pair->dims; d++)
        profile_dim(pair, d, out);
}

/* Level of an axis of the source mesh; two meshes: the outermost. */
static int32_t axis_level(const tsi_pair *pair, int32_t axis)
{
    const tsi_links *links = pair->links;
    if (!pair->same_mesh) return links->level_count - 1;
    int32_t level = 0;
    while (level < links->level_count - 1 && links->level_per_byte[level] < links->per_byte[axis])
        level++;
    return level;
}

typedef struct traffic {
    double messages[TS_TOPOLOGY_LEVELS], bytes[TS_TOPOLOGY_LEVELS];
} traffic;

static double traffic_us(const tsi_links *links, const traffic *t)
{
    double bytes = 0, latency = 0;
    for (int32_t l = 0; l < links->level_count; l++) {
        double messages = t->messages[l];
        bytes += t->bytes[l] * links->level_per_byte[l];
        if (messages <= 0) continue;
        double steps = links->hops == TS_HOPS_FLAT ? 1 + (messages - 1) / 8 : messages;
        if (links->hops == TS_HOPS_LOG) steps = log2(1 + messages);
        latency += steps * links->level_latency[l];
    }
    return bytes + latency;
}

/* What the busiest rank receives: blocks within each level are those of the axes of that level and
 * below, provided that the rank's own coordinates on the outer axes are among what it needs. */
static void receive_traffic(const tsi_pair *pair, const profile *p, traffic *out)
{
    double blocks = 1;
    memset(out, 0, sizeof *out);
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++)
        blocks *= p->meets[k];
    double each = p->largest * (double)pair->item / blocks, below = pair->same_mesh ? 1 : 0;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if ((pair->src.cut >> k & 1u) && !p->own[k]) below = 0;
    }
    for (int32_t l = 0; l < pair->links->level_count; l++) {
        double within = 1;
        for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
            if (!(pair->src.cut >> k & 1u)) continue;
            if (axis_level(pair, k) <= l)
                within *= p->meets[k];
            else if (!p->own[k])
                within = 0;
        }
        out->messages[l] = fmax(within - below, 0);
        out->bytes[l] = out->messages[l] * each;
        below = fmax(within, below);
    }
}

/* Ranks of one node with the same target block. */
static double node_mates(const tsi_pair *pair)
{
    double mates = 1;
    if (!pair->same_mesh || pair->links->node == INT64_MAX || !pair->links->node_aligned) return 1;
    for (int32_t k = 0; k < pair->dst.mesh->ndim; k++) {
        bool replicated = (pair->dst.keep & ~pair->dst.kept) >> k & 1u;
        if (replicated && axis_level(pair, k) == 0) mates *= (double)pair->dst.mesh->size[k];
    }
    return mates;
}

static void plain_cost(const tsi_pair *pair, const profile *p, tsi_direct *out)
{
    const tsi_links *links = pair->links;
    traffic t;
    receive_traffic(pair, p, &t);
    int32_t last = links->level_count - 1;
    double sent = (double)out->bound * (double)pair->item / (double)pair->src.mesh->count;
    double wire = fmax(traffic_us(links, &t), sent * links->level_per_byte[0]);
    double own = p->largest * (double)pair->item; /* and what stays is copied */
    for (int32_t l = 0; l <= last; l++) {
        out->peers_most += (int64_t)t.messages[l];
        own = fmax(own - t.bytes[l], 0);
    }
    double runs = runs_us(pair, p, p->largest * (double)pair->item);
    out->time_us = links->base + links->exchange + wire + own * links->copy + runs;
    double mates = node_mates(pair), outside = 0, inside;
    for (int32_t l = 1; l <= last; l++)
        outside += t.bytes[l];
    if (mates <= 1 || outside <= 0) return;
    inside = outside * (mates - 1) / mates;
    for (int32_t l = 1; l <= last; l++)
        t.bytes[l] /= mates;
    traffic spread = { .messages = { mates - 1 }, .bytes = { inside } };
    out->tree_us =
        links->base + 2 * links->exchange + traffic_us(links, &t) + traffic_us(links, &spread);
}

/* How many latencies one rank's messages of a reduction cost. */
static double steps_of(const tsi_links *links, double messages)
{
    if (links->hops == TS_HOPS_LOG) return log2(1 + messages);
    return links->hops == TS_HOPS_FLAT ? 1 + messages / 8 : messages;
}

static double slowest(const tsi_pair *pair, uint32_t axes, double *latency)
{
    double per_byte = 0;
    *latency = 0;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if (!(axes >> k & 1u)) continue;
        int32_t level = axis_level(pair, k);
        per_byte = fmax(per_byte, pair->links->level_per_byte[level]);
        *latency = fmax(*latency, pair->links->level_latency[level]);
    }
    return per_byte;
}

/* Terms to owners, results to the rest; both are balanced over the ranks by the way owners are
 * chosen. */
static void reduce_cost(const tsi_pair *pair, const profile *p, tsi_direct *out)
{
    const tsi_links *links = pair->links;
    double ranks = (double)pair->dst.mesh->count, owned = 1, others = 1, latency;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if (!(pair->src.cut >> k & 1u)) continue;
        if (pair->same_mesh && !(pair->dst.cut >> k & 1u))
            others *= p->meets[k];
        else
            owned *= p->meets[k];
    }
    double wanted = (double)pair->count, kept = 1, free = 1;
    for (int32_t k = 0; k < pair->dst.mesh->ndim; k++) {
        if (pair->dst.kept >> k & 1u)
            kept *= (double)pair->dst.mesh->size[k];
        else if ((pair->dst.keep & ~pair->src.cut) >> k & 1u)
            free *= (double)pair->dst.mesh->size[k];
    }
    wanted *= kept;
    double results = wanted * ((double)pair->dst.replicas - 1);
    double terms = fmax((double)out->bound - results, 0);
    double bytes = terms / ranks * (double)pair->item;
    uint32_t cut = pair->src.cut;
    double per_byte = slowest(pair, pair->src.term | (cut & pair->dst.cut), &latency);
    double messages = fmax(owned * (double)pair->src.terms - 1, 0);
    double steps = steps_of(links, messages);
    out->time_us =
        links->base + links->exchange + steps * latency + bytes * (per_byte + links->reduce);
    if (results <= 0) /* its own term is combined, too */
        out->time_us += runs_us(pair, p, bytes + p->largest * (double)pair->item);
    out->peers_most = (int64_t)messages;
    if (results <= 0) return;
    per_byte = slowest(pair, pair->dst.keep & ~pair->dst.kept, &latency);
    messages = fmax(free * others - 1, 1);
    steps = steps_of(links, messages);
    out->time_us +=
        links->exchange + steps * latency + results / ranks * (double)pair->item * per_byte;
    out->peers_most += (int64_t)messages;
}

ts_status tsi_direct_cost(const tsi_pair *pair, tsi_direct *out)
{
    memset(out, 0, sizeof *out);
    out->tree_us = HUGE_VAL;
    TSI_TRY(tsi_pair_bound(pair, &out->bound));
    profile p;
    profile_make(pair, &p);
    if (out->bound == 0) {
        double bytes = p.largest * (double)pair->item;
        out->time_us = pair->links->local + bytes * pair->links->copy + runs_us(pair, &p, bytes);
    } else if (pair->src.terms > 1) {
        reduce_cost(pair, &p, out);
    } else {
        plain_cost(pair, &p, out);
    }
    return TS_OK;
}
