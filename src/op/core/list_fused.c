/* SPDX-License-Identifier: Apache-2.0 */
/* list_fused.c - list forms that are no operator: zero, copy, and optimiser updates over all
 * parameters in one go.
 *
 * They write into blocks as these lie. What else they read is brought to the same layout first, for
 * the whole list; past that point nothing can fail short of a lost rank. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "op/core/dispatch.h"
#include "op/core/list.h"
#include "op/nn/update.h"
#include "tensor/scope.h"

/* ---- zero and copy --------------------------------------------------------------------------- */

static ts_status ready_all(ts_list x)
{
    for (int64_t i = 0; i < x.count; i++)
        if (TSI_UNLIKELY(x.item[i]->move != NULL)) TSI_TRY(tsi_tensor_ready(x.item[i]));
    return TS_OK;
}

ts_status ts_foreach_zero(ts_list x)
{
    ts_rank *rank;
    TSI_TRY(tsi_list_check("foreach_zero", &x, 1, &rank));
    TSI_TRY(tsi_list_ask("foreach_zero", &x, 1, false));
    TSI_TRY(tsi_list_writable("foreach_zero", x));
    TSI_TRY(ready_all(x));
    const unsigned char zero[16] = { 0 };
    for (int64_t i = 0; i < x.count; i++)
        TSI_TRY(tsi_array_fill(x.item[i]->array, zero));
    if (!rank) return TS_OK;
    tsi_tell(rank, TSI_NEWS_LIST, &(tsi_listed){ "foreach_zero", NULL, &x, 1, 1, 0, 0 });
    return ts_rank_status(rank);
}

/* The items of `from` that lie otherwise than those of `to`, moved; *out is `from` itself if none
 * does, else a list to be freed. */
static ts_status bring(const char *name, ts_list from, ts_list to, ts_tensor *const **out,
                       ts_tensor ***made)
{
    *made = NULL;
    *out = from.item;
    for (int64_t i = 0; i < from.count; i++)
        if (TSI_UNLIKELY(from.item[i]->layout != to.item[i]->layout))
            TSI_TRY(tsi_list_movable(name, i, from.item[i], to.item[i]));
    for (int64_t i = 0; i < from.count; i++) {
        if (TSI_LIKELY(from.item[i]->layout == to.item[i]->layout)) continue;
        if (!*made) {
            *made = tsi_alloc((size_t)from.count * sizeof **made);
            if (!*made) return tsi_fail_memory(name, (size_t)from.count * sizeof **made);
            memcpy(*made, from.item, (size_t)from.count * sizeof **made);
            *out = *made;
        }
        (*made)[i] = tsi_list_moved(name, from.item[i], to.item[i], true);
        if (!(*made)[i]) return ts_rank_status(from.item[i]->rank);
    }
    return ready_all((ts_list){ *out, from.count });
}

static ts_status copy_all(ts_list to, ts_tensor *const *from)
{
    for (int64_t i = 0; i < to.count; i++)
        TSI_TRY(tsi_array_copy(to.item[i]->array, from[i]->array));
    return TS_OK;
}

ts_status ts_foreach_copy(ts_list to, ts_list from)
{
    const ts_list lists[] = { to, from };
    ts_rank *rank;
    TSI_TRY(tsi_list_check("foreach_copy", lists, 2, &rank));
    if (!rank) return TS_OK;
    TSI_TRY(tsi_list_ask("foreach_copy", lists, 2, false));
    TSI_TRY(tsi_list_writable("foreach_copy", to));
    ts_scope scope = ts_scope_open(rank, NULL);
    ts_tensor **made = NULL, *const *item = NULL;
    ts_status status = ready_all(to);
    if (status == TS_OK) status = bring("foreach_copy", from, to, &item, &made);
    if (status == TS_OK) status = copy_all(to, item);
    if (status == TS_OK)
        tsi_tell(rank, TSI_NEWS_LIST, &(tsi_listed){ "foreach_copy", NULL, lists, 2, 1, 0, 0 });
    tsi_free(made);
    ts_status closed = ts_scope_close(scope);
    if (status == TS_OK) status = ts_rank_status(rank);
    return status != TS_OK ? status : closed;
}

/* ---- optimiser updates ----------------------------------------------------------------------- */

enum { FEW = 256 }; /* items that need no memory of their own */

