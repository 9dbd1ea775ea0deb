/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - `tessera bench WHAT`: a table of what can be measured. */
#include <string.h>

#include "bench.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} benches[] = {
    { "comm", "collectives against plain copies (and the raw MPI calls)", cli_bench_comm },
    { "redistribute", "tensors from layout to layout against plain copies (and the raw MPI calls)",
      cli_bench_redistribute },
    { "layout", "lookups of layouts, answers for a coordinate, random numbers", cli_bench_layout },
    { "plan", "planning: cold, cached, of 1,000,000 ranks; predictions", cli_bench_plan },
    { "dispatch", "operator calls of four elements against the arithmetic alone",
      cli_bench_dispatch },
    { "kernels", "operators on one rank against copies, OpenBLAS and matrix products",
      cli_bench_kernels },
    { "space", "convolutions and pools of images cut along their rows against as many rows alone",
      cli_bench_space },
    { "checkpoint", "saves and loads against plain writes, syncs and reads; hashes; planning",
      cli_bench_checkpoint },
    { "cuda", "one GPU: kernels against copies, products against cuBLASLt's best, attention",
      cli_bench_cuda },
    { "attention", "any mask, forward and backward, against products; cut sequences; memory",
      cli_bench_attention },
    { "pipeline", "steps of a pipeline against the makespan of its schedule", cli_bench_pipeline },
    { "train", "steps of a Llama against the rate of matrix products", cli_bench_train },
};
enum { BENCHES = sizeof benches / sizeof benches[0] };

static int print_help(FILE *out)
{
    fprintf(out, "usage: tessera bench WHAT [options]\n\n"
                 "Measures, against a floor or rival in the same run; --json for machines.\n\n");
    for (size_t i = 0; i < BENCHES; i++)
        fprintf(out, "  %-12s %s\n", benches[i].name, benches[i].summary);
    return 0;
}

int cli_bench(int argc, char **argv)
{
    const char *names[BENCHES];
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_help(stdout);
    for (size_t i = 0; i < BENCHES; i++) {
        names[i] = benches[i].name;
        if (strcmp(argv[1], "--list-commands") == 0) printf("%s\n", names[i]);
        if (strcmp(argv[1], names[i]) == 0) return benches[i].run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "--list-commands") == 0) return 0;
    const char *near = cli_nearest(argv[1], names, BENCHES);
    return cli_fail_usage("bench", "there is no bench \"%s\"%s%s%s", argv[1],
                          near ? "; did you mean " : "; see tessera bench --help", near ? near : "",
                          near ? "?" : "");
}
