/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - every rule of the table tried, and every assignment of roles that might be one.
 *
 * A sampled call gives shapes and attributes; its dtypes are also replaced by integers, booleans
 * and complex numbers where the operator takes them, because rules may depend on them. */
#include "op/ask/verify.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "op/ask/query.h"
#include "op/ask/sample.h"
#include "op/core/common.h"
#include "op/core/user.h"

enum {
    VARIANTS_MAX = 12,
    ASSIGNMENTS_MAX = 6000, /* tried one by one up to here, else sampled */
    ASSIGNMENTS_SAMPLED = 1500,
    PLANS_PER_CALL = 16,
    SMALL_CALLS = 2, /* of each sampled call, with extents of 0 and 1 */
    ROLES_MAX = TS_NDIM_MAX + 10
};

typedef struct verifier {
    const ts_verify_options *options;
    ts_verify_result result;
    ts_mesh *line[3], *grid[3]; /* 2, 3 and 4 ranks; 2x2, 3x2, 2x2x2 */
    uint64_t random;
    tsi_verify_call call;
    tsi_rules rules;
    tsi_arena memory; /* of the rules */
    ts_status status;
    bool proves; /* rules only: what is not offered is nobody's loss */
    bool small;  /* extents of 0 and 1: plans only, since roles cannot be told apart */
} verifier;

static int64_t draw(verifier *v, int64_t bound)
{
    return tsi_sample_below(&v->random, bound);
}

/* ---- saying ---------------------------------------------------------------------------------- */

static void call_text(const tsi_verify_call *call, tsi_text *text)
{
    tsi_text_printf(text, "%s ", call->op->name);
    tsi_attributes_json(call->op, call->attributes, text);
    for (int32_t i = 0; i < call->input_count; i++) {
        char shape[96];
        if (call->in[i].dtype == TS_DTYPE_NONE)
            tsi_text_add(text, " -");
        else
            tsi_text_printf(text, " %s%s", ts_dtype_name((ts_dtype)call->in[i].dtype),
                            tsi_shape_text(&call->in[i].shape, shape, sizeof shape));
    }
}

static void say(const verifier *v, const char *kind, const char *what, const char *where,
                const char *why)
{
    tsi_text text = { 0 };
    if (!v->options->say) return;
    tsi_text_printf(&text, "%s: ", kind);
    call_text(&v->call, &text);
    tsi_text_printf(&text, ": %s%s%s%s%s", what, where[0] ? " on " : "", where, why[0] ? ": " : "",
                    why);
    if (!text.failed) v->options->say(text.data, v->options->context);
    tsi_text_release(&text);
}

