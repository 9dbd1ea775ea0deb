/* SPDX-License-Identifier: Apache-2.0 */
/* load.c - filling the tensors of a state from a checkpoint of any mesh.
 *
 * First every name and shape is compared, so that a state that does not fit is left as it was; then
 * each rank reads its own regions, one tensor at a time, and ranks of a process that want parts of
 * the same bytes read those for each other (together.h).
 *
 * INV: files are read without the rank: what is damaged and was repaired from another copy is no
 * failure of the rank, and what could not be repaired fails it once, with the file's sentence. */
#include <stdio.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/rank.h"
#include "base/text.h"
#include "checkpoint/archive.h"
#include "checkpoint/names.h"
#include "checkpoint/state.h"
#include "checkpoint/together.h"
#include "comm/comm.h"
#include "op/core/common.h"
#include "tensor/tensor.h"

enum { NAME_BYTES = 1024, LISTED = 8 };

typedef struct loading {
    ts_archive *archive;
    ts_load_options options;
    const char *directory;
    tsi_text missing, unexpected; /* names, the first of them */
    int64_t missing_count, unexpected_count;
    bool *used; /* entries of the archive */
    /* Of each tensor of the state: is it read together with others? */
    bool *taken;
    int64_t tensor_count, taken_capacity;
    int64_t next; /* that is read by the rank alone */
    tsi_together_item *item;
    int64_t item_count, item_capacity;
    tsi_together *together;
    tsi_load_advice advice;
    void *advice_context;
} loading;

static void list(tsi_text *out, int64_t *count, const char *name)
{
    if (++*count <= LISTED) tsi_text_printf(out, "%s%s", *count > 1 ? ", " : "", name);
}

/* The entry of a tensor of the state; NULL: it is not wanted, or is missing (listed). */
static ts_status find_entry(loading *l, const char *name, const tsi_entry **out)
{
    char there[NAME_BYTES];
    *out = NULL;
    if (!tsi_names_match(l->options.names, name)) return TS_OK;
    TSI_TRY(tsi_names_rename(l->options.renamed, name, there, sizeof there));
    *out = tsi_archive_find(l->archive, there);
    if (!*out) list(&l->missing, &l->missing_count, there);
    return TS_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static ts_status compare(const char *name, const char *of, ts_tensor *t, void *context)
{
    (void)of;
    loading *l = context;
    const tsi_entry *entry;
    TSI_TRY(find_entry(l, name, &entry));
    if (!entry) return TS_OK;
    l->used[entry - l->archive->entry] = true;
    if (tsi_shape_same(&entry->meta.shape, &t->layout->shape)) return TS_OK;
    char there[256], here[256];
    tsi_shape_text(&entry->meta.shape, there, sizeof there);
    tsi_shape_text(&t->layout->shape, here, sizeof here);
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_SHAPE,
                          "load: %s is %s there and %s here (%s); make the state as it was saved, "
                          "or leave the tensor out",
                          name, there, here, l->directory);
}

static ts_status check_names(loading *l)
{
    for (int64_t i = 0; i < l->archive->count; i++)
        if (!l->used[i] && tsi_names_match(l->options.names, l->archive->entry[i].name))
            list(&l->unexpected, &l->unexpected_count, l->archive->entry[i].name);
    if (l->options.partial || (l->missing_count == 0 && l->unexpected_count == 0)) return TS_OK;
    int64_t more = (l->missing_count > LISTED ? l->missing_count - LISTED : 0) +
                   (l->unexpected_count > LISTED ? l->unexpected_count - LISTED : 0);
    char rest[64] = "";
    if (more > 0) snprintf(rest, sizeof rest, " and %lld more", (long long)more);
    return TSI_FAIL_BLAST(
        TS_BLAST_LOCAL, TS_ERR_STATE, "load: %s: %s%s%s%s%s%s; partial=1 takes what is there",
        l->directory, l->missing_count ? "not there: " : "", l->missing.data ? l->missing.data : "",
        l->missing_count && l->unexpected_count ? "; " : "",
        l->unexpected_count ? "not asked for: " : "", l->unexpected.data ? l->unexpected.data : "",
        rest);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Fails the rank with what the thread, while it had none, failed with last. */
static ts_status fail_read(const loading *l, ts_rank *rank, ts_status status)
{
    char error[TSI_ERROR_TEXT_MAX], advice[TSI_ERROR_TEXT_MAX] = "";
    snprintf(error, sizeof error, "%s", ts_last_error());
    if (l->advice) l->advice(l->advice_context, advice, sizeof advice);
    tsi_rank_set_current(rank);
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, status, "%s%s", error, advice);
}

