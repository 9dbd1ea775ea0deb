/* SPDX-License-Identifier: Apache-2.0 */
/* torch_file.c - finding the members of an archive: see torch_file.h. */
#include "checkpoint/torch_file.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

enum {
    END_BYTES = 22,     /* the last record, */
    LOCATOR_BYTES = 20, /* before it: where the long one lies, */
    LONG_END_BYTES = 56,
    MEMBER_BYTES = 46, /* of the list, without name and additions */
    LOCAL_BYTES = 30,  /* before a member's own bytes, without the same */
    LIST_MAX = 1 << 20,
    PICKLE_MAX = 1 << 24,
    DEPTH_MAX = 32
};
enum { END_SIGN = 0x06054b50, LOCATOR_SIGN = 0x07064b50, LONG_END_SIGN = 0x06064b50 };
enum { MEMBER_SIGN = 0x02014b50, LOCAL_SIGN = 0x04034b50, LONG_FIELD = 1 };

typedef struct member {
    int64_t begin, bytes; /* of its data, in the file */
} member;

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t number_at(const unsigned char *at, size_t bytes)
{
    uint64_t number = 0;
    for (size_t i = bytes; i > 0; i--)
        number = number << 8 | at[i - 1];
    return number;
}

static ts_status refuse(const tsi_torch_file *f, const char *why)
{
    return TSI_FAIL(TS_ERR_IO, "%s: the archive at byte %lld: %s", f->path, (long long)f->begin,
                    why);
}

/* Bytes of the archive, all inside of it. */
static ts_status read_at(const tsi_torch_file *f, uint64_t offset, void *to, size_t bytes)
{
    size_t done = 0;
    if (bytes > (uint64_t)f->bytes || offset > (uint64_t)f->bytes - bytes)
        return refuse(f, "it ends too early");
    TSI_TRY(tsi_file_read_at(f->path, f->fd, f->begin + (int64_t)offset, to, bytes, &done));
    return done == bytes ? TS_OK : refuse(f, "the file ends too early");
}

/* ---- the list of members --------------------------------------------------------------------- */

/* Where the list lies, by the last record or, where its numbers are too short, the long one. */
static ts_status find_list(const tsi_torch_file *f, uint64_t *begin, uint64_t *bytes)
{
    unsigned char end[LOCATOR_BYTES + END_BYTES], more[LONG_END_BYTES];
    const unsigned char *last = end + LOCATOR_BYTES;
    if (f->bytes < (int64_t)sizeof end) return refuse(f, "it is too short");
    TSI_TRY(read_at(f, (uint64_t)f->bytes - sizeof end, end, sizeof end));
    if (number_at(last, 4) != END_SIGN) return refuse(f, "it is none, or something follows it");
    *bytes = number_at(last + 12, 4);
    *begin = number_at(last + 16, 4);
    if (*begin != UINT32_MAX && *bytes != UINT32_MAX) return TS_OK;
    if (number_at(end, 4) != LOCATOR_SIGN) return refuse(f, "the place of its list is missing");
    TSI_TRY(read_at(f, number_at(end + 8, 8), more, sizeof more));
    if (number_at(more, 4) != LONG_END_SIGN) return refuse(f, "the place of its list is damaged");
    *bytes = number_at(more + 40, 8);
    *begin = number_at(more + 48, 8);
    return TS_OK;
}

ts_status tsi_torch_open(const char *path, int fd, int64_t begin, int64_t bytes,
                         tsi_torch_file *out)
{
    *out = (tsi_torch_file){ .path = path, .fd = fd, .begin = begin, .bytes = bytes };
    uint64_t list_begin = 0, list_bytes = 0;
    TSI_TRY(find_list(out, &list_begin, &list_bytes));
    if (list_bytes > LIST_MAX) return refuse(out, "its list of members is too long");
    out->list = tsi_alloc((size_t)list_bytes + 1);
    if (!out->list) return tsi_fail_memory("the members of an archive", (size_t)list_bytes);
    out->list_bytes = (size_t)list_bytes;
    ts_status status = read_at(out, list_begin, out->list, out->list_bytes);
    if (status != TS_OK) tsi_torch_close(out);
    return status;
}

