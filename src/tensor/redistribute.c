/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute.c - moving tensors from one layout to another: the public calls.
 *
 * Everything that depends on shared metadata alone (is the move meaningful, which plan) is decided
 * before anything moves and alike on every rank; the source is never touched. */
#include "base/alloc.h"
#include "comm/comm.h"
#include "plan/cache.h"
#include "tensor/execute.h"

/* ---- one block ------------------------------------------------------------------------------ */

/* The plan, held. Plain moves find theirs in the rank's own table. */
static ts_status plan_for(ts_rank *rank, const tsi_source *from, const ts_layout *to,
                          const ts_move_options *options, uint32_t forbid, ts_plan **plan)
{
    bool staged = !tsi_comm_engine(rank->world)->direct;
    if (forbid == 0 && (!options || (!options->planner && options->budget == 0))) {
        TSI_TRY(tsi_plan_for(rank, from->layout, to, from->dtype, staged, plan));
        ts_plan_retain(*plan);
        return TS_OK;
    }
    ts_plan_options o = TS_INIT(ts_plan_options);
    o.forbid = forbid;
    o.staged = staged;
    if (options) {
        o.planner = options->planner;
        o.budget_bytes = options->budget;
    }
    return ts_plan_cached(from->layout, to, from->dtype, &o, plan);
}

ts_status tsi_plan_together(ts_rank *rank, const ts_layout *from, const ts_layout *to,
                            ts_dtype dtype, ts_plan **plan)
{
    const tsi_source source = { .layout = from, .dtype = dtype };
    return plan_for(rank, &source, to, NULL, TS_PLAN_NO_COLLECTIVES, plan);
}

/* The handle on what is in flight holds the blocks that are read and written. */
static ts_status hold_blocks(ts_rank *rank, const tsi_execution *x, int64_t count, ts_work *work,
                             tsi_move **move)
{
    int64_t holds = 0;
    for (int64_t i = 0; i < count; i++)
        holds += 2 + x[i].hold_count;
    *move = tsi_move_create(rank, work, (int32_t)holds);
    if (!*move) return ts_rank_status(rank);
    for (int64_t i = 0; i < count; i++) {
        tsi_move_hold(*move, x[i].from);
        tsi_move_hold(*move, x[i].to);
        for (int32_t j = 0; j < x[i].hold_count; j++)
            tsi_move_hold(*move, x[i].hold[j]);
        tsi_move_guard(*move, x[i].from);
    }
    return TS_OK;
}

/* Runs the plan into `to`; *move is set while something is still in flight. */
static ts_status run_plan(ts_rank *rank, const tsi_source *from, ts_plan *plan, tsi_array *to,
                          const ts_move_options *options, tsi_move **move)
{
    ts_work *work = NULL;
    bool blocking = options && options->blocking;
    tsi_execution x = { .rank = rank,
                        .plan = plan,
                        .from = from->array,
                        .to = to,
                        .name = options && options->name ? options->name : rank->label,
                        .work = blocking ? NULL : &work };
    ts_status status = tsi_execute(&x);
    if (work && status == TS_OK) {
        status = hold_blocks(rank, &x, 1, work, move);
    } else if (work) {
        ts_work_wait(work);
    }
    tsi_execution_release(&x);
    return status;
}

tsi_array *tsi_array_dense(ts_rank *rank, tsi_array *array)
{
    if (tsi_array_is_dense(array)) return tsi_array_retain(array);
    ts_shape shape = tsi_array_shape(array);
    tsi_array *dense = tsi_array_create_tagged(rank, (ts_dtype)array->dtype, &shape, TSI_TAG_COMM);
    if (dense && tsi_array_copy(dense, array) == TS_OK) return dense;
    tsi_array_release(dense);
    return NULL;
}

