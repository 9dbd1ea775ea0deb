/* SPDX-License-Identifier: Apache-2.0 */
/* The model engine: bytes and messages by link class against closed forms, summed over all ranks as
 * representatives; the clock; a world of 100,000 ranks. */
#include <math.h>
#include <stdlib.h>

#include "comm/model/model_engine.h"
#include "harness/test.h"
#include "tessera/comm.h"
#include "tessera/event.h"

enum { RANKS = 6, NODE = 4 }; /* ranks 0-3 on one node, 4-5 on another */

typedef struct totals {
    test *t;
    ts_status (*call)(ts_rank *me, ts_group *world);
    ts_modelled rank[RANKS];
} totals;

static float memory[64];

static ts_array vector_of(int64_t count)
{
    ts_array array = { .struct_size = sizeof array, .data = memory };
    array.meta.dtype = TS_DTYPE_F32;
    array.meta.shape.ndim = 1;
    array.meta.shape.extent[0] = count;
    return array;
}

static ts_status work(ts_rank *me, void *arg)
{
    totals *all = arg;
    ts_modelled *mine = &all->rank[ts_rank_index(me)];
    ts_status status = all->call(me, ts_group_world(me));
    *mine = (ts_modelled)TS_INIT(ts_modelled);
    return status != TS_OK ? status : ts_rank_modelled(me, mine);
}

/* Runs the call on every rank as its own representative. */
static void run_all(test *t, totals *all, ts_status (*call)(ts_rank *me, ts_group *world))
{
    int64_t ranks[RANKS];
    char error[512];
    for (int64_t i = 0; i < RANKS; i++)
        ranks[i] = i;
    *all = (totals){ .t = t, .call = call };
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "model",
                                 .rank_count = RANKS,
                                 .model_ranks = ranks,
                                 .model_rank_count = RANKS,
                                 .model =
                                     "ranks_per_node=4, latency_us=1/8, bandwidth_gb_s=100/10" };
    ts_status status = ts_launch_with(&options, work, all, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}

static int64_t sum_bytes(const totals *all)
{
    int64_t sum = 0;
    for (int i = 0; i < RANKS; i++)
        sum += all->rank[i].bytes[0] + all->rank[i].bytes[1];
    return sum;
}

static ts_status call_all_reduce(ts_rank *me, ts_group *world)
{
    (void)me;
    ts_array array = vector_of(20); /* 20 = 4 4 3 3 3 3 */
    return ts_group_all_reduce(world, &array, &array, TS_REDUCE_SUM, NULL);
}

TS_TEST(model_all_reduce)
{
    totals all;
    run_all(t, &all, call_all_reduce);
    TEST_EQ(t, sum_bytes(&all), 2 * 80 * (RANKS - 1)); /* 2 b (n-1) */
    /* rank 0: its part (4) from each peer, and each peer's part; peers 1-3 in the node, 4-5 outside
     */
    TEST_EQ(t, all.rank[0].bytes[0], 4 * (4 * 3 + 4 + 3 + 3));
    TEST_EQ(t, all.rank[0].bytes[1], 4 * (4 * 2 + 3 + 3));
    TEST_EQ(t, all.rank[0].messages[0], 6);
    TEST_EQ(t, all.rank[0].messages[1], 4);
    TEST_EQ(t, all.rank[0].operations, 1);
    /* two phases: depth 2 for 3 peers and oneself in the node, depth 2 for 2 outside */
    double expected = 2 * (2 * 1e-6 + 2 * 8e-6) + 88.0 / 100e9 + 56.0 / 10e9;
    TEST_SAY(t, fabs(all.rank[0].seconds - expected) < 1e-12, "%g, expected %g",
             all.rank[0].seconds, expected);
}

static ts_status call_all_gather(ts_rank *me, ts_group *world)
{
    static const int64_t rows[RANKS] = { 3, 0, 1, 5, 2, 0 };
    ts_array in = vector_of(rows[ts_rank_index(me)]), out = vector_of(11);
    return ts_group_all_gather(world, &in, &out, TS_OPTIONS(ts_comm_options, .recv_rows = rows));
}

TS_TEST(model_all_gather_uneven)
{
    totals all;
    run_all(t, &all, call_all_gather);
    TEST_EQ(t, sum_bytes(&all), 4 * 11 * (RANKS - 1));
    TEST_EQ(t, all.rank[0].bytes[0], 4 * (0 + 1 + 5));
    TEST_EQ(t, all.rank[0].bytes[1], 4 * 2);
    TEST_EQ(t, all.rank[0].messages[0], 2); /* an empty block is no message */
    TEST_EQ(t, all.rank[0].messages[1], 1);
    TEST_EQ(t, all.rank[5].bytes[1], 4 * (3 + 0 + 1 + 5));
}

static ts_status call_rooted(ts_rank *me, ts_group *world)
{
    bool root = ts_rank_index(me) == 2;
    ts_array whole = vector_of(12), part = vector_of(2);
    ts_status status = ts_group_broadcast(world, &whole, 2, NULL);
    if (status == TS_OK) status = ts_group_scatter(world, root ? &whole : NULL, &part, 2, NULL);
    if (status == TS_OK) status = ts_group_gather(world, &part, root ? &whole : NULL, 2, NULL);
    return status;
}

