/* SPDX-License-Identifier: Apache-2.0 */
/* text.c - building text: growing buffers, JSON quoting, numbers without the locale's hand.
 *
 * A builder that could not grow stays failed and keeps what it had; tsi_text_take reports it once.
 */
#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/intmath.h"

/* Room for `more` bytes and the NUL. */
static bool reserve(tsi_text *text, size_t more)
{
    if (text->failed) return false;
    size_t need;
    if (!tsi_add_size(text->length, more, &need) || need == SIZE_MAX) {
        text->failed = true;
        return false;
    }
    if (need < text->capacity) return true;
    size_t capacity = text->capacity != 0 ? text->capacity : 64;
    while (capacity <= need)
        capacity = capacity > SIZE_MAX / 2 ? SIZE_MAX : 2 * capacity;
    char *data = tsi_realloc(text->data, capacity);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void tsi_text_add_n(tsi_text *text, const char *addition, size_t length)
{
    if (!reserve(text, length)) return;
    memcpy(text->data + text->length, addition, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void tsi_text_add(tsi_text *text, const char *addition)
{
    tsi_text_add_n(text, addition, strlen(addition));
}

void tsi_text_printf(tsi_text *text, const char *format, ...)
{
    if (!reserve(text, 0)) return;
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t room = text->capacity - text->length;
    int length = vsnprintf(text->data + text->length, room, format, arguments);
    if (length < 0) {
        text->failed = true;
    } else if ((size_t)length >= room && reserve(text, (size_t)length)) {
        (void)vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
    }
    va_end(again);
    va_end(arguments);
    if (!text->failed) text->length += (size_t)length;
    text->data[text->length] = '\0';
}

/* Without printf, which takes several hundred instructions a number: layouts are named by the
 * numbers in them, and a layout is made for each new shape. */
void tsi_text_int(tsi_text *text, int64_t value)
{
    char digit[24], *at = digit + sizeof digit;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (value < 0) *--at = '-';
    tsi_text_add_n(text, at, (size_t)(digit + sizeof digit - at));
}

/* A quote, a backslash or a control character. */
static void add_escaped(tsi_text *text, unsigned char c)
{
    static const char short_form[] = "b\bf\fn\nr\rt\t\"\"\\\\";
    for (const char *pair = short_form; *pair != '\0'; pair += 2) {
        if ((unsigned char)pair[1] != c) continue;
        tsi_text_add_n(text, (const char[]){ '\\', pair[0] }, 2);
        return;
    }
    tsi_text_printf(text, "\\u%04x", c);
}

void tsi_text_json(tsi_text *text, const char *value)
{
    if (value == NULL) {
        tsi_text_add(text, "null");
        return;
    }
    tsi_text_add(text, "\"");
    /* A run of characters that stand as they are is added at once. */
    const char *run = value, *p = value;
    for (size_t left = strlen(value); left > 0;) {
        size_t length = tsi_text_character(p, left);
        bool plain = length > 0 && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\';
        if (!plain) {
            tsi_text_add_n(text, run, (size_t)(p - run));
            if (length == 0)
                tsi_text_add(text, "\xef\xbf\xbd"); /* U+FFFD */
            else
                add_escaped(text, (unsigned char)*p);
            run = p + 1;
            length = 1;
        }
        p += length;
        left -= length;
    }
    tsi_text_add_n(text, run, (size_t)(p - run));
    tsi_text_add(text, "\"");
}

size_t tsi_text_character(const char *text, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)text;
    if (left == 0) return 0;
    if (p[0] < 0x80) return 1;
    size_t length = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || length > left) return 0;
    uint32_t code = p[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    return code < least[length] || code > 0x10FFFF || surrogate ? 0 : length;
}

size_t tsi_text_cut(const char *text, size_t most)
{
    size_t length = strnlen(text, most + 1);
    if (length <= most) return length;
    size_t cut = most;
    while (cut > 0 && most - cut < 3 && ((unsigned char)text[cut] & 0xC0) == 0x80)
        cut--;
    return cut;
}

void tsi_text_real(tsi_text *text, double value)
{
    char buffer[64] = "null";
    if (value == 0 && signbit(value)) { /* "-0" would be read as a whole number, without its sign */
        tsi_text_add(text, "-0.0");
        return;
    }
    for (int digits = 15; isfinite(value) && digits <= 17; digits++) {
        (void)snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) break;
    }
    /* Whatever the locale put for the decimal point becomes one '.'. */
    bool point = false;
    for (const char *p = buffer; *p != '\0'; p++) {
        bool kept = strchr("0123456789+-enul", *p) != NULL;
        if (kept) tsi_text_add_n(text, p, 1);
        if (!kept && !point) tsi_text_add(text, ".");
        point = !kept;
    }
}

char *tsi_text_take(tsi_text *text)
{
    if (!text->failed && text->data == NULL) tsi_text_add(text, "");
    char *data = text->data;
    if (text->failed) {
        (void)tsi_fail_memory("a text", text->length + 1);
        tsi_free(data);
        data = NULL;
    }
    *text = (tsi_text){ 0 };
    return data;
}

void tsi_text_release(tsi_text *text)
{
    tsi_free(text->data);
    *text = (tsi_text){ 0 };
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein distance without regard to case, by the rolling row of the usual table. */
static size_t distance(const char *a, const char *b)
{
    enum { LENGTH_MAX = 63 };
    size_t row[LENGTH_MAX + 1];
    size_t length = min_size(strlen(b), LENGTH_MAX);
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < length; j++) {
            size_t replace = diagonal + (strncasecmp(a + i, b + j, 1) != 0);
            diagonal = row[j + 1];
            row[j + 1] = min_size(replace, 1 + min_size(row[j], diagonal));
        }
    }
    return row[length];
}

