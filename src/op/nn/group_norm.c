/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm.c - normalisation over groups of channels: x [N, C, ..], weight and bias [C].
 *
 * Outputs: y, and per batch element and group the mean and the reciprocal deviation. The batch may
 * stay sharded. A sharded place dim (2 and later) is done in two phases: mean and mean square of
 * what differs are reduced, the elements stay where they are. Sharded channels gather one number
 * per channel for each of the two, so groups may lie across the cut. */
#include <math.h>
#include <string.h>

#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/nn/attributes.h"

static const tsi_attribute group_table[] = {
    TSI_ATTR(tsi_group_norm_attributes, num_groups, INT, "num_groups", NULL),
    TSI_ATTR(tsi_group_norm_attributes, eps, REAL, "eps", "1e-5"),
    { 0 },
};

static ts_dtype wide_dtype(int32_t dtype)
{
    return dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
}

static ts_status group_infer(const tsi_op_call *call)
{
    const tsi_group_norm_attributes *a = call->attributes;
    const ts_shape *x = &call->in[0].shape;
    char text[96];
    if (x->ndim < 2 || x->ndim >= TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "group_norm: takes 2 to %d dims, not those of %s",
                        TS_NDIM_MAX - 1, tsi_shape_text(x, text, sizeof text));
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "group_norm: is defined for reals, not %s",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    if (a->num_groups < 1 || x->extent[1] % a->num_groups != 0)
        return TSI_FAIL(TS_ERR_ARG, "group_norm: %lld channels do not fall into %lld groups",
                        (long long)x->extent[1], (long long)a->num_groups);
    for (int32_t i = 1; i < call->input_count; i++) {
        const ts_meta *w = &call->in[i];
        if (w->dtype == TS_DTYPE_NONE) continue;
        if (w->shape.ndim != 1 || w->shape.extent[0] != x->extent[1])
            return TSI_FAIL(TS_ERR_SHAPE, "group_norm: a %s of shape %s does not fit %lld channels",
                            i == 1 ? "weight" : "bias",
                            tsi_shape_text(&w->shape, text, sizeof text), (long long)x->extent[1]);
    }
    call->out[0] = call->in[0];
    call->out[1] = call->out[2] = (ts_meta){ .shape = TS_SHAPE(x->extent[0], a->num_groups),
                                             .dtype = (int32_t)wide_dtype(call->in[0].dtype) };
    return TS_OK;
}

static void group_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_role *row = tsi_rules_add(rules);
    tsi_role *out = row + call->input_count;
    row[0] = out[0] = out[1] = out[2] = TSI_S(0);
    for (int32_t d = 2; d < call->in[0].shape.ndim; d++) {
        row = tsi_rules_add_with(rules, 1, 0);
        row[0] = row[call->input_count] = TSI_S(d);
    }
    row = tsi_rules_add_with(rules, 2, 0); /* channels: groups may lie across the cut */
    row[0] = row[call->input_count] = TSI_S(1);
    for (int32_t i = 1; i < call->input_count; i++)
        if (call->in[i].dtype != TS_DTYPE_NONE) row[i] = TSI_S(0);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static double weight_at(const tsi_kernel_io *io, int32_t input, int64_t channel, double otherwise)
{
    if (input >= io->input_count || io->in[input].global->dtype == TS_DTYPE_NONE) return otherwise;
    const tsi_block *w = &io->in[input].block;
    return tsi_block_real(w, channel * w->stride[0]);
}

/* A loop over one group of one batch element; `base` receives the offsets of its first element. */
static tsi_loop group_loop(const tsi_kernel_io *io, int64_t n, int64_t group, int64_t *base)
{
    const tsi_group_norm_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    tsi_loop loop = { .ndim = x->ndim - 1,
                      .operand_count = 2,
                      .stride = { x->stride + 1, y->stride + 1 } };
    memcpy(loop.extent, x->extent + 1, (size_t)loop.ndim * sizeof *loop.extent);
    loop.extent[0] = x->extent[1] / a->num_groups;
    base[0] = n * x->stride[0] + group * loop.extent[0] * x->stride[1];
    base[1] = n * y->stride[0] + group * loop.extent[0] * y->stride[1];
    return loop;
}

