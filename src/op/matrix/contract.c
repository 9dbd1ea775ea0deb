/* SPDX-License-Identifier: Apache-2.0 */
/* contract.c - equations: their shapes, their rules, and the plain loops that compute them. */
#include "op/matrix/contract.h"

#include <string.h>

/* ---- reading an equation --------------------------------------------------------------------- */

/* The letters of one operand: those of the inputs stand first, then those of the result. */
typedef struct part {
    const char *text;
    int32_t length;
} part;

static part part_at(const char *text)
{
    int32_t length = 0;
    while (text[length] && text[length] != ',' && text[length] != '-')
        length++;
    return (part){ text, length };
}

/* The operand after this one; after the last an empty one. */
static part next_part(part p)
{
    const char *end = p.text + p.length;
    return part_at(end + (*end == '-' ? 2 : *end == ','));
}

static int32_t place_in(const char *text, int32_t length, char letter)
{
    for (int32_t i = 0; i < length; i++)
        if (text[i] == letter) return i;
    return -1;
}

static ts_status check_text(const char *op, const char *equation, int32_t input_count)
{
    const char *arrow = strstr(equation, "->");
    int32_t commas = 0;
    for (const char *c = equation; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        if (*c == ',') commas++;
        bool sign = *c == ',' || (arrow && (c == arrow || c == arrow + 1));
        if (!letter && !sign)
            return TSI_FAIL(TS_ERR_ARG, "%s: '%c' has no meaning in the equation \"%s\"", op, *c,
                            equation);
    }
    if (!arrow) return TSI_FAIL(TS_ERR_ARG, "%s: the equation \"%s\" lacks \"->\"", op, equation);
    if (commas + 1 != input_count)
        return TSI_FAIL(TS_ERR_ARG, "%s: the equation \"%s\" names %d inputs, given are %d", op,
                        equation, commas + 1, input_count);
    return TS_OK;
}

/* Extents by letter; a letter of extent 1 in one input broadcasts against another. */
static ts_status extents_of(const char *op, const char *equation, const ts_meta *in,
                            int32_t input_count, int64_t *extent)
{
    for (int32_t c = 0; c < 128; c++)
        extent[c] = -1;
    part p = part_at(equation);
    for (int32_t i = 0; i < input_count; i++, p = next_part(p)) {
        if (p.length != in[i].shape.ndim)
            return TSI_FAIL(TS_ERR_SHAPE, "%s: input %d has %d dims, the equation \"%s\" names %d",
                            op, i, in[i].shape.ndim, equation, p.length);
        for (int32_t d = 0; d < p.length; d++) {
            int64_t *known = &extent[(unsigned char)p.text[d]], mine = in[i].shape.extent[d];
            if (*known >= 0 && *known != mine && *known != 1 && mine != 1)
                return TSI_FAIL(TS_ERR_SHAPE,
                                "%s: dim '%c' is %lld in one place and %lld in another (\"%s\")",
                                op, p.text[d], (long long)*known, (long long)mine, equation);
            if (*known < 0 || *known == 1) *known = mine;
        }
    }
    return TS_OK;
}

