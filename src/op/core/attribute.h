/* SPDX-License-Identifier: Apache-2.0 */
/* attribute.h - attributes from values and JSON and back, by an operator's table. */
#ifndef TSI_OP_ATTRIBUTE_H
#define TSI_OP_ATTRIBUTE_H

#include "base/text.h"
#include "op/op.h"

enum { TSI_ATTRIBUTES_MAX = 1024 }; /* bytes of an attribute struct that can be said in JSON */

/* Fills `out` (attribute_bytes, zeroed here) with defaults, then with what the JSON object says
 * (NULL or "": nothing). Refuses unknown names with the nearest, wrong types, and required ones
 * that are missing. */
ts_status tsi_attributes_parse(const tsi_op_desc *op, const char *json, void *out);
/* Defaults alone, required ones zero; then what is said on top of them, refused alike. */
ts_status tsi_attributes_default(const tsi_op_desc *op, void *out);
ts_status tsi_attributes_set(const tsi_op_desc *op, const ts_attribute *said, int32_t count,
                             void *out);
/* One of them as a value that says it; a text points into `attributes`. */
ts_attribute tsi_attribute_value(const tsi_attribute *a, const void *attributes);
/* Refuses a table, a user's, that the other functions could not follow: a type that is none, a
 * field outside of the struct, a choice of nothing, a name twice. */
ts_status tsi_attributes_check_table(const tsi_op_desc *op);
/* Refuses choices that are none, and whole numbers so large that sums and products with extents
 * would overflow. Starts and ends may be anything: "to the end" is a number beyond every extent. */
ts_status tsi_attributes_check(const tsi_op_desc *op, const void *attributes);
/* "{"dim": 1, "keepdim": false}". */
void tsi_attributes_json(const tsi_op_desc *op, const void *attributes, tsi_text *text);
/* "dim=-1, keepdim=false"; a required one is its name alone. */
void tsi_attributes_words(const tsi_op_desc *op, tsi_text *text);

#endif
