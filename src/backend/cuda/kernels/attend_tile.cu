/* SPDX-License-Identifier: Apache-2.0 */
/* attend_tile.cu - attention in f32 and f64 by tiles of 64 queries and 64 keys: rows of up to 128
 * columns of any strides, positions, masks and real dtypes.
 *
 *   forward    a block 64 queries: tile after tile of the keys that one of them sees, the largest
 *              score so far and the sum follow
 *   backward   after delta (attend.cu) a block 64 queries for dq, and a block 64 keys of a group
 *              for dk and dv, which walks the queries of all its heads
 *
 * A block of 256 threads is 16 lines of 16. A line has four rows of queries: its threads have every
 * sixteenth key of a tile of scores, and every sixteenth unit of four columns of what is summed.
 * Rows lie in shared memory as numbers that are computed with, with zeros up to the next unit.
 *
 * INV: every sum is one block's, in the order of tiles: the same bits on every GPU. A query that
 * sees nothing gives zeros and a log-sum-exp of -inf, and takes no part in any gradient. */
#include "backend/cuda/kernels/attend_tile.h"

#include "backend/cuda/kernels/attend_pairs.cuh"
#include "backend/cuda/kernels/kernel.cuh"

enum { SIDE = TSI_CUDA_TILE, LINE = 16, OWN = SIDE / LINE, UNIT = TSI_CUDA_TILE_UNIT };
enum { SCORES = TSI_CUDA_TILE_SCORES, THREADS = TSI_CUDA_TILE_THREADS };
static_assert(TSI_CUDA_TILE_QUERIES % SIDE == 0, "a block has queries of one row of tiles");

/* The thread's place: in its line, and the first of its rows. */
__device__ inline int in_line()
{
    return threadIdx.x % LINE;
}

__device__ inline int first_row()
{
    return threadIdx.x / LINE * OWN;
}

__device__ inline int room_of(int64_t columns)
{
    return (int)tsi_cuda_tile_row(columns);
}

/* ---- numbers in shared memory ---------------------------------------------------------------- */

template <typename R> struct unit_of_four {
    R value[UNIT];
};

__device__ inline unit_of_four<float> load_four(const float *from)
{
    float4 x = *(const float4 *)from;
    return { { x.x, x.y, x.z, x.w } };
}

__device__ inline unit_of_four<double> load_four(const double *from)
{
    double2 x = *(const double2 *)from, y = *(const double2 *)(from + 2);
    return { { x.x, x.y, y.x, y.y } };
}

/* `count` rows from one on, the rest of a tile zeros. */
template <typename R>
__device__ inline void load_tile(R *to, const tsi_cuda_heads &x, int64_t offset, int64_t count,
                                 int64_t columns)
{
    int room = room_of(columns);
    for (int r = threadIdx.x / 32; r < SIDE; r += THREADS / 32)
        for (int c = threadIdx.x % 32; c < room - UNIT; c += 32)
            to[r * room + c] =
                r < count && c < columns
                    ? load_real<R>(x.dtype, x.data, offset + r * x.stride[2] + c * x.stride[3])
                    : R(0);
}

/* The thread's rows of x by its rows of y. */
template <typename R>
__device__ inline void multiply(R (&out)[OWN][OWN], const R *x, const R *y, int64_t columns)
{
    int room = room_of(columns);
    const R *row = x + first_row() * room, *column = y + in_line() * room;
#pragma unroll
    for (int m = 0; m < OWN; m++)
#pragma unroll
        for (int n = 0; n < OWN; n++)
            out[m][n] = 0;
    for (int c = 0; c < room - UNIT; c += UNIT) {
        unit_of_four<R> a[OWN], b[OWN];
#pragma unroll
        for (int m = 0; m < OWN; m++) {
            a[m] = load_four(row + m * room + c);
            b[m] = load_four(column + m * LINE * room + c);
        }
#pragma unroll
        for (int m = 0; m < OWN; m++)
#pragma unroll
            for (int n = 0; n < OWN; n++)
#pragma unroll
                for (int e = 0; e < UNIT; e++)
                    out[m][n] += a[m].value[e] * b[n].value[e];
    }
}

/* ---- sums: four rows by units of columns ----------------------------------------------------- */

template <typename R, int UNITS> struct sums_of {
    R value[OWN][UNITS][UNIT];
};

