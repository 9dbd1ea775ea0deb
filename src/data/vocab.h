/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.h - the texts of tokens by id, and ids by text.
 *
 * Texts are bytes in one pool, each followed by a NUL; ids may have gaps. A text has one id and an
 * id one text: the second of either is refused. Zero is an empty vocabulary. */
#ifndef TSI_DATA_VOCAB_H
#define TSI_DATA_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

/* Bounds what a damaged file can make us allocate; published vocabularies stay below 2^19. */
enum { TSI_VOCAB_ID_MAX = (1 << 24) - 1 };

typedef struct tsi_vocab_entry {
    size_t at; /* in the pool */
    uint32_t length;
    bool known;
} tsi_vocab_entry;

typedef struct tsi_vocab {
    char *pool;
    size_t pool_length, pool_capacity;
    tsi_vocab_entry *entry; /* by id */
    int64_t size, capacity; /* size: one more than the largest id */
    uint32_t *slot;         /* open addressing over texts: id + 1; 0: free */
    size_t slot_count, used;
} tsi_vocab;

ts_status tsi_vocab_add(tsi_vocab *vocab, int64_t id, const char *text, size_t length);
/* The id, or -1. */
int32_t tsi_vocab_find(const tsi_vocab *vocab, const char *text, size_t length);
/* NUL-terminated; NULL if there is no such id. length may be NULL. */
const char *tsi_vocab_text(const tsi_vocab *vocab, int64_t id, size_t *length);
void tsi_vocab_release(tsi_vocab *vocab);

#endif
