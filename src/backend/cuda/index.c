/* SPDX-License-Identifier: Apache-2.0 */
/* index.c - gather, index_select and their gradients, scatter_add, index_add, pick and its
 * gradient, triangles.
 *
 * An index may be cut along its own dim's target (others' elements are left alone); a call whose
 * other dims are cut differently is the host's. */
#include "op/index/index.h"

#include <string.h>

#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/index.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/put.h"
#include "base/error.h"
#include "op/view/attributes.h"

enum { WALK_MAX = 1 << 24 }; /* elements of the index that a call looks at; more go by lists */

/* ---- places ---------------------------------------------------------------------------------- */

bool tsi_cuda_are_alike(const tsi_operand *a, const tsi_operand *b, int32_t dim)
{
    for (int32_t d = 0; d < a->block.ndim; d++) {
        tsi_cuda_places one, other;
        if (d == dim || (!a->region && !b->region)) continue;
        if (a->block.extent[d] != b->block.extent[d] || !tsi_cuda_places_make(&one, a->region, d) ||
            !tsi_cuda_places_make(&other, b->region, d))
            return false;
        for (int64_t i = 0; i < a->block.extent[d]; i++)
            if (tsi_cuda_index_at(&one, i) != tsi_cuda_index_at(&other, i)) return false;
    }
    return true;
}

static tsi_cuda_operand operand_without(const tsi_block *block, int32_t dim)
{
    tsi_cuda_operand operand = tsi_cuda_operand_of(block);
    if (dim >= 0 && dim < block->ndim) operand.stride[dim] = 0;
    return operand;
}

/* An index of one dim as an operand along `dim` of others. */
static tsi_cuda_operand line_of(const tsi_block *block, int32_t dim)
{
    tsi_cuda_operand operand = { .data = block->data };
    operand.stride[dim] = block->ndim ? block->stride[0] : 0;
    return operand;
}

/* ---- elements by index ----------------------------------------------------------------------- */

static ts_status gather(const tsi_kernel_io *io, int32_t dim, bool line)
{
    const tsi_operand *far = &io->in[0], *index = &io->in[1], *near = &io->out[0];
    tsi_cuda_index_args a = { .index_dtype = index->block.dtype };
    int64_t bound = far->block.ndim ? far->global->shape.extent[dim] : 1;
    a.size = (int32_t)ts_dtype_size((ts_dtype)near->block.dtype);
    if (!io->queue || !tsi_cuda_is_whole(a.index_dtype) || !tsi_cuda_are_alike(far, near, dim) ||
        (!line && !tsi_cuda_are_alike(index, near, -1)) ||
        !tsi_cuda_places_make(&a.place, far->region, dim))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(&near->block) == 0) return TS_OK;
    a.index = line ? line_of(&index->block, dim) : tsi_cuda_operand_of(&index->block);
    a.near = tsi_cuda_operand_of(&near->block);
    a.far = operand_without(&far->block, dim);
    a.far_step = far->block.ndim ? far->block.stride[dim] : 0;
    tsi_cuda_space_make(&a.space, near->block.ndim, near->block.extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_PLACE, bound, index->region != NULL, &a.asker));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_index_gather, a.space.count, &a);
}

ts_status tsi_cuda_gather(const tsi_kernel_io *io)
{
    return gather(io, (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim, false);
}

/* The element of the last dim that a label names: zeros where it names none, or another rank's. */
ts_status tsi_cuda_pick(const tsi_kernel_io *io)
{
    const tsi_operand *x = &io->in[0], *labels = &io->in[1], *out = &io->out[0];
    int32_t last = x->block.ndim - 1;
    tsi_cuda_index_args a = { .index_dtype = labels->block.dtype };
    a.size = (int32_t)ts_dtype_size((ts_dtype)out->block.dtype);
    a.asker.bound = x->global->shape.extent[last]; /* nobody complains */
    if (!io->queue || !tsi_cuda_is_whole(a.index_dtype) ||
        !tsi_cuda_places_make(&a.place, x->region, last))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(&out->block) == 0) return TS_OK;
    a.index = tsi_cuda_operand_of(&labels->block);
    a.near = tsi_cuda_operand_of(&out->block);
    a.far = operand_without(&x->block, last);
    a.far_step = x->block.stride[last];
    tsi_cuda_space_make(&a.space, out->block.ndim, out->block.extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_index_gather, a.space.count, &a);
}

