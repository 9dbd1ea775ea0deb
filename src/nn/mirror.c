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

#include "base/alloc.h"
#include "base/keep.h"
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

/* The value, cast into the block. */
static ts_status fill(tsi_param *p, ts_dtype dtype, tsi_array *block)
{
    ts_tensor *value = p->value;
    tsi_storage *storage = block->storage;
    if (storage->ask) TSI_TRY(storage->ask(storage->ask_context, NULL));
    TSI_TRY(tsi_array_copy(block, value->array));
    if (p->mirror && p->mirror->array == block) return TS_OK;
    ts_tensor *made =
        tsi_tensor_make(value->mesh, value->layout, dtype, tsi_array_retain(block), NULL);
    if (!made) return ts_rank_status(value->rank);
    tsi_tensor_release(p->mirror);
    p->mirror = tsi_tensor_retain(made);
    return TS_OK;
}

/* ---- at the border of a recorded step (base/keep.h) ------------------------------------------ */

/* Where a recording found a mirror that was as new as its value, no cast was kept: it is made so
 * before the step is run again. Behind it the mirror is as new as the recording left it. */
typedef struct border {
    tsi_param *param;
    tsi_array *block; /* retained */
    bool found, left; /* fresh */
} border;

static void border_destroy(void *context)
{
    border *b = context;
    tsi_array_release(b->block);
    tsi_free(b);
}

static ts_status border_settle(void *context)
{
    border *b = context;
    b->left = is_fresh(b->param);
    return TS_OK;
}

static ts_status border_check(void *context)
{
    const border *b = context;
    const ts_tensor *mirror = b->param->mirror;
    if (!b->found || (mirror && mirror->array == b->block)) return TS_OK;
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                          "step: the mirror of a parameter lies elsewhere than when the step was "
                          "recorded");
}

static ts_status border_enter(void *context)
{
    const border *b = context;
    tsi_param *p = b->param;
    if (!b->found || is_fresh(p)) return TS_OK;
    TSI_TRY(tsi_tensor_ready(p->value));
    TSI_TRY(fill(p, (ts_dtype)p->mirror->dtype, b->block));
    tsi_param_mirrored(p);
    return TS_OK;
}

static ts_status border_leave(void *context)
{
    const border *b = context;
    tsi_param *p = b->param;
    if (p->mirror && p->mirror_of && p->mirror->array == b->block)
        p->mirror_version = p->mirror_of->version - (b->left ? 0 : 1);
    return TS_OK;
}

/* Before a step that is recorded reads or writes the mirror. */
static ts_status note_border(tsi_param *p)
{
    ts_rank *rank = p->value->rank;
    bool there = p->mirror && p->mirror->array;
    if (!there || !tsi_keep_notes(rank, &p->mirror_kept_in)) return TS_OK;
    border *b = tsi_alloc(sizeof *b);
    if (!b) return tsi_fail_memory("a mirror of a step", sizeof *b);
    *b = (border){ p, tsi_array_retain(p->mirror->array), is_fresh(p), false };
    const tsi_kept_border kept = { .settle = border_settle,
                                   .check = border_check,
                                   .enter = border_enter,
                                   .leave = border_leave,
                                   .destroy = border_destroy,
                                   .context = b };
    return tsi_keep_border(rank, kept);
}

ts_status tsi_param_renew(tsi_param *p, ts_dtype dtype, tsi_array *block)
{
    const ts_tensor *value = p->value;
    TSI_TRY(note_border(p));
    bool there = is_fresh(p) && p->mirror->dtype == (int32_t)dtype;
    if (there && (!block || p->mirror->array == block)) return TS_OK;
    TSI_TRY(tsi_tensor_ready(p->value));
    /* What a tape saved of the former mirror stays as it is: this is another block. */
    tsi_array *into =
        block ? tsi_array_retain(block)
              : tsi_tensor_block_tagged(value->mesh, value->layout, dtype, TSI_TAG_MIRROR);
    if (!into) return ts_rank_status(value->rank);
    ts_scope scope = ts_scope_open(value->rank, NULL);
    ts_status status = fill(p, dtype, into);
    ts_scope_close(scope);
    tsi_array_release(into);
    if (status == TS_OK) tsi_param_mirrored(p);
    return status;
}

