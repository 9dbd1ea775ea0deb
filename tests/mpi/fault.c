/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c - one fault per run, chosen by the first argument: what do the survivors say?
 *
 *   mismatch   rank 1 calls another operation          leave    rank 1 returns early
 *   error      rank 1 fails with a sentence            kill     rank 1 is killed in the middle
 *   stall      rank 1 sleeps past the timeout          exit     rank 1 calls exit
 *   recover    rank 1 fails, all recover and go on     worlds   a failed world, then a good one
 *   tardy      rank 1 fails and recovers too late
 *   lost       rank 1 fails and does not recover       late     rank 1 fails when others are done
 *   move       rank 1 is killed while large tensors are moved
 *   pipeline   rank 1 is killed in the middle of a schedule
 *   train      rank 1 is killed in a step of sharded training
 *   signal     rank 1 leaves, and others wait for its signal   silence   it is killed instead
 *   mute       it stalls instead: rank 2, which gives up first, waits for rank 0, and that for it
 *   absent     rank 1 ends before it has called MPI   delayed  rank 1 comes long after the timeout
 *   chain      rank 1 stalls, rank 0 waits for it, and rank 2, which gives up first, for rank 0
 *   circle     each rank waits for a message of the next one
 *   idle       rank 1 stalls while its peers ask for data that it has offered
 *   aside      rank 0 fails and recovers while rank 1 of its process waits for its signal
 *   asks       rank 1 stalls while its peers ask again and again whether it came
 *   unmap      rank 1 fails, and its memory goes, while others are about to read it; all recover
 *   half       the first process, of two ranks, is killed when its rank 0 has left
 *   torn       rank 1 fails, and is killed while it tells the others why
 *   behind     rank 1 fails, again and again, as soon as it has an operation behind itself
 *
 * Each survivor prints "fault MODE: rank R ok" if it got the status and the words it must get, else
 * what it got instead. scripts/mpi-tests counts the lines. The exit code is that of a failed job:
 * non-zero, except for the last two modes. A watchdog ends the process after 30 s: a hang is a
 * failure. */
#undef _FORTIFY_SOURCE /* it defines vsnprintf here */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tessera/tessera.h"

enum { COUNT = 100000, TIMEOUT_MS = 2000, NOBODY = -2 };

typedef struct run {
    const char *mode;
    int64_t index, ranks; /* set by the rank */
    int64_t culprit;      /* who failed first, as its error says; NOBODY: it has none of a peer */
} run;

static ts_status reduce(ts_rank *me, const char *name)
{
    float *data = calloc(COUNT, sizeof *data);
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta.shape = TS_SHAPE(COUNT);
    array.meta.dtype = TS_DTYPE_F32;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = name;
    ts_status status = data == NULL ? TS_ERR_MEMORY
                                    : ts_group_all_reduce(ts_group_world(me), &array, &array,
                                                          TS_REDUCE_SUM, &options);
    free(data);
    return status;
}

/* Processes that share one GPU take turns and need longer for everything. */
static int64_t timeout_ms(void)
{
    const char *text = getenv("FAULT_TIMEOUT_MS");
    return text != NULL ? strtoll(text, NULL, 10) : TIMEOUT_MS;
}

static void sleep_ms(int64_t ms)
{
    struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    (void)nanosleep(&time, NULL);
}

static void *kill_soon(void *argument)
{
    (void)argument;
    sleep_ms(150 * timeout_ms() / TIMEOUT_MS);
    (void)kill(getpid(), SIGKILL);
    return NULL;
}

/* Large moves one after the other, until rank 1 is gone in the middle of one. */
static ts_status move(ts_rank *me)
{
    static const char *const places[] = { "S(0)", "S(1)", "R" };
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(2048, 2000), places[0]);
    pthread_t killer;
    if (ts_rank_index(me) == 1 && pthread_create(&killer, NULL, kill_soon, NULL) != 0)
        return TS_ERR_IO;
    for (int i = 1; x != NULL; i++) {
        ts_tensor *y = ts_redistribute(x, places[i % 3]);
        if (y == NULL || ts_tensor_wait(y) != TS_OK) break;
        ts_tensor_drop(x);
        x = y;
    }
    return ts_rank_status(me);
}

