/* SPDX-License-Identifier: Apache-2.0 */
/* unary_scalar.c - the scalar functions of elementwise operators, from their list (scalars.def).
 *
 * Reals are computed in double, integers in int64 with wrap-around; unary_complex.c has those of
 * complex numbers. What an operator is not defined for has a function that nobody calls. */
#include "op/pointwise/unary_scalar.h"

#include "op/core/common.h"
#include "op/pointwise/scalars.h"

/* Every elementwise operator of the table has its row. */
enum {
#define TSI_POINT(name, real, whole) ROW_##name,
#define TSI_HOT TSI_POINT
#include "op/pointwise/scalars.def"
#undef TSI_POINT
#undef TSI_HOT
    ROWS
};
#define TS_OP(id, name)
#define TS_POINTWISE(id, name) _Static_assert((int)ROW_##name < (int)ROWS, #name);
#include "op/ops.def"
#undef TS_OP

/* The first number of the attributes, a double or a ts_number. */
static double first_real(const void *attributes)
{
    return *(const double *)attributes;
}

/* lgamma writes the sign to a global that threads would share. */
static double lgamma_of(double x)
{
    int sign;
    return lgamma_r(x, &sign);
}

/* A first guess by logarithms, then steps of Newton; near one by what is missing to it. */
static double erfinv(double x)
{
    const double slope = 1.1283791670955126; /* 2 / sqrt(pi) */
    double size = fabs(x);
    if (!(size < 1)) return size == 1 ? copysign((double)INFINITY, x) : (double)NAN;
    double w = log1p(-size * size), c = 2 / (PI * 0.147) + w / 2;
    double y = sqrt(sqrt(c * c - w / 0.147) - c);
    for (int i = 0; i < 3; i++) {
        double miss = size > 0.5 ? erfc(y) - (1 - size) : size - erf(y);
        y += miss / (slope * exp(-y * y));
    }
    return copysign(y, x);
}

#define NONE 0
#define lgamma lgamma_of
#define x v[0]
#define y v[1]
#define z v[2]
#define SCALAR(type, fn, e)                                                                        \
    type fn(const type *v, const void *a)                                                          \
    {                                                                                              \
        (void)v, (void)a;                                                                          \
        return e;                                                                                  \
    }
#define TSI_HOT TSI_POINT

#define TSI_OWN(name, real, whole)
#define TSI_POINT(name, real, whole) SCALAR(double, tsi_real_##name, real)
#define n0 first_real(a)
#include "op/pointwise/scalars.def"
#undef TSI_POINT
#undef n0

#define TSI_OWN(name, real, whole)
#define TSI_POINT(name, real, whole) SCALAR(int64_t, tsi_whole_##name, whole)
#define n0 (int64_t) tsi_first_whole(a)
#include "op/pointwise/scalars.def"

SCALAR(double, tsi_real_same, x)
SCALAR(double, tsi_real_zero, 0)
SCALAR(double, tsi_real_one, 1)
SCALAR(int64_t, tsi_whole_same, x)
SCALAR(int64_t, tsi_whole_zero, 0)
SCALAR(int64_t, tsi_whole_one, 1)
SCALAR(int64_t, tsi_whole_bitwise_not, ~x) /* of truths it is logical_not */
