/* SPDX-License-Identifier: Apache-2.0 */
/* norms.c - norms of gradients by block of the model, where log.norms asks for them.
 *
 *   {"step": 3, "norm": 1.02, "modules": {"model.embed_tokens": 0.31, "model.layers.0": 0.44, ..}}
 *
 * Local blocks are squared by one kernel; of ranks that hold the same elements the first counts;
 * one reduction over all ranks adds up. So each element is in it once, whatever cuts the parameters
 * and whichever stage has them, and the squares of all modules add up to the total norm's. */
#include <math.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "nn/module.h"
#include "op/nn/update.h"
#include "train/run.h"

/* ---- local squares --------------------------------------------------------------------------- */

/* Kernels of lists want dense blocks. NULL: recorded. */
static tsi_array *dense_of(ts_rank *me, tsi_array *array)
{
    if (tsi_array_is_dense(array)) return tsi_array_retain(array);
    ts_shape shape = tsi_array_shape(array);
    tsi_array *dense = tsi_array_create(me, (ts_dtype)array->dtype, &shape);
    if (dense && tsi_array_copy(dense, array) == TS_OK) return dense;
    tsi_array_release(dense);
    return NULL;
}

static ts_status square(ts_rank *me, tsi_array *const *array, int64_t count, const tsi_array *sum)
{
    size_t items = (size_t)count;
    tsi_list_item *item = tsi_calloc(items + 1, sizeof *item);
    tsi_array **dense = tsi_calloc(items + 1, sizeof *dense);
    bool room = item && dense;
    ts_status status = room ? TS_OK : tsi_fail_memory("norms", items * sizeof *item);
    double *to = tsi_array_data(sum);
    for (int64_t i = 0; status == TS_OK && i < count; i++) {
        dense[i] = dense_of(me, array[i]);
        if (!dense[i]) status = ts_rank_status(me);
        if (status != TS_OK) break;
        tsi_block block = tsi_array_block(dense[i]);
        item[i].count = tsi_block_count(&block);
        item[i].part[TSI_SQUARES_OF] = (tsi_list_part){ block.data, (ts_dtype)block.dtype, 0 };
        item[i].part[TSI_SQUARES_SUM] = (tsi_list_part){ to + i, TS_DTYPE_F64, 0 };
    }
    tsi_list_io io = { .item = item, .count = count, .rank = me };
    if (status == TS_OK) status = tsi_list_run(&tsi_list_squares, io);
    for (int64_t i = 0; room && i < count; i++)
        tsi_array_release(dense[i]);
    tsi_free(dense);
    tsi_free(item);
    return status;
}

ts_status tsi_local_squares(ts_rank *me, tsi_array *const *array, int64_t count, double *sum)
{
    double zero = 0.0;
    ts_shape shape = TS_SHAPE(count);
    if (count == 0) return TS_OK;
    tsi_array *sums = tsi_array_create(me, TS_DTYPE_F64, &shape);
    if (!sums) return ts_rank_status(me);
    tsi_block to = {
        .data = sum, .dtype = TS_DTYPE_F64, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    ts_status status = tsi_array_fill(sums, &zero);
    if (status == TS_OK) status = square(me, array, count, sums);
    if (status == TS_OK) status = tsi_array_read(me, sums, &to);
    tsi_array_release(sums);
    return status;
}

/* ---- by module ------------------------------------------------------------------------------- */

typedef struct gathered {
    const tsi_run *run;
    tsi_array **array; /* of gradients, retained */
    int64_t *block;    /* whose they are */
    int64_t count, array_capacity, block_capacity;
    int64_t at; /* the block at hand */
} gathered;

/* Of all ranks that hold the same elements the first. */
static bool counts_here(const ts_tensor *x)
{
    if (!x->mesh->member) return false;
    for (int32_t k = 0; k < x->mesh->desc->ndim; k++)
        if (!(x->layout->axes_cut >> k & 1) && x->mesh->coord[k] != 0) return false;
    return true;
}

static ts_status gather(const char *name, ts_tensor *param, void *context)
{
    (void)name;
    gathered *g = context;
    ts_tensor *grad;
    TSI_TRY(tsi_settled_grad(param, &grad));
    if (!grad || param == g->run->model->tied_copy || !counts_here(grad)) return TS_OK;
    TSI_TRY(tsi_room(&g->array, g->count, &g->array_capacity, sizeof *g->array, "norms"));
    TSI_TRY(tsi_room(&g->block, g->count, &g->block_capacity, sizeof *g->block, "norms"));
    g->array[g->count] = tsi_array_retain(grad->array);
    g->block[g->count++] = g->at;
    return TS_OK;
}

/* Squares of every block's gradients, of all ranks together, into sum[blocks]. */
static ts_status add_up(tsi_run *run, gathered *g, double *sum, int64_t blocks)
{
    double *each = tsi_calloc((size_t)g->count + 1, sizeof *each);
    if (!each) return tsi_fail_memory("norms", (size_t)g->count * sizeof *each);
    ts_status status = tsi_local_squares(run->me, g->array, g->count, each);
    for (int64_t i = 0; i < g->count; i++)
        sum[g->block[i]] += each[i];
    tsi_free(each);
    TSI_TRY(status);
    ts_array words = TS_INIT(ts_array);
    words.data = sum;
    words.meta = (ts_meta){ .shape = TS_SHAPE(blocks), .dtype = TS_DTYPE_F64 };
    return ts_group_all_reduce(run->all, &words, &words, TS_REDUCE_SUM, NULL);
}

static ts_status write_norms(tsi_run *run, int64_t step, const double *sum, int64_t blocks)
{
    tsi_text text = { 0 };
    double total = 0, scale = run->scale.value;
    for (int64_t i = 0; i < blocks; i++)
        total += sum[i];
    tsi_text_printf(&text, "{\"step\": %lld, \"norm\": ", (long long)step);
    tsi_text_real(&text, sqrt(total) / scale);
    tsi_text_add(&text, ", \"modules\": {");
    for (int64_t i = 0; i < blocks; i++) {
        char name[TSI_PARAM_NAME_MAX];
        ts_module_name(ts_model_block(run->model, i), name, sizeof name);
        tsi_text_printf(&text, "%s\"%s\": ", i ? ", " : "", name);
        tsi_text_real(&text, sqrt(sum[i]) / scale);
    }
    tsi_text_add(&text, "}}\n");
    return tsi_run_line(run, &run->norms, "norms.jsonl", &text);
}

ts_status tsi_run_norms(tsi_run *run, int64_t step)
{
    int64_t every = run->config->log.norms, blocks = ts_model_block_count(run->model);
    if (every == 0 || step % every != 0) return TS_OK;
    gathered g = { .run = run };
    double *sum = tsi_calloc((size_t)blocks + 1, sizeof *sum);
    ts_status status = sum ? TS_OK : tsi_fail_memory("norms", (size_t)blocks * sizeof *sum);
    const uint8_t *here = run->model->here;
    for (g.at = 0; status == TS_OK && g.at < blocks; g.at++)
        if (!here || here[g.at])
            status = ts_module_each(ts_model_block(run->model, g.at), gather, &g);
    if (status == TS_OK) status = add_up(run, &g, sum, blocks);
    if (status == TS_OK && ts_rank_index(run->me) == 0)
        status = write_norms(run, step, sum, blocks);
    for (int64_t i = 0; i < g.count; i++)
        tsi_array_release(g.array[i]);
    tsi_free(g.array);
    tsi_free(g.block);
    tsi_free(sum);
    return status;
}