static void normalise_group(const tsi_kernel_io *io, int64_t n, int64_t group)
{
    const tsi_group_norm_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    int64_t base[2];
    tsi_loop loop = group_loop(io, n, group, base);
    double mean = 0, square = 0, count = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop), count += 1)
        mean += tsi_block_real(x, base[0] + loop.at[0]);
    mean /= count;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double d = tsi_block_real(x, base[0] + loop.at[0]) - mean;
        square += d * d;
    }
    double scale = 1.0 / sqrt(square / count + a->eps);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double v = tsi_block_real(x, base[0] + loop.at[0]) - mean;
        int64_t channel = group * loop.extent[0] + loop.index[0];
        tsi_block_set_real(y, base[1] + loop.at[1],
                           v * scale * weight_at(io, 1, channel, 1.0) +
                               weight_at(io, 2, channel, 0.0));
    }
    const tsi_block *m = &io->out[1].block, *s = &io->out[2].block;
    tsi_block_set_real(m, n * m->stride[0] + group * m->stride[1], mean);
    tsi_block_set_real(s, n * s->stride[0] + group * s->stride[1], scale);
}

static ts_status group_reference(const tsi_kernel_io *io)
{
    const tsi_group_norm_attributes *a = io->attributes;
    for (int64_t n = 0; n < io->in[0].block.extent[0]; n++)
        for (int64_t group = 0; group < a->num_groups; group++)
            normalise_group(io, n, group);
    return TS_OK;
}

/* ---- two phases ------------------------------------------------------------------------------ */

typedef struct grouped { /* shapes of one call */
    ts_shape split;      /* [N, G, C / G, ..] */
    ts_shape statistic;  /* [N, G, 1, ..] */
    ts_shape channel;    /* [C, 1, ..] */
    int64_t dims[TS_NDIM_MAX];
    int32_t dim_count;
} grouped;

static grouped grouped_of(const ts_shape *x, int64_t groups)
{
    grouped g = { .dim_count = x->ndim - 1 };
    g.split.ndim = g.statistic.ndim = x->ndim + 1;
    g.channel.ndim = x->ndim - 1;
    for (int32_t d = 0; d < x->ndim; d++) {
        g.split.extent[d + 1] = x->extent[d];
        g.statistic.extent[d + 1] = 1;
        if (d) g.channel.extent[d - 1] = d == 1 ? x->extent[1] : 1;
    }
    g.split.extent[0] = g.statistic.extent[0] = x->extent[0];
    g.split.extent[1] = g.statistic.extent[1] = groups;
    g.split.extent[2] = x->extent[1] / groups;
    for (int32_t i = 0; i < g.dim_count; i++)
        g.dims[i] = 2 + i;
    return g;
}

static int64_t group_bytes(const tsi_op_call *call, int64_t n)
{
    return tsi_algorithm_share(tsi_algorithm_bytes(&call->out[1], 2 * 2), n);
}

/* y scaled and shifted by channels, and the statistics: made = { y, mean, scale }. */
static ts_status give_normed(const tsi_algorithm_io *io, ts_scope scope, const ts_shape *channel,
                             ts_tensor *const *made)
{
    ts_tensor *y = made[0];
    if (io->input_count > 1 && io->in[1]) y = ts_mul(y, ts_reshape(io->in[1], *channel));
    if (io->input_count > 2 && io->in[2]) y = ts_add(y, ts_reshape(io->in[2], *channel));
    ts_tensor *out[] = { ts_cast(y, (ts_dtype)io->call->out[0].dtype),
                         ts_reshape(made[1], io->call->out[1].shape),
                         ts_reshape(made[2], io->call->out[2].shape) };
    return tsi_algorithm_end(io, scope, out);
}

