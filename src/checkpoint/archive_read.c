/* SPDX-License-Identifier: Apache-2.0 */
/* archive_read.c - from the files of a checkpoint to any region of a tensor.
 *
 * Block by block of the writer: what it shares with the target is walked in runs that are
 * contiguous on both sides, so each file is read forwards. Long runs go straight to where they
 * belong; short ones through a window of at most WINDOW bytes.
 *
 *   writer's block   [..####..|..####..|....]      slots: files of the ranks that held it
 *   runs                ||||      ||||
 *   target           [####|####|..............] */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/log.h"
#include "checkpoint/archive.h"
#include "checkpoint/digest.h"
#include "checkpoint/share.h"
#include "device/device.h"

enum {
    WINDOW = TSI_CHUNK_BYTES,
    DIRECT_MIN = 64 << 10,
    DIRECT_MAX = 8 << 20,
    HASH_PIECE = 1 << 20
};

typedef struct source {  /* a piece of a file, or a whole tensor of one */
    tsi_data_file *file; /* NULL: published */
    const tsi_stored *stored;
    int64_t slot;       /* which one it is; -1: none */
    int64_t copy;       /* of it */
    int64_t box;        /* of a list of them; else 0 */
    int64_t bytes;      /* of the piece */
    int64_t begin, end; /* what of it lies in the window */
} source;

typedef struct transfer {
    ts_archive *archive;
    const tsi_entry *entry;
    ts_shape view; /* the tensor's extents as both sides cut them */
    tsi_region from, to;
    int64_t low, high;          /* the first and the last element of `to` */
    int64_t coord[TS_NDIM_MAX]; /* of the writer's block */
    int64_t wanted;             /* elements of it up to the last that is wanted */
    tsi_share_rule rule;
    source source;
    char *target;
    ts_dtype dtype;
} transfer;

/* ---- one piece of a file --------------------------------------------------------------------- */

/* Of an element in the file. */
static size_t element_bytes(const transfer *t)
{
    return t->entry->float8 ? 1 : ts_dtype_size((ts_dtype)t->entry->meta.dtype);
}

static bool is_as_stored(const transfer *t)
{
    return t->dtype == (ts_dtype)t->entry->meta.dtype && !t->entry->float8;
}

/* Bytes of the current piece, into memory or the window. */
static ts_status read_bytes(transfer *t, int64_t offset, size_t bytes, void *to)
{
    ts_archive *c = t->archive;
    source *s = &t->source;
    c->bytes_read += (int64_t)bytes;
    if (t->entry->boxes) return tsi_dcp_read(c->dcp, t->entry->boxes, s->box, offset, bytes, to);
    if (!s->file) return tsi_weights_read_bytes(c->weights, s->stored, offset, bytes, to);
    return tsi_data_read(s->file, s->stored, offset, bytes, to, !c->unverified);
}

/* Finds copy `copy` of a slot of the writer's block. */
static ts_status open_copy(transfer *t, int64_t slot, int64_t copy, const tsi_share *share)
{
    source *s = &t->source;
    *s = (source){ .slot = -1 };
    int64_t writer = tsi_share_writer(&t->rule, t->entry->layout, t->coord, slot, copy);
    TSI_TRY(tsi_archive_file_of(t->archive, writer, &s->file));
    char *other = copy ? tsi_data_copy_name(t->entry->name, copy) : NULL;
    s->stored = tsi_data_find(s->file, other ? other : t->entry->name);
    tsi_free(other);
    s->bytes = share->count * (int64_t)element_bytes(t);
    if (!s->stored || s->stored->end - s->stored->begin != s->bytes)
        return TSI_FAIL(TS_ERR_IO, "%s: the file of rank %lld has not its part of \"%.200s\"",
                        t->archive->path, (long long)writer, t->entry->name);
    s->slot = slot;
    s->copy = copy;
    return TS_OK;
}

static int64_t copies_of(const transfer *t)
{
    return t->entry->layout ? tsi_min_i64(t->archive->index.copies, t->rule.holders) : 1;
}

/* Reads from the copy at hand, and from the others if that is damaged or gone. */
static ts_status read_piece(transfer *t, int64_t slot, const tsi_share *share, int64_t offset,
                            size_t bytes, void *to)
{
    ts_status status = TS_ERR_IO;
    int64_t first = t->source.slot == slot ? t->source.copy : 0, copies = copies_of(t);
    for (int64_t i = 0; i < copies && status != TS_OK; i++) {
        int64_t copy = (first + i) % copies;
        bool open = t->source.slot == slot && t->source.copy == copy;
        status = open || !t->entry->layout ? TS_OK : open_copy(t, slot, copy, share);
        if (status == TS_OK) status = read_bytes(t, offset, bytes, to);
        if (status == TS_OK && i > 0) t->archive->blocks_repaired++;
        if (status != TS_OK && i + 1 < copies) {
            tsi_log(TSI_LOG_WARN, "%s; another copy is read", ts_last_error());
            t->source.slot = -1;
        }
    }
    return status;
}

