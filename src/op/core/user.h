/* SPDX-License-Identifier: Apache-2.0 */
/* user.h - a registered operator: the user's descriptor behind a built-in one's face.
 *
 * INV: tsi_op_desc comes first, so that callbacks find the user's functions from their `op`. */
#ifndef TSI_OP_USER_H
#define TSI_OP_USER_H

#include "op/core/call.h"
#include "tessera/op_user.h"

typedef struct tsi_user_op tsi_user_op;
struct tsi_user_op {
    tsi_op_desc desc;
    ts_op face;               /* what users hold of it */
    ts_op_desc user;          /* a copy */
    const ts_op_desc *source; /* its identity */
    ts_world *world;          /* that knows it, and ends it */
    tsi_algorithm algorithm[2];
    void *defaults;      /* attribute bytes where none are given */
    char *name, *reason; /* reason: why it was refused; NULL: it is in use */
    ts_status refused;
    int32_t reserved;
    tsi_user_op *next;
};

static inline const tsi_user_op *tsi_user_of(const tsi_op_desc *op)
{
    return (const tsi_user_op *)(const void *)op;
}

/* Is it a shape and a dtype that a tensor can have? User code says what it likes. */
bool tsi_user_is_meta(const ts_meta *meta);
/* The callbacks of tsi_op_desc (user_run.c). */
ts_status tsi_user_infer(const tsi_op_call *call);
ts_status tsi_user_kernel(const tsi_kernel_io *io);
ts_status tsi_user_compose(const tsi_algorithm_io *io);
ts_status tsi_user_grad(const tsi_grad_io *io);
/* After a user's function, before which tsi_error_forget was called, failed: a status with a
 * sentence, the user's own where it gave one (ts_op_fail). */
ts_status tsi_user_failed(const char *op, const char *what, ts_status status);
/* Rules as text, and samples made from dims (user_rule.c). */
void tsi_user_rules(const tsi_op_call *call, tsi_rules *rules);
void tsi_user_traits(const tsi_op_call *call, tsi_traits *out);
bool tsi_user_sample(const tsi_user_op *op, uint64_t *random, int32_t variant, ts_meta *in,
                     int32_t *input_count, void *attributes);
/* The letters of each operand in its index expression, inputs, then outputs; false: that does not
 * read as one of its operands. */
bool tsi_user_letters(const ts_op_desc *user, int32_t *letters);
/* Refuses an operator whose rules do not hold (verify.c). */
ts_status tsi_verify_user(ts_world *world, const tsi_op_desc *op);
/* All of a world, newest first. */
const tsi_user_op *tsi_user_first(ts_world *world);

#endif
