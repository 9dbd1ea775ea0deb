/* SPDX-License-Identifier: Apache-2.0 */
/* unary_grad.c - gradients of the elementwise operators of one input, written with operators, so
 * they shard.
 *
 * x is the saved input, y the saved output, dy the gradient that arrives. */
#include "op/pointwise/unary.h"

static ts_status give(const tsi_grad_io *io, ts_tensor *dx)
{
    io->in_grad[0] = dx;
    return ts_rank_status(io->rank);
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

ts_status tsi_grad_copy(const tsi_grad_io *io)
{
    return give(io, dy_of(io));
}

ts_status tsi_grad_zero(const tsi_grad_io *io)
{
    return give(io, ts_zeros_like(dy_of(io)));
}

ts_status tsi_grad_neg(const tsi_grad_io *io)
{
    return give(io, ts_neg(dy_of(io)));
}

ts_status tsi_grad_abs(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_sign(x_of(io))));
}

ts_status tsi_grad_acos(const tsi_grad_io *io)
{
    return give(io, ts_neg(ts_mul(dy_of(io), ts_rsqrt(one_minus_square(x_of(io))))));
}

ts_status tsi_grad_acosh(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_rsqrt(ts_add_scalar(ts_square(x_of(io)), -1.0))));
}

ts_status tsi_grad_asin(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_rsqrt(one_minus_square(x_of(io)))));
}

ts_status tsi_grad_asinh(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_rsqrt(one_plus_square(x_of(io)))));
}

ts_status tsi_grad_atan(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), one_plus_square(x_of(io))));
}

ts_status tsi_grad_atanh(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), one_minus_square(x_of(io))));
}

ts_status tsi_grad_cos(const tsi_grad_io *io)
{
    return give(io, ts_neg(ts_mul(dy_of(io), ts_sin(x_of(io)))));
}

ts_status tsi_grad_cosh(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_sinh(x_of(io))));
}

ts_status tsi_grad_deg2rad(const tsi_grad_io *io)
{
    return give(io, ts_deg2rad(dy_of(io)));
}

ts_status tsi_grad_rad2deg(const tsi_grad_io *io)
{
    return give(io, ts_rad2deg(dy_of(io)));
}

/* 2 / sqrt(pi) e^(-x^2) */
static ts_tensor *erf_slope(ts_tensor *x)
{
    return ts_mul_scalar(ts_exp(ts_neg(ts_square(x))), 1.1283791670955126);
}

ts_status tsi_grad_erf(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), erf_slope(x_of(io))));
}

ts_status tsi_grad_erfc(const tsi_grad_io *io)
{
    return give(io, ts_neg(ts_mul(dy_of(io), erf_slope(x_of(io)))));
}

ts_status tsi_grad_exp(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), y_of(io)));
}

ts_status tsi_grad_exp2(const tsi_grad_io *io)
{
    return give(io, ts_mul_scalar(ts_mul(dy_of(io), y_of(io)), 0.6931471805599453));
}

ts_status tsi_grad_expm1(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_add_scalar(y_of(io), 1.0)));
}

ts_status tsi_grad_gelu(const tsi_grad_io *io)
{
    return give(io, ts_gelu_backward(dy_of(io), x_of(io)));
}

ts_status tsi_grad_gelu_tanh(const tsi_grad_io *io)
{
    return give(io, ts_gelu_tanh_backward(dy_of(io), x_of(io)));
}

ts_status tsi_grad_log(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), x_of(io)));
}

ts_status tsi_grad_log10(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), ts_mul_scalar(x_of(io), 2.302585092994046)));
}

ts_status tsi_grad_lgamma(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_digamma(x_of(io))));
}

ts_status tsi_grad_digamma(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_trigamma(x_of(io))));
}

ts_status tsi_grad_conj(const tsi_grad_io *io)
{
    return give(io, ts_conj(dy_of(io)));
}

ts_status tsi_grad_log1p(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), ts_add_scalar(x_of(io), 1.0)));
}

ts_status tsi_grad_log2(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), ts_mul_scalar(x_of(io), 0.6931471805599453)));
}

ts_status tsi_grad_log_sigmoid(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_sigmoid(ts_neg(x_of(io)))));
}

ts_status tsi_grad_reciprocal(const tsi_grad_io *io)
{
    return give(io, ts_neg(ts_mul(dy_of(io), ts_square(y_of(io)))));
}

ts_status tsi_grad_relu(const tsi_grad_io *io)
{
    return give(io, ts_threshold_backward(dy_of(io), y_of(io)));
}

ts_status tsi_grad_rsqrt(const tsi_grad_io *io)
{
    ts_tensor *y = y_of(io);
    return give(io, ts_mul_scalar(ts_mul(dy_of(io), ts_mul(y, ts_square(y))), -0.5));
}

ts_status tsi_grad_sigmoid(const tsi_grad_io *io)
{
    return give(io, ts_sigmoid_backward(dy_of(io), y_of(io)));
}

ts_status tsi_grad_silu(const tsi_grad_io *io)
{
    return give(io, ts_silu_backward(dy_of(io), x_of(io)));
}

ts_status tsi_grad_sin(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_cos(x_of(io))));
}

ts_status tsi_grad_sinh(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_cosh(x_of(io))));
}

ts_status tsi_grad_softplus(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), ts_sigmoid(x_of(io))));
}

ts_status tsi_grad_sqrt(const tsi_grad_io *io)
{
    return give(io, ts_div(dy_of(io), ts_mul_scalar(y_of(io), 2.0)));
}

ts_status tsi_grad_square(const tsi_grad_io *io)
{
    return give(io, ts_mul_scalar(ts_mul(dy_of(io), x_of(io)), 2.0));
}

ts_status tsi_grad_tan(const tsi_grad_io *io)
{
    return give(io, ts_mul(dy_of(io), one_plus_square(y_of(io))));
}

ts_status tsi_grad_tanh(const tsi_grad_io *io)
{
    return give(io, ts_tanh_backward(dy_of(io), y_of(io)));
}
