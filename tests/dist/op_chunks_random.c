/* SPDX-License-Identifier: Apache-2.0 */
/* op_chunks_random.c - products of sizes that nobody chose, chunk by chunk: rows that ranks cannot
 * share evenly, fewer blocks of rows than ranks, ranks without any, batch dims before and behind
 * the rows, a bias, lists of weights, weights that lie transposed, every dtype of products. Forward
 * and backward have the bits and the layouts of the whole product; so has a recorded step that
 * begins with the rows that are here. TEST_CASES says how many; the seed makes them again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "device/device.h"
#include "harness/test.h"
#include "op/core/kernel.h"
#include "tessera/tessera.h"

enum { WEIGHTS = 3, RESULTS = 2 * WEIGHTS + 2, TEXT = 256 };

typedef enum form { LINEAR, LIST, SCATTER, MATMUL, EINSUM, FORMS } form;

typedef struct trial {
    ts_mesh *mesh;
    form form;
    ts_dtype dtype;
    ts_shape x;            /* the last dim is summed */
    int32_t rows, weights; /* the dim that is cut */
    int64_t columns;
    bool bias, turned, lends, first; /* first: x is gathered by a call of its own */
    uint64_t seed;
    char text[TEXT];
} trial;

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    uint64_t h = *(const uint64_t *)context;
    for (int i = 0; i < 4; i++)
        h = (h ^ (uint64_t)global[i]) * 0x9E3779B97F4A7C15u + 0x1234567u;
    *(float *)element = (float)(h >> 40) / 8388608.0f - 1.0f;
    return TS_OK;
}

static ts_tensor *numbers(const trial *c, const char *place, ts_shape shape, uint64_t salt)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F32 };
    uint64_t index[4] = { c->seed * 16 + salt, 0, 0, 0 };
    ts_tensor *x = ts_from_function(number_at, index, ts_sharding_get(c->mesh, place), meta);
    return c->dtype == TS_DTYPE_F32 ? x : ts_cast(x, c->dtype);
}

static void place_of(char *out, int32_t dim)
{
    (void)snprintf(out, 16, "tp:S(%u)", (unsigned)dim % 10);
}

/* ---- what is drawn --------------------------------------------------------------------------- */

/* As many rows as are a few blocks of 32, and enough to compute for each, so that most can be cut;
 * weights are larger than x, or they would move. */
static void draw_rows(test *t, trial *c)
{
    static const int64_t behind[] = { 1, 1, 4, 8, 16, 32 };
    int64_t inner = 1, n = t->count, blocks = 1 + n / 2 + test_random_below(t, 2 * n);
    int32_t before = (int32_t)test_random_below(t, 2);
    c->x.ndim = 0;
    for (int32_t i = 0; i < before; i++)
        c->x.extent[c->x.ndim++] = 1 + test_random_below(t, 2);
    c->rows = c->x.ndim++;
    if (test_random_below(t, 2)) inner = behind[test_random_below(t, 6)];
    if (inner > 1) c->x.extent[c->x.ndim++] = inner;
    c->x.extent[c->rows] = 32 / inner * blocks;
    if (test_random_below(t, 4) == 0) c->x.extent[c->rows] -= test_random_below(t, 32 / inner);
    bool scatters = c->form == SCATTER;
    c->x.extent[c->x.ndim++] =
        (scatters ? n : 1) * (120 + test_random_below(t, 80)) + test_random_below(t, 2);
    c->columns = (scatters ? 1 : n) * (290 + test_random_below(t, 100)) + test_random_below(t, 2);
}

static trial draw(test *t, ts_mesh *mesh)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16,
                                       TS_DTYPE_F16 };
    trial c = { .mesh = mesh, .form = (form)test_random_below(t, FORMS), .weights = 1 };
    c.dtype = dtypes[test_random_below(t, 5)];
    c.seed = (uint64_t)test_random_below(t, 1 << 20);
    draw_rows(t, &c);
    if (c.form == LIST) c.weights = 2 + (int32_t)test_random_below(t, 2);
    c.bias = test_random_below(t, 2);
    c.turned = test_random_below(t, 3) == 0;
    c.lends = test_random_below(t, 2);
    c.first = c.form != SCATTER && test_random_below(t, 3) == 0;
    char shape[64] = "";
    for (int32_t i = 0; i < c.x.ndim; i++)
        (void)snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%lld ",
                       (long long)c.x.extent[i]);
    (void)snprintf(c.text, sizeof c.text,
                   "form %d of %s, %srows %d, %lld columns, %d weights, bias %d, turned %d, lends "
                   "%d, first %d, seed %llu",
                   (int)c.form, ts_dtype_name(c.dtype), shape, c.rows, (long long)c.columns,
                   c.weights, c.bias, c.turned, c.lends, c.first, (unsigned long long)c.seed);
    return c;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct answer {
    ts_tensor *out[RESULTS];
    int32_t count;
} answer;