TS_TEST(model_rooted)
{
    totals all;
    run_all(t, &all, call_rooted);
    TEST_EQ(t, sum_bytes(&all), 4 * (12 * 5 + 2 * 5 + 2 * 5));
    TEST_EQ(t, all.rank[2].bytes[0], 4 * 2 * 3);
    TEST_EQ(t, all.rank[2].bytes[1], 4 * 2 * 2);
    TEST_EQ(t, all.rank[5].bytes[0], 0);
    TEST_EQ(t, all.rank[5].bytes[1], 4 * 14);
    TEST_CHECK(t, all.rank[2].seconds > 0);
}

static ts_status call_exchange(ts_rank *me, ts_group *world)
{
    int64_t next = (ts_rank_index(me) + 1) % RANKS,
            before = (ts_rank_index(me) + RANKS - 1) % RANKS;
    ts_part send = {
        .peer = next, .data = memory, .ndim = 2, .extent = { 2, 3 }, .stride = { 8, 1 }
    };
    ts_part recv = send;
    recv.peer = before;
    recv.data = memory + 32;
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .dtype = TS_DTYPE_F32,
                             .send = &send,
                             .send_count = 1,
                             .recv = &recv,
                             .recv_count = 1 };
    return ts_group_exchange(world, &exchange, NULL);
}

TS_TEST(model_exchange_ring)
{
    totals all;
    run_all(t, &all, call_exchange);
    TEST_EQ(t, sum_bytes(&all), RANKS * 24);
    TEST_EQ(t, all.rank[0].bytes[1], 24); /* 5 -> 0 crosses nodes, as does 3 -> 4 */
    TEST_EQ(t, all.rank[4].bytes[1], 24);
    TEST_EQ(t, all.rank[1].bytes[0], 24);
    TEST_EQ(t, all.rank[1].messages[0], 1);
}

static ts_status large(ts_rank *me, void *arg)
{
    ts_modelled *out = arg;
    ts_group *world = ts_group_world(me);
    int64_t n = ts_rank_count(me);
    ts_array array = vector_of(1 << 28); /* a gigabyte that nobody has */
    ts_status status = ts_group_all_reduce(world, &array, &array, TS_REDUCE_SUM, NULL);
    ts_part *parts = calloc(2 * (size_t)n, sizeof *parts);
    for (int64_t i = 0; i < 2 * n; i++) {
        parts[i] =
            (ts_part){ .peer = i % n, .data = memory, .ndim = 1, .extent = { 4 }, .stride = { 1 } };
    }
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .dtype = TS_DTYPE_F32,
                             .send = parts,
                             .send_count = n,
                             .recv = parts + n,
                             .recv_count = n };
    if (status == TS_OK) status = ts_group_exchange(world, &exchange, NULL);
    free(parts);
    *out = (ts_modelled)TS_INIT(ts_modelled);
    return status != TS_OK ? status : ts_rank_modelled(me, out);
}

TS_TEST(model_hundred_thousand)
{
    char error[512];
    ts_modelled m;
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .engine = "model", .rank_count = 100000), large,
                       &m, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
    TEST_EQ(t, m.operations, 2);
    TEST_EQ(t, m.messages[0] + m.messages[1], 2 * 99999 + 99999);
    int64_t slice = (1 << 28) / 100000 + 1;
    TEST_EQ(t, m.bytes[0] + m.bytes[1], 4 * (slice * 99999 + (1 << 28) - slice) + 16 * 99999);
    TEST_EQ(t, m.bytes[0] > 0, 1);
}

static ts_status compute(ts_rank *me, void *arg)
{
    ts_modelled m = TS_INIT(ts_modelled);
    ts_status status = ts_rank_model_compute(me, 0.25);
    if (status == TS_OK) status = ts_rank_modelled(me, &m);
    *(double *)arg = m.seconds;
    return status;
}

TS_TEST(model_compute)
{
    double seconds = 0;
    TEST_OK(t, ts_launch_with(TS_OPTIONS(ts_world_options, .engine = "model", .rank_count = 9),
                              compute, &seconds, NULL, 0));
    TEST_CHECK(t, seconds == 0.25);
}

TS_TEST(model_machine_text)
{
    tsi_model_machine m;
    TEST_OK(t, tsi_model_machine_parse(NULL, &m));
    TEST_EQ(t, m.ranks_per_node, 8);
    TEST_OK(t, tsi_model_machine_parse("latency_us=3, bandwidth_gb_s=50/5", &m));
    TEST_CHECK(t, m.latency_s[0] == m.latency_s[1] && fabs(m.bandwidth[1] - 5e9) < 1);
    TEST_STATUS(t, tsi_model_machine_parse("ranks_per_nod=3", &m), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "did you mean \"ranks_per_node\"");
    TEST_STATUS(t, tsi_model_machine_parse("ranks_per_node=0", &m), TS_ERR_ARG);
    TEST_STATUS(t, tsi_model_machine_parse("latency_us=-1", &m), TS_ERR_ARG);
    TEST_STATUS(t, tsi_model_machine_parse("latency_us=1 overhead_us=1", &m), TS_ERR_ARG);
}
