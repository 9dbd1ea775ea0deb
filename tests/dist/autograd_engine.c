/* SPDX-License-Identifier: Apache-2.0 */
/* autograd_engine.c - the machinery of backward: split halves, several roots and tapes, hooks,
 * functions that run again, versions, memory. Results are compared bit for bit with a plain
 * backward of the same graph; batches are sharded, parameters replicated. */
#include <math.h>
#include <string.h>

#include "harness/test.h"
#include "tessera/event.h"
#include "tessera/nn.h"

enum { ROWS = 6, WIDTH = 4 };

typedef struct net { /* two parameters and their module */
    ts_module *module;
    ts_tensor *p, *q, *unused;
} net;

static ts_tensor *pair_body(const net *n, ts_tensor *x, bool random)
{
    ts_tensor *h = ts_tanh(ts_matmul(x, n->p));
    if (random) h = ts_dropout(h, 0.5);
    return ts_add(ts_matmul(h, n->q), ts_mul(x, h)); /* x and p are used in two ways */
}

static void pair_forward(void *state, const ts_module_io *io)
{
    io->output[0] = pair_body(state, io->input[0], false);
}

static const ts_module_desc pair_desc = { .struct_size = sizeof(ts_module_desc),
                                          .type = "pair",
                                          .input_count = 1,
                                          .output_count = 1,
                                          .forward = pair_forward };

static void net_make(test *t, ts_mesh *mesh, net *n)
{
    static double deviation = 0.7;
    ts_param_options options = TS_INIT(ts_param_options);
    options.init = ts_init_normal;
    options.init_state = &deviation;
    options.dtype = TS_DTYPE_F64;
    n->module = ts_module_create(mesh, &pair_desc, n);
    n->p = ts_module_param(n->module, "p", TS_SHAPE(WIDTH, WIDTH), &options);
    n->q = ts_module_param(n->module, "q", TS_SHAPE(WIDTH, WIDTH), &options);
    n->unused = ts_module_param(n->module, "unused", TS_SHAPE(3), &options);
    TEST_OK(t, ts_module_materialize(n->module));
}

static ts_tensor *input_of(ts_mesh *mesh)
{
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = -1.1;
    range.step = 0.09;
    return ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(ROWS, WIDTH), "dp:S(0)", &range);
}

static ts_tensor *total(ts_tensor *x)
{
    return ts_sum(ts_square(x), NULL, 0, 0);
}

typedef struct values { /* of one tensor, whole */
    double at[ROWS * WIDTH];
    int64_t count;
} values;

static values read_all(test *t, ts_tensor *x)
{
    values v = { .count = 0 };
    ts_array view = TS_INIT(ts_array);
    if (!x) return v;
    ts_scope scope = ts_scope_open(t->me, "read");
    TEST_OK(t, test_view(ts_tensor_full(x), &view));
    v.count = view.data ? ts_shape_count(&view.meta.shape) : 0;
    if (v.count > 0) memcpy(v.at, view.data, (size_t)v.count * sizeof(double));
    ts_scope_close(scope);
    return v;
}

static void check_same(test *t, const values *a, const values *b, const char *what)
{
    TEST_SAY(t, a->count > 0 && a->count == b->count, "%s: %lld and %lld elements", what,
             (long long)a->count, (long long)b->count);
    for (int64_t i = 0; i < a->count && i < b->count; i++)
        TEST_SAY(t, a->at[i] == b->at[i], "%s, element %lld: %.17g and %.17g", what, (long long)i,
                 a->at[i], b->at[i]);
}

typedef struct grads {
    values x, p, q;
} grads;

static grads take(test *t, net *n, ts_tensor *x)
{
    grads g = { read_all(t, ts_tensor_grad(x)), read_all(t, ts_tensor_grad(n->p)),
                read_all(t, ts_tensor_grad(n->q)) };
    TEST_CHECK(t, ts_tensor_grad(n->unused) == NULL);
    TEST_OK(t, ts_tensor_grad_clear(n->p));
    TEST_OK(t, ts_tensor_grad_clear(n->q));
    return g;
}

static void check_grads(test *t, const grads *a, const grads *b, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s: dx", what);
    check_same(t, &a->x, &b->x, name);
    snprintf(name, sizeof name, "%s: dp", what);
    check_same(t, &a->p, &b->p, name);
    snprintf(name, sizeof name, "%s: dq", what);
    check_same(t, &a->q, &b->q, name);
}

static void checkpoint_body(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                            int phase)
{
    (void)me;
    (void)phase;
    output[0] = pair_body(*(net *const *)state, input[0], false);
}

static ts_tensor *checkpointed(ts_checkpoint_fn fn, const void *state, size_t bytes, ts_tensor *x)
{
    ts_tensor *y = NULL;
    ts_checkpoint_call call = { .struct_size = sizeof call,
                                .fn = fn,
                                .state = state,
                                .state_bytes = bytes,
                                .input = &x,
                                .input_count = 1,
                                .output_count = 1 };
    return ts_checkpoint(&call, &y) == TS_OK ? y : NULL;
}

