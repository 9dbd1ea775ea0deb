/* SPDX-License-Identifier: Apache-2.0 */
/* op_context.c - attention over a cut sequence: every algorithm, mask and cut on several ranks
 * gives what one rank gives, forward and backward; and it receives just the bytes it says. */
#include <math.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "harness/test.h"
#include "mask/mask.h"
#include "tessera/tessera.h"

typedef struct setting {
    const char *mask, *place; /* of q, k and v on axis cp; NULL place: a cut by cost */
    int32_t algorithm;
    ts_dtype dtype;
    int64_t size[7]; /* B, H, G, T, S, D, E */
} setting;

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    uint64_t h = *(const uint64_t *)context;
    for (int i = 0; i < 4; i++)
        h = (h ^ (uint64_t)global[i]) * 0x9E3779B97F4A7C15u + 0x1234567u;
    *(double *)element = (double)(h >> 40) / 8388608.0 - 1.0;
    return TS_OK;
}

static ts_tensor *numbers(const ts_sharding *where, ts_shape shape, ts_dtype dtype, uint64_t seed)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F64 };
    return ts_cast(ts_from_function(number_at, &seed, where, meta), dtype);
}

/* Output, log-sum-exp and gradients of q, k and v, in one layout. */
static void attend(ts_rank *me, const setting *s, ts_mesh *mesh, const char *place,
                   ts_tensor *out[5])
{
    const int64_t *n = s->size;
    const ts_sharding *where = ts_sharding_get(mesh, place);
    ts_shape shape[4] = { TS_SHAPE(n[0], n[1], n[3], n[5]), TS_SHAPE(n[0], n[2], n[4], n[5]),
                          TS_SHAPE(n[0], n[2], n[4], n[6]), TS_SHAPE(n[0], n[1], n[3], n[6]) };
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = s->mask ? ts_mask_get(ts_rank_world(me), s->mask) : NULL;
    options.algorithm = s->algorithm;
    if (s->size[5] == 3) {
        options.dropout = 0.25;
        options.seed = 7;
    }
    ts_tensor *q = numbers(where, shape[0], s->dtype, 1),
              *k = numbers(where, shape[1], s->dtype, 2);
    ts_tensor *v = numbers(where, shape[2], s->dtype, 3),
              *d = numbers(where, shape[3], s->dtype, 4);
    ts_attention_lse(q, k, v, &options, out);
    ts_attention_saved saved = TS_INIT(ts_attention_saved);
    saved.q = q;
    saved.k = k;
    saved.v = v;
    saved.o = out[0];
    saved.lse = out[1];
    saved.d_o = d;
    ts_attention_backward(&saved, &options, out + 2);
}

static double difference(ts_tensor *a, ts_tensor *b)
{
    /* -inf of rows that see nothing is the same on both sides */
    ts_tensor *x = ts_clamp(ts_cast(ts_tensor_full(a), TS_DTYPE_F64), -1e6, 1e6);
    ts_tensor *y = ts_clamp(ts_cast(ts_tensor_full(b), TS_DTYPE_F64), -1e6, 1e6);
    double value = NAN;
    ts_tensor_item(ts_amax(ts_abs(ts_sub(x, y)), NULL, 0, 0), &value);
    return value;
}

static void compare(test *t, const setting *s, const char *mesh_text, const char *place)
{
    static const char *const what[] = { "out", "lse", "dq", "dk", "dv" };
    ts_scope scope = ts_scope_open(t->me, "compare");
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text);
    ts_tensor *have[5] = { NULL }, *want[5] = { NULL };
    attend(t->me, s, mesh, place, have);
    attend(t->me, s, mesh, "none?:R", want);
    TEST_SAY(t, ts_rank_status(t->me) == TS_OK, "%s on %s, %s: %s", s->mask, mesh_text, place,
             ts_rank_error(t->me)->text);
    double allowed = s->dtype == TS_DTYPE_F64 ? 1e-12 : s->dtype == TS_DTYPE_F32 ? 1e-5 : 6e-2;
    for (int i = 0; i < 5 && ts_rank_status(t->me) == TS_OK; i++) {
        double size = difference(want[i], ts_mul_scalar(want[i], 0.0)),
               d = difference(have[i], want[i]);
        TEST_SAY(t, d <= allowed * (1 + (size < 1e5 ? size : 0)),
                 "%s of %s, algorithm %d, %s on %s, %s: off by %g", what[i],
                 s->mask ? s->mask : "full", s->algorithm, ts_dtype_name(s->dtype), mesh_text,
                 place, d);
    }
    ts_mesh_release(mesh);
    ts_scope_close(scope);
}

