/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.cuh - the simulated GPU's in place of src/backend/cuda/kernels/ptx.cuh: the same functions,
 * as the PTX ISA describes the instructions that they are there. */
#ifndef TSI_BACKEND_CUDA_KERNELS_PTX_CUH
#define TSI_BACKEND_CUDA_KERNELS_PTX_CUH

#include "device/number.h"

/* ---- numbers --------------------------------------------------------------------------------- */

/* The instructions have one NaN each. */
inline uint16_t bf16_of(float x)
{
    return x == x ? tsi_bf16_of_f32(x) : 0x7FFF;
}
inline uint32_t bf16_pair_of(float low, float high)
{
    return (uint32_t)bf16_of(high) << 16 | bf16_of(low);
}
inline uint16_t f16_of(float x)
{
    return x == x ? tsi_f16_of_f32(x) : 0x7FFF;
}
inline float f32_of_f16(uint16_t bits)
{
    return tsi_f32_of_f16(bits);
}
inline uint32_t f16_pair_of(float low, float high)
{
    return (uint32_t)f16_of(high) << 16 | f16_of(low);
}

inline float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
inline float power_of_two(float x)
{
    return flushed(exp2f(flushed(x)));
}

/* -0 is less than 0. */
inline float max_of(float x, float y)
{
    if (x != x || y != y) return __uint_as_float(0x7FFFFFFF);
    return x > y || (x == y && !signbit(x)) ? x : y;
}
inline float min_of(float x, float y)
{
    if (x != x || y != y) return __uint_as_float(0x7FFFFFFF);
    return x < y || (x == y && signbit(x)) ? x : y;
}
inline uint32_t max_of_pairs(uint32_t x, uint32_t y)
{
    return bf16_pair_of(max_of(tsi_f32_of_bf16((uint16_t)x), tsi_f32_of_bf16((uint16_t)y)),
                        max_of(tsi_f32_of_bf16((uint16_t)(x >> 16)),
                               tsi_f32_of_bf16((uint16_t)(y >> 16))));
}
inline uint32_t min_of_pairs(uint32_t x, uint32_t y)
{
    return bf16_pair_of(min_of(tsi_f32_of_bf16((uint16_t)x), tsi_f32_of_bf16((uint16_t)y)),
                        min_of(tsi_f32_of_bf16((uint16_t)(x >> 16)),
                               tsi_f32_of_bf16((uint16_t)(y >> 16))));
}

/* ---- what other blocks and kernels see ------------------------------------------------------- */

inline uint32_t take_ticket(uint32_t *ticket, uint32_t most)
{
    return atomicExch(ticket, *ticket >= most ? 0 : *ticket + 1);
}

/* ---- fetches to shared memory ---------------------------------------------------------------- */

inline uint32_t shared_at(const void *shared)
{
    return (uint32_t)((const char *)shared - (const char *)simulated_room());
}
inline void fetch(uint32_t to, const void *from)
{
    simulated_fetch(to, from, 16, 16);
}
inline void fetch(uint32_t to, const void *from, int bytes)
{
    simulated_fetch(to, from, 16, bytes);
}
inline void fetch_8(uint32_t to, const void *from, int bytes)
{
    simulated_fetch(to, from, 8, bytes);
}
inline void fetch_end()
{
    simulated_fetch_end();
}
template <int LATER = 0> inline void fetch_wait()
{
    simulated_fetch_wait(LATER);
}
inline void fetch_wait_all()
{
    simulated_fetch_end();
    simulated_fetch_wait(0);
}

/* ---- products of a warp ---------------------------------------------------------------------- */

/* Rows of 16 bytes, a lane each, as all lanes see them. */
inline const simulated_slot *rows_of_four(uint32_t from)
{
    const void *row = simulated_room_at(from, 16);
    if (from % 16) simulated_wrong("ldmatrix of a row at %u, which is not on 16 bytes", from);
    return simulated_exchange(0xffffffffu, row, 16);
}
inline void load_four(uint32_t (&to)[4], uint32_t from)
{
    const simulated_slot *row = rows_of_four(from);
    unsigned lane = simulated_lane();
    for (unsigned m = 0; m < 4; m++)
        memcpy(&to[m], row[m * 8 + lane / 4].byte + lane % 4 * 4, 4);
}
inline void load_four_turned(uint32_t (&to)[4], uint32_t from)
{
    const simulated_slot *row = rows_of_four(from);
    unsigned lane = simulated_lane();
    for (unsigned m = 0; m < 4; m++) {
        uint16_t two[2];
        for (unsigned i = 0; i < 2; i++)
            memcpy(&two[i], row[m * 8 + lane % 4 * 2 + i].byte + lane / 4 * 2, 2);
        to[m] = (uint32_t)two[1] << 16 | two[0];
    }
}

/* What a lane has of the factors: rows lane / 4 and + 8 of a, column lane / 4 of b, of each the
 * inner places lane % 4 * 2 and the next one, and + 8. */
struct factors_of_lane {
    uint16_t a[4][2], b[2][2];
};
template <float (*WIDE)(uint16_t)>
inline void multiply_by(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t mine[6] = { a[0], a[1], a[2], a[3], b0, b1 };
    const simulated_slot *slot = simulated_exchange(0xffffffffu, mine, sizeof mine);
    unsigned lane = simulated_lane();
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 16; k++) {
            factors_of_lane left, right;
            memcpy(&left, slot[lane / 4 * 4 + k % 8 / 2].byte, sizeof left);
            memcpy(&right, slot[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2].byte, sizeof right);
            c[i] += WIDE(left.a[i / 2 + k / 8 * 2][k % 2]) * WIDE(right.b[k / 8][k % 2]);
        }
}
inline void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply_by<tsi_f32_of_bf16>(c, a, b0, b1);
}
inline void multiply_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply_by<tsi_f32_of_f16>(c, a, b0, b1);
}

#endif