/* Two layers of the same pair, so that what leads to x leads to parameters too. */
static ts_tensor *two_layers(net *n, ts_tensor *x, bool again)
{
    for (int i = 0; i < 2; i++)
        x = again ? checkpointed(checkpoint_body, &n, sizeof n, x) : pair_body(n, x, false);
    return total(x);
}

static grads backward_plain(test *t, net *n, ts_mesh *mesh, bool again)
{
    ts_scope scope = ts_scope_open(t->me, "plain");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(input_of(mesh));
    TEST_OK(t, ts_backward(two_layers(n, x, again), NULL));
    TEST_CHECK(t, ts_tensor_layout(ts_tensor_grad(n->p)) == ts_tensor_layout(n->p));
    grads g = take(t, n, x);
    ts_scope_close(scope);
    return g;
}

TS_TEST_RANKS(split_backward_is_the_whole, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    for (int again = 0; again < 2; again++) {
        grads whole = backward_plain(t, &n, mesh, again);
        ts_scope scope = ts_scope_open(t->me, "split");
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(input_of(mesh)), *y = two_layers(&n, x, again);
        ts_backward_options part = TS_INIT(ts_backward_options);
        part.part = TS_BACKWARD_INPUTS;
        TEST_OK(t, ts_backward(y, &part));
        TEST_CHECK(t, ts_tensor_grad(x) != NULL);
        TEST_CHECK(t, ts_tensor_grad(n.p) == NULL && ts_tensor_grad(n.q) == NULL);
        part.part = TS_BACKWARD_WEIGHTS;
        TEST_OK(t, ts_backward(y, &part));
        grads split = take(t, &n, x);
        check_grads(t, &whole, &split, again ? "split, run again" : "split");
        ts_scope_close(scope);
    }
    ts_module_destroy(n.module);
}

TS_TEST_RANKS(checkpoint_gives_the_same_bits, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    grads plain = backward_plain(t, &n, mesh, false), again = backward_plain(t, &n, mesh, true);
    check_grads(t, &plain, &again, "checkpoint");
    ts_module_destroy(n.module);
}

/* ---- random numbers, nesting, phases --------------------------------------------------------- */

typedef struct noisy {
    net *n;
    int *runs; /* [2] of each phase */
    int32_t nested, reserved;
} noisy;

static void noisy_body(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                       int phase)
{
    const noisy *s = state;
    if (s->runs) s->runs[phase]++;
    ts_tensor *h = pair_body(s->n, input[0], true);
    if (s->nested) {
        noisy inner = { .n = s->n, .runs = s->runs };
        h = checkpointed(noisy_body, &inner, sizeof inner, h);
    } else {
        h = pair_body(s->n, h, true);
    }
    output[0] = ts_mul(h, ts_rand(ts_tensor_mesh(h), TS_DTYPE_F64, ts_tensor_shape(h), NULL));
    (void)me;
}

TS_TEST_RANKS(checkpoint_nests_and_counts_its_runs, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    for (int nested = 0; nested < 2; nested++) {
        int runs[2] = { 0, 0 };
        noisy s = { .n = &n, .runs = runs, .nested = nested };
        ts_scope scope = ts_scope_open(t->me, "nested");
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(input_of(mesh));
        ts_tensor *y = checkpointed(noisy_body, &s, sizeof s, x);
        values before = read_all(t, y);
        TEST_OK(t, ts_backward(total(y), NULL));
        values after = read_all(t, y);
        check_same(t, &before, &after, "the value");
        grads g = take(t, &n, x);
        TEST_CHECK(t, g.x.count == ROWS * WIDTH && g.p.count == WIDTH * WIDTH);
        TEST_EQ(t, runs[0], nested ? 3 : 1); /* the inner one is run forward twice, */
        TEST_EQ(t, runs[1], nested ? 2 : 1); /* and once more for its own gradients */
        ts_scope_close(scope);
    }
    ts_module_destroy(n.module);
}

/* y = x * mask drawn inside: the gradient of sum(y) is the mask, and y tells the mask. */
static void mask_body(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                      int phase)
{
    (void)state;
    (void)me;
    (void)phase;
    output[0] = ts_dropout(ts_dropout(input[0], 0.3), 0.4);
}

TS_TEST_RANKS(checkpoint_masks_agree, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_scope scope = ts_scope_open(t->me, "masks");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(ROWS, WIDTH), "dp:S(0)"));
    ts_tensor *y = checkpointed(mask_body, NULL, 0, x);
    ts_tensor *z = checkpointed(mask_body, NULL, 0, x); /* other numbers */
    ts_tensor *dy[1] = { NULL };
    TEST_OK(t, ts_grad(ts_sum(y, NULL, 0, 0), &x, 1, dy));
    values mask = read_all(t, y), grad = read_all(t, dy[0]), other = read_all(t, z);
    check_same(t, &mask, &grad, "mask");
    TEST_CHECK(t, memcmp(mask.at, other.at, sizeof(double) * ROWS * WIDTH) != 0);
    ts_scope_close(scope);
}

/* ---- seeds, roots, tapes --------------------------------------------------------------------- */

