/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_cut.c - blocks of a model to stages, in order, so that the dearest stage is as cheap as
 * can be.
 *
 * Without costs, sizes differ by at most one and the first stages have more. With them, best[n][g]
 * is the least cost of the dearest of g stages for the first n blocks. */
#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

static void cut_evenly(int64_t blocks, int64_t stages, int64_t *out)
{
    for (int64_t g = 0; g < stages; g++)
        out[g] = blocks / stages + (g < blocks % stages);
}

static ts_status cut_by_cost(const double *cost, int64_t blocks, int64_t stages, int64_t *out)
{
    size_t size = (size_t)(blocks + 1) * (size_t)(stages + 1);
    double *best = tsi_alloc_array(size, sizeof *best);
    int64_t *from = tsi_calloc(size, sizeof *from), wide = stages + 1;
    if (!best || !from) {
        tsi_free(best);
        tsi_free(from);
        return tsi_fail_memory("a cut into stages", size * sizeof *best);
    }
    for (size_t i = 0; i < size; i++)
        best[i] = 1e300;
    best[0] = 0;
    for (int64_t g = 1; g <= stages; g++) {
        for (int64_t n = g; n <= blocks - (stages - g); n++) {
            double sum = 0;
            for (int64_t first = n - 1; first >= g - 1; first--) {
                sum += cost[first];
                double before = best[first * wide + g - 1], worst = sum > before ? sum : before;
                if (worst >= best[n * wide + g]) continue;
                best[n * wide + g] = worst;
                from[n * wide + g] = first;
            }
        }
    }
    for (int64_t g = stages, n = blocks; g > 0; g--) {
        out[g - 1] = n - from[n * wide + g];
        n = from[n * wide + g];
    }
    tsi_free(best);
    tsi_free(from);
    return TS_OK;
}

ts_status ts_stage_cut(const double *cost, int64_t blocks, int64_t stages, int64_t *out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "stages: out is NULL");
    if (stages < 1 || blocks < stages)
        return TSI_FAIL(TS_ERR_ARG,
                        "stages: %lld blocks cannot be cut into %lld stages: a stage "
                        "has at least one block",
                        (long long)blocks, (long long)stages);
    for (int64_t i = 0; cost && i < blocks; i++)
        if (!(cost[i] >= 0) || cost[i] > 1e18)
            return TSI_FAIL(TS_ERR_ARG, "stages: block %lld costs %g", (long long)i, cost[i]);
    if (cost) return cut_by_cost(cost, blocks, stages, out);
    cut_evenly(blocks, stages, out);
    return TS_OK;
}
