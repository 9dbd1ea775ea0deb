/* SPDX-License-Identifier: Apache-2.0 */
/* layers.c - what a step of many layers costs, from steps of few.
 *
 * Layers are alike, so what a step moves, holds and computes grows by the same amount with each of
 * them. Three short models tell that amount twice; only if both tell the same, number by number,
 * is it continued to the whole one. Else, and where layers are not alike, all of it is run. */
#include <math.h>
#include <stdio.h>
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

/* What is computed beside the first and the last operations need not be in line. */
static void extend_beside(const ts_train_beside *a, const ts_train_beside *b, ts_train_beside *z,
                          int64_t n)
{
    (void)extend(a->count, b->count, &z->count, n);
    (void)extend(a->bytes, b->bytes, &z->bytes, n);
    (void)extend_real(a->seconds, b->seconds, &z->seconds, n);
    (void)extend_real(a->product_flops, b->product_flops, &z->product_flops, n);
    (void)extend_real(a->attention_flops, b->attention_flops, &z->attention_flops, n);
    (void)extend(a->touched_bytes, b->touched_bytes, &z->touched_bytes, n);
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
        extend_beside(&x->beside[i], &y->beside[i], &z->beside[i], n);
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

/* ---- whose it is at the peak ----------------------------------------------------------------- */

typedef struct stretch {
    const ts_train_cost *x, *y;
    ts_train_cost *z;
    int64_t n, period;     /* how many times the layers of a period are added */
    int64_t layers, whole; /* of z; of the model */
} stretch;

/* The number in "model.layers.3.mlp": where it begins, and what is behind it; NULL: there is none.
 */
static const char *number_in(const char *name, int64_t *number, const char **rest)
{
    for (const char *at = name; at; at = strchr(at, '.')) {
        at += *at == '.';
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || (at[digits] != '.' && at[digits] != '\0')) continue;
        *number = strtoll(at, NULL, 10);
        *rest = at + digits;
        return at;
    }
    return NULL;
}

static const ts_train_module *row_named(const ts_train_cost *c, const char *name)
{
    static const ts_train_module none = { .name = "" };
    for (int32_t i = 0; i < c->peak.row_count; i++)
        if (strcmp(c->peak.row[i].name, name) == 0) return &c->peak.row[i];
    return &none;
}

/* Row i of the whole: its first layers and its last three are those of the short one. */
static bool add_layer(const stretch *s, const ts_train_module *like, int64_t number,
                      ts_train_peak *out)
{
    enum { LAST = 3 };
    int64_t middle = s->layers - s->period - LAST, from = number, old;
    const char *rest, *at = number_in(like->name, &old, &rest);
    if (number >= s->whole - LAST)
        from = number - (s->whole - s->layers);
    else if (number >= middle)
        from = middle + (number - middle) % s->period;
    char name[sizeof like->name];
    snprintf(name, sizeof name, "%.*s%lld", (int)(at - like->name), like->name, (long long)from);
    const ts_train_module *row = row_named(s->z, name);
    if (!row->name[0] || out->row_count == TS_TRAIN_MODULES_MAX) return false;
    out->row[out->row_count] = *row;
    snprintf(out->row[out->row_count++].name, sizeof name, "%.*s%lld", (int)(at - like->name),
             like->name, (long long)number);
    return true;
}

static bool add_other(const stretch *s, const ts_train_module *like, ts_train_peak *out)
{
    const ts_train_module *x = row_named(s->x, like->name), *y = row_named(s->y, like->name);
    bool good = out->row_count < TS_TRAIN_MODULES_MAX;
    if (!good) return false;
    ts_train_module *to = &out->row[out->row_count++];
    *to = *like;
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        good &= extend(x->bytes[k], y->bytes[k], &to->bytes[k], s->n);
    return good;
}

/* "model.layers.7.mlp" is the same layer in all three, or the same from the last on. */
static bool extend_place(const stretch *s, ts_train_peak *out)
{
    const ts_train_peak *p[3] = { &s->x->peak, &s->y->peak, &s->z->peak };
    int64_t number[3] = { 0 };
    const char *rest[3] = { "", "", "" }, *at[3];
    bool good = true;
    for (int i = 0; i < 3; i++)
        at[i] = number_in(p[i]->module, &number[i], &rest[i]);
    for (int i = 0; i < 3; i++) {
        good &= strcmp(p[i]->phase, out->phase) == 0 && strcmp(p[i]->op, out->op) == 0;
        good &= !at[i] == !at[2] &&
                strcmp(at[i] ? rest[i] : p[i]->module, at[2] ? rest[2] : p[2]->module) == 0;
    }
    if (!good || !at[2]) return good;
    int64_t step = number[2] - number[1];
    if (number[1] - number[0] != step || (step != 0 && step != s->period)) return false;
    snprintf(out->module, sizeof out->module, "%.*s%lld%s", (int)(at[2] - p[2]->module),
             p[2]->module, (long long)(number[2] + step * s->n), rest[2]);
    return true;
}

