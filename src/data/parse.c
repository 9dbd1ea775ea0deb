/* SPDX-License-Identifier: Apache-2.0 */
/* parse.c - the model and the tokens of a tokenizer.json.
 *
 * Two vocabularies come out: `names`, every token as the file spells it, and the model's `words`,
 * by the bytes they stand for. They differ for byte-level models, which spell bytes as letters. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

/* ---- vocabulary ------------------------------------------------------------------------------ */
/* The bytes of a token spelled in the byte alphabet; false if it has other letters. */
static bool unspell(const char *name, tsi_text *out)
{
    size_t length = strlen(name), used;
    out->length = 0;
    for (size_t at = 0; at < length; at += used) {
        int byte = tsi_letter_byte(tsi_utf8_read(name + at, length - at, &used));
        if (byte < 0) return false;
        char c = (char)byte;
        tsi_text_add_n(out, &c, 1);
    }
    return length > 0;
}

static ts_status add_name(const char *name, const ts_json *value, void *context)
{
    ts_tokenizer *t = context;
    if (ts_json_kind_of(value) != TS_JSON_INT)
        return TSI_FAIL(TS_ERR_ARG, "the vocabulary has no id for token \"%.64s\"", name);
    int64_t id = ts_json_int(value, -1);
    TSI_TRY(tsi_vocab_add(&t->names, id, name, strlen(name)));
    if (!t->bpe.byte_level) return tsi_vocab_add(&t->bpe.words, id, name, strlen(name));
    tsi_text *bytes = &t->scratch[0];
    if (!unspell(name, bytes)) return TS_OK; /* only an added token can be spelled like this */
    if (bytes->failed) return tsi_fail_memory("a token", strlen(name));
    return tsi_vocab_add(&t->bpe.words, id, bytes->data, bytes->length);
}

static ts_status find_byte_ids(ts_tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char text[8] = { (char)b };
        size_t length = 1;
        if (!t->bpe.byte_level) length = (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
        t->bpe.byte_id[b] = tsi_vocab_find(&t->bpe.words, text, length);
        if (t->bpe.byte_level && t->bpe.byte_fallback && t->bpe.byte_id[b] < 0)
            return TSI_FAIL(TS_ERR_ARG,
                            "byte_fallback with a byte-level vocabulary that lacks "
                            "byte %d is not supported",
                            b);
    }
    return TS_OK;
}

/* ---- merges ---------------------------------------------------------------------------------- */
static ts_status find_token(const ts_tokenizer *t, int64_t rank, const char *text, size_t length,
                            int32_t *out)
{
    *out = tsi_vocab_find(&t->names, text, length);
    if (*out >= 0) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "merge %lld needs the token \"%.*s\", which is not in the vocabulary",
                    (long long)rank, (int)(length < 64 ? length : 64), text);
}

/* ---- where words may be cut (pretoken.c) ---- */
/* Can a character be unknown? Then neighbours may be fused to one token or, where there is no token
 * for it, it vanishes and those beside it are neighbours. */
static bool may_be_unknown(const ts_tokenizer *t)
{
    bool complete = t->bpe.byte_fallback;
    for (int b = 0; b < 256; b++)
        complete = complete && t->bpe.byte_id[b] >= 0;
    return !complete;
}

/* At first, characters join that may be unknown; the merges say which others do. */
static void begin_joins(ts_tokenizer *t)
{
    bool known[TSI_CLASSES], always = !may_be_unknown(t);
    for (int c = 0; c < TSI_CLASS_MARK; c++) {
        char text[2] = { (char)c, '\0' };
        known[c] = always || tsi_vocab_find(&t->names, text, 1) >= 0;
    }
    known[TSI_CLASS_MARK] = always || tsi_vocab_find(&t->names, TSI_MARK, strlen(TSI_MARK)) >= 0;
    known[TSI_CLASS_OTHER] = always;
    for (int a = 0; a < TSI_CLASSES; a++) {
        for (int b = 0; b < TSI_CLASSES; b++)
            t->joins[a][b] = !known[a] || !known[b];
    }
    t->cuts = !t->bpe.byte_level && !t->bpe.ignore_merges;
}

static int last_class(const char *text, size_t length)
{
    int class = TSI_CLASS_OTHER;
    size_t used;
    for (size_t at = 0; at < length; at += used)
        class = tsi_class_of(text + at, length - at, &used);
    return class;
}

static void note_join(ts_tokenizer *t, const char *left, size_t left_length, const char *right)
{
    size_t used, length = strlen(right);
    int behind = length > 0 ? tsi_class_of(right, length, &used) : TSI_CLASS_OTHER;
    t->joins[last_class(left, left_length)][behind] = true;
}

