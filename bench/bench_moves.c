/* SPDX-License-Identifier: Apache-2.0 */
/* bench_moves.c - boxes common to the blocks of two ranks, from the intervals of their layouts. */
#include "bench_moves.h"

#include <stdlib.h>
#include <string.h>

enum { INTERVALS = 16 };

typedef struct holding { /* what a rank holds of a matrix */
    ts_interval dim[2][INTERVALS];
    int64_t count[2];
    int64_t length[2];
} holding;

static void holding_of(ts_mesh *mesh, const ts_layout *layout, int64_t rank, holding *out)
{
    int64_t coord[TS_NDIM_MAX];
    memset(out, 0, sizeof *out);
    if (!ts_mesh_coord_of(mesh, rank, coord)) return;
    for (int32_t d = 0; d < 2; d++) {
        out->count[d] = ts_layout_intervals(layout, coord, d, out->dim[d], INTERVALS);
        for (int64_t i = 0; i < out->count[d]; i++)
            out->length[d] += out->dim[d][i].end - out->dim[d][i].begin;
    }
}

typedef struct cut { /* an interval held by both: where it begins in each block */
    int64_t begin[2], length;
} cut;

static int64_t cuts_of(const holding *a, const holding *b, int32_t d, cut *out)
{
    int64_t count = 0, before_a = 0;
    for (int64_t i = 0; i < a->count[d]; i++) {
        const ts_interval *x = &a->dim[d][i];
        int64_t before_b = 0;
        for (int64_t j = 0; j < b->count[d]; j++) {
            const ts_interval *y = &b->dim[d][j];
            int64_t begin = x->begin > y->begin ? x->begin : y->begin;
            int64_t end = x->end < y->end ? x->end : y->end;
            if (begin < end) {
                out[count++] = (cut){ { before_a + begin - x->begin, before_b + begin - y->begin },
                                      end - begin };
            }
            before_b += y->end - y->begin;
        }
        before_a += x->end - x->begin;
    }
    return count;
}

/* Appends the boxes common to a (mine) and b, as they lie in block a. Returns elements. */
static int64_t add_boxes(const holding *a, const holding *b, bool a_first, bench_box *out,
                         int64_t *count)
{
    cut row[INTERVALS * 2], column[INTERVALS * 2];
    const holding *source = a_first ? a : b, *target = a_first ? b : a;
    int64_t rows = cuts_of(source, target, 0, row), columns = cuts_of(source, target, 1, column);
    int64_t elements = 0;
    int side = a_first ? 0 : 1;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            out[(*count)++] =
                (bench_box){ .offset = row[i].begin[side] * a->length[1] + column[j].begin[side],
                             .rows = row[i].length,
                             .columns = column[j].length,
                             .stride = a->length[1] };
            elements += row[i].length * column[j].length;
        }
    }
    return elements;
}

bool bench_moves_make(ts_mesh *mesh, const ts_layout *from, const ts_layout *to, int64_t me,
                      bench_moves *out)
{
    int64_t ranks = ts_mesh_size(mesh, NULL), sends = 0, recvs = 0;
    size_t room = (size_t)ranks * INTERVALS * INTERVALS;
    holding mine_in, mine_out, theirs;
    memset(out, 0, sizeof *out);
    out->index = me;
    out->count = ranks;
    out->send = calloc(room, sizeof *out->send);
    out->recv = calloc(room, sizeof *out->recv);
    out->send_first = calloc((size_t)ranks + 1, sizeof *out->send_first);
    out->recv_first = calloc((size_t)ranks + 1, sizeof *out->recv_first);
    if (!out->send || !out->recv || !out->send_first || !out->recv_first) return false;
    holding_of(mesh, from, me, &mine_in);
    holding_of(mesh, to, me, &mine_out);
    out->in_count = mine_in.length[0] * mine_in.length[1];
    out->out_count = mine_out.length[0] * mine_out.length[1];
    for (int64_t p = 0; p < ranks; p++) {
        holding_of(mesh, to, p, &theirs);
        out->send_first[p] = sends;
        out->send_count += add_boxes(&mine_in, &theirs, true, out->send, &sends);
        holding_of(mesh, from, p, &theirs);
        out->recv_first[p] = recvs;
        out->recv_count += add_boxes(&mine_out, &theirs, false, out->recv, &recvs);
    }
    out->send_first[ranks] = sends;
    out->recv_first[ranks] = recvs;
    return true;
}

void bench_moves_release(bench_moves *moves)
{
    free(moves->send);
    free(moves->recv);
    free(moves->send_first);
    free(moves->recv_first);
    free(moves->packed_in);
    free(moves->packed_out);
    free(moves->out);
    memset(moves, 0, sizeof *moves);
}
