/* SPDX-License-Identifier: Apache-2.0 */
/* base_text.c - building and reading text and JSON: exact columns, exact words. */
#include <locale.h>
#include <math.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/text.h"
#include "harness/test.h"

TS_TEST(text_grows)
{
    tsi_text text = { 0 };
    for (int i = 0; i < 1000; i++)
        tsi_text_printf(&text, "%d,", i);
    tsi_text_add_n(&text, "endless", 3);
    TEST_EQ(t, text.length, 10 * 2 + 90 * 3 + 900 * 4 + 3);
    char *taken = tsi_text_take(&text);
    TEST_SAYS(t, taken, "998,999,end");
    TEST_CHECK(t, text.data == NULL && text.length == 0);
    tsi_free(taken);
    taken = tsi_text_take(&text);
    TEST_TEXT(t, taken, "");
    tsi_free(taken);
}

TS_TEST(text_stays_failed)
{
    for (int n = 1; n <= 4; n++) {
        tsi_text text = { 0 };
        (void)tsi_alloc_fail_at(n);
        for (int i = 0; i < 200; i++)
            tsi_text_printf(&text, "%06d", i);
        TEST_CHECK(t, text.failed);
        TEST_CHECK(t, tsi_text_take(&text) == NULL);
        TEST_SAYS(t, ts_last_error(), "out of host memory");
    }
    (void)tsi_alloc_fail_at(0);
}

TS_TEST(text_json_escapes)
{
    tsi_text text = { 0 };
    tsi_text_json(&text, "a\"b\\c\n\t\x01 caf\xc3\xa9 /");
    tsi_text_add(&text, ",");
    tsi_text_json(&text, NULL);
    TEST_TEXT(t, text.data, "\"a\\\"b\\\\c\\n\\t\\u0001 caf\xc3\xa9 /\",null");
    tsi_text_release(&text);
}

TS_TEST(text_real_is_short_and_exact)
{
    static const struct {
        double value;
        const char *want;
    } row[] = { { 0.1, "0.1" },
                { 1.0 / 3, "0.3333333333333333" },
                { -2.5e-300, "-2.5e-300" },
                { 1e22, "1e+22" },
                { 123456789, "123456789" },
                { (double)NAN, "null" },
                { -(double)INFINITY, "null" } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        tsi_text text = { 0 };
        tsi_text_real(&text, row[i].value);
        TEST_TEXT(t, text.data, row[i].want);
        tsi_text_release(&text);
    }
}

TS_TEST(cursor_walks)
{
    tsi_cursor c = tsi_cursor_of("mesh", "  dp-1.x = -42 , 0.5e1 tail");
    char word[16];
    int64_t number = 0;
    double real = 0;
    TEST_CHECK(t, !tsi_cursor_int(&c, &number));
    TEST_CHECK(t, tsi_cursor_word(&c, word, sizeof word));
    TEST_TEXT(t, word, "dp-1.x");
    TEST_CHECK(t, !tsi_cursor_take(&c, ':') && tsi_cursor_take(&c, '='));
    TEST_CHECK(t, tsi_cursor_int(&c, &number) && number == -42);
    TEST_CHECK(t, tsi_cursor_take(&c, ','));
    TEST_CHECK(t, tsi_cursor_real(&c, &real) && real == 5);
    TEST_CHECK(t, !tsi_cursor_done(&c));
    TEST_CHECK(t, !tsi_cursor_word(&c, word, 4)); /* too small for "tail" and its end */
    TEST_CHECK(t, tsi_cursor_word(&c, word, 5) && tsi_cursor_done(&c));
    TEST_CHECK(t, !tsi_cursor_take(&c, '\0'));
}

TS_TEST(cursor_int_at_the_limits)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } row[] = { { "9223372036854775807", true, INT64_MAX },
                { "9223372036854775808", false, 0 },
                { "-9223372036854775808", true, INT64_MIN },
                { "-9223372036854775809", false, 0 },
                { "-", false, 0 },
                { "--1", false, 0 },
                { "007x", true, 7 },
                { "", false, 0 } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        tsi_cursor c = tsi_cursor_of("n", row[i].text);
        int64_t value = 0;
        TEST_SAY(t, tsi_cursor_int(&c, &value) == row[i].ok, "\"%s\"", row[i].text);
        TEST_EQ(t, value, row[i].value);
        if (!row[i].ok) TEST_CHECK(t, c.at == c.start);
    }
}

TS_TEST(cursor_real_reads_what_it_should)
{
    static const struct {
        const char *text;
        size_t taken;
        double value;
    } row[] = { { "1", 1, 1 },  { "-1.5e3x", 6, -1500 }, { ".5", 2, 0.5 },
                { "2.", 2, 2 }, { "3e", 1, 3 },          { "1e400", 5, (double)INFINITY },
                { ".", 0, 0 },  { "nan", 0, 0 },         { "0x10", 1, 0 },
                { "1,5", 1, 1 } };
    /* Where such a locale exists, its decimal comma must make no difference. */
    (void)setlocale(LC_ALL, "de_DE.UTF-8");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        tsi_cursor c = tsi_cursor_of("x", row[i].text);
        double value = 0;
        TEST_SAY(t, tsi_cursor_real(&c, &value) == (row[i].taken > 0), "\"%s\"", row[i].text);
        TEST_SAY(t, (size_t)(c.at - c.start) == row[i].taken && value == row[i].value,
                 "\"%s\" read as %g", row[i].text, value);
    }
}