void tsi_torch_close(tsi_torch_file *f)
{
    tsi_free(f->list);
    f->list = NULL;
}

/* Numbers that do not fit their 32 bits stand, in this order, in an addition to the record. */
static bool long_numbers(const unsigned char *more, size_t bytes, uint64_t **wanted)
{
    for (size_t at = 0; at + 4 <= bytes;) {
        size_t length = (size_t)number_at(more + at + 2, 2), from = at + 4;
        if (length > bytes - from) return false;
        if (number_at(more + at, 2) == LONG_FIELD) {
            for (; *wanted && length >= 8; wanted++, from += 8, length -= 8)
                **wanted = number_at(more + from, 8);
            return *wanted == NULL;
        }
        at = from + length;
    }
    return *wanted == NULL;
}

/* The place of a member's data, which begins behind a record of its own. */
static ts_status place_of(const tsi_torch_file *f, const unsigned char *record, size_t name_bytes,
                          size_t more_bytes, member *out)
{
    unsigned char local[LOCAL_BYTES];
    uint64_t bytes = number_at(record + 24, 4), stored = number_at(record + 20, 4),
             begin = number_at(record + 42, 4);
    uint64_t *wanted[4] = { NULL };
    int count = 0;
    if (bytes == UINT32_MAX) wanted[count++] = &bytes;
    if (stored == UINT32_MAX) wanted[count++] = &stored;
    if (begin == UINT32_MAX) wanted[count++] = &begin;
    if (!long_numbers(record + MEMBER_BYTES + name_bytes, more_bytes, wanted))
        return refuse(f, "the size of a member is damaged");
    if (number_at(record + 10, 2) != 0 || number_at(record + 8, 2) & 1 || stored != bytes)
        return refuse(f, "a member is compressed or encrypted");
    TSI_TRY(read_at(f, begin, local, sizeof local));
    if (number_at(local, 4) != LOCAL_SIGN) return refuse(f, "a member is not where the list says");
    /* The sum cannot overflow: begin lies inside the archive, and the rest is below 2^18. */
    begin += LOCAL_BYTES + number_at(local + 26, 2) + number_at(local + 28, 2);
    if (bytes > (uint64_t)f->bytes || begin > (uint64_t)f->bytes - bytes)
        return refuse(f, "a member lies outside of it");
    *out = (member){ f->begin + (int64_t)begin, (int64_t)bytes };
    return TS_OK;
}

/* Names in the archive stand below one directory, whatever that is called. */
static ts_status find_member(const tsi_torch_file *f, const char *name, member *out, bool *found)
{
    *found = false;
    for (size_t at = 0; at < f->list_bytes;) {
        const unsigned char *record = f->list + at;
        size_t left = f->list_bytes - at;
        if (left < MEMBER_BYTES || number_at(record, 4) != MEMBER_SIGN)
            return refuse(f, "its list of members is damaged");
        size_t name_bytes = (size_t)number_at(record + 28, 2),
               more_bytes = (size_t)number_at(record + 30, 2);
        size_t all = MEMBER_BYTES + name_bytes + more_bytes + (size_t)number_at(record + 32, 2);
        if (all > left) return refuse(f, "its list of members is damaged");
        const unsigned char *text = record + MEMBER_BYTES, *slash = memchr(text, '/', name_bytes);
        size_t rest = slash ? name_bytes - (size_t)(slash + 1 - text) : 0;
        if (slash && rest == strlen(name) && memcmp(slash + 1, name, rest) == 0) {
            *found = true;
            return place_of(f, record, name_bytes, more_bytes, out);
        }
        at += all;
    }
    return TS_OK;
}

/* A member that must be there and is short, in memory that the caller frees. */
static ts_status read_member(const tsi_torch_file *f, const char *name, size_t most, member *place,
                             char **out)
{
    bool found = false;
    *out = NULL;
    TSI_TRY(find_member(f, name, place, &found));
    if (!found)
        return TSI_FAIL(TS_ERR_IO, "%s: the archive at byte %lld has no %s", f->path,
                        (long long)f->begin, name);
    if (place->bytes > (int64_t)most) return refuse(f, "a description is too long");
    char *data = tsi_alloc((size_t)place->bytes + 1);
    if (!data) return tsi_fail_memory("a member of an archive", (size_t)place->bytes);
    ts_status status = read_at(f, (uint64_t)(place->begin - f->begin), data, (size_t)place->bytes);
    if (status == TS_OK)
        *out = data;
    else
        tsi_free(data);
    return status;
}

