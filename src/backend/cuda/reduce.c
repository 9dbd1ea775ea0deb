/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - reductions over dims of reals and whole numbers, and places of extremes.
 *
 * How a call is cut into pieces follows from its extents alone, so that its bits do not depend on
 * the GPU. Complex numbers are the host's. */
#include "op/reduce/reduce.h"

#include <math.h>
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/reduce.h"
#include "base/error.h"

/* ROW_BLOCKS, COLUMN_BLOCKS: as many as an H200 runs at once, four and one on each of its units:
 * one more would take as long as all of them. */
enum {
    GROUPS = 2048,
    LEAST_PIECE = 1024,
    SHORT_ROW = 128, /* units of 16 bytes */
    FEW_ROWS = 64,
    ROW_BLOCKS = TSI_CUDA_TICKETS,
    COLUMN_BLOCKS = ROW_BLOCKS / 4
};

typedef enum compute { IN_F32, IN_F64, IN_I64 } compute;

/* ---- spaces ---------------------------------------------------------------------------------- */

/* Input dims split by what the mask reduces; `to` is the stride in a result for each input dim. */
typedef struct split {
    int32_t outer, inner;
    int64_t extent[2][TS_NDIM_MAX];
    tsi_cuda_operand from, within, to, other;
} split;

static void split_make(split *s, const tsi_block *in, uint32_t mask, const int64_t *to,
                       const int64_t *other)
{
    memset(s, 0, sizeof *s);
    for (int32_t d = 0; d < in->ndim; d++) {
        if (mask >> d & 1) {
            s->extent[1][s->inner] = in->extent[d];
            s->within.stride[s->inner++] = in->stride[d];
        } else {
            s->extent[0][s->outer] = in->extent[d];
            s->from.stride[s->outer] = in->stride[d];
            s->other.stride[s->outer] = other ? other[d] : 0;
            s->to.stride[s->outer++] = to[d];
        }
    }
    s->from.data = in->data;
    tsi_cuda_operand *outer[3] = { &s->from, &s->to, &s->other }, *inner[1] = { &s->within };
    s->outer = tsi_cuda_coalesce(s->outer, s->extent[0], outer, 3);
    s->inner = tsi_cuda_coalesce(s->inner, s->extent[1], inner, 1);
}

/* The stride in the result of each dim of the input that is kept. */
static void result_strides(const tsi_block *in, const tsi_block *out, uint32_t mask, bool keepdim,
                           int64_t *stride)
{
    int32_t place = 0;
    for (int32_t d = 0; d < in->ndim; d++) {
        bool gone = mask >> d & 1;
        stride[d] = gone ? 0 : out->stride[place];
        if (!gone || keepdim) place++;
    }
}

/* ---- which kernel ---------------------------------------------------------------------------- */

static bool is_fast(const tsi_cuda_reduce_args *a)
{
    return a->op <= TSI_CUDA_MIN &&
           (a->from_dtype == TS_DTYPE_F32 || a->from_dtype == TS_DTYPE_BF16);
}

static int64_t units_of(const tsi_cuda_reduce_args *a)
{
    return 16 / (int64_t)ts_dtype_size((ts_dtype)a->from_dtype);
}

static bool is_on_units(const tsi_cuda_operand *x, int32_t ndim, int64_t n)
{
    bool fits = (uintptr_t)x->data % 16 == 0;
    for (int32_t d = 0; d < ndim; d++)
        fits = fits && x->stride[d] % n == 0;
    return fits;
}

static bool is_rows(const tsi_cuda_reduce_args *a)
{
    int64_t n = units_of(a);
    int32_t outer = a->outer.count == 1 ? 0 : a->outer.ndim; /* one result: no stride matters */
    return is_fast(a) && a->inner.ndim == 1 && a->within.stride[0] == 1 &&
           a->inner.count % n == 0 && a->inner.count >= 32 && is_on_units(&a->from, outer, n);
}

static bool is_columns(const tsi_cuda_reduce_args *a)
{
    int64_t n = units_of(a);
    tsi_cuda_operand rows = { .data = a->from.data, .stride = { a->within.stride[0] } };
    return is_fast(a) && a->outer.ndim == 1 && a->inner.ndim == 1 && a->from.stride[0] == 1 &&
           a->outer.count % n == 0 && a->outer.count >= 32 && is_on_units(&rows, 1, n);
}

