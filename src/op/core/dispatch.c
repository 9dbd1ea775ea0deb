/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - running one operator call: find its plan, move what must move, run the kernel, wrap
 * the results.
 *
 * The hit path does a hash of pointers, a probe, an allocation from caches and a call; everything
 * else is done once, in propagate.c. Plans are found by interned layouts, dtypes, attribute bytes
 * and the generations of rules and topology, so nothing that could change a plan is left out of its
 * key. */
#include "op/core/dispatch.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/keep.h"
#include "base/log.h"
#include "base/text.h"
#include "tensor/move.h"
#include "tensor/scope.h"

/* ---- the state of a rank --------------------------------------------------------------------- */

static void state_destroy(void *argument)
{
    tsi_op_state *state = argument;
    for (int32_t i = 0; i < TSI_OP_CACHE_SIZE; i++)
        tsi_op_plan_destroy(state->cache[i]);
    for (int32_t i = 0; i < TSI_OP_ID_COUNT; i++)
        tsi_free(state->defaults[i]);
    tsi_free(state);
}

static void *state_create(ts_rank *rank)
{
    (void)rank;
    tsi_op_state *state = tsi_calloc(1, sizeof *state);
    if (!state) tsi_fail_memory("the operator state of a rank", sizeof *state);
    return state;
}

tsi_op_state *tsi_op_state_of(ts_rank *rank)
{
    tsi_op_state *state = tsi_slot_get(rank, TSI_SLOT_OP);
    if (TSI_LIKELY(state != NULL)) return state;
    return tsi_rank_slot(rank, TSI_SLOT_OP, state_create, state_destroy);
}

/* ---- the cache ------------------------------------------------------------------------------- */

static uint32_t generation_of(const ts_rank *rank, const tsi_op_state *state)
{
    return atomic_load_explicit(&rank->world->generation, memory_order_relaxed) + state->generation;
}

#define HASH_ODD UINT64_C(0x9E3779B97F4A7C15)

