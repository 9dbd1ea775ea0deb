/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - reductions over dims: sum, mean, prod, amax, amin, any, all, vector_norm,
 * count_nonzero.
 *
 * A reduced dim that is sharded gives a partial result of the operator's own kind, whatever the
 * sizes of the shards: an empty shard contributes the identity, and a mean divides by the global
 * count, so that its terms are sums. */
#include "op/reduce/reduce.h"

#include <math.h>
#include <string.h>

const tsi_attribute tsi_reduce_table[] = {
    TSI_ATTR(tsi_reduce_attributes, dims, DIMS, "dims", "[]"),
    TSI_ATTR(tsi_reduce_attributes, keepdim, BOOL, "keepdim", "false"),
    { 0 },
};
static const tsi_attribute norm_table[] = {
    TSI_ATTR(tsi_reduce_attributes, p, REAL, "p", "2"),
    TSI_ATTR(tsi_reduce_attributes, dims, DIMS, "dims", "[]"),
    TSI_ATTR(tsi_reduce_attributes, keepdim, BOOL, "keepdim", "false"),
    { 0 },
};

/* ---- shared ---------------------------------------------------------------------------------- */

ts_status tsi_reduce_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t input_count,
                               void *attributes)
{
    (void)input_count;
    tsi_reduce_attributes *a = attributes;
    return tsi_normalise_dims(op->name, &a->dims, in[0].shape.ndim);
}

uint32_t tsi_reduce_mask(const void *attributes)
{
    return tsi_dims_mask(&((const tsi_reduce_attributes *)attributes)->dims);
}

ts_status tsi_reduce_infer(const tsi_op_call *call)
{
    const tsi_reduce_attributes *a = call->attributes;
    for (int32_t o = 0; o < call->output_count; o++) {
        call->out[o].shape = tsi_shape_reduce(&call->in[0].shape, tsi_reduce_mask(a), a->keepdim);
        call->out[o].dtype = call->in[0].dtype;
    }
    return TS_OK;
}

void tsi_reduce_loops_make(const tsi_block *in, const tsi_block *out, uint32_t mask, bool keepdim,
                           tsi_reduce_loops *loops)
{
    memset(loops, 0, sizeof *loops);
    loops->outer.operand_count = 2;
    loops->inner.operand_count = 1;
    int32_t place = 0;
    for (int32_t d = 0; d < in->ndim; d++) {
        bool gone = mask >> d & 1;
        tsi_loop *loop = gone ? &loops->inner : &loops->outer;
        loops->stride[gone ? 2 : 0][loop->ndim] = in->stride[d];
        if (!gone) loops->stride[1][loop->ndim] = out->stride[place];
        loop->extent[loop->ndim++] = in->extent[d];
        if (!gone || keepdim) place++;
    }
    loops->outer.stride[0] = loops->stride[0];
    loops->outer.stride[1] = loops->stride[1];
    loops->inner.stride[0] = loops->stride[2];
}

ts_tensor *tsi_grad_unreduce(ts_tensor *grad, const ts_meta *in, const void *attributes)
{
    const tsi_reduce_attributes *a = attributes;
    if (a->keepdim) return grad;
    ts_shape shape = tsi_shape_reduce(&in->shape, tsi_reduce_mask(a), true);
    return ts_reshape(grad, shape);
}

void tsi_reduce_rules_steps(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_reduce_attributes *a = call->attributes;
    uint32_t mask = tsi_reduce_mask(a);
    int32_t kept = 0;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        bool gone = mask >> d & 1;
        tsi_role *row = tsi_rules_add_with(rules, gone ? 1 : 0, 0);
        row[0] = TSI_S(d);
        for (int32_t o = 0; !gone && o < call->output_count; o++)
            row[1 + o] = TSI_S(a->keepdim ? d : kept);
        kept += !gone;
    }
}

bool tsi_sample_reduce(tsi_sample *s)
{
    static const int64_t shape[3] = { 5, 3, 4 };
    static const tsi_dims dims[] = { { .count = 1, .value = { 0 } },
                                     { .count = 1, .value = { -1 } },
                                     { .count = 0 },
                                     { .count = 2, .value = { 0, 2 } } };
    tsi_reduce_attributes *a = s->attributes;
    memset(a, 0, sizeof *a);
    a->dims = dims[s->variant % 4];
    a->keepdim = s->variant & 1;
    a->correction = 1;
    a->p = 2.0;
    s->count = 1;
    s->in[0] = (ts_meta){ .shape = { .ndim = s->variant < 2 ? 2 : 3 }, .dtype = TS_DTYPE_F64 };
    for (int32_t d = 0; d < s->in[0].shape.ndim; d++)
        s->in[0].shape.extent[d] = shape[d + (s->variant < 2)];
    return s->variant < 4;
}

