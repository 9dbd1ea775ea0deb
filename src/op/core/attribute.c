/* SPDX-License-Identifier: Apache-2.0 */
/* attribute.c - attributes of operators by name: as values and as JSON.
 *
 * One table per operator says name, type, place and default; everything here follows it, so a new
 * operator's attributes can be said in calls and requests, printed and documented without a line of
 * code. JSON becomes a ts_attribute first: both say the same and are refused alike.
 * A number that JSON cannot say is a text: "inf", "-inf", "nan", "1+2i"; null is "not given". */
#include "op/core/attribute.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "tessera/json.h"

/* ---- one value ------------------------------------------------------------------------------- */

static ts_status refuse_type(const tsi_op_desc *op, const tsi_attribute *a, const char *expected)
{
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" must be %s", op->name, a->name, expected);
}

/* A whole number that a double would round is refused rather than changed. */
static ts_status set_whole_real(const tsi_op_desc *op, const tsi_attribute *a, int64_t whole,
                                double *out)
{
    *out = (double)whole;
    if (fabs(*out) < 0x1p63 && (int64_t)*out == whole) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: attribute \"%s\" is a double, which cannot hold %" PRId64
                    "; give that number as a tensor (ts_full_number)",
                    op->name, a->name, whole);
}

static ts_status set_real(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                          double *out)
{
    const char *text = said->type == TS_ATTRIBUTE_TEXT && said->text ? said->text : "";
    if (said->type == TS_ATTRIBUTE_INT) return set_whole_real(op, a, said->number.whole, out);
    *out = said->type == TS_ATTRIBUTE_REAL ? said->number.real
           : strcmp(text, "inf") == 0      ? (double)INFINITY
           : strcmp(text, "-inf") == 0     ? -(double)INFINITY
                                           : (double)NAN;
    if (said->type == TS_ATTRIBUTE_REAL || said->type == TS_ATTRIBUTE_NONE || !isnan(*out) ||
        strcmp(text, "nan") == 0)
        return TS_OK;
    return refuse_type(op, a, "a number, \"inf\" or \"-inf\"");
}

/* "1+2i", "-0.5i": the part in front, and one that ends in i. */
static bool complex_of(const char *text, ts_number *out)
{
    tsi_cursor cursor = tsi_cursor_of("number", text);
    double first, second;
    if (!tsi_cursor_real(&cursor, &first)) return false;
    *out = ts_number_complex(0, first);
    if (*cursor.at != 'i') {
        *out = ts_number_complex(first, 0);
        if (*cursor.at != '+' && *cursor.at != '-') return false;
        if (*cursor.at == '+') cursor.at++;
        if (!tsi_cursor_real(&cursor, &second) || *cursor.at != 'i') return false;
        out->imaginary = second;
    }
    return cursor.at[1] == '\0';
}

static ts_status set_number(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                            ts_number *out)
{
    double real;
    bool truth = said->type == TS_ATTRIBUTE_BOOL;
    if (said->type == TS_ATTRIBUTE_INT || said->type == TS_ATTRIBUTE_NUMBER || truth) {
        *out = tsi_number_of(said->number);
        if (out->kind == TS_NUMBER_INT) *out = ts_number_int(out->whole);
        if (out->kind >= TS_NUMBER_INT && out->kind <= TS_NUMBER_COMPLEX) return TS_OK;
        return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\": a number of kind %d is none", op->name,
                        a->name, out->kind);
    }
    if (said->type == TS_ATTRIBUTE_TEXT && said->text && complex_of(said->text, out)) return TS_OK;
    TSI_TRY(set_real(op, a, said, &real));
    *out = tsi_number_real(real);
    return TS_OK;
}

