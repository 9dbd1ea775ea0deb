/* SPDX-License-Identifier: Apache-2.0 */
/* helpers.c - threads that call engine->progress until nothing is left, then sleep until kicked.
 *
 * Waking is a call of the system, and who kicks has work of his own: a kick wakes one helper, which
 * wakes the next one before it looks for work, while more are wanted.
 *
 * INV: a kick that comes after a helper read the word makes that helper look again before it
 * sleeps. INV-2: if helpers sleep, each kick wakes one of them itself; how many follow is a matter
 * of speed, because one alone goes on until nothing is left. */
#include "comm/helpers.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/slots.h"

enum { BACKOFF_FIRST_NS = 5000, BACKOFF_LAST_NS = 200000 };

/* Of a helper that woke up. */
static void wake_next(tsi_helpers *helpers)
{
    uint32_t wanted = atomic_load_explicit(&helpers->wanted, memory_order_seq_cst);
    while (wanted > 0 &&
           !atomic_compare_exchange_weak_explicit(&helpers->wanted, &wanted, wanted - 1,
                                                  memory_order_seq_cst, memory_order_seq_cst)) {
    }
    if (wanted > 0) tsi_wake_one(&helpers->word);
}

static void helper_sleep(tsi_helpers *helpers, uint32_t seen, int64_t deadline_ns)
{
    atomic_fetch_add_explicit(&helpers->sleeping, 1, memory_order_seq_cst);
    (void)tsi_wait_word(&helpers->word, seen, 0, deadline_ns);
    atomic_fetch_sub_explicit(&helpers->sleeping, 1, memory_order_seq_cst);
    wake_next(helpers);
}

/* progress says true while something is in flight that only polling can advance (mpi): then the
 * helper polls ever more slowly, and a kick makes it fast again. */
static void *helper_main(void *argument)
{
    tsi_helpers *helpers = argument;
    int64_t backoff_ns = BACKOFF_FIRST_NS;
    uint32_t last = 0;
    for (;;) {
        uint32_t seen = atomic_load_explicit(&helpers->word, memory_order_seq_cst);
        if (atomic_load_explicit(&helpers->stopping, memory_order_seq_cst)) return NULL;
        if (seen != last) backoff_ns = BACKOFF_FIRST_NS;
        last = seen;
        if (!helpers->engine->progress(helpers->engine_state)) {
            helper_sleep(helpers, seen, INT64_MAX);
            continue;
        }
        helper_sleep(helpers, seen, tsi_clock_ns() + backoff_ns);
        backoff_ns = tsi_min_i64(2 * backoff_ns, BACKOFF_LAST_NS);
    }
}

ts_status tsi_helpers_init(tsi_helpers *helpers, const tsi_engine *engine, void *engine_state,
                           int64_t local_count)
{
    *helpers = (tsi_helpers){ .engine = engine, .engine_state = engine_state };
    int64_t limit = tsi_min_i64(tsi_core_count(), local_count);
    if (!engine->direct) limit = 1; /* one thread at a time progresses an engine that packs */
    helpers->limit = (int32_t)tsi_min_i64(limit, TSI_HELPERS_MAX);
    if (pthread_mutex_init(&helpers->lock, NULL) != 0)
        return TSI_FAIL(TS_ERR_MEMORY, "comm: no lock for the helper threads");
    return TS_OK;
}

/* A thread that cannot be had is not an error: waits progress what they need. So nothing is
 * recorded. */
static void start_locked(tsi_helpers *helpers)
{
    helpers->thread = tsi_calloc((size_t)helpers->limit, sizeof *helpers->thread);
    if (helpers->thread == NULL) return;
    ts_rank *rank = tsi_rank_current();
    tsi_rank_set_current(NULL);
    while (helpers->count < helpers->limit &&
           tsi_thread_start(&helpers->thread[helpers->count], helper_main, helpers, 0) == TS_OK)
        helpers->count++;
    tsi_rank_set_current(rank);
}

TSI_STEP_PATH ts_status tsi_helpers_start(tsi_helpers *helpers)
{
    if (helpers->engine->progress == NULL || helpers->limit == 0) return TS_OK;
    if (atomic_load_explicit(&helpers->running, memory_order_acquire)) return TS_OK;
    pthread_mutex_lock(&helpers->lock);
    if (!atomic_load_explicit(&helpers->running, memory_order_relaxed)) {
        start_locked(helpers);
        atomic_store_explicit(&helpers->running, true, memory_order_release);
    }
    pthread_mutex_unlock(&helpers->lock);
    return TS_OK;
}

void tsi_helpers_stop(tsi_helpers *helpers)
{
    pthread_mutex_lock(&helpers->lock);
    atomic_store_explicit(&helpers->stopping, true, memory_order_seq_cst);
    atomic_fetch_add_explicit(&helpers->word, 1, memory_order_seq_cst);
    tsi_wake_all(&helpers->word);
    for (int32_t i = 0; i < helpers->count; i++)
        pthread_join(helpers->thread[i], NULL);
    helpers->count = 0;
    tsi_free(helpers->thread);
    helpers->thread = NULL;
    atomic_store_explicit(&helpers->stopping, false, memory_order_seq_cst);
    atomic_store_explicit(&helpers->running, false, memory_order_release);
    pthread_mutex_unlock(&helpers->lock);
}

void tsi_helpers_release(tsi_helpers *helpers)
{
    tsi_helpers_stop(helpers);
    pthread_mutex_destroy(&helpers->lock);
}

/* So many more at least: a kick for few takes nothing from one for many that is under way. */
static void want(tsi_helpers *helpers, uint32_t more)
{
    uint32_t wanted = atomic_load_explicit(&helpers->wanted, memory_order_seq_cst);
    while (wanted < more &&
           !atomic_compare_exchange_weak_explicit(&helpers->wanted, &wanted, more,
                                                  memory_order_seq_cst, memory_order_seq_cst)) {
    }
}

void tsi_helpers_kick(tsi_helpers *helpers, int64_t count)
{
    atomic_fetch_add_explicit(&helpers->word, 1, memory_order_seq_cst);
    int64_t sleeping = atomic_load_explicit(&helpers->sleeping, memory_order_seq_cst);
    int64_t wakes = tsi_min_i64(count, sleeping);
    if (wakes > 1) want(helpers, (uint32_t)(wakes - 1));
    if (wakes > 0) tsi_wake_one(&helpers->word);
}

void tsi_comm_kick(ts_world *world, int64_t count)
{
    tsi_helpers_kick(&tsi_comm_of_world(world)->helpers, count);
}
