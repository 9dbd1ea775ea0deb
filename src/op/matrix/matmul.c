/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.c - matrix products: matmul, bmm, mm, mv, dot, linear, addmm and baddbmm, all as equations
 * (einsum.c has those that are given).
 *
 * Any dim may stay sharded: batch and free dims stay so in the result, a contracted dim gives a
 * partial sum, and one operand may itself be pending a sum or an average. A bias carries what is
 * pending in the result. n-dimensional inputs are not flattened, so a sequence dim may be sharded.
 * Gradients of linear's input are added to those that are there already by the product itself
 * (einsum_add), in place where nobody else sees them. */
#include <stdio.h>
#include <string.h>

#include "op/matrix/chunks.h"
#include "op/matrix/contract.h"

enum { EQUATION_MAX = 64 };
typedef struct equation_text {
    char text[EQUATION_MAX];
} equation_text;

/* ---- equations ------------------------------------------------------------------------------- */

static const char batch_letters[] = "ABCDEFGH";

/* The first `count` letters of a text, or all of it; a plan is made from these, so no printf. */
static char *append(char *at, const char *letters, int32_t count)
{
    for (; *letters && count-- != 0; letters++)
        *at++ = *letters;
    *at = '\0';
    return at;
}

enum { ALL = -1 };

/* a [.., m, k] by b [.., k, n], either of them a vector. */
static equation_text product_equation(int32_t a_ndim, int32_t b_ndim)
{
    int32_t a_batch = a_ndim > 2 ? a_ndim - 2 : 0, b_batch = b_ndim > 2 ? b_ndim - 2 : 0;
    int32_t batch = a_batch > b_batch ? a_batch : b_batch;
    equation_text e;
    char *at = append(e.text, batch_letters + batch - a_batch, a_batch);
    at = append(at, a_ndim == 1 ? "k," : "mk,", ALL);
    at = append(at, batch_letters + batch - b_batch, b_batch);
    at = append(at, b_ndim == 1 ? "k->" : "kn->", ALL);
    at = append(at, batch_letters, batch);
    at = append(at, a_ndim == 1 ? "" : "m", ALL);
    (void)append(at, b_ndim == 1 ? "" : "n", ALL);
    return e;
}

/* x [.., k] by w [n, k]. */
static equation_text linear_equation(int32_t x_ndim)
{
    int32_t batch = x_ndim > 1 ? x_ndim - 1 : 0;
    equation_text e;
    char *at = append(e.text, batch_letters, batch);
    at = append(at, "k,nk->", ALL);
    at = append(at, batch_letters, batch);
    (void)append(at, "n", ALL);
    return e;
}

typedef struct added_attributes { /* of addmm and baddbmm: beta bias + alpha a b */
    ts_number alpha, beta;
} added_attributes;
static const tsi_attribute added_table[] = { TSI_ATTR(added_attributes, alpha, NUMBER, "alpha",
                                                      "1"),
                                             TSI_ATTR(added_attributes, beta, NUMBER, "beta", "1"),
                                             { 0 } };
static const added_attributes plainly = { { .real = 1, .whole = 1 }, { .real = 1, .whole = 1 } };

static bool is_one(const ts_number *n)
{
    return n->real == 1 && n->imaginary == 0;
}

/* The products of an operator: which inputs are multiplied, which one is added, and how. */
typedef struct product_form {
    int32_t a, b, bias; /* places among the inputs; -1: none */
    int32_t kind;       /* 0 matmul, 1 linear, 2 by an equation */
} product_form;

static const product_form plain_form = { 0, 1, -1, 0 }, linear_form = { 0, 1, 2, 1 },
                          added_form = { 1, 2, 0, 0 }, onto_form = { 1, 2, 0, 2 };

typedef struct onto_attributes { /* of einsum_add */
    char equation[EQUATION_MAX];
} onto_attributes;
static const tsi_attribute onto_table[] = {
    TSI_ATTR(onto_attributes, equation, TEXT, "equation", NULL), { 0 }
};

