/* SPDX-License-Identifier: Apache-2.0 */
/* einsum.c - sums of products by an equation, over any number of inputs up to eight.
 *
 * "...ij,...jk" is rewritten to plain letters and an explicit result before anything else, so only
 * that form is known below. Rules come letter by letter (contract.c); several inputs are contracted
 * from the left, pair by pair, keeping the letters that are still needed. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "op/matrix/chunks.h"
#include "op/matrix/contract.h"

enum { INPUTS = 8, TEXT = TSI_ATTRIBUTE_TEXT };

typedef struct einsum_attributes {
    char equation[TEXT];
    int32_t wide, reserved; /* real factors narrower than f32, and a result in f32 */
    tsi_chunks chunks;
} einsum_attributes;
static const tsi_attribute einsum_table[] = {
    TSI_ATTR(einsum_attributes, equation, TEXT, "equation", NULL),
    TSI_ATTR(einsum_attributes, wide, BOOL, "wide", "false"),
    TSI_CHUNKS_ATTRIBUTES(einsum_attributes, chunks),
    { 0 }
};

/* The letters of the operands of a plain equation: the inputs, then the result. */
typedef struct letters {
    char text[INPUTS + 1][TEXT];
    int32_t count; /* inputs */
} letters;

static void letters_of(const char *equation, letters *out)
{
    memset(out, 0, sizeof *out);
    int32_t operand = 0, used = 0;
    for (const char *c = equation; *c; c++) {
        if (*c == ',' || *c == '-') {
            if (*c == '-') c++;
            operand += operand < INPUTS;
            used = 0;
        } else if (used < TEXT - 1) {
            out->text[operand][used++] = *c;
        }
    }
    out->count = operand;
}

/* ---- the plain form -------------------------------------------------------------------------- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* How many dims "..." stands for in each input; the most of them. -1: it does not fit. */
static int32_t dots_of(const char *equation, const ts_meta *in, int32_t count)
{
    int32_t most = 0, operand = 0, named = 0;
    bool dots = false;
    for (const char *c = equation;; c++) {
        if (*c == ',' || *c == '-' || !*c) {
            int32_t ndim = operand < count ? in[operand].shape.ndim : 0;
            if (dots && ndim - named > most) most = ndim - named;
            operand++;
            named = 0;
            dots = false;
            if (*c != ',') return most;
        }
        named += is_letter(*c);
        dots |= *c == '.';
    }
}

typedef struct rewriting {
    char text[TEXT];
    int32_t used;
    bool full;
} rewriting;

static void put(rewriting *r, char c)
{
    if (r->used + 1 >= TEXT)
        r->full = true;
    else
        r->text[r->used++] = c;
}

/* The last `count` of the letters that stand for dots. */
static void put_dots(rewriting *r, const char *free_letters, int32_t most, int32_t count)
{
    for (int32_t k = most - count; k < most; k++)
        if (k >= 0) put(r, free_letters[k]);
}

/* Letters that occur once, in order, for an equation without a result. */
static void put_result(rewriting *r, const char *given, const char *dots, int32_t most)
{
    int32_t seen[128] = { 0 };
    for (const char *c = given; *c; c++)
        if (is_letter(*c)) seen[(unsigned char)*c]++;
    put(r, '-');
    put(r, '>');
    if (strchr(given, '.')) put_dots(r, dots, most, most);
    for (int32_t c = 0; c < 128; c++)
        if (seen[c] == 1) put(r, (char)c);
}

/* Letters the equation does not use. */
static void unused_letters(const char *given, char *out)
{
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    int32_t used = 0;
    for (const char *c = all; *c && used < TS_NDIM_MAX; c++)
        if (!strchr(given, *c)) out[used++] = *c;
    out[used] = '\0';
}

