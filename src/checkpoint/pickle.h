/* SPDX-License-Identifier: Apache-2.0 */
/* pickle.h - the few parts of Python's pickles that checkpoints of other systems are made of, read
 * as plain values.
 *
 * A pickle is a program for a small stack machine whose opcodes may import and call anything. Here
 * nothing is imported and nothing called: a class is the name that stands there and one of a list
 * that the caller gives, an object is its class with what it would be made of. Every other opcode
 * and every other name is refused with a sentence that says which and where.
 *
 * INV: a value lives in the caller's arena and refers to other values of it alone; it may contain
 * itself, so whoever walks further than fields that it knows counts its depth. Memory is at most a
 * constant times the bytes of the pickle. */
#ifndef TSI_CHECKPOINT_PICKLE_H
#define TSI_CHECKPOINT_PICKLE_H

#include <stdbool.h>

#include "base/arena.h"
#include "tessera/status.h"

typedef enum tsi_pickle_kind {
    TSI_PICKLE_NONE,
    TSI_PICKLE_BOOL,   /* number */
    TSI_PICKLE_INT,    /* number */
    TSI_PICKLE_REAL,   /* real */
    TSI_PICKLE_TEXT,   /* text: UTF-8 without NUL */
    TSI_PICKLE_BYTES,  /* count bytes, which are not kept */
    TSI_PICKLE_TUPLE,  /* item[0 .. count) */
    TSI_PICKLE_LIST,   /* item[0 .. count) */
    TSI_PICKLE_DICT,   /* key, value, key, value, ...: count is twice that of the keys */
    TSI_PICKLE_CLASS,  /* text: "module.name" */
    TSI_PICKLE_OBJECT, /* class, arguments (a tuple), state (NULL: none) */
    TSI_PICKLE_STORED  /* item[0]: what a persistent id is made of */
} tsi_pickle_kind;

typedef struct tsi_pickled {
    tsi_pickle_kind kind;
    int32_t count, capacity, reserved;
    union {
        int64_t number;
        double real;
        const char *text;
        struct tsi_pickled **item;
    };
} tsi_pickled;

/* Names "module.name" that may occur; a '*' at the end stands for any rest. NULL ends it. */
typedef const char *const *tsi_pickle_names;

/* `path` and `base`, the place of the first byte in that file, begin sentences. */
ts_status tsi_pickle_read(const char *path, int64_t base, const void *data, size_t bytes,
                          tsi_pickle_names names, tsi_arena *memory, const tsi_pickled **out);

/* ---- looking at values: all accept NULL, and answer NULL or false where it is something else - */
const tsi_pickled *tsi_pickle_item(const tsi_pickled *value, int32_t index); /* tuple, list */
const tsi_pickled *tsi_pickle_member(const tsi_pickled *dict, const char *name);
bool tsi_pickle_int(const tsi_pickled *value, int64_t *out);
const char *tsi_pickle_text(const tsi_pickled *value);
bool tsi_pickle_is(const tsi_pickled *value,
                   const char *name); /* an object or class of that name */
const tsi_pickled *tsi_pickle_arguments(const tsi_pickled *object);
const tsi_pickled *tsi_pickle_state(const tsi_pickled *object);

#endif
