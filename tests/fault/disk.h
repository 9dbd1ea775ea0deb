/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h - a layer between the library and the disk: counts the system calls that change it, and at
 * the n-th ends the process, fails, or takes the directory away.
 *
 * When the process ends, what was not synced is lost as a machine that stops may lose it: ranges
 * that were written since the last fsync of their file become zeros, each with chance 1/2; names
 * that were made or changed since the last fsync of their directory are undone from the last one
 * back to any one. Functions of this header take the place of libc's in the test program, whose
 * objects are linked statically. */
#ifndef TESTS_FAULT_DISK_H
#define TESTS_FAULT_DISK_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum disk_mode { DISK_PLAIN, DISK_KILL, DISK_TORN, DISK_FAIL, DISK_VANISH } disk_mode;

enum { DISK_FILES = 256, DISK_RANGES = 4096, DISK_NAMES = 1024 };

static struct disk {
    pthread_mutex_t lock;
    disk_mode mode;
    int64_t at, count; /* the call that it happens at; calls so far, while it is armed */
    int error;         /* FAIL: errno */
    uint64_t random;
    char root[PATH_MAX], vanish[PATH_MAX]; /* what is watched; what goes away */
    char path[DISK_FILES][PATH_MAX];       /* of open files */
    struct {
        int file; /* a duplicate, open until it is synced */
        int64_t begin, bytes;
        char path[PATH_MAX];
    } range[DISK_RANGES];
    int ranges;
    struct {
        char from[PATH_MAX], to[PATH_MAX]; /* from "": made */
    } name[DISK_NAMES];
    int names;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER };

#define DISK_REAL(name) (__extension__(__typeof__(&name)) dlsym(RTLD_NEXT, #name))

static void disk_arm(disk_mode mode, int64_t at, int error, uint64_t seed, const char *root)
{
    disk.mode = mode;
    disk.at = at;
    disk.error = error;
    disk.random = seed;
    disk.count = 0;
    disk.ranges = disk.names = 0;
    snprintf(disk.root, sizeof disk.root, "%s", root);
}

static bool disk_coin(void)
{
    disk.random = disk.random * 6364136223846793005u + 1442695040888963407u;
    return disk.random >> 63;
}

/* What a machine that stops here leaves. */
static void disk_lose(void)
{
    static const char zeros[4096];
    for (int i = 0; i < disk.ranges; i++) {
        if (disk.range[i].file < 0 || disk_coin()) continue;
        for (int64_t done = 0; done < disk.range[i].bytes; done += (int64_t)sizeof zeros) {
            int64_t left = disk.range[i].bytes - done;
            size_t bytes = left < (int64_t)sizeof zeros ? (size_t)left : sizeof zeros;
            (void)!DISK_REAL(pwrite)(disk.range[i].file, zeros, bytes,
                                     (off_t)(disk.range[i].begin + done));
        }
    }
    for (int i = disk.names - 1; i >= 0 && disk_coin(); i--) {
        if (disk.name[i].from[0])
            DISK_REAL(rename)(disk.name[i].to, disk.name[i].from);
        else
            DISK_REAL(unlink)(disk.name[i].to);
    }
}

/* Called before each call that changes the disk, under the lock: true: it fails. `torn` does a part
 * of it. */
static bool disk_tick(void (*torn)(void *), void *context)
{
    if (disk.mode == DISK_PLAIN || ++disk.count != disk.at) return false;
    if (disk.mode == DISK_FAIL) {
        errno = disk.error;
        return true;
    }
    if (disk.mode == DISK_VANISH) {
        char command[PATH_MAX + 64];
        snprintf(command, sizeof command, "rm -rf %s", disk.vanish);
        disk.mode = DISK_PLAIN;
        (void)!system(command);
        return false;
    }
    if (disk.mode == DISK_TORN && torn) torn(context);
    disk_lose();
    raise(SIGKILL);
    return true;
}

static bool disk_watches(const char *path)
{
    return disk.mode != DISK_PLAIN && disk.root[0] &&
           strncmp(path, disk.root, strlen(disk.root)) == 0;
}

static void disk_note_name(const char *from, const char *to)
{
    if (disk.names == DISK_NAMES) return;
    snprintf(disk.name[disk.names].from, PATH_MAX, "%s", from);
    snprintf(disk.name[disk.names++].to, PATH_MAX, "%s", to);
}

static void disk_note_range(int file, int64_t begin, int64_t bytes)
{
    if (disk.ranges == DISK_RANGES || file >= DISK_FILES) return;
    disk.range[disk.ranges].file = dup(file);
    disk.range[disk.ranges].begin = begin;
    disk.range[disk.ranges].bytes = bytes;
    memcpy(disk.range[disk.ranges++].path, disk.path[file], PATH_MAX);
}

