/* SPDX-License-Identifier: Apache-2.0 */
/* index_select.c - parts of a tensor by lists of indices, on all threads: index_select and its
 * gradient, index_add, index_get, index_put.
 *
 *   positions   of the index tensors, broadcast: where each lies on both sides, listed first, so
 *               that a wrong index is found before anything is written
 *   rest        the dims that are not indexed, as rows (cpu.h)
 *
 * INV: what is written to one place is written by one piece, in the order of the positions: pieces
 * are parts of the rest, or of the places. So the number of threads does not change a bit. */
#include "backend/cpu/data.h"
#include "device/cpu.h"
#include "op/index/index.h"

enum { GRAIN = 16384, COLUMNS = 64, CHECK = 512, REST_BYTES = 512, ABREAST = 8, LINES = 256 };

/* ---- checks ---------------------------------------------------------------------------------- */

typedef struct checking {
    tsi_walk walk;
    ts_dtype dtype;
    int64_t low, high, pieces; /* pieces: of each row */
    _Atomic int bad;
} checking;

static void check_piece(checking *c, const char *at, int64_t count)
{
    int64_t buffer[CHECK], stride = c->walk.stride[0][c->walk.ndim - 1];
    const int64_t *index = (const int64_t *)(const void *)at;
    if (c->dtype != TS_DTYPE_I64 || stride != (int64_t)sizeof *index) {
        tsi_gather(TS_DTYPE_I64, buffer, c->dtype, at, stride, count);
        index = buffer;
    }
    uint64_t low = (uint64_t)c->low, last = (uint64_t)c->high - 1, signs = 0;
    for (int64_t i = 0; i < count; i++) /* one of the two is negative where one is out of range */
        signs |= ((uint64_t)index[i] - low) | (last - (uint64_t)index[i]);
    if (signs >> 63) c->bad = 1;
}

static void check_range(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    checking *c = context;
    tsi_walker walker;
    tsi_walker_start(&walker, &c->walk, begin / c->pieces);
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i % c->pieces * CHECK, left = c->walk.length - at;
        check_piece(c, walker.at[0] + at * c->walk.stride[0][c->walk.ndim - 1],
                    left < CHECK ? left : CHECK);
        if ((i + 1) % c->pieces == 0) tsi_walker_next(&walker);
    }
}

bool tsi_indices_fit(const tsi_kernel_io *io, const tsi_block *index, int64_t low, int64_t high)
{
    checking c = { .dtype = (ts_dtype)index->dtype, .low = low, .high = high };
    if (tsi_block_count(index) == 0) return true;
    tsi_walk_make(&c.walk, (const tsi_block *[]){ index }, 1, 0);
    c.pieces = (c.walk.length - 1) / CHECK + 1;
    tsi_parallel_for(io->rank, c.walk.rows * c.pieces, GRAIN / CHECK, check_range, &c);
    return !c.bad;
}

/* ---- positions ------------------------------------------------------------------------------- */

typedef struct picks {
    const tsi_kernel_io *io;
    const tsi_operand *far;                         /* what the indices point into */
    int32_t first, indices;                         /* the inputs that are indices */
    int32_t lines;                                  /* dims of the positions */
    bool writes, adds, wraps, inside;               /* inside: positions run faster than the rest */
    int32_t dim[TS_NDIM_MAX];                       /* which one an index points into */
    int64_t extent[TS_NDIM_MAX];                    /* of the positions */
    int64_t near_stride[TS_NDIM_MAX];               /* bytes */
    int64_t index_stride[TS_NDIM_MAX][TS_NDIM_MAX]; /* elements */
    int64_t count, *near, *far_at; /* per position: bytes from the beginnings of both sides */
    tsi_walk rest;                 /* operand 0: what is written */
    ts_dtype dtype;
    int64_t size, span;   /* of an element; of the places written to, in bytes */
    tsi_row_fn row_add;   /* f32, bf16 */
    tsi_fold_rows_fn add; /* others */
    _Atomic int bad;
} picks;

