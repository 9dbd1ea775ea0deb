/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute.c - moving tensors from one layout to another: the public calls.
 *
 * Everything that depends on shared metadata alone (is the move meaningful, which plan) is decided
 * before anything moves and alike on every rank; the source is never touched. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tensor/execute.h"
#include "tensor/move.h"

/* ---- one block
 * ---------------------------------------------------------------------------------------------------------
 */

static ts_status plan_for(const tsi_source *from, const ts_layout *to,
                          const ts_move_options *options, ts_plan **plan)
{
    ts_plan_options o = TS_INIT(ts_plan_options);
    if (options) {
        o.planner = options->planner;
        o.budget_bytes = options->budget;
    }
    return ts_plan_cached(from->layout, to, from->dtype, &o, plan);
}

static void hold_release(tsi_array **hold, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        tsi_array_release(hold[i]);
}

/* Runs the plan into `to`; *move is set while something is still in flight. */
static ts_status run_plan(ts_rank *rank, const tsi_source *from, ts_plan *plan, tsi_array *to,
                          const ts_move_options *options, tsi_move **move)
{
    ts_work *work = NULL;
    bool blocking = options && options->blocking;
    tsi_array *hold[TSI_MOVE_HOLD_MAX];
    int32_t hold_count = 0;
    tsi_execution execution = { rank,
                                plan,
                                from->array,
                                to,
                                options && options->name ? options->name : rank->label,
                                blocking ? NULL : &work };
    ts_status status = tsi_execute(&execution, hold, &hold_count);
    if (status == TS_OK && work) {
        *move = tsi_move_create(rank, work);
        if (!*move) status = ts_rank_status(rank);
    }
    if (*move) {
        tsi_move_hold(*move, from->array);
        tsi_move_hold(*move, to);
        for (int32_t i = 0; i < hold_count; i++)
            tsi_move_hold(*move, hold[i]);
    }
    hold_release(hold, hold_count);
    return status;
}

/* Plans speak of row-major blocks: a view of another order is copied first. Retained. */
static tsi_array *dense_of(ts_rank *rank, tsi_array *array)
{
    if (tsi_array_is_dense(array)) return tsi_array_retain(array);
    ts_shape shape = tsi_array_shape(array);
    tsi_array *dense = tsi_array_create(rank, (ts_dtype)array->dtype, &shape);
    if (dense && tsi_array_copy(dense, array) == TS_OK) return dense;
    tsi_array_release(dense);
    return NULL;
}

static tsi_array *move_dense(const tsi_source *from, ts_mesh *to_mesh, const ts_layout *to, ts_plan *plan,
                             const ts_move_options *options, tsi_move **move)
{
    ts_rank *rank = to_mesh->rank;
    tsi_source source = *from;
    source.array = dense_of(rank, from->array);
    tsi_array *array = source.array ? tsi_tensor_block(to_mesh, to, from->dtype) : NULL;
    if (array && run_plan(rank, &source, plan, array, options, move) != TS_OK) {
        tsi_array_release(array);
        tsi_move_release(*move);
        *move = NULL;
        array = NULL;
    }
    tsi_array_release(source.array);
    return array;
}

tsi_array *tsi_move_begin(const tsi_source *from, ts_mesh *to_mesh, const ts_layout *to,
                          const ts_move_options *options, tsi_move **move)
{
    *move = NULL;
    if (from->layout == to) return tsi_array_retain(from->array);
    ts_plan *plan = NULL;
    if (plan_for(from, to, options, &plan) != TS_OK) return NULL;
    tsi_array *array = NULL;
    if (plan->family == TS_PLAN_NONE && from->mesh->member == to_mesh->member)
        array = tsi_array_retain(from->array); /* every element is where it is wanted */
    else
        array = move_dense(from, to_mesh, to, plan, options, move);
    ts_plan_release(plan);
    return array;
}

/* ---- tensors
 * ----------------------------------------------------------------------------------------------------------------
 */

ts_tensor *(ts_redistribute_with)(ts_tensor *x, const ts_sharding *to,
                                  const ts_move_options *options)
{
    ts_rank *rank = tsi_tensor_enter(x, "redistribute");
    if (!rank) return NULL;
    if (!to) {
        TSI_FAIL(TS_ERR_NULL, "redistribute: the target sharding is NULL");
        return NULL;
    }
    if (tsi_tensor_ready(x) != TS_OK) return NULL;
    ts_mesh *mesh = to->mesh == x->mesh->desc ? x->mesh : tsi_mesh_of(rank, to->mesh);
    const ts_layout *layout = mesh ? tsi_layout_intern(to, &x->layout->shape) : NULL;
    if (!layout) return NULL;
    tsi_source from = { x->mesh, x->layout, x->array, (ts_dtype)x->dtype };
    tsi_move *move = NULL;
    tsi_array *array = tsi_move_begin(&from, mesh, layout, options, &move);
    ts_tensor *y = array ? tsi_tensor_make(mesh, layout, from.dtype, array, move) : NULL;
    ts_layout_release(layout);
    if (y) tsi_tensor_moved(x, y);
    return y;
}

ts_tensor *(ts_redistribute_to)(ts_tensor *x, const ts_sharding *to)
{
    return (ts_redistribute_with)(x, to, NULL);
}

ts_tensor *(ts_redistribute)(ts_tensor *x, const char *placements)
{
    ts_rank *rank = tsi_tensor_enter(x, "redistribute");
    if (!rank) return NULL;
    if (!placements) {
        TSI_FAIL(TS_ERR_NULL, "redistribute: the placements are NULL");
        return NULL;
    }
    const ts_sharding *to = tsi_sharding_parse(x->mesh->desc, placements);
    if (!to) return NULL;
    ts_tensor *y = (ts_redistribute_with)(x, to, NULL);
    ts_sharding_release(to);
    return y;
}

