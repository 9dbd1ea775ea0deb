/* SPDX-License-Identifier: Apache-2.0 */
/* subject.c - commands of several subjects, `tessera bench train`: help, the list for completion,
 * and the nearest name for one that is not there. */
#include <string.h>

#include "cli.h"

enum { SUBJECTS_MAX = 32 };

static int print_help(const cli_subjects *s, FILE *out)
{
    fprintf(out, "usage: tessera %s %s\n\n%s\n\n", s->command, s->usage, s->about);
    for (size_t i = 0; i < s->count; i++)
        fprintf(out, "  %-*s %s\n", s->width, s->subject[i].name, s->subject[i].summary);
    return 0;
}

int cli_run_subject(const cli_subjects *s, int argc, char **argv)
{
    const char *names[SUBJECTS_MAX];
    if (argc < 2) {
        print_help(s, stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_help(s, stdout);
    bool lists = strcmp(argv[1], "--list-commands") == 0;
    for (size_t i = 0; i < s->count && i < SUBJECTS_MAX; i++) {
        names[i] = s->subject[i].name;
        if (lists) printf("%s\n", names[i]);
        if (strcmp(argv[1], names[i]) == 0) return s->subject[i].run(argc - 1, argv + 1);
    }
    if (lists) return 0;
    const char *near = cli_nearest(argv[1], names, s->count);
    if (near)
        return cli_fail_usage(s->command, "%s \"%s\"; did you mean %s?", s->refusal, argv[1], near);
    return cli_fail_usage(s->command, "%s \"%s\"; see tessera %s --help", s->refusal, argv[1],
                          s->command);
}
