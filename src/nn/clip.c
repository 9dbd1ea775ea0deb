/* SPDX-License-Identifier: Apache-2.0 */
/* clip.c - the total norm of gradients, norms of modules, and clipping.
 *
 *   blocks --squares, one kernel--> [f64: ways tensors lie x modules] --one reduction--> all ranks
 *
 * Each element counts once: of copies the rank that is first on the axes that do not cut adds its
 * squares, the others add nothing, and one reduction over all ranks serves any mixture of meshes
 * and cuts. Parameters on other ranks than the first one's are reduced apart.
 *
 * INV: squares are added up in the order of declaration, and ranks in their order, so that norms
 * depend on the tree, the mesh and the list of modules alone, and are the same on all ranks. */
#include <math.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/error.h"
#include "comm/comm.h"
#include "nn/module.h"
#include "op/core/list.h"
#include "op/nn/update.h"
#include "tensor/scope.h"

enum { WAYS = 64 };

typedef struct piece {
    const tsi_array *array; /* dense; the gradient's */
    int64_t row, column;
} piece;

typedef struct clip {
    ts_rank *rank;
    const ts_module *root;
    ts_clip_options options;
    int64_t columns; /* a column for each module, and one for what is below none */
    int64_t ways;    /* rows */
    ts_mesh *mesh[WAYS];
    uint32_t axes[WAYS]; /* that cut */
    piece *piece;
    int64_t count, capacity;
    double *sum; /* [ways][columns] */
} clip;

/* ---- which gradients, and who counts them ---------------------------------------------------- */

/* The module of the list that is nearest above. */
static int64_t column_of(const clip *c, const ts_module *m)
{
    for (; m; m = m->parent)
        for (int32_t i = 0; i < c->options.module_count; i++)
            if (c->options.module[i] == m) return i;
    return c->options.module_count;
}

static ts_status row_of(clip *c, const ts_tensor *grad, int64_t *out)
{
    int64_t i = 0;
    while (i < c->ways && (c->mesh[i] != grad->mesh || c->axes[i] != grad->layout->axes_cut))
        i++;
    if (i == WAYS) return TSI_FAIL(TS_ERR_STATE, "clip: gradients lie in more than %d ways", WAYS);
    c->mesh[i] = grad->mesh;
    c->axes[i] = grad->layout->axes_cut;
    if (i == c->ways) c->ways++;
    *out = i;
    return TS_OK;
}

static bool counts_here(const ts_tensor *grad)
{
    if (!grad->mesh->member) return false;
    for (int32_t k = 0; k < grad->mesh->desc->ndim; k++)
        if (!(grad->layout->axes_cut >> k & 1) && grad->mesh->coord[k] != 0) return false;
    return true;
}

static ts_status take_grad(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)name;
    clip *c = context;
    ts_tensor *grad;
    int64_t row = 0;
    TSI_TRY(tsi_settled_grad(param->value, &grad));
    if (!grad) return TS_OK;
    TSI_TRY(row_of(c, grad, &row));
    if (!counts_here(grad)) return TS_OK;
    TSI_TRY(tsi_room(&c->piece, c->count, &c->capacity, sizeof *c->piece, "a total norm"));
    c->piece[c->count++] = (piece){ grad->array, row, column_of(c, m) };
    return TS_OK;
}

/* ---- squares --------------------------------------------------------------------------------- */

static ts_status run_squares(const clip *c, const tsi_array *to)
{
    size_t bytes = (size_t)c->count * sizeof(tsi_list_item);
    tsi_list_item *item = tsi_calloc(1, bytes);
    if (!item) return tsi_fail_memory("a total norm", bytes);
    double *sum = tsi_array_data(to);
    for (int64_t i = 0; i < c->count; i++) {
        const piece *p = &c->piece[i];
        double *into = sum + p->row * c->columns + p->column;
        tsi_block block = tsi_array_block(p->array);
        item[i].count = tsi_block_count(&block);
        item[i].part[TSI_SQUARES_OF] = (tsi_list_part){ block.data, (ts_dtype)block.dtype, 0 };
        item[i].part[TSI_SQUARES_SUM] = (tsi_list_part){ into, TS_DTYPE_F64, 0 };
    }
    tsi_list_io io = { .item = item, .count = c->count, .rank = c->rank };
    ts_status status = tsi_list_run(&tsi_list_squares, io);
    tsi_free(item);
    return status;
}

