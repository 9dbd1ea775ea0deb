/* SPDX-License-Identifier: Apache-2.0 */
/* op_linear_loss.c - the loss of logits that never exist as a whole: value and gradients of linear,
 * then cross_entropy, for every size of chunks, cut of rows and dtype; and of models. */
#include <math.h>
#include <string.h>

#include "device/device.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { B = 3, T = 5, C = 4, V = 7 };

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    uint64_t h = *(const uint64_t *)context;
    for (int i = 0; i < 3; i++)
        h = (h ^ (uint64_t)global[i]) * 0x9E3779B97F4A7C15u + 0x1234567u;
    *(double *)element = (double)(h >> 40) / 8388608.0 - 1.0;
    return TS_OK;
}

static ts_status label_at(const int64_t *global, void *element, void *context)
{
    int64_t at = global[0] * T + global[1];
    *(int64_t *)element = at % 4 == 3 ? *(const int64_t *)context : at * 5 % V;
    return TS_OK;
}

typedef struct subject {
    ts_mesh *mesh;
    const char *rows; /* placement of x and labels */
    ts_dtype dtype;
    int64_t ignored;
} subject;

/* From three indices: those of fewer dims are zero. */
static ts_tensor *numbers(const subject *s, const char *place, ts_shape shape, uint64_t seed)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F64 };
    uint64_t context[3] = { seed, 0, 0 };
    ts_tensor *x = ts_from_function(number_at, context, ts_sharding_get(s->mesh, place), meta);
    return ts_cast(x, s->dtype);
}

static ts_tensor *labels_of(const subject *s, const char *place)
{
    ts_meta meta = { .shape = TS_SHAPE(B, T), .dtype = TS_DTYPE_I64 };
    int64_t ignored = s->ignored;
    return ts_from_function(label_at, &ignored, ts_sharding_get(s->mesh, place), meta);
}

typedef struct answer {
    double loss;
    double dx[B * T * C], dw[V * C];
} answer;

static void read_all(test *t, ts_tensor *x, double *to, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    ts_tensor *whole = ts_cast(ts_redistribute(x, "R"), TS_DTYPE_F64);
    array.data = to;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_F64 };
    TEST_OK(t, ts_tensor_read(ts_reshape(whole, TS_SHAPE(count)), &array));
}

/* rows < 0: logits of all rows. */
static answer answer_of(test *t, const subject *s, int64_t rows, int32_t sum)
{
    answer out = { .loss = NAN };
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = numbers(s, s->rows, TS_SHAPE(B, T, C), 1);
    ts_tensor *w = numbers(s, "R", TS_SHAPE(V, C, 1), 2);
    w = ts_reshape(w, TS_SHAPE(V, C));
    ts_tensor *labels = labels_of(s, s->rows);
    x = ts_watch(x);
    w = ts_watch(w);
    ts_tensor *loss = NULL;
    if (rows < 0) {
        ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
        o.ignore_index = s->ignored;
        o.reduction = sum ? TS_LOSS_SUM : TS_LOSS_MEAN;
        loss = ts_cross_entropy_with(ts_linear(x, w, NULL), labels, &o);
    } else {
        ts_linear_cross_entropy_options o = TS_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
        o.ignore_index = s->ignored;
        o.rows = rows;
        o.sum = sum;
        loss = ts_linear_cross_entropy(x, w, labels, &o);
    }
    TEST_OK(t, ts_tensor_item(loss, &out.loss));
    TEST_OK(t, ts_backward(ts_mul_scalar(loss, 3.0), NULL));
    read_all(t, ts_tensor_grad(x), out.dx, B * T * C);
    read_all(t, ts_tensor_grad(w), out.dw, V * C);
    ts_scope_close(scope);
    return out;
}

static double distance(const double *a, const double *b, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++)
        most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

TS_TEST_RANKS(linear_loss_is_that_of_logits, 1, 2, 3, 4)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16 };
    static const double near[] = { 1e-13, 1e-5, 0.15 }; /* bf16: logits are rounded to 1/256 */
    static const char *const places[] = { "R", "S(0)", "S(1)" };
    subject s = { .mesh = ts_mesh_create(t->me, "x=*"), .ignored = -100 };
    for (int p = 0; p < 3; p++)
        for (int d = 0; d < 3; d++)
            for (int32_t sum = 0; sum < 2; sum++) {
                s.rows = places[p];
                s.dtype = dtypes[d];
                s.ignored = sum ? 2 : -100;
                answer want = answer_of(t, &s, -1, sum);
                for (int64_t rows = 0; rows <= B * T + 1; rows++) {
                    answer got = answer_of(t, &s, rows, sum);
                    double far =
                        fmax(fabs(got.loss - want.loss), fmax(distance(got.dx, want.dx, B * T * C),
                                                              distance(got.dw, want.dw, V * C)));
                    TEST_SAY(t, far <= near[d], "%s, %s, %d rows, sum %d: %g", places[p],
                             ts_dtype_name(dtypes[d]), (int)rows, (int)sum, far);
                }
            }
}