/* Where one index points, in bytes. */
static int64_t far_of(picks *p, int32_t i, int64_t at)
{
    const tsi_block *index = &p->io->in[p->first + i].block;
    const void *element = tsi_block_at(index, at);
    int64_t v, extent = p->far->global->shape.extent[p->dim[i]];
    if (index->dtype == TS_DTYPE_I64)
        memcpy(&v, element, sizeof v);
    else
        v = tsi_load_int((ts_dtype)index->dtype, element);
    if (v < 0 && p->wraps) v += extent;
    if (v < 0 || v >= extent) {
        p->bad = 1;
        return TSI_ELSEWHERE;
    }
    int64_t local = tsi_operand_local(p->far, p->dim[i], v);
    return local < 0 ? TSI_ELSEWHERE : local * p->far->block.stride[p->dim[i]] * p->size;
}

static void list_positions(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    picks *p = context;
    int64_t line[TS_NDIM_MAX], rest = begin;
    for (int32_t j = p->lines - 1; j >= 0; j--) {
        line[j] = rest % p->extent[j];
        rest /= p->extent[j];
    }
    for (int64_t k = begin; k < end; k++) {
        int64_t near = 0, far = 0;
        for (int32_t j = 0; j < p->lines; j++)
            near += line[j] * p->near_stride[j];
        for (int32_t i = 0; i < p->indices && far != TSI_ELSEWHERE; i++) {
            int64_t at = 0, one;
            for (int32_t j = 0; j < p->lines; j++)
                at += line[j] * p->index_stride[i][j];
            one = far_of(p, i, at);
            far = one == TSI_ELSEWHERE ? one : far + one;
        }
        p->near[k] = near;
        p->far_at[k] = far;
        for (int32_t j = p->lines - 1; j >= 0 && ++line[j] == p->extent[j]; j--)
            line[j] = 0;
    }
}

/* ---- rows and elements ----------------------------------------------------------------------- */

static TSI_INLINE void copy_strided(char *to, int64_t ts, const char *from, int64_t fs, int64_t n,
                                    size_t size)
{
    for (int64_t i = 0; i < n; i++)
        tsi_copy_one(to + i * ts, from + i * fs, size);
}

static TSI_INLINE void add_strided(ts_dtype dtype, char *to, int64_t ts, const char *from,
                                   int64_t fs, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        tsi_add_one(dtype, to + i * ts, from + i * fs);
}

/* `n` elements of a row: copied, or added. */
static void put_row(const picks *p, char *to, const char *from, int64_t n)
{
    int64_t ts = p->rest.stride[0][p->rest.ndim - 1], fs = p->rest.stride[1][p->rest.ndim - 1];
    bool plain = ts == p->size && fs == p->size;
    if (p->adds && plain && p->row_add)
        p->row_add(&(tsi_row){ .out = to,
                               .in = { to, from },
                               .step = { 1, 1 },
                               .number = (const double[]){ 1.0 },
                               .count = n });
    else if (p->adds && plain)
        p->add(to, (const void *const[]){ to, from }, 2, n, 1);
    else if (p->adds)
        add_strided(p->dtype, to, ts, from, fs, n);
    else if (plain)
        memcpy(to, from, (size_t)(n * p->size));
    else if (p->size == 1)
        copy_strided(to, ts, from, fs, n, 1);
    else if (p->size == 2)
        copy_strided(to, ts, from, fs, n, 2);
    else if (p->size == 4)
        copy_strided(to, ts, from, fs, n, 4);
    else if (p->size == 8)
        copy_strided(to, ts, from, fs, n, 8);
    else
        copy_strided(to, ts, from, fs, n, 16);
}

static void zero_row(const picks *p, char *to, int64_t n)
{
    int64_t ts = p->rest.stride[0][p->rest.ndim - 1];
    for (int64_t i = 0; i < n; i++)
        memset(to + i * ts, 0, (size_t)p->size);
}