/* Few rows of columns for each of many results, which are written as they are read. */
static bool is_few(const tsi_cuda_reduce_args *a)
{
    int64_t n = units_of(a);
    int32_t last = a->outer.ndim - 1;
    return is_fast(a) && last > 0 && a->inner.ndim == 1 && a->inner.count <= FEW_ROWS &&
           a->to_dtype == a->from_dtype && a->divide == 1.0 && a->after == TSI_CUDA_AS_IT_IS &&
           a->from.stride[last] == 1 && a->to.stride[last] == 1 && a->outer.extent[last] % n == 0 &&
           a->within.stride[0] % n == 0 && is_on_units(&a->from, last, n) &&
           is_on_units(&a->to, last, n);
}

/* Pieces of the inner space for `groups` that work side by side; each at least as long as pays. */
static void cut(tsi_cuda_reduce_args *a, int64_t least, int64_t wanted)
{
    int64_t most = (a->inner.count + least - 1) / least;
    int64_t pieces = (wanted + a->outer.count - 1) / a->outer.count;
    a->pieces = pieces < most ? pieces : most;
    if (a->pieces < 1) a->pieces = 1;
    int64_t n = 64; /* pieces begin on units of every dtype */
    a->piece = ((a->inner.count + a->pieces - 1) / a->pieces + n - 1) / n * n;
    if (a->piece < 1) a->piece = 1;
    a->pieces = a->inner.count > 0 ? (a->inner.count + a->piece - 1) / a->piece : 1;
}

static ts_status partial_make(tsi_stream *stream, tsi_cuda_reduce_args *a, compute in)
{
    size_t size = in == IN_F32 ? sizeof(float) : sizeof(double);
    if (a->pieces == 1) return TS_OK;
    return tsi_cuda_scratch(stream, (size_t)(a->pieces * a->outer.count) * size, &a->partial);
}

static ts_status finish(tsi_stream *stream, tsi_cuda_reduce_args *a, compute in)
{
    static const tsi_cuda_kernel kernels[] = { TSI_CUDA_reduce_finish_f32,
                                               TSI_CUDA_reduce_finish_f64,
                                               TSI_CUDA_reduce_finish_i64 };
    int64_t blocks = (a->outer.count + 31) / 32, width = a->outer.count < 32 ? a->outer.count : 32;
    int32_t threads = 32; /* eight pieces each */
    while (threads < TSI_CUDA_REDUCE_LARGE && 8 * threads < width * a->pieces)
        threads *= 2;
    return tsi_cuda_launch(stream, kernels[in], blocks < INT32_MAX ? blocks : INT32_MAX, threads, 0,
                           a);
}

/* Tiles of 16 units of columns, whose pieces are more even, or of 32 where those would be more than
 * run at once. */
static ts_status run_columns(tsi_stream *stream, tsi_cuda_reduce_args *a)
{
    static const tsi_cuda_kernel kernels[2][2] = {
        { TSI_CUDA_reduce_columns_16_f32, TSI_CUDA_reduce_columns_32_f32 },
        { TSI_CUDA_reduce_columns_16_bf16, TSI_CUDA_reduce_columns_32_bf16 },
    };
    int64_t units = a->outer.count / units_of(a), across = units > 16 * COLUMN_BLOCKS ? 32 : 16;
    int64_t tiles = (units + across - 1) / across;
    int64_t pieces = tiles < COLUMN_BLOCKS ? COLUMN_BLOCKS / tiles : 1;
    a->piece = tsi_max_i64((a->inner.count + pieces - 1) / pieces, TSI_CUDA_REDUCE_LARGE / across);
    a->pieces = (a->inner.count + a->piece - 1) / a->piece;
    TSI_TRY(partial_make(stream, a, IN_F32));
    a->tickets = stream->tickets;
    return tsi_cuda_launch(stream, kernels[a->from_dtype == TS_DTYPE_BF16][across == 32],
                           tiles * a->pieces, TSI_CUDA_REDUCE_LARGE, 0, a);
}

