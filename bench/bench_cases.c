/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cases.c - the collectives that are measured, each with the copies that are its floor.
 *
 * The size is that of the full array of f32, S bytes on n ranks. What a rank must move, and so what
 * its floor copies:
 *
 *   broadcast        S, not at the root
 *   all_gather       S (its own block included)
 *   scatter          S/n
 *   all_to_all       S/n
 *   gather           S at the root
 *   exchange         S/n (rows to columns, strided)
 *   reduce_scatter   what others contribute to its block: S (n-1)/n
 *   all_reduce       that, and the blocks of others: 2 S (n-1)/n
 *   reduce           that, and at the root the blocks of others
 *
 * With one rank a reduction copies its array. */
#include <string.h>

#include "bench.h"

enum { ELEMENT = 4 };

static int64_t elements(const bench_rank *b)
{
    return b->size / ELEMENT;
}

static int64_t my_part(const bench_rank *b)
{
    return bench_chunk(elements(b), b->count, b->index);
}

static ts_array vector_of(void *data, int64_t count)
{
    ts_array array = { .struct_size = sizeof array, .data = data };
    array.meta.dtype = TS_DTYPE_F32;
    array.meta.shape.ndim = 1;
    array.meta.shape.extent[0] = count;
    return array;
}

/* The chunk rule as counts per rank, or NULL if all are equal. */
static const int64_t *split(const bench_rank *b, int64_t *rows, int64_t count)
{
    if (count % b->count == 0) return NULL;
    for (int64_t i = 0; i < b->count; i++)
        rows[i] = bench_chunk(count, b->count, i);
    return rows;
}

/* Copies `bytes` that would come from rank `from`, from its buffer into mine, at the given offsets.
 */
static void copy(const bench_rank *b, int64_t from, int64_t to_at, int64_t from_at, int64_t bytes)
{
    memcpy(b->out + to_at, b->peer_in[from] + from_at, (size_t)bytes);
}

/* ---- barrier --------------------------------------------------------------------------------- */
static ts_status run_barrier(bench_rank *b)
{
    return ts_group_barrier(b->world, NULL);
}

static void wait_barrier(bench_rank *b)
{
    if (b->barrier != NULL) pthread_barrier_wait(b->barrier);
}

/* ---- one to all, all to one ------------------------------------------------------------------ */
static ts_status run_broadcast(bench_rank *b)
{
    ts_array array = vector_of(b->index == 0 ? b->in : b->out, elements(b));
    return ts_group_broadcast(b->world, &array, 0, NULL);
}

static void copy_broadcast(bench_rank *b)
{
    if (b->index != 0) copy(b, 0, 0, 0, b->size);
}

static ts_status run_scatter(bench_rank *b)
{
    ts_array in = vector_of(b->in, elements(b)), out = vector_of(b->out, my_part(b));
    ts_comm_options options = { .struct_size = sizeof options,
                                .send_rows = split(b, b->send_rows, elements(b)) };
    return ts_group_scatter(b->world, b->index == 0 ? &in : NULL, &out, 0, &options);
}

static void copy_scatter(bench_rank *b)
{
    int64_t chunk = bench_chunk(elements(b), b->count, 0) * ELEMENT;
    int64_t begin = b->index * chunk, bytes = my_part(b) * ELEMENT;
    if (bytes > 0) copy(b, 0, 0, begin, bytes);
}

static ts_status run_gather(bench_rank *b)
{
    ts_array in = vector_of(b->in, my_part(b)), out = vector_of(b->out, elements(b));
    ts_comm_options options = { .struct_size = sizeof options,
                                .recv_rows = split(b, b->recv_rows, elements(b)) };
    return ts_group_gather(b->world, &in, b->index == 0 ? &out : NULL, 0, &options);
}

static void copy_all_parts(bench_rank *b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t bytes = bench_chunk(elements(b), b->count, i) * ELEMENT;
        copy(b, i, at, 0, bytes);
        at += bytes;
    }
}

