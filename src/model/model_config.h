/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.h - configurations of models: reading, checking. */
#ifndef TSI_MODEL_MODEL_CONFIG_H
#define TSI_MODEL_MODEL_CONFIG_H

#include "tessera/json.h"
#include "tessera/model.h"

/* Beyond these no model is published; products of any two or three of them fit 64 bits. */
enum {
    TSI_VOCAB_MAX = 1000000000,
    TSI_HIDDEN_MAX = 10000000,
    TSI_INTERMEDIATE_MAX = 100000000,
    TSI_LAYERS_MAX = 10000,
    TSI_HEADS_MAX = 100000,
    TSI_HEAD_DIM_MAX = 100000,
    TSI_POSITIONS_MAX = 1000000000,
    TSI_EXPERTS_MAX = 100000
};

/* ---- members of an object, checked (config_member.c) ---- */
typedef struct tsi_members {
    const char *path;      /* of the file, for sentences */
    const ts_json *object; /* NULL: every member is absent */
    ts_status status;      /* the first refusal */
} tsi_members;

int64_t tsi_member_int(tsi_members *members, const char *name, int64_t low, int64_t high,
                       int64_t otherwise);
double tsi_member_real(tsi_members *members, const char *name, double low, double high,
                       double otherwise);
bool tsi_member_bool(tsi_members *members, const char *name, bool otherwise);
const char *tsi_member_text(tsi_members *members, const char *name, const char *otherwise);
const ts_json *tsi_member_object(tsi_members *members, const char *name); /* NULL: absent */
const ts_json *tsi_member_list(tsi_members *members, const char *name);   /* NULL: absent */
/* Records that a value is not what was wanted: "a text". */
void tsi_member_refuse(tsi_members *members, const char *name, const ts_json *value,
                       const char *wanted);

ts_status tsi_file_text(const char *path, char **out, size_t *length); /* the caller frees */
/* The rotation of positions: theta holds the family's default on entry. */
ts_status tsi_rope_read(tsi_members *root, ts_model_config *config);
const char *tsi_rope_type_name(int32_t type);
/* Published names of activations, several for one; TS_ERR_ARG with the nearest for others. */
ts_status tsi_activation_parse(const char *path, const char *name, int32_t *out);
const char *tsi_activation_name(const ts_model_config *config);
ts_status tsi_model_config_check(const char *what, const ts_model_config *config);
/* As the text of a config.json; the caller frees. NULL: recorded. */
char *tsi_model_config_text(const ts_model_config *config);

#endif
