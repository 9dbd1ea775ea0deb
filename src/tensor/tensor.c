/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c - the life of a tensor: made into a scope, retained, written, released.
 *
 * Bodies are used again (body.h), so a steady step allocates none. */
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "layout/slots.h"
#include "tensor/body.h"
#include "tensor/move.h"
#include "tensor/scope.h"

/* ---- handles that mean nothing (any more) ---------------------------------------------------- */

/* `scope "layers.3"`, or what the root is called. */
static const char *scope_text(const char *label, char *out, size_t size)
{
    if (!label || !*label) return "the rank's own scope";
    (void)snprintf(out, size, "scope \"%s\"", label);
    return out;
}

/* How the tensor ended: "ended when scope "step" closed". */
static const char *ended_text(const ts_tensor *t, char *out, size_t size)
{
    char text[160];
    const char *scope = scope_text(t->scope, text, sizeof text);
    switch ((tsi_ended)t->ended) {
    case TSI_ENDED_NOT:
        (void)snprintf(out, size, "has not ended");
        break;
    case TSI_ENDED_SCOPE:
        (void)snprintf(out, size, "ended when %s closed or turned", scope);
        break;
    case TSI_ENDED_DROPPED:
        (void)snprintf(out, size, "was dropped from %s", scope);
        break;
    case TSI_ENDED_RELEASED:
        (void)snprintf(out, size, "of %s ended with its last release", scope);
        break;
    case TSI_ENDED_WORLD:
        (void)snprintf(out, size, "ended when its world was closed");
        break;
    }
    return out;
}

ts_status tsi_tensor_refuse(const ts_tensor *t, const char *format, ...)
{
    char who[200], how[240];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(who, sizeof who, format, arguments);
    va_end(arguments);
    char empty[TSI_EMPTY_TEXT];
    if (!t->ended)
        return TSI_FAIL(TS_ERR_STATE, "%s is %s", who,
                        tsi_tensor_empty_text(t, empty, sizeof empty));
    return TSI_FAIL(TS_ERR_STATE, "%s is a tensor that %s", who, ended_text(t, how, sizeof how));
}

ts_status tsi_tensor_writable(const ts_tensor *t, const char *format, ...)
{
    const tsi_storage *storage = t->array->storage;
    if (TSI_UNLIKELY(storage->ask != NULL))
        return storage->ask(storage->ask_context, (void *)(uintptr_t)t);
    bool repeats = tsi_array_repeats(t->array);
    if (TSI_LIKELY(!storage->read_only && !repeats)) return TS_OK;
    char who[200];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(who, sizeof who, format, arguments);
    va_end(arguments);
    if (storage->read_only)
        return TSI_FAIL(TS_ERR_ARG, "%s is memory that was given as read-only", who);
    /* A cut may leave a rank one index of a dim, which repeats nothing there. */
    return TSI_FAIL_BLAST(t->layout->axes_cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED, TS_ERR_ARG,
                          "%s is a view in which an element stands for several (an expanded one); "
                          "clone it before it is written",
                          who);
}

