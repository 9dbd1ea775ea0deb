/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - `tessera verify WHAT`: proofs by running: rules of operators, models, parallelisms. */
#include <string.h>

#include "layout.h"
#include "verify.h"

static void say(const char *line, void *context)
{
    (void)context;
    printf("%s\n", line);
}

static int verify_rules(int argc, char **argv)
{
    bool quick = false;
    int64_t seed = 1;
    const cli_option options[] = {
        CLI_FLAG("quick", &quick, "fewer samples of what is too much to enumerate"),
        CLI_INT("seed", &seed, 0, INT64_MAX, "of what is sampled"), CLI_END
    };
    const cli_usage usage = { "verify rules", "[OP...]",
                              "Proves every rule of the operators on 2 to 8 ranks, in one to three "
                              "axes, by brute force, and\n"
                              "looks for legal ones that are not offered.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    ts_world *world = layout_world("verify rules");
    if (world == NULL) return 1;
    ts_verify_options o = { .struct_size = sizeof o,
                            .op = (const char *const *)(argv + 1),
                            .op_count = argc - 1,
                            .quick = quick,
                            .seed = (uint64_t)seed,
                            .say = say };
    ts_verify_result r = { .struct_size = sizeof r };
    ts_status status = ts_verify_rules(world, &o, &r);
    ts_world_close(world);
    if (status == TS_ERR_ARG) return cli_fail_usage("verify rules", "%s", ts_last_error());
    if (status != TS_OK) return cli_fail("verify rules", "%s", ts_last_error());
    printf("seed %lld: %lld operators, %lld calls, %lld rules, %lld plans, %lld assignments: "
           "%lld false, %lld missed, %lld not offered for a reason\n",
           (long long)seed, (long long)r.operators, (long long)r.calls, (long long)r.rules,
           (long long)r.plans, (long long)r.assignments, (long long)r.false_count,
           (long long)r.missed_count, (long long)r.accepted_count);
    return r.false_count + r.missed_count > 0;
}

int verify_device(const char *command, const char *name)
{
    bool known = name == NULL || strcmp(name, "cpu") == 0 || strcmp(name, "queue") == 0 ||
                 strcmp(name, "cuda") == 0 || strncmp(name, "cuda:", 5) == 0 ||
                 strcmp(name, "auto") == 0;
    if (known) return -1;
    return cli_fail_usage(command, "--device: expected cpu, cuda, queue or auto, found \"%s\"",
                          name);
}

static const cli_subject subjects[] = {
    { "rules", "the rules of the operator table, by brute force", verify_rules },
    { "model", "a model against the numbers of another implementation", cli_verify_model },
    { "parallel", "every pair of parallelisms against one rank", cli_verify_parallel },
};

int cli_verify(int argc, char **argv)
{
    static const cli_subjects all = {
        "verify",
        "WHAT [options]",
        "Exit code 0 when all agrees, 1 when not; the last line is a summary.",
        "cannot verify",
        subjects,
        sizeof subjects / sizeof subjects[0],
        8
    };
    return cli_run_subject(&all, argc, argv);
}
