/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - any operator by its name: built-in, in place, of a user; attributes by name.
 *
 * A handle of a built-in operator is a constant, two for each: itself and its form in place. The
 * defaults of a call's attributes are read from the table once per rank and copied from then on.
 *
 * INV: a call by name is the call of the function: the same bytes of attributes reach tsi_op_run.
 */
#include "op/core/call.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "op/ask/query.h"
#include "op/core/attribute.h"
#include "op/core/dispatch.h"
#include "op/core/user.h"

/* ---- finding --------------------------------------------------------------------------------- */

/* Functions ts_<name> that are made of operators: name, then which. */
static const char *const composed[][2] = {
    { "batch_norm", "mul and add" },
    { "chunk", "slice" },
    { "cosine_similarity", "vector_norm, div and sum" },
    { "cross", "roll and mul" },
    { "glu", "slice, sigmoid and mul" },
    { "index_copy", "index_put" },
    { "index_fill", "index_put" },
    { "kthvalue", "topk and select" },
    { "median", "topk and select" },
    { "nanmean", "masked_fill, sum and div" },
    { "nansum", "masked_fill and sum" },
    { "normalize", "vector_norm and div" },
    { "one_hot", "eq" },
    { "outer", "mul" },
    { "split", "slice" },
    { "tile", "repeat" },
    { "trace", "diagonal and sum" },
    { "unbind", "select" },
};

enum { USER_NAMES_MAX = 64 }; /* that are looked at for the nearest */

