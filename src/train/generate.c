/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c - sampling from a model: each token from the logits of everything before it.
 *
 * A step runs the tokens that the cache of keys and values has not seen: the prompt, then one after
 * the other. It begins anew where the cache does not hold what the model would compute of the whole
 * text: of a text that is longer than the model's positions the last ones count, and all of them
 * stand elsewhere after each token. All ranks see the same logits and the same random numbers, so
 * they choose alike. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/philox.h"
#include "model/model.h"
#include "tessera/train.h"

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int32_t *window = context;
    *(int64_t *)element = window[global[1]];
    return TS_OK;
}

typedef struct session {
    ts_model *model;
    ts_rank *me;
    const ts_generate_options *options;
    ts_model_cache *cache;
    ts_tokens all; /* the prompt, and what came after it */
    double *logit; /* [vocabulary] */
} session;

/* How many of the last `length` tokens the cache goes on from; 0: it forgets what it had. */
static ts_status tokens_seen(const session *s, int64_t length, int64_t *seen)
{
    *seen = ts_model_cache_length(s->cache);
    bool goes_on = !s->options->uncached && length == s->all.count &&
                   ts_model_cache_fits(s->cache, length - *seen);
    if (goes_on) return TS_OK;
    *seen = 0;
    return ts_model_cache_keep(s->cache, 0);
}

/* Logits of the last position, copied out as f64. */
static ts_status last_logits(session *s)
{
    int64_t most = ts_model_configuration(s->model)->positions, seen;
    int64_t length = s->all.count < most ? s->all.count : most;
    TSI_TRY(tokens_seen(s, length, &seen));
    ts_scope scope =
        ts_scope_open_with(s->me, TS_OPTIONS(ts_scope_options, .label = "generate", .no_grad = 1));
    ts_meta meta = { .shape = TS_SHAPE(1, length - seen), .dtype = TS_DTYPE_I64 };
    ts_tensor *ids = ts_from_function(token_at, s->all.id + s->all.count - length + seen,
                                      ts_model_tokens_of(s->model, length - seen, NULL), meta);
    ts_tensor *last = ts_select(ts_model_logits_after(s->cache, ids), 1, -1);
    ts_tensor *full = ts_tensor_full(ts_cast(last, TS_DTYPE_F64));
    ts_array to = TS_INIT(ts_array);
    to.meta = (ts_meta){ .shape = ts_tensor_shape(full), .dtype = TS_DTYPE_F64 };
    to.data = s->logit;
    ts_status status = ts_tensor_read(full, &to);
    ts_scope_close(scope);
    return status;
}

/* The k-th largest value, by repeated search below the last one found; k is small. */
static double threshold(const double *logit, int64_t count, int32_t top_k)
{
    double bound = INFINITY;
    for (int32_t found = 0; found < top_k;) {
        double next = -INFINITY;
        int32_t equal = 0;
        for (int64_t i = 0; i < count; i++) {
            if (logit[i] >= bound) continue;
            equal = logit[i] > next ? 1 : equal + (logit[i] == next);
            next = fmax(next, logit[i]);
        }
        if (equal == 0) break;
        bound = next;
        found += equal;
    }
    return bound < (double)INFINITY ? bound : -(double)INFINITY;
}

static int32_t choose(const ts_generate_options *o, const double *logit, int64_t count,
                      int64_t position)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logit[i] > logit[best]) best = i;
    if (o->temperature <= 0) return (int32_t)best;
    double bound = -INFINITY;
    if (o->top_k > 0 && o->top_k < count) bound = threshold(logit, count, o->top_k);
    double total = 0;
    for (int64_t i = 0; i < count; i++)
        if (logit[i] >= bound) total += exp((logit[i] - logit[best]) / o->temperature);
    tsi_philox_block random = tsi_philox(o->seed, (uint64_t)position, 0x67656e65726174u);
    double at = ((double)random.word[0] + 0.5) / 4294967296.0 * total;
    for (int64_t i = 0; i < count; i++) {
        if (logit[i] < bound) continue;
        at -= exp((logit[i] - logit[best]) / o->temperature);
        if (at <= 0) return (int32_t)i;
    }
    return (int32_t)best;
}

static ts_status push(ts_tokens *tokens, int32_t id)
{
    if (tokens->count == tokens->capacity) {
        int64_t capacity = tokens->capacity ? 2 * tokens->capacity : 256;
        int32_t *grown = tsi_realloc(tokens->id, (size_t)capacity * sizeof *grown);
        if (!grown) return tsi_fail_memory("tokens", (size_t)capacity * sizeof *grown);
        tokens->id = grown;
        tokens->capacity = capacity;
    }
    tokens->id[tokens->count++] = id;
    return TS_OK;
}

