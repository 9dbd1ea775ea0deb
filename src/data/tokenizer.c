/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c - opening tokenizers, and the way of a text through their stages (tokenizer.h). */
#include "data/tokenizer.h"

#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

enum {
    FILE_BYTES_MAX = 1 << 29, /* of a tokenizer.json */
    CUT_WINDOW = 4096,        /* bytes on each side of a place where a text may be cut */
    CUT_TRIES = 64
};

/* ---- opening --------------------------------------------------------------------------------- */
void ts_tokenizer_close(ts_tokenizer *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < t->step_count; i++)
        tsi_pattern_release(t->step[i].pattern);
    for (size_t i = 0; i < TSI_COUNT_OF(t->scratch); i++)
        tsi_text_release(&t->scratch[i]);
    tsi_pattern_release(t->word_letter);
    tsi_added_release(&t->raw);
    tsi_added_release(&t->normalized);
    tsi_vocab_release(&t->names);
    tsi_bpe_release(&t->bpe);
    tsi_bpe_work_release(&t->work);
    tsi_arena_release(&t->texts);
    ts_tokens_release(&t->before);
    ts_tokens_release(&t->behind);
    tsi_free(t->added);
    tsi_free(t->special);
    tsi_free(t);
}

static ts_tokenizer *new_tokenizer(void)
{
    ts_tokenizer *t = tsi_calloc(1, sizeof *t);
    if (t == NULL) {
        tsi_fail_memory("a tokenizer", sizeof *t);
        return NULL;
    }
    tsi_bpe_init(&t->bpe);
    t->eos = -1;
    return t;
}

static ts_status open_bytes(ts_tokenizer **out)
{
    static const char *const names[] = { "<|bos|>", "<|eos|>", "<|pad|>", "<|sep|>" };
    ts_tokenizer *t = new_tokenizer();
    if (t == NULL) return TS_ERR_MEMORY;
    t->bytes = true;
    t->eos = TS_BYTE_EOS;
    t->hash = tsi_hash_text(TS_BYTE_VOCABULARY, "tessera bytes 1");
    for (int i = 0; i < TS_BYTE_VOCABULARY - 256; i++) {
        ts_status status = tsi_vocab_add(&t->names, 256 + i, names[i], strlen(names[i]));
        if (status == TS_OK) continue;
        ts_tokenizer_close(t);
        return status;
    }
    *out = t;
    return TS_OK;
}

