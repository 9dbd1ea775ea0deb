/* SPDX-License-Identifier: Apache-2.0 */
/* net.c - messages and data through MPI, for ranks that share no memory.
 *
 * Control messages go under one tag and are received into a few buffers that are always posted, in
 * order; each is put into the inbox of the rank it is for. Data moves only after a GET, into a
 * receive that was posted before the GET was sent, under a tag the receiver chose. So nothing is
 * ever sent to somebody who does not wait for it, and groups need no communicator: one duplicate
 * serves them all.
 *
 * INV: every call of MPI after open is made here or in close, under `lock`, by a thread that may.
 */
#include <sched.h>
#include <string.h>

#include "comm/mpi/internal.h"

enum { POSTED = 16, TAG_CONTROL = 1, TAG_FIRST = 2, TAG_LAST = 32000 };

struct tsi_net {
    pthread_mutex_t lock;
    MPI_Request receive[POSTED];
    char *buffer; /* POSTED x TSI_NET_BYTES */
    int next;     /* the oldest posted receive */
    tsi_parcel_list sending;
    tsi_parcel_list waiting; /* from threads that may not call MPI */
    _Atomic int tag;
};

bool tsi_net_allowed(const tsi_mpi *mpi)
{
    return mpi->any_thread || pthread_equal(pthread_self(), mpi->thread);
}

static bool post(tsi_mpi *mpi, int i)
{
    tsi_net *net = mpi->net;
    return MPI_Irecv(net->buffer + (size_t)i * TSI_NET_BYTES, TSI_NET_BYTES, MPI_BYTE,
                     MPI_ANY_SOURCE, TAG_CONTROL, mpi->comm, &net->receive[i]) == MPI_SUCCESS;
}

ts_status tsi_net_open(tsi_mpi *mpi)
{
    tsi_net *net = mpi->host->core.alloc(sizeof *net);
    char *buffer = mpi->host->core.alloc((size_t)POSTED * TSI_NET_BYTES);
    if (net == NULL || buffer == NULL) {
        mpi->host->core.free(net);
        mpi->host->core.free(buffer);
        return TS_ERR_MEMORY;
    }
    memset(net, 0, sizeof *net);
    pthread_mutex_init(&net->lock, NULL);
    net->buffer = buffer;
    atomic_store(&net->tag, TAG_FIRST);
    mpi->net = net;
    for (int i = 0; i < POSTED; i++) {
        net->receive[i] = MPI_REQUEST_NULL;
        if (!post(mpi, i)) return TS_ERR_INTERNAL;
    }
    return TS_OK;
}

/* A process that has ended may not be reachable: an error of MPI here is found by the deadline of
 * whoever waits for the answer. */
static void send_now(tsi_mpi *mpi, tsi_parcel *parcel)
{
    int process = (int)(parcel->message.to / mpi->threads);
    if (MPI_Isend(&parcel->message, (int)parcel->message.bytes, MPI_BYTE, process, TAG_CONTROL,
                  mpi->comm, &parcel->request) == MPI_SUCCESS)
        tsi_parcel_push(&mpi->net->sending, parcel);
    else
        mpi->host->core.free(parcel);
}

static void send_waiting(tsi_mpi *mpi)
{
    for (tsi_parcel *parcel; (parcel = tsi_parcel_pop(&mpi->net->waiting)) != NULL;)
        send_now(mpi, parcel);
}

void tsi_net_send(tsi_mpi *mpi, tsi_parcel *parcel)
{
    pthread_mutex_lock(&mpi->net->lock);
    tsi_parcel_push(&mpi->net->waiting, parcel);
    if (tsi_net_allowed(mpi)) send_waiting(mpi);
    pthread_mutex_unlock(&mpi->net->lock);
}

/* What is still being sent is given a second; after a failure MPI may own it for ever, and it is
 * left. */
