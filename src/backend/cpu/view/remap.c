/* SPDX-License-Identifier: Apache-2.0 */
/* remap.c - elements that go somewhere else by index arithmetic, on all threads: cat, stack, pad,
 * flip, roll, repeat, slice.
 *
 * A copy is cut along its outer dims, as the result lies in memory; each piece is copied by the
 * device as it copies anything. What a constant fills beside the copies (pad) is filled as boxes
 * around them, where there is one copy and it is dense in the result; else first, all over. */
#include "backend/cpu/data.h"
#include "op/view/attributes.h"
#include "op/view/remap_box.h"

enum { GRAIN = 32768, PIECES = 64 };

/* ---- whole blocks ---------------------------------------------------------------------------- */

typedef struct slabs {
    tsi_block to, from;
    const void *element; /* a fill, not a copy */
    const tsi_device *device;
    int32_t outer, reserved; /* dims that are cut */
    _Atomic int failed;      /* a status; any one of them, since all say the same */
} slabs;

static void swap_dims(tsi_block *block, int32_t a, int32_t b)
{
    int64_t extent = block->extent[a], stride = block->stride[a];
    block->extent[a] = block->extent[b];
    block->stride[a] = block->stride[b];
    block->extent[b] = extent;
    block->stride[b] = stride;
}

static int64_t size_of_step(int64_t step)
{
    return step < 0 ? -step : step;
}

/* The slowest dim of the result first. */
static void sort_dims(slabs *s)
{
    for (int32_t i = 1; i < s->to.ndim; i++)
        for (int32_t j = i;
             j > 0 && size_of_step(s->to.stride[j - 1]) < size_of_step(s->to.stride[j]); j--) {
            swap_dims(&s->to, j - 1, j);
            swap_dims(&s->from, j - 1, j);
        }
}

/* `run` positions of the last outer dim, from outer position `at` on. */
static tsi_block part_of(const tsi_block *block, int32_t outer, int64_t at, int64_t run)
{
    tsi_block part = *block;
    int64_t offset = 0;
    for (int32_t d = outer - 1; d >= 0; d--) {
        offset += at % block->extent[d] * block->stride[d];
        at /= block->extent[d];
        part.extent[d] = d == outer - 1 ? run : 1;
    }
    offset *= (int64_t)ts_dtype_size((ts_dtype)block->dtype); /* negative where a dim is flipped */
    part.data = (char *)block->data + offset;
    return part;
}

static void run_slabs(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    slabs *s = context;
    int64_t last = s->to.extent[s->outer - 1];
    for (int64_t run; begin < end; begin += run) {
        run = last - begin % last < end - begin ? last - begin % last : end - begin;
        tsi_block to = part_of(&s->to, s->outer, begin, run);
        tsi_block from = part_of(&s->from, s->outer, begin, run);
        ts_status status = s->element ? s->device->fill(s->device, &to, s->element, NULL)
                                      : s->device->copy(s->device, &to, &from, NULL);
        if (status != TS_OK) s->failed = (int)status;
    }
}

static ts_status move_all(const tsi_kernel_io *io, slabs *s)
{
    int64_t count = tsi_block_count(&s->to), pieces = 1;
    if (count == 0) return TS_OK;
    sort_dims(s);
    tsi_block_coalesce_pair(&s->to, &s->from);
    s->device = io->device;
    while (s->outer < s->to.ndim && pieces < PIECES)
        pieces *= s->to.extent[s->outer++];
    if (s->outer == 0) { /* one element */
        s->outer = s->to.ndim = s->from.ndim = 1;
        s->to.extent[0] = s->from.extent[0] = 1;
        s->to.stride[0] = s->from.stride[0] = 1;
    }
    tsi_parallel_for(io->rank, pieces, GRAIN / (count / pieces) + 1, run_slabs, s);
    return (ts_status)s->failed;
}

ts_status tsi_copy_all(const tsi_kernel_io *io, const tsi_block *to, const tsi_block *from)
{
    slabs s = { .to = *to, .from = *from };
    return move_all(io, &s);
}

ts_status tsi_fill_all(const tsi_kernel_io *io, const tsi_block *to, const void *element)
{
    slabs s = { .to = *to, .from = *to, .element = element };
    return move_all(io, &s);
}

ts_status tsi_zero_all(const tsi_kernel_io *io, const tsi_block *to)
{
    return tsi_fill_all(io, to, (const unsigned char[16]){ 0 });
}

