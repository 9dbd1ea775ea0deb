/* SPDX-License-Identifier: Apache-2.0 */
/* model_context.c - models over a cut sequence: activations stay cut, packed documents are what
 * they are alone, and the loss is one rank's whatever the cut. */
#include <math.h>

#include "base/compiler.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { LENGTH = 33, VOCAB = 23 };

static const int32_t families[] = { TS_MODEL_LLAMA, TS_MODEL_QWEN3, TS_MODEL_MIXTRAL,
                                    TS_MODEL_GPT2 };

static ts_model *model_on(ts_mesh *mesh, int32_t family, int32_t balance)
{
    ts_model_config c = TS_INIT(ts_model_config);
    ts_model_options options = TS_INIT(ts_model_options);
    c.family = family;
    c.vocab = VOCAB;
    c.hidden = 12;
    c.intermediate = 10;
    c.layers = 2;
    c.heads = 6;
    c.kv_heads = family == TS_MODEL_GPT2 ? 6 : 3;
    c.head_dim = family == TS_MODEL_GPT2 ? 2 : 4;
    c.init_deviation = 0.3;
    if (family == TS_MODEL_MIXTRAL) c.experts = 5;
    if (family == TS_MODEL_MIXTRAL) c.experts_per_token = 2;
    if (family == TS_MODEL_QWEN3) c.window = 4;
    if (family == TS_MODEL_QWEN3) c.window_layers[0] = 2;
    options.dtype = TS_DTYPE_F64;
    options.balance = balance;
    return ts_model_create(mesh, &c, &options);
}

typedef struct piece { /* of the long row of tokens */
    int64_t row, first;
} piece;

static ts_status token(const int64_t *global, void *element, void *context)
{
    const piece *p = context;
    int64_t at = p->first + global[1], row = p->row + global[0];
    *(int64_t *)element = (7 * row + 3 * at * at + at) % VOCAB;
    return TS_OK;
}

/* The loss of rows `row` .. of these tokens, as packed documents or (NULL) as one. */
static double loss_of(test *t, ts_model *model, piece p, int64_t rows, int64_t length,
                      const ts_mask *documents)
{
    double value = NAN;
    ts_meta meta = { .shape = TS_SHAPE(rows, length), .dtype = TS_DTYPE_I64 };
    ts_scope scope = ts_scope_open(t->me, "loss");
    TEST_OK(t, ts_model_documents(model, documents));
    const ts_sharding *where = ts_model_tokens_of(model, length, documents);
    piece next = { p.row, p.first + 1 };
    ts_tensor *ids = ts_from_function(token, &p, where, meta);
    ts_tensor *labels = ts_from_function(token, &next, where, meta);
    TEST_OK(t, ts_tensor_item(ts_tensor_full(ts_model_loss(model, ids, labels)), &value));
    ts_scope_close(scope);
    return value;
}

static const int64_t lengths[] = { 5, 0, 13, 1, 14, 20, 0, 12, 1 };
static const int64_t counts[] = { 5, 4 };

/* Each document by itself, on one rank: positions begin anew, nothing is seen of the others. */
static double alone(test *t, ts_model *model)
{
    double total = 0;
    for (int64_t row = 0, i = 0; row < 2; row++)
        for (int64_t d = 0, first = 0; d < counts[row]; first += lengths[i], i++, d++) {
            if (lengths[i] == 0) continue;
            total +=
                (double)lengths[i] * loss_of(t, model, (piece){ row, first }, 1, lengths[i], NULL);
        }
    return total / (2.0 * LENGTH);
}

TS_TEST_RANKS(packed_documents_are_as_alone, 1, 2, 3, 4)
{
    char text[32];
    (void)snprintf(text, sizeof text, t->count == 4 ? "cp=2, tp=2" : "cp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text), *self = ts_mesh_self(t->me);
    const ts_mask *documents = ts_mask_documents(ts_rank_world(t->me), lengths, counts, 2);
    for (size_t f = 0; f < TSI_COUNT_OF(families); f++) {
        ts_model *one = model_on(self, families[f], TS_BALANCE_AUTO);
        double each = alone(t, one), want = loss_of(t, one, (piece){ 0 }, 2, LENGTH, documents);
        /* Rotary tables are f32, and only differences of positions count in them. */
        double allowed = families[f] == TS_MODEL_GPT2 ? 1e-12 : 1e-8;
        TEST_SAY(t, fabs(each - want) < allowed * fabs(want),
                 "family %d: %.17g packed, %.17g alone", (int)families[f], want, each);
        for (int32_t b = TS_BALANCE_AUTO; b <= TS_BALANCE_PTRR; b++) {
            if (b == TS_BALANCE_PER_DOCUMENT) continue; /* rows differ */
            ts_model *cut = model_on(mesh, families[f], b);
            double have = loss_of(t, cut, (piece){ 0 }, 2, LENGTH, documents);
            TEST_SAY(t, fabs(have - want) < 1e-12 * fabs(want),
                     "family %d, %s, %s: %.17g, not %.17g", (int)families[f], text,
                     ts_balance_name((ts_balance)b), have, want);
            ts_model_destroy(cut);
        }
        ts_model_destroy(one);
    }
    ts_mesh_release(mesh);
}

/* ---- nothing but keys and values moves ------------------------------------------------------- */

static int64_t moved(ts_rank *me)
{
    ts_op_cache_stats stats = TS_INIT(ts_op_cache_stats);
    (void)ts_op_cache_statistics(me, &stats);
    return stats.implicit_bytes;
}

/* Of causal attention, rank by rank: keys that its queries see and that others hold. */
static int64_t keys_missing(ts_model *model, int64_t ranks)
{
    const ts_layout *layout =
        ts_layout_get(ts_model_tokens_of(model, LENGTH, NULL), TS_SHAPE(1, LENGTH));
    int64_t missing = 0;
    for (int64_t r = 0; r < ranks; r++) {
        int64_t last = -1, own = 0, local[2];
        for (int64_t k = 0; k < LENGTH; k++)
            if (ts_layout_to_local(layout, &r, (const int64_t[]){ 0, k }, local)) {
                last = k;
                own++;
            }
        missing += last + 1 - own;
    }
    return missing;
}

TS_TEST_RANKS(sequences_stay_cut, 2, 3, 5)
{
    char text[32];
    (void)snprintf(text, sizeof text, "cp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    for (size_t f = 0; f < TSI_COUNT_OF(families); f++)
        for (int32_t b = TS_BALANCE_NONE; b <= TS_BALANCE_HEAD_TAIL; b++) {
            ts_model *model = model_on(mesh, families[f], b);
            int64_t before = moved(t->me), width = 12; /* of keys: groups by their size */
            (void)loss_of(t, model, (piece){ 0 }, 2, LENGTH, NULL);
            int64_t keys = keys_missing(model, t->count) * 2 * 2 * width * 2 * 8;
            int64_t have = moved(t->me) - before;
            bool window = families[f] == TS_MODEL_QWEN3; /* sees less in one layer */
            TEST_SAY(t, have > 0 && have <= keys + 64 * t->count && (window || have >= keys),
                     "family %d, %s: %lld bytes moved, %lld of keys and values", (int)families[f],
                     text, (long long)have, (long long)keys);
            ts_model_destroy(model);
        }
    ts_mesh_release(mesh);
}
