/* SPDX-License-Identifier: Apache-2.0 */
/* op_gradients.c - the gradient of every operator of the table that has one, against central
 * differences in f64, with replicated and with drawn placements; and a reason for every other one.
 *
 *   L(x) = sum over the outputs of w y(x);   <dL/dx, v>  against  (L(x + hv) - L(x - hv)) / 2h
 *
 * for each input that holds reals and two directions v. Values are distinct and lie where all
 * functions are smooth, 0.2 .. 0.8 unless the table below says otherwise. */
#include <complex.h>

#include "op/core/attribute.h"
#include "op_family.h"

enum { DIRECTIONS = 2, INDEX_MAX = 4 };
static const double step = 1e-6;

/* ---- values ---------------------------------------------------------------------------------- */

typedef struct domain {
    const char *op;
    double low, high;
} domain;
static const domain domains[] = {
    { "acosh", 1.2, 2.0 },     { "cumprod", 0.7, 1.4 },
    { "prod", 0.7, 1.4 },      { "fmod", 1.1, 1.9 },
    { "remainder", 1.1, 1.9 }, { "hypot", 0.4, 1.4 },
    { "lgamma", 0.6, 2.6 },    { "threshold_backward", 0.2, 0.8 },
};

typedef struct point {    /* one input of a call, moved along a direction */
    int32_t input, moved; /* moved: which input moves; -1: none */
    int32_t direction, reserved;
    int64_t limit; /* of indices */
    double low, high, h;
} point;

static double fraction(double x)
{
    return x - floor(x);
}

/* Any two elements of an input differ by far more than the step. */
static double value_of(const point *p, const ts_meta *meta, int64_t i)
{
    ts_dtype dtype = (ts_dtype)meta->dtype;
    if (dtype == TS_DTYPE_BOOL) return (double)((i * 7 + p->input) % 3 == 0);
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_INT) return (double)((i * 7 + i / 5) % p->limit);
    double x = fraction(0.13 + 0.6180339887498949 * (double)(i + 1) + 0.37 * p->input);
    x = p->low + (p->high - p->low) * x;
    if (p->input == p->moved)
        x += p->h * cos(1.0 + 2.3 * (double)i * (1 + p->direction) + 0.7 * p->direction);
    return x;
}

/* Of complex numbers it turns. */
static double complex direction_at(const point *p, ts_dtype dtype, int64_t i)
{
    double angle = 1.0 + 2.3 * (double)i * (1 + p->direction) + 0.7 * p->direction;
    return dtype == TS_DTYPE_C128 ? cexp((double complex)I * angle) : cos(angle);
}

/* The imaginary part is small against the real one: branch cuts are far. */
static double complex complex_of(const point *p, const ts_meta *meta, int64_t i)
{
    if (meta->dtype != TS_DTYPE_C128) return value_of(p, meta, i);
    point still = *p;
    still.moved = -1;
    double complex x = value_of(&still, meta, i);
    x += (double complex)I * 0.4 * (fraction(0.41 + 0.7548776662 * (double)(i + 1)) - 0.5);
    return p->input == p->moved ? x + p->h * direction_at(p, TS_DTYPE_C128, i) : x;
}

/* The value with a placement; of a pending sum member 0 of an axis holds what the others lack. */
static ts_tensor *input_of(ts_mesh *mesh, const ts_meta *meta, const char *place, const point *p)
{
    ts_tensor *t = ts_empty(mesh, (ts_dtype)meta->dtype, meta->shape, place);
    if (!t || ts_tensor_wait(t) != TS_OK) return NULL;
    tsi_arena arena = { 0 };
    tsi_region region;
    ts_array view;
    tsi_block block = tsi_array_block(t->array);
    bool here = t->array->storage->device->host_readable;
    if (!here &&
        (test_view(t, &view) != TS_OK || tsi_block_of_array(&view, "input", &block) != TS_OK))
        return NULL;
    int64_t holder = 0, holders = 1;
    for (int32_t k = 0; k < mesh->desc->ndim; k++) {
        if (!tsi_placement_partial(&t->layout->sharding->place[k])) continue;
        holder = holder * mesh->desc->size[k] + mesh->coord[k];
        holders *= mesh->desc->size[k];
    }
    if (mesh->member && tsi_layout_region(t->layout, mesh->coord, &arena, &region)) {
        tsi_loop loop = tsi_loop_over(&block);
        for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
            int64_t i = 0;
            for (int32_t d = 0; d < block.ndim; d++)
                i = i * meta->shape.extent[d] + tsi_span_list_at(&region.dim[d], loop.index[d]);
            double complex x = complex_of(p, meta, i);
            if (holders > 1) x = holder ? 0.25 : x - 0.25 * (double)(holders - 1);
            tsi_store_complex((ts_dtype)meta->dtype, tsi_block_at(&block, loop.at[0]), x);
        }
    }
    tsi_arena_release(&arena);
    return here || test_written(t, &view) == TS_OK ? t : NULL;
}

