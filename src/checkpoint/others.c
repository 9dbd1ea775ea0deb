/* SPDX-License-Identifier: Apache-2.0 */
/* others.c - files that lie beside the data of a checkpoint, such as config.json: the index knows
 * their hashes. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/archive.h"
#include "checkpoint/digest.h"

enum { PATH_BYTES = 4400, PIECE = 1 << 20, OTHERS_MAX = 1024 };

static bool is_other(const char *directory, const char *name)
{
    char path[PATH_BYTES];
    struct stat about;
    size_t length = strlen(name);
    if (strcmp(name, TSI_INDEX_NAME) == 0) return false;
    if (length > 12 && strcmp(name + length - 12, ".safetensors") == 0) return false;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

/* The block hash of a whole file, a piece at a time: its words add up as those of a tensor do. */
static ts_status hash_open(const char *path, int file, char *piece, uint64_t *out)
{
    uint64_t sum = 0;
    int64_t at = 0;
    size_t done = PIECE;
    while (done == PIECE) {
        TSI_TRY(tsi_file_read_at(path, file, at, piece, PIECE, &done));
        size_t words = (done + 3) / 4;
        memset(piece + done, 0, words * 4 - done); /* the last word is filled up */
        sum += tsi_digest_elements(TS_DTYPE_I32, at / 4, piece, (int64_t)words);
        at += (int64_t)done;
    }
    *out = tsi_digest_block_of((size_t)at, sum);
    return TS_OK;
}

static ts_status hash_file(const char *directory, const char *name, uint64_t *out)
{
    char path[PATH_BYTES];
    int file = -1;
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    TSI_TRY(tsi_file_open(path, &file, &bytes));
    char *piece = tsi_alloc(PIECE);
    ts_status status =
        piece ? hash_open(path, file, piece, out) : tsi_fail_memory("a piece of a file", PIECE);
    tsi_free(piece);
    close(file);
    return status;
}

static ts_status add(tsi_index *index, const char *directory, const char *name)
{
    uint64_t hash = 0;
    TSI_TRY(hash_file(directory, name, &hash));
    tsi_index_value *other = &index->other[index->other_count];
    other->name = tsi_arena_strdup(&index->memory, name);
    other->text = tsi_arena_printf(&index->memory, "%016llx", (unsigned long long)hash);
    if (!other->name || !other->text) return tsi_fail_memory("the hash of a file", 17);
    index->other_count++;
    return TS_OK;
}

ts_status tsi_index_add_others(tsi_index *index, const char *directory)
{
    index->other = tsi_arena_calloc(&index->memory, OTHERS_MAX, sizeof *index->other);
    if (!index->other)
        return tsi_fail_memory("the files of a directory", OTHERS_MAX * sizeof *index->other);
    DIR *files = opendir(directory);
    ts_status status = TS_OK;
    for (struct dirent *entry = files ? readdir(files) : NULL;
         entry && status == TS_OK && index->other_count < OTHERS_MAX; entry = readdir(files))
        if (is_other(directory, entry->d_name)) status = add(index, directory, entry->d_name);
    if (files) closedir(files);
    return status;
}

ts_status ts_archive_check_others(const ts_archive *archive)
{
    for (int64_t i = 0; i < archive->index.other_count; i++) {
        const tsi_index_value *other = &archive->index.other[i];
        char have[20];
        uint64_t hash = 0;
        TSI_TRY(hash_file(archive->path, other->name, &hash));
        snprintf(have, sizeof have, "%016llx", (unsigned long long)hash);
        if (strcmp(have, other->text) != 0)
            return TSI_FAIL(TS_ERR_IO, "%s/%s: is damaged: its hash is %s, written was %s",
                            archive->path, other->name, have, other->text);
    }
    return TS_OK;
}
