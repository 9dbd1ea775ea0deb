/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - the operators of ops.def as an array, found by name and by their other names. */
#include <stdlib.h>
#include <string.h>

#include "op/op.h"

static const tsi_op_desc *const table[] = {
#define TS_OP(id, name) [TSI_OP_ID_##id] = &tsi_op_##name,
#include "op/ops.def"
#undef TS_OP
};

const tsi_op_desc *tsi_op_at(int32_t index)
{
    return index >= 0 && index < TSI_OP_ID_COUNT ? table[index] : NULL;
}

static int compare_name(const void *name, const void *entry)
{
    const char *other = (*(const tsi_op_desc *const *)entry)->name;
    int first = *(const unsigned char *)name - *(const unsigned char *)other; /* mostly decides */
    return first ? first : strcmp(name, other);
}

/* Other names by which operators are known, in order; one operator serves any number of place dims.
 */
static const char *const aliases[][2] = {
    { "absolute", "abs" },
    { "arccos", "acos" },
    { "arccosh", "acosh" },
    { "arcsin", "asin" },
    { "arcsinh", "asinh" },
    { "arctan", "atan" },
    { "arctan2", "atan2" },
    { "arctanh", "atanh" },
    { "avg_pool1d", "avg_pool" },
    { "avg_pool2d", "avg_pool" },
    { "avg_pool3d", "avg_pool" },
    { "binary_cross_entropy", "bce" },
    { "binary_cross_entropy_with_logits", "bce_with_logits" },
    { "broadcast_to", "expand" },
    { "clip", "clamp" },
    { "concat", "cat" },
    { "concatenate", "cat" },
    { "constant_pad_nd", "pad" },
    { "conv1d", "conv" },
    { "conv2d", "conv" },
    { "conv3d", "conv" },
    { "convolution", "conv" },
    { "divide", "div" },
    { "embedding_dense_backward", "embedding_backward" },
    { "fix", "trunc" },
    { "greater", "gt" },
    { "greater_equal", "ge" },
    { "index", "index_get" },
    { "less", "lt" },
    { "less_equal", "le" },
    { "linalg_vector_norm", "vector_norm" },
    { "logsigmoid", "log_sigmoid" },
    { "max_pool1d", "max_pool" },
    { "max_pool2d", "max_pool" },
    { "max_pool3d", "max_pool" },
    { "moveaxis", "movedim" },
    { "multiply", "mul" },
    { "negative", "neg" },
    { "norm", "vector_norm" },
    { "not_equal", "ne" },
    { "scale", "mul_scalar" },
    { "scaled_dot_product_attention", "attention" },
    { "sgn", "sign" },
    { "subtract", "sub" },
    { "swapaxes", "transpose" },
    { "swapdims", "transpose" },
    { "take_along_dim", "gather" },
    { "to", "cast" },
    { "true_divide", "div" },
    { "view", "reshape" },
};

static int compare_alias(const void *name, const void *entry)
{
    return strcmp(name, ((const char *const *)entry)[0]);
}

const tsi_op_desc *tsi_op_find(const char *name)
{
    const char *const *other =
        bsearch(name, aliases, TSI_COUNT_OF(aliases), sizeof aliases[0], compare_alias);
    if (other) name = other[1];
    const tsi_op_desc *const *found =
        bsearch(name, table, TSI_COUNT_OF(table), sizeof table[0], compare_name);
    return found ? *found : NULL;
}

int32_t tsi_op_number(const tsi_op_desc *op)
{
    const tsi_op_desc *const *found =
        bsearch(op->name, table, TSI_COUNT_OF(table), sizeof table[0], compare_name);
    return found && *found == op ? (int32_t)(found - table) : -1;
}