/* As it lies: [columns, summed] or, turned, [summed, columns]. */
static ts_tensor *weight_of(const trial *c, uint64_t salt)
{
    bool summed = c->form == SCATTER, turned = c->turned;
    int64_t k = c->x.extent[c->x.ndim - 1];
    ts_shape shape = turned ? TS_SHAPE(k, c->columns) : TS_SHAPE(c->columns, k);
    return numbers(c, summed == turned ? "tp:S(0)" : "tp:S(1)", shape, salt);
}

static void multiply(const trial *c, ts_tensor *x, ts_tensor *const *w, ts_tensor *bias,
                     ts_tensor **y)
{
    ts_tensor *seen[WEIGHTS];
    bool product = c->form == MATMUL;
    for (int32_t i = 0; i < c->weights; i++)
        seen[i] = c->turned != product ? ts_transpose(w[i], 0, 1) : w[i];
    switch (c->form) {
    case LIST:
        (void)ts_linear_list(x, seen, c->weights, y);
        return;
    case SCATTER:
        y[0] = ts_linear_scatter(x, seen[0], bias, c->rows);
        return;
    case MATMUL:
        y[0] = ts_matmul(x, seen[0]);
        return;
    case EINSUM:
        y[0] = ts_einsum(c->x.ndim == 2   ? "ak,nk->an"
                         : c->x.ndim == 3 ? "abk,nk->abn"
                                          : "abck,nk->abcn",
                         x, seen[0]);
        return;
    case LINEAR:
    case FORMS:
        break;
    }
    y[0] = ts_linear(x, seen[0], bias);
}

static ts_shape shape_of_result(const trial *c)
{
    ts_shape shape = c->x;
    shape.extent[shape.ndim - 1] = c->columns;
    return shape;
}

/* Results, then gradients of x, of the weights, and of the bias. */
static void run(test *t, const trial *c, int32_t algorithm, answer *a)
{
    bool scatters = c->form == SCATTER;
    char rows[16], last[16];
    place_of(rows, c->rows);
    place_of(last, c->x.ndim - 1);
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .product = algorithm));
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(numbers(c, scatters ? last : rows, c->x, 1)), *bias = NULL;
    ts_tensor *w[WEIGHTS], *y[WEIGHTS] = { NULL }, *loss = NULL;
    for (int32_t i = 0; i < c->weights; i++)
        w[i] = ts_watch(weight_of(c, 2 + (uint64_t)i));
    if (c->bias && (scatters || c->form == LINEAR))
        bias = ts_watch(numbers(c, scatters ? "R" : "tp:S(0)", TS_SHAPE(c->columns), 9));
    multiply(c, c->first ? ts_redistribute(ts_scale(x, 2.0), "R") : x, w, bias, y);
    for (int32_t i = 0; i < c->weights; i++) {
        ts_tensor *d = numbers(c, scatters ? rows : last, shape_of_result(c), 12);
        ts_tensor *sum = ts_sum(ts_mul(y[i], d), NULL, 0, 0);
        loss = loss ? ts_add(loss, sum) : sum;
        a->out[a->count++] = ts_scope_pass(scope, ts_clone(y[i]));
    }
    TEST_OK(t, ts_backward(loss, NULL));
    a->out[a->count++] = ts_scope_pass(scope, ts_clone(ts_tensor_grad(x)));
    for (int32_t i = 0; i < c->weights; i++)
        a->out[a->count++] = ts_scope_pass(scope, ts_clone(ts_tensor_grad(w[i])));
    if (bias) a->out[a->count++] = ts_scope_pass(scope, ts_clone(ts_tensor_grad(bias)));
    ts_scope_close(scope);
}

static void same(test *t, const trial *c, ts_tensor *a, ts_tensor *b, int32_t number)
{
    int equal = 0;
    TEST_SAY(t, a && b && ts_tensor_layout(a) == ts_tensor_layout(b),
             "result %d lies elsewhere; %s", number, c->text);
    TEST_OK(t, ts_equal(a, b, &equal));
    TEST_SAY(t, equal, "result %d has other bits; %s", number, c->text);
}

/* ---- recorded -------------------------------------------------------------------------------- */

typedef struct again {
    const trial *c;
    test *t;
    ts_tensor *x, *w[WEIGHTS], *y[WEIGHTS];
    int32_t algorithm;
} again;

