/* SPDX-License-Identifier: Apache-2.0 */
/* op_chunks.c - products that move and multiply chunk by chunk: bits, bytes and layouts of the same
 * calls run whole, forward and backward, where memory is read in place and where rows travel. */
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "bytes_util.h"
#include "comm/window.h"
#include "device/device.h"
#include "harness/test.h"
#include "op/core/kernel.h"
#include "tessera/tessera.h"

/* Pieces of 64 rows by 128 columns of 160 numbers are of 2.6 million operations. */
enum { B = 2, ROWS = 64, WIDE = 128, K = 160, RESULTS = 8 };

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    uint64_t h = *(const uint64_t *)context;
    for (int i = 0; i < 3; i++)
        h = (h ^ (uint64_t)global[i]) * 0x9E3779B97F4A7C15u + 0x1234567u;
    *(float *)element = (float)(h >> 40) / 8388608.0f - 1.0f;
    return TS_OK;
}

static ts_tensor *numbers(ts_mesh *mesh, const char *place, ts_shape shape, uint64_t seed,
                          ts_dtype dtype)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F32 };
    uint64_t index[3] = { seed, 0, 0 };
    ts_tensor *x = ts_from_function(number_at, index, ts_sharding_get(mesh, place), meta);
    return dtype == TS_DTYPE_F32 ? x : ts_cast(x, dtype);
}

typedef struct setting {
    ts_mesh *mesh;
    int64_t n;
    ts_dtype dtype;
    int32_t weights; /* of a list; 1: linear */
    bool scatters; /* x is cut along what is summed, and the result along rows; else x is cut along
                    * rows, and the result along columns */
} setting;

typedef struct answer { /* results, then gradients of x and of the weights */
    ts_tensor *out[8];
    int count;
    int64_t forward, backward; /* bytes this rank received */
    char layout[64];
} answer;

static void keep(answer *a, ts_scope scope, ts_tensor *x)
{
    a->out[a->count++] = ts_scope_pass(scope, ts_clone(x));
}

static void multiply(const setting *s, ts_tensor *x, ts_tensor *const *weight, ts_tensor **y)
{
    if (s->scatters)
        y[0] = ts_linear_scatter(x, weight[0], NULL, 1);
    else if (s->weights == 1)
        y[0] = ts_linear(x, weight[0], NULL);
    else
        (void)ts_linear_list(x, weight, s->weights, y);
}

static void run(test *t, const setting *s, int32_t algorithm, answer *a)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .product = algorithm));
    ts_tape_begin(t->me);
    const char *x_place = s->scatters ? "tp:S(2)" : "tp:S(1)";
    int64_t k = s->scatters ? WIDE * s->n : K, columns = s->scatters ? K : WIDE * s->n;
    if (!s->scatters && s->weights == 1) columns *= 2; /* or the weight moves, as it is smaller */
    ts_tensor *x = ts_watch(numbers(s->mesh, x_place, TS_SHAPE(B, ROWS * s->n, k), 1, s->dtype));
    ts_tensor *weight[3], *y[3] = { NULL }, *loss = NULL;
    for (int32_t i = 0; i < s->weights; i++)
        weight[i] = ts_watch(numbers(s->mesh, s->scatters ? "tp:S(1)" : "tp:S(0)",
                                     TS_SHAPE(columns, k), 2 + (uint64_t)i, s->dtype));
    uint64_t since = ts_rank_event(t->me);
    multiply(s, x, weight, y);
    for (int32_t i = 0; i < s->weights; i++)
        TEST_OK(t, ts_tensor_wait(y[i]));
    a->forward = received(t->me, since);
    (void)ts_sharding_text(ts_layout_sharding(ts_tensor_layout(y[0])), a->layout, 64);
    for (int32_t i = 0; i < s->weights; i++) {
        ts_tensor *d = numbers(s->mesh, s->scatters ? "tp:S(1)" : "tp:S(2)",
                               TS_SHAPE(B, ROWS * s->n, columns), 7, s->dtype);
        ts_tensor *sum = ts_sum(ts_mul(y[i], d), NULL, 0, 0);
        loss = loss ? ts_add(loss, sum) : sum;
        keep(a, scope, y[i]);
    }
    since = ts_rank_event(t->me);
    TEST_OK(t, ts_backward(loss, NULL));
    keep(a, scope, ts_tensor_grad(x));
    for (int32_t i = 0; i < s->weights; i++)
        keep(a, scope, ts_tensor_grad(weight[i]));
    a->backward = received(t->me, since);
    ts_scope_close(scope);
}