static ts_status run_few(tsi_stream *stream, tsi_cuda_reduce_args *a)
{
    bool narrow = a->from_dtype == TS_DTYPE_BF16;
    return tsi_cuda_launch_items(stream,
                                 narrow ? TSI_CUDA_reduce_few_bf16 : TSI_CUDA_reduce_few_f32,
                                 a->outer.count / units_of(a), a);
}

static ts_status run_groups(tsi_stream *stream, tsi_cuda_reduce_args *a, compute in)
{
    static const tsi_cuda_kernel any[3][3] = {
        { TSI_CUDA_reduce_any_1_f32, TSI_CUDA_reduce_any_32_f32, TSI_CUDA_reduce_any_256_f32 },
        { TSI_CUDA_reduce_any_1_f64, TSI_CUDA_reduce_any_32_f64, TSI_CUDA_reduce_any_256_f64 },
        { TSI_CUDA_reduce_any_1_i64, TSI_CUDA_reduce_any_32_i64, TSI_CUDA_reduce_any_256_i64 },
    };
    static const tsi_cuda_kernel rows[2][3] = {
        { TSI_CUDA_reduce_rows_16_f32, TSI_CUDA_reduce_rows_32_f32, TSI_CUDA_reduce_rows_256_f32 },
        { TSI_CUDA_reduce_rows_16_bf16, TSI_CUDA_reduce_rows_32_bf16,
          TSI_CUDA_reduce_rows_256_bf16 },
    };
    bool by_rows = in == IN_F32 && is_rows(a);
    bool down = a->from.stride[a->outer.ndim - 1] == 1 && a->within.stride[a->inner.ndim - 1] != 1;
    bool thread = !by_rows && down && a->outer.count >= TSI_CUDA_BLOCK;
    int32_t group = thread ? 1 : a->inner.count * (by_rows ? 1 : 4) <= 4 * LEAST_PIECE ? 32 : 256;
    if (by_rows && a->inner.count <= SHORT_ROW * units_of(a)) group = 16;
    int64_t wanted = thread ? 64 * GROUPS : group < 256 ? 4 * GROUPS : GROUPS / 2;
    if (by_rows && group == 256) wanted = ROW_BLOCKS;
    cut(a, thread ? 64 : group < 256 ? 8 * LEAST_PIECE : 4 * LEAST_PIECE, wanted);
    TSI_TRY(partial_make(stream, a, in));
    tsi_cuda_kernel kernel = any[in][group == 1 ? 0 : group == 32 ? 1 : 2];
    if (by_rows)
        kernel = rows[a->from_dtype == TS_DTYPE_BF16][group == 16 ? 0 : group == 32 ? 1 : 2];
    a->tickets = stream->tickets;
    TSI_TRY(tsi_cuda_launch_items(stream, kernel, a->outer.count * a->pieces * group, a));
    return a->pieces > 1 && !by_rows ? finish(stream, a, in) : TS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static compute compute_of(const tsi_kernel_io *io, int32_t op, bool has_whole)
{
    int32_t dtype = io->in[0].block.dtype;
    if (tsi_cuda_is_narrow(dtype) && io->out[0].block.dtype != TS_DTYPE_I64) return IN_F32;
    bool whole = has_whole && !tsi_cuda_is_real(dtype);
    return whole && op <= TSI_CUDA_PROD ? IN_I64 : IN_F64;
}

static int64_t start_of(int32_t op, ts_dtype dtype)
{
    int64_t element[2] = { 0 };
    ts_reduce kind = op == TSI_CUDA_MAX ? TS_REDUCE_MAX : TS_REDUCE_MIN;
    if (op == TSI_CUDA_SUM) return 0;
    if (op == TSI_CUDA_PROD) return 1;
    if (tsi_reduce_identity(kind, dtype, element) != TS_OK) return 0;
    switch (ts_dtype_size(dtype)) { /* sign and width of the dtype */
    case 8:
        return element[0];
    case 4:
        return (int32_t)element[0];
    case 2:
        return (int16_t)element[0];
    default:
        return dtype == TS_DTYPE_I8 ? (int8_t)element[0] : (uint8_t)element[0];
    }
}

/* What is wanted of a call; `after` a TSI_CUDA_AS_IT_IS. */
typedef struct wish {
    int32_t op, after;
    double divide, power;
    bool wide; /* in f64, whatever the dtype */
} wish;

static void fill_args(const tsi_kernel_io *io, const split *s, const wish *w, compute how,
                      tsi_cuda_reduce_args *args)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    *args =
        (tsi_cuda_reduce_args){ .from = s->from,
                                .within = s->within,
                                .to = s->to,
                                .start = how == IN_I64 ? start_of(w->op, (ts_dtype)out->dtype) : 0,
                                .power = w->power,
                                .divide = w->divide,
                                .op = w->op,
                                .after = w->after,
                                .from_dtype = in->dtype,
                                .to_dtype = out->dtype };
    args->to.data = out->data;
    tsi_cuda_space_make(&args->outer, s->outer, s->extent[0]);
    tsi_cuda_space_make(&args->inner, s->inner, s->extent[1]);
}

