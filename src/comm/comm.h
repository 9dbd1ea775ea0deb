/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h - what the layers above may ask of communication, beside the public tessera/comm.h.
 *
 * The life of a world, as the runtime drives it:
 *
 *   engine->open(&options, &state)         fills the world's rank counts
 *   tsi_comm_open(world, engine, state)    the world owns the state from here on
 *   ... every rank: collectives ...
 *   tsi_comm_leave(rank, status, sentence) once per rank, from its thread: it will call no more
 *   tsi_world_unmake(world)                destroys the ranks' slots, then stops helpers, closes
 *                                          the engine
 *
 * INV: after tsi_comm_leave returns, no other thread reads or writes memory that this rank passed
 * to a collective, whatever the status was. */
#ifndef TSI_COMM_COMM_H
#define TSI_COMM_COMM_H

#include <stddef.h>

#include "base/rank.h"
#include "comm/engine.h"

/* Stores engine and state in TSI_SLOT_COMM of the world; closes the state when the slot is
 * destroyed. On failure the caller still owns the state. */
ts_status tsi_comm_open(ts_world *world, const tsi_engine *engine, void *engine_state /* takes */);

const tsi_engine *tsi_comm_engine(const ts_world *world); /* NULL before tsi_comm_open */
void *tsi_comm_engine_state(const ts_world *world);       /* NULL before tsi_comm_open */

/* The rank is finished and will call no more; from its own thread, or from another one when its
 * thread has ended. TS_OK: waits for what it has in flight first. Else peers get TS_ERR_PEER with
 * the sentence (may be NULL). Harmless when repeated and before tsi_comm_open. */
void tsi_comm_leave(ts_rank *rank, ts_status status, const char *sentence);

/* The rank failed but lives on, so that it can recover: peers get TS_ERR_PEER with its error. The
 * collectives do this themselves when they meet a pending error that is not TS_BLAST_AGREED. */
void tsi_comm_fail(ts_rank *rank);

/* Must who waits for another rank outside of a collective give up? tsi_comm_ended says why. */
bool tsi_comm_faulty(ts_world *world);
/* Has that rank ended, so that it will do nothing more? What it did before is seen after this. */
bool tsi_comm_absent(const ts_world *world, int64_t rank);
/* The rank waits for another one of the world outside of a collective: who looks why it does not
 * come itself finds that. -1: not any more. */
void tsi_comm_awaits(ts_rank *rank, int64_t peer);
/* It gives that up, after waited_ms, or since that rank is absent (0): as in a collective, all hear
 * who did not come. `doing` says in what it waited, `name` what it waited with. */
ts_status tsi_comm_unmet(ts_group *group, int64_t peer, int64_t waited_ms, const char *doing,
                         const char *name);
/* The sentence of the fault that ended such a wait, if there is one (tsi_comm_faulty). */
ts_status tsi_comm_ended(ts_group *group, const char *name);

/* Asked by functions of the library before they ask other ranks for something that they need at
 * once: where a batch is open it would be put off to the end of the batch, with memory that is gone
 * by then. Refused with a sentence that begins with `what`. */
ts_status tsi_comm_now(ts_rank *rank, const char *what);
/* The same, of what makes no sense in a step that is recorded, which would keep it. */
ts_status tsi_comm_once(ts_rank *rank, const char *what);

/* Waits for everything this rank has in flight; the handles stay and must still be waited for.
 * Returns the first error among them, which is recorded. */
ts_status tsi_comm_drain(ts_rank *rank);

/* [coll] over all ranks of the world: drops what is in flight, agrees, starts a new epoch. The
 * rank's own pending error is the caller's to clear, before or after. */
ts_status tsi_comm_recover(ts_rank *rank);

/* When all ranks of this process have left cleanly: do those of the others? Waits for them, at most
 * for the timeout. TS_ERR_PEER: one failed, and `sentence` says which and why; not recorded. */
ts_status tsi_comm_farewell(ts_world *world, char *sentence, size_t size);

/* What every rank is doing, a line each, for the post-mortem. */
void tsi_comm_describe(ts_world *world, char *out, size_t size);

/* ts_group_exchange for who made the lists with care, so that parts are not looked at, and will
 * wait before long, so that no core is taken from others to carry it out. The lists stay as they
 * are until the work is complete; send parts are in order of peers.
 *
 * Who issues the same exchange again and again passes the same `standing`, NULL at first: the
 * description is noted there, and only begun from then on. Then one is in flight at a time, the
 * group and the name outlive it, and what the exchange says stays: only data of parts changes. */
typedef struct tsi_standing tsi_standing;
ts_status tsi_group_exchange_own(ts_group *group, const ts_exchange *exchange,
                                 const ts_comm_options *options, tsi_standing **standing);
/* One that is in flight goes when it is complete. Accepts NULL. */
void tsi_standing_destroy(tsi_standing *standing);

/* Does an operation take its bytes only when those before it in its channel have ended here, so
 * that one that reads what another writes may be issued while that is in flight? Not where an
 * engine copies memory of the device when an operation starts, nor in a step that is recorded,
 * where a wait is a piece of work of its own. Ranks may differ in it: nothing that is issued does.
 */
bool tsi_comm_follows(ts_rank *rank, int32_t device);
/* For tests: from now on as if none did, or again as it is. */
void tsi_comm_follow_nothing(ts_rank *rank, bool nothing);
/* `before` was issued before `work` on the same rank: who waits for `work` waits for both, in this
 * order, and gets the first failure. */
void tsi_work_behind(ts_work *work, ts_work *before /* takes; or NULL */);

/* ---- reading peers' memory where it lies ----------------------------------------------------- */
/* Can the members read each other's host memory? Then all of them can. In a world without data:
 * would they? Nothing is lent there. */
bool tsi_group_lends(const ts_group *group);
/* [coll] An exchange in which nothing is copied: it is complete when all members came, and then
 * lending->lent says of each receive part (which has no data, and is one send part of its peer) in
 * what memory and strides it lies. Storages of those who lent something are in lending->held until
 * tsi_lending_end, so that what is read stays whatever becomes of its owner; that it is not
 * overwritten needs a barrier after the reading. Bytes are counted by information, as of any
 * exchange. `lending` stays until the work is waited for; held is zeroed by the caller. */
ts_status tsi_group_lend(ts_group *group, const ts_exchange *exchange, const tsi_lending *lending,
                         const ts_comm_options *options);
/* For tests, on all ranks alike: from now on as if the others' memory could not be read, or again
 * as it is. */
void tsi_comm_lend_nothing(ts_rank *rank, bool nothing);
void tsi_lending_end(const ts_group *group, const tsi_lending *lending);

/* News (base/observe.h): an operation was issued. `work` is what it will be waited for by; NULL: it
 * has ended already. */
typedef struct tsi_issued {
    const tsi_work *operation;
    const char *name; /* of the caller's scope or its own */
    const ts_work *work;
} tsi_issued;

/* What the core offers a module. */
const tsi_host *tsi_comm_host(void);
/* Sets world->interrupted and wakes who waits. Async-signal-safe. */
void tsi_comm_interrupt(ts_world *world);

/* The engines that are always there. */
const tsi_engine *tsi_engine_threads(void);

/* ---- helper threads of this process: they progress what is asynchronous ---------------------- */
/* At most `count` of them (default: the cores); 0: none, progress happens inside calls only. To be
 * called before the first asynchronous operation. */
void tsi_comm_helpers_limit(ts_world *world, int32_t count);

#endif