static inline uint64_t word_at(const void *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* The attribute bytes that matter: `head` of them, and `tail` ones that begin at `rest`. Between
 * lie the unused places of a list of dims with which many operators' attributes begin. */
typedef struct key_bytes {
    size_t head, rest, tail;
} key_bytes;

static inline key_bytes key_bytes_of(const tsi_op_desc *op, const void *attributes)
{
    key_bytes k = { op->attribute_bytes, 0, 0 };
    if (k.head < sizeof(tsi_dims)) return k;
    const tsi_attribute *first = op->attribute;
    if (!first || first->type != TS_ATTRIBUTE_DIMS || first->offset != 0) return k;
    uint32_t count = (uint32_t)((const tsi_dims *)attributes)->count; /* -1: not given */
    k.rest = sizeof(tsi_dims);
    k.tail = k.head - sizeof(tsi_dims);
    k.head = offsetof(tsi_dims, value) + (count <= TS_NDIM_MAX ? count : 0) * sizeof(int64_t);
    return k;
}

/* By two, since numbers have four words; and mixed between, since their words say the same twice.
 */
static inline uint64_t hash_words(uint64_t h, const char *at, size_t bytes)
{
    for (; bytes >= 16; bytes -= 16, at += 16) {
        h = ((h << 11 | h >> 53) ^ word_at(at)) * HASH_ODD;
        h = (h << 11 | h >> 53) ^ word_at(at + 8);
    }
    return bytes >= 8 ? (h << 11 | h >> 53) ^ word_at(at) : h;
}

/* Cheap: keys are compared in full, so a hash need only spread. Attributes are mostly small numbers
 * and zeros; a turn and an "exclusive or" a word keeps them apart, the end mixes. */
static inline uint64_t hash_of(const tsi_op_args *args, const key_bytes *k)
{
    uint64_t h = (uint64_t)(uintptr_t)args->op + (uint64_t)(uint32_t)args->in_place;
    for (int32_t i = 0; i < args->input_count; i++) {
        const ts_tensor *t = args->in[i];
        h = (h ^ (t ? (uint64_t)(uintptr_t)t->layout + (uint64_t)t->dtype : 1)) * HASH_ODD;
        h ^= h >> 29;
    }
    h = hash_words(h, args->attributes, k->head);
    if (k->tail) h = hash_words(h, (const char *)args->attributes + k->rest, k->tail);
    h *= HASH_ODD;
    h ^= h >> 32;
    h *= HASH_ODD;
    return h ^ h >> 32;
}

/* A few words, mostly whole ones: shorter than a call. */
static inline bool same_bytes(const char *a, const char *b, size_t bytes)
{
    uint64_t differ = 0;
    for (; bytes >= 16; bytes -= 16, a += 16, b += 16)
        differ |= (word_at(a) ^ word_at(b)) | (word_at(a + 8) ^ word_at(b + 8));
    for (; bytes >= 8; bytes -= 8, a += 8, b += 8)
        differ |= word_at(a) ^ word_at(b);
    return differ == 0 && (bytes == 0 || memcmp(a, b, bytes) == 0);
}

static inline bool is_plan_of(const tsi_op_plan *plan, const tsi_op_args *args, const key_bytes *k,
                              uint32_t generation)
{
    if (plan->op != args->op || plan->input_count != args->input_count ||
        plan->in_place != args->in_place || plan->generation != generation)
        return false;
    for (int32_t i = 0; i < args->input_count; i++) {
        const ts_tensor *t = args->in[i];
        const ts_layout *layout = plan->in[i]; /* NULL: absent, not a variable without a value */
        if (TSI_UNLIKELY(!t)) {
            if (layout) return false;
        } else if (t->layout != layout || !layout || t->dtype != plan->in_dtype[i]) {
            return false;
        }
    }
    /* Counts of dims that differ differ in the first word. */
    const char *a = plan->given, *b = args->attributes;
    return same_bytes(a, b, k->head) &&
           (k->tail == 0 || same_bytes(a + k->rest, b + k->rest, k->tail));
}

/* A free or the least recently used place near the hash; NULL: all of them are running. */
static tsi_op_plan **place_for(tsi_op_state *state, uint64_t hash)
{
    tsi_op_plan **oldest = NULL;
    for (uint32_t p = 0; p < TSI_OP_CACHE_PROBE; p++) {
        tsi_op_plan **place = &state->cache[(hash + p) % TSI_OP_CACHE_SIZE];
        if (!*place) return place;
        if ((*place)->busy) continue;
        if (!oldest || state->clock - (*place)->used > state->clock - (*oldest)->used)
            oldest = place;
    }
    return oldest;
}

/* A call that has a plan need not be asked: none is made, and none is found, for an input that is
 * missing or empty. */
static ts_status check_inputs(const tsi_op_args *args)
{
    for (int32_t i = 0; i < args->input_count; i++) {
        const ts_tensor *t = args->in[i];
        if (!t && i < args->op->input_min)
            return TSI_FAIL(TS_ERR_NULL, "%s: input %d is NULL", args->op->name, i);
        if (t && TSI_UNLIKELY(!t->layout))
            return tsi_tensor_refuse(t, "%s: input %d", args->op->name, i);
    }
    return TS_OK;
}

static TSI_COLD tsi_op_plan *plan_miss(ts_rank *rank, tsi_op_state *state, const tsi_op_args *args,
                                       uint64_t hash, uint32_t generation)
{
    if (check_inputs(args) != TS_OK) return NULL;
    tsi_op_plan *plan = tsi_op_plan_make(rank, args);
    if (!plan) return NULL;
    state->misses++;
    state->matched += plan->matched;
    plan->hash = hash;
    plan->generation = generation;
    tsi_op_plan **place = place_for(state, hash);
    if (!place) {
        plan->loose = 1;
        return plan;
    }
    if (*place) {
        TSI_ASSERT((*place)->busy == 0); /* a call inside a call may need the same place */
        tsi_op_plan_destroy(*place);
        state->evicted++;
    } else {
        state->live++;
    }
    *place = plan;
    return plan;
}

/* Where the place of the plan last found for such a call is noted: calls of one operator on the
 * same layouts mostly repeat their attributes too, and then nothing need be hashed. `mark`, in the
 * upper half of what is noted there, keeps a call from looking at the plan of another, which is
 * mostly in no cache. */
typedef struct recent {
    uint32_t *at, mark;
} recent;

static inline recent recent_of(tsi_op_state *state, const tsi_op_args *args)
{
    uint64_t mixed = (uint64_t)(uintptr_t)args->op;
    if (args->input_count > 0 && args->in[0]) mixed += (uint64_t)(uintptr_t)args->in[0]->layout;
    if (args->op->attribute_bytes >= sizeof(uint64_t)) mixed ^= word_at(args->attributes);
    mixed *= HASH_ODD;
    return (recent){ &state->recent[mixed >> (64 - TSI_OP_RECENT_BITS)],
                     (uint32_t)(mixed >> 16) & 0xFFFF0000u };
}

static inline tsi_op_plan *plan_use(tsi_op_state *state, tsi_op_plan *plan)
{
    plan->used = state->clock;
    state->hits++;
    return plan;
}

static TSI_NOINLINE tsi_op_plan *plan_search(ts_rank *rank, tsi_op_state *state,
                                             const tsi_op_args *args, const key_bytes *k,
                                             recent noted)
{
    uint32_t generation = generation_of(rank, state);
    uint64_t hash = hash_of(args, k);
    for (uint32_t p = 0; p < TSI_OP_CACHE_PROBE; p++) {
        uint64_t at = (hash + p) % TSI_OP_CACHE_SIZE;
        tsi_op_plan *plan = state->cache[at];
        if (!plan) break;
        if (plan->hash != hash || !is_plan_of(plan, args, k, generation)) continue;
        *noted.at = noted.mark | (uint32_t)at;
        return plan_use(state, plan);
    }
    tsi_op_plan *plan = plan_miss(rank, state, args, hash, generation);
    if (plan) plan->used = state->clock;
    return plan;
}

static inline tsi_op_plan *plan_find(ts_rank *rank, tsi_op_state *state, const tsi_op_args *args)
{
    key_bytes k = key_bytes_of(args->op, args->attributes);
    recent noted = recent_of(state, args);
    uint32_t place = *noted.at ^ noted.mark; /* without an upper half: of such a call */
    tsi_op_plan *plan = place < TSI_OP_CACHE_SIZE ? state->cache[place] : NULL;
    state->clock++;
    if (TSI_LIKELY(plan && is_plan_of(plan, args, &k, generation_of(rank, state))))
        return plan_use(state, plan);
    return plan_search(rank, state, args, &k, noted);
}

tsi_op_plan *tsi_op_plan_of(ts_rank *rank, const tsi_op_args *args)
{
    tsi_op_state *state = tsi_op_state_of(rank);
    return state ? plan_find(rank, state, args) : NULL;
}

/* ---- implicit moves -------------------------------------------------------------------------- */

static int32_t worst_input(const tsi_op_plan *plan)
{
    int32_t worst = 0;
    for (int32_t i = 1; i < plan->input_count; i++)
        if (plan->move_bytes[i] > plan->move_bytes[worst]) worst = i;
    return worst;
}

/* The policy of the innermost scope, before anything is communicated. */
TSI_COLD ts_status tsi_op_policy(ts_rank *rank, const tsi_op_plan *plan)
{
    const tsi_frame *frame = tsi_frame_top(tsi_slot_get(rank, TSI_SLOT_TENSOR));
    int64_t total = tsi_op_plan_bytes(plan);
    if (frame->moves == TS_MOVES_ALLOW) return TS_OK;
    if (frame->moves == TS_MOVES_WARN && total <= frame->implicit_bytes_max) return TS_OK;
    int32_t i = worst_input(plan);
    char bytes[32], wanted[256] = "";
    tsi_text_bytes(bytes, sizeof bytes, total);
    if (plan->wanted[i]) ts_sharding_text(plan->wanted[i]->sharding, wanted, sizeof wanted);
    if (frame->moves == TS_MOVES_WARN) {
        tsi_log(TSI_LOG_WARN, "%s at %s: moves %s implicitly: input %d is %s, used as (%s)",
                plan->op->name, rank->where, bytes, i, plan->in[i]->text, wanted);
        return TS_OK;
    }
    if (!plan->wanted[i])
        return TSI_FAIL(TS_ERR_POLICY,
                        "%s at %s: would move %s by its own algorithm, and implicit "
                        "moves are forbidden here",
                        plan->op->name, rank->where, bytes);
    return TSI_FAIL(
        TS_ERR_POLICY,
        "%s at %s: input %d is %s and would be moved to (%s), %s, but implicit moves are "
        "forbidden here; say it: ts_redistribute(x, \"%s\")",
        plan->op->name, rank->where, i, plan->in[i]->text, wanted, bytes, wanted);
}

static ts_tensor *move_to(const tsi_op_plan *plan, ts_tensor *t, const ts_layout *to)
{
    if (tsi_tensor_ready(t) != TS_OK) return NULL;
    tsi_source from = { t->mesh, t->layout, t->array, (ts_dtype)t->dtype };
    tsi_move *move = NULL;
    ts_move_options options = TS_INIT(ts_move_options);
    options.name = plan->op->name;
    tsi_array *array = tsi_move_begin(&from, plan->mesh, to, &options, &move);
    ts_tensor *y = array ? tsi_tensor_make(plan->mesh, to, (ts_dtype)t->dtype, array, move) : NULL;
    tsi_tensor_moved(t, y, true);
    return y;
}

/* Inputs as the kernel wants them: new tensors where something moved. */
static ts_status move_inputs(ts_rank *rank, const tsi_op_plan *plan, const tsi_op_args *args,
                             ts_tensor **used)
{
    for (int32_t i = 0; i < plan->input_count; i++) {
        used[i] = args->in[i];
        if (!plan->wanted[i]) continue;
        ts_tensor *whole = plan->via[i] ? move_to(plan, args->in[i], plan->via[i]) : NULL;
        if (plan->via[i] && !whole) return ts_rank_status(rank);
        used[i] = move_to(plan, whole ? whole : args->in[i], plan->wanted[i]);
        ts_tensor_drop(whole);
        if (!used[i]) return ts_rank_status(rank);
    }
    return TS_OK;
}

static void drop_moved(const tsi_op_plan *plan, const tsi_op_args *args, ts_tensor **used)
{
    for (int32_t i = 0; i < plan->input_count; i++)
        if (used[i] && used[i] != args->in[i]) ts_tensor_drop(used[i]);
}

/* ---- the local part -------------------------------------------------------------------------- */

/* User code may fail on some ranks and not on others where their blocks differ: then peers must be
 * told. */
static TSI_COLD ts_status user_failed(const tsi_op_plan *plan, ts_rank *rank, ts_status status)
{
    uint32_t differ = 0;
    for (int32_t i = 0; i < plan->input_count; i++) {
        const ts_layout *layout = plan->wanted[i] ? plan->wanted[i] : plan->in[i];
        if (layout) differ |= layout->axes_cut | layout->axes_partial;
    }
    ts_error *error = &rank->error.error;
    if (!differ || error->blast != TS_BLAST_AGREED) return status;
    error->blast = TS_BLAST_LOCAL;
    if (rank->on_error) rank->on_error(rank, error);
    return status;
}

static inline ts_status run_kernel(const tsi_op_plan *plan, const tsi_kernel_io *io)
{
    ts_status status = tsi_kernel_run(plan->kernel, io);
    if (TSI_LIKELY(status == TS_OK || !(plan->op->flags & TSI_OP_USER))) return status;
    return user_failed(plan, io->rank, status);
}

/* A view of input 0 where the block allows; NULL: it does not. */
static tsi_array *view_of(const tsi_op_plan *plan, ts_tensor *const *used)
{
    tsi_op_call call = { plan->op, plan->attributes,  plan->in_meta,
                         NULL,     plan->input_count, plan->output_count };
    ts_meta out_meta = plan->out_meta[0];
    call.out = &out_meta;
    tsi_block in = tsi_array_block(used[0]->array), out = { .dtype = in.dtype };
    int64_t offset = 0;
    const ts_shape *local = &plan->out_local[0];
    out.ndim = local->ndim;
    memcpy(out.extent, local->extent, sizeof out.extent);
    if (!plan->op->view(&call, &in, &out, &offset)) return NULL;
    return tsi_array_view(used[0]->array, (ts_dtype)plan->out_meta[0].dtype, local, out.stride,
                          used[0]->array->offset + offset);
}

/* The same for the strides that came last: what the view is then is known. */
static tsi_array *view_again(tsi_op_plan *plan, ts_tensor *const *in)
{
    const tsi_array *array = in[0]->array;
    tsi_block *block = &plan->operand[0].block;
    bool same = plan->view_known;
    for (int32_t d = 0; d < array->ndim; d++) {
        same &= block->stride[d] == array->stride[d];
        block->stride[d] = array->stride[d];
    }
    if (same) return tsi_array_view_like(in[0]->array, &plan->model, plan->view_offset);
    tsi_array *view = view_of(plan, in);
    plan->view_known = view != NULL;
    if (!view) return NULL;
    memcpy(plan->model.stride, view->stride, sizeof plan->model.stride);
    plan->model.dense = view->dense;
    plan->view_offset = view->offset - array->offset;
    return view;
}

/* The order of dims of `like` in memory, for a block of the given extents; false: it has none. */
static bool order_of(const tsi_array *like, const ts_shape *shape, int32_t *order)
{
    bool fits = like->ndim == shape->ndim;
    for (int32_t d = 0; fits && d < shape->ndim; d++) {
        fits = like->extent[d] == shape->extent[d] && (like->stride[d] > 0 || like->extent[d] <= 1);
        int32_t at = d;
        for (; at > 0 && like->stride[order[at - 1]] < like->stride[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    return fits;
}

/* A block without gaps, its dims in this order. */
static void lay_out(tsi_array *array, const int32_t *order)
{
    int64_t stride = 1, step = 1;
    for (int32_t k = array->ndim - 1; k >= 0; k--) {
        array->stride[order[k]] = stride;
        stride *= array->extent[order[k]];
    }
    for (int32_t d = array->ndim - 1; d >= 0; step *= array->extent[d--])
        if (array->extent[d] != 1 && array->stride[d] != step) array->dense = 0;
}

/* Output o has the order of an input, which is in `order`. */
static bool lies_like(const tsi_op_plan *plan, ts_tensor *const *used, int32_t o, int32_t *order)
{
    int32_t like = plan->op->lies_like[o];
    return like && used[like - 1] && order_of(used[like - 1]->array, &plan->out_local[o], order);
}

/* A new block for output o, in memory as the operator wants it. NULL: recorded. */
static tsi_array *make_result(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                              int32_t o)
{
    int32_t order[TS_NDIM_MAX];
    tsi_array *result =
        tsi_array_create(rank, (ts_dtype)plan->out_meta[o].dtype, &plan->out_local[o]);
    if (result && lies_like(plan, used, o, order)) lay_out(result, order);
    return result;
}

/* The local shape of all outputs as one block along dim `dim`; false: they cannot be one. */
static bool shape_beside(const tsi_op_plan *plan, int32_t dim, ts_shape *out)
{
    *out = plan->out_local[0];
    bool alike = dim >= 0 && dim < out->ndim && ts_shape_count(out) > 0;
    for (int32_t o = 1; alike && o < plan->output_count; o++) {
        const ts_shape *next = &plan->out_local[o];
        alike = plan->out_meta[o].dtype == plan->out_meta[0].dtype && next->ndim == out->ndim &&
                ts_shape_count(next) > 0;
        for (int32_t d = 0; alike && d < out->ndim; d++)
            alike = d == dim || next->extent[d] == out->extent[d];
        out->extent[dim] += next->extent[dim];
    }
    return alike;
}

enum { PART_ALIGN = 16 }; /* what fast loops want of a row */

/* Blocks for all outputs as parts of one, where the operator asks for it and they can be. */
static ts_status make_beside(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                             tsi_array **result)
{
    int32_t order[TS_NDIM_MAX], beside = plan->op->beside;
    int32_t dim = beside > 0 ? beside - 1 : plan->out_local[0].ndim + beside;
    ts_dtype dtype = (ts_dtype)plan->out_meta[0].dtype;
    ts_shape shape;
    for (int32_t o = 0; o < plan->output_count; o++)
        if (result[o]) return TS_OK;
    if (!shape_beside(plan, dim, &shape)) return TS_OK;
    tsi_array *whole = tsi_array_create(rank, dtype, &shape);
    if (!whole) return ts_rank_status(rank);
    if (lies_like(plan, used, 0, order)) lay_out(whole, order);
    int64_t at = 0, part = whole->stride[dim] * (int64_t)ts_dtype_size(dtype);
    bool aligned = true;
    for (int32_t o = 0; o < plan->output_count; o++)
        aligned = aligned && plan->out_local[o].extent[dim] * part % PART_ALIGN == 0;
    for (int32_t o = 0; aligned && o < plan->output_count; o++) {
        result[o] = tsi_array_part(whole, o, &plan->out_local[o], whole->stride, at);
        at += plan->out_local[o].extent[dim] * whole->stride[dim];
        if (!result[o]) break; /* recorded; the caller lets the others go */
    }
    tsi_array_release(whole);
    return ts_rank_status(rank);
}

static ts_status run_local(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                           uint64_t stream, tsi_array **result)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine) return ts_rank_status(rank);
    tsi_operand operand[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    tsi_operand *in = operand, *out = operand + plan->input_count;
    for (int32_t i = 0; i < plan->input_count; i++) {
        in[i] = (tsi_operand){ .global = &plan->in_meta[i], .region = plan->in_region[i] };
        if (!used[i]) continue;
        in[i].block = tsi_array_block(used[i]->array);
        in[i].storage = used[i]->array->storage;
    }
    if (plan->op->beside && !plan->in_place) TSI_TRY(make_beside(rank, plan, used, result));
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (plan->in_place && o == 0)
            result[0] = tsi_array_retain(used[0]->array);
        else if (!result[o]) /* no memory to write into was given */
            result[o] = make_result(rank, plan, used, o);
        if (!result[o]) return ts_rank_status(rank);
        out[o] = (tsi_operand){ tsi_array_block(result[o]), &plan->out_meta[o], plan->out_region[o],
                                result[o]->storage };
    }
    tsi_kernel_io io = {
        .op = plan->op,
        .attributes = plan->attributes,
        .in = in,
        .out = out,
        .input_count = plan->input_count,
        .output_count = plan->output_count,
        .rank = rank,
        .device = mine->device,
        .queue = mine->queue,
        .seed = rank->world->seed,
        .stream = stream,
        .in_place = plan->in_place,
    };
    int32_t dim = 0;
    if (tsi_op_arrives(plan, used[0], &dim)) return tsi_op_run_arriving(plan, &io, used[0], dim);
    if (used[0]) TSI_TRY(tsi_tensor_ready(used[0]));
    return run_kernel(plan, &io);
}

ts_status tsi_op_run_algorithm(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                               ts_tensor **out)
{
    TSI_ASSERT(plan->op->algorithm && plan->algorithm > 0);
    ts_meta out_meta[TSI_OUTPUT_MAX];
    memcpy(out_meta, plan->out_meta, (size_t)plan->output_count * sizeof *out_meta);
    tsi_op_call call = { plan->op, plan->attributes,  plan->in_meta,
                         out_meta, plan->input_count, plan->output_count };
    tsi_algorithm_io io = {
        .op = plan->op,
        .attributes = plan->attributes,
        .call = &call,
        .rank = rank,
        .mesh = plan->mesh,
        .group = tsi_mesh_axes_group(plan->mesh, plan->algorithm_axes),
        .axes = plan->algorithm_axes,
        .input_count = plan->input_count,
        .output_count = plan->output_count,
        .in = used,
        .out_layout = plan->out,
        .out = out,
    };
    if (!io.group) return ts_rank_status(rank);
    tsi_op_state *state = tsi_op_state_of(rank);
    int64_t stated = state->implicit_bytes;
    ts_status status = plan->op->algorithm[plan->algorithm - 1].run(&io);
    state->implicit_bytes = stated; /* what its own calls move is in what it stated */
    return status;
}

/* An output that is a tensor already has the result's memory. */
static ts_status wrap_results(const tsi_op_plan *plan, const tsi_op_args *args, tsi_array **result,
                              ts_tensor **out)
{
    if (plan->in_place) out[0] = args->in[0];
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (out[o]) {
            tsi_array_release(result[o]);
            out[o]->array->storage->version++;
            continue;
        }
        out[o] = tsi_tensor_make(plan->mesh, plan->out[o], (ts_dtype)plan->out_meta[o].dtype,
                                 result[o], NULL);
        if (out[o]) continue;
        while (++o < plan->output_count) /* result[o] was taken */
            tsi_array_release(result[o]);
        return ts_rank_status(plan->mesh->rank);
    }
    return TS_OK;
}

/* A rank outside the mesh: absent results, nothing else. */
static ts_status run_outside(const tsi_op_plan *plan, const tsi_op_args *args, ts_tensor **out)
{
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (plan->in_place && o == 0)
            result[0] = tsi_array_retain(args->in[0]->array);
        else
            result[o] =
                tsi_tensor_block(plan->mesh, plan->out[o], (ts_dtype)plan->out_meta[o].dtype);
        if (!result[o]) return ts_rank_status(plan->mesh->rank);
    }
    return wrap_results(plan, args, result, out);
}

