/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c - moving elements from pieces of files to memory: see the head of transfer.h.
 *
 * Long runs go straight to where they belong; short ones through a window of at most TSI_WINDOW
 * bytes. */
#include "checkpoint/transfer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/log.h"
#include "base/rank.h"
#include "device/device.h"

enum { DIRECT_MAX = 8 << 20 };

/* ---- one piece of a file --------------------------------------------------------------------- */

size_t tsi_transfer_element_bytes(const tsi_transfer *t)
{
    return t->entry->float8 ? 1 : ts_dtype_size((ts_dtype)t->entry->meta.dtype);
}

static bool is_as_stored(const tsi_transfer *t)
{
    return t->dtype == (ts_dtype)t->entry->meta.dtype && !t->entry->float8;
}

static ts_status read_parts(tsi_transfer *t, int64_t offset, const struct iovec *to, int64_t count)
{
    ts_archive *c = t->archive;
    tsi_source *s = &t->source;
    for (int64_t i = 0; i < count; i++)
        c->bytes_read += (int64_t)to[i].iov_len;
    if (s->file) return tsi_data_read(s->file, s->stored, offset, to, count, !c->unverified);
    if (!t->entry->boxes) return tsi_weights_read_parts(c->weights, s->stored, offset, to, count);
    TSI_ASSERT(count == 1);
    return tsi_dcp_read(c->dcp, t->entry->boxes, s->box, offset, to->iov_len, to->iov_base);
}

/* Finds copy `copy` of a slot of the writer's block. */
static ts_status open_copy(tsi_transfer *t, int64_t slot, int64_t copy, const tsi_share *share)
{
    tsi_source *s = &t->source;
    *s = (tsi_source){ .slot = -1 };
    int64_t writer = tsi_share_writer(&t->rule, t->entry->layout, t->coord, slot, copy);
    TSI_TRY(tsi_archive_file_of(t->archive, writer, &s->file));
    char *other = copy ? tsi_data_copy_name(t->entry->name, copy) : NULL;
    s->stored = tsi_data_find(s->file, other ? other : t->entry->name);
    tsi_free(other);
    s->bytes = share->count * (int64_t)tsi_transfer_element_bytes(t);
    if (!s->stored || s->stored->end - s->stored->begin != s->bytes)
        return TSI_FAIL(TS_ERR_IO, "%s: the file of rank %lld has not its part of \"%.200s\"",
                        t->archive->path, (long long)writer, t->entry->name);
    s->slot = slot;
    s->copy = copy;
    return TS_OK;
}

static int64_t copies_of(const tsi_transfer *t)
{
    return t->entry->layout ? tsi_min_i64(t->archive->index.copies, t->rule.holders) : 1;
}

static ts_status read_copy(tsi_transfer *t, int64_t slot, int64_t copy, const tsi_share *share,
                           int64_t offset, const struct iovec *to, int64_t count)
{
    bool open = t->source.slot == slot && t->source.copy == copy;
    if (!open && t->entry->layout) TSI_TRY(open_copy(t, slot, copy, share));
    return read_parts(t, offset, to, count);
}

/* What another copy repairs is no failure of the rank that reads. */
ts_status tsi_transfer_read(tsi_transfer *t, int64_t slot, const tsi_share *share, int64_t offset,
                            const struct iovec *to, int64_t count)
{
    ts_rank *me = tsi_rank_current();
    int64_t first = t->source.slot == slot ? t->source.copy : 0, copies = copies_of(t);
    for (int64_t i = 0; i + 1 < copies; i++) {
        tsi_rank_set_current(NULL);
        ts_status status = read_copy(t, slot, (first + i) % copies, share, offset, to, count);
        tsi_rank_set_current(me);
        if (status == TS_OK && i > 0) t->archive->blocks_repaired++;
        if (status == TS_OK) return TS_OK;
        tsi_log(TSI_LOG_WARN, "%s; another copy is read", ts_last_error());
        t->source.slot = -1;
    }
    TSI_TRY(read_copy(t, slot, (first + copies - 1) % copies, share, offset, to, count));
    if (copies > 1) t->archive->blocks_repaired++;
    return TS_OK;
}

/* ---- elements to where they belong ----------------------------------------------------------- */