/* Data is little-endian unless the archive says otherwise. */
static ts_status check_order(const tsi_torch_file *f)
{
    member place;
    char *order = NULL;
    bool found = false;
    TSI_TRY(find_member(f, "byteorder", &place, &found));
    if (!found) return TS_OK;
    TSI_TRY(read_member(f, "byteorder", 64, &place, &order));
    bool little = place.bytes == 6 && memcmp(order, "little", 6) == 0;
    tsi_free(order);
    return little ? TS_OK : refuse(f, "its bytes are not in little-endian order");
}

/* ---- what it is ------------------------------------------------------------------------------ */

#define TORCH "torch."
static const struct {
    const char *name, *storage; /* of numbers, and of memory that has such numbers */
    ts_dtype dtype;
    tsi_float8 float8;
} dtypes[] = {
    { TORCH "float64", TORCH "DoubleStorage", TS_DTYPE_F64, TSI_FLOAT8_NONE },
    { TORCH "float32", TORCH "FloatStorage", TS_DTYPE_F32, TSI_FLOAT8_NONE },
    { TORCH "bfloat16", TORCH "BFloat16Storage", TS_DTYPE_BF16, TSI_FLOAT8_NONE },
    { TORCH "float16", TORCH "HalfStorage", TS_DTYPE_F16, TSI_FLOAT8_NONE },
    { TORCH "int64", TORCH "LongStorage", TS_DTYPE_I64, TSI_FLOAT8_NONE },
    { TORCH "int32", TORCH "IntStorage", TS_DTYPE_I32, TSI_FLOAT8_NONE },
    { TORCH "int16", TORCH "ShortStorage", TS_DTYPE_I16, TSI_FLOAT8_NONE },
    { TORCH "int8", TORCH "CharStorage", TS_DTYPE_I8, TSI_FLOAT8_NONE },
    { TORCH "uint8", TORCH "ByteStorage", TS_DTYPE_U8, TSI_FLOAT8_NONE },
    { TORCH "bool", TORCH "BoolStorage", TS_DTYPE_BOOL, TSI_FLOAT8_NONE },
    { TORCH "complex64", TORCH "ComplexFloatStorage", TS_DTYPE_C64, TSI_FLOAT8_NONE },
    { TORCH "complex128", TORCH "ComplexDoubleStorage", TS_DTYPE_C128, TSI_FLOAT8_NONE },
    { TORCH "float8_e4m3fn", TORCH "Float8_e4m3fnStorage", TS_DTYPE_U8, TSI_FLOAT8_E4M3 },
    { TORCH "float8_e5m2", TORCH "Float8_e5m2Storage", TS_DTYPE_U8, TSI_FLOAT8_E5M2 },
};

/* What the pickle of a tensor names: how it is made again, and of which memory. */
static const char *const tensor_names[] = { "torch._utils._rebuild_tensor_v2",
                                            "torch._utils._rebuild_tensor_v3",
                                            "torch._utils._rebuild_parameter",
                                            "collections.OrderedDict",
                                            "torch.storage.UntypedStorage",
                                            "torch.DoubleStorage",
                                            "torch.FloatStorage",
                                            "torch.BFloat16Storage",
                                            "torch.HalfStorage",
                                            "torch.LongStorage",
                                            "torch.IntStorage",
                                            "torch.ShortStorage",
                                            "torch.CharStorage",
                                            "torch.ByteStorage",
                                            "torch.BoolStorage",
                                            "torch.ComplexFloatStorage",
                                            "torch.ComplexDoubleStorage",
                                            "torch.Float8_e4m3fnStorage",
                                            "torch.Float8_e5m2Storage",
                                            "torch.float8_e4m3fn",
                                            "torch.float8_e5m2",
                                            NULL };

