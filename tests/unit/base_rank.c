/* SPDX-License-Identifier: Apache-2.0 */
/* base_rank.c - where errors go, the gate of recorded functions, and slots. */
#include "base/rank.h"

#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "harness/test.h"

TS_TEST(status_names_and_meanings)
{
    TEST_TEXT(t, ts_status_name(TS_ERR_ARG), "TS_ERR_ARG");
    TEST_TEXT(t, ts_status_name((ts_status)-99), "TS_ERR_UNKNOWN");
    TEST_TEXT(t, ts_status_meaning(TS_OK), "no error");
    TEST_SAYS(t, ts_status_meaning((ts_status)5), "does not know");
}

TS_TEST(error_without_rank_goes_to_the_thread)
{
    TEST_TEXT(t, ts_last_error(), "");
    TEST_STATUS(t, TSI_FAIL(TS_ERR_SHAPE, "inner dims differ, %d vs %d", 3, 4), TS_ERR_SHAPE);
    tsi_error_prefix("%s", "matmul");
    TEST_TEXT(t, ts_last_error(), "matmul: inner dims differ, 3 vs 4");
    tsi_error_prefix("%s", "matmul"); /* once is enough */
    TEST_TEXT(t, ts_last_error(), "matmul: inner dims differ, 3 vs 4");
    tsi_error_prefix("%s", "mat");
    TEST_TEXT(t, ts_last_error(), "mat: matmul: inner dims differ, 3 vs 4");
    (void)TSI_FAIL(TS_ERR_SHAPE, "matmul: inner dims differ, 3 vs 4");
    TEST_STATUS(t, TSI_FAIL(TS_ERR_ARG, "outer (%s)", ts_last_error()), TS_ERR_ARG);
    TEST_TEXT(t, ts_last_error(), "outer (matmul: inner dims differ, 3 vs 4)");
    TEST_STATUS(t, TSI_FAIL(TS_OK, "not an error"), TS_ERR_INTERNAL);
}

TS_TEST(error_text_is_cut_visibly)
{
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)TSI_FAIL(TS_ERR_ARG, "%s", text);
    TEST_EQ(t, strlen(ts_last_error()), TSI_ERROR_TEXT_MAX - 1);
    TEST_SAYS(t, ts_last_error(), "xxx...");
    tsi_error_prefix("%s", "plan");
    TEST_EQ(t, strlen(ts_last_error()), TSI_ERROR_TEXT_MAX - 1);
    TEST_SAYS(t, ts_last_error(), "plan: xxx");
}

static int told;
static void count_telling(ts_rank *rank, const ts_error *error)
{
    told += rank->index == error->rank ? 1 : 100;
}

TS_TEST(places_within_the_library_count_until_a_program_has_one)
{
    ts_world *world;
    TEST_OK(t, tsi_world_make(1, 1, 0, 16, &world));
    const ts_rank *me = world->rank[0];
    tsi_rank_set_current(world->rank[0]);
    TEST_CHECK(t, tsi_here_within("../../src/model/part.c:3") == NULL);
    TEST_TEXT(t, me->where, "src/model/part.c:3");
    ts_here_literal("mine.c:12");
    (void)tsi_here_within("src/model/part.c:4");
    TEST_TEXT(t, me->where, "mine.c:12");
    tsi_rank_set_current(NULL);
    TEST_CHECK(t, tsi_here_within("src/model/part.c:5") == NULL);
    tsi_world_unmake(world);
}

TS_TEST(rank_keeps_the_first_error)
{
    ts_world *world;
    TEST_OK(t, tsi_world_make(8, 2, 4, 16, &world));
    ts_rank *me = world->rank[1];
    tsi_rank_set_current(me);
    me->on_error = count_telling;
    TEST_OK(t, ts_rank_status(me));
    TEST_CHECK(t, ts_rank_error(me) == NULL);
    TEST_OK(t, tsi_rank_enter(me));
    char place[] = "model.c:12"; /* the caller's: it is copied */
    ts_here(place);
    memcpy(place, "xxxxx", 5);
    me->label = "layers.3";
    uint64_t event = tsi_ring_begin(me->ring, &(tsi_event){ .kind = TSI_EVENT_OP });
    TEST_STATUS(t, TSI_FAIL(TS_ERR_MEMORY, "first"), TS_ERR_MEMORY);
    TEST_STATUS(t, TSI_FAIL(TS_ERR_SHAPE, "second"), TS_ERR_SHAPE);
    TEST_STATUS(t, tsi_rank_enter(me), TS_ERR_MEMORY);
    TEST_STATUS(t, ts_rank_fail(me, TS_ERR_ARG, "third"), TS_ERR_MEMORY);
    const ts_error *error = ts_rank_error(me);
    TEST_TEXT(t, error->text, "first");
    TEST_TEXT(t, error->where, "layers.3 (model.c:12)");
    TEST_EQ(t, error->blast, TS_BLAST_LOCAL);
    TEST_EQ(t, error->rank, 5);
    TEST_EQ(t, error->event, (int64_t)event);
    TEST_EQ(t, told, 1);
    TEST_TEXT(t, ts_last_error(), ""); /* the thread outside ranks had none */
    tsi_error_copy(&me->caught, &me->error);
    tsi_error_clear(&me->error);
    TEST_OK(t, tsi_rank_enter(me));
    TEST_CHECK(t, ts_rank_error(me) == &me->caught.error);
    TEST_CHECK(t, ts_rank_error(me)->text == me->caught.text);
    tsi_rank_set_current(NULL);
    tsi_world_unmake(world);
}

