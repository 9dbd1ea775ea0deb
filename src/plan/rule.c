/* SPDX-License-Identifier: Apache-2.0 */
/* rule.c - lists of rules, and the derivation of rules from index expressions and traits. */
#include "plan/rule.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { LETTERS = 52, NOT_THERE = -1 };

/* ---- lists ----------------------------------------------------------------------------------- */

static bool rules_grow(tsi_rules *rules)
{
    if (rules->count < rules->capacity) return true;
    size_t width = (size_t)(rules->input_count + rules->output_count);
    int32_t capacity = rules->capacity ? 2 * rules->capacity : 24;
    tsi_role *role = tsi_arena_alloc(rules->arena, (size_t)capacity * width);
    uint8_t *algorithm = tsi_arena_alloc(rules->arena, (size_t)capacity);
    uint8_t *flags = tsi_arena_alloc(rules->arena, (size_t)capacity);
    if (!role || !algorithm || !flags) {
        rules->failed = true;
        tsi_fail_memory("the rules of an operator", (size_t)capacity * (width + 2));
        return false;
    }
    if (rules->count > 0) {
        memcpy(role, rules->role, (size_t)rules->count * width);
        memcpy(algorithm, rules->algorithm, (size_t)rules->count);
        memcpy(flags, rules->flags, (size_t)rules->count);
    }
    rules->role = role;
    rules->algorithm = algorithm;
    rules->flags = flags;
    rules->capacity = capacity;
    return true;
}

void tsi_rules_begin(tsi_rules *rules, int32_t input_count, int32_t output_count, uint64_t absent,
                     tsi_arena *arena)
{
    *rules =
        (tsi_rules){ .input_count = input_count, .output_count = output_count, .arena = arena };
    TSI_ASSERT(input_count <= TSI_OPERAND_MAX && output_count <= TSI_RESULT_MAX);
    tsi_role *row = tsi_rules_add(rules);
    for (int32_t i = 0; i < input_count && i < 64; i++)
        if (absent >> i & 1) row[i] = TSI_ROLE_NONE;
}

tsi_role *tsi_rules_add_with(tsi_rules *rules, uint8_t algorithm, uint8_t flags)
{
    size_t width = (size_t)(rules->input_count + rules->output_count);
    if (rules->failed || !rules_grow(rules)) return memset(rules->spare, TSI_ROLE_R, width);
    tsi_role *row = rules->role + (size_t)rules->count * width;
    if (rules->count == 0)
        memset(row, TSI_ROLE_R, width);
    else
        memcpy(row, rules->role, width); /* all-R, with NONE where absent */
    rules->algorithm[rules->count] = algorithm;
    rules->flags[rules->count] = flags;
    rules->count++;
    return row;
}

tsi_role *tsi_rules_add(tsi_rules *rules)
{
    return tsi_rules_add_with(rules, 0, 0);
}

void tsi_rules_finish(tsi_rules *rules)
{
    size_t inputs = (size_t)rules->input_count, width = inputs + (size_t)rules->output_count;
    int32_t kept = 0;
    for (int32_t i = 0; i < rules->count; i++) {
        bool again = false;
        for (int32_t j = 0; j < kept && !again; j++)
            again = memcmp(tsi_rules_row(rules, i), tsi_rules_row(rules, j), inputs) == 0;
        if (again) continue;
        if (kept != i) {
            memcpy(rules->role + (size_t)kept * width, tsi_rules_row(rules, i), width);
            rules->algorithm[kept] = rules->algorithm[i];
            rules->flags[kept] = rules->flags[i];
        }
        kept++;
    }
    rules->count = kept;
}

/* ---- index expressions ----------------------------------------------------------------------- */

/* Where each letter stands in each operand; operands are inputs, then outputs. */
typedef struct expression {
    int8_t dim[LETTERS][TSI_OPERAND_MAX + TSI_RESULT_MAX];
    bool used[LETTERS], fixed[LETTERS];
    int order[LETTERS], letter_count, input_count, operand_count;
} expression;

int tsi_rules_letter(char c)
{
    if (c >= 'a' && c <= 'z') return c - 'a';
    if (c >= 'A' && c <= 'Z') return 26 + c - 'A';
    return -1;
}

static void expression_parse(expression *e, const char *dims)
{
    memset(e, 0, sizeof *e);
    memset(e->dim, NOT_THERE, sizeof e->dim);
    int operand = 0, place = 0;
    for (const char *c = dims; *c; c++) {
        int letter = tsi_rules_letter(*c);
        if (letter >= 0) {
            if (!e->used[letter]) e->order[e->letter_count++] = letter;
            e->used[letter] = true;
            if (e->dim[letter][operand] != NOT_THERE) e->fixed[letter] = true; /* a diagonal */
            e->dim[letter][operand] = (int8_t)place++;
            if (c[1] == '!') e->fixed[letter] = true;
        } else if (*c == ',' || *c == '-') {
            operand++;
            place = 0;
            if (*c == '-') e->input_count = operand;
        }
    }
    e->operand_count = operand + 1;
}

