/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - losses of elements: mse_loss, l1_loss, smooth_l1_loss, huber_loss, bce, bce_with_logits,
 * kl_div.
 *
 * Both inputs have one shape. Any dim may stay sharded: a mean divides by the global count, so the
 * terms of the ranks add up, whatever the sizes of the shards. */
#include <math.h>
#include <string.h>

#include "op/core/common.h"
#include "op/nn/attributes.h"

enum { MEAN, SUM, NONE, BATCH_MEAN };
static const char *const reductions[] = { "mean", "sum", "none", NULL };
static const char *const batch_reductions[] = { "mean", "sum", "none", "batchmean", NULL };
static const tsi_attribute loss_table[] = {
    TSI_ATTR_ONE_OF(tsi_loss_attributes, reduction, "reduction", "\"mean\"", reductions),
    { 0 },
};
static const tsi_attribute kl_table[] = {
    TSI_ATTR_ONE_OF(tsi_loss_attributes, reduction, "reduction", "\"mean\"", batch_reductions),
    TSI_ATTR(tsi_loss_attributes, log_target, BOOL, "log_target", "false"),
    { 0 },
};

static const tsi_attribute smooth_table[] = {
    TSI_ATTR_ONE_OF(tsi_loss_attributes, reduction, "reduction", "\"mean\"", reductions),
    TSI_ATTR(tsi_loss_attributes, point, REAL, "beta", "1"),
    { 0 },
};
static const tsi_attribute huber_table[] = {
    TSI_ATTR_ONE_OF(tsi_loss_attributes, reduction, "reduction", "\"mean\"", reductions),
    TSI_ATTR(tsi_loss_attributes, point, REAL, "delta", "1"),
    { 0 },
};

typedef double (*term_fn)(double x, double target, const tsi_loss_attributes *a);
typedef struct loss_kind {
    term_fn term;
} loss_kind;

static ts_status loss_infer(const tsi_op_call *call)
{
    const tsi_loss_attributes *a = call->attributes;
    const ts_shape *x = &call->in[0].shape, *y = &call->in[1].shape;
    char one[96], other[96];
    if (!tsi_shape_same(x, y))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: a target of shape %s does not fit an input of shape %s",
                        call->op->name, tsi_shape_text(y, other, sizeof other),
                        tsi_shape_text(x, one, sizeof one));
    bool turns = call->op == &tsi_op_smooth_l1_loss || call->op == &tsi_op_huber_loss;
    if (turns && !(a->point > 0))
        return TSI_FAIL(TS_ERR_ARG, "%s: a turning point of %g is not positive", call->op->name,
                        a->point);
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)call->in[0].dtype, (ts_dtype)call->in[1].dtype);
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is defined for reals, not %s", call->op->name,
                        ts_dtype_name(dtype));
    call->out[0] =
        (ts_meta){ .shape = a->reduction == NONE ? *x : TS_SHAPE_SCALAR, .dtype = (int32_t)dtype };
    return TS_OK;
}

static void loss_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_loss_attributes *a = call->attributes;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = TSI_S(d);
        row[2] = a->reduction == NONE ? TSI_S(d) : TSI_P(TS_REDUCE_SUM);
    }
    tsi_traits affine = { .flow = TSI_AVG_WITH_R };
    if (call->op == &tsi_op_bce || call->op == &tsi_op_bce_with_logits)
        affine.linear_in = 2;         /* in the target */
    if (call->op == &tsi_op_kl_div) { /* in x, with a slope that is not positive */
        affine.linear_in = 1;
        if (a->reduction == NONE) affine.mono[0] = TSI_MONO_DOWN;
    }
    if (affine.linear_in) tsi_rules_partials(rules, &affine);
}

static double divisor_of(const ts_shape *shape, const tsi_loss_attributes *a)
{
    if (a->reduction == MEAN) return (double)ts_shape_count(shape);
    return a->reduction == BATCH_MEAN && shape->ndim ? (double)shape->extent[0] : 1.0;
}

static ts_status loss_reference(const tsi_kernel_io *io)
{
    const tsi_loss_attributes *a = io->attributes;
    const loss_kind *kind = io->op->family;
    const tsi_block *x = &io->in[0].block, *target = &io->in[1].block, *out = &io->out[0].block;
    static const int64_t still[TS_NDIM_MAX];
    bool each = a->reduction == NONE;
    tsi_loop loop = TSI_LOOP(x, x->stride, target->stride, each ? out->stride : still);
    double total = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double term =
            kind->term(tsi_block_real(x, loop.at[0]), tsi_block_real(target, loop.at[1]), a);
        total += term;
        if (each) tsi_block_set_real(out, loop.at[2], term);
    }
    if (!each)
        tsi_store_real((ts_dtype)out->dtype, out->data,
                       total / divisor_of(&io->in[0].global->shape, a));
    return TS_OK;
}

/* ---- terms ----------------------------------------------------------------------------------- */

