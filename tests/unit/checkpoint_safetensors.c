/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_safetensors.c - weight files: what is refused and with which words, what is read, and
 * files that change while they are being read. */
#include <fcntl.h>
#include <utime.h>

#include "checkpoint/safetensors.h"
#include "unit/data_util.h"

/* A file of a header and data of the given size; `length` as the header says, or its own. */
static void write_set(test *t, const char *path, const char *header, int64_t length, size_t data)
{
    size_t size = strlen(header);
    unsigned char *all = calloc(1, 8 + size + data);
    uint64_t said = length < 0 ? (uint64_t)size : (uint64_t)length;
    for (int i = 0; i < 8; i++)
        all[i] = (unsigned char)(said >> (8 * i));
    memcpy(all + 8, header, size);
    for (size_t i = 0; i < data; i++)
        all[8 + size + i] = (unsigned char)i;
    data_write(t, path, all, 8 + size + data);
    free(all);
}

#define F32_6 "\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]"

typedef struct refusal {
    const char *header;
    int64_t length; /* as the file says; -1: right */
    size_t data;
    const char *words;
} refusal;

static const refusal refusals[] = {
    { "{\"a\":{" F32_6 "}}", -1, 23, "data_offsets lie outside the file" },
    { "{\"a\":{" F32_6 "}}", -1, 25, "1 bytes of data belong to no tensor" },
    { "{\"a\":{" F32_6 "}}", 1 << 20, 24, "a header of 1048576 bytes does not fit the file" },
    { "{\"a\":{" F32_6 "}}", INT64_MAX, 24, "does not fit the file" },
    { "{\"a\":{" F32_6 "}}", 10, 64, ": " },
    { "{\"a\":{" F32_6 "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[20,24]}}", -1, 24,
      "\"b\": its data overlaps another tensor's" },
    { "{\"a\":{" F32_6 "},\"b\":{" F32_6 "}}", -1, 24, "its data overlaps another tensor's" },
    { "{\"a\":{" F32_6 "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[28,32]}}", -1, 32,
      "\"b\": there is a hole before its data" },
    { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", -1, 8,
      "\"a\": there is a hole before its data" },
    { "{\"a\":{" F32_6 "},\"a\":{" F32_6 "}}", -1, 24, "duplicate" },
    { "{\"a\":{\"dtype\":\"F33\",\"shape\":[6],\"data_offsets\":[0,24]}}", -1, 24,
      "unknown dtype F33" },
    { "{\"a\":{\"shape\":[6],\"data_offsets\":[0,24]}}", -1, 24, "unknown dtype (none)" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[0,24]}}", -1, 24,
      "data_offsets do not fit the shape and dtype" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2305843009213693952,8],\"data_offsets\":[0,0]}}", -1, 0,
      "data_offsets do not fit the shape and dtype" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,0],\"data_offsets\":[0,0]}}", -1, 0,
      "an extent is not a whole number below 2^62" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-6],\"data_offsets\":[0,24]}}", -1, 24,
      "an extent is not a whole number" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6.0],\"data_offsets\":[0,24]}}", -1, 24,
      "an extent is not a whole number" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,6],\"data_offsets\":[0,24]}}", -1, 24,
      "at most 8 extents" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":\"6\",\"data_offsets\":[0,24]}}", -1, 24,
      "the shape is not a list" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[-24,0]}}", -1, 24,
      "data_offsets lie outside the file" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[24,0]}}", -1, 24,
      "data_offsets lie outside the file" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,99999999999999999999]}}", -1, 24,
      ": " },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24,48]}}", -1, 24,
      "data_offsets are not two numbers" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[6]}}", -1, 24, "data_offsets are not two numbers" },
    { "{\"a\":7}", -1, 0, "its entry is not an object" },
    { "{\"__metadata__\":7}", -1, 0, "__metadata__ is not an object of texts" },
    { "{\"__metadata__\":{\"x\":7}}", -1, 0, "__metadata__, \"x\" is not a text" },
    { "[1,2]", -1, 0, "the header is not an object" },
    { "{\"\xff\xfe\":{" F32_6 "}}", -1, 24, ": " },
    { "{\"a\":{" F32_6 "}} x", -1, 24, ": " },
    { "", -1, 0, ": " },
};