static int sees_third(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    (void)context;
    return (query * 7 + key * 3 + row * 5 + head) % 3 == 0;
}

static const char *const masks[] = { NULL,
                                     "causal",
                                     "causal & window(9, 0)",
                                     "window(3, 5)",
                                     "causal | prefix(7)",
                                     "causal & documents(11, 2, 24; 30, 7)",
                                     "documents(17, 20) + softcap(2)",
                                     "causal & user(third)",
                                     "causal + alibi" };

static void place_of(test *t, int kind, int64_t length, int64_t ranks, const char *mask, char *out,
                     size_t size)
{
    ts_cut_options options = TS_INIT(ts_cut_options);
    ts_cut cut = { 0 };
    if (kind == 0) (void)snprintf(out, size, "cp:S(2)");
    if (kind == 1) (void)snprintf(out, size, "cp:HT(2)");
    if (kind < 2) return;
    options.length = length;
    options.ranks = ranks;
    options.align = 4;
    options.balance = kind == 2 ? TS_BALANCE_AUTO : TS_BALANCE_PTRR;
    const ts_mask *m = ts_mask_get(ts_rank_world(t->me), mask ? mask : "full");
    TEST_OK(t, ts_cut_for(m, &options, &cut));
    memcpy(out, "cp:", 3);
    (void)ts_cut_text(&cut, 2, out + 3, size - 3);
    ts_cut_release(&cut);
}

static void sweep(test *t, const char *mesh_text, const char *heads, int64_t ranks, int stride)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16 };
    (void)ts_mask_user(ts_rank_world(t->me), "third", sees_third, NULL);
    int number = (int)t->count;
    for (size_t m = 0; m < TSI_COUNT_OF(masks); m++)
        for (int32_t algorithm = TS_ATTENTION_GATHER; algorithm <= TS_ATTENTION_HEADS; algorithm++)
            for (int kind = 0; kind < 4; kind++) {
                if (number++ % stride) continue;
                char place[1024];
                setting s = { .mask = masks[m], .algorithm = algorithm };
                s.dtype = dtypes[number % 5 == 0 ? 2 : number & 1];
                const int64_t size[] = { 2, 8, number % 3 ? 2 : 8, 37, 37, number % 7 ? 4 : 3, 5 };
                memcpy(s.size, size, sizeof size);
                place_of(t, kind, 37, ranks, masks[m], place, sizeof place);
                (void)strncat(place, heads, sizeof place - strlen(place) - 1);
                compare(t, &s, mesh_text, place);
                if (ts_rank_status(t->me) != TS_OK) return;
            }
}

static int stride_of(int otherwise)
{
    const char *text = getenv("TEST_CONTEXT_STRIDE");
    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

TS_TEST_RANKS(context_is_one_rank, 2, 3, 4, 5, 8)
{
    char mesh[32];
    (void)snprintf(mesh, sizeof mesh, "cp=%d", (int)t->count);
    sweep(t, mesh, "", t->count, stride_of(5));
}

TS_TEST_RANKS(context_beside_heads, 4, 6)
{
    char mesh[32];
    (void)snprintf(mesh, sizeof mesh, "cp=%d, tp=2", (int)t->count / 2);
    sweep(t, mesh, " tp:S(1)", t->count / 2, stride_of(7));
}

/* Two axes cut the sequence: heads on the inner, ring on the outer. */
TS_TEST_RANKS(context_in_two_levels, 4)
{
    for (int32_t a = TS_ATTENTION_AUTO; a <= TS_ATTENTION_TWO_LEVEL; a++) {
        setting s = { "causal", NULL, a, TS_DTYPE_F64, { 1, 4, 2, 23, 23, 4, 4 } };
        compare(t, &s, "outer=2, cp=2", "outer:S(2) cp:S(2)");
    }
}

/* Fewer positions than ranks, and no queries at all. */
TS_TEST_RANKS(context_of_little, 3, 4)
{
    for (int64_t length = 0; length < 4; length++)
        for (int32_t a = TS_ATTENTION_GATHER; a <= TS_ATTENTION_HEADS; a++) {
            setting s = { "causal", NULL, a, TS_DTYPE_F32, { 1, 4, 4, length, length, 4, 4 } };
            if (length > 0) compare(t, &s, t->count == 3 ? "cp=3" : "cp=4", "cp:S(2)");
        }
}
