/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_blas.c - matrix products on one thread: very small ones by loops, f32 in tiles of our own
 * (gemm_f32.c) where they are fast; else CBLAS for f32, f64, c64 and c128, or plain blocked loops;
 * i64 always by loops.
 *
 * OpenBLAS has one thread count for the whole process, so it is told to use the calling thread
 * alone, once; the pool of the rank splits the work (contract.c). */
#include <limits.h>
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"

#if TS_HAVE_OPENBLAS
#include <cblas.h>
#endif

bool tsi_gemm_fits(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride)
{
    bool across = (column_stride == 1 || columns == 1) && (rows == 1 || row_stride >= columns);
    bool down = (row_stride == 1 || rows == 1) && (columns == 1 || column_stride >= rows);
    return across || down;
}

/* ---- very small products: a call of BLAS costs more than the numbers ------------------------- */

enum { SMALL = 1024 };

static void small_f32(const tsi_gemm *g)
{
    const float *a = g->a, *b = g->b;
    float *c = g->c;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            float sum = 0;
            for (int64_t l = 0; l < g->k; l++)
                sum += a[i * g->am + l * g->ak] * b[l * g->bk + j * g->bn];
            float *to = &c[i * g->cm + j * g->cn];
            *to = g->accumulate ? *to + sum : sum;
        }
    }
}

static void small_f64(const tsi_gemm *g)
{
    const double *a = g->a, *b = g->b;
    double *c = g->c;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < g->k; l++)
                sum += a[i * g->am + l * g->ak] * b[l * g->bk + j * g->bn];
            double *to = &c[i * g->cm + j * g->cn];
            *to = g->accumulate ? *to + sum : sum;
        }
    }
}

static bool run_small(ts_dtype dtype, const tsi_gemm *g)
{
    if (g->m * g->n > SMALL || g->m * g->n * g->k > SMALL) return false;
    if (dtype == TS_DTYPE_F32)
        small_f32(g);
    else if (dtype == TS_DTYPE_F64)
        small_f64(g);
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_F64;
}

/* ---- whole numbers: sums wrap around --------------------------------------------------------- */

enum { WHOLE_COLUMNS = 32, WHOLE_DEPTH = 64 };

/* Columns j .. and numbers l .. of k, as rows of WHOLE_COLUMNS, zeros where there is nothing. */
static void pack_i64(const tsi_gemm *g, int64_t l, int64_t j, uint64_t (*to)[WHOLE_COLUMNS])
{
    const int64_t *b = g->b;
    for (int64_t r = 0; r < WHOLE_DEPTH && l + r < g->k; r++)
        for (int64_t s = 0; s < WHOLE_COLUMNS; s++)
            to[r][s] = j + s < g->n ? (uint64_t)b[(l + r) * g->bk + (j + s) * g->bn] : 0;
}

static void loops_i64(const tsi_gemm *g)
{
    uint64_t b[WHOLE_DEPTH][WHOLE_COLUMNS];
    const int64_t *a = g->a;
    for (int64_t j = 0; j < g->n; j += WHOLE_COLUMNS)
        for (int64_t l = 0; l < g->k; l += WHOLE_DEPTH) {
            int64_t depth = g->k - l < WHOLE_DEPTH ? g->k - l : WHOLE_DEPTH;
            int64_t columns = g->n - j < WHOLE_COLUMNS ? g->n - j : WHOLE_COLUMNS;
            pack_i64(g, l, j, b);
            for (int64_t i = 0; i < g->m; i++) {
                uint64_t sum[WHOLE_COLUMNS] = { 0 };
                for (int64_t r = 0; r < depth; r++) {
                    uint64_t x = (uint64_t)a[i * g->am + (l + r) * g->ak];
                    for (int s = 0; s < WHOLE_COLUMNS; s++)
                        sum[s] += x * b[r][s];
                }
                int64_t *c = (int64_t *)g->c + i * g->cm + j * g->cn;
                bool add = g->accumulate || l > 0;
                for (int64_t s = 0; s < columns; s++, c += g->cn)
                    *c = (int64_t)(add ? (uint64_t)*c + sum[s] : sum[s]);
            }
        }
}

#if TS_HAVE_OPENBLAS

void tsi_gemm_start(void)
{
    openblas_set_num_threads(1);
}

bool tsi_gemm_blas_has(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C64 ||
           dtype == TS_DTYPE_C128 || dtype == TS_DTYPE_I64;
}

/* The leading dimension of a matrix and whether it is transposed in memory. */
typedef struct side {
    CBLAS_TRANSPOSE transpose;
    blasint lead;
} side;

