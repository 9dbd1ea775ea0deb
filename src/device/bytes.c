/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c - which bytes a block touches, and whether two blocks meet. No memory is touched.
 *
 *   columns of one matrix    |xx...|xx...|xx...|      pitch 5, width 2: they span the same
 *                            |..yyy|..yyy|..yyy|      memory and have no byte in common
 *
 * INV: what is said to be touched is never less than what is. */
#include "device/bytes.h"

typedef struct reach {
    int64_t extent, stride; /* of a dim; strides are positive */
} reach;

/* Dims of more than one element that are not all at one place, by strides; `first` is where the
 * lowest element lies. */
static int32_t sort_dims(const tsi_block *block, reach *dim, int64_t *first)
{
    int32_t count = 0;
    for (int32_t d = 0; d < block->ndim; d++) {
        reach own = { block->extent[d], block->stride[d] };
        if (own.extent == 1 || own.stride == 0) continue;
        if (own.stride < 0) {
            *first += (own.extent - 1) * own.stride;
            own.stride = -own.stride;
        }
        int32_t at = count++;
        for (; at > 0 && dim[at - 1].stride > own.stride; at--)
            dim[at] = dim[at - 1];
        dim[at] = own;
    }
    return count;
}

/* Pieces of `width` elements, `pitch` apart, where all larger strides are multiples of it. */
tsi_bytes tsi_bytes_of(const tsi_block *block)
{
    uintptr_t size = ts_dtype_size((ts_dtype)block->dtype);
    reach dim[TS_NDIM_MAX];
    int64_t first = 0, last = 0, width = 1, pitch = 0;
    bool even = true;
    if (!block->data || tsi_block_count(block) == 0) return (tsi_bytes){ 0 };
    int32_t count = sort_dims(block, dim, &first);
    for (int32_t i = 0; i < count; i++) {
        last += (dim[i].extent - 1) * dim[i].stride;
        if (pitch > 0)
            even = even && dim[i].stride % pitch == 0;
        else if (dim[i].stride == width)
            width *= dim[i].extent;
        else
            pitch = dim[i].stride;
    }
    uintptr_t begin = (uintptr_t)block->data + (uintptr_t)first * size;
    tsi_bytes bytes = { .begin = begin, .end = begin + (uintptr_t)(last + 1) * size };
    if (even && pitch >= width) {
        bytes.pitch = (uintptr_t)pitch * size;
        bytes.width = (uintptr_t)width * size;
    }
    return bytes;
}

/* Pieces of one pitch that lie beside each other. */
static bool alternate(tsi_bytes x, tsi_bytes y)
{
    if (x.pitch == 0 || x.pitch != y.pitch) return false;
    uintptr_t before = y.begin < x.begin ? (x.begin - y.begin) % x.pitch : 0;
    uintptr_t from =
        y.begin < x.begin ? (x.pitch - before) % x.pitch : (y.begin - x.begin) % x.pitch;
    return from >= x.width && from + y.width <= x.pitch;
}

bool tsi_bytes_meet(tsi_bytes x, tsi_bytes y)
{
    return x.begin < y.end && y.begin < x.end && !alternate(x, y);
}
