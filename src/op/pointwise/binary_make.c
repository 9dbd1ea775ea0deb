/* SPDX-License-Identifier: Apache-2.0 */
/* binary_make.c - the public makers of the elementwise operators of two inputs. */
#include "op/pointwise/unary.h"

static ts_tensor *make(const tsi_op_desc *op, ts_tensor *a, ts_tensor *b, const void *attributes)
{
    ts_tensor *in[] = { a, b };
    return tsi_op_make(op, in, 2, attributes);
}

ts_tensor *(ts_add)(ts_tensor *a, ts_tensor *b)
{
    double alpha = 1.0;
    return make(&tsi_op_add, a, b, &alpha);
}

ts_tensor *(ts_sub)(ts_tensor *a, ts_tensor *b)
{
    double alpha = 1.0;
    return make(&tsi_op_sub, a, b, &alpha);
}

ts_tensor *(ts_mul)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_mul, a, b, NULL);
}

ts_tensor *(ts_div)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_div, a, b, NULL);
}

ts_tensor *(ts_maximum)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_maximum, a, b, NULL);
}

ts_tensor *(ts_minimum)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_minimum, a, b, NULL);
}

ts_tensor *(ts_power)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_power, a, b, NULL);
}

ts_tensor *(ts_atan2)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_atan2, a, b, NULL);
}

ts_tensor *(ts_fmod)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_fmod, a, b, NULL);
}

ts_tensor *(ts_remainder)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_remainder, a, b, NULL);
}

ts_tensor *(ts_hypot)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_hypot, a, b, NULL);
}

ts_tensor *(ts_copysign)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_copysign, a, b, NULL);
}

ts_tensor *(ts_xlogy)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_xlogy, a, b, NULL);
}

ts_tensor *(ts_logaddexp)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_logaddexp, a, b, NULL);
}

ts_tensor *(ts_bitwise_and)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_bitwise_and, a, b, NULL);
}

ts_tensor *(ts_bitwise_or)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_bitwise_or, a, b, NULL);
}

ts_tensor *(ts_bitwise_xor)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_bitwise_xor, a, b, NULL);
}

ts_tensor *(ts_eq)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_eq, a, b, NULL);
}

ts_tensor *(ts_ne)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_ne, a, b, NULL);
}

ts_tensor *(ts_gt)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_gt, a, b, NULL);
}

ts_tensor *(ts_ge)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_ge, a, b, NULL);
}

ts_tensor *(ts_lt)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_lt, a, b, NULL);
}

ts_tensor *(ts_le)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_le, a, b, NULL);
}

ts_tensor *(ts_logical_and)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_logical_and, a, b, NULL);
}

ts_tensor *(ts_logical_or)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_logical_or, a, b, NULL);
}

ts_tensor *(ts_logical_xor)(ts_tensor *a, ts_tensor *b)
{
    return make(&tsi_op_logical_xor, a, b, NULL);
}
