/* SPDX-License-Identifier: Apache-2.0 */
/* child.c - one test in a process of its own.
 *
 * The child leads a process group, so that whatever it started ends with it: at the timeout, at an
 * interrupt of the parent, and after a normal end too. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/harness.h"

static void watched_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

static void kill_group(pid_t child)
{
    if (kill(-child, SIGKILL) != 0) (void)kill(child, SIGKILL);
}

/* Waits for the child to end; 0: timeout, 1: ended, -1: the parent was told to stop. The child
 * stays waitable, so that its process group cannot be taken by anybody else meanwhile. */
static int wait_child(pid_t child, const sigset_t *watched, int64_t deadline_ns)
{
    for (;;) {
        siginfo_t info = { 0 };
        if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == child)
            return 1;
        int64_t left = deadline_ns - tsi_clock_ns();
        if (left <= 0) return 0;
        struct timespec wait = { .tv_sec = (time_t)(left / 1000000000),
                                 .tv_nsec = (long)(left % 1000000000) };
        int signal_number = sigtimedwait(watched, NULL, &wait);
        if (signal_number == SIGINT || signal_number == SIGTERM) return -1;
    }
}

static bool judge(const harness_run *run, int ended, int status, double timeout_s)
{
    if (ended == 0) {
        printf("    %s: no end after %.0f s, killed\n", run->name, timeout_s);
        return false;
    }
    if (WIFSIGNALED(status)) {
        printf("    %s: ended by signal %d (%s)\n", run->name, WTERMSIG(status),
               strsignal(WTERMSIG(status)));
        return false;
    }
    int code = WEXITSTATUS(status);
    if (code > 1) printf("    %s: exit code %d\n", run->name, code);
    return code == 0;
}

bool harness_run_child(const harness_options *options, const harness_run *run)
{
    sigset_t watched, before;
    watched_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, &before);
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)setpgid(0, 0);
        sigprocmask(SIG_SETMASK, &before, NULL);
        exit(harness_run_here(options, run) > 0 ? 1 : 0); /* exit: leak checkers run there */
    }
    if (child < 0) {
        printf("    %s: fork: %s\n", run->name, strerror(errno));
        sigprocmask(SIG_SETMASK, &before, NULL);
        return false;
    }
    (void)setpgid(child, child);
    double timeout_s = harness_timeout(options, run);
    int ended = wait_child(child, &watched, tsi_clock_ns() + (int64_t)(timeout_s * 1e9));
    kill_group(child);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (ended < 0) {
        printf("interrupted in %s\n", run->name);
        exit(130);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return judge(run, ended, status, timeout_s);
}
