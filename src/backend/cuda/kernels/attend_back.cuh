/* SPDX-License-Identifier: Apache-2.0 */
/* attend_back.cuh - what the gradient of attention is on the tensor cores, by plain instructions
 * (attend_mma_back.cu) and by those of four warps (attend_wide_back.cu): what is known of a query,
 * a pair's weight and gradient, sums from and to memory, the queries that see a tile of keys.
 *
 * INV: queries that see nothing have a log-sum-exp of +inf here, so that their weights are 0. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_BACK_CUH
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_BACK_CUH

#include "backend/cuda/kernels/attend_mma.cuh"

/* ---- pairs ----------------------------------------------------------------------------------- */

/* Of a query: what is taken from scores before they are powers, and from gradients of weights when
 * they are scaled. In memory of the launch, query by query (a.delta). */
struct known_of {
    float base, delta;
};

__device__ inline const known_of *known_of_head(const tsi_cuda_attend_args &a, int64_t b, int64_t h)
{
    return (const known_of *)a.delta + (b * a.heads + h) * a.queries;
}

__device__ inline known_of known_at(const tsi_cuda_attend_args &a, const known_of *known, int64_t i)
{
    return i < a.queries ? known[i] : known_of{ INFINITY, 0 };
}

/* A product becomes the weight of its pair, the gradient of the weight that of the product. Of a
 * pair that is hidden the product is -inf. */
__device__ inline void turn_pair(const tsi_cuda_attend_args &a, float &s, float &dp,
                                 const known_of &known)
{
    s = power_of_two(s * a.scale_power - known.base);
    dp = s * (dp * a.scale_narrow - known.delta);
}

/* Those of a step of a thread whose two rows are queries. */
__device__ inline void turn_rows(const tsi_cuda_attend_args &a, float (&s)[KEYS / 8][4],
                                 float (&dp)[KEYS / 8][4], const known_of (&known)[2])
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            turn_pair(a, s[n][e], dp[n][e], known[e / 2]);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Where sums of a warp lie: its 16 rows from `first` on of a head; those from `end` on, and columns
 * from `width` on, do not exist. */
struct sums_at {
    int64_t b, h, first, end, width;
};

/* What is f32 in memory is added. */
template <int D>
__device__ inline void add_sums(const tsi_cuda_heads &x, float (&sum)[1][D / 8][4],
                                const sums_at &of)
{
    int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = of.first + lane / 4 + half * 8;
        if (i >= of.end) continue;
        const float *from = (const float *)x.data + at(x, of.b, of.h, i) + column;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < of.width)
                sum[0][n][half * 2] += from[n * 8], sum[0][n][half * 2 + 1] += from[n * 8 + 1];
    }
}

/* And from the registers to memory. */
template <typename H, int D>
__device__ inline void store_sums(const tsi_cuda_heads &x, const float (&sum)[1][D / 8][4],
                                  const sums_at &of)
{
    int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = of.first + lane / 4 + half * 8;
        if (i >= of.end) continue;
        int64_t to = at(x, of.b, of.h, i) + column;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (n * 8 < of.width)
                store_two<H>(x, to + n * 8, sum[0][n][half * 2], sum[0][n][half * 2 + 1]);
    }
}

/* ---- queries of a tile of keys --------------------------------------------------------------- */

/* The queries that see a tile of keys, of one head of the group after the other, half a tile of
 * them at a time. */
struct query_steps {
    enum { STEP = KEYS };
    const tsi_cuda_attend_args &a;
    int32_t b, g, column; /* of the keys: row, group, column of tiles */
    int32_t h;            /* the head */
    run_list runs;        /* of rows of tiles that it has left */
    int32_t nth, half;    /* of the first run, of a row */

    __device__ query_steps(const tsi_cuda_attend_args &args, int64_t b_, int64_t g_,
                           int64_t column_)
        : a(args), b((int32_t)b_), g((int32_t)g_), column((int32_t)column_), h(-1),
          runs{ nullptr, nullptr }, nth(0), half(0)
    {
        find();
    }
    __device__ bool is_over() const
    {
        return h >= (int32_t)a.heads;
    }
    __device__ int32_t query() const
    {
        return (runs.run->first + nth) * TSI_CUDA_TILE_QUERIES + half * STEP;
    }
    __device__ bool is_masked() const
    {
        return runs.run->bits >= 0;
    }
    /* The first head, from the next one on, that sees the keys; where runs are left it stays. */
    __device__ void find()
    {
        while (runs.run == runs.end) {
            do {
                if (++h >= (int32_t)a.heads) return;
            } while (a.group_of[h] != g);
            runs = runs_of_column(a.tiles, list_of(a.tiles, b, h), column);
        }
    }
    __device__ void go_on()
    {
        if (half == 0 && query() + STEP < (int32_t)a.queries) {
            half = 1;
            return;
        }
        half = 0;
        if (++nth < runs.run->count) return;
        nth = 0;
        runs.run++;
        find();
    }
};

/* What is known of the queries of a step, one each, fetched like their rows; of those that do not
 * exist it is 0, which nothing comes of, since their rows are zeros. */
struct step_known {
    enum { STEP = query_steps::STEP };
    known_of of[STEP];
    uint64_t word[STEP]; /* which of the keys it sees; of a partial tile alone */

    /* Products of the warp's 16 keys from `row` on with them, those of hidden pairs. */
    __device__ void hide(float (&s)[STEP / 8][4], int row) const
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint64_t sees = word[n * 8 + lane % 4 * 2 + e % 2];
                if (!(sees >> (row + lane / 4 + e / 2 * 8) & 1)) s[n][e] = -INFINITY;
            }
    }
    /* Pairs of a step of a thread whose columns are queries, or their weights alone. */
    template <bool GRADIENTS>
    __device__ void turn(const tsi_cuda_attend_args &a, float (&s)[STEP / 8][4],
                         float (&dp)[STEP / 8][4]) const
    {
        int column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float none = 0;
                turn_pair(a, s[n][e], GRADIENTS ? dp[n][e] : none, of[n * 8 + column + e % 2]);
            }
    }
};

static_assert(sizeof(step_known) == 1024, "the launch reckons with it");

/* 8 bytes a query; `of`: of its head. */
__device__ inline void fetch_known(const tsi_cuda_attend_args &a, step_known &known,
                                   const known_of *of, const query_steps &steps)
{
    if (threadIdx.x >= step_known::STEP) return;
    int32_t first = steps.query(), i = first + threadIdx.x;
    bool there = i < (int32_t)a.queries;
    fetch_8(shared_at(&known.of[threadIdx.x]), of + (there ? i : 0), there ? 8 : 0);
    if (!steps.is_masked()) return;
    fetch_8(shared_at(&known.word[threadIdx.x]),
            a.tiles.bits + steps.runs.run->bits + first % TSI_CUDA_TILE_QUERIES + threadIdx.x, 8);
}

#endif
