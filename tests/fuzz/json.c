/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - any bytes as JSON: refused with a place, or a tree that is written and read again to the
 * same text; every text of it is UTF-8. */
#include "corpus.h"

#include "base/text.h"
#include "tessera/json.h"

static void check_text(const char *text)
{
    size_t length = 1;
    for (size_t left = strlen(text); left > 0; text += length, left -= length) {
        length = tsi_text_character(text, left);
        FUZZ_CHECK(length > 0);
    }
}

static ts_status check_member(const char *name, const ts_json *value, void *context);

static int64_t check_value(const ts_json *value)
{
    int64_t count = 1;
    check_text(ts_json_text(value, ""));
    for (int64_t i = 0; i < ts_json_count(value); i++)
        if (ts_json_kind_of(value) == TS_JSON_LIST) count += check_value(ts_json_item(value, i));
    FUZZ_CHECK(ts_json_each(value, check_member, (void *)(uintptr_t)value) == TS_OK);
    FUZZ_CHECK(ts_json_item(value, ts_json_count(value)) == NULL);
    return count;
}

static ts_status check_member(const char *name, const ts_json *value, void *context)
{
    check_text(name);
    FUZZ_CHECK(ts_json_member(context, name) == value);
    (void)check_value(value);
    return TS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A copy of exactly these bytes, so that a sanitizer sees a read beyond them. */
    char *text = malloc(size + (size == 0));
    ts_json_document *document = NULL, *again = NULL;
    FUZZ_CHECK(text);
    if (size > 0) memcpy(text, data, size);
    ts_status status = ts_json_parse("fuzz", text, size, &document);
    FUZZ_CHECK((status == TS_OK) == (document != NULL));
    if (document) {
        ts_json_writer one = { 0 }, two = { 0 };
        FUZZ_CHECK(check_value(ts_json_root(document)) > 0);
        ts_json_put_value(&one, ts_json_root(document));
        FUZZ_CHECK(!one.failed && ts_json_parse("again", one.data, one.length, &again) == TS_OK);
        ts_json_put_value(&two, ts_json_root(again));
        FUZZ_CHECK(!two.failed && strcmp(one.data, two.data) == 0);
        ts_json_writer_release(&one);
        ts_json_writer_release(&two);
    } else {
        FUZZ_CHECK(strncmp(ts_last_error(), "fuzz, line ", 11) == 0);
    }
    ts_json_release(again);
    ts_json_release(document);
    free(text);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(json_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "json") >= 6);
}

/* Any text, quoted by the writer, is read back: as it was if it was UTF-8. */
TS_TEST(json_any_text)
{
    for (int round = 0; round < 3000; round++) {
        char text[40];
        size_t length = (size_t)test_random_below(t, sizeof text);
        for (size_t i = 0; i < length; i++)
            text[i] = (char)(1 + test_random_below(t, 255));
        text[length] = '\0';
        bool good = true;
        for (size_t at = 0, step = 0; good && at < length; at += step)
            good = (step = tsi_text_character(text + at, length - at)) > 0;
        ts_json_writer json = { 0 };
        ts_json_document *document = NULL;
        ts_json_put_text(&json, text);
        TEST_OK(t, ts_json_parse("text", json.data, json.length, &document));
        const char *back = ts_json_text(ts_json_root(document), "?");
        TEST_CHECK(t, !good || strcmp(back, text) == 0);
        ts_json_release(document);
        ts_json_writer_release(&json);
    }
}
#endif
