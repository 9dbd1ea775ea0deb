/* SPDX-License-Identifier: Apache-2.0 */
/* data_tokenizer.c - tokenizers against ids derived by hand, against vectors of the reference
 * implementation (tests/golden/tokenizer/make.py), and what must be refused. */
#include "tessera/json.h"
#include "unit/data_util.h"

/* Encodes and compares with ids that end at -1. */
static void expect(test *t, ts_tokenizer *tokenizer, const char *text, uint32_t flags,
                   const int32_t *want)
{
    ts_tokens got = { 0 };
    TEST_OK(t, ts_tokenizer_encode(tokenizer, text, strlen(text), flags, &got));
    int64_t count = 0;
    while (want[count] >= 0)
        count++;
    TEST_SAY(t, got.count == count, "\"%s\": %lld tokens, not %lld", text, (long long)got.count,
             (long long)count);
    for (int64_t i = 0; i < count && i < got.count; i++)
        TEST_SAY(t, got.id[i] == want[i], "\"%s\", token %lld: %d, not %d", text, (long long)i,
                 got.id[i], want[i]);
    ts_tokens_release(&got);
}

static void expect_text(test *t, ts_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                        uint32_t flags, const char *want)
{
    ts_text got = { 0 };
    TEST_OK(t, ts_tokenizer_decode(tokenizer, ids, count, flags, &got));
    TEST_TEXT(t, got.data != NULL ? got.data : "", want);
    ts_text_release(&got);
}

#define IDS(...) ((const int32_t[]){ __VA_ARGS__, -1 })

TS_TEST(byte_tokenizer)
{
    ts_tokenizer *tokenizer = NULL;
    TEST_OK(t, ts_tokenizer_open("byte", &tokenizer));
    TEST_EQ(t, ts_tokenizer_vocabulary(tokenizer), TS_BYTE_VOCABULARY);
    TEST_EQ(t, ts_tokenizer_eos(tokenizer), TS_BYTE_EOS);
    TEST_EQ(t, ts_tokenizer_find(tokenizer, "<|eos|>"), TS_BYTE_EOS);
    TEST_TEXT(t, ts_tokenizer_token(tokenizer, TS_BYTE_BOS), "<|bos|>");
    TEST_CHECK(t, ts_tokenizer_token(tokenizer, 65) == NULL);
    expect(t, tokenizer, "A\xC3\xA9", 0, IDS(65, 195, 169));
    expect(t, tokenizer, "A", TS_ENCODE_SPECIALS, IDS(TS_BYTE_BOS, 65, TS_BYTE_EOS));
    expect(t, tokenizer, "<|eos|>", 0, IDS(60, 124, 101, 111, 115, 124, 62));
    expect_text(t, tokenizer, IDS(72, 105, TS_BYTE_EOS), 3, 0, "Hi<|eos|>");
    expect_text(t, tokenizer, IDS(72, 105, TS_BYTE_EOS), 3, TS_DECODE_SKIP_SPECIALS, "Hi");
    ts_text text = { 0 };
    int32_t bad = -5;
    TEST_STATUS(t, ts_tokenizer_decode(tokenizer, &bad, 1, 0, &text), TS_ERR_ARG);
    ts_text_release(&text);
    ts_tokenizer_close(tokenizer);
}

/* Repair 32: tokens one by one give the text of all of them, for every kind of decoder; ids at
 * random make every broken character there is. */
static void stream(test *t, ts_tokenizer *tokenizer, const ts_tokens *ids, int64_t at_once)
{
    ts_text want = { 0 }, got = { 0 };
    ts_decoder *decoder = NULL;
    TEST_OK(t, ts_tokenizer_decode(tokenizer, ids->id, ids->count, TS_DECODE_SKIP_SPECIALS, &want));
    TEST_OK(t, ts_decoder_open(tokenizer, TS_DECODE_SKIP_SPECIALS, &decoder));
    for (int round = 0; round < 2; round++) {
        got.length = 0;
        for (int64_t i = 0; i < ids->count; i += at_once) {
            int64_t count = ids->count - i < at_once ? ids->count - i : at_once;
            TEST_OK(t, ts_decoder_push(decoder, ids->id + i, count, &got));
        }
        TEST_OK(t, ts_decoder_end(decoder, &got));
        TEST_EQ(t, got.length, want.length);
        TEST_CHECK(t, got.length == want.length &&
                          (got.length == 0 || memcmp(got.data, want.data, got.length) == 0));
    }
    ts_decoder_close(decoder);
    ts_text_release(&want);
    ts_text_release(&got);
}

