/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c - names, locks, renames and removals of a checkpoint's directory: see folder.h. */
#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

enum { PATH_BYTES = TSI_FOLDER_PATH_MAX, ID_DIGITS = 16 };

/* ---- names ----------------------------------------------------------------------------------- */

static ts_status name_of(const char *path, uint64_t id, const char *end, char *out)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    int needed =
        snprintf(out, PATH_BYTES, "%.*s.%016llx%s", (int)length, path, (unsigned long long)id, end);
    if (needed < PATH_BYTES) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", path);
}

ts_status tsi_folder_part(const char *path, uint64_t id, char *out)
{
    return name_of(path, id, ".part", out);
}

static void parent_of(const char *path, char *out)
{
    snprintf(out, PATH_BYTES, "%s", path);
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        out[--length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == out)
        out[1] = '\0';
    else if (slash)
        *slash = '\0';
    else
        snprintf(out, PATH_BYTES, ".");
}

static const char *base_of(const char *path, size_t *length)
{
    *length = strlen(path);
    while (*length > 1 && path[*length - 1] == '/')
        --*length;
    size_t begin = *length;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    *length -= begin;
    return path + begin;
}

/* Is the name BASE.ID.part (or .old)? Then *id is its own. */
static bool is_leftover(const char *name, const char *base, size_t length, const char *end,
                        uint64_t *id)
{
    unsigned long long number = 0;
    if (strncmp(name, base, length) != 0 || name[length] != '.') return false;
    const char *digits = name + length + 1;
    if (strspn(digits, "0123456789abcdef") != ID_DIGITS || strcmp(digits + ID_DIGITS, end) != 0)
        return false;
    sscanf(digits, "%16llx", &number);
    *id = number;
    return true;
}

/* ---- making ---------------------------------------------------------------------------------- */

ts_status tsi_folder_make(const char *path)
{
    char part[PATH_BYTES];
    int length = snprintf(part, sizeof part, "%s", path);
    if (length <= 0 || length >= (int)sizeof part)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != '\0') continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return TSI_FAIL(TS_ERR_IO, "%s: cannot be created: %s", part, strerror(errno));
        if (kept == '\0') return TS_OK;
        *at = kept;
    }
}

/* Makes and locks it once; *lock -1: somebody who gave up was removing it. A file system without
 * locks: as without them. */
static ts_status try_begin(const char *part, int *lock)
{
    struct stat opened, named;
    TSI_TRY(tsi_folder_make(part));
    *lock = open(part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 && errno == ENOENT) return TS_OK;
    if (*lock < 0) return TSI_FAIL(TS_ERR_IO, "%s: %s", part, strerror(errno));
    bool held = flock(*lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    bool same = fstat(*lock, &opened) == 0 && stat(part, &named) == 0 &&
                opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    if (!held && same) return TS_OK;
    close(*lock);
    *lock = -1;
    return TS_OK;
}

ts_status tsi_folder_begin(const char *part, int *lock)
{
    enum { TRIES = 1000 };
    const struct timespec moment = { .tv_nsec = 1000000 };
    *lock = -1;
    for (int i = 0; i < TRIES && *lock < 0; i++) {
        if (i > 0) nanosleep(&moment, NULL);
        TSI_TRY(try_begin(part, lock));
    }
    return *lock >= 0 ? TS_OK : TSI_FAIL(TS_ERR_IO, "%s: is removed again and again", part);
}

/* An upgrade that fails gives up the lock all the same: of those who leave the last one has it. */
void tsi_folder_abandon(const char *part, int lock)
{
    if (lock >= 0 && (flock(lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)) rmdir(part);
}

bool tsi_folder_free(const char *path, int64_t *bytes)
{
    struct statvfs about;
    *bytes = 0;
    if (statvfs(path, &about) != 0 || about.f_blocks == 0) return false;
    double left = (double)about.f_bavail * (double)about.f_frsize;
    *bytes = left < (double)(INT64_MAX / 2) ? (int64_t)left : INT64_MAX / 2;
    return true;
}

ts_status tsi_folder_room(const char *path, int64_t bytes)
{
    int64_t left;
    if (!tsi_folder_free(path, &left)) return TS_OK; /* the writing will tell */
    if ((double)left >= (double)bytes + TSI_FOLDER_SPARE) return TS_OK;
    char wanted[32], there[32];
    return TSI_FAIL(
        TS_ERR_IO, "%s: a checkpoint of %s and 1 MiB for headers do not fit, %s are free", path,
        tsi_text_bytes(wanted, sizeof wanted, bytes), tsi_text_bytes(there, sizeof there, left));
}

/* ---- removing -------------------------------------------------------------------------------- */

void tsi_folder_remove(const char *path)
{
    DIR *directory = opendir(path);
    if (!directory) return;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char file[PATH_BYTES + 300];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        unlink(file);
    }
    closedir(directory);
    rmdir(path);
}

/* First by another name, so that a half-removed one is never taken for a checkpoint. The index goes
 * before the rest, so that it is not put back either. */
void tsi_folder_retire(const char *path, uint64_t id)
{
    char old[PATH_BYTES], index[PATH_BYTES + 16];
    if (name_of(path, id, ".old", old) != TS_OK || rename(path, old) != 0) return;
    snprintf(index, sizeof index, "%s/index.json", old);
    unlink(index);
    tsi_folder_remove(old);
}

/* ---- what others left ------------------------------------------------------------------------ */

static bool is_alive(const char *path)
{
    int lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0) return false;
    bool alive = flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(lock);
    return alive;
}

