/* SPDX-License-Identifier: Apache-2.0 */
/* list_norm.c - the total norm of a list of tensors, whatever their layouts.
 *
 *   blocks --squares, one kernel--> [f64 for each way tensors lie] --all-reduce--> --one wait-->
 * host
 *
 * INV: squares are added up in the order of the list, in f64, so the sum depends on the list and on
 * the mesh alone. Nothing is read by the host before the last reduction was posted. */
#include <math.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "comm/comm.h"
#include "op/core/element.h"
#include "op/core/list.h"
#include "op/nn/update.h"
#include "tensor/scope.h"

typedef struct tsi_norm_item {
    tsi_array *array; /* dense; retained */
    int32_t way, reserved;
} tsi_norm_item;

/* ---- gathering ------------------------------------------------------------------------------- */

static ts_status way_of(tsi_norm_sums *sums, const ts_tensor *x, int32_t *out)
{
    const tsi_mesh_desc *mesh = x->mesh->desc; /* several handles may be of one */
    uint32_t axes = x->layout->axes_cut;
    int32_t i = 0;
    while (i < sums->count && (sums->mesh[i]->desc != mesh || sums->axes[i] != axes))
        i++;
    if (i == TSI_NORM_MASKS)
        return TSI_FAIL(TS_ERR_STATE, "total norm: tensors lie in more than %d ways",
                        TSI_NORM_MASKS);
    if (i == sums->count) {
        sums->mesh[i] = x->mesh;
        sums->axes[i] = axes;
        sums->count++;
    }
    *out = i;
    return TS_OK;
}

/* Strided blocks by way of a dense one. */
static tsi_array *dense_of(ts_tensor *x)
{
    if (tsi_array_is_dense(x->array)) return tsi_array_retain(x->array);
    ts_shape shape = tsi_array_shape(x->array);
    tsi_array *dense = tsi_array_create(x->rank, (ts_dtype)x->dtype, &shape);
    if (dense && tsi_array_copy(dense, x->array) == TS_OK) return dense;
    tsi_array_release(dense);
    return NULL;
}

ts_status tsi_norm_add(tsi_norm_sums *sums, ts_tensor *x)
{
    int32_t way = 0;
    TSI_ASSERT(!x->layout->axes_partial);
    TSI_TRY(way_of(sums, x, &way));
    sums->rank = x->rank;
    if (!x->mesh->member) return TS_OK;
    TSI_TRY(
        tsi_room(&sums->item, sums->items, &sums->capacity, sizeof *sums->item, "a total norm"));
    tsi_array *dense = dense_of(x);
    if (!dense) return ts_rank_status(x->rank);
    sums->item[sums->items++] = (tsi_norm_item){ dense, way, 0 };
    return TS_OK;
}

void tsi_norm_drop(tsi_norm_sums *sums)
{
    for (int64_t i = 0; i < sums->items; i++)
        tsi_array_release(sums->item[i].array);
    tsi_free(sums->item);
    *sums = (tsi_norm_sums){ 0 };
}

/* ---- adding up ------------------------------------------------------------------------------- */

static ts_status squares_run(const tsi_norm_sums *sums, const tsi_array *to)
{
    if (sums->items == 0) return TS_OK;
    size_t bytes = (size_t)sums->items * sizeof(tsi_list_item);
    tsi_list_item *item = tsi_calloc(1, bytes);
    if (!item) return tsi_fail_memory("a total norm", bytes);
    double *sum = tsi_array_data(to);
    for (int64_t i = 0; i < sums->items; i++) {
        const tsi_array *from = sums->item[i].array;
        tsi_block block = tsi_array_block(from);
        item[i].count = tsi_block_count(&block);
        item[i].part[TSI_SQUARES_OF] = (tsi_list_part){ block.data, (ts_dtype)block.dtype, 0 };
        item[i].part[TSI_SQUARES_SUM] = (tsi_list_part){ sum + sums->item[i].way, TS_DTYPE_F64, 0 };
    }
    tsi_list_io io = { .item = item, .count = sums->items, .rank = sums->rank };
    ts_status status = tsi_list_run(&tsi_list_squares, io);
    tsi_free(item);
    return status;
}