/* ---- a pipeline: a stage a rank ------------------------------------------------------------- */

enum { MICROS = 8, WIDTH = 64, BAD_MICRO = 5, RANKS_MAX = 16 };

typedef struct stage {
    ts_mesh *self;
    ts_tensor *weight;
    int64_t rank, calls;
} stage;

static void forward(void *state, const ts_module_io *io)
{
    stage *s = state;
    if (s->rank == 1 && s->calls++ == BAD_MICRO) (void)kill(getpid(), SIGKILL);
    io->output[0] = ts_tanh(ts_matmul(io->input[0], s->weight));
}

static ts_tensor *input_of(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me, (void)micro, (void)index;
    return ts_ones(((stage *)context)->self, TS_DTYPE_F32, TS_SHAPE(32, WIDTH), NULL);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)context, (void)me, (void)micro, (void)count;
    return ts_sum(output[0], NULL, 0, 0);
}

static ts_pipeline *make_pipeline(ts_rank *me, stage *state, ts_module *module)
{
    int64_t ranks = ts_rank_count(me);
    ts_stage_input input[RANKS_MAX];
    ts_stage stages[RANKS_MAX];
    for (int64_t g = 0; g < ranks && g < RANKS_MAX; g++) {
        input[g] = (ts_stage_input){ (int32_t)g - 1, 0 };
        stages[g] = (ts_stage){ .module = g == state->rank ? &module : NULL,
                                .module_count = 1,
                                .input = &input[g],
                                .input_count = 1,
                                .output_count = 1 };
    }
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = ranks,
                                 .micro_batches = MICROS };
    ts_schedule *schedule = NULL;
    if (ts_schedule_generate("1F1B", &size, &schedule) != TS_OK) return NULL;
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = input_of;
    options.loss = loss_of;
    options.context = state;
    ts_pipeline *p =
        ts_pipeline_create(ts_mesh_create(me, "pp=*"),
                           &(ts_stages){ .stage = stages, .count = ranks }, schedule, &options);
    ts_schedule_destroy(schedule);
    return p;
}

static ts_status pipeline(ts_rank *me)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc,
                                         .type = "stage",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = forward };
    stage state = { .self = ts_mesh_self(me), .rank = ts_rank_index(me) };
    ts_module *module = ts_module_create(state.self, &desc, &state);
    state.weight = ts_module_param(module, "w", TS_SHAPE(WIDTH, WIDTH), NULL);
    ts_module_materialize(module);
    ts_pipeline *p = make_pipeline(me, &state, module);
    ts_status status = p != NULL ? ts_pipeline_step(p, NULL, NULL) : ts_rank_status(me);
    ts_pipeline_destroy(p);
    ts_module_destroy(module);
    return status;
}

/* ---- a step of sharded training -------------------------------------------------------------- */

static ts_status token(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = (7 * global[0] + 3 * global[1]) % 64;
    return TS_OK;
}

static ts_status train_step(ts_rank *me, ts_model *model, ts_optimizer *optimizer)
{
    ts_scope scope = ts_scope_open(me, "step");
    ts_tape_begin(me);
    ts_meta meta = { .shape = TS_SHAPE(4, 16), .dtype = TS_DTYPE_I64 };
    ts_tensor *ids = ts_from_function(token, NULL, ts_model_tokens(model), meta);
    ts_status status = ts_backward(ts_model_loss(model, ids, ids), NULL);
    ts_scope_close(scope);
    return status == TS_OK ? ts_optimizer_step(optimizer) : status;
}

/* Steps one after the other, until rank 1 is gone in the middle of one. */
static ts_status train(ts_rank *me)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .vocab = 64,
                               .hidden = 64,
                               .intermediate = 128,
                               .layers = 4,
                               .heads = 4,
                               .kv_heads = 4,
                               .head_dim = 16,
                               .positions = 16 };
    ts_model *model = ts_model_declare(ts_mesh_create(me, "fsdp=*"), &config, NULL);
    pthread_t killer;
    ts_model_fsdp(model, NULL);
    ts_model_materialize(model);
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(model), NULL);
    ts_status status = train_step(me, model, optimizer);
    if (ts_rank_index(me) == 1 && pthread_create(&killer, NULL, kill_soon, NULL) != 0)
        return TS_ERR_IO;
    while (status == TS_OK)
        status = train_step(me, model, optimizer);
    ts_optimizer_destroy(optimizer);
    ts_model_destroy(model);
    return ts_rank_status(me);
}