TS_TEST(blast_follows_the_status)
{
    static const struct {
        ts_status status;
        ts_blast blast; /* the same from the library and from user code */
    } row[] = { { TS_ERR_ARG, TS_BLAST_AGREED },
                { TS_ERR_IO, TS_BLAST_LOCAL },
                { TS_ERR_INTERNAL, TS_BLAST_LOCAL },
                { TS_ERR_LOST, TS_BLAST_LOST } };
    ts_world *world;
    TEST_OK(t, tsi_world_make(1, 1, 0, 16, &world));
    ts_rank *me = world->rank[0];
    tsi_rank_set_current(me);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        (void)TSI_FAIL(row[i].status, "%s", "x");
        TEST_EQ(t, ts_rank_error(me)->blast, row[i].blast);
        tsi_error_clear(&me->error);
        TEST_STATUS(t, ts_rank_fail(me, row[i].status, "step %d", 7), row[i].status);
        TEST_EQ(t, ts_rank_error(me)->blast, row[i].blast);
        TEST_TEXT(t, ts_rank_error(me)->text, "step 7");
        tsi_error_clear(&me->error);
    }
    (void)TSI_FAIL_BLAST(TS_BLAST_LOST, TS_ERR_PEER, "x");
    TEST_EQ(t, ts_rank_error(me)->blast, TS_BLAST_LOST);
    tsi_error_clear(&me->error);
    TEST_STATUS(t, ts_rank_fail(me, TS_OK, "nothing"), TS_ERR_ARG);
    tsi_world_unmake(world); /* also takes the thread off its rank */
    TEST_CHECK(t, ts_rank_current() == NULL);
}

typedef struct other_thread {
    ts_rank *rank, *attach;
    ts_status entered, status;
    char text[256];
} other_thread;

static void *use_rank(void *argument)
{
    other_thread *o = argument;
    tsi_rank_set_current(o->attach);
    o->entered = tsi_rank_enter(o->rank);
    o->status = ts_rank_status(o->rank);
    const ts_error *error = ts_rank_error(o->attach);
    (void)snprintf(o->text, sizeof o->text, "%s", error != NULL ? error->text : ts_last_error());
    return NULL;
}

TS_TEST(rank_belongs_to_its_thread)
{
    ts_world *world;
    TEST_OK(t, tsi_world_make(2, 2, 0, 16, &world));
    tsi_rank_set_current(world->rank[0]);
    atomic_store(&world->rank[0]->attached, 1);
    other_thread stranger = { .rank = world->rank[0] };
    other_thread peer = { .rank = world->rank[0], .attach = world->rank[1] };
    pthread_t thread;
    TEST_OK(t, tsi_thread_start(&thread, use_rank, &stranger, 0));
    pthread_join(thread, NULL);
    TEST_EQ(t, stranger.entered, TS_ERR_THREAD);
    TEST_EQ(t, stranger.status, TS_ERR_THREAD);
    TEST_SAYS(t, stranger.text, "rank 0 was used by a thread that is not attached");
    TEST_OK(t, tsi_thread_start(&thread, use_rank, &peer, 0));
    pthread_join(thread, NULL);
    TEST_EQ(t, peer.entered, TS_ERR_THREAD);
    TEST_SAYS(t, peer.text, "rank 0 was used by the thread of rank 1");
    TEST_OK(t, ts_rank_status(world->rank[0])); /* the wronged rank is healthy */
    TEST_STATUS(t, tsi_rank_enter(NULL), TS_ERR_NULL);
    TEST_STATUS(t, ts_rank_status(NULL), TS_ERR_NULL);
    tsi_world_unmake(world);
}

TS_TEST(getters_accept_null)
{
    TEST_EQ(t, ts_rank_index(NULL), -1);
    TEST_EQ(t, ts_rank_count(NULL), 0);
    TEST_CHECK(t, ts_rank_world(NULL) == NULL && ts_rank_error(NULL) == NULL);
    TEST_EQ(t, ts_world_size(NULL), 0);
    TEST_EQ(t, ts_world_local_count(NULL), 0);
    ts_here("nowhere"); /* without a rank: no effect */
    ts_world *world;
    TEST_OK(t, tsi_world_make(9, 3, 6, 16, &world));
    TEST_EQ(t, ts_world_size(world), 9);
    TEST_EQ(t, ts_world_local_count(world), 3);
    TEST_EQ(t, ts_rank_index(world->rank[2]), 8);
    TEST_EQ(t, ts_rank_count(world->rank[2]), 9);
    TEST_CHECK(t, ts_rank_world(world->rank[0]) == world);
    tsi_world_unmake(world);
}

