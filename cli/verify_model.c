/* SPDX-License-Identifier: Apache-2.0 */
/* verify_model.c - `tessera verify model DIR`: a model against the numbers another implementation
 * gave for it.
 *
 * DIR holds config.json, weights and reference.json: tokens, the loss of predicting each next one,
 * logits of the last position of the first row, their norm, the norm of every parameter's gradient,
 * and ten steps of AdamW with the loss and total norm before each. Everything is computed on the
 * given mesh and plan and compared.
 *
 * INV: what is counted is the values of the reference, each once, whatever the mesh; one that
 * nothing was computed for did not agree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "schedule.h"
#include "verify.h"

/* How far a value may be from the reference's, relative; what is computed in bf16 has 8 bits. */
typedef struct tolerances {
    double loss, logits, gradient, step_loss, step_norm;
} tolerances;
static const tolerances exact = { 1e-6, 1e-5, 1e-4, 1e-4, 1e-3 };
static const tolerances rounded = { 1e-2, 5e-2, 1e-1, 3e-2, 1e-1 };

typedef struct verify_model {
    const char *directory, *mesh, *plan, *recompute, *reshard, *dtype, *device, *order, *topology;
    const char *attention, *balance;
    ts_balance cut;
    int32_t algorithm; /* ts_attention_algorithm */
    ts_fsdp_options units;
    tolerances allowed;
    ts_recompute again;
    int64_t every;          /* block, from the first layer on */
    int64_t stages, micros; /* a rank's; of a batch */
    ts_schedule *schedule;  /* NULL: the mesh has no axis pp */
    ts_json_document *document;
    const ts_json *reference; /* its root */
    int64_t rows, length;     /* tokens [rows][length + 1] */
    int64_t *token;
    int64_t ep;     /* experts over groups of so many ranks */
    int64_t values; /* of the reference */
    int64_t agreed; /* counted by rank 0: all that is compared is the same on every rank */
    bool is_first;  /* rank 0 is in this process */
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
    if (error <= tolerance) { /* not a number does not */
        v->agreed++;
        return;
    }
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

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const picking *p = context;
    *(int64_t *)element = p->v->token[global[0] * (p->v->length + 1) + global[1] + p->shift];
    return TS_OK;
}

static ts_tensor *tokens_of(const void *context, ts_model *model, int64_t shift)
{
    const verify_model *v = context;
    picking p = { v, shift };
    ts_meta meta = { .shape = TS_SHAPE(v->rows, v->length), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, &p, ts_model_tokens_of(model, v->length, NULL), meta);
}

/* ---- one forward and backward ---------------------------------------------------------------- */

static double norm_of(ts_tensor *t)
{
    double value = NAN;
    ts_tensor_item(ts_sqrt(ts_sum(ts_square(ts_cast(t, TS_DTYPE_F64)), NULL, 0, 0)), &value);
    return value;
}

/* A number of the reference; one that is missing agrees with nothing. */
static double real(const ts_json *value)
{
    return ts_json_real(value, (double)NAN);
}

/* The error of a logit is measured by the largest of them; `have` is NULL where there are none. */
static void check_row(verify_model *v, ts_rank *me, const double *have, int64_t vocabulary)
{
    const ts_json *row = ts_json_member(v->reference, "logits_first_row_last_pos");
    double size = 0;
    for (int64_t i = 0; i < ts_json_count(row); i++)
        size = fmax(size, fabs(real(ts_json_item(row, i))));
    for (int64_t i = 0; i < ts_json_count(row); i++) {
        char what[64];
        double one = have != NULL && i < vocabulary ? have[i] : (double)NAN;
        snprintf(what, sizeof what, "logit %lld of the first row", (long long)i);
        check_with(v, me, what, one, real(ts_json_item(row, i)), v->allowed.logits, size);
    }
}

