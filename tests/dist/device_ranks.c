/* SPDX-License-Identifier: Apache-2.0 */
/* Several devices of one kind: ranks of a world that names the kind alone take them in turn, by
 * their place on the machine; "queue:1" is that one for all. Collectives of their memory are in the
 * order of queues: the host goes on while everything waits behind a gate, and a step waits for
 * nothing. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "device/device.h"
#include "device/queue.h"
#include "dist/step_util.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { RANKS = 4 };

static void add_second(void)
{
    static tsi_device second;
    second = *tsi_device_find("queue");
    second.name = "queue:1";
    second.ordinal = 1;
    if (tsi_device_add(&second) != TS_OK) abort();
}

/* Two that do not read each other's memory. */
static bool reaches_itself(const tsi_device *device, const tsi_device *other)
{
    return device == other;
}

static void add_apart(void)
{
    static tsi_device apart[2];
    for (int i = 0; i < 2; i++) {
        apart[i] = *tsi_device_find("queue");
        apart[i].name = i ? "apart:1" : "apart:0";
        apart[i].kind = "apart";
        apart[i].ordinal = i;
        apart[i].reach = reaches_itself;
        if (tsi_device_add(&apart[i]) != TS_OK) abort();
    }
}

typedef struct scene {
    const char *engine; /* that ran */
    int32_t ordinal[RANKS];
    double sum[RANKS];
} scene;

static ts_status play(ts_rank *me, void *argument)
{
    scene *s = argument;
    int64_t index = ts_rank_index(me);
    const tsi_rank_device *mine = tsi_rank_device_of(me);
    if (!mine) return ts_rank_status(me);
    s->ordinal[index] = mine->device->ordinal;
    if (index == 0) s->engine = ts_world_engine(ts_rank_world(me));
    ts_tensor *x = ts_ones(ts_mesh_create(me, "x=*"), TS_DTYPE_F32, TS_SHAPE(64, 8), "S(0)");
    (void)ts_tensor_item(ts_sum(x, NULL, 0, 0), &s->sum[index]);
    return ts_rank_status(me);
}

static void perform(test *t, scene *s, const char *engine, const char *device)
{
    char error[1024] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    *s = (scene){ NULL, { 0 }, { 0 } };
    options.engine = engine;
    options.device = device;
    options.rank_count = RANKS;
    ts_status status = ts_launch_with(&options, play, s, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s on %s: %s", engine, device, error);
    for (int i = 0; i < RANKS; i++)
        TEST_SAY(t, s->sum[i] == 512, "%s on %s: rank %d has %g", engine, device, i, s->sum[i]);
}

TS_TEST(device_ranks_take_devices_in_turn)
{
    static const char *const engines[] = { "threads", "nccl" };
    static scene s;
    add_second();
    setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 1);
    for (int e = 0; e < 2; e++) {
        perform(t, &s, engines[e], "queue");
        for (int i = 0; i < RANKS; i++)
            TEST_EQ(t, s.ordinal[i], i % 2);
        perform(t, &s, engines[e], "queue:1");
        for (int i = 0; i < RANKS; i++)
            TEST_EQ(t, s.ordinal[i], 1);
    }
}

/* NCCL comes between, with its library or by way of the host; on one of them nothing is needed. */
TS_TEST(device_ranks_that_do_not_reach_each_other)
{
    static scene s;
    add_apart();
    for (int stub = 0; stub < 2; stub++) {
        const char *library = stub ? TS_BINARY_DIR "/tests/modules/libnccl_stub.so" : "";
        setenv("TESSERA_NCCL", library, 1);
        perform(t, &s, "threads", "apart");
        TEST_TEXT(t, s.engine, "nccl");
        for (int i = 0; i < RANKS; i++)
            TEST_EQ(t, s.ordinal[i], i % 2);
        perform(t, &s, "threads", "apart:1");
        TEST_TEXT(t, s.engine, "threads");
    }
}

