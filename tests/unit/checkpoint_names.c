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
