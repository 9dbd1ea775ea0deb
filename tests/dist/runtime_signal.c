/* SPDX-License-Identifier: Apache-2.0 */
/* What ts_launch prints, and the post-mortem on SIGUSR1, seen from outside: each test is a child
 * process whose standard error is read. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/test.h"
#include "tessera/tessera.h"

typedef struct child {
    pid_t id;
    int error; /* reads the child's standard error */
} child;

/* A process that launches work on three thread ranks, with a short timeout or the usual one. */
static child start_with(ts_work_fn work, int *to_child, bool is_short)
{
    int error[2], ready[2];
    child c = { .id = -1, .error = -1 };
    if (pipe(error) != 0 || pipe(ready) != 0) return c;
    c.id = fork();
    if (c.id == 0) {
        char program[] = "p", ranks[] = "--ts-ranks=3", engine[] = "--ts-engine=threads";
        char timeout[] = "--ts-timeout-ms=1500";
        char *argv[] = { program, ranks, engine, is_short ? timeout : NULL, NULL };
        dup2(error[1], 2);
        close(error[0]);
        close(ready[1]);
        int code = ts_launch(is_short ? 4 : 3, argv, work, &ready[0]);
        struct sigaction now;
        sigaction(SIGUSR1, NULL, &now);
        _exit(now.sa_handler == SIG_DFL ? code : 77); /* the signal is given back */
    }
    close(error[1]);
    close(ready[0]);
    c.error = error[0];
    *to_child = ready[1];
    return c;
}

static child start(ts_work_fn work, int *to_child)
{
    return start_with(work, to_child, false);
}

/* Reads on, behind what is there, until the words appear, the child is silent for `wait_ms` (-1:
 * never mind), or it has ended. */
static void read_until(const child *c, const char *words, int wait_ms, char *out, size_t size)
{
    size_t used = strlen(out);
    while (used + 1 < size) {
        struct pollfd file = { .fd = c->error, .events = POLLIN };
        if (poll(&file, 1, wait_ms) <= 0) return;
        ssize_t got = read(c->error, out + used, size - 1 - used);
        if (got <= 0) return;
        used += (size_t)got;
        out[used] = '\0';
        if (words != NULL && strstr(out, words) != NULL) return;
    }
}

static int finish(child *c)
{
    int status = 0;
    waitpid(c->id, &status, 0);
    close(c->error);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Rank 1 waits for the parent; the others wait for rank 1, and say on standard error that they are
 * about to. */
static ts_status work_waits(ts_rank *me, void *arg)
{
    char byte;
    ts_group *world = ts_group_world(me);
    ts_status status = ts_group_barrier(world, NULL);
    if (ts_rank_index(me) == 1 && read(*(int *)arg, &byte, 1) < 0) return TS_ERR_IO;
    if (ts_rank_index(me) == 0 && write(2, "waiting\n", 8) != 8) return TS_ERR_IO;
    if (status != TS_OK) return status;
    return ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .name = "late"));
}

TS_TEST(signal_asks_for_a_postmortem)
{
    static char said[1 << 20];
    int to_child = -1;
    child c = start(work_waits, &to_child);
    read_until(&c, "waiting", -1, said, sizeof said);
    /* The ranks are on their way to where they wait; ask until all have arrived. */
    const char *first = "ranks 0, 2: in barrier \"late\" #2",
               *second = "rank 1: idle; last barrier #1";
    for (int i = 0; i < 1000 && !(strstr(said, first) && strstr(said, second)); i++) {
        kill(c.id, SIGUSR1);
        read_until(&c, second, 20, said, sizeof said);
    }
    read_until(&c, NULL, 100, said, sizeof said);
    TEST_SAYS(t, said, "post-mortem of 3 ranks (threads):");
    TEST_SAYS(t, said, first);
    TEST_SAYS(t, said, "runtime_signal.c:");
    TEST_SAYS(t, said, second);
    TEST_EQ(t, write(to_child, "x", 1), 1);
    TEST_EQ(t, finish(&c), 0);
}

static ts_status work_fails(ts_rank *me, void *arg)
{
    (void)arg;
    if (ts_rank_index(me) == 2) return ts_rank_fail(me, TS_ERR_IO, "no more paper");
    return ts_group_barrier(ts_group_world(me), NULL);
}