/* This rank's, to the host. */
static ts_status own_squares(clip *c)
{
    double zero = 0.0;
    int64_t numbers = c->ways * c->columns;
    ts_shape shape = TS_SHAPE(numbers);
    c->sum = tsi_calloc((size_t)numbers, sizeof *c->sum);
    if (!c->sum) return tsi_fail_memory("a total norm", (size_t)numbers * sizeof *c->sum);
    tsi_array *sum = tsi_array_create(c->rank, TS_DTYPE_F64, &shape);
    if (!sum) return ts_rank_status(c->rank);
    ts_status status = tsi_array_fill(sum, &zero);
    if (status == TS_OK && c->count > 0) status = run_squares(c, sum);
    tsi_block to = {
        .data = c->sum, .dtype = TS_DTYPE_F64, .ndim = 1, .extent = { numbers }, .stride = { 1 }
    };
    if (status == TS_OK) status = tsi_array_read(c->rank, sum, &to);
    tsi_array_release(sum);
    return status;
}

static bool same_ranks(const ts_mesh *a, const ts_mesh *b)
{
    int64_t coord[TS_NDIM_MAX], other[TS_NDIM_MAX];
    bool same = a->desc->count == b->desc->count;
    for (int64_t i = 0; a->desc != b->desc && same && i < a->desc->count; i++) {
        tsi_mesh_desc_unravel(b->desc, i, coord);
        same = tsi_mesh_desc_coord(a->desc, tsi_mesh_desc_rank(b->desc, coord), other);
    }
    return same;
}

/* One reduction for all rows of meshes over the ranks of row `first`; they are marked as done. */
static ts_status reduce_from(const clip *c, int64_t first, double *packed, bool *done)
{
    ts_group *group = ts_mesh_group(c->mesh[first], NULL);
    size_t row_bytes = (size_t)c->columns * sizeof *packed;
    int64_t rows[WAYS], count = 0;
    if (!group) return ts_rank_status(c->rank);
    TSI_TRY(tsi_comm_now(c->rank, "clip"));
    for (int64_t i = first; i < c->ways; i++) {
        if (done[i] || !same_ranks(c->mesh[first], c->mesh[i])) continue;
        memcpy(packed + count * c->columns, c->sum + i * c->columns, row_bytes);
        rows[count++] = i;
        done[i] = true;
    }
    ts_array array = TS_INIT(ts_array);
    array.data = packed;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count * c->columns), .dtype = TS_DTYPE_F64 };
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = "clip";
    TSI_TRY((ts_group_all_reduce)(group, &array, &array, TS_REDUCE_SUM, &options));
    for (int64_t i = 0; i < count; i++)
        memcpy(c->sum + rows[i] * c->columns, packed + i * c->columns, row_bytes);
    return TS_OK;
}

static ts_status reduce(const clip *c)
{
    bool done[WAYS] = { false };
    size_t bytes = (size_t)(c->ways * c->columns) * sizeof(double);
    double *packed = tsi_alloc(bytes);
    if (!packed) return tsi_fail_memory("a total norm", bytes);
    ts_status status = TS_OK;
    for (int64_t i = 0; status == TS_OK && i < c->ways; i++)
        if (!done[i]) status = reduce_from(c, i, packed, done);
    tsi_free(packed);
    return status;
}

/* ---- what they say --------------------------------------------------------------------------- */

static bool is_below(const ts_module *m, const ts_module *above)
{
    while (m && m != above)
        m = m->parent;
    return m != NULL;
}

static double squares_of(const clip *c, const ts_module *above)
{
    double squares = 0.0;
    for (int64_t row = 0; row < c->ways; row++)
        for (int64_t i = 0; i < c->columns; i++) {
            bool named = i < c->options.module_count;
            bool counts = !above || (named && is_below(c->options.module[i], above));
            if (counts) squares += c->sum[row * c->columns + i];
        }
    return squares;
}

