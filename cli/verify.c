/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - `tessera verify WHAT`: proofs by running. `rules` proves the operator table. */
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

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} subjects[] = {
    { "rules", "the rules of the operator table, by brute force", verify_rules },
    { "model", "a model against the numbers of another implementation", cli_verify_model },
};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

static int print_help(FILE *out)
{
    fprintf(out, "usage: tessera verify WHAT [options]\n\n"
                 "Exit code 0 when all agrees, 1 when not; the last line is a summary.\n\n");
    for (size_t i = 0; i < SUBJECTS; i++)
        fprintf(out, "  %-8s %s\n", subjects[i].name, subjects[i].summary);
    return 0;
}

int cli_verify(int argc, char **argv)
{
    const char *names[SUBJECTS];
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_help(stdout);
    for (size_t i = 0; i < SUBJECTS; i++) {
        names[i] = subjects[i].name;
        if (strcmp(argv[1], "--list-commands") == 0) printf("%s\n", names[i]);
        if (strcmp(argv[1], names[i]) == 0) return subjects[i].run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "--list-commands") == 0) return 0;
    const char *near = cli_nearest(argv[1], names, SUBJECTS);
    return cli_fail_usage("verify", "cannot verify \"%s\"%s%s%s", argv[1],
                          near ? "; did you mean " : "; see tessera verify --help",
                          near ? near : "", near ? "?" : "");
}
