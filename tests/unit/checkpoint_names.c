/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_names.c - which names are meant, and what they are called elsewhere. */
#include "checkpoint/names.h"
#include "harness/test.h"

static void expect(test *t, const char *lines, const char *name, const char *want)
{
    char got[64] = "";
    TEST_OK(t, tsi_names_rename(lines, name, got, sizeof got));
    TEST_TEXT(t, got, want);
}

TS_TEST(renamed)
{
    expect(t, NULL, "a.b", "a.b");
    expect(t, "model.*: *", "model.norm", "norm");
    expect(t, "x: y\n\n model.* : other.*.end \r\n", "model.norm", "other.norm.end");
    expect(t, "model.*: *", "head", "head");
    /* A star of a name is no pattern. */
    expect(t, NULL, "a*b", "a*b");
    expect(t, "model.*: *", "a*b", "a*b");
    expect(t, "model.*: *", "model.a*b", "a*b");
    char got[8];
    TEST_STATUS(t, tsi_names_rename(NULL, "12345678", got, sizeof got), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "longer than 7 bytes");
    TEST_STATUS(t, tsi_names_rename("model", "a", got, sizeof got), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "expected \"name here: name there\", found \"model\"");
}

TS_TEST(matched)
{
    TEST_CHECK(t, tsi_names_match(NULL, "a"));
    TEST_CHECK(t, !tsi_names_match("", "a"));
    TEST_CHECK(t, tsi_names_match("b\n a* \n", "abc"));
    TEST_CHECK(t, tsi_names_match("*b*c", "a.b.b.c") && !tsi_names_match("*b*c", "a.b.b.d"));
}

/* By the definition: every run of the first star, the shortest first. -1: none. */
static int run_of_first_star(const char *pattern, const char *text)
{
    for (; *pattern && *pattern != '*'; pattern++, text++)
        if (*text != *pattern) return -1;
    if (!*pattern) return *text ? -1 : 0;
    for (int run = 0;; run++) {
        if (run_of_first_star(pattern + 1, text + run) >= 0) return run;
        if (!text[run]) return -1;
    }
}

static void word_of(char *out, const char *letters, int length, int number)
{
    int base = (int)strlen(letters);
    for (int i = 0; i < length; i++, number /= base)
        out[i] = letters[number % base];
    out[length] = '\0';
}

static int is_wrong(const char *pattern, const char *name)
{
    int run = run_of_first_star(pattern, name);
    if (tsi_names_match(pattern, name) != (run >= 0)) return 1;
    if (run < 0) return 0;
    const char *star = strchr(pattern, '*');
    char line[16], got[16] = "", want[16];
    snprintf(line, sizeof line, "%s: <*>", pattern);
    snprintf(want, sizeof want, "<%.*s>", run, star ? name + (star - pattern) : "");
    return tsi_names_rename(line, name, got, sizeof got) != TS_OK || strcmp(got, want) != 0;
}

/* All patterns of up to 5 letters against all names of up to 6. */
TS_TEST(matched_by_definition)
{
    int wrong = 0;
    for (int p = 1, patterns = 3; p <= 5; p++, patterns *= 3)
        for (int i = 0; i < patterns; i++)
            for (int n = 0; n <= 6; n++)
                for (int k = 0; k < 1 << n; k++) {
                    char pattern[8], name[8];
                    word_of(pattern, "ab*", p, i);
                    word_of(name, "ab", n, k);
                    wrong += is_wrong(pattern, name);
                }
    TEST_EQ(t, wrong, 0);
    /* The time is a power of the lengths, whose exponent is not the number of stars. */
    TEST_CHECK(t, !tsi_names_match("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b",
                                   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}