static ts_status run(tsi_stream *stream, tsi_cuda_reduce_args *args, compute how)
{
    bool down = how == IN_F32 && args->inner.count > 0 && !is_rows(args);
    if (down && is_few(args)) return run_few(stream, args);
    return down && is_columns(args) ? run_columns(stream, args) : run_groups(stream, args, how);
}

static ts_status reduce(const tsi_kernel_io *io, uint32_t mask, const int64_t *stride, wish w)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    if (!io->queue || tsi_cuda_is_complex(in->dtype) || tsi_cuda_is_complex(out->dtype))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(out) == 0) return TS_OK;
    split s;
    tsi_cuda_reduce_args args;
    compute how = w.wide ? IN_F64 : compute_of(io, w.op, w.divide == 1.0);
    split_make(&s, in, mask, stride, NULL);
    fill_args(io, &s, &w, how, &args);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return run(io->queue, &args, how);
}

ts_status tsi_cuda_sum_all(tsi_stream *stream, const tsi_block *in, const tsi_block *out,
                           double divide)
{
    const tsi_operand from = { .block = *in }, to = { .block = *out };
    const int64_t stride[TS_NDIM_MAX] = { 0 };
    tsi_kernel_io io = { .in = &from, .out = &to, .queue = stream };
    return reduce(&io, (1u << in->ndim) - 1, stride,
                  (wish){ .op = TSI_CUDA_SUM, .divide = divide });
}

