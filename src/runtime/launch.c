/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - the frame of main(): a world, a thread per rank, one result.
 *
 *   open world -> rank 0 on the calling thread, the others on threads of their own
 *     each: attach -> work -> drain -> leave (at once if it failed, so that peers return) -> detach
 *   -> join -> verdict: the error that came first and is not the echo of a peer's; where all went
 *   well, that of other processes -> close
 *
 * INV: a rank that has left never calls the engine again; when the threads are joined no work of
 * this process is in flight. ts_launch is the only function of the library that prints. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "runtime/runtime.h"
#include "tessera/event.h"

enum { RANK_STACK_BYTES = 1 << 20 };

typedef struct launch {
    ts_world *world;
    ts_work_fn work;
    void *arg;
    _Atomic int64_t failures; /* numbers failed ranks in the order of their failures */
} launch;

typedef struct member {
    launch *launch;
    int64_t local_index;
    pthread_t thread;
    bool started;
    ts_status status;
    int64_t order; /* of its failure, from 1 */
} member;

/* The rank's final status: what work returned, or the error it left pending. */
static ts_status final_status(ts_rank *me, ts_status returned)
{
    ts_status pending = ts_rank_status(me);
    if (pending != TS_OK) return pending;
    if (returned == TS_OK) return TS_OK;
    return ts_rank_fail(me, returned, "work returned %s without saying why",
                        ts_status_name(returned));
}

static void run_member(member *self)
{
    launch *frame = self->launch;
    ts_rank *me = NULL;
    self->status = ts_rank_attach(frame->world, self->local_index, &me);
    if (self->status != TS_OK) return;
    self->status = final_status(me, frame->work(me, frame->arg));
    if (self->status == TS_OK) self->status = tsi_comm_drain(me);
    if (self->status != TS_OK) {
        self->order = 1 + atomic_fetch_add_explicit(&frame->failures, 1, memory_order_relaxed);
    }
    tsi_comm_leave(me, self->status, self->status == TS_OK ? "" : me->error.text);
    ts_rank_detach(me);
}

static void *member_thread(void *argument)
{
    run_member(argument);
    return NULL;
}

/* A rank whose thread cannot be had fails like any other: its peers are told, nobody waits for it.
 */
static void start_failed(member *self)
{
    ts_rank *me = NULL;
    ts_status status = ts_rank_attach(self->launch->world, self->local_index, &me);
    if (status != TS_OK) return;
    self->status =
        ts_rank_fail(me, TS_ERR_MEMORY, "its thread could not be started: %s", ts_last_error());
    self->order = 1 + atomic_fetch_add_explicit(&self->launch->failures, 1, memory_order_relaxed);
    tsi_comm_leave(me, self->status, me->error.text);
    ts_rank_detach(me);
}

static void run_members(launch *frame, member *members)
{
    int64_t count = frame->world->local_count;
    for (int64_t i = 0; i < count; i++) {
        members[i] = (member){ .launch = frame, .local_index = i };
    }
    for (int64_t i = 1; i < count; i++) {
        members[i].started = tsi_thread_start(&members[i].thread, member_thread, &members[i],
                                              RANK_STACK_BYTES) == TS_OK;
        if (!members[i].started) start_failed(&members[i]);
    }
    run_member(&members[0]);
    for (int64_t i = 1; i < count; i++) {
        if (members[i].started) pthread_join(members[i].thread, NULL);
    }
}

/* Does a tell the cause better than b? An error of one's own comes before the echo of a peer's. */
static bool is_earlier(const member *a, const member *b)
{
    bool a_echo = a->status == TS_ERR_PEER, b_echo = b->status == TS_ERR_PEER;
    if (a_echo != b_echo) return b_echo;
    return a->order < b->order;
}

static const member *first_failure(const member *members, int64_t count)
{
    const member *first = NULL;
    for (int64_t i = 0; i < count; i++) {
        if (members[i].status == TS_OK) continue;
        if (first == NULL || is_earlier(&members[i], first)) first = &members[i];
    }
    return first;
}

/* "rank 2: sentence" or, if others of this process say the same, "rank 2 and 3 more: sentence". */
static void write_verdict(const launch *frame, const member *members, const member *first,
                          tsi_text *out)
{
    const ts_rank *rank = frame->world->rank[first->local_index];
    int64_t same = 0, echoes = 0;
    for (int64_t i = 0; i < frame->world->local_count; i++) {
        if (&members[i] == first || members[i].status == TS_OK) continue;
        if (strcmp(frame->world->rank[i]->error.text, rank->error.text) == 0)
            same++;
        else
            echoes++;
    }
    tsi_text_printf(out, "rank %lld", (long long)rank->index);
    if (same > 0) tsi_text_printf(out, " and %lld more", (long long)same);
    tsi_text_printf(out, ": %s", rank->error.text);
    if (rank->error.where[0] != '\0' && strstr(rank->error.text, rank->error.where) == NULL) {
        tsi_text_printf(out, " (%s)", rank->error.where);
    }
    if (echoes > 0) {
        tsi_text_printf(out, "; %lld other rank%s stopped with it", (long long)echoes,
                        echoes == 1 ? "" : "s");
    }
}

