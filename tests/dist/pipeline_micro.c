/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_micro.c - micro-batches of a tensor: of each rank's own rows, as even as can be, along
 * any dim; together they are the tensor. */
#include "harness/test.h"
#include "tessera/tessera.h"

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = 100 * global[0] + global[1];
    return TS_OK;
}

static int64_t sum_of(ts_tensor *x)
{
    double value = -1;
    ts_tensor_item(ts_cast(ts_sum(x, NULL, 0, 0), TS_DTYPE_F64), &value);
    return (int64_t)value;
}

/* Sizes of this rank's parts are those of its rows, and nothing is lost or doubled. */
static void check_parts(test *t, ts_mesh *mesh, const char *lies, int32_t dim, int64_t rows,
                        int64_t micros)
{
    ts_scope scope = ts_scope_open(t->me, "case");
    ts_shape shape = dim == 0 ? TS_SHAPE(rows, 3) : TS_SHAPE(3, rows);
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_I64 };
    ts_tensor *x = ts_from_function(number_at, NULL, ts_sharding_get(mesh, lies), meta);
    int64_t mine = ts_tensor_shape(ts_tensor_local(x)).extent[dim], sum = 0, all = 0;
    ts_tensor *parts[8] = { NULL };
    for (int64_t m = 0; m < micros; m++) {
        ts_tensor *part = ts_micro_batch(x, dim, micros, m);
        TEST_SAY(t, part != NULL, "%s rows %lld, part %lld of %lld", lies, (long long)rows,
                 (long long)m, (long long)micros);
        if (!part) break;
        TEST_EQ(t, ts_tensor_shape(ts_tensor_local(part)).extent[dim],
                mine / micros + (m < mine % micros));
        all += ts_tensor_shape(part).extent[dim];
        sum += sum_of(part);
        parts[m] = part;
    }
    ts_tensor *whole = ts_micro_merge(parts, micros, dim);
    TEST_SAY(t, whole && ts_tensor_layout(whole) == ts_tensor_layout(x), "%s rows %lld in %lld",
             lies, (long long)rows, (long long)micros);
    int64_t square = sum_of(ts_square(ts_sub(whole, x)));
    TEST_EQ(t, square, 0);
    TEST_EQ(t, all, rows);
    TEST_EQ(t, sum, sum_of(x));
    ts_scope_close(scope);
}

TS_TEST_RANKS(micro_batches_are_the_batch, 1, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int64_t rows = 0; rows <= 9; rows++)
        for (int64_t micros = 1; micros <= 5; micros++) {
            check_parts(t, mesh, "S(0)", 0, rows, micros);
            check_parts(t, mesh, "S(1)", 1, rows, micros);
            check_parts(t, mesh, "R", 0, rows, micros);
        }
    TEST_OK(t, ts_rank_status(t->me));
}

/* Where two axes cut the rows unevenly not every part of every rank's rows lies as rows do: then
 * fewer parts have some, and the others none. */
TS_TEST_RANKS(micro_batches_of_nested_cuts, 4, 6)
{
    static const char *const meshes[] = { "a=2, b=2", "a=2, b=3", "a=3, b=2" };
    for (int i = t->count == 4 ? 0 : 1; i < (t->count == 4 ? 1 : 3); i++) {
        ts_mesh *mesh = ts_mesh_create(t->me, meshes[i]);
        for (int64_t rows = 0; rows <= 14; rows++)
            for (int64_t micros = 1; micros <= 5; micros++) {
                ts_scope scope = ts_scope_open(t->me, "case");
                ts_meta meta = { .shape = TS_SHAPE(rows, 3), .dtype = TS_DTYPE_I64 };
                const ts_sharding *lies = ts_sharding_get(mesh, "S(0), S(0)");
                ts_tensor *x = ts_from_function(number_at, NULL, lies, meta), *parts[5] = { NULL };
                int64_t all = 0;
                for (int64_t m = 0; m < micros; m++) {
                    parts[m] = ts_micro_batch(x, 0, micros, m);
                    all += ts_tensor_shape(parts[m]).extent[0];
                }
                int64_t apart = sum_of(ts_square(ts_sub(ts_micro_merge(parts, micros, 0), x)));
                TEST_SAY(t, all == rows && apart == 0, "%s: %lld rows in %lld parts", meshes[i],
                         (long long)rows, (long long)micros);
                TEST_OK(t, ts_scope_close(scope));
            }
    }
}

TS_TEST_RANKS(micro_batches_refused, 1)
{
    ts_mesh *mesh = ts_mesh_self(t->me);
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 3), NULL);
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &catching);
    TEST_CHECK(t, ts_micro_batch(x, 2, 2, 0) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "part 0 of 2 along dim 2 of 2");
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
}

/* Whole documents, the largest part as small as can be; fewer documents than parts leave some
 * empty.
 */
TS_TEST(micro_batches_of_documents)
{
    static const int64_t length[] = { 5, 1, 4, 2, 6, 3 };
    int64_t begin[9];
    TEST_OK(t, ts_micro_documents(length, 6, 3, begin));
    static const int64_t three[] = { 0, 6, 12, 21 };
    for (int m = 0; m < 4; m++)
        TEST_EQ(t, begin[m], three[m]);
    TEST_OK(t, ts_micro_documents(length, 2, 8, begin));
    TEST_EQ(t, begin[1], 5);
    for (int m = 2; m <= 8; m++)
        TEST_EQ(t, begin[m], 6);
    TEST_STATUS(t, ts_micro_documents(length, 6, 0, begin), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "6 documents in 0 parts");
    TEST_STATUS(t, ts_micro_documents((const int64_t[]){ 2, -1 }, 2, 2, begin), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "document 1 has length -1");
}