/* Reads into dense memory of the host; the rank hears of it only if it fails for good. */
static ts_status read_block(loading *l, const tsi_entry *entry, ts_tensor *t, const tsi_block *to)
{
    tsi_rank_set_current(NULL);
    ts_status status = tsi_archive_read_block(l->archive, entry, t->layout, t->mesh->coord, to);
    if (status != TS_OK) return fail_read(l, t->rank, status);
    tsi_rank_set_current(t->rank);
    return TS_OK;
}

static ts_status read_dense(loading *l, const tsi_entry *entry, ts_tensor *t)
{
    tsi_block block = tsi_array_block(t->array);
    tsi_image image;
    TSI_TRY(tsi_image_open(t->rank, &block, TSI_IMAGE_WRITE, &image));
    ts_status status = read_block(l, entry, t, &image.block);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}

static ts_status read_strided(loading *l, const tsi_entry *entry, ts_tensor *t)
{
    tsi_block block = tsi_array_block(t->array);
    size_t bytes = (size_t)tsi_block_count(&block) * ts_dtype_size((ts_dtype)block.dtype);
    tsi_block dense = tsi_block_dense_like(&block, tsi_alloc_aligned(bytes + 1, 64));
    if (!dense.data) return tsi_fail_memory("a copy of a block", bytes);
    ts_status status = read_block(l, entry, t, &dense);
    if (status == TS_OK) status = tsi_array_write(t->rank, t->array, &dense);
    tsi_free(dense.data);
    return status;
}

/* The tensor may be filled from here on. */
static ts_status prepare(const char *name, ts_tensor *t)
{
    if (t->layout->axes_partial)
        return TSI_FAIL(TS_ERR_ARG, "load: %s is %s: a partial tensor cannot be filled", name,
                        t->layout->text);
    TSI_TRY(tsi_tensor_ready(t));
    TSI_TRY(tsi_tensor_writable(t, "load: %s", name));
    tsi_array_wrote(t->array);
    return TS_OK;
}

/* Those that are not read together with others. */
static ts_status read_tensor(const char *name, const char *of, ts_tensor *t, void *context)
{
    (void)of;
    loading *l = context;
    const tsi_entry *entry;
    bool taken = l->taken && l->taken[l->next++];
    if (taken) return TS_OK;
    TSI_TRY(find_entry(l, name, &entry));
    if (!entry || !t->mesh->member || t->layout->count == 0) return TS_OK;
    TSI_TRY(prepare(name, t));
    if (tsi_array_is_dense(t->array)) return read_dense(l, entry, t);
    return read_strided(l, entry, t);
}

/* ---- together with other ranks of the process ------------------------------------------------ */

/* Lets others fill the block of the rank, unless it is on a device, or strided. */
static ts_status offer(const char *name, ts_tensor *t, tsi_archive_target *target)
{
    const tsi_rank_device *where = tsi_rank_device_of(t->rank);
    if (!where) return ts_rank_status(t->rank);
    if (!where->device->host_readable) return TS_OK;
    TSI_TRY(prepare(name, t));
    if (!tsi_array_is_dense(t->array)) return TS_OK;
    tsi_block block = tsi_array_block(t->array);
    target->data = block.data;
    target->dtype = (ts_dtype)block.dtype;
    return TS_OK;
}

