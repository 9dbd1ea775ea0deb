/* SPDX-License-Identifier: Apache-2.0 */
/* mirror.c - parameters of f32 in the dtype of products, kept beside them.
 *
 *   value  (f32, authoritative) --cast once--> mirror (bf16) --> every product of every step
 *     \--------- update: one pass over both ---------/
 *
 * INV: a mirror is used only while the value's storage has the version it had when the mirror was
 * written; whatever else writes the value (a file, a user) makes the next use cast again. */
#include "nn/module.h"

#include <stddef.h>

#include "op/core/dispatch.h"
#include "tensor/scope.h"

/* A parameter's name lies in its body. */
tsi_param *tsi_param_of(const ts_tensor *value)
{
    if (!value || !value->name) return NULL;
    char *name = (char *)(uintptr_t)value->name;
    return (tsi_param *)(void *)(name - offsetof(tsi_param, name));
}

static bool is_fresh(const tsi_param *p)
{
    const ts_tensor *m = p->mirror;
    return m && m->array && p->value->array && p->mirror_of == p->value->array->storage &&
           p->mirror_version == p->mirror_of->version && m->layout == p->value->layout;
}

/* What a tape saved of the former mirror stays as it is: this is another block. */
static ts_status make(tsi_param *p, ts_dtype dtype)
{
    ts_tensor *value = p->value;
    TSI_TRY(tsi_tensor_ready(value));
    tsi_array *array = tsi_tensor_block_tagged(value->mesh, value->layout, dtype, TSI_TAG_MIRROR);
    if (!array) return ts_rank_status(value->rank);
    ts_status status = tsi_array_copy(array, value->array);
    ts_tensor *made =
        status == TS_OK ? tsi_tensor_make(value->mesh, value->layout, dtype, array, NULL) : NULL;
    if (status != TS_OK) tsi_array_release(array);
    if (!made) return ts_rank_status(value->rank);
    tsi_tensor_release(p->mirror);
    p->mirror = tsi_tensor_retain(made);
    tsi_param_mirrored(p);
    return TS_OK;
}

tsi_array *tsi_param_mirror(tsi_param *p)
{
    return p && is_fresh(p) ? p->mirror->array : NULL;
}

void tsi_param_mirrored(tsi_param *p)
{
    p->mirror_of = p->value->array->storage;
    p->mirror_version = p->mirror_of->version;
}

ts_tensor *tsi_param_cast(ts_tensor *parameter, ts_dtype dtype)
{
    tsi_param *p = tsi_param_of(parameter);
    bool narrows = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    /* What a unit gathers it gathers in that dtype already. */
    if (!p || p->unit || !narrows || !parameter->array || parameter->dtype != TS_DTYPE_F32)
        return (ts_cast)(parameter, dtype);
    ts_rank *rank = tsi_tensor_enter(parameter, "cast");
    if (!rank) return NULL;
    if (!is_fresh(p) || p->mirror->dtype != (int32_t)dtype) {
        ts_scope scope = ts_scope_open(rank, NULL);
        ts_status status = make(p, dtype);
        ts_scope_close(scope);
        if (status != TS_OK) return NULL;
    }
    ts_tensor *m = p->mirror;
    ts_tensor *same = tsi_tensor_make(m->mesh, m->layout, dtype, tsi_array_retain(m->array), NULL);
    if (same) tsi_tape_rounded(parameter, same);
    return same;
}
