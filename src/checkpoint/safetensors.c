/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - reading sets of weight files: headers checked, data read by regions.
 *
 * INV: a set that opens is sound: every tensor lies inside its file, none overlaps another, every
 * byte of data belongs to one. Size and time of each file are remembered, so that one that changes
 * under us is an error, not garbage. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "checkpoint/safetensors_dtype.h"
#include "tessera/json.h"

enum { HEADER_MAX = 100 << 20, PATH_BYTES = 4096, FILES_MAX = 4096, PARTS_MAX = 1024 };

typedef struct weights_file {
    char *path;
    char *header; /* its text, as it is in the file */
    size_t header_length;
    int fd;
    int32_t reserved;
    int64_t size, seconds, nanoseconds; /* when it was opened */
} weights_file;

struct tsi_weights {
    weights_file *file;
    int32_t file_count;
    tsi_stored *stored;
    int64_t count, capacity;
    tsi_map by_name;
    tsi_arena memory; /* of names */
    char *index;      /* text of the index, or NULL: one file */
};

/* ---- dtypes ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    ts_dtype dtype;
} dtype_names[] = { { "F64", TS_DTYPE_F64 },   { "F32", TS_DTYPE_F32 }, { "BF16", TS_DTYPE_BF16 },
                    { "F16", TS_DTYPE_F16 },   { "I64", TS_DTYPE_I64 }, { "I32", TS_DTYPE_I32 },
                    { "I16", TS_DTYPE_I16 },   { "I8", TS_DTYPE_I8 },   { "U8", TS_DTYPE_U8 },
                    { "BOOL", TS_DTYPE_BOOL }, { "C64", TS_DTYPE_C64 }, { "C128", TS_DTYPE_C128 } };

static ts_dtype dtype_of(const char *name)
{
    for (size_t i = 0; name && i < TSI_COUNT_OF(dtype_names); i++)
        if (strcmp(name, dtype_names[i].name) == 0) return dtype_names[i].dtype;
    return TS_DTYPE_NONE;
}

const char *tsi_safetensors_dtype(ts_dtype dtype)
{
    for (size_t i = 0; i < TSI_COUNT_OF(dtype_names); i++)
        if (dtype_names[i].dtype == dtype) return dtype_names[i].name;
    return NULL;
}

/* ---- one header ------------------------------------------------------------------------------ */

typedef struct header {
    tsi_weights *weights;
    int32_t file;
    int32_t reserved;
    int64_t data_begin, data_size;
    const char *path;
} header;

static ts_status refuse(const header *h, const char *name, const char *why)
{
    return TSI_FAIL(TS_ERR_IO, "%s: tensor \"%.80s\": %s", h->path, name, why);
}

static ts_status read_shape(const header *h, const char *name, const ts_json *shape, ts_meta *meta)
{
    int64_t ndim = ts_json_count(shape);
    if (ts_json_kind_of(shape) != TS_JSON_LIST || ndim > TS_NDIM_MAX)
        return refuse(h, name, "the shape is not a list of at most 8 extents");
    meta->shape = (ts_shape){ .ndim = (int32_t)ndim };
    for (int32_t d = 0; d < ndim; d++) {
        const ts_json *extent = ts_json_item(shape, d);
        meta->shape.extent[d] = ts_json_int(extent, -1);
        bool fits = meta->shape.extent[d] >= 0 && meta->shape.extent[d] >> 62 == 0;
        if (ts_json_kind_of(extent) != TS_JSON_INT || !fits)
            return refuse(h, name, "an extent is not a whole number below 2^62");
    }
    return TS_OK;
}

