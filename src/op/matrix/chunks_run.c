/* SPDX-License-Identifier: Apache-2.0 */
/* chunks_run.c - products chunk by chunk (chunks.h).
 *
 *   gather    me: own rows | me + 1 | me + 2 | ..       each product writes its rows of the result
 *   scatter   me + 1 | me + 2 | .. | own rows           each product fills a block for its member
 *
 * In place, an exchange in which nothing moves (tsi_group_lend) tells where rows lie with their
 * owner; on the host alone, for a loan lasts as long as hosts say, and queues are behind them. What
 * is lent for a sum is a block of this call, which nobody writes again; x is the program's, so
 * whoever writes it later waits until its readers are done (tsi_moves_guard).
 *
 * Between processes of a node rows, or terms, go through a window (comm/window.h): each member puts
 * its own there once, and the others multiply or add them up where they lie.
 *
 * INV: works end before the memory they use; every member issues the same works in the same order,
 * also members without rows. */
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "comm/window.h"
#include "op/core/algorithm.h"
#include "op/core/element.h"
#include "op/core/kernel.h"
#include "op/matrix/chunks.h"
#include "tensor/move.h"

typedef struct chunked {
    const tsi_algorithm_io *io;
    tsi_arena arena;
    const tsi_rank_device *device;
    tsi_kernel_fn kernel;
    uint64_t rows_in; /* bit i: input i is cut along rows */
    int32_t dim, axis;
    int64_t size, me;
    bool in_place;
    tsi_chunk_rows *rows; /* of each member */
    tsi_block in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    tsi_window *window;
    size_t window_bytes; /* of a block in it */
    ts_work **work;      /* per step, 1 .. size - 1; NULL: none, or waited for; 0: the meeting */
    tsi_lending *lending;
    tsi_array **array; /* per step: what is computed, or comes; then per step: what came */
} chunked;

static int64_t member_at(const chunked *c, int64_t step)
{
    return (c->me + step) % c->size;
}

static int64_t member_back(const chunked *c, int64_t step)
{
    return (c->me + c->size - step) % c->size;
}

static tsi_block slice(const tsi_block *block, int32_t dim, const tsi_chunk_rows *rows)
{
    tsi_block part = *block;
    part.extent[dim] = rows->count;
    if (part.data) part.data = tsi_block_at(block, rows->begin * block->stride[dim]);
    return part;
}

/* The kernel on blocks of the call's operands. */
static ts_status multiply(const chunked *c, const tsi_block *in, const tsi_block *out)
{
    const tsi_algorithm_io *io = c->io;
    tsi_operand operand[TSI_INPUT_MAX], result[TSI_OUTPUT_MAX];
    if (tsi_block_count(&out[0]) == 0) return TS_OK;
    for (int32_t i = 0; i < io->input_count; i++)
        operand[i] = (tsi_operand){ .block = in[i], .global = &io->call->in[i] };
    for (int32_t o = 0; o < io->output_count; o++)
        result[o] = (tsi_operand){ .block = out[o], .global = &io->call->out[o] };
    tsi_kernel_io kernel = { .op = io->op,
                             .attributes = io->attributes,
                             .in = operand,
                             .out = result,
                             .input_count = io->input_count,
                             .output_count = io->output_count,
                             .rank = io->rank,
                             .device = c->device->device,
                             .queue = c->device->queue };
    return tsi_kernel_run(c->kernel, &kernel);
}

static void operands(chunked *c)
{
    const tsi_algorithm_io *io = c->io;
    for (int32_t i = 0; i < io->input_count; i++)
        c->in[i] = io->in[i] ? tsi_array_block(io->in[i]->array) : (tsi_block){ .dtype = 0 };
    c->kernel = tsi_kernel_of(c->device->device, io->op);
}

