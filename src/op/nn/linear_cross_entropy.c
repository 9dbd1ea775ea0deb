/* SPDX-License-Identifier: Apache-2.0 */
/* linear_cross_entropy.c - the cross entropy of logits that never exist as a whole:
 *
 *   loss = sum over rows of -log softmax(x W')[label],   dx = (p - onehot) W,
 *   dW = (p - onehot)' x
 *
 * Rows are taken some at a time: their logits, their terms of the loss, and while the logits are
 * there both gradients, which backward only multiplies by the loss's own. So nothing is computed
 * twice, and a rank holds the logits of one chunk, which become their gradient.
 *
 * Leading dims may be cut in any way, the weight is whole: chunks are of the rows that a rank has.
 *
 * INV: terms are summed at the end, over all rows of a rank in their order: the loss does not
 * follow the size of chunks, nor do logits and dx, row by row; sums over chunks are dW alone. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/matrix/contract.h"
#include "op/nn/attributes.h"
#include "op/nn/cross_entropy.h"
#include "tensor/scope.h"

typedef struct lce_attributes {
    int64_t ignore_index;
    int64_t rows; /* of a chunk; 0: by the bytes of their logits */
    int32_t gradients, reserved;
} lce_attributes;
static const tsi_attribute lce_table[] = {
    TSI_ATTR(lce_attributes, ignore_index, INT, "ignore_index", "-100"),
    TSI_ATTR(lce_attributes, rows, INT, "rows", "0"),
    TSI_ATTR(lce_attributes, gradients, BOOL, "gradients", "true"),
    { 0 },
};

enum { X, WEIGHT, LABELS, INPUTS };
enum { LOSS, DX, DWEIGHT, OUTPUTS };
enum { CHUNK_BYTES = 32 << 20, CHUNK_ROWS_LEAST = 256 };

/* ---- shapes and rules ------------------------------------------------------------------------ */

static ts_dtype wide_of(int32_t dtype)
{
    return dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
}

static ts_status lce_infer(const tsi_op_call *call)
{
    const lce_attributes *a = call->attributes;
    const ts_shape *x = &call->in[X].shape, *w = &call->in[WEIGHT].shape,
                   *labels = &call->in[LABELS].shape;
    char one[96], other[96], third[96];
    if (w->ndim != 2 || !tsi_shape_is_rows(labels, x) || x->extent[x->ndim - 1] != w->extent[1])
        return TSI_FAIL(
            TS_ERR_SHAPE,
            "linear_cross_entropy: takes rows [.., C], a weight [V, C] and labels [..], "
            "not %s, %s and %s",
            tsi_shape_text(x, one, sizeof one), tsi_shape_text(w, other, sizeof other),
            tsi_shape_text(labels, third, sizeof third));
    if (tsi_dtype_category((ts_dtype)call->in[LABELS].dtype) != TSI_CATEGORY_INT)
        return TSI_FAIL(TS_ERR_DTYPE, "linear_cross_entropy: labels are integers, not %s",
                        ts_dtype_name((ts_dtype)call->in[LABELS].dtype));
    if (call->in[WEIGHT].dtype != call->in[X].dtype)
        return TSI_FAIL(TS_ERR_DTYPE, "linear_cross_entropy: rows are %s, the weight is %s",
                        ts_dtype_name((ts_dtype)call->in[X].dtype),
                        ts_dtype_name((ts_dtype)call->in[WEIGHT].dtype));
    if (a->rows < 0)
        return TSI_FAIL(TS_ERR_ARG, "linear_cross_entropy: chunks of %lld rows",
                        (long long)a->rows);
    int32_t wide = (int32_t)wide_of(call->in[X].dtype);
    call->out[LOSS] = (ts_meta){ .shape = TS_SHAPE_SCALAR, .dtype = wide };
    call->out[DX] = call->in[X];
    call->out[DWEIGHT] = (ts_meta){ .shape = *w, .dtype = wide };
    if (!a->gradients) call->out[DX].shape = call->out[DWEIGHT].shape = TS_SHAPE(0);
    return TS_OK;
}

