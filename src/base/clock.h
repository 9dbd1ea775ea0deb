/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - monotonic time, and the processor time of this thread, in nanoseconds. */
#ifndef TSI_BASE_CLOCK_H
#define TSI_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "base/intmath.h"

static inline int64_t tsi_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* When so many milliseconds from now are over; INT64_MAX: never, for more than the clock can count.
 */
static inline int64_t tsi_clock_after_ms(int64_t ms)
{
    return tsi_add_most(tsi_clock_ns(), tsi_mul_most(ms, 1000000));
}

/* What this thread had a core for: not what it waited, and not what others had its core for. */
static inline int64_t tsi_clock_thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
