/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.c - rows times the matrix of their group, as one matrix product per group.
 *
 *   rows sorted by group (a counting sort)  ->  packed, group after group  ->  products  ->  back
 *
 * A group's rows are cut into pieces, so that few groups with many rows use all threads, too; of
 * many rows the pieces are larger, since every product packs its matrix anew. Rows whose group
 * another rank holds are in nobody's list and come out as zeros.
 *
 * INV: pieces depend on the rows' groups alone, so the number of threads does not change a bit. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/gemm.h"
#include "base/error.h"
#include "op/matrix/grouped_linear.h"

enum { PIECE = 128, PIECE_MAX = 512 };

typedef struct piece {
    int64_t group, begin, end; /* sorted rows */
} piece;

/* Rows in the order of their groups. */
typedef struct sorted {
    int64_t rows, groups, held; /* all rows; groups here; rows whose group is here */
    int64_t *group;             /* of a row, or -1 */
    int64_t *place;             /* of a row among the sorted ones, or -1 */
    int64_t *first;             /* of a group; first[groups] is held */
    piece *piece;
    int64_t piece_count;
    bool in_order; /* all rows are held, and lie as their groups do */
    tsi_scratch numbers, pieces;
} sorted;

/* ---- sorting --------------------------------------------------------------------------------- */

static ts_status read_groups(const tsi_kernel_io *io, const tsi_operand *matrices, sorted *s)
{
    const tsi_block *group = &io->in[2].block;
    int64_t index[TS_NDIM_MAX] = { 0 }, groups = matrices->global->shape.extent[0];
    for (int64_t row = 0; row < s->rows; row++) {
        int64_t at = 0, value;
        for (int32_t d = 0; d < group->ndim; d++)
            at += index[d] * group->stride[d];
        size_t size = ts_dtype_size((ts_dtype)group->dtype);
        tsi_gather(TS_DTYPE_I64, &value, (ts_dtype)group->dtype,
                   (const char *)group->data + at * (int64_t)size, (int64_t)size, 1);
        if (value < 0 || value >= groups)
            return tsi_grouped_refuse(io->op->name, value, groups, io->in[2].region != NULL);
        s->group[row] = tsi_operand_local(matrices, 0, value);
        for (int32_t d = group->ndim - 1; d >= 0 && ++index[d] == group->extent[d]; d--)
            index[d] = 0;
    }
    return TS_OK;
}

static void place_rows(sorted *s)
{
    for (int64_t g = 0; g <= s->groups; g++)
        s->first[g] = 0;
    for (int64_t row = 0; row < s->rows; row++)
        if (s->group[row] >= 0) s->first[s->group[row] + 1]++;
    for (int64_t g = 0; g < s->groups; g++)
        s->first[g + 1] += s->first[g];
    s->held = s->first[s->groups];
    s->in_order = true;
    for (int64_t row = 0; row < s->rows; row++) {
        s->place[row] = s->group[row] < 0 ? -1 : s->first[s->group[row]]++;
        s->in_order &= s->place[row] == row;
    }
    for (int64_t g = s->groups; g > 0; g--)
        s->first[g] = s->first[g - 1];
    s->first[0] = 0;
}

static void cut_pieces(sorted *s)
{
    int64_t length = s->held / (64 * PIECE) * PIECE;
    length = length < PIECE ? PIECE : length > PIECE_MAX ? PIECE_MAX : length;
    for (int64_t g = 0; g < s->groups; g++)
        for (int64_t at = s->first[g]; at < s->first[g + 1]; at += length) {
            int64_t end = at + length < s->first[g + 1] ? at + length : s->first[g + 1];
            s->piece[s->piece_count++] = (piece){ g, at, end };
        }
}

static void sorted_done(sorted *s)
{
    tsi_scratch_done(&s->numbers);
    tsi_scratch_done(&s->pieces);
}

/* Where no row has a group: each has as many, and rows that somebody brought together (one dim)
 * come in their order, as those of experts do, while chosen ones come in none. */
static void assume_even(const tsi_kernel_io *io, const tsi_operand *matrices, sorted *s)
{
    int64_t groups = matrices->global->shape.extent[0];
    s->held = groups > 0 ? (s->rows * s->groups + groups - 1) / groups : 0;
    s->in_order = s->held == s->rows && io->in[2].block.ndim == 1;
}

