/* SPDX-License-Identifier: Apache-2.0 */
/* op_context_random.c - attention at random against sums over pairs in f64 that are written out
 * here: masks made of several, dtypes, groups, lengths, cuts of q, k and v that need not agree,
 * algorithms, meshes; forward and backward, packed or in a batch.
 *
 * TEST_ATTENTIONS=N: so many for each number of ranks. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/comm.h"
#include "harness/test.h"
#include "op/nn/attention.h"
#include "tessera/tessera.h"

enum { B, H, G, T, S, D, E, SIZES };
enum { LEAVES = 3, DOCUMENTS = 8, TABLES = 64 };
enum { FULL, CAUSAL, WINDOW, PREFIX, OF_DOCUMENTS, USER, KINDS };

/* ---- masks ----------------------------------------------------------------------------------- */

typedef struct leaf {
    int kind;
    int64_t a, b; /* of a window; of a prefix; which predicate */
    int64_t rows; /* of documents */
    int64_t length[2][DOCUMENTS];
} leaf;

/* leaf 0 (op 0) leaf 1 (op 1) leaf 2, and binds stronger. */
typedef struct form {
    int leaves;
    leaf leaf[LEAVES];
    bool either[LEAVES]; /* before leaf i */
    double cap;
    bool alibi;
    char text[2048];
} form;

static char tables[TABLES]; /* a predicate's number is its context's place here */

static int predicate(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    uint64_t seed = (uint64_t)((const char *)context - tables + 1) * 0x2545F4914F6CDD1Du >> 8;
    uint64_t h = seed ^ (uint64_t)(row * 1000003 + head * 10007);
    h = (h + (uint64_t)(query * 131071 + key)) * 0x9E3779B97F4A7C15u;
    return (h >> 40 & 255) < (seed & 255);
}

static bool same_document(const leaf *l, int64_t row, int64_t query, int64_t key)
{
    const int64_t *length = l->length[l->rows == 1 ? 0 : row];
    int64_t begin = 0;
    for (int i = 0; i < DOCUMENTS; begin += length[i++])
        if (query >= begin && query < begin + length[i])
            return key >= begin && key < begin + length[i];
    return false;
}

static bool leaf_sees(const leaf *l, int64_t row, int64_t head, int64_t query, int64_t key)
{
    switch (l->kind) {
    case CAUSAL:
        return key <= query;
    case WINDOW:
        return (l->a < 0 || key >= query - l->a) && (l->b < 0 || key <= query + l->b);
    case PREFIX:
        return key < l->a;
    case OF_DOCUMENTS:
        return same_document(l, row, query, key);
    case USER:
        return predicate(row, head, query, key, &tables[l->a]);
    }
    return true;
}

static bool form_sees(const form *f, int64_t row, int64_t head, int64_t query, int64_t key)
{
    bool any = false, all = true;
    for (int i = 0; i < f->leaves; i++) {
        if (i > 0 && f->either[i]) {
            any |= all;
            all = true;
        }
        all &= leaf_sees(&f->leaf[i], row, head, query, key);
    }
    return any || all;
}

static void say(form *f, const char *format, ...) TS_PRINTF(2, 3);
static void say(form *f, const char *format, ...)
{
    size_t have = strlen(f->text);
    va_list values;
    va_start(values, format);
    (void)vsnprintf(f->text + have, sizeof f->text - have, format, values);
    va_end(values);
}

static void say_leaf(form *f, const leaf *l)
{
    switch (l->kind) {
    case FULL:
        say(f, "full");
        break;
    case CAUSAL:
        say(f, "causal");
        break;
    case WINDOW:
        say(f, "window(%d, %d)", (int)l->a, (int)l->b);
        break;
    case PREFIX:
        say(f, "prefix(%d)", (int)l->a);
        break;
    case USER:
        say(f, "user(random%d)", (int)l->a);
        break;
    case OF_DOCUMENTS:
        say(f, "documents(");
        for (int64_t r = 0; r < l->rows; r++)
            for (int d = 0; d < DOCUMENTS; d++)
                say(f, "%s%d", d ? ", " : r ? "; " : "", (int)l->length[r][d]);
        say(f, ")");
    }
}

