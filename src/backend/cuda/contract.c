/* SPDX-License-Identifier: Apache-2.0 */
/* contract.c - linear, lists of it, matmul and einsum of two factors as matrix products.
 *
 *   letters of a, b and c      batch: a loop over products, its last letter inside the library
 *   letters of a and c         m      letters of b and c      n      letters of a and b      k
 *
 * Letters of one kind that lie in each other's strides are one; what is left beyond one m and one n
 * joins the loop. A factor of another dtype, or one that is no matrix, is copied once. */
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/product.h"
#include "base/error.h"
#include "op/matrix/letters.h"
#include "op/matrix/linear_list.h"

enum { A, B, C, OPERANDS };
enum { BATCH = TSI_LETTERS_BATCH, M = TSI_LETTERS_M, N = TSI_LETTERS_N, K = TSI_LETTERS_K };

typedef struct contraction {
    tsi_letters kind[TSI_LETTERS_KINDS];
    tsi_block block[OPERANDS];
    CUdeviceptr scratch[OPERANDS];
    int32_t dtype; /* of the factors as they are multiplied */
    bool fits;
    const void *bias; /* added to the columns by the product; NULL: none */
    const void *onto; /* what a sum begins with, lying as C does; NULL: what C holds */
    double alpha, beta;
} contraction;

/* A letter by its dim in each operand, -1 where it is not. */
static void put_letter(contraction *x, const int32_t *dim)
{
    int64_t extent = 1, stride[OPERANDS] = { 0 };
    for (int k = 0; k < OPERANDS; k++)
        if (dim[k] >= 0 && x->block[k].extent[dim[k]] != 1) extent = x->block[k].extent[dim[k]];
    for (int k = 0; k < OPERANDS; k++) {
        if (dim[k] < 0 || extent == 1) continue;
        bool single = x->block[k].extent[dim[k]] == 1;
        if (x->block[k].extent[dim[k]] != extent && (!single || k == C)) x->fits = false;
        stride[k] = single ? 0 : x->block[k].stride[dim[k]];
    }
    if (extent == 1) return;
    bool a = stride[A] != 0, b = stride[B] != 0, c = dim[C] >= 0;
    if (!c && !(a && b)) x->fits = false;
    if (c && !a && !b) x->fits = false;
    int kind = !c ? K : a == b ? BATCH : a ? M : N;
    if (x->kind[kind].count < TSI_LETTERS_MAX / 2)
        tsi_letters_add(&x->kind[kind], extent, stride);
    else
        x->fits = false;
}

static void merge_all(contraction *x)
{
    tsi_letters_merge(&x->kind[BATCH], C);
    tsi_letters_merge(&x->kind[M], C);
    tsi_letters_merge(&x->kind[N], C);
    tsi_letters_merge(&x->kind[K], A);
}

/* ---- dense factors --------------------------------------------------------------------------- */

/* The factor in the order batch, m or n, k, in the dtype of products. */
static ts_status make_dense(tsi_stream *stream, contraction *x, int operand)
{
    const int order[3] = { BATCH, operand == A ? M : N, K };
    tsi_block from = { .data = x->block[operand].data, .dtype = x->block[operand].dtype };
    tsi_block to = { .dtype = x->dtype };
    int64_t count = 1;
    for (int g = 0; g < 3; g++)
        for (int32_t i = 0; i < x->kind[order[g]].count; i++)
            from.ndim += x->kind[order[g]].stride[operand][i] != 0;
    if (from.ndim > TS_NDIM_MAX) return (ts_status)TSI_KERNEL_DECLINED;
    for (int32_t g = 2, d = from.ndim; g >= 0; g--) {
        tsi_letters *l = &x->kind[order[g]];
        for (int32_t i = l->count - 1; i >= 0; i--) {
            if (l->stride[operand][i] == 0) continue;
            from.extent[--d] = l->extent[i];
            from.stride[d] = l->stride[operand][i];
            to.stride[d] = l->stride[operand][i] = count;
            count *= l->extent[i];
        }
    }
    to.ndim = from.ndim;
    memcpy(to.extent, from.extent, sizeof to.extent);
    size_t bytes = (size_t)count * ts_dtype_size((ts_dtype)to.dtype);
    TSI_TRY(tsi_cuda_memory(stream, "a dense factor", bytes, &x->scratch[operand]));
    to.data = (void *)(uintptr_t)x->scratch[operand];
    x->block[operand].data = to.data;
    x->block[operand].dtype = to.dtype;
    return tsi_cuda_copy(&stream->cuda->device, &to, &from, stream);
}

