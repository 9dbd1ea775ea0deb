/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_util.h - a small net, in units or not, and how it is trained: what units change is
 * nothing, so a net in units is compared with its twin without.
 *
 *   x [rows, width] -> block 0 -> ... -> block n-1 -> mean of squares
 *   block: tanh(x weight + bias) * gain        weight [width, width], bias [width], gain [] */
#ifndef TESTS_DIST_PARALLEL_UTIL_H
#define TESTS_DIST_PARALLEL_UTIL_H

#include <math.h>
#include <stdlib.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { NET_BLOCKS_MAX = 8 };

typedef struct net_block {
    ts_tensor *weight, *bias, *gain, *table; /* table: whole numbers or truths, or NULL */
    int32_t frozen_gain, reserved;
} net_block;

typedef struct net {
    ts_mesh *mesh;
    ts_module *root, *block[NET_BLOCKS_MAX];
    ts_optimizer *optimizer;
    int64_t count, width, rows;
    int32_t twice;  /* block 0 is called again at the end */
    int32_t leaves; /* >= 0: this block is left out */
    int32_t again;  /* blocks run again in backward */
    int32_t parts;  /* micro-batches of a step */
    ts_dtype dtype;
} net;

static inline void block_forward(void *state, const ts_module_io *io)
{
    const net_block *b = state;
    ts_tensor *y = ts_tanh(ts_linear(io->input[0], b->weight, b->bias));
    if (b->table) y = ts_add(y, ts_cast(b->table, ts_tensor_dtype(y)));
    io->output[0] = ts_mul(y, b->gain);
}

static const ts_module_desc block_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "block",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = block_forward,
                                           .destroy = free };

static inline void net_forward(void *state, const ts_module_io *io)
{
    const net *n = state;
    ts_tensor *x = io->input[0];
    for (int64_t i = 0; i < n->count; i++)
        if (i != n->leaves) x = TS_CALL(n->block[i], x);
    if (n->twice) x = TS_CALL(n->block[0], x);
    io->output[0] = x;
}

static const ts_module_desc net_desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "net",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = net_forward };

/* Declared, not yet wrapped. `n` has the sizes. */
static inline void net_declare(net *n, ts_mesh *mesh, bool has_table)
{
    static double deviation = 0.3;
    ts_param_options normal = { .struct_size = sizeof normal,
                                .init = ts_init_normal,
                                .init_state = &deviation,
                                .dtype = n->dtype };
    ts_param_options ones = { .struct_size = sizeof ones, .init = ts_init_ones, .dtype = n->dtype };
    ts_param_options whole = {
        .struct_size = sizeof whole, .init = ts_init_ones, .dtype = TS_DTYPE_I8, .frozen = 1
    };
    n->mesh = mesh;
    n->root = ts_module_create(mesh, &net_desc, n);
    for (int64_t i = 0; i < n->count; i++) {
        char name[16];
        net_block *b = calloc(1, sizeof *b);
        snprintf(name, sizeof name, "blocks.%d", (int)i);
        n->block[i] = ts_module_add(n->root, name, ts_module_create(mesh, &block_desc, b));
        ts_module *m = n->block[i];
        b->weight = ts_module_param(m, "weight", TS_SHAPE(n->width, n->width), &normal);
        b->bias = ts_module_param(m, "bias", TS_SHAPE(n->width), &normal);
        b->gain = ts_module_param(m, "gain", TS_SHAPE_SCALAR, &ones);
        whole.dtype = i % 2 ? TS_DTYPE_BOOL : TS_DTYPE_I8;
        if (has_table) b->table = ts_module_param(m, "table", TS_SHAPE(n->width), &whole);
        if (n->again) ts_module_checkpoint(m, 1);
    }
}

/* Every block a unit, unless options are NULL; then storage and an optimiser. */
static inline ts_status net_begin(net *n, const ts_fsdp_options *options)
{
    ts_adamw_options adamw = { .struct_size = sizeof adamw, .lr = 0.01, .weight_decay = 0.1 };
    for (int64_t i = 0; options && i < n->count; i++)
        if (ts_fsdp(n->block[i], options) != TS_OK) break;
    ts_status status = ts_module_materialize(n->root);
    if (status == TS_OK) n->optimizer = ts_adamw_create(n->root, &adamw);
    return status;
}

static inline void net_end(net *n)
{
    ts_optimizer_destroy(n->optimizer);
    ts_module_destroy(n->root);
}

