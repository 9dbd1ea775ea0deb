/* SPDX-License-Identifier: Apache-2.0 */
/* op_experts_nodes.c - experts over several nodes: a row crosses to another node once, however many
 * of its experts are there. On the model engine, 8 nodes of 8, whose choices are those that stand
 * for data (grouped_route.h); and the ways themselves, walked by hand. */
#include "harness/test.h"
#include "op/matrix/grouped_route.h"
#include "tessera/tessera.h"

enum {
    NODE = 8,
    RANKS = 64,
    ROWS = 32,
    MANY = 512,
    CHOICES = 8,
    EXPERTS = 128,
    WIDTH = 256,
    INNER = 16
};

typedef struct counted {
    const char *algorithm;
    int64_t rows; /* of a rank */
    ts_modelled rank[RANKS];
} counted;

static ts_status run_layer(ts_rank *me, void *context)
{
    counted *c = context;
    ts_topology topology = TS_INIT(ts_topology);
    ts_status status = ts_topology_preset("8xh100", &topology);
    if (status == TS_OK) status = ts_topology_set(ts_rank_world(me), &topology);
    if (status != TS_OK) return status;
    ts_mesh *mesh = ts_mesh_create(me, "ep=*");
    ts_grouped_mlp_options options = TS_INIT(ts_grouped_mlp_options);
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(RANKS * c->rows, WIDTH), "S(0)");
    ts_tensor *which = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(RANKS * c->rows, CHOICES), "S(0)");
    options.weight = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(RANKS * c->rows, CHOICES), "S(0)");
    options.in = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(EXPERTS, 2, INNER, WIDTH), "S(0)");
    options.out = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(EXPERTS, WIDTH, INNER), "S(0)");
    options.algorithm = c->algorithm;
    ts_modelled *mine = &c->rank[ts_rank_index(me)], before = TS_INIT(ts_modelled);
    *mine = before;
    ts_rank_modelled(me, &before); /* what the mesh took */
    ts_tensor *y = ts_grouped_mlp(x, which, &options);
    if (y) ts_tensor_wait(y);
    ts_rank_modelled(me, mine);
    for (int i = 0; i < 2; i++)
        mine->bytes[i] -= before.bytes[i];
    return ts_rank_status(me);
}

static void run_all(test *t, counted *c, const char *algorithm, int64_t rows)
{
    int64_t ranks[RANKS];
    char error[512] = "";
    for (int64_t i = 0; i < RANKS; i++)
        ranks[i] = i;
    *c = (counted){ .algorithm = algorithm, .rows = rows };
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "model",
                                 .rank_count = RANKS,
                                 .model_ranks = ranks,
                                 .model_rank_count = RANKS,
                                 .model =
                                     "ranks_per_node=8, latency_us=1/8, bandwidth_gb_s=100/10" };
    ts_status status = ts_launch_with(&options, run_layer, c, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}

/* What rank `me` must receive from other nodes: choices and weights, rows and results. */
static int64_t between(int64_t me, bool once)
{
    int64_t bytes = 0, owned = EXPERTS / RANKS, row_bytes = 4 * WIDTH;
    for (int64_t home = 0; home < RANKS; home++)
        for (int64_t row = 0; row < ROWS; row++) {
            uint64_t ranks = 0, nodes = 0;
            if (home / NODE != me / NODE) bytes += 4 * CHOICES;
            for (int64_t k = 0; k < CHOICES; k++) {
                int64_t to = tsi_route_modelled(home, row, k, EXPERTS) / owned;
                if (to / NODE == home / NODE) continue;
                if (to == me) bytes += 4;
                ranks |= UINT64_C(1) << to;
                nodes |= UINT64_C(1) << to / NODE;
            }
            uint64_t there = ranks >> me / NODE * NODE & 0xff; /* holders in my node */
            int64_t place = 0, count = 0, mine = -1;
            for (int64_t i = 0; i < NODE; i++) {
                if (!(there >> i & 1)) continue;
                if (i == me % NODE) mine = place;
                place++;
            }
            for (uint64_t rest = once ? nodes : ranks; rest; rest &= rest - 1)
                count++;
            if (home == me) bytes += count * row_bytes;
            bool gets = once ? mine >= 0 && row % place == mine : mine >= 0;
            if (gets) bytes += row_bytes;
        }
    return bytes;
}

TS_TEST(rows_cross_to_a_node_once)
{
    static const char *const algorithms[] = { "rows", "nodes" };
    int64_t sum[2] = { 0, 0 };
    for (int i = 0; i < 2; i++) {
        counted c;
        run_all(t, &c, algorithms[i], ROWS);
        for (int64_t r = 0; r < RANKS; r++) {
            TEST_EQ(t, c.rank[r].bytes[1], between(r, i == 1));
            sum[i] += c.rank[r].bytes[1];
        }
    }
    TEST_SAY(t, sum[1] < sum[0], "%lld between nodes, %lld without them", (long long)sum[1],
             (long long)sum[0]);
}

/* Where there are nodes and rows enough to pay for two rounds, the cost model finds that. */
TS_TEST(nodes_are_chosen)
{
    counted by_cost, by_nodes;
    run_all(t, &by_cost, "auto", MANY);
    run_all(t, &by_nodes, "nodes", MANY);
    for (int64_t r = 0; r < RANKS; r++)
        TEST_EQ(t, by_cost.rank[r].bytes[1], by_nodes.rank[r].bytes[1]);
}
