/* SPDX-License-Identifier: Apache-2.0 */
/* bench_moves.h - a redistribution of a matrix as a person would write it by hand: for every pair
 * of ranks the boxes that one has and the other wants. What the raw calls and the floor of `tessera
 * bench redistribute` work on. */
#ifndef BENCH_MOVES_H
#define BENCH_MOVES_H

#include "cli.h"

typedef struct bench_box { /* of a rank's row-major block of f32 */
    int64_t offset, rows, columns, stride;
} bench_box;

typedef struct bench_moves {
    int64_t index, count;             /* this rank, ranks */
    float *in, *out;                  /* source block, and room for the target block */
    int64_t in_count, out_count;      /* elements of the blocks */
    float *packed_in, *packed_out;    /* room for what is sent and received, packed; may be NULL */
    bench_box *send, *recv;           /* by peer */
    int64_t *send_first, *recv_first; /* of peer p: [first[p], first[p + 1]) */
    int64_t send_count, recv_count;   /* elements */
    int64_t folded;                   /* not 0: a reduction; elements of the whole array */
    void *types;                      /* of the rival */
} bench_moves;

/* Lists for this rank; blocks are not touched. `me` is the rank's number in both meshes. False:
 * memory. */
bool bench_moves_make(ts_mesh *mesh, const ts_layout *from, const ts_layout *to, int64_t me,
                      bench_moves *out);
void bench_moves_release(bench_moves *moves);

#endif
