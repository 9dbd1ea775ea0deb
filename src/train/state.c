/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - weights and optimiser state of a run on disk, for going on bit for bit on the same
 * mesh.
 *
 *   OUTPUT/state/step-N/rank-R.bin:
 *   "TSSTATE3" | u64 step | u64 the run | u64 updates | f64 loss scale | u64 finite steps at it |
 *   u64 bytes of the meaning | meaning (meaning.c) | the blocks of its tensors, in its order |
 *   u64 checksum of everything before
 *
 * INV: a folder named step-N is complete. It is written as step-N.part by all ranks, synced, and
 * renamed by rank 0 when all are done; before it is removed it is renamed to step-N.old. The newest
 * two are kept. All files of a folder are of one run. Everything is little-endian, as the memory
 * is. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "tensor/tensor.h"
#include "train/run.h"

enum { PATH_BYTES = TSI_CONFIG_TEXT_MAX + 96, BLOCK_BYTES = 1 << 14, MEANING_MAX = 1 << 28 };
static const char magic[8] = "TSSTATE3";

/* ---- checksums ------------------------------------------------------------------------------- */

/* Over blocks of the file, so that it can be checked without knowing what is in it. */
typedef struct checksum {
    uint64_t hash;
    size_t used;
    unsigned char block[BLOCK_BYTES];
} checksum;

static void checksum_add(checksum *sum, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    while (bytes > 0) {
        size_t room = BLOCK_BYTES - sum->used, count = bytes < room ? bytes : room;
        memcpy(sum->block + sum->used, from, count);
        sum->used += count;
        from += count;
        bytes -= count;
        if (sum->used < BLOCK_BYTES) continue;
        sum->hash = tsi_hash_bytes(sum->hash, sum->block, BLOCK_BYTES);
        sum->used = 0;
    }
}

static uint64_t checksum_value(const checksum *sum)
{
    return tsi_hash_bytes(sum->hash, sum->block, sum->used);
}

/* What is wrong with a file; NULL: nothing. */
static const char *damage_of(const char *path)
{
    unsigned char buffer[BLOCK_BYTES];
    checksum sum = { 0 };
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file || fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        if (file) fclose(file);
        return "cannot be opened";
    }
    int64_t left = (int64_t)about.st_size - 8;
    while (left > 0) {
        size_t count = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
        if (fread(buffer, 1, count, file) != count) break;
        checksum_add(&sum, buffer, count);
        left -= (int64_t)count;
    }
    uint64_t stored = 0;
    bool whole = left == 0 && fread(&stored, 1, sizeof stored, file) == sizeof stored;
    fclose(file);
    if (!whole) return "ends too early";
    return stored == checksum_value(&sum) ? NULL : "is damaged: the checksum does not fit";
}

/* ---- bytes ----------------------------------------------------------------------------------- */

typedef struct stream {
    const char *path;
    FILE *file;
    bool reading;
    checksum sum;
} stream;

static ts_status pass(stream *s, void *data, size_t bytes)
{
    if (bytes == 0) return TS_OK;
    size_t done = s->reading ? fread(data, 1, bytes, s->file) : fwrite(data, 1, bytes, s->file);
    if (done != bytes)
        return TSI_FAIL(TS_ERR_IO, "%s: %s", s->path,
                        s->reading ? "ends too early" : strerror(errno));
    if (!s->reading) checksum_add(&s->sum, data, bytes);
    return TS_OK;
}

/* The block of this rank, from or to memory that lies as the layout says. */
static ts_status pass_tensor(const char *name, ts_tensor *t, void *context)
{
    stream *s = context;
    TSI_TRY(tsi_tensor_ready(t));
    if (!tsi_array_is_dense(t->array))
        return TSI_FAIL(TS_ERR_INTERNAL, "%s: the block of %s is not dense", s->path, name);
    tsi_block block = tsi_array_block(t->array);
    size_t bytes = (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)block.dtype);
    if (s->reading) TSI_TRY(tsi_tensor_writable(t, "%s: %s", s->path, name));
    if (s->reading) t->array->storage->version++;
    tsi_image image;
    int32_t mode = s->reading ? TSI_IMAGE_WRITE : TSI_IMAGE_READ;
    TSI_TRY(tsi_image_open(t->rank, &block, mode, &image));
    ts_status status = tsi_rank_device_sync(t->rank);
    if (status == TS_OK) status = pass(s, image.block.data, bytes);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}

typedef struct head {
    char magic[8];
    int64_t step;
    uint64_t run;
    int64_t updates;
    double scale;
    int64_t good;
    uint64_t meaning_bytes;
} head;

static ts_status fail_meaning(const stream *s, const char *there, const char *here)
{
    char *differences = tsi_meaning_differences(there, here);
    ts_status status = TSI_FAIL_BLAST(
        TS_BLAST_LOCAL, TS_ERR_STATE,
        "%s: this run cannot go on from it: %s; train.resume=0 starts anew, model.directory takes "
        "the weights of OUTPUT/model alone",
        s->path, differences ? differences : "it differs");
    tsi_free(differences);
    return status;
}

