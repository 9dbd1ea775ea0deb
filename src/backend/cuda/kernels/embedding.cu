/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.cu - rows of a table by index, and the gradient of the table.
 *
 *   gather                    an item a unit of a row
 *   count, begin, order, add  tokens are listed by the row they name; a block a row of the table
 *                             puts its list in order and adds the gradients of its tokens
 *
 * INV: lists are filled in any order but sorted before they are added: the same bits every time. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/lists.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

/* The local row of a token; -1: another rank's, or nobody's. */
__device__ inline int64_t row_of(const tsi_cuda_embedding_args &a, int64_t token)
{
    int64_t id = load_wide(a.id_dtype, a.ids, token * a.id_stride).whole;
    if (id >= 0 && id < a.asker.bound) return tsi_cuda_place_of(&a.place, id);
    complain(a.asker, token, id);
    return -1;
}

template <typename U> __device__ void gather(const tsi_cuda_embedding_args &a)
{
    int64_t total = a.tokens * a.columns;
    for (int64_t i = first_item(); i < total; i += item_step()) {
        int64_t token = i / a.columns, c = i - token * a.columns, row = row_of(a, token);
        U unit;
        memset(&unit, 0, sizeof unit);
        if (row >= 0) unit = ((const U *)a.table)[row * a.table_row + c];
        ((U *)a.out)[token * a.out_row + c] = unit;
    }
}

TSI_KERNEL(embedding_1, tsi_cuda_embedding_args)
{
    gather<uint8_t>(a);
}
TSI_KERNEL(embedding_2, tsi_cuda_embedding_args)
{
    gather<uint16_t>(a);
}
TSI_KERNEL(embedding_4, tsi_cuda_embedding_args)
{
    gather<uint32_t>(a);
}
TSI_KERNEL(embedding_8, tsi_cuda_embedding_args)
{
    gather<uint64_t>(a);
}
TSI_KERNEL(embedding_16, tsi_cuda_embedding_args)
{
    gather<uint4>(a);
}

/* ---- the gradient ---------------------------------------------------------------------------- */

TSI_KERNEL(embedding_count, tsi_cuda_embedding_args)
{
    for (int64_t t = first_item(); t < a.tokens; t += item_step()) {
        int64_t row = row_of(a, t);
        if (row >= 0) atomicAdd(&a.count[row], 1);
    }
}

/* Where the list of a row begins: anywhere, so long as lists do not overlap. */
TSI_KERNEL(embedding_begin, tsi_cuda_embedding_args)
{
    for (int64_t r = first_item(); r < a.rows; r += item_step()) {
        if (a.count[r] > 0) a.begin[r] = atomicAdd(a.cursor, a.count[r]);
        a.left[r] = a.count[r];
    }
}

TSI_KERNEL(embedding_order, tsi_cuda_embedding_args)
{
    for (int64_t t = first_item(); t < a.tokens; t += item_step()) {
        int64_t row = row_of(a, t);
        if (row < 0) continue;
        int place = atomicSub(&a.left[row], 1) - 1;
        a.order[a.begin[row] + place] = (int32_t)t;
    }
}

template <typename R> __device__ void add_rows(const tsi_cuda_embedding_args &a)
{
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int count = a.count[row];
        int32_t *list = a.order + a.begin[row];
        if (count > 1) sort_list(list, list, count, a.tokens, (int)((a.tokens + 31) / 32));
        for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
            R sum = 0;
            for (int i = 0; i < count; i++)
                sum += load_real<R>(a.dtype, a.table, list[i] * a.table_row + c);
            store_real<R>(a.dtype, a.out, row * a.out_row + c, sum);
        }
        __syncthreads();
    }
}

/* The same by 16 bytes: columns and strides are multiples of them. */
template <typename T> __device__ void add_units(const tsi_cuda_embedding_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int count = a.count[row];
        int32_t *list = a.order + a.begin[row];
        if (count > 1) sort_list(list, list, count, a.tokens, (int)((a.tokens + 31) / 32));
        for (int64_t u = threadIdx.x; u < a.columns / N; u += blockDim.x) {
            float sum[N] = {};
            unit_of<E> in;
            for (int i = 0; i < count; i++) {
                in.unit = ((const uint4 *)((const E *)a.table + list[i] * a.table_row))[u];
#pragma unroll
                for (int e = 0; e < N; e++)
                    sum[e] += T::load(in.element[e]);
            }
#pragma unroll
            for (int e = 0; e < N; e++)
                in.element[e] = T::store(sum[e]);
            ((uint4 *)((E *)a.out + row * a.out_row))[u] = in.unit;
        }
        __syncthreads();
    }
}

TSI_KERNEL(embedding_units_f32, tsi_cuda_embedding_args)
{
    add_units<as_f32>(a);
}

TSI_KERNEL(embedding_units_bf16, tsi_cuda_embedding_args)
{
    add_units<as_bf16>(a);
}

TSI_KERNEL(embedding_add_f32, tsi_cuda_embedding_args)
{
    add_rows<float>(a);
}

TSI_KERNEL(embedding_add_f64, tsi_cuda_embedding_args)
{
    add_rows<double>(a);
}
