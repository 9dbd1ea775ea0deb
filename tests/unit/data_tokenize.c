/* SPDX-License-Identifier: Apache-2.0 */
/* data_tokenize.c - text files to shards: the tokens of the whole text whatever the size of parts
 * and shards, and the same bytes however often the work is interrupted. */
#include "unit/data_util.h"

typedef struct setup {
    char folder[DATA_PATH_MAX], text[3][DATA_PATH_MAX], prefix[DATA_PATH_MAX];
    char tokenizer[DATA_PATH_MAX];
    const char *files[3];
} setup;

enum { TEXT_BYTES = 40000 };

static void setup_make(test *t, setup *s, const char *tokenizer)
{
    data_folder_make(t, s->folder);
    size_t length;
    char *tales = test_read_file(t, "examples/data/tales.txt", &length);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = { "a.txt", "empty.txt", "b.txt" };
        data_path(s->text[i], s->folder, names[i]);
        s->files[i] = s->text[i];
        if (tales != NULL)
            data_write(t, s->text[i], tales + 1000 * i,
                       i == 1 ? 0 : (size_t)(TEXT_BYTES / (i + 1)));
    }
    tsi_free(tales);
    (void)snprintf(s->tokenizer, sizeof s->tokenizer, "%s", tokenizer);
    if (strcmp(tokenizer, "byte") != 0)
        (void)snprintf(s->tokenizer, sizeof s->tokenizer,
                       TS_SOURCE_DIR "/tests/golden/tokenizer/%s.json", tokenizer);
}

/* Without PCRE2 some tokenizers cannot be opened. */
static bool can_open(const setup *s)
{
    ts_tokenizer *tokenizer = NULL;
    ts_status status = ts_tokenizer_open(s->tokenizer, &tokenizer);
    ts_tokenizer_close(tokenizer);
    return status != TS_ERR_MISSING;
}

static ts_tokenize_options options_of(const setup *s)
{
    ts_tokenize_options options = TS_INIT(ts_tokenize_options);
    options.tokenizer = s->tokenizer;
    options.files = s->files;
    options.file_count = 3;
    options.prefix = s->prefix;
    options.shard_tokens = 1000;
    options.part_bytes = 3000;
    return options;
}

/* The tokens of both documents, each with the end-of-text token. */
static void want_tokens(test *t, const setup *s, ts_tokens *out)
{
    ts_tokenizer *tokenizer = NULL;
    TEST_OK(t, ts_tokenizer_open(s->tokenizer, &tokenizer));
    for (int i = 0; i < 3; i += 2) {
        size_t bytes;
        unsigned char *text = data_read(t, s->text[i], &bytes);
        TEST_OK(t, ts_tokenizer_encode(tokenizer, (const char *)text, bytes, 0, out));
        free(text);
        int32_t eos = ts_tokenizer_eos(tokenizer);
        if (eos < 0) continue;
        /* Room for one more token. */
        out->id = tsi_realloc(out->id, (size_t)(out->count + 1) * sizeof *out->id);
        out->capacity = out->count + 1;
        out->id[out->count++] = eos;
    }
    ts_tokenizer_close(tokenizer);
}

/* Reads the set back through a loader whose windows are single tokens. */
static void compare_set(test *t, const setup *s, const ts_tokens *want)
{
    ts_loader_options options = TS_INIT(ts_loader_options);
    options.prefix = s->prefix;
    options.context = want->count - 1;
    options.batch = 1;
    options.in_order = 1;
    ts_loader *loader = NULL;
    TEST_OK(t, ts_loader_open(&options, &loader));
    TEST_EQ(t, ts_loader_tokens(loader), want->count);
    if (loader != NULL && ts_loader_tokens(loader) == want->count) {
        int32_t *got = malloc((size_t)want->count * sizeof *got);
        TEST_OK(t, ts_loader_batch(loader, 0, 0, 1, got));
        for (int64_t i = 0; i < want->count && !test_failed(t); i++)
            TEST_SAY(t, got[i] == want->id[i], "token %lld is %d, not %d", (long long)i, got[i],
                     want->id[i]);
        free(got);
    }
    ts_loader_close(loader);
}