/* The center of each result first, into memory of its own; then what is wanted around it. */
static ts_status reduce_around(const tsi_kernel_io *io, uint32_t mask, const int64_t *stride,
                               wish center, wish w)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    tsi_stream *stream = io->queue;
    if (!stream || tsi_cuda_is_complex(in->dtype) || tsi_cuda_is_complex(out->dtype) ||
        tsi_block_count(in) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    split s;
    tsi_cuda_reduce_args args, first;
    compute how = tsi_cuda_is_narrow(in->dtype) ? IN_F32 : IN_F64;
    CUdeviceptr memory = 0;
    split_make(&s, in, mask, stride, NULL);
    fill_args(io, &s, &center, how, &first);
    fill_args(io, &s, &w, how, &args);
    first.to_dtype = how == IN_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    int64_t step = 1;
    for (int32_t d = s.outer - 1; d >= 0; step *= s.extent[0][d--])
        first.to.stride[d] = step;
    size_t bytes = (size_t)step * ts_dtype_size((ts_dtype)first.to_dtype);
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    TSI_TRY(tsi_cuda_memory(stream, "centers", bytes, &memory));
    first.to.data = (void *)(uintptr_t)memory;
    args.center = first.to.data;
    ts_status status = run(stream, &first, how);
    if (status == TS_OK) status = run_groups(stream, &args, how);
    (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    return status;
}

static uint32_t mask_of(const tsi_reduce_attributes *a)
{
    uint32_t mask = 0;
    for (int32_t i = 0; i < a->dims.count; i++)
        mask |= 1u << a->dims.value[i];
    return mask;
}

static ts_status over_dims(const tsi_kernel_io *io, int32_t op, bool mean)
{
    const tsi_reduce_attributes *a = io->attributes;
    uint32_t mask = mask_of(a);
    int64_t stride[TS_NDIM_MAX] = { 0 };
    double divide = 1;
    for (int32_t i = 0; mean && i < a->dims.count; i++)
        divide *= (double)io->in[0].global->shape.extent[a->dims.value[i]];
    result_strides(&io->in[0].block, &io->out[0].block, mask, a->keepdim, stride);
    return reduce(io, mask, stride, (wish){ .op = op, .divide = divide, .power = a->p });
}

/* ---- around a center ------------------------------------------------------------------------- */

static ts_status around(const tsi_kernel_io *io, const tsi_reduce_attributes *a, wish center,
                        wish w)
{
    uint32_t mask = mask_of(a);
    int64_t stride[TS_NDIM_MAX] = { 0 };
    result_strides(&io->in[0].block, &io->out[0].block, mask, a->keepdim, stride);
    return reduce_around(io, mask, stride, center, w);
}

static ts_status variance(const tsi_kernel_io *io, int32_t after)
{
    const tsi_stat_attributes *a = io->attributes;
    double count = 1;
    for (int32_t i = 0; i < a->over.dims.count; i++)
        count *= (double)io->in[0].global->shape.extent[a->over.dims.value[i]];
    double divide = count > a->correction ? count - a->correction : 0;
    return around(io, &a->over, (wish){ .op = TSI_CUDA_SUM, .divide = count },
                  (wish){ .op = TSI_CUDA_SQUARES, .divide = divide, .after = after });
}

ts_status tsi_cuda_var(const tsi_kernel_io *io)
{
    return variance(io, TSI_CUDA_AS_IT_IS);
}

ts_status tsi_cuda_std(const tsi_kernel_io *io)
{
    return variance(io, TSI_CUDA_ITS_ROOT);
}

ts_status tsi_cuda_logsumexp(const tsi_kernel_io *io)
{
    return around(io, io->attributes, (wish){ .op = TSI_CUDA_MAX, .divide = 1 },
                  (wish){ .op = TSI_CUDA_EXPONENTIALS, .divide = 1, .after = TSI_CUDA_ITS_LOG });
}

/* Counts and extremes are sums of powers; so are others whose powers f64 holds, of the smallest and
 * the largest f32. The rest is scaled by the largest size, of negative powers by the smallest. */
ts_status tsi_cuda_vector_norm(const tsi_kernel_io *io)
{
    enum { NARROW_MOST = 6 };
    const tsi_reduce_attributes *a = io->attributes;
    if (a->p == 0.0 || isinf(a->p)) return over_dims(io, TSI_CUDA_POWER, false);
    if (tsi_cuda_is_narrow(io->in[0].block.dtype) && a->p > 0 && a->p <= NARROW_MOST) {
        int64_t stride[TS_NDIM_MAX] = { 0 };
        result_strides(&io->in[0].block, &io->out[0].block, mask_of(a), a->keepdim, stride);
        return reduce(io, mask_of(a), stride,
                      (wish){ .op = TSI_CUDA_POWER,
                              .after = TSI_CUDA_ITS_NORM,
                              .divide = 1,
                              .power = a->p,
                              .wide = true });
    }
    return around(
        io, a,
        (wish){ .op = TSI_CUDA_POWER, .divide = 1, .power = copysign((double)INFINITY, a->p) },
        (wish){ .op = TSI_CUDA_NORM, .divide = 1, .power = a->p, .after = TSI_CUDA_ITS_NORM });
}

/* ---- plain ----------------------------------------------------------------------------------- */

ts_status tsi_cuda_sum(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_SUM, false);
}

ts_status tsi_cuda_mean(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_SUM, true);
}

ts_status tsi_cuda_prod(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_PROD, false);
}

ts_status tsi_cuda_amax(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_MAX, false);
}

ts_status tsi_cuda_amin(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_MIN, false);
}

ts_status tsi_cuda_any(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_ANY, false);
}

ts_status tsi_cuda_all(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_ALL, false);
}

ts_status tsi_cuda_count_nonzero(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_COUNT, false);
}

ts_status tsi_cuda_powsum(const tsi_kernel_io *io)
{
    return over_dims(io, TSI_CUDA_POWER, false);
}

