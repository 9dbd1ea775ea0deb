/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the threads engine: opening, starting, waiting, progress.
 *
 * A rank waits in its own chair: it runs what parts there are, spins briefly if every rank has a
 * core, then sleeps, or computes for ranks that are late (device/guests.h). Whoever changes
 * something that it waits for stores the change first and rings its chair after.
 *
 * INV: between "sleeping" and the sleep itself a rank looks once more, so no ring is lost. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "comm/threads/threads.h"
#include "device/guests.h"

enum {
    SPIN_NS = 20000,
    SPIN_DEVICE_NS = 200000, /* a host that sleeps keeps kernels of its device waiting */
    LOOKS_PER_CLOCK = 64,
    INLINE_BYTES = 1 << 14,        /* about what one core copies while another one wakes up */
    INLINE_BYTES_CROWDED = 1 << 17 /* ranks share cores: waking one means stopping another */
};

/* ---- opening and closing --------------------------------------------------------------------- */

static ts_status threads_open(const tsi_engine_options *options, void **state)
{
    *state = NULL;
    ts_world *world = options->world;
    if (world->rank_count == 0) {
        bool given = options->user != NULL && options->user->rank_count > 0;
        world->rank_count = given ? options->user->rank_count : tsi_core_count();
        world->local_count = world->rank_count;
    }
    TSI_TRY(tsi_guests_prepare(world));
    tsi_threads *engine = tsi_calloc(1, sizeof *engine);
    size_t bytes = (size_t)world->local_count * sizeof(tsi_chair);
    tsi_chair *chair = engine != NULL ? tsi_alloc_aligned(bytes, TSI_CACHE_LINE) : NULL;
    if (chair == NULL) {
        tsi_free(engine);
        return tsi_fail_memory("the threads engine", bytes);
    }
    memset((void *)chair, 0, bytes);
    engine->world = world;
    engine->chair = chair;
    engine->cores = tsi_core_count();
    bool roomy = world->local_count <= engine->cores;
    engine->spin_ns = roomy ? SPIN_NS : 0;
    engine->spin_device_ns =
        2 * world->local_count <= engine->cores ? SPIN_DEVICE_NS : engine->spin_ns;
    engine->inline_bytes = roomy ? INLINE_BYTES : INLINE_BYTES_CROWDED;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->ready_lock, NULL);
    *state = engine;
    return TS_OK;
}

static void hall_destroy(tsi_hall *hall)
{
    for (int32_t c = 0; c < TS_CHANNEL_COUNT; c++)
        tsi_lane_destroy(atomic_load_explicit(&hall->lane[c], memory_order_acquire));
    tsi_inboxes_destroy(atomic_load_explicit(&hall->inbox, memory_order_acquire), hall->team->size);
    tsi_free(hall);
}

static void threads_close(void *state)
{
    tsi_threads *engine = state;
    /* Helpers were joined: they would read halls that go now. */
    TSI_ASSERT(atomic_load_explicit(&engine->busy, memory_order_seq_cst) == 0);
    while (engine->halls != NULL) {
        tsi_hall *hall = engine->halls;
        engine->halls = hall->next;
        hall_destroy(hall);
    }
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->ready_lock);
    tsi_free(engine->chair);
    tsi_free(engine);
}

TSI_STEP_PATH tsi_hall *tsi_hall_of(tsi_threads *engine, tsi_team *team)
{
    tsi_hall *hall = atomic_load_explicit(&team->engine_state, memory_order_acquire);
    if (hall != NULL) return hall;
    pthread_mutex_lock(&engine->lock);
    hall = atomic_load_explicit(&team->engine_state, memory_order_relaxed);
    if (hall == NULL) hall = tsi_calloc(1, sizeof *hall);
    if (hall != NULL && hall->engine == NULL) {
        hall->engine = engine;
        hall->team = team;
        hall->next = engine->halls;
        engine->halls = hall;
        atomic_store_explicit(&team->engine_state, hall, memory_order_release);
    }
    pthread_mutex_unlock(&engine->lock);
    return hall;
}

/* ---- starting and ending --------------------------------------------------------------------- */

void tsi_threads_finish(tsi_threads *engine, tsi_work *work, ts_status status, int64_t culprit,
                        const char *sentence)
{
    tsi_chair *chair = tsi_chair_of(engine, work->rank);
    if (status != TS_OK || work->asynchronous)
        tsi_work_conclude(work, status, culprit, sentence);
    else
        work->status = TS_OK;
    atomic_store_explicit(&work->state, TSI_WORK_DONE, memory_order_seq_cst);
    (void)tsi_chair_ring(chair);
}

static bool is_point(const tsi_work *work)
{
    return work->print.kind == TSI_COMM_SEND || work->print.kind == TSI_COMM_RECV;
}

