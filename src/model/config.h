/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - configurations of models: reading, checking. */
#ifndef TSI_MODEL_CONFIG_H
#define TSI_MODEL_CONFIG_H

#include "tessera/model.h"

ts_status tsi_file_text(const char *path, char **out, size_t *length); /* the caller frees */
ts_status tsi_model_config_check(const char *what, const ts_model_config *config);
/* As the text of a config.json; the caller frees. NULL: recorded. */
char *tsi_model_config_text(const ts_model_config *config);

#endif