/* Outputs that are there are written into: of plans without algorithm and view. */
static ts_status run_inside(ts_rank *rank, tsi_op_plan *plan, const tsi_op_args *args,
                            uint64_t stream, ts_tensor **out)
{
    ts_tensor *used[TSI_INPUT_MAX] = { NULL };
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = move_inputs(rank, plan, args, used);
    for (int32_t o = 0; status == TS_OK && o < plan->output_count; o++)
        if (out[o]) result[o] = tsi_array_retain(out[o]->array);
    int32_t dim = 0; /* the first input may still be on its way: run_local looks for itself */
    bool waits = plan->input_count > 0 && !tsi_op_arrives(plan, used[0], &dim);
    for (int32_t i = waits ? 0 : 1; status == TS_OK && i < plan->input_count; i++)
        if (used[i]) status = tsi_tensor_ready(used[i]);
    if (status == TS_OK && plan->algorithm > 0) {
        status = tsi_keeps(rank) ? tsi_op_keep_algorithm(rank, plan, used, out)
                                 : tsi_op_run_algorithm(rank, plan, used, out);
    } else if (status == TS_OK) {
        bool views = plan->op->view && !plan->in_place && !out[0];
        if (views) result[0] = view_of(plan, used);
        if (!views || !result[0]) status = run_local(rank, plan, used, stream, result);
        if (status == TS_OK)
            status = wrap_results(plan, args, result, out);
        else
            for (int32_t o = 0; o < plan->output_count; o++)
                tsi_array_release(result[o]);
    }
    drop_moved(plan, args, used);
    return status;
}

