/* SPDX-License-Identifier: Apache-2.0 */
/* model_cache.c - tokens that go on from a cache of keys and values: logits are those of the whole
 * text, in whatever pieces it comes and on whatever mesh; generated texts are the same with it and
 * without. */
#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { VOCAB = 23, LENGTH = 11, POSITIONS = 24 };

static ts_model_config config_of(int32_t family)
{
    bool latent = family == TS_MODEL_DEEPSEEK_V3, gpt2 = family == TS_MODEL_GPT2;
    bool experts = latent || family == TS_MODEL_MIXTRAL || family == TS_MODEL_QWEN3_MOE;
    ts_model_config c = TS_INIT(ts_model_config);
    c.family = family;
    c.vocab = VOCAB;
    c.hidden = 12;
    c.intermediate = 10;
    c.layers = 2;
    c.heads = 6;
    c.kv_heads = gpt2 || latent ? 6 : 3;
    c.head_dim = gpt2 ? 2 : 4;
    c.positions = POSITIONS;
    c.init_deviation = 0.4;
    if (family == TS_MODEL_QWEN3) c.window = 4;
    if (family == TS_MODEL_QWEN3) c.window_layers[0] = 2;
    if (experts) c.experts = 6;
    if (experts) c.experts_per_token = 2;
    if (latent || family == TS_MODEL_QWEN3_MOE) c.expert_width = 7;
    if (latent) c.kv_rank = 5;
    if (latent) c.plain_dim = c.value_dim = 3;
    return c;
}

typedef struct subject {
    ts_mesh *mesh;
    ts_model *model;
    ts_pipeline *pipeline; /* or NULL */
} subject;

static void cut_in_stages(test *t, subject *s)
{
    ts_schedule_options size = TS_INIT(ts_schedule_options);
    ts_schedule *schedule = NULL;
    ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
    size.ranks = 2;
    size.micro_batches = 1;
    TEST_OK(t, ts_schedule_generate("GPipe", &size, &schedule));
    options.mesh = s->mesh;
    options.schedule = schedule;
    s->pipeline = ts_model_pipeline(s->model, &options);
    ts_schedule_destroy(schedule);
}

static subject subject_on(test *t, const char *mesh, const ts_model_config *config)
{
    ts_model_options options = TS_INIT(ts_model_options);
    subject s = { .mesh = ts_mesh_create(t->me, mesh) };
    bool stages = ts_mesh_axis(s.mesh, "pp") >= 0;
    options.dtype = TS_DTYPE_F64;
    s.model = ts_model_declare(stages ? ts_pipeline_mesh(s.mesh, NULL) : s.mesh, config, &options);
    if (stages) cut_in_stages(t, &s);
    if (ts_mesh_axis(s.mesh, "fsdp") >= 0) TEST_OK(t, ts_model_fsdp(s.model, NULL));
    TEST_OK(t, ts_model_materialize(s.model));
    return s;
}

static void subject_end(subject *s)
{
    ts_pipeline_destroy(s->pipeline);
    ts_model_destroy(s->model);
    ts_mesh_release(s->mesh);
}

static ts_status token(const int64_t *global, void *element, void *context)
{
    int64_t at = *(const int64_t *)context + global[1];
    *(int64_t *)element = (7 * global[0] + 3 * at * at + at) % VOCAB;
    return TS_OK;
}

/* Logits of tokens [first, first + length) of `rows` texts: [rows, length, VOCAB] of the caller's
 * memory. Without a cache they are the first ones. */
static void logits_of(test *t, ts_model *model, ts_model_cache *cache, ts_shape what, double *out)
{
    int64_t rows = what.extent[0], length = what.extent[1], first = ts_model_cache_length(cache);
    ts_meta meta = { .shape = what, .dtype = TS_DTYPE_I64 };
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *ids = ts_from_function(token, &first, ts_model_tokens_of(model, length, NULL), meta);
    ts_tensor *logits = cache ? ts_model_logits_after(cache, ids) : ts_model_logits(model, ids);
    ts_array array = TS_INIT(ts_array);
    TEST_OK(t, test_view(ts_clone(ts_tensor_full(logits)), &array));
    if (array.data) memcpy(out, array.data, (size_t)(rows * length * VOCAB) * sizeof *out);
    ts_scope_close(scope);
}

