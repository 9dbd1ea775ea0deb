/* SPDX-License-Identifier: Apache-2.0 */
/* save_plan.c - what this rank writes, computed alone: see save.h. */
#include <string.h>
#include <unistd.h>

#include "array/pool.h"
#include "base/alloc.h"
#include "base/dtype.h"
#include "base/intmath.h"
#include "checkpoint/digest.h"
#include "checkpoint/save.h"
#include "tensor/tensor.h"

/* ---- items ----------------------------------------------------------------------------------- */

static int32_t stored_dtype(const tsi_save *save, const ts_tensor *t)
{
    bool other = save->options.dtype != 0 && tsi_dtype_is_real(t->dtype);
    return other ? save->options.dtype : t->dtype;
}

static ts_status grow_items(tsi_save *save)
{
    if (save->item_count < save->item_capacity) return TS_OK;
    int64_t capacity = save->item_capacity ? 2 * save->item_capacity : 256;
    tsi_save_item *grown = tsi_realloc(save->item, (size_t)capacity * sizeof *grown);
    if (!grown) return tsi_fail_memory("the items of a save", (size_t)capacity * sizeof *grown);
    save->item = grown;
    save->item_capacity = capacity;
    return TS_OK;
}

static bool is_copy(const ts_state *state, const char *name)
{
    size_t length = state->copy ? strlen(state->copy) : 0;
    return length > 0 && strncmp(name, state->copy, length) == 0 &&
           (name[length] == '\0' || name[length] == '.');
}

