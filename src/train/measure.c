/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - numbers about a run: what a step costs, what it takes, where its time goes.
 *
 * FLOPs of a token are 6 for each parameter that multiplies it, forward and backward, and
 * 6 * layers * heads * 2 * head_dim * context for attention (not halved for causality). Events are
 * read from the rank's ring after every step, before they are overwritten. */
#include <string.h>

#include "array/pool.h"
#include "base/rank.h"
#include "base/ring.h"
#include "tensor/tensor.h"
#include "train/run.h"

typedef struct sizes {
    int64_t local_bytes, local_count; /* of this rank */
    int64_t embedding;                /* elements that are looked up, not multiplied */
    int64_t expert;                   /* elements of experts */
} sizes;

static ts_status add_size(const char *name, ts_tensor *t, void *context)
{
    sizes *s = context;
    ts_shape shape = ts_tensor_shape(t);
    tsi_block block = tsi_array_block(t->array);
    int64_t count = tsi_block_count(&block);
    s->local_count += count;
    s->local_bytes += count * (int64_t)ts_dtype_size(ts_tensor_dtype(t));
    if (strstr(name, "embed_tokens") || strstr(name, "wte.") || strstr(name, "wpe."))
        s->embedding += ts_shape_count(&shape);
    if (strstr(name, "experts")) s->expert += ts_shape_count(&shape);
    return TS_OK;
}

/* What backward needs of one rank, roughly: inputs of every product, norm, rotation and gate. */
static int64_t activations(const tsi_run *run, const ts_model_config *c)
{
    int64_t dp = ts_mesh_size(run->mesh, "dp"), tp = ts_mesh_size(run->mesh, "tp");
    if (dp < 1) dp = 1;
    if (tp < 1) tp = 1;
    int64_t rows = run->config->train.batch / run->config->train.accumulate;
    int64_t tokens = (rows + dp - 1) / dp * run->config->data.context;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    int64_t layer = 6 * c->hidden + (3 * q + 4 * kv + 4 * c->intermediate) / tp;
    int64_t head = 2 * c->hidden + 3 * c->vocab / tp;
    return tokens * (c->layers * layer + head) * (int64_t)sizeof(float);
}

void tsi_measure_plan(tsi_run *run)
{
    sizes s = { 0 };
    const ts_model_config *c = ts_model_configuration(run->model);
    if (ts_module_each(ts_model_module(run->model), add_size, &s) != TS_OK) return;
    ts_train_plan *p = &run->plan;
    p->parameters = ts_module_count(ts_model_module(run->model));
    int64_t active = p->parameters - (c->tied ? 0 : s.embedding);
    if (c->experts > 0) active -= s.expert - s.expert / c->experts * c->experts_per_token;
    p->flops_per_token = 6.0 * (double)active + 6.0 * (double)c->layers * (double)c->heads * 2.0 *
                                                    (double)c->head_dim * (double)p->context;
    bool adamw = strcmp(run->config->optimizer.kind, "adamw") == 0;
    int64_t moments = adamw ? 2 : run->config->optimizer.momentum != 0 ? 1 : 0;
    int64_t moment_bytes = strcmp(run->config->model.dtype, "f64") == 0 ? 8 : 4;
    p->weight_bytes = p->gradient_bytes = s.local_bytes;
    p->optimizer_bytes = moments * s.local_count * moment_bytes;
    p->activation_bytes = activations(run, c);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void add_op(tsi_measures *m, const tsi_event *event)
{
    int64_t i = 0;
    while (i < m->op_count && m->op[i].name != event->kind_name &&
           strcmp(m->op[i].name, event->kind_name) != 0)
        i++;
    if (i == TSI_KINDS_MAX) return;
    if (i == m->op_count) m->op[m->op_count++] = (tsi_op_time){ .name = event->kind_name };
    m->op[i].calls++;
    m->op[i].seconds += (double)(event->end_ns - event->begin_ns) * 1e-9;
}

static void add_counts(ts_counts *sum, const ts_counts *more)
{
    sum->lost += more->lost;
    for (int64_t j = 0; j < more->row_count; j++) {
        int64_t i = 0;
        while (i < sum->row_count && strcmp(sum->row[i].kind, more->row[j].kind) != 0)
            i++;
        if (i == TS_COUNTS_MAX) continue;
        if (i == sum->row_count)
            sum->row[sum->row_count++] = (ts_count){ .kind = more->row[j].kind };
        sum->row[i].count += more->row[j].count;
        sum->row[i].bytes += more->row[j].bytes;
        sum->row[i].time_ns += more->row[j].time_ns;
    }
}

void tsi_measure_step(tsi_run *run)
{
    tsi_measures *m = &run->measures;
    const tsi_ring *ring = run->me->ring;
    ts_counts counts = { .struct_size = sizeof counts };
    uint64_t last = tsi_ring_last(ring);
    if (ts_rank_counts(run->me, m->event, &counts) == TS_OK) add_counts(&m->counts, &counts);
    uint64_t capacity = (uint64_t)tsi_ring_capacity(ring), number = m->event + 1;
    if (last > capacity && number < last - capacity) number = last - capacity;
    for (tsi_event event; number <= last; number++)
        if (tsi_ring_read(ring, number, &event) && event.kind == TSI_EVENT_OP && event.end_ns > 0)
            add_op(m, &event);
    m->event = last;
    tsi_pool *pool = tsi_pool_of(run->me);
    if (pool) m->memory_peak = tsi_pool_used(pool, -1).peak;
}