ts_rank *tsi_tensor_enter(const ts_tensor *t, const char *operator_name)
{
    ts_rank *rank = t && t->rank ? t->rank : tsi_rank_current();
    if (rank && tsi_rank_enter(rank) != TS_OK) return NULL;
    if (t && TSI_LIKELY(t->layout != NULL)) return rank;
    if (t)
        (void)tsi_tensor_refuse(t, "%s: its input", operator_name);
    else if (rank)
        TSI_FAIL(TS_ERR_NULL, "%s: the tensor is NULL", operator_name);
    return NULL;
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

/* Mostly others hold the mesh too: then there is nothing to do but count. */
static inline void mesh_give(ts_mesh *mesh)
{
    if (TSI_LIKELY(mesh && mesh->references > 1))
        mesh->references--;
    else
        ts_mesh_release(mesh);
}

ts_tensor *tsi_tensor_make(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype, tsi_array *array,
                           tsi_move *move)
{
    ts_rank *rank = mesh->rank;
    tsi_tensor_state *state = array ? tsi_slot_get(rank, TSI_SLOT_TENSOR) : NULL;
    if (TSI_UNLIKELY(array && !state)) state = tsi_tensor_state_of(rank);
    ts_tensor *t = state ? tsi_body_make(state) : NULL;
    if (TSI_UNLIKELY(!t)) {
        tsi_array_release(array);
        tsi_move_release(move);
        return NULL;
    }
    t->rank = rank;
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

static inline void unbind(tsi_tensor_state *state, ts_tensor *t)
{
    if (TSI_UNLIKELY(t->move != NULL)) tsi_move_release(t->move);
    tsi_array_release(t->array);
    layout_give(state, t->layout);
    mesh_give(t->mesh);
    t->move = NULL;
    t->array = NULL;
    t->layout = NULL;
    t->mesh = NULL;
}

void tsi_tensor_unbind(ts_tensor *t)
{
    unbind(tsi_slot_get(t->rank, TSI_SLOT_TENSOR), t);
}

/* ---- references ------------------------------------------------------------------------------ */

ts_tensor *tsi_tensor_retain(ts_tensor *t)
{
    if (t) t->references++;
    return t;
}

static inline void release_as(ts_tensor *t, tsi_ended how)
{
    if (--t->references > 0 || TSI_UNLIKELY(!t->rank)) return; /* no rank: the world is closed */
    TSI_ASSERT(t->frame < 0 && t->held == 0);
    tsi_tensor_state *state = tsi_slot_get(t->rank, TSI_SLOT_TENSOR);
    if (t->autograd || t->is_variable) tsi_tell(t->rank, TSI_NEWS_DROP, t);
    unbind(state, t);
    tsi_body_end(state, t, how);
}

void tsi_tensor_release(ts_tensor *t)
{
    if (t) release_as(t, TSI_ENDED_SCOPE);
}

/* The program gives back what it does not have. */
static TSI_COLD void refuse_release(const ts_tensor *t, ts_blast blast)
{
    char text[240];
    const tsi_tensor_state *state = t->ended ? NULL : tsi_slot_get(t->rank, TSI_SLOT_TENSOR);
    if (t->ended)
        TSI_FAIL_BLAST(blast, TS_ERR_STATE, "ts_tensor_release: the argument is a tensor that %s",
                       ended_text(t, text, sizeof text));
    else if (t->frame >= 0)
        TSI_FAIL_BLAST(blast, TS_ERR_STATE,
                       "ts_tensor_release: the tensor is owned by %s and was not retained, or is "
                       "released twice (ts_tensor_drop ends it before its scope)",
                       scope_text(state->frame[t->frame].label, text, sizeof text));
    else
        TSI_FAIL_BLAST(blast, TS_ERR_STATE,
                       "ts_tensor_release: the tensor of %s is not the caller's: it was not "
                       "retained, or is released twice",
                       scope_text(t->scope, text, sizeof text));
}

static void release_held(ts_tensor *t, ts_blast blast)
{
    if (TSI_UNLIKELY(t->held == 0)) {
        refuse_release(t, blast);
        return;
    }
    if (--t->held == 0) t->caller_owns = 0;
    release_as(t, TSI_ENDED_RELEASED);
}

/* What a scope holds, or would hold if its caller did not own. */
static void drop_held(ts_tensor *t)
{
    if (t->frame >= 0) {
        tsi_frame_abandon(tsi_slot_get(t->rank, TSI_SLOT_TENSOR), t);
    } else {
        if (!t->caller_owns) return;
        t->caller_owns = 0;
        t->held--;
    }
    release_as(t, TSI_ENDED_DROPPED);
}

/* Other ranks know nothing of it: the error is this one's alone. */
void tsi_tensor_posted(ts_rank *rank, tsi_post *post)
{
    (void)rank;
    ts_tensor *t = (ts_tensor *)((char *)post - offsetof(ts_tensor, post));
    int32_t releases, drops;
    tsi_body_posted(t, &releases, &drops);
    while (drops-- > 0)
        drop_held(t);
    while (releases-- > 0)
        release_held(t, TS_BLAST_LOCAL);
}

ts_tensor *ts_tensor_retain(ts_tensor *t)
{
    if (!t) return NULL;
    bool is_open = atomic_load_explicit(&tsi_slab_of(t)->owner, memory_order_relaxed) != NULL;
    if (TSI_UNLIKELY(is_open && !tsi_body_is_mine(t))) {
        TSI_FAIL(TS_ERR_THREAD, "ts_tensor_retain: this thread is not the tensor's rank");
        return NULL;
    }
    if (TSI_UNLIKELY(t->ended)) {
        (void)tsi_tensor_refuse(t, "ts_tensor_retain: the argument");
        return NULL;
    }
    t->held++;
    return tsi_tensor_retain(t);
}

void ts_tensor_release(ts_tensor *t)
{
    if (!t) return;
    if (TSI_LIKELY(tsi_body_is_mine(t)))
        release_held(t, TS_BLAST_NONE);
    else
        tsi_body_post(t, false);
}

void ts_tensor_drop(ts_tensor *t)
{
    if (!t) return;
    if (TSI_LIKELY(tsi_body_is_mine(t)))
        drop_held(t);
    else
        tsi_body_post(t, true);
}

/* ---- variables ------------------------------------------------------------------------------- */

ts_tensor *tsi_variable(ts_rank *rank)
{
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    ts_tensor *t = state ? tsi_body_make(state) : NULL;
    if (!t) return NULL;
    t->rank = rank;
    t->references = 1;
    t->frame = -1;
    t->is_variable = TSI_VARIABLE;
    t->scope = rank->label;
    return t;
}

ts_status tsi_variable_value(const ts_tensor *v, ts_tensor **out)
{
    *out = NULL;
    if (!v || !v->layout) return TS_OK;
    ts_tensor *value =
        tsi_tensor_make(v->mesh, v->layout, (ts_dtype)v->dtype, tsi_array_retain(v->array), NULL);
    *out = tsi_tensor_retain(value);
    ts_tensor_drop(value); /* no scope has it */
    return *out ? TS_OK : ts_rank_status(v->rank);
}

ts_tensor *ts_variable(ts_rank *me)
{
    if (tsi_rank_enter(me) != TS_OK) return NULL;
    ts_tensor *t = tsi_variable(me);
    if (t) t->held = 1;
    return t;
}

/* A former value goes, or is kept by who may need it again. */
static void let_value_go(tsi_tensor_state *state, ts_tensor *variable, tsi_undo *former)
{
    if (TSI_UNLIKELY(tsi_scope_catching(state))) {
        former->variable = tsi_tensor_retain(variable);
        tsi_tensor_undo_push(variable->rank, former);
        return;
    }
    if (former->move) tsi_move_release(former->move);
    tsi_array_release(former->array);
    layout_give(state, former->layout);
    mesh_give(former->mesh);
}

/* The variable gets value's layout and block; the old ones go to the undo log. It has the new ones
 * first: what goes may call its owner, who may look at the variable. */
TSI_STEP_PATH void tsi_tensor_bind(ts_tensor *variable, ts_mesh *mesh, const ts_layout *layout,
                                   ts_dtype dtype, tsi_array *array, tsi_move *move)
{
    TSI_ASSERT(variable->is_variable && array);
    tsi_tensor_state *state = tsi_slot_get(variable->rank, TSI_SLOT_TENSOR);
    tsi_undo former = { .mesh = variable->mesh,
                        .layout = variable->layout,
                        .array = variable->array,
                        .move = variable->move,
                        .dtype = variable->dtype };
    layout_take(state, layout);
    variable->mesh = ts_mesh_retain(mesh);
    variable->layout = layout;
    variable->array = array;
    variable->move = move;
    variable->dtype = (int32_t)dtype;
    let_value_go(state, variable, &former);
}

static void rebind(ts_tensor *variable, ts_tensor *value)
{
    tsi_tensor_bind(variable, value->mesh, value->layout, (ts_dtype)value->dtype,
                    tsi_array_retain(value->array),
                    value->move ? tsi_move_retain(value->move) : NULL);
}

ts_status ts_tensor_write(ts_tensor *variable, ts_tensor *value)
{
    ts_rank *rank = variable && variable->rank ? variable->rank : tsi_rank_current();
    if (!rank) return TSI_FAIL(TS_ERR_THREAD, "write: this thread is attached to no rank");
    TSI_TRY(tsi_rank_enter(rank));
    if (!variable) return TSI_FAIL(TS_ERR_NULL, "write: the variable is NULL");
    if (variable->ended) return tsi_tensor_refuse(variable, "write: the variable");
    if (!variable->is_variable)
        return TSI_FAIL(TS_ERR_STATE, "write: the tensor is not a variable");
    if (!value) return TSI_FAIL(TS_ERR_NULL, "write: the value is NULL");
    if (!value->layout) return tsi_tensor_refuse(value, "write: the value");
    if (value->rank != rank) /* its counts are touched by its own thread alone (INV-16) */
        return TSI_FAIL(TS_ERR_ARG, "write: the value is of rank %lld, the variable of rank %lld",
                        (long long)value->rank->index, (long long)rank->index);
    tsi_tell(rank, TSI_NEWS_WRITE, variable);
    rebind(variable, value);
    return ts_rank_status(rank);
}

TSI_STEP_PATH ts_status tsi_tensor_ready(ts_tensor *t)
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
