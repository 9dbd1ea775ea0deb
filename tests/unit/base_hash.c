/* SPDX-License-Identifier: Apache-2.0 */
/* base_hash.c - hashes, the map, the interning table and the generator of random numbers. */
#include <pthread.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/intern.h"
#include "base/philox.h"
#include "base/thread.h"
#include "harness/test.h"

TS_TEST(hash_depends_on_length_and_seed)
{
    static const char zeros[32];
    for (size_t a = 0; a < sizeof zeros; a++)
        for (size_t b = 0; b < a; b++)
            TEST_CHECK(t, tsi_hash_bytes(0, zeros, a) != tsi_hash_bytes(0, zeros, b));
    TEST_CHECK(t, tsi_hash_text(1, "dp") != tsi_hash_text(2, "dp"));
    TEST_CHECK(t, tsi_hash_text(1, "dp") == tsi_hash_bytes(1, "dp", 2));
}

/* Hashes travel between processes and machines, so their values are part of the format. */
TS_TEST(hash_values_are_pinned)
{
    TEST_CHECK(t, tsi_hash_text(0, "tessera") == 0xf927317253b4552c);
    TEST_CHECK(t, tsi_hash_text(1, "layers.3.attention.wq") == 0xb22753c528f93648);
}

TS_TEST(hash_is_the_same_at_every_address)
{
    char buffer[80];
    uint64_t first = 0;
    for (size_t shift = 0; shift < 16; shift++) {
        memcpy(buffer + shift, "the same text wherever it begins", 32);
        uint64_t h = tsi_hash_bytes(7, buffer + shift, 32);
        if (shift == 0) first = h;
        TEST_CHECK(t, h == first);
    }
}

/* Every bit of the input must be able to turn about half of the output bits. */
TS_TEST(hash_avalanches)
{
    for (int bit = 0; bit < 96; bit++) {
        int turned = 0;
        for (int round = 0; round < 64; round++) {
            unsigned char data[12];
            for (size_t i = 0; i < sizeof data; i++)
                data[i] = (unsigned char)test_random(t);
            uint64_t before = tsi_hash_bytes(0, data, sizeof data);
            data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
            for (uint64_t x = before ^ tsi_hash_bytes(0, data, sizeof data); x != 0; x &= x - 1)
                turned++;
        }
        TEST_SAY(t, turned > 64 * 27 && turned < 64 * 37, "bit %d turns %d of 4096", bit, turned);
    }
}

static bool equal_int(const void *value, const void *wanted)
{
    return *(const int *)value == *(const int *)wanted;
}

/* Equal hashes, different values: the map must go through `equal`. */
TS_TEST(map_tells_colliding_keys_apart)
{
    tsi_map map = { 0 };
    int value[40];
    for (int i = 0; i < 40; i++) {
        value[i] = i;
        TEST_OK(t, tsi_map_insert(&map, (uint64_t)(i % 3), &value[i]));
    }
    for (int i = 0; i < 40; i += 2)
        TEST_CHECK(t, tsi_map_remove(&map, (uint64_t)(i % 3), equal_int, &i) == &value[i]);
    for (int i = 0; i < 40; i++)
        TEST_CHECK(t, tsi_map_find(&map, (uint64_t)(i % 3), equal_int, &i) ==
                          (i % 2 == 0 ? NULL : &value[i]));
    TEST_EQ(t, map.count, 20);
    tsi_map_release(&map);
}

TS_TEST(map_insert_survives_failed_allocation)
{
    tsi_map map = { 0 };
    int value = 0, made = 0;
    (void)tsi_alloc_fail_at(3);
    while (tsi_map_insert(&map, (uint64_t)made, &value) == TS_OK)
        made++;
    TEST_SAYS(t, ts_last_error(), "a hash map");
    TEST_EQ(t, map.count, made);
    for (int i = 0; i < made; i++)
        TEST_CHECK(t, tsi_map_find(&map, (uint64_t)i, NULL, NULL) == &value);
    TEST_OK(t, tsi_map_insert(&map, (uint64_t)made, &value));
    tsi_map_release(&map);
    TEST_CHECK(t, tsi_map_find(&map, 0, NULL, NULL) == NULL);
    TEST_CHECK(t, tsi_map_remove(&map, 0, NULL, NULL) == NULL);
}

/* The vectors published with the generator for Philox4x32-10: counter, key, result. */
TS_TEST(philox_known_answers)
{
    static const struct {
        uint64_t key, low, high;
        uint32_t want[4];
    } vector[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822,
          0x85a308d3243f6a88,
          0x0370734413198a2e,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof vector / sizeof vector[0]; i++) {
        tsi_philox_block got = tsi_philox(vector[i].key, vector[i].low, vector[i].high);
        for (int w = 0; w < 4; w++)
            TEST_EQ(t, got.word[w], vector[i].want[w]);
    }
}