/* Ranks of several processes agree on a window once, in a few bytes: before others are counted. */
static void make_window(test *t, ts_mesh *mesh)
{
    tsi_window *window = NULL;
    ts_group *group = ts_mesh_group(mesh, "tp");
    if (!tsi_group_has_window(group)) return;
    TEST_OK(t, tsi_group_window(group, 4 << 20, &window));
    TEST_CHECK(t, window != NULL); /* they are on one node here */
}

static void compare(test *t, const setting *s)
{
    ts_scope scope = ts_scope_open(t->me, "compare");
    answer whole = { .count = 0 }, chunks = { .count = 0 };
    run(t, s, TS_PRODUCT_WHOLE, &whole);
    run(t, s, TS_PRODUCT_CHUNKS, &chunks);
    TEST_TEXT(t, chunks.layout, s->scatters ? "S(1)" : "S(2)");
    TEST_TEXT(t, chunks.layout, whole.layout);
    TEST_EQ(t, chunks.forward, whole.forward);
    TEST_EQ(t, chunks.backward, whole.backward);
    TEST_CHECK(t, whole.forward > 0);
    for (int i = 0; i < whole.count; i++) {
        int same = 0;
        TEST_OK(t, ts_equal(chunks.out[i], whole.out[i], &same));
        TEST_SAY(t, same, "result %d of %d weights, %s, %s: other bits", i, s->weights,
                 ts_dtype_name(s->dtype), s->scatters ? "scattered" : "gathered");
    }
    ts_scope_close(scope);
}

TS_TEST_RANKS(chunks_have_the_bits_of_the_whole, 2, 3, 4)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16 };
    char text[16];
    (void)snprintf(text, sizeof text, "tp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    for (int number = 0; number < 16; number++) {
        setting s = { .mesh = mesh, .n = t->count, .dtype = dtypes[number % 3] };
        s.weights = number % 4 ? number % 4 : 1;
        s.scatters = number % 4 == 0;
        tsi_comm_lend_nothing(t->me, number & 8); /* rows are read in place, or travel */
        if (number == 0) make_window(t, mesh);
        compare(t, &s);
    }
    ts_mesh_release(mesh);
}

/* x is gathered by a call of its own, and multiplied while it is on its way; its gradient goes back
 * while those of the weights are computed. */
static void gather_first(test *t, const setting *s, int32_t algorithm, answer *a)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .product = algorithm));
    ts_tape_begin(t->me);
    ts_shape shape = TS_SHAPE(B, ROWS * s->n, K), wide = TS_SHAPE(WIDE * s->n, K);
    ts_tensor *x = ts_watch(numbers(s->mesh, "tp:S(1)", shape, 1, s->dtype));
    ts_tensor *weight[3], *y[3] = { NULL }, *loss = NULL;
    for (int32_t i = 0; i < s->weights; i++)
        weight[i] = ts_watch(numbers(s->mesh, "tp:S(0)", wide, 2 + (uint64_t)i, s->dtype));
    uint64_t since = ts_rank_event(t->me);
    ts_tensor *all = ts_redistribute(ts_scale(x, 2.0), "R");
    multiply(s, all, weight, y);
    for (int32_t i = 0; i < s->weights; i++) {
        ts_shape out = TS_SHAPE(B, ROWS * s->n, WIDE * s->n);
        ts_tensor *d = numbers(s->mesh, "tp:S(2)", out, 7, s->dtype);
        ts_tensor *sum = ts_sum(ts_mul(y[i], d), NULL, 0, 0);
        loss = loss ? ts_add(loss, sum) : sum;
        keep(a, scope, y[i]);
    }
    TEST_OK(t, ts_backward(loss, NULL));
    a->forward = received(t->me, since);
    keep(a, scope, ts_tensor_grad(x));
    for (int32_t i = 0; i < s->weights; i++)
        keep(a, scope, ts_tensor_grad(weight[i]));
    ts_scope_close(scope);
}

