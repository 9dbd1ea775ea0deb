/* SPDX-License-Identifier: Apache-2.0 */
/* bench_train_pair.c - `tessera bench train --mesh A --against B`: steps of a model on two meshes,
 * in turns.
 *
 *   as many ranks    one world, which has both models
 *   other numbers    two worlds, each with all cores and the model on its mesh; the one that has
 *                    not the turn sleeps
 *
 * Both models are there at once, so whatever else the machine does hits them alike. A step lasts
 * until the slowest rank is done. What counts is the median of the ratios of pairs; their spread is
 * printed, and what --plan-only would say of a step. The first steps of both are not counted. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench_train.h"
#include "contest.h"

enum { SIDES = 2 };

typedef struct side {
    const char *mesh;
    ts_model *model;
    ts_optimizer *optimizer;
    double must; /* bytes that cross in a step, at least; 0: not known */
} side;

typedef struct duel {
    const bench_pair *pair;
    double seconds[SIDES][BENCH_PAIRS_MAX];
    double predicted[SIDES]; /* seconds of a step */
    int64_t bytes[SIDES];    /* received by rank 0 in a step */
    double must[SIDES];      /* of them, at least; 0: the mesh moves activations, too */
    ts_fsdp_stats stats; /* of the first side, after the last step; calls and their time are of */
    ts_fsdp_stats warm;  /* steps after the first ones */
    /* Of two worlds: whose step is next. Steps of both are numbered, and each goes first in turn.
     */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t next;
    bool ended;    /* a world failed: the other need not wait */
    int64_t turns; /* of each side; fewer than were asked for when the time is up */
    double begin;
} duel;

typedef struct seat { /* of one world of two */
    duel *duel;
    int who;
    int64_t ranks;
    ts_status status;
    char error[1024];
} seat;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    uint64_t x = (uint64_t)(global[0] * 1000003 + global[1] + salt[0]) * 0x9e3779b97f4a7c15u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)salt[1]);
    return TS_OK;
}

typedef struct must_cross { /* of rank 0 */
    const bench_pair *pair;
    const int64_t *coord;
    double cut, copies, bytes; /* ranks that cut a parameter, that hold the same */
} must_cross;

/* Of a shard of s bytes: the rest of the parameter once, and the terms of its gradient from all
 * ranks that cut the batch; those with copies fold a part of it each, and give it to each other. */
static ts_status add_param(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    must_cross *m = context;
    ts_shape shape = ts_layout_local(ts_tensor_layout(parameter), m->coord);
    double count = (double)ts_shape_count(&shape);
    size_t own = ts_dtype_size(ts_tensor_dtype(parameter));
    bool cast = m->pair->compute && shape.ndim >= 2;
    size_t seen = cast ? ts_dtype_size((ts_dtype)m->pair->compute) : own;
    m->bytes += (m->cut - 1) * count * (double)seen;
    m->bytes += (m->cut * m->copies - 1 + m->copies - 1) * count * (double)own / m->copies;
    return TS_OK;
}

static double size_of_axis(const ts_mesh *mesh, const char *name)
{
    int32_t axis = ts_mesh_axis(mesh, name);
    return axis >= 0 ? (double)ts_mesh_axis_size(mesh, axis) : 1;
}

/* Of parameters and gradients, once in each direction. */
static double must_cross_of(const bench_pair *p, const ts_mesh *mesh, const side *s)
{
    static const int64_t first[TS_NDIM_MAX];
    must_cross m = { .pair = p,
                     .coord = first,
                     .cut = size_of_axis(mesh, "fsdp"),
                     .copies = size_of_axis(mesh, "replicate") };
    if (m.cut * m.copies != (double)ts_mesh_size(mesh, NULL)) return 0;
    return ts_module_each(ts_model_module(s->model), add_param, &m) == TS_OK ? m.bytes : 0;
}

