/* SPDX-License-Identifier: Apache-2.0 */
/* data_bpe.c - random models and texts: joining against a slow implementation that follows the
 * definition, decoding as the inverse of encoding, and cutting that changes nothing. */
#include "base/text.h"
#include "unit/data_util.h"

enum { WORD_MAX = 400, TOKENS_MAX = 64 };

/* ---- the definition: join the pair of lowest rank, the leftmost first, until there is none -- */
typedef struct slow_model {
    char token[TOKENS_MAX][16]; /* over the letters a to d */
    int count;
    int left[TOKENS_MAX], right[TOKENS_MAX], result[TOKENS_MAX];
    int merges;
} slow_model;

static int slow_find(const slow_model *m, const char *text)
{
    for (int i = 0; i < m->count; i++) {
        if (strcmp(m->token[i], text) == 0) return i;
    }
    return -1;
}

static void slow_make(test *t, slow_model *m)
{
    *m = (slow_model){ 0 };
    for (int i = 0; i < 4; i++)
        m->token[m->count++][0] = (char)('a' + i);
    int wanted = 1 + (int)test_random_below(t, 40);
    for (int tries = 0; tries < 200 && m->merges < wanted; tries++) {
        int left = (int)test_random_below(t, m->count), right = (int)test_random_below(t, m->count);
        char both[32];
        (void)snprintf(both, sizeof both, "%s%s", m->token[left], m->token[right]);
        bool known = false;
        for (int i = 0; i < m->merges; i++)
            known = known || (m->left[i] == left && m->right[i] == right);
        if (known || strlen(both) > 12) continue;
        int result = slow_find(m, both);
        if (result < 0) {
            result = m->count++;
            memcpy(m->token[result], both, strlen(both) + 1);
        }
        m->left[m->merges] = left;
        m->right[m->merges] = right;
        m->result[m->merges++] = result;
    }
}

static int slow_rank(const slow_model *m, int left, int right)
{
    for (int i = 0; i < m->merges; i++) {
        if (m->left[i] == left && m->right[i] == right) return i;
    }
    return m->merges;
}

