/* SPDX-License-Identifier: Apache-2.0 */
/* leaf.c - leaves: tensors with a gradient of their own.
 *
 * A gradient is gathered in whatever layout the operators give it; settling moves it to the leaf's
 * own layout, with a reduction where it is partial. Where the leaf itself is partial its gradient
 * is replicated: each term has the gradient of the whole. */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/keep.h"

/* Where the gradient of a tensor shall end up, retained; NULL: recorded. */
static const ts_layout *grad_layout(const ts_layout *layout)
{
    if (!layout->axes_partial) return ts_layout_retain(layout);
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        place[k] = layout->sharding->place[k];
        if (tsi_placement_partial(&place[k]))
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *sharding = tsi_sharding_intern(layout->sharding->mesh, place);
    const ts_layout *found = sharding ? tsi_layout_intern(sharding, &layout->shape) : NULL;
    ts_sharding_release(sharding);
    return found;
}

tsi_leaf *tsi_leaf_make(ts_tensor *t, bool is_parameter)
{
    if (t->autograd) tsi_link_drop(t);
    tsi_autograd_state *state = tsi_autograd_state_of(t->rank);
    if (!state) return NULL;
    tsi_leaf *leaf = tsi_calloc(1, sizeof *leaf);
    tsi_link *link = tsi_calloc(1, sizeof *link);
    if (!leaf || !link) {
        tsi_free(leaf);
        tsi_free(link);
        tsi_fail_memory("a leaf", sizeof *leaf + sizeof *link);
        return NULL;
    }
    leaf->references = 1;
    leaf->rank = t->rank;
    leaf->mesh = t->mesh ? ts_mesh_retain(t->mesh) : NULL;
    leaf->layout = t->layout ? grad_layout(t->layout) : NULL;
    leaf->dtype = t->dtype;
    leaf->towards = is_parameter ? TSI_TOWARDS_PARAMETER : TSI_TOWARDS_INPUT;
    leaf->self = t;
    link->leaf = leaf;
    link->node = -1;
    t->autograd = link;
    if (tsi_keeps(t->rank)) leaf->kept_in = t->rank->kept->number;
    state->leaves++;
    return leaf;
}

void tsi_leaf_release(tsi_leaf *leaf)
{
    if (!leaf || --leaf->references > 0) return;
    TSI_ASSERT(leaf->references == 0 && !leaf->self);
    while (leaf->hooks) {
        tsi_grad_hook *hook = leaf->hooks;
        leaf->hooks = hook->next;
        tsi_free(hook);
    }
    tsi_tensor_release(leaf->grad);
    tsi_tensor_release(leaf->reduced);
    ts_layout_release(leaf->layout);
    ts_mesh_release(leaf->mesh);
    tsi_free(leaf);
}

static void forget(tsi_leaf *leaf)
{
    tsi_tensor_release(leaf->grad);
    tsi_tensor_release(leaf->reduced);
    leaf->grad = leaf->reduced = NULL;
    leaf->settled = 0;
}

ts_status tsi_leaf_place(tsi_leaf *leaf, const ts_tensor *value)
{
    TSI_TRY(tsi_leaf_follow(leaf, value));
    TSI_TRY(tsi_leaf_at_border(leaf, false));
    forget(leaf);
    return TS_OK;
}

ts_status tsi_leaf_follow(tsi_leaf *leaf, const ts_tensor *value)
{
    const ts_layout *layout = grad_layout(value->layout);
    if (!layout) return ts_rank_status(leaf->rank);
    ts_layout_release(leaf->layout);
    ts_mesh_release(leaf->mesh);
    leaf->layout = layout;
    leaf->mesh = ts_mesh_retain(value->mesh);
    leaf->dtype = value->dtype;
    return TS_OK;
}

/* The same value under a new handle of the innermost scope, without history. */
static ts_tensor *same_value(ts_tensor *x, const char *what)
{
    ts_rank *rank = tsi_tensor_enter(x, what);
    if (!rank || tsi_tensor_ready(x) != TS_OK) return NULL;
    return tsi_tensor_make(x->mesh, x->layout, (ts_dtype)x->dtype, tsi_array_retain(x->array),
                           NULL);
}

ts_tensor *ts_detach(ts_tensor *x)
{
    return same_value(x, "detach");
}

