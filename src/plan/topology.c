/* SPDX-License-Identifier: Apache-2.0 */
/* topology.c - presets, and the cost of collectives on the axes of one mesh.
 *
 * Presets are round numbers for well-known machines; `tessera bench comm --save` measures real
 * ones. The model is linear: base + hops * latency + bytes received / bandwidth + bytes combined or
 * copied / their rates + contiguous runs * what each costs. */
#include "plan/topology.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "device/device.h"

#define GIB 1073741824.0

const char *const tsi_topology_presets[] = { "reference-cpu", "8xh100",  "8xh200",  "torus",
                                             "ethernet",      "threads", "cluster", NULL };

/* Ranks of one machine, threads or processes, that read each other's memory. */
#define IN_MEMORY                                                                                  \
    .base_us = 3.0, .all_to_all_us = 0.5, .exchange_us = 1.5, .copy_gib_s = 16,                    \
    .reduce_gib_s = 24, .shared_gib_s = 48, .product_gflops = 20, .hops = TS_HOPS_FLAT

/* Data table; the rows are in the order of tsi_topology_presets. */
static const ts_topology preset_table[] = {
    /* One device per host; ring algorithms; nothing but wires costs (the reference's model). */
    { .name = "reference-cpu",
      .base_us = 6.6,
      .all_to_all_us = 1.0,
      .exchange_us = 1.0,
      .hops = TS_HOPS_RING,
      .level_count = 1,
      .level = { { "host", 0, 2.7, 87.7 * 0.22, 0 } } },
    { .name = "8xh100",
      .base_us = 9.0,
      .all_to_all_us = 2.0,
      .exchange_us = 4.0,
      .copy_gib_s = 1300,
      .reduce_gib_s = 900,
      .product_gflops = 50000,
      .product_half_gflops = 600000,
      .hops = TS_HOPS_TREE,
      .level_count = 2,
      .level = { { "nvlink", 8, 0.7, 340, 0 }, { "infiniband", 0, 3.5, 43, 0 } } },
    { .name = "8xh200",
      .base_us = 9.0,
      .all_to_all_us = 2.0,
      .exchange_us = 4.0,
      .copy_gib_s = 1900,
      .reduce_gib_s = 1300,
      .product_gflops = 50000,
      .product_half_gflops = 600000,
      .hops = TS_HOPS_TREE,
      .level_count = 2,
      .level = { { "nvlink", 8, 0.7, 340, 0 }, { "infiniband", 0, 3.5, 43, 0 } } },
    { .name = "torus",
      .base_us = 2.0,
      .all_to_all_us = 1.0,
      .exchange_us = 4.0,
      .copy_gib_s = 1000,
      .reduce_gib_s = 700,
      .hops = TS_HOPS_RING,
      .level_count = 1,
      .level = { { "ici", 0, 1.0, 84, 0 } } },
    { .name = "ethernet",
      .base_us = 12.0,
      .all_to_all_us = 4.0,
      .exchange_us = 6.0,
      .copy_gib_s = 8,
      .reduce_gib_s = 5,
      .hops = TS_HOPS_TREE,
      .level_count = 1,
      .level = { { "ethernet", 0, 22.0, 2.6, 0 } } },
    { .name = "threads", IN_MEMORY, .level_count = 1, .level = { { "memory", 0, 0.4, 16, 32 } } },
    /* Machines of thread ranks or processes, whose eight share one link of `ethernet`. */
    { .name = "cluster",
      IN_MEMORY,
      .level_count = 2,
      .level = { { "memory", 8, 0.4, 16, 32 }, { "network", 0, 22.0, 2.6 / 8, 0 } } },
};

ts_status ts_topology_preset(const char *name, ts_topology *out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "topology: the output is NULL");
    memset(out, 0, sizeof *out);
    if (!name) return TSI_FAIL(TS_ERR_NULL, "topology: the preset's name is NULL");
    for (size_t i = 0; i < TSI_COUNT_OF(preset_table); i++) {
        if (strcmp(preset_table[i].name, name) != 0) continue;
        *out = preset_table[i];
        out->struct_size = sizeof *out;
        return TS_OK;
    }
    const char *near = tsi_text_nearest(name, tsi_topology_presets);
    if (near) {
        return TSI_FAIL(TS_ERR_ARG, "topology: no preset '%s'; did you mean '%s'?", name, near);
    }
    return TSI_FAIL(
        TS_ERR_ARG,
        "topology: no preset '%s'; there are reference-cpu, 8xh100, 8xh200, torus, ethernet, "
        "threads, cluster",
        name);
}

ts_status tsi_topology_for(const char *kind, int64_t node, int64_t ranks, ts_topology *out)
{
    bool cuda = strcmp(kind, "cuda") == 0;
    if (node <= 0 || node >= ranks) return ts_topology_preset("threads", out);
    TSI_TRY(ts_topology_preset(cuda ? "8xh100" : "cluster", out));
    /* A GPU has a link of its own; other ranks share that of their node. */
    if (!cuda) out->level[1].bandwidth_gib_s *= (double)out->level[0].ranks / (double)node;
    out->level[0].ranks = node;
    return TS_OK;
}

