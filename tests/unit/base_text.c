/* SPDX-License-Identifier: Apache-2.0 */
/* base_text.c - building and reading text and JSON: exact columns, exact words. */
#include <locale.h>
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
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

/* Repair 34: whatever the bytes, a JSON text is UTF-8. */
TS_TEST(text_json_is_utf8)
{
    static const struct {
        const char *bytes, *want;
    } row[] = { { "caf\xc3", "\"caf\xef\xbf\xbd\"" },
                { "\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"" },
                { "\xed\xa0\x80 \n", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \\n\"" },
                { "\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\"" } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        tsi_text text = { 0 };
        tsi_text_json(&text, row[i].bytes);
        TEST_TEXT(t, text.data, row[i].want);
        tsi_text_release(&text);
    }
}

TS_TEST(text_cut_is_between_characters)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"; /* 1, 2, 3 and 4 bytes */
    static const size_t want[] = { 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10 };
    for (size_t most = 0; most < sizeof want / sizeof want[0]; most++)
        TEST_EQ(t, tsi_text_cut(text, most), want[most]);
}

/* Repair 34: an error that does not fit is cut between two characters. */
TS_TEST(error_text_is_cut_between_characters)
{
    char name[1200];
    for (size_t start = 0; start < 4; start++) {
        memset(name, 'x', start);
        for (size_t i = start; i < sizeof name; i += 4)
            memcpy(name + i, "\xf0\x9f\x98\x80", sizeof name - i < 4 ? sizeof name - i : 4);
        name[sizeof name - 1] = '\0';
        TEST_STATUS(t, TSI_FAIL(TS_ERR_ARG, "%s", name), TS_ERR_ARG);
        const char *p = ts_last_error();
        size_t left = strlen(p), length = 1;
        TEST_CHECK(t, left > 1000 && strcmp(p + left - 3, "...") == 0);
        for (; left > 0 && length > 0; p += length, left -= length)
            length = tsi_text_character(p, left);
        TEST_EQ(t, left, 0);
    }
}

TS_TEST(text_real_is_short_and_exact)
{
    static const struct {
        double value;
        const char *want;
    } row[] = {
        { 0.1, "0.1" },          { 1.0 / 3, "0.3333333333333333" }, { -2.5e-300, "-2.5e-300" },
        { 1e22, "1e+22" },       { 123456789, "123456789" },        { -0.0, "-0.0" },
        { (double)NAN, "null" }, { -(double)INFINITY, "null" }
    };
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
