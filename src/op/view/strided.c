/* SPDX-License-Identifier: Apache-2.0 */
/* strided.c - as_strided on request: elements of a tensor at any strides of its row-major order,
 * and its gradient; and the number of distinct values.
 *
 * Strides speak of the whole tensor in row-major order, whatever its blocks look like, so these
 * need it whole: cuts are gathered. What is pending passes, because elements are only moved. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/common.h"
#include "op/view/attributes.h"

#define STRIDED_ATTRIBUTES                                                                         \
    TSI_ATTR(tsi_strided_attributes, size, DIMS, "size", NULL),                                    \
        TSI_ATTR(tsi_strided_attributes, stride, DIMS, "stride", NULL),                            \
        TSI_ATTR(tsi_strided_attributes, offset, INT, "storage_offset", "0")
static const tsi_attribute strided_table[] = { STRIDED_ATTRIBUTES, { 0 } };
static const tsi_attribute backward_table[] = {
    STRIDED_ATTRIBUTES, TSI_ATTR(tsi_strided_attributes, shape, DIMS, "shape", NULL), { 0 }
};

/* Every element that is named must be there. */
static ts_status check_reach(const char *op, const tsi_strided_attributes *a, int64_t count)
{
    int64_t first = a->offset, last = a->offset;
    bool empty = false;
    if (a->size.count < 0 || a->size.count != a->stride.count)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d sizes and %d strides", op, (int)a->size.count,
                        (int)a->stride.count);
    if (a->offset < 0 || a->offset > INT64_MAX / 4)
        return TSI_FAIL(TS_ERR_ARG, "%s: an offset of %lld has no meaning", op,
                        (long long)a->offset);
    for (int32_t d = 0; d < a->size.count; d++) {
        int64_t reach;
        if (a->size.value[d] < 0)
            return TSI_FAIL(TS_ERR_ARG, "%s: a size of %lld has no meaning", op,
                            (long long)a->size.value[d]);
        empty |= a->size.value[d] == 0;
        if (!tsi_mul_i64(a->size.value[d] - 1, a->stride.value[d], &reach) ||
            reach > INT64_MAX / 16 || reach < INT64_MIN / 16)
            return TSI_FAIL(TS_ERR_ARG, "%s: a stride of %lld reaches too far", op,
                            (long long)a->stride.value[d]);
        if (reach > 0) last += reach;
        if (reach < 0) first += reach;
    }
    if (empty || (first >= 0 && last < count)) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "%s: elements %lld to %lld are named, there are %lld", op,
                    (long long)first, (long long)last, (long long)count);
}

static ts_status strided_infer(const tsi_op_call *call)
{
    const tsi_strided_attributes *a = call->attributes;
    TSI_TRY(check_reach("as_strided", a, ts_shape_count(&call->in[0].shape)));
    call->out[0] = (ts_meta){ .shape = { .ndim = a->size.count }, .dtype = call->in[0].dtype };
    memcpy(call->out[0].shape.extent, a->size.value, sizeof a->size.value);
    return TS_OK;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const tsi_strided_attributes *a = call->attributes;
    ts_shape shape = { .ndim = a->shape.count };
    if (a->shape.count < 0) return TSI_FAIL(TS_ERR_ARG, "as_strided_backward: no shape is given");
    memcpy(shape.extent, a->shape.value, sizeof shape.extent);
    TSI_TRY(check_reach("as_strided_backward", a, ts_shape_count(&shape)));
    bool fits = call->in[0].shape.ndim == a->size.count;
    for (int32_t d = 0; fits && d < a->size.count; d++)
        fits = call->in[0].shape.extent[d] == a->size.value[d];
    char text[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "as_strided_backward: a gradient of shape %s is not of it",
                        tsi_shape_text(&call->in[0].shape, text, sizeof text));
    call->out[0] = (ts_meta){ .shape = shape, .dtype = call->in[0].dtype };
    return TS_OK;
}

/* The offset in a block of the element with a row-major number. */
static int64_t place_of(const tsi_block *block, int64_t number)
{
    int64_t at = 0;
    for (int32_t d = block->ndim - 1; d >= 0; d--) {
        at += number % block->extent[d] * block->stride[d];
        number /= block->extent[d];
    }
    return at;
}

static int64_t number_of(const tsi_strided_attributes *a, const int64_t *index)
{
    int64_t number = a->offset;
    for (int32_t d = 0; d < a->size.count; d++)
        number += index[d] * a->stride.value[d];
    return number;
}

static ts_status strided_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    size_t item = ts_dtype_size((ts_dtype)x->dtype);
    tsi_loop loop = tsi_loop_over(y);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        memcpy(tsi_block_at(y, loop.at[0]),
               tsi_block_at(x, place_of(x, number_of(io->attributes, loop.index))), item);
    return TS_OK;
}

/* Places that are named more than once receive the sum. */
static ts_status backward_reference(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *dx = &io->out[0].block;
    ts_dtype dtype = (ts_dtype)dx->dtype;
    tsi_loop all = tsi_loop_over(dx), loop = tsi_loop_over(dy);
    for (bool more = tsi_loop_begin(&all); more; more = tsi_loop_next(&all))
        tsi_store_complex(dtype, tsi_block_at(dx, all.at[0]), 0);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        void *to = tsi_block_at(dx, place_of(dx, number_of(io->attributes, loop.index)));
        double complex more_of_it = tsi_load_complex(dtype, tsi_block_at(dy, loop.at[0]));
        tsi_store_complex(dtype, to, tsi_load_complex(dtype, to) + more_of_it);
    }
    return TS_OK;
}

