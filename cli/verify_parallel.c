/* SPDX-License-Identifier: Apache-2.0 */
/* verify_parallel.c - one cell of `tessera verify parallel`: a family on a mesh against one rank.
 *
 *   roles, family --> mesh, plan, ep --> STEPS steps of AdamW in f64 on thread ranks
 *                                        | losses, norms, every gradient, every weight
 *                                        one rank, the same seed
 *
 * Sizes are odd on purpose: rows, tokens, layers and the vocabulary divide by no axis, so that
 * uneven and empty pieces are part of every row.
 *
 * INV: a row agrees only if each parameter of the reference was compared, on one rank at least. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"
#include "verify.h"
#include "verify_parallel.h"

enum { STEPS = 3, ROWS = 5, LENGTH = 13, MICROS = 3 };
#define TOLERANCE 1e-9 /* of f64, after three steps of AdamW */

/* ---- one run --------------------------------------------------------------------------------- */

typedef struct kept { /* of one parameter, on one rank */
    char name[128];
    int64_t count;
    double *gradient, *value; /* of the first step; after the last */
    double gradient_size;     /* the largest element, absolutely */
} kept;

typedef struct reference {
    kept *tensor;
    int64_t count;
    double gradient_size; /* the largest of any */
    double loss[STEPS], norm[STEPS];
} reference;

typedef struct part { /* what a rank found; it alone writes there */
    double difference;
    char where[160]; /* the largest one */
    int64_t bytes;   /* received, of the last step */
    bool *seen;      /* by tensor of the reference */
} part;

typedef struct trial {
    const verify_setting *setting;
    const char *mesh;
    int64_t vocabulary, length;
    uint64_t seed;
    reference *with;
    bool makes; /* the reference: one rank */
    part part[VERIFY_RANKS_MAX];
} trial;

typedef struct view { /* a rank's look at its parameters */
    trial *trial;
    part *part;
    bool after; /* values; else gradients */
} view;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const trial *t = context;
    uint64_t x = t->seed + (uint64_t)(global[0] * (t->length + 1) + global[1]);
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)t->vocabulary);
    return TS_OK;
}

static ts_status label_at(const int64_t *global, void *element, void *context)
{
    int64_t next[2] = { global[0], global[1] + 1 };
    return token_at(next, element, context);
}

static ts_tensor *tokens_of(const void *context, ts_model *model, int64_t shift)
{
    trial t = { .vocabulary = ((const trial *)context)->vocabulary,
                .length = ((const trial *)context)->length,
                .seed = ((const trial *)context)->seed };
    ts_meta meta = { .shape = TS_SHAPE(ROWS, t.length), .dtype = TS_DTYPE_I64 };
    return ts_from_function(shift ? label_at : token_at, &t,
                            ts_model_tokens_of(model, t.length, NULL), meta);
}

static void differ(part *p, double difference, const char *what, const char *name)
{
    if (difference <= p->difference) return;
    p->difference = difference; /* not a number is larger than all: see below */
    snprintf(p->where, sizeof p->where, "%s%s", what, name);
}

static void compare(part *p, double have, double want, double least, const char *what,
                    const char *name)
{
    double size = fmax(fabs(want), least), error = fabs(have - want) / (size > 0 ? size : 1.0);
    differ(p, isnan(error) ? HUGE_VAL : error, what, name);
}

/* All elements of a tensor; NULL: the rank's error says why. The caller frees. */
static double *elements(ts_tensor *t, int64_t *count)
{
    ts_tensor *whole = ts_tensor_full(ts_cast(t, TS_DTYPE_F64));
    ts_shape shape = whole ? ts_tensor_shape(whole) : TS_SHAPE(0);
    *count = 1;
    for (int32_t i = 0; i < shape.ndim; i++)
        *count *= shape.extent[i];
    double *out = calloc((size_t)*count + 1, sizeof *out);
    ts_array to = TS_INIT(ts_array);
    to.data = out;
    to.meta = (ts_meta){ .shape = shape, .dtype = TS_DTYPE_F64 };
    if (whole && out && ts_tensor_read(whole, &to) == TS_OK) return out;
    free(out);
    return NULL;
}

static void keep(reference *r, const char *name, double *data, int64_t count, bool after)
{
    if (after) {
        for (int64_t i = 0; i < r->count; i++)
            if (strcmp(r->tensor[i].name, name) == 0) r->tensor[i].value = data;
        return;
    }
    kept *grown = realloc(r->tensor, (size_t)(r->count + 1) * sizeof *grown);
    if (!grown) return;
    r->tensor = grown;
    kept *k = &r->tensor[r->count++];
    *k = (kept){ .count = count, .gradient = data };
    snprintf(k->name, sizeof k->name, "%s", name);
    for (int64_t i = 0; i < count; i++)
        k->gradient_size = fmax(k->gradient_size, fabs(data[i]));
    r->gradient_size = fmax(r->gradient_size, k->gradient_size);
}

