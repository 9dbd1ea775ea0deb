/* SPDX-License-Identifier: Apache-2.0 */
/* used.c - units of which ranks may use different parameters.
 *
 * Which gradients are reduced must not depend on what a rank happens to have. So the ranks agree,
 * unit by unit: a parameter that any of them used is reduced, and who did not use it adds zeros;
 * one that nobody used has no gradient, so that no update touches it. Values are not looked at.
 *
 * A gradient may be a sum already where backward rounds it (that of a norm's bf16 weight): a rank
 * then has its shard of it. That is a term, too, which is zero elsewhere:
 *
 *   reduced over two ranks   rank 0 [ g0 ]     rank 1 [ g1 ]
 *   as terms                 rank 0 [ g0 0 ]   rank 1 [ 0 g1 ]
 *
 * Nothing moves for it, so that who did not use the parameter need not know.
 *
 * INV: after tsi_unit_agree every rank has the same gradients ready, in the same layout. */
#include <string.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "comm/comm.h"
#include "parallel/unit.h"

static const ts_placement term = {
    .kind = TS_PLACE_PARTIAL, .reduce = TS_REDUCE_SUM, .factor = 1, .align = 1
};

/* An axis that cuts the batch, which operators see the parameter whole on. */
static bool sums_over(const tsi_unit_param *p, int32_t k)
{
    static const char *const batch[] = { "dp", "replicate", "fsdp", "cp" };
    bool cuts = p->unit->axes_cut >> k & 1;
    for (size_t i = 0; i < TSI_COUNT_OF(batch); i++)
        cuts |= strcmp(p->whole->mesh->name[k], batch[i]) == 0;
    return cuts && p->whole->place[k].kind == TS_PLACE_REPLICATE;
}

