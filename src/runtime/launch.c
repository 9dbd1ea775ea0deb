/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - the frame of main(): a world, a thread per rank, one result.
 *
 *   open world -> rank 0 on the calling thread, the others on threads of their own
 *     each: attach -> work -> drain -> leave (at once if it failed, so that peers return) -> detach
 *   -> join -> verdict: the error that came first and is not the echo of a peer's; where all went
 *   well, that of other processes -> close
 *
 * INV: a rank that has left never calls the engine again; when the threads are joined no work of
 * this process is in flight. ts_launch is the only function of the library that prints, and the
 * only one that ends the process: INV-9 holds for ranks that are stuck in the program's own code,
 * too. Once a rank has failed the others have the timeout to come back; one that does not is named,
 * with its last place (stuck.c). ts_launch_with returns then, and leaves that rank and its world
 * behind. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "runtime/runtime.h"
#include "tessera/event.h"

enum { RANK_STACK_BYTES = 1 << 20 };

typedef struct launch launch;

typedef struct member {
    launch *launch;
    int64_t local_index;
    pthread_t thread;
    bool started;
    _Atomic int32_t ended; /* after what follows was written */
    ts_status status;
    int64_t order; /* of its failure, from 1 */
} member;

struct launch {
    ts_world *world;
    ts_work_fn work;
    void *arg;
    tsi_watch *watch; /* NULL: nobody watches */
    int64_t start_ns;
    _Atomic int64_t failures;  /* numbers failed ranks in the order of their failures */
    _Atomic int64_t failed_ns; /* when the first one failed; 0: none */
    tsi_word ended;            /* members that have */
    bool traced;               /* TESSERA_TRACE */
    bool agrees;               /* devices of processes are compared before work begins */
    bool ends_process;         /* the watch does, if a rank is stuck; else that is left behind */
    bool left_behind;          /* a rank is still in the program's code */
    member member[];           /* local_count of them */
};

/* The rank's final status: what work returned, or the error it left pending. */
static ts_status final_status(ts_rank *me, ts_status returned)
{
    ts_status pending = ts_rank_status(me);
    if (pending != TS_OK) return pending;
    if (returned == TS_OK) return TS_OK;
    return ts_rank_fail(me, returned, "work returned %s without saying why",
                        ts_status_name(returned));
}

static void note_failure(member *self)
{
    launch *frame = self->launch;
    self->order = 1 + atomic_fetch_add_explicit(&frame->failures, 1, memory_order_relaxed);
    int64_t none = 0;
    (void)atomic_compare_exchange_strong_explicit(&frame->failed_ns, &none, tsi_clock_ns(),
                                                  memory_order_relaxed, memory_order_relaxed);
}

static void note_end(member *self)
{
    launch *frame = self->launch;
    bool failed = self->status != TS_OK;
    atomic_store_explicit(&self->ended, 1, memory_order_release);
    atomic_fetch_add_explicit(&frame->ended, 1, memory_order_release);
    tsi_wake_all(&frame->ended);
    if (failed && frame->ends_process) tsi_watch_look(frame->watch);
}

static void run_member(member *self)
{
    launch *frame = self->launch;
    ts_rank *me = NULL;
    self->status = ts_rank_attach(frame->world, self->local_index, &me);
    TSI_ASSERT(self->status == TS_OK);                /* nobody else knows this world yet */
    if (frame->traced) (void)ts_rank_trace_begin(me); /* recorded if it fails; ends at detach */
    if (frame->agrees) self->status = tsi_device_agree(me, tsi_world_device(frame->world));
    if (self->status == TS_OK) self->status = final_status(me, frame->work(me, frame->arg));
    if (self->status == TS_OK) self->status = tsi_comm_drain(me);
    if (self->status != TS_OK) note_failure(self);
    tsi_comm_leave(me, self->status, self->status == TS_OK ? "" : me->error.text);
    ts_rank_detach(me);
}

static void *member_thread(void *argument)
{
    run_member(argument);
    note_end(argument);
    return NULL;
}

/* A rank whose thread cannot be had fails like any other: its peers are told, nobody waits for it.
 */