static void compare_all(const view *v, int64_t index, const double *have)
{
    const kept *k = &v->trial->with->tensor[index];
    const double *want = v->after ? k->value : k->gradient;
    /* What is zero but for rounding is measured by its neighbours; weights by what a step moves. */
    double least = v->after ? 1e-2 : fmax(k->gradient_size, 1e-3 * v->trial->with->gradient_size);
    for (int64_t i = 0; i < k->count; i++)
        compare(v->part, have[i], want[i], least, v->after ? "weight of " : "gradient of ",
                k->name);
    v->part->seen[index] = true;
}

/* A parameter of another stage has no gradient here. */
static ts_status look(const char *name, ts_tensor *parameter, void *context)
{
    const view *v = context;
    const reference *r = v->trial->with;
    int64_t index = 0, count = 0;
    while (index < r->count && strcmp(r->tensor[index].name, name) != 0)
        index++;
    bool known = index < r->count;
    if (v->after && (!known || (!v->trial->makes && !v->part->seen[index]))) return TS_OK;
    ts_tensor *tensor = v->after ? parameter : ts_tensor_grad(parameter);
    double *have = tensor ? elements(tensor, &count) : NULL;
    if (!have) return TS_OK;
    if (v->trial->makes) {
        keep(v->trial->with, name, have, count, v->after);
        return TS_OK;
    }
    if (known && count == r->tensor[index].count)
        compare_all(v, index, have);
    else
        differ(v->part, HUGE_VAL, known ? "size of " : "one rank has no gradient of ", name);
    free(have);
    return TS_OK;
}

static void look_at_all(trial *t, const verify_pipe *pipe, bool after)
{
    ts_scope_options quiet = TS_INIT(ts_scope_options);
    quiet.no_grad = 1;
    view v = { t, &t->part[ts_rank_index(pipe->me)], after };
    ts_scope scope = ts_scope_open_with(pipe->me, &quiet);
    ts_module_each(ts_model_module(pipe->model), look, &v);
    ts_scope_close(scope);
}

static int64_t bytes_since(const ts_rank *me, uint64_t event)
{
    ts_counts counts = { .struct_size = sizeof counts };
    int64_t bytes = 0;
    if (ts_rank_counts(me, event, &counts) != TS_OK) return -1;
    for (int64_t i = 0; i < counts.row_count; i++)
        bytes += counts.row[i].bytes;
    return bytes;
}

static void run_steps(trial *t, const verify_pipe *pipe)
{
    ts_rank *me = pipe->me;
    part *p = &t->part[ts_rank_index(me)];
    ts_adamw_options options = TS_INIT(ts_adamw_options);
    options.lr = 1e-2;
    options.weight_decay = 0.1;
    options.epsilon = 1e-5; /* biases of keys have no gradient: their rounding is no direction */
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(pipe->model), &options);
    for (int step = 0; step < STEPS && ts_rank_status(me) == TS_OK; step++) {
        char number[32];
        double loss = NAN, norm = NAN;
        uint64_t event = ts_rank_event(me);
        ts_scope scope = ts_scope_open(me, "step");
        verify_pipe_step(pipe, 1.0, &loss, &norm);
        if (step == 0) look_at_all(t, pipe, false);
        ts_optimizer_step(optimizer);
        ts_scope_close(scope);
        p->bytes = bytes_since(me, event);
        if (t->makes) {
            t->with->loss[step] = loss;
            t->with->norm[step] = norm;
        }
        snprintf(number, sizeof number, "%d", step + 1);
        compare(p, loss, t->with->loss[step], 0, "loss of step ", number);
        compare(p, norm, t->with->norm[step], 0, "norm of step ", number);
    }
    if (ts_rank_status(me) == TS_OK) look_at_all(t, pipe, true);
    ts_optimizer_destroy(optimizer);
}

