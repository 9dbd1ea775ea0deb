/* SPDX-License-Identifier: Apache-2.0 */
/* archive.c - opening checkpoints of any format, and what is known of them without reading data.
 */
#include "checkpoint/archive.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "base/rank.h"
#include "checkpoint/folder.h"

enum { PATH_BYTES = 4096, RANKS_MAX = 1 << 24 };

/* ---- names ----------------------------------------------------------------------------------- */

static uint64_t key_of(const char *name)
{
    return tsi_hash_text(0x6172636869, name);
}

static bool name_equal(const void *value, const void *wanted)
{
    return strcmp(((const tsi_entry *)value)->name, wanted) == 0;
}

const tsi_entry *tsi_archive_find(const ts_archive *c, const char *name)
{
    return tsi_map_find(&c->by_name, key_of(name), name_equal, name);
}

static ts_status index_names(ts_archive *c)
{
    for (int64_t i = 0; i < c->count; i++) {
        const char *name = c->entry[i].name;
        if (tsi_archive_find(c, name))
            return TSI_FAIL(TS_ERR_IO, "%s: tensor \"%.200s\" occurs twice", c->path, name);
        TSI_TRY(tsi_map_insert(&c->by_name, key_of(name), &c->entry[i]));
    }
    return TS_OK;
}

/* ---- our own format -------------------------------------------------------------------------- */

static ts_status refuse_layout(const ts_archive *c, const char *name, const char *why)
{
    return TSI_FAIL(TS_ERR_IO, "%s/" TSI_INDEX_NAME ": tensor \"%.200s\": %s", c->path, name, why);
}

/* Who holds what in the files, from the texts of the index. */
static ts_status layout_of(ts_archive *c, const tsi_index_tensor *t, tsi_mesh_desc *mesh,
                           const ts_layout **out)
{
    const ts_sharding *sharding = tsi_sharding_parse(mesh, t->sharding);
    if (!sharding) return refuse_layout(c, t->name, "its placements cannot be read");
    *out = tsi_layout_intern(sharding, &t->meta.shape);
    ts_sharding_release(sharding);
    if (!*out) return refuse_layout(c, t->name, "its placements do not fit its shape");
    if ((*out)->axes_partial)
        return refuse_layout(c, t->name, "its placements are partial, which is never written");
    return TS_OK;
}

/* A reader walks over the blocks of the writer: a count of ranks beyond all machines is refused. */
static ts_status mesh_of(ts_archive *c, const char *text, tsi_mesh_desc **out)
{
    TSI_TRY(tsi_mesh_desc_parse(c->world, text, -1, out));
    if ((*out)->count <= RANKS_MAX) return TS_OK;
    int64_t count = (*out)->count;
    tsi_mesh_desc_release(*out);
    *out = NULL;
    return TSI_FAIL(TS_ERR_IO, "%s/" TSI_INDEX_NAME ": a mesh of %lld ranks, more than %d", c->path,
                    (long long)count, RANKS_MAX);
}

static ts_status fill_ours(ts_archive *c, tsi_mesh_desc *mesh)
{
    for (int64_t i = 0; i < c->index.tensor_count; i++) {
        const tsi_index_tensor *t = &c->index.tensor[i];
        tsi_entry *e = &c->entry[c->count++];
        *e = (tsi_entry){
            .name = t->name, .of = t->of, .sharding = t->sharding, .meta = t->meta, .hash = t->hash
        };
        tsi_mesh_desc *own = mesh;
        if (t->mesh) TSI_TRY(mesh_of(c, t->mesh, &own));
        ts_status status = layout_of(c, t, own, &e->layout);
        if (own != mesh) tsi_mesh_desc_release(own);
        TSI_TRY(status);
    }
    return TS_OK;
}

static ts_status open_text(ts_archive *c, const char *path, const char *text, size_t length)
{
    TSI_TRY(tsi_index_parse(path, text, length, &c->index));
    c->ours = true;
    c->format = "tessera";
    c->entry = tsi_calloc((size_t)c->index.tensor_count + 1, sizeof *c->entry);
    if (!c->entry)
        return tsi_fail_memory("the tensors of a checkpoint",
                               (size_t)c->index.tensor_count * sizeof *c->entry);
    TSI_TRY(tsi_world_make(1, 1, 0, 1, &c->world));
    tsi_mesh_desc *mesh = NULL;
    TSI_TRY(mesh_of(c, c->index.mesh, &mesh));
    ts_status status = fill_ours(c, mesh);
    tsi_mesh_desc_release(mesh);
    return status;
}

static ts_status open_ours(ts_archive *c, const char *path)
{
    char *text = NULL;
    size_t length = 0;
    TSI_TRY(tsi_file_read(path, TSI_INDEX_BYTES_MAX, &text, &length));
    ts_status status = open_text(c, path, text, length);
    tsi_free(text);
    return status;
}

