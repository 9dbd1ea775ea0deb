/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp_weigh.c - what the algorithms of the experts' feed-forward receive, and which runs.
 *
 * Choices are taken for independent and even, so a row wants a member of n with the probability
 * q(n) = 1 - (1 - 1/n)^K. Per row, of a group of m nodes with s members each:
 *
 *            inside a node                              between nodes
 *   rows     (s - 1) q(n)                               (n - s) q(n)
 *   nodes    (s - 1) q(n) + (m - 1) (s q(n) - q(m))     (m - 1) q(m)
 *   gather   s - 1                                      n - s
 *
 * as often as rows move: x there, y back; for the gradient x and dy there, dx back. Devices choose
 * as the host does, so that a plan holds for both. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "op/core/algorithm.h"
#include "op/matrix/grouped_mlp.h"
#include "plan/topology.h"
#include "tessera/comm.h"

uint32_t tsi_mlp_axes(const ts_layout *x, const ts_layout *in)
{
    uint32_t axes = 0;
    for (int32_t k = 0; k < x->sharding->ndim; k++) {
        const ts_placement *rows = &x->sharding->place[k], *experts = &in->sharding->place[k];
        bool both = tsi_placement_cuts(rows) && tsi_placement_cuts(experts) && experts->dim == 0;
        if (both && x->sharding->mesh->size[k] > 1) axes |= 1u << k;
    }
    return axes;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static ts_status links_of(tsi_mesh_desc *mesh, tsi_links *out)
{
    ts_topology topology = TS_INIT(ts_topology);
    TSI_TRY(ts_topology_of(mesh->world, &topology));
    tsi_links_make(&topology, mesh, mesh->count, out);
    return TS_OK;
}

ts_status tsi_mlp_nodes(tsi_mesh_desc *mesh, ts_group *group, tsi_arena *arena, int64_t **out)
{
    tsi_links links;
    bool several = false;
    *out = NULL;
    TSI_TRY(links_of(mesh, &links));
    if (!group || links.node == INT64_MAX) return TS_OK;
    int64_t size = ts_group_size(group),
            *node = tsi_arena_alloc(arena, (size_t)size * sizeof *node);
    if (!node) return tsi_fail_memory("the nodes of members", (size_t)size * sizeof *node);
    for (int64_t j = 0; j < size; j++) {
        node[j] = ts_group_rank(group, j) / links.node;
        several |= node[j] != node[0];
    }
    if (several) *out = node;
    return TS_OK;
}

/* ---- weighing -------------------------------------------------------------------------------- */

typedef struct weighing {
    double size, nodes, each;     /* members of a group; its nodes, and members of one */
    double rows;                  /* of all ranks together */
    double row_bytes, side_bytes; /* of a row; of its choices and weights */
    double ranks, choices;        /* choices that the group can serve */
    double ways;                  /* how often rows move */
    tsi_links links;
} weighing;

static double wanted(const weighing *w, double n)
{
    return 1.0 - pow(1.0 - 1.0 / n, w->choices);
}

/* Rows that arrive for each row that there is. */
static void arrivals(const weighing *w, int32_t algorithm, double *inside, double *between)
{
    double q = wanted(w, w->size), q_node = w->nodes > 1 ? wanted(w, w->nodes) : 0;
    *inside = (w->each - 1) * (algorithm == TSI_MLP_GATHER ? 1 : q);
    *between = (w->size - w->each) * (algorithm == TSI_MLP_GATHER ? 1 : q);
    if (algorithm != TSI_MLP_NODES) return;
    *inside += (w->nodes - 1) * (w->each * q - q_node);
    *between = (w->nodes - 1) * q_node;
}

static tsi_algorithm_candidate candidate(const weighing *w, int32_t algorithm)
{
    const tsi_links *l = &w->links;
    int32_t outer = l->level_count - 1;
    double inside, between, rounds = w->ways + 1;
    if (algorithm == TSI_MLP_GATHER) rounds = w->ways + 2; /* choices and weights by themselves */
    if (algorithm == TSI_MLP_NODES) rounds = 2 * w->ways + 1;
    arrivals(w, algorithm, &inside, &between);
    double row = w->ways * w->row_bytes, side = w->side_bytes * (w->size - 1),
           mine = w->rows / w->ranks;
    tsi_algorithm_candidate c = { .algorithm = algorithm, .balance = 1, .steps = (int32_t)rounds };
    c.bytes = (int64_t)(w->rows * ((inside + between) * row + side));
    c.memory = (int64_t)(mine * ((inside + between) * w->row_bytes + side));
    c.us = rounds * l->level_latency[w->nodes > 1 ? outer : 0] +
           mine * row * (inside * l->level_per_byte[0] + between * l->level_per_byte[outer]) +
           mine * side * l->level_per_byte[w->nodes > 1 ? outer : 0];
    return c;
}

/* Ranks of the axes of a mask. */
static double ranks_of(const tsi_mesh_desc *mesh, uint32_t axes)
{
    double n = 1;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (axes >> k & 1) n *= (double)mesh->size[k];
    return n;
}

static uint32_t cut_on(const ts_layout *layout, int32_t dim)
{
    uint32_t axes = 0;
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        const ts_placement *place = &layout->sharding->place[k];
        if (tsi_placement_cuts(place) && (dim < 0 || place->dim == dim)) axes |= 1u << k;
    }
    return axes;
}