static void check_logits(verify_model *v, ts_rank *me, ts_tensor *logits)
{
    check(v, me, "norm of the logits", norm_of(logits),
          real(ts_json_member(v->reference, "logits_norm")), v->allowed.logits);
    ts_tensor *last = ts_tensor_full(ts_select(ts_select(logits, 0, 0), 0, v->length - 1));
    int64_t vocabulary = last ? ts_tensor_shape(last).extent[0] : 0;
    double *have = calloc((size_t)vocabulary + 1, sizeof *have);
    ts_array to = TS_INIT(ts_array);
    to.data = have;
    to.meta = (ts_meta){ .shape = TS_SHAPE(vocabulary), .dtype = TS_DTYPE_F64 };
    bool read = have && ts_tensor_read(last, &to) == TS_OK;
    check_row(v, me, read ? have : NULL, vocabulary);
    free(have);
}

static ts_status add_square(const char *name, const ts_json *value, void *context)
{
    (void)name;
    *(double *)context += real(value) * real(value);
    return TS_OK;
}

static double total_norm(const ts_json *norms)
{
    double sum = 0;
    (void)ts_json_each(norms, add_square, &sum);
    return sqrt(sum);
}

/* Which of gate, up and down a single expert's tensor is, in both spellings of published files; -1:
 * none. */
static int expert_part(const char *name, const char **prefix_end, int64_t *expert)
{
    static const struct {
        const char *at, *part[3];
    } spelling[] = { { ".block_sparse_moe.experts.", { "w1", "w3", "w2" } },
                     { ".mlp.experts.", { "gate_proj", "up_proj", "down_proj" } } };
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(name, spelling[i].at);
        char *end = NULL;
        if (!at) continue;
        *prefix_end = at;
        *expert = strtoll(at + strlen(spelling[i].at), &end, 10);
        for (int part = 0; part < 3 && *end == '.'; part++) {
            size_t length = strlen(spelling[i].part[part]);
            if (strncmp(end + 1, spelling[i].part[part], length) == 0 &&
                strcmp(end + 1 + length, ".weight") == 0)
                return part;
        }
    }
    return -1;
}

/* Experts that the files have singly, "L.mlp.experts.E.gate_proj.weight", are one parameter: the
 * gradient of such a part of it. NULL: the name is no such one. */
static ts_tensor *expert_gradient(ts_module *root, const char *name)
{
    const char *at = name;
    int64_t expert = 0;
    int part = expert_part(name, &at, &expert);
    if (part < 0) return NULL;
    char fused[320];
    snprintf(fused, sizeof fused, "%.*s.mlp.experts.%s", (int)(at - name), name,
             part == 2 ? "down_proj" : "gate_up_proj");
    ts_tensor *parameter = ts_module_find_param(root, fused);
    ts_tensor *gradient = parameter ? ts_tensor_grad(parameter) : NULL;
    if (!gradient || expert < 0 || expert >= ts_tensor_shape(gradient).extent[0]) return NULL;
    ts_tensor *own = ts_select(gradient, 0, expert);
    if (part == 2) return own;
    int64_t half = ts_tensor_shape(own).extent[0] / 2;
    ts_slice_options options = TS_INIT(ts_slice_options);
    options.start = part * half;
    options.end = options.start + half;
    options.end_is_given = 1;
    return ts_slice(own, 0, &options);
}

/* By its name, or one of the older spellings that files are found with. */
static ts_tensor *gradient_of(ts_module *root, const char *name)
{
    char other[320];
    const char *moe = strstr(name, ".block_sparse_moe.");
    ts_tensor *parameter = ts_module_find_param(root, name);
    if (!parameter && moe) {
        snprintf(other, sizeof other, "%.*s.mlp.%s", (int)(moe - name), name, moe + 18);
        parameter = ts_module_find_param(root, other);
    }
    if (!parameter) {
        snprintf(other, sizeof other, "transformer.%s", name);
        parameter = ts_module_find_param(root, other);
    }
    return parameter ? ts_tensor_grad(parameter) : expert_gradient(root, name);
}

