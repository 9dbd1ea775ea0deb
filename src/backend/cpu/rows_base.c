/* SPDX-License-Identifier: Apache-2.0 */
/* rows_base.c - row kernels for the instruction set every machine of the target has, and the choice
 * of the best set: NEON is part of aarch64, so there it is this one. */
#if defined(__aarch64__)
#define TSI_ROW_SET_NAME "neon"
#else
#define TSI_ROW_SET_NAME "base"
#endif
#define TSI_ROW_SET tsi_rows_base
#include "backend/cpu/rows_body.h"

#include "backend/cpu/machine.h"

const tsi_row_set *tsi_rows(void)
{
#if defined(__x86_64__)
    uint32_t has = tsi_machine();
    if (has & TSI_MACHINE_AVX512) return &tsi_rows_avx512;
    if (has & TSI_MACHINE_AVX2) return &tsi_rows_avx2;
#endif
    return &tsi_rows_base;
}
