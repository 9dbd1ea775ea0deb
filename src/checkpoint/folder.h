/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h - how a checkpoint's directory comes and goes so that a crash at any moment leaves the
 * one before or the new one.
 *
 *   PATH.ID.part   being written; locked by those who write
 *   PATH           complete
 *   PATH.ID.old    what PATH was, between the two renames of a save over it
 *
 * INV: a directory that is called PATH is complete. Under the other two names only what saves made
 * is found; a .part that nobody locks belongs to a process that is gone. Those who give up one
 * leave it to the others who write there; the last one removes it. */
#ifndef TSI_CHECKPOINT_FOLDER_H
#define TSI_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

enum { TSI_FOLDER_PATH_MAX = 4096 };

ts_status tsi_folder_make(const char *path); /* with its parents */
/* The name that a directory has while it is written. */
ts_status tsi_folder_part(const char *path, uint64_t id, char *out);
/* Makes it, if nobody else did, and says that somebody writes there until *lock is closed. */
ts_status tsi_folder_begin(const char *part, int *lock);
/* Removes it where it is empty and nobody else writes there; then the lock, which may be -1, is to
 * be closed. */
void tsi_folder_abandon(const char *part, int lock);
/* Removes what saves into `path` that were killed left, puts back what one had put aside, and
 * refuses if another save into it is under way. `id` is one's own. */
ts_status tsi_folder_clean(const char *path, uint64_t id);
/* The same for all that lies in a directory, whose names have no dot otherwise. */
ts_status tsi_folder_sweep(const char *directory);
/* The directory that was `path` when a save over it was killed between its renames. */
bool tsi_folder_find_old(const char *path, char *out, size_t size);
int64_t tsi_folder_count(const char *part); /* data files in it */
/* Syncs the part, and gives it its name. */
ts_status tsi_folder_publish(const char *part, const char *path, uint64_t id);
/* Removes the directory and the files in it, under another name first if it is complete. */
void tsi_folder_remove(const char *path);
void tsi_folder_retire(const char *path, uint64_t id);
/* What is free for this user on the disk of the directory; false: it is not known. */
bool tsi_folder_free(const char *path, int64_t *bytes);
enum { TSI_FOLDER_SPARE = 1 << 20 }; /* bytes for headers that a save wants beside its data */
/* Is there room for so many bytes on the disk of the directory? */
ts_status tsi_folder_room(const char *path, int64_t bytes);

#endif
