/* SPDX-License-Identifier: Apache-2.0 */
/* user_rule.c - what a user's operator allows: rules from text, traits, and calls to prove them by.
 */
#include <stdlib.h>
#include <string.h>

#include "op/ask/sample.h"
#include "op/core/common.h"
#include "op/core/user.h"

/* ---- "S(0),R->S(0) plain" -------------------------------------------------------------------- */

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t");
}

/* One role of an operand; NULL: it is none. */
static const char *read_role(const char *at, const ts_meta *meta, tsi_role *out)
{
    char *end = NULL;
    at = skip_blanks(at);
    bool absent = meta->dtype == TS_DTYPE_NONE;
    *out = absent ? TSI_ROLE_NONE : TSI_ROLE_R;
    if (*at == '-' && absent) return at + 1;
    if (*at == 'R') return at + 1;
    if (at[0] == 'S' && at[1] == '(') {
        long dim = strtol(at + 2, &end, 10);
        if (end == at + 2 || *end != ')' || dim < 0) return NULL;
        if (!absent && dim >= meta->shape.ndim) return NULL;
        if (!absent) *out = TSI_S(dim);
        return end + 1;
    }
    if (at[0] != 'P' || at[1] != '(') return NULL;
    size_t length = strcspn(at + 2, ")");
    for (int32_t r = 1; r < TS_REDUCE_COUNT; r++) {
        const char *name = ts_reduce_name((ts_reduce)r);
        if (strlen(name) != length || strncmp(name, at + 2, length) != 0) continue;
        if (!absent) *out = TSI_P(r);
        return at[2 + length] ? at + 3 + length : NULL;
    }
    return NULL;
}

static const char *read_flags(const char *at, uint8_t *flags)
{
    static const struct {
        const char *word;
        uint8_t flag;
    } words[] = { { "plain", TSI_RULE_PLAIN },
                  { "alone", TSI_RULE_ALONE },
                  { "even", TSI_RULE_EVEN } };
    for (at = skip_blanks(at); *at; at = skip_blanks(at)) {
        size_t length = strcspn(at, " \t"), w = 0;
        while (w < TSI_COUNT_OF(words) &&
               (strlen(words[w].word) != length || strncmp(words[w].word, at, length) != 0))
            w++;
        if (w == TSI_COUNT_OF(words)) return NULL;
        *flags |= words[w].flag;
        at += length;
    }
    return at;
}

/* All roles of a rule; false: the text is none, or has another number of operands. */
static bool read_rule(const tsi_op_call *call, const char *text, tsi_role *role, uint8_t *flags)
{
    const char *at = text;
    int32_t count = call->input_count + call->output_count;
    for (int32_t i = 0; at && i < count; i++) {
        const ts_meta *meta =
            i < call->input_count ? &call->in[i] : &call->out[i - call->input_count];
        at = read_role(at, meta, &role[i]);
        if (!at) return false;
        at = skip_blanks(at);
        if (i + 1 == count) continue;
        bool arrow = i + 1 == call->input_count;
        if (strncmp(at, arrow ? "->" : ",", arrow ? 2 : 1) != 0) return false;
        at += arrow ? 2 : 1;
    }
    *flags = 0;
    return at && read_flags(at, flags);
}

