/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c - strided copies, casts and fills of the cuda device.
 *
 * Dims are ordered by the stride of the target and merged where both sides allow; then
 *
 *   contiguous on both sides    the driver's copy
 *   rows                        units of 1 to 16 bytes, the widest that rows and places allow
 *   the source runs across      tiles through shared memory
 *   another dtype               one element at a time; f32 with bf16 and f16 by four where rows
 *                               allow
 *
 * A list of copies is a launch for each shape that its pieces have. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/dtype.h"

#include <string.h>

#include "base/error.h"

enum { UNIT_MAX = 16, TILE_MIN = 8, CAST_UNIT = 4, PER_THREAD = 4 };
/* Bytes of a row from which on the driver's copy is worth a launch of its own: one that cannot go
 * in whole units, and any other. */
enum { ODD_ROW = 1 << 16, LONG_ROW = 1 << 25 };

/* Nested loops over elements, outermost first; strides in elements. */
typedef struct loops {
    char *to;
    const char *from;
    int64_t to_size, from_size; /* of an element */
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX], to_stride[TS_NDIM_MAX], from_stride[TS_NDIM_MAX];
} loops;

static void add_dim(loops *l, int64_t extent, int64_t to_stride, int64_t from_stride)
{
    if (to_stride <
        0) { /* walked from the other end, so that order and merging see positive ones */
        l->to += (extent - 1) * to_stride * l->to_size;
        if (l->from) l->from += (extent - 1) * from_stride * l->from_size;
        to_stride = -to_stride;
        from_stride = -from_stride;
    }
    int32_t d = l->ndim++;
    for (; d > 0 && l->to_stride[d - 1] < to_stride; d--) {
        l->extent[d] = l->extent[d - 1];
        l->to_stride[d] = l->to_stride[d - 1];
        l->from_stride[d] = l->from_stride[d - 1];
    }
    l->extent[d] = extent;
    l->to_stride[d] = to_stride;
    l->from_stride[d] = from_stride;
}

static void merge_dims(loops *l)
{
    int32_t kept = 0;
    for (int32_t d = 1; d < l->ndim; d++) {
        if (l->to_stride[kept] == l->extent[d] * l->to_stride[d] &&
            l->from_stride[kept] == l->extent[d] * l->from_stride[d]) {
            l->extent[kept] *= l->extent[d];
        } else {
            l->extent[++kept] = l->extent[d];
        }
        l->to_stride[kept] = l->to_stride[d];
        l->from_stride[kept] = l->from_stride[d];
    }
    if (l->ndim > 0) l->ndim = kept + 1;
}

/* `from` NULL: a fill. False: nothing to do. */
static bool loops_make(loops *l, const tsi_block *to, const tsi_block *from)
{
    *l = (loops){ .to = to->data, .to_size = (int64_t)ts_dtype_size((ts_dtype)to->dtype) };
    l->from = from ? from->data : NULL;
    l->from_size = from ? (int64_t)ts_dtype_size((ts_dtype)from->dtype) : 0;
    for (int32_t d = 0; d < to->ndim; d++) {
        if (to->extent[d] == 0) return false;
        if (to->extent[d] == 1) continue;
        add_dim(l, to->extent[d], to->stride[d], from ? from->stride[d] : to->stride[d]);
    }
    merge_dims(l);
    return true;
}

static bool is_one_row(const loops *l)
{
    return l->ndim == 0 || (l->ndim == 1 && l->to_stride[0] == 1 && l->from_stride[0] == 1);
}

static int64_t count_of(const loops *l)
{
    int64_t count = 1;
    for (int32_t d = 0; d < l->ndim; d++)
        count *= l->extent[d];
    return count;
}

/* Whether rows begin, end and lie on both sides in units of `ratio` elements. */
static bool has_units(const loops *l, int64_t ratio)
{
    int32_t last = l->ndim - 1;
    if (last < 0 || l->to_stride[last] != 1 || l->from_stride[last] != 1) return false;
    bool whole = (uintptr_t)l->to % (uint64_t)(ratio * l->to_size) == 0 &&
                 (!l->from || (uintptr_t)l->from % (uint64_t)(ratio * l->from_size) == 0) &&
                 l->extent[last] % ratio == 0;
    for (int32_t d = 0; d < last; d++)
        whole = whole && l->to_stride[d] % ratio == 0 && l->from_stride[d] % ratio == 0;
    return whole;
}

