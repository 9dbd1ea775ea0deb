/* SPDX-License-Identifier: Apache-2.0 */
/* scatter.c - gather, its gradient, scatter and scatter_add: an index for every element, on
 * all threads.
 *
 *   along the last dim     rows: a piece is some rows of the index
 *   along another dim      columns: a piece is a strip of columns of all rows, two cache lines
 *                          wide, so that what the strip points into stays in the cache
 *   few pieces             parts of the places: every piece looks at all indices and does its own
 *
 * INV: what is written to one place is written by one piece, in row-major order of the index. So
 * the number of threads does not change a bit. */
#include "backend/cpu/data.h"
#include "op/index/index.h"

enum { GRAIN = 8192, TILE = 512, STRIP = 128 };

typedef enum act { READ, PUT, ADD } act;

typedef struct along {
    const tsi_kernel_io *io;
    const tsi_operand *index, *far,
        *near; /* far: what the index points into; near: like the index */
    int32_t dim, last;
    act what;
    ts_dtype dtype;
    size_t size;
    tsi_offsets to_far, to_near;          /* in elements */
    int64_t rows, columns, strip;         /* of the index: all dims but the last, and the last */
    int64_t far_step, first, held;        /* bytes; local index = index - first, if below held */
    int64_t far_column, near_column;      /* bytes from column to column, if plain */
    bool one_span, plain;                 /* plain: all three are whole */
    _Alignas(16) unsigned char value[16]; /* PUT without a source */
} along;

/* One row of the index, or a part of it. */
typedef struct row {
    char *far; /* of the row, without what the columns add */
    char *near;
    const int64_t *index;            /* global */
    const int64_t *far_at, *near_at; /* per column, in elements; far_at NULL: the last dim is dim */
    int64_t column, count;           /* of the row: the first, and how many */
    int64_t low, high;               /* local indices that are done */
} row;

/* ---- rows ------------------------------------------------------------------------------------ */

static int64_t local_of(const along *a, int64_t index)
{
    if (TSI_LIKELY(a->one_span)) {
        int64_t local = index - a->first;
        return (uint64_t)local < (uint64_t)a->held ? local : -1;
    }
    return tsi_operand_local(a->far, a->dim, index);
}

/* The element that column j points to; NULL: not here. */
static TSI_INLINE char *far_of(const along *a, const row *r, int64_t j, int64_t size)
{
    int64_t local = local_of(a, r->index[j]), more = r->far_at ? r->far_at[j] : 0;
    if (TSI_UNLIKELY(local < r->low || local >= r->high || more == TSI_ELSEWHERE)) return NULL;
    return r->far + local * a->far_step + more * size;
}

static TSI_INLINE void read_row(const along *a, const row *r, size_t size)
{
    for (int64_t j = 0; j < r->count; j++) {
        if (TSI_UNLIKELY(r->near_at[j] == TSI_ELSEWHERE)) continue;
        char *to = r->near + r->near_at[j] * (int64_t)size;
        const char *from = r->far ? far_of(a, r, j, (int64_t)size) : NULL;
        if (TSI_LIKELY(from != NULL))
            tsi_copy_one(to, from, size);
        else
            memset(to, 0, size);
    }
}

static TSI_INLINE void put_row(const along *a, const row *r, size_t size)
{
    for (int64_t j = 0; j < r->count; j++) {
        if (TSI_UNLIKELY(r->near && r->near_at[j] == TSI_ELSEWHERE)) continue;
        char *to = far_of(a, r, j, (int64_t)size);
        const void *from = a->value;
        if (r->near) from = r->near + r->near_at[j] * (int64_t)size;
        if (TSI_LIKELY(to != NULL)) tsi_copy_one(to, from, size);
    }
}

static TSI_INLINE void add_row(const along *a, const row *r, ts_dtype dtype, int64_t size)
{
    for (int64_t j = 0; j < r->count; j++) {
        if (TSI_UNLIKELY(r->near_at[j] == TSI_ELSEWHERE)) continue;
        char *to = far_of(a, r, j, size);
        if (TSI_LIKELY(to != NULL)) tsi_add_one(dtype, to, r->near + r->near_at[j] * size);
    }
}

/* The same where all three are whole: columns have strides. Everything is passed by value, so that
 * the compiler knows that no store changes it. */
static TSI_INLINE void plain_read(const int64_t *index, int64_t n, char *near, int64_t near_step,
                                  const char *far, int64_t far_step, int64_t step, size_t size)
{
    for (int64_t j = 0; j < n; j++)
        tsi_copy_one(near + j * near_step, far + j * far_step + index[j] * step, size);
}

