/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the program `tessera`: finds the subcommand and hands over. */
#include <string.h>

#include "cli.h"

typedef struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
#define CLI_COMMAND(name, summary) { #name, summary, cli_##name },
#include "commands.def"
#undef CLI_COMMAND
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static int print_help(FILE *out)
{
    fprintf(out, "usage: tessera COMMAND [options]\n\n"
                 "Distributed tensors and the training of large models.\n\ncommands:\n");
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(out, "\noptions:\n"
                 "  --version    the version of the program\n"
                 "  --help       this text; `tessera COMMAND --help` for one command\n");
    return 0;
}

static int list_commands(void)
{
    for (size_t i = 0; i < COMMANDS; i++)
        printf("%s\n", commands[i].name);
    return 0;
}

static int fail_unknown(const char *name)
{
    const char *names[COMMANDS + 2];
    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    names[COMMANDS] = "--version";
    names[COMMANDS + 1] = "--help";
    const char *near = cli_nearest(name, names, COMMANDS + 2);
    const char *kind = name[0] == '-' ? "option" : "command";
    if (near != NULL) {
        return cli_fail_usage("", "unknown %s \"%s\"; did you mean %s?", kind, name, near);
    }
    return cli_fail_usage("", "unknown %s \"%s\"; see tessera --help", kind, name);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        return print_help(stdout);
    }
    if (strcmp(name, "--version") == 0) {
        printf("tessera %s\n", TS_VERSION_TEXT);
        return 0;
    }
    if (strcmp(name, "--list-commands") == 0) return list_commands();
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    return fail_unknown(name);
}