static void role_words(const verifier *v, const tsi_role *role, char *out, size_t size)
{
    tsi_rules one = { .input_count = v->call.input_count,
                      .output_count = v->call.op->output_count,
                      .count = 1 };
    tsi_role copy[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    memcpy(copy, role, (size_t)(one.input_count + one.output_count));
    one.role = copy;
    tsi_text text = { 0 };
    tsi_rule_text(&one, 0, &text);
    tsi_text_give(&text, out, size);
}

/* ---- rules that are offered ------------------------------------------------------------------ */

static bool even_only(const verifier *v, int32_t rule, int64_t ranks)
{
    const tsi_role *role = tsi_rules_row(&v->rules, rule);
    if (!(v->rules.flags[rule] & TSI_RULE_EVEN)) return false;
    for (int32_t i = 0; i < v->call.input_count; i++)
        if (tsi_role_is_s(role[i]) &&
            v->call.in[i].shape.extent[tsi_role_dim(role[i])] % ranks != 0)
            return true;
    return false;
}

/* Can an input of this dtype be pending in this way, and be told apart? */
static bool has_meaning(ts_reduce reduce, ts_dtype dtype)
{
    const char *why;
    tsi_category kind = tsi_dtype_category(dtype);
    bool logical = reduce == TS_REDUCE_AND || reduce == TS_REDUCE_OR;
    if (logical != (kind == TSI_CATEGORY_BOOL)) return false;
    if (reduce == TS_REDUCE_AVG && kind == TSI_CATEGORY_INT) return false;
    return tsi_reduce_allowed(reduce, dtype, &why);
}

static bool is_possible(const verifier *v, const tsi_role *role)
{
    for (int32_t i = 0; i < v->call.input_count; i++)
        if (tsi_role_is_p(role[i]) &&
            !has_meaning(tsi_role_reduce(role[i]), (ts_dtype)v->call.in[i].dtype))
            return false;
    return true;
}

static void check_rule(verifier *v, int32_t rule, ts_mesh *mesh)
{
    tsi_verify_choice choice;
    const tsi_role *role = tsi_rules_row(&v->rules, rule);
    char words[256], where[64], why[256];
    if (v->rules.algorithm[rule] || even_only(v, rule, mesh->desc->count)) return;
    if (!is_possible(v, role) || !tsi_verify_choose(&v->call, mesh->desc, role, &choice)) return;
    v->result.rules++;
    for (int32_t p = 0; p < TSI_PATTERNS; p++) {
        if (tsi_verify_try(&v->call, &choice, p, UINT32_MAX, why, sizeof why)) continue;
        role_words(v, role, words, sizeof words);
        snprintf(where, sizeof where, "%lld ranks", (long long)mesh->desc->count);
        say(v, "false", words, where, why);
        v->result.false_count++;
        break;
    }
    tsi_verify_unchoose(&choice);
}

/* ---- rules that are not ---------------------------------------------------------------------- */

/* Integers beside numbers are indices. */
static bool is_index(const tsi_verify_call *call, int32_t input)
{
    bool numbers = false;
    for (int32_t i = 0; i < call->input_count; i++)
        numbers |= tsi_dtype_category((ts_dtype)call->in[i].dtype) >= TSI_CATEGORY_REAL;
    return numbers && tsi_dtype_category((ts_dtype)call->in[input].dtype) <= TSI_CATEGORY_INT;
}

/* Roles one operand may have, R first. */
static int32_t roles_of(const ts_meta *meta, bool output, bool index, tsi_role *out)
{
    static const ts_reduce reals[] = { TS_REDUCE_SUM, TS_REDUCE_AVG, TS_REDUCE_MIN, TS_REDUCE_MAX,
                                       TS_REDUCE_PROD };
    int32_t count = 0;
    tsi_category kind = tsi_dtype_category((ts_dtype)meta->dtype);
    out[count++] = TSI_ROLE_R;
    for (int32_t d = 0; d < meta->shape.ndim; d++)
        if (meta->shape.extent[d] > 1) out[count++] = TSI_S(d);
    if (index) return count; /* indices are never pending */
    if (kind == TSI_CATEGORY_BOOL) {
        out[count++] = TSI_P(TS_REDUCE_AND);
        out[count++] = TSI_P(TS_REDUCE_OR);
        return count;
    }
    for (int r = 0; r < 5; r++) {
        bool ordered = reals[r] == TS_REDUCE_MIN || reals[r] == TS_REDUCE_MAX;
        if (ordered && kind == TSI_CATEGORY_COMPLEX) continue;
        if (!output && reals[r] == TS_REDUCE_AVG && kind == TSI_CATEGORY_INT) continue;
        out[count++] = TSI_P(reals[r]);
    }
    return count;
}

static bool is_offered(const verifier *v, const tsi_role *role)
{
    for (int32_t r = 0; r < v->rules.count; r++)
        if (memcmp(tsi_rules_row(&v->rules, r), role, (size_t)v->call.input_count) == 0)
            return true;
    return false;
}

/* Is there a rule with the same result that only slices or partitions replicated inputs first? */
static bool is_reachable(const verifier *v, const tsi_role *role)
{
    int32_t inputs = v->call.input_count, outputs = v->call.op->output_count;
    for (int32_t r = 0; r < v->rules.count; r++) {
        const tsi_role *offered = tsi_rules_row(&v->rules, r);
        bool fits = true;
        for (int32_t o = inputs; o < inputs + outputs && fits; o++)
            fits = offered[o] == role[o] || (tsi_role_is_p(role[o]) && !tsi_role_is_p(offered[o]));
        for (int32_t i = 0; i < inputs && fits; i++)
            fits = offered[i] == role[i] || role[i] == TSI_ROLE_R;
        if (fits) return true;
    }
    return false;
}

/* Legal on a mesh with every pattern, looking at the outputs of the mask. */
static bool is_legal(verifier *v, const tsi_role *role, ts_mesh *mesh, uint32_t outputs)
{
    tsi_verify_choice choice;
    char why[256];
    if (!tsi_verify_choose(&v->call, mesh->desc, role, &choice)) return false;
    bool legal = tsi_verify_fits(&v->call, &choice);
    for (int32_t p = 0; p < TSI_PATTERNS && legal; p++)
        legal = tsi_verify_try(&v->call, &choice, p, outputs, why, sizeof why);
    tsi_verify_unchoose(&choice);
    return legal;
}

static bool fits(verifier *v, const tsi_role *role, ts_mesh *mesh)
{
    tsi_verify_choice choice;
    if (!tsi_verify_choose(&v->call, mesh->desc, role, &choice)) return false;
    bool good = tsi_verify_fits(&v->call, &choice);
    tsi_verify_unchoose(&choice);
    return good;
}

/* Roles of the outputs whose local shapes are what the operator gives; false: there are none. */
static bool shape_outputs(verifier *v, tsi_role *role, int32_t output)
{
    if (output == v->call.op->output_count) return fits(v, role, v->line[0]);
    tsi_role *mine = &role[v->call.input_count + output];
    int32_t ndim = v->call.out[output].shape.ndim;
    for (int32_t d = -1; d < ndim; d++) {
        *mine = d < 0 ? TSI_ROLE_R : TSI_S(d);
        if (d >= 0 && v->call.out[output].shape.extent[d] <= 1) continue;
        if (shape_outputs(v, role, output + 1)) return true;
    }
    return false;
}

/* Gives every output a role that is legal; false: some output has none. */
static bool find_outputs(verifier *v, tsi_role *role)
{
    if (!shape_outputs(v, role, 0)) return false;
    for (int32_t o = 0; o < v->call.op->output_count; o++) {
        tsi_role option[ROLES_MAX], *mine = &role[v->call.input_count + o];
        tsi_role shaped = *mine;
        int32_t count = roles_of(&v->call.out[o], true, false, option);
        bool found = false;
        for (int32_t k = 0; k < count && !found; k++) {
            if (tsi_role_is_s(shaped) != tsi_role_is_s(option[k])) continue;
            if (tsi_role_is_s(shaped) && option[k] != shaped) continue;
            *mine = option[k];
            found = true;
            for (int m = 0; m < 3 && found; m++)
                found = is_legal(v, role, v->line[m], 1u << o);
        }
        if (!found) return false;
    }
    return true;
}

static void try_assignment(verifier *v, tsi_role *role)
{
    char words[256];
    v->result.assignments++;
    if (is_offered(v, role) || !find_outputs(v, role) || is_reachable(v, role)) return;
    role_words(v, role, words, sizeof words);
    const char *reason = tsi_verify_reason(&v->call, role);
    if (reason)
        v->result.accepted_count++;
    else
        v->result.missed_count++;
    if (!reason) say(v, "missed", words, "", "");
}

/* Extents of one teach nothing: what is cut or reduced there is the same either way. Nor do numbers
 * made from booleans, because every function of two values is monotone. */
static bool is_telling(const tsi_verify_call *call)
{
    for (int32_t i = 0; i < call->input_count; i++)
        for (int32_t o = 0; o < call->op->output_count; o++)
            if (call->in[i].dtype == TS_DTYPE_BOOL && call->out[o].dtype != TS_DTYPE_BOOL)
                return false;
    for (int32_t i = 0; i < call->input_count; i++)
        for (int32_t d = 0; d < call->in[i].shape.ndim; d++)
            if (call->in[i].shape.extent[d] < 2) return false;
    return true;
}

static void try_assignments(verifier *v)
{
    tsi_role option[TSI_INPUT_MAX][ROLES_MAX], role[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    int32_t count[TSI_INPUT_MAX];
    int64_t all = 1;
    int32_t inputs = v->call.input_count;
    if (v->call.op->flags & TSI_OP_RANDOM || !is_telling(&v->call) || inputs > 16) return;
    for (int32_t i = 0; i < inputs; i++) {
        count[i] = 1;
        option[i][0] = TSI_ROLE_NONE;
        if (v->call.in[i].dtype != TS_DTYPE_NONE)
            count[i] = roles_of(&v->call.in[i], false, is_index(&v->call, i), option[i]);
        if (all <= ASSIGNMENTS_MAX) all *= count[i];
    }
    bool sampled = all > ASSIGNMENTS_MAX || v->options->quick;
    int64_t tries = all > ASSIGNMENTS_SAMPLED && sampled ? ASSIGNMENTS_SAMPLED : all;
    if (v->options->quick && tries > 200) tries = 200;
    for (int64_t t = 0; t < tries; t++) {
        int64_t number = t;
        for (int32_t i = 0; i < inputs; i++) {
            int64_t pick = tries < all ? draw(v, count[i]) : number % count[i];
            role[i] = option[i][pick];
            number /= count[i];
        }
        try_assignment(v, role);
    }
}

/* ---- whole plans ----------------------------------------------------------------------------- */

static bool has_truths(const ts_layout *layout, ts_dtype dtype)
{
    bool whole = tsi_dtype_category(dtype) == TSI_CATEGORY_INT, truths = false;
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        const ts_placement *place = &layout->sharding->place[k];
        truths |= place->kind == TS_PLACE_PARTIAL &&
                  (place->reduce == TS_REDUCE_AND || place->reduce == TS_REDUCE_OR);
    }
    return whole && truths;
}

/* Any placements; truths of integers are not drawn, since the numbers of a call are not 0 and 1. */
static bool draw_layouts(verifier *v, ts_mesh *mesh, const ts_layout **in)
{
    for (int32_t i = 0; i < v->call.input_count; i++) {
        ts_dtype dtype = (ts_dtype)v->call.in[i].dtype;
        in[i] = NULL;
        if (dtype == TS_DTYPE_NONE) continue;
        if (is_index(&v->call, i)) dtype = TS_DTYPE_NONE;
        do {
            ts_layout_release(in[i]);
            in[i] = tsi_sample_layout(&v->random, mesh->desc, &v->call.in[i].shape, dtype);
        } while (in[i] && has_truths(in[i], dtype));
        if (!in[i]) return false;
    }
    return true;
}

static void check_plan(verifier *v, const tsi_op_plan *plan)
{
    tsi_verify_choice choice = { .mesh = plan->mesh->desc };
    char what[512] = "", why[256];
    size_t used = 0;
    if (plan->algorithm > 0) return;
    v->result.plans++;
    for (int32_t i = 0; i < plan->input_count; i++) {
        choice.in[i] = plan->wanted[i] ? plan->wanted[i] : plan->in[i];
        if (choice.in[i] && used < sizeof what)
            used += (size_t)snprintf(what + used, sizeof what - used, "%s%s", used ? ", " : "",
                                     choice.in[i]->text);
    }
    for (int32_t o = 0; o < plan->output_count; o++) {
        choice.out[o] = plan->out[o];
        if (used < sizeof what)
            used += (size_t)snprintf(what + used, sizeof what - used, "%s%s", o ? ", " : " -> ",
                                     plan->out[o]->text);
    }
    for (int32_t p = 0; p < TSI_PATTERNS; p++) {
        if (tsi_verify_try(&v->call, &choice, p, UINT32_MAX, why, sizeof why)) continue;
        say(v, "false", what, "", why);
        v->result.false_count++;
        break;
    }
}

static void check_plans(verifier *v, ts_mesh *mesh, int32_t plans)
{
    tsi_arena scratch = { 0 };
    for (int32_t t = 0; t < plans; t++) {
        const ts_layout *in[TSI_INPUT_MAX] = { NULL };
        uint8_t dtype[TSI_INPUT_MAX];
        for (int32_t i = 0; i < v->call.input_count; i++)
            dtype[i] = (uint8_t)v->call.in[i].dtype;
        if (draw_layouts(v, mesh, in)) {
            tsi_op_request request = { .op = v->call.op,
                                       .mesh = mesh,
                                       .in = in,
                                       .dtype = dtype,
                                       .input_count = v->call.input_count,
                                       .attributes = v->call.given };
            tsi_op_plan *plan = tsi_op_plan_for(&request, &scratch, NULL);
            if (plan) {
                check_plan(v, plan);
            } else {
                say(v, "false", "a call is refused", "", ts_last_error());
                v->result.false_count++;
            }
            tsi_op_plan_destroy(plan);
        }
        for (int32_t i = 0; i < v->call.input_count; i++)
            ts_layout_release(in[i]);
        tsi_arena_reset(&scratch);
    }
    tsi_arena_release(&scratch);
}

/* ---- calls and operators --------------------------------------------------------------------- */

static void verify_call(verifier *v)
{
    const tsi_op_desc *op = v->call.op;
    if (!tsi_verify_begin(&v->call)) {
        tsi_verify_end(&v->call);
        return;
    }
    v->result.calls++;
    int32_t plans = v->options->quick ? PLANS_PER_CALL / 4 : PLANS_PER_CALL;
    tsi_op_call call = { op,          v->call.attributes,  v->call.in,
                         v->call.out, v->call.input_count, op->output_count };
    tsi_arena_reset(&v->memory);
    v->rules = (tsi_rules){ .arena = &v->memory };
    if (!op->propagate && !v->small) {
        tsi_op_rules(&call, &v->rules);
        if (v->rules.failed) v->status = v->rules.why ? v->rules.why : TS_ERR_MEMORY;
        for (int32_t r = 0; r < v->rules.count && v->status == TS_OK; r++)
            for (int m = 0; m < 3; m++)
                check_rule(v, r, v->line[m]);
        if (v->status == TS_OK && !v->proves) try_assignments(v);
    }
    for (int m = 0; m < 3; m++)
        check_plans(v, v->grid[m], plans / 2);
    check_plans(v, v->line[1], plans / 2);
    tsi_verify_end(&v->call);
}

/* The sampled call again with its numbers of another dtype. Integers beside numbers are indices;
 * those of operators of bits may be truths. */
static void with_dtype(verifier *v, const tsi_verify_call *sampled, ts_dtype dtype)
{
    v->call = *sampled;
    bool changed = dtype == TS_DTYPE_NONE;
    tsi_category numbers = TSI_CATEGORY_INT;
    for (int32_t i = 0; i < v->call.input_count; i++) {
        tsi_category one = tsi_dtype_category((ts_dtype)v->call.in[i].dtype);
        if (one == TSI_CATEGORY_REAL) numbers = one;
    }
    if (numbers == TSI_CATEGORY_INT && dtype != TS_DTYPE_BOOL) dtype = TS_DTYPE_NONE;
    for (int32_t i = 0; i < v->call.input_count && dtype; i++) {
        if (tsi_dtype_category((ts_dtype)v->call.in[i].dtype) != numbers) continue;
        v->call.in[i].dtype = (int32_t)dtype;
        changed = true;
    }
    if (changed) verify_call(v);
}

static void verify_op(verifier *v, const tsi_op_desc *op)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_NONE, TS_DTYPE_I64, TS_DTYPE_I8, TS_DTYPE_BOOL,
                                       TS_DTYPE_C128 };
    if (!op->reference || op->attribute_bytes > sizeof v->call.given ||
        op->flags & TSI_OP_DATA_SHAPE)
        return;
    v->result.operators++;
    for (int32_t variant = 0; variant < VARIANTS_MAX && v->status == TS_OK; variant++) {
        tsi_verify_call sampled = { .op = op, .world = v->line[0]->world };
        uint64_t random = v->options->seed + (uint64_t)variant;
        sampled.input_count = op->input_max;
        if (!tsi_op_sample(op, &random, variant, sampled.in, &sampled.input_count, sampled.given))
            break;
        for (size_t d = 0; d < (v->proves ? 1 : TSI_COUNT_OF(dtypes)); d++)
            with_dtype(v, &sampled, dtypes[d]);
        v->small = true;
        for (int i = 0; i < SMALL_CALLS && !v->proves; i++) {
            tsi_verify_call small = sampled;
            tsi_sample_extents(&v->random, small.in, small.input_count);
            with_dtype(v, &small, dtypes[draw(v, TSI_COUNT_OF(dtypes))]);
        }
        v->small = false;
    }
}