/* The second process of a machine begins where the first one ended. */
TS_TEST(device_ranks_of_a_process_follow_those_before)
{
    static scene s;
    add_second();
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.device = "queue";
    options.rank_count = 1;
    char error[1024] = "";
    ts_status status = ts_launch_with(&options, play, &s, error, sizeof error);
    unsetenv("OMPI_COMM_WORLD_RANK"); /* the tests after this one may run in this process */
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    TEST_SAY(t, status == TS_OK, "%s", error);
    TEST_EQ(t, s.ordinal[0], 1);
}

/* ---- the order of queues --------------------------------------------------------------------- */

enum { LARGE = 30000, FEW = 16, MOVES = 7 };

typedef struct gated {
    _Atomic int32_t open;
    int32_t width; /* elements of an array */
    int64_t waits[RANKS];
    ts_status status[RANKS];
    float got[RANKS][MOVES]; /* the last element of what each operation gave */
} gated;

/* A kernel that takes until the gate is open. */
static ts_status pass_gate(void *context)
{
    gated *g = context;
    while (!atomic_load(&g->open))
        (void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    return TS_OK;
}

typedef struct arrays {
    const tsi_rank_device *mine;
    ts_array in, out[MOVES];
} arrays;

static ts_array array_of(const tsi_device *device, int64_t count)
{
    ts_array a = { .struct_size = sizeof a,
                   .device = device->dlpack_type,
                   .meta = { .shape = TS_SHAPE(count), .dtype = TS_DTYPE_F32 } };
    if (device->buffer_alloc(device, (size_t)count * sizeof(float), &a.data) != TS_OK) abort();
    return a;
}

static int64_t count_of(const ts_array *a)
{
    return a->meta.shape.extent[0];
}

/* In the rank's queue. */
static void fill(const arrays *all, const ts_array *a, float value)
{
    tsi_block block = { .data = a->data,
                        .dtype = TS_DTYPE_F32,
                        .ndim = 1,
                        .extent = { count_of(a) },
                        .stride = { 1 } };
    if (all->mine->device->fill(all->mine->device, &block, &value, all->mine->queue) != TS_OK)
        abort();
}

static ts_status move_all(ts_rank *me, const arrays *all)
{
    ts_group *group = ts_group_world(me);
    int64_t n = ts_rank_count(me), index = ts_rank_index(me);
    ts_work *work[2] = { NULL };
    ts_group_all_reduce(group, &all->in, &all->out[0], TS_REDUCE_SUM, NULL);
    ts_group_all_gather(group, &all->in, &all->out[1], NULL);
    ts_group_reduce_scatter(group, &all->out[1], &all->out[2], TS_REDUCE_SUM, NULL);
    ts_group_all_to_all(group, &all->out[1], &all->out[3], NULL);
    ts_group_send(group, &all->in, (index + 1) % n, TS_OPTIONS(ts_comm_options, .work = &work[0]));
    ts_group_recv(group, &all->out[4], (index + n - 1) % n,
                  TS_OPTIONS(ts_comm_options, .work = &work[1]));
    ts_work_wait(work[0]);
    ts_work_wait(work[1]);
    ts_group_barrier(group, NULL);
    ts_group_broadcast(group, &all->out[5], 0, NULL);
    ts_group_all_reduce(group, &all->out[6], &all->out[6], TS_REDUCE_MAX, NULL); /* in place */
    return ts_rank_status(me);
}

static float last_of(const arrays *all, const ts_array *a)
{
    float value = 0;
    const char *at = (const char *)a->data + (size_t)(count_of(a) - 1) * sizeof value;
    (void)all->mine->device->copy_out(all->mine->device, &value, at, sizeof value, NULL);
    return value;
}

static void free_all(const arrays *all)
{
    const tsi_device *device = all->mine->device;
    for (int i = 0; i < MOVES; i++)
        device->buffer_free(device, all->out[i].data, (size_t)count_of(&all->out[i]) * 4);
    device->buffer_free(device, all->in.data, (size_t)count_of(&all->in) * 4);
}

/* Twice: communicators exist from the first time on. If a host waited for its queue the second
 * time, nobody would open the gate. */
static ts_status behind_a_gate(ts_rank *me, void *argument)
{
    gated *g = argument;
    int64_t index = ts_rank_index(me), n = ts_rank_count(me), width = g->width;
    arrays all = { .mine = tsi_rank_device_of(me) };
    const tsi_device *device = all.mine->device;
    const int64_t counts[MOVES] = { width, width * n, width, width * n, width, width, width };
    all.in = array_of(device, width);
    for (int i = 0; i < MOVES; i++)
        all.out[i] = array_of(device, counts[i]);
    fill(&all, &all.in, (float)(index + 1));
    ts_status status = move_all(me, &all);
    if (status == TS_OK) status = ts_rank_sync(me);
    int64_t before = all.mine->waits;
    if (status == TS_OK) {
        status = device->defer(device, all.mine->queue, pass_gate, g, NULL);
        fill(&all, &all.in, (float)(10 * (index + 1)));
        fill(&all, &all.out[5], (float)(7 + index));
        fill(&all, &all.out[6], (float)index);
    }
    if (status == TS_OK) status = move_all(me, &all);
    g->waits[index] = all.mine->waits - before;
    atomic_store(&g->open, 1); /* all were in the barrier, so all have come this far but for two */
    if (status == TS_OK) status = ts_rank_sync(me);
    for (int i = 0; i < MOVES; i++)
        g->got[index][i] = last_of(&all, &all.out[i]);
    free_all(&all);
    return g->status[index] = status;
}

static void check_gated(test *t, const char *engine, const gated *g, int n)
{
    for (int i = 0; i < n; i++) {
        float sum = (float)(10 * n * (n + 1) / 2), top = (float)(10 * n),
              mine = 10 * (float)(i + 1);
        float before = (float)(10 * ((i + n - 1) % n + 1));
        const float want[MOVES] = { sum, top, (float)n * mine, mine, before, 7, (float)(n - 1) };
        TEST_SAY(t, g->waits[i] == 0, "%s, %d ranks: the host of rank %d waited %d times", engine,
                 n, i, (int)g->waits[i]);
        for (int k = 0; k < MOVES; k++)
            TEST_SAY(t, g->got[i][k] == want[k], "%s, %d of %d ranks, %d elements, %d: %g, not %g",
                     engine, i, n, g->width, k, (double)g->got[i][k], (double)want[k]);
    }
}

TS_TEST(device_collectives_wait_in_queues)
{
    static const char *const engines[] = { "threads", "nccl" };
    static gated g;
    setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 1);
    for (int e = 0; e < 2; e++)
        for (int n = 2; n <= RANKS; n++)
            for (int wide = 0; wide < 2; wide++) {
                char error[1024] = "";
                ts_world_options options = TS_INIT(ts_world_options);
                g = (gated){ .width = wide ? LARGE : FEW };
                if (e == 1 && !wide)
                    g.width = 1000; /* smaller messages go through the host there */
                options.engine = engines[e];
                options.device = "queue";
                options.rank_count = n;
                options.timeout_ms = 20000;
                ts_status status = ts_launch_with(&options, behind_a_gate, &g, error, sizeof error);
                TEST_SAY(t, status == TS_OK, "%s, %d ranks: %s", engines[e], n, error);
                check_gated(t, engines[e], &g, n);
            }
}

