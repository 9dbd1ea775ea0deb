/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - which instructions this machine has, and which the system lets us use. */
#ifndef TSI_BACKEND_CPU_MACHINE_H
#define TSI_BACKEND_CPU_MACHINE_H

#include <stdint.h>

enum {
    TSI_MACHINE_NEON = 1,
    TSI_MACHINE_NEON_BF16 = 2, /* bfmmla */
    TSI_MACHINE_AVX2 = 4,      /* with FMA */
    TSI_MACHINE_AVX512 = 8,    /* F, BW, DQ, VL */
    TSI_MACHINE_AVX512_BF16 = 16,
    TSI_MACHINE_AMX_BF16 = 32 /* the system has granted the tiles to this process */
};

/* Asked once and kept. TESSERA_ISA=base takes away all that is not in every machine of the target,
 * avx2 all that is newer than AVX2, avx512 AMX. */
uint32_t tsi_machine(void);
#if defined(__x86_64__)
uint32_t tsi_machine_x86(void); /* uncached */
#endif

#endif