ts_status tsi_chunk_product(const tsi_algorithm_io *io, tsi_array *out)
{
    chunked c = { .io = io, .device = tsi_rank_device_of(io->rank) };
    if (!c.device) return ts_rank_status(io->rank);
    operands(&c);
    tsi_block block = tsi_array_block(out);
    return multiply(&c, c.in, &block);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static ts_status begin(chunked *c, const tsi_algorithm_io *io, const ts_layout *cut, int32_t dim)
{
    *c = (chunked){ .io = io, .dim = dim, .device = tsi_rank_device_of(io->rank) };
    if (!c->device) return ts_rank_status(io->rank);
    while (io->axes >> c->axis != 1)
        c->axis++;
    c->size = ts_group_size(io->group);
    c->me = ts_group_index(io->group);
    c->in_place = tsi_world_device(io->rank->world)->host_readable && tsi_group_lends(io->group);
    c->rows_in = io->op->chunks->rows(io->call, dim);
    size_t n = (size_t)c->size;
    c->rows = tsi_arena_calloc(&c->arena, n, sizeof *c->rows);
    c->work = tsi_arena_calloc(&c->arena, n, sizeof *c->work);
    c->lending = tsi_arena_calloc(&c->arena, n, sizeof *c->lending);
    c->array = tsi_arena_calloc(&c->arena, 2 * n, sizeof *c->array);
    if (!c->rows || !c->work || !c->lending || !c->array)
        return tsi_fail_memory("a product in chunks", n * 96);
    operands(c);
    return tsi_chunk_rows_of(cut, io->mesh->coord, c->axis, dim, c->rows);
}

static ts_status wait_step(const chunked *c, int64_t step)
{
    ts_work *work = c->work[step];
    c->work[step] = NULL;
    return work ? ts_work_wait(work) : TS_OK;
}

/* Whatever is under way ends, then its memory goes. */
static ts_status end(chunked *c, ts_status status)
{
    for (int64_t i = 0; c->work && i < c->size; i++) {
        ts_status late = wait_step(c, i);
        if (status == TS_OK) status = late;
    }
    for (int64_t i = 0; c->lending && i < c->size; i++)
        if (c->lending[i].held) tsi_lending_end(c->io->group, &c->lending[i]);
    for (int64_t i = 0; c->array && i < 2 * c->size; i++)
        tsi_array_release(c->array[i]);
    tsi_arena_release(&c->arena);
    return status;
}

static void part_of(const tsi_block *block, int64_t peer, ts_part *out, int64_t *count)
{
    if (tsi_block_count(block) == 0) return;
    ts_part *part = &out[(*count)++];
    *part = (ts_part){ .peer = peer, .data = block->data, .ndim = block->ndim };
    memcpy(part->extent, block->extent, sizeof part->extent);
    memcpy(part->stride, block->stride, sizeof part->stride);
}

/* One step: `give` for a member, `take` of another, copied or, in place, lent. */
typedef struct exchange_step {
    int64_t step, to, from;
    tsi_block give, take;
    tsi_array *own; /* in whose storage `give` lies */
} exchange_step;

static ts_status start_step(chunked *c, const exchange_step *s)
{
    ts_part send, recv;
    ts_exchange e = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = c->io->op->name;
    options.work = &c->work[s->step];
    e.dtype = s->give.dtype;
    e.device = tsi_array_device(s->own);
    e.send = &send;
    e.recv = &recv;
    part_of(&s->give, s->to, &send, &e.send_count);
    part_of(&s->take, s->from, &recv, &e.recv_count);
    if (!c->in_place) return (ts_group_exchange)(c->io->group, &e, &options);
    tsi_lending *l = &c->lending[s->step];
    tsi_storage **storage = tsi_arena_calloc(&c->arena, (size_t)c->size + 1, sizeof *storage);
    ts_part *lent = tsi_arena_calloc(&c->arena, 1, sizeof *lent);
    if (!storage || !lent) return tsi_fail_memory("what ranks lend", (size_t)c->size * 8);
    storage[c->size] = s->own->storage;
    *l = (tsi_lending){ storage + c->size, 1, lent, storage };
    if (e.recv_count) recv.data = NULL;
    return tsi_group_lend(c->io->group, &e, l, &options);
}

/* What a step brought: where it was received, or where it lies with its owner. */
static tsi_block taken(const chunked *c, int64_t step, const tsi_block *like)
{
    tsi_block block = *like;
    if (!c->in_place) return block;
    const ts_part *part = c->lending[step].lent;
    if (!part->data) return block; /* a world without data, or no elements */
    block.data = part->data;
    memcpy(block.stride, part->stride, sizeof block.stride);
    return block;
}

/* A block like `like` with so many rows; held as array `place`. */
static ts_status make_rows(chunked *c, int64_t place, const tsi_block *like, int64_t rows,
                           tsi_block *out)
{
    ts_shape shape = { .ndim = like->ndim };
    memcpy(shape.extent, like->extent, (size_t)like->ndim * sizeof *shape.extent);
    shape.extent[c->dim] = rows;
    tsi_array *array =
        tsi_array_create_tagged(c->io->rank, (ts_dtype)like->dtype, &shape, TSI_TAG_COMM);
    if (!array) return ts_rank_status(c->io->rank);
    tsi_array_release(c->array[place]);
    c->array[place] = array;
    *out = tsi_array_block(array);
    return TS_OK;
}

/* ---- windows --------------------------------------------------------------------------------- */

static size_t bytes_of_rows(const chunked *c, const tsi_block *like, int64_t rows)
{
    tsi_block block = *like;
    block.extent[c->dim] = rows;
    return (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)like->dtype);
}

