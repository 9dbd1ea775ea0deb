/* SPDX-License-Identifier: Apache-2.0 */
/* rule.h - what an operator allows on one axis of a mesh, and how rules are derived from its
 * description.
 *
 * A role is what one operand is on one axis: R, S(d) ("some cut of dim d") or P(reduce). A rule
 * gives a role to every input and output: if the inputs have these roles, running the operator on
 * local blocks gives outputs of those roles. All S of a rule stand for one and the same kind of cut
 * (chunks, strided, ragged, ...), so a rule holds for any of them unless it says PLAIN; operands
 * may be said to be apart.
 *
 *   matmul "mk,kn->mn":   S(0),R->S(0)   S(1),S(0)->P(sum)   R,S(1)->S(1)   P(sum),R->P(sum)  ...
 *
 * INV: rule 0 is all-R; rules are in a fixed order that depends on nothing but the call; no two
 * rules have the same inputs (the first stays). */
#ifndef TSI_PLAN_RULE_H
#define TSI_PLAN_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "tessera/types.h"

typedef int8_t tsi_role;
enum {
    TSI_ROLE_NONE = -1 /* an optional operand that is absent */,
    TSI_ROLE_R = 0,
    TSI_ROLE_S0 = 1,
    TSI_ROLE_P0 = 16
};
#define TSI_S(dim) ((tsi_role)(TSI_ROLE_S0 + (dim)))
#define TSI_P(reduce) ((tsi_role)(TSI_ROLE_P0 + (reduce)))
static inline bool tsi_role_is_s(tsi_role role)
{
    return role >= TSI_ROLE_S0 && role < TSI_ROLE_P0;
}
static inline bool tsi_role_is_p(tsi_role role)
{
    return role >= TSI_ROLE_P0;
}
static inline int32_t tsi_role_dim(tsi_role role)
{
    return role - TSI_ROLE_S0;
}
static inline ts_reduce tsi_role_reduce(tsi_role role)
{
    return (ts_reduce)(role - TSI_ROLE_P0);
}

enum {
    TSI_RULE_PLAIN = 1, /* contiguous chunks only: S(d), no strided, ragged or head-tail cut */
    TSI_RULE_ALONE = 2, /* no second axis may cut a dim that this rule cuts */
    TSI_RULE_EVEN = 4   /* the cut dims must divide by the number of ranks */
};

enum { TSI_OPERAND_MAX = 64, TSI_RESULT_MAX = 8 };

typedef struct tsi_rules {
    int32_t input_count, output_count;
    int32_t count, capacity;
    tsi_role *role;     /* count rows of input_count + output_count */
    uint8_t *algorithm; /* per rule: 0 the kernel, k the operator's algorithm k */
    uint8_t *flags;     /* per rule: TSI_RULE_* */
    /* Operands (bit i: input i, then outputs) whose cuts are of a kind of their own: the S of these
     * stand for one kind, those of the others for another. */
    uint64_t apart;
    /* Algorithms of a higher number take axes of lower ones as they lie: where axes have several,
     * the highest runs. */
    bool nests;
    tsi_arena *arena;
    tsi_role spare[TSI_OPERAND_MAX + TSI_RESULT_MAX]; /* the row to fill once it failed */
    bool failed;                                      /* recorded; memory ran out, or: */
    ts_status why; /* what a rule that was said in words could not be read for; else 0 */
} tsi_rules;

/* An empty list that holds all-R. `absent`: bit i set if input i is absent. */
void tsi_rules_begin(tsi_rules *rules, int32_t input_count, int32_t output_count, uint64_t absent,
                     tsi_arena *arena);
/* A new row, all R (NONE where absent), to be filled; once `failed`, one that nobody reads. */
tsi_role *tsi_rules_add(tsi_rules *rules);
tsi_role *tsi_rules_add_with(tsi_rules *rules, uint8_t algorithm, uint8_t flags);
/* Drops rows whose inputs repeat an earlier row's; call once after the last row was filled. */
void tsi_rules_finish(tsi_rules *rules);
static inline const tsi_role *tsi_rules_row(const tsi_rules *rules, int32_t rule)
{
    return rules->role + (size_t)rule * (size_t)(rules->input_count + rules->output_count);
}

/* ---- how pending reductions flow through an operator (spec of each: docs/rules.md) ----------- */
enum {
    TSI_LINEAR_ALL = 1 << 0,  /* f(x+y) = f(x)+f(y) in all tensor inputs together: sum and avg pass
                                 when all are alike */
    TSI_LINEAR_EACH = 1 << 1, /* linear in each input alone: one input sum or avg, the others R */
    TSI_AVG_WITH_R = 1 << 2,  /* affine in each input: avg passes beside R */
    TSI_MULTIPLICATIVE = 1 << 3, /* f(xy) = f(x)f(y): prod passes when all inputs have it */
    TSI_SELECT = 1 << 4 /* moves or repeats elements: every kind passes, alike on all inputs */
};
/* Per input: is the operator monotone in it, for all values of the others? The last is defined from
 * some value upwards only (log, sqrt): terms of a minimum are never below it, so a minimum passes,
 * and terms of a maximum may be, so a maximum does not. */
typedef enum tsi_mono { TSI_MONO_NONE, TSI_MONO_UP, TSI_MONO_DOWN, TSI_MONO_UP_FROM } tsi_mono;
typedef struct tsi_traits {
    uint32_t flow;      /* TSI_LINEAR_ALL ... */
    uint32_t linear_in; /* with LINEAR_EACH or AVG_WITH_R: bit i: input i may be the partial one; 0:
                           any */
    int8_t mono[4];     /* tsi_mono of inputs 0..3: min and max pass beside R */
} tsi_traits;

/* ---- derivations: each adds rows ------------------------------------------------------------- */
/* Index expression "mk,kn->mn" over the given input metas: a letter that is absent from the result
 * is reduced by `reduce`; "x!" cannot be cut; a letter whose extents differ (broadcast) is R where
 * the extent is 1. Its last inputs may be absent. */
void tsi_rules_dims(tsi_rules *rules, const char *dims, const ts_meta *in, ts_reduce reduce);
int tsi_rules_letter(char c); /* which letter of an expression it is, from 0 on; -1: none */
/* Elementwise with broadcast: every dim of the result may be cut; inputs that lack it or have
 * extent 1 are R. */
void tsi_rules_pointwise(tsi_rules *rules, const ts_meta *in, const ts_meta *out);
/* Partials by traits, for all inputs and all outputs alike. */
void tsi_rules_partials(tsi_rules *rules, const tsi_traits *traits);
/* A reduction of input 0 over the dims of the mask: S(kept) -> S(renumbered), S(reduced) ->
 * P(reduce). */
void tsi_rules_reduction(tsi_rules *rules, int32_t ndim, uint32_t reduced, bool keepdim,
                         ts_reduce reduce);
/* One rule per dim of input 0 that is not in the mask: S(d) on all inputs and outputs that have
 * ndim dims alike. */
void tsi_rules_batch(tsi_rules *rules, int32_t ndim, uint32_t not_these);

#endif
