/* SPDX-License-Identifier: Apache-2.0 */
/* put.c - index_get, index_put, scatter, take: elements where indices point.
 *
 * What is put goes by winners, what is added by lists (kernels/put.cu); both need memory for each
 * place that can be pointed at, which is taken and given back in the order of the stream. */
#include "backend/cuda/put.h"

#include "backend/cuda/dtype.h"
#include "backend/cuda/index.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "base/intmath.h"
#include "op/index/index.h"

enum { ADD_THREADS = 128, ADD_WORDS = 8192 /* of shared memory, at most */ };

/* ---- indices of several dims ----------------------------------------------------------------- */

typedef struct call {
    const tsi_kernel_io *io;
    const tsi_index_put_attributes *attributes;
    tsi_index_geometry g;
    const tsi_operand *far;
    int64_t lines[TS_NDIM_MAX]; /* extents of the shape that the indices have together */
} call;

/* False: an index is of another dtype. */
static bool call_begin(call *c, const tsi_kernel_io *io, int32_t first, const tsi_operand *far)
{
    ts_meta in[TSI_INPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = *io->in[i].global;
    *c = (call){ .io = io, .attributes = io->attributes, .far = far };
    c->g = tsi_index_geometry_of(first, &c->attributes->dims, in, io->input_count);
    for (int32_t j = 0; j < c->g.lines; j++) {
        c->lines[j] = 1;
        for (int32_t i = first; i < io->input_count; i++) {
            int32_t d = j - (c->g.lines - io->in[i].block.ndim);
            if (d >= 0 && in[i].shape.extent[d] != 1) c->lines[j] = io->in[i].block.extent[d];
        }
    }
    for (int32_t i = first; i < io->input_count; i++)
        if (!tsi_cuda_is_whole(io->in[i].block.dtype)) return false;
    return true;
}

/* A block that is broadcast to a shape of `ndim` dims, of which its last is number `last`. */
static tsi_cuda_operand spread(const tsi_block *block, int32_t last)
{
    tsi_cuda_operand operand = { .data = block->data };
    for (int32_t d = 0; d < block->ndim; d++)
        if (block->extent[d] != 1) operand.stride[last - (block->ndim - 1 - d)] = block->stride[d];
    return operand;
}

/* Indices over a space in which their common shape begins at dim `at`. */
static bool indices_make(const call *c, int32_t at, tsi_cuda_put_args *a)
{
    int64_t row = 1;
    a->count = c->g.count;
    for (int32_t i = c->g.count - 1; i >= 0; i--) {
        const tsi_block *index = &c->io->in[c->g.first + i].block;
        int32_t dim = (int32_t)c->attributes->dims.value[i];
        a->index[i] = spread(index, at + c->g.lines - 1);
        a->index_dtype[i] = index->dtype;
        a->bound[i] = c->far->global->shape.extent[dim];
        a->far_step[i] = c->far->block.stride[dim];
        a->row_step[i] = row;
        row *= c->far->block.extent[dim];
        if (!tsi_cuda_places_make(&a->place[i], c->far->region, dim)) return false;
    }
    a->rows = row;
    for (int64_t j = c->g.lines - 1, step = 1; j >= 0; step *= c->lines[j--])
        a->number.stride[at + j] = step;
    a->far.data = c->far->block.data;
    a->dtype = c->far->block.dtype;
    a->size = (int32_t)ts_dtype_size((ts_dtype)a->dtype);
    return true;
}

/* Over the shape of far[indices]; `near` has it, or is broadcast to it. */
static bool result_make(const call *c, const tsi_block *near, tsi_cuda_put_args *a)
{
    int64_t extent[TS_NDIM_MAX] = { 0 };
    if (!indices_make(c, c->g.at, a)) return false;
    for (int32_t j = 0; j < c->g.lines; j++)
        extent[c->g.at + j] = c->lines[j];
    for (int32_t k = 0; k < c->g.rest; k++) {
        extent[c->g.to[k]] = c->far->block.extent[c->g.from[k]];
        a->far.stride[c->g.to[k]] = c->far->block.stride[c->g.from[k]];
    }
    a->near = spread(near, c->g.lines + c->g.rest - 1);
    tsi_cuda_space_make(&a->space, c->g.lines + c->g.rest, extent);
    return true;
}

/* Over the shape of the indices alone; what a row holds is `rest`. `result` is over all. */
static void claims_make(const call *c, const tsi_cuda_put_args *result, tsi_cuda_put_args *a)
{
    int64_t extent[TS_NDIM_MAX] = { 0 };
    (void)indices_make(c, 0, a); /* it was possible before */
    tsi_cuda_space_make(&a->space, c->g.lines, c->lines);
    a->near.data = result->near.data;
    for (int32_t j = 0; j < c->g.lines; j++)
        a->near.stride[j] = result->near.stride[c->g.at + j];
    for (int32_t k = 0; k < c->g.rest; k++) {
        extent[k] = c->far->block.extent[c->g.from[k]];
        a->far_rest.stride[k] = c->far->block.stride[c->g.from[k]];
        a->near_rest.stride[k] = result->near.stride[c->g.to[k]];
    }
    tsi_cuda_space_make(&a->rest, c->g.rest, extent);
}

static ts_status check_all(const call *c, tsi_cuda_asker *asker)
{
    for (int32_t i = 0; i < c->g.count; i++)
        TSI_TRY(tsi_cuda_index_check(c->io, c->g.first + i, TSI_CUDA_BAD_PLACE,
                                     c->far->global->shape.extent[c->attributes->dims.value[i]],
                                     true, asker));
    return TS_OK;
}

ts_status tsi_cuda_index_get(const tsi_kernel_io *io)
{
    call c;
    tsi_cuda_asker asker;
    tsi_cuda_put_args a = { .count = 0 };
    if (!io->queue || !call_begin(&c, io, 1, &io->in[0]) || !result_make(&c, &io->out[0].block, &a))
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(check_all(&c, &asker));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_put_get, a.space.count, &a);
}

