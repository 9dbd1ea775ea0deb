/* SPDX-License-Identifier: Apache-2.0 */
/* json_read.c - the one reader of JSON (RFC 8259). What it refuses is said in tessera/json.h: files
 * of models and requests come from strangers, so nothing is guessed and everything is bounded.
 *
 * A document is an arena of values. A list has its items by index; an object has its members in the
 * text's order and sorted by name, so that finding one among 100,000 is quick.
 *
 * INV: text is read from `at` to `end` alone; it need not end in a zero. */
#include "tessera/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"

enum { DEPTH_MAX = 2048, NUMBER_MAX = 63 };

struct ts_json {
    ts_json_kind kind;
    int32_t reserved;
    int64_t count; /* of a list or object */
    union {
        bool truth;
        int64_t whole;
        double real;
        const char *text;
        const ts_json **item; /* of a list; of an object, sorted by name */
    } is;
    const char *name;      /* of a member */
    ts_json *first, *next; /* members and items in the text's order */
};

struct ts_json_document {
    tsi_arena memory;
    ts_json *root;
};

typedef struct reader {
    const char *what, *start, *at, *end;
    tsi_arena *memory;
    int32_t depth;
    bool no_memory;
    const char *wrong; /* what is wrong at `at` */
} reader;

static bool refuse(reader *r, const char *wrong)
{
    if (!r->wrong) r->wrong = wrong;
    return false;
}