/* ---- dying in the middle of a sentence ------------------------------------------------------- */

static volatile sig_atomic_t torn; /* this process does not survive the next one */

static int print(char *out, size_t size, const char *format, va_list arguments)
{
    typedef int (*print_fn)(char *, size_t, const char *, va_list);
    union {
        void *found;
        print_fn call;
    } next = { .found = dlsym(RTLD_NEXT, "vsnprintf") };
    if (torn && strstr(format, " failed: ") != NULL) (void)kill(getpid(), SIGKILL);
    return next.call(out, size, format, arguments);
}

/* Instead of those of the C library, for all that the program loads; the second where it checks. */
TS_API int vsnprintf(char *out, size_t size, const char *format, va_list arguments)
{
    return print(out, size, format, arguments);
}

TS_API int __vsnprintf_chk(char *out, size_t size, int flag, size_t room, const char *format,
                           va_list arguments);
int __vsnprintf_chk(char *out, size_t size, int flag, size_t room, const char *format,
                    va_list arguments)
{
    (void)flag, (void)room;
    return print(out, size, format, arguments);
}

static bool is(const run *this, const char *mode)
{
    return strcmp(this->mode, mode) == 0;
}

/* What rank 1 does instead of the second all_reduce. */
static ts_status misbehave(ts_rank *me, const run *this)
{
    if (is(this, "mismatch")) return ts_group_barrier(ts_group_world(me), NULL);
    if (is(this, "kill")) return kill(getpid(), SIGKILL) == 0 ? TS_OK : TS_ERR_IO;
    if (is(this, "exit")) exit(3);
    if (is(this, "stall")) {
        sleep_ms(2 * TIMEOUT_MS);
        return reduce(me, "late");
    }
    torn = is(this, "torn");
    if (torn || is(this, "error") || is(this, "recover") || is(this, "tardy") || is(this, "lost") ||
        is(this, "worlds"))
        return ts_rank_fail(me, TS_ERR_IO, "the disk of rank 1 is full");
    return TS_OK; /* leave */
}

/* In memory that all address, for a signal that does not come. */
static ts_status miss_signal(ts_rank *me, const run *this)
{
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(me), 64, NULL);
    ts_status status = ts_rank_status(me);
    if (this->index == 1 && is(this, "silence")) (void)kill(getpid(), SIGKILL);
    if (this->index == 1 && is(this, "mute")) sleep_ms(3 * TIMEOUT_MS / 2);
    if (s != NULL && this->index == 2 && is(this, "mute")) {
        ts_comm_options options = TS_INIT(ts_comm_options);
        options.timeout_ms = TIMEOUT_MS / 4;
        status = ts_group_barrier(ts_group_create(me, (int64_t[]){ 0, 2 }, 2, NULL), &options);
    } else if (s != NULL && this->index != 1) {
        status = ts_symmetric_wait(s, 1, 0);
    } else if (is(this, "mute")) {
        status = reduce(me, "late");
    }
    ts_symmetric_release(s);
    return status;
}

static ts_status wait_beside(ts_rank *me)
{
    ts_symmetric_options options = TS_INIT(ts_symmetric_options);
    options.timeout_ms = 5 * TIMEOUT_MS;
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(me), 64, &options);
    int64_t index = ts_rank_index(me);
    if (index == 0) sleep_ms(100);
    if (index == 0) (void)ts_rank_fail(me, TS_ERR_IO, "the disk of rank 0 is full");
    (void)(index == 1 ? ts_symmetric_wait(s, 0, 0) : ts_group_barrier(ts_group_world(me), NULL));
    ts_status status = ts_rank_recover(me);
    ts_symmetric_release(s);
    return status == TS_OK ? reduce(me, "after") : status;
}

