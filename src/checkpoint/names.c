/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - patterns over names: see names.h. */
#include "checkpoint/names.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

/* A part of a text, without blanks around it. */
typedef struct piece {
    const char *text;
    size_t length;
} piece;

static piece trimmed(const char *text, size_t length)
{
    while (length > 0 && strchr(" \t\r", *text)) {
        text++;
        length--;
    }
    while (length > 0 && strchr(" \t\r", text[length - 1]))
        length--;
    return (piece){ text, length };
}

/* *star receives what the first star stood for, as little as possible. */
static bool matches(piece pattern, const char *text, piece *star)
{
    if (!tsi_text_fits(pattern.text, pattern.length, text)) return false;
    const char *first = memchr(pattern.text, '*', pattern.length);
    if (!first || !star) return true;
    const char *begin = text + (first - pattern.text), *end = begin;
    piece rest = { first + 1, (size_t)(pattern.text + pattern.length - first - 1) };
    while (!tsi_text_fits(rest.text, rest.length, end))
        end++;
    *star = (piece){ begin, (size_t)(end - begin) };
    return true;
}

bool tsi_names_match(const char *lines, const char *name)
{
    while (lines && *lines) {
        size_t length = strcspn(lines, "\n");
        piece line = trimmed(lines, length);
        if (line.length > 0 && matches(line, name, NULL)) return true;
        lines += length + (lines[length] == '\n');
    }
    return lines == NULL;
}

/* star NULL: a name, whose '*' is nothing but itself. */
static ts_status put(piece to, const piece *star, char *out, size_t size)
{
    const char *at = star ? memchr(to.text, '*', to.length) : NULL;
    int length;
    if (at)
        length =
            snprintf(out, size, "%.*s%.*s%.*s", (int)(at - to.text), to.text, (int)star->length,
                     star->text, (int)(to.text + to.length - at - 1), at + 1);
    else
        length = snprintf(out, size, "%.*s", (int)to.length, to.text);
    if (length >= 0 && (size_t)length < size) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "load: a renamed name is longer than %zu bytes", size - 1);
}

ts_status tsi_names_rename(const char *lines, const char *name, char *out, size_t size)
{
    piece self = { name, strlen(name) }, star = { "", 0 };
    while (lines && *lines) {
        size_t length = strcspn(lines, "\n");
        piece line = trimmed(lines, length);
        const char *colon = line.length > 0 ? memchr(line.text, ':', line.length) : NULL;
        if (line.length > 0 && !colon)
            return TSI_FAIL(TS_ERR_ARG, "load: expected \"name here: name there\", found \"%.*s\"",
                            (int)line.length, line.text);
        if (colon && matches(trimmed(line.text, (size_t)(colon - line.text)), name, &star))
            return put(trimmed(colon + 1, (size_t)(line.text + line.length - colon - 1)), &star,
                       out, size);
        lines += length + (lines[length] == '\n');
    }
    return put(self, NULL, out, size);
}
