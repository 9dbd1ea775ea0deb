/* SPDX-License-Identifier: Apache-2.0 */
/* Failures between ranks: every one ends on every rank, in words that name the ranks and the
 * operations. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "dist/comm_oracle.h"
#include "fault/stage.h"

static void perform(stage *s, int64_t ranks, scene_fn scene, int64_t timeout_ms)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = ranks;
    stage_perform(s, options, scene, timeout_ms);
}

static ts_array vector_of(void *data, ts_dtype dtype, int64_t count)
{
    return (ts_array){ .struct_size = sizeof(ts_array),
                       .data = data,
                       .meta = { .shape = TS_SHAPE(count), .dtype = (int32_t)dtype } };
}

static ts_status sum_of(ts_group *group, ts_dtype dtype, int64_t count,
                        const ts_comm_options *options)
{
    int64_t in[64] = { 0 }, out[64];
    ts_array from = vector_of(in, dtype, count), to = vector_of(out, dtype, count);
    return ts_group_all_reduce(group, &from, &to, TS_REDUCE_SUM, options);
}

/* ---- members that disagree ------------------------------------------------------------------- */

static ts_status other_operation(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    if (index == 1) return ts_group_barrier(group, TS_OPTIONS(ts_comm_options, .name = "wrong"));
    return sum_of(group, TS_DTYPE_F32, 4, TS_OPTIONS(ts_comm_options, .name = "right"));
}

static ts_status other_dtype(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    return sum_of(group, index == 2 ? TS_DTYPE_I32 : TS_DTYPE_F32, 4, NULL);
}

static ts_status other_count(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    return sum_of(group, TS_DTYPE_F64, index == 0 ? 3 : 4, NULL);
}

static ts_status other_root(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    int32_t value = 0;
    ts_array array = vector_of(&value, TS_DTYPE_I32, 1);
    return ts_group_broadcast(group, &array, index == 1 ? 2 : 0, NULL);
}

static ts_status other_reduction(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    int32_t in = 1, out;
    ts_array from = vector_of(&in, TS_DTYPE_I32, 1), to = vector_of(&out, TS_DTYPE_I32, 1);
    return ts_group_all_reduce(group, &from, &to, index == 1 ? TS_REDUCE_MAX : TS_REDUCE_MIN, NULL);
}

static ts_status other_rows(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    int32_t in[12] = { 0 }, out[12];
    const int64_t send[3] = { 1, 1, 1 }, more[3] = { 1, 2, 1 };
    ts_array from = vector_of(in, TS_DTYPE_I32, 3);
    ts_array to = vector_of(out, TS_DTYPE_I32, index == 2 ? 4 : 3);
    return ts_group_all_to_all(
        group, &from, &to,
        TS_OPTIONS(ts_comm_options, .send_rows = send, .recv_rows = index == 2 ? more : send));
}

static ts_status other_parts(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    int32_t in[8] = { 0 }, out[8];
    int64_t next = (index + 1) % 3, before = (index + 2) % 3;
    ts_part send = { .peer = next, .data = in, .ndim = 1, .extent = { 5 }, .stride = { 1 } };
    ts_part recv = {
        .peer = before, .data = out, .ndim = 1, .extent = { index == 0 ? 6 : 5 }, .stride = { 1 }
    };
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .dtype = TS_DTYPE_I32,
                             .send = &send,
                             .send_count = 1,
                             .recv = &recv,
                             .recv_count = 1 };
    return ts_group_exchange(group, &exchange, NULL);
}

static ts_status other_async(ts_rank *me, ts_group *group, int64_t index)
{
    ts_work *work = NULL;
    ts_status status =
        sum_of(group, TS_DTYPE_F32, index == 0 ? 2 : 3, TS_OPTIONS(ts_comm_options, .work = &work));
    ts_status waited = ts_work_wait(work);
    (void)me;
    return status != TS_OK ? status : waited;
}

/* All ranks end with TS_ERR_PEER at once, in the same words, which hold `words` and both sides. */
static void disagree(test *t, scene_fn scene, const char *words, const char *one, const char *other)
{
    static stage s;
    perform(&s, 3, scene, 10000);
    TEST_CHECK(t, s.verdict != TS_OK);
    for (int i = 0; i < 3; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text, words);
        TEST_SAYS(t, s.note[i].text, one);
        TEST_SAYS(t, s.note[i].text, other);
        TEST_SAYS(t, s.note[i].text, "comm_faults.c:");
        TEST_SAYS(t, s.note[i].text, "crew");
    }
}

TS_TEST(comm_mismatch_names_both_sides)
{
    disagree(t, other_operation, "different operations", "all_reduce(sum) 'right'",
             "rank 1 called barrier 'wrong'");
    disagree(t, other_dtype, "dtypes differ", "f32[4]",
             "rank 2 called all_reduce(sum) #1 on group crew (i32[4]");
    disagree(t, other_count, "counts differ", "f64[3]", "f64[4]");
    disagree(t, other_root, "roots differ", "root 0", "root 2");
    disagree(t, other_reduction, "reductions differ", "(min)", "(max)");
    disagree(t, other_rows, "sends 1 rows", "rank 2 expects 2", "rank 1");
    disagree(t, other_parts, "rank 2 sends 5 elements to rank 0", "expects 6", "exchange");
    disagree(t, other_async, "counts differ", "f32[2]", "f32[3]");
}

