/* SPDX-License-Identifier: Apache-2.0 */
/* dropout.c - dropout, bernoulli, rand_like, randn_like, randint_like.
 *
 * What is drawn for an element depends on the seed, the stream of the call and the element's global
 * index alone (array/random.h), so any placement gives the bits of one rank, and replicas agree.
 * Since all ranks drop the same elements, what is pending on the input stays pending. */
#include <math.h>

#include "array/random.h"
#include "base/alloc.h"
#include "op/core/common.h"
#include "op/core/kernel.h"
#include "op/pointwise/dropout.h"

static const tsi_attribute dropout_table[] = {
    TSI_ATTR(tsi_dropout_attributes, p, REAL, "p", "0.5"), { 0 }
};

/* ---- drawing --------------------------------------------------------------------------------- */

enum { RUNS_AT_ONCE = 64 };

static ts_status draw_runs(const tsi_kernel_io *io, const tsi_random *random, const tsi_block *to,
                           const tsi_random_run *run, int64_t count)
{
    if (io->device->host_readable) return tsi_random_fill_runs(random, to, run, count);
    tsi_random_recipe recipe;
    TSI_TRY(tsi_random_recipe_make(random, (ts_dtype)to->dtype, &recipe));
    return io->device->random(io->device, &recipe, to, run, count, io->queue);
}

/* Fills a dense block with the draws of the elements that the operand holds, by the device that it
 * lies on. */
static ts_status draw(const tsi_kernel_io *io, const tsi_operand *place, const tsi_block *to,
                      tsi_random random)
{
    tsi_block flat = { .data = to->data, .dtype = to->dtype, .ndim = 1, .stride = { 1 } };
    flat.extent[0] = tsi_block_count(&place->block);
    random.seed = io->seed;
    random.stream = io->stream;
    random.rank = io->rank;
    if (flat.extent[0] == 0) return TS_OK;
    tsi_random_run run[RUNS_AT_ONCE] = { { 0, 0, flat.extent[0] } };
    if (!place->region && io->device->host_readable) return tsi_random_fill(&random, &flat, 0);
    if (!place->region) return draw_runs(io, &random, &flat, run, 1);
    int64_t count = 0;
    tsi_region_iterator at;
    tsi_region_iterate(&at, place->region, &place->global->shape);
    while (tsi_region_next(&at)) {
        run[count++] = (tsi_random_run){ at.global, at.local, at.length };
        if (count < RUNS_AT_ONCE) continue;
        TSI_TRY(draw_runs(io, &random, &flat, run, count));
        count = 0;
    }
    return count ? draw_runs(io, &random, &flat, run, count) : TS_OK;
}

static void any_dim(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_rules_batch(rules, call->in[0].shape.ndim, 0);
}

static bool sample_one(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(s->variant ? TS_SHAPE(5, 4, 3) : TS_SHAPE(5, 4));
    return s->variant < 2;
}

/* ---- dropout --------------------------------------------------------------------------------- */

static ts_status dropout_infer(const tsi_op_call *call)
{
    double p = ((const tsi_dropout_attributes *)call->attributes)->p;
    if (!(p >= 0.0 && p <= 1.0))
        return TSI_FAIL(TS_ERR_ARG, "dropout: p = %g is not a probability", p);
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) < TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "dropout: is not defined for %s",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    call->out[0] = call->out[1] = call->in[0];
    call->out[1].dtype = TS_DTYPE_BOOL;
    return TS_OK;
}

/* A factor that is the same on all ranks and not negative: linear, and keeps the order. */
static void dropout_rules(const tsi_op_call *call, tsi_rules *rules)
{
    static const ts_reduce pass[] = { TS_REDUCE_SUM, TS_REDUCE_AVG, TS_REDUCE_MAX, TS_REDUCE_MIN };
    bool ordered = tsi_dtype_category((ts_dtype)call->in[0].dtype) == TSI_CATEGORY_REAL;
    any_dim(call, rules);
    for (int32_t i = 0; i < (ordered ? 4 : 2); i++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = TSI_P(pass[i]); /* the mask is whole on every rank */
    }
}

static double scale_of(const tsi_dropout_attributes *a)
{
    return tsi_dropout_scale(a->p);
}

/* A call of another operator inside of one, by the device's kernel; over its input if they are one.
 */