static ts_status set_dims(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                          tsi_dims *out)
{
    *out = (tsi_dims){ .count = -1 };
    if (said->type == TS_ATTRIBUTE_NONE) return TS_OK;
    if (said->type == TS_ATTRIBUTE_INT) {
        out->count = 1;
        out->value[0] = said->number.whole;
        return TS_OK;
    }
    if (said->type != TS_ATTRIBUTE_DIMS || said->dims.ndim > TS_NDIM_MAX)
        return refuse_type(op, a, "a list of at most 8 whole numbers");
    if (said->dims.ndim >= 0) out->count = said->dims.ndim;
    for (int32_t i = 0; i < out->count; i++)
        out->value[i] = said->dims.extent[i];
    return TS_OK;
}

static ts_status set_choice(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                            int32_t *out)
{
    if (said->type != TS_ATTRIBUTE_TEXT || !said->text) return refuse_type(op, a, "a text");
    for (int32_t i = 0; a->choices[i]; i++) {
        *out = i;
        if (strcmp(a->choices[i], said->text) == 0) return TS_OK;
    }
    const char *near = tsi_text_nearest(said->text, a->choices);
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" cannot be \"%s\"; did you mean \"%s\"?",
                    op->name, a->name, said->text, near ? near : a->choices[0]);
}

static ts_status set_dtype(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                           int32_t *out)
{
    *out = TS_DTYPE_NONE;
    if (said->type == TS_ATTRIBUTE_NONE) return TS_OK;
    if (said->type == TS_ATTRIBUTE_DTYPE && said->number.whole < TS_DTYPE_COUNT)
        *out = (int32_t)said->number.whole;
    if (said->type == TS_ATTRIBUTE_TEXT && said->text) *out = (int32_t)ts_dtype_parse(said->text);
    return *out > 0 ? TS_OK : refuse_type(op, a, "a dtype, such as \"bf16\"");
}

static ts_status set_text(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                          char *out)
{
    if (said->type != TS_ATTRIBUTE_TEXT || !said->text || strlen(said->text) >= TSI_ATTRIBUTE_TEXT)
        return refuse_type(op, a, "a text of less than 96 characters");
    memset(out, 0, TSI_ATTRIBUTE_TEXT);
    memcpy(out, said->text, strlen(said->text));
    return TS_OK;
}

static ts_status set_value(const tsi_op_desc *op, const tsi_attribute *a, const ts_attribute *said,
                           void *out)
{
    void *at = (char *)out + a->offset;
    ts_attribute plain = *said;
    if (said->type == TS_ATTRIBUTE_NUMBER && said->number.kind != TS_NUMBER_COMPLEX)
        plain.type = said->number.kind == TS_NUMBER_INT ? TS_ATTRIBUTE_INT : TS_ATTRIBUTE_REAL;
    said = &plain;
    switch (a->type) {
    case TS_ATTRIBUTE_INT:
        if (said->type != TS_ATTRIBUTE_INT) return refuse_type(op, a, "a whole number");
        *(int64_t *)at = said->number.whole;
        return TS_OK;
    case TS_ATTRIBUTE_REAL:
        return set_real(op, a, said, at);
    case TS_ATTRIBUTE_BOOL:
        if (said->type != TS_ATTRIBUTE_BOOL) return refuse_type(op, a, "true or false");
        *(int32_t *)at = said->number.whole != 0;
        return TS_OK;
    case TS_ATTRIBUTE_DIMS:
        return set_dims(op, a, said, at);
    case TS_ATTRIBUTE_DTYPE:
        return set_dtype(op, a, said, at);
    case TS_ATTRIBUTE_CHOICE:
        return set_choice(op, a, said, at);
    case TS_ATTRIBUTE_TEXT:
        return set_text(op, a, said, at);
    case TS_ATTRIBUTE_NUMBER:
        return set_number(op, a, said, at);
    case TS_ATTRIBUTE_NONE:
        break;
    }
    return TS_OK;
}