/* ---- running --------------------------------------------------------------------------------- */

static int64_t extent_of(const contraction *x, int kind)
{
    return tsi_letters_extent(&x->kind[kind]);
}

static int64_t stride_of(const contraction *x, int kind, int operand)
{
    return tsi_letters_stride(&x->kind[kind], operand);
}

static tsi_cuda_product product_of(const contraction *x, bool accumulate)
{
    return (tsi_cuda_product){ .a = x->block[A].data,
                               .b = x->block[B].data,
                               .c = x->block[C].data,
                               .m = extent_of(x, M),
                               .n = extent_of(x, N),
                               .k = extent_of(x, K),
                               .am = stride_of(x, M, A),
                               .ak = stride_of(x, K, A),
                               .bk = stride_of(x, K, B),
                               .bn = stride_of(x, N, B),
                               .cm = stride_of(x, M, C),
                               .cn = stride_of(x, N, C),
                               .batch = 1,
                               .dtype = x->dtype,
                               .c_dtype = x->block[C].dtype,
                               .accumulate = accumulate,
                               .alpha = x->alpha,
                               .beta = x->beta,
                               .bias = x->bias,
                               .onto = x->onto };
}

/* The last batch letter goes into the library, the others are a loop. */
static ts_status run_batches(tsi_stream *stream, const contraction *x, tsi_cuda_product p)
{
    const tsi_letters *l = &x->kind[BATCH];
    int64_t loops = 1, size = (int64_t)ts_dtype_size((ts_dtype)p.dtype);
    int64_t c_size = (int64_t)ts_dtype_size((ts_dtype)p.c_dtype);
    if (l->count > 0) {
        p.batch = l->extent[l->count - 1];
        p.a_step = l->stride[A][l->count - 1];
        p.b_step = l->stride[B][l->count - 1];
        p.c_step = l->stride[C][l->count - 1];
    }
    for (int32_t i = 0; i + 1 < l->count; i++)
        loops *= l->extent[i];
    ts_status status = TS_OK;
    for (int64_t loop = 0; loop < loops && status == TS_OK; loop++) {
        int64_t rest = loop, at[OPERANDS] = { 0 };
        for (int32_t i = l->count - 2; i >= 0; i--) {
            for (int k = 0; k < OPERANDS; k++)
                at[k] += rest % l->extent[i] * l->stride[k][i];
            rest /= l->extent[i];
        }
        tsi_cuda_product q = p;
        q.a = (const char *)p.a + at[A] * size;
        q.b = (const char *)p.b + at[B] * size;
        q.c = (char *)p.c + at[C] * c_size;
        if (p.onto) q.onto = (const char *)p.onto + at[C] * c_size;
        status = tsi_cuda_product_run(stream, &q);
    }
    return status;
}

static ts_status settle(tsi_stream *stream, contraction *x)
{
    tsi_cuda_product p;
    for (int k = A; k <= B; k++) {
        p = product_of(x, false);
        bool fits = k == A ? tsi_cuda_product_fits_a(&p) : tsi_cuda_product_fits_b(&p);
        if (fits && x->kind[K].count < 2 && x->block[k].dtype == x->dtype) continue;
        TSI_TRY(make_dense(stream, x, k));
    }
    return TS_OK;
}

static ts_status contract(const tsi_kernel_io *io, contraction *x, bool accumulate)
{
    tsi_stream *stream = io->queue;
    merge_all(x);
    bool fits = x->fits && stream && tsi_cuda_is_real(x->block[A].dtype) &&
                tsi_cuda_is_real(x->block[B].dtype) && tsi_cuda_is_real(x->block[C].dtype);
    if (!fits) return (ts_status)TSI_KERNEL_DECLINED;
    bool alike = x->block[A].dtype == x->block[B].dtype;
    x->dtype = alike && tsi_cuda_product_takes(x->block[A].dtype, x->block[C].dtype)
                   ? x->block[A].dtype
                   : x->block[C].dtype;
    tsi_letters_keep_longest(x->kind, M);
    tsi_letters_keep_longest(x->kind, N);
    tsi_cuda_product p = product_of(x, accumulate);
    if (!tsi_cuda_product_fits_c(&p)) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    ts_status status = settle(stream, x);
    tsi_letters_merge(&x->kind[K], A);
    if (status == TS_OK && x->kind[K].count > 1) status = (ts_status)TSI_KERNEL_DECLINED;
    if (status == TS_OK) status = run_batches(stream, x, product_of(x, accumulate));
    for (int k = A; k <= B; k++)
        if (x->scratch[k]) (void)tsi_cu.free_async(x->scratch[k], tsi_cuda_apart(stream));
    return status;
}

