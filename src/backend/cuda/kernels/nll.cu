/* SPDX-License-Identifier: Apache-2.0 */
/* nll.cu - the costs of labels among log-probabilities, in f64: terms, then their sum by one block.
 *
 * INV: the tree of the sum follows from the number of labels alone: the same bits on every GPU. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

/* The log-probability of a class, and its weight; 0 where another rank has it. */
__device__ inline double cost_of(const tsi_cuda_nll_args &a, int64_t row, int64_t label)
{
    int64_t here = tsi_cuda_place_of(&a.place, label);
    return here < 0 ? 0.0 : load_wide(a.dtype, a.x.data, row + here * a.class_step).re;
}

__device__ inline double weight_of(const tsi_cuda_nll_args &a, int64_t label)
{
    if (!a.weight) return 1.0;
    int64_t here = tsi_cuda_place_of(&a.weight_place, label);
    return here < 0 ? 0.0 : load_wide(a.weight_dtype, a.weight, here * a.weight_step).re;
}

TSI_KERNEL(nll_terms, tsi_cuda_nll_args)
{
    const tsi_cuda_operand *const operands[3] = { &a.x, &a.labels, &a.to };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[3];
        place(a.space, i, operands, at);
        int64_t label = load_wide(a.label_dtype, a.labels.data, at[1]).whole;
        double weighs = 0, term = 0;
        if (label != a.ignore && (label < 0 || label >= a.asker.bound)) {
            complain(a.asker, i, label);
        } else if (label != a.ignore) {
            weighs = weight_of(a, label);
            term = -weighs * cost_of(a, at[0], label);
        }
        if (a.to.data) {
            store_f64(a.to_dtype, a.to.data, at[2], term, 0);
        } else {
            a.terms[i] = term;
            a.terms[a.space.count + i] = weighs;
        }
    }
}

/* Nothing counts: the mean is not a number. */
TSI_KERNEL_BOUNDED(nll_total, tsi_cuda_nll_args, 1024)
{
    __shared__ double shared[32];
    double sum = 0, weighed = 0;
    for (int64_t i = threadIdx.x; i < a.space.count; i += blockDim.x) {
        sum += a.terms[i];
        weighed += a.terms[a.space.count + i];
    }
    sum = block_sum(sum, shared);
    weighed = block_sum(weighed, shared);
    if (threadIdx.x == 0) store_f64(a.to_dtype, a.loss, 0, a.mean ? sum / weighed : sum, 0);
}