/* ---- logits that backward turns into their gradient ------------------------------------------ */

enum { HELD = 1, TWICE = 2, WAYS = 4 }; /* the caller has the logits too; backward runs again */

typedef struct turned {
    double dx[B * T * C], dw[V * C], before[B * T * V], after[B * T * V]; /* the last: of HELD */
    int64_t peak;
} turned;

/* place: of x, of the weight, of labels */
static turned turned_of(test *t, const subject *s, const char *const *place, double smoothing,
                        int way)
{
    turned out = { .peak = 0 };
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(numbers(s, place[0], TS_SHAPE(B, T, C), 1));
    ts_tensor *w = ts_reshape(numbers(s, "R", TS_SHAPE(V, C, 1), 2), TS_SHAPE(V, C));
    w = ts_watch(ts_redistribute(w, place[1]));
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.label_smoothing = smoothing;
    ts_scope inner = ts_scope_open(t->me, NULL);
    ts_tensor *logits = ts_linear(x, w, NULL);
    ts_tensor *loss = ts_cross_entropy_with(logits, labels_of(s, place[2]), &o);
    if (way & HELD) (void)ts_scope_pass(inner, logits);
    loss = ts_scope_leave(inner, loss);
    if (way & HELD) read_all(t, logits, out.before, B * T * V);
    TEST_OK(t, ts_rank_memory_reset(t->me));
    if (way & TWICE) TEST_OK(t, ts_backward(loss, TS_OPTIONS(ts_backward_options, .keep = 1)));
    TEST_OK(t, ts_backward(loss, NULL));
    ts_memory memory = TS_INIT(ts_memory);
    TEST_OK(t, ts_rank_memory(t->me, &memory));
    out.peak = memory.peak;
    read_all(t, ts_tensor_grad(x), out.dx, B * T * C);
    read_all(t, ts_tensor_grad(w), out.dw, V * C);
    if (way & HELD) read_all(t, logits, out.after, B * T * V);
    ts_scope_close(scope);
    return out;
}

static bool same_gradients(const turned *a, const turned *b)
{
    return memcmp(a->dx, b->dx, sizeof a->dx) == 0 && memcmp(a->dw, b->dw, sizeof a->dw) == 0;
}

/* Equal bits whoever holds the logits; who holds them sees them as they were; if nobody does they
 * are no memory more. */
TS_TEST_RANKS(spent_logits_become_their_gradient, 1, 2, 3, 4)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    static const char *const places[][3] = {
        { "R", "R", "R" },    { "S(0)", "R", "S(0)" }, { "S(1)", "R", "S(1)" },
        { "R", "S(0)", "R" }, { "S(0)", "R", "R" },    { "S(2)", "S(1)", "R" }
    }; /* partial logits */
    subject s = { .mesh = ts_mesh_create(t->me, "x=*"), .ignored = -100 };
    for (int p = 0; p < 6; p++)
        for (int d = 0; d < 4; d++)
            for (int smooth = 0; smooth < 2; smooth++) {
                s.dtype = dtypes[d];
                turned got[WAYS];
                for (int way = 0; way < WAYS; way++)
                    got[way] = turned_of(t, &s, places[p], smooth * 0.25, way);
                const char *x = places[p][0], *dtype = ts_dtype_name(s.dtype);
                const turned *held = &got[HELD], *spent = &got[0];
                TEST_SAY(t, same_gradients(spent, held), "%s, %s: other bits", x, dtype);
                TEST_SAY(t, same_gradients(&got[TWICE], &got[TWICE | HELD]),
                         "%s, %s: other bits of two backwards", x, dtype);
                TEST_CHECK(t, memcmp(held->before, held->after, sizeof held->before) == 0);
                TEST_SAY(t, smooth || p == 5 || spent->peak < held->peak,
                         "%s, %s: %lld bytes, held %lld", x, dtype, (long long)spent->peak,
                         (long long)held->peak);
            }
}

static ts_tensor *loss_of(const subject *s, ts_shape x, ts_shape w, ts_shape labels, int64_t label)
{
    ts_tensor *given = ts_full_number(ts_number_int(label), s->mesh, TS_DTYPE_I64, labels, NULL);
    return ts_linear_cross_entropy(ts_ones(s->mesh, s->dtype, x, NULL),
                                   ts_ones(s->mesh, TS_DTYPE_F32, w, NULL), given, NULL);
}