/* The gradient at the label, zeros at all other classes. */
ts_status tsi_cuda_pick_backward(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *labels = &io->in[1].block, *out = &io->out[0].block;
    tsi_cuda_index_args a = { .index_dtype = labels->dtype };
    if (!io->queue || !tsi_cuda_is_whole(a.index_dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    a.size = (int32_t)ts_dtype_size((ts_dtype)out->dtype);
    a.index = tsi_cuda_operand_of(labels);
    a.near = tsi_cuda_operand_of(out);
    a.far = tsi_cuda_operand_of(dy);
    a.index.stride[out->ndim - 1] = a.far.stride[out->ndim - 1] = 0;
    tsi_cuda_space_make(&a.space, out->ndim, out->extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_index_pick_back, a.space.count, &a);
}

ts_status tsi_cuda_index_select(const tsi_kernel_io *io)
{
    return gather(io, (int32_t)((const tsi_index_select_attributes *)io->attributes)->dim, true);
}

/* ---- into a dim ------------------------------------------------------------------------------ */

ts_status tsi_cuda_index_check(const tsi_kernel_io *io, int32_t input, int32_t kind, int64_t bound,
                               bool wraps, tsi_cuda_asker *asker)
{
    const tsi_operand *in = &io->in[input];
    tsi_cuda_index_args a = { .index_dtype = in->block.dtype, .wraps = wraps };
    a.index = tsi_cuda_operand_of(&in->block);
    tsi_cuda_space_make(&a.space, in->block.ndim, in->block.extent);
    TSI_TRY(tsi_cuda_ask(io, kind, bound, in->region != NULL, &a.asker));
    *asker = a.asker;
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_index_check, a.space.count, &a);
}

/* The same sums by lists. With an index of one dim rows are those of its dim, */
static void rows_of(const tsi_cuda_index_add_args *a, const tsi_block *out, tsi_cuda_put_args *to)
{
    int64_t extent[TS_NDIM_MAX] = { 0 };
    int32_t rest = 0;
    to->near.stride[0] = a->from_step;
    to->row_step[0] = 1;
    to->rows = out->extent[a->dim];
    for (int32_t d = 0; d < out->ndim; d++) {
        if (d == a->dim) continue;
        to->far_rest.stride[rest] = a->out.stride[d];
        to->near_rest.stride[rest] = a->from.stride[d];
        extent[rest++] = out->extent[d];
    }
    tsi_cuda_space_make(&to->rest, rest, extent);
}

/* else every element of the result is one. */
static void elements_of(const tsi_cuda_index_add_args *a, const tsi_block *out,
                        tsi_cuda_put_args *to)
{
    to->rows = 1;
    for (int32_t d = out->ndim - 1; d >= 0; to->rows *= out->extent[d--]) {
        bool own = d == a->dim;
        to->near.stride[d] = own ? a->from_step : a->from.stride[d];
        to->far.stride[d] = own ? 0 : a->out.stride[d];
        to->row.stride[d] = own ? 0 : to->rows;
        if (own) to->row_step[0] = to->rows;
    }
    tsi_cuda_space_make(&to->rest, 0, NULL);
}

static ts_status add_by_lists(const tsi_kernel_io *io, const tsi_cuda_index_add_args *a, bool line)
{
    const tsi_block *out = &io->out[0].block;
    unsigned char zero[16] = { 0 };
    tsi_cuda_put_args lists = { .count = 1,
                                .dtype = a->dtype,
                                .index_dtype = { a->index_dtype },
                                .index = { tsi_cuda_operand_of(&io->in[1].block) },
                                .place = { a->place },
                                .bound = { a->asker.bound },
                                .far_step = { a->out.stride[a->dim] },
                                .asker = a->asker };
    lists.near.data = a->from.data;
    lists.far.data = a->out.data;
    tsi_cuda_space_make(&lists.space, io->in[1].block.ndim, io->in[1].block.extent);
    if (line)
        rows_of(a, out, &lists);
    else
        elements_of(a, out, &lists);
    if (!a->keep) TSI_TRY(io->device->fill(io->device, out, zero, io->queue));
    return tsi_cuda_put_add(io->queue, &lists);
}

static ts_status add_by_walks(const tsi_kernel_io *io, tsi_cuda_index_add_args *a)
{
    bool whole = tsi_cuda_is_whole(a->dtype) || a->dtype == TS_DTYPE_BOOL;
    return tsi_cuda_launch_items(io->queue, whole ? TSI_CUDA_index_add_i64 : TSI_CUDA_index_add_f64,
                                 a->space.count, a);
}

/* out (+)= from, where `from` is input `source`; `line`: the index has one dim. */
static ts_status add(const tsi_kernel_io *io, int32_t dim, int32_t source, bool line, bool keep)
{
    const tsi_operand *from = &io->in[source], *index = &io->in[1], *out = &io->out[0];
    tsi_cuda_index_add_args a = { .dim = dim, .keep = keep, .dtype = out->block.dtype };
    a.index_dtype = index->block.dtype;
    if (!io->queue || !tsi_cuda_is_whole(a.index_dtype) || out->block.ndim == 0 ||
        from->block.dtype != a.dtype || !tsi_cuda_are_alike(from, out, dim) ||
        (!line && !tsi_cuda_are_alike(index, from, -1)) ||
        !tsi_cuda_places_make(&a.place, out->region, dim))
        return (ts_status)TSI_KERNEL_DECLINED;
    a.length = line ? index->block.extent[0] : index->block.extent[dim];
    if (tsi_block_count(&out->block) == 0) return TS_OK;
    bool lists = tsi_cuda_is_complex(a.dtype) || a.length > WALK_MAX / tsi_block_count(&out->block);
    if (lists && !tsi_cuda_put_adds(tsi_block_count(&index->block), tsi_block_count(&out->block)))
        return (ts_status)TSI_KERNEL_DECLINED;
    a.out = tsi_cuda_operand_of(&out->block);
    a.from = operand_without(&from->block, dim);
    a.index = line ? (tsi_cuda_operand){ .data = index->block.data }
                   : operand_without(&index->block, dim);
    a.index_step = line ? index->block.stride[0] : index->block.stride[dim];
    a.from_step = from->block.stride[dim];
    memcpy(a.from_extent, (line ? from : index)->block.extent, sizeof a.from_extent);
    tsi_cuda_space_make(&a.space, out->block.ndim, out->block.extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_index_check(io, 1, TSI_CUDA_BAD_PLACE, out->global->shape.extent[dim], false,
                                 &a.asker));
    if (keep && !io->in_place)
        TSI_TRY(io->device->copy(io->device, &out->block, &io->in[0].block, io->queue));
    return lists ? add_by_lists(io, &a, line) : add_by_walks(io, &a);
}

ts_status tsi_cuda_gather_backward(const tsi_kernel_io *io)
{
    return add(io, (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim, 0, false, false);
}

ts_status tsi_cuda_scatter_add(const tsi_kernel_io *io)
{
    return add(io, (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim, 2, false, true);
}

ts_status tsi_cuda_index_select_backward(const tsi_kernel_io *io)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)io->attributes)->dim;
    return add(io, dim, 0, true, false);
}

