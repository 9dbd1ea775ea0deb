/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - proof by exhaustion that the rules of the operator table are true.
 *
 * For every operator, several sampled calls, every rule on one axis of 2, 3 and 4 ranks: inputs are
 * localised as the rule says (even, uneven and empty shards, adversarial terms), the plain local
 * kernel runs on each block, the results are put together as the rule says, and must be those of
 * one block. What plans do on 3, 2x2, 3x2 and 2x2x2 ranks, with inputs in any placements and with
 * extents of 0 and 1, is checked in the same way. And the other way round: every assignment of
 * roles that turns out to be legal must be offered, or have a written reason. */
#ifndef TESSERA_VERIFY_H
#define TESSERA_VERIFY_H

#include "world.h"

typedef struct ts_verify_options {
    size_t struct_size;
    const char *const *op; /* names; NULL: the whole table */
    int32_t op_count;
    int32_t quick; /* 1: fewer samples of what is too much to enumerate */
    uint64_t seed; /* of what is sampled */
    void (*say)(const char *line, void *context); /* each finding; may be NULL */
    void *context;
} ts_verify_options;

typedef struct ts_verify_result { /* may grow at the end */
    size_t struct_size;
    int64_t operators, calls; /* sampled calls */
    int64_t rules;            /* checked, all calls together */
    int64_t plans;            /* of inputs that lie in any way, on several axes */
    int64_t assignments;      /* of roles that were tried beyond the rules */
    int64_t false_count;      /* rules or plans that are wrong */
    int64_t missed_count;     /* legal, free, not offered, and without a reason */
    int64_t accepted_count;   /* not offered for a written reason */
} ts_verify_result;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_verify_options_init(ts_verify_options *options);

/* Local; the calling thread must not be attached to a rank. Refused: unknown names (with the
 * nearest). TS_OK also when something was found: see the result. */
TS_API TS_NODISCARD ts_status ts_verify_rules(ts_world *world, const ts_verify_options *options,
                                              ts_verify_result *out);

TS_END_C
#endif
