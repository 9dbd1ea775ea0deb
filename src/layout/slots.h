/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - what this layer keeps in the slots of a world and of a rank.
 *
 * World: the tables in which meshes, shardings and layouts are one pointer each. Rank: what it
 * asked for lately, so that a repeated question takes no lock, and its mesh handles. A thread
 * without a rank shares the world's memory of recent questions, under a lock.
 *
 * Recent values are held: a value that falls out of its place waits in a ring until as many others
 * have fallen out. So a pointer that was just returned is safe to use without retaining it, and to
 * keep it one retains it. */
#ifndef TSI_LAYOUT_SLOTS_H
#define TSI_LAYOUT_SLOTS_H

#include <pthread.h>

#include "layout/layout.h"

enum { TSI_RECENT_SHARDINGS = 256, TSI_RECENT_LAYOUTS = 1024, TSI_RECENT_FALLEN = 256 };

typedef struct tsi_recent_sharding {
    uint64_t hash; /* of the text and the mesh */
    char *text;    /* owned */
    const ts_sharding *sharding;
} tsi_recent_sharding;

typedef struct tsi_recent {
    pthread_mutex_t *lock; /* NULL: one thread's own */
    const ts_layout *layout[TSI_RECENT_LAYOUTS];
    tsi_recent_sharding sharding[TSI_RECENT_SHARDINGS];
    tsi_interned *fallen[TSI_RECENT_FALLEN];
    uint32_t fallen_next, reserved;
} tsi_recent;

typedef struct tsi_layout_state {
    tsi_intern *meshes, *shardings, *layouts;
    pthread_mutex_t lock;
    tsi_recent recent;
    ts_mesh *handles; /* descriptions without a rank */
} tsi_layout_state;

typedef struct tsi_rank_layouts {
    tsi_recent recent;
    ts_mesh *handles;
    ts_mesh *self;
} tsi_rank_layouts;

extern const tsi_intern_type tsi_mesh_intern_type, tsi_sharding_intern_type, tsi_layout_intern_type;

tsi_layout_state *tsi_layout_state_of(ts_world *world); /* NULL: recorded */
tsi_rank_layouts *tsi_rank_layouts_of(ts_rank *rank);   /* NULL: recorded */
/* The calling thread's memory for that world, locked if it is shared; NULL: recorded. */
tsi_recent *tsi_recent_open(ts_world *world);
static inline void tsi_recent_close(tsi_recent *recent)
{
    if (recent->lock) pthread_mutex_unlock(recent->lock);
}
/* Keeps a reference that left its place for a while longer; takes it. NULL is accepted. */
void tsi_recent_fall(tsi_recent *recent, tsi_interned *value);
/* Holds a value of a maker that no cache knows by its question (a conversion); takes the reference.
 */
ts_status tsi_recent_hold(ts_world *world, tsi_interned *value);
/* The count of references is not part of an interned value, so a const pointer does not forbid
 * counting. */
static inline tsi_interned *tsi_sharding_interned(const ts_sharding *sharding)
{
    union {
        const ts_sharding *given;
        tsi_interned *value;
    } same = { .given = sharding };
    return same.value;
}
static inline tsi_interned *tsi_layout_interned(const ts_layout *layout)
{
    union {
        const ts_layout *given;
        tsi_interned *value;
    } same = { .given = layout };
    return same.value;
}
/* Frees a handle's memory and what it holds; mesh_handle.c. */
void tsi_mesh_free(ts_mesh *mesh);

#endif