ts_status tsi_cuda_index_add(const tsi_kernel_io *io)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)io->attributes)->dim;
    return add(io, dim, 2, true, true);
}

/* ---- triangles ------------------------------------------------------------------------------- */

static ts_status triangle(const tsi_kernel_io *io, bool lower)
{
    const tsi_block *from = &io->in[0].block, *to = &io->out[0].block;
    int32_t last = from->ndim - 1;
    tsi_cuda_triangle_args a = { .lower = lower };
    a.size = (int32_t)ts_dtype_size((ts_dtype)from->dtype);
    a.diagonal = ((const tsi_triangle_attributes *)io->attributes)->diagonal;
    if (!io->queue || last < 1 || !tsi_cuda_places_make(&a.row, io->in[0].region, last - 1) ||
        !tsi_cuda_places_make(&a.column, io->in[0].region, last))
        return (ts_status)TSI_KERNEL_DECLINED;
    a.from = tsi_cuda_operand_of(from);
    a.to = tsi_cuda_operand_of(to);
    tsi_cuda_space_make(&a.space, from->ndim, from->extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_triangle, a.space.count, &a);
}

ts_status tsi_cuda_tril(const tsi_kernel_io *io)
{
    return triangle(io, true);
}

ts_status tsi_cuda_triu(const tsi_kernel_io *io)
{
    return triangle(io, false);
}