static tsi_array *move_dense(const tsi_source *from, ts_mesh *to_mesh, const ts_layout *to,
                             ts_plan *plan, const ts_move_options *options, tsi_move **move)
{
    ts_rank *rank = to_mesh->rank;
    tsi_source source = *from;
    source.array = tsi_array_dense(rank, from->array);
    if (source.array && source.array != from->array)
        tsi_tell(rank, TSI_NEWS_STAGE, source.array->storage);
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

/* The block itself where the target's shape of it is the same, else another view of it: empty
 * blocks have shapes too, and a cut over several dims counts them as one. */
static tsi_array *same_block(ts_mesh *mesh, tsi_array *array, const ts_layout *to)
{
    ts_shape wanted = mesh->member ? ts_layout_local(to, mesh->coord) : TS_SHAPE(0);
    bool same = wanted.ndim == array->ndim;
    for (int32_t d = 0; same && d < wanted.ndim; d++)
        same = wanted.extent[d] == array->extent[d];
    if (same) return tsi_array_retain(array);
    tsi_array *dense = tsi_array_dense(mesh->rank, array);
    if (!dense) return NULL;
    tsi_array *view = tsi_array_view(dense, (ts_dtype)dense->dtype, &wanted, NULL, dense->offset);
    tsi_array_release(dense);
    return view;
}

/* Is every element where it is wanted? Then the block is shared. */
static bool stays(const tsi_source *from, const ts_mesh *to_mesh, const ts_plan *plan)
{
    return plan->family == TS_PLAN_NONE && from->mesh->member == to_mesh->member;
}

tsi_array *tsi_move_begin(const tsi_source *from, ts_mesh *to_mesh, const ts_layout *to,
                          const ts_move_options *options, tsi_move **move)
{
    *move = NULL;
    tsi_tell(to_mesh->rank, TSI_NEWS_MOVING, NULL);
    if (from->layout == to) return tsi_array_retain(from->array);
    ts_plan *plan = NULL;
    if (plan_for(to_mesh->rank, from, to, options, 0, &plan) != TS_OK) return NULL;
    tsi_array *array = NULL;
    if (stays(from, to_mesh, plan))
        array = same_block(to_mesh, from->array, to);
    else
        array = move_dense(from, to_mesh, to, plan, options, move);
    if (*move) (*move)->from = ts_layout_retain(from->layout);
    ts_plan_release(plan);
    return array;
}

/* ---- tensors --------------------------------------------------------------------------------- */

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
    tsi_tensor_moved(x, y, false);
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

/* ---- several tensors in common rounds ------------------------------------------------------- */

typedef struct many_item {
    ts_mesh *mesh;
    const ts_layout *layout; /* of the target, retained */
    ts_plan *plan;           /* retained; NULL: source and target are one layout */
    tsi_source from;         /* array retained */
    tsi_array *to;           /* retained */
} many_item;

/* Everything that may be refused, before anything moves. */
static ts_status many_prepare(ts_rank *rank, ts_tensor *x, const ts_sharding *to, uint32_t tag,
                              many_item *item)
{
    if (!to) return TSI_FAIL(TS_ERR_NULL, "redistribute_many: a target sharding is NULL");
    if (!tsi_tensor_enter(x, "redistribute_many")) return ts_rank_status(rank);
    TSI_TRY(tsi_tensor_ready(x));
    item->mesh = to->mesh == x->mesh->desc ? x->mesh : tsi_mesh_of(rank, to->mesh);
    item->layout = item->mesh ? tsi_layout_intern(to, &x->layout->shape) : NULL;
    if (!item->layout) return ts_rank_status(rank);
    item->from = (tsi_source){ x->mesh, x->layout, NULL, (ts_dtype)x->dtype };
    if (x->layout != item->layout)
        TSI_TRY(tsi_plan_together(rank, x->layout, item->layout, item->from.dtype, &item->plan));
    if (!item->plan || stays(&item->from, item->mesh, item->plan)) {
        item->to = same_block(item->mesh, x->array, item->layout);
        return item->to ? TS_OK : ts_rank_status(rank);
    }
    item->from.array = tsi_array_dense(rank, x->array);
    item->to = item->from.array
                   ? tsi_tensor_block_tagged(item->mesh, item->layout, item->from.dtype, tag)
                   : NULL;
    return item->to ? TS_OK : ts_rank_status(rank);
}

static ts_status many_run(ts_rank *rank, tsi_arena *scratch, const many_item *item, int32_t count,
                          tsi_move **move)
{
    tsi_execution *x = tsi_arena_alloc(scratch, (size_t)count * sizeof *x);
    if (!x) return tsi_fail_memory("a list of moves", (size_t)count * sizeof *x);
    int64_t moving = 0;
    ts_work *work = NULL;
    for (int32_t i = 0; i < count; i++) {
        if (!item[i].from.array) continue;
        x[moving++] = (tsi_execution){
            .rank = rank, .plan = item[i].plan, .from = item[i].from.array, .to = item[i].to
        };
    }
    ts_status status = moving ? tsi_execute_many(rank, x, moving, rank->label, &work) : TS_OK;
    if (work && status == TS_OK) {
        status = hold_blocks(rank, x, moving, work, move);
    } else if (work) {
        ts_work_wait(work);
    }
    for (int64_t i = 0; i < moving; i++)
        tsi_execution_release(&x[i]);
    return status;
}

static ts_status many_tensors(ts_rank *rank, ts_tensor *const *x, many_item *item, int32_t count,
                              tsi_move *move, ts_tensor **out)
{
    for (int32_t i = 0; i < count; i++) {
        bool moves = move && item[i].from.array;
        out[i] = tsi_tensor_make(item[i].mesh, item[i].layout, item[i].from.dtype, item[i].to,
                                 moves ? tsi_move_retain(move) : NULL);
        item[i].to = NULL;
        if (!out[i]) return ts_rank_status(rank);
    }
    for (int32_t i = 0; i < count; i++)
        tsi_tensor_moved(x[i], out[i], false);
    return TS_OK;
}

static void many_release(many_item *item, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        tsi_array_release(item[i].from.array);
        tsi_array_release(item[i].to);
        ts_plan_release(item[i].plan);
        if (item[i].layout) ts_layout_release(item[i].layout);
    }
}

