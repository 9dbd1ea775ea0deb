/* SPDX-License-Identifier: Apache-2.0 */
/* base_json.c - JSON: what is read, what is refused and where, what is written. */
#include <math.h>

#include "base/alloc.h"
#include "base/text.h"
#include "harness/test.h"
#include "tessera/json.h"

static ts_status join_names(const char *name, const ts_json *value, void *context)
{
    tsi_text_printf(context, "%s:%d ", name, (int)ts_json_kind_of(value));
    return name[0] == 'Z' ? TS_ERR_STATE : TS_OK;
}

TS_TEST(json_reads_values)
{
    static const char source[] = "{\"b\": [1, 2.5, 1e9, -3], \"a\": \"text\", \"n\": null, "
                                 "\"t\": true, \"Z\": {}, \"y\": 0}";
    ts_json_document *document = NULL;
    ts_status status = ts_json_parse("topology.json", source, sizeof source - 1, &document);
    TEST_OK(t, status);
    const ts_json *root = ts_json_root(document), *b = ts_json_member(root, "b");
    TEST_EQ(t, ts_json_count(root), 6);
    TEST_EQ(t, ts_json_count(b), 4);
    TEST_EQ(t, ts_json_int(ts_json_item(b, 0), -1), 1);
    TEST_EQ(t, ts_json_int(ts_json_item(b, 1), -1), -1); /* 2.5 is no whole number */
    TEST_EQ(t, ts_json_int(ts_json_item(b, 2), -1), 1000000000);
    TEST_CHECK(t, ts_json_real(ts_json_item(b, 3), 0) == -3);
    TEST_CHECK(t, ts_json_item(b, 4) == NULL && ts_json_item(b, -1) == NULL);
    TEST_TEXT(t, ts_json_text(ts_json_member(root, "a"), "?"), "text");
    TEST_TEXT(t, ts_json_text(ts_json_member(root, "none"), "?"), "?");
    TEST_CHECK(t, ts_json_bool(ts_json_member(root, "t"), false));
    TEST_EQ(t, ts_json_kind_of(NULL), TS_JSON_NULL);
    TEST_EQ(t, ts_json_count(NULL), 0);
    tsi_text names = { 0 };
    TEST_STATUS(t, ts_json_each(root, join_names, &names), TS_ERR_STATE);
    TEST_TEXT(t, names.data, "b:5 a:4 n:0 t:1 Z:6 ");
    tsi_text_release(&names);
    ts_json_release(document);
}

TS_TEST(json_texts_are_utf8)
{
    static const char source[] =
        "[\"\\u00e9\\u20ac\\ud83d\\ude00 \\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\xe2\x82\xac\"]";
    ts_json_document *document = NULL;
    TEST_OK(t, ts_json_parse("text", source, sizeof source - 1, &document));
    const ts_json *root = ts_json_root(document);
    TEST_TEXT(t, ts_json_text(ts_json_item(root, 0), "?"),
              "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \"\\/\b\f\n\r\t");
    TEST_TEXT(t, ts_json_text(ts_json_item(root, 1), "?"), "\xe2\x82\xac");
    ts_json_release(document);
}

TS_TEST(json_passes_over_an_order_mark)
{
    static const char source[] = "\xEF\xBB\xBF[1]";
    ts_json_document *document = NULL;
    TEST_OK(t, ts_json_parse("text", source, sizeof source - 1, &document));
    TEST_EQ(t, ts_json_int(ts_json_item(ts_json_root(document), 0), 0), 1);
    ts_json_release(document);
    TEST_STATUS(t, ts_json_parse("text", source, 3, &document), TS_ERR_ARG); /* and nothing else */
    TEST_STATUS(t, ts_json_parse("text", source, 2, &document), TS_ERR_ARG); /* half of one */
    TEST_STATUS(t, ts_json_parse("text", "[\xEF\xBB\xBF]", 5, &document), TS_ERR_ARG);
}

