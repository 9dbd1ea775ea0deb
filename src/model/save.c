/* SPDX-License-Identifier: Apache-2.0 */
/* save.c - writing a model back: config.json as it was read, the other files of its directory, and
 * weights in the files, under the names and in the order they were read, so that a model nobody
 * changed gives the bytes it came from. Where dtypes changed, config.json tells the new one. A
 * model that was made, not read, gives one file sorted by name.
 *
 * Layers beyond the model's, by which some predict more tokens ahead (model.layers.61 of
 * DeepSeek-V3), are not made here: they go over from the origin as they are, a piece at a time.
 *
 * Tensors are gathered one at a time by all ranks and written by the first of the mesh. Headers are
 * those of the origin while every tensor in them is still a parameter of that dtype; else they are
 * made anew, in the same order. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "model/model_config.h"
#include "model/weights.h"

enum { NAME_BYTES = 256, PATH_BYTES = 4096, COPY_BYTES = 1 << 20 };

typedef struct piece { /* one tensor of a file to be written */
    const char *name;
    ts_tensor *value; /* the parameter it is, or is part of; NULL: none here, `entry` is copied */
    const tsi_entry *entry;
    ts_meta meta;
    int64_t expert; /* -1: all of it */
    int32_t half;   /* of fused experts: 0 gate, 1 up; -1: both dims whole */
    int32_t file;   /* of the origin */
    int64_t begin;  /* in that file */
    int32_t stored_dtype, reserved;
} piece;

typedef struct pieces {
    const ts_model *model;
    piece *piece;
    char *names; /* of those that have no origin */
    int64_t count, capacity;
} pieces;

/* The published files it was read from; NULL: it was made, or came from a checkpoint of ours. */
static const tsi_weights *weights_of(const ts_model *model)
{
    return model->origin ? model->origin->weights : NULL;
}

/* ---- what will be written -------------------------------------------------------------------- */

static ts_status piece_add(pieces *p, const piece *one)
{
    if (p->count == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 256;
        piece *grown = tsi_realloc(p->piece, (size_t)capacity * sizeof *grown);
        if (!grown)
            return tsi_fail_memory("the list of parameters", (size_t)capacity * sizeof *grown);
        p->piece = grown;
        p->capacity = capacity;
    }
    p->piece[p->count++] = *one;
    return TS_OK;
}

static ts_status list_made(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    pieces *p = context;
    piece one = { .value = param->value, .expert = -1, .half = -1 };
    one.meta = (ts_meta){ .shape = param->shape, .dtype = param->value->dtype };
    char *kept = p->names + (size_t)p->count * NAME_BYTES;
    snprintf(kept, NAME_BYTES, "%s", name);
    one.name = kept;
    one.stored_dtype = one.meta.dtype;
    return piece_add(p, &one);
}

static ts_status list_read(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    pieces *p = context;
    tsi_sources from;
    ts_status status = tsi_sources_find(p->model->origin, name, &param->shape, &from);
    bool halves = from.count > param->shape.extent[0];
    for (int64_t k = 0; k < from.count && status == TS_OK; k++) {
        const tsi_stored *stored = from.part[k]->stored;
        piece one = { .name = stored->name, .value = param->value, .expert = -1, .half = -1 };
        if (from.count > 1) one.expert = halves ? k / 2 : k;
        if (from.count > 1 && halves) one.half = (int32_t)(k % 2);
        one.meta = (ts_meta){ .shape = stored->meta.shape, .dtype = param->value->dtype };
        one.file = stored->file;
        one.begin = stored->begin;
        one.stored_dtype = stored->meta.dtype;
        status = piece_add(p, &one);
    }
    tsi_free(from.part);
    return status;
}

/* Tensors of the origin that have no parameter and stay; 8-bit ones become what weights are. */
static ts_status list_beyond(pieces *p)
{
    const ts_archive *origin = p->model->origin;
    int32_t dtype = p->count > 0 ? p->piece[0].meta.dtype : TS_DTYPE_F32;
    struct stat about;
    bool gone = stat(origin->path, &about) != 0;
    for (int64_t i = 0; i < origin->count; i++) {
        const tsi_entry *e = &origin->entry[i];
        if (!tsi_model_is_beyond(p->model, e->name)) continue;
        if (gone) { /* what was trained is worth more than what comes along */
            tsi_log(TSI_LOG_WARN, "%s is gone: \"%s\" and all that came with it is left out",
                    origin->path, e->name);
            return TS_OK;
        }
        piece one = { .name = e->name,
                      .entry = e,
                      .meta = e->meta,
                      .expert = -1,
                      .half = -1,
                      .file = e->stored ? e->stored->file : 0,
                      .begin = e->stored ? e->stored->begin : 0,
                      .stored_dtype = e->stored ? e->stored->meta.dtype : e->meta.dtype };
        if (e->float8) one.meta.dtype = dtype;
        TSI_TRY(piece_add(p, &one));
    }
    return TS_OK;
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return strcmp(x->name, y->name);
}