/* `matrices` is the operand [E, F, C] of the call. */
static ts_status sort_rows(const tsi_kernel_io *io, const tsi_operand *matrices, sorted *s)
{
    const tsi_block *group = &io->in[2].block;
    *s = (sorted){ .rows = 1, .groups = matrices->block.extent[0] };
    for (int32_t d = 0; d < group->ndim; d++)
        s->rows *= group->extent[d];
    TSI_TRY(tsi_scratch_get(&s->numbers, io->rank, (size_t)(2 * s->rows + s->groups + 1),
                            sizeof(int64_t)));
    s->group = s->numbers.data;
    s->place = s->group + s->rows;
    s->first = s->place + s->rows;
    bool dry = tsi_dry(io->rank);
    ts_status status = dry ? TS_OK : read_groups(io, matrices, s);
    if (status == TS_OK)
        status = tsi_scratch_get(&s->pieces, io->rank, (size_t)(s->rows / PIECE + s->groups + 1),
                                 sizeof(piece));
    if (status != TS_OK) {
        sorted_done(s);
        return status;
    }
    s->piece = s->pieces.data;
    if (dry) {
        assume_even(io, matrices, s);
    } else {
        place_rows(s);
        cut_pieces(s);
    }
    return TS_OK;
}

/* ---- rows in and out ------------------------------------------------------------------------- */

typedef struct packing {
    const tsi_block *block; /* [M.., N] */
    const sorted *sorted;
    char *packed; /* [held, N] of `compute` */
    ts_dtype compute;
    bool out; /* from packed to the block */
} packing;

static int64_t row_offset(const tsi_block *block, int64_t row)
{
    int64_t at = 0;
    for (int32_t d = block->ndim - 2; d >= 0; d--) {
        at += row % block->extent[d] * block->stride[d];
        row /= block->extent[d];
    }
    return at;
}

static void zero_row(const packing *p, char *to, int64_t stride, int64_t length)
{
    size_t size = ts_dtype_size((ts_dtype)p->block->dtype);
    for (int64_t i = 0; i < length; i++)
        memset(to + i * stride, 0, size);
}

static void pack_some(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const packing *p = context;
    (void)worker;
    ts_dtype dtype = (ts_dtype)p->block->dtype;
    int64_t size = (int64_t)ts_dtype_size(dtype), length = p->block->extent[p->block->ndim - 1];
    int64_t stride = p->block->stride[p->block->ndim - 1] * size;
    for (int64_t row = begin; row < end; row++) {
        int64_t place = p->sorted->place[row];
        char *at = (char *)p->block->data + row_offset(p->block, row) * size;
        char *packed = p->packed + place * length * (int64_t)ts_dtype_size(p->compute);
        if (place < 0 && p->out)
            zero_row(p, at, stride, length);
        else if (place >= 0 && p->out)
            tsi_scatter(dtype, at, stride, p->compute, packed, length);
        else if (place >= 0)
            tsi_gather(p->compute, packed, dtype, at, stride, length);
    }
}

static ts_status pack(ts_rank *rank, const tsi_block *block, const sorted *s, ts_dtype compute,
                      tsi_scratch *packed, bool out)
{
    int64_t length = block->extent[block->ndim - 1];
    packing p = { block, s, packed->data, compute, out };
    tsi_parallel_for(rank, s->rows, 16384 / (length + 1) + 1, pack_some, &p);
    return TS_OK;
}

/* Are the rows of a block packed as they lie? Then nobody copies them. */
static bool is_packed(const tsi_block *block, const sorted *s, ts_dtype compute)
{
    return s->in_order && (ts_dtype)block->dtype == compute && tsi_block_is_dense(block);
}

/* Rows by group, [held, N] of `compute`: the block's own memory, or room for a copy, which `in`
 * fills. */
static ts_status rows_get(const tsi_kernel_io *io, const tsi_block *block, const sorted *s,
                          ts_dtype compute, bool in, tsi_scratch *copy, char **out)
{
    size_t length = (size_t)block->extent[block->ndim - 1];
    if (is_packed(block, s, compute)) {
        *out = block->data;
        return TS_OK;
    }
    TSI_TRY(tsi_scratch_get(copy, io->rank, ((size_t)s->held + 1) * length + 1,
                            ts_dtype_size(compute)));
    *out = copy->data;
    return in ? pack(io->rank, block, s, compute, copy, false) : TS_OK;
}

