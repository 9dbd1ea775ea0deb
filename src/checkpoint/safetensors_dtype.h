/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_dtype.h - the names dtypes have in weight files. */
#ifndef TSI_CHECKPOINT_SAFETENSORS_DTYPE_H
#define TSI_CHECKPOINT_SAFETENSORS_DTYPE_H

#include "tessera/types.h"

const char *tsi_safetensors_dtype(ts_dtype dtype); /* "BF16"; NULL: it has none */

#endif
