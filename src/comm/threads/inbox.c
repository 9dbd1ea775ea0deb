/* SPDX-License-Identifier: Apache-2.0 */
/* inbox.c - send and recv: a FIFO per pair of members and direction.
 *
 * Each member has an inbox with the sends to it and its own receives that have not met. Whoever
 * comes second takes the first match out and copies straight from the sender's array into the
 * receiver's. A small send does not wait: a copy of it (a packet) is left in the inbox. A large
 * pair of the host's memory whose second half is asynchronous is queued for helpers, or for the
 * first of the two that waits.
 *
 *   POSTED (in an inbox) -> PAIRED (queued) -> MOVING -> DONE
 *
 * INV: a work is in at most one list, and is taken out of it by the thread that will end it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/threads/threads.h"

enum { PACKET_BYTES = 1024 };

typedef struct packet { /* stands in for a send that is already complete */
    tsi_work work;
    _Alignas(16) unsigned char data[];
} packet;

static bool is_packet(const tsi_work *work)
{
    return work->engine_word[0] != 0;
}

/* Both sides' devices reach a packet: where the host cannot read their memory, it lies in memory
 * that their copies take (host_alloc). */
static packet *packet_alloc(const tsi_device *device, size_t bytes)
{
    void *memory = NULL;
    if (device->host_readable || !device->host_alloc)
        return tsi_alloc_aligned(sizeof(packet) + bytes, 16);
    return device->host_alloc(device, sizeof(packet) + bytes, &memory) == TS_OK ? memory : NULL;
}