/* Room for `blocks` blocks of any member's rows; c->window NULL: it cannot be had. */
static ts_status open_window(chunked *c, const tsi_block *like, int64_t blocks)
{
    int64_t most = 0;
    if (c->in_place || c->device->device != tsi_device_host()) return TS_OK;
    if (!tsi_group_has_window(c->io->group)) return TS_OK;
    for (int64_t m = 0; m < c->size; m++)
        if (c->rows[m].count > most) most = c->rows[m].count;
    c->window_bytes = (bytes_of_rows(c, like, most) + 63) / 64 * 64;
    return tsi_group_window(c->io->group, c->window_bytes * (size_t)blocks, &c->window);
}

/* Rows of one member in block `place` of what `owner` shows. */
static tsi_block in_window(const chunked *c, const tsi_block *like, int64_t owner, int64_t place,
                           int64_t rows)
{
    tsi_block block = *like;
    block.extent[c->dim] = rows;
    return tsi_block_dense_like(&block,
                                tsi_window_of(c->window, owner) + (size_t)place * c->window_bytes);
}

/* What this member shows is there; `bytes` of the others are read after the wait. */
static ts_status meet(chunked *c, const tsi_block *like, size_t bytes)
{
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = c->io->op->name;
    options.work = &c->work[0];
    return tsi_group_meet(c->io->group, (ts_dtype)like->dtype, (int64_t)bytes, &options);
}

/* ---- gather ---------------------------------------------------------------------------------- */

static ts_status multiply_rows(const chunked *c, int64_t member, const tsi_block *x)
{
    tsi_block in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    memcpy(in, c->in, (size_t)c->io->input_count * sizeof *in);
    in[0] = *x;
    for (int32_t o = 0; o < c->io->output_count; o++)
        out[o] = slice(&c->out[o], c->dim, &c->rows[member]);
    return multiply(c, in, out);
}

/* Rows of the member that comes at this step, into one of two places; in place, nowhere. */
static ts_status start_gather(chunked *c, int64_t step, tsi_block *coming)
{
    if (step >= c->size) return TS_OK;
    int64_t from = member_at(c, step), rows = c->rows[from].count;
    tsi_block take = c->in[0];
    take.extent[c->dim] = rows;
    take.data = NULL;
    if (!c->in_place) TSI_TRY(make_rows(c, step % 2, &c->in[0], rows, &take));
    *coming = take;
    exchange_step s = { .step = step,
                        .to = member_back(c, step),
                        .from = from,
                        .give = c->in[0],
                        .take = take,
                        .own = c->io->in[0]->array };
    return start_step(c, &s);
}

