/* SPDX-License-Identifier: Apache-2.0 */
/* save.c - writing a state: every rank its own file, then one sum over all, then the index.
 *
 *   plan -> [copy to staging] -> write, hash, sync -> add up the hashes -> index, rename
 *                                 (may be in the background)   (ranks together)
 *
 * INV: the index is written when every rank has synced its file; until the directory has its name
 * nothing of it counts. A rank that fails removes its own file, and the last one that writes the
 * directory; what a process that was killed left is removed by the next save or run. */
#include "checkpoint/save.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/intmath.h"
#include "base/rank.h"
#include "checkpoint/digest.h"
#include "checkpoint/index_file.h"
#include "comm/comm.h"
#include "tensor/tensor.h"

enum { PART_BYTES = 1 << 20, PATH_BYTES = TSI_FOLDER_PATH_MAX + TSI_DATA_NAME_MAX };

/* ---- from a tensor to its pieces ------------------------------------------------------------- */

typedef struct feed {
    tsi_save *save;
    int64_t next; /* item */
} feed;

/* Elements of a piece from `offset` bytes on, as the file will have them, into the file or the
 * staging. */
static ts_status put_bytes(tsi_save *save, const tsi_data_piece *piece, int64_t offset,
                           const char *data, size_t bytes)
{
    if (save->writer) return tsi_data_put(save->writer, piece, offset, data, bytes);
    char *to = save->staging + (piece->begin - save->plan.begin) + offset;
    TSI_ASSERT(to >= save->staging && to + bytes <= save->staging + save->staging_bytes);
    memcpy(to, data, bytes);
    return TS_OK;
}

/* `count` elements from `first` on in another dtype, into memory that is used again. */
static ts_status cast_part(tsi_save *save, const tsi_block *from, int64_t first, int64_t count,
                           int32_t dtype)
{
    if (!save->cast) save->cast = tsi_alloc_aligned(PART_BYTES, 64);
    if (!save->cast) return tsi_fail_memory("a piece of a tensor", PART_BYTES);
    const tsi_device *host = tsi_device_host();
    tsi_block a = { .data =
                        (char *)from->data + (size_t)first * ts_dtype_size((ts_dtype)from->dtype),
                    .dtype = from->dtype,
                    .ndim = 1,
                    .extent = { count },
                    .stride = { 1 } };
    tsi_block b = {
        .data = save->cast, .dtype = dtype, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    return host->copy(host, &b, &a, NULL);
}

/* One piece, whose elements lie at `from`, part by part: what was added up is in the cache when it
 * is hashed and written. */
static ts_status put_piece(tsi_save *save, const tsi_save_item *item, int64_t number,
                           const tsi_block *from, uint64_t *sum)
{
    const tsi_share *share = &save->share[number];
    size_t size = ts_dtype_size((ts_dtype)item->dtype);
    int64_t most = PART_BYTES / (int64_t)size;
    tsi_summing summing = { 0 };
    ts_status status = sum ? tsi_summing_begin(&summing, item) : TS_OK;
    for (int64_t done = 0, count; done < share->count && status == TS_OK; done += count) {
        tsi_share part = { share->first + done, count = tsi_min_i64(most, share->count - done) };
        const char *data = (const char *)from->data + (size_t)done * size;
        if (from->dtype != item->dtype) {
            status = cast_part(save, from, done, count, item->dtype);
            data = save->cast;
        }
        if (status == TS_OK && sum) tsi_summing_add(&summing, part, data, sum);
        if (status == TS_OK)
            status = put_bytes(save, &save->piece[number], done * (int64_t)size, data,
                               (size_t)count * size);
    }
    tsi_summing_end(&summing);
    return status;
}

/* The pieces of a dense block. */
static ts_status put_pieces(tsi_save *save, int64_t number, const tsi_block *block)
{
    const tsi_save_item *item = &save->item[number];
    size_t size = ts_dtype_size((ts_dtype)block->dtype);
    for (int64_t i = item->piece_first; i < item->piece_first + item->piece_count; i++) {
        /* Copies count once; in the background the thread adds up. */
        uint64_t *sum = save->writer && !save->copy_name[i] ? &save->sum[number] : NULL;
        tsi_block from = { .data = (char *)block->data + (size_t)save->share[i].first * size,
                           .dtype = block->dtype };
        TSI_TRY(put_piece(save, item, i, &from, sum));
    }
    return TS_OK;
}

/* The block of the rank as dense memory of the host. */
static ts_status with_block(tsi_save *save, int64_t number, ts_tensor *t)
{
    tsi_block block = tsi_array_block(t->array);
    if (tsi_array_is_dense(t->array)) {
        tsi_image image;
        TSI_TRY(tsi_image_open(t->rank, &block, TSI_IMAGE_READ, &image));
        ts_status status = tsi_rank_device_sync(t->rank);
        if (status == TS_OK) status = put_pieces(save, number, &image.block);
        tsi_image_drop(&image);
        return status;
    }
    size_t bytes = (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)block.dtype);
    tsi_block dense = tsi_block_dense_like(&block, tsi_alloc_aligned(bytes + 1, 64));
    if (!dense.data) return tsi_fail_memory("a copy of a block", bytes);
    ts_status status = tsi_array_read(t->rank, t->array, &dense);
    if (status == TS_OK) status = put_pieces(save, number, &dense);
    tsi_free(dense.data);
    return status;
}