typedef struct gradients {
    verify_model *v;
    ts_rank *me;
    ts_module *root;
    const verify_pipe *pipe; /* or NULL */
    double least; /* norms far below the total are rounding errors of the sum they are part of */
} gradients;

static ts_status check_gradient(const char *name, const ts_json *value, void *context)
{
    const gradients *g = context;
    char what[320];
    snprintf(what, sizeof what, "gradient of %s", name);
    ts_scope scope = ts_scope_open(g->me, "gradient");
    ts_tensor *gradient = gradient_of(g->root, name);
    double norm = gradient ? norm_of(gradient) : 0, holders = gradient != NULL;
    if (g->pipe != NULL) { /* stages that share a parameter have the same gradient of it */
        norm = verify_pipe_sum(g->pipe, norm);
        holders = verify_pipe_sum(g->pipe, holders);
        norm /= holders > 0 ? holders : 1;
    }
    if (holders > 0)
        check_with(g->v, g->me, what, norm, real(value), g->v->allowed.gradient, g->least);
    else if (ts_rank_index(g->me) == 0)
        fprintf(g->v->out, "%s: there is no such parameter, or it has no gradient\n", what);
    ts_scope_close(scope);
    return TS_OK;
}

static void check_gradients(verify_model *v, ts_rank *me, ts_model *model, const verify_pipe *pipe)
{
    const ts_json *norms = ts_json_member(v->reference, "grad_norm");
    gradients g = { v, me, ts_model_module(model), pipe, 1e-3 * total_norm(norms) };
    (void)ts_json_each(norms, check_gradient, &g);
}

static void check_once(verify_model *v, ts_rank *me, ts_model *model)
{
    ts_scope scope = ts_scope_open(me, "once");
    ts_tape_begin(me);
    ts_tensor *logits = ts_model_logits(model, tokens_of(v, model, 0));
    ts_tensor *loss = ts_cross_entropy(logits, tokens_of(v, model, 1));
    double value = NAN;
    ts_tensor_item(loss, &value);
    check(v, me, "loss", value, real(ts_json_member(v->reference, "loss")), v->allowed.loss);
    ts_backward(loss, NULL);
    ts_scope inner = ts_scope_open(me, "compare");
    check_logits(v, me, logits);
    check_gradients(v, me, model, NULL);
    ts_scope_close(inner);
    ts_scope_close(scope);
}

/* The same through the pipeline: logits are compared as they go by. */
static void check_once_piped(verify_model *v, verify_pipe *pipe)
{
    double loss = NAN;
    pipe->keeps = true;
    if (ts_pipeline_step(pipe->pipeline, pipe->size, &loss) != TS_OK) return;
    check(v, pipe->me, "loss", loss, real(ts_json_member(v->reference, "loss")), v->allowed.loss);
    check(v, pipe->me, "norm of the logits", sqrt(verify_pipe_sum(pipe, pipe->squares)),
          real(ts_json_member(v->reference, "logits_norm")), v->allowed.logits);
    int64_t all = (int64_t)verify_pipe_sum(pipe, (double)pipe->vocabulary);
    int64_t holders = (int64_t)verify_pipe_sum(pipe, pipe->last != NULL);
    int64_t vocabulary = holders > 0 ? all / holders : 0;
    double *row = calloc((size_t)vocabulary + 1, sizeof *row);
    for (int64_t i = 0; row != NULL && i < vocabulary; i++)
        row[i] = verify_pipe_sum(pipe, pipe->last != NULL ? pipe->last[i] : 0) / (double)holders;
    check_row(v, pipe->me, row, vocabulary);
    free(row);
    check_gradients(v, pipe->me, pipe->model, pipe);
}

/* ---- the trajectory -------------------------------------------------------------------------- */

static double number(const ts_json *object, const char *name, double otherwise)
{
    return ts_json_real(ts_json_member(object, name), otherwise);
}