/* ---- published weights ----------------------------------------------------------------------- */

/* Is it what another tensor is multiplied by? Then it is none of its own. */
static bool is_scale(const tsi_weights *weights, const tsi_stored *stored)
{
    char name[1024];
    size_t length = strlen(stored->name), tail = strlen(TSI_SCALE_TAIL);
    if (length <= tail || strcmp(stored->name + length - tail, TSI_SCALE_TAIL) != 0) return false;
    snprintf(name, sizeof name, "%.*s", (int)(length - tail), stored->name);
    const tsi_stored *of = tsi_weights_find(weights, name);
    return of && of->float8;
}

static ts_status open_published(ts_archive *c, const char *path)
{
    c->format = "hf";
    TSI_TRY(tsi_weights_open(path, &c->weights));
    int64_t count = tsi_weights_count(c->weights);
    c->entry = tsi_calloc((size_t)count + 1, sizeof *c->entry);
    if (!c->entry)
        return tsi_fail_memory("the tensors of a file", (size_t)count * sizeof *c->entry);
    for (int64_t i = 0; i < count; i++) {
        const tsi_stored *stored = tsi_weights_at(c->weights, i);
        tsi_entry e = { .name = stored->name,
                        .of = "",
                        .sharding = "R",
                        .meta = stored->meta,
                        .stored = stored,
                        .float8 = stored->float8 };
        if (is_scale(c->weights, stored)) continue;
        if (e.float8) TSI_TRY(tsi_archive_scale(c, stored, &e.scale));
        if (e.float8) e.meta.dtype = TS_DTYPE_F32;
        c->entry[c->count++] = e;
    }
    return TS_OK;
}

/* ---- distributed checkpoints of PyTorch ------------------------------------------------------ */

/* State dicts have no types; by custom, what optimisers own is under one of these names. */
static const char *owner_of(const char *name)
{
    return strncmp(name, "optim.", 6) == 0 || strncmp(name, "optimizer.", 10) == 0 ? "optimizer"
                                                                                   : "";
}

