/* SPDX-License-Identifier: Apache-2.0 */
/* move.h - a redistribution in flight, and how one is begun.
 *
 * A move holds the blocks it reads and writes until no rank needs them any more. The tensor it
 * fills holds a reference; if that tensor dies first, the rank keeps the move until it is complete:
 * closing never waits. Who writes what a move in flight reads waits for it (tsi_move_guard). */
#ifndef TSI_TENSOR_MOVE_H
#define TSI_TENSOR_MOVE_H

#include "tensor/tensor.h"

struct tsi_move {
    struct tsi_move *next; /* in tsi_tensor_state.moves, or in its spare ones */
    ts_rank *rank;
    ts_work *work; /* NULL: complete */
    int64_t references;
    ts_status status; /* once complete */
    int32_t hold_count, hold_capacity;
    int32_t listed;        /* among tsi_tensor_state.moves */
    const ts_layout *from; /* retained: of hold[0], which becomes hold[1]; NULL: several moves */
    void (*done)(void *context); /* told when the work is complete; or NULL */
    void *context;
    tsi_array *hold[]; /* source, target, staging; of one move or of several that travel together */
};

/* A move that will complete with `work` (NULL: it is complete), with room for `holds` arrays; holds
 * nothing yet. NULL: recorded, and the work is complete. */
tsi_move *tsi_move_create(ts_rank *rank, ts_work *work /* takes */, int32_t holds);
void tsi_move_hold(tsi_move *move, tsi_array *array); /* retains */
void tsi_move_take(tsi_move *move, tsi_array *array /* takes */);
/* Does it read or write there? What it does not hold of its source was copied before it began. */
bool tsi_move_holds(const tsi_move *move, const tsi_storage *storage);
tsi_move *tsi_move_retain(tsi_move *move);
void tsi_move_release(tsi_move *move); /* accepts NULL; complete, or the rank keeps it */
ts_status tsi_move_wait(tsi_move *move);
void tsi_moves_reap(tsi_tensor_state *state);    /* frees those that are complete; never waits */
void tsi_moves_release(tsi_tensor_state *state); /* waits for the rest, and frees all bodies */

/* Peers read a block of the move until it is complete: who writes there waits for it. */
void tsi_move_guard(tsi_move *move, const tsi_array *source);
void tsi_move_guard_held(tsi_move *move); /* all that it holds so far */
/* Waits for those that read the storage, for who answers its writers himself. */
ts_status tsi_moves_ask(ts_rank *rank, const tsi_storage *storage);
/* Peers read the tensor's memory where it lies until `work` is complete: it stays until then, and
 * who writes it waits. While a step is recorded or run again, which writes without asking, this
 * waits itself. */
ts_status tsi_moves_guard(ts_tensor *x, ts_work *work /* takes */);

/* What moves: a block as its layout says, on this rank (absent ranks: member 0, array an empty
 * one). */
typedef struct tsi_source {
    ts_mesh *mesh;
    const ts_layout *layout;
    tsi_array *array;
    ts_dtype dtype;
} tsi_source;

/* Begins the move of one block to the layout `to` on mesh `to_mesh`; [coll] over both meshes.
 * Returns the new block (retained) and, while it is still being filled, the move. NULL: recorded,
 * on every rank alike. */
tsi_array *tsi_move_begin(const tsi_source *from, ts_mesh *to_mesh, const ts_layout *to,
                          const ts_move_options *options, tsi_move **move);

#endif
