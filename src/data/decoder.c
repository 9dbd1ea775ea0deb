/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.c - text of tokens that come one by one.
 *
 * What a token says depends on those before it: the blank of the first one may be dropped, bytes of
 * one character may be several tokens. So the last tokens are kept as context and decoded together
 * with the new ones; what the text has more than before is given out.
 *
 *   tokens   ... | t1 t2 t3 t4 | t5         window: t1 .. t5
 *   text           shown         new        decode(window) = shown + new
 *
 * INV: what was given out so far, put together, is the beginning of the text of all tokens, and
 * never ends inside a character. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"

enum { CONTEXT = 16, WINDOW = 4 * CONTEXT }; /* tokens that are kept; that make it worth to cut */

struct ts_decoder {
    ts_tokenizer *tokenizer;
    uint32_t flags;
    ts_tokens window;
    tsi_text shown; /* of the window's text */
};

ts_status ts_decoder_open(ts_tokenizer *tokenizer, uint32_t flags, ts_decoder **out)
{
    if (out == NULL || tokenizer == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_decoder_open: NULL");
    *out = tsi_calloc(1, sizeof **out);
    if (*out == NULL) return tsi_fail_memory("a decoder", sizeof **out);
    (*out)->tokenizer = tokenizer;
    (*out)->flags = flags;
    return TS_OK;
}

void ts_decoder_close(ts_decoder *decoder)
{
    if (decoder == NULL) return;
    ts_tokens_release(&decoder->window);
    tsi_text_release(&decoder->shown);
    tsi_free(decoder);
}

/* Length of the text without a character at its end that may not be complete yet. */
static size_t certain(const tsi_text *text)
{
    for (size_t at = text->length > 3 ? text->length - 3 : 0; at < text->length; at++) {
        unsigned char lead = (unsigned char)text->data[at];
        size_t bytes = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
        if (bytes > text->length - at) return at;
    }
    return text->length;
}

static ts_status decode(ts_decoder *d, const int32_t *ids, int64_t count, tsi_text *out)
{
    *out = (tsi_text){ 0 };
    ts_status status = tsi_decode_ids(d->tokenizer, ids, count, d->flags, out);
    if (status == TS_OK && out->failed) status = tsi_fail_memory("a decoded text", out->length);
    if (status != TS_OK) tsi_text_release(out);
    return status;
}

/* Forgets old tokens while some of the text that is left is shown: without any, the next token
 * would be taken for the first. */
static ts_status shorten(ts_decoder *d)
{
    tsi_text text;
    if (d->window.count < WINDOW) return TS_OK;
    const int32_t *rest = d->window.id + d->window.count - CONTEXT;
    TSI_TRY(decode(d, rest, CONTEXT, &text));
    if (text.length == 0 || certain(&text) < text.length) {
        tsi_text_release(&text);
        return TS_OK;
    }
    memmove(d->window.id, rest, CONTEXT * sizeof *rest);
    d->window.count = CONTEXT;
    tsi_text_release(&d->shown);
    d->shown = text;
    return TS_OK;
}

/* Gives out what the window's text has beyond what is shown; `last`: all of it. */
static ts_status give(ts_decoder *d, bool last, ts_text *out)
{
    tsi_text text;
    TSI_TRY(decode(d, d->window.id, d->window.count, &text));
    size_t end = last ? text.length : certain(&text), shown = d->shown.length;
    /* A decoder that takes back what it said is waited for. */
    bool goes_on = end > shown && (shown == 0 || memcmp(text.data, d->shown.data, shown) == 0);
    tsi_text all = { out->data, out->length, out->capacity, false };
    if (goes_on) {
        tsi_text_add_n(&all, text.data + shown, end - shown);
        tsi_text_add_n(&d->shown, text.data + shown, end - shown);
        *out = (ts_text){ all.data, all.length, all.capacity };
    }
    bool whole = end == text.length && d->shown.length == end;
    tsi_text_release(&text);
    if (all.failed || d->shown.failed) return tsi_fail_memory("a decoded text", end - shown);
    return whole ? shorten(d) : TS_OK;
}

ts_status ts_decoder_push(ts_decoder *d, const int32_t *ids, int64_t count, ts_text *out)
{
    if (d == NULL || out == NULL || (ids == NULL && count > 0))
        return TSI_FAIL(TS_ERR_NULL, "ts_decoder_push: NULL");
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0)
            return TSI_FAIL(TS_ERR_ARG, "decode: token %lld has the id %d", (long long)i, ids[i]);
        TSI_TRY(tsi_tokens_add(&d->window, ids[i]));
    }
    return give(d, false, out);
}

ts_status ts_decoder_end(ts_decoder *d, ts_text *out)
{
    if (d == NULL || out == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_decoder_end: NULL");
    ts_status status = give(d, true, out);
    d->window.count = 0;
    d->shown.length = 0;
    return status;
}