/* Peers read x until they have passed this too. */
static ts_status leave_x(chunked *c)
{
    if (!c->in_place) return TS_OK;
    ts_work *work = NULL;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = c->io->op->name;
    options.work = &work;
    TSI_TRY((ts_group_barrier)(c->io->group, &options));
    return tsi_moves_guard(c->io->in[0], work);
}

static ts_status gather_through_window(chunked *c)
{
    const tsi_device *device = c->device->device;
    const tsi_block *x = &c->in[0];
    tsi_block own = in_window(c, x, c->me, 0, c->rows[c->me].count);
    size_t others = 0;
    for (int64_t m = 0; m < c->size; m++)
        if (m != c->me) others += bytes_of_rows(c, x, c->rows[m].count);
    if (tsi_block_count(&own) > 0) TSI_TRY(device->copy(device, &own, x, c->device->queue));
    TSI_TRY(meet(c, x, others));
    TSI_TRY(multiply_rows(c, c->me, x));
    TSI_TRY(wait_step(c, 0));
    for (int64_t step = 1; step < c->size; step++) {
        int64_t from = member_at(c, step);
        tsi_block rows = in_window(c, x, from, 0, c->rows[from].count);
        TSI_TRY(multiply_rows(c, from, &rows));
    }
    return TS_OK;
}

static ts_status gather_steps(chunked *c)
{
    tsi_block coming[2];
    TSI_TRY(open_window(c, &c->in[0], 1));
    if (c->window) return gather_through_window(c);
    if (c->in_place) /* all at once: nothing travels */
        for (int64_t step = 1; step < c->size; step++)
            TSI_TRY(start_gather(c, step, &coming[0]));
    else
        TSI_TRY(start_gather(c, 1, &coming[1]));
    TSI_TRY(multiply_rows(c, c->me, &c->in[0]));
    for (int64_t step = 1; step < c->size; step++) {
        int64_t from = member_at(c, step);
        tsi_block x = c->in[0];
        x.extent[c->dim] = c->rows[from].count;
        TSI_TRY(wait_step(c, step));
        if (!c->in_place) {
            x = coming[step % 2];
            TSI_TRY(start_gather(c, step + 1, &coming[(step + 1) % 2]));
        }
        if (c->rows[from].count == 0) continue;
        x = taken(c, step, &x);
        TSI_TRY(multiply_rows(c, from, &x));
    }
    return leave_x(c);
}

static ts_status run_gather(const tsi_algorithm_io *io)
{
    chunked c;
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    int32_t axis = 0;
    while (io->axes >> axis != 1)
        axis++;
    const ts_layout *cut = io->in[0]->layout;
    ts_status status = begin(&c, io, cut, cut->sharding->place[axis].dim);
    if (status == TS_OK) status = tsi_algorithm_blocks(io, result);
    for (int32_t o = 0; o < io->output_count && status == TS_OK; o++)
        c.out[o] = tsi_array_block(result[o]);
    if (status == TS_OK) status = gather_steps(&c);
    status = end(&c, status);
    return tsi_algorithm_finish(io, result, status);
}

/* ---- scatter --------------------------------------------------------------------------------- */

static ts_status multiply_terms_to(const chunked *c, int64_t member, const tsi_block *out)
{
    tsi_block in[TSI_INPUT_MAX];
    for (int32_t i = 0; i < c->io->input_count; i++)
        in[i] = c->rows_in >> i & 1 ? slice(&c->in[i], c->dim, &c->rows[member]) : c->in[i];
    return multiply(c, in, out);
}

/* The terms of a member's rows, into block `place`. */
static ts_status multiply_terms(chunked *c, int64_t place, int64_t member, tsi_block *out)
{
    TSI_TRY(make_rows(c, place, &c->out[0], c->rows[member].count, out));
    return multiply_terms_to(c, member, out);
}

