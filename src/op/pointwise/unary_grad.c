/* SPDX-License-Identifier: Apache-2.0 */
/* unary_grad.c - gradients of the elementwise operators of one input, written with operators, so
 * they shard.
 *
 * x is the saved input, y the saved output (complex ones conjugated, op.h), dy the gradient that
 * arrives. */
#include "op/pointwise/unary.h"

ts_status tsi_unary_give(const tsi_grad_io *io, ts_tensor *slope)
{
    return tsi_grad_give(io, ts_mul(io->out_grad[0], slope));
}

static ts_tensor *dy_of(const tsi_grad_io *io)
{
    return io->out_grad[0];
}

static ts_tensor *x_of(const tsi_grad_io *io)
{
    return io->in[0];
}

static ts_tensor *y_of(const tsi_grad_io *io)
{
    return io->out[0];
}

/* 1 - t * t and 1 + t * t */
static ts_tensor *one_minus_square(ts_tensor *t)
{
    return ts_add_scalar(ts_neg(ts_square(t)), 1.0);
}

static ts_tensor *one_plus_square(ts_tensor *t)
{
    return ts_add_scalar(ts_square(t), 1.0);
}

/* dx as one expression. */
#define GRAD(name, dx)                                                                             \
    ts_status tsi_grad_##name(const tsi_grad_io *io)                                               \
    {                                                                                              \
        return tsi_grad_give(io, dx);                                                              \
    }

GRAD(copy, dy_of(io))
GRAD(zero, ts_zeros_like(dy_of(io)))
GRAD(neg, ts_neg(dy_of(io)))

ts_tensor *tsi_complex_sign(ts_tensor *conjugate)
{
    ts_tensor *size = ts_abs(conjugate);
    return ts_div(ts_conj(conjugate), ts_masked_fill(size, ts_logical_not(size), 1.0));
}

ts_status tsi_grad_abs(const tsi_grad_io *io)
{
    ts_tensor *x = x_of(io);
    if (!tsi_meta_is_complex(&io->in_meta[0]))
        return tsi_grad_give(io, ts_mul(dy_of(io), ts_sign(x)));
    return tsi_grad_give(io, ts_mul(dy_of(io), tsi_complex_sign(x)));
}

/* 1 / sqrt(1 - x^2). Of complex numbers on the side of the cut that the value was taken from, which
 * the square does not know: 1 / cos(asin x), and asinh in its way. */
static ts_tensor *asin_slope(const tsi_grad_io *io)
{
    if (tsi_meta_is_complex(&io->in_meta[0])) return ts_reciprocal(ts_cos(ts_asin(x_of(io))));
    return ts_rsqrt(one_minus_square(x_of(io)));
}

static ts_tensor *asinh_slope(const tsi_grad_io *io)
{
    if (tsi_meta_is_complex(&io->in_meta[0])) return ts_reciprocal(ts_cosh(ts_asinh(x_of(io))));
    return ts_rsqrt(one_plus_square(x_of(io)));
}

GRAD(acos, ts_neg(ts_mul(dy_of(io), asin_slope(io))))

/* 1 / sqrt(x^2 - 1); of complex numbers by factors: the root of the square is the other one where
 * the real part is below zero. */
ts_status tsi_grad_acosh(const tsi_grad_io *io)
{
    ts_tensor *x = x_of(io), *slope = NULL;
    if (tsi_meta_is_complex(&io->in_meta[0]))
        slope = ts_mul(ts_rsqrt(ts_add_scalar(x, -1.0)), ts_rsqrt(ts_add_scalar(x, 1.0)));
    else
        slope = ts_rsqrt(ts_add_scalar(ts_square(x), -1.0));
    return tsi_unary_give(io, slope);
}

GRAD(asin, ts_mul(dy_of(io), asin_slope(io)))
GRAD(asinh, ts_mul(dy_of(io), asinh_slope(io)))
GRAD(atan, ts_div(dy_of(io), one_plus_square(x_of(io))))
GRAD(atanh, ts_div(dy_of(io), one_minus_square(x_of(io))))
GRAD(cos, ts_neg(ts_mul(dy_of(io), ts_sin(x_of(io)))))
GRAD(cosh, ts_mul(dy_of(io), ts_sinh(x_of(io))))
GRAD(deg2rad, ts_deg2rad(dy_of(io)))
GRAD(rad2deg, ts_rad2deg(dy_of(io)))

/* 2 / sqrt(pi) e^(-x^2) */
static ts_tensor *erf_slope(ts_tensor *x)
{
    return ts_mul_scalar(ts_exp(ts_neg(ts_square(x))), 1.1283791670955126);
}

GRAD(erf, ts_mul(dy_of(io), erf_slope(x_of(io))))
GRAD(erfc, ts_neg(ts_mul(dy_of(io), erf_slope(x_of(io)))))
GRAD(exp, ts_mul(dy_of(io), y_of(io)))
GRAD(exp2, ts_mul_scalar(ts_mul(dy_of(io), y_of(io)), 0.6931471805599453))
GRAD(expm1, ts_mul(dy_of(io), ts_add_scalar(y_of(io), 1.0)))
GRAD(gelu, ts_gelu_backward(dy_of(io), x_of(io)))
GRAD(gelu_tanh, ts_gelu_tanh_backward(dy_of(io), x_of(io)))
GRAD(log, ts_div(dy_of(io), x_of(io)))
GRAD(log10, ts_div(dy_of(io), ts_mul_scalar(x_of(io), 2.302585092994046)))
GRAD(lgamma, ts_mul(dy_of(io), ts_digamma(x_of(io))))
GRAD(digamma, ts_mul(dy_of(io), ts_trigamma(x_of(io))))
GRAD(conj, ts_conj(dy_of(io)))
GRAD(log1p, ts_div(dy_of(io), ts_add_scalar(x_of(io), 1.0)))
GRAD(log2, ts_div(dy_of(io), ts_mul_scalar(x_of(io), 0.6931471805599453)))
GRAD(log_sigmoid, ts_mul(dy_of(io), ts_sigmoid(ts_neg(x_of(io)))))
GRAD(reciprocal, ts_neg(ts_mul(dy_of(io), ts_square(y_of(io)))))
GRAD(relu, ts_threshold_backward(dy_of(io), y_of(io)))

ts_status tsi_grad_rsqrt(const tsi_grad_io *io)
{
    ts_tensor *y = y_of(io);
    return tsi_grad_give(io, ts_mul_scalar(ts_mul(dy_of(io), ts_mul(y, ts_square(y))), -0.5));
}

GRAD(sigmoid, ts_sigmoid_backward(dy_of(io), y_of(io)))
GRAD(silu, ts_silu_backward(dy_of(io), x_of(io)))
GRAD(sin, ts_mul(dy_of(io), ts_cos(x_of(io))))
GRAD(sinh, ts_mul(dy_of(io), ts_cosh(x_of(io))))
GRAD(softplus, ts_mul(dy_of(io), ts_sigmoid(x_of(io))))
GRAD(sqrt, ts_div(dy_of(io), ts_mul_scalar(y_of(io), 2.0)))
GRAD(square, ts_mul_scalar(ts_mul(dy_of(io), x_of(io)), 2.0))
GRAD(tan, ts_mul(dy_of(io), one_plus_square(y_of(io))))
GRAD(tanh, ts_tanh_backward(dy_of(io), y_of(io)))
