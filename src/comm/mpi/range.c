/* SPDX-License-Identifier: Apache-2.0 */
/* range.c - walking over lists of strided blocks as if they were one row of bytes.
 *
 * A stream of an operation is the elements of a list of blocks in row-major order, one block after
 * another; a range is a stretch of it. Both ends of a transfer cut it by bytes, whatever their
 * strides. Addresses may belong to another process: nothing here reads them but pack and unpack.
 *
 * INV: blocks in a range are squeezed (no extent of 1, no two dims that could be one), not empty,
 * and all offsets are multiples of the element's size. */
#include <string.h>

#include "comm/mpi/internal.h"

int64_t tsi_element_bytes(int32_t dtype)
{
#define BYTES(name, text, bytes) [TS_DTYPE_##name] = (bytes),
    static const int8_t table[TS_DTYPE_COUNT] = { TS_DTYPE_LIST(BYTES) };
#undef BYTES
    return dtype > 0 && dtype < TS_DTYPE_COUNT ? table[dtype] : 1;
}

int64_t tsi_range_elements(const tsi_block *block)
{
    int64_t count = 1;
    for (int32_t d = 0; d < block->ndim; d++)
        count *= block->extent[d];
    return count;
}

void tsi_squeeze(tsi_block *block)
{
    int32_t kept = 0;
    for (int32_t d = 0; d < block->ndim; d++) {
        int64_t extent = block->extent[d], stride = block->stride[d];
        if (extent == 1) continue;
        if (kept > 0 && block->stride[kept - 1] == stride * extent) {
            block->extent[kept - 1] *= extent;
            block->stride[kept - 1] = stride;
            continue;
        }
        block->extent[kept] = extent;
        block->stride[kept++] = stride;
    }
    if (kept == 0) {
        block->extent[0] = 1;
        block->stride[0] = 1;
        kept = 1;
    }
    block->ndim = kept;
}

void tsi_seek(tsi_cursor_at *at, const tsi_range *range, int64_t offset, int64_t size)
{
    TSI_ASSERT(range->count > 0 && (range->base + offset) % size == 0);
    int64_t element = (range->base + offset) / size;
    at->block = range->block;
    at->left = range->count;
    at->size = size;
    while (at->left > 1) {
        int64_t count = tsi_range_elements(at->block);
        if (element < count) break;
        element -= count;
        at->block++;
        at->left--;
    }
    for (int32_t d = at->block->ndim - 1; d >= 0; d--) {
        at->index[d] = element % at->block->extent[d];
        element /= at->block->extent[d];
    }
}

static char *address_of(const tsi_cursor_at *at)
{
    int64_t element = 0;
    for (int32_t d = 0; d < at->block->ndim; d++)
        element += at->index[d] * at->block->stride[d];
    return (char *)at->block->data + element * at->size;
}

/* Moves on by `count` elements of the innermost dim, which has at least as many left. */
static void advance(tsi_cursor_at *at, int64_t count)
{
    int32_t d = at->block->ndim - 1;
    at->index[d] += count;
    while (at->index[d] == at->block->extent[d]) {
        at->index[d] = 0;
        if (d == 0) {
            if (at->left > 1) {
                at->left--;
                at->block++;
                memset(at->index, 0, sizeof at->index);
            }
            return;
        }
        at->index[--d]++;
    }
}

/* Elements left in the innermost row, at most `limit` bytes of them. */
static int64_t row_left(const tsi_cursor_at *at, int64_t limit)
{
    int32_t last = at->block->ndim - 1;
    int64_t count = at->block->extent[last] - at->index[last];
    return count * at->size <= limit ? count : limit / at->size;
}

char *tsi_next_run(tsi_cursor_at *at, int64_t limit, int64_t *bytes)
{
    char *address = address_of(at);
    int64_t count = at->block->stride[at->block->ndim - 1] == 1 ? row_left(at, limit) : 1;
    advance(at, count);
    *bytes = count * at->size;
    return address;
}

/* One row: to and from are addresses, steps in bytes. */
static void copy_row(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t count,
                     int64_t size)
{
    switch (size) {
    case 1:
        for (int64_t i = 0; i < count; i++)
            to[i * to_step] = from[i * from_step];
        return;
    case 2:
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, 2);
        return;
    case 4:
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, 4);
        return;
    case 8:
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, 8);
        return;
    default:
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, (size_t)size);
    }
}

void tsi_pack(const tsi_range *range, int64_t offset, int64_t bytes, int64_t size, char *to)
{
    tsi_cursor_at at;
    if (bytes <= 0) return;
    TSI_ASSERT(offset >= 0 && offset + bytes <= range->bytes);
    tsi_seek(&at, range, offset, size);
    while (bytes > 0) {
        const char *from = address_of(&at);
        int64_t stride = at.block->stride[at.block->ndim - 1];
        int64_t count = row_left(&at, bytes);
        if (stride == 1)
            memcpy(to, from, (size_t)(count * size));
        else
            copy_row(to, size, from, stride * size, count, size);
        advance(&at, count);
        to += count * size;
        bytes -= count * size;
    }
}

void tsi_unpack(const tsi_range *range, int64_t offset, int64_t bytes, int64_t size,
                const char *from)
{
    tsi_cursor_at at;
    if (bytes <= 0) return;
    TSI_ASSERT(offset >= 0 && offset + bytes <= range->bytes);
    tsi_seek(&at, range, offset, size);
    while (bytes > 0) {
        char *to = address_of(&at);
        int64_t stride = at.block->stride[at.block->ndim - 1];
        int64_t count = row_left(&at, bytes);
        if (stride == 1)
            memcpy(to, from, (size_t)(count * size));
        else
            copy_row(to, stride * size, from, size, count, size);
        advance(&at, count);
        from += count * size;
        bytes -= count * size;
    }
}

char *tsi_range_flat(const tsi_range *range, int64_t offset, int64_t bytes, int64_t size)
{
    tsi_cursor_at at;
    tsi_seek(&at, range, offset, size);
    int64_t run = 0;
    char *address = tsi_next_run(&at, bytes, &run);
    return run >= bytes ? address : NULL;
}

int64_t tsi_range_run(const tsi_range *range, int64_t size)
{
    int64_t shortest = INT64_MAX;
    for (int64_t b = 0; b < range->count; b++) {
        const tsi_block *block = &range->block[b];
        int32_t last = block->ndim - 1;
        int64_t run = block->stride[last] == 1 ? block->extent[last] * size : size;
        if (run < shortest) shortest = run;
    }
    return shortest;
}