static const int64_t pieces[] = { 3, 1, 1, 4, 2 };

static void compare(test *t, const char *mesh, int32_t family)
{
    enum { ROWS = 2 };
    static _Thread_local double want[ROWS][LENGTH][VOCAB], have[ROWS * LENGTH * VOCAB];
    ts_model_config config = config_of(family);
    subject one = subject_on(t, mesh, &config);
    ts_model_cache *cache = ts_model_cache_create(one.model);
    logits_of(t, one.model, NULL, TS_SHAPE(ROWS, LENGTH), &want[0][0][0]);
    double worst = 0;
    for (int pass = 0; pass < 2; pass++) { /* the second time from the third token on */
        for (size_t p = 0; p < TSI_COUNT_OF(pieces); p++) {
            int64_t first = ts_model_cache_length(cache);
            if (pass == 1 && first == 3 && p == 0) continue;
            logits_of(t, one.model, cache, TS_SHAPE(ROWS, pieces[p]), have);
            for (int64_t i = 0; i < ROWS * pieces[p] * VOCAB; i++) {
                int64_t row = i / VOCAB / pieces[p], at = i / VOCAB % pieces[p];
                worst = fmax(worst, fabs(have[i] - want[row][first + at][i % VOCAB]));
            }
        }
        TEST_CHECK(t, ts_model_cache_length(cache) == LENGTH);
        TEST_OK(t, ts_model_cache_keep(cache, 3));
    }
    TEST_SAY(t, worst < 1e-12, "family %d on %s: logits differ by %g", (int)family, mesh, worst);
    ts_model_cache_destroy(cache);
    subject_end(&one);
}

