/* SPDX-License-Identifier: Apache-2.0 */
/* array_views.c - storage, views and their bounds, copies between arrays, emptied storage, failing
 * memory. */
#include "unit/array_util.h"

TS_TEST(array_create_and_view)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *a = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(4, 6));
    TEST_CHECK(t, a && tsi_array_is_dense(a) && a->storage->bytes == 96);
    TEST_EQ(t, tsi_pool_used(tsi_pool_of(rank), TSI_TAG_ACTIVATION).live, 96);
    float *data = tsi_array_data(a);
    for (int i = 0; i < 24; i++)
        data[i] = (float)i;
    /* a.T[1:3, 1:], a view of column 1 and 2 without the first row */
    tsi_array *v = tsi_array_view(a, TS_DTYPE_F32, &TS_SHAPE(2, 3), (int64_t[]){ 1, 6 }, 7);
    TEST_CHECK(t, v && !tsi_array_is_dense(v));
    tsi_array_release(a); /* the view holds the storage */
    tsi_array *copy = tsi_array_create(rank, TS_DTYPE_I32, &TS_SHAPE(2, 3));
    TEST_OK(t, tsi_array_copy(copy, v));
    const int32_t *got = tsi_array_data(copy), want[] = { 7, 13, 19, 8, 14, 20 };
    TEST_CHECK(t, memcmp(got, want, sizeof want) == 0);
    TEST_EQ(t, copy->storage->version, 1);
    float seven = 7.5f;
    TEST_OK(t, tsi_array_fill(v, &seven));
    TEST_CHECK(t, data[7] == 7.5f && data[20] == 7.5f && data[9] == 9 && data[1] == 1);
    TEST_CHECK(t, tsi_array_retain(v) == v);
    tsi_array_release(v);
    tsi_array_release(v);
    tsi_array_release(copy);
    tsi_array_release(NULL);
    TEST_EQ(t, tsi_pool_used(tsi_pool_of(rank), -1).live, 0);
    rank_close(t, world);
}

/* Who sees a part alone may write it, whatever its neighbours do. */
TS_TEST(array_parts_are_alone)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *whole = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(2, 6));
    TEST_CHECK(t, tsi_array_is_alone(whole));
    tsi_array *a = tsi_array_part(whole, 0, &TS_SHAPE(2, 4), whole->stride, 0);
    tsi_array *b = tsi_array_part(whole, 1, &TS_SHAPE(2, 2), whole->stride, 4);
    TEST_CHECK(t, a && b && !tsi_array_is_alone(a)); /* the whole sees both */
    tsi_array_release(whole);
    TEST_CHECK(t, tsi_array_is_alone(a) && tsi_array_is_alone(b));
    tsi_array *v = tsi_array_view(b, TS_DTYPE_F32, &TS_SHAPE(2), (int64_t[]){ 6 }, 5);
    TEST_CHECK(t, tsi_array_is_alone(a) && !tsi_array_is_alone(b) && !tsi_array_is_alone(v));
    tsi_array_release(b);
    TEST_CHECK(t, tsi_array_is_alone(a) && tsi_array_is_alone(v));
    tsi_storage_retain(a->storage); /* a reader that is no array */
    TEST_CHECK(t, !tsi_array_is_alone(a));
    tsi_storage_release(a->storage);
    (void)tsi_array_retain(a);
    TEST_CHECK(t, !tsi_array_is_alone(a));
    tsi_array_release(a);
    tsi_array_release(a);
    TEST_CHECK(t, tsi_array_is_alone(v));
    tsi_array_release(v);
    tsi_array *again = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(2, 6));
    TEST_CHECK(t, again && again->part == 0 && tsi_array_is_alone(again));
    tsi_array_release(again);
    rank_close(t, world);
}