static ts_status wrong_message(ts_rank *me, ts_group *group, int64_t index)
{
    static float large[2][100000];
    ts_array array = vector_of(large[index], TS_DTYPE_F32, index == 0 ? 100000 : 99999);
    (void)me;
    return index == 0 ? ts_group_send(group, &array, 1, NULL)
                      : ts_group_recv(group, &array, 0, NULL);
}

TS_TEST(comm_mismatch_of_send_and_recv)
{
    static stage s;
    perform(&s, 2, wrong_message, 10000);
    for (int i = 0; i < 2; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text,
                  "rank 0 called send #1 to member 1 on group crew (f32[100000]");
        TEST_SAYS(t, s.note[i].text,
                  "rank 1 called recv #1 from member 0 on group crew (f32[99999]");
    }
}

/* ---- ranks that fail or leave ---------------------------------------------------------------- */

static ts_status fails_in_the_middle(ts_rank *me, ts_group *group, int64_t index)
{
    for (int step = 0; step < 10; step++) {
        if (index == 2 && step == 5)
            return ts_rank_fail(me, TS_ERR_IO, "shard %d could not be read", 17);
        ts_status status =
            sum_of(group, TS_DTYPE_F32, 4, TS_OPTIONS(ts_comm_options, .name = "loss"));
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

TS_TEST(comm_error_in_the_middle_reaches_all)
{
    static stage s;
    perform(&s, 4, fails_in_the_middle, 10000);
    TEST_STATUS(t, s.verdict, TS_ERR_IO);
    TEST_SAYS(t, s.error, "shard 17 could not be read");
    for (int i = 0; i < 4; i++) {
        if (i == 2) continue;
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text, "rank 2 failed (TS_ERR_IO): shard 17 could not be read");
        TEST_SAYS(t, s.note[i].text, "was in all_reduce(sum) 'loss' #6 on group crew");
        TEST_EQ(t, s.note[i].culprit, 2);
    }
}

static ts_status fails_and_lingers(ts_rank *me, ts_group *group, int64_t index)
{
    if (index != 0) return ts_group_barrier(group, NULL);
    (void)ts_rank_fail(me, TS_ERR_MEMORY, "no memory for a test");
    /* Peers are told at once, not when this rank returns. */
    struct timespec while_later = { .tv_sec = 0, .tv_nsec = 200000000 };
    nanosleep(&while_later, NULL);
    return ts_group_barrier(group, NULL);
}

TS_TEST(comm_peers_are_told_at_once)
{
    static stage s;
    perform(&s, 3, fails_and_lingers, 10000);
    TEST_STATUS(t, s.note[0].status, TS_ERR_MEMORY);
    TEST_STATUS(t, s.note[1].status, TS_ERR_PEER);
    TEST_SAYS(t, s.note[2].text, "rank 0 failed (TS_ERR_MEMORY): no memory for a test");
}

static ts_status returns_early(ts_rank *me, ts_group *group, int64_t index)
{
    (void)me;
    for (int step = 0; step < 3; step++) {
        if (index == 1 && step == 2) return TS_OK;
        ts_status status = ts_group_barrier(group, NULL);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

TS_TEST(comm_early_return_is_an_error_of_those_who_wait)
{
    static stage s;
    perform(&s, 4, returns_early, 10000);
    TEST_STATUS(t, s.verdict, TS_ERR_PEER);
    TEST_STATUS(t, s.note[1].status, TS_OK);
    for (int i = 0; i < 4; i++) {
        if (i == 1) continue;
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text, "rank 1 has finished");
        TEST_SAYS(t, s.note[i].text, "barrier #3 on group crew");
    }
}

/* Ranks that are not needed any more may go; the others carry on without them. */
static ts_status halves(ts_rank *me, ts_group *group, int64_t index)
{
    const int64_t first[2] = { 0, 1 };
    ts_group *half = ts_group_sub(group, first, 2, NULL);
    ts_status status = ts_group_barrier(group, NULL);
    for (int i = 0; i < 200 && status == TS_OK && index < 2; i++)
        status = ts_group_barrier(half, NULL);
    (void)me;
    return status;
}

TS_TEST(comm_who_is_not_needed_may_leave)
{
    static stage s;
    perform(&s, 4, halves, 10000);
    TEST_STATUS(t, s.verdict, TS_OK);
}

static ts_status sends_into_the_void(ts_rank *me, ts_group *group, int64_t index)
{
    static float large[50000];
    ts_array array = vector_of(large, TS_DTYPE_F32, 50000);
    (void)me;
    return index == 0 ? ts_group_send(group, &array, 1, NULL) : TS_OK;
}

TS_TEST(comm_send_to_a_rank_that_left)
{
    static stage s;
    perform(&s, 2, sends_into_the_void, 10000);
    TEST_STATUS(t, s.note[0].status, TS_ERR_PEER);
    TEST_SAYS(t, s.note[0].text,
              "rank 1 has finished, but rank 0 waits for it in send #1 to member 1");
}

/* A small message is delivered although its sender is gone by then. */
static ts_status leaves_a_packet(ts_rank *me, ts_group *group, int64_t index)
{
    int64_t value = 7 * (1 - index);
    ts_array array = vector_of(&value, TS_DTYPE_I64, 1);
    if (index == 0) return ts_group_send(group, &array, 1, NULL);
    struct timespec while_later = { .tv_sec = 0, .tv_nsec = 50000000 };
    nanosleep(&while_later, NULL);
    ts_status status = ts_group_recv(group, &array, 0, NULL);
    if (status == TS_OK && value != 7) return ts_rank_fail(me, TS_ERR_INTERNAL, "wrong value");
    return status;
}

TS_TEST(comm_small_send_outlives_its_sender)
{
    static stage s;
    perform(&s, 2, leaves_a_packet, 10000);
    TEST_STATUS(t, s.verdict, TS_OK);
}

/* Works in flight when a rank fails: nobody touches its stack afterwards (asan would tell). */
static ts_status fails_with_work_in_flight(ts_rank *me, ts_group *group, int64_t index)
{
    float *memory = calloc(200000, sizeof *memory);
    ts_array in = vector_of(memory, TS_DTYPE_F32, 100000);
    ts_array out = vector_of(memory + 100000, TS_DTYPE_F32, 100000);
    ts_work *work[6] = { NULL };
    ts_status status = TS_OK;
    for (int i = 0; i < 6 && status == TS_OK; i++) {
        if (index == 1 && i == 4)
            status = ts_rank_fail(me, TS_ERR_IO, "enough");
        else
            status = ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM,
                                         TS_OPTIONS(ts_comm_options, .work = &work[i]));
    }
    for (int i = 0; i < 6; i++) {
        ts_status waited = ts_work_wait(work[i]);
        if (status == TS_OK) status = waited;
    }
    free(memory);
    return status;
}

TS_TEST(comm_failure_with_work_in_flight)
{
    static stage s;
    for (int i = 0; i < 20; i++) {
        perform(&s, 4, fails_with_work_in_flight, 10000);
        TEST_STATUS(t, s.verdict, TS_ERR_IO);
        TEST_STATUS(t, s.note[0].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[3].text, "rank 1 failed (TS_ERR_IO): enough");
    }
}

/* ---- ranks that do not come ------------------------------------------------------------------ */

static ts_status stalls(ts_rank *me, ts_group *group, int64_t index)
{
    ts_status status = ts_group_barrier(group, TS_OPTIONS(ts_comm_options, .name = "start"));
    if (status != TS_OK) return status;
    if (index == 2) {
        struct timespec too_long = { .tv_sec = 0, .tv_nsec = 900000000 };
        nanosleep(&too_long, NULL);
    }
    (void)me;
    return sum_of(group, TS_DTYPE_F32, 4, TS_OPTIONS(ts_comm_options, .name = "step"));
}

TS_TEST(comm_stall_names_the_missing_rank)
{
    static stage s;
    perform(&s, 4, stalls, 300);
    TEST_STATUS(t, s.verdict, TS_ERR_PEER);
    for (int i = 0; i < 4; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text, "waited 300 ms in all_reduce(sum) 'step' #2 on group crew");
        TEST_SAYS(t, s.note[i].text, "for rank 2 (last: barrier 'start' #1");
        TEST_SAYS(t, s.note[i].text, "was in all_reduce(sum) 'step'");
    }
}

