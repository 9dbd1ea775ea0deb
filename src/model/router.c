/* SPDX-License-Identifier: Apache-2.0 */
/* router.c - losses, room, counts and selection bias of routers; see router.h.
 *
 *   share_E  of choices          mean_E  of scores (each token's add up to 1)
 *   auxiliary  a E sum share mean   of the batch, or of each sequence
 *   z          a mean (log sum exp logits)^2
 *
 * A loss comes along with the weights (ts_with_loss), so that it needs no way through blocks and
 * stages. Shares have no gradient. */
#include "model/router.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/keep.h"

enum { AUX, SEQUENCE, Z, DROPPED, NUMBERS };

bool tsi_router_works(const ts_model *m)
{
    const ts_model_options *o = &m->router_options;
    return o->aux_loss != 0 || o->sequence_loss != 0 || o->z_loss != 0 || o->bias_rate != 0 ||
           o->capacity > 0 || o->count_loads;
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* 1 where an expert was chosen: [B, T, E]. */
static ts_tensor *chosen(const tsi_routed *r)
{
    return ts_scatter_value(ts_zeros_like(ts_detach(r->scores_BTE)), 2, r->which_BTK, 1.0);
}

/* Of each of `rows` rows, E sum over experts of share * mean score; over the dims of the mask
 * "batch and time", or "time". */
static ts_tensor *balance_loss(const tsi_routed *r, ts_tensor *chosen_BTE, bool each_sequence)
{
    ts_shape s = ts_tensor_shape(r->scores_BTE), which = ts_tensor_shape(r->which_BTK);
    const int64_t both[] = { 0, 1 }, time[] = { 1 };
    const int64_t *dims = each_sequence ? time : both;
    int32_t count = each_sequence ? 1 : 2;
    double tokens = (double)s.extent[1] * (each_sequence ? 1.0 : (double)s.extent[0]);
    double sequences = each_sequence ? (double)s.extent[0] : 1.0;
    if (tokens * sequences == 0) return NULL;
    ts_tensor *share = ts_sum(chosen_BTE, dims, count, 0);
    ts_tensor *mean = ts_sum(r->scores_BTE, dims, count, 0);
    double factor = (double)s.extent[2] / (tokens * (double)which.extent[2] * tokens * sequences);
    return ts_mul_scalar(ts_sum(ts_mul(share, mean), NULL, 0, 0), factor);
}

static ts_tensor *z_loss(const tsi_routed *r)
{
    int64_t last = -1;
    ts_shape s = ts_tensor_shape(r->logits_BTE);
    double tokens = (double)(s.extent[0] * s.extent[1]);
    if (tokens == 0) return NULL;
    ts_tensor *squares = ts_square(ts_logsumexp(r->logits_BTE, &last, 1, 0));
    return ts_mul_scalar(ts_sum(squares, NULL, 0, 0), 1.0 / tokens);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* 1 where a choice has room with its expert: of a sequence, the first come. [B, T, K] */
static ts_tensor *has_room(const tsi_router *router, const tsi_routed *r, ts_tensor *chosen_BTE)
{
    ts_shape s = ts_tensor_shape(r->scores_BTE), which = ts_tensor_shape(r->which_BTK);
    double even = (double)(s.extent[1] * which.extent[2]) / (double)s.extent[2];
    double room = ceil(router->model->router_options.capacity * even);
    ts_tensor *before_BTE = ts_cumsum(chosen_BTE, 1); /* an expert is chosen once by a token */
    ts_tensor *place_BTK = ts_gather(before_BTE, 2, r->which_BTK);
    return ts_cast(ts_le_scalar(place_BTK, room), ts_tensor_dtype(r->weight_BTK));
}

/* ---- counting -------------------------------------------------------------------------------- */

static void add_to(ts_tensor **variable, ts_rank *rank, ts_tensor *value)
{
    if (!value) return;
    if (!*variable) *variable = ts_variable(rank);
    if (!*variable) return;
    (*variable)->is_variable = TSI_VARIABLE_OWNED;
    ts_tensor *sum = ts_tensor_layout(*variable) ? ts_add(*variable, value) : value;
    if (sum) (void)ts_tensor_write(*variable, sum);
}

static void clear(tsi_router_counts *counts)
{
    ts_tensor_release(counts->load);
    ts_tensor_release(counts->numbers);
    *counts = (tsi_router_counts){ 0 };
}

/* A step that is recorded counts from nothing, and what it counted is added behind each run. */
typedef struct border {
    tsi_router *router;
    tsi_router_counts had;     /* before the recording; nothing once it is settled */
    ts_tensor *load, *numbers; /* what the step counts, retained */
    int64_t tokens;
    bool settled;
} border;

static void border_destroy(void *context)
{
    border *b = context;
    if (!b->settled) {
        clear(&b->router->counted);
        b->router->counted = b->had;
    }
    tsi_tensor_release(b->load);
    tsi_tensor_release(b->numbers);
    tsi_free(b);
}

static ts_status border_leave(void *context)
{
    const border *b = context;
    tsi_router_counts *counted = &b->router->counted;
    ts_rank *rank = b->router->model->rank;
    ts_scope scope = ts_scope_open_with(rank, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    if (b->load) add_to(&counted->load, rank, ts_clone(b->load)); /* the next run writes there */
    if (b->numbers) add_to(&counted->numbers, rank, ts_clone(b->numbers));
    counted->tokens += b->tokens;
    ts_scope_close(scope);
    return ts_rank_status(rank);
}

static ts_status border_settle(void *context)
{
    border *b = context;
    tsi_router_counts *counted = &b->router->counted;
    TSI_TRY(tsi_variable_value(counted->load, &b->load));
    TSI_TRY(tsi_variable_value(counted->numbers, &b->numbers));
    b->tokens = counted->tokens;
    clear(counted);
    *counted = b->had;
    b->settled = true;
    return border_leave(b);
}

static ts_status note_border(tsi_router *router)
{
    ts_rank *rank = router->model->rank;
    if (!tsi_keep_notes(rank, &router->kept_in)) return TS_OK;
    border *b = tsi_calloc(1, sizeof *b);
    if (!b) return tsi_fail_memory("counts of a step", sizeof *b);
    b->router = router;
    b->had = router->counted;
    router->counted = (tsi_router_counts){ 0 };
    const tsi_kept_border kept = {
        .settle = border_settle, .leave = border_leave, .destroy = border_destroy, .context = b
    };
    return tsi_keep_border(rank, kept);
}

static ts_tensor *number(const tsi_router *router, ts_tensor *x, double times)
{
    if (!x) return ts_zeros(router->model->mesh, TS_DTYPE_F64, TS_SHAPE_SCALAR, NULL);
    return ts_mul_scalar(ts_cast(ts_detach(x), TS_DTYPE_F64), times);
}

static void count(tsi_router *router, ts_tensor *chosen_BTE, ts_tensor *const loss[NUMBERS])
{
    const int64_t both[] = { 0, 1 };
    ts_rank *rank = router->model->rank;
    ts_shape s = ts_tensor_shape(chosen_BTE);
    ts_tensor *all[NUMBERS];
    if (note_border(router) != TS_OK) return;
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = 1;
    ts_scope scope = ts_scope_open_with(rank, &options);
    int64_t tokens = s.extent[0] * s.extent[1];
    for (int i = 0; i < NUMBERS; i++)
        all[i] = number(router, loss[i], i == DROPPED ? 1.0 : (double)tokens);
    add_to(&router->counted.load, rank, ts_sum(ts_cast(chosen_BTE, TS_DTYPE_F64), both, 2, 0));
    add_to(&router->counted.numbers, rank, ts_stack(all, NUMBERS, 0));
    router->counted.tokens += tokens;
    ts_scope_close(scope);
}

ts_tensor *tsi_router_weights(tsi_router *router, const tsi_routed *r, bool again)
{
    const ts_model *m = router->model;
    const ts_model_options *o = &m->router_options;
    const double by[] = { o->aux_loss, o->sequence_loss, o->z_loss };
    ts_tensor *weight = r->weight_BTK, *chosen_BTE = chosen(r), *loss[NUMBERS] = { NULL };
    if (o->capacity > 0) {
        ts_tensor *room = has_room(router, r, chosen_BTE);
        weight = ts_mul(weight, room);
        loss[DROPPED] = ts_sum(ts_add_scalar(ts_neg(room), 1.0), NULL, 0, 0);
    }
    if (by[AUX] != 0) loss[AUX] = balance_loss(r, chosen_BTE, false);
    if (by[SEQUENCE] != 0) loss[SEQUENCE] = balance_loss(r, chosen_BTE, true);
    if (by[Z] != 0) loss[Z] = z_loss(r);
    for (int i = AUX; i <= Z; i++) {
        if (!loss[i]) continue;
        loss[i] = ts_mul_scalar(loss[i], by[i]);
        weight = ts_with_loss(weight, loss[i], m->router_factor);
        if (tsi_model_at_border(router->model) != TS_OK) return NULL;
    }
    if (!again) count(router, chosen_BTE, loss);
    return weight;
}

/* ---- a model's routers ----------------------------------------------------------------------- */

tsi_router *tsi_router_add(ts_model *m, int64_t layer, ts_tensor *bias)
{
    if (!m->router) m->router = tsi_calloc((size_t)m->config.layers, sizeof(tsi_router *));
    tsi_router *r = m->router ? tsi_calloc(1, sizeof *r) : NULL;
    if (!r) {
        tsi_fail_memory("the routers of a model", sizeof *r);
        return NULL;
    }
    *r = (tsi_router){ .model = m, .layer = layer, .bias = bias };
    TSI_ASSERT(m->router_count < m->config.layers);
    m->router[m->router_count++] = r;
    return r;
}

void tsi_model_routers_clear(ts_model *m)
{
    for (int64_t i = 0; i < m->router_count; i++)
        clear(&m->router[i]->counted);
}

ts_status tsi_router_reset(ts_module *m, void *context)
{
    tsi_router *router = context;
    (void)m;
    clear(&router->counted);
    return TS_OK;
}

void tsi_model_routers_release(ts_model *m)
{
    for (int64_t i = 0; i < m->router_count; i++) {
        clear(&m->router[i]->counted);
        tsi_free(m->router[i]->copy);
        tsi_free(m->router[i]);
    }
    tsi_free(m->router);
}

int64_t ts_model_router_count(const ts_model *model)
{
    return model ? model->router_count : 0;
}

static ts_status enter(ts_model *m, const char *what)
{
    if (!m) return TSI_FAIL(TS_ERR_NULL, "%s: the model is NULL", what);
    return tsi_rank_enter(m->rank);
}

static ts_status read_numbers(ts_tensor *t, double *to, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = to;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_F64 };
    ts_tensor *all = ts_tensor_full(t);
    ts_status status = all ? ts_tensor_read(all, &array) : TS_ERR_MEMORY;
    if (all != t) ts_tensor_drop(all);
    return status;
}

static void fill_load(const double *load, int64_t experts, ts_router_report *out)
{
    double sum = 0, most = 0;
    for (int64_t e = 0; e < experts; e++) {
        sum += load[e];
        most = fmax(most, load[e]);
    }
    for (int64_t e = 0; e < experts; e++)
        if (load[e] > 0) out->entropy -= load[e] / sum * log(load[e] / sum);
    if (sum > 0) out->load_ratio = most * (double)experts / sum;
}

ts_status ts_model_router_read(ts_model *m, int64_t index, ts_router_report *out, double *load)
{
    TSI_TRY(enter(m, "model_router_read"));
    if (!out || index < 0 || index >= m->router_count)
        return TSI_FAIL(TS_ERR_ARG, "model_router_read: router %lld of %lld", (long long)index,
                        (long long)m->router_count);
    tsi_router *r = m->router[index];
    int64_t experts = m->config.experts;
    double numbers[NUMBERS] = { 0 }, *own = tsi_calloc((size_t)experts + 1, sizeof *own);
    if (!own) return tsi_fail_memory("the loads of experts", (size_t)experts * sizeof *own);
    *out = (ts_router_report){ .struct_size = sizeof *out,
                               .layer = r->layer,
                               .tokens = r->counted.tokens };
    ts_status status = TS_OK;
    if (r->counted.load) status = read_numbers(r->counted.load, own, experts);
    if (status == TS_OK && r->counted.numbers)
        status = read_numbers(r->counted.numbers, numbers, NUMBERS);
    fill_load(own, experts, out);
    double tokens = r->counted.tokens > 0 ? (double)r->counted.tokens : 1.0;
    out->dropped = (int64_t)(numbers[DROPPED] + 0.5);
    out->aux_loss = numbers[AUX] / tokens;
    out->sequence_loss = numbers[SEQUENCE] / tokens;
    out->z_loss = numbers[Z] / tokens;
    if (load) memcpy(load, own, (size_t)experts * sizeof *load);
    tsi_free(own);
    return status;
}

/* b += rate (d - mean d) times, d = sign(mean load - load); where it lies: a step that runs again
 * reads it there. */
static ts_status move_bias(tsi_router *r, double rate, ts_tensor *times)
{
    const ts_model *m = r->model;
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = 1;
    options.implicit_moves = TS_MOVES_ALLOW;
    ts_scope scope = ts_scope_open_with(m->rank, &options);
    ts_tensor *load = ts_tensor_full(r->counted.load);
    ts_tensor *d = ts_sign(ts_sub(ts_mean(load, NULL, 0, 0), load));
    d = ts_mul_scalar(ts_sub(d, ts_mean(d, NULL, 0, 0)), rate);
    if (times) d = ts_mul(d, times);
    d = ts_redistribute_to(ts_cast(d, ts_tensor_dtype(r->bias)),
                           ts_layout_sharding(ts_tensor_layout(r->bias)));
    ts_status status = d ? ts_foreach_add((ts_list){ &r->bias, 1 }, (ts_list){ &d, 1 }, 1.0, NULL)
                         : ts_rank_status(m->rank);
    ts_scope_close(scope);
    return status;
}

static ts_status move(tsi_router *r, ts_tensor *times)
{
    double rate = r->model->router_options.bias_rate;
    return rate != 0 && r->bias && r->counted.load ? move_bias(r, rate, times) : TS_OK;
}

ts_status tsi_model_router_step(ts_model *m, ts_tensor *times)
{
    for (int64_t i = 0; i < m->router_count; i++) {
        TSI_TRY(move(m->router[i], times));
        clear(&m->router[i]->counted); /* a step that failed here moves none twice */
    }
    return TS_OK;
}

ts_status ts_model_router_step(ts_model *m)
{
    TSI_TRY(enter(m, "model_router_step"));
    return tsi_model_router_step(m, NULL);
}

ts_status ts_model_router_factor(ts_model *m, double factor)
{
    TSI_TRY(enter(m, "model_router_factor"));
    m->router_factor = factor;
    tsi_model_set(m);
    return TS_OK;
}
