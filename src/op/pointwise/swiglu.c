/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - silu(gate) * up, the gated activation of transformers, and its gradient.
 *
 * As one operator it is rounded once, and silu(gate) is neither written nor kept for the gradient:
 *   d up = dy silu(gate) = swiglu(gate, dy)          d gate = swiglu_backward(dy, gate, up)
 * Both in one pass over memory are swiglu_gradients. */
#include "op/pointwise/swiglu.h"

#include <math.h>

#include "op/core/kernel.h"
#include "op/pointwise/binary.h"
#include "op/pointwise/unary.h"
#include "op/pointwise/unary_scalar.h"

/* ---- both gradients at once ------------------------------------------------------------------ */

enum { DY, GATE, UP };

static ts_status both_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[GATE].shape;
    bool same = true;
    for (int32_t i = 0; i < 3; i++)
        same = same && tsi_shape_same(&call->in[i].shape, x) &&
               tsi_dtype_category((ts_dtype)call->in[i].dtype) == TSI_CATEGORY_REAL;
    char text[96];
    if (!same)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: dy, gate and up are real and of one shape; gate has %s",
                        call->op->name, tsi_shape_text(x, text, sizeof text));
    call->out[0] = call->in[GATE];
    call->out[1] = call->in[UP];
    return TS_OK;
}

static void both_rules(const tsi_op_call *call, tsi_rules *rules)
{
    for (int32_t d = 0; d < call->in[GATE].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        for (int32_t k = 0; k < 5; k++)
            row[k] = TSI_S(d);
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 1 };
    tsi_rules_partials(rules, &linear);
    const tsi_role pending[] = { TSI_P(TS_REDUCE_SUM), TSI_P(TS_REDUCE_AVG) };
    for (int k = 0; k < 2; k++) { /* of up: the gradient of the gate alone is linear in it */
        tsi_role *row = tsi_rules_add(rules);
        row[UP] = row[3] = pending[k];
    }
}

ts_status tsi_swiglu_gradients_by(const tsi_kernel_io *io, tsi_kernel_fn gate, tsi_kernel_fn up)
{
    const tsi_operand swapped[] = { io->in[GATE], io->in[DY] };
    const tsi_kernel_fn kernel[] = { gate, up };
    tsi_kernel_io call[] = { *io, *io };
    call[0].op = &tsi_op_swiglu_backward;
    call[0].output_count = 1;
    call[1].op = &tsi_op_swiglu;
    call[1].in = swapped;
    call[1].input_count = 2;
    call[1].out = io->out + 1;
    call[1].output_count = 1;
    for (int k = 0; k < 2; k++) { /* memory is the host's here */
        call[k].device = tsi_device_host();
        call[k].queue = NULL;
        TSI_TRY(tsi_kernel_run(kernel[k], &call[k]));
    }
    return TS_OK;
}

static ts_status both_reference(const tsi_kernel_io *io)
{
    return tsi_swiglu_gradients_by(io, NULL, NULL);
}

static bool is_one_shape(const tsi_grad_io *io)
{
    const ts_meta *gate = &io->in_meta[0], *up = &io->in_meta[1];
    return tsi_shape_same(&gate->shape, &up->shape) && gate->dtype == up->dtype &&
           (int32_t)ts_tensor_dtype(io->out_grad[0]) == gate->dtype;
}

static ts_status swiglu_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0], *gate = io->in[0], *up = io->in[1];
    if (io->needs == 3 && is_one_shape(io)) {
        ts_tensor *in[] = { dy, gate, up }, *out[TSI_OUTPUT_MAX] = { NULL };
        tsi_op_args args = { &tsi_op_swiglu_gradients, in, 3, 0, NULL };
        TSI_TRY(tsi_op_run(&args, out));
        io->in_grad[0] = out[0];
        io->in_grad[1] = out[1];
        return TS_OK;
    }
    if (io->needs & 1)
        io->in_grad[0] = tsi_grad_unbroadcast(ts_swiglu_backward(dy, gate, up), &io->in_meta[0]);
    if (io->needs & 2) io->in_grad[1] = tsi_grad_unbroadcast(ts_swiglu(gate, dy), &io->in_meta[1]);
    return ts_rank_status(io->rank);
}

static bool sample_three(tsi_sample *s)
{
    bool more = tsi_sample_binary(s);
    s->in[2] = s->in[1];
    s->count = 3;
    return more;
}

static bool sample_both(tsi_sample *s)
{
    s->count = 3;
    for (int32_t i = 0; i < 3; i++)
        s->in[i] = (ts_meta){ .shape = s->variant ? TS_SHAPE(5, 4) : TS_SHAPE(2, 3, 4),
                              .dtype = TS_DTYPE_F64 };
    return s->variant < 2;
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
    .family = FAMILY(tsi_real_swiglu),
    .traits = { .flow = TSI_LINEAR_EACH, .linear_in = 2 },
    .grad = swiglu_grad,
    .sample = tsi_sample_binary,
};
const tsi_op_desc tsi_op_swiglu_backward = {
    .name = "swiglu_backward",
    .what = "gradient of swiglu by its gate: dy * up * silu'(gate)",
    POINTWISE(3),
    .flags = TSI_OP_NO_GRAD,
    .family = FAMILY(tsi_real_swiglu_backward),
    .traits = { .flow = TSI_LINEAR_EACH, .linear_in = 5 },
    .sample = sample_three,
};

const tsi_op_desc tsi_op_swiglu_gradients = {
    .name = "swiglu_gradients",
    .what = "gradients of swiglu by its gate and by up, from dy, gate and up of one shape",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(3, 3, 2),
    .beside = -1, /* as linear_pair wants them */
    .flags = TSI_OP_NO_GRAD,
    .infer = both_infer,
    .rules = both_rules,
    .reference = both_reference,
    .sample = sample_both,
};

TSI_MAKER2(swiglu)

ts_tensor *ts_swiglu_backward(ts_tensor *dy, ts_tensor *gate, ts_tensor *up)
{
    ts_tensor *in[] = { dy, gate, up };
    return tsi_op_make(&tsi_op_swiglu_backward, in, 3, NULL);
}