/* Rank 3 waits for 2, that for 1, which waits for rank 0; the last has the shortest patience. */
static ts_status stalls_far_away(ts_rank *me, ts_group *group, int64_t index)
{
    float value = 0;
    ts_array array = vector_of(&value, TS_DTYPE_F32, 1);
    struct timespec time = { .tv_nsec = 900000000 };
    if (index == 0) (void)nanosleep(&time, NULL);
    if (index == 0) return ts_group_barrier(group, NULL);
    if (index < 3) return ts_group_recv(group, &array, index - 1, NULL);
    ts_group *pair = ts_group_create(me, (int64_t[]){ 2, 3 }, 2, NULL);
    return ts_group_barrier(pair, TS_OPTIONS(ts_comm_options, .timeout_ms = 300));
}

/* Every rank says both. */
static void all_blame(test *t, const stage *s, int ranks, int64_t culprit, const char *first,
                      const char *second)
{
    for (int i = 0; i < ranks; i++) {
        TEST_STATUS(t, s->note[i].status, TS_ERR_PEER);
        TEST_EQ(t, s->note[i].culprit, culprit);
        TEST_SAYS(t, s->note[i].text, first);
        TEST_SAYS(t, s->note[i].text, second);
    }
}

TS_TEST(comm_stall_names_the_rank_that_waits_for_nobody)
{
    static stage s;
    perform(&s, 4, stalls_far_away, 5000);
    all_blame(t, &s, 4, 0, "rank 0 (last: nothing yet) keeps rank 2 waiting",
              "rank 3 waited 300 ms in barrier #1 on group ranks 2 3");
}

