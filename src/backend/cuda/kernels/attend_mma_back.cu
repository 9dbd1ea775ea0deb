/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma_back.cu - the gradient of attention of bf16 and f16 on the tensor cores, with every
 * mask, by its block lists.
 *
 *   P = exp(scale Q K' - lse)     dS = scale P (dO V' - delta)     of pairs that are seen
 *
 *   queries    a block has 128 queries of a head and walks the keys they see: dQ = dS K
 *   keys       a block has 64 keys of a group and walks the queries that see them, of all its
 * heads: dV = P' dO, dK = dS' Q. Rows are keys there, and P and dS come out turned.
 *
 * P and dS are made twice, so that no sum is shared among blocks: each is in the order of tiles,
 * and repeats have equal bits. delta is that of attend.cu. Rows that do not exist are zeros, and
 * queries that see nothing have a log-sum-exp of +inf here: their weights are 0. */
#include "backend/cuda/kernels/attend_mma.cuh"
#include "backend/cuda/kernels/kernel.cuh"

/* ---- what both share ------------------------------------------------------------------------- */

/* Of a query: what is taken from scores before they are powers, and from gradients of weights. */
struct known_of {
    float base, delta;
};

__device__ inline known_of known_at(const tsi_cuda_attend_args &a, int64_t b, int64_t h, int64_t i)
{
    if (i >= a.queries) return { INFINITY, 0 };
    float lse = ((const float *)a.lse.data)[at(a.lse, b, h, i)];
    float delta = ((const float *)a.delta)[(b * a.heads + h) * a.queries + i];
    return { lse == -INFINITY ? INFINITY : lse * (float)LOG2_E, delta };
}

/* A product becomes the weight of its pair, the gradient of the weight that of the product. */
__device__ inline void turn_pair(const tsi_cuda_attend_args &a, float &s, float &dp, bool hidden,
                                 const known_of &known)
{
    s = hidden ? 0.0f : power_of_two(s * (float)(a.scale * LOG2_E) - known.base);
    dp = s * (dp - known.delta) * (float)a.scale;
}

/* A warp's 16 rows of sums that are f32 in memory, from row `first` of head h on, as they are;
 * those from `end` on do not exist. */
template <int D>
__device__ inline void load_sums(const tsi_cuda_heads &x, float (&sum)[1][D / 8][4], int64_t b,
                                 int64_t h, int64_t first, int64_t end)
{
    int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = first + lane / 4 + half * 8;
        if (i >= end) continue;
        const float *from = (const float *)x.data + at(x, b, h, i) + column;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            sum[0][n][half * 2] = from[n * 8], sum[0][n][half * 2 + 1] = from[n * 8 + 1];
    }
}

/* And from the registers to memory. */
template <typename H, int D>
__device__ inline void store_sums(const tsi_cuda_heads &x, const float (&sum)[1][D / 8][4],
                                  int64_t b, int64_t h, int64_t first, int64_t end)
{
    int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = first + lane / 4 + half * 8;
        if (i >= end) continue;
        int64_t to = at(x, b, h, i) + column;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            store_two<H>(x, to + n * 8, sum[0][n][half * 2], sum[0][n][half * 2 + 1]);
    }
}

__device__ inline const uint16_t *head_of(const tsi_cuda_heads &x, int64_t b, int64_t h)
{
    return (const uint16_t *)x.data + b * x.stride[0] + h * x.stride[1];
}

/* ---- queries --------------------------------------------------------------------------------- */