static ts_status feed_tensor(const char *name, const char *of, ts_tensor *t, void *context)
{
    (void)of;
    feed *f = context;
    int64_t number = f->next++;
    TSI_ASSERT(number < f->save->item_count && strcmp(f->save->item[number].name, name) == 0);
    if (f->save->item[number].piece_count == 0) return TS_OK;
    TSI_TRY(tsi_tensor_ready(t));
    return with_block(f->save, number, t);
}

static ts_status feed_all(tsi_save *save)
{
    feed f = { .save = save };
    return tsi_state_each(save->state, feed_tensor, &f);
}

/* ---- the file of this rank ------------------------------------------------------------------- */

static ts_status create_file(tsi_save *save)
{
    char path[PATH_BYTES], name[TSI_DATA_NAME_MAX];
    tsi_data_file_name(name, ts_rank_index(save->state->rank));
    snprintf(path, sizeof path, "%s/%s", save->part, name);
    return tsi_data_create(path, &save->plan, &save->writer);
}

static ts_status finish_file(tsi_save *save, ts_status status)
{
    ts_status finished = tsi_data_finish(save->writer, status == TS_OK);
    save->writer = NULL;
    return status == TS_OK ? finished : status;
}

static ts_status write_now(tsi_save *save)
{
    if (save->piece_count == 0) return TS_OK;
    TSI_TRY(create_file(save));
    return finish_file(save, feed_all(save));
}

/* ---- in the background ----------------------------------------------------------------------- */

static ts_status drain(tsi_save *save)
{
    for (int64_t number = 0; number < save->item_count; number++) {
        const tsi_save_item *item = &save->item[number];
        for (int64_t i = item->piece_first; i < item->piece_first + item->piece_count; i++) {
            tsi_block from = { .data = save->staging + (save->piece[i].begin - save->plan.begin),
                               .dtype = item->dtype };
            TSI_TRY(
                put_piece(save, item, i, &from, save->copy_name[i] ? NULL : &save->sum[number]));
        }
    }
    return TS_OK;
}

static ts_status write_behind(tsi_save *save)
{
    TSI_TRY(create_file(save));
    return finish_file(save, drain(save));
}

/* Where every core trains, the thread takes a tenth of one; where one idles, all of it. It has no
 * rank: what fails is kept for the rank's own thread. */
static void *work_behind(void *argument)
{
    tsi_save *save = argument;
    tsi_thread_give_way();
    save->status = save->behind(save);
    if (save->status != TS_OK) snprintf(save->error, sizeof save->error, "%s", ts_last_error());
    atomic_store_explicit(&save->written, 1, memory_order_release);
    tsi_wake_all(&save->written);
    return NULL;
}

static ts_status start_behind(tsi_save *save, ts_status (*behind)(tsi_save *save))
{
    save->behind = behind;
    atomic_store_explicit(&save->written, 0, memory_order_relaxed);
    ts_status status = tsi_thread_start(&save->thread, work_behind, save, 1 << 20);
    save->in_background = status == TS_OK;
    save->joined = status != TS_OK;
    return status;
}