TS_TEST(failure_is_printed_once)
{
    char said[8192] = "";
    int to_child = -1;
    child c = start(work_fails, &to_child);
    read_until(&c, NULL, -1, said, sizeof said);
    TEST_EQ(t, finish(&c), 1);
    TEST_SAYS(t, said, "tessera: rank 2: no more paper");
    TEST_SAYS(t, said, "[TS_ERR_IO]");
    TEST_SAYS(t, said, "post-mortem of 3 ranks (threads):");
    const char *first = strstr(said, "no more paper");
    TEST_CHECK(t, first != NULL && strstr(first + 1, "tessera: rank") == NULL);
}

/* ---- a rank that does not come back ---------------------------------------------------------- */

enum { SLEEPS, LOOPS, COMPUTES, READS, KINDS };
static int stuck_rank, stuck_kind; /* set before the child is made */

/* What no call of the library can end. */
static void get_stuck(ts_rank *me, int from_parent)
{
    static _Atomic int spinning = 1;
    ts_tensor *x = ts_ones(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(8), NULL);
    switch (stuck_kind) {
    case SLEEPS:
        for (;;)
            pause();
    case LOOPS:
        while (spinning) {
        }
        break;
    case COMPUTES: /* gives signs of life */
        for (;;)
            ts_tensor_drop(ts_add(x, x));
    case READS: /* holds the locks of both streams */
        flockfile(stdout);
        flockfile(stderr);
        char byte;
        (void)!read(from_parent, &byte, 1);
    }
}

static ts_status work_stuck(ts_rank *me, void *arg)
{
    ts_group *world = ts_group_world(me);
    ts_status status = ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .name = "early"));
    if (ts_rank_index(me) == stuck_rank) get_stuck(me, *(int *)arg);
    if (status != TS_OK) return status;
    status = ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .name = "late"));
    return status == TS_ERR_PEER ? TS_ERR_PEER : TS_ERR_INTERNAL;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

TS_TEST_LONG(repair_16_a_stuck_rank_ends_the_process, 120)
{
    for (int i = 0; i < 2 * KINDS; i++) {
        stuck_rank = i % 2; /* the first one is the calling thread */
        stuck_kind = i / 2;
        char said[8192] = "", name[64];
        int to_child = -1;
        double begin = seconds_now();
        child c = start_with(work_stuck, &to_child, true);
        read_until(&c, NULL, -1, said, sizeof said);
        TEST_EQ(t, finish(&c), 1);
        double took = seconds_now() - begin;
        TEST_SAY(t, took < 9, "kind %d, rank %d: %.1f s", stuck_kind, stuck_rank, took);
        snprintf(name, sizeof name, "rank %d does not come back from the program's own code",
                 stuck_rank);
        TEST_SAYS(t, said, name);
        TEST_SAYS(t, said, "waited 1500 ms in barrier 'late'");
        TEST_SAYS(t, said, "post-mortem of 3 ranks (threads):");
        TEST_SAYS(t, said, "runtime_signal.c:");
        close(to_child);
    }
}

static _Atomic int come_back, came_back;

static ts_status work_left_behind(ts_rank *me, void *arg)
{
    (void)arg;
    if (ts_rank_index(me) == 1) {
        while (!come_back)
            usleep(1000);
        ts_tensor_drop(ts_ones(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(8), NULL));
        came_back = 1;
        return TS_OK;
    }
    return ts_group_barrier(ts_group_world(me), NULL);
}

/* Without ts_launch the process is not ours to end: the call returns, and what the rank may still
 * use stays. */
TS_TEST(repair_16_a_stuck_rank_is_left_behind)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 3;
    options.timeout_ms = 500;
    char error[1024];
    TEST_STATUS(t, ts_launch_with(&options, work_left_behind, NULL, error, sizeof error),
                TS_ERR_PEER);
    TEST_SAYS(t, error, "rank 1 does not come back from the program's own code");
    come_back = 1;
    for (int i = 0; i < 5000 && !came_back; i++)
        usleep(1000);
    TEST_CHECK(t, came_back);
    _exit(test_failed(t)); /* the world that was left behind is no leak of this test */
}