static void check_steps(verify_model *v, const verify_pipe *pipe)
{
    const ts_json *adamw = ts_json_member(v->reference, "adamw"),
                  *betas = ts_json_member(adamw, "betas");
    const ts_json *steps = ts_json_member(adamw, "loss_and_total_norm");
    ts_adamw_options options = TS_INIT(ts_adamw_options);
    options.lr = number(adamw, "lr", 1e-3);
    options.beta1 = real(ts_json_item(betas, 0));
    options.beta2 = real(ts_json_item(betas, 1));
    options.epsilon = number(adamw, "eps", 1e-8);
    options.weight_decay = number(adamw, "weight_decay", 0.0);
    ts_rank *me = pipe->me;
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(pipe->model), &options);
    for (int64_t i = 0; i < ts_json_count(steps) && ts_rank_status(me) == TS_OK; i++) {
        ts_scope scope = ts_scope_open(me, "step");
        double value = NAN, norm = NAN;
        verify_pipe_step(pipe, number(adamw, "clip", 1.0), &value, &norm);
        ts_optimizer_step(optimizer);
        ts_scope_close(scope);
        char what[64];
        const ts_json *pair = ts_json_item(steps, i);
        snprintf(what, sizeof what, "step %lld: loss", (long long)i);
        check(v, me, what, value, real(ts_json_item(pair, 0)), v->allowed.step_loss);
        snprintf(what, sizeof what, "step %lld: total norm", (long long)i);
        check(v, me, what, norm, real(ts_json_item(pair, 1)), v->allowed.step_norm);
    }
    ts_optimizer_destroy(optimizer);
}

static void open_model(const verify_model *v, ts_rank *me, ts_mesh *mesh, verify_pipe *pipe)
{
    verify_setting setting = { .directory = v->directory,
                               .options = TS_INIT(ts_model_options),
                               .schedule = v->schedule,
                               .units = v->units,
                               .again = v->again,
                               .every = v->every };
    ts_model_options *options = &setting.options;
    options->plan = v->plan;
    options->ep = v->ep;
    options->attention = v->algorithm;
    options->balance = (int32_t)v->cut;
    if (strcmp(v->dtype, "f64") == 0) options->dtype = TS_DTYPE_F64;
    if (strcmp(v->dtype, "bf16") == 0) options->compute = TS_DTYPE_BF16;
    *pipe =
        (verify_pipe){ .me = me, .tokens = tokens_of, .context = v, .count = v->rows * v->length };
    verify_pipe_open(pipe, &setting, mesh);
}

