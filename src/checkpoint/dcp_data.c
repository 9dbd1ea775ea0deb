/* SPDX-License-Identifier: Apache-2.0 */
/* dcp_data.c - the chunks of a distributed checkpoint of PyTorch: that they cover their tensor, and
 * their elements.
 *
 * Where the elements of a chunk lie is found when they are read for the first time. Elements that
 * are not in row-major order (a transposed weight) are put into it in memory, a chunk at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/dcp_body.h"
#include "checkpoint/torch_file.h"

enum { COMPARED_MAX = 1 << 26 };
typedef enum form { FORM_UNKNOWN, FORM_DENSE, FORM_STRIDED } form;

/* ---- covering -------------------------------------------------------------------------------- */

static int compare_at(const void *a, const void *b, int32_t dim)
{
    const tsi_dcp_chunk *x = *(const tsi_dcp_chunk *const *)a,
                        *y = *(const tsi_dcp_chunk *const *)b;
    return x->first[dim] < y->first[dim] ? -1 : x->first[dim] > y->first[dim];
}

/* qsort has no context: a function for each dim. */
#define BY_DIM(d)                                                                                  \
    static int by_dim##d(const void *a, const void *b)                                             \
    {                                                                                              \
        return compare_at(a, b, d);                                                                \
    }
BY_DIM(0)
BY_DIM(1)
BY_DIM(2)
BY_DIM(3)
BY_DIM(4)
BY_DIM(5)
BY_DIM(6)
BY_DIM(7)
static int (*const by_dim[TS_NDIM_MAX])(const void *a, const void *b) = { by_dim0, by_dim1, by_dim2,
                                                                          by_dim3, by_dim4, by_dim5,
                                                                          by_dim6, by_dim7 };

/* The dim in which the chunks begin at most places, and the chunks sorted by it. */
static int32_t sort_chunks(const tsi_dcp_chunk **sorted, int64_t count, int32_t ndim)
{
    int32_t best = 0;
    int64_t most = -1;
    for (int32_t d = 0; d < ndim; d++) {
        int64_t places = 0;
        qsort(sorted, (size_t)count, sizeof *sorted, by_dim[d]);
        for (int64_t i = 1; i < count; i++)
            places += sorted[i]->first[d] != sorted[i - 1]->first[d];
        if (places > most) best = d;
        if (places > most) most = places;
    }
    qsort(sorted, (size_t)count, sizeof *sorted, by_dim[best]);
    return best;
}

static bool overlap(const tsi_dcp_chunk *a, const tsi_dcp_chunk *b, int32_t ndim)
{
    for (int32_t d = 0; d < ndim; d++)
        if (a->first[d] + a->extent[d] <= b->first[d] || b->first[d] + b->extent[d] <= a->first[d])
            return false;
    return true;
}

static bool any_overlap(const tsi_dcp_chunk *const *sorted, int64_t count, int32_t dim,
                        int32_t ndim)
{
    int64_t compared = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t end = sorted[i]->first[dim] + sorted[i]->extent[dim];
        for (int64_t k = i + 1; k < count && sorted[k]->first[dim] < end; k++)
            if (++compared > COMPARED_MAX || overlap(sorted[i], sorted[k], ndim)) return true;
    }
    return false;
}

