/* SPDX-License-Identifier: Apache-2.0 */
/* dcp.c - from the metadata of a distributed checkpoint of PyTorch to tensors and their chunks: see
 * dcp.h. */
#include "checkpoint/dcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "base/log.h"
#include "base/rank.h"
#include "checkpoint/dcp_body.h"
#include "checkpoint/torch_file.h"

#define METADATA "torch.distributed.checkpoint.metadata."
#define OLDER "torch.distributed._shard.sharded_tensor.metadata." /* before 2.3 */
enum { METADATA_MAX = 1 << 30, INFO_MAX = 64, TEXT_MAX = 64 << 20 };

/* Everything that the metadata of such a checkpoint names. */
static const char *const names[] = { METADATA "Metadata",
                                     METADATA "TensorStorageMetadata",
                                     METADATA "BytesStorageMetadata",
                                     METADATA "ChunkStorageMetadata",
                                     METADATA "TensorProperties",
                                     METADATA "_MEM_FORMAT_ENCODING",
                                     METADATA "MetadataIndex",
                                     METADATA "StorageMeta",
                                     OLDER "TensorProperties",
                                     OLDER "MEM_FORMAT_ENCODING",
                                     "torch.distributed.checkpoint.filesystem._StorageInfo",
                                     "torch.serialization._get_layout",
                                     "torch.Size",
                                     "torch.float*",
                                     "torch.bfloat16",
                                     "torch.int*",
                                     "torch.uint*",
                                     "torch.bool",
                                     "torch.complex*",
                                     "collections.OrderedDict",
                                     "pathlib.PosixPath",
                                     "pathlib.WindowsPath",
                                     "pathlib._local.PosixPath",
                                     "pathlib._local.WindowsPath",
                                     NULL };

typedef struct placed { /* where an item lies, by name and, of a tensor, by the chunk's place */
    const char *name;
    const tsi_pickled *offsets; /* NULL: no tensor */
    const tsi_pickled *info;
} placed;

typedef struct parsing {
    tsi_dcp *dcp;
    tsi_map by_place; /* of placed */
    placed *place;
    int64_t place_count;
    int64_t chunks_left; /* each takes a byte of the file at least */
    size_t text_left;    /* of plain values, all together */
} parsing;

static ts_status refuse(const tsi_dcp *d, const char *name, const char *why)
{
    return TSI_FAIL(TS_ERR_IO, "%s/" TSI_DCP_METADATA ": \"%.200s\": %s", d->path, name, why);
}

/* ---- what is where --------------------------------------------------------------------------- */

/* torch.Size((a, b, ..)), or a tuple as it stands. */
static const tsi_pickled *size_of(const tsi_pickled *value)
{
    if (tsi_pickle_is(value, "torch.Size")) value = tsi_pickle_item(tsi_pickle_arguments(value), 0);
    bool fits = value && value->kind == TSI_PICKLE_TUPLE && value->count <= TS_NDIM_MAX;
    return fits ? value : NULL;
}

static bool extents_of(const tsi_pickled *value, int64_t *out, int32_t *ndim)
{
    const tsi_pickled *size = size_of(value);
    if (!size) return false;
    *ndim = size->count;
    for (int32_t d = 0; d < size->count; d++)
        if (!tsi_pickle_int(size->item[d], &out[d]) || out[d] < 0) return false;
    return true;
}

static uint64_t place_key(const placed *p)
{
    uint64_t key = tsi_hash_text(0x646370, p->name);
    for (int32_t d = 0; p->offsets && d < p->offsets->count; d++) {
        int64_t number = -1;
        (void)tsi_pickle_int(p->offsets->item[d], &number);
        key = tsi_hash_mix(key, (uint64_t)number);
    }
    return key;
}

static bool same_place(const void *value, const void *wanted)
{
    const placed *a = value, *b = wanted;
    if (strcmp(a->name, b->name) != 0 || !a->offsets != !b->offsets) return false;
    if (!a->offsets) return true;
    bool same = a->offsets->count == b->offsets->count;
    for (int32_t d = 0; same && d < a->offsets->count; d++) {
        int64_t x = -1, y = -1;
        same = tsi_pickle_int(a->offsets->item[d], &x) && tsi_pickle_int(b->offsets->item[d], &y) &&
               x == y;
    }
    return same;
}