TS_TEST_RANKS(logits_after_a_cache_are_those_of_the_text, 1, 2, 3, 4)
{
    static const char *const meshes[5][4] = { [1] = { "dp=1" },
                                              [2] = { "tp=2", "cp=2", "fsdp=2", "pp=2" },
                                              [3] = { "cp=3", "tp=3", "dp=3" },
                                              [4] = { "cp=2, tp=2", "pp=2, tp=2",
                                                      "fsdp=2, cp=2" } };
    for (int m = 0; m < 4 && meshes[t->count][m]; m++)
        for (int32_t family = TS_MODEL_LLAMA; family <= TS_MODEL_DEEPSEEK_V3; family++)
            compare(t, meshes[t->count][m], family);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void same_text(test *t, const char *mesh, const ts_model_config *config, const char *what)
{
    enum { TOKENS = POSITIONS + 4 }; /* more than the model has positions for */
    static const int32_t begin[] = { 4, 17, 2 };
    int32_t id[3] = { begin[0], begin[1], begin[2] };
    ts_tokens prompt = { .id = id, .count = 3 }, out[2] = { { 0 } };
    subject one = subject_on(t, mesh, config);
    for (int uncached = 0; uncached < 2; uncached++) {
        ts_generate_options options;
        ts_generate_options_init(&options);
        options.tokens = TOKENS;
        options.temperature = 0.7;
        options.seed = 5;
        options.uncached = uncached;
        TEST_OK(t, ts_generate(one.model, &prompt, &options, &out[uncached]));
    }
    TEST_EQ(t, out[0].count, TOKENS);
    int64_t same = 0;
    while (same < out[0].count && same < out[1].count && out[0].id[same] == out[1].id[same])
        same++;
    TEST_SAY(t, same == TOKENS, "%s on %s: token %lld differs", what, mesh, (long long)same);
    ts_tokens_release(&out[0]);
    ts_tokens_release(&out[1]);
    subject_end(&one);
}

TS_TEST_RANKS(texts_are_the_same_without_a_cache, 1, 2, 4)
{
    const char *mesh = t->count == 1 ? "dp=1" : t->count == 2 ? "pp=2" : "cp=2, tp=2";
    for (int32_t family = TS_MODEL_LLAMA; family <= TS_MODEL_DEEPSEEK_V3; family++) {
        ts_model_config config = config_of(family);
        same_text(t, mesh, &config, "a family");
    }
    ts_model_config scaled = config_of(TS_MODEL_LLAMA);
    scaled.rope_type = TS_ROPE_DYNAMIC;
    scaled.rope_factor = 2.0;
    scaled.rope_original = 8.0;
    same_text(t, mesh, &scaled, "positions scaled by the length");
}

static void refuse_text(test *t, ts_model *model, const ts_generate_options *options,
                        const char *says)
{
    int32_t id = 4;
    ts_tokens prompt = { .id = &id, .count = 1 }, out = { 0 };
    TEST_CHECK(t, ts_generate(model, &prompt, options, &out) != TS_OK);
    TEST_SAYS(t, ts_rank_error(t->me)->text, says);
    TEST_EQ(t, out.count, 0);
    TEST_OK(t, ts_rank_recover(t->me));
    ts_tokens_release(&out);
}

TS_TEST_RANKS(texts_of_no_numbers_are_refused, 1, 2)
{
    ts_model_config config = config_of(TS_MODEL_LLAMA);
    subject one = subject_on(t, t->count == 1 ? "dp=1" : "tp=2", &config);
    static const double temperatures[] = { -1, NAN, INFINITY };
    ts_generate_options options;
    for (int i = 0; i < 3; i++) {
        ts_generate_options_init(&options);
        options.temperature = temperatures[i];
        refuse_text(t, one.model, &options, "a number from 0 on");
    }
    ts_generate_options_init(&options);
    options.top_k = -1;
    refuse_text(t, one.model, &options, "neither is negative");
    ts_generate_options_init(&options);
    ts_tensor *norm = ts_module_find_param(ts_model_module(one.model), "model.norm.weight");
    TEST_OK(t, ts_tensor_write(norm, ts_mul_scalar(norm, (double)NAN)));
    refuse_text(t, one.model, &options, "the model gives token 0 the logit");
    subject_end(&one);
}

/* ---- what a cache cannot go on from ---------------------------------------------------------- */

static void refuse(test *t, ts_model_cache *cache, const ts_sharding *where, ts_shape ids,
                   const char *says)
{
    int64_t first = 0;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_meta meta = { .shape = ids, .dtype = TS_DTYPE_I64 };
    ts_tensor *logits = ts_model_logits_after(cache, ts_from_function(token, &first, where, meta));
    TEST_CHECK(t, logits == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, says);
    (void)ts_scope_close(scope);
}

typedef struct recorded_text {
    ts_model_cache *cache;
    ts_tensor *ids;
} recorded_text;

static ts_status go_on(void *context)
{
    const recorded_text *r = context;
    return ts_model_logits_after(r->cache, r->ids) ? TS_OK : TS_ERR_STATE;
}

/* Run again, a step would stand behind as many tokens as when it was recorded. */
TS_TEST_RANKS(caches_refuse_recorded_steps, 1, 2)
{
    ts_model_config config = config_of(TS_MODEL_LLAMA);
    subject one = subject_on(t, "dp=*", &config);
    int64_t first = 0;
    ts_meta meta = { .shape = TS_SHAPE(2, 3), .dtype = TS_DTYPE_I64 };
    recorded_text r = { ts_model_cache_create(one.model), NULL };
    r.ids = ts_from_function(token, &first, ts_model_tokens(one.model), meta);
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_step_record(t->me, go_on, &r) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "model_logits_after: a step is recorded");
    (void)ts_scope_close(scope);
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, go_on(&r));
    ts_model_cache_destroy(r.cache);
    subject_end(&one);
}

