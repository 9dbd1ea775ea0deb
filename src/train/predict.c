/* SPDX-License-Identifier: Apache-2.0 */
/* predict.c - how long a step takes: what it does, counted in a world without data, at the rates of
 * a machine, said or measured.
 *
 *   products    FLOPs of matrix products        at the rate of one as large as the model's
 *   attention   its FLOPs                       at its own rate
 *   memory      bytes that all other operators  at the rate of operators element by element
 *               and the update read and write
 *   comm        bytes and operations            at the rate of copies between ranks, or by the
 *                                               modelled machine where ranks are elsewhere
 *
 *   idle        the share of a pipeline's schedule, of the first three
 *   hidden      communication that is under way while the rank computes (beside.c), as far as it
 *               takes no longer, and but for what moving bytes takes of computing
 *
 * One after the other, without what is hidden. Rates are measured on all ranks at once, so that
 * they share cores and memory as in a step. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/rank.h"
#include "base/thread.h"
#include "device/parallel.h"
#include "op/core/dispatch.h"
#include "train/run.h"

/* ---- counting -------------------------------------------------------------------------------- */

static int64_t bytes_of(const ts_tensor *x)
{
    if (!x || !x->array || !x->mesh->member) return 0;
    tsi_block block = tsi_array_block(x->array);
    return tsi_block_count(&block) * (int64_t)ts_dtype_size((ts_dtype)x->dtype);
}

static bool is_view(const tsi_op_record *call)
{
    const ts_tensor *x = call->plan->input_count > 0 ? call->in[0] : NULL, *y = call->out[0];
    return x && y && x->array && y->array && x->array->storage == y->array->storage;
}

tsi_amounts tsi_amounts_of(const tsi_op_record *call, double flops)
{
    tsi_amounts a = { 0 };
    if (strncmp(call->plan->op->name, "attention", 9) == 0)
        a.attention_flops = flops;
    else if (flops > 0)
        a.product_flops = flops;
    else if (!is_view(call)) {
        for (int32_t i = 0; i < call->plan->input_count; i++)
            a.bytes += bytes_of(call->in[i]);
        for (int32_t i = 0; i < call->plan->output_count; i++)
            a.bytes += bytes_of(call->out[i]);
    }
    return a;
}

static void hear_call(void *context, void *what)
{
    tsi_account *a = context;
    const tsi_op_state *state = tsi_op_state_of(a->me);
    double flops = state ? state->flops - a->flops_before : 0;
    a->flops_before += flops;
    tsi_amounts done = tsi_amounts_of(what, flops);
    a->product_flops += done.product_flops;
    a->attention_flops += done.attention_flops;
    a->bytes += done.bytes;
}

ts_status tsi_account_begin(tsi_account *a, ts_rank *me)
{
    const tsi_op_state *state = tsi_op_state_of(me);
    if (!state) return ts_rank_status(me);
    *a = (tsi_account){ .me = me, .flops_before = state->flops };
    a->hears = (tsi_observer){ .context = a, .hear = { [TSI_NEWS_CALL] = hear_call } };
    return tsi_observers_add(&me->observers, &a->hears);
}

void tsi_account_end(tsi_account *a, ts_train_cost *out)
{
    tsi_observers_remove(&a->me->observers, &a->hears);
    out->product_flops = a->product_flops / (double)out->ranks;
    out->attention_flops = a->attention_flops / (double)out->ranks;
    out->touched_bytes = a->bytes;
}

/* ---- measuring ------------------------------------------------------------------------------- */

enum { TURNS = 3, MOST_ROWS = 1024, MOST_WIDE = 2048, MOST_BYTES = 16 << 20, BARRIERS = 20 };
static const double LONG_SECONDS = 0.25;

typedef struct probe {
    ts_rank *me;
    ts_mesh *self;
    ts_group *world;
    ts_train_sizes sizes;
    int64_t share; /* ranks of a core: each has so much less to do, or many would take long */
} probe;

static ts_tensor *random_of(const probe *p, ts_shape shape)
{
    ts_dtype dtype = p->sizes.dtype ? (ts_dtype)p->sizes.dtype : TS_DTYPE_F32;
    if (ts_dtype_size(dtype) >= 4) return ts_randn(p->self, dtype, shape, NULL);
    ts_tensor *wide = ts_randn(p->self, TS_DTYPE_F32, shape, NULL), *x = ts_cast(wide, dtype);
    ts_tensor_drop(wide);
    return x;
}