/* One rank fails where the others are in a product: after recovering, nobody reads what was shown
 * before. */
TS_TEST_RANKS(chunks_after_a_recovery, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    setting s = { .mesh = mesh, .n = t->count, .dtype = TS_DTYPE_F32, .weights = 1 };
    for (int round = 0; round < 4; round++) {
        ts_scope scope =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .product = TS_PRODUCT_CHUNKS));
        s.scatters = round & 1;
        ts_tensor *x = numbers(mesh, s.scatters ? "tp:S(2)" : "tp:S(1)",
                               TS_SHAPE(B, ROWS * s.n, WIDE * s.n), 3, s.dtype);
        ts_tensor *weight = numbers(mesh, s.scatters ? "tp:S(1)" : "tp:S(0)",
                                    TS_SHAPE(2 * WIDE * s.n, WIDE * s.n), 4, s.dtype);
        ts_tensor *y = NULL;
        (void)ts_group_barrier(ts_group_world(t->me), NULL); /* may end with that failure */
        if (ts_rank_index(t->me) == 0)
            TEST_STATUS(t, ts_rank_fail(t->me, TS_ERR_STATE, "no product"), TS_ERR_STATE);
        else
            multiply(&s, x, &weight, &y);
        TEST_CHECK(t, ts_tensor_wait(y) != TS_OK || ts_rank_status(t->me) != TS_OK || !y);
        (void)ts_scope_close(scope);
        TEST_OK(t, ts_rank_recover(t->me));
        make_window(t, mesh);
        compare(t, &s);
    }
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(chunks_of_what_is_on_its_way, 2, 3)
{
    char text[16];
    (void)snprintf(text, sizeof text, "tp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    for (int number = 0; number < 6; number++) {
        ts_scope scope = ts_scope_open(t->me, "compare");
        setting s = { .mesh = mesh, .n = t->count, .weights = 1 + number % 3 };
        s.dtype = number > 2 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
        answer whole = { .count = 0 }, chunks = { .count = 0 };
        gather_first(t, &s, TS_PRODUCT_WHOLE, &whole);
        gather_first(t, &s, TS_PRODUCT_CHUNKS, &chunks);
        TEST_EQ(t, chunks.forward, whole.forward);
        for (int i = 0; i < whole.count; i++) {
            int same = 0;
            TEST_OK(t, ts_equal(chunks.out[i], whole.out[i], &same));
            TEST_SAY(t, same, "result %d of %d weights: other bits", i, s.weights);
        }
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
}

typedef struct again { /* a step: x is gathered and multiplied, which leaves y */
    setting is;
    ts_rank *me;
    ts_tensor *x, *weight[3], *y[3];
    int32_t algorithm;
} again;

static ts_status gather_and_multiply(void *context)
{
    const again *a = context;
    ts_scope scope =
        ts_scope_open_with(a->me, TS_OPTIONS(ts_scope_options, .product = a->algorithm));
    ts_tensor *y[3] = { NULL }, *half = ts_scale(a->x, 0.5), *all = ts_redistribute(half, "R");
    ts_tensor_drop(half);
    multiply(&a->is, all, a->weight, y);
    ts_status status = TS_OK;
    for (int32_t i = 0; i < a->is.weights && status == TS_OK; i++)
        status = ts_tensor_write(a->y[i], ts_scale(y[i], 2.0));
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static void compare_again(test *t, again *a, ts_step *step, uint64_t seed)
{
    ts_scope scope = ts_scope_open(t->me, "compare");
    ts_tensor *y[3];
    ts_shape shape = TS_SHAPE(B, ROWS * a->is.n, K);
    TEST_OK(t, ts_step_input(step, a->x, numbers(a->is.mesh, "tp:S(1)", shape, seed, a->is.dtype)));
    TEST_OK(t, ts_step_replay(step));
    ts_tensor *all = ts_redistribute(ts_scale(a->x, 0.5), "R");
    TEST_OK(t, ts_tensor_wait(all)); /* so the products are whole */
    multiply(&a->is, all, a->weight, y);
    for (int32_t i = 0; i < a->is.weights; i++) {
        int same = 0;
        TEST_OK(t, ts_equal(a->y[i], ts_scale(y[i], 2.0), &same));
        TEST_SAY(t, same, "result %d of %d weights: other bits", i, a->is.weights);
    }
    ts_scope_close(scope);
}

static void reorder_all(test *t, ts_step *step)
{
    ts_program *program = NULL, *better = NULL;
    ts_reorder_options options;
    ts_reorder_options_init(&options);
    options.memory_bytes_max = (int64_t)1 << 40;
    TEST_OK(t, ts_step_time(step));
    TEST_OK(t, ts_step_program(step, &program));
    TEST_OK(t, ts_program_reorder(program, &options, NULL, NULL, &better));
    TEST_OK(t, ts_step_reorder(step, better, (int64_t)1 << 40, NULL));
    ts_program_destroy(better);
    ts_program_destroy(program);
}

/* In the recorded order, then in another. Returns how many pieces of work there are. */
static int64_t run_again(test *t, again *a, int32_t algorithm)
{
    ts_step_summary is = TS_INIT(ts_step_summary);
    a->algorithm = algorithm;
    ts_step *step = ts_step_record(t->me, gather_and_multiply, a);
    TEST_SAY(t, step != NULL, "%s", step ? "" : ts_rank_error(t->me)->text);
    TEST_OK(t, ts_step_summarise(step, &is));
    for (uint64_t seed = 0; seed < 4; seed++) {
        if (seed == 2) reorder_all(t, step);
        compare_again(t, a, step, seed);
    }
    ts_step_destroy(step);
    return is.works;
}

/* A step that is recorded has the rows that are here as work of their own, before the wait: one
 * piece more than with the whole product, two where rows come from both sides. */
TS_TEST_RANKS(chunks_of_what_is_on_its_way_run_again, 2, 3)
{
    if (!tsi_rank_device_of(t->me)->device->host_readable) return;
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    bool between = t->index > 0 && t->index + 1 < t->count;
    for (int number = 0; number < 4; number++) {
        ts_scope scope = ts_scope_open(t->me, "again");
        setting s = { .mesh = mesh, .n = t->count, .weights = 1 + number % 3 };
        s.dtype = number > 1 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
        again a = { .is = s, .me = t->me };
        a.x = numbers(mesh, "tp:S(1)", TS_SHAPE(B, ROWS * s.n, K), 1, s.dtype);
        for (int32_t i = 0; i < s.weights; i++) {
            a.weight[i] =
                numbers(mesh, "tp:S(0)", TS_SHAPE(WIDE * s.n, K), 2 + (uint64_t)i, s.dtype);
            a.y[i] = ts_variable(t->me);
        }
        int64_t whole = run_again(t, &a, TS_PRODUCT_WHOLE);
        int64_t chunks = run_again(t, &a, TS_PRODUCT_CHUNKS);
        if (tsi_kernel_rows_alone(tsi_rank_device_of(t->me)->device, s.dtype))
            TEST_EQ(t, chunks, whole + (between ? 2 : 1));
        for (int32_t i = 0; i < s.weights; i++)
            ts_tensor_release(a.y[i]);
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
}

/* The algorithm that a call takes, and its bytes. */
static int32_t taken(test *t, ts_mesh *mesh, const char *attributes, const ts_layout *const *in,
                     int64_t *bytes)
{
    ts_op_query *query = NULL;
    ts_op_query_options o = TS_INIT(ts_op_query_options);
    ts_op_query_summary summary = TS_INIT(ts_op_query_summary);
    o.op = "linear";
    o.attributes = attributes;
    o.mesh = mesh;
    o.in = in;
    o.input_count = 2;
    TEST_OK(t, ts_op_query_create(&o, &query));
    ts_op_query_summarise(query, &summary);
    *bytes = summary.bytes_received;
    ts_op_query_destroy(query);
    return summary.algorithm;
}

/* Devices whose kernels do not say that rows computed alone have the same bits have whole products
 * alone, and so have hosts whose BLAS gives them others. */
static bool has_chunks(const test *t)
{
    return tsi_kernel_rows_alone(tsi_rank_device_of(t->me)->device, TS_DTYPE_F32);
}

/* Large products are cut, small ones are not, and whoever says so is heard. */
TS_TEST_RANKS(chunks_are_chosen_by_cost, 2)
{
    if (!has_chunks(t)) return;
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=2");
    for (int scale = 0; scale < 2; scale++) {
        int64_t rows = scale ? 256 : 4, wide = scale ? 768 : 8, bytes, other;
        ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(rows, wide), "S(0)");
        ts_tensor *xk = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(rows, 4 * wide), "S(1)");
        ts_tensor *w = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(4 * wide, wide), "S(0)");
        ts_tensor *wk = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(wide, 4 * wide), "S(1)");
        const ts_layout *gather[] = { ts_tensor_layout(x), ts_tensor_layout(w) };
        const ts_layout *scatter[] = { ts_tensor_layout(xk), ts_tensor_layout(wk) };
        TEST_EQ(t, taken(t, mesh, "{}", gather, &bytes), scale ? 2 : 0);
        TEST_EQ(t, taken(t, mesh, "{\"algorithm\": \"whole\"}", gather, &other), 0);
        TEST_EQ(t, bytes, other);
        TEST_EQ(t, taken(t, mesh, "{\"scatter\": 0}", scatter, &bytes), scale ? 2 : 1);
        TEST_EQ(t, taken(t, mesh, "{\"scatter\": 0, \"algorithm\": \"whole\"}", scatter, &other),
                1);
        TEST_EQ(t, bytes, other);
        TEST_EQ(t, bytes, rows * wide * 4);
    }
    ts_mesh_release(mesh);
}

