/* SPDX-License-Identifier: Apache-2.0 */
/* op_reduce.h - reductions, scans, softmax and norms over dims.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_REDUCE_H
#define TESSERA_OP_REDUCE_H

#include "tensor.h"

TS_BEGIN_C

/* Over the given dims; dims NULL: over all. A sharded dim that is reduced gives a partial result.
 */
TS_API ts_tensor *ts_sum(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_mean(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_prod(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_amax(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_amin(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_any(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_all(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);
TS_API ts_tensor *ts_count_nonzero(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);

/* A sharded dim of a softmax is done in two phases, not gathered. */
TS_API ts_tensor *ts_softmax(ts_tensor *x, int32_t dim);
TS_API ts_tensor *ts_log_softmax(ts_tensor *x, int32_t dim);
TS_API ts_tensor *ts_logsumexp(ts_tensor *x, const int64_t *dims, int32_t count, int keepdim);

/* Over the dims of the weight (NULL: the last dim). */
TS_API ts_tensor *ts_rms_norm(ts_tensor *x, ts_tensor *weight, double epsilon);
TS_API ts_tensor *ts_layer_norm(ts_tensor *x, ts_tensor *weight, ts_tensor *bias, double epsilon);

/* 1 where an element is among the k largest of the last dim, else 0. */
TS_API ts_tensor *ts_topk_mask(ts_tensor *x, int64_t k);

TS_END_C

/* In C, each call also tells its place, for messages and events. */
#ifndef __cplusplus
#define ts_sum(...) (ts_here(TS_HERE), ts_sum(__VA_ARGS__))
#define ts_mean(...) (ts_here(TS_HERE), ts_mean(__VA_ARGS__))
#define ts_prod(...) (ts_here(TS_HERE), ts_prod(__VA_ARGS__))
#define ts_amax(...) (ts_here(TS_HERE), ts_amax(__VA_ARGS__))
#define ts_amin(...) (ts_here(TS_HERE), ts_amin(__VA_ARGS__))
#define ts_any(...) (ts_here(TS_HERE), ts_any(__VA_ARGS__))
#define ts_all(...) (ts_here(TS_HERE), ts_all(__VA_ARGS__))
#define ts_count_nonzero(...) (ts_here(TS_HERE), ts_count_nonzero(__VA_ARGS__))
#define ts_softmax(...) (ts_here(TS_HERE), ts_softmax(__VA_ARGS__))
#define ts_log_softmax(...) (ts_here(TS_HERE), ts_log_softmax(__VA_ARGS__))
#define ts_logsumexp(...) (ts_here(TS_HERE), ts_logsumexp(__VA_ARGS__))
#define ts_rms_norm(...) (ts_here(TS_HERE), ts_rms_norm(__VA_ARGS__))
#define ts_layer_norm(...) (ts_here(TS_HERE), ts_layer_norm(__VA_ARGS__))
#endif

#endif
