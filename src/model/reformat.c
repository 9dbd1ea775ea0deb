/* SPDX-License-Identifier: Apache-2.0 */
/* reformat.c - from one format of checkpoints to another, a piece at a time.
 *
 * Everything is written beside the target and renamed when it is complete. Published directories
 * have the weights in files of at most a given size, config.json with their dtype, and what else
 * came with the source; our own have one data file, with hashes, and the values of the source.
 *
 * INV: memory is one piece of PIECE bytes and what the headers say, however large the tensors. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "base/text.h"
#include "checkpoint/digest.h"
#include "checkpoint/folder.h"
#include "checkpoint/names.h"
#include "model/weights.h"

enum { PIECE = 1 << 20, NAME_BYTES = 1024, PATH_BYTES = TSI_FOLDER_PATH_MAX, TEXT_MAX = 1 << 26 };
#define SHARD_BYTES ((int64_t)4 << 30)

typedef struct item { /* a tensor of the source, and what it is called in the result */
    const tsi_entry *entry;
    const char *name;
} item;

typedef struct conversion {
    ts_archive *from;
    ts_convert_options options;
    uint64_t id;
    char part[PATH_BYTES]; /* where it is written */
    item *item;            /* what is written, in the order of the files */
    int64_t count;
    tsi_arena memory;    /* of names */
    tsi_map by_name;     /* of items */
    int64_t bytes, done; /* of data */
    char *piece;
} conversion;

/* ---- what goes over -------------------------------------------------------------------------- */

static ts_meta meta_of(const conversion *c, const tsi_entry *e)
{
    ts_meta meta = e->meta;
    if (c->options.dtype && tsi_dtype_is_real(meta.dtype)) meta.dtype = c->options.dtype;
    return meta;
}

static int64_t bytes_of(const conversion *c, const tsi_entry *e)
{
    ts_meta meta = meta_of(c, e);
    return ts_shape_count(&meta.shape) * (int64_t)ts_dtype_size((ts_dtype)meta.dtype);
}

static bool name_equal(const void *value, const void *wanted)
{
    return strcmp(((const item *)value)->name, wanted) == 0;
}

static ts_status add_item(conversion *c, const tsi_entry *e)
{
    char name[NAME_BYTES];
    item *added = &c->item[c->count];
    TSI_TRY(tsi_names_rename(c->options.renamed, e->name, name, sizeof name));
    *added = (item){ e, tsi_arena_strdup(&c->memory, name) };
    if (!added->name) return tsi_fail_memory("a name", strlen(name));
    uint64_t key = tsi_hash_text(0x6974656d, name);
    const item *other = tsi_map_find(&c->by_name, key, name_equal, name);
    if (other)
        return TSI_FAIL(TS_ERR_ARG, "convert: \"%.200s\" and \"%.200s\" would both be \"%.200s\"",
                        other->entry->name, e->name, name);
    TSI_TRY(tsi_map_insert(&c->by_name, key, added));
    c->count++;
    c->bytes += bytes_of(c, e);
    return TS_OK;
}

/* Large elements first within the order of the source, so that all are aligned. */
static ts_status choose(conversion *c)
{
    bool published = c->options.to == TS_CONVERT_PUBLISHED;
    c->item = tsi_calloc((size_t)c->from->count + 1, sizeof *c->item);
    if (!c->item)
        return tsi_fail_memory("a list of tensors", (size_t)c->from->count * sizeof *c->item);
    for (size_t size = 16; size > 0; size /= 2)
        for (int64_t i = 0; i < c->from->count; i++) {
            const tsi_entry *e = &c->from->entry[i];
            ts_meta meta = meta_of(c, e);
            if (ts_dtype_size((ts_dtype)meta.dtype) != size) continue;
            if (published && strcmp(e->of, "optimizer") == 0) continue;
            if (tsi_names_match(c->options.names, e->name)) TSI_TRY(add_item(c, e));
        }
    if (c->count > 0 || !c->options.names) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "convert: no tensor of %s has a name that matches", c->from->path);
}

