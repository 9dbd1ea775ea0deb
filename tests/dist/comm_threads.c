/* SPDX-License-Identifier: Apache-2.0 */
/* What is particular to ranks as threads: a thousand of them, no helper threads, progress while
 * nobody waits, events, and the order of what is in flight. */
#include <time.h>

#include "array/image.h"
#include "base/compiler.h"
#include "base/rank.h"
#include "comm/comm.h"
#include "dist/comm_oracle.h"

static ts_status launch(int64_t ranks, int32_t progress, ts_work_fn work, void *argument,
                        char *error, size_t size)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = ranks;
    options.progress = progress;
    options.timeout_ms = 20000;
    return ts_launch_with(&options, work, argument, error, size);
}

static ts_array vector_of(void *data, ts_dtype dtype, int64_t count)
{
    return (ts_array){ .struct_size = sizeof(ts_array),
                       .data = data,
                       .meta = { .shape = TS_SHAPE(count), .dtype = (int32_t)dtype } };
}

/* ---- many ranks ------------------------------------------------------------------------------ */

static ts_status sum_of_all(ts_rank *me, void *argument)
{
    (void)argument;
    enum { COUNT = 100 };
    int64_t in[COUNT], out[COUNT], n = ts_rank_count(me);
    for (int64_t i = 0; i < COUNT; i++)
        in[i] = ts_rank_index(me) * i;
    ts_array from = vector_of(in, TS_DTYPE_I64, COUNT), to = vector_of(out, TS_DTYPE_I64, COUNT);
    for (int round = 0; round < 3; round++) {
        ts_status status = ts_group_all_reduce(ts_group_world(me), &from, &to, TS_REDUCE_SUM, NULL);
        if (status != TS_OK) return status;
        for (int64_t i = 0; i < COUNT; i++)
            if (out[i] != n * (n - 1) / 2 * i)
                return ts_rank_fail(me, TS_ERR_INTERNAL, "element %d is wrong", (int)i);
    }
    return TS_OK;
}