TS_TEST_RANKS(several_roots_with_their_gradients, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_scope scope = ts_scope_open(t->me, "roots");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(input_of(mesh));
    ts_tensor *root[2] = { ts_square(x), ts_mul_scalar(x, 3.0) };
    ts_tensor *ones = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(ROWS, WIDTH), NULL);
    ts_tensor *seed[2] = { ones, ts_mul_scalar(ones, 2.0) };
    TEST_OK(t, ts_backward_from(root, seed, 2, NULL));
    values at = read_all(t, x), dx = read_all(t, ts_tensor_grad(x));
    for (int i = 0; i < ROWS * WIDTH; i++)
        TEST_SAY(t, dx.at[i] == 2 * at.at[i] + 6, "%d: %.17g", i, dx.at[i]);
    ts_scope_close(scope);
}

TS_TEST_RANKS(tapes_end_in_any_order, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    grads one = backward_plain(t, &n, mesh, false);
    ts_tape *tape[3];
    ts_tensor *loss[3], *x[3];
    for (int i = 0; i < 3; i++) {
        ts_scope scope = ts_scope_open(t->me, "microbatch");
        tape[i] = ts_tape_retain(ts_tape_begin(t->me));
        x[i] = ts_tensor_retain(ts_watch(input_of(mesh)));
        loss[i] = ts_tensor_retain(two_layers(&n, x[i], false));
        TEST_CHECK(t, ts_tape_length(tape[i]) > 0);
        ts_scope_close(scope);
    }
    static const int order[3] = { 1, 0, 2 };
    for (int k = 0; k < 3; k++) {
        ts_scope scope = ts_scope_open(t->me, "back");
        TEST_OK(t, ts_backward(loss[order[k]], NULL));
        grads g = take(t, &n, x[order[k]]);
        check_grads(t, &one, &g, "tape");
        ts_tape_release(tape[order[k]]);
        ts_scope_close(scope);
        /* The tape is gone: the root is a plain value now. */
        TEST_CHECK(t, !ts_tensor_needs_grad(loss[order[k]]));
    }
    for (int i = 0; i < 3; i++) {
        ts_tensor_release(x[i]);
        ts_tensor_release(loss[i]);
    }
    ts_module_destroy(n.module);
}

/* Repair 12, of tapes: what was not retained is the scope's, and a handle that is too late meets a
 * tape that ended. */
TS_TEST_RANKS(repair_12_a_tape_is_released_once, 1, 2)
{
    ts_tape *kept[300];
    for (int i = 0; i < 300; i++) {
        ts_scope outer = ts_scope_open(t->me, "outer");
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        kept[i] = ts_tape_begin(t->me);
        if (i % 2) ts_tape_release(ts_tape_retain(kept[i]));
        ts_tape_release(kept[i]);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "belongs to the scope it was begun in");
        TEST_STATUS(t, ts_scope_close(scope), TS_ERR_STATE);
        TEST_OK(t, ts_scope_close(outer));
    }
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_tape_release(kept[299]);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "ts_tape_release: the tape has ended");
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_STATE);
    scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_tape_retain(kept[298]) == NULL && ts_tape_length(kept[298]) == 0);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_STATE);
}

TS_TEST_RANKS(grad_leaves_the_leaves_alone, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    for (int again = 0; again < 2; again++) {
        grads want = backward_plain(t, &n, mesh, again);
        ts_scope scope = ts_scope_open(t->me, "grad");
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(input_of(mesh)), *y = two_layers(&n, x, again);
        ts_tensor *wrt[4] = { x, n.p, n.q, n.unused }, *out[4];
        for (int twice = 0; twice < 2; twice++) {
            TEST_OK(t, ts_grad(y, wrt, 4, out));
            grads have = { read_all(t, out[0]), read_all(t, out[1]), read_all(t, out[2]) };
            check_grads(t, &want, &have, "ts_grad");
            TEST_CHECK(t, out[3] == NULL);
            TEST_CHECK(t, !ts_tensor_grad(x) && !ts_tensor_grad(n.p) && !ts_tensor_grad(n.q));
        }
        ts_scope_close(scope);
    }
    ts_module_destroy(n.module);
}

