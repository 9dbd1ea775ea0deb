/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the program `tessera`: finds the subcommand and hands over. */
#include <errno.h>
#include <signal.h>
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

static int run(int argc, char **argv)
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
        printf("tessera %s\n", TS_VERSION);
        return 0;
    }
    if (strcmp(name, "--list-commands") == 0) return list_commands();
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    return fail_unknown(name);
}

/* The one place where standard output is closed: what did not reach it (a full disk) is a failure,
 * whichever command wrote it and whether it looked or not. */
static int close_output(int code, const char *name)
{
    bool lost = ferror(stdout) != 0;
    clearerr(stdout);
    errno = 0;
    if (lost) (void)fputc('\n', stdout); /* it failed some calls ago: this one tells why */
    if (fclose(stdout) == 0 && !lost) return code;
    const char *why = errno != 0 ? strerror(errno) : "not everything was written";
    (void)cli_fail(name, "standard output: %s", why);
    return code != 0 ? code : 1;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ,
           SIG_IGN); /* a limit on the size of files (ulimit -f) is an error, said as such */
    return close_output(run(argc, argv), argc > 1 ? argv[1] : "");
}
