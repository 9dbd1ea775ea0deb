/* SPDX-License-Identifier: Apache-2.0 */
/* array_pool.c - the caching allocator: accounts by tag, reuse, frees by other threads, and an end
 * while others still hold blocks. */
#include "array/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "harness/test.h"

TS_TEST(pool_accounts)
{
    tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    void *a = tsi_pool_alloc(pool, 1000, TSI_TAG_PARAMETER);
    void *b = tsi_pool_alloc(pool, 50, TSI_TAG_GRADIENT);
    TEST_CHECK(t, a && b && (uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_PARAMETER).live, 1000);
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_GRADIENT).live, 50);
    TEST_EQ(t, tsi_pool_used(pool, -1).live, 1050);
    TEST_EQ(t, tsi_pool_reserved(pool), 1024 + 64);
    tsi_pool_free(pool, a, 1000, TSI_TAG_PARAMETER);
    TEST_EQ(t, tsi_pool_used(pool, -1).live, 50);
    TEST_EQ(t, tsi_pool_used(pool, -1).peak, 1050);
    TEST_EQ(t, tsi_pool_reserved(pool), 1024 + 64);
    void *c = tsi_pool_alloc(pool, 1024, TSI_TAG_OPTIMIZER);
    TEST_SAY(t, c == a, "a freed block of the same class is used again");
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_OPTIMIZER).allocations, 1);
    tsi_pool_free(pool, c, 1024, TSI_TAG_OPTIMIZER);
    tsi_pool_peak_reset(pool);
    TEST_EQ(t, tsi_pool_used(pool, -1).peak, 50);
    TEST_EQ(t, tsi_pool_used(pool, TSI_TAG_PARAMETER).peak, 0);
    tsi_pool_trim(pool);
    TEST_EQ(t, tsi_pool_reserved(pool), 64);
    tsi_pool_free(pool, b, 50, TSI_TAG_GRADIENT);
    tsi_pool_free(pool, NULL, 0, 0);
    tsi_pool_destroy(pool);
    tsi_pool_destroy(NULL);
    TEST_EQ(t, tsi_alloc_live(), 0);
}

/* Who holds what, the largest first, and beside it what was planned. */
TS_TEST(pool_refuses_with_its_plan)
{
    tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    tsi_pool_plan plan = { .peak = 900, .tag = { [TSI_TAG_PARAMETER] = 100 } };
    void *a = tsi_pool_alloc(pool, 50, TSI_TAG_GRADIENT);
    void *b = tsi_pool_alloc(pool, 1000, TSI_TAG_PARAMETER);
    TEST_CHECK(t, tsi_pool_alloc(pool, SIZE_MAX / 2, TSI_TAG_ACTIVATION) == NULL);
    TEST_SAYS(t, ts_last_error(), "1050 in use: parameter 1000, gradient 50");
    tsi_pool_plan_for(pool, &plan);
    TEST_CHECK(t, tsi_pool_alloc(pool, SIZE_MAX / 2, TSI_TAG_ACTIVATION) == NULL);
    TEST_SAYS(t, ts_last_error(), "no memory for activation (");
    TEST_SAYS(t, ts_last_error(),
              "1050 in use (planned 900 at most): parameter 1000 (planned 100), "
              "gradient 50 (planned 0)");
    tsi_pool_plan_for(pool, NULL);
    TEST_CHECK(t, tsi_pool_alloc(pool, SIZE_MAX / 2, TSI_TAG_ACTIVATION) == NULL);
    TEST_CHECK(t, !strstr(ts_last_error(), "planned"));
    tsi_pool_free(pool, a, 50, TSI_TAG_GRADIENT);
    tsi_pool_free(pool, b, 1000, TSI_TAG_PARAMETER);
    tsi_pool_destroy(pool);
}

