/* SPDX-License-Identifier: Apache-2.0 */
/* beyond.c - tensors of layers behind the model's last (DeepSeek-V3's, for further tokens): not of
 * the model, not trained, and not lost.
 *
 * A save of the model copies them from where it was read (save.c). The state of a run has them as
 * tensors of its own, cut over all ranks, so that it is whole without that directory.
 *
 * INV: names and bits are those of the origin; numbers of 8 bits become what weights are. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "model/weights.h"

bool tsi_model_is_beyond(const ts_model *model, const char *name)
{
    const char *at = strstr(name, "layers.");
    char *end = NULL;
    int64_t layer = at ? strtoll(at + 7, &end, 10) : -1;
    return at && end > at + 7 && *end == '.' && layer >= model->config.layers;
}

/* Rows over every axis; a number is everywhere. */
static const ts_sharding *spread(ts_mesh *mesh, const ts_shape *shape)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < mesh->desc->ndim; k++)
        place[k] = (ts_placement){ .kind = shape->ndim > 0 ? TS_PLACE_SHARD : TS_PLACE_REPLICATE,
                                   .order = -1,
                                   .factor = 1,
                                   .align = 1 };
    return tsi_sharding_intern(mesh->desc, place);
}

static ts_tensor *tensor_for(ts_mesh *mesh, const tsi_entry *e, ts_dtype weights)
{
    ts_dtype dtype = e->float8 ? weights : (ts_dtype)e->meta.dtype;
    const ts_sharding *sharding = spread(mesh, &e->meta.shape);
    const ts_layout *layout = sharding ? tsi_layout_intern(sharding, &e->meta.shape) : NULL;
    tsi_array *block = layout ? tsi_tensor_block(mesh, layout, dtype) : NULL;
    ts_tensor *made = block ? tsi_tensor_make(mesh, layout, dtype, block, NULL) : NULL;
    ts_layout_release(layout);
    ts_sharding_release(sharding);
    return made;
}

static ts_status first_dtype(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)name;
    int32_t *dtype = context;
    if (*dtype == TS_DTYPE_NONE) *dtype = param->dtype;
    return TS_OK;
}

/* Both states hold the tensors; the first one is there to read them. */
static ts_status add_all(ts_model *model, ts_mesh *mesh, ts_state *reading, ts_state *state)
{
    const ts_archive *origin = model->origin;
    int32_t weights = TS_DTYPE_NONE;
    int64_t count = 0;
    TSI_TRY(tsi_module_visit(model->root, first_dtype, &weights));
    for (int64_t i = 0; i < origin->count; i++) {
        const tsi_entry *e = &origin->entry[i];
        if (!tsi_model_is_beyond(model, e->name) || e->of[0]) continue;
        ts_tensor *tensor = tensor_for(mesh, e, (ts_dtype)weights);
        if (!tensor) return ts_rank_status(model->rank);
        TSI_TRY(ts_state_add_tensor(reading, e->name, tensor));
        TSI_TRY(ts_state_add_tensor(state, e->name, tensor));
        count++;
    }
    ts_load_options options = TS_INIT(ts_load_options);
    options.partial = 1;
    return count > 0 ? ts_checkpoint_load(reading, origin->path, &options) : TS_OK;
}

ts_status tsi_model_add_beyond(ts_model *model, ts_mesh *mesh, ts_state *state)
{
    if (!model->origin) return TS_OK;
    ts_scope scope = ts_scope_open(model->rank, "beyond");
    ts_state *reading = ts_state_create(mesh);
    ts_status status = reading ? add_all(model, mesh, reading, state) : ts_rank_status(model->rank);
    ts_state_destroy(reading);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}