static ts_status read_places(parsing *p, const tsi_pickled *storage)
{
    if (!storage || storage->kind != TSI_PICKLE_DICT)
        return refuse(p->dcp, "storage_data", "is not there: no file was written with it");
    p->place = tsi_calloc((size_t)storage->count + 1, sizeof *p->place);
    if (!p->place) return tsi_fail_memory("a checkpoint's items", (size_t)storage->count);
    for (int32_t i = 0; i < storage->count; i += 2) {
        const tsi_pickled *index = tsi_pickle_state(storage->item[i]);
        placed *at = &p->place[p->place_count];
        *at = (placed){ .name = tsi_pickle_text(tsi_pickle_member(index, "fqn")),
                        .offsets = size_of(tsi_pickle_member(index, "offset")),
                        .info = tsi_pickle_state(storage->item[i + 1]) };
        if (!at->name) return refuse(p->dcp, "storage_data", "an item has no name");
        uint64_t key = place_key(at);
        if (tsi_map_find(&p->by_place, key, same_place, at))
            return refuse(p->dcp, at->name, "one part of it is stored twice");
        TSI_TRY(tsi_map_insert(&p->by_place, key, at));
        p->place_count++;
    }
    return TS_OK;
}

/* The number of a file, which is one of the directory. */
static ts_status file_number(tsi_dcp *d, const char *item, const char *file, int32_t *out)
{
    if (!file || !*file || strchr(file, '/') || strchr(file, '\\') || strcmp(file, "..") == 0 ||
        strlen(file) > 200)
        return refuse(d, item, "it lies in a file that is not one of this directory");
    for (int32_t i = d->file_count; i > 0; i--) /* the last ones first: items come by files */
        if (strcmp(d->file[i - 1].name, file) == 0) {
            *out = i - 1;
            return TS_OK;
        }
    if (d->file_count == d->file_capacity) {
        int32_t capacity = d->file_capacity ? 2 * d->file_capacity : 64;
        tsi_dcp_file *grown = tsi_realloc(d->file, (size_t)capacity * sizeof *grown);
        if (!grown) return tsi_fail_memory("the files of a checkpoint", sizeof *grown);
        d->file = grown;
        d->file_capacity = capacity;
    }
    *out = d->file_count;
    d->file[d->file_count++] = (tsi_dcp_file){ .name = file, .fd = -1 };
    return TS_OK;
}

