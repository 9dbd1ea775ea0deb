/* SPDX-License-Identifier: Apache-2.0 */
/* index.cu - elements by an index along one dim, and triangles.
 *
 *   index_gather   near[.., i, ..] = far[.., index[i], ..], 0 where another rank holds it
 *   index_add_*    out[.., j, ..] (+)= sum over i with index[i] = j of from[.., i, ..]
 *
 * INV: sums walk the index in order, a result each: the same bits every time. Where an index is
 * wrong, nothing is added to what was there. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"

/* ---- elements by index ----------------------------------------------------------------------- */

TSI_KERNEL(index_gather, tsi_cuda_index_args)
{
    const tsi_cuda_operand *const operands[3] = { &a.index, &a.near, &a.far };
    const uint4 zero = { 0, 0, 0, 0 };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[3];
        place(a.space, i, operands, offset);
        int64_t index = load_wide(a.index_dtype, a.index.data, offset[0]).whole, at = -1;
        if (index >= 0 && index < a.asker.bound)
            at = tsi_cuda_place_of(&a.place, index);
        else
            complain(a.asker, i, index);
        if (at >= 0)
            copy_bytes(a.size, a.near.data, offset[1], a.far.data, offset[2] + at * a.far_step);
        else
            copy_bytes(a.size, a.near.data, offset[1], &zero, 0);
    }
}

TSI_KERNEL(index_check, tsi_cuda_index_args)
{
    const tsi_cuda_operand *const operands[1] = { &a.index };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[1];
        place(a.space, i, operands, offset);
        int64_t index = load_wide(a.index_dtype, a.index.data, offset[0]).whole;
        int64_t least = a.wraps ? -a.asker.bound : 0; /* from the end */
        if (index < least || index >= a.asker.bound) complain(a.asker, i, index);
    }
}

/* The gradient of pick: far at the label, zeros elsewhere; the last dim is that of classes. */
TSI_KERNEL(index_pick_back, tsi_cuda_index_args)
{
    const tsi_cuda_operand *const operands[3] = { &a.index, &a.near, &a.far };
    const uint4 zero = { 0, 0, 0, 0 };
    int64_t classes = a.space.extent[a.space.ndim - 1];
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[3];
        place(a.space, i, operands, offset);
        int64_t label = load_wide(a.index_dtype, a.index.data, offset[0]).whole;
        if (label == i % classes)
            copy_bytes(a.size, a.near.data, offset[1], a.far.data, offset[2]);
        else
            copy_bytes(a.size, a.near.data, offset[1], &zero, 0);
    }
}

/* ---- into a dim ------------------------------------------------------------------------------ */

/* Places of a result in out, from and index (these along all dims but its own), and the global
 * index it has in its own dim. False: nothing points there. */
struct target {
    int64_t out, from, index, own;
};

__device__ inline bool target_of(const tsi_cuda_index_add_args &a, int64_t item, target *t)
{
    bool within = true;
    *t = { 0, 0, 0, 0 };
    for (int d = a.space.ndim - 1; d >= 0; d--) {
        int64_t outer = item / a.space.extent[d], c = item - outer * a.space.extent[d];
        item = outer;
        t->out += c * a.out.stride[d];
        if (d == a.dim) {
            t->own = tsi_cuda_index_at(&a.place, c);
            continue;
        }
        within = within && c < a.from_extent[d];
        t->from += c * a.from.stride[d];
        t->index += c * a.index.stride[d];
    }
    return within;
}

__device__ inline double real_of(const tsi_cuda_index_add_args &a, const void *data, int64_t at)
{
    return load_wide(a.dtype, data, at).re;
}

TSI_KERNEL(index_add_f64, tsi_cuda_index_add_args)
{
    if (a.keep && is_refused(a.asker)) return;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        target t;
        bool within = target_of(a, i, &t);
        double sum = a.keep ? real_of(a, a.out.data, t.out) : 0.0;
        for (int64_t l = 0; within && l < a.length; l++)
            if (load_wide(a.index_dtype, a.index.data, t.index + l * a.index_step).whole == t.own)
                sum += real_of(a, a.from.data, t.from + l * a.from_step);
        store_f64(a.dtype, a.out.data, t.out, sum, 0);
    }
}

TSI_KERNEL(index_add_i64, tsi_cuda_index_add_args)
{
    if (a.keep && is_refused(a.asker)) return;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        target t;
        bool within = target_of(a, i, &t);
        uint64_t sum = a.keep ? (uint64_t)load_wide(a.dtype, a.out.data, t.out).whole : 0;
        for (int64_t l = 0; within && l < a.length; l++)
            if (load_wide(a.index_dtype, a.index.data, t.index + l * a.index_step).whole == t.own)
                sum += (uint64_t)load_wide(a.dtype, a.from.data, t.from + l * a.from_step).whole;
        store_i64(a.dtype, a.out.data, t.out, (int64_t)sum);
    }
}

/* ---- triangles ------------------------------------------------------------------------------- */

TSI_KERNEL(triangle, tsi_cuda_triangle_args)
{
    const tsi_cuda_operand *const operands[2] = { &a.from, &a.to };
    const uint4 zero = { 0, 0, 0, 0 };
    int last = a.space.ndim - 1;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[2], column = i % a.space.extent[last];
        int64_t row = i / a.space.extent[last] % a.space.extent[last - 1];
        place(a.space, i, operands, offset);
        int64_t off = tsi_cuda_index_at(&a.column, column) - tsi_cuda_index_at(&a.row, row);
        bool kept = a.lower ? off <= a.diagonal : off >= a.diagonal;
        if (kept)
            copy_bytes(a.size, a.to.data, offset[1], a.from.data, offset[0]);
        else
            copy_bytes(a.size, a.to.data, offset[1], &zero, 0);
    }
}