static void start_failed(member *self)
{
    ts_rank *me = NULL;
    ts_status status = ts_rank_attach(self->launch->world, self->local_index, &me);
    TSI_ASSERT(status == TS_OK);
    self->status =
        ts_rank_fail(me, TS_ERR_MEMORY, "its thread could not be started: %s", ts_last_error());
    note_failure(self);
    tsi_comm_leave(me, self->status, me->error.text);
    ts_rank_detach(me);
}

/* ---- ranks that do not come back ------------------------------------------------------------- */

enum { LOOK_MS = 50 };

static bool has_ended(const member *m)
{
    return atomic_load_explicit(&m->ended, memory_order_acquire) != 0;
}

/* The first rank that is stuck, or NULL. */
static const member *stuck_member(const launch *frame, int64_t now_ns)
{
    int64_t failed_ns = atomic_load_explicit(&frame->failed_ns, memory_order_relaxed);
    if (failed_ns == 0) return NULL;
    for (int64_t i = 0; i < frame->world->local_count; i++) {
        const member *m = &frame->member[i];
        if (has_ended(m)) continue;
        if (tsi_rank_stuck(frame->world->rank[i], frame->start_ns, failed_ns, now_ns)) return m;
    }
    return NULL;
}

/* Waits for all threads, or leaves one behind. */
static void await_members(launch *frame, int64_t started)
{
    for (;;) {
        uint32_t ended = atomic_load_explicit(&frame->ended, memory_order_acquire);
        if ((int64_t)ended >= started) return;
        int64_t now_ns = tsi_clock_ns();
        frame->left_behind = !frame->ends_process && stuck_member(frame, now_ns) != NULL;
        if (frame->left_behind) return;
        bool failed = atomic_load_explicit(&frame->failed_ns, memory_order_relaxed) != 0;
        (void)tsi_wait_word(&frame->ended, ended, 0,
                            failed ? now_ns + LOOK_MS * 1000000 : INT64_MAX);
    }
}

static void run_members(launch *frame)
{
    int64_t count = frame->world->local_count;
    member *members = frame->member;
    for (int64_t i = 0; i < count; i++) {
        members[i].launch = frame;
        members[i].local_index = i;
    }
    int64_t started = 1;
    for (int64_t i = 1; i < count; i++) {
        members[i].started = tsi_thread_start(&members[i].thread, member_thread, &members[i],
                                              RANK_STACK_BYTES) == TS_OK;
        started += members[i].started;
        if (!members[i].started) {
            start_failed(&members[i]);
            atomic_store_explicit(&members[i].ended, 1, memory_order_release);
        }
    }
    run_member(&members[0]);
    note_end(&members[0]);
    await_members(frame, started);
    for (int64_t i = 1; i < count; i++) {
        if (!members[i].started) continue;
        if (has_ended(&members[i]) || !frame->left_behind)
            pthread_join(members[i].thread, NULL);
        else
            pthread_detach(members[i].thread);
    }
}

/* Does a tell the cause better than b? An error of one's own comes before the echo of a peer's. */
static bool is_earlier(const member *a, const member *b)
{
    bool a_echo = a->status == TS_ERR_PEER, b_echo = b->status == TS_ERR_PEER;
    if (a_echo != b_echo) return b_echo;
    return a->order < b->order;
}

static bool has_failed(const member *m)
{
    return has_ended(m) && m->status != TS_OK;
}

static const member *first_failure(const launch *frame)
{
    const member *first = NULL;
    for (int64_t i = 0; i < frame->world->local_count; i++) {
        const member *m = &frame->member[i];
        if (has_failed(m) && (first == NULL || is_earlier(m, first))) first = m;
    }
    return first;
}