static ts_status count_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)param;
    (void)name;
    ++*(int64_t *)context;
    return TS_OK;
}

static ts_status list_pieces(ts_model *model, pieces *p)
{
    int64_t count = 0;
    TSI_TRY(tsi_module_visit(model->root, count_param, &count));
    p->names = tsi_calloc((size_t)count + 1, NAME_BYTES);
    if (!p->names) return tsi_fail_memory("the names of parameters", (size_t)count * NAME_BYTES);
    TSI_TRY(tsi_module_visit(model->root, weights_of(model) ? list_read : list_made, p));
    if (model->origin) TSI_TRY(list_beyond(p));
    qsort(p->piece, (size_t)p->count, sizeof *p->piece, by_place);
    return TS_OK;
}

/* ---- one file -------------------------------------------------------------------------------- */

static ts_tensor *rows(ts_tensor *x, int32_t dim, int64_t begin, int64_t end)
{
    ts_slice_options options = TS_INIT(ts_slice_options);
    options.start = begin;
    options.end = end;
    options.end_is_given = 1;
    return ts_slice(x, dim, &options);
}

/* The whole tensor, on every rank; of a model in stages on the one that writes, which others are
 * outside of. */
static ts_tensor *gathered(ts_model *model, const piece *one)
{
    ts_tensor *x = one->value;
    int64_t width = one->meta.shape.extent[0];
    if (one->expert >= 0) x = rows(x, 0, one->expert, one->expert + 1);
    if (one->half >= 0) x = rows(x, 1, one->half * width, (one->half + 1) * width);
    const ts_sharding *there = model->stages ? ts_sharding_get(tsi_model_first(model), "R") : NULL;
    return model->stages ? (ts_redistribute_to)(x, there) : (ts_tensor_full)(x);
}

/* A dense block of the rank's device, by way of the host. */
static ts_status write_block(tsi_weights_writer *writer, ts_tensor *whole)
{
    tsi_block block = tsi_array_block(whole->array);
    size_t bytes = (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)block.dtype);
    tsi_image image;
    TSI_TRY(tsi_image_open(whole->rank, &block, TSI_IMAGE_READ, &image));
    ts_status status = tsi_rank_device_sync(whole->rank);
    if (status == TS_OK) status = tsi_weights_write(writer, image.block.data, bytes);
    tsi_image_drop(&image);
    return status;
}

/* From the files of the origin. */
static ts_status copy_piece(const ts_model *model, const piece *one, tsi_weights_writer *writer)
{
    ts_dtype dtype = (ts_dtype)one->meta.dtype;
    int64_t all = ts_shape_count(&one->meta.shape),
            most = COPY_BYTES / (int64_t)ts_dtype_size(dtype);
    void *data = tsi_alloc(COPY_BYTES);
    ts_status status = data ? TS_OK : tsi_fail_memory("a piece of a tensor", COPY_BYTES);
    for (int64_t at = 0; at < all && status == TS_OK; at += most) {
        int64_t count = all - at < most ? all - at : most;
        status = tsi_archive_read_range(model->origin, one->entry, at, count, dtype, data);
        if (status == TS_OK)
            status = tsi_weights_write(writer, data, (size_t)count * ts_dtype_size(dtype));
    }
    tsi_free(data);
    return status;
}

static ts_status save_piece(ts_model *model, const piece *one, tsi_weights_writer *writer)
{
    if (!one->value) return writer ? copy_piece(model, one, writer) : TS_OK;
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.label = "save";
    options.no_grad = 1;
    if (one->value == model->unsaved) return TS_OK;
    ts_scope scope = ts_scope_open_with(model->rank, &options);
    ts_tensor *whole = ts_clone(gathered(model, one));
    ts_status status = whole ? tsi_tensor_ready(whole) : ts_rank_status(model->rank);
    if (status == TS_OK && writer) status = write_block(writer, whole);
    ts_scope_close(scope);
    return status;
}

static ts_status create_made(const char *path, const piece *one, int64_t count,
                             tsi_weights_writer **out)
{
    size_t length = 0;
    tsi_weights_entry *entry = tsi_calloc((size_t)count + 1, sizeof *entry);
    for (int64_t i = 0; entry && i < count; i++)
        entry[i] = (tsi_weights_entry){ one[i].name, one[i].meta };
    char *header = entry ? tsi_weights_header_text(entry, count, &length) : NULL;
    ts_status status = header ? tsi_weights_create(path, header, length, out)
                              : tsi_fail_memory("a header", (size_t)count * sizeof *entry);
    tsi_free(header);
    tsi_free(entry);
    return status;
}

static bool unchanged(const piece *one, int64_t count, int64_t stored_count)
{
    for (int64_t i = 0; i < count; i++)
        if (one[i].stored_dtype != one[i].meta.dtype) return false;
    return count == stored_count;
}

static int64_t stored_in(const tsi_weights *w, int32_t file)
{
    int64_t count = 0;
    for (int64_t i = 0; i < tsi_weights_count(w); i++)
        count += tsi_weights_at(w, i)->file == file;
    return count;
}