static ts_status reduce_ways(const tsi_norm_sums *sums, const tsi_array *sum)
{
    for (int32_t i = 0; i < sums->count; i++) {
        if (!sums->axes[i]) continue; /* every rank has all of these numbers already */
        ts_group *group = tsi_mesh_axes_group(sums->mesh[i], sums->axes[i]);
        if (!group) return ts_rank_status(sums->rank);
        TSI_TRY(tsi_comm_now(sums->rank, "a total norm"));
        ts_array one;
        tsi_array_describe(sum, &one);
        one.data = (double *)tsi_array_data(sum) + i;
        one.meta.shape = (ts_shape){ 0 };
        TSI_TRY((ts_group_all_reduce)(group, &one, &one, TS_REDUCE_SUM, NULL));
    }
    return TS_OK;
}

tsi_array *tsi_norm_squares(tsi_norm_sums *sums)
{
    double zero = 0.0;
    ts_shape shape = TS_SHAPE(sums->count);
    tsi_array *sum = tsi_array_create(sums->rank, TS_DTYPE_F64, &shape);
    if (!sum) return NULL;
    ts_status status = tsi_array_fill(sum, &zero);
    if (status == TS_OK) status = squares_run(sums, sum);
    if (status == TS_OK) status = reduce_ways(sums, sum);
    if (status == TS_OK) return sum;
    tsi_array_release(sum);
    return NULL;
}

ts_status tsi_norm_total(tsi_norm_sums *sums, double *squares)
{
    *squares = 0.0;
    if (sums->count == 0) return TS_OK;
    double host[TSI_NORM_MASKS];
    tsi_array *sum = tsi_norm_squares(sums);
    if (!sum) return ts_rank_status(sums->rank);
    tsi_block to = {
        .data = host, .dtype = TS_DTYPE_F64, .ndim = 1, .extent = { sums->count }, .stride = { 1 }
    };
    ts_status status = tsi_array_read(sums->rank, sum, &to);
    for (int32_t i = 0; status == TS_OK && i < sums->count; i++)
        *squares += host[i];
    tsi_array_release(sum);
    return status;
}

/* ---- the list form --------------------------------------------------------------------------- */

/* Partial tensors through the operator, which reduces them. */
static ts_status norm_item(tsi_norm_sums *sums, ts_tensor *x, double *more)
{
    if (tsi_dtype_category((ts_dtype)x->dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "foreach_norm_total: an item is %s, not real",
                        ts_dtype_name((ts_dtype)x->dtype));
    TSI_TRY(tsi_tensor_ready(x));
    if (!x->layout->axes_partial) return tsi_norm_add(sums, x);
    double one = 0;
    TSI_TRY((ts_tensor_item)((ts_vector_norm)(x, NULL), &one));
    *more += one * one;
    return TS_OK;
}

ts_status ts_foreach_norm_total(ts_list x, double *norm)
{
    *norm = 0;
    ts_rank *rank;
    TSI_TRY(tsi_list_check("foreach_norm_total", &x, 1, &rank));
    if (!rank) return TS_OK;
    tsi_norm_sums sums = { 0 };
    double squares = 0, more = 0;
    ts_scope scope = ts_scope_open(rank, NULL);
    ts_status status = TS_OK;
    for (int64_t i = 0; status == TS_OK && i < x.count; i++)
        status = norm_item(&sums, x.item[i], &more);
    if (status == TS_OK) status = tsi_norm_total(&sums, &squares);
    tsi_norm_drop(&sums);
    ts_status closed = ts_scope_close(scope);
    if (status == TS_OK) status = closed;
    if (status == TS_OK) *norm = sqrt(squares + more);
    return status;
}