static bool add_rule(const tsi_op_call *call, const char *text, tsi_rules *rules)
{
    tsi_role role[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    uint8_t flags = 0;
    if (!read_rule(call, text, role, &flags)) {
        TSI_FAIL(TS_ERR_ARG,
                 "%s: the rule \"%s\" does not read as roles of %d inputs and %d outputs of these "
                 "dims, such as \"S(0),R->S(0)\"",
                 call->op->name, text, call->input_count, call->output_count);
        return false;
    }
    tsi_role *row = tsi_rules_add_with(rules, 0, flags);
    memcpy(row, role, (size_t)(call->input_count + call->output_count) * sizeof *row);
    return !rules->failed;
}

void tsi_user_rules(const tsi_op_call *call, tsi_rules *rules)
{
    enum { RULES_MAX = 1024 };
    const tsi_user_op *op = tsi_user_of(call->op);
    for (int32_t rule = 0; op->user.shard && rule < RULES_MAX; rule++) {
        const char *text = NULL;
        tsi_error_forget();
        ts_status status = op->user.shard(call->attributes, call->in, rule, &text);
        if (status != TS_OK) status = tsi_user_failed(call->op->name, "shard", status);
        if (status == TS_OK && !text) return;
        if (status != TS_OK || !add_rule(call, text, rules)) {
            rules->failed = true;
            rules->why = status != TS_OK ? status : TS_ERR_ARG;
            return;
        }
    }
}

void tsi_user_traits(const tsi_op_call *call, tsi_traits *out)
{
    const ts_op_desc *user = &tsi_user_of(call->op)->user;
    uint32_t inputs = user->flow_inputs ? user->flow_inputs : UINT32_MAX;
    *out = (tsi_traits){ .flow = user->flow & 31u, .linear_in = user->flow_inputs };
    for (int32_t i = 0; i < 4 && i < call->input_count; i++) {
        if (!(inputs >> i & 1)) continue;
        if (user->flow & TS_FLOW_UP) out->mono[i] = TSI_MONO_UP;
        if (user->flow & TS_FLOW_DOWN) out->mono[i] = TSI_MONO_DOWN;
    }
}

/* ---- "mk,kn->mn" ----------------------------------------------------------------------------- */

bool tsi_user_letters(const ts_op_desc *user, int32_t *letters)
{
    const char *at = user->dims;
    int32_t count = user->input_count + user->output_count;
    for (int32_t i = 0; i < count; i++) {
        letters[i] = 0;
        for (at = skip_blanks(at); tsi_rules_letter(*at) >= 0; at += at[1] == '!' ? 2 : 1)
            letters[i]++;
        at = skip_blanks(at);
        if (letters[i] > TS_NDIM_MAX) return false;
        if (i + 1 == count) continue;
        bool arrow = i + 1 == user->input_count;
        if (strncmp(at, arrow ? "->" : ",", arrow ? 2 : 1) != 0) return false;
        at += arrow ? 2 : 1;
    }
    return *at == '\0';
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Extents by letter, so that equal letters agree. */
static void sample_dims(const char *dims, uint64_t *random, ts_meta *in, int32_t count)
{
    int64_t extent[128] = { 0 };
    int32_t input = 0;
    for (const char *at = dims; *at && *at != '-' && input < count; at++) {
        if (*at == ',') input++;
        unsigned char letter = (unsigned char)*at;
        if (tsi_rules_letter(*at) < 0 || input >= count) continue;
        if (!extent[letter]) extent[letter] = 2 + tsi_sample_below(random, 5);
        in[input].shape.extent[in[input].shape.ndim++] = extent[letter];
    }
}

static ts_dtype sample_dtype(const ts_op_desc *user)
{
    static const ts_dtype wanted[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_I64, TS_DTYPE_C128,
                                       TS_DTYPE_BOOL };
    for (size_t i = 0; user->dtypes && i < TSI_COUNT_OF(wanted); i++)
        if (user->dtypes >> wanted[i] & 1) return wanted[i];
    for (int32_t d = 1; d < TS_DTYPE_COUNT; d++)
        if (user->dtypes >> d & 1) return (ts_dtype)d;
    return TS_DTYPE_F64;
}

/* What the user's function draws; false: no more, or no inputs of a call. */
static bool sample_own(const tsi_user_op *op, uint64_t *random, int32_t variant, ts_meta *in,
                       void *attributes)
{
    if (!op->user.sample(random, variant, in, attributes)) return false;
    for (int32_t i = 0; i < op->user.input_count; i++) {
        bool absent = in[i].dtype == TS_DTYPE_NONE && i >= op->desc.input_min;
        if (absent || tsi_user_is_meta(&in[i])) continue;
        TSI_FAIL(TS_ERR_ARG, "%s: its sample function gave input %d no valid shape and dtype",
                 op->name, i);
        return false;
    }
    return true;
}

bool tsi_user_sample(const tsi_user_op *op, uint64_t *random, int32_t variant, ts_meta *in,
                     int32_t *input_count, void *attributes)
{
    const ts_op_desc *user = &op->user;
    *input_count = user->input_count;
    if (user->attributes_bytes) memcpy(attributes, op->defaults, user->attributes_bytes);
    if (user->sample) return sample_own(op, random, variant, in, attributes);
    if (!user->dims || variant >= 4) return false;
    for (int32_t i = 0; i < user->input_count; i++)
        in[i] = (ts_meta){ .dtype = (int32_t)sample_dtype(user) };
    if (user->dims[0] != '*') {
        sample_dims(user->dims, random, in, user->input_count);
        return true;
    }
    ts_shape shape = { .ndim = variant == 0 ? 2 : 1 + (int32_t)tsi_sample_below(random, 3) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = 2 + tsi_sample_below(random, 5);
    for (int32_t i = 0; i < user->input_count; i++) {
        in[i].shape = shape;
        if (variant == 2 && i > 0) in[i].shape.extent[0] = 1; /* broadcast */
    }
    return true;
}
