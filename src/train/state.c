/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - weights and optimiser state of a run on disk, for going on bit for bit on the same
 * mesh.
 *
 *   OUTPUT/state/step-N/rank-R.bin:
 *   "TSSTATE2" | u64 step | u64 hash of mesh, plan and optimiser | u64 updates | f64 loss scale |
 *   u64 finite steps at it | u64 records |
 *   records: u32 bytes of the name | u32 dtype | u64 bytes of the data | name | data |
 *   u64 checksum of everything before
 *
 * A state is written as step-N.part by all ranks, and renamed by rank 0 when all are done: a folder
 * step-N is complete. The newest two are kept. Everything is little-endian, as the memory is. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "array/image.h"
#include "base/error.h"
#include "base/hash.h"
#include "tensor/tensor.h"
#include "train/run.h"

enum { PATH_BYTES = TSI_CONFIG_TEXT_MAX + 96 };
static const char magic[8] = "TSSTATE2";

typedef struct stream {
    const char *path;
    FILE *file;
    uint64_t hash;
    bool reading;
} stream;

/* ---- bytes ----------------------------------------------------------------------------------- */

static ts_status pass(stream *s, void *data, size_t bytes)
{
    if (bytes == 0) return TS_OK;
    size_t done = s->reading ? fread(data, 1, bytes, s->file) : fwrite(data, 1, bytes, s->file);
    if (done != bytes)
        return TSI_FAIL(TS_ERR_IO, "%s: %s", s->path,
                        s->reading ? "ends too early" : strerror(errno));
    s->hash = tsi_hash_bytes(s->hash, data, bytes);
    return TS_OK;
}

/* A number that is written, or read and compared. */
static ts_status pass_number(stream *s, uint64_t value, const char *what)
{
    uint64_t found = value;
    TSI_TRY(pass(s, &found, sizeof found));
    if (found == value) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "%s: %s is %llu in the file and %llu in this run", s->path, what,
                    (unsigned long long)found, (unsigned long long)value);
}

static ts_status pass_name(stream *s, const char *name)
{
    char found[512];
    size_t length = strlen(name);
    if (length >= sizeof found) return TSI_FAIL(TS_ERR_ARG, "%s: the name is too long", name);
    TSI_TRY(pass_number(s, length, "the length of a name"));
    memcpy(found, name, length);
    TSI_TRY(pass(s, found, length));
    if (memcmp(found, name, length) == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "%s: has %.*s where this run has %s", s->path, (int)length, found,
                    name);
}

static ts_status pass_tensor(const char *name, ts_tensor *t, void *context)
{
    stream *s = context;
    TSI_TRY(tsi_tensor_ready(t));
    if (!tsi_array_is_dense(t->array))
        return TSI_FAIL(TS_ERR_INTERNAL, "%s: the block of %s is not dense", s->path, name);
    tsi_block block = tsi_array_block(t->array);
    size_t bytes = (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)block.dtype);
    TSI_TRY(pass_name(s, name));
    TSI_TRY(pass_number(s, (uint64_t)block.dtype, "the dtype"));
    TSI_TRY(pass_number(s, bytes, "the number of bytes of a block"));
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

static ts_status count_tensor(const char *name, ts_tensor *t, void *context)
{
    (void)name;
    (void)t;
    ++*(uint64_t *)context;
    return TS_OK;
}

/* What must be alike for the bits to fit. */
static uint64_t run_hash(const tsi_run *run)
{
    const ts_train_config *c = run->config;
    uint64_t hash = tsi_hash_text(7, run->mesh_text);
    hash = tsi_hash_text(hash, c->parallel.plan);
    hash = tsi_hash_text(hash, c->optimizer.kind);
    return tsi_hash_mix(hash, (uint64_t)ts_rank_index(run->me));
}