static ts_status add_merge(ts_tokenizer *t, int64_t rank, const char *left, size_t left_length,
                           const char *right)
{
    int32_t left_id, right_id, id;
    TSI_TRY(find_token(t, rank, left, left_length, &left_id));
    TSI_TRY(find_token(t, rank, right, strlen(right), &right_id));
    tsi_text *both = &t->scratch[0];
    both->length = 0;
    tsi_text_add_n(both, left, left_length);
    tsi_text_add(both, right);
    if (both->failed) return tsi_fail_memory("a merge", left_length);
    TSI_TRY(find_token(t, rank, both->data, both->length, &id));
    note_join(t, left, left_length, right);
    return tsi_bpe_add_merge(&t->bpe, left_id, right_id, (uint32_t)rank, id);
}

/* "left right", or ["left", "right"]. */
static ts_status read_merge(ts_tokenizer *t, int64_t rank, const ts_json *value)
{
    const char *text = ts_json_text(value, NULL);
    if (text != NULL) {
        const char *blank = strchr(text, ' ');
        if (blank == NULL || strchr(blank + 1, ' ') != NULL)
            return TSI_FAIL(TS_ERR_ARG, "merge %lld is \"%.64s\", not two tokens and a blank",
                            (long long)rank, text);
        return add_merge(t, rank, text, (size_t)(blank - text), blank + 1);
    }
    const char *left = ts_json_text(ts_json_item(value, 0), NULL);
    const char *right = ts_json_text(ts_json_item(value, 1), NULL);
    if (ts_json_count(value) != 2 || left == NULL || right == NULL)
        return TSI_FAIL(TS_ERR_ARG, "merge %lld is not a pair of texts", (long long)rank);
    return add_merge(t, rank, left, strlen(left), right);
}

static ts_status read_merges(ts_tokenizer *t, const ts_json *merges)
{
    if (ts_json_kind_of(merges) != TS_JSON_LIST)
        return TSI_FAIL(TS_ERR_ARG, "model BPE has no list \"merges\"");
    int64_t count = ts_json_count(merges);
    if (count >= UINT32_MAX) return TSI_FAIL(TS_ERR_ARG, "there are too many merges");
    begin_joins(t);
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(read_merge(t, i, ts_json_item(merges, i)));
    return TS_OK;
}

/* ---- model ----------------------------------------------------------------------------------- */
static bool is_set(const ts_json *value)
{
    return ts_json_kind_of(value) == TS_JSON_TEXT ? *ts_json_text(value, "") != '\0'
                                                  : ts_json_real(value, 0) != 0;
}

static ts_status check_model(const ts_json *model)
{
    if (ts_json_kind_of(model) != TS_JSON_OBJECT)
        return TSI_FAIL(TS_ERR_ARG, "this is not a tokenizer.json: it has no object \"model\"");
    const char *type = ts_json_text(ts_json_member(model, "type"), "BPE");
    if (strcmp(type, "BPE") != 0)
        return TSI_FAIL(TS_ERR_ARG, "model %.64s is not supported, only BPE is", type);
    static const char *const unknown[] = { "dropout", "continuing_subword_prefix",
                                           "end_of_word_suffix" };
    for (size_t i = 0; i < TSI_COUNT_OF(unknown); i++) {
        if (is_set(ts_json_member(model, unknown[i])))
            return TSI_FAIL(TS_ERR_ARG, "model BPE with %s is not supported", unknown[i]);
    }
    return TS_OK;
}

static ts_status read_model(ts_tokenizer *t, const ts_json *model)
{
    const ts_json *vocab = ts_json_member(model, "vocab");
    if (ts_json_kind_of(vocab) != TS_JSON_OBJECT)
        return TSI_FAIL(TS_ERR_ARG, "model BPE has no object \"vocab\"");
    t->bpe.byte_fallback = ts_json_bool(ts_json_member(model, "byte_fallback"), false);
    t->bpe.fuse_unknown = ts_json_bool(ts_json_member(model, "fuse_unk"), false);
    t->bpe.ignore_merges = ts_json_bool(ts_json_member(model, "ignore_merges"), false);
    TSI_TRY(ts_json_each(vocab, add_name, t));
    TSI_TRY(find_byte_ids(t));
    const char *unknown = ts_json_text(ts_json_member(model, "unk_token"), NULL);
    if (unknown != NULL) {
        t->bpe.unknown = tsi_vocab_find(&t->names, unknown, strlen(unknown));
        if (t->bpe.unknown < 0)
            return TSI_FAIL(TS_ERR_ARG, "unk_token \"%.64s\" is not in the vocabulary", unknown);
    }
    return read_merges(t, ts_json_member(model, "merges"));
}

