/* SPDX-License-Identifier: Apache-2.0 */
/* op_random.h - dropout and random tensors like another.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_RANDOM_H
#define TESSERA_OP_RANDOM_H

#include "tensor.h"

TS_BEGIN_C

/* The same numbers for any placement and any number of ranks; the scope's stream goes on by one. */
TS_API ts_tensor *ts_dropout(ts_tensor *x, double p); /* 0 with probability p, else x / (1 - p) */
TS_API ts_tensor *ts_rand_like(ts_tensor *x);         /* uniform, from 0 up to 1 */
TS_API ts_tensor *ts_randn_like(ts_tensor *x);        /* mean 0, deviation 1 */
TS_API ts_tensor *ts_randint_like(ts_tensor *x, int64_t low, int64_t high); /* low <= y < high */
TS_API ts_tensor *ts_bernoulli(ts_tensor *p); /* 1 with that probability, else 0 */

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_dropout(...) (ts_here(TS_HERE), ts_dropout(__VA_ARGS__))
#define ts_rand_like(...) (ts_here(TS_HERE), ts_rand_like(__VA_ARGS__))
#define ts_randn_like(...) (ts_here(TS_HERE), ts_randn_like(__VA_ARGS__))
#define ts_randint_like(...) (ts_here(TS_HERE), ts_randint_like(__VA_ARGS__))
#define ts_bernoulli(...) (ts_here(TS_HERE), ts_bernoulli(__VA_ARGS__))

#endif
