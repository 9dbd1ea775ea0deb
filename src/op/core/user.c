/* SPDX-License-Identifier: Apache-2.0 */
/* user.c - operators registered at run time: the registry of a world.
 *
 * An operator is known by the address of its descriptor. It is checked and its rules are proved
 * once, by the rank that comes first; the others find the result, good or bad, so that all ranks
 * say the same. Registering starts a new generation of rules: plans made before are not used again.
 *
 * INV: entries are added under the lock and never change afterwards; they live as long as the
 * world. */
#include "op/core/user.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "op/ask/query.h"
#include "op/core/attribute.h"

typedef struct registry { /* of a world, in TSI_SLOT_OP */
    pthread_mutex_t lock;
    tsi_user_op *_Atomic first;
} registry;

/* ---- the registry ---------------------------------------------------------------------------- */

static void op_destroy(tsi_user_op *op)
{
    if (!op) return;
    tsi_free(op->defaults);
    tsi_free(op->name);
    tsi_free(op->reason);
    tsi_free(op);
}

static void registry_destroy(void *state)
{
    registry *r = state;
    for (tsi_user_op *op = r->first, *next; op; op = next) {
        next = op->next;
        op_destroy(op);
    }
    pthread_mutex_destroy(&r->lock);
    tsi_free(r);
}

static void *registry_create(ts_world *world)
{
    (void)world;
    registry *r = tsi_calloc(1, sizeof *r);
    if (!r)
        tsi_fail_memory("the registry of operators", sizeof *r);
    else
        pthread_mutex_init(&r->lock, NULL);
    return r;
}

static registry *registry_of(ts_world *world)
{
    return tsi_world_slot(world, TSI_SLOT_OP, registry_create, registry_destroy);
}

const tsi_user_op *tsi_user_first(ts_world *world)
{
    registry *r = atomic_load_explicit(&world->slot[TSI_SLOT_OP].state, memory_order_acquire);
    return r ? atomic_load_explicit(&r->first, memory_order_acquire) : NULL;
}

const tsi_op_desc *tsi_op_find_in(ts_world *world, const char *name)
{
    const tsi_op_desc *built_in = tsi_op_find(name);
    if (built_in || !world) return built_in;
    for (const tsi_user_op *op = tsi_user_first(world); op; op = op->next)
        if (!op->reason && strcmp(op->name, name) == 0) return &op->desc;
    return NULL;
}

bool tsi_op_sample(const tsi_op_desc *op, uint64_t *random, int32_t variant, ts_meta *in,
                   int32_t *input_count, void *attributes)
{
    if (op->flags & TSI_OP_USER)
        return tsi_user_sample(tsi_user_of(op), random, variant, in, input_count, attributes);
    tsi_sample s = { random, variant, *input_count, in, attributes };
    bool more = op->sample && op->sample(&s);
    *input_count = s.count;
    return more;
}

/* ---- checking a descriptor ------------------------------------------------------------------- */

static ts_status check_name(const char *name)
{
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length >= 64)
        return TSI_FAIL(TS_ERR_ARG, "register: a name of 1 to 63 characters is required");
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.") != length || name[length - 1] == '_')
        return TSI_FAIL(TS_ERR_ARG,
                        "register: the name \"%s\" must be lower-case letters, digits, '.' and "
                        "'_', not ending in '_'",
                        name);
    if (tsi_op_find(name))
        return TSI_FAIL(TS_ERR_ARG,
                        "register: \"%s\" is a built-in operator; put your own prefix before it, "
                        "\"my.%s\"",
                        name, name);
    return TS_OK;
}

static ts_status check_dims(const ts_op_desc *u)
{
    int32_t letters[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    bool pointwise = u->dims && u->dims[0] == '*';
    if (!u->dims || (pointwise && strspn(u->dims, "*,-> ") == strlen(u->dims))) return TS_OK;
    if (!pointwise && tsi_user_letters(u, letters)) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: dims \"%s\" does not read as letters of %d inputs and %d outputs, such as "
                    "\"mk,kn->mn\", at most %d each",
                    u->name, u->dims, u->input_count, u->output_count, TS_NDIM_MAX);
}

/* Bits that say nothing are a mistake: what was meant would be missing without a word. */
static ts_status check_bits(const ts_op_desc *u)
{
    uint64_t inputs = (UINT64_C(1) << u->input_count) - 1;
    uint64_t outputs = (UINT64_C(1) << u->output_count) - 1;
    if (u->saves & ~(inputs | outputs << TSI_SAVE_OUT))
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: saves 0x%llx has bits of none of its %d inputs (from bit 0) and %d "
                        "outputs (from bit %d)",
                        u->name, (unsigned long long)u->saves, u->input_count, u->output_count,
                        TSI_SAVE_OUT);
    if (u->flow & ~(2u * TS_FLOW_DOWN - 1) || u->flow_inputs & ~inputs)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: flow 0x%x is of no TS_FLOW, or flow_inputs 0x%x of no input", u->name,
                        u->flow, u->flow_inputs);
    if (u->dims_reduce < 0 || u->dims_reduce >= TS_REDUCE_COUNT)
        return TSI_FAIL(TS_ERR_ARG, "%s: dims_reduce %d is no reduction", u->name, u->dims_reduce);
    if (u->dtypes & ~((1u << TS_DTYPE_COUNT) - 2))
        return TSI_FAIL(TS_ERR_ARG, "%s: dtypes 0x%x has bits of no dtype", u->name, u->dtypes);
    return TS_OK;
}