static equation_text equation_of(const product_form *form, const ts_meta *in,
                                 const void *attributes)
{
    equation_text given = { "" };
    if (form->kind == 2) {
        memcpy(given.text, ((const onto_attributes *)attributes)->equation, sizeof given.text);
        return given;
    }
    if (form->kind == 0) return product_equation(in[form->a].shape.ndim, in[form->b].shape.ndim);
    return linear_equation(in[0].shape.ndim);
}

typedef struct product_attributes { /* of linear, matmul and mm */
    tsi_chunks chunks;
} product_attributes;
static const tsi_attribute product_table[] = { TSI_CHUNKS_ATTRIBUTES(product_attributes, chunks),
                                               { 0 } };
static const product_attributes product_default = { { .scatter = -1 } };

/* Of addmm and baddbmm; others add plainly. */
static const added_attributes *factors_of(const tsi_op_desc *op, const void *attributes)
{
    return op->attribute == added_table ? attributes : &plainly;
}

/* ---- inference ------------------------------------------------------------------------------- */

/* The factors first, the bias last: as contract.h wants them. */
static int32_t reorder(const product_form *form, const ts_meta *in, int32_t input_count,
                       ts_meta *out)
{
    int32_t count = 0;
    out[count++] = in[form->a];
    out[count++] = in[form->b];
    if (form->bias >= 0 && form->bias < input_count && in[form->bias].dtype != TS_DTYPE_NONE)
        out[count++] = in[form->bias];
    return count;
}

static ts_status check_dims(const tsi_op_call *call, const product_form *form)
{
    int32_t a = call->in[form->a].shape.ndim, b = call->in[form->b].shape.ndim;
    const char *name = call->op->name;
    int32_t want = strcmp(name, "mm") == 0 || strcmp(name, "addmm") == 0      ? 2
                   : strcmp(name, "bmm") == 0 || strcmp(name, "baddbmm") == 0 ? 3
                   : strcmp(name, "dot") == 0                                 ? 1
                                                                              : 0;
    if (want && (a != want || b != want))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: takes inputs of %d dims, given are %d and %d", name,
                        want, a, b);
    if (a < 1 || b < 1)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: a scalar has no dim to multiply over", name);
    if (form->kind == 1 && b != 2)
        return TSI_FAIL(TS_ERR_SHAPE, "linear: the weight has %d dims, not 2", b);
    return TS_OK;
}

/* What is summed has one extent: an extent of 1 broadcasts in einsum, but not in a product. */
static ts_status check_summed(const char *name, const char *text, const ts_meta *in)
{
    const char *comma = strchr(text, ','), *arrow = strstr(text, "->");
    for (const char *a = text; a < comma; a++) {
        const char *b = memchr(comma + 1, *a, (size_t)(arrow - comma - 1));
        if (!b || strchr(arrow + 2, *a)) continue;
        int64_t left = in[0].shape.extent[a - text], right = in[1].shape.extent[b - comma - 1];
        if (left != right)
            return TSI_FAIL(TS_ERR_SHAPE,
                            "%s: dim '%c' is %lld in one place and %lld in another "
                            "(\"%s\")",
                            name, *a, (long long)left, (long long)right, text);
    }
    return TS_OK;
}

/* Factors that the dtype of the result cannot hold would change it. */
static ts_status check_factor(const tsi_op_call *call, const ts_number *factor, ts_dtype dtype)
{
    tsi_category kind = tsi_dtype_category(dtype);
    bool holds =
        factor->kind == TS_NUMBER_INT ||
        kind >= (factor->kind == TS_NUMBER_REAL ? TSI_CATEGORY_REAL : TSI_CATEGORY_COMPLEX);
    if (holds) return TS_OK;
    return TSI_FAIL(TS_ERR_DTYPE, "%s: a factor of %g%s does not fit %s", call->op->name,
                    factor->real, factor->kind == TS_NUMBER_COMPLEX ? " and an imaginary part" : "",
                    ts_dtype_name(dtype));
}