static void copy_gather(bench_rank *b)
{
    if (b->index == 0) copy_all_parts(b);
}

static ts_status run_all_gather(bench_rank *b)
{
    ts_array in = vector_of(b->in, my_part(b)), out = vector_of(b->out, elements(b));
    ts_comm_options options = { .struct_size = sizeof options,
                                .recv_rows = split(b, b->recv_rows, elements(b)) };
    return ts_group_all_gather(b->world, &in, &out, &options);
}

/* ---- reductions ------------------------------------------------------------------------------ */
static ts_status run_reduce(bench_rank *b)
{
    ts_array in = vector_of(b->in, elements(b)), out = vector_of(b->out, elements(b));
    return ts_group_reduce(b->world, &in, b->index == 0 ? &out : NULL, TS_REDUCE_SUM, 0, NULL);
}

static ts_status run_all_reduce(bench_rank *b)
{
    ts_array in = vector_of(b->in, elements(b)), out = vector_of(b->out, elements(b));
    return ts_group_all_reduce(b->world, &in, &out, TS_REDUCE_SUM, NULL);
}

static ts_status run_reduce_scatter(bench_rank *b)
{
    ts_array in = vector_of(b->in, elements(b)), out = vector_of(b->out, my_part(b));
    ts_comm_options options = { .struct_size = sizeof options,
                                .send_rows = split(b, b->send_rows, elements(b)) };
    return ts_group_reduce_scatter(b->world, &in, &out, TS_REDUCE_SUM, &options);
}

/* My block as every other rank has it. */
static void copy_reduce_scatter(bench_rank *b)
{
    int64_t begin = b->index * bench_chunk(elements(b), b->count, 0) * ELEMENT;
    int64_t bytes = my_part(b) * ELEMENT;
    if (b->count == 1) copy(b, 0, 0, 0, b->size);
    for (int64_t i = 0; i < b->count && bytes > 0; i++) {
        if (i != b->index) copy(b, i, begin, begin, bytes);
    }
}

/* The blocks of the others, each from the rank that has it. */
static void copy_other_parts(bench_rank *b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t bytes = bench_chunk(elements(b), b->count, i) * ELEMENT;
        if (i != b->index) copy(b, i, at, at, bytes);
        at += bytes;
    }
}

static void copy_all_reduce(bench_rank *b)
{
    copy_reduce_scatter(b);
    copy_other_parts(b);
}

static void copy_reduce(bench_rank *b)
{
    copy_reduce_scatter(b);
    if (b->index == 0) copy_other_parts(b);
}

/* ---- all to all ------------------------------------------------------------------------------ */
static ts_status run_all_to_all(bench_rank *b)
{
    int64_t total = elements(b), mine = my_part(b), received = 0;
    bool even = total % (b->count * b->count) == 0;
    for (int64_t i = 0; i < b->count; i++) {
        b->send_rows[i] = bench_chunk(mine, b->count, i);
        b->recv_rows[i] = bench_chunk(bench_chunk(total, b->count, i), b->count, b->index);
        received += b->recv_rows[i];
    }
    ts_array in = vector_of(b->in, mine), out = vector_of(b->out, received);
    ts_comm_options options = { .struct_size = sizeof options,
                                .send_rows = even ? NULL : b->send_rows,
                                .recv_rows = even ? NULL : b->recv_rows };
    return ts_group_all_to_all(b->world, &in, &out, &options);
}

static void copy_all_to_all(bench_rank *b)
{
    int64_t at = 0;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t theirs = bench_chunk(elements(b), b->count, i);
        int64_t begin = b->index * bench_chunk(theirs, b->count, 0) * ELEMENT;
        int64_t bytes = bench_chunk(theirs, b->count, b->index) * ELEMENT;
        if (bytes > 0) copy(b, i, at, begin, bytes);
        at += bytes;
    }
}