/* ---- one call -------------------------------------------------------------------------------- */

typedef struct gradient_case {
    test *t;
    const tsi_op_desc *op;
    ts_mesh *mesh;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count, drawn;
    _Alignas(16) unsigned char attributes[1024];
    char place[TSI_INPUT_MAX][64];
    point p;
    bool ran;  /* the call itself, of the latest loss */
    bool both; /* complex numbers in place of reals */
} gradient_case;

/* Shorter numbers would round the step away. */
static bool is_real(const ts_meta *meta)
{
    return meta->dtype == TS_DTYPE_F64 || meta->dtype == TS_DTYPE_C128;
}

static ts_tensor *weights_of(ts_tensor *y, int32_t output)
{
    if (ts_tensor_dtype(y) == TS_DTYPE_C128) {
        ts_meta meta = { .shape = ts_tensor_shape(y), .dtype = TS_DTYPE_C128 };
        point p = { .input = 7 + output, .moved = -1, .low = 0.3, .high = 0.9, .limit = 1 };
        return input_of(ts_tensor_mesh(y), &meta, NULL, &p);
    }
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = 0.3 + 0.1 * output;
    range.step = 0.17;
    return ts_arange(ts_tensor_mesh(y), TS_DTYPE_F64, ts_tensor_shape(y), NULL, &range);
}

/* Is this output, after the first, a statistic that is kept for the gradient? */
static bool is_statistic(const char *op, int32_t output)
{
    if (strcmp(op, "add_rms_norm") == 0) return output == 2;
    static const char *const names[] = { "layer_norm", "rms_norm", "group_norm", "cross_entropy",
                                         "linear_cross_entropy" };
    for (size_t i = 0; i < TSI_COUNT_OF(names); i++)
        if (strcmp(names[i], op) == 0) return true;
    return false;
}

/* The loss of the call; inputs are watched if `leaf` is given. */
static ts_tensor *loss_of(gradient_case *c, ts_tensor **leaf)
{
    ts_tensor *in[TSI_INPUT_MAX] = { NULL }, *out[TSI_OUTPUT_MAX] = { NULL }, *loss = NULL;
    for (int32_t i = 0; i < c->input_count; i++) {
        if (c->in[i].dtype == TS_DTYPE_NONE) continue;
        c->p.input = i;
        in[i] = input_of(c->mesh, &c->in[i], c->place[i], &c->p);
        if (leaf && is_real(&c->in[i])) in[i] = leaf[i] = ts_watch(in[i]);
    }
    if (leaf) ts_tape_begin(c->t->me);
    tsi_op_state *state = tsi_op_state_of(c->t->me);
    state->stream_is_forced = 1; /* random operators draw the same each time */
    state->stream_forced = 42;
    tsi_op_args args = { c->op, in, c->input_count, 0, c->attributes };
    ts_status status = tsi_op_run(&args, out);
    c->ran = status == TS_OK;
    state->stream_is_forced = 0;
    for (int32_t o = 0; status == TS_OK && o < c->op->output_count; o++) {
        ts_meta one = { .dtype = (int32_t)ts_tensor_dtype(out[o]) };
        if (!is_real(&one) || (o > 0 && is_statistic(c->op->name, o))) continue;
        ts_tensor *part = ts_mul(out[o], weights_of(out[o], o)); /* of complex ones the real part */
        part = ts_sum(ts_cast(part, TS_DTYPE_F64), NULL, 0, 0);
        loss = loss ? ts_add(loss, part) : part;
    }
    return loss;
}

static double loss_at(gradient_case *c, int32_t moved, double h)
{
    double value = NAN;
    c->p.moved = moved;
    c->p.h = h;
    ts_scope scope = ts_scope_open(c->t->me, "difference");
    ts_tensor *loss = loss_of(c, NULL);
    if (loss) (void)ts_tensor_item(loss, &value);
    ts_scope_close(scope);
    return value;
}

