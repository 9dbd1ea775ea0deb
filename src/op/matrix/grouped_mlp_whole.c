/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp_whole.c - the feed-forward of experts on all rows of a group, without a word from the
 * host: how many rows each expert has is known on the device alone.
 *
 *   x_MC, which_MK, weight_MK of the whole group --products of the experts here, zeros elsewhere-->
 *   terms_MKC --sum over K--> this rank's term of y
 *
 * Shapes are those of all rows (M) and choices (K), so nothing has to be counted before it is
 * launched; a product reads from the choices which rows are its own and multiplies no others. Where
 * rows go to the ranks of their experts one by one (grouped_passage.c) the host makes the lists,
 * which on a device it waits for.
 *
 * What is here lies on the axes that cut experts, and nowhere else: rows are the same on all of
 * them, matrices are a cut of dim 0, and kernels know from the layout which experts these are. A
 * product is then a term of a sum over those axes; what is computed of it goes on as a value of
 * this rank (tsi_mlp_rows.terms), since it is zero wherever it is not this rank's.
 *
 * INV: no value is read by the host, and no shape depends on one. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "op/core/algorithm.h"
#include "op/matrix/grouped_mlp.h"
#include "tensor/scope.h"
#include "tessera/mesh.h"

typedef struct whole {
    const tsi_algorithm_io *io;
    ts_tensor *const *in; /* the forward's operands, rows of the whole group */
    uint32_t axes;        /* that cut experts */
    ts_mesh *mesh;        /* of these axes, or of this rank alone */
    int64_t rows, choices, width;
    tsi_mlp_rows product;
} whole;

static uint32_t axes_of_experts(const ts_layout *in)
{
    uint32_t axes = 0;
    for (int32_t k = 0; k < in->sharding->ndim; k++) {
        const ts_placement *place = &in->sharding->place[k];
        if (tsi_placement_cuts(place) && place->dim == 0) axes |= 1u << k;
    }
    return axes;
}

/* The mesh of these axes, in their order. NULL: recorded. */
static ts_mesh *mesh_of(const whole *w)
{
    char names[TS_NDIM_MAX * 40] = "";
    if (!w->axes) return ts_mesh_self(w->io->rank);
    for (int32_t k = 0; k < ts_mesh_ndim(w->io->mesh); k++) {
        const char *name = ts_mesh_axis_name(w->io->mesh, k);
        size_t used = strlen(names);
        if (!(w->axes >> k & 1)) continue;
        if (name[0])
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
        else
            snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", k);
    }
    return ts_mesh_slice(w->io->mesh, names);
}

/* A block of this rank as rows that all of the mesh have. */
static ts_tensor *rows_here(const whole *w, ts_tensor *t, int64_t length)
{
    ts_shape shape = TS_SHAPE(w->rows, length);
    ts_tensor *block = (ts_reshape)(ts_tensor_local(t), shape);
    const ts_layout *layout = block ? tsi_tensor_layout_of(w->mesh, NULL, shape) : NULL;
    if (!layout) return NULL;
    ts_tensor *here = tsi_tensor_make(w->mesh, layout, (ts_dtype)block->dtype,
                                      tsi_array_retain(block->array), NULL);
    ts_layout_release(layout);
    return here;
}

/* This rank's matrices, [E here, a, b], as its shard of all experts'. */
static ts_tensor *matrices_here(const whole *w, ts_tensor *t, int64_t a, int64_t b)
{
    const ts_sharding *from = t->layout->sharding;
    ts_placement place[TS_NDIM_MAX] = { { 0 } };
    ts_tensor *block = ts_tensor_local(t), *here = NULL;
    if (!block) return NULL;
    block = (ts_reshape)(block, TS_SHAPE(ts_tensor_shape(block).extent[0], a, b));
    int32_t axis = 0;
    for (int32_t k = 0; k < from->ndim; k++)
        if (w->axes >> k & 1) place[axis++] = from->place[k];
    if (!block || !w->axes) return block;
    ts_shape shape = TS_SHAPE(t->layout->shape.extent[0], a, b);
    const ts_sharding *cut = tsi_sharding_intern(w->mesh->desc, place);
    const ts_layout *layout = cut ? tsi_layout_intern(cut, &shape) : NULL;
    if (layout)
        here = tsi_tensor_make(w->mesh, layout, (ts_dtype)block->dtype,
                               tsi_array_retain(block->array), NULL);
    ts_layout_release(layout);
    ts_sharding_release(cut);
    return here;
}

