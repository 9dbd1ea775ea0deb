/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma.cu - attention forward of bf16 and f16 by the tensor cores' plain instructions, for
 * GPUs from sm_80 on without cuDNN.
 *
 *   a block    M queries of one head in registers, rows dealt to warps by 16
 *   a step     64 keys: S = Q K' in registers, the running softmax, O += P V; the next keys are on
 *              their way to shared memory meanwhile
 *
 * Rows of shared memory are turned by their number, 16 bytes at a time, so that eight rows of one
 * column are eight banks. Heads are 64 or 128 wide, rows on 16 bytes. */
#include "backend/cuda/kernels/args.h"
#include "tessera/types.h"

enum { KEYS = 64 };

/* ---- instructions ---------------------------------------------------------------------------- */

struct of_bf16 {
    __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    __device__ static uint32_t pair(float low, float high)
    {
        uint32_t both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

struct of_f16 {
    __device__ static void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
    __device__ static uint32_t pair(float low, float high)
    {
        uint32_t both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
    }
};

__device__ inline void load_four(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

__device__ inline void load_four_turned(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

/* 16 bytes to shared memory, later; zeros where there is no source. */
__device__ inline void fetch(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0));
}

__device__ inline void fetch_end()
{
    asm volatile("cp.async.commit_group;");
}

__device__ inline void fetch_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- rows in shared memory ------------------------------------------------------------------- */

template <int D> __device__ inline uint32_t chunk_at(uint32_t base, int row, int chunk)
{
    return base + (uint32_t)(row * D + ((chunk ^ (row & 7)) * 8)) * 2;
}

/* Rows first .. first + ROWS - 1 of a head; those from `end` on are zeros. */
template <int D, int ROWS, int THREADS>
__device__ inline void fetch_rows(uint32_t to, const uint16_t *from, int64_t stride, int64_t first,
                                  int64_t end)
{
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        bool there = first + row < end;
        fetch(chunk_at<D>(to, row, chunk), from + (there ? first + row : 0) * stride + chunk * 8,
              there);
    }
}

/* ---- one block of queries -------------------------------------------------------------------- */

template <int D, int MT> struct rows_state {
    float out[MT][D / 8][4];
    float top[MT][2], sum[MT][2]; /* of rows lane / 4 and that + 8 */
};

/* Scores of 64 keys to weights, in place; what a query does not see is 0. `seen`: how many keys of
 * this step each row sees, or all. */
template <int D, int MT>
__device__ inline void weigh(float (&s)[MT][KEYS / 8][4], rows_state<D, MT> &r, float scale,
                             bool masked, const int (&seen)[MT][2])
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = r.top[m][half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[m][n][half * 2 + e];
                    if (masked && n * 8 + column + e >= seen[m][half]) x = -INFINITY;
                    most = fmaxf(most, x);
                }
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            float base = most == -INFINITY ? 0.0f : most * scale;
            float keep = power_of_two(r.top[m][half] * scale - base), total = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[m][n][half * 2 + e];
                    x = power_of_two(x * scale - base);
                    total += x;
                }
            r.sum[m][half] = r.sum[m][half] * keep + total;
            r.top[m][half] = most;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                r.out[m][n][half * 2] *= keep, r.out[m][n][half * 2 + 1] *= keep;
        }
}

template <typename H, int D, int MT>
__device__ inline void score(float (&s)[MT][KEYS / 8][4], const uint32_t (&q)[MT][D / 16][4],
                             uint32_t keys)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            load_four(b, chunk_at<D>(keys, n * 16 + (lane & 7) + (lane >> 4 << 3),
                                     k * 2 + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                H::multiply(s[m][2 * n], q[m][k], b[0], b[1]);
                H::multiply(s[m][2 * n + 1], q[m][k], b[2], b[3]);
            }
        }
}

template <typename H, int D, int MT>
__device__ inline void add_values(rows_state<D, MT> &r, const float (&s)[MT][KEYS / 8][4],
                                  uint32_t values)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t p[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            p[m][0] = H::pair(s[m][2 * k][0], s[m][2 * k][1]);
            p[m][1] = H::pair(s[m][2 * k][2], s[m][2 * k][3]);
            p[m][2] = H::pair(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
            p[m][3] = H::pair(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_four_turned(b, chunk_at<D>(values, k * 16 + (lane & 15), n * 2 + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                H::multiply(r.out[m][2 * n], p[m], b[0], b[1]);
                H::multiply(r.out[m][2 * n + 1], p[m], b[2], b[3]);
            }
        }
    }
}

/* How many keys of those from `first` on a query sees. */
__device__ inline int seen_of(const tsi_cuda_attend_args &a, int64_t query, int64_t first)
{
    int64_t seen = a.keys - first;
    if (a.causal) {
        int64_t reach = query + a.reach + 1 - first;
        seen = reach < seen ? reach : seen;
    }
    return seen < 0 ? 0 : seen > KEYS ? KEYS : (int)seen;
}

template <typename H, int D, int MT>
__device__ inline void store_rows(const tsi_cuda_attend_args &a, rows_state<D, MT> &r, int64_t b,
                                  int64_t h, int64_t query)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            int64_t i = query + m * 16 + half * 8;
            if (i >= a.queries) continue;
            float by = sum > 0 ? 1.0f / sum : 0.0f;
            uint16_t *to = (uint16_t *)a.out.data + b * a.out.stride[0] + h * a.out.stride[1] +
                           i * a.out.stride[2];
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(uint32_t *)&to[n * 8 + column] =
                    H::pair(r.out[m][n][half * 2] * by, r.out[m][n][half * 2 + 1] * by);
            float *lse = (float *)a.lse.data + b * a.lse.stride[0] + h * a.lse.stride[1] +
                         i * a.lse.stride[2];
            if (column == 0)
                *lse = sum > 0 ? r.top[m][half] * (float)a.scale + logf(sum) : -INFINITY;
        }
}