/* Inputs that get none on purpose. */
static bool is_constant(const char *op, int32_t input)
{
    /* The table of positions is made, not learnt; what takes a loss along is its value in no way.
     */
    return input == 1 && (strcmp(op, "rope") == 0 || strcmp(op, "with_loss") == 0);
}

static double complex *complex_numbers(ts_tensor *t, int64_t *count)
{
    ts_tensor *full = ts_tensor_full(t);
    if (!full || ts_tensor_wait(full) != TS_OK) return NULL;
    tsi_block block = tsi_array_block(full->array);
    *count = tsi_block_count(&block);
    int64_t stride = 1;
    for (int32_t d = block.ndim - 1; d >= 0; stride *= block.extent[d--])
        block.stride[d] = stride;
    char *data = tsi_alloc_array((size_t)*count + 1, ts_dtype_size((ts_dtype)block.dtype));
    double complex *out = tsi_alloc_array((size_t)*count + 1, sizeof *out);
    block.data = data;
    if (tsi_array_read(full->rank, full->array, &block) != TS_OK) return NULL;
    for (int64_t i = 0; i < *count; i++)
        out[i] = tsi_load_complex((ts_dtype)block.dtype,
                                  data + i * (int64_t)ts_dtype_size((ts_dtype)block.dtype));
    tsi_free(data);
    return out;
}

/* The gradient of a complex number is dL/dre + i dL/dim. */
static void compare(gradient_case *c, ts_tensor *const *leaf)
{
    for (int32_t i = 0; i < c->input_count; i++) {
        if (!leaf[i]) continue;
        int64_t n = 0;
        ts_tensor *grad = ts_tensor_grad(leaf[i]);
        double complex *dx = grad ? complex_numbers(grad, &n) : NULL;
        for (c->p.direction = 0; c->p.direction < DIRECTIONS; c->p.direction++) {
            double have = 0;
            for (int64_t e = 0; e < n; e++)
                have += creal(conj(dx[e]) * direction_at(&c->p, (ts_dtype)c->in[i].dtype, e));
            double want = (loss_at(c, i, step) - loss_at(c, i, -step)) / (2 * step);
            if (!isfinite(want) || is_constant(c->op->name, i)) continue;
            TEST_SAY(c->t, fabs(have - want) <= 2e-6 * (1 + fabs(want)),
                     "%s, input %d of %d (%s; %s): slope %.10g, not %.10g", c->op->name, i,
                     c->input_count, c->place[0], c->input_count > 1 ? c->place[1] : "", have,
                     want);
        }
        tsi_free(dx);
    }
}

static void check_case(gradient_case *c)
{
    ts_scope scope = ts_scope_open(c->t->me, c->op->name);
    ts_tensor *leaf[TSI_INPUT_MAX] = { NULL };
    c->p.moved = -1;
    c->p.h = 0;
    ts_tensor *loss = loss_of(c, leaf);
    TEST_SAY(c->t, loss && ts_backward(loss, NULL) == TS_OK, "%s (%s): %s", c->op->name,
             c->place[0],
             ts_rank_error(c->t->me) ? ts_rank_error(c->t->me)->text : "no output of reals");
    if (ts_rank_status(c->t->me) == TS_OK && loss) compare(c, leaf);
    ts_scope_close(scope);
}

/* ---- all calls ------------------------------------------------------------------------------- */

static void draw_places(gradient_case *c)
{
    for (int32_t i = 0; i < c->input_count; i++) {
        c->place[i][0] = '\0';
        for (int32_t k = 0; k < ts_mesh_ndim(c->mesh); k++) {
            int32_t ndim = c->in[i].shape.ndim;
            int64_t choices = 1 + ndim + (is_real(&c->in[i]) && !c->op->propagate);
            int64_t pick = c->drawn ? test_random_below(c->t, choices) : 0;
            char one[16] = "R";
            if (pick > 0 && pick <= ndim) snprintf(one, sizeof one, "S(%d)", (int)pick - 1);
            if (pick > ndim) snprintf(one, sizeof one, "P(sum)");
            if (k) strcat(c->place[i], ", ");
            strcat(c->place[i], one);
        }
    }
}