/* ---- putting and adding ---------------------------------------------------------------------- */

/* Of `claims` over rows, and what they put: `result` has an item for each element. */
static ts_status put_winners(tsi_stream *stream, tsi_cuda_put_args *claims,
                             tsi_cuda_put_args *result)
{
    void *memory = NULL;
    size_t bytes = (size_t)claims->rows * sizeof *claims->winner;
    TSI_TRY(tsi_cuda_scratch(stream, bytes, &memory));
    claims->winner = result->winner = memory;
    TSI_CUDA_TRY(stream->cuda, "winners of rows",
                 tsi_cu.set_bytes(tsi_cuda_pointer(memory), 0, bytes, tsi_cuda_apart(stream)));
    TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_put_claim, claims->space.count, claims));
    return tsi_cuda_launch_items(stream, TSI_CUDA_put_winners, result->space.count, result);
}

static ts_status add_lists(tsi_stream *stream, tsi_cuda_put_args *a)
{
    int64_t claims = a->space.count, blocks = claims < a->rows ? claims : a->rows;
    TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_put_tally, claims, a));
    TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_put_begin, a->rows, a));
    TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_put_order, claims, a));
    return tsi_cuda_launch(stream, TSI_CUDA_put_add, blocks, ADD_THREADS,
                           a->words * (int32_t)sizeof(uint32_t), a);
}

/* One piece of memory: cursors, of each row its claims, what is left, where they begin and if they
 * are there, then the lists. What begins as 0 comes first. */
