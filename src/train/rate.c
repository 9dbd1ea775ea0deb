/* SPDX-License-Identifier: Apache-2.0 */
/* rate.c - learning rates: warm-up, stable, decay.
 *
 *   step  0 .. w-1      w .. w+stable-1     then D steps (the last of them outside the run)
 *         (s + 1) / w   1                   floor + (1 - floor) * g(p),  0 < p <= 1
 *
 * The parts make up steps + 1, so that the last step of a run still learns. A factor is a function
 * of the step alone: nothing is kept between calls. */
#include <math.h>

#include "tessera/train.h"

static double shape(ts_decay decay, double p)
{
    switch (decay) {
    case TS_DECAY_COSINE:
        return 0.5 * (1.0 + cos(3.14159265358979323846 * p));
    case TS_DECAY_LINEAR:
        return 1.0 - p;
    case TS_DECAY_SQRT:
        return 1.0 - sqrt(p);
    case TS_DECAY_NONE:
        return 1.0;
    }
    return 1.0;
}

double ts_rate_factor(const ts_rate_schedule *schedule, int64_t step)
{
    if (!schedule || step < 0) return 0.0;
    int64_t total = schedule->steps, warmup = schedule->warmup, decay;
    if (warmup > total) warmup = total;
    if (schedule->decay_share < 0)
        decay = total - warmup;
    else
        decay = (int64_t)llround((double)total * schedule->decay_share);
    if (decay > total - warmup) decay = total - warmup;
    int64_t stable = total + 1 - warmup - decay;
    if (step < warmup) return (double)(step + 1) / (double)warmup;
    if (step < warmup + stable || schedule->decay == TS_DECAY_NONE || decay == 0) return 1.0;
    double p = (double)(step + 1 - warmup - stable) / (double)decay;
    if (p > 1.0) p = 1.0;
    return schedule->floor + (1.0 - schedule->floor) * shape((ts_decay)schedule->decay, p);
}
