/* SPDX-License-Identifier: Apache-2.0 */
/* share.c - shares of replicated blocks: see the head of share.h. */
#include "checkpoint/share.h"

#include "base/hash.h"
#include "base/intmath.h"

void tsi_share_rule_of(const ts_layout *layout, const int64_t *coord, const char *name,
                       size_t bytes, tsi_share_rule *out)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    ts_shape local;
    tsi_layout_local(layout, coord, &local);
    *out = (tsi_share_rule){ .holders = 1, .count = ts_shape_count(&local) };
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (layout->axes_cut & 1u << k) continue;
        out->axes |= 1u << k;
        out->holders *= mesh->size[k];
    }
    int64_t align = tsi_max_i64(1, TSI_SHARE_ALIGN / (int64_t)bytes);
    out->slot_length =
        tsi_max_i64(align, tsi_round_up(tsi_ceil_div(out->count, out->holders), align));
    out->turn = (int64_t)(tsi_hash_text(0x74757268, name) % (uint64_t)out->holders);
}

/* The place of coord among the holders of its block, row-major in the axes that do not cut. */
static int64_t place_of(const tsi_share_rule *rule, const tsi_mesh_desc *mesh, const int64_t *coord)
{
    int64_t place = 0;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (rule->axes & 1u << k) place = place * mesh->size[k] + coord[k];
    return place;
}

static tsi_share range_of(const tsi_share_rule *rule, int64_t slot)
{
    int64_t first = tsi_min_i64(tsi_mul_most(slot, rule->slot_length), rule->count);
    return (tsi_share){ first, tsi_min_i64(rule->slot_length, rule->count - first) };
}

tsi_share tsi_share_at(const tsi_share_rule *rule, const ts_layout *layout, const int64_t *coord,
                       int64_t copy)
{
    int64_t place = place_of(rule, layout->sharding->mesh, coord);
    int64_t back = copy % rule->holders;
    return range_of(rule, (place + rule->turn + rule->holders - back) % rule->holders);
}

tsi_share tsi_share_find(const tsi_share_rule *rule, int64_t element, int64_t *slot)
{
    *slot = element / rule->slot_length;
    return range_of(rule, *slot);
}

int64_t tsi_share_writer(const tsi_share_rule *rule, const ts_layout *layout, const int64_t *coord,
                         int64_t slot, int64_t copy)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    int64_t at[TS_NDIM_MAX];
    int64_t place = (slot + copy + rule->holders - rule->turn) % rule->holders;
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        at[k] = coord[k];
        if (!(rule->axes & 1u << k)) continue;
        at[k] = place % mesh->size[k];
        place /= mesh->size[k];
    }
    return tsi_mesh_desc_rank(mesh, at);
}
