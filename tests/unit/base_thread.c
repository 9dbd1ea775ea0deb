/* SPDX-License-Identifier: Apache-2.0 */
/* base_thread.c - threads, waiting for a word, and the count of cores. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "harness/test.h"

static void *read_mask(void *argument)
{
    pthread_sigmask(SIG_SETMASK, NULL, argument);
    return NULL;
}

TS_TEST(thread_blocks_signals_but_faults)
{
    sigset_t mask, mine;
    pthread_t thread;
    TEST_OK(t, tsi_thread_start(&thread, read_mask, &mask, 0));
    pthread_join(thread, NULL);
    TEST_CHECK(t, sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGUSR1) == 1);
    TEST_CHECK(t, sigismember(&mask, SIGSEGV) == 0 && sigismember(&mask, SIGBUS) == 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    TEST_CHECK(t, sigismember(&mine, SIGUSR1) == 0); /* the caller's mask stays as found */
}

TS_TEST(thread_that_cannot_start_says_why)
{
    pthread_t thread;
    TEST_STATUS(t, tsi_thread_start(&thread, read_mask, NULL, (size_t)1 << 60), TS_ERR_MEMORY);
    TEST_SAYS(t, ts_last_error(), "could not start a thread");
}

TS_TEST(wait_returns_at_once_if_changed)
{
    tsi_word word = 7;
    TEST_CHECK(t, tsi_wait_word(&word, 6, 0, 0)); /* even after the deadline */
}

TS_TEST(wait_ends_at_the_deadline)
{
    tsi_word word = 7;
    for (int64_t spin_ns = 0; spin_ns <= 20000; spin_ns += 20000) {
        int64_t deadline = tsi_clock_ns() + 5000000;
        while (tsi_wait_word(&word, 7, spin_ns, deadline))
            continue; /* spurious */
        TEST_CHECK(t, tsi_clock_ns() >= deadline);
    }
    TEST_CHECK(t, !tsi_wait_word(&word, 7, 0, tsi_clock_ns() - 1));
    TEST_CHECK(t, !tsi_wait_word(&word, 7, 0, 0));
}

enum { TURNS = 3000, PLAYERS = 4 };
typedef struct relay {
    tsi_word turn;
    int64_t spin_ns;
    int64_t sum; /* guarded by the turn: a lost update or a missed wake-up shows */
} relay;
typedef struct player {
    relay *game;
    uint32_t index;
} player;

static void *play(void *argument)
{
    player *me = argument;
    relay *game = me->game;
    for (uint32_t turn = me->index; turn < TURNS; turn += PLAYERS) {
        uint32_t seen;
        while ((seen = atomic_load_explicit(&game->turn, memory_order_acquire)) != turn)
            (void)tsi_wait_word(&game->turn, seen, game->spin_ns, INT64_MAX);
        game->sum += turn;
        atomic_store_explicit(&game->turn, turn + 1, memory_order_release);
        tsi_wake_all(&game->turn);
    }
    return NULL;
}

/* Four threads on few cores hand a turn round: a wake-up that is skipped wrongly would hang. */
TS_TEST(wait_relay_loses_no_wakeup)
{
    for (int64_t spin_ns = 0; spin_ns <= 5000; spin_ns += 5000) {
        relay game = { .spin_ns = spin_ns };
        player players[PLAYERS];
        pthread_t thread[PLAYERS];
        for (uint32_t i = 0; i < PLAYERS; i++) {
            players[i] = (player){ &game, i };
            TEST_OK(t, tsi_thread_start(&thread[i], play, &players[i], 0));
        }
        for (int i = 0; i < PLAYERS; i++)
            pthread_join(thread[i], NULL);
        TEST_EQ(t, game.sum, (int64_t)TURNS * (TURNS - 1) / 2);
    }
}

typedef struct gate {
    tsi_word open;
    _Atomic int passed;
} gate;

static void *pass_gate(void *argument)
{
    gate *g = argument;
    while (atomic_load_explicit(&g->open, memory_order_acquire) == 0)
        (void)tsi_wait_word(&g->open, 0, 0, INT64_MAX);
    atomic_fetch_add(&g->passed, 1);
    return NULL;
}

TS_TEST(wake_all_wakes_all)
{
    gate g = { 0 };
    pthread_t thread[6];
    for (int i = 0; i < 6; i++)
        TEST_OK(t, tsi_thread_start(&thread[i], pass_gate, &g, 0));
    (void)usleep(2000); /* most sleep by now; correct either way */
    atomic_store_explicit(&g.open, 1, memory_order_release);
    tsi_wake_all(&g.open);
    for (int i = 0; i < 6; i++)
        pthread_join(thread[i], NULL);
    TEST_EQ(t, g.passed, 6);
    tsi_wake_one(&g.open); /* nobody there: harmless */
}

static void put_file(test *t, const char *root, const char *path, const char *text)
{
    char full[512];
    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = '\0';
        TEST_CHECK(t, mkdir(full, 0777) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(full, "w");
    TEST_SAY(t, file != NULL && fputs(text, file) >= 0, "cannot write %s", full);
    if (file != NULL) (void)fclose(file);
}

TS_TEST(cgroup_quota_is_the_least_of_the_chain)
{
    char root[] = "/tmp/tessera_cgroup_XXXXXX";
    TEST_CHECK(t, mkdtemp(root) != NULL);
    put_file(t, root, "a/cpu.max", "250000 100000\n");
    put_file(t, root, "a/b/cpu.max", "max 100000\n");
    put_file(t, root, "a/c/cpu.max", "100000 100000\n");
    put_file(t, root, "a/e/cpu.max", "800000 100000\n");
    put_file(t, root, "cpu/d/cpu.cfs_quota_us", "150000\n");
    put_file(t, root, "cpu/d/cpu.cfs_period_us", "100000\n");
    put_file(t, root, "cpu/f/cpu.cfs_quota_us", "-1\n");
    TEST_EQ(t, tsi_cgroup_cores(root, "0::/a/b\n"), 3); /* 2.5 of the parent, rounded up */
    TEST_EQ(t, tsi_cgroup_cores(root, "0::/a/c\n"), 1);
    TEST_EQ(t, tsi_cgroup_cores(root, "0::/a/e\n"), 3);
    TEST_EQ(t, tsi_cgroup_cores(root, "0::/a/gone\n"), 3);
    TEST_EQ(t, tsi_cgroup_cores(root, "0::/\n"), 0);
    TEST_EQ(t, tsi_cgroup_cores(root, "5:memory:/d\n4:cpu,cpuacct:/d\n0::/\n"), 2);
    TEST_EQ(t, tsi_cgroup_cores(root, "5:cpuset:/d\n"), 0);
    TEST_EQ(t, tsi_cgroup_cores(root, "4:cpu:/f\n"), 0);
    TEST_EQ(t, tsi_cgroup_cores(root, "nonsense\n\n::"), 0);
    TEST_EQ(t, tsi_cgroup_cores(root, ""), 0);
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    TEST_EQ(t, system(command), 0);
}

TS_TEST(core_count_is_within_what_is_online)
{
    TEST_CHECK(t, tsi_core_count() >= 1);
    TEST_CHECK(t, tsi_core_count() <= sysconf(_SC_NPROCESSORS_CONF));
    TEST_EQ(t, tsi_core_count(), tsi_core_count());
}