static inline ts_status net_value(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    double value = sin((double)(global[0] * 31 + global[1] * 7 + salt[0]));
    if (salt[1] == TS_DTYPE_F64)
        *(double *)element = value;
    else
        *(float *)element = (float)value;
    return TS_OK;
}

static inline ts_tensor *net_input(const net *n, int64_t salt)
{
    int64_t context[2] = { salt, n->dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32 };
    ts_meta meta = { .shape = TS_SHAPE(n->rows, n->width), .dtype = (int32_t)context[1] };
    const ts_sharding *where = ts_sharding_get(n->mesh, "replicate?:S(0) fsdp?:S(0)");
    return ts_cast(ts_from_function(net_value, context, where, meta), n->dtype);
}

/* The mean of squares of what comes out, and its backward. */
static inline double net_run(net *n, int64_t salt, int32_t lazy, double factor)
{
    ts_rank *me = ts_tensor_rank(ts_module_find_param(n->root, "blocks.0.weight"));
    double value = NAN;
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tape_begin(me);
    ts_tensor *x = net_input(n, salt), *y = ts_module_call(n->root, &x, 1);
    ts_tensor *mean = ts_sum(ts_square(ts_cast(y, TS_DTYPE_F64)), NULL, 0, 0);
    mean = ts_mul_scalar(mean, factor / (double)(n->rows * n->width));
    ts_tensor_item(mean, &value);
    ts_backward(mean, TS_OPTIONS(ts_backward_options, .lazy = lazy));
    ts_scope_close(scope);
    return value;
}

/* One step; the loss, and the norm before clipping. */
static inline double net_step(net *n, int64_t step, double *norm)
{
    int32_t parts = n->parts > 0 ? n->parts : 1;
    double loss = 0;
    for (int32_t part = 0; part < parts; part++)
        loss += net_run(n, step * parts + part, 0, 1.0 / parts);
    ts_clip_grad_norm(n->root, 0.5, norm);
    ts_optimizer_step(n->optimizer);
    return loss;
}

typedef struct net_other {
    test *t;
    net *other;
    double most; /* the largest relative difference */
} net_other;

static inline ts_status net_compare_one(const char *name, ts_tensor *parameter, void *context)
{
    net_other *c = context;
    ts_tensor *a = ts_cast(ts_tensor_full(parameter), TS_DTYPE_F64);
    ts_tensor *b =
        ts_cast(ts_tensor_full(ts_module_find_param(c->other->root, name)), TS_DTYPE_F64);
    double size = 0, error = NAN;
    ts_tensor_item(ts_amax(ts_abs(b), NULL, 0, 0), &size);
    ts_tensor_item(ts_amax(ts_abs(ts_sub(a, b)), NULL, 0, 0), &error);
    error /= size > 0 ? size : 1;
    if (!(error <= c->most)) c->most = error;
    return TS_OK;
}

/* Largest difference of any parameter, relative to its largest element; both on one mesh. */
static inline double net_difference(test *t, net *a, net *b)
{
    net_other c = { t, b, 0 };
    ts_scope scope = ts_scope_open(t->me, NULL);
    TEST_OK(t, ts_module_each(a->root, net_compare_one, &c));
    ts_scope_close(scope);
    return c.most;
}

/* Trains both for some steps: losses, norms and parameters agree. */
static inline void net_train_both(test *t, net *units, net *plain, int64_t steps, double tolerance)
{
    for (int64_t step = 0; step < steps; step++) {
        double norm[2] = { NAN, NAN };
        double a = net_step(units, step, &norm[0]), b = net_step(plain, step, &norm[1]);
        TEST_SAY(t, fabs(a - b) <= tolerance * fabs(b), "step %d: loss %.17g, not %.17g", (int)step,
                 a, b);
        TEST_SAY(t, fabs(norm[0] - norm[1]) <= tolerance * norm[1],
                 "step %d: norm %.17g, not %.17g", (int)step, norm[0], norm[1]);
        if (test_failed(t)) return;
    }
    double most = net_difference(t, units, plain);
    TEST_SAY(t, most <= tolerance, "parameters differ by %.3g, allowed %.3g", most, tolerance);
    TEST_OK(t, ts_rank_status(t->me));
}

/* Copies beside cuts where that can be. */
static inline ts_mesh *units_mesh(test *t)
{
    char text[64];
    if (t->count == 4)
        snprintf(text, sizeof text, "replicate=2, fsdp=2");
    else
        snprintf(text, sizeof text, "fsdp=%d", (int)t->count);
    return ts_mesh_create(t->me, text);
}

#endif