static ts_status check_options(const ts_generate_options *o)
{
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return TSI_FAIL(TS_ERR_ARG, "generate: the temperature is a number from 0 on, not %g",
                        o->temperature);
    if (o->top_k >= 0 && o->tokens >= 0) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "generate: %lld tokens of the likeliest %d: neither is negative",
                    (long long)o->tokens, o->top_k);
}

/* A logit of -inf is a token that is out of the question; others that are no numbers are of a model
 * that has none. */
static ts_status check_logits(const double *logit, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(logit[i] < (double)INFINITY))
            return TSI_FAIL(TS_ERR_STATE, "generate: the model gives token %lld the logit %g",
                            (long long)i, logit[i]);
    return TS_OK;
}

static ts_status check_prompt(const ts_tokens *prompt, int64_t vocabulary)
{
    if (prompt->count < 1) return TSI_FAIL(TS_ERR_ARG, "generate: the prompt is empty");
    for (int64_t i = 0; i < prompt->count; i++)
        if (prompt->id[i] < 0 || prompt->id[i] >= vocabulary)
            return TSI_FAIL(TS_ERR_ARG,
                            "generate: token %d of the prompt is outside the vocabulary of %lld",
                            prompt->id[i], (long long)vocabulary);
    return TS_OK;
}

/* Does any rank want the text to end? */
static ts_status asked_to_end(ts_model *model, const ts_generate_options *o, int64_t *end)
{
    *end = o->end ? o->end(o->context) != 0 : 0;
    ts_group *all = ts_mesh_group(tsi_model_mesh(model), NULL);
    if (!o->end || ts_group_size(all) == 1) return TS_OK;
    ts_array word = TS_INIT(ts_array);
    word.data = end;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    return ts_group_all_reduce(all, &word, &word, TS_REDUCE_MAX, NULL);
}

static ts_status go_on(session *s, ts_tokens *out)
{
    const ts_generate_options *o = s->options;
    int64_t wanted = o->tokens > 0 || o->exact ? o->tokens : 128;
    int64_t vocabulary = ts_model_configuration(s->model)->vocab;
    for (int64_t n = 0, end = 0; n < wanted; n++) {
        TSI_TRY(asked_to_end(s->model, o, &end));
        if (end) break;
        TSI_TRY(last_logits(s));
        TSI_TRY(check_logits(s->logit, vocabulary));
        int32_t token = choose(o, s->logit, vocabulary, n);
        if (token == o->stop) break;
        TSI_TRY(push(&s->all, token));
        TSI_TRY(push(out, token));
        if (o->on_token && ts_rank_index(s->me) == 0) o->on_token(token, o->context);
    }
    return TS_OK;
}

static ts_status session_open(session *s, const ts_tokens *prompt)
{
    size_t vocabulary = (size_t)ts_model_configuration(s->model)->vocab;
    for (int64_t i = 0; i < prompt->count; i++)
        TSI_TRY(push(&s->all, prompt->id[i]));
    s->logit = tsi_alloc_array(vocabulary, sizeof *s->logit);
    if (!s->logit) return tsi_fail_memory("logits", vocabulary * sizeof *s->logit);
    s->cache = ts_model_cache_create(s->model);
    return s->cache ? TS_OK : ts_rank_status(s->me);
}

static void session_close(session *s)
{
    ts_model_cache_destroy(s->cache);
    tsi_free(s->logit);
    ts_tokens_release(&s->all);
}

ts_status ts_generate(ts_model *model, const ts_tokens *prompt, const ts_generate_options *options,
                      ts_tokens *out)
{
    ts_rank *me = ts_rank_current();
    if (!model || !prompt || !out || !me)
        return TSI_FAIL(TS_ERR_NULL, "generate: an argument is NULL");
    TSI_TRY(ts_rank_status(me));
    ts_generate_options o = { .struct_size = sizeof o, .stop = -1 };
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    TSI_TRY(check_options(&o));
    TSI_TRY(check_prompt(prompt, ts_model_configuration(model)->vocab));
    TSI_TRY(ts_model_documents(model, NULL)); /* a text is no row of packed documents */
    session s = { .model = model, .me = me, .options = &o };
    ts_status status = session_open(&s, prompt);
    if (status == TS_OK) status = go_on(&s, out);
    session_close(&s);
    return status;
}