TS_TEST_RANKS(lazy_backwards_add_up, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    grads one = backward_plain(t, &n, mesh, false);
    for (int part = 0; part < 3; part++) {
        ts_scope scope = ts_scope_open(t->me, "part");
        ts_tape_begin(t->me);
        ts_tensor *y = two_layers(&n, input_of(mesh), false);
        TEST_OK(t, ts_backward(y, TS_OPTIONS(ts_backward_options, .lazy = part < 2)));
        ts_scope_close(scope);
    }
    TEST_CHECK(t, ts_tensor_layout(ts_tensor_grad(n.p)) == ts_tensor_layout(n.p));
    values p = read_all(t, ts_tensor_grad(n.p));
    for (int64_t i = 0; i < p.count; i++)
        TEST_SAY(t, fabs(p.at[i] - 3 * one.p.at[i]) <= 1e-13 * (1 + fabs(p.at[i])),
                 "element %lld: %.17g, not %.17g", (long long)i, p.at[i], 3 * one.p.at[i]);
    ts_module_destroy(n.module);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TS_TEST_RANKS(a_saved_tensor_that_changed_is_refused, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_scope caught =
        ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(input_of(mesh)), *h = ts_mul_scalar(x, 2.0), *y = total(ts_exp(h));
    ts_tensor *z = ts_mul(h, h);
    ts_scope no = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    (void)ts_tril_(h, 0);
    ts_scope_close(no);
    (void)y;
    TEST_STATUS(t, ts_backward(total(z), NULL), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "changed in place");
    TEST_STATUS(t, ts_scope_close(caught), TS_ERR_STATE);
    TEST_OK(t, ts_rank_status(t->me));
}

/* The value that an operator saw is what its gradient is of: a variable may have another one by
 * then. One that was written in place is gone. */
TS_TEST_RANKS(a_variable_that_got_another_value, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    for (int again = 0; again < 2; again++) {
        grads want = backward_plain(t, &n, mesh, again);
        ts_scope scope = ts_scope_open(t->me, "written");
        ts_tensor *former = ts_tensor_retain(ts_detach(n.p)), *x = ts_variable(t->me);
        ts_tape_begin(t->me);
        ts_tensor *watched = ts_watch(input_of(mesh));
        TEST_OK(t, ts_tensor_write(x, watched));
        ts_tensor *y = two_layers(&n, watched, again), *z = total(ts_mul(x, watched));
        TEST_OK(t, ts_tensor_write(x, ts_mul_scalar(x, 3.0)));
        if (!again) TEST_OK(t, ts_tensor_write(n.p, ts_mul_scalar(n.p, 3.0)));
        TEST_OK(t, ts_backward(y, NULL));
        grads have = take(t, &n, watched);
        check_grads(t, &want, &have, again ? "run again" : "written");
        /* z sums (x w)^2: its gradient by w is 2 x^2 w, of the x it had, which was w. */
        ts_tensor *out = NULL, *cube = ts_mul(ts_square(input_of(mesh)), input_of(mesh));
        TEST_OK(t, ts_grad(z, &watched, 1, &out));
        values is = read_all(t, out), three = read_all(t, ts_mul_scalar(cube, 2.0));
        for (int64_t i = 0; i < is.count; i++)
            TEST_SAY(t, fabs(is.at[i] - three.at[i]) <= 1e-13, "element %lld: %.17g, not %.17g",
                     (long long)i, is.at[i], three.at[i]);
        TEST_OK(t, ts_tensor_write(n.p, former));
        ts_tensor_release(former);
        ts_tensor_release(x);
        ts_scope_close(scope);
    }
    ts_scope caught =
        ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
    ts_tape_begin(t->me);
    ts_tensor *y = two_layers(&n, ts_watch(input_of(mesh)), false);
    ts_scope no = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    (void)ts_tril_(n.p, 0);
    ts_scope_close(no);
    TEST_STATUS(t, ts_backward(y, NULL), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "changed in place");
    TEST_STATUS(t, ts_scope_close(caught), TS_ERR_STATE);
    ts_module_destroy(n.module);
}

/* A function that runs again has no value but what a leaf shows then. */
TS_TEST_RANKS(a_leaf_that_a_function_used_and_that_changed, 1, 2, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    for (int way = 0; way < 3; way++) {
        ts_scope caught =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
        ts_tape_begin(t->me);
        ts_tensor *y = two_layers(&n, ts_watch(input_of(mesh)), true);
        ts_scope no = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
        if (way == 1) (void)ts_tril_(n.p, 0);
        if (way == 2) TEST_OK(t, ts_tensor_write(n.p, ts_mul_scalar(n.p, 3.0)));
        ts_scope_close(no);
        TEST_STATUS(t, ts_backward(y, NULL), way ? TS_ERR_STATE : TS_OK);
        if (way) TEST_SAYS(t, ts_rank_error(t->me)->text, "that it used was changed since");
        TEST_STATUS(t, ts_scope_close(caught), way ? TS_ERR_STATE : TS_OK);
    }
    ts_module_destroy(n.module);
}

static ts_tensor *by_name(const char *name, ts_tensor *x, ts_tensor *y)
{
    ts_tensor *in[] = { x, y }, *out = NULL;
    (void)ts_op_call(ts_op_find(ts_tensor_rank(x), name), in, y ? 2 : 1, NULL, 0, &out);
    return out;
}

/* A form in place has no more what it overwrote: where the gradient needs that, backward says so;
 * where it does not, since the other factor is a constant, it is as the plain form's. */
TS_TEST_RANKS(a_form_in_place_that_overwrote_what_it_needs, 1, 2, 8)
{
    static const char *const name[] = { "mul_", "square_", "mul" };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int i = 0; i < 3; i++) {
        ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(input_of(mesh)), *h = ts_mul_scalar(x, 3.0);
        if (i == 2) /* the same by a result that is written over an input */
            (void)ts_op_call_into(ts_op_find(t->me, name[i]), (ts_tensor *[]){ h, x }, 2, NULL, 0,
                                  &h);
        else
            (void)by_name(name[i], h, i ? NULL : x);
        TEST_STATUS(t, ts_backward(total(h), NULL), TS_ERR_STATE);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "changed in place");
        TEST_STATUS(t, ts_scope_close(caught), TS_ERR_STATE);
    }
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(input_of(mesh)), *h = ts_mul_scalar(x, 3.0), *grad = NULL;
    TEST_CHECK(t, by_name("mul_", h, input_of(mesh)) == h);
    TEST_OK(t, ts_grad(ts_sum(h, NULL, 0, 0), &x, 1, &grad));
    int close = 0;
    TEST_OK(t, ts_equal(grad, ts_mul_scalar(input_of(mesh), 3.0), &close));
    TEST_CHECK(t, close);
}

