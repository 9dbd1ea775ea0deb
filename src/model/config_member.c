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
#include "model/config.h"

/* What stands in the file, for the sentence. */
static void value_text(const tsi_json *value, tsi_text *out)
{
    switch (tsi_json_kind_of(value)) {
    case TSI_JSON_NULL:
        tsi_text_add(out, "null");
        return;
    case TSI_JSON_BOOL:
        tsi_text_add(out, tsi_json_bool(value, false) ? "true" : "false");
        return;
    case TSI_JSON_INT:
        tsi_text_int(out, tsi_json_int(value, 0));
        return;
    case TSI_JSON_REAL:
        tsi_text_real(out, tsi_json_real(value, 0));
        return;
    case TSI_JSON_TEXT:
        tsi_text_json(out, tsi_json_text(value, ""));
        return;
    case TSI_JSON_LIST:
        tsi_text_add(out, "a list");
        return;
    case TSI_JSON_OBJECT:
        tsi_text_add(out, "an object");
        return;
    }
}

void tsi_member_refuse(tsi_members *m, const char *name, const tsi_json *value, const char *wanted)
{
    if (m->status != TS_OK) return;
    tsi_text text = { 0 };
    value_text(value, &text);
    m->status = TSI_FAIL(TS_ERR_ARG, "%s: \"%s\" is %s, expected %s", m->path, name,
                         text.data ? text.data : "something else", wanted);
    tsi_text_release(&text);
}

/* The value of a kind; NULL: absent, null, or refused. */
static const tsi_json *member(tsi_members *m, const char *name, bool good_if_number,
                              tsi_json_kind kind, const char *wanted)
{
    const tsi_json *value = tsi_json_member(m->object, name);
    tsi_json_kind found = tsi_json_kind_of(value);
    if (found == TSI_JSON_NULL) return NULL;
    if (found == kind || (good_if_number && (found == TSI_JSON_INT || found == TSI_JSON_REAL)))
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
    const tsi_json *value = member(m, name, true, TSI_JSON_INT, wanted);
    if (!value) return otherwise;
    int64_t found = tsi_json_int(value, INT64_MIN);
    if (found >= low && found <= high) return found;
    tsi_member_refuse(m, name, value, wanted);
    return otherwise;
}

double tsi_member_real(tsi_members *m, const char *name, double low, double high, double otherwise)
{
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", low, high);
    const tsi_json *value = member(m, name, true, TSI_JSON_REAL, wanted);
    if (!value) return otherwise;
    double found = tsi_json_real(value, (double)NAN);
    if (found >= low && found <= high) return found;
    tsi_member_refuse(m, name, value, wanted);
    return otherwise;
}

bool tsi_member_bool(tsi_members *m, const char *name, bool otherwise)
{
    const tsi_json *value = member(m, name, false, TSI_JSON_BOOL, "true or false");
    return value ? tsi_json_bool(value, otherwise) : otherwise;
}

const char *tsi_member_text(tsi_members *m, const char *name, const char *otherwise)
{
    const tsi_json *value = member(m, name, false, TSI_JSON_TEXT, "a text");
    return value ? tsi_json_text(value, otherwise) : otherwise;
}

const tsi_json *tsi_member_object(tsi_members *m, const char *name)
{
    return member(m, name, false, TSI_JSON_OBJECT, "an object");
}

const tsi_json *tsi_member_list(tsi_members *m, const char *name)
{
    return member(m, name, false, TSI_JSON_LIST, "a list");
}
