/* SPDX-License-Identifier: Apache-2.0 */
/* base_ring.c - the event ring: order, wrapping, and readers beside writers. */
#include "base/ring.h"

#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "harness/test.h"

TS_TEST(ring_keeps_what_was_said)
{
    tsi_ring *ring = tsi_ring_create(100);
    TEST_EQ(t, tsi_ring_capacity(ring), 128);
    TEST_EQ(t, tsi_ring_last(ring), 0);
    tsi_event said = { .kind = TSI_EVENT_COMM,
                       .queue = 3,
                       .kind_name = "all_gather",
                       .name = "wq",
                       .where = "a.c:1",
                       .sequence = 9,
                       .group = 77,
                       .bytes = 5 };
    tsi_event heard;
    uint64_t number = tsi_ring_begin(ring, &said);
    TEST_EQ(t, number, 1);
    TEST_CHECK(t, tsi_ring_read(ring, number, &heard));
    TEST_CHECK(t, heard.end_ns == 0 && heard.begin_ns > 0 && heard.bytes == 5);
    TEST_TEXT(t, heard.kind_name, "all_gather");
    TEST_TEXT(t, heard.name, "wq");
    TEST_TEXT(t, heard.where, "a.c:1");
    TEST_CHECK(t, heard.kind == TSI_EVENT_COMM && heard.queue == 3);
    TEST_CHECK(t, heard.sequence == 9 && heard.group == 77 && heard.number == number);
    tsi_ring_end(ring, number, 4096);
    TEST_CHECK(t, tsi_ring_read(ring, number, &heard));
    TEST_CHECK(t, heard.end_ns >= heard.begin_ns && heard.bytes == 4096);
    tsi_ring_mark(ring, &(tsi_event){ .kind = TSI_EVENT_MARK });
    TEST_CHECK(t, tsi_ring_read(ring, 2, &heard) && heard.end_ns == heard.begin_ns);
    TEST_TEXT(t, heard.name, ""); /* never NULL */
    TEST_CHECK(t, !tsi_ring_read(ring, 3, &heard) && !tsi_ring_read(ring, 0, &heard));
    tsi_ring_destroy(ring);
}

TS_TEST(ring_wraps_and_drops_late_ends)
{
    tsi_ring *ring = tsi_ring_create(1);
    int64_t capacity = tsi_ring_capacity(ring);
    uint64_t old = tsi_ring_begin(ring, &(tsi_event){ .kind = TSI_EVENT_OP });
    for (int64_t i = 0; i < capacity; i++)
        (void)tsi_ring_begin(ring, &(tsi_event){ .kind = TSI_EVENT_OP, .bytes = i });
    tsi_ring_end(ring, old, 99); /* its entry belongs to a younger event */
    tsi_event event;
    TEST_CHECK(t, !tsi_ring_read(ring, old, &event));
    TEST_CHECK(t, tsi_ring_read(ring, old + (uint64_t)capacity, &event));
    TEST_CHECK(t, event.end_ns == 0 && event.bytes == capacity - 1);
    tsi_ring_destroy(ring);
}

TS_TEST(ring_names_are_kept_once)
{
    tsi_ring *ring = tsi_ring_create(16);
    char text[32];
    const char *first[200];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 200; i++) {
            (void)snprintf(text, sizeof text, "layers.%d.wq", i);
            const char *kept = tsi_ring_name(ring, text);
            TEST_TEXT(t, kept, text);
            if (round == 0) first[i] = kept;
            TEST_CHECK(t, kept == first[i]);
        }
    }
    TEST_TEXT(t, tsi_ring_name(ring, NULL), "");
    TEST_TEXT(t, tsi_ring_name(NULL, "x"), "");
    tsi_ring_destroy(ring);
}

