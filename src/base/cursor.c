/* SPDX-License-Identifier: Apache-2.0 */
/* cursor.c - reading text with exact positions.
 *
 * A function that returns false has consumed blanks at most, so the caller can try something else
 * or report the place where the cursor stands. Nothing depends on the locale. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/intmath.h"
#include "base/text.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_word_part(char c)
{
    return is_word_start(c) || is_digit(c) || c == '.' || c == '-';
}

tsi_cursor tsi_cursor_of(const char *what, const char *text)
{
    return (tsi_cursor){ .start = text, .at = text, .what = what };
}

void tsi_cursor_space(tsi_cursor *cursor)
{
    while (*cursor->at == ' ' || *cursor->at == '\t' || *cursor->at == '\n' || *cursor->at == '\r')
        cursor->at++;
}

bool tsi_cursor_done(tsi_cursor *cursor)
{
    tsi_cursor_space(cursor);
    return *cursor->at == '\0';
}

bool tsi_cursor_take(tsi_cursor *cursor, char c)
{
    tsi_cursor_space(cursor);
    if (c == '\0' || *cursor->at != c) return false;
    cursor->at++;
    return true;
}

bool tsi_cursor_word(tsi_cursor *cursor, char *out, size_t size)
{
    tsi_cursor_space(cursor);
    if (!is_word_start(*cursor->at)) return false;
    size_t length = 1;
    while (is_word_part(cursor->at[length]))
        length++;
    if (length >= size) return false;
    memcpy(out, cursor->at, length);
    out[length] = '\0';
    cursor->at += length;
    return true;
}

bool tsi_cursor_int(tsi_cursor *cursor, int64_t *out)
{
    tsi_cursor_space(cursor);
    const char *p = cursor->at;
    bool negative = *p == '-';
    if (negative) p++;
    if (!is_digit(*p)) return false;
    int64_t value = 0; /* built downwards, for INT64_MIN has no positive counterpart */
    for (; is_digit(*p); p++)
        if (!tsi_mul_i64(value, 10, &value) || !tsi_add_i64(value, '0' - *p, &value)) return false;
    if (!negative && !tsi_mul_i64(value, -1, &value)) return false;
    *out = value;
    cursor->at = p;
    return true;
}

/* Length of [-+] digits [. digits] [e[-+] digits] at p; 0 if there is no number. */
static size_t real_length(const char *p)
{
    const char *start = p;
    if (*p == '-' || *p == '+') p++;
    const char *digits = p;
    while (is_digit(*p))
        p++;
    size_t count = (size_t)(p - digits);
    if (*p == '.') {
        const char *fraction = ++p;
        while (is_digit(*p))
            p++;
        count += (size_t)(p - fraction);
    }
    if (count == 0) return 0;
    if (*p == 'e' || *p == 'E') {
        const char *exponent = p + 1;
        if (*exponent == '-' || *exponent == '+') exponent++;
        if (is_digit(*exponent))
            for (p = exponent; is_digit(*p);)
                p++;
    }
    return (size_t)(p - start);
}

bool tsi_cursor_real(tsi_cursor *cursor, double *out)
{
    tsi_cursor_space(cursor);
    char number[64];
    size_t length = real_length(cursor->at);
    if (length == 0 || length >= sizeof number) return false;
    memcpy(number, cursor->at, length);
    number[length] = '\0';
    /* The "C" locale is a constant of the C library: this neither allocates nor changes the thread.
     */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return false;
    *out = strtod_l(number, NULL, plain);
    freelocale(plain);
    cursor->at += length;
    return true;
}

ts_status tsi_cursor_fail(const tsi_cursor *cursor, const char *expected)
{
    tsi_cursor at = *cursor;
    tsi_cursor_space(&at);
    const char *line = at.start;
    int line_number = 1;
    for (const char *p = at.start; p < at.at; p++) {
        if (*p != '\n') continue;
        line = p + 1;
        line_number++;
    }
    char place[64], found[32] = "the end";
    if (line_number > 1)
        (void)snprintf(place, sizeof place, "line %d, column %d", line_number,
                       (int)(at.at - line) + 1);
    else
        (void)snprintf(place, sizeof place, "column %d", (int)(at.at - line) + 1);
    if (is_word_part(*at.at)) {
        int length = 1;
        while (length < 24 && is_word_part(at.at[length]))
            length++;
        (void)snprintf(found, sizeof found, "\"%.*s\"", length, at.at);
    } else if (*at.at != '\0') {
        (void)snprintf(found, sizeof found, "'%c'", *at.at);
    }
    int shown = (int)strcspn(line, "\n");
    return TSI_FAIL(TS_ERR_ARG, "%s, %s: expected %s, found %s (in \"%.*s%s\")", at.what, place,
                    expected, found, shown > 200 ? 200 : shown, line, shown > 200 ? "..." : "");
}
