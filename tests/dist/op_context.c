/* SPDX-License-Identifier: Apache-2.0 */
/* op_context.c - attention over a cut sequence: every algorithm, mask and cut on several ranks
 * gives what one rank gives, forward and backward; and it receives just the bytes it says. */
#include <math.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "base/rank.h"
#include "comm/comm.h"
#include "device/device.h"
#include "device/parallel.h"
#include "dist/bytes_util.h"
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
    if (n[2] == 8) saved.d_lse = ts_cast(ts_select(d, 3, 0), ts_tensor_dtype(out[1]));
    ts_attention_backward(&saved, &options, out + 2);
}

static double difference(ts_tensor *a, ts_tensor *b)
{
    /* -inf of rows that see nothing is the same on both sides */
    ts_tensor *x = ts_clamp(ts_cast(ts_tensor_full(a), TS_DTYPE_F64), -1e6, 1e6);
    ts_tensor *y = ts_clamp(ts_cast(ts_tensor_full(b), TS_DTYPE_F64), -1e6, 1e6);
    double value = NAN;
    ts_shape shape = x ? ts_tensor_shape(x) : TS_SHAPE(1);
    if (ts_shape_count(&shape) == 0) return 0;
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
                                     "causal & documents(13, 24)",
                                     "documents(17, 20) + softcap(2)",
                                     "causal & user(third)",
                                     "causal & dense(holes)",
                                     "causal + alibi" };
enum { LENGTH = 37, CUTS = 5 };

static void add_masks(test *t)
{
    unsigned char holes[LENGTH * LENGTH];
    ts_world *world = ts_rank_world(t->me);
    for (int i = 0; i < LENGTH * LENGTH; i++)
        holes[i] = ((uint32_t)i * 2654435761u >> 7) % 5 != 0;
    TEST_CHECK(t, ts_mask_user(world, "third", sees_third, NULL));
    TEST_CHECK(t, ts_mask_dense(world, "holes", LENGTH, LENGTH, holes));
}

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
    options.balance = kind == 2   ? TS_BALANCE_AUTO
                      : kind == 3 ? TS_BALANCE_PTRR
                                  : TS_BALANCE_PER_DOCUMENT;
    const ts_mask *m = ts_mask_get(ts_rank_world(t->me), mask ? mask : "full");
    TEST_OK(t, ts_cut_for(m, &options, &cut));
    memcpy(out, "cp:", 3);
    (void)ts_cut_text(&cut, 2, out + 3, size - 3);
    ts_cut_release(&cut);
}

/* Masks, algorithms, cuts, dtypes, groups of heads, dropout: one in `stride` of the whole product,
 * by the seed, which is the same on all ranks. */
