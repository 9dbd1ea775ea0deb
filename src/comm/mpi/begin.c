/* SPDX-License-Identifier: Apache-2.0 */
/* begin.c - opening a world by a deadline, whatever MPI does.
 *
 * MPI_Init and the first collectives wait for processes that may have died before they came, and
 * nothing ends such a wait. So they run in a thread of their own while the caller waits for it with
 * the world's timeout. A thread that does not come back is left where it is, with the memory it
 * uses; the process must end then, and does so without MPI_Finalize.
 *
 * Only where MPI allows its calls from one thread alone, and somebody else has initialised it, they
 * run in that thread and have no deadline.
 *
 * INV-9: a wait for other ranks has a deadline. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "comm/mpi/internal.h"

typedef struct opening {
    pthread_mutex_t lock;
    pthread_cond_t change;
    tsi_mpi *mpi;
    ts_world_options user; /* a copy: the caller may be gone when the thread reads it */
    tsi_begin_fn set_up;
    ts_status status;
    bool done;
} opening;

void tsi_begin_step(tsi_mpi *mpi, const char *call)
{
    atomic_store(&mpi->step, call);
}

static void opening_free(opening *self)
{
    const tsi_host *host = self->mpi->host;
    (void)pthread_cond_destroy(&self->change);
    (void)pthread_mutex_destroy(&self->lock);
    host->core.free(self);
}

static opening *opening_make(tsi_mpi *mpi, const ts_world_options *user, tsi_begin_fn set_up)
{
    opening *self = mpi->host->core.alloc(sizeof *self);
    if (self == NULL) return NULL;
    *self = (opening){ .mpi = mpi, .user = *user, .set_up = set_up };
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->change, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return self;
}

static void *opening_run(void *argument)
{
    opening *self = argument;
    ts_status status = self->set_up(self->mpi, &self->user);
    pthread_mutex_lock(&self->lock);
    self->status = status;
    self->done = true;
    /* Abandoned: nobody reads it again, and what was made stays as it is. */
    (void)pthread_cond_signal(&self->change);
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* Until the thread is done or the time is over: false. */
static bool await(opening *self, int64_t timeout_ms)
{
    int64_t end = tsi_clock_after_ms(timeout_ms);
    struct timespec until = { .tv_sec = end / 1000000000, .tv_nsec = end % 1000000000 };
    pthread_mutex_lock(&self->lock);
    while (!self->done && pthread_cond_timedwait(&self->change, &self->lock, &until) != ETIMEDOUT)
        ;
    bool done = self->done;
    pthread_mutex_unlock(&self->lock);
    return done;
}

static ts_status give_up(tsi_mpi *mpi, const tsi_launcher *launcher, bool *abandoned)
{
    char who[64] = "this process";
    const char *step = atomic_load(&mpi->step);
    if (launcher->rank >= 0 && launcher->size > 0)
        (void)snprintf(who, sizeof who, "process %lld of %lld", (long long)launcher->rank,
                       (long long)launcher->size);
    (void)snprintf(mpi->why, sizeof mpi->why,
                   "the mpi engine: %s waited %lld ms in %s for the others: one of them ended "
                   "before it came, or is late (timeout_ms, TESSERA_TIMEOUT_MS)",
                   who, (long long)mpi->timeout_ms, step ? step : "MPI");
    *abandoned = true;
    return TS_ERR_PEER;
}

/* May a thread of ours call MPI? It may initialise it. */
static bool may_be_elsewhere(void)
{
    int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized) return true;
    MPI_Query_thread(&level);
    return level >= MPI_THREAD_SERIALIZED;
}

ts_status tsi_begin(tsi_mpi *mpi, const ts_world_options *user, const tsi_launcher *launcher,
                    tsi_begin_fn set_up, bool *abandoned)
{
    pthread_t thread;
    *abandoned = false;
    opening *self = may_be_elsewhere() ? opening_make(mpi, user, set_up) : NULL;
    bool started = self != NULL && pthread_create(&thread, NULL, opening_run, self) == 0;
    if (!started) { /* no second thread is allowed, or to be had: without a deadline */
        if (self != NULL) opening_free(self);
        return set_up(mpi, user);
    }
    if (!await(self, mpi->timeout_ms)) {
        (void)pthread_detach(thread);
        return give_up(mpi, launcher, abandoned);
    }
    (void)pthread_join(thread, NULL);
    ts_status status = self->status;
    opening_free(self);
    return status;
}