/* Rows once for each choice, without a copy. */
static ts_tensor *for_choices(const whole *w, ts_tensor *rows)
{
    return ts_expand(ts_unsqueeze(rows, 1), TS_SHAPE(w->rows, w->choices, w->width));
}

static ts_status begin(whole *w)
{
    ts_tensor *const *in = w->in;
    ts_shape which = tsi_array_shape(in[TSI_MLP_WHICH]->array);
    ts_shape up = tsi_array_shape(in[TSI_MLP_IN]->array);
    w->axes = axes_of_experts(in[TSI_MLP_IN]->layout);
    w->mesh = mesh_of(w);
    if (!w->mesh) return ts_rank_status(w->io->rank);
    w->choices = which.extent[which.ndim - 1];
    w->width = up.extent[3];
    w->rows = 1;
    for (int32_t d = 0; d < which.ndim - 1; d++)
        w->rows *= which.extent[d];
    w->product = (tsi_mlp_rows){
        .x = for_choices(w, rows_here(w, in[TSI_MLP_X], w->width)),
        .expert = rows_here(w, in[TSI_MLP_WHICH], w->choices),
        .weight = rows_here(w, in[TSI_MLP_WEIGHT], w->choices),
        .in = matrices_here(w, in[TSI_MLP_IN], 2 * up.extent[2], w->width),
        .out = matrices_here(w, in[TSI_MLP_OUT], w->width, up.extent[2]),
        .activation = ((const tsi_mlp_attributes *)w->io->attributes)->activation,
        .terms = w->axes != 0,
    };
    return ts_rank_status(w->io->rank);
}

/* [M, K, ..] summed over K, in the shape of a block. */
static ts_tensor *over_choices(ts_tensor *terms, const ts_shape *block)
{
    int64_t choices = 1;
    return (ts_reshape)(ts_sum(terms, &choices, 1, 0), *block);
}

static ts_status forward(const whole *w, uint32_t summed, ts_tensor **out)
{
    ts_shape block = tsi_array_shape(w->in[TSI_MLP_X]->array);
    ts_tensor *y = over_choices(tsi_mlp_product(&w->product), &block);
    out[0] = tsi_mlp_part(w->io, y, 0, summed, NULL);
    return ts_rank_status(w->io->rank);
}

static ts_status backward(const whole *w, ts_tensor *dy, uint32_t summed, ts_tensor **out)
{
    ts_shape rows = tsi_array_shape(w->in[TSI_MLP_X]->array);
    ts_shape choices = tsi_array_shape(w->in[TSI_MLP_WEIGHT]->array);
    ts_shape in = tsi_array_shape(w->in[TSI_MLP_IN]->array);
    ts_tensor *d[TSI_MLP_GRADS] = { NULL };
    tsi_mlp_back back = { .rows = &w->product, .dy = for_choices(w, rows_here(w, dy, w->width)) };
    TSI_TRY(tsi_mlp_back_begin(&back));
    TSI_TRY(tsi_mlp_back_rows(&back, d));
    TSI_TRY(tsi_mlp_back_experts(&back, d));
    d[TSI_MLP_DX] = over_choices(d[TSI_MLP_DX], &rows);
    d[TSI_MLP_DWEIGHT] = (ts_reshape)(d[TSI_MLP_DWEIGHT], choices);
    d[TSI_MLP_DIN] = (ts_reshape)(ts_tensor_local(d[TSI_MLP_DIN]), in);
    for (int32_t o = 0; o < TSI_MLP_GRADS; o++) {
        bool of_rows = o == TSI_MLP_DX || o == TSI_MLP_DWEIGHT;
        out[o] = tsi_mlp_part(w->io, d[o], o, of_rows ? summed : 0, NULL);
    }
    return ts_rank_status(w->io->rank);
}

bool tsi_mlp_defers(const ts_world *world, const tsi_mlp_attributes *attributes)
{
    const tsi_device *device = tsi_world_device((ts_world *)(uintptr_t)world);
    return !device->host_readable && device != tsi_device_none() && !attributes->skips;
}

ts_status tsi_mlp_whole(const tsi_algorithm_io *io, ts_tensor *const *in, uint32_t summed,
                        ts_tensor **out)
{
    bool back = io->input_count > TSI_MLP_INPUTS;
    whole w = { .io = io, .in = in + back };
    ts_status status = begin(&w);
    if (status == TS_OK)
        status = back ? backward(&w, in[0], summed, out) : forward(&w, summed, out);
    ts_mesh_release(w.mesh);
    return status;
}
