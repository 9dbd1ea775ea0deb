/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - reading and writing files so that every failure names the file and the reason. */
#ifndef TSI_DATA_FILE_H
#define TSI_DATA_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

/* The whole file, NUL-terminated, owned by the caller; more than bytes_max is refused. */
ts_status tsi_file_read(const char *path, size_t bytes_max, char **out, size_t *length);
/* Opens for reading a regular file and says how long it is. -1 in *out on failure. */
ts_status tsi_file_open(const char *path, int *out, int64_t *bytes);
/* Up to `bytes` at an offset; less only at the end of the file. */
ts_status tsi_file_read_at(const char *path, int file, int64_t offset, void *to, size_t bytes,
                           size_t *done);
ts_status tsi_file_write(const char *path, int file, const void *data, size_t bytes);
/* Syncs and closes the file (in every case), renames it to `path` and syncs the directory. */
ts_status tsi_file_publish(const char *temporary, int file, const char *path);

#endif