template <typename H, int D> __device__ void queries(const tsi_cuda_attend_args &a)
{
    constexpr int M = TSI_CUDA_TILE_QUERIES, THREADS = M * 2; /* a warp has 16 of them */
    constexpr uint32_t TILE = KEYS * D * 2;
    TSI_BLOCK_MEMORY(uint4, memory);
    uint32_t rows = shared_at(memory), grads = rows + M * D * 2;
    uint32_t keys = grads + M * D * 2, values = keys + 2 * TILE;
    int64_t pairs = a.batch * a.heads, tiles = (a.queries + M - 1) / M;
    int64_t bh = blockIdx.x % pairs, first = (tiles - 1 - blockIdx.x / pairs) * M;
    int64_t b = bh / a.heads, h = bh % a.heads, g = a.group_of[h];
    const uint16_t *k = head_of(a.k, b, g), *v = head_of(a.v, b, g);
    listed_steps steps = { runs_of(a.tiles, list_of(a.tiles, b, h), first / M), 0 };
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16; /* of the warp */
    int64_t mine = first + row + lane / 4;
    const known_of known[2] = { known_at(a, b, h, mine), known_at(a, b, h, mine + 8) };
    float sum[1][D / 8][4];
    clear(sum);
    if (a.adds) load_sums<D>(a.dq, sum, b, h, first + row, a.queries);

    fetch_rows<D, M, THREADS>(rows, head_of(a.q, b, h), a.q.stride[2], first, a.queries);
    fetch_rows<D, M, THREADS>(grads, head_of(a.d_out, b, h), a.d_out.stride[2], first, a.queries);
    if (!steps.is_over()) {
        fetch_rows<D, KEYS, THREADS>(keys, k, a.k.stride[2], steps.key(), a.keys);
        fetch_rows<D, KEYS, THREADS>(values, v, a.v.stride[2], steps.key(), a.keys);
    }
    fetch_end();
    fetch_wait();
    __syncthreads();
    for (uint32_t now = 0; !steps.is_over(); now ^= TILE) {
        listed_steps after = steps;
        after.go_on();
        if (!after.is_over()) {
            uint32_t next = now ^ TILE;
            fetch_rows<D, KEYS, THREADS>(keys + next, k, a.k.stride[2], after.key(), a.keys);
            fetch_rows<D, KEYS, THREADS>(values + next, v, a.v.stride[2], after.key(), a.keys);
        }
        fetch_end();
        float s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
        products<H, D>(s, rows, row, keys + now);
        products<H, D>(dp, grads, row, values + now);
        seen_bits<1> seen(a, steps, first, mine);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = n * 8 + lane % 4 * 2 + e % 2;
                bool hidden = seen.masked && seen.hides(0, e / 2, column);
                turn_pair(a, s[0][n][e], dp[0][n][e], hidden, known[e / 2]);
            }
        add_products<H, D, 1>(sum, dp, keys + now);
        fetch_wait();
        __syncthreads();
        steps = after;
    }
    store_sums<H, D>(a.dq, sum, b, h, first + row, a.queries);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The queries that see a tile of keys, of one head of the group after the other, half a tile of
 * them at a time. */
struct query_steps {
    enum { STEP = KEYS };
    const tsi_cuda_attend_args &a;
    int64_t b, g, column; /* of the keys: row, group, column of tiles */
    int64_t h, row, end;  /* the head, and the rows of tiles it has left */
    int64_t half;
    const tsi_cuda_run *run;

    __device__ query_steps(const tsi_cuda_attend_args &args, int64_t b_, int64_t g_,
                           int64_t column_)
        : a(args), b(b_), g(g_), column(column_), h(-1), row(0), end(0), half(0), run(nullptr)
    {
        find();
    }
    __device__ bool is_over() const
    {
        return h >= a.heads;
    }
    __device__ int64_t query() const
    {
        return row * TSI_CUDA_TILE_QUERIES + half * STEP;
    }
    /* From this row of tiles on, the first that sees the keys. */
    __device__ void find()
    {
        for (;; row++) {
            while (row >= end) {
                do {
                    if (++h >= a.heads) return;
                } while (a.group_of[h] != g);
                const int32_t *hull =
                    a.tiles.hull + 2 * (list_of(a.tiles, b, h) * a.tiles.columns + column);
                row = hull[0], end = hull[1];
            }
            run = run_at(a.tiles, list_of(a.tiles, b, h), row, column);
            if (run) return;
        }
    }
    __device__ void go_on()
    {
        if (half == 0 && query() + STEP < a.queries) {
            half = 1;
            return;
        }
        half = 0;
        row++;
        find();
    }
};

/* What is known of the queries of a step, one each. */
struct step_known {
    known_of of[query_steps::STEP];
    uint64_t word[query_steps::STEP]; /* which of the keys it sees */
};