/* Each of the first three waits for a message of the next one, and the others for one of rank 0. */
static ts_status waits_in_a_circle(ts_rank *me, ts_group *group, int64_t index)
{
    float value = 0;
    ts_array array = vector_of(&value, TS_DTYPE_F32, 1);
    int64_t last = ts_rank_count(me) > 2 ? 2 : 1, from = index < last ? index + 1 : 0;
    (void)ts_group_barrier(ts_group_world(me), NULL); /* so that all of them wait for as long */
    return ts_group_recv(group, &array, from, NULL);
}

/* The same, by collectives of pairs. */
static ts_status meets_in_a_circle(ts_rank *me, ts_group *group, int64_t index)
{
    const int64_t pair[3][2] = { { 0, 1 }, { 1, 2 }, { 2, 0 } };
    (void)group;
    ts_group *own = ts_group_create(me, pair[index], 2, NULL);
    (void)ts_group_barrier(ts_group_world(me), NULL);
    return ts_group_barrier(own, TS_OPTIONS(ts_comm_options, .timeout_ms = 300));
}

static void is_circle(test *t, int64_t ranks, scene_fn scene, const char *words)
{
    static stage s;
    perform(&s, ranks, scene, 300);
    for (int i = 0; i < ranks; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_EQ(t, s.note[i].culprit, -1);
        TEST_SAYS(t, s.note[i].text, words);
        TEST_SAYS(t, s.note[i].text, " wait for each other in a circle: rank ");
        TEST_CHECK(t, strstr(s.note[i].text, "keeps") == NULL);
    }
    for (int i = 0; i < (ranks < 3 ? ranks : 3); i++) {
        char name[40];
        (void)snprintf(name, sizeof name, "rank %d ", i);
        TEST_SAYS(t, s.note[0].text, name);
    }
}

/* No circle: it is to blame alone. */
static ts_status waits_for_itself(ts_rank *me, ts_group *group, int64_t index)
{
    float value = 0;
    ts_array array = vector_of(&value, TS_DTYPE_F32, 1);
    (void)me;
    return ts_group_recv(group, &array, index, NULL);
}

TS_TEST(comm_stall_of_a_rank_that_waits_for_itself)
{
    static stage s;
    perform(&s, 1, waits_for_itself, 100);
    TEST_STATUS(t, s.note[0].status, TS_ERR_PEER);
    TEST_EQ(t, s.note[0].culprit, 0);
    TEST_SAYS(t, s.note[0].text, "rank 0 waited 100 ms in recv #1 from member 0");
}

TS_TEST(comm_stall_in_a_circle)
{
    is_circle(t, 2, waits_in_a_circle, " waited 300 ms in recv #1 from member ");
    is_circle(t, 3, waits_in_a_circle, " (last: recv #1 (");
    is_circle(t, 5, waits_in_a_circle, " (last: recv #1 (");
    is_circle(t, 3, meets_in_a_circle, " waited 300 ms in barrier #1 on group ranks ");
}

/* ---- waits outside of collectives ------------------------------------------------------------ */

/* Rank 2 signals nobody. Rank 1 waits for it, and rank 0, which gives up first, for rank 1. */
static ts_status misses_a_signal(ts_rank *me, ts_group *group, int64_t index)
{
    ts_group *pair = ts_group_create(me, (int64_t[]){ 0, 1 }, 2, NULL);
    ts_symmetric *s = ts_symmetric_alloc(
        group, 64, TS_OPTIONS(ts_symmetric_options, .timeout_ms = index == 1 ? 5000 : 300));
    struct timespec time = { .tv_nsec = 900000000 };
    ts_status status = ts_rank_status(me);
    if (status == TS_OK && index == 0)
        status = ts_group_barrier(pair, TS_OPTIONS(ts_comm_options, .timeout_ms = 300));
    if (status == TS_OK && index == 1) status = ts_symmetric_wait(s, 2, 0);
    if (index == 2) (void)nanosleep(&time, NULL);
    if (index == 2) status = ts_group_barrier(group, NULL);
    ts_symmetric_release(s);
    return status;
}

/* Rank 0 waits for a signal of rank 1, that for a message of rank 0. */
static ts_status waits_both_ways(ts_rank *me, ts_group *group, int64_t index)
{
    float value = 0;
    ts_array array = vector_of(&value, TS_DTYPE_F32, 1);
    ts_symmetric *s = ts_symmetric_alloc(group, 64, NULL);
    ts_status status = ts_rank_status(me);
    if (status == TS_OK)
        status = index == 0 ? ts_symmetric_wait(s, 1, 0) : ts_group_recv(group, &array, 0, NULL);
    ts_symmetric_release(s);
    return status;
}

TS_TEST(comm_stall_of_a_signal)
{
    static stage s;
    perform(&s, 3, misses_a_signal, 20000);
    all_blame(t, &s, 3, 2, "rank 2 (last: all_gather 'symmetric memory' #3",
              " keeps rank 1 waiting: rank 0 waited 300 ms in barrier #1");
    is_circle(t, 2, waits_both_ways, "ranks ");
}