static ts_status group_two_phase(const tsi_algorithm_io *io)
{
    const tsi_group_norm_attributes *a = io->attributes;
    const ts_shape *shape = &io->call->in[0].shape;
    grouped g = grouped_of(shape, a->num_groups);
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_reshape(ts_cast(io->in[0], (ts_dtype)io->call->out[1].dtype), g.split);
    ts_tensor *mean = tsi_algorithm_settle(io, ts_mean(x, g.dims, g.dim_count, 1));
    ts_tensor *centred = ts_sub(x, mean);
    ts_tensor *square = ts_mean(ts_square(centred), g.dims, g.dim_count, 1);
    ts_tensor *scale = ts_rsqrt(ts_add_scalar(tsi_algorithm_settle(io, square), a->eps));
    ts_tensor *y = ts_reshape(ts_mul(centred, scale), *shape);
    return give_normed(io, scope, &g.channel, (ts_tensor *[]){ y, mean, scale });
}

/* ---- channels -------------------------------------------------------------------------------- */

/* Statistics of channels [N, C], whole on the algorithm's axes. */
static ts_tensor *gather_channels(const tsi_algorithm_io *io, ts_tensor *t)
{
    if (!t) return NULL;
    ts_placement place[TS_NDIM_MAX];
    const ts_sharding *have = t->layout->sharding;
    for (int32_t k = 0; k < have->ndim; k++) {
        place[k] = have->place[k];
        if (io->axes >> k & 1)
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(have->mesh, place);
    ts_tensor *whole = to ? (ts_redistribute_to)(t, to) : NULL;
    ts_sharding_release(to);
    return whole;
}

/* The mean of each group [N, G, 1] of means of channels, from those of the whole. */
static ts_tensor *group_means(const tsi_algorithm_io *io, ts_tensor *x)
{
    const ts_shape *shape = &io->call->in[0].shape;
    int64_t groups = ((const tsi_group_norm_attributes *)io->attributes)->num_groups, last = 2;
    int64_t places[TS_NDIM_MAX];
    for (int32_t d = 2; d < shape->ndim; d++)
        places[d - 2] = d;
    ts_tensor *each = shape->ndim > 2 ? ts_mean(x, places, shape->ndim - 2, 0) : x;
    each = ts_reshape(gather_channels(io, each),
                      TS_SHAPE(shape->extent[0], groups, shape->extent[1] / groups));
    return ts_mean(each, &last, 1, 1);
}

/* A number of each group as one of each channel, [N, C, 1, ..]. */
static ts_tensor *of_channels(const tsi_algorithm_io *io, ts_tensor *groups)
{
    const ts_shape *x = &io->call->in[0].shape;
    int64_t count = ((const tsi_group_norm_attributes *)io->attributes)->num_groups;
    ts_shape channels = { .ndim = x->ndim, .extent = { x->extent[0], x->extent[1] } };
    for (int32_t d = 2; d < x->ndim; d++)
        channels.extent[d] = 1;
    ts_tensor *wide = ts_expand(groups, TS_SHAPE(x->extent[0], count, x->extent[1] / count));
    return ts_reshape(ts_clone(wide), channels);
}

static ts_status group_channels(const tsi_algorithm_io *io)
{
    const tsi_group_norm_attributes *a = io->attributes;
    const ts_shape *shape = &io->call->in[0].shape;
    grouped g = grouped_of(shape, a->num_groups);
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *x = ts_cast(io->in[0], (ts_dtype)io->call->out[1].dtype);
    ts_tensor *mean = group_means(io, x), *centred = ts_sub(x, of_channels(io, mean));
    ts_tensor *variance = group_means(io, ts_square(centred));
    ts_tensor *scale = ts_rsqrt(ts_add_scalar(variance, a->eps));
    ts_tensor *y = ts_mul(centred, of_channels(io, scale));
    return give_normed(io, scope, &g.channel, (ts_tensor *[]){ y, mean, scale });
}

/* Two gathers of a number per channel. */
static int64_t channel_bytes(const tsi_op_call *call, int64_t n)
{
    const ts_shape *x = &call->in[0].shape;
    ts_meta each = { .shape = TS_SHAPE(x->extent[0], x->extent[1]), .dtype = call->out[1].dtype };
    return tsi_algorithm_share(tsi_algorithm_bytes(&each, 2), n);
}

static const tsi_algorithm group_phases[] = { { "two-phase", group_two_phase, group_bytes },
                                              { "channels", group_channels, channel_bytes },
                                              { 0 } };

/* ---- gradient and row ------------------------------------------------------------------------ */

/* With v the normalised input and g = dy * weight: dx = scale (g - mean(g) - v mean(g v)). */
static ts_status group_grad(const tsi_grad_io *io)
{
    const tsi_group_norm_attributes *a = io->attributes;
    const ts_shape *shape = &io->in_meta[0].shape;
    grouped g = grouped_of(shape, a->num_groups);
    ts_dtype wide = ts_tensor_dtype(io->out[2]);
    ts_tensor *dy = ts_cast(io->out_grad[0], wide);
    ts_tensor *mean = ts_reshape(io->out[1], g.statistic);
    ts_tensor *scale = ts_reshape(io->out[2], g.statistic);
    ts_tensor *v = ts_mul(ts_sub(ts_reshape(ts_cast(io->in[0], wide), g.split), mean), scale);
    if (io->needs & 1) {
        ts_tensor *weight = io->input_count > 1 ? io->in[1] : NULL;
        ts_tensor *w = weight ? ts_mul(dy, ts_reshape(ts_cast(weight, wide), g.channel)) : dy;
        w = ts_reshape(w, g.split);
        ts_tensor *dx = ts_sub(w, ts_mul(v, ts_mean(ts_mul(w, v), g.dims, g.dim_count, 1)));
        dx = ts_mul(ts_sub(dx, ts_mean(w, g.dims, g.dim_count, 1)), scale);
        io->in_grad[0] = ts_cast(ts_reshape(dx, *shape), (ts_dtype)io->in_meta[0].dtype);
    }
    int64_t others[TS_NDIM_MAX] = { 0 };
    for (int32_t d = 2; d < shape->ndim; d++)
        others[d - 1] = d;
    if (io->needs & 2)
        io->in_grad[1] =
            ts_cast(ts_sum(ts_mul(dy, ts_reshape(v, *shape)), others, shape->ndim - 1, 0),
                    (ts_dtype)io->in_meta[1].dtype);
    if (io->needs & 4)
        io->in_grad[2] =
            ts_cast(ts_sum(dy, others, shape->ndim - 1, 0), (ts_dtype)io->in_meta[2].dtype);
    return ts_rank_status(io->rank);
}

static bool sample_group(tsi_sample *s)
{
    *(tsi_group_norm_attributes *)s->attributes =
        (tsi_group_norm_attributes){ s->variant == 1 ? 1 : 2, 1e-5 };
    s->in[0] = tsi_meta_f64(s->variant == 2 ? TS_SHAPE(3, 4, 5, 2) : TS_SHAPE(3, 4, 5));
    s->in[1] = s->in[2] = tsi_meta_f64(TS_SHAPE(4));
    s->count = s->variant == 1 ? 1 : 3;
    return s->variant < 3;
}

const tsi_op_desc tsi_op_group_norm = {
    .name = "group_norm",
    .what = "x less its mean over its deviation per group of channels, times weight, plus bias",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(1, 3, 3),
    .saves = 3 | (uint64_t)6 << TSI_SAVE_OUT,
    .aside = 6,
    TSI_ATTRIBUTES(group_table, tsi_group_norm_attributes),
    .infer = group_infer,
    .rules = group_rules,
    .reference = group_reference,
    .algorithm = group_phases,
    .grad = group_grad,
    .sample = sample_group,
};

ts_tensor *(ts_group_norm)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                           const ts_group_norm_options *options)
{
    ts_tensor *in[] = { x, weight, bias }, *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_group_norm_attributes a = { 1, 1e-5 };
    if (options) a = (tsi_group_norm_attributes){ options->groups, options->epsilon };
    tsi_op_args args = { &tsi_op_group_norm, in, bias ? 3 : weight ? 2 : 1, 0, &a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}