static bool is_empty(const contraction *x)
{
    return tsi_block_count(&x->block[A]) == 0 || tsi_block_count(&x->block[B]) == 0 ||
           tsi_block_count(&x->block[C]) == 0;
}

static void begin(contraction *x, const tsi_block *a, const tsi_block *b, const tsi_block *c)
{
    *x = (contraction){ .block = { *a, *b, *c }, .fits = true, .alpha = 1, .beta = 1 };
}

/* Whether the product itself can add the bias: a dense result, whose last dim is its columns. */
static bool is_plain_bias(const tsi_kernel_io *io, const tsi_block *bias)
{
    const tsi_block *out = &io->out[0].block;
    return bias->dtype == out->dtype && bias->ndim == 1 && bias->stride[0] == 1 &&
           (uintptr_t)bias->data % 16 == 0 && tsi_block_is_dense(out) &&
           out->dtype != TS_DTYPE_F64 && out->extent[out->ndim - 1] > 1;
}

/* The bias into the result first; the product is added to it. */
static ts_status copy_bias(const tsi_kernel_io *io, const tsi_block *bias)
{
    const tsi_block *out = &io->out[0].block;
    tsi_block wide = *out;
    wide.data = bias->data;
    wide.dtype = bias->dtype;
    for (int32_t d = 0; d < out->ndim; d++) {
        int32_t from = d - (out->ndim - bias->ndim);
        wide.stride[d] = from < 0 || bias->extent[from] == 1 ? 0 : bias->stride[from];
    }
    return tsi_cuda_copy(io->device, out, &wide, io->queue);
}

/* What the product is added to: read where it lies if it lies as the result does, else copied
 * there first. */
static ts_status lay_under(const tsi_kernel_io *io, const tsi_block *bias, contraction *x)
{
    const tsi_block *out = &io->out[0].block;
    bool alike = bias->dtype == out->dtype && bias->ndim == out->ndim;
    for (int32_t d = 0; alike && d < out->ndim; d++)
        alike = bias->extent[d] == out->extent[d] &&
                (out->extent[d] == 1 || bias->stride[d] == out->stride[d]);
    if (!alike) return copy_bias(io, bias);
    x->onto = bias->data;
    return TS_OK;
}

ts_status tsi_cuda_linear(const tsi_kernel_io *io)
{
    contraction x;
    begin(&x, &io->in[0].block, &io->in[1].block, &io->out[0].block);
    int32_t last = x.block[A].ndim - 1;
    bool biased = io->input_count > 2 && io->in[2].block.dtype != TS_DTYPE_NONE;
    if (last < 0 || x.block[B].ndim != 2 || is_empty(&x)) return (ts_status)TSI_KERNEL_DECLINED;
    for (int32_t d = 0; d < last; d++)
        put_letter(&x, (int32_t[]){ d, -1, d });
    put_letter(&x, (int32_t[]){ last, 1, -1 });
    put_letter(&x, (int32_t[]){ -1, 0, last });
    if (!biased) return contract(io, &x, false);
    if (is_plain_bias(io, &io->in[2].block)) {
        contraction y = x;
        y.bias = io->in[2].block.data;
        ts_status status = contract(io, &y, false);
        if ((int)status != TSI_KERNEL_DECLINED) return status;
    }
    TSI_TRY(lay_under(io, &io->in[2].block, &x));
    return contract(io, &x, true);
}

/* a [.., m, k] by b [.., k, n], either of them a vector; batches broadcast. */
static bool matrices_of(contraction *x)
{
    int32_t a = x->block[A].ndim, b = x->block[B].ndim, c = x->block[C].ndim;
    if (a < 1 || b < 1 || is_empty(x)) return false;
    int32_t batch = c - (a > 1) - (b > 1);
    for (int32_t d = 0; d < batch; d++) {
        int32_t in_a = d - (batch - (a - 2)), in_b = d - (batch - (b - 2));
        put_letter(
            x, (int32_t[]){ a > 2 && in_a >= 0 ? in_a : -1, b > 2 && in_b >= 0 ? in_b : -1, d });
    }
    if (a > 1) put_letter(x, (int32_t[]){ a - 2, -1, batch });
    put_letter(x, (int32_t[]){ a - 1, b > 1 ? b - 2 : 0, -1 });
    if (b > 1) put_letter(x, (int32_t[]){ -1, b - 1, c - 1 });
    return true;
}

