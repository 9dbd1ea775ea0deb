/* SPDX-License-Identifier: Apache-2.0 */
/* scope.h - scopes own temporaries, bound errors and set policy.
 *
 * What a maker returns belongs to the innermost open scope of its rank and goes when that scope
 * closes, unless it is passed out, retained, or held by work in flight. A scope is a token: closing
 * it closes what is still open inside; closing twice is harmless. Closing never waits. A handle
 * that is used after its scope closed is an error that names the scope. Outside of every scope is
 * the root, which ends with the rank: that it holds very many tensors is said once in the log.
 *
 * A catching scope takes the first error raised inside when it closes, and undoes the writes to
 * variables and the random numbers drawn since it opened. An error that the rank had already when
 * it opened stays pending, and close returns it. With `agree` its close is collective over
 * that mesh: if one rank failed inside, all of them have failed, and all undo. */
#ifndef TESSERA_SCOPE_H
#define TESSERA_SCOPE_H

#include "mesh.h"

typedef struct ts_tensor ts_tensor;

typedef struct ts_scope { /* never dangles */
    ts_rank *rank;
    uint64_t mark;
} ts_scope;

typedef enum ts_moves { TS_MOVES_INHERIT, TS_MOVES_ALLOW, TS_MOVES_WARN, TS_MOVES_FORBID } ts_moves;

typedef struct ts_scope_options {
    size_t struct_size;
    const char *label;          /* part of event names */
    ts_mesh *agree;             /* with catches: close is [coll]; one failed, all failed */
    int64_t implicit_bytes_max; /* with warn: said once an operator moves more than this */
    int32_t implicit_moves;     /* ts_moves; also for the backward of what is recorded inside */
    int32_t catches;            /* close takes the error raised inside; writes inside are undone */
    int32_t no_grad;
    int32_t caller_owns; /* tensors made inside are the caller's: they live until they are released,
                          * or dropped; for bindings. Scopes opened inside own theirs as usual */
    int32_t attention;   /* ts_attention_algorithm of calls inside that say none; 0: as around */
    uint32_t attention_forbid; /* bit a: no call inside takes algorithm a, nor what is forbidden
                                * around; their gradients neither */
    int32_t product;           /* ts_product_algorithm of products inside; 0: as around */
    uint32_t product_forbid;   /* bit a: as attention_forbid */
} ts_scope_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_scope_options_init(ts_scope_options *options);

TS_API ts_scope ts_scope_open(ts_rank *me, const char *label);                    /* [any] */
TS_API ts_scope ts_scope_open_with(ts_rank *me, const ts_scope_options *options); /* [any] */
TS_API ts_tensor *ts_scope_turn(ts_scope scope,
                                ts_tensor *carried); /* [any] frees all but carried */
TS_API ts_tensor *ts_scope_pass(ts_scope scope,
                                ts_tensor *tensor); /* [any] gives it to the parent */
TS_API ts_tensor *ts_scope_leave(ts_scope scope, ts_tensor *result); /* [any] pass, then close */
TS_API ts_status
ts_scope_close(ts_scope scope); /* [any] TS_OK, or the error a catching scope took */

TS_END_C
#endif