TS_TEST(error_record_travels)
{
    tsi_error_record record = { 0 };
    ts_error head = {
        .status = TS_ERR_PEER, .blast = TS_BLAST_LOCAL, .rank = 3, .event = 12, .where = "w"
    };
    tsi_error_set(&record, &head, "rank %d stalled", 3);
    TEST_STATUS(t, tsi_fail_record(&record), TS_ERR_PEER);
    TEST_TEXT(t, ts_last_error(), "rank 3 stalled");
    ts_world *world;
    TEST_OK(t, tsi_world_make(1, 1, 0, 16, &world));
    tsi_rank_set_current(world->rank[0]);
    TEST_STATUS(t, tsi_fail_record(&record), TS_ERR_PEER);
    const ts_error *error = ts_rank_error(world->rank[0]);
    TEST_CHECK(t, error->rank == 3 && error->event == 12 && error->text != record.text);
    TEST_TEXT(t, error->where, "w");
    tsi_world_unmake(world);
}

TS_TEST(world_make_fails_cleanly)
{
    ts_world *world;
    TEST_STATUS(t, tsi_world_make(4, 2, 3, 16, &world), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "4 ranks cannot have ranks 3 to 4");
    TEST_STATUS(t, tsi_world_make(4, 0, 0, 16, &world), TS_ERR_ARG);
    (void)tsi_alloc_fail_at(0);
    TEST_OK(t, tsi_world_make(3, 3, 0, 16, &world));
    tsi_world_unmake(world);
    int64_t count = tsi_alloc_fail_at(0), live = tsi_alloc_live();
    TEST_CHECK(t, count > 3);
    for (int64_t n = 1; n <= count; n++) {
        (void)tsi_alloc_fail_at(n);
        TEST_STATUS(t, tsi_world_make(3, 3, 0, 16, &world), TS_ERR_MEMORY);
        TEST_CHECK(t, world == NULL);
        TEST_EQ(t, tsi_alloc_live(), live);
    }
    tsi_world_unmake(NULL);
}

/* Slots write their letter when they are destroyed; a second state of the same slot is an error. */
static char trail[32];
static void *make_letter(ts_world *world)
{
    (void)world;
    return tsi_strdup("w");
}
static void *make_upper(ts_world *world)
{
    /* A high layer needs a low one while it is made: the lock is held twice. */
    return tsi_world_slot(world, TSI_SLOT_DEVICE, make_letter, tsi_free) ? tsi_strdup("W") : NULL;
}
static void *make_rank_letter(ts_rank *rank)
{
    return tsi_strdup(rank->index == 0 ? "0" : "1");
}
static void *make_nothing(ts_rank *rank)
{
    (void)rank;
    (void)TSI_FAIL(TS_ERR_MISSING, "no such part");
    return NULL;
}
static void leave_letter(void *state)
{
    strcat(trail, state);
    tsi_free(state);
}

TS_TEST(slots_are_made_once_and_destroyed_downwards)
{
    ts_world *world;
    TEST_OK(t, tsi_world_make(2, 2, 0, 16, &world));
    void *w = tsi_world_slot(world, TSI_SLOT_COMM, make_upper, leave_letter);
    TEST_CHECK(t, w != NULL && w == tsi_world_slot(world, TSI_SLOT_COMM, make_upper, leave_letter));
    for (int i = 0; i < 2; i++) {
        ts_rank *rank = world->rank[i];
        (void)tsi_rank_slot(rank, TSI_SLOT_ARRAY, make_rank_letter, leave_letter);
        void *s = tsi_rank_slot(rank, TSI_SLOT_TENSOR, make_rank_letter, leave_letter);
        TEST_CHECK(t, s == tsi_rank_slot(rank, TSI_SLOT_TENSOR, make_rank_letter, leave_letter));
        TEST_CHECK(t, tsi_rank_slot(rank, TSI_SLOT_OP, make_nothing, leave_letter) == NULL);
    }
    TEST_TEXT(t, ts_last_error(), "no such part");
    tsi_world_unmake(world);
    TEST_TEXT(t, trail, "0101W");
}

static void *ask_slot(void *argument)
{
    return tsi_world_slot(argument, TSI_SLOT_PLAN, make_letter, tsi_free);
}

TS_TEST(world_slot_is_one_for_all_threads)
{
    ts_world *world;
    TEST_OK(t, tsi_world_make(1, 1, 0, 16, &world));
    pthread_t thread[8];
    void *got[8];
    for (int i = 0; i < 8; i++)
        TEST_OK(t, tsi_thread_start(&thread[i], ask_slot, world, 0));
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], &got[i]);
        TEST_CHECK(t, got[i] != NULL && got[i] == got[0]);
    }
    tsi_world_unmake(world);
}
