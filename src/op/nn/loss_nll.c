/* SPDX-License-Identifier: Apache-2.0 */
/* loss_nll.c - nll_loss: the negative log-probability of labels.
 *
 * x [.., C] holds log-probabilities, labels [..]. Labels equal to ignore_index count for nothing; a
 * mean divides by the number of the others on all ranks, which the algorithm counts where labels
 * are sharded. A rank that does not hold a label's class contributes 0, so sharded classes give a
 * partial sum. */
#include <math.h>
#include <string.h>

#include "op/core/algorithm.h"
#include "op/core/common.h"

typedef struct nll_attributes {
    int64_t ignore_index;
    int32_t reduction, reserved; /* 0 mean, 1 sum, 2 none */
} nll_attributes;
static const char *const reductions[] = { "mean", "sum", "none", NULL };
static const tsi_attribute nll_table[] = {
    TSI_ATTR(nll_attributes, ignore_index, INT, "ignore_index", "-100"),
    TSI_ATTR_ONE_OF(nll_attributes, reduction, "reduction", "\"mean\"", reductions),
    { 0 },
};

static ts_status nll_infer(const tsi_op_call *call)
{
    const nll_attributes *a = call->attributes;
    const ts_shape *x = &call->in[0].shape, *labels = &call->in[1].shape;
    bool fits = x->ndim == labels->ndim + 1;
    for (int32_t d = 0; fits && d < labels->ndim; d++)
        fits = x->extent[d] == labels->extent[d];
    char one[96], other[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "nll_loss: labels of shape %s do not fit inputs of shape %s",
                        tsi_shape_text(labels, other, sizeof other),
                        tsi_shape_text(x, one, sizeof one));
    if (tsi_dtype_category((ts_dtype)call->in[1].dtype) != TSI_CATEGORY_INT)
        return TSI_FAIL(TS_ERR_DTYPE, "nll_loss: labels are integers, not %s",
                        ts_dtype_name((ts_dtype)call->in[1].dtype));
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "nll_loss: is defined for reals, not %s",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    call->out[0] = (ts_meta){ .shape = a->reduction == 2 ? *labels : TS_SHAPE_SCALAR,
                              .dtype = call->in[0].dtype };
    return TS_OK;
}

static void nll_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const nll_attributes *a = call->attributes;
    int32_t last = call->in[1].shape.ndim;
    for (int32_t d = 0; d < last; d++) {
        tsi_role *row = tsi_rules_add_with(rules, a->reduction == 0 ? 1 : 0, 0);
        if (!row) return;
        row[0] = row[1] = TSI_S(d);
        row[2] = a->reduction == 2 ? TSI_S(d) : TSI_P(TS_REDUCE_SUM);
    }
    tsi_role *row = tsi_rules_add(rules);
    if (!row) return;
    row[0] = TSI_S(last);
    row[2] = TSI_P(TS_REDUCE_SUM);
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 1 };
    if (a->reduction == 2) linear.mono[0] = TSI_MONO_DOWN;
    tsi_rules_partials(rules, &linear);
}

static ts_status nll_reference(const tsi_kernel_io *io)
{
    const nll_attributes *a = io->attributes;
    const tsi_operand *x = &io->in[0];
    const tsi_block *labels = &io->in[1].block, *out = &io->out[0].block;
    static const int64_t still[TS_NDIM_MAX];
    int32_t last = x->block.ndim - 1;
    int64_t classes = x->global->shape.extent[last], counted = 0;
    tsi_loop loop = { .ndim = labels->ndim,
                      .operand_count = 3,
                      .stride = { x->block.stride, labels->stride,
                                  a->reduction == 2 ? out->stride : still } };
    memcpy(loop.extent, labels->extent, sizeof loop.extent);
    double total = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_load_int((ts_dtype)labels->dtype, tsi_block_at(labels, loop.at[1]));
        bool counts = label != a->ignore_index;
        if (counts && (label < 0 || label >= classes))
            return TSI_FAIL(TS_ERR_ARG, "nll_loss: label %lld is out of range for %lld classes",
                            (long long)label, (long long)classes);
        if (counts && x->region) label = tsi_span_list_find(&x->region->dim[last], label);
        double term = 0;
        if (counts && label >= 0)
            term =
                -tsi_load_real((ts_dtype)x->block.dtype,
                               tsi_block_at(&x->block, loop.at[0] + label * x->block.stride[last]));
        total += term;
        counted += counts;
        if (a->reduction == 2)
            tsi_store_real((ts_dtype)out->dtype, tsi_block_at(out, loop.at[2]), term);
    }
    if (a->reduction == 0) total /= (double)counted; /* nothing counts: not a number */
    if (a->reduction != 2) tsi_store_real((ts_dtype)out->dtype, out->data, total);
    return TS_OK;
}