/* A product is cut where what it hides takes longer than a call more: the faster a rank multiplies,
 * the less that is. */
TS_TEST_RANKS(chunks_are_weighed_by_the_rate_of_products, 2)
{
    if (!has_chunks(t)) return;
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=2");
    ts_topology before, other;
    TEST_OK(t, ts_topology_of(ts_rank_world(t->me), &before));
    ts_tensor *xk = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(256, 768), "S(1)");
    ts_tensor *wk = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(256, 768), "S(1)");
    const ts_layout *in[] = { ts_tensor_layout(xk), ts_tensor_layout(wk) };
    for (int fast = 0; fast < 2; fast++) {
        int64_t bytes;
        other = before;
        other.product_gflops = fast ? 1e6 : 1;
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        if (t->index == 0 || !tsi_group_lends(ts_group_world(t->me)))
            TEST_OK(t, ts_topology_set(ts_rank_world(t->me), &other));
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        TEST_EQ(t, taken(t, mesh, "{\"scatter\": 0}", in, &bytes), fast ? 1 : 2);
    }
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    if (t->index == 0 || !tsi_group_lends(ts_group_world(t->me)))
        TEST_OK(t, ts_topology_set(ts_rank_world(t->me), &before));
    ts_mesh_release(mesh);
}

typedef struct on_device {
    test *t;
    int64_t ranks;
} on_device;