/* The engine is at fault: the work, which nobody else knows any more, ends with it. */
static void end_by_fault(tsi_threads *engine, tsi_work *work)
{
    char text[TSI_ERROR_TEXT_MAX];
    tsi_fault_text(engine, work, text, sizeof text);
    tsi_threads_finish(engine, work, tsi_fault_status(engine), engine->fault.rank, text);
}

static ts_status start_point(tsi_hall *hall, tsi_work *work)
{
    tsi_inbox *boxes = tsi_inboxes_of(hall);
    if (boxes == NULL) return tsi_fail_memory("inboxes of a group", sizeof *boxes);
    tsi_inbox_post(hall, boxes, work);
    return TS_OK;
}

static ts_status start_collective(tsi_hall *hall, tsi_work *work)
{
    tsi_lane *lane = tsi_lane_of(hall, work->print.channel);
    if (lane == NULL) return tsi_fail_memory("a channel of a group", sizeof *lane);
    work->engine_state = lane;
    if (tsi_lane_post(lane, work)) return TS_OK;
    end_by_fault(hall->engine, work);
    return tsi_fault_status(hall->engine);
}

static TSI_STEP_PATH ts_status threads_start(void *state, tsi_work *work)
{
    tsi_threads *engine = state;
    if (TSI_UNLIKELY(tsi_threads_interrupted(engine))) tsi_fault_interrupted(engine, work->rank);
    if (tsi_threads_faulty(engine)) {
        end_by_fault(engine, work);
        return tsi_fault_status(engine);
    }
    tsi_hall *hall = tsi_hall_of(engine, work->team);
    if (hall == NULL) return tsi_fail_memory("a group's first use", sizeof *hall);
    atomic_store_explicit(&work->state, TSI_WORK_POSTED, memory_order_relaxed);
    return is_point(work) ? start_point(hall, work) : start_collective(hall, work);
}

/* ---- waiting --------------------------------------------------------------------------------- */

typedef struct visit {
    tsi_threads *engine;
    tsi_chair *chair;
    tsi_work *work;
    tsi_lane *lane; /* NULL: point to point */
    int64_t deadline_ns;
    uint32_t departures; /* looked at so far */
    bool carried;        /* at fault, but this operation is carried out all the same */
} visit;

static bool is_done(const tsi_work *work)
{
    return atomic_load_explicit(&work->state, memory_order_seq_cst) == TSI_WORK_DONE;
}

/* Is there anything to do but to wait? */
static bool is_wakeful(const visit *v)
{
    int32_t state = atomic_load_explicit(&v->work->state, memory_order_seq_cst);
    if (state == TSI_WORK_DONE || state == TSI_WORK_PAIRED) return true;
    if (v->lane != NULL && tsi_lane_has_parts(v->lane)) return true;
    if (!v->carried && (tsi_threads_faulty(v->engine) || tsi_threads_interrupted(v->engine)))
        return true;
    return atomic_load_explicit(&v->engine->departures, memory_order_seq_cst) != v->departures;
}

static bool spin(const visit *v)
{
    bool host = v->work->device->host_readable;
    int64_t spin_ns = host ? v->engine->spin_ns : v->engine->spin_device_ns;
    if (spin_ns == 0) return false;
    int64_t until = tsi_clock_ns() + spin_ns;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (is_wakeful(v)) return true;
            TSI_CPU_RELAX();
        }
    } while (tsi_clock_ns() < until);
    return false;
}

/* What others see of who sits there. */
static void show(const visit *v)
{
    const tsi_work *work = v->work;
    tsi_hall *hall = atomic_load_explicit(&work->team->engine_state, memory_order_acquire);
    int64_t peer = v->lane == NULL ? work->team->rank[work->print.root] : -1;
    atomic_store_explicit(&v->chair->hall, hall, memory_order_release);
    atomic_store_explicit(&v->chair->lane, v->lane, memory_order_release);
    atomic_store_explicit(&v->chair->sequence, work->print.sequence, memory_order_release);
    atomic_store_explicit(&v->chair->peer, peer, memory_order_release);
}

static bool is_rung(const void *visit_of_chair)
{
    const visit *v = visit_of_chair;
    return atomic_load_explicit(&v->chair->rung, memory_order_seq_cst) || is_wakeful(v);
}

/* Nothing to do but to wait, or to compute for those who are late. */
static bool rest(const visit *v, uint32_t word)
{
    const tsi_guest_wait wait = { &v->chair->word, word, v->deadline_ns, is_rung, v };
    return tsi_wait_as_guest(v->work->rank, &wait);
}

/* False: the deadline passed. Then it still counts as one who sleeps, until it has said so: others
 * whose time is over look whom it waits for. */
static bool sit(visit *v)
{
    if (spin(v)) return true;
    bool in_time = true;
    show(v);
    atomic_store_explicit(&v->chair->rung, 0, memory_order_seq_cst);
    atomic_store_explicit(&v->chair->sleeping, 1, memory_order_seq_cst);
    uint32_t word = atomic_load_explicit(&v->chair->word, memory_order_seq_cst);
    if (!is_wakeful(v)) in_time = rest(v, word);
    if (in_time) atomic_store_explicit(&v->chair->sleeping, 0, memory_order_seq_cst);
    return in_time;
}

