/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - `tessera bench WHAT`: a table of what can be measured. */
#include "bench.h"

#include <stdlib.h>

static const cli_subject benches[] = {
    { "comm", "collectives against plain copies (and the raw MPI calls)", cli_bench_comm },
    { "redistribute", "tensors from layout to layout against plain copies (and the raw MPI calls)",
      cli_bench_redistribute },
    { "layout", "lookups of layouts, answers for a coordinate, random numbers", cli_bench_layout },
    { "plan", "planning: cold, cached, of 1,000,000 ranks; predictions", cli_bench_plan },
    { "dispatch", "operator calls of four elements against the arithmetic alone",
      cli_bench_dispatch },
    { "kernels", "operators on one rank against copies, OpenBLAS and matrix products",
      cli_bench_kernels },
    { "replay", "steps that are recorded and run again against the same steps as usual",
      cli_bench_replay },
    { "space", "convolutions and pools of images cut along their rows against as many rows alone",
      cli_bench_space },
    { "checkpoint", "saves and loads against plain writes, syncs and reads; hashes; planning",
      cli_bench_checkpoint },
    { "cuda", "one GPU: kernels against copies, products against cuBLASLt's best, attention",
      cli_bench_cuda },
    { "devices", "ranks that move memory of devices against a copy of the same bytes",
      cli_bench_devices },
    { "attention", "any mask, forward and backward, against products; cut sequences; memory",
      cli_bench_attention },
    { "experts", "a layer of experts against products, copies, a dense layer and PyTorch",
      cli_bench_experts },
    { "pipeline", "steps of a pipeline against the makespan of its schedule", cli_bench_pipeline },
    { "train", "steps of a Llama against the rate of matrix products", cli_bench_train },
};

ts_status bench_launch(int64_t threads, int64_t ranks,
                       ts_status (*work)(ts_rank *me, void *context), void *context, char *error,
                       size_t size)
{
    char each[32];
    (void)snprintf(each, sizeof each, "%lld",
                   (long long)(threads / ranks > 0 ? threads / ranks : 1));
    (void)setenv("TESSERA_THREADS", each, 1); /* before the world opens */
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = ranks };
    return ts_launch_with(&options, work, context, error, size);
}

int cli_bench(int argc, char **argv)
{
    static const cli_subjects all = {
        "bench",
        "WHAT [options]",
        "Measures, against a floor or rival in the same run; --json for machines.",
        "there is no bench",
        benches,
        sizeof benches / sizeof benches[0],
        12
    };
    return cli_run_subject(&all, argc, argv);
}