/* Calls f(row, column, sum) for all that exist of `columns`. */
template <typename R, int UNITS, typename F>
__device__ inline void each(sums_of<R, UNITS> &sum, int64_t columns, F f)
{
#pragma unroll
    for (int m = 0; m < OWN; m++)
#pragma unroll
        for (int u = 0; u < UNITS; u++)
#pragma unroll
            for (int e = 0; e < UNIT; e++) {
                int column = (in_line() + u * LINE) * UNIT + e;
                if (column < columns) f(m, column, sum.value[m][u][e]);
            }
}

/* Rows of the result as they are in memory, or zeros. */
template <typename R, int UNITS>
__device__ inline void begin(sums_of<R, UNITS> &sum, const tsi_cuda_heads &x, int64_t offset,
                             int64_t rows, int64_t columns, bool goes_on)
{
    sum = { { { { 0 } } } };
    if (!goes_on) return;
    each(sum, columns, [&](int m, int column, R &value) {
        int64_t row = first_row() + m;
        if (row < rows)
            value =
                load_real<R>(x.dtype, x.data, offset + row * x.stride[2] + column * x.stride[3]);
    });
}

template <typename R, int UNITS>
__device__ inline void store(sums_of<R, UNITS> &sum, const tsi_cuda_heads &x, int64_t offset,
                             int64_t rows, int64_t columns)
{
    each(sum, columns, [&](int m, int column, R &value) {
        int64_t row = first_row() + m;
        if (row < rows)
            store_real<R>(x.dtype, x.data, offset + row * x.stride[2] + column * x.stride[3],
                          value);
    });
}

/* sum[m] += factor[n] by row n of y, for the thread's units of columns. */
template <typename R, int UNITS>
__device__ inline void add_row(sums_of<R, UNITS> &sum, const R (&factor)[OWN], const R *row,
                               int64_t columns)
{
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int column = (in_line() + u * LINE) * UNIT;
        if (column >= columns) continue;
        unit_of_four<R> b = load_four(row + column);
#pragma unroll
        for (int m = 0; m < OWN; m++)
#pragma unroll
            for (int e = 0; e < UNIT; e++)
                sum.value[m][u][e] += factor[m] * b.value[e];
    }
}

/* The thread's rows of scores by all rows of y. */
template <typename R, int UNITS>
__device__ inline void add_rows(sums_of<R, UNITS> &sum, const R *scores, const R *y,
                                int64_t columns)
{
    int room = room_of(columns);
    for (int k = 0; k < SIDE; k += UNIT) {
        unit_of_four<R> a[OWN];
#pragma unroll
        for (int m = 0; m < OWN; m++)
            a[m] = load_four(scores + (first_row() + m) * SCORES + k);
#pragma unroll
        for (int e = 0; e < UNIT; e++) {
            const R factor[OWN] = { a[0].value[e], a[1].value[e], a[2].value[e], a[3].value[e] };
            add_row(sum, factor, y + (k + e) * room, columns);
        }
    }
}

/* The thread's columns of scores, as rows, by all rows of y. */
template <typename R, int UNITS>
__device__ inline void add_columns(sums_of<R, UNITS> &sum, const R *scores, const R *y,
                                   int64_t columns)
{
    int room = room_of(columns);
    for (int k = 0; k < SIDE; k++) {
        unit_of_four<R> a = load_four(scores + k * SCORES + first_row());
        add_row(sum, a.value, y + k * room, columns);
    }
}

/* ---- rows of queries ------------------------------------------------------------------------- */

struct block_of { /* local: batch, head or group, the first row and how many */
    int64_t b, h, first, rows;
};

__device__ inline block_of this_block(int64_t heads, int64_t rows)
{
    int64_t tiles = (rows + SIDE - 1) / SIDE, tile = blockIdx.x % tiles, at = blockIdx.x / tiles;
    int64_t first = tile * SIDE, left = rows - first;
    return { at / heads, at % heads, first, left < SIDE ? left : SIDE };
}

