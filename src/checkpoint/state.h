/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - the body of a state: what it is made of, and the save that is under way. */
#ifndef TSI_CHECKPOINT_STATE_H
#define TSI_CHECKPOINT_STATE_H

#include "base/hash.h"
#include "tessera/checkpoint.h"

typedef enum tsi_part_kind { TSI_PART_TENSOR, TSI_PART_MODULE, TSI_PART_OPTIMIZER } tsi_part_kind;

typedef struct tsi_state_part {
    tsi_part_kind kind;
    char *prefix;      /* or the name of the tensor */
    ts_tensor *tensor; /* retained */
    ts_module *module; /* borrowed, as the optimizer */
    ts_optimizer *optimizer;
} tsi_state_part;

typedef struct tsi_state_text { /* a value, or a file beside the data */
    char *name, *data;
    size_t length;
} tsi_state_text;

typedef struct tsi_state_texts {
    tsi_state_text *text;
    int64_t count, capacity;
} tsi_state_texts;

struct ts_state {
    ts_rank *rank;
    ts_mesh *mesh;   /* retained */
    ts_group *group; /* of the mesh; borrowed */
    uint64_t id;     /* the same on all ranks; saves are numbered from it */
    int64_t saves, loads;
    tsi_state_part *part;
    int64_t part_count, part_capacity;
    tsi_state_texts values, files;
    char *copy; /* tensors whose names begin so are copies here that other ranks write; or NULL */
    struct tsi_save *save; /* plan and buffers of the last save; NULL: none yet */
};

/* Every tensor of the state under its full name; `of` is "" or "optimizer". */
typedef ts_status (*tsi_state_fn)(const char *name, const char *of, ts_tensor *tensor,
                                  void *context);
ts_status tsi_state_each(ts_state *state, tsi_state_fn fn, void *context);
/* Tensors of that name, and of its moments, are read here and written by others. */
ts_status tsi_state_copied(ts_state *state, const char *name);
/* Texts that follow from the parts: the steps of optimisers. */
ts_status tsi_state_gather_texts(ts_state *state);
ts_status tsi_state_spread_texts(ts_state *state);
void tsi_state_texts_release(tsi_state_texts *texts);
/* `to` becomes what `from` is now. */
ts_status tsi_state_texts_copy(tsi_state_texts *to, const tsi_state_texts *from);
/* Puts a text in, over one of the same name. */
ts_status tsi_state_put(tsi_state_texts *texts, const char *name, const void *data, size_t length);

/* As ts_checkpoint_load; when a file cannot be read, `advice` (may be NULL) adds to the sentence
 * what can be done. It runs without the rank. */
typedef void (*tsi_load_advice)(void *context, char *out, size_t size);
ts_status tsi_checkpoint_load(ts_state *state, const char *directory,
                              const ts_load_options *options, tsi_load_advice advice,
                              void *context);

void tsi_save_destroy(struct tsi_save *save); /* accepts NULL; nothing is under way */

#endif
