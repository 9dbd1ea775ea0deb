/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - asks the processor (cpuid) or the system (auxiliary vector) what there is. */
#include "backend/cpu/machine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#define HWCAP2_BF16_BIT (1ul << 14) /* HWCAP2_BF16 of the kernel's headers */

static uint32_t ask(void)
{
    uint32_t has = TSI_MACHINE_NEON;
    if (getauxval(AT_HWCAP2) & HWCAP2_BF16_BIT) has |= TSI_MACHINE_NEON_BF16;
    return has;
}

#elif defined(__x86_64__)

static uint32_t ask(void)
{
    return tsi_machine_x86();
}

#else

static uint32_t ask(void)
{
    return 0;
}

#endif

uint32_t tsi_machine(void)
{
    static _Atomic uint32_t known; /* bit 31: asked */
    uint32_t has = atomic_load_explicit(&known, memory_order_relaxed);
    if (has) return has;
    const char *wish = getenv("TESSERA_ISA");
    has = ask();
    if (wish && strcmp(wish, "base") == 0) has &= TSI_MACHINE_NEON;
    if (wish && strcmp(wish, "avx2") == 0) has &= TSI_MACHINE_NEON | TSI_MACHINE_AVX2;
    if (wish && strcmp(wish, "avx512") == 0) has &= ~(uint32_t)TSI_MACHINE_AMX_BF16;
    has |= 1u << 31;
    atomic_store_explicit(&known, has, memory_order_relaxed);
    return has;
}
