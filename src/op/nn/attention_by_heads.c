/* SPDX-License-Identifier: Apache-2.0 */
/* attention_by_heads.c - attention over a cut sequence by turning the cut to the heads, and back.
 *
 *   q, k, v  S(2) --all-to-all--> S(1) --attention--> S(1) --all-to-all--> S(2)
 *
 * Each rank then has all positions of its heads. Groups of keys that are fewer than ranks are
 * repeated before they move, so that each rank gets the ones it uses and no others. In two levels,
 * the last axis turns to heads, and what the others cut travels (attention_travel.c). */
#include "op/core/algorithm.h"
#include "op/nn/attention_context.h"
#include "tensor/scope.h"

static bool cuts_heads(const ts_placement *place)
{
    return tsi_placement_cuts(place) && place->dim == 1;
}

/* How repeated groups lie on an axis where they were whole or cut: as heads do. Sizes of a ragged
 * cut are those of groups; on an axis of one rank there may be one without a cut of heads. */
static ts_placement as_heads(const ts_placement *q)
{
    return cuts_heads(q) ? *q
                         : (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
}

const ts_layout *tsi_context_repeated(const ts_layout *layout, const ts_layout *q, int64_t repeats)
{
    const ts_sharding *have = layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    ts_shape shape = layout->shape;
    shape.extent[1] *= repeats;
    for (int32_t k = 0; k < have->ndim; k++) {
        const ts_placement *own = &have->place[k];
        bool follows = cuts_heads(own) || own->kind == TS_PLACE_REPLICATE;
        place[k] = follows ? as_heads(&q->sharding->place[k]) : *own;
    }
    const ts_sharding *to = tsi_sharding_intern(have->mesh, place);
    const ts_layout *made = to ? tsi_layout_intern(to, &shape) : NULL;
    ts_sharding_release(to);
    return made;
}

const ts_layout *tsi_context_turned(const ts_layout *layout, uint32_t axes)
{
    const ts_sharding *have = layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < have->ndim; k++) {
        place[k] = have->place[k];
        if (axes >> k & 1)
            place[k] = (ts_placement){ .kind = TS_PLACE_SHARD,
                                       .dim = 1,
                                       .dim_last = 1,
                                       .order = -1,
                                       .factor = 1,
                                       .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(have->mesh, place);
    const ts_layout *turned = to ? tsi_layout_intern(to, &layout->shape) : NULL;
    ts_sharding_release(to);
    return turned;
}

/* The tensor with the cut of these axes on heads; its lse, of three dims, too. */
static ts_tensor *turned(ts_tensor *x, uint32_t axes)
{
    const ts_layout *to = x ? tsi_context_turned(x->layout, axes) : NULL;
    ts_tensor *moved = to ? (ts_redistribute_to)(x, to->sharding) : NULL;
    ts_layout_release(to);
    return moved;
}

/* Groups repeated, and cut as the heads are where they were whole: that moves nothing. */
static ts_tensor *repeated(ts_tensor *x, const ts_layout *q, int64_t repeats)
{
    const ts_layout *to = tsi_context_repeated(x->layout, q, repeats);
    if (repeats > 1) x = (ts_repeat_interleave)(x, repeats, 1);
    ts_tensor *moved = x && to ? (ts_redistribute_to)(x, to->sharding) : NULL;
    ts_layout_release(to);
    return moved;
}

/* The sharding of repeated groups without sums: where they are pending at home, what is cut stays
 * so until the sum over copies makes terms of it. */
static const ts_sharding *without_sums(const ts_tensor *x, const ts_sharding *home,
                                       const ts_sharding *q)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < home->ndim; k++) {
        const ts_placement *own = &home->place[k];
        bool pending = own->kind == TS_PLACE_PARTIAL;
        place[k] = pending ? x->layout->sharding->place[k] : *own;
        if (cuts_heads(own)) place[k] = as_heads(&q->place[k]);
    }
    return tsi_sharding_intern(home->mesh, place);
}

/* Gradients of repeated groups are those of the group: summed by those who hold its keys. */
static ts_tensor *folded(ts_tensor *x, const ts_sharding *home, const ts_sharding *q,
                         int64_t repeats)
{
    const ts_sharding *to = x ? without_sums(x, home, q) : NULL;
    x = to ? (ts_redistribute_to)(x, to) : NULL;
    ts_sharding_release(to);
    if (!x || repeats == 1) return x;
    ts_shape s = ts_tensor_shape(x);
    int64_t copies = 2;
    ts_shape apart =
        TS_SHAPE(s.extent[0], s.extent[1] / repeats, repeats, s.extent[2], s.extent[3]);
    return (ts_sum)((ts_reshape)(x, apart), &copies, 1, 0);
}

static ts_status run(const tsi_algorithm_io *io, uint32_t axes, int32_t then)
{
    ts_scope scope = tsi_algorithm_begin(io);
    int64_t repeats = tsi_context_repeats(io->call, io->in[0]->layout, axes);
    tsi_attention_attributes a = *(const tsi_attention_attributes *)io->attributes;
    ts_tensor *in[TSI_INPUT_MAX], *out[TSI_OUTPUT_MAX] = { NULL };
    a.algorithm = then;
    a.forbid = 0; /* what it is made of was weighed with it */
    for (int32_t i = 0; i < io->input_count; i++) {
        bool keys = i == 1 || i == 2;
        in[i] = turned(keys ? repeated(io->in[i], io->in[0]->layout, repeats) : io->in[i], axes);
    }
    tsi_op_args args = { io->op, in, io->input_count, 0, &a };
    (void)tsi_op_run(&args, out);
    for (int32_t o = 1; io->input_count > 3 && o < 3; o++)
        out[o] = folded(out[o], io->out_layout[o]->sharding, io->in[0]->layout->sharding, repeats);
    return tsi_algorithm_end(io, scope, out);
}

ts_status tsi_context_heads(const tsi_algorithm_io *io)
{
    return run(io, io->axes, 0);
}

ts_status tsi_context_two_level(const tsi_algorithm_io *io)
{
    return run(io, tsi_context_inner(io->axes), TSI_CONTEXT_RING);
}