/* A write counts for all that may see it: of a part for the whole, its views and itself. */
TS_TEST(array_parts_count_their_writes)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *whole = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(2, 6));
    tsi_array *a = tsi_array_part(whole, 0, &TS_SHAPE(2, 4), whole->stride, 0);
    tsi_array *b = tsi_array_part(whole, 1, &TS_SHAPE(2, 2), whole->stride, 4);
    tsi_array *v = tsi_array_view(b, TS_DTYPE_F32, &TS_SHAPE(2), (int64_t[]){ 6 }, 5);
    tsi_array *const all[] = { whole, a, b, v };
    static const char *const changes[] = { "****", "**..", "*.**", "*.**" };
    for (int w = 0; w < 4; w++) {
        uint32_t before[4];
        for (int i = 0; i < 4; i++)
            before[i] = tsi_array_version(all[i]);
        TEST_OK(t, tsi_array_fill(all[w], &(float){ 1 }));
        for (int i = 0; i < 4; i++)
            TEST_SAY(t, (tsi_array_version(all[i]) != before[i]) == (changes[w][i] == '*'),
                     "a write of %d, seen by %d", w, i);
    }
    for (int i = 0; i < 4; i++)
        tsi_array_release(all[i]);
    rank_close(t, world);
}

/* All pairs of boxes of a small block, as it lies and turned, against their elements. */
TS_TEST(array_views_that_share)
{
    enum { ROWS = 4, COLUMNS = 3, BOXES = 60 };
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *whole = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(ROWS, COLUMNS)), *box[BOXES];
    uint32_t has[BOXES] = { 0 };
    int count = 0;
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        for (int64_t rows = 1; rows <= ROWS - i / COLUMNS; rows++)
            for (int64_t columns = 1; columns <= COLUMNS - i % COLUMNS; columns++) {
                for (int64_t e = 0; e < rows * columns; e++)
                    has[count] |= 1u << (i + e / columns * COLUMNS + e % columns);
                box[count++] = tsi_array_view(whole, TS_DTYPE_F32, &TS_SHAPE(rows, columns),
                                              (int64_t[]){ COLUMNS, 1 }, i);
            }
    TEST_EQ(t, count, BOXES);
    tsi_array *turned =
        tsi_array_view(whole, TS_DTYPE_F32, &TS_SHAPE(COLUMNS, ROWS), (int64_t[]){ 1, COLUMNS }, 0);
    for (int a = 0; a < count; a++) {
        for (int b = 0; b < count; b++)
            TEST_SAY(t, tsi_array_shares(box[a], box[b]) == ((has[a] & has[b]) != 0),
                     "boxes %d and %d: %x and %x", a, b, has[a], has[b]);
        bool dense = tsi_array_is_dense(box[a]);
        TEST_CHECK(t,
                   tsi_array_shares(box[a], whole) && (!dense || tsi_array_shares(box[a], turned)));
    }
    for (int a = 0; a < count; a++)
        tsi_array_release(box[a]);
    tsi_array_release(turned);
    tsi_array_release(whole);
    rank_close(t, world);
}

enum { BYTES = 64, VIEWS = 8000 };
typedef struct view_list {
    tsi_array *view[VIEWS];
    uint64_t has[VIEWS]; /* a bit for each byte of the block */
    int32_t count;
} view_list;

static void add_view(view_list *l, tsi_array *whole, ts_dtype dtype, ts_shape shape,
                     const int64_t *stride, int64_t offset)
{
    int64_t size = (int64_t)ts_dtype_size(dtype), at[2] = { offset, offset }, end = BYTES / size;
    uint64_t has = 0;
    for (int32_t d = 0; d < 2; d++)
        at[stride[d] > 0] += stride[d] * (shape.extent[d] - 1);
    if (l->count == VIEWS || at[0] < 0 || at[1] >= end) return;
    for (int64_t i = 0; i < ts_shape_count(&shape); i++) {
        int64_t e = offset + i / shape.extent[1] * stride[0] + i % shape.extent[1] * stride[1];
        has |= (((uint64_t)1 << size) - 1) << (e * size);
    }
    l->has[l->count] = has;
    l->view[l->count++] = tsi_array_view(whole, dtype, &shape, stride, offset);
}