static ts_status make_staging(tsi_save *save)
{
    size_t bytes = (size_t)(save->plan.bytes - save->plan.begin);
    bool described = tsi_world_describes(save->state->rank->world); /* counted, and no more */
    if (bytes <= save->staging_bytes && (save->staging || described)) return TS_OK;
    tsi_save_drop_staging(save);
    if (!described) save->staging = tsi_alloc_aligned(bytes + 1, 64);
    if (!save->staging && !described) return tsi_fail_memory("the copy of a state", bytes);
    save->staging_bytes = bytes;
    tsi_save_count_staging(save, 1);
    return TS_OK;
}

static ts_status write_later(tsi_save *save)
{
    atomic_store_explicit(&save->written, 1, memory_order_relaxed);
    save->status = TS_OK;
    if (save->piece_count == 0) return TS_OK;
    TSI_TRY(make_staging(save));
    TSI_TRY(feed_all(save));
    return start_behind(save, write_behind);
}

static ts_status join(tsi_save *save)
{
    if (!save->in_background) return TS_OK;
    save->in_background = false;
    if (!save->joined) pthread_join(save->thread, NULL);
    save->joined = true;
    if (save->status == TS_OK) return TS_OK;
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, save->status, "%s", save->error);
}

/* ---- the index ------------------------------------------------------------------------------- */

/* No temporary name: the whole directory has one. */
static ts_status write_file(const char *folder, const char *name, const void *data, size_t length)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    ts_status status = tsi_file_write(path, file, data, length);
    if (status == TS_OK && fsync(file) != 0)
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    close(file);
    return status;
}

static ts_status write_others(tsi_save *save, tsi_index *index)
{
    const tsi_state_texts *files = &save->files;
    for (int64_t i = 0; i < files->count; i++) {
        const tsi_state_text *file = &files->text[i];
        TSI_TRY(write_file(save->part, file->name, file->data, file->length));
        char *hash =
            tsi_arena_printf(&index->memory, "%016llx",
                             (unsigned long long)tsi_digest_block(file->data, file->length));
        if (!hash) return tsi_fail_memory("the hash of a file", 17);
        index->other[index->other_count++] = (tsi_index_value){ file->name, hash };
    }
    return TS_OK;
}

/* Placements and, where it is another one, mesh of an item. */
static ts_status describe(tsi_index *index, const tsi_save_item *item, tsi_index_tensor *out)
{
    const ts_sharding *sharding = item->layout->sharding;
    size_t length = ts_sharding_text(sharding, NULL, 0);
    char *text = tsi_arena_alloc(&index->memory, length + 1), *mesh = NULL;
    if (text) ts_sharding_text(sharding, text, length + 1);
    length = tsi_mesh_desc_text(sharding->mesh, NULL, 0);
    if (text) mesh = tsi_arena_alloc(&index->memory, length + 1);
    if (!mesh) return tsi_fail_memory("the placements of a tensor", length);
    tsi_mesh_desc_text(sharding->mesh, mesh, length + 1);
    *out = (tsi_index_tensor){ .name = item->name,
                               .of = item->of,
                               .sharding = text,
                               .mesh = strcmp(mesh, index->mesh) == 0 ? NULL : mesh,
                               .meta = { .shape = item->layout->shape, .dtype = item->dtype } };
    return TS_OK;
}

static ts_status fill_index(tsi_save *save, tsi_index *index)
{
    const ts_state *state = save->state;
    size_t length = ts_mesh_text(state->mesh, NULL, 0);
    char *mesh = tsi_arena_alloc(&index->memory, length + 1);
    index->tensor =
        tsi_arena_calloc(&index->memory, (size_t)save->item_count + 1, sizeof *index->tensor);
    index->value =
        tsi_arena_calloc(&index->memory, (size_t)save->values.count + 1, sizeof *index->value);
    index->other =
        tsi_arena_calloc(&index->memory, (size_t)save->files.count + 1, sizeof *index->other);
    if (!mesh || !index->tensor || !index->value || !index->other)
        return tsi_fail_memory("an index", (size_t)save->item_count * sizeof *index->tensor);
    ts_mesh_text(state->mesh, mesh, length + 1);
    index->mesh = mesh;
    for (int64_t i = 0; i < save->values.count; i++)
        index->value[index->value_count++] =
            (tsi_index_value){ save->values.text[i].name, save->values.text[i].data };
    for (int64_t i = 0; i < save->item_count; i++) {
        tsi_index_tensor *t = &index->tensor[index->tensor_count++];
        TSI_TRY(describe(index, &save->item[i], t));
        t->hash = tsi_digest_tensor(&t->meta, save->sum[i]);
        index->hash += tsi_digest_named(t->name, t->hash);
    }
    return TS_OK;
}

