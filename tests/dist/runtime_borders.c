/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_borders.c - what a recorded step finds and leaves at its border: gradients, variables,
 * mirrors, numbers of the optimiser, counts of routers. A net whose steps are recorded in part is
 * compared with its twin whose steps run as usual, bit for bit: the same, or a sentence.
 *
 * A step is a text; what is in brackets is recorded the third time, and run again from then on:
 *   F forward and backward       L the same, lazy           S gradients are settled
 *   U the update, clipped        u the same, not clipped    Z gradients are cleared
 *   G gradients are halved       W weights change in place  V weights get another value
 *   E forward alone              K forward whose backward never comes
 *   n gradients of copies are not summed   y they are       q not in the first steps alone */
#include <math.h>
#include <string.h>
#include <time.h>

#include "dist/parallel_util.h"

enum { STEPS = 6, USUAL = 2, PARTS = 4, INPUTS = 4 };

typedef struct way {
    const char *mesh;
    int32_t units, compute, reshard;
    bool travels; /* shards are no runs of the whole: nothing is shared between threads */
} way;

typedef struct twin {
    test *t;
    net net;
    ts_tensor *x[INPUTS]; /* where steps read */
    ts_tensor *loss;
    ts_step *step[PARTS];
    const char *part; /* under way */
    int32_t at;       /* of the inputs */
    int32_t number;   /* of the step */
} twin;

static ts_tensor *input_of(const twin *w, int64_t salt)
{
    return ts_cast(net_input(&w->net, salt), TS_DTYPE_F32);
}

static int32_t last_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 0 ? shape.ndim - 1 : otherwise;
}

static void twin_begin(test *t, twin *w, const way *how)
{
    ts_fsdp_options options = TS_INIT(ts_fsdp_options);
    options.compute = how->compute;
    options.reshard = how->reshard;
    if (how->travels) options.dim = last_dim;
    *w = (twin){
        .t = t, .net = { .count = 3, .width = 8, .rows = 12, .leaves = -1, .dtype = TS_DTYPE_F32 }
    };
    net_declare(&w->net, ts_mesh_create(t->me, how->mesh), false);
    TEST_OK(t, net_begin(&w->net, how->units ? &options : NULL));
    for (int i = 0; i < INPUTS; i++)
        w->x[i] = ts_tensor_retain(input_of(w, i));
    w->loss = ts_variable(t->me);
}

static void twin_end(twin *w)
{
    for (int i = 0; i < PARTS; i++)
        ts_step_destroy(w->step[i]);
    for (int i = 0; i < INPUTS; i++)
        ts_tensor_release(w->x[i]);
    ts_tensor_release(w->loss);
    net_end(&w->net);
}

static ts_status run(twin *w, char what)
{
    bool trains = what != 'E';
    ts_rank *me = w->t->me;
    ts_scope scope =
        ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .label = "run", .no_grad = !trains));
    if (trains) ts_tape_begin(me);
    ts_tensor *y = TS_CALL(w->net.root, w->x[w->at++ % INPUTS]);
    ts_tensor *mean = ts_mean(ts_square(ts_cast(y, TS_DTYPE_F32)), NULL, 0, 0);
    ts_status status = mean ? ts_tensor_write(w->loss, ts_detach(mean)) : ts_rank_status(me);
    if (status == TS_OK && trains && what != 'K')
        status = ts_backward(mean, TS_OPTIONS(ts_backward_options, .lazy = what == 'L'));
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static ts_status settle_one(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    (void)context;
    return ts_grad_settle(parameter);
}

static ts_status change_one(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    if (*(const char *)context == 'V')
        return ts_tensor_write(parameter, ts_mul_scalar(parameter, 0.75));
    return ts_foreach_mul_scalar((ts_list){ &parameter, 1 }, 0.75, NULL);
}

