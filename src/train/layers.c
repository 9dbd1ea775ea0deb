/* SPDX-License-Identifier: Apache-2.0 */
/* layers.c - what a step of many layers costs, from steps of few.
 *
 * Layers are alike, so what a step moves, holds and computes grows by the same amount with each of
 * them. Three short models tell that amount twice; only if both tell the same, number by number,
 * is it continued to the whole one. Else, and where layers are not alike, all of it is run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "train/run.h"

enum { WORTH = 16, FIRST = 6 }; /* layers that have to be saved; that ends make no difference in */

/* x, y and z are neighbours: the one that is `n` times as far behind z. False: they are not in
 * line. */
static bool extend(int64_t x, int64_t y, int64_t *z, int64_t n)
{
    bool straight = y - x == *z - y;
    *z += (*z - y) * n;
    return straight;
}

static bool extend_real(double x, double y, double *z, int64_t n)
{
    bool straight = fabs((y - x) - (*z - y)) <= 1e-9 * (fabs(*z) + fabs(y));
    *z += (*z - y) * (double)n;
    return straight;
}

static bool extend_memory(const ts_memory *x, const ts_memory *y, ts_memory *z, int64_t n)
{
    bool good = extend(x->live, y->live, &z->live, n);
    good &= extend(x->peak, y->peak, &z->peak, n);
    for (int k = 0; k < TS_MEMORY_KINDS; k++) {
        good &= extend(x->at_peak[k], y->at_peak[k], &z->at_peak[k], n);
        good &= extend(x->most[k], y->most[k], &z->most[k], n);
    }
    (void)extend(x->reserved, y->reserved, &z->reserved, n); /* whole pages: not in line */
    (void)extend(x->allocations, y->allocations, &z->allocations, n);
    return good;
}

static bool extend_traffic(const ts_train_cost *x, const ts_train_cost *y, ts_train_cost *z,
                           int64_t n)
{
    bool good = x->traffic_count == z->traffic_count && y->traffic_count == z->traffic_count;
    for (int32_t i = 0; good && i < z->traffic_count; i++) {
        ts_train_traffic *t = &z->traffic[i];
        const ts_train_traffic *a = &x->traffic[i], *b = &y->traffic[i];
        good = strcmp(a->axes, t->axes) == 0 && strcmp(a->kind, t->kind) == 0 &&
               strcmp(b->axes, t->axes) == 0 && strcmp(b->kind, t->kind) == 0;
        good &= extend(a->count, b->count, &t->count, n);
        good &= extend(a->bytes, b->bytes, &t->bytes, n);
        good &= extend_real(a->seconds, b->seconds, &t->seconds, n);
    }
    return good;
}

static bool extend_params(const ts_train_cost *x, const ts_train_cost *y, ts_train_cost *z,
                          int64_t n)
{
    bool good = x->param_count == z->param_count && y->param_count == z->param_count;
    for (int32_t i = 0; good && i < z->param_count; i++) {
        ts_train_param *p = &z->param[i];
        const ts_train_param *a = &x->param[i], *b = &y->param[i];
        good = strcmp(a->pattern, p->pattern) == 0 && strcmp(b->pattern, p->pattern) == 0;
        good &= extend(a->count, b->count, &p->count, n);
        good &= extend(a->bytes, b->bytes, &p->bytes, n);
        good &= extend(a->elements, b->elements, &p->elements, n);
    }
    return good;
}

static bool extend_cost(const ts_train_cost *x, const ts_train_cost *y, ts_train_cost *z, int64_t n)
{
    /* Fewer activations with more layers: states grow faster than the peak, so that in the whole
     * model another moment is the largest. */
    if (z->activation_bytes < y->activation_bytes) return false;
    bool good = extend(x->parameters, y->parameters, &z->parameters, n);
    good &= extend(x->weight_bytes, y->weight_bytes, &z->weight_bytes, n);
    good &= extend(x->gradient_bytes, y->gradient_bytes, &z->gradient_bytes, n);
    good &= extend(x->optimizer_bytes, y->optimizer_bytes, &z->optimizer_bytes, n);
    good &= extend(x->activation_bytes, y->activation_bytes, &z->activation_bytes, n);
    good &= extend_real(x->flops_per_token, y->flops_per_token, &z->flops_per_token, n);
    good &= extend_real(x->comm_seconds, y->comm_seconds, &z->comm_seconds, n);
    good &= extend_real(x->product_flops, y->product_flops, &z->product_flops, n);
    good &= extend_real(x->attention_flops, y->attention_flops, &z->attention_flops, n);
    good &= extend(x->touched_bytes, y->touched_bytes, &z->touched_bytes, n);
    return good && extend_memory(&x->memory, &y->memory, &z->memory, n) &&
           extend_traffic(x, y, z, n) && extend_params(x, y, z, n);
}

/* Layers from one that is like another to the next such. */
static int64_t period_of(const ts_train_config *c)
{
    int64_t every = strtoll(c->parallel.recompute, NULL, 10);
    return every > 0 ? every : 1;
}

bool tsi_forecast_by_layers(const ts_train_config *config, tsi_forecast_fn forecast,
                            ts_train_cost *out)
{
    int64_t layers = config->model.layers, period = period_of(config);
    int64_t first = config->model.dense_first + FIRST;
    first += (layers - first) % period;
    if (config->model.directory[0] || layers < first + 2 * period + WORTH) return false;
    ts_train_config *few = tsi_alloc(sizeof *few);
    ts_train_cost *cost = tsi_alloc_array(3, sizeof *cost);
    bool good = few && cost;
    for (int i = 0; good && i < 3; i++) {
        *few = *config;
        few->model.layers = first + i * period;
        good = forecast(few, &cost[i]) == TS_OK;
    }
    good = good && extend_cost(&cost[0], &cost[1], &cost[2], (layers - few->model.layers) / period);
    if (good) *out = cost[2];
    if (good) out->curve.count = 0; /* that of a short one says little */
    tsi_free(few);
    tsi_free(cost);
    return good;
}
