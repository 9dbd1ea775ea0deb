/* SPDX-License-Identifier: Apache-2.0 */
/* query.h - the body of a query, and what its files share. */
#ifndef TSI_OP_QUERY_H
#define TSI_OP_QUERY_H

#include "base/text.h"
#include "op/core/attribute.h"
#include "op/core/dispatch.h"
#include "tessera/op_query.h"

struct ts_op_query {
    const tsi_op_desc *op;
    ts_mesh *mesh; /* borrowed */
    tsi_op_plan *plan;
    tsi_op_story story;
    void *attributes;  /* as given, in scratch */
    uint64_t is_index; /* bit i: input i holds indices */
    tsi_arena scratch;
};

/* Kernels that compete, for a program and for a person; nothing where there is no choice. */
void tsi_query_kernels_json(const ts_op_query *query, tsi_text *text);
void tsi_query_kernels_words(const ts_op_query *query, tsi_text *text);
/* What the inputs of an operator hold when numbers are `dtype`: its samples say which of them are
 * indices or masks. Returns the indices: bit i. */
uint64_t tsi_op_input_dtypes(const tsi_op_desc *op, int32_t input_count, ts_dtype dtype,
                             uint8_t *out);
/* What the table says of an operator, as far as the caller's struct goes. */
void tsi_op_about_fill(const tsi_op_desc *op, ts_op_about *out);
/* "S(0),R->S(0)". */
void tsi_rule_text(const tsi_rules *rules, int32_t rule, tsi_text *text);

#endif
