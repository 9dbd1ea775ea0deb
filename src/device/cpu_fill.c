/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_fill.c - one element everywhere in a block.
 *
 * Equal bytes are a memset; else a pattern of whole elements in the L1 cache is copied as long
 * rows. */
#include <string.h>

#include "base/intmath.h"
#include "device/cpu.h"

enum { PATTERN_BYTES = 1024 };

typedef struct pattern {
    bool bytes_equal;
    size_t size; /* of the element; PATTERN_BYTES is a multiple of it */
    _Alignas(64) unsigned char data[PATTERN_BYTES];
} pattern;

static void pattern_make(pattern *p, const void *element, size_t size)
{
    const unsigned char *byte = element;
    p->bytes_equal = true;
    p->size = size;
    for (size_t i = 1; i < size; i++)
        p->bytes_equal = p->bytes_equal && byte[i] == byte[0];
    for (size_t i = 0; i < PATTERN_BYTES; i += size)
        memcpy(p->data + i, element, size);
}

static void fill_contiguous(const pattern *p, char *to, size_t bytes)
{
    if (p->bytes_equal) {
        memset(to, p->data[0], bytes);
        return;
    }
    for (; bytes > PATTERN_BYTES; to += PATTERN_BYTES, bytes -= PATTERN_BYTES)
        memcpy(to, p->data, PATTERN_BYTES);
    memcpy(to, p->data, bytes);
}

ts_status tsi_cpu_fill(const tsi_device *device, const tsi_block *to, const void *element,
                       tsi_stream *stream)
{
    (void)device, (void)stream;
    if (tsi_block_count(to) == 0) return TS_OK;
    pattern p;
    pattern_make(&p, element, ts_dtype_size((ts_dtype)to->dtype));
    tsi_block t = *to, same = *to;
    tsi_block_coalesce_pair(&t, &same);
    if (t.ndim == 0 || (t.ndim == 1 && t.stride[0] == 1)) {
        fill_contiguous(&p, t.data, (size_t)tsi_block_count(&t) * p.size);
        return TS_OK;
    }
    /* Strided: rows of the pattern, or one element repeated with stride 0. */
    tsi_block source = t;
    source.data = p.data;
    int64_t length = t.extent[t.ndim - 1];
    bool rows = t.stride[t.ndim - 1] == 1 && length * (int64_t)p.size <= PATTERN_BYTES;
    for (int32_t d = 0; d < t.ndim; d++)
        source.stride[d] = rows && d == t.ndim - 1 ? 1 : 0;
    tsi_cpu_copy_same(&t, &source);
    return TS_OK;
}