/* Reads the head and refuses what is not a state of this function on this mesh. */
static ts_status read_head(stream *s, const char *meaning, head *out)
{
    TSI_TRY(pass(s, out, sizeof *out));
    if (memcmp(out->magic, magic, sizeof magic) != 0)
        return TSI_FAIL(TS_ERR_IO,
                        "%s: is not a state of a run, or of another version of tessera; "
                        "train.resume=0 starts anew",
                        s->path);
    if (out->meaning_bytes > MEANING_MAX)
        return TSI_FAIL(TS_ERR_IO, "%s: is damaged: its head does not fit", s->path);
    char *there = tsi_alloc((size_t)out->meaning_bytes + 1);
    if (!there) return tsi_fail_memory("the meaning of a state", (size_t)out->meaning_bytes);
    ts_status status = pass(s, there, (size_t)out->meaning_bytes);
    there[out->meaning_bytes] = '\0';
    if (status == TS_OK && strcmp(there, meaning) != 0) status = fail_meaning(s, there, meaning);
    tsi_free(there);
    return status;
}

static ts_status pass_tensors(stream *s, tsi_run *run)
{
    TSI_TRY(ts_module_each(ts_model_module(run->model), pass_tensor, s));
    return ts_optimizer_each(run->optimizer, pass_tensor, s);
}