static ts_status work(ts_rank *me, void *argument)
{
    trial *t = argument;
    ts_mesh *mesh = ts_mesh_create(me, t->mesh);
    if (mesh == NULL) return ts_rank_status(me);
    verify_pipe pipe = { .me = me, .tokens = tokens_of, .context = t, .count = ROWS * t->length };
    verify_pipe_open(&pipe, t->setting, mesh);
    if (pipe.model != NULL && ts_rank_status(me) == TS_OK) run_steps(t, &pipe);
    verify_pipe_close(&pipe);
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

/* ---- one cell of the table ------------------------------------------------------------------- */

static bool make_schedule(const verify_case *c, ts_schedule **out, char *error, size_t size)
{
    ts_roles roles;
    ts_schedule_options options = TS_INIT(ts_schedule_options);
    *out = NULL;
    if (ts_roles_parse(c->mesh, &roles) != TS_OK) {
        snprintf(error, size, "%s", ts_last_error());
        return false;
    }
    options.ranks = roles.size[TS_ROLE_PIPELINE];
    options.micro_batches = MICROS;
    if (options.ranks == 0 || ts_schedule_find("1F1B", &options, out) == TS_OK) return true;
    snprintf(error, size, "%s", ts_last_error());
    return false;
}

/* What the ranks found, together. */
static void gather(const trial *t, int64_t ranks, verify_cell *out)
{
    part all = { 0 };
    for (int64_t r = 0; r < ranks; r++) {
        differ(&all, t->part[r].difference, t->part[r].where, "");
        out->bytes += t->part[r].bytes;
    }
    for (int64_t i = 0; i < t->with->count; i++) {
        bool seen = false;
        for (int64_t r = 0; r < ranks; r++)
            seen = seen || t->part[r].seen[i];
        if (!seen) differ(&all, HUGE_VAL, "nobody has a gradient of ", t->with->tensor[i].name);
    }
    out->difference = all.difference;
    out->agrees = all.difference <= TOLERANCE;
    if (!out->agrees) snprintf(out->reason, sizeof out->reason, "%s", all.where);
}

static bool launch(trial *t, const verify_run *run, int64_t ranks, verify_cell *out)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = ranks;
    options.seed = run->seed;
    options.device = run->device;
    options.topology = run->topology;
    options.events = 1 << 14; /* a step's, so that all are counted */
    bool good = true;
    for (int64_t r = 0; r < ranks; r++) {
        t->part[r].seen = calloc((size_t)t->with->count + 1, sizeof(bool));
        good = good && t->part[r].seen != NULL;
    }
    if (!good) snprintf(out->reason, sizeof out->reason, "out of memory");
    good = good && ts_launch_with(&options, work, t, out->reason, sizeof out->reason) == TS_OK;
    if (good && !t->makes) gather(t, ranks, out);
    for (int64_t r = 0; r < ranks; r++)
        free(t->part[r].seen);
    return good;
}

static bool run_case(const verify_run *run, const verify_family *f, const verify_case *c,
                     reference *with, verify_cell *out)
{
    verify_setting setting = { .directory = f->directory,
                               .config = &f->config,
                               .options = TS_INIT(ts_model_options) };
    ts_schedule *schedule = NULL;
    int64_t ranks = 0;
    setting.options.dtype = TS_DTYPE_F64;
    setting.options.plan = c->plan;
    setting.options.ep = c->ep;
    ts_fsdp_options_init(&setting.units);
    *out = (verify_cell){ 0 };
    if (!make_schedule(c, &schedule, out->reason, sizeof out->reason)) return false;
    setting.schedule = schedule;
    trial *t = calloc(1, sizeof *t);
    if (t == NULL || cli_mesh_ranks(c->mesh, &ranks) != TS_OK || ranks > VERIFY_RANKS_MAX) {
        snprintf(out->reason, sizeof out->reason, "no ranks for \"%s\"", c->mesh);
        free(t);
        return false;
    }
    *t = (trial){ .setting = &setting,
                  .mesh = c->mesh,
                  .vocabulary = f->config.vocab,
                  .length = LENGTH,
                  .seed = run->seed,
                  .with = with,
                  .makes = ranks == 1 };
    bool good = launch(t, run, ranks, out);
    out->ran = true;
    out->refused = !good;
    free(t);
    ts_schedule_destroy(schedule);
    return good;
}

static void release(reference *r)
{
    for (int64_t i = 0; i < r->count; i++) {
        free(r->tensor[i].gradient);
        free(r->tensor[i].value);
    }
    free(r->tensor);
}

bool verify_family_run(const verify_run *run, const verify_family *f, const verify_case *c,
                       const bool *wanted, int64_t count, verify_cell *out)
{
    reference with = { 0 };
    verify_case one = { .mesh = "replicate=1", .plan = "dp" };
    verify_cell cell;
    bool good = run_case(run, f, &one, &with, &cell);
    if (!good) {
        cli_fail("verify parallel", "%s on one rank: %s", f->name, cell.reason);
        return false;
    }
    for (int64_t i = 0; i < count; i++)
        if (wanted[i]) (void)run_case(run, f, &c[i], &with, &out[i]);
    release(&with);
    return true;
}