static ts_status compare_there(ts_rank *me, void *argument)
{
    const on_device *d = argument;
    test mine = *d->t;
    mine.me = me;
    mine.index = ts_rank_index(me);
    mine.count = d->ranks;
    char text[16];
    (void)snprintf(text, sizeof text, "tp=%d", (int)d->ranks);
    ts_mesh *mesh = ts_mesh_create(me, text);
    int64_t bytes, rows = 64 * d->ranks;
    ts_tensor *xk = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(rows, 768), "S(1)");
    ts_tensor *wk = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(768, 768), "S(1)");
    const ts_layout *in[] = { ts_tensor_layout(xk), ts_tensor_layout(wk) };
    if (has_chunks(&mine))
        TEST_EQ(&mine,
                taken(&mine, mesh, "{\"scatter\": 0, \"algorithm\": \"chunks\"}", in, &bytes), 2);
    for (int number = 0; number < 4; number++) {
        setting s = { .mesh = mesh, .n = d->ranks, .dtype = TS_DTYPE_F32 };
        s.weights = number ? number : 1;
        s.scatters = number == 0;
        compare(&mine, &s);
    }
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

/* Behind queues rows travel by exchanges, a chunk ahead of the products. */
TS_TEST(chunks_on_a_device)
{
    for (int64_t ranks = 2; ranks <= 3; ranks++) {
        char error[1024] = "";
        on_device d = { t, ranks };
        ts_world_options options = TS_INIT(ts_world_options);
        options.engine = "threads";
        options.device = "queue";
        options.rank_count = ranks;
        ts_status status = ts_launch_with(&options, compare_there, &d, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "%lld ranks: %s", (long long)ranks, error);
    }
}