static ts_status work(ts_rank *me, void *argument)
{
    verify_model *v = argument;
    if (ts_rank_index(me) == 0) v->is_first = true;
    ts_mesh *mesh = cli_mesh_of_all(me, v->mesh);
    int parts = ts_json_member(v->reference, "adamw") != NULL ? 2 : 1;
    for (int part = 0; part < parts && ts_rank_status(me) == TS_OK; part++) {
        verify_pipe pipe;
        open_model(v, me, mesh, &pipe);
        bool good = pipe.model != NULL && ts_rank_status(me) == TS_OK;
        if (good && part == 0 && v->schedule != NULL) check_once_piped(v, &pipe);
        if (good && part == 0 && v->schedule == NULL) check_once(v, me, pipe.model);
        if (good && part == 1) check_steps(v, &pipe);
        verify_pipe_close(&pipe);
    }
    return ts_rank_status(me);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* How many values there are to agree with. */
static int64_t count_values(const ts_json *reference)
{
    const ts_json *adamw = ts_json_member(reference, "adamw");
    int64_t logits = ts_json_count(ts_json_member(reference, "logits_first_row_last_pos"));
    int64_t norms = ts_json_count(ts_json_member(reference, "grad_norm"));
    int64_t steps = ts_json_count(ts_json_member(adamw, "loss_and_total_norm"));
    return 2 + logits + norms + 2 * steps; /* the loss, the norm of the logits */
}

/* Rows of one length, of whole numbers; whether the vocabulary has them is the model's to say. */
static int read_tokens(verify_model *v, const char *path)
{
    const ts_json *rows = ts_json_member(v->reference, "tokens");
    v->rows = ts_json_count(rows);
    v->length = ts_json_count(ts_json_item(rows, 0)) - 1;
    if (v->rows <= 0 || v->length <= 0)
        return cli_fail_usage("verify model", "%s: tokens: rows of at least two are expected",
                              path);
    v->token = calloc((size_t)(v->rows * (v->length + 1)), sizeof *v->token);
    if (!v->token) return cli_fail("verify model", "out of memory");
    for (int64_t r = 0; r < v->rows; r++) {
        const ts_json *row = ts_json_item(rows, r);
        if (ts_json_count(row) != v->length + 1)
            return cli_fail_usage("verify model", "%s: tokens, row %lld: has %lld, and row 0 %lld",
                                  path, (long long)r, (long long)ts_json_count(row),
                                  (long long)v->length + 1);
        for (int64_t i = 0; i <= v->length; i++) {
            int64_t token = ts_json_int(ts_json_item(row, i), -1);
            if (token < 0)
                return cli_fail_usage("verify model",
                                      "%s: tokens, row %lld: is no whole number of at least 0 at "
                                      "%lld",
                                      path, (long long)r, (long long)i);
            v->token[r * (v->length + 1) + i] = token;
        }
    }
    return -1;
}

static int read_reference(verify_model *v)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/reference.json", v->directory);
    if (!cli_json_read("verify model", path, &v->document)) return 2;
    v->reference = ts_json_root(v->document);
    v->values = count_values(v->reference);
    const ts_json *adamw = ts_json_member(v->reference, "adamw"),
                  *betas = ts_json_member(adamw, "betas");
    for (int64_t i = 0; adamw != NULL && i < 2; i++)
        if (isnan(real(ts_json_item(betas, i))))
            return cli_fail_usage("verify model", "%s: adamw.betas: two numbers are expected",
                                  path);
    return read_tokens(v, path);
}

/* Of the axis pp, if there is one. -1: good; else the exit code. */
static int make_schedule(verify_model *v)
{
    ts_roles roles;
    ts_schedule_options size = TS_INIT(ts_schedule_options);
    if (ts_roles_parse(v->mesh, &roles) != TS_OK)
        return cli_fail_usage("verify model", "%s", ts_last_error());
    size.ranks = roles.size[TS_ROLE_PIPELINE];
    size.stages_per_rank = v->stages;
    size.micro_batches = v->micros;
    if (size.ranks == 0) return -1;
    if (ts_schedule_find(v->order, &size, &v->schedule) == TS_OK) return -1;
    return cli_fail_usage("verify model", "%s", ts_last_error());
}

static int run(verify_model *v)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.device = v->device;
    options.topology = v->topology;
    int64_t ranks;
    if (cli_mesh_ranks(v->mesh, &ranks) != TS_OK)
        return cli_fail_usage("verify model", "%s", ts_last_error());
    int bad = make_schedule(v);
    if (bad >= 0) return bad;
    if (!ts_launcher()) {
        options.engine = "threads";
        options.rank_count = ranks;
    }
    char error[1024] = "";
    ts_status status = ts_launch_with(&options, work, v, error, sizeof error);
    int code = status == TS_OK ? 0 : cli_fail_run("verify model", status, error);
    if (!v->is_first) return code;
    const tolerances *a = &v->allowed;
    if (strcmp(v->dtype, "bf16") == 0)
        printf("tolerances of bf16: loss %g, logits %g, gradients %g; of steps: loss %g, norm %g\n",
               a->loss, a->logits, a->gradient, a->step_loss, a->step_norm);
    printf("%s on %s (%s): %lld of %lld agree\n", v->directory, v->mesh,
           v->plan ? v->plan : "default plan", (long long)v->agreed, (long long)v->values);
    return code != 0 ? code : v->agreed != v->values;
}

