/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c - the slots of communication: opening, leaving, draining, recovering.
 *
 * INV: a rank that becomes failed with an error that its peers cannot know (TS_BLAST_LOCAL,
 * TS_BLAST_LOST) tells the engine at once, through ts_rank.on_error; an agreed error tells nobody,
 * because every rank meets it by itself, and a catching scope may still take it back. */
#include "comm/comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "base/keep.h"
#include "base/log.h"
#include "comm/slots.h"
#include "device/moments.h"

/* ---- the world's slot ------------------------------------------------------------------------ */

tsi_comm_world *tsi_comm_of_world(const ts_world *world)
{
    tsi_comm_world *comm =
        atomic_load_explicit(&world->slot[TSI_SLOT_COMM].state, memory_order_acquire);
    return comm != NULL && comm->engine != NULL ? comm : NULL;
}

static void teams_free(tsi_comm_world *comm)
{
    for (size_t i = 0; i < comm->team.capacity; i++)
        if (comm->team.entry[i].value != NULL) tsi_team_free(comm->team.entry[i].value);
    tsi_map_release(&comm->team);
}

/* A signal handler may be behind the ranks that it told, in a thread that nobody knows. */
static void wait_for_interrupters(const ts_world *world)
{
    while (atomic_load_explicit(&world->interrupters, memory_order_seq_cst) != 0)
        sched_yield();
}

static void comm_world_destroy(void *state)
{
    tsi_comm_world *comm = state;
    wait_for_interrupters(comm->world);
    if (comm->engine != NULL) {
        tsi_helpers_release(&comm->helpers);
        comm->engine->close(comm->engine_state); /* before the teams, whose engine_state it made */
    }
    teams_free(comm);
    pthread_mutex_destroy(&comm->lock);
    tsi_free(comm);
}

static void *comm_world_create(ts_world *world)
{
    tsi_comm_world *comm = tsi_calloc(1, sizeof *comm);
    if (comm == NULL) {
        (void)tsi_fail_memory("communication state of a world", sizeof *comm);
        return NULL;
    }
    comm->world = world;
    pthread_mutex_init(&comm->lock, NULL);
    return comm;
}

static void comm_on_error(ts_rank *rank, const ts_error *error)
{
    tsi_comm_world *comm = tsi_comm_of_world(rank->world);
    if (comm == NULL || error->blast == TS_BLAST_AGREED) return;
    comm->engine->leave(comm->engine_state, rank, error->status, error->text);
}

ts_status tsi_comm_open(ts_world *world, const tsi_engine *engine, void *engine_state)
{
    if (tsi_comm_of_world(world) != NULL)
        return TSI_FAIL(TS_ERR_STATE, "comm: the world already has the engine '%s'",
                        tsi_comm_engine(world)->name);
    tsi_comm_world *comm =
        tsi_world_slot(world, TSI_SLOT_COMM, comm_world_create, comm_world_destroy);
    if (comm == NULL) return TS_ERR_MEMORY;
    ts_status status = tsi_helpers_init(&comm->helpers, engine, engine_state, world->local_count);
    if (status != TS_OK) return status;
    comm->engine = engine;
    comm->engine_state = engine_state;
    for (int64_t i = 0; i < world->local_count; i++)
        world->rank[i]->on_error = comm_on_error;
    return TS_OK;
}

const tsi_engine *tsi_comm_engine(const ts_world *world)
{
    tsi_comm_world *comm = tsi_comm_of_world(world);
    return comm != NULL ? comm->engine : NULL;
}

void *tsi_comm_engine_state(const ts_world *world)
{
    tsi_comm_world *comm = tsi_comm_of_world(world);
    return comm != NULL ? comm->engine_state : NULL;
}

bool tsi_comm_follows(ts_rank *rank, int32_t device)
{
    const tsi_comm_rank *comm = tsi_comm_of_rank(rank);
    if (comm == NULL || comm->no_following || tsi_keeps(rank)) return false;
    const tsi_engine *engine = comm->world->engine;
    const tsi_rank_device *mine = tsi_slot_get(rank, TSI_SLOT_DEVICE);
    bool own = mine != NULL && mine->device->dlpack_type == device;
    bool early = own && engine->copies_early != NULL &&
                 engine->copies_early(comm->world->engine_state, mine->device);
    return !early;
}

void tsi_comm_follow_nothing(ts_rank *rank, bool nothing)
{
    tsi_comm_rank *comm = tsi_comm_of_rank(rank);
    if (comm != NULL) comm->no_following = nothing;
}

void tsi_comm_helpers_limit(ts_world *world, int32_t count)
{
    TSI_ASSERT(tsi_comm_of_world(world));
    tsi_helpers *helpers = &tsi_comm_of_world(world)->helpers;
    helpers->limit = (int32_t)tsi_min_i64(helpers->limit, tsi_max_i64(count, 0));
}

/* ---- the rank's slot ------------------------------------------------------------------------- */