static ts_status make_side(const bench_pair *p, ts_rank *me, side *s)
{
    ts_mesh *mesh = ts_mesh_create(me, s->mesh);
    ts_model_options options = TS_INIT(ts_model_options);
    ts_fsdp_options units = TS_INIT(ts_fsdp_options);
    options.compute = p->compute;
    options.dtype = p->dtype;
    units.reshard = p->reshard;
    s->model = ts_model_declare(mesh, &p->config, &options);
    for (int64_t i = 1; i + 1 < ts_model_block_count(s->model); i += p->every)
        ts_module_checkpoint(ts_model_block(s->model, i), (int)p->recompute);
    if (cli_mesh_has_units(mesh)) ts_model_fsdp(s->model, &units);
    ts_model_materialize(s->model);
    ts_fsdp_set(ts_model_module(s->model), TS_FSDP_TIMES, 1);
    s->optimizer = ts_adamw_create(ts_model_module(s->model), NULL);
    if (ts_rank_status(me) == TS_OK) s->must = must_cross_of(p, mesh, s);
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

static ts_status step(const bench_pair *p, ts_rank *me, const side *s, double *seconds)
{
    ts_group *world = ts_group_world(me);
    double norm = 0, loss = 0;
    ts_status status = ts_group_barrier(world, NULL);
    double start = cli_now();
    ts_scope scope = ts_scope_open(me, "");
    ts_tape_begin(me);
    int64_t salt[2] = { 1, p->config.vocab }, next[2] = { 2, p->config.vocab };
    ts_meta meta = { .shape = TS_SHAPE(p->rows, p->context), .dtype = TS_DTYPE_I64 };
    ts_tensor *mean =
        ts_model_loss(s->model, ts_from_function(token_at, salt, ts_model_tokens(s->model), meta),
                      ts_from_function(token_at, next, ts_model_tokens(s->model), meta));
    if (status == TS_OK) status = ts_tensor_item(mean, &loss);
    if (status == TS_OK) status = ts_backward(mean, NULL);
    ts_scope_close(scope);
    if (status == TS_OK) status = ts_clip_grad_norm(ts_model_module(s->model), 1.0, &norm);
    if (status == TS_OK) status = ts_optimizer_step(s->optimizer);
    *seconds = cli_now() - start;
    return status == TS_OK ? contest_agree(world, seconds, 1) : status;
}

/* Of this side on this machine, by all of its ranks. */
static ts_status predict(const bench_pair *p, ts_rank *me, const side *s, double *seconds)
{
    ts_train_shape shape = {
        .struct_size = sizeof shape, .rows = p->rows, .context = p->context, .moments = 2
    };
    ts_train_cost *cost = calloc(1, sizeof *cost);
    if (!cost) return TS_ERR_MEMORY;
    ts_train_rates rates;
    ts_train_times times = { .step = 0 };
    ts_status status = ts_train_estimate(s->model, &shape, cost);
    if (status == TS_OK) status = ts_train_measure(me, cost, &rates);
    if (status == TS_OK) ts_train_predict(cost, &rates, &times);
    if (ts_rank_index(me) == 0) *seconds = times.step;
    free(cost);
    return status;
}

static ts_status count_bytes(ts_rank *me, uint64_t since, int64_t *bytes)
{
    ts_counts *counts = calloc(1, sizeof *counts);
    if (!counts) return TS_ERR_MEMORY;
    counts->struct_size = sizeof *counts;
    ts_status status = ts_rank_counts(me, since, counts);
    *bytes = 0;
    for (int64_t i = 0; i < counts->row_count; i++)
        *bytes += counts->row[i].bytes;
    free(counts);
    return status;
}

/* Step `turn` of one side, from 0; statistics of the first side are taken around those that count.
 */
static ts_status take_turn(duel *d, ts_rank *me, const side *s, int who, int64_t turn)
{
    bool first = ts_rank_index(me) == 0;
    int64_t counted = turn - d->pair->warmup;
    double seconds = 0;
    ts_module *module = ts_model_module(s->model);
    if (first && who == 0 && counted == 0) {
        d->warm.struct_size = sizeof d->warm;
        ts_fsdp_statistics(module, &d->warm);
    }
    uint64_t event = ts_rank_event(me);
    ts_status status = step(d->pair, me, s, &seconds);
    if (status != TS_OK || !first) return status;
    if (counted >= 0) d->seconds[who][counted] = seconds;
    if (count_bytes(me, event, &d->bytes[who]) != TS_OK) return TS_ERR_MEMORY;
    d->must[who] = s->must;
    if (who != 0 || counted < 0) return TS_OK;
    d->stats.struct_size = sizeof d->stats;
    return ts_fsdp_statistics(module, &d->stats);
}

/* Before a pair, by the rank that begins it: is there time for one more? One that counts there is
 * always. */
static bool is_over(duel *d, int64_t turn)
{
    double spent = cli_now() - d->begin;
    bool counted = turn > d->pair->warmup;
    if (counted && d->pair->seconds > 0 &&
        spent + spent / (double)turn > (double)d->pair->seconds && turn < d->turns)
        d->turns = turn;
    return turn >= d->turns;
}

static void end_side(side *s)
{
    ts_optimizer_destroy(s->optimizer);
    ts_model_destroy(s->model);
}

/* ---- one world ------------------------------------------------------------------------------- */

static ts_status work(ts_rank *me, void *argument)
{
    duel *d = argument;
    side s[SIDES] = { { .mesh = d->pair->mesh }, { .mesh = d->pair->against } };
    ts_status status = TS_OK;
    for (int k = 0; k < SIDES && status == TS_OK; k++) {
        status = make_side(d->pair, me, &s[k]);
        if (status == TS_OK) status = predict(d->pair, me, &s[k], &d->predicted[k]);
    }
    for (int64_t turn = 0; status == TS_OK; turn++) {
        double over = ts_rank_index(me) == 0 && is_over(d, turn);
        status = contest_agree(ts_group_world(me), &over, 1);
        if (over > 0) break;
        for (int k = 0; k < SIDES && status == TS_OK; k++) {
            int who = (k + (int)turn) % SIDES; /* each goes first in turn */
            status = take_turn(d, me, &s[who], who, turn);
        }
    }
    for (int k = 0; k < SIDES; k++)
        end_side(&s[k]);
    return status;
}

static ts_status run_world(duel *d, int64_t ranks, char *error, size_t size)
{
    ts_world_options options = TS_INIT(ts_world_options);
    if (!ts_launcher()) {
        options.engine = "threads";
        options.rank_count = ranks;
    }
    options.seed = 1;
    options.events = 1 << 16;
    options.topology = d->pair->topology;
    return ts_launch_with(&options, work, d, error, size);
}

/* ---- two worlds ------------------------------------------------------------------------------ */

/* The number of a side's step among those of both: 0 1, 1 0, 0 1 ... */
static int64_t number_of(int who, int64_t turn)
{
    return SIDES * turn + (who + turn) % SIDES;
}

/* The first rank waits for the other world; its peers wait for it. *over: there is no such turn. */
static ts_status wait_turn(duel *d, ts_rank *me, int who, int64_t turn, bool *over)
{
    bool ended = false;
    double last = 0;
    int64_t number = number_of(who, turn);
    if (ts_rank_index(me) == 0) {
        pthread_mutex_lock(&d->lock);
        while (d->next < number && !d->ended)
            pthread_cond_wait(&d->moved, &d->lock);
        ended = d->ended;
        last = number % SIDES == 0 ? is_over(d, turn) : turn >= d->turns;
        pthread_mutex_unlock(&d->lock);
    }
    if (ended) return ts_rank_fail(me, TS_ERR_STATE, "the other world has ended");
    ts_status status = contest_agree(ts_group_world(me), &last, 1);
    *over = last > 0;
    return status;
}

static void pass_turn(duel *d, bool ends)
{
    pthread_mutex_lock(&d->lock);
    d->next++;
    d->ended = d->ended || ends;
    pthread_cond_broadcast(&d->moved);
    pthread_mutex_unlock(&d->lock);
}

static ts_status work_alone(ts_rank *me, void *argument)
{
    const seat *own = argument;
    duel *d = own->duel;
    int who = own->who;
    side s = { .mesh = who == 0 ? d->pair->mesh : d->pair->against };
    ts_status status = TS_OK;
    bool over = false;
    for (int64_t turn = 0; !over && status == TS_OK; turn++) {
        status = wait_turn(d, me, who, turn, &over);
        if (status == TS_OK && turn == 0) status = make_side(d->pair, me, &s);
        if (status == TS_OK && turn == 0) status = predict(d->pair, me, &s, &d->predicted[who]);
        if (status == TS_OK && !over) status = take_turn(d, me, &s, who, turn);
        if (ts_rank_index(me) == 0 || status != TS_OK) pass_turn(d, status != TS_OK);
    }
    end_side(&s);
    return status;
}

static void *open_world(void *argument)
{
    seat *own = argument;
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = own->ranks,
                                 .timeout_ms = 3600 * 1000, /* the other world has its turn */
                                 .seed = 1,
                                 .events = 1 << 16,
                                 .topology = own->duel->pair->topology };
    own->status = ts_launch_with(&options, work_alone, own, own->error, sizeof own->error);
    if (own->status != TS_OK)
        pass_turn(own->duel, true); /* no rank may have been there to say it */
    return NULL;
}

