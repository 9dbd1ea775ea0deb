/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels_data.c - operators that move, pick, sort and draw numbers, and convolutions, beside
 * what the machine can do.
 *
 *   movers, draws     bytes they must read and write, against plain copies of as many in all
 *   sort, topk        keys in a second, against qsort of one line by one thread
 *   convolutions      operations, against a matrix product of 1024 x 1024 x 1024
 *
 * Ratios are rates over the floor's rate: larger is better. How large they can be, the floors do
 * not say: a copy reads and writes in order. */
#include "bench_kernels.h"

#include <stdlib.h>
#include <string.h>

typedef enum floor_kind { COPIES, KEYS, PRODUCT } floor_kind;

typedef struct subject { /* one operator on its inputs */
    const bench_kernels *self;
    const struct data_case *what;
    ts_tensor *x, *y, *z, *index;
    ts_tensor *left, *right; /* of the floor's product */
    float *keys, *sorted;    /* of the floor's sort */
    double work;             /* bytes, keys or operations */
} subject;

typedef struct data_case {
    const char *name;
    ts_tensor *(*run)(const subject *s);
    ts_dtype dtype;
    int64_t rows, columns;
    double per_element;        /* of x: bytes read and written, keys, operations */
    void (*index)(subject *s); /* (optional) what else it takes */
    floor_kind floor;
} data_case;

enum { PRODUCT_SIZE = 1024 };

/* ---- inputs ---------------------------------------------------------------------------------- */

static ts_tensor *whole_numbers(const subject *s, ts_shape shape, int64_t below)
{
    return ts_randint(s->self->mesh, TS_DTYPE_I64, shape, NULL,
                      TS_OPTIONS(ts_random_options, .high = below));
}

static void index_rows(subject *s) /* one row for each row */
{
    s->index = whole_numbers(s, TS_SHAPE(s->what->rows), s->what->rows);
}

static void index_each(subject *s) /* a row for each element */
{
    s->index = whole_numbers(s, TS_SHAPE(s->what->rows, s->what->columns), s->what->rows);
}

static void index_last(subject *s) /* a column for each element */
{
    s->index = whole_numbers(s, TS_SHAPE(s->what->rows, s->what->columns), s->what->columns);
}

static void half_of_it(subject *s)
{
    s->index = ts_lt(s->x, s->y);
}

static void kernel_3x3(subject *s)
{
    s->x = ts_reshape(s->x, TS_SHAPE(16, 64, 56, 56));
    s->y = ts_randn(s->self->mesh, s->what->dtype, TS_SHAPE(64, 64, 3, 3), NULL);
}

/* ---- the operators --------------------------------------------------------------------------- */

static ts_tensor *run_index_select(const subject *s)
{
    return ts_index_select(s->x, 0, s->index);
}

static ts_tensor *run_index_add(const subject *s)
{
    return ts_index_add(s->x, 0, s->index, s->y);
}

static ts_tensor *run_index_put(const subject *s)
{
    return ts_index_put(s->x, s->y, TS_OPTIONS(ts_index_options, .index = &s->index, .count = 1));
}

static ts_tensor *run_gather(const subject *s)
{
    return ts_gather(s->x, 0, s->index);
}

static ts_tensor *run_gather_last(const subject *s)
{
    return ts_gather(s->x, 1, s->index);
}

static ts_tensor *run_scatter(const subject *s)
{
    return ts_scatter(s->x, 0, s->index, s->y);
}

static ts_tensor *run_scatter_add(const subject *s)
{
    return ts_scatter_add(s->x, 0, s->index, s->y);
}

static ts_tensor *run_masked_select(const subject *s)
{
    return ts_masked_select(s->x, s->index);
}

static ts_tensor *run_transposed(const subject *s)
{
    return ts_clone(ts_transpose(s->x, 0, 1));
}

static ts_tensor *run_cat(const subject *s)
{
    ts_tensor *four[] = { s->x, s->y, s->x, s->y };
    return ts_cat(four, 4, 0);
}

