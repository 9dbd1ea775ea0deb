/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - reading JSON with jansson, where it was found (json_plain.c: where not). No other file
 * of the library knows jansson.
 *
 * A tsi_json is jansson's value under another name. jansson's memory is its own: the hooks that
 * would redirect it are process-wide and belong to the host program. */
#include "base/json.h"

#include <math.h>

#include "base/alloc.h"
#include "base/error.h"

#if TS_HAVE_JANSSON
#include <jansson.h>

struct tsi_json_document {
    json_t *root;
};

/* jansson takes its values without const but changes none of them in the calls made here. */
static json_t *value_of(const tsi_json *value)
{
    return (json_t *)(uintptr_t)value;
}

static const tsi_json *view_of(const json_t *value)
{
    return (const tsi_json *)value;
}

ts_status tsi_json_parse(const char *what, const char *text, size_t length, tsi_json_document **out)
{
    *out = NULL;
    if (text == NULL) return TSI_FAIL(TS_ERR_NULL, "%s: there is no JSON text", what);
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (root == NULL) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return tsi_fail_memory(what, length);
        return TSI_FAIL(TS_ERR_ARG, "%s, line %d, column %d: %s", what, error.line, error.column,
                        error.text);
    }
    tsi_json_document *document = tsi_alloc(sizeof *document);
    if (document == NULL) {
        json_decref(root);
        return tsi_fail_memory(what, sizeof *document);
    }
    document->root = root;
    *out = document;
    return TS_OK;
}

void tsi_json_release(tsi_json_document *document)
{
    if (document == NULL) return;
    json_decref(document->root);
    tsi_free(document);
}

const tsi_json *tsi_json_root(const tsi_json_document *document)
{
    return document != NULL ? view_of(document->root) : NULL;
}

tsi_json_kind tsi_json_kind_of(const tsi_json *value)
{
    if (value == NULL) return TSI_JSON_NULL;
    switch (json_typeof(value_of(value))) {
    case JSON_OBJECT:
        return TSI_JSON_OBJECT;
    case JSON_ARRAY:
        return TSI_JSON_LIST;
    case JSON_STRING:
        return TSI_JSON_TEXT;
    case JSON_INTEGER:
        return TSI_JSON_INT;
    case JSON_REAL:
        return TSI_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TSI_JSON_BOOL;
    case JSON_NULL:
        return TSI_JSON_NULL;
    }
    return TSI_JSON_NULL;
}

int64_t tsi_json_count(const tsi_json *value)
{
    json_t *v = value_of(value);
    return (int64_t)(json_is_object(v) ? json_object_size(v) : json_array_size(v));
}

const tsi_json *tsi_json_item(const tsi_json *list, int64_t index)
{
    return index >= 0 ? view_of(json_array_get(value_of(list), (size_t)index)) : NULL;
}

const tsi_json *tsi_json_member(const tsi_json *object, const char *name)
{
    return view_of(json_object_get(value_of(object), name));
}

ts_status tsi_json_each(const tsi_json *object,
                        ts_status (*visit)(const char *name, const tsi_json *value, void *context),
                        void *context)
{
    json_t *o = value_of(object);
    for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it)) {
        ts_status status =
            visit(json_object_iter_key(it), view_of(json_object_iter_value(it)), context);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

const char *tsi_json_text(const tsi_json *value, const char *otherwise)
{
    json_t *v = value_of(value);
    return json_is_string(v) ? json_string_value(v) : otherwise;
}

int64_t tsi_json_int(const tsi_json *value, int64_t otherwise)
{
    json_t *v = value_of(value);
    if (json_is_integer(v)) return json_integer_value(v);
    if (!json_is_real(v)) return otherwise;
    /* "1e9" is a whole number too; 2^53 bounds what a real holds exactly. */
    double real = json_real_value(v);
    return floor(real) == real && fabs(real) <= 9007199254740992.0 ? (int64_t)real : otherwise;
}

double tsi_json_real(const tsi_json *value, double otherwise)
{
    json_t *v = value_of(value);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

bool tsi_json_bool(const tsi_json *value, bool otherwise)
{
    json_t *v = value_of(value);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

#endif
