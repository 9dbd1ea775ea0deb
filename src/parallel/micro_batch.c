/* SPDX-License-Identifier: Apache-2.0 */
/* micro_batch.c - parts of a batch: of the rows that each rank has, cut as evenly as possible.
 *
 * Rows are not exchanged: a micro-batch consists of rows from every rank's own piece, and lies as
 * the batch does. INV-3 holds for the parts too: where a rank has fewer rows than others in the
 * batch, it has no more than they have in any part. Where several axes cut the rows unevenly that
 * is not so for any number of parts: the largest that it is so for have rows, the others none.
 *
 *   7 rows on 2 x 3 ranks     2,2,0 1,1,1
 *   5 of them, a part of two  1,1,0 1,1,1     but 5 rows lie as 1,1,1 1,1,0 */
#include "base/alloc.h"
#include "base/error.h"
#include "layout/layout.h"
#include "parallel/pipeline.h"
#include "tensor/tensor.h"
#include "tessera/op.h"
#include "tessera/pipeline.h"

/* Rows before part `micro` of so many; the first parts have one more where it does not divide. */
static int64_t part_begin(int64_t rows, int64_t micros, int64_t micro)
{
    int64_t more = rows % micros;
    return micro * (rows / micros) + (micro < more ? micro : more);
}

static int64_t part_size(int64_t rows, int64_t micros, int64_t micro)
{
    return part_begin(rows, micros, micro + 1) - part_begin(rows, micros, micro);
}

static bool cuts(const ts_layout *layout, int32_t axis, int32_t dim)
{
    ts_placement place = ts_sharding_placement(ts_layout_sharding(layout), axis);
    return place.kind != TS_PLACE_REPLICATE && place.kind != TS_PLACE_PARTIAL && place.dim == dim;
}

/* Each place along the axes that cut the dim counts once. */
static int64_t extent_of(const ts_layout *layout, int32_t dim, int64_t micros, int64_t micro)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    int64_t coord[TS_NDIM_MAX], sum = 0;
    for (int64_t i = 0; i < mesh->count; i++) {
        bool counts = true;
        tsi_mesh_desc_unravel(mesh, i, coord);
        for (int32_t k = 0; k < mesh->ndim && counts; k++)
            counts = coord[k] == 0 || cuts(layout, k, dim);
        if (!counts) continue;
        ts_shape local = ts_layout_local(layout, coord);
        sum += part_size(local.extent[dim], micros, micro);
    }
    return sum;
}

/* Does each rank hold of each part what the sharding gives it there? */
static bool parts_fit(const ts_layout *layout, int32_t dim, int64_t micros)
{
    const tsi_mesh_desc *mesh = layout->sharding->mesh;
    int64_t coord[TS_NDIM_MAX];
    bool fits = true;
    for (int64_t m = 0; m < micros && fits; m++) {
        ts_shape shape = layout->shape;
        shape.extent[dim] = extent_of(layout, dim, micros, m);
        const ts_layout *part = tsi_layout_intern(layout->sharding, &shape);
        for (int64_t i = 0; part && i < mesh->count && fits; i++) {
            tsi_mesh_desc_unravel(mesh, i, coord);
            int64_t rows = ts_layout_local(layout, coord).extent[dim];
            fits = ts_layout_local(part, coord).extent[dim] == part_size(rows, micros, m);
        }
        ts_layout_release(part);
    }
    return fits;
}

/* How many parts have rows. Along one axis, and where ranks have equally many, all. */
static int64_t parts_of(const ts_layout *layout, int32_t dim, int64_t micros)
{
    int32_t axes = 0;
    int64_t ranks = 1;
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        int64_t size = layout->sharding->mesh->size[k];
        if (size == 1 || !cuts(layout, k, dim)) continue;
        ranks *= size;
        axes++;
    }
    if (axes < 2 || layout->shape.extent[dim] % ranks == 0) return micros;
    while (micros > 1 && !parts_fit(layout, dim, micros))
        micros--;
    return micros;
}

int64_t tsi_micro_batch_extent(const ts_layout *layout, int32_t dim, int64_t micros, int64_t micro)
{
    int64_t parts = parts_of(layout, dim, micros);
    return micro < parts ? extent_of(layout, dim, parts, micro) : 0;
}