/* Layer by layer; what they hold together has to be what kinds were continued to. */
static bool extend_peak(const stretch *s)
{
    ts_train_peak *out = tsi_alloc(sizeof *out);
    bool good = out != NULL, layered = false;
    if (good) *out = s->z->peak;
    if (good) out->row_count = 0;
    good = good && extend_place(s, out) &&
           extend(s->x->peak.bytes, s->y->peak.bytes, &out->bytes, s->n);
    for (int32_t i = 0; good && i < s->z->peak.row_count; i++) {
        const ts_train_module *row = &s->z->peak.row[i];
        int64_t number;
        const char *rest;
        if (!number_in(row->name, &number, &rest))
            good = add_other(s, row, out);
        else if (!layered)
            for (int64_t n = 0; good && n < s->whole; n++)
                good = add_layer(s, row, n, out);
        layered |= number_in(row->name, &number, &rest) != NULL;
    }
    int64_t sum[TS_MEMORY_KINDS] = { 0 };
    for (int32_t i = 0; good && i < out->row_count; i++)
        for (int k = 0; k < TS_MEMORY_KINDS; k++)
            sum[k] += out->row[i].bytes[k];
    good = good && memcmp(sum, s->z->memory.at_peak, sizeof sum) == 0;
    if (good) s->z->peak = *out;
    tsi_free(out);
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
    good &= extend(x->least_bytes, y->least_bytes, &z->least_bytes, n);
    good &= x->rank_most == z->rank_most && y->rank_most == z->rank_most;
    good &= x->rank_least == z->rank_least && y->rank_least == z->rank_least;
    return good && extend_memory(&x->memory, &y->memory, &z->memory, n) &&
           extend_traffic(x, y, z, n) && extend_params(x, y, z, n);
}

/* Layers from one that is like another to the next such. */
static int64_t period_of(const ts_train_config *c)
{
    int64_t every = strtoll(c->parallel.recompute, NULL, 10);
    return every > 0 ? every : 1;
}

static bool by_layers(const ts_train_config *config, tsi_forecast_fn forecast, ts_train_cost *out)
{
    int64_t layers = config->model.layers, period = period_of(config);
    int64_t first = config->model.dense_first + FIRST;
    first += (layers - first) % period;
    bool muon = strcmp(config->optimizer.kind, "muon") == 0; /* gives matrices out by all of them */
    if (config->model.directory[0] || muon || layers < first + 2 * period + WORTH) return false;
    ts_train_config *few = tsi_alloc(sizeof *few);
    ts_train_cost *cost = tsi_alloc_array(3, sizeof *cost);
    bool good = few && cost;
    for (int i = 0; good && i < 3; i++) {
        *few = *config;
        few->model.layers = first + i * period;
        good = forecast(few, &cost[i]) == TS_OK;
    }
    int64_t n = good ? (layers - few->model.layers) / period : 0;
    good = good && extend_cost(&cost[0], &cost[1], &cost[2], n);
    good = good && extend_peak(&(stretch){ &cost[0], &cost[1], &cost[2], n, period,
                                           few->model.layers, layers });
    if (good) *out = cost[2];
    if (good) out->curve.count = 0; /* that of a short one says little */
    tsi_free(few);
    tsi_free(cost);
    return good;
}

/* ---- states that are saved in the background ------------------------------------------------- */

/* Held at every moment of a step, by what is outside of all modules. */
static void hold_staging(ts_train_cost *c, int64_t bytes)
{
    c->memory.live += bytes;
    c->memory.peak += bytes;
    c->memory.reserved += bytes;
    c->memory.at_peak[TS_MEMORY_STAGING] += bytes;
    c->memory.most[TS_MEMORY_STAGING] += bytes;
    c->activation_bytes += bytes;
    c->peak.bytes += bytes;
    for (int32_t i = 0; i < c->peak.row_count; i++)
        if (!c->peak.row[i].name[0]) c->peak.row[i].bytes[TS_MEMORY_STAGING] += bytes;
}

/* Ranks share what is saved, which is not in line with layers: it is counted of all of them, and
 * steps are those without. */
bool tsi_forecast_by_layers(const ts_train_config *config, tsi_forecast_fn forecast,
                            ts_train_cost *out)
{
    if (!config->checkpoint.async) return by_layers(config, forecast, out);
    int64_t most = 0, least = 0;
    ts_train_config *without = tsi_alloc(sizeof *without);
    if (!without) return false;
    *without = *config;
    without->checkpoint.async = 0;
    bool good = by_layers(without, forecast, out) &&
                tsi_train_staging(config, out->rank_most, &most) == TS_OK;
    least = most;
    if (good && out->rank_least != out->rank_most)
        good = tsi_train_staging(config, out->rank_least, &least) == TS_OK;
    if (good) hold_staging(out, most);
    if (good) out->least_bytes += least;
    tsi_free(without);
    return good;
}
