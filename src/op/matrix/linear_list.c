/* SPDX-License-Identifier: Apache-2.0 */
/* linear_list.c - one x by several weights: q, k and v of attention, gate and up of a gated mlp.
 *
 *   linear_pair, linear_triple     y_i = x w_i^T, columns of one block: [ y_0 | y_1 | y_2 ]
 *   linear_list_input              dx = sum of dy_i w_i
 *   linear_.._weights              dw_i = dy_i^T x, rows of one block
 *
 * Weights, results and gradients keep their names, shapes and placements. On a device, where their
 * local blocks lie beside each other (weights: rows of one block; results and their gradients:
 * columns), each of the three is one product, otherwise one a weight: the same numbers up to the
 * order of sums. The host has one a weight always, so that its bits depend on no address.
 *
 *   x [.., k]   w_i [n_i, k]   y_i [.., n_i] */
#include "op/matrix/linear_list.h"

#include <string.h>

#include "op/core/kernel.h"
#include "op/matrix/chunks.h"
#include "op/matrix/contract.h"

enum { LIST_MAX = 3 };

/* ---- inference ------------------------------------------------------------------------------- */

static ts_status refuse(const tsi_op_call *call, int32_t one, int32_t other)
{
    char text[96], beside[96];
    return TSI_FAIL(TS_ERR_SHAPE, "%s: input %d is %s, which does not fit input %d of %s",
                    call->op->name, other,
                    tsi_shape_text(&call->in[other].shape, text, sizeof text), one,
                    tsi_shape_text(&call->in[one].shape, beside, sizeof beside));
}

static ts_dtype dtype_of(const tsi_op_call *call)
{
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    for (int32_t i = 1; i < call->input_count; i++)
        dtype = tsi_dtype_promote(dtype, (ts_dtype)call->in[i].dtype);
    return dtype;
}

static int64_t last_of(const ts_shape *shape)
{
    return shape->ndim > 0 ? shape->extent[shape->ndim - 1] : -1;
}

/* The same leading dims. */
static bool rows_alike(const ts_shape *a, const ts_shape *b)
{
    return a->ndim == b->ndim && a->ndim > 0 && tsi_extents_same(a->extent, b->extent, a->ndim - 1);
}

static ts_status list_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[0].shape;
    TSI_TRY(tsi_check_reals(call));
    for (int32_t i = 0; i < call->output_count; i++) {
        const ts_shape *w = &call->in[1 + i].shape;
        if (x->ndim < 1 || w->ndim != 2 || w->extent[1] != last_of(x))
            return refuse(call, 0, 1 + i);
        call->out[i] = (ts_meta){ .shape = *x, .dtype = (int32_t)dtype_of(call) };
        call->out[i].shape.extent[x->ndim - 1] = w->extent[0];
    }
    return tsi_chunks_check(call);
}

/* Inputs: the gradients of all results, then all weights. */
static ts_status input_infer(const tsi_op_call *call)
{
    int32_t n = call->input_count / 2;
    const ts_shape *first = &call->in[0].shape;
    if (call->input_count % 2 || n > LIST_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: takes as many gradients as weights, 2 or 3; given are %d",
                        call->op->name, call->input_count);
    TSI_TRY(tsi_check_reals(call));
    for (int32_t i = 0; i < n; i++) {
        const ts_shape *dy = &call->in[i].shape, *w = &call->in[n + i].shape;
        if (!rows_alike(first, dy)) return refuse(call, 0, i);
        if (w->ndim != 2 || w->extent[0] != last_of(dy)) return refuse(call, i, n + i);
        if (w->extent[1] != call->in[n].shape.extent[1]) return refuse(call, n, n + i);
    }
    call->out[0] = (ts_meta){ .shape = *first, .dtype = (int32_t)dtype_of(call) };
    call->out[0].shape.extent[first->ndim - 1] = call->in[n].shape.extent[1];
    return tsi_chunks_check(call);
}