static ts_status einsum_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                  void *attributes)
{
    (void)op;
    einsum_attributes *a = attributes;
    char given[TEXT], dots[TS_NDIM_MAX + 1];
    memcpy(given, a->equation, sizeof given);
    given[TEXT - 1] = '\0';
    bool plain = strstr(given, "->") && !strchr(given, '.') && !strchr(given, ' ');
    if (plain) return TS_OK;
    rewriting r = { .used = 0 };
    int32_t most = dots_of(given, in, count), operand = 0;
    unused_letters(given, dots);
    if (most > (int32_t)strlen(dots))
        return TSI_FAIL(TS_ERR_ARG, "einsum: no letters are left for the dots of \"%s\"", given);
    for (const char *c = given; *c; c++) {
        if (*c == ' ') continue;
        if (*c == ',') operand++;
        if (*c == '-') operand = INPUTS;
        if (strncmp(c, "...", 3) != 0) {
            put(&r, *c);
            continue;
        }
        const char *begin = c, *end = c + 3;
        int32_t named = 0;
        while (begin > given && begin[-1] != ',')
            named += is_letter(*--begin);
        for (; *end && *end != ',' && *end != '-'; end++)
            named += is_letter(*end);
        int32_t ndim = operand < count ? in[operand].shape.ndim : most + named;
        put_dots(&r, dots, most, operand < INPUTS ? ndim - named : most);
        c += 2;
    }
    if (!strstr(given, "->")) put_result(&r, given, dots, most);
    if (r.full) return TSI_FAIL(TS_ERR_ARG, "einsum: the equation \"%s\" is too long", given);
    memset(a->equation, 0, sizeof a->equation);
    memcpy(a->equation, r.text, (size_t)r.used);
    return TS_OK;
}

/* ---- inference and rules --------------------------------------------------------------------- */

/* Letters of the product of inputs 0 .. last that something later needs. */
static void kept_letters(const letters *l, int32_t last, char *out)
{
    int32_t used = 0;
    for (int32_t i = 0; i <= last; i++)
        for (const char *c = l->text[i]; *c; c++) {
            bool needed = false;
            for (int32_t k = last + 1; k <= l->count; k++)
                needed |= strchr(l->text[k], *c) != NULL;
            if (needed && !memchr(out, *c, (size_t)used) && used < TEXT - 1) out[used++] = *c;
        }
    out[used] = '\0';
}

/* The loops of a pair have at most eight dims inside and outside. */
static ts_status check_size(const einsum_attributes *a)
{
    letters l;
    letters_of(a->equation, &l);
    for (int32_t last = 1; last < l.count; last++) {
        char kept[TEXT], pair[2 * TEXT];
        int32_t distinct = 0;
        kept_letters(&l, last, kept);
        if (last == 1)
            snprintf(pair, sizeof pair, "%s%s", l.text[0], l.text[1]);
        else {
            kept_letters(&l, last - 1, pair);
            strncat(pair, l.text[last], TEXT - 1);
        }
        for (const char *c = pair; *c; c++)
            distinct += strchr(c + 1, *c) == NULL;
        int32_t outside = (int32_t)strlen(kept);
        if (outside <= TS_NDIM_MAX && distinct - outside <= TS_NDIM_MAX &&
            distinct <= TSI_LETTERS_MAX)
            continue;
        return TSI_FAIL(TS_ERR_ARG,
                        "einsum: \"%s\" has %d dims in the product of two inputs, %d "
                        "of them kept: at most 8 are kept and 8 summed",
                        a->equation, distinct, outside);
    }
    return TS_OK;
}

static ts_status einsum_infer(const tsi_op_call *call)
{
    const einsum_attributes *a = call->attributes;
    ts_shape shape;
    TSI_TRY(tsi_equation_infer("einsum", a->equation, call->in, call->input_count, &shape));
    TSI_TRY(check_size(a));
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    for (int32_t i = 1; i < call->input_count; i++)
        dtype = tsi_dtype_promote(dtype, (ts_dtype)call->in[i].dtype);
    bool narrow = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    if (a->wide && narrow) dtype = TS_DTYPE_F32;
    call->out[0] = (ts_meta){ .shape = shape, .dtype = (int32_t)dtype };
    return tsi_chunks_check(call);
}

/* Rows of the first of two factors: a letter that is there once, in the same place of the result,
 * and not in the other. */
static uint64_t einsum_rows(const tsi_op_call *call, int32_t dim)
{
    letters l;
    letters_of(((const einsum_attributes *)call->attributes)->equation, &l);
    char letter = l.text[0][dim];
    if (l.count != 2 || !letter || l.text[2][dim] != letter || strchr(l.text[1], letter)) return 0;
    bool once = strchr(l.text[0], letter) == strrchr(l.text[0], letter) && l.text[0][dim + 1];
    return once && l.text[2][dim + 1] && call->in[1].shape.ndim == 2 &&
           call->in[0].shape.extent[dim] == call->out[0].shape.extent[dim];
}

static const tsi_chunks_desc einsum_chunks = { offsetof(einsum_attributes, chunks), einsum_rows };

