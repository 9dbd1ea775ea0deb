/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.c - products of f32 compiled for AVX-512 (F, BW, DQ, VL) and FMA; called only where the
 * machine has them. */
#define TSI_TILES tsi_tiles_avx512
#include "backend/cpu/matrix/tiles_body.h"
