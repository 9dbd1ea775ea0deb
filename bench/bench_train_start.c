/* SPDX-License-Identifier: Apache-2.0 */
/* bench_train_start.c - `tessera bench train --start`: from the start of a process to the end of
 * its first training step, of a tiny model, as `tessera train` tells it.
 *
 * Every turn is a process of its own with an output directory of its own, so that a text is
 * tokenised, weights are made and nothing is left of the turn before. What counts is the median. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_train.h"

enum { TURNS = 15, COMMAND = 4 * PATH_MAX };

typedef struct start {
    char program[PATH_MAX], folder[256];
} start;

static bool write_text(const char *path)
{
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < 200; i++)
        fprintf(file, "The %d. fox ran over the hill and saw %d birds.\n", i, 3 * i);
    return file && fclose(file) == 0;
}

static bool write_config(const start *s, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fprintf(file,
            "[model]\nhidden = 16\nintermediate = 24\nlayers = 1\nheads = 2\n"
            "[data]\npath = %s/text.txt\ncontext = 12\n[train]\nbatch = 8\nsteps = 1\n"
            "output = %s/run\n[log]\nsample = 0\nreport = 0\n",
            s->folder, s->folder);
    return fclose(file) == 0;
}

static bool prepare(start *s)
{
    char path[sizeof s->folder + 16];
    ssize_t length = readlink("/proc/self/exe", s->program, sizeof s->program - 1);
    const char *temporary = getenv("TMPDIR");
    snprintf(s->folder, sizeof s->folder, "%s/tessera-start-XXXXXX",
             temporary && *temporary ? temporary : "/tmp");
    if (length <= 0 || !mkdtemp(s->folder)) return false;
    s->program[length] = '\0';
    snprintf(path, sizeof path, "%s/text.txt", s->folder);
    if (!write_text(path)) return false;
    snprintf(path, sizeof path, "%s/tiny.ini", s->folder);
    return write_config(s, path);
}

/* Milliseconds; below 0: it did not say them. */
static double one_start(const start *s, const char *mesh)
{
    char command[COMMAND], line[512];
    double said = -1;
    snprintf(command, sizeof command,
             "rm -rf '%s/run'; '%s' train '%s/tiny.ini' --set 'parallel.mesh=%s' 2>&1", s->folder,
             s->program, s->folder, mesh);
    FILE *child = popen(command, "r");
    while (child && fgets(line, sizeof line, child))
        (void)sscanf(line, "first step done %lf ms", &said);
    return child && pclose(child) == 0 ? said : -1;
}

static int add_mesh(const start *s, const char *mesh, double wanted, bench_lines *lines)
{
    double ms[TURNS];
    for (int i = 0; i < TURNS; i++) {
        ms[i] = one_start(s, mesh);
        if (ms[i] < 0) return cli_fail("bench train", "a run on %s did not take a step", mesh);
    }
    double middle = bench_median(ms, TURNS); /* sorts */
    bench_line *line =
        bench_lines_add(lines, "ms", middle, "%s: from the start to the first step", mesh);
    line->wanted = wanted;
    bench_line_note(line, "of %d processes, %.0f to %.0f", TURNS, ms[0], ms[TURNS - 1]);
    return 0;
}

int bench_train_start(const char *mesh, bench_lines *lines, bool json)
{
    start s;
    char command[sizeof s.folder + 16];
    if (!prepare(&s)) return cli_fail("bench train", "%s: cannot be made", s.folder);
    int code = add_mesh(&s, mesh ? mesh : "dp=1", mesh ? 0 : 50, lines);
    if (code == 0 && !mesh) code = add_mesh(&s, "fsdp=8", 150, lines);
    snprintf(command, sizeof command, "rm -rf '%s'", s.folder);
    if (system(command) != 0) code = cli_fail("bench train", "%s stays", s.folder);
    return code != 0 ? code : bench_lines_print(lines, json);
}