static ts_status collect(const char *name, const char *of, ts_tensor *t, void *context)
{
    (void)of;
    loading *l = context;
    tsi_together_item item = { .target = { .layout = t->layout, .coord = t->mesh->coord } };
    TSI_TRY(tsi_room(&l->taken, l->tensor_count, &l->taken_capacity, sizeof *l->taken,
                     "the tensors of a state"));
    bool *taken = &l->taken[l->tensor_count++];
    *taken = false;
    TSI_TRY(find_entry(l, name, &item.entry));
    if (!item.entry || t->layout->count == 0 || t->layout->axes_partial ||
        !tsi_archive_is_common(l->archive, item.entry, t->layout))
        return TS_OK;
    TSI_TRY(tsi_room(&l->item, l->item_count, &l->item_capacity, sizeof *l->item,
                     "the tensors of a state"));
    if (t->mesh->member) TSI_TRY(offer(name, t, &item.target));
    *taken = item.target.data != NULL;
    l->item[l->item_count++] = item;
    return TS_OK;
}

/* What ranks of the process share is read when all of them have said where they want it; before it
 * each reads what is its own, so that who has less of that takes more of the tasks. */
static ts_status read_all(loading *l, ts_state *state)
{
    if (state->rank->world->local_count < 2) return tsi_state_each(state, read_tensor, l);
    TSI_TRY(tsi_state_each(state, collect, l));
    uint64_t id = tsi_hash_mix(state->id, (uint64_t)state->loads);
    if (l->item_count > 0) {
        l->together = tsi_together_join(state->rank, id, l->archive, l->item, l->item_count);
        if (!l->together) return TS_ERR_MEMORY;
    }
    TSI_TRY(ts_group_barrier(state->group, NULL));
    TSI_TRY(tsi_state_each(state, read_tensor, l));
    if (!l->together) return TS_OK;
    tsi_rank_set_current(NULL);
    ts_status status = tsi_together_read(l->together, l->archive);
    if (status != TS_OK) return fail_read(l, state->rank, status);
    tsi_rank_set_current(state->rank);
    return TS_OK;
}

static ts_status take_texts(const loading *l, ts_state *state)
{
    const tsi_index *index = &l->archive->index;
    for (int64_t i = 0; i < index->value_count; i++)
        TSI_TRY(tsi_state_put(&state->values, index->value[i].name, index->value[i].text,
                              strlen(index->value[i].text)));
    return tsi_state_spread_texts(state);
}

static ts_status load_all(loading *l, ts_state *state)
{
    l->used = tsi_calloc((size_t)l->archive->count + 1, sizeof *l->used);
    if (!l->used) return tsi_fail_memory("the names of a checkpoint", (size_t)l->archive->count);
    TSI_TRY(tsi_state_each(state, compare, l));
    TSI_TRY(check_names(l));
    if (!tsi_world_describes(state->rank->world)) TSI_TRY(read_all(l, state));
    return take_texts(l, state);
}

static ts_status open_archive(loading *l, ts_rank *rank)
{
    tsi_rank_set_current(NULL);
    ts_status status = ts_archive_open(l->directory, &l->archive);
    if (status != TS_OK) return fail_read(l, rank, status);
    tsi_rank_set_current(rank);
    l->archive->unverified = l->options.unverified != 0;
    return TS_OK;
}

ts_status tsi_checkpoint_load(ts_state *state, const char *directory,
                              const ts_load_options *options, tsi_load_advice advice, void *context)
{
    if (!state || !directory) return TSI_FAIL(TS_ERR_NULL, "load: an argument is NULL");
    TSI_TRY(tsi_rank_enter(state->rank));
    TSI_TRY(tsi_comm_once(state->rank, "load"));
    TSI_TRY(ts_state_wait(state));
    if (!state->mesh->member) return TS_OK;
    state->loads++;
    loading l = { .directory = directory, .advice = advice, .advice_context = context };
    if (options)
        memcpy(&l.options, options,
               options->struct_size < sizeof l.options ? options->struct_size : sizeof l.options);
    ts_status status = open_archive(&l, state->rank);
    if (status == TS_OK) status = load_all(&l, state);
    if (status == TS_OK) status = ts_group_barrier(state->group, NULL); /* all could read theirs */
    tsi_together_leave(l.together);
    ts_archive_close(l.archive);
    tsi_free(l.taken);
    tsi_free(l.item);
    tsi_text_release(&l.missing);
    tsi_text_release(&l.unexpected);
    tsi_free(l.used);
    return status;
}

ts_status ts_checkpoint_load(ts_state *state, const char *directory, const ts_load_options *options)
{
    return tsi_checkpoint_load(state, directory, options, NULL, NULL);
}