TS_TEST(tokens_one_by_one)
{
    static const char *const names[] = { "hand_bytes", "hand_pieces", "llama2", "llama3",
                                         "gpt2",       "meta",        "qwen" };
    static const char text[] =
        "Once upon a time there was \xe2\x82\xac, na\xc3\xafve \xf0\x9f\xa6\x8a  "
        "two  blanks\n and a fox. Once upon a time there was another fox, and "
        "the two of them ran over the hills and far away until the evening.";
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        ts_tokenizer *tokenizer = data_golden(t, names[k]);
        if (tokenizer == NULL) continue;
        ts_tokens ids = { 0 };
        TEST_OK(t, ts_tokenizer_encode(tokenizer, text, strlen(text), 0, &ids));
        stream(t, tokenizer, &ids, 1);
        stream(t, tokenizer, &ids, 3);
        uint64_t state = 7;
        for (int draw = 0; draw < 20; draw++) {
            for (int64_t i = 0; i < ids.count; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                ids.id[i] = (int32_t)((state >> 33) % (uint64_t)ts_tokenizer_vocabulary(tokenizer));
            }
            stream(t, tokenizer, &ids, 1);
        }
        ts_tokens_release(&ids);
        ts_tokenizer_close(tokenizer);
    }
    ts_tokenizer *bytes = NULL;
    TEST_OK(t, ts_tokenizer_open("byte", &bytes));
    ts_tokens ids = { 0 };
    TEST_OK(t, ts_tokenizer_encode(bytes, text, strlen(text), 0, &ids));
    stream(t, bytes, &ids, 1);
    ts_decoder *decoder = NULL;
    ts_text half = { 0 };
    TEST_OK(t, ts_decoder_open(bytes, 0, &decoder));
    TEST_OK(t, ts_decoder_push(decoder, IDS(65, 0xe2, 0x82), 3, &half));
    TEST_EQ(t, half.length, 1); /* not inside a character */
    TEST_OK(t, ts_decoder_push(decoder, IDS(0xac), 1, &half));
    TEST_EQ(t, half.length, 4);
    TEST_STATUS(t, ts_decoder_push(decoder, &(int32_t){ -1 }, 1, &half), TS_ERR_ARG);
    ts_decoder_close(decoder);
    ts_text_release(&half);
    ts_tokens_release(&ids);
    ts_tokenizer_close(bytes);
}

/* Vocabulary: the bytes are 0 .. 255; merges in their order, from 256 on:
 * he ll llo hello Gw or Gwor Gt th, with G the blank. */
TS_TEST(byte_level_by_hand)
{
    ts_tokenizer *tokenizer = data_golden(t, "hand_bytes");
    if (tokenizer == NULL) return;
    TEST_EQ(t, ts_tokenizer_vocabulary(tokenizer), 266);
    TEST_EQ(t, ts_tokenizer_find(tokenizer, "\xC4\xA0wor"), 262);
    expect(t, tokenizer, "hello world", 0, IDS(259, 262, 'l', 'd'));
    expect(t, tokenizer, "the", 0, IDS('t', 256));        /* "h e" comes before "t h" */
    expect(t, tokenizer, " th", 0, IDS(263, 'h'));        /* "G t" comes before "t h" */
    expect(t, tokenizer, "lll", 0, IDS(257, 'l'));        /* of equals the leftmost */
    expect(t, tokenizer, "I'll", 0, IDS('I', '\'', 257)); /* the pattern cuts before 'll */
    expect(t, tokenizer, "he<|endoftext|>he", 0, IDS(256, 265, 256));
    expect(t, tokenizer, "<|endoftext|>", TS_ENCODE_PLAIN,
           IDS('<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>'));
    expect(t, tokenizer, "\xFF\xC3", 0, IDS(0xFF, 0xC3)); /* not UTF-8 */
    expect_text(t, tokenizer, IDS(259, 262, 'l', 'd', 265), 5, 0, "hello world<|endoftext|>");
    expect_text(t, tokenizer, IDS(259, 265), 2, TS_DECODE_SKIP_SPECIALS, "hello");
    expect_text(t, tokenizer, IDS(259, 99999), 2, 0, "hello"); /* no such id: no text */
    TEST_EQ(t, ts_tokenizer_eos(tokenizer), 265);
    ts_tokenizer_close(tokenizer);
}