static ts_status run_op(const tsi_kernel_io *io, const tsi_op_desc *op, const void *attributes,
                        const tsi_operand *in, const tsi_operand *out)
{
    tsi_kernel_io call = *io;
    call.op = op;
    call.attributes = attributes;
    call.in = in;
    call.out = out;
    call.input_count = op->input_max;
    call.output_count = 1;
    call.in_place = in[0].block.data == out->block.data;
    return tsi_kernel_run(tsi_kernel_of(io->device, op), &call);
}

/* x scaled, and zeros over what was not kept: whatever x holds there. */
static ts_status drop_on_device(const tsi_kernel_io *io)
{
    const tsi_operand *y = &io->out[0], *mask = &io->out[1];
    const tsi_operand both[] = { *y, *mask };
    ts_number scale = tsi_number_real(scale_of(io->attributes)), zero = tsi_number_real(0.0);
    TSI_TRY(run_op(io, &tsi_op_mul_scalar, &scale, &io->in[0], y));
    TSI_TRY(run_op(io, &tsi_op_logical_not, NULL, mask, mask));
    TSI_TRY(run_op(io, &tsi_op_masked_fill, &zero, both, y));
    return run_op(io, &tsi_op_logical_not, NULL, mask, mask);
}

static ts_status dropout_reference(const tsi_kernel_io *io)
{
    const tsi_dropout_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block, *mask = &io->out[1].block;
    tsi_random keep = { .kind = TSI_RANDOM_BERNOULLI, .a = 1.0 - a->p };
    TSI_TRY(draw(io, &io->out[1], mask, keep));
    if (!io->device->host_readable) return drop_on_device(io);
    tsi_loop loop = tsi_loop_over(y);
    loop.operand_count = 3;
    loop.stride[1] = x->stride;
    loop.stride[2] = mask->stride;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        bool kept = tsi_load_int(TS_DTYPE_BOOL, tsi_block_at(mask, loop.at[2])) != 0;
        double complex value = tsi_block_complex(x, loop.at[1]) * scale_of(a);
        tsi_block_set_complex(y, loop.at[0], kept ? value : 0.0);
    }
    return TS_OK;
}

static ts_status dropout_grad(const tsi_grad_io *io)
{
    if (!io->out_grad[0]) return TS_OK;
    return tsi_grad_give(
        io, ts_mul_scalar(ts_mul(io->out_grad[0], io->out[1]), scale_of(io->attributes)));
}

static bool sample_dropout(tsi_sample *s)
{
    ((tsi_dropout_attributes *)s->attributes)->p = s->variant ? 0.25 : 0.5;
    return sample_one(s);
}

const tsi_op_desc tsi_op_dropout = {
    .name = "dropout",
    .what = "0 with probability p, else x / (1 - p); and the mask of what was kept",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(1, 1, 2),
    .flags = TSI_OP_RANDOM | TSI_OP_MOVES,
    TSI_ATTRIBUTES(dropout_table, tsi_dropout_attributes),
    .infer = dropout_infer,
    .rules = dropout_rules,
    .reference = dropout_reference,
    .grad = dropout_grad,
    .saves = (uint64_t)2 << TSI_SAVE_OUT,
    .sample = sample_dropout,
};

/* ---- random numbers like another tensor ------------------------------------------------------ */

typedef struct range_attributes {
    int64_t low, high;
} range_attributes;
static const tsi_attribute range_table[] = { TSI_ATTR(range_attributes, low, INT, "low", "0"),
                                             TSI_ATTR(range_attributes, high, INT, "high", NULL),
                                             { 0 } };

static tsi_random random_of(const tsi_op_desc *op, const void *attributes)
{
    if (op == &tsi_op_randint_like) {
        const range_attributes *range = attributes;
        return (tsi_random){ .kind = TSI_RANDOM_INTEGER, .low = range->low, .high = range->high };
    }
    bool uniform = op == &tsi_op_rand_like;
    return (tsi_random){ .kind = uniform ? TSI_RANDOM_UNIFORM : TSI_RANDOM_NORMAL, .b = 1.0 };
}

static ts_status like_infer(const tsi_op_call *call)
{
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    tsi_random random = random_of(call->op, call->attributes);
    tsi_random_recipe recipe;
    if (tsi_random_words(random.kind, dtype) == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                        ts_dtype_name(dtype));
    TSI_TRY(tsi_random_recipe_make(&random, dtype, &recipe)); /* the range */
    return tsi_infer_like(call);
}