TS_TEST(refused_with_the_reason)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "model.safetensors");
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        write_set(t, path, r->header, r->length, r->data);
        tsi_weights *w = NULL;
        ts_status status = tsi_weights_open(folder, &w);
        TEST_SAY(t, status != TS_OK && w == NULL, "row %zu was accepted: %s", i, r->header);
        TEST_SAYS(t, ts_last_error(), r->words);
        TEST_SAYS(t, ts_last_error(), "model.safetensors");
        tsi_weights_close(w);
    }
    data_write(t, path, "1234567", 7);
    tsi_weights *w = NULL;
    TEST_STATUS(t, tsi_weights_open(folder, &w), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "too short");
    data_folder_remove(folder);
}

TS_TEST(every_truncation_is_refused)
{
    static const char header[] = "{\"a\":{" F32_6 "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
                                 "\"data_offsets\":[24,28]}}";
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.safetensors");
    write_set(t, path, header, -1, 28);
    size_t bytes;
    unsigned char *all = data_read(t, path, &bytes);
    for (size_t size = 0; all && size < bytes; size++) {
        data_write(t, path, all, size);
        tsi_weights *w = NULL;
        TEST_SAY(t, tsi_weights_open(path, &w) != TS_OK, "%zu of %zu bytes were accepted", size,
                 bytes);
        tsi_weights_close(w);
    }
    free(all);
    data_folder_remove(folder);
}

/* ---- indices --------------------------------------------------------------------------------- */

static ts_status open_index(test *t, const char *folder, const char *index)
{
    char path[DATA_PATH_MAX];
    data_path(path, folder, "model.safetensors.index.json");
    data_write(t, path, index, strlen(index));
    tsi_weights *w = NULL;
    ts_status status = tsi_weights_open(folder, &w);
    tsi_weights_close(w);
    return status;
}

TS_TEST(indices)
{
    static const struct {
        const char *index, *words;
    } rows[] = {
        { "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", NULL },
        { "{\"weight_map\":{\"a\":\"../1.safetensors\"}}", "which is not one of this directory" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "which is not one of this directory" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "which is not one of this directory" },
        { "{\"weight_map\":{\"a\":\"\"}}", "which is not one of this directory" },
        { "{\"weight_map\":{\"a\":7}}", "which is not one of this directory" },
        { "{\"weight_map\":{\"a\":\"3.safetensors\"}}", "No such file" },
        { "{\"weight_map\":{\"a\":\"2.safetensors\"}}", "tensor \"a\" is not in 2.safetensors" },
        { "{\"weight_map\":{\"c\":\"1.safetensors\"}}", "tensor \"c\" is not in 1.safetensors" },
        { "{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"twin.safetensors\"}}",
          "tensor \"a\" occurs twice" },
        { "{\"weight_map\":{}}", "names no file" },
        { "{}", "names no file" },
    };
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "1.safetensors");
    write_set(t, path, "{\"a\":{" F32_6 "}}", -1, 24);
    data_path(path, folder, "twin.safetensors");
    write_set(t, path, "{\"a\":{" F32_6 "}}", -1, 24);
    data_path(path, folder, "2.safetensors");
    write_set(t, path, "{\"b\":{" F32_6 "}}", -1, 24);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_status status = open_index(t, folder, rows[i].index);
        TEST_SAY(t, (status == TS_OK) == (rows[i].words == NULL), "row %zu: %s", i, rows[i].index);
        if (rows[i].words) TEST_SAYS(t, ts_last_error(), rows[i].words);
    }
    data_folder_remove(folder);
}

TS_TEST(things_that_are_no_files)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "model.safetensors");
    tsi_weights *w = NULL;
    TEST_STATUS(t, tsi_weights_open(folder, &w), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "neither model.safetensors nor its index is there");
    TEST_CHECK(t, mkfifo(path, 0600) == 0);
    TEST_STATUS(t, tsi_weights_open(folder, &w), TS_ERR_IO); /* and does not wait for a writer */
    TEST_SAYS(t, ts_last_error(), "is not a regular file");
    TEST_CHECK(t, unlink(path) == 0 && mkdir(path, 0700) == 0);
    TEST_STATUS(t, tsi_weights_open(folder, &w), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "is not a regular file");
    data_folder_remove(folder);
}

/* ---- reading --------------------------------------------------------------------------------- */