static void sweep(test *t, const char *mesh_text, const char *heads, int64_t ranks, int stride)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16 };
    const int count = (int)TSI_COUNT_OF(masks) * 3 * CUTS * 3 * 2 * 2;
    uint64_t random = t->seed + (uint64_t)t->count;
    add_masks(t);
    for (int i = 0; i < count && ts_rank_status(t->me) == TS_OK; i++) {
        random = (random + 1) * 0x9E3779B97F4A7C15u;
        int of = i, most = stride > 1 ? 12 * stride : 1;
        if ((random >> 33) % (uint64_t)most) continue;
        char place[1024];
        int m = of % (int)TSI_COUNT_OF(masks), kind = (of /= (int)TSI_COUNT_OF(masks)) % CUTS;
        int algorithm = (of /= CUTS) % 3, dtype = (of /= 3) % 3, grouped = (of /= 3) % 2;
        int drops = of / 2 % 2;
        bool alike = masks[m] && strstr(masks[m], "documents") && !strchr(masks[m], ';');
        if (kind == 4 && !alike) continue; /* per document: the same in every row */
        setting s = { .mask = masks[m], .algorithm = TS_ATTENTION_GATHER + algorithm };
        s.dtype = dtypes[dtype];
        const int64_t size[] = { 2, 8, grouped ? 2 : 8, LENGTH, LENGTH, drops ? 3 : 4, 5 };
        memcpy(s.size, size, sizeof size);
        place_of(t, kind, LENGTH, ranks, masks[m], place, sizeof place);
        (void)strncat(place, heads, sizeof place - strlen(place) - 1);
        tsi_comm_lend_nothing(t->me, random >> 20 & 1); /* keys travel, or are read in place */
        compare(t, &s, mesh_text, place);
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

/* More ranks than a quick run has cores for. */
TS_TEST_RANKS(context_beside_heads_at_length, 8, 10, 16)
{
    char mesh[32];
    if (!getenv("TEST_CONTEXT_STRIDE")) return;
    (void)snprintf(mesh, sizeof mesh, "cp=%d, tp=2", (int)t->count / 2);
    sweep(t, mesh, " tp:S(1)", t->count / 2, stride_of(1));
}

/* Two axes cut the sequence: heads on the inner, ring on the outer. Heads may be fewer than ranks,
 * groups too. */
TS_TEST_RANKS(context_in_two_levels, 4, 6)
{
    const char *mesh = t->count == 4 ? "outer=2, cp=2" : "outer=2, cp=3";
    add_masks(t);
    for (size_t m = 0; m < TSI_COUNT_OF(masks); m++)
        for (int32_t a = TS_ATTENTION_AUTO; a <= TS_ATTENTION_TWO_LEVEL; a++) {
            setting s = { masks[m], NULL, a, TS_DTYPE_F64, { 2, 4, 1 + m % 2, 37, 37, 4, 4 } };
            if ((m + (size_t)a) % 2) continue;
            tsi_comm_lend_nothing(t->me, m & 1);
            compare(t, &s, mesh, "outer:S(2) cp:S(2)");
        }
}

/* Fewer positions than ranks, and no queries at all. */
TS_TEST_RANKS(context_of_little, 3, 4)
{
    for (int64_t length = 0; length < 4; length++)
        for (int32_t a = TS_ATTENTION_GATHER; a <= TS_ATTENTION_HEADS; a++) {
            setting s = { "causal", NULL, a, TS_DTYPE_F32, { 1, 4, 4, length, length, 4, 4 } };
            compare(t, &s, t->count == 3 ? "cp=3" : "cp=4", "cp:S(2)");
        }
}

/* An axis of one rank may cut anything, also the dim that a log-sum-exp has not. */
TS_TEST_RANKS(context_beside_an_axis_of_one, 2, 3)
{
    const char *mesh = t->count == 2 ? "one=1, cp=2" : "one=1, cp=3";
    for (int32_t a = TS_ATTENTION_AUTO; a <= TS_ATTENTION_HEADS; a++) {
        setting s = { "causal", NULL, a, TS_DTYPE_F64, { 1, 4, 2, 9, 9, 4, 5 } };
        compare(t, &s, mesh, "one:S(3) cp:S(2)");
    }
}

/* ---- the gradient of the log-sum-exp --------------------------------------------------------- */

/* d lse / dq is scale sum over k of P k: what attention gives of values that are the keys. The
 * first queries see nothing: 0, and no NaN. */
static void lse_alone(test *t, ts_mesh *mesh, ts_dtype dtype, bool biased)
{
    ts_scope scope = ts_scope_open(t->me, "lse");
    const ts_sharding *cut = ts_sharding_get(mesh, "cp:S(2)");
    ts_tensor *q = ts_watch(numbers(cut, TS_SHAPE(2, 4, 9, 4), dtype, 1));
    ts_tensor *k = numbers(cut, TS_SHAPE(2, 2, 7, 4), dtype, 2), *out[2], *dq = NULL;
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.causal = 1;
    options.scale = 0.6;
    if (biased) options.bias = ts_ones(mesh, TS_DTYPE_BOOL, TS_SHAPE(1, 1, 1, 7), NULL);
    ts_tape_begin(t->me);
    TEST_OK(t, ts_attention_lse(q, k, k, &options, out));
    TEST_OK(t, ts_backward(ts_sum(out[1], NULL, 0, 0), NULL));
    dq = ts_tensor_grad(q);
    ts_tensor *want = ts_mul_scalar(ts_detach(out[0]), 0.6);
    double off = difference(dq, want), size = difference(want, ts_zeros_like(want));
    TEST_SAY(t, off <= (dtype == TS_DTYPE_F64 ? 1e-13 : 2e-6) && size > 0.1,
             "%s%s: the gradient of the log-sum-exp is off by %g", ts_dtype_name(dtype),
             biased ? " with a bias" : "", off);
    ts_scope_close(scope);
}

/* A gradient that is not given is 0. */
TS_TEST_RANKS(attention_of_no_gradient, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 1 ? "cp=1" : "cp=3");
    ts_tensor *x = numbers(ts_sharding_get(mesh, "cp:S(2)"), TS_SHAPE(1, 2, 7, 4), TS_DTYPE_F32, 1);
    ts_tensor *out[2], *d[3];
    TEST_OK(t, ts_attention_lse(x, x, x, NULL, out));
    ts_attention_saved saved = { sizeof saved, x, x, x, out[0], out[1], NULL, NULL };
    TEST_OK(t, ts_attention_backward(&saved, NULL, d));
    for (int i = 0; i < 3; i++)
        TEST_CHECK(t, difference(d[i], ts_zeros_like(x)) == 0);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(log_sum_exp_has_a_gradient, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 1 ? "cp=1" : "cp=3");
    for (int i = 0; i < 4; i++)
        lse_alone(t, mesh, i & 1 ? TS_DTYPE_F32 : TS_DTYPE_F64, i >> 1);
    ts_mesh_release(mesh);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Keys that the queries of a rank see and that others hold, pair by pair. */
static int64_t keys_missing(const ts_mask *mask, const ts_layout *layout, int64_t ranks)
{
    int64_t missing = 0, length = ts_layout_shape(layout).extent[2];
    for (int64_t r = 0; r < ranks; r++)
        for (int64_t k = 0; k < length; k++) {
            bool seen = false, own = false;
            for (int64_t q = 0; q < length && !own; q++) {
                const int64_t at[4] = { 0, 0, q, 0 };
                int64_t local[4];
                if (!ts_layout_to_local(layout, &r, at, local)) continue;
                seen |= ts_mask_sees(mask, 0, 0, q, k) != 0;
                own |= q == k;
            }
            const int64_t at[4] = { 0, 0, k, 0 };
            int64_t local[4];
            own = ts_layout_to_local(layout, &r, at, local) != 0;
            missing += seen && !own;
        }
    return missing;
}

typedef struct counting {
    ts_mesh *mesh;
    const char *mask, *place;
    int32_t algorithm;
    int64_t rows;          /* of the batch */
    int64_t heads, groups; /* of queries, of keys */
} counting;

/* Bytes received and stated by a call that made `count` tensors. */
static void compare_bytes(test *t, const counting *c, const char *what, ts_tensor **made, int count,
                          int64_t said, uint64_t since)
{
    for (int i = 0; i < count; i++)
        ts_tensor_wait(made[i]);
    int64_t have = received_by_all(ts_group_world(t->me), since), told = stated(t->me) - said;
    TEST_SAY(t, have == told, "%s, %s, algorithm %d: %lld bytes received %s, %lld stated", c->mask,
             c->place, (int)c->algorithm, (long long)have, what, (long long)told);
}

/* What is stated is what is received; and of keys nobody gets more than its queries see. */
static void count_bytes(test *t, const counting *c)
{
    ts_scope scope = ts_scope_open(t->me, "bytes");
    const ts_sharding *where = ts_sharding_get(c->mesh, c->place);
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = ts_mask_get(ts_rank_world(t->me), c->mask);
    options.algorithm = c->algorithm;
    ts_tensor *x[4], *out[2], *d[3];
    for (int i = 0; i < 4; i++)
        x[i] = numbers(where, TS_SHAPE(c->rows, i % 3 ? c->groups : c->heads, 36, 4), TS_DTYPE_F32,
                       (uint64_t)i);
    int64_t said = stated(t->me);
    uint64_t since = ts_rank_event(t->me);
    ts_attention_lse(x[0], x[1], x[2], &options, out);
    compare_bytes(t, c, "forward", out, 2, said, since);
    if (c->algorithm < TS_ATTENTION_HEADS && ts_mesh_ndim(c->mesh) == 1) {
        int64_t rows = keys_missing(options.mask, ts_tensor_layout(x[0]), t->count);
        TEST_EQ(t, stated(t->me) - said, rows * c->rows * c->groups * 8 * 4);
    }
    ts_attention_saved saved = TS_INIT(ts_attention_saved);
    saved.q = x[0];
    saved.k = x[1];
    saved.v = x[2];
    saved.o = out[0];
    saved.lse = out[1];
    saved.d_o = x[3];
    said = stated(t->me);
    since = ts_rank_event(t->me);
    ts_attention_backward(&saved, &options, d);
    compare_bytes(t, c, "backward", d, 3, said, since);
    ts_scope_close(scope);
}

TS_TEST_RANKS(context_counts_bytes, 2, 3, 4)
{
    static const char *const forms[] = { "full",
                                         "causal",
                                         "causal & window(9, 0)",
                                         "window(2, 1)",
                                         "causal & documents(11, 2, 23)",
                                         "prefix(3) | window(4, 0)" };
    char mesh_text[16], place[256];
    (void)snprintf(mesh_text, sizeof mesh_text, "cp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text);
    for (size_t m = 0; m < TSI_COUNT_OF(forms); m++)
        for (int32_t a = TS_ATTENTION_GATHER; a <= TS_ATTENTION_HEADS; a++)
            for (int kind = 0; kind < 3; kind++) {
                place_of(t, kind, 36, t->count, forms[m], place, sizeof place);
                tsi_comm_lend_nothing(t->me, (m + (size_t)kind) & 1);
                count_bytes(t, &(counting){ mesh, forms[m], place, a, 2, 12, m & 1 ? 4 : 12 });
            }
    ts_mesh_release(mesh);
}

/* Heads that do not divide, groups fewer than ranks, heads that tp cuts, and two axes. */
TS_TEST_RANKS(context_counts_bytes_of_heads, 4, 5, 6)
{
    static const char *const meshes[] = { "cp=2, tp=2", "cp=5", "cp=3, tp=2" };
    ts_mesh *mesh = ts_mesh_create(t->me, meshes[t->count - 4]);
    const char *place = t->count == 5 ? "cp:HT(2)" : "cp:HT(2) tp:S(1)";
    for (int64_t groups = 1; groups <= 12; groups += groups == 1 ? 1 : 10)
        for (int32_t a = TS_ATTENTION_GATHER; a <= TS_ATTENTION_HEADS; a++)
            count_bytes(t, &(counting){ mesh, "causal", place, a, 2, 12, groups });
    ts_mesh_release(mesh);
    if (t->count == 5) return;
    mesh = ts_mesh_create(t->me, t->count == 4 ? "outer=2, cp=2" : "outer=2, cp=3");
    static const char *const forms[] = { "causal", "causal & window(9, 0)", "full" };
    for (int i = 0; i < 6; i++)
        count_bytes(t, &(counting){ mesh, forms[i % 3], "outer:S(2) cp:S(2)",
                                    TS_ATTENTION_TWO_LEVEL, 2, 12, i & 1 ? 2 : 12 });
    ts_mesh_release(mesh);
}

/* Groups whose rows have other documents, and not equally many. */
TS_TEST_RANKS(context_counts_bytes_by_row, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=2, cp=2");
    for (int32_t a = TS_ATTENTION_GATHER; a <= TS_ATTENTION_HEADS; a++)
        count_bytes(t, &(counting){ mesh, "causal & documents(10, 26; 36; 5, 31)",
                                    "dp:S(0) cp:HT(2)", a, 3, 12, 12 });
    ts_mesh_release(mesh);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes that a rank holds at most beside what goes in, forward and backward, of its share. */
static double bytes_a_token(test *t, ts_mesh *mesh, const char *mask, int64_t length,
                            int32_t algorithm)
{
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    ts_scope scope = ts_scope_open(t->me, "memory");
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = ts_mask_get(ts_rank_world(t->me), mask);
    options.algorithm = algorithm;
    ts_tensor *x[4], *out[2], *d[3];
    for (int i = 0; i < 4; i++)
        x[i] = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(1, 1, length, 8), "cp:HT(2)");
    /* Peers may still hold blocks of the call before, which they read in place. */
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &before));
    TEST_OK(t, ts_attention_lse(x[0], x[1], x[2], &options, out));
    ts_attention_saved saved = { sizeof saved, x[0], x[1], x[2], out[0], out[1], x[3], NULL };
    TEST_OK(t, ts_attention_backward(&saved, &options, d));
    for (int i = 0; i < 3; i++)
        ts_tensor_wait(d[i]);
    TEST_OK(t, ts_rank_memory(t->me, &after));
    ts_scope_close(scope);
    return (double)(after.peak - before.live) / (double)length;
}