typedef struct fused {
    const tsi_list_op *op;
    int32_t lists; /* 2: no moments */
    const void *step;
    ts_list list[TSI_LIST_PARTS]; /* by part */
} fused;

static void tell(const fused *f, ts_rank *rank)
{
    uint32_t written = ((1u << f->lists) - 1) & ~(1u << TSI_UPDATE_GRAD);
    tsi_tell(rank, TSI_NEWS_LIST,
             &(tsi_listed){ f->op->name, NULL, f->list, f->lists, written, 0, 0 });
}

/* Blocks of a part that must be written where they lie, although they are not dense. */
typedef struct spread {
    tsi_array *dense; /* NULL: none */
    ts_tensor *of;
} spread;

/* The same elements in the same places: equal layouts, or nothing that cuts in either. */
static inline bool lies_alike(const ts_layout *a, const ts_layout *b)
{
    if (TSI_LIKELY(a == b)) return true;
    bool whole = !(a->axes_cut | a->axes_partial | b->axes_cut | b->axes_partial);
    return whole && tsi_shape_same(&a->shape, &b->shape);
}

static ts_status refuse(const fused *f, int64_t i, int32_t k)
{
    const ts_tensor *p = f->list[0].item[i], *x = f->list[k].item[i];
    if (p->layout->axes_partial)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: parameter %lld is partial, %s: reduce it first",
                        f->op->name, (long long)i, p->layout->text);
    if (!lies_alike(x->layout, p->layout))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: moment %d of parameter %lld lies as %s, it as %s",
                        f->op->name, k - 1, (long long)i, x->layout->text, p->layout->text);
    return TSI_FAIL(TS_ERR_DTYPE, "%s: part %d of parameter %lld is %s, not real", f->op->name, k,
                    (long long)i, ts_dtype_name((ts_dtype)x->dtype));
}

static ts_status check_all(const fused *f)
{
    for (int64_t i = 0; i < f->list[0].count; i++) {
        const ts_tensor *p = f->list[0].item[i];
        if (TSI_UNLIKELY(p->layout->axes_partial)) return refuse(f, i, 0);
        for (int32_t k = 0; k < f->lists; k++) {
            const ts_tensor *x = f->list[k].item[i];
            if (TSI_UNLIKELY((k != TSI_UPDATE_GRAD && !lies_alike(x->layout, p->layout)) ||
                             !tsi_dtype_is_real(x->dtype)))
                return refuse(f, i, k);
        }
    }
    return TS_OK;
}

/* A dense copy of a strided block, to be copied back unless it is the gradient. */
static ts_status make_dense(ts_tensor *x, spread *to)
{
    ts_shape shape = tsi_array_shape(x->array);
    *to = (spread){ tsi_array_create(x->rank, (ts_dtype)x->dtype, &shape), x };
    if (!to->dense) return ts_rank_status(x->rank);
    return tsi_array_copy(to->dense, x->array);
}

static ts_status fill_item(const fused *f, int64_t i, ts_tensor *const *grad, tsi_list_item *item,
                           spread *spreads)
{
    item->count = 0;
    for (int32_t k = 0; k < TSI_LIST_PARTS; k++) {
        item->part[k].data = NULL;
        if (k >= f->lists) continue;
        ts_tensor *x = k == TSI_UPDATE_GRAD ? grad[i] : f->list[k].item[i];
        tsi_array *array = x->array;
        if (TSI_UNLIKELY(!tsi_array_is_dense(array))) {
            TSI_TRY(make_dense(x, &spreads[i * TSI_LIST_PARTS + k]));
            array = spreads[i * TSI_LIST_PARTS + k].dense;
        }
        if (k == 0) {
            item->count = 1;
            for (int32_t d = 0; d < array->ndim; d++)
                item->count *= array->extent[d];
        }
        item->part[k].data = tsi_array_data(array);
        item->part[k].dtype = (ts_dtype)array->dtype;
    }
    return TS_OK;
}

static void spread_back(spread *s, int32_t part)
{
    if (!s->dense) return;
    if (part != TSI_UPDATE_GRAD) (void)tsi_array_copy(s->of->array, s->dense); /* as it came */
    tsi_array_release(s->dense);
}

/* ---- the common case, in one pass ------------------------------------------------------------ */