size_t tsi_name_text(const tsi_name *name, char *out, size_t size)
{
    size_t length = name->above ? tsi_name_text(name->above, out, size) : 0;
    if (!name->above && size > 0) out[0] = '\0';
    if (!name->text || !*name->text) return length;
    int more = snprintf(length < size ? out + length : NULL, length < size ? size - length : 0,
                        "%s%s", length > 0 ? "." : "", name->text);
    return length + (size_t)more;
}

const char *tsi_text_nearest(const char *name, const char *const *names)
{
    const char *best = NULL;
    /* Nearer than a third of the word (at least one letter), or it is no help. */
    size_t bound = strlen(name) / 3 + 1;
    for (; *names != NULL; names++) {
        size_t d = distance(name, *names);
        if (d > bound || d >= strlen(name)) continue;
        if (d == bound && best != NULL) continue;
        best = *names;
        bound = d;
    }
    return best;
}

/* What the last star stood for may grow; no other has to, since what lies between two stars is
 * taken where it comes first. */
bool tsi_text_fits(const char *pattern, size_t length, const char *text)
{
    const char *at = pattern, *end = pattern + length;
    const char *last = NULL, *behind = NULL; /* the last star, and the end of its run */
    while (*text) {
        if (at < end && *at == '*') {
            last = at++;
            behind = text;
        } else if (at < end && *at == *text) {
            at++;
            text++;
        } else {
            if (!last) return false;
            at = last + 1;
            text = ++behind;
        }
    }
    while (at < end && *at == '*')
        at++;
    return at == end;
}

const char *tsi_text_bytes(char *buffer, size_t size, int64_t bytes)
{
    static const char *const unit[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    uint64_t magnitude = bytes < 0 ? 0 - (uint64_t)bytes : (uint64_t)bytes;
    const char *sign = bytes < 0 ? "-" : "";
    if (magnitude < 1024) {
        (void)snprintf(buffer, size, "%s%d B", sign, (int)magnitude);
        return buffer;
    }
    /* Tenths in integers: rounded to nearest, and 1023.96 KiB becomes 1.0 MiB. */
    size_t u = 0;
    while (u + 1 < sizeof unit / sizeof unit[0] && magnitude >= ((uint64_t)1 << (10 * (u + 2))))
        u++;
    uint64_t one = (uint64_t)1 << (10 * (u + 1));
    uint64_t tenths = magnitude / one * 10 + (magnitude % one / 2 * 10 + one / 4) / (one / 2);
    if (tenths >= 10240 && u + 1 < sizeof unit / sizeof unit[0]) {
        tenths = 10;
        u++;
    }
    (void)snprintf(buffer, size, "%s%d.%d %s", sign, (int)(tenths / 10), (int)(tenths % 10),
                   unit[u]);
    return buffer;
}

size_t tsi_text_give(tsi_text *text, char *out, size_t size)
{
    size_t length = text->failed ? 0 : text->length;
    if (size > 0) {
        size_t copied = length < size - 1 ? length : size - 1;
        if (copied > 0) memcpy(out, text->data, copied);
        out[copied] = '\0';
    }
    tsi_text_release(text);
    return length;
}