static ts_status run_worlds(duel *d, const int64_t *ranks, char *error, size_t size)
{
    seat own[SIDES] = { { .duel = d, .who = 0, .ranks = ranks[0] },
                        { .duel = d, .who = 1, .ranks = ranks[1] } };
    pthread_t thread;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->moved, NULL);
    bool made = pthread_create(&thread, NULL, open_world, &own[1]) == 0;
    if (!made) d->ended = true; /* nobody else is there */
    open_world(&own[0]);
    if (made) pthread_join(thread, NULL);
    pthread_cond_destroy(&d->moved);
    pthread_mutex_destroy(&d->lock);
    /* The one that was only told to end says nothing new. */
    const seat *bad = own[1].status != TS_OK && own[1].status != TS_ERR_STATE ? &own[1] : &own[0];
    if (bad->status != TS_OK) snprintf(error, size, "%s", bad->error);
    return made ? bad->status : TS_ERR_MEMORY;
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* Ranks that share memory copy less than must cross between others. */
static void report_bytes(const duel *d, bench_lines *lines)
{
    for (int k = 0; k < SIDES; k++) {
        const char *mesh = k ? d->pair->against : d->pair->mesh;
        bench_lines_add(lines, "MiB", (double)d->bytes[k] / 0x1p20, "%s: received in a step", mesh);
        if (d->must[k] <= 0) continue;
        bench_line *line = bench_lines_add(lines, "x", (double)d->bytes[k] / d->must[k],
                                           "%s: over the bytes that must cross", mesh);
        line->wanted = 1;
        bench_line_note(line, "parameters and gradients once: %.4g MiB", d->must[k] / 0x1p20);
    }
}