static ts_status read_offsets(const header *h, const char *name, const ts_json *offsets,
                              tsi_stored *stored)
{
    if (ts_json_count(offsets) != 2) return refuse(h, name, "data_offsets are not two numbers");
    int64_t begin = ts_json_int(ts_json_item(offsets, 0), -1),
            end = ts_json_int(ts_json_item(offsets, 1), -1);
    int64_t count = ts_shape_count(&stored->meta.shape), bytes = 0;
    if (begin < 0 || end < begin) return refuse(h, name, "data_offsets lie outside the file");
    if (end > h->data_size)
        return TSI_FAIL(TS_ERR_IO,
                        "%s: tensor \"%.80s\": data_offsets lie outside the file: up to %lld bytes "
                        "of data, of which it has %lld; it is not whole",
                        h->path, name, (long long)end, (long long)h->data_size);
    if (count < 0 ||
        !tsi_mul_i64(count, (int64_t)ts_dtype_size((ts_dtype)stored->meta.dtype), &bytes) ||
        bytes != end - begin)
        return refuse(h, name, "data_offsets do not fit the shape and dtype");
    stored->begin = h->data_begin + begin;
    stored->end = h->data_begin + end;
    return TS_OK;
}

static uint64_t name_key(const char *name)
{
    return tsi_hash_text(0x77656967, name);
}

static bool name_equal(const void *value, const void *wanted)
{
    return strcmp(((const tsi_stored *)value)->name, wanted) == 0;
}

static ts_status stored_add(tsi_weights *w, const tsi_stored *stored)
{
    if (w->count == w->capacity) {
        int64_t capacity = w->capacity ? 2 * w->capacity : 256;
        tsi_stored *grown = tsi_realloc(w->stored, (size_t)capacity * sizeof *grown);
        if (!grown)
            return tsi_fail_memory("the tensors of a file", (size_t)capacity * sizeof *grown);
        w->stored = grown;
        w->capacity = capacity;
    }
    w->stored[w->count++] = *stored;
    return TS_OK;
}

static ts_status metadata_entry(const char *name, const ts_json *value, void *context)
{
    const header *h = context;
    if (ts_json_kind_of(value) == TS_JSON_TEXT) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: __metadata__, \"%.80s\" is not a text", h->path, name);
}

static ts_status read_entry(const char *name, const ts_json *value, void *context)
{
    header *h = context;
    if (strcmp(name, "__metadata__") == 0) {
        if (ts_json_kind_of(value) == TS_JSON_OBJECT) return ts_json_each(value, metadata_entry, h);
        return TSI_FAIL(TS_ERR_IO, "%s: __metadata__ is not an object of texts", h->path);
    }
    if (ts_json_kind_of(value) != TS_JSON_OBJECT)
        return refuse(h, name, "its entry is not an object");
    tsi_stored stored = { .file = h->file, .name = tsi_arena_strdup(&h->weights->memory, name) };
    if (!stored.name) return tsi_fail_memory("the name of a tensor", strlen(name));
    const char *dtype = ts_json_text(ts_json_member(value, "dtype"), NULL);
    stored.meta.dtype = (int32_t)dtype_of(dtype);
    if (dtype && strcmp(dtype, "F8_E4M3") == 0) stored.float8 = TSI_FLOAT8_E4M3;
    if (dtype && strcmp(dtype, "F8_E5M2") == 0) stored.float8 = TSI_FLOAT8_E5M2;
    if (stored.float8) stored.meta.dtype = TS_DTYPE_U8;
    if (stored.meta.dtype == TS_DTYPE_NONE)
        return TSI_FAIL(TS_ERR_IO, "%s: tensor \"%.80s\": unknown dtype %s", h->path, name,
                        dtype ? dtype : "(none)");
    TSI_TRY(read_shape(h, name, ts_json_member(value, "shape"), &stored.meta));
    TSI_TRY(read_offsets(h, name, ts_json_member(value, "data_offsets"), &stored));
    return stored_add(h->weights, &stored);
}