static void draw_documents(test *t, leaf *l, int64_t rows, int64_t keys)
{
    l->rows = test_random_below(t, 2) ? 1 : rows;
    for (int64_t r = 0; r < l->rows; r++) {
        int64_t left = keys;
        for (int i = 0; i + 1 < DOCUMENTS; i++) {
            l->length[r][i] = test_random_below(t, 3) ? test_random_below(t, left + 1) / 2 : 0;
            left -= l->length[r][i];
        }
        l->length[r][DOCUMENTS - 1] = left;
    }
}

static void draw_leaf(test *t, form *f, int i, const int64_t *size)
{
    leaf *l = &f->leaf[i];
    l->kind = (int)test_random_below(t, KINDS);
    if (l->kind == OF_DOCUMENTS && size[S] == 0) l->kind = CAUSAL;
    l->a = test_random_below(t, size[S] + 4) - 1;
    l->b = test_random_below(t, 3) ? test_random_below(t, 9) - 1 : 0;
    if (l->kind == PREFIX && l->a < 0) l->a = 0;
    if (l->kind == USER) l->a = test_random_below(t, TABLES);
    if (l->kind == OF_DOCUMENTS) draw_documents(t, l, size[B], size[S]);
    f->either[i] = test_random_below(t, 2);
    if (i > 0) say(f, "%s", f->either[i] ? " | " : " & ");
    say_leaf(f, l);
}

static void draw_form(test *t, form *f, const int64_t *size)
{
    memset(f, 0, sizeof *f);
    f->leaves = 1 + (int)test_random_below(t, LEAVES);
    for (int i = 0; i < f->leaves; i++)
        draw_leaf(t, f, i, size);
    if (test_random_below(t, 4) == 0) {
        f->cap = 2;
        say(f, " + softcap(2)");
    }
    f->alibi = test_random_below(t, 4) == 0;
    if (f->alibi) say(f, " + alibi");
}

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct sample {
    int64_t size[SIZES];
    form form;
    ts_dtype dtype;
    ts_attention_options options;
    bool packed, lends;
    char mesh[48], place[4][1024]; /* of q, k, v and the gradient */
} sample;

static double number(int which, int64_t b, int64_t h, int64_t t, int64_t d)
{
    uint64_t x = (uint64_t)which + 77;
    const int64_t at[] = { b, h, t, d };
    for (int i = 0; i < 4; i++)
        x = (x ^ (uint64_t)at[i]) * 0x9E3779B97F4A7C15u + 0x1234567u;
    return (double)(x >> 57) / 64.0 - 1.0; /* a number of every dtype */
}

typedef struct filling {
    int which;
    bool packed;
} filling;

static ts_status fill(const int64_t *at, void *element, void *context)
{
    const filling *f = context;
    *(double *)element = f->packed ? number(f->which, 0, at[1], at[0], at[2])
                                   : number(f->which, at[0], at[1], at[2], at[3]);
    return TS_OK;
}

static ts_tensor *operand(ts_mesh *mesh, const sample *s, int which)
{
    const int64_t *n = s->size;
    int64_t heads = which == 1 || which == 2 ? n[G] : n[H];
    int64_t length = which == 1 || which == 2 ? n[S] : n[T], last = which < 2 ? n[D] : n[E];
    ts_meta meta = { .shape = s->packed ? TS_SHAPE(length, heads, last)
                                        : TS_SHAPE(n[B], heads, length, last),
                     .dtype = TS_DTYPE_F64 };
    filling f = { which, s->packed };
    return ts_cast(ts_from_function(fill, &f, ts_sharding_get(mesh, s->place[which]), meta),
                   s->dtype);
}