/* ---- the short way --------------------------------------------------------------------------- */

/* The operands of the inputs as they are now. Not 0: one of them is still on its way. */
static inline uintptr_t short_inputs(tsi_op_plan *plan, ts_tensor *const *in)
{
    uintptr_t moving = 0;
    for (int32_t i = 0; i < plan->input_count; i++) {
        if (!in[i]) continue;
        moving |= (uintptr_t)in[i]->move;
        const tsi_array *array = in[i]->array;
        tsi_block *block = &plan->operand[i].block;
        block->data = array->offset ? tsi_array_data(array) : array->storage->data;
        plan->operand[i].storage = array->storage;
        for (int32_t d = 0; d < array->ndim; d++)
            block->stride[d] = array->stride[d];
    }
    return moving;
}

static TSI_COLD ts_status short_wait(const tsi_op_plan *plan, ts_tensor *const *in)
{
    for (int32_t i = 0; i < plan->input_count; i++)
        if (in[i]) TSI_TRY(tsi_tensor_ready(in[i]));
    return TS_OK;
}

/* A view's strides, or the kernel into a new block. NULL: recorded. */
static tsi_array *short_result(tsi_op_plan *plan, ts_tensor *const *in, ts_rank *rank)
{
    if (plan->op->view) {
        if (TSI_UNLIKELY(in[0]->move != NULL) && short_wait(plan, in) != TS_OK) return NULL;
        tsi_array *view = view_again(plan, in);
        if (view || ts_rank_status(rank) != TS_OK) return view;
    }
    if (TSI_UNLIKELY(short_inputs(plan, in) != 0)) {
        if (short_wait(plan, in) != TS_OK) return NULL;
        (void)short_inputs(plan, in);
    }
    tsi_array *result =
        plan->op->view ? tsi_array_create(rank, (ts_dtype)plan->model.dtype, &plan->out_local[0])
                       : tsi_array_like(plan->pool, &plan->model, plan->out_bytes);
    if (!result) return NULL;
    plan->operand[plan->input_count].block.data = result->storage->data;
    if (run_kernel(plan, &plan->io) == TS_OK) return result;
    tsi_array_release(result);
    return NULL;
}

