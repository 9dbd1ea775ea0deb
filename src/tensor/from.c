/* SPDX-License-Identifier: Apache-2.0 */
/* from.c - tensors from memory: one block per rank, one whole array at a root, or a function of the
 * index.
 *
 * ts_from_local believes nobody: every rank's block is checked against the layout's rule, and the
 * verdict is agreed on by all members before a tensor exists anywhere. */
#include <stdio.h>

#include "array/dlpack_abi.h"
#include "base/alloc.h"
#include "tensor/fill.h"
#include "tensor/move.h"
#include "tensor/tensor.h"

/* The new tensor, of which observers were told. */
static ts_tensor *told(ts_tensor *t, const char *how)
{
    if (t) tsi_tell(t->rank, TSI_NEWS_FILL, &(tsi_filled){ .made = t, .how = how });
    return t;
}

/* The tensor of an array that wraps memory from outside. On failure that memory stays the caller's:
 * tessera owns it, and calls `done`, from the end of this on. */
static ts_tensor *from_outside(ts_mesh *self, tsi_array *array /* takes */)
{
    tsi_storage *storage = array->storage;
    void (*done)(void *) = storage->done;
    storage->done = NULL;
    const ts_layout *layout = tsi_tensor_layout_of(self, NULL, tsi_array_shape(array));
    ts_tensor *t = NULL;
    if (layout)
        t = tsi_tensor_make(self, layout, (ts_dtype)array->dtype, array, NULL);
    else
        tsi_array_release(array);
    ts_layout_release(layout);
    if (t) storage->done = done;
    return t;
}

ts_tensor *ts_from_memory(ts_rank *me, const ts_array *block)
{
    if (!me || tsi_rank_enter(me) != TS_OK) return NULL;
    if (!block) {
        TSI_FAIL(TS_ERR_NULL, "from_memory: the block is NULL");
        return NULL;
    }
    ts_mesh *self = ts_mesh_self(me);
    tsi_array *array = self ? tsi_array_wrap(me, block) : NULL;
    return array ? told(from_outside(self, array), "from_memory") : NULL;
}

ts_tensor *ts_from_dlpack(ts_rank *me, struct DLManagedTensorVersioned *managed)
{
    if (!me || tsi_rank_enter(me) != TS_OK) return NULL;
    ts_mesh *self = ts_mesh_self(me);
    tsi_array *array = self ? tsi_array_from_dlpack(me, managed) : NULL;
    ts_tensor *t = array ? from_outside(self, array) : NULL;
    if (array && !t) tsi_dlpack_give_back(managed);
    return told(t, "from_dlpack");
}

ts_tensor *ts_from_dlpack_on(ts_rank *me, struct DLManagedTensorVersioned *managed, void *stream)
{
    if (!me || tsi_rank_enter(me) != TS_OK) return NULL;
    return tsi_rank_device_meet(me, stream, true) == TS_OK ? ts_from_dlpack(me, managed) : NULL;
}

/* ---- one block per rank ---------------------------------------------------------------------- */

static void shape_text(const ts_shape *shape, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int32_t d = 0; d < shape->ndim && used < size; d++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", d ? ", " : "",
                                 (long long)shape->extent[d]);
    if (used < size) snprintf(out + used, size - used, ")");
}

static bool shape_equal(const ts_shape *a, const ts_shape *b)
{
    if (a->ndim != b->ndim) return false;
    for (int32_t d = 0; d < a->ndim; d++)
        if (a->extent[d] != b->extent[d]) return false;
    return true;
}

/* What is wrong with my block; "" if nothing is. */
static void complain_of_block(const ts_tensor *block, const ts_mesh *mesh, const ts_layout *layout,
                              char *out, size_t size)
{
    *out = '\0';
    ts_shape want = ts_layout_local(layout, mesh->coord), have = tsi_array_shape(block->array);
    if (shape_equal(&want, &have)) return;
    char want_text[128], have_text[128];
    shape_text(&want, want_text, sizeof want_text);
    shape_text(&have, have_text, sizeof have_text);
    snprintf(out, size, "the block is %s, but the layout %s holds %s there", have_text,
             layout->text, want_text);
}

static uint64_t hash_of(const ts_layout *layout, int32_t dtype)
{
    return tsi_hash_text(tsi_hash_mix(0x66726f6d, (uint64_t)dtype), layout->text);
}

/* The mesh handle and layout of a call that names a sharding and a shape. The layout is retained.
 */
static ts_mesh *target_of(ts_rank *rank, const ts_sharding *sharding, const ts_shape *shape,
                          const char *what, const ts_layout **layout)
{
    *layout = NULL;
    if (!sharding) {
        TSI_FAIL(TS_ERR_NULL, "%s: the sharding is NULL", what);
        return NULL;
    }
    ts_mesh *mesh = tsi_mesh_of(rank, sharding->mesh);
    if (mesh) *layout = tsi_layout_intern(sharding, shape);
    return *layout ? mesh : NULL;
}

