/* SPDX-License-Identifier: Apache-2.0 */
/* attribute.c - attributes of operators as JSON.
 *
 * One table per operator says name, type, place and default; everything here follows it, so a new
 * operator's attributes can be said in requests, printed and documented without a line of code.
 * A real that JSON cannot say is a text: "inf", "-inf", "nan"; null is "not given". */
#include "op/core/attribute.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "tessera/json.h"

/* ---- reading --------------------------------------------------------------------------------- */

static ts_status refuse_type(const tsi_op_desc *op, const tsi_attribute *a, const char *expected)
{
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" must be %s", op->name, a->name, expected);
}

static ts_status set_real(const tsi_op_desc *op, const tsi_attribute *a, const ts_json *value,
                          double *out)
{
    const char *text = ts_json_text(value, "");
    switch (ts_json_kind_of(value)) {
    case TS_JSON_INT:
    case TS_JSON_REAL:
        *out = ts_json_real(value, 0);
        return TS_OK;
    case TS_JSON_NULL:
        *out = (double)NAN;
        return TS_OK;
    case TS_JSON_TEXT:
        *out = strcmp(text, "inf") == 0    ? (double)INFINITY
               : strcmp(text, "-inf") == 0 ? -(double)INFINITY
                                           : (double)NAN;
        if (!isnan(*out) || strcmp(text, "nan") == 0) return TS_OK;
        break;
    case TS_JSON_BOOL:
    case TS_JSON_LIST:
    case TS_JSON_OBJECT:
        break;
    }
    return refuse_type(op, a, "a number, \"inf\" or \"-inf\"");
}

static ts_status set_dims(const tsi_op_desc *op, const tsi_attribute *a, const ts_json *value,
                          tsi_dims *out)
{
    *out = (tsi_dims){ 0 };
    ts_json_kind kind = ts_json_kind_of(value);
    if (kind == TS_JSON_NULL) out->count = -1;
    if (kind == TS_JSON_INT) {
        out->count = 1;
        out->value[0] = ts_json_int(value, 0);
    }
    if (kind == TS_JSON_NULL || kind == TS_JSON_INT) return TS_OK;
    int64_t count = ts_json_count(value);
    if (kind != TS_JSON_LIST || count > TS_NDIM_MAX)
        return refuse_type(op, a, "a list of at most 8 whole numbers");
    for (int64_t i = 0; i < count; i++) {
        const ts_json *item = ts_json_item(value, i);
        if (ts_json_kind_of(item) != TS_JSON_INT)
            return refuse_type(op, a, "a list of whole numbers");
        out->value[out->count++] = ts_json_int(item, 0);
    }
    return TS_OK;
}

static ts_status set_choice(const tsi_op_desc *op, const tsi_attribute *a, const ts_json *value,
                            int32_t *out)
{
    const char *text = ts_json_text(value, NULL);
    if (!text) return refuse_type(op, a, "a text");
    for (int32_t i = 0; a->choices[i]; i++) {
        *out = i;
        if (strcmp(a->choices[i], text) == 0) return TS_OK;
    }
    const char *near = tsi_text_nearest(text, a->choices);
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" cannot be \"%s\"; did you mean \"%s\"?",
                    op->name, a->name, text, near ? near : a->choices[0]);
}

static ts_status set_dtype(const tsi_op_desc *op, const tsi_attribute *a, const ts_json *value,
                           int32_t *out)
{
    const char *text = ts_json_text(value, NULL);
    *out = TS_DTYPE_NONE;
    if (!text && ts_json_kind_of(value) == TS_JSON_NULL) return TS_OK;
    if (text) *out = (int32_t)ts_dtype_parse(text);
    return *out ? TS_OK : refuse_type(op, a, "a dtype, such as \"bf16\"");
}

static ts_status set_value(const tsi_op_desc *op, const tsi_attribute *a, const ts_json *value,
                           void *out)
{
    ts_json_kind kind = ts_json_kind_of(value);
    void *at = (char *)out + a->offset;
    const char *text;
    switch (a->type) {
    case TSI_ATTR_INT:
        if (kind != TS_JSON_INT) return refuse_type(op, a, "a whole number");
        *(int64_t *)at = ts_json_int(value, 0);
        return TS_OK;
    case TSI_ATTR_REAL:
        return set_real(op, a, value, at);
    case TSI_ATTR_BOOL:
        if (kind != TS_JSON_BOOL) return refuse_type(op, a, "true or false");
        *(int32_t *)at = ts_json_bool(value, false);
        return TS_OK;
    case TSI_ATTR_DIMS:
        return set_dims(op, a, value, at);
    case TSI_ATTR_DTYPE:
        return set_dtype(op, a, value, at);
    case TSI_ATTR_CHOICE:
        return set_choice(op, a, value, at);
    case TSI_ATTR_TEXT:
        text = ts_json_text(value, NULL);
        if (!text || strlen(text) >= TSI_ATTRIBUTE_TEXT)
            return refuse_type(op, a, "a text of less than 96 characters");
        memset(at, 0, TSI_ATTRIBUTE_TEXT);
        memcpy(at, text, strlen(text));
        return TS_OK;
    }
    return TS_OK;
}