static TSI_INLINE void plain_put(const int64_t *index, int64_t n, const char *near,
                                 int64_t near_step, char *far, int64_t far_step, int64_t step,
                                 size_t size)
{
    for (int64_t j = 0; j < n; j++)
        tsi_copy_one(far + j * far_step + index[j] * step, near + j * near_step, size);
}

static TSI_INLINE void plain_add(const int64_t *index, int64_t n, const char *near,
                                 int64_t near_step, char *far, int64_t far_step, int64_t step,
                                 ts_dtype dtype)
{
    for (int64_t j = 0; j < n; j++)
        tsi_add_one(dtype, far + j * far_step + index[j] * step, near + j * near_step);
}

static TSI_INLINE void move_row(const along *a, const row *r, size_t size)
{
    if (a->what == READ && a->plain)
        plain_read(r->index, r->count, r->near + r->column * a->near_column, a->near_column,
                   r->far + r->column * a->far_column, a->far_column, a->far_step, size);
    else if (a->what == READ)
        read_row(a, r, size);
    else if (a->plain && r->low == 0 && r->high == INT64_MAX)
        plain_put(r->index, r->count, r->near + r->column * a->near_column, a->near_column,
                  r->far + r->column * a->far_column, a->far_column, a->far_step, size);
    else
        put_row(a, r, size);
}

static TSI_INLINE void sum_row(const along *a, const row *r, ts_dtype dtype)
{
    if (a->plain && r->low == 0 && r->high == INT64_MAX)
        plain_add(r->index, r->count, r->near + r->column * a->near_column, a->near_column,
                  r->far + r->column * a->far_column, a->far_column, a->far_step, dtype);
    else
        add_row(a, r, dtype, (int64_t)a->size);
}

static void do_row(const along *a, const row *r)
{
    if (a->what == ADD && a->dtype == TS_DTYPE_F32)
        sum_row(a, r, TS_DTYPE_F32);
    else if (a->what == ADD && a->dtype == TS_DTYPE_BF16)
        sum_row(a, r, TS_DTYPE_BF16);
    else if (a->what == ADD)
        sum_row(a, r, a->dtype);
    else if (a->size == 1)
        move_row(a, r, 1);
    else if (a->size == 2)
        move_row(a, r, 2);
    else if (a->size == 4)
        move_row(a, r, 4);
    else if (a->size == 8)
        move_row(a, r, 8);
    else
        move_row(a, r, 16);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Where row `number` of the index begins in all three; false: nothing of it is here. */
static bool start_row(const along *a, int64_t number, row *r, const char **index)
{
    const tsi_block *block = &a->index->block;
    int64_t far = 0, near = 0, at = 0;
    for (int32_t d = a->last - 1; d >= 0; d--) {
        int64_t position = number % block->extent[d];
        number /= block->extent[d];
        at += position * block->stride[d];
        int64_t more = a->to_far.at[d][position];
        far = far == TSI_ELSEWHERE || more == TSI_ELSEWHERE ? TSI_ELSEWHERE : far + more;
        more = a->near ? a->to_near.at[d][position] : 0;
        if (more == TSI_ELSEWHERE) return false;
        near += more;
    }
    *index = tsi_block_at(block, at);
    r->far = far == TSI_ELSEWHERE ? NULL : tsi_block_at(&a->far->block, far);
    r->near = a->near ? tsi_block_at(&a->near->block, near) : NULL;
    return r->far || a->what == READ;
}

/* Columns first .. end-1 of one row, places low .. high-1. */
static void run_row(const along *a, int64_t number, int64_t first, int64_t end, int64_t low,
                    int64_t high)
{
    row r = { .low = low, .high = high };
    const char *index;
    int64_t buffer[TILE];
    if (!start_row(a, number, &r, &index)) return;
    ts_dtype dtype = (ts_dtype)a->index->block.dtype;
    int64_t step = a->last >= 0 ? a->index->block.stride[a->last] : 1;
    step *= (int64_t)ts_dtype_size(dtype);
    for (int64_t c = first; c < end; c += r.count) {
        r.count = end - c < TILE ? end - c : TILE;
        r.column = c;
        r.index = (const int64_t *)(const void *)(index + c * step);
        if (dtype != TS_DTYPE_I64 || step != (int64_t)sizeof *r.index) {
            tsi_gather(TS_DTYPE_I64, buffer, dtype, index + c * step, step, r.count);
            r.index = buffer;
        }
        r.far_at = a->dim == a->last ? NULL : a->to_far.at[a->last] + c;
        if (a->near) r.near_at = a->to_near.at[a->last] + c;
        do_row(a, &r);
    }
}

static void run_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const along *a = context;
    for (int64_t r = begin; r < end; r++)
        run_row(a, r, 0, a->columns, 0, INT64_MAX);
}