static ts_status write_index(tsi_save *save)
{
    tsi_index index = { .save = save->id,
                        .step = save->options.step,
                        .copies = save->options.copies };
    size_t length = 0;
    char *text = NULL;
    ts_status status = fill_index(save, &index);
    if (status == TS_OK) status = write_others(save, &index);
    if (status == TS_OK) {
        text = tsi_index_text(&index, &length);
        status = text ? write_file(save->part, TSI_INDEX_NAME, text, length) : TS_ERR_MEMORY;
    }
    tsi_free(text);
    tsi_index_release(&index);
    return status;
}

/* ---- ranks together -------------------------------------------------------------------------- */

static ts_status all_reduce(ts_state *state, void *data, int64_t count, ts_reduce reduce)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_I64 };
    return ts_group_all_reduce(state->group, &array, &array, reduce, NULL);
}

/* Nothing is left of a save that failed, as far as this rank can see to it. */
void tsi_save_abandon(tsi_save *save)
{
    char path[PATH_BYTES], name[TSI_DATA_NAME_MAX];
    tsi_data_file_name(name, ts_rank_index(save->state->rank));
    snprintf(path, sizeof path, "%s/%s", save->part, name);
    unlink(path);
    tsi_folder_abandon(save->part, save->lock);
}

/* Somebody may have removed the directory when others had written and this rank had not begun. */
static ts_status check_files(const tsi_save *save)
{
    int64_t wanted = (int64_t)save->sum[save->item_count], there = tsi_folder_count(save->part);
    if (there == wanted) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: %lld files were written and %lld are there", save->part,
                    (long long)wanted, (long long)there);
}

static ts_status publish(tsi_save *save)
{
    if (ts_group_index(save->state->group) != 0) return TS_OK;
    TSI_TRY(check_files(save));
    TSI_TRY(write_index(save));
    return tsi_folder_publish(save->part, save->path, save->id);
}

/* All have written: adds up the hashes. */
static ts_status add_up(tsi_save *save)
{
    TSI_TRY(join(save));
    save->sum[save->item_count] = save->piece_count > 0; /* files */
    return all_reduce(save->state, save->sum, save->item_count + 1, TS_REDUCE_SUM);
}

/* The end, good or bad; all hear of it. */
static ts_status finish(tsi_save *save, ts_status status)
{
    if (status != TS_OK) tsi_save_abandon(save);
    if (save->lock >= 0) close(save->lock);
    save->lock = -1;
    save->under_way = save->publishing = false;
    int64_t word = 0;
    return status == TS_OK ? all_reduce(save->state, &word, 1, TS_REDUCE_MAX) : status;
}

static ts_status complete(tsi_save *save)
{
    ts_status status = save->publishing ? join(save) : add_up(save);
    if (status == TS_OK && !save->publishing) status = publish(save);
    return finish(save, status);
}

/* The same without waiting for the disk: rank 0's thread writes the index and renames. */
static ts_status publish_later(tsi_save *save)
{
    ts_status status = add_up(save);
    save->publishing = true;
    if (status == TS_OK && ts_group_index(save->state->group) == 0)
        status = start_behind(save, publish);
    return status == TS_OK ? TS_OK : finish(save, status);
}

/* Those of a process that may write at once: the others wait for their turn. */
static ts_status write_in_turns(tsi_save *save)
{
    const ts_rank *rank = save->state->rank;
    int64_t size = rank->world->local_count, mine = rank->local_index; /* the same everywhere */
    int64_t writers = save->options.writers > 0 ? save->options.writers : size;
    ts_status status = TS_OK;
    for (int64_t first = 0; first < size && status == TS_OK; first += writers) {
        if (mine >= first && mine < first + writers) status = write_now(save);
        if (status == TS_OK && writers < size) status = ts_group_barrier(save->state->group, NULL);
    }
    return status;
}