/* Inputs: x, then the gradients of all results. */
static ts_status weights_infer(const tsi_op_call *call)
{
    const ts_shape *x = &call->in[0].shape;
    ts_dtype dtype = dtype_of(call);
    bool narrow = dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
    if (((const tsi_list_weights *)call->attributes)->wide && narrow) dtype = TS_DTYPE_F32;
    TSI_TRY(tsi_check_reals(call));
    for (int32_t i = 0; i < call->output_count; i++) {
        const ts_shape *dy = &call->in[1 + i].shape;
        if (!rows_alike(x, dy)) return refuse(call, 0, 1 + i);
        call->out[i] =
            (ts_meta){ .shape = TS_SHAPE(last_of(dy), last_of(x)), .dtype = (int32_t)dtype };
    }
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* Roles of x (or dx), of every w and of every y of a row. */
typedef struct list_roles {
    tsi_role x, w, y;
} list_roles;

static const tsi_role pending[] = { TSI_P(TS_REDUCE_SUM), TSI_P(TS_REDUCE_AVG) };

static void add_row(tsi_rules *rules, int32_t n, int32_t x, int32_t w, int32_t y,
                    const list_roles *roles)
{
    tsi_role *row = tsi_rules_add(rules);
    row[x] = roles->x;
    for (int32_t i = 0; i < n; i++) {
        row[w + i] = roles->w;
        row[y + i] = roles->y;
    }
}

/* Beside a whole x every input goes its own way, and its output with it: whole, cut as `cut` says,
 * or pending. */
static void add_each(tsi_rules *rules, int32_t n, int32_t from, int32_t to, const tsi_role *cut)
{
    enum { WAYS = 4 };
    const tsi_role way[WAYS][2] = { { TSI_ROLE_R, TSI_ROLE_R },
                                    { cut[0], cut[1] },
                                    { pending[0], pending[0] },
                                    { pending[1], pending[1] } };
    int32_t all = 1;
    for (int32_t i = 0; i < n; i++)
        all *= WAYS;
    for (int32_t mix = 1; mix < all; mix++) {
        tsi_role *row = tsi_rules_add(rules);
        for (int32_t i = 0, rest = mix; i < n; i++, rest /= WAYS) {
            row[from + i] = way[rest % WAYS][0];
            row[to + i] = way[rest % WAYS][1];
        }
    }
}

/* Places of x, of the first weight and of the first result among inputs, then outputs. */
static void list_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t n = call->output_count, last = call->in[0].shape.ndim - 1, y = 1 + n;
    for (int32_t d = 0; d < last; d++)
        add_row(rules, n, 0, 1, y, &(list_roles){ TSI_S(d), TSI_ROLE_R, TSI_S(d) });
    add_row(rules, n, 0, 1, y, &(list_roles){ TSI_S(last), TSI_S(1), pending[0] });
    for (int k = 0; k < 2; k++)
        add_row(rules, n, 0, 1, y, &(list_roles){ pending[k], TSI_ROLE_R, pending[k] });
    add_each(rules, n, 1, y, (tsi_role[]){ TSI_S(0), TSI_S(last) });
}

/* All terms of the sum are pending, each by one of its two factors, or by a cut of what is summed;
 * beside averages a term may be whole. */
static void add_terms(tsi_rules *rules, int32_t n, int32_t last, ts_reduce reduce)
{
    enum { WAYS = 3 };
    bool sum = reduce == TS_REDUCE_SUM;
    const tsi_role p = TSI_P(reduce), r = TSI_ROLE_R;
    const tsi_role way[WAYS][2] = { { sum ? TSI_S(last) : r, sum ? TSI_S(0) : r },
                                    { p, r },
                                    { r, p } };
    int32_t all = 1;
    for (int32_t i = 0; i < n; i++)
        all *= WAYS;
    for (int32_t mix = sum ? 0 : 1; mix < all; mix++) {
        tsi_role *row = tsi_rules_add(rules);
        row[2 * n] = p;
        for (int32_t i = 0, rest = mix; i < n; i++, rest /= WAYS) {
            row[i] = way[rest % WAYS][0];
            row[n + i] = way[rest % WAYS][1];
        }
    }
}

static void input_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t n = call->input_count / 2, last = call->in[0].shape.ndim - 1, x = 2 * n;
    for (int32_t d = 0; d < last; d++)
        add_row(rules, n, x, n, 0, &(list_roles){ TSI_S(d), TSI_ROLE_R, TSI_S(d) });
    add_row(rules, n, x, n, 0, &(list_roles){ TSI_S(last), TSI_S(1), TSI_ROLE_R });
    add_terms(rules, n, last, TS_REDUCE_SUM);
    add_terms(rules, n, last, TS_REDUCE_AVG);
    tsi_chunks_rules(call, rules);
}

