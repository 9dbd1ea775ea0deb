/* SPDX-License-Identifier: Apache-2.0 */
/* mpi.c - the raw MPI calls that `tessera bench comm` is compared with. Built once per MPI, as a
 * module.
 *
 * Counts and displacements are made for every call, as a caller's code would; the data type is
 * float, and the communicator is a duplicate of the world's, so that nothing of the engine's can
 * match. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "rival.h"

enum { ELEMENT = 4 };

typedef struct layout { /* of the arrays among the ranks, in elements */
    int *send, *send_at, *recv, *recv_at;
    MPI_Comm comm;
    int64_t count; /* ranks */
} layout;

/* The module's own state: made on the first call, kept until the process ends. */
static layout shared;

static int prepare(const bench_rank *b)
{
    if (shared.count == b->count) return 0;
    size_t n = (size_t)b->count;
    shared.send = calloc(4 * n, sizeof *shared.send);
    if (shared.send == NULL) return 1;
    shared.send_at = shared.send + n;
    shared.recv = shared.send_at + n;
    shared.recv_at = shared.recv + n;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &shared.comm) != MPI_SUCCESS) return 1;
    shared.count = b->count;
    return 0;
}

static void displace(int *at, const int *count, int64_t n)
{
    int sum = 0;
    for (int64_t i = 0; i < n; i++) {
        at[i] = sum;
        sum += count[i];
    }
}

/* Chunks of the full array, one per rank. */
static void split_whole(const bench_rank *b, int *count, int *at)
{
    for (int64_t i = 0; i < b->count; i++)
        count[i] = (int)bench_chunk(b->size / ELEMENT, b->count, i);
    displace(at, count, b->count);
}

static int all_to_all(bench_rank *b)
{
    int64_t total = b->size / ELEMENT, mine = bench_chunk(total, b->count, b->index);
    for (int64_t i = 0; i < b->count; i++) {
        shared.send[i] = (int)bench_chunk(mine, b->count, i);
        shared.recv[i] = (int)bench_chunk(bench_chunk(total, b->count, i), b->count, b->index);
    }
    displace(shared.send_at, shared.send, b->count);
    displace(shared.recv_at, shared.recv, b->count);
    return MPI_Alltoallv(b->in, shared.send, shared.send_at, MPI_FLOAT, b->out, shared.recv,
                         shared.recv_at, MPI_FLOAT, shared.comm);
}

/* Rows to columns with derived types, as bench_cases.c does it with strided parts. */
static int all_to_all_w(bench_rank *b)
{
    int64_t total = b->size / ELEMENT, rows = 1;
    while (rows * rows * 4 <= total && total % (rows * 2) == 0)
        rows *= 2;
    int64_t columns = total / rows, row = 0, column = 0;
    int my_rows = (int)bench_chunk(rows, b->count, b->index);
    int my_columns = (int)bench_chunk(columns, b->count, b->index);
    MPI_Datatype *send = calloc(2 * (size_t)b->count, sizeof *send), *recv = send + b->count;
    if (send == NULL) return 1;
    for (int64_t i = 0; i < b->count; i++) {
        int their_rows = (int)bench_chunk(rows, b->count, i);
        int their_columns = (int)bench_chunk(columns, b->count, i);
        MPI_Type_vector(my_rows, their_columns, (int)columns, MPI_FLOAT, &send[i]);
        MPI_Type_contiguous(their_rows * my_columns, MPI_FLOAT, &recv[i]);
        MPI_Type_commit(&send[i]);
        MPI_Type_commit(&recv[i]);
        shared.send[i] = my_rows * their_columns > 0;
        shared.recv[i] = their_rows * my_columns > 0;
        shared.send_at[i] = (int)column * ELEMENT;
        shared.recv_at[i] = (int)row * my_columns * ELEMENT;
        row += their_rows;
        column += their_columns;
    }
    int code = MPI_Alltoallw(b->in, shared.send, shared.send_at, send, b->out, shared.recv,
                             shared.recv_at, recv, shared.comm);
    for (int64_t i = 0; i < 2 * b->count; i++)
        MPI_Type_free(&send[i]);
    free(send);
    return code;
}

static int ring(bench_rank *b)
{
    int n = (int)b->count, next = (int)(b->index + 1) % n, before = (int)(b->index + n - 1) % n;
    int mine = (int)bench_chunk(b->size / ELEMENT, n, b->index);
    int theirs = (int)bench_chunk(b->size / ELEMENT, n, before);
    return MPI_Sendrecv(b->in, mine, MPI_FLOAT, next, 0, b->out, theirs, MPI_FLOAT, before, 0,
                        shared.comm, MPI_STATUS_IGNORE);
}

static int call_rooted(const char *raw, bench_rank *b)
{
    int total = (int)(b->size / ELEMENT), mine = (int)bench_chunk(total, b->count, b->index);
    split_whole(b, shared.send, shared.send_at);
    if (strcmp(raw, "MPI_Bcast") == 0) {
        return MPI_Bcast(b->index == 0 ? b->in : b->out, total, MPI_FLOAT, 0, shared.comm);
    }
    if (strcmp(raw, "MPI_Scatterv") == 0) {
        return MPI_Scatterv(b->in, shared.send, shared.send_at, MPI_FLOAT, b->out, mine, MPI_FLOAT,
                            0, shared.comm);
    }
    if (strcmp(raw, "MPI_Gatherv") == 0) {
        return MPI_Gatherv(b->in, mine, MPI_FLOAT, b->out, shared.send, shared.send_at, MPI_FLOAT,
                           0, shared.comm);
    }
    if (strcmp(raw, "MPI_Reduce") == 0) {
        return MPI_Reduce(b->in, b->out, total, MPI_FLOAT, MPI_SUM, 0, shared.comm);
    }
    return 1;
}

static int call(const char *raw, bench_rank *b)
{
    if (prepare(b) != 0) return 1;
    int total = (int)(b->size / ELEMENT), mine = (int)bench_chunk(total, b->count, b->index);
    if (strcmp(raw, "MPI_Barrier") == 0) return MPI_Barrier(shared.comm);
    if (strcmp(raw, "MPI_Allreduce") == 0) {
        return MPI_Allreduce(b->in, b->out, total, MPI_FLOAT, MPI_SUM, shared.comm);
    }
    if (strcmp(raw, "MPI_Alltoallv") == 0) return all_to_all(b);
    if (strcmp(raw, "MPI_Alltoallw") == 0) return all_to_all_w(b);
    if (strcmp(raw, "MPI_Sendrecv") == 0) return ring(b);
    if (strcmp(raw, "MPI_Allgatherv") == 0) {
        split_whole(b, shared.recv, shared.recv_at);
        return MPI_Allgatherv(b->in, mine, MPI_FLOAT, b->out, shared.recv, shared.recv_at,
                              MPI_FLOAT, shared.comm);
    }
    if (strcmp(raw, "MPI_Reduce_scatter") == 0) {
        split_whole(b, shared.recv, shared.recv_at);
        return MPI_Reduce_scatter(b->in, b->out, shared.recv, MPI_FLOAT, MPI_SUM, shared.comm);
    }
    return call_rooted(raw, b);
}

static const bench_rival rival = { .struct_size = sizeof rival, .call = call };

TS_API const bench_rival *bench_rival_module(void);
const bench_rival *bench_rival_module(void)
{
    return &rival;
}
