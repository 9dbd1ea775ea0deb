/* SPDX-License-Identifier: Apache-2.0 */
/* op_reduce.h - reductions, scans, softmax and norms over dims.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_REDUCE_H
#define TESSERA_OP_REDUCE_H

#include "tensor.h"

typedef struct ts_stat_options {
    size_t struct_size;
    const int64_t *dims; /* NULL: all */
    int32_t count, keepdim;
    double correction; /* squares are divided by count - correction; no options: 1 */
} ts_stat_options;
typedef struct ts_norm_options {
    size_t struct_size;
    const int64_t *dims; /* NULL: all */
    int32_t count, keepdim;
    double p; /* 0: a count, infinite: an extreme; no options: 2 */
} ts_norm_options;
typedef struct ts_sort_options {
    size_t struct_size;
    int32_t dim, descending;
} ts_sort_options;
typedef struct ts_topk_options {
    size_t struct_size;
    int64_t k;
    int32_t dim, smallest; /* smallest 1: the k smallest */
} ts_topk_options;
typedef struct ts_histc_options {
    size_t struct_size;
    int64_t bins;
    double min, max; /* equal: those of the data */
} ts_histc_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_stat_options_init(ts_stat_options *options);
TS_API void ts_norm_options_init(ts_norm_options *options);
TS_API void ts_sort_options_init(ts_sort_options *options);
TS_API void ts_topk_options_init(ts_topk_options *options);
TS_API void ts_histc_options_init(ts_histc_options *options);

/* Over the given dims; dims NULL: over all. A sharded dim that is reduced gives a partial result.
 */
TS_API ts_tensor *ts_sum(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_mean(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_prod(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_amax(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_amin(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_any(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_all(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_count_unique(ts_tensor *x); /* distinct values, one number */
TS_API ts_tensor *ts_count_nonzero(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);

/* A sharded dim that is reduced is done in two phases, not gathered. options NULL: all dims. */
TS_API ts_tensor *ts_var(ts_tensor *x, const ts_stat_options *options);
TS_API ts_tensor *ts_std(ts_tensor *x, const ts_stat_options *options);
/* A sharded dim that is reduced leaves P(norm:p). options NULL: all dims, p = 2. */
TS_API ts_tensor *ts_vector_norm(ts_tensor *x, const ts_norm_options *options);

/* Indices are global; equal elements give the smallest. */
TS_API ts_tensor *ts_argmax(ts_tensor *x, int32_t dim, int keepdim);
TS_API ts_tensor *ts_argmin(ts_tensor *x, int32_t dim, int keepdim);
/* recorded; the dim goes; either result may be NULL if it is not wanted */
TS_API ts_status ts_max(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices);
TS_API ts_status ts_min(ts_tensor *x, int32_t dim, ts_tensor **values, ts_tensor **indices);
/* recorded; stable; options NULL: the last dim, ascending */
TS_API ts_status ts_sort(ts_tensor *x, const ts_sort_options *options, ts_tensor **values,
                         ts_tensor **indices);
/* recorded; in order; options NULL: the largest of the last dim */
TS_API ts_status ts_topk(ts_tensor *x, const ts_topk_options *options, ts_tensor **values,
                         ts_tensor **indices);
/* How many elements fall into each of `bins` equal bins; those outside count for nothing. */
TS_API ts_tensor *ts_histc(ts_tensor *x, const ts_histc_options *options);
/* maker [coll]. How often each of 0 .. max(x) occurs, or the sum of its weights (may be NULL). */
TS_API ts_tensor *ts_bincount(ts_tensor *x, ts_tensor *weights, int64_t minlength);

/* A sharded dim of a softmax is done in two phases, not gathered. */
TS_API ts_tensor *ts_softmax(ts_tensor *x, int32_t dim);
TS_API ts_tensor *ts_log_softmax(ts_tensor *x, int32_t dim);
TS_API ts_tensor *ts_logsumexp(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);

/* Over the dims of the weight (NULL: the last dim). */
TS_API ts_tensor *ts_rms_norm(ts_tensor *x, ts_tensor *weight, double epsilon);
TS_API ts_tensor *ts_layer_norm(ts_tensor *x, ts_tensor *weight, ts_tensor *bias, double epsilon);
/* rms_norm of x + r over the last dim; *sum (may be NULL) is x + r. */
TS_API ts_tensor *ts_add_rms_norm(ts_tensor *x, ts_tensor *r, ts_tensor *weight, double epsilon,
                                  ts_tensor **sum);

/* 1 where an element is among the k largest of the last dim, else 0. */
TS_API ts_tensor *ts_topk_mask(ts_tensor *x, int64_t k);

/* Gradients from the results, for gradients of users' own operators: dy first. */
TS_API ts_tensor *ts_softmax_backward(ts_tensor *dy, ts_tensor *y, int32_t dim);
TS_API ts_tensor *ts_log_softmax_backward(ts_tensor *dy, ts_tensor *y, int32_t dim);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_sum(...) (ts_here(TS_HERE), ts_sum(__VA_ARGS__))
#define ts_mean(...) (ts_here(TS_HERE), ts_mean(__VA_ARGS__))
#define ts_prod(...) (ts_here(TS_HERE), ts_prod(__VA_ARGS__))
#define ts_amax(...) (ts_here(TS_HERE), ts_amax(__VA_ARGS__))
#define ts_amin(...) (ts_here(TS_HERE), ts_amin(__VA_ARGS__))
#define ts_any(...) (ts_here(TS_HERE), ts_any(__VA_ARGS__))
#define ts_all(...) (ts_here(TS_HERE), ts_all(__VA_ARGS__))
#define ts_count_unique(...) (ts_here(TS_HERE), ts_count_unique(__VA_ARGS__))
#define ts_count_nonzero(...) (ts_here(TS_HERE), ts_count_nonzero(__VA_ARGS__))
#define ts_var(...) (ts_here(TS_HERE), ts_var(__VA_ARGS__))
#define ts_std(...) (ts_here(TS_HERE), ts_std(__VA_ARGS__))
#define ts_vector_norm(...) (ts_here(TS_HERE), ts_vector_norm(__VA_ARGS__))
#define ts_argmax(...) (ts_here(TS_HERE), ts_argmax(__VA_ARGS__))
#define ts_argmin(...) (ts_here(TS_HERE), ts_argmin(__VA_ARGS__))
#define ts_max(...) (ts_here(TS_HERE), ts_max(__VA_ARGS__))
#define ts_min(...) (ts_here(TS_HERE), ts_min(__VA_ARGS__))
#define ts_sort(...) (ts_here(TS_HERE), ts_sort(__VA_ARGS__))
#define ts_topk(...) (ts_here(TS_HERE), ts_topk(__VA_ARGS__))
#define ts_histc(...) (ts_here(TS_HERE), ts_histc(__VA_ARGS__))
#define ts_bincount(...) (ts_here(TS_HERE), ts_bincount(__VA_ARGS__))
#define ts_softmax(...) (ts_here(TS_HERE), ts_softmax(__VA_ARGS__))
#define ts_log_softmax(...) (ts_here(TS_HERE), ts_log_softmax(__VA_ARGS__))
#define ts_logsumexp(...) (ts_here(TS_HERE), ts_logsumexp(__VA_ARGS__))
#define ts_rms_norm(...) (ts_here(TS_HERE), ts_rms_norm(__VA_ARGS__))
#define ts_layer_norm(...) (ts_here(TS_HERE), ts_layer_norm(__VA_ARGS__))
#define ts_add_rms_norm(...) (ts_here(TS_HERE), ts_add_rms_norm(__VA_ARGS__))

#endif