/* Elements of positions begin .. end-1, for one place of the rest. */
static TSI_INLINE void read_each(const picks *p, char *to, const char *from, int64_t begin,
                                 int64_t end, size_t size)
{
    for (int64_t k = begin; k < end; k++) {
        if (TSI_LIKELY(p->far_at[k] != TSI_ELSEWHERE))
            tsi_copy_one(to + p->near[k], from + p->far_at[k], size);
        else
            memset(to + p->near[k], 0, size);
    }
}

static TSI_INLINE void write_each(const picks *p, char *to, const char *from, int64_t low,
                                  int64_t high, size_t size)
{
    for (int64_t k = 0; k < p->count; k++)
        if (p->far_at[k] >= low && p->far_at[k] < high)
            tsi_copy_one(to + p->far_at[k], from + p->near[k], size);
}

static TSI_INLINE void add_each(const picks *p, char *to, const char *from, int64_t low,
                                int64_t high, ts_dtype dtype)
{
    for (int64_t k = 0; k < p->count; k++)
        if (p->far_at[k] >= low && p->far_at[k] < high)
            tsi_add_one(dtype, to + p->far_at[k], from + p->near[k]);
}

static void read_some(const picks *p, char *to, const char *from, int64_t begin, int64_t end)
{
    if (p->size == 1)
        read_each(p, to, from, begin, end, 1);
    else if (p->size == 2)
        read_each(p, to, from, begin, end, 2);
    else if (p->size == 4)
        read_each(p, to, from, begin, end, 4);
    else if (p->size == 8)
        read_each(p, to, from, begin, end, 8);
    else
        read_each(p, to, from, begin, end, 16);
}

/* All positions whose place is in [low, high), one element each. */
static void write_some(const picks *p, char *to, const char *from, int64_t low, int64_t high)
{
    if (p->adds && p->dtype == TS_DTYPE_F32)
        add_each(p, to, from, low, high, TS_DTYPE_F32);
    else if (p->adds)
        add_each(p, to, from, low, high, p->dtype);
    else if (p->size == 4)
        write_each(p, to, from, low, high, 4);
    else if (p->size == 8)
        write_each(p, to, from, low, high, 8);
    else
        write_each(p, to, from, low, high, (size_t)p->size);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Contiguous parts of ABREAST positions at once: the start of a part, which hardware cannot
 * foresee, is then waited for once instead of ABREAST times. */
static void read_abreast(const picks *p, char *to, const char *from, int64_t k)
{
    int64_t bytes = p->rest.length * p->size;
    for (int64_t at = 0; at < bytes; at += LINES)
        for (int64_t i = k; i < k + ABREAST; i++) {
            int64_t n = bytes - at < LINES ? bytes - at : LINES;
            memcpy(to + p->near[i] + at, from + p->far_at[i] + at, (size_t)n);
        }
}

static bool can_abreast(const picks *p, int64_t k, int64_t end)
{
    bool here = k + ABREAST <= end;
    for (int64_t i = k; here && i < k + ABREAST; i++)
        here = p->far_at[i] != TSI_ELSEWHERE;
    return here;
}

/* Positions whose rest is one contiguous part. */
static void read_parts(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const picks *p = context;
    char *to = p->rest.data[0];
    const char *from = p->rest.data[1];
    for (int64_t k = begin; k < end;) {
        if (p->rest.length * p->size >= 2 * LINES && can_abreast(p, k, end)) {
            read_abreast(p, to, from, k);
            k += ABREAST;
            continue;
        }
        if (p->far_at[k] == TSI_ELSEWHERE)
            zero_row(p, to + p->near[k], p->rest.length);
        else
            put_row(p, to + p->near[k], from + p->far_at[k], p->rest.length);
        k++;
    }
}

/* Pieces are positions and rows of the rest, the rows inside. */
static void read_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const picks *p = context;
    tsi_walker walker;
    int64_t rows = p->rest.rows, length = p->rest.length;
    tsi_walker_start(&walker, &p->rest, begin % rows);
    for (int64_t i = begin; i < end; i++) {
        int64_t k = i / rows;
        if (p->far_at[k] == TSI_ELSEWHERE)
            zero_row(p, walker.at[0] + p->near[k], length);
        else
            put_row(p, walker.at[0] + p->near[k], walker.at[1] + p->far_at[k], length);
        tsi_walker_next(&walker);
    }
}