/* ---- what differs between them --------------------------------------------------------------- */

typedef struct reduction {
    ts_reduce kind; /* of the partial result */
    double complex start;
    double complex (*step)(double complex sum, double complex x, const tsi_reduce_attributes *a);
    int64_t (*whole)(int64_t sum, int64_t x);
    int64_t whole_start;
    int32_t result; /* 0 the same dtype, 1 real, 2 bool, 3 i64, 4 sums: bool and small integers give
                       i64 */
} reduction;

static double complex step_sum(double complex sum, double complex x, const tsi_reduce_attributes *a)
{
    (void)a;
    return sum + x;
}

static double complex step_prod(double complex sum, double complex x,
                                const tsi_reduce_attributes *a)
{
    (void)a;
    return sum * x;
}

static double complex step_max(double complex sum, double complex x, const tsi_reduce_attributes *a)
{
    (void)a;
    return isnan(creal(sum)) || creal(sum) > creal(x) ? sum : x;
}

static double complex step_min(double complex sum, double complex x, const tsi_reduce_attributes *a)
{
    (void)a;
    return isnan(creal(sum)) || creal(sum) < creal(x) ? sum : x;
}

static double complex step_any(double complex sum, double complex x, const tsi_reduce_attributes *a)
{
    (void)a;
    return sum != 0.0 || x != 0.0 ? 1.0 : 0.0;
}

static double complex step_all(double complex sum, double complex x, const tsi_reduce_attributes *a)
{
    (void)a;
    return sum != 0.0 && x != 0.0 ? 1.0 : 0.0;
}

static double complex step_count(double complex sum, double complex x,
                                 const tsi_reduce_attributes *a)
{
    (void)a;
    return sum + (x != 0.0 ? 1.0 : 0.0);
}

/* Terms of a p-norm without its root: |x|^p; for 0 a count, for infinities the extreme. */
static double complex step_norm(double complex sum, double complex x,
                                const tsi_reduce_attributes *a)
{
    double size = cabs(x);
    if (isinf(a->p)) return a->p > 0 ? step_max(sum, size, a) : step_min(sum, size, a);
    if (a->p == 0.0) return sum + (size != 0.0 ? 1.0 : 0.0);
    return sum + pow(size, a->p);
}

static int64_t whole_sum(int64_t sum, int64_t x)
{
    return (int64_t)((uint64_t)sum + (uint64_t)x);
}

static int64_t whole_prod(int64_t sum, int64_t x)
{
    return (int64_t)((uint64_t)sum * (uint64_t)x);
}

static int64_t whole_max(int64_t sum, int64_t x)
{
    return sum > x ? sum : x;
}

static int64_t whole_min(int64_t sum, int64_t x)
{
    return sum < x ? sum : x;
}

static const reduction sum_kind = { TS_REDUCE_SUM, 0, step_sum, whole_sum, 0, 4 };
static const reduction mean_kind = { TS_REDUCE_SUM, 0, step_sum, NULL, 0, 1 };
static const reduction prod_kind = { TS_REDUCE_PROD, 1, step_prod, whole_prod, 1, 4 };
static const reduction max_kind = { TS_REDUCE_MAX, -INFINITY, step_max, whole_max, INT64_MIN, 0 };
static const reduction min_kind = { TS_REDUCE_MIN, INFINITY, step_min, whole_min, INT64_MAX, 0 };
static const reduction any_kind = { TS_REDUCE_OR, 0, step_any, NULL, 0, 2 };
static const reduction all_kind = { TS_REDUCE_AND, 1, step_all, NULL, 0, 2 };
static const reduction count_kind = { TS_REDUCE_SUM, 0, step_count, NULL, 0, 3 };
static const reduction norm_kind = { TS_REDUCE_SUM, 0, step_norm, NULL, 0, 1 };

