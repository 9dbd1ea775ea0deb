/* SPDX-License-Identifier: Apache-2.0 */
/* contract.c - every contraction of two arrays as matrix products.
 *
 *   letters of a, b and c      batch: a loop over products
 *   letters of a and c         m      letters of b and c      n      letters of a and b      k
 *
 * Letters of one kind that lie in each other's strides are one. What is left beyond one m and one n
 * joins the loop; an operand whose strides BLAS does not take, or of another dtype, is copied once.
 * So linear over [B, T, C] is one product, and transposes cost nothing.
 *
 * INV: the number of threads does not change a bit of the result. How a product is cut depends on
 * it only where pieces have the bits of the whole (gemm.h: tsi_gemm_bits_hold), else on sizes. */
#include <limits.h>
#include <string.h>

#include "backend/cpu/data.h"
#include "backend/cpu/matrix/contract.h"
#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"
#include "op/matrix/chunks.h"
#include "op/matrix/letters.h"

enum { A, B, C, OPERANDS };
enum { BATCH = TSI_LETTERS_BATCH, M = TSI_LETTERS_M, N = TSI_LETTERS_N, K = TSI_LETTERS_K };

typedef struct product {
    tsi_letters kind[TSI_LETTERS_KINDS];
    tsi_block block[OPERANDS]; /* as they are now: data and dtype; dims do not matter */
    tsi_scratch scratch[OPERANDS];
    ts_dtype compute;
    ts_rank *rank;
    bool accumulate;
} product;

/* ---- letters --------------------------------------------------------------------------------- */

/* False: a letter that is summed in one operand alone. */
static bool classify(const tsi_contraction *x, product *p)
{
    for (int32_t l = 0; l < x->letter_count; l++) {
        const tsi_letter *letter = &x->letter[l];
        if (letter->extent == 1) continue;
        bool a = letter->stride[A] != 0, b = letter->stride[B] != 0, c = letter->dim[C] >= 0;
        if (!c && !(a && b)) return false;
        int kind = !c ? K : a == b ? BATCH : a ? M : N;
        tsi_letters_add(&p->kind[kind], letter->extent, letter->stride);
    }
    return true;
}

static int64_t extent_of(const product *p, int kind)
{
    return tsi_letters_extent(&p->kind[kind]);
}

static int64_t stride_of(const product *p, int kind, int operand)
{
    return tsi_letters_stride(&p->kind[kind], operand);
}

/* ---- copies of operands ---------------------------------------------------------------------- */

static const int order_of[OPERANDS][3] = { { BATCH, M, K }, { BATCH, N, K }, { BATCH, M, N } };

/* The operand as a dense block in the order batch, m or n, k or n; its letters get the new strides.
 */
static void dense_view(product *p, int operand, tsi_block *from, tsi_block *to)
{
    *from = (tsi_block){ .data = p->block[operand].data, .dtype = p->block[operand].dtype };
    int64_t stride = 1;
    int32_t ndim = 0;
    for (int g = 0; g < 3; g++)
        for (int32_t i = 0; i < p->kind[order_of[operand][g]].count; i++)
            if (p->kind[order_of[operand][g]].stride[operand][i] != 0) ndim++;
    from->ndim = ndim;
    for (int g = 2; g >= 0; g--) {
        tsi_letters *x = &p->kind[order_of[operand][g]];
        for (int32_t i = x->count - 1; i >= 0; i--) {
            if (x->stride[operand][i] == 0) continue;
            from->extent[--ndim] = x->extent[i];
            from->stride[ndim] = x->stride[operand][i];
            to->stride[ndim] = x->stride[operand][i] = stride;
            stride *= x->extent[i];
        }
    }
    to->ndim = from->ndim;
    to->dtype = (int32_t)p->compute;
    memcpy(to->extent, from->extent, sizeof to->extent);
}

static ts_status copy_block(const product *p, const tsi_block *to, const tsi_block *from)
{
    const tsi_device *cpu = tsi_device_host();
    return tsi_dry(p->rank) ? TS_OK : cpu->copy(cpu, to, from, NULL);
}