static ts_status refuse_op(ts_world *world, const char *name)
{
    for (size_t i = 0; i < TSI_COUNT_OF(composed); i++)
        if (strcmp(composed[i][0], name) == 0)
            return TSI_FAIL(TS_ERR_ARG,
                            "\"%s\" is not in the table: ts_%s is made of %s; ask about those",
                            name, name, composed[i][1]);
    const char *names[TSI_OP_ID_COUNT + USER_NAMES_MAX + 1];
    int32_t count = 0;
    for (; count < TSI_OP_ID_COUNT; count++)
        names[count] = tsi_op_at(count)->name;
    const tsi_user_op *user = world ? tsi_user_first(world) : NULL;
    for (; user && count < TSI_OP_ID_COUNT + USER_NAMES_MAX; user = user->next)
        if (!user->reason) names[count++] = user->name;
    names[count] = NULL;
    const char *near = tsi_text_nearest(name, names);
    return TSI_FAIL(TS_ERR_ARG, "there is no operator \"%s\"%s%s%s", name,
                    near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

ts_status tsi_op_find_form(ts_world *world, const char *name, const tsi_op_desc **op,
                           int32_t *in_place)
{
    char bare[64];
    size_t length = strlen(name);
    *in_place = 0;
    *op = tsi_op_find_in(world, name);
    if (*op) return TS_OK;
    if (length < 2 || length >= sizeof bare || name[length - 1] != '_')
        return refuse_op(world, name);
    memcpy(bare, name, length - 1);
    bare[length - 1] = '\0';
    *op = tsi_op_find_in(world, bare);
    *in_place = 1;
    return *op ? TS_OK : refuse_op(world, name);
}

static const ts_op built_in[TSI_OP_ID_COUNT][2] = {
#define TS_OP(id, name)                                                                            \
    [TSI_OP_ID_##                                                                                  \
        id] = { { &tsi_op_##name, 0, TSI_OP_ID_##id }, { &tsi_op_##name, 1, TSI_OP_ID_##id } },
#include "op/ops.def"
#undef TS_OP
};

static ts_status find(ts_world *world, const char *name, const ts_op **out)
{
    const tsi_op_desc *op = NULL;
    int32_t in_place = 0;
    if (!name) return TSI_FAIL(TS_ERR_NULL, "ts_op_find: a name is required");
    TSI_TRY(tsi_op_find_form(world, name, &op, &in_place));
    if (in_place && !(op->flags & TSI_OP_IN_PLACE))
        return TSI_FAIL(TS_ERR_ARG, "%s: has no form in place, \"%s\" was asked for", op->name,
                        name);
    *out =
        op->flags & TSI_OP_USER ? &tsi_user_of(op)->face : &built_in[tsi_op_number(op)][in_place];
    return TS_OK;
}

const ts_op *ts_op_find(ts_rank *me, const char *name)
{
    const ts_op *op = NULL;
    if (me && tsi_rank_enter(me) != TS_OK) return NULL;
    /* Without a rank a failure is the thread's, also where one is attached. */
    ts_rank *attached = tsi_rank_current();
    if (!me) tsi_rank_set_current(NULL);
    ts_status status = find(me ? me->world : NULL, name, &op);
    tsi_rank_set_current(attached);
    return status == TS_OK ? op : NULL;
}

/* ---- calling --------------------------------------------------------------------------------- */

/* Defaults of a rank's calls: read once, then copied. */
static ts_status copy_defaults(ts_rank *rank, const ts_op *handle, void *out)
{
    const tsi_op_desc *op = handle->desc;
    if (op->flags & TSI_OP_USER) {
        memcpy(out, tsi_user_of(op)->defaults, op->attribute_bytes);
        return TS_OK;
    }
    tsi_op_state *state = tsi_op_state_of(rank);
    if (!state) return ts_rank_status(rank);
    void **kept = &state->defaults[handle->number];
    if (!*kept) {
        void *made = tsi_alloc(op->attribute_bytes);
        if (!made) return tsi_fail_memory("attributes", op->attribute_bytes);
        ts_status status = tsi_attributes_default(op, made);
        if (status != TS_OK) {
            tsi_free(made);
            return status;
        }
        *kept = made;
    }
    memcpy(out, *kept, op->attribute_bytes);
    return TS_OK;
}

/* What is wrong with a call before its attributes are looked at. The rank it is made on. */
static ts_status check_call(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                            ts_tensor **output, ts_rank **rank)
{
    *rank = tsi_rank_current();
    for (int32_t i = 0; !*rank && input && i < input_count; i++)
        if (input[i]) *rank = input[i]->rank;
    if (*rank) TSI_TRY(tsi_rank_enter(*rank));
    const char *name = op ? op->desc->name : "ts_op_call";
    if (!op || !output || (!input && input_count > 0))
        return TSI_FAIL(TS_ERR_NULL,
                        "%s: an operator, inputs and a place for the outputs are "
                        "required",
                        name);
    for (int32_t o = 0; o < op->desc->output_count; o++)
        output[o] = NULL;
    if (input_count < 0 || input_count > TSI_INPUT_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d inputs, 0 to %d are possible", name, input_count,
                        TSI_INPUT_MAX);
    if (!*rank) return TSI_FAIL(TS_ERR_THREAD, "%s: this thread is attached to no rank", name);
    return TS_OK;
}

/* Trailing inputs that are absent are not there. */
static int32_t present(const ts_op *op, ts_tensor *const *input, int32_t count)
{
    while (count > op->desc->input_min && !input[count - 1])
        count--;
    return count;
}

static ts_status read_values(ts_rank *rank, const ts_op *op, const ts_attribute *attribute,
                             int32_t count, void *out)
{
    if (count < 0 || (count > 0 && !attribute))
        return TSI_FAIL(TS_ERR_ARG, "%s: %d attributes%s", op->desc->name, count,
                        attribute ? "" : " at NULL");
    if (op->desc->attribute_bytes) TSI_TRY(copy_defaults(rank, op, out));
    return tsi_attributes_set(op->desc, attribute, count, out);
}

ts_status(ts_op_call)(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                      const ts_attribute *attribute, int32_t attribute_count, ts_tensor **output)
{
    ts_rank *rank = NULL;
    uint64_t bytes[TSI_ATTRIBUTES_MAX / 8];
    TSI_TRY(check_call(op, input, input_count, output, &rank));
    TSI_ASSERT(op->desc->attribute_bytes <= sizeof bytes);
    TSI_TRY(read_values(rank, op, attribute, attribute_count, bytes));
    tsi_op_args args = { op->desc, input, present(op, input, input_count), op->in_place, bytes };
    return tsi_op_run(&args, output);
}

ts_status(ts_op_call_into)(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                           const ts_attribute *attribute, int32_t attribute_count,
                           ts_tensor *const *into)
{
    ts_rank *rank = NULL;
    uint64_t bytes[TSI_ATTRIBUTES_MAX / 8];
    ts_tensor *nothing[TSI_OUTPUT_MAX];
    TSI_TRY(check_call(op, input, input_count, into ? nothing : NULL, &rank));
    if (op->in_place)
        return TSI_FAIL(TS_ERR_ARG, "%s_: a form in place has its output already", op->desc->name);
    TSI_TRY(read_values(rank, op, attribute, attribute_count, bytes));
    tsi_op_args args = { op->desc, input, present(op, input, input_count), 0, bytes };
    return tsi_op_run_into(&args, into);
}

ts_status(ts_op_call_json)(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                           const char *attributes, ts_tensor **output)
{
    ts_rank *rank = NULL;
    uint64_t bytes[TSI_ATTRIBUTES_MAX / 8];
    TSI_TRY(check_call(op, input, input_count, output, &rank));
    TSI_TRY(tsi_attributes_parse(op->desc, attributes, bytes));
    tsi_op_args args = { op->desc, input, present(op, input, input_count), op->in_place, bytes };
    return tsi_op_run(&args, output);
}

/* ---- describing ------------------------------------------------------------------------------ */

const char *ts_op_name(const ts_op *op)
{
    return op ? op->desc->name : NULL;
}

int32_t ts_op_is_in_place(const ts_op *op)
{
    return op ? op->in_place : 0;
}

ts_status ts_op_about_of(const ts_op *op, ts_op_about *out)
{
    if (!op || !out) return TSI_FAIL(TS_ERR_NULL, "an operator and a place are required");
    tsi_op_about_fill(op->desc, out);
    return TS_OK;
}

ts_status ts_op_default(const ts_op *op, int32_t index, ts_attribute *out)
{
    uint64_t bytes[TSI_ATTRIBUTES_MAX / 8];
    if (!op || !out) return TSI_FAIL(TS_ERR_NULL, "an operator and a place are required");
    const tsi_attribute *a = op->desc->attribute;
    int32_t count = 0;
    while (a && a[count].name)
        count++;
    if (index < 0 || index >= count)
        return TSI_FAIL(TS_ERR_ARG, "%s: there is no attribute number %d of %d", op->desc->name,
                        index, count);
    *out = ts_attribute_none(a[index].name);
    if (!a[index].otherwise) return TS_OK;
    /* Texts must outlive the call: those of users' operators lie in their kept defaults, and no
     * built-in text has a default. */
    const void *defaults = bytes;
    if (op->desc->flags & TSI_OP_USER)
        defaults = tsi_user_of(op->desc)->defaults;
    else
        TSI_TRY(tsi_attributes_default(op->desc, bytes));
    *out = tsi_attribute_value(&a[index], defaults);
    return TS_OK;
}
