/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c - which devices there are, and the one each rank owns.
 *
 * The list is written before the first world opens and never shrinks, so it is read without a lock.
 * A rank takes its world's device on first use, on its own thread, with a queue of its own.
 *
 * INV: a rank keeps its device from first use until its slot is destroyed, which happens after the
 * slots of arrays and tensors: memory goes back to a device that is still attached. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "device/cpu.h"
#include "device/queue.h"

enum { DEVICES_MAX = 64 };

static struct {
    pthread_mutex_t lock;
    const tsi_device *device[DEVICES_MAX];
    _Atomic int32_t count;
} known = { .lock = PTHREAD_MUTEX_INITIALIZER };

static pthread_once_t builtin_once = PTHREAD_ONCE_INIT;

static void builtin_add(void)
{
    known.device[0] = tsi_device_cpu();
    known.device[1] = tsi_device_queue();
    atomic_store_explicit(&known.count, 2, memory_order_release);
}

static int32_t known_count(void)
{
    (void)pthread_once(&builtin_once, builtin_add);
    return atomic_load_explicit(&known.count, memory_order_acquire);
}

/* Those known, in order; NULL: no more. */
static const tsi_device *device_at(int32_t index)
{
    return index >= 0 && index < known_count() ? known.device[index] : NULL;
}

static const tsi_device *find(const char *name)
{
    for (int32_t i = 0; i < known_count(); i++)
        if (strcmp(known.device[i]->name, name) == 0) return known.device[i];
    for (int32_t i = 0; i < known_count(); i++)
        if (strcmp(known.device[i]->kind, name) == 0) return known.device[i];
    return NULL;
}

ts_status tsi_device_add(const tsi_device *device)
{
    (void)known_count(); /* the built-in ones come first */
    pthread_mutex_lock(&known.lock);
    bool there = find(device->name) != NULL; /* two threads may bring the same one */
    int32_t count = atomic_load_explicit(&known.count, memory_order_relaxed);
    if (!there && count < DEVICES_MAX) {
        known.device[count] = device;
        atomic_store_explicit(&known.count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&known.lock);
    if (there || count < DEVICES_MAX) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "device %s: there are %d already", device->name, DEVICES_MAX);
}

const tsi_device *tsi_device_find(const char *name)
{
    const tsi_device *device = name ? find(name) : NULL;
    if (device) return device;
    char names[256] = "";
    size_t used = 0;
    for (int32_t i = 0; i < known_count() && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 known.device[i]->name);
    (void)TSI_FAIL(TS_ERR_MISSING, "there is no device \"%s\"; there are: %s", name ? name : "",
                   names);
    return NULL;
}

const tsi_device *tsi_device_host(void)
{
    return tsi_device_cpu();
}

/* ---- of a world and its ranks ---------------------------------------------------------------- */

/* A pointer to a constant in a slot, which holds what a layer may change: it is only read back. */
typedef union world_device {
    const tsi_device *device;
    void *slot;
} world_device;

void tsi_world_device_set(ts_world *world, const tsi_device *device)
{
    world_device is = { .device = device };
    for (int64_t i = 0; i < world->local_count; i++) /* a rank keeps the one it took */
        TSI_ASSERT(!tsi_slot_get(world->rank[i], TSI_SLOT_DEVICE));
    world->slot[TSI_SLOT_DEVICE].destroy = NULL;
    atomic_store_explicit(&world->slot[TSI_SLOT_DEVICE].state, is.slot, memory_order_release);
}

const tsi_device *tsi_world_device(ts_world *world)
{
    world_device is = { .slot = atomic_load_explicit(&world->slot[TSI_SLOT_DEVICE].state,
                                                     memory_order_acquire) };
    return is.slot ? is.device : tsi_device_cpu();
}

bool tsi_world_describes(ts_world *world)
{
    return tsi_world_device(world) == tsi_device_none();
}

static void rank_device_destroy(void *state)
{
    tsi_rank_device *mine = state;
    if (mine->queue) mine->device->stream_destroy(mine->device, mine->queue);
    if (mine->device->detach) mine->device->detach(mine->device, mine->attached);
    tsi_free(mine);
}

/* The rank's among the devices of the world's kind, in turn by its place on the machine. */
static const tsi_device *device_of(const ts_rank *rank)
{
    const tsi_device *first = tsi_world_device(rank->world), *device;
    int64_t count = 0;
    if (rank->world->local_first < 0) return first;
    for (int32_t i = 0; (device = device_at(i)) != NULL; i++)
        count += strcmp(device->kind, first->kind) == 0;
    int64_t turn = count > 0 ? (rank->world->local_first + rank->local_index) % count : 0;
    for (int32_t i = 0; (device = device_at(i)) != NULL; i++)
        if (strcmp(device->kind, first->kind) == 0 && turn-- == 0) return device;
    return first;
}