static ts_status put(tsi_transfer *t, int64_t to, const void *from, int64_t count)
{
    char *target = t->target + (size_t)to * ts_dtype_size(t->dtype);
    if (t->dtype == (ts_dtype)t->entry->meta.dtype) {
        memcpy(target, from, (size_t)count * ts_dtype_size(t->dtype));
        return TS_OK;
    }
    union {
        const void *given;
        void *data;
    } same = { .given = from };
    tsi_block a = { .data = same.data,
                    .dtype = t->entry->meta.dtype,
                    .ndim = 1,
                    .extent = { count },
                    .stride = { 1 } };
    tsi_block b = {
        .data = target, .dtype = (int32_t)t->dtype, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    const tsi_device *host = tsi_device_host();
    return host->copy(host, &b, &a, NULL);
}

/* Numbers in 8 bits, a few at a time. `first`: their place in the tensor. */
static ts_status put_float8(tsi_transfer *t, int64_t first, int64_t to, const char *from,
                            int64_t count)
{
    enum { FEW = 1024 };
    float numbers[FEW];
    for (int64_t done = 0, n; done < count; done += n) {
        n = tsi_min_i64(FEW, count - done);
        TSI_TRY(tsi_archive_decode(t->archive, t->entry, first + done, from + done, n, numbers));
        TSI_TRY(put(t, to + done, numbers, n));
    }
    return TS_OK;
}

ts_status tsi_transfer_put(tsi_transfer *t, int64_t first, int64_t to, const char *from,
                           int64_t count)
{
    return t->entry->float8 ? put_float8(t, first, to, from, count) : put(t, to, from, count);
}

bool tsi_transfer_is_verified(const tsi_transfer *t)
{
    return t->entry->layout && !t->archive->unverified;
}

/* Up to where bytes of the piece may be read straight into the target, from `begin`; 0: not. */
static int64_t direct_bytes(const tsi_transfer *t, int64_t begin, int64_t end)
{
    bool blocks = tsi_transfer_is_verified(t);
    if (!is_as_stored(t)) return 0;
    if (blocks && begin % TSI_BLOCK_BYTES != 0) return 0;
    if (end - begin > DIRECT_MAX) end = begin + DIRECT_MAX;
    if (blocks && end != t->source.bytes) end -= end % TSI_BLOCK_BYTES;
    return end - begin >= TSI_DIRECT_MIN || (blocks && end > begin) ? end - begin : 0;
}

ts_status tsi_transfer_make_window(ts_archive *c)
{
    if (!c->window) c->window = tsi_alloc_aligned(TSI_WINDOW, 64);
    return c->window ? TS_OK : tsi_fail_memory("a window of a file", TSI_WINDOW);
}

/* The window holds whole blocks from the one of `begin` on: what is wanted, and more where it goes
 * on from the last. */
static ts_status fill_window(tsi_transfer *t, int64_t slot, const tsi_share *share, int64_t begin,
                             int64_t end)
{
    ts_archive *c = t->archive;
    tsi_source *s = &t->source;
    TSI_TRY(tsi_transfer_make_window(c));
    bool goes_on = s->end > s->begin && begin >= s->end && begin - s->end < TSI_WINDOW / 4;
    int64_t block = t->entry->layout ? TSI_BLOCK_BYTES : 1;
    int64_t last = (t->wanted - share->first) * (int64_t)tsi_transfer_element_bytes(t);
    int64_t from = begin / block * block;
    int64_t to = tsi_round_up(goes_on ? tsi_min_i64(begin + TSI_WINDOW, last) : end, block);
    to = tsi_min_i64(tsi_min_i64(to, from + TSI_WINDOW), s->bytes);
    s->begin = s->end = 0;
    TSI_ASSERT(to > begin); /* or the caller would not come forward */
    struct iovec window = { c->window, (size_t)(to - from) };
    TSI_TRY(tsi_transfer_read(t, slot, share, from, &window, 1));
    s->begin = from;
    s->end = to;
    return TS_OK;
}

/* Elements [first, first + count) of the current slot. */
static ts_status move_slot(tsi_transfer *t, int64_t slot, const tsi_share *share, int64_t first,
                           int64_t to, int64_t count)
{
    int64_t size = (int64_t)tsi_transfer_element_bytes(t);
    int64_t begin = (first - share->first) * size, end = begin + count * size;
    if (t->source.slot != slot) {
        /* A copy that cannot be opened is one that cannot be read: read_piece tries the others. */
        t->source = (tsi_source){ .slot = -1, .bytes = share->count * size };
    }
    while (begin < end) {
        tsi_source *s = &t->source;
        int64_t bytes = direct_bytes(t, begin, end);
        if (s->slot == slot && begin >= s->begin && begin < s->end) {
            bytes = tsi_min_i64(end, s->end) - begin;
            const char *from = t->archive->window + (begin - s->begin);
            TSI_TRY(tsi_transfer_put(t, begin / size, to, from, bytes / size));
        } else if (bytes > 0) {
            struct iovec place = { t->target + (size_t)(to * size), (size_t)bytes };
            TSI_TRY(tsi_transfer_read(t, slot, share, begin, &place, 1));
        } else {
            TSI_TRY(fill_window(t, slot, share, begin, end));
            continue;
        }
        begin += bytes;
        to += bytes / size;
    }
    return TS_OK;
}

ts_status tsi_transfer_move(tsi_transfer *t, int64_t first, int64_t to, int64_t count)
{
    while (count > 0) {
        int64_t slot = 0, n = count;
        tsi_share share = { 0, t->source.bytes / (int64_t)tsi_transfer_element_bytes(t) };
        if (t->entry->layout) share = tsi_share_find(&t->rule, first, &slot);
        n = tsi_min_i64(n, share.first + share.count - first);
        TSI_ASSERT(n > 0);
        TSI_TRY(move_slot(t, slot, &share, first, to, n));
        first += n;
        to += n;
        count -= n;
    }
    return TS_OK;
}

/* ---- regions --------------------------------------------------------------------------------- */

int64_t tsi_place_in(const tsi_region *region, const ts_shape *view, int64_t global)
{
    int64_t place = 0, stride = 1;
    for (int32_t d = view->ndim - 1; d >= 0; d--) {
        const tsi_span_list *list = &region->dim[d];
        int64_t index = global % view->extent[d];
        global /= view->extent[d];
        bool whole = list->total == view->extent[d];
        place += (whole ? index : tsi_span_list_find(list, index)) * stride;
        stride *= list->total;
    }
    return place;
}

int64_t tsi_first_of(const tsi_region *region, const ts_shape *view)
{
    int64_t first = 0;
    for (int32_t d = 0; d < view->ndim; d++)
        first = first * view->extent[d] + tsi_span_list_at(&region->dim[d], 0);
    return first;
}

int64_t tsi_last_of(const tsi_region *region, const ts_shape *view)
{
    int64_t last = 0;
    for (int32_t d = 0; d < view->ndim; d++)
        last = last * view->extent[d] + tsi_span_list_at(&region->dim[d], region->dim[d].total - 1);
    return last;
}

/* ---- blocks of the writer, by their numbers -------------------------------------------------- */

int64_t tsi_archive_block_count(const tsi_entry *entry)
{
    int64_t count = 1;
    const ts_layout *layout = entry->layout;
    for (int32_t k = 0; layout && k < layout->sharding->mesh->ndim; k++)
        if (layout->axes_cut & 1u << k) count *= layout->sharding->mesh->size[k];
    return entry->boxes ? entry->boxes->chunk_count : count;
}

void tsi_block_coord(const ts_layout *layout, int64_t number, int64_t *coord)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        coord[k] = 0;
        if (!(layout->axes_cut & 1u << k)) continue;
        coord[k] = number % mesh->size[k];
        number /= mesh->size[k];
    }
}