static ts_status set_default(const tsi_op_desc *op, const tsi_attribute *a, void *out)
{
    ts_json_document *document = NULL;
    TSI_TRY(ts_json_parse(op->name, a->otherwise, strlen(a->otherwise), &document));
    ts_status status = set_value(op, a, ts_json_root(document), out);
    ts_json_release(document);
    return status;
}

typedef struct reading {
    const tsi_op_desc *op;
    void *out;
    uint64_t given; /* bit i: attribute i of the table was said */
} reading;

static ts_status refuse_name(const tsi_op_desc *op, const char *name)
{
    const char *names[64] = { NULL };
    for (int32_t i = 0; op->attribute && op->attribute[i].name && i < 63; i++)
        names[i] = op->attribute[i].name;
    const char *near = tsi_text_nearest(name, names);
    if (!names[0])
        return TSI_FAIL(TS_ERR_ARG, "%s: has no attributes, \"%s\" was given", op->name, name);
    return TSI_FAIL(TS_ERR_ARG, "%s: there is no attribute \"%s\"%s%s%s", op->name, name,
                    near ? "; did you mean \"" : "; the first is \"", near ? near : names[0],
                    near ? "\"?" : "\"");
}

/* Other names of attributes, where an operator has none of that name. */
static const char *const aliases[][2] = {
    { "axis", "dim" },
    { "axis0", "dim0" },
    { "axis1", "dim1" },
    { "dim", "dims" },
    { "is_causal", "causal" },
    { "normalized_shape", "normalized" },
    { "ord", "p" },
    { "size", "shape" },
    { "sizes", "shape" },
    { "keepdims", "keepdim" },
};

static bool has_attribute(const tsi_op_desc *op, const char *name)
{
    for (int32_t i = 0; op->attribute && op->attribute[i].name; i++)
        if (strcmp(op->attribute[i].name, name) == 0) return true;
    return false;
}

static const char *own_name(const tsi_op_desc *op, const char *name)
{
    for (size_t i = 0; i < TSI_COUNT_OF(aliases) && !has_attribute(op, name); i++)
        if (strcmp(aliases[i][0], name) == 0 && has_attribute(op, aliases[i][1]))
            return aliases[i][1];
    return name;
}

static ts_status read_member(const char *said, const ts_json *value, void *context)
{
    reading *r = context;
    const char *name = own_name(r->op, said);
    for (int32_t i = 0; r->op->attribute && r->op->attribute[i].name; i++) {
        const tsi_attribute *a = &r->op->attribute[i];
        if (strcmp(a->name, name) != 0) continue;
        if (ts_json_kind_of(value) == TS_JSON_NULL && a->otherwise) return TS_OK;
        r->given |= UINT64_C(1) << (i & 63);
        return set_value(r->op, a, value, r->out);
    }
    return refuse_name(r->op, name);
}

static ts_status read_object(reading *r, const char *json)
{
    ts_json_document *document = NULL;
    TSI_TRY(ts_json_parse("attributes", json, strlen(json), &document));
    ts_status status = TS_OK;
    if (ts_json_kind_of(ts_json_root(document)) == TS_JSON_OBJECT)
        status = ts_json_each(ts_json_root(document), read_member, r);
    else
        status = TSI_FAIL(TS_ERR_ARG, "%s: attributes are a JSON object", r->op->name);
    ts_json_release(document);
    return status;
}

ts_status tsi_attributes_parse(const tsi_op_desc *op, const char *json, void *out)
{
    reading r = { op, out, 0 };
    if (op->attribute_bytes) memset(out, 0, op->attribute_bytes);
    for (int32_t i = 0; op->attribute && op->attribute[i].name; i++)
        if (op->attribute[i].otherwise) TSI_TRY(set_default(op, &op->attribute[i], out));
    if (json && *json) TSI_TRY(read_object(&r, json));
    for (int32_t i = 0; op->attribute && op->attribute[i].name; i++)
        if (!op->attribute[i].otherwise && !(r.given >> (i & 63) & 1))
            return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" is required", op->name,
                            op->attribute[i].name);
    return TS_OK;
}

