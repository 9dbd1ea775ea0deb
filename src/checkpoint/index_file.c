/* SPDX-License-Identifier: Apache-2.0 */
/* index_file.c - index.json: written in one spelling, read strictly. */
#include "checkpoint/index_file.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/digest.h"
#include "tessera/json.h"

#define CHECKSUM_KEY ",\n \"checksum\": \""
enum { DIGITS = 16 };

/* ---- writing --------------------------------------------------------------------------------- */

static void add_hash(tsi_text *out, uint64_t hash)
{
    tsi_text_printf(out, "\"%016llx\"", (unsigned long long)hash);
}

static void add_values(tsi_text *out, const char *key, const tsi_index_value *value, int64_t count)
{
    tsi_text_printf(out, ",\n \"%s\": {", key);
    for (int64_t i = 0; i < count; i++) {
        tsi_text_add(out, i ? ", " : "");
        tsi_text_json(out, value[i].name);
        tsi_text_add(out, ": ");
        tsi_text_json(out, value[i].text);
    }
    tsi_text_add(out, "}");
}

static void add_tensor(tsi_text *out, const tsi_index_tensor *t)
{
    tsi_text_add(out, "{\"name\": ");
    tsi_text_json(out, t->name);
    tsi_text_add(out, ", \"of\": ");
    tsi_text_json(out, t->of);
    tsi_text_add(out, ", \"shape\": [");
    for (int32_t d = 0; d < t->meta.shape.ndim; d++)
        tsi_text_printf(out, "%s%lld", d ? ", " : "", (long long)t->meta.shape.extent[d]);
    tsi_text_printf(out,
                    "], \"dtype\": \"%s\", \"sharding\": ", ts_dtype_name((ts_dtype)t->meta.dtype));
    tsi_text_json(out, t->sharding);
    if (t->mesh) tsi_text_add(out, ", \"mesh\": ");
    if (t->mesh) tsi_text_json(out, t->mesh);
    tsi_text_add(out, ", \"files\": \"" TSI_DATA_PATTERN "\", \"hash\": ");
    add_hash(out, t->hash);
    tsi_text_add(out, "}");
}

char *tsi_index_text(const tsi_index *index, size_t *length)
{
    tsi_text out = { 0 };
    tsi_text_printf(&out,
                    "{\"format\": \"tessera\", \"version\": %d,\n \"save\": ", TSI_INDEX_VERSION);
    add_hash(&out, index->save);
    tsi_text_printf(&out, ", \"step\": %lld, \"mesh\": ", (long long)index->step);
    tsi_text_json(&out, index->mesh);
    tsi_text_printf(&out, ", \"copies\": %lld, \"hash\": ", (long long)index->copies);
    add_hash(&out, index->hash);
    add_values(&out, "values", index->value, index->value_count);
    add_values(&out, "others", index->other, index->other_count);
    tsi_text_add(&out, ",\n \"tensors\": [");
    for (int64_t i = 0; i < index->tensor_count; i++) {
        tsi_text_add(&out, i ? ",\n  " : "\n  ");
        add_tensor(&out, &index->tensor[i]);
    }
    tsi_text_add(&out, "]");
    uint64_t checksum = out.failed ? 0 : tsi_digest_block(out.data, out.length);
    tsi_text_printf(&out, CHECKSUM_KEY "%016llx\"}\n", (unsigned long long)checksum);
    *length = out.length;
    return tsi_text_take(&out);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    tsi_index *index;
    tsi_index_value *value; /* those being read */
    int64_t count;
} reader;

static ts_status refuse(const reader *r, const char *why)
{
    return TSI_FAIL(TS_ERR_IO, "%s: is not an index of a checkpoint: %s", r->path, why);
}

static const char *kept(const reader *r, const char *text)
{
    return text ? tsi_arena_strdup(&r->index->memory, text) : NULL;
}

static bool read_hash(const ts_json *value, uint64_t *out)
{
    const char *text = ts_json_text(value, "");
    if (strlen(text) != DIGITS || strspn(text, "0123456789abcdef") != DIGITS) return false;
    unsigned long long number = 0;
    sscanf(text, "%16llx", &number);
    *out = number;
    return true;
}

static ts_status read_value(const char *name, const ts_json *value, void *context)
{
    reader *r = context;
    tsi_index_value *v = &r->value[r->count++];
    v->name = kept(r, name);
    v->text = kept(r, ts_json_text(value, NULL));
    return v->name && v->text ? TS_OK : refuse(r, "a value is not a text");
}

static ts_status read_values(reader *r, const ts_json *object, tsi_index_value **out,
                             int64_t *count)
{
    if (ts_json_kind_of(object) != TS_JSON_OBJECT) return refuse(r, "values are missing");
    size_t bytes = ((size_t)ts_json_count(object) + 1) * sizeof **out;
    *out = r->value = tsi_arena_alloc(&r->index->memory, bytes);
    if (!*out) return tsi_fail_memory("the values of a checkpoint", bytes);
    r->count = 0;
    ts_status status = ts_json_each(object, read_value, r);
    *count = r->count;
    return status;
}