static ts_status take(twin *w, char what)
{
    ts_optimizer *o = w->net.optimizer;
    ts_status status = TS_OK;
    if (strchr("FLEK", what)) return run(w, what);
    if (what == 'U') return ts_optimizer_step_with(o, TS_OPTIONS(ts_step_options, .norm_max = 0.1));
    if (what == 'u') return ts_optimizer_step_with(o, TS_OPTIONS(ts_step_options, .grad_scale = 4));
    if (what == 'Z') return ts_optimizer_zero(o);
    if (strchr("nyq", what)) {
        int32_t sums = what == 'q' ? w->number > USUAL : what == 'y';
        return ts_fsdp_set(w->net.root, TS_FSDP_ALL_REDUCE, sums);
    }
    if (what == 'G') return ts_grad_scale(w->net.root, 0.5);
    ts_scope scope = ts_scope_open_with(w->t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    status = ts_module_each(w->net.root, what == 'S' ? settle_one : change_one, &what);
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static ts_status take_part(void *context)
{
    twin *w = context;
    ts_status status = TS_OK;
    for (const char *p = w->part; status == TS_OK && *p && *p != ']'; p++)
        status = take(w, *p);
    return status;
}

static ts_status take_recorded(twin *w, int number, int32_t step)
{
    int32_t inputs = 0;
    for (const char *p = w->part; *p != ']'; p++)
        inputs += strchr("FLEK", *p) != NULL;
    if (step < USUAL) return take_part(w);
    if (!w->step[number]) {
        w->step[number] = ts_step_record(w->t->me, take_part, w);
        return w->step[number] ? TS_OK : ts_rank_status(w->t->me);
    }
    w->at += inputs;
    return ts_step_replay(w->step[number]);
}

static ts_status take_text(twin *w, const char *text, int32_t step, bool records)
{
    ts_status status = TS_OK;
    int number = 0;
    w->at = 0;
    w->number = step;
    ts_scope scope = ts_scope_open(w->t->me, NULL);
    for (int i = 0; i < INPUTS; i++) {
        ts_tensor *value = input_of(w, step * INPUTS + i);
        TEST_OK(w->t, ts_foreach_copy((ts_list){ &w->x[i], 1 }, (ts_list){ &value, 1 }));
    }
    (void)ts_scope_close(scope);
    for (const char *p = text; *p && status == TS_OK; p++) {
        if (*p != '[') {
            status = take(w, *p);
            continue;
        }
        w->part = p + 1;
        status = records ? take_recorded(w, number++, step) : take_part(w);
        p = strchr(p, ']');
    }
    return status;
}

typedef struct compared {
    ts_module *other;
    double apart; /* the most of all; NAN: one has a gradient, the other none */
} compared;

static double apart(ts_tensor *a, ts_tensor *b)
{
    double x = NAN;
    if (!a && !b) return 0;
    if (!a || !b) return x;
    ts_tensor *difference = ts_sub(ts_tensor_full(a), ts_tensor_full(b));
    (void)ts_tensor_item(ts_amax(ts_abs(difference), NULL, 0, 0), &x);
    return x;
}

static ts_status compare_one(const char *name, ts_tensor *parameter, void *context)
{
    compared *c = context;
    ts_tensor *other = ts_module_find_param(c->other, name);
    double both = apart(parameter, other) + apart(ts_tensor_grad(parameter), ts_tensor_grad(other));
    if (!(both <= c->apart)) c->apart = both;
    return TS_OK;
}

static double twins_apart(test *t, twin *a, twin *b)
{
    compared c = { b->net.root, 0 };
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    (void)ts_module_each(a->net.root, compare_one, &c);
    double loss = apart(a->loss, b->loss);
    (void)ts_scope_close(scope);
    return c.apart + loss;
}

typedef struct row {
    const char *text, *says; /* says: who refuses, where units lie so that it must be; or NULL */
} row;

static const row rows[] = {
    { "[FU]", NULL },
    { "[FFU]", NULL },
    { "[LFU]", NULL },
    /* gradients that are left, and cleared by what comes behind */
    { "[F]U", NULL },
    { "[ZF]U", NULL },
    { "Z[F]U", NULL },
    { "[FF]U", NULL },
    { "[LF]U", NULL },
    { "[L]FU", NULL },
    { "[LS]U", NULL },
    { "[FG]U", NULL },
    { "[F][U]", NULL },
    /* that are taken */
    { "F[U]", NULL },
    { "F[FU]", NULL },
    { "L[FU]", NULL },
    { "F[GU]", NULL },
    { "F[Z]FU", NULL },
    /* both */
    { "[F][F]U", NULL },
    { "F[F]U", NULL },
    { "F[G]U", NULL },
    { "[F]", NULL },
    { "[FZ]", NULL },
    { "[FU]F", NULL },
    /* numbers of the optimiser are those of the call */
    { "[FU]Fu", NULL },
    { "[FU][Fu]", NULL },
    { "[Fu]FU", NULL },
    /* weights that change between, and inside */
    { "[FU]W", NULL },
    { "[FUW]", NULL },
    { "[E]WFU", NULL },
    { "[E]FU[E]", NULL },
    { "[FU]V", "another block than when the step was recorded" },
    { "[E]VFU", "another block than when the step was recorded" },
    /* what units go by, set inside, around, and otherwise than when the step was recorded */
    { "[nFyFU]", NULL },
    { "[nFyF]U", NULL },
    { "n[F]y[F]U", NULL },
    { "n[FyFU]", NULL },
    { "[nFU]yFU", NULL },
    { "[nF]FU", NULL },
    { "q[FU]", "ts_fsdp_set was called since" },
    { "q[F]FU", "ts_fsdp_set was called since" },
    { "[FnFU]", "ts_fsdp_set was called since" },
    { "K[FU]", "unit" },
    { "[FU]K", "unit" },
};

static void check_row(test *t, const way *how, const row *r)
{
    twin usual, recorded;
    ts_status status = TS_OK;
    twin_begin(t, &usual, how);
    twin_begin(t, &recorded, how);
    for (int32_t step = 0; step < STEPS && status == TS_OK; step++) {
        TEST_OK(t, take_text(&usual, r->text, step, false));
        status = take_text(&recorded, r->text, step, true);
        if (status != TS_OK) break;
        double by = twins_apart(t, &usual, &recorded);
        TEST_SAY(t, by == 0, "%s on %s, units %d: step %d is %g apart", r->text, how->mesh,
                 (int)how->units, (int)step, by);
        if (test_failed(t)) break;
    }
    const char *said = status != TS_OK && ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "";
    bool fits = r->says && (status == TS_ERR_PEER || strstr(said, r->says) ||
                            strstr(said, "was replaced before a step that is recorded"));
    TEST_SAY(t, status == TS_OK || fits, "%s on %s, units %d: %s", r->text, how->mesh,
             (int)how->units, said);
    if (status != TS_OK) TEST_OK(t, ts_rank_recover(t->me));
    twin_end(&usual);
    twin_end(&recorded);
}

TS_TEST_RANKS(steps_recorded_in_part, 1, 2, 3, 4)
{
    const way ways[] = {
        { "replicate=*", 0, 0, 0, false },
        { "replicate=*", 1, 0, 0, false },
        { "fsdp=*", 1, 0, TS_RESHARD_AUTO, false },
        { t->count == 4 ? "replicate=2, fsdp=2" : "fsdp=*", 1, TS_DTYPE_BF16, TS_RESHARD_YES,
          false },
        { "fsdp=*", 1, 0, TS_RESHARD_AUTO, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = t->count == 1 ? 2 : 0; k < sizeof ways / sizeof *ways; k++)
            if (!test_failed(t) && test_tries(t)) check_row(t, &ways[k], &rows[i]);
}

typedef struct adds { /* total := total + x, kept in a variable */
    ts_tensor *x, *total;
    double factor;
} adds;

static ts_status add_step(void *context)
{
    const adds *a = context;
    ts_scope scope = ts_scope_open(ts_tensor_rank(a->x), NULL);
    ts_tensor *sum = ts_mul_scalar(ts_sum(a->x, NULL, 0, 0), a->factor);
    ts_status status = sum ? ts_tensor_write(a->total, sum) : TS_ERR_STATE;
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

/* A variable that several steps write has the value of the one that ran last. */
TS_TEST_RANKS(variables_of_two_steps, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4), "dp:S(0)");
    adds both[] = { { x, ts_variable(t->me), 2 }, { x, NULL, 3 } };
    ts_step *step[2];
    both[1].total = both[0].total;
    for (int i = 0; i < 2; i++) {
        step[i] = ts_step_record(t->me, add_step, &both[i]);
        TEST_CHECK(t, step[i] != NULL);
    }
    for (int n = 0; n < 6; n++) {
        double is = NAN, want = n % 3 == 1 ? 12 : 8;
        TEST_OK(t, ts_step_replay(step[n % 3 == 1]));
        TEST_OK(t, ts_tensor_item(ts_redistribute(both[0].total, "dp:R"), &is));
        TEST_EQ(t, is, want);
    }
    ts_tensor_release(both[0].total); /* from here on nobody sees it */
    for (int i = 0; i < 2; i++) {
        TEST_OK(t, ts_step_replay(step[i]));
        ts_step_destroy(step[i]);
    }
}

/* What a tape saved is changed by a step that runs again, as by the same step as usual. */
TS_TEST_RANKS(tapes_see_what_steps_write, 1, 2)
{
    twin w;
    for (int units = 0; units < 2; units++) {
        twin_begin(t, &w, &(way){ "replicate=*", units, 0, 0, false });
        for (int32_t i = 0; i <= USUAL; i++)
            TEST_OK(t, take_text(&w, "[FU]", i, true));
        ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        ts_tape_begin(t->me);
        ts_tensor *y = ts_sum(ts_square(TS_CALL(w.net.root, w.x[0])), NULL, 0, 0);
        TEST_OK(t, ts_step_replay(w.step[0]));
        TEST_STATUS(t, ts_backward(y, NULL), TS_ERR_STATE);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "changed");
        (void)ts_scope_close(caught);
        TEST_OK(t, ts_rank_recover(t->me));
        twin_end(&w);
    }
}

/* Ranks share their shards: an evaluation behind an update waits for a peer that is late with it,
 * also where a step that was recorded before lay at the same address. */
TS_TEST_RANKS(steps_recorded_twice_wait_for_updates, 2, 3)
{
    const way how = { "fsdp=*", 1, 0, TS_RESHARD_AUTO, false };
    twin each[2];
    for (int k = 0; k < 2; k++) {
        twin_begin(t, &each[k], &how);
        for (int32_t i = 0; i < 2; i++)
            TEST_OK(t, take_text(&each[k], "FU", i, false));
    }
    for (int n = 0; n < 2; n++) { /* the second one counts */
        ts_step_destroy(each[1].step[0]);
        each[1].step[0] = NULL;
        TEST_OK(t, take_text(&each[1], "[E]", USUAL, true));
    }
    for (int32_t i = 0; i < 6 && !test_failed(t); i++) {
        for (int k = 0; k < 2; k++) {
            TEST_OK(t, take_text(&each[k], "F", USUAL + i, false));
            if (t->index == 1) nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
            TEST_OK(t, take(&each[k], 'U'));
            each[k].at = 0;
            each[k].part = "E]";
            TEST_OK(t, k ? ts_step_replay(each[k].step[0]) : take_part(&each[k]));
        }
        double by = twins_apart(t, &each[0], &each[1]);
        TEST_SAY(t, by == 0, "round %d: %g apart", (int)i, by);
    }
    twin_end(&each[0]);
    twin_end(&each[1]);
}