ts_dtype tsi_torch_dtype(const char *name, int32_t *float8)
{
    *float8 = TSI_FLOAT8_NONE;
    for (size_t i = 0; name && i < TSI_COUNT_OF(dtypes); i++) {
        if (strcmp(name, dtypes[i].name) != 0 && strcmp(name, dtypes[i].storage) != 0) continue;
        *float8 = (int32_t)dtypes[i].float8;
        return dtypes[i].dtype;
    }
    return TS_DTYPE_NONE;
}

/* Extents, or strides: whole numbers from 0 on. */
static bool read_extents(const tsi_pickled *value, int64_t *out, int32_t *count)
{
    if (!value || value->kind != TSI_PICKLE_TUPLE || value->count > TS_NDIM_MAX) return false;
    *count = value->count;
    for (int32_t d = 0; d < value->count; d++)
        if (!tsi_pickle_int(value->item[d], &out[d]) || out[d] < 0) return false;
    return true;
}

/* Elements from the first to the last of a tensor, and whether they are all and in order. */
static bool span_of(tsi_torch_tensor *t, int64_t *span)
{
    int64_t next = 1, more = 0;
    t->dense = true;
    *span = 1;
    if (ts_shape_count(&t->meta.shape) < 0) return false;
    for (int32_t d = t->meta.shape.ndim - 1; d >= 0; d--) {
        int64_t extent = t->meta.shape.extent[d];
        if (extent == 0) *span = 0;
        if (extent > 1 && t->stride[d] != next) t->dense = false;
        if (!tsi_mul_i64(next, extent > 0 ? extent : 1, &next)) return false;
        if (!tsi_mul_i64(extent > 0 ? extent - 1 : 0, t->stride[d], &more)) return false;
        if (*span > 0 && !tsi_add_i64(*span, more, span)) return false;
    }
    return true;
}

/* ("storage", class, "0", "cpu", elements), and the bytes of that member. */
static ts_status find_storage(const tsi_torch_file *f, const tsi_pickled *stored, member *out,
                              const char **class)
{
    const tsi_pickled *id = stored && stored->kind == TSI_PICKLE_STORED ? stored->item[0] : NULL;
    const tsi_pickled *of = tsi_pickle_item(id, 1);
    const char *kind = tsi_pickle_text(tsi_pickle_item(id, 0)),
               *key = tsi_pickle_text(tsi_pickle_item(id, 2));
    char name[64];
    bool found = false;
    if (!kind || strcmp(kind, "storage") != 0 || !of || of->kind != TSI_PICKLE_CLASS || !key ||
        strlen(key) > 32)
        return refuse(f, "its tensor has no memory that can be found");
    *class = of->text;
    snprintf(name, sizeof name, "data/%s", key);
    TSI_TRY(find_member(f, name, out, &found));
    return found ? TS_OK : refuse(f, "the memory of its tensor is not there");
}

static ts_status read_tensor(const tsi_torch_file *f, const tsi_pickled *value,
                             tsi_torch_tensor *out)
{
    if (tsi_pickle_is(value, "torch._utils._rebuild_parameter"))
        value = tsi_pickle_item(tsi_pickle_arguments(value), 0);
    const tsi_pickled *a = tsi_pickle_arguments(value);
    bool third = tsi_pickle_is(value, "torch._utils._rebuild_tensor_v3");
    if (!third && !tsi_pickle_is(value, "torch._utils._rebuild_tensor_v2"))
        return refuse(f, "it is no tensor");
    member memory;
    const char *class = NULL;
    int64_t offset = 0, span = 0;
    int32_t strides = 0;
    TSI_TRY(find_storage(f, tsi_pickle_item(a, 0), &memory, &class));
    const tsi_pickled *dtype = third ? tsi_pickle_item(a, 6) : NULL;
    if (third) class = dtype && dtype->kind == TSI_PICKLE_CLASS ? dtype->text : NULL;
    *out = (tsi_torch_tensor){ .meta = { .dtype = (int32_t)tsi_torch_dtype(class, &out->float8) } };
    (void)tsi_torch_dtype(class, &out->float8);
    if (out->meta.dtype == TS_DTYPE_NONE) return refuse(f, "its tensor has an unknown dtype");
    if (!tsi_pickle_int(tsi_pickle_item(a, 1), &offset) || offset < 0 ||
        !read_extents(tsi_pickle_item(a, 2), out->meta.shape.extent, &out->meta.shape.ndim) ||
        !read_extents(tsi_pickle_item(a, 3), out->stride, &strides) ||
        strides != out->meta.shape.ndim || !span_of(out, &span))
        return refuse(f, "the shape of its tensor cannot be read");
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)out->meta.dtype),
            elements = memory.bytes / size;
    if (span < ts_shape_count(&out->meta.shape))
        return refuse(f, "elements of its tensor share memory");
    if (span > elements || offset > elements - span)
        return refuse(f, "its tensor lies outside of its memory");
    out->begin = memory.begin + offset * size;
    out->bytes = span * size;
    return TS_OK;
}

