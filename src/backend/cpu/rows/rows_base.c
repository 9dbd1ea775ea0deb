/* SPDX-License-Identifier: Apache-2.0 */
/* rows_base.c - row kernels for the instruction set every machine of the target
 * has, and the choice of the best set. */
#define TSI_ROW_SET tsi_rows_base
#define TSI_ROW_SET_NAME "base"
#include "backend/cpu/rows/rows_body.h"

#include "backend/cpu/machine.h"

const tsi_row_set *tsi_rows(void)
{
#if defined(__aarch64__)
    return tsi_machine() & TSI_MACHINE_NEON_BF16 ? &tsi_rows_neon_bf16 : &tsi_rows_neon;
#elif defined(__x86_64__)
    uint32_t has = tsi_machine();
    if (has & TSI_MACHINE_AVX512) return &tsi_rows_avx512;
    if (has & TSI_MACHINE_AVX2) return &tsi_rows_avx2;
    return &tsi_rows_base;
#else
    return &tsi_rows_base;
#endif
}
