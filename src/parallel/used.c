/* SPDX-License-Identifier: Apache-2.0 */
/* used.c - units of which ranks may use different parameters.
 *
 * Which gradients are reduced must not depend on what a rank happens to have. So the ranks agree,
 * unit by unit: a parameter that any of them used is reduced, and who did not use it adds zeros;
 * one that nobody used has no gradient, so that no update touches it. Values are not looked at.
 *
 * INV: after tsi_unit_agree every rank has the same gradients ready, in the same layout. */
#include <string.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "comm/comm.h"
#include "parallel/unit.h"

/* As its operators see it, and a term of a sum on the axes that cut the batch. Retained. */
static const ts_sharding *common_layout(const tsi_unit_param *p)
{
    static const char *const batch[] = { "dp", "replicate", "fsdp", "cp" };
    ts_placement place[TS_NDIM_MAX] = { { 0 } };
    const ts_sharding *whole = p->whole;
    for (int32_t k = 0; k < whole->ndim; k++) {
        bool cuts = p->unit->axes_cut >> k & 1;
        for (size_t i = 0; i < TSI_COUNT_OF(batch); i++)
            cuts |= strcmp(whole->mesh->name[k], batch[i]) == 0;
        place[k] = whole->place[k];
        if (cuts && place[k].kind == TS_PLACE_REPLICATE)
            place[k] = (ts_placement){
                .kind = TS_PLACE_PARTIAL, .reduce = TS_REDUCE_SUM, .factor = 1, .align = 1
            };
    }
    return tsi_sharding_intern(whole->mesh, place);
}

static ts_tensor *zeros(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype)
{
    const unsigned char zero[16] = { 0 };
    tsi_array *array = tsi_tensor_block_tagged(mesh, layout, dtype, TSI_TAG_GRADIENT);
    if (array && tsi_array_fill(array, zero) == TS_OK)
        return tsi_tensor_make(mesh, layout, dtype, array, NULL);
    tsi_array_release(array);
    return NULL;
}

/* Has it terms that are not reduced, of this backward or of lazy ones before it? */
static bool has_terms(const tsi_leaf *leaf)
{
    return leaf && leaf->grad && ts_tensor_layout(leaf->grad) && !leaf->settled;
}

static ts_status make_ready(tsi_unit *u, tsi_unit_param *p, tsi_leaf *leaf)
{
    const bool used = has_terms(leaf);
    const ts_sharding *to = common_layout(p);
    const ts_layout *layout = to ? tsi_layout_intern(to, &p->param->shape) : NULL;
    ts_tensor *grad = NULL;
    ts_scope scope = ts_scope_open_with(u->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    if (layout && used)
        grad = (ts_redistribute_to)(leaf->grad, to);
    else if (layout)
        grad = zeros(leaf->mesh, layout, (ts_dtype)leaf->dtype);
    ts_status status = grad ? TS_OK : ts_rank_status(u->rank);
    if (status == TS_OK && used)
        status = ts_tensor_write(leaf->grad, grad);
    else if (status == TS_OK)
        status = tsi_leaf_accumulate(leaf, grad);
    ts_scope_close(scope);
    ts_layout_release(layout);
    ts_sharding_release(to);
    if (status != TS_OK) return status;
    if (!p->ready) u->ready_count++;
    p->ready = 1;
    leaf->touched = 0;
    return TS_OK;
}

static ts_status agree_mask(const tsi_unit *u, uint8_t *mask)
{
    ts_group *group = ts_mesh_group(u->mesh, NULL);
    if (!group) return ts_rank_status(u->rank);
    ts_array array = TS_INIT(ts_array);
    array.data = mask;
    array.meta = (ts_meta){ .shape = TS_SHAPE(u->count), .dtype = TS_DTYPE_U8 };
    return ts_group_all_reduce(group, &array, &array, TS_REDUCE_MAX, NULL);
}

ts_status tsi_unit_agree(tsi_unit *u)
{
    if (tsi_keeps(u->rank))
        return TSI_FAIL(TS_ERR_STATE,
                        "fsdp: unit %s: which parameters are used is agreed on in each step, so it "
                        "cannot be recorded",
                        u->name);
    TSI_TRY(tsi_comm_now(u->rank, "fsdp"));
    uint8_t *mask = tsi_calloc((size_t)u->count, 1);
    if (!mask) return tsi_fail_memory("what a unit used", (size_t)u->count);
    for (int64_t i = 0; i < u->count; i++)
        mask[i] = has_terms(tsi_leaf_of(u->param[i].value));
    ts_status status = agree_mask(u, mask);
    for (int64_t i = 0; status == TS_OK && i < u->count; i++) {
        tsi_leaf *leaf = tsi_leaf_of(u->param[i].value);
        if (mask[i] && leaf) status = make_ready(u, &u->param[i], leaf);
    }
    tsi_free(mask);
    return status;
}