static ts_status check_functions(const ts_op_desc *u)
{
    bool pointwise = u->dims && u->dims[0] == '*';
    if (!u->dims && !u->shard)
        return TSI_FAIL(TS_ERR_ARG, "%s: dims or shard must say what it allows", u->name);
    if (!u->infer && !pointwise)
        return TSI_FAIL(TS_ERR_NULL, "%s: infer is required but with dims \"*->*\"", u->name);
    if (!u->kernel == !u->compose)
        return TSI_FAIL(TS_ERR_ARG, "%s: has %s; one of kernel and compose is wanted", u->name,
                        u->kernel ? "both kernel and compose" : "neither kernel nor compose");
    if (u->kernel && !u->dims && !u->sample)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: sample is required with shard alone: it makes the calls that its "
                        "rules are proved by",
                        u->name);
    return TS_OK;
}

static ts_status check_desc(const ts_op_desc *u)
{
    TSI_TRY(check_name(u->name));
    if (u->input_count < 1 || u->input_count > 16)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d inputs, 1 to 16 are possible", u->name, u->input_count);
    if (u->output_count < 1 || u->output_count > TSI_OUTPUT_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d outputs, 1 to %d are possible", u->name,
                        u->output_count, TSI_OUTPUT_MAX);
    if (u->input_min < 0 || u->input_min > u->input_count)
        return TSI_FAIL(TS_ERR_ARG, "%s: input_min %d is not between 0 and its %d inputs", u->name,
                        u->input_min, u->input_count);
    if (u->attributes_bytes > TSI_ATTRIBUTES_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %llu bytes of attributes, at most %d are possible",
                        u->name, (unsigned long long)u->attributes_bytes, TSI_ATTRIBUTES_MAX);
    TSI_TRY(check_bits(u));
    TSI_TRY(check_dims(u));
    return check_functions(u);
}

/* ---- making ---------------------------------------------------------------------------------- */

static int64_t no_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call;
    (void)n;
    return 0;
}

/* The face of a built-in operator. */
static void fill_desc(tsi_user_op *op)
{
    const ts_op_desc *u = &op->user;
    op->algorithm[0] = (tsi_algorithm){ "compose", tsi_user_compose, no_bytes };
    op->face = (ts_op){ &op->desc, 0, -1 };
    op->desc = (tsi_op_desc){
        .name = op->name,
        .dims = u->dims,
        .dims_reduce = (ts_reduce)u->dims_reduce,
        .input_min = u->input_min ? u->input_min : u->input_count,
        .input_max = u->input_count,
        .output_count = u->output_count,
        .flags = TSI_OP_USER | (u->grad ? 0 : TSI_OP_NO_GRAD) | (u->compose ? TSI_OP_COMPOSED : 0),
        .saves = u->saves,
        .attribute = u->attribute,
        .attribute_bytes = (size_t)u->attributes_bytes,
        .what = u->what ? u->what : "registered at run time",
        .infer = tsi_user_infer,
        .trait = tsi_user_traits,
        .rules = tsi_user_rules,
        .reference = u->kernel ? tsi_user_kernel : NULL,
        .algorithm = u->compose ? op->algorithm : NULL,
        .grad = u->grad ? tsi_user_grad : NULL,
    };
}

/* Attributes where none are given; a required one stays zero. */
static ts_status fill_defaults(tsi_user_op *op)
{
    op->defaults = tsi_calloc(1, (size_t)op->user.attributes_bytes + 16);
    if (!op->defaults) return tsi_fail_memory("attributes", (size_t)op->user.attributes_bytes);
    return tsi_attributes_default(&op->desc, op->defaults);
}

static ts_status op_fill(ts_world *world, tsi_user_op *op)
{
    TSI_TRY(check_desc(&op->user));
    op->name = tsi_alloc(strlen(op->user.name) + 1);
    if (!op->name) return tsi_fail_memory("a name", strlen(op->user.name) + 1);
    memcpy(op->name, op->user.name, strlen(op->user.name) + 1);
    if (tsi_op_find_in(world, op->name))
        return TSI_FAIL(TS_ERR_ARG, "register: the name \"%s\" is taken by another descriptor",
                        op->name);
    fill_desc(op);
    TSI_TRY(tsi_attributes_check_table(&op->desc));
    TSI_TRY(fill_defaults(op));
    return op->user.kernel ? tsi_verify_user(world, &op->desc) : TS_OK;
}

