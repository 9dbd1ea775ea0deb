/* SPDX-License-Identifier: Apache-2.0 */
/* room.c - memory that is left, from small files of the system. */
#include "base/room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/intmath.h"

/* The number behind a word in a small file of the system; -1: there is none. */
static int64_t number_in(const char *path, const char *word)
{
    char line[256];
    int64_t value = -1;
    FILE *file = fopen(path, "re");
    while (file && value < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, word, strlen(word)) == 0) {
            const char *digits = line + strlen(word) + strspn(line + strlen(word), " \t");
            if (*digits >= '0' && *digits <= '9') value = strtoll(digits, NULL, 10);
        }
    if (file) (void)fclose(file);
    return value;
}

int64_t tsi_host_bytes_free(void)
{
    int64_t kib = number_in("/proc/meminfo", "MemAvailable:");
    int64_t most = number_in("/sys/fs/cgroup/memory.max", "");
    int64_t taken = number_in("/sys/fs/cgroup/memory.current", "");
    int64_t bytes = kib < 0 ? -1 : kib * 1024;
    /* Files that were read count as taken, and make room when it is wanted. */
    static const char *const files[] = { "active_file ", "inactive_file " };
    for (size_t i = 0; i < TSI_COUNT_OF(files); i++)
        taken -= tsi_max_i64(number_in("/sys/fs/cgroup/memory.stat", files[i]), 0);
    if (most > 0 && taken >= 0 && most > taken && (bytes < 0 || most - taken < bytes))
        bytes = most - taken;
    return bytes;
}