/* A part that is there, dense, real, and lies as it should; false: not so, or not so simple. Of the
 * tensor, its array and its storage one cache line each is read: that is what an item costs. */
static inline bool simple_part(const ts_tensor *t, const ts_rank *rank, const ts_layout *layout,
                               bool writes, tsi_list_part *part)
{
    const uint32_t real =
        1u << TS_DTYPE_F32 | 1u << TS_DTYPE_BF16 | 1u << TS_DTYPE_F64 | 1u << TS_DTYPE_F16;
    if (!t || t->rank != rank || t->move || t->layout != layout) return false;
    const tsi_array *array = t->array;
    if (!array->dense || !(real >> array->dtype & 1)) return false;
    if (writes && (array->storage->read_only || array->storage->ask)) return false;
    part->data = array->offset ? tsi_array_data(array) : array->storage->data;
    part->dtype = (ts_dtype)array->dtype;
    return true;
}

/* How many items from the first on are simple; their parameters count as written, since the line of
 * their storage is at hand here and would be fetched again later. `lists` is a constant where this
 * is called, so that the parts need no loop. */
static TSI_INLINE int64_t simple_items(const fused *f, int32_t lists, const ts_rank *rank,
                                       tsi_list_item *item)
{
    ts_tensor *const *params = f->list[TSI_UPDATE_PARAM].item, *const *grad = f->list[1].item;
    ts_tensor *const *first = f->list[TSI_UPDATE_FIRST].item, *const *second = f->list[3].item;
    int64_t count = f->list[0].count;
    for (int64_t i = 0; i < count; i++) {
        const ts_tensor *param = params[i];
        if (!param || !param->layout || param->layout->axes_partial) return i;
        const ts_layout *layout = param->layout;
        tsi_list_part *part = item[i].part;
        for (int32_t k = lists; k < TSI_LIST_PARTS; k++)
            part[k].data = NULL;
        if (!simple_part(param, rank, layout, true, &part[TSI_UPDATE_PARAM]) ||
            !simple_part(grad[i], rank, layout, false, &part[TSI_UPDATE_GRAD]) ||
            (lists > 2 && !simple_part(first[i], rank, layout, true, &part[TSI_UPDATE_FIRST])) ||
            (lists > 3 && !simple_part(second[i], rank, layout, true, &part[TSI_UPDATE_SECOND])))
            return i;
        const tsi_array *array = param->array;
        item[i].count = array->ndim > 0 ? array->extent[0] : 1;
        for (int32_t d = 1; d < array->ndim; d++)
            item[i].count *= array->extent[d];
        array->storage->version++;
    }
    return count;
}

/* All of them or none. */
static bool simple_list(const fused *f, const ts_rank *rank, tsi_list_item *item)
{
    int64_t done = f->lists == 4   ? simple_items(f, 4, rank, item)
                   : f->lists == 3 ? simple_items(f, 3, rank, item)
                                   : simple_items(f, 2, rank, item);
    if (done == f->list[0].count) return true;
    while (done-- > 0)
        f->list[TSI_UPDATE_PARAM].item[done]->array->storage->version--;
    return false;
}

/* false: nothing was done. */
static bool run_simple(const fused *f, ts_status *status)
{
    tsi_list_item item[FEW];
    int64_t count = f->list[0].count;
    if (count < 1 || count > FEW || !f->list[0].item || !f->list[0].item[0]) return false;
    ts_rank *rank = f->list[0].item[0]->rank;
    for (int32_t k = 0; k < f->lists; k++)
        if (f->list[k].count != count || !f->list[k].item) return false;
    if (tsi_rank_enter(rank) != TS_OK) return false;
    if (!simple_list(f, rank, item)) return false;
    *status = tsi_list_run(
        f->op, (tsi_list_io){ .attributes = f->step, .item = item, .count = count, .rank = rank });
    if (*status == TS_OK) tell(f, rank);
    return true;
}

/* ---- everything else ------------------------------------------------------------------------- */

static bool any_spread(const fused *f, ts_tensor *const *grad)
{
    for (int32_t k = 0; k < f->lists; k++)
        for (int64_t i = 0; i < f->list[0].count; i++) {
            const ts_tensor *x = k == TSI_UPDATE_GRAD ? grad[i] : f->list[k].item[i];
            if (TSI_UNLIKELY(!tsi_array_is_dense(x->array))) return true;
        }
    return false;
}