/* A history is of one handle: what another view wrote is not in it. Views that share no element do
 * not count, nor what is written without a tape. */
TS_TEST_RANKS(a_tensor_that_another_view_wrote, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int n = 0; n < 12; n++) {
        int i = n / 2, cut = n % 2; /* where blocks differ, ranks may know different things */
        ts_scope caught =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
        ts_tape_begin(t->me);
        ts_tensor *input = cut ? input_of(mesh) : ts_redistribute(input_of(mesh), "R");
        ts_tensor *x = ts_watch(input), *h = ts_mul_scalar(x, 3.0), *grad = NULL;
        ts_tensor *turned = ts_transpose(h, 0, 1);
        ts_tensor *left = ts_narrow(h, 1, (ts_interval){ 0, 2 });
        ts_tensor *right = ts_narrow(h, 1, (ts_interval){ 2, WIDTH });
        ts_scope inner = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = i == 5));
        ts_tensor *const written[] = { turned, h, left, left, left, turned };
        (void)by_name("neg_", written[i], NULL);
        TEST_OK(t, ts_scope_close(inner));
        ts_tensor *const used[] = { h, turned, h, right, left, h };
        ts_status status = ts_grad(ts_sum(used[i], NULL, 0, 0), &x, 1, &grad);
        bool fine = i == 3 || i == 4 || i == 5;
        TEST_SAY(t, (status == TS_OK) == fine, "case %d: %s", i, ts_status_name(status));
        if (!fine) TEST_SAYS(t, ts_rank_error(t->me)->text, "in place by neg through another view");
        values is = read_all(t, fine ? grad : NULL);
        if (fine) TEST_EQ(t, is.at[i == 3 ? 2 : 0], i == 4 ? -3 : 3);
        (void)ts_scope_close(caught);
        if (cut && !fine) TEST_OK(t, ts_rank_recover(t->me));
    }
}

static ts_tensor *column(ts_tensor *h, int64_t at)
{
    return ts_select(h, 1, at);
}

static ts_tensor *every_other(ts_tensor *h, int64_t first)
{
    ts_slice_options options = TS_INIT(ts_slice_options);
    options.start = first;
    options.step = 2;
    return ts_slice(h, 1, &options);
}

/* So it is of views with gaps, of what repeats, and of what lies in another order. */
TS_TEST_RANKS(a_tensor_that_a_view_with_gaps_wrote, 1, 2)
{
    static const char *const what[] = { "a column",   "the column",    "every other", "the others",
                                        "a diagonal", "a row written", "it repeated" };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int i = 0; i < 7; i++) {
        ts_scope caught =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(ts_redistribute(input_of(mesh), "R")), *grad = NULL;
        ts_tensor *h = ts_mul_scalar(x, 3.0);
        ts_tensor *first = column(h, 0), *turned = ts_transpose(h, 0, 1);
        ts_tensor *written = first, *used = h;
        if (i == 1) used = column(turned, 0); /* which has one element in common */
        if (i == 2) written = every_other(h, 0), used = turned;
        if (i == 3) written = every_other(h, 0), used = every_other(h, 1);
        if (i == 4) written = ts_diagonal(h, 0, 0, 1);
        if (i == 5) written = ts_select(h, 0, 1), used = every_other(turned, 1);
        if (i == 6) {
            written = h;
            used = ts_expand(ts_unsqueeze(first, 0), TS_SHAPE(2, ROWS));
        }
        (void)by_name("neg_", written, NULL);
        ts_status status = ts_grad(ts_sum(used, NULL, 0, 0), &x, 1, &grad);
        bool fine = i == 3;
        TEST_SAY(t, (status == TS_OK) == fine, "%s: %s", what[i], ts_status_name(status));
        if (!fine) TEST_SAYS(t, ts_rank_error(t->me)->text, "in place by neg through another view");
        (void)ts_scope_close(caught);
    }
}

/* Its place in the history would be the call's: it got no gradient, and nothing said so. */
TS_TEST_RANKS(a_leaf_that_is_written_on_a_tape_is_refused, 1, 2, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    for (int way = 0; way < 4; way++) { /* itself, or a view of a view of it */
        int watched = way & 1;
        ts_scope caught =
            ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1, .agree = mesh));
        ts_tape_begin(t->me);
        ts_tensor *leaf = watched ? ts_watch(input_of(mesh)) : n.p;
        if (way > 1) leaf = ts_transpose(ts_unsqueeze(leaf, 0), 1, 2);
        TEST_CHECK(t, !ts_tril_(leaf, 0));
        TEST_SAYS(t, ts_rank_error(t->me)->text,
                  watched ? "tril_: it writes a leaf (a watched tensor) while a tape records"
                          : "tril_: it writes a leaf (p) while a tape records");
        TEST_STATUS(t, ts_scope_close(caught), TS_ERR_STATE);
    }
    TEST_CHECK(t, ts_tensor_needs_grad(n.p));
    ts_scope no = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tape_begin(t->me);
    (void)ts_tril_(n.p, 0);
    TEST_OK(t, ts_scope_close(no));
    ts_module_destroy(n.module);
}