/* The largest limit of indices that the call takes, found on one rank. False: it has no reals on
 * one of its sides. */
static bool find_limit(gradient_case *c)
{
    ts_mesh *mesh = c->mesh;
    c->mesh = ts_mesh_self(c->t->me);
    bool good = false, smooth = false, reals = false;
    for (int32_t i = 0; i < c->input_count; i++)
        reals |= is_real(&c->in[i]);
    for (int32_t i = 0; i < c->input_count; i++)
        strcpy(c->place[i], "R");
    for (c->p.limit = INDEX_MAX; c->p.limit > 0 && !good; c->p.limit -= !good) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        ts_scope scope = ts_scope_open_with(c->t->me, &options);
        c->p.moved = -1;
        smooth = loss_of(c, NULL) != NULL;
        good = c->ran;
        (void)ts_scope_close(scope);
    }
    c->mesh = mesh;
    TEST_SAY(c->t, good || c->both, "%s: no indices do", c->op->name);
    return good && smooth && reals;
}

/* How many of its samples were differentiated. */
static int32_t check_operator(test *t, ts_mesh *mesh, const tsi_op_desc *op, int32_t rounds,
                              bool both)
{
    int32_t checked = 0;
    gradient_case c = { .t = t, .op = op, .mesh = mesh, .both = both };
    c.p.low = 0.2;
    c.p.high = 0.8;
    for (size_t i = 0; i < TSI_COUNT_OF(domains); i++)
        if (strcmp(domains[i].op, op->name) == 0) {
            c.p.low = domains[i].low;
            c.p.high = domains[i].high;
        }
    for (int32_t variant = 0; variant < 3; variant++) {
        uint64_t random = t->seed + (uint64_t)variant;
        memset(c.in, 0, sizeof c.in);
        memset(c.attributes, 0, sizeof c.attributes);
        c.input_count = op->input_max;
        if (!tsi_op_sample(op, &random, variant, c.in, &c.input_count, c.attributes)) break;
        for (int32_t i = 0; both && i < c.input_count; i++)
            if (c.in[i].dtype == TS_DTYPE_F64) c.in[i].dtype = TS_DTYPE_C128;
        if (!find_limit(&c)) continue;
        checked++;
        for (int32_t r = 0; r < rounds; r++) {
            c.drawn = rounds > 1 || t->count > 1;
            draw_places(&c);
            check_case(&c);
        }
    }
    return checked;
}

static void check_table(test *t, ts_mesh *mesh, int32_t rounds, bool both)
{
    int32_t checked = 0;
    for (int32_t i = 0; i < TSI_OP_ID_COUNT && ts_rank_status(t->me) == TS_OK; i++) {
        const tsi_op_desc *op = tsi_op_at(i);
        if (!op->grad) continue;
        checked += check_operator(t, mesh, op, rounds, both) > 0 || !both;
    }
    TEST_SAY(t, checked > (both ? 60 : 100), "only %d operators were checked", checked);
}

TS_TEST_RANKS(gradients_of_all_operators_on_one_rank, 1)
{
    check_table(t, ts_mesh_create(t->me, "x=*"), 1, false);
}

/* repair 8: every operator that takes complex numbers and has a gradient has theirs. */
TS_TEST_RANKS(gradients_of_complex_numbers, 1, 2)
{
    check_table(t, ts_mesh_create(t->me, "x=*"), t->count > 1 ? 4 : 1, true);
}

TS_TEST_RANKS(gradients_of_all_operators_sharded, 2, 3)
{
    check_table(t, ts_mesh_create(t->me, "x=*"), 5, false);
}

TS_TEST_RANKS(gradients_of_all_operators_on_a_square, 4)
{
    check_table(t, ts_mesh_create(t->me, "x=2, y=2"), 5, false);
}

/* ---- diagonals ------------------------------------------------------------------------------- */

/* A letter that an input has twice or more: the gradient lies on that diagonal. A letter that one
 * input has with extent 1 and another with more (repair 7): both need their gradient. */