/* Who gives up waits for a rank that has done nothing wrong. */
static ts_status wait_in_a_chain(ts_rank *me, int64_t index)
{
    if (index == 1) sleep_ms(TIMEOUT_MS);
    if (index < 2) return ts_group_barrier(ts_group_world(me), NULL);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.timeout_ms = TIMEOUT_MS / 4;
    return ts_group_barrier(ts_group_create(me, (int64_t[]){ 0, 2 }, 2, NULL), &options);
}

static ts_status wait_in_a_circle(ts_rank *me, int64_t index)
{
    int64_t value = 0;
    ts_array array = TS_INIT(ts_array);
    array.data = &value;
    array.meta.dtype = TS_DTYPE_I64;
    return ts_group_recv(ts_group_world(me), &array, (index + 1) % ts_rank_count(me), NULL);
}

static ts_status ask_for(ts_rank *me, int64_t index)
{
    int64_t value = 0;
    ts_work *work = NULL;
    ts_array array = TS_INIT(ts_array);
    array.data = &value;
    array.meta.dtype = TS_DTYPE_I64;
    if (index == 1) sleep_ms(2 * TIMEOUT_MS);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.work = &work;
    (void)ts_group_broadcast(ts_group_world(me), &array, 1, &options);
    while (!ts_work_test(work))
        sleep_ms(1);
    return ts_work_wait(work);
}

/* COUNT numbers of rank 1 are on their way to all. */
static ts_work *begin_broadcast(ts_rank *me, void *data)
{
    ts_work *work = NULL;
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta.shape = TS_SHAPE(COUNT);
    array.meta.dtype = TS_DTYPE_F32;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.work = &work;
    (void)ts_group_broadcast(ts_group_world(me), &array, 1, &options);
    return work;
}

/* Nobody moves data of rank 1, which has no helpers, while it is away. */
static ts_status offer_and_idle(ts_rank *me, int64_t index)
{
    void *data = calloc(COUNT, sizeof(float));
    ts_work *work = begin_broadcast(me, data);
    if (index == 1) sleep_ms(2 * TIMEOUT_MS);
    ts_status status = ts_work_wait(work);
    free(data);
    return status;
}

/* The others have asked for data and are away, without helpers, when rank 1 begins to send it. */
static ts_status fail_and_unmap(ts_rank *me, int64_t index)
{
    enum { BYTES = COUNT * (int)sizeof(float), MOMENT_MS = 60 };
    void *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ts_work *work = begin_broadcast(me, data);
    if (index == 1) sleep_ms(2 * MOMENT_MS);
    for (int i = 0; i < MOMENT_MS; i++) {
        (void)ts_work_test(work);
        sleep_ms(1);
    }
    if (index == 1)
        (void)ts_rank_fail(me, TS_ERR_IO, "the disk of rank 1 is full");
    else
        sleep_ms(4 * MOMENT_MS);
    (void)ts_work_wait(work);
    (void)munmap(data, BYTES);
    (void)ts_group_barrier(ts_group_world(me), NULL);
    return ts_rank_recover(me) == TS_OK ? reduce(me, "after") : ts_rank_status(me);
}

/* What all have come to ends well for all of them, however soon one fails after its own end. */
static ts_status fail_behind(ts_rank *me, int64_t index)
{
    for (int round = 0; round < 200; round++) {
        int64_t sum = index, count = ts_rank_count(me);
        ts_array array = TS_INIT(ts_array);
        array.data = &sum;
        array.meta.dtype = TS_DTYPE_I64;
        ts_group *world = ts_group_world(me);
        ts_status status = ts_group_all_reduce(world, &array, &array, TS_REDUCE_SUM, NULL);
        if (status != TS_OK) return status;
        if (sum != count * (count - 1) / 2)
            return ts_rank_fail(me, TS_ERR_INTERNAL, "the sum is %lld", (long long)sum);
        if (index == 1)
            (void)ts_rank_fail(me, TS_ERR_IO, "the disk of rank 1 is full");
        else
            (void)ts_group_barrier(world, NULL);
        if (ts_rank_recover(me) != TS_OK) return ts_rank_status(me);
    }
    return TS_OK;
}