static void weights_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t n = call->output_count, last = call->in[0].shape.ndim - 1, w = 1 + n;
    for (int32_t d = 0; d < last; d++)
        add_row(rules, n, 0, w, 1, &(list_roles){ TSI_S(d), pending[0], TSI_S(d) });
    add_row(rules, n, 0, w, 1, &(list_roles){ TSI_S(last), TSI_S(1), TSI_ROLE_R });
    for (int k = 0; k < 2; k++)
        add_row(rules, n, 0, w, 1, &(list_roles){ pending[k], pending[k], TSI_ROLE_R });
    add_each(rules, n, 1, w, (tsi_role[]){ TSI_S(last), TSI_S(0) });
}

/* ---- rows ------------------------------------------------------------------------------------ */

static uint64_t list_rows(const tsi_op_call *call, int32_t dim)
{
    return dim < call->in[0].shape.ndim - 1;
}

/* Of all gradients. */
static uint64_t input_rows(const tsi_op_call *call, int32_t dim)
{
    return dim < call->in[0].shape.ndim - 1 ? (UINT64_C(1) << call->input_count / 2) - 1 : 0;
}

typedef struct list_attributes {
    tsi_chunks chunks;
} list_attributes;
static const tsi_attribute list_table[] = { TSI_CHUNKS_ATTRIBUTES(list_attributes, chunks), { 0 } };
static const tsi_chunks_desc list_chunks = { offsetof(list_attributes, chunks), list_rows };
static const tsi_chunks_desc input_chunks = { offsetof(list_attributes, chunks), input_rows };

/* ---- the reference --------------------------------------------------------------------------- */

static ts_status loops(const tsi_kernel_io *io, const char *equation,
                       const tsi_block *const block[3], bool accumulate)
{
    (void)io;
    tsi_contraction problem;
    tsi_contraction_make(equation, block[0], block[1], block[2], &problem);
    return tsi_contract_reference(&problem, accumulate);
}

static ts_status list_reference(const tsi_kernel_io *io)
{
    return tsi_linear_list_by(io, loops, false);
}

static ts_status input_reference(const tsi_kernel_io *io)
{
    return tsi_linear_list_input_by(io, loops, false);
}

