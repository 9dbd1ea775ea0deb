/* SPDX-License-Identifier: Apache-2.0 */
/* The nccl engine over threads, with the stub of its library on the `queue` device: every fault
 * ends on every rank, within the deadline, in words that name the operation; and ranks that recover
 * go on. */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "device/device.h"
#include "fault/stage.h"
#include "harness/test.h"
#include "tessera/tessera.h"

/* A deadline that is to pass, and is long enough for all that comes before on a busy machine; one
 * that is not; what a member that is late sleeps. */
#define SOON_MS 1500
#define SOON "1500 ms"
enum { COUNT = 20000, LONG_MS = 60000, SLEEP_S = 4, LATE_S = 30 };

/* fault: what the stub does wrong ("stall 1 2"), or NULL. */
static void perform(stage *s, int64_t ranks, scene_fn scene, int64_t timeout_ms, const char *fault)
{
    setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 0);
    if (fault) setenv("TESSERA_STUB_FAULT", fault, 1);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "nccl";
    options.device = "queue";
    options.rank_count = ranks;
    stage_perform(s, options, scene, timeout_ms);
}

/* All ranks ended with the status, in time; the one named (and some other) says the words. */
static void check_all(test *t, const stage *s, int64_t ranks, const char *words)
{
    bool said = false;
    for (int64_t i = 0; i < ranks; i++) {
        TEST_SAY(t, s->note[i].status == TS_ERR_PEER, "rank %d: %s: %s", (int)i,
                 ts_status_name(s->note[i].status), s->note[i].text);
        said = said || strstr(s->note[i].text, words);
    }
    TEST_SAY(t, said, "nobody says \"%s\": %s", words, s->note[0].text);
    TEST_SAY(t, s->seconds < LATE_S, "it took %.1f s", s->seconds);
}

/* ---- arrays of a device ---------------------------------------------------------------------- */

typedef struct array {
    ts_array array;
    const tsi_device *device;
    size_t bytes;
} array;

static array array_make(ts_rank *me, int64_t count, float value)
{
    const tsi_rank_device *mine = tsi_rank_device_of(me);
    array a = { .device = mine->device, .bytes = (size_t)count * sizeof(float) };
    a.array = (ts_array){ .struct_size = sizeof(ts_array),
                          .device = mine->device->dlpack_type,
                          .meta = { .shape = TS_SHAPE(count), .dtype = TS_DTYPE_F32 } };
    if (a.device->buffer_alloc(a.device, a.bytes, &a.array.data) != TS_OK) abort();
    float *host = malloc(a.bytes);
    if (!host) abort();
    for (int64_t i = 0; i < count; i++)
        host[i] = value;
    (void)a.device->copy_in(a.device, a.array.data, host, a.bytes, NULL);
    free(host);
    return a;
}

static float array_last(const array *a)
{
    float value = 0;
    (void)tsi_rank_device_sync(tsi_rank_current()); /* copies without a queue are in no order */
    (void)a->device->copy_out(a->device, &value,
                              (const char *)a->array.data + a->bytes - sizeof value, sizeof value,
                              NULL);
    return value;
}

static void array_free(array *a)
{
    a->device->buffer_free(a->device, a->array.data, a->bytes);
}

/* all_reduce of `count` copies of `value`; the last element in *result. */
static ts_status sum_of(ts_rank *me, ts_group *group, int64_t count, float value, float *result)
{
    array a = array_make(me, count, value);
    ts_status status = ts_group_all_reduce(group, &a.array, &a.array, TS_REDUCE_SUM, NULL);
    if (status == TS_OK) status = ts_rank_sync(me); /* it may be in queues alone so far */
    if (result) *result = array_last(&a);
    array_free(&a);
    return status;
}

static ts_status three_sums(ts_rank *me, ts_group *group, int64_t index)
{
    (void)index;
    ts_status status = TS_OK;
    for (int i = 0; i < 3 && status == TS_OK; i++)
        status = sum_of(me, group, COUNT, 1, NULL);
    return status;
}

/* ---- members that disagree ------------------------------------------------------------------- */

static ts_status other_count(ts_rank *me, ts_group *group, int64_t index)
{
    if (sum_of(me, group, COUNT, 1, NULL) != TS_OK) return ts_rank_status(me);
    return sum_of(me, group, index == 1 ? COUNT + 1 : COUNT, 1, NULL);
}