static void weigh_call(const tsi_op_call *call, weighing *w)
{
    bool back = call->input_count > TSI_MLP_INPUTS;
    const ts_meta *x = &call->in[back], *which = x + TSI_MLP_WHICH;
    double size = (double)ts_dtype_size((ts_dtype)x->dtype);
    int64_t width = x->shape.extent[x->shape.ndim - 1];
    w->choices = (double)which->shape.extent[which->shape.ndim - 1];
    w->rows = width ? (double)(ts_shape_count(&x->shape) / width) : 0;
    w->row_bytes = (double)width * size;
    w->side_bytes = w->choices * (4 + (back ? 2 : 1) * size);
    w->ways = back ? 3 : 2;
}

int64_t tsi_mlp_bytes(const tsi_op_call *call, int64_t n)
{
    weighing w = { .size = (double)n, .each = (double)n, .nodes = 1, .ranks = (double)n };
    if (n < 2) return 0;
    weigh_call(call, &w);
    return (int64_t)(w.rows / w.size * (w.size - 1) *
                     (wanted(&w, w.size) * w.ways * w.row_bytes + w.side_bytes));
}

/* How the members of the first group lie on nodes; others lie alike. */
static void weigh_nodes(const tsi_algorithm_request *request, uint32_t axes, weighing *w)
{
    tsi_mesh_desc *mesh = request->mesh;
    int64_t coord[TS_NDIM_MAX] = { 0 }, last = -1, nodes = 0;
    w->size = ranks_of(mesh, axes);
    for (int64_t i = 0; i < mesh->count && w->links.node != INT64_MAX; i++) {
        bool first = true;
        tsi_mesh_desc_unravel(mesh, i, coord);
        for (int32_t k = 0; k < mesh->ndim; k++)
            first &= (axes >> k & 1) || coord[k] == 0;
        int64_t node = tsi_mesh_desc_rank(mesh, coord) / w->links.node;
        if (!first || node == last) continue;
        last = node;
        nodes++;
    }
    w->nodes = nodes > 1 ? (double)nodes : 1;
    w->each = w->size / w->nodes;
}

ts_status tsi_mlp_pick(const tsi_algorithm_request *request, tsi_algorithm_choice *out)
{
    bool back = request->call->input_count > TSI_MLP_INPUTS;
    const ts_layout *x = request->in[back + TSI_MLP_X], *in = request->in[back + TSI_MLP_IN];
    int32_t forced = ((const tsi_mlp_attributes *)request->call->attributes)->algorithm;
    uint32_t axes = tsi_mlp_axes(x, in);
    weighing w = { .ranks = (double)request->mesh->count };
    *out = (tsi_algorithm_choice){ .count = 1,
                                   .candidate = { { .algorithm = TSI_MLP_ROWS, .balance = 1 } } };
    if (!axes) return TS_OK;
    TSI_TRY(links_of(request->mesh, &w.links));
    weigh_call(request->call, &w);
    weigh_nodes(request, axes, &w);
    w.choices /= ranks_of(request->mesh, cut_on(in, 0) & ~axes);
    w.rows *= w.ranks / ranks_of(request->mesh, cut_on(x, -1));
    out->candidate[0] = candidate(&w, TSI_MLP_ROWS);
    out->candidate[1] = candidate(&w, TSI_MLP_GATHER);
    out->count = 2;
    if ((w.nodes > 1 && w.each > 1) || forced == TSI_MLP_NODES)
        out->candidate[out->count++] = candidate(&w, TSI_MLP_NODES);
    for (int32_t i = 0; i < out->count; i++)
        if (forced ? out->candidate[i].algorithm == forced
                   : out->candidate[i].us < out->candidate[out->chosen].us)
            out->chosen = i;
    return TS_OK;
}
