/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - kinds of dtypes, for whoever has no operator at hand (op/core/element.h) or is a module
 * that calls nothing of the core. */
#ifndef TSI_BASE_DTYPE_H
#define TSI_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera/types.h"

static inline bool tsi_dtype_is_real(int32_t dtype)
{
    return dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 ||
           dtype == TS_DTYPE_F16;
}

static inline bool tsi_dtype_is_complex(int32_t dtype)
{
    return dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
}

#endif
