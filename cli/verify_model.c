/* SPDX-License-Identifier: Apache-2.0 */
/* verify_model.c - `tessera verify model DIR`: a model against the numbers another implementation
 * gave for it.
 *
 * DIR holds config.json, weights and reference.json: tokens, the loss of predicting each next one,
 * logits of the last position of the first row, their norm, the norm of every parameter's gradient,
 * and ten steps of AdamW with the loss and total norm before each. Everything is computed on the
 * given mesh and plan and compared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "verify.h"

typedef struct verify_model {
    const char *directory, *mesh, *plan;
    ts_json_document *document;
    const ts_json *reference; /* its root */
    int64_t rows, length;     /* tokens [rows][length + 1] */
    int64_t *token;
    int64_t checks, failed; /* of rank 0 */
    FILE *out;
} verify_model;

/* ---- comparing ------------------------------------------------------------------------------- */

/* The error is relative to the wanted value, or to `least` where that is larger. */
static void check_with(verify_model *v, ts_rank *me, const char *what, double have, double want,
                       double tolerance, double least)
{
    if (ts_rank_index(me) != 0) return;
    double size = fmax(fabs(want), least);
    double error = fabs(have - want) / (size > 0 ? size : 1.0);
    v->checks++;
    if (error <= tolerance) return; /* not a number fails, too */
    v->failed++;
    fprintf(v->out, "%s: %.9g, not %.9g (relative %.2g, allowed %.0e)\n", what, have, want, error,
            tolerance);
}

static void check(verify_model *v, ts_rank *me, const char *what, double have, double want,
                  double tolerance)
{
    check_with(v, me, what, have, want, tolerance, 0.0);
}

typedef struct picking {
    const verify_model *v;
    int64_t shift; /* 0: ids, 1: labels */
} picking;

static void token_at(const int64_t *global, void *element, void *context)
{
    const picking *p = context;
    *(int64_t *)element = p->v->token[global[0] * (p->v->length + 1) + global[1] + p->shift];
}

static ts_tensor *tokens_of(const verify_model *v, ts_model *model, int64_t shift)
{
    picking p = { v, shift };
    ts_meta meta = { .shape = TS_SHAPE(v->rows, v->length), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, &p, ts_model_tokens(model), meta);
}

/* ---- one forward and backward ---------------------------------------------------------------- */

static double norm_of(ts_tensor *t)
{
    double value = NAN;
    ts_tensor_item(ts_sqrt(ts_sum(ts_square(ts_cast(t, TS_DTYPE_F64)), NULL, 0, 0)), &value);
    return value;
}

static void check_logits(verify_model *v, ts_rank *me, ts_tensor *logits)
{
    check(v, me, "norm of the logits", norm_of(logits),
          ts_json_real(ts_json_member(v->reference, "logits_norm"), (double)NAN), 1e-5);
    const ts_json *row = ts_json_member(v->reference, "logits_first_row_last_pos");
    ts_tensor *full = ts_tensor_full(logits);
    ts_array view = TS_INIT(ts_array);
    if (ts_tensor_view(full, &view) != TS_OK || !view.data) return;
    int64_t vocabulary = view.meta.shape.extent[2];
    const float *last = (const float *)view.data + (v->length - 1) * vocabulary;
    double worst = 0, size = 0;
    for (int64_t i = 0; i < ts_json_count(row) && i < vocabulary; i++) {
        double want = ts_json_real(ts_json_item(row, i), (double)NAN);
        worst = fmax(worst, fabs((double)last[i] - want));
        size = fmax(size, fabs(want));
    }
    check(v, me, "logits of the first row", size + worst, size, 1e-5);
}

typedef struct grad_check {
    verify_model *v;
    ts_rank *me;
    double least; /* norms far below the total are rounding errors of the sum they are part of */
} grad_check;

static ts_status add_square(const char *name, const ts_json *value, void *context)
{
    (void)name;
    double norm = ts_json_real(value, 0);
    *(double *)context += norm * norm;
    return TS_OK;
}

static double total_norm(const ts_json *norms)
{
    double sum = 0;
    (void)ts_json_each(norms, add_square, &sum);
    return sqrt(sum);
}

static ts_status check_grad(const char *name, ts_tensor *parameter, void *context)
{
    grad_check *g = context;
    const ts_json *want = ts_json_member(ts_json_member(g->v->reference, "grad_norm"), name);
    char what[320];
    snprintf(what, sizeof what, "gradient of %s", name);
    ts_scope scope = ts_scope_open(g->me, "gradient");
    ts_tensor *grad = ts_tensor_grad(parameter);
    if (want)
        check_with(g->v, g->me, what, grad ? norm_of(grad) : (double)NAN,
                   ts_json_real(want, (double)NAN), 1e-4, g->least);
    ts_scope_close(scope);
    return ts_rank_status(g->me);
}

static void check_once(verify_model *v, ts_rank *me, ts_model *model)
{
    ts_scope scope = ts_scope_open(me, "once");
    ts_tape_begin(me);
    ts_tensor *logits = ts_model_logits(model, tokens_of(v, model, 0));
    ts_tensor *loss = ts_cross_entropy(logits, tokens_of(v, model, 1));
    double value = NAN;
    ts_tensor_item(loss, &value);
    check(v, me, "loss", value, ts_json_real(ts_json_member(v->reference, "loss"), (double)NAN),
          1e-6);
    ts_backward(loss, NULL);
    ts_scope inner = ts_scope_open(me, "compare");
    check_logits(v, me, logits);
    grad_check g = { v, me, 1e-3 * total_norm(ts_json_member(v->reference, "grad_norm")) };
    ts_module_each(ts_model_module(model), check_grad, &g);
    ts_scope_close(inner);
    ts_scope_close(scope);
}

