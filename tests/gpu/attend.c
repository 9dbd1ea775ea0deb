/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c - attention and its gradient on a GPU, by cuDNN and by the own kernels, against the
 * host: plain, with every kind of mask, with weights that are dropped, over a sequence that is cut;
 * equal bits of repeated calls; and rates of the layers of two models and of two masks.
 *
 * How far a result may be off, as a part of its largest number: 2^-6 of bf16 and 2^-9 of f16 (two
 * roundings of results, and of weights and their gradients on either side), 1e-5 of f32 (sums of up
 * to 300 in another order, exponentials of each side's own), 1e-12 of f64. Of results below 1, as a
 * part of 1: the terms of a gradient that cancel out (a query with one key) are of that size. */
#include "gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/mask.h"
#include "tessera/op.h"
#include "tessera/tensor.h"

typedef enum kind {
    NO_MASK,
    WINDOW,
    BACK,      /* causal & window */
    PREFIX,    /* or a window */
    DOCUMENTS, /* causal, other ones in the second row */
    BARRED,    /* all but the first document see nothing */
    USER,      /* differs by row and head; some queries see nothing */
    TABLE,     /* a dense one; the same */
    CAPPED,
    LEANING, /* alibi */
    ALL,     /* a window or a prefix, capped and leaning */
    KINDS
} kind;

typedef struct shape {
    const char *name;
    int64_t b, h, g, t, s, d, e;
    int32_t causal;
    ts_dtype dtype;
    kind mask;
    double dropout;
    const char *cut;   /* NULL: not; else of [B, T, H, D] */
    int32_t algorithm; /* of a sequence that is cut */
} shape;

static const shape shapes[] = {
    { "plain", 2, 4, 4, 96, 96, 64, 64, 0, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "causal", 2, 4, 4, 128, 128, 64, 64, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "causal, groups", 2, 6, 2, 200, 200, 64, 64, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "causal, later queries", 1, 4, 2, 64, 192, 128, 128, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "causal, f16", 1, 2, 2, 80, 80, 64, 64, 1, TS_DTYPE_F16, 0, 0, 0, 0 },
    { "causal, heads of 96", 2, 4, 2, 150, 150, 96, 96, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "causal, long keys", 2, 4, 4, 130, 150, 192, 128, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "causal, heads of 256, f16", 1, 4, 2, 140, 140, 256, 256, 1, TS_DTYPE_F16, 0, 0, 0, 0 },
    { "odd", 2, 3, 1, 37, 41, 24, 40, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "unaligned", 1, 2, 2, 19, 19, 20, 12, 1, TS_DTYPE_BF16, 0, 0, 0, 0 },
    { "f32", 2, 4, 2, 65, 65, 32, 32, 1, TS_DTYPE_F32, 0, 0, 0, 0 },
    { "f64", 1, 2, 1, 33, 40, 16, 8, 1, TS_DTYPE_F64, 0, 0, 0, 0 },
    { "f32, wide heads", 2, 4, 2, 140, 150, 100, 128, 1, TS_DTYPE_F32, 0, 0, 0, 0 },
    { "f32, long rows", 1, 2, 1, 70, 70, 136, 200, 1, TS_DTYPE_F32, 0, 0, 0, 0 },
    { "f32, few queries", 2, 4, 2, 5, 200, 64, 64, 1, TS_DTYPE_F32, 0, 0, 0, 0 },
    { "f64, heads of 64", 1, 2, 1, 70, 70, 64, 63, 1, TS_DTYPE_F64, 0, 0, 0, 0 },
    { "f64, long rows", 1, 2, 1, 70, 70, 72, 72, 1, TS_DTYPE_F64, 0, 0, 0, 0 },
    { "queries that see nothing", 1, 2, 2, 20, 12, 16, 16, 1, TS_DTYPE_F32, 0, 0, 0, 0 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], PARTS = 5 }; /* out, lse, dq, dk, dv */

typedef struct kept {
    double *value[PARTS];
    int64_t count[PARTS];
} kept;

typedef struct results {
    const shape *list;
    int count;
    kept *of;        /* of each shape */
    int32_t unequal; /* results that differ from run to run */
} results;

/* ---- masks ----------------------------------------------------------------------------------- */

static int sees(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    (void)context;
    return query % 5 != 2 && (row + head + 7 * query + key * key) % 3 != 0;
}

/* Three documents a row, whose lengths differ by row; those of none are left out. */
static const ts_mask *documents_of(ts_world *world, int64_t rows, int64_t length)
{
    int64_t lengths[8], count[2] = { 0 }, n = 0;
    for (int64_t r = 0; r < 2 && r < rows; r++) {
        int64_t first = length / (3 + r), second = length > 3 ? length / 2 - r : 0;
        const int64_t all[3] = { first, second, length - first - second };
        for (int i = 0; i < 3; i++)
            if (all[i] > 0) lengths[n++] = all[i], count[r]++;
    }
    return ts_mask_documents(world, lengths, count, rows < 2 ? rows : 2);
}

static const ts_mask *table_of(ts_world *world, int64_t queries, int64_t keys)
{
    char name[32];
    unsigned char *seen = calloc((size_t)(queries * keys), 1);
    for (int64_t i = 0; i < queries * keys; i++)
        seen[i] = i / keys % 4 != 1 && i * 2654435761u % 1000 < 400;
    (void)snprintf(name, sizeof name, "table%dx%d", (int)queries, (int)keys);
    const ts_mask *mask = ts_mask_dense(world, name, queries, keys, seen);
    free(seen);
    return mask;
}

/* NULL: none. */
static const ts_mask *mask_of(ts_world *world, const shape *s)
{
    switch (s->mask) {
    case NO_MASK:
        return NULL;
    case WINDOW:
        return ts_mask_get(world, "window(7, 3)");
    case BACK:
        return ts_mask_get(world, "causal & window(70, 0)");
    case PREFIX:
        return ts_mask_get(world, "prefix(5) | window(9, 0)");
    case DOCUMENTS:
        return ts_mask_and(ts_mask_get(world, "causal"), documents_of(world, s->b, s->s));
    case BARRED:
        return ts_mask_and(documents_of(world, s->b, s->s), ts_mask_get(world, "prefix(2)"));
    case USER:
        return ts_mask_user(world, "thirds", sees, NULL);
    case TABLE:
        return table_of(world, s->t, s->s);
    case CAPPED:
        return ts_mask_get(world, "causal + softcap(1)");
    case LEANING:
        return ts_mask_get(world, "causal + alibi");
    case ALL:
        return ts_mask_get(world, "prefix(3) | window(2, 70) + softcap(2) + alibi");
    case KINDS:
        break;
    }
    return NULL;
}

/* ---- one call -------------------------------------------------------------------------------- */

/* Heads that lie as projections leave them: [B, T, H, D] seen as [B, H, T, D]. */
static ts_tensor *heads(ts_mesh *m, const shape *s, int64_t heads_, int64_t rows, int64_t width)
{
    const char *place = s->cut ? s->cut : "R";
    return ts_transpose(ts_randn(m, s->dtype, TS_SHAPE(s->b, rows, heads_, width), place), 1, 2);
}

/* The whole; rank 0 keeps it. */
static void keep(ts_tensor *part, kept *to, int p)
{
    ts_tensor *t = ts_tensor_full(part);
    ts_shape shape_of = ts_tensor_shape(t);
    ts_array array = TS_INIT(ts_array);
    to->count[p] = ts_shape_count(&shape_of);
    to->value[p] = calloc((size_t)to->count[p] + 1, sizeof(double));
    array.meta = (ts_meta){ .shape = shape_of, .dtype = TS_DTYPE_F64 };
    array.data = to->value[p];
    (void)ts_tensor_read(t, &array);
}

static ts_attention_options options_of(ts_rank *me, const shape *s)
{
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.causal = s->causal;
    options.mask = mask_of(ts_rank_world(me), s);
    options.dropout = s->dropout;
    options.seed = 77;
    options.algorithm = s->algorithm;
    return options;
}

/* Results and gradients of one shape: q, k, v and the gradient of the output are given. */
static void call(ts_rank *me, const shape *s, ts_tensor *const in[4], ts_tensor *part[PARTS])
{
    ts_attention_options options = options_of(me, s);
    (void)ts_attention_lse(in[0], in[1], in[2], &options, part);
    ts_attention_saved saved = TS_INIT(ts_attention_saved);
    saved.q = in[0], saved.k = in[1], saved.v = in[2], saved.o = part[0], saved.lse = part[1];
    saved.d_o = in[3];
    (void)ts_attention_backward(&saved, &options, part + 2);
}

static bool has_equal_bits(const kept *a, const kept *b)
{
    for (int p = 0; p < PARTS; p++)
        if (a->count[p] != b->count[p] ||
            memcmp(a->value[p], b->value[p], (size_t)a->count[p] * sizeof(double)) != 0)
            return false;
    return true;
}

static void drop(kept *k)
{
    for (int p = 0; p < PARTS; p++)
        free(k->value[p]);
    *k = (kept){ .count = { 0 } };
}

/* Each shape twice; rank 0 keeps what it gives. */
static void attend_shape(ts_rank *me, ts_mesh *m, results *to, int i)
{
    const shape *s = &to->list[i];
    ts_tensor *in[4] = { heads(m, s, s->h, s->t, s->d), heads(m, s, s->g, s->s, s->d),
                         heads(m, s, s->g, s->s, s->e), heads(m, s, s->h, s->t, s->e) };
    kept twice[2] = { { .count = { 0 } }, { .count = { 0 } } };
    for (int again = 0; again < 2; again++) {
        ts_tensor *part[PARTS] = { NULL };
        call(me, s, in, part);
        for (int p = 0; p < PARTS && ts_rank_status(me) == TS_OK; p++)
            keep(part[p], &twice[again], p);
    }
    if (ts_rank_index(me) == 0) {
        to->unequal += !has_equal_bits(&twice[0], &twice[1]);
        to->of[i] = twice[0];
    } else {
        drop(&twice[0]);
    }
    drop(&twice[1]);
}

static ts_status attend(ts_rank *me, void *context)
{
    results *to = context;
    ts_mesh *m = ts_mesh_create(me, "cp=*");
    for (int i = 0; i < to->count && ts_rank_status(me) == TS_OK; i++) {
        ts_scope scope = ts_scope_open(me, NULL);
        attend_shape(me, m, to, i);
        (void)ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

static double bound_of(ts_dtype dtype)
{
    return dtype == TS_DTYPE_BF16  ? 0x1p-6
           : dtype == TS_DTYPE_F16 ? 0x1p-9
           : dtype == TS_DTYPE_F32 ? 1e-5
                                   : 1e-12;
}

static void compare(test *t, int i, const results *got, const results *want)
{
    static const char *const part[PARTS] = { "out", "lse", "dq", "dk", "dv" };
    const shape *s = &got->list[i];
    for (int p = 0; p < PARTS; p++) {
        double most = 0, worst = 0;
        const double *a = got->of[i].value[p], *b = want->of[i].value[p];
        bool kinds = a && b;
        for (int64_t k = 0; kinds && k < want->of[i].count[p]; k++) {
            kinds = isinf(a[k]) == isinf(b[k]) && !isnan(a[k]);
            if (isinf(b[k])) continue;
            most = fmax(most, fabs(b[k]));
            worst = fmax(worst, fabs(a[k] - b[k]));
        }
        TEST_SAY(t, kinds && worst <= bound_of(s->dtype) * fmax(most, 1),
                 "%s, mask %d, %d x %d, %d on %d heads of %d, %s%s%s, %s: off by %g of %g", s->name,
                 (int)s->mask, (int)s->t, (int)s->s, (int)s->h, (int)s->g, (int)s->d,
                 ts_dtype_name(s->dtype), s->dropout > 0 ? ", dropped" : "", s->cut ? s->cut : "",
                 part[p], worst, most);
    }
}

static results run(test *t, const char *device, int ranks, const shape *list, int count)
{
    results to = { list, count, calloc((size_t)count, sizeof(kept)), 0 };
    gpu_launch(t, device, ranks, 3, attend, &to);
    return to;
}

static void results_drop(results *r)
{
    for (int i = 0; i < r->count; i++)
        drop(&r->of[i]);
    free(r->of);
}

/* On the GPU, with no help of the host, against the host; how many calls differ from run to run. */
static int compare_all(test *t, int ranks, const shape *all, int all_count)
{
    shape *list = calloc((size_t)all_count, sizeof *list);
    int count = 0;
    for (int i = 0; i < all_count; i++)
        if (test_tries(t)) list[count++] = all[i];
    (void)setenv("TESSERA_FALLBACK", "forbid", 1);
    results want = run(t, "cpu", ranks, list, count), got = run(t, "cuda", ranks, list, count);
    for (int i = 0; i < count; i++)
        compare(t, i, &got, &want);
    results_drop(&want);
    results_drop(&got);
    free(list);
    return (int)got.unequal;
}

static void agree(test *t, int ranks, const shape *list, int count)
{
    int unequal = compare_all(t, ranks, list, count);
    TEST_SAY(t, unequal == 0, "%d calls differ from run to run", unequal);
}

TS_TEST_LONG(attention_agrees_with_the_host, 300)
{
    agree(t, 1, shapes, SHAPES);
    if (gpu_leaves_out("cuDNN, and with it the same once more without")) return;
    (void)setenv("TESSERA_CUDNN", "off", 1);
    agree(t, 1, shapes, SHAPES);
}

/* Where bits need not repeat, gradients are as near to the host's. */
TS_TEST_LONG(sums_in_any_order_agree_with_the_host, 300)
{
    (void)setenv("TESSERA_DETERMINISTIC", "0", 1);
    printf("%d of %d calls differ from run to run\n", compare_all(t, 1, shapes, SHAPES),
           (int)SHAPES);
}

/* ---- every mask ------------------------------------------------------------------------------ */

typedef struct sizes {
    int64_t h, g, t, s;
} sizes;

/* One, a prime, a block of keys and one more, one of queries and one more, several; later queries.
 */
static const sizes lengths[] = { { 4, 4, 1, 1 },     { 6, 2, 31, 31 },   { 3, 1, 65, 65 },
                                 { 4, 2, 129, 129 }, { 6, 2, 300, 300 }, { 3, 3, 37, 101 } };
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* All kinds of masks and lengths, with and without drops, of one dtype and head size. */
static void masks_of(test *t, ts_dtype dtype, int64_t d, int64_t e)
{
    static shape list[KINDS * LENGTHS * 2];
    int count = 0;
    for (int mask = NO_MASK; mask < KINDS; mask++)
        for (int i = 0; i < LENGTHS; i++)
            for (int drops = 0; drops < 2; drops++) {
                const sizes *l = &lengths[i];
                list[count++] = (shape){ .name = "masks", .b = 2, .h = l->h, .g = l->g, .t = l->t };
                shape *s = &list[count - 1];
                s->s = l->s, s->d = d, s->e = e, s->dtype = dtype, s->mask = (kind)mask;
                s->dropout = drops ? 0.25 : 0;
            }
    agree(t, 1, list, count);
}

TS_TEST_LONG(masks_f32, 600)
{
    masks_of(t, TS_DTYPE_F32, 16, 24);
}

TS_TEST_LONG(masks_f64, 600)
{
    masks_of(t, TS_DTYPE_F64, 8, 8);
}

TS_TEST_LONG(masks_bf16_tensor_cores, 600)
{
    masks_of(t, TS_DTYPE_BF16, 64, 64);
}

TS_TEST_LONG(masks_bf16_wide_heads, 600)
{
    masks_of(t, TS_DTYPE_BF16, 128, 128);
}

TS_TEST_LONG(masks_f16_tensor_cores, 600)
{
    masks_of(t, TS_DTYPE_F16, 64, 64);
}

TS_TEST_LONG(masks_bf16_odd_heads, 600)
{
    masks_of(t, TS_DTYPE_BF16, 20, 12);
}

TS_TEST_LONG(masks_bf16_narrow_heads, 600)
{
    masks_of(t, TS_DTYPE_BF16, 40, 72);
}

/* The simulated GPU is one of 9.0 then, which has products of four warps; a real one is what it is.
 */
static void masks_by_four_warps(test *t, ts_dtype dtype, int64_t d, int64_t e)
{
    (void)setenv("TEST_CAPABILITY", "9", 1);
    masks_of(t, dtype, d, e);
}

TS_TEST_LONG(masks_bf16_four_warps, 600)
{
    masks_by_four_warps(t, TS_DTYPE_BF16, 64, 56);
}

TS_TEST_LONG(masks_f16_four_warps, 600)
{
    masks_by_four_warps(t, TS_DTYPE_F16, 128, 96);
}

TS_TEST_LONG(masks_bf16_four_warps_long_keys, 600)
{
    masks_by_four_warps(t, TS_DTYPE_BF16, 192, 128);
}

TS_TEST_LONG(masks_bf16_four_warps_long_heads, 600)
{
    masks_by_four_warps(t, TS_DTYPE_BF16, 248, 256);
}

/* ---- pieces of the keys ---------------------------------------------------------------------- */

/* A sequence that is cut: each rank has a part of the queries and, of the keys, what they see: at
 * once, or one member's after the other's, joined to what there is. */
static void pieces_of(test *t, ts_dtype dtype, int64_t d)
{
    static const char *const cuts[] = { "S(1)", "HT(1)" };
    static const int32_t algorithms[] = { TS_ATTENTION_GATHER, TS_ATTENTION_RING,
                                          TS_ATTENTION_HEADS };
    shape list[KINDS * 6];
    int count = 0;
    for (int mask = NO_MASK; mask < KINDS; mask++) {
        if (mask == TABLE) continue; /* of so many queries and keys */
        for (int i = 0; i < 6; i++) {
            shape *s = &list[count++];
            *s = (shape){ .name = "cut", .b = 2, .h = 4, .g = 2, .t = 140, .s = 140, .d = d };
            s->e = d, s->dtype = dtype, s->mask = (kind)mask;
            s->dropout = (i + mask) % 2 ? 0.25 : 0;
            s->causal = mask == NO_MASK;
            s->cut = cuts[i % 2], s->algorithm = algorithms[i / 2];
        }
    }
    agree(t, 2, list, count);
    agree(t, 3, list, count);
}

TS_TEST_LONG(pieces_f32, 600)
{
    pieces_of(t, TS_DTYPE_F32, 16);
}

TS_TEST_LONG(pieces_f64, 600)
{
    pieces_of(t, TS_DTYPE_F64, 8);
}

TS_TEST_LONG(pieces_bf16, 600)
{
    pieces_of(t, TS_DTYPE_BF16, 64);
}

TS_TEST_LONG(pieces_f16_wide_heads, 600)
{
    pieces_of(t, TS_DTYPE_F16, 128);
}

TS_TEST_LONG(pieces_bf16_four_warps, 600)
{
    (void)setenv("TEST_CAPABILITY", "9", 1);
    pieces_of(t, TS_DTYPE_BF16, 64);
}

TS_TEST_LONG(pieces_bf16_odd_heads, 600)
{
    pieces_of(t, TS_DTYPE_BF16, 20);
}

/* ---- rates ----------------------------------------------------------------------------------- */

enum { RUNS = 6, REPEATS = 5 };

typedef struct timing {
    ts_tensor *in[4], *out[2]; /* q, k, v, the gradient of the output */
    ts_attention_options options;
    bool backward;
} timing;

static void once(const timing *w)
{
    ts_tensor *made[3] = { NULL };
    if (!w->backward) {
        (void)ts_attention_lse(w->in[0], w->in[1], w->in[2], &w->options, made);
        return;
    }
    ts_attention_saved saved = TS_INIT(ts_attention_saved);
    saved.q = w->in[0], saved.k = w->in[1], saved.v = w->in[2];
    saved.o = w->out[0], saved.lse = w->out[1], saved.d_o = w->in[3];
    (void)ts_attention_backward(&saved, &w->options, made);
}

static double best_us(ts_rank *me, const timing *w)
{
    const tsi_rank_device *where = tsi_rank_device_of(me);
    const tsi_device *gpu = where->device;
    double best = 1e30;
    for (int r = 0; r < RUNS; r++) {
        tsi_device_event *begin = NULL, *end = NULL;
        double us = 0;
        (void)gpu->event_mark(gpu, where->queue, &begin);
        for (int i = 0; i < REPEATS; i++) {
            ts_scope scope = ts_scope_open(me, NULL);
            once(w);
            (void)ts_scope_close(scope);
        }
        (void)gpu->event_mark(gpu, where->queue, &end);
        (void)gpu->stream_sync(gpu, where->queue);
        (void)gpu->event_time(gpu, begin, end, &us);
        gpu->event_destroy(gpu, begin);
        gpu->event_destroy(gpu, end);
        if (r > 0 && us / REPEATS < best) best = us / REPEATS;
    }
    return best;
}

/* Pairs that a head sees of one row. */
static double pairs_of(const shape *s, const ts_mask *mask)
{
    ts_mask_size size = TS_INIT(ts_mask_size);
    ts_mask_summary summary = TS_INIT(ts_mask_summary);
    size.queries = s->t, size.keys = s->s;
    if (!mask) return (double)s->t * (double)s->s / 2; /* causal */
    (void)ts_mask_tiles(mask, &size, NULL, 0, &summary);
    return (double)summary.pairs;
}

static void time_layer(ts_rank *me, ts_mesh *m, const shape *s, const char *text)
{
    ts_scope scope = ts_scope_open(me, NULL);
    timing w = { .in = { heads(m, s, s->h, s->t, s->d), heads(m, s, s->g, s->s, s->d),
                         heads(m, s, s->g, s->s, s->e), heads(m, s, s->h, s->t, s->e) },
                 .options = TS_INIT(ts_attention_options) };
    w.options.causal = text == NULL;
    w.options.mask = text ? ts_mask_get(ts_rank_world(me), text) : NULL;
    (void)ts_attention_lse(w.in[0], w.in[1], w.in[2], &w.options, w.out);
    double flops =
        2.0 * (double)(s->b * s->h) * pairs_of(s, w.options.mask) * (double)(s->d + s->e);
    double forward = best_us(me, &w);
    w.backward = true;
    double backward = best_us(me, &w);
    printf("%-36s forward %8.1f us %5.1f TFLOP/s   backward %8.1f us %5.1f TFLOP/s\n", s->name,
           forward, flops / forward / 1e6, backward, 2.5 * flops / backward / 1e6);
    (void)ts_scope_close(scope);
}

static ts_status time_layers(ts_rank *me, void *context)
{
    (void)context;
    static const shape layers[] = {
        { "A, 16 x 1024, 12 heads of 64", 16, 12, 12, 1024, 1024, 64, 64, 1, TS_DTYPE_BF16, 0, 0, 0,
          0 },
        { "B, 4 x 2048, 32 on 4 heads of 64", 4, 32, 4, 2048, 2048, 64, 64, 1, TS_DTYPE_BF16, 0, 0,
          0, 0 },
        { "4 x 2048, 16 on 4 heads of 128", 4, 16, 4, 2048, 2048, 128, 128, 1, TS_DTYPE_BF16, 0, 0,
          0, 0 },
        { "documents, 4096, 16 on 4 heads of 64", 1, 16, 4, 4096, 4096, 64, 64, 0, TS_DTYPE_BF16, 0,
          0, 0, 0 },
        { "window, 4096, 16 on 4 heads of 64", 1, 16, 4, 4096, 4096, 64, 64, 0, TS_DTYPE_BF16, 0, 0,
          0, 0 },
        { "documents, 4096, 8 on 2 heads of 128", 1, 8, 2, 4096, 4096, 128, 128, 0, TS_DTYPE_BF16,
          0, 0, 0, 0 },
        { "4 x 2048, 16 heads of 192 and 128", 4, 16, 16, 2048, 2048, 192, 128, 1, TS_DTYPE_BF16, 0,
          0, 0, 0 },
        { "4 x 2048, 16 on 4 heads of 96", 4, 16, 4, 2048, 2048, 96, 96, 1, TS_DTYPE_BF16, 0, 0, 0,
          0 },
        { "4 x 2048, 8 on 4 heads of 256", 4, 8, 4, 2048, 2048, 256, 256, 1, TS_DTYPE_BF16, 0, 0, 0,
          0 },
    };
    static const char documents[] = "causal & documents(700, 1300, 300, 1000, 796)";
    static const char *const texts[] = {
        NULL, NULL, NULL, documents, "causal & window(511, 0)", documents, NULL, NULL, NULL
    };
    ts_mesh *m = ts_mesh_create(me, "x=*");
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        time_layer(me, m, &layers[i], texts[i]);
    return ts_rank_status(me);
}

TS_TEST_LONG(zz_rates, 300)
{
    if (gpu_leaves_out("rates")) return;
    char error[512] = "";
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = "cuda"), time_layers,
                       NULL, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}