TS_TEST_RANKS(linear_loss_refuses, 1, 2)
{
    static const struct {
        ts_shape x, w, labels;
        int64_t label;
        ts_dtype dtype;
        const char *words;
    } rows[] = {
        { { 2, 0, { 3, 4 } },
          { 2, 0, { 7, 5 } },
          { 1, 0, { 3 } },
          1,
          TS_DTYPE_F32,
          "a weight [V, C]" },
        { { 2, 0, { 3, 4 } }, { 2, 0, { 7, 4 } }, { 1, 0, { 2 } }, 1, TS_DTYPE_F32, "labels [..]" },
        { { 2, 0, { 3, 4 } },
          { 2, 0, { 7, 4 } },
          { 1, 0, { 3 } },
          1,
          TS_DTYPE_F64,
          "the weight is f32" },
        { { 2, 0, { 3, 4 } },
          { 2, 0, { 7, 4 } },
          { 1, 0, { 3 } },
          7,
          TS_DTYPE_F32,
          "label 7 is out of range for 7" },
    };
    subject s = { .mesh = ts_mesh_create(t->me, "x=*") };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        double loss = 0;
        options.catches = 1;
        s.dtype = rows[i].dtype;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        ts_tensor *made = loss_of(&s, rows[i].x, rows[i].w, rows[i].labels, rows[i].label);
        TEST_CHECK(t, !made || ts_tensor_item(made, &loss) != TS_OK);
        TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "", rows[i].words);
    }
}

static ts_status one_bad(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = global[0] == 0 ? V : 1;
    return TS_OK;
}

/* A label that one rank alone sees ends all of them, by its sentence. */
TS_TEST_RANKS(linear_loss_of_a_bad_label_tells_peers, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_meta meta = { .shape = TS_SHAPE(6), .dtype = TS_DTYPE_I64 };
    ts_tensor *labels = ts_from_function(one_bad, NULL, ts_sharding_get(mesh, "S(0)"), meta);
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(6, C), "S(0)");
    ts_tensor *w = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(V, C), NULL);
    double loss = 0;
    ts_tensor *made = ts_linear_cross_entropy(x, w, labels, NULL);
    ts_status status = made ? ts_tensor_item(made, &loss) : ts_rank_status(t->me);
    /* Queues go on: there the others hear of it when they next meet the rank. */
    bool behind = !tsi_rank_device_of(t->me)->device->host_readable;
    if (behind) (void)ts_group_barrier(ts_group_world(t->me), NULL);
    TEST_CHECK(t, behind || status != TS_OK);
    TEST_STATUS(t, ts_rank_status(t->me), t->index == 0 ? TS_ERR_ARG : TS_ERR_PEER);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "label 7 is out of range for 7 classes");
    TEST_OK(t, ts_rank_recover(t->me));
}

/* Nothing counts: as the mean of no terms elsewhere; and rows of nobody. */
TS_TEST_RANKS(linear_loss_of_nothing, 1, 3)
{
    subject s = { .mesh = ts_mesh_create(t->me, "x=*"), .dtype = TS_DTYPE_F32 };
    double loss = 0;
    TEST_OK(t,
            ts_tensor_item(loss_of(&s, TS_SHAPE(2, 4), TS_SHAPE(7, 4), TS_SHAPE(2), -100), &loss));
    TEST_CHECK(t, isnan(loss));
    TEST_OK(t, ts_tensor_item(loss_of(&s, TS_SHAPE(0, 4), TS_SHAPE(7, 4), TS_SHAPE(0), 1), &loss));
    TEST_CHECK(t, isnan(loss));
}

enum { CLASSES_ALONE, WEIGHED, PROBABILITIES, WEIGHED_PROBABILITIES, BY_CHUNKS, MEANS };

/* The mean over labels that are all ignored, of x and w. */
static ts_tensor *mean_of_nothing(const subject *s, int way, ts_tensor *x, ts_tensor *w)
{
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    ts_tensor *labels =
        ts_full(-100, s->mesh, TS_DTYPE_I64, TS_SHAPE(5), strcmp(s->rows, "S(1)") ? s->rows : "R");
    if (way == WEIGHED || way == WEIGHED_PROBABILITIES)
        o.weight = ts_watch(ts_ones(s->mesh, s->dtype, TS_SHAPE(V), NULL));
    if (way == WEIGHED) o.label_smoothing = 0.25;
    if (way == BY_CHUNKS) return ts_linear_cross_entropy(x, w, labels, NULL);
    ts_tensor *logits = ts_linear(x, w, NULL);
    if (way < PROBABILITIES) return ts_cross_entropy_with(logits, labels, &o);
    return ts_nll_loss_with(ts_log_softmax(logits, -1), labels, &o);
}