static bool box_region(const tsi_dcp_chunk *box, const ts_shape *shape, uint32_t joined,
                       tsi_arena *arena, tsi_region *out)
{
    ts_shape view = *shape;
    *out = (tsi_region){ .ndim = shape->ndim };
    for (int32_t d = 0; d < shape->ndim; d++) {
        tsi_span span = { box->first[d], box->extent[d], box->extent[d], 1 };
        if (!tsi_span_list_append(&out->dim[d], span, arena)) return false;
    }
    for (int32_t d = shape->ndim - 1; d > 0; d--) {
        if (!(joined & 1u << (d - 1))) continue;
        tsi_region apart = *out;
        if (!tsi_region_join(&apart, &view, d - 1, d, arena, out)) return false;
        view.extent[d - 1] *= view.extent[d];
        for (int32_t e = d; e + 1 < view.ndim; e++)
            view.extent[e] = view.extent[e + 1];
        view.ndim--;
    }
    return true;
}

bool tsi_transfer_block(tsi_transfer *t, int64_t number, uint32_t joined, tsi_arena *arena)
{
    const tsi_entry *e = t->entry;
    if (e->boxes)
        return box_region(&e->boxes->chunk[number], &e->meta.shape, joined, arena, &t->from);
    if (!e->layout) return true;
    tsi_block_coord(e->layout, number, t->coord);
    tsi_share_rule_of(e->layout, t->coord, e->name, tsi_transfer_element_bytes(t), &t->rule);
    return tsi_layout_region_joined(e->layout, t->coord, joined, arena, &t->from);
}

void tsi_whole_of(const ts_shape *shape, uint32_t joined, ts_shape *view, tsi_region *out)
{
    *view = (ts_shape){ 0 };
    for (int32_t d = 0; d < shape->ndim; d++) {
        if (d > 0 && (joined & 1u << (d - 1)))
            view->extent[view->ndim - 1] *= shape->extent[d];
        else
            view->extent[view->ndim++] = shape->extent[d];
    }
    *out = (tsi_region){ .ndim = view->ndim };
    for (int32_t d = 0; d < view->ndim; d++)
        out->dim[d] = tsi_span_list_whole(view->extent[d]);
}

uint32_t tsi_joined_of(const ts_layout *layout)
{
    return layout ? layout->sharding->joined : 0;
}
