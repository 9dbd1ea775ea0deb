/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.cuh - the simulated GPU's in place of src/backend/cuda/kernels/wgmma.cuh: the same
 * functions. Each thread computes the elements that it has, from shared memory as the PTX ISA says
 * it lies (rows of 128 bytes, turned by eight), and does so in every other launch at once, else
 * when it waits: what comes too late, or is given away too early, is wrong in one of them. */
#ifndef TSI_BACKEND_CUDA_KERNELS_WGMMA_CUH
#define TSI_BACKEND_CUDA_KERNELS_WGMMA_CUH

#include "backend/cuda/kernels/mma.cuh"

typedef float wide_sums[32][4];

/* The instruction has no more bits for them: addresses in 16 bytes, blocks too. */
inline uint64_t factor_at(uint32_t shared, uint32_t block)
{
    if (shared % 16 || block % 16 || shared >= 1u << 18)
        simulated_wrong("a factor at %u with blocks of %u bytes", shared, block);
    return (uint64_t)block << 32 | shared;
}

inline uint64_t factor_on(uint64_t factor, uint32_t bytes)
{
    return factor + bytes;
}

/* Element (row, k) of a factor, of 16 bits. TURNED: rows of memory are k. */
template <bool TURNED> inline uint16_t factor_element(uint64_t factor, unsigned row, unsigned k)
{
    unsigned line = TURNED ? k : row, column = TURNED ? row : k;
    uint32_t at = (uint32_t)factor + line / 8 * 1024 + line % 8 * 128 + column % 64 * 2;
    if (TURNED) at += column / 64 * (uint32_t)(factor >> 32);
    at ^= (at >> 7 & 7) << 4;
    uint16_t x;
    memcpy(&x, simulated_room_shown(at, sizeof x), sizeof x);
    return x;
}

inline float wide_of(of_bf16, uint16_t x)
{
    return tsi_f32_of_bf16(x);
}
inline float wide_of(of_f16, uint16_t x)
{
    return tsi_f32_of_f16(x);
}

/* What a thread has to compute: rows lane / 4 and that + 8 of its warp's 16. */
template <typename H, bool LEFT_TURNED, bool RIGHT_TURNED> struct wide_product {
    float *sum;
    int columns;
    bool fresh, in_registers;
    uint64_t left, right;
    unsigned first; /* of the rows, in the factor */
    unsigned lane;
    uint16_t row[2][16]; /* of a factor in registers */

    void run() const
    {
        for (int half = 0; half < 2; half++) {
            float x[16];
            unsigned r = first + lane / 4 + half * 8;
            for (unsigned k = 0; k < 16; k++)
                x[k] = wide_of(H(), in_registers ? row[half][k]
                                                 : factor_element<LEFT_TURNED>(left, r, k));
            for (int n = 0; n < columns / 8; n++)
                for (int e = 0; e < 2; e++) {
                    unsigned column = (unsigned)n * 8 + lane % 4 * 2 + (unsigned)e;
                    float *to = sum + n * 4 + half * 2 + e, total = fresh ? 0 : *to;
                    for (unsigned k = 0; k < 16; k++) {
                        uint16_t y = factor_element<RIGHT_TURNED>(right, column, k);
                        total += x[k] * wide_of(H(), y);
                    }
                    *to = total;
                }
        }
    }
    static void run_it(const void *it)
    {
        ((const wide_product *)it)->run();
    }
};

template <bool LEFT_TURNED, bool RIGHT_TURNED, bool FRESH = false, typename H, int N>
inline void multiply_later(H, float (&sum)[N][4], uint64_t left, uint64_t right)
{
    typedef wide_product<H, LEFT_TURNED, RIGHT_TURNED> product;
    (void)simulated_exchange(0xffffffffu, nullptr, 0);
    product p = { sum[0], N * 8, FRESH, false, left, right, threadIdx.x / 32 % 4 * 16,
                  simulated_lane(), {} };
    simulated_product_later(product::run_it, &p, sizeof p);
}
template <bool RIGHT_TURNED, bool FRESH = false, typename H, int N>
inline void multiply_later(H, float (&sum)[N][4], const uint32_t (&left)[4], uint64_t right)
{
    typedef wide_product<H, false, RIGHT_TURNED> product;
    const simulated_slot *slot = simulated_exchange(0xffffffffu, left, sizeof left);
    unsigned lane = simulated_lane();
    product p = { sum[0], N * 8, FRESH, true, 0, right, 0, lane, {} };
    for (unsigned half = 0; half < 2; half++)
        for (unsigned k = 0; k < 16; k++) {
            uint16_t a[4][2];
            memcpy(a, slot[lane / 4 * 4 + k % 8 / 2].byte, sizeof a);
            p.row[half][k] = a[half + k / 8 * 2][k % 2];
        }
    simulated_product_later(product::run_it, &p, sizeof p);
}

inline void products_begin()
{
    (void)simulated_exchange(0xffffffffu, nullptr, 0);
}
inline void products_end()
{
    (void)simulated_exchange(0xffffffffu, nullptr, 0);
    simulated_products_end();
}
template <int LATER = 0> inline void products_wait()
{
    (void)simulated_exchange(0xffffffffu, nullptr, 0);
    simulated_products_wait(LATER);
}
template <int N> inline void products_there(float (&)[N][4])
{
}
template <int N> inline void products_wait_behind(const float (&weight)[N][4])
{
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++)
            if (weight[n][e] < 0) simulated_wrong("a weight is %g", weight[n][e]);
    products_wait();
}
inline void show_products()
{
    simulated_show();
}

#endif
