/* SPDX-License-Identifier: Apache-2.0 */
/* base_memory.c - the counted allocator with its n-th failure, the arena, and what is left. */
#include <pthread.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/room.h"
#include "base/thread.h"
#include "harness/test.h"

TS_TEST(alloc_counts_what_lives)
{
    int64_t before = tsi_alloc_live();
    void *a = tsi_alloc(0), *b = tsi_calloc(3, 5), *c = tsi_alloc_aligned(100, 256);
    char *d = tsi_strdup("text"), *e = tsi_strndup("longer text", 6), *f = tsi_strndup("ab", 9);
    TEST_EQ(t, tsi_alloc_live() - before, 6);
    TEST_CHECK(t, a != NULL && b != NULL && a != b);
    TEST_CHECK(t, memcmp(b, (char[15]){ 0 }, 15) == 0);
    TEST_EQ(t, (uintptr_t)c % 256, 0);
    TEST_TEXT(t, d, "text");
    TEST_TEXT(t, e, "longer");
    TEST_TEXT(t, f, "ab");
    a = tsi_realloc(a, 1000);
    TEST_EQ(t, tsi_alloc_live() - before, 6);
    void *all[] = { a, b, c, d, e, f, NULL };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        tsi_free(all[i]);
    TEST_EQ(t, tsi_alloc_live(), before);
}

/* Of each size two blocks that were written before come back. */
TS_TEST(alloc_gives_zeros_again)
{
    static const unsigned char zeros[2100];
    for (size_t bytes = 0; bytes < sizeof zeros; bytes += 1 + bytes / 64) {
        unsigned char *a = tsi_alloc(bytes), *b = tsi_alloc(bytes);
        memset(a, 0xa5, bytes);
        memset(b, 0x5a, bytes);
        tsi_free(a);
        tsi_free(b);
        a = tsi_calloc(1, bytes);
        b = tsi_calloc(bytes, 1);
        TEST_CHECK(t, a && b && a != b);
        TEST_CHECK(t, memcmp(a, zeros, bytes) == 0 && memcmp(b, zeros, bytes) == 0);
        tsi_free(a);
        tsi_free(b);
    }
}

TS_TEST(alloc_overflow_fails)
{
    TEST_CHECK(t, tsi_calloc(SIZE_MAX / 2, 3) == NULL);
    TEST_CHECK(t, tsi_alloc_array(SIZE_MAX / 2, 3) == NULL);
    TEST_STATUS(t, tsi_fail_memory("a plan", 3 << 20), TS_ERR_MEMORY);
    TEST_SAYS(t, ts_last_error(), "a plan needs 3145728 bytes (3.0 MiB)");
}

TS_TEST(alloc_fails_at_the_nth)
{
    (void)tsi_alloc_fail_at(3);
    void *a = tsi_alloc(1), *b = tsi_realloc(NULL, 1), *c = tsi_calloc(1, 1), *d = tsi_alloc(1);
    TEST_CHECK(t, a != NULL && b != NULL && c == NULL && d != NULL);
    TEST_EQ(t, tsi_alloc_fail_at(1), 4);        /* the failed one was tried too */
    TEST_CHECK(t, tsi_realloc(a, 100) == NULL); /* and a stays */
    TEST_EQ(t, tsi_alloc_fail_at(0), 1);
    TEST_CHECK(t, (c = tsi_alloc_aligned(64, 64)) != NULL);
    tsi_free(a);
    tsi_free(b);
    tsi_free(c);
    tsi_free(d);
}

static void *free_all(void *argument)
{
    void **memory = argument;
    for (int i = 0; i < 100; i++)
        tsi_free(memory[i]);
    return NULL;
}

TS_TEST(alloc_counts_across_threads)
{
    int64_t before = tsi_alloc_live();
    void *memory[100];
    for (int i = 0; i < 100; i++)
        memory[i] = tsi_alloc(16);
    TEST_EQ(t, tsi_alloc_live() - before, 100);
    pthread_t thread;
    TEST_OK(t, tsi_thread_start(&thread, free_all, memory, 0));
    pthread_join(thread, NULL);
    TEST_EQ(t, tsi_alloc_live(), before);
}

TS_TEST(arena_is_aligned_and_keeps_contents)
{
    tsi_arena arena = { 0 };
    enum { COUNT = 3000 };
    unsigned char *piece[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = (size_t)(i % 97);
        piece[i] = tsi_arena_alloc(&arena, bytes);
        TEST_EQ(t, (uintptr_t)piece[i] % 16, 0);
        memset(piece[i], i & 255, bytes);
    }
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < i % 97; k++)
            TEST_SAY(t, piece[i][k] == (i & 255), "piece %d was overwritten at %d", i, k);
    TEST_CHECK(t, tsi_arena_alloc(&arena, SIZE_MAX) == NULL);
    TEST_CHECK(t, tsi_arena_calloc(&arena, SIZE_MAX / 2, 4) == NULL);
    tsi_arena_release(&arena);
    TEST_CHECK(t, arena.first == NULL && tsi_arena_reserved(&arena) == 0);
}

TS_TEST(arena_loop_allocates_once)
{
    tsi_arena arena = { 0 };
    for (int round = 0; round < 50; round++) {
        if (round == 2) (void)tsi_alloc_fail_at(0);
        for (int i = 1; i < 60; i++)
            TEST_CHECK(t, tsi_arena_calloc(&arena, (size_t)i, 700) != NULL);
        tsi_arena_reset(&arena);
    }
    TEST_EQ(t, tsi_alloc_fail_at(0), 0);
    tsi_arena_release(&arena);
}

TS_TEST(arena_rewinds_to_a_mark)
{
    tsi_arena arena = { .block_size = 64 };
    tsi_arena_mark start = tsi_arena_save(&arena);
    char *kept = tsi_arena_strdup(&arena, "kept");
    tsi_arena_mark mark = tsi_arena_save(&arena);
    char *gone =
        tsi_arena_printf(&arena, "%d and %s", 42, "a text that needs a block of its own ........");
    TEST_SAYS(t, gone, "42 and a text");
    tsi_arena_rewind(&arena, mark);
    TEST_TEXT(t, kept, "kept");
    size_t reserved = tsi_arena_reserved(&arena);
    TEST_CHECK(t, tsi_arena_alloc(&arena, 48) == kept + 16);
    tsi_arena_rewind(&arena, start);
    TEST_CHECK(t, tsi_arena_alloc(&arena, 1) == kept);
    TEST_EQ(t, tsi_arena_reserved(&arena), reserved);
    tsi_arena_release(&arena);
}

TS_TEST(arena_survives_a_failed_allocation)
{
    tsi_arena arena = { 0 };
    char *a = tsi_arena_strdup(&arena, "before");
    (void)tsi_alloc_fail_at(1);
    TEST_CHECK(t, tsi_arena_alloc(&arena, 1 << 20) == NULL);
    char *b = tsi_arena_strdup(&arena, "after");
    TEST_TEXT(t, a, "before");
    TEST_TEXT(t, b, "after");
    tsi_arena_release(&arena);
}

TS_TEST(host_has_room_and_no_more_than_there_is)
{
    int64_t bytes = tsi_host_bytes_free();
    TEST_CHECK(t, bytes > 0);
    TEST_CHECK(t, bytes <= (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
}
