/* SPDX-License-Identifier: Apache-2.0 */
/* triangle.c - tril and triu: of each row one side of the diagonal is copied, the other zero. */
#include "backend/cpu/data.h"
#include "op/view/attributes.h"

enum { GRAIN = 32768 };

typedef struct triangle {
    const tsi_kernel_io *io;
    const tsi_block *in, *out;
    tsi_span_list rows, columns; /* global indices of the last dims */
    int64_t diagonal;
    bool lower, in_place;
} triangle;

static void move_part(const triangle *t, int64_t in_at, int64_t out_at, int64_t begin, int64_t end,
                      bool kept)
{
    int32_t last = t->in->ndim - 1;
    if (end <= begin || (kept && t->in_place)) return;
    tsi_block to = { .dtype = t->out->dtype, .ndim = 1, .extent = { end - begin } };
    tsi_block from = to;
    to.stride[0] = t->out->stride[last];
    from.stride[0] = t->in->stride[last];
    to.data = tsi_block_at(t->out, out_at + begin * to.stride[0]);
    from.data = tsi_block_at(t->in, in_at + begin * from.stride[0]);
    bool plain = to.stride[0] == 1 && (!kept || from.stride[0] == 1);
    size_t bytes = (size_t)(end - begin) * ts_dtype_size((ts_dtype)to.dtype);
    if (plain && kept)
        memcpy(to.data, from.data, bytes);
    else if (plain)
        memset(to.data, 0, bytes);
    else if (kept) /* neither can fail on the cpu */
        (void)t->io->device->copy(t->io->device, &to, &from, NULL);
    else
        (void)t->io->device->fill(t->io->device, &to, (const unsigned char[16]){ 0 }, NULL);
}

/* In row r, columns below `edge` are on the lower side: those that are held come first, since lists
 * ascend. */
static void triangle_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const triangle *t = context;
    int32_t last = t->in->ndim - 1;
    int64_t columns = t->in->extent[last], height = t->in->extent[last - 1];
    for (int64_t r = begin; r < end; r++) {
        int64_t in_at = 0, out_at = 0, position = r;
        for (int32_t d = last - 1; d >= 0; d--) {
            in_at += position % t->in->extent[d] * t->in->stride[d];
            out_at += position % t->in->extent[d] * t->out->stride[d];
            position /= t->in->extent[d];
        }
        int64_t row = tsi_span_list_at(&t->rows, r % height);
        int64_t edge = tsi_span_list_before(&t->columns, row + t->diagonal + t->lower);
        move_part(t, in_at, out_at, 0, edge, t->lower);
        move_part(t, in_at, out_at, edge, columns, !t->lower);
    }
}

ts_status tsi_cpu_triangle(const tsi_kernel_io *io)
{
    const tsi_region *region = io->in[0].region;
    triangle t = { .io = io,
                   .in = &io->in[0].block,
                   .out = &io->out[0].block,
                   .diagonal = ((const tsi_triangle_attributes *)io->attributes)->diagonal,
                   .lower = io->op == &tsi_op_tril,
                   .in_place = io->in_place };
    int32_t last = t.in->ndim - 1;
    int64_t count = tsi_block_count(t.out);
    if (count == 0) return TS_OK;
    t.rows = region ? region->dim[last - 1] : tsi_span_list_whole(t.in->extent[last - 1]);
    t.columns = region ? region->dim[last] : tsi_span_list_whole(t.in->extent[last]);
    int64_t limit = INT64_MAX / 4; /* so that sums with rows and columns stay in range */
    t.diagonal = t.diagonal > limit ? limit : t.diagonal < -limit ? -limit : t.diagonal;
    tsi_parallel_for(io->rank, count / t.in->extent[last], GRAIN / t.in->extent[last] + 1,
                     triangle_rows, &t);
    return TS_OK;
}
