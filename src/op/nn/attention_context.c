/* SPDX-License-Identifier: Apache-2.0 */
/* attention_context.c - who needs what of whom; see attention_context.h. */
#include "op/nn/attention_context.h"

#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "mask/mask.h"
#include "tensor/tensor.h"

/* ---- lists ----------------------------------------------------------------------------------- */

bool tsi_context_next(tsi_context_walk *w)
{
    if (w->span == w->list->span_count) return false;
    const tsi_span *span = &tsi_spans(w->list)[w->span];
    w->begin = span->begin + w->step * span->period;
    w->count = span->length;
    if (++w->step == span->count) {
        w->span++;
        w->step = 0;
    }
    return true;
}

ts_status tsi_context_need(const tsi_context *c, int64_t to, int64_t from, tsi_arena *arena,
                           tsi_span_list *out)
{
    if (tsi_span_list_intersect(&c->sees[to], &c->keys[from], arena, out)) return TS_OK;
    return tsi_fail_memory("what ranks need of each other", sizeof *out);
}

/* ---- who holds and sees what ----------------------------------------------------------------- */

ts_status tsi_context_mask(const tsi_op_call *call, ts_world *world, const ts_mask **out)
{
    *out = tsi_mask_find(world, tsi_attention_mask(call->attributes));
    return *out ? TS_OK : TS_ERR_ARG;
}

static ts_status member_of(const tsi_op_call *call, const ts_layout *const *in,
                           const int64_t *coord, const ts_mask *mask, tsi_arena *arena,
                           tsi_context *c, int64_t i)
{
    tsi_span_list rows, heads;
    bool made = tsi_layout_region_dim(in[0], coord, 2, arena, &c->queries[i]) &&
                tsi_layout_region_dim(in[1], coord, 2, arena, &c->keys[i]) &&
                tsi_layout_region_dim(in[0], coord, 0, arena, &rows) &&
                tsi_layout_region_dim(in[0], coord, 1, arena, &heads);
    if (!made) return tsi_fail_memory("the regions of a sequence", sizeof rows);
    int64_t keys = call->in[1].shape.extent[2];
    tsi_mask_shape shape = { .queries = &c->queries[i],
                             .keys = &c->keys[i],
                             .offset = keys - call->in[0].shape.extent[2],
                             .rows = &rows,
                             .heads = &heads,
                             .row_count = rows.total,
                             .head_count = heads.total };
    return tsi_mask_union(mask, &shape, keys, arena, &c->sees[i]);
}

ts_status tsi_context_make(const tsi_op_call *call, const ts_layout *const *in,
                           const tsi_context_place *place, tsi_arena *arena, tsi_context *out)
{
    const ts_mask *mask;
    tsi_mesh_desc *mesh = place->mesh;
    int64_t size = tsi_mesh_group_count(mesh, place->axes);
    tsi_span_list *lists = tsi_arena_calloc(arena, (size_t)size * 3, sizeof *lists);
    int64_t *ranks = tsi_arena_alloc(arena, (size_t)size * sizeof *ranks);
    if (!lists || !ranks) return tsi_fail_memory("the cut of a sequence", (size_t)size * 96);
    *out = (tsi_context){ .size = size, .queries = lists, .keys = lists + size };
    out->sees = lists + 2 * size;
    out->me = tsi_mesh_group_place(mesh, place->axes, place->coord);
    tsi_mesh_group_ranks(mesh, place->axes, place->coord, ranks);
    TSI_TRY(tsi_context_mask(call, mesh->world, &mask));
    ts_status status = TS_OK;
    for (int64_t i = 0; i < size && status == TS_OK; i++) {
        int64_t coord[TS_NDIM_MAX];
        if (!tsi_mesh_desc_coord(mesh, ranks[i], coord))
            status = TSI_FAIL(TS_ERR_INTERNAL, "attention: rank %lld is not in its mesh",
                              (long long)ranks[i]);
        else
            status = member_of(call, in, coord, mask, arena, out, i);
    }
    ts_mask_release(mask);
    return status;
}