ts_status ts_tokenizer_parse(const char *what, const char *json, size_t length, ts_tokenizer **out)
{
    if (out == NULL || what == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_tokenizer_parse: NULL");
    *out = NULL;
    ts_json_document *document = NULL;
    TSI_TRY(ts_json_parse(what, json, length, &document));
    ts_tokenizer *t = new_tokenizer();
    ts_status status = TS_ERR_MEMORY;
    if (t != NULL) {
        status = tsi_tokenizer_read(t, ts_json_root(document));
        if (status != TS_OK) tsi_error_prefix("%s", what);
        t->hash = tsi_hash_bytes(1, json, length);
    }
    ts_json_release(document);
    if (status == TS_OK)
        *out = t;
    else
        ts_tokenizer_close(t);
    return status;
}

ts_status ts_tokenizer_open(const char *path, ts_tokenizer **out)
{
    if (out == NULL || path == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_tokenizer_open: NULL");
    *out = NULL;
    if (strcmp(path, "byte") == 0) return open_bytes(out);
    struct stat about;
    bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    tsi_text name = { 0 };
    tsi_text_printf(&name, "%s%s", path, folder ? "/tokenizer.json" : "");
    char *file = tsi_text_take(&name);
    if (file == NULL) return TS_ERR_MEMORY;
    char *json = NULL;
    size_t length = 0;
    ts_status status = tsi_file_read(file, FILE_BYTES_MAX, &json, &length);
    if (status == TS_OK) status = ts_tokenizer_parse(file, json, length, out);
    tsi_free(json);
    tsi_free(file);
    return status;
}

/* ---- getters --------------------------------------------------------------------------------- */
int64_t ts_tokenizer_vocabulary(const ts_tokenizer *t)
{
    return t != NULL ? t->names.size : 0;
}

uint64_t ts_tokenizer_hash(const ts_tokenizer *t)
{
    return t != NULL ? t->hash : 0;
}

int32_t ts_tokenizer_find(const ts_tokenizer *t, const char *token)
{
    return t != NULL && token != NULL ? tsi_vocab_find(&t->names, token, strlen(token)) : -1;
}

const char *ts_tokenizer_token(const ts_tokenizer *t, int32_t id)
{
    return t != NULL ? tsi_vocab_text(&t->names, id, NULL) : NULL;
}

int32_t ts_tokenizer_eos(const ts_tokenizer *t)
{
    return t != NULL ? t->eos : -1;
}

void ts_tokens_release(ts_tokens *tokens)
{
    if (tokens == NULL) return;
    tsi_free(tokens->id);
    *tokens = (ts_tokens){ 0 };
}

void ts_text_release(ts_text *text)
{
    if (text == NULL) return;
    tsi_free(text->data);
    *text = (ts_text){ 0 };
}

/* ---- encoding -------------------------------------------------------------------------------- */
static ts_status encode_bytes(const char *text, size_t length, uint32_t flags, ts_tokens *out)
{
    bool framed = (flags & TS_ENCODE_SPECIALS) != 0;
    TSI_TRY(tsi_tokens_reserve(out, (int64_t)length + 2));
    int32_t *to = out->id + out->count;
    if (framed) *to++ = TS_BYTE_BOS;
    for (size_t i = 0; i < length; i++)
        to[i] = (unsigned char)text[i];
    to += length;
    if (framed) *to++ = TS_BYTE_EOS;
    out->count = to - out->id;
    return TS_OK;
}

typedef ts_status (*segment_fn)(const tsi_encode *call, tsi_string text, bool first);

/* Cuts out the added tokens of a set; what stands between them goes to `segment`. */
static ts_status between(const tsi_encode *call, const tsi_added_set *set, tsi_string text,
                         bool first, segment_fn segment)
{
    size_t done = 0, from = 0;
    for (;;) {
        tsi_found found;
        TSI_TRY(tsi_added_next(call->tokenizer, set, text, call->plain, done, &from, &found));
        size_t end = found.added != NULL ? found.start : text.length;
        if (done < end) {
            tsi_string part = { text.data + done, end - done };
            TSI_TRY(segment(call, part, first && done == 0));
        }
        if (found.added == NULL) return TS_OK;
        TSI_TRY(tsi_tokens_add(call->out, found.added->id));
        done = found.end;
    }
}

static ts_status encode_segment(const tsi_encode *call, tsi_string text, bool first)
{
    TSI_TRY(tsi_normalize(call->tokenizer, text, first && call->continued, &text));
    return between(call, &call->tokenizer->normalized, text, first, tsi_pretokenize);
}

static ts_status add_all(ts_tokens *out, const ts_tokens *more)
{
    for (int64_t i = 0; i < more->count; i++)
        TSI_TRY(tsi_tokens_add(out, more->id[i]));
    return TS_OK;
}

static ts_status encode(ts_tokenizer *t, tsi_string text, uint32_t flags, ts_tokens *out)
{
    tsi_encode call = { .tokenizer = t,
                        .out = out,
                        .continued = (flags & TS_ENCODE_CONTINUED) != 0,
                        .plain = (flags & TS_ENCODE_PLAIN) != 0 };
    bool framed = (flags & TS_ENCODE_SPECIALS) != 0;
    if (framed) TSI_TRY(add_all(out, &t->before));
    TSI_TRY(between(&call, &t->raw, text, true, encode_segment));
    return framed ? add_all(out, &t->behind) : TS_OK;
}

ts_status ts_tokenizer_encode(ts_tokenizer *t, const char *text, size_t length, uint32_t flags,
                              ts_tokens *out)
{
    if (t == NULL || out == NULL || (text == NULL && length > 0))
        return TSI_FAIL(TS_ERR_NULL, "ts_tokenizer_encode: NULL");
    if (t->bytes) return encode_bytes(text, length, flags, out);
    int64_t before = out->count;
    ts_status status = encode(t, (tsi_string){ text, length }, flags, out);
    if (status != TS_OK) out->count = before;
    return status;
}

ts_status ts_tokenizer_decode(ts_tokenizer *t, const int32_t *ids, int64_t count, uint32_t flags,
                              ts_text *out)
{
    if (t == NULL || out == NULL || (ids == NULL && count > 0))
        return TSI_FAIL(TS_ERR_NULL, "ts_tokenizer_decode: NULL");
    tsi_text text = { out->data, out->length, out->capacity, false };
    ts_status status = tsi_decode_ids(t, ids, count, flags, &text);
    if (status != TS_OK) text.length = out->length;
    if (text.length < text.capacity) text.data[text.length] = '\0';
    *out = (ts_text){ text.data, text.length, text.capacity };
    return status;
}

/* ---- cutting --------------------------------------------------------------------------------- */
static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* Places worth trying: the start of a line, and before the blank between two words. */
static bool is_candidate(const char *text, size_t at)
{
    if (text[at - 1] == '\n') return is_alnum(text[at]);
    return text[at] == ' ' && is_alnum(text[at - 1]) && is_alnum(text[at + 1]);
}

/* Do the tokens of the window around `at` stay the same when it is cut there? */
static ts_status try_cut(ts_tokenizer *t, const char *text, size_t length, size_t at,
                         ts_tokens *whole, ts_tokens *parts, bool *good)
{
    size_t start = at > CUT_WINDOW ? at - CUT_WINDOW : 0;
    size_t end = length - at > CUT_WINDOW ? at + CUT_WINDOW : length;
    whole->count = parts->count = 0;
    uint32_t flags = TS_ENCODE_CONTINUED;
    TSI_TRY(ts_tokenizer_encode(t, text + start, end - start, flags, whole));
    TSI_TRY(ts_tokenizer_encode(t, text + start, at - start, flags, parts));
    TSI_TRY(ts_tokenizer_encode(t, text + at, end - at, flags, parts));
    *good = whole->count == parts->count &&
            memcmp(whole->id, parts->id, (size_t)whole->count * sizeof *whole->id) == 0;
    return TS_OK;
}

ts_status ts_tokenizer_cut(ts_tokenizer *t, const char *text, size_t length, size_t *out)
{
    if (t == NULL || out == NULL || (text == NULL && length > 0))
        return TSI_FAIL(TS_ERR_NULL, "ts_tokenizer_cut: NULL");
    *out = t->bytes ? length : 0;
    if (t->bytes || length < 8) return TS_OK;
    ts_tokens whole = { 0 }, parts = { 0 };
    ts_status status = TS_OK;
    bool good = false;
    int tries = 0;
    /* Not in the first half, and with enough text behind it for the trial. */
    size_t behind = length / 4 < CUT_WINDOW ? length / 4 : CUT_WINDOW, at = length - behind;
    for (; status == TS_OK && !good && tries < CUT_TRIES && at > length / 2; at--) {
        if (!is_candidate(text, at)) continue;
        tries++;
        status = try_cut(t, text, length, at, &whole, &parts, &good);
        if (good) *out = at;
    }
    ts_tokens_release(&whole);
    ts_tokens_release(&parts);
    return status;
}
