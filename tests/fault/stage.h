/* SPDX-License-Identifier: Apache-2.0 */
/* stage.h - scenes that ranks play, some of them wrongly.
 *
 * Every rank plays the scene in a group named "crew" that has all ranks, and notes how it ended for
 * him; the test looks at all notes afterwards. */
#ifndef TESTS_FAULT_STAGE_H
#define TESTS_FAULT_STAGE_H

#include <stdio.h>

#include "base/clock.h"
#include "tessera/tessera.h"

enum { STAGE_RANKS_MAX = 16 };

typedef ts_status (*scene_fn)(ts_rank *me, ts_group *group, int64_t index);

typedef struct note {
    ts_status status;
    int64_t culprit; /* the rank that the error names; -1: none */
    char text[1100];
} note;

typedef struct stage {
    scene_fn scene;
    int64_t timeout_ms; /* of the group */
    note note[STAGE_RANKS_MAX];
    ts_status verdict;
    char error[2048];
    double seconds;
} stage;

static inline ts_status stage_play(ts_rank *me, void *argument)
{
    stage *s = argument;
    int64_t index = ts_rank_index(me), ranks[STAGE_RANKS_MAX];
    for (int64_t i = 0; i < ts_rank_count(me); i++)
        ranks[i] = i;
    ts_group *group =
        ts_group_create(me, ranks, ts_rank_count(me),
                        TS_OPTIONS(ts_group_options, .name = "crew", .timeout_ms = s->timeout_ms));
    note *out = &s->note[index];
    out->status = s->scene(me, group, index);
    const ts_error *error = ts_rank_error(me);
    out->culprit = error ? error->rank : -1;
    (void)snprintf(out->text, sizeof out->text, "%s", error ? error->text : "");
    return out->status;
}

/* On the world of the options: engine, device and count of ranks. */
static inline void stage_perform(stage *s, ts_world_options options, scene_fn scene,
                                 int64_t timeout_ms)
{
    *s = (stage){ .scene = scene, .timeout_ms = timeout_ms };
    options.timeout_ms = 20000;
    int64_t begin = tsi_clock_ns();
    s->verdict = ts_launch_with(&options, stage_play, s, s->error, sizeof s->error);
    s->seconds = (double)(tsi_clock_ns() - begin) * 1e-9;
}

#endif