/* [E, F, C] in the dtype of products and with strides BLAS takes: as it is, or copied. */
typedef struct matrices {
    const char *data;
    int64_t step, row, column; /* strides */
    tsi_scratch copy;
} matrices;

typedef struct copying {
    const tsi_block *from;
    char *to;
    ts_dtype compute;
} copying;

static void copy_some(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const copying *c = context;
    (void)worker;
    const tsi_block *w = c->from;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)w->dtype), columns = w->extent[2];
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i / w->extent[1] * w->stride[0] + i % w->extent[1] * w->stride[1];
        tsi_gather(c->compute, c->to + i * columns * (int64_t)ts_dtype_size(c->compute),
                   (ts_dtype)w->dtype, (const char *)w->data + at * size, w->stride[2] * size,
                   columns);
    }
}

static ts_status matrices_get(ts_rank *rank, const tsi_block *w, ts_dtype compute, matrices *m)
{
    *m = (matrices){ w->data, w->stride[0], w->stride[1], w->stride[2], { 0 } };
    if ((ts_dtype)w->dtype == compute &&
        tsi_gemm_fits(w->extent[1], w->extent[2], w->stride[1], w->stride[2]))
        return TS_OK;
    int64_t rows = w->extent[0] * w->extent[1];
    TSI_TRY(tsi_scratch_get(&m->copy, rank, (size_t)(rows * w->extent[2]), ts_dtype_size(compute)));
    copying c = { w, m->copy.data, compute };
    tsi_parallel_for(rank, rows, 16384 / (w->extent[2] + 1) + 1, copy_some, &c);
    m->data = m->copy.data;
    m->step = w->extent[1] * w->extent[2];
    m->row = w->extent[2];
    m->column = 1;
    return TS_OK;
}

