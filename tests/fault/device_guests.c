/* SPDX-License-Identifier: Apache-2.0 */
/* Failures while a rank that waits computes for another one: the wait ends as any wait does. */
#include "device/guests.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "fault/stage.h"
#include "harness/test.h"

enum { PIECES = 1 << 20, PATIENCE_MS = 20000 };

/* Rank 0 computes until the rank that visits it, and waits meanwhile, has ended: in_time. */
static _Atomic int32_t visited, ended, in_time;

static void run_errand(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const int64_t *deadline = context;
    (void)begin, (void)end;
    if (worker == TSI_GUEST) atomic_store(&visited, 1);
    int64_t until = tsi_clock_ns() + 50000; /* a piece is short for guests */
    while (!atomic_load(&ended) && tsi_clock_ns() < *deadline &&
           (worker != TSI_GUEST || tsi_clock_ns() < until))
        TSI_CPU_RELAX();
}

static void compute(ts_rank *me)
{
    int64_t deadline = tsi_clock_after_ms(PATIENCE_MS);
    tsi_guests_loop(me, 0, PIECES, run_errand, &deadline);
    if (tsi_clock_ns() < deadline) atomic_store(&in_time, 1);
}

static void perform(stage *s, int64_t ranks, scene_fn scene, int64_t timeout_ms)
{
    ts_world_options options = TS_INIT(ts_world_options);
    (void)setenv("TESSERA_GUESTS", "on", 1);
    atomic_store(&visited, 0);
    atomic_store(&ended, 0);
    atomic_store(&in_time, 0);
    options.engine = "threads";
    options.device = "cpu";
    options.rank_count = ranks;
    stage_perform(s, options, scene, timeout_ms);
}

static ts_status waits(ts_group *group)
{
    ts_status status = ts_group_barrier(group, TS_OPTIONS(ts_comm_options, .name = "noon"));
    atomic_store(&ended, 1);
    return status;
}

/* ---- a peer that fails ----------------------------------------------------------------------- */

static ts_status fails_beside(ts_rank *me, ts_group *group, int64_t index)
{
    if (index == 0) compute(me);
    if (index < 2) return waits(group);
    int64_t deadline = tsi_clock_after_ms(PATIENCE_MS);
    while (!atomic_load(&visited) && tsi_clock_ns() < deadline)
        TSI_CPU_RELAX();
    return ts_rank_fail(me, TS_ERR_IO, "shard %d could not be read", 17);
}

TS_TEST(a_guest_hears_of_a_peer_that_fails)
{
    static stage s;
    perform(&s, 3, fails_beside, PATIENCE_MS);
    TEST_EQ(t, atomic_load(&visited), 1);
    for (int i = 0; i < 2; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_EQ(t, s.note[i].culprit, 2);
        TEST_SAYS(t, s.note[i].text, "shard 17 could not be read");
    }
    TEST_EQ(t, atomic_load(&in_time), 1);
}

/* ---- an owner that is too late --------------------------------------------------------------- */

static ts_status is_late(ts_rank *me, ts_group *group, int64_t index)
{
    if (index == 0) compute(me);
    return waits(group);
}

TS_TEST(a_guest_keeps_its_deadline)
{
    static stage s;
    perform(&s, 2, is_late, 300);
    TEST_EQ(t, atomic_load(&visited), 1);
    for (int i = 0; i < 2; i++) {
        TEST_STATUS(t, s.note[i].status, TS_ERR_PEER);
        TEST_SAYS(t, s.note[i].text, "waited 300 ms in barrier 'noon' #1 on group crew");
        TEST_SAYS(t, s.note[i].text, "for rank 0");
    }
    TEST_EQ(t, atomic_load(&in_time), 1);
}