static void report(const duel *d, bench_lines *lines)
{
    const bench_pair *p = d->pair;
    double tokens = (double)(p->rows * p->context), ratio[BENCH_PAIRS_MAX], median[SIDES];
    double seconds[SIDES];
    for (int64_t i = 0; i < p->pairs; i++)
        ratio[i] = d->seconds[1][i] / d->seconds[0][i];
    for (int k = 0; k < SIDES; k++) {
        double copy[BENCH_PAIRS_MAX];
        memcpy(copy, d->seconds[k], sizeof copy);
        seconds[k] = bench_median(copy, (size_t)p->pairs);
        median[k] = tokens / seconds[k];
    }
    double middle = bench_median(ratio, (size_t)p->pairs); /* sorts */
    bench_line *line = bench_lines_add(lines, "tokens/s", median[0], "%s: tokens", p->mesh);
    bench_line_floor(line, median[1], p->against);
    line = bench_lines_add(lines, "x", middle, "%s over %s, median of %lld pairs", p->mesh,
                           p->against, (long long)p->pairs);
    bench_line_floor(line, 1.0, "as fast");
    bench_line_note(line, "%.3f to %.3f", ratio[0], ratio[p->pairs - 1]);
    for (int k = 0; k < SIDES; k++) {
        line = bench_lines_add(lines, "ms", 1e3 * d->predicted[k], "%s: predicted time of a step",
                               k ? p->against : p->mesh);
        bench_line_floor(line, 1e3 * seconds[k], "measured");
        bench_line_note(line, "%+.0f %%; within 20 %% is wanted",
                        100 * (d->predicted[k] / seconds[k] - 1));
    }
    report_bytes(d, lines);
    if (d->stats.units == 0) return;
    double calls = (double)(d->stats.calls - d->warm.calls);
    double per_us = 1e-3 / (calls > 0 ? calls : 1);
    line = bench_lines_add(lines, "us", (double)(d->stats.host_ns - d->warm.host_ns) * per_us,
                           "%s: schedule, host time of a unit and direction", p->mesh);
    line->wanted = 5;
    line = bench_lines_add(lines, "us", (double)(d->stats.waited_ns - d->warm.waited_ns) * per_us,
                           "%s: waiting there", p->mesh);
    bench_line_note(line, "for peers, what they send, a core");
    bench_lines_add(lines, "%",
                    100.0 * (double)d->stats.prefetched / (double)(d->stats.gathers + 1),
                    "%s: units gathered ahead", p->mesh);
}

int bench_train_pair(const bench_pair *pair, bench_lines *lines)
{
    int64_t ranks[SIDES];
    if (cli_mesh_ranks(pair->mesh, &ranks[0]) != TS_OK ||
        cli_mesh_ranks(pair->against, &ranks[1]) != TS_OK)
        return cli_fail_usage("bench train", "%s", ts_last_error());
    bool two = ranks[0] != ranks[1];
    if (two && ts_launcher())
        return cli_fail_usage("bench train", "%s has %lld ranks, %s has %lld", pair->mesh,
                              (long long)ranks[0], pair->against, (long long)ranks[1]);
    bench_pair p = *pair;
    if (p.rows == 0) p.rows = 2 * (ranks[0] > ranks[1] ? ranks[0] : ranks[1]);
    duel *d = calloc(1, sizeof *d);
    if (!d) return cli_fail("bench train", "out of memory");
    d->pair = &p;
    d->turns = p.warmup + p.pairs;
    d->begin = cli_now();
    char error[1024] = "";
    ts_status status = two ? run_worlds(d, ranks, error, sizeof error)
                           : run_world(d, ranks[0], error, sizeof error);
    p.pairs = d->turns - p.warmup;
    if (status == TS_OK && d->seconds[0][0] > 0) report(d, lines);
    free(d);
    return status == TS_OK ? 0 : cli_fail_run("bench train", status, error);
}
