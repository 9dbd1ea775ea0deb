/* SPDX-License-Identifier: Apache-2.0 */
/* equal.c - answers about whole tensors that the host reads: equal, allclose. Tensors of different
 * shapes are not equal; asking how close they are is refused.
 *
 * Each rank compares what it holds; the answers are joined by "and". What is pending on an input is
 * settled first, so terms are never compared. Empty shards agree. */
#include <math.h>
#include <string.h>

#include "op/pointwise/binary.h"

const tsi_attribute tsi_close_table[] = {
    TSI_ATTR(tsi_close_attributes, rtol, REAL, "rtol", "1e-5"),
    TSI_ATTR(tsi_close_attributes, atol, REAL, "atol", "1e-8"),
    TSI_ATTR(tsi_close_attributes, equal_nan, BOOL, "equal_nan", "false"),
    { 0 },
};

static ts_status compare_infer(const tsi_op_call *call)
{
    const ts_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    char one[96], other[96];
    if (call->op != &tsi_op_equal && !tsi_shape_same(a, b))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: shapes %s and %s differ", call->op->name,
                        tsi_shape_text(a, one, sizeof one), tsi_shape_text(b, other, sizeof other));
    if (call->op == &tsi_op_equal && call->in[0].dtype != call->in[1].dtype)
        return TSI_FAIL(TS_ERR_DTYPE, "equal: dtypes %s and %s differ",
                        ts_dtype_name((ts_dtype)call->in[0].dtype),
                        ts_dtype_name((ts_dtype)call->in[1].dtype));
    call->out[0] = (ts_meta){ .shape = TS_SHAPE_SCALAR, .dtype = TS_DTYPE_BOOL };
    return TS_OK;
}

/* Different shapes have their answer whatever the elements are: nothing is moved. */
static void unequal_rules(const tsi_op_call *call, tsi_rules *rules)
{
    for (int32_t d = -1; d < call->in[0].shape.ndim; d++)
        for (int32_t e = -1; e < call->in[1].shape.ndim; e++) {
            if (d + e == -2) continue; /* all-R is there */
            tsi_role *row = tsi_rules_add(rules);
            if (d >= 0) row[0] = TSI_S(d);
            if (e >= 0) row[1] = TSI_S(e);
        }
}

static void compare_rules(const tsi_op_call *call, tsi_rules *rules)
{
    if (!tsi_shape_same(&call->in[0].shape, &call->in[1].shape)) {
        unequal_rules(call, rules);
        return;
    }
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = TSI_S(d);
        row[2] = TSI_P(TS_REDUCE_AND);
    }
}

static bool close_to(double complex a, double complex b, const tsi_close_attributes *c)
{
    if (a == b) return true;
    bool missing_a = isnan(creal(a)) || isnan(cimag(a)),
         missing_b = isnan(creal(b)) || isnan(cimag(b));
    if (missing_a || missing_b) return c->equal_nan && missing_a && missing_b;
    return isfinite(cabs(a)) && isfinite(cabs(b)) && cabs(a - b) <= c->atol + c->rtol * cabs(b);
}

static ts_status compare_reference(const tsi_kernel_io *io)
{
    const tsi_block *a = &io->in[0].block, *b = &io->in[1].block, *out = &io->out[0].block;
    tsi_loop loop = tsi_loop_over(a);
    loop.operand_count = 2;
    loop.stride[1] = b->stride;
    bool same = tsi_shape_same(&io->in[0].global->shape, &io->in[1].global->shape);
    bool exact = io->op == &tsi_op_equal;
    bool whole = tsi_dtype_category((ts_dtype)a->dtype) <= TSI_CATEGORY_INT;
    for (bool more = same && tsi_loop_begin(&loop); more && same; more = tsi_loop_next(&loop)) {
        const void *x = tsi_block_at(a, loop.at[0]), *y = tsi_block_at(b, loop.at[1]);
        if (exact && whole)
            same = tsi_load_int((ts_dtype)a->dtype, x) == tsi_load_int((ts_dtype)b->dtype, y);
        else if (exact)
            same =
                tsi_load_complex((ts_dtype)a->dtype, x) == tsi_load_complex((ts_dtype)b->dtype, y);
        else
            same = close_to(tsi_load_complex((ts_dtype)a->dtype, x),
                            tsi_load_complex((ts_dtype)b->dtype, y), io->attributes);
    }
    tsi_store_int(TS_DTYPE_BOOL, out->data, same);
    return TS_OK;
}

static bool sample_compare(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = (ts_meta){ .shape = { .ndim = 2, .extent = { 5, 3 } },
                          .dtype = s->variant ? TS_DTYPE_I64 : TS_DTYPE_F64 };
    s->in[1] = s->in[0];
    return s->variant < 2;
}

static bool sample_close(tsi_sample *s)
{
    *(tsi_close_attributes *)s->attributes =
        (tsi_close_attributes){ 1e-5, s->variant ? 20.0 : 1.0, 0, 0 };
    return sample_compare(s);
}

#define COMPARE                                                                                    \
    .input_min = 2, .input_max = 2, .output_count = 1, .flags = TSI_OP_HOST | TSI_OP_NO_GRAD,      \
    .infer = compare_infer, .rules = compare_rules, .reference = compare_reference

const tsi_op_desc tsi_op_equal = {
    .name = "equal",
    .what = "are shapes and all elements equal? NaN equals nothing",
    COMPARE,
    .sample = sample_compare,
};
const tsi_op_desc tsi_op_allclose = {
    .name = "allclose",
    .what = "is |a - b| <= atol + rtol |b| everywhere?",
    COMPARE,
    TSI_ATTRIBUTES(tsi_close_table, tsi_close_attributes),
    .sample = sample_close,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_status answer(const tsi_op_desc *op, ts_tensor *const *in, const void *attributes,
                        int *out)
{
    double value = 0;
    if (out) *out = 0;
    ts_tensor *verdict = tsi_op_make(op, in, 2, attributes);
    if (!verdict) {
        ts_rank *rank = tsi_rank_current();
        ts_status status = rank ? ts_rank_status(rank) : TS_ERR_THREAD;
        return status == TS_OK ? TS_ERR_NULL : status;
    }
    TSI_TRY(ts_tensor_item(verdict, &value));
    if (out) *out = value != 0.0;
    return TS_OK;
}

ts_status(ts_equal)(ts_tensor *a, ts_tensor *b, int *out)
{
    ts_tensor *in[] = { a, b };
    return answer(&tsi_op_equal, in, NULL, out);
}

ts_status(ts_allclose)(ts_tensor *a, ts_tensor *b, const ts_close_options *options, int *out)
{
    ts_tensor *in[] = { a, b };
    tsi_close_attributes c = { 1e-5, 1e-8, 0, 0 };
    if (options)
        c = (tsi_close_attributes){ options->relative, options->absolute,
                                    options->nan_is_equal != 0, 0 };
    return answer(&tsi_op_allclose, in, &c, out);
}