/* A value of the interning tests: an int, counted by the test. */
typedef struct number {
    tsi_interned head;
    int value;
} number;
static _Atomic int numbers_alive;

static bool number_equal(const tsi_interned *value, const void *key)
{
    return ((const number *)(const void *)value)->value == *(const int *)key;
}

static tsi_interned *number_make(const void *key, void *context)
{
    (void)context;
    number *n = tsi_calloc(1, sizeof *n);
    if (n == NULL) {
        (void)tsi_fail_memory("a number", sizeof *n);
        return NULL;
    }
    n->value = *(const int *)key;
    atomic_fetch_add(&numbers_alive, 1);
    return &n->head;
}

static void number_destroy(tsi_interned *value)
{
    atomic_fetch_sub(&numbers_alive, 1);
    tsi_free(value);
}

static const tsi_intern_type number_type = { "number", number_equal, number_make, number_destroy };

static tsi_interned *number_get(tsi_intern *table, int value)
{
    return tsi_intern_get(table, tsi_hash_mix(0, (uint64_t)value), &value, NULL);
}

TS_TEST(intern_gives_one_pointer)
{
    tsi_intern *table = tsi_intern_create(&number_type);
    tsi_interned *a = number_get(table, 5), *b = number_get(table, 5), *c = number_get(table, 6);
    TEST_CHECK(t, a == b && a != c && a->table == table);
    TEST_EQ(t, atomic_load(&a->references), 2);
    tsi_interned_release(a);
    tsi_interned_release(b);
    TEST_CHECK(t, number_get(table, 5) == a); /* still findable */
    tsi_intern_stats stats = tsi_intern_statistics(table);
    TEST_EQ(t, stats.live, 2);
    TEST_EQ(t, stats.hits, 2);
    TEST_EQ(t, stats.misses, 2);
    tsi_intern_destroy(table);
    TEST_EQ(t, numbers_alive, 0);
}

/* A table that sees ever new values stays small, and what is held is never dropped. */
TS_TEST(intern_is_weak)
{
    tsi_intern *table = tsi_intern_create(&number_type);
    tsi_interned *held[50];
    for (int i = 0; i < 50; i++)
        held[i] = number_get(table, -1 - i);
    for (int i = 0; i < 100000; i++)
        tsi_interned_release(number_get(table, i));
    tsi_intern_stats stats = tsi_intern_statistics(table);
    TEST_SAY(t, stats.live < 1000, "%lld values live", (long long)stats.live);
    TEST_EQ(t, stats.live + stats.dropped, 100050);
    TEST_EQ(t, numbers_alive, stats.live);
    for (int i = 0; i < 50; i++)
        TEST_CHECK(t, number_get(table, -1 - i) == held[i]);
    tsi_intern_destroy(table);
    TEST_EQ(t, numbers_alive, 0);
}

TS_TEST(intern_reports_failed_allocation)
{
    for (int n = 1; n <= 3; n++) {
        (void)tsi_alloc_fail_at(n);
        tsi_intern *table = tsi_intern_create(&number_type);
        if (table == NULL) {
            TEST_EQ(t, n, 1);
            TEST_SAYS(t, ts_last_error(), "number");
            continue;
        }
        TEST_CHECK(t, number_get(table, 1) == NULL);
        TEST_CHECK(t, number_get(table, 1) != NULL);
        tsi_intern_destroy(table);
    }
    TEST_EQ(t, numbers_alive, 0);
}

typedef struct intern_user {
    tsi_intern *table;
    uint64_t state;
    int wrong;
} intern_user;

/* Takes and drops random values; while one is held, getting it again must give the same pointer. */
static void *intern_use(void *argument)
{
    intern_user *user = argument;
    for (int i = 0; i < 20000; i++) {
        user->state = tsi_hash_mix(user->state, 1);
        int value = (int)(user->state % 3000);
        tsi_interned *a = number_get(user->table, value), *b = number_get(user->table, value);
        user->wrong += a != b || ((number *)(void *)a)->value != value;
        tsi_interned_release(b);
        tsi_interned_release(a);
    }
    return NULL;
}

TS_TEST(intern_under_eight_threads)
{
    enum { THREADS = 8 };
    tsi_intern *table = tsi_intern_create(&number_type);
    pthread_t thread[THREADS];
    intern_user user[THREADS];
    for (int i = 0; i < THREADS; i++) {
        user[i] = (intern_user){ .table = table, .state = test_random(t) };
        TEST_OK(t, tsi_thread_start(&thread[i], intern_use, &user[i], 0));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        TEST_EQ(t, user[i].wrong, 0);
    }
    tsi_intern_stats stats = tsi_intern_statistics(table);
    TEST_EQ(t, stats.hits + stats.misses, 2 * THREADS * 20000);
    TEST_EQ(t, stats.live, numbers_alive);
    TEST_CHECK(t, stats.dropped > 0);
    tsi_intern_destroy(table);
    TEST_EQ(t, numbers_alive, 0);
}
