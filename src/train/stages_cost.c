/* SPDX-License-Identifier: Apache-2.0 */
/* stages_cost.c - what the blocks of a model take, measured before it is cut into stages.
 *
 * The first rank runs forward and backward of single blocks, of one block of each kind, in a model
 * of its own: embedding, a layer with and one without experts, norm with head. Blocks of a kind
 * take the same. All ranks get its numbers, so that all cut alike. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "train/stages.h"

enum { TURNS = 3 };

static ts_status no_token(const int64_t *global, void *element, void *context)
{
    (void)global, (void)context;
    *(int64_t *)element = 0;
    return TS_OK;
}

/* What goes into block i: ids, or activations that need a gradient. */
static ts_tensor *input_of(ts_model *m, int64_t i, const tsi_part *part)
{
    ts_meta ids = { .shape = TS_SHAPE(part->rows, part->context), .dtype = TS_DTYPE_I64 };
    if (i == 0) return ts_from_function(no_token, NULL, ts_model_tokens(m), ids);
    ts_shape shape = TS_SHAPE(part->rows, part->context, m->config.hidden);
    ts_tensor *weight = NULL;
    for (const ts_module *at = m->block[0]; at && !weight; at = at->first)
        weight = at->param_first ? at->param_first->value : NULL;
    ts_dtype dtype = m->compute ? (ts_dtype)m->compute
                     : weight   ? ts_tensor_dtype(weight)
                                : TS_DTYPE_F32;
    return ts_watch(ts_full(0.5, m->mesh, dtype, shape, NULL));
}

/* The best of a few forwards and backwards of block i. */
static ts_status time_block(ts_model *m, int64_t i, const tsi_part *part, double *out)
{
    int64_t best = INT64_MAX;
    TSI_TRY(ts_module_materialize(m->block[i]));
    for (int turn = 0; turn < TURNS; turn++) {
        ts_scope scope = ts_scope_open(m->rank, "cost");
        ts_tape_begin(m->rank);
        ts_tensor *x = input_of(m, i, part);
        int64_t begin = tsi_clock_ns();
        ts_tensor *y = ts_module_call(m->block[i], &x, 1);
        ts_status status = ts_backward(y ? ts_sum(y, NULL, 0, 0) : NULL, NULL);
        if (status == TS_OK) status = tsi_rank_device_sync(m->rank);
        int64_t took = tsi_clock_ns() - begin;
        if (took < best) best = took;
        ts_scope_close(scope);
        TSI_TRY(status);
        TSI_TRY(ts_module_reset(m->root));
    }
    *out = (double)best * 1e-9;
    return TS_OK;
}

/* The first block that is like block i. */
static int64_t kind_of(const ts_model *m, int64_t i)
{
    if (i == 0 || i + 1 == m->block_count) return i;
    bool experts = tsi_model_has_experts(&m->config, i - 1);
    for (int64_t k = 1; k < i; k++)
        if (tsi_model_has_experts(&m->config, k - 1) == experts) return k;
    return i;
}

static ts_status measure(const ts_model *like, const tsi_part *part, double *cost)
{
    ts_mesh *self = ts_mesh_self(like->rank);
    ts_model_options options = TS_INIT(ts_model_options);
    options.compute = like->compute;
    const tsi_param *first = NULL;
    for (const ts_module *at = like->block[0]; at && !first; at = at->first)
        first = at->param_first;
    if (first) options.dtype = first->dtype;
    ts_model *m = self ? ts_model_declare(self, &like->config, &options) : NULL;
    ts_status status = m ? ts_module_materialize(m->block[0]) : ts_rank_status(like->rank);
    for (int64_t i = 0; i < like->block_count && status == TS_OK; i++) {
        int64_t kind = kind_of(m, i);
        if (kind < i)
            cost[i] = cost[kind];
        else
            status = time_block(m, i, part, &cost[i]);
    }
    ts_model_destroy(m);
    ts_mesh_release(self);
    return status;
}

ts_status tsi_stages_costs(const ts_model *model, ts_mesh *mesh, const tsi_part *part, double *cost)
{
    ts_group *all = ts_mesh_group(mesh, NULL);
    if (!all) return ts_rank_status(model->rank);
    if (ts_group_index(all) == 0) TSI_TRY(measure(model, part, cost));
    ts_array array = TS_INIT(ts_array);
    array.data = cost;
    array.meta = (ts_meta){ .shape = TS_SHAPE(model->block_count), .dtype = TS_DTYPE_F64 };
    return ts_group_broadcast(all, &array, 0, NULL);
}