ts_tensor *ts_micro_batch(ts_tensor *x, int32_t dim, int64_t micros, int64_t micro)
{
    if (!x || tsi_rank_enter(x->rank) != TS_OK) return NULL;
    ts_shape shape = ts_tensor_shape(x);
    if (dim < 0 || dim >= shape.ndim || micros < 1 || micro < 0 || micro >= micros) {
        TSI_FAIL(TS_ERR_ARG, "micro_batch: part %lld of %lld along dim %d of %d", (long long)micro,
                 (long long)micros, dim, shape.ndim);
        return NULL;
    }
    int64_t rows = tsi_array_shape(x->array).extent[dim];
    ts_slice_options slice = TS_INIT(ts_slice_options);
    slice.step = 1;
    int64_t parts = parts_of(x->layout, dim, micros);
    slice.start = micro < parts ? part_begin(rows, parts, micro) : rows;
    slice.end = micro < parts ? part_begin(rows, parts, micro + 1) : rows;
    slice.end_is_given = 1;
    shape.extent[dim] = micro < parts ? extent_of(x->layout, dim, parts, micro) : 0;
    ts_tensor *block = ts_slice(ts_tensor_local(x), dim, &slice);
    return (ts_from_local)(block, ts_layout_sharding(x->layout), shape);
}

/* ---- together again -------------------------------------------------------------------------- */

/* The first that is there; NULL: none is. */
static ts_tensor *first_of(ts_tensor *const *part, int64_t micros)
{
    for (int64_t m = 0; part && m < micros; m++)
        if (part[m]) return part[m];
    return NULL;
}

/* Each rank's rows stay its own: its parts of them, one behind the other, are its piece. */
static ts_tensor *merge(ts_tensor *const *part, int64_t micros, int32_t dim, ts_tensor **local)
{
    const ts_tensor *first = first_of(part, micros);
    ts_shape shape = ts_tensor_shape(first);
    int32_t count = 0;
    shape.extent[dim] = 0;
    for (int64_t m = 0; m < micros; m++) {
        if (!part[m]) continue;
        if (!part[m]->layout) {
            (void)tsi_tensor_refuse(part[m], "micro_merge: part %lld", (long long)m);
            return NULL;
        }
        if (part[m]->layout->sharding != first->layout->sharding) {
            TSI_FAIL(TS_ERR_ARG, "micro_merge: part %lld is %s, and one before it %s", (long long)m,
                     part[m]->layout->text, first->layout->text);
            return NULL;
        }
        shape.extent[dim] += ts_tensor_shape(part[m]).extent[dim];
        local[count++] = ts_tensor_local(part[m]);
    }
    return (ts_from_local)(ts_cat(local, count, dim), first->layout->sharding, shape);
}

ts_tensor *ts_micro_merge(ts_tensor *const *part, int64_t micros, int32_t dim)
{
    const ts_tensor *first = first_of(part, micros);
    ts_rank *rank = first ? first->rank : tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!first || dim < 0 || dim >= ts_tensor_shape(first).ndim || micros > INT32_MAX) {
        TSI_FAIL(TS_ERR_ARG, "micro_merge: %lld parts along dim %d%s", (long long)micros, dim,
                 first ? "" : ", none of which is there");
        return NULL;
    }
    ts_tensor **local = tsi_calloc((size_t)micros, sizeof(ts_tensor *));
    ts_tensor *whole = local ? merge(part, micros, dim, local) : NULL;
    if (!local) tsi_fail_memory("parts of a batch", (size_t)micros * sizeof(ts_tensor *));
    tsi_free(local);
    return whole;
}

/* ---- documents ------------------------------------------------------------------------------- */

ts_status ts_micro_documents(const int64_t *length, int64_t count, int64_t micros, int64_t *begin)
{
    if (!length || !begin || count < 1 || micros < 1)
        return TSI_FAIL(TS_ERR_ARG, "micro_documents: %lld documents in %lld parts",
                        (long long)count, (long long)micros);
    for (int64_t i = 0; i < count; i++)
        if (length[i] < 0)
            return TSI_FAIL(TS_ERR_ARG, "micro_documents: document %lld has length %lld",
                            (long long)i, (long long)length[i]);
    int64_t parts = micros < count ? micros : count, at = 0;
    double *cost = tsi_alloc_array((size_t)count, sizeof *cost);
    if (!cost) return tsi_fail_memory("lengths of documents", (size_t)count * sizeof *cost);
    for (int64_t i = 0; i < count; i++)
        cost[i] = (double)length[i];
    ts_status status = ts_stage_cut(cost, count, parts, begin + 1); /* how many; then where */
    tsi_free(cost);
    TSI_TRY(status);
    begin[0] = 0;
    for (int64_t m = 0; m < micros; m++) {
        int64_t more = m < parts ? begin[m + 1] : 0, end = begin[m];
        for (; more > 0; more--)
            end += length[at++];
        begin[m + 1] = end;
    }
    return TS_OK;
}
