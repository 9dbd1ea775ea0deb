/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory that is freed all at once. Allocation is a pointer bump; a mark can be rewound.
 * Zero-initialised is valid. Blocks are kept on reset, so a steady loop allocates nothing. */
#ifndef TSI_BASE_ARENA_H
#define TSI_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "tessera/export.h"

typedef struct tsi_arena_block tsi_arena_block;
typedef struct tsi_arena {
    tsi_arena_block *first, *current;
    size_t used;       /* bytes used of current */
    size_t block_size; /* of the next block; 0: 16 KiB */
} tsi_arena;
typedef struct tsi_arena_mark {
    tsi_arena_block *block;
    size_t used;
} tsi_arena_mark;

void *tsi_arena_alloc(tsi_arena *arena, size_t bytes); /* 16-byte aligned; NULL on failure */
void *tsi_arena_calloc(tsi_arena *arena, size_t count, size_t bytes);
char *tsi_arena_strdup(tsi_arena *arena, const char *text);
char *tsi_arena_printf(tsi_arena *arena, const char *format, ...) TS_PRINTF(2, 3);
tsi_arena_mark tsi_arena_save(const tsi_arena *arena);
void tsi_arena_rewind(tsi_arena *arena, tsi_arena_mark mark);
void tsi_arena_reset(tsi_arena *arena);   /* keeps the blocks */
void tsi_arena_release(tsi_arena *arena); /* frees them; the arena is zero again */
size_t tsi_arena_reserved(const tsi_arena *arena);

#endif
