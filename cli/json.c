/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - writing JSON into a text that grows. The writer knows only whether a comma is due, so a
 * caller's brackets and keys must pair: the tests parse what comes out. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static void add(cli_json *json, const char *text, size_t length)
{
    if (json->failed) return;
    if (json->length + length + 1 > json->capacity) {
        size_t capacity = json->capacity > 0 ? json->capacity : 256;
        while (capacity < json->length + length + 1)
            capacity *= 2;
        char *data = realloc(json->data, capacity);
        if (data == NULL) {
            json->failed = true;
            return;
        }
        json->data = data;
        json->capacity = capacity;
    }
    memcpy(json->data + json->length, text, length);
    json->length += length;
    json->data[json->length] = '\0';
}

/* Before every value or key: the comma, if something stands before it in the same brackets. */
static void separate(cli_json *json)
{
    if (json->comma) add(json, ", ", 2);
    json->comma = true;
}

static void add_quoted(cli_json *json, const char *value)
{
    add(json, "\"", 1);
    for (const char *c = value; *c != '\0'; c++) {
        unsigned char byte = (unsigned char)*c;
        char escape[8];
        if (byte == '"' || byte == '\\') {
            escape[0] = '\\';
            escape[1] = *c;
            add(json, escape, 2);
        } else if (byte < 0x20) {
            int length = snprintf(escape, sizeof escape, "\\u%04x", (unsigned)byte);
            add(json, escape, (size_t)length);
        } else {
            add(json, c, 1);
        }
    }
    add(json, "\"", 1);
}

void cli_json_open(cli_json *json, char bracket)
{
    separate(json);
    add(json, &bracket, 1);
    json->comma = false;
}

void cli_json_close(cli_json *json, char bracket)
{
    add(json, &bracket, 1);
    json->comma = true;
}

void cli_json_key(cli_json *json, const char *key)
{
    separate(json);
    add_quoted(json, key);
    add(json, ": ", 2);
    json->comma = false;
}

void cli_json_text(cli_json *json, const char *value)
{
    separate(json);
    if (value != NULL)
        add_quoted(json, value);
    else
        add(json, "null", 4);
}

void cli_json_int(cli_json *json, int64_t value)
{
    char text[32];
    int length = snprintf(text, sizeof text, "%lld", (long long)value);
    separate(json);
    add(json, text, (size_t)length);
}

/* Few digits where they suffice, as many as are needed to read the same number back. */
void cli_json_real(cli_json *json, double value)
{
    char text[40] = "null";
    for (int digits = 6; isfinite(value) && digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (digits >= 6 && strtod(text, NULL) == value) break;
    }
    separate(json);
    add(json, text, strlen(text));
}

void cli_json_bool(cli_json *json, bool value)
{
    separate(json);
    add(json, value ? "true" : "false", value ? 4 : 5);
}

void cli_json_ints(cli_json *json, const int64_t *values, int64_t count)
{
    cli_json_open(json, '[');
    for (int64_t i = 0; i < count; i++)
        cli_json_int(json, values[i]);
    cli_json_close(json, ']');
}

void cli_json_raw(cli_json *json, const char *text, size_t length)
{
    if (length == 0) return;
    separate(json);
    add(json, text, length);
}

void cli_json_reset(cli_json *json)
{
    json->length = 0;
    json->comma = json->failed = false;
}

void cli_json_release(cli_json *json)
{
    free(json->data);
    *json = (cli_json){ 0 };
}

int cli_json_print(cli_json *json, FILE *out)
{
    if (json->failed || json->data == NULL) return 1;
    if (fwrite(json->data, 1, json->length, out) != json->length) return 1;
    return fputc('\n', out) == EOF || fflush(out) != 0;
}

void cli_json_member_text(cli_json *json, const char *key, const char *value)
{
    cli_json_key(json, key);
    cli_json_text(json, value);
}

void cli_json_member_int(cli_json *json, const char *key, int64_t value)
{
    cli_json_key(json, key);
    cli_json_int(json, value);
}

void cli_json_member_real(cli_json *json, const char *key, double value)
{
    cli_json_key(json, key);
    cli_json_real(json, value);
}

void cli_json_member_bool(cli_json *json, const char *key, bool value)
{
    cli_json_key(json, key);
    cli_json_bool(json, value);
}