ts_status tsi_topology_find(ts_world *world, ts_topology *out)
{
    return tsi_topology_for(tsi_world_device(world)->kind, world->node_ranks, world->rank_count,
                            out);
}

static bool bad_rate(double value, bool zero_allowed)
{
    return !isfinite(value) || value < 0 || (!zero_allowed && value == 0);
}

ts_status tsi_topology_check(const ts_topology *t)
{
    if (t->level_count < 1 || t->level_count > TS_TOPOLOGY_LEVELS) {
        return TSI_FAIL(TS_ERR_ARG, "topology '%s': %d levels, allowed are 1 to %d", t->name,
                        t->level_count, TS_TOPOLOGY_LEVELS);
    }
    if (bad_rate(t->base_us, true) || bad_rate(t->all_to_all_us, true) ||
        bad_rate(t->exchange_us, true) || bad_rate(t->copy_gib_s, true) ||
        bad_rate(t->reduce_gib_s, true) || bad_rate(t->shared_gib_s, true) ||
        bad_rate(t->local_us, true) || bad_rate(t->run_us, true) ||
        bad_rate(t->product_gflops, true) || bad_rate(t->product_half_gflops, true)) {
        return TSI_FAIL(TS_ERR_ARG,
                        "topology '%s': times and rates must be finite and not negative", t->name);
    }
    if (t->hops < TS_HOPS_RING || t->hops > TS_HOPS_TREE) {
        return TSI_FAIL(TS_ERR_ARG, "topology '%s': hops %d is not ring, log, flat or tree",
                        t->name, t->hops);
    }
    int64_t below = 1;
    for (int32_t i = 0; i < t->level_count; i++) {
        const ts_topology_level *level = &t->level[i];
        bool last = i == t->level_count - 1;
        if (bad_rate(level->latency_us, true) || bad_rate(level->bandwidth_gib_s, false) ||
            bad_rate(level->total_gib_s, true)) {
            return TSI_FAIL(TS_ERR_ARG,
                            "topology '%s', level %d: latency and bandwidth must be finite and "
                            "bandwidth above 0",
                            t->name, i);
        }
        if (!last && (level->ranks < below || level->ranks % below != 0)) {
            return TSI_FAIL(TS_ERR_ARG,
                            "topology '%s', level %d: a unit of %lld ranks does not hold units of "
                            "%lld",
                            t->name, i, (long long)level->ranks, (long long)below);
        }
        below = level->ranks;
    }
    for (int32_t i = 0; i < t->axis_count; i++) {
        if (bad_rate(t->axis[i].latency_us, true) || bad_rate(t->axis[i].bandwidth_gib_s, false)) {
            return TSI_FAIL(TS_ERR_ARG,
                            "topology '%s', axis '%s': latency or bandwidth is not positive",
                            t->name, t->axis[i].name);
        }
    }
    return TS_OK;
}

double tsi_topology_flops(const ts_topology *t, ts_dtype dtype)
{
    double single = (t->product_gflops > 0 ? t->product_gflops : 20) * 1e3;
    bool half = ts_dtype_size(dtype) <= 2 && t->product_half_gflops > 0;
    if (half) return t->product_half_gflops * 1e3;
    return ts_dtype_size(dtype) == 8 ? single / 2 : single;
}

uint64_t tsi_topology_hash(const ts_topology *topology)
{
    return tsi_hash_bytes(0x746f706fu, (const char *)topology + offsetof(ts_topology, base_us),
                          sizeof *topology - offsetof(ts_topology, base_us));
}

/* ---- one mesh ------------------------------------------------------------------------------- */

/* Does every line along the axis stay within units of that many ranks? Exact for meshes in rank
 * order; meshes with explicit ranks are looked at member by member, the first 4096 of them. */
static bool axis_within(const tsi_mesh_desc *mesh, int32_t axis, int64_t unit)
{
    if (unit == INT64_MAX || mesh->size[axis] == 1) return true;
    if (!mesh->map && mesh->offset % unit == 0) {
        int64_t span = 1;
        for (int32_t m = mesh->mode_first[axis]; m < mesh->mode_first[axis + 1]; m++) {
            if (mesh->mode[m].size > 1 && mesh->mode[m].size * mesh->mode[m].stride > span) {
                span = mesh->mode[m].size * mesh->mode[m].stride;
            }
        }
        if (unit % span == 0) return true;
    }
    int64_t count = mesh->count < 4096 ? mesh->count : 4096;
    for (int64_t i = 0; i < count; i++) {
        int64_t coord[TS_NDIM_MAX];
        tsi_mesh_desc_unravel(mesh, i, coord);
        int64_t rank = tsi_mesh_desc_rank(mesh, coord);
        coord[axis] = 0;
        if (tsi_mesh_desc_rank(mesh, coord) / unit != rank / unit) return false;
    }
    return true;
}

static double us_per_byte(double gib_s)
{
    return gib_s > 0 ? 1e6 / (gib_s * GIB) : 0.0;
}

