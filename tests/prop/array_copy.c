/* SPDX-License-Identifier: Apache-2.0 */
/* array_copy.c - random strided copies, casts and fills against a loop over single elements.
 *
 * A case draws up to 5 dims, the order of dims in memory on each side, gaps, negative and zero
 * source strides. The target's memory is compared whole, so that a write beside the block is seen.
 */
#include <stdlib.h>

#include "device/device.h"
#include "harness/test.h"

typedef struct side {
    tsi_block block;
    char *memory, *copy; /* of the whole; copy: as it was before */
    size_t bytes;
} side;

static const int64_t extents_small[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17 };

static int64_t random_extent(test *t, int32_t ndim)
{
    if (ndim <= 2 && test_random_below(t, 2)) return 1 + test_random_below(t, 200);
    int64_t pick = test_random_below(t, 30);
    return extents_small[pick < 11 ? pick : 1 + pick % 8];
}

/* Strides that walk the dims in a random order, sometimes with gaps; a source may repeat or run
 * backwards. */
static void random_strides(test *t, tsi_block *block, bool source)
{
    int32_t order[TS_NDIM_MAX];
    for (int32_t d = 0; d < block->ndim; d++)
        order[d] = d;
    bool shuffled = test_random_below(t, 3) > 0, gaps = test_random_below(t, 2);
    for (int32_t d = block->ndim - 1; d > 0 && shuffled; d--) {
        int32_t other = (int32_t)test_random_below(t, d + 1), keep = order[d];
        order[d] = order[other];
        order[other] = keep;
    }
    int64_t next = gaps && test_random_below(t, 4) == 0 ? 2 : 1;
    for (int32_t k = block->ndim - 1; k >= 0; k--) {
        int32_t d = order[k];
        block->stride[d] = next;
        next *= block->extent[d] > 0 ? block->extent[d] : 1;
        if (gaps && test_random_below(t, 3) == 0) next += 1 + test_random_below(t, 3);
        if (source && test_random_below(t, 10) == 0) block->stride[d] = 0;
        if (test_random_below(t, source ? 6 : 12) == 0) block->stride[d] = -block->stride[d];
    }
}

/* Memory for every element the block reaches, with random contents; data points at the first
 * element. */
