/* SPDX-License-Identifier: Apache-2.0 */
/* outside.c - a program of somebody else, built against an installed copy by install.sh beside it.
 * It opens a world of 3 thread ranks, or of the launcher's processes, sums their numbers,
 * and the process of rank 0 prints the sum. */
#include <stdio.h>

#include <tessera/tessera.h>

static ts_status work(ts_rank *me, void *arg)
{
    double mine = (double)ts_rank_index(me) + 1, sum = 0;
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = &mine;
    in.meta.dtype = TS_DTYPE_F64;
    out.data = &sum;
    out.meta.dtype = TS_DTYPE_F64;
    ts_group_all_reduce(ts_group_world(me), &in, &out, TS_REDUCE_SUM, NULL);
    if (ts_rank_index(me) == 0) *(double *)arg = sum;
    return ts_rank_status(me);
}

int main(void)
{
    double sum = 0;
    char error[256] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    if (!ts_launcher()) {
        options.engine = "threads";
        options.rank_count = 3;
    }
    ts_status status = ts_launch_with(&options, work, &sum, error, sizeof(error));
    if (status != TS_OK || sum > 0) printf("%s %g%s\n", ts_status_name(status), sum, error);
    return status == TS_OK ? 0 : 1;
}
