/* SPDX-License-Identifier: Apache-2.0 */
/* Several devices of one kind: ranks of a world that names the kind alone take them in turn, by
 * their place on the machine; "queue:1" is that one for all. */
#include <stdlib.h>

#include "device/device.h"
#include "device/queue.h"
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

typedef struct scene {
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
    ts_tensor *x = ts_ones(ts_mesh_create(me, "x=*"), TS_DTYPE_F32, TS_SHAPE(64, 8), "S(0)");
    (void)ts_tensor_item(ts_sum(x, NULL, 0, 0), &s->sum[index]);
    return ts_rank_status(me);
}

static void perform(test *t, scene *s, const char *engine, const char *device)
{
    char error[1024] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    *s = (scene){ { 0 }, { 0 } };
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
    TEST_SAY(t, status == TS_OK, "%s", error);
    TEST_EQ(t, s.ordinal[0], 1);
}