/* Counts and strides become those of units. */
static void to_units(loops *l, int64_t ratio)
{
    int32_t last = l->ndim - 1;
    if (ratio == 1) return;
    l->extent[last] /= ratio;
    for (int32_t d = 0; d < last; d++) {
        l->to_stride[d] /= ratio;
        l->from_stride[d] /= ratio;
    }
}

/* The bytes of the widest unit. */
static int64_t widest_units(loops *l)
{
    int64_t ratio = UNIT_MAX / l->to_size;
    while (ratio > 1 && !has_units(l, ratio))
        ratio /= 2;
    to_units(l, ratio);
    return ratio * l->to_size;
}

/* 0 .. 4 for 1, 2, 4, 8, 16: kernels of units follow each other. */
static tsi_cuda_kernel by_unit(tsi_cuda_kernel first, int64_t unit)
{
    int32_t step = 0;
    while (((int64_t)1 << step) < unit)
        step++;
    return (tsi_cuda_kernel)((int32_t)first + step);
}

static tsi_cuda_operand operand_of(const void *data, const int64_t *stride, int32_t ndim)
{
    tsi_cuda_operand operand = { .data = (void *)(uintptr_t)data };
    for (int32_t d = 0; d < ndim; d++)
        operand.stride[d] = stride[d];
    return operand;
}

/* The dim along which the source is contiguous, if the target is so along another and both are long
 * enough for tiles; -1 otherwise. */
static int32_t crossing_dim(const loops *l)
{
    int32_t last = l->ndim - 1;
    if (last < 1 || l->to_stride[last] != 1 || l->extent[last] < TILE_MIN) return -1;
    for (int32_t d = 0; d < last; d++)
        if (l->from_stride[d] == 1 && l->extent[d] >= TILE_MIN) return d;
    return -1;
}

/* Whether `many` elements of `size` bytes may always be moved as one. */
static bool moves_as_one(const tsi_cuda_transpose_args *args, uint64_t many, uint64_t size)
{
    uint64_t odd = (uint64_t)(args->rows | args->columns | args->to_row | args->from_column);
    uint64_t off = (uint64_t)(uintptr_t)args->to.data | (uint64_t)(uintptr_t)args->from.data;
    for (int32_t d = 0; d < args->space.ndim; d++)
        odd |= (uint64_t)args->to.stride[d] | (uint64_t)args->from.stride[d];
    return odd % many == 0 && off % (many * size) == 0;
}

/* The kernel, and the side of its tiles as in copy.cu. */
static tsi_cuda_kernel transpose_of(const tsi_cuda_transpose_args *args, int64_t size,
                                    int64_t *side)
{
    bool wide = (size == 2 || size == 4) && moves_as_one(args, 16 / (uint64_t)size, (uint64_t)size);
    if (wide && args->rows >= 64 && args->columns >= 64) {
        *side = size == 2 ? 128 : 64;
        return size == 2 ? TSI_CUDA_transpose_wide_2 : TSI_CUDA_transpose_wide_4;
    }
    *side = size > 2 ? 32 : 64;
    if (size == 2 && moves_as_one(args, 2, 2)) return TSI_CUDA_transpose_pairs;
    return by_unit(TSI_CUDA_transpose_1, size);
}

