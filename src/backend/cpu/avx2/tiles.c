/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.c - products of f32 compiled for AVX2 and FMA; called only where the machine has both. */
#define TSI_TILES tsi_tiles_avx2
#include "backend/cpu/matrix/tiles_body.h"