/* A wrong argument that every rank refused alike: where the ranks were tells nothing more. */
static bool is_mistake_of_all(const launch *frame, const member *first)
{
    static const ts_status mistakes[] = { TS_ERR_ARG,   TS_ERR_NULL,   TS_ERR_SHAPE,  TS_ERR_MESH,
                                          TS_ERR_DTYPE, TS_ERR_POLICY, TS_ERR_MISSING };
    bool mistake = false;
    for (size_t i = 0; i < TSI_COUNT_OF(mistakes); i++)
        mistake = mistake || first->status == mistakes[i];
    const char *text = frame->world->rank[first->local_index]->error.text;
    for (int64_t i = 0; mistake && i < frame->world->local_count; i++)
        mistake = strcmp(frame->world->rank[i]->error.text, text) == 0;
    return mistake;
}

/* Of several processes that only echo a peer's error, one speaks: the lowest that is not the cause.
 */
static bool is_speaker(const ts_world *world, const member *first)
{
    if (first->status != TS_ERR_PEER || world->first_index == 0) return true;
    int64_t cause = world->rank[first->local_index]->error.error.rank;
    return cause >= 0 && cause < world->local_count && world->first_index == world->local_count;
}

typedef struct verdict {
    bool usage;                    /* refused before anything ran */
    bool speaker;                  /* this process prints */
    tsi_text sentence, postmortem; /* on failure */
} verdict;

/* All went well here. If a rank of another process failed, all processes say so: the job has one
 * exit code. The first process speaks, if it is not the cause. */
static ts_status agree_on_end(ts_world *world, verdict *out)
{
    char sentence[TSI_ERROR_TEXT_MAX];
    ts_status status = tsi_comm_farewell(world, sentence, sizeof sentence);
    if (status == TS_OK) return TS_OK;
    out->speaker = world->first_index == 0;
    tsi_text_printf(&out->sentence, "another process failed: %s", sentence);
    return status;
}

static ts_status run_world(const tsi_settings *settings, ts_work_fn work, void *arg, bool watch,
                           verdict *out)
{
    ts_world *world = NULL;
    TSI_TRY(tsi_world_start(settings, &world));
    launch frame = { .world = world, .work = work, .arg = arg };
    member *members = tsi_calloc((size_t)world->local_count, sizeof *members);
    ts_status status = TS_OK;
    if (members == NULL) {
        status =
            tsi_fail_memory("the ranks of a launch", (size_t)world->local_count * sizeof *members);
        goto done;
    }
    tsi_watch *watcher = watch ? tsi_watch_start(world) : NULL;
    run_members(&frame, members);
    tsi_watch_stop(watcher);
    const member *first = first_failure(members, world->local_count);
    if (first != NULL) {
        status = first->status;
        out->speaker = is_speaker(world, first);
        write_verdict(&frame, members, first, &out->sentence);
        if (!is_mistake_of_all(&frame, first)) tsi_postmortem(world, &out->postmortem);
    } else {
        status = agree_on_end(world, out);
    }
    if (settings->trace != NULL) {
        ts_status traced = ts_world_trace(world, settings->trace);
        if (status == TS_OK) status = traced;
    }
done:
    tsi_free(members);
    ts_world_close(world);
    return status;
}

/* From options to verdict, outside whatever rank the calling thread is, so that worlds nest. */
static ts_status run_launch(const ts_world_options *options, ts_work_fn work, void *arg, bool watch,
                            verdict *out)
{
    *out = (verdict){ .speaker = true };
    ts_rank *outer = tsi_rank_current();
    tsi_rank_set_current(NULL);
    tsi_settings settings;
    ts_status status = work != NULL ? TS_OK : TSI_FAIL(TS_ERR_NULL, "launch: work is NULL");
    if (status == TS_OK) status = tsi_settings_resolve(options, &settings);
    out->usage = status != TS_OK;
    if (status == TS_OK)
        status = run_world(&settings, work, arg, watch || settings.user.watch != 0, out);
    if (status != TS_OK && out->sentence.length == 0) tsi_text_add(&out->sentence, ts_last_error());
    tsi_rank_set_current(outer);
    return status;
}

static void verdict_release(verdict *result)
{
    tsi_text_release(&result->sentence);
    tsi_text_release(&result->postmortem);
}

static const char *verdict_sentence(const verdict *result)
{
    return result->sentence.length > 0 ? result->sentence.data : "out of memory";
}

ts_status ts_launch_with(const ts_world_options *options, ts_work_fn work, void *arg, char *error,
                         size_t error_size)
{
    verdict result;
    ts_status status = run_launch(options, work, arg, false, &result);
    if (error != NULL && error_size > 0) {
        (void)snprintf(error, error_size, "%s", status != TS_OK ? verdict_sentence(&result) : "");
    }
    verdict_release(&result);
    return status;
}

int ts_launch(int argc, char **argv, ts_work_fn work, void *arg)
{
    ts_world_options options = TS_INIT(ts_world_options);
    if (tsi_settings_arguments(argc, argv, &options) != TS_OK) {
        fprintf(stderr, "tessera: %s\n", ts_last_error());
        return 2;
    }
    verdict result;
    ts_status status = run_launch(&options, work, arg, true, &result);
    if (status != TS_OK && result.speaker) {
        fprintf(stderr, "tessera: %s [%s]\n%s", verdict_sentence(&result), ts_status_name(status),
                result.postmortem.length > 0 ? result.postmortem.data : "");
    }
    bool usage = result.usage;
    verdict_release(&result);
    return status == TS_OK ? 0 : usage ? 2 : 1;
}