ts_tensor *(ts_from_local)(ts_tensor *block, const ts_sharding *sharding, ts_shape shape)
{
    ts_rank *rank = tsi_tensor_enter(block, "from_local");
    if (!rank) return NULL;
    const ts_layout *layout;
    ts_mesh *mesh = target_of(rank, sharding, &shape, "from_local", &layout);
    if (!mesh) return NULL;
    char complaint[384] = "";
    ts_status status = TS_OK;
    if (mesh->member) {
        complain_of_block(block, mesh, layout, complaint, sizeof complaint);
        ts_group *group = tsi_mesh_axes_group(mesh, (1u << mesh->desc->ndim) - 1);
        status = group ? tsi_agree(group, "from_local", complaint, hash_of(layout, block->dtype))
                       : ts_rank_status(rank);
    }
    ts_tensor *t = NULL;
    if (status == TS_OK) status = tsi_tensor_ready(block);
    if (status == TS_OK) {
        tsi_array *array = mesh->member ? tsi_array_retain(block->array)
                                        : tsi_tensor_block(mesh, layout, (ts_dtype)block->dtype);
        t = tsi_tensor_make(mesh, layout, (ts_dtype)block->dtype, array, NULL);
    }
    ts_layout_release(layout);
    return t;
}

/* ---- a function of the index ----------------------------------------------------------------- */

typedef struct from_function {
    ts_element_fn fn;
    void *context;
    const ts_shape *shape;
    tsi_block to; /* dense */
    size_t element_bytes;
} from_function;

/* The function failed: with its own sentence, or with where. */
static ts_status refuse_element(const from_function *f, const int64_t *index, ts_status status)
{
    ts_status said = ts_rank_status(tsi_rank_current());
    if (said != TS_OK) return said;
    char text[96] = "";
    size_t length = 0;
    for (int32_t d = 0; d < f->shape->ndim && length < sizeof text - 24; d++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%lld", d ? ", " : "",
                                   (long long)index[d]);
    return TSI_FAIL(status < TS_OK ? status : TS_ERR_ARG,
                    "from_function: the function returned %s for element (%s)",
                    ts_status_name(status), text);
}

static ts_status function_run(int64_t global, int64_t local, int64_t length, void *context)
{
    const from_function *f = context;
    int64_t index[TS_NDIM_MAX] = { 0 };
    int64_t rest = global;
    for (int32_t d = f->shape->ndim - 1; d >= 0; d--) {
        index[d] = rest % f->shape->extent[d];
        rest /= f->shape->extent[d];
    }
    for (int64_t i = 0; i < length; i++) {
        void *element = (char *)f->to.data + (size_t)(local + i) * f->element_bytes;
        ts_status status = f->fn(index, element, f->context);
        if (TSI_UNLIKELY(status != TS_OK)) return refuse_element(f, index, status);
        for (int32_t d = f->shape->ndim - 1; d >= 0; d--) {
            if (++index[d] < f->shape->extent[d]) break;
            index[d] = 0;
        }
    }
    return TS_OK;
}

ts_tensor *ts_from_function(ts_element_fn fn, void *context, const ts_sharding *sharding,
                            ts_meta meta)
{
    ts_rank *rank = tsi_rank_current();
    if (!rank) {
        TSI_FAIL(TS_ERR_THREAD, "from_function: this thread is attached to no rank");
        return NULL;
    }
    if (tsi_rank_enter(rank) != TS_OK) return NULL;
    const ts_layout *layout;
    ts_mesh *mesh = target_of(rank, sharding, &meta.shape, "from_function", &layout);
    if (!mesh) return NULL;
    ts_tensor *t = NULL;
    tsi_array *array = NULL;
    if (!fn)
        TSI_FAIL(TS_ERR_NULL, "from_function: the function is NULL");
    else if (layout->axes_partial)
        TSI_FAIL(TS_ERR_ARG, "from_function: a partial placement (%s) is ambiguous", layout->text);
    else
        array = tsi_tensor_block(mesh, layout, (ts_dtype)meta.dtype);
    if (array) {
        from_function f = { .fn = fn,
                            .context = context,
                            .shape = &meta.shape,
                            .element_bytes = ts_dtype_size((ts_dtype)meta.dtype) };
        ts_status status = tsi_fill_image(mesh, layout, array, function_run, &f.to, &f);
        if (status == TS_OK)
            t = tsi_tensor_make(mesh, layout, (ts_dtype)meta.dtype, array, NULL);
        else
            tsi_array_release(array);
    }
    ts_layout_release(layout);
    return told(t, "from_function");
}
