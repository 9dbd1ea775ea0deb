/* SPDX-License-Identifier: Apache-2.0 */
/* data_pattern.c - rewriting of patterns, and the hand-written scanners against the patterns they
 * stand for. */
#include "data/pattern.h"
#include "data/tokenizer.h"
#include "unit/data_util.h"

static void expect(test *t, const char *expression, const char *want)
{
    char *got = NULL;
    TEST_OK(t, tsi_pattern_rewrite("x", expression, &got));
    TEST_TEXT(t, got != NULL ? got : "", want);
    tsi_free(got);
}

static void refused(test *t, const char *expression, const char *words)
{
    char *got = NULL;
    TEST_STATUS(t, tsi_pattern_rewrite("x", expression, &got), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), words);
    TEST_CHECK(t, got == NULL);
}

TS_TEST(rewriting)
{
    expect(t, "'s|(?i:'re)| ?\\p{L}+|\\P{N}{1,3}", "'s|(?i:'re)| ?\\p{L}+|\\P{N}{1,3}");
    expect(t, "[^\\r\\n\\p{L}]++a?+", "[^\\r\\n\\p{L}]++a?+");
    expect(t, "(?<!x)(?<=y)(?>z)\\d\\[\\\xC3\xA9", "(?<!x)(?<=y)(?>z)\\d\\[\\\xC3\xA9");
    char *got = NULL;
    TEST_OK(t, tsi_pattern_rewrite("x", "\\s[^\\s]\\S", &got));
    TEST_SAYS(t, got, "[\\t-\\r");
    TEST_CHECK(t, got != NULL && strstr(got, "180E") == NULL && strstr(got, "[[") == NULL);
    tsi_free(got);
    /* Outside of a class there are numbers of Latin-1 in a word, in one there are none. */
    TEST_OK(t, tsi_pattern_rewrite("x", "[^\\w]", &got));
    TEST_CHECK(t, got != NULL && strstr(got, "x{BC}") == NULL);
    tsi_free(got);
    TEST_OK(t, tsi_pattern_rewrite("x", "\\w\\W", &got));
    TEST_CHECK(t, got != NULL && strstr(strstr(got, "x{BC}") + 1, "x{BC}") != NULL);
    tsi_free(got);
    refused(t, "a\\b", "\\b at column 2");
    refused(t, "\\h", "\\h");
    refused(t, "\\1", "\\1");
    refused(t, "[a[b]]", "class within a class");
    refused(t, "[[:alpha:]]", "class within a class");
    refused(t, "[a&&b]", "&&");
    refused(t, "[\\W]", "\\W in a class");
    refused(t, "[]a]", "] at the start");
    refused(t, "a{,3}", "{,n}");
    refused(t, "a{1,3}+", "possessive");
    refused(t, "a{2}?", "{n}?");
    expect(t, "a{1,2}?\\{2}?", "a{1,2}?\\{2}?");
    /* One character may be as good as two of these. */
    refused(t, "(?i:aSs)", "a folding of one character within (?i: at column 7");
    refused(t, "(?i:(f)(?:fi))", "a folding of one character");
    refused(t, "(?i:\xC3\xA9)", "beyond ASCII within (?i:");
    refused(t, "(?i:[\\p{Lu}])", "a property in a class within (?i:");
    expect(t, "(?i:s(t)|[sf]i|'LL)ss[\\p{L}]\xC3\xA9", "(?i:s(t)|[sf]i|'LL)ss[\\p{L}]\xC3\xA9");
    refused(t, "(?m)a", "option group");
    refused(t, "(?<name>a)", "named group");
    refused(t, "(*UTF)a", "verb");
    refused(t, "a\\", "backslash at its end");
    refused(t, "", "nothing");
}

#define REST "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"

/* Random text over characters that matter to the patterns. */
static size_t random_text(test *t, char *text, size_t length_max)
{
    static const char *const bits[] = { "'",
                                        "s",
                                        "T",
                                        "re",
                                        "LL",
                                        "ve",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r",
                                        "\t",
                                        "1",
                                        "22",
                                        "333333",
                                        "a",
                                        "Bc",
                                        ".",
                                        ",!",
                                        "_",
                                        "\x01",
                                        "\x1C",
                                        "\xC2\x85",
                                        "\xC2\xA0",
                                        "\xE3\x80\x80",
                                        "\xE1\xA0\x8E",
                                        "\xC3\xA9",
                                        "\xC2\xBD",
                                        "\xCC\x81",
                                        "\xC5\xBF",
                                        "\xE4\xBD\xA0",
                                        "\xF0\x9F\x98\x80",
                                        "\xD9\xA1" };
    size_t at = 0;
    int64_t kinds = test_random_below(t, 2) == 0 ? 21 : (int64_t)(sizeof bits / sizeof bits[0]);
    while (at + 8 < length_max && test_random_below(t, 40) != 0) {
        const char *bit = bits[test_random_below(t, kinds)];
        memcpy(text + at, bit, strlen(bit));
        at += strlen(bit);
    }
    return at;
}

static void compare(test *t, const char *expression)
{
    tsi_pattern *pattern = NULL;
    tsi_scan_fn scan = tsi_scan_of(expression);
    TEST_SAY(t, scan != NULL, "there is no scanner for %s", expression);
    ts_status status = tsi_pattern_compile("x", expression, &pattern);
    if (status == TS_ERR_MISSING || scan == NULL) return; /* without PCRE2 there is no oracle */
    TEST_STATUS(t, status, TS_OK);
    int64_t decided = 0;
    for (int round = 0; round < 20000 && !test_failed(t); round++) {
        char text[256];
        size_t length = random_text(t, text, sizeof text);
        for (size_t at = 0; at < length;) {
            tsi_match match = { 0 };
            TEST_OK(t, tsi_pattern_next(pattern, text, length, at, &match));
            TEST_CHECK(t, match.found && match.start == at && match.end > at);
            size_t got = scan(text, length, at);
            TEST_SAY(t, got == 0 || got == match.end - at,
                     "%s: %zu bytes, not %zu, at byte %zu of \"%.*s\"", expression, got,
                     match.end - at, at, (int)length, text);
            decided += got > 0;
            if (!match.found || match.end <= at) break;
            at = match.end;
        }
    }
    TEST_SAY(t, decided > 10000, "the scanner decided only %lld places", (long long)decided);
    tsi_pattern_release(pattern);
}

TS_TEST(scanners)
{
    compare(t, tsi_pattern_gpt2);
    compare(t, SHORT REST "\\p{N}{1,3}" TAIL);
    compare(t, SHORT REST "\\p{N}" TAIL);
}

/* A pattern that backtracks without end is an error, not a hang. */
TS_TEST(runaway)
{
    tsi_pattern *pattern = NULL;
    ts_status status = tsi_pattern_compile("x", "(a+)+$", &pattern);
    if (status == TS_ERR_MISSING) return;
    TEST_STATUS(t, status, TS_OK);
    char text[64];
    memset(text, 'a', sizeof text);
    text[63] = 'b';
    tsi_match match;
    TEST_STATUS(t, tsi_pattern_next(pattern, text, sizeof text, 0, &match), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "match limit");
    tsi_pattern_release(pattern);
}