TS_TEST(json_errors_name_the_place)
{
    static const char *const bad[] = { "{\"a\": 1,\n  \"a\": 2}",
                                       "[1, 2",
                                       "[01]",
                                       "",
                                       "{} x",
                                       "\"\\u0000\"",
                                       "[99999999999999999999]",
                                       "[1e999]",
                                       "{\"a\" 1}",
                                       "{\"a\": 1,}",
                                       "[1,]",
                                       "[-]",
                                       "[1.]",
                                       "[1e]",
                                       "nul",
                                       "\"a",
                                       "\"\\x\"",
                                       "\"\\ud800\"",
                                       "\"\\udc00\"",
                                       "\"\\ud800\\u0041\"",
                                       "\"\x01\"",
                                       "\"\xff\"",
                                       "\"\xc0\x80\"",
                                       "\"\xed\xa0\x80\"",
                                       "{a: 1}",
                                       "+1",
                                       ".5",
                                       "[1 2]" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ts_json_document *document = NULL;
        ts_status status = ts_json_parse("plan.json", bad[i], strlen(bad[i]), &document);
        TEST_CHECK(t, document == NULL);
        TEST_STATUS(t, status, TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(),
                  i == 0 ? "plan.json, line 2, column" : "plan.json, line 1, column");
    }
    ts_json_document *document = NULL;
    TEST_STATUS(t, ts_json_parse("plan.json", NULL, 0, &document), TS_ERR_NULL);
}

/* What is written is read back the same, whatever the values. */
TS_TEST(json_writes_what_it_reads)
{
    static const char source[] = "{\"a\": [1, -2.5, 1e+300, null, true, false, []], \"b\\n\": "
                                 "{\"c\": \"\\u0001 \xc3\xa9\"}, "
                                 "\"m\": -9223372036854775808, \"z\": -0.0, \"e\": {}}";
    ts_json_document *document = NULL;
    TEST_OK(t, ts_json_parse("text", source, sizeof source - 1, &document));
    ts_json_writer json = { 0 };
    ts_json_put_value(&json, ts_json_root(document));
    TEST_TEXT(t, json.data, source);
    ts_json_writer_reset(&json);
    const double z = ts_json_real(ts_json_member(ts_json_root(document), "z"), 1);
    TEST_CHECK(t, z == 0 && signbit(z));
    ts_json_put_open(&json, '{');
    ts_json_put_member_text(&json, "t", NULL);
    ts_json_put_member_bool(&json, "b", true);
    ts_json_put_member_real(&json, "r", (double)NAN);
    ts_json_put_key(&json, "l");
    ts_json_put_ints(&json, (const int64_t[]){ 1, 2 }, 2);
    ts_json_put_raw(&json, "", 0);
    ts_json_put_raw(&json, "\"x\": 1", 6);
    ts_json_put_member_int(&json, "i", -3);
    ts_json_put_close(&json, '}');
    TEST_TEXT(t, json.data,
              "{\"t\": null, \"b\": true, \"r\": null, \"l\": [1, 2], \"x\": 1, "
              "\"i\": -3}");
    ts_json_writer_release(&json);
    TEST_CHECK(t, json.data == NULL);
    ts_json_release(document);
}

/* Every allocation of the reader and the writer fails once; nothing is lost or half made. */
TS_TEST(json_without_memory)
{
    static const char source[] = "{\"a\": [1, 2, {\"b\": \"text\"}], \"c\": 1.5}";
    int64_t failures = 0;
    for (bool done = false; !done; failures++) {
        ts_json_document *document = NULL;
        ts_json_writer json = { 0 };
        (void)tsi_alloc_fail_at(failures + 1);
        ts_status status = ts_json_parse("text", source, sizeof source - 1, &document);
        if (status == TS_OK) ts_json_put_value(&json, ts_json_root(document));
        (void)tsi_alloc_fail_at(0);
        TEST_CHECK(t, status == TS_OK || (status == TS_ERR_MEMORY && document == NULL));
        done = status == TS_OK && !json.failed;
        ts_json_writer_release(&json);
        ts_json_release(document);
    }
    TEST_CHECK(t, failures > 3);
}

TS_TEST(json_depth_is_bounded)
{
    enum { DEEP = 2048 };
    char text[2 * (DEEP + 1)];
    for (int extra = 0; extra < 2; extra++) {
        size_t depth = (size_t)(DEEP + extra);
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        ts_json_document *document = NULL;
        TEST_STATUS(t, ts_json_parse("deep", text, 2 * depth, &document),
                    extra == 0 ? TS_OK : TS_ERR_ARG);
        ts_json_release(document);
    }
    TEST_SAYS(t, ts_last_error(), "too deep");
}
