/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - between a model's parameters and weight files: each rank reads its own region and
 * nothing else.
 *
 * A parameter is the row-major concatenation of one or more stored tensors: one as a rule; for
 * experts that are stored singly, those of all experts, gate and up by turns. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"
#include "model/model.h"
#include "tensor/fill.h"

enum { NAME_BYTES = 256 };

/* ---- where a parameter is stored ------------------------------------------------------------- */

typedef struct sources {
    const tsi_stored **part;
    int64_t count, part_elements;
} sources;

/* model.layers.L.mlp.X as model.layers.L.block_sparse_moe.X; false: it is no such name. */
static bool older_name(const char *name, char *out, size_t size)
{
    const char *mlp = strstr(name, ".mlp.");
    if (!mlp) return false;
    snprintf(out, size, "%.*s.block_sparse_moe.%s", (int)(mlp - name), name, mlp + 5);
    return true;
}

/* The k-th stored tensor of fused experts, "…experts.E.w1.weight" and so on. */
static void expert_name(const char *older, bool fused_in, int64_t k, char *out, size_t size)
{
    const char *experts = strstr(older, ".experts.");
    int64_t expert = fused_in ? k / 2 : k;
    const char *which = fused_in ? (k % 2 ? "w3" : "w1") : "w2";
    snprintf(out, size, "%.*s.experts.%lld.%s.weight", (int)(experts - older), older,
             (long long)expert, which);
}

static ts_status find_experts(const tsi_weights *w, const char *name, const char *older,
                              const ts_shape *shape, sources *out)
{
    bool fused_in = strstr(name, "gate_up_proj") != NULL;
    int64_t count = shape->extent[0] * (fused_in ? 2 : 1);
    out->part = tsi_calloc((size_t)count, sizeof *out->part);
    if (!out->part)
        return tsi_fail_memory("the experts of a layer", (size_t)count * sizeof *out->part);
    out->count = count;
    for (int64_t k = 0; k < count; k++) {
        char stored[NAME_BYTES];
        expert_name(older, fused_in, k, stored, sizeof stored);
        out->part[k] = tsi_weights_find(w, stored);
        if (!out->part[k])
            return TSI_FAIL(TS_ERR_IO, "weights: neither \"%s\" nor \"%s\" is there", name, stored);
    }
    return TS_OK;
}

static ts_status find_sources(const tsi_weights *w, const char *name, const ts_shape *shape,
                              sources *out)
{
    *out = (sources){ 0 };
    char older[NAME_BYTES];
    const tsi_stored *one = tsi_weights_find(w, name);
    bool renamed = !one && older_name(name, older, sizeof older);
    if (renamed) one = tsi_weights_find(w, older);
    if (!one && renamed && strstr(older, ".experts."))
        return find_experts(w, name, older, shape, out);
    if (!one && strncmp(name, "transformer.", 12) == 0) one = tsi_weights_find(w, name + 12);
    if (!one) return TSI_FAIL(TS_ERR_IO, "weights: tensor \"%s\" is not there", name);
    out->part = tsi_calloc(1, sizeof *out->part);
    if (!out->part) return tsi_fail_memory("a parameter's source", sizeof *out->part);
    out->part[0] = one;
    out->count = 1;
    return TS_OK;
}

static ts_status check_sources(const char *name, const ts_shape *shape, sources *s)
{
    int64_t total = 0;
    for (int64_t k = 0; k < s->count; k++) {
        int64_t count = ts_shape_count(&s->part[k]->meta.shape);
        if (k > 0 &&
            (count != s->part_elements || s->part[k]->meta.dtype != s->part[0]->meta.dtype))
            return TSI_FAIL(TS_ERR_IO, "weights: the parts of \"%s\" differ in size or dtype",
                            name);
        s->part_elements = count;
        total += count;
    }
    bool same = total == ts_shape_count(shape);
    if (s->count == 1) {
        const ts_shape *have = &s->part[0]->meta.shape;
        same = have->ndim == shape->ndim;
        for (int32_t d = 0; same && d < shape->ndim; d++)
            same = have->extent[d] == shape->extent[d];
    }
    if (same) return TS_OK;
    return TSI_FAIL(TS_ERR_IO,
                    "weights: \"%s\" has another shape in the file than the configuration says",
                    name);
}

/* ---- reading a region ------------------------------------------------------------------------ */

typedef struct region_read {
    const tsi_weights *weights;
    const sources *from;
    tsi_array *to;
    char *staging; /* of the stored dtype, where it differs */
    size_t staging_bytes;
} region_read;

static ts_status read_piece(region_read *r, const tsi_stored *stored, int64_t first, int64_t local,
                            int64_t count)
{
    size_t to_bytes = ts_dtype_size((ts_dtype)r->to->dtype),
           from_bytes = ts_dtype_size((ts_dtype)stored->meta.dtype);
    char *target = (char *)tsi_array_data(r->to) + (size_t)local * to_bytes;
    if (stored->meta.dtype == r->to->dtype)
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
        .data = target, .dtype = r->to->dtype, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    const tsi_device *cpu = tsi_device_cpu();
    return cpu->copy(cpu, &to, &from, NULL);
}

static ts_status read_run(int64_t global, int64_t local, int64_t length, void *context)
{
    region_read *r = context;
    while (length > 0) {
        int64_t part = global / r->from->part_elements, first = global % r->from->part_elements;
        int64_t count =
            r->from->part_elements - first < length ? r->from->part_elements - first : length;
        TSI_TRY(read_piece(r, r->from->part[part], first, local, count));
        global += count;
        local += count;
        length -= count;
    }
    return TS_OK;
}