/* What the rank has recovered from is no failure of what came after it. */
static ts_status complete_all(tsi_comm_rank *comm)
{
    ts_status first = TS_OK;
    for (ts_work *work = comm->flight; work != NULL; work = work->next) {
        ts_status status = tsi_work_complete(work);
        if (first == TS_OK && !work->stale) first = status;
    }
    return first;
}

/* Nothing of the rank is in flight any more, in its queue neither. */
static ts_status come_to_rest(tsi_comm_rank *comm)
{
    const tsi_comm_world *world = comm->world;
    ts_status status = complete_all(comm);
    if (world->engine->settle != NULL) world->engine->settle(world->engine_state, comm->rank);
    ts_status waited = tsi_rank_device_sync(comm->rank);
    tsi_rank_drain(comm->rank);
    return status != TS_OK ? status : waited;
}

/* A rank whose world is closed with operations in flight abandons them. */
static void comm_rank_destroy(void *state)
{
    tsi_comm_rank *comm = state;
    const tsi_comm_world *world = comm->world;
    if (comm->flight != NULL && !comm->left)
        world->engine->leave(world->engine_state, comm->rank, TS_ERR_STATE,
                             "the world was closed while operations were in flight");
    (void)come_to_rest(comm);
    tsi_batch_drop(comm);
    tsi_work_forget_all(comm);
    tsi_windows_release(comm);
    tsi_group_forget_all(comm);
    tsi_map_release(&comm->seat);
    tsi_free(comm);
}

static void *comm_rank_create(ts_rank *rank)
{
    tsi_comm_world *world = tsi_comm_of_world(rank->world);
    if (world == NULL) {
        (void)TSI_FAIL(TS_ERR_STATE, "comm: the world has no engine yet");
        return NULL;
    }
    tsi_comm_rank *comm = tsi_calloc(1, sizeof *comm);
    if (comm == NULL) {
        (void)tsi_fail_memory("communication state of a rank", sizeof *comm);
        return NULL;
    }
    comm->rank = rank;
    comm->world = world;
    comm->batch_end = &comm->batch;
    return comm;
}

tsi_comm_rank *tsi_comm_of_rank(ts_rank *rank)
{
    return tsi_rank_slot(rank, TSI_SLOT_COMM, comm_rank_create, comm_rank_destroy);
}

/* The slot if there is one: leaving and draining must not make it. */
static tsi_comm_rank *comm_if_any(ts_rank *rank)
{
    return atomic_load_explicit(&rank->slot[TSI_SLOT_COMM].state, memory_order_acquire);
}

void tsi_comm_fail(ts_rank *rank)
{
    tsi_comm_world *comm = tsi_comm_of_world(rank->world);
    if (comm == NULL || rank->error.error.status == TS_OK) return;
    comm->engine->leave(comm->engine_state, rank, rank->error.error.status, rank->error.text);
}

ts_status tsi_comm_drain(ts_rank *rank)
{
    tsi_comm_rank *comm = comm_if_any(rank);
    return comm != NULL ? come_to_rest(comm) : tsi_rank_device_sync(rank);
}

/* Drained before TS_OK is told, because nobody may read this rank's memory afterwards; and after an
 * error is told, because only then everything that peers will never join ends. */
void tsi_comm_leave(ts_rank *rank, ts_status status, const char *sentence)
{
    tsi_comm_world *world = tsi_comm_of_world(rank->world);
    if (world == NULL) return;
    const tsi_engine *engine = world->engine;
    tsi_comm_rank *comm = comm_if_any(rank);
    if (comm != NULL && comm->left) return;
    if (comm != NULL) comm->left = true;
    if (status == TS_OK) status = tsi_comm_drain(rank);
    engine->leave(world->engine_state, rank, status, sentence != NULL ? sentence : "");
    if (status == TS_OK) return;
    (void)tsi_comm_drain(rank);
    if (engine->gone != NULL) engine->gone(world->engine_state, rank);
}

ts_status tsi_comm_farewell(ts_world *world, char *sentence, size_t size)
{
    tsi_comm_world *comm = tsi_comm_of_world(world);
    if (size > 0) sentence[0] = '\0';
    if (comm == NULL || comm->engine->farewell == NULL) return TS_OK;
    return comm->engine->farewell(comm->engine_state, sentence, size);
}

/* Handles that the caller still holds are complete; waiting for one returns its status, no more. */
static void forget_errors(tsi_comm_rank *comm)
{
    for (ts_work *work = comm->flight; work != NULL; work = work->next) {
        work->stale = true;
        for (ts_work *one = work->inside; one != NULL; one = one->next)
            one->stale = true;
    }
}

void tsi_comm_interrupt(ts_world *world)
{
    atomic_fetch_add_explicit(&world->interrupters, 1, memory_order_seq_cst);
    atomic_store_explicit(&world->interrupted, 1, memory_order_seq_cst);
    const tsi_comm_world *comm =
        atomic_load_explicit(&world->slot[TSI_SLOT_COMM].state, memory_order_acquire);
    if (comm != NULL && comm->engine->interrupt != NULL)
        comm->engine->interrupt(comm->engine_state);
    atomic_fetch_sub_explicit(&world->interrupters, 1, memory_order_seq_cst);
}