static ts_status kind_infer(const tsi_op_call *call)
{
    const reduction *kind = call->op->family;
    TSI_TRY(tsi_reduce_infer(call));
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    tsi_category category = tsi_dtype_category(dtype);
    if (kind->kind == TS_REDUCE_MAX || kind->kind == TS_REDUCE_MIN) {
        if (category == TSI_CATEGORY_COMPLEX)
            return TSI_FAIL(TS_ERR_DTYPE, "%s: complex numbers have no order", call->op->name);
        int64_t count = 1;
        const tsi_dims *dims = &((const tsi_reduce_attributes *)call->attributes)->dims;
        for (int32_t i = 0; i < dims->count; i++)
            count *= call->in[0].shape.extent[dims->value[i]];
        if (count == 0)
            return TSI_FAIL(TS_ERR_SHAPE, "%s: there is no largest or smallest of no elements",
                            call->op->name);
    }
    if (kind->result == 1) dtype = tsi_dtype_to_real(dtype);
    if (kind->result == 2) dtype = TS_DTYPE_BOOL;
    if (kind->result == 3 || (kind->result == 4 && category <= TSI_CATEGORY_INT))
        dtype = TS_DTYPE_I64;
    if (kind == &norm_kind && category == TSI_CATEGORY_COMPLEX)
        dtype = dtype == TS_DTYPE_C64 ? TS_DTYPE_F32 : TS_DTYPE_F64;
    call->out[0].dtype = (int32_t)dtype;
    return TS_OK;
}

static void kind_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const reduction *kind = call->op->family;
    const tsi_reduce_attributes *a = call->attributes;
    tsi_rules_reduction(rules, call->in[0].shape.ndim, tsi_reduce_mask(a), a->keepdim, kind->kind);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static int64_t global_count(const tsi_kernel_io *io)
{
    int64_t count = 1;
    const tsi_dims *dims = &((const tsi_reduce_attributes *)io->attributes)->dims;
    for (int32_t i = 0; i < dims->count; i++)
        count *= io->in[0].global->shape.extent[dims->value[i]];
    return count;
}

static void reduce_real(const tsi_kernel_io *io, const reduction *kind, tsi_reduce_loops *loops)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    const tsi_reduce_attributes *a = io->attributes;
    double complex start = kind->start,
                   divide = kind == &mean_kind ? (double)global_count(io) : 1.0;
    if (kind == &norm_kind && isinf(a->p) && a->p < 0) start = INFINITY;
    for (bool more = tsi_loop_begin(&loops->outer); more; more = tsi_loop_next(&loops->outer)) {
        double complex sum = start;
        for (bool next = tsi_loop_begin(&loops->inner); next; next = tsi_loop_next(&loops->inner))
            sum =
                kind->step(sum, tsi_block_complex(in, loops->outer.at[0] + loops->inner.at[0]), a);
        tsi_block_set_complex(out, loops->outer.at[1], sum / divide);
    }
}

static void reduce_whole(const tsi_kernel_io *io, const reduction *kind, tsi_reduce_loops *loops)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    int64_t start = kind->whole_start;
    if (kind->kind == TS_REDUCE_MAX ||
        kind->kind == TS_REDUCE_MIN) { /* the identity of this dtype */
        unsigned char element[16] = { 0 };
        if (tsi_reduce_identity(kind->kind, (ts_dtype)out->dtype, element) == TS_OK)
            start = tsi_load_int((ts_dtype)out->dtype, element);
    }
    for (bool more = tsi_loop_begin(&loops->outer); more; more = tsi_loop_next(&loops->outer)) {
        int64_t sum = start;
        for (bool next = tsi_loop_begin(&loops->inner); next; next = tsi_loop_next(&loops->inner))
            sum = kind->whole(sum, tsi_block_int(in, loops->outer.at[0] + loops->inner.at[0]));
        tsi_store_int((ts_dtype)out->dtype, tsi_block_at(out, loops->outer.at[1]), sum);
    }
}

static ts_status kind_reference(const tsi_kernel_io *io)
{
    const reduction *kind = io->op->family;
    const tsi_reduce_attributes *a = io->attributes;
    tsi_reduce_loops loops;
    tsi_reduce_loops_make(&io->in[0].block, &io->out[0].block, tsi_reduce_mask(a), a->keepdim,
                          &loops);
    bool whole =
        tsi_dtype_category((ts_dtype)io->in[0].block.dtype) <= TSI_CATEGORY_INT && kind->whole;
    if (whole)
        reduce_whole(io, kind, &loops);
    else
        reduce_real(io, kind, &loops);
    return TS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_status sum_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], io->attributes);
    return tsi_grad_give(
        io, ts_cast(ts_expand(dy, io->in_meta[0].shape), (ts_dtype)io->in_meta[0].dtype));
}