/* Kept with the sentence of its refusal, for the ranks that come later. */
static void keep_reason(tsi_user_op *op, ts_status status)
{
    const char *why = ts_last_error();
    op->refused = status;
    op->reason = tsi_alloc(strlen(why) + 1);
    if (op->reason) memcpy(op->reason, why, strlen(why) + 1);
}

/* Under the lock. The proof runs as no rank: what it tries and fails at is nobody's error. */
static tsi_user_op *op_make(ts_world *world, registry *r, const ts_op_desc *desc)
{
    ts_rank *rank = tsi_rank_current();
    tsi_user_op *op = tsi_calloc(1, sizeof *op);
    if (!op) {
        tsi_fail_memory("an operator", sizeof *op);
        return NULL;
    }
    op->source = desc;
    op->world = world;
    memcpy(&op->user, desc,
           desc->struct_size < sizeof op->user ? desc->struct_size : sizeof op->user);
    tsi_rank_set_current(NULL);
    ts_status status = op_fill(world, op);
    if (status != TS_OK) keep_reason(op, status);
    tsi_rank_set_current(rank);
    if (status != TS_OK && !op->reason) {
        op_destroy(op);
        tsi_fail_memory("a sentence", 256);
        return NULL;
    }
    op->next = atomic_load_explicit(&r->first, memory_order_relaxed);
    atomic_store_explicit(&r->first, op, memory_order_release);
    if (status == TS_OK) atomic_fetch_add_explicit(&world->generation, 1, memory_order_release);
    return op;
}

const ts_op *(ts_op_register)(ts_rank *me, const ts_op_desc *desc)
{
    if (tsi_rank_enter(me) != TS_OK) return NULL;
    if (!desc || desc->struct_size < offsetof(ts_op_desc, what)) {
        TSI_FAIL(desc ? TS_ERR_ARG : TS_ERR_NULL,
                 "register: a descriptor with struct_size is required");
        return NULL;
    }
    registry *r = registry_of(me->world);
    if (!r) return NULL;
    const tsi_user_op *op = atomic_load_explicit(&r->first, memory_order_acquire);
    while (op && op->source != desc)
        op = op->next;
    if (!op) {
        pthread_mutex_lock(&r->lock);
        op = atomic_load_explicit(&r->first, memory_order_relaxed);
        while (op && op->source != desc)
            op = op->next;
        if (!op) op = op_make(me->world, r, desc);
        pthread_mutex_unlock(&r->lock);
    }
    if (!op) return NULL;
    if (!op->reason) return &op->face;
    TSI_FAIL(op->refused, "%s", op->reason);
    return NULL;
}

/* ---- calling --------------------------------------------------------------------------------- */

ts_status(ts_op_apply_all)(const ts_op *handle, ts_tensor *const *input, const void *attributes,
                           ts_tensor **output)
{
    ts_rank *rank = tsi_rank_current();
    if (!handle || !input || !output) {
        ts_status pending = rank ? ts_rank_status(rank) : TS_OK;
        return pending != TS_OK
                   ? pending
                   : TSI_FAIL(TS_ERR_NULL,
                              "%s: an operator, inputs and a place for the outputs are required",
                              handle ? handle->desc->name : "ts_op_apply");
    }
    if (!(handle->desc->flags & TSI_OP_USER))
        return TSI_FAIL(TS_ERR_ARG,
                        "ts_op_apply: \"%s\" is built in, so its attributes are known by name: "
                        "ts_op_call",
                        handle->desc->name);
    const tsi_user_op *op = tsi_user_of(handle->desc);
    int32_t count = op->user.input_count;
    while (count > op->desc.input_min && !input[count - 1])
        count--;
    tsi_op_args args = { &op->desc, input, count, 0, attributes ? attributes : op->defaults };
    return tsi_op_run(&args, output);
}

ts_tensor *(ts_op_apply)(const ts_op *op, ts_tensor *const *input, const void *attributes)
{
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    return (ts_op_apply_all)(op, input, attributes, out) == TS_OK ? out[0] : NULL;
}

ts_status tsi_user_failed(const char *op, const char *what, ts_status status)
{
    if (status >= TS_OK) status = TS_ERR_ARG;
    ts_rank *rank = tsi_rank_current();
    if (rank && ts_rank_status(rank) != TS_OK) return ts_rank_status(rank);
    if (!*ts_last_error())
        return TSI_FAIL(status, "%s: its %s function failed: %s", op, what, ts_status_name(status));
    tsi_error_prefix("%s: its %s function failed", op, what); /* in a proof, which is no rank's */
    return status;
}

ts_status ts_op_fail(ts_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ts_status given = status < 0 ? status : TS_ERR_ARG;
    (void)tsi_fail_va(TS_BLAST_NONE, given, format, arguments);
    va_end(arguments);
    return given;
}

const ts_op *ts_op_registered(ts_rank *me, const char *name)
{
    const tsi_op_desc *op = me && name ? tsi_op_find_in(me->world, name) : NULL;
    return op && op->flags & TSI_OP_USER ? &tsi_user_of(op)->face : NULL;
}
