/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c - the life of a tensor: made into a scope, retained, written, released.
 *
 * Tensor bodies are recycled through a list of the rank, so a steady step allocates none. */
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "layout/state.h"
#include "tensor/move.h"
#include "tensor/scope.h"

ts_rank *tsi_tensor_enter(const ts_tensor *t, const char *operator_name)
{
    ts_rank *rank = t ? t->rank : tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!t) {
        TSI_FAIL(TS_ERR_NULL, "%s: the tensor is NULL", operator_name);
        return NULL;
    }
    if (!t->layout) {
        char what[TSI_EMPTY_TEXT];
        TSI_FAIL(TS_ERR_STATE, "%s: its input is %s", operator_name,
                 tsi_tensor_empty_text(t, what, sizeof what));
        return NULL;
    }
    return rank;
}

const char *tsi_tensor_empty_text(const ts_tensor *t, char *out, size_t size)
{
    if (!t->name) return "a variable without a value";
    char name[TSI_EMPTY_TEXT / 2];
    (void)tsi_name_text(t->name, name, sizeof name);
    (void)snprintf(out, size, "the parameter %s, which is declared and has no storage yet", name);
    return out;
}

const ts_sharding *tsi_sharding_replicated(tsi_mesh_desc *mesh)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < TS_NDIM_MAX; k++)
        place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    return tsi_sharding_intern(mesh, place);
}

const ts_layout *tsi_tensor_layout_of(ts_mesh *mesh, const char *placements, ts_shape shape)
{
    const ts_sharding *sharding = placements ? tsi_sharding_parse(mesh->desc, placements)
                                             : tsi_sharding_replicated(mesh->desc);
    if (!sharding) return NULL;
    const ts_layout *layout = tsi_layout_intern(sharding, &shape);
    ts_sharding_release(sharding);
    return layout;
}

tsi_array *tsi_tensor_block_tagged(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype,
                                   uint32_t tag)
{
    ts_shape local = mesh->member ? ts_layout_local(layout, mesh->coord) : TS_SHAPE(0);
    return tsi_array_create_tagged(mesh->rank, dtype, &local, tag);
}

tsi_array *tsi_tensor_block(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype)
{
    return tsi_tensor_block_tagged(mesh, layout, dtype, TSI_TAG_ACTIVATION);
}

/* ---- references of layouts ------------------------------------------------------------------- */

static inline tsi_spare_layout *spare_of(tsi_tensor_state *state, const ts_layout *layout)
{
    return &state->spare[((uintptr_t)layout >> 6 ^ (uintptr_t)layout >> 10) % TSI_SPARE_LAYOUTS];
}

static inline void layout_take(tsi_tensor_state *state, const ts_layout *layout)
{
    tsi_spare_layout *spare = spare_of(state, layout);
    if (spare->layout == layout && spare->count > 0)
        spare->count--;
    else
        (void)ts_layout_retain(layout);
}

static TSI_NOINLINE void spare_release(tsi_spare_layout *spare)
{
    if (spare->count > 0)
        tsi_interned_release_many(tsi_layout_interned(spare->layout), spare->count);
    *spare = (tsi_spare_layout){ 0 };
}

static inline void layout_give(tsi_tensor_state *state, const ts_layout *layout)
{
    if (!layout) return;
    tsi_spare_layout *spare = spare_of(state, layout);
    if (TSI_UNLIKELY(spare->layout != layout)) {
        spare_release(spare);
        spare->layout = layout;
    }
    spare->count++;
}

