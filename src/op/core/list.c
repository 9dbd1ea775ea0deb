/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - list forms of elementwise operators: each item is a call of the operator, planned by its
 * rules.
 *
 *   1. every item's plan is made or found: what is illegal is refused, and the policy asked
 *   2. in place: inputs that must move are moved, for all items
 *   3. the kernels run */
#include "op/core/list.h"

#include <string.h>

#include "base/alloc.h"
#include "op/core/dispatch.h"
#include "tensor/move.h"
#include "tensor/scope.h"

enum { LISTS_MAX = 3 };

/* ---- what list forms share ------------------------------------------------------------------- */

ts_status tsi_list_check(const char *name, const ts_list *lists, int32_t count, ts_rank **rank)
{
    *rank = NULL;
    for (int32_t k = 0; k < count; k++) {
        if (lists[k].count != lists[0].count)
            return TSI_FAIL(TS_ERR_ARG, "%s: list %d has %lld items, list 0 has %lld", name, k,
                            (long long)lists[k].count, (long long)lists[0].count);
        if (lists[k].count > 0 && !lists[k].item)
            return TSI_FAIL(TS_ERR_NULL, "%s: list %d is NULL", name, k);
        for (int64_t i = 0; i < lists[k].count; i++) {
            const ts_tensor *t = lists[k].item[i];
            if (TSI_UNLIKELY(!t))
                return TSI_FAIL(TS_ERR_NULL, "%s: item %lld of list %d is NULL", name, (long long)i,
                                k);
            if (TSI_UNLIKELY(!t->layout))
                return tsi_tensor_refuse(t, "%s: item %lld of list %d", name, (long long)i, k);
            if (!*rank) *rank = t->rank;
            if (TSI_UNLIKELY(t->rank != *rank))
                return TSI_FAIL(TS_ERR_ARG, "%s: item %lld of list %d is of another rank", name,
                                (long long)i, k);
        }
    }
    return *rank ? tsi_rank_enter(*rank) : TS_OK;
}

ts_status tsi_list_writable(const char *name, ts_list list)
{
    for (int64_t i = 0; i < list.count; i++)
        TSI_TRY(tsi_tensor_writable(list.item[i], "%s: item %lld", name, (long long)i));
    return TS_OK;
}

ts_status tsi_list_ask(const char *name, const ts_list *lists, int32_t count, bool by_calls)
{
    ts_rank *rank = lists[0].count > 0 ? lists[0].item[0]->rank : NULL;
    if (!rank) return TS_OK;
    tsi_tell(rank, TSI_NEWS_LISTING,
             &(tsi_listed){ name, NULL, lists, count, 1, by_calls ? 1 : 0, 0 });
    return ts_rank_status(rank);
}

ts_tensor *tsi_list_moved(const char *name, ts_tensor *x, const ts_tensor *like, bool implicit)
{
    if (x->layout == like->layout && x->mesh == like->mesh) return x;
    if (tsi_tensor_ready(x) != TS_OK) return NULL;
    tsi_source from = { x->mesh, x->layout, x->array, (ts_dtype)x->dtype };
    tsi_move *move = NULL;
    ts_move_options options = TS_INIT(ts_move_options);
    options.name = name;
    tsi_array *array = tsi_move_begin(&from, like->mesh, like->layout, &options, &move);
    ts_tensor *y =
        array ? tsi_tensor_make(like->mesh, like->layout, (ts_dtype)x->dtype, array, move) : NULL;
    tsi_tensor_moved(x, y, implicit);
    return y;
}

static void plan_done(tsi_op_plan *plan)
{
    if (plan->loose && plan->busy == 0) tsi_op_plan_destroy(plan);
}

/* The plan of one call, its moves asked for; *moves: inputs have to be moved. */
static ts_status plan_item(ts_rank *rank, const tsi_op_args *args, bool *moves)
{
    tsi_op_plan *plan = tsi_op_plan_of(rank, args);
    if (!plan) return ts_rank_status(rank);
    ts_status status = TS_OK;
    if (tsi_op_plan_bytes(plan) > 0) status = tsi_op_policy(rank, plan);
    for (int32_t k = 0; k < plan->input_count; k++)
        *moves = *moves || plan->wanted[k];
    plan_done(plan);
    return status;
}

ts_status tsi_list_movable(const char *name, int64_t item, ts_tensor *x, ts_tensor *like)
{
    if (x->layout == like->layout) return TS_OK;
    const ts_shape *a = &x->layout->shape, *b = &like->layout->shape;
    bool same = tsi_shape_same(a, b);
    if (!same || like->layout->axes_partial)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: item %lld is %s beside %s%s", name, (long long)item,
                        x->layout->text, like->layout->text,
                        same ? ", which is partial: reduce it first" : "");
    ts_number alpha = ts_number_int(1); /* added into `like`, it would take the same way */
    ts_tensor *in[] = { like, x };
    bool moves = false;
    return plan_item(like->rank, &(tsi_op_args){ &tsi_op_add, in, 2, 1, &alpha }, &moves);
}

