/* SPDX-License-Identifier: Apache-2.0 */
/* collective_cost.c - see collective_cost.h. Latencies are microseconds, bandwidths 1e9 bytes/s. */
#include "plan/collective_cost.h"

#include <math.h>
#include <stdbool.h>

#include "base/error.h"

enum { RING, TREE, ALGORITHMS };
enum { LL, LL128, SIMPLE, PROTOCOLS };

static const char *const algorithm_names[] = { "ring", "tree" };
static const char *const protocol_names[] = { "LL", "LL128", "Simple" };
static const double base_us[ALGORITHMS][PROTOCOLS] = { { 6.6, 14.0, 8.4 }, { 6.8, 14.0, 8.4 } };
static const double nvlink_us[ALGORITHMS][PROTOCOLS] = { { 0.6, 1.9, 3.4 }, { 0.6, 1.25, 4.0 } };
static const double network_us[ALGORITHMS][PROTOCOLS] = { { 2.7, 4.0, 14.0 }, { 5.0, 8.5, 14.0 } };
static const double nvlink_gb[] = { 120, 240, 370, 720 };
static const double network_gb[] = { 12, 25, 50, 50 };

typedef struct site { /* where the group lies */
    double ranks, nodes, bus;
    int32_t reach; /* 0: one node, 1: two, 2: more */
} site;

static site site_of(tsi_nvidia machine, int64_t ranks, int64_t per_node)
{
    double nodes = ceil((double)ranks / (double)per_node);
    return (site){ .ranks = (double)ranks,
                   .nodes = nodes,
                   .bus = nodes > 1 ? network_gb[machine] : nvlink_gb[machine],
                   .reach = nodes > 2 ? 2 : nodes > 1 };
}

/* What is left of the bus by protocol. */
static double capped(const site *s, int32_t algorithm, int32_t protocol)
{
    static const double ll_cap[] = { 141, 39, 20.4 }, tree_channel[] = { 38.7, 41.4, 36 };
    enum { CHANNELS = 16 };
    bool ring = algorithm == RING;
    if (protocol == LL) return fmin(ll_cap[s->reach], s->bus / (ring ? 2 : 3.8));
    if (protocol == LL128) return fmin(s->bus * (ring ? 120.0 / 128 : 7.0 / 9), CHANNELS * 36.7);
    return ring ? s->bus : fmin(0.92 * s->bus, CHANNELS * tree_channel[s->reach]);
}

/* Medium messages do not fill a tree: by powers of two from 64 bytes on. */
static double tree_share(int32_t protocol, double bytes)
{
    enum { SIZES = 23 };
    static const double share[PROTOCOLS][SIZES] = { { 1,  1,  1,  1,  .9, .8, .7, .7,
                                                      .7, .7, .6, .5, .4, .4, .5, .6,
                                                      .7, .8, .9, 1,  1,  1,  1 },
                                                    { 1,  1,  1,  1,  1,  .9, .8, .8,
                                                      .8, .7, .6, .6, .6, .6, .6, .6,
                                                      .8, .9, .9, .9, .9, 1,  1 },
                                                    { .9, .9, .9, .9, .9, .9, .9, .8,
                                                      .7, .6, .6, .5, .5, .5, .5, .6,
                                                      .7, .8, .7, .7, .8, .9, .9 } };
    double power = bytes >= 64 ? floor(log2(bytes / 64)) : 0;
    return power < SIZES ? share[protocol][(int32_t)power] : 1;
}

/* Steps of a ring, those between nodes among them, and bytes a second of the whole tensor. */
static double ring_us(const site *s, tsi_collective kind, int32_t protocol, double bytes)
{
    bool twice = kind == TSI_COLLECTIVE_ALL_REDUCE, message = kind == TSI_COLLECTIVE_MESSAGE;
    double k = message ? 1 : (s->ranks - 1) * (twice ? 2 : 1);
    double x = message ? s->nodes > 1 : (s->nodes - 1) * (twice ? 2 : 1);
    double intra = nvlink_us[RING][protocol], bus = capped(s, RING, protocol);
    if (s->nodes > 1) intra = fmax(intra, protocol == SIMPLE ? 3 : 1);
    double rate =
        message ? bus : bus * s->ranks / (kind == TSI_COLLECTIVE_ALL_TO_ALL ? s->ranks - 1 : k);
    return base_us[RING][protocol] + (k - x) * intra + x * network_us[RING][protocol] +
           bytes / (rate * 1e3);
}

static double tree_us(const site *s, int32_t protocol, double bytes)
{
    double intra = nvlink_us[TREE][protocol];
    if (s->nodes > 1) intra = fmax(intra, protocol == SIMPLE ? 3 : 1);
    double hops = 2 * ((s->ranks / s->nodes - 1) * intra +
                       floor(log2(s->nodes)) * network_us[TREE][protocol]);
    double rate = capped(s, TREE, protocol) / 2 * tree_share(protocol, bytes);
    return base_us[TREE][protocol] + hops + bytes / (rate * 1e3);
}

tsi_collective_cost tsi_collective_cost_of(tsi_nvidia machine, tsi_collective kind, int64_t ranks,
                                           int64_t per_node, double bytes)
{
    TSI_ASSERT(machine < TSI_NVIDIA_COUNT && ranks > 0 && per_node > 0);
    tsi_collective_cost best = { HUGE_VAL, "", "" };
    site s = site_of(machine, ranks, per_node);
    if (ranks == 1) return (tsi_collective_cost){ 0, "none", "none" };
    for (int32_t a = 0; a < ALGORITHMS; a++) {
        if (a == TREE && kind != TSI_COLLECTIVE_ALL_REDUCE) continue;
        for (int32_t p = 0; p < PROTOCOLS; p++) {
            if (p == LL128 && s.nodes > 1) continue; /* not used between nodes */
            double us = a == RING ? ring_us(&s, kind, p, bytes) : tree_us(&s, p, bytes);
            if (us < best.us)
                best = (tsi_collective_cost){ us, algorithm_names[a], protocol_names[p] };
        }
    }
    return best;
}

double tsi_collective_floor(tsi_nvidia machine, tsi_collective kind, int64_t ranks,
                            int64_t per_node, double share)
{
    site s = site_of(machine, ranks, per_node);
    double latency = tsi_collective_cost_of(machine, kind, ranks, per_node, 0).us;
    return share / (1 - share) * latency * s.bus * 1e3;
}
