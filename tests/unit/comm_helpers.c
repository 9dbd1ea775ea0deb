/* SPDX-License-Identifier: Apache-2.0 */
/* comm_helpers.c - helper threads without any engine: no kick is lost, whoever kicks and whenever,
 * and a kick for many wakes many. Each wait here ends with what it waits for; a lost kick is the
 * test's timeout. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "comm/helpers.h"
#include "harness/test.h"

enum { HELPERS = 4, KICKERS = 3, KICKS = 10000 };

typedef struct desk {
    tsi_helpers helpers;
    _Atomic int64_t wanted[KICKERS], served[KICKERS];
    _Atomic int32_t inside, meets; /* helpers in progress; so many wait for each other */
    _Atomic int32_t met;
} desk;

/* Serves what was wanted when it looked. */
static bool serve(void *state)
{
    desk *d = state;
    for (int k = 0; k < KICKERS; k++) {
        int64_t wanted = atomic_load_explicit(&d->wanted[k], memory_order_seq_cst);
        int64_t served = atomic_load_explicit(&d->served[k], memory_order_seq_cst);
        while (served < wanted &&
               !atomic_compare_exchange_weak_explicit(&d->served[k], &served, wanted,
                                                      memory_order_seq_cst, memory_order_seq_cst)) {
        }
    }
    return false;
}

/* Stays until as many are inside as are to meet. */
static bool meet(void *state)
{
    desk *d = state;
    int32_t meets = atomic_load_explicit(&d->meets, memory_order_seq_cst);
    if (meets == 0) return false;
    if (atomic_fetch_add_explicit(&d->inside, 1, memory_order_seq_cst) + 1 >= meets)
        atomic_store_explicit(&d->met, 1, memory_order_seq_cst);
    while (!atomic_load_explicit(&d->met, memory_order_seq_cst))
        sched_yield();
    atomic_fetch_sub_explicit(&d->inside, 1, memory_order_seq_cst);
    return false;
}

static void wait_until_sleeping(const desk *d, uint32_t count)
{
    while (atomic_load_explicit(&d->helpers.sleeping, memory_order_seq_cst) != count)
        sched_yield();
}

typedef struct kicker {
    pthread_t thread;
    desk *desk;
    int64_t index;
} kicker;

/* One after another, each waited for: a helper may be at any place of its loop when it comes. */
static void *kick_often(void *argument)
{
    const kicker *own = argument;
    desk *d = own->desk;
    for (int64_t i = 1; i <= KICKS; i++) {
        atomic_store_explicit(&d->wanted[own->index], i, memory_order_seq_cst);
        tsi_helpers_kick(&d->helpers, 1 + (i + own->index) % HELPERS);
        while (atomic_load_explicit(&d->served[own->index], memory_order_seq_cst) < i)
            sched_yield();
    }
    return NULL;
}

static void begin(test *t, desk *d, const tsi_engine *engine)
{
    TEST_OK(t, tsi_helpers_init(&d->helpers, engine, d, HELPERS));
    d->helpers.limit = HELPERS; /* whatever the cores are */
    TEST_OK(t, tsi_helpers_start(&d->helpers));
    TEST_EQ(t, d->helpers.count, HELPERS);
}

TS_TEST(no_kick_is_lost)
{
    static desk d;
    const tsi_engine engine = { .name = "desk", .direct = true, .progress = serve };
    kicker own[KICKERS];
    begin(t, &d, &engine);
    for (int64_t k = 0; k < KICKERS; k++) {
        own[k] = (kicker){ .desk = &d, .index = k };
        TEST_EQ(t, pthread_create(&own[k].thread, NULL, kick_often, &own[k]), 0);
    }
    for (int64_t k = 0; k < KICKERS; k++)
        pthread_join(own[k].thread, NULL);
    for (int64_t k = 0; k < KICKERS; k++)
        TEST_EQ(t, d.served[k], KICKS);
    wait_until_sleeping(&d, HELPERS); /* and nobody looks for ever */
    tsi_helpers_release(&d.helpers);
}

/* All that are wanted are awake at once: each but the first was woken by another. */
TS_TEST(a_kick_for_many_wakes_many)
{
    static desk d;
    const tsi_engine engine = { .name = "desk", .direct = true, .progress = meet };
    begin(t, &d, &engine);
    for (int32_t round = 0; round < 200; round++) {
        wait_until_sleeping(&d, HELPERS);
        atomic_store_explicit(&d.met, 0, memory_order_seq_cst);
        atomic_store_explicit(&d.meets, 1 + round % HELPERS, memory_order_seq_cst);
        tsi_helpers_kick(&d.helpers, 1 + round % HELPERS);
        /* One for few, while it is under way, takes nothing from it. */
        if (round % 3 == 0) tsi_helpers_kick(&d.helpers, 1);
        while (!atomic_load_explicit(&d.met, memory_order_seq_cst))
            sched_yield();
        atomic_store_explicit(&d.meets, 0, memory_order_seq_cst);
    }
    TEST_CHECK(t, atomic_load_explicit(&d.helpers.wanted, memory_order_seq_cst) < HELPERS);
    tsi_helpers_release(&d.helpers);
}
