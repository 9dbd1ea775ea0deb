/* SPDX-License-Identifier: Apache-2.0 */
/* common.c - places in the world's slot of this layer: see common.h. */
#include "parallel/common.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct places {
    pthread_mutex_t lock;
    void *state[TSI_COMMON_COUNT];
    void (*destroy[TSI_COMMON_COUNT])(void *state);
} places;

static void *places_create(ts_world *world)
{
    (void)world;
    places *p = tsi_calloc(1, sizeof *p);
    if (p)
        (void)pthread_mutex_init(&p->lock, NULL);
    else
        (void)tsi_fail_memory("what ranks share", sizeof *p);
    return p;
}

static void places_destroy(void *state)
{
    places *p = state;
    for (int i = 0; i < TSI_COMMON_COUNT; i++)
        if (p->state[i]) p->destroy[i](p->state[i]);
    (void)pthread_mutex_destroy(&p->lock);
    tsi_free(p);
}

void *tsi_common_of(ts_world *world, tsi_common which, void *(*create)(ts_world *world),
                    void (*destroy)(void *state))
{
    places *p = tsi_world_slot(world, TSI_SLOT_PARALLEL, places_create, places_destroy);
    if (!p) return NULL;
    (void)pthread_mutex_lock(&p->lock);
    if (!p->state[which]) {
        p->state[which] = create(world);
        p->destroy[which] = destroy;
    }
    void *state = p->state[which];
    (void)pthread_mutex_unlock(&p->lock);
    return state;
}
