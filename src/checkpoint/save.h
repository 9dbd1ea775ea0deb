/* SPDX-License-Identifier: Apache-2.0 */
/* save.h - one rank's part of a save: which pieces of which tensors go where in its file.
 *
 *   item    a tensor of the state, on every rank alike
 *   piece   the elements of an item that this rank writes; of further copies too
 *
 * INV: a plan is a function of names, layouts, dtypes and options alone; it is kept and used again
 * while those are the same. */
#ifndef TSI_CHECKPOINT_SAVE_H
#define TSI_CHECKPOINT_SAVE_H

#include <pthread.h>

#include "base/error.h"
#include "base/thread.h"
#include "checkpoint/data_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/share.h"
#include "checkpoint/state.h"

typedef struct tsi_save_item {
    char *name;
    const char *of;
    const ts_layout *layout; /* retained */
    int32_t dtype;           /* as stored */
    int32_t member;          /* this rank holds a block */
    int64_t coord[TS_NDIM_MAX];
    int64_t piece_first, piece_count;
} tsi_save_item;

typedef struct tsi_save {
    ts_state *state;
    ts_save_options options;
    uint64_t signature; /* of what was planned */
    tsi_save_item *item;
    int64_t item_count, item_capacity;
    tsi_data_piece *piece;
    tsi_share *share; /* of each piece: elements of the block */
    char **copy_name; /* of each piece: owned, or NULL */
    int64_t piece_count, piece_capacity;
    tsi_data_plan plan;
    int64_t bytes; /* of all ranks together, without headers */
    uint64_t
        *sum;   /* of each item: what this rank's pieces have of it; then of all. One more: files */
    char *cast; /* for elements that are converted */
    /* one save */
    uint64_t id;
    char path[TSI_FOLDER_PATH_MAX], part[TSI_FOLDER_PATH_MAX];
    int lock; /* -1: none */
    bool under_way;
    bool publishing;               /* all have written, and the index is on its way */
    tsi_state_texts values, files; /* of the state when the save began; rank 0 alone */
    tsi_data_writer *writer;
    /* in the background */
    char *staging; /* the pieces, as they will lie in the file */
    size_t staging_bytes;
    bool in_background, joined;
    pthread_t thread;
    ts_status (*behind)(struct tsi_save *save); /* what the thread does */
    tsi_word written;                           /* 1: the thread is done */
    ts_status status;
    char error[TSI_ERROR_TEXT_MAX];
} tsi_save;

/* The copy of a save in the background is staging in the rank's account of memory, where that is
 * the host's; in a world without data it is counted alone. */
void tsi_save_count_staging(tsi_save *save, int sign);
void tsi_save_drop_staging(tsi_save *save);
/* Removes what this rank wrote of a save that failed, and the folder if nobody else has files
 * there; nothing of it may be on its way. */
void tsi_save_abandon(tsi_save *save);
/* save_plan.c: `save` gets items and pieces of the state. */
ts_status tsi_save_plan(tsi_save *save);
/* The sum over elements of an item's block (digest.h), a part at a time, in their order. */
typedef struct tsi_summing {
    const tsi_save_item *item;
    tsi_arena memory;
    tsi_region region;
    ts_shape view;
    tsi_region_iterator run; /* the one at hand, */
    bool some;               /* if there is one */
} tsi_summing;
ts_status tsi_summing_begin(tsi_summing *summing, const tsi_save_item *item);
void tsi_summing_add(tsi_summing *summing, tsi_share part, const void *data, uint64_t *sum);
void tsi_summing_end(tsi_summing *summing);

#endif
