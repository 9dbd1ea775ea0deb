/* SPDX-License-Identifier: Apache-2.0 */
/* config_member.c - members of a configuration's objects, each of its kind and within its range.
 *
 * A value that is there but is not what was expected is refused with its key and text, never
 * replaced by a default; null counts as absent. The first refusal is kept, so that a reader looks
 * at the status once. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"
#include "model/model_config.h"

/* What stands in the file, for the sentence. */
static void value_text(const ts_json *value, tsi_text *out)
{
    switch (ts_json_kind_of(value)) {
    case TS_JSON_NULL:
        tsi_text_add(out, "null");
        return;
    case TS_JSON_BOOL:
        tsi_text_add(out, ts_json_bool(value, false) ? "true" : "false");
        return;
    case TS_JSON_INT:
        tsi_text_int(out, ts_json_int(value, 0));
        return;
    case TS_JSON_REAL:
        tsi_text_real(out, ts_json_real(value, 0));
        return;
    case TS_JSON_TEXT:
        tsi_text_json(out, ts_json_text(value, ""));
        return;
    case TS_JSON_LIST:
        tsi_text_add(out, "a list");
        return;
    case TS_JSON_OBJECT:
        tsi_text_add(out, "an object");
        return;
    }
}

void tsi_member_refuse(tsi_members *m, const char *name, const ts_json *value, const char *wanted)
{
    if (m->status != TS_OK) return;
    tsi_text text = { 0 };
    value_text(value, &text);
    m->status = TSI_FAIL(TS_ERR_ARG, "%s: \"%s\" is %s, expected %s", m->path, name,
                         text.data ? text.data : "something else", wanted);
    tsi_text_release(&text);
}

/* The value of a kind; NULL: absent, null, or refused. */
static const ts_json *member(tsi_members *m, const char *name, bool good_if_number,
                             ts_json_kind kind, const char *wanted)
{
    const ts_json *value = ts_json_member(m->object, name);
    ts_json_kind found = ts_json_kind_of(value);
    if (found == TS_JSON_NULL) return NULL;
    if (found == kind || (good_if_number && (found == TS_JSON_INT || found == TS_JSON_REAL)))
        return value;
    tsi_member_refuse(m, name, value, wanted);
    return NULL;
}

int64_t tsi_member_int(tsi_members *m, const char *name, int64_t low, int64_t high,
                       int64_t otherwise)
{
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)low,
             (long long)high);
    const ts_json *value = member(m, name, true, TS_JSON_INT, wanted);
    if (!value) return otherwise;
    int64_t found = ts_json_int(value, INT64_MIN);
    if (found >= low && found <= high) return found;
    tsi_member_refuse(m, name, value, wanted);
    return otherwise;
}

double tsi_member_real(tsi_members *m, const char *name, double low, double high, double otherwise)
{
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", low, high);
    const ts_json *value = member(m, name, true, TS_JSON_REAL, wanted);
    if (!value) return otherwise;
    double found = ts_json_real(value, (double)NAN);
    if (found >= low && found <= high) return found;
    tsi_member_refuse(m, name, value, wanted);
    return otherwise;
}

bool tsi_member_bool(tsi_members *m, const char *name, bool otherwise)
{
    const ts_json *value = member(m, name, false, TS_JSON_BOOL, "true or false");
    return value ? ts_json_bool(value, otherwise) : otherwise;
}

const char *tsi_member_text(tsi_members *m, const char *name, const char *otherwise)
{
    const ts_json *value = member(m, name, false, TS_JSON_TEXT, "a text");
    return value ? ts_json_text(value, otherwise) : otherwise;
}

const ts_json *tsi_member_object(tsi_members *m, const char *name)
{
    return member(m, name, false, TS_JSON_OBJECT, "an object");
}

const ts_json *tsi_member_list(tsi_members *m, const char *name)
{
    return member(m, name, false, TS_JSON_LIST, "a list");
}