typedef struct load_context {
    ts_model *model;
    const tsi_weights *weights;
} load_context;

static ts_status load_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    load_context *load = context;
    sources from;
    ts_status status = find_sources(load->weights, name, &param->shape, &from);
    if (status == TS_OK) status = check_sources(name, &param->shape, &from);
    if (status == TS_OK && from.part_elements > 0) {
        region_read r = { load->weights, &from, param->value->array, NULL, 0 };
        status = tsi_fill_runs(param->value->mesh, param->value->layout, read_run, &r);
        tsi_free(r.staging);
    }
    tsi_free(from.part);
    return status;
}

ts_status tsi_model_read_weights(ts_model *model, const char *directory)
{
    load_context load = { .model = model };
    tsi_weights *weights = NULL;
    TSI_TRY(tsi_weights_open(directory, &weights));
    load.weights = weights;
    ts_status status = tsi_module_visit(model->root, load_param, &load);
    tsi_weights_close(weights);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct save_context {
    tsi_weights_entry *entry;
    ts_tensor **value;
    char *names;
    int64_t count, capacity;
} save_context;

static ts_status list_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    save_context *s = context;
    char *kept = s->names + (size_t)s->count * NAME_BYTES;
    snprintf(kept, NAME_BYTES, "%s", name);
    s->entry[s->count] =
        (tsi_weights_entry){ kept, { .shape = param->shape, .dtype = param->value->dtype } };
    s->value[s->count++] = param->value;
    return TS_OK;
}

static ts_status count_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)param;
    (void)name;
    ++*(int64_t *)context;
    return TS_OK;
}

/* Sorted by name, as published files are. */
static void sort_entries(save_context *s)
{
    for (int64_t i = 1; i < s->count; i++) {
        tsi_weights_entry entry = s->entry[i];
        ts_tensor *value = s->value[i];
        int64_t at = i;
        for (; at > 0 && strcmp(entry.name, s->entry[at - 1].name) < 0; at--) {
            s->entry[at] = s->entry[at - 1];
            s->value[at] = s->value[at - 1];
        }
        s->entry[at] = entry;
        s->value[at] = value;
    }
}

/* One tensor: gathered by all, written by the first. */
static ts_status save_one(ts_model *model, ts_tensor *value, tsi_weights_writer *writer)
{
    ts_scope scope = ts_scope_open(model->rank, "save");
    ts_tensor *full = (ts_tensor_full)(value);
    ts_array view = TS_INIT(ts_array);
    ts_status status = ts_tensor_view(full, &view);
    if (status == TS_OK && writer)
        status = tsi_weights_write(writer, view.data,
                                   (size_t)ts_shape_count(&view.meta.shape) *
                                       ts_dtype_size((ts_dtype)view.meta.dtype));
    ts_scope_close(scope);
    return status;
}

static ts_status write_config(const ts_model *model, const char *directory)
{
    char path[4096], *made = NULL;
    if (!model->config_text) made = tsi_model_config_text(&model->config);
    const char *text = model->config_text ? model->config_text : made;
    if (!text) return TS_ERR_MEMORY;
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "wb");
    bool ok = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0) ok = false;
    tsi_free(made);
    return ok ? TS_OK : TSI_FAIL(TS_ERR_IO, "%s: cannot be written", path);
}

static ts_status save_all(ts_model *model, const char *directory, save_context *s)
{
    bool first =
        model->mesh->member && tsi_mesh_desc_ravel(model->mesh->desc, model->mesh->coord) == 0;
    char path[4096];
    tsi_weights_writer *writer = NULL;
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    ts_status status = TS_OK;
    if (first) {
        if (mkdir(directory, 0777) != 0 && errno != EEXIST)
            status = TSI_FAIL(TS_ERR_IO, "%s: %s", directory, strerror(errno));
        if (status == TS_OK) status = write_config(model, directory);
        if (status == TS_OK) status = tsi_weights_create(path, s->entry, s->count, &writer);
    }
    for (int64_t i = 0; i < s->count && status == TS_OK; i++)
        status = save_one(model, s->value[i], writer);
    if (writer) {
        ts_status finished = tsi_weights_finish(writer, status == TS_OK);
        if (status == TS_OK) status = finished;
    }
    return status;
}

ts_status ts_model_save(ts_model *model, const char *directory)
{
    if (!model || !directory) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(model->rank));
    int64_t count = 0;
    TSI_TRY(tsi_module_visit(model->root, count_param, &count));
    save_context s = { .entry = tsi_calloc((size_t)count + 1, sizeof *s.entry),
                       .value = tsi_calloc((size_t)count + 1, sizeof *s.value),
                       .names = tsi_calloc((size_t)count + 1, NAME_BYTES) };
    ts_status status = s.entry && s.value && s.names
                           ? TS_OK
                           : tsi_fail_memory("the list of parameters", NAME_BYTES);
    if (status == TS_OK) status = tsi_module_visit(model->root, list_param, &s);
    if (status == TS_OK) {
        sort_entries(&s);
        status = save_all(model, directory, &s);
    }
    tsi_free(s.entry);
    tsi_free(s.value);
    tsi_free(s.names);
    return status;
}