/* "rank 2: sentence" or, if others of this process say the same, "rank 2 and 3 more: sentence". */
static void write_verdict(const launch *frame, const member *first, tsi_text *out)
{
    const ts_rank *rank = frame->world->rank[first->local_index];
    int64_t same = 0, echoes = 0;
    for (int64_t i = 0; i < frame->world->local_count; i++) {
        if (&frame->member[i] == first || !has_failed(&frame->member[i])) continue;
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
    const member *stuck = stuck_member(frame, tsi_clock_ns());
    if (stuck == NULL) return;
    char doing[288];
    const ts_rank *who = frame->world->rank[stuck->local_index];
    tsi_rank_activity(who, doing, sizeof doing);
    tsi_text_printf(out, "; rank %lld does not come back from the program's own code (%s)",
                    (long long)who->index, doing);
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
        mistake =
            has_ended(&frame->member[i]) && strcmp(frame->world->rank[i]->error.text, text) == 0;
    return mistake;
}

/* Of several processes that only echo a peer's error, one speaks: the lowest that is not the cause.
 */
static bool is_speaker(const ts_world *world, const member *first)
{
    int64_t cause = world->rank[first->local_index]->error.error.rank;
    bool others = world->rank_count > world->local_count;
    if (first->status != TS_ERR_PEER || !others) return true;
    bool first_is_cause = cause >= 0 && cause < world->local_count;
    return world->first_index == (first_is_cause ? world->local_count : 0);
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

/* On the watch's thread, after a failure: if a rank is stuck this process ends here, with the words
 * ts_launch would have had. What the stuck thread holds, a lock of a stream for one, is not waited
 * for. */
static void end_if_stuck(void *context)
{
    const launch *frame = context;
    if (stuck_member(frame, tsi_clock_ns()) == NULL) return;
    const member *first = first_failure(frame);
    if (first == NULL) return; /* it is about to end */
    tsi_text text = { 0 };
    tsi_text_add(&text, "tessera: ");
    write_verdict(frame, first, &text);
    tsi_text_printf(&text, " [%s]\n", ts_status_name(first->status));
    tsi_postmortem(frame->world, &text);
    tsi_end_process(text.data, text.length);
}

static ts_status judge(launch *frame, const tsi_settings *settings, verdict *out)
{
    ts_world *world = frame->world;
    ts_status status = TS_OK;
    const member *first = first_failure(frame);
    if (first != NULL) {
        status = first->status;
        out->speaker = is_speaker(world, first);
        write_verdict(frame, first, &out->sentence);
        if (!is_mistake_of_all(frame, first)) tsi_postmortem(world, &out->postmortem);
    } else {
        status = agree_on_end(world, out);
    }
    if (settings->trace != NULL) {
        ts_status traced = ts_world_trace(world, settings->trace);
        if (status == TS_OK) status = traced;
    }
    return status;
}

/* Does a process have something that others may have otherwise? All of a world answer alike. */
static bool must_agree(ts_world *world, const tsi_settings *settings)
{
    const char *device = settings->user.device;
    bool several = world->rank_count > world->local_count && settings->engine == TSI_ENGINE_MPI;
    return several && device &&
           (strcmp(device, "auto") == 0 || tsi_world_device(world)->choices != NULL);
}

static ts_status run_world(const tsi_settings *settings, ts_work_fn work, void *arg,
                           bool ends_process, verdict *out)
{
    ts_world *world = NULL;
    TSI_TRY(tsi_world_start(settings, &world));
    size_t bytes = sizeof(launch) + (size_t)world->local_count * sizeof(member);
    launch *frame = tsi_calloc(1, bytes);
    if (frame == NULL) {
        ts_status status = tsi_fail_memory("the ranks of a launch", bytes);
        ts_world_close(world);
        return status;
    }
    frame->world = world;
    frame->work = work;
    frame->arg = arg;
    frame->traced = settings->trace != NULL;
    frame->agrees = must_agree(world, settings);
    frame->start_ns = tsi_clock_ns();
    bool watched = ends_process || settings->user.watch != 0;
    frame->watch = watched ? tsi_watch_start(world, end_if_stuck, frame) : NULL;
    frame->ends_process = ends_process && frame->watch != NULL;
    run_members(frame);
    tsi_watch_stop(frame->watch);
    ts_status status = judge(frame, settings, out);
    if (frame->left_behind) return status; /* it may still use all of this */
    tsi_free(frame);
    ts_world_close(world);
    return status;
}

/* From options to verdict, outside whatever rank the calling thread is, so that worlds nest. */
static ts_status run_launch(const ts_world_options *options, ts_work_fn work, void *arg,
                            bool ends_process, verdict *out)
{
    *out = (verdict){ .speaker = true };
    ts_rank *outer = tsi_rank_current();
    tsi_rank_set_current(NULL);
    tsi_settings settings;
    ts_status status = work != NULL ? TS_OK : TSI_FAIL(TS_ERR_NULL, "launch: work is NULL");
    if (status == TS_OK) status = tsi_settings_resolve(options, &settings);
    out->usage = status != TS_OK;
    if (status == TS_OK) status = run_world(&settings, work, arg, ends_process, out);
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
