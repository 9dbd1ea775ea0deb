/* SPDX-License-Identifier: Apache-2.0 */
/* room.h - how much memory there is left. */
#ifndef TSI_BASE_ROOM_H
#define TSI_BASE_ROOM_H

#include <stdint.h>

/* That this process may still take: what is free on the host, or what its group of processes has
 * left. -1: it is not known. */
int64_t tsi_host_bytes_free(void);

#endif
