/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - silu(gate) * up, the gated activation of transformers, and its gradient.
 *
 * As one operator it is rounded once, and silu(gate) is neither written nor kept for the gradient:
 *   d up = dy silu(gate) = swiglu(gate, dy)          d gate = swiglu_backward(dy, gate, up) */
#include <math.h>

#include "op/pointwise/binary.h"
#include "op/pointwise/unary.h"

TSI_REAL(swiglu, x[0] / (1.0 + exp(-x[0])) * x[1])

static double real_swiglu_backward(const double *x, const void *a)
{
    (void)a;
    double s = 1.0 / (1.0 + exp(-x[1]));
    return x[0] * x[2] * (s * (1.0 + x[1] * (1.0 - s)));
}

static ts_status swiglu_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *gate = io->in[0], *up = io->in[1];
    if (io->needs & 1)
        io->in_grad[0] = tsi_grad_unbroadcast(ts_swiglu_backward(dy, gate, up), &io->in_meta[0]);
    if (io->needs & 2) io->in_grad[1] = tsi_grad_unbroadcast(ts_swiglu(gate, dy), &io->in_meta[1]);
    return ts_rank_status(io->rank);
}

static bool sample_three(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                         void *attributes)
{
    bool more = tsi_sample_binary(random, variant, in, count, attributes);
    in[2] = in[1];
    *count = 3;
    return more;
}

#define FAMILY(real) (&(const tsi_pointwise_family){ { real, NULL, NULL }, TSI_RESULT_REAL, NULL })
#define POINTWISE(n)                                                                               \
    .dims = "*", .input_min = n, .input_max = n, .output_count = 1, .infer = tsi_family_infer,     \
    .reference = tsi_family_reference

const tsi_op_desc tsi_op_swiglu = {
    .name = "swiglu",
    .what = "silu(gate) * up",
    POINTWISE(2),
    .saves = 3,
    .family = FAMILY(real_swiglu),
    .traits = { .flow = TSI_LINEAR_EACH, .linear_in = 2 },
    .grad = swiglu_grad,
    .sample = tsi_sample_binary,
};
const tsi_op_desc tsi_op_swiglu_backward = {
    .name = "swiglu_backward",
    .what = "gradient of swiglu by its gate: dy * up * silu'(gate)",
    POINTWISE(3),
    .flags = TSI_OP_NO_GRAD,
    .family = FAMILY(real_swiglu_backward),
    .traits = { .flow = TSI_LINEAR_EACH, .linear_in = 5 },
    .sample = sample_three,
};

TSI_MAKER2(swiglu)

ts_tensor *ts_swiglu_backward(ts_tensor *dy, ts_tensor *gate, ts_tensor *up)
{
    ts_tensor *in[] = { dy, gate, up };
    return tsi_op_make(&tsi_op_swiglu_backward, in, 3, NULL);
}