static ts_status mean_grad(const tsi_grad_io *io)
{
    const tsi_dims *dims = &((const tsi_reduce_attributes *)io->attributes)->dims;
    double count = 1;
    for (int32_t i = 0; i < dims->count; i++)
        count *= (double)io->in_meta[0].shape.extent[dims->value[i]];
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], io->attributes);
    return tsi_grad_give(io, ts_expand(ts_div_scalar(dy, count), io->in_meta[0].shape));
}

/* Ties share. */
static ts_status extreme_grad(const tsi_grad_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    ts_tensor *x = io->in[0], *y = tsi_grad_unreduce(io->out[0], &io->in_meta[0], a);
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], a);
    ts_tensor *hit = ts_cast(ts_eq(x, y), ts_tensor_dtype(dy));
    ts_tensor *count = ts_sum(hit, a->dims.value, a->dims.count, 1);
    return tsi_grad_give(io, ts_mul(hit, ts_div(dy, count)));
}

/* Is there such an element among the others of the same product? */
static ts_tensor *among_others(ts_tensor *such, const tsi_dims *dims)
{
    ts_tensor *count = ts_sum(such, dims->value, dims->count, 1);
    return ts_ne(ts_cast(such, TS_DTYPE_I64), count);
}

/* The product of the others. With one zero only that element has any, with more none; so zeros are
 * left out of the product and counted. So is what is not finite: times zero it is no number. */