ts_status tsi_cuda_matmul(const tsi_kernel_io *io)
{
    contraction x;
    begin(&x, &io->in[0].block, &io->in[1].block, &io->out[0].block);
    return matrices_of(&x) ? contract(io, &x, false) : (ts_status)TSI_KERNEL_DECLINED;
}

/* beta bias + alpha a b: the attributes are the two numbers. A bias of no weight is not looked at.
 */
ts_status tsi_cuda_addmm(const tsi_kernel_io *io)
{
    const ts_number *number = io->attributes;
    contraction x;
    begin(&x, &io->in[1].block, &io->in[2].block, &io->out[0].block);
    x.alpha = number[0].real;
    x.beta = number[1].real;
    if (!tsi_cuda_is_real(x.block[C].dtype) || !matrices_of(&x))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (x.beta == 0) return contract(io, &x, false);
    TSI_TRY(lay_under(io, &io->in[0].block, &x));
    return contract(io, &x, true);
}

/* The place of a letter in a part of an equation; -1: it is not there, -2: it is there twice. */
static int32_t place_of(const char *text, size_t length, char letter)
{
    int32_t at = -1;
    for (size_t i = 0; i < length; i++)
        if (text[i] == letter) at = at == -1 ? (int32_t)i : -2;
    return at;
}

/* The letters of "ab,bc->ac" over the three blocks of x. */
static bool letters_of(const char *text, contraction *x)
{
    const char *comma = strchr(text, ','), *arrow = strstr(text, "->");
    if (!comma || !arrow || strchr(comma + 1, ',') || strchr(text, '.')) return false;
    size_t a = (size_t)(comma - text), b = (size_t)(arrow - comma - 1), c = strlen(arrow + 2);
    if (is_empty(x) || a != (size_t)x->block[A].ndim || b != (size_t)x->block[B].ndim ||
        c != (size_t)x->block[C].ndim)
        return false;
    for (const char *p = text; *p; p++) {
        if (*p == ',' || *p == '-' || *p == '>' || memchr(text, *p, (size_t)(p - text))) continue;
        int32_t dim[OPERANDS] = { place_of(text, a, *p), place_of(comma + 1, b, *p),
                                  place_of(arrow + 2, c, *p) };
        if (dim[A] == -2 || dim[B] == -2 || dim[C] == -2) return false;
        put_letter(x, dim);
    }
    return true;
}

static ts_status multiply(const tsi_kernel_io *io, const char *equation,
                          const tsi_block *const block[OPERANDS], bool accumulate)
{
    contraction x;
    begin(&x, block[A], block[B], block[C]);
    if (!letters_of(equation, &x)) return (ts_status)TSI_KERNEL_DECLINED;
    return contract(io, &x, accumulate);
}

/* Attributes begin with the equation, without spaces. */
ts_status tsi_cuda_einsum(const tsi_kernel_io *io)
{
    if (io->input_count != 2) return (ts_status)TSI_KERNEL_DECLINED;
    return multiply(io, io->attributes,
                    (const tsi_block *[]){ &io->in[0].block, &io->in[1].block, &io->out[0].block },
                    false);
}

ts_status tsi_cuda_einsum_add(const tsi_kernel_io *io)
{
    contraction x;
    begin(&x, &io->in[1].block, &io->in[2].block, &io->out[0].block);
    if (!letters_of(io->attributes, &x)) return (ts_status)TSI_KERNEL_DECLINED;
    if (!io->in_place) TSI_TRY(lay_under(io, &io->in[0].block, &x));
    return contract(io, &x, true);
}

ts_status tsi_cuda_linear_list(const tsi_kernel_io *io)
{
    return tsi_linear_list_by(io, multiply, true);
}

ts_status tsi_cuda_linear_list_input(const tsi_kernel_io *io)
{
    return tsi_linear_list_input_by(io, multiply, true);
}

ts_status tsi_cuda_linear_list_weights(const tsi_kernel_io *io)
{
    return tsi_linear_list_weights_by(io, multiply, true);
}