static ts_status product_infer(const tsi_op_call *call)
{
    const product_form *form = call->op->family;
    const added_attributes *factors = factors_of(call->op, call->attributes);
    TSI_TRY(check_dims(call, form));
    ts_meta in[3];
    int32_t count = reorder(form, call->in, call->input_count, in);
    equation_text e = equation_of(form, call->in, call->attributes);
    ts_shape shape;
    TSI_TRY(tsi_equation_infer(call->op->name, e.text, in, 2, &shape));
    TSI_TRY(check_summed(call->op->name, e.text, in));
    ts_dtype dtype = (ts_dtype)in[0].dtype;
    for (int32_t i = 1; i < count; i++)
        dtype = tsi_dtype_promote(dtype, (ts_dtype)in[i].dtype);
    TSI_TRY(check_factor(call, &factors->alpha, dtype));
    TSI_TRY(check_factor(call, &factors->beta, dtype));
    call->out[0] = (ts_meta){ .shape = shape, .dtype = (int32_t)dtype };
    TSI_TRY(tsi_chunks_check(call));
    if (count < 3) return TS_OK;
    for (int32_t d = 0; d < in[2].shape.ndim; d++) {
        int32_t place = d + shape.ndim - in[2].shape.ndim;
        int64_t have = in[2].shape.extent[d];
        if (place < 0 || (have != 1 && have != shape.extent[place]))
            return TSI_FAIL(
                TS_ERR_SHAPE, "%s: the bias does not broadcast to the result: %lld against %lld",
                call->op->name, (long long)have, place < 0 ? 0LL : (long long)shape.extent[place]);
    }
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void product_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const product_form *form = call->op->family;
    ts_meta in[3];
    int32_t count = reorder(form, call->in, call->input_count, in);
    tsi_rules own;
    tsi_rules_begin(&own, count, 1, 0, rules->arena);
    equation_text e = equation_of(form, call->in, call->attributes);
    tsi_equation_rules(&own, e.text, 2, in, call->out);
    double beta = factors_of(call->op, call->attributes)->beta.real;
    for (int32_t r = 1; r < own.count; r++) { /* back to the operator's order of inputs */
        const tsi_role *from = tsi_rules_row(&own, r);
        bool extreme =
            count > 2 && (from[2] == TSI_P(TS_REDUCE_MIN) || from[2] == TSI_P(TS_REDUCE_MAX));
        if (extreme && beta == 0) continue; /* the order is lost */
        tsi_role *row = tsi_rules_add(rules);
        row[form->a] = from[0];
        row[form->b] = from[1];
        if (count > 2) row[form->bias] = from[2];
        row[call->input_count] = from[count];
        if (extreme && beta < 0) /* turned round */
            row[call->input_count] =
                TSI_P(from[2] == TSI_P(TS_REDUCE_MIN) ? TS_REDUCE_MAX : TS_REDUCE_MIN);
    }
    tsi_chunks_rules(call, rules);
}

/* Rows of the first factor, which has them in the result's dims: all before its last one, if the
 * other is one matrix and nothing has rows that is added. */
static uint64_t product_rows(const tsi_op_call *call, int32_t dim)
{
    const ts_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    return call->input_count >= 2 && b->ndim == 2 && a->ndim >= 2 && dim < a->ndim - 1;
}

static const tsi_chunks_desc product_chunks = { offsetof(product_attributes, chunks),
                                                product_rows };

/* ---- the kernel ------------------------------------------------------------------------------ */

/* The bias into the result first; the product is added to it. */
static ts_status copy_bias(const tsi_kernel_io *io, const tsi_block *bias)
{
    tsi_block wide = *bias;
    const tsi_block *out = &io->out[0].block;
    tsi_broadcast_strides(bias, out->ndim, out->extent, wide.stride);
    wide.ndim = out->ndim;
    memcpy(wide.extent, out->extent, sizeof wide.extent);
    return io->device->copy(io->device, out, &wide, NULL);
}

