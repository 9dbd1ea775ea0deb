/* SPDX-License-Identifier: Apache-2.0 */
/* count.c - sections under callgrind: starting it, reading what it wrote. */
#include "count.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, ARGUMENTS_MAX = 32 };

/* What callgrind counts in. Callgrind takes a function to have returned when the stack pointer
 * rises above its caller's; so it has a caller of its own, and neither may be inlined or left by a
 * jump.
 */
static void cli_counted(void (*run)(void *context, int64_t times), void *context, int64_t times)
{
    static volatile int64_t last;
    run(context, times);
    last = times;
    (void)last;
}

typedef void counted_fn(void (*run)(void *context, int64_t times), void *context, int64_t times);

int64_t cli_count_section(void (*run)(void *context, int64_t times), void *context, int64_t times)
{
    counted_fn *volatile enter = cli_counted;
    enter(run, context, times);
    return times;
}

/* ---- starting it ----------------------------------------------------------------------------- */

/* The first executable of that name in PATH. */
static bool find_program(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t length = strcspn(path, ":");
        int wrote = snprintf(out, size, "%.*s/%s", (int)length, path, name);
        if (length > 0 && wrote > 0 && (size_t)wrote < size && access(out, X_OK) == 0) return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* Its exit code; -1: it was not started or did not end by itself. Its output is thrown away. */
static int run_quietly(const char *program, char *const *argv)
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) return -1;
    pid_t child = -1;
    int status = -1;
    bool ready =
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0) == 0;
    if (ready && posix_spawn(&child, program, &actions, NULL, argv, environ) == 0 &&
        waitpid(child, &status, 0) != child)
        status = -1;
    posix_spawn_file_actions_destroy(&actions);
    return status != -1 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- what it wrote --------------------------------------------------------------------------- */

/* The total of the n-th section, whose file is removed; -1: there is none. */
static double take_total(const char *directory, size_t n)
{
    char path[PATH_BYTES + 32], line[256];
    (void)snprintf(path, sizeof path, "%s/out.%zu", directory, n);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    double total = -1;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "totals: ", 8) == 0) total = strtod(line + 8, NULL);
    (void)fclose(file);
    (void)unlink(path);
    return total;
}

static const char *take_totals(const char *directory, double *total, size_t count)
{
    size_t found = 0;
    char rest[PATH_BYTES + 8];
    for (double one = 0; one >= 0; found += one >= 0) {
        one = take_total(directory, found + 1);
        if (one >= 0 && found < count) total[found] = one;
    }
    (void)snprintf(rest, sizeof rest, "%s/out", directory); /* what came after the last section */
    (void)unlink(rest);
    return found == count ? NULL : "no sections were seen (stripped?): not counted";
}

/* ---- the parent ------------------------------------------------------------------------------ */

static const char *run_in(char *valgrind, const char *directory, char *const *arguments)
{
    char tool[] = "--tool=callgrind", toggle[] = "--toggle-collect=cli_counted";
    char dump[] = "--dump-after=cli_counted", out[PATH_BYTES + 32], self[PATH_BYTES] = "";
    (void)snprintf(out, sizeof out, "--callgrind-out-file=%s/out", directory);
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
        return "the program's path is unknown: not counted";
    char *argv[ARGUMENTS_MAX] = { valgrind, tool, toggle, dump, out, self };
    size_t used = 6;
    for (; *arguments && used + 1 < ARGUMENTS_MAX; arguments++)
        argv[used++] = *arguments;
    return run_quietly(valgrind, argv) == 0 ? NULL : "valgrind failed: not counted";
}

const char *cli_count_run(char *const *arguments, double *total, size_t count)
{
    char valgrind[PATH_BYTES], directory[PATH_BYTES];
    for (size_t i = 0; i < count; i++)
        total[i] = 0;
    if (!find_program("valgrind", valgrind, sizeof valgrind))
        return "valgrind not found: not counted";
    const char *temporary = getenv("TMPDIR");
    (void)snprintf(directory, sizeof directory, "%s/tessera-count.XXXXXX",
                   temporary && *temporary ? temporary : "/tmp");
    if (!mkdtemp(directory)) return "no temporary directory: not counted";
    const char *why = run_in(valgrind, directory, arguments);
    const char *read = take_totals(directory, total, count);
    (void)rmdir(directory);
    return why ? why : read;
}