bool tsi_comm_faulty(ts_world *world)
{
    const tsi_engine *engine = tsi_comm_engine(world);
    return engine != NULL && engine->faulty != NULL && engine->faulty(tsi_comm_engine_state(world));
}

bool tsi_comm_absent(const ts_world *world, int64_t rank)
{
    const tsi_engine *engine = tsi_comm_engine(world);
    return engine != NULL && engine->absent != NULL &&
           engine->absent(tsi_comm_engine_state(world), rank);
}

void tsi_comm_awaits(ts_rank *rank, int64_t peer)
{
    const tsi_comm_world *world = tsi_comm_of_world(rank->world);
    world->engine->awaits(world->engine_state, rank, peer);
}

/* Any collective ends with it. */
ts_status tsi_comm_ended(ts_group *group, const char *name)
{
    return (ts_group_barrier)(group, TS_OPTIONS(ts_comm_options, .name = name));
}

ts_status tsi_comm_unmet(ts_group *group, int64_t peer, int64_t waited_ms, const char *doing,
                         const char *name)
{
    const tsi_comm_world *world = group->comm->world;
    world->engine->unmet(world->engine_state, group->comm->rank, peer, waited_ms, doing);
    return tsi_comm_ended(group, name);
}

ts_status tsi_comm_recover(ts_rank *rank)
{
    tsi_comm_rank *comm = tsi_comm_of_rank(rank);
    if (comm == NULL) return TS_ERR_MEMORY;
    const tsi_comm_world *world = comm->world;
    world->engine->leave(world->engine_state, rank, TS_ERR_STATE,
                         "it abandoned what was in flight in order to recover");
    /* Whoever was interrupted has said so to all by now: leaving did. */
    atomic_store_explicit(&rank->world->interrupted, 0, memory_order_seq_cst);
    forget_errors(comm); /* first: what ends now must not fail the rank again */
    rank->on_error = NULL;
    (void)come_to_rest(comm);
    tsi_moments_settle(rank);      /* streams of communication end */
    tsi_error_clear(&rank->error); /* what others told it was of this epoch, too */
    rank->on_error = comm_on_error;
    tsi_batch_drop(comm);
    TSI_TRY(world->engine->recover(world->engine_state, rank));
    comm->epoch++;
    tsi_seat_reset_all(comm);
    return TS_OK;
}

/* ---- failures that others find --------------------------------------------------------------- */

typedef struct told {
    tsi_post post; /* first */
    tsi_error_record record;
} told;

static void told_run(ts_rank *rank, tsi_post *post)
{
    told *t = (told *)(void *)post;
    const tsi_error_record *mine = &t->record;
    (void)atomic_compare_exchange_strong_explicit(&rank->told, &mine, NULL, memory_order_acq_rel,
                                                  memory_order_relaxed);
    tsi_rank_take_error(rank, &t->record);
    tsi_free(t);
}

static bool rank_failed(ts_rank *rank, ts_status status, int64_t culprit, const char *sentence)
{
    told *t = tsi_calloc(1, sizeof *t);
    if (t == NULL) return false;
    const tsi_error_record *nothing = NULL;
    ts_error error = {
        .status = status, .blast = TS_BLAST_LOCAL, .rank = culprit, .event = -1, .where = ""
    };
    t->post.run = told_run;
    tsi_error_set(&t->record, &error, "%s", sentence);
    /* Before it is posted: from there on it may be taken, and freed. */
    (void)atomic_compare_exchange_strong_explicit(&rank->told, &nothing, &t->record,
                                                  memory_order_acq_rel, memory_order_relaxed);
    tsi_rank_tell(rank, &t->post);
    return true;
}

/* ---- the host table -------------------------------------------------------------------------- */

static void host_log(int level, const char *format, ...) TS_PRINTF(2, 3);
static void host_log(int level, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tsi_log((tsi_log_level)level, "%s", text);
}

static tsi_host host = {
    .struct_size = sizeof(tsi_host),
    .core = { .alloc = tsi_alloc,
              .alloc_kept = tsi_alloc_kept,
              .free = tsi_free,
              .fail = tsi_fail,
              .log = host_log },
    .work_finish = tsi_work_finish,
    .send_block = tsi_work_send_block,
    .recv_block = tsi_work_recv_block,
    .fingerprint_text = tsi_fingerprint_text,
    .status_meaning = ts_status_meaning,
    .work_conclude = tsi_work_conclude,
    .rank_failed = rank_failed,
    .work_moment = tsi_work_moment,
};

static void host_complete(void)
{
    host.cpu = tsi_device_host();
}

/* A constant, but for the one member whose address only a call gives. */
const tsi_host *tsi_comm_host(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, host_complete);
    return &host;
}