/* ---- the trajectory -------------------------------------------------------------------------- */

static double number(const ts_json *object, const char *name, double otherwise)
{
    return ts_json_real(ts_json_member(object, name), otherwise);
}

static void check_steps(verify_model *v, ts_rank *me, ts_model *model)
{
    const ts_json *adamw = ts_json_member(v->reference, "adamw"),
                  *betas = ts_json_member(adamw, "betas");
    const ts_json *steps = ts_json_member(adamw, "loss_and_total_norm");
    ts_adamw_options options = TS_INIT(ts_adamw_options);
    options.lr = number(adamw, "lr", 1e-3);
    options.beta1 = ts_json_real(ts_json_item(betas, 0), (double)NAN);
    options.beta2 = ts_json_real(ts_json_item(betas, 1), (double)NAN);
    options.epsilon = number(adamw, "eps", 1e-8);
    options.weight_decay = number(adamw, "weight_decay", 0.0);
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(model), &options);
    for (int64_t i = 0; i < ts_json_count(steps) && ts_rank_status(me) == TS_OK; i++) {
        ts_scope scope = ts_scope_open(me, "step");
        ts_tape_begin(me);
        ts_tensor *loss = ts_model_loss(model, tokens_of(v, model, 0), tokens_of(v, model, 1));
        double value = NAN, norm = NAN;
        ts_tensor_item(loss, &value);
        ts_backward(loss, NULL);
        ts_clip_grad_norm(ts_model_module(model), number(adamw, "clip", 1.0), &norm);
        ts_optimizer_step(optimizer);
        ts_scope_close(scope);
        char what[64];
        const ts_json *pair = ts_json_item(steps, i);
        snprintf(what, sizeof what, "step %lld: loss", (long long)i);
        check(v, me, what, value, ts_json_real(ts_json_item(pair, 0), (double)NAN), 1e-4);
        snprintf(what, sizeof what, "step %lld: total norm", (long long)i);
        check(v, me, what, norm, ts_json_real(ts_json_item(pair, 1), (double)NAN), 1e-3);
    }
    ts_optimizer_destroy(optimizer);
}

static ts_status work(ts_rank *me, void *argument)
{
    verify_model *v = argument;
    ts_mesh *mesh = ts_mesh_create(me, v->mesh);
    ts_model_options options = TS_INIT(ts_model_options);
    options.plan = v->plan;
    for (int part = 0; part < 2 && ts_rank_status(me) == TS_OK; part++) {
        ts_model *model = ts_model_load(mesh, v->directory, &options);
        if (model && part == 0) check_once(v, me, model);
        if (model && part == 1) check_steps(v, me, model);
        ts_model_destroy(model);
    }
    return ts_rank_status(me);
}

/* ---- the reference --------------------------------------------------------------------------- */

static int read_reference(verify_model *v)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/reference.json", v->directory);
    if (!cli_json_read("verify model", path, &v->document)) return 2;
    v->reference = ts_json_root(v->document);
    const ts_json *rows = ts_json_member(v->reference, "tokens");
    v->rows = ts_json_count(rows);
    v->length = ts_json_count(ts_json_item(rows, 0)) - 1;
    if (v->rows <= 0 || v->length <= 0) return cli_fail("verify model", "%s: has no tokens", path);
    v->token = calloc((size_t)(v->rows * (v->length + 1)), sizeof *v->token);
    if (!v->token) return cli_fail("verify model", "out of memory");
    for (int64_t r = 0; r < v->rows; r++)
        for (int64_t i = 0; i <= v->length; i++)
            v->token[r * (v->length + 1) + i] =
                ts_json_int(ts_json_item(ts_json_item(rows, r), i), -1);
    return -1;
}

static int run(verify_model *v)
{
    ts_world_options options = TS_INIT(ts_world_options);
    bool launched = ts_launcher() != NULL;
    if (!launched) {
        options.engine = "threads";
        options.rank_count = cli_mesh_ranks(v->mesh);
        if (options.rank_count == 0) return cli_fail_usage("verify model", "%s", ts_last_error());
    }
    char error[1024] = "";
    ts_status status = ts_launch_with(&options, work, v, error, sizeof error);
    if (status != TS_OK) return cli_fail("verify model", "%s", error);
    if (v->checks > 0) /* rank 0 is ours */
        printf("%s on %s (%s): %lld of %lld agree\n", v->directory, v->mesh,
               v->plan ? v->plan : "default plan", (long long)(v->checks - v->failed),
               (long long)v->checks);
    return v->failed ? 1 : 0;
}

int cli_verify_model(int argc, char **argv)
{
    verify_model v = { .mesh = "dp=1", .out = stdout };
    const cli_option options[] = {
        CLI_TEXT("mesh", &v.mesh, "TEXT", "the mesh, \"dp=2, tp=2\" (default dp=1)"),
        CLI_TEXT(
            "plan", &v.plan, "NAME|FILE",
            "dp, tp, sp, or a file of \"pattern: placements\" lines; \"base: tp\" for the rest"),
        CLI_END,
    };
    const cli_usage usage = { "verify model", "DIR [options]",
                              "a model against the numbers of another implementation", options,
                              NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("verify model", "needs one directory");
    v.directory = argv[1];
    code = read_reference(&v);
    if (code < 0) code = run(&v);
    ts_json_release(v.document);
    free(v.token);
    return code;
}