static void einsum_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const einsum_attributes *a = call->attributes;
    tsi_equation_rules(rules, a->equation, call->input_count, call->in, call->out);
    letters l;
    letters_of(a->equation, &l);
    bool selects = l.count == 1; /* a permutation or a diagonal: any kind of term passes */
    for (const char *c = l.text[0]; *c; c++)
        selects &= strchr(l.text[1], *c) != NULL;
    for (int reduce = TS_REDUCE_SUM; selects && reduce <= TS_REDUCE_OR; reduce++) {
        if (reduce == TS_REDUCE_SUM || reduce == TS_REDUCE_AVG) continue; /* those are there */
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[1] = TSI_P(reduce);
    }
    tsi_chunks_rules(call, rules);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* A contiguous block with the extents that the letters have in the two operands. */
static ts_status make_between(const char *kept, const char *left, const tsi_block *a,
                              const char *right, const tsi_block *b, ts_dtype dtype, tsi_block *out)
{
    *out = (tsi_block){ .dtype = (int32_t)dtype, .ndim = (int32_t)strlen(kept) };
    for (int32_t d = 0; d < out->ndim; d++) {
        const char *x = strchr(left, kept[d]), *y = strchr(right, kept[d]);
        int64_t extent = x ? a->extent[x - left] : 1;
        if (y && (!x || extent == 1)) extent = b->extent[y - right];
        out->extent[d] = extent;
    }
    size_t bytes = ((size_t)tsi_block_count(out) + 1) * ts_dtype_size(dtype);
    *out = tsi_block_dense_like(out, tsi_alloc(bytes));
    return out->data ? TS_OK : tsi_fail_memory("a product of two inputs", bytes);
}

static ts_status contract_pair(const char *left, const tsi_block *a, const char *right,
                               const tsi_block *b, const char *kept, const tsi_block *c,
                               tsi_contract_fn contract)
{
    char equation[3 * TEXT];
    tsi_contraction problem;
    snprintf(equation, sizeof equation, "%s,%s->%s", left, right, kept);
    tsi_contraction_make(equation, a, b, c, &problem);
    return contract(&problem, false);
}

ts_status tsi_einsum_by(const tsi_kernel_io *io, tsi_contract_fn contract)
{
    const einsum_attributes *a = io->attributes;
    const tsi_block *out = &io->out[0].block;
    tsi_contraction problem;
    if (io->input_count <= 2) {
        tsi_contraction_make(a->equation, &io->in[0].block,
                             io->input_count > 1 ? &io->in[1].block : NULL, out, &problem);
        return contract(&problem, false);
    }
    letters l;
    letters_of(a->equation, &l);
    tsi_block left = io->in[0].block, made = { .data = NULL };
    char names[TEXT], kept[TEXT];
    memcpy(names, l.text[0], sizeof names);
    ts_status status = TS_OK;
    for (int32_t i = 1; i < io->input_count && status == TS_OK; i++) {
        const tsi_block *right = &io->in[i].block;
        tsi_block next = *out;
        bool last = i + 1 == io->input_count;
        if (last)
            memcpy(kept, l.text[l.count], sizeof kept);
        else
            kept_letters(&l, i, kept);
        if (!last)
            status =
                make_between(kept, names, &left, l.text[i], right, (ts_dtype)out->dtype, &next);
        if (status == TS_OK)
            status = contract_pair(names, &left, l.text[i], right, kept, &next, contract);
        tsi_free(made.data);
        made = last ? (tsi_block){ .data = NULL } : next;
        left = next;
        memcpy(names, kept, sizeof names);
    }
    tsi_free(made.data);
    return status;
}