/* out = alpha out + beta bias; a beta of zero leaves the bias out, whatever it holds. */
static void blend_bias(const tsi_block *out, const tsi_block *bias, const added_attributes *a)
{
    int64_t stride[TS_NDIM_MAX] = { 0 };
    tsi_broadcast_strides(bias, out->ndim, out->extent, stride);
    tsi_loop loop = TSI_LOOP(out, out->stride, stride);
    ts_dtype x = (ts_dtype)out->dtype, y = (ts_dtype)bias->dtype;
    bool whole = tsi_dtype_category(x) <= TSI_CATEGORY_INT;
    double complex alpha = tsi_number_both(a->alpha), beta = tsi_number_both(a->beta);
    bool takes = beta != 0.0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        void *to = tsi_block_at(out, loop.at[0]);
        const void *from = tsi_block_at(bias, loop.at[1]);
        if (whole) {
            uint64_t sum = (uint64_t)a->alpha.whole * (uint64_t)tsi_load_int(x, to);
            if (takes) sum += (uint64_t)a->beta.whole * (uint64_t)tsi_load_int(y, from);
            tsi_store_int(x, to, (int64_t)sum);
        } else {
            double complex sum = alpha * tsi_load_complex(x, to);
            if (takes) sum += beta * tsi_load_complex(y, from);
            tsi_store_complex(x, to, sum);
        }
    }
}

ts_status tsi_product_by(const tsi_kernel_io *io, tsi_contract_fn contract, tsi_blend_fn blend)
{
    const product_form *form = io->op->family;
    ts_meta in[3];
    for (int32_t i = 0; i < io->input_count && i < 3; i++)
        in[i] = *io->in[i].global;
    equation_text e = equation_of(form, in, io->attributes);
    tsi_contraction problem;
    tsi_contraction_make(e.text, &io->in[form->a].block, &io->in[form->b].block, &io->out[0].block,
                         &problem);
    bool biased = form->bias >= 0 && form->bias < io->input_count &&
                  io->in[form->bias].block.dtype != TS_DTYPE_NONE;
    const added_attributes *a = factors_of(io->op, io->attributes);
    if (!is_one(&a->alpha) || !is_one(&a->beta)) {
        TSI_TRY(contract(&problem, false));
        const tsi_block *bias = &io->in[form->bias].block;
        bool real = tsi_dtype_category((ts_dtype)bias->dtype) == TSI_CATEGORY_REAL &&
                    tsi_dtype_category((ts_dtype)io->out[0].block.dtype) == TSI_CATEGORY_REAL;
        if (tsi_dry(io->rank)) return TS_OK;
        if (blend && real)
            blend(io, bias, a->alpha.real, a->beta.real);
        else
            blend_bias(&io->out[0].block, bias, a);
        return TS_OK;
    }
    bool there = io->in_place && form->bias == 0; /* the bias is the result's own block */
    if (biased && !there) TSI_TRY(copy_bias(io, &io->in[form->bias].block));
    return contract(&problem, biased);
}