ts_status tsi_cuda_put_add(tsi_stream *stream, tsi_cuda_put_args *a)
{
    CUdeviceptr memory = 0;
    size_t rows = (size_t)a->rows, claims = (size_t)a->space.count;
    if (rows == 0 || claims == 0) return TS_OK;
    TSI_TRY(tsi_cuda_memory(stream, "lists of rows", (4 + 4 * rows + 2 * claims) * sizeof(int32_t),
                            &memory));
    a->cursor = (int32_t *)(uintptr_t)memory;
    a->tally = a->cursor + 4;
    a->left = a->tally + rows;
    a->begin = a->left + rows;
    a->touched = a->begin + rows;
    a->order = a->touched + rows;
    a->sorted = a->order + claims;
    a->words = (int32_t)tsi_min_i64(((int64_t)claims + 31) / 32, ADD_WORDS);
    CUresult cleared =
        tsi_cu.set_bytes(memory, 0, (4 + rows) * sizeof(int32_t), tsi_cuda_apart(stream));
    ts_status status = cleared == CUDA_SUCCESS ? add_lists(stream, a)
                                               : tsi_cuda_fail(stream->cuda, cleared, "lists");
    (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    return status;
}

/* The result begins as x, unless it is x. */
static ts_status begin_as_x(const tsi_kernel_io *io)
{
    if (io->in_place) return TS_OK;
    return io->device->copy(io->device, &io->out[0].block, &io->in[0].block, io->queue);
}

ts_status tsi_cuda_index_put(const tsi_kernel_io *io)
{
    call c;
    tsi_cuda_put_args result = { .count = 0 }, claims = { .count = 0 };
    if (!io->queue || !call_begin(&c, io, 2, &io->out[0]) ||
        !result_make(&c, &io->in[1].block, &result))
        return (ts_status)TSI_KERNEL_DECLINED;
    claims_make(&c, &result, &claims);
    if (c.attributes->accumulate && !tsi_cuda_put_adds(claims.space.count, claims.rows))
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(check_all(&c, &claims.asker));
    result.asker = claims.asker;
    if (tsi_block_count(&io->out[0].block) == 0) return TS_OK;
    TSI_TRY(begin_as_x(io));
    if (result.space.count == 0) return TS_OK;
    return c.attributes->accumulate ? tsi_cuda_put_add(io->queue, &claims)
                                    : put_winners(io->queue, &claims, &result);
}

/* ---- scatter --------------------------------------------------------------------------------- */

/* Dims of the index that the result holds at other places than the index: all of the index is here,
 * and its position there is one more index. */
static bool scatter_dims(const tsi_operand *index, const tsi_operand *out, int32_t dim,
                         tsi_cuda_put_args *a)
{
    bool alike = tsi_cuda_are_alike(index, out, dim);
    for (int64_t d = out->block.ndim - 1, row = 1; d >= 0; row *= out->block.extent[d--]) {
        bool own = d == dim;
        if (!own && alike) {
            a->far.stride[d] = out->block.stride[d];
            a->row.stride[d] = row;
            continue;
        }
        int32_t k = a->count++;
        if (own) a->index[k] = tsi_cuda_operand_of(&index->block);
        if (!own) a->index[k].stride[d] = 1;
        a->index_dtype[k] = index->block.dtype;
        a->bound[k] = out->global->shape.extent[d];
        a->far_step[k] = out->block.stride[d];
        a->row_step[k] = row;
        if (!tsi_cuda_places_make(&a->place[k], out->region, (int32_t)d)) return false;
    }
    return alike || !index->region;
}

ts_status tsi_cuda_scatter(const tsi_kernel_io *io)
{
    const tsi_scatter_attributes *attributes = io->attributes;
    const tsi_operand *index = &io->in[1], *out = &io->out[0];
    const tsi_operand *source = io->input_count == 3 ? &io->in[2] : NULL;
    int32_t dim = (int32_t)attributes->dim;
    tsi_cuda_put_args a = { .dtype = out->block.dtype, .rows = tsi_block_count(&out->block) };
    a.size = (int32_t)ts_dtype_size((ts_dtype)a.dtype);
    if (!io->queue || !tsi_cuda_is_whole(index->block.dtype) || out->block.ndim == 0 ||
        (source && !tsi_cuda_are_alike(index, source, -1)) || !scatter_dims(index, out, dim, &a))
        return (ts_status)TSI_KERNEL_DECLINED;
    a.value = (tsi_cuda_number){ attributes->value.real, attributes->value.imaginary,
                                 attributes->value.whole, attributes->value.kind == TS_NUMBER_INT };
    if (source) a.near = tsi_cuda_operand_of(&source->block);
    a.far.data = out->block.data;
    tsi_cuda_space_make(&a.space, index->block.ndim, index->block.extent);
    for (int64_t d = index->block.ndim - 1, step = 1; d >= 0; step *= index->block.extent[d--])
        a.number.stride[d] = step;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_index_check(io, 1, TSI_CUDA_BAD_PLACE, out->global->shape.extent[dim], false,
                                 &a.asker));
    if (a.rows == 0) return TS_OK;
    TSI_TRY(begin_as_x(io));
    tsi_cuda_put_args result = a;
    return a.space.count ? put_winners(io->queue, &a, &result) : TS_OK;
}

/* ---- by row-major number --------------------------------------------------------------------- */

ts_status tsi_cuda_take(const tsi_kernel_io *io)
{
    const tsi_operand *x = &io->in[0];
    const tsi_block *index = &io->in[1].block, *out = &io->out[0].block;
    tsi_cuda_asker asker;
    tsi_cuda_take_args a = { .far = x->block.data, .index_dtype = index->dtype };
    if (!io->queue || !tsi_cuda_is_whole(index->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    a.ndim = x->block.ndim;
    a.bound = ts_shape_count(&x->global->shape);
    a.size = (int32_t)ts_dtype_size((ts_dtype)out->dtype);
    for (int32_t d = 0; d < a.ndim; d++) {
        a.extent[d] = x->global->shape.extent[d];
        a.stride[d] = x->block.stride[d];
        if (!tsi_cuda_places_make(&a.place[d], x->region, d)) return (ts_status)TSI_KERNEL_DECLINED;
    }
    a.index = tsi_cuda_operand_of(index);
    a.near = tsi_cuda_operand_of(out);
    tsi_cuda_space_make(&a.space, out->ndim, out->extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_index_check(io, 1, TSI_CUDA_BAD_PLACE, a.bound, true, &asker));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_take, a.space.count, &a);
}
