/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.c - elementwise operators: any strides and broadcasts as rows, in f32, f64 or i64.
 *
 *   operands of the compute dtype, contiguous or a single number along the row: used where they lie
 *   others (bf16, f16, mixed dtypes, strides): a tile at a time through buffers in the L1 cache
 *
 * An operator without a row of its own goes through the reference's scalar function, element by
 * element: the same bits as the reference, on all threads of the rank. Complex numbers decline. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "op/pointwise/unary.h"

enum { TILE = 512, PIECE = 8192, GRAIN = 32768, TINY = 4096 };

/* ---- what an operator's rows are ------------------------------------------------------------- */

typedef struct row_entry {
    const tsi_op_desc *op; /* NULL: a free place */
    tsi_row_fn f32, bf16, f64, i64;
    bool truth;   /* rows write bytes of 0 or 1 */
    bool numbers; /* the attributes begin with numbers */
} row_entry;

enum { ENTRIES = 1024 }; /* a power of two, far above the number of operators */
static row_entry
    entries[ENTRIES]; /* written by tsi_pointwise_start, once, before any world opens */

static size_t place_of(const tsi_op_desc *op)
{
    return (size_t)(((uint64_t)(uintptr_t)op * 0x9E3779B97F4A7C15u) >> 54);
}

static row_entry *entry_of(const tsi_op_desc *op)
{
    size_t place = place_of(op);
    while (entries[place].op && entries[place].op != op)
        place = (place + 1) % ENTRIES;
    return &entries[place];
}

/* ---- the call as rows ------------------------------------------------------------------------ */

typedef struct pointwise {
    tsi_walk walk; /* operand 0 is the result, then the inputs */
    const tsi_kernel_io *io;
    const double *number;
    const tsi_scalar_fns *scalar; /* without a row function */
    tsi_row_fn fn;
    ts_dtype compute, written; /* what rows read; what they write */
    ts_dtype dtype[TSI_WALK_MAX];
    bool direct; /* every operand is used where it lies */
    bool own[TSI_WALK_MAX];
    int64_t pieces, piece; /* of a row: how many, how long */
} pointwise;

/* Elementwise through the reference's function: tiles of double or int64. */
static void scalar_tile(const pointwise *p, const tsi_row *row)
{
    int32_t inputs = p->walk.count - 1;
    if (p->compute == TS_DTYPE_F64) {
        double x[3];
        for (int64_t i = 0; i < row->count; i++) {
            for (int32_t k = 0; k < inputs; k++)
                x[k] = ((const double *)row->in[k])[i * row->step[k]];
            ((double *)row->out)[i] = p->scalar->real(x, p->io->attributes);
        }
    } else {
        int64_t x[3];
        for (int64_t i = 0; i < row->count; i++) {
            for (int32_t k = 0; k < inputs; k++)
                x[k] = ((const int64_t *)row->in[k])[i * row->step[k]];
            ((int64_t *)row->out)[i] = p->scalar->integer(x, p->io->attributes);
        }
    }
}

static void run_row(const pointwise *p, const tsi_row *row)
{
    if (p->fn)
        p->fn(row);
    else
        scalar_tile(p, row);
}

/* Part of a row through buffers. */
static void buffered_row(const pointwise *p, char *const *at, int64_t count)
{
    uint64_t buffer[TSI_WALK_MAX][TILE];
    const tsi_walk *walk = &p->walk;
    int32_t last = walk->ndim - 1;
    tsi_row row = { .number = p->number };
    for (int64_t begin = 0; begin < count; begin += TILE) {
        row.count = count - begin < TILE ? count - begin : TILE;
        for (int32_t k = 1; k < walk->count; k++) {
            const char *from = at[k] + begin * walk->stride[k][last];
            bool single = walk->stride[k][last] == 0;
            row.in[k - 1] = p->own[k] ? (const void *)from : buffer[k];
            row.step[k - 1] = !single;
            if (!p->own[k])
                tsi_gather(p->compute, buffer[k], p->dtype[k], from, walk->stride[k][last],
                           single ? 1 : row.count);
        }
        bool none = walk->count > 1;
        for (int32_t k = 1; k < walk->count; k++)
            none = none && row.step[k - 1] == 0;
        char *to = at[0] + begin * walk->stride[0][last];
        row.out = p->own[0] ? (void *)to : buffer[0];
        if (none && walk->count > 1) { /* a row of one value: rows need one moving input */
            int64_t whole = row.count;
            row.count = 1;
            for (int64_t i = 0; i < whole; i++) {
                row.out = (char *)(p->own[0] ? (void *)to : buffer[0]) +
                          (size_t)i * ts_dtype_size(p->written);
                run_row(p, &row);
            }
            row.count = whole;
        } else {
            run_row(p, &row);
        }
        if (!p->own[0])
            tsi_scatter(p->dtype[0], to, walk->stride[0][last], p->written, buffer[0], row.count);
    }
}

