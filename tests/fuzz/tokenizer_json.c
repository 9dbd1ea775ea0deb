/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json.c - damaged tokenizer files: each is refused or gives a tokenizer that encodes and
 * decodes any bytes without crashing. Damage is of two kinds: bytes, which mostly breaks the JSON,
 * and words of the format put in the place of others, which breaks its meaning. */
#include <ctype.h>

#include "unit/data_util.h"

static const char *const names[] = { "hand_bytes", "hand_pieces", "gpt2",   "llama3",
                                     "qwen",       "steps",       "llama2", "meta" };

static const char *const words[] = {
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e9",
    "16777215",
    "99999999999999999999",
    "\"\"",
    "[]",
    "{}",
    "\"a\"",
    "\"type\"",
    "\"ByteLevel\"",
    "\"Sequence\"",
    "\"Metaspace\"",
    "\"Split\"",
    "\"Digits\"",
    "\"NFC\"",
    "\"Replace\"",
    "\"Prepend\"",
    "\"Strip\"",
    "\"Fuse\"",
    "\"ByteFallback\"",
    "\"TemplateProcessing\"",
    "\"BPE\"",
    "\"unk_token\"",
    "\"byte_fallback\"",
    "\"ignore_merges\"",
    "\"normalized\"",
    "\"single_word\"",
    "\"lstrip\"",
    "\"rstrip\"",
    "\"Removed\"",
    "\"MergedWithNext\"",
    "\"MergedWithPrevious\"",
    "\"Contiguous\"",
    "\"invert\"",
    "{\"Regex\":\"\\\\s*\"}",
    "{\"Regex\":\"(a+)+$\"}",
    "{\"Regex\":\"\\\\p{L}|x?\"}",
    "{\"String\":\" \"}",
    "{\"type\":\"ByteLevel\"}",
    "{\"type\":\"NFC\"}",
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\"}",
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w*\"},\"behavior\":\"Contiguous\"}"
};
enum { NAMES = sizeof names / sizeof names[0], WORDS = sizeof words / sizeof words[0] };

static void splice(char *text, size_t *length, size_t at, size_t removed, const char *put)
{
    size_t put_length = strlen(put);
    if (at + removed > *length) removed = *length - at;
    memmove(text + at + put_length, text + at + removed, *length - at - removed);
    memcpy(text + at, put, put_length);
    *length += put_length - removed;
}

/* The end of the JSON value or word at `at`, roughly. */
static size_t value_length(const char *text, size_t length, size_t at)
{
    size_t end = at + 1;
    if (text[at] == '"') {
        while (end < length && text[end] != '"')
            end += text[end] == '\\' ? 2 : 1;
        return (end < length ? end + 1 : length) - at;
    }
    while (end < length && (isalnum((unsigned char)text[end]) || text[end] == '-'))
        end++;
    return end - at;
}

static void damage(test *t, char *text, size_t *length)
{
    int64_t times = 1 + test_random_below(t, 3);
    for (int64_t i = 0; i < times; i++) {
        size_t at = (size_t)test_random_below(t, (int64_t)*length);
        switch (test_random_below(t, 5)) {
        case 0:
            text[at] = (char)test_random_below(t, 256);
            break;
        case 1:
            splice(text, length, at, 1 + (size_t)test_random_below(t, 40), "");
            break;
        default: /* the next value or name becomes another; in the first part, where the steps are
                  */
            if (test_random_below(t, 2) == 0 && *length > 2000) at %= 2000;
            while (at < *length && strchr("\"tfn0123456789[{", text[at]) == NULL)
                at++;
            if (at < *length)
                splice(text, length, at, value_length(text, *length, at),
                       words[test_random_below(t, WORDS)]);
            break;
        }
        if (*length == 0) text[(*length)++] = '{';
    }
}

static void try_tokenizer(test *t, ts_tokenizer *tokenizer)
{
    char text[128];
    for (int round = 0; round < 3; round++) {
        size_t length = 0, wanted = (size_t)test_random_below(t, 120);
        while (length < wanted)
            length = data_random_char(t, text, length, true);
        ts_tokens ids = { 0 };
        ts_text back = { 0 };
        uint32_t flags = (uint32_t)test_random_below(t, 8);
        ts_status status = ts_tokenizer_encode(tokenizer, text, length, flags, &ids);
        int64_t vocabulary = ts_tokenizer_vocabulary(tokenizer);
        for (int64_t i = 0; status == TS_OK && i < ids.count; i++)
            TEST_SAY(t, ids.id[i] >= 0 && ids.id[i] < vocabulary, "id %d of %lld", ids.id[i],
                     (long long)vocabulary);
        if (status == TS_OK)
            TEST_OK(t, ts_tokenizer_decode(tokenizer, ids.id, ids.count, 0, &back));
        size_t cut = 0;
        if (status == TS_OK) status = ts_tokenizer_cut(tokenizer, text, length, &cut);
        TEST_CHECK(t, cut <= length);
        ts_tokens_release(&ids);
        ts_text_release(&back);
    }
}

TS_TEST_LONG(damaged_files, 300)
{
    int64_t good = 0, bad = 0, missing = 0;
    for (size_t k = 0; k < NAMES; k++) {
        char path[DATA_PATH_MAX];
        size_t length;
        (void)snprintf(path, sizeof path, "tests/golden/tokenizer/%s.json", names[k]);
        char *json = test_read_file(t, path, &length);
        char *copy = malloc(length + 1024);
        for (int round = 0; round < 700 && json != NULL && copy != NULL; round++) {
            size_t now = length;
            memcpy(copy, json, length);
            damage(t, copy, &now);
            ts_tokenizer *tokenizer = NULL;
            ts_status status = ts_tokenizer_parse("fuzz", copy, now, &tokenizer);
            TEST_CHECK(t, (status == TS_OK) == (tokenizer != NULL));
            TEST_CHECK(t, status == TS_OK || ts_last_error()[0] != '\0');
            if (status == TS_OK) try_tokenizer(t, tokenizer);
            good += status == TS_OK;
            bad += status != TS_OK;
            missing += status == TS_ERR_MISSING;
            ts_tokenizer_close(tokenizer);
        }
        free(copy);
        tsi_free(json);
    }
    TEST_SAY(t, missing > 0 || (good > 100 && bad > 100), "%lld files were read and %lld refused",
             (long long)good, (long long)bad);
}
