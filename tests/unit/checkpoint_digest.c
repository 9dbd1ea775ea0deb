/* SPDX-License-Identifier: Apache-2.0 */
/* The hashes of checkpoints: vectors of docs/checkpoints.md, sums that do not ask who adds, and no
 * change of one byte that goes unseen. */
#include "base/alloc.h"
#include "checkpoint/digest.h"
#include "harness/test.h"

static void fill(unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(7 * i + i / 251);
}

TS_TEST(digest_block_vectors)
{
    static const struct {
        size_t bytes;
        uint64_t hash;
    } rows[] = { { 0, 0xf0d52fb816454a26u },
                 { 1, 0x38b2a53469280eecu },
                 { 63, 0xba756c7aec96c74fu },
                 { 64, 0x8542a808bf4fc9e2u },
                 { 3000, 0xc78066b3c3847d0cu } };
    unsigned char data[3000];
    fill(data, sizeof data);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        TEST_SAY(t, tsi_digest_block(data, rows[i].bytes) == rows[i].hash, "%zu bytes: %016llx",
                 rows[i].bytes, (unsigned long long)tsi_digest_block(data, rows[i].bytes));
}

TS_TEST(digest_tensor_vectors)
{
    float f[6] = { 0.0f, 1.0f, -2.5f, 3.0e38f, -0.0f, 1e-40f };
    uint16_t half[3] = { 0, 0x3F80, 0xFFFF };
    double d[2] = { 1.0, -1e300 };
    uint8_t bytes[4] = { 0, 1, 127, 255 };
    ts_meta meta = { .shape = TS_SHAPE(2, 3), .dtype = TS_DTYPE_F32 };
    uint64_t sum = tsi_digest_elements(TS_DTYPE_F32, 0, f, 6);
    TEST_SAY(t, tsi_digest_tensor(&meta, sum) == 0x57ba8a5e73b5de21u, "%016llx",
             (unsigned long long)tsi_digest_tensor(&meta, sum));
    uint64_t named = tsi_digest_named("a.weight", tsi_digest_tensor(&meta, sum));
    TEST_SAY(t, named == 0x3c5e4c6f6c7df4a2u, "%016llx", (unsigned long long)named);
    meta = (ts_meta){ .shape = TS_SHAPE(3), .dtype = TS_DTYPE_BF16 };
    sum = tsi_digest_elements(TS_DTYPE_BF16, 0, half, 3);
    TEST_SAY(t, tsi_digest_tensor(&meta, sum) == 0x57f43bca8fb16cc2u, "%016llx",
             (unsigned long long)tsi_digest_tensor(&meta, sum));
    meta = (ts_meta){ .shape = TS_SHAPE(2), .dtype = TS_DTYPE_F64 };
    sum = tsi_digest_elements(TS_DTYPE_F64, 0, d, 2);
    TEST_SAY(t, tsi_digest_tensor(&meta, sum) == 0x62b8213cdec6d751u, "%016llx",
             (unsigned long long)tsi_digest_tensor(&meta, sum));
    meta = (ts_meta){ .shape = TS_SHAPE(4), .dtype = TS_DTYPE_U8 };
    sum = tsi_digest_elements(TS_DTYPE_U8, 0, bytes, 4);
    TEST_SAY(t, tsi_digest_tensor(&meta, sum) == 0x4b079635dba16cd4u, "%016llx",
             (unsigned long long)tsi_digest_tensor(&meta, sum));
}

TS_TEST(digest_block_of_parts)
{
    unsigned char data[3001];
    fill(data, sizeof data);
    for (size_t bytes = 0; bytes <= sizeof data; bytes += 1 + bytes / 9) {
        size_t cut = bytes / 3 / 4 * 4;
        uint64_t sum =
            tsi_digest_part(cut, data + cut, bytes - cut) + tsi_digest_part(0, data, cut);
        TEST_CHECK(t, tsi_digest_block_of(bytes, sum) == tsi_digest_block(data, bytes));
    }
}

/* Any cut of the elements, in any order, gives the same sum. */
TS_TEST(digest_sums_of_parts)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_U8, TS_DTYPE_BF16, TS_DTYPE_F32, TS_DTYPE_F64,
                                       TS_DTYPE_C128 };
    enum { COUNT = 500 };
    unsigned char data[16 * COUNT];
    fill(data, sizeof data);
    for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; k++) {
        size_t size = ts_dtype_size(dtypes[k]);
        uint64_t whole = tsi_digest_elements(dtypes[k], 0, data, COUNT);
        for (int i = 0; i < 50; i++) {
            int64_t a = test_random_below(t, COUNT + 1), b = test_random_below(t, COUNT + 1);
            if (a > b) {
                int64_t c = a;
                a = b;
                b = c;
            }
            uint64_t sum = tsi_digest_elements(dtypes[k], b, data + (size_t)b * size, COUNT - b);
            sum += tsi_digest_elements(dtypes[k], a, data + (size_t)a * size, b - a);
            sum += tsi_digest_elements(dtypes[k], 0, data, a);
            TEST_CHECK(t, sum == whole);
        }
    }
}

TS_TEST(digest_sees_every_byte)
{
    enum { BYTES = 700 };
    unsigned char data[BYTES];
    fill(data, sizeof data);
    uint64_t block = tsi_digest_block(data, BYTES),
             sum = tsi_digest_elements(TS_DTYPE_F32, 0, data, BYTES / 4);
    for (size_t i = 0; i < BYTES; i++)
        for (int bit = 0; bit < 8; bit++) {
            data[i] ^= (unsigned char)(1 << bit);
            TEST_CHECK(t, tsi_digest_block(data, BYTES) != block);
            TEST_CHECK(t, tsi_digest_elements(TS_DTYPE_F32, 0, data, BYTES / 4) != sum);
            data[i] ^= (unsigned char)(1 << bit);
        }
    /* Neighbours that change places, and what a sum without places would not see. */
    for (size_t i = 0; i + 8 <= BYTES; i += 4) {
        unsigned char other[BYTES];
        memcpy(other, data, BYTES);
        memcpy(other + i, data + i + 4, 4);
        memcpy(other + i + 4, data + i, 4);
        TEST_CHECK(t, tsi_digest_elements(TS_DTYPE_F32, 0, other, BYTES / 4) != sum);
        TEST_CHECK(t, tsi_digest_block(other, BYTES) != block);
    }
}