/* ---- exchange: a matrix cut by rows becomes one cut by columns ------------------------------- */
/* Rows of the matrix: the largest power of two that is not above the square root and divides. */
static int64_t matrix_rows(int64_t count)
{
    int64_t rows = 1;
    while (rows * rows * 4 <= count && count % (rows * 2) == 0)
        rows *= 2;
    return rows;
}

static ts_part block(int64_t peer, char *data, int64_t rows, int64_t columns, int64_t stride)
{
    ts_part part = { .peer = peer, .data = data, .ndim = 2 };
    part.extent[0] = rows;
    part.extent[1] = columns;
    part.stride[0] = stride;
    part.stride[1] = 1;
    return part;
}

static ts_status run_exchange(bench_rank *b)
{
    int64_t rows = matrix_rows(elements(b)), columns = elements(b) / rows;
    int64_t my_rows = bench_chunk(rows, b->count, b->index);
    int64_t my_columns = bench_chunk(columns, b->count, b->index);
    ts_exchange exchange = { .struct_size = sizeof exchange, .dtype = TS_DTYPE_F32 };
    int64_t row = 0, column = 0;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t their_rows = bench_chunk(rows, b->count, i);
        int64_t their_columns = bench_chunk(columns, b->count, i);
        if (my_rows * their_columns > 0) {
            b->send[exchange.send_count++] =
                block(i, b->in + column * ELEMENT, my_rows, their_columns, columns);
        }
        if (their_rows * my_columns > 0) {
            b->recv[exchange.recv_count++] =
                block(i, b->out + row * my_columns * ELEMENT, their_rows, my_columns, my_columns);
        }
        row += their_rows;
        column += their_columns;
    }
    exchange.send = b->send;
    exchange.recv = b->recv;
    return ts_group_exchange(b->world, &exchange, NULL);
}

/* ---- a ring: each rank sends its part to the next and receives from the one before ----------- */
static ts_status run_send_recv(bench_rank *b)
{
    int64_t next = (b->index + 1) % b->count, before = (b->index + b->count - 1) % b->count;
    ts_array in = vector_of(b->in, my_part(b));
    ts_array out = vector_of(b->out, bench_chunk(elements(b), b->count, before));
    ts_work *sending = NULL;
    ts_comm_options options = { .struct_size = sizeof options, .work = &sending };
    ts_status status = ts_group_send(b->world, &in, next, &options);
    if (status == TS_OK) status = ts_group_recv(b->world, &out, before, NULL);
    ts_status sent = ts_work_wait(sending);
    return status != TS_OK ? status : sent;
}

static void copy_ring(bench_rank *b)
{
    int64_t before = (b->index + b->count - 1) % b->count;
    copy(b, before, 0, 0, bench_chunk(elements(b), b->count, before) * ELEMENT);
}

const bench_case bench_cases[] = {
    { "barrier", false, run_barrier, wait_barrier, "MPI_Barrier" },
    { "broadcast", true, run_broadcast, copy_broadcast, "MPI_Bcast" },
    { "scatter", true, run_scatter, copy_scatter, "MPI_Scatterv" },
    { "gather", true, run_gather, copy_gather, "MPI_Gatherv" },
    { "all_gather", true, run_all_gather, copy_all_parts, "MPI_Allgatherv" },
    { "reduce", true, run_reduce, copy_reduce, "MPI_Reduce" },
    { "all_reduce", true, run_all_reduce, copy_all_reduce, "MPI_Allreduce" },
    { "reduce_scatter", true, run_reduce_scatter, copy_reduce_scatter, "MPI_Reduce_scatter" },
    { "all_to_all", true, run_all_to_all, copy_all_to_all, "MPI_Alltoallv" },
    { "exchange", true, run_exchange, copy_all_to_all, "MPI_Alltoallw" },
    { "send_recv", true, run_send_recv, copy_ring, "MPI_Sendrecv" },
};
const size_t bench_case_count = sizeof bench_cases / sizeof bench_cases[0];
