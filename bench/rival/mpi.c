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

/* ---- redistributions ------------------------------------------------------------------------ */

typedef struct move_types {
    MPI_Comm comm;
    MPI_Datatype *send, *recv;                      /* per peer */
    int *send_one, *recv_one;                       /* 1: there is something */
    int *zero;                                      /* displacements */
    int *send_size, *send_at, *recv_size, *recv_at; /* of packed pieces */
} move_types;

/* The boxes first .. last of a block as one type. */
static int box_type(const bench_box *box, int64_t count, MPI_Datatype *out)
{
    MPI_Datatype *part = calloc((size_t)count + 1, sizeof *part);
    MPI_Aint *at = calloc((size_t)count + 1, sizeof *at);
    int *one = calloc((size_t)count + 1, sizeof *one), code = part && at && one ? 0 : 1;
    for (int64_t i = 0; code == 0 && i < count; i++) {
        at[i] = (MPI_Aint)box[i].offset * ELEMENT;
        one[i] = 1;
        code = MPI_Type_vector((int)box[i].rows, (int)box[i].columns, (int)box[i].stride, MPI_FLOAT,
                               &part[i]);
    }
    if (code == 0) code = MPI_Type_create_struct((int)count, one, at, part, out);
    if (code == 0) code = MPI_Type_commit(out);
    for (int64_t i = 0; code == 0 && i < count; i++)
        MPI_Type_free(&part[i]);
    free(part);
    free(at);
    free(one);
    return code;
}

static int side_types(const bench_box *box, const int64_t *first, int64_t ranks, MPI_Datatype *type,
                      int *one, int *size, int *at)
{
    int code = 0;
    for (int64_t p = 0; p < ranks && code == 0; p++) {
        int64_t count = first[p + 1] - first[p], elements = 0;
        for (int64_t i = first[p]; i < first[p + 1]; i++)
            elements += box[i].rows * box[i].columns;
        size[p] = (int)elements;
        one[p] = elements > 0;
        type[p] = MPI_FLOAT;
        if (elements > 0) code = box_type(box + first[p], count, &type[p]);
    }
    displace(at, size, ranks);
    return code;
}

static int move_open(bench_moves *m)
{
    size_t n = (size_t)m->count;
    move_types *t = calloc(1, sizeof *t);
    MPI_Datatype *type = calloc(2 * n, sizeof *type);
    int *numbers = calloc(7 * n, sizeof *numbers);
    if (!t || !type || !numbers || MPI_Comm_dup(MPI_COMM_WORLD, &t->comm) != MPI_SUCCESS) {
        free(t);
        free(type);
        free(numbers);
        return 1;
    }
    m->types = t;
    t->send = type;
    t->recv = type + n;
    t->send_one = numbers;
    t->recv_one = numbers + n;
    t->zero = numbers + 2 * n;
    t->send_size = numbers + 3 * n;
    t->send_at = numbers + 4 * n;
    t->recv_size = numbers + 5 * n;
    t->recv_at = numbers + 6 * n;
    int code = side_types(m->send, m->send_first, m->count, t->send, t->send_one, t->send_size,
                          t->send_at);
    if (code != 0) return code;
    return side_types(m->recv, m->recv_first, m->count, t->recv, t->recv_one, t->recv_size,
                      t->recv_at);
}

static void move_close(bench_moves *m)
{
    move_types *t = m->types;
    if (t == NULL) return;
    for (int64_t i = 0; i < m->count; i++) {
        if (t->send_one[i]) MPI_Type_free(&t->send[i]);
        if (t->recv_one[i]) MPI_Type_free(&t->recv[i]);
    }
    MPI_Comm_free(&t->comm);
    free(t->send);
    free(t->send_one);
    free(t);
    m->types = NULL;
}

static void pack_boxes(const bench_box *box, int64_t count, const float *block, float *packed)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t row = 0; row < box[i].rows; row++) {
            memcpy(packed, block + box[i].offset + row * box[i].stride,
                   (size_t)box[i].columns * ELEMENT);
            packed += box[i].columns;
        }
    }
}

static void unpack_boxes(const bench_box *box, int64_t count, float *block, const float *packed)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t row = 0; row < box[i].rows; row++) {
            memcpy(block + box[i].offset + row * box[i].stride, packed,
                   (size_t)box[i].columns * ELEMENT);
            packed += box[i].columns;
        }
    }
}

static int move(const char *raw, bench_moves *m)
{
    move_types *t = m->types;
    if (strcmp(raw, "MPI_Allreduce") == 0)
        return MPI_Allreduce(m->in, m->out, (int)m->folded, MPI_FLOAT, MPI_SUM, t->comm);
    if (strcmp(raw, "MPI_Reduce_scatter") == 0) /* only one box each: whole rows */
        return MPI_Reduce_scatter(m->in, m->out, t->send_size, MPI_FLOAT, MPI_SUM, t->comm);
    if (strcmp(raw, "MPI_Alltoallw") == 0)
        return MPI_Alltoallw(m->in, t->send_one, t->zero, t->send, m->out, t->recv_one, t->zero,
                             t->recv, t->comm);
    pack_boxes(m->send, m->send_first[m->count], m->in, m->packed_in);
    int code = MPI_Alltoallv(m->packed_in, t->send_size, t->send_at, MPI_FLOAT, m->packed_out,
                             t->recv_size, t->recv_at, MPI_FLOAT, t->comm);
    unpack_boxes(m->recv, m->recv_first[m->count], m->out, m->packed_out);
    return code;
}

static const bench_rival rival = { .struct_size = sizeof rival,
                                   .call = call,
                                   .move_open = move_open,
                                   .move = move,
                                   .move_close = move_close };

TS_API const bench_rival *bench_rival_module(void);
const bench_rival *bench_rival_module(void)
{
    return &rival;
}
