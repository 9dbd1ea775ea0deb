/* SPDX-License-Identifier: Apache-2.0 */
/* common.h - what many operators share: shape inference, normalisation of dims, reductions of
 * attributes. */
#ifndef TSI_OP_COMMON_H
#define TSI_OP_COMMON_H

#include "op/core/element.h"
#include "op/op.h"

/* Elementwise with broadcast over all present inputs; dtypes promoted. */
ts_status tsi_infer_pointwise(const tsi_op_call *call);
/* The broadcast shape of the present inputs; refuses extents that clash, naming both. */
ts_status tsi_infer_broadcast(const tsi_op_call *call, ts_shape *out);
/* Output i is like input 0. */
ts_status tsi_infer_like(const tsi_op_call *call);
ts_status tsi_check_reals(const tsi_op_call *call); /* of every input */

/* Makes a dim non-negative; refuses one out of range: "softmax: dim 3 is out of range for 2 dims".
 */
ts_status tsi_normalise_dim(const char *op, int64_t *dim, int32_t ndim);
/* The same for a list: sorted, no repeats; empty or not given: all dims. */
ts_status tsi_normalise_dims(const char *op, tsi_dims *dims, int32_t ndim);
/* One number for each of `places` dims, where one may stand for all: none below `least`. */
ts_status tsi_dims_spread(const char *op, const char *name, tsi_dims *dims, int32_t places,
                          int64_t least);
uint32_t tsi_dims_mask(const tsi_dims *dims);
/* A shape without (or with 1 in place of) the dims of the mask. */
ts_shape tsi_shape_reduce(const ts_shape *shape, uint32_t mask, bool keepdim);
/* "(8, 12)" into a buffer; returns it. */
const char *tsi_shape_text(const ts_shape *shape, char *out, size_t size);

/* Reduces a gradient back to the meta of the operand it belongs to, where that was broadcast: sums
 * over the dims it had not, or had with extent 1, and casts to its dtype. */
ts_tensor *tsi_grad_unbroadcast(ts_tensor *grad, const ts_meta *operand);

static inline bool tsi_meta_is_complex(const ts_meta *meta)
{
    return tsi_dtype_category((ts_dtype)meta->dtype) == TSI_CATEGORY_COMPLEX;
}

/* Elementwise references: f of one, two or three numbers; reals in double, integers in int64,
 * complex in double complex. A NULL function: that category is refused with a sentence. */
typedef struct tsi_scalar_fns {
    double (*real)(const double *x, const void *attributes);
    int64_t (*integer)(const int64_t *x, const void *attributes);
    double complex (*both)(const double complex *x, const void *attributes);
} tsi_scalar_fns;
/* Inputs are loaded in the category of `compute`, the result is stored in the output's dtype. */
ts_status tsi_reference_pointwise(const tsi_kernel_io *io, const tsi_scalar_fns *fns,
                                  ts_dtype compute);

/* The end of tsi_op_desc.propagate: the input's layout and the output's sharding from placements.
 */
ts_status tsi_propagate_to(const tsi_op_call *call, tsi_mesh_desc *mesh, const ts_placement *in,
                           const ts_placement *result, const ts_layout **in_wanted,
                           const ts_sharding **out);

/* ---- one line each (.ctags.d tells ctags their names) ---------------------------------------- */
ts_tensor *tsi_op_make2(const tsi_op_desc *op, ts_tensor *a, ts_tensor *b, const void *attributes);
/* The public makers ts_<name> of one input, of one and a number that is all its attributes, of two.
 */
#define TSI_MAKER1(name)                                                                           \
    ts_tensor *(ts_##name)(ts_tensor * x)                                                          \
    {                                                                                              \
        return tsi_op_make(&tsi_op_##name, &x, 1, NULL);                                           \
    }
#define TSI_MAKER1_BY(name, number)                                                                \
    ts_tensor *(ts_##name)(ts_tensor * x, double number)                                           \
    {                                                                                              \
        return tsi_op_make(&tsi_op_##name, &x, 1, &number);                                        \
    }
#define TSI_MAKER1_NUMBER(name, number)                                                            \
    ts_tensor *(ts_##name)(ts_tensor * x, double number)                                           \
    {                                                                                              \
        ts_number exact = tsi_number_real(number);                                                 \
        return tsi_op_make(&tsi_op_##name, &x, 1, &exact);                                         \
    }
#define TSI_MAKER2(name)                                                                           \
    ts_tensor *(ts_##name)(ts_tensor * a, ts_tensor * b)                                           \
    {                                                                                              \
        return tsi_op_make2(&tsi_op_##name, a, b, NULL);                                           \
    }
/* A function of tsi_scalar_fns that is one expression of x[..] and the attributes a. */
#define TSI_SCALAR(type, fn, e)                                                                    \
    type fn(const type *x, const void *a)                                                          \
    {                                                                                              \
        (void)x;                                                                                   \
        (void)a;                                                                                   \
        return e;                                                                                  \
    }

#endif