static ts_status prod_grad(const tsi_grad_io *io)
{
    const tsi_dims *dims = &((const tsi_reduce_attributes *)io->attributes)->dims;
    ts_tensor *dy = tsi_grad_unreduce(io->out_grad[0], &io->in_meta[0], io->attributes);
    ts_tensor *zero = ts_logical_not(io->in[0]), *x = ts_masked_fill(io->in[0], zero, 1.0);
    ts_tensor *product = ts_prod(x, dims->value, dims->count, 1);
    ts_tensor *none = among_others(zero, dims);
    ts_tensor *wild = among_others(ts_logical_not(ts_isfinite(io->in[0])), dims);
    ts_tensor *dx = ts_masked_fill(ts_mul(dy, ts_div(product, x)), none, 0.0);
    return tsi_grad_give(io, ts_masked_fill(dx, ts_logical_and(none, wild), (double)NAN));
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define REDUCTION                                                                                  \
    .input_min = 1, .input_max = 1, .output_count = 1, .attribute = tsi_reduce_table,              \
    .attribute_bytes = sizeof(tsi_reduce_attributes), .normalise = tsi_reduce_normalise,           \
    .infer = kind_infer, .rules = kind_rules, .reference = kind_reference,                         \
    .sample = tsi_sample_reduce
#define Y ((uint64_t)1 << TSI_SAVE_OUT)

static void pass_rule(tsi_rules *rules, ts_reduce reduce)
{
    tsi_role *row = tsi_rules_add(rules);
    row[0] = row[1] = TSI_P(reduce);
}

static void max_rules(const tsi_op_call *call, tsi_rules *rules)
{
    kind_rules(call, rules);
    pass_rule(rules, TS_REDUCE_MAX);
}

static void min_rules(const tsi_op_call *call, tsi_rules *rules)
{
    kind_rules(call, rules);
    pass_rule(rules, TS_REDUCE_MIN);
}

static void prod_rules(const tsi_op_call *call, tsi_rules *rules)
{
    kind_rules(call, rules);
    pass_rule(rules, TS_REDUCE_PROD);
}

static void any_rules(const tsi_op_call *call, tsi_rules *rules)
{
    kind_rules(call, rules);
    if (call->in[0].dtype == TS_DTYPE_BOOL) pass_rule(rules, TS_REDUCE_OR);
}

static void all_rules(const tsi_op_call *call, tsi_rules *rules)
{
    kind_rules(call, rules);
    if (call->in[0].dtype == TS_DTYPE_BOOL) pass_rule(rules, TS_REDUCE_AND);
}

const tsi_op_desc tsi_op_sum = {
    .name = "sum",
    .what = "the sum over dims",
    REDUCTION,
    .family = &sum_kind,
    .traits = { .flow = TSI_LINEAR_ALL },
    .grad = sum_grad,
};
const tsi_op_desc tsi_op_mean = {
    .name = "mean",
    .what = "the mean over dims",
    REDUCTION,
    .family = &mean_kind,
    .traits = { .flow = TSI_LINEAR_ALL },
    .grad = mean_grad,
};

#undef REDUCTION
#define REDUCTION(rules_)                                                                          \
    .input_min = 1, .input_max = 1, .output_count = 1, .attribute = tsi_reduce_table,              \
    .attribute_bytes = sizeof(tsi_reduce_attributes), .normalise = tsi_reduce_normalise,           \
    .infer = kind_infer, .rules = rules_, .reference = kind_reference, .sample = tsi_sample_reduce

const tsi_op_desc tsi_op_prod = {
    .name = "prod",
    .what = "the product over dims",
    REDUCTION(prod_rules),
    .family = &prod_kind,
    .saves = 1,
    .grad = prod_grad,
};
const tsi_op_desc tsi_op_amax = {
    .name = "amax",
    .what = "the largest over dims",
    .dtypes = TSI_DTYPES_ORDERED,
    REDUCTION(max_rules),
    .family = &max_kind,
    .saves = 1 | Y,
    .grad = extreme_grad,
};
const tsi_op_desc tsi_op_amin = {
    .name = "amin",
    .what = "the smallest over dims",
    .dtypes = TSI_DTYPES_ORDERED,
    REDUCTION(min_rules),
    .family = &min_kind,
    .saves = 1 | Y,
    .grad = extreme_grad,
};
const tsi_op_desc tsi_op_any = {
    .name = "any",
    .what = "is one of them not zero?",
    REDUCTION(any_rules),
    .family = &any_kind,
    .flags = TSI_OP_NO_GRAD,
};
const tsi_op_desc tsi_op_all = {
    .name = "all",
    .what = "is none of them zero?",
    REDUCTION(all_rules),
    .family = &all_kind,
    .flags = TSI_OP_NO_GRAD,
};
const tsi_op_desc tsi_op_count_nonzero = {
    .name = "count_nonzero",
    .what = "how many are not zero",
    REDUCTION(kind_rules),
    .family = &count_kind,
    .flags = TSI_OP_NO_GRAD,
};

/* The p-norm without its root, so that its terms add up; ts_vector_norm takes the root. */
static void power_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_reduce_attributes *a = call->attributes;
    ts_reduce kind = !isinf(a->p) ? TS_REDUCE_SUM : a->p > 0 ? TS_REDUCE_MAX : TS_REDUCE_MIN;
    tsi_rules_reduction(rules, call->in[0].shape.ndim, tsi_reduce_mask(a), a->keepdim, kind);
}

const tsi_op_desc tsi_op_powsum = {
    .name = "powsum",
    .what = "the sum of |x|^p over dims (p infinite: the extreme of |x|)",
    TSI_OPERANDS(1, 1, 1),
    TSI_ATTRIBUTES(norm_table, tsi_reduce_attributes),
    .normalise = tsi_reduce_normalise,
    .infer = kind_infer,
    .rules = power_rules,
    .reference = kind_reference,
    .sample = tsi_sample_reduce,
    .family = &norm_kind,
    .flags = TSI_OP_NO_GRAD,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_tensor *reduce(const tsi_op_desc *op, ts_tensor *x, const int64_t *dims, int32_t count,
                         int keepdim)
{
    tsi_reduce_attributes a = { .keepdim = keepdim != 0 };
    if (count > TS_NDIM_MAX) count = TS_NDIM_MAX;
    a.dims.count = dims ? count : 0;
    for (int32_t i = 0; i < a.dims.count; i++)
        a.dims.value[i] = dims[i];
    return tsi_op_make(op, &x, 1, &a);
}

#define MAKER(name)                                                                                \
    ts_tensor *(ts_##name)(ts_tensor * x, const int64_t *dims, int32_t count, int keepdim)         \
    {                                                                                              \
        return reduce(&tsi_op_##name, x, dims, count, keepdim);                                    \
    }
MAKER(sum)
MAKER(mean)
MAKER(prod)
MAKER(amax)
MAKER(amin)
MAKER(any)
MAKER(all)
MAKER(count_nonzero)
