/* SPDX-License-Identifier: Apache-2.0 */
/* device_copy.c - copies of bytes from rows to rows: every path by length and number of rows, at
 * every alignment that matters, large enough to go past the cache; what lies between the rows of
 * the target stays as it was. */
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "harness/test.h"

enum { ROOM = 6 << 20 };

typedef struct rows {
    int64_t count, length, to_pitch, from_pitch;
    int64_t to_start, from_start;
} rows;

static tsi_block block_of(char *data, int64_t start, int64_t pitch, const rows *r)
{
    return (tsi_block){ .data = data + start,
                        .dtype = TS_DTYPE_U8,
                        .ndim = 2,
                        .extent = { r->count, r->length },
                        .stride = { pitch, 1 } };
}

static void check_rows(test *t, char *to, char *from, const rows *r)
{
    const tsi_device *cpu = tsi_device_host();
    memset(to, 0x5a, ROOM);
    tsi_block target = block_of(to, r->to_start, r->to_pitch, r);
    tsi_block source = block_of(from, r->from_start, r->from_pitch, r);
    TEST_OK(t, cpu->copy(cpu, &target, &source, NULL));
    int64_t end = r->to_start, wrong = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const char *row = to + r->to_start + i * r->to_pitch;
        wrong += memcmp(row, from + r->from_start + i * r->from_pitch, (size_t)r->length) != 0;
        for (; to + end < row; end++)
            wrong += to[end] != 0x5a;
        end = row + r->length - to;
    }
    for (int64_t i = 0; i < r->to_start; i++)
        wrong += to[i] != 0x5a;
    for (int64_t i = end; i < end + 256 && i < ROOM; i++)
        wrong += to[i] != 0x5a;
    if (wrong > 0)
        test_fail(t, __FILE__, __LINE__,
                  "%lld rows of %lld bytes from %lld + %lld i to %lld + %lld i: %lld wrong",
                  (long long)r->count, (long long)r->length, (long long)r->from_start,
                  (long long)r->from_pitch, (long long)r->to_start, (long long)r->to_pitch,
                  (long long)wrong);
}

TS_TEST(copy_rows)
{
    static const int64_t length[] = { 511, 512, 575, 4096, 4099, 65536, (1 << 20) + 77, 2 << 20 };
    static const int64_t start[][2] = { { 0, 0 }, { 64, 3 }, { 17, 0 }, { 63, 1 } };
    char *from = malloc(ROOM), *to = malloc(ROOM);
    for (int64_t i = 0; i < ROOM; i++)
        from[i] = (char)(i * 7 + (i >> 8) * 13 + (i >> 16) * 5);
    for (size_t l = 0; l < sizeof length / sizeof length[0]; l++) {
        for (size_t s = 0; s < sizeof start / sizeof start[0]; s++) {
            rows r = { .length = length[l], .to_start = start[s][0], .from_start = start[s][1] };
            r.to_pitch = r.length + 37;
            r.from_pitch = r.length + 64;
            int64_t most = (ROOM - 512) / r.from_pitch;
            const int64_t counts[] = { 1, 7 < most ? 7 : most, 8 < most ? 8 : most, most };
            for (int c = 0; c < 4; c++) {
                r.count = counts[c];
                check_rows(t, to, from, &r);
            }
        }
    }
    free(from);
    free(to);
}