/* Views with gaps, turned, backwards, repeated and of other dtypes against their bytes. */
TS_TEST(array_views_of_any_stride_that_share)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    static view_list l;
    int64_t shared = 0, apart = 0;
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *whole = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(BYTES / 4));
    l.count = 0;
    for (int n = 0; n < 2 * 7 * 7 * 3 * 3 * 8; n++) {
        int rest = n / 2, first = rest % 7, second = rest / 7 % 7, rows = rest / 49 % 3;
        int columns = rest / 147 % 3, offset = rest / 441;
        add_view(&l, whole, dtypes[n % 2], TS_SHAPE(rows + 1, 2 * columns + 1),
                 (int64_t[]){ first - 2, second - 2 }, 2 * offset + n % 2);
    }
    TEST_SAY(t, l.count > 2000 && l.count < VIEWS, "%d views", l.count);
    for (int a = 0; a < l.count; a++)
        for (int k = 0; k < 100; k++) {
            int b = (int)(((int64_t)a * 7919 + k * 104729) % l.count);
            bool want = (l.has[a] & l.has[b]) != 0;
            *(want ? &shared : &apart) += 1;
            TEST_SAY(t, tsi_array_shares(l.view[a], l.view[b]) == want,
                     "views %d and %d: %llx and %llx", a, b, (unsigned long long)l.has[a],
                     (unsigned long long)l.has[b]);
        }
    TEST_SAY(t, shared > 1000 && apart > 1000, "%lld share, %lld do not", (long long)shared,
             (long long)apart);
    for (int a = 0; a < l.count; a++)
        tsi_array_release(l.view[a]);
    tsi_array_release(whole);
    rank_close(t, world);
}

TS_TEST(array_view_bounds)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *a = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(10));
    struct {
        int64_t extent, stride, offset;
        ts_dtype dtype;
        bool inside;
    } cases[] = {
        { 10, 1, 0, TS_DTYPE_F32, true },
        { 10, 1, 1, TS_DTYPE_F32, false },
        { 10, -1, 9, TS_DTYPE_F32, true },
        { 10, -1, 8, TS_DTYPE_F32, false },
        { 5, 2, 1, TS_DTYPE_F32, true },
        { 6, 2, 0, TS_DTYPE_F32, false },
        { 1000, 0, 9, TS_DTYPE_F32, true },
        { 1, 1, 10, TS_DTYPE_F32, false },
        { 0, 1, 10, TS_DTYPE_F32, true },
        { 0, 1, 11, TS_DTYPE_F32, false },
        { 5, 1, 0, TS_DTYPE_F64, true },
        { 5, 1, 1, TS_DTYPE_F64, false },
        { 40, 1, 0, TS_DTYPE_I8, true },
        { 1, 1, -1, TS_DTYPE_F32, false },
        { INT64_MAX / 4, 1, 0, TS_DTYPE_F32, false },
        { 3, INT64_MAX / 2, 0, TS_DTYPE_F32, false },
        { 2, 1, INT64_MAX, TS_DTYPE_F32, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsi_array *v = tsi_array_view(a, cases[i].dtype, &TS_SHAPE(cases[i].extent),
                                      &cases[i].stride, cases[i].offset);
        TEST_SAY(t, (v != NULL) == cases[i].inside, "case %zu", i);
        if (!v) TEST_SAYS(t, take_error(rank), "view");
        tsi_array_release(v);
    }
    TEST_CHECK(t, tsi_array_view(a, (ts_dtype)77, &TS_SHAPE(1), NULL, 0) == NULL);
    TEST_SAYS(t, take_error(rank), "dtype number 77");
    TEST_CHECK(t, tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(3, -2)) == NULL);
    TEST_SAYS(t, take_error(rank), "dim 1 is -2");
    TEST_CHECK(t, tsi_array_create(rank, TS_DTYPE_F64, &TS_SHAPE(1LL << 40, 1LL << 22)) == NULL);
    TEST_SAYS(t, take_error(rank), "overflows");
    tsi_array_release(a);
    rank_close(t, world);
}

static void count_done(void *context)
{
    ++*(int *)context;
}