static_assert(sizeof(step_known) == 1024, "the launch reckons with it");

__device__ inline void know_step(const tsi_cuda_attend_args &a, step_known &known,
                                 const query_steps &steps)
{
    if (threadIdx.x >= query_steps::STEP) return;
    int64_t i = steps.query() + threadIdx.x;
    known.of[threadIdx.x] = known_at(a, steps.b, steps.h, i);
    known.word[threadIdx.x] = word_of(a.tiles, steps.run, i);
}

template <typename H, int D> __device__ void keys(const tsi_cuda_attend_args &a)
{
    constexpr int STEP = query_steps::STEP, THREADS = KEYS * 2; /* a warp has 16 keys */
    constexpr uint32_t TILE = STEP * D * 2;
    TSI_BLOCK_MEMORY(uint4, memory);
    uint32_t rows = shared_at(memory), values = rows + KEYS * D * 2;
    uint32_t queries = values + KEYS * D * 2, grads = queries + 2 * TILE;
    step_known *known = (step_known *)((char *)memory + 2 * KEYS * D * 2 + 4 * TILE);
    int64_t tiles = (a.keys + KEYS - 1) / KEYS, bg = blockIdx.x / tiles;
    int64_t column = blockIdx.x % tiles, first = column * KEYS, b = bg / a.groups,
            g = bg % a.groups;
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16; /* of the warp */
    query_steps steps(a, b, g, column);
    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk);
    clear(dv);

    fetch_rows<D, KEYS, THREADS>(rows, head_of(a.k, b, g), a.k.stride[2], first, a.keys);
    fetch_rows<D, KEYS, THREADS>(values, head_of(a.v, b, g), a.v.stride[2], first, a.keys);
    auto fetch_step = [&](const query_steps &of, int turn) {
        fetch_rows<D, STEP, THREADS>(queries + turn * TILE, head_of(a.q, b, of.h), a.q.stride[2],
                                     of.query(), a.queries);
        fetch_rows<D, STEP, THREADS>(grads + turn * TILE, head_of(a.d_out, b, of.h),
                                     a.d_out.stride[2], of.query(), a.queries);
        know_step(a, known[turn], of);
    };
    if (!steps.is_over()) fetch_step(steps, 0);
    fetch_end();
    fetch_wait();
    __syncthreads();
    for (int turn = 0; !steps.is_over(); turn ^= 1) {
        bool masked = steps.run->bits >= 0;
        steps.go_on();
        if (!steps.is_over()) fetch_step(steps, turn ^ 1);
        fetch_end();
        float s[1][STEP / 8][4], dp[1][STEP / 8][4];
        products<H, D>(s, rows, row, queries + turn * TILE);
        products<H, D>(dp, values, row, grads + turn * TILE);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int query = n * 8 + lane % 4 * 2 + e % 2, key = row + lane / 4 + e / 2 * 8;
                bool hidden = masked && !(known[turn].word[query] >> key & 1);
                turn_pair(a, s[0][n][e], dp[0][n][e], hidden, known[turn].of[query]);
            }
        add_products<H, D, 1>(dv, s, grads + turn * TILE);
        add_products<H, D, 1>(dk, dp, queries + turn * TILE);
        fetch_wait();
        __syncthreads();
    }
    store_sums<H, D>(a.dk, dk, b, g, first + row, a.keys);
    store_sums<H, D>(a.dv, dv, b, g, first + row, a.keys);
}

/* Kernels of a head size and dtype. */
#define ATTEND_BACK(name, half, depth)                                                             \
    TSI_KERNEL_BOUNDED(attend_mma_queries_##name, tsi_cuda_attend_args, 256)                       \
    {                                                                                              \
        queries<half, depth>(a);                                                                   \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(attend_mma_keys_##name, tsi_cuda_attend_args, 128)                          \
    {                                                                                              \
        keys<half, depth>(a);                                                                      \
    }
ATTEND_BACK(64_bf16, of_bf16, 64)
ATTEND_BACK(64_f16, of_f16, 64)
ATTEND_BACK(128_bf16, of_bf16, 128)
ATTEND_BACK(128_f16, of_f16, 128)
