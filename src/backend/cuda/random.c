/* SPDX-License-Identifier: Apache-2.0 */
/* random.c - random elements made on the device, by global index: the host's bits.
 *
 * Runs of a block that is cut along one dim are equal in length and step, so they are one launch;
 * others are one each. */
#include "backend/cuda/cuda.h"

#include "base/error.h"

/* How many runs from the first on have its length and the step of the first two. */
static int64_t regular(const tsi_random_run *run, int64_t count)
{
    if (count < 2) return count;
    int64_t local = run[1].local - run[0].local, global = run[1].global - run[0].global, n = 1;
    while (n < count && run[n].length == run[0].length &&
           run[n].local - run[n - 1].local == local && run[n].global - run[n - 1].global == global)
        n++;
    return n;
}

static ts_status fill_runs(tsi_stream *stream, const tsi_random_recipe *recipe, void *to,
                           const tsi_random_run *run, int64_t count)
{
    for (int64_t at = 0, n = 0; at < count; at += n) {
        n = regular(run + at, count - at);
        const tsi_random_run *first = run + at;
        tsi_cuda_random_args args = { .recipe = *recipe,
                                      .to = to,
                                      .runs = n,
                                      .length = first->length,
                                      .local = first->local,
                                      .global = first->global };
        if (n > 1) {
            args.local_step = first[1].local - first->local;
            args.global_step = first[1].global - first->global;
        }
        TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_random_fill, n * first->length, &args));
    }
    return TS_OK;
}

ts_status tsi_cuda_random(const tsi_device *device, const tsi_random_recipe *recipe,
                          const tsi_block *to, const tsi_random_run *run, int64_t run_count,
                          tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    bool side;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = fill_runs(stream, recipe, to->data, run, run_count);
    return tsi_cuda_end(cuda, stream, side, status);
}