/* A file or directory is synced: what was written or named there stays. */
static void disk_forget(int file)
{
    const char *path = file < DISK_FILES ? disk.path[file] : "";
    size_t length = strlen(path);
    for (int i = 0; i < disk.ranges; i++) {
        if (disk.range[i].file < 0 || strcmp(disk.range[i].path, path) != 0) continue;
        close(disk.range[i].file);
        disk.range[i].file = -1;
    }
    int kept = 0;
    for (int i = 0; i < disk.names; i++) {
        const char *name = disk.name[i].to;
        bool inside = length > 0 && strncmp(name, path, length) == 0 &&
                      !strchr(name + length + (name[length] == '/'), '/');
        if (!inside) disk.name[kept++] = disk.name[i];
    }
    disk.names = kept;
}

static bool disk_knows(int file)
{
    return file >= 0 && file < DISK_FILES && disk.mode != DISK_PLAIN && disk.path[file][0] != '\0';
}

/* ---- in the place of libc's ------------------------------------------------------------------ */

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = (flags & O_CREAT) ? (mode_t)va_arg(arguments, int) : 0;
    va_end(arguments);
    pthread_mutex_lock(&disk.lock);
    bool watched = disk_watches(path), makes = watched && (flags & (O_CREAT | O_TRUNC));
    bool fresh = makes && access(path, F_OK) != 0;
    int file = makes && disk_tick(NULL, NULL) ? -1 : DISK_REAL(open)(path, flags, mode);
    if (file >= 0 && file < DISK_FILES)
        snprintf(disk.path[file], PATH_MAX, "%s", watched ? path : "");
    if (file >= 0 && fresh) disk_note_name("", path);
    pthread_mutex_unlock(&disk.lock);
    return file;
}

typedef struct disk_part {
    int file;
    const void *data;
    size_t bytes;
    off_t offset; /* -1: where it stands */
} disk_part;

static void disk_half(void *context)
{
    const disk_part *p = context;
    if (p->offset < 0)
        (void)!DISK_REAL(write)(p->file, p->data, p->bytes / 2);
    else
        (void)!DISK_REAL(pwrite)(p->file, p->data, p->bytes / 2, p->offset);
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset)
{
    disk_part part = { file, data, bytes, offset };
    pthread_mutex_lock(&disk.lock);
    bool known = disk_knows(file);
    ssize_t done = -1;
    if (!known || !disk_tick(disk_half, &part)) {
        done = DISK_REAL(pwrite)(file, data, bytes, offset);
        if (known && done > 0) disk_note_range(file, offset, done);
    }
    pthread_mutex_unlock(&disk.lock);
    return done;
}

ssize_t write(int file, const void *data, size_t bytes)
{
    disk_part part = { file, data, bytes, -1 };
    pthread_mutex_lock(&disk.lock);
    bool known = disk_knows(file);
    off_t offset = known ? lseek(file, 0, SEEK_CUR) : 0;
    ssize_t done = -1;
    if (!known || !disk_tick(disk_half, &part)) {
        done = DISK_REAL(write)(file, data, bytes);
        if (known && done > 0) disk_note_range(file, offset, done);
    }
    pthread_mutex_unlock(&disk.lock);
    return done;
}

int fsync(int file)
{
    pthread_mutex_lock(&disk.lock);
    bool known = disk_knows(file);
    int result = known && disk_tick(NULL, NULL) ? -1 : known ? 0 : DISK_REAL(fsync)(file);
    if (known && result == 0) disk_forget(file);
    pthread_mutex_unlock(&disk.lock);
    return result;
}

int posix_fallocate(int file, off_t offset, off_t bytes)
{
    pthread_mutex_lock(&disk.lock);
    bool fails = disk_knows(file) && disk_tick(NULL, NULL);
    int result = fails ? errno : DISK_REAL(posix_fallocate)(file, offset, bytes);
    pthread_mutex_unlock(&disk.lock);
    return result;
}

int rename(const char *from, const char *to)
{
    pthread_mutex_lock(&disk.lock);
    bool watched = disk_watches(to);
    int result = watched && disk_tick(NULL, NULL) ? -1 : DISK_REAL(rename)(from, to);
    if (watched && result == 0) disk_note_name(from, to);
    pthread_mutex_unlock(&disk.lock);
    return result;
}

#define DISK_SIMPLE(name, parameters, call, path)                                                  \
    int name parameters                                                                            \
    {                                                                                              \
        pthread_mutex_lock(&disk.lock);                                                            \
        int result = disk_watches(path) && disk_tick(NULL, NULL) ? -1 : DISK_REAL(name) call;      \
        pthread_mutex_unlock(&disk.lock);                                                          \
        return result;                                                                             \
    }
DISK_SIMPLE(mkdir, (const char *path, mode_t mode), (path, mode), path)
DISK_SIMPLE(unlink, (const char *path), (path), path)
DISK_SIMPLE(rmdir, (const char *path), (path), path)

#endif