static ts_status make_dense(product *p, int operand, bool fill)
{
    tsi_block from, to = { 0 };
    dense_view(p, operand, &from, &to);
    TSI_TRY(tsi_scratch_get(&p->scratch[operand], p->rank, (size_t)tsi_block_count(&to),
                            ts_dtype_size(p->compute)));
    to.data = p->scratch[operand].data;
    p->block[operand].data = to.data;
    p->block[operand].dtype = to.dtype;
    return fill ? copy_block(p, &to, &from) : TS_OK;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

typedef struct tasks {
    const product *p;
    tsi_gemm whole; /* of the first batch */
    int64_t row_step, column_step, across, per_product;
    ts_status status;
} tasks;

static int64_t batch_count(const product *p)
{
    int64_t count = 1;
    for (int32_t i = 0; i < p->kind[BATCH].count; i++)
        count *= p->kind[BATCH].extent[i];
    return count;
}

static void add_batch(const product *p, int64_t batch, tsi_gemm *g)
{
    const tsi_letters *x = &p->kind[BATCH];
    int64_t at[OPERANDS] = { 0 };
    for (int32_t i = x->count - 1; i >= 0; i--) {
        int64_t index = batch % x->extent[i];
        batch /= x->extent[i];
        for (int k = 0; k < OPERANDS; k++)
            at[k] += index * x->stride[k][i];
    }
    size_t size = ts_dtype_size(p->compute);
    g->a = (const char *)g->a + at[g->swapped ? B : A] * (int64_t)size;
    g->b = (const char *)g->b + at[g->swapped ? A : B] * (int64_t)size;
    g->c = (char *)g->c + at[C] * (int64_t)(g->wide ? sizeof(float) : size);
}

/* The product of batch 0; a c that is contiguous down its columns is computed as its transpose. */
static tsi_gemm gemm_of(const product *p)
{
    tsi_gemm g = { .m = extent_of(p, M), .n = extent_of(p, N), .k = extent_of(p, K) };
    g.a = p->block[A].data;
    g.b = p->block[B].data;
    g.c = p->block[C].data;
    g.am = stride_of(p, M, A);
    g.ak = stride_of(p, K, A);
    g.bk = stride_of(p, K, B);
    g.bn = stride_of(p, N, B);
    g.cm = stride_of(p, M, C);
    g.cn = stride_of(p, N, C);
    g.accumulate = p->accumulate;
    g.wide = p->compute == TS_DTYPE_BF16 && p->block[C].dtype == TS_DTYPE_F32;
    bool across = (g.cn == 1 || g.n == 1) && (g.m == 1 || g.cm >= g.n);
    if (across) return g;
    return (tsi_gemm){ .m = g.n,
                       .n = g.m,
                       .k = g.k,
                       .a = g.b,
                       .b = g.a,
                       .c = g.c,
                       .am = g.bn,
                       .ak = g.bk,
                       .bk = g.ak,
                       .bn = g.am,
                       .cm = g.cn,
                       .cn = g.cm,
                       .accumulate = g.accumulate,
                       .wide = g.wide,
                       .swapped = true };
}

/* How a product is cut: down x across pieces, sides a multiple of UNIT, so that the slowest thread
 * is soonest done by a simple model: a piece takes the time of its results, and of the rows and
 * columns it packs for itself, each as long as PACKING results, and CALL operations for the call.
 */
enum { UNIT = 32, PACKING = 7, CALL = 100000, ROUNDS = 4 };
_Static_assert((int)TSI_CHUNK_LEAST >= (int)TSI_GEMM_PIECE_LEAST && TSI_CHUNK_UNIT % UNIT == 0,
               "rows that chunks compute alone hold");

static int64_t step_of(int64_t side, int64_t parts)
{
    return ((side - 1) / parts + UNIT) / UNIT * UNIT;
}

static double time_of(const tsi_gemm *g, int64_t rows, int64_t columns, int64_t batches,
                      int64_t threads)
{
    int64_t pieces = ((g->m - 1) / rows + 1) * ((g->n - 1) / columns + 1) * batches;
    double r = (double)(rows < g->m ? rows : g->m), c = (double)(columns < g->n ? columns : g->n);
    double piece = r * c + PACKING * (r + c) + CALL / (2.0 * (double)g->k);
    return (double)((pieces - 1) / threads + 1) * piece;
}

/* Operations of the last piece, the smallest. */
static double least_of(const tsi_gemm *g, int64_t rows, int64_t columns)
{
    double r = (double)((g->m - 1) % rows + 1), c = (double)((g->n - 1) % columns + 1);
    return 2.0 * r * c * (double)g->k;
}

/* The number of threads counts only if a piece has the same bits however the product is cut; else
 * the cut is one for 8 threads, of large products for up to 64. */
static int64_t threads_for(const tasks *t, double work)
{
    if (work >= 2.0 * tsi_gemm_piece_least(t->p->compute) && tsi_gemm_bits_hold(t->p->compute))
        return tsi_parallel_threads(t->p->rank);
    double by_size = work / 128e6;
    return by_size < 8 ? 8 : by_size > 64 ? 64 : (int64_t)by_size;
}

static void cut(tasks *t, int64_t batches)
{
    const tsi_gemm *g = &t->whole;
    int64_t m = g->m, n = g->n;
    double work = 2.0 * (double)m * (double)n * (double)g->k;
    double least = tsi_gemm_piece_least(t->p->compute);
    int64_t threads = threads_for(t, work * (double)batches);
    t->row_step = m;
    t->column_step = n;
    double best = time_of(g, m, n, batches, threads);
    int64_t most = (int64_t)(work / least), enough = ROUNDS * threads / batches + 1;
    if (most > enough) most = enough;
    for (int64_t down = 1; down <= most && (down == 1 || m > UNIT * (down - 1)); down++)
        for (int64_t across = 1; down * across <= most && (across == 1 || n > UNIT * (across - 1));
             across++) {
            int64_t rows = step_of(m, down), columns = step_of(n, across);
            double time = time_of(g, rows, columns, batches, threads);
            if (time >= best || least_of(g, rows, columns) < least) continue;
            best = time;
            t->row_step = rows;
            t->column_step = columns;
        }
    t->across = (n - 1) / t->column_step + 1;
    t->per_product = t->across * ((m - 1) / t->row_step + 1);
}

static void run_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const tasks *t = context;
    int64_t size = (int64_t)ts_dtype_size(t->p->compute);
    for (int64_t task = begin; task < end; task++) {
        tsi_gemm g = t->whole;
        int64_t block = task % t->per_product;
        int64_t row = block / t->across * t->row_step, column = block % t->across * t->column_step;
        add_batch(t->p, task / t->per_product, &g);
        g.rank = t->p->rank;
        g.worker = worker;
        g.a = (const char *)g.a + row * g.am * size;
        g.b = (const char *)g.b + column * g.bn * size;
        g.c = (char *)g.c + (row * g.cm + column * g.cn) * size;
        if (g.m - row < t->row_step)
            g.m -= row;
        else
            g.m = t->row_step;
        if (g.n - column < t->column_step)
            g.n -= column;
        else
            g.n = t->column_step;
        (void)tsi_gemm_blas(t->p->compute, &g);
    }
}