/* Vocabulary: <unk> <s> </s>, the bytes from 3 on, then 259 _ a b c ab _a _ab __ with _ the mark.
 */
TS_TEST(sentencepiece_by_hand)
{
    ts_tokenizer *tokenizer = data_golden(t, "hand_pieces");
    if (tokenizer == NULL) return;
    expect(t, tokenizer, "ab", 0, IDS(265));
    expect(t, tokenizer, "ab", TS_ENCODE_SPECIALS, IDS(1, 265));
    expect(t, tokenizer, "ab", TS_ENCODE_CONTINUED, IDS(263)); /* no mark before it */
    expect(t, tokenizer, "a c", 0, IDS(264, 259, 262));
    expect(t, tokenizer, "a  b", 0, IDS(264, 266, 261));
    expect(t, tokenizer, "\xC3\xA9", 0, IDS(259, 3 + 0xC3, 3 + 0xA9));
    expect(t, tokenizer, "a<s>a", 0, IDS(264, 1, 264)); /* each part gets its mark */
    expect(t, tokenizer, "", 0, IDS(-1));
    expect_text(t, tokenizer, IDS(264, 259, 262), 3, 0, "a c");
    expect_text(t, tokenizer, IDS(259, 3 + 0xC3, 3 + 0xA9), 3, 0, "\xC3\xA9");
    ts_tokenizer_close(tokenizer);
}

/* Without a token for what is unknown it vanishes, and what stood beside it is joined. */
TS_TEST(unknown_without_a_token)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\n\":1,\"a\\n\":2,"
        "\"c\":3},\"merges\":[[\"a\",\"\\n\"]]}}";
    ts_tokenizer *tokenizer = NULL;
    TEST_OK(t, ts_tokenizer_parse("x.json", json, strlen(json), &tokenizer));
    expect(t, tokenizer, "a?\n", 0, IDS(2));
    expect(t, tokenizer, "a\xC3\xA9\n", 0, IDS(2));
    expect(t, tokenizer, "ac\n", 0, IDS(0, 3, 1));
    ts_tokenizer_close(tokenizer);
}

/* What a token strips is gone for the next one: of blanks alone there is then nothing left. */
TS_TEST(blanks_that_are_stripped_are_gone)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":4,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true},"
        "{\"id\":5,\"content\":\" \",\"lstrip\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"a\":0,\"b\":1,\"\\n\":4,\" \":5},\"merges\":[]}}";
    ts_tokenizer *tokenizer = NULL;
    TEST_OK(t, ts_tokenizer_parse("x.json", json, strlen(json), &tokenizer));
    expect(t, tokenizer, "a\n\n\nb", 0, IDS(0, 4, 1));
    expect(t, tokenizer, "a \n b", 0, IDS(0, 5, 4, 1)); /* the first takes what is before it */
    ts_tokenizer_close(tokenizer);
}

/* ---- vectors of the reference implementation ------------------------------------------------- */
static void compare_ids(test *t, const ts_json *want, const ts_tokens *got, const char *text)
{
    bool same = ts_json_count(want) == got->count;
    for (int64_t i = 0; same && i < got->count; i++)
        same = ts_json_int(ts_json_item(want, i), -1) == got->id[i];
    TEST_SAY(t, same, "other tokens for \"%s\"", text);
}