static ts_tensor *run_cat_last(const subject *s)
{
    ts_tensor *four[] = { s->x, s->y, s->x, s->y };
    return ts_cat(four, 4, 1);
}

static ts_tensor *run_stack(const subject *s)
{
    ts_tensor *four[] = { s->x, s->y, s->x, s->y };
    return ts_stack(four, 4, 1);
}

static ts_tensor *run_roll(const subject *s)
{
    return ts_roll(s->x, (const int64_t[]){ 100, 100 }, (const int64_t[]){ 0, 1 }, 2);
}

static ts_tensor *run_flip_rows(const subject *s)
{
    return ts_flip(s->x, (const int64_t[]){ 0 }, 1);
}

static ts_tensor *run_flip(const subject *s)
{
    return ts_flip(s->x, (const int64_t[]){ 1 }, 1);
}

static ts_tensor *run_pad(const subject *s)
{
    return ts_pad(s->x, (const int64_t[]){ 1, 1, 1, 1 }, 4, 0.0);
}

static ts_tensor *run_repeat(const subject *s)
{
    return ts_repeat(s->x, (const int64_t[]){ 1, 2 }, 2);
}

static ts_tensor *run_tril(const subject *s)
{
    return ts_tril(s->x, 0);
}

static ts_tensor *run_rand(const subject *s)
{
    return ts_rand_like(s->x);
}

static ts_tensor *run_randn(const subject *s)
{
    return ts_randn_like(s->x);
}

static ts_tensor *run_bernoulli(const subject *s)
{
    return ts_bernoulli(s->x);
}

static ts_tensor *run_dropout(const subject *s)
{
    return ts_dropout(s->x, 0.1);
}

static ts_tensor *run_histc(const subject *s)
{
    return ts_histc(s->x, TS_OPTIONS(ts_histc_options, .bins = 100, .min = -3.0, .max = 3.0));
}

static ts_tensor *run_bincount(const subject *s)
{
    return ts_bincount(ts_reshape(s->index, TS_SHAPE(-1)), NULL, s->what->columns);
}

static ts_tensor *run_unique(const subject *s)
{
    return ts_count_unique(s->index);
}

static ts_tensor *run_sort(const subject *s)
{
    ts_tensor *values = NULL;
    return ts_sort(s->x, NULL, &values, NULL) == TS_OK ? values : NULL;
}

static ts_tensor *run_sort_index(const subject *s)
{
    ts_tensor *values = NULL;
    return ts_sort(s->index, NULL, &values, NULL) == TS_OK ? values : NULL;
}

static ts_tensor *run_topk(const subject *s)
{
    ts_tensor *values = NULL;
    return ts_topk(s->x, TS_OPTIONS(ts_topk_options, .dim = -1, .k = 50), &values, NULL) == TS_OK
               ? values
               : NULL;
}

static ts_tensor *run_conv(const subject *s)
{
    return ts_conv2d(s->x, s->y, NULL,
                     TS_OPTIONS(ts_conv_options, .padding = (const int64_t[]){ 1, 1 }));
}

static ts_tensor *run_max_pool(const subject *s)
{
    return ts_max_pool(s->x, TS_OPTIONS(ts_pool_options, .window = (const int64_t[]){ 2, 2 }));
}