/* Dims that the result lacks, or has once, are summed: by the global extents. */
ts_status tsi_cuda_sum_to(const tsi_kernel_io *io)
{
    const ts_shape *in = &io->in[0].global->shape, *out = &io->out[0].global->shape;
    int64_t stride[TS_NDIM_MAX] = { 0 };
    uint32_t mask = 0;
    for (int32_t d = 0; d < in->ndim; d++) {
        int32_t e = d - (in->ndim - out->ndim);
        bool gone = e < 0 || (out->extent[e] == 1 && in->extent[d] != 1);
        if (gone)
            mask |= 1u << d;
        else
            stride[d] = io->out[0].block.stride[e];
    }
    return reduce(io, mask, stride, (wish){ .op = TSI_CUDA_SUM, .divide = 1 });
}

/* ---- places of extremes ---------------------------------------------------------------------- */

/* Units of 16 bytes in a row of f32 or bf16; 0: rows do not lie on them, or are of another dtype.
 */
static int64_t extreme_units(const tsi_cuda_extreme_args *a)
{
    if (a->from_dtype != TS_DTYPE_F32 && a->from_dtype != TS_DTYPE_BF16) return 0;
    int64_t n = 16 / (int64_t)ts_dtype_size((ts_dtype)a->from_dtype);
    int32_t outer = a->outer.count == 1 ? 0 : a->outer.ndim; /* one result: no stride matters */
    bool row = a->inner.ndim == 1 && a->within.stride[0] == 1 && a->inner.count % n == 0;
    return row && is_on_units(&a->from, outer, n) ? a->inner.count / n : 0;
}

/* Few rows go by blocks as soon as a warp would read one in several goes. */
static ts_status launch_extreme(tsi_stream *stream, tsi_cuda_extreme_args *a)
{
    static const tsi_cuda_kernel rows[2][2] = {
        { TSI_CUDA_extreme_rows_32_f32, TSI_CUDA_extreme_rows_256_f32 },
        { TSI_CUDA_extreme_rows_32_bf16, TSI_CUDA_extreme_rows_256_bf16 },
    };
    int64_t units = extreme_units(a);
    bool block = units > (a->outer.count < GROUPS ? SHORT_ROW : 8 * SHORT_ROW);
    if (units > 0)
        return tsi_cuda_launch_items(stream, rows[a->from_dtype == TS_DTYPE_BF16][block],
                                     a->outer.count * (block ? TSI_CUDA_BLOCK : 32), a);
    return tsi_cuda_launch_items(stream, a->whole ? TSI_CUDA_extreme_i64 : TSI_CUDA_extreme_f64,
                                 a->outer.count * 32, a);
}

static ts_status extreme(const tsi_kernel_io *io, bool least)
{
    const tsi_reduce_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block, *at = &io->out[io->output_count - 1].block;
    const tsi_block *to = io->output_count > 1 ? &io->out[0].block : NULL;
    uint32_t mask = mask_of(a);
    int64_t stride[2][TS_NDIM_MAX] = { { 0 } };
    if (!io->queue || tsi_cuda_is_complex(in->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(at) == 0) return TS_OK;
    if (to) result_strides(in, to, mask, a->keepdim, stride[0]);
    result_strides(in, at, mask, a->keepdim, stride[1]);
    split s;
    split_make(&s, in, mask, stride[0], stride[1]);
    tsi_cuda_extreme_args args = { .from = s.from,
                                   .within = s.within,
                                   .to = s.to,
                                   .at = s.other,
                                   .least = least,
                                   .from_dtype = in->dtype,
                                   .to_dtype = to ? to->dtype : 0,
                                   .whole = !tsi_cuda_is_real(in->dtype) };
    args.to.data = to ? to->data : NULL;
    args.at.data = at->data;
    tsi_cuda_space_make(&args.outer, s.outer, s.extent[0]);
    tsi_cuda_space_make(&args.inner, s.inner, s.extent[1]);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return launch_extreme(io->queue, &args);
}

ts_status tsi_cuda_largest(const tsi_kernel_io *io)
{
    return extreme(io, false);
}

ts_status tsi_cuda_smallest(const tsi_kernel_io *io)
{
    return extreme(io, true);
}