static void compare_row(test *t, ts_tokenizer *tokenizer, const ts_json *row)
{
    const char *text = ts_json_text(ts_json_member(row, "text"), "");
    ts_tokens ids = { 0 }, framed = { 0 };
    ts_text decoded = { 0 }, bare = { 0 };
    TEST_OK(t, ts_tokenizer_encode(tokenizer, text, strlen(text), 0, &ids));
    TEST_OK(t, ts_tokenizer_encode(tokenizer, text, strlen(text), TS_ENCODE_SPECIALS, &framed));
    TEST_OK(t, ts_tokenizer_decode(tokenizer, ids.id, ids.count, 0, &decoded));
    TEST_OK(t, ts_tokenizer_decode(tokenizer, ids.id, ids.count, TS_DECODE_SKIP_SPECIALS, &bare));
    compare_ids(t, ts_json_member(row, "ids"), &ids, text);
    compare_ids(t, ts_json_member(row, "with_specials"), &framed, text);
    TEST_TEXT(t, decoded.data != NULL ? decoded.data : "",
              ts_json_text(ts_json_member(row, "decoded"), NULL));
    TEST_TEXT(t, bare.data != NULL ? bare.data : "",
              ts_json_text(ts_json_member(row, "without_specials"), NULL));
    ts_tokens_release(&ids);
    ts_tokens_release(&framed);
    ts_text_release(&decoded);
    ts_text_release(&bare);
}

TS_TEST(golden_vectors)
{
    static const char *const names[] = { "hand_bytes", "hand_pieces", "gpt2",   "llama3",
                                         "qwen",       "steps",       "llama2", "meta" };
    enum { NAMES = sizeof names / sizeof names[0] };
    ts_tokenizer *tokenizer[NAMES];
    int64_t found = 0;
    for (size_t i = 0; i < NAMES; i++) {
        tokenizer[i] = data_golden(t, names[i]);
        found += tokenizer[i] != NULL;
    }
    size_t length;
    char *all = test_read_file(t, "tests/golden/tokenizer/vectors.jsonl", &length);
    int64_t rows = 0;
    for (char *line = all, *end; line != NULL && (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        ts_json_document *document = NULL;
        TEST_OK(t, ts_json_parse("vectors.jsonl", line, (size_t)(end - line), &document));
        const ts_json *row = ts_json_root(document);
        const char *name = ts_json_text(ts_json_member(row, "tokenizer"), "");
        for (size_t i = 0; i < NAMES; i++) {
            if (strcmp(names[i], name) != 0 || tokenizer[i] == NULL) continue;
            compare_row(t, tokenizer[i], row);
            rows++;
        }
        ts_json_release(document);
    }
    TEST_SAY(t, rows >= 70 * found, "only %lld vectors were read", (long long)rows);
    tsi_free(all);
    for (size_t i = 0; i < NAMES; i++)
        ts_tokenizer_close(tokenizer[i]);
}

/* ---- refusals -------------------------------------------------------------------------------- */
typedef struct refusal {
    const char *json, *words;
} refusal;

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

#define FRAME "{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}"

static const refusal refusals[] = {
    { "{", "line 1" },
    { "[]", "no object \"model\"" },
    { "{\"model\":{\"type\":\"Unigram\"}}", "model Unigram is not supported" },
    { "{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "no object \"vocab\"" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "no list \"merges\"" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "no id for token" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "has id -1" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}",
      "has id 99999999" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "the same id 1" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"a b\"]}}",
      "needs the token \"b\"" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":2},\"merges\":[[\"a\",\"b\"]]}}",
      "needs the token \"ab\"" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[\"a\"]}}", "not two tokens" },
    { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[7]}}", "not a pair of texts" },
    { "{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}",
      "BPE with dropout" },
    { "{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]}}",
      "BPE with end_of_word_suffix" },
    { "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{},\"merges\":[]}}",
      "unk_token \"u\"" },
    { "{\"truncation\":{\"max_length\":5}," MODEL "}", "truncation is not supported" },
    { "{\"padding\":{}," MODEL "}", "padding is not supported" },
    { "{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL "}", "normalizer Lowercase" },
    { "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}," MODEL
      "}",
      "normalizer Replace with a Regex" },
    { "{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL "}",
      "pre_tokenizer BertPreTokenizer" },
    { "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
      "{\"type\":\"Digits\"}]}," MODEL "}",
      "behind ByteLevel: Digits" },
    { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a\"},\"behavior\":"
      "\"Isolated\"}," MODEL "}",
      "a class that does not end" },
    { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":"
      "\"Isolated\"}," MODEL "}",
      "cannot be compiled" },
    { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\hx\"},\"behavior\":"
      "\"Isolated\"}," MODEL "}",
      "uses \\h at column 1" },
    { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Odd\"}"
      "," MODEL "}",
      "behavior Odd" },
    { "{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}", "decoder WordPiece" },
    { "{\"post_processor\":{\"type\":\"Odd\"}," MODEL "}", "post_processor Odd" },
    { "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
      "\"x\"}}]}," MODEL "}",
      "no ids for \"x\"" },
    { "{\"post_processor\":{\"type\":\"Sequence\",\"processors\":[" FRAME "," FRAME "]}," MODEL "}",
      "behind one that adds tokens: BertProcessing" },
    { "{\"added_tokens\":[{\"content\":\"x\"}]," MODEL "}", "needs content and id" },
    { "{\"added_tokens\":[{\"content\":\"a\",\"id\":9}]," MODEL "}", "has the ids 0 and 9" },
    { "{\"added_tokens\":[{\"content\":\"x\",\"id\":1}]," MODEL "}", "have the same id 1" },
};

