/* SPDX-License-Identifier: Apache-2.0 */
/* plan_layouts.h - random layouts for the tests of plans: plain, strided, head-tail and ragged
 * cuts, cuts over two dims, any order, partials. Every choice comes from the test's seed. */
#ifndef TESTS_PROP_PLAN_LAYOUTS_H
#define TESTS_PROP_PLAN_LAYOUTS_H

#include <stdio.h>

#include "harness/test.h"
#include "tessera/layout.h"

typedef struct layout_choice {
    bool partial;   /* may partials occur? */
    bool unusual;   /* strided, head-tail, ragged */
    bool spans;     /* cuts over two dims */
    const char *op; /* "sum" */
} layout_choice;

static int32_t random_cut_dim(test *t, int32_t ndim)
{
    return (int32_t)test_random_below(t, ndim);
}

/* Sizes that sum to extent. */
static void random_sizes(test *t, int64_t extent, int64_t n, char *out, size_t size)
{
    size_t used = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t one = i == n - 1 ? extent : test_random_below(t, extent + 1);
        extent -= one;
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? "," : "", (long long)one);
    }
}

/* The dim each axis cuts (-1: none) goes to dim[]; returns the text of one placement without its
 * order. */
static void random_placement(test *t, const layout_choice *c, ts_shape shape, int64_t n,
                             int32_t *dim, char *out, size_t size)
{
    char sizes[128];
    int64_t kind = test_random_below(t, 10);
    *dim = -1;
    if (c->partial && kind == 0) {
        snprintf(out, size, "P(%s)", c->op);
        return;
    }
    if (kind < 4 || shape.ndim == 0) {
        snprintf(out, size, "R");
        return;
    }
    *dim = random_cut_dim(t, shape.ndim);
    if (!c->unusual || kind < 8) {
        snprintf(out, size, "S(%d)", *dim);
        return;
    }
    switch (test_random_below(t, 3)) {
    case 0:
        snprintf(out, size, "SS(%d,%d)", *dim, 2 + (int)test_random_below(t, 2));
        return;
    case 1:
        snprintf(out, size, "HT(%d)", *dim);
        return;
    default:
        random_sizes(t, shape.extent[*dim], n, sizes, sizeof sizes);
        snprintf(out, size, "RS(%d:%s)", *dim, sizes);
    }
}

/* Marks of order for the axes that cut one dim: a random permutation. */
static void random_orders(test *t, const int32_t *dim, int32_t axes, int32_t *order)
{
    for (int32_t k = 0; k < axes; k++)
        order[k] = -1;
    for (int32_t d = 0; d < TS_NDIM_MAX; d++) {
        int32_t list[TS_NDIM_MAX], count = 0;
        for (int32_t k = 0; k < axes; k++) {
            if (dim[k] == d) list[count++] = k;
        }
        if (count < 2 || test_random_below(t, 2)) continue;
        for (int32_t i = 0; i < count; i++) {
            int32_t j = i + (int32_t)test_random_below(t, count - i), swap = list[i];
            list[i] = list[j];
            list[j] = swap;
            order[list[i]] = i;
        }
    }
}

/* A layout of the mesh; NULL if the text drawn is not allowed (a ragged cut inside another cut). */
static const ts_layout *random_layout(test *t, const layout_choice *c, ts_mesh *mesh,
                                      ts_shape shape, char *text, size_t size)
{
    int32_t axes = ts_mesh_ndim(mesh), dim[TS_NDIM_MAX], order[TS_NDIM_MAX];
    char one[TS_NDIM_MAX][192];
    size_t used = 0;
    bool span = c->spans && shape.ndim >= 2 && test_random_below(t, 3) == 0;
    for (int32_t k = 0; k < axes; k++) {
        random_placement(t, c, shape, ts_mesh_axis_size(mesh, k), &dim[k], one[k], sizeof one[k]);
        if (span && dim[k] >= 0 && dim[k] < 2) {
            dim[k] = 0;
            snprintf(one[k], sizeof one[k], "S(0-1)");
        }
    }
    random_orders(t, dim, axes, order);
    text[0] = '\0';
    for (int32_t k = 0; k < axes; k++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", k ? ", " : "", one[k]);
        if (order[k] >= 0) used += (size_t)snprintf(text + used, size - used, "[%d]", order[k]);
    }
    const ts_sharding *sharding = ts_sharding_get(mesh, text);
    return sharding ? ts_layout_get(sharding, shape) : NULL;
}

#endif