ts_status tsi_equation_infer(const char *op, const char *equation, const ts_meta *in,
                             int32_t input_count, ts_shape *out)
{
    TSI_TRY(check_text(op, equation, input_count));
    int64_t extent[128];
    TSI_TRY(extents_of(op, equation, in, input_count, extent));
    part result = part_at(strstr(equation, "->") + 2);
    *out = (ts_shape){ .ndim = result.length };
    if (result.length > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: the result has %d dims", op, result.length);
    for (int32_t d = 0; d < result.length; d++) {
        char letter = result.text[d];
        if (extent[(unsigned char)letter] < 0)
            return TSI_FAIL(TS_ERR_ARG, "%s: dim '%c' of the result is in no input (\"%s\")", op,
                            letter, equation);
        if (place_in(result.text, d, letter) >= 0)
            return TSI_FAIL(TS_ERR_ARG, "%s: dim '%c' occurs twice in the result (\"%s\")", op,
                            letter, equation);
        out->extent[d] = extent[(unsigned char)letter];
    }
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* A bias (input 2) follows the result's dims from the right, and carries what is pending in it. */
static tsi_role bias_role(const ts_meta *bias, const ts_meta *out, tsi_role result)
{
    if (tsi_role_is_p(result)) return result;
    if (!tsi_role_is_s(result)) return TSI_ROLE_R;
    int32_t dim = tsi_role_dim(result) - (out->shape.ndim - bias->shape.ndim);
    bool there =
        dim >= 0 && (bias->shape.extent[dim] != 1 || out->shape.extent[tsi_role_dim(result)] == 1);
    return there ? TSI_S(dim) : TSI_ROLE_R;
}

static void finish_row(const tsi_rules *rules, tsi_role *row, int32_t factors, const ts_meta *in,
                       const ts_meta *out)
{
    if (rules->input_count > factors && row[factors] != TSI_ROLE_NONE)
        row[factors] = bias_role(&in[factors], out, row[rules->input_count]);
}

static void letter_rule(tsi_rules *rules, const char *equation, char letter, int32_t factors,
                        const ts_meta *in, const ts_meta *out)
{
    tsi_role *row = tsi_rules_add(rules);
    bool single = true; /* of extent 1 wherever it stands: then it is cut, not broadcast */
    part p = part_at(equation);
    for (int32_t i = 0; i < factors; i++, p = next_part(p)) {
        int32_t d = place_in(p.text, p.length, letter);
        if (d >= 0) row[i] = TSI_S(d);
        if (d >= 0 && in[i].shape.extent[d] > 1) single = false;
    }
    for (int32_t i = 0; i < factors && !single; i++)
        if (tsi_role_is_s(row[i]) && in[i].shape.extent[tsi_role_dim(row[i])] == 1)
            row[i] = TSI_ROLE_R;
    int32_t d = place_in(p.text, p.length, letter);
    row[rules->input_count] = d >= 0 ? TSI_S(d) : TSI_P(TS_REDUCE_SUM);
    finish_row(rules, row, factors, in, out);
}

static void partial_rule(tsi_rules *rules, int32_t input, ts_reduce reduce, int32_t factors,
                         const ts_meta *in, const ts_meta *out)
{
    tsi_role *row = tsi_rules_add(rules);
    row[input] = row[rules->input_count] = TSI_P(reduce);
    finish_row(rules, row, factors, in, out);
}

static bool is_diagonal(const char *equation, int32_t operands, char letter)
{
    part p = part_at(equation);
    for (int32_t k = 0; k < operands; k++, p = next_part(p)) {
        int32_t after = place_in(p.text, p.length, letter) + 1;
        if (after > 0 && place_in(p.text + after, p.length - after, letter) >= 0) return true;
    }
    return false;
}

/* A bias alone may be pending an extreme or an average: the product is the same on every rank. */
static void bias_rules(tsi_rules *rules)
{
    const ts_reduce kinds[] = { TS_REDUCE_AVG, TS_REDUCE_MIN, TS_REDUCE_MAX };
    for (size_t k = 0; k < TSI_COUNT_OF(kinds); k++) {
        tsi_role *row = tsi_rules_add(rules);
        if (!row || row[2] == TSI_ROLE_NONE) return;
        row[2] = row[3] = TSI_P(kinds[k]);
    }
}

void tsi_equation_rules(tsi_rules *rules, const char *equation, int32_t factors, const ts_meta *in,
                        const ts_meta *out)
{
    bool seen[128] = { false };
    for (const char *c = equation; *c && *c != '-'; c++) {
        unsigned char letter = (unsigned char)*c;
        if (*c == ',' || seen[letter]) continue;
        seen[letter] = true;
        if (!is_diagonal(equation, factors, *c)) letter_rule(rules, equation, *c, factors, in, out);
    }
    for (int32_t i = 0; i < factors; i++) {
        partial_rule(rules, i, TS_REDUCE_SUM, factors, in, out);
        partial_rule(rules, i, TS_REDUCE_AVG, factors, in, out);
    }
    if (rules->input_count > factors) bias_rules(rules);
}

/* ---- the local problem ----------------------------------------------------------------------- */

static void add_operand(tsi_contraction *p, part letters, const tsi_block *block, int which)
{
    for (int32_t d = 0; d < letters.length; d++) {
        tsi_letter *letter = NULL;
        for (int32_t l = 0; l < p->letter_count && !letter; l++)
            if (p->letter[l].name == letters.text[d]) letter = &p->letter[l];
        if (!letter) {
            letter = &p->letter[p->letter_count++];
            *letter = (tsi_letter){ .name = letters.text[d], .dim = { -1, -1, -1 }, .extent = 1 };
        }
        letter->dim[which] = (int8_t)d;
        if (block->extent[d] == 1) continue; /* broadcasts: no stride */
        letter->extent = block->extent[d];
        letter->stride[which] += block->stride[d]; /* a diagonal adds up */
    }
}

void tsi_contraction_make(const char *equation, const tsi_block *a, const tsi_block *b,
                          const tsi_block *c, tsi_contraction *out)
{
    *out = (tsi_contraction){ .a = *a, .c = *c };
    const tsi_block *block[3] = { a, b, c };
    if (b) out->b = *b;
    part p = part_at(equation);
    for (int32_t k = 0; k < 3; k++) {
        if (!block[k]) continue;
        add_operand(out, p, block[k], k);
        p = next_part(p);
    }
}

/* ---- plain loops ----------------------------------------------------------------------------- */

/* Result letters outside, the others inside: one sum per result element. */
typedef struct letter_loops {
    tsi_loop outer, inner;
    int64_t stride[6][TS_NDIM_MAX * 2];
} letter_loops;

static void loops_make(const tsi_contraction *p, letter_loops *loops)
{
    memset(loops, 0, sizeof *loops);
    loops->outer.operand_count = loops->inner.operand_count = 3;
    for (int32_t l = 0; l < p->letter_count; l++) {
        const tsi_letter *letter = &p->letter[l];
        bool outside = letter->dim[2] >= 0;
        tsi_loop *loop = outside ? &loops->outer : &loops->inner;
        TSI_ASSERT(loop->ndim < TS_NDIM_MAX);
        loop->extent[loop->ndim] = letter->extent;
        for (int k = 0; k < 3; k++)
            loops->stride[outside ? k : 3 + k][loop->ndim] = letter->stride[k];
        loop->ndim++;
    }
    for (int k = 0; k < 3; k++) {
        loops->outer.stride[k] = loops->stride[k];
        loops->inner.stride[k] = loops->stride[3 + k];
    }
}

static double complex sum_of(const tsi_contraction *p, letter_loops *loops)
{
    double complex sum = 0;
    bool one = p->b.dtype == TS_DTYPE_NONE;
    for (bool more = tsi_loop_begin(&loops->inner); more; more = tsi_loop_next(&loops->inner)) {
        double complex x = tsi_block_complex(&p->a, loops->outer.at[0] + loops->inner.at[0]);
        if (!one) x *= tsi_block_complex(&p->b, loops->outer.at[1] + loops->inner.at[1]);
        sum += x;
    }
    return sum;
}

static int64_t whole_sum_of(const tsi_contraction *p, letter_loops *loops)
{
    uint64_t sum = 0;
    bool one = p->b.dtype == TS_DTYPE_NONE;
    for (bool more = tsi_loop_begin(&loops->inner); more; more = tsi_loop_next(&loops->inner)) {
        uint64_t x = (uint64_t)tsi_block_int(&p->a, loops->outer.at[0] + loops->inner.at[0]);
        if (!one) x *= (uint64_t)tsi_block_int(&p->b, loops->outer.at[1] + loops->inner.at[1]);
        sum += x;
    }
    return (int64_t)sum;
}

ts_status tsi_contract_reference(const tsi_contraction *p, bool accumulate)
{
    letter_loops loops;
    loops_make(p, &loops);
    ts_dtype dtype = (ts_dtype)p->c.dtype;
    bool whole = tsi_dtype_category(dtype) <= TSI_CATEGORY_INT;
    for (bool more = tsi_loop_begin(&loops.outer); more; more = tsi_loop_next(&loops.outer)) {
        void *target = tsi_block_at(&p->c, loops.outer.at[2]);
        if (whole) {
            int64_t before = accumulate ? tsi_load_int(dtype, target) : 0;
            tsi_store_int(dtype, target, before + whole_sum_of(p, &loops));
        } else {
            double complex before = accumulate ? tsi_load_complex(dtype, target) : 0;
            tsi_store_complex(dtype, target, before + sum_of(p, &loops));
        }
    }
    return TS_OK;
}