/* Products with a vector, one after another. */
static ts_status run_vectors(const product *p, const tsi_gemm *first, int64_t batches)
{
    for (int64_t batch = 0; batch < batches; batch++) {
        tsi_gemm g = *first;
        add_batch(p, batch, &g);
        TSI_TRY(tsi_gemm_vector(p->rank, p->compute, &g));
    }
    return TS_OK;
}

/* A vector by a matrix of some size; many small ones are better off on a thread each. */
static bool is_vector(const product *p, const tsi_gemm *g, int64_t batches)
{
    double work = (double)g->m * (double)g->n * (double)g->k;
    return (batches == 1 || work > 65536) && tsi_gemm_is_vector(p->compute, g);
}

static ts_status run_blas(const product *p)
{
    tasks t = { .p = p, .whole = gemm_of(p) };
    int64_t batches = batch_count(p);
    if (is_vector(p, &t.whole, batches)) return run_vectors(p, &t.whole, batches);
    cut(&t, batches);
    double work = (double)t.row_step * (double)t.column_step * (double)t.whole.k;
    int64_t grain = work < 1e6 ? (int64_t)(1e6 / (work + 1)) + 1 : 1;
    tsi_parallel_for(p->rank, batches * t.per_product, grain, run_tasks, &t);
    return TS_OK;
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

static void run_bf16_small(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    tasks *t = context;
    for (int64_t batch = begin; batch < end; batch++) {
        tsi_gemm g = t->whole;
        add_batch(t->p, batch, &g);
        ts_status status = tsi_gemm_bf16(NULL, tsi_bf16_tile_of_machine(), &g);
        if (status != TS_OK) t->status = status;
    }
}

/* Many small products: one per thread; else one after another, each on all threads. */
static ts_status run_bf16(const product *p, const tsi_bf16_tile *tile)
{
    tasks t = { .p = p, .whole = gemm_of(p), .status = TS_OK };
    int64_t batches = batch_count(p);
    if (!t.whole.wide && is_vector(p, &t.whole, batches)) return run_vectors(p, &t.whole, batches);
    double work = (double)t.whole.m * (double)t.whole.n * (double)t.whole.k;
    if (batches > 1 && work < 16e6) {
        tsi_parallel_for(p->rank, batches, (int64_t)(1e6 / (work + 1)) + 1, run_bf16_small, &t);
        return t.status;
    }
    for (int64_t batch = 0; batch < batches; batch++) {
        tsi_gemm g = t.whole;
        add_batch(p, batch, &g);
        TSI_TRY(tsi_gemm_bf16(p->rank, tile, &g));
    }
    return TS_OK;
}

/* ---- the contraction ------------------------------------------------------------------------- */

static bool fits(const product *p, int operand)
{
    const int rows = operand == B ? N : M, columns = operand == C ? N : K;
    return tsi_gemm_fits(extent_of(p, rows), extent_of(p, columns), stride_of(p, rows, operand),
                         stride_of(p, columns, operand));
}

/* Brings the operands into a form BLAS takes; writes back what was computed aside. */
static ts_status run_fitted(product *p, const tsi_block *c)
{
    for (int operand = A; operand <= B; operand++)
        if (p->block[operand].dtype != (int32_t)p->compute || p->kind[K].count > 1 ||
            !fits(p, operand))
            TSI_TRY(make_dense(p, operand, true));
    tsi_letters_merge(&p->kind[K], A);
    product before = *p;
    bool aside = p->block[C].dtype != (int32_t)p->compute || !fits(p, C);
    if (aside) TSI_TRY(make_dense(p, C, p->accumulate));
    TSI_TRY(run_blas(p));
    if (!aside) return TS_OK;
    tsi_block from = { 0 }, to; /* the copy's dims are those dense_view gave the original */
    dense_view(&before, C, &to, &from);
    from.data = p->block[C].data;
    to.data = c->data;
    return copy_block(p, &to, &from);
}

static bool too_large(const product *p)
{
    for (int kind = M; kind <= K; kind++)
        if (extent_of(p, kind) > INT_MAX) return true;
    return false;
}

static bool is_whole(int32_t dtype)
{
    return dtype == TS_DTYPE_I64 || dtype == TS_DTYPE_I32;
}

/* What is computed in: the result's dtype, f32 for the narrow ones, i64 for both of 32 and 64 bits
 * (sums of these wrap around alike). NONE: the reference's business. */
static ts_dtype compute_of(const tsi_contraction *x)
{
    ts_dtype c = (ts_dtype)x->c.dtype;
    if (is_whole(x->a.dtype) && is_whole(x->b.dtype) && is_whole(x->c.dtype)) return TS_DTYPE_I64;
    if (c == TS_DTYPE_I64) return TS_DTYPE_NONE;
    if (c == TS_DTYPE_BF16 || c == TS_DTYPE_F16) c = TS_DTYPE_F32;
    return tsi_gemm_blas_has(c) ? c : TS_DTYPE_NONE;
}

bool tsi_cpu_rows_alone(ts_dtype dtype)
{
    bool narrow = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    if (is_whole(dtype) || (dtype == TS_DTYPE_BF16 && tsi_bf16_tile_of_machine())) return true;
    return tsi_gemm_bits_hold(narrow ? TS_DTYPE_F32 : dtype);
}

static bool is_empty(const tsi_contraction *x)
{
    for (int32_t l = 0; l < x->letter_count; l++)
        if (x->letter[l].extent == 0) return true;
    return false;
}

static ts_status by_loops(const tsi_contraction *x, bool accumulate)
{
    return tsi_dry(tsi_rank_current()) ? TS_OK : tsi_contract_reference(x, accumulate);
}

/* Sums of nothing, as a rank without rows has them for each weight. */
static ts_status sums_of_nothing(const tsi_contraction *x, bool accumulate)
{
    tsi_kernel_io io = { .rank = tsi_rank_current(), .device = tsi_device_host() };
    return accumulate || tsi_dry(io.rank) ? TS_OK : tsi_zero_all(&io, &x->c);
}

ts_status tsi_cpu_contract(const tsi_contraction *x, bool accumulate)
{
    product p = { .block = { x->a, x->b, x->c },
                  .compute = compute_of(x),
                  .rank = tsi_rank_current(),
                  .accumulate = accumulate };
    if (is_empty(x)) return sums_of_nothing(x, accumulate);
    if (p.compute == TS_DTYPE_NONE || x->b.dtype == TS_DTYPE_NONE || !classify(x, &p))
        return by_loops(x, accumulate);
    tsi_letters_merge(&p.kind[M], C);
    tsi_letters_merge(&p.kind[N], C);
    tsi_letters_merge(&p.kind[K], A);
    tsi_letters_keep_longest(p.kind, M);
    tsi_letters_keep_longest(p.kind, N);
    tsi_letters_merge(&p.kind[BATCH], C);
    if (too_large(&p)) return by_loops(x, accumulate);
    const tsi_bf16_tile *tile = tsi_bf16_tile_of_machine();
    bool narrow = x->a.dtype == TS_DTYPE_BF16 && x->b.dtype == TS_DTYPE_BF16 &&
                  (x->c.dtype == TS_DTYPE_BF16 || x->c.dtype == TS_DTYPE_F32);
    ts_status status;
    if (narrow && tile && p.kind[K].count <= 1) {
        p.compute = TS_DTYPE_BF16;
        status = run_bf16(&p, tile);
    } else {
        status = run_fitted(&p, &x->c);
    }
    for (int operand = A; operand < OPERANDS; operand++)
        tsi_scratch_done(&p.scratch[operand]);
    return status;
}