static ts_status strided_grad(const tsi_grad_io *io)
{
    tsi_strided_attributes a = *(const tsi_strided_attributes *)io->attributes;
    a.shape.count = io->in_meta[0].shape.ndim;
    memcpy(a.shape.value, io->in_meta[0].shape.extent, sizeof a.shape.value);
    return tsi_grad_give(io, tsi_op_make(&tsi_op_as_strided_backward, io->out_grad, 1, &a));
}

static bool sample_strided(tsi_sample *s)
{
    static const tsi_strided_attributes kinds[] = {
        { .size = { .count = 2, .value = { 3, 4 } },
          .stride = { .count = 2, .value = { 2, 3 } },
          .offset = 1 }, /* overlapping */
        { .size = { .count = 1, .value = { 5 } }, .stride = { .count = 1, .value = { 4 } } },
    };
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    *(tsi_strided_attributes *)s->attributes = kinds[s->variant % 2];
    return s->variant < 2;
}

static bool sample_backward(tsi_sample *s)
{
    bool more = sample_strided(s);
    tsi_strided_attributes *a = s->attributes;
    a->shape = (tsi_dims){ .count = 2, .value = { 5, 4 } };
    s->in[0].shape = (ts_shape){ .ndim = a->size.count };
    memcpy(s->in[0].shape.extent, a->size.value, sizeof a->size.value);
    return more;
}

const tsi_op_desc tsi_op_as_strided = {
    .name = "as_strided",
    .what = "elements at given strides of the row-major order of the whole; a cut is gathered",
    TSI_OPERANDS(1, 1, 1),
    .traits = { .flow = TSI_SELECT },
    TSI_ATTRIBUTES(strided_table, tsi_strided_attributes),
    .infer = strided_infer,
    .reference = strided_reference,
    .grad = strided_grad,
    .sample = sample_strided,
};
const tsi_op_desc tsi_op_as_strided_backward = {
    .name = "as_strided_backward",
    .what = "the gradient of as_strided: places receive the sum of what was taken from them",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD,
    .dtypes = 1u << TS_DTYPE_F64 | 1u << TS_DTYPE_F32 | 1u << TS_DTYPE_BF16 | 1u << TS_DTYPE_F16 |
              1u << TS_DTYPE_C64 | 1u << TS_DTYPE_C128,
    .traits = { .flow = TSI_LINEAR_ALL },
    TSI_ATTRIBUTES(backward_table, tsi_strided_attributes),
    .infer = backward_infer,
    .reference = backward_reference,
    .sample = sample_backward,
};

/* ---- distinct values ------------------------------------------------------------------------- */

static ts_status unique_infer(const tsi_op_call *call)
{
    call->out[0] = (ts_meta){ .shape = TS_SHAPE_SCALAR, .dtype = TS_DTYPE_I64 };
    return TS_OK;
}

typedef struct pair {
    double real, imaginary;
} pair;

/* Numbers that are none come last, each for itself. */
static int compare_pairs(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    bool x_none = x->real != x->real, y_none = y->real != y->real;
    if (x_none || y_none) return x_none - y_none;
    if (x->real != y->real) return x->real < y->real ? -1 : 1;
    return (x->imaginary > y->imaginary) - (x->imaginary < y->imaginary);
}

/* Integers beyond 2^53 keep their low half beside the high one. */
static pair pair_of(ts_dtype dtype, const void *element)
{
    if (tsi_dtype_category(dtype) <= TSI_CATEGORY_INT) {
        int64_t value = tsi_load_int(dtype, element);
        return (pair){ (double)(value >> 32), (double)(value & 0xFFFFFFFF) };
    }
    double complex value = tsi_load_complex(dtype, element);
    return (pair){ creal(value), cimag(value) };
}

static ts_status unique_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block;
    int64_t count = tsi_block_count(x), i = 0, distinct = 0;
    pair *all = tsi_alloc_array((size_t)count + 1, sizeof *all);
    if (!all) return tsi_fail_memory("a sorted copy", (size_t)count * sizeof *all);
    tsi_loop loop = tsi_loop_over(x);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        all[i++] = pair_of((ts_dtype)x->dtype, tsi_block_at(x, loop.at[0]));
    qsort(all, (size_t)count, sizeof *all, compare_pairs);
    for (i = 0; i < count; i++)
        distinct +=
            i == 0 || all[i].real != all[i].real || compare_pairs(&all[i - 1], &all[i]) != 0;
    tsi_store_int(TS_DTYPE_I64, io->out[0].block.data, distinct);
    tsi_free(all);
    return TS_OK;
}

static bool sample_unique(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5 + s->variant, 4));
    return s->variant < 2;
}

const tsi_op_desc tsi_op_count_unique = {
    .name = "count_unique",
    .what = "how many distinct values there are; those of shards overlap, so a cut is gathered",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD,
    .infer = unique_infer,
    .reference = unique_reference,
    .sample = sample_unique,
};

/* ---- makers ---------------------------------------------------------------------------------- */

TSI_MAKER1(count_unique)

ts_tensor *(ts_as_strided)(ts_tensor *x, ts_shape size, const int64_t *stride, int64_t offset)
{
    tsi_strided_attributes a = { .size = { .count = size.ndim }, .stride = { .count = size.ndim } };
    if (!stride || size.ndim < 0 || size.ndim > TS_NDIM_MAX) {
        TSI_FAIL(TS_ERR_ARG, "as_strided: a size of 0 to 8 dims and its strides are required");
        return NULL;
    }
    memcpy(a.size.value, size.extent, (size_t)size.ndim * sizeof *stride);
    memcpy(a.stride.value, stride, (size_t)size.ndim * sizeof *stride);
    a.offset = offset;
    return tsi_op_make(&tsi_op_as_strided, &x, 1, &a);
}