static void finish_sending(tsi_mpi *mpi, bool poisoned)
{
    tsi_net *net = mpi->net;
    int64_t deadline = tsi_clock_ns() + (poisoned ? 100000000 : 5000000000);
    for (tsi_parcel *parcel; (parcel = net->sending.first) != NULL;) {
        int done = 0;
        if (MPI_Test(&parcel->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 1;
        if (done) {
            mpi->host->core.free(tsi_parcel_pop(&net->sending));
        } else if (tsi_clock_ns() > deadline) {
            MPI_Request_free(&parcel->request);
            tsi_parcel_pop(&net->sending); /* the memory stays with MPI */
        } else {
            sched_yield();
        }
    }
}

void tsi_net_close(tsi_mpi *mpi, bool poisoned)
{
    tsi_net *net = mpi->net;
    if (net == NULL) return;
    if (tsi_net_allowed(mpi)) {
        send_waiting(mpi);
        finish_sending(mpi, poisoned);
        for (int i = 0; i < POSTED; i++)
            if (net->receive[i] != MPI_REQUEST_NULL)
                tsi_net_cancel(mpi, &net->receive[i], true, tsi_clock_ns() + TSI_CANCEL_NS);
    }
    tsi_parcel_drop(mpi, &net->waiting);
    pthread_mutex_destroy(&net->lock);
    mpi->host->core.free(net->buffer);
    mpi->host->core.free(net);
    mpi->net = NULL;
}

static void deliver(tsi_mpi *mpi, const tsi_message *message)
{
    int64_t local = message->to - mpi->first;
    if (local < 0 || local >= mpi->threads) return;
    tsi_mpi_rank *rank = &mpi->local[local];
    tsi_parcel *parcel = tsi_parcel_make(mpi, message->bytes);
    if (parcel == NULL) {
        tsi_poison_memory(rank, "a message that came");
        return;
    }
    memcpy(&parcel->message, message, message->bytes);
    pthread_mutex_lock(&rank->inbox_lock);
    tsi_parcel_push(&rank->inbox, parcel);
    atomic_store_explicit(&rank->inbox_filled, 1, memory_order_release);
    pthread_mutex_unlock(&rank->inbox_lock);
    tsi_bell_ring(&mpi->segment.slot[rank->place]);
}

static bool receive_some(tsi_mpi *mpi)
{
    tsi_net *net = mpi->net;
    bool any = false;
    for (int n = 0; n < POSTED; n++) {
        int done = 0;
        MPI_Status status;
        if (MPI_Test(&net->receive[net->next], &done, &status) != MPI_SUCCESS || !done) break;
        deliver(mpi, (const tsi_message *)(const void *)(net->buffer +
                                                         (size_t)net->next * TSI_NET_BYTES));
        post(mpi, net->next);
        net->next = (net->next + 1) % POSTED;
        any = true;
    }
    return any;
}

bool tsi_net_progress(tsi_mpi *mpi)
{
    tsi_net *net = mpi->net;
    if (net == NULL || !tsi_net_allowed(mpi)) return false;
    if (pthread_mutex_trylock(&net->lock) != 0) return false;
    send_waiting(mpi);
    bool any = receive_some(mpi);
    while (net->sending.first != NULL) {
        int done = 0;
        if (MPI_Test(&net->sending.first->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            !done)
            break;
        mpi->host->core.free(tsi_parcel_pop(&net->sending));
    }
    pthread_mutex_unlock(&net->lock);
    return any;
}

int tsi_net_tag(tsi_mpi *mpi)
{
    int tag = atomic_fetch_add(&mpi->net->tag, 1);
    return TAG_FIRST + (int)((unsigned)tag % (TAG_LAST - TAG_FIRST));
}

bool tsi_net_irecv(tsi_mpi *mpi, void *to, int64_t bytes, int64_t from, int tag,
                   MPI_Request *request)
{
    pthread_mutex_lock(&mpi->net->lock);
    int code =
        MPI_Irecv(to, (int)bytes, MPI_BYTE, (int)(from / mpi->threads), tag, mpi->comm, request);
    pthread_mutex_unlock(&mpi->net->lock);
    return code == MPI_SUCCESS;
}

bool tsi_net_isend(tsi_mpi *mpi, void *from, int64_t bytes, int64_t to, int tag,
                   MPI_Request *request)
{
    pthread_mutex_lock(&mpi->net->lock);
    int code =
        MPI_Isend(from, (int)bytes, MPI_BYTE, (int)(to / mpi->threads), tag, mpi->comm, request);
    pthread_mutex_unlock(&mpi->net->lock);
    return code == MPI_SUCCESS;
}

bool tsi_net_test(tsi_mpi *mpi, MPI_Request *request)
{
    int done = 0;
    pthread_mutex_lock(&mpi->net->lock);
    if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 0;
    pthread_mutex_unlock(&mpi->net->lock);
    return done != 0;
}

/* Gives up a request by `until_ns`. A receive is cancelled; one that has begun may still write for
 * a moment, and what is sent is read until then. What remains belongs to MPI: its buffer must not
 * be reused by us. */
void tsi_net_cancel(tsi_mpi *mpi, MPI_Request *request, bool receive, int64_t until_ns)
{
    int done = 0;
    if (*request == MPI_REQUEST_NULL) return;
    pthread_mutex_lock(&mpi->net->lock);
    if (receive) MPI_Cancel(request);
    for (;;) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 1;
        if (done || tsi_clock_ns() >= until_ns) break;
        sched_yield();
    }
    if (!done) MPI_Request_free(request);
    *request = MPI_REQUEST_NULL;
    pthread_mutex_unlock(&mpi->net->lock);
}