TS_TEST_RANKS(caches_refuse_what_they_cannot_know, 1, 2)
{
    static _Thread_local double logits[2 * LENGTH * VOCAB];
    ts_model_config config = config_of(TS_MODEL_LLAMA);
    config.rope_type = TS_ROPE_DYNAMIC;
    config.rope_factor = 2.0;
    config.rope_original = 8.0;
    subject one = subject_on(t, t->count == 1 ? "dp=1" : "cp=2", &config);
    ts_model_cache *cache = ts_model_cache_create(one.model);
    const ts_sharding *where = ts_model_tokens(one.model);
    logits_of(t, one.model, cache, TS_SHAPE(2, 6), logits);
    TEST_CHECK(t, ts_model_cache_fits(cache, 2) && !ts_model_cache_fits(cache, 3));
    refuse(t, cache, where, TS_SHAPE(2, 3), "begin anew");
    refuse(t, cache, where, TS_SHAPE(3, 1), "ids of 3 rows, the cache has tokens of 2");
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_STATUS(t, ts_model_cache_keep(cache, 7), TS_ERR_ARG);
    (void)ts_scope_close(scope);
    const ts_mask *documents = ts_mask_get(ts_rank_world(t->me), "documents(1)");
    TEST_OK(t, ts_model_documents(one.model, documents));
    refuse(t, cache, where, TS_SHAPE(2, 1), "packed documents");
    TEST_CHECK(t, ts_model_cache_length(cache) == 6);
    ts_model_cache_destroy(cache);
    subject_end(&one);
}

/* ---- what is left of a cache ----------------------------------------------------------------- */

/* Logits of `what` behind the cache's tokens against those of the whole text without it. */
static void goes_on(test *t, ts_model *model, ts_model_cache *cache, ts_shape what)
{
    static _Thread_local double want[3 * LENGTH * VOCAB], have[3 * LENGTH * VOCAB];
    int64_t rows = what.extent[0], length = what.extent[1], first = ts_model_cache_length(cache);
    logits_of(t, model, NULL, TS_SHAPE(rows, first + length), want);
    logits_of(t, model, cache, what, have);
    double worst = 0;
    for (int64_t i = 0; i < rows * length * VOCAB; i++) {
        int64_t row = i / (length * VOCAB), in_row = i % (length * VOCAB);
        double due = want[(row * (first + length) + first) * VOCAB + in_row];
        worst = fmax(worst, fabs(have[i] - due));
    }
    TEST_SAY(t, worst < 1e-12, "%lld tokens of %lld rows behind %lld: logits differ by %g",
             (long long)length, (long long)rows, (long long)first, worst);
}

/* Keys that are kept have the positions of the length for which they were made. */
TS_TEST_RANKS(what_is_kept_fits_the_length_it_was_made_for, 1, 2)
{
    ts_model_config config = config_of(TS_MODEL_LLAMA);
    config.rope_type = TS_ROPE_DYNAMIC;
    config.rope_factor = 2.0;
    config.rope_original = 8.0;
    subject one = subject_on(t, t->count == 1 ? "dp=1" : "cp=2", &config);
    ts_model_cache *cache = ts_model_cache_create(one.model);
    goes_on(t, one.model, cache, TS_SHAPE(2, 10));
    TEST_OK(t, ts_model_cache_keep(cache, 6));
    TEST_CHECK(t, !ts_model_cache_fits(cache, 2) && !ts_model_cache_fits(cache, 3));
    TEST_CHECK(t, ts_model_cache_fits(cache, 4));
    refuse(t, cache, ts_model_tokens(one.model), TS_SHAPE(2, 1), "begin anew");
    goes_on(t, one.model, cache, TS_SHAPE(2, 4));
    TEST_OK(t, ts_model_cache_keep(cache, 0));
    goes_on(t, one.model, cache, TS_SHAPE(2, 6));
    goes_on(t, one.model, cache, TS_SHAPE(2, 2));
    ts_model_cache_destroy(cache);
    subject_end(&one);
}

TS_TEST_RANKS(a_cache_that_forgot_all_takes_another_batch, 1, 2)
{
    ts_model_config config = config_of(TS_MODEL_LLAMA);
    subject one = subject_on(t, t->count == 1 ? "dp=1" : "dp=2", &config);
    ts_model_cache *cache = ts_model_cache_create(one.model);
    for (int64_t rows = 1; rows <= 3; rows++) { /* also more than before, and fewer than ranks */
        int64_t now = 1 + rows % 3;
        goes_on(t, one.model, cache, TS_SHAPE(now, 4));
        goes_on(t, one.model, cache, TS_SHAPE(now, 1));
        TEST_OK(t, ts_model_cache_keep(cache, 0));
    }
    ts_model_cache_destroy(cache);
    subject_end(&one);
}