TS_TEST_RANKS(roots_without_history_are_refused, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    static const char *const words[] = { "no history", "give its gradient", "no history" };
    for (int i = 0; i < 3; i++) {
        ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        ts_tape_begin(t->me);
        ts_tensor *x = i == 2 ? ts_detach(ts_watch(input_of(mesh))) : ts_watch(input_of(mesh));
        ts_tensor *root = i == 0 ? total(input_of(mesh)) : i == 1 ? ts_square(x) : total(x);
        TEST_CHECK(t, ts_backward(root, NULL) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, words[i]);
        ts_scope_close(caught);
    }
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tape *tape = ts_tape_begin(t->me);
    TEST_CHECK(t, !ts_tensor_needs_grad(ts_square(ts_watch(input_of(mesh)))));
    TEST_EQ(t, ts_tape_length(tape), 0);
    ts_scope_close(scope);
}

/* A leaf that a function makes for itself ends with the function's scope, before the call is
 * recorded; it is made anew when the function runs again. */
static void own_leaf_body(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                          int phase)
{
    (void)state, (void)me, (void)phase;
    output[0] = ts_mul(ts_watch(ts_square(input[0])), input[0]);
}

TS_TEST_RANKS(a_function_may_watch_for_itself, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_scope scope = ts_scope_open(t->me, "step");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(input_of(mesh));
    ts_tensor *again = ts_watch(x), *plain = NULL;
    own_leaf_body(NULL, t->me, &again, &plain, 0);
    TEST_OK(t, ts_backward(total(checkpointed(own_leaf_body, NULL, 0, x)), NULL));
    TEST_OK(t, ts_backward(total(plain), NULL));
    ts_tensor *same = ts_sub(ts_tensor_grad(x), ts_tensor_grad(again));
    double off = -1;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_abs(same), NULL, 0, 0), &off));
    TEST_CHECK(t, off == 0.0);
    ts_scope_close(scope);
}

static void ignoring_body(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                          int phase)
{
    (void)me, (void)input, (void)phase;
    output[0] = ts_square(*(ts_tensor *const *)state);
}

/* Tensors that are none, or are none any more, where a gradient is asked for. */
TS_TEST_RANKS(gradients_of_nothing_are_refused, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(input_of(mesh)), *ended = ts_square(x), *out = x;
    ts_tensor *root = total(ts_square(x)), *none = NULL;
    ts_tensor_drop(ended);
    static const char *const words[] = { "grad: tensor 0 of 1 is NULL",
                                         "grad: tensor 0 is a tensor that was dropped",
                                         "grad: the list of results is NULL",
                                         "checkpoint: input 0 is a tensor that was dropped" };
    for (int i = 0; i < 4; i++) {
        ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        if (i == 3)
            TEST_CHECK(t, checkpointed(ignoring_body, &x, sizeof x, ended) == NULL);
        else
            TEST_CHECK(t, ts_grad(root, i ? &ended : &none, 1, i < 2 ? &out : NULL) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, words[i]);
        ts_scope_close(caught);
        TEST_CHECK(t, i > 1 || out == NULL);
    }
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static ts_status on_silence(ts_module *m, void *context)
{
    (void)m, (void)context;
    return TS_ERR_STATE;
}

/* A hook that fails without a word fails the rank all the same. */
TS_TEST_RANKS(a_silent_hook_is_named, 1, 2)
{
    static const ts_hook hooks[] = { TS_HOOK_FORWARD_BEFORE, TS_HOOK_FORWARD_AFTER };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    for (int i = 0; i < 2; i++) {
        net n;
        net_make(t, mesh, &n);
        TEST_OK(t, ts_module_on(n.module, hooks[i], on_silence, NULL));
        ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        ts_tensor *x = input_of(mesh);
        TEST_CHECK(t, ts_module_call(n.module, &x, 1) == NULL);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "a hook returned TS_ERR_STATE");
        TEST_STATUS(t, ts_scope_close(caught), TS_ERR_STATE);
    }
}

typedef struct diary {
    char text[256];
    const net *n;
} diary;

static void note(diary *d, const char *word)
{
    size_t length = strlen(d->text);
    snprintf(d->text + length, sizeof d->text - length, "%s ", word);
}

static ts_status on_leaf(ts_tensor *leaf, void *context)
{
    diary *d = context;
    note(d, leaf == d->n->p ? "p" : leaf == d->n->q ? "q" : "x");
    return ts_tensor_grad(leaf) ? TS_OK : TS_ERR_STATE;
}

static ts_status on_value(ts_tensor *grad, void *context)
{
    note(context, ts_tensor_shape(grad).extent[0] == ROWS ? "flow" : "?");
    return TS_OK;
}

static ts_status on_before(ts_module *m, void *context)
{
    (void)m;
    note(context, "before");
    return TS_OK;
}

