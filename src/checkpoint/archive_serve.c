/* SPDX-License-Identifier: Apache-2.0 */
/* archive_serve.c - chunks of the writer's blocks, each read once for all ranks of a process that
 * want something of it (together.h).
 *
 *   chunk    [aaaa|bbbb|aaaa|bbbb|....]      runs that ranks a and b want, and what none wants
 *   parts     a.0  b.0  a.1  b.1  window     of one call that reads to where they belong
 *
 * Runs that are short, or of another dtype, are copied out of the window. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "checkpoint/transfer.h"
#include "device/device.h"

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
    int64_t low, high; /* of them: the first that somebody wants, and behind the last */
    uint32_t joined;   /* dims that both sides see as one */
    int32_t reserved;
    tsi_region rows; /* the block, cut to the rows that they lie in */
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

/* What of those rows a target wants; then t->to is what it has in all. */
static ts_status wanted_by(tsi_transfer *t, const serving *s, const tsi_archive_target *target,
                           tsi_arena *arena, tsi_region *part)
{
    if (tsi_layout_region_joined(target->layout, target->coord, s->joined, arena, &t->to) &&
        tsi_region_intersect(&s->rows, &t->to, arena, part))
        return TS_OK;
    return TS_ERR_MEMORY;
}

/* The bytes of the piece that must be read for [low, high): whole blocks, which have hashes. */
static void bytes_of(const tsi_transfer *t, const serving *s, const tsi_share *share,
                     int64_t *begin, int64_t *end)
{
    int64_t size = (int64_t)tsi_transfer_element_bytes(t),
            block = t->entry->layout ? TSI_BLOCK_BYTES : size;
    *begin = (s->low - share->first) * size / block * block;
    *end = tsi_min_i64(tsi_round_up((s->high - share->first) * size, block), t->source.bytes);
}

/* ---- straight to where it belongs ------------------------------------------------------------ */

/* Below that many bytes for each run it costs less to copy out of the window. */
enum { RUN_BYTES = 256, RUNS_MAX = TSI_CHUNK_BYTES / RUN_BYTES, WISHES_MAX = 256 };

typedef struct run { /* elements [first, end) of the writer's block */
    int64_t first, end;
    char *to;
} run;

typedef struct wish { /* runs of one target, in their order: those of a box */
    const tsi_archive_target *target;
    const run *first, *next, *end;
} wish;

struct tsi_dealing { /* of one chunk; the archive keeps the memory for the next */
    const tsi_archive_target *target;
    serving *serving;
    int64_t element_bytes;
    int64_t word;               /* bytes that a hash takes at a time; 1: no hash is asked for */
    int64_t wishes, runs, fits; /* fits 0: runs are too short, or hashes cannot take them apart */
    wish wish[WISHES_MAX];
    run run[RUNS_MAX];
    struct iovec part[2 * RUNS_MAX + 1];
};

static void add_run(struct tsi_dealing *d, int64_t first, int64_t end, int64_t to)
{
    int64_t size = d->element_bytes;
    d->fits = d->runs < RUNS_MAX && ((first * size | end * size) & (d->word - 1)) == 0;
    if (!d->fits) return;
    d->run[d->runs++] = (run){ first, end, (char *)d->target->data + to * size };
    d->serving->low = tsi_min_i64(d->serving->low, first);
    d->serving->high = tsi_max_i64(d->serving->high, end);
}

/* `count` runs of `length`, the first at `from` of the block and `to` of the target. */
static void add_rows(struct tsi_dealing *d, int64_t count, int64_t length, const int64_t *step,
                     int64_t from, int64_t to)
{
    int64_t low = d->serving->first, high = d->serving->end, i = 0;
    if (count > 1 && from + length <= low) i = tsi_ceil_div(low - from - length + 1, step[0]);
    for (; i < count && d->fits; i++) {
        int64_t at = from + i * step[0], skipped = tsi_max_i64(low - at, 0);
        if (at >= high) break;
        if (skipped < length)
            add_run(d, at + skipped, tsi_min_i64(at + length, high), to + i * step[1] + skipped);
    }
}

static void set_dim(tsi_block *block, int32_t d, int64_t extent, int64_t stride)
{
    block->extent[d] = extent;
    block->stride[d] = stride;
}