/* ---- elements to where they belong ----------------------------------------------------------- */

static ts_status put(transfer *t, int64_t to, const void *from, int64_t count)
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
static ts_status put_float8(transfer *t, int64_t first, int64_t to, const char *from, int64_t count)
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

static bool is_verified(const transfer *t)
{
    return t->entry->layout && !t->archive->unverified;
}

/* Up to where bytes of the piece may be read straight into the target, from `begin`; 0: not. */
static int64_t direct_bytes(const transfer *t, int64_t begin, int64_t end)
{
    bool blocks = is_verified(t);
    if (!is_as_stored(t)) return 0;
    if (blocks && begin % TSI_BLOCK_BYTES != 0) return 0;
    if (end - begin > DIRECT_MAX) end = begin + DIRECT_MAX;
    if (blocks && end != t->source.bytes) end -= end % TSI_BLOCK_BYTES;
    return end - begin >= DIRECT_MIN || (blocks && end > begin) ? end - begin : 0;
}

static ts_status make_window(ts_archive *c)
{
    if (!c->window) c->window = tsi_alloc_aligned(WINDOW, 64);
    return c->window ? TS_OK : tsi_fail_memory("a window of a file", WINDOW);
}

/* The window holds whole blocks from the one of `begin` on: what is wanted, and more where it goes
 * on from the last. */
static ts_status fill_window(transfer *t, int64_t slot, const tsi_share *share, int64_t begin,
                             int64_t end)
{
    ts_archive *c = t->archive;
    source *s = &t->source;
    TSI_TRY(make_window(c));
    bool goes_on = s->end > s->begin && begin >= s->end && begin - s->end < WINDOW / 4;
    int64_t block = t->entry->layout ? TSI_BLOCK_BYTES : 1;
    int64_t last = (t->wanted - share->first) * (int64_t)element_bytes(t);
    int64_t from = begin / block * block;
    int64_t to = tsi_round_up(goes_on ? tsi_min_i64(begin + WINDOW, last) : end, block);
    to = tsi_min_i64(tsi_min_i64(to, from + WINDOW), s->bytes);
    s->begin = s->end = 0;
    TSI_ASSERT(to > begin); /* or the caller would not come forward */
    TSI_TRY(read_piece(t, slot, share, from, (size_t)(to - from), c->window));
    s->begin = from;
    s->end = to;
    return TS_OK;
}

/* Elements [first, first + count) of the current slot. */
static ts_status move_slot(transfer *t, int64_t slot, const tsi_share *share, int64_t first,
                           int64_t to, int64_t count)
{
    int64_t size = (int64_t)element_bytes(t);
    int64_t begin = (first - share->first) * size, end = begin + count * size;
    if (t->source.slot != slot) {
        /* A copy that cannot be opened is one that cannot be read: read_piece tries the others. */
        t->source = (source){ .slot = -1, .bytes = share->count * size };
    }
    while (begin < end) {
        source *s = &t->source;
        int64_t bytes = direct_bytes(t, begin, end);
        if (s->slot == slot && begin >= s->begin && begin < s->end) {
            bytes = tsi_min_i64(end, s->end) - begin;
            const char *from = t->archive->window + (begin - s->begin);
            TSI_TRY(t->entry->float8 ? put_float8(t, begin, to, from, bytes)
                                     : put(t, to, from, bytes / size));
        } else if (bytes > 0) {
            TSI_TRY(
                read_piece(t, slot, share, begin, (size_t)bytes, t->target + (size_t)(to * size)));
        } else {
            TSI_TRY(fill_window(t, slot, share, begin, end));
            continue;
        }
        begin += bytes;
        to += bytes / size;
    }
    return TS_OK;
}

