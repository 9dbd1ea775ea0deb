/* SPDX-License-Identifier: Apache-2.0 */
/* move.c - the life of a redistribution in flight.
 *
 * INV: hold[] is released only after the work is complete, because peers read the source and
 * helpers write the target until then. */
#include "tensor/move.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/rank.h"
#include "comm/again.h"

/* ---- bodies: used again, so that a steady step allocates none -------------------------------- */

enum { BODY_HOLDS = 32, BODIES_MAX = 8 };

/* For *holds arrays at least; sets them to what there is room for, and its bytes. NULL: no memory,
 * not recorded. */
static TSI_STEP_PATH tsi_move *body_take(tsi_tensor_state *state, int32_t *holds, size_t *bytes)
{
    bool kept = state && *holds <= BODY_HOLDS;
    tsi_move *move = kept ? state->spare_moves : NULL;
    if (kept) *holds = BODY_HOLDS;
    *bytes = sizeof(tsi_move) + (size_t)*holds * sizeof(tsi_array *);
    if (!move) return tsi_alloc(*bytes);
    state->spare_moves = move->next;
    state->spare_move_count--;
    return move;
}

static void body_put(tsi_tensor_state *state, tsi_move *move)
{
    bool kept = state && move->hold_capacity == BODY_HOLDS && state->spare_move_count < BODIES_MAX;
    if (!kept) {
        tsi_free(move);
        return;
    }
    move->next = state->spare_moves;
    state->spare_moves = move;
    state->spare_move_count++;
}

/* ---- life ------------------------------------------------------------------------------------ */

TSI_STEP_PATH tsi_move *tsi_move_create(ts_rank *rank, ts_work *work, int32_t holds)
{
    size_t bytes;
    tsi_move *move = body_take(tsi_slot_get(rank, TSI_SLOT_TENSOR), &holds, &bytes);
    if (!move) {
        if (work) ts_work_wait(work);
        tsi_fail_memory("a move in flight", bytes);
        return NULL;
    }
    *move = (tsi_move){ .rank = rank, .work = work, .references = 1, .hold_capacity = holds };
    return move;
}

TSI_STEP_PATH void tsi_move_take(tsi_move *move, tsi_array *array)
{
    if (!array) return;
    TSI_ASSERT(move->hold_count < move->hold_capacity);
    move->hold[move->hold_count++] = array;
}

TSI_STEP_PATH void tsi_move_hold(tsi_move *move, tsi_array *array)
{
    tsi_move_take(move, tsi_array_retain(array));
}

TSI_STEP_PATH tsi_move *tsi_move_retain(tsi_move *move)
{
    TSI_ASSERT(move->references > 0);
    move->references++;
    return move;
}

/* ---- who reads a block ----------------------------------------------------------------------- */

bool tsi_move_holds(const tsi_move *move, const tsi_storage *storage)
{
    bool held = false;
    for (int32_t i = 0; i < move->hold_count; i++)
        held = held || move->hold[i]->storage == storage;
    return held;
}

/* The state of a rank outlives its storages' use. Without a tensor: for all readers there are. */
static ts_status wait_for_readers(void *context, void *tensor)
{
    const tsi_tensor_state *state = context;
    const tsi_storage *storage = tensor ? ((const ts_tensor *)tensor)->array->storage : NULL;
    for (tsi_move *move = state->moves; move; move = move->next)
        if (move->work && (!storage || tsi_move_holds(move, storage))) TSI_TRY(tsi_move_wait(move));
    return TS_OK;
}

ts_status tsi_moves_ask(ts_rank *rank, const tsi_storage *storage)
{
    const tsi_tensor_state *state = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    for (tsi_move *move = state ? state->moves : NULL; move; move = move->next)
        if (move->work && tsi_move_holds(move, storage)) TSI_TRY(tsi_move_wait(move));
    return TS_OK;
}

/* False: nobody writes there, or who does asks somebody else. */
static inline bool ask_before_writes(tsi_tensor_state *state, tsi_storage *storage)
{
    if (storage->read_only || (storage->ask && storage->ask != wait_for_readers)) return false;
    storage->ask = wait_for_readers;
    storage->ask_context = state;
    return true;
}

/* Who writes a block of a complete move need not ask, unless another move reads it. */
static void stop_asking(const tsi_move *move, tsi_storage *storage)
{
    const tsi_tensor_state *state = tsi_slot_get(move->rank, TSI_SLOT_TENSOR);
    if (storage->ask != wait_for_readers) return;
    for (const tsi_move *other = state->moves; other; other = other->next)
        if (other != move && other->work && tsi_move_holds(other, storage)) return;
    storage->ask = NULL;
}

