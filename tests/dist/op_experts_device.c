/* SPDX-License-Identifier: Apache-2.0 */
/* op_experts_device.c - experts that are cut over ranks whose device runs behind the host: with
 * all rows of the group nobody waits for it, forward or backward, and results are those of the cpu;
 * a choice out of range is still refused. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { ROWS = 14, WIDTH = 6, INNER = 5, EXPERTS = 8, CHOICES = 2, GRADS = 4, ITEMS = 1 + GRADS };

typedef struct trial {
    test *t;
    const char *mesh, *rows, *in, *out, *algorithm;
    int64_t all_to; /* every row chooses it and the next; -1: spread */
    int64_t waits;  /* of rank 0 */
    double sum[ITEMS];
} trial;

static ts_status which_at(const int64_t *global, void *element, void *context)
{
    const trial *s = context;
    int64_t spread = (5 * global[0] + global[0] / 3 + 3 * global[1]) % EXPERTS;
    *(int64_t *)element = s->all_to < 0 ? spread : s->all_to + global[1];
    return TS_OK;
}

static ts_tensor *numbers(ts_mesh *mesh, ts_shape shape, const char *place, double by)
{
    ts_tensor *i = ts_arange(mesh, TS_DTYPE_F64, shape, place, NULL);
    return ts_watch(ts_sin(ts_mul_scalar(i, by)));
}

/* One number that tells where each element of the tensor lies. */
static double sum_of(ts_tensor *x)
{
    double value = NAN;
    ts_shape shape = ts_tensor_shape(x);
    ts_tensor *all = ts_tensor_full(x), *mesh_like = ts_ones_like(all);
    ts_tensor *at = ts_reshape(mesh_like, TS_SHAPE(ts_shape_count(&shape)));
    at = ts_cos(ts_mul_scalar(ts_cumsum(at, 0), 0.3));
    ts_tensor_item(ts_sum(ts_mul(ts_reshape(all, ts_tensor_shape(at)), at), NULL, 0, 0), &value);
    return value;
}

static ts_status work(ts_rank *me, void *argument)
{
    trial *s = argument;
    bool notes = ts_rank_index(me) == 0;
    ts_mesh *mesh = ts_mesh_create(me, s->mesh);
    ts_meta ids = { .shape = TS_SHAPE(ROWS, CHOICES), .dtype = TS_DTYPE_I64 };
    ts_tensor *x = numbers(mesh, TS_SHAPE(ROWS, WIDTH), s->rows, 0.7);
    ts_tensor *weight = numbers(mesh, TS_SHAPE(ROWS, CHOICES), s->rows, 1.3);
    ts_tensor *in = numbers(mesh, TS_SHAPE(EXPERTS, 2, INNER, WIDTH), s->in, 0.11);
    ts_tensor *out = numbers(mesh, TS_SHAPE(EXPERTS, WIDTH, INNER), s->out, 0.17);
    ts_tensor *which = ts_from_function(which_at, s, ts_sharding_get(mesh, s->rows), ids);
    ts_tape_begin(me);
    TSI_TRY(ts_rank_sync(me));
    const tsi_rank_device *device = tsi_rank_device_of(me);
    int64_t before = device->waits;
    ts_tensor *y = ts_grouped_mlp(x, which,
                                  TS_OPTIONS(ts_grouped_mlp_options, .weight = weight, .in = in,
                                             .out = out, .algorithm = s->algorithm));
    (void)ts_backward(ts_sum(ts_square(y), NULL, 0, 0), NULL);
    if (notes) s->waits = device->waits - before;
    TSI_TRY(ts_rank_status(me));
    ts_tensor *const item[ITEMS] = { y, ts_tensor_grad(x), ts_tensor_grad(weight),
                                     ts_tensor_grad(in), ts_tensor_grad(out) };
    for (int i = 0; i < ITEMS; i++) {
        double sum = sum_of(item[i]);
        if (notes) s->sum[i] = sum;
    }
    return ts_rank_status(me);
}

static ts_status run_on(trial *s, const char *device, int64_t ranks, char *error, size_t size)
{
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = ranks,
                                 .seed = 5,
                                 .device = device };
    return ts_launch_with(&options, work, s, error, size);
}

static void compare(test *t, trial s, int64_t ranks)
{
    static const char *const names[] = { "y", "dx", "dweight", "din", "dout" };
    char error[512] = "";
    trial cpu = s;
    TEST_SAY(t, run_on(&cpu, "cpu", ranks, error, sizeof error) == TS_OK, "%s", error);
    TEST_SAY(t, run_on(&s, "queue", ranks, error, sizeof error) == TS_OK, "%s", error);
    TEST_SAY(t, s.waits == 0, "%s: the host waited %lld times", s.mesh, (long long)s.waits);
    for (int i = 0; i < ITEMS; i++)
        TEST_SAY(t, fabs(s.sum[i] - cpu.sum[i]) <= 1e-10, "%s, %s: %s is %.15g, on the cpu %.15g",
                 s.mesh, s.in, names[i], s.sum[i], cpu.sum[i]);
}

TS_TEST(experts_are_cut_without_a_word_from_the_host)
{
    static const struct {
        int64_t ranks;
        const char *mesh, *rows, *in, *out;
    } rows[] = {
        { 1, "ep=1", "R", "R", "R" },
        { 2, "ep=2", "S(0)", "S(0)", "S(0)" },
        { 5, "ep=5", "S(0)", "S(0)", "S(0)" }, /* 2, 2, 2, 2 and none */
        { 3, "ep=3", "S(0)", "RS(0:1,2,0|3,1,1)", "RS(0:1,2,0|3,1,1)" },
        { 2, "tp=2", "R", "S(0)", "S(0)" }, /* all have the rows */
        { 4, "dp=2, ep=2", "S(0), S(0)", "R, S(0)", "R, S(0)" },
        { 4, "ep=2, tp=2", "S(0), R", "S(0), S(2)", "S(0), S(2)" },
        { 4, "ep=2, tp=2", "S(0), R", "S(0), S(0)", "S(0), S(0)" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int64_t all_to = -1; all_to < EXPERTS - 1; all_to += EXPERTS - 2) {
            trial s = { .t = t,
                        .mesh = rows[i].mesh,
                        .rows = rows[i].rows,
                        .in = rows[i].in,
                        .out = rows[i].out,
                        .algorithm = "gather",
                        .all_to = all_to };
            compare(t, s, rows[i].ranks);
        }
}

/* Rows that go one by one are listed by the host: it waits for the choices, once each way. */
TS_TEST(lists_of_rows_wait_for_the_choices)
{
    char error[512] = "";
    trial s = { .t = t, .mesh = "ep=2", .rows = "S(0)", .in = "S(0)", .out = "S(0)" };
    s.algorithm = "rows";
    s.all_to = -1;
    TEST_SAY(t, run_on(&s, "queue", 2, error, sizeof error) == TS_OK, "%s", error);
    TEST_EQ(t, s.waits, 2);
}

/* The sentence comes when the host reads a result. */
TS_TEST(a_bad_choice_on_a_device_is_refused)
{
    char error[512] = "";
    trial s = { .t = t, .mesh = "ep=2", .rows = "S(0)", .in = "S(0)", .out = "S(0)" };
    s.algorithm = "gather";
    s.all_to = EXPERTS - 1; /* and the one behind it */
    TEST_CHECK(t, run_on(&s, "queue", 2, error, sizeof error) == TS_ERR_ARG);
    TEST_SAY(t, strstr(error, "group 8 is out of range for 8 groups") != NULL, "%s", error);
}