/* Whoever writes x after the call waits for those who read it where it lies. */
TS_TEST_RANKS(chunks_are_read_before_x_is_written, 2, 3)
{
    char text[16];
    (void)snprintf(text, sizeof text, "tp=%d", (int)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, text);
    ts_scope scope =
        ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .product = TS_PRODUCT_CHUNKS));
    ts_shape shape = TS_SHAPE(ROWS * t->count, K);
    ts_tensor *w = numbers(mesh, "tp:S(0)", TS_SHAPE(WIDE * t->count, K), 2, TS_DTYPE_F32);
    ts_tensor *want = ts_linear(numbers(mesh, "R", shape, 1, TS_DTYPE_F32), w, NULL);
    for (int turn = 0; turn < 8; turn++) {
        ts_tensor *x = numbers(mesh, "tp:S(0)", shape, 1, TS_DTYPE_F32);
        ts_tensor *y = ts_linear(x, w, NULL), *written[1] = { NULL };
        int same = 0;
        TEST_OK(t, ts_op_call(ts_op_find(t->me, "neg_"), &x, 1, NULL, 0, written));
        TEST_OK(t, ts_equal(y, want, &same));
        TEST_CHECK(t, same);
    }
    ts_scope_close(scope);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(chunks_of_no_rows, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=2");
    ts_tensor *w = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(64, 8), "S(1)");
    ts_tensor *y =
        ts_linear_scatter(ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(0, 8), "S(1)"), w, NULL, 0);
    TEST_CHECK(t, y && ts_tensor_shape(y).extent[0] == 0 && ts_tensor_shape(y).extent[1] == 64);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(chunks_that_are_forbidden, 2)
{
    if (!has_chunks(t)) return;
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=2");
    ts_scope_options o = TS_INIT(ts_scope_options);
    o.catches = 1;
    o.product_forbid = 1u << TS_PRODUCT_WHOLE;
    ts_scope scope = ts_scope_open_with(t->me, &o);
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(4, 8), "S(0)");
    ts_tensor *w = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(64, 8), "S(0)");
    TEST_CHECK(t, ts_linear(x, w, NULL) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "forbids every algorithm");
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    ts_mesh_release(mesh);
}

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct step_answer {
    double loss;
    ts_tensor *grad[3];
    int64_t bytes, peak;
} step_answer;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = (global[0] * 31 + global[1] * 7) % 97;
    return TS_OK;
}

