/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - rotary positions.
 *
 * x [.., T, D]; table [T, D]: cosines of D/2 angles, then sines. Halves: (x1, x2) -> (x1 c - x2 s,
 * x2 c + x1 s). A rank knows which positions of T it holds, so T may be cut. */
#include <string.h>

#include "op/core/common.h"
#include "op/nn/attributes.h"

static const tsi_attribute rope_table[] = {
    TSI_ATTR(tsi_rope_attributes, inverse, BOOL, "inverse", "false"), { 0 }
};

static ts_status rope_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[0].shape, *table = &call->in[1].shape;
    bool fits = x->ndim >= 2 && table->ndim == 2 && table->extent[1] == x->extent[x->ndim - 1] &&
                table->extent[0] >= x->extent[x->ndim - 2] && x->extent[x->ndim - 1] % 2 == 0;
    char one[96], other[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE, "rope: x is %s, which does not fit a table of %s",
                        tsi_shape_text(x, one, sizeof one),
                        tsi_shape_text(table, other, sizeof other));
    call->out[0] = call->in[0];
    return TS_OK;
}

/* Every dim but the last; the sequence dim too, since a rank knows which positions it holds. */
static void rope_rules(const tsi_op_call *call, tsi_rules *rules)
{
    for (int32_t d = 0; d + 1 < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = row[2] = TSI_S(d);
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH, .linear_in = 1 };
    tsi_rules_partials(rules, &linear);
}

static ts_status rope_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *table = &io->in[1].block, *y = &io->out[0].block;
    double sign = ((const tsi_rope_attributes *)io->attributes)->inverse ? -1.0 : 1.0;
    int32_t last = x->ndim - 1, sequence = x->ndim - 2;
    int64_t half = x->extent[last] / 2;
    tsi_loop loop = { .ndim = last, .operand_count = 2, .stride = { x->stride, y->stride } };
    memcpy(loop.extent, x->extent, sizeof loop.extent);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t position = loop.index[sequence];
        if (io->in[0].region)
            position = tsi_span_list_at(&io->in[0].region->dim[sequence], position);
        for (int64_t i = 0; i < half; i++) {
            double c = tsi_block_real(table, position * table->stride[0] + i * table->stride[1]);
            double s = sign * tsi_block_real(table, position * table->stride[0] +
                                                        (half + i) * table->stride[1]);
            double a = tsi_block_real(x, loop.at[0] + i * x->stride[last]);
            double b = tsi_block_real(x, loop.at[0] + (half + i) * x->stride[last]);
            tsi_block_set_real(y, loop.at[1] + i * y->stride[last], a * c - b * s);
            tsi_block_set_real(y, loop.at[1] + (half + i) * y->stride[last], b * c + a * s);
        }
    }
    return TS_OK;
}

static ts_tensor *rope(ts_tensor *x, ts_tensor *table, int32_t inverse)
{
    ts_tensor *in[] = { x, table };
    return tsi_op_make(&tsi_op_rope, in, 2, &(tsi_rope_attributes){ .inverse = inverse });
}

/* Is no cut on the last dim, or over several? Every rank answers alike: it asks the layout. */
static bool last_dim_stays(const ts_layout *layout)
{
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        const ts_placement *p = &layout->sharding->place[k];
        if (tsi_placement_cuts(p) && (p->dim != p->dim_last || p->dim == layout->shape.ndim - 1))
            return false;
    }
    return true;
}

/* A gradient that nobody else sees and whose rows are here is turned where it lies: beside those of
 * k and v it stays part of one block. */
static bool is_own(ts_tensor *dy)
{
    return tsi_tensor_ready(dy) == TS_OK && dy->references == 1 && !dy->is_variable &&
           tsi_array_is_alone(dy->array) && last_dim_stays(dy->layout);
}

static ts_status rope_grad(const tsi_grad_io *io)
{
    bool inverse = ((const tsi_rope_attributes *)io->attributes)->inverse;
    if (!(io->needs & 1)) return TS_OK;
    ts_tensor *dy = io->out_grad[0], *in[] = { dy, io->in[1] }, *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { &tsi_op_rope, in, 2, is_own(dy),
                         &(tsi_rope_attributes){ .inverse = !inverse } };
    TSI_TRY(tsi_op_run(&args, out));
    io->in_grad[0] = args.in_place ? dy : out[0];
    return TS_OK;
}

static bool sample_rope(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(2, 3, 5, 4));
    s->in[1] = tsi_meta_f64(TS_SHAPE(6, 4));
    ((tsi_rope_attributes *)s->attributes)->inverse = s->variant;
    return s->variant < 2;
}

const tsi_op_desc tsi_op_rope = {
    .name = "rope",
    .flags = TSI_OP_CHEAP | TSI_OP_IN_PLACE, /* a row is read before it is written */
    .what = "rotation of pairs of the last dim by the angles of their position",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(2, 2, 1),
    .saves = 2,
    .lies_like = { 1 },
    TSI_ATTRIBUTES(rope_table, tsi_rope_attributes),
    .infer = rope_infer,
    .rules = rope_rules,
    .reference = rope_reference,
    .grad = rope_grad,
    .sample = sample_rope,
};

ts_tensor *(ts_rope)(ts_tensor *x, ts_tensor *table)
{
    return rope(x, table, 0);
}

ts_tensor *(ts_rope_)(ts_tensor *x, ts_tensor *table)
{
    ts_tensor *in[] = { x, table }, *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { &tsi_op_rope, in, 2, 1, &(tsi_rope_attributes){ .inverse = 0 } };
    return x && tsi_op_run(&args, out) == TS_OK ? x : NULL;
}
