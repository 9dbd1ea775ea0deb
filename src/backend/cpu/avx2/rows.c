/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - row kernels compiled for AVX2 and FMA; called only where the machine has both. */
#define TSI_ROW_SET tsi_rows_avx2
#define TSI_ROW_SET_NAME "avx2"
#include "backend/cpu/rows/rows_body.h"