static ts_status other_memory(ts_rank *me, ts_group *group, int64_t index)
{
    float host[4] = { 0 };
    ts_array here = { .struct_size = sizeof here,
                      .data = host,
                      .meta = { .shape = TS_SHAPE(4), .dtype = TS_DTYPE_F32 } };
    if (index == 1) return ts_group_all_reduce(group, &here, &here, TS_REDUCE_SUM, NULL);
    return sum_of(me, group, 4, 1, NULL);
}

static ts_status other_parts(ts_rank *me, ts_group *group, int64_t index)
{
    int64_t next = (index + 1) % 3, before = (index + 2) % 3;
    array a = array_make(me, 16, 1);
    ts_part send = {
        .peer = next, .data = a.array.data, .ndim = 1, .extent = { 5 }, .stride = { 1 }
    };
    ts_part recv = { .peer = before,
                     .data = (char *)a.array.data + 32,
                     .ndim = 1,
                     .extent = { index == 0 ? 6 : 5 },
                     .stride = { 1 } };
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .dtype = TS_DTYPE_F32,
                             .device = a.array.device,
                             .send = &send,
                             .send_count = 1,
                             .recv = &recv,
                             .recv_count = 1 };
    ts_status status = ts_group_exchange(group, &exchange, NULL);
    array_free(&a);
    return status;
}

TS_TEST(nccl_mismatch_names_both_sides)
{
    static stage s;
    perform(&s, 3, other_count, LONG_MS, NULL);
    check_all(t, &s, 3, "counts differ");
    TEST_SAYS(t, s.note[0].text, "rank 1");
    perform(&s, 3, other_memory, LONG_MS, NULL);
    check_all(t, &s, 3, "ranks disagree");
    perform(&s, 3, other_parts, LONG_MS, NULL);
    check_all(t, &s, 3, "rank 2 sends 5 elements to rank 0 in exchange, which expects 6");
}

/* ---- members that do not come ---------------------------------------------------------------- */

static ts_status early_return(ts_rank *me, ts_group *group, int64_t index)
{
    if (sum_of(me, group, COUNT, 1, NULL) != TS_OK) return ts_rank_status(me);
    return index == 1 ? TS_OK : sum_of(me, group, COUNT, 1, NULL);
}

static ts_status sleeps(ts_rank *me, ts_group *group, int64_t index)
{
    if (sum_of(me, group, COUNT, 1, NULL) != TS_OK) return ts_rank_status(me);
    if (index == 1) (void)nanosleep(&(struct timespec){ .tv_sec = SLEEP_S }, NULL);
    return sum_of(me, group, COUNT, 1, NULL);
}

TS_TEST(nccl_absent_members_are_named)
{
    static stage s;
    perform(&s, 3, early_return, LONG_MS, NULL);
    TEST_STATUS(t, s.note[0].status, TS_ERR_PEER);
    TEST_STATUS(t, s.note[1].status, TS_OK);
    TEST_SAYS(t, s.note[2].text, "rank 1");
    TEST_SAY(t, s.seconds < LATE_S, "it took %.1f s", s.seconds);
    perform(&s, 3, sleeps, SOON_MS, NULL);
    check_all(t, &s, 3, "rank 1");
}

/* ---- the library fails ----------------------------------------------------------------------- */

TS_TEST(nccl_async_error_reaches_all)
{
    static stage s;
    perform(&s, 3, three_sums, LONG_MS, "async 1 2");
    check_all(t, &s, 3, "NCCL: unhandled system error (stub)");
    TEST_SAYS(t, s.note[0].text, "rank 1 failed");
    TEST_SAYS(t, s.note[0].text, "all_reduce(sum)");
}

TS_TEST(nccl_stall_ends_by_the_deadline)
{
    static stage s;
    perform(&s, 3, three_sums, SOON_MS, "stall 1 2");
    check_all(t, &s, 3, "all members came, but NCCL did not finish within " SOON);
}

/* ---- nobody waits ---------------------------------------------------------------------------- */

/* The call returns before the library has failed; the host does something else meanwhile. */
static ts_status goes_on(ts_rank *me, ts_group *group)
{
    array a = array_make(me, COUNT, 1);
    ts_status status = ts_group_all_reduce(group, &a.array, &a.array, TS_REDUCE_SUM, NULL);
    if (status == TS_OK) (void)nanosleep(&(struct timespec){ .tv_sec = SLEEP_S }, NULL);
    array_free(&a);
    return status;
}