static ts_status verify_named(verifier *v)
{
    for (int32_t i = 0; i < v->options->op_count; i++) {
        const tsi_op_desc *op = tsi_op_find_in(v->line[0]->world, v->options->op[i]);
        const char *names[TSI_OP_ID_COUNT + 1] = { NULL };
        for (int32_t k = 0; k < TSI_OP_ID_COUNT; k++)
            names[k] = tsi_op_at(k)->name;
        const char *near = !op ? tsi_text_nearest(v->options->op[i], names) : NULL;
        if (!op)
            return TSI_FAIL(TS_ERR_ARG, "verify: there is no operator \"%s\"%s%s%s",
                            v->options->op[i], near ? "; did you mean " : "", near ? near : "",
                            near ? "?" : "");
        verify_op(v, op);
    }
    return v->status;
}

static void verifier_close(verifier *v)
{
    if (!v) return;
    for (int m = 0; m < 3; m++)
        ts_mesh_release(v->line[m]);
    for (int m = 0; m < 3; m++)
        ts_mesh_release(v->grid[m]);
    tsi_arena_release(&v->memory);
    tsi_free(v);
}

/* NULL: recorded. */
static verifier *verifier_open(ts_world *world, const ts_verify_options *options)
{
    verifier *v = tsi_calloc(1, sizeof *v);
    if (!v) {
        tsi_fail_memory("the verifier", sizeof *v);
        return NULL;
    }
    v->options = options;
    v->random = options->seed;
    v->line[0] = ts_mesh_describe(world, "x=2");
    v->line[1] = ts_mesh_describe(world, "x=3");
    v->line[2] = ts_mesh_describe(world, "x=4");
    v->grid[0] = ts_mesh_describe(world, "x=2, y=2");
    v->grid[1] = ts_mesh_describe(world, "x=3, y=2");
    v->grid[2] = ts_mesh_describe(world, "x=2, y=2, z=2");
    bool good = true;
    for (int m = 0; m < 3; m++)
        good = good && v->line[m] && v->grid[m];
    if (good) return v;
    verifier_close(v);
    return NULL;
}

