/* SPDX-License-Identifier: Apache-2.0 */
/* linear_list_by.c - the operators of linear_list.c by products of blocks: which blocks are one,
 * and the equations. Plain functions, which modules of devices are built with too. */
#include "op/matrix/linear_list.h"

#include <string.h>

#include "base/error.h"

/* ---- equations ------------------------------------------------------------------------------- */

/* The letters of the leading dims, then one more. */
static char *put_rows(char *at, int32_t ndim, char last)
{
    static const char letters[] = "ABCDEFGH";
    for (int32_t d = 0; d + 1 < ndim; d++)
        *at++ = letters[d];
    *at++ = last;
    return at;
}

tsi_list_equation tsi_list_by_weight(int32_t ndim, char from, char to)
{
    tsi_list_equation e;
    char *at = put_rows(e.text, ndim, from);
    memcpy(at, ",nk->", 5);
    *put_rows(at + 5, ndim, to) = '\0';
    return e;
}

tsi_list_equation tsi_list_of_weight(int32_t ndim)
{
    tsi_list_equation e;
    char *at = put_rows(e.text, ndim, 'k');
    *at++ = ',';
    at = put_rows(at, ndim, 'n');
    memcpy(at, "->nk", 5);
    return e;
}

/* ---- blocks beside each other ---------------------------------------------------------------- */

/* Neighbours by chance are none: bits would depend on where the allocator put them. */
static bool continues(const tsi_operand *x, const tsi_operand *y, int32_t dim)
{
    const tsi_block *a = &x->block, *b = &y->block;
    bool alike = x->storage && x->storage == y->storage && a->dtype == b->dtype &&
                 a->ndim == b->ndim && a->data && b->data;
    for (int32_t d = 0; alike && d < a->ndim; d++) {
        alike = d == dim || a->extent[d] == b->extent[d];
        alike = alike && (b->extent[d] == 1 || a->extent[d] == 1 || a->stride[d] == b->stride[d]);
    }
    if (!alike) return false;
    int64_t bytes = a->extent[dim] * a->stride[dim] * (int64_t)ts_dtype_size((ts_dtype)a->dtype);
    return (const char *)a->data + bytes == (const char *)b->data;
}

/* All of them as one block, if they follow each other in a dim. */
static bool join(const tsi_operand *operand, int32_t count, int32_t dim, tsi_block *out)
{
    *out = operand[0].block;
    for (int32_t i = 1; i < count; i++) {
        const tsi_block *next = &operand[i].block;
        if (next->extent[dim] < 2 || !continues(&operand[i - 1], &operand[i], dim)) return false;
        out->extent[dim] += next->extent[dim];
    }
    return out->ndim > 0 && operand[0].block.extent[dim] > 1;
}

/* ---- kernels --------------------------------------------------------------------------------- */

ts_status tsi_linear_list_by(const tsi_kernel_io *io, tsi_list_product_fn product, bool joins)
{
    const tsi_block *x = &io->in[0].block;
    int32_t n = io->output_count;
    tsi_list_equation e = tsi_list_by_weight(x->ndim, 'k', 'n');
    tsi_block w, y;
    if (joins && join(io->in + 1, n, 0, &w) && join(io->out, n, x->ndim - 1, &y))
        return product(io, e.text, (const tsi_block *[]){ x, &w, &y }, false);
    for (int32_t i = 0; i < n; i++)
        TSI_TRY(product(io, e.text,
                        (const tsi_block *[]){ x, &io->in[1 + i].block, &io->out[i].block },
                        false));
    return TS_OK;
}

ts_status tsi_linear_list_input_by(const tsi_kernel_io *io, tsi_list_product_fn product, bool joins)
{
    const tsi_block *dx = &io->out[0].block;
    int32_t n = io->input_count / 2;
    tsi_list_equation e = tsi_list_by_weight(dx->ndim, 'n', 'k');
    tsi_block dy, w;
    if (joins && join(io->in, n, dx->ndim - 1, &dy) && join(io->in + n, n, 0, &w))
        return product(io, e.text, (const tsi_block *[]){ &dy, &w, dx }, false);
    for (int32_t i = 0; i < n; i++)
        TSI_TRY(product(io, e.text,
                        (const tsi_block *[]){ &io->in[i].block, &io->in[n + i].block, dx },
                        i > 0));
    return TS_OK;
}

ts_status tsi_linear_list_weights_by(const tsi_kernel_io *io, tsi_list_product_fn product,
                                     bool joins)
{
    const tsi_block *x = &io->in[0].block;
    int32_t n = io->output_count;
    tsi_list_equation e = tsi_list_of_weight(x->ndim);
    tsi_block dy, dw;
    if (joins && join(io->in + 1, n, x->ndim - 1, &dy) && join(io->out, n, 0, &dw))
        return product(io, e.text, (const tsi_block *[]){ x, &dy, &dw }, false);
    for (int32_t i = 0; i < n; i++)
        TSI_TRY(product(io, e.text,
                        (const tsi_block *[]){ x, &io->in[1 + i].block, &io->out[i].block },
                        false));
    return TS_OK;
}
