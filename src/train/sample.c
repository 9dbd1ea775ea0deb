/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - what the model writes after a prompt: at the end of a run, and on the way where
 * log.sample_every asks for it (OUTPUT/samples.jsonl).
 *
 * INV: training does not notice: nothing has a tape, random numbers are those of the seed and the
 * position, and the time is no step's. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rank.h"
#include "base/text.h"
#include "train/run.h"

/* The prompt as it is, then what the model wrote: decoded as one text, since a token means what it
 * does behind those before it. */
static ts_status sample_text(ts_tokenizer *tokenizer, const ts_tokens *prompt,
                             const ts_tokens *tokens, ts_text *out)
{
    ts_decoder *decoder = NULL;
    TSI_TRY(ts_decoder_open(tokenizer, TS_DECODE_SKIP_SPECIALS, &decoder));
    ts_status status = ts_decoder_push(decoder, prompt->id, prompt->count, out);
    if (status == TS_OK) status = ts_decoder_push(decoder, tokens->id, tokens->count, out);
    if (status == TS_OK) status = ts_decoder_end(decoder, out);
    ts_decoder_close(decoder);
    return status;
}

static int sample_ends(void *context)
{
    const ts_train_options *o = ((const tsi_run *)context)->options;
    return o->stop && o->stop(o->context) > 1;
}

ts_status tsi_run_sample(tsi_run *run, ts_text *out)
{
    const tsi_log_keys *log = &run->config->log;
    ts_tokenizer *tokenizer = NULL;
    ts_tokens prompt = { 0 }, text = { 0 };
    ts_generate_options options = { .struct_size = sizeof options,
                                    .tokens = log->sample,
                                    .temperature = log->temperature,
                                    .seed = (uint64_t)run->config->train.seed,
                                    .context = run,
                                    .end = sample_ends };
    ts_status status = ts_tokenizer_open(run->config->data.tokenizer, &tokenizer);
    if (status == TS_OK)
        status = ts_tokenizer_encode(tokenizer, log->prompt, strlen(log->prompt), 0, &prompt);
    options.stop = tokenizer ? ts_tokenizer_eos(tokenizer) : -1;
    if (status == TS_OK && prompt.count > 0)
        status = ts_generate(run->model, &prompt, &options, &text);
    tsi_model_routers_clear(run->model); /* what it writes moves no bias */
    if (status == TS_OK && ts_rank_index(run->me) == 0)
        status = sample_text(tokenizer, &prompt, &text, out);
    ts_tokens_release(&prompt);
    ts_tokens_release(&text);
    ts_tokenizer_close(tokenizer);
    return status;
}

/* What is no UTF-8, or ends texts, becomes U+FFFD. */
static void add_json(tsi_text *line, const ts_text *text)
{
    tsi_text clean = { 0 };
    for (size_t i = 0; i < text->length;) {
        size_t n = text->data[i] ? tsi_utf8_character(text->data + i, text->length - i) : 0;
        tsi_text_add_n(&clean, n > 0 ? text->data + i : "\xef\xbf\xbd", n > 0 ? n : 3);
        i += n > 0 ? n : 1;
    }
    char *copy = tsi_text_take(&clean);
    tsi_text_json(line, copy ? copy : "");
    tsi_free(copy);
}

/* A sample on the way, if it is due; the time that takes is no step's. */
ts_status tsi_run_sample_step(tsi_run *run, int64_t step, int64_t *told, int64_t *mark)
{
    const tsi_log_keys *log = &run->config->log;
    bool due = log->sample_every > 0 && step % log->sample_every == 0;
    if (!due || log->sample == 0 || !log->prompt[0]) return TS_OK;
    int64_t begin = tsi_clock_ns();
    ts_text text = { 0 };
    tsi_text line = { 0 };
    ts_status status = tsi_run_sample(run, &text);
    if (status == TS_OK && ts_rank_index(run->me) == 0) {
        tsi_text_printf(&line, "{\"step\": %lld, \"text\": ", (long long)step);
        add_json(&line, &text);
        tsi_text_add(&line, "}\n");
        status = tsi_run_line(run, &run->samples, "samples.jsonl", &line);
    }
    ts_text_release(&text);
    run->measures.event = ts_rank_event(run->me);
    *told += tsi_clock_ns() - begin;
    *mark = tsi_clock_ns();
    return status;
}