/* Pieces are elements of the rest and positions, the positions inside. */
static void read_elements(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const picks *p = context;
    tsi_walker walker;
    int64_t length = p->rest.length, element = begin / p->count, at = begin % p->count;
    const int64_t to = p->rest.stride[0][p->rest.ndim - 1],
                  from = p->rest.stride[1][p->rest.ndim - 1];
    tsi_walker_start(&walker, &p->rest, element / length);
    for (int64_t run; begin < end; begin += run, at = 0) {
        int64_t j = element % length;
        run = p->count - at < end - begin ? p->count - at : end - begin;
        read_some(p, walker.at[0] + j * to, walker.at[1] + j * from, at, at + run);
        if (++element % length == 0) tsi_walker_next(&walker);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Below every place, those of negative strides too. */
#define ANYWHERE (TSI_ELSEWHERE + 1)

/* Blocks of columns of the only row of the rest. */
static void write_columns(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const picks *p = context;
    int64_t first = begin * COLUMNS, last = end * COLUMNS;
    int64_t n = (last < p->rest.length ? last : p->rest.length) - first;
    char *to = p->rest.data[0] + first * p->rest.stride[0][p->rest.ndim - 1];
    const char *from = p->rest.data[1] + first * p->rest.stride[1][p->rest.ndim - 1];
    for (int64_t k = 0; k < p->count; k++)
        if (p->far_at[k] != TSI_ELSEWHERE) put_row(p, to + p->far_at[k], from + p->near[k], n);
}

static void write_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const picks *p = context;
    const int64_t to = p->rest.stride[0][p->rest.ndim - 1],
                  from = p->rest.stride[1][p->rest.ndim - 1];
    tsi_walker walker;
    tsi_walker_start(&walker, &p->rest, begin);
    for (int64_t r = begin; r < end; r++, tsi_walker_next(&walker)) {
        for (int64_t j = 0; p->inside && j < p->rest.length; j++)
            write_some(p, walker.at[0] + j * to, walker.at[1] + j * from, ANYWHERE, INT64_MAX);
        for (int64_t k = 0; !p->inside && k < p->count; k++)
            if (p->far_at[k] != TSI_ELSEWHERE)
                put_row(p, walker.at[0] + p->far_at[k], walker.at[1] + p->near[k], p->rest.length);
    }
}

/* Pieces are parts of the places: all positions are looked at, those in the part are done. */
static void write_places(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const picks *p = context;
    tsi_walker walker;
    tsi_walker_start(&walker, &p->rest, 0);
    const int64_t to = p->rest.stride[0][p->rest.ndim - 1],
                  from = p->rest.stride[1][p->rest.ndim - 1];
    for (int64_t r = 0; r < p->rest.rows; r++, tsi_walker_next(&walker))
        for (int64_t j = 0; j < p->rest.length; j++)
            write_some(p, walker.at[0] + j * to, walker.at[1] + j * from, begin, end);
}

static void write_all(picks *p)
{
    int64_t rows = p->rest.rows, length = p->rest.length, work = p->count;
    int64_t blocks = (length - 1) / COLUMNS + 1;
    int32_t threads = tsi_parallel_threads(p->io->rank);
    if (rows > 1 && rows >= threads)
        tsi_parallel_for(p->io->rank, rows, GRAIN / (work * length) + 1, write_rows, p);
    else if (rows == 1 && length * p->size >= REST_BYTES)
        tsi_parallel_for(p->io->rank, blocks, /* as wide as can be: all positions for each piece */
                         work * length < GRAIN ? blocks : (blocks - 1) / threads + 1, write_columns,
                         p);
    else if (p->span == INT64_MAX)
        write_places(p, ANYWHERE, INT64_MAX, 0);
    else
        tsi_parallel_for(p->io->rank, p->span,
                         work * rows * length < GRAIN ? p->span : p->span / threads + 1,
                         write_places, p);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int64_t rest_count(const picks *p)
{
    return p->rest.rows * p->rest.length;
}

/* Places are numbered from 0 up only where strides are positive; else one piece does them all. */
static void span_make(picks *p)
{
    const tsi_block *far = &p->far->block;
    p->span = 1;
    for (int32_t i = 0; i < p->indices; i++) {
        if (far->stride[p->dim[i]] < 0) p->span = INT64_MAX;
        if (p->span != INT64_MAX)
            p->span += (far->extent[p->dim[i]] - 1) * far->stride[p->dim[i]] * p->size;
    }
}

static ts_status run_picks(picks *p)
{
    tsi_scratch scratch;
    p->count = 1;
    for (int32_t j = 0; j < p->lines; j++)
        p->count *= p->extent[j];
    if (p->count == 0 || tsi_block_count(&p->far->block) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    span_make(p);
    TSI_TRY(tsi_scratch_get(&scratch, p->io->rank, (size_t)p->count * 2, sizeof(int64_t)));
    p->near = scratch.data;
    p->far_at = p->near + p->count;
    tsi_parallel_for(p->io->rank, p->count, GRAIN / 8, list_positions, p);
    const int64_t row = p->rest.stride[0][p->rest.ndim - 1], *step = p->near_stride + p->lines - 1;
    p->inside = rest_count(p) == 1 || (p->lines > 0 && (*step < row) && row != p->size);
    ts_status status = p->bad ? (ts_status)TSI_KERNEL_DECLINED : TS_OK;
    if (status == TS_OK && p->writes && !p->io->in_place)
        status = p->io->op == &tsi_op_index_select_backward
                     ? tsi_zero_all(p->io, &p->io->out[0].block)
                     : tsi_copy_all(p->io, &p->io->out[0].block, &p->io->in[0].block);
    if (status == TS_OK && p->writes)
        write_all(p);
    else if (status == TS_OK && p->inside)
        tsi_parallel_for(p->io->rank, p->count * rest_count(p), GRAIN, read_elements, p);
    else if (status == TS_OK && p->rest.rows == 1 && row == p->size &&
             p->rest.stride[1][p->rest.ndim - 1] == p->size)
        tsi_parallel_for(p->io->rank, p->count, GRAIN / p->rest.length + 1, read_parts, p);
    else if (status == TS_OK)
        tsi_parallel_for(p->io->rank, p->count * p->rest.rows, GRAIN / p->rest.length + 1,
                         read_rows, p);
    tsi_scratch_done(&scratch);
    return status;
}

/* `near` has the rest's dims at `to`, those of far at `from`; near_stride in elements. */
static void rest_make(picks *p, const tsi_block *near, const int64_t *stride, int32_t rest,
                      const int32_t *from, const int32_t *to)
{
    tsi_block here = { .data = near->data, .dtype = near->dtype, .ndim = rest };
    tsi_block there = { .data = p->far->block.data, .dtype = near->dtype, .ndim = rest };
    for (int32_t k = 0; k < rest; k++) {
        here.extent[k] = there.extent[k] = p->far->block.extent[from[k]];
        there.stride[k] = p->far->block.stride[from[k]];
        here.stride[k] = stride[to[k]];
    }
    p->dtype = (ts_dtype)near->dtype;
    p->size = (int64_t)ts_dtype_size(p->dtype);
    if (p->adds) p->add = tsi_cpu_fold_rows(TS_REDUCE_SUM, p->dtype);
    if (p->dtype == TS_DTYPE_F32) p->row_add = tsi_rows()->f32[TSI_ROW_add];
    if (p->dtype == TS_DTYPE_BF16) p->row_add = tsi_rows()->bf16[TSI_ROW_add];
    const tsi_block *sides[] = { p->writes ? &there : &here, p->writes ? &here : &there };
    tsi_walk_make(&p->rest, sides, 2, 0);
}

/* index_select, index_select_backward, index_add: one list for one dim. */
ts_status tsi_cpu_index_list(const tsi_kernel_io *io)
{
    const tsi_index_select_attributes *a = io->attributes;
    int32_t dim = (int32_t)a->dim, rest = 0;
    bool reads = io->op == &tsi_op_index_select;
    picks p = { .io = io, .far = reads ? &io->in[0] : &io->out[0], .first = 1, .indices = 1 };
    const tsi_block *near =
        reads ? &io->out[0].block : &io->in[io->op == &tsi_op_index_add ? 2 : 0].block;
    p.writes = p.adds = !reads;
    p.lines = 1;
    p.dim[0] = dim;
    p.extent[0] = io->in[1].block.extent[0];
    p.index_stride[0][0] = io->in[1].block.stride[0];
    int32_t dims[TS_NDIM_MAX];
    for (int32_t d = 0; d < near->ndim; d++)
        if (d != dim) dims[rest++] = d;
    rest_make(&p, near, near->stride, rest, dims, dims);
    p.near_stride[0] = near->stride[dim] * p.size;
    return run_picks(&p);
}

/* The positions of index_get and index_put here: the local index tensors, broadcast. */
static void lines_make(picks *p, const tsi_index_geometry *g)
{
    for (int32_t j = 0; j < g->lines; j++) {
        p->extent[j] = 1;
        for (int32_t i = 0; i < g->count; i++) {
            const tsi_operand *index = &p->io->in[g->first + i];
            int32_t d = j - (g->lines - index->block.ndim);
            if (d >= 0 && index->global->shape.extent[d] != 1)
                p->extent[j] = index->block.extent[d];
        }
    }
    for (int32_t i = 0; i < g->count; i++)
        tsi_broadcast_strides(&p->io->in[g->first + i].block, g->lines, p->extent,
                              p->index_stride[i]);
}

ts_status tsi_cpu_index(const tsi_kernel_io *io)
{
    const tsi_index_put_attributes *a = io->attributes;
    bool reads = io->op == &tsi_op_index_get;
    ts_meta in[TSI_INPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = *io->in[i].global;
    tsi_index_geometry g = tsi_index_geometry_of(reads ? 1 : 2, &a->dims, in, io->input_count);
    picks p = { .io = io, .far = reads ? &io->in[0] : &io->out[0], .first = g.first };
    p.indices = g.count;
    p.lines = g.lines;
    p.wraps = true;
    p.writes = !reads;
    p.adds = !reads && a->accumulate;
    for (int32_t i = 0; i < g.count; i++)
        p.dim[i] = (int32_t)a->dims.value[i];
    lines_make(&p, &g);
    const tsi_block *near = reads ? &io->out[0].block : &io->in[1].block;
    int64_t extent[TS_NDIM_MAX] = { 0 }, stride[TS_NDIM_MAX];
    for (int32_t j = 0; j < g.lines; j++)
        extent[g.at + j] = p.extent[j];
    for (int32_t k = 0; k < g.rest; k++)
        extent[g.to[k]] = p.far->block.extent[g.from[k]];
    tsi_broadcast_strides(near, g.lines + g.rest, extent, stride);
    rest_make(&p, near, stride, g.rest, g.from, g.to);
    for (int32_t j = 0; j < g.lines; j++)
        p.near_stride[j] = stride[g.at + j] * p.size;
    return run_picks(&p);
}