static int64_t draw_length(test *t)
{
    static const int64_t lengths[] = { 0, 1, 2, 5, 16, 17, 37, 64, 127, 128, 129, 131, 257, 300 };
    return lengths[test_random_below(t, (int64_t)TSI_COUNT_OF(lengths))];
}

static void draw_sizes(test *t, int64_t *n)
{
    static const int64_t heads[] = { 1, 2, 3, 4, 6, 8 };
    n[B] = 1 + test_random_below(t, 2);
    n[H] = heads[test_random_below(t, 6)];
    do
        n[G] = 1 + test_random_below(t, n[H]);
    while (n[H] % n[G]);
    n[T] = draw_length(t);
    n[S] = test_random_below(t, 3) ? n[T] : draw_length(t);
    n[D] = 1 + test_random_below(t, 20);
    n[E] = test_random_below(t, 2) ? n[D] : 1 + test_random_below(t, 20);
}

static void draw_mesh(test *t, sample *s)
{
    static const char *const other[] = { "dp", "tp", "outer" };
    int64_t n = t->count, by = n % 2 == 0 && n > 2 && test_random_below(t, 2) ? 2 : 1;
    if (by == 1)
        (void)snprintf(s->mesh, sizeof s->mesh, "cp=%d", (int)n);
    else
        (void)snprintf(s->mesh, sizeof s->mesh, "%s=2, cp=%d", other[test_random_below(t, 3)],
                       (int)n / 2);
}

/* The cut of the sequence on cp. */
static void draw_cut(test *t, const sample *s, int dim, char *out, size_t size)
{
    int64_t kind = test_random_below(t, s->size[T] == s->size[S] ? 4 : 2);
    (void)snprintf(out, size, kind ? "cp:HT(%d)" : "cp:S(%d)", dim);
    if (kind < 2) return;
    ts_cut_options options = TS_INIT(ts_cut_options);
    ts_cut cut = { 0 };
    options.length = s->size[T];
    options.ranks = strchr(s->mesh, ',') ? t->count / 2 : t->count;
    options.align = 1 + test_random_below(t, 40);
    options.balance = kind == 2 ? TS_BALANCE_AUTO : TS_BALANCE_PTRR;
    TEST_OK(t, ts_cut_for(s->options.mask, &options, &cut));
    size_t length = ts_cut_text(&cut, dim, out + 3, size - 3);
    ts_cut_release(&cut);
    if (length >= size - 3) (void)snprintf(out, size, "cp:S(%d)", dim);
}

static void draw_places(test *t, sample *s)
{
    int sequence = s->packed ? 0 : 2, heads = 1;
    char cut[1024];
    draw_cut(t, s, sequence, cut, sizeof cut);
    const char *beside = NULL;
    int dim = sequence;
    if (strstr(s->mesh, "outer")) {
        beside = "outer";
        (void)snprintf(cut, sizeof cut, "cp:S(%d)", sequence);
    }
    if (strstr(s->mesh, "tp")) {
        beside = "tp";
        dim = heads;
    }
    if (strstr(s->mesh, "dp") && !s->packed) {
        beside = "dp";
        dim = 0;
    }
    for (int i = 0; i < 4; i++) {
        int have = snprintf(s->place[i], sizeof s->place[i], "%s", cut);
        if (beside)
            (void)snprintf(s->place[i] + have, sizeof s->place[i] - (size_t)have, " %s:S(%d)",
                           beside, dim);
    }
    static const char *const elsewhere[] = { "cp:R", "cp:S(0)", "cp:S(1)", "cp:HT(1)", "cp:S(2)" };
    for (int i = 0; i < 4 && test_random_below(t, 4) == 0; i++)
        (void)snprintf(s->place[i], sizeof s->place[i], "%s", elsewhere[test_random_below(t, 5)]);
}