ts_status tsi_op_plan_time(tsi_op_plan *plan, ts_tensor *const *in, int64_t rounds, double *ns)
{
    *ns = 0;
    if (!plan->is_short)
        return TSI_FAIL(TS_ERR_ARG, "%s: this call does more than run a kernel", plan->op->name);
    if (plan->op->view) return TS_OK;
    (void)short_inputs(plan, in);
    tsi_array *result = tsi_array_like(plan->pool, &plan->model, plan->out_bytes);
    if (!result) return TS_ERR_MEMORY;
    plan->operand[plan->input_count].block.data = result->storage->data;
    ts_status status = TS_OK;
    for (int64_t r = 0; r < rounds && status == TS_OK; r++) {
        int64_t start = tsi_clock_ns();
        for (int i = 0; i < 64 && status == TS_OK; i++)
            status = run_kernel(plan, &plan->io);
        double one = (double)(tsi_clock_ns() - start) / 64;
        if (r == 0 || one < *ns) *ns = one;
    }
    tsi_array_release(result);
    return status;
}

enum { LOOK_NS = 1000000 }; /* how long ticks are trusted */

/* A look at the real clock, and the rate of ticks since the last one. */
static TSI_COLD int64_t clock_look(tsi_op_state *state, uint64_t ticks)
{
    int64_t now = tsi_clock_ns(), passed = now - state->tick_ns;
    uint64_t since = ticks - state->tick_base;
    if (passed < LOOK_NS / 8 && state->tick_base) return now; /* too short to learn a rate from */
    state->tick_limit = 0;
    if (state->tick_base && passed < 1000 * (int64_t)LOOK_NS && since > 0) {
        state->tick_rate = (uint64_t)((double)passed * 0x1p32 / (double)since);
        if (state->tick_rate > 0) state->tick_limit = ((uint64_t)LOOK_NS << 32) / state->tick_rate;
    }
    state->tick_base = ticks;
    state->tick_ns = now;
    return now;
}