/* ---- what an operation asks of a device ------------------------------------------------------ */

/* `queue` under another name, which counts. */
static struct {
    tsi_device device, base;
    atomic_int copies, lists, pieces, records, waits;
} counted;

static ts_status counted_copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                              tsi_stream *stream)
{
    atomic_fetch_add(&counted.copies, 1);
    return counted.base.copy(device, to, from, stream);
}

static ts_status counted_list(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                              int64_t count, tsi_stream *stream)
{
    atomic_fetch_add(&counted.lists, 1);
    atomic_fetch_add(&counted.pieces, (int)count);
    return counted.base.copy_list(device, to, from, count, stream);
}

static ts_status counted_record(const tsi_device *device, tsi_stream *stream,
                                tsi_device_event **out)
{
    atomic_fetch_add(&counted.records, 1);
    return counted.base.event_record(device, stream, out);
}

static ts_status counted_wait(const tsi_device *device, tsi_stream *stream, tsi_device_event *event)
{
    atomic_fetch_add(&counted.waits, 1);
    return counted.base.event_wait(device, stream, event);
}

static void add_counted(void)
{
    counted.base = *tsi_device_queue();
    counted.device = counted.base;
    counted.device.name = counted.device.kind = "counted";
    counted.device.copy = counted_copy;
    counted.device.copy_list = counted_list;
    counted.device.event_record = counted_record;
    counted.device.event_wait = counted_wait;
    if (tsi_device_add(&counted.device) != TS_OK) abort();
}