/* Live bytes, peaks, and what the pool was made of at its own, against plain sums. */
TS_TEST(pool_peaks_are_those_of_plain_sums)
{
    enum { TAGS = 4, BLOCKS = 24, STEPS = 4000 };
    tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    int64_t live[TAGS] = { 0 }, peak[TAGS] = { 0 }, at_peak[TAGS] = { 0 }, all = 0, most = 0;
    void *block[BLOCKS] = { NULL };
    size_t bytes[BLOCKS] = { 0 };
    for (int step = 0; step < STEPS; step++) {
        int64_t b = test_random_below(t, BLOCKS);
        uint32_t tag = (uint32_t)(b % TAGS);
        if (block[b]) {
            tsi_pool_free(pool, block[b], bytes[b], tag);
            block[b] = NULL;
            live[tag] -= (int64_t)bytes[b];
            all -= (int64_t)bytes[b];
        } else {
            bytes[b] = (size_t)test_random_below(t, 9000);
            block[b] = tsi_pool_alloc(pool, bytes[b], tag);
            live[tag] += (int64_t)bytes[b];
            all += (int64_t)bytes[b];
        }
        bool reset = test_random_below(t, 200) == 0;
        if (reset) tsi_pool_peak_reset(pool);
        for (int k = 0; k < TAGS; k++) {
            if (all > most || reset) at_peak[k] = live[k];
            if (live[k] > peak[k] || reset) peak[k] = live[k];
            tsi_pool_usage used = tsi_pool_used(pool, k);
            TEST_EQ(t, used.live, live[k]);
            TEST_EQ(t, used.peak, peak[k]);
            TEST_EQ(t, used.at_peak, at_peak[k]);
        }
        if (all > most || reset) most = all;
        TEST_EQ(t, tsi_pool_used(pool, -1).peak, most);
    }
    for (int b = 0; b < BLOCKS; b++)
        tsi_pool_free(pool, block[b], bytes[b], (uint32_t)(b % TAGS));
    tsi_pool_destroy(pool);
}

/* Every size gets room enough, at most an eighth too much (a step of 64 for small ones). */
TS_TEST(pool_size_classes)
{
    tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    for (size_t bytes = 0; bytes < 6u << 20;
         bytes = bytes < 5000 ? bytes + 7 : bytes + bytes / 9 + 1) {
        int64_t before = tsi_pool_reserved(pool);
        char *p = tsi_pool_alloc(pool, bytes, 0);
        int64_t got = tsi_pool_reserved(pool) - before;
        TEST_SAY(t, p && got >= (int64_t)bytes && got <= (int64_t)(bytes + bytes / 8 + 64),
                 "%zu bytes got %lld", bytes, (long long)got);
        if (p && bytes > 0) p[0] = p[bytes - 1] = 1;
        tsi_pool_free(pool, p, bytes, 0);
        tsi_pool_trim(pool);
        TEST_EQ(t, tsi_pool_reserved(pool), before);
    }
    tsi_pool_destroy(pool);
}

TS_TEST(pool_refuses_the_impossible)
{
    tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    TEST_CHECK(t, tsi_pool_alloc(pool, SIZE_MAX - 5, TSI_TAG_GRADIENT) == NULL);
    TEST_SAYS(t, ts_last_error(), "gradient");
    TEST_CHECK(t, tsi_pool_alloc(pool, (size_t)1 << 61, TSI_TAG_GRADIENT) == NULL);
    TEST_EQ(t, tsi_pool_used(pool, -1).live, 0);
    TEST_EQ(t, tsi_pool_reserved(pool), 0);
    tsi_pool_destroy(pool);
}

/* ---- other threads */

enum { BLOCKS = 2000, THREADS = 4 };
typedef struct exchange {
    tsi_pool *pool;
    _Atomic(void *) slot[BLOCKS];
} exchange;

static size_t size_of(int i)
{
    return (size_t)(i % 37) * 48 + 1;
}

static void *free_blocks(void *argument)
{
    exchange *x = argument;
    for (int left = BLOCKS / THREADS, i = 0; left > 0; i = (i + 1) % BLOCKS) {
        void *p = atomic_exchange_explicit(&x->slot[i], NULL, memory_order_acquire);
        if (!p) continue;
        memset(p, 1, size_of(i));
        tsi_pool_free(x->pool, p, size_of(i), TSI_TAG_ACTIVATION);
        left--;
    }
    return NULL;
}

static void hand_out(test *t, exchange *x, pthread_t *thread)
{
    for (int i = 0; i < THREADS; i++)
        TEST_EQ(t, pthread_create(&thread[i], NULL, free_blocks, x), 0);
    for (int i = 0; i < BLOCKS; i++) {
        void *p = tsi_pool_alloc(x->pool, size_of(i), TSI_TAG_ACTIVATION);
        TEST_CHECK(t, p != NULL);
        memset(p, 2, size_of(i));
        atomic_store_explicit(&x->slot[i], p, memory_order_release);
    }
}

TS_TEST(pool_frees_of_other_threads)
{
    static exchange x;
    pthread_t thread[THREADS];
    x.pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    for (int round = 0; round < 3; round++) {
        hand_out(t, &x, thread);
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        TEST_EQ(t, tsi_pool_used(x.pool, -1).live, 0);
    }
    int64_t reserved = tsi_pool_reserved(x.pool);
    void *p = tsi_pool_alloc(x.pool, size_of(5), 0); /* from the returned ones */
    TEST_EQ(t, tsi_pool_reserved(x.pool), reserved);
    tsi_pool_free(x.pool, p, size_of(5), 0);
    tsi_pool_destroy(x.pool);
    TEST_EQ(t, tsi_alloc_live(), 0);
}

