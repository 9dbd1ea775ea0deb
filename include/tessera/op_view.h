/* SPDX-License-Identifier: Apache-2.0 */
/* op_view.h - views, joins and index arithmetic.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_VIEW_H
#define TESSERA_OP_VIEW_H

#include "tensor.h"

/* start, end and step as in Python: bounds count from the end if negative and are cut down. */
typedef struct ts_slice_options {
    size_t struct_size;
    int64_t start;
    int64_t end;          /* read if end_is_given, else the whole rest */
    int64_t step;         /* 0: 1; never negative (ts_flip) */
    int32_t end_is_given; /* 1: `end` counts, also if it is 0 */
    int32_t reserved;
} ts_slice_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_slice_options_init(ts_slice_options *options);

TS_API ts_tensor *ts_reshape(ts_tensor *x, ts_shape shape); /* one extent may be -1 */
TS_API ts_tensor *ts_flatten(ts_tensor *x, int32_t first,
                             int32_t last); /* dims first..last into one */
TS_API ts_tensor *ts_unflatten(ts_tensor *x, int32_t dim,
                               ts_shape sizes); /* one dim into several */
TS_API ts_tensor *ts_permute(ts_tensor *x, const int64_t *dims, int32_t count);
TS_API ts_tensor *ts_movedim(ts_tensor *x, int32_t source,
                             int32_t destination); /* the others keep their order */
TS_API ts_tensor *ts_transpose(ts_tensor *x, int32_t dim_a, int32_t dim_b);
TS_API ts_tensor *ts_squeeze(ts_tensor *x, const int64_t *dims,
                             int32_t count); /* dims NULL: all of extent 1 */
TS_API ts_tensor *ts_unsqueeze(ts_tensor *x, int32_t dim);
/* Elements at strides of the row-major order of the whole tensor, whatever its placement; copies,
 * and gathers what is cut. */
TS_API ts_tensor *ts_as_strided(ts_tensor *x, ts_shape size, const int64_t *stride, int64_t offset);
TS_API ts_tensor *ts_expand(ts_tensor *x, ts_shape shape); /* -1: as it is */

/* ---- parts. Views where the dim is whole on each rank; a sharded dim stays sharded, and ranks
 * exchange only the rows that change hands. An index of a sharded dim (select, unbind, diagonal)
 * moves nothing: the result is pending a sum. */
TS_API ts_tensor *ts_slice(ts_tensor *x, int32_t dim, const ts_slice_options *options);
TS_API ts_tensor *ts_narrow(ts_tensor *x, int32_t dim, ts_interval range);
TS_API ts_tensor *ts_select(ts_tensor *x, int32_t dim, int64_t index); /* the dim goes */
/* A diagonal of two dims, as the last dim; offset > 0: above the main one. */
TS_API ts_tensor *ts_diagonal(ts_tensor *x, int64_t offset, int32_t dim_a, int32_t dim_b);
/* Parts of the given sizes, which add up to the extent. recorded; outputs all NULL on failure */
TS_API ts_status ts_split(ts_tensor *x, int32_t dim, const int64_t *sizes, int32_t count,
                          ts_tensor **out);
/* `count` parts of ceil(extent / count), the last ones short or empty. recorded */
TS_API ts_status ts_chunk(ts_tensor *x, int32_t dim, int64_t count, ts_tensor **out);
/* Every index of a dim; `count` is its extent. recorded */
TS_API ts_status ts_unbind(ts_tensor *x, int32_t dim, int64_t count, ts_tensor **out);
/* Zeros of the given extent along dim, with dy where ts_slice took it from. */
TS_API ts_tensor *ts_slice_backward(ts_tensor *dy, int32_t dim, int64_t extent,
                                    const ts_slice_options *options);

/* ---- joins: 1 to 64 tensors of one dtype, alike but for the dim that is joined */
TS_API ts_tensor *ts_cat(ts_tensor *const *x, int32_t count, int32_t dim);
TS_API ts_tensor *ts_stack(ts_tensor *const *x, int32_t count, int32_t dim); /* a new dim */

/* ---- other indices */
/* Before and after the last dim, then the one before it, ...: at most 8 numbers. A negative amount
 * cuts off. */