/* ---- forms of operators ---------------------------------------------------------------------- */

typedef struct form {
    const char *name;
    const tsi_op_desc *op;
    const void *attributes;
    const ts_list *lists;
    int32_t count, in_place; /* lists */
} form;

static void inputs_of(const form *f, int64_t item, ts_tensor **in)
{
    for (int32_t k = 0; k < f->count; k++)
        in[k] = f->lists[k].item[item];
}

static ts_status plan_all(const form *f, ts_rank *rank, bool *moves)
{
    for (int64_t i = 0; i < f->lists[0].count; i++) {
        ts_tensor *in[LISTS_MAX];
        inputs_of(f, i, in);
        TSI_TRY(plan_item(rank, &(tsi_op_args){ f->op, in, f->count, f->in_place, f->attributes },
                          moves));
    }
    return TS_OK;
}

/* The inputs of one call as its plan wants them. The call is given what was moved, so the moves
 * speak for themselves: a tape has them between the inputs and the call. */
static ts_status move_item(const form *f, ts_rank *rank, int64_t item, ts_tensor **used)
{
    ts_tensor *in[LISTS_MAX];
    inputs_of(f, item, in);
    tsi_op_plan *plan =
        tsi_op_plan_of(rank, &(tsi_op_args){ f->op, in, f->count, f->in_place, f->attributes });
    if (!plan) return ts_rank_status(rank);
    for (int32_t k = 0; k < f->count; k++) {
        used[k] = in[k];
        ts_tensor like = { .mesh = plan->mesh, .layout = plan->via[k] };
        if (used[k] && plan->via[k]) used[k] = tsi_list_moved(f->name, used[k], &like, false);
        like.layout = plan->wanted[k];
        if (used[k] && plan->wanted[k]) used[k] = tsi_list_moved(f->name, used[k], &like, false);
        if (!used[k]) break;
    }
    plan_done(plan);
    return ts_rank_status(rank);
}

/* In place with moves: all of them before the first write. */
static ts_status run_moved(const form *f, ts_rank *rank)
{
    int64_t items = f->lists[0].count;
    ts_tensor **used = tsi_calloc((size_t)(items * f->count), sizeof *used);
    if (!used) return tsi_fail_memory(f->name, (size_t)(items * f->count) * sizeof *used);
    ts_status status = TS_OK;
    for (int64_t i = 0; status == TS_OK && i < items; i++)
        status = move_item(f, rank, i, used + i * f->count);
    for (int64_t i = 0; status == TS_OK && i < items; i++) {
        ts_tensor *same = NULL;
        status = tsi_op_run(
            &(tsi_op_args){ f->op, used + i * f->count, f->count, f->in_place, f->attributes },
            &same);
    }
    tsi_free(used);
    return status;
}

static ts_status run_all(const form *f, ts_tensor **out)
{
    for (int64_t i = 0; i < f->lists[0].count; i++) {
        ts_tensor *in[LISTS_MAX], *made = NULL;
        inputs_of(f, i, in);
        TSI_TRY(
            tsi_op_run(&(tsi_op_args){ f->op, in, f->count, f->in_place, f->attributes }, &made));
        if (out) out[i] = made;
    }
    return TS_OK;
}