bool tsi_world_has_one_memory(ts_world *world)
{
    const tsi_device *first = device_of(world->rank[0]);
    bool one = true;
    for (int64_t i = 1; i < world->local_count && !first->host_readable; i++)
        one = one && device_of(world->rank[i]) == first;
    return one;
}

bool tsi_device_reaches(const tsi_device *device, const tsi_device *other)
{
    return other == device || other->host_readable || !device->reach ||
           device->reach(device, other);
}

bool tsi_world_reaches(ts_world *world)
{
    int64_t count = 1; /* of devices: then it is the first one's turn again */
    while (count < world->local_count && device_of(world->rank[count]) != device_of(world->rank[0]))
        count++;
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < count; k++)
            if (!tsi_device_reaches(device_of(world->rank[i]), device_of(world->rank[k])))
                return false;
    return true;
}

static void *rank_device_create(ts_rank *rank)
{
    tsi_rank_device *mine = tsi_calloc(1, sizeof *mine);
    if (!mine) {
        (void)tsi_fail_memory("the device of a rank", sizeof *mine);
        return NULL;
    }
    const tsi_device *device = device_of(rank);
    if (device->attach && device->attach(device, rank, &mine->attached) != TS_OK) {
        tsi_free(mine);
        return NULL;
    }
    const char *each = getenv("TESSERA_DEVICE_SYNC");
    mine->device = device;
    mine->waits_each = each && strcmp(each, "1") == 0;
    void *theirs = rank->world->stream;
    ts_status status = theirs ? device->stream_adopt(device, theirs, &mine->queue)
                              : device->stream_create(device, &mine->queue);
    if (status == TS_OK) return mine;
    if (device->detach) device->detach(device, mine->attached);
    tsi_free(mine);
    return NULL;
}

const tsi_rank_device *tsi_rank_device_of(ts_rank *rank)
{
    tsi_rank_device *mine = tsi_slot_get(rank, TSI_SLOT_DEVICE);
    if (TSI_LIKELY(mine != NULL)) return mine;
    return tsi_rank_slot(rank, TSI_SLOT_DEVICE, rank_device_create, rank_device_destroy);
}

/* "one of add (step.c:12), matmul (step.c:13) and 4 more": operators called since the last wait,
 * the latest first. "": there are none. */
static void name_suspects(const ts_rank *rank, uint64_t since, char *text, size_t size)
{
    enum { NAMED = 6 };
    int64_t found = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint64_t n = tsi_ring_last(rank->ring); n > since; n--) {
        tsi_event event;
        if (!tsi_ring_read(rank->ring, n, &event)) break; /* overwritten: older ones are, too */
        if (event.kind != TSI_EVENT_OP) continue;
        if (++found > NAMED || used + 1 >= size) continue;
        bool placed = event.where && event.where[0];
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s%s",
                                 found > 1 ? ", " : "one of ", event.kind_name, placed ? " (" : "",
                                 placed ? event.where : "", placed ? ")" : "");
    }
    if (found > NAMED && used + 1 < size)
        (void)snprintf(text + used, size - used, " and %lld more", (long long)(found - NAMED));
}

ts_status tsi_rank_device_sync(ts_rank *rank)
{
    tsi_rank_device *mine = tsi_slot_get(rank, TSI_SLOT_DEVICE);
    if (!mine || !mine->queue) return TS_OK;
    mine->waits++;
    bool was_well = !mine->device->fault || !mine->device->fault(mine->device);
    ts_status status = mine->device->stream_sync(mine->device, mine->queue);
    if (status == TS_ERR_LOST && was_well) {
        char suspects[512];
        name_suspects(rank, mine->waited, suspects, sizeof suspects);
        if (suspects[0]) tsi_error_prefix("%s", suspects);
    }
    mine->waited = tsi_ring_last(rank->ring);
    const tsi_error_record *told = atomic_load_explicit(&rank->told, memory_order_acquire);
    if (status != TS_OK || !told) return status;
    tsi_rank_take_error(rank, told); /* what the queue brought is not what was asked for */
    return told->error.status;
}

ts_status tsi_rank_device_meet(ts_rank *rank, void *stream, bool back)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine) return TS_ERR_MEMORY; /* recorded */
    const tsi_device *device = mine->device;
    if (device->stream_meet) return device->stream_meet(device, mine->queue, stream, back);
    if (!stream) return TS_OK; /* nothing is on its way there */
    return TSI_FAIL(TS_ERR_ARG, "stream: device %s has none of others", device->name);
}

ts_status tsi_rank_device_pace(ts_rank *rank)
{
    const tsi_rank_device *mine = tsi_slot_get(rank, TSI_SLOT_DEVICE);
    return mine && mine->waits_each ? tsi_rank_device_sync(rank) : TS_OK;
}