/* The owner destroys the pool while the others are still busy with its blocks. */
TS_TEST(pool_outlives_its_owner)
{
    static exchange x;
    for (int round = 0; round < 10; round++) {
        pthread_t thread[THREADS];
        x.pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
        hand_out(t, &x, thread);
        tsi_pool_destroy(x.pool);
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        TEST_EQ(t, tsi_alloc_live(), 0);
    }
}

static void *allocate_elsewhere(void *argument)
{
    exchange *x = argument;
    for (int i = 0; i < 200; i++) {
        void *p = tsi_pool_alloc(x->pool, size_of(i), TSI_TAG_COMM);
        if (p) memset(p, 3, size_of(i));
        if (i < 100)
            tsi_pool_free(x->pool, p, size_of(i), TSI_TAG_COMM);
        else
            atomic_store_explicit(&x->slot[i], p, memory_order_release);
    }
    return NULL;
}

TS_TEST(pool_allocation_by_another_thread)
{
    static exchange x;
    pthread_t thread;
    x.pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    TEST_EQ(t, pthread_create(&thread, NULL, allocate_elsewhere, &x), 0);
    for (int i = 0; i < 2000; i++) {
        void *p = tsi_pool_alloc(x.pool, size_of(i), 0);
        tsi_pool_free(x.pool, p, size_of(i), 0);
    }
    pthread_join(thread, NULL);
    for (int i = 100; i < 200; i++)
        tsi_pool_free(x.pool, atomic_load_explicit(&x.slot[i], memory_order_acquire), size_of(i),
                      TSI_TAG_COMM);
    TEST_EQ(t, tsi_pool_used(x.pool, -1).live, 0);
    tsi_pool_destroy(x.pool);
    TEST_EQ(t, tsi_alloc_live(), 0);
}

/* ---- failing memory */

TS_TEST(pool_every_allocation_fails_once)
{
    for (int64_t n = 1; n < 40; n++) {
        (void)tsi_alloc_fail_at(n);
        tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
        void *p[8] = { NULL };
        int64_t live = 0;
        for (int i = 0; pool && i < 8; i++) {
            p[i] = tsi_pool_alloc(pool, (size_t)i * 100 + 1, 0);
            if (p[i]) live += i * 100 + 1;
            if (!p[i]) TEST_SAYS(t, ts_last_error(), "memory");
        }
        (void)tsi_alloc_fail_at(0);
        if (pool) TEST_EQ(t, tsi_pool_used(pool, -1).live, live);
        for (int i = 0; pool && i < 8; i++)
            tsi_pool_free(pool, p[i], (size_t)i * 100 + 1, 0);
        tsi_pool_destroy(pool);
        TEST_EQ(t, tsi_alloc_live(), 0);
    }
}

/* A block that the device refuses is tried again after the cache has been given back to it. */
TS_TEST(pool_retries_after_trimming)
{
    tsi_pool *pool = tsi_pool_create(tsi_device_host(), NULL, NULL);
    void *p = tsi_pool_alloc(pool, 5000, 0);
    tsi_pool_free(pool, p, 5000, 0);
    (void)tsi_alloc_fail_at(2); /* the node is made, its buffer fails */
    void *q = tsi_pool_alloc(pool, 100000, 0);
    (void)tsi_alloc_fail_at(0);
    TEST_CHECK(t, q != NULL);
    TEST_EQ(t, tsi_pool_reserved(pool), 106496); /* the cached 5 KiB are gone */
    tsi_pool_free(pool, q, 100000, 0);
    tsi_pool_destroy(pool);
}

TS_TEST(pool_of_a_rank)
{
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 64, &world));
    ts_rank *rank = world->rank[0];
    tsi_rank_set_current(rank);
    tsi_pool *pool = tsi_pool_of(rank);
    TEST_CHECK(t, pool != NULL && pool == tsi_pool_of(rank));
    void *kept = tsi_pool_alloc(pool, 4096, TSI_TAG_PARAMETER);
    uint64_t last = tsi_ring_last(rank->ring);
    tsi_event event;
    TEST_CHECK(t, last > 0 && tsi_ring_read(rank->ring, last, &event));
    TEST_EQ(t, event.kind, TSI_EVENT_ALLOC);
    TEST_EQ(t, event.bytes, 4096);
    tsi_rank_set_current(NULL);
    tsi_world_unmake(world);
    tsi_pool_free(pool, kept, 4096, TSI_TAG_PARAMETER); /* the pool lived for it */
    TEST_EQ(t, tsi_alloc_live(), 0);
}