static void lce_rules(const tsi_op_call *call, tsi_rules *rules)
{
    bool gradients = ((const lce_attributes *)call->attributes)->gradients;
    for (int32_t d = 0; d < call->in[LABELS].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[X] = row[LABELS] = TSI_S(d);
        row[INPUTS + LOSS] = TSI_P(TS_REDUCE_SUM);
        if (!gradients) continue;
        row[INPUTS + DX] = TSI_S(d);
        row[INPUTS + DWEIGHT] = TSI_P(TS_REDUCE_SUM);
    }
}

/* ---- the reference --------------------------------------------------------------------------- */

typedef struct plain { /* one row at a time, in double */
    const tsi_kernel_io *io;
    double *p; /* [V]: logits, then probabilities less the one of the label */
    int64_t classes, width;
} plain;

static double at2(const tsi_block *b, int64_t i, int64_t j)
{
    return tsi_block_real(b, i * b->stride[0] + j * b->stride[1]);
}

/* The row's term of the loss; `row` is where its x begins. */
static double plain_term(const plain *l, int64_t row, int64_t label)
{
    const tsi_block *x = &l->io->in[X].block, *w = &l->io->in[WEIGHT].block;
    double top = -INFINITY, sum = 0, chosen = 0;
    for (int64_t v = 0; v < l->classes; v++) {
        l->p[v] = 0;
        for (int64_t c = 0; c < l->width; c++)
            l->p[v] += at2(w, v, c) * tsi_block_real(x, row + c * x->stride[x->ndim - 1]);
        if (l->p[v] > top) top = l->p[v];
        if (v == label) chosen = l->p[v];
    }
    for (int64_t v = 0; v < l->classes; v++)
        sum += exp(l->p[v] - top);
    for (int64_t v = 0; v < l->classes; v++)
        l->p[v] = exp(l->p[v] - top) / sum - (v == label);
    return top + log(sum) - chosen;
}

static void plain_gradients(const plain *l, int64_t x_at, int64_t dx_at)
{
    const tsi_block *x = &l->io->in[X].block, *w = &l->io->in[WEIGHT].block,
                    *dx = &l->io->out[DX].block, *dw = &l->io->out[DWEIGHT].block;
    int32_t last = x->ndim - 1;
    for (int64_t v = 0; v < l->classes; v++)
        for (int64_t c = 0; c < l->width; c++) {
            double value = tsi_block_real(x, x_at + c * x->stride[last]);
            tsi_block_add_real(dx, dx_at + c * dx->stride[last], l->p[v] * at2(w, v, c));
            tsi_block_add_real(dw, v * dw->stride[0] + c * dw->stride[1], l->p[v] * value);
        }
}

static ts_status plain_rows(const plain *l)
{
    const lce_attributes *a = l->io->attributes;
    const tsi_block *x = &l->io->in[X].block, *labels = &l->io->in[LABELS].block,
                    *dx = &l->io->out[DX].block;
    tsi_loop loop =
        TSI_LOOP(labels, x->stride, labels->stride, a->gradients ? dx->stride : labels->stride);
    double total = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t label = tsi_block_int(labels, loop.at[1]);
        if (label == a->ignore_index) continue;
        if (label < 0 || label >= l->classes)
            return TSI_FAIL(TS_ERR_ARG,
                            "linear_cross_entropy: label %lld is out of range for %lld classes",
                            (long long)label, (long long)l->classes);
        total += plain_term(l, loop.at[0], label);
        if (a->gradients) plain_gradients(l, loop.at[0], loop.at[2]);
    }
    tsi_store_real((ts_dtype)l->io->out[LOSS].block.dtype, l->io->out[LOSS].block.data, total);
    return TS_OK;
}

