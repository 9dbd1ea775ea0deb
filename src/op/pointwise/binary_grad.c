/* SPDX-License-Identifier: Apache-2.0 */
/* binary_grad.c - gradients of elementwise operators of two inputs that are seldom differentiated:
 * atan2, hypot, fmod, remainder, copysign, xlogy. Each is dy times a slope per input, summed back
 * to the input's shape where it was broadcast. */
#include "op/pointwise/binary.h"

static ts_status give(const tsi_grad_io *io, ts_tensor *da, ts_tensor *db)
{
    ts_tensor *dy = io->out_grad[0];
    if (io->needs & 1 && da) io->in_grad[0] = tsi_grad_unbroadcast(ts_mul(dy, da), &io->in_meta[0]);
    if (io->needs & 2 && db) io->in_grad[1] = tsi_grad_unbroadcast(ts_mul(dy, db), &io->in_meta[1]);
    return ts_rank_status(io->rank);
}

/* b / (a^2 + b^2) and -a / (a^2 + b^2), 0 at the origin; by the radius, which can be squared where
 * it is neither tiny nor huge only */
ts_status tsi_grad_atan2(const tsi_grad_io *io)
{
    ts_tensor *a = io->in[0], *b = io->in[1], *r = ts_hypot(a, b);
    r = ts_masked_fill(r, ts_logical_not(r), 1.0);
    return give(io, ts_div(ts_div(b, r), r), ts_neg(ts_div(ts_div(a, r), r)));
}

ts_status tsi_grad_hypot(const tsi_grad_io *io)
{
    return give(io, ts_div(io->in[0], io->out[0]), ts_div(io->in[1], io->out[0]));
}

/* How often b was taken from a: the whole number that goes with the remainder. */
static ts_tensor *times_taken(const tsi_grad_io *io)
{
    ts_tensor *a = io->in[0], *b = io->in[1];
    if (io->op == &tsi_op_remainder) return ts_floor_divide(a, b);
    return ts_round(ts_div(ts_sub(a, ts_fmod(a, b)), b));
}

ts_status tsi_grad_fmod(const tsi_grad_io *io)
{
    return give(io, ts_ones_like(io->in[0]), io->needs & 2 ? ts_neg(times_taken(io)) : NULL);
}

/* The sign of a against that of the result; a sign has no slope. */
ts_status tsi_grad_copysign(const tsi_grad_io *io)
{
    return give(io, ts_mul(ts_sign(io->in[0]), ts_sign(io->out[0])), NULL);
}

/* log(b), 0 where a is 0 and there is no logarithm; a / b. The logarithm is taken in the dtype of
 * the result: b may have fewer bits than a. */
ts_status tsi_grad_xlogy(const tsi_grad_io *io)
{
    ts_tensor *a = io->in[0], *b = ts_cast(io->in[1], ts_tensor_dtype(io->out_grad[0]));
    ts_tensor *none = ts_logical_and(ts_logical_not(a), ts_le_scalar(b, 0.0));
    return give(io, ts_masked_fill(ts_log(b), none, 0.0), ts_div(a, b));
}