static ts_status product_reference(const tsi_kernel_io *io)
{
    return tsi_product_by(io, tsi_contract_reference, NULL);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* d of one factor: the equation with that factor and the result swapped. `wide`: the factor is a
 * rounded one, and the gradient of what it was rounded from is wanted. */
static ts_tensor *factor_grad(const char *equation, ts_tensor *dy, ts_tensor *other, bool first,
                              bool wide, int64_t scatter)
{
    const char *comma = strchr(equation, ','), *arrow = strstr(equation, "->");
    int32_t a = (int32_t)(comma - equation), b = (int32_t)(arrow - comma) - 1;
    char text[TSI_ATTRIBUTE_TEXT];
    if (first)
        snprintf(text, sizeof text, "%s,%.*s->%.*s", arrow + 2, b, comma + 1, a, equation);
    else
        snprintf(text, sizeof text, "%.*s,%s->%.*s", a, equation, arrow + 2, b, comma + 1);
    ts_tensor *left = first ? dy : other, *right = first ? other : dy;
    return tsi_einsum_said(text, left, right, wide, scatter);
}

ts_tensor *tsi_einsum_onto(ts_tensor *onto, const char *equation, ts_tensor *a, ts_tensor *b)
{
    onto_attributes attributes = { "" };
    snprintf(attributes.equation, sizeof attributes.equation, "%s", equation);
    ts_tensor *in[] = { onto, a, b };
    return tsi_op_make_over(&tsi_op_einsum_add, in, 3, &attributes);
}

/* The gradient of linear's x with what is there already; NULL: to be made and added as usual. */
static ts_tensor *linear_grad_onto(const tsi_grad_io *io, const char *equation)
{
    ts_tensor *onto = io->in_sum[0], *dy = io->out_grad[0];
    if (!onto || tsi_grad_is_wide(io, 0) || onto->dtype != io->in_meta[0].dtype ||
        onto->dtype != dy->dtype || tsi_tensor_ready(onto) != TS_OK || onto->layout->axes_partial ||
        onto->mesh != dy->mesh)
        return NULL;
    char text[EQUATION_MAX];
    const char *comma = strchr(equation, ','), *arrow = strstr(equation, "->");
    snprintf(text, sizeof text, "%s,%.*s->%.*s", arrow + 2, (int)(arrow - comma) - 1, comma + 1,
             (int)(comma - equation), equation);
    return tsi_einsum_onto(onto, text, dy, io->in[1]);
}

/* By the conjugate: of gradients. */
static ts_tensor *scaled(ts_tensor *x, ts_number factor)
{
    factor.imaginary = -factor.imaginary;
    return is_one(&factor) ? x : tsi_op_make(&tsi_op_mul_scalar, &x, 1, &factor);
}

/* The gradient of one factor in its shape, and in its dtype unless it is as welcome in f32. */
static ts_tensor *grad_of(const tsi_grad_io *io, const char *equation, bool first, ts_number alpha)
{
    const product_form *form = io->op->family;
    int32_t own = first ? form->a : form->b, other = first ? form->b : form->a;
    bool wide = tsi_grad_is_wide(io, own);
    ts_meta meta = io->in_meta[own];
    if (wide && (meta.dtype == TS_DTYPE_BF16 || meta.dtype == TS_DTYPE_F16))
        meta.dtype = TS_DTYPE_F32;
    /* Of linear, x comes back as it is cut. */
    int64_t scatter =
        first && form == &linear_form ? tsi_chunks_back(io->in[own], io->out_grad[0]) : -1;
    ts_tensor *grad = factor_grad(equation, io->out_grad[0], io->in[other], first, wide, scatter);
    return tsi_grad_unbroadcast(scaled(grad, alpha), &meta);
}

/* The gradient of rows that were scattered, whole again: both factors' gradients want all of them,
 * and it is gathered once. */
static ts_tensor *gathered_back(const tsi_grad_io *io, int64_t dim)
{
    ts_tensor *dy = io->out_grad[0];
    const ts_layout *x = io->in[0] ? io->in[0]->layout : NULL;
    const ts_sharding *s = dy->layout->sharding;
    if (dim < 0 || !x || (io->needs & 3) != 3 || x->sharding->mesh != s->mesh) return dy;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < s->ndim; k++) {
        const ts_placement *own = &x->sharding->place[k];
        place[k] = s->place[k];
        bool scattered = tsi_placement_cuts(&place[k]) && place[k].dim == dim;
        if (scattered && tsi_placement_cuts(own) && own->dim_last == x->shape.ndim - 1)
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(s->mesh, place);
    ts_tensor *whole = to ? (ts_redistribute_to)(dy, to) : NULL;
    ts_sharding_release(to);
    return whole;
}

static ts_status product_grad(const tsi_grad_io *given)
{
    tsi_grad_io once = *given;
    const tsi_grad_io *io = &once;
    const tsi_op_desc *op = io->op;
    const product_form *form = op->family;
    const added_attributes *f = factors_of(op, io->attributes);
    equation_text e = equation_of(form, io->in_meta, io->attributes);
    ts_tensor *dy = io->out_grad[0], *whole = NULL;
    if (form == &linear_form)
        dy = gathered_back(io, ((const product_attributes *)io->attributes)->chunks.scatter);
    if (!dy) return ts_rank_status(io->rank);
    once.out_grad = &dy;
    if (form == &linear_form && io->needs & 1) whole = linear_grad_onto(io, e.text);
    if (whole) {
        io->in_grad[0] = whole;
        *io->included |= 1;
    } else if (io->needs >> form->a & 1) {
        io->in_grad[form->a] = grad_of(io, e.text, true, f->alpha);
    }
    if (io->needs >> form->b & 1) io->in_grad[form->b] = grad_of(io, e.text, false, f->alpha);
    if (form->bias >= 0 && io->needs >> form->bias & 1)
        io->in_grad[form->bias] =
            tsi_grad_unbroadcast(scaled(dy, f->beta), &io->in_meta[form->bias]);
    return ts_rank_status(io->rank);
}

/* ---- samples --------------------------------------------------------------------------------- */

static void meta_set(ts_meta *meta, int32_t ndim, const int64_t *extent)
{
    *meta = (ts_meta){ .shape = { .ndim = ndim }, .dtype = TS_DTYPE_F64 };
    memcpy(meta->shape.extent, extent, (size_t)ndim * sizeof *extent);
}

static bool sample_matmul(tsi_sample *s)
{
    *(product_attributes *)s->attributes = product_default;
    static const int64_t shape[][2][4] = { { { 5, 4 }, { 4, 3 } },
                                           { { 2, 5, 4 }, { 2, 4, 3 } },
                                           { { 3, 5, 4 }, { 4, 2 } },
                                           { { 4 }, { 4, 3 } },
                                           { { 5, 4 }, { 4 } } };
    static const int32_t ndim[][2] = { { 2, 2 }, { 3, 3 }, { 3, 2 }, { 1, 2 }, { 2, 1 } };
    s->count = 2;
    for (int k = 0; k < 2; k++)
        meta_set(&s->in[k], ndim[s->variant % 5][k], shape[s->variant % 5][k]);
    return s->variant < 5;
}

static bool sample_fixed(const tsi_op_desc *op, tsi_sample *s)
{
    static const int64_t mm[2][2] = { { 5, 4 }, { 4, 3 } },
                         bmm[2][3] = { { 3, 5, 4 }, { 3, 4, 2 } };
    bool batched = op->name[0] == 'b';
    const product_form *form = op->family;
    meta_set(&s->in[form->a], batched ? 3 : 2, batched ? bmm[0] : mm[0]);
    meta_set(&s->in[form->b], batched ? 3 : 2, batched ? bmm[1] : mm[1]);
    s->count = form->bias >= 0 ? 3 : 2;
    const int64_t row[2] = { s->variant == 1 ? 1 : batched ? 2 : 3, 0 };
    if (form->bias >= 0) meta_set(&s->in[form->bias], 1, row);
    return s->variant < (form->bias >= 0 ? 3 : 1);
}

static bool sample_mm(tsi_sample *s)
{
    *(product_attributes *)s->attributes = product_default;
    return sample_fixed(&tsi_op_mm, s);
}

static bool sample_bmm(tsi_sample *s)
{
    return sample_fixed(&tsi_op_bmm, s);
}

static void sample_factors(int32_t variant, added_attributes *out)
{
    *out = variant == 2 ? (added_attributes){ tsi_number_real(0.5), tsi_number_real(-2) } : plainly;
}

static bool sample_addmm(tsi_sample *s)
{
    sample_factors(s->variant, s->attributes);
    return sample_fixed(&tsi_op_addmm, s);
}

static bool sample_baddbmm(tsi_sample *s)
{
    sample_factors(s->variant, s->attributes);
    return sample_fixed(&tsi_op_baddbmm, s);
}

static bool sample_dot(tsi_sample *s)
{
    const int64_t n[] = { s->variant == 0 ? 5 : 4 };
    s->count = 2;
    meta_set(&s->in[0], 1, n);
    meta_set(&s->in[1], 1, n);
    return s->variant < 2;
}

static bool sample_mv(tsi_sample *s)
{
    static const int64_t m[] = { 5, 4 }, v[] = { 4 };
    s->count = 2;
    meta_set(&s->in[0], 2, m);
    meta_set(&s->in[1], 1, v);
    return s->variant < 1;
}

static bool sample_linear(tsi_sample *s)
{
    *(product_attributes *)s->attributes = product_default;
    static const int64_t x[] = { 2, 5, 4 }, w[] = { 3, 4 }, b[] = { 3 };
    s->count = s->variant == 0 ? 2 : 3;
    meta_set(&s->in[0], s->variant == 2 ? 2 : 3, s->variant == 2 ? x + 1 : x);
    meta_set(&s->in[1], 2, w);
    if (s->variant > 0) meta_set(&s->in[2], 1, b);
    return s->variant < 3;
}

static bool sample_onto(tsi_sample *s)
{
    static const int64_t c[] = { 2, 5, 4 }, dy[] = { 2, 5, 3 }, w[] = { 3, 4 };
    s->count = 3;
    meta_set(&s->in[0], s->variant == 1 ? 2 : 3, s->variant == 1 ? c + 1 : c);
    meta_set(&s->in[1], s->variant == 1 ? 2 : 3, s->variant == 1 ? dy + 1 : dy);
    meta_set(&s->in[2], 2, w);
    snprintf(((onto_attributes *)s->attributes)->equation, EQUATION_MAX, "%s",
             s->variant == 1 ? "An,nk->Ak" : "ABn,nk->ABk");
    return s->variant < 2;
}

/* Letters and one "->" alone: the dots of einsum are spelled out by whoever calls. */
static ts_status onto_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)in;
    (void)count;
    const onto_attributes *a = attributes;
    const char *comma = strchr(a->equation, ','), *arrow = strstr(a->equation, "->");
    if (comma && arrow && comma < arrow && !strchr(comma + 1, ',') && !strchr(a->equation, '.') &&
        !strchr(a->equation, ' '))
        return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "%s: \"%s\" is no equation of two factors in plain letters",
                    op->name, a->equation);
}