static inline int64_t clock_tiny(tsi_op_state *state)
{
    uint64_t ticks = tsi_ticks(), since = ticks - state->tick_base;
    if (TSI_LIKELY(since < state->tick_limit))
        return state->tick_ns + (int64_t)(since * state->tick_rate >> 32);
    return clock_look(state, ticks);
}

/* The event of a call that takes less than two looks at the clock: one look, and it began where the
 * one before ended, if that was just now. */
static void event_tiny(ts_rank *rank, tsi_op_state *state, tsi_event *event)
{
    event->end_ns = clock_tiny(state);
    event->begin_ns = event->end_ns - state->event_ns < 4000 ? state->event_ns : event->end_ns;
    state->event_ns = event->end_ns;
    tsi_ring_add(rank->ring, event);
}

static ts_status run_short(ts_rank *rank, tsi_op_state *state, tsi_op_plan *plan,
                           const tsi_op_args *args, ts_tensor **out)
{
    tsi_event event = {
        .kind = TSI_EVENT_OP, .kind_name = plan->op->name, .name = rank->label, .where = rank->where
    };
    uint64_t number = plan->is_tiny ? 0 : tsi_ring_begin(rank->ring, &event);
    tsi_array *result = short_result(plan, args->in, rank);
    if (plan->is_tiny)
        event_tiny(rank, state, &event);
    else
        tsi_ring_end(rank->ring, number, 0);
    if (TSI_UNLIKELY(!result)) return ts_rank_status(rank);
    out[0] = tsi_tensor_make(plan->mesh, plan->out[0], (ts_dtype)plan->model.dtype, result, NULL);
    return out[0] ? TS_OK : ts_rank_status(rank);
}

