/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h - one matrix product, and the engines that compute it.
 *
 *   c[m, n] = a[m, k] b[k, n], or c += a b; strides in elements.
 *
 * contract.c brings every contraction into this form. gemm_f32.c computes f32 in tiles of our own;
 * gemm_blas.c the other dtypes, and f32 where no tiles are fast, through OpenBLAS (or plain loops
 * where there is none); gemm_bf16.c multiplies bf16 with the machine's instructions and adds up in
 * f32. */
#ifndef TSI_BACKEND_CPU_GEMM_H
#define TSI_BACKEND_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rank.h"
#include "tessera/types.h"

typedef struct tsi_gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t am, ak, bk, bn, cm, cn; /* a[i * am + l * ak], b[l * bk + j * bn], c[i * cm + j * cn] */
    bool accumulate;
    bool wide;      /* bf16: c is f32, and a sum is not rounded */
    bool swapped;   /* a and b are the contraction's b and a: c is computed as its transpose */
    int32_t worker; /* of the rank's loops: who computes it. f32 in tiles of our own: ranks that */
    ts_rank *rank;  /* wait may help (device/guests.h); NULL: nobody does */
} tsi_gemm;

/* Products of numbers: fewer are over before a guest could help; more of them make a piece that a
 * guest would come too late by. */
enum { TSI_GEMM_ALONE = 1 << 22, TSI_GEMM_PIECE = 1 << 26 };

/* Is a matrix with these strides what BLAS takes: one stride 1, the other at least the row? */
bool tsi_gemm_fits(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride);
/* f32, f64, c64, c128, i64 on the calling thread; a and b fit, c has cn 1 (or n 1). false: not this
 * dtype. */
bool tsi_gemm_blas(ts_dtype dtype, const tsi_gemm *gemm);
bool tsi_gemm_blas_has(ts_dtype dtype);
/* Has a part of a product, cut at multiples of 32 of m and n and of so many operations at least,
 * the same bits as in the whole? True by definition of our own, else if it is so for products of
 * every kind that are tried once, f32 or f64; false for other dtypes. */
enum { TSI_GEMM_PIECE_LEAST = 2100000 };
bool tsi_gemm_bits_hold(ts_dtype dtype);
/* So many; of tiles of our own, which hold at any size, what is worth another thread. */
double tsi_gemm_piece_least(ts_dtype dtype);
void tsi_gemm_start(void); /* tells OpenBLAS to use the calling thread alone */

/* ---- f32: tiles of our own (tiles_body.h) ---------------------------------------------------- */
/* Where operands are packed: `rows` of a, and `columns` of b where k is TSI_TILES_DEPTH, more where
 * it is less. */
typedef struct tsi_tiles_room {
    float *band, *b;
    int64_t rows, columns;
} tsi_tiles_room;
enum {
    TSI_TILES_DEPTH = 256,
    TSI_TILES_BAND = 48,
    TSI_TILES_COLUMNS = 256, /* of a thread's room, at least */
    TSI_TILES_BAND_LEAST = 12,
    TSI_TILES_COLUMNS_LEAST = 32
};
void tsi_tiles_base(const tsi_gemm *gemm, const tsi_tiles_room *room);
#if defined(__x86_64__)
void tsi_tiles_avx2(const tsi_gemm *gemm, const tsi_tiles_room *room);
void tsi_tiles_avx512(const tsi_gemm *gemm, const tsi_tiles_room *room);
#endif
/* Where the calling thread packs, until it ends; false: there is no memory for it. */
bool tsi_tiles_room_of_thread(tsi_tiles_room *out);
void tsi_gemm_f32(const tsi_gemm *gemm); /* on the calling thread; any strides but cn, which is 1 */
bool tsi_gemm_f32_is_ours(void);         /* is it, here? As fast as a good BLAS, or there is none */

/* One of m and n is 1, and the other operand's rows or columns lie together: f32, f64, bf16. */
bool tsi_gemm_is_vector(ts_dtype dtype, const tsi_gemm *gemm);
ts_status tsi_gemm_vector(ts_rank *rank, ts_dtype dtype, const tsi_gemm *gemm);

/* ---- bf16: tiles of mr x nr, k in groups of kr ----------------------------------------------- */
/* Panels of a hold [k / ka][rows][ka], those of b [k / kb][columns][kb]: for each ka (or kb)
 * numbers of k, the rows (or columns) one after another; short ones are filled with zeros, and k up
 * to a multiple of kr. nr and kr divide 32. */