static ts_status move_many(ts_rank *rank, ts_tensor *const *x, const ts_sharding *const *to,
                           int32_t count, uint32_t tag, ts_tensor **out)
{
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (!state) return ts_rank_status(rank);
    tsi_arena_mark mark = tsi_arena_save(&state->scratch);
    many_item *item = tsi_arena_calloc(&state->scratch, (size_t)count, sizeof *item);
    if (!item) return tsi_fail_memory("a list of moves", (size_t)count * sizeof *item);
    tsi_move *move = NULL;
    ts_status status = TS_OK;
    tsi_tell(rank, TSI_NEWS_MOVING, NULL);
    for (int32_t i = 0; status == TS_OK && i < count; i++)
        status = many_prepare(rank, x[i], to[i], tag, &item[i]);
    if (status == TS_OK) status = many_run(rank, &state->scratch, item, count, &move);
    if (status == TS_OK) status = many_tensors(rank, x, item, count, move, out);
    tsi_move_release(move);
    many_release(item, count);
    tsi_arena_rewind(&state->scratch, mark);
    for (int32_t i = 0; status != TS_OK && i < count; i++) {
        if (out[i]) ts_tensor_drop(out[i]);
        out[i] = NULL;
    }
    return status;
}

ts_status tsi_redistribute_tagged(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                                  uint32_t tag, ts_tensor **out)
{
    ts_rank *rank = tsi_rank_current();
    for (int32_t i = 0; out && i < count; i++)
        out[i] = NULL;
    if (!rank)
        return TSI_FAIL(TS_ERR_THREAD, "redistribute_many: this thread is attached to no rank");
    TSI_TRY(tsi_rank_enter(rank));
    if (!x || !to || !out) return TSI_FAIL(TS_ERR_NULL, "redistribute_many: an argument is NULL");
    if (count < 0) return TSI_FAIL(TS_ERR_ARG, "redistribute_many: %d tensors", count);
    return move_many(rank, x, to, count, tag, out);
}

ts_status(ts_redistribute_many)(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                                ts_tensor **out)
{
    return tsi_redistribute_tagged(x, to, count, TSI_TAG_ACTIVATION, out);
}
