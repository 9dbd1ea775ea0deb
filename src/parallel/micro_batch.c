/* SPDX-License-Identifier: Apache-2.0 */
/* micro_batch.c - parts of a batch: of the rows that each rank has, cut as evenly as possible.
 *
 * Rows are not exchanged: a micro-batch consists of rows from every rank's own piece, and lies as
 * the batch does. INV-3 holds for the parts too: where a rank has fewer rows than others in the
 * batch, it has no more than they have in any part. */
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
int64_t tsi_micro_batch_extent(const ts_layout *layout, int32_t dim, int64_t micros, int64_t micro)
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
    slice.start = part_begin(rows, micros, micro);
    slice.end = part_begin(rows, micros, micro + 1);
    slice.end_is_given = 1;
    shape.extent[dim] = tsi_micro_batch_extent(x->layout, dim, micros, micro);
    ts_tensor *block = ts_slice(ts_tensor_local(x), dim, &slice);
    return (ts_from_local)(block, ts_layout_sharding(x->layout), shape);
}