/* The second operation never ends, and the next call is one that asks no peer for anything. */
static ts_status told_at_the_next_call(ts_rank *me, ts_group *group, int64_t index)
{
    (void)index;
    if (sum_of(me, group, COUNT, 1, NULL) != TS_OK) return ts_rank_status(me);
    ts_status status = goes_on(me, group);
    if (status != TS_OK) return ts_rank_fail(me, TS_ERR_STATE, "the call waited");
    (void)ts_zeros(ts_mesh_create(me, "x=*"), TS_DTYPE_F32, TS_SHAPE(4), "R");
    return ts_rank_status(me);
}

static ts_status told_by_the_wait(ts_rank *me, ts_group *group, int64_t index)
{
    (void)index;
    if (sum_of(me, group, COUNT, 1, NULL) != TS_OK) return ts_rank_status(me);
    array a = array_make(me, COUNT, 1);
    ts_status status = ts_group_all_reduce(group, &a.array, &a.array, TS_REDUCE_SUM, NULL);
    if (status != TS_OK) return ts_rank_fail(me, TS_ERR_STATE, "the call waited");
    status = tsi_rank_device_sync(me); /* of the queue alone */
    array_free(&a);
    return status;
}

/* What a rank issued in other lanes behind the one that stalls is ended, too. */
static ts_status many_lanes(ts_rank *me, ts_group *group, int64_t index)
{
    array a[3];
    ts_status status = TS_OK;
    (void)index;
    for (int i = 0; i < 3; i++)
        a[i] = array_make(me, COUNT, 1);
    for (int i = 0; i < 6 && status == TS_OK; i++)
        status = ts_group_all_reduce(group, &a[i % 3].array, &a[i % 3].array, TS_REDUCE_SUM,
                                     TS_OPTIONS(ts_comm_options, .channel = i % 3));
    if (status == TS_OK) status = ts_rank_sync(me);
    for (int i = 0; i < 3; i++)
        array_free(&a[i]);
    return status;
}

TS_TEST(nccl_is_watched_while_the_host_goes_on)
{
    static stage s;
    static const scene_fn scenes[] = { told_at_the_next_call, told_by_the_wait, many_lanes };
    for (int i = 0; i < 3; i++) {
        char fault[16];
        (void)snprintf(fault, sizeof fault, "stall %d 3", i); /* the first had two rounds */
        perform(&s, 3, scenes[i], SOON_MS, fault);
        check_all(t, &s, 3, "all members came, but NCCL did not finish within " SOON);
        TEST_SAYS(t, s.note[i].text, "all_reduce(sum)");
    }
}

TS_TEST(nccl_joining_fails)
{
    static stage s;
    perform(&s, 3, three_sums, LONG_MS, "join 2");
    check_all(t, &s, 3, "NCCL: unhandled system error");
    perform(&s, 3, three_sums, SOON_MS, "hang 2");
    check_all(t, &s, 3, "NCCL did not make its communicator within " SOON);
}

TS_TEST(nccl_missing_library_is_named)
{
    static stage s;
    setenv("TESSERA_NCCL", "/nowhere/libnccl.so.2", 1);
    perform(&s, 2, three_sums, 1000, NULL);
    TEST_STATUS(t, s.verdict, TS_ERR_MISSING);
    TEST_SAYS(t, s.error, "/nowhere/libnccl.so.2 does not load");
    unsetenv("TESSERA_NCCL"); /* tests may share a process */
}

/* ---- going on -------------------------------------------------------------------------------- */

/* The stub's fault comes once. */
static ts_status recovers(ts_rank *me, ts_group *group, int64_t index)
{
    float sum = 0;
    ts_status status = three_sums(me, group, index);
    if (status == TS_OK) return ts_rank_fail(me, TS_ERR_STATE, "no error came");
    if (ts_rank_recover(me) != TS_OK) return ts_rank_status(me);
    for (int i = 0; i < 3; i++) {
        status = sum_of(me, group, COUNT, 2, &sum);
        if (status != TS_OK) return status;
        if (sum != 6) return ts_rank_fail(me, TS_ERR_STATE, "the sum is not 6");
    }
    return TS_OK;
}

