/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the program around the tests: options, selection, one line per test, the closing line.
 *
 * Under an MPI launcher the rank tests of the world's size run in this process, in the order of
 * their registration on every rank; only rank 0 writes the lines of the tests, each process has its
 * own exit code. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/hash.h"
#include "base/launcher.h"
#include "harness/harness.h"

static test_case *first_case;
static test_case **last_case = &first_case;

void test_register(test_case *added)
{
    *last_case = added;
    last_case = &added->next;
}

double harness_timeout(const harness_options *options, const harness_run *run)
{
    double seconds = run->body->timeout_s > 0 ? run->body->timeout_s : 60;
    if (options->timeout_s > 0) seconds = options->timeout_s;
    return TSI_SANITIZED ? 4 * seconds : seconds;
}

int64_t harness_run_here(const harness_options *options, const harness_run *run)
{
    test_result result = { 0 };
    test t = { .name = run->name,
               .seed = options->seed,
               .random = tsi_hash_text(options->seed, run->body->name),
               .engine = options->mpi_size > 0 ? "mpi" : "threads",
               .result = &result };
    int64_t live = tsi_alloc_live();
    if (run->count > 0) {
        run->body->run_ranks(run->body, &t, run->count);
        return result.failures;
    }
    run->body->fn(&t);
    live = tsi_alloc_live() - live;
    if (result.failures == 0 && live != 0)
        test_fail(&t, run->name, 0, "%lld allocations were not freed", (long long)live);
    return result.failures;
}

static bool selected(const harness_options *options, const char *name)
{
    for (int i = 0; i < options->filter_count; i++)
        if (strstr(name, options->filter[i]) != NULL) return true;
    return options->filter_count == 0;
}

/* Here there is no parent to end a test that hangs: over MPI it would hold its whole world. Without
 * a time of its own a test that runs in this process may also be under a debugger. */
static void on_alarm(int signal_number)
{
    (void)signal_number;
    static const char line[] = "    the test did not end in time\n";
    ssize_t wrote = write(STDOUT_FILENO, line, sizeof line - 1);
    (void)wrote;
    _exit(124);
}

static bool run_in_process(const harness_options *options, const harness_run *run)
{
    bool timed = options->mpi_size > 0 || options->timeout_s > 0;
    if (timed) {
        (void)signal(SIGALRM, on_alarm);
        (void)alarm((unsigned)harness_timeout(options, run) + 1);
    }
    bool passed = harness_run_here(options, run) == 0;
    if (timed) (void)alarm(0);
    return passed;
}

static bool run_one(const harness_options *options, const harness_run *run)
{
    bool loud = options->mpi_rank == 0;
    int64_t begin = tsi_clock_ns();
    bool here = options->no_fork || options->mpi_size > 0;
    bool passed = here ? run_in_process(options, run) : harness_run_child(options, run);
    double seconds = (double)(tsi_clock_ns() - begin) * 1e-9;
    if (loud || !passed) printf("%s %s (%.2f s)\n", passed ? "ok  " : "FAIL", run->name, seconds);
    if (!passed)
        printf("    seed %llu; again: %s --seed %llu %s\n", (unsigned long long)options->seed,
               options->program, (unsigned long long)options->seed, run->name);
    (void)fflush(stdout);
    return passed;
}

/* Whether a case on this number of ranks was asked for by its name. */
static bool named(const harness_options *options, const test_case *body, int64_t count,
                  harness_run *run)
{
    *run = (harness_run){ .body = body, .count = count };
    if (count > 0)
        (void)snprintf(run->name, sizeof run->name, "%s/%d", body->name, (int)count);
    else
        (void)snprintf(run->name, sizeof run->name, "%s", body->name);
    return selected(options, run->name);
}

/* The runs of a case that are asked for; with --runs as many of them, of more than one rank where
 * there are such, from one that the case's name and the seed choose: the same in any world. */
static int choose(const harness_options *options, const test_case *body, harness_run *runs)
{
    int count = 0;
    for (int i = 0; i < (int)TSI_COUNT_OF(body->ranks); i++) {
        if (i > 0 && body->ranks[i] == 0) break;
        count += named(options, body, body->ranks[i], &runs[count]);
    }
    if (options->runs <= 0 || count <= options->runs) return count;
    int first = runs[0].count == 1, many = count - first;
    int wanted = options->runs < many ? options->runs : many;
    int start = (int)(tsi_hash_text(options->seed, body->name) % (uint64_t)many);
    harness_run chosen[TSI_COUNT_OF(body->ranks)];
    for (int i = 0; i < wanted; i++)
        chosen[i] = runs[first + (start + i) % many];
    memcpy(runs, chosen, (size_t)wanted * sizeof *runs);
    return wanted;
}

/* Visits every chosen run of a case: lists it, or runs it and counts. */
static void each_run(const harness_options *options, const test_case *body, int64_t counts[2])
{
    harness_run runs[TSI_COUNT_OF(body->ranks)];
    int count = choose(options, body, runs);
    for (int i = 0; i < count; i++) {
        if (options->mpi_size > 0 && runs[i].count != options->mpi_size) continue;
        if (options->list)
            printf("%s\n", runs[i].name);
        else
            counts[run_one(options, &runs[i])]++;
    }
}

/* False after saying what is wrong. */
static bool parse(int argc, char **argv, harness_options *options)
{
    options->program = argv[0];
    const char *seed_text = getenv("TESSERA_TEST_SEED");
    options->seed = seed_text != NULL ? strtoull(seed_text, NULL, 10) : 1;
    const tsi_launcher launcher = tsi_launcher_find();
    options->mpi_size = launcher.size;
    options->mpi_rank = launcher.rank > 0 ? launcher.rank : 0;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        bool takes_value = strcmp(argv[i], "--seed") == 0 || strcmp(argv[i], "--timeout") == 0 ||
                           strcmp(argv[i], "--runs") == 0;
        if (strcmp(argv[i], "--list") == 0) {
            options->list = true;
        } else if (strcmp(argv[i], "--no-fork") == 0) {
            options->no_fork = true;
        } else if (takes_value && i + 1 < argc) {
            char which = argv[i++][2];
            if (which == 's') options->seed = strtoull(argv[i], NULL, 10);
            if (which == 't') options->timeout_s = strtod(argv[i], NULL);
            if (which == 'r') options->runs = (int)strtol(argv[i], NULL, 10);
        } else {
            fprintf(stderr, "%s: unknown option or missing value: %s\n", argv[0], argv[i]);
            return false;
        }
    }
    options->filter = argv + i;
    options->filter_count = argc - i;
    return true;
}

int main(int argc, char **argv)
{
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    harness_options options = { 0 };
    if (!parse(argc, argv, &options)) return 2;
    int64_t counts[2] = { 0, 0 }; /* failed, passed */
    for (const test_case *c = first_case; c != NULL; c = c->next)
        each_run(&options, c, counts);
    if (options.list) return 0;
    if (options.mpi_rank == 0 || counts[0] > 0)
        printf("%lld passed, %lld failed\n", (long long)counts[1], (long long)counts[0]);
    return counts[0] > 0 ? 1 : 0;
}
