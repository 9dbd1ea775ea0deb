/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - reading and writing JSON (RFC 8259), as the library itself does.
 *
 * The reader is strict and bounded: duplicate keys, numbers beyond int64 or double, \u0000, bad
 * UTF-8 and values more than 2048 deep are errors with a line and a column. A document owns its
 * values, which are borrowed while it lives; a getter of another kind than the value's, or of NULL,
 * gives `otherwise`, so that members that may be missing are read without asking first:
 *
 *   int64_t layers = ts_json_int(ts_json_member(root, "num_layers"), 12);
 *
 * The writer's output is always UTF-8: bytes that are not become U+FFFD. A real is written with the
 * fewest digits that read back as the same number, NaN and infinities as null. */
#ifndef TESSERA_JSON_H
#define TESSERA_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "status.h"

TS_BEGIN_C

typedef struct ts_json_document ts_json_document;
typedef struct ts_json ts_json; /* one value */

typedef enum ts_json_kind {
    TS_JSON_NULL,
    TS_JSON_BOOL,
    TS_JSON_INT,
    TS_JSON_REAL,
    TS_JSON_TEXT,
    TS_JSON_LIST,
    TS_JSON_OBJECT
} ts_json_kind;

/* ---- reading: any thread; a document may be read by several at once -------------------------- */

/* `what` begins the error sentence ("topology.json"). The text need not end in a zero and is not
 * kept. */
TS_API TS_NODISCARD ts_status ts_json_parse(const char *what, const char *text, size_t length,
                                            ts_json_document **out);
TS_API void ts_json_release(ts_json_document *document);
TS_API const ts_json *ts_json_root(const ts_json_document *document);
TS_API ts_json_kind ts_json_kind_of(const ts_json *value); /* NULL: TS_JSON_NULL */
TS_API int64_t ts_json_count(const ts_json *value);        /* of a list or object; else 0 */
TS_API const ts_json *ts_json_item(const ts_json *list, int64_t index);        /* NULL if absent */
TS_API const ts_json *ts_json_member(const ts_json *object, const char *name); /* NULL if absent */
/* Visits members in the text's order; stops when visit returns other than TS_OK and returns it. */
TS_API ts_status ts_json_each(const ts_json *object,
                              ts_status (*visit)(const char *name, const ts_json *value,
                                                 void *context),
                              void *context);
TS_API const char *ts_json_text(const ts_json *value, const char *otherwise);
/* A real without a fraction, of at most 2^53, is whole too ("1e9"). */
TS_API int64_t ts_json_int(const ts_json *value, int64_t otherwise);
TS_API double ts_json_real(const ts_json *value, double otherwise); /* of an int too */
TS_API bool ts_json_bool(const ts_json *value, bool otherwise);

/* ---- writing --------------------------------------------------------------------------------- */

/* A text that grows; zero is empty. The writer places commas; brackets and keys are paired by the
 * caller. After a failed allocation it stays failed, so it is looked at once, at the end. */
typedef struct ts_json_writer {
    char *data; /* ends in a zero when length > 0 */
    size_t length, capacity;
    bool failed, comma; /* comma: the next value or key needs one before it */
} ts_json_writer;

TS_API void ts_json_put_open(ts_json_writer *json, char bracket);  /* '{' or '[' */
TS_API void ts_json_put_close(ts_json_writer *json, char bracket); /* '}' or ']' */
TS_API void ts_json_put_key(ts_json_writer *json, const char *key);
TS_API void ts_json_put_text(ts_json_writer *json, const char *value); /* NULL: null */
TS_API void ts_json_put_int(ts_json_writer *json, int64_t value);
TS_API void ts_json_put_real(ts_json_writer *json, double value);
TS_API void ts_json_put_bool(ts_json_writer *json, bool value);
TS_API void ts_json_put_ints(ts_json_writer *json, const int64_t *values, int64_t count);
TS_API void ts_json_put_value(ts_json_writer *json, const ts_json *value); /* all of it */
/* JSON that somebody else has written, as it is: a value, or members of an open object. */
TS_API void ts_json_put_raw(ts_json_writer *json, const char *text, size_t length);
/* Members of an object in one line each. */
TS_API void ts_json_put_member_text(ts_json_writer *json, const char *key, const char *value);
TS_API void ts_json_put_member_int(ts_json_writer *json, const char *key, int64_t value);
TS_API void ts_json_put_member_real(ts_json_writer *json, const char *key, double value);
TS_API void ts_json_put_member_bool(ts_json_writer *json, const char *key, bool value);
TS_API void ts_json_writer_reset(ts_json_writer *json);   /* empty again; keeps the memory */
TS_API void ts_json_writer_release(ts_json_writer *json); /* frees it; zero again */

TS_END_C

#endif
