/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c - one operator call: find its plan, and run it the short way or the long one
 * (dispatch_long.c).
 *
 * The hit path does a hash of pointers, a probe, an allocation from caches and a call; everything
 * else is done once, in propagate.c. Plans are found by interned layouts, dtypes, attribute bytes
 * and the generations of rules and topology, so nothing that could change a plan is left out of its
 * key. */
#include "op/core/dispatch.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "op/core/user.h"

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
 * missing or empty, nor for an operator that ends with another world. */
static ts_status check_call(const ts_rank *rank, const tsi_op_args *args)
{
    if (args->op->flags & TSI_OP_USER && tsi_user_of(args->op)->world != rank->world)
        return TSI_FAIL(TS_ERR_ARG, "%s: is registered in another world; ts_op_register it here",
                        args->op->name);
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
    if (check_call(rank, args) != TS_OK) return NULL;
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

/* A view of input 0. For the strides that came last it is known. */
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
    tsi_array *view = tsi_op_view_of(plan, in);
    plan->view_known = view != NULL;
    if (!view) return NULL;
    memcpy(plan->model.stride, view->stride, sizeof plan->model.stride);
    plan->model.dense = view->dense;
    plan->view_offset = view->offset - array->offset;
    return view;
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
    if (tsi_op_run_kernel(plan, &plan->io) == TS_OK) return result;
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
            status = tsi_op_run_kernel(plan, &plan->io);
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

static TSI_COLD ts_status refuse_rank(const tsi_op_args *args)
{
    for (int32_t i = 0; i < args->input_count; i++)
        if (args->in[i] && args->in[i]->ended)
            return tsi_tensor_refuse(args->in[i], "%s: input %d", args->op->name, i);
    return TSI_FAIL(TS_ERR_THREAD, "%s: this thread is attached to no rank", args->op->name);
}

/* Those who want to know of calls: tapes, recomputation. */
static inline ts_status tell(ts_rank *rank, tsi_op_plan *plan, const tsi_op_args *args,
                             uint64_t stream, ts_tensor *const *out, bool writes)
{
    if (!tsi_observers_want(&rank->observers, TSI_NEWS_CALL)) return TS_OK;
    tsi_op_record record = { plan, plan->attributes, args->in, out, stream, writes };
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
        status = tsi_op_run_long(rank, state, plan, args, stream, out);
    }
    if (status == TS_OK) status = tell(rank, plan, args, stream, out, plan->in_place);
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

/* Is it other memory, whatever becomes of either's storage? */
static bool apart(const tsi_array *a, const tsi_array *b)
{
    return a->storage != b->storage && !tsi_array_meets(a, b);
}

/* Can the kernel write there? Its memory must not be an input's, and lie as the result does. */
static bool writes_there(const tsi_op_plan *plan, const tsi_op_args *args, ts_tensor *const *into)
{
    bool direct = plan->algorithm == 0 && !plan->in_place && !plan->op->view;
    for (int32_t o = 0; direct && o < plan->output_count; o++) {
        direct = into[o]->layout == plan->out[o] && into[o]->array->dense;
        for (int32_t i = 0; direct && i < args->input_count; i++)
            direct = !args->in[i] || apart(args->in[i]->array, into[o]->array);
        for (int32_t p = 0; direct && p < o; p++)
            direct = apart(into[p]->array, into[o]->array);
    }
    return direct;
}

/* Results that are views of what is written (a transpose into its input) are copied apart before
 * the first of them is. */
static ts_status set_apart(const tsi_op_plan *plan, ts_tensor **out, ts_tensor *const *into)
{
    for (int32_t o = 0; o < plan->output_count; o++) {
        bool meets = false;
        TSI_TRY(tsi_tensor_ready(out[o]));
        for (int32_t i = 0; i < plan->output_count; i++)
            meets = meets || !apart(out[o]->array, into[i]->array);
        if (!meets) continue;
        ts_tensor *copy = tsi_op_copy_of(out[o]);
        if (!copy) return ts_rank_status(out[o]->rank);
        ts_tensor_drop(out[o]);
        out[o] = copy;
    }
    return TS_OK;
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
    tsi_array_wrote(into->array);
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
    ts_status status = tsi_op_run_long(rank, state, plan, args, stream, out);
    if (status == TS_OK && !direct) status = set_apart(plan, out, into);
    for (int32_t o = 0; o < plan->output_count && !direct; o++) {
        if (status == TS_OK) status = copy_into(out[o], into[o]);
        ts_tensor_drop(out[o]);
    }
    return status == TS_OK ? tell(rank, plan, args, stream, into, true) : status;
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
