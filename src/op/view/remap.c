/* SPDX-License-Identifier: Apache-2.0 */
/* remap.c - index arithmetic dim by dim: boxes of a map, the local kernel, rules and bytes. The
 * exchange between ranks is in remap_exchange.c. */
#include "op/view/remap_box.h"

#include <string.h>

#include "base/intmath.h"

/* ---- maps ------------------------------------------------------------------------------------ */

void tsi_remap_begin(const ts_shape *in, const ts_shape *out, tsi_remap *map)
{
    memset(map, 0, sizeof *map);
    map->ndim = out->ndim;
    for (int32_t d = 0; d < out->ndim; d++) {
        map->dim[d].in_extent = in->extent[d];
        map->dim[d].out_extent = out->extent[d];
        tsi_remap_set(map, d, (tsi_remap_piece){ .count = in->extent[d] });
    }
}

void tsi_remap_set(tsi_remap *map, int32_t dim, tsi_remap_piece piece)
{
    tsi_remap_dim *d = &map->dim[dim];
    if (piece.out_step == 0) piece.out_step = 1;
    if (piece.in_step == 0) piece.in_step = 1;
    d->piece[0] = piece;
    d->piece_count = 1;
    d->repeats = 1;
    d->out_shift = d->in_shift = 0;
    bool whole = piece.count == d->in_extent && d->in_extent == d->out_extent;
    bool still = whole && piece.out == piece.in && piece.out_step == piece.in_step;
    map->changed = still ? map->changed & ~(1u << dim) : map->changed | 1u << dim;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* The k with low <= begin + k * step < high, as [*first, *end), within what it was before. */
static void clip(int64_t begin, int64_t step, int64_t low, int64_t high, int64_t *first,
                 int64_t *end)
{
    if (step < 0) { /* the same indices, mirrored */
        int64_t mirrored_low = 1 - high, mirrored_high = 1 - low;
        begin = -begin;
        step = -step;
        low = mirrored_low;
        high = mirrored_high;
    }
    if (low > begin) *first = tsi_max_i64(*first, tsi_ceil_div(low - begin, step));
    *end = high > begin ? tsi_min_i64(*end, tsi_ceil_div(high - begin, step)) : *first;
}

typedef struct walk {
    const tsi_remap *map;
    const tsi_remap_window *window;
    tsi_remap_box_fn visit;
    void *context;
    tsi_remap_box box;
} walk;

/* Elements of one piece of one repetition that lie in the window, as positions relative to it. */
static bool segment_of(const tsi_remap_dim *dim, int64_t repeat, int32_t piece,
                       const tsi_remap_range *r, tsi_remap_segment *out)
{
    const tsi_remap_piece *p = &dim->piece[piece];
    int64_t o = p->out + repeat * dim->out_shift, i = p->in + repeat * dim->in_shift;
    int64_t first = 0, end = p->count;
    clip(o, p->out_step, r->out_begin, r->out_end, &first, &end);
    clip(i, p->in_step, r->in_begin, r->in_end, &first, &end);
    if (end <= first) return false;
    *out = (tsi_remap_segment){ .count = end - first,
                                .out = o + first * p->out_step - r->out_begin,
                                .in = i + first * p->in_step - r->in_begin,
                                .out_step = p->out_step,
                                .in_step = p->in_step };
    return true;
}

static ts_status walk_dim(walk *w, int32_t d)
{
    if (d == w->map->ndim) return w->visit(&w->box, w->context);
    const tsi_remap_dim *dim = &w->map->dim[d];
    for (int64_t r = 0; r < dim->repeats; r++)
        for (int32_t p = 0; p < dim->piece_count; p++)
            if (segment_of(dim, r, p, &w->window->dim[d], &w->box.dim[d]))
                TSI_TRY(walk_dim(w, d + 1));
    return TS_OK;
}

ts_status tsi_remap_boxes(const tsi_remap *map, const tsi_remap_window *window,
                          tsi_remap_box_fn visit, void *context)
{
    walk w = { .map = map, .window = window, .visit = visit, .context = context };
    w.box.ndim = map->ndim;
    return walk_dim(&w, 0);
}

tsi_block tsi_remap_side(const tsi_remap_box *box, const tsi_block *block, bool out)
{
    tsi_block part = { .dtype = block->dtype, .ndim = box->ndim };
    int64_t offset = 0;
    for (int32_t d = 0; d < box->ndim; d++) {
        const tsi_remap_segment *s = &box->dim[d];
        part.extent[d] = s->count;
        part.stride[d] = block->stride[d] * (out ? s->out_step : s->in_step);
        offset += block->stride[d] * (out ? s->out : s->in);
    }
    part.data = tsi_block_at(block, offset);
    return part;
}

ts_status tsi_remap_copy(const tsi_remap_box *box, void *context)
{
    const tsi_remap_copying *c = context;
    tsi_block from = tsi_remap_side(box, c->in, false), to = tsi_remap_side(box, c->out, true);
    return c->device->copy(c->device, &to, &from, c->queue);
}

ts_status tsi_remap_fill(const tsi_op_desc *op, const void *attributes, const tsi_device *device,
                         tsi_stream *queue, const tsi_block *out)
{
    const tsi_remap_kind *kind = op->family;
    if (!kind->fill || tsi_block_count(out) == 0) return TS_OK;
    unsigned char element[16] = { 0 };
    tsi_store_number((ts_dtype)out->dtype, element, kind->fill(attributes));
    return device->fill(device, out, element, queue);
}

/* ---- the local kernel: every changed dim is whole here --------------------------------------- */

ts_status tsi_remap_reference(const tsi_kernel_io *io)
{
    const tsi_remap_kind *kind = io->op->family;
    ts_meta in[TSI_INPUT_MAX], out = *io->out[0].global;
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = *io->in[i].global;
    tsi_op_call call = { io->op, io->attributes, in, &out, io->input_count, 1 };
    TSI_TRY(tsi_remap_fill(io->op, io->attributes, io->device, io->queue, &io->out[0].block));
    for (int32_t i = 0; i < io->input_count; i++) {
        tsi_remap map;
        tsi_remap_window window;
        kind->map(&call, i, &map);
        for (int32_t d = 0; d < map.ndim; d++) {
            bool changed = map.changed >> d & 1;
            int64_t n = io->out[0].block.extent[d], m = io->in[i].block.extent[d];
            window.dim[d] = (tsi_remap_range){ .in_end = m, .out_end = n };
            if (!changed) tsi_remap_still(&map, d, n);
        }
        tsi_remap_copying copying = { io->device, io->queue, &io->in[i].block, &io->out[0].block };
        TSI_TRY(tsi_remap_boxes(&map, &window, tsi_remap_copy, &copying));
    }
    return TS_OK;
}

void tsi_remap_still(tsi_remap *map, int32_t dim, int64_t extent)
{
    map->dim[dim].piece[0].count = extent;
}

/* ---- rules ----------------------------------------------------------------------------------- */

void tsi_remap_partials(ts_number fill, tsi_rules *rules)
{
    double complex value = tsi_number_both(fill);
    if (value == 0.0) {
        tsi_rules_partials(rules, &(tsi_traits){ .flow = TSI_SELECT });
        return;
    }
    static const ts_reduce idempotent[] = { TS_REDUCE_AVG, TS_REDUCE_MIN, TS_REDUCE_MAX,
                                            TS_REDUCE_AND, TS_REDUCE_OR,  TS_REDUCE_PROD };
    for (int k = 0; k < (value == 1.0 ? 6 : 5); k++) { /* a product of ones is one */
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = TSI_P(idempotent[k]);
    }
}

void tsi_remap_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_remap_kind *kind = call->op->family;
    tsi_remap map;
    kind->map(call, 0, &map);
    for (int32_t d = 0; d < map.ndim; d++) {
        bool changed = map.changed >> d & 1;
        tsi_role *row = tsi_rules_add_with(rules, changed ? 1 : 0, changed ? TSI_RULE_PLAIN : 0);
        row[0] = row[1] = TSI_S(d);
    }
    tsi_remap_partials(kind->fill ? kind->fill(call->attributes) : ts_number_int(0), rules);
}