/* Plain loops: what the rules are proved with. */
static ts_status lce_reference(const tsi_kernel_io *io)
{
    const tsi_block *w = &io->in[WEIGHT].block;
    plain l = { io, NULL, w->extent[0], w->extent[1] };
    l.p = tsi_alloc(((size_t)l.classes + 1) * sizeof *l.p);
    if (!l.p) return tsi_fail_memory("a row of logits", (size_t)l.classes * sizeof *l.p);
    for (int32_t o = DX; o < OUTPUTS; o++) {
        tsi_loop loop = tsi_loop_over(&io->out[o].block);
        for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
            tsi_block_set_real(&io->out[o].block, loop.at[0], 0);
    }
    ts_status status = plain_rows(&l);
    tsi_free(l.p);
    return status;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

typedef struct chunks { /* of the rows of this rank */
    const lce_attributes *a;
    ts_rank *rank;
    ts_tensor *x, *weight, *labels; /* [rows, C], [V, C], [rows] */
    ts_tensor *terms, *lse;         /* [rows] */
    ts_tensor *dx, *dweight;        /* [rows, C], [V, C]; NULL: not asked for, or nothing yet */
    int32_t cut, reserved;          /* 1: peers have other rows */
} chunks;

static int64_t chunk_rows(const chunks *c)
{
    if (c->a->rows) return c->a->rows;
    int64_t row =
        ts_tensor_shape(c->weight).extent[0] * (int64_t)ts_dtype_size(ts_tensor_dtype(c->weight));
    return tsi_max_i64(CHUNK_ROWS_LEAST, CHUNK_BYTES / tsi_max_i64(row, 1));
}

static ts_tensor *some(ts_tensor *list, ts_interval rows)
{
    return (ts_narrow)(list, 0, rows);
}

/* Both gradients of the sum of a chunk's terms; its logits become their own. */
static ts_status chunk_gradients(chunks *c, ts_interval rows, ts_tensor *logits, ts_tensor *labels)
{
    ts_tensor *x = some(c->x, rows), *dx = some(c->dx, rows);
    tsi_label_weights w =
        tsi_label_weights_of(labels, NULL, c->a->ignore_index, ts_tensor_dtype(c->lse));
    ts_tensor *in[] = { logits, labels, some(c->lse, rows), w.counts };
    ts_tensor *d = tsi_op_make_over(&tsi_op_cross_entropy_backward, in, 4, NULL);
    if (!d || !x || !dx) return ts_rank_status(c->rank);
    TSI_TRY(tsi_mm_into(d, c->weight, dx));
    c->dweight = c->dweight ? tsi_einsum_onto(c->dweight, "rv,rc->vc", d, x)
                            : tsi_einsum_wide("rv,rc->vc", d, x);
    return ts_rank_status(c->rank);
}

static ts_status chunk_run(chunks *c, ts_interval rows)
{
    const tsi_cross_entropy_attributes a = { .ignore_index = c->a->ignore_index,
                                             .reduction = TS_LOSS_NONE,
                                             .peers = c->cut };
    ts_tensor *in[] = { (ts_linear)(some(c->x, rows), c->weight, NULL), some(c->labels, rows) };
    ts_tensor *out[] = { some(c->terms, rows), some(c->lse, rows) };
    TSI_TRY(ts_rank_status(c->rank));
    TSI_TRY(tsi_op_run_into(&(tsi_op_args){ &tsi_op_cross_entropy, in, 2, 0, &a }, out));
    return c->dx ? chunk_gradients(c, rows, in[0], in[1]) : TS_OK;
}

/* What a chunk made ends with it, but the sum over chunks. */
static ts_status chunk_in_scope(chunks *c, ts_interval rows)
{
    const ts_tensor *before = c->dweight;
    ts_scope scope = ts_scope_open(c->rank, NULL);
    ts_status status = chunk_run(c, rows);
    if (c->dweight && c->dweight != before) (void)ts_scope_pass(scope, c->dweight);
    ts_scope_close(scope);
    return status;
}

/* ---- the algorithm --------------------------------------------------------------------------- */

/* Every row is written by its chunk. */
static ts_tensor *room(const chunks *c, ts_dtype dtype, ts_shape shape)
{
    return (ts_empty)(ts_tensor_mesh(c->x), dtype, shape, NULL);
}

static ts_tensor *zeros(const chunks *c, ts_dtype dtype, ts_shape shape)
{
    return (ts_zeros)(ts_tensor_mesh(c->x), dtype, shape, NULL);
}

/* This rank's block as its part of output o. */
static ts_tensor *part_of(const tsi_algorithm_io *io, ts_tensor *block, int32_t o)
{
    if (!block) return NULL;
    return tsi_tensor_make(io->mesh, io->out_layout[o], ts_tensor_dtype(block),
                           tsi_array_retain(block->array), NULL);
}

static ts_status chunks_begin(chunks *c, const tsi_algorithm_io *io)
{
    const ts_shape *w = &io->call->in[WEIGHT].shape;
    ts_tensor *labels = ts_tensor_local(io->in[LABELS]);
    TSI_TRY(ts_rank_status(io->rank));
    ts_shape all = ts_tensor_shape(labels), rows = TS_SHAPE(ts_shape_count(&all));
    ts_dtype wide = (ts_dtype)io->call->out[LOSS].dtype;
    c->labels = (ts_reshape)(labels, rows);
    c->weight = ts_tensor_local(io->in[WEIGHT]);
    c->x = (ts_reshape)(ts_tensor_local(io->in[X]), TS_SHAPE(rows.extent[0], w->extent[1]));
    TSI_TRY(ts_rank_status(io->rank));
    c->terms = room(c, wide, rows);
    c->lse = room(c, wide, rows);
    if (c->a->gradients) c->dx = room(c, ts_tensor_dtype(c->x), ts_tensor_shape(c->x));
    return ts_rank_status(io->rank);
}

static ts_status by_chunks(const tsi_algorithm_io *io)
{
    ts_scope scope = tsi_algorithm_begin(io);
    chunks c = { .a = io->attributes,
                 .rank = io->rank,
                 .cut = io->in[LABELS]->layout->axes_cut != 0 };
    ts_tensor *out[OUTPUTS] = { NULL };
    ts_status status = chunks_begin(&c, io);
    int64_t rows = status == TS_OK ? ts_tensor_shape(c.labels).extent[0] : 0;
    for (int64_t at = 0, step = 0; status == TS_OK && at < rows; at += step) {
        step = tsi_min_i64(chunk_rows(&c), rows - at);
        status = chunk_in_scope(&c, (ts_interval){ at, at + step });
    }
    if (status == TS_OK) {
        ts_dtype wide = (ts_dtype)io->call->out[LOSS].dtype;
        if (!c.dweight) c.dweight = zeros(&c, wide, io->call->out[DWEIGHT].shape);
        c.dx = c.dx ? (ts_reshape)(c.dx, tsi_array_shape(io->in[X]->array))
                    : zeros(&c, (ts_dtype)io->call->out[DX].dtype, TS_SHAPE(0));
        out[LOSS] = part_of(io, (ts_sum)(c.terms, NULL, 0, 0), LOSS);
        out[DX] = part_of(io, c.dx, DX);
        out[DWEIGHT] = part_of(io, c.dweight, DWEIGHT);
    }
    ts_status ended = tsi_algorithm_end(io, scope, out);
    return status == TS_OK ? ended : status;
}

static int64_t no_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call;
    (void)n;
    return 0;
}

