/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - from weight files to a model's parameters: each rank reads its own region and nothing
 * else. */
#include "model/weights.h"

#include "array/image.h"
#include "base/alloc.h"
#include "base/error.h"
#include "tensor/fill.h"

/* ---- reading a region ------------------------------------------------------------------------ */

typedef struct region_read {
    ts_archive *archive;
    const tsi_sources *from;
    tsi_block to; /* dense */
} region_read;

/* A run of a parameter that lies in several stored tensors. */
static ts_status read_run(int64_t global, int64_t local, int64_t length, void *context)
{
    region_read *r = context;
    size_t bytes = ts_dtype_size((ts_dtype)r->to.dtype);
    while (length > 0) {
        int64_t part = global / r->from->part_elements, first = global % r->from->part_elements;
        int64_t count = r->from->part_elements - first;
        if (count > length) count = length;
        TSI_TRY(tsi_archive_read_range(r->archive, r->from->part[part], first, count,
                                       (ts_dtype)r->to.dtype,
                                       (char *)r->to.data + (size_t)local * bytes));
        global += count;
        local += count;
        length -= count;
    }
    return TS_OK;
}

static ts_status read_one(ts_archive *archive, const tsi_entry *entry, ts_tensor *parameter)
{
    if (!parameter->mesh->member || tsi_world_describes(parameter->rank->world)) return TS_OK;
    tsi_image image;
    tsi_block block = tsi_array_block(parameter->array);
    TSI_TRY(tsi_image_open(parameter->rank, &block, TSI_IMAGE_WRITE, &image));
    ts_status status = tsi_archive_read_block(archive, entry, parameter->layout,
                                              parameter->mesh->coord, &image.block);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}

/* The first value of a parameter that has a file: nothing but the shard and a piece is held. */
static ts_status init_read(ts_tensor *parameter, const char *name, void *state)
{
    ts_archive *archive = state;
    tsi_sources from;
    ts_shape shape = ts_tensor_shape(parameter);
    ts_status status = tsi_sources_find(archive, name, &shape, &from);
    if (status == TS_OK) status = tsi_tensor_writable(parameter, "load: %s", name);
    region_read r = { .archive = archive, .from = &from };
    if (status == TS_OK && from.part_elements > 0 && from.count == 1)
        status = read_one(archive, from.part[0], parameter);
    else if (status == TS_OK && from.part_elements > 0)
        status = tsi_fill_image(parameter->mesh, parameter->layout, parameter->array, read_run,
                                &r.to, &r);
    tsi_free(from.part);
    return status;
}

/* ---- parameters whose values come from a file ------------------------------------------------ */

typedef struct expect_context {
    const ts_model *model;
    bool as_stored;
} expect_context;

static ts_status expect_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    const expect_context *expect = context;
    param->init = init_read;
    param->init_state = expect->model->origin;
    if (!expect->as_stored) return TS_OK;
    tsi_sources from;
    ts_status status = tsi_sources_find(expect->model->origin, name, &param->shape, &from);
    if (status == TS_OK) param->dtype = from.part[0]->meta.dtype;
    tsi_free(from.part);
    return status;
}

ts_status tsi_model_expect_weights(ts_model *model, bool as_stored)
{
    expect_context expect = { model, as_stored };
    return tsi_module_visit(model->root, expect_param, &expect);
}