static ts_status pass_head(stream *s, const tsi_run *run, int64_t step)
{
    char found[sizeof magic];
    memcpy(found, magic, sizeof found);
    TSI_TRY(pass(s, found, sizeof found));
    if (memcmp(found, magic, sizeof found) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s: is not a state of a run", s->path);
    TSI_TRY(pass_number(s, (uint64_t)step, "the step"));
    uint64_t hash = run_hash(run), mine = hash;
    TSI_TRY(pass(s, &hash, sizeof hash));
    if (hash != mine)
        return TSI_FAIL(TS_ERR_STATE,
                        "%s: was written on another mesh, plan or optimizer than \"%s\", \"%s\", "
                        "%s; go on from OUTPUT/model (model.directory) instead",
                        s->path, run->mesh_text, run->config->parallel.plan,
                        run->config->optimizer.kind);
    return TS_OK;
}

/* What changes from step to step beside the tensors. */
static ts_status pass_progress(stream *s, tsi_run *run)
{
    int64_t updates = ts_optimizer_steps(run->optimizer);
    TSI_TRY(pass(s, &updates, sizeof updates));
    TSI_TRY(pass(s, &run->scale.value, sizeof run->scale.value));
    TSI_TRY(pass(s, &run->scale.good, sizeof run->scale.good));
    return s->reading ? ts_optimizer_resume(run->optimizer, updates) : TS_OK;
}

static ts_status pass_all(stream *s, tsi_run *run, int64_t step)
{
    TSI_TRY(pass_head(s, run, step));
    TSI_TRY(pass_progress(s, run));
    uint64_t count = 0;
    TSI_TRY(ts_module_each(ts_model_module(run->model), count_tensor, &count));
    TSI_TRY(ts_optimizer_each(run->optimizer, count_tensor, &count));
    TSI_TRY(pass_number(s, count, "the number of tensors"));
    TSI_TRY(ts_module_each(ts_model_module(run->model), pass_tensor, s));
    TSI_TRY(ts_optimizer_each(run->optimizer, pass_tensor, s));
    uint64_t sum = s->hash, found = sum;
    TSI_TRY(pass(s, &found, sizeof found));
    if (found == sum) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: the checksum does not fit: the file is damaged", s->path);
}

static ts_status pass_file(tsi_run *run, const char *folder, int64_t step, bool reading)
{
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/rank-%lld.bin", folder, (long long)ts_rank_index(run->me));
    stream s = { path, fopen(path, reading ? "rb" : "wb"), 0, reading };
    if (!s.file) return TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    ts_status status = pass_all(&s, run, step);
    if (!reading && status == TS_OK && (fflush(s.file) != 0 || fsync(fileno(s.file)) != 0))
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    fclose(s.file);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

ts_status tsi_make_directory(const char *path)
{
    char part[PATH_BYTES];
    int length = snprintf(part, sizeof part, "%s", path);
    if (length <= 0 || length >= (int)sizeof part)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return TSI_FAIL(TS_ERR_IO, "%s: cannot be created: %s", part, strerror(errno));
        if (kept == '\0') return TS_OK;
        *at = kept;
    }
}

static void remove_folder(const char *folder)
{
    DIR *directory = opendir(folder);
    if (!directory) return;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char path[PATH_BYTES + 300];
        if (strncmp(entry->d_name, "rank-", 5) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    closedir(directory);
    rmdir(folder);
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

ts_status tsi_state_forget(tsi_run *run, int64_t after)
{
    char states[TSI_CONFIG_TEXT_MAX], folder[PATH_BYTES];
    TSI_TRY(tsi_train_path(run->config, "state", states));
    for (int64_t step = newest(states, after); step > 0; step = newest(states, step)) {
        snprintf(folder, sizeof folder, "%s/step-%lld", states, (long long)step);
        remove_folder(folder);
    }
    return TS_OK;
}

/* ---- saving and loading ---------------------------------------------------------------------- */

static ts_status publish(tsi_run *run, const char *states, const char *part, int64_t step)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s/step-%lld", states, (long long)step);
    remove_folder(folder);
    if (rename(part, folder) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s: cannot be renamed: %s", part, strerror(errno));
    return tsi_state_forget(run, newest(states, step)); /* the one before is kept */
}

ts_status tsi_state_save(tsi_run *run, int64_t step)
{
    char states[TSI_CONFIG_TEXT_MAX], part[PATH_BYTES];
    TSI_TRY(tsi_train_path(run->config, "state", states));
    snprintf(part, sizeof part, "%s/step-%lld.part", states, (long long)step);
    bool first = ts_rank_index(run->me) == 0;
    if (first) TSI_TRY(tsi_make_directory(part));
    TSI_TRY(ts_group_barrier(run->all, NULL));
    TSI_TRY(pass_file(run, part, step, false));
    TSI_TRY(ts_group_barrier(run->all, NULL));
    if (first) TSI_TRY(publish(run, states, part, step));
    return ts_group_barrier(run->all, NULL);
}

ts_status tsi_state_load(tsi_run *run, int64_t *step)
{
    char states[TSI_CONFIG_TEXT_MAX], folder[PATH_BYTES];
    *step = 0;
    TSI_TRY(tsi_train_path(run->config, "state", states));
    int64_t found = ts_rank_index(run->me) == 0 ? newest(states, INT64_MAX) : 0;
    ts_array word = TS_INIT(ts_array);
    word.data = &found;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TSI_TRY(ts_group_broadcast(run->all, &word, 0, NULL));
    if (found == 0) return TS_OK;
    snprintf(folder, sizeof folder, "%s/step-%lld", states, (long long)found);
    TSI_TRY(pass_file(run, folder, found, true));
    TSI_TRY(ts_group_barrier(run->all, NULL)); /* all could read theirs */
    *step = found;
    return TS_OK;
}