static void packet_free(tsi_work *work)
{
    TSI_ASSERT(is_packet(work)); /* any other work is its rank's */
    const tsi_device *device = work->device;
    if (work->done != NULL) device->event_destroy(device, work->done);
    size_t bytes = (size_t)work->print.count * ts_dtype_size((ts_dtype)work->print.dtype);
    if (device->host_readable || !device->host_alloc)
        tsi_free(work);
    else
        device->host_free(device, work, sizeof(packet) + bytes);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void append(tsi_work **list, tsi_work *work)
{
    while (*list != NULL)
        list = &(*list)->next;
    work->next = NULL;
    *list = work;
}

static bool take(tsi_work **list, const tsi_work *work)
{
    for (; *list != NULL; list = &(*list)->next) {
        if (*list != work) continue;
        *list = work->next;
        return true;
    }
    return false;
}

/* The oldest receive from `sender`, or the oldest send by it. */
static tsi_work *take_receive(tsi_inbox *box, int64_t sender)
{
    for (tsi_work *work = box->recv; work != NULL; work = work->next)
        if (work->print.root == sender && take(&box->recv, work)) return work;
    return NULL;
}

static tsi_work *take_send(tsi_inbox *box, int64_t sender)
{
    for (tsi_work *work = box->send; work != NULL; work = work->next)
        if (work->member == sender && take(&box->send, work)) return work;
    return NULL;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static tsi_inbox *box_of(const tsi_work *recv)
{
    tsi_hall *hall = atomic_load_explicit(&recv->team->engine_state, memory_order_acquire);
    tsi_inbox *boxes = atomic_load_explicit(&hall->inbox, memory_order_acquire);
    return &boxes[recv->member];
}

/* A packet whose copy is in a stream waits there for its end; those that have passed go. */
static void packet_end(tsi_inbox *box, tsi_work *work)
{
    if (work->device->host_readable) {
        packet_free(work);
        return;
    }
    pthread_mutex_lock(&box->moving);
    if (work->done == NULL) { /* nobody took it: it may not be filled yet */
        tsi_inbox_rest(box);
        packet_free(work);
        pthread_mutex_unlock(&box->moving);
        return;
    }
    work->next = box->spent;
    box->spent = work;
    for (tsi_work **link = &box->spent; *link != NULL;) {
        tsi_work *one = *link;
        if (!one->device->event_done(one->device, one->done)) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        packet_free(one);
    }
    pthread_mutex_unlock(&box->moving);
}

static void end_pair(tsi_threads *engine, tsi_work *send, tsi_work *recv, ts_status status,
                     const char *sentence)
{
    int64_t receiver = recv->rank->index;
    tsi_inbox *box = box_of(recv);
    ts_status other = status == TS_OK ? TS_OK : TS_ERR_PEER;
    if (status != TS_OK) tsi_threads_fault(engine, receiver, status, sentence);
    tsi_threads_finish(engine, recv, status, receiver, sentence);
    if (is_packet(send))
        packet_end(box, send);
    else
        tsi_threads_finish(engine, send, other, receiver, sentence);
}

static void run_pair(tsi_threads *engine, tsi_work *send, tsi_work *recv)
{
    char text[620] = "";
    ts_status status = tsi_inbox_move(box_of(recv), send, recv, &recv->out);
    if (status != TS_OK) {
        char what[200];
        tsi_fingerprint_text(&recv->print, what, sizeof what);
        (void)snprintf(text, sizeof text, "%s: %s", what, tsi_move_reason(recv->device, status));
    }
    end_pair(engine, send, recv, status, text);
}

static bool is_small(const tsi_work *work)
{
    return work->print.count * (int64_t)ts_dtype_size((ts_dtype)work->print.dtype) <= PACKET_BYTES;
}

/* It is enqueued, which is sooner done than somebody is woken for it. */
static bool in_streams(const tsi_work *send, const tsi_work *recv)
{
    return !send->device->host_readable && !recv->device->host_readable && recv->in_order;
}

static void queue_pair(tsi_threads *engine, tsi_work *send, tsi_work *recv)
{
    tsi_chair *chairs[2] = { tsi_chair_of(engine, send->rank), tsi_chair_of(engine, recv->rank) };
    pthread_mutex_lock(&engine->ready_lock);
    send->engine_state = recv;
    recv->engine_state = send;
    append(&engine->pairs, recv);
    atomic_store_explicit(&send->state, TSI_WORK_PAIRED, memory_order_seq_cst);
    atomic_store_explicit(&recv->state, TSI_WORK_PAIRED, memory_order_seq_cst);
    pthread_mutex_unlock(&engine->ready_lock);
    (void)tsi_chair_ring(chairs[0]);
    (void)tsi_chair_ring(chairs[1]);
    tsi_comm_kick(engine->world, 1);
}

/* `late` is the one of the two that came second, in whose rank's thread this runs. */
static void meet(tsi_threads *engine, tsi_work *send, tsi_work *recv, const tsi_work *late)
{
    char text[480];
    TSI_ASSERT(send->print.kind == TSI_COMM_SEND && recv->print.kind == TSI_COMM_RECV);
    if (!tsi_work_agree(send, recv, text, sizeof text))
        end_pair(engine, send, recv, TS_ERR_PEER, text);
    else if (late->asynchronous && !is_small(recv) && !is_packet(send) && !in_streams(send, recv))
        queue_pair(engine, send, recv);
    else
        run_pair(engine, send, recv);
}

/* Under ready_lock: the caller will run it. */
static void set_moving(tsi_work *recv)
{
    tsi_work *send = recv->engine_state;
    TSI_ASSERT(send != NULL && send->engine_state == recv); /* set when the two were queued */
    atomic_store_explicit(&send->state, TSI_WORK_MOVING, memory_order_seq_cst);
    atomic_store_explicit(&recv->state, TSI_WORK_MOVING, memory_order_seq_cst);
}

bool tsi_inbox_help(tsi_threads *engine, tsi_work *work)
{
    if (atomic_load_explicit(&work->state, memory_order_seq_cst) != TSI_WORK_PAIRED) return false;
    pthread_mutex_lock(&engine->ready_lock);
    tsi_work *recv = NULL;
    if (atomic_load_explicit(&work->state, memory_order_relaxed) == TSI_WORK_PAIRED)
        recv = work->print.kind == TSI_COMM_RECV ? work : work->engine_state;
    if (recv != NULL) {
        (void)take(&engine->pairs, recv);
        set_moving(recv);
    }
    pthread_mutex_unlock(&engine->ready_lock);
    if (recv == NULL) return false;
    run_pair(engine, recv->engine_state, recv);
    return true;
}

bool tsi_inbox_run_any(tsi_threads *engine)
{
    pthread_mutex_lock(&engine->ready_lock);
    tsi_work *recv = engine->pairs;
    if (recv != NULL) {
        engine->pairs = recv->next;
        set_moving(recv);
    }
    pthread_mutex_unlock(&engine->ready_lock);
    if (recv == NULL) return false;
    run_pair(engine, recv->engine_state, recv);
    return true;
}

/* ---- posting --------------------------------------------------------------------------------- */

/* NULL: large, or no memory: then the send waits for its receiver. */
static packet *make_packet(tsi_inbox *box, tsi_work *work)
{
    if (!is_small(work)) return NULL;
    size_t bytes = (size_t)work->print.count * ts_dtype_size((ts_dtype)work->print.dtype);
    packet *p = packet_alloc(work->device, bytes);
    if (p == NULL) return NULL;
    p->work = *work;
    p->work.ready = NULL; /* the receiver's copy stands behind this one */
    p->work.engine_word[0] = 1;
    p->work.in = tsi_block_dense_like(&work->in, p->data);
    if (bytes == 0 || tsi_inbox_move(box, work, NULL, &p->work.in) == TS_OK) return p;
    packet_free(&p->work);
    return NULL;
}

static void post_send(tsi_threads *engine, tsi_inbox *box, tsi_work *work)
{
    pthread_mutex_lock(&box->lock);
    tsi_work *recv = take_receive(box, work->member);
    packet *copy = recv == NULL ? make_packet(box, work) : NULL;
    if (recv == NULL) append(&box->send, copy != NULL ? &copy->work : work);
    pthread_mutex_unlock(&box->lock);
    if (recv != NULL)
        meet(engine, work, recv, work);
    else if (copy != NULL)
        tsi_threads_finish(engine, work, TS_OK, -1, "");
}

static void post_recv(tsi_threads *engine, tsi_inbox *box, tsi_work *work)
{
    pthread_mutex_lock(&box->lock);
    tsi_work *send = take_send(box, work->print.root);
    if (send == NULL) append(&box->recv, work);
    pthread_mutex_unlock(&box->lock);
    if (send != NULL) meet(engine, send, work, work);
}

void tsi_inbox_post(tsi_hall *hall, tsi_inbox *boxes, tsi_work *work)
{
    work->engine_word[0] = 0;
    if (work->print.kind == TSI_COMM_SEND)
        post_send(hall->engine, &boxes[work->print.root], work);
    else
        post_recv(hall->engine, &boxes[work->member], work);
}

bool tsi_inbox_withdraw(tsi_hall *hall, tsi_work *work)
{
    bool send = work->print.kind == TSI_COMM_SEND;
    tsi_inbox *boxes = atomic_load_explicit(&hall->inbox, memory_order_acquire);
    tsi_inbox *box = &boxes[send ? work->print.root : work->member];
    pthread_mutex_lock(&box->lock);
    bool found = take(send ? &box->send : &box->recv, work);
    pthread_mutex_unlock(&box->lock);
    return found;
}

/* ---- making ---------------------------------------------------------------------------------- */

void tsi_inboxes_reset(tsi_inbox *boxes, int64_t count)
{
    for (int64_t i = 0; boxes != NULL && i < count; i++) {
        tsi_inbox_rest(&boxes[i]);
        while (boxes[i].spent != NULL) {
            tsi_work *work = boxes[i].spent;
            boxes[i].spent = work->next;
            packet_free(work);
        }
        while (boxes[i].send != NULL) {
            tsi_work *work = boxes[i].send;
            boxes[i].send = work->next;
            if (is_packet(work)) packet_free(work);
        }
        boxes[i].recv = NULL;
    }
}

void tsi_inboxes_destroy(tsi_inbox *boxes, int64_t count)
{
    if (boxes == NULL) return;
    tsi_inboxes_reset(boxes, count);
    for (int64_t i = 0; i < count; i++) {
        tsi_inbox_mover_end(&boxes[i]);
        pthread_mutex_destroy(&boxes[i].moving);
        pthread_mutex_destroy(&boxes[i].lock);
    }
    tsi_free(boxes);
}

tsi_inbox *tsi_inboxes_of(tsi_hall *hall)
{
    tsi_inbox *boxes = atomic_load_explicit(&hall->inbox, memory_order_acquire);
    if (boxes != NULL) return boxes;
    tsi_inbox *made = tsi_calloc((size_t)hall->team->size, sizeof *made);
    if (made == NULL) return NULL;
    for (int64_t i = 0; i < hall->team->size; i++) {
        pthread_mutex_init(&made[i].lock, NULL);
        pthread_mutex_init(&made[i].moving, NULL);
    }
    if (atomic_compare_exchange_strong_explicit(&hall->inbox, &boxes, made, memory_order_acq_rel,
                                                memory_order_acquire))
        return made;
    tsi_inboxes_destroy(made, hall->team->size);
    return boxes;
}