static void fill_levels(const ts_topology *t, int64_t ranks, tsi_links *out)
{
    out->level_count = t->level_count;
    for (int32_t i = 0; i < t->level_count; i++) {
        const ts_topology_level *level = &t->level[i];
        bool last = i == t->level_count - 1;
        out->unit[i] = last || level->ranks == 0 ? INT64_MAX : level->ranks;
        int64_t busy = out->unit[i] < ranks ? out->unit[i] : ranks;
        double shared = us_per_byte(level->total_gib_s) * (double)busy;
        out->level_latency[i] = level->latency_us;
        out->level_per_byte[i] = fmax(us_per_byte(level->bandwidth_gib_s), shared);
    }
    out->node = out->unit[0];
}

void tsi_links_make(const ts_topology *t, const tsi_mesh_desc *mesh, int64_t ranks, tsi_links *out)
{
    memset(out, 0, sizeof *out);
    out->axes = mesh->ndim;
    out->hops = t->hops;
    out->base = t->base_us;
    out->all_to_all = t->all_to_all_us;
    out->exchange = t->exchange_us;
    out->local = t->local_us;
    out->run = t->run_us;
    fill_levels(t, ranks, out);
    int64_t busy = out->unit[0] < ranks ? out->unit[0] : ranks;
    double shared = us_per_byte(t->shared_gib_s) * (double)busy;
    out->copy = t->copy_gib_s > 0 ? fmax(us_per_byte(t->copy_gib_s), shared) : 0.0;
    out->reduce = t->reduce_gib_s > 0 ? fmax(us_per_byte(t->reduce_gib_s), shared) : 0.0;
    out->node_aligned = 1;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        int32_t level = 0;
        while (level < out->level_count - 1 && !axis_within(mesh, k, out->unit[level]))
            level++;
        if (level > 0 && !mesh->map && mesh->mode_first[k + 1] == mesh->mode_first[k] + 1) {
            /* An axis that leaves the node should leave it with every step. */
            int64_t stride = mesh->mode[mesh->mode_first[k]].stride;
            if (stride % out->node != 0) out->node_aligned = 0;
        } else if (level > 0) {
            out->node_aligned = 0;
        }
        out->size[k] = mesh->size[k];
        out->latency[k] = out->level_latency[level];
        out->per_byte[k] = out->level_per_byte[level];
        for (int32_t i = 0; i < t->axis_count; i++) {
            if (mesh->name[k][0] == '\0' || strcmp(mesh->name[k], t->axis[i].name) != 0) continue;
            out->latency[k] = t->axis[i].latency_us;
            out->per_byte[k] = us_per_byte(t->axis[i].bandwidth_gib_s);
        }
    }
}

double tsi_links_hops(const tsi_links *links, double n)
{
    if (n <= 1) return 0;
    switch ((ts_topology_hops)links->hops) {
    case TS_HOPS_RING:
    case TS_HOPS_TREE:
        return n - 1;
    case TS_HOPS_LOG:
        return ceil(log2(n));
    case TS_HOPS_FLAT:
        return 1;
    }
    return n - 1;
}

tsi_links_group tsi_links_of(const tsi_links *links, uint32_t axes)
{
    tsi_links_group group = { 1, 0, 0, 0 };
    for (int32_t k = 0; k < links->axes; k++) {
        if (!(axes >> k & 1u)) continue;
        group.n *= (double)links->size[k];
        if (links->latency[k] > group.latency) group.latency = links->latency[k];
        if (links->per_byte[k] > group.per_byte) group.per_byte = links->per_byte[k];
    }
    group.hops = tsi_links_hops(links, group.n);
    return group;
}

double tsi_time_all_gather(const tsi_links *links, const tsi_links_group *g, double out,
                           bool packed)
{
    double own = out / g->n;
    double time =
        links->base + g->hops * g->latency + (out - own) * g->per_byte + own * links->copy;
    return packed ? time + out * links->copy : time;
}

double tsi_time_reduce_scatter(const tsi_links *links, const tsi_links_group *g, double in,
                               bool packed)
{
    double received = in * (g->n - 1) / g->n;
    double time = links->base + g->hops * g->latency + received * (g->per_byte + links->reduce);
    return packed ? time + in * links->copy : time;
}

/* All of it from two ranks below, and from one above. */
static double tree_us(const tsi_links *links, const tsi_links_group *g, double in)
{
    return links->base + 2 * ceil(log2(g->n)) * g->latency +
           in * (3 * g->per_byte + 2 * links->reduce);
}

double tsi_time_two_rounds(const tsi_links *links, const tsi_links_group *g, double in)
{
    double received = in * (g->n - 1) / g->n;
    return links->base + 2 * g->hops * g->latency + received * (2 * g->per_byte + links->reduce);
}

double tsi_time_all_reduce(const tsi_links *links, const tsi_links_group *g, double in)
{
    double us = tsi_time_two_rounds(links, g, in);
    return links->hops == TS_HOPS_TREE && g->n > 1 ? fmin(us, tree_us(links, g, in)) : us;
}

double tsi_time_all_to_all(const tsi_links *links, const tsi_links_group *g, double in)
{
    double own = in / g->n;
    return links->base + links->all_to_all + g->hops * g->latency + (in - own) * g->per_byte +
           own * links->copy;
}