/* Every element of the result is a sum over the last dim of the first factor. */
static double product_flops(const tsi_op_call *call)
{
    const product_form *form = call->op->family;
    const ts_shape *a = &call->in[form->a].shape;
    double length = a->ndim > 0 ? (double)a->extent[a->ndim - 1] : 1.0;
    return 2.0 * length * (double)ts_shape_count(&call->out[0].shape);
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define PRODUCT                                                                                    \
    .output_count = 1, .infer = product_infer, .rules = product_rules,                             \
    .reference = product_reference, .grad = product_grad, .flops = product_flops
#define CHUNKS                                                                                     \
    .attribute = product_table, .attribute_bytes = sizeof(product_attributes),                     \
    .algorithm = tsi_chunks_algorithms, .pick = tsi_chunks_pick, .fuse = tsi_chunks_fuse,          \
    .arrives = tsi_chunks_arrive, .chunks = &product_chunks
#define TWO .input_min = 2, .input_max = 2, .saves = 3
#define THREE .input_min = 3, .input_max = 3, .saves = 6

const tsi_op_desc tsi_op_matmul = {
    .name = "matmul",
    .what = "matrix product over the last two dims, batch dims broadcast",
    PRODUCT,
    CHUNKS,
    TWO,
    .family = &plain_form,
    .sample = sample_matmul,
};
const tsi_op_desc tsi_op_mm = {
    .name = "mm",
    .what = "matrix product of two matrices",
    PRODUCT,
    CHUNKS,
    TWO,
    .family = &plain_form,
    .sample = sample_mm,
};
const tsi_op_desc tsi_op_bmm = {
    .name = "bmm",
    .what = "matrix products of two batches",
    PRODUCT,
    TWO,
    .family = &plain_form,
    .sample = sample_bmm,
};
const tsi_op_desc tsi_op_mv = {
    .name = "mv",
    .what = "matrix times vector",
    PRODUCT,
    TWO,
    .family = &plain_form,
    .sample = sample_mv,
};
const tsi_op_desc tsi_op_dot = {
    .name = "dot",
    .what = "inner product of two vectors",
    PRODUCT,
    TWO,
    .family = &plain_form,
    .sample = sample_dot,
};
const tsi_op_desc tsi_op_linear = {
    .name = "linear",
    .what = "x w^T + bias, for x of any number of dims",
    .flags = TSI_OP_WRAPS,
    PRODUCT,
    CHUNKS,
    .input_min = 2,
    .input_max = 3,
    .saves = 3,
    .family = &linear_form,
    .sample = sample_linear,
};
const tsi_op_desc tsi_op_addmm = {
    .name = "addmm",
    .what = "beta bias + alpha a b",
    .flags = TSI_OP_WRAPS,
    PRODUCT,
    THREE,
    TSI_ATTRIBUTES(added_table, added_attributes),
    .family = &added_form,
    .sample = sample_addmm,
};
const tsi_op_desc tsi_op_baddbmm = {
    .name = "baddbmm",
    .what = "beta bias + alpha a b, batched",
    .flags = TSI_OP_WRAPS,
    PRODUCT,
    THREE,
    TSI_ATTRIBUTES(added_table, added_attributes),
    .family = &added_form,
    .sample = sample_baddbmm,
};
const tsi_op_desc tsi_op_einsum_add = {
    .name = "einsum_add",
    .what = "c + the sum of products of two by an equation of plain letters",
    .flags = TSI_OP_WRAPS | TSI_OP_IN_PLACE,
    PRODUCT,
    THREE,
    TSI_ATTRIBUTES(onto_table, onto_attributes),
    .normalise = onto_normalise,
    .family = &onto_form,
    .sample = sample_onto,
};

/* ---- the makers ------------------------------------------------------------------------------ */

static ts_tensor *product(const tsi_op_desc *op, ts_tensor *const *in, int32_t count)
{
    product_attributes attributes = { tsi_chunks_wanted(in[0]) };
    return tsi_op_make(op, in, count, &attributes);
}

ts_tensor *(ts_matmul)(ts_tensor *a, ts_tensor *b)
{
    return product(&tsi_op_matmul, (ts_tensor *[]){ a, b }, 2);
}

ts_status tsi_mm_into(ts_tensor *a, ts_tensor *b, ts_tensor *out)
{
    ts_tensor *in[] = { a, b };
    tsi_op_args args = { &tsi_op_mm, in, 2, 0, &product_default };
    return tsi_op_run_into(&args, &out);
}

ts_tensor *(ts_mm)(ts_tensor *a, ts_tensor *b)
{
    return product(&tsi_op_mm, (ts_tensor *[]){ a, b }, 2);
}

TSI_MAKER2(bmm)
TSI_MAKER2(mv)
TSI_MAKER2(dot)

ts_tensor *(ts_linear)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias)
{
    return product(&tsi_op_linear, (ts_tensor *[]){ x, weight, bias }, bias ? 3 : 2);
}

