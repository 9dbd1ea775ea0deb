/* SPDX-License-Identifier: Apache-2.0 */
/* op_call.h - any operator by its name: found, described and called with attributes by name.
 *
 * Built-in operators, their forms in place and those of the user alike; every attribute of
 * docs/ops.md can be said, also where the function of that name has no argument for it.
 *
 *   const ts_op *op = ts_op_find(me, "addmm");
 *   const ts_attribute said[] = { ts_attribute_real("alpha", 0.5), ts_attribute_real("beta", 0) };
 *   ts_tensor *in[] = { c, a, b }, *y = NULL;
 *   ts_op_call(op, in, 3, said, 2, &y);
 *
 * What it takes is in ts_op_about_of: inputs, outputs, dtypes, gradient, the table of attributes.
 */
#ifndef TESSERA_OP_CALL_H
#define TESSERA_OP_CALL_H

#include "op_query.h"
#include "tensor.h"

typedef struct ts_op ts_op; /* lives as long as the program; a registered one as its world */

/* The value of an attribute; made by the functions below (frozen). */
typedef struct ts_attribute {
    const char *name;
    int32_t type, reserved; /* ts_attribute_type of the value, which may differ from the table's */
    ts_number number;       /* INT, REAL, NUMBER; BOOL and DTYPE as whole numbers */
    const char *text;       /* TEXT; of a choice its name, of a dtype too */
    ts_shape dims;          /* DIMS: whole numbers, also negative ones */
} ts_attribute;

TS_BEGIN_C

/* maker: "softmax"; "add_" is add in place; other common names too
 * ("scaled_dot_product_attention"). Refused with the nearest name: an unknown one, and a form in
 * place that there is not. `me` NULL: built-in operators only, and nobody remembers a failure but
 * ts_last_error. */
TS_API const ts_op *ts_op_find(ts_rank *me, const char *name);

/* recorded: output receives as many tensors as the operator has outputs, all NULL on failure; of a
 * form in place the first is a handle of input 0's memory. Inputs may be NULL where they are
 * optional. An attribute that is not said, or NONE, has its default; said twice, the last counts.
 * Whole numbers are fine for reals that can hold them and as lists of one; where the table says
 * NUMBER they keep all 64 bits, and complex ones are fine. Texts for choices and dtypes, "inf",
 * "-inf", "nan" for reals, "1+2i" for numbers. Refused with a sentence: an attribute that there is
 * not (with the nearest name), a wrong type, a required one that is missing. */
TS_API ts_status ts_op_call(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                            const ts_attribute *attribute, int32_t attribute_count,
                            ts_tensor **output);
/* The same with the results written into tensors that are there, one for each output, so that a
 * loop makes no new ones: each of the result's shape and dtype, on its mesh, of any placements that
 * are not partial, else the call is refused before anything is computed. They stay the caller's,
 * under their handles, and every view of their memory sees the new values; after a failure these
 * may be half written. The kernel writes where they lie if they are placed as the result is and
 * share no memory with an input or with one another; else the result is computed and copied. A tape
 * takes them for the results; what it saved of their old values is lost to backward, which says so.
 */
TS_API ts_status ts_op_call_into(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                                 const ts_attribute *attribute, int32_t attribute_count,
                                 ts_tensor *const *into);
/* ts_op_call with attributes as a JSON object, {"dim": 1, "keepdim": true}; NULL: defaults. */
TS_API ts_status ts_op_call_json(const ts_op *op, ts_tensor *const *input, int32_t input_count,
                                 const char *attributes, ts_tensor **output);

TS_API const char *ts_op_name(const ts_op *op);    /* getter: "add"; NULL gives NULL */
TS_API int32_t ts_op_is_in_place(const ts_op *op); /* getter */
TS_API TS_NODISCARD ts_status ts_op_about_of(const ts_op *op, ts_op_about *out); /* as _about_at */
/* The default of attribute `index` of its table as a value; type NONE where there is none: "not
 * given", or required (ts_op_attribute.otherwise is NULL). TS_ERR_ARG: no such number. */
TS_API TS_NODISCARD ts_status ts_op_default(const ts_op *op, int32_t index, ts_attribute *out);

TS_END_C

static inline ts_attribute ts_attribute_none(const char *name)
{
    ts_attribute a = { name, TS_ATTRIBUTE_NONE, 0, { 0, 0, 0, 0, 0 }, NULL, { 0, 0, { 0 } } };
    return a;
}
static inline ts_attribute ts_attribute_int(const char *name, int64_t value)
{
    ts_attribute a = ts_attribute_none(name);
    a.type = TS_ATTRIBUTE_INT;
    a.number = ts_number_int(value);
    return a;
}
static inline ts_attribute ts_attribute_real(const char *name, double value)
{
    ts_attribute a = ts_attribute_none(name);
    a.type = TS_ATTRIBUTE_REAL;
    a.number = ts_number_real(value);
    return a;
}
static inline ts_attribute ts_attribute_number(const char *name, ts_number value)
{
    ts_attribute a = ts_attribute_none(name);
    a.type = TS_ATTRIBUTE_NUMBER;
    a.number = value;
    return a;
}
static inline ts_attribute ts_attribute_bool(const char *name, int value)
{
    ts_attribute a = ts_attribute_int(name, value != 0);
    a.type = TS_ATTRIBUTE_BOOL;
    return a;
}
static inline ts_attribute ts_attribute_dtype(const char *name, ts_dtype value)
{
    ts_attribute a = ts_attribute_int(name, value);
    a.type = TS_ATTRIBUTE_DTYPE;
    return a;
}
static inline ts_attribute ts_attribute_dims(const char *name, ts_shape value)
{
    ts_attribute a = ts_attribute_none(name);
    a.type = TS_ATTRIBUTE_DIMS;
    a.dims = value;
    return a;
}
static inline ts_attribute ts_attribute_text(const char *name, const char *value)
{
    ts_attribute a = ts_attribute_none(name);
    a.type = TS_ATTRIBUTE_TEXT;
    a.text = value;
    return a;
}

/* Each call also tells its place, for messages and events. */
#define ts_op_call(...) (ts_here(TS_HERE), ts_op_call(__VA_ARGS__))
#define ts_op_call_into(...) (ts_here(TS_HERE), ts_op_call_into(__VA_ARGS__))
#define ts_op_call_json(...) (ts_here(TS_HERE), ts_op_call_json(__VA_ARGS__))

#endif
