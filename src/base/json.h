/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - reading JSON, with jansson behind it, or a reader of our own where that was not found.
 *
 * Values are borrowed from their document. Writing JSON is done with tsi_text. */
#ifndef TSI_BASE_JSON_H
#define TSI_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

typedef struct tsi_json_document tsi_json_document;
typedef struct tsi_json tsi_json; /* one value */

typedef enum tsi_json_kind {
    TSI_JSON_NULL,
    TSI_JSON_BOOL,
    TSI_JSON_INT,
    TSI_JSON_REAL,
    TSI_JSON_TEXT,
    TSI_JSON_LIST,
    TSI_JSON_OBJECT
} tsi_json_kind;

/* `what` begins the error sentence ("topology.json"). Duplicate keys are refused. */
ts_status tsi_json_parse(const char *what, const char *text, size_t length,
                         tsi_json_document **out);
void tsi_json_release(tsi_json_document *document);
const tsi_json *tsi_json_root(const tsi_json_document *document);
tsi_json_kind tsi_json_kind_of(const tsi_json *value); /* NULL: TSI_JSON_NULL */
int64_t tsi_json_count(const tsi_json *value);         /* of a list or object; else 0 */
const tsi_json *tsi_json_item(const tsi_json *list, int64_t index);        /* NULL if absent */
const tsi_json *tsi_json_member(const tsi_json *object, const char *name); /* NULL if absent */
/* Visits members in the file's order; stops when visit returns other than TS_OK and returns it. */
ts_status tsi_json_each(const tsi_json *object,
                        ts_status (*visit)(const char *name, const tsi_json *value, void *context),
                        void *context);
const char *tsi_json_text(const tsi_json *value, const char *otherwise);
int64_t tsi_json_int(const tsi_json *value, int64_t otherwise);
double tsi_json_real(const tsi_json *value, double otherwise);
bool tsi_json_bool(const tsi_json *value, bool otherwise);

#endif
