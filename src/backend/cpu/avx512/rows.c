/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - row kernels compiled for AVX-512 (F, BW, DQ, VL) and FMA; called only where the machine
 * has them. */
#define TSI_ROW_SET tsi_rows_avx512
#define TSI_ROW_SET_NAME "avx512"
#include "backend/cpu/rows/rows_body.h"
