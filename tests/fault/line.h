/* SPDX-License-Identifier: Apache-2.0 */
/* line.h - a pipeline of one stage a rank, each a product behind the one before it, in which one
 * stage does something wrong. */
#ifndef TESTS_FAULT_LINE_H
#define TESTS_FAULT_LINE_H

#include "tessera/tessera.h"

enum { RANKS = 3, WIDTH = 4, BAD_STAGE = 1, BAD_MICRO = 2 };

#define LINE_STAGE(run)                                                                            \
    {                                                                                              \
        .struct_size = sizeof(ts_module_desc), .type = "stage", .input_count = 1,                  \
        .output_count = 1, .forward = (run)                                                        \
    }

static inline ts_tensor *line_loss(void *context, ts_rank *me, int64_t micro,
                                   ts_tensor *const *output, int32_t count)
{
    (void)context, (void)me, (void)micro, (void)count;
    return ts_sum(output[0], NULL, 0, 0);
}

/* Stage `at` is this rank's module; `give` gets the context. */
static inline ts_pipeline *line_open(ts_mesh *mesh, const ts_schedule *schedule, int64_t at,
                                     ts_module **module,
                                     ts_tensor *(*give)(void *, ts_rank *, int64_t, int32_t),
                                     void *context)
{
    static const ts_stage_input input[RANKS] = { { -1, 0 }, { 0, 0 }, { 1, 0 } };
    ts_stage stage[RANKS];
    for (int64_t g = 0; g < RANKS; g++)
        stage[g] = (ts_stage){ .module = g == at ? module : NULL,
                               .module_count = 1,
                               .input = &input[g],
                               .input_count = 1,
                               .output_count = 1 };
    return ts_pipeline_create(
        mesh, &(ts_stages){ .stage = stage, .count = RANKS }, schedule,
        TS_OPTIONS(ts_pipeline_options, .input = give, .loss = line_loss, .context = context));
}

#endif
