/* SPDX-License-Identifier: Apache-2.0 */
/* add.c - a + alpha * b, elementwise with broadcast.
 *
 * Sums of partials are partials of sums; beside a replicated operand avg, min and max pass (min and
 * max through b swap when alpha is negative), sum does not: the replicated operand would be counted
 * once per rank. */
#include "op/common.h"

typedef struct add_attributes {
    double alpha;
} add_attributes;

static const tsi_attribute add_table[] = { TSI_ATTR(add_attributes, alpha, REAL, "alpha", "1"),
                                           { 0 } };

static void add_trait(const tsi_op_call *call, tsi_traits *traits)
{
    const add_attributes *a = call->attributes;
    *traits = (tsi_traits){ .flow = TSI_LINEAR_ALL | TSI_AVG_WITH_R,
                            .mono = { TSI_MONO_UP, a->alpha >= 0 ? TSI_MONO_UP : TSI_MONO_DOWN } };
}

static double add_real(const double *x, const void *attributes)
{
    return x[0] + ((const add_attributes *)attributes)->alpha * x[1];
}

static int64_t add_integer(const int64_t *x, const void *attributes)
{
    int64_t alpha = (int64_t)((const add_attributes *)attributes)->alpha;
    return (int64_t)((uint64_t)x[0] + (uint64_t)alpha * (uint64_t)x[1]);
}

static double complex add_complex(const double complex *x, const void *attributes)
{
    return x[0] + ((const add_attributes *)attributes)->alpha * x[1];
}

static ts_status add_reference(const tsi_kernel_io *io)
{
    static const tsi_scalar_fns fns = { add_real, add_integer, add_complex };
    return tsi_reference_pointwise(io, &fns, (ts_dtype)io->out[0].block.dtype);
}

ts_tensor *(ts_add)(ts_tensor *a, ts_tensor *b)
{
    ts_tensor *in[] = { a, b };
    return tsi_op_make(&tsi_op_add, in, 2, &(add_attributes){ .alpha = 1.0 });
}

const tsi_op_desc tsi_op_add = {
    .name = "add",
    .what = "a + alpha * b",
    .dims = "*",
    .input_min = 2,
    .input_max = 2,
    .output_count = 1,
    .flags = TSI_OP_IN_PLACE,
    .attribute = add_table,
    .attribute_bytes = sizeof(add_attributes),
    .infer = tsi_infer_pointwise,
    .trait = add_trait,
    .reference = add_reference,
};