static ts_status take_values(ts_archive *c)
{
    int64_t count = tsi_dcp_value_count(c->dcp);
    c->index.value = tsi_arena_calloc(&c->index.memory, (size_t)count + 1, sizeof *c->index.value);
    if (!c->index.value) return tsi_fail_memory("the values of a checkpoint", (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        tsi_dcp_value value = tsi_dcp_value_at(c->dcp, i);
        c->index.value[c->index.value_count++] = (tsi_index_value){ value.name, value.text };
    }
    return TS_OK;
}

static ts_status open_dcp(ts_archive *c, const char *path)
{
    c->format = "dcp";
    TSI_TRY(tsi_dcp_open(path, &c->dcp));
    int64_t count = tsi_dcp_tensor_count(c->dcp);
    c->entry = tsi_calloc((size_t)count + 1, sizeof *c->entry);
    if (!c->entry)
        return tsi_fail_memory("the tensors of a checkpoint", (size_t)count * sizeof *c->entry);
    for (int64_t i = 0; i < count; i++) {
        const tsi_dcp_tensor *boxes = tsi_dcp_tensor_at(c->dcp, i);
        tsi_entry *e = &c->entry[c->count++];
        *e = (tsi_entry){ .name = boxes->name,
                          .of = owner_of(boxes->name),
                          .sharding = "R",
                          .meta = boxes->meta,
                          .boxes = boxes,
                          .float8 = boxes->float8 };
        if (e->float8) e->meta.dtype = TS_DTYPE_F32;
    }
    return take_values(c);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool has_file(const char *directory, const char *name)
{
    char path[PATH_BYTES];
    struct stat about;
    return snprintf(path, sizeof path, "%s/%s", directory, name) < PATH_BYTES &&
           stat(path, &about) == 0;
}

static ts_status open_as(ts_archive *c, const char *path)
{
    char index[PATH_BYTES], kept[PATH_BYTES];
    struct stat about;
    /* Between the two renames of a save over an old one, the old one has another name. */
    if (stat(path, &about) != 0 && tsi_folder_find_old(path, kept, sizeof kept)) path = kept;
    c->path = tsi_strdup(path);
    if (!c->path) return tsi_fail_memory("a path", strlen(path));
    if (snprintf(index, sizeof index, "%s/" TSI_INDEX_NAME, path) >= PATH_BYTES)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", path);
    if (stat(index, &about) == 0)
        TSI_TRY(open_ours(c, index));
    else if (has_file(path, TSI_DCP_METADATA))
        TSI_TRY(open_dcp(c, path));
    else
        TSI_TRY(open_published(c, path));
    return index_names(c);
}

ts_status tsi_archive_open_text(const char *text, size_t length, ts_archive **out)
{
    *out = NULL;
    ts_archive *c = tsi_calloc(1, sizeof *c);
    if (!c) return tsi_fail_memory("a checkpoint", sizeof *c);
    c->path = tsi_strdup("");
    ts_status status =
        c->path ? open_text(c, TSI_INDEX_NAME, text, length) : tsi_fail_memory("a path", 1);
    if (status == TS_OK) status = index_names(c);
    if (status == TS_OK)
        *out = c;
    else
        ts_archive_close(c);
    return status;
}

ts_status ts_archive_open(const char *path, ts_archive **out)
{
    if (!path || !out) return TSI_FAIL(TS_ERR_NULL, "archive_open: an argument is NULL");
    *out = NULL;
    ts_archive *c = tsi_calloc(1, sizeof *c);
    if (!c) return tsi_fail_memory("a checkpoint", sizeof *c);
    ts_status status = open_as(c, path);
    if (status == TS_OK)
        *out = c;
    else
        ts_archive_close(c);
    return status;
}

void tsi_archive_close_files(ts_archive *c)
{
    for (int i = 0; i < TSI_ARCHIVE_FILES; i++) {
        tsi_data_close(c->file[i].file);
        c->file[i].file = NULL;
    }
    if (c->weights) tsi_weights_close_files(c->weights);
    if (c->dcp) tsi_dcp_close_files(c->dcp);
    tsi_free(c->window);
    tsi_free(c->dealing);
    tsi_free(c->scale);
    c->window = NULL;
    c->dealing = NULL;
    c->scale = NULL;
    c->scale_of = NULL;
}

void ts_archive_close(ts_archive *c)
{
    if (!c) return;
    tsi_archive_close_files(c);
    for (int64_t i = 0; i < c->count; i++)
        ts_layout_release(c->entry[i].layout);
    if (c->world) tsi_world_unmake(c->world);
    tsi_weights_close(c->weights);
    tsi_dcp_close(c->dcp);
    tsi_map_release(&c->by_name);
    tsi_index_release(&c->index);
    tsi_free(c->entry);
    tsi_free(c->path);
    tsi_free(c);
}

ts_status tsi_archive_file_of(ts_archive *c, int64_t rank, tsi_data_file **out)
{
    tsi_archive_file *oldest = &c->file[0];
    for (int i = 0; i < TSI_ARCHIVE_FILES; i++) {
        tsi_archive_file *f = &c->file[i];
        if (f->file && f->rank == rank) {
            f->used = ++c->clock;
            *out = f->file;
            return TS_OK;
        }
        if (!f->file || (oldest->file && f->used < oldest->used)) oldest = f;
    }
    char name[TSI_DATA_NAME_MAX], path[PATH_BYTES];
    tsi_data_file_name(name, rank);
    snprintf(path, sizeof path, "%s/%s", c->path, name);
    tsi_data_close(oldest->file);
    *oldest = (tsi_archive_file){ .rank = rank, .used = ++c->clock };
    ts_status status = tsi_data_open(path, c->index.save, rank, &oldest->file);
    *out = oldest->file;
    return status;
}

/* ---- what is known --------------------------------------------------------------------------- */

void ts_archive_about_of(const ts_archive *c, ts_archive_about *out)
{
    *out = (ts_archive_about){ .struct_size = sizeof *out,
                               .format = c->format,
                               .mesh = c->ours ? c->index.mesh : "",
                               .step = c->ours ? c->index.step : -1,
                               .tensor_count = c->count,
                               .hash = c->index.hash,
                               .hashed = c->ours,
                               .copies = c->ours ? (int32_t)c->index.copies : 1 };
}

void ts_archive_tensor_at(const ts_archive *c, int64_t index, ts_archive_tensor *out)
{
    *out = (ts_archive_tensor){ .struct_size = sizeof *out };
    if (!c || index < 0 || index >= c->count) return;
    const tsi_entry *e = &c->entry[index];
    out->name = e->name;
    out->of = e->of;
    out->sharding = e->sharding;
    out->meta = e->meta;
    out->hash = e->hash;
    out->bytes = ts_shape_count(&e->meta.shape) * (int64_t)ts_dtype_size((ts_dtype)e->meta.dtype);
}

int64_t ts_archive_find(const ts_archive *c, const char *name)
{
    const tsi_entry *e = c && name ? tsi_archive_find(c, name) : NULL;
    return e ? e - c->entry : -1;
}

const char *ts_archive_value(const ts_archive *c, const char *name)
{
    return c && name ? tsi_index_value_of(&c->index, name) : NULL;
}
