/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - opening and closing a world, and the threads that stand for its ranks.
 *
 * The number of local ranks is known before the engine opens (option, cores, representatives of the
 * model); the size of the world and the index of the first local rank may be the engine's to say
 * (mpi). So ranks are made first and get their indices when the engine has opened. */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "base/alloc.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/model/model_engine.h"
#include "device/device.h"
#include "device/moments.h"
#include "plan/topology.h"
#include "runtime/module_load.h"
#include "runtime/runtime.h"

tsi_runtime *tsi_runtime_of(const ts_world *world)
{
    return world->slot[TSI_SLOT_RUNTIME].state;
}

static ts_status find_engine(const tsi_settings *settings, const tsi_engine **out)
{
    switch (settings->engine) {
    case TSI_ENGINE_THREADS:
        *out = tsi_engine_threads();
        return TS_OK;
    case TSI_ENGINE_MODEL:
        *out = tsi_engine_model();
        return TS_OK;
    case TSI_ENGINE_MPI:
        return tsi_module_mpi(out);
    case TSI_ENGINE_NCCL:
        break;
    }
    return TSI_FAIL(TS_ERR_INTERNAL, "engine number %d", (int)settings->engine);
}

static int64_t local_count_of(const tsi_settings *settings)
{
    switch (settings->engine) {
    case TSI_ENGINE_THREADS:
        return settings->user.rank_count;
    case TSI_ENGINE_MPI:
        return settings->user.threads_per_process;
    case TSI_ENGINE_MODEL:
        return settings->user.model_rank_count > 0 ? settings->user.model_rank_count : 1;
    case TSI_ENGINE_NCCL:
        break;
    }
    return 1;
}

/* The engine has said how large the world is and where this process begins. */
static void number_ranks(ts_world *world, const tsi_settings *settings)
{
    const int64_t *representative =
        settings->engine == TSI_ENGINE_MODEL ? settings->user.model_ranks : NULL;
    for (int64_t i = 0; i < world->local_count; i++) {
        world->rank[i]->index = representative ? representative[i] : world->first_index + i;
    }
}

/* Processes cannot read each other's device memory, nor do all devices of one process, so there
 * nccl comes between by itself: with its library, or by way of the host. */
static bool needs_nccl(ts_world *world, const tsi_settings *settings)
{
    if (settings->nccl || tsi_world_device(world)->host_readable) return settings->nccl;
    if (settings->engine != TSI_ENGINE_THREADS) return settings->engine == TSI_ENGINE_MPI;
    bool reaches = tsi_world_reaches(world);
    if (!reaches)
        tsi_log(TSI_LOG_INFO, "devices of kind %s do not reach each other's memory",
                tsi_world_device(world)->kind);
    return !reaches;
}

/* The topology that was asked for: the first process reads it for all, so that every rank plans
 * alike. */
typedef struct agreement {
    bool given;
    ts_status status; /* of reading it */
    ts_topology topology;
} agreement;

static void read_topology(const tsi_settings *settings, agreement *out)
{
    memset(out, 0, sizeof *out); /* it is sent as it lies */
    out->given = settings->user.topology != NULL;
    if (out->given) out->status = ts_topology_load(settings->user.topology, &out->topology);
}

/* `here`: how reading went in this process, whose sentence stands if it failed. */
static ts_status take_topology(ts_world *world, const agreement *agreed, ts_status here)
{
    if (!agreed->given) return TS_OK;
    if (agreed->status == TS_OK) {
        tsi_log(TSI_LOG_INFO, "plans take the links for those of %s", agreed->topology.name);
        return ts_topology_set(world, &agreed->topology);
    }
    if (here != TS_OK) return here;
    return TSI_FAIL(agreed->status, "topology: the first process could not read it");
}

/* Threads are of one node, unless they are to count as those of several. */
static ts_status find_nodes(ts_world *world, const tsi_engine_options *options)
{
    const int64_t *sizes = options->node_sizes, some = options->node_size_count;
    bool found = world->node != NULL || world->node_ranks > 0;
    if (some > 0 && !found && world->local_count == world->rank_count) {
        size_t count = (size_t)world->rank_count;
        world->node = tsi_alloc_array(count, sizeof *world->node);
        if (world->node == NULL)
            return tsi_fail_memory("the nodes of ranks", count * sizeof *world->node);
        for (int64_t r = 0, first = 0; r < world->rank_count; r++) {
            if (tsi_node_wanted(sizes, some, r) != tsi_node_wanted(sizes, some, first)) first = r;
            world->node[r] = (int32_t)first;
        }
    }
    tsi_world_settle_nodes(world);
    return TS_OK;
}

