/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.h - all host memory of tessera that is not tensor data comes from here.
 *
 * Every allocation may fail and returns NULL then; the caller reports with tsi_fail_memory. Tests
 * make the n-th allocation of the process fail. */
#ifndef TSI_BASE_ALLOC_H
#define TSI_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

void *tsi_alloc(size_t bytes);                           /* bytes 0 gives a unique pointer */
void *tsi_calloc(size_t count, size_t bytes);            /* zeroed; overflow fails */
void *tsi_alloc_array(size_t count, size_t bytes);       /* not zeroed; overflow fails */
void *tsi_realloc(void *memory, size_t bytes);           /* on failure memory stays */
void *tsi_alloc_aligned(size_t bytes, size_t alignment); /* freed by tsi_free too */
void tsi_free(void *memory);                             /* accepts NULL */
/* Memory that a thread or the process keeps beyond every world: not counted as live. Pages are huge
 * where it is aligned to them. */
void *tsi_alloc_kept(size_t bytes, size_t alignment);
void tsi_free_kept(void *memory); /* accepts NULL */
enum { TSI_HUGE_PAGE = 2 << 20 };
/* A wish that the system may not grant: then pages are small. */
void tsi_wish_huge_pages(void *memory, size_t bytes);
char *tsi_strdup(const char *text);
char *tsi_strndup(const char *text, size_t length);

/* Records TS_ERR_MEMORY with what was wanted; returns it. */
ts_status tsi_fail_memory(const char *what, size_t bytes);

/* Room behind `count` items of an array that doubles; `array` is the address of its pointer, which
 * stays as it is where there is no memory for `what` (recorded). */
ts_status tsi_room_grow(void *array, int64_t count, int64_t *capacity, size_t item,
                        const char *what);
static inline ts_status tsi_room(void *array, int64_t count, int64_t *capacity, size_t item,
                                 const char *what)
{
    return count < *capacity ? TS_OK : tsi_room_grow(array, count, capacity, item, what);
}

/* The n-th allocation from now fails (1: the next one), and only that; 0 switches it off. Returns
 * how many allocations were tried since the last call, n of it at least if one failed.
 * Process-wide. */
int64_t tsi_alloc_fail_at(int64_t n);
int64_t tsi_alloc_live(void); /* allocations not yet freed, for leak tests */

#endif
