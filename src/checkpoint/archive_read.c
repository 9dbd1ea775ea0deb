/* SPDX-License-Identifier: Apache-2.0 */
/* archive_read.c - from the files of a checkpoint to any region of a tensor.
 *
 * Block by block of the writer: what it shares with the target is walked in runs that are
 * contiguous on both sides, so each file is read forwards (transfer.h). */
#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "checkpoint/digest.h"
#include "checkpoint/transfer.h"

enum { HASH_PIECE = 1 << 20 };

/* What one block of the writer has of the target. */
static ts_status move_block(tsi_transfer *t, int64_t number, tsi_arena *arena)
{
    tsi_region part;
    if (!tsi_region_intersect(&t->from, &t->to, arena, &part)) return TS_ERR_MEMORY;
    t->source = (tsi_source){ .slot = -1 };
    if (!t->entry->layout)
        t->source = (tsi_source){ .stored = t->entry->stored,
                                  .box = number,
                                  .bytes = tsi_region_count(&t->from) *
                                           (int64_t)tsi_transfer_element_bytes(t) };
    t->wanted = tsi_place_in(&t->from, &t->view, tsi_last_of(&part, &t->view)) + 1;
    if (tsi_region_equal(&part, &t->from) && tsi_region_equal(&part, &t->to))
        return tsi_transfer_move(t, 0, 0, tsi_region_count(&part)); /* cut as it was */
    tsi_region_iterator run;
    tsi_region_iterate(&run, &part, &t->view);
    while (tsi_region_next(&run))
        TSI_TRY(tsi_transfer_move(t, tsi_place_in(&t->from, &t->view, run.global),
                                  tsi_place_in(&t->to, &t->view, run.global), run.length));
    return TS_OK;
}

/* Does a box reach between the first and the last element of the target? It costs less to ask. */
static bool is_near(const tsi_transfer *t, const tsi_dcp_chunk *box)
{
    const ts_shape *shape = &t->entry->meta.shape;
    int64_t low = 0, high = 0;
    for (int32_t d = 0; d < shape->ndim; d++) {
        low = low * shape->extent[d] + box->first[d];
        high = high * shape->extent[d] + box->first[d] + box->extent[d] - 1;
    }
    return low <= t->high && high >= t->low;
}

/* From the block `first` on: readers that begin at different ones do not wait for the same file,
 * and what one has read the next finds in the page cache. */
static ts_status move_blocks(tsi_transfer *t, uint32_t joined, int64_t first)
{
    int64_t count = tsi_archive_block_count(t->entry);
    ts_status status = TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; i++) {
        int64_t number = (first + i) % count;
        if (t->entry->boxes && !is_near(t, &t->entry->boxes->chunk[number])) continue;
        tsi_arena arena = { 0 };
        if (!tsi_transfer_block(t, number, joined, &arena)) status = TS_ERR_MEMORY;
        bool some = status == TS_OK && tsi_region_intersect_count(&t->from, &t->to) != 0;
        if (some) status = move_block(t, number, &arena);
        tsi_arena_release(&arena);
    }
    return status;
}

ts_status tsi_archive_read_block(ts_archive *c, const tsi_entry *entry, const ts_layout *to,
                                 const int64_t *coord, const tsi_block *target)
{
    tsi_transfer t = {
        .archive = c, .entry = entry, .target = target->data, .dtype = (ts_dtype)target->dtype
    };
    uint32_t joined = tsi_joined_of(to) | tsi_joined_of(entry->layout);
    const tsi_mesh_desc *mesh = to->sharding->mesh;
    int64_t reader = 0, first = 0;
    for (int32_t k = 0; k < mesh->ndim; k++)
        reader = reader * mesh->size[k] + coord[k];
    tsi_arena arena = { 0 };
    tsi_whole_of(&entry->meta.shape, joined, &t.view, &t.from);
    ts_status status = TS_OK;
    if (!tsi_layout_region_joined(to, coord, joined, &arena, &t.to)) status = TS_ERR_MEMORY;
    bool some = status == TS_OK && tsi_region_count(&t.to) != 0;
    if (some) {
        t.low = tsi_first_of(&t.to, &t.view);
        t.high = tsi_last_of(&t.to, &t.view);
        first = (int64_t)((double)reader / (double)mesh->count *
                          (double)tsi_archive_block_count(entry));
        status = move_blocks(&t, joined, first);
    }
    tsi_arena_release(&arena);
    return status;
}