static void draw(test *t, sample *s)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_F32, TS_DTYPE_BF16,
                                       TS_DTYPE_F16 };
    memset(s, 0, sizeof *s);
    draw_sizes(t, s->size);
    s->packed = test_random_below(t, 4) == 0;
    if (s->packed) s->size[B] = 1;
    s->dtype = dtypes[test_random_below(t, 5)];
    draw_form(t, &s->form, s->size);
    s->options = (ts_attention_options)TS_INIT(ts_attention_options);
    s->options.mask = ts_mask_get(ts_rank_world(t->me), s->form.text);
    s->options.scale = 0.1 + (double)test_random_below(t, 16) / 16.0;
    if (test_random_below(t, 4) == 0) {
        s->options.dropout = 0.25;
        s->options.seed = test_random(t) >> 1;
    }
    draw_mesh(t, s);
    draw_places(t, s);
    s->lends = test_random_below(t, 2);
    bool levels = strstr(s->mesh, "outer") != NULL;
    s->options.algorithm = (int32_t)test_random_below(t, levels ? 5 : 4);
}

/* ---- sums over pairs ------------------------------------------------------------------------- */

typedef struct answer {
    double *x[5]; /* out [B, H, T, E], lse, dq, dk, dv */
} answer;

static double slope(int64_t head, int64_t heads)
{
    int64_t n = 1;
    while (n * 2 <= heads)
        n *= 2;
    double step = pow(2.0, -8.0 / (double)n), half = pow(2.0, -4.0 / (double)n);
    return head < n ? pow(step, (double)head + 1) : pow(half, (double)(2 * (head - n) + 1));
}

typedef struct query {
    const sample *s;
    int64_t b, h, i;
    double *weight, *bend; /* of each key; derivative of the score by the product */
    double *kept;
} query;

static double weigh(const query *q)
{
    const sample *s = q->s;
    const int64_t *n = s->size;
    tsi_attention_attributes a = { .dropout = s->options.dropout,
                                   .seed = (int64_t)s->options.seed };
    ts_shape shape[] = { TS_SHAPE(n[B], n[H], n[T], n[D]), TS_SHAPE(n[B], n[G], n[S], n[D]) };
    tsi_attention_drop drop = tsi_attention_drop_of(&a, &shape[0], &shape[1]);
    int64_t place = q->i + n[S] - n[T], g = q->h / (n[H] / n[G]);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n[S]; j++) {
        double score = 0;
        q->weight[j] = -INFINITY;
        q->kept[j] = 1;
        if (!form_sees(&s->form, q->b, q->h, place, j)) continue;
        for (int64_t d = 0; d < n[D]; d++)
            score += number(0, q->b, q->h, q->i, d) * number(1, q->b, g, j, d);
        score *= s->options.scale;
        q->bend[j] = s->options.scale;
        if (s->form.cap > 0) {
            double bent = tanh(score / s->form.cap);
            q->bend[j] *= 1 - bent * bent;
            score = s->form.cap * bent;
        }
        if (s->form.alibi) score += slope(q->h, n[H]) * (double)(j - place);
        q->weight[j] = score;
        if (a.dropout > 0)
            q->kept[j] = tsi_attention_keeps(&drop, q->b, q->h, q->i, j) ? 1 / 0.75 : 0;
        top = fmax(top, score);
    }
    for (int64_t j = 0; j < n[S]; j++)
        sum += q->weight[j] = isinf(top) ? 0 : exp(q->weight[j] - top);
    for (int64_t j = 0; j < n[S] && sum > 0; j++)
        q->weight[j] /= sum;
    return top + log(sum);
}