/* The first of the list that is not finite says it. */
static ts_status refuse(const clip *c, double total)
{
    for (int32_t i = 0; i < c->options.module_count; i++) {
        char name[TSI_PARAM_NAME_MAX];
        double norm = sqrt(squares_of(c, c->options.module[i]));
        if (isfinite(norm)) continue;
        (void)ts_module_name(c->options.module[i], name, sizeof name);
        return TSI_FAIL(TS_ERR_STATE, "clip: the norm of the gradients of %s is %g, of all %g",
                        name[0] ? name : "the top of the tree", norm, total);
    }
    return TSI_FAIL(TS_ERR_STATE, "clip: the total norm of gradients is %g", total);
}

static ts_status forget(const char *name, ts_tensor *param, void *context)
{
    (void)name, (void)context;
    return ts_tensor_grad(param) ? ts_tensor_grad_clear(param) : TS_OK;
}

static ts_status scale(const char *name, ts_tensor *param, void *context)
{
    (void)name;
    ts_tensor *grad = ts_tensor_grad(param);
    if (!grad) return TS_OK;
    double factor = *(const double *)context;
    if (tsi_array_is_alone(grad->array)) { /* nobody else sees the block */
        ts_tensor *same = NULL;
        ts_number by = tsi_number_real(factor);
        return tsi_op_run(&(tsi_op_args){ &tsi_op_mul_scalar, &grad, 1, 1, &by }, &same);
    }
    ts_scope scope = ts_scope_open(param->rank, NULL);
    ts_status status = ts_tensor_write(grad, ts_mul_scalar(grad, factor));
    ts_scope_close(scope);
    return status;
}

static ts_status apply(const clip *c, ts_module *root, double total)
{
    double factor = c->options.norm_max / (total + 1e-6);
    if (!isfinite(total) && c->options.nonfinite == TS_NONFINITE_ERROR) return refuse(c, total);
    if (!isfinite(total) && c->options.nonfinite == TS_NONFINITE_SKIP)
        return ts_module_each(root, forget, NULL);
    bool clips = c->options.norm_max > 0.0 && factor < 1.0;
    return clips ? ts_module_each(root, scale, &factor) : TS_OK;
}

/* ---- public ---------------------------------------------------------------------------------- */

static ts_status check(const clip *c)
{
    const ts_clip_options *o = &c->options;
    if (o->module_count < 0 || (o->module_count > 0 && (!o->module || !o->module_norm)))
        return TSI_FAIL(TS_ERR_ARG, "clip: norms of %d modules, and a list is NULL",
                        o->module_count);
    if (o->nonfinite < TS_NONFINITE_IGNORE || o->nonfinite > TS_NONFINITE_ERROR)
        return TSI_FAIL(TS_ERR_ARG, "clip: there is no way %d for norms that are not finite",
                        o->nonfinite);
    for (int32_t i = 0; i < o->module_count; i++)
        if (!is_below(o->module[i], c->root))
            return TSI_FAIL(TS_ERR_ARG, "clip: module %d of the list is not below the one clipped",
                            i);
    return TS_OK;
}

static ts_status measure(clip *c, ts_module *root, double *total)
{
    TSI_TRY(tsi_module_visit(root, take_grad, c));
    if (c->ways > 0) TSI_TRY(own_squares(c));
    if (c->ways > 0) TSI_TRY(reduce(c));
    *total = sqrt(squares_of(c, NULL));
    for (int32_t i = 0; i < c->options.module_count; i++)
        c->options.module_norm[i] = sqrt(squares_of(c, c->options.module[i]));
    return TS_OK;
}

ts_status ts_clip_grads(ts_module *root, const ts_clip_options *options, double *norm)
{
    if (norm) *norm = NAN;
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    clip c = { .rank = root->rank, .root = root };
    if (options)
        memcpy(&c.options, options,
               options->struct_size < sizeof c.options ? options->struct_size : sizeof c.options);
    TSI_TRY(check(&c));
    c.columns = c.options.module_count + 1;
    double total = NAN;
    ts_status status = measure(&c, root, &total);
    if (status == TS_OK && norm) *norm = total;
    if (status == TS_OK) status = apply(&c, root, total);
    tsi_free(c.sum);
    tsi_free(c.piece);
    return status;
}

ts_status ts_clip_grad_norm(ts_module *root, double norm_max, double *norm)
{
    return ts_clip_grads(root, TS_OPTIONS(ts_clip_options, .norm_max = norm_max), norm);
}
