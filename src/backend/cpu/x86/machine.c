/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - what an x86_64 has: cpuid says what the processor can do, the extended control
 * register which registers the system saves. Compiled for the base instruction set, since it runs
 * first. */
#include "backend/cpu/machine.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* State the system saves and restores: bits of the extended control register 0. */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux hands the tile registers out on request, per process. */
static int tiles_granted(void)
{
    const long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

uint32_t tsi_machine_x86(void)
{
    uint32_t a, b, c, d, has = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* no xgetbv */
    uint64_t saved = saved_state();
    int fma = (int)(c >> 12 & 1), ymm = (saved & 6) == 6, zmm = (saved & 0xE6) == 0xE6;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    uint32_t deepest = a;
    if (fma && ymm && (b >> 5 & 1)) has |= TSI_MACHINE_AVX2;
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if (fma && zmm && (b & f_dq_bw_vl) == f_dq_bw_vl) has |= TSI_MACHINE_AVX512;
    int tiles = (d >> 24 & 1) && (d >> 22 & 1) && (saved >> 17 & 3) == 3;
    if (tiles && (has & TSI_MACHINE_AVX512) && tiles_granted()) has |= TSI_MACHINE_AMX_BF16;
    if (deepest >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) &&
        (has & TSI_MACHINE_AVX512))
        has |= TSI_MACHINE_AVX512_BF16;
    return has;
}
