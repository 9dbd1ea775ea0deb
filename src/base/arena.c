/* SPDX-License-Identifier: Apache-2.0 */
/* arena.c - memory that is freed all at once.
 *
 *   first -> block -> current -> block (kept from before a rewind)
 *                       ^ used
 * Blocks before `current` are full, those after it are empty. A rewind only moves `current` and
 * `used` back; a block too small for a request is stepped over, not freed, so a loop that repeats
 * its requests finds the same blocks again. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"

enum { ALIGNMENT = 16, BLOCK_FIRST = 16 * 1024, BLOCK_MAX = 1024 * 1024 };

struct tsi_arena_block {
    tsi_arena_block *next;
    size_t capacity;
};
_Static_assert(sizeof(tsi_arena_block) % ALIGNMENT == 0, "data follow the head of a block aligned");

static char *block_data(tsi_arena_block *block)
{
    return (char *)(block + 1);
}

static bool enter_block(tsi_arena *arena, tsi_arena_block *block)
{
    arena->current = block;
    arena->used = 0;
    return true;
}

/* Makes a block with room for `bytes` the current one: a kept one, or a new one after current. */
static TSI_NOINLINE bool next_block(tsi_arena *arena, size_t bytes)
{
    tsi_arena_block *after = arena->current != NULL ? arena->current->next : arena->first;
    for (tsi_arena_block *block = after; block != NULL; block = block->next)
        if (block->capacity >= bytes) return enter_block(arena, block);
    size_t capacity = arena->block_size != 0 ? arena->block_size : BLOCK_FIRST;
    /* Doubling keeps the number of blocks small without a guess by the caller. */
    if (capacity < BLOCK_MAX) arena->block_size = 2 * capacity;
    if (capacity < bytes) capacity = bytes;
    size_t total;
    if (!tsi_add_size(capacity, sizeof(tsi_arena_block), &total)) return false;
    tsi_arena_block *block = tsi_alloc_aligned(total, ALIGNMENT);
    if (block == NULL) return false;
    *block = (tsi_arena_block){ .next = after, .capacity = capacity };
    if (arena->current != NULL)
        arena->current->next = block;
    else
        arena->first = block;
    return enter_block(arena, block);
}

void *tsi_arena_alloc(tsi_arena *arena, size_t bytes)
{
    size_t need;
    if (!tsi_add_size(bytes > 0 ? bytes : 1, ALIGNMENT - 1, &need)) return NULL;
    need &= ~(size_t)(ALIGNMENT - 1);
    if (arena->current == NULL || need > arena->current->capacity - arena->used)
        if (!next_block(arena, need)) return NULL;
    void *memory = block_data(arena->current) + arena->used;
    arena->used += need;
    return memory;
}

void *tsi_arena_calloc(tsi_arena *arena, size_t count, size_t bytes)
{
    size_t total;
    if (!tsi_mul_size(count, bytes, &total)) return NULL;
    void *memory = tsi_arena_alloc(arena, total);
    return memory != NULL ? memset(memory, 0, total) : NULL;
}

char *tsi_arena_strdup(tsi_arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = tsi_arena_alloc(arena, size);
    return copy != NULL ? memcpy(copy, text, size) : NULL;
}

char *tsi_arena_printf(tsi_arena *arena, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length >= 0 ? tsi_arena_alloc(arena, (size_t)length + 1) : NULL;
    if (text != NULL) (void)vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

tsi_arena_mark tsi_arena_save(const tsi_arena *arena)
{
    return (tsi_arena_mark){ .block = arena->current, .used = arena->used };
}

void tsi_arena_rewind(tsi_arena *arena, tsi_arena_mark mark)
{
    TSI_ASSERT(!mark.block || mark.used <= mark.block->capacity);
    /* A mark taken before the first block existed means the beginning. */
    arena->current = mark.block != NULL ? mark.block : arena->first;
    arena->used = mark.block != NULL ? mark.used : 0;
}

void tsi_arena_reset(tsi_arena *arena)
{
    arena->current = arena->first;
    arena->used = 0;
}

void tsi_arena_release(tsi_arena *arena)
{
    for (tsi_arena_block *block = arena->first, *next; block != NULL; block = next) {
        next = block->next;
        tsi_free(block);
    }
    *arena = (tsi_arena){ 0 };
}

size_t tsi_arena_reserved(const tsi_arena *arena)
{
    size_t bytes = 0;
    for (const tsi_arena_block *block = arena->first; block != NULL; block = block->next)
        bytes += block->capacity;
    return bytes;
}