/* Loss and some gradients of a step of a small Llama with sequence parallelism. */
static void model_step(test *t, ts_mesh *mesh, int32_t algorithm, int32_t cut, step_answer *a)
{
    static const char *const names[] = { "model.layers.0.self_attn.k_proj.weight",
                                         "model.layers.1.mlp.down_proj.weight",
                                         "model.embed_tokens.weight" };
    ts_model_config c = { .struct_size = sizeof c,
                          .vocab = 97,
                          .hidden = 256,
                          .intermediate = 512,
                          .layers = 3,
                          .heads = 4,
                          .kv_heads = 4,
                          .head_dim = 64,
                          .positions = 128,
                          .norm_epsilon = 1e-5,
                          .init_deviation = 0.05,
                          .rope_theta = 10000 };
    ts_model_options options = TS_INIT(ts_model_options);
    options.plan = "sp";
    options.saves_cut = cut;
    ts_scope outer = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .product = algorithm));
    ts_model *model = ts_model_create(mesh, &c, &options);
    TEST_OK(t, ts_rank_memory_reset(t->me));
    uint64_t since = ts_rank_event(t->me);
    ts_scope scope = ts_scope_open(t->me, "step");
    ts_tape_begin(t->me);
    ts_meta meta = { .shape = TS_SHAPE(2, 128), .dtype = TS_DTYPE_I64 };
    ts_tensor *ids = ts_from_function(token_at, NULL, ts_model_tokens(model), meta);
    ts_tensor *loss = ts_model_loss(model, ids, ids);
    TEST_OK(t, ts_tensor_item(loss, &a->loss));
    TEST_OK(t, ts_backward(loss, NULL));
    ts_scope_close(scope);
    a->bytes = received(t->me, since);
    ts_memory memory = TS_INIT(ts_memory);
    TEST_OK(t, ts_rank_memory(t->me, &memory));
    a->peak = memory.peak;
    for (int i = 0; i < 3; i++) {
        ts_tensor *p = ts_module_find_param(ts_model_module(model), names[i]);
        a->grad[i] = ts_scope_pass(outer, ts_clone(ts_tensor_grad(p)));
    }
    ts_model_destroy(model);
    ts_scope_close(outer);
}

TS_TEST_RANKS(chunks_in_a_model, 2)
{
    ts_scope scope = ts_scope_open(t->me, "compare");
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=2");
    step_answer whole, chunks, cut;
    make_window(t, mesh);
    model_step(t, mesh, TS_PRODUCT_WHOLE, 0, &whole);
    model_step(t, mesh, TS_PRODUCT_CHUNKS, 0, &chunks);
    model_step(t, mesh, TS_PRODUCT_CHUNKS, 1, &cut);
    TEST_CHECK(t, whole.loss == chunks.loss && whole.loss == cut.loss);
    for (int i = 0; i < 3; i++) {
        int same = 0, too = 0;
        TEST_OK(t, ts_equal(whole.grad[i], chunks.grad[i], &same));
        TEST_OK(t, ts_equal(whole.grad[i], cut.grad[i], &too));
        TEST_SAY(t, same && too, "gradient %d: other bits: %d %d", i, same, too);
    }
    TEST_EQ(t, whole.bytes, chunks.bytes);
    /* Two gathers more in each layer, of half a batch for each rank. */
    TEST_EQ(t, cut.bytes, chunks.bytes + (int64_t)3 * 2 * (2 * 128 / 2) * 256 * 4);
    TEST_CHECK(t, cut.peak < chunks.peak);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
}