/* Rank 0 asks instead of waiting, for two operations, the second of a batch. */
static ts_status asks(ts_rank *me, ts_group *group, int64_t index)
{
    float value[4] = { 0 };
    ts_array array[2] = { vector_of(value, TS_DTYPE_F32, 1),
                          vector_of(value + 1, TS_DTYPE_F32, 1) };
    ts_work *work = NULL, *batch = NULL;
    if (index == 1) {
        struct timespec too_long = { .tv_nsec = 900000000 };
        (void)nanosleep(&too_long, NULL);
        return ts_group_barrier(group, NULL);
    }
    (void)ts_group_recv(group, &array[0], 1, TS_OPTIONS(ts_comm_options, .work = &work));
    (void)ts_group_batch_begin(me);
    (void)ts_group_recv(group, &array[1], 1, NULL);
    (void)ts_group_batch_end(me, TS_OPTIONS(ts_comm_options, .work = &batch));
    int64_t end = tsi_clock_ns() + INT64_C(5000000000);
    while (!ts_work_test(work) && tsi_clock_ns() < end) {
    }
    bool ended = ts_work_test(work) && ts_work_test(batch);
    if (!ended) (void)ts_rank_fail(me, TS_ERR_INTERNAL, "asked for ever");
    (void)ts_work_wait(batch);
    return ts_work_wait(work);
}

TS_TEST(comm_stall_ends_who_asks)
{
    static stage s;
    perform(&s, 2, asks, 300);
    for (int i = 0; i < 2; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text, "rank 0 waited 300 ms in recv #1 from member 1");
        TEST_SAYS(t, s.note[i].text, "for rank 1 (last: nothing yet)");
        TEST_EQ(t, s.note[i].culprit, 1);
    }
}

static ts_status never_receives(ts_rank *me, ts_group *group, int64_t index)
{
    static float large[50000];
    ts_array array = vector_of(large, TS_DTYPE_F32, 50000);
    struct timespec too_long = { .tv_sec = 0, .tv_nsec = 600000000 };
    if (index == 0) return ts_group_send(group, &array, 1, NULL);
    nanosleep(&too_long, NULL);
    (void)me;
    return ts_group_barrier(group, NULL);
}

TS_TEST(comm_stall_of_a_send)
{
    static stage s;
    perform(&s, 2, never_receives, 200);
    TEST_STATUS(t, s.note[0].status, TS_ERR_PEER);
    TEST_SAYS(t, s.note[0].text, "waited 200 ms in send #1 to member 1");
    TEST_SAYS(t, s.note[0].text, "for rank 1 (last: nothing yet)");
    TEST_STATUS(t, s.note[1].status, TS_ERR_PEER);
}

/* ---- recovering ------------------------------------------------------------------------------ */

static ts_status recovers(ts_rank *me, ts_group *group, int64_t index)
{
    for (int round = 0; round < 5; round++) {
        int64_t culprit = round % ts_rank_count(me), mine = index, sum = -1;
        ts_work *work = NULL;
        ts_array in = vector_of(&mine, TS_DTYPE_I64, 1), out = vector_of(&sum, TS_DTYPE_I64, 1);
        if (index == culprit)
            (void)ts_rank_fail(me, TS_ERR_IO, "round %d", round);
        else
            (void)ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM,
                                      TS_OPTIONS(ts_comm_options, .work = &work));
        ts_status status = ts_group_barrier(group, NULL);
        (void)ts_work_wait(work);
        if (status == TS_OK) return ts_rank_fail(me, TS_ERR_INTERNAL, "round %d went well", round);
        status = ts_rank_recover(me);
        if (status != TS_OK) return status;
        status = ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM, NULL);
        if (status != TS_OK) return status;
        int64_t count = ts_rank_count(me);
        if (sum != count * (count - 1) / 2)
            return ts_rank_fail(me, TS_ERR_INTERNAL, "wrong sum %lld", (long long)sum);
    }
    return TS_OK;
}

static void all_go_well(test *t, scene_fn scene)
{
    static stage s;
    for (int ranks = 1; ranks <= 8; ranks++) {
        perform(&s, ranks, scene, 10000);
        TEST_SAY(t, s.verdict == TS_OK, "%d ranks: %s", ranks, s.error);
    }
}

TS_TEST(comm_recover_begins_a_new_epoch)
{
    all_go_well(t, recovers);
}

/* What was complete in number ends well on every rank, however soon after its own end one fails. */
static ts_status fails_behind_an_operation(ts_rank *me, ts_group *group, int64_t index)
{
    enum { ROUNDS = 100, LARGE = 20000 };
    float *memory = calloc((size_t)2 * LARGE, sizeof *memory);
    ts_array in = vector_of(memory, TS_DTYPE_F32, LARGE);
    ts_array out = vector_of(memory + LARGE, TS_DTYPE_F32, LARGE);
    ts_status status = TS_OK;
    for (int round = 0; round < ROUNDS && status == TS_OK; round++) {
        status = round % 2 ? ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM, NULL)
                           : ts_group_barrier(group, NULL);
        if (index == round / 2 % ts_rank_count(me)) (void)ts_rank_fail(me, TS_ERR_IO, "enough");
        if (status != TS_OK) continue;
        (void)ts_group_barrier(group, NULL);
        status = ts_rank_recover(me);
    }
    free(memory);
    return status;
}

