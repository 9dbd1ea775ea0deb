/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - how many cores this process may use.
 *
 * The affinity mask says which cores; a container's quota says how much time on them. Both are
 * read, and the smaller counts: spinning with more ranks than that many cores only steals from
 * peers. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "base/thread.h"

enum { PATH_BYTES = 1024, FILE_BYTES = 4096 };

/* Reads the beginning of a small file as text; false if there is none. */
static bool read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return true;
}

/* ceil(quota / period), or 0 where there is no limit. */
static int64_t cores_of(int64_t quota, int64_t period)
{
    return quota > 0 && period > 0 ? (quota - 1) / period + 1 : 0;
}

/* Version 2: "max 100000" or "150000 100000" in cpu.max. Version 1: a file for each number. */
static int64_t directory_limit(const char *directory)
{
    char path[PATH_BYTES + 32], text[128];
    int64_t quota = 0, period = 0;
    (void)snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (read_text(path, text, sizeof text)) {
        tsi_cursor cursor = tsi_cursor_of(path, text);
        bool limited = tsi_cursor_int(&cursor, &quota) && tsi_cursor_int(&cursor, &period);
        return limited ? cores_of(quota, period) : 0;
    }
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
    if (!read_text(path, text, sizeof text)) return 0;
    tsi_cursor cursor = tsi_cursor_of(path, text);
    if (!tsi_cursor_int(&cursor, &quota)) return 0;
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
    if (!read_text(path, text, sizeof text)) return 0;
    cursor = tsi_cursor_of(path, text);
    return tsi_cursor_int(&cursor, &period) ? cores_of(quota, period) : 0;
}

static int64_t smaller_limit(int64_t a, int64_t b)
{
    if (a == 0 || b == 0) return a + b;
    return a < b ? a : b;
}

/* The least limit from `root/name` up to `root`. A namespaced container sees only its root. */
static int64_t chain_limit(const char *root, const char *name)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s%s", root, name);
    if (length < 0 || (size_t)length >= sizeof path) return 0;
    int64_t limit = 0;
    size_t stop = strlen(root);
    for (;;) {
        limit = smaller_limit(limit, directory_limit(path));
        char *slash = strrchr(path, '/');
        if (strlen(path) <= stop || slash == NULL || (size_t)(slash - path) < stop) return limit;
        *slash = '\0';
    }
}

/* Is the controller `cpu` in the comma-separated list of `length` bytes? */
static bool names_cpu(const char *list, size_t length)
{
    for (const char *p = list, *end = list + length; p < end;) {
        size_t word = strcspn(p, ",:");
        if (word == 3 && memcmp(p, "cpu", 3) == 0) return true;
        p += word + 1;
    }
    return false;
}

int tsi_cgroup_cores(const char *root, const char *self)
{
    int64_t limit = 0;
    for (const char *line = self; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const char *list = memchr(line, ':', length);
        const char *path =
            list != NULL ? memchr(list + 1, ':', length - (size_t)(list + 1 - line)) : NULL;
        if (path != NULL) {
            char name[PATH_BYTES], mount[PATH_BYTES];
            (void)snprintf(name, sizeof name, "%.*s", (int)(line + length - path - 1), path + 1);
            bool version2 = path == list + 1;
            bool cpu = !version2 && names_cpu(list + 1, (size_t)(path - list - 1));
            (void)snprintf(mount, sizeof mount, "%s%s", root, version2 ? "" : "/cpu");
            if (version2 || cpu) limit = smaller_limit(limit, chain_limit(mount, name));
        }
        line += length + (line[length] == '\n');
    }
    return limit > INT32_MAX ? INT32_MAX : (int)limit;
}

static int affinity_cores(void)
{
#ifdef __linux__
    /* The mask may be wider than cpu_set_t; the kernel says EINVAL until it is large enough. */
    for (int cpus = 1024; cpus <= 1024 * 1024; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (set == NULL) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int tsi_core_count(void)
{
    static _Atomic int known;
    int count = atomic_load_explicit(&known, memory_order_relaxed);
    if (count > 0) return count;
    count = affinity_cores();
    char self[FILE_BYTES];
    if (read_text("/proc/self/cgroup", self, sizeof self)) {
        int limit = tsi_cgroup_cores("/sys/fs/cgroup", self);
        if (limit > 0 && limit < count) count = limit;
    }
    atomic_store_explicit(&known, count, memory_order_relaxed);
    return count;
}