TS_TEST(refusals)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        ts_tokenizer *tokenizer = NULL;
        const refusal *r = &refusals[i];
        ts_status status = ts_tokenizer_parse("x.json", r->json, strlen(r->json), &tokenizer);
        if (status == TS_ERR_MISSING) continue;
        TEST_STATUS(t, status, TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(), r->words);
        TEST_SAYS(t, ts_last_error(), "x.json");
        TEST_CHECK(t, tokenizer == NULL);
    }
    ts_tokenizer *tokenizer = NULL;
    TEST_STATUS(t, ts_tokenizer_open("/nowhere/tokenizer.json", &tokenizer), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "No such file");
}

/* A directory with a tokenizer.json is as good as the file. */
TS_TEST(directory)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "tokenizer.json");
    data_write(t, path, "{" MODEL "}", strlen("{" MODEL "}"));
    ts_tokenizer *tokenizer = NULL;
    ts_status status = ts_tokenizer_open(folder, &tokenizer);
    TEST_CHECK(t, status == TS_OK || status == TS_ERR_MISSING);
    if (tokenizer == NULL) return;
    expect(t, tokenizer, "abba", 0, IDS(2, 1, 0));
    expect_text(t, tokenizer, IDS(2, 1, 0), 3, 0, "ab b a"); /* no decoder: blanks between */
    ts_tokenizer_close(tokenizer);
    data_folder_remove(folder);
}

/* Every allocation fails once: an error, no crash, no leak (the harness counts). */
TS_TEST(failing_allocations)
{
    static const char *const names[] = { "hand_bytes", "hand_pieces", "qwen" };
    static const char text[] = "hello  world, the e\xCC\x81 \xE4\xBD\xA0 <l> 123 and the rest of it"
                               " is a longer line than that hellohellohellohellohellohellohellohel";
    for (size_t k = 0; k < 3; k++) {
        char path[DATA_PATH_MAX];
        size_t length;
        (void)snprintf(path, sizeof path, "tests/golden/tokenizer/%s.json", names[k]);
        char *json = test_read_file(t, path, &length);
        bool done = false;
        for (int64_t n = 1; !done && n < 5000; n++) {
            ts_tokenizer *tokenizer = NULL;
            ts_tokens ids = { 0 };
            ts_text back = { 0 };
            tsi_alloc_fail_at(n);
            ts_status status = ts_tokenizer_parse("x", json, length, &tokenizer);
            if (status == TS_OK)
                status = ts_tokenizer_encode(tokenizer, text, sizeof text - 1, 0, &ids);
            if (status == TS_OK)
                status = ts_tokenizer_decode(tokenizer, ids.id, ids.count, 0, &back);
            done = tsi_alloc_fail_at(0) < n;
            if (status == TS_ERR_MISSING)
                done = true;
            else
                TEST_SAY(t, status == TS_OK || status == TS_ERR_MEMORY, "%s, allocation %lld: %s",
                         names[k], (long long)n, ts_last_error());
            ts_tokens_release(&ids);
            ts_text_release(&back);
            ts_tokenizer_close(tokenizer);
        }
        TEST_SAY(t, done, "%s: more allocations than expected", names[k]);
        tsi_free(json);
    }
}