static side side_make(test *t, const tsi_block *shape, ts_dtype dtype, bool source)
{
    side s = { .block = *shape };
    size_t size = ts_dtype_size(dtype);
    s.block.dtype = (int32_t)dtype;
    random_strides(t, &s.block, source);
    int64_t low = 0, high = 0;
    for (int32_t d = 0; d < s.block.ndim; d++) {
        int64_t reach = (s.block.extent[d] > 0 ? s.block.extent[d] - 1 : 0) * s.block.stride[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    s.bytes = (size_t)(high - low + 1) * size;
    s.memory = malloc(s.bytes);
    s.copy = malloc(s.bytes);
    for (size_t i = 0; i < s.bytes; i++)
        s.memory[i] = (char)test_random(t);
    memcpy(s.copy, s.memory, s.bytes);
    s.block.data = s.memory - low * (int64_t)size;
    return s;
}

static void side_free(side *s)
{
    free(s->memory);
    free(s->copy);
}

static char *element(const tsi_block *block, const int64_t *index, char *base)
{
    int64_t offset = 0;
    for (int32_t d = 0; d < block->ndim; d++)
        offset += index[d] * block->stride[d];
    return base + offset * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
}

static bool next_index(const tsi_block *block, int64_t *index)
{
    for (int32_t d = block->ndim - 1; d >= 0; d--) {
        if (++index[d] < block->extent[d]) return true;
        index[d] = 0;
    }
    return false;
}

/* The oracle: writes to->copy one element at a time; casts by a copy of one element, tested
 * elsewhere. */
static void copy_slowly(const side *to, const side *from)
{
    const tsi_device *cpu = tsi_device_host();
    if (tsi_block_count(&to->block) == 0) return;
    char *to_base = to->copy + ((char *)to->block.data - to->memory);
    int64_t index[TS_NDIM_MAX] = { 0 };
    do {
        char *t = element(&to->block, index, to_base),
             *f = element(&from->block, index, from->block.data);
        tsi_block one_t = { .data = t, .dtype = to->block.dtype },
                  one_f = { .data = f, .dtype = from->block.dtype };
        if (to->block.dtype == from->block.dtype)
            memcpy(t, f, ts_dtype_size((ts_dtype)to->block.dtype));
        else
            (void)cpu->copy(cpu, &one_t, &one_f, NULL);
    } while (next_index(&to->block, index));
}

static void describe(char *out, size_t size, const tsi_block *b)
{
    int at = snprintf(out, size, "%s", ts_dtype_name((ts_dtype)b->dtype));
    for (int32_t d = 0; d < b->ndim; d++)
        at += snprintf(out + at, size - (size_t)at, " %lld:%lld", (long long)b->extent[d],
                       (long long)b->stride[d]);
}

static void check_copy(test *t, ts_dtype to_dtype, ts_dtype from_dtype)
{
    const tsi_device *cpu = tsi_device_host();
    tsi_block shape = { .ndim = (int32_t)test_random_below(t, 6) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = random_extent(t, shape.ndim);
    side to = side_make(t, &shape, to_dtype, false), from = side_make(t, &shape, from_dtype, true);
    copy_slowly(&to, &from);
    TEST_OK(t, cpu->copy(cpu, &to.block, &from.block, NULL));
    char a[256], b[256];
    describe(a, sizeof a, &to.block);
    describe(b, sizeof b, &from.block);
    TEST_SAY(t, memcmp(to.memory, to.copy, to.bytes) == 0, "copy to [%s] from [%s]", a, b);
    TEST_SAY(t, memcmp(from.memory, from.copy, from.bytes) == 0, "the source of [%s] changed", b);
    side_free(&to);
    side_free(&from);
}

TS_TEST_LONG(copy_same_dtype, 120)
{
    static const ts_dtype sizes[] = { TS_DTYPE_U8, TS_DTYPE_BF16, TS_DTYPE_F32, TS_DTYPE_F64,
                                      TS_DTYPE_C128 };
    for (int i = 0; i < 4000 && !test_failed(t); i++) {
        ts_dtype dtype = sizes[i % 5];
        check_copy(t, dtype, dtype);
    }
}

TS_TEST_LONG(copy_with_cast, 120)
{
    for (int i = 0; i < 1500 && !test_failed(t); i++) {
        ts_dtype to = (ts_dtype)(1 + test_random_below(t, TS_DTYPE_COUNT - 1));
        ts_dtype from = (ts_dtype)(1 + test_random_below(t, TS_DTYPE_COUNT - 1));
        check_copy(t, to, from);
    }
}

/* Every small 2-D transpose of every element size: all edges of the squares. */
TS_TEST(copy_transposes)
{
    static const ts_dtype sizes[] = { TS_DTYPE_U8, TS_DTYPE_BF16, TS_DTYPE_F32, TS_DTYPE_F64,
                                      TS_DTYPE_C128 };
    static char from[70 * 70 * 16], to[70 * 70 * 16];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)test_random(t);
    const tsi_device *cpu = tsi_device_host();
    for (int k = 0; k < 5; k++)
        for (int64_t rows = 1; rows <= 70; rows += rows < 20 ? 1 : 7)
            for (int64_t columns = 1; columns <= 70; columns += columns < 20 ? 1 : 7) {
                tsi_block f = { .data = from,
                                .dtype = (int32_t)sizes[k],
                                .ndim = 2,
                                .extent = { rows, columns },
                                .stride = { 1, rows } };
                tsi_block b = f;
                b.data = to, b.stride[0] = columns, b.stride[1] = 1;
                TEST_OK(t, cpu->copy(cpu, &b, &f, NULL));
                size_t size = ts_dtype_size(sizes[k]);
                int64_t wrong = 0;
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t c = 0; c < columns; c++)
                        wrong += memcmp(to + (size_t)(r * columns + c) * size,
                                        from + (size_t)(c * rows + r) * size, size) != 0;
                TEST_SAY(t, wrong == 0, "%lld x %lld of %s: %lld wrong", (long long)rows,
                         (long long)columns, ts_dtype_name(sizes[k]), (long long)wrong);
            }
}

TS_TEST(fill_strided)
{
    const tsi_device *cpu = tsi_device_host();
    for (int i = 0; i < 1500 && !test_failed(t); i++) {
        ts_dtype dtype = (ts_dtype)(1 + test_random_below(t, TS_DTYPE_COUNT - 1));
        tsi_block shape = { .ndim = (int32_t)test_random_below(t, 5) };
        for (int32_t d = 0; d < shape.ndim; d++)
            shape.extent[d] = random_extent(t, shape.ndim);
        side to = side_make(t, &shape, dtype, false);
        char value[16];
        for (int k = 0; k < 16; k++)
            value[k] = (char)(i % 3 ? test_random(t) : 0);
        side one = { .block = shape };
        one.block.dtype = (int32_t)dtype, one.block.data = value;
        memset(one.block.stride, 0, sizeof one.block.stride);
        copy_slowly(&to, &one);
        TEST_OK(t, cpu->fill(cpu, &to.block, value, NULL));
        char a[256];
        describe(a, sizeof a, &to.block);
        TEST_SAY(t, memcmp(to.memory, to.copy, to.bytes) == 0, "fill [%s]", a);
        side_free(&to);
    }
}