/* ---- checking -------------------------------------------------------------------------------- */

static const int64_t whole_max = (int64_t)1 << 48;

static bool is_bounded(const tsi_attribute *a)
{
    return strcmp(a->name, "start") != 0 && strcmp(a->name, "end") != 0 &&
           strcmp(a->name, "ignore_index") != 0;
}

static ts_status refuse_size(const tsi_op_desc *op, const tsi_attribute *a, int64_t value)
{
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" is %" PRId64 ", which no tensor is large for",
                    op->name, a->name, value);
}

ts_status tsi_attributes_check(const tsi_op_desc *op, const void *attributes)
{
    for (const tsi_attribute *a = op->attribute; a && a->name; a++) {
        if (a->type != TSI_ATTR_INT && a->type != TSI_ATTR_DIMS) continue;
        const void *at = (const char *)attributes + a->offset;
        const int64_t *value = a->type == TSI_ATTR_INT ? at : ((const tsi_dims *)at)->value;
        int64_t count = a->type == TSI_ATTR_INT ? 1 : ((const tsi_dims *)at)->count;
        if (count > TS_NDIM_MAX)
            return TSI_FAIL(TS_ERR_ARG,
                            "%s: attribute \"%s\" has %" PRId64 " numbers, 8 are possible",
                            op->name, a->name, count);
        for (int64_t i = 0; i < count && is_bounded(a); i++)
            if (value[i] > whole_max || value[i] < -whole_max) return refuse_size(op, a, value[i]);
    }
    return TS_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_real(double value, tsi_text *text)
{
    if (isinf(value))
        tsi_text_add(text, value > 0 ? "\"inf\"" : "\"-inf\"");
    else
        tsi_text_real(text, value);
}

static void write_dims(const tsi_dims *dims, tsi_text *text)
{
    if (dims->count < 0) {
        tsi_text_add(text, "null");
        return;
    }
    tsi_text_add(text, "[");
    for (int32_t i = 0; i < dims->count; i++)
        tsi_text_printf(text, "%s%" PRId64, i ? ", " : "", dims->value[i]);
    tsi_text_add(text, "]");
}

static void write_value(const tsi_attribute *a, const void *attributes, tsi_text *text)
{
    const void *at = (const char *)attributes + a->offset;
    switch (a->type) {
    case TSI_ATTR_INT:
        tsi_text_printf(text, "%" PRId64, *(const int64_t *)at);
        return;
    case TSI_ATTR_REAL:
        write_real(*(const double *)at, text);
        return;
    case TSI_ATTR_BOOL:
        tsi_text_add(text, *(const int32_t *)at ? "true" : "false");
        return;
    case TSI_ATTR_DIMS:
        write_dims(at, text);
        return;
    case TSI_ATTR_DTYPE:
        tsi_text_json(text, ts_dtype_name((ts_dtype) * (const int32_t *)at));
        return;
    case TSI_ATTR_CHOICE:
        tsi_text_json(text, a->choices[*(const int32_t *)at]);
        return;
    case TSI_ATTR_TEXT:
        tsi_text_json(text, at);
        return;
    }
}

void tsi_attributes_json(const tsi_op_desc *op, const void *attributes, tsi_text *text)
{
    tsi_text_add(text, "{");
    for (int32_t i = 0; op->attribute && op->attribute[i].name; i++) {
        tsi_text_printf(text, "%s\"%s\": ", i ? ", " : "", op->attribute[i].name);
        write_value(&op->attribute[i], attributes, text);
    }
    tsi_text_add(text, "}");
}

void tsi_attributes_words(const tsi_op_desc *op, tsi_text *text)
{
    for (int32_t i = 0; op->attribute && op->attribute[i].name; i++) {
        const tsi_attribute *a = &op->attribute[i];
        tsi_text_printf(text, "%s%s", i ? ", " : "", a->name);
        if (a->otherwise) tsi_text_printf(text, "=%s", a->otherwise);
        if (a->type != TSI_ATTR_CHOICE) continue;
        for (int32_t c = 0; a->choices[c]; c++)
            tsi_text_printf(text, "%s%s", c ? "|" : " (", a->choices[c]);
        tsi_text_add(text, ")");
    }
}