static double forward_bytes_a_token(test *t, ts_mesh *mesh, int64_t length, int32_t algorithm)
{
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    ts_scope scope = ts_scope_open(t->me, "memory");
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = ts_mask_get(ts_rank_world(t->me), "window(63, 0)");
    options.algorithm = algorithm;
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(1, 1, length, 8), "cp:HT(2)");
    /* Peers may still hold blocks of the call before, which they read in place. */
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &before));
    TEST_OK(t, ts_tensor_wait(ts_attention(x, x, x, &options)));
    TEST_OK(t, ts_rank_memory(t->me, &after));
    ts_scope_close(scope);
    return (double)(after.peak - before.live) / (double)length;
}

/* A rank holds its share of what one rank would, and no more where it sees few keys of others or
 * reads them in place: o and its log-sum-exp, 36 bytes a token. */
TS_TEST_RANKS(context_holds_its_share, 1, 2, 4)
{
    char text[16];
    (void)snprintf(text, sizeof text, "cp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    for (int kind = 0; kind < 2; kind++) {
        tsi_comm_lend_nothing(t->me, kind);
        double small = forward_bytes_a_token(t, mesh, 65536, TS_ATTENTION_RING) * 65536;
        double large = forward_bytes_a_token(t, mesh, 131072, TS_ATTENTION_RING) * 131072;
        double each = (large - small) / 65536 * (double)t->count;
        TEST_SAY(t, each <= 37, "a token more of a rank's is %.1f bytes more", each);
    }
    tsi_comm_lend_nothing(t->me, false);
    ts_mesh_release(mesh);
}

