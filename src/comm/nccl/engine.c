/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the vtable of the nccl engine: it stands on another engine, which carries host memory,
 * agreement, ids and farewells; what lies on a device goes through NCCL.
 *
 * A rank that waits moves all its operations forward, because others may need an earlier one; it
 * looks for 20 us where ranks have cores of their own and sleeps ever longer after that. Helpers do
 * the same for what nobody waits for. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "comm/nccl/internal.h"
#include "tessera/version.h"

enum { SPIN_NS = 20000, SLEEP_FIRST_NS = 5000, SLEEP_LAST_NS = 200000, LOG_INFO = 2, LOG_WARN = 1 };

static tsi_nccl_rank *rank_of(tsi_nccl *nccl, const ts_rank *rank)
{
    return &nccl->rank[rank->local_index];
}

static bool on_host(const tsi_work *work)
{
    return work->device->host_readable;
}

static bool is_done(tsi_work *work)
{
    return atomic_load_explicit(&work->state, memory_order_acquire) == TSI_WORK_DONE;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void nccl_free(tsi_nccl *nccl)
{
    for (int64_t i = 0; nccl->rank && i < nccl->world->local_count; i++)
        pthread_mutex_destroy(&nccl->rank[i].lock);
    tsi_teams_free(nccl);
    pthread_mutex_destroy(&nccl->lock);
    tsi_free(nccl->rank);
    tsi_free(nccl);
}

static ts_status choose_reduce(tsi_nccl *nccl)
{
    const char *reduce = getenv("TESSERA_REDUCE");
    nccl->native = reduce && strcmp(reduce, "native") == 0;
    if (!reduce || !*reduce || nccl->native || strcmp(reduce, "ordered") == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "TESSERA_REDUCE: unknown \"%s\"; it is ordered or native", reduce);
}

/* A library made for GPUs cannot work on another device's memory; one named by the user may. */
static ts_status choose_library(tsi_nccl *nccl, const tsi_engine_options *options)
{
    char text[600] = "";
    const char *asked = getenv("TESSERA_NCCL");
    bool fits = strcmp(options->device->kind, "cuda") == 0 || (asked && *asked);
    TSI_TRY(choose_reduce(nccl));
    if (fits) nccl->api = tsi_nccl_library(text, sizeof text);
    if (nccl->api) {
        tsi_nccl_found(text, sizeof text);
        options->host->core.log(LOG_INFO, "nccl: %s, reductions %s", text,
                                nccl->native ? "in NCCL's order (TESSERA_REDUCE)"
                                             : "in the group's order");
        return TS_OK;
    }
    if (options->by_name && fits) return TSI_FAIL(TS_ERR_MISSING, "the nccl engine: %s", text);
    if (fits)
        options->host->core.log(LOG_WARN, "collectives of %s go through host memory: %s",
                                options->device->name, text);
    return TS_OK;
}

static ts_status make_ranks(tsi_nccl *nccl)
{
    int64_t count = nccl->world->local_count;
    nccl->rank = tsi_calloc((size_t)count, sizeof *nccl->rank);
    if (!nccl->rank) return tsi_fail_memory("ranks of the nccl engine", sizeof *nccl->rank);
    for (int64_t i = 0; i < count; i++) {
        nccl->rank[i].nccl = nccl;
        pthread_mutex_init(&nccl->rank[i].lock, NULL);
    }
    nccl->spin_ns = count <= sysconf(_SC_NPROCESSORS_ONLN) ? SPIN_NS : 0;
    return TS_OK;
}

static ts_status nccl_open(const tsi_engine_options *options, void **state)
{
    *state = NULL;
    tsi_lent_set(&options->host->core);
    tsi_nccl *nccl = tsi_calloc(1, sizeof *nccl);
    if (!nccl) return tsi_fail_memory("the nccl engine", sizeof *nccl);
    nccl->host = options->host;
    nccl->world = options->world;
    nccl->inner = options->inner;
    nccl->timeout_ms = options->user->timeout_ms > 0 ? options->user->timeout_ms : 60000;
    pthread_mutex_init(&nccl->lock, NULL);
    ts_status status = choose_library(nccl, options);
    if (status == TS_OK) status = nccl->inner->open(options, &nccl->inner_state);
    if (status == TS_OK) {
        status = make_ranks(nccl);
        if (status != TS_OK) nccl->inner->close(nccl->inner_state);
    }
    if (status == TS_OK)
        *state = nccl;
    else
        nccl_free(nccl);
    return status;
}

static bool inner_faulty(void *state)
{
    const tsi_nccl *nccl = state;
    return nccl->inner->faulty && nccl->inner->faulty(nccl->inner_state);
}

static bool inner_absent(void *state, int64_t rank)
{
    const tsi_nccl *nccl = state;
    return nccl->inner->absent && nccl->inner->absent(nccl->inner_state, rank);
}

static void inner_awaits(void *state, ts_rank *who, int64_t peer)
{
    const tsi_nccl *nccl = state;
    nccl->inner->awaits(nccl->inner_state, who, peer);
}

static void inner_unmet(void *state, ts_rank *who, int64_t peer, int64_t waited_ms,
                        const char *doing)
{
    const tsi_nccl *nccl = state;
    nccl->inner->unmet(nccl->inner_state, who, peer, waited_ms, doing);
}

/* Staged ones are copied to the host by who starts them. */
static bool nccl_copies_early(void *state, const tsi_device *device)
{
    const tsi_nccl *nccl = state;
    return !device->host_readable && !tsi_has_lanes(nccl, device);
}

static void nccl_close(void *state)
{
    tsi_nccl *nccl = state;
    tsi_lanes_close(nccl, inner_faulty(nccl));
    nccl->inner->close(nccl->inner_state); /* it reads the teams */
    nccl_free(nccl);
}

/* ---- one operation --------------------------------------------------------------------------- */

static ts_status nccl_start(void *state, tsi_work *work)
{
    tsi_nccl *nccl = state;
    if (on_host(work)) return nccl->inner->start(nccl->inner_state, work);
    tsi_nccl_rank *rank = rank_of(nccl, work->rank);
    /* Outside the lock: what the queue waits for may have to be ended by who watches. */
    if (tsi_op_is_staged(nccl, work))
        TSI_TRY(work->device->event_wait(work->device, NULL, work->ready));
    pthread_mutex_lock(&rank->lock);
    ts_status status = tsi_op_start(rank, work);
    pthread_mutex_unlock(&rank->lock);
    return status;
}

static void pause_for(int64_t ns)
{
    if (ns == 0)
        TSI_CPU_RELAX();
    else
        (void)nanosleep(&(struct timespec){ .tv_nsec = (long)ns }, NULL);
}

static ts_status nccl_wait(void *state, tsi_work *work)
{
    tsi_nccl *nccl = state;
    if (on_host(work)) return nccl->inner->wait(nccl->inner_state, work);
    tsi_nccl_rank *rank = rank_of(nccl, work->rank);
    int64_t since = tsi_clock_ns(), sleep_ns = SLEEP_FIRST_NS;
    while (!is_done(work)) {
        pthread_mutex_lock(&rank->lock);
        bool any = tsi_ops_advance(rank);
        int64_t now = tsi_clock_ns();
        if (!any && !is_done(work) && now > work->deadline_ns) tsi_op_late(rank, work);
        pthread_mutex_unlock(&rank->lock);
        if (any) {
            since = now;
            sleep_ns = SLEEP_FIRST_NS;
        } else if (now - since < nccl->spin_ns) {
            pause_for(0);
        } else {
            pause_for(sleep_ns);
            sleep_ns = sleep_ns < SLEEP_LAST_NS ? 2 * sleep_ns : SLEEP_LAST_NS;
        }
    }
    return work->status;
}

static bool nccl_test(void *state, tsi_work *work)
{
    tsi_nccl *nccl = state;
    if (on_host(work)) return nccl->inner->test(nccl->inner_state, work);
    tsi_nccl_rank *rank = rank_of(nccl, work->rank);
    if (is_done(work)) return true;
    if (pthread_mutex_trylock(&rank->lock) == 0) {
        (void)tsi_ops_advance(rank);
        pthread_mutex_unlock(&rank->lock);
    }
    return is_done(work);
}

static bool nccl_progress(void *state)
{
    tsi_nccl *nccl = state;
    bool left = nccl->inner->progress && nccl->inner->progress(nccl->inner_state);
    for (int64_t i = 0; i < nccl->world->local_count; i++) {
        tsi_nccl_rank *rank = &nccl->rank[i];
        if (atomic_load_explicit(&rank->works, memory_order_seq_cst) == 0) continue;
        left = true;
        if (pthread_mutex_trylock(&rank->lock) != 0) continue;
        (void)tsi_ops_advance(rank);
        pthread_mutex_unlock(&rank->lock);
    }
    return left;
}

/* ---- ranks that come and go ------------------------------------------------------------------ */

static void nccl_leave(void *state, ts_rank *who, ts_status status, const char *sentence)
{
    const tsi_nccl *nccl = state;
    nccl->inner->leave(nccl->inner_state, who, status, sentence);
}

/* Each operation ends by its event, by a fault, or by its deadline. */
static void nccl_settle(void *state, ts_rank *who)
{
    tsi_nccl *nccl = state;
    tsi_nccl_rank *rank = rank_of(nccl, who);
    while (atomic_load_explicit(&rank->works, memory_order_seq_cst) > 0) {
        pthread_mutex_lock(&rank->lock);
        bool any = tsi_ops_advance(rank);
        pthread_mutex_unlock(&rank->lock);
        if (!any) pause_for(SLEEP_FIRST_NS);
    }
}

/* Everything of the rank has settled; its communicators belong to the epoch that ends. */
static ts_status nccl_recover(void *state, ts_rank *who)
{
    tsi_nccl *nccl = state;
    tsi_nccl_rank *rank = rank_of(nccl, who);
    pthread_mutex_lock(&rank->lock);
    TSI_ASSERT(!rank->ops);
    tsi_lanes_abort(rank);
    pthread_mutex_unlock(&rank->lock);
    return nccl->inner->recover(nccl->inner_state, who);
}

static void nccl_describe(void *state, char *out, size_t size)
{
    const tsi_nccl *nccl = state;
    if (size > 0) out[0] = '\0';
    if (nccl->inner->describe) nccl->inner->describe(nccl->inner_state, out, size);
}

static void nccl_gone(void *state, ts_rank *who)
{
    const tsi_nccl *nccl = state;
    if (nccl->inner->gone) nccl->inner->gone(nccl->inner_state, who);
}

static ts_status nccl_farewell(void *state, char *sentence, size_t size)
{
    const tsi_nccl *nccl = state;
    return nccl->inner->farewell ? nccl->inner->farewell(nccl->inner_state, sentence, size) : TS_OK;
}

static void nccl_interrupt(void *state)
{
    const tsi_nccl *nccl = state;
    if (nccl->inner->interrupt) nccl->inner->interrupt(nccl->inner_state);
}

static const tsi_engine engine = {
    .struct_size = sizeof(tsi_engine),
    .name = "nccl",
    .direct = false, /* parts are packed */
    .no_data = false,
    .open = nccl_open,
    .close = nccl_close,
    .start = nccl_start,
    .wait = nccl_wait,
    .test = nccl_test,
    .progress = nccl_progress,
    .leave = nccl_leave,
    .recover = nccl_recover,
    .describe = nccl_describe,
    .gone = nccl_gone,
    .farewell = nccl_farewell,
    .interrupt = nccl_interrupt,
    .faulty = inner_faulty,
    .settle = nccl_settle,
    .absent = inner_absent,
    .awaits = inner_awaits,
    .unmet = inner_unmet,
    .copies_early = nccl_copies_early,
};

/* ---- the module ------------------------------------------------------------------------------ */

TS_API const tsi_module_offer *tsi_module(void);

static ts_status module_open(const tsi_module_host *host)
{
    char why[600] = "";
    tsi_lent_set(host);
    if (tsi_nccl_library(why, sizeof why)) return TS_OK;
    return TSI_FAIL(TS_ERR_MISSING, "the nccl engine: %s", why);
}

static const tsi_seam seam[] = TSI_SEAM(TSI_ENGINE_SEAM);

static const tsi_module_offer offer = {
    .struct_size = sizeof(tsi_module_offer),
    .name = "nccl",
    .version = TS_VERSION,
    .open = module_open,
    .libraries = tsi_nccl_found,
    .table = { [TSI_MODULE_ENGINE] = { &engine, 1, seam } },
};

const tsi_module_offer *tsi_module(void)
{
    return &offer;
}