TS_TEST(comm_failure_behind_an_operation)
{
    all_go_well(t, fails_behind_an_operation);
}

static ts_status recovers_alone(ts_rank *me, ts_group *group, int64_t index)
{
    if (index == 1) return TS_OK;
    if (ts_group_barrier(group, NULL) == TS_OK) return TS_OK;
    return ts_rank_recover(me);
}

TS_TEST(comm_recover_without_everybody_is_lost)
{
    static stage s;
    perform(&s, 3, recovers_alone, 10000);
    TEST_STATUS(t, s.note[0].status, TS_ERR_LOST);
    TEST_STATUS(t, s.note[2].status, TS_ERR_LOST);
    TEST_SAYS(t, s.note[0].text, "rank 1 has left");
}

/* Rank 1 recovers when the others have given up. */
static _Atomic int32_t gave_up;
static char said[3][512];

static ts_status recovers_late(ts_rank *me, void *argument)
{
    struct timespec moment = { .tv_nsec = 2000000 };
    int64_t index = ts_rank_index(me);
    (void)ts_group_barrier(ts_group_world(me), NULL);
    (void)ts_rank_fail(me, TS_ERR_IO, "enough");
    while (index == 1 && atomic_load(&gave_up) < 2)
        (void)nanosleep(&moment, NULL);
    ts_status status = ts_rank_recover(me);
    (void)snprintf(said[index], sizeof said[index], "%s", ts_rank_error(me)->text);
    atomic_fetch_add(&gave_up, 1);
    (void)argument;
    return status;
}

TS_TEST(comm_recover_names_who_did_not_come)
{
    char error[1024];
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 3;
    options.timeout_ms = 500;
    atomic_store(&gave_up, 0);
    TEST_STATUS(t, ts_launch_with(&options, recovers_late, NULL, error, sizeof error), TS_ERR_LOST);
    for (int i = 0; i < 3; i++)
        TEST_SAYS(t, said[i], "not all ranks came within 500 ms, not rank 1 (last: barrier #1");
}

/* A handle from before keeps its status, and fails nobody after. */
static ts_status waits_after_recover(ts_rank *me, ts_group *group, int64_t index)
{
    int64_t mine = index, sum = -1;
    ts_work *work = NULL, *batch = NULL;
    ts_array in = vector_of(&mine, TS_DTYPE_I64, 1), out = vector_of(&sum, TS_DTYPE_I64, 1);
    if (index == 0) {
        (void)ts_rank_fail(me, TS_ERR_IO, "a file");
    } else {
        (void)ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM,
                                  TS_OPTIONS(ts_comm_options, .work = &work));
        (void)ts_group_batch_begin(me);
        (void)ts_group_barrier(group, NULL);
        (void)ts_group_batch_end(me, TS_OPTIONS(ts_comm_options, .work = &batch));
        (void)ts_group_batch_begin(me); /* left open: recover drops it */
        (void)ts_group_barrier(group, NULL);
    }
    ts_status status = ts_rank_recover(me);
    if (status != TS_OK) return status;
    if (work != NULL && ts_work_wait(work) != TS_ERR_PEER)
        return ts_rank_fail(me, TS_ERR_INTERNAL, "the old handle forgot its status");
    if (batch != NULL && ts_work_wait(batch) != TS_ERR_PEER)
        return ts_rank_fail(me, TS_ERR_INTERNAL, "the old batch forgot its status");
    return ts_group_barrier(group, NULL);
}

