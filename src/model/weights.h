/* SPDX-License-Identifier: Apache-2.0 */
/* weights.h - between parameters and weight files. */
#ifndef TSI_MODEL_WEIGHTS_H
#define TSI_MODEL_WEIGHTS_H

#include "checkpoint/safetensors.h"
#include "model/model.h"

/* A parameter's elements, row-major, are those of its parts one after the other. */
typedef struct tsi_sources {
    const tsi_stored **part; /* the caller frees, on failure too */
    int64_t count, part_elements;
} tsi_sources;

ts_status tsi_sources_find(const tsi_weights *weights, const char *name, const ts_shape *shape,
                           tsi_sources *out);

/* Before parameters are materialised: they will be read from model->origin, so nothing initialises
 * them; as_stored: they get the dtypes of the file. */
ts_status tsi_model_expect_weights(ts_model *model, bool as_stored);
ts_status tsi_model_read_weights(ts_model *model); /* closes the files of model->origin */

#endif