/* What a unit gathers it gathers in that dtype already. */
static bool is_mirrored(const tsi_param *p, ts_dtype dtype)
{
    bool narrows = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    return p && !p->unit && narrows && p->value->array && p->value->dtype == TS_DTYPE_F32;
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/* Dense shards of two dims with rows of one length, none with a mirror yet: their rows together. */
static bool rows_of(ts_tensor *const *parameter, int32_t count, ts_dtype dtype, ts_shape *out)
{
    *out = TS_SHAPE(0, 0);
    for (int32_t i = 0; i < count; i++) {
        tsi_param *p = tsi_param_of(parameter[i]);
        if (!is_mirrored(p, dtype) || p->mirror || tsi_tensor_ready(p->value) != TS_OK)
            return false;
        const tsi_array *shard = p->value->array;
        if (shard->ndim != 2 || shard->extent[0] == 0 || shard->extent[1] == 0) return false;
        if (i > 0 && shard->extent[1] != out->extent[1]) return false;
        out->extent[0] += shard->extent[0];
        out->extent[1] = shard->extent[1];
    }
    return true;
}

void tsi_params_beside(ts_tensor *const *parameter, int32_t count, ts_dtype dtype)
{
    ts_shape shape;
    ts_rank *rank = count > 0 && parameter[0] ? tsi_tensor_enter(parameter[0], "cast") : NULL;
    if (!rank || !rows_of(parameter, count, dtype, &shape)) return;
    tsi_array *whole = tsi_array_create_tagged(rank, dtype, &shape, TSI_TAG_MIRROR);
    if (!whole) return; /* recorded */
    int64_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        tsi_param *p = tsi_param_of(parameter[i]);
        ts_shape part = tsi_array_shape(p->value->array);
        tsi_array *rows = tsi_array_view(whole, dtype, &part, NULL, at);
        bool made = rows && tsi_param_renew(p, dtype, rows) == TS_OK;
        tsi_array_release(rows);
        if (!made) break;
        at += part.extent[0] * part.extent[1];
    }
    tsi_array_release(whole);
}

/* ---- use ------------------------------------------------------------------------------------- */

tsi_array *tsi_param_mirror(tsi_param *p)
{
    if (p) (void)note_border(p); /* recorded if it fails */
    return p && is_fresh(p) ? p->mirror->array : NULL;
}

void tsi_param_mirrored(tsi_param *p)
{
    tsi_storage *storage = p->value->array->storage;
    if (storage != p->mirror_of) {
        tsi_storage_retain(storage);
        tsi_storage_release(p->mirror_of);
    }
    p->mirror_of = storage;
    p->mirror_version = p->mirror_of->version;
}

void tsi_param_unmirror(tsi_param *p)
{
    tsi_tensor_release(p->mirror);
    tsi_storage_release(p->mirror_of);
    p->mirror = NULL;
    p->mirror_of = NULL;
}

ts_tensor *tsi_param_cast(ts_tensor *parameter, ts_dtype dtype)
{
    tsi_param *p = tsi_param_of(parameter);
    if (!is_mirrored(p, dtype)) return (ts_cast)(parameter, dtype);
    if (!tsi_tensor_enter(parameter, "cast")) return NULL;
    if (tsi_param_renew(p, dtype, NULL) != TS_OK) return NULL;
    ts_tensor *m = p->mirror;
    ts_tensor *same = tsi_tensor_make(m->mesh, m->layout, dtype, tsi_array_retain(m->array), NULL);
    if (same) tsi_tape_rounded(parameter, same);
    return same;
}