ts_status tsi_dcp_check_cover(const tsi_dcp *d, const tsi_dcp_tensor *t)
{
    int64_t all = ts_shape_count(&t->meta.shape), have = 0;
    int32_t ndim = t->meta.shape.ndim;
    for (int64_t i = 0; i < t->chunk_count && have <= all; i++)
        have += t->chunk[i].count;
    bool wrong = have != all;
    if (!wrong && ndim > 0 && t->chunk_count > 1) {
        const tsi_dcp_chunk **sorted = tsi_alloc_array((size_t)t->chunk_count, sizeof *sorted);
        if (!sorted) return tsi_fail_memory("the chunks of a tensor", (size_t)t->chunk_count);
        for (int64_t i = 0; i < t->chunk_count; i++)
            sorted[i] = &t->chunk[i];
        int32_t dim = sort_chunks(sorted, t->chunk_count, ndim);
        wrong = any_overlap(sorted, t->chunk_count, dim, ndim);
        tsi_free(sorted);
    }
    if (!wrong) return TS_OK;
    return TSI_FAIL(TS_ERR_IO,
                    "%s/" TSI_DCP_METADATA ": \"%.200s\": its %lld chunks do not cover it, or "
                    "overlap",
                    d->path, t->name, (long long)t->chunk_count);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void path_of(const tsi_dcp *d, int32_t number, char *out)
{
    snprintf(out, TSI_DCP_PATH_BYTES, "%s/%s", d->path, d->file[number].name);
}

static void close_oldest(tsi_dcp *d)
{
    tsi_dcp_file *oldest = NULL;
    for (int32_t i = 0; i < d->file_count; i++)
        if (d->file[i].fd >= 0 && (!oldest || d->file[i].used < oldest->used)) oldest = &d->file[i];
    if (!oldest) return;
    close(oldest->fd);
    oldest->fd = -1;
    d->open_count--;
}

static ts_status open_file(tsi_dcp *d, int32_t number, const tsi_dcp_file **out)
{
    tsi_dcp_file *f = &d->file[number];
    *out = f;
    f->used = ++d->clock;
    if (f->fd >= 0) return TS_OK;
    char path[TSI_DCP_PATH_BYTES];
    path_of(d, number, path);
    if (d->open_count >= TSI_DCP_FILES_OPEN) close_oldest(d);
    TSI_TRY(tsi_file_open(path, &f->fd, &f->bytes));
    d->open_count++;
    return TS_OK;
}

void tsi_dcp_close_files(tsi_dcp *d)
{
    while (d->open_count > 0)
        close_oldest(d);
    tsi_free(d->dense);
    d->dense = NULL;
    d->dense_of = NULL;
}

/* ---- archives -------------------------------------------------------------------------------- */

typedef struct archive {
    char path[TSI_DCP_PATH_BYTES];
    const tsi_dcp_file *file;
    tsi_torch_file torch;
} archive;

/* `begin` and `bytes` are those that the metadata tells. */
static ts_status open_archive(tsi_dcp *d, const tsi_dcp_chunk *c, archive *out)
{
    TSI_TRY(open_file(d, c->file, &out->file));
    path_of(d, c->file, out->path);
    if (c->bytes > out->file->bytes || c->begin > out->file->bytes - c->bytes)
        return TSI_FAIL(TS_ERR_IO, "%s: has %lld bytes, and %lld from byte %lld on are looked for",
                        out->path, (long long)out->file->bytes, (long long)c->bytes,
                        (long long)c->begin);
    return tsi_torch_open(out->path, out->file->fd, c->begin, c->bytes, &out->torch);
}

static ts_status read_bytes(tsi_dcp *d, int32_t number, int64_t begin, size_t bytes, void *to)
{
    const tsi_dcp_file *f = NULL;
    char path[TSI_DCP_PATH_BYTES];
    size_t done = 0;
    TSI_TRY(open_file(d, number, &f));
    path_of(d, number, path);
    TSI_TRY(tsi_file_read_at(path, f->fd, begin, to, bytes, &done));
    if (done == bytes) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: the file ends too early", path);
}

ts_status tsi_dcp_read_plain(tsi_dcp *d, const tsi_dcp_chunk *at, char **out)
{
    archive a;
    *out = NULL;
    TSI_TRY(open_archive(d, at, &a));
    ts_status status = tsi_torch_plain_of(&a.torch, out);
    tsi_torch_close(&a.torch);
    return status;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static bool is_as_told(const tsi_dcp_tensor *t, const tsi_dcp_chunk *c, const tsi_torch_tensor *is)
{
    bool same = is->meta.dtype == t->meta.dtype && is->float8 == t->float8 &&
                is->meta.shape.ndim == t->meta.shape.ndim;
    for (int32_t d = 0; same && d < is->meta.shape.ndim; d++)
        same = is->meta.shape.extent[d] == c->extent[d];
    return same;
}

/* Puts the elements, which lie in `from` by strides, one after the other. */
static void gather(const tsi_torch_tensor *is, const char *from, char *to)
{
    size_t size = ts_dtype_size((ts_dtype)is->meta.dtype);
    int64_t index[TS_NDIM_MAX] = { 0 }, at = 0;
    const ts_shape *shape = &is->meta.shape;
    for (int64_t left = ts_shape_count(shape); left > 0; left--) {
        memcpy(to, from + (size_t)at * size, size);
        to += size;
        for (int32_t d = shape->ndim - 1; d >= 0; d--) {
            at += is->stride[d];
            if (++index[d] < shape->extent[d]) break;
            at -= is->stride[d] * shape->extent[d];
            index[d] = 0;
        }
    }
}

static ts_status make_dense(tsi_dcp *d, const tsi_dcp_chunk *c, const tsi_torch_tensor *is)
{
    size_t bytes = (size_t)c->count * ts_dtype_size((ts_dtype)is->meta.dtype);
    tsi_free(d->dense);
    d->dense_of = NULL;
    d->dense = tsi_alloc(bytes + 1);
    char *stored = tsi_alloc((size_t)is->bytes + 1);
    ts_status status = d->dense && stored
                           ? read_bytes(d, c->file, is->begin, (size_t)is->bytes, stored)
                           : tsi_fail_memory("a chunk that is not in row-major order", bytes);
    if (status == TS_OK) {
        gather(is, stored, d->dense);
        d->dense_of = c;
    }
    tsi_free(stored);
    return status;
}

/* What the archive of a chunk has, which must be what the metadata says. */
static ts_status look_at(tsi_dcp *d, const tsi_dcp_tensor *t, const tsi_dcp_chunk *c,
                         tsi_torch_tensor *is)
{
    archive a;
    TSI_TRY(open_archive(d, c, &a));
    ts_status status = tsi_torch_tensor_of(&a.torch, is);
    tsi_torch_close(&a.torch);
    if (status == TS_OK && !is_as_told(t, c, is))
        return TSI_FAIL(TS_ERR_IO,
                        "%s: byte %lld: the part of \"%.200s\" there has another shape or dtype "
                        "than " TSI_DCP_METADATA " says",
                        a.path, (long long)c->begin, t->name);
    return status;
}

ts_status tsi_dcp_read(tsi_dcp *d, const tsi_dcp_tensor *t, int64_t number, int64_t offset,
                       size_t bytes, void *to)
{
    tsi_dcp_chunk *c = &t->chunk[number];
    if (c->form == FORM_UNKNOWN || (c->form == FORM_STRIDED && d->dense_of != c)) {
        tsi_torch_tensor is;
        TSI_TRY(look_at(d, t, c, &is));
        c->form = is.dense ? FORM_DENSE : FORM_STRIDED;
        if (is.dense) c->begin = is.begin;
        if (is.dense) c->bytes = is.bytes;
        if (!is.dense) TSI_TRY(make_dense(d, c, &is));
    }
    int64_t all = c->count * (int64_t)ts_dtype_size((ts_dtype)t->meta.dtype);
    TSI_ASSERT(offset >= 0 && (int64_t)bytes <= all && offset <= all - (int64_t)bytes);
    if (c->form == FORM_DENSE) return read_bytes(d, c->file, c->begin + offset, bytes, to);
    memcpy(to, d->dense + offset, bytes);
    return TS_OK;
}
