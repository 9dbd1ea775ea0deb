/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h - what the parts of `tessera ckpt` share. */
#ifndef CLI_CKPT_H
#define CLI_CKPT_H

#include "cli.h"

int ckpt_diff(int argc, char **argv);    /* ckpt_diff.c */
int ckpt_convert(int argc, char **argv); /* ckpt_convert.c */
int ckpt_cat(int argc, char **argv);     /* ckpt_cat.c */

/* Opens a checkpoint, or says on standard error why not and returns the exit code: 2 if nothing is
 * there, 1 if it is damaged. -1: open. */
int ckpt_open(const char *command, const char *path, ts_archive **out);

/* One element as text: whole numbers, the shortest digits that read back, a+bj. `number` is what
 * ts_archive_read gives for ckpt_read_as(dtype). */
enum { CKPT_NUMBER_MAX = 96 };
ts_dtype ckpt_read_as(ts_dtype dtype);
const char *ckpt_number(char *out, ts_dtype dtype, const void *number);

/* A line on standard error that is drawn over, where that is a terminal. */
typedef struct ckpt_progress {
    const char *what;
    double shown;
    bool terminal;
} ckpt_progress;
ckpt_progress ckpt_progress_begin(const char *what);
void ckpt_progress_show(int64_t done, int64_t all, void *progress);
void ckpt_progress_end(ckpt_progress *progress);

#endif
