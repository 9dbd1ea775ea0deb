/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the vtable of the mpi engine, and how a thread waits in it.
 *
 * A blocking wait runs the protocol in the calling thread; helpers call progress for the rest. A
 * waiting rank spins only where the ranks of the node have a core each, for 20 us and about as long
 * as its bytes take to move; then it sleeps on its bell. With ranks outside the segment it must
 * look at MPI too, so it sleeps for short times only. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "comm/mpi/internal.h"
#include "tessera/version.h"

enum { SLEEP_NS = 5000000, NET_SLEEP_NS = 50000 };

static tsi_mpi_rank *local_of(tsi_mpi *mpi, const ts_rank *rank)
{
    return &mpi->local[rank->index - mpi->first];
}

static bool is_done(tsi_work *work)
{
    return atomic_load_explicit(&work->state, memory_order_acquire) == TSI_WORK_DONE;
}

static void look_around(tsi_mpi_rank *rank, int64_t now)
{
    if (now - rank->checked_ns < TSI_CHECK_NS) return;
    rank->checked_ns = now;
    tsi_check_interrupt(rank);
    tsi_check_life(rank);
    tsi_show_wait(rank, true);
    if (!tsi_poisoned(rank)) tsi_check_deadline(rank);
}

static void refuse(tsi_mpi_rank *rank, tsi_work *work)
{
    const tsi_poison *poison = tsi_poison_of(rank);
    char own[256];
    rank->mpi->host->fingerprint_text(&work->print, own, sizeof own);
    rank->mpi->host->work_finish(work, tsi_poison_status(rank), tsi_poison_culprit(rank),
                                 "%s (found when rank %lld called %s)", poison->text,
                                 (long long)rank->index, own);
}

static ts_status start(void *state, tsi_work *work)
{
    tsi_mpi_rank *rank = local_of(state, work->rank);
    pthread_mutex_lock(&rank->lock);
    atomic_store_explicit(&work->state, TSI_WORK_POSTED, memory_order_relaxed);
    tsi_check_interrupt(rank);
    bool posted = !tsi_poisoned(rank) && tsi_rank_post(rank, work);
    if (!posted) tsi_rank_progress(rank);              /* poisoned: ends what is in a lane */
    if (!posted && !is_done(work)) refuse(rank, work); /* it is in none */
    pthread_mutex_unlock(&rank->lock);
    return TS_OK;
}

/* Nothing happened since `idle_ns`: spin, or sleep until the bell has moved from `seen`. */
static void pause_briefly(tsi_mpi_rank *rank, uint32_t seen, int64_t idle_ns, int64_t spin_ns)
{
    tsi_mpi *mpi = rank->mpi;
    tsi_mpi_slot *slot = &mpi->segment.slot[rank->place];
    if (idle_ns < spin_ns) {
        TSI_CPU_RELAX();
        return;
    }
    if (mpi->net == NULL)
        tsi_bell_wait(slot, seen, SLEEP_NS);
    else if (idle_ns < 100000)
        sched_yield();
    else
        tsi_bell_wait(slot, seen, idle_ns < 5000000 ? NET_SLEEP_NS : 4 * NET_SLEEP_NS);
}

/* How long it is worth to spin: where ranks have cores of their own, the time the bytes take at 8
 * GB/s, so that the end of a transfer is not followed by the time a sleeper takes to wake up. */
static int64_t spin_for(const tsi_mpi *mpi, const tsi_work *work)
{
    int64_t move_ns = work->print.count * tsi_element_bytes(work->print.dtype) / 8;
    if (mpi->spin_ns == 0) return 0;
    return mpi->spin_ns + (move_ns < 5000000 ? move_ns : 5000000);
}

static ts_status wait(void *state, tsi_work *work)
{
    tsi_mpi_rank *rank = local_of(state, work->rank);
    tsi_mpi_slot *slot = &rank->mpi->segment.slot[rank->place];
    int64_t idle_since = 0, spin_ns = spin_for(rank->mpi, work);
    while (!is_done(work)) {
        uint32_t seen = atomic_load_explicit(&slot->bell, memory_order_acquire);
        pthread_mutex_lock(&rank->lock);
        bool progress = tsi_rank_progress(rank);
        int64_t now = tsi_clock_ns();
        if (!progress && !is_done(work)) look_around(rank, now);
        pthread_mutex_unlock(&rank->lock);
        if (progress || idle_since == 0) idle_since = now;
        if (!progress && !is_done(work)) pause_briefly(rank, seen, now - idle_since, spin_ns);
    }
    tsi_show_wait(rank, false);
    return work->status;
}

static bool test(void *state, tsi_work *work)
{
    tsi_mpi_rank *rank = local_of(state, work->rank);
    if (is_done(work)) return true;
    if (pthread_mutex_trylock(&rank->lock) == 0) {
        if (!tsi_rank_progress(rank)) look_around(rank, tsi_clock_ns());
        pthread_mutex_unlock(&rank->lock);
    }
    return is_done(work);
}