TS_TEST(comm_handles_outlive_recover)
{
    static stage s;
    for (int i = 0; i < 20; i++) {
        perform(&s, 3, waits_after_recover, 10000);
        TEST_SAY(t, s.verdict == TS_OK, "%s", s.error);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static atomic_int arrived;
static int64_t fail_at;

static ts_status uses_everything(ts_rank *me, ts_group *group, int64_t index)
{
    enum { COUNT = 40000 };
    int64_t rows[STAGE_RANKS_MAX], n = ts_rank_count(me), next = (index + 1) % n;
    float *in = calloc(5 * COUNT, 4), *out = calloc((size_t)(COUNT * n), 4);
    /* All are here: from now on the n-th allocation fails, whoever makes it. */
    if (atomic_fetch_add(&arrived, 1) + 1 == n) (void)tsi_alloc_fail_at(fail_at);
    while (atomic_load(&arrived) < n)
        ;
    for (int64_t i = 0; i < n; i++)
        rows[i] = COUNT;
    ts_array one = vector_of(in, TS_DTYPE_F32, COUNT),
             all = vector_of(out, TS_DTYPE_F32, COUNT * n);
    ts_array two = vector_of(in + COUNT, TS_DTYPE_F32, COUNT);
    ts_array three = vector_of(in + 2 * COUNT, TS_DTYPE_F32, COUNT);
    ts_array four = vector_of(in + 3 * COUNT, TS_DTYPE_F32, COUNT);
    float *five = in + 4 * COUNT;
    const int64_t pair[2] = { index - index % 2, index - index % 2 + 1 };
    ts_work *work[2] = { NULL, NULL };
    ts_group *sub = ts_group_create(me, pair, 2, TS_OPTIONS(ts_group_options, .name = "pair"));
    ts_part send = { .peer = next, .data = five, .ndim = 1, .extent = { 9 }, .stride = { 1 } };
    ts_part recv = {
        .peer = (index + n - 1) % n, .data = five + 9, .ndim = 1, .extent = { 9 }, .stride = { 1 }
    };
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .dtype = TS_DTYPE_F32,
                             .send = &send,
                             .send_count = 1,
                             .recv = &recv,
                             .recv_count = 1 };
    (void)ts_group_all_gather(group, &one, &all,
                              TS_OPTIONS(ts_comm_options, .work = &work[0], .recv_rows = rows));
    (void)ts_group_all_reduce(sub, &two, &two, TS_REDUCE_SUM,
                              TS_OPTIONS(ts_comm_options, .channel = 1, .work = &work[1]));
    (void)ts_group_exchange(group, &exchange, TS_OPTIONS(ts_comm_options, .channel = 2));
    (void)ts_group_batch_begin(me);
    (void)ts_group_send(group, &three, next, NULL);
    (void)ts_group_recv(group, &four, (index + n - 1) % n, NULL);
    (void)ts_group_batch_end(me, NULL);
    (void)ts_work_wait(work[1]);
    (void)ts_work_wait(work[0]);
    ts_group_release(sub);
    ts_status status = ts_rank_status(me);
    free(in);
    free(out);
    return status;
}

/* Whichever allocation fails, all ranks return; those that failed say memory, the others name them.
 */
TS_TEST(comm_allocation_failure_at_each_n)
{
    static stage s;
    int64_t live = tsi_alloc_live();
    int failed = 0;
    for (fail_at = 1;; fail_at++) {
        atomic_store(&arrived, 0);
        perform(&s, 4, uses_everything, 20000);
        int64_t made = tsi_alloc_fail_at(0);
        TEST_SAY(t, tsi_alloc_live() == live, "allocation %d of %d: %d blocks leaked", (int)fail_at,
                 (int)made, (int)(tsi_alloc_live() - live));
        if (s.verdict == TS_OK && made < fail_at) break;
        if (s.verdict == TS_OK) continue; /* one that may fail: a helper, a packet */
        failed++;
        TEST_STATUS(t, s.verdict, TS_ERR_MEMORY);
        for (int i = 0; i < 4; i++)
            TEST_CHECK(t, s.note[i].status == TS_ERR_MEMORY || s.note[i].status == TS_ERR_PEER ||
                              s.note[i].status == TS_OK);
        if (test_failed(t)) break;
    }
    TEST_SAY(t, failed >= 10, "only %d allocations made the collectives fail", failed);
}

/* ---- bad arguments --------------------------------------------------------------------------- */

static ts_status refuses(ts_rank *me, ts_group *group, int64_t index)
{
    (void)group;
    (void)index;
    return ts_rank_status(me);
}

typedef struct refusal {
    const char *what;
    ts_status status;
    const char *words;
} refusal;

/* Each bad call fails its rank; a new launch for each keeps them apart. */
static int which;
static const refusal refusals[] = {
    { "rank out of range", TS_ERR_ARG, "rank 7, 0 to 1 are possible" },
    { "negative rank", TS_ERR_ARG, "rank -1, 0 to 1 are possible" },
    { "duplicate rank", TS_ERR_ARG, "rank 1 is listed twice" },
    { "too many ranks", TS_ERR_ARG, "3 ranks, 1 to 2 are possible" },
    { "no ranks", TS_ERR_ARG, "0 ranks, 1 to 2 are possible" },
    { "root out of range", TS_ERR_ARG, "root 2 is not a member, the group has 0 to 1" },
    { "channel out of range", TS_ERR_ARG, "channel 4, 0 to 3 are possible" },
    { "negative timeout", TS_ERR_ARG, "timeout_ms is -5" },
    { "negative rows", TS_ERR_ARG, "recv_rows[0] is -1" },
    { "rows that do not fill", TS_ERR_SHAPE, "recv_rows sum to 3, dim 0 has 4 rows" },
    { "rows that are not mine", TS_ERR_SHAPE, "in has 2 rows, the share of member 0 is 3" },
    { "uneven without rows", TS_ERR_SHAPE, "2 members cannot share 5 rows evenly" },
    { "dtype of a reduction", TS_ERR_DTYPE, "min of c64" },
    { "dtypes that differ", TS_ERR_DTYPE, "in is f32, out is f64" },
    { "shapes that differ", TS_ERR_SHAPE, "dim 0 of in has 2 elements, of out 4" },
    { "no such reduction", TS_ERR_ARG, "there is no reduction number 77" },
    { "no such dtype", TS_ERR_DTYPE, "dtype number 99" },
    { "NULL group", TS_ERR_NULL, "barrier: the group is NULL" },
    { "NULL array", TS_ERR_NULL, "all_reduce: `out` is NULL" },
    { "NULL data", TS_ERR_ARG, "data is NULL" },
    { "peer of a part", TS_ERR_ARG, "peer 9 of recv part 0 is not a member" },
    { "combine without a part", TS_ERR_ARG, "recv part 0 combines, but no part is before it" },
    { "work inside a batch", TS_ERR_STATE, "inside a batch" },
    { "batch end without begin", TS_ERR_STATE, "none is open" },
    { "batch in a batch", TS_ERR_STATE, "one is open already" },
    { "options of another size", TS_ERR_ARG, "struct_size of the options is 8" },
};

static ts_status bad_group(ts_rank *me)
{
    static const int64_t lists[5][3] = { { 0, 7 }, { 0, -1 }, { 1, 1 }, { 0, 1, 2 }, { 0 } };
    static const int64_t counts[5] = { 2, 2, 2, 3, 0 };
    ts_group *group = ts_group_create(me, lists[which], counts[which], NULL);
    return group == NULL ? ts_rank_status(me) : TS_OK;
}

static ts_status bad_rows(ts_group *world, ts_array *two, ts_array *four)
{
    static const int64_t rows[3][2] = { { -1, 5 }, { 2, 1 }, { 3, 1 } };
    return ts_group_all_gather(world, two, four,
                               TS_OPTIONS(ts_comm_options, .recv_rows = rows[which - 8]));
}

static ts_status bad_array(ts_group *world, ts_array *two, ts_array *four)
{
    ts_array other = *two;
    other.meta.dtype = TS_DTYPE_C64;
    if (which == 12) return ts_group_all_reduce(world, &other, &other, TS_REDUCE_MIN, NULL);
    other.meta.dtype = TS_DTYPE_F64;
    if (which == 13) return ts_group_all_reduce(world, two, &other, TS_REDUCE_SUM, NULL);
    if (which == 14) return ts_group_all_reduce(world, two, four, TS_REDUCE_SUM, NULL);
    if (which == 15) return ts_group_all_reduce(world, two, two, (ts_reduce)77, NULL);
    other.meta.dtype = 99;
    if (which == 16) return ts_group_broadcast(world, &other, 0, NULL);
    if (which == 18) return ts_group_all_reduce(world, two, NULL, TS_REDUCE_SUM, NULL);
    other = *two;
    other.data = NULL;
    return ts_group_broadcast(world, &other, 0, NULL);
}

static ts_status bad_part(ts_group *world, void *data)
{
    ts_part part = { .peer = which == 20 ? 9 : 0,
                     .data = data,
                     .ndim = 1,
                     .extent = { 1 },
                     .stride = { 1 },
                     .combine = which == 21 };
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .dtype = TS_DTYPE_F32,
                             .reduce = TS_REDUCE_SUM,
                             .recv = &part,
                             .recv_count = 1 };
    return ts_group_exchange(world, &exchange, NULL);
}

