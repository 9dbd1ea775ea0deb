/* SPDX-License-Identifier: Apache-2.0 */
/* pair.c - the two sides of a transfer: roles of axes and the joint view of the dims.
 *
 * A cut may run over several adjacent dims as one. Where either side has such a cut, both sides are
 * looked at with those dims joined; row-major order is the same, and every region is again a
 * product of lists. */
#include <string.h>

#include "base/error.h"
#include "plan/exchange.h"

static bool same_partial(const ts_placement *a, const ts_placement *b, int64_t size)
{
    return tsi_placement_partial(a) && tsi_placement_equal(a, b, size);
}

static void side_roles(tsi_side *side, const tsi_side *other, bool source, bool same_mesh)
{
    const ts_sharding *sharding = side->layout->sharding;
    side->replicas = side->terms = 1;
    for (int32_t k = 0; k < side->mesh->ndim; k++) {
        const ts_placement *place = &sharding->place[k];
        uint32_t bit = 1u << k;
        int64_t size = side->mesh->size[k];
        if (size == 1) {
            side->keep |= bit;
        } else if (tsi_placement_cuts(place)) {
            side->cut |= bit;
        } else if (!tsi_placement_partial(place)) {
            side->keep |= bit;
            side->replicas *= size;
        } else if (same_mesh && same_partial(place, &other->layout->sharding->place[k], size)) {
            side->keep |= bit;
            side->kept |= bit;
        } else if (source) {
            side->term |= bit;
            side->terms *= size;
        } else if (place->kind == TS_PLACE_PARTIAL && place->reduce == TS_REDUCE_AVG) {
            side->keep |= bit; /* the average of equal values is the value: everybody has it */
            side->replicas *= size;
        } else {
            side->owner |= bit;
        }
    }
}

/* Bit d: dims d and d + 1 are one. */
static uint32_t glue_of(const ts_sharding *sharding)
{
    uint32_t glue = 0;
    for (int32_t k = 0; k < sharding->ndim; k++) {
        const ts_placement *place = &sharding->place[k];
        if (!tsi_placement_cuts(place)) continue;
        for (int32_t d = place->dim; d < place->dim_last; d++)
            glue |= 1u << d;
    }
    return glue;
}

static void side_dims(const tsi_pair *pair, tsi_side *side)
{
    const ts_sharding *sharding = side->layout->sharding;
    for (int32_t d = 0; d < pair->dims; d++) {
        bool plain = pair->first_dim[d + 1] - pair->first_dim[d] == 1;
        for (int32_t i = 0; i < sharding->order_count; i++) {
            int32_t axis = sharding->order[i];
            const ts_placement *place = &sharding->place[axis];
            if (place->dim < pair->first_dim[d] || place->dim >= pair->first_dim[d + 1]) continue;
            if (side->mesh->size[axis] == 1) continue;
            side->dim_axis[d][side->dim_count[d]++] = axis;
            plain &= place->kind == TS_PLACE_SHARD && place->align <= 1;
        }
        if (plain) side->dim_plain |= 1u << d;
    }
}

ts_status tsi_pair_make(const ts_layout *src, const ts_layout *dst, int64_t item,
                        const tsi_links *links, tsi_pair *out)
{
    memset(out, 0, sizeof *out);
    out->src.layout = src;
    out->dst.layout = dst;
    out->src.mesh = src->sharding->mesh;
    out->dst.mesh = dst->sharding->mesh;
    out->same_mesh = out->src.mesh == out->dst.mesh;
    out->count = src->count;
    out->item = item;
    out->links = links;
    out->ranks =
        out->same_mesh ? out->src.mesh->count : out->src.mesh->count + out->dst.mesh->count;
    uint32_t glue = glue_of(src->sharding) | glue_of(dst->sharding);
    for (int32_t d = 0; d < src->shape.ndim; d++) {
        if (d > 0 && (glue >> (d - 1) & 1u)) {
            out->extent[out->dims - 1] *= src->shape.extent[d];
            continue;
        }
        out->first_dim[out->dims] = d;
        out->extent[out->dims++] = src->shape.extent[d];
    }
    out->first_dim[out->dims] = src->shape.ndim;
    side_roles(&out->src, &out->dst, true, out->same_mesh);
    side_roles(&out->dst, &out->src, false, out->same_mesh);
    side_dims(out, &out->src);
    side_dims(out, &out->dst);
    bool nodes = links && links->node != INT64_MAX;
    out->scan = nodes && out->src.replicas > 1 && (!out->same_mesh || !links->node_aligned);
    return TS_OK;
}