/* The other way; a text points into `attributes`. */
ts_attribute tsi_attribute_value(const tsi_attribute *a, const void *attributes)
{
    const void *at = (const char *)attributes + a->offset;
    const tsi_dims *dims = at;
    ts_attribute none = ts_attribute_none(a->name);
    switch (a->type) {
    case TS_ATTRIBUTE_INT:
        return ts_attribute_int(a->name, *(const int64_t *)at);
    case TS_ATTRIBUTE_REAL:
        return isnan(*(const double *)at) ? none : ts_attribute_real(a->name, *(const double *)at);
    case TS_ATTRIBUTE_BOOL:
        return ts_attribute_bool(a->name, *(const int32_t *)at);
    case TS_ATTRIBUTE_DIMS:
        none.dims.ndim = dims->count;
        memcpy(none.dims.extent, dims->value, sizeof dims->value);
        return dims->count < 0 ? ts_attribute_none(a->name) : ts_attribute_dims(a->name, none.dims);
    case TS_ATTRIBUTE_DTYPE:
        return *(const int32_t *)at ? ts_attribute_dtype(a->name, (ts_dtype) * (const int32_t *)at)
                                    : none;
    case TS_ATTRIBUTE_CHOICE:
        return ts_attribute_text(a->name, a->choices[*(const int32_t *)at]);
    case TS_ATTRIBUTE_TEXT:
        return ts_attribute_text(a->name, at);
    case TS_ATTRIBUTE_NUMBER:
        return isnan(((const ts_number *)at)->real)
                   ? none
                   : ts_attribute_number(a->name, *(const ts_number *)at);
    case TS_ATTRIBUTE_NONE:
        break;
    }
    return none;
}

/* ---- tables ---------------------------------------------------------------------------------- */

enum { TABLE_MAX = 64 }; /* bits of reading.given */

/* Bytes of the field; 0: of no type. */
static size_t field_bytes(ts_attribute_type type)
{
    switch (type) {
    case TS_ATTRIBUTE_INT:
        return sizeof(int64_t);
    case TS_ATTRIBUTE_REAL:
        return sizeof(double);
    case TS_ATTRIBUTE_BOOL:
    case TS_ATTRIBUTE_DTYPE:
    case TS_ATTRIBUTE_CHOICE:
        return sizeof(int32_t);
    case TS_ATTRIBUTE_DIMS:
        return sizeof(tsi_dims);
    case TS_ATTRIBUTE_TEXT:
        return TSI_ATTRIBUTE_TEXT;
    case TS_ATTRIBUTE_NUMBER:
        return sizeof(ts_number);
    case TS_ATTRIBUTE_NONE:
        break;
    }
    return 0;
}

static size_t field_align(ts_attribute_type type)
{
    size_t bytes = field_bytes(type);
    return type == TS_ATTRIBUTE_TEXT ? 1 : bytes < sizeof(int64_t) ? bytes : sizeof(int64_t);
}

ts_status tsi_attributes_check_table(const tsi_op_desc *op)
{
    for (int32_t i = 0; op->attribute && op->attribute[i].name; i++) {
        const tsi_attribute *a = &op->attribute[i];
        size_t bytes = field_bytes(a->type);
        if (i == TABLE_MAX)
            return TSI_FAIL(TS_ERR_ARG, "%s: its table has more than %d attributes", op->name, i);
        if (bytes == 0)
            return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" has type %d, which is none", op->name,
                            a->name, (int)a->type);
        if (a->offset % field_align(a->type) != 0 || a->offset + bytes > op->attribute_bytes)
            return TSI_FAIL(
                TS_ERR_ARG,
                "%s: attribute \"%s\" takes %zu bytes at offset %u, which is no field of "
                "a struct of %zu bytes",
                op->name, a->name, bytes, a->offset, op->attribute_bytes);
        if (a->type == TS_ATTRIBUTE_CHOICE && (!a->choices || !a->choices[0]))
            return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" has no choices", op->name, a->name);
        for (int32_t k = 0; k < i; k++)
            if (strcmp(op->attribute[k].name, a->name) == 0)
                return TSI_FAIL(TS_ERR_ARG, "%s: its table has \"%s\" twice", op->name, a->name);
    }
    return TS_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static ts_status json_dims(const char *name, const ts_json *list, ts_attribute *out)
{
    int64_t count = ts_json_count(list);
    *out = ts_attribute_dims(name, TS_SHAPE_SCALAR);
    if (count > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_ARG, "attribute \"%s\" must be a list of at most 8 whole numbers",
                        name);
    for (int64_t i = 0; i < count; i++) {
        const ts_json *item = ts_json_item(list, i);
        if (ts_json_kind_of(item) != TS_JSON_INT)
            return TSI_FAIL(TS_ERR_ARG, "attribute \"%s\" must be a list of whole numbers", name);
        out->dims.extent[out->dims.ndim++] = ts_json_int(item, 0);
    }
    return TS_OK;
}

