/* SPDX-License-Identifier: Apache-2.0 */
/* index_geometry.c - where the dims of index_get and index_put stand. A plain function, which
 * modules of devices are built with too. */
#include "op/index/index.h"

tsi_index_geometry tsi_index_geometry_of(int32_t first, const tsi_dims *dims, const ts_meta *in,
                                         int32_t input_count)
{
    tsi_index_geometry g = { .count = input_count - first, .first = first };
    for (int32_t i = 0; i < dims->count; i++)
        g.indexed |= 1u << dims->value[i];
    for (int32_t i = g.first; i < input_count; i++)
        if (in[i].shape.ndim > g.lines) g.lines = in[i].shape.ndim;
    int32_t lowest = TS_NDIM_MAX, highest = 0;
    for (int32_t d = 0; d < in[0].shape.ndim; d++) {
        if (!(g.indexed >> d & 1)) continue;
        if (d < lowest) lowest = d;
        highest = d;
    }
    g.at = highest - lowest + 1 == g.count ? lowest : 0;
    for (int32_t d = 0; d < in[0].shape.ndim; d++) {
        if (g.indexed >> d & 1) continue;
        g.from[g.rest] = d;
        g.to[g.rest] = g.rest < g.at ? g.rest : g.rest + g.lines;
        g.rest++;
    }
    return g;
}