/* ---- added tokens ---------------------------------------------------------------------------- */
static bool flag(const ts_json *value, const char *name, bool otherwise)
{
    return ts_json_bool(ts_json_member(value, name), otherwise);
}

static ts_status need_word_letters(ts_tokenizer *t)
{
    if (t->word_letter != NULL) return TS_OK;
    return tsi_pattern_compile("added_tokens with single_word",
                               "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]",
                               &t->word_letter);
}

static ts_status name_added(ts_tokenizer *t, const char *text, int64_t id)
{
    int32_t known = tsi_vocab_find(&t->names, text, strlen(text));
    if (known == id && known >= 0) return TS_OK;
    return tsi_vocab_add(&t->names, id, text, strlen(text));
}

static ts_status read_added(ts_tokenizer *t, const ts_json *value)
{
    const char *text = ts_json_text(ts_json_member(value, "content"), NULL);
    int64_t id = ts_json_int(ts_json_member(value, "id"), -1);
    if (text == NULL || id < 0)
        return TSI_FAIL(TS_ERR_ARG, "added token %lld needs content and id",
                        (long long)t->added_count);
    TSI_TRY(name_added(t, text, id));
    int32_t index = (int32_t)t->added_count++;
    tsi_added *added = &t->added[index];
    added->id = (int32_t)id;
    added->special = flag(value, "special", false);
    added->strip_left = flag(value, "lstrip", false);
    added->strip_right = flag(value, "rstrip", false);
    added->single_word = flag(value, "single_word", false);
    if (added->single_word) TSI_TRY(need_word_letters(t));
    tsi_string spelled = { text, strlen(text) };
    if (!flag(value, "normalized", !added->special))
        return tsi_added_insert(&t->raw, spelled.data, spelled.length, index);
    TSI_TRY(tsi_normalize(t, spelled, false, &spelled));
    return tsi_added_insert(&t->normalized, spelled.data, spelled.length, index);
}

static ts_status read_added_list(ts_tokenizer *t, const ts_json *list)
{
    int64_t count = ts_json_count(list);
    if (count > TSI_VOCAB_ID_MAX) return TSI_FAIL(TS_ERR_ARG, "there are too many added tokens");
    t->added = tsi_calloc((size_t)count + 1, sizeof *t->added);
    if (t->added == NULL) return tsi_fail_memory("added tokens", (size_t)count * sizeof *t->added);
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(read_added(t, ts_json_item(list, i)));
    t->special = tsi_calloc((size_t)t->names.size + 1, sizeof *t->special);
    if (t->special == NULL) return tsi_fail_memory("special tokens", (size_t)t->names.size);
    for (int64_t i = 0; i < t->added_count; i++) {
        if (t->added[i].special) t->special[t->added[i].id] = true;
    }
    return TS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */
static int32_t customary_eos(const ts_tokenizer *t)
{
    static const char *const names[] = { "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>",
                                         "<|eos|>" };
    for (size_t i = 0; i < TSI_COUNT_OF(names); i++) {
        int32_t id = tsi_vocab_find(&t->names, names[i], strlen(names[i]));
        if (id >= 0) return id;
    }
    return -1;
}

static ts_status check_ids(const ts_tokenizer *t, const ts_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->count; i++) {
        if (tsi_vocab_text(&t->names, tokens->id[i], NULL) == NULL)
            return TSI_FAIL(TS_ERR_ARG, "post_processor uses id %d, which is no token",
                            tokens->id[i]);
    }
    return TS_OK;
}

ts_status tsi_tokenizer_read(ts_tokenizer *t, const ts_json *root)
{
    static const char *const unknown[] = { "truncation", "padding" };
    for (size_t i = 0; i < TSI_COUNT_OF(unknown); i++) {
        if (ts_json_kind_of(ts_json_member(root, unknown[i])) != TS_JSON_NULL)
            return TSI_FAIL(TS_ERR_ARG, "%s is not supported", unknown[i]);
    }
    const ts_json *model = ts_json_member(root, "model");
    TSI_TRY(check_model(model));
    TSI_TRY(tsi_read_normalizer(t, ts_json_member(root, "normalizer")));
    TSI_TRY(tsi_read_pre_tokenizer(t, ts_json_member(root, "pre_tokenizer")));
    TSI_TRY(tsi_read_decoder(t, ts_json_member(root, "decoder")));
    TSI_TRY(read_model(t, model));
    TSI_TRY(read_added_list(t, ts_json_member(root, "added_tokens")));
    TSI_TRY(tsi_read_post_processor(t, ts_json_member(root, "post_processor")));
    TSI_TRY(check_ids(t, &t->before));
    TSI_TRY(check_ids(t, &t->behind));
    t->eos = customary_eos(t);
    return TS_OK;
}