static void *take(reader *r, size_t bytes)
{
    void *memory = tsi_arena_calloc(r->memory, 1, bytes);
    if (!memory) {
        r->no_memory = true;
        (void)refuse(r, "memory ran out");
    }
    return memory;
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool take_char(reader *r, char c)
{
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static bool take_word(reader *r, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return refuse(r, "a value was expected");
    r->at += length;
    return true;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static bool read_hex(reader *r, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = r->at < r->end ? *r->at : 'x';
        int digit = c >= '0' && c <= '9' ? c - '0' : -1;
        if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
        if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
        if (digit < 0) return refuse(r, "four hexadecimal digits were expected");
        *out = *out << 4 | (uint32_t)digit;
        r->at++;
    }
    return true;
}

/* The character after "\u", one or two escapes, as UTF-8. */
static bool read_escaped(reader *r, char **to)
{
    uint32_t code, low;
    if (!read_hex(r, &code)) return false;
    if (code >= 0xDC00 && code <= 0xDFFF) return refuse(r, "a surrogate stands alone");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (!take_char(r, '\\') || !take_char(r, 'u')) return refuse(r, "a surrogate stands alone");
        if (!read_hex(r, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return refuse(r, "a surrogate stands alone");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code == 0) return refuse(r, "\\u0000 is not allowed");
    char *p = *to;
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = { 0, 0xC0, 0xE0, 0xF0 };
    *p++ = (char)(lead[more] | code >> (6 * more));
    while (more-- > 0)
        *p++ = (char)(0x80 | (code >> (6 * more) & 0x3F));
    *to = p;
    return true;
}

static bool read_escape(reader *r, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at : '\0';
    if (c == 'u') {
        r->at++;
        return read_escaped(r, to);
    }
    const char *found = c ? strchr(from, c) : NULL;
    if (!found) return refuse(r, "no such escape");
    *(*to)++ = into[found - from];
    r->at++;
    return true;
}

/* Up to the closing quote; a text is never longer than its source. */
static const char *read_text(reader *r)
{
    if (!take_char(r, '"')) {
        (void)refuse(r, "a text in quotes was expected");
        return NULL;
    }
    const char *close = r->at;
    while (close < r->end && *close != '"')
        close += *close == '\\' && close + 1 < r->end ? 2 : 1;
    char *out = take(r, (size_t)(close - r->at) + 1), *to = out;
    while (out) {
        if (r->at >= r->end) return refuse(r, "a text does not end"), NULL;
        if (take_char(r, '"')) return out;
        if ((unsigned char)*r->at < 0x20) return refuse(r, "a control character in a text"), NULL;
        if (take_char(r, '\\')) {
            if (!read_escape(r, &to)) return NULL;
            continue;
        }
        size_t length = tsi_text_character(r->at, (size_t)(r->end - r->at));
        if (length == 0) return refuse(r, "a text is not UTF-8"), NULL;
        memcpy(to, r->at, length);
        to += length;
        r->at += length;
    }
    return NULL;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static size_t skip_digits(reader *r)
{
    const char *first = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return (size_t)(r->at - first);
}

static bool scan_number(reader *r, bool *whole)
{
    *whole = true;
    (void)take_char(r, '-');
    const char *first = r->at;
    size_t digits = skip_digits(r);
    if (digits == 0) return refuse(r, "a value was expected");
    if (digits > 1 && *first == '0') return refuse(r, "a number begins with 0");
    if (take_char(r, '.')) {
        *whole = false;
        if (skip_digits(r) == 0) return refuse(r, "digits were expected after the point");
    }
    if (take_char(r, 'e') || take_char(r, 'E')) {
        *whole = false;
        if (!take_char(r, '-')) (void)take_char(r, '+');
        if (skip_digits(r) == 0) return refuse(r, "digits were expected in the exponent");
    }
    return true;
}

static bool read_number(reader *r, ts_json *value)
{
    char number[NUMBER_MAX + 1];
    const char *first = r->at;
    bool whole;
    if (!scan_number(r, &whole)) return false;
    size_t length = (size_t)(r->at - first);
    if (length > NUMBER_MAX) return refuse(r, "a number has more than 63 characters");
    memcpy(number, first, length);
    number[length] = '\0';
    if (whole) {
        errno = 0;
        value->kind = TS_JSON_INT;
        value->is.whole = strtoll(number, NULL, 10);
        return errno == 0 || refuse(r, "a whole number does not fit 64 bits");
    }
    tsi_cursor cursor = tsi_cursor_of(r->what, number);
    value->kind = TS_JSON_REAL;
    if (!tsi_cursor_real(&cursor, &value->is.real) || isinf(value->is.real))
        return refuse(r, "a number is too large");
    return true;
}

/* ---- lists and objects ---------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ts_json *const *)a)->name, (*(const ts_json *const *)b)->name);
}

/* The items by index; those of an object sorted, each name once. */
static bool close_container(reader *r, ts_json *value)
{
    if (value->count == 0) return true;
    const ts_json **item = take(r, (size_t)value->count * sizeof *item);
    if (!item) return false;
    int64_t i = 0;
    for (const ts_json *v = value->first; v; v = v->next)
        item[i++] = v;
    value->is.item = item;
    if (value->kind == TS_JSON_LIST) return true;
    qsort(item, (size_t)value->count, sizeof *item, by_name);
    for (i = 1; i < value->count; i++)
        if (strcmp(item[i - 1]->name, item[i]->name) == 0)
            return refuse(r, "an object has a duplicate key");
    return true;
}

static bool read_value(reader *r, ts_json *value);

static bool read_container(reader *r, ts_json *value, char close)
{
    ts_json **last = &value->first;
    if (++r->depth > DEPTH_MAX) return refuse(r, "values lie too deep inside each other");
    skip_blanks(r);
    for (bool more = !take_char(r, close); more; value->count++) {
        ts_json *item = take(r, sizeof *item);
        if (!item) return false;
        skip_blanks(r);
        if (close == '}') {
            item->name = read_text(r);
            if (!item->name) return false;
            skip_blanks(r);
            if (!take_char(r, ':')) return refuse(r, "':' was expected");
        }
        if (!read_value(r, item)) return false;
        *last = item;
        last = &item->next;
        skip_blanks(r);
        more = take_char(r, ',');
        if (!more && !take_char(r, close))
            return refuse(r, close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
    }
    r->depth--;
    return close_container(r, value);
}

static bool read_value(reader *r, ts_json *value)
{
    skip_blanks(r);
    switch (r->at < r->end ? *r->at : '\0') {
    case '{':
        r->at++;
        value->kind = TS_JSON_OBJECT;
        return read_container(r, value, '}');
    case '[':
        r->at++;
        value->kind = TS_JSON_LIST;
        return read_container(r, value, ']');
    case '"':
        value->kind = TS_JSON_TEXT;
        value->is.text = read_text(r);
        return value->is.text != NULL;
    case 'n':
        value->kind = TS_JSON_NULL;
        return take_word(r, "null");
    case 't':
        value->kind = TS_JSON_BOOL;
        value->is.truth = true;
        return take_word(r, "true");
    case 'f':
        value->kind = TS_JSON_BOOL;
        return take_word(r, "false");
    default:
        return read_number(r, value);
    }
}

/* ---- the document --------------------------------------------------------------------------- */

static ts_status fail_at(const reader *r)
{
    int line = 1, column = 1;
    for (const char *p = r->start; p < r->at; p++, column++)
        if (*p == '\n') {
            line++;
            column = 0;
        }
    return TSI_FAIL(TS_ERR_ARG, "%s, line %d, column %d: %s", r->what, line, column, r->wrong);
}

ts_status ts_json_parse(const char *what, const char *text, size_t length, ts_json_document **out)
{
    *out = NULL;
    if (text == NULL) return TSI_FAIL(TS_ERR_NULL, "%s: there is no JSON text", what);
    ts_json_document *document = tsi_calloc(1, sizeof *document);
    if (document == NULL) return tsi_fail_memory(what, sizeof *document);
    static const char order_mark[] = "\xEF\xBB\xBF"; /* some editors begin UTF-8 with it; RFC 8259
                                                         lets readers pass over it */
    if (length >= 3 && memcmp(text, order_mark, 3) == 0) {
        text += 3;
        length -= 3;
    }
    reader r = {
        .what = what, .start = text, .at = text, .end = text + length, .memory = &document->memory
    };
    document->root = take(&r, sizeof *document->root);
    bool good = document->root && read_value(&r, document->root);
    if (good) skip_blanks(&r);
    if (good && r.at < r.end) good = refuse(&r, "the end was expected");
    if (good) {
        *out = document;
        return TS_OK;
    }
    ts_json_release(document);
    return r.no_memory ? tsi_fail_memory(what, length) : fail_at(&r);
}

void ts_json_release(ts_json_document *document)
{
    if (document == NULL) return;
    tsi_arena_release(&document->memory);
    tsi_free(document);
}

const ts_json *ts_json_root(const ts_json_document *document)
{
    return document != NULL ? document->root : NULL;
}

/* ---- values --------------------------------------------------------------------------------- */

static bool is_kind(const ts_json *value, ts_json_kind kind)
{
    return value != NULL && value->kind == kind;
}

ts_json_kind ts_json_kind_of(const ts_json *value)
{
    return value != NULL ? value->kind : TS_JSON_NULL;
}

int64_t ts_json_count(const ts_json *value)
{
    return value != NULL ? value->count : 0;
}

const ts_json *ts_json_item(const ts_json *list, int64_t index)
{
    bool there = is_kind(list, TS_JSON_LIST) && index >= 0 && index < list->count;
    return there ? list->is.item[index] : NULL;
}

const ts_json *ts_json_member(const ts_json *object, const char *name)
{
    if (!is_kind(object, TS_JSON_OBJECT) || object->count == 0) return NULL;
    const ts_json wanted = { .name = name }, *key = &wanted;
    const ts_json **found =
        bsearch(&key, object->is.item, (size_t)object->count, sizeof *found, by_name);
    return found ? *found : NULL;
}

ts_status ts_json_each(const ts_json *object,
                       ts_status (*visit)(const char *name, const ts_json *value, void *context),
                       void *context)
{
    if (!is_kind(object, TS_JSON_OBJECT)) return TS_OK;
    for (const ts_json *v = object->first; v; v = v->next)
        TSI_TRY(visit(v->name, v, context));
    return TS_OK;
}

const char *ts_json_text(const ts_json *value, const char *otherwise)
{
    return is_kind(value, TS_JSON_TEXT) ? value->is.text : otherwise;
}

int64_t ts_json_int(const ts_json *value, int64_t otherwise)
{
    if (is_kind(value, TS_JSON_INT)) return value->is.whole;
    if (!is_kind(value, TS_JSON_REAL)) return otherwise;
    /* "1e9" is a whole number too; 2^53 bounds what a real holds exactly. */
    double real = value->is.real;
    return floor(real) == real && fabs(real) <= 9007199254740992.0 ? (int64_t)real : otherwise;
}

double ts_json_real(const ts_json *value, double otherwise)
{
    if (is_kind(value, TS_JSON_INT)) return (double)value->is.whole;
    return is_kind(value, TS_JSON_REAL) ? value->is.real : otherwise;
}

bool ts_json_bool(const ts_json *value, bool otherwise)
{
    return is_kind(value, TS_JSON_BOOL) ? value->is.truth : otherwise;
}