static ts_status exchange_rows(ts_rank *me, void *argument)
{
    int64_t width = *(const int64_t *)argument, n = ts_rank_count(me);
    arrays all = { .mine = tsi_rank_device_of(me) };
    all.in = array_of(all.mine->device, width * n);
    for (int i = 0; i < MOVES; i++)
        all.out[i] = array_of(all.mine->device, width * n);
    fill(&all, &all.in, (float)ts_rank_index(me));
    ts_status status = ts_group_all_to_all(ts_group_world(me), &all.in, &all.out[0], NULL);
    if (status == TS_OK) status = ts_rank_sync(me);
    bool right = last_of(&all, &all.out[0]) == (float)(n - 1);
    free_all(&all);
    return right ? status : TS_ERR_INTERNAL;
}

/* Whatever its size: one list, an event a rank and one for all, and a wait for each of them. */
TS_TEST(device_ranks_of_one_device_move_together)
{
    if (counted.device.name == NULL) add_counted();
    for (int64_t width = FEW; width <= LARGE; width += LARGE - FEW)
        for (int n = 2; n <= RANKS; n++) {
            char error[1024] = "";
            ts_world_options options = TS_INIT(ts_world_options);
            options.engine = "threads";
            options.device = "counted";
            options.rank_count = n;
            counted.copies = counted.lists = counted.pieces = counted.records = counted.waits = 0;
            ts_status status = ts_launch_with(&options, exchange_rows, &width, error, sizeof error);
            TEST_SAY(t, status == TS_OK, "%d ranks: %s", n, error);
            TEST_EQ(t, counted.copies, 0);
            TEST_EQ(t, counted.lists, 1);
            TEST_EQ(t, counted.pieces, n * n);
            TEST_EQ(t, counted.records, n + 1);
            TEST_EQ(t, counted.waits, 2 * n);
        }
}

/* Steps of several ranks: the same bits as on the cpu between engines, and no wait in any. */
TS_TEST(device_steps_of_ranks_wait_for_nothing)
{
    static const char *const engines[] = { "threads", "nccl" }, *const meshes[] = { "dp=2",
                                                                                    "tp=2" };
    setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 1);
    for (int m = 0; m < 2; m++) {
        walk_of cpu = { .t = t, .mesh = meshes[m], .count = 6, .poison_at = -1 };
        run_on(&cpu, "cpu", 2);
        for (int e = 0; e < 2; e++) {
            walk_of queue = { .t = t, .mesh = meshes[m], .count = 6, .poison_at = -1 };
            queue.engine = engines[e];
            run_on(&queue, "queue", 2);
            TEST_SAY(t, queue.waits == 0, "%s, %s: %d waits", engines[e], meshes[m],
                     (int)queue.waits);
            for (int i = 0; i + 1 < cpu.count; i++)
                TEST_SAY(t, memcmp(&cpu.loss[i], &queue.loss[i], sizeof cpu.loss[i]) == 0,
                         "%s, %s, step %d: %.17g and %.17g", engines[e], meshes[m], i, cpu.loss[i],
                         queue.loss[i]);
        }
    }
}