static ts_status run(form f, ts_tensor **out)
{
    ts_rank *rank;
    f.in_place = out == NULL;
    for (int64_t i = 0; out && i < f.lists[0].count; i++)
        out[i] = NULL;
    TSI_TRY(tsi_list_check(f.name, f.lists, f.count, &rank));
    if (!rank) return TS_OK;
    if (f.in_place) TSI_TRY(tsi_list_ask(f.name, f.lists, f.count, true));
    if (f.in_place) TSI_TRY(tsi_list_writable(f.name, f.lists[0]));
    bool moves = false;
    TSI_TRY(plan_all(&f, rank, &moves));
    if (!moves || out) {
        ts_status status = run_all(&f, out);
        for (int64_t i = 0; status != TS_OK && out && i < f.lists[0].count; i++)
            out[i] = NULL;
        return status;
    }
    ts_scope scope = ts_scope_open(rank, NULL);
    ts_status status = run_moved(&f, rank);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

ts_status ts_foreach_add(ts_list x, ts_list y, double alpha, ts_tensor **out)
{
    const ts_list lists[] = { x, y };
    ts_number number = tsi_number_real(alpha);
    return run((form){ "foreach_add", &tsi_op_add, &number, lists, 2, 0 }, out);
}

ts_status ts_foreach_add_scalar(ts_list x, double value, ts_tensor **out)
{
    ts_number number = tsi_number_real(value);
    return run((form){ "foreach_add_scalar", &tsi_op_add_scalar, &number, &x, 1, 0 }, out);
}

ts_status ts_foreach_mul(ts_list x, ts_list y, ts_tensor **out)
{
    const ts_list lists[] = { x, y };
    return run((form){ "foreach_mul", &tsi_op_mul, NULL, lists, 2, 0 }, out);
}

ts_status ts_foreach_mul_scalar(ts_list x, double value, ts_tensor **out)
{
    ts_number number = tsi_number_real(value);
    return run((form){ "foreach_mul_scalar", &tsi_op_mul_scalar, &number, &x, 1, 0 }, out);
}

ts_status ts_foreach_div(ts_list x, ts_list y, ts_tensor **out)
{
    const ts_list lists[] = { x, y };
    return run((form){ "foreach_div", &tsi_op_div, NULL, lists, 2, 0 }, out);
}

ts_status ts_foreach_lerp(ts_list x, ts_list y, double weight, ts_tensor **out)
{
    const ts_list lists[] = { x, y };
    ts_number number = tsi_number_real(weight);
    return run((form){ "foreach_lerp", &tsi_op_lerp, &number, lists, 2, 0 }, out);
}

ts_status ts_foreach_addcmul(ts_list x, ts_list y, ts_list z, double value, ts_tensor **out)
{
    const ts_list lists[] = { x, y, z };
    ts_number number = tsi_number_real(value);
    return run((form){ "foreach_addcmul", &tsi_op_addcmul, &number, lists, 3, 0 }, out);
}

ts_status ts_foreach_addcdiv(ts_list x, ts_list y, ts_list z, double value, ts_tensor **out)
{
    const ts_list lists[] = { x, y, z };
    ts_number number = tsi_number_real(value);
    return run((form){ "foreach_addcdiv", &tsi_op_addcdiv, &number, lists, 3, 0 }, out);
}

ts_status ts_foreach_sqrt(ts_list x, ts_tensor **out)
{
    return run((form){ "foreach_sqrt", &tsi_op_sqrt, NULL, &x, 1, 0 }, out);
}

ts_status ts_foreach_neg(ts_list x, ts_tensor **out)
{
    return run((form){ "foreach_neg", &tsi_op_neg, NULL, &x, 1, 0 }, out);
}

ts_status ts_foreach_abs(ts_list x, ts_tensor **out)
{
    return run((form){ "foreach_abs", &tsi_op_abs, NULL, &x, 1, 0 }, out);
}

ts_status ts_foreach_reciprocal(ts_list x, ts_tensor **out)
{
    return run((form){ "foreach_reciprocal", &tsi_op_reciprocal, NULL, &x, 1, 0 }, out);
}

ts_status ts_foreach_norm(ts_list x, double p, ts_tensor **out)
{
    ts_rank *rank;
    for (int64_t i = 0; out && i < x.count; i++)
        out[i] = NULL;
    if (!out) return TSI_FAIL(TS_ERR_NULL, "foreach_norm: out is NULL");
    TSI_TRY(tsi_list_check("foreach_norm", &x, 1, &rank));
    for (int64_t i = 0; i < x.count; i++) {
        out[i] = (ts_vector_norm)(x.item[i], TS_OPTIONS(ts_norm_options, .p = p));
        if (!out[i]) return ts_rank_status(rank);
    }
    return TS_OK;
}

/* ---- by name --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *what;
} forms[] = {
    { "foreach_abs", "|x|" },
    { "foreach_add", "x + alpha y" },
    { "foreach_add_scalar", "x + value" },
    { "foreach_addcdiv", "x + value y / z" },
    { "foreach_addcmul", "x + value y z" },
    { "foreach_copy", "y, into x, in the dtype and layout of x" },
    { "foreach_div", "x / y" },
    { "foreach_lerp", "x + weight (y - x)" },
    { "foreach_mul", "x y" },
    { "foreach_mul_scalar", "value x" },
    { "foreach_neg", "-x" },
    { "foreach_norm", "the p-norm of each item" },
    { "foreach_norm_total", "the 2-norm of all items together, a number of the host" },
    { "foreach_reciprocal", "1 / x" },
    { "foreach_sqrt", "square root" },
    { "foreach_zero", "0, into x" },
    { "fused_adamw", "one step of AdamW: parameters and both moments in place" },
    { "fused_sgd", "one step of SGD: momentum, Nesterov, weight decay; in place" },
};

const char *ts_list_form_name(int32_t index)
{
    bool there = index >= 0 && (size_t)index < TSI_COUNT_OF(forms);
    return there ? forms[index].name : NULL;
}

const char *ts_list_form_what(int32_t index)
{
    bool there = index >= 0 && (size_t)index < TSI_COUNT_OF(forms);
    return there ? forms[index].what : NULL;
}
