/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - between parameters and weight files. */
#ifndef TSI_MODEL_WEIGHTS_H
#define TSI_MODEL_WEIGHTS_H

#include "checkpoint/archive.h"
#include "model/model.h"

/* A parameter's elements, row-major, are those of its parts one after the other. */
typedef struct tsi_sources {
    const tsi_entry **part; /* the caller frees, on failure too */
    int64_t count, part_elements;
} tsi_sources;

ts_status tsi_sources_find(const ts_archive *archive, const char *name, const ts_shape *shape,
                           tsi_sources *out);

/* Before parameters are materialised: each will be read from model->origin, this rank's region of
 * it, as soon as it has storage; as_stored: they get the dtypes of the file. */
ts_status tsi_model_expect_weights(ts_model *model, bool as_stored);

/* ---- layers behind the model's last, beyond.c ---- */
bool tsi_model_is_beyond(const ts_model *model, const char *name);
/* Those of model->origin become tensors of the state, read from there. recorded [coll] */
ts_status tsi_model_add_beyond(ts_model *model, ts_mesh *mesh, ts_state *state);

/* ---- beside the weights, save_files.c ---- */
/* config.json as a save of the model writes it: with the dtype of its parameters. The caller frees;
 * NULL: recorded. */
char *tsi_model_config_saved(ts_model *model);
/* The text of a configuration with its dtype; one that has none gets one if `add`. The caller
 * frees; NULL: recorded. */
char *tsi_config_with_dtype(const char *text, ts_dtype dtype, bool add);
/* The same without a member of the outermost object. The caller frees; NULL: recorded. */
char *tsi_config_without(const char *text, const char *key);
/* Files of the directory (or beside the file) `from` which are neither weights nor config.json. */
typedef ts_status (*tsi_other_fn)(const char *directory, const char *name, void *context);
ts_status tsi_others_each(const char *from, tsi_other_fn fn, void *context);
ts_status tsi_copy_others(const char *from, const char *to);

#endif
