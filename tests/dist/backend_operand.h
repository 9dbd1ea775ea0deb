/* SPDX-License-Identifier: Apache-2.0 */
/* backend_operand.h - blocks of memory with any strides, for tests that call kernels directly. */
#ifndef TESTS_DIST_BACKEND_OPERAND_H
#define TESTS_DIST_BACKEND_OPERAND_H

#include "base/alloc.h"
#include "harness/test.h"
#include "op/op.h"

typedef struct operand {
    tsi_operand is;
    ts_meta meta;
    void *memory;
    size_t bytes;
} operand;

typedef enum spread { DENSE, PERMUTED, GAPS, SPREADS } spread;

/* Memory for a block with the strides of a spread; all its bytes are defined. */
static inline void place(test *t, operand *x, const ts_meta *meta, spread how)
{
    x->meta = *meta;
    tsi_block *b = &x->is.block;
    *b = (tsi_block){ .dtype = meta->dtype, .ndim = meta->shape.ndim };
    memcpy(b->extent, meta->shape.extent, sizeof b->extent);
    int64_t stride = how == GAPS ? 2 : 1;
    for (int32_t i = b->ndim - 1; i >= 0; i--) {
        int32_t d = how == PERMUTED ? b->ndim - 1 - i : i;
        b->stride[d] = stride;
        stride *= b->extent[d] + (how == GAPS);
    }
    x->bytes = (size_t)(stride + 8) * ts_dtype_size((ts_dtype)meta->dtype);
    x->memory = tsi_calloc(1, x->bytes);
    TEST_CHECK(t, x->memory != NULL);
    b->data = x->memory;
    x->is.global = &x->meta;
    x->is.region = NULL;
}

#endif