static ts_tensor *run_product(const probe *p, ts_tensor *const *x)
{
    (void)p;
    return ts_linear(x[0], x[1], NULL);
}

static ts_tensor *run_attention(const probe *p, ts_tensor *const *x)
{
    (void)p;
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.causal = 1;
    return ts_attention(x[0], x[1], x[2], &options);
}

static ts_tensor *run_elements(const probe *p, ts_tensor *const *x)
{
    (void)p;
    return ts_swiglu(x[0], x[1]);
}

/* Amounts a second of the slowest rank in the best of some turns; all ranks begin together. One
 * turn is enough where it takes long, as of many ranks that share few cores. */
static ts_status rate_of(const probe *p, ts_tensor *(*run)(const probe *, ts_tensor *const *),
                         ts_tensor *const *x, double amount, double *out)
{
    *out = 0;
    for (int i = 0; i < TURNS; i++) {
        TSI_TRY(ts_group_barrier(p->world, NULL));
        int64_t begin = tsi_clock_ns();
        ts_tensor *y = run(p, x);
        TSI_TRY(y ? ts_tensor_wait(y) : ts_rank_status(p->me));
        double seconds = (double)(tsi_clock_ns() - begin) * 1e-9;
        ts_array word = TS_INIT(ts_array);
        word.data = &seconds;
        word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F64 };
        TSI_TRY(ts_group_all_reduce(p->world, &word, &word, TS_REDUCE_MAX, NULL));
        ts_tensor_drop(y);
        if (seconds > 0) *out = fmax(*out, amount / seconds);
        if (seconds > LONG_SECONDS) break; /* the same number on every rank */
    }
    return TS_OK;
}

static int64_t at_most(int64_t x, int64_t most)
{
    int64_t bounded = x < most ? x : most;
    return bounded > 1 ? bounded : 1;
}

static ts_status measure_products(const probe *p, ts_train_rates *out)
{
    int64_t m = at_most(p->sizes.rows, MOST_ROWS / p->share);
    int64_t k = at_most(p->sizes.hidden, MOST_WIDE);
    int64_t n = at_most(p->sizes.inner, MOST_WIDE);
    ts_tensor *x[] = { random_of(p, TS_SHAPE(m, k)), random_of(p, TS_SHAPE(n, k)) };
    return rate_of(p, run_product, x, 2.0 * (double)m * (double)k * (double)n, &out->product_flops);
}

static ts_status measure_attention(const probe *p, ts_train_rates *out)
{
    int64_t t = at_most(p->sizes.context, MOST_ROWS), h = at_most(p->sizes.heads, 16 / p->share);
    int64_t d = at_most(p->sizes.head_dim, 256);
    ts_tensor *x[3];
    for (int i = 0; i < 3; i++)
        x[i] = random_of(p, TS_SHAPE(1, h, t, d));
    double flops = 4.0 * (double)h * (double)t * (double)t * (double)d;
    return rate_of(p, run_attention, x, flops, &out->attention_flops);
}

static ts_status measure_memory(const probe *p, ts_train_rates *out)
{
    int64_t n = at_most(p->sizes.rows * p->sizes.inner, MOST_BYTES / 4 / p->share);
    ts_tensor *x[] = { random_of(p, TS_SHAPE(n)), random_of(p, TS_SHAPE(n)) };
    if (!x[0]) return ts_rank_status(p->me);
    double bytes = 3.0 * (double)n * (double)ts_dtype_size(ts_tensor_dtype(x[0]));
    return rate_of(p, run_elements, x, bytes, &out->bytes);
}

/* Of communication: an operation that moves nothing. */
static ts_status measure_latency(const probe *p, ts_train_rates *out)
{
    TSI_TRY(ts_group_barrier(p->world, NULL));
    int64_t begin = tsi_clock_ns();
    for (int i = 0; i < BARRIERS; i++)
        TSI_TRY(ts_group_barrier(p->world, NULL));
    out->comm_latency = (double)(tsi_clock_ns() - begin) * 1e-9 / BARRIERS;
    return TS_OK;
}