static ts_status die_by_halves(ts_rank *me)
{
    int64_t index = ts_rank_index(me), rest[2 * RANKS_MAX], count = ts_rank_count(me) - 1;
    for (int64_t i = 0; i < count; i++)
        rest[i] = i + 1;
    ts_status status = ts_group_barrier(ts_group_world(me), NULL);
    if (index == 0 || status != TS_OK) return status;
    ts_group *group = ts_group_create(me, rest, count, NULL);
    status = ts_group_barrier(group, NULL);
    sleep_ms(index == 1 ? 100 : 0);
    if (index == 1) (void)kill(getpid(), SIGKILL);
    return status == TS_OK ? ts_group_barrier(group, NULL) : status;
}

/* The others have left the world and know of nothing. */
static ts_status fail_late(ts_rank *me)
{
    sleep_ms(100);
    return ts_rank_fail(me, TS_ERR_IO, "the disk of rank 1 is full");
}

static ts_status act(ts_rank *me, const run *this)
{
    if (is(this, "half")) return die_by_halves(me);
    if (is(this, "aside")) return wait_beside(me);
    ts_status status = TS_OK;
    for (int i = 0; i < 5 && status == TS_OK; i++)
        status = reduce(me, "before");
    if (is(this, "move")) return move(me);
    if (is(this, "pipeline")) return pipeline(me);
    if (is(this, "train")) return train(me);
    if (is(this, "signal") || is(this, "silence") || is(this, "mute")) return miss_signal(me, this);
    if (is(this, "behind")) return fail_behind(me, this->index);
    if (is(this, "chain")) return wait_in_a_chain(me, this->index);
    if (is(this, "circle")) return wait_in_a_circle(me, this->index);
    if (is(this, "idle")) return offer_and_idle(me, this->index);
    if (is(this, "unmap")) return fail_and_unmap(me, this->index);
    if (is(this, "asks")) return ask_for(me, this->index);
    if (is(this, "late")) return this->index == 1 ? fail_late(me) : TS_OK;
    status = this->index == 1 ? misbehave(me, this) : reduce(me, "weights");
    if (is(this, "lost") && this->index == 1) return status;
    if (is(this, "tardy") && this->index == 1) sleep_ms(3 * TIMEOUT_MS / 2);
    if (!is(this, "recover") && !is(this, "lost") && !is(this, "tardy")) return status;
    if (this->index != 1 && status == TS_OK) return ts_rank_fail(me, TS_ERR_STATE, "no error came");
    if (ts_rank_recover(me) != TS_OK) return ts_rank_status(me);
    for (int i = 0; i < 5; i++)
        if (reduce(me, "after") != TS_OK) return ts_rank_status(me);
    return TS_OK;
}

static ts_status work(ts_rank *me, void *argument)
{
    run *this = argument;
    this->index = ts_rank_index(me);
    this->ranks = ts_rank_count(me);
    ts_status status = act(me, this);
    if (status == TS_ERR_PEER) this->culprit = ts_rank_error(me)->rank;
    return status;
}

static bool says(const char *text, const char *words)
{
    return words == NULL || strstr(text, words) != NULL;
}

/* As the launcher counts: there is no world yet. */
static int64_t process_index(void)
{
    const char *name = ts_launcher(), *text = name != NULL ? getenv(name) : NULL;
    return text != NULL ? strtoll(text, NULL, 10) : -1;
}

/* Who waits is told who failed first, where it is not both sides of a mismatch or
 * all that wait for each other. */
static bool is_named(const run *this)
{
    bool nobody_alone = is(this, "mismatch") || is(this, "circle");
    return this->culprit == (nobody_alone ? -1 : 1) || this->culprit == NOBODY;
}