static bool help(const visit *v)
{
    if (v->lane != NULL) return tsi_lane_help(v->lane, v->work->member);
    return tsi_inbox_help(v->engine, v->work);
}

/* True: the work has ended. */
static bool withdraw(visit *v)
{
    tsi_hall *hall = atomic_load_explicit(&v->work->team->engine_state, memory_order_acquire);
    bool out =
        v->lane != NULL ? tsi_lane_withdraw(v->lane, v->work) : tsi_inbox_withdraw(hall, v->work);
    if (out)
        end_by_fault(v->engine, v->work);
    else
        v->carried = true;
    return out;
}

static visit visit_of(tsi_threads *engine, tsi_work *work)
{
    return (visit){ .engine = engine,
                    .chair = tsi_chair_of(engine, work->rank),
                    .work = work,
                    .lane = is_point(work) ? NULL : work->engine_state,
                    .deadline_ns = work->deadline_ns };
}

static ts_status threads_wait(void *state, tsi_work *work)
{
    tsi_threads *engine = state;
    visit v = visit_of(engine, work);
    while (!is_done(work)) {
        if (help(&v)) continue;
        if (tsi_threads_interrupted(engine)) tsi_fault_interrupted(engine, work->rank);
        if (!v.carried && tsi_threads_faulty(engine)) {
            if (withdraw(&v)) break;
            continue;
        }
        uint32_t departures = atomic_load_explicit(&engine->departures, memory_order_seq_cst);
        if (departures != v.departures) {
            v.departures = departures;
            (void)tsi_fault_gone(engine, work);
            continue;
        }
        if (sit(&v)) continue;
        v.deadline_ns = INT64_MAX; /* if all came meanwhile, it is carried out and ends by itself */
        tsi_fault_stalled(engine, work);
        atomic_store_explicit(&v.chair->sleeping, 0, memory_order_seq_cst);
    }
    return work->status;
}

static bool threads_test(void *state, tsi_work *work)
{
    tsi_threads *engine = state;
    visit v = visit_of(engine, work);
    if (is_done(work)) return true;
    (void)help(&v);
    if (is_done(work)) return true;
    if (tsi_threads_interrupted(engine)) tsi_fault_interrupted(engine, work->rank);
    if (atomic_load_explicit(&engine->departures, memory_order_seq_cst) != 0)
        (void)tsi_fault_gone(engine, work); /* who only tests would look for ever */
    if (tsi_threads_faulty(engine)) (void)withdraw(&v);
    return is_done(work);
}

/* ---- helpers --------------------------------------------------------------------------------- */

static tsi_lane *first_ready(tsi_threads *engine)
{
    pthread_mutex_lock(&engine->ready_lock);
    while (engine->ready != NULL && !tsi_lane_has_parts(engine->ready)) {
        engine->ready->ready_queued = false;
        engine->ready = engine->ready->ready_next;
    }
    tsi_lane *lane = engine->ready;
    pthread_mutex_unlock(&engine->ready_lock);
    return lane;
}

static bool threads_progress(void *state)
{
    tsi_threads *engine = state;
    atomic_fetch_add_explicit(&engine->busy, 1, memory_order_seq_cst);
    for (;;) {
        if (tsi_inbox_run_any(engine)) continue;
        tsi_lane *lane = first_ready(engine);
        if (lane == NULL) break;
        (void)tsi_lane_help(lane, -1);
    }
    atomic_fetch_sub_explicit(&engine->busy, 1, memory_order_seq_cst);
    return false; /* whoever adds something kicks */
}

static bool threads_faulty(void *state)
{
    return tsi_threads_faulty(state) || tsi_threads_interrupted(state);
}

static bool threads_absent(void *state, int64_t rank)
{
    const tsi_threads *engine = state;
    const tsi_chair *chair = &engine->chair[rank - engine->world->first_index];
    return atomic_load_explicit(&chair->gone, memory_order_seq_cst) != 0;
}

const tsi_engine *tsi_engine_threads(void)
{
    static const tsi_engine engine = {
        .struct_size = sizeof(tsi_engine),
        .name = "threads",
        .direct = true,
        .open = threads_open,
        .close = threads_close,
        .start = threads_start,
        .wait = threads_wait,
        .interrupt = tsi_threads_interrupt,
        .test = threads_test,
        .progress = threads_progress,
        .leave = tsi_threads_leave,
        .recover = tsi_threads_recover,
        .gone = tsi_threads_gone,
        .faulty = threads_faulty,
        .absent = threads_absent,
        .awaits = tsi_threads_awaits,
        .unmet = tsi_threads_unmet,
    };
    return &engine;
}