static ts_status on_after(ts_module *m, void *context)
{
    (void)m;
    note(context, "after");
    return TS_OK;
}

static ts_status on_reset(ts_module *m, void *context)
{
    (void)m;
    note(context, "reset");
    return TS_OK;
}

static ts_status on_end(ts_tensor *grad, void *context)
{
    (void)grad, (void)context;
    return TS_ERR_STATE;
}

static ts_status on_any(ts_tensor *leaf, void *context)
{
    (void)leaf;
    ++*(int *)context;
    return TS_OK;
}

/* A backward that a hook ended half way leaves nothing for the next one, which uses the leaf in
 * nothing that leads to its root. */
TS_TEST_RANKS(hooks_after_a_backward_that_failed, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_tensor *leaf = ts_watch(input_of(mesh)), *other = ts_watch(input_of(mesh));
    int told = 0;
    TEST_OK(t, ts_tensor_on_grad(leaf, on_any, &told));
    ts_scope first = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_tape_begin(t->me);
    ts_tensor *h = ts_mul_scalar(leaf, 2.0);
    TEST_OK(t, ts_tensor_on_grad(h, on_end, NULL));
    TEST_STATUS(t, ts_backward(total(ts_mul(ts_exp(h), leaf)), NULL), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "a hook on a gradient returned TS_ERR_STATE");
    TEST_STATUS(t, ts_scope_close(first), TS_ERR_STATE);
    TEST_OK(t, ts_tensor_grad_clear(leaf));
    TEST_EQ(t, told, 0);
    ts_tape_begin(t->me);
    TEST_CHECK(t, ts_exp(leaf) != NULL);
    TEST_OK(t, ts_backward(total(ts_exp(other)), NULL));
    TEST_EQ(t, told, 0);
    TEST_CHECK(t, !ts_tensor_grad(leaf) && ts_tensor_grad(other));
}

TS_TEST_RANKS(hooks_are_told_in_order, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    diary d = { .n = &n };
    TEST_OK(t, ts_tensor_on_grad(n.p, on_leaf, &d));
    TEST_OK(t, ts_tensor_on_grad(n.q, on_leaf, &d));
    TEST_OK(t, ts_module_on(n.module, TS_HOOK_BACKWARD_BEFORE, on_before, &d));
    TEST_OK(t, ts_module_on(n.module, TS_HOOK_BACKWARD_AFTER, on_after, &d));
    TEST_OK(t, ts_module_on(n.module, TS_HOOK_RESET, on_reset, &d));
    for (int again = 0; again < 2; again++) {
        ts_scope scope = ts_scope_open(t->me, "hooks");
        TEST_OK(t, ts_module_checkpoint(n.module, again));
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(input_of(mesh));
        TEST_OK(t, ts_tensor_on_grad(x, on_leaf, &d));
        ts_tensor *h = TS_CALL(n.module, x), *y = TS_CALL(n.module, h);
        TEST_OK(t, ts_tensor_on_grad(h, on_value, &d));
        TEST_OK(t, ts_backward(total(y), NULL));
        /* A parameter is complete once its first use is passed; the whole module is one node when
         * it runs again, so there p and q are complete together. */
        if (again)
            TEST_TEXT(t, d.text, "before after before flow x p q after ");
        else
            TEST_TEXT(t, d.text, "before after before flow q x p after ");
        d.text[0] = '\0';
        TEST_OK(t, ts_module_reset(n.module));
        TEST_TEXT(t, d.text, "reset ");
        TEST_CHECK(t, ts_tensor_grad(n.p) == NULL);
        d.text[0] = '\0';
        ts_scope_close(scope);
    }
    ts_module_destroy(n.module);
}

/* A root that is a leaf gets its gradient where the leaf lies, and its hooks hear of it; a root is
 * among what it can be differentiated by. */
TS_TEST_RANKS(roots_that_are_leaves, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n;
    net_make(t, mesh, &n);
    diary d = { .n = &n };
    TEST_OK(t, ts_tensor_on_grad(n.p, on_leaf, &d));
    for (int used = 0; used < 2; used++) { /* a root alone, and beside one that leads to it */
        ts_scope scope = ts_scope_open(t->me, "roots");
        ts_tape_begin(t->me);
        ts_tensor *y = total(n.p), *root[2] = { n.p, y };
        ts_tensor *one = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(WIDTH, WIDTH), "dp:S(0)");
        ts_tensor *seed[2] = { one, NULL }, *x = ts_watch(input_of(mesh)), *out[3];
        TEST_OK(t, ts_backward_from(root, seed, 1 + used, NULL));
        TEST_TEXT(t, d.text, "p ");
        d.text[0] = '\0';
        ts_tensor *grad = ts_tensor_grad(n.p);
        TEST_CHECK(t, grad && ts_tensor_layout(grad) == ts_tensor_layout(n.p));
        ts_tensor *slope = ts_mul_scalar(n.p, 2.0 * used);
        values is = read_all(t, grad), want = read_all(t, ts_add_scalar(slope, 1.0));
        check_same(t, &is, &want, used ? "with a tape" : "alone");
        TEST_OK(t, ts_tensor_grad_clear(n.p));
        ts_tensor *h = ts_sum(ts_mul_scalar(x, 3.0), NULL, 0, 0), *wrt[3] = { h, x, n.p };
        TEST_OK(t, ts_grad(h, wrt, 3, out));
        is = read_all(t, out[0]);
        TEST_CHECK(t, is.count == 1 && is.at[0] == 1.0 && out[2] == NULL);
        is = read_all(t, out[1]);
        TEST_CHECK(t, is.count == ROWS * WIDTH && is.at[0] == 3.0);
        ts_tensor *leaf = ts_watch(ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE_SCALAR, NULL));
        TEST_OK(t, ts_grad(leaf, &leaf, 1, out));
        is = read_all(t, out[0]);
        TEST_CHECK(t, is.count == 1 && is.at[0] == 1.0 && !ts_tensor_grad(leaf));
        ts_scope_close(scope);
    }
    ts_module_destroy(n.module);
}