TS_TEST(parts_of_tensors)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.safetensors");
    write_set(t, path,
              "{\"b\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[24,28]},\"a\":{" F32_6
              "},\"none\":{\"dtype\":\"F64\",\"shape\":[0,3],\"data_offsets\":[24,24]}}  ",
              -1, 28);
    tsi_weights *w = NULL;
    TEST_OK(t, tsi_weights_open(path, &w));
    if (w) {
        const tsi_stored *b = tsi_weights_find(w, "b"), *none = tsi_weights_find(w, "none");
        TEST_CHECK(t, tsi_weights_count(w) == 3 && b && none && !tsi_weights_find(w, "c"));
        unsigned char got[4] = { 0 };
        TEST_OK(t, tsi_weights_read(w, b, 1, 2, got));
        TEST_CHECK(t, got[0] == 25 && got[1] == 26 && got[2] == 0);
        TEST_OK(t, tsi_weights_read(w, none, 0, 0, got));
        TEST_TEXT(t, tsi_weights_at(w, 0)->name, "b");
    }
    tsi_weights_close(w);
    data_folder_remove(folder);
}

/* In place of the system's: reads at most so many bytes at a time, as a signal may have it. */
static size_t most_at_once = SIZE_MAX;

ssize_t preadv(int fd, const struct iovec *to, int count, off_t offset)
{
    size_t done = 0;
    for (int i = 0; i < count && done < most_at_once; i++) {
        size_t n = to[i].iov_len < most_at_once - done ? to[i].iov_len : most_at_once - done;
        ssize_t got = pread(fd, to[i].iov_base, n, offset + (off_t)done);
        if (got < 0) return done > 0 ? (ssize_t)done : got;
        done += (size_t)got;
        if ((size_t)got < n) break;
    }
    return (ssize_t)done;
}

/* More places than the system takes at once, empty ones among them, and reads that end early. */
TS_TEST(bytes_dealt_out)
{
    enum { BYTES = 5000, PLACES = 3001 };
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.safetensors");
    write_set(t, path, "{\"a\":{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[0,5000]}}", -1,
              BYTES);
    tsi_weights *w = NULL;
    TEST_OK(t, tsi_weights_open(path, &w));
    static const size_t at_once[] = { SIZE_MAX, 1, 7, 1000 };
    for (int k = 0; w && k < 4; k++) {
        unsigned char got[BYTES] = { 0 };
        struct iovec to[PLACES];
        size_t at = 0;
        for (int i = 0; i < PLACES; i++) { /* 0, 1, 2, 3, 0, .. bytes, from the end on */
            size_t n = at + (size_t)(i % 4) < BYTES - 100 ? (size_t)(i % 4) : 0;
            at += n;
            to[i] = (struct iovec){ got + BYTES - at, n };
        }
        most_at_once = at_once[k];
        TEST_OK(t, tsi_weights_read_parts(w, tsi_weights_at(w, 0), 50, to, PLACES));
        size_t wrong = 0;
        for (size_t i = 0, from = 50; i < PLACES; i++)
            for (size_t b = 0; b < to[i].iov_len; b++)
                wrong += ((unsigned char *)to[i].iov_base)[b] != (unsigned char)from++;
        TEST_EQ(t, wrong, 0);
    }
    TEST_OK(t, truncate(path, 4000));
    if (w) {
        char got[BYTES];
        struct iovec to[2] = { { got, 3000 }, { got + 3000, 2000 } };
        TEST_STATUS(t, tsi_weights_read_parts(w, tsi_weights_at(w, 0), 0, to, 2), TS_ERR_IO);
    }
    most_at_once = SIZE_MAX;
    tsi_weights_close(w);
    data_folder_remove(folder);
}

static void touch_later(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) return;
    struct utimbuf times = { info.st_atime, info.st_mtime + 2 };
    (void)utime(path, &times);
}

TS_TEST(files_that_change)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.safetensors");
    for (int kind = 0; kind < 3; kind++) {
        write_set(t, path, "{\"a\":{" F32_6 "}}", -1, 24);
        tsi_weights *w = NULL;
        TEST_OK(t, tsi_weights_open(path, &w));
        if (!w) break;
        float got[6];
        TEST_OK(t, tsi_weights_read(w, tsi_weights_at(w, 0), 0, 6, got));
        int fd = open(path, O_WRONLY | (kind == 1 ? O_APPEND : 0));
        if (kind == 0) TEST_CHECK(t, ftruncate(fd, 20) == 0);
        if (kind == 1) TEST_CHECK(t, write(fd, "x", 1) == 1);
        if (kind == 2) TEST_CHECK(t, pwrite(fd, "x", 1, 70) == 1);
        close(fd);
        if (kind == 2) touch_later(path);
        TEST_STATUS(t, tsi_weights_read(w, tsi_weights_at(w, 0), 0, 6, got), TS_ERR_IO);
        TEST_SAYS(t, ts_last_error(), "the file changed while it was being read");
        tsi_weights_close(w);
    }
    data_folder_remove(folder);
}