void tsi_spare_layouts_release(tsi_tensor_state *state)
{
    for (int32_t i = 0; i < TSI_SPARE_LAYOUTS; i++)
        spare_release(&state->spare[i]);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static ts_tensor *tensor_body(tsi_tensor_state *state)
{
    ts_tensor *t = state->free_tensors;
    if (t) {
        state->free_tensors = t->next;
        memset(t, 0, sizeof *t);
        return t;
    }
    t = tsi_alloc_aligned(sizeof *t, TSI_CACHE_LINE); /* what is read most is in one line */
    if (!t)
        tsi_fail_memory("a tensor", sizeof *t);
    else
        memset(t, 0, sizeof *t);
    return t;
}

ts_tensor *tsi_tensor_make(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype, tsi_array *array,
                           tsi_move *move)
{
    tsi_tensor_state *state = array ? tsi_tensor_state_of(mesh->rank) : NULL;
    ts_tensor *t = state ? tensor_body(state) : NULL;
    if (!t) {
        tsi_array_release(array);
        tsi_move_release(move);
        return NULL;
    }
    t->rank = mesh->rank;
    t->mesh = mesh;
    mesh->references++;
    t->layout = layout;
    layout_take(state, layout);
    t->array = array;
    t->move = move;
    t->dtype = (int32_t)dtype;
    t->references = 1;
    t->frame = -1;
    tsi_frame_adopt(state, state->frame_count - 1, t);
    return t;
}

void tsi_tensor_unbind(ts_tensor *t)
{
    if (t->move) tsi_move_release(t->move);
    tsi_array_release(t->array);
    layout_give(tsi_slot_get(t->rank, TSI_SLOT_TENSOR), t->layout);
    ts_mesh_release(t->mesh);
    t->move = NULL;
    t->array = NULL;
    t->layout = NULL;
    t->mesh = NULL;
}

ts_tensor *ts_tensor_retain(ts_tensor *t)
{
    if (t) t->references++;
    return t;
}

void ts_tensor_release(ts_tensor *t)
{
    if (!t || --t->references > 0) return;
    TSI_ASSERT(t->frame < 0);
    tsi_tensor_state *state = tsi_slot_get(t->rank, TSI_SLOT_TENSOR);
    if (t->autograd) tsi_tell(t->rank, TSI_NEWS_DROP, t);
    tsi_tensor_unbind(t);
    t->next = state->free_tensors;
    state->free_tensors = t;
}

void ts_tensor_drop(ts_tensor *t)
{
    if (!t || t->frame < 0) return;
    tsi_frame_abandon(tsi_slot_get(t->rank, TSI_SLOT_TENSOR), t);
    ts_tensor_release(t);
}

ts_tensor *ts_variable(ts_rank *me)
{
    if (tsi_rank_enter(me) != TS_OK) return NULL;
    tsi_tensor_state *state = tsi_tensor_state_of(me);
    ts_tensor *t = state ? tensor_body(state) : NULL;
    if (!t) return NULL;
    t->rank = me;
    t->references = 1;
    t->frame = -1;
    t->is_variable = 1;
    return t;
}

/* The variable gets value's layout and block; the old ones go to the undo log. */
static void rebind(ts_tensor *variable, ts_tensor *value)
{
    tsi_undo old = {
        .variable = ts_tensor_retain(variable),
        .mesh = variable->mesh,
        .layout = variable->layout,
        .array = variable->array,
        .move = variable->move,
        .dtype = variable->dtype,
    };
    variable->mesh = ts_mesh_retain(value->mesh);
    variable->layout = ts_layout_retain(value->layout);
    variable->array = tsi_array_retain(value->array);
    variable->move = value->move ? tsi_move_retain(value->move) : NULL;
    variable->dtype = value->dtype;
    tsi_tensor_undo_push(variable->rank, &old);
}

ts_status ts_tensor_write(ts_tensor *variable, ts_tensor *value)
{
    ts_rank *rank = variable ? variable->rank : tsi_rank_current();
    if (!rank) return TSI_FAIL(TS_ERR_THREAD, "write: this thread is attached to no rank");
    TSI_TRY(tsi_rank_enter(rank));
    if (!variable) return TSI_FAIL(TS_ERR_NULL, "write: the variable is NULL");
    if (!variable->is_variable)
        return TSI_FAIL(TS_ERR_STATE, "write: the tensor is not a variable");
    if (!value) return TSI_FAIL(TS_ERR_NULL, "write: the value is NULL");
    if (!value->layout) return TSI_FAIL(TS_ERR_STATE, "write: the value is a variable without one");
    rebind(variable, value);
    return ts_rank_status(rank);
}

ts_status tsi_tensor_ready(ts_tensor *t)
{
    if (TSI_LIKELY(!t->move)) return TS_OK;
    tsi_move *move = t->move;
    ts_status status = tsi_move_wait(move);
    t->move = NULL;
    tsi_move_release(move);
    return status;
}

ts_status ts_tensor_wait(ts_tensor *t)
{
    ts_rank *rank = tsi_tensor_enter(t, "wait");
    if (!rank) return ts_rank_status(tsi_rank_current());
    TSI_TRY(tsi_tensor_ready(t));
    return tsi_rank_device_sync(rank);
}

/* ---- getters --------------------------------------------------------------------------------- */

const ts_layout *ts_tensor_layout(const ts_tensor *t)
{
    return t ? t->layout : NULL;
}

ts_mesh *ts_tensor_mesh(const ts_tensor *t)
{
    return t ? t->mesh : NULL;
}

ts_shape ts_tensor_shape(const ts_tensor *t)
{
    return t && t->layout ? t->layout->shape : TS_SHAPE_SCALAR;
}

ts_dtype ts_tensor_dtype(const ts_tensor *t)
{
    return t && t->layout ? (ts_dtype)t->dtype : TS_DTYPE_NONE;
}

ts_rank *ts_tensor_rank(const ts_tensor *t)
{
    return t ? t->rank : NULL;
}