static const tsi_algorithm lce_algorithms[] = { { "chunks", by_chunks, no_bytes }, { 0 } };

/* ---- the gradient ---------------------------------------------------------------------------- */

/* In f32 at least, rounded once. */
static ts_tensor *times(ts_tensor *made, ts_tensor *dy, int32_t dtype)
{
    return (ts_cast)((ts_mul)(made, dy), (ts_dtype)dtype);
}

static ts_status lce_grad(const tsi_grad_io *io)
{
    const lce_attributes *a = io->attributes;
    if (!a->gradients)
        return TSI_FAIL(TS_ERR_STATE, "linear_cross_entropy: it was called without gradients");
    ts_tensor *dy = io->out_grad[LOSS];
    const ts_meta *w = &io->in_meta[WEIGHT];
    int32_t as = tsi_grad_is_wide(io, WEIGHT) ? (int32_t)wide_of(w->dtype) : w->dtype;
    if (io->needs >> X & 1) io->in_grad[X] = times(io->out[DX], dy, io->in_meta[X].dtype);
    if (io->needs >> WEIGHT & 1) io->in_grad[WEIGHT] = times(io->out[DWEIGHT], dy, as);
    return ts_rank_status(io->rank);
}

/* ---- the row of the table -------------------------------------------------------------------- */

