/* SPDX-License-Identifier: Apache-2.0 */
/* archive_serve.c - chunks of the writer's blocks, each read once for all ranks of a process that
 * want something of it (together.h). */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "checkpoint/transfer.h"

/* Elements of a writer's block: chunks of its slots, one slot after the other. */
typedef struct chunk_rule {
    int64_t count;    /* elements of the block */
    int64_t slot;     /* elements of a slot, */
    int64_t in_chunk; /* and of a chunk */
    int64_t in_slot;  /* chunks of a slot */
} chunk_rule;

static chunk_rule chunk_rule_of(const tsi_entry *e, int64_t block)
{
    int64_t size = e->float8 ? 1 : (int64_t)ts_dtype_size((ts_dtype)e->meta.dtype);
    chunk_rule r = { .count = ts_shape_count(&e->meta.shape), .in_chunk = TSI_CHUNK_BYTES / size };
    r.slot = tsi_max_i64(r.count, 1);
    if (e->layout) {
        int64_t coord[TS_NDIM_MAX];
        tsi_share_rule share;
        tsi_block_coord(e->layout, block, coord);
        tsi_share_rule_of(e->layout, coord, e->name, (size_t)size, &share);
        r.count = share.count;
        r.slot = share.slot_length;
    }
    r.in_slot = tsi_ceil_div(tsi_min_i64(r.slot, tsi_max_i64(r.count, 1)), r.in_chunk);
    return r;
}

int64_t tsi_archive_chunk_count(const tsi_entry *entry, int64_t block)
{
    chunk_rule r = chunk_rule_of(entry, block);
    return tsi_ceil_div(r.count, r.slot) * r.in_slot;
}

static bool same_cuts(const tsi_entry *entry, const ts_layout *to)
{
    if (!entry->layout) return to->axes_cut == 0;
    const tsi_mesh_desc *a = entry->layout->sharding->mesh, *b = to->sharding->mesh;
    char there[512], here[512];
    bool same = a->ndim == b->ndim &&
                memcmp(a->size, b->size, (size_t)a->ndim * sizeof a->size[0]) == 0 &&
                ts_sharding_text(entry->layout->sharding, there, sizeof there) < sizeof there &&
                ts_sharding_text(to->sharding, here, sizeof here) < sizeof here;
    return same && strcmp(there, here) == 0;
}

/* Where several hold the same elements, checking their hashes once is what is saved; where a dim is
 * cut into short parts, reading what others want. Long parts that are not checked are read by
 * whoever wants them straight to where they belong. */
bool tsi_archive_is_common(const ts_archive *c, const tsi_entry *entry, const ts_layout *to)
{
    tsi_transfer t = { .archive = (ts_archive *)(uintptr_t)c, .entry = entry };
    bool verified = tsi_transfer_is_verified(&t);
    int64_t stride = (int64_t)tsi_transfer_element_bytes(&t),
            least = verified ? TSI_WINDOW : TSI_DIRECT_MIN;
    if (entry->boxes || tsi_mul_most(to->count, stride) < TSI_DIRECT_MIN) return false;
    if (verified && to->replicas > 1) return true;
    bool apart = false;
    for (int32_t v = to->view.ndim - 1; v >= 0; v--) {
        int64_t parts = 1;
        for (int32_t i = to->cut_first[v]; i < to->cut_first[v + 1]; i++)
            parts *= to->sharding->mesh->size[to->sharding->order[i]];
        stride = tsi_mul_most(stride, to->view.extent[v]);
        apart = apart || (v > 0 && parts > 1 && stride / parts < least);
    }
    return apart && !same_cuts(entry, to);
}

typedef struct serving { /* elements [first, end) of the writer's block */
    int64_t first, end;
    int64_t low, high; /* of them: up to the first that somebody wants, and behind the last */
    tsi_region rows;   /* the block, cut to the rows that they lie in */
} serving;

/* The rows of the outermost dim: less to walk over than the whole block. */
static bool cut_rows(const tsi_transfer *t, serving *s, tsi_arena *arena)
{
    s->rows = t->from;
    if (t->view.ndim == 0) return true;
    int64_t row = 1;
    for (int32_t d = 1; d < t->view.ndim; d++)
        row *= t->from.dim[d].total;
    return tsi_span_list_cut(&t->from.dim[0], s->first / row, tsi_ceil_div(s->end, row), arena,
                             &s->rows.dim[0]);
}

