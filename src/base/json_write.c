/* SPDX-License-Identifier: Apache-2.0 */
/* json_write.c - the one writer of JSON: commas around what text.c quotes and prints.
 *
 * The writer knows only whether a comma is due, not in which brackets it stands, so a caller's
 * brackets and keys must pair. */
#include <string.h>

#include "base/text.h"
#include "tessera/json.h"

/* The public writer has the members of a tsi_text; one call borrows them and puts them back. */
static tsi_text text_of(const ts_json_writer *json)
{
    return (tsi_text){ json->data, json->length, json->capacity, json->failed };
}

static void put_back(ts_json_writer *json, const tsi_text *text)
{
    json->data = text->data;
    json->length = text->length;
    json->capacity = text->capacity;
    json->failed = text->failed;
}

/* Before every value or key: the comma, if something stands before it in the same brackets. */
static tsi_text begin(ts_json_writer *json)
{
    tsi_text text = text_of(json);
    if (json->comma) tsi_text_add(&text, ", ");
    json->comma = true;
    return text;
}

void ts_json_put_open(ts_json_writer *json, char bracket)
{
    ts_json_put_raw(json, &bracket, 1);
    json->comma = false;
}

void ts_json_put_close(ts_json_writer *json, char bracket)
{
    json->comma = false;
    ts_json_put_raw(json, &bracket, 1);
}

void ts_json_put_key(ts_json_writer *json, const char *key)
{
    tsi_text text = begin(json);
    tsi_text_json(&text, key);
    tsi_text_add(&text, ": ");
    put_back(json, &text);
    json->comma = false;
}

void ts_json_put_text(ts_json_writer *json, const char *value)
{
    tsi_text text = begin(json);
    tsi_text_json(&text, value);
    put_back(json, &text);
}

void ts_json_put_int(ts_json_writer *json, int64_t value)
{
    tsi_text text = begin(json);
    tsi_text_int(&text, value);
    put_back(json, &text);
}

void ts_json_put_real(ts_json_writer *json, double value)
{
    tsi_text text = begin(json);
    tsi_text_real(&text, value);
    put_back(json, &text);
}

void ts_json_put_bool(ts_json_writer *json, bool value)
{
    ts_json_put_raw(json, value ? "true" : "false", value ? 4 : 5);
}

void ts_json_put_ints(ts_json_writer *json, const int64_t *values, int64_t count)
{
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < count; i++)
        ts_json_put_int(json, values[i]);
    ts_json_put_close(json, ']');
}

void ts_json_put_raw(ts_json_writer *json, const char *value, size_t length)
{
    if (length == 0) return;
    tsi_text text = begin(json);
    tsi_text_add_n(&text, value, length);
    put_back(json, &text);
}

static ts_status put_member(const char *name, const ts_json *value, void *context)
{
    ts_json_put_key(context, name);
    ts_json_put_value(context, value);
    return TS_OK;
}

/* As deep as the reader lets values lie inside each other. */
void ts_json_put_value(ts_json_writer *json, const ts_json *value)
{
    switch (ts_json_kind_of(value)) {
    case TS_JSON_NULL:
        ts_json_put_text(json, NULL);
        return;
    case TS_JSON_BOOL:
        ts_json_put_bool(json, ts_json_bool(value, false));
        return;
    case TS_JSON_INT:
        ts_json_put_int(json, ts_json_int(value, 0));
        return;
    case TS_JSON_REAL:
        ts_json_put_real(json, ts_json_real(value, 0));
        return;
    case TS_JSON_TEXT:
        ts_json_put_text(json, ts_json_text(value, ""));
        return;
    case TS_JSON_LIST:
        ts_json_put_open(json, '[');
        for (int64_t i = 0; i < ts_json_count(value); i++)
            ts_json_put_value(json, ts_json_item(value, i));
        ts_json_put_close(json, ']');
        return;
    case TS_JSON_OBJECT:
        ts_json_put_open(json, '{');
        (void)ts_json_each(value, put_member, json);
        ts_json_put_close(json, '}');
        return;
    }
}

void ts_json_put_member_text(ts_json_writer *json, const char *key, const char *value)
{
    ts_json_put_key(json, key);
    ts_json_put_text(json, value);
}

void ts_json_put_member_int(ts_json_writer *json, const char *key, int64_t value)
{
    ts_json_put_key(json, key);
    ts_json_put_int(json, value);
}

void ts_json_put_member_real(ts_json_writer *json, const char *key, double value)
{
    ts_json_put_key(json, key);
    ts_json_put_real(json, value);
}

void ts_json_put_member_bool(ts_json_writer *json, const char *key, bool value)
{
    ts_json_put_key(json, key);
    ts_json_put_bool(json, value);
}

void ts_json_writer_reset(ts_json_writer *json)
{
    json->length = 0;
    json->comma = json->failed = false;
}

void ts_json_writer_release(ts_json_writer *json)
{
    tsi_text text = text_of(json);
    tsi_text_release(&text);
    *json = (ts_json_writer){ 0 };
}