TS_TEST(array_wrap_outside_memory)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    int done = 0;
    int16_t memory[6] = { 0, 1, 2, 3, 4, 5 };
    ts_array block = {
        .struct_size = sizeof block, .data = memory + 5, .done = count_done, .context = &done
    };
    block.meta = (ts_meta){ .shape = TS_SHAPE(2, 3), .dtype = TS_DTYPE_I16 };
    block.stride[0] = -3, block.stride[1] = -1; /* backwards */
    tsi_array *a = tsi_array_wrap(rank, &block);
    TEST_CHECK(t, a && tsi_array_data(a) == memory + 5 && a->storage->data == memory);
    tsi_array *v = tsi_array_view(a, TS_DTYPE_I16, &TS_SHAPE(6), NULL, 0);
    TEST_CHECK(t, v && tsi_array_data(v) == memory);
    ts_array out;
    tsi_array_describe(a, &out);
    TEST_CHECK(t, out.data == memory + 5 && out.stride[0] == -3 && out.done == NULL);
    tsi_storage_empty(a->storage); /* outside memory stays */
    TEST_CHECK(t, tsi_array_data(a) == memory + 5);
    tsi_array_release(a);
    TEST_EQ(t, done, 0);
    tsi_array_release(v);
    TEST_EQ(t, done, 1);
    block.data = NULL;
    TEST_CHECK(t, tsi_array_wrap(rank, &block) == NULL);
    TEST_SAYS(t, take_error(rank), "data is NULL and the array has 6 elements");
    TEST_EQ(t, done, 1);
    rank_close(t, world);
}

TS_TEST(array_emptied_storage)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_pool *pool = tsi_pool_of(rank);
    tsi_array *a = tsi_array_create_tagged(rank, TS_DTYPE_F32, &TS_SHAPE(1000), TSI_TAG_PARAMETER);
    tsi_array *b = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(1000));
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_PARAMETER).live, 4000);
    tsi_storage_empty(a->storage);
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_PARAMETER).live, 0);
    TEST_CHECK(t, tsi_array_data(a) == NULL);
    TEST_STATUS(t, tsi_array_copy(b, a), TS_ERR_STATE);
    TEST_SAYS(t, take_error(rank), "emptied (4000 bytes)");
    TEST_OK(t, tsi_storage_refill(a->storage));
    TEST_OK(t, tsi_storage_refill(a->storage));
    TEST_OK(t, tsi_array_fill(a, &(float){ 1 }));
    TEST_OK(t, tsi_array_copy(b, a));
    tsi_storage_empty(a->storage);
    tsi_array_release(a);
    tsi_array_release(b);
    rank_close(t, world);
}

TS_TEST(array_copy_checks)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    tsi_array *a = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(3, 4));
    tsi_array *b = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(3, 5));
    tsi_array *c = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(12));
    TEST_STATUS(t, tsi_array_copy(a, b), TS_ERR_SHAPE);
    TEST_SAYS(t, take_error(rank), "dim 1 has 5 elements in the source, 4 in the target");
    TEST_STATUS(t, tsi_array_copy(a, c), TS_ERR_SHAPE);
    TEST_SAYS(t, take_error(rank), "1 dims to 2");
    TEST_STATUS(t, tsi_array_copy(NULL, c), TS_ERR_NULL);
    (void)take_error(rank);
    tsi_array *empty = tsi_array_create(rank, TS_DTYPE_F64, &TS_SHAPE(3, 0));
    tsi_array *none = tsi_array_create(rank, TS_DTYPE_BF16, &TS_SHAPE(3, 0));
    TEST_OK(t, tsi_array_copy(none, empty));
    tsi_array *scalar = tsi_array_create(rank, TS_DTYPE_F64, &TS_SHAPE_SCALAR);
    TEST_OK(t, tsi_array_fill(scalar, &(double){ 2.5 }));
    TEST_CHECK(t, *(double *)tsi_array_data(scalar) == 2.5);
    tsi_array_release(a), tsi_array_release(b), tsi_array_release(c);
    tsi_array_release(empty), tsi_array_release(none), tsi_array_release(scalar);
    rank_close(t, world);
}

TS_TEST(array_every_allocation_fails_once)
{
    for (int64_t n = 1; n < 20; n++) {
        ts_world *world;
        ts_rank *rank = rank_open(t, &world);
        (void)tsi_alloc_fail_at(n);
        tsi_array *a = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(100));
        tsi_array *v = tsi_array_view(a, TS_DTYPE_F32, &TS_SHAPE(10), NULL, 5);
        (void)tsi_alloc_fail_at(0);
        bool failed = !a || !v;
        TEST_EQ(t, rank->error.error.status, failed ? TS_ERR_MEMORY : TS_OK);
        tsi_array_release(v);
        tsi_array_release(a);
        rank_close(t, world);
    }
}