static bool has_index(const char *path)
{
    char index[PATH_BYTES + 320];
    snprintf(index, sizeof index, "%s/index.json", path);
    return access(index, F_OK) == 0;
}

static ts_status clean_one(const char *path, const char *leftover, bool part)
{
    if (part && is_alive(leftover))
        return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                              "%s: another process is saving into it (%s)", path, leftover);
    bool kept = !part && access(path, F_OK) != 0 && has_index(leftover);
    if (kept && rename(leftover, path) == 0) return TS_OK;
    tsi_folder_remove(leftover);
    return TS_OK;
}

/* Leftovers of saves into `path`, or (NULL) into anything in the directory. */
static ts_status clean_all(const char *parent, const char *path, uint64_t id)
{
    DIR *directory = opendir(parent);
    if (!directory) return TS_OK;
    ts_status status = TS_OK;
    for (struct dirent *entry = readdir(directory); entry && status == TS_OK;
         entry = readdir(directory)) {
        char leftover[PATH_BYTES + 300], of[PATH_BYTES + 300];
        size_t length = strcspn(entry->d_name, ".");
        const char *base = path ? base_of(path, &length) : entry->d_name;
        uint64_t whose = 0;
        bool part = is_leftover(entry->d_name, base, length, ".part", &whose);
        bool old = !part && is_leftover(entry->d_name, base, length, ".old", &whose);
        if ((!part && !old) || whose == id) continue;
        snprintf(leftover, sizeof leftover, "%s/%s", parent, entry->d_name);
        snprintf(of, sizeof of, "%s/%.*s", parent, (int)length, base);
        status = clean_one(of, leftover, part);
    }
    closedir(directory);
    return status;
}

ts_status tsi_folder_clean(const char *path, uint64_t id)
{
    char parent[PATH_BYTES];
    parent_of(path, parent);
    return clean_all(parent, path, id);
}

ts_status tsi_folder_sweep(const char *directory)
{
    return clean_all(directory, NULL, 0);
}

bool tsi_folder_find_old(const char *path, char *out, size_t size)
{
    char parent[PATH_BYTES];
    size_t length;
    const char *base = base_of(path, &length);
    parent_of(path, parent);
    DIR *directory = opendir(parent);
    bool found = false;
    for (struct dirent *entry = directory ? readdir(directory) : NULL; entry && !found;
         entry = readdir(directory)) {
        uint64_t id = 0;
        if (!is_leftover(entry->d_name, base, length, ".old", &id)) continue;
        snprintf(out, size, "%s/%s", parent, entry->d_name);
        found = has_index(out);
    }
    if (directory) closedir(directory);
    return found;
}

int64_t tsi_folder_count(const char *part)
{
    DIR *directory = opendir(part);
    int64_t count = 0;
    for (struct dirent *entry = directory ? readdir(directory) : NULL; entry;
         entry = readdir(directory))
        count += strncmp(entry->d_name, "rank-", 5) == 0;
    if (directory) closedir(directory);
    return count;
}

/* ---- the moment it counts -------------------------------------------------------------------- */

ts_status tsi_folder_publish(const char *part, const char *path, uint64_t id)
{
    char old[PATH_BYTES], parent[PATH_BYTES];
    TSI_TRY(name_of(path, id, ".old", old));
    TSI_TRY(tsi_directory_sync(part));
    parent_of(path, parent);
    bool before = access(path, F_OK) == 0;
    if (before && rename(path, old) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s: cannot be renamed: %s", path, strerror(errno));
    if (rename(part, path) != 0) {
        ts_status status = TSI_FAIL(TS_ERR_IO, "%s: cannot be renamed: %s", part, strerror(errno));
        if (before && rename(old, path) != 0) return status; /* it is found under that name too */
        return status;
    }
    TSI_TRY(tsi_directory_sync(parent));
    if (before) tsi_folder_remove(old);
    return TS_OK;
}