/* Terms of my rows, one of each member, in the members' order. */
static ts_status fold(chunked *c, const tsi_block *own)
{
    const tsi_device *device = c->device->device;
    size_t n = (size_t)c->size;
    tsi_block *term = tsi_arena_calloc(&c->arena, n, sizeof *term);
    const tsi_block **from = tsi_arena_calloc(&c->arena, n, sizeof *from);
    if (!term || !from) return tsi_fail_memory("terms of a sum", n * sizeof *term);
    for (int64_t m = 0; m < c->size; m++) {
        int64_t step = (c->me + c->size - m) % c->size; /* at which its rows for me were made */
        from[m] = &term[m];
        if (m == c->me)
            term[m] = *own;
        else if (c->window)
            term[m] = in_window(c, own, m, c->me, c->rows[c->me].count);
        else
            term[m] = c->in_place ? taken(c, step, own) : tsi_array_block(c->array[c->size + step]);
    }
    return device->fold(device, &c->out[0], from, c->size, TS_REDUCE_SUM, 0, c->device->queue);
}

/* A member's rows are made and offered to him; those he made for me are asked for. */
static ts_status scatter_step(chunked *c, int64_t step)
{
    exchange_step s = { .step = step, .to = member_at(c, step), .from = member_back(c, step) };
    TSI_TRY(multiply_terms(c, step, s.to, &s.give));
    s.own = c->array[step];
    s.take = c->out[0];
    s.take.data = NULL;
    if (!c->in_place)
        TSI_TRY(make_rows(c, c->size + step, &c->out[0], c->rows[c->me].count, &s.take));
    return start_step(c, &s);
}

/* Terms for the others first: they are shown together, and mine are made meanwhile. */
static ts_status scatter_through_window(chunked *c)
{
    tsi_block own;
    size_t others = (size_t)(c->size - 1) * bytes_of_rows(c, &c->out[0], c->rows[c->me].count);
    for (int64_t step = 1; step < c->size; step++) {
        int64_t to = member_at(c, step);
        tsi_block terms = in_window(c, &c->out[0], c->me, to, c->rows[to].count);
        TSI_TRY(multiply_terms_to(c, to, &terms));
    }
    TSI_TRY(meet(c, &c->out[0], others));
    TSI_TRY(multiply_terms(c, 0, c->me, &own));
    TSI_TRY(wait_step(c, 0));
    return tsi_block_count(&own) ? fold(c, &own) : TS_OK;
}

static ts_status scatter_steps(chunked *c)
{
    tsi_block own;
    TSI_TRY(open_window(c, &c->out[0], c->size));
    if (c->window) return scatter_through_window(c);
    for (int64_t step = 1; step < c->size; step++)
        TSI_TRY(scatter_step(c, step));
    TSI_TRY(multiply_terms(c, 0, c->me, &own));
    for (int64_t step = 1; step < c->size; step++)
        TSI_TRY(wait_step(c, step));
    return tsi_block_count(&own) ? fold(c, &own) : TS_OK;
}

static ts_status run_scatter(const tsi_algorithm_io *io, int32_t dim)
{
    chunked c;
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = begin(&c, io, io->out_layout[0], dim);
    if (status == TS_OK) status = tsi_algorithm_blocks(io, result);
    if (status == TS_OK) {
        c.out[0] = tsi_array_block(result[0]);
        status = scatter_steps(&c);
    }
    status = end(&c, status);
    return tsi_algorithm_finish(io, result, status);
}

ts_status tsi_chunks_run(const tsi_algorithm_io *io)
{
    int64_t dim = tsi_chunks_of(io->call)->scatter;
    bool cut = false; /* by the axis of the algorithm: then the result is what is cut */
    const ts_sharding *out = io->out_layout[0]->sharding;
    for (int32_t k = 0; k < out->ndim; k++)
        cut = cut ||
              (io->axes >> k & 1 && tsi_placement_cuts(&out->place[k]) && out->place[k].dim == dim);
    return cut ? run_scatter(io, (int32_t)dim) : run_gather(io);
}
