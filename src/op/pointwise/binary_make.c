/* SPDX-License-Identifier: Apache-2.0 */
/* binary_make.c - the public makers of the elementwise operators of two inputs. */
#include "op/pointwise/unary.h"

ts_tensor *(ts_add)(ts_tensor *a, ts_tensor *b)
{
    static const ts_number one = { .real = 1, .whole = 1 };
    return tsi_op_make2(&tsi_op_add, a, b, &one);
}

ts_tensor *(ts_sub)(ts_tensor *a, ts_tensor *b)
{
    static const ts_number one = { .real = 1, .whole = 1 };
    return tsi_op_make2(&tsi_op_sub, a, b, &one);
}

TSI_MAKER2(mul)
TSI_MAKER2(div)
TSI_MAKER2(maximum)
TSI_MAKER2(minimum)
TSI_MAKER2(power)
TSI_MAKER2(atan2)
TSI_MAKER2(fmod)
TSI_MAKER2(remainder)
TSI_MAKER2(hypot)
TSI_MAKER2(copysign)
TSI_MAKER2(xlogy)
TSI_MAKER2(logaddexp)
TSI_MAKER2(bitwise_and)
TSI_MAKER2(bitwise_or)
TSI_MAKER2(bitwise_xor)
TSI_MAKER2(eq)
TSI_MAKER2(ne)
TSI_MAKER2(gt)
TSI_MAKER2(ge)
TSI_MAKER2(lt)
TSI_MAKER2(le)
TSI_MAKER2(logical_and)
TSI_MAKER2(logical_or)
TSI_MAKER2(logical_xor)