static ts_status start_engine(ts_world *world, const tsi_settings *settings,
                              const tsi_engine *engine, const tsi_engine_options *options)
{
    void *state = NULL;
    TSI_TRY(engine->open(options, &state));
    number_ranks(world, settings);
    if (engine->no_data) tsi_world_device_set(world, tsi_device_none());
    ts_status status = tsi_comm_open(world, engine, state);
    if (status != TS_OK) {
        engine->close(state);
        return status;
    }
    if (settings->user.progress == 1) tsi_comm_helpers_limit(world, 0);
    tsi_runtime_of(world)->engine = engine;
    return find_nodes(world, options);
}

static ts_status open_engine(ts_world *world, const tsi_settings *settings)
{
    const tsi_engine *engine = NULL, *inner = NULL;
    TSI_TRY(find_engine(settings, &engine));
    if (needs_nccl(world, settings)) {
        inner = engine;
        TSI_TRY(tsi_module_nccl(&engine));
    }
    agreement agreed;
    read_topology(settings, &agreed);
    ts_status here = agreed.status;
    tsi_engine_options options = { .struct_size = sizeof options,
                                   .world = world,
                                   .user = &settings->user,
                                   .host = tsi_comm_host(),
                                   .launcher = tsi_launcher_find(),
                                   .inner = inner,
                                   .device = tsi_world_device(world),
                                   .by_name = settings->nccl,
                                   .node_sizes = settings->node_size,
                                   .node_size_count = settings->node_size_count,
                                   .agreed = &agreed,
                                   .agreed_bytes = sizeof agreed };
    TSI_TRY(start_engine(world, settings, engine, &options));
    TSI_TRY(take_topology(world, &agreed, here));
    tsi_log(TSI_LOG_INFO, "%lld ranks on engine %s%s%s (%s)", (long long)world->rank_count,
            engine->name, inner ? " over " : "", inner ? inner->name : "", settings->why);
    return TS_OK;
}

static ts_status take_stream(ts_world *world, void *stream)
{
    const tsi_device *device = tsi_world_device(world);
    world->stream = stream;
    if (!stream) return TS_OK;
    if (!device->stream_adopt)
        return TSI_FAIL(TS_ERR_ARG, "cuda_stream: device %s has no streams of others",
                        device->name);
    if (world->local_count == 1) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "cuda_stream: one rank can have it, and this process has %lld",
                    (long long)world->local_count);
}

typedef struct chosen_device {
    const tsi_device *device;
    bool by_kind; /* ranks take those of the kind in turn */
    char text[TSI_DEVICE_TEXT];
} chosen_device;

/* A world without data needs none, whatever it was asked for; what is no device is refused. */
static ts_status choose_device(const tsi_settings *settings, chosen_device *out)
{
    const char *name = settings->user.device;
    static const char absent[] = "cuda is not here, tessera doctor says why";
    char why[448] = "";
    bool found = name && strcmp(name, "auto") == 0;
    *out = (chosen_device){ .device = tsi_device_host() };
    if (settings->engine == TSI_ENGINE_MODEL) {
        (void)snprintf(out->text, sizeof out->text, "%s", out->device->name);
        return !name || found ? TS_OK : tsi_module_device_known(name);
    }
    if (found)
        out->device = tsi_module_device_auto(why, sizeof why);
    else if (name)
        TSI_TRY(tsi_module_device(name, &out->device));
    out->by_kind = found || (name && strcmp(name, out->device->kind) == 0);
    if (found)
        (void)snprintf(out->text, sizeof out->text, "%s (auto: %s)", out->device->name,
                       out->device == tsi_device_host() ? absent : why);
    else
        (void)snprintf(out->text, sizeof out->text, "%s", out->device->name);
    if (found) tsi_log(TSI_LOG_INFO, "device %s by itself: %s", out->device->name, why);
    return TS_OK;
}

ts_status tsi_world_start(const tsi_settings *settings, ts_world **out)
{
    *out = NULL;
    tsi_backend_cpu_add();
    chosen_device chosen;
    TSI_TRY(choose_device(settings, &chosen));
    int64_t local_count = local_count_of(settings);
    int64_t rank_count =
        settings->engine == TSI_ENGINE_MPI ? local_count : settings->user.rank_count;
    ts_world *world = NULL;
    TSI_TRY(tsi_world_make(rank_count, local_count, 0, settings->user.events, &world));
    world->seed = settings->user.seed;
    tsi_world_device_set(world, chosen.device);
    if (chosen.by_kind) {
        int64_t process = tsi_launcher_find().local_rank;
        world->local_first = process > 0 ? process * local_count : 0;
    }
    world->timeout_ms = settings->user.timeout_ms;
    world->handles_kept = settings->user.handles_kept;
    tsi_runtime *runtime = NULL;
    ts_status status = take_stream(world, settings->user.cuda_stream);
    if (status != TS_OK) goto done;
    runtime = tsi_calloc(1, sizeof *runtime);
    status = runtime ? TS_OK : tsi_fail_memory("the state of a world", sizeof *runtime);
    if (status != TS_OK) goto done;
    memcpy(runtime->device, chosen.text, sizeof runtime->device);
    world->slot[TSI_SLOT_RUNTIME] = (tsi_slot_state){ .state = runtime, .destroy = tsi_free };
    status = open_engine(world, settings);
done:
    if (status != TS_OK)
        tsi_world_unmake(world);
    else
        *out = world;
    return status;
}