static ts_status write_all(stream *s, tsi_run *run, int64_t step, char *meaning)
{
    head h = { .step = step,
               .run = run->id,
               .updates = ts_optimizer_steps(run->optimizer),
               .scale = run->scale.value,
               .good = run->scale.good,
               .meaning_bytes = strlen(meaning) };
    memcpy(h.magic, magic, sizeof magic);
    TSI_TRY(pass(s, &h, sizeof h));
    TSI_TRY(pass(s, meaning, h.meaning_bytes));
    TSI_TRY(pass_tensors(s, run));
    uint64_t sum = checksum_value(&s->sum);
    TSI_TRY(pass(s, &sum, sizeof sum));
    if (fflush(s->file) == 0 && fsync(fileno(s->file)) == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: %s", s->path, strerror(errno));
}

static ts_status read_all(stream *s, tsi_run *run, const char *meaning)
{
    head h;
    TSI_TRY(read_head(s, meaning, &h));
    run->id = h.run;
    run->scale.value = h.scale;
    run->scale.good = h.good;
    TSI_TRY(ts_optimizer_resume(run->optimizer, h.updates));
    return pass_tensors(s, run);
}

static void rank_path(char *out, size_t size, const char *folder, int64_t rank)
{
    snprintf(out, size, "%s/rank-%lld.bin", folder, (long long)rank);
}

typedef enum pass_kind { PASS_WRITE, PASS_READ, PASS_COMPARE } pass_kind;

static ts_status pass_file(tsi_run *run, const char *folder, int64_t step, pass_kind kind)
{
    char path[PATH_BYTES + 32], *meaning = tsi_run_meaning(run);
    if (!meaning) return ts_rank_status(run->me);
    rank_path(path, sizeof path, folder, ts_rank_index(run->me));
    stream s = { .path = path, .reading = kind != PASS_WRITE };
    s.file = fopen(path, s.reading ? "rb" : "wb");
    ts_status status = TS_OK;
    head h;
    if (!s.file)
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    else if (kind == PASS_WRITE)
        status = write_all(&s, run, step, meaning);
    else if (kind == PASS_READ)
        status = read_all(&s, run, meaning);
    else
        status = read_head(&s, meaning, &h);
    if (s.file) fclose(s.file);
    tsi_free(meaning);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

static void step_path(char *out, const char *states, int64_t step, const char *end)
{
    snprintf(out, PATH_BYTES, "%s/step-%lld%s", states, (long long)step, end);
}

/* The largest step below `limit` whose state is complete; 0: none. */
static int64_t newest(const char *states, int64_t limit)
{
    DIR *directory = opendir(states);
    int64_t best = 0;
    if (!directory) return 0;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        long long step = 0;
        char end = 0;
        if (sscanf(entry->d_name, "step-%lld%c", &step, &end) == 1 && step > best && step < limit)
            best = step;
    }
    closedir(directory);
    return best;
}

/* First by another name, so that a half-removed one is never taken for a state. */
static void remove_state(const char *states, int64_t step)
{
    char folder[PATH_BYTES], old[PATH_BYTES];
    step_path(folder, states, step, "");
    step_path(old, states, step, ".old");
    tsi_folder_remove(rename(folder, old) == 0 ? old : folder);
}

/* Removes states before the step `after`. */
static ts_status forget(tsi_run *run, int64_t after)
{
    char states[TSI_CONFIG_TEXT_MAX];
    TSI_TRY(tsi_train_path(run->config, "state", states));
    for (int64_t step = newest(states, after); step > 0; step = newest(states, step))
        remove_state(states, step);
    return TS_OK;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static ts_status publish(tsi_run *run, const char *states, const char *part, int64_t step)
{
    char folder[PATH_BYTES];
    step_path(folder, states, step, "");
    TSI_TRY(tsi_directory_sync(part));
    remove_state(states, step);
    if (rename(part, folder) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s: cannot be renamed: %s", part, strerror(errno));
    TSI_TRY(tsi_directory_sync(states));
    return forget(run, newest(states, step)); /* the one before is kept */
}

ts_status tsi_state_save(tsi_run *run, int64_t step)
{
    char states[TSI_CONFIG_TEXT_MAX], part[PATH_BYTES];
    TSI_TRY(tsi_train_path(run->config, "state", states));
    step_path(part, states, step, ".part");
    bool first = ts_rank_index(run->me) == 0;
    if (first) {
        tsi_folder_remove(part);
        TSI_TRY(tsi_make_directory(part));
        TSI_TRY(tsi_directory_sync(run->config->train.output)); /* "state" may be new */
    }
    TSI_TRY(ts_group_barrier(run->all, NULL));
    TSI_TRY(pass_file(run, part, step, PASS_WRITE));
    TSI_TRY(ts_group_barrier(run->all, NULL));
    if (first) TSI_TRY(publish(run, states, part, step));
    return ts_group_barrier(run->all, NULL);
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool is_intact(const tsi_run *run, const char *folder)
{
    char path[PATH_BYTES + 32];
    for (int64_t rank = 0; rank < ts_rank_count(run->me); rank++) {
        rank_path(path, sizeof path, folder, rank);
        if (damage_of(path)) return false;
    }
    return true;
}

/* Refuses a damaged file with what can be done: which older state is whole, and how to take it. */
static ts_status check_file(tsi_run *run, const char *states, int64_t step, int64_t rank)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 32], other[PATH_BYTES];
    step_path(folder, states, step, "");
    rank_path(path, sizeof path, folder, rank);
    const char *damage = damage_of(path);
    if (!damage) return TS_OK;
    int64_t older = newest(states, step);
    for (; older > 0; older = newest(states, older)) {
        step_path(other, states, older, "");
        if (is_intact(run, other)) break;
    }
    if (older == 0)
        return TSI_FAIL(TS_ERR_IO, "%s: %s; no older state is whole: train.resume=0 starts anew",
                        path, damage);
    return TSI_FAIL(TS_ERR_IO,
                    "%s: %s; the state of step %lld is whole: remove %s to go on from it", path,
                    damage, (long long)older, folder);
}

/* Every rank learns a word of rank 0's. */
static ts_status broadcast(tsi_run *run, void *word)
{
    ts_array array = TS_INIT(ts_array);
    array.data = word;
    array.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    return ts_group_broadcast(run->all, &array, 0, NULL);
}

/* Rank 0 looks first, since the state of another mesh has other files. */
static ts_status find_state(tsi_run *run, const char *states, int64_t *step)
{
    if (ts_rank_index(run->me) == 0) {
        char folder[PATH_BYTES];
        *step = newest(states, INT64_MAX);
        step_path(folder, states, *step, "");
        if (*step > 0) TSI_TRY(check_file(run, states, *step, 0));
        if (*step > 0) TSI_TRY(pass_file(run, folder, *step, PASS_COMPARE));
    }
    return broadcast(run, step);
}

ts_status tsi_state_none(tsi_run *run)
{
    if (ts_rank_index(run->me) == 0) TSI_TRY(forget(run, INT64_MAX));
    return broadcast(run, &run->id);
}

ts_status tsi_state_load(tsi_run *run, int64_t *step)
{
    char states[TSI_CONFIG_TEXT_MAX], folder[PATH_BYTES];
    int64_t found = 0;
    *step = 0;
    TSI_TRY(tsi_train_path(run->config, "state", states));
    TSI_TRY(find_state(run, states, &found));
    if (found == 0) return broadcast(run, &run->id);
    step_path(folder, states, found, "");
    TSI_TRY(check_file(run, states, found, ts_rank_index(run->me)));
    TSI_TRY(pass_file(run, folder, found, PASS_READ));
    uint64_t mine = run->id;
    TSI_TRY(broadcast(run, &run->id));
    if (run->id != mine)
        return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                              "%s: rank-%lld.bin is of the run %016llx, rank-0.bin of %016llx; "
                              "remove the folder to go on from an older state",
                              folder, (long long)ts_rank_index(run->me), (unsigned long long)mine,
                              (unsigned long long)run->id);
    TSI_TRY(ts_group_barrier(run->all, NULL)); /* all could read theirs */
    *step = found;
    return TS_OK;
}