typedef struct tsi_bf16_tile tsi_bf16_tile;

/* One row of the gradient of attention, a key's by columns of queries: p = 2^(s factor - base), ds
 * = p (dp - delta), both rounded to bf16; ds a second time as a plain row. */
typedef struct tsi_weigh_back {
    uint16_t *p, *ds, *row;
    int64_t step; /* between runs of p and ds */
    const float *s, *dp, *base, *delta;
    float factor;
    int64_t count;
} tsi_weigh_back;

/* c [count mr x nr] f32, rows ldc apart: set if first, else added to. Panels of a are a_step apart.
 */
typedef struct tsi_bf16_tiles {
    int64_t groups, count; /* of kr numbers of k; panels of a */
    const uint16_t *a, *b;
    float *c;
    int64_t a_step, ldc;
    bool first;
} tsi_bf16_tiles;

struct tsi_bf16_tile {
    const char *name; /* "bfmmla" */
    int32_t mr, nr, kr, ka, kb;
    int32_t run;
    /* Tiles of c, one under the other. Between begin and end. */
    void (*multiply)(const tsi_bf16_tiles *x);
    /* (optional) Around multiplications of the calling thread: what the tile needs of the machine.
     */
    void (*begin)(void);
    void (*end)(void);
    /* Four rows of k, `rows` wide in memory, into groups; (optional) for ka and kb 4, panels of 8.
     */
    void (*pack_across)(uint16_t *to, const uint16_t *from, int64_t k_stride, int64_t groups);
    /* The sum of products of two rows, in f32. */
    float (*dot)(const uint16_t *x, const uint16_t *y, int64_t count);
    /* Rows of attention (attend_rows.h): to = 2^(x factor - top), rounded; the sum before that.
     * Runs of `run` numbers are `step` apart: ka, where a row may go straight into a panel. */
    float (*weigh)(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                   int64_t count);
    /* The same for whole tops of at most 32 and sizes of x factor that are no larger. */
    float (*weigh_near)(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                        int64_t count);
    void (*weigh_back)(const tsi_weigh_back *w);
};
const tsi_bf16_tile *tsi_bf16_tile_of_machine(void); /* NULL: no such instructions */
extern const tsi_bf16_tile tsi_bf16_tile_neon, tsi_bf16_tile_avx512, tsi_bf16_tile_amx;
#if defined(__x86_64__)
float tsi_dot_avx512(const uint16_t *x, const uint16_t *y, int64_t count);
float tsi_weigh_avx512(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                       int64_t count);
float tsi_weigh_near_avx512(uint16_t *to, int64_t step, const float *x, const float *factor_top,
                            int64_t count);
void tsi_weigh_back_avx512(const tsi_weigh_back *w);
#endif
/* All threads of the rank; any strides. c is bf16, or f32 (wide). */
ts_status tsi_gemm_bf16(ts_rank *rank, const tsi_bf16_tile *tile, const tsi_gemm *gemm);

/* One operand as panels: rows (or columns) x[i * stride + l * k_stride], from memory at `from` into
 * panels * panel_size elements at `to`; the maker leaves both and the strides to the caller. */
typedef struct tsi_panels {
    const tsi_bf16_tile *tile;
    const uint16_t *from;
    uint16_t *to;
    int64_t count, k, stride, k_stride;
    int64_t width, together; /* of a: mr and ka; of b: nr and kb */
    int64_t panels, panel_size;
} tsi_panels;
tsi_panels tsi_panels_a(const tsi_bf16_tile *tile, int64_t count, int64_t k);
tsi_panels tsi_panels_b(const tsi_bf16_tile *tile, int64_t count, int64_t k);
void tsi_panel_pack(const tsi_panels *p, int64_t panel);
void tsi_panel_pack_to(const tsi_panels *p, int64_t panel, uint16_t *to);
void tsi_panels_pack(const tsi_panels *p); /* all of them */
/* c [panels x panels of tiles] = a b, or += unless first; on the calling thread, within begin and
 * end. */
void tsi_panels_multiply(const tsi_panels *a, const tsi_panels *b, float *c, int64_t ldc,
                         bool first);

static inline void tsi_bf16_begin(const tsi_bf16_tile *tile)
{
    if (tile->begin) tile->begin();
}

static inline void tsi_bf16_end(const tsi_bf16_tile *tile)
{
    if (tile->end) tile->end();
}

#endif