static int by_offset(const void *a, const void *b)
{
    const tsi_stored *x = *(const tsi_stored *const *)a, *y = *(const tsi_stored *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Tensors of the file, sorted by place, must follow each other without overlap or hole. */
static ts_status check_cover(const header *h, int64_t first)
{
    tsi_weights *w = h->weights;
    int64_t count = w->count - first;
    const tsi_stored **sorted = tsi_alloc_array((size_t)count + 1, sizeof *sorted);
    if (!sorted) return tsi_fail_memory("the tensors of a file", (size_t)count * sizeof *sorted);
    for (int64_t i = 0; i < count; i++)
        sorted[i] = &w->stored[first + i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_offset);
    int64_t at = h->data_begin;
    ts_status status = TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; at = sorted[i++]->end) {
        if (sorted[i]->begin < at)
            status = refuse(h, sorted[i]->name, "its data overlaps another tensor's");
        else if (sorted[i]->begin > at)
            status = refuse(h, sorted[i]->name, "there is a hole before its data");
    }
    if (status == TS_OK && at != h->data_begin + h->data_size)
        status = TSI_FAIL(TS_ERR_IO, "%s: %lld bytes of data belong to no tensor", h->path,
                          (long long)(h->data_begin + h->data_size - at));
    tsi_free(sorted);
    return status;
}

/* ---- one file -------------------------------------------------------------------------------- */

static ts_status fail_short(const char *path, ssize_t got, int64_t offset)
{
    return TSI_FAIL(TS_ERR_IO, "%s: %s at byte %lld", path,
                    got < 0 ? strerror(errno) : "the file ends too early", (long long)offset);
}

static ts_status read_exactly(const char *path, int fd, void *to, size_t bytes, int64_t offset)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail_short(path, got, offset);
        at += got;
        bytes -= (size_t)got;
        offset += got;
    }
    return TS_OK;
}

/* Into several places; one that was filled in part is filled up alone. */
static ts_status read_parts(const char *path, int fd, const struct iovec *to, int64_t count,
                            int64_t offset)
{
    for (int64_t i = 0; i < count;) {
        if (to[i].iov_len == 0 && ++i) continue;
        int64_t most = tsi_min_i64(count - i, PARTS_MAX);
        ssize_t got = preadv(fd, &to[i], (int)most, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail_short(path, got, offset);
        size_t left = (size_t)got;
        offset += got;
        for (; i < count && left >= to[i].iov_len; i++)
            left -= to[i].iov_len;
        if (left == 0) continue;
        size_t more = to[i].iov_len - left;
        TSI_TRY(read_exactly(path, fd, (char *)to[i].iov_base + left, more, offset));
        offset += (int64_t)more;
        i++;
    }
    return TS_OK;
}

static ts_status read_header(tsi_weights *w, int32_t number)
{
    weights_file *f = &w->file[number];
    unsigned char raw[8];
    if (f->size < 8) return TSI_FAIL(TS_ERR_IO, "%s: too short for a safetensors file", f->path);
    TSI_TRY(read_exactly(f->path, f->fd, raw, 8, 0));
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | raw[i];
    if (length > HEADER_MAX || (int64_t)length > f->size - 8)
        return TSI_FAIL(TS_ERR_IO, "%s: a header of %llu bytes does not fit the file (%lld bytes)",
                        f->path, (unsigned long long)length, (long long)f->size);
    char *text = tsi_alloc((size_t)length + 1);
    if (!text) return tsi_fail_memory("the header of a file", (size_t)length);
    ts_status status = read_exactly(f->path, f->fd, text, (size_t)length, 8);
    ts_json_document *document = NULL;
    if (status == TS_OK) status = ts_json_parse(f->path, text, (size_t)length, &document);
    header h = { .weights = w,
                 .file = number,
                 .data_begin = 8 + (int64_t)length,
                 .data_size = f->size - 8 - (int64_t)length,
                 .path = f->path };
    int64_t first = w->count;
    if (status == TS_OK && ts_json_kind_of(ts_json_root(document)) != TS_JSON_OBJECT)
        status = TSI_FAIL(TS_ERR_IO, "%s: the header is not an object", f->path);
    if (status == TS_OK) status = ts_json_each(ts_json_root(document), read_entry, &h);
    if (status == TS_OK) status = check_cover(&h, first);
    ts_json_release(document);
    f->header = text;
    f->header_length = (size_t)length;
    return status;
}

static ts_status file_open(tsi_weights *w, const char *path)
{
    weights_file *grown = tsi_realloc(w->file, (size_t)(w->file_count + 1) * sizeof *grown);
    if (!grown) return tsi_fail_memory("a file of weights", sizeof *grown);
    w->file = grown;
    weights_file *f = &w->file[w->file_count];
    *f = (weights_file){ .path = tsi_strdup(path), .fd = -1 };
    struct stat info = { 0 };
    ts_status status = f->path ? tsi_file_open(path, &f->fd, &f->size)
                               : tsi_fail_memory("a path", strlen(path) + 1);
    if (status == TS_OK && fstat(f->fd, &info) != 0) {
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
        close(f->fd);
    }
    if (status != TS_OK) {
        tsi_free(f->path);
        return status;
    }
    f->seconds = (int64_t)info.st_mtim.tv_sec;
    f->nanoseconds = (int64_t)info.st_mtim.tv_nsec;
    return read_header(w, w->file_count++);
}

/* ---- an index of several files --------------------------------------------------------------- */

typedef struct index_context {
    const char *directory, *path;
    char (*name)[256];
    int32_t count;
} index_context;

static ts_status index_entry(const char *tensor, const ts_json *value, void *context)
{
    index_context *c = context;
    const char *file = ts_json_text(value, NULL);
    if (!file || !*file || strchr(file, '/') || strcmp(file, "..") == 0 ||
        strlen(file) >= sizeof c->name[0])
        return TSI_FAIL(
            TS_ERR_IO,
            "%s: tensor \"%.80s\" names the file \"%.80s\", which is not one of this directory",
            c->path, tensor, file ? file : "(none)");
    for (int32_t i = 0; i < c->count; i++)
        if (strcmp(c->name[i], file) == 0) return TS_OK;
    if (c->count == FILES_MAX)
        return TSI_FAIL(TS_ERR_IO, "%s: names more than %d files", c->path, FILES_MAX);
    snprintf(c->name[c->count++], sizeof c->name[0], "%s", file);
    return TS_OK;
}

static ts_status index_names(tsi_weights *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        uint64_t key = name_key(w->stored[i].name);
        if (tsi_map_find(&w->by_name, key, name_equal, w->stored[i].name))
            return TSI_FAIL(TS_ERR_IO, "%s: tensor \"%.80s\" occurs twice",
                            w->file[w->stored[i].file].path, w->stored[i].name);
        TSI_TRY(tsi_map_insert(&w->by_name, key, &w->stored[i]));
    }
    return TS_OK;
}