/* As its operators see it, and a term of a sum on the axes that cut the batch. Retained. */
static const ts_sharding *common_layout(const tsi_unit_param *p)
{
    ts_placement place[TS_NDIM_MAX] = { { 0 } };
    for (int32_t k = 0; k < p->whole->ndim; k++)
        place[k] = sums_over(p, k) ? term : p->whole->place[k];
    return tsi_sharding_intern(p->whole->mesh, place);
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

/* ---- shards as terms ------------------------------------------------------------------------- */

static uint32_t dims_of(const ts_placement *place)
{
    return (2u << place->dim_last) - (1u << place->dim);
}

/* Of axes that cut `from`: those that `to` has terms on, and those that cut the same dims, which
 * would lie within what the first ones leave. */
static uint32_t axes_of_terms(const ts_sharding *from, const ts_sharding *to)
{
    uint32_t axes = 0, dims = 0, before;
    do {
        before = axes;
        for (int32_t k = 0; k < from->ndim; k++) {
            const ts_placement *place = &from->place[k];
            if (!tsi_placement_cuts(place)) continue;
            bool joins = tsi_placement_partial(&to->place[k]) || (dims & dims_of(place));
            if (!joins) continue;
            axes |= 1u << k;
            dims |= dims_of(place);
        }
    } while (axes != before);
    return axes;
}

typedef struct shard_copy {
    tsi_array *to, *from; /* dense */
    ts_status status;
} shard_copy;

static bool copy_box(const tsi_box *box, void *context)
{
    shard_copy *c = context;
    ts_shape shape = { .ndim = box->ndim };
    memcpy(shape.extent, box->extent, sizeof shape.extent);
    tsi_array *to = tsi_array_view(c->to, (ts_dtype)c->to->dtype, &shape, box->stride_a,
                                   c->to->offset + box->offset_a);
    tsi_array *from = tsi_array_view(c->from, (ts_dtype)c->from->dtype, &shape, box->stride_b,
                                     c->from->offset + box->offset_b);
    c->status = to && from ? tsi_array_copy(to, from) : TS_ERR_MEMORY;
    tsi_array_release(from);
    tsi_array_release(to);
    return c->status == TS_OK;
}

/* This rank's block of x, where it is in y. */
static ts_status copy_shard(const ts_tensor *y, const ts_tensor *x)
{
    tsi_arena arena = { 0 };
    tsi_region a, b;
    shard_copy c = { y->array, x->array, TS_OK };
    const int64_t *coord = x->mesh->coord;
    uint32_t joined = y->layout->sharding->joined | x->layout->sharding->joined;
    bool done = tsi_layout_region_joined(y->layout, coord, joined, &arena, &a) &&
                tsi_layout_region_joined(x->layout, coord, joined, &arena, &b) &&
                tsi_region_boxes(&b, &a, &b, &arena, copy_box, &c);
    tsi_arena_release(&arena);
    if (done) return TS_OK;
    return c.status != TS_OK ? ts_rank_status(x->rank) : tsi_fail_memory("a gradient's shard", 0);
}

/* x, on its axes of a sum a term of the target's. NULL: recorded. */
static ts_tensor *as_terms(ts_tensor *x, const ts_sharding *to)
{
    const ts_sharding *from = x->layout->sharding;
    uint32_t axes = from->mesh == to->mesh ? axes_of_terms(from, to) : 0;
    if (!axes) return x;
    ts_placement place[TS_NDIM_MAX] = { { 0 } };
    for (int32_t k = 0; k < from->ndim; k++)
        place[k] = axes >> k & 1 ? term : from->place[k];
    const ts_sharding *terms = tsi_sharding_intern(from->mesh, place);
    const ts_layout *layout = terms ? tsi_layout_intern(terms, &x->layout->shape) : NULL;
    ts_tensor *y = layout ? zeros(x->mesh, layout, (ts_dtype)x->dtype) : NULL;
    bool dense = tsi_tensor_ready(x) == TS_OK && tsi_array_is_dense(x->array);
    if (!dense) x = ts_clone(x);
    if (!y || !x || copy_shard(y, x) != TS_OK) y = NULL;
    ts_layout_release(layout);
    ts_sharding_release(terms);
    return y;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

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
        grad = (ts_redistribute_to)(as_terms(leaf->grad, to), to);
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

/* Of each parameter, one behind the other: what some rank says is said. */
typedef struct marks {
    uint8_t *used, *unused, *summed; /* of all ranks */
    uint8_t *line;                   /* unused, then summed, along one axis */
    uint8_t *mixed;
} marks;

enum { MARKS = 6 }; /* bytes of a parameter */

/* Each of `count` bytes is the largest that a rank along the axis has; NULL: any rank. A recorded
 * step goes the same way each time: what was agreed on then holds. */
static ts_status agree(const tsi_unit *u, const char *axis, uint8_t *byte, int64_t count)
{
    ts_group *group = ts_mesh_group(u->mesh, axis);
    if (!group) return ts_rank_status(u->rank);
    ts_array array = TS_INIT(ts_array);
    array.data = byte;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_U8 };
    tsi_keep_pause(u->rank);
    ts_status status = ts_group_all_reduce(group, &array, &array, TS_REDUCE_MAX, NULL);
    tsi_keep_resume(u->rank);
    return status;
}

/* Is its gradient no term of a sum over this axis: a sum, or the same on all of its ranks? */
static bool is_summed(const tsi_unit_param *p, int32_t k)
{
    const tsi_leaf *leaf = tsi_leaf_of(p->value);
    const tsi_mesh_desc *mesh = p->whole->mesh;
    if (!has_terms(leaf) || mesh->size[k] == 1 || !sums_over(p, k)) return false;
    const ts_sharding *is = leaf->grad->layout->sharding;
    return is->mesh == mesh && !tsi_placement_partial(&is->place[k]);
}

static ts_status refuse_mixed(const tsi_unit *u, const uint8_t *mixed)
{
    char name[TSI_PARAM_NAME_MAX];
    int64_t i = 0;
    while (i < u->count && !mixed[i])
        i++;
    if (i == u->count) return TS_OK;
    (void)tsi_name_text(&u->param[i].param->name, name, sizeof name);
    return TSI_FAIL(TS_ERR_STATE,
                    "fsdp: unit %s: some ranks use parameter %s, whose gradient is summed in their "
                    "backward already, and others do not, so that it may be mixed with another "
                    "one: keep it in f32 (a gradient that is rounded is summed first), or use it "
                    "on all ranks",
                    u->name, name);
}

/* A sum that is made in backward is right where all ranks along its axis make it; others would meet
 * there in the sum of another parameter. */
static ts_status check_sums(const tsi_unit *u, const marks *m)
{
    bool suspect = false;
    for (int64_t i = 0; i < u->count; i++)
        suspect |= m->summed[i] && m->unused[i];
    for (int32_t k = 0; suspect && k < ts_mesh_ndim(u->mesh); k++) {
        if (ts_mesh_axis_size(u->mesh, k) == 1) continue;
        for (int64_t i = 0; i < u->count; i++) {
            m->line[i] = !has_terms(tsi_leaf_of(u->param[i].value));
            m->line[u->count + i] = is_summed(&u->param[i], k);
        }
        TSI_TRY(agree(u, ts_mesh_axis_name(u->mesh, k), m->line, 2 * u->count));
        for (int64_t i = 0; i < u->count; i++)
            m->mixed[i] |= m->line[i] && m->line[u->count + i];
    }
    if (!suspect) return TS_OK;
    TSI_TRY(agree(u, NULL, m->mixed, u->count));
    return refuse_mixed(u, m->mixed);
}

static ts_status agree_all(tsi_unit *u, const marks *m)
{
    for (int64_t i = 0; i < u->count; i++) {
        m->used[i] = has_terms(tsi_leaf_of(u->param[i].value));
        m->unused[i] = !m->used[i];
        for (int32_t k = 0; k < ts_mesh_ndim(u->mesh); k++)
            m->summed[i] |= is_summed(&u->param[i], k);
    }
    TSI_TRY(agree(u, NULL, m->used, 3 * u->count));
    TSI_TRY(check_sums(u, m));
    for (int64_t i = 0; i < u->count; i++) {
        tsi_leaf *leaf = tsi_leaf_of(u->param[i].value);
        if (m->used[i] && leaf) TSI_TRY(make_ready(u, &u->param[i], leaf));
    }
    return TS_OK;
}

ts_status tsi_unit_agree(tsi_unit *u)
{
    TSI_TRY(tsi_comm_now(u->rank, "fsdp"));
    size_t count = (size_t)u->count;
    uint8_t *byte = tsi_calloc(MARKS * count, 1);
    if (!byte) return tsi_fail_memory("what a unit used", MARKS * count);
    marks m = { byte, byte + count, byte + 2 * count, byte + 3 * count, byte + 5 * count };
    ts_status status = agree_all(u, &m);
    tsi_free(byte);
    return status;
}