static ts_status launch_transpose(tsi_stream *stream, const loops *l, int32_t row)
{
    int32_t last = l->ndim - 1, kept = 0;
    int64_t extent[TS_NDIM_MAX], to_stride[TS_NDIM_MAX], from_stride[TS_NDIM_MAX];
    for (int32_t d = 0; d < last; d++) {
        if (d == row) continue;
        extent[kept] = l->extent[d];
        to_stride[kept] = l->to_stride[d];
        from_stride[kept++] = l->from_stride[d];
    }
    tsi_cuda_transpose_args args = { .to = operand_of(l->to, to_stride, kept),
                                     .from = operand_of(l->from, from_stride, kept),
                                     .rows = l->extent[row],
                                     .columns = l->extent[last],
                                     .to_row = l->to_stride[row],
                                     .from_column = l->from_stride[last] };
    tsi_cuda_space_make(&args.space, kept, extent);
    int64_t side;
    tsi_cuda_kernel kernel = transpose_of(&args, l->to_size, &side);
    args.row_tiles = (args.rows + side - 1) / side;
    args.column_tiles = (args.columns + side - 1) / side;
    int64_t blocks = args.space.count * args.row_tiles * args.column_tiles;
    if (blocks > INT32_MAX) blocks = INT32_MAX; /* the kernel strides on */
    return tsi_cuda_launch(stream, kernel, blocks, TSI_CUDA_BLOCK, 0, &args);
}

static ts_status copy_same(tsi_stream *stream, loops *l)
{
    if (is_one_row(l)) {
        size_t bytes = (size_t)(count_of(l) * l->to_size);
        TSI_CUDA_TRY(stream->cuda, "a copy",
                     tsi_cu.copy(tsi_cuda_pointer(l->to), tsi_cuda_pointer(l->from), bytes,
                                 tsi_cuda_apart(stream)));
        return TS_OK;
    }
    int32_t crossing = crossing_dim(l);
    if (crossing >= 0) return launch_transpose(stream, l, crossing);
    int64_t unit = widest_units(l);
    tsi_cuda_copy_args args = { .to = operand_of(l->to, l->to_stride, l->ndim),
                                .from = operand_of(l->from, l->from_stride, l->ndim) };
    tsi_cuda_space_make(&args.space, l->ndim, l->extent);
    return tsi_cuda_launch_pieces(stream, by_unit(TSI_CUDA_copy_1, unit), args.space.count,
                                  PER_THREAD, &args);
}

/* A cast by units: the kernel of one element, that of CAST_UNIT follows; COUNT: there is none. */
static tsi_cuda_kernel unit_cast(int32_t to, int32_t from)
{
    if (to == TS_DTYPE_BF16 && from == TS_DTYPE_F32) return TSI_CUDA_cast_f32_bf16_1;
    if (to == TS_DTYPE_F32 && from == TS_DTYPE_BF16) return TSI_CUDA_cast_bf16_f32_1;
    if (to == TS_DTYPE_F16 && from == TS_DTYPE_F32) return TSI_CUDA_cast_f32_f16_1;
    if (to == TS_DTYPE_F32 && from == TS_DTYPE_F16) return TSI_CUDA_cast_f16_f32_1;
    return TSI_CUDA_KERNEL_COUNT;
}

static ts_status cast_units(tsi_stream *stream, loops l, tsi_cuda_kernel kernel, int64_t unit)
{
    to_units(&l, unit);
    tsi_cuda_copy_args args = { .to = operand_of(l.to, l.to_stride, l.ndim),
                                .from = operand_of(l.from, l.from_stride, l.ndim) };
    tsi_cuda_space_make(&args.space, l.ndim, l.extent);
    return tsi_cuda_launch_pieces(stream, (tsi_cuda_kernel)(kernel + (unit > 1)), args.space.count,
                                  PER_THREAD, &args);
}

/* What is left of one row goes by itself. */
static ts_status cast_row(tsi_stream *stream, const loops *l, tsi_cuda_kernel kernel)
{
    int64_t wide = l->extent[0] - l->extent[0] % CAST_UNIT;
    loops head = *l, tail = *l;
    head.extent[0] = wide;
    tail.extent[0] -= wide;
    tail.to += wide * l->to_size;
    tail.from += wide * l->from_size;
    bool units = wide > 0 && has_units(&head, CAST_UNIT);
    if (!units) return cast_units(stream, *l, kernel, 1);
    ts_status status = cast_units(stream, head, kernel, CAST_UNIT);
    return status == TS_OK && tail.extent[0] > 0 ? cast_units(stream, tail, kernel, 1) : status;
}

