/* SPDX-License-Identifier: Apache-2.0 */
/* shared_storage.c - the storages of a world: found by group and number, counted.
 *
 * INV: a storage is in its world's list as long as somebody holds it; the list lives as long as the
 * world or any of them. */
#include "base/alloc.h"
#include "parallel/common.h"
#include "parallel/shared.h"

typedef struct tsi_house { /* the storages of a world */
    pthread_mutex_t lock;
    int64_t references; /* guarded by the lock, as all below: the world's, and of each storage */
    struct tsi_shared *first;
} tsi_house;

static void house_release(tsi_house *h)
{
    pthread_mutex_lock(&h->lock);
    bool last = --h->references == 0;
    pthread_mutex_unlock(&h->lock);
    if (!last) return;
    pthread_mutex_destroy(&h->lock);
    tsi_free(h);
}

static void *house_create(ts_world *world)
{
    (void)world;
    tsi_house *h = tsi_calloc(1, sizeof *h);
    if (!h) {
        (void)tsi_fail_memory("shards that ranks share", sizeof *h);
        return NULL;
    }
    pthread_mutex_init(&h->lock, NULL);
    h->references = 1;
    return h;
}

static void house_destroy(void *state)
{
    house_release(state);
}

static void shared_free(tsi_shared *s)
{
    if (s->data) s->device->buffer_free(s->device, s->data, s->bytes);
    for (int64_t i = 0; i < s->seats; i++) {
        if (s->seat[i].passed) s->device->event_destroy(s->device, s->seat[i].passed);
        pthread_mutex_destroy(&s->seat[i].lock);
    }
    tsi_free(s->seat);
    tsi_free(s);
}

void tsi_shared_release(tsi_shared *s)
{
    tsi_house *h = s->house;
    pthread_mutex_lock(&h->lock);
    bool last = --s->references == 0;
    for (tsi_shared **link = &h->first; last && *link; link = &(*link)->next)
        if (*link == s) {
            *link = s->next;
            break;
        }
    pthread_mutex_unlock(&h->lock);
    if (!last) return;
    shared_free(s);
    house_release(h);
}

static tsi_shared *shared_make(const tsi_device *device, size_t bytes, int64_t seats)
{
    tsi_shared *s = tsi_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->device = device;
    s->bytes = bytes;
    s->seat = tsi_alloc_aligned((size_t)seats * sizeof *s->seat, TSI_CACHE_LINE);
    if (!s->seat || device->buffer_alloc(device, bytes, &s->data) != TS_OK) {
        shared_free(s);
        return NULL;
    }
    for (; s->seats < seats; s->seats++) {
        tsi_seat *one = &s->seat[s->seats];
        atomic_init(&one->released, 0);
        pthread_mutex_init(&one->lock, NULL);
        one->passed = NULL;
    }
    return s;
}

tsi_shared *tsi_shared_take(ts_rank *rank, uint64_t group, int64_t serial, size_t bytes,
                            int64_t seats)
{
    tsi_house *h = tsi_common_of(rank->world, TSI_COMMON_SHARDS, house_create, house_destroy);
    if (!h) return NULL;
    pthread_mutex_lock(&h->lock);
    tsi_shared *s = h->first;
    while (s && (s->group != group || s->serial != serial))
        s = s->next;
    if (!s) {
        s = shared_make(tsi_world_device(rank->world), bytes, seats);
        if (s) {
            s->house = h;
            s->group = group;
            s->serial = serial;
            s->next = h->first;
            h->first = s;
            h->references++;
        }
    }
    if (s) s->references++;
    pthread_mutex_unlock(&h->lock);
    if (!s) (void)tsi_fail_memory("shards that ranks share", bytes);
    return s;
}

void tsi_shared_retain(tsi_shared *s)
{
    pthread_mutex_lock(&s->house->lock);
    s->references++;
    pthread_mutex_unlock(&s->house->lock);
}
