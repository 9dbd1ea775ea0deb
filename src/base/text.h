/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - building text, and reading it with exact positions.
 *
 * tsi_text grows; after an allocation failure it stays failed and tsi_text_take returns NULL, so a
 * builder is checked once at the end. tsi_cursor walks over a text and knows the column, so that
 * every parser's error says where and what was expected: "placements, column 7: expected ')' after
 * the dim". */
#ifndef TSI_BASE_TEXT_H
#define TSI_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/export.h"
#include "tessera/status.h"

typedef struct tsi_text {
    char *data; /* NUL-terminated when length > 0 */
    size_t length, capacity;
    bool failed;
} tsi_text; /* zero is empty */

void tsi_text_add(tsi_text *text, const char *addition);
void tsi_text_add_n(tsi_text *text, const char *addition, size_t length);
void tsi_text_printf(tsi_text *text, const char *format, ...) TS_PRINTF(2, 3);
void tsi_text_int(tsi_text *text, int64_t value); /* as "%lld" */
/* Quoted and escaped, and UTF-8 whatever the bytes were (U+FFFD for each bad one); NULL: null. */
void tsi_text_json(tsi_text *text, const char *value);
/* The shortest digits that read back as the value, with '.' in every locale; NaN and inf: null. */
void tsi_text_real(tsi_text *text, double value);
char *tsi_text_take(tsi_text *text); /* the caller frees; NULL after recording TS_ERR_MEMORY */
void tsi_text_release(tsi_text *text);
/* Hands the text out like snprintf, and releases it. */
size_t tsi_text_give(tsi_text *text, char *out, size_t size);

typedef struct tsi_cursor {
    const char *start, *at; /* at a NUL-terminated text */
    const char *what;       /* "placements": begins error sentences */
} tsi_cursor;

tsi_cursor tsi_cursor_of(const char *what, const char *text);
void tsi_cursor_space(tsi_cursor *cursor);        /* skips blanks */
bool tsi_cursor_done(tsi_cursor *cursor);         /* after blanks, at the end? */
bool tsi_cursor_take(tsi_cursor *cursor, char c); /* skips blanks, takes c if it is next */
bool tsi_cursor_word(tsi_cursor *cursor, char *out, size_t size); /* [A-Za-z_][A-Za-z0-9_.-]* */
bool tsi_cursor_int(tsi_cursor *cursor, int64_t *out); /* optional '-'; false also on overflow */
bool tsi_cursor_real(tsi_cursor *cursor, double *out); /* locale-independent */
/* Records TS_ERR_ARG "what, column N: expected E, found F (in "text")". */
ts_status tsi_cursor_fail(const tsi_cursor *cursor, const char *expected);

/* Bytes of the UTF-8 character at p, of at most `left` bytes; 0: it is none (overlong, a surrogate,
 * beyond U+10FFFF, cut short). */
size_t tsi_text_character(const char *p, size_t left);
/* The most bytes, at most `most`, that a text may be cut to without cutting a character in two. */
size_t tsi_text_cut(const char *text, size_t most);
/* A name in parts: a parameter's stands below its module's, and so on up to the root. */
typedef struct tsi_name {
    const struct tsi_name *above; /* NULL: the first part */
    char *text;                   /* "" adds nothing */
} tsi_name;
size_t tsi_name_text(const tsi_name *name, char *out, size_t size); /* "a.b.c"; like snprintf */

/* Levenshtein distance, for "did you mean": the nearest of the NULL-terminated names, or NULL if
 * none is near. */
const char *tsi_text_nearest(const char *name, const char *const *names);
/* Does the text match the pattern of `length` bytes, with '*' for any run? */
bool tsi_text_fits(const char *pattern, size_t length, const char *text);
/* "4.0 MiB", "17 B" into a buffer; returns it. */
const char *tsi_text_bytes(char *buffer, size_t size, int64_t bytes);

#endif