TS_TEST(tokens_of_the_whole_text)
{
    static const char *const names[] = { "byte", "gpt2", "llama2" };
    for (size_t k = 0; k < 3 && !test_failed(t); k++) {
        setup s;
        setup_make(t, &s, names[k]);
        if (!can_open(&s)) {
            data_folder_remove(s.folder);
            continue;
        }
        data_path(s.prefix, s.folder, "set");
        ts_tokens want = { 0 };
        want_tokens(t, &s, &want);
        ts_tokenize_options options = options_of(&s);
        ts_tokenize_result result;
        TEST_OK(t, ts_tokenize_files(&options, &result));
        TEST_EQ(t, result.tokens, want.count);
        TEST_EQ(t, result.shards, (want.count + 999) / 1000);
        TEST_EQ(t, result.shards_kept, 0);
        TEST_EQ(t, result.token_bytes, 2);
        compare_set(t, &s, &want);
        TEST_OK(t, ts_tokenize_files(&options, &result)); /* nothing left to do */
        TEST_EQ(t, result.shards_kept, result.shards);
        TEST_EQ(t, result.tokens, want.count);
        ts_tokens_release(&want);
        data_folder_remove(s.folder);
    }
}

static int stop_after(const ts_tokenize_progress *progress, void *context)
{
    (void)progress;
    int *left = context;
    return --*left <= 0;
}

static void compare_files(test *t, const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    unsigned char *x = data_read(t, a, &a_bytes), *y = data_read(t, b, &b_bytes);
    TEST_SAY(t, a_bytes == b_bytes && x != NULL && y != NULL && memcmp(x, y, a_bytes) == 0,
             "%s and %s differ", a, b);
    free(x);
    free(y);
}

TS_TEST(interruptions_leave_no_trace)
{
    static const char *const names[] = { "byte", "llama3" };
    for (size_t k = 0; k < 2; k++) {
        setup s;
        setup_make(t, &s, names[k]);
        if (!can_open(&s)) {
            data_folder_remove(s.folder);
            continue;
        }
        data_path(s.prefix, s.folder, "whole");
        ts_tokenize_options options = options_of(&s);
        options.specials = 1;
        ts_tokenize_result whole, result = { 0 };
        TEST_OK(t, ts_tokenize_files(&options, &whole));
        data_path(s.prefix, s.folder, "pieces");
        int left, runs = 0;
        ts_status status = TS_ERR_STATE;
        options.progress = stop_after;
        options.context = &left;
        for (; status != TS_OK && runs < 500; runs++) {
            left = 2 + runs % 4;
            status = ts_tokenize_files(&options, &result);
            TEST_CHECK(t, status == TS_OK || status == TS_ERR_STATE);
        }
        TEST_SAY(t, runs > 3, "%d runs", runs);
        TEST_EQ(t, result.tokens, whole.tokens);
        TEST_EQ(t, result.shards, whole.shards);
        for (int64_t i = 0; i < whole.shards && !test_failed(t); i++) {
            char a[DATA_PATH_MAX + 16], b[DATA_PATH_MAX + 16];
            (void)snprintf(a, sizeof a, "%.480s/whole-%05lld.bin", s.folder, (long long)i);
            (void)snprintf(b, sizeof b, "%.480s/pieces-%05lld.bin", s.folder, (long long)i);
            compare_files(t, a, b);
        }
        data_folder_remove(s.folder);
    }
}

TS_TEST(other_inputs_are_refused)
{
    setup s;
    setup_make(t, &s, "byte");
    data_path(s.prefix, s.folder, "set");
    ts_tokenize_options options = options_of(&s);
    ts_tokenize_result result;
    TEST_OK(t, ts_tokenize_files(&options, &result));
    options.shard_tokens = 2000;
    TEST_STATUS(t, ts_tokenize_files(&options, &result), TS_ERR_STATE);
    TEST_SAYS(t, ts_last_error(), "belongs to other inputs or options");
    options.restart = 1;
    TEST_OK(t, ts_tokenize_files(&options, &result));
    TEST_EQ(t, result.shards_kept, 0);
    ts_loader_options loading = TS_INIT(ts_loader_options);
    loading.prefix = s.prefix;
    loading.context = 8;
    loading.batch = 2;
    ts_loader *loader = NULL;
    TEST_OK(t, ts_loader_open(&loading, &loader));
    TEST_EQ(t, ts_loader_tokens(loader), result.tokens); /* no shard of the longer set is left */
    ts_loader_close(loader);
    s.files[1] = "/nowhere.txt";
    TEST_STATUS(t, ts_tokenize_files(&options, &result), TS_ERR_IO);
    options.file_count = 0;
    TEST_STATUS(t, ts_tokenize_files(&options, &result), TS_ERR_ARG);
    options = options_of(&s);
    options.files = (const char *const[]){ s.text[1] };
    options.file_count = 1;
    data_path(s.prefix, s.folder, "none");
    TEST_STATUS(t, ts_tokenize_files(&options, &result), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "the inputs are empty");
    data_folder_remove(s.folder);
}
