/* SPDX-License-Identifier: Apache-2.0 */
/* contract_blend.c - out = alpha out + beta added, of reals: what addmm does behind its product. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/contract.h"

enum { TILE = 512, GRAIN = 64 }; /* elements of a piece; pieces of a task */

typedef struct blend {
    tsi_walk walk; /* out, added */
    ts_dtype dtype[2];
    double alpha, beta;
    int64_t pieces; /* of a row */
} blend;

static void blend_piece(const blend *b, char *const *at, int64_t first)
{
    double out[TILE], added[TILE];
    int32_t row = b->walk.ndim - 1;
    int64_t count = b->walk.length - first < TILE ? b->walk.length - first : TILE;
    int64_t stride[] = { b->walk.stride[0][row], b->walk.stride[1][row] };
    char *to = at[0] + first * stride[0];
    tsi_gather(TS_DTYPE_F64, out, b->dtype[0], to, stride[0], count);
    for (int64_t i = 0; i < count; i++)
        out[i] *= b->alpha;
    if (b->beta != 0.0) { /* else it is left out, whatever it holds */
        tsi_gather(TS_DTYPE_F64, added, b->dtype[1], at[1] + first * stride[1], stride[1], count);
        for (int64_t i = 0; i < count; i++)
            out[i] += b->beta * added[i];
    }
    tsi_scatter(b->dtype[0], to, stride[0], TS_DTYPE_F64, out, count);
}

static void run_pieces(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const blend *b = context;
    tsi_walker walker;
    tsi_walker_start(&walker, &b->walk, begin / b->pieces);
    for (int64_t task = begin; task < end; task++) {
        blend_piece(b, walker.at, task % b->pieces * TILE);
        if ((task + 1) % b->pieces == 0) tsi_walker_next(&walker);
    }
}

void tsi_cpu_blend(const tsi_kernel_io *io, const tsi_block *added, double alpha, double beta)
{
    const tsi_block *out = &io->out[0].block, *const both[] = { out, added };
    if (tsi_block_count(out) == 0) return;
    blend b = { .dtype = { (ts_dtype)out->dtype, (ts_dtype)added->dtype },
                .alpha = alpha,
                .beta = beta };
    tsi_walk_make(&b.walk, both, 2, 0);
    b.pieces = (b.walk.length - 1) / TILE + 1;
    tsi_parallel_for(io->rank, b.walk.rows * b.pieces, GRAIN, run_pieces, &b);
}