/* Elements [first, first + count) of the writer's block go to [to, to + count) of the target. */
static ts_status move_elements(transfer *t, int64_t first, int64_t to, int64_t count)
{
    while (count > 0) {
        int64_t slot = 0, n = count;
        tsi_share share = { 0, t->source.bytes / (int64_t)element_bytes(t) };
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

/* Where the element lies in the row-major block of a region that holds it. */
static int64_t place_in(const tsi_region *region, const ts_shape *view, int64_t global)
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

/* The first element of a region, and the last, by row-major index; the region is not empty. */
static int64_t first_of(const tsi_region *region, const ts_shape *view)
{
    int64_t first = 0;
    for (int32_t d = 0; d < view->ndim; d++)
        first = first * view->extent[d] + tsi_span_list_at(&region->dim[d], 0);
    return first;
}

static int64_t last_of(const tsi_region *region, const ts_shape *view)
{
    int64_t last = 0;
    for (int32_t d = 0; d < view->ndim; d++)
        last = last * view->extent[d] + tsi_span_list_at(&region->dim[d], region->dim[d].total - 1);
    return last;
}

/* What one block of the writer has of the target. */
static ts_status move_block(transfer *t, int64_t number, tsi_arena *arena)
{
    tsi_region part;
    if (!tsi_region_intersect(&t->from, &t->to, arena, &part)) return TS_ERR_MEMORY;
    t->source = (source){ .slot = -1 };
    if (!t->entry->layout)
        t->source = (source){ .stored = t->entry->stored,
                              .box = number,
                              .bytes = tsi_region_count(&t->from) * (int64_t)element_bytes(t) };
    t->wanted = place_in(&t->from, &t->view, last_of(&part, &t->view)) + 1;
    if (tsi_region_equal(&part, &t->from) && tsi_region_equal(&part, &t->to))
        return move_elements(t, 0, 0, tsi_region_count(&part)); /* cut as it was */
    tsi_region_iterator run;
    tsi_region_iterate(&run, &part, &t->view);
    while (tsi_region_next(&run))
        TSI_TRY(move_elements(t, place_in(&t->from, &t->view, run.global),
                              place_in(&t->to, &t->view, run.global), run.length));
    return TS_OK;
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

/* The coordinate of a block: row-major over the axes that cut; the others stay 0. */
static void block_coord(const ts_layout *layout, int64_t number, int64_t *coord)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        coord[k] = 0;
        if (!(layout->axes_cut & 1u << k)) continue;
        coord[k] = number % mesh->size[k];
        number /= mesh->size[k];
    }
}

/* Does a box reach between the first and the last element of the target? It costs less to ask. */
static bool is_near(const transfer *t, const tsi_dcp_chunk *box)
{
    const ts_shape *shape = &t->entry->meta.shape;
    int64_t low = 0, high = 0;
    for (int32_t d = 0; d < shape->ndim; d++) {
        low = low * shape->extent[d] + box->first[d];
        high = high * shape->extent[d] + box->first[d] + box->extent[d] - 1;
    }
    return low <= t->high && high >= t->low;
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

/* What a block holds; published tensors are one block, which is known. */
static bool block_region(transfer *t, int64_t number, uint32_t joined, tsi_arena *arena)
{
    const tsi_entry *e = t->entry;
    if (e->boxes)
        return box_region(&e->boxes->chunk[number], &e->meta.shape, joined, arena, &t->from);
    if (!e->layout) return true;
    block_coord(e->layout, number, t->coord);
    tsi_share_rule_of(e->layout, t->coord, e->name, element_bytes(t), &t->rule);
    return tsi_layout_region_joined(e->layout, t->coord, joined, arena, &t->from);
}

/* From the block `first` on: readers that begin at different ones do not wait for the same file,
 * and what one has read the next finds in the page cache. */
static ts_status move_blocks(transfer *t, uint32_t joined, int64_t first)
{
    int64_t count = tsi_archive_block_count(t->entry);
    ts_status status = TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; i++) {
        int64_t number = (first + i) % count;
        if (t->entry->boxes && !is_near(t, &t->entry->boxes->chunk[number])) continue;
        tsi_arena arena = { 0 };
        if (!block_region(t, number, joined, &arena)) status = TS_ERR_MEMORY;
        bool some = status == TS_OK && tsi_region_intersect_count(&t->from, &t->to) != 0;
        if (some) status = move_block(t, number, &arena);
        tsi_arena_release(&arena);
    }
    return status;
}

/* The extents with dims joined as the bits say, and all of them as a region. */
static void whole_of(const ts_shape *shape, uint32_t joined, ts_shape *view, tsi_region *out)
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

static uint32_t joined_of(const ts_layout *layout)
{
    return layout ? layout->sharding->joined : 0;
}

ts_status tsi_archive_read_block(ts_archive *c, const tsi_entry *entry, const ts_layout *to,
                                 const int64_t *coord, const tsi_block *target)
{
    transfer t = {
        .archive = c, .entry = entry, .target = target->data, .dtype = (ts_dtype)target->dtype
    };
    uint32_t joined = joined_of(to) | joined_of(entry->layout);
    const tsi_mesh_desc *mesh = to->sharding->mesh;
    int64_t reader = 0, first = 0;
    for (int32_t k = 0; k < mesh->ndim; k++)
        reader = reader * mesh->size[k] + coord[k];
    tsi_arena arena = { 0 };
    whole_of(&entry->meta.shape, joined, &t.view, &t.from);
    ts_status status = TS_OK;
    if (!tsi_layout_region_joined(to, coord, joined, &arena, &t.to)) status = TS_ERR_MEMORY;
    bool some = status == TS_OK && tsi_region_count(&t.to) != 0;
    if (some) {
        t.low = first_of(&t.to, &t.view);
        t.high = last_of(&t.to, &t.view);
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
    transfer t = { .archive = c, .entry = entry, .target = target, .dtype = dtype };
    if (count == 0) return TS_OK;
    t.low = first;
    t.high = first + count - 1;
    int32_t ndim = entry->meta.shape.ndim;
    uint32_t joined = ndim > 1 ? (1u << (ndim - 1)) - 1 : 0;
    whole_of(&entry->meta.shape, joined, &t.view, &t.from);
    t.to = t.from;
    tsi_arena arena = { 0 };
    tsi_span_list list = { 0 };
    bool good = ndim == 0 || tsi_span_list_cut(&t.from.dim[0], first, first + count, &arena, &list);
    if (good && ndim > 0) t.to.dim[0] = list;
    ts_status status = good ? move_blocks(&t, joined, 0) : TS_ERR_MEMORY;
    tsi_arena_release(&arena);
    return status;
}

/* ---- for several ranks at once --------------------------------------------------------------- */

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
        block_coord(e->layout, block, coord);
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
    transfer t = { .archive = (ts_archive *)(uintptr_t)c, .entry = entry };
    bool verified = is_verified(&t);
    int64_t stride = (int64_t)element_bytes(&t), least = verified ? WINDOW : DIRECT_MIN;
    if (entry->boxes || tsi_mul_most(to->count, stride) < DIRECT_MIN) return false;
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
static bool cut_rows(const transfer *t, serving *s, tsi_arena *arena)
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
static ts_status serve_target(transfer *t, serving *s, const tsi_archive_target *target,
                              uint32_t joined, const char *window, tsi_arena *arena)
{
    tsi_region part;
    if (!tsi_layout_region_joined(target->layout, target->coord, joined, arena, &t->to) ||
        !tsi_region_intersect(&s->rows, &t->to, arena, &part))
        return TS_ERR_MEMORY;
    if (tsi_region_count(&part) == 0) return TS_OK;
    if (!window) {
        int64_t low = place_in(&t->from, &t->view, first_of(&part, &t->view)),
                high = place_in(&t->from, &t->view, last_of(&part, &t->view)) + 1;
        s->low = tsi_min_i64(s->low, tsi_max_i64(low, s->first));
        s->high = tsi_max_i64(s->high, tsi_min_i64(high, s->end));
        return TS_OK;
    }
    int64_t size = (int64_t)element_bytes(t);
    t->target = target->data;
    t->dtype = target->dtype;
    tsi_region_iterator run;
    tsi_region_iterate(&run, &part, &t->view);
    while (tsi_region_next(&run)) {
        int64_t at = place_in(&t->from, &t->view, run.global), to = at + run.length;
        int64_t from = tsi_max_i64(at, s->first), end = tsi_min_i64(to, s->end);
        if (from >= end) continue;
        to = place_in(&t->to, &t->view, run.global) + (from - at);
        const char *data = window + (from - s->first) * size;
        TSI_TRY(t->entry->float8 ? put_float8(t, from, to, data, end - from)
                                 : put(t, to, data, end - from));
    }
    return TS_OK;
}

static ts_status serve(transfer *t, serving *s, int64_t slot, const tsi_share *share,
                       const tsi_archive_target *target, int64_t count, tsi_arena *arena)
{
    uint32_t joined = joined_of(target[0].layout) | joined_of(t->entry->layout);
    whole_of(&t->entry->meta.shape, joined, &t->view, &t->from);
    if (!block_region(t, t->source.box, joined, arena) || !cut_rows(t, s, arena))
        return TS_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(serve_target(t, s, &target[i], joined, NULL, arena));
    if (s->low >= s->high) return TS_OK; /* of interest to other processes alone */
    TSI_TRY(make_window(t->archive));
    int64_t size = (int64_t)element_bytes(t), block = t->entry->layout ? TSI_BLOCK_BYTES : size;
    int64_t begin = (s->low - share->first) * size / block * block;
    int64_t end =
        tsi_min_i64(tsi_round_up((s->high - share->first) * size, block), t->source.bytes);
    TSI_TRY(read_piece(t, slot, share, begin, (size_t)(end - begin), t->archive->window));
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
    transfer t = { .archive = c, .entry = entry };
    t.source = (source){ .slot = entry->layout ? -1 : slot,
                         .stored = entry->stored,
                         .box = block,
                         .bytes = share.count * (int64_t)element_bytes(&t) };
    serving s = { .first = first, .end = end, .low = end, .high = first };
    tsi_arena arena = { 0 };
    ts_status status = serve(&t, &s, slot, &share, target, count, &arena);
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