ts_tensor *ts_watch(ts_tensor *x)
{
    ts_tensor *t = same_value(x, "watch");
    return t && tsi_leaf_make(t, false) ? t : NULL;
}

/* What belongs to a parameter is memory of gradients. */
static ts_status count_gradient(const tsi_leaf *leaf)
{
    if (leaf->towards == TSI_TOWARDS_PARAMETER && !leaf->is_inner)
        tsi_storage_retag(leaf->grad->array->storage, TSI_TAG_GRADIENT);
    return TS_OK;
}

ts_status tsi_leaf_accumulate(tsi_leaf *leaf, ts_tensor *addition)
{
    if (addition->dtype != leaf->dtype) /* of a value that operators see in fewer bits */
        addition = ts_cast(addition, (ts_dtype)leaf->dtype);
    if (!addition) return ts_rank_status(leaf->rank);
    TSI_TRY(tsi_leaf_at_border(leaf, true));
    /* Who completes a gradient itself reduces what is new of it; what is reduced waits aside. */
    if (leaf->complete && leaf->grad && leaf->settled) {
        TSI_ASSERT(!leaf->reduced);
        leaf->reduced = leaf->grad;
        leaf->grad = NULL;
    }
    if (!leaf->grad) {
        leaf->grad = tsi_leaf_variable(leaf);
        if (!leaf->grad) return ts_rank_status(leaf->rank);
    }
    leaf->touched = 1;
    leaf->terms++;
    leaf->settled = 0;
    if (ts_tensor_layout(leaf->grad)) addition = ts_add(leaf->grad, addition);
    TSI_TRY(ts_tensor_write(leaf->grad, addition));
    return count_gradient(leaf);
}

static ts_tensor *as_leaf_lies(const tsi_leaf *leaf, ts_tensor *x)
{
    bool moves = x && x->layout != leaf->layout;
    return moves ? (ts_redistribute_to)(x, leaf->layout->sharding) : x;
}

ts_status tsi_leaf_settle(tsi_leaf *leaf)
{
    if (!leaf->grad || !ts_tensor_layout(leaf->grad)) return TS_OK;
    TSI_TRY(tsi_leaf_at_border(leaf, true));
    if (leaf->settled || !leaf->layout) return TS_OK;
    if (leaf->alone) TSI_TRY(leaf->alone(leaf->complete_context));
    leaf->settled = 1;
    ts_tensor *sum = as_leaf_lies(leaf, leaf->grad);
    if (leaf->reduced) {
        /* On axes of one rank a sum is R, whatever its terms are. */
        sum = as_leaf_lies(leaf, ts_add(leaf->reduced, sum));
        tsi_tensor_release(leaf->reduced);
        leaf->reduced = NULL;
    }
    if (sum != leaf->grad) TSI_TRY(ts_tensor_write(leaf->grad, sum));
    return count_gradient(leaf);
}

ts_tensor *ts_tensor_grad(ts_tensor *leaf)
{
    tsi_leaf *body = tsi_leaf_of(leaf);
    if (body && tsi_leaf_at_border(body, true) != TS_OK) return NULL;
    if (body && body->grad && ts_tensor_layout(body->grad)) return body->grad;
    return body ? body->reduced : NULL;
}

ts_status ts_tensor_grad_clear(ts_tensor *leaf)
{
    if (leaf && leaf->ended) return tsi_tensor_refuse(leaf, "grad_clear: the leaf");
    tsi_leaf *body = tsi_leaf_of(leaf);
    if (body) TSI_TRY(tsi_leaf_at_border(body, false));
    if (body) body->cleared++;
    if (!body || (!body->grad && !body->reduced)) return leaf ? ts_rank_status(leaf->rank) : TS_OK;
    TSI_TRY(tsi_rank_enter(leaf->rank));
    forget(body);
    return TS_OK;
}

ts_status ts_grad_settle(ts_tensor *leaf)
{
    if (leaf && leaf->ended) return tsi_tensor_refuse(leaf, "grad_settle: the leaf");
    tsi_leaf *body = tsi_leaf_of(leaf);
    if (!body) return leaf ? ts_rank_status(leaf->rank) : TS_OK;
    TSI_TRY(tsi_rank_enter(leaf->rank));
    /* Who settled it may have left some axes for later. */
    if (body->grad && body->grad->layout != body->layout) body->settled = 0;
    return tsi_leaf_settle(body);
}