/* Calls put with the data of an entry, a piece at a time. */
typedef ts_status (*put_fn)(void *context, int64_t first, const void *data, size_t bytes);
static ts_status stream(conversion *c, const tsi_entry *e, put_fn put, void *context)
{
    ts_meta meta = meta_of(c, e);
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)meta.dtype);
    int64_t all = ts_shape_count(&meta.shape), most = PIECE / size;
    for (int64_t at = 0, count; at < all; at += count) {
        count = tsi_min_i64(most, all - at);
        TSI_TRY(tsi_archive_read_range(c->from, e, at, count, (ts_dtype)meta.dtype, c->piece));
        TSI_TRY(put(context, at, c->piece, (size_t)(count * size)));
        c->done += count * size;
        if (c->options.on_bytes) c->options.on_bytes(c->done, c->bytes, c->options.context);
    }
    return TS_OK;
}

/* ---- files beside the data ------------------------------------------------------------------- */

static ts_status write_text(const conversion *c, const char *name, const char *text, size_t length)
{
    char path[PATH_BYTES + 300];
    snprintf(path, sizeof path, "%s/%s", c->part, name);
    return tsi_file_replace(path, text, length);
}

/* The dtype that most of the data has. */
static ts_dtype main_dtype(const conversion *c)
{
    int64_t bytes[TS_DTYPE_COUNT] = { 0 };
    ts_dtype best = TS_DTYPE_F32;
    for (int64_t i = 0; i < c->count; i++) {
        const tsi_entry *e = c->item[i].entry;
        ts_meta meta = meta_of(c, e);
        if (strcmp(e->of, "optimizer") == 0 || !tsi_dtype_is_real(meta.dtype)) continue;
        bytes[meta.dtype] += bytes_of(c, e);
        if (bytes[meta.dtype] > bytes[best]) best = (ts_dtype)meta.dtype;
    }
    return best;
}

static bool has_float8(const conversion *c)
{
    for (int64_t i = 0; i < c->count; i++)
        if (c->item[i].entry->float8) return true;
    return false;
}

static ts_status write_config(conversion *c)
{
    char path[PATH_BYTES + 300], *text = NULL;
    size_t length = 0;
    snprintf(path, sizeof path, "%s/config.json", c->from->path);
    if (access(path, F_OK) != 0) return TS_OK;
    TSI_TRY(tsi_file_read(path, TEXT_MAX, &text, &length));
    /* Weights in 8 bits are written as numbers: what said how to read them goes. */
    char *plain =
        has_float8(c) ? tsi_config_without(text, "quantization_config") : tsi_strdup(text);
    char *changed = plain ? tsi_config_with_dtype(plain, main_dtype(c), true) : NULL;
    ts_status status = changed ? write_text(c, "config.json", changed, strlen(changed))
                               : tsi_fail_memory("a configuration", length);
    tsi_free(changed);
    tsi_free(plain);
    tsi_free(text);
    return status;
}

static ts_status write_others(conversion *c)
{
    TSI_TRY(write_config(c));
    return tsi_copy_others(c->from->path, c->part);
}

/* ---- published ------------------------------------------------------------------------------- */

static ts_status put_published(void *context, int64_t first, const void *data, size_t bytes)
{
    (void)first;
    return ts_safetensors_write(context, data, bytes);
}

static void file_name(char *out, size_t size, int64_t number, int64_t files)
{
    if (files == 1)
        snprintf(out, size, "model.safetensors");
    else
        snprintf(out, size, "model-%05lld-of-%05lld.safetensors", (long long)number + 1,
                 (long long)files);
}

/* The first entry behind those that fit one file from `first` on. */
static int64_t file_end(const conversion *c, int64_t first)
{
    int64_t most = c->options.shard_bytes > 0 ? c->options.shard_bytes : SHARD_BYTES, bytes = 0;
    int64_t end = first;
    for (; end < c->count; end++) {
        bytes += bytes_of(c, c->item[end].entry);
        if (bytes > most && end > first) break;
    }
    return end;
}

