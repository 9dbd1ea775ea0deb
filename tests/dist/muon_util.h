/* SPDX-License-Identifier: Apache-2.0 */
/* muon_util.h - parameters of many shapes whose gradients are the same bits on any mesh: the loss
 * is the sum of w c, and c is a function of (name, step, global index). */
#ifndef TESTS_DIST_MUON_UTIL_H
#define TESTS_DIST_MUON_UTIL_H

#include <math.h>
#include <stdlib.h>

#include "harness/test.h"
#include "tessera/tessera.h"

typedef struct muon_shape {
    const char *name;
    int64_t extent[3]; /* 0: no such dim */
} muon_shape;

enum { MUON_SHAPES = 8, MUON_VALUES = 1024 };
static const muon_shape muon_shapes[MUON_SHAPES] = {
    { "embed.weight", { 11, 4, 0 } }, { "wide.weight", { 6, 10, 0 } },
    { "tall.weight", { 9, 4, 0 } },   { "square.weight", { 7, 7, 0 } },
    { "experts", { 5, 4, 6 } },       { "row.weight", { 1, 8, 0 } },
    { "norm.weight", { 5, 0, 0 } },   { "head.weight", { 12, 5, 0 } },
};

typedef struct muon_net {
    ts_module *root;
    ts_optimizer *optimizer;
    ts_tensor *w[MUON_SHAPES];
    ts_dtype dtype;
    int32_t left_out; /* > 0: this parameter has no gradient in step 1 */
} muon_net;

static inline ts_shape muon_shape_of(int i)
{
    const int64_t *x = muon_shapes[i].extent;
    return x[2] ? TS_SHAPE(x[0], x[1], x[2]) : x[1] ? TS_SHAPE(x[0], x[1]) : TS_SHAPE(x[0]);
}

static inline void muon_forward(void *state, const ts_module_io *io)
{
    (void)state;
    io->output[0] = io->input[0];
}

/* `plan` may be NULL; `groups` too. */
static inline muon_net muon_net_make(test *t, ts_mesh *mesh, ts_dtype dtype, const char *plan,
                                     const char *groups)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc,
                                         .type = "muon",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = muon_forward };
    muon_net n = { .dtype = dtype };
    double deviation = 0.5;
    ts_param_options options = { .struct_size = sizeof options,
                                 .dtype = (int32_t)dtype,
                                 .init = ts_init_normal,
                                 .init_state = &deviation };
    n.root = ts_module_create(mesh, &desc, NULL);
    for (int i = 0; i < MUON_SHAPES; i++)
        n.w[i] = ts_module_param(n.root, muon_shapes[i].name, muon_shape_of(i), &options);
    if (plan) TEST_OK(t, ts_module_plan(n.root, plan));
    if (groups) TEST_OK(t, ts_module_groups(n.root, groups));
    TEST_OK(t, ts_module_materialize(n.root));
    return n;
}

static inline void muon_net_end(muon_net *n)
{
    ts_optimizer_destroy(n->optimizer);
    ts_module_destroy(n->root);
}

static inline ts_tensor *muon_slope(ts_mesh *mesh, ts_dtype dtype, int i, int step)
{
    ts_random_options random = { .struct_size = sizeof random,
                                 .stream = muon_shapes[i].name,
                                 .seed = (uint64_t)step,
                                 .seed_is_given = 1 };
    return ts_cast(ts_randn_with(mesh, TS_DTYPE_F64, muon_shape_of(i), NULL, &random), dtype);
}

/* Gradients of a step, times a factor. */
static inline ts_status muon_backward(muon_net *n, int step, double factor)
{
    ts_rank *me = ts_tensor_rank(n->w[0]);
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tape_begin(me);
    ts_tensor *loss = NULL;
    for (int i = 0; i < MUON_SHAPES; i++) {
        if (n->left_out == i && i > 0 && step == 1) continue;
        ts_tensor *c = muon_slope(ts_tensor_mesh(n->w[i]), n->dtype, i, step);
        ts_tensor *term = ts_sum(ts_mul(n->w[i], ts_mul_scalar(c, factor)), NULL, 0, 0);
        loss = loss ? ts_add(loss, term) : term;
    }
    ts_status status = ts_backward(loss, NULL);
    ts_scope_close(scope);
    return status;
}

/* Of a tensor of f64 that is whole; returns how many. */
static inline int64_t muon_read(test *t, ts_tensor *full, double *out)
{
    ts_array to = TS_INIT(ts_array);
    to.data = out;
    to.meta = (ts_meta){ .shape = ts_tensor_shape(full), .dtype = TS_DTYPE_F64 };
    TEST_OK(t, ts_tensor_read(full, &to));
    return ts_shape_count(&to.meta.shape);
}

/* All values as they are globally; returns how many. */
static inline int64_t muon_values(test *t, const muon_net *n, double *out)
{
    int64_t count = 0;
    ts_scope scope = ts_scope_open(ts_tensor_rank(n->w[0]), NULL);
    for (int i = 0; i < MUON_SHAPES; i++) {
        ts_tensor *full = ts_tensor_full(ts_cast(n->w[i], TS_DTYPE_F64));
        count += muon_read(t, full, out + count);
    }
    ts_scope_close(scope);
    return count;
}

#endif
