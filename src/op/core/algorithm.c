/* SPDX-License-Identifier: Apache-2.0 */
/* algorithm.c - the frame of an operator's algorithm. */
#include "op/core/algorithm.h"

#include "base/intmath.h"
#include "op/core/dispatch.h"
#include "op/core/kernel.h"
#include "tensor/scope.h"
#include "tessera/op.h"

ts_scope tsi_algorithm_begin(const tsi_algorithm_io *io)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.implicit_moves = TS_MOVES_ALLOW;
    options.no_grad = 1;
    return ts_scope_open_with(io->rank, &options);
}

ts_tensor *tsi_algorithm_settle(const tsi_algorithm_io *io, ts_tensor *t)
{
    if (!t) return NULL;
    const ts_sharding *have = t->layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < have->ndim; k++) {
        place[k] = have->place[k];
        if (io->axes >> k & 1 && tsi_placement_partial(&place[k]))
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(have->mesh, place);
    if (!to) return NULL;
    ts_tensor *settled = (ts_redistribute_to)(t, to);
    ts_sharding_release(to);
    return settled;
}

ts_tensor *tsi_algorithm_whole(ts_tensor *t, uint32_t axes)
{
    const ts_sharding *have = t->layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < have->ndim; k++) {
        place[k] = have->place[k];
        if (axes >> k & 1)
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(have->mesh, place);
    ts_tensor *moved = to ? (ts_redistribute_to)(t, to) : NULL;
    ts_sharding_release(to);
    return moved;
}

/* The tensor in another layout; a shard becomes a term by way of the whole. */
static ts_tensor *move_to(ts_tensor *t, const ts_sharding *to)
{
    const ts_sharding *have = t->layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    bool detour = false;
    for (int32_t k = 0; k < have->ndim && have->mesh == to->mesh; k++) {
        place[k] = have->place[k];
        tsi_role from = tsi_role_of(&place[k]), wanted = tsi_role_of(&to->place[k]);
        if (!tsi_role_is_p(wanted) || from == wanted || from == TSI_ROLE_R) continue;
        place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
        detour = true;
    }
    if (!detour) return (ts_redistribute_to)(t, to);
    const ts_sharding *via = tsi_sharding_intern(have->mesh, place);
    t = via ? (ts_redistribute_to)(t, via) : NULL;
    ts_sharding_release(via);
    return t ? (ts_redistribute_to)(t, to) : NULL;
}

/* Is output o an input, or an earlier output? Then it is not the algorithm's to give away: inputs
 * that were moved for the call are dropped after it, and nobody expects two results in one block.
 */
static bool is_taken(const tsi_algorithm_io *io, ts_tensor *const *out, int32_t o)
{
    bool taken = false;
    for (int32_t i = 0; i < io->input_count; i++)
        taken |= out[o] == io->in[i];
    for (int32_t before = 0; before < o; before++)
        taken |= out[o] == out[before];
    return taken;
}

ts_status tsi_algorithm_end(const tsi_algorithm_io *io, ts_scope scope, ts_tensor *const *out)
{
    for (int32_t o = 0; o < io->output_count; o++) {
        ts_tensor *t = out[o] && is_taken(io, out, o) ? (ts_clone)(out[o]) : out[o];
        if (t && t->layout != io->out_layout[o]) t = move_to(t, io->out_layout[o]->sharding);
        io->out[o] = t ? ts_scope_pass(scope, t) : NULL;
    }
    ts_scope_close(scope);
    ts_status status = ts_rank_status(io->rank);
    for (int32_t o = 0; status != TS_OK && o < io->output_count; o++)
        io->out[o] = NULL;
    return status;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

int64_t tsi_algorithm_bytes(const ts_meta *meta, int64_t arrays)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)meta->dtype);
    return tsi_mul_most(tsi_mul_most(ts_shape_count(&meta->shape), size), arrays);
}

int64_t tsi_algorithm_share(int64_t bytes, int64_t n)
{
    return bytes - tsi_ceil_div(bytes, n); /* bytes (n - 1) / n */
}

/* ---- blocks ---------------------------------------------------------------------------------- */

ts_status tsi_algorithm_blocks(const tsi_algorithm_io *io, tsi_array **block)
{
    for (int32_t o = 0; o < io->output_count; o++) {
        block[o] = tsi_tensor_block(io->mesh, io->out_layout[o], (ts_dtype)io->call->out[o].dtype);
        if (!block[o]) return ts_rank_status(io->rank);
    }
    return TS_OK;
}

ts_status tsi_algorithm_finish(const tsi_algorithm_io *io, tsi_array **block, ts_status status)
{
    for (int32_t o = 0; o < io->output_count; o++) {
        if (status != TS_OK) {
            tsi_array_release(block[o]);
            continue;
        }
        io->out[o] = tsi_tensor_make(io->mesh, io->out_layout[o], (ts_dtype)io->call->out[o].dtype,
                                     block[o], NULL);
        if (!io->out[o]) status = ts_rank_status(io->rank);
    }
    return status;
}

typedef struct on_host {
    const tsi_algorithm_io *io;
    tsi_algorithm_fn fn;
    tsi_arena arena;
} on_host;

static ts_status run_on_host(void *context, const tsi_block *block)
{
    on_host *h = context;
    return h->fn(h->io, block, &h->arena);
}

ts_status tsi_algorithm_on_host(const tsi_algorithm_io *io, tsi_algorithm_fn fn)
{
    tsi_array *array[TSI_OUTPUT_MAX] = { NULL };
    tsi_block block[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    on_host h = { .io = io, .fn = fn };
    ts_status status = tsi_algorithm_blocks(io, array);
    for (int32_t i = 0; i < io->input_count; i++)
        block[i] = io->in[i] ? tsi_array_block(io->in[i]->array) : (tsi_block){ .dtype = 0 };
    for (int32_t o = 0; status == TS_OK && o < io->output_count; o++)
        block[io->input_count + o] = tsi_array_block(array[o]);
    if (status == TS_OK)
        status = tsi_host_run(io->rank, io->op->name, block, io->input_count, io->output_count,
                              run_on_host, &h);
    tsi_arena_release(&h.arena);
    return tsi_algorithm_finish(io, array, status);
}
