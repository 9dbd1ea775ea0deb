/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.c - `tessera bench kernels`: operators on one rank beside what the machine can do;
 * the command, and what its lines share. The lines are in bench_kernels_memory.c,
 * bench_kernels_products.c and bench_kernels_data.c. */
#include "bench_kernels.h"

#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { NUMBERS = 1 << 24 };

/* ---- what the lines share -------------------------------------------------------------------- */

bool bench_kernels_turn(bench_kernels *self, const char *name)
{
    if (self->only != NULL && strstr(name, self->only) == NULL) return false;
    self->left += self->counting;
    return !self->counting;
}

ts_tensor *bench_kernels_numbers(const bench_kernels *self, int which, ts_dtype dtype,
                                 ts_shape shape)
{
    int64_t count = 1;
    for (int32_t i = 0; i < shape.ndim; i++)
        count *= shape.extent[i];
    ts_tensor *some = ts_slice(self->numbers[which], 0,
                               TS_OPTIONS(ts_slice_options, .end = count, .end_is_given = 1));
    some = ts_reshape(some, shape);
    return dtype == TS_DTYPE_F32 ? ts_clone(some) : ts_cast(some, dtype);
}

/* A line gets its part of the time that is left, and never more than a twentieth of all, so that
 * a few lines do not take as long as all of them. */
ts_status bench_kernels_measure(bench_kernels *self, int contenders,
                                ts_status (*run)(void *context, int who), void *context,
                                contest_times *times)
{
    double share = (self->end - cli_now()) / (double)(self->left > 0 ? self->left : 1);
    double most = (double)self->seconds / 20.0;
    self->left--;
    contest c = { .world = ts_group_world(self->me),
                  .contenders = contenders,
                  .seconds = share < most ? share : most,
                  .rest = self->rest,
                  .context = context,
                  .run = run };
    return contest_run(&c, times);
}

ts_status bench_kernels_drop(const bench_kernels *self, ts_tensor *result)
{
    if (result == NULL) return ts_rank_status(self->me);
    ts_status status = ts_tensor_wait(result);
    ts_tensor_drop(result);
    return status;
}

void bench_kernels_copy(const bench_kernels *self, double bytes)
{
    size_t half = (size_t)(bytes / 2); /* read once, written once */
    copy_team_copy(self->team, self->to, self->from,
                   half < self->copy_bytes ? half : self->copy_bytes);
}

/* ---- the command ----------------------------------------------------------------------------- */

static ts_status all_lines(bench_kernels *self)
{
    ts_status status = bench_kernels_memory(self);
    if (status == TS_OK) status = bench_kernels_products(self);
    return status == TS_OK ? bench_kernels_data(self) : status;
}

static ts_status work(ts_rank *me, void *argument)
{
    bench_kernels *self = argument;
    self->end = cli_now() + (double)self->seconds;
    self->me = me;
    self->mesh = ts_mesh_self(me);
    self->counting = true;
    ts_status status = all_lines(self);
    self->counting = false;
    if (status != TS_OK || self->left == 0) return status;
    for (int i = 0; i < 2; i++)
        self->numbers[i] = ts_randn(self->mesh, TS_DTYPE_F32, TS_SHAPE(NUMBERS), NULL);
    return all_lines(self);
}

static int run(bench_kernels *self)
{
    char error[1024];
    self->copy_bytes = (size_t)128 << 20;
    self->from = malloc(self->copy_bytes);
    self->to = malloc(self->copy_bytes);
    self->team = copy_team_start((int)self->threads);
    int code = 0;
    if (self->from == NULL || self->to == NULL || self->team == NULL) {
        code = cli_fail("bench kernels", "out of memory");
    } else {
        memset(self->from, 1, self->copy_bytes);
        memset(self->to, 2, self->copy_bytes);
        ts_status status = bench_launch(self->threads, 1, work, self, error, sizeof error);
        if (status != TS_OK)
            code = cli_fail("bench kernels", "%s", error);
        else if (self->lines.count == 0)
            code = cli_fail_usage("bench kernels", "--only: no line has \"%s\" in its name",
                                  self->only);
        else
            code = bench_lines_print(&self->lines, self->json);
    }
    copy_team_end(self->team);
    free(self->from);
    free(self->to);
    return code;
}

int cli_bench_kernels(int argc, char **argv)
{
    bench_kernels self = { .seconds = 40 };
    cli_machine machine;
    cli_machine_read(&machine);
    self.threads = machine.cores;
    const cli_option options[] = {
        CLI_INT("threads", &self.threads, 1, 1024, "threads of the rank (default: the cores)"),
        CLI_TEXT("only", &self.only, "TEXT", "lines whose name contains it"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend, about (default: 40)"),
        CLI_FLAG("json", &self.json, "one JSON object"), CLI_END
    };
    const cli_usage usage = {
        "bench kernels", "[options]",
        "Operators on one rank: memory-bound ones against plain copies, matrix products against\n"
        "OpenBLAS, bf16 against f32, attention and convolutions against matrix products, sorts\n"
        "against qsort, in the same run. GB/s are bytes read plus bytes written, of the operator\n"
        "and of the copy alike; beside them stand a loop that only reads, for reductions, and\n"
        "what exponentials alone allow, where an operator computes one for each element.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench kernels", "unexpected argument \"%s\"", argv[1]);
    return run(&self);
}
