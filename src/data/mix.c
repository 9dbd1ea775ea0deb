/* SPDX-License-Identifier: Apache-2.0 */
/* mix.c - rows of several loaders in turn, by weights.
 *
 * Weights become whole turns of a round of at most TURNS, spread evenly (the loader that is most
 * behind its share is next). Sample n is turn n % turns of round n / turns, and its number among
 * its loader's samples is in a table: a function of n, so there is nothing to store or resume, and
 * ranks need not agree on anything. */
#include "data/mix.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"

enum { TURNS = 1000 };

struct tsi_mix {
    ts_loader **loader;
    int64_t count, turns;
    int64_t *share;  /* [count]: turns of a round */
    int64_t *turn;   /* [turns]: whose it is */
    int64_t *before; /* [turns]: its earlier turns in the round */
};

void tsi_mix_destroy(tsi_mix *mix)
{
    if (mix == NULL) return;
    for (int64_t i = 0; i < mix->count; i++)
        ts_loader_close(mix->loader[i]);
    tsi_free(mix->loader);
    tsi_free(mix->share);
    tsi_free(mix->turn);
    tsi_free(mix->before);
    tsi_free(mix);
}

/* One turn more (1) or less (-1) for the one that it brings nearest to its share. */
static void move_turn(tsi_mix *mix, const double *weight, double sum, int64_t by)
{
    int64_t next = -1;
    double most = 0;
    for (int64_t i = 0; i < mix->count; i++) {
        double behind = (double)by * (weight[i] / sum * TURNS - (double)mix->share[i]);
        if (mix->share[i] + by < 1 || (next >= 0 && behind <= most)) continue;
        most = behind;
        next = i;
    }
    TSI_ASSERT(next >= 0); /* there are no more loaders than turns */
    mix->share[next] += by;
}

/* Whole turns of each, at least one; what rounding leaves goes to those furthest from theirs. */
static ts_status share_out(tsi_mix *mix, const double *weight)
{
    double sum = 0;
    int64_t left = TURNS, common = 0;
    for (int64_t i = 0; i < mix->count; i++) {
        if (!(weight[i] > 0) || !isfinite(weight[i]))
            return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: a weight is %g; it must be above 0",
                            weight[i]);
        sum += weight[i];
    }
    if (!isfinite(sum))
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: the weights add up to %g; take smaller ones",
                        sum);
    for (int64_t i = 0; i < mix->count; i++) {
        mix->share[i] = (int64_t)llround(weight[i] / sum * TURNS);
        if (mix->share[i] < 1) mix->share[i] = 1;
        left -= mix->share[i];
    }
    for (; left > 0; left--)
        move_turn(mix, weight, sum, 1);
    for (; left < 0; left++)
        move_turn(mix, weight, sum, -1);
    for (int64_t i = 0; i < mix->count; i++)
        common = tsi_gcd(mix->share[i], common);
    mix->turns = 0;
    for (int64_t i = 0; i < mix->count; i++)
        mix->turns += mix->share[i] /= common;
    return TS_OK;
}

/* Each turn goes to the one that is furthest behind its share. */
static void deal(tsi_mix *mix, int64_t *given)
{
    for (int64_t t = 0; t < mix->turns; t++) {
        int64_t next = 0, most = INT64_MIN;
        for (int64_t i = 0; i < mix->count; i++) {
            int64_t behind = mix->share[i] * (t + 1) - given[i] * mix->turns;
            if (behind <= most) continue;
            most = behind;
            next = i;
        }
        mix->turn[t] = next;
        mix->before[t] = given[next]++;
    }
}

static ts_status fill(tsi_mix *mix, ts_loader *const *loader, const double *weight, int64_t count)
{
    mix->share = tsi_calloc((size_t)count, sizeof *mix->share);
    mix->turn = tsi_calloc(TURNS, sizeof *mix->turn);
    mix->before = tsi_calloc(TURNS, sizeof *mix->before);
    int64_t *given = tsi_calloc((size_t)count, sizeof *given);
    ts_loader **own = tsi_calloc((size_t)count, sizeof(ts_loader *));
    ts_status status = TS_OK;
    if (!mix->share || !mix->turn || !mix->before || !given || !own)
        status = tsi_fail_memory("a mix of loaders", TURNS * 16);
    mix->count = count;
    if (status == TS_OK) status = share_out(mix, weight);
    if (status == TS_OK) {
        deal(mix, given);
        memcpy(own, loader, (size_t)count * sizeof(ts_loader *));
        mix->loader = own;
        own = NULL;
    }
    tsi_free(given);
    tsi_free(own);
    return status;
}

ts_status tsi_mix_create(ts_loader *const *loader, const double *weight, int64_t count,
                         tsi_mix **out)
{
    *out = NULL;
    if (count < 1 || count > TURNS)
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: %lld loaders; 1 to %d can be mixed",
                        (long long)count, TURNS);
    tsi_mix *mix = tsi_calloc(1, sizeof *mix);
    if (!mix) return tsi_fail_memory("a mix of loaders", sizeof *mix);
    ts_status status = fill(mix, loader, weight, count);
    if (status == TS_OK) {
        *out = mix;
        return TS_OK;
    }
    mix->count = 0; /* the loaders are the caller's still */
    tsi_mix_destroy(mix);
    return status;
}

ts_loader *tsi_mix_at(const tsi_mix *mix, int64_t sample, int64_t *own)
{
    int64_t turn = sample % mix->turns, which = mix->turn[turn];
    *own = sample / mix->turns * mix->share[which] + mix->before[turn];
    return mix->loader[which];
}

ts_loader *tsi_mix_loader(const tsi_mix *mix, int64_t index)
{
    return mix->loader[index];
}