/* The bias is added to the sum, once. */
ts_tensor *(ts_linear_scatter)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias, int32_t dim)
{
    product_attributes attributes = { tsi_chunks_wanted(x) };
    attributes.chunks.scatter = dim;
    ts_tensor *y = tsi_op_make(&tsi_op_linear, (ts_tensor *[]){ x, weight }, 2, &attributes);
    return y && bias ? (ts_add)(y, bias) : y;
}

ts_tensor *tsi_addmm(ts_tensor *added, ts_tensor *a, ts_tensor *b, double alpha, double beta)
{
    ts_tensor *in[] = { added, a, b };
    const added_attributes factors = { tsi_number_real(alpha), tsi_number_real(beta) };
    return tsi_op_make(&tsi_op_addmm, in, 3, &factors);
}

ts_tensor *(ts_addmm)(ts_tensor *bias, ts_tensor *a, ts_tensor *b)
{
    ts_tensor *in[] = { bias, a, b };
    return tsi_op_make(&tsi_op_addmm, in, 3, &plainly);
}

ts_tensor *(ts_baddbmm)(ts_tensor *bias, ts_tensor *a, ts_tensor *b)
{
    ts_tensor *in[] = { bias, a, b };
    return tsi_op_make(&tsi_op_baddbmm, in, 3, &plainly);
}