/* Where no label counts, a mean is no number, and its gradients are 0. */
TS_TEST_RANKS(losses_of_nothing_have_no_gradient, 1, 2, 3)
{
    static const char *const rows[] = { "R", "S(0)", "S(1)" }; /* the last: classes are cut */
    for (int i = 0; i < 3 * MEANS * 2; i++) {
        int way = i % MEANS, cut = i / MEANS % 3;
        subject s = { .mesh = ts_mesh_create(t->me, "x=*"),
                      .rows = rows[cut],
                      .dtype = i < 3 * MEANS ? TS_DTYPE_F32 : TS_DTYPE_F64 };
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(ts_ones(s.mesh, s.dtype, TS_SHAPE(5, C), cut == 1 ? "S(0)" : "R"));
        ts_tensor *w = ts_watch(ts_ones(s.mesh, s.dtype, TS_SHAPE(V, C), cut == 2 ? "S(0)" : "R"));
        ts_tensor *loss = mean_of_nothing(&s, way, x, w);
        double value = 0, most = 1, of_w = 1;
        TEST_OK(t, ts_backward(loss, NULL));
        TEST_OK(t, ts_tensor_item(loss, &value));
        TEST_OK(t, ts_tensor_item(ts_sum(ts_abs(ts_tensor_grad(x)), NULL, 0, 0), &most));
        TEST_OK(t, ts_tensor_item(ts_sum(ts_abs(ts_tensor_grad(w)), NULL, 0, 0), &of_w));
        TEST_SAY(t, isnan(value) && most == 0 && of_w == 0, "%s, way %d: loss %g, gradients %g, %g",
                 s.rows, way, value, most, of_w);
        ts_scope_close(scope);
        ts_mesh_release(s.mesh);
    }
}

/* Of many rows the logits of one chunk are held, and their gradient. */
TS_TEST_RANKS(linear_loss_holds_a_chunk, 1)
{
    enum { MANY = 512, CLASSES = 4096, WIDTH = 8, CHUNK = 16 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(MANY, WIDTH), NULL));
    ts_tensor *w = ts_watch(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(CLASSES, WIDTH), NULL));
    ts_tensor *labels = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(MANY), NULL);
    ts_linear_cross_entropy_options o = TS_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    o.rows = CHUNK;
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &before));
    TEST_OK(t, ts_backward(ts_linear_cross_entropy(x, w, labels, &o), NULL));
    TEST_OK(t, ts_rank_memory(t->me, &after));
    int64_t chunk = (int64_t)CHUNK * CLASSES * 4, weight = (int64_t)CLASSES * WIDTH * 4;
    TEST_SAY(t, after.peak - before.live <= 2 * chunk + 4 * weight, "%lld bytes at most, of %lld",
             (long long)(after.peak - before.live), (long long)(2 * chunk + 4 * weight));
    ts_scope_close(scope);
}

/* ---- logits whose classes are cut ------------------------------------------------------------ */

/* One axis cuts rows, the other classes: the loss of them all is there without a copy of what a
 * rank has, in whatever dtype. */
TS_TEST_RANKS(cut_classes_are_not_copied, 2, 4, 6)
{
    enum { ROWS = 512, CLASSES = 4096 };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*, tp=2");
    subject s = { mesh, "S(0), S(1)", TS_DTYPE_F64, -100 };
    double want = NAN, got = NAN;
    ts_tensor *x = ts_cast(
        ts_reshape(numbers(&s, s.rows, TS_SHAPE(ROWS, CLASSES, 1), 3), TS_SHAPE(ROWS, CLASSES)),
        TS_DTYPE_BF16);
    ts_tensor *labels =
        ts_cast(ts_mul_scalar(ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(ROWS), "S(0), R", NULL), 8),
                TS_DTYPE_I64);
    TEST_OK(t, ts_tensor_item(ts_cross_entropy(ts_tensor_full(x), ts_tensor_full(labels)), &want));
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    TEST_OK(t, ts_tensor_wait(labels));
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &before));
    ts_tensor *loss = ts_cross_entropy(x, labels);
    TEST_OK(t, ts_tensor_wait(loss));
    TEST_OK(t, ts_rank_memory(t->me, &after));
    ts_shape mine = ts_tensor_shape(ts_tensor_local(x));
    int64_t block = 2 * ts_shape_count(&mine);
    TEST_SAY(t, after.peak - before.live < block, "%lld bytes beside logits of %lld",
             (long long)(after.peak - before.live), (long long)block);
    TEST_OK(t, ts_tensor_item(loss, &got));
    TEST_SAY(t, fabs(got - want) < 1e-5 * fabs(want), "%.9g and %.9g", got, want);
    ts_mesh_release(mesh);
}
