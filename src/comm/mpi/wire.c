/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c - messages between ranks: rings in the segment, MPI outside it.
 *
 * A ring holds variable messages, 8-byte aligned, written by one rank and read by one; what does
 * not fit waits in the sender's outbox and leaves it in order. So a pair is always a FIFO.
 *
 * INV: a message is visible only when it is whole (head is stored with release); a rank's bell
 * counts after the message is visible. */
#include <string.h>

#include "comm/mpi/internal.h"

/* ---- parcels ----------------------------------------------------------------------------- */
tsi_parcel *tsi_parcel_make(const tsi_mpi *mpi, size_t bytes)
{
    tsi_parcel *parcel = mpi->host->core.alloc(sizeof *parcel - sizeof parcel->message + bytes);
    if (parcel == NULL) return NULL;
    parcel->next = NULL;
    parcel->request = MPI_REQUEST_NULL;
    return parcel;
}

void tsi_parcel_push(tsi_parcel_list *list, tsi_parcel *parcel)
{
    parcel->next = NULL;
    if (list->last != NULL)
        list->last->next = parcel;
    else
        list->first = parcel;
    list->last = parcel;
}

tsi_parcel *tsi_parcel_pop(tsi_parcel_list *list)
{
    tsi_parcel *parcel = list->first;
    if (parcel == NULL) return NULL;
    list->first = parcel->next;
    if (list->first == NULL) list->last = NULL;
    return parcel;
}

void tsi_parcel_drop(const tsi_mpi *mpi, tsi_parcel_list *list)
{
    for (tsi_parcel *parcel; (parcel = tsi_parcel_pop(list)) != NULL;)
        mpi->host->core.free(parcel);
}

/* ---- rings ------------------------------------------------------------------------------- */
/* Where a message of `bytes` may be written now, or NULL. Skips the ring's end if it is too short.
 */
static char *ring_reserve(tsi_mpi_ring *ring, size_t capacity, size_t bytes)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    /* What never fits would wait in the outbox for ever; what is not aligned would leave no room
     * for a SKIP at the end. */
    TSI_ASSERT(bytes % 8 == 0 && bytes <= capacity);
    size_t at = (size_t)(head % capacity), to_end = capacity - at;
    size_t need = to_end >= bytes ? bytes : to_end + bytes;
    if (capacity - (size_t)(head - tail) < need) return NULL;
    if (to_end >= bytes) return ring->data + at;
    tsi_message *skip = (tsi_message *)(void *)(ring->data + at);
    skip->bytes = (uint32_t)to_end;
    skip->kind = TSI_MESSAGE_SKIP;
    atomic_store_explicit(&ring->head, head + to_end, memory_order_release);
    return ring->data;
}

static void ring_publish(tsi_mpi_ring *ring, size_t bytes)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    atomic_store_explicit(&ring->head, head + bytes, memory_order_release);
}

bool tsi_wire_near(const tsi_mpi_rank *rank, int64_t to)
{
    return rank->mpi->place[to] >= 0;
}

int64_t tsi_wire_limit(const tsi_mpi_rank *rank, int64_t to)
{
    if (!tsi_wire_near(rank, to)) return TSI_NET_BYTES;
    size_t quarter = rank->mpi->segment.ring_bytes / 4;
    return (int64_t)(quarter < (32u << 10) ? quarter : 32u << 10);
}

bool tsi_wire_room(tsi_mpi_rank *rank, int64_t to, size_t payload)
{
    int64_t place = rank->mpi->place[to];
    tsi_segment *segment = &rank->mpi->segment;
    if (rank->outbox[place].first != NULL) return false;
    size_t bytes = (sizeof(tsi_message) + payload + 7) & ~(size_t)7;
    tsi_mpi_ring *ring = tsi_segment_ring(segment, rank->place, place);
    return ring_reserve(ring, segment->ring_bytes, bytes) != NULL;
}

