/* SPDX-License-Identifier: Apache-2.0 */
/* harness.h - what the files of the harness share and tests do not see. */
#ifndef TESTS_HARNESS_HARNESS_H
#define TESTS_HARNESS_HARNESS_H

#include "harness/test.h"

/* Failures of one run of one test, counted by all its ranks. */
typedef struct test_result {
    _Atomic int64_t failures;
} test_result;

/* How a program was asked to run. */
typedef struct harness_options {
    bool list, no_fork;
    uint64_t seed;
    double timeout_s; /* 0: each test's own, else 60 */
    int runs;         /* of each case, at most; 0: all */
    char **filter;    /* substrings of names; any of them selects */
    int filter_count;
    int64_t mpi_size; /* 0: not started by an MPI launcher */
    int64_t mpi_rank;
    const char *program;
} harness_options;

/* One test on one number of ranks (0: without ranks). */
typedef struct harness_run {
    const test_case *body;
    int64_t count;
    char name[128]; /* "name" or "name/3" */
} harness_run;

/* Runs in this process; returns the number of failures. */
int64_t harness_run_here(const harness_options *options, const harness_run *run);
/* Runs in a child under the timeout; true if it passed. */
bool harness_run_child(const harness_options *options, const harness_run *run);
double harness_timeout(const harness_options *options, const harness_run *run);

#endif