static double lce_flops(const tsi_op_call *call)
{
    double each = ((const lce_attributes *)call->attributes)->gradients ? 6.0 : 2.0;
    return each * (double)ts_shape_count(&call->in[LABELS].shape) *
           (double)ts_shape_count(&call->in[WEIGHT].shape);
}

static bool sample_lce(tsi_sample *s)
{
    ts_shape rows = s->variant % 2 ? TS_SHAPE(2, 3) : TS_SHAPE(5), x = rows;
    x.extent[x.ndim++] = 4;
    s->count = INPUTS;
    s->in[X] = tsi_meta_f64(x);
    s->in[WEIGHT] = tsi_meta_f64(TS_SHAPE(6, 4));
    s->in[LABELS] = (ts_meta){ .shape = rows, .dtype = TS_DTYPE_I64 };
    *(lce_attributes *)s->attributes =
        (lce_attributes){ .ignore_index = 2, .rows = s->variant, .gradients = s->variant < 3 };
    return s->variant < 4;
}

const tsi_op_desc tsi_op_linear_cross_entropy = {
    .name = "linear_cross_entropy",
    .what = "cross entropy of x W' summed over labels, by chunks of rows whose logits alone exist; "
            "and its gradients",
    TSI_OPERANDS(INPUTS, INPUTS, OUTPUTS),
    .flags = TSI_OP_COMPOSED,
    .dtypes = TSI_DTYPES_REAL,
    .saves = (uint64_t)(1 << DX | 1 << DWEIGHT) << TSI_SAVE_OUT,
    .aside = 1 << DX | 1 << DWEIGHT,
    TSI_ATTRIBUTES(lce_table, lce_attributes),
    .infer = lce_infer,
    .rules = lce_rules,
    .reference = lce_reference,
    .algorithm = lce_algorithms,
    .grad = lce_grad,
    .flops = lce_flops,
    .sample = sample_lce,
};

/* The mean of what the labels of a sum count; without any it is no number, and has no gradient: the
 * divisor is 1 then, and what is added NaN. */
static ts_tensor *mean_of(ts_tensor *sum, ts_tensor *labels, int64_t ignore_index)
{
    tsi_label_weights w = tsi_label_weights_of(labels, NULL, ignore_index, ts_tensor_dtype(sum));
    ts_tensor *all = (ts_tensor_full)((ts_sum)(w.counts, NULL, 0, 0));
    ts_tensor *none = (ts_div)((ts_zeros_like)(all), all);
    return (ts_add)((ts_div)(sum, (ts_clamp)(all, 1.0, (double)NAN)), none);
}

/* ---- public ---------------------------------------------------------------------------------- */

ts_tensor *(ts_linear_cross_entropy)(ts_tensor *x, ts_tensor *weight, ts_tensor *labels,
                                     const ts_linear_cross_entropy_options *options)
{
    ts_linear_cross_entropy_options o = TS_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    lce_attributes a = { o.ignore_index, o.rows, !o.no_gradients, 0 };
    ts_tensor *in[] = { x, weight, labels };
    ts_scope inner = tsi_scope_inner(x);
    ts_tensor *sum = tsi_op_make(&tsi_op_linear_cross_entropy, in, INPUTS, &a);
    if (sum && !o.sum) sum = mean_of(sum, labels, o.ignore_index);
    return ts_scope_leave(inner, sum);
}
