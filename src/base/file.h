/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - reading and writing files so that every failure names the file and the reason. */
#ifndef TSI_BASE_FILE_H
#define TSI_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

/* The whole regular file, NUL-terminated, owned by the caller; more than bytes_max is refused. This
 * is how the library reads every file that a user names. */
ts_status tsi_file_read(const char *path, size_t bytes_max, char **out, size_t *length);
/* Opens a regular file for reading, without waiting, and says how long it is. -1 in *out on
 * failure. */
ts_status tsi_file_open(const char *path, int *out, int64_t *bytes);
/* Up to `bytes` at an offset; less only at the end of the file. */
ts_status tsi_file_read_at(const char *path, int file, int64_t offset, void *to, size_t bytes,
                           size_t *done);
ts_status tsi_file_write(const char *path, int file, const void *data, size_t bytes);
/* The file becomes these bytes: written beside it, synced, renamed. A reader, and a machine that
 * stops, sees the old bytes or the new ones. */
ts_status tsi_file_replace(const char *path, const void *data, size_t bytes);
/* What was created, renamed or removed in a directory survives a crash from here on. */
ts_status tsi_directory_sync(const char *path);
/* Syncs and closes the file (in every case), renames it to `path` and syncs the directory. */
ts_status tsi_file_publish(const char *temporary, int file, const char *path);

#endif