static double term_mse(double x, double target, const tsi_loss_attributes *a)
{
    (void)a;
    return (x - target) * (x - target);
}

static double term_l1(double x, double target, const tsi_loss_attributes *a)
{
    (void)a;
    return fabs(x - target);
}

/* What is no number stays none. */
static double at_least(double x, double least)
{
    return x < least ? least : x;
}

/* Logarithms are not taken below -100, so that a certain and wrong x stays finite. */
static double term_bce(double x, double target, const tsi_loss_attributes *a)
{
    (void)a;
    return -(target * at_least(log(x), -100.0) + (1.0 - target) * at_least(log1p(-x), -100.0));
}

/* bce of sigmoid(x), without its overflow. */
static double term_logits(double x, double target, const tsi_loss_attributes *a)
{
    (void)a;
    return fmax(x, 0.0) - x * target + log1p(exp(-fabs(x)));
}

static double term_smooth(double x, double target, const tsi_loss_attributes *a)
{
    double d = fabs(x - target);
    return d < a->point ? 0.5 * d * d / a->point : d - 0.5 * a->point;
}

static double term_huber(double x, double target, const tsi_loss_attributes *a)
{
    return a->point * term_smooth(x, target, a);
}

/* x is the logarithm of a probability; a target that is not positive costs nothing. */
static double term_kl(double x, double target, const tsi_loss_attributes *a)
{
    if (a->log_target) return exp(target) * (target - x);
    return target <= 0.0 && !isnan(x) ? 0.0 : target * (log(target) - x);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* What reaches each element: dy over the divisor; a scalar broadcasts. */
static ts_tensor *share_of(const tsi_grad_io *io)
{
    double divisor = divisor_of(&io->in_meta[0].shape, io->attributes);
    return divisor == 1.0 ? io->out_grad[0] : ts_div_scalar(io->out_grad[0], divisor);
}

static ts_status give(const tsi_grad_io *io, ts_tensor *dx, ts_tensor *dtarget)
{
    if (dx) io->in_grad[0] = ts_cast(dx, (ts_dtype)io->in_meta[0].dtype);
    if (dtarget) io->in_grad[1] = ts_cast(dtarget, (ts_dtype)io->in_meta[1].dtype);
    return ts_rank_status(io->rank);
}

static ts_status difference_grad(const tsi_grad_io *io)
{
    ts_tensor *d = ts_sub(io->in[0], io->in[1]);
    d = io->op == &tsi_op_mse_loss ? ts_mul_scalar(d, 2.0) : ts_sign(d);
    d = ts_mul(d, share_of(io));
    return give(io, io->needs & 1 ? d : NULL, io->needs & 2 ? ts_neg(d) : NULL);
}

/* An input in the dtype of the loss: functions of it would be rounded where it has fewer bits. */
static ts_tensor *wide(const tsi_grad_io *io, int32_t input)
{
    return ts_cast(io->in[input], ts_tensor_dtype(io->out_grad[0]));
}

/* dx = (x - t) / (x (1 - x)), kept finite at the ends; dt = log(1 - x) - log x */
static ts_status bce_grad(const tsi_grad_io *io)
{
    ts_tensor *x = wide(io, 0), *share = share_of(io), *dx = NULL, *dt = NULL;
    ts_tensor *rest = ts_rsub_scalar(x, 1.0);
    if (io->needs & 1)
        dx = ts_mul(ts_div(ts_sub(x, io->in[1]), ts_clamp(ts_mul(x, rest), 1e-12, (double)NAN)),
                    share);
    if (io->needs & 2)
        dt = ts_mul(ts_sub(ts_clamp(ts_log(rest), -100.0, (double)NAN),
                           ts_clamp(ts_log(x), -100.0, (double)NAN)),
                    share);
    return give(io, dx, dt);
}

/* The difference, bent to a constant from the turning point on. */
static ts_status bent_grad(const tsi_grad_io *io)
{
    double point = ((const tsi_loss_attributes *)io->attributes)->point;
    ts_tensor *d = ts_clamp(ts_sub(io->in[0], io->in[1]), -point, point);
    if (io->op == &tsi_op_smooth_l1_loss) d = ts_div_scalar(d, point);
    d = ts_mul(d, share_of(io));
    return give(io, io->needs & 1 ? d : NULL, io->needs & 2 ? ts_neg(d) : NULL);
}

static ts_status logits_grad(const tsi_grad_io *io)
{
    ts_tensor *x = wide(io, 0), *share = share_of(io), *dx = NULL, *dt = NULL;
    if (io->needs & 1) dx = ts_mul(ts_sub(ts_sigmoid(x), io->in[1]), share);
    if (io->needs & 2) dt = ts_neg(ts_mul(x, share));
    return give(io, dx, dt);
}

static ts_status kl_grad(const tsi_grad_io *io)
{
    const tsi_loss_attributes *a = io->attributes;
    ts_tensor *x = io->in[0], *t = wide(io, 1), *share = share_of(io), *dx = NULL, *dt = NULL;
    ts_tensor *weight = a->log_target ? ts_exp(t) : ts_relu(t);
    if (io->needs & 1) dx = ts_neg(ts_mul(weight, share));
    if (io->needs & 2) {
        ts_tensor *slope = ts_add_scalar(ts_sub(a->log_target ? t : ts_log(t), x), 1.0);
        if (a->log_target) slope = ts_mul(slope, weight);
        dt = ts_mul(slope, share);
    }
    return give(io, dx, dt);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool sample_loss(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 3));
    s->in[1] = s->in[0];
    *(tsi_loss_attributes *)s->attributes = (tsi_loss_attributes){ s->variant, 0, 1.5 };
    return s->variant < 3;
}