ts_status ts_world_open(const ts_world_options *options, ts_world **out)
{
    if (out == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_world_open: out is NULL");
    *out = NULL;
    tsi_settings settings;
    TSI_TRY(tsi_settings_resolve(options, &settings));
    return tsi_world_start(&settings, out);
}

/* A rank that is still attached to this thread is detached; one attached elsewhere is the caller's
 * error, which cannot be returned from here and ends in a use after free: it is logged. What is
 * still in flight is abandoned by the ranks' slots, not waited for. */
void ts_world_close(ts_world *world)
{
    if (world == NULL) return;
    ts_rank *current = tsi_rank_current();
    if (current != NULL && current->world == world) ts_rank_detach(current);
    for (int64_t i = 0; i < world->local_count; i++) {
        ts_rank *rank = world->rank[i];
        if (atomic_load_explicit(&rank->attached, memory_order_acquire)) {
            tsi_log(TSI_LOG_ERROR, "ts_world_close: rank %lld is still attached to a thread",
                    (long long)rank->index);
        }
    }
    tsi_world_unmake(world);
}

const char *ts_world_engine(const ts_world *world)
{
    return world != NULL ? tsi_runtime_of(world)->engine->name : "none";
}

const char *ts_world_device(const ts_world *world)
{
    return world != NULL ? tsi_runtime_of(world)->device : "none";
}

ts_status ts_rank_attach(ts_world *world, int64_t local_index, ts_rank **out)
{
    if (world == NULL || out == NULL) {
        return TSI_FAIL(TS_ERR_NULL, "ts_rank_attach: %s is NULL", world ? "out" : "world");
    }
    *out = NULL;
    if (local_index < 0 || local_index >= world->local_count) {
        return TSI_FAIL(TS_ERR_ARG,
                        "ts_rank_attach: there is no local rank %lld, this process has %lld",
                        (long long)local_index, (long long)world->local_count);
    }
    ts_rank *rank = world->rank[local_index];
    ts_rank *current = tsi_rank_current();
    if (current != NULL) {
        return TSI_FAIL(TS_ERR_STATE,
                        "ts_rank_attach: this thread is rank %lld already; detach first",
                        (long long)current->index);
    }
    int32_t free_rank = 0;
    if (!atomic_compare_exchange_strong_explicit(&rank->attached, &free_rank, 1,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return TSI_FAIL(TS_ERR_STATE, "ts_rank_attach: rank %lld is attached to another thread",
                        (long long)rank->index);
    }
    rank->thread = pthread_self();
    tsi_rank_set_current(rank);
    *out = rank;
    return TS_OK;
}

void ts_rank_detach(ts_rank *me)
{
    if (me == NULL || tsi_rank_current() != me) return;
    while (me->moments)
        tsi_moments_end(me);
    me->traced = 0;
    tsi_rank_set_current(NULL);
    atomic_store_explicit(&me->attached, 0, memory_order_release);
}

ts_status ts_rank_sync(ts_rank *me)
{
    TSI_TRY(tsi_rank_enter(me));
    return tsi_comm_drain(me);
}

void ts_world_interrupt(ts_world *world)
{
    if (world != NULL) tsi_comm_interrupt(world);
}

/* All ranks meet in the engine, which drops what was in flight; then each forgets its error. A lost
 * rank cannot meet anybody, so LOST stays. */
ts_status ts_rank_recover(ts_rank *me)
{
    if (me == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_rank_recover: rank is NULL");
    if (tsi_rank_current() != me) {
        return TSI_FAIL(TS_ERR_THREAD, "ts_rank_recover: the calling thread is not rank %lld",
                        (long long)me->index);
    }
    if (me->error.error.blast == TS_BLAST_LOST) return me->error.error.status;
    if (me->kept != NULL) {
        return TSI_FAIL(TS_ERR_STATE,
                        "ts_rank_recover: a step is being recorded or replayed; what failed "
                        "in it is recovered from behind it");
    }
    (void)tsi_rank_device_sync(me); /* what the queue still has to tell belongs to the past */
    if (me->error.error.status != TS_OK) {
        tsi_comm_fail(me); /* peers that wait for this rank return, and come here too */
        tsi_error_copy(&me->caught, &me->error);
        tsi_error_clear(&me->error);
    }
    return tsi_comm_recover(me);
}