TS_TEST(ring_without_memory)
{
    for (int n = 1; n <= 2; n++) {
        (void)tsi_alloc_fail_at(n);
        TEST_CHECK(t, tsi_ring_create(16) == NULL);
        TEST_SAYS(t, ts_last_error(), "an event ring");
    }
    tsi_ring *ring = tsi_ring_create(16);
    for (int n = 1; n <= 2; n++) { /* a name that cannot be kept is no failure */
        (void)tsi_alloc_fail_at(n);
        TEST_TEXT(t, tsi_ring_name(ring, "layers.0"), "?");
    }
    TEST_TEXT(t, tsi_ring_name(ring, "layers.0"), "layers.0");
    TEST_EQ(t, tsi_ring_begin(NULL, &(tsi_event){ 0 }), 0);
    tsi_ring_end(NULL, 0, 0);
    tsi_ring_mark(NULL, &(tsi_event){ 0 });
    TEST_EQ(t, tsi_ring_last(NULL), 0);
    tsi_ring_destroy(ring);
}

enum { WRITERS = 2, EVENTS = 30000, TURN = 4096 };
typedef struct writer {
    tsi_ring *ring;
    uint64_t index;
    bool overtaken; /* the others wrote a whole turn during one event of this one */
} writer;

/* All fields of an event are functions of one number, so a torn copy contradicts itself. */
static void *write_events(void *argument)
{
    writer *me = argument;
    for (uint64_t i = 0; i < EVENTS; i++) {
        uint64_t x = i * WRITERS + me->index + 1;
        uint64_t number = tsi_ring_begin(me->ring, &(tsi_event){ .bytes = (int64_t)x,
                                                                 .sequence = 3 * x,
                                                                 .group = ~x,
                                                                 .kind = (uint32_t)x,
                                                                 .queue = (uint32_t)(x >> 7) });
        tsi_ring_end(me->ring, number, (int64_t)x);
        if (tsi_ring_last(me->ring) >= number + TURN) me->overtaken = true;
    }
    return NULL;
}

/* Reads while it is written to; the number of a torn event, or 0. */
static uint64_t read_events(const tsi_ring *ring, int64_t *good)
{
    uint64_t last;
    do {
        last = tsi_ring_last(ring);
        /* The newest, which are being written, and the oldest, which are being overwritten. */
        for (uint64_t back = 0; back < 2 * TURN && back < last; back += 1 + back / 16) {
            tsi_event e;
            if (!tsi_ring_read(ring, last - back, &e)) continue;
            uint64_t x = (uint64_t)e.bytes;
            bool whole = e.sequence == 3 * x && e.group == ~x && e.kind == (uint32_t)x &&
                         e.queue == (uint32_t)(x >> 7) && e.number == last - back;
            if (!whole) return e.number;
            ++*good;
        }
    } while (last < WRITERS * EVENTS);
    return 0;
}

/* The ring promises nothing where a writer stood still for a whole turn: such a round is made
 * again. */
TS_TEST(ring_readers_never_see_torn_events)
{
    enum { ROUNDS = 50 };
    bool settled = false;
    for (int round = 0; round < ROUNDS && !settled; round++) {
        tsi_ring *ring = tsi_ring_create(TURN);
        writer writers[WRITERS];
        pthread_t thread[WRITERS];
        for (uint64_t i = 0; i < WRITERS; i++) {
            writers[i] = (writer){ ring, i, false };
            TEST_OK(t, tsi_thread_start(&thread[i], write_events, &writers[i], 0));
        }
        int64_t good = 0;
        uint64_t torn = read_events(ring, &good);
        bool overtaken = false;
        for (int i = 0; i < WRITERS; i++) {
            pthread_join(thread[i], NULL);
            overtaken = overtaken || writers[i].overtaken;
        }
        TEST_SAY(t, torn == 0 || overtaken, "event %llu is torn", (unsigned long long)torn);
        TEST_CHECK(t, good > 0 || torn != 0);
        TEST_EQ(t, tsi_ring_last(ring), WRITERS * EVENTS);
        settled = torn == 0 || !overtaken;
        tsi_ring_destroy(ring);
    }
    TEST_CHECK(t, settled);
}
