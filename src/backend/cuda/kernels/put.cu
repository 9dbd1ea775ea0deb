/* SPDX-License-Identifier: Apache-2.0 */
/* put.cu - elements where several indices point at once: taken, put or added.
 *
 *   put_get, take               near = far where the indices of an item point, 0 if that is another
 *                               rank's
 *   put_claim, put_winners      of those that point at one row the last is put there
 *   put_tally, _begin, _order   claims are listed by the row they point at,
 *   put_add                     and a block a row puts its list in order and adds
 *
 * INV: lists are filled in any order but sorted before they are added, and a winner is a largest
 * number: the same bits every time. Where an index is wrong, nothing is written. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/lists.cuh"
#include "backend/cuda/kernels/number.cuh"

/* ---- where an item points -------------------------------------------------------------------- */

struct spot {
    int64_t near, far, row, number;
};

__device__ inline int64_t offset_of(const tsi_cuda_operand &x, const int64_t *at, int ndim)
{
    int64_t offset = 0;
    for (int d = 0; d < ndim; d++)
        offset += at[d] * x.stride[d];
    return offset;
}

/* False: at another rank's place, or at none. */
__device__ inline bool spot_of(const tsi_cuda_put_args &a, int64_t item, spot *s)
{
    int64_t at[TSI_CUDA_DIMS];
    int ndim = a.space.ndim;
    bool here = true;
    coordinates(a.space, item, at);
    s->near = offset_of(a.near, at, ndim);
    s->far = offset_of(a.far, at, ndim);
    s->row = a.first + offset_of(a.row, at, ndim);
    s->number = offset_of(a.number, at, ndim);
    for (int k = 0; k < a.count; k++) {
        const tsi_cuda_operand &index = a.index[k];
        int64_t i = offset_of(index, at, ndim);
        if (index.data) i = load_wide(a.index_dtype[k], index.data, i).whole;
        if (i < 0) i += a.bound[k]; /* from the end; what does not count from there was told */
        int64_t own = -1;
        if (i >= 0 && i < a.bound[k]) own = tsi_cuda_place_of(&a.place[k], i);
        here = here && own >= 0;
        s->far += own * a.far_step[k];
        s->row += own * a.row_step[k];
    }
    return here;
}

/* ---- taking ---------------------------------------------------------------------------------- */

TSI_KERNEL(put_get, tsi_cuda_put_args)
{
    const uint4 zero = { 0, 0, 0, 0 };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s;
        if (spot_of(a, i, &s))
            copy_bytes(a.size, a.near.data, s.near, a.far.data, s.far);
        else
            copy_bytes(a.size, a.near.data, s.near, &zero, 0);
    }
}

/* The place of a row-major number; false: it is not here. */
__device__ inline bool flat_place(const tsi_cuda_take_args &a, int64_t flat, int64_t *offset)
{
    bool here = true;
    *offset = 0;
    if (flat < 0) flat += a.bound;
    if (flat < 0 || flat >= a.bound) return false;
    for (int d = a.ndim - 1; d >= 0; d--) {
        int64_t outer = flat / a.extent[d];
        int64_t own = tsi_cuda_place_of(&a.place[d], flat - outer * a.extent[d]);
        here = here && own >= 0;
        *offset += own * a.stride[d];
        flat = outer;
    }
    return here;
}

TSI_KERNEL(take, tsi_cuda_take_args)
{
    const tsi_cuda_operand *const operands[2] = { &a.index, &a.near };
    const uint4 zero = { 0, 0, 0, 0 };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[2], from;
        place(a.space, i, operands, at);
        if (flat_place(a, load_wide(a.index_dtype, a.index.data, at[0]).whole, &from))
            copy_bytes(a.size, a.near.data, at[1], a.far, from);
        else
            copy_bytes(a.size, a.near.data, at[1], &zero, 0);
    }
}

/* ---- putting: the last one stays ------------------------------------------------------------- */

TSI_KERNEL(put_claim, tsi_cuda_put_args)
{
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s;
        if (spot_of(a, i, &s))
            atomicMax((unsigned long long *)&a.winner[s.row], (unsigned long long)s.number + 1);
    }
}

TSI_KERNEL(put_winners, tsi_cuda_put_args)
{
    if (is_refused(a.asker)) return;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s;
        if (!spot_of(a, i, &s) || a.winner[s.row] != (uint64_t)s.number + 1) continue;
        if (a.near.data)
            copy_bytes(a.size, a.far.data, s.far, a.near.data, s.near);
        else if (a.value.is_whole)
            store_i64(a.dtype, a.far.data, s.far, a.value.whole);
        else
            store_f64(a.dtype, a.far.data, s.far, a.value.re, a.value.im);
    }
}

/* ---- adding: lists of claims by row ---------------------------------------------------------- */

TSI_KERNEL(put_tally, tsi_cuda_put_args)
{
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s;
        if (spot_of(a, i, &s)) atomicAdd(&a.tally[s.row], 1);
    }
}

/* Where the list of a row begins: anywhere, so long as lists do not overlap. */
TSI_KERNEL(put_begin, tsi_cuda_put_args)
{
    for (int64_t r = first_item(); r < a.rows; r += item_step()) {
        int count = a.tally[r];
        if (count == 0) continue;
        a.begin[r] = atomicAdd(&a.cursor[0], count);
        a.left[r] = count;
        a.touched[atomicAdd(&a.cursor[1], 1)] = (int32_t)r;
    }
}

TSI_KERNEL(put_order, tsi_cuda_put_args)
{
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s;
        if (!spot_of(a, i, &s)) continue;
        int last = atomicSub(&a.left[s.row], 1) - 1;
        a.order[a.begin[s.row] + last] = (int32_t)i;
    }
}

__device__ inline void add_element(const tsi_cuda_put_args &a, const int32_t *list, int count,
                                   int64_t to, int64_t from)
{
    wide_kind kind = kind_of(a.dtype);
    wide sum = load_wide(a.dtype, a.far.data, to);
    for (int i = 0; i < count; i++) {
        spot s;
        (void)spot_of(a, list[i], &s);
        wide w = load_wide(a.dtype, a.near.data, s.near + from);
        sum.re += w.re;
        sum.im += w.im;
        sum.whole = (int64_t)((uint64_t)sum.whole + (uint64_t)w.whole);
    }
    if (kind == WIDE_I64)
        store_i64(a.dtype, a.far.data, to, sum.whole);
    else
        store_f64(a.dtype, a.far.data, to, sum.re, sum.im);
}

TSI_KERNEL(put_add, tsi_cuda_put_args)
{
    const tsi_cuda_operand *const operands[2] = { &a.far_rest, &a.near_rest };
    if (is_refused(a.asker)) return;
    for (int64_t t = blockIdx.x; t < a.cursor[1]; t += gridDim.x) {
        int64_t row = a.touched[t];
        int count = a.tally[row];
        int32_t *list = a.sorted + a.begin[row];
        spot s;
        sort_list(a.order + a.begin[row], list, count, a.space.count, a.words);
        (void)spot_of(a, list[0], &s);
        for (int64_t r = threadIdx.x; r < a.rest.count; r += blockDim.x) {
            int64_t at[2];
            place(a.rest, r, operands, at);
            add_element(a, list, count, s.far + at[0], at[1]);
        }
        __syncthreads();
    }
}