static ts_status add_item(const char *name, const char *of, ts_tensor *t, void *context)
{
    tsi_save *save = context;
    if (t->layout->axes_partial)
        return TSI_FAIL(TS_ERR_ARG,
                        "save: %s is %s: a sum that is still to be taken; redistribute it first",
                        name, t->layout->text);
    TSI_TRY(grow_items(save));
    tsi_save_item *item = &save->item[save->item_count];
    *item = (tsi_save_item){ .name = tsi_strdup(name),
                             .of = of,
                             .layout = ts_layout_retain(t->layout),
                             .dtype = stored_dtype(save, t),
                             .member = t->mesh->member && !is_copy(save->state, name) };
    if (!item->name) return tsi_fail_memory("a name", strlen(name));
    save->item_count++;
    memcpy(item->coord, t->mesh->coord, sizeof item->coord);
    save->bytes += tsi_mul_most(t->layout->count, (int64_t)ts_dtype_size((ts_dtype)item->dtype));
    return TS_OK;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static ts_status grow_pieces(tsi_save *save)
{
    if (save->piece_count < save->piece_capacity) return TS_OK;
    int64_t capacity = save->piece_capacity ? 2 * save->piece_capacity : 256;
    size_t count = (size_t)capacity;
    tsi_data_piece *piece = tsi_realloc(save->piece, count * sizeof *piece);
    if (piece) save->piece = piece;
    tsi_share *share = tsi_realloc(save->share, count * sizeof *share);
    if (share) save->share = share;
    char **name = tsi_realloc(save->copy_name, count * sizeof *name);
    if (name) save->copy_name = name;
    if (!piece || !share || !name)
        return tsi_fail_memory("the pieces of a save", count * sizeof *piece);
    save->piece_capacity = capacity;
    return TS_OK;
}

/* A whole block keeps its shape, for other readers; a part of one is a row of elements. */
static ts_status add_piece(tsi_save *save, const tsi_save_item *item, tsi_share share, int64_t copy,
                           bool whole)
{
    TSI_TRY(grow_pieces(save));
    int64_t i = save->piece_count;
    save->copy_name[i] = copy > 0 ? tsi_data_copy_name(item->name, copy) : NULL;
    if (copy > 0 && !save->copy_name[i]) return TS_ERR_MEMORY;
    ts_meta meta = { .shape = TS_SHAPE(share.count), .dtype = item->dtype };
    if (whole) tsi_layout_local(item->layout, item->coord, &meta.shape);
    save->piece[i] =
        (tsi_data_piece){ .name = copy > 0 ? save->copy_name[i] : item->name, .meta = meta };
    save->share[i] = share;
    save->piece_count++;
    return TS_OK;
}

static ts_status add_pieces(tsi_save *save, tsi_save_item *item)
{
    item->piece_first = save->piece_count;
    if (!item->member) return TS_OK;
    tsi_share_rule rule;
    tsi_share_rule_of(item->layout, item->coord, item->name, ts_dtype_size((ts_dtype)item->dtype),
                      &rule);
    int64_t copies = tsi_min_i64(save->options.copies, rule.holders);
    for (int64_t copy = 0; copy < copies; copy++) {
        tsi_share share = tsi_share_at(&rule, item->layout, item->coord, copy);
        if (share.count > 0) TSI_TRY(add_piece(save, item, share, copy, share.count == rule.count));
    }
    item->piece_count = save->piece_count - item->piece_first;
    return TS_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static ts_status sign(const char *name, const char *of, ts_tensor *t, void *context)
{
    uint64_t *hash = context;
    *hash = tsi_hash_text(tsi_hash_text(*hash, name), of);
    *hash = tsi_hash_mix(*hash, (uint64_t)(uintptr_t)t->layout);
    *hash = tsi_hash_mix(*hash, (uint64_t)t->dtype);
    return TS_OK;
}

static void forget_plan(tsi_save *save)
{
    for (int64_t i = 0; i < save->item_count; i++) {
        tsi_free(save->item[i].name);
        ts_layout_release(save->item[i].layout);
    }
    for (int64_t i = 0; i < save->piece_count; i++)
        tsi_free(save->copy_name[i]);
    tsi_data_plan_release(&save->plan);
    tsi_free(save->sum);
    save->sum = NULL;
    save->item_count = save->piece_count = save->bytes = 0;
    save->signature = 0;
}

ts_status tsi_save_plan(tsi_save *save)
{
    uint64_t signature =
        tsi_hash_mix((uint64_t)save->options.dtype, (uint64_t)save->options.copies);
    TSI_TRY(tsi_state_each(save->state, sign, &signature));
    if (save->signature == signature && save->sum) {
        memset(save->sum, 0, (size_t)(save->item_count + 1) * sizeof *save->sum);
        tsi_data_plan_stamp(&save->plan, save->id);
        return TS_OK;
    }
    forget_plan(save);
    TSI_TRY(tsi_state_each(save->state, add_item, save));
    for (int64_t i = 0; i < save->item_count; i++)
        TSI_TRY(add_pieces(save, &save->item[i]));
    TSI_TRY(tsi_data_plan_make(save->piece, save->piece_count, save->id,
                               ts_rank_index(save->state->rank), &save->plan));
    save->sum = tsi_calloc((size_t)save->item_count + 1, sizeof *save->sum);
    if (!save->sum) return tsi_fail_memory("the hashes of a save", (size_t)save->item_count * 8);
    save->signature = signature;
    return TS_OK;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

ts_status tsi_summing_begin(tsi_summing *s, const tsi_save_item *item)
{
    *s = (tsi_summing){ .item = item, .view = tsi_layout_view(item->layout) };
    if (!tsi_layout_region(item->layout, item->coord, &s->memory, &s->region)) return TS_ERR_MEMORY;
    tsi_region_iterate(&s->run, &s->region, &s->view);
    s->some = tsi_region_next(&s->run);
    return TS_OK;
}

void tsi_summing_add(tsi_summing *s, tsi_share part, const void *data, uint64_t *sum)
{
    ts_dtype dtype = (ts_dtype)s->item->dtype;
    int64_t end = part.first + part.count;
    while (s->some && s->run.local < end) {
        int64_t first = tsi_max_i64(s->run.local, part.first);
        int64_t run_end = s->run.local + s->run.length, count = tsi_min_i64(run_end, end) - first;
        const char *at = (const char *)data + (size_t)(first - part.first) * ts_dtype_size(dtype);
        if (count > 0)
            *sum += tsi_digest_elements(dtype, s->run.global + first - s->run.local, at, count);
        if (run_end > end) return; /* the next part goes on with it */
        s->some = tsi_region_next(&s->run);
    }
}

void tsi_summing_end(tsi_summing *s)
{
    tsi_arena_release(&s->memory);
}

void tsi_save_count_staging(tsi_save *save, int sign)
{
    ts_world *world = save->state->rank->world;
    tsi_pool *pool = tsi_pool_of(save->state->rank);
    if (!pool) return;
    bool host = tsi_world_describes(world) ? world->scratch : tsi_pool_device(pool)->host_readable;
    if (!host) return;
    if (sign > 0)
        tsi_pool_count_taken(pool, save->staging_bytes, TSI_TAG_STAGING);
    else
        tsi_pool_count_live(pool, -(int64_t)save->staging_bytes, TSI_TAG_STAGING);
}

void tsi_save_drop_staging(tsi_save *save)
{
    if (save->staging_bytes > 0) tsi_save_count_staging(save, -1);
    tsi_free(save->staging);
    save->staging = NULL;
    save->staging_bytes = 0;
}

void tsi_save_destroy(tsi_save *save)
{
    if (!save) return;
    if (save->in_background && !save->joined) pthread_join(save->thread, NULL);
    /* Once all have written the first rank publishes, with the files of all; else nobody will. */
    if (save->under_way && !save->publishing) tsi_save_abandon(save);
    if (save->under_way && save->lock >= 0) close(save->lock);
    forget_plan(save);
    tsi_free(save->item);
    tsi_free(save->piece);
    tsi_free(save->share);
    tsi_free(save->copy_name);
    tsi_save_drop_staging(save);
    tsi_state_texts_release(&save->values);
    tsi_state_texts_release(&save->files);
    tsi_free(save->cast);
    tsi_free(save);
}