static ts_status weights_reference(const tsi_kernel_io *io)
{
    return tsi_linear_list_weights_by(io, loops, false);
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* Results that nothing was asked of have no gradient: then one weight at a time. */
static ts_status grad_of_some(const tsi_grad_io *io)
{
    int32_t n = io->output_count, ndim = io->in_meta[0].shape.ndim;
    tsi_list_equation back = tsi_list_by_weight(ndim, 'n', 'k'), own = tsi_list_of_weight(ndim);
    for (int32_t i = 0; i < n; i++) {
        ts_tensor *dy = io->out_grad[i];
        if (!dy) continue;
        if (io->needs >> (1 + i) & 1)
            io->in_grad[1 + i] = tsi_grad_is_wide(io, 1 + i)
                                     ? tsi_einsum_wide(own.text, io->in[0], dy)
                                     : ts_einsum(own.text, io->in[0], dy);
        if (!(io->needs & 1)) continue;
        ts_tensor *dx = ts_einsum(back.text, dy, io->in[1 + i]);
        io->in_grad[0] = io->in_grad[0] ? ts_add(io->in_grad[0], dx) : dx;
    }
    return ts_rank_status(io->rank);
}

static const tsi_op_desc *weights_op(int32_t n)
{
    return n == 2 ? &tsi_op_linear_pair_weights : &tsi_op_linear_triple_weights;
}

static ts_status list_grad(const tsi_grad_io *io)
{
    int32_t n = io->output_count;
    uint64_t weights = ((UINT64_C(1) << n) - 1) << 1;
    bool all = (io->needs & weights) == weights || (io->needs & weights) == 0;
    for (int32_t i = 0; i < n; i++)
        all = all && io->out_grad[i];
    if (!all) return grad_of_some(io);
    ts_tensor *in[2 * LIST_MAX] = { NULL }, *out[TSI_OUTPUT_MAX] = { NULL };
    if (io->needs & 1) {
        memcpy(in, io->out_grad, (size_t)n * sizeof *in);
        memcpy(in + n, io->in + 1, (size_t)n * sizeof *in);
        list_attributes attributes = { tsi_chunks_wanted(io->in[0]) };
        attributes.chunks.scatter = tsi_chunks_back(io->in[0], io->out_grad[0]);
        io->in_grad[0] = tsi_op_make(&tsi_op_linear_list_input, in, 2 * n, &attributes);
    }
    if (!(io->needs & weights)) return ts_rank_status(io->rank);
    in[0] = io->in[0];
    memcpy(in + 1, io->out_grad, (size_t)n * sizeof *in);
    bool wide = true;
    for (int32_t i = 1; i <= n; i++)
        wide = wide && tsi_grad_is_wide(io, i);
    tsi_op_args args = { weights_op(n), in, 1 + n, 0, &(tsi_list_weights){ wide, 0 } };
    TSI_TRY(tsi_op_run(&args, out));
    memcpy(io->in_grad + 1, out, (size_t)n * sizeof *out);
    return ts_rank_status(io->rank);
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Sizes of 16 bytes and more, so that results of f64 lie beside each other, and others. */
static const int64_t widths[][LIST_MAX] = { { 4, 2, 6 }, { 3, 5, 4 } };
enum { INNER = 4 };

static ts_meta rows_meta(int32_t variant, int64_t width)
{
    return (ts_meta){ .shape = variant == 0 ? TS_SHAPE(2, 3, width) : TS_SHAPE(5, width),
                      .dtype = TS_DTYPE_F64 };
}

static ts_meta weight_meta(int64_t rows)
{
    return (ts_meta){ .shape = TS_SHAPE(rows, INNER), .dtype = TS_DTYPE_F64 };
}

static bool sample_list(int32_t n, tsi_sample *s)
{
    *(list_attributes *)s->attributes = (list_attributes){ { .scatter = -1 } };
    s->count = 1 + n;
    s->in[0] = rows_meta(s->variant, INNER);
    for (int32_t i = 0; i < n && s->variant < 2; i++)
        s->in[1 + i] = weight_meta(widths[s->variant][i]);
    return s->variant < 2;
}

/* Narrow, as they are. */
static bool sample_weights(int32_t n, tsi_sample *s)
{
    s->count = 1 + n;
    s->in[0] = rows_meta(s->variant, INNER);
    for (int32_t i = 0; i < n && s->variant < 2; i++)
        s->in[1 + i] = rows_meta(s->variant, widths[s->variant][i]);
    return s->variant < 2;
}

static bool sample_input(tsi_sample *s)
{
    *(list_attributes *)s->attributes = (list_attributes){ { .scatter = -1 } };
    int32_t n = 2 + s->variant % 2;
    s->count = 2 * n;
    for (int32_t i = 0; i < n && s->variant < 2; i++) {
        s->in[i] = rows_meta(s->variant, widths[s->variant][i]);
        s->in[n + i] = weight_meta(widths[s->variant][i]);
    }
    return s->variant < 2;
}

#define SAMPLE(name, kind, n)                                                                      \
    static bool name(tsi_sample *s)                                                                \
    {                                                                                              \
        return kind(n, s);                                                                         \
    }
SAMPLE(sample_pair, sample_list, 2)
SAMPLE(sample_triple, sample_list, 3)
SAMPLE(sample_pair_weights, sample_weights, 2)
SAMPLE(sample_triple_weights, sample_weights, 3)

/* ---- the rows -------------------------------------------------------------------------------- */

/* All of them: as many rows of x, times its columns, times the columns of all results. */
static double list_flops(const tsi_op_call *call)
{
    double columns = 0;
    const ts_shape *x = &call->in[0].shape;
    for (int32_t i = 0; i < call->output_count; i++)
        columns += (double)call->in[1 + i].shape.extent[0];
    return 2.0 * (double)ts_shape_count(x) * columns;
}

static double input_flops(const tsi_op_call *call)
{
    double flops = 0;
    int32_t n = call->input_count / 2;
    for (int32_t i = 0; i < n; i++)
        flops += 2.0 * (double)ts_shape_count(&call->in[i].shape) *
                 (double)call->in[n + i].shape.extent[1];
    return flops;
}

static double weights_flops(const tsi_op_call *call)
{
    double flops = 0, inner = (double)last_of(&call->in[0].shape);
    for (int32_t i = 0; i < call->output_count; i++)
        flops += 2.0 * (double)ts_shape_count(&call->in[1 + i].shape) * inner;
    return flops;
}

static const tsi_attribute weights_table[] = {
    TSI_ATTR(tsi_list_weights, wide, BOOL, "wide", "false"), { 0 }
};

#define LIST(n)                                                                                    \
    .dtypes = TSI_DTYPES_REAL, .input_min = 1 + (n), .input_max = 1 + (n), .output_count = n
#define CHUNKS                                                                                     \
    .attribute = list_table, .attribute_bytes = sizeof(list_attributes),                           \
    .algorithm = tsi_chunks_algorithms, .pick = tsi_chunks_pick, .fuse = tsi_chunks_fuse,          \
    .arrives = tsi_chunks_arrive
#define FORWARD                                                                                    \
    CHUNKS, .chunks = &list_chunks, .saves = 15, .beside = -1, .infer = list_infer,                \
            .rules = list_rules, .reference = list_reference, .grad = list_grad,                   \
            .flops = list_flops
#define WEIGHTS                                                                                    \
    .flags = TSI_OP_NO_GRAD, .beside = 1, .attribute = weights_table,                              \
    .attribute_bytes = sizeof(tsi_list_weights), .infer = weights_infer, .rules = weights_rules,   \
    .reference = weights_reference, .flops = weights_flops

const tsi_op_desc tsi_op_linear_pair = {
    .name = "linear_pair",
    .what = "x w^T for two weights; on a device one product where they lie beside each other",
    LIST(2),
    FORWARD,
    .sample = sample_pair,
};
const tsi_op_desc tsi_op_linear_triple = {
    .name = "linear_triple",
    .what = "x w^T for three weights; on a device one product where they lie beside each other",
    LIST(3),
    FORWARD,
    .sample = sample_triple,
};
const tsi_op_desc tsi_op_linear_pair_weights = {
    .name = "linear_pair_weights",
    .what = "gradients of linear_pair by its weights",
    LIST(2),
    WEIGHTS,
    .sample = sample_pair_weights,
};
const tsi_op_desc tsi_op_linear_triple_weights = {
    .name = "linear_triple_weights",
    .what = "gradients of linear_triple by its weights",
    LIST(3),
    WEIGHTS,
    .sample = sample_triple_weights,
};
const tsi_op_desc tsi_op_linear_list_input = {
    .name = "linear_list_input",
    .what = "gradient of linear_pair or linear_triple by x: the sum of dy w over all weights",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(4, 2 * LIST_MAX, 1),
    .flags = TSI_OP_NO_GRAD,
    CHUNKS,
    .chunks = &input_chunks,
    .infer = input_infer,
    .rules = input_rules,
    .reference = input_reference,
    .flops = input_flops,
    .sample = sample_input,
};

/* ---- the maker ------------------------------------------------------------------------------- */

ts_status(ts_linear_list)(ts_tensor *x, ts_tensor *const *weight, int32_t count, ts_tensor **out)
{
    ts_tensor *in[1 + LIST_MAX] = { x }, *made[TSI_OUTPUT_MAX] = { NULL };
    for (int32_t i = 0; i < count; i++)
        out[i] = NULL;
    if (count < 2 || count > LIST_MAX) {
        for (int32_t i = 0; i < count; i++)
            out[i] = (ts_linear)(x, weight[i], NULL);
        return x ? ts_rank_status(ts_tensor_rank(x)) : TS_ERR_NULL;
    }
    for (int32_t i = 0; i < count; i++)
        in[1 + i] = weight[i];
    list_attributes attributes = { tsi_chunks_wanted(x) };
    tsi_op_args args = { count == 2 ? &tsi_op_linear_pair : &tsi_op_linear_triple, in, 1 + count, 0,
                         &attributes };
    TSI_TRY(tsi_op_run(&args, made));
    for (int32_t i = 0; i < count; i++)
        out[i] = made[i];
    return TS_OK;
}