static ts_status einsum_reference(const tsi_kernel_io *io)
{
    return tsi_einsum_by(io, tsi_contract_reference);
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* The product of dy with all inputs but one, with those letters of that one (`once`) that it has.
 */
static ts_tensor *product_of_others(const tsi_grad_io *io, const letters *l, int32_t input,
                                    const char *once, char *have)
{
    char equation[(INPUTS + 2) * TEXT];
    ts_tensor *in[INPUTS];
    int32_t count = 0, used = 0;
    size_t length = 0;
    for (int32_t i = 0; i <= l->count; i++) {
        int32_t k = i == 0 ? l->count : i - 1; /* dy first */
        if (i > 0 && k == input) continue;
        in[count++] = i == 0 ? io->out_grad[0] : io->in[k];
        length += (size_t)snprintf(equation + length, sizeof equation - length, "%s%s",
                                   i ? "," : "", l->text[k]);
    }
    for (const char *c = once; *c; c++) {
        bool there = false;
        for (int32_t k = 0; k <= l->count; k++)
            there |= k != input && strchr(l->text[k], *c);
        if (there) have[used++] = *c;
    }
    have[used] = '\0';
    snprintf(equation + length, sizeof equation - length, "->%s", have);
    return (ts_einsum_many)(equation, in, count);
}

/* Dims that were summed alone, or that all others broadcast: each of their places has the same
 * gradient. */
static ts_tensor *spread(ts_tensor *g, const char *have, const char *want, const ts_meta *meta)
{
    ts_shape shape = meta->shape;
    bool missing = false;
    for (int32_t d = 0; want[d] && g; d++) {
        if (!strchr(have, want[d])) g = ts_unsqueeze(g, d);
        int64_t extent = g ? ts_tensor_shape(g).extent[d] : 1;
        if (extent == 1)
            missing |= shape.extent[d] != 1;
        else
            shape.extent[d] = extent;
    }
    return missing && g ? ts_expand(g, shape) : g;
}

/* The first dim of an input that has the letter with its whole extent, not 1 beside others. */
static int32_t carrier_of(const char *text, const ts_shape *shape, char letter)
{
    int32_t best = -1;
    for (int32_t d = 0; text[d]; d++)
        if (text[d] == letter && (best < 0 || shape->extent[d] > shape->extent[best])) best = d;
    return best;
}

/* The letters of an input, each once, and the shape of its diagonal. */
static void diagonal_of(const char *text, const ts_shape *shape, char *once, ts_meta *meta)
{
    int32_t used = 0;
    meta->shape = TS_SHAPE_SCALAR;
    for (int32_t d = 0; text[d]; d++) {
        if (carrier_of(text, shape, text[d]) != d) continue;
        once[used++] = text[d];
        meta->shape.extent[meta->shape.ndim++] = shape->extent[d];
    }
    once[used] = '\0';
}

/* Dim `from` of g again, as a new last dim: g on the diagonal of both, else zero. */
static ts_tensor *on_diagonal(ts_tensor *g, int32_t from)
{
    int32_t ndim = ts_tensor_shape(g).ndim;
    g = ts_unsqueeze(ts_transpose(g, from, ndim - 1), ndim);
    ts_shape shape = ts_tensor_shape(g);
    if (!g) return NULL;
    shape.extent[ndim] = shape.extent[ndim - 1];
    g = ts_tril(ts_triu(ts_expand(g, shape), 0), 0);
    return g ? ts_transpose(g, from, ndim - 1) : NULL;
}

/* From the letters of an input, each once, to its dims: letters that it has twice are a diagonal.
 */
static ts_tensor *undo_diagonal(ts_tensor *g, const char *text, const ts_shape *shape)
{
    int32_t used = 0, ndim = (int32_t)strlen(text);
    int64_t place[TS_NDIM_MAX]; /* dim d of the input is dim place[d] of g */
    for (int32_t d = 0; d < ndim; d++)
        if (carrier_of(text, shape, text[d]) == d) place[d] = used++;
    if (used == ndim) return g;
    for (int32_t d = 0; d < ndim && g; d++) {
        int32_t carrier = carrier_of(text, shape, text[d]);
        if (carrier == d) continue;
        bool alone = shape->extent[d] != shape->extent[carrier]; /* 1 */
        g = alone ? ts_unsqueeze(g, used) : on_diagonal(g, (int32_t)place[carrier]);
        place[d] = used++;
    }
    return g ? ts_permute(g, place, ndim) : NULL;
}

static ts_status einsum_grad(const tsi_grad_io *io)
{
    letters l;
    letters_of(((const einsum_attributes *)io->attributes)->equation, &l);
    for (int32_t i = 0; i < io->input_count; i++) {
        if (!(io->needs >> i & 1)) continue;
        char have[TEXT], once[TEXT];
        ts_meta diagonal = io->in_meta[i];
        diagonal_of(l.text[i], &io->in_meta[i].shape, once, &diagonal);
        ts_tensor *g = product_of_others(io, &l, i, once, have);
        g = spread(g, have, once, &diagonal);
        g = g ? tsi_grad_unbroadcast(g, &diagonal) : NULL;
        io->in_grad[i] = g ? undo_diagonal(g, l.text[i], &io->in_meta[i].shape) : NULL;
    }
    return ts_rank_status(io->rank);
}

/* ---- the row --------------------------------------------------------------------------------- */

static bool sample_einsum(tsi_sample *s)
{
    static const struct {
        const char *equation;
        int32_t count;
        ts_shape shape[3];
    } calls[] = {
        { "bhqd,bhkd->bhqk",
          2,
          { { 4, 0, { 2, 3, 4, 5 } }, { 4, 0, { 2, 3, 2, 5 } }, { 0, 0, { 0 } } } },
        { "ij,kj->ki", 2, { { 2, 0, { 5, 4 } }, { 2, 0, { 3, 4 } }, { 0, 0, { 0 } } } },
        { "...ij,jk", 2, { { 3, 0, { 2, 5, 4 } }, { 2, 0, { 4, 3 } }, { 0, 0, { 0 } } } },
        { "ab,bc,cd->da", 3, { { 2, 0, { 5, 4 } }, { 2, 0, { 4, 3 } }, { 2, 0, { 3, 2 } } } },
        { "ijk->ki", 1, { { 3, 0, { 5, 4, 3 } }, { 0, 0, { 0 } }, { 0, 0, { 0 } } } },
        { "bii->bi", 1, { { 3, 0, { 3, 4, 4 } }, { 0, 0, { 0 } }, { 0, 0, { 0 } } } },
        { "ii,ij->j", 2, { { 2, 0, { 4, 4 } }, { 2, 0, { 4, 5 } }, { 0, 0, { 0 } } } },
    };
    if (s->variant >= (int32_t)TSI_COUNT_OF(calls)) return false;
    einsum_attributes *a = s->attributes;
    a->chunks.scatter = -1;
    snprintf(a->equation, sizeof a->equation, "%s", calls[s->variant].equation);
    s->count = calls[s->variant].count;
    for (int32_t i = 0; i < s->count; i++)
        s->in[i] = tsi_meta_f64(calls[s->variant].shape[i]);
    return true;
}

/* Once for every combination of all letters and each further factor; the equation is spelled out.
 */
static double einsum_flops(const tsi_op_call *call)
{
    const einsum_attributes *a = call->attributes;
    double extent[128] = { 0 }, all = 1.0;
    int32_t operand = 0, dim = 0;
    for (const char *c = a->equation; *c && *c != '-' && operand < call->input_count; c++) {
        if (*c == ',') {
            operand++;
            dim = 0;
        } else if (is_letter(*c)) {
            double size = (double)call->in[operand].shape.extent[dim++];
            double *have = &extent[(unsigned char)*c];
            if (size > *have) *have = size; /* an extent of 1 broadcasts */
        }
    }
    for (int32_t c = 0; c < 128; c++)
        if (extent[c] > 0) all *= extent[c];
    return 2.0 * all * (double)(call->input_count - 1);
}

const tsi_op_desc tsi_op_einsum = {
    .name = "einsum",
    .what = "sum of products by an equation, \"...ij,...jk->...ik\", over one to eight inputs",
    TSI_OPERANDS(1, INPUTS, 1),
    .saves = (1u << INPUTS) - 1,
    TSI_ATTRIBUTES(einsum_table, einsum_attributes),
    .algorithm = tsi_chunks_algorithms,
    .pick = tsi_chunks_pick,
    .fuse = tsi_chunks_fuse,
    .arrives = tsi_chunks_arrive,
    .chunks = &einsum_chunks,
    .normalise = einsum_normalise,
    .infer = einsum_infer,
    .rules = einsum_rules,
    .reference = einsum_reference,
    .grad = einsum_grad,
    .flops = einsum_flops,
    .sample = sample_einsum,
};

typedef struct einsum_said {
    bool wide;
    int64_t scatter;
} einsum_said;

static ts_tensor *einsum_make(const char *equation, ts_tensor *const *in, int32_t count,
                              einsum_said said)
{
    einsum_attributes attributes = { .equation = "",
                                     .wide = said.wide,
                                     .chunks = tsi_chunks_wanted(count > 0 ? in[0] : NULL) };
    attributes.chunks.scatter = said.scatter;
    snprintf(attributes.equation, sizeof attributes.equation, "%s", equation ? equation : "");
    if (equation && strlen(equation) >= TEXT) {
        TSI_FAIL(TS_ERR_ARG, "einsum: the equation \"%.40s...\" is longer than %d characters",
                 equation, TEXT - 1);
        return NULL;
    }
    return tsi_op_make(&tsi_op_einsum, in, count, &attributes);
}

ts_tensor *(ts_einsum_many)(const char *equation, ts_tensor *const *in, int32_t count)
{
    return einsum_make(equation, in, count, (einsum_said){ false, -1 });
}

ts_tensor *tsi_einsum_said(const char *equation, ts_tensor *a, ts_tensor *b, bool wide,
                           int64_t scatter)
{
    ts_tensor *in[] = { a, b };
    return einsum_make(equation, in, 2, (einsum_said){ wide, scatter });
}

ts_tensor *(ts_einsum)(const char *equation, ts_tensor *a, ts_tensor *b)
{
    ts_tensor *in[] = { a, b };
    return (ts_einsum_many)(equation, in, b ? 2 : 1);
}
