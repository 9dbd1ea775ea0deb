/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_random.c - nets in units under random plans: parameters that a plan cuts in any way, by
 * axes of their unit or others, evenly or not, are trained as in a net without plan and units. What
 * is drawn follows from the seed; TEST_CASES says how many nets. */
#include <string.h>

#include "dist/parallel_util.h"

enum { TEXT = 512, STEPS = 3, CASES = 6 };

/* One placement of a dim of this extent along an axis of `ranks`. */
static void draw_placement(test *t, int64_t extent, int32_t ndim, int64_t ranks, char *out)
{
    int dim = (int)test_random_below(t, ndim);
    size_t used = (size_t)snprintf(out, 16, "S(%d)", dim);
    int64_t kind = test_random_below(t, 4), left = extent;
    if (kind == 0) snprintf(out, 16, "SS(%d,2)", dim);
    if (kind != 1) return;
    used = (size_t)snprintf(out, 16, "RS(%d:", dim);
    for (int64_t r = 0; r < ranks; r++) {
        int64_t size = r + 1 < ranks ? test_random_below(t, left + 1) : left;
        used += (size_t)snprintf(out + used, 8, "%s%d", r ? "," : "", (int)size);
        left -= size;
    }
    snprintf(out + used, 8, ")");
}

/* A line for a parameter: each axis cuts it or not. */
static void draw_line(test *t, ts_mesh *mesh, const char *name, int64_t extent, char *text)
{
    int32_t ndim = strstr(name, "weight") ? 2 : 1;
    bool sized = false; /* sizes are those of the whole dim: nothing else cuts beside them */
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, TEXT - used, "%s:", name);
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++) {
        char place[64] = "R";
        if (!sized && test_random_below(t, 2))
            draw_placement(t, extent, ndim, ts_mesh_axis_size(mesh, k), place);
        bool ragged = place[0] == 'R' && place[1] == 'S';
        if (ragged && k > 0) snprintf(place, sizeof place, "R");
        sized |= ragged;
        used += (size_t)snprintf(text + used, TEXT - used, "%s%s", k ? ", " : " ", place);
    }
    snprintf(text + used, TEXT - used, "\n");
}

static const char *draw_mesh(test *t)
{
    static const char *const two[] = { "fsdp=2", "tp=2" };
    static const char *const four[] = { "fsdp=2, cp=2", "replicate=2, fsdp=2", "fsdp=2, tp=2",
                                        "tp=2, fsdp=2", "cp=2, fsdp=2" };
    static const char *const six[] = { "fsdp=3, cp=2", "tp=2, fsdp=3", "replicate=3, fsdp=2" };
    static const char *const eight[] = { "fsdp=2, cp=2, tp=2", "replicate=2, fsdp=2, tp=2",
                                         "tp=2, fsdp=4", "cp=2, tp=2, fsdp=2" };
    if (t->count == 2) return two[test_random_below(t, 2)];
    if (t->count == 4) return four[test_random_below(t, 5)];
    return t->count == 6 ? six[test_random_below(t, 3)] : eight[test_random_below(t, 4)];
}

/* By the letters of the name, for functions that are asked of parameters. */
static uint64_t number_of(const char *name, const void *salt)
{
    uint64_t sum = *(const uint64_t *)salt;
    for (; *name; name++)
        sum = sum * 31 + (unsigned char)*name;
    return sum / 8;
}

/* Another dim, none, or no unit at all. */
static int32_t draw_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    const int32_t all[] = { TS_FSDP_WHOLE, TS_FSDP_IGNORE, shape.ndim - 1, 0 };
    uint64_t number = number_of(name, context);
    return shape.ndim == 0 || number % 2 ? otherwise : all[number / 2 % 4];
}

static const char *draw_axes(const char *name, ts_shape shape, void *context)
{
    static const char *const all[] = { NULL, "cp", "fsdp", "cp, fsdp" };
    (void)shape;
    return all[number_of(name, context) % 4];
}

static void try_net(test *t)
{
    static const char *const axes[] = { NULL, "fsdp", "fsdp, cp" };
    const char *line = draw_mesh(t);
    ts_mesh *mesh = ts_mesh_create(t->me, line);
    net units = { .count = 3, .leaves = -1, .dtype = TS_DTYPE_F64 }, plain;
    units.width = 1 + test_random_below(t, 9);
    units.rows = 4 + test_random_below(t, 9);
    units.twice = (int32_t)test_random_below(t, 2);
    units.again = (int32_t)test_random_below(t, 2);
    units.parts = (int32_t)(1 + test_random_below(t, 2));
    plain = units;
    char text[TEXT] = "", name[32];
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    for (int i = 0; i < 3; i++)
        for (int bias = 0; bias < 2; bias++) {
            if (test_random_below(t, 3) == 0) continue;
            snprintf(name, sizeof name, "blocks.%d.%s", i, bias ? "bias" : "weight");
            draw_line(t, mesh, name, units.width, text);
        }
    ts_fsdp_options options = TS_INIT(ts_fsdp_options);
    bool both = strstr(line, "fsdp") && strstr(line, "cp");
    options.axes = strstr(line, "fsdp") ? axes[test_random_below(t, both ? 3 : 2)] : "tp";
    options.reshard = (int32_t)test_random_below(t, 3) - 2;
    options.unused = (int32_t)test_random_below(t, 2);
    options.prefetch_off = (int32_t)test_random_below(t, 3);
    uint64_t salt = (uint64_t)test_random_below(t, 1 << 20);
    options.dim_context = options.axes_context = &salt;
    if (test_random_below(t, 3) == 0) options.dim = draw_dim;
    if (both && test_random_below(t, 2)) options.axes_fn = draw_axes;
    if (text[0]) TEST_OK(t, ts_module_plan(units.root, text));
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    net_train_both(t, &units, &plain, STEPS, 1e-11);
    TEST_SAY(t, !test_failed(t), "%s, width %d, units over %s:\n%s", line, (int)units.width,
             options.axes ? options.axes : "what there is", text);
    net_end(&units);
    net_end(&plain);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(random_plans_and_units, 2, 4, 6, 8)
{
    const char *said = getenv("TEST_CASES");
    int cases = said ? atoi(said) : CASES;
    for (int i = 0; i < cases && !test_failed(t); i++)
        try_net(t);
}
