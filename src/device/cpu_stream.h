/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_stream.h - stores past the cache, for copies too large to stay in it.
 *
 * On x86_64 an ordinary store first reads the line it overwrites, so a large copy moves three bytes
 * for every two; a streaming store does not. Other machines notice whole lines being written and
 * need not be told. Streaming stores are not ordered with others: the copy that used them ends with
 * tsi_stream_end(), before anyone is told that it is done. */
#ifndef TSI_DEVICE_CPU_STREAM_H
#define TSI_DEVICE_CPU_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/compiler.h"

enum { TSI_LINE = 64 };

#if defined(__x86_64__)
#include <emmintrin.h>

/* A copy of so many bytes would not stay in a core's own cache anyway. */
static TSI_INLINE bool tsi_stream_pays(size_t bytes)
{
    return bytes >= (size_t)1 << 20;
}

/* `to` at the start of a line, `bytes` whole lines. */
static TSI_INLINE void tsi_stream_lines(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += TSI_LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + i + 48));
        _mm_stream_si128((__m128i *)(void *)(to + i), a);
        _mm_stream_si128((__m128i *)(void *)(to + i + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + i + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + i + 48), d);
    }
}

static TSI_INLINE void tsi_stream_end(void)
{
    _mm_sfence();
}
#else
static TSI_INLINE bool tsi_stream_pays(size_t bytes)
{
    (void)bytes;
    return false;
}

static TSI_INLINE void tsi_stream_lines(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static TSI_INLINE void tsi_stream_end(void)
{
}
#endif

#endif