ts_status tsi_archive_read_range(ts_archive *c, const tsi_entry *entry, int64_t first,
                                 int64_t count, ts_dtype dtype, void *target)
{
    tsi_transfer t = { .archive = c, .entry = entry, .target = target, .dtype = dtype };
    if (count == 0) return TS_OK;
    t.low = first;
    t.high = first + count - 1;
    int32_t ndim = entry->meta.shape.ndim;
    uint32_t joined = ndim > 1 ? (1u << (ndim - 1)) - 1 : 0;
    tsi_whole_of(&entry->meta.shape, joined, &t.view, &t.from);
    t.to = t.from;
    tsi_arena arena = { 0 };
    tsi_span_list list = { 0 };
    bool good = ndim == 0 || tsi_span_list_cut(&t.from.dim[0], first, first + count, &arena, &list);
    if (good && ndim > 0) t.to.dim[0] = list;
    ts_status status = good ? move_blocks(&t, joined, 0) : TS_ERR_MEMORY;
    tsi_arena_release(&arena);
    return status;
}

/* ---- public ---------------------------------------------------------------------------------- */

static const tsi_entry *entry_at(const ts_archive *c, int64_t index)
{
    return c && index >= 0 && index < c->count ? &c->entry[index] : NULL;
}

ts_status ts_archive_read(ts_archive *c, int64_t index, int64_t first, int64_t count,
                          ts_dtype dtype, void *to)
{
    const tsi_entry *e = entry_at(c, index);
    if (!e || (!to && count > 0))
        return TSI_FAIL(TS_ERR_NULL, "archive_read: there is no such tensor, or no memory");
    int64_t all = ts_shape_count(&e->meta.shape);
    if (first < 0 || count < 0 || first > all - count)
        return TSI_FAIL(TS_ERR_ARG, "archive_read: %s has %lld elements, not %lld from %lld on",
                        e->name, (long long)all, (long long)count, (long long)first);
    return tsi_archive_read_range(c, e, first, count, dtype, to);
}

ts_status ts_archive_hash(ts_archive *c, int64_t index, uint64_t *out)
{
    const tsi_entry *e = entry_at(c, index);
    if (!e || !out) return TSI_FAIL(TS_ERR_NULL, "archive_hash: there is no such tensor");
    ts_dtype dtype = (ts_dtype)e->meta.dtype;
    size_t size = ts_dtype_size(dtype);
    int64_t all = ts_shape_count(&e->meta.shape), piece = HASH_PIECE / (int64_t)size;
    void *buffer = tsi_alloc(HASH_PIECE);
    if (!buffer) return tsi_fail_memory("a piece of a tensor", HASH_PIECE);
    uint64_t sum = 0;
    ts_status status = TS_OK;
    for (int64_t at = 0; at < all && status == TS_OK; at += piece) {
        int64_t count = tsi_min_i64(piece, all - at);
        status = tsi_archive_read_range(c, e, at, count, dtype, buffer);
        if (status == TS_OK) sum += tsi_digest_elements(dtype, at, buffer, count);
    }
    tsi_free(buffer);
    *out = status == TS_OK ? tsi_digest_tensor(&e->meta, sum) : 0;
    return status;
}

uint64_t ts_hash_block(const void *data, size_t bytes)
{
    return tsi_digest_block(data, bytes);
}

uint64_t ts_hash_elements(ts_dtype dtype, int64_t first, const void *data, int64_t count)
{
    return tsi_digest_elements(dtype, first, data, count);
}

uint64_t ts_hash_tensor(const ts_meta *meta, uint64_t sum)
{
    return tsi_digest_tensor(meta, sum);
}

uint64_t ts_archive_hash_add(uint64_t hash, const char *name, uint64_t tensor)
{
    return hash + tsi_digest_named(name, tensor);
}