/* What rows whose operands are used where they lie have in common. */
static void direct_begin(const pointwise *p, tsi_row *row)
{
    const tsi_walk *walk = &p->walk;
    *row = (tsi_row){ .number = p->number };
    for (int32_t k = 1; k < walk->count; k++)
        row->step[k - 1] = walk->stride[k][walk->ndim - 1] != 0;
}

/* Field by field: who reads a copy of what was just written waits for all stores before it. */
static void direct_place(const pointwise *p, tsi_row *row, char *const *at, int64_t count)
{
    row->out = at[0];
    row->count = count;
    for (int32_t k = 1; k < p->walk.count; k++)
        row->in[k - 1] = at[k];
}

/* Pieces begin .. end-1: a piece is a part of a row; those of one row are run together. */
static void run_pieces(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const pointwise *p = context;
    const tsi_walk *walk = &p->walk;
    int32_t last = walk->ndim - 1;
    char *at[TSI_WALK_MAX] = { NULL };
    tsi_walker walker;
    tsi_row row;
    tsi_walker_start(&walker, walk, begin / p->pieces);
    if (p->direct) direct_begin(p, &row);
    int64_t part = begin % p->pieces;
    for (int64_t i = begin; i < end;) {
        int64_t parts = tsi_min_i64(p->pieces - part, end - i), from = part * p->piece;
        int64_t count = tsi_min_i64(walk->length - from, parts * p->piece);
        for (int32_t k = 0; k < walk->count; k++)
            at[k] = walker.at[k] + from * walk->stride[k][last];
        if (p->direct) {
            direct_place(p, &row, at, count);
            run_row(p, &row);
        } else {
            buffered_row(p, at, count);
        }
        part = 0;
        i += parts;
        if (i < end) tsi_walker_next(&walker);
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The rows for what the operator computes in; false: there are none, not even scalar ones. */
static bool choose(pointwise *p, const row_entry *entry)
{
    const tsi_pointwise_family *family = p->io->op->family;
    ts_dtype dtype = TS_DTYPE_BOOL;
    for (int32_t k = 1; k < p->walk.count; k++)
        dtype = tsi_dtype_promote(dtype, p->dtype[k]);
    dtype = tsi_family_compute(p->io->op, dtype, p->io->attributes);
    tsi_category category = tsi_dtype_category(dtype);
    if (category == TSI_CATEGORY_COMPLEX) return false;
    if (category <= TSI_CATEGORY_INT) {
        p->compute = TS_DTYPE_I64;
        p->fn = entry->i64;
    } else if (dtype == TS_DTYPE_BF16 && entry->bf16) {
        p->compute = TS_DTYPE_BF16;
        p->fn = entry->bf16;
    } else if (dtype != TS_DTYPE_F64 && entry->f32) {
        p->compute = TS_DTYPE_F32;
        p->fn = entry->f32;
    } else {
        p->compute = TS_DTYPE_F64;
        p->fn = dtype == TS_DTYPE_F64 ? entry->f64 : NULL;
    }
    p->written = p->fn && entry->truth ? TS_DTYPE_BOOL : p->compute;
    if (p->fn) return true;
    p->scalar = &family->fns;
    return p->compute == TS_DTYPE_F64 ? family->fns.real != NULL : family->fns.integer != NULL;
}

/* Which operands can be used where they lie: those of the right dtype, contiguous along the row. A
 * row needs an input that moves. */
static void settle(pointwise *p)
{
    tsi_walk *walk = &p->walk;
    int32_t last = walk->ndim - 1;
    bool moves = walk->count == 1 || walk->length == 1;
    p->direct = true;
    for (int32_t k = 0; k < walk->count; k++) {
        ts_dtype wanted = k == 0 ? p->written : p->compute;
        int64_t stride = walk->stride[k][last];
        bool plain = stride == (int64_t)ts_dtype_size(wanted) ||
                     (stride == 0 && (k > 0 || walk->length == 1));
        p->own[k] = plain && p->dtype[k] == wanted;
        p->direct = p->direct && p->own[k];
        if (k > 0 && stride != 0) moves = true;
    }
    p->direct = p->direct && moves;
    p->pieces = (walk->length - 1) / PIECE + 1;
    p->piece = walk->length < PIECE ? walk->length : PIECE;
}

/* Small, dense, all of one shape and dtype: the common case of tiny tensors, without a walk. */
static inline bool tiny_row(const tsi_kernel_io *io, const row_entry *entry, tsi_row *row)
{
    const tsi_block *out = &io->out[0].block;
    if (out->dtype != TS_DTYPE_F32 || !entry->f32) return false;
    *row = (tsi_row){ .out = out->data, .number = entry->numbers ? io->attributes : NULL };
    row->count = tsi_block_count(out);
    if (row->count > TINY || !tsi_block_is_dense(out)) return false;
    for (int32_t i = 0; i < io->input_count; i++) {
        const tsi_block *in = &io->in[i].block;
        if (in->dtype != TS_DTYPE_F32 || in->ndim != out->ndim || !tsi_block_is_dense(in))
            return false;
        for (int32_t d = 0; d < out->ndim; d++)
            if (in->extent[d] != out->extent[d]) return false;
        row->in[i] = in->data;
        row->step[i] = 1;
    }
    return true;
}

/* The call as rows, none if it is empty; false: there is no way to compute them. */
static bool prepare(pointwise *p, const row_entry *entry)
{
    const tsi_kernel_io *io = p->io;
    if (io->input_count > 3) return false;
    p->number = entry->numbers ? io->attributes : NULL;
    const tsi_block *block[TSI_WALK_MAX] = { &io->out[0].block };
    for (int32_t i = 0; i < io->input_count; i++) {
        block[i + 1] = &io->in[i].block;
        if (block[i + 1]->dtype == TS_DTYPE_NONE) return false;
    }
    for (int32_t k = 0; k <= io->input_count; k++)
        p->dtype[k] = (ts_dtype)block[k]->dtype;
    p->walk.count = io->input_count + 1;
    if (!choose(p, entry)) return false;
    if (tsi_block_count(block[0]) == 0) return true;
    tsi_walk_make(&p->walk, block, p->walk.count, 0);
    settle(p);
    return true;
}

ts_status tsi_cpu_pointwise(const tsi_kernel_io *io)
{
    const row_entry *entry = entry_of(io->op);
    tsi_row row;
    if (tiny_row(io, entry, &row)) {
        entry->f32(&row);
        return TS_OK;
    }
    pointwise p = { .io = io };
    if (!prepare(&p, entry)) return (ts_status)TSI_KERNEL_DECLINED;
    if (p.pieces == 0) return TS_OK; /* empty */
    int64_t grain = GRAIN / p.piece;
    tsi_parallel_for(io->rank, p.walk.rows * p.pieces, grain > 0 ? grain : 1, run_pieces, &p);
    return TS_OK;
}

tsi_row_fn tsi_pointwise_row(const tsi_kernel_io *io, tsi_row *row)
{
    const row_entry *entry = entry_of(io->op);
    if (tiny_row(io, entry, row)) return entry->f32;
    pointwise p = { .io = io };
    if (!prepare(&p, entry) || !p.direct || !p.fn || p.walk.rows * p.pieces != 1) return NULL;
    direct_begin(&p, row);
    direct_place(&p, row, p.walk.data, p.walk.length);
    return p.fn;
}

/* ---- start-up -------------------------------------------------------------------------------- */

void tsi_pointwise_start(void)
{
    const tsi_row_set *set = tsi_rows();
    for (int32_t id = 0; id < TSI_OP_ID_COUNT; id++) {
        const tsi_op_desc *op = tsi_op_at(id);
        if (op->reference != tsi_family_reference) continue;
        const tsi_pointwise_family *family = op->family;
        *entry_of(op) = (row_entry){ .op = op,
                                     .f32 = set->f32[id],
                                     .bf16 = set->bf16[id],
                                     .f64 = set->f64[id],
                                     .i64 = set->i64[id],
                                     .truth = family->result == TSI_RESULT_BOOL,
                                     .numbers = op->attribute_bytes >= sizeof(double) };
    }
}