/* Pieces are parts of one row after another; for READ. */
static void run_parts(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const along *a = context;
    int64_t parts = (a->columns - 1) / TILE + 1;
    for (int64_t p = begin; p < end; p++) {
        int64_t c = p % parts * TILE;
        run_row(a, p / parts, c, c + TILE < a->columns ? c + TILE : a->columns, 0, INT64_MAX);
    }
}

static void run_strips(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const along *a = context;
    for (int64_t s = begin; s < end; s++) {
        int64_t c = s * a->strip, stop = c + a->strip < a->columns ? c + a->strip : a->columns;
        for (int64_t r = 0; r < a->rows; r++)
            run_row(a, r, c, stop, 0, INT64_MAX);
    }
}

static void run_places(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const along *a = context;
    for (int64_t r = 0; r < a->rows; r++)
        run_row(a, r, 0, a->columns, begin, end);
}

static void run_all(along *a)
{
    ts_rank *rank = a->io->rank;
    int64_t count = a->rows * a->columns, threads = tsi_parallel_threads(rank);
    int64_t strips = (a->columns - 1) / a->strip + 1;
    if (a->dim != a->last && strips >= threads)
        tsi_parallel_for(rank, strips, GRAIN / (a->rows * a->strip) + 1, run_strips, a);
    else if (a->what == READ)
        tsi_parallel_for(rank, a->rows * ((a->columns - 1) / TILE + 1),
                         GRAIN / (a->columns < TILE ? a->columns : TILE) + 1, run_parts, a);
    else if (a->dim == a->last && a->rows >= threads)
        tsi_parallel_for(rank, a->rows, GRAIN / a->columns + 1, run_rows, a);
    else
        tsi_parallel_for(rank, a->held, count < GRAIN ? a->held : a->held / threads + 1, run_places,
                         a);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static ts_status along_run(along *a)
{
    const tsi_block *index = &a->index->block;
    a->last = index->ndim - 1;
    a->dtype = (ts_dtype)a->far->block.dtype;
    a->size = ts_dtype_size(a->dtype);
    if (a->last < 0 || tsi_block_count(&a->far->block) == 0 || tsi_block_count(index) == 0 ||
        !tsi_indices_fit(a->io, index, 0, a->far->global->shape.extent[a->dim]))
        return (ts_status)TSI_KERNEL_DECLINED;
    a->columns = index->extent[a->last];
    a->rows = tsi_block_count(index) / a->columns;
    a->strip = STRIP / (int64_t)a->size;
    a->far_step = a->far->block.stride[a->dim] * (int64_t)a->size;
    a->one_span = tsi_one_span(a->far, a->dim, &a->first, &a->held);
    a->plain = a->near && !a->far->region && !a->near->region && !a->index->region;
    a->far_column = a->dim == a->last ? 0 : a->far->block.stride[a->last] * (int64_t)a->size;
    a->near_column = a->near ? a->near->block.stride[a->last] * (int64_t)a->size : 0;
    ts_status status = TS_OK;
    if (a->what != READ && !a->io->in_place)
        status = a->io->op == &tsi_op_gather_backward
                     ? tsi_zero_all(a->io, &a->io->out[0].block)
                     : tsi_copy_all(a->io, &a->io->out[0].block, &a->io->in[0].block);
    if (status == TS_OK) status = tsi_offsets_make(a->index, a->far, 1u << a->dim, &a->to_far);
    if (status == TS_OK && a->near) status = tsi_offsets_make(a->index, a->near, 0, &a->to_near);
    if (status == TS_OK) run_all(a);
    tsi_offsets_free(&a->to_far);
    tsi_offsets_free(&a->to_near);
    return status;
}

ts_status tsi_cpu_gather(const tsi_kernel_io *io)
{
    along a = { .io = io, .index = &io->in[1], .far = &io->in[0], .near = &io->out[0] };
    a.dim = (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim;
    return along_run(&a);
}

ts_status tsi_cpu_gather_backward(const tsi_kernel_io *io)
{
    along a = { .io = io, .index = &io->in[1], .far = &io->out[0], .near = &io->in[0] };
    a.dim = (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim;
    a.what = ADD;
    return along_run(&a);
}

ts_status tsi_cpu_scatter(const tsi_kernel_io *io)
{
    along a = { .io = io, .index = &io->in[1], .far = &io->out[0] };
    a.dim = (int32_t)((const tsi_scatter_attributes *)io->attributes)->dim;
    a.what = io->op == &tsi_op_scatter_add ? ADD : PUT;
    if (io->input_count == 3) a.near = &io->in[2];
    ts_dtype dtype = (ts_dtype)io->out[0].block.dtype;
    if (a.what == PUT)
        tsi_store_number(dtype, a.value, ((const tsi_scatter_attributes *)io->attributes)->value);
    return along_run(&a);
}