static void check_diagonals(test *t, ts_mesh *mesh, int32_t rounds)
{
    static const struct {
        const char *equation;
        ts_shape shape[2];
    } calls[] = {
        { "ii->i", { { 2, 0, { 4, 4 } } } },
        { "ii->", { { 2, 0, { 4, 4 } } } },
        { "bii->bi", { { 3, 0, { 3, 4, 4 } } } },
        { "ibi->b", { { 3, 0, { 3, 4, 3 } } } },
        { "ijij->ji", { { 4, 0, { 2, 3, 2, 3 } } } },
        { "iii->i", { { 3, 0, { 3, 3, 3 } } } },
        { "ii->i", { { 2, 0, { 1, 4 } } } },
        { "ii->i", { { 2, 0, { 4, 1 } } } },
        { "ii,ij->j", { { 2, 0, { 4, 4 } }, { 2, 0, { 4, 5 } } } },
        { "jii,i->ij", { { 3, 0, { 2, 1, 1 } }, { 1, 0, { 3 } } } },
        { "ij,ij->j", { { 2, 0, { 1, 3 } }, { 2, 0, { 2, 3 } } } },
        { "ij,ij->j", { { 2, 0, { 2, 3 } }, { 2, 0, { 1, 3 } } } },
        { "ij,jk->ik", { { 2, 0, { 3, 1 } }, { 2, 0, { 4, 2 } } } },
        { "ij,ij->", { { 2, 0, { 1, 3 } }, { 2, 0, { 2, 1 } } } },
        { "kiik,ji->j", { { 4, 0, { 2, 3, 3, 2 } }, { 2, 0, { 3, 3 } } } },
    };
    for (size_t i = 0; i < TSI_COUNT_OF(calls); i++) {
        gradient_case c = { .t = t, .op = &tsi_op_einsum, .mesh = mesh, .p.limit = 1 };
        c.p.low = 0.2;
        c.p.high = 0.8;
        char said[128];
        snprintf(said, sizeof said, "{\"equation\": \"%s\"}", calls[i].equation);
        TEST_OK(t, tsi_attributes_parse(c.op, said, c.attributes));
        c.input_count = strchr(calls[i].equation, ',') ? 2 : 1;
        for (int32_t k = 0; k < c.input_count; k++)
            c.in[k] = (ts_meta){ .shape = calls[i].shape[k], .dtype = TS_DTYPE_F64 };
        for (c.drawn = 0; c.drawn < rounds; c.drawn++) {
            draw_places(&c);
            check_case(&c);
        }
    }
}

TS_TEST_RANKS(gradients_of_diagonals, 1, 3)
{
    check_diagonals(t, ts_mesh_create(t->me, "x=*"), t->count > 1 ? 4 : 1);
}

TS_TEST_RANKS(gradients_of_diagonals_on_a_square, 4)
{
    check_diagonals(t, ts_mesh_create(t->me, "x=2, y=2"), 6);
}

/* ---- nothing --------------------------------------------------------------------------------- */

/* A call of the operator whose tensors are empty, and its gradient; on one rank they are the
 * caller's memory, which is NULL. */
static void check_empty(test *t, ts_mesh *mesh, const tsi_op_desc *op, ts_dtype dtype)
{
    ts_meta in[TSI_INPUT_MAX] = { { .dtype = 0 } };
    _Alignas(16) unsigned char attributes[1024] = { 0 };
    ts_tensor *x[TSI_INPUT_MAX] = { NULL }, *out[TSI_OUTPUT_MAX] = { NULL };
    int32_t count = op->input_max;
    uint64_t random = t->seed;
    if (!tsi_op_sample(op, &random, 0, in, &count, attributes)) return;
    for (int32_t i = 0; i < count; i++) {
        bool real = tsi_dtype_category((ts_dtype)in[i].dtype) == TSI_CATEGORY_REAL;
        ts_dtype one = real ? dtype : (ts_dtype)in[i].dtype;
        ts_array none = TS_INIT(ts_array);
        none.meta = (ts_meta){ .shape = TS_SHAPE(3, 0), .dtype = (int32_t)one };
        x[i] = t->count > 1 ? ts_zeros(mesh, one, TS_SHAPE(3, 0), i % 2 ? "R" : "S(0)")
                            : ts_from_memory(t->me, &none);
        if (real) x[i] = ts_watch(x[i]);
    }
    ts_tape_begin(t->me);
    tsi_op_args args = { op, x, count, 0, attributes };
    TEST_SAY(t, tsi_op_run(&args, out) == TS_OK, "%s of nothing", op->name);
    if (!out[0] || !op->grad || !ts_tensor_needs_grad(out[0])) return;
    TEST_SAY(t, ts_backward(ts_sum(out[0], NULL, 0, 0), NULL) == TS_OK, "%s of nothing", op->name);
}

