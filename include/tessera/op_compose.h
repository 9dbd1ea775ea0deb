/* SPDX-License-Identifier: Apache-2.0 */
/* op_compose.h - functions that are made of operators: they are not rows of the table, but take any
 * placement and have gradients because their parts do. Messages name the part that refused.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Dims may be negative. */
#ifndef TESSERA_OP_COMPOSE_H
#define TESSERA_OP_COMPOSE_H

#include "tensor.h"

typedef struct ts_batch_norm_options { /* each [C] */
    size_t struct_size;
    ts_tensor *mean, *variance; /* of the channels */
    ts_tensor *weight, *bias;   /* NULL: 1, 0 */
    double epsilon;             /* 0: 1e-5, unless exact */
    int32_t exact;              /* 1: epsilon is meant, 0 too */
    int32_t reserved;
} ts_batch_norm_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_batch_norm_options_init(ts_batch_norm_options *options);

/* Over the given dims (NULL: all), without what is not a number. */
TS_API ts_tensor *ts_nansum(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_nanmean(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
/* The k-th smallest of a dim, from 1 on, and where it is; the median is the middle one, of two the
 * smaller, or the first that is not a number. recorded; the dim goes */
TS_API ts_status ts_kthvalue(ts_tensor *x, int64_t k, int32_t dim, ts_tensor *out[2]);
TS_API ts_status ts_median(ts_tensor *x, int32_t dim, ts_tensor *out[2]);

TS_API ts_tensor *ts_outer(ts_tensor *a, ts_tensor *b); /* of two vectors: a[i] b[j] */
TS_API ts_tensor *ts_trace(ts_tensor *x);               /* the sum of the diagonal of a matrix */
TS_API ts_tensor *ts_cross(ts_tensor *a, ts_tensor *b, int32_t dim); /* of extent 3 */
/* x over its 2-norm along a dim, or over epsilon if that is larger. */
TS_API ts_tensor *ts_normalize(ts_tensor *x, int32_t dim, double epsilon);
/* The cosine of the angle between a and b along a dim; norms below 1e-8 count as that. */
TS_API ts_tensor *ts_cosine_similarity(ts_tensor *a, ts_tensor *b, int32_t dim);

TS_API ts_tensor *ts_one_hot(ts_tensor *index, int64_t classes); /* i64 [.., classes] */
TS_API ts_tensor *ts_index_fill(ts_tensor *x, int32_t dim, ts_tensor *index, double value);
TS_API ts_tensor *ts_index_copy(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source);
TS_API ts_tensor *ts_tile(ts_tensor *x, const int64_t *repeats, int32_t count); /* of last dims */

TS_API ts_tensor *ts_glu(ts_tensor *x, int32_t dim); /* first half * sigmoid(second half) */
/* x [N, C, ..] with given statistics, as in inference. */
TS_API ts_tensor *ts_batch_norm(ts_tensor *x, const ts_batch_norm_options *options);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_batch_norm(...) (ts_here(TS_HERE), ts_batch_norm(__VA_ARGS__))
#define ts_cosine_similarity(...) (ts_here(TS_HERE), ts_cosine_similarity(__VA_ARGS__))
#define ts_cross(...) (ts_here(TS_HERE), ts_cross(__VA_ARGS__))
#define ts_glu(...) (ts_here(TS_HERE), ts_glu(__VA_ARGS__))
#define ts_index_copy(...) (ts_here(TS_HERE), ts_index_copy(__VA_ARGS__))
#define ts_index_fill(...) (ts_here(TS_HERE), ts_index_fill(__VA_ARGS__))
#define ts_kthvalue(...) (ts_here(TS_HERE), ts_kthvalue(__VA_ARGS__))
#define ts_median(...) (ts_here(TS_HERE), ts_median(__VA_ARGS__))
#define ts_nanmean(...) (ts_here(TS_HERE), ts_nanmean(__VA_ARGS__))
#define ts_nansum(...) (ts_here(TS_HERE), ts_nansum(__VA_ARGS__))
#define ts_normalize(...) (ts_here(TS_HERE), ts_normalize(__VA_ARGS__))
#define ts_one_hot(...) (ts_here(TS_HERE), ts_one_hot(__VA_ARGS__))
#define ts_outer(...) (ts_here(TS_HERE), ts_outer(__VA_ARGS__))
#define ts_tile(...) (ts_here(TS_HERE), ts_tile(__VA_ARGS__))
#define ts_trace(...) (ts_here(TS_HERE), ts_trace(__VA_ARGS__))

#endif