/* One pass over the ranks of this process that have something under way. */
static bool pass(tsi_mpi *mpi, bool *left)
{
    bool progress = false;
    *left = false;
    for (int64_t t = 0; t < mpi->threads; t++) {
        tsi_mpi_rank *rank = &mpi->local[t];
        int64_t before = atomic_load(&rank->works);
        if (before == 0) continue;
        *left = true;
        if (pthread_mutex_trylock(&rank->lock) != 0) continue;
        bool moved = tsi_rank_progress(rank);
        if (!moved) look_around(rank, tsi_clock_ns());
        pthread_mutex_unlock(&rank->lock);
        if (atomic_load(&rank->works) < before) /* its thread may sleep */
            tsi_bell_ring(&mpi->segment.slot[rank->place]);
        progress |= moved;
    }
    return progress;
}

/* Called by a helper thread while anything is left: runs as far as it goes, then waits for a
 * message. */
static bool progress_all(void *state)
{
    tsi_mpi *mpi = state;
    tsi_mpi_slot *slot = &mpi->segment.slot[mpi->local[0].place];
    bool left = true;
    uint32_t seen;
    do {
        seen = atomic_load(&slot->bell);
    } while (pass(mpi, &left));
    if (left) tsi_bell_wait(slot, seen, mpi->threads > 1 || mpi->net != NULL ? 50000 : 1000000);
    return left;
}

static void leave(void *state, ts_rank *who, ts_status status, const char *sentence)
{
    tsi_mpi_rank *rank = local_of(state, who);
    pthread_mutex_lock(&rank->lock);
    tsi_fail_leave(rank, status, sentence);
    pthread_mutex_unlock(&rank->lock);
}

static ts_status farewell(void *state, char *sentence, size_t size)
{
    return tsi_fail_farewell(state, sentence, size);
}

static void gone(void *state, ts_rank *who)
{
    tsi_mpi_rank *rank = local_of(state, who);
    pthread_mutex_lock(&rank->lock);
    tsi_fail_gone(rank);
    pthread_mutex_unlock(&rank->lock);
}

static ts_status recover(void *state, ts_rank *who)
{
    tsi_mpi_rank *rank = local_of(state, who);
    char why[320];
    pthread_mutex_lock(&rank->lock);
    ts_status status = tsi_fail_recover(rank, why, sizeof why);
    pthread_mutex_unlock(&rank->lock);
    if (status == TS_OK) return TS_OK;
    return rank->mpi->host->core.fail(TS_BLAST_LOST, status, "recover: %s",
                                      why); /* may call leave */
}

/* Who waits outside of the engine looks at the life of others here. It may be any of the ranks: one
 * that recovers has left the epoch of the fault, and waits for those that have not. */
static bool faulty(void *state)
{
    tsi_mpi *mpi = state;
    tsi_mpi_rank *rank = &mpi->local[0];
    if (pthread_mutex_trylock(&rank->lock) == 0) {
        if (!tsi_rank_progress(rank)) look_around(rank, tsi_clock_ns());
        pthread_mutex_unlock(&rank->lock);
    }
    bool poisoned = false;
    for (int64_t t = 0; t < mpi->threads; t++)
        poisoned = poisoned || tsi_poisoned(&mpi->local[t]);
    return poisoned;
}

static bool absent(void *state, int64_t rank)
{
    return tsi_fail_absent(state, rank);
}

static void awaits(void *state, ts_rank *who, int64_t peer)
{
    tsi_mpi_rank *rank = local_of(state, who);
    pthread_mutex_lock(&rank->lock);
    rank->outside = peer + 1;
    tsi_show_wait(rank, false);
    pthread_mutex_unlock(&rank->lock);
}

static void unmet(void *state, ts_rank *who, int64_t peer, int64_t waited_ms, const char *doing)
{
    tsi_mpi_rank *rank = local_of(state, who);
    pthread_mutex_lock(&rank->lock);
    tsi_fail_unmet(rank, peer, waited_ms, doing);
    pthread_mutex_unlock(&rank->lock);
}

static void describe(void *state, char *out, size_t size)
{
    tsi_fail_describe(state, out, size);
}

static const tsi_engine engine = {
    .struct_size = sizeof(tsi_engine),
    .name = "mpi",
    .direct = false, /* short rows and ranks of other nodes are packed */
    .no_data = false,
    .open = tsi_mpi_open,
    .close = tsi_mpi_close,
    .start = start,
    .wait = wait,
    .test = test,
    .start_batch = NULL,
    .progress = progress_all,
    .leave = leave,
    .recover = recover,
    .describe = describe,
    .model_read = NULL,
    .gone = gone,
    .farewell = farewell,
    .faulty = faulty,
    .absent = absent,
    .awaits = awaits,
    .unmet = unmet,
};

TS_API const tsi_module_offer *tsi_module(void);

static const tsi_seam seam[] = TSI_SEAM(TSI_ENGINE_SEAM);

static const tsi_module_offer offer = {
    .struct_size = sizeof(tsi_module_offer),
    .name = "mpi",
    .version = TS_VERSION,
    .table = { [TSI_MODULE_ENGINE] = { &engine, 1, seam } },
};

const tsi_module_offer *tsi_module(void)
{
    return &offer;
}
