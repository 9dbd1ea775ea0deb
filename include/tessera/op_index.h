/* SPDX-License-Identifier: Apache-2.0 */
/* op_index.h - gather, scatter, sort, topk and other data-dependent indexing.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_INDEX_H
#define TESSERA_OP_INDEX_H

#include "tensor.h"

/* One index tensor per indexed dim; they broadcast with each other. */
typedef struct ts_index_options {
    size_t struct_size;
    ts_tensor *const *index;
    const int64_t *dims; /* which dims they index; NULL: the first ones */
    int32_t count;       /* of index tensors */
    int32_t accumulate;  /* index_put: adds, so that equal indices add up */
} ts_index_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_index_options_init(ts_index_options *options);

/* Indices are whole numbers. One that is out of range is an error that names it; negative ones
 * count from the end where it says so. An indexed dim may be sharded: what is read there is pending
 * a sum, what is written stays sharded. A name with _ at its end writes into x and returns it. */

/* ---- a list of indices of one dim */
TS_API ts_tensor *ts_index_select(ts_tensor *x, int32_t dim, ts_tensor *index);
TS_API ts_tensor *ts_index_add(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);
TS_API ts_tensor *ts_index_add_(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);

/* ---- an index for every element, along one dim. Index (and source) may be shorter than x in the
 * other dims. Of equal indices the last one in row-major order stays. */
TS_API ts_tensor *ts_gather(ts_tensor *x, int32_t dim, ts_tensor *index);
TS_API ts_tensor *ts_scatter(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);
TS_API ts_tensor *ts_scatter_(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);
TS_API ts_tensor *ts_scatter_value(ts_tensor *x, int32_t dim, ts_tensor *index, double value);
TS_API ts_tensor *ts_scatter_add(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);
TS_API ts_tensor *ts_scatter_add_(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);
/* Zeros of a shape, with dy added where ts_gather read. */
TS_API ts_tensor *ts_gather_backward(ts_tensor *dy, int32_t dim, ts_tensor *index, ts_shape shape);

/* ---- several dims at once; negative indices count from the end. The result has the shape of the
 * indices where the first indexed dim stood (in front if the dims are no neighbours), and the dims
 * that are not indexed. */
TS_API ts_tensor *ts_index(ts_tensor *x, const ts_index_options *options);
TS_API ts_tensor *ts_index_put(ts_tensor *x, ts_tensor *values, const ts_index_options *options);
TS_API ts_tensor *ts_index_put_(ts_tensor *x, ts_tensor *values, const ts_index_options *options);
/* Elements by row-major number; negative ones count from the end. */
TS_API ts_tensor *ts_take(ts_tensor *x, ts_tensor *index);

/* Elements where the mask is set (both broadcast), as one dim in row-major order. [coll]: waits for
 * the number of elements. The result is sharded in plain chunks where x is sharded along its first
 * dim, else replicated or pending what x is pending. */
TS_API ts_tensor *ts_masked_select(ts_tensor *x, ts_tensor *mask);

/* ---- running values along a dim. A sharded dim stays sharded: ranks exchange their totals. */
TS_API ts_tensor *ts_cumsum(ts_tensor *x, int32_t dim); /* of bool and integers: i64 */
TS_API ts_tensor *ts_cumprod(ts_tensor *x, int32_t dim);
/* Values, and i64 indices (of equal ones the later; may be NULL). recorded */
TS_API ts_status ts_cummax(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices);
TS_API ts_status ts_cummin(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_index_select(...) (ts_here(TS_HERE), ts_index_select(__VA_ARGS__))
#define ts_index_add(...) (ts_here(TS_HERE), ts_index_add(__VA_ARGS__))
#define ts_index_add_(...) (ts_here(TS_HERE), ts_index_add_(__VA_ARGS__))
#define ts_gather(...) (ts_here(TS_HERE), ts_gather(__VA_ARGS__))
#define ts_scatter(...) (ts_here(TS_HERE), ts_scatter(__VA_ARGS__))
#define ts_scatter_(...) (ts_here(TS_HERE), ts_scatter_(__VA_ARGS__))
#define ts_scatter_value(...) (ts_here(TS_HERE), ts_scatter_value(__VA_ARGS__))
#define ts_scatter_add(...) (ts_here(TS_HERE), ts_scatter_add(__VA_ARGS__))
#define ts_scatter_add_(...) (ts_here(TS_HERE), ts_scatter_add_(__VA_ARGS__))
#define ts_gather_backward(...) (ts_here(TS_HERE), ts_gather_backward(__VA_ARGS__))
#define ts_index(...) (ts_here(TS_HERE), ts_index(__VA_ARGS__))
#define ts_index_put(...) (ts_here(TS_HERE), ts_index_put(__VA_ARGS__))
#define ts_index_put_(...) (ts_here(TS_HERE), ts_index_put_(__VA_ARGS__))
#define ts_take(...) (ts_here(TS_HERE), ts_take(__VA_ARGS__))
#define ts_masked_select(...) (ts_here(TS_HERE), ts_masked_select(__VA_ARGS__))
#define ts_cumsum(...) (ts_here(TS_HERE), ts_cumsum(__VA_ARGS__))
#define ts_cumprod(...) (ts_here(TS_HERE), ts_cumprod(__VA_ARGS__))
#define ts_cummax(...) (ts_here(TS_HERE), ts_cummax(__VA_ARGS__))
#define ts_cummin(...) (ts_here(TS_HERE), ts_cummin(__VA_ARGS__))

#endif