typedef struct index_check {
    const tsi_weights *weights;
    const char *path;
} index_check;

/* Every tensor the index names is in the file it names. */
static ts_status check_entry(const char *tensor, const ts_json *value, void *context)
{
    const index_check *c = context;
    const char *file = ts_json_text(value, "");
    const tsi_stored *stored = tsi_weights_find(c->weights, tensor);
    if (stored && strcmp(tsi_weights_file_at(c->weights, stored->file).name, file) == 0)
        return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: tensor \"%.80s\" is not in %.80s", c->path, tensor, file);
}

static ts_status index_open(tsi_weights *w, const char *directory, const char *path)
{
    char *text = NULL;
    size_t length = 0;
    ts_json_document *document = NULL;
    index_context c = { directory, path, tsi_alloc_array(FILES_MAX, sizeof *c.name), 0 };
    ts_status status = c.name ? tsi_file_read(path, HEADER_MAX, &text, &length)
                              : tsi_fail_memory("an index", sizeof *c.name);
    if (status == TS_OK) status = ts_json_parse(path, text, length, &document);
    if (status == TS_OK)
        status =
            ts_json_each(ts_json_member(ts_json_root(document), "weight_map"), index_entry, &c);
    for (int32_t i = 0; i < c.count && status == TS_OK; i++) {
        char file[PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", directory, c.name[i]);
        status = file_open(w, file);
    }
    if (status == TS_OK && c.count == 0) status = TSI_FAIL(TS_ERR_IO, "%s: names no file", path);
    if (status == TS_OK) status = index_names(w);
    index_check check = { w, path };
    if (status == TS_OK)
        status =
            ts_json_each(ts_json_member(ts_json_root(document), "weight_map"), check_entry, &check);
    ts_json_release(document);
    w->index = text;
    tsi_free(c.name);
    return status;
}

ts_status tsi_weights_open(const char *path, tsi_weights **out)
{
    *out = NULL;
    tsi_weights *w = tsi_calloc(1, sizeof *w);
    if (!w) return tsi_fail_memory("a set of weights", sizeof *w);
    struct stat info;
    char file[PATH_BYTES], index[PATH_BYTES];
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", path);
    ts_status status;
    if (stat(path, &info) != 0)
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        status = file_open(w, path);
    else if (stat(file, &info) == 0)
        status = file_open(w, file);
    else if (stat(index, &info) == 0)
        status = index_open(w, path, index);
    else
        status = TSI_FAIL(TS_ERR_IO, "%s: neither model.safetensors nor its index is there", path);
    if (status == TS_OK && !w->index) status = index_names(w);
    if (status == TS_OK)
        *out = w;
    else
        tsi_weights_close(w);
    return status;
}

void tsi_weights_close_files(tsi_weights *w)
{
    for (int32_t i = 0; i < w->file_count; i++) {
        if (w->file[i].fd >= 0) close(w->file[i].fd);
        w->file[i].fd = -1;
    }
}

void tsi_weights_close(tsi_weights *w)
{
    if (!w) return;
    tsi_weights_close_files(w);
    for (int32_t i = 0; i < w->file_count; i++) {
        tsi_free(w->file[i].header);
        tsi_free(w->file[i].path);
    }
    tsi_free(w->index);
    tsi_map_release(&w->by_name);
    tsi_arena_release(&w->memory);
    tsi_free(w->file);
    tsi_free(w->stored);
    tsi_free(w);
}

int32_t tsi_weights_file_count(const tsi_weights *w)
{
    return w->file_count;
}

tsi_weights_file tsi_weights_file_at(const tsi_weights *w, int32_t index)
{
    const weights_file *f = &w->file[index];
    const char *slash = strrchr(f->path, '/');
    return (tsi_weights_file){ slash ? slash + 1 : f->path, f->path, f->header, f->header_length };
}

const char *tsi_weights_index(const tsi_weights *w)
{
    return w->index;
}

int64_t tsi_weights_count(const tsi_weights *w)
{
    return w->count;
}

const tsi_stored *tsi_weights_at(const tsi_weights *w, int64_t index)
{
    return &w->stored[index];
}

const tsi_stored *tsi_weights_find(const tsi_weights *w, const char *name)
{
    return tsi_map_find(&w->by_name, name_key(name), name_equal, name);
}

/* Files that were closed are opened again; that they are the same shows when they were read. */
static ts_status reopen(weights_file *f)
{
    int64_t size = 0;
    return f->fd >= 0 ? TS_OK : tsi_file_open(f->path, &f->fd, &size);
}

ts_status tsi_weights_read_bytes(const tsi_weights *w, const tsi_stored *stored, int64_t offset,
                                 size_t bytes, void *to)
{
    return tsi_weights_read_parts(w, stored, offset, &(struct iovec){ to, bytes }, 1);
}

ts_status tsi_weights_read_parts(const tsi_weights *w, const tsi_stored *stored, int64_t offset,
                                 const struct iovec *to, int64_t count)
{
    weights_file *f = &w->file[stored->file];
    TSI_TRY(reopen(f));
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        bytes += (int64_t)to[i].iov_len;
    TSI_ASSERT(offset >= 0 && offset + bytes <= stored->end - stored->begin);
    ts_status status = read_parts(f->path, f->fd, to, count, stored->begin + offset);
    struct stat info; /* after reading: what was changed before or meanwhile shows */
    if (fstat(f->fd, &info) != 0 || (int64_t)info.st_size != f->size ||
        (int64_t)info.st_mtim.tv_sec != f->seconds ||
        (int64_t)info.st_mtim.tv_nsec != f->nanoseconds)
        return TSI_FAIL(TS_ERR_IO, "%s: the file changed while it was being read", f->path);
    return status;
}

ts_status tsi_weights_read(const tsi_weights *w, const tsi_stored *stored, int64_t first,
                           int64_t count, void *to)
{
    size_t bytes = ts_dtype_size((ts_dtype)stored->meta.dtype);
    return tsi_weights_read_bytes(w, stored, first * (int64_t)bytes, (size_t)count * bytes, to);
}
