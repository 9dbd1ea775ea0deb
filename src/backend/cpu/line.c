/* SPDX-License-Identifier: Apache-2.0 */
/* line.c - some dims of a block as one row in row-major order.
 *
 * Where the dims lie in each other they are one dim; else a line is several pieces, and whoever
 * wants it in one gathers it. So an operator over several dims is the operator over one. */
#include "backend/cpu/cpu.h"

tsi_block tsi_block_with_last(const tsi_block *block, uint32_t mask)
{
    tsi_block out = *block;
    int32_t to = 0;
    for (int32_t last = 0; last < 2; last++)
        for (int32_t d = 0; d < block->ndim; d++) {
            if ((int32_t)(mask >> d & 1) != last) continue;
            out.extent[to] = block->extent[d];
            out.stride[to++] = block->stride[d];
        }
    return out;
}

void tsi_line_make(tsi_line *line, const tsi_block *block, int32_t outer)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    int32_t last = -1;
    *line = (tsi_line){ .dtype = (ts_dtype)block->dtype, .count = 1 };
    line->extent[0] = 1;
    line->stride[0] = size;
    for (int32_t d = outer; d < block->ndim; d++) {
        int64_t extent = block->extent[d], stride = block->stride[d] * size;
        line->count *= extent;
        if (extent == 1) continue;
        if (last >= 0 && line->stride[last] == stride * extent)
            extent *= line->extent[last];
        else
            last++;
        line->extent[last] = extent;
        line->stride[last] = stride;
    }
    line->ndim = last < 0 ? 1 : last + 1;
}

bool tsi_line_is_plain(const tsi_line *line, ts_dtype dtype)
{
    return line->dtype == dtype && line->ndim == 1 &&
           (line->count == 1 || line->stride[0] == (int64_t)ts_dtype_size(dtype));
}

int64_t tsi_line_at(const tsi_line *line, int64_t index)
{
    int64_t at = 0;
    for (int32_t d = line->ndim - 1; d > 0; d--) {
        at += index % line->extent[d] * line->stride[d];
        index /= line->extent[d];
    }
    return at + index * line->stride[0];
}

void tsi_line_gather(const tsi_line *line, const char *from, ts_dtype to_dtype, void *to)
{
    int64_t piece = line->extent[line->ndim - 1], stride = line->stride[line->ndim - 1];
    int64_t wide = (int64_t)ts_dtype_size(to_dtype);
    for (int64_t i = 0; i < line->count; i += piece)
        tsi_gather(to_dtype, (char *)to + i * wide, line->dtype, from + tsi_line_at(line, i),
                   stride, piece);
}

void tsi_line_scatter(const tsi_line *line, char *to, ts_dtype from_dtype, const void *from)
{
    int64_t piece = line->extent[line->ndim - 1], stride = line->stride[line->ndim - 1];
    int64_t wide = (int64_t)ts_dtype_size(from_dtype);
    for (int64_t i = 0; i < line->count; i += piece)
        tsi_scatter(line->dtype, to + tsi_line_at(line, i), stride, from_dtype,
                    (const char *)from + i * wide, piece);
}