static void keep_first(const char *line, void *context)
{
    char *first = context;
    if (!first[0]) snprintf(first, 512, "%s", line);
}

ts_status tsi_verify_user(ts_world *world, const tsi_op_desc *op)
{
    char first[512] = "";
    ts_verify_options o = TS_INIT(ts_verify_options);
    o.quick = 1;
    o.seed = 1;
    o.say = keep_first;
    o.context = first;
    verifier *v = verifier_open(world, &o);
    if (!v) return TS_ERR_MEMORY;
    v->proves = true;
    tsi_error_forget();
    verify_op(v, op);
    ts_status status = v->status;
    if (status == TS_OK && v->result.calls == 0)
        status = TSI_FAIL(TS_ERR_ARG,
                          "%s: none of its samples could be run, so its rules are not proved: %s",
                          op->name, *ts_last_error() ? ts_last_error() : "it has none");
    if (status == TS_OK && v->result.false_count > 0)
        status = TSI_FAIL(TS_ERR_ARG, "%s: its rules do not hold: %s", op->name, first);
    verifier_close(v);
    return status;
}

ts_status ts_verify_rules(ts_world *world, const ts_verify_options *options, ts_verify_result *out)
{
    ts_verify_options o = TS_INIT(ts_verify_options);
    if (!world) return TSI_FAIL(TS_ERR_NULL, "verify: a world is required");
    if (tsi_rank_current())
        return TSI_FAIL(TS_ERR_THREAD, "verify: the thread must not be attached to a rank");
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    verifier *v = verifier_open(world, &o);
    if (!v) return TS_ERR_MEMORY;
    ts_status status = o.op_count > 0 ? verify_named(v) : TS_OK;
    for (int32_t i = 0; status == TS_OK && o.op_count == 0 && i < TSI_OP_ID_COUNT; i++)
        verify_op(v, tsi_op_at(i));
    if (status == TS_OK) status = v->status;
    v->result.struct_size = out->struct_size;
    memcpy(out, &v->result,
           out->struct_size < sizeof v->result ? out->struct_size : sizeof v->result);
    verifier_close(v);
    return status;
}