static ts_status read_shape(const reader *r, const ts_json *shape, ts_shape *out)
{
    int64_t ndim = ts_json_count(shape);
    if (ts_json_kind_of(shape) != TS_JSON_LIST || ndim > TS_NDIM_MAX)
        return refuse(r, "a shape is not a list of at most 8 extents");
    *out = (ts_shape){ .ndim = (int32_t)ndim };
    for (int32_t d = 0; d < ndim; d++) {
        out->extent[d] = ts_json_int(ts_json_item(shape, d), -1);
        if (out->extent[d] < 0) return refuse(r, "an extent is not a whole number");
    }
    return ts_shape_count(out) >= 0 ? TS_OK : refuse(r, "a shape has too many elements");
}

static ts_status read_tensor(const reader *r, const ts_json *entry, tsi_index_tensor *t)
{
    t->name = kept(r, ts_json_text(ts_json_member(entry, "name"), NULL));
    t->of = kept(r, ts_json_text(ts_json_member(entry, "of"), ""));
    t->sharding = kept(r, ts_json_text(ts_json_member(entry, "sharding"), NULL));
    t->mesh = kept(r, ts_json_text(ts_json_member(entry, "mesh"), NULL));
    if (!t->name || !t->of || !t->sharding) return refuse(r, "a tensor has no name or sharding");
    t->meta.dtype = (int32_t)ts_dtype_parse(ts_json_text(ts_json_member(entry, "dtype"), "none"));
    if (t->meta.dtype == TS_DTYPE_NONE) return refuse(r, "a dtype is unknown");
    if (!read_hash(ts_json_member(entry, "hash"), &t->hash))
        return refuse(r, "a tensor has no hash");
    return read_shape(r, ts_json_member(entry, "shape"), &t->meta.shape);
}

static ts_status read_tensors(const reader *r, const ts_json *list)
{
    tsi_index *index = r->index;
    if (ts_json_kind_of(list) != TS_JSON_LIST) return refuse(r, "it lists no tensors");
    size_t bytes = ((size_t)ts_json_count(list) + 1) * sizeof *index->tensor;
    index->tensor = tsi_arena_alloc(&index->memory, bytes);
    if (!index->tensor) return tsi_fail_memory("the tensors of a checkpoint", bytes);
    memset(index->tensor, 0, bytes);
    for (int64_t i = 0; i < ts_json_count(list); i++)
        TSI_TRY(read_tensor(r, ts_json_item(list, i), &index->tensor[index->tensor_count++]));
    return TS_OK;
}

static ts_status read_root(reader *r, const ts_json *root)
{
    tsi_index *index = r->index;
    if (strcmp(ts_json_text(ts_json_member(root, "format"), ""), "tessera") != 0)
        return refuse(r, "its format is not tessera");
    int64_t version = ts_json_int(ts_json_member(root, "version"), 0);
    if (version != TSI_INDEX_VERSION)
        return TSI_FAIL(TS_ERR_IO, "%s: has version %lld of the format, this is version %d",
                        r->path, (long long)version, TSI_INDEX_VERSION);
    index->step = ts_json_int(ts_json_member(root, "step"), -1);
    index->copies = ts_json_int(ts_json_member(root, "copies"), 0);
    index->mesh = kept(r, ts_json_text(ts_json_member(root, "mesh"), NULL));
    if (index->step < 0 || index->copies < 1 || !index->mesh ||
        !read_hash(ts_json_member(root, "save"), &index->save) ||
        !read_hash(ts_json_member(root, "hash"), &index->hash))
        return refuse(r, "its head is incomplete");
    TSI_TRY(read_values(r, ts_json_member(root, "values"), &index->value, &index->value_count));
    TSI_TRY(read_values(r, ts_json_member(root, "others"), &index->other, &index->other_count));
    return read_tensors(r, ts_json_member(root, "tensors"));
}

/* Is the end what a writer puts there, with the checksum of all before it? */
static bool is_whole(const char *text, size_t length)
{
    enum { KEY = sizeof CHECKSUM_KEY - 1, TAIL = KEY + DIGITS + 3 };
    char want[TAIL + 1];
    if (length < TAIL) return false;
    snprintf(want, sizeof want, CHECKSUM_KEY "%016llx\"}\n",
             (unsigned long long)tsi_digest_block(text, length - TAIL));
    return memcmp(text + length - TAIL, want, TAIL) == 0;
}

ts_status tsi_index_parse(const char *path, const char *text, size_t length, tsi_index *out)
{
    *out = (tsi_index){ 0 };
    if (!is_whole(text, length))
        return TSI_FAIL(TS_ERR_IO, "%s: is damaged: the checksum does not fit", path);
    ts_json_document *document = NULL;
    TSI_TRY(ts_json_parse(path, text, length, &document));
    reader r = { .path = path, .index = out };
    ts_status status = read_root(&r, ts_json_root(document));
    ts_json_release(document);
    return status;
}

void tsi_index_release(tsi_index *index)
{
    tsi_arena_release(&index->memory);
    *index = (tsi_index){ 0 };
}

const char *tsi_index_value_of(const tsi_index *index, const char *name)
{
    for (int64_t i = 0; i < index->value_count; i++)
        if (strcmp(index->value[i].name, name) == 0) return index->value[i].text;
    return NULL;
}
