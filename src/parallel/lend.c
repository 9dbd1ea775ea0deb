/* SPDX-License-Identifier: Apache-2.0 */
/* lend.c - loans of a world: see lend.h. */
#include "parallel/lend.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "layout/layout.h"
#include "parallel/common.h"
#include "tensor/tensor.h"

typedef struct loan {
    struct loan *next;    /* of those that are free */
    tsi_storage *storage; /* retained for who takes it; NULL: nobody will */
    ts_array block;
} loan;

typedef struct loans { /* of a world */
    pthread_mutex_t lock;
    loan *free;
    loan **all; /* every one there is */
    int64_t count, capacity;
} loans;

static void *loans_create(ts_world *world)
{
    (void)world;
    loans *l = tsi_calloc(1, sizeof *l);
    if (!l)
        (void)tsi_fail_memory("loans", sizeof *l);
    else
        (void)pthread_mutex_init(&l->lock, NULL);
    return l;
}

static void loans_destroy(void *state)
{
    loans *l = state;
    for (int64_t i = 0; i < l->count; i++) {
        tsi_storage_release(l->all[i]->storage);
        tsi_free(l->all[i]);
    }
    (void)pthread_mutex_destroy(&l->lock);
    tsi_free(l->all);
    tsi_free(l);
}

static loans *loans_of(const ts_rank *rank)
{
    return tsi_common_of(rank->world, TSI_COMMON_LOANS, loans_create, loans_destroy);
}

bool tsi_lends(ts_rank *rank)
{
    const tsi_rank_device *where = tsi_rank_device_of(rank);
    return where && where->device->host_readable && !tsi_world_describes(rank->world) &&
           strcmp(ts_world_engine(rank->world), "threads") == 0;
}

/* Locked. */
static loan *loan_make(loans *l)
{
    if (tsi_room(&l->all, l->count, &l->capacity, sizeof *l->all, "loans") != TS_OK) return NULL;
    loan *one = tsi_calloc(1, sizeof *one);
    if (one)
        l->all[l->count++] = one;
    else
        (void)tsi_fail_memory("a loan", sizeof *one);
    return one;
}

static loan *loan_get(loans *l)
{
    (void)pthread_mutex_lock(&l->lock);
    loan *one = l->free;
    if (one)
        l->free = one->next;
    else
        one = loan_make(l);
    (void)pthread_mutex_unlock(&l->lock);
    return one;
}

static void loan_put(loans *l, loan *one)
{
    (void)pthread_mutex_lock(&l->lock);
    one->next = l->free;
    l->free = one;
    (void)pthread_mutex_unlock(&l->lock);
}

/* The block, or a dense one where it repeats an element. Retained. */
static tsi_array *lendable(ts_tensor *x)
{
    if (!tsi_array_repeats(x->array)) return tsi_array_retain(x->array);
    ts_shape shape = tsi_array_shape(x->array);
    tsi_array *dense = tsi_array_create(x->rank, (ts_dtype)x->dtype, &shape);
    if (dense && tsi_array_copy(dense, x->array) == TS_OK) return dense;
    tsi_array_release(dense);
    return NULL;
}

uint64_t tsi_lend(ts_tensor *x)
{
    loans *l = loans_of(x->rank);
    tsi_array *array = l ? lendable(x) : NULL;
    loan *one = array ? loan_get(l) : NULL;
    if (one) {
        tsi_array_describe(array, &one->block);
        one->storage = array->storage;
        tsi_storage_retain(one->storage);
    }
    tsi_array_release(array);
    return (uint64_t)(uintptr_t)one;
}

static void give_back(void *storage)
{
    tsi_storage_release(storage);
}

ts_tensor *tsi_borrow(ts_rank *rank, uint64_t number, const ts_meta *meta,
                      const ts_sharding *sharding)
{
    loans *l = loans_of(rank);
    loan *one = (loan *)(uintptr_t)number;
    if (!l || !one) return NULL;
    ts_mesh *mesh = tsi_mesh_of(rank, sharding->mesh);
    const ts_layout *layout = mesh ? tsi_layout_intern(sharding, &meta->shape) : NULL;
    if (!layout) return NULL;
    ts_array block = one->block;
    block.done = give_back;
    block.context = one->storage;
    tsi_array *array = tsi_array_wrap(rank, &block);
    if (array) {                          /* it is the array's now */
        array->storage->read_only = true; /* the lender may need it as it is */
        one->storage = NULL;
        loan_put(l, one);
    }
    ts_tensor *t = array ? tsi_tensor_make(mesh, layout, (ts_dtype)meta->dtype, array, NULL) : NULL;
    ts_layout_release(layout);
    return t;
}