ts_status tsi_torch_tensor_of(const tsi_torch_file *f, tsi_torch_tensor *out)
{
    char *data = NULL;
    member place;
    tsi_arena memory = { 0 };
    const tsi_pickled *value = NULL;
    *out = (tsi_torch_tensor){ 0 };
    ts_status status = check_order(f);
    if (status == TS_OK) status = read_member(f, "data.pkl", PICKLE_MAX, &place, &data);
    if (status == TS_OK)
        status = tsi_pickle_read(f->path, place.begin, data, (size_t)place.bytes, tensor_names,
                                 &memory, &value);
    if (status == TS_OK) status = read_tensor(f, value, out);
    tsi_arena_release(&memory);
    tsi_free(data);
    return status;
}

/* ---- what is no tensor ----------------------------------------------------------------------- */

static bool put_plain(tsi_text *text, const tsi_pickled *value, int depth);

static bool put_items(tsi_text *text, const tsi_pickled *value, int depth)
{
    bool dict = value->kind == TSI_PICKLE_DICT, good = true;
    tsi_text_add(text, dict ? "{" : "[");
    for (int32_t i = 0; i < value->count && good; i++) {
        bool key = dict && i % 2 == 0;
        if (i > 0) tsi_text_add(text, dict && !key ? ": " : ", ");
        good =
            (!key || tsi_pickle_text(value->item[i])) && put_plain(text, value->item[i], depth + 1);
    }
    tsi_text_add(text, dict ? "}" : "]");
    return good;
}

static bool put_plain(tsi_text *text, const tsi_pickled *value, int depth)
{
    if (depth > DEPTH_MAX || text->failed || text->length > PICKLE_MAX) return false;
    switch (value->kind) {
    case TSI_PICKLE_NONE:
        tsi_text_add(text, "null");
        return true;
    case TSI_PICKLE_BOOL:
        tsi_text_add(text, value->number ? "true" : "false");
        return true;
    case TSI_PICKLE_INT:
        tsi_text_int(text, value->number);
        return true;
    case TSI_PICKLE_REAL:
        tsi_text_real(text, value->real);
        return true;
    case TSI_PICKLE_TEXT:
        tsi_text_json(text, value->text);
        return true;
    case TSI_PICKLE_TUPLE:
    case TSI_PICKLE_LIST:
    case TSI_PICKLE_DICT:
        return put_items(text, value, depth);
    case TSI_PICKLE_BYTES:
    case TSI_PICKLE_CLASS:
    case TSI_PICKLE_OBJECT:
    case TSI_PICKLE_STORED:
        break;
    }
    return false;
}

ts_status tsi_torch_plain_of(const tsi_torch_file *f, char **out)
{
    static const char *const none[] = { NULL };
    char *data = NULL;
    member place;
    tsi_arena memory = { 0 };
    const tsi_pickled *value = NULL;
    tsi_text text = { 0 };
    *out = NULL;
    ts_status status = read_member(f, "data.pkl", PICKLE_MAX, &place, &data);
    if (status == TS_OK)
        status =
            tsi_pickle_read(f->path, place.begin, data, (size_t)place.bytes, none, &memory, &value);
    if (status == TS_OK && put_plain(&text, value, 0)) *out = tsi_text_take(&text);
    tsi_text_release(&text);
    tsi_arena_release(&memory);
    tsi_free(data);
    return status;
}