/* Over the threads of a line. */
template <typename R> __device__ inline R line_max(R x)
{
#pragma unroll
    for (int step = LINE / 2; step > 0; step /= 2)
        x = larger(x, (R)__shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <typename R> __device__ inline R line_sum(R x)
{
#pragma unroll
    for (int step = LINE / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Which keys of a run's tiles the thread's rows see; true: a row of the block sees any. */
__device__ inline bool words_of(const tsi_cuda_attend_args &a, const tsi_cuda_run *run,
                                const block_of &r, uint64_t (&word)[OWN])
{
    bool any = false;
#pragma unroll
    for (int m = 0; m < OWN; m++) {
        int64_t row = first_row() + m;
        word[m] = row < r.rows ? word_of(a.tiles, run, r.first + row) : 0;
        any = any || word[m] != 0;
    }
    return __syncthreads_or(any);
}

/* Whether the thread's row m sees its key n of the tile that begins at `first`. */
__device__ inline bool sees(const tsi_cuda_attend_args &a, uint64_t word, int64_t first, int n)
{
    int key = in_line() + n * LINE;
    return word >> key & 1 && first + key < a.keys;
}

/* Calls f(words, first key) for every tile of keys that a row of the block sees, with its keys and
 * values in shared memory; it may return before others have read them. */
template <typename R, typename F>
__device__ inline void each_tile(const tsi_cuda_attend_args &a, const block_of &r, R *k, R *v, F f)
{
    int64_t g = a.group_of[r.h];
    run_list runs = runs_of(a.tiles, list_of(a.tiles, r.b, r.h), r.first / TSI_CUDA_TILE_QUERIES);
    for (const tsi_cuda_run *run = runs.run; run < runs.end; run++) {
        uint64_t word[OWN];
        if (!words_of(a, run, r, word)) continue;
        for (int64_t first = run_begin(run); first < run_end(a, run); first += SIDE) {
            __syncthreads();
            load_tile(k, a.k, at(a.k, r.b, g, first), a.keys - first, a.depth);
            load_tile(v, a.v, at(a.v, r.b, g, first), a.keys - first, a.width);
            __syncthreads();
            f(word, first);
        }
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The softmax of the thread's rows so far. */
template <typename R, int UNITS> struct softmax_of {
    R top[OWN], total[OWN];
    bool any[OWN]; /* key that is seen */
    query_of<R> query[OWN];
    sums_of<R, UNITS> sum;
};

/* What other keys gave a query counts, unless it saw none of them. */
template <typename R, int UNITS>
__device__ inline void begin_softmax(softmax_of<R, UNITS> &s, const tsi_cuda_attend_args &a,
                                     const block_of &r)
{
    begin(s.sum, a.out, at(a.out, r.b, r.h, r.first), r.rows, a.width, a.adds);
#pragma unroll
    for (int m = 0; m < OWN; m++) {
        int64_t row = first_row() + m < r.rows ? r.first + first_row() + m : r.first;
        s.query[m] = query_at<R>(a, r.b, r.h, row);
        s.top[m] =
            a.adds ? load_real<R>(a.lse.dtype, a.lse.data, at(a.lse, r.b, r.h, row)) : -(R)INFINITY;
        s.any[m] = s.top[m] != -(R)INFINITY;
        s.total[m] = s.any[m] ? R(1) : R(0);
    }
    each(s.sum, a.width, [&](int m, int, R &value) {
        if (!s.any[m]) value = 0;
    });
}

/* The keys of a tile join: their scores become weights, in registers and in shared memory. */
template <typename R, int UNITS>
__device__ inline void take_scores(softmax_of<R, UNITS> &s, const tsi_cuda_attend_args &a,
                                   R (&score)[OWN][OWN], const uint64_t (&word)[OWN], int64_t first,
                                   R *scores)
{
    R keep[OWN], slope;
#pragma unroll
    for (int m = 0; m < OWN; m++) {
        R most = -(R)INFINITY, total = 0;
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            int64_t key = first + in_line() + n * LINE;
            score[m][n] = sees(a, word[m], first, n)
                              ? score_of(a, s.query[m], key, score[m][n], slope)
                              : -(R)INFINITY;
            most = larger(most, score[m][n]);
        }
        most = larger(s.top[m], line_max(most));
        keep[m] = s.top[m] == -(R)INFINITY ? R(0) : exp(s.top[m] - most);
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            int key = in_line() + n * LINE;
            bool seen = sees(a, word[m], first, n) && most != -(R)INFINITY;
            R weight = seen ? exp(score[m][n] - most) : R(0);
            total += weight;
            scores[(first_row() + m) * SCORES + key] =
                seen ? weight * kept(a, s.query[m], first + key) : R(0);
        }
        s.total[m] = s.total[m] * keep[m] + line_sum(total);
        s.top[m] = most;
        s.any[m] = s.any[m] || word[m] != 0;
    }
    each(s.sum, a.width, [&](int m, int, R &value) { value *= keep[m]; });
    __syncwarp(); /* a line reads its own rows of weights alone */
}

template <typename R, int UNITS>
__device__ inline void end_softmax(softmax_of<R, UNITS> &s, const tsi_cuda_attend_args &a,
                                   const block_of &r)
{
    each(s.sum, a.width,
         [&](int m, int, R &value) { value = s.any[m] ? value * (R(1) / s.total[m]) : R(0); });
    store(s.sum, a.out, at(a.out, r.b, r.h, r.first), r.rows, a.width);
#pragma unroll
    for (int m = 0; m < OWN; m++) {
        int64_t row = first_row() + m;
        if (in_line() == 0 && row < r.rows)
            store_real<R>(a.lse.dtype, a.lse.data, at(a.lse, r.b, r.h, r.first + row),
                          s.any[m] ? s.top[m] + log(s.total[m]) : -(R)INFINITY);
    }
}

template <typename R, int UNITS> __device__ void forward(const tsi_cuda_attend_args &a)
{
    TSI_BLOCK_MEMORY(double, memory);
    R *q = (R *)memory, *k = q + SIDE * room_of(a.depth), *v = k + SIDE * room_of(a.depth);
    R *scores = v + SIDE * room_of(a.width), score[OWN][OWN];
    block_of r = this_block(a.heads, a.queries);
    softmax_of<R, UNITS> s;
    begin_softmax(s, a, r);
    load_tile(q, a.q, at(a.q, r.b, r.h, r.first), r.rows, a.depth);
    each_tile(a, r, k, v, [&](const uint64_t(&word)[OWN], int64_t first) {
        multiply(score, q, k, a.depth);
        take_scores(s, a, score, word, first, scores);
        add_rows(s.sum, scores, v, a.width);
    });
    end_softmax(s, a, r);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* What is known of the thread's rows of queries. */
template <typename R> struct known_rows {
    query_of<R> query[OWN];
    known_of<R> known[OWN];
};

template <typename R>
__device__ inline known_rows<R> rows_known(const tsi_cuda_attend_args &a, const block_of &r)
{
    known_rows<R> out;
#pragma unroll
    for (int m = 0; m < OWN; m++) {
        int64_t row = first_row() + m < r.rows ? r.first + first_row() + m : r.first;
        out.query[m] = query_at<R>(a, r.b, r.h, row);
        out.known[m] = known_at<R>(a, r.b, r.h, row);
    }
    return out;
}

/* Weights and slopes of the thread's pairs of a tile of keys; `weights` may be NULL. */
template <typename R>
__device__ inline void take_pairs(const tsi_cuda_attend_args &a, const known_rows<R> &rows,
                                  const R (&product)[OWN][OWN], const R (&d_weight)[OWN][OWN],
                                  const uint64_t (&word)[OWN], int64_t first, R *slopes, R *weights)
{
#pragma unroll
    for (int m = 0; m < OWN; m++)
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            int key = in_line() + n * LINE, at = (first_row() + m) * SCORES + key;
            pair_of<R> pair = { 0, 0 };
            if (sees(a, word[m], first, n) && rows.known[m].base != -(R)INFINITY)
                pair = pair_back(a, rows.query[m], rows.known[m], first + key, product[m][n],
                                 d_weight[m][n]);
            slopes[at] = pair.slope;
            if (weights) weights[at] = pair.weight;
        }
}

/* dq of 64 queries: sums over their keys of slope k. */
template <typename R, int UNITS> __device__ void queries(const tsi_cuda_attend_args &a)
{
    TSI_BLOCK_MEMORY(double, memory);
    int deep = SIDE * room_of(a.depth), wide = SIDE * room_of(a.width);
    R *q = (R *)memory, *k = q + deep, *v = k + deep, *d_out = v + wide, *slopes = d_out + wide;
    R product[OWN][OWN], d_weight[OWN][OWN];
    block_of r = this_block(a.heads, a.queries);
    sums_of<R, UNITS> sum;
    begin(sum, a.dq, at(a.dq, r.b, r.h, r.first), r.rows, a.depth, a.adds);
    known_rows<R> rows = rows_known<R>(a, r);
    load_tile(q, a.q, at(a.q, r.b, r.h, r.first), r.rows, a.depth);
    load_tile(d_out, a.d_out, at(a.d_out, r.b, r.h, r.first), r.rows, a.width);
    each_tile(a, r, k, v, [&](const uint64_t(&word)[OWN], int64_t first) {
        multiply(product, q, k, a.depth);
        multiply(d_weight, d_out, v, a.width);
        take_pairs<R>(a, rows, product, d_weight, word, first, slopes, nullptr);
        __syncwarp();
        add_rows(sum, slopes, k, a.depth);
    });
    store(sum, a.dq, at(a.dq, r.b, r.h, r.first), r.rows, a.depth);
}

/* What a block of keys has in shared memory. */
template <typename R> struct key_room {
    R *k, *v, *q, *d_out, *weights, *slopes;
};

/* 64 queries of a head join. */
template <typename R, int UNITS>
__device__ inline void take_queries(const tsi_cuda_attend_args &a, const key_room<R> &room,
                                    sums_of<R, UNITS> &dk, sums_of<R, UNITS> &dv, int64_t key,
                                    const block_of &r, const tsi_cuda_run *run)
{
    R product[OWN][OWN], d_weight[OWN][OWN];
    uint64_t word[OWN];
    if (!words_of(a, run, r, word)) return; /* and nobody reads the last queries any more */
    load_tile(room.q, a.q, at(a.q, r.b, r.h, r.first), r.rows, a.depth);
    load_tile(room.d_out, a.d_out, at(a.d_out, r.b, r.h, r.first), r.rows, a.width);
    known_rows<R> rows = rows_known<R>(a, r);
    __syncthreads();
    multiply(product, room.q, room.k, a.depth);
    multiply(d_weight, room.d_out, room.v, a.width);
    take_pairs(a, rows, product, d_weight, word, key, room.slopes, room.weights);
    __syncthreads();
    add_columns(dv, room.weights, room.d_out, a.width);
    add_columns(dk, room.slopes, room.q, a.depth);
}

/* dk and dv of 64 keys: sums over the queries of their group's heads that see them. */
template <typename R, int UNITS> __device__ void keys(const tsi_cuda_attend_args &a)
{
    TSI_BLOCK_MEMORY(double, memory);
    int deep = SIDE * room_of(a.depth), wide = SIDE * room_of(a.width);
    R *k = (R *)memory, *q = k + deep, *v = q + deep, *d_out = v + wide, *last = d_out + wide;
    key_room<R> room = { k, v, q, d_out, last, last + SIDE * SCORES };
    block_of of = this_block(a.groups, a.keys);
    int64_t column = of.first / SIDE;
    sums_of<R, UNITS> dk = { { { { 0 } } } }, dv = { { { { 0 } } } };
    load_tile(k, a.k, at(a.k, of.b, of.h, of.first), of.rows, a.depth);
    load_tile(v, a.v, at(a.v, of.b, of.h, of.first), of.rows, a.width);
    for (int64_t h = 0; h < a.heads; h++) {
        if (a.group_of[h] != of.h) continue;
        run_list runs = runs_of_column(a.tiles, list_of(a.tiles, of.b, h), column);
        for (const tsi_cuda_run *run = runs.run; run < runs.end; run++) {
            int64_t end = ((int64_t)run->first + run->count) * TSI_CUDA_TILE_QUERIES;
            if (end > a.queries) end = a.queries;
            for (int64_t first = (int64_t)run->first * TSI_CUDA_TILE_QUERIES; first < end;
                 first += SIDE) {
                int64_t left = end - first;
                block_of r = { of.b, h, first, left < SIDE ? left : SIDE };
                take_queries(a, room, dk, dv, of.first, r, run);
            }
        }
    }
    store(dv, a.dv, at(a.dv, of.b, of.h, of.first), of.rows, a.width);
    store(dk, a.dk, at(a.dk, of.b, of.h, of.first), of.rows, a.depth);
}

/* Rows of up to 64 UNITS columns. */
#define ATTEND(name, real, UNITS)                                                                  \
    TSI_KERNEL_BOUNDED(attend_tile_##name, tsi_cuda_attend_args, THREADS)                          \
    {                                                                                              \
        forward<real, UNITS>(a);                                                                   \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(attend_tile_queries_##name, tsi_cuda_attend_args, THREADS)                  \
    {                                                                                              \
        queries<real, UNITS>(a);                                                                   \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(attend_tile_keys_##name, tsi_cuda_attend_args, THREADS)                     \
    {                                                                                              \
        keys<real, UNITS>(a);                                                                      \
    }
ATTEND(64_f32, float, 1)
ATTEND(128_f32, float, 2)
ATTEND(64_f64, double, 1)
