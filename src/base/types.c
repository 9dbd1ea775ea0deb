/* SPDX-License-Identifier: Apache-2.0 */
/* types.c - names and sizes of dtypes and reductions, made from the lists of types.h.
 *
 * Values outside a list are answered, never trusted: they come from files and from other programs.
 */
#include "tessera/types.h"

#include <string.h>

#include "base/compiler.h"
#include "base/intmath.h"

static const struct {
    const char *name;
    size_t bytes;
} dtype_table[TS_DTYPE_COUNT] = { { "none", 0 },
#define DTYPE_ROW(name, text, bytes) { text, bytes },
                                  TS_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

static const char *const reduce_table[TS_REDUCE_COUNT] = { "none",
#define REDUCE_ROW(name, text) text,
                                                           TS_REDUCE_LIST(REDUCE_ROW)
#undef REDUCE_ROW
};

TSI_STEP_PATH size_t ts_dtype_size(ts_dtype dtype)
{
    return (unsigned)dtype < TS_DTYPE_COUNT ? dtype_table[dtype].bytes : 0;
}

const char *ts_dtype_name(ts_dtype dtype)
{
    return (unsigned)dtype < TS_DTYPE_COUNT ? dtype_table[dtype].name : "none";
}

ts_dtype ts_dtype_parse(const char *text)
{
    for (int i = TS_DTYPE_NONE + 1; text != NULL && i < TS_DTYPE_COUNT; i++)
        if (strcmp(text, dtype_table[i].name) == 0) return (ts_dtype)i;
    return TS_DTYPE_NONE;
}

const char *ts_reduce_name(ts_reduce reduce)
{
    return (unsigned)reduce < TS_REDUCE_COUNT ? reduce_table[reduce] : "none";
}

ts_reduce ts_reduce_parse(const char *text)
{
    for (int i = TS_REDUCE_NONE + 1; text != NULL && i < TS_REDUCE_COUNT; i++)
        if (strcmp(text, reduce_table[i]) == 0) return (ts_reduce)i;
    return TS_REDUCE_NONE;
}

TSI_STEP_PATH int64_t ts_shape_count(const ts_shape *shape)
{
    if (shape == NULL || shape->ndim < 0 || shape->ndim > TS_NDIM_MAX) return -1;
    bool empty = false;
    for (int32_t d = 0; d < shape->ndim; d++) {
        if (shape->extent[d] < 0) return -1;
        empty = empty || shape->extent[d] == 0;
    }
    /* A zero extent makes the count 0 wherever it stands, even beside a product that overflows. */
    if (empty) return 0;
    int64_t count = 1;
    for (int32_t d = 0; d < shape->ndim; d++)
        if (!tsi_mul_i64(count, shape->extent[d], &count)) return -1;
    return count;
}
