/* SPDX-License-Identifier: Apache-2.0 */
/* op_view.h - views, joins and index arithmetic.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_VIEW_H
#define TESSERA_OP_VIEW_H

#include "tensor.h"

TS_BEGIN_C

TS_API ts_tensor *ts_reshape(ts_tensor *x, ts_shape shape); /* one extent may be -1 */
TS_API ts_tensor *ts_flatten(ts_tensor *x, int32_t first,
                             int32_t last); /* dims first..last into one */
TS_API ts_tensor *ts_unflatten(ts_tensor *x, int32_t dim,
                               ts_shape sizes); /* one dim into several */
TS_API ts_tensor *ts_permute(ts_tensor *x, const int64_t *dims, int32_t count);
TS_API ts_tensor *ts_transpose(ts_tensor *x, int32_t dim_a, int32_t dim_b);
TS_API ts_tensor *ts_squeeze(ts_tensor *x, const int64_t *dims,
                             int32_t count); /* dims NULL: all of extent 1 */
TS_API ts_tensor *ts_unsqueeze(ts_tensor *x, int32_t dim);
TS_API ts_tensor *ts_expand(ts_tensor *x, ts_shape shape); /* -1: as it is */

TS_END_C

/* In C, each call also tells its place, for messages and events. */
#ifndef __cplusplus
#define ts_permute(...) (ts_here(TS_HERE), ts_permute(__VA_ARGS__))
#define ts_transpose(...) (ts_here(TS_HERE), ts_transpose(__VA_ARGS__))
#define ts_squeeze(...) (ts_here(TS_HERE), ts_squeeze(__VA_ARGS__))
#define ts_unsqueeze(...) (ts_here(TS_HERE), ts_unsqueeze(__VA_ARGS__))
#define ts_expand(...) (ts_here(TS_HERE), ts_expand(__VA_ARGS__))
#define ts_reshape(...) (ts_here(TS_HERE), ts_reshape(__VA_ARGS__))
#define ts_flatten(...) (ts_here(TS_HERE), ts_flatten(__VA_ARGS__))
#define ts_unflatten(...) (ts_here(TS_HERE), ts_unflatten(__VA_ARGS__))
#endif

#endif