/* Each in a scope: a plan of thousands of ranks has little memory beside it. */
static ts_status measure_all(const probe *p, ts_train_rates *out)
{
    static ts_status (*const measure[])(
        const probe *, ts_train_rates *) = { measure_products, measure_attention, measure_memory };
    for (size_t i = 0; i < TSI_COUNT_OF(measure); i++) {
        ts_scope scope = ts_scope_open(p->me, "measure");
        ts_status status = measure[i](p, out);
        ts_scope_close(scope);
        TSI_TRY(status);
    }
    out->comm_bytes = out->bytes; /* ranks of one machine copy */
    return measure_latency(p, out);
}

/* Threads that compute for the ranks of this process; 0: a device does, which has its own. */
static int64_t busy_threads(ts_rank *me)
{
    const tsi_rank_device *mine = tsi_rank_device_of(me);
    if (!mine || !mine->device->host_readable) return 0;
    return me->world->local_count * tsi_max_i64(tsi_parallel_threads(me), 0);
}

/* As ts_train_rates has it; a device has copies of its own. */
static double moving_of(ts_rank *me)
{
    int64_t threads = busy_threads(me);
    bool all = threads > 0 && threads >= tsi_core_count();
    return all ? 1.0 / (double)tsi_parallel_threads(me) : 0;
}

ts_status ts_train_measure(ts_rank *me, const ts_train_cost *cost, ts_train_rates *out)
{
    if (!me || !cost || !out) return TSI_FAIL(TS_ERR_NULL, "measure: an argument is NULL");
    *out = (ts_train_rates){ .struct_size = sizeof *out };
    TSI_TRY(tsi_rank_enter(me));
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    int64_t share = tsi_ceil_div(busy_threads(me), tsi_core_count());
    probe p = { me, ts_mesh_self(me), ts_group_world(me), cost->sizes, tsi_max_i64(share, 1) };
    ts_status status = p.self && p.world ? measure_all(&p, out) : ts_rank_status(me);
    out->moving = moving_of(me);
    ts_scope_close(scope);
    ts_mesh_release(p.self);
    return status;
}

/* ---- predicting ------------------------------------------------------------------------------ */

static double at_rate(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* Weights, moments and gradients once each, what is written once more; the norm reads gradients. */
static double update_bytes(const ts_train_cost *c)
{
    return 2.0 * (double)c->weight_bytes + 2.0 * (double)c->optimizer_bytes +
           2.0 * (double)c->gradient_bytes;
}

/* Of each row no more than is computed meanwhile; of all, no more than is computed at all. */
static double hidden_of(const ts_train_cost *cost, const ts_train_rates *rates, double computing)
{
    double hidden = 0;
    for (int32_t i = 0; i < cost->traffic_count; i++) {
        const ts_train_beside *b = &cost->beside[i];
        double moves = rates->comm_bytes > 0 ? at_rate((double)b->bytes, rates->comm_bytes) +
                                                   (double)b->count * rates->comm_latency
                                             : b->seconds;
        double computes = at_rate(b->product_flops, rates->product_flops) +
                          at_rate(b->attention_flops, rates->attention_flops) +
                          at_rate((double)b->touched_bytes, rates->bytes);
        hidden += fmin(moves, computes);
    }
    return fmin(hidden, computing) * (1 - rates->moving);
}

void ts_train_predict(const ts_train_cost *cost, const ts_train_rates *rates, ts_train_times *out)
{
    double busy = cost->bubble < 1 ? 1 - cost->bubble : 1;
    double operations = 0, bytes = 0;
    for (int32_t i = 0; i < cost->traffic_count; i++) {
        operations += (double)cost->traffic[i].count;
        bytes += (double)cost->traffic[i].bytes;
    }
    *out = (ts_train_times){ .struct_size = sizeof *out };
    out->products = at_rate(cost->product_flops, rates->product_flops);
    out->attention = at_rate(cost->attention_flops, rates->attention_flops);
    out->memory = at_rate((double)cost->touched_bytes, rates->bytes);
    out->idle = (out->products + out->attention + out->memory) * (1 / busy - 1);
    out->update = at_rate(update_bytes(cost), rates->bytes);
    out->comm = rates->comm_bytes > 0
                    ? at_rate(bytes, rates->comm_bytes) + operations * rates->comm_latency
                    : cost->comm_seconds;
    out->hidden = hidden_of(cost, rates, out->products + out->attention + out->memory);
    out->step = out->products + out->attention + out->memory + out->idle + out->update + out->comm -
                out->hidden;
}
