/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c - where a model lies: the axes of its mesh, and its parameters by pattern.
 *
 * Layers are alike, so names that differ in numbers alone and lie alike are one row: a table of a
 * page whatever the model's size. A rank knows all parameters of a pipeline, and holds those of its
 * stages. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/model.h"
#include "tensor/tensor.h"
#include "train/run.h"

/* "model.layers.17.mlp.weight" -> "model.layers.*.mlp.weight" */
static void pattern_of(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = name; *at && n + 1 < size;) {
        bool begins = at == name || at[-1] == '.';
        size_t digits = begins ? strspn(at, "0123456789") : 0;
        bool number = digits > 0 && (at[digits] == '.' || at[digits] == '\0');
        out[n++] = number ? '*' : *at;
        at += number ? digits : 1;
    }
    out[n] = '\0';
}

static void shape_text(ts_shape shape, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "[");
    for (int32_t d = 0; d < shape.ndim && n < size; d++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", d ? ", " : "",
                              (long long)shape.extent[d]);
    if (n < size) snprintf(out + n, size - n, "]");
}

static ts_train_param *row_of(ts_train_cost *c, const ts_train_param *like)
{
    for (int32_t i = 0; i < c->param_count; i++) {
        ts_train_param *row = &c->param[i];
        if (strcmp(row->pattern, like->pattern) == 0 && strcmp(row->shape, like->shape) == 0 &&
            strcmp(row->layout, like->layout) == 0)
            return row;
    }
    if (c->param_count == TS_TRAIN_PARAMS_MAX) {
        ts_train_param *last = &c->param[TS_TRAIN_PARAMS_MAX - 1];
        snprintf(last->pattern, sizeof last->pattern, "others");
        last->shape[0] = last->layout[0] = '\0';
        return last;
    }
    c->param[c->param_count] = *like;
    return &c->param[c->param_count++];
}

/* "fsdp:S(0) tp:S(1)": axes that cut it. */
static void layout_text(const ts_tensor *t, char *out, size_t size)
{
    const ts_sharding *sharding = ts_layout_sharding(ts_tensor_layout(t));
    const ts_mesh *mesh = ts_tensor_mesh(t);
    out[0] = '\0';
    for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
        char placement[40];
        size_t length = strlen(out);
        (void)ts_placement_text(sharding, k, placement, sizeof placement);
        if (ts_mesh_axis_size(mesh, k) == 1 || strcmp(placement, "R") == 0) continue;
        snprintf(out + length, size - length, "%s%s:%s", length > 0 ? " " : "",
                 ts_mesh_axis_name(mesh, k), placement);
    }
    if (!out[0]) snprintf(out, size, "whole");
}

static ts_status add_parameter(const char *name, ts_tensor *t, void *context)
{
    ts_train_param like = { 0 };
    pattern_of(name, like.pattern, sizeof like.pattern);
    shape_text(ts_tensor_shape(t), like.shape, sizeof like.shape);
    layout_text(t, like.layout, sizeof like.layout);
    ts_train_param *row = row_of(context, &like);
    int64_t elements = 1;
    for (int32_t d = 0; d < ts_tensor_shape(t).ndim; d++)
        elements *= ts_tensor_shape(t).extent[d];
    row->count++;
    row->elements += elements;
    tsi_block block = tsi_array_block(t->array);
    row->bytes += tsi_block_count(&block) * (int64_t)ts_dtype_size(ts_tensor_dtype(t));
    return TS_OK;
}

/* The mesh of a stage has axes of experts; that of all stages, where it is another, has pp. */
static void add_axes(ts_model *model, ts_train_cost *out)
{
    const ts_mesh *stage = model->mesh, *all = tsi_model_mesh(model);
    int64_t stride = 1, stages = ts_mesh_size(all, NULL) / ts_mesh_size(stage, NULL);
    const ts_mesh *mesh = stages > 1 ? all : stage;
    out->axis_count = ts_mesh_ndim(mesh);
    for (int32_t k = out->axis_count - 1; k >= 0; k--) {
        ts_train_axis *axis = &out->axis[k];
        snprintf(axis->name, sizeof axis->name, "%s", ts_mesh_axis_name(mesh, k));
        axis->size = ts_mesh_axis_size(mesh, k);
        axis->stride = stride;
        stride *= axis->size;
    }
}

ts_status tsi_describe_model(ts_model *model, ts_train_cost *out)
{
    add_axes(model, out);
    out->param_count = 0;
    return ts_module_each(model->root, add_parameter, out);
}

void tsi_describe_merge(ts_train_cost *most, const ts_train_cost *one)
{
    for (int32_t i = 0; i < most->param_count && i < one->param_count; i++)
        if (one->param[i].bytes > most->param[i].bytes) most->param[i].bytes = one->param[i].bytes;
}
