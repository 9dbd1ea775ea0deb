/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - a step that is recorded once and run again as it stands.
 *
 *   train_step(&state);                                        as usual: optimizers, units begin
 *   ts_step *step = ts_step_record(me, train_step, &state);    one ordinary step, on every rank
 *   for (...) {
 *       ts_step_input(step, tokens, next_batch);               new values where the step reads them
 *       ts_step_replay(step);                                  no dispatch, no planning
 *   }
 *
 * Recording runs the function as it is and keeps what it asked of the device and of other ranks:
 * kernels, copies, collectives, messages, with the memory they work on. Run again, the same work is
 * done on the same memory in the same order, so the bits are those of the function called again;
 * they are too where ts_step_reorder gives it another order and other places.
 * What the host does between (making tensors, tapes, plans) is not done again; what it must say
 * anew each time, an optimizer's step with ts_optimizer_step_with does: rate, clipping and count
 * are those of the moment.
 *
 * Random operators draw on: each replay as the next step would. Refused with a sentence, because it
 * would not be the same step: values that cross to or from the host inside the function (make
 * inputs before, read results after), variables that are read and then given another value
 * (ts_tensor_write: change them in place), waits for what was issued before, memory or states that
 * ranks make together. Shapes are those of the recording. No step is recorded or run in a batch
 * (comm.h).
 *
 * What the function finds and leaves counts: a replay begins as the recording began and leaves
 * what that left. Gradients that were there are there, wherever they lie; where there were none,
 * there are none. Parameters and variables show the blocks that they showed (in place they may
 * change), documents and factors of models are the same. Else it is refused, and a sentence names
 * what.
 *
 * The step borrows modules, optimizers and meshes: they outlive it.
 *
 * A recorded step is also a program that can be printed, checked, timed and reordered: see
 * tessera/program.h and docs/steps.md. */
#ifndef TESSERA_STEP_H
#define TESSERA_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"
#include "program.h"
#include "status.h"
#include "tensor.h"
#include "types.h"
#include "world.h"

TS_BEGIN_C

typedef struct ts_step ts_step;
typedef ts_status (*ts_step_fn)(void *context);

typedef struct ts_step_summary {
    size_t struct_size;
    int64_t works;   /* that a replay runs: kernels, copies, operations, waits */
    int64_t actions; /* of the step as a value */
    int64_t bytes;   /* of memory that is kept for it */
    int64_t replays;
    int64_t waited_ns; /* of the latest ts_step_time: of this rank, in operations of communication
                          and in waits for them, but for what it computed for other ranks there;
                          inside operators that communicate: not counted */
    int64_t helped_ns; /* and that: what it computed for other ranks (TESSERA_GUESTS) */
} ts_step_summary;

typedef struct ts_step_order { /* may grow at the end */
    size_t struct_size;
    int64_t works, moved;        /* pieces of work; those that run at another place */
    int64_t bytes_before, bytes; /* of memory that is kept for it, before and in the new order */
    int64_t bytes_needed;        /* the most of it that is in use at once */
    int32_t taken;  /* 0: it needs more than the recorded order, or memory was so scarce that
                       places are not known: as if it was refused */
    int32_t agreed; /* 1: operations begin as the program has them; 0: as they were recorded */
    int64_t joined; /* operations that go with others of their bucket as one */
    int64_t ahead;  /* that begin before others which they were recorded behind */
    int64_t parted, whole; /* that the program has in parts: go so; are left whole */
} ts_step_order;

typedef struct ts_step_wait { /* time of the rank's thread in an operation, or in the wait for it */
    const char *kind, *along; /* "exchange", "other": of none that the program has; axes of its
                                 group, "fsdp+tp", or "" */
    int64_t ns;
} ts_step_wait;
typedef void (*ts_step_wait_fn)(const ts_step_wait *wait, void *context);

/* [coll] as far as fn is. Runs fn once. NULL after recording why not: the function failed, or does
 * something that cannot be run again. */
TS_API ts_step *ts_step_record(ts_rank *me, ts_step_fn fn, void *context);
/* [coll] All ranks that recorded it, as often as each other. */
TS_API TS_NODISCARD ts_status ts_step_replay(ts_step *step);
/* [coll] A replay in which operators and operations are timed: ts_step_program then says how long
 * each takes. Of several in one order: the mean of operators, the least of operations. */
TS_API TS_NODISCARD ts_status ts_step_time(ts_step *step);
/* [coll] From now on replays run in the order of `program`: that of ts_step_program after
 * ts_program_reorder, or one from a file. NULL: in the recorded order. The bits are those of the
 * recorded order. Operations begin as the program has them where all ranks do the same operations
 * and can begin them alike, else as they were recorded, so ranks need not agree on an order. The
 * operations of a bucket go as one, and operations in parts go in parts (at most four), where all
 * ranks have the same program and can do so. Memory is laid out anew by the lives that blocks have
 * in the new order, in at most bytes_max bytes; 0: in what the recorded step keeps, and an order
 * that needs more is not taken. `out` may be NULL.
 * Refused with a sentence: a program of another step, one with something wrong with it
 * (ts_program_check), more than bytes_max, a device that captured graphs. Others are not held up by
 * a rank that refuses. Its order stays, unless operations begin in it as all ranks agreed: then it
 * goes back to the recorded order, in as many bytes as that needs. On the others operations begin
 * as they were recorded, as after any call in which ranks do not agree. After ts_rank_recover all
 * operations go alone and whole, and begin as they were recorded. */
TS_API TS_NODISCARD ts_status ts_step_reorder(ts_step *step, const ts_program *program,
                                              int64_t bytes_max, ts_step_order *out);
/* Copies `value` to where the step reads `input`, a tensor that was there before the recording.
 * Same shape, dtype and layout on the same mesh, else a sentence that names the input: a parameter
 * by its name, any other as the program does (ts_step_text). */
TS_API TS_NODISCARD ts_status ts_step_input(ts_step *step, ts_tensor *input, ts_tensor *value);
/* [coll] The program of all ranks of the world, which have recorded it and call this, the same on
 * each (tessera/program.h). */
TS_API TS_NODISCARD ts_status ts_step_program(const ts_step *step, ts_program **out);
/* The step as text (docs/steps.md), this rank's list; like snprintf. */
TS_API size_t ts_step_text(const ts_step *step, char *out, size_t size);
TS_API TS_NODISCARD ts_status ts_step_summarise(const ts_step *step, ts_step_summary *out);
/* What waited_ns is made of, in the order in which it ran. Nothing, if no replay was timed. */
TS_API TS_NODISCARD ts_status ts_step_waits(const ts_step *step, ts_step_wait_fn visit,
                                            void *context);
/* Results of the step that are still held stay valid. Accepts NULL. */
TS_API void ts_step_destroy(ts_step *step);

TS_END_C

#endif