template <typename H, int D, int MT, int WARPS>
__device__ void attend(const tsi_cuda_attend_args &a)
{
    constexpr int M = WARPS * MT * 16, THREADS = WARPS * 32;
    extern __shared__ uint4 memory[];
    uint32_t queries = (uint32_t)__cvta_generic_to_shared(memory);
    uint32_t keys = queries + M * D * 2, values = keys + 2 * KEYS * D * 2;
    int64_t pairs = a.batch * a.heads, tiles = (a.queries + M - 1) / M;
    int64_t bh = blockIdx.x % pairs, first = (tiles - 1 - blockIdx.x / pairs) * M;
    int64_t b = bh / a.heads, h = bh % a.heads, g = a.group_of[h];
    const uint16_t *q = (const uint16_t *)a.q.data + b * a.q.stride[0] + h * a.q.stride[1];
    const uint16_t *k = (const uint16_t *)a.k.data + b * a.k.stride[0] + g * a.k.stride[1];
    const uint16_t *v = (const uint16_t *)a.v.data + b * a.v.stride[0] + g * a.v.stride[1];
    int64_t end = a.keys;
    if (a.causal) {
        int64_t last = (first + M < a.queries ? first + M : a.queries) + a.reach;
        end = last < 0 ? 0 : last < end ? last : end;
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t mine = first + warp * MT * 16 + lane / 4; /* this thread's first row */

    fetch_rows<D, M, THREADS>(queries, q, a.q.stride[2], first, a.queries);
    fetch_rows<D, KEYS, THREADS>(keys, k, a.k.stride[2], 0, a.keys);
    fetch_rows<D, KEYS, THREADS>(values, v, a.v.stride[2], 0, a.keys);
    fetch_end();
    fetch_wait();
    __syncthreads();
    uint32_t fragment[MT][D / 16][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            load_four(fragment[m][c], chunk_at<D>(queries, (warp * MT + m) * 16 + (lane & 15),
                                                  c * 2 + (lane >> 4)));
    rows_state<D, MT> r;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r.out[m][n][e] = 0;
        r.top[m][0] = r.top[m][1] = -INFINITY;
        r.sum[m][0] = r.sum[m][1] = 0;
    }
    float scale = (float)(a.scale * 1.4426950408889634); /* powers of two, not of e */
    for (int64_t at = 0, turn = 0; at < end; at += KEYS, turn ^= 1) {
        uint32_t now = (uint32_t)turn * KEYS * D * 2, next = (uint32_t)(turn ^ 1) * KEYS * D * 2;
        if (at + KEYS < end) {
            fetch_rows<D, KEYS, THREADS>(keys + next, k, a.k.stride[2], at + KEYS, a.keys);
            fetch_rows<D, KEYS, THREADS>(values + next, v, a.v.stride[2], at + KEYS, a.keys);
        }
        fetch_end();
        float s[MT][KEYS / 8][4];
        int seen[MT][2];
        score<H, D, MT>(s, fragment, keys + now);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            seen[m][0] = seen_of(a, mine + m * 16, at);
            seen[m][1] = seen_of(a, mine + m * 16 + 8, at);
        }
        bool masked = at + KEYS > a.keys || (a.causal && at + KEYS > first + a.reach + 1);
        weigh<D, MT>(s, r, scale, masked, seen);
        add_values<H, D, MT>(r, s, values + now);
        fetch_wait();
        __syncthreads();
    }
    store_rows<H, D, MT>(a, r, b, h, mine);
}

extern "C" __global__ void __launch_bounds__(128)
    attend_mma_64_bf16(const __grid_constant__ tsi_cuda_attend_args a)
{
    attend<of_bf16, 64, 2, 4>(a);
}

extern "C" __global__ void __launch_bounds__(128)
    attend_mma_64_f16(const __grid_constant__ tsi_cuda_attend_args a)
{
    attend<of_f16, 64, 2, 4>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    attend_mma_128_bf16(const __grid_constant__ tsi_cuda_attend_args a)
{
    attend<of_bf16, 128, 1, 8>(a);
}

extern "C" __global__ void __launch_bounds__(256)
    attend_mma_128_f16(const __grid_constant__ tsi_cuda_attend_args a)
{
    attend<of_f16, 128, 1, 8>(a);
}