static ts_dtype compute_of(int32_t dtype)
{
    if (tsi_is_small_real(dtype)) return TS_DTYPE_F32;
    return dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_NONE;
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct forward {
    const sorted *sorted;
    const matrices *w;
    const char *x; /* [held, C] */
    char *y;       /* [held, F] */
    int64_t columns, rows;
    ts_dtype compute;
    ts_rank *rank;
} forward;

static void forward_some(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const forward *f = context;
    int64_t size = (int64_t)ts_dtype_size(f->compute);
    for (int64_t i = begin; i < end; i++) {
        const piece *p = &f->sorted->piece[i];
        tsi_gemm gemm = { .m = p->end - p->begin,
                          .n = f->rows,
                          .k = f->columns,
                          .a = f->x + p->begin * f->columns * size,
                          .b = f->w->data + p->group * f->w->step * size,
                          .c = f->y + p->begin * f->rows * size,
                          .am = f->columns,
                          .ak = 1,
                          .bk = f->w->column,
                          .bn = f->w->row,
                          .cm = f->rows,
                          .cn = 1,
                          .worker = worker,
                          .rank = f->rank };
        (void)tsi_gemm_blas(f->compute, &gemm);
    }
}

static ts_status forward_sorted(const tsi_kernel_io *io, const sorted *s, ts_dtype compute)
{
    const tsi_block *x = &io->in[0].block, *w = &io->in[1].block, *y = &io->out[0].block;
    tsi_scratch in = { 0 }, out = { 0 };
    matrices m = { 0 };
    char *from = NULL, *to = NULL;
    ts_status status = rows_get(io, x, s, compute, true, &in, &from);
    if (status == TS_OK) status = rows_get(io, y, s, compute, false, &out, &to);
    if (status == TS_OK) status = matrices_get(io->rank, w, compute, &m);
    if (status == TS_OK && w->extent[2] > 0) {
        forward f = { s, &m, from, to, w->extent[2], w->extent[1], compute, io->rank };
        tsi_parallel_for(io->rank, s->piece_count, 1, forward_some, &f);
    } else if (status == TS_OK && to && !tsi_dry(io->rank)) {
        memset(to, 0, (size_t)(s->held * w->extent[1]) * ts_dtype_size(compute));
    }
    if (status == TS_OK && out.data) status = pack(io->rank, y, s, compute, &out, true);
    tsi_scratch_done(&m.copy);
    tsi_scratch_done(&out);
    tsi_scratch_done(&in);
    return status;
}

ts_status tsi_cpu_grouped_linear(const tsi_kernel_io *io)
{
    ts_dtype compute = compute_of(io->in[0].block.dtype);
    if (compute == TS_DTYPE_NONE || !tsi_gemm_blas_has(compute))
        return (ts_status)TSI_KERNEL_DECLINED;
    sorted s;
    TSI_TRY(sort_rows(io, &io->in[1], &s));
    ts_status status = forward_sorted(io, &s, compute);
    sorted_done(&s);
    return status;
}

/* ---- the gradient of the matrices ------------------------------------------------------------ */

typedef struct backward {
    const sorted *sorted;
    const tsi_block *dw;
    const char *dy, *x; /* [held, F], [held, C] */
    char *sum;          /* [E, F, C] of `compute` */
    ts_dtype compute;
    ts_rank *rank;
} backward;

/* dw[e] is the sum over the group's rows, all at once: one product, and the rows' order is theirs.
 */
static void backward_some(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *b = context;
    const tsi_block *dw = b->dw;
    int64_t rows = dw->extent[1], columns = dw->extent[2];
    int64_t size = (int64_t)ts_dtype_size(b->compute),
            own = (int64_t)ts_dtype_size((ts_dtype)dw->dtype);
    for (int64_t e = begin; e < end; e++) {
        int64_t first = b->sorted->first[e], count = b->sorted->first[e + 1] - first;
        char *sum = b->sum + e * rows * columns * size;
        tsi_gemm gemm = { .m = rows,
                          .n = columns,
                          .k = count,
                          .a = b->dy + first * rows * size,
                          .b = b->x + first * columns * size,
                          .c = sum,
                          .am = 1,
                          .ak = rows,
                          .bk = columns,
                          .bn = 1,
                          .cm = columns,
                          .cn = 1,
                          .worker = worker,
                          .rank = b->rank };
        if (count > 0)
            (void)tsi_gemm_blas(b->compute, &gemm);
        else
            memset(sum, 0, (size_t)(rows * columns * size));
        for (int64_t f = 0; f < rows; f++)
            tsi_scatter((ts_dtype)dw->dtype,
                        (char *)dw->data + (e * dw->stride[0] + f * dw->stride[1]) * own,
                        dw->stride[2] * own, b->compute, sum + f * columns * size, columns);
    }
}

static ts_status backward_sorted(const tsi_kernel_io *io, const sorted *s, ts_dtype compute)
{
    const tsi_block *dy = &io->in[0].block, *x = &io->in[1].block, *dw = &io->out[0].block;
    size_t elements = (size_t)(dw->extent[0] * dw->extent[1] * dw->extent[2]);
    tsi_scratch left = { 0 }, right = { 0 }, sum = { 0 };
    char *by_dy = NULL, *by_x = NULL;
    ts_status status = rows_get(io, dy, s, compute, true, &left, &by_dy);
    if (status == TS_OK) status = rows_get(io, x, s, compute, true, &right, &by_x);
    if (status == TS_OK)
        status = tsi_scratch_get(&sum, io->rank, elements + 1, ts_dtype_size(compute));
    if (status == TS_OK && elements > 0) {
        backward b = { s, dw, by_dy, by_x, sum.data, compute, io->rank };
        tsi_parallel_for(io->rank, s->groups, 1, backward_some, &b);
    }
    tsi_scratch_done(&sum);
    tsi_scratch_done(&right);
    tsi_scratch_done(&left);
    return status;
}

ts_status tsi_cpu_grouped_linear_backward(const tsi_kernel_io *io)
{
    ts_dtype compute = compute_of(io->in[0].block.dtype);
    if (compute == TS_DTYPE_NONE || io->in[1].block.dtype != io->in[0].block.dtype ||
        !tsi_gemm_blas_has(compute))
        return (ts_status)TSI_KERNEL_DECLINED;
    sorted s;
    TSI_TRY(sort_rows(io, &io->out[0], &s));
    ts_status status = backward_sorted(io, &s, compute);
    sorted_done(&s);
    return status;
}
