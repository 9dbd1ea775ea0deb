/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - from weight files to a model's parameters: each rank reads its own region and nothing
 * else. */
#include "model/weights.h"
#include "base/alloc.h"
#include "base/error.h"
#include "tensor/fill.h"

/* ---- reading a region ------------------------------------------------------------------------ */

enum { PIECE_MAX = 1 << 18 }; /* elements that are converted at once */

typedef struct region_read {
    const tsi_weights *weights;
    const tsi_sources *from;
    tsi_block to;  /* dense */
    char *staging; /* of the stored dtype, where it differs */
    size_t staging_bytes;
} region_read;

static ts_status read_piece(region_read *r, const tsi_stored *stored, int64_t first, int64_t local,
                            int64_t count)
{
    size_t to_bytes = ts_dtype_size((ts_dtype)r->to.dtype),
           from_bytes = ts_dtype_size((ts_dtype)stored->meta.dtype);
    char *target = (char *)r->to.data + (size_t)local * to_bytes;
    if (stored->meta.dtype == r->to.dtype)
        return tsi_weights_read(r->weights, stored, first, count, target);
    if ((size_t)count * from_bytes > r->staging_bytes) {
        char *grown = tsi_realloc(r->staging, (size_t)count * from_bytes);
        if (!grown) return tsi_fail_memory("a piece of a weight file", (size_t)count * from_bytes);
        r->staging = grown;
        r->staging_bytes = (size_t)count * from_bytes;
    }
    TSI_TRY(tsi_weights_read(r->weights, stored, first, count, r->staging));
    tsi_block from = { .data = r->staging,
                       .dtype = stored->meta.dtype,
                       .ndim = 1,
                       .extent = { count },
                       .stride = { 1 } };
    tsi_block to = {
        .data = target, .dtype = r->to.dtype, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    const tsi_device *host = tsi_device_host();
    return host->copy(host, &to, &from, NULL);
}

static ts_status read_run(int64_t global, int64_t local, int64_t length, void *context)
{
    region_read *r = context;
    while (length > 0) {
        int64_t part = global / r->from->part_elements, first = global % r->from->part_elements;
        int64_t count = r->from->part_elements - first;
        if (count > length) count = length;
        if (count > PIECE_MAX && r->from->part[part]->meta.dtype != r->to.dtype) count = PIECE_MAX;
        TSI_TRY(read_piece(r, r->from->part[part], first, local, count));
        global += count;
        local += count;
        length -= count;
    }
    return TS_OK;
}

/* The first value of a parameter that has a file: nothing but the shard and a piece is held. */
static ts_status init_read(ts_tensor *parameter, const char *name, void *state)
{
    const tsi_weights *weights = state;
    tsi_sources from;
    ts_shape shape = ts_tensor_shape(parameter);
    ts_status status = tsi_sources_find(weights, name, &shape, &from);
    if (status == TS_OK) status = tsi_tensor_writable(parameter, "load: %s", name);
    if (status == TS_OK && from.part_elements > 0) {
        region_read r = { .weights = weights, .from = &from };
        status = tsi_fill_image(parameter->mesh, parameter->layout, parameter->array, read_run,
                                &r.to, &r);
        tsi_free(r.staging);
    }
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