static ts_status write_weights(conversion *c, const char *name, int64_t first, int64_t end)
{
    char path[PATH_BYTES + 300];
    ts_safetensors *file = NULL;
    ts_safetensors_entry *entry = tsi_calloc((size_t)(end - first) + 1, sizeof *entry);
    if (!entry) return tsi_fail_memory("the entries of a file", (size_t)(end - first));
    for (int64_t i = first; i < end; i++)
        entry[i - first] = (ts_safetensors_entry){ c->item[i].name, meta_of(c, c->item[i].entry) };
    snprintf(path, sizeof path, "%s/%s", c->part, name);
    ts_status status = ts_safetensors_create(path, entry, end - first, &file);
    tsi_free(entry);
    for (int64_t i = first; i < end && status == TS_OK; i++)
        status = stream(c, c->item[i].entry, put_published, file);
    ts_status finished = ts_safetensors_finish(file, status == TS_OK);
    return status == TS_OK ? finished : status;
}

static ts_status write_published(conversion *c)
{
    int64_t files = 0, number = 0;
    for (int64_t first = 0; first < c->count; first = file_end(c, first))
        files++;
    tsi_text index = { 0 };
    tsi_text_printf(&index,
                    "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
                    (long long)c->bytes);
    ts_status status = TS_OK;
    if (c->count == 0) status = write_weights(c, "model.safetensors", 0, 0);
    for (int64_t first = 0, end; first < c->count && status == TS_OK; first = end) {
        char name[64];
        end = file_end(c, first);
        file_name(name, sizeof name, number++, files);
        for (int64_t i = first; i < end; i++) {
            tsi_text_add(&index, i > 0 ? ",\n    " : "\n    ");
            tsi_text_json(&index, c->item[i].name);
            tsi_text_printf(&index, ": \"%s\"", name);
        }
        status = write_weights(c, name, first, end);
    }
    tsi_text_add(&index, "\n  }\n}\n");
    if (status == TS_OK && files > 1)
        status = index.failed
                     ? tsi_fail_memory("an index", index.length)
                     : write_text(c, "model.safetensors.index.json", index.data, index.length);
    tsi_text_release(&index);
    return status;
}

/* ---- our own --------------------------------------------------------------------------------- */

typedef struct put_context {
    tsi_data_writer *writer;
    const tsi_data_piece *piece;
    uint64_t sum;
} put_context;

static ts_status put_ours(void *context, int64_t first, const void *data, size_t bytes)
{
    put_context *p = context;
    ts_dtype dtype = (ts_dtype)p->piece->meta.dtype;
    int64_t size = (int64_t)ts_dtype_size(dtype);
    p->sum += tsi_digest_elements(dtype, first, data, (int64_t)bytes / size);
    return tsi_data_put(p->writer, p->piece, first * size, data, bytes);
}

/* Data of all entries into one file, and their hashes. */
static ts_status write_data(conversion *c, tsi_index *index)
{
    char path[PATH_BYTES + 300], name[TSI_DATA_NAME_MAX];
    tsi_data_plan plan = { 0 };
    tsi_data_piece *piece = tsi_calloc((size_t)c->count + 1, sizeof *piece);
    int64_t pieces = 0;
    if (!piece) return tsi_fail_memory("the pieces of a file", (size_t)c->count * sizeof *piece);
    for (int64_t i = 0; i < c->count; i++)
        if (bytes_of(c, c->item[i].entry) > 0)
            piece[pieces++] =
                (tsi_data_piece){ .name = c->item[i].name, .meta = meta_of(c, c->item[i].entry) };
    put_context p = { 0 };
    ts_status status = tsi_data_plan_make(piece, pieces, c->id, 0, &plan);
    tsi_data_file_name(name, 0);
    snprintf(path, sizeof path, "%s/%s", c->part, name);
    if (status == TS_OK && pieces > 0) status = tsi_data_create(path, &plan, &p.writer);
    for (int64_t i = 0, next = 0; i < c->count && status == TS_OK; i++) {
        tsi_index_tensor *t = &index->tensor[index->tensor_count++];
        const tsi_entry *e = c->item[i].entry;
        *t = (tsi_index_tensor){ c->item[i].name, e->of, "R", NULL, meta_of(c, e), 0 };
        p.sum = 0;
        p.piece = &piece[next];
        if (bytes_of(c, e) > 0) {
            next++;
            status = stream(c, e, put_ours, &p);
        }
        t->hash = tsi_digest_tensor(&t->meta, p.sum);
        index->hash += tsi_digest_named(t->name, t->hash);
    }
    ts_status finished = tsi_data_finish(p.writer, status == TS_OK);
    tsi_data_plan_release(&plan);
    tsi_free(piece);
    return status == TS_OK ? finished : status;
}