/* What options that are words mean; -1: all of them do. */
static int read_words(verify_model *v)
{
    if (!cli_recompute_parse(v->recompute, &v->again, &v->every))
        return cli_fail_usage(
            "verify model",
            "--recompute: expected none, full, select or a number of blocks, found \"%s\"",
            v->recompute);
    static const char *const algorithms[] = { "auto", "gather", "ring", "heads" };
    while (v->algorithm < 4 && strcmp(v->attention, algorithms[v->algorithm]) != 0)
        v->algorithm++;
    if (v->algorithm == 4)
        return cli_fail_usage("verify model",
                              "--attention: expected auto, ring, gather or heads, found \"%s\"",
                              v->attention);
    if (ts_balance_parse(v->balance, &v->cut) != TS_OK)
        return cli_fail_usage("verify model", "--balance: %s", ts_last_error());
    bool is_bf16 = strcmp(v->dtype, "bf16") == 0;
    if (!is_bf16 && strcmp(v->dtype, "f32") != 0 && strcmp(v->dtype, "f64") != 0)
        return cli_fail_usage("verify model", "--dtype: expected f32, f64 or bf16, found \"%s\"",
                              v->dtype);
    int code = verify_device("verify model", v->device);
    if (code >= 0) return code;
    v->allowed = is_bf16 ? rounded : exact;
    ts_fsdp_options_init(&v->units);
    if (ts_reshard_parse(v->reshard, &v->units.reshard) != TS_OK)
        return cli_fail_usage("verify model", "%s", ts_last_error());
    return -1;
}

int cli_verify_model(int argc, char **argv)
{
    verify_model v = { .mesh = "dp=1",
                       .recompute = "none",
                       .reshard = "auto",
                       .dtype = "f32",
                       .out = stdout,
                       .attention = "auto",
                       .balance = "auto",
                       .order = "1F1B",
                       .micros = 4 };
    const cli_option options[] = {
        CLI_TEXT("mesh", &v.mesh, "TEXT", "roles and sizes, \"dp=2, tp=2\" (default dp=1)"),
        CLI_TEXT(
            "plan", &v.plan, "NAME|FILE",
            "dp, tp, sp, or a file of \"pattern: placements\" lines; \"base: tp\" for the rest"),
        CLI_INT("ep", &v.ep, 1, INT32_MAX,
                "experts are cut over groups of so many neighbouring ranks (default 1)"),
        CLI_TEXT("schedule", &v.order, "NAME|FILE", "of the axis pp (default 1F1B)"),
        CLI_INT("stages", &v.stages, 1, 65536, "of a rank of pp (default what the schedule needs)"),
        CLI_INT("micro-batches", &v.micros, 1, 1 << 20, "of the axis pp (default 4)"),
        CLI_TEXT("device", &v.device, "NAME",
                 "cpu, cuda, queue or auto (default TESSERA_DEVICE, else cpu)"),
        CLI_TOPOLOGY(&v.topology),
        CLI_TEXT("recompute", &v.recompute, "none|full|select|N",
                 "what backward makes again: whole blocks, what is cheap, every n-th block "
                 "(default none)"),
        CLI_TEXT("reshard", &v.reshard, "auto|yes|no|K",
                 "what becomes of gathered parameters until backward (default auto)"),
        CLI_TEXT("attention", &v.attention, "auto|ring|gather|heads",
                 "how attention goes over a sequence cut by cp (default auto)"),
        CLI_TEXT("balance", &v.balance, "auto|none|head_tail|per_document|ptrr",
                 "how cp cuts the sequence (default auto)"),
        CLI_TEXT("dtype", &v.dtype, "f32|f64|bf16",
                 "of parameters and products; bf16: of products alone (default f32)"),
        CLI_END,
    };
    const cli_usage usage = { "verify model", "DIR [options]",
                              "a model against the numbers of another implementation", options,
                              NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("verify model", "needs one directory");
    v.directory = argv[1];
    code = cli_check_topology("verify model", v.topology);
    if (code < 0) code = read_words(&v);
    if (code < 0) code = read_reference(&v);
    if (code < 0) code = run(&v);
    ts_schedule_destroy(v.schedule);
    ts_json_release(v.document);
    free(v.token);
    return code;
}