/* Linear in the length; a ring's share of it shrinks with the ranks, in place and travelling. */
TS_TEST_RANKS(context_memory_is_linear, 1, 2, 4)
{
    char text[16];
    (void)snprintf(text, sizeof text, "cp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    tsi_parallel_limit(t->me, 1); /* what threads keep for themselves is as much at any length */
    for (int kind = 0; kind < (t->count > 1 ? 2 : 1); kind++) {
        tsi_comm_lend_nothing(t->me, kind);
        const char *mask = "window(63, 0)";
        double small = bytes_a_token(t, mesh, mask, 4096, TS_ATTENTION_RING);
        double middle = bytes_a_token(t, mesh, mask, 16384, TS_ATTENTION_RING);
        double large = bytes_a_token(t, mesh, mask, 65536, TS_ATTENTION_RING);
        double whole = bytes_a_token(t, mesh, "causal", 4096, TS_ATTENTION_RING);
        if (ts_rank_index(t->me) == 0)
            printf("cp=%d, %s: %.0f, %.0f, %.0f bytes a token of 4 k, 16 k, 64 k; causal %.0f\n",
                   (int)t->count, kind ? "travelling" : "in place", small, middle, large, whole);
        TEST_CHECK(t, middle <= 1.05 * small && large <= 1.05 * middle);
        /* o, three gradients, seven parts of one of them and rows of lse; of others the keys and
         * gradients of at most two: rows of 8 floats */
        int others = t->count < 3 ? (int)t->count - 1 : 2;
        double rows = 12.0 + 2.0 * (kind + 1) * others;
        TEST_SAY(t, large * (double)t->count <= rows * 8.0 * 4.0, "cp=%d, %s: %.1f rows a token",
                 (int)t->count, kind ? "travelling" : "in place", large * (double)t->count / 32.0);
    }
    tsi_parallel_limit(t->me, 0);
    tsi_comm_lend_nothing(t->me, false);
    ts_mesh_release(mesh);
}

/* ---- bad input ------------------------------------------------------------------------------- */

static int draws(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    (void)row, (void)head, (void)query, (void)key;
    return *(const int *)context ? rand() & 1 : 1;
}

static void refuse(test *t, ts_mesh *mesh, const char *mask, int64_t values, int32_t algorithm,
                   const char *words)
{
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &catching);
    const ts_sharding *where = ts_sharding_get(mesh, "cp:S(2)");
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = mask ? ts_mask_get(ts_rank_world(t->me), mask) : NULL;
    options.algorithm = algorithm;
    ts_tensor *q = numbers(where, TS_SHAPE(1, 2, 12, 4), TS_DTYPE_F32, 1);
    ts_tensor *v = numbers(where, TS_SHAPE(1, 2, values, 4), TS_DTYPE_F32, 1);
    TEST_CHECK(t, ts_attention(q, q, v, &options) == NULL);
    TEST_CHECK(t, ts_rank_status(t->me) != TS_OK);
    TEST_SAYS(t, ts_rank_error(t->me)->text, words);
    TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(context_refuses, 1, 3)
{
    static int impure = 1;
    char mesh_text[16];
    (void)snprintf(mesh_text, sizeof mesh_text, "cp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text);
    (void)ts_mask_user(ts_rank_world(t->me), "draws", draws, &impure);
    refuse(t, mesh, "causal & documents(5, 6)", 12, 0, "its documents have 11 tokens together");
    refuse(t, mesh, "documents(12; 12)", 12, 0, "documents of 2 rows");
    refuse(t, mesh, NULL, 11, 0, "do not fit");
    refuse(t, mesh, "user(draws)", 12, 0, "not pure");
    (void)ts_mask_dense(ts_rank_world(t->me), "table", 12, 2, (const unsigned char[24]){ 1 });
    refuse(t, mesh, "dense(table)", 12, 0, "dense(table) is 12 x 2");
    if (t->count > 1)
        refuse(t, mesh, "causal", 12, TS_ATTENTION_TWO_LEVEL, "cut by two axes or more");
    ts_mesh_release(mesh);
}

/* ---- scopes ---------------------------------------------------------------------------------- */

/* A scope forces or forbids algorithms of the calls inside, and of no others. */
TS_TEST_RANKS(context_in_scopes, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "cp=2");
    const ts_sharding *where = ts_sharding_get(mesh, "cp:S(2)");
    ts_tensor *x = numbers(where, TS_SHAPE(1, 2, 8, 4), TS_DTYPE_F32, 1);
    ts_attention_options ring = TS_INIT(ts_attention_options);
    ring.algorithm = TS_ATTENTION_RING;
    static const struct {
        int32_t force;
        uint32_t forbid;
        const char *says;
    } cases[] = { { TS_ATTENTION_TWO_LEVEL, 0, NULL },
                  { TS_ATTENTION_HEADS, 0, NULL },
                  { 0, 1u << TS_ATTENTION_RING, "\"ring\" is asked for, and the scope forbids it" },
                  { 0, 1u << TS_ATTENTION_GATHER | 1u << TS_ATTENTION_HEADS, NULL },
                  { 0, 30, "the scope forbids every algorithm" } };
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        options.attention = cases[i].force;
        options.attention_forbid = cases[i].forbid;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        ts_tensor *y = ts_attention(x, x, x, i == 4 ? NULL : &ring); /* a call's own word counts */
        TEST_CHECK(t, (y == NULL) == (cases[i].says != NULL));
        if (cases[i].says) TEST_SAYS(t, ts_rank_error(t->me)->text, cases[i].says);
        if (i == 0) TEST_CHECK(t, ts_attention(x, x, x, NULL) == NULL); /* one axis cuts */
        (void)ts_scope_close(scope);
        TEST_OK(t, ts_rank_status(t->me));
    }
    TEST_CHECK(t, ts_attention(x, x, x, &ring) != NULL);
    ts_mesh_release(mesh);
}
