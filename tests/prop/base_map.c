/* SPDX-License-Identifier: Apache-2.0 */
/* base_map.c - random programs on the map and on the arena, against plain oracles. */
#include "base/alloc.h"
#include "base/arena.h"
#include "base/hash.h"
#include "harness/test.h"

/* The oracle is an array indexed by the key. Few distinct homes make long chains to shift back. */
TS_TEST(map_behaves_like_an_array)
{
    enum { KEYS = 64, STEPS = 4000 };
    static char value[KEYS];
    for (int round = 0; round < 50; round++) {
        tsi_map map = { 0 };
        bool present[KEYS] = { false };
        size_t count = 0;
        uint64_t spread =
            round % 2 == 0 ? 1 : (uint64_t)1 << 61; /* the second kind collides a lot */
        for (int step = 0; step < STEPS && !test_failed(t); step++) {
            int key = (int)test_random_below(t, KEYS);
            uint64_t hash = (uint64_t)key * spread + (round % 2 != 0 ? (uint64_t)key : 0);
            void *found = tsi_map_find(&map, hash, NULL, NULL);
            TEST_CHECK(t, found == (present[key] ? &value[key] : NULL));
            if (present[key]) {
                TEST_CHECK(t, tsi_map_remove(&map, hash, NULL, NULL) == &value[key]);
            } else {
                TEST_OK(t, tsi_map_insert(&map, hash, &value[key]));
            }
            present[key] = !present[key];
            count += present[key] ? (size_t)1 : (size_t)-1;
            TEST_EQ(t, map.count, count);
        }
        TEST_SAY(t, map.capacity <= 128, "capacity %zu for %d keys", map.capacity, KEYS);
        tsi_map_release(&map);
    }
}

/* Pieces taken between a mark and its rewind never touch pieces taken before the mark. */
TS_TEST(arena_keeps_what_is_older_than_the_mark)
{
    enum { DEPTH = 12, PIECE = 300 };
    typedef struct frame {
        tsi_arena_mark mark;
        unsigned char *piece;
        size_t bytes;
    } frame;
    for (int round = 0; round < 200; round++) {
        tsi_arena arena = { .block_size = (size_t)test_random_below(t, 512) };
        frame stack[DEPTH];
        int depth = 0;
        for (int step = 0; step < 200 && !test_failed(t); step++) {
            if (depth < DEPTH && test_random_below(t, 5) < 3) {
                frame *f = &stack[depth];
                f->mark = tsi_arena_save(&arena);
                f->bytes = (size_t)test_random_below(t, PIECE);
                f->piece = tsi_arena_alloc(&arena, f->bytes);
                memset(f->piece, depth++, f->bytes);
            } else if (depth > 0) {
                depth -= 1 + (int)test_random_below(t, depth);
                tsi_arena_rewind(&arena, stack[depth].mark);
            }
            for (int i = 0; i < depth; i++)
                for (size_t k = 0; k < stack[i].bytes; k++)
                    TEST_SAY(t, stack[i].piece[k] == i, "piece %d of %d overwritten", i, depth);
        }
        tsi_arena_release(&arena);
    }
}