/* The box as a pair of blocks, with few dims, in the order of the first; those of periods too. */
static void simplify(const tsi_box *box, tsi_block *from, tsi_block *to)
{
    *from = *to = (tsi_block){ .ndim = box->ndim };
    for (int32_t d = 0; d < box->ndim; d++) {
        int32_t e = d;
        for (; e > 0 && from->stride[e - 1] < box->stride_a[d]; e--) {
            set_dim(from, e, from->extent[e - 1], from->stride[e - 1]);
            set_dim(to, e, to->extent[e - 1], to->stride[e - 1]);
        }
        set_dim(from, e, box->extent[d], box->stride_a[d]);
        set_dim(to, e, box->extent[d], box->stride_b[d]);
    }
    tsi_block_coalesce_pair(from, to);
    if (from->ndim > 0) return;
    from->ndim = to->ndim = 1; /* one element */
    set_dim(from, 0, 1, 1);
    set_dim(to, 0, 1, 1);
}

/* The runs of a box: its last dim, of which that before it has rows. */
static bool add_box(const tsi_box *box, void *context)
{
    struct tsi_dealing *d = context;
    tsi_block a, b;
    simplify(box, &a, &b);
    int32_t last = a.ndim - 1, outer = last > 0 ? last - 1 : 0;
    bool apart = a.extent[last] > 1 && (a.stride[last] != 1 || b.stride[last] != 1);
    d->fits = d->fits && !apart && d->wishes < WISHES_MAX;
    if (!d->fits) return false;
    wish *w = &d->wish[d->wishes++];
    w->target = d->target;
    w->first = w->next = &d->run[d->runs];
    int64_t index[TS_NDIM_MAX] = { 0 }, step[2] = { 1, 1 }, rows = 1;
    int64_t from = box->offset_a, to = box->offset_b;
    if (last > 0) {
        step[0] = a.stride[last - 1];
        step[1] = b.stride[last - 1];
        rows = a.extent[last - 1];
    }
    for (int32_t k = 0; k >= 0;) {
        add_rows(d, rows, a.extent[last], step, from, to);
        for (k = outer - 1; k >= 0; k--) { /* the next row-major index of the outer dims */
            from += a.stride[k];
            to += b.stride[k];
            if (++index[k] < a.extent[k]) break;
            from -= index[k] * a.stride[k];
            to -= index[k] * b.stride[k];
            index[k] = 0;
        }
    }
    w->end = &d->run[d->runs];
    return d->fits;
}

static bool hold_the_same(const tsi_archive_target *a, const tsi_archive_target *b)
{
    for (int32_t k = 0; k < a->layout->sharding->mesh->ndim; k++)
        if ((a->layout->axes_cut & 1u << k) && a->coord[k] != b->coord[k]) return false;
    return true;
}

/* Of those that hold the same, the first. */
static const tsi_archive_target *first_like(const tsi_archive_target *all,
                                            const tsi_archive_target *one)
{
    while (!hold_the_same(all, one))
        all++;
    return all;
}

static ts_status collect_wishes(tsi_transfer *t, serving *s, const tsi_archive_target *target,
                                int64_t count, tsi_arena *arena)
{
    ts_archive *c = t->archive;
    if (!c->dealing) c->dealing = tsi_alloc(sizeof *c->dealing);
    if (!c->dealing) return tsi_fail_memory("the parts of a chunk", sizeof *c->dealing);
    struct tsi_dealing *d = c->dealing;
    d->serving = s;
    d->element_bytes = (int64_t)tsi_transfer_element_bytes(t);
    d->word = tsi_transfer_is_verified(t) ? 4 : 1;
    d->wishes = d->runs = 0;
    d->fits = !t->entry->float8;
    for (int64_t i = 0; i < count && d->fits; i++) {
        tsi_region part;
        d->target = &target[i];
        d->fits = target[i].dtype == (ts_dtype)t->entry->meta.dtype;
        if (!d->fits || first_like(target, d->target) != d->target) continue;
        TSI_TRY(wanted_by(t, s, d->target, arena, &part));
        if (!tsi_region_boxes(&part, &t->from, &t->to, arena, add_box, d) && d->fits)
            return TS_ERR_MEMORY;
    }
    return TS_OK;
}

/* The wish whose next run comes first, most often the one after the last; NULL: none is left. */
static wish *next_wish(struct tsi_dealing *d, const wish *last, int64_t at)
{
    wish *best = NULL;
    int64_t place = last - d->wish;
    for (int64_t i = 0; i < d->wishes; i++) {
        place = place + 1 < d->wishes ? place + 1 : 0;
        wish *one = &d->wish[place];
        if (one->next == one->end) continue;
        if (one->next->first == at) return one;
        if (!best || one->next->first < best->next->first) best = one;
    }
    return best;
}

/* Elements [first, end) one after the other: to the ranks, and to the window what none wants. -1:
 * some are wanted twice, or in another order. */