static ts_status file_create(const ts_model *model, const char *directory, const piece *one,
                             int64_t count, tsi_weights_writer **out)
{
    char path[PATH_BYTES];
    const tsi_weights *origin = weights_of(model);
    tsi_weights_file file = { .name = "model.safetensors" };
    if (origin) file = tsi_weights_file_at(origin, one->file);
    snprintf(path, sizeof path, "%s/%s", directory, file.name);
    if (origin && unchanged(one, count, stored_in(origin, one->file)))
        return tsi_weights_create(path, file.header, file.header_length, out);
    return create_made(path, one, count, out);
}

static ts_status save_file(ts_model *model, const char *directory, const piece *one, int64_t count,
                           bool writes)
{
    tsi_weights_writer *writer = NULL;
    ts_status status = writes ? file_create(model, directory, one, count, &writer) : TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; i++)
        status = save_piece(model, &one[i], writer);
    if (writer) {
        ts_status finished = tsi_weights_finish(writer, status == TS_OK);
        if (status == TS_OK) status = finished;
    }
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static ts_status write_text(const char *directory, const char *name, const char *text)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return tsi_file_replace(path, text, strlen(text));
}

/* The index of pieces that are not all there was. */
static char *index_text(const pieces *p)
{
    tsi_text out = { 0 };
    tsi_text_add(&out, "{\n \"metadata\": {},\n \"weight_map\": {");
    for (int64_t i = 0; i < p->count; i++) {
        tsi_text_add(&out, i ? ",\n  " : "\n  ");
        tsi_text_json(&out, p->piece[i].name);
        tsi_text_add(&out, ": ");
        tsi_text_json(&out, tsi_weights_file_at(weights_of(p->model), p->piece[i].file).name);
    }
    tsi_text_add(&out, "\n }\n}\n");
    return tsi_text_take(&out);
}

static ts_status write_index(const pieces *p, const char *directory)
{
    const tsi_weights *origin = weights_of(p->model);
    const char *text = origin ? tsi_weights_index(origin) : NULL;
    if (!text) return TS_OK;
    char *made = NULL;
    if (!unchanged(p->piece, p->count, tsi_weights_count(origin))) text = made = index_text(p);
    ts_status status = text ? write_text(directory, "model.safetensors.index.json", text)
                            : tsi_fail_memory("an index", 1);
    tsi_free(made);
    return status;
}

/* As it was read, but for the dtype where that of the weights is another. */
static char *config_of(const ts_model *model, const pieces *p)
{
    const char *read = model->config_text;
    char *made = read ? NULL : tsi_model_config_text(&model->config);
    if (!read && !made) return NULL;
    bool same = read && unchanged(p->piece, p->count, p->count);
    ts_dtype dtype = p->count > 0 ? (ts_dtype)p->piece[0].meta.dtype : TS_DTYPE_F32;
    char *text = same ? tsi_strdup(read) : tsi_config_with_dtype(read ? read : made, dtype, !read);
    if (!text) tsi_fail_memory("a configuration", strlen(read ? read : made));
    tsi_free(made);
    return text;
}

char *tsi_model_config_saved(ts_model *model)
{
    pieces p = { .model = model };
    char *text = list_pieces(model, &p) == TS_OK ? config_of(model, &p) : NULL;
    tsi_free(p.piece);
    tsi_free(p.names);
    return text;
}

static ts_status write_config(const ts_model *model, const pieces *p, const char *directory)
{
    char *text = config_of(model, p);
    ts_status status = text ? write_text(directory, "config.json", text) : TS_ERR_MEMORY;
    tsi_free(text);
    return status;
}

static ts_status write_texts(const ts_model *model, const pieces *p, const char *directory)
{
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return TSI_FAIL(TS_ERR_IO, "%s: %s", directory, strerror(errno));
    TSI_TRY(write_config(model, p, directory));
    if (model->origin) TSI_TRY(tsi_copy_others(model->origin->path, directory));
    return write_index(p, directory);
}

static ts_status save_all(ts_model *model, const char *directory, const pieces *p)
{
    const ts_mesh *all = tsi_model_mesh(model);
    bool writes = all->member && tsi_mesh_desc_ravel(all->desc, all->coord) == 0;
    ts_status status = writes ? write_texts(model, p, directory) : TS_OK;
    for (int64_t i = 0, end; i < p->count && status == TS_OK; i = end) {
        for (end = i + 1; end < p->count && p->piece[end].file == p->piece[i].file; end++)
            ;
        status = save_file(model, directory, &p->piece[i], end - i, writes);
    }
    return status == TS_OK && writes ? tsi_directory_sync(directory) : status;
}

ts_status(ts_model_save)(ts_model *model, const char *directory)
{
    if (!model || !directory) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(model->rank));
    pieces p = { .model = model };
    ts_status status = list_pieces(model, &p);
    if (status == TS_OK) status = save_all(model, directory, &p);
    tsi_free(p.piece);
    tsi_free(p.names);
    return status;
}