static side side_of(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride)
{
    bool across = (column_stride == 1 || columns == 1) && (rows == 1 || row_stride >= columns);
    int64_t lead = across ? row_stride : column_stride, least = across ? columns : rows;
    if ((across && rows == 1) || (!across && columns == 1)) lead = least;
    return (side){ across ? CblasNoTrans : CblasTrans, (blasint)(lead > 1 ? lead : 1) };
}

bool tsi_gemm_blas(ts_dtype dtype, const tsi_gemm *g)
{
    if (run_small(dtype, g)) return true;
    const float one_c[2] = { 1, 0 }, beta_c[2] = { g->accumulate ? 1.0f : 0.0f, 0 };
    const double one_z[2] = { 1, 0 }, beta_z[2] = { g->accumulate ? 1.0 : 0.0, 0 };
    blasint m = (blasint)g->m, n = (blasint)g->n, k = (blasint)g->k;
    side a = side_of(g->m, g->k, g->am, g->ak), b = side_of(g->k, g->n, g->bk, g->bn);
    blasint ldc = (blasint)(g->m == 1 ? g->n : g->cm);
    if (dtype == TS_DTYPE_F32 && tsi_gemm_f32_is_ours())
        tsi_gemm_f32(g);
    else if (dtype == TS_DTYPE_F32)
        cblas_sgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, 1.0f, g->a, a.lead, g->b,
                    b.lead, beta_c[0], g->c, ldc);
    else if (dtype == TS_DTYPE_F64)
        cblas_dgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, 1.0, g->a, a.lead, g->b,
                    b.lead, beta_z[0], g->c, ldc);
    else if (dtype == TS_DTYPE_C64)
        cblas_cgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, one_c, g->a, a.lead, g->b,
                    b.lead, beta_c, g->c, ldc);
    else if (dtype == TS_DTYPE_C128)
        cblas_zgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, one_z, g->a, a.lead, g->b,
                    b.lead, beta_z, g->c, ldc);
    else if (dtype == TS_DTYPE_I64)
        loops_i64(g);
    else
        return false;
    return true;
}

#else /* without OpenBLAS: f64 in small tiles over packed panels */

enum { ROWS = 4, COLUMNS = 16, DEPTH = 256 };

void tsi_gemm_start(void)
{
}

bool tsi_gemm_blas_has(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_I64;
}

static void pack_f64(double *to, const double *from, int64_t count, int64_t depth, int64_t stride,
                     int64_t k_stride, int64_t width)
{
    for (int64_t l = 0; l < depth; l++)
        for (int64_t i = 0; i < width; i++)
            to[l * width + i] = i < count ? from[i * stride + l * k_stride] : 0.0;
}

static void tile_f64(const double *a, const double *b, int64_t depth, double sum[ROWS][COLUMNS])
{
    for (int64_t l = 0; l < depth; l++)
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++)
                sum[i][j] += a[l * ROWS + i] * b[l * COLUMNS + j];
}

static void loops_f64(const tsi_gemm *g)
{
    double a[ROWS * DEPTH], b[COLUMNS * DEPTH];
    for (int64_t l = 0; l < g->k; l += DEPTH) {
        int64_t depth = g->k - l < DEPTH ? g->k - l : DEPTH;
        bool add = g->accumulate || l > 0;
        for (int64_t j = 0; j < g->n; j += COLUMNS) {
            int64_t columns = g->n - j < COLUMNS ? g->n - j : COLUMNS;
            pack_f64(b, (const double *)g->b + l * g->bk + j * g->bn, columns, depth, g->bn, g->bk,
                     COLUMNS);
            for (int64_t i = 0; i < g->m; i += ROWS) {
                int64_t rows = g->m - i < ROWS ? g->m - i : ROWS;
                double sum[ROWS][COLUMNS] = { { 0 } };
                pack_f64(a, (const double *)g->a + i * g->am + l * g->ak, rows, depth, g->am, g->ak,
                         ROWS);
                tile_f64(a, b, depth, sum);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t s = 0; s < columns; s++) {
                        double *to = (double *)g->c + (i + r) * g->cm + (j + s) * g->cn;
                        *to = add ? *to + sum[r][s] : sum[r][s];
                    }
            }
        }
    }
}

bool tsi_gemm_blas(ts_dtype dtype, const tsi_gemm *g)
{
    if (run_small(dtype, g)) return true;
    if (dtype == TS_DTYPE_F32)
        tsi_gemm_f32(g);
    else if (dtype == TS_DTYPE_F64)
        loops_f64(g);
    else if (dtype == TS_DTYPE_I64)
        loops_i64(g);
    return tsi_gemm_blas_has(dtype);
}

#endif