TS_API ts_tensor *ts_pad(ts_tensor *x, const int64_t *pad, int32_t count, double value);
TS_API ts_tensor *ts_flip(ts_tensor *x, const int64_t *dims, int32_t count);
/* dims NULL: shifts[0], of all elements as one dim. */
TS_API ts_tensor *ts_roll(ts_tensor *x, const int64_t *shifts, const int64_t *dims, int32_t count);
/* Copies of whole dims; more numbers than dims: new dims in front. */
TS_API ts_tensor *ts_repeat(ts_tensor *x, const int64_t *repeats, int32_t count);
TS_API ts_tensor *ts_repeat_interleave(ts_tensor *x, int64_t repeats, int32_t dim);
/* Zeros above (tril) or below (triu) a diagonal of the last two dims; name_ writes into x, which it
 * returns. */
TS_API ts_tensor *ts_tril(ts_tensor *x, int64_t diagonal);
TS_API ts_tensor *ts_triu(ts_tensor *x, int64_t diagonal);
TS_API ts_tensor *ts_tril_(ts_tensor *x, int64_t diagonal);
TS_API ts_tensor *ts_triu_(ts_tensor *x, int64_t diagonal);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_movedim(...) (ts_here(TS_HERE), ts_movedim(__VA_ARGS__))
#define ts_permute(...) (ts_here(TS_HERE), ts_permute(__VA_ARGS__))
#define ts_transpose(...) (ts_here(TS_HERE), ts_transpose(__VA_ARGS__))
#define ts_squeeze(...) (ts_here(TS_HERE), ts_squeeze(__VA_ARGS__))
#define ts_unsqueeze(...) (ts_here(TS_HERE), ts_unsqueeze(__VA_ARGS__))
#define ts_as_strided(...) (ts_here(TS_HERE), ts_as_strided(__VA_ARGS__))
#define ts_expand(...) (ts_here(TS_HERE), ts_expand(__VA_ARGS__))
#define ts_reshape(...) (ts_here(TS_HERE), ts_reshape(__VA_ARGS__))
#define ts_flatten(...) (ts_here(TS_HERE), ts_flatten(__VA_ARGS__))
#define ts_unflatten(...) (ts_here(TS_HERE), ts_unflatten(__VA_ARGS__))
#define ts_slice(...) (ts_here(TS_HERE), ts_slice(__VA_ARGS__))
#define ts_narrow(...) (ts_here(TS_HERE), ts_narrow(__VA_ARGS__))
#define ts_select(...) (ts_here(TS_HERE), ts_select(__VA_ARGS__))
#define ts_diagonal(...) (ts_here(TS_HERE), ts_diagonal(__VA_ARGS__))
#define ts_split(...) (ts_here(TS_HERE), ts_split(__VA_ARGS__))
#define ts_chunk(...) (ts_here(TS_HERE), ts_chunk(__VA_ARGS__))
#define ts_unbind(...) (ts_here(TS_HERE), ts_unbind(__VA_ARGS__))
#define ts_slice_backward(...) (ts_here(TS_HERE), ts_slice_backward(__VA_ARGS__))
#define ts_cat(...) (ts_here(TS_HERE), ts_cat(__VA_ARGS__))
#define ts_stack(...) (ts_here(TS_HERE), ts_stack(__VA_ARGS__))
#define ts_pad(...) (ts_here(TS_HERE), ts_pad(__VA_ARGS__))
#define ts_flip(...) (ts_here(TS_HERE), ts_flip(__VA_ARGS__))
#define ts_roll(...) (ts_here(TS_HERE), ts_roll(__VA_ARGS__))
#define ts_repeat(...) (ts_here(TS_HERE), ts_repeat(__VA_ARGS__))
#define ts_repeat_interleave(...) (ts_here(TS_HERE), ts_repeat_interleave(__VA_ARGS__))
#define ts_tril(...) (ts_here(TS_HERE), ts_tril(__VA_ARGS__))
#define ts_triu(...) (ts_here(TS_HERE), ts_triu(__VA_ARGS__))
#define ts_tril_(...) (ts_here(TS_HERE), ts_tril_(__VA_ARGS__))
#define ts_triu_(...) (ts_here(TS_HERE), ts_triu_(__VA_ARGS__))

#endif