/* ---- maps of indices (op/view/remap.h) ------------------------------------------------------- */

enum { BOXES = 16 };

typedef struct boxes {
    const tsi_kernel_io *io;
    const tsi_block *in;
    int64_t count;
    tsi_remap_box box[BOXES]; /* the first ones */
} boxes;

static ts_status list_box(const tsi_remap_box *box, void *context)
{
    boxes *b = context;
    if (b->count < BOXES) b->box[b->count] = *box;
    b->count++;
    return TS_OK;
}

static ts_status copy_box(const tsi_remap_box *box, void *context)
{
    const boxes *b = context;
    tsi_block from = tsi_remap_side(box, b->in, false);
    tsi_block to = tsi_remap_side(box, &b->io->out[0].block, true);
    return tsi_copy_all(b->io, &to, &from);
}

/* All of the result but a box that is dense in it: dim by dim what lies before and after. */
static ts_status fill_around(const tsi_kernel_io *io, const tsi_remap_box *box, const void *element)
{
    tsi_block rest = io->out[0].block;
    for (int32_t d = 0; d < box->ndim; d++) {
        const tsi_remap_segment *s = &box->dim[d];
        tsi_block before = rest, after = rest;
        before.extent[d] = s->out;
        after.extent[d] = rest.extent[d] - s->out - s->count;
        after.data = tsi_block_at(&rest, (s->out + s->count) * rest.stride[d]);
        TSI_TRY(tsi_fill_all(io, &before, element));
        TSI_TRY(tsi_fill_all(io, &after, element));
        rest.data = tsi_block_at(&rest, s->out * rest.stride[d]);
        rest.extent[d] = s->count;
    }
    return TS_OK;
}

static ts_status fill_rest(const boxes *b)
{
    const tsi_remap_kind *kind = b->io->op->family;
    const tsi_block *out = &b->io->out[0].block;
    _Alignas(16) unsigned char element[16] = { 0 };
    tsi_store_number((ts_dtype)out->dtype, element, kind->fill(b->io->attributes));
    bool dense = b->count == 1;
    for (int32_t d = 0; dense && d < b->box[0].ndim; d++)
        dense = b->box[0].dim[d].out_step == 1 || b->box[0].dim[d].count == 1;
    return dense ? fill_around(b->io, &b->box[0], element) : tsi_fill_all(b->io, out, element);
}

/* The map of input i and the part of it that is here: every changed dim is whole. */
static void window_of(const tsi_kernel_io *io, int32_t i, tsi_remap *map, tsi_remap_window *window)
{
    const tsi_remap_kind *kind = io->op->family;
    ts_meta in[TSI_INPUT_MAX], out = *io->out[0].global;
    for (int32_t k = 0; k < io->input_count; k++)
        in[k] = *io->in[k].global;
    kind->map(&(tsi_op_call){ io->op, io->attributes, in, &out, io->input_count, 1 }, i, map);
    for (int32_t d = 0; d < map->ndim; d++) {
        int64_t n = io->out[0].block.extent[d];
        window->dim[d] = (tsi_remap_range){ .in_end = io->in[i].block.extent[d], .out_end = n };
        if (!(map->changed >> d & 1)) tsi_remap_still(map, d, n);
    }
}

ts_status tsi_cpu_remap(const tsi_kernel_io *io)
{
    const tsi_remap_kind *kind = io->op->family;
    if (tsi_block_count(&io->out[0].block) == 0) return TS_OK;
    for (int32_t i = 0; i < io->input_count; i++) {
        tsi_remap map;
        tsi_remap_window window;
        boxes b = { .io = io, .in = &io->in[i].block };
        window_of(io, i, &map, &window);
        TSI_TRY(tsi_remap_boxes(&map, &window, list_box, &b));
        if (kind->fill && i == 0) TSI_TRY(fill_rest(&b));
        if (b.count > BOXES) TSI_TRY(tsi_remap_boxes(&map, &window, copy_box, &b));
        for (int64_t k = 0; b.count <= BOXES && k < b.count; k++)
            TSI_TRY(copy_box(&b.box[k], &b));
    }
    return TS_OK;
}

ts_status tsi_cpu_stack(const tsi_kernel_io *io)
{
    if (tsi_block_count(&io->out[0].block) == 0) return TS_OK;
    for (int32_t i = 0; i < io->input_count; i++) {
        tsi_block to = tsi_stack_place(io, i);
        TSI_TRY(tsi_copy_all(io, &to, &io->in[i].block));
    }
    return TS_OK;
}