/* ---- counting labels ------------------------------------------------------------------------- */

static ts_tensor *counts_of(ts_tensor *labels, int64_t ignore_index, ts_dtype dtype)
{
    ts_tensor *ignored = ts_full_number(ts_number_int(ignore_index), ts_tensor_mesh(labels),
                                        ts_tensor_dtype(labels), TS_SHAPE_SCALAR, NULL);
    return ts_cast(ts_ne(labels, ignored), dtype);
}

static ts_status nll_counted(const tsi_algorithm_io *io)
{
    nll_attributes sums = *(const nll_attributes *)io->attributes;
    sums.reduction = 1;
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *sum = tsi_op_make(&tsi_op_nll_loss, io->in, 2, &sums);
    ts_tensor *counts = counts_of(io->in[1], sums.ignore_index, TS_DTYPE_F64);
    ts_tensor *count = tsi_algorithm_settle(io, ts_sum(counts, NULL, 0, 0));
    ts_tensor *y =
        ts_cast(ts_div(ts_cast(sum, TS_DTYPE_F64), count), (ts_dtype)io->call->out[0].dtype);
    return tsi_algorithm_end(io, scope, &y);
}

static int64_t nll_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call;
    return tsi_algorithm_share(2 * 8, n);
}

static const tsi_algorithm nll_algorithms[] = { { "count labels", nll_counted, nll_bytes }, { 0 } };

/* ---- gradient and row ------------------------------------------------------------------------ */

static ts_status nll_grad(const tsi_grad_io *io)
{
    const nll_attributes *a = io->attributes;
    ts_tensor *labels = io->in[1], *dy = io->out_grad[0];
    int32_t last = io->in_meta[1].shape.ndim;
    ts_tensor *counts = counts_of(labels, a->ignore_index, ts_tensor_dtype(dy));
    if (a->reduction == 0) dy = ts_div(dy, ts_sum(counts, NULL, 0, 0));
    ts_tensor *share = ts_neg(ts_mul(counts, dy));
    ts_tensor *at = ts_mul(labels, ts_cast(counts, ts_tensor_dtype(labels)));
    io->in_grad[0] = ts_gather_backward(ts_unsqueeze(share, last), last, ts_unsqueeze(at, last),
                                        io->in_meta[0].shape);
    return ts_rank_status(io->rank);
}

static bool sample_nll(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                       void *attributes)
{
    (void)random;
    *count = 2;
    in[0] = (ts_meta){ .shape = TS_SHAPE(5, 6), .dtype = TS_DTYPE_F64 };
    in[1] = (ts_meta){ .shape = TS_SHAPE(5), .dtype = TS_DTYPE_I64 };
    *(nll_attributes *)attributes = (nll_attributes){ .ignore_index = 2, .reduction = variant };
    return variant < 3;
}

const tsi_op_desc tsi_op_nll_loss = {
    .name = "nll_loss",
    .what = "negative log-probability of labels over the last dim",
    .dtypes = TSI_DTYPES_REAL,
    .input_min = 2,
    .input_max = 2,
    .output_count = 1,
    .saves = 2,
    .attribute = nll_table,
    .attribute_bytes = sizeof(nll_attributes),
    .infer = nll_infer,
    .rules = nll_rules,
    .reference = nll_reference,
    .algorithm = nll_algorithms,
    .grad = nll_grad,
    .sample = sample_nll,
};

ts_tensor *(ts_nll_loss)(ts_tensor *x, ts_tensor *labels, const ts_loss_options *options)
{
    ts_tensor *in[] = { x, labels };
    nll_attributes a = { .ignore_index = -100 };
    if (options) a.reduction = options->reduction;
    return tsi_op_make(&tsi_op_nll_loss, in, 2, &a);
}
