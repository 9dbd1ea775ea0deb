/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - the checks of test.h: each failure is one line with its place, written at once.
 *
 * Ranks of one test may fail at the same time, so a line is a single write. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "harness/harness.h"

enum { LINE_BYTES = 4096, SHOWN_MAX = 50 };

void test_fail(test *t, const char *file, int line, const char *format, ...)
{
    int64_t before = t->result->failures++;
    if (before > SHOWN_MAX) return;
    char text[LINE_BYTES];
    int length = snprintf(text, sizeof text, "    %s:%d: ", file, line);
    if (t->count > 0)
        length += snprintf(text + length, sizeof text - (size_t)length, "[%lld of %lld] ",
                           (long long)t->index, (long long)t->count);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + length, sizeof text - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (before == SHOWN_MAX) (void)snprintf(text, sizeof text, "    (more failures are not shown)");
    size_t total = strlen(text);
    text[total] = '\n';
    (void)fflush(stdout);
    ssize_t wrote = write(STDOUT_FILENO, text, total + 1);
    (void)wrote;
}

bool test_failed(const test *t)
{
    return t->result->failures > 0;
}

/* splitmix64: any state is a good one, so seed and name are simply mixed. */
uint64_t test_random(test *t)
{
    uint64_t z = t->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t test_random_below(test *t, int64_t bound)
{
    return bound > 0 ? (int64_t)(test_random(t) % (uint64_t)bound) : 0;
}

bool test_tries(test *t)
{
    const char *text = getenv("TEST_SHARE");
    uint64_t share = text != NULL ? strtoull(text, NULL, 10) : 1;
    uint64_t row = (uint64_t)t->rows++;
    return share < 2 || row % share == t->seed % share;
}

static char *read_stream(FILE *file, size_t *length)
{
    size_t capacity = 4096, used = 0;
    char *data = tsi_alloc(capacity);
    while (data != NULL) {
        used += fread(data + used, 1, capacity - used - 1, file);
        if (used < capacity - 1) break;
        char *bigger = tsi_realloc(data, capacity *= 2);
        if (bigger == NULL) tsi_free(data);
        data = bigger;
    }
    if (data != NULL) data[used] = '\0';
    if (length != NULL) *length = data != NULL ? used : 0;
    return data;
}

char *test_read_file(test *t, const char *path, size_t *length)
{
    char full[2048];
    (void)snprintf(full, sizeof full, "%s/%s", TS_SOURCE_DIR, path);
    if (length != NULL) *length = 0;
    FILE *file = fopen(full, "rb");
    char *data = file != NULL ? read_stream(file, length) : NULL;
    if (file != NULL) (void)fclose(file);
    if (data == NULL) test_fail(t, __FILE__, __LINE__, "cannot read %s", path);
    return data;
}

void test_eq(test *t, const char *file, int line, const char *what, int64_t got, int64_t want)
{
    if (got != want)
        test_fail(t, file, line, "%s is %lld, expected %lld", what, (long long)got,
                  (long long)want);
}

void test_text(test *t, const char *file, int line, const char *what, const char *got,
               const char *want)
{
    if (got == NULL || want == NULL) {
        if (got != want)
            test_fail(t, file, line, "%s is %s%s%s, expected %s%s%s", what, got ? "\"" : "",
                      got ? got : "NULL", got ? "\"" : "", want ? "\"" : "", want ? want : "NULL",
                      want ? "\"" : "");
    } else if (strcmp(got, want) != 0) {
        test_fail(t, file, line, "%s is \"%s\", expected \"%s\"", what, got, want);
    }
}

void test_says(test *t, const char *file, int line, const char *what, const char *got,
               const char *words)
{
    if (got == NULL || strstr(got, words) == NULL)
        test_fail(t, file, line, "%s does not say \"%s\" but \"%s\"", what, words,
                  got ? got : "NULL");
}

void test_status(test *t, const char *file, int line, const char *what, ts_status got,
                 ts_status want)
{
    if (got == want) return;
    const ts_error *error = ts_rank_error(ts_rank_current());
    const char *said = error != NULL ? error->text : ts_last_error();
    test_fail(t, file, line, "%s is %s, expected %s%s%s", what, ts_status_name(got),
              ts_status_name(want), got != TS_OK && said[0] != '\0' ? ": " : "",
              got != TS_OK ? said : "");
}
