/* SPDX-License-Identifier: Apache-2.0 */
/* device_bytes.c - which bytes a block touches, against marks on each of them: every block of up to
 * three dims of a small memory, with all extents and strides, negative and 0 too; every pair of
 * pieces of a matrix, and pairs of any blocks. */
#include <stdlib.h>
#include <string.h>

#include "device/bytes.h"
#include "harness/test.h"

enum { ROOM = 512, MIDDLE = 256 };

static char memory[ROOM];

static tsi_block block_of(int64_t start, ts_dtype dtype, int64_t (*dim)[2], int32_t ndim)
{
    tsi_block block = { .data = memory + start, .dtype = (int32_t)dtype, .ndim = ndim };
    for (int32_t d = 0; d < ndim; d++) {
        block.extent[d] = dim[d][0];
        block.stride[d] = dim[d][1];
    }
    return block;
}

/* Marks the bytes of all elements. */
static void mark(const tsi_block *block, int32_t dim, int64_t at, char *marks)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    if (dim == block->ndim) {
        int64_t start = (char *)block->data - memory + at * size;
        memset(marks + start, 1, (size_t)size);
        return;
    }
    for (int64_t i = 0; i < block->extent[dim]; i++)
        mark(block, dim + 1, at + i * block->stride[dim], marks);
}

static bool says(tsi_bytes bytes, int64_t at)
{
    uintptr_t address = (uintptr_t)memory + (uintptr_t)at;
    bool within = address >= bytes.begin && address < bytes.end;
    return within && (bytes.pitch == 0 || (address - bytes.begin) % bytes.pitch < bytes.width);
}

/* The first and the last byte exactly, all between them at least. */
static bool holds(const tsi_block *block)
{
    char marks[ROOM] = { 0 };
    tsi_bytes bytes = tsi_bytes_of(block);
    int64_t first = -1, last = -1;
    bool all = true;
    mark(block, 0, 0, marks);
    for (int64_t i = 0; i < ROOM; i++) {
        if (!marks[i]) continue;
        if (first < 0) first = i;
        last = i;
        all = all && says(bytes, i);
    }
    if (first < 0) return bytes.begin == bytes.end;
    return all && bytes.begin == (uintptr_t)memory + (uintptr_t)first &&
           bytes.end == (uintptr_t)memory + (uintptr_t)last + 1;
}

static bool have_common(const tsi_block *x, const tsi_block *y)
{
    char in_x[ROOM] = { 0 }, in_y[ROOM] = { 0 };
    bool common = false;
    mark(x, 0, 0, in_x);
    mark(y, 0, 0, in_y);
    for (int64_t i = 0; i < ROOM; i++)
        common = common || (in_x[i] && in_y[i]);
    return common;
}

TS_TEST(bytes_of_every_small_block)
{
    int64_t wrong = 0, blocks = 0;
    for (int64_t code = 0; code < 4 * 4 * 4 * 9 * 9 * 9; code++) {
        int64_t rest = code, dim[3][2];
        for (int32_t d = 0; d < 3; d++, rest /= 4)
            dim[d][0] = rest % 4;
        for (int32_t d = 0; d < 3; d++, rest /= 9)
            dim[d][1] = rest % 9 - 4;
        tsi_block block = block_of(MIDDLE, TS_DTYPE_F16, dim, 3);
        wrong += !holds(&block);
        blocks++;
    }
    TEST_EQ(t, wrong, 0);
    TEST_EQ(t, blocks, 46656);
    tsi_block none = { .dtype = TS_DTYPE_F32 }, one = { .data = memory, .dtype = TS_DTYPE_F32 };
    TEST_CHECK(t, tsi_bytes_of(&none).begin == tsi_bytes_of(&none).end);
    TEST_CHECK(t, holds(&one));
}

/* Columns and rows of one matrix: exact where both take whole columns, else never too little. */
TS_TEST(pieces_of_a_matrix_meet_where_they_do)
{
    enum { ROWS = 3, COLUMNS = 5 };
    int64_t missed = 0, false_alarms = 0, apart = 0;
    for (int64_t code = 0; code < 25 * 25; code++) {
        int64_t from[2] = { code % 5, code / 5 % 5 }, width[2] = { code / 25 % 5, code / 125 };
        if (from[0] + width[0] >= COLUMNS || from[1] + width[1] >= COLUMNS) continue;
        for (int64_t row = 0; row < ROWS; row++) {
            int64_t x[][2] = { { ROWS, COLUMNS }, { width[0] + 1, 1 } };
            int64_t y[][2] = { { ROWS - row, COLUMNS }, { width[1] + 1, 1 } };
            tsi_block a = block_of(4 * from[0], TS_DTYPE_F32, x, 2);
            tsi_block b = block_of(4 * (from[1] + row * COLUMNS), TS_DTYPE_F32, y, 2);
            bool common = have_common(&a, &b);
            bool said = tsi_bytes_meet(tsi_bytes_of(&a), tsi_bytes_of(&b));
            missed += common && !said;
            false_alarms += said && !common && row < ROWS - 1; /* one row has no pitch */
            apart += !said;
            TEST_CHECK(t, said == tsi_bytes_meet(tsi_bytes_of(&b), tsi_bytes_of(&a)));
        }
    }
    TEST_EQ(t, missed, 0);
    TEST_EQ(t, false_alarms, 0);
    TEST_CHECK(t, apart > 100);
}

TS_TEST(blocks_that_have_a_byte_in_common_meet)
{
    int64_t missed = 0, met = 0, apart = 0;
    for (int64_t trial = 0; trial < 200000; trial++) {
        tsi_block block[2];
        for (int32_t i = 0; i < 2; i++) {
            int64_t dim[3][2];
            for (int32_t d = 0; d < 3; d++) {
                dim[d][0] = 1 + test_random_below(t, 3);
                dim[d][1] = test_random_below(t, 13) - 6;
            }
            int64_t start = MIDDLE - 16 + test_random_below(t, 32);
            block[i] = block_of(start, i == 0 ? TS_DTYPE_F16 : TS_DTYPE_U8, dim, 3);
        }
        bool common = have_common(&block[0], &block[1]);
        bool said = tsi_bytes_meet(tsi_bytes_of(&block[0]), tsi_bytes_of(&block[1]));
        missed += common && !said;
        met += common;
        apart += !said;
    }
    TEST_EQ(t, missed, 0);
    TEST_CHECK(t, met > 1000 && apart > 1000);
}