static ts_status write_index(conversion *c, tsi_index *index)
{
    size_t length = 0;
    TSI_TRY(tsi_index_add_others(index, c->part));
    char *text = tsi_index_text(index, &length);
    ts_status status = text ? write_text(c, TSI_INDEX_NAME, text, length) : TS_ERR_MEMORY;
    tsi_free(text);
    return status;
}

static ts_status write_ours(conversion *c)
{
    const tsi_index *old = &c->from->index;
    tsi_index index = { .save = c->id,
                        .step = c->from->ours ? old->step : 0,
                        .mesh = "dp=1",
                        .copies = 1,
                        .value = old->value,
                        .value_count = old->value_count };
    index.tensor = tsi_arena_calloc(&index.memory, (size_t)c->count + 1, sizeof *index.tensor);
    ts_status status =
        index.tensor ? write_data(c, &index) : tsi_fail_memory("an index", (size_t)c->count);
    if (status == TS_OK) status = write_index(c, &index);
    tsi_index_release(&index);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static ts_status check_target(const char *to)
{
    if (rmdir(to) == 0 || errno == ENOENT) return TS_OK;
    if (errno == ENOTEMPTY || errno == EEXIST)
        return TSI_FAIL(TS_ERR_ARG, "%s: is there already and not empty", to);
    return TSI_FAIL(TS_ERR_IO, "%s: %s", to, strerror(errno));
}

static ts_status convert(conversion *c, const char *to)
{
    int lock = -1;
    TSI_TRY(choose(c));
    c->piece = tsi_alloc_aligned(PIECE, 64);
    if (!c->piece) return tsi_fail_memory("a piece of a tensor", PIECE);
    TSI_TRY(check_target(to));
    TSI_TRY(tsi_folder_part(to, c->id, c->part));
    TSI_TRY(tsi_folder_begin(c->part, &lock));
    ts_status status = tsi_folder_clean(to, c->id);
    if (status == TS_OK) status = tsi_folder_room(c->part, c->bytes);
    if (status == TS_OK) status = write_others(c);
    if (status == TS_OK)
        status = c->options.to == TS_CONVERT_PUBLISHED ? write_published(c) : write_ours(c);
    if (status == TS_OK) status = tsi_folder_publish(c->part, to, c->id);
    if (status != TS_OK) tsi_folder_remove(c->part);
    if (lock >= 0) close(lock);
    return status;
}

ts_status ts_checkpoint_convert(const char *from, const char *to, const ts_convert_options *options)
{
    if (!from || !to) return TSI_FAIL(TS_ERR_NULL, "convert: an argument is NULL");
    conversion c = { .id = tsi_hash_mix((uint64_t)tsi_clock_ns(), (uint64_t)getpid()) };
    if (options)
        memcpy(&c.options, options,
               options->struct_size < sizeof c.options ? options->struct_size : sizeof c.options);
    if (c.options.dtype && !tsi_dtype_is_real(c.options.dtype))
        return TSI_FAIL(TS_ERR_DTYPE, "convert: %s is no dtype of weights",
                        ts_dtype_name((ts_dtype)c.options.dtype));
    ts_status status = ts_archive_open(from, &c.from);
    if (status == TS_OK && c.options.from && strcmp(c.options.from, c.from->format) != 0)
        status = TSI_FAIL(TS_ERR_ARG, "convert: %s is of the format %s, not %s", from,
                          c.from->format, c.options.from);
    if (status == TS_OK) status = convert(&c, to);
    ts_archive_close(c.from);
    tsi_map_release(&c.by_name);
    tsi_arena_release(&c.memory);
    tsi_free(c.item);
    tsi_free(c.piece);
    return status;
}
