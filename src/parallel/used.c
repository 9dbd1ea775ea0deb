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
 * Nothing moves for it, so that who did not use the parameter need not know. But it was made in a
 * backward, where all ranks along its axis must have made it: so each rank notes in which backwards
 * since the last agreement, lazy ones too, it used a parameter, and a sum of which that differs is
 * refused. Where gradients are cleared the notes begin anew: of what was before nothing is left.
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

/* Of each parameter, one behind the other: what ranks say of it. */
typedef struct marks {
    uint8_t *used; /* it has terms, on any rank; then, of all ranks, a line */
    uint8_t *line; /* of those along one axis */
    uint8_t *mixed;
} marks;

/* A line: is it summed, the bytes of its history, and their complements: where the largest of both
 * are complements, all are alike. */
enum { HISTORY = 8, LINE = 1 + 2 * HISTORY, MARKS = 1 + 2 * LINE + 1 };

static void line_put(const tsi_unit *u, uint8_t *line, int64_t i, bool summed)
{
    const uint64_t history = u->param[i].history;
    uint8_t *byte = line + i * LINE;
    byte[0] = summed;
    memcpy(byte + 1, &history, HISTORY);
    for (int k = 0; k < HISTORY; k++)
        byte[1 + HISTORY + k] = (uint8_t)(UINT8_MAX - byte[1 + k]);
}

/* Of a line that was agreed on: is a sum in it that not all ranks made in the same backwards? */
static bool line_is_mixed(const uint8_t *line, int64_t i)
{
    const uint8_t *byte = line + i * LINE;
    bool differ = false;
    for (int k = 0; k < HISTORY; k++)
        differ |= byte[1 + k] + byte[1 + HISTORY + k] != UINT8_MAX;
    return byte[0] && differ;
}

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
        suspect |= line_is_mixed(m->used + u->count, i);
    for (int32_t k = 0; suspect && k < ts_mesh_ndim(u->mesh); k++) {
        if (ts_mesh_axis_size(u->mesh, k) == 1) continue;
        for (int64_t i = 0; i < u->count; i++)
            line_put(u, m->line, i, is_summed(&u->param[i], k));
        TSI_TRY(agree(u, ts_mesh_axis_name(u->mesh, k), m->line, LINE * u->count));
        for (int64_t i = 0; i < u->count; i++)
            m->mixed[i] |= line_is_mixed(m->line, i);
    }
    if (!suspect) return TS_OK;
    TSI_TRY(agree(u, NULL, m->mixed, u->count));
    return refuse_mixed(u, m->mixed);
}

static ts_status agree_all(tsi_unit *u, const marks *m)
{
    for (int64_t i = 0; i < u->count; i++) {
        bool summed = false;
        for (int32_t k = 0; k < ts_mesh_ndim(u->mesh); k++)
            summed |= is_summed(&u->param[i], k);
        m->used[i] = has_terms(tsi_leaf_of(u->param[i].value));
        line_put(u, m->used + u->count, i, summed);
    }
    TSI_TRY(agree(u, NULL, m->used, (1 + LINE) * u->count));
    TSI_TRY(check_sums(u, m));
    for (int64_t i = 0; i < u->count; i++) {
        tsi_leaf *leaf = tsi_leaf_of(u->param[i].value);
        if (m->used[i] && leaf) TSI_TRY(make_ready(u, &u->param[i], leaf));
    }
    tsi_unit_forget_use(u);
    return TS_OK;
}

void tsi_unit_note_use(tsi_unit *u)
{
    const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15);
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        const tsi_leaf *leaf = tsi_leaf_of(p->value);
        uint32_t terms = leaf ? leaf->terms : 0, cleared = leaf ? leaf->cleared : 0;
        if (cleared != p->cleared) p->history = 0;
        p->history = (p->history + 1 + (terms != p->terms)) * odd;
        p->terms = terms;
        p->cleared = cleared;
    }
}

void tsi_unit_forget_use(tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_leaf *leaf = tsi_leaf_of(u->param[i].value);
        u->param[i].terms = leaf ? leaf->terms : 0;
        u->param[i].cleared = leaf ? leaf->cleared : 0;
        u->param[i].history = 0;
    }
}

ts_status tsi_unit_settles_together(void *param)
{
    const tsi_unit_param *p = param;
    const tsi_unit *u = p->unit;
    char name[TSI_PARAM_NAME_MAX];
    const tsi_leaf *leaf = tsi_leaf_of(p->value);
    bool agreed = leaf && leaf->terms == p->terms && p->history == 0;
    if (agreed || ts_mesh_size(u->mesh, NULL) == 1) return TS_OK;
    (void)tsi_name_text(&p->param->name, name, sizeof name);
    return TSI_FAIL(TS_ERR_STATE,
                    "fsdp: unit %s: the gradient of parameter %s is to be settled, and ranks have "
                    "not agreed on which ones they used (options.unused): they do in a backward "
                    "that is not lazy and comes to the unit",
                    u->name, name);
}

ts_status tsi_unit_agree(tsi_unit *u)
{
    TSI_TRY(tsi_comm_now(u->rank, "fsdp"));
    size_t count = (size_t)u->count;
    uint8_t *byte = tsi_calloc(MARKS * count, 1);
    if (!byte) return tsi_fail_memory("what a unit used", MARKS * count);
    marks m = { .used = byte, .line = byte + (1 + LINE) * count };
    m.mixed = m.line + LINE * count;
    ts_status status = agree_all(u, &m);
    tsi_free(byte);
    return status;
}