/* ---- the call -------------------------------------------------------------------------------- */

static ts_rank *rank_of(const tsi_op_args *args)
{
    for (int32_t i = 0; i < args->input_count; i++)
        if (args->in[i]) return args->in[i]->rank;
    return tsi_rank_current();
}

/* Everything a call may need. */
static ts_status run_long(ts_rank *rank, tsi_op_state *state, tsi_op_plan *plan,
                          const tsi_op_args *args, uint64_t stream, ts_tensor **out)
{
    if (plan->in_place) TSI_TRY(tsi_tensor_writable(args->in[0], "%s_: input 0", args->op->name));
    if (TSI_UNLIKELY(args->op->flags & TSI_OP_RANDOM && tsi_keeps(rank)))
        TSI_TRY(tsi_op_keep_stream(rank, plan, stream));
    if (tsi_op_plan_bytes(plan) > 0) {
        TSI_TRY(tsi_op_policy(rank, plan));
        state->implicit_bytes = tsi_add_most(state->implicit_bytes, tsi_op_plan_bytes(plan));
    }
    tsi_event event = {
        .kind = TSI_EVENT_OP, .kind_name = args->op->name, .name = rank->label, .where = rank->where
    };
    uint64_t number = tsi_ring_begin(rank->ring, &event);
    plan->busy++;
    ts_status status = plan->mesh->member ? run_inside(rank, plan, args, stream, out)
                                          : run_outside(plan, args, out);
    plan->busy--;
    tsi_ring_end(rank->ring, number, plan->moved_total);
    return status;
}

static TSI_COLD ts_status refuse_rank(const tsi_op_args *args)
{
    for (int32_t i = 0; i < args->input_count; i++)
        if (args->in[i] && args->in[i]->ended)
            return tsi_tensor_refuse(args->in[i], "%s: input %d", args->op->name, i);
    return TSI_FAIL(TS_ERR_THREAD, "%s: this thread is attached to no rank", args->op->name);
}

/* Those who want to know of calls: tapes, recomputation. */
static inline ts_status tell(ts_rank *rank, tsi_op_plan *plan, const tsi_op_args *args,
                             uint64_t stream, ts_tensor *const *out)
{
    if (!tsi_observers_want(&rank->observers, TSI_NEWS_CALL)) return TS_OK;
    tsi_op_record record = { plan, plan->attributes, args->in, out, stream };
    plan->busy++;
    tsi_observers_tell(&rank->observers, TSI_NEWS_CALL, &record);
    plan->busy--;
    return ts_rank_status(rank);
}

/* What the call draws from; 0: it draws nothing. */
static uint64_t stream_of(ts_rank *rank, const tsi_op_state *state, const tsi_op_desc *op)
{
    if (!(op->flags & TSI_OP_RANDOM)) return 0;
    return state->stream_is_forced ? state->stream_forced : tsi_random_stream(rank, NULL);
}

/* Mostly there is one: then no call is made for it. */
static inline void clear_outputs(const tsi_op_desc *op, ts_tensor **out)
{
    if (TSI_LIKELY(op->output_count == 1))
        out[0] = NULL;
    else
        memset(out, 0, (size_t)op->output_count * sizeof *out);
}

ts_status tsi_op_run(const tsi_op_args *args, ts_tensor **out)
{
    clear_outputs(args->op, out);
    ts_rank *rank = rank_of(args);
    if (TSI_UNLIKELY(!rank)) return refuse_rank(args);
    if (TSI_UNLIKELY(!tsi_rank_is_ready(rank))) TSI_TRY(tsi_rank_enter(rank));
    tsi_op_state *state = tsi_op_state_of(rank);
    tsi_op_plan *plan = state ? plan_find(rank, state, args) : NULL;
    if (TSI_UNLIKELY(!plan)) return ts_rank_status(rank);
    if (TSI_UNLIKELY(state->check_plans)) TSI_TRY(tsi_op_check_plan(plan));
    uint64_t stream = 0; /* the short way draws nothing */
    ts_status status;
    int32_t dim = 0;
    bool comes = plan->op->arrives && tsi_op_arrives(plan, args->in[0], &dim);
    if (TSI_LIKELY(plan->is_short && !comes)) {
        status = run_short(rank, state, plan, args, out);
    } else {
        stream = stream_of(rank, state, args->op);
        status = run_long(rank, state, plan, args, stream, out);
    }
    if (status == TS_OK) status = tell(rank, plan, args, stream, out);
    if (TSI_UNLIKELY(status != TS_OK)) clear_outputs(args->op, out);
    if (TSI_UNLIKELY(plan->loose) && plan->busy == 0) tsi_op_plan_destroy(plan);
    return status;
}

/* ---- into memory that is there --------------------------------------------------------------- */