/* repair 2: empty tensors have no memory. */
TS_TEST_RANKS(gradients_of_nothing, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int32_t i = 0; i < TSI_OP_ID_COUNT && ts_rank_status(t->me) == TS_OK; i++) {
        static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
        const tsi_op_desc *op = tsi_op_at(i);
        for (int32_t k = 0; k < 3 && op->dims && strcmp(op->dims, "*") == 0; k++) {
            ts_scope scope = ts_scope_open(t->me, op->name);
            check_empty(t, mesh, op, dtypes[k]);
            ts_scope_close(scope);
        }
    }
}

/* ---- operators without one ------------------------------------------------------------------- */

typedef struct reason {
    const char *op, *why;
} reason;
static const reason reasons[] = {
    { "all", "a truth" },
    { "allclose", "the host's truth" },
    { "any", "a truth" },
    { "argmax", "a place" },
    { "argmin", "a place" },
    { "bernoulli", "draws; the probability's slope is of the mean, not of a draw" },
    { "bitwise_and", "of integers" },
    { "bitwise_left_shift", "of integers" },
    { "bitwise_not", "of integers" },
    { "bitwise_or", "of integers" },
    { "bitwise_right_shift", "of integers" },
    { "bitwise_xor", "of integers" },
    { "conv_backward_input", "a gradient" },
    { "conv_backward_weight", "a gradient" },
    { "count_nonzero", "a count" },
    { "count_unique", "a count" },
    { "eq", "a truth" },
    { "eq_scalar", "a truth" },
    { "equal", "the host's truth" },
    { "floor_divide", "whole numbers: flat but for steps" },
    { "gcd", "of integers" },
    { "ge", "a truth" },
    { "ge_scalar", "a truth" },
    { "gt", "a truth" },
    { "gt_scalar", "a truth" },
    { "histc", "a count" },
    { "isclose", "a truth" },
    { "isfinite", "a truth" },
    { "isinf", "a truth" },
    { "isnan", "a truth" },
    { "isneginf", "a truth" },
    { "isposinf", "a truth" },
    { "lcm", "of integers" },
    { "le", "a truth" },
    { "le_scalar", "a truth" },
    { "linear_list_input", "itself a gradient of linear_pair and linear_triple" },
    { "linear_pair_weights", "itself the gradients of linear_pair" },
    { "linear_triple_weights", "itself the gradients of linear_triple" },
    { "logical_and", "a truth" },
    { "logical_not", "a truth" },
    { "logical_or", "a truth" },
    { "logical_xor", "a truth" },
    { "lt", "a truth" },
    { "lt_scalar", "a truth" },
    { "ne", "a truth" },
    { "ne_scalar", "a truth" },
    { "full_like", "a constant" },
    { "ones_like", "a constant" },
    { "powsum", "inside of vector_norm, which has one" },
    { "rand_like", "draws" },
    { "randint_like", "draws" },
    { "randn_like", "draws" },
    { "signbit", "a truth" },
    { "swiglu_gradients", "itself the gradients of swiglu" },
    { "topk_mask", "a truth" },
    { "trigamma", "itself the slope of digamma" },
    { "zeros_like", "a constant" },
};

TS_TEST(operators_without_a_gradient_have_a_reason)
{
    for (int32_t i = 0; i < TSI_OP_ID_COUNT; i++) {
        const tsi_op_desc *op = tsi_op_at(i);
        size_t length = strlen(op->name), r = 0;
        bool is_gradient = length > 9 && strcmp(op->name + length - 9, "_backward") == 0;
        while (r < TSI_COUNT_OF(reasons) && strcmp(reasons[r].op, op->name) != 0)
            r++;
        bool has_reason = r < TSI_COUNT_OF(reasons) || is_gradient;
        TEST_SAY(t, op->grad || has_reason, "%s has neither a gradient nor a reason", op->name);
        TEST_SAY(t, !op->grad || r == TSI_COUNT_OF(reasons), "%s has a gradient and the reason %s",
                 op->name, r < TSI_COUNT_OF(reasons) ? reasons[r].why : "");
        TEST_SAY(t, op->grad || op->flags & TSI_OP_NO_GRAD, "%s does not say so", op->name);
    }
}
