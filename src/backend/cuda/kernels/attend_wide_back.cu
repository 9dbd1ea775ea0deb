/* SPDX-License-Identifier: Apache-2.0 */
/* attend_wide_back.cu - the gradient of attention of bf16 and f16 by products of four warps, for
 * GPUs of 9.0: what attend_mma_back.cu does, in the same two passes and with its lists.
 *
 *   queries    128 queries of a head, 64 for four warps each, walk the keys they see
 *   keys       64 keys of a group walk the queries that see them; rows are keys. Of long rows dV
 *              and dK have a pass each: both are more numbers than four warps hold
 *
 * Pairs of a step are weighed in registers. Then products of the next step are asked for, and
 * behind them those that only add (dQ; dV and dK), which go on while the next pairs are weighed:
 *
 *   tensor cores   S, dP of step + 1 | dQ of step     | S, dP of step + 2 | ...
 *   threads        wait              | weigh step + 1 | wait */
#include "backend/cuda/kernels/attend_back.cuh"
#include "backend/cuda/kernels/attend_wide.cuh"
#include "backend/cuda/kernels/kernel.cuh"

/* S and dP of a step, or S alone, later: of tiles whose rows are queries and keys, and gradients of
 * results and values, either way round. */
template <typename H, int D, int E, bool GRADIENTS>
__device__ inline void ask_pairs(float (&s)[KEYS / 8][4], float (&dp)[KEYS / 8][4], uint32_t x,
                                 uint32_t y, uint32_t x_grads, uint32_t y_grads)
{
    wide_products<H, D>(s, x, y);
    if (GRADIENTS) wide_products<H, E>(dp, x_grads, y_grads);
    products_end();
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Tiles of keys and values that come and go, fetched by THREADS threads. Keys are a ring: of step,
 * whose products are added while those of step + 1 are made, and where RING is 3 one more on its
 * way. Values, which are done with a step earlier, have a place less. */
template <int D, int E, int RING, int THREADS> struct key_ring {
    uint32_t keys, values;
    int64_t end;
    tile_fetch<D, THREADS> k;
    tile_fetch<E, THREADS> v;

    __device__ key_ring(const tsi_cuda_attend_args &a, const queries_at &of, uint32_t memory)
        : keys(memory), values(memory + RING * tile_of<D>::BYTES), end(a.keys),
          k(a.k, of.b, of.g, a.depth), v(a.v, of.b, of.g, a.width)
    {
    }
    __device__ uint32_t key(uint32_t turn) const
    {
        return keys + turn * tile_of<D>::BYTES;
    }
    __device__ uint32_t value(uint32_t half) const
    {
        return values + half * tile_of<E>::BYTES;
    }
    __device__ void fetch(uint32_t turn, uint32_t half, const listed_steps &step) const
    {
        if (step.is_over()) return;
        k.template rows<KEYS>(key(turn), step.key(), end);
        v.template rows<KEYS>(value(half), step.key(), end);
    }
};

/* D columns of queries and keys, E of values, or fewer. */
template <typename H, int D, int E, int RING> __device__ void queries(const tsi_cuda_attend_args &a)
{
    constexpr int M = TSI_CUDA_TILE_QUERIES, THREADS = M / TILE_ROWS * FOUR_WARPS;
    constexpr uint32_t DEEP = tile_of<D>::BYTES, WIDE = tile_of<E>::BYTES;
    TSI_BLOCK_MEMORY(__align__(1024) char, memory);
    uint32_t rows = shared_at(memory), grads = rows + M / TILE_ROWS * DEEP;
    uint32_t own = threadIdx.x / FOUR_WARPS, own_rows = rows + own * DEEP;
    uint32_t own_grads = grads + own * WIDE;
    const queries_at block(a);
    const key_ring<D, E, RING, THREADS> ring(a, block, grads + M / TILE_ROWS * WIDE);
    int64_t b = block.b, h = block.h;
    int32_t first = (int32_t)block.first;
    listed_steps steps = { runs_of(a.tiles, list_of(a.tiles, b, h), first / M), 0 }, next = steps;
    int row = threadIdx.x / 32 * 16; /* of the warp */
    int64_t mine = first + row + threadIdx.x % 32 / 4;
    const known_of *of = known_of_head(a, b, h);
    const known_of known[2] = { known_at(a, of, mine), known_at(a, of, mine + 8) };
    const sums_at place = { b, h, first + row, a.queries, a.depth };
    seen_bits<1> seen(a, first, mine);
    float sum[1][D / 8][4], s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
    clear(sum);
    /* Behind a wait for all products: what they read is free. */
    auto fetch_behind = [&](uint32_t turn) {
        if (RING == 3) return;
        __syncthreads();
        ring.fetch(turn, 0, next);
        fetch_end();
    };
    if (!steps.is_over()) {
        tile_fetch<D, THREADS>(a.q, b, h, a.depth).template rows<M>(rows, first, a.queries);
        tile_fetch<E, THREADS>(a.d_out, b, h, a.width).template rows<M>(grads, first, a.queries);
        next.go_on();
    }
    ring.fetch(0, 0, steps);
    fetch_end();
    if (RING == 3) ring.fetch(1, 1, next);
    fetch_end();
    products_meet<1>();
    ask_pairs<H, D, E, true>(s[0], dp[0], own_rows, ring.key(0), own_grads, ring.value(0));
    products_wait();
    fetch_behind(1);
    for (uint32_t turn = 0, half = 0; !steps.is_over(); half ^= RING == 3) {
        uint32_t after = turn == RING - 1 ? 0 : turn + 1, other = RING == 3 ? half ^ 1 : 0;
        narrow_step ds;
        products_there(s[0]);
        products_there(dp[0]);
        seen.look(a, steps);
        hide<1>(s, seen);
        turn_rows(a, s[0], dp[0], known);
        products_wait_behind(s[0]);
        products_there(sum[0]);
        narrow<H>(ds, dp[0]);
        steps = next;
        if (!next.is_over()) next.go_on();
        products_meet();
        ask_pairs<H, D, E, true>(s[0], dp[0], own_rows, ring.key(after), own_grads,
                                 ring.value(other));
        wide_add_products<H, D>(sum[0], ds, ring.key(turn));
        products_end();
        turn = after;
        if (RING == 3) ring.fetch(turn == 2 ? 0 : turn + 1, half, next);
        fetch_end();
        products_wait<RING == 3>();
        fetch_behind(turn ^ 1);
    }
    products_wait();
    products_there(sum[0]);
    if (a.adds) add_sums<D>(a.dq, sum, place);
    store_sums<H, D>(a.dq, sum, place);
}

/* ---- keys ------------------------------------------------------------------------------------ */

enum { OF_VALUES = 1, OF_KEYS = 2 }; /* which gradients */

/* The queries that see a tile of keys, and gradients of their results, as four warps fetch them
 * step by step. */
template <int D, int E> struct query_fetch {
    const tsi_cuda_attend_args &a;
    query_steps steps; /* the next one */
    tile_fetch<D, FOUR_WARPS> q;
    tile_fetch<E, FOUR_WARPS> d_out;
    const known_of *of; /* of the head */

    __device__ query_fetch(const tsi_cuda_attend_args &args, const query_steps &first)
        : a(args), steps(first), q(a.q, first.b, first.h, a.depth),
          d_out(a.d_out, first.b, first.h, a.width), of(known_of_head(a, first.b, first.h))
    {
    }
    /* If there is one more: whether pairs of it are hidden is then said. */
    __device__ void step(uint32_t rows, uint32_t grads, step_known &known, bool &masked)
    {
        if (steps.is_over()) return;
        int32_t query = steps.query(), head = steps.h;
        q.template rows<query_steps::STEP>(rows, query, a.queries);
        d_out.template rows<query_steps::STEP>(grads, query, a.queries);
        fetch_known(a, known, of, steps);
        masked = steps.is_masked();
        steps.go_on();
        if (steps.h == head || steps.is_over()) return;
        q = tile_fetch<D, FOUR_WARPS>(a.q, steps.b, steps.h, a.depth);
        d_out = tile_fetch<E, FOUR_WARPS>(a.d_out, steps.b, steps.h, a.width);
        of = known_of_head(a, steps.b, steps.h);
    }
};

/* Memory of queries and gradients is a ring: of step, whose products are added while those of step
 * + 1 are made, and one on its way where RING is 3. */
template <typename H, int D, int E, int RING, int WHICH>
__device__ void keys(const tsi_cuda_attend_args &a)
{
    constexpr int STEP = query_steps::STEP;
    constexpr uint32_t DEEP = tile_of<D>::BYTES, WIDE = tile_of<E>::BYTES;
    constexpr bool DV = WHICH & OF_VALUES, DK = WHICH & OF_KEYS;
    TSI_BLOCK_MEMORY(__align__(1024) char, memory);
    uint32_t rows = shared_at(memory), values = rows + DEEP;
    uint32_t queries = values + WIDE, grads = queries + RING * DEEP;
    step_known *known = (step_known *)(memory + (RING + 1) * (DEEP + WIDE));
    int64_t pairs = a.batch * a.groups, bg = blockIdx.x % pairs, column = blockIdx.x / pairs;
    int64_t first = column * KEYS, b = bg / a.groups, g = bg % a.groups;
    int row = threadIdx.x / 32 * 16; /* of the warp */
    const query_steps steps(a, b, g, column);
    float dk[1][DK ? D / 8 : 1][4], dv[1][DV ? E / 8 : 1][4];
    clear(dk);
    clear(dv);
    if (!steps.is_over()) {
        const tile_fetch<D, FOUR_WARPS> k(a.k, b, g, a.depth);
        const tile_fetch<E, FOUR_WARPS> v(a.v, b, g, a.width);
        query_fetch<D, E> coming(a, steps);
        auto fetch_step = [&](uint32_t turn, bool &masked) {
            coming.step(queries + turn * DEEP, grads + turn * WIDE, known[turn], masked);
            fetch_end();
        };
        k.template rows<KEYS>(rows, (int32_t)first, a.keys);
        if (DK) v.template rows<KEYS>(values, (int32_t)first, a.keys);
        bool masked = false, masked_next = false;
        fetch_step(0, masked);
        bool more = !coming.steps.is_over(), last = false;
        fetch_step(1, masked_next);
        float s[1][STEP / 8][4], dp[1][STEP / 8][4];
        products_meet<1>();
        ask_pairs<H, D, E, DK>(s[0], dp[0], rows, queries, values, grads);
        products_wait();
        for (uint32_t turn = 0; !last;) {
            uint32_t after = turn == RING - 1 ? 0 : turn + 1;
            products_there(s[0]);
            if (DK) products_there(dp[0]);
            if (masked) known[turn].hide(s[0], row);
            known[turn].template turn<DK>(a, s[0], dp[0]);
            narrow_step p, ds;
            if (DK) products_there(dp[0]);
            products_wait_behind(s[0]);
            if (DV) products_there(dv[0]);
            if (DK) products_there(dk[0]);
            if (DV) narrow<H>(p, s[0]);
            if (DK) narrow<H>(ds, dp[0]);
            products_meet();
            ask_pairs<H, D, E, DK>(s[0], dp[0], rows, queries + after * DEEP, values,
                                   grads + after * WIDE);
            if constexpr (DV) wide_add_products<H, E>(dv[0], p, grads + turn * WIDE);
            if constexpr (DK) wide_add_products<H, D>(dk[0], ds, queries + turn * DEEP);
            products_end();
            masked = masked_next;
            last = !more;
            more = !coming.steps.is_over();
            if (RING == 3) fetch_step(after == 2 ? 0 : after + 1, masked_next);
            products_wait<RING == 3>();
            if (RING == 2) __syncthreads();
            if (RING == 2) fetch_step(turn, masked_next);
            turn = after;
        }
        products_wait();
        if (DV) products_there(dv[0]);
        if (DK) products_there(dk[0]);
    }
    if constexpr (DK) store_sums<H, D>(a.dk, dk, { b, g, first + row, a.keys, a.depth });
    if constexpr (DV) store_sums<H, E>(a.dv, dv, { b, g, first + row, a.keys, a.width });
}

/* Kernels of columns and dtype; `blocks` of both a multiprocessor holds. */
#define ATTEND_BACK(name, half, depth, width, ring)                                                \
    TSI_KERNEL_BOUNDED(attend_wide_queries_##name, tsi_cuda_attend_args, 256, 1)                   \
    {                                                                                              \
        queries<half, depth, width, ring>(a);                                                      \
    }
#define ATTEND_BACK_KEYS(name, half, depth, width, ring, which)                                    \
    TSI_KERNEL_BOUNDED(attend_wide_##name, tsi_cuda_attend_args, 128, 2)                           \
    {                                                                                              \
        keys<half, depth, width, ring, which>(a);                                                  \
    }
ATTEND_BACK(64_bf16, of_bf16, 64, 64, 3)
ATTEND_BACK(64_f16, of_f16, 64, 64, 3)
ATTEND_BACK(128_bf16, of_bf16, 128, 128, 3)
ATTEND_BACK(128_f16, of_f16, 128, 128, 3)
ATTEND_BACK(192_bf16, of_bf16, 192, 128, 3)
ATTEND_BACK(192_f16, of_f16, 192, 128, 3)
ATTEND_BACK(256_bf16, of_bf16, 256, 256, 2)
ATTEND_BACK(256_f16, of_f16, 256, 256, 2)
ATTEND_BACK_KEYS(keys_64_bf16, of_bf16, 64, 64, 3, OF_KEYS | OF_VALUES)
ATTEND_BACK_KEYS(keys_64_f16, of_f16, 64, 64, 3, OF_KEYS | OF_VALUES)
ATTEND_BACK_KEYS(keys_128_bf16, of_bf16, 128, 128, 2, OF_KEYS | OF_VALUES)
ATTEND_BACK_KEYS(keys_128_f16, of_f16, 128, 128, 2, OF_KEYS | OF_VALUES)
ATTEND_BACK_KEYS(keys_192_bf16, of_bf16, 192, 128, 2, OF_KEYS)
ATTEND_BACK_KEYS(keys_192_f16, of_f16, 192, 128, 2, OF_KEYS)
ATTEND_BACK_KEYS(keys_256_bf16, of_bf16, 256, 256, 2, OF_KEYS)
ATTEND_BACK_KEYS(keys_256_f16, of_f16, 256, 256, 2, OF_KEYS)
ATTEND_BACK_KEYS(values_192_bf16, of_bf16, 192, 128, 2, OF_VALUES)
ATTEND_BACK_KEYS(values_192_f16, of_f16, 192, 128, 2, OF_VALUES)
ATTEND_BACK_KEYS(values_256_bf16, of_bf16, 256, 256, 2, OF_VALUES)
ATTEND_BACK_KEYS(values_256_f16, of_f16, 256, 256, 2, OF_VALUES)