/* What a JSON value says, whatever the attribute wants. */
static ts_status json_value(const char *name, const ts_json *value, ts_attribute *out)
{
    *out = ts_attribute_none(name);
    switch (ts_json_kind_of(value)) {
    case TS_JSON_NULL:
        return TS_OK;
    case TS_JSON_INT:
        *out = ts_attribute_int(name, ts_json_int(value, 0));
        return TS_OK;
    case TS_JSON_REAL:
        *out = ts_attribute_real(name, ts_json_real(value, 0));
        return TS_OK;
    case TS_JSON_BOOL:
        *out = ts_attribute_bool(name, ts_json_bool(value, false));
        return TS_OK;
    case TS_JSON_TEXT:
        *out = ts_attribute_text(name, ts_json_text(value, ""));
        return TS_OK;
    case TS_JSON_LIST:
        return json_dims(name, value, out);
    case TS_JSON_OBJECT:
        break;
    }
    return TSI_FAIL(TS_ERR_ARG, "attribute \"%s\" must not be an object", name);
}

static ts_status set_default(const tsi_op_desc *op, const tsi_attribute *a, void *out)
{
    ts_json_document *document = NULL;
    ts_attribute said;
    TSI_TRY(ts_json_parse(op->name, a->otherwise, strlen(a->otherwise), &document));
    ts_status status = json_value(a->name, ts_json_root(document), &said);
    if (status == TS_OK) status = set_value(op, a, &said, out);
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

static ts_status read_said(reading *r, const ts_attribute *said)
{
    const char *name = own_name(r->op, said->name);
    for (int32_t i = 0; r->op->attribute && r->op->attribute[i].name; i++) {
        const tsi_attribute *a = &r->op->attribute[i];
        if (strcmp(a->name, name) != 0) continue;
        TSI_ASSERT(i < TABLE_MAX);
        if (said->type == TS_ATTRIBUTE_NONE && a->otherwise) return TS_OK;
        r->given |= UINT64_C(1) << i;
        return set_value(r->op, a, said, r->out);
    }
    return refuse_name(r->op, name);
}

static ts_status read_member(const char *name, const ts_json *value, void *context)
{
    reading *r = context;
    ts_attribute said;
    TSI_TRY(json_value(name, value, &said));
    return read_said(r, &said);
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

static ts_status check_required(const reading *r)
{
    const tsi_attribute *a = r->op->attribute;
    for (int32_t i = 0; a && a[i].name; i++)
        if (!a[i].otherwise && !(r->given >> i & 1))
            return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" is required", r->op->name, a[i].name);
    return TS_OK;
}

ts_status tsi_attributes_default(const tsi_op_desc *op, void *out)
{
    if (op->attribute_bytes) memset(out, 0, op->attribute_bytes);
    for (const tsi_attribute *a = op->attribute; a && a->name; a++)
        if (a->otherwise) TSI_TRY(set_default(op, a, out));
    return TS_OK;
}

ts_status tsi_attributes_parse(const tsi_op_desc *op, const char *json, void *out)
{
    reading r = { op, out, 0 };
    TSI_TRY(tsi_attributes_default(op, out));
    if (json && *json) TSI_TRY(read_object(&r, json));
    return check_required(&r);
}

ts_status tsi_attributes_set(const tsi_op_desc *op, const ts_attribute *said, int32_t count,
                             void *out)
{
    reading r = { op, out, 0 };
    for (int32_t i = 0; i < count; i++) {
        if (!said[i].name)
            return TSI_FAIL(TS_ERR_NULL, "%s: attribute %d of %d has no name", op->name, i, count);
        TSI_TRY(read_said(&r, &said[i]));
    }
    return check_required(&r);
}

/* ---- checking -------------------------------------------------------------------------------- */

static const int64_t whole_max = (int64_t)1 << 48;

static bool is_bounded(const tsi_attribute *a)
{
    return strcmp(a->name, "start") != 0 && strcmp(a->name, "end") != 0 &&
           strcmp(a->name, "ignore_index") != 0 && strcmp(a->name, "seed") != 0;
}

static ts_status refuse_size(const tsi_op_desc *op, const tsi_attribute *a, int64_t value)
{
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" is %" PRId64 ", which no tensor is large for",
                    op->name, a->name, value);
}