/* Where the item lies that is stored under the name and the chunk's place. */
static ts_status find_place(parsing *p, const placed *wanted, tsi_dcp_chunk *out)
{
    const placed *at = tsi_map_find(&p->by_place, place_key(wanted), same_place, wanted);
    if (!at) return refuse(p->dcp, wanted->name, "a part of it is stored nowhere");
    if (at->info && at->info->count > INFO_MAX) /* values may be shared: none is walked for long */
        return refuse(p->dcp, wanted->name, "its place in a file cannot be read");
    const tsi_pickled *more = tsi_pickle_member(at->info, "transform_descriptors");
    if (more && more->kind != TSI_PICKLE_NONE && more->count > 0)
        return refuse(p->dcp, wanted->name,
                      "it is stored compressed or transformed, which is not supported");
    if (!tsi_pickle_int(tsi_pickle_member(at->info, "offset"), &out->begin) ||
        !tsi_pickle_int(tsi_pickle_member(at->info, "length"), &out->bytes) || out->begin < 0 ||
        out->bytes < 0 || out->begin > INT64_MAX - out->bytes)
        return refuse(p->dcp, wanted->name, "its place in a file cannot be read");
    return file_number(p->dcp, wanted->name,
                       tsi_pickle_text(tsi_pickle_member(at->info, "relative_path")), &out->file);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static ts_status read_chunk(parsing *p, const tsi_dcp_tensor *t, const tsi_pickled *chunk,
                            tsi_dcp_chunk *out)
{
    const tsi_pickled *state = tsi_pickle_state(chunk);
    const tsi_pickled *offsets = tsi_pickle_member(state, "offsets");
    int32_t ndim[2] = { -1, -1 };
    *out = (tsi_dcp_chunk){ 0 };
    bool good = extents_of(offsets, out->first, &ndim[0]) &&
                extents_of(tsi_pickle_member(state, "sizes"), out->extent, &ndim[1]) &&
                ndim[0] == t->meta.shape.ndim && ndim[1] == t->meta.shape.ndim;
    for (int32_t d = 0; good && d < t->meta.shape.ndim; d++) {
        int64_t all = t->meta.shape.extent[d];
        good = out->extent[d] <= all && out->first[d] <= all - out->extent[d];
    }
    if (!good) return refuse(p->dcp, t->name, "one of its chunks does not lie in it");
    ts_shape box = { .ndim = t->meta.shape.ndim };
    memcpy(box.extent, out->extent, sizeof box.extent);
    out->count = ts_shape_count(&box); /* 0, or at most the tensor's, which fits */
    if (out->count == 0) return TS_OK;
    placed wanted = { .name = t->name, .offsets = size_of(offsets) };
    return find_place(p, &wanted, out);
}

static ts_status read_tensor(parsing *p, const char *name, const tsi_pickled *state)
{
    tsi_dcp *d = p->dcp;
    tsi_dcp_tensor *t = &d->tensor[d->tensor_count++];
    *t = (tsi_dcp_tensor){ .name = name };
    const tsi_pickled *properties = tsi_pickle_state(tsi_pickle_member(state, "properties"));
    const tsi_pickled *dtype = tsi_pickle_item(properties, 0),
                      *chunks = tsi_pickle_member(state, "chunks");
    const char *dtype_name = dtype && dtype->kind == TSI_PICKLE_CLASS ? dtype->text : "no dtype";
    t->meta.dtype = (int32_t)tsi_torch_dtype(dtype_name, &t->float8);
    if (t->meta.dtype == TS_DTYPE_NONE)
        return TSI_FAIL(TS_ERR_IO, "%s/" TSI_DCP_METADATA ": \"%.200s\": %.80s is no dtype we have",
                        d->path, name, dtype_name);
    int64_t bytes = 0;
    if (!extents_of(tsi_pickle_member(state, "size"), t->meta.shape.extent, &t->meta.shape.ndim) ||
        ts_shape_count(&t->meta.shape) < 0 ||
        !tsi_mul_i64(ts_shape_count(&t->meta.shape), 16, &bytes))
        return refuse(d, name, "its shape cannot be read");
    if (!chunks || chunks->kind != TSI_PICKLE_LIST) return refuse(d, name, "it has no chunks");
    if (chunks->count > p->chunks_left)
        return refuse(d, name, "it has more chunks than the file has bytes");
    p->chunks_left -= chunks->count;
    t->chunk = tsi_arena_calloc(&d->memory, (size_t)chunks->count + 1, sizeof *t->chunk);
    if (!t->chunk) return tsi_fail_memory("the chunks of a tensor", (size_t)chunks->count);
    for (int32_t i = 0; i < chunks->count; i++) {
        TSI_TRY(read_chunk(p, t, chunks->item[i], &t->chunk[t->chunk_count]));
        t->chunk_count += t->chunk[t->chunk_count].count > 0;
    }
    return tsi_dcp_check_cover(d, t);
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Plain objects are kept as texts; others would have to be executed. */
static ts_status read_value(parsing *p, const char *name)
{
    tsi_dcp *d = p->dcp;
    tsi_dcp_chunk at = { 0 };
    placed wanted = { .name = name };
    TSI_TRY(find_place(p, &wanted, &at));
    char *text = NULL;
    if (d->path[0] == '\0') return TS_OK; /* bytes alone */
    ts_rank *me = tsi_rank_current();
    tsi_rank_set_current(NULL); /* what is left out is no failure of the rank */
    ts_status status = tsi_dcp_read_plain(d, &at, &text);
    tsi_rank_set_current(me);
    if (status != TS_OK || !text) {
        tsi_log(TSI_LOG_WARN,
                "%s: \"%.200s\" is left out: it is no tensor, and not made of "
                "numbers, texts, lists and dicts alone",
                d->path, name);
        return TS_OK;
    }
    bool fits = strlen(text) <= p->text_left;
    p->text_left -= fits ? strlen(text) : 0;
    const char *kept = fits ? tsi_arena_strdup(&d->memory, text) : NULL;
    tsi_free(text);
    if (!fits) return refuse(d, name, "the values of the checkpoint are too long together");
    if (!kept) return tsi_fail_memory("a value of a checkpoint", strlen(name));
    d->value[d->value_count++] = (tsi_dcp_value){ name, kept };
    return TS_OK;
}

static ts_status read_items(parsing *p, const tsi_pickled *items)
{
    tsi_dcp *d = p->dcp;
    if (!items || items->kind != TSI_PICKLE_DICT)
        return refuse(d, "state_dict_metadata", "is not there");
    d->tensor = tsi_arena_calloc(&d->memory, (size_t)items->count / 2 + 1, sizeof *d->tensor);
    d->value = tsi_arena_calloc(&d->memory, (size_t)items->count / 2 + 1, sizeof *d->value);
    if (!d->tensor || !d->value)
        return tsi_fail_memory("the tensors of a checkpoint", (size_t)items->count);
    for (int32_t i = 0; i < items->count; i += 2) {
        const char *name = tsi_pickle_text(items->item[i]);
        const tsi_pickled *item = items->item[i + 1];
        if (!name) return refuse(d, "state_dict_metadata", "a name is no text");
        if (tsi_pickle_is(item, METADATA "TensorStorageMetadata"))
            TSI_TRY(read_tensor(p, name, tsi_pickle_state(item)));
        else if (tsi_pickle_is(item, METADATA "BytesStorageMetadata"))
            TSI_TRY(read_value(p, name));
        else
            return refuse(d, name, "it is neither a tensor nor an object");
    }
    return TS_OK;
}

static ts_status parse(tsi_dcp *d, const void *data, size_t bytes)
{
    char path[TSI_DCP_PATH_BYTES];
    const tsi_pickled *root = NULL;
    parsing p = { .dcp = d, .chunks_left = (int64_t)bytes, .text_left = TEXT_MAX };
    snprintf(path, sizeof path, "%s/" TSI_DCP_METADATA, d->path);
    TSI_TRY(tsi_pickle_read(path, 0, data, bytes, names, &d->memory, &root));
    if (!tsi_pickle_is(root, METADATA "Metadata"))
        return TSI_FAIL(TS_ERR_IO, "%s: is a pickle, but none of a checkpoint", path);
    ts_status status = read_places(&p, tsi_pickle_member(tsi_pickle_state(root), "storage_data"));
    if (status == TS_OK)
        status = read_items(&p, tsi_pickle_member(tsi_pickle_state(root), "state_dict_metadata"));
    tsi_map_release(&p.by_place);
    tsi_free(p.place);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static ts_status make(const char *directory, tsi_dcp **out)
{
    *out = tsi_calloc(1, sizeof **out);
    if (*out) (*out)->path = tsi_strdup(directory);
    if (*out && (*out)->path) return TS_OK;
    tsi_free(*out);
    *out = NULL;
    return tsi_fail_memory("a checkpoint", sizeof **out);
}

ts_status tsi_dcp_open_bytes(const void *data, size_t bytes, tsi_dcp **out)
{
    TSI_TRY(make("", out));
    ts_status status = parse(*out, data, bytes);
    if (status == TS_OK) return TS_OK;
    tsi_dcp_close(*out);
    *out = NULL;
    return status;
}

ts_status tsi_dcp_open(const char *directory, tsi_dcp **out)
{
    char path[TSI_DCP_PATH_BYTES], *data = NULL;
    size_t bytes = 0;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/" TSI_DCP_METADATA, directory) >= (int)sizeof path)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", directory);
    TSI_TRY(make(directory, out));
    ts_status status = tsi_file_read(path, METADATA_MAX, &data, &bytes);
    if (status == TS_OK) status = parse(*out, data, bytes);
    tsi_free(data);
    if (status == TS_OK) return TS_OK;
    tsi_dcp_close(*out);
    *out = NULL;
    return status;
}

void tsi_dcp_close(tsi_dcp *d)
{
    if (!d) return;
    tsi_dcp_close_files(d);
    tsi_arena_release(&d->memory);
    tsi_free(d->file);
    tsi_free(d->path);
    tsi_free(d);
}

int64_t tsi_dcp_tensor_count(const tsi_dcp *d)
{
    return d->tensor_count;
}

const tsi_dcp_tensor *tsi_dcp_tensor_at(const tsi_dcp *d, int64_t index)
{
    return &d->tensor[index];
}

int64_t tsi_dcp_value_count(const tsi_dcp *d)
{
    return d->value_count;
}

tsi_dcp_value tsi_dcp_value_at(const tsi_dcp *d, int64_t index)
{
    return d->value[index];
}