/* ---- its end --------------------------------------------------------------------------------- */

/* After the work: nobody reads the blocks any more. */
static void let_go(tsi_move *move)
{
    while (move->hold_count > 0) {
        tsi_array *array = move->hold[--move->hold_count];
        stop_asking(move, array->storage);
        tsi_array_release(array);
    }
    if (move->done) move->done(move->context);
}

TSI_STEP_PATH ts_status tsi_move_wait(tsi_move *move)
{
    if (move->work) {
        move->status = ts_work_wait(move->work);
        move->work = NULL;
        let_go(move);
    }
    return move->status;
}

/* The list has a reference of its own. */
static void list(tsi_tensor_state *state, tsi_move *move)
{
    TSI_ASSERT(!move->listed);
    move->next = state->moves;
    move->listed = 1;
    state->moves = move;
}

static tsi_move *unlist(tsi_move **place)
{
    tsi_move *move = *place;
    *place = move->next;
    move->listed = 0;
    return move;
}

/* Complete, and it may end here: inside of a piece of kept work nobody would hear of the wait. */
static bool may_end(const tsi_move *move)
{
    return !move->work || (!tsi_again_elsewhere(move->work) && tsi_work_test(move->work));
}

TSI_STEP_PATH void tsi_move_release(tsi_move *move)
{
    if (!move || --move->references > 0) return;
    if (!may_end(move)) {
        move->references = 1; /* the list's */
        list(tsi_slot_get(move->rank, TSI_SLOT_TENSOR), move);
        return;
    }
    tsi_move_wait(move);
    ts_layout_release(move->from);
    body_put(tsi_slot_get(move->rank, TSI_SLOT_TENSOR), move);
}

/* One that a tensor waits for stays until it has: on a device, what it moves is in a queue. */
void tsi_moves_reap(tsi_tensor_state *state)
{
    tsi_move **place = &state->moves;
    while (*place) {
        tsi_move *move = *place;
        if (!may_end(move) || (move->work && move->references > 1)) {
            place = &move->next;
            continue;
        }
        tsi_move_release(unlist(place));
    }
}

void tsi_moves_release(tsi_tensor_state *state)
{
    while (state->moves) {
        tsi_move *move = unlist(&state->moves);
        tsi_move_wait(move);
        tsi_move_release(move);
    }
    while (state->spare_moves) {
        tsi_move *move = state->spare_moves;
        state->spare_moves = move->next;
        tsi_free(move);
    }
}

/* ---- memory that peers read ------------------------------------------------------------------ */

/* So that who writes finds it. */
static TSI_STEP_PATH void list_guarding(tsi_tensor_state *state, tsi_move *move)
{
    if (move->listed) return;
    while (state->moves && !state->moves->work) /* so that the list stays short */
        tsi_move_release(unlist(&state->moves));
    list(state, tsi_move_retain(move));
}

/* Who is asked by others already calls tsi_moves_ask. */
void tsi_move_guard(tsi_move *move, const tsi_array *source)
{
    tsi_tensor_state *state = tsi_slot_get(move->rank, TSI_SLOT_TENSOR);
    if (!source || source->storage->read_only) return;
    (void)ask_before_writes(state, source->storage);
    list_guarding(state, move);
}

TSI_STEP_PATH void tsi_move_guard_held(tsi_move *move)
{
    tsi_tensor_state *state = tsi_slot_get(move->rank, TSI_SLOT_TENSOR);
    bool any = false;
    for (int32_t i = 0; i < move->hold_count; i++) {
        tsi_storage *storage = move->hold[i]->storage;
        if (storage->read_only) continue;
        (void)ask_before_writes(state, storage);
        any = true;
    }
    if (any) list_guarding(state, move);
}

ts_status tsi_moves_guard(ts_tensor *x, ts_work *work)
{
    tsi_tensor_state *state = tsi_slot_get(x->rank, TSI_SLOT_TENSOR);
    if (x->rank->kept || !ask_before_writes(state, x->array->storage)) return ts_work_wait(work);
    tsi_move *move = tsi_move_create(x->rank, work, 1);
    if (!move) return ts_rank_status(x->rank);
    tsi_move_hold(move, x->array);
    tsi_move_release(move); /* the rank keeps it */
    return TS_OK;
}
