/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - the directory of a run: who may write in it, and what a run that was killed left.
 *
 * INV: a run holds the lock of its directory from before it writes until it ends, so that there is
 * one writer; the kernel lets go of it however the process ends. What lies there under a temporary
 * name while the lock is held belongs to a run that is gone, and is removed. Only names that runs
 * make are touched: the directory may be anybody's. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/folder.h"
#include "train/run.h"

enum { PATH_BYTES = TSI_CONFIG_TEXT_MAX + 300 };

/* ---- the lock -------------------------------------------------------------------------------- */

/* Says who holds it, as that run wrote it down: just after it took the lock, so that it may be a
 * moment away. */
static ts_status fail_locked(const char *output, int file)
{
    enum { LOOKS = 50, BETWEEN_NS = 4000000 };
    char holder[128] = "";
    for (int look = 0; look < LOOKS && !strchr(holder, '\n'); look++) {
        if (look > 0) (void)nanosleep(&(struct timespec){ .tv_nsec = BETWEEN_NS }, NULL);
        ssize_t got = pread(file, holder, sizeof holder - 1, 0);
        holder[got > 0 ? got : 0] = '\0';
    }
    holder[strcspn(holder, "\n")] = '\0';
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                          "train.output: another run%s%s%s is writing into \"%s\"; wait for it, "
                          "stop it, or choose another directory",
                          holder[0] ? " (" : "", holder, holder[0] ? ")" : "", output);
}

static ts_status take_lock(tsi_run *run)
{
    char path[TSI_CONFIG_TEXT_MAX], text[128], host[64] = "";
    TSI_TRY(tsi_train_path(run->config, "lock", path));
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file < 0) return TSI_FAIL(TS_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
        ts_status status = TS_OK;
        if (errno == EWOULDBLOCK)
            status = fail_locked(run->config->train.output, file);
        else /* a file system without locks: nothing is worse than before */
            tsi_log(TSI_LOG_WARN, "train: %s cannot be locked: %s", path, strerror(errno));
        close(file);
        return status;
    }
    run->lock = file;
    (void)gethostname(host, sizeof host - 1);
    int length = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    if (ftruncate(file, 0) == 0) TSI_TRY(tsi_file_write(path, file, text, (size_t)length));
    return TS_OK;
}

/* ---- leftovers ------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length > tail && strcmp(name + length - tail, end) == 0;
}

/* Removes what has a temporary name in a folder that only runs write to. */
static ts_status sweep(const tsi_run *run, const char *name)
{
    char folder[TSI_CONFIG_TEXT_MAX];
    TSI_TRY(tsi_train_path(run->config, name, folder));
    DIR *directory = opendir(folder);
    if (!directory) return TS_OK;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char path[PATH_BYTES + 300];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (ends_with(entry->d_name, ".tmp")) unlink(path);
    }
    closedir(directory);
    return TS_OK;
}

ts_status tsi_output_open(tsi_run *run)
{
    char path[TSI_CONFIG_TEXT_MAX];
    TSI_TRY(tsi_folder_make(run->config->train.output));
    TSI_TRY(take_lock(run));
    static const char *const folders[] = { "model", "tokens" };
    static const char *const files[] = { "train.jsonl.tmp", "report.html.tmp" };
    TSI_TRY(tsi_train_path(run->config, "state", path));
    TSI_TRY(tsi_folder_sweep(path));
    for (size_t i = 0; i < TSI_COUNT_OF(folders); i++)
        TSI_TRY(sweep(run, folders[i]));
    for (size_t i = 0; i < TSI_COUNT_OF(files); i++) {
        TSI_TRY(tsi_train_path(run->config, files[i], path));
        unlink(path);
    }
    return TS_OK;
}

void tsi_output_close(tsi_run *run)
{
    if (run->lock >= 0) close(run->lock);
    run->lock = -1;
}