tsi_message *tsi_wire_begin(tsi_mpi_rank *rank, int64_t to, size_t payload)
{
    tsi_mpi *mpi = rank->mpi;
    size_t bytes = (sizeof(tsi_message) + payload + 7) & ~(size_t)7;
    int64_t place = mpi->place[to];
    tsi_message *message = NULL;
    TSI_ASSERT(rank->building == NULL); /* one message at a time */
    if (place >= 0 && rank->outbox[place].first == NULL) {
        tsi_mpi_ring *ring = tsi_segment_ring(&mpi->segment, rank->place, place);
        message = (tsi_message *)(void *)ring_reserve(ring, mpi->segment.ring_bytes, bytes);
    }
    if (message == NULL) {
        tsi_parcel *parcel = tsi_parcel_make(mpi, bytes);
        if (parcel == NULL) {
            tsi_poison_memory(rank, "a message");
            return NULL;
        }
        message = &parcel->message;
        memset(message, 0, sizeof *message);
        rank->building = parcel;
    } else {
        memset(message, 0, sizeof *message);
        rank->building = NULL;
    }
    message->bytes = (uint32_t)bytes;
    message->epoch = rank->epoch;
    message->from = rank->index;
    message->to = to;
    return message;
}

void tsi_wire_end(tsi_mpi_rank *rank, tsi_message *message)
{
    tsi_mpi *mpi = rank->mpi;
    int64_t place = mpi->place[message->to];
    tsi_parcel *parcel = rank->building;
    rank->building = NULL;
    if (place < 0) {
        tsi_net_send(mpi, parcel);
    } else if (parcel != NULL) {
        tsi_parcel_push(&rank->outbox[place], parcel);
        rank->outbox_count++;
    } else {
        ring_publish(tsi_segment_ring(&mpi->segment, rank->place, place), message->bytes);
        tsi_bell_ring(&mpi->segment.slot[place]);
    }
}

static bool flush_one(tsi_mpi_rank *rank, int64_t place)
{
    tsi_segment *segment = &rank->mpi->segment;
    tsi_mpi_ring *ring = tsi_segment_ring(segment, rank->place, place);
    tsi_parcel_list *list = &rank->outbox[place];
    bool moved = false;
    while (list->first != NULL) {
        size_t bytes = list->first->message.bytes;
        char *room = ring_reserve(ring, segment->ring_bytes, bytes);
        if (room == NULL) break;
        tsi_parcel *parcel = tsi_parcel_pop(list);
        memcpy(room, &parcel->message, bytes);
        ring_publish(ring, bytes);
        rank->mpi->host->core.free(parcel);
        rank->outbox_count--;
        moved = true;
    }
    if (moved) tsi_bell_ring(&segment->slot[place]);
    return moved;
}

bool tsi_wire_flush(tsi_mpi_rank *rank)
{
    bool moved = false;
    if (rank->outbox_count == 0) return false;
    for (int64_t place = 0; place < rank->mpi->segment.count; place++)
        if (rank->outbox[place].first != NULL) moved |= flush_one(rank, place);
    return moved;
}

static bool receive_ring(tsi_mpi_rank *rank, int64_t from)
{
    tsi_segment *segment = &rank->mpi->segment;
    tsi_mpi_ring *ring = tsi_segment_ring(segment, from, rank->place);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    if (head == tail) return false;
    bool was_full = head - tail > segment->ring_bytes / 2;
    while (tail != head) {
        const tsi_message *message =
            (const tsi_message *)(const void *)(ring->data + tail % segment->ring_bytes);
        TSI_ASSERT(message->bytes >= 8 && message->bytes <= head - tail); /* whole, or not seen */
        if (message->kind != TSI_MESSAGE_SKIP) tsi_rank_message(rank, message, NULL);
        tail += message->bytes;
        atomic_store_explicit(&ring->tail, tail, memory_order_release);
    }
    if (was_full) tsi_bell_ring(&segment->slot[from]); /* it may wait for room */
    return true;
}

bool tsi_wire_receive(tsi_mpi_rank *rank)
{
    bool any = false;
    for (int64_t from = 0; from < rank->mpi->segment.count; from++)
        any |= receive_ring(rank, from);
    if (atomic_load_explicit(&rank->inbox_filled, memory_order_acquire) == 0) return any;
    pthread_mutex_lock(&rank->inbox_lock);
    tsi_parcel_list list = rank->inbox;
    rank->inbox = (tsi_parcel_list){ 0 };
    atomic_store_explicit(&rank->inbox_filled, 0, memory_order_release);
    pthread_mutex_unlock(&rank->inbox_lock);
    for (tsi_parcel *parcel; (parcel = tsi_parcel_pop(&list)) != NULL;)
        tsi_rank_message(rank, &parcel->message, parcel);
    return true;
}