TS_TEST(nccl_recover_makes_new_communicators)
{
    static stage s;
    static const char *const faults[] = { "async 1 2", "stall 1 2", "join 1" };
    for (size_t i = 0; i < 3; i++) {
        perform(&s, 3, recovers, SOON_MS, faults[i]);
        for (int r = 0; r < 3; r++)
            TEST_SAY(t, s.note[r].status == TS_OK, "%s, rank %d: %s", faults[i], r, s.note[r].text);
    }
}

/* Ranks issue operations of two channels, and messages, in opposite orders. */
static ts_status crossing(ts_rank *me, ts_group *group, int64_t index)
{
    array a[4];
    ts_work *work[4] = { NULL };
    for (int i = 0; i < 4; i++)
        a[i] = array_make(me, COUNT, (float)i);
    for (int i = 0; i < 2; i++) {
        int channel = (int)(index + i) % 2;
        ts_group_all_reduce(
            group, &a[channel].array, &a[channel].array, TS_REDUCE_SUM,
            TS_OPTIONS(ts_comm_options, .channel = channel, .work = &work[channel]));
    }
    ts_group_send(group, &a[2].array, 1 - index, TS_OPTIONS(ts_comm_options, .work = &work[2]));
    ts_group_recv(group, &a[3].array, 1 - index, TS_OPTIONS(ts_comm_options, .work = &work[3]));
    for (int i = 3; i >= 0; i--)
        ts_work_wait(work[i]);
    if (array_last(&a[1]) != 2 || array_last(&a[3]) != 2)
        ts_rank_fail(me, TS_ERR_STATE, "wrong values");
    for (int i = 0; i < 4; i++)
        array_free(&a[i]);
    return ts_rank_status(me);
}

TS_TEST(nccl_channels_and_messages_cross)
{
    static stage s;
    perform(&s, 2, crossing, LONG_MS, NULL);
    for (int r = 0; r < 2; r++)
        TEST_SAY(t, s.note[r].status == TS_OK, "rank %d: %s", r, s.note[r].text);
}

typedef void (*count_fn)(int32_t *made, int32_t *left);

/* What the stub counts; both 0 where no world has opened it. */
static void registrations(int32_t *made, int32_t *left)
{
    count_fn count = NULL;
    void *stub = dlopen(getenv("TESSERA_NCCL"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = stub ? dlsym(stub, "tessera_stub_registered") : NULL;
    memcpy(&count, &symbol, sizeof symbol);
    *made = *left = 0;
    if (count) count(made, left);
    if (stub) (void)dlclose(stub);
}

/* Each rank's staging memory, once a communicator; however that ends, nothing stays registered. */
TS_TEST(nccl_registers_its_staging_memory)
{
    static stage s;
    static const char *const faults[] = { NULL, "stall 1 3" };
    int32_t before, made, left;
    for (int i = 0; i < 2; i++) {
        setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 0);
        registrations(&before, &left);
        perform(&s, 3, three_sums, faults[i] ? SOON_MS : LONG_MS, faults[i]);
        registrations(&made, &left);
        TEST_EQ(t, made - before, 3);
        TEST_EQ(t, left, 0);
        TEST_STATUS(t, s.note[0].status, faults[i] ? TS_ERR_PEER : TS_OK);
    }
}

/* ((1 + 1e8) - 1e8) is 0 in the group's order, ((-1e8 + 1e8) + 1) is 1 in the stub's. */
static ts_status in_order(ts_rank *me, ts_group *group, int64_t index)
{
    static const float value[3] = { 1, 1e8f, -1e8f };
    const char *way = getenv("TESSERA_REDUCE");
    float sum = -1, want = way && strcmp(way, "native") == 0 ? 1 : 0;
    ts_status status = sum_of(me, group, COUNT, value[index], &sum);
    if (status == TS_OK && sum != want) return ts_rank_fail(me, TS_ERR_STATE, "another order");
    return status;
}

TS_TEST(nccl_reduces_in_the_groups_order_unless_told)
{
    static stage s;
    for (int native = 0; native < 2; native++) {
        if (native) setenv("TESSERA_REDUCE", "native", 1);
        perform(&s, 3, in_order, LONG_MS, NULL);
        for (int r = 0; r < 3; r++)
            TEST_SAY(t, s.note[r].status == TS_OK, "native %d, rank %d: %s", native, r,
                     s.note[r].text);
    }
}