static ts_status copy_cast(tsi_stream *stream, const loops *l, int32_t to_dtype, int32_t from_dtype)
{
    tsi_cuda_kernel kernel = unit_cast(to_dtype, from_dtype);
    if (kernel != TSI_CUDA_KERNEL_COUNT) {
        if (l->ndim == 1) return cast_row(stream, l, kernel);
        return cast_units(stream, *l, kernel, has_units(l, CAST_UNIT) ? CAST_UNIT : 1);
    }
    tsi_cuda_copy_args args = { .to = operand_of(l->to, l->to_stride, l->ndim),
                                .from = operand_of(l->from, l->from_stride, l->ndim),
                                .to_dtype = to_dtype,
                                .from_dtype = from_dtype };
    tsi_cuda_space_make(&args.space, l->ndim, l->extent);
    return tsi_cuda_launch_items(stream, TSI_CUDA_cast_any, args.space.count, &args);
}

static ts_status copy_one(tsi_stream *stream, loops *l, int32_t to_dtype, int32_t from_dtype)
{
    if (to_dtype != from_dtype) return copy_cast(stream, l, to_dtype, from_dtype);
    return copy_same(stream, l);
}

ts_status tsi_cuda_copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                        tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    loops l;
    bool side;
    if (!loops_make(&l, to, from)) return TS_OK;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = copy_one(stream, &l, to->dtype, from->dtype);
    return tsi_cuda_end(cuda, stream, side, status);
}

/* ---- lists ----------------------------------------------------------------------------------- */

typedef struct piece {
    loops l;      /* in units */
    int64_t unit; /* bytes; 0: it was launched */
} piece;

/* Whether the copy is one of units that others may join, and then which. */
static bool piece_make(const loops *l, piece *out)
{
    if (crossing_dim(l) >= 0) return false;
    *out = (piece){ .l = *l };
    if (l->ndim == 0) {
        out->l.ndim = 1;
        out->l.extent[0] = out->l.to_stride[0] = out->l.from_stride[0] = 1;
    }
    int64_t bytes = count_of(l) * l->to_size;
    out->unit = widest_units(&out->l);
    return !is_one_row(l) || bytes < (out->unit < UNIT_MAX ? ODD_ROW : LONG_ROW);
}

static bool same_shape(const piece *a, const piece *b)
{
    size_t bytes = (size_t)a->l.ndim * sizeof a->l.extent[0];
    return a->unit == b->unit && a->l.ndim == b->l.ndim &&
           memcmp(a->l.extent, b->l.extent, bytes) == 0 &&
           memcmp(a->l.to_stride, b->l.to_stride, bytes) == 0 &&
           memcmp(a->l.from_stride, b->l.from_stride, bytes) == 0;
}

/* The first piece and all others of its shape. */
static ts_status launch_alike(tsi_stream *stream, piece *first, int64_t count)
{
    const loops *l = &first->l;
    int64_t unit = first->unit, block = (int64_t)PER_THREAD * TSI_CUDA_BLOCK;
    tsi_cuda_copy_list_args args = { .each = { .to = operand_of(NULL, l->to_stride, l->ndim),
                                               .from =
                                                   operand_of(NULL, l->from_stride, l->ndim) } };
    tsi_cuda_space_make(&args.each.space, l->ndim, l->extent);
    args.blocks = (args.each.space.count + block - 1) / block;
    for (piece *p = first + count - 1; p >= first;
         p--) { /* the first one last: others are like it */
        if (!same_shape(first, p)) continue;
        args.to[args.count] = p->l.to;
        args.from[args.count++] = p->l.from;
        p->unit = 0;
    }
    int64_t blocks = args.count * args.blocks;
    return tsi_cuda_launch(stream, by_unit(TSI_CUDA_copy_list_1, unit),
                           blocks < INT32_MAX ? blocks : INT32_MAX, TSI_CUDA_BLOCK, 0, &args);
}