static ts_status gather_and_multiply(void *context)
{
    const again *a = context;
    ts_scope scope =
        ts_scope_open_with(a->t->me, TS_OPTIONS(ts_scope_options, .product = a->algorithm));
    ts_tensor *x = ts_scale(a->x, 2.0), *y[WEIGHTS] = { NULL };
    if (a->c->first) x = ts_redistribute(x, "R");
    multiply(a->c, x, a->w, NULL, y);
    ts_status status = ts_rank_status(a->t->me);
    for (int32_t i = 0; i < a->c->weights && status == TS_OK; i++)
        status = ts_tensor_write(a->y[i], ts_scale(y[i], 0.5));
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static void order_anew(test *t, ts_step *step)
{
    ts_program *program = NULL, *better = NULL;
    ts_reorder_options options;
    ts_reorder_options_init(&options);
    options.memory_bytes_max = (int64_t)1 << 40;
    options.tries = 20;
    TEST_OK(t, ts_step_program(step, &program));
    TEST_OK(t, ts_program_reorder(program, &options, NULL, NULL, &better));
    TEST_OK(t, ts_step_reorder(step, better, (int64_t)1 << 40, NULL));
    ts_program_destroy(better);
    ts_program_destroy(program);
}

/* Is it cut into more pieces of work, or other operations, than the whole product? */
static bool is_other_work(test *t, const ts_step *step, again *whole)
{
    ts_step_summary a = TS_INIT(ts_step_summary), b = TS_INIT(ts_step_summary);
    ts_step *other = ts_step_record(t->me, gather_and_multiply, whole);
    if (!other) return false;
    TEST_OK(t, ts_step_summarise(step, &a));
    TEST_OK(t, ts_step_summarise(other, &b));
    ts_step_destroy(other);
    return a.works != b.works || a.actions != b.actions;
}

/* Chunks of a recorded step, in two orders, beside the whole product of the same numbers. Returns
 * whether there were any. */
static bool run_again(test *t, const trial *c)
{
    bool scatters = c->form == SCATTER;
    char place[16];
    place_of(place, scatters ? c->x.ndim - 1 : c->rows);
    again chunks = { .c = c, .t = t, .algorithm = TS_PRODUCT_CHUNKS }, whole = chunks;
    chunks.x = numbers(c, place, c->x, 1);
    whole.x = numbers(c, place, c->x, 1);
    whole.algorithm = TS_PRODUCT_WHOLE;
    for (int32_t i = 0; i < c->weights; i++) {
        chunks.w[i] = whole.w[i] = weight_of(c, 2 + (uint64_t)i);
        chunks.y[i] = ts_variable(t->me);
        whole.y[i] = ts_variable(t->me);
    }
    ts_step *step = ts_step_record(t->me, gather_and_multiply, &chunks);
    TEST_SAY(t, step != NULL, "%s; %s", step ? "" : ts_rank_error(t->me)->text, c->text);
    for (uint64_t n = 0; step && n < 4; n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tensor *next = numbers(c, place, c->x, 20 + n);
        if (n == 2) order_anew(t, step);
        TEST_OK(t, ts_step_input(step, chunks.x, next));
        TEST_OK(t, ts_step_replay(step));
        ts_list to = { &whole.x, 1 }, by = { &next, 1 };
        TEST_OK(t, ts_foreach_copy(to, by));
        TEST_OK(t, gather_and_multiply(&whole));
        for (int32_t i = 0; i < c->weights; i++)
            same(t, c, chunks.y[i], whole.y[i], i);
        ts_scope_close(scope);
    }
    bool cut = step && is_other_work(t, step, &whole);
    ts_step_destroy(step);
    for (int32_t i = 0; i < c->weights; i++) {
        ts_tensor_release(chunks.y[i]);
        ts_tensor_release(whole.y[i]);
    }
    return cut;
}

static bool try_one(test *t, ts_mesh *mesh)
{
    bool cut = false;
    trial c = draw(t, mesh);
    answer whole = { .count = 0 }, chunks = { .count = 0 };
    ts_scope scope = ts_scope_open(t->me, "compare");
    if (getenv("TEST_TALK") && t->index == 0) fprintf(stderr, "  %s\n", c.text);
    tsi_comm_lend_nothing(t->me, !c.lends); /* rows are read in place, or travel */
    run(t, &c, TS_PRODUCT_WHOLE, &whole);
    run(t, &c, TS_PRODUCT_CHUNKS, &chunks);
    TEST_EQ(t, whole.count, chunks.count);
    for (int32_t i = 0; i < whole.count; i++)
        same(t, &c, whole.out[i], chunks.out[i], i);
    if (tsi_rank_device_of(t->me)->device->host_readable) cut = run_again(t, &c);
    ts_status status = ts_rank_status(t->me);
    TEST_SAY(t, status == TS_OK, "%s; %s", status ? ts_rank_error(t->me)->text : "", c.text);
    ts_scope_close(scope);
    return cut;
}

TS_TEST_RANKS(chunks_of_any_size_have_the_bits_of_the_whole, 2, 3, 4)
{
    const char *said = getenv("TEST_CASES");
    int64_t cases = said ? atoll(said) : 5, cut = 0;
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    for (int64_t i = 0; i < cases && ts_rank_status(t->me) == TS_OK; i++)
        cut += try_one(t, mesh);
    const tsi_device *device = tsi_rank_device_of(t->me)->device;
    bool can = device->host_readable && tsi_kernel_rows_alone(device, TS_DTYPE_F32);
    TEST_SAY(t, cut > 0 || cases < 30 || !can, "%lld of %lld products were cut", (long long)cut,
             (long long)cases);
    if (getenv("TEST_TALK") && t->index == 0) fprintf(stderr, "  cut %lld\n", (long long)cut);
    ts_mesh_release(mesh);
}