TS_TEST(cursor_error_names_the_column)
{
    tsi_cursor c = tsi_cursor_of("placements", "S(0), S(x)");
    c.at += 8;
    TEST_STATUS(t, tsi_cursor_fail(&c, "a dim"), TS_ERR_ARG);
    TEST_TEXT(t, ts_last_error(),
              "placements, column 9: expected a dim, found \"x\" (in \"S(0), S(x)\")");
    c.at = c.start + 4;
    (void)tsi_cursor_fail(&c, "the end");
    TEST_SAYS(t, ts_last_error(), "column 5: expected the end, found ','");
    c = tsi_cursor_of("placements", "S(0 ");
    c.at += 3;
    (void)tsi_cursor_fail(&c, "')' after the dim");
    TEST_SAYS(t, ts_last_error(), "column 5: expected ')' after the dim, found the end");
    c = tsi_cursor_of("config", "a = 1\nb ? 2\nc = 3");
    c.at += 8;
    (void)tsi_cursor_fail(&c, "'='");
    TEST_TEXT(t, ts_last_error(),
              "config, line 2, column 3: expected '=', found '?' (in \"b ? 2\")");
}

TS_TEST(nearest_name)
{
    static const char *const names[] = { "sum", "avg", "min", "max", "threads", "replicate", NULL };
    TEST_TEXT(t, tsi_text_nearest("thread", names), "threads");
    TEST_TEXT(t, tsi_text_nearest("Theards", names), "threads");
    TEST_TEXT(t, tsi_text_nearest("replcate", names), "replicate");
    TEST_TEXT(t, tsi_text_nearest("mim", names), "min");
    TEST_TEXT(t, tsi_text_nearest("sum", names), "sum");
    TEST_CHECK(t, tsi_text_nearest("q", names) == NULL);
    TEST_CHECK(t, tsi_text_nearest("", names) == NULL);
    TEST_CHECK(t, tsi_text_nearest("broadcast", names) == NULL);
}

TS_TEST(bytes_for_people)
{
    static const struct {
        int64_t bytes;
        const char *want;
    } row[] = { { 0, "0 B" },
                { 1023, "1023 B" },
                { 1024, "1.0 KiB" },
                { 1536, "1.5 KiB" },
                { 4 << 20, "4.0 MiB" },
                { 1048575, "1.0 MiB" },
                { -2048, "-2.0 KiB" },
                { INT64_MAX, "8.0 EiB" },
                { INT64_MIN, "-8.0 EiB" },
                { 1023 * 1024, "1023.0 KiB" } };
    char buffer[32];
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        TEST_TEXT(t, tsi_text_bytes(buffer, sizeof buffer, row[i].bytes), row[i].want);
}

static ts_status join_names(const char *name, const tsi_json *value, void *context)
{
    tsi_text_printf(context, "%s:%d ", name, (int)tsi_json_kind_of(value));
    return name[0] == 'Z' ? TS_ERR_STATE : TS_OK;
}

TS_TEST(json_reads_values)
{
    static const char source[] = "{\"b\": [1, 2.5, 1e9, -3], \"a\": \"text\", \"n\": null, "
                                 "\"t\": true, \"Z\": {}, \"y\": 0}";
    tsi_json_document *document = NULL;
    ts_status status = tsi_json_parse("topology.json", source, sizeof source - 1, &document);
    TEST_OK(t, status);
    const tsi_json *root = tsi_json_root(document), *b = tsi_json_member(root, "b");
    TEST_EQ(t, tsi_json_count(root), 6);
    TEST_EQ(t, tsi_json_count(b), 4);
    TEST_EQ(t, tsi_json_int(tsi_json_item(b, 0), -1), 1);
    TEST_EQ(t, tsi_json_int(tsi_json_item(b, 1), -1), -1); /* 2.5 is no whole number */
    TEST_EQ(t, tsi_json_int(tsi_json_item(b, 2), -1), 1000000000);
    TEST_CHECK(t, tsi_json_real(tsi_json_item(b, 3), 0) == -3);
    TEST_CHECK(t, tsi_json_item(b, 4) == NULL && tsi_json_item(b, -1) == NULL);
    TEST_TEXT(t, tsi_json_text(tsi_json_member(root, "a"), "?"), "text");
    TEST_TEXT(t, tsi_json_text(tsi_json_member(root, "none"), "?"), "?");
    TEST_CHECK(t, tsi_json_bool(tsi_json_member(root, "t"), false));
    TEST_EQ(t, tsi_json_kind_of(NULL), TSI_JSON_NULL);
    TEST_EQ(t, tsi_json_count(NULL), 0);
    tsi_text names = { 0 };
    TEST_STATUS(t, tsi_json_each(root, join_names, &names), TS_ERR_STATE);
    TEST_TEXT(t, names.data, "b:5 a:4 n:0 t:1 Z:6 ");
    tsi_text_release(&names);
    tsi_json_release(document);
}

TS_TEST(json_texts_are_utf8)
{
    static const char source[] =
        "[\"\\u00e9\\u20ac\\ud83d\\ude00 \\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\xe2\x82\xac\"]";
    tsi_json_document *document = NULL;
    TEST_OK(t, tsi_json_parse("text", source, sizeof source - 1, &document));
    const tsi_json *root = tsi_json_root(document);
    TEST_TEXT(t, tsi_json_text(tsi_json_item(root, 0), "?"),
              "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \"\\/\b\f\n\r\t");
    TEST_TEXT(t, tsi_json_text(tsi_json_item(root, 1), "?"), "\xe2\x82\xac");
    tsi_json_release(document);
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
        tsi_json_document *document = NULL;
        ts_status status = tsi_json_parse("plan.json", bad[i], strlen(bad[i]), &document);
        TEST_CHECK(t, document == NULL);
        TEST_STATUS(t, status, TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(),
                  i == 0 ? "plan.json, line 2, column" : "plan.json, line 1, column");
    }
    tsi_json_document *document = NULL;
    TEST_STATUS(t, tsi_json_parse("plan.json", NULL, 0, &document), TS_ERR_NULL);
}