/* At most TSI_CUDA_PIECES. */
static ts_status copy_some(tsi_stream *stream, const tsi_block *to, const tsi_block *from,
                           int64_t count)
{
    piece list[TSI_CUDA_PIECES];
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        loops l;
        if (!loops_make(&l, &to[i], &from[i])) continue;
        if (to[i].dtype == from[i].dtype && piece_make(&l, &list[kept]))
            kept++;
        else
            TSI_TRY(copy_one(stream, &l, to[i].dtype, from[i].dtype));
    }
    for (int64_t i = 0; i < kept; i++)
        if (list[i].unit > 0) TSI_TRY(launch_alike(stream, &list[i], kept - i));
    return TS_OK;
}

ts_status tsi_cuda_copy_list(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                             int64_t count, tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    bool side;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = TS_OK;
    for (int64_t at = 0; at < count && status == TS_OK; at += TSI_CUDA_PIECES) {
        int64_t left = count - at;
        status =
            copy_some(stream, to + at, from + at, left < TSI_CUDA_PIECES ? left : TSI_CUDA_PIECES);
    }
    return tsi_cuda_end(cuda, stream, side, status);
}

/* ---- p-norms --------------------------------------------------------------------------------- */

/* The function that takes powers of p, or their roots; 1 and 2 alone have the host's bits. */
static tsi_cuda_kernel power_kernel(double power, bool root)
{
    if (power == 1.0) return TSI_CUDA_cast_abs;
    if (power == 2.0) return root ? TSI_CUDA_cast_root : TSI_CUDA_cast_square;
    return TSI_CUDA_KERNEL_COUNT;
}

ts_status tsi_cuda_power(const tsi_device *device, const tsi_block *block, double power, bool root,
                         tsi_stream *stream, bool *done)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    tsi_cuda_kernel kernel = power_kernel(power, root);
    loops l;
    bool side;
    *done = tsi_cuda_is_real(block->dtype) && kernel != TSI_CUDA_KERNEL_COUNT;
    if (!*done || (root && power == 1.0) || !loops_make(&l, block, block)) return TS_OK;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    tsi_cuda_copy_args args = { .to = operand_of(l.to, l.to_stride, l.ndim),
                                .from = operand_of(l.from, l.from_stride, l.ndim),
                                .to_dtype = block->dtype,
                                .from_dtype = block->dtype };
    tsi_cuda_space_make(&args.space, l.ndim, l.extent);
    ts_status status = tsi_cuda_launch_items(stream, kernel, args.space.count, &args);
    return tsi_cuda_end(cuda, stream, side, status);
}

/* ---- fills ----------------------------------------------------------------------------------- */

static ts_status fill_units(tsi_stream *stream, loops l, const void *element)
{
    tsi_cuda_fill_args args = { .space = { .count = 0 } };
    char *pattern = (char *)args.pattern;
    for (int64_t at = 0; at < UNIT_MAX; at += l.to_size)
        memcpy(pattern + at, element, (size_t)l.to_size);
    int64_t unit = widest_units(&l);
    args.to = operand_of(l.to, l.to_stride, l.ndim);
    tsi_cuda_space_make(&args.space, l.ndim, l.extent);
    return tsi_cuda_launch_items(stream, by_unit(TSI_CUDA_fill_1, unit), (args.space.count + 3) / 4,
                                 &args);
}

/* A row in units of 16 bytes, and what is left of it. */
static ts_status fill_row(tsi_stream *stream, const loops *l, const void *element)
{
    int64_t all = l->extent[0], wide = all - all % (UNIT_MAX / l->to_size);
    loops head = *l, tail = *l;
    head.extent[0] = wide;
    tail.extent[0] = all - wide;
    tail.to += wide * l->to_size;
    tail.from = NULL;
    ts_status status = wide > 0 ? fill_units(stream, head, element) : TS_OK;
    return status == TS_OK && all > wide ? fill_units(stream, tail, element) : status;
}

ts_status tsi_cuda_fill(const tsi_device *device, const tsi_block *to, const void *element,
                        tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    loops l;
    bool side;
    if (!loops_make(&l, to, NULL)) return TS_OK;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = l.ndim == 1 && l.to_stride[0] == 1 ? fill_row(stream, &l, element)
                                                          : fill_units(stream, l, element);
    return tsi_cuda_end(cuda, stream, side, status);
}