static bool sample_kl(tsi_sample *s)
{
    (void)sample_loss(s);
    ((tsi_loss_attributes *)s->attributes)->log_target = s->variant & 1;
    return s->variant < 4;
}

static const loss_kind mse_kind = { term_mse }, l1_kind = { term_l1 }, bce_kind = { term_bce },
                       kl_kind = { term_kl }, logits_kind = { term_logits },
                       smooth_kind = { term_smooth }, huber_kind = { term_huber };

#define LOSS                                                                                       \
    .input_min = 2, .input_max = 2, .output_count = 1, .saves = 3,                                 \
    .attribute_bytes = sizeof(tsi_loss_attributes), .infer = loss_infer, .rules = loss_rules,      \
    .reference = loss_reference

const tsi_op_desc tsi_op_mse_loss = {
    .name = "mse_loss",
    .what = "the square of the difference",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = loss_table,
    .family = &mse_kind,
    .grad = difference_grad,
    .sample = sample_loss,
};
const tsi_op_desc tsi_op_l1_loss = {
    .name = "l1_loss",
    .what = "the size of the difference",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = loss_table,
    .family = &l1_kind,
    .grad = difference_grad,
    .sample = sample_loss,
};
const tsi_op_desc tsi_op_bce = {
    .name = "bce",
    .what = "binary cross-entropy of probabilities and targets",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = loss_table,
    .family = &bce_kind,
    .grad = bce_grad,
    .sample = sample_loss,
};
const tsi_op_desc tsi_op_bce_with_logits = {
    .name = "bce_with_logits",
    .what = "binary cross-entropy of the sigmoid of logits and targets",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = loss_table,
    .family = &logits_kind,
    .grad = logits_grad,
    .sample = sample_loss,
};
const tsi_op_desc tsi_op_smooth_l1_loss = {
    .name = "smooth_l1_loss",
    .what = "the size of the difference, a parabola over 2 beta below beta",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = smooth_table,
    .family = &smooth_kind,
    .grad = bent_grad,
    .sample = sample_loss,
};
const tsi_op_desc tsi_op_huber_loss = {
    .name = "huber_loss",
    .what = "half the square of the difference, delta times its size beyond delta",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = huber_table,
    .family = &huber_kind,
    .grad = bent_grad,
    .sample = sample_loss,
};
const tsi_op_desc tsi_op_kl_div = {
    .name = "kl_div",
    .what = "divergence of a target from the logarithm of a probability",
    .dtypes = TSI_DTYPES_REAL,
    LOSS,
    .attribute = kl_table,
    .family = &kl_kind,
    .grad = kl_grad,
    .sample = sample_kl,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_tensor *loss(const tsi_op_desc *op, ts_tensor *x, ts_tensor *target,
                       const ts_loss_options *options)
{
    ts_tensor *in[] = { x, target };
    tsi_loss_attributes a = { .point = 1.0 };
    bool points = options && options->struct_size > offsetof(ts_loss_options, point);
    bool exact =
        points && options->struct_size > offsetof(ts_loss_options, exact) && options->exact;
    if (points && (options->point != 0 || exact)) a.point = options->point;
    if (options) a.reduction = options->reduction;
    if (options) a.log_target = options->log_target != 0;
    if (a.reduction < 0 || a.reduction > BATCH_MEAN ||
        (a.reduction == BATCH_MEAN && op != &tsi_op_kl_div)) {
        if (x && ts_rank_status(x->rank) == TS_OK)
            TSI_FAIL(TS_ERR_ARG, "%s: reduction %d has no meaning here", op->name, a.reduction);
        return NULL;
    }
    return tsi_op_make(op, in, 2, &a);
}

#define MAKER(name)                                                                                \
    ts_tensor *(ts_##name)(ts_tensor * x, ts_tensor * target, const ts_loss_options *options)      \
    {                                                                                              \
        return loss(&tsi_op_##name, x, target, options);                                           \
    }
MAKER(mse_loss)
MAKER(l1_loss)
MAKER(bce)
MAKER(kl_div)
MAKER(bce_with_logits)
MAKER(smooth_l1_loss)
MAKER(huber_loss)