static void add_query(const query *q, answer *out)
{
    const int64_t *n = q->s->size;
    int64_t g = q->h / (n[H] / n[G]), row = (q->b * n[H] + q->h) * n[T] + q->i;
    double *o = out->x[0] + row * n[E], delta = 0;
    double lse = weigh(q);
    out->x[1][row] = lse;
    if (isinf(lse)) return;
    for (int64_t j = 0; j < n[S]; j++)
        for (int64_t e = 0; e < n[E]; e++)
            o[e] += q->weight[j] * q->kept[j] * number(2, q->b, g, j, e);
    for (int64_t e = 0; e < n[E]; e++)
        delta += o[e] * number(3, q->b, q->h, q->i, e);
    for (int64_t j = 0; j < n[S]; j++) {
        if (q->weight[j] == 0) continue;
        int64_t key = (q->b * n[G] + g) * n[S] + j;
        double dp = 0;
        for (int64_t e = 0; e < n[E]; e++) {
            double d = number(3, q->b, q->h, q->i, e);
            dp += d * number(2, q->b, g, j, e);
            out->x[4][key * n[E] + e] += q->weight[j] * q->kept[j] * d;
        }
        double ds = q->weight[j] * (dp * q->kept[j] - delta) * q->bend[j];
        for (int64_t d = 0; d < n[D]; d++) {
            out->x[2][row * n[D] + d] += ds * number(1, q->b, g, j, d);
            out->x[3][key * n[D] + d] += ds * number(0, q->b, q->h, q->i, d);
        }
    }
}

static double *add_all(const sample *s, answer *out)
{
    const int64_t *n = s->size;
    int64_t queries = n[B] * n[H] * n[T], keys = n[B] * n[G] * n[S];
    int64_t count[] = { queries * n[E], queries, queries * n[D], keys * n[D], keys * n[E] };
    double *all = tsi_calloc(
        (size_t)(queries * (n[E] + n[D] + 1) + keys * (n[E] + n[D]) + 3 * n[S] + 1), sizeof *all);
    double *at = all;
    for (int i = 0; i < 5; i++) {
        out->x[i] = at;
        at += count[i];
    }
    query q = { .s = s, .weight = at, .bend = at + n[S], .kept = at + 2 * n[S] };
    for (q.b = 0; q.b < n[B]; q.b++)
        for (q.h = 0; q.h < n[H]; q.h++)
            for (q.i = 0; q.i < n[T]; q.i++)
                add_query(&q, out);
    return all;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static const char *describe(const sample *s, char *out, size_t size)
{
    const int64_t *n = s->size;
    (void)snprintf(out, size,
                   "%s, %s, algorithm %d%s%s, B %d H %d G %d T %d S %d D %d E %d, scale %g, "
                   "dropout %g, on %s: q %s, k %s, v %s, d %s",
                   s->form.text, ts_dtype_name(s->dtype), (int)s->options.algorithm,
                   s->packed ? ", packed" : "", s->lends ? ", lends" : "", (int)n[B], (int)n[H],
                   (int)n[G], (int)n[T], (int)n[S], (int)n[D], (int)n[E], s->options.scale,
                   s->options.dropout, s->mesh, s->place[0], s->place[1], s->place[2], s->place[3]);
    return out;
}

/* Element i of [B, H, T, ..] in row-major order; packed tensors are [T, H, ..]. */
static double element(const ts_array *x, bool packed, int64_t i)
{
    int64_t at[4] = { 0 }, from = 0;
    int32_t ndim = x->meta.shape.ndim;
    bool dense = true;
    int32_t order[4] = { 0, 1, 2, 3 };
    if (packed) {
        order[0] = 1;
        order[1] = 0;
    }
    for (int32_t d = ndim - 1; d >= 0; d--) {
        at[order[d]] = i % x->meta.shape.extent[order[d]];
        i /= x->meta.shape.extent[order[d]];
    }
    for (int32_t d = 0; d < ndim; d++)
        dense &= x->stride[d] == 0;
    for (int32_t d = 0; d < ndim; d++)
        from = dense ? from * x->meta.shape.extent[d] + at[d] : from + at[d] * x->stride[d];
    return ((const double *)x->data)[from];
}

static void compare(test *t, const sample *s, int which, ts_tensor *have, const double *want)
{
    static const char *const what[] = { "out", "lse", "dq", "dk", "dv" };
    ts_array view = TS_INIT(ts_array);
    ts_tensor *full = ts_cast(ts_tensor_full(have), TS_DTYPE_F64);
    if (!full || test_view(full, &view) != TS_OK || t->index != 0) return;
    int64_t count = ts_shape_count(&view.meta.shape), worst = -1;
    double size = 0, off = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(want[i])) size = fmax(size, fabs(want[i]));
    for (int64_t i = 0; i < count; i++) {
        double x = element(&view, s->packed, i);
        double d = isinf(want[i]) ? (x == want[i] ? 0 : (double)INFINITY) : fabs(x - want[i]);
        if (d <= off) continue;
        worst = i;
        off = d; /* or not a number */
        if (!(d <= 1e300)) break;
    }
    double allowed = s->dtype == TS_DTYPE_F64    ? 1e-12
                     : s->dtype == TS_DTYPE_F32  ? 1e-5
                     : s->dtype == TS_DTYPE_BF16 ? 6e-2
                                                 : 1e-2;
    /* What is saved of a narrow result is rounded, and the gradient of a key adds that up over all
     * queries, where the terms themselves may cancel. */
    if (which > 2 && ts_dtype_size(s->dtype) < 4) allowed *= 1 + sqrt((double)s->size[T]) / 8;
    char text[8192];
    TEST_SAY(t, off <= allowed * (1 + size), "%s is off by %g at %lld: %s", what[which], off,
             (long long)worst, describe(s, text, sizeof text));
}