ts_status(ts_redistribute_many)(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                                ts_tensor **out)
{
    ts_rank *rank = tsi_rank_current();
    for (int32_t i = 0; out && i < count; i++)
        out[i] = NULL;
    if (!rank)
        return TSI_FAIL(TS_ERR_THREAD, "redistribute_many: this thread is attached to no rank");
    TSI_TRY(tsi_rank_enter(rank));
    if (!x || !to || !out) return TSI_FAIL(TS_ERR_NULL, "redistribute_many: an argument is NULL");
    for (int32_t i = 0; i < count; i++) {
        out[i] = (ts_redistribute_with)(x[i], to[i], NULL);
        if (out[i]) continue;
        for (int32_t j = 0; j < i; j++) {
            ts_tensor_drop(out[j]);
            out[j] = NULL;
        }
        return ts_rank_status(rank);
    }
    return TS_OK;
}

ts_status ts_tensor_relayout(ts_tensor *variable, const ts_sharding *to)
{
    ts_rank *rank = tsi_tensor_enter(variable, "relayout");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    ts_scope scope = ts_scope_open(rank, "relayout");
    ts_tensor *y = (ts_redistribute_with)(variable, to, NULL);
    ts_status status = y ? ts_tensor_write(variable, y) : ts_rank_status(rank);
    ts_scope_close(scope);
    return status;
}

/* ---- from one rank to all
 * ------------------------------------------------------------------------------------------------------
 */

/* A mesh of one rank, by its number in the world. */
static tsi_mesh_desc *mesh_of_one(ts_rank *rank, int64_t world_rank)
{
    char text[48];
    snprintf(text, sizeof text, "root=1 : %lld", (long long)world_rank);
    tsi_mesh_desc *desc = NULL;
    if (tsi_mesh_desc_parse(rank->world, text, rank->world->rank_count, &desc) != TS_OK)
        return NULL;
    return desc;
}

/* What is wrong with the root's array; "" if nothing is. */
static void check_whole(const ts_array *whole, const ts_meta *meta, char *complaint, size_t size)
{
    *complaint = '\0';
    if (!whole || !whole->data)
        snprintf(complaint, size, "the root gave no array");
    else if (whole->meta.dtype != meta->dtype)
        snprintf(complaint, size, "the root's array has another dtype");
    else if (whole->meta.shape.ndim != meta->shape.ndim ||
             memcmp(whole->meta.shape.extent, meta->shape.extent,
                    (size_t)meta->shape.ndim * sizeof meta->shape.extent[0]) != 0)
        snprintf(complaint, size, "the root's array has another shape than was announced");
}

static tsi_array *source_block(ts_mesh *source, const ts_array *whole, const ts_meta *meta)
{
    if (!source->member) return tsi_array_create(source->rank, (ts_dtype)meta->dtype, &TS_SHAPE(0));
    return tsi_array_wrap(source->rank, whole);
}

static ts_tensor *distribute(ts_mesh *mesh, ts_mesh *source, const ts_layout *to,
                             const ts_array *whole, const ts_meta *meta)
{
    ts_rank *rank = mesh->rank;
    const ts_layout *from = tsi_tensor_layout_of(source, NULL, meta->shape);
    tsi_array *block = from ? source_block(source, whole, meta) : NULL;
    ts_tensor *t = NULL;
    if (block) {
        tsi_source origin = { source, from, block, (ts_dtype)meta->dtype };
        ts_move_options options = TS_INIT(ts_move_options);
        options.blocking = 1; /* the caller's array is his again when we return */
        options.name = rank->label;
        tsi_move *move = NULL;
        tsi_array *array = tsi_move_begin(&origin, mesh, to, &options, &move);
        if (array) t = tsi_tensor_make(mesh, to, origin.dtype, array, move);
    }
    tsi_array_release(block);
    ts_layout_release(from);
    return t;
}

ts_tensor *(ts_distribute)(const ts_array *whole, const ts_sharding *sharding, ts_meta meta,
                           int64_t root)
{
    ts_rank *rank = tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!sharding) {
        TSI_FAIL(TS_ERR_NULL, "distribute: the sharding is NULL");
        return NULL;
    }
    ts_mesh *mesh = tsi_mesh_of(rank, sharding->mesh);
    if (!mesh) return NULL;
    if (root < 0 || root >= mesh->desc->count) {
        TSI_FAIL(TS_ERR_ARG, "distribute: root %lld is not one of the %lld members of the mesh",
                 (long long)root, (long long)mesh->desc->count);
        return NULL;
    }
    int64_t coord[TS_NDIM_MAX];
    tsi_mesh_desc_unravel(mesh->desc, root, coord);
    tsi_mesh_desc *one = mesh_of_one(rank, tsi_mesh_desc_rank(mesh->desc, coord));
    ts_mesh *source = one ? tsi_mesh_of(rank, one) : NULL;
    if (one) tsi_interned_release(&one->interned);
    const ts_layout *to = source ? tsi_layout_intern(sharding, &meta.shape) : NULL;
    if (!to) return NULL;
    char complaint[160] = "";
    if (source->member) check_whole(whole, &meta, complaint, sizeof complaint);
    ts_group *group = tsi_mesh_axes_group(mesh, (1u << mesh->desc->ndim) - 1);
    uint64_t hash = tsi_hash_text(tsi_hash_mix((uint64_t)root, (uint64_t)meta.dtype), to->text);
    ts_tensor *t = NULL;
    if (group && tsi_agree(group, "distribute", complaint, hash) == TS_OK)
        t = distribute(mesh, source, to, whole, &meta);
    ts_layout_release(to);
    return t;
}