static ts_status check_choice(const tsi_op_desc *op, const tsi_attribute *a, int32_t value)
{
    int32_t count = 0;
    while (a->choices[count])
        count++;
    if (value >= 0 && value < count) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "%s: attribute \"%s\" is choice %d of %d", op->name, a->name, value,
                    count);
}

ts_status tsi_attributes_check(const tsi_op_desc *op, const void *attributes)
{
    for (const tsi_attribute *a = op->attribute; a && a->name; a++) {
        if (a->type == TS_ATTRIBUTE_CHOICE)
            TSI_TRY(check_choice(op, a, *(const int32_t *)((const char *)attributes + a->offset)));
        if (a->type != TS_ATTRIBUTE_INT && a->type != TS_ATTRIBUTE_DIMS) continue;
        const void *at = (const char *)attributes + a->offset;
        const int64_t *value = a->type == TS_ATTRIBUTE_INT ? at : ((const tsi_dims *)at)->value;
        int64_t count = a->type == TS_ATTRIBUTE_INT ? 1 : ((const tsi_dims *)at)->count;
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

static void write_number(const ts_number *value, tsi_text *text)
{
    if (value->kind == TS_NUMBER_INT)
        tsi_text_printf(text, "%" PRId64, value->whole);
    else if (value->kind == TS_NUMBER_REAL)
        write_real(value->real, text);
    else {
        tsi_text_add(text, "\"");
        tsi_text_real(text, value->real);
        tsi_text_add(text, signbit(value->imaginary) ? "" : "+");
        tsi_text_real(text, value->imaginary);
        tsi_text_add(text, "i\"");
    }
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
    case TS_ATTRIBUTE_INT:
        tsi_text_printf(text, "%" PRId64, *(const int64_t *)at);
        return;
    case TS_ATTRIBUTE_REAL:
        write_real(*(const double *)at, text);
        return;
    case TS_ATTRIBUTE_BOOL:
        tsi_text_add(text, *(const int32_t *)at ? "true" : "false");
        return;
    case TS_ATTRIBUTE_DIMS:
        write_dims(at, text);
        return;
    case TS_ATTRIBUTE_DTYPE:
        tsi_text_json(text, ts_dtype_name((ts_dtype) * (const int32_t *)at));
        return;
    case TS_ATTRIBUTE_CHOICE:
        tsi_text_json(text, a->choices[*(const int32_t *)at]);
        return;
    case TS_ATTRIBUTE_TEXT:
        tsi_text_json(text, at);
        return;
    case TS_ATTRIBUTE_NUMBER:
        write_number(at, text);
        return;
    case TS_ATTRIBUTE_NONE:
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
        if (a->type != TS_ATTRIBUTE_CHOICE) continue;
        for (int32_t c = 0; a->choices[c]; c++)
            tsi_text_printf(text, "%s%s", c ? "|" : " (", a->choices[c]);
        tsi_text_add(text, ")");
    }
}