static ts_status check_into(const tsi_op_plan *plan, ts_tensor *into, int32_t o)
{
    const char *name = plan->op->name;
    if (!into)
        return TSI_FAIL(TS_ERR_NULL, "%s: output %d of %d is required", name, o,
                        plan->output_count);
    if (into->ended || !into->layout) return tsi_tensor_refuse(into, "%s: output %d", name, o);
    TSI_TRY(tsi_tensor_ready(into));
    TSI_TRY(tsi_tensor_writable(into, "%s: output %d", name, o));
    const ts_meta *want = &plan->out_meta[o];
    if (into->dtype == want->dtype && tsi_shape_same(&into->layout->shape, &want->shape) &&
        into->mesh->desc == plan->mesh->desc && !into->layout->axes_partial)
        return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE,
                    "%s: output %d is %s of %s, which the result, %s of %s, does not fit", name, o,
                    into->layout->text, ts_dtype_name((ts_dtype)into->dtype), plan->out[o]->text,
                    ts_dtype_name((ts_dtype)want->dtype));
}

/* Can the kernel write there? Its memory must not be an input's, and lie as the result does. */
static bool writes_there(const tsi_op_plan *plan, const tsi_op_args *args, ts_tensor *const *into)
{
    bool direct = plan->algorithm == 0 && !plan->in_place && !plan->op->view;
    for (int32_t o = 0; direct && o < plan->output_count; o++) {
        direct = into[o]->layout == plan->out[o] && into[o]->array->dense;
        for (int32_t i = 0; direct && i < args->input_count; i++)
            direct = !args->in[i] || args->in[i]->array->storage != into[o]->array->storage;
        for (int32_t p = 0; direct && p < o; p++)
            direct = into[p]->array->storage != into[o]->array->storage;
    }
    return direct;
}

/* The result as a tensor of its own, moved and copied. */
static ts_status copy_into(ts_tensor *result, ts_tensor *into)
{
    ts_tensor *moved = result;
    if (result && result->layout != into->layout)
        moved = (ts_redistribute_to)(result, into->layout->sharding);
    if (!moved) return ts_rank_status(into->rank);
    TSI_TRY(tsi_tensor_ready(moved));
    if (into->mesh->member) TSI_TRY(tsi_array_copy(into->array, moved->array));
    into->array->storage->version++;
    if (moved != result) ts_tensor_drop(moved);
    return TS_OK;
}

static ts_status run_into(ts_rank *rank, tsi_op_state *state, tsi_op_plan *plan,
                          const tsi_op_args *args, ts_tensor *const *into)
{
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    uint64_t stream = stream_of(rank, state, args->op);
    bool direct = writes_there(plan, args, into);
    if (direct) memcpy(out, into, (size_t)plan->output_count * sizeof *out);
    ts_status status = run_long(rank, state, plan, args, stream, out);
    for (int32_t o = 0; o < plan->output_count && !direct; o++) {
        if (status == TS_OK) status = copy_into(out[o], into[o]);
        ts_tensor_drop(out[o]);
    }
    return status == TS_OK ? tell(rank, plan, args, stream, into) : status;
}

ts_status tsi_op_run_into(const tsi_op_args *args, ts_tensor *const *into)
{
    ts_rank *rank = rank_of(args);
    if (!rank) return refuse_rank(args);
    TSI_TRY(tsi_rank_enter(rank));
    tsi_op_state *state = tsi_op_state_of(rank);
    tsi_op_plan *plan = state ? plan_find(rank, state, args) : NULL;
    if (!plan) return ts_rank_status(rank);
    ts_status status = state->check_plans ? tsi_op_check_plan(plan) : TS_OK;
    for (int32_t o = 0; o < plan->output_count && status == TS_OK; o++)
        status = check_into(plan, into[o], o);
    if (status == TS_OK) status = run_into(rank, state, plan, args, into);
    if (plan->loose && plan->busy == 0) tsi_op_plan_destroy(plan);
    return status;
}

ts_tensor *tsi_op_make_over(const tsi_op_desc *op, ts_tensor *const *in, int32_t input_count,
                            const void *attributes)
{
    ts_tensor *used[TSI_INPUT_MAX], *out[TSI_OUTPUT_MAX];
    TSI_ASSERT(op->flags & TSI_OP_IN_PLACE && input_count <= TSI_INPUT_MAX);
    for (int32_t i = 0; i < input_count; i++)
        used[i] = in[i];
    if (!in[0] || in[0]->references > 1 || in[0]->is_variable)
        return tsi_op_make(op, in, input_count, attributes);
    if (tsi_tensor_ready(in[0]) != TS_OK) return NULL;
    if (!tsi_array_is_alone(in[0]->array)) used[0] = (ts_clone)(in[0]);
    tsi_op_args args = { op, used, input_count, 1, attributes };
    return used[0] && tsi_op_run(&args, out) == TS_OK ? used[0] : NULL;
}

ts_tensor *tsi_op_make(const tsi_op_desc *op, ts_tensor *const *in, int32_t input_count,
                       const void *attributes)
{
    tsi_op_args args = { op, in, input_count, 0, attributes };
    ts_tensor *out[TSI_OUTPUT_MAX];
    if (tsi_op_run(&args, out) != TS_OK) return NULL;
    for (int32_t o = 1; o < op->output_count; o++)
        ts_tensor_drop(out[o]); /* nobody asked; a tape that wants it has it */
    return out[0];
}
