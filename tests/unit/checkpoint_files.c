/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_files.c - files of a checkpoint: pieces of all lengths around blocks, handed over in
 * parts of several blocks, are in the file where the plan says, and each has its hash; writes are
 * cut where blocks of the file end; files of another save are refused. */
#include "base/intmath.h"
#include "checkpoint/data_file.h"
#include "unit/data_util.h"

enum { B = TSI_BLOCK_BYTES, MARGIN = 64 };
static const int64_t lengths[] = { 1,     4095,  B - 1,        B,        B + 1, 2 * B - 4096,
                                   2 * B, 4 * B, 5 * B + 4097, 9 * B + 3 };
enum { PIECES = sizeof lengths / sizeof lengths[0] };

static int64_t wrong_cuts;
static int64_t part_end; /* of the bytes that are being handed over; 0: none are */

/* In place of the system's: at most so many bytes at a time, as a signal may have it. */
static size_t most_at_once = SIZE_MAX;

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    union {
        const void *given;
        void *data;
    } same = { .given = data };
    struct iovec from = { same.data, bytes < most_at_once ? bytes : most_at_once };
    int64_t end = (int64_t)offset + (int64_t)bytes;
    wrong_cuts += part_end > 0 && end % B != 0 && end != part_end;
    return pwritev(fd, &from, 1, offset);
}

static unsigned char byte_of(int64_t piece, int64_t at)
{
    return (unsigned char)(at * 7 + at / 251 + piece * 31);
}

static void fill(unsigned char *data, int64_t piece)
{
    for (int64_t i = 0; i < lengths[piece]; i++)
        data[i] = byte_of(piece, i);
}

/* In parts of so many blocks. */
static void put(test *t, tsi_data_writer *w, const tsi_data_piece *piece, const unsigned char *data,
                int64_t blocks)
{
    for (int64_t at = 0, n; at < piece->bytes; at += n) {
        n = tsi_min_i64(blocks * B, piece->bytes - at);
        part_end = piece->begin + at + n;
        TEST_OK(t, tsi_data_put(w, piece, at, data + at, (size_t)n));
        part_end = 0;
    }
}

static void check(test *t, const char *path, const tsi_data_piece *piece, unsigned char *data)
{
    tsi_data_file *f = NULL;
    TEST_OK(t, tsi_data_open(path, 7, 3, &f));
    for (int64_t i = 0; f && i < PIECES; i++) {
        const tsi_stored *stored = tsi_data_find(f, piece[i].name);
        struct iovec to = { data, (size_t)lengths[i] };
        if (!stored || stored->end - stored->begin != lengths[i]) {
            TEST_SAY(t, false, "piece %s is not there", piece[i].name);
            continue;
        }
        TEST_EQ(t, stored->begin, piece[i].begin);
        memset(data, 0, (size_t)lengths[i]);
        TEST_OK(t, tsi_data_read(f, stored, 0, &to, 1, true));
        int64_t wrong = 0;
        for (int64_t at = 0; at < lengths[i]; at++)
            wrong += data[at] != byte_of(i, at);
        TEST_EQ(t, wrong, 0);
    }
    tsi_data_close(f);
    TEST_STATUS(t, tsi_data_open(path, 8, 3, &f), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "of another save than the index beside it");
    TEST_STATUS(t, tsi_data_open(path, 7, 4, &f), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "or of another rank");
}

TS_TEST(pieces_of_all_lengths)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX], name[PIECES][8];
    unsigned char *data = malloc(9 * B + MARGIN);
    tsi_data_piece piece[PIECES];
    tsi_data_plan plan;
    data_folder_make(t, folder);
    data_path(path, folder, "x.safetensors");
    for (int64_t i = 0; i < PIECES; i++) {
        (void)snprintf(name[i], sizeof name[i], "p%lld", (long long)i);
        piece[i] =
            (tsi_data_piece){ .name = name[i],
                              .meta = { .shape = TS_SHAPE(lengths[i]), .dtype = TS_DTYPE_U8 } };
    }
    TEST_OK(t, tsi_data_plan_make(piece, PIECES, 7, 3, &plan));
    for (int64_t blocks = 1; blocks < 6; blocks++) {
        tsi_data_writer *w = NULL;
        most_at_once = blocks == 3 ? 100000 : SIZE_MAX;
        TEST_OK(t, tsi_data_create(path, &plan, &w));
        for (int64_t i = 0; w && i < PIECES; i++) {
            fill(data, i);
            put(t, w, &piece[i], data, blocks);
        }
        TEST_OK(t, tsi_data_finish(w, true));
        check(t, path, piece, data);
    }
    TEST_EQ(t, wrong_cuts, 0);
    tsi_data_plan_release(&plan);
    data_folder_remove(folder);
    free(data);
}