static ts_status begin(tsi_save *save, const char *directory)
{
    ts_state *state = save->state;
    if (snprintf(save->path, sizeof save->path, "%s", directory) >= (int)sizeof save->path)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", directory);
    save->id = tsi_hash_mix(state->id, (uint64_t)++state->saves);
    TSI_TRY(tsi_folder_part(directory, save->id, save->part));
    TSI_TRY(tsi_state_gather_texts(state));
    if (ts_group_index(state->group) == 0) {
        TSI_TRY(tsi_state_texts_copy(&save->values, &state->values));
        TSI_TRY(tsi_state_texts_copy(&save->files, &state->files));
    }
    TSI_TRY(tsi_save_plan(save));
    if (tsi_world_describes(state->rank->world)) /* planned, and nothing to write */
        return save->options.background && save->piece_count > 0 ? make_staging(save) : TS_OK;
    save->under_way = true;
    TSI_TRY(tsi_folder_begin(save->part, &save->lock));
    if (ts_group_index(state->group) == 0) {
        TSI_TRY(tsi_folder_clean(directory, save->id));
        TSI_TRY(tsi_folder_room(save->part, save->bytes * save->options.copies));
    }
    if (save->options.background) return write_later(save);
    return write_in_turns(save);
}

static tsi_save *save_of(ts_state *state, const ts_save_options *options)
{
    if (!state->save) state->save = tsi_calloc(1, sizeof *state->save);
    tsi_save *save = state->save;
    if (!save) {
        tsi_fail_memory("a save", sizeof *save);
        return NULL;
    }
    save->state = state;
    save->lock = -1;
    save->options = (ts_save_options){ .struct_size = sizeof save->options };
    if (options)
        memcpy(&save->options, options,
               options->struct_size < sizeof save->options ? options->struct_size
                                                           : sizeof save->options);
    if (save->options.copies < 1) save->options.copies = 1;
    return save;
}

ts_status ts_checkpoint_save(ts_state *state, const char *directory, const ts_save_options *options)
{
    if (!state || !directory) return TSI_FAIL(TS_ERR_NULL, "save: an argument is NULL");
    TSI_TRY(tsi_rank_enter(state->rank));
    TSI_TRY(tsi_comm_once(state->rank, "save"));
    TSI_TRY(ts_state_wait(state));
    if (!state->mesh->member) return TS_OK;
    tsi_save *save = save_of(state, options);
    if (!save) return TS_ERR_MEMORY;
    if (save->options.background && save->options.writers > 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "save: writers is %d, and who writes in the background takes no turns but "
                        "gives way to other work; leave it 0",
                        (int)save->options.writers);
    ts_status status = begin(save, directory);
    if (status == TS_OK && save->under_way && !save->options.background) return complete(save);
    if (status == TS_OK) return TS_OK;
    if (save->under_way) tsi_save_abandon(save);
    if (save->lock >= 0) close(save->lock);
    save->lock = -1;
    save->under_way = false;
    return status;
}

ts_status ts_state_wait(ts_state *state)
{
    if (!state) return TSI_FAIL(TS_ERR_NULL, "state_wait: there is no state");
    TSI_TRY(tsi_rank_enter(state->rank));
    if (!state->save || !state->save->under_way) return TS_OK;
    TSI_TRY(tsi_comm_once(state->rank, "state_wait"));
    return complete(state->save);
}

ts_status ts_state_poll(ts_state *state, int *busy)
{
    if (busy) *busy = 0;
    if (!state || !busy) return TSI_FAIL(TS_ERR_NULL, "state_poll: an argument is NULL");
    TSI_TRY(tsi_rank_enter(state->rank));
    tsi_save *save = state->save;
    if (!save || !save->under_way) return TS_OK;
    TSI_TRY(tsi_comm_once(state->rank, "state_poll"));
    int64_t working = !atomic_load_explicit(&save->written, memory_order_acquire);
    TSI_TRY(all_reduce(state, &working, 1, TS_REDUCE_MAX));
    *busy = working != 0 || !save->publishing;
    if (working) return TS_OK;
    return save->publishing ? complete(save) : publish_later(save);
}