static ts_status count_ready(ts_module *m, void *context)
{
    (void)m;
    ++*(int *)context;
    return TS_OK;
}

TS_TEST_RANKS(a_module_is_ready_when_its_parameters_are, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    net n = { 0 };
    static const ts_module_desc outer_desc = { .struct_size = sizeof outer_desc, .type = "outer" };
    net_make(t, mesh, &n);
    ts_module *both = ts_module_create(mesh, &outer_desc, NULL);
    ts_module *one = ts_module_create(mesh, &outer_desc, NULL);
    ts_param_options options = TS_INIT(ts_param_options);
    options.dtype = TS_DTYPE_F64;
    ts_tensor *a = ts_module_param(one, "a", TS_SHAPE(WIDTH), &options);
    ts_tensor *b = ts_module_param(both, "b", TS_SHAPE(WIDTH), &options);
    ts_module_add(both, "one", one);
    TEST_OK(t, ts_module_materialize(both));
    int ready_one = 0, ready_both = 0;
    TEST_OK(t, ts_module_on(one, TS_HOOK_GRAD_READY, count_ready, &ready_one));
    TEST_OK(t, ts_module_on(both, TS_HOOK_GRAD_READY, count_ready, &ready_both));
    for (int use_b = 0; use_b < 3; use_b++) { /* without, with, without */
        ts_scope scope = ts_scope_open(t->me, "ready");
        ts_tape_begin(t->me);
        ts_tensor *x = ts_add(input_of(mesh), a);
        TEST_OK(t, ts_backward(total(use_b == 1 ? ts_mul(x, b) : x), NULL));
        ts_scope_close(scope);
        TEST_EQ(t, ready_one, use_b + 1);
        TEST_EQ(t, ready_both, use_b > 0);
    }
    ts_module_destroy(both);
    ts_module_destroy(n.module);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { DEEP = 24, WIDE = 64, LONG = 96 };

static ts_tensor *chain_body(ts_tensor *x)
{
    for (int i = 0; i < 4; i++)
        x = ts_tanh(ts_mul_scalar(ts_sin(x), 1.01));
    return x;
}

static void chain_again(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                        int phase)
{
    (void)state;
    (void)me;
    (void)phase;
    output[0] = chain_body(input[0]);
}

/* The most memory beyond the input, in tensors of its size, and what is left after backward. */
static void chain_memory(test *t, ts_mesh *mesh, bool again, double *peak, double *left)
{
    ts_scope scope = ts_scope_open(t->me, "chain");
    ts_tensor *x = ts_watch(ts_rand(mesh, TS_DTYPE_F64, TS_SHAPE(LONG, WIDE), NULL));
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    TEST_OK(t, ts_rank_memory_reset(t->me));
    TEST_OK(t, ts_rank_memory(t->me, &before));
    ts_scope step = ts_scope_open(t->me, "step");
    ts_tape_begin(t->me);
    ts_scope inner = ts_scope_open(t->me, "layers");
    ts_tensor *h = x;
    for (int i = 0; i < DEEP; i++) {
        h = again ? checkpointed(chain_again, NULL, 0, h) : chain_body(h);
        h = ts_scope_turn(inner, h);
    }
    h = ts_scope_leave(inner, h);
    TEST_OK(t, ts_backward(total(h), NULL));
    h = NULL;
    ts_scope_close(step);
    TEST_OK(t, ts_rank_memory(t->me, &after));
    double unit = LONG * WIDE * sizeof(double);
    *peak = (double)(after.peak - before.live) / unit;
    *left = (double)(after.live - before.live) / unit;
    ts_scope_close(scope);
}

TS_TEST_RANKS(saved_tensors_are_released_as_used, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    double plain, again, left;
    chain_memory(t, mesh, false, &plain, &left);
    TEST_SAY(t, left < 1.1, "%.2f tensors are left, the gradient is 1", left);
    /* What tanh saves is what sin saves: four a layer; some more live while gradients are made. */
    TEST_SAY(t, plain >= 4 * DEEP && plain < 4 * DEEP + 10, "plain: %.2f tensors", plain);
    chain_memory(t, mesh, true, &again, &left);
    TEST_SAY(t, left < 1.1, "%.2f tensors are left, the gradient is 1", left);
    TEST_SAY(t, again < DEEP + 18, "run again: %.2f tensors", again);
}
