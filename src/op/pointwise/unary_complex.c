/* SPDX-License-Identifier: Apache-2.0 */
/* unary_complex.c - the functions of complex numbers of the elementwise operators of one input, in
 * double complex. */
#include <complex.h>
#include <math.h>

#include "op/core/common.h"

#include "op/pointwise/unary_scalar.h"

#define BOTH(name, e) TSI_SCALAR(double complex, tsi_both_##name, e)

BOTH(abs, cabs(x[0]))
BOTH(same, x[0])
BOTH(conj, conj(x[0]))
BOTH(neg, -x[0])
BOTH(square, x[0] * x[0])
BOTH(reciprocal, 1.0 / x[0])
BOTH(exp, cexp(x[0]))
BOTH(log, clog(x[0]))
BOTH(sqrt, csqrt(x[0]))
BOTH(sin, csin(x[0]))
BOTH(cos, ccos(x[0]))
BOTH(rsqrt, 1.0 / csqrt(x[0]))
BOTH(sigmoid, 1.0 / (1.0 + cexp(-x[0])))
BOTH(silu, x[0] / (1.0 + cexp(-x[0])))
BOTH(tanh, ctanh(x[0]))
BOTH(zero, 0.0)
BOTH(one, 1.0)
BOTH(acos, cacos(x[0]))
BOTH(acosh, cacosh(x[0]))
BOTH(asin, casin(x[0]))
BOTH(asinh, casinh(x[0]))
BOTH(atan, catan(x[0]))
BOTH(atanh, catanh(x[0]))
BOTH(cosh, ccosh(x[0]))
BOTH(sinh, csinh(x[0]))
BOTH(tan, ctan(x[0]))
BOTH(exp2, cexp(x[0] * 0.6931471805599453))
BOTH(expm1, cexp(x[0]) - 1.0)
BOTH(log10, clog(x[0]) / 2.302585092994046)
BOTH(log1p, clog(1.0 + x[0]))
BOTH(log2, clog(x[0]) / 0.6931471805599453)
BOTH(isfinite, isfinite(creal(x[0])) && isfinite(cimag(x[0])) ? 1.0 : 0.0)
BOTH(isinf, isinf(creal(x[0])) || isinf(cimag(x[0])) ? 1.0 : 0.0)
BOTH(isnan, isnan(creal(x[0])) || isnan(cimag(x[0])) ? 1.0 : 0.0)
BOTH(logical_not, x[0] == 0.0 ? 1.0 : 0.0)
