/* SPDX-License-Identifier: Apache-2.0 */
/* token_util.h - tokens of models that tests train: numbers of their places and a salt. */
#ifndef TESTS_DIST_TOKEN_UTIL_H
#define TESTS_DIST_TOKEN_UTIL_H

#include "tessera/tessera.h"

typedef struct token_recipe {
    int64_t vocab, salt;
} token_recipe;

static inline ts_status token_at(const int64_t *global, void *element, void *context)
{
    const token_recipe *r = context;
    *(int64_t *)element = (7 * global[0] + 3 * global[1] * global[1] + 5 * r->salt) % r->vocab;
    return TS_OK;
}

/* Rows of them, where the model reads its own. */
static inline ts_tensor *tokens_of(ts_model *model, int64_t rows, int64_t context,
                                   token_recipe recipe)
{
    ts_meta meta = { .shape = TS_SHAPE(rows, context), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, &recipe, ts_model_tokens(model), meta);
}

#endif
