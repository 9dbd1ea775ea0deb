/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - monotonic time in nanoseconds. */
#ifndef TSI_BASE_CLOCK_H
#define TSI_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t tsi_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
