/* SPDX-License-Identifier: Apache-2.0 */
/* bench_train_pair.c - `tessera bench train --mesh A --against B`: steps of one model on two meshes
 * of as many ranks, in turns.
 *
 * Both models are there at once, so whatever else the machine does hits them alike. A step lasts
 * until the slowest rank is done. What counts is the median of the ratios of pairs; their spread is
 * printed. The first steps of both are not counted. */
#include <stdlib.h>
#include <string.h>

#include "bench_train.h"
#include "contest.h"

enum { WARM = 3, SIDES = 2 };

typedef struct side {
    const char *mesh;
    ts_model *model;
    ts_optimizer *optimizer;
} side;

typedef struct duel {
    const bench_pair *pair;
    double seconds[SIDES][BENCH_PAIRS_MAX];
    int64_t bytes[SIDES]; /* received by rank 0 in a step */
    ts_fsdp_stats stats;  /* of the first side, after the last step; calls and their time are of */
    ts_fsdp_stats warm;   /* steps after the first ones */
    ts_memory memory;     /* of rank 0 */
} duel;

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    uint64_t x = (uint64_t)(global[0] * 1000003 + global[1] + salt[0]) * 0x9e3779b97f4a7c15u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)salt[1]);
    return TS_OK;
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
    for (int64_t i = 1; i + 1 < ts_model_block_count(s->model); i++)
        ts_module_checkpoint(ts_model_block(s->model, i), p->recompute);
    if (ts_mesh_axis(mesh, "fsdp") >= 0) ts_model_fsdp(s->model, &units);
    ts_model_materialize(s->model);
    ts_fsdp_set(ts_model_module(s->model), TS_FSDP_TIMES, 1);
    s->optimizer = ts_adamw_create(ts_model_module(s->model), NULL);
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

static ts_status fight(duel *d, ts_rank *me, side *s)
{
    bool first = ts_rank_index(me) == 0;
    d->warm.struct_size = sizeof d->warm;
    for (int64_t turn = 0; turn < WARM + d->pair->pairs; turn++) {
        if (first && turn == WARM) ts_fsdp_statistics(ts_model_module(s[0].model), &d->warm);
        for (int k = 0; k < SIDES; k++) {
            int who = (k + (int)turn) % SIDES; /* each goes first in turn */
            double seconds = 0;
            uint64_t event = ts_rank_event(me);
            ts_status status = step(d->pair, me, &s[who], &seconds);
            if (status != TS_OK) return status;
            if (first && turn >= WARM) d->seconds[who][turn - WARM] = seconds;
            if (first && count_bytes(me, event, &d->bytes[who]) != TS_OK) return TS_ERR_MEMORY;
        }
    }
    if (!first) return TS_OK;
    d->stats.struct_size = sizeof d->stats;
    d->memory.struct_size = sizeof d->memory;
    ts_status status = ts_fsdp_statistics(ts_model_module(s[0].model), &d->stats);
    return status == TS_OK ? ts_rank_memory(me, &d->memory) : status;
}

static ts_status work(ts_rank *me, void *argument)
{
    duel *d = argument;
    side s[SIDES] = { { .mesh = d->pair->mesh }, { .mesh = d->pair->against } };
    ts_status status = make_side(d->pair, me, &s[0]);
    if (status == TS_OK) status = make_side(d->pair, me, &s[1]);
    if (status == TS_OK) status = fight(d, me, s);
    for (int k = 0; k < SIDES; k++) {
        ts_optimizer_destroy(s[k].optimizer);
        ts_model_destroy(s[k].model);
    }
    return status;
}

static void report(const duel *d, bench_lines *lines)
{
    const bench_pair *p = d->pair;
    double tokens = (double)(p->rows * p->context), ratio[BENCH_PAIRS_MAX], median[SIDES];
    for (int64_t i = 0; i < p->pairs; i++)
        ratio[i] = d->seconds[1][i] / d->seconds[0][i];
    for (int k = 0; k < SIDES; k++) {
        double copy[BENCH_PAIRS_MAX];
        memcpy(copy, d->seconds[k], sizeof copy);
        median[k] = tokens / bench_median(copy, (size_t)p->pairs);
    }
    double middle = bench_median(ratio, (size_t)p->pairs); /* sorts */
    bench_line *line = bench_lines_add(lines, "tokens/s", median[0], "%s: tokens", p->mesh);
    bench_line_floor(line, median[1], p->against);
    line = bench_lines_add(lines, "x", middle, "%s over %s, median of %lld pairs", p->mesh,
                           p->against, (long long)p->pairs);
    bench_line_floor(line, 1.0, "as fast");
    bench_line_note(line, "%.3f to %.3f", ratio[0], ratio[p->pairs - 1]);
    for (int k = 0; k < SIDES; k++)
        bench_lines_add(lines, "MiB", (double)d->bytes[k] / 0x1p20, "%s: received in a step",
                        k ? p->against : p->mesh);
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
    if (ranks[0] != ranks[1])
        return cli_fail_usage("bench train", "%s has %lld ranks, %s has %lld", pair->mesh,
                              (long long)ranks[0], pair->against, (long long)ranks[1]);
    bench_pair p = *pair;
    if (p.rows == 0) p.rows = 2 * ranks[0];
    duel *d = calloc(1, sizeof *d);
    if (!d) return cli_fail("bench train", "out of memory");
    d->pair = &p;
    ts_world_options options = TS_INIT(ts_world_options);
    if (!ts_launcher()) {
        options.engine = "threads";
        options.rank_count = ranks[0];
    }
    options.seed = 1;
    options.events = 1 << 16;
    char error[1024] = "";
    ts_status status = ts_launch_with(&options, work, d, error, sizeof error);
    if (status == TS_OK && d->seconds[0][0] > 0) report(d, lines);
    free(d);
    return status == TS_OK ? 0 : cli_fail("bench train", "%s", error);
}