/* All items as blocks, then one kernel. */
static ts_status update_all(const fused *f, ts_rank *rank, ts_tensor *const *grad)
{
    int64_t count = f->list[0].count;
    size_t parts = (size_t)count * TSI_LIST_PARTS;
    tsi_list_item few[FEW], *item = count <= FEW ? few : tsi_alloc((size_t)count * sizeof *item);
    spread *spreads = any_spread(f, grad) ? tsi_calloc(parts, sizeof *spreads) : NULL;
    ts_status status = item && (spreads || !any_spread(f, grad)) ? TS_OK : TS_ERR_MEMORY;
    if (status != TS_OK) (void)tsi_fail_memory(f->op->name, (size_t)count * sizeof *item);
    for (int64_t i = 0; status == TS_OK && i < count; i++)
        status = fill_item(f, i, grad, &item[i], spreads);
    if (status == TS_OK) {
        status = tsi_list_run(
            f->op,
            (tsi_list_io){ .attributes = f->step, .item = item, .count = count, .rank = rank });
        for (int64_t i = 0; i < count; i++)
            tsi_array_wrote(f->list[0].item[i]->array);
    }
    for (size_t i = 0; spreads && i < parts; i++) {
        if (status != TS_OK) tsi_array_release(spreads[i].dense);
        if (status == TS_OK) spread_back(&spreads[i], (int32_t)(i % TSI_LIST_PARTS));
    }
    tsi_free(spreads);
    if (item != few) tsi_free(item);
    return status;
}

static ts_status run(const fused *f)
{
    ts_rank *rank;
    ts_status status = TS_OK;
    if (run_simple(f, &status)) return status;
    TSI_TRY(tsi_list_check(f->op->name, f->list, f->lists, &rank));
    if (!rank) return TS_OK;
    TSI_TRY(check_all(f));
    for (int32_t k = 0; k < f->lists; k++) {
        if (k == TSI_UPDATE_GRAD) continue;
        TSI_TRY(tsi_list_writable(f->op->name, f->list[k]));
        TSI_TRY(ready_all(f->list[k]));
    }
    ts_scope scope = ts_scope_open(rank, NULL);
    ts_tensor **made = NULL, *const *grad = NULL;
    status = bring(f->op->name, f->list[TSI_UPDATE_GRAD], f->list[0], &grad, &made);
    if (status == TS_OK) status = update_all(f, rank, grad);
    if (status == TS_OK) tell(f, rank);
    tsi_free(made);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

ts_status ts_fused_adamw(const ts_adamw_update *u)
{
    if (!u) return TSI_FAIL(TS_ERR_NULL, "fused_adamw: update is NULL");
    if (u->step < 1)
        return TSI_FAIL(TS_ERR_ARG, "fused_adamw: step %lld, they count from 1",
                        (long long)u->step);
    tsi_adamw_step step = { .lr = u->lr,
                            .beta1 = u->beta1,
                            .beta2 = u->beta2,
                            .epsilon = u->epsilon,
                            .weight_decay = u->weight_decay,
                            .correction1 = 1.0 - pow(u->beta1, (double)u->step),
                            .correction2 = 1.0 - pow(u->beta2, (double)u->step),
                            .factor = 1.0 };
    TSI_TRY(tsi_adamw_check("fused_adamw", &step));
    return run(&(fused){ &tsi_list_adamw, 4, &step, { u->param, u->grad, u->first, u->second } });
}

ts_status ts_fused_sgd(const ts_sgd_update *u)
{
    if (!u) return TSI_FAIL(TS_ERR_NULL, "fused_sgd: update is NULL");
    tsi_sgd_step step = { u->lr, u->momentum, u->weight_decay, 1.0, u->nesterov, u->step <= 1 };
    bool moments = u->momentum_of.count > 0;
    TSI_TRY(tsi_sgd_check("fused_sgd", &step));
    if (!moments && u->momentum != 0.0 && u->param.count > 0)
        return TSI_FAIL(TS_ERR_ARG, "fused_sgd: momentum %g, but no list to keep it in",
                        u->momentum);
    return run(&(fused){ &tsi_list_sgd,
                         moments ? 3 : 2,
                         &step,
                         { u->param, u->grad, u->momentum_of, { NULL, 0 } } });
}
