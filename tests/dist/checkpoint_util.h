/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_util.h - folders that the ranks of a test share. */
#ifndef TESTS_DIST_CHECKPOINT_UTIL_H
#define TESTS_DIST_CHECKPOINT_UTIL_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { PATH = 512 };

/* A path that all ranks know. */
static inline void make_path(test *t, const char *name, char *path)
{
    int64_t number = (int64_t)getpid();
    ts_array word = TS_INIT(ts_array);
    word.data = &number;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TEST_OK(t, ts_group_broadcast(ts_group_world(t->me), &word, 0, NULL));
    snprintf(path, PATH, "%s/%s-%lld-%lld", TS_BINARY_DIR, name, (long long)number,
             (long long)t->count);
}

static inline void remove_path(test *t, const char *path)
{
    char command[PATH + 16];
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (t->index == 0) TEST_EQ(t, system(command), 0);
}

#endif