/* Puts what of [first, end) the target wants there, or (window NULL) notes how far that reaches. */
static ts_status serve_target(tsi_transfer *t, serving *s, const tsi_archive_target *target,
                              uint32_t joined, const char *window, tsi_arena *arena)
{
    tsi_region part;
    if (!tsi_layout_region_joined(target->layout, target->coord, joined, arena, &t->to) ||
        !tsi_region_intersect(&s->rows, &t->to, arena, &part))
        return TS_ERR_MEMORY;
    if (tsi_region_count(&part) == 0) return TS_OK;
    if (!window) {
        int64_t low = tsi_place_in(&t->from, &t->view, tsi_first_of(&part, &t->view)),
                high = tsi_place_in(&t->from, &t->view, tsi_last_of(&part, &t->view)) + 1;
        s->low = tsi_min_i64(s->low, tsi_max_i64(low, s->first));
        s->high = tsi_max_i64(s->high, tsi_min_i64(high, s->end));
        return TS_OK;
    }
    int64_t size = (int64_t)tsi_transfer_element_bytes(t);
    t->target = target->data;
    t->dtype = target->dtype;
    tsi_region_iterator run;
    tsi_region_iterate(&run, &part, &t->view);
    while (tsi_region_next(&run)) {
        int64_t at = tsi_place_in(&t->from, &t->view, run.global), to = at + run.length;
        int64_t from = tsi_max_i64(at, s->first), end = tsi_min_i64(to, s->end);
        if (from >= end) continue;
        to = tsi_place_in(&t->to, &t->view, run.global) + (from - at);
        const char *data = window + (from - s->first) * size;
        TSI_TRY(tsi_transfer_put(t, from, to, data, end - from));
    }
    return TS_OK;
}

static ts_status serve(tsi_transfer *t, serving *s, int64_t slot, const tsi_share *share,
                       const tsi_archive_target *target, int64_t count, tsi_arena *arena)
{
    uint32_t joined = tsi_joined_of(target[0].layout) | tsi_joined_of(t->entry->layout);
    tsi_whole_of(&t->entry->meta.shape, joined, &t->view, &t->from);
    if (!tsi_transfer_block(t, t->source.box, joined, arena) || !cut_rows(t, s, arena))
        return TS_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(serve_target(t, s, &target[i], joined, NULL, arena));
    if (s->low >= s->high) return TS_OK; /* of interest to other processes alone */
    TSI_TRY(tsi_transfer_make_window(t->archive));
    int64_t size = (int64_t)tsi_transfer_element_bytes(t),
            block = t->entry->layout ? TSI_BLOCK_BYTES : size;
    int64_t begin = (s->low - share->first) * size / block * block;
    int64_t end =
        tsi_min_i64(tsi_round_up((s->high - share->first) * size, block), t->source.bytes);
    TSI_TRY(tsi_transfer_read(t, slot, share, begin, (size_t)(end - begin), t->archive->window));
    s->first = share->first + begin / size;
    s->end = share->first + end / size;
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(serve_target(t, s, &target[i], joined, t->archive->window, arena));
    return TS_OK;
}

ts_status tsi_archive_serve_chunk(ts_archive *c, const tsi_entry *entry, int64_t block,
                                  int64_t chunk, const tsi_archive_target *target, int64_t count)
{
    chunk_rule r = chunk_rule_of(entry, block);
    int64_t slot = chunk / r.in_slot, begin = slot * r.slot;
    tsi_share share = { begin, tsi_min_i64(r.slot, r.count - begin) };
    int64_t first = begin + chunk % r.in_slot * r.in_chunk;
    int64_t end = tsi_min_i64(first + r.in_chunk, begin + share.count);
    if (count == 0 || first >= end) return TS_OK;
    tsi_transfer t = { .archive = c, .entry = entry };
    t.source = (tsi_source){ .slot = entry->layout ? -1 : slot,
                             .stored = entry->stored,
                             .box = block,
                             .bytes = share.count * (int64_t)tsi_transfer_element_bytes(&t) };
    serving s = { .first = first, .end = end, .low = end, .high = first };
    tsi_arena arena = { 0 };
    ts_status status = serve(&t, &s, slot, &share, target, count, &arena);
    tsi_arena_release(&arena);
    return status;
}
