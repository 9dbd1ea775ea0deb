/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h - which bytes a block touches, and whether two blocks meet. */
#ifndef TSI_DEVICE_BYTES_H
#define TSI_DEVICE_BYTES_H

#include "device/device.h"

/* Addresses from begin to before end; if pitch is not 0, only the first `width` of each `pitch`
 * bytes from begin on. Nothing if begin is end. */
typedef struct tsi_bytes {
    uintptr_t begin, end, pitch, width;
} tsi_bytes;

static inline tsi_bytes tsi_bytes_at(const void *memory, size_t bytes)
{
    return (tsi_bytes){ .begin = (uintptr_t)memory, .end = (uintptr_t)memory + bytes };
}

/* All bytes of the block, and perhaps some between them. */
tsi_bytes tsi_bytes_of(const tsi_block *block);
/* May they have a byte in common? False only if they have none. */
bool tsi_bytes_meet(tsi_bytes x, tsi_bytes y);

#endif