/* The values are not looked at: a pending input gives a whole result. */
static void like_rules(const tsi_op_call *call, tsi_rules *rules)
{
    any_dim(call, rules);
    for (int32_t reduce = TS_REDUCE_NONE + 1; reduce < TS_REDUCE_COUNT; reduce++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_P(reduce);
    }
}

static ts_status like_reference(const tsi_kernel_io *io)
{
    return draw(io, &io->out[0], &io->out[0].block, random_of(io->op, io->attributes));
}

static bool sample_range(tsi_sample *s)
{
    bool more = sample_one(s);
    s->in[0].dtype = TS_DTYPE_I64;
    *(range_attributes *)s->attributes = (range_attributes){ 0, 2 }; /* what bool holds, too */
    return more;
}

#define LIKE                                                                                       \
    .input_min = 1, .input_max = 1, .output_count = 1,                                             \
    .flags = TSI_OP_RANDOM | TSI_OP_NO_GRAD | TSI_OP_FREE | TSI_OP_MOVES, .infer = like_infer,     \
    .rules = like_rules, .reference = like_reference

const tsi_op_desc tsi_op_rand_like = {
    .name = "rand_like",
    .what = "uniform numbers from 0 up to 1 in the shape of another tensor",
    .dtypes = TSI_DTYPES_REAL,
    LIKE,
    .sample = sample_one,
};
const tsi_op_desc tsi_op_randn_like = {
    .name = "randn_like",
    .what = "normal numbers in the shape of another tensor",
    .dtypes = TSI_DTYPES_REAL,
    LIKE,
    .sample = sample_one,
};

const tsi_op_desc tsi_op_randint_like = {
    .name = "randint_like",
    .what = "whole numbers from low up to high, which is not among them, in the shape of another "
            "tensor",
    .dtypes = TSI_DTYPES_WHOLE | 1 << TS_DTYPE_BOOL,
    LIKE,
    TSI_ATTRIBUTES(range_table, range_attributes),
    .sample = sample_range,
};

/* ---- bernoulli ------------------------------------------------------------------------------- */

static ts_status bernoulli_infer(const tsi_op_call *call)
{
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "bernoulli: probabilities are reals, not %s",
                        ts_dtype_name(dtype));
    return tsi_infer_like(call);
}

static ts_status bernoulli_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    int64_t count = tsi_block_count(y), i = 0;
    double *uniform = tsi_alloc_array((size_t)count + 1, sizeof *uniform);
    if (!uniform) return tsi_fail_memory("random numbers", (size_t)count * sizeof *uniform);
    tsi_block to = { .data = uniform, .dtype = TS_DTYPE_F64 };
    tsi_random random = { .kind = TSI_RANDOM_UNIFORM, .a = 0.0, .b = 1.0 };
    ts_status status = draw(io, &io->out[0], &to, random);
    tsi_loop loop = tsi_loop_over(y);
    loop.operand_count = 2;
    loop.stride[1] = x->stride;
    bool more = status == TS_OK && tsi_loop_begin(&loop);
    for (; more; more = tsi_loop_next(&loop)) {
        double p = tsi_block_real(x, loop.at[1]);
        tsi_block_set_real(y, loop.at[0], uniform[i++] < p);
    }
    tsi_free(uniform);
    return status;
}

const tsi_op_desc tsi_op_bernoulli = {
    .name = "bernoulli",
    .what = "1 with the probability that the input says, else 0",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_RANDOM | TSI_OP_NO_GRAD | TSI_OP_FREE,
    .infer = bernoulli_infer,
    .rules = any_dim,
    .reference = bernoulli_reference,
    .sample = sample_one,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_dropout)(ts_tensor *x, double p)
{
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_dropout_attributes a = { p };
    tsi_op_args args = { &tsi_op_dropout, &x, 1, 0, &a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

TSI_MAKER1(rand_like)
TSI_MAKER1(randn_like)

ts_tensor *(ts_randint_like)(ts_tensor *x, int64_t low, int64_t high)
{
    range_attributes range = { low, high };
    return tsi_op_make(&tsi_op_randint_like, &x, 1, &range);
}

TSI_MAKER1(bernoulli)