/* The words a survivor must hear. */
static bool is_right(const run *this, ts_status status, const char *text)
{
    if (!is_named(this)) return false;
    if (is(this, "recover") || is(this, "behind") || is(this, "unmap") || is(this, "aside"))
        return status == TS_OK;
    if (is(this, "absent") || is(this, "delayed"))
        return status == TS_ERR_PEER && says(text, "waited 2000 ms in MPI_Init");
    if (is(this, "tardy"))
        return status == TS_ERR_LOST &&
               (this->index == 1 ||
                says(text, "recover: not all ranks came within 2000 ms: rank 1 was last in"));
    if (is(this, "lost"))
        return this->index == 1 ? status == TS_ERR_IO
                                : status == TS_ERR_LOST && says(text, "rank 1");
    if (is(this, "error") || is(this, "worlds") || is(this, "late"))
        return this->index == 1 ? status == TS_ERR_IO
                                : status == TS_ERR_PEER && says(text, "the disk of rank 1 is full");
    if (is(this, "pipeline"))
        return status == TS_ERR_PEER && says(text, "rank 1 is gone") && says(text, "stage ") &&
               says(text, ", micro-batch ");
    if (is(this, "move"))
        return status == TS_ERR_PEER && says(text, "rank 1 is gone") && says(text, "fault.c:");
    if (is(this, "signal"))
        return status == TS_ERR_PEER && says(text, "rank 1 has finished") &&
               says(text, "waits for it in ts_symmetric_wait 'symmetric memory', channel 0 (");
    if (is(this, "mute"))
        return status == TS_ERR_PEER &&
               says(text, this->ranks > 2
                              ? "rank 1 stalled: rank 2 waited 500 ms for rank 0, which "
                                "waits for it, in barrier"
                              : "rank 1 stalled: rank 0 waited 2000 ms for it in "
                                "ts_symmetric_wait 'symmetric memory', channel 0 (");
    if (is(this, "train") || is(this, "silence") || is(this, "torn") || is(this, "half"))
        return status == TS_ERR_PEER && says(text, "rank 1 is gone");
    if (is(this, "chain"))
        return status == TS_ERR_PEER && says(text, "rank 1 stalled: rank 2 waited 500 ms for rank "
                                                   "0, which waits for it, in barrier");
    if (is(this, "circle"))
        return status == TS_ERR_PEER && says(text, "wait for each other in a circle: rank ") &&
               says(text, "; rank 0 is in recv") + says(text, "; rank 1 is in recv") +
                       says(text, "; rank 2 is in recv") ==
                   2;
    if (is(this, "idle") || is(this, "asks"))
        return status == TS_ERR_PEER && says(text, "rank 1 stalled") && says(text, "broadcast");
    bool named = says(text, "rank 1") && says(text, "all_reduce") && says(text, "fault.c:");
    if (is(this, "mismatch")) named = named && says(text, "barrier") && says(text, "disagree");
    const char *shm = getenv("TESSERA_MPI_SHM");
    bool blind = shm != NULL && strcmp(shm, "0") == 0; /* only the silence of rank 1 is seen */
    if (is(this, "stall"))
        named = named && says(text, "stalled") && (blind || says(text, "before"));
    if (is(this, "kill")) named = named && says(text, blind ? "stalled" : "gone");
    return status == TS_ERR_PEER && named;
}

static bool run_mode(run *this)
{
    char text[2048] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "mpi";
    options.timeout_ms = timeout_ms();
    options.progress = is(this, "idle") || is(this, "unmap");
    options.threads_per_process = is(this, "half") || is(this, "aside") ? 2 : 1;
    ts_status status = ts_launch_with(&options, work, this, text, sizeof text);
    bool right = is_right(this, status, text);
    if (right)
        printf("fault %s: rank %lld ok\n", this->mode, (long long)this->index);
    else
        printf("fault %s: rank %lld got %s of rank %lld: %s\n", this->mode, (long long)this->index,
               ts_status_name(status), (long long)this->culprit, text);
    if (getenv("VERBOSE") != NULL) printf("%s\n", text);
    (void)fflush(stdout);
    return status == TS_OK;
}

int main(int argc, char **argv)
{
    run this = { .mode = argc > 1 ? argv[1] : "leave", .index = -1, .culprit = NOBODY };
    (void)alarm(timeout_ms() > TIMEOUT_MS ? 120 : 30);
    if (is(&this, "absent") || is(&this, "delayed")) {
        this.index = process_index();
        if (this.index == 1 && is(&this, "delayed")) (void)sleep(2 * TIMEOUT_MS / 1000 + 2);
        if (this.index == 1) return 0;
    }
    bool good = run_mode(&this);
    /* A launcher may end the others as soon as one has ended: let them speak first. */
    if (is(&this, "absent") || is(&this, "delayed")) (void)sleep(1);
    if (is(&this, "worlds")) {
        run next = { .mode = "recover", .index = -1, .culprit = NOBODY };
        good = run_mode(&next);
    }
    return good ? 0 : 1;
}