static ts_status bad_batch(ts_rank *me, ts_group *world)
{
    ts_work *work = NULL;
    if (which == 23) return ts_group_batch_end(me, NULL);
    (void)ts_group_batch_begin(me);
    if (which == 24) return ts_group_batch_begin(me);
    return ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .work = &work));
}

static ts_status bad_call(ts_rank *me, ts_group *group, int64_t index)
{
    float data[8] = { 0 };
    ts_array two = vector_of(data, TS_DTYPE_F32, 2), four = vector_of(data + 2, TS_DTYPE_F32, 4);
    ts_array five = vector_of(data, TS_DTYPE_F32, 5);
    ts_group *world = ts_group_world(me);
    ts_comm_options small = { .struct_size = 8 };
    if (index == 1) return refuses(me, group, index);
    if (which < 5) return bad_group(me);
    if (which == 5) return ts_group_broadcast(world, &two, 2, NULL);
    if (which == 6) return ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .channel = 4));
    if (which == 7) return ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .timeout_ms = -5));
    if (which < 11) return bad_rows(world, &two, &four);
    if (which == 11) return ts_group_reduce_scatter(world, &five, &two, TS_REDUCE_SUM, NULL);
    if (which < 17 || which == 18 || which == 19) return bad_array(world, &two, &four);
    if (which == 17) return ts_group_barrier(NULL, NULL);
    if (which < 22) return bad_part(world, data);
    if (which < 25) return bad_batch(me, world);
    return ts_group_barrier(world, &small);
}

TS_TEST(comm_bad_arguments_are_named)
{
    static stage s;
    for (which = 0; which < (int)(sizeof refusals / sizeof refusals[0]); which++) {
        perform(&s, 2, bad_call, 10000);
        TEST_SAY(t, s.note[0].status == refusals[which].status, "%s: got %s (%s)",
                 refusals[which].what, ts_status_name(s.note[0].status), s.note[0].text);
        TEST_SAYS(t, s.note[0].text, refusals[which].words);
    }
}
