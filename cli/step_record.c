/* SPDX-License-Identifier: Apache-2.0 */
/* step_record.c - `tessera step record CONFIG`: what the ranks of a training run do in one step. */
#include <stdlib.h>

#include "step.h"

static int set_keys(ts_train_config *config, const char *path, const char *mesh,
                    const cli_list *keys)
{
    char text[512];
    if (ts_train_config_read(config, path) != TS_OK)
        return cli_fail_usage("step record", "%s", ts_last_error());
    for (size_t i = 0; i < keys->count; i++)
        if (ts_train_config_set(config, keys->item[i]) != TS_OK)
            return cli_fail_usage("step record", "--set: %s", ts_last_error());
    if (mesh == NULL) return -1;
    int64_t ranks;
    (void)snprintf(text, sizeof text, "parallel.mesh=%.400s", mesh);
    if (cli_mesh_ranks(mesh, &ranks) == TS_OK && ts_train_config_set(config, text) == TS_OK)
        return -1;
    return cli_fail_usage("step record", "--mesh: %s", ts_last_error());
}

static int write_program(const ts_train_config *config, const ts_train_program_options *how,
                         const char *path)
{
    ts_program *program = NULL;
    ts_program_summary s = { .struct_size = sizeof s };
    double began = cli_now();
    if (ts_train_program(config, how, &program) != TS_OK)
        return cli_fail("step record", "%s", ts_last_error());
    int code =
        ts_program_write(program, path) == TS_OK && ts_program_summarise(program, &s) == TS_OK
            ? 0
            : cli_fail("step record", "%s", ts_last_error());
    char time[32];
    if (code == 0)
        printf("%s: %lld ranks, %lld lists of %lld actions, recorded in %s\n", path,
               (long long)s.ranks, (long long)s.lists, (long long)s.actions,
               cli_seconds(time, sizeof time, cli_now() - began));
    ts_program_destroy(program);
    return code;
}

int step_record(int argc, char **argv)
{
    const char *out = "step.txt", *mesh = NULL;
    bool apart = false;
    int64_t flops = 100, bytes = 10;
    cli_list keys = { .count = 0 };
    const cli_option options[] = {
        CLI_TEXT("out", &out, "FILE", "where it is written (step.txt)"),
        CLI_TEXT("mesh", &mesh, "TEXT", "instead of parallel.mesh"),
        CLI_LIST("set", &keys, "KEY=VALUE", "instead of what the file says"),
        CLI_INT("gflops", &flops, 1, 1000000000, "of a rank, for the times of kernels (100)"),
        CLI_INT("gbytes", &bytes, 1, 1000000000, "of its memory, per second (10)"),
        CLI_FLAG("apart", &apart, "a list for every rank, also where they do the same"),
        CLI_END
    };
    const cli_usage usage = {
        "step record", "CONFIG.ini",
        "Writes down one training step of a configuration: what every rank computes, moves, waits\n"
        "for and keeps. It is run in a world without data: no data, weights or ranks are needed.",
        options,
        "  tessera step record examples/train/llama3-405b.ini --out step.txt\n"
        "  tessera step check step.txt\n"
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("step record", "needs one configuration");
    ts_train_program_options how = { .struct_size = sizeof how,
                                     .flops_per_second = 1e9 * (double)flops,
                                     .bytes_per_second = 1e9 * (double)bytes,
                                     .apart = apart };
    ts_train_config *config = NULL;
    if (ts_train_config_create(&config) != TS_OK)
        return cli_fail("step record", "%s", ts_last_error());
    code = set_keys(config, argv[1], mesh, &keys);
    if (code < 0) code = write_program(config, &how, out);
    ts_train_config_destroy(config);
    return code;
}