TS_TEST(comm_a_thousand_ranks)
{
    char error[1024] = "";
    ts_status status = launch(TSI_SANITIZED ? 64 : 1000, 0, sum_of_all, NULL, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}

/* ---- loans ----------------------------------------------------------------------------------- */

enum { LENDERS = 3, ROWS = 4 };
typedef struct lent_rows { /* what each rank lends: its storage and the place of its rows */
    tsi_array *array[LENDERS];
} lent_rows;

/* An element of this device's memory, whoever holds it. */
static int64_t element_at(ts_rank *me, const int64_t *at)
{
    tsi_block one = { .data = (void *)(uintptr_t)at, .dtype = TS_DTYPE_I64 };
    tsi_image image;
    int64_t value = -1;
    if (tsi_image_open(me, &one, TSI_IMAGE_READ, &image) != TS_OK) return -1;
    if (tsi_rank_device_sync(me) == TS_OK) value = *(const int64_t *)image.block.data;
    tsi_image_drop(&image);
    return value;
}

/* Rows of my array to every other rank: nothing is copied, and what I read outlives its owner's
 * handle. */
static ts_status read_in_place(ts_rank *me, void *argument)
{
    lent_rows *all = argument;
    int64_t mine = ts_rank_index(me), given = 0;
    ts_shape shape = TS_SHAPE(ROWS, 2);
    tsi_array *array = tsi_array_create(me, TS_DTYPE_I64, &shape);
    int64_t *data = array ? tsi_array_data(array) : NULL, first[2 * ROWS];
    for (int64_t i = 0; i < 2 * ROWS; i++)
        first[i] = 100 * mine + i;
    tsi_block from = tsi_array_block(array);
    from.data = first;
    TSI_TRY(tsi_array_write(me, array, &from));
    TSI_TRY(tsi_rank_device_sync(me)); /* others read it in queues of their own */
    ts_part send[LENDERS], recv[LENDERS], lent[LENDERS] = { { 0 } };
    for (int64_t p = 0; p < LENDERS; p++) {
        if (p == mine) continue;
        send[given] = (ts_part){ .peer = p, .data = data + 2, .ndim = 2 };
        send[given].extent[0] = ROWS - 1;
        send[given].extent[1] = send[given].stride[0] = 2;
        send[given].stride[1] = 1;
        recv[given] = send[given];
        recv[given++].data = NULL;
    }
    ts_exchange exchange = TS_INIT(ts_exchange);
    exchange.dtype = TS_DTYPE_I64;
    exchange.send = send;
    exchange.recv = recv;
    exchange.send_count = exchange.recv_count = given;
    tsi_storage *held[LENDERS] = { NULL }, *own[] = { array->storage };
    tsi_lending lending = { own, 1, lent, held };
    all->array[mine] = array;
    ts_status status = tsi_group_lends(ts_group_world(me)) ? TS_OK : TS_ERR_INTERNAL;
    if (status == TS_OK) status = tsi_group_lend(ts_group_world(me), &exchange, &lending, NULL);
    for (int64_t i = 0; i < given && status == TS_OK; i++) {
        const int64_t *there = lent[i].data, peer = recv[i].peer;
        if (there != (int64_t *)tsi_array_data(all->array[peer]) + 2 ||
            element_at(me, there + 1) != 100 * peer + 3)
            status = ts_rank_fail(me, TS_ERR_INTERNAL, "rows of %d are elsewhere", (int)peer);
        if (held[peer] != all->array[peer]->storage)
            status = ts_rank_fail(me, TS_ERR_INTERNAL, "rows of %d are not held", (int)peer);
    }
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    tsi_array_release(array); /* others may still hold its storage */
    for (int64_t i = 0; i < given && status == TS_OK; i++)
        if (element_at(me, lent[i].data) != 100 * recv[i].peer + 2)
            status = ts_rank_fail(me, TS_ERR_INTERNAL, "what is held has gone");
    tsi_lending_end(ts_group_world(me), &lending);
    return status;
}

TS_TEST(comm_reads_in_place)
{
    char error[1024] = "";
    lent_rows all = { { NULL } };
    ts_status status = launch(LENDERS, 0, read_in_place, &all, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}

/* ---- without helpers ------------------------------------------------------------------------- */

/* Two channels, a send and a recv in flight at once, waited for in an order that differs by rank.
 */
static ts_status crosswise(ts_rank *me, void *argument)
{
    (void)argument;
    enum { COUNT = 30000 };
    int64_t n = ts_rank_count(me), index = ts_rank_index(me);
    ts_group *world = ts_group_world(me);
    ts_status status = TS_OK;
    grid in[3], out[3];
    for (int k = 0; k < 3; k++) {
        in[k] = grid_make(TS_DTYPE_F32, COUNT, 1, false);
        out[k] = grid_make(TS_DTYPE_F32, COUNT, 1, false);
    }
    for (int round = 0; round < 20 && status == TS_OK; round++) {
        ts_work *work[4] = { NULL };
        for (int c = 0; c < 2; c++)
            if (status == TS_OK)
                status = ts_group_all_reduce(
                    world, &in[c].array, &out[c].array, TS_REDUCE_MAX,
                    TS_OPTIONS(ts_comm_options, .channel = c, .work = &work[c]));
        if (status == TS_OK)
            status = ts_group_send(world, &in[2].array, (index + 1) % n,
                                   TS_OPTIONS(ts_comm_options, .work = &work[2]));
        if (status == TS_OK)
            status = ts_group_recv(world, &out[2].array, (index + n - 1) % n,
                                   TS_OPTIONS(ts_comm_options, .work = &work[3]));
        for (int k = 0; k < 4; k++) {
            ts_status waited = ts_work_wait(work[(k + index + round) % 4]);
            if (status == TS_OK) status = waited;
        }
    }
    for (int k = 0; k < 3; k++) {
        grid_free(&in[k]);
        grid_free(&out[k]);
    }
    return status;
}

TS_TEST(comm_progress_inside_calls_only)
{
    static const int64_t counts[] = { 1, 2, 3, 4, 8 };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int32_t progress = 0; progress < 2; progress++) {
            char error[1024] = "";
            ts_status status = launch(counts[i], progress, crosswise, NULL, error, sizeof error);
            TEST_SAY(t, status == TS_OK, "%d ranks, progress %d: %s", (int)counts[i], progress,
                     error);
        }
}

/* ---- progress while nobody waits ------------------------------------------------------------- */

/* Ranks post and then only look at their memory: helpers must bring the result. */
static ts_status looks_only(ts_rank *me, void *argument)
{
    (void)argument;
    enum { COUNT = 100000 };
    int32_t *memory = calloc(2 * COUNT, sizeof *memory);
    memory[COUNT - 1] = 1;
    ts_array in = vector_of(memory, TS_DTYPE_I32, COUNT),
             out = vector_of(memory + COUNT, TS_DTYPE_I32, COUNT);
    ts_work *work = NULL;
    ts_status status = ts_group_all_reduce(ts_group_world(me), &in, &out, TS_REDUCE_SUM,
                                           TS_OPTIONS(ts_comm_options, .work = &work));
    struct timespec pause = { .tv_sec = 0, .tv_nsec = 1000000 };
    const tsi_ring *ring = me->ring;
    tsi_event event = { .end_ns = 0 };
    for (int i = 0; i < 15000 && status == TS_OK && event.end_ns == 0; i++) {
        nanosleep(&pause, NULL);
        (void)tsi_ring_read(ring, tsi_ring_last(ring), &event);
    }
    if (status == TS_OK && event.end_ns == 0)
        status = ts_rank_fail(me, TS_ERR_INTERNAL, "nothing happened while nobody waited");
    ts_status waited = ts_work_wait(work);
    if (status == TS_OK) status = waited;
    if (status == TS_OK && memory[2 * COUNT - 1] != (int32_t)ts_rank_count(me))
        status = ts_rank_fail(me, TS_ERR_INTERNAL, "wrong sum");
    free(memory);
    return status;
}

TS_TEST(comm_helpers_progress_what_nobody_waits_for)
{
    for (int64_t ranks = 2; ranks <= 4; ranks++) {
        char error[1024] = "";
        ts_status status = launch(ranks, 0, looks_only, NULL, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "%d ranks: %s", (int)ranks, error);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

TS_TEST_RANKS(comm_events_tell_what_moved, 3)
{
    float in[6] = { 0 }, out[18];
    ts_array from = vector_of(in, TS_DTYPE_F32, 6), to = vector_of(out, TS_DTYPE_F32, 18);
    TEST_OK(t,
            ts_group_all_gather(ts_group_world(t->me), &from, &to,
                                TS_OPTIONS(ts_comm_options, .name = "layers.3.wq", .channel = 2)));
    tsi_event event;
    TEST_CHECK(t, tsi_ring_read(t->me->ring, tsi_ring_last(t->me->ring), &event));
    TEST_EQ(t, event.kind, TSI_EVENT_COMM);
    TEST_TEXT(t, event.kind_name, "all_gather");
    TEST_TEXT(t, event.name, "layers.3.wq");
    TEST_SAYS(t, event.where, "comm_threads.c:");
    TEST_EQ(t, event.bytes, 2 * 6 * 4);
    TEST_EQ(t, event.queue, 3);
    TEST_EQ(t, event.sequence, 1);
    TEST_CHECK(t, event.end_ns >= event.begin_ns);
    char text[2000];
    tsi_comm_describe(ts_rank_world(t->me), text, sizeof text);
    if (strcmp(t->engine, "threads") == 0) TEST_SAYS(t, text, "rank 2: ");
}