static int64_t deal_parts(const tsi_transfer *t, int64_t first, int64_t end)
{
    struct tsi_dealing *d = t->archive->dealing;
    size_t size = tsi_transfer_element_bytes(t);
    char *window = t->archive->window;
    int64_t count = 0, at = first;
    for (wish *w = d->wish; (w = next_wish(d, w, at));) {
        const run *r = w->next++;
        if (r->first < at) return -1;
        size_t gap = (size_t)(r->first - at) * size;
        if (gap > 0) d->part[count++] = (struct iovec){ window + (size_t)(at - first) * size, gap };
        d->part[count++] = (struct iovec){ r->to, (size_t)(r->end - r->first) * size };
        at = r->end;
    }
    size_t rest = (size_t)(end - at) * size;
    if (rest > 0) d->part[count++] = (struct iovec){ window + (size_t)(at - first) * size, rest };
    return count;
}

/* To the target what the first of those that hold the same has got. */
static void copy_runs(const wish *from, const tsi_archive_target *target, size_t size)
{
    for (const run *r = from->first; r < from->end; r++)
        memcpy((char *)target->data + (r->to - (char *)from->target->data), r->to,
               (size_t)(r->end - r->first) * size);
}

/* Reads the chunk to where its elements belong. *done false: it must go through the window. */
static ts_status deal(tsi_transfer *t, const serving *s, int64_t slot, const tsi_share *share,
                      const tsi_archive_target *target, int64_t count, bool *done)
{
    struct tsi_dealing *d = t->archive->dealing;
    size_t size = tsi_transfer_element_bytes(t);
    int64_t begin, end;
    bytes_of(t, s, share, &begin, &end);
    int64_t parts =
        deal_parts(t, share->first + begin / (int64_t)size, share->first + end / (int64_t)size);
    *done = parts >= 0;
    if (!*done) return TS_OK;
    TSI_TRY(tsi_transfer_read(t, slot, share, begin, d->part, parts));
    for (int64_t i = 0; i < count; i++) {
        const tsi_archive_target *like = first_like(target, &target[i]);
        for (const wish *w = d->wish; w < d->wish + d->wishes && like != &target[i]; w++)
            if (w->target == like) copy_runs(w, &target[i], size);
    }
    return TS_OK;
}

/* ---- by the window --------------------------------------------------------------------------- */

/* Puts what of [first, end) the target wants there, or (window NULL) notes how far that reaches. */
static ts_status serve_target(tsi_transfer *t, serving *s, const tsi_archive_target *target,
                              const char *window, tsi_arena *arena)
{
    tsi_region part;
    TSI_TRY(wanted_by(t, s, target, arena, &part));
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
    tsi_region_iterator walk;
    tsi_region_iterate(&walk, &part, &t->view);
    while (tsi_region_next(&walk)) {
        int64_t at = tsi_place_in(&t->from, &t->view, walk.global), to = at + walk.length;
        int64_t from = tsi_max_i64(at, s->first), end = tsi_min_i64(to, s->end);
        if (from >= end) continue;
        to = tsi_place_in(&t->to, &t->view, walk.global) + (from - at);
        const char *data = window + (from - s->first) * size;
        TSI_TRY(tsi_transfer_put(t, from, to, data, end - from));
    }
    return TS_OK;
}

static ts_status serve(tsi_transfer *t, serving *s, int64_t slot, const tsi_share *share,
                       const tsi_archive_target *target, int64_t count, tsi_arena *arena)
{
    s->joined = tsi_joined_of(target[0].layout) | tsi_joined_of(t->entry->layout);
    tsi_whole_of(&t->entry->meta.shape, s->joined, &t->view, &t->from);
    if (!tsi_transfer_block(t, t->source.box, s->joined, arena) || !cut_rows(t, s, arena))
        return TS_ERR_MEMORY;
    TSI_TRY(tsi_transfer_make_window(t->archive));
    TSI_TRY(collect_wishes(t, s, target, count, arena));
    bool fits = t->archive->dealing->fits != 0;
    for (int64_t i = 0; i < count && !fits; i++)
        TSI_TRY(serve_target(t, s, &target[i], NULL, arena));
    if (s->low >= s->high) return TS_OK; /* of interest to other processes alone */
    if (fits) TSI_TRY(deal(t, s, slot, share, target, count, &fits));
    if (fits) return TS_OK;
    int64_t begin, end, size = (int64_t)tsi_transfer_element_bytes(t);
    bytes_of(t, s, share, &begin, &end);
    struct iovec window = { t->archive->window, (size_t)(end - begin) };
    TSI_TRY(tsi_transfer_read(t, slot, share, begin, &window, 1));
    s->first = share->first + begin / size;
    s->end = share->first + end / size;
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(serve_target(t, s, &target[i], t->archive->window, arena));
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
