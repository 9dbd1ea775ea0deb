/* SPDX-License-Identifier: Apache-2.0 */
/* op_user.h - operators of the user, registered at run time, with the rights of built-in ones.
 *
 * A descriptor says what the operator is: how shapes follow, which roles its inputs and outputs may
 * have on one mesh axis, how it is computed on a block, and its gradient in terms of operators.
 * Placements, moves, policy, plans, tapes, events and queries then work as for any other operator.
 *
 *   static const ts_op_desc desc = { .struct_size = sizeof desc, .name = "example.swish",
 *                                    .dims = "*->*", .input_count = 1, .output_count = 1,
 *                                    .kernel = kernel, .grad = grad, .saves = 1 };
 *   y = ts_op_apply(ts_op_register(me, &desc), &x, &attributes);
 *
 * Rules are proved when the operator is registered: the kernel runs on the blocks of 2, 3 and 2x2
 * simulated ranks with adversarial numbers, and a rule that does not hold is refused with the
 * numbers that show it. */
#ifndef TESSERA_OP_USER_H
#define TESSERA_OP_USER_H

#include "op_call.h"

/* How pending reductions pass (docs/rules.md), besides what `dims` or `shard` say. */
enum {
    TS_FLOW_LINEAR_ALL = 1,     /* linear in all inputs together: sum and avg, alike on all */
    TS_FLOW_LINEAR_EACH = 2,    /* linear in each input alone: one is sum or avg, the others R */
    TS_FLOW_AVG_WITH_R = 4,     /* affine in each input: avg passes beside R */
    TS_FLOW_MULTIPLICATIVE = 8, /* f(xy) = f(x)f(y): prod, alike on all */
    TS_FLOW_SELECT = 16,        /* moves or repeats elements: every kind, alike on all */
    TS_FLOW_UP = 32,            /* never falls when an input rises: min and max of one input */
    TS_FLOW_DOWN = 64           /* never rises when an input rises: min becomes max */
};

typedef enum ts_op_phase { TS_PHASE_FORWARD, TS_PHASE_BACKWARD } ts_op_phase;

typedef struct ts_op_io { /* what compose and grad see; may grow at the end */
    size_t struct_size;
    ts_rank *rank;
    const void *attributes;
    /* compose: the inputs, NULL where absent. grad: what was saved (inputs, NULL where absent, then
     * outputs, in order), then the gradients of the outputs, NULL where none arrived. */
    ts_tensor *const *input;
    ts_tensor **output; /* compose: the outputs. grad: the gradients of the inputs; NULL: none */
    const ts_sharding *const *output_sharding; /* compose: where the plan wants the outputs */
    const ts_shape *output_shape;              /* compose: outputs; grad: inputs */
    int32_t input_count, output_count;
    int32_t phase;  /* ts_op_phase */
    uint32_t needs; /* grad: bit i: the gradient of input i is wanted */
} ts_op_io;

typedef struct ts_op_desc { /* static, the same on every rank; its address is its identity */
    size_t struct_size;
    const char *name; /* "example.swish": no built-in operator's, lower case */
    const char *dims; /* index expression "mk,kn->mn", or "*->*" for elementwise with broadcast */
    uint64_t saves;   /* bit i: input i, bit 32+j: output j; nothing else reaches grad */
    uint64_t attributes_bytes; /* of the plain struct that ts_op_apply copies; padding zeroed */
    int32_t input_count, output_count;
    /* Shapes and dtypes of the outputs; NULL with "*->*": those of the broadcast inputs. */
    ts_status (*infer)(const void *attributes, const ts_meta *in, ts_meta *out);
    /* Rule number 0, 1, ... on one axis as text, "S(0),R->S(0)", "P(sum)->P(sum)"; all-R always
     * holds and is not said. NULL ends the list. Besides `dims`, or instead of it. Words after the
     * roles narrow a rule: "plain" (contiguous chunks only), "even", "alone" (docs/rules.md). */
    ts_status (*shard)(const void *attributes, const ts_meta *in, int32_t rule, const char **text);
    /* The blocks of this rank, contiguous, meta.shape the local one; writes every output. An empty
     * block of a reduced input gives the identity of the reduction. */
    ts_status (*kernel)(const void *attributes, const ts_array *const *in, ts_array *const *out);
    /* Instead of kernel: a body of operators that may communicate; the inputs have the placements
     * of a rule. Implicit moves inside are its own affair. Its rules cannot be proved. */
    void (*compose)(const ts_op_io *io);
    void (*grad)(
        const ts_op_io *io); /* of operators, so it shards; NULL: none, backward is refused */
    /* ---- all optional: zero means what a small operator wants */
    const char *what;     /* one line for people */
    int32_t input_min;    /* trailing inputs may be NULL down to this number; 0: none may */
    int32_t dims_reduce;  /* ts_reduce of letters that the result lacks; 0: sum */
    uint32_t flow;        /* TS_FLOW_* */
    uint32_t dtypes;      /* bit d: what kernel takes; others are cast around it, to the widest of
                           * their kind or of one that holds it, else refused. 0: anything */
    uint32_t flow_inputs; /* with LINEAR_EACH, AVG_WITH_R, UP, DOWN: the inputs meant; 0: all */
    uint32_t reserved;
    const ts_op_attribute *attribute; /* table, for requests in JSON */
    /* Random valid shapes, dtypes and attributes for the proof; `variant` counts up from 0, false:
     * no more. NULL: made from dims, with the attributes' defaults (or zeros). */
    int32_t (*sample)(uint64_t *random, int32_t variant, ts_meta *in, void *attributes);
} ts_op_desc;

TS_BEGIN_C

/* maker; local and idempotent, for all ranks of the world in this process. Refused with a sentence:
 * a descriptor that is not whole, a name that is taken, a rule that is false (with the numbers). A
 * rule that was refused on one rank is refused on all. */
TS_API const ts_op *ts_op_register(ts_rank *me, const ts_op_desc *desc);
/* maker: the first output. `attributes` NULL: defaults (of the table, else zeros). Of registered
 * operators only: ts_op_call knows attributes by name and calls any. */
TS_API ts_tensor *ts_op_apply(const ts_op *op, ts_tensor *const *input, const void *attributes);
/* recorded: all outputs, all NULL on failure. */
TS_API ts_status ts_op_apply_all(const ts_op *op, ts_tensor *const *input, const void *attributes,
                                 ts_tensor **output);
/* In infer, shard and kernel: records why, and returns the status, for `return ts_op_fail(...)`. */
TS_API ts_status ts_op_fail(ts_status status, const char *format, ...) TS_PRINTF(2, 3);

TS_API const ts_op *ts_op_registered(ts_rank *me, const char *name); /* getter; NULL */

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_op_register(...) (ts_here(TS_HERE), ts_op_register(__VA_ARGS__))
#define ts_op_apply(...) (ts_here(TS_HERE), ts_op_apply(__VA_ARGS__))
#define ts_op_apply_all(...) (ts_here(TS_HERE), ts_op_apply_all(__VA_ARGS__))

#endif
