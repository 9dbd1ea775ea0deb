/* SPDX-License-Identifier: Apache-2.0 */
/* file.c - POSIX files. Interrupted and partial calls are continued here and nowhere else.
 *
 * Only regular files are read, and only up to a length that the caller names: a pipe, a device or a
 * terminal in place of a file is a sentence, never a wait (INV-9) or a read without end. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

ts_status tsi_file_open(const char *path, int *out, int64_t *bytes)
{
    *bytes = 0;
    /* Without O_NONBLOCK, opening a pipe waits for somebody to write to it. */
    *out = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about;
    if (*out < 0 || fstat(*out, &about) != 0) {
        int reason = errno;
        if (*out >= 0) close(*out);
        *out = -1;
        return TSI_FAIL(TS_ERR_IO, "%s: cannot be opened: %s", path, strerror(reason));
    }
    if (!S_ISREG(about.st_mode)) {
        close(*out);
        *out = -1;
        return TSI_FAIL(TS_ERR_IO, "%s: is not a regular file", path);
    }
    *bytes = about.st_size;
    return TS_OK;
}

ts_status tsi_file_read_at(const char *path, int file, int64_t offset, void *to, size_t bytes,
                           size_t *done)
{
    *done = 0;
    while (*done < bytes) {
        ssize_t got = pread(file, (char *)to + *done, bytes - *done, offset + (off_t)*done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return TSI_FAIL(TS_ERR_IO, "%s: cannot be read at byte %lld: %s", path,
                            (long long)offset, strerror(errno));
        if (got == 0) break;
        *done += (size_t)got;
    }
    return TS_OK;
}

ts_status tsi_file_read(const char *path, size_t bytes_max, char **out, size_t *length)
{
    *out = NULL;
    *length = 0;
    int file;
    int64_t bytes;
    TSI_TRY(tsi_file_open(path, &file, &bytes));
    ts_status status = TS_OK;
    if ((uint64_t)bytes > bytes_max)
        status = TSI_FAIL(TS_ERR_IO, "%s: has %lld bytes, more than the %zu that are sensible",
                          path, (long long)bytes, bytes_max);
    char *text = status == TS_OK ? tsi_alloc((size_t)bytes + 1) : NULL;
    if (status == TS_OK && text == NULL) status = tsi_fail_memory(path, (size_t)bytes);
    if (status == TS_OK) status = tsi_file_read_at(path, file, 0, text, (size_t)bytes, length);
    close(file);
    if (status != TS_OK) {
        tsi_free(text);
        *length = 0;
        return status;
    }
    text[*length] = '\0';
    *out = text;
    return TS_OK;
}

ts_status tsi_file_write(const char *path, int file, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t put = write(file, (const char *)data + done, bytes - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return TSI_FAIL(TS_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
        done += (size_t)put;
    }
    return TS_OK;
}

ts_status tsi_directory_sync(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = folder >= 0 && (fsync(folder) == 0 || errno == EINVAL);
    int reason = errno;
    if (folder >= 0) close(folder);
    return good ? TS_OK
                : TSI_FAIL(TS_ERR_IO, "%s: the directory cannot be synced: %s", path,
                           strerror(reason));
}

/* A rename survives a crash only when the directory is synced too. */
static ts_status sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = slash == NULL ? tsi_strdup(".") : tsi_strndup(path, (size_t)(slash - path + 1));
    if (name == NULL) return tsi_fail_memory("a path", strlen(path));
    ts_status status = tsi_directory_sync(name);
    tsi_free(name);
    return status;
}

ts_status tsi_file_publish(const char *temporary, int file, const char *path)
{
    bool synced = fsync(file) == 0;
    int reason = errno;
    bool closed = close(file) == 0;
    if (!synced || !closed)
        return TSI_FAIL(TS_ERR_IO, "%s: cannot be written: %s", temporary,
                        strerror(synced ? errno : reason));
    if (rename(temporary, path) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s: cannot be renamed to %s: %s", temporary, path,
                        strerror(errno));
    return sync_parent(path);
}

ts_status tsi_file_replace(const char *path, const void *data, size_t bytes)
{
    tsi_text name = { 0 };
    tsi_text_printf(&name, "%s.tmp", path);
    char *temporary = tsi_text_take(&name);
    if (temporary == NULL) return TS_ERR_MEMORY;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    ts_status status = TS_OK;
    if (file < 0)
        status = TSI_FAIL(TS_ERR_IO, "%s: cannot be created: %s", temporary, strerror(errno));
    if (status == TS_OK) {
        status = tsi_file_write(temporary, file, data, bytes);
        if (status == TS_OK)
            status = tsi_file_publish(temporary, file, path);
        else
            close(file);
        if (status != TS_OK) unlink(temporary);
    }
    tsi_free(temporary);
    return status;
}
