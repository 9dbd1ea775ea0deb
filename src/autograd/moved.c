/* SPDX-License-Identifier: Apache-2.0 */
/* moved.c - the gradient of a redistribution: the same engine, the other way; and of a value that
 * is another one rounded, without a call.
 *
 * A gradient goes back to the layout its tensor came from, axis by axis, but where the source was
 * partial and the gradient is not, it becomes replicated: the value was a sum of terms, and each
 * term gets the whole gradient. */
#include "autograd/tape.h"
#include "tensor/scope.h"

static ts_status moved_grad(const tsi_grad_io *io, void *extra)
{
    const ts_layout *source = extra;
    ts_tensor *dy = io->out_grad[0];
    const ts_sharding *given = ts_tensor_layout(dy)->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < source->sharding->ndim; k++) {
        place[k] = source->sharding->place[k];
        bool same_mesh = given->mesh == source->sharding->mesh;
        /* A gradient that is pending on the axis itself is left so: reducing it comes later. */
        bool stays = same_mesh && tsi_placement_partial(&given->place[k]);
        if (tsi_placement_partial(&place[k]))
            place[k] = stays
                           ? given->place[k]
                           : (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(source->sharding->mesh, place);
    if (!to) return ts_rank_status(io->rank);
    io->in_grad[0] = (ts_redistribute_to)(dy, to);
    ts_sharding_release(to);
    return ts_rank_status(io->rank);
}

bool tsi_node_moves(const tsi_node *node)
{
    return node->grad == moved_grad;
}

static ts_status rounded_grad(const tsi_grad_io *io, void *extra)
{
    (void)extra;
    io->in_grad[0] = (ts_cast)(io->out_grad[0], (ts_dtype)io->in_meta[0].dtype);
    return ts_rank_status(io->rank);
}

void tsi_tape_rounded(ts_tensor *x, ts_tensor *y)
{
    tsi_autograd_state *state = tsi_slot_get(x->rank, TSI_SLOT_AUTOGRAD);
    if (state && state->capture) tsi_capture_leaves(state, &x, 1);
    ts_tape *tape = tsi_tape_recording(x->rank);
    if (!tape || !tsi_tape_wants(tape, &x, 1)) return;
    int64_t number = tsi_tape_add(tape, &x, 1, 1);
    if (number < 0) return;
    tape->node[number].grad = rounded_grad;
    tape->node[number].rounds = x->dtype;
    tsi_tape_link(tape, y, number, 0);
}

static void layout_release(void *layout)
{
    ts_layout_release(layout);
}

void tsi_tape_moved(void *context, void *what)
{
    const tsi_moved *moved = what;
    tsi_autograd_state *state = context;
    ts_tensor *x = moved->from, *y = moved->to;
    if (moved->implicit) return; /* the gradient of the call covers it */
    if (state->capture) tsi_capture_leaves(state, &x, 1);
    ts_tape *tape = tsi_tape_recording(x->rank);
    if (!tape) return;
    if (!tsi_tape_wants(tape, &x, 1)) return;
    int64_t number = tsi_tape_add(tape, &x, 1, 1);
    if (number < 0) return;
    tsi_node *node = &tape->node[number];
    node->grad = moved_grad;
    node->extra = (void *)(uintptr_t)ts_layout_retain(x->layout);
    node->extra_destroy = layout_release;
    tsi_tape_link(tape, y, number, 0);
}
