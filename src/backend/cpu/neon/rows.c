/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - row kernels of every aarch64. */
#define TSI_ROW_SET tsi_rows_neon
#define TSI_ROW_SET_NAME "neon"
#include "backend/cpu/neon/own.h"
#include "backend/cpu/rows/rows_body.h"
