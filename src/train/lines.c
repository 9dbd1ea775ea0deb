/* SPDX-License-Identifier: Apache-2.0 */
/* lines.c - files with an object a line beside the log: experts.jsonl, norms.jsonl.
 *
 * INV: lines begin with {"step": N and are in order. A run that goes on after step N cuts what is
 * behind it off first, so that a step is told once however often it was taken. A line is there as a
 * whole or not at all, also where a disk gets full. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "train/run.h"

/* Cuts the file behind its last whole line of a step up to `last`; lines are in order. */
static ts_status cut_lines(const char *path, int64_t last)
{
    static const char head[] = "{\"step\": ";
    char *text = NULL, *end;
    size_t length = 0, kept = 0;
    if (access(path, F_OK) != 0) return TS_OK;
    TSI_TRY(tsi_file_read(path, (size_t)1 << 36, &text, &length));
    while ((end = memchr(text + kept, '\n', length - kept)) != NULL &&
           strncmp(text + kept, head, sizeof head - 1) == 0 &&
           strtoll(text + kept + sizeof head - 1, NULL, 10) <= last)
        kept = (size_t)(end + 1 - text);
    tsi_free(text);
    if (truncate(path, (off_t)kept) == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
}

ts_status tsi_line_put(FILE *file, const char *name, const char *line)
{
    int to = fileno(file);
    off_t begin = lseek(to, 0, SEEK_END);
    ts_status status = tsi_file_write(name, to, line, strlen(line));
    if (status != TS_OK && begin >= 0 && ftruncate(to, begin) != 0)
        tsi_log(TSI_LOG_WARN, "train: %s ends with a line that is not whole", name);
    return status;
}

ts_status tsi_run_line(const tsi_run *run, FILE **file, const char *name, tsi_text *text)
{
    char path[TSI_CONFIG_TEXT_MAX], *line = tsi_text_take(text);
    if (!line) return TS_ERR_MEMORY;
    ts_status status = TS_OK;
    if (!*file) {
        status = tsi_train_path(run->config, name, path);
        if (status == TS_OK && run->plan.step_first > 0)
            status = cut_lines(path, run->plan.step_first);
        if (status == TS_OK) *file = fopen(path, run->plan.step_first > 0 ? "a" : "w");
    }
    if (status == TS_OK)
        status = *file ? tsi_line_put(*file, name, line)
                       : TSI_FAIL(TS_ERR_IO, "%s: %s", name, strerror(errno));
    tsi_free(line);
    return status;
}
