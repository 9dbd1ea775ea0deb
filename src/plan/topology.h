/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h - a topology resolved for one mesh: constants per axis, and the time of one
 * collective.
 *
 * Times are microseconds, sizes bytes as double. A group of several axes has the latency and the
 * bandwidth of its slowest axis. With the preset reference-cpu the formulas are those of the
 * reference's own cost model. */
#ifndef TSI_PLAN_TOPOLOGY_H
#define TSI_PLAN_TOPOLOGY_H

#include "layout/layout.h"
#include "tessera/plan.h"

typedef struct tsi_links {
    int32_t axes, hops;
    int64_t size[TS_NDIM_MAX];
    double latency[TS_NDIM_MAX];  /* us per hop */
    double per_byte[TS_NDIM_MAX]; /* us per byte received */
    double base, all_to_all, exchange;
    double copy, reduce;               /* us per byte */
    double local, run;                 /* us: of a step that meets nobody; of a contiguous run */
    int32_t level_count, node_aligned; /* node_aligned: see tsi_links_node */
    int64_t unit[TS_TOPOLOGY_LEVELS];  /* ranks of one unit; INT64_MAX: everything */
    double level_latency[TS_TOPOLOGY_LEVELS];
    double level_per_byte[TS_TOPOLOGY_LEVELS];
    int64_t node; /* ranks of one node: a unit of the innermost level if there are outer ones, else
                     INT64_MAX */
} tsi_links;

typedef struct tsi_links_group {
    double n, latency, per_byte, hops;
} tsi_links_group;

/* `ranks`: how many ranks are busy at the same time (those of both meshes). */
void tsi_links_make(const ts_topology *topology, const tsi_mesh_desc *mesh, int64_t ranks,
                    tsi_links *out);
double tsi_links_hops(const tsi_links *links, double n);
tsi_links_group tsi_links_of(const tsi_links *links, uint32_t axes);

/* Of one rank: `in` and `out` are its largest blocks before and after. What it keeps for itself is
 * one copy. `packed`: blocks are re-packed, which steps of plans never are: they are executed as
 * exchanges straight into the target, whatever its strides. */
double tsi_time_all_gather(const tsi_links *links, const tsi_links_group *group, double out,
                           bool packed);
double tsi_time_reduce_scatter(const tsi_links *links, const tsi_links_group *group, double in,
                               bool packed);
double tsi_time_all_reduce(const tsi_links *links, const tsi_links_group *group, double in);
/* Two rounds of messages, as a reduce-scatter and a gather are: there and back. */
double tsi_time_two_rounds(const tsi_links *links, const tsi_links_group *group, double in);
double tsi_time_all_to_all(const tsi_links *links, const tsi_links_group *group, double in);
/* More, for `bytes` that lie in runs of so many bytes; one run costs nothing. */
static inline double tsi_time_runs(const tsi_links *links, double bytes, double run)
{
    return links->run > 0 && bytes > run && run > 0 ? bytes / run * links->run : 0;
}
/* Bytes of the runs in which what two blocks have in common lies in both: the extents of the
 * innermost dim in which they differ, and all inside it. 0: they are alike, one run. */
static inline double tsi_run_bytes(int32_t dims, const double *a, const double *b, double item)
{
    for (int32_t d = dims - 1; d >= 0; d--) {
        if (a[d] != b[d]) return item * (a[d] < b[d] ? a[d] : b[d]);
        item *= a[d];
    }
    return 0;
}

/* Level of the link between two ranks: 0 is the innermost. */
static inline int32_t tsi_links_level(const tsi_links *links, int64_t a, int64_t b)
{
    int32_t level = 0;
    while (level < links->level_count - 1 && a / links->unit[level] != b / links->unit[level])
        level++;
    return level;
}
static inline bool tsi_links_same_node(const tsi_links *links, int64_t a, int64_t b)
{
    return links->node == INT64_MAX || a / links->node == b / links->node;
}

/* What one rank's products of this dtype do in a microsecond. */
double tsi_topology_flops(const ts_topology *topology, ts_dtype dtype);
/* Of one node `threads`, of several the preset of a kind of device with nodes of so many ranks (0:
 * one has all). */
ts_status tsi_topology_for(const char *kind, int64_t node, int64_t ranks, ts_topology *out);
/* What a world plans with unless it is told: that, with the nodes that its engine found. Levels are
 * units of neighbours: of nodes that are no such units they have what neighbours always share. */
ts_status tsi_topology_find(ts_world *world, ts_topology *out);
uint64_t tsi_topology_hash(const ts_topology *topology);
ts_status tsi_topology_check(const ts_topology *topology); /* finite, positive, levels ascending */
extern const char *const tsi_topology_presets[];           /* NULL-terminated */

#endif