void tsi_rules_dims(tsi_rules *rules, const char *dims, const ts_meta *in, ts_reduce reduce)
{
    expression e;
    expression_parse(&e, dims);
    TSI_ASSERT(rules->input_count <= e.input_count);
    TSI_ASSERT(rules->output_count == e.operand_count - e.input_count);
    for (int l = 0; l < e.letter_count; l++) {
        int letter = e.order[l];
        if (e.fixed[letter]) continue;
        int64_t extent = 1;
        for (int32_t i = 0; i < rules->input_count; i++) {
            int8_t dim = e.dim[letter][i];
            if (dim != NOT_THERE && in[i].shape.extent[dim] > extent)
                extent = in[i].shape.extent[dim];
        }
        tsi_role *row = tsi_rules_add(rules);
        for (int32_t i = 0; i < rules->input_count; i++) {
            int8_t dim = e.dim[letter][i];
            bool broadcast = dim != NOT_THERE && in[i].shape.extent[dim] == 1 && extent != 1;
            if (dim != NOT_THERE && !broadcast && row[i] != TSI_ROLE_NONE) row[i] = TSI_S(dim);
        }
        for (int32_t o = 0; o < rules->output_count; o++) {
            int8_t dim = e.dim[letter][e.input_count + o];
            row[rules->input_count + o] = dim != NOT_THERE ? TSI_S(dim) : TSI_P(reduce);
        }
    }
}

void tsi_rules_pointwise(tsi_rules *rules, const ts_meta *in, const ts_meta *out)
{
    int32_t ndim = out[0].shape.ndim;
    for (int32_t d = 0; d < ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        for (int32_t i = 0; i < rules->input_count; i++) {
            int32_t dim = d - (ndim - in[i].shape.ndim); /* right-aligned */
            if (row[i] == TSI_ROLE_NONE || dim < 0) continue;
            bool broadcast = in[i].shape.extent[dim] == 1 && out[0].shape.extent[d] != 1;
            if (!broadcast) row[i] = TSI_S(dim);
        }
        for (int32_t o = 0; o < rules->output_count; o++)
            row[rules->input_count + o] = TSI_S(d);
    }
}

void tsi_rules_reduction(tsi_rules *rules, int32_t ndim, uint32_t reduced, bool keepdim,
                         ts_reduce reduce)
{
    int32_t kept = 0;
    for (int32_t d = 0; d < ndim; d++) {
        bool gone = reduced >> d & 1;
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_S(d);
        for (int32_t o = 0; o < rules->output_count; o++)
            row[rules->input_count + o] = gone ? TSI_P(reduce) : TSI_S(keepdim ? d : kept);
        if (!gone) kept++;
    }
}

void tsi_rules_batch(tsi_rules *rules, int32_t ndim, uint32_t not_these)
{
    for (int32_t d = 0; d < ndim; d++) {
        if (not_these >> d & 1) continue;
        tsi_role *row = tsi_rules_add(rules);
        for (int32_t i = 0; i < rules->input_count + rules->output_count; i++)
            if (row[i] != TSI_ROLE_NONE) row[i] = TSI_S(d);
    }
}

/* ---- partials -------------------------------------------------------------------------------- */

/* Input roles: `mine` for the inputs in the mask, R elsewhere; outputs: `result`. */
static void add_partial(tsi_rules *rules, uint64_t inputs, tsi_role mine, tsi_role result)
{
    tsi_role *row = tsi_rules_add(rules);
    for (int32_t i = 0; i < rules->input_count; i++)
        if (inputs >> (i < 63 ? i : 63) & 1 && row[i] != TSI_ROLE_NONE) row[i] = mine;
    for (int32_t o = 0; o < rules->output_count; o++)
        row[rules->input_count + o] = result;
}

static const ts_reduce every_reduce[] = { TS_REDUCE_SUM, TS_REDUCE_AVG,  TS_REDUCE_MIN,
                                          TS_REDUCE_MAX, TS_REDUCE_PROD, TS_REDUCE_AND,
                                          TS_REDUCE_OR };

static void add_linear(tsi_rules *rules, const tsi_traits *traits)
{
    const ts_reduce linear[] = { TS_REDUCE_SUM, TS_REDUCE_AVG };
    uint64_t any = traits->linear_in ? traits->linear_in : UINT64_MAX;
    for (int k = 0; k < 2; k++) {
        tsi_role p = TSI_P(linear[k]);
        if (traits->flow & TSI_LINEAR_ALL) add_partial(rules, UINT64_MAX, p, p);
        bool each = traits->flow & TSI_LINEAR_EACH ||
                    (traits->flow & TSI_AVG_WITH_R && linear[k] == TS_REDUCE_AVG);
        for (int32_t i = 0; each && i < rules->input_count && i < 63; i++)
            if (any >> i & 1) add_partial(rules, UINT64_C(1) << i, p, p);
    }
}

static void add_monotone(tsi_rules *rules, const tsi_traits *traits)
{
    for (int32_t i = 0; i < rules->input_count && i < 4; i++) {
        if (traits->mono[i] == TSI_MONO_NONE) continue;
        bool up = traits->mono[i] != TSI_MONO_DOWN;
        uint64_t only = UINT64_C(1) << i;
        add_partial(rules, only, TSI_P(TS_REDUCE_MIN), TSI_P(up ? TS_REDUCE_MIN : TS_REDUCE_MAX));
        if (traits->mono[i] == TSI_MONO_UP_FROM) continue;
        add_partial(rules, only, TSI_P(TS_REDUCE_MAX), TSI_P(up ? TS_REDUCE_MAX : TS_REDUCE_MIN));
    }
}

void tsi_rules_partials(tsi_rules *rules, const tsi_traits *traits)
{
    add_linear(rules, traits);
    add_monotone(rules, traits);
    if (traits->flow & TSI_MULTIPLICATIVE)
        add_partial(rules, UINT64_MAX, TSI_P(TS_REDUCE_PROD), TSI_P(TS_REDUCE_PROD));
    for (size_t k = 0; traits->flow & TSI_SELECT && k < TSI_COUNT_OF(every_reduce); k++)
        add_partial(rules, UINT64_MAX, TSI_P(every_reduce[k]), TSI_P(every_reduce[k]));
}