static void try_one(test *t, const sample *s)
{
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &catching);
    ts_mesh *mesh = ts_mesh_create(t->me, s->mesh);
    ts_tensor *x[4], *have[5] = { NULL };
    for (int i = 0; i < 4; i++)
        x[i] = operand(mesh, s, i);
    tsi_comm_lend_nothing(t->me, !s->lends);
    (void)ts_attention_lse(x[0], x[1], x[2], &s->options, have);
    ts_attention_saved saved = { sizeof saved, x[0], x[1], x[2], have[0], have[1], x[3], NULL };
    (void)ts_attention_backward(&saved, &s->options, have + 2);
    /* two levels are refused where operands are not cut by two axes */
    bool may_refuse = s->options.algorithm == TS_ATTENTION_TWO_LEVEL;
    char text[8192];
    TEST_SAY(t, may_refuse || ts_rank_status(t->me) == TS_OK, "%s: %s", ts_rank_error(t->me)->text,
             describe(s, text, sizeof text));
    answer want;
    double *all = t->index == 0 ? add_all(s, &want) : NULL;
    const double none = 0;
    for (int i = 0; i < 5 && ts_rank_status(t->me) == TS_OK; i++)
        compare(t, s, i, have[i], all ? want.x[i] : &none);
    tsi_free(all);
    ts_mesh_release(mesh);
    (void)ts_scope_close(scope);
    tsi_comm_lend_nothing(t->me, false);
}

TS_TEST_RANKS(attention_at_random, 1, 2, 3, 4, 5, 6, 8)
{
    const char *text = getenv("TEST_ATTENTIONS");
    int64_t rounds = text ? strtoll(text, NULL, 10) : 8;
    uint64_t random = t->random + (uint64_t)t->count;
    for (int i = 0; i < TABLES; i++) {
        char name[24];
        (void)snprintf(name, sizeof name, "random%d", i);
        TEST_CHECK(t, ts_mask_user(ts_rank_world(t->me), name, predicate, &tables[i]));
    }
    t->random = random;
    for (int64_t round = 0; round < rounds && !test_failed(t); round++) {
        sample s;
        draw(t, &s);
        try_one(t, &s);
    }
}