static int slow_encode(const slow_model *m, const char *word, int *out)
{
    int count = 0;
    for (const char *c = word; *c != '\0'; c++)
        out[count++] = *c - 'a';
    for (;;) {
        int best = m->merges, at = 0;
        for (int i = 0; i + 1 < count; i++) {
            int rank = slow_rank(m, out[i], out[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == m->merges) return count;
        out[at] = m->result[best];
        count--;
        for (int i = at + 1; i < count; i++)
            out[i] = out[i + 1];
    }
}

static ts_tokenizer *slow_open(test *t, const slow_model *m)
{
    tsi_text json = { 0 };
    tsi_text_add(&json, "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < m->count; i++)
        tsi_text_printf(&json, "%s\"%s\":%d", i > 0 ? "," : "", m->token[i], i);
    tsi_text_add(&json, "},\"merges\":[");
    for (int i = 0; i < m->merges; i++)
        tsi_text_printf(&json, "%s[\"%s\",\"%s\"]", i > 0 ? "," : "", m->token[m->left[i]],
                        m->token[m->right[i]]);
    tsi_text_add(&json, "]}}");
    ts_tokenizer *tokenizer = NULL;
    ts_status status = ts_tokenizer_parse("random", json.data, json.length, &tokenizer);
    TEST_CHECK(t, status == TS_OK || status == TS_ERR_MISSING);
    tsi_text_release(&json);
    return tokenizer;
}

TS_TEST(joining_follows_the_definition)
{
    for (int model = 0; model < 150 && !test_failed(t); model++) {
        slow_model m;
        slow_make(t, &m);
        ts_tokenizer *tokenizer = slow_open(t, &m);
        for (int round = 0; round < 30 && tokenizer != NULL; round++) {
            char word[WORD_MAX + 1] = "";
            int want[WORD_MAX];
            int64_t length = 1 + test_random_below(t, round < 20 ? 50 : WORD_MAX); /* both ways */
            for (int64_t i = 0; i < length; i++)
                word[i] = (char)('a' + test_random_below(t, 4));
            int count = slow_encode(&m, word, want);
            ts_tokens got = { 0 };
            ts_text back = { 0 };
            TEST_OK(t, ts_tokenizer_encode(tokenizer, word, (size_t)length, 0, &got));
            TEST_EQ(t, got.count, count);
            for (int64_t i = 0; i < got.count && i < count; i++)
                TEST_SAY(t, got.id[i] == want[i], "\"%s\", token %lld", word, (long long)i);
            TEST_OK(t, ts_tokenizer_decode(tokenizer, got.id, got.count, 0, &back));
            TEST_TEXT(t, back.data, word);
            ts_tokens_release(&got);
            ts_text_release(&back);
        }
        ts_tokenizer_close(tokenizer);
    }
}

/* ---- decoding is the inverse of encoding ---------------------------------------------------- */
static void round_trip(test *t, ts_tokenizer *tokenizer, const char *name, const char *text,
                       size_t length)
{
    ts_tokens ids = { 0 };
    ts_text back = { 0 };
    TEST_OK(t, ts_tokenizer_encode(tokenizer, text, length, 0, &ids));
    TEST_OK(t, ts_tokenizer_decode(tokenizer, ids.id, ids.count, 0, &back));
    bool same = back.length == length && (length == 0 || memcmp(back.data, text, length) == 0);
    TEST_SAY(t, same, "%s: %zu bytes came back as %zu", name, length, back.length);
    ts_tokens_release(&ids);
    ts_text_release(&back);
}

TS_TEST(byte_level_keeps_every_byte)
{
    static const char *const names[] = { "byte", "hand_bytes", "llama3" };
    for (size_t k = 0; k < 3; k++) {
        ts_tokenizer *tokenizer = NULL;
        if (k > 0)
            tokenizer = data_golden(t, names[k]);
        else
            TEST_OK(t, ts_tokenizer_open("byte", &tokenizer));
        for (int round = 0; round < 4000 && tokenizer != NULL && !test_failed(t); round++) {
            char text[256];
            size_t length = 0, wanted = (size_t)test_random_below(t, 240);
            while (length < wanted)
                length = data_random_char(t, text, length, round % 2 == 0);
            round_trip(t, tokenizer, names[k], text, length);
        }
        ts_tokenizer_close(tokenizer);
    }
}

/* Valid texts without marks of their own, which decode to blanks; a leading blank is kept since the
 * mark put before it is the one that is stripped. */
TS_TEST(sentencepiece_keeps_texts)
{
    ts_tokenizer *tokenizer = data_golden(t, "llama2");
    for (int round = 0; round < 4000 && tokenizer != NULL && !test_failed(t); round++) {
        char text[256];
        size_t length = 0, wanted = (size_t)test_random_below(t, 240);
        while (length < wanted)
            length = data_random_char(t, text, length, false);
        if (memmem(text, length, "\xE2\x96\x81", 3) != NULL) continue;
        round_trip(t, tokenizer, "llama2", text, length);
    }
    ts_tokenizer_close(tokenizer);
}

/* ---- cutting -------------------------------------------------------------------------------- */
TS_TEST(cut_texts_have_the_same_tokens)
{
    static const char *const names[] = { "gpt2", "llama3", "qwen", "llama2", "meta" };
    size_t length;
    char *tales = test_read_file(t, "examples/data/tales.txt", &length);
    for (size_t k = 0; k < 5 && tales != NULL; k++) {
        ts_tokenizer *tokenizer = data_golden(t, names[k]);
        if (tokenizer == NULL) continue;
        ts_tokens whole = { 0 }, parts = { 0 };
        size_t some = 60000, at = 0;
        TEST_OK(t, ts_tokenizer_encode(tokenizer, tales, some, 0, &whole));
        int cuts = 0;
        while (at < some && !test_failed(t)) {
            size_t rest = some - at, part = 300 + (size_t)test_random_below(t, 9000);
            if (part < rest)
                TEST_OK(t, ts_tokenizer_cut(tokenizer, tales + at, part, &part));
            else
                part = rest;
            uint32_t flags = at > 0 ? TS_ENCODE_CONTINUED : 0;
            TEST_OK(t, ts_tokenizer_encode(tokenizer, tales + at, part, flags, &parts));
            at += part;
            cuts += part > 0;
            TEST_SAY(t, part > 0, "%s: no place to cut at byte %zu", names[k], at);
        }
        TEST_CHECK(t, cuts > 5);
        TEST_EQ(t, parts.count, whole.count);
        for (int64_t i = 0; i < whole.count && i < parts.count && !test_failed(t); i++)
            TEST_EQ(t, parts.id[i], whole.id[i]);
        ts_tokens_release(&whole);
        ts_tokens_release(&parts);
        ts_tokenizer_close(tokenizer);
    }
    tsi_free(tales);
}
