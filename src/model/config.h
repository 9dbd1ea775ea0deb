/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - configurations of models: reading, checking. */
#ifndef TSI_MODEL_CONFIG_H
#define TSI_MODEL_CONFIG_H

#include "base/json.h"
#include "tessera/model.h"

ts_status tsi_file_text(const char *path, char **out, size_t *length); /* the caller frees */
/* The rotation of positions: theta holds the family's default on entry. */
ts_status tsi_rope_read(const char *path, const tsi_json *root, ts_model_config *config);
const char *tsi_rope_type_name(int32_t type);
/* Published names of activations, several for one; TS_ERR_ARG with the nearest for others. */
ts_status tsi_activation_parse(const char *path, const char *name, int32_t *out);
const char *tsi_activation_name(const ts_model_config *config);
ts_status tsi_model_config_check(const char *what, const ts_model_config *config);
/* As the text of a config.json; the caller frees. NULL: recorded. */
char *tsi_model_config_text(const ts_model_config *config);

#endif