static ts_tensor *run_avg_pool(const subject *s)
{
    return ts_avg_pool(s->x, TS_OPTIONS(ts_pool_options, .window = (const int64_t[]){ 2, 2 }));
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static ts_status turn(void *context, int who)
{
    const subject *s = context;
    const bench_kernels *self = s->self;
    if (who == 0) {
        ts_scope scope = ts_scope_open(self->me, s->what->name);
        ts_status status = bench_kernels_drop(self, s->what->run(s)),
                  closed = ts_scope_close(scope);
        return status != TS_OK ? status : closed;
    }
    if (s->what->floor == PRODUCT) {
        ts_scope scope = ts_scope_open(self->me, "matmul");
        ts_status status = bench_kernels_drop(self, ts_matmul(s->left, s->right)),
                  closed = ts_scope_close(scope);
        return status != TS_OK ? status : closed;
    }
    if (s->what->floor == KEYS) {
        size_t count = (size_t)s->what->columns;
        memcpy(s->sorted, s->keys, count * sizeof *s->keys);
        qsort(s->sorted, count, sizeof *s->keys, compare_keys);
        return TS_OK;
    }
    bench_kernels_copy(self, s->work);
    return TS_OK;
}

static bool floor_open(subject *s)
{
    size_t count = (size_t)s->what->columns;
    if (s->what->floor == PRODUCT) {
        const ts_shape square = TS_SHAPE(PRODUCT_SIZE, PRODUCT_SIZE);
        s->left = bench_kernels_numbers(s->self, 0, s->what->dtype, square);
        s->right = bench_kernels_numbers(s->self, 1, s->what->dtype, square);
    }
    if (s->what->floor != KEYS) return true;
    s->keys = malloc(count * sizeof *s->keys);
    s->sorted = malloc(count * sizeof *s->keys);
    for (size_t i = 0; s->keys != NULL && i < count; i++)
        s->keys[i] = (float)(i * 2654435761u % 1000003u);
    return s->keys != NULL && s->sorted != NULL;
}

/* How much the floor does in one turn, in the line's unit. */
static double floor_work(const subject *s)
{
    if (s->what->floor == KEYS) return (double)s->what->columns;
    if (s->what->floor == PRODUCT) return 2.0 * PRODUCT_SIZE * PRODUCT_SIZE * PRODUCT_SIZE;
    double most = 2.0 * (double)s->self->copy_bytes;
    return s->work < most ? s->work : most;
}

static void report(bench_kernels *self, const subject *s, const contest_times *times)
{
    static const char *const unit[] = { "GB/s", "Mkeys/s", "Gflop/s" };
    static const char *const floor[] = { "memcpy", "qsort, one thread", "matmul 1024" };
    floor_kind kind = s->what->floor;
    double scale = kind == KEYS ? 1e6 : 1e9;
    bench_line *line = bench_lines_add(&self->lines, unit[kind], s->work / times->best[0] / scale,
                                       "%s", s->what->name);
    bench_line_floor(line, floor_work(s) / times->best[1] / scale, floor[kind]);
}

static ts_status data_line(bench_kernels *self, const data_case *what)
{
    ts_scope scope = ts_scope_open(self->me, what->name);
    ts_shape shape = TS_SHAPE(what->rows, what->columns);
    subject s = { .self = self, .what = what };
    s.x = bench_kernels_numbers(self, 0, what->dtype, shape);
    s.y = bench_kernels_numbers(self, 1, what->dtype, shape);
    if (what->index != NULL) what->index(&s);
    s.work = (double)(what->rows * what->columns) * what->per_element;
    contest_times times = { { 0 }, { 0 } };
    ts_status status = TS_ERR_MEMORY;
    if (floor_open(&s)) status = bench_kernels_measure(self, 2, turn, &s, &times);
    if (status == TS_OK) report(self, &s, &times);
    free(s.keys);
    free(s.sorted);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static const data_case cases[] = {
    { "index_select f32 rows", run_index_select, TS_DTYPE_F32, 4096, 1024, 8, index_rows, 0 },
    { "index_add f32 rows", run_index_add, TS_DTYPE_F32, 4096, 1024, 20, index_rows, 0 },
    { "index_put f32 rows", run_index_put, TS_DTYPE_F32, 4096, 1024, 16, index_rows, 0 },
    { "gather f32 of columns", run_gather, TS_DTYPE_F32, 4096, 1024, 16, index_each, 0 },
    { "gather f32 of rows", run_gather_last, TS_DTYPE_F32, 4096, 1024, 16, index_last, 0 },
    { "scatter f32", run_scatter, TS_DTYPE_F32, 4096, 1024, 24, index_each, 0 },
    { "scatter_add f32", run_scatter_add, TS_DTYPE_F32, 4096, 1024, 28, index_each, 0 },
    { "masked_select f32", run_masked_select, TS_DTYPE_F32, 4096, 1024, 7, half_of_it, 0 },
    { "transposed f32", run_transposed, TS_DTYPE_F32, 4096, 4096, 8, NULL, 0 },
    { "transposed bf16", run_transposed, TS_DTYPE_BF16, 4096, 4096, 4, NULL, 0 },
    { "cat f32 of 4", run_cat, TS_DTYPE_F32, 1024, 1024, 32, NULL, 0 },
    { "cat f32 of 4, last dim", run_cat_last, TS_DTYPE_F32, 1024, 1024, 32, NULL, 0 },
    { "stack f32 of 4", run_stack, TS_DTYPE_F32, 1024, 1024, 32, NULL, 0 },
    { "roll f32", run_roll, TS_DTYPE_F32, 2048, 2048, 8, NULL, 0 },
    { "flip f32 rows", run_flip_rows, TS_DTYPE_F32, 2048, 2048, 8, NULL, 0 },
    { "flip f32", run_flip, TS_DTYPE_F32, 2048, 2048, 8, NULL, 0 },
    { "pad f32", run_pad, TS_DTYPE_F32, 2048, 2048, 8, NULL, 0 },
    { "repeat f32", run_repeat, TS_DTYPE_F32, 2048, 2048, 12, NULL, 0 },
    { "tril f32", run_tril, TS_DTYPE_F32, 2048, 2048, 6, NULL, 0 },
    { "rand f32", run_rand, TS_DTYPE_F32, 4096, 4096, 4, NULL, 0 },
    { "randn f32", run_randn, TS_DTYPE_F32, 4096, 4096, 4, NULL, 0 },
    { "bernoulli f32", run_bernoulli, TS_DTYPE_F32, 4096, 4096, 8, NULL, 0 },
    { "dropout f32", run_dropout, TS_DTYPE_F32, 4096, 4096, 9, NULL, 0 },
    { "dropout bf16", run_dropout, TS_DTYPE_BF16, 4096, 4096, 5, NULL, 0 },
    { "histc f32", run_histc, TS_DTYPE_F32, 4096, 1024, 4, NULL, 0 },
    { "bincount i64", run_bincount, TS_DTYPE_F32, 4096, 1024, 8, index_last, 0 },
    { "count_unique i64", run_unique, TS_DTYPE_F32, 1, 1000000, 1, index_last, KEYS },
    { "sort f32 64 x 50000", run_sort, TS_DTYPE_F32, 64, 50000, 1, NULL, KEYS },
    { "sort bf16 64 x 50000", run_sort, TS_DTYPE_BF16, 64, 50000, 1, NULL, KEYS },
    { "sort f32 4096 x 128", run_sort, TS_DTYPE_F32, 4096, 128, 1, NULL, KEYS },
    { "sort i64 1000000", run_sort_index, TS_DTYPE_F32, 1, 1000000, 1, index_last, KEYS },
    { "topk f32 50 of 50000", run_topk, TS_DTYPE_F32, 64, 50000, 1, NULL, KEYS },
    { "topk bf16 50 of 50000", run_topk, TS_DTYPE_BF16, 64, 50000, 1, NULL, KEYS },
    { "conv2d f32 3x3", run_conv, TS_DTYPE_F32, 1024, 3136, 1152, kernel_3x3, PRODUCT },
    { "conv2d bf16 3x3", run_conv, TS_DTYPE_BF16, 1024, 3136, 1152, kernel_3x3, PRODUCT },
    { "max_pool f32 2x2", run_max_pool, TS_DTYPE_F32, 1024, 3136, 7, kernel_3x3, 0 },
    { "avg_pool f32 2x2", run_avg_pool, TS_DTYPE_F32, 1024, 3136, 5, kernel_3x3, 0 },
};

ts_status bench_kernels_data(bench_kernels *self)
{
    ts_status status = TS_OK;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == TS_OK; i++)
        if (bench_kernels_turn(self, cases[i].name)) status = data_line(self, &cases[i]);
    return status;
}
