/* SPDX-License-Identifier: Apache-2.0 */
/* bench_replay_order.c - `tessera bench replay --order`: a training step as it was recorded,
 * against the same step in the order that the program of all ranks was given.
 *
 *   recorded    units of fsdp are gathered when they are called and reduced when their backward is
 *               done, so waits stand behind what they wait for
 *   reordered   by ts_program_reorder, all passes (parts if asked for), with times of timed
 *               replays
 *
 * Two models, so that both steps are there at once and run in turns. A step lasts until the slowest
 * rank is done; medians count. Exposed is what a rank's thread spends in operations of
 * communication and in waits for them, but for what it computes for other ranks there; the mean of
 * the ranks. Both are measured by ts_step_time, which looks at the clock once between two pieces of
 * work; ts_step_waits has what they were in. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "bench_replay.h"
#include "bench_replay_waits.h"
#include "contest.h"

enum { RECORDED = BENCH_RECORDED, REORDERED = BENCH_REORDERED, ORDERS = BENCH_ORDERS };
enum { TURNS_MAX = 512, TURNS_MIN = 5, WARM = 2, TIMED = 5, TRIES = 100 };

typedef struct trainee {
    ts_rank *me;
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *tokens;
    ts_step *step;
} trainee;

typedef struct measured {
    double step[TURNS_MAX], exposed[TURNS_MAX], helped[TURNS_MAX]; /* seconds, rank 0's copy */
} measured;

typedef struct race {
    const bench_order *asked;
    measured *of[ORDERS];
    int64_t turns;
    double predicted[ORDERS], exposed[ORDERS]; /* seconds */
    ts_step_order order;
    ts_step_summary recorded;
    int64_t cap, held, held_cap; /* of the step; of the program, which has no gaps, and its cap */
    bench_waits waits;           /* rank 0's */
} race;

/* ---- steps ----------------------------------------------------------------------------------- */

static ts_status train_step(void *context)
{
    const trainee *t = context;
    return bench_replay_step(t->me, t->model, t->optimizer, t->tokens);
}

/* As units gather where ranks share no memory. */
static ts_status gather(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                        ts_tensor **out, void *context)
{
    (void)context;
    return ts_redistribute_many(x, to, count, out);
}

static ts_status make(const bench_order *asked, trainee *t)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .vocab = (int32_t)asked->vocab,
                               .hidden = (int32_t)asked->hidden,
                               .intermediate = (int32_t)(asked->hidden * 8 / 3 / 64 * 64),
                               .layers = (int32_t)asked->layers,
                               .heads = (int32_t)(asked->hidden / 64),
                               .kv_heads = (int32_t)(asked->hidden / 64),
                               .head_dim = 64,
                               .positions = (int32_t)asked->context };
    ts_mesh *mesh = ts_mesh_create(t->me, asked->mesh);
    t->model = ts_model_declare(mesh, &config, NULL);
    ts_fsdp_options units = TS_INIT(ts_fsdp_options);
    units.prefetch_off = 2;
    units.reshard = TS_RESHARD_YES;
    if (!asked->shared) units.gather_fn = gather;
    if (ts_mesh_axis(mesh, "fsdp") >= 0) (void)ts_model_fsdp(t->model, &units);
    (void)ts_model_materialize(t->model);
    t->optimizer =
        ts_adamw_create(ts_model_module(t->model), TS_OPTIONS(ts_adamw_options, .lr = 1e-4));
    ts_tensor *any = ts_randint(mesh, TS_DTYPE_I64, TS_SHAPE(asked->rows, asked->context), NULL,
                                TS_OPTIONS(ts_random_options, .high = asked->vocab));
    t->tokens = ts_tensor_retain(ts_redistribute_to(any, ts_model_tokens(t->model)));
    ts_mesh_release(mesh);
    ts_status status = ts_rank_status(t->me);
    for (int warm = 0; warm < 2 && status == TS_OK; warm++)
        status = train_step(t);
    if (status == TS_OK) t->step = ts_step_record(t->me, train_step, t);
    return ts_rank_status(t->me);
}

static void unmake(trainee *t)
{
    ts_step_destroy(t->step);
    ts_tensor_release(t->tokens);
    ts_optimizer_destroy(t->optimizer);
    ts_model_destroy(t->model);
}

/* ---- the order ------------------------------------------------------------------------------- */

static ts_status save_program(const bench_order *asked, const ts_rank *me, const ts_program *p,
                              const char *which)
{
    char path[1024];
    if (!asked->save || ts_rank_index(me) != 0) return TS_OK;
    (void)snprintf(path, sizeof path, "%s.%s", asked->save, which);
    return ts_program_write(p, path);
}

/* What moving takes of computing: ranks of this machine move bytes by threads of their own. */
static double moving_of(const bench_order *asked, int64_t ranks)
{
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN), shared = cores / ranks > 0 ? cores / ranks : 1;
    int64_t threads = asked->threads > 0 ? asked->threads : shared;
    return ranks * threads >= cores ? 1.0 / (double)threads : 0;
}

/* The program may hold so much more than the recorded step's own memory; places of blocks have
 * gaps, so their arena may have as much again. */
static ts_status reorder(race *r, trainee *t, bench_waits *waits)
{
    const bench_order *asked = r->asked;
    ts_program_costs costs = { .struct_size = sizeof costs,
                               .moving = moving_of(asked, ts_rank_count(t->me)) };
    bool first = ts_rank_index(t->me) == 0;
    ts_program *program = NULL, *better = NULL;
    ts_program_times times[ORDERS] = { TS_INIT(ts_program_times), TS_INIT(ts_program_times) };
    ts_step_order order = TS_INIT(ts_step_order);
    ts_step_summary is = TS_INIT(ts_step_summary);
    ts_reorder_options options;
    ts_reorder_options_init(&options);
    options.tries = TRIES;
    if (!asked->parts) options.passes = TS_PASS_ALL & ~(uint32_t)TS_PASS_SPLIT;
    ts_status status = ts_step_program(t->step, &program);
    if (status == TS_OK)
        status = bench_waits_predict(waits, RECORDED, program, &costs, &times[RECORDED]);
    if (status == TS_OK) status = ts_step_summarise(t->step, &is);
    int64_t more = is.bytes / 100 * (asked->memory - 100);
    options.memory_bytes_max = times[RECORDED].peak_bytes + more;
    if (status == TS_OK) status = ts_program_reorder(program, &options, NULL, NULL, &better);
    if (status == TS_OK)
        status = bench_waits_predict(waits, REORDERED, better, &costs, &times[REORDERED]);
    if (status == TS_OK) status = save_program(asked, t->me, program, "before");
    if (status == TS_OK) status = save_program(asked, t->me, better, "after");
    if (status == TS_OK) status = ts_step_reorder(t->step, better, is.bytes + 2 * more, &order);
    ts_program_destroy(better);
    ts_program_destroy(program);
    if (!first) return status;
    r->order = order;
    r->recorded = is;
    r->cap = is.bytes + 2 * more;
    r->held = times[REORDERED].peak_bytes;
    r->held_cap = options.memory_bytes_max;
    for (int k = 0; k < ORDERS; k++) {
        r->predicted[k] = times[k].makespan_us * 1e-6;
        r->exposed[k] = times[k].exposed_us * 1e-6;
    }
    return status;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static ts_status mean_of_ranks(ts_rank *me, double *value)
{
    ts_array one = { .struct_size = sizeof one, .data = value };
    one.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F64 };
    ts_status status = ts_group_all_reduce(ts_group_world(me), &one, &one, TS_REDUCE_SUM, NULL);
    *value /= (double)ts_rank_count(me);
    return status;
}

static ts_status take_turn(race *r, trainee *t, bench_waits *waits, int who, int64_t turn)
{
    ts_group *world = ts_group_world(t->me);
    ts_step_summary is = TS_INIT(ts_step_summary);
    ts_status status = ts_group_barrier(world, NULL);
    double start = cli_now();
    if (status == TS_OK) status = ts_step_time(t->step);
    double seconds = cli_now() - start;
    if (status == TS_OK) status = ts_step_summarise(t->step, &is);
    if (status == TS_OK) status = bench_waits_add(waits, who, t->step);
    double exposed = (double)is.waited_ns * 1e-9, helped = (double)is.helped_ns * 1e-9;
    if (status == TS_OK) status = contest_agree(world, &seconds, 1);
    if (status == TS_OK) status = mean_of_ranks(t->me, &exposed);
    if (status == TS_OK) status = mean_of_ranks(t->me, &helped);
    if (ts_rank_index(t->me) != 0) return status;
    r->of[who]->step[turn] = seconds;
    r->of[who]->exposed[turn] = exposed;
    r->of[who]->helped[turn] = helped;
    return status;
}

static ts_status take_turns(race *r, trainee *t, bench_waits *waits, double seconds)
{
    double begin = cli_now(), spent = 0;
    ts_status status = TS_OK;
    int64_t turn = 0;
    while (status == TS_OK && turn < TURNS_MAX && (turn < TURNS_MIN || spent < seconds)) {
        for (int k = 0; k < ORDERS && status == TS_OK; k++) {
            int who = (k + (int)turn) % ORDERS; /* each goes first in turn */
            status = take_turn(r, &t[who], waits, who, turn);
        }
        turn++;
        spent = cli_now() - begin;
        if (status == TS_OK) status = contest_agree(ts_group_world(t->me), &spent, 1);
    }
    if (status == TS_OK) status = bench_waits_meet(waits, t->me, turn);
    if (ts_rank_index(t->me) != 0) return status;
    r->turns = turn;
    r->waits = *waits;
    return status;
}

static ts_status work(ts_rank *me, void *context)
{
    race *r = context;
    double begin = cli_now();
    trainee t[ORDERS] = { { .me = me }, { .me = me } };
    bench_waits waits = { .count = 0 };
    ts_status status = TS_OK;
    for (int k = 0; k < ORDERS && status == TS_OK; k++)
        status = make(r->asked, &t[k]);
    for (int i = 0; i < WARM + TIMED && status == TS_OK; i++) /* in turns, as they will run */
        for (int k = 0; k < ORDERS && status == TS_OK; k++)
            status = i < WARM ? ts_step_replay(t[k].step) : ts_step_time(t[k].step);
    if (status == TS_OK) status = reorder(r, &t[REORDERED], &waits);
    double left = (double)r->asked->seconds - (cli_now() - begin);
    if (status == TS_OK) status = contest_agree(ts_group_world(me), &left, 1);
    if (status == TS_OK) status = take_turns(r, t, &waits, left);
    for (int k = 0; k < ORDERS; k++)
        unmake(&t[k]);
    return status;
}

/* ---- what came of it ------------------------------------------------------------------------- */

static void note_order(const race *r, bench_line *line)
{
    const ts_step_order *is = &r->order;
    char ahead[48] = "begun as recorded", parts[80] = "";
    if (is->agreed) (void)snprintf(ahead, sizeof ahead, "%lld begin ahead", (long long)is->ahead);
    if (is->parted + is->whole > 0)
        (void)snprintf(parts, sizeof parts, ", %lld in parts (%lld left whole)",
                       (long long)is->parted, (long long)is->whole);
    bench_line_note(line, "%lld turns; %s, %lld of %lld works moved, %lld as one%s",
                    (long long)r->turns, ahead, (long long)is->moved, (long long)is->works,
                    (long long)is->joined, parts);
}

static void report(const race *r, bench_lines *lines)
{
    const char *mesh = r->asked->mesh;
    double step[ORDERS], exposed[ORDERS], helped[ORDERS], ratio[TURNS_MAX];
    for (int64_t i = 0; i < r->turns; i++)
        ratio[i] = r->of[REORDERED]->step[i] / r->of[RECORDED]->step[i];
    for (int k = 0; k < ORDERS; k++) {
        step[k] = bench_median(r->of[k]->step, (size_t)r->turns);
        exposed[k] = bench_median(r->of[k]->exposed, (size_t)r->turns);
        helped[k] = bench_median(r->of[k]->helped, (size_t)r->turns);
    }
    double gain = 1 - bench_median(ratio, (size_t)r->turns);
    double wanted = 1 - r->predicted[REORDERED] / r->predicted[RECORDED];
    bench_line *line =
        bench_lines_add(lines, "ms", 1e3 * step[REORDERED], "%s: a step, reordered", mesh);
    bench_line_floor(line, 1e3 * step[RECORDED], "as recorded");
    note_order(r, line);
    line = bench_lines_add(lines, "ms", 1e3 * exposed[REORDERED],
                           "%s: exposed communication, reordered", mesh);
    bench_line_floor(line, 1e3 * exposed[RECORDED], "as recorded");
    line->wanted = 0.5 * 1e3 * exposed[RECORDED];
    bench_line_note(line, "mean of the ranks; %.0f and %.0f %% of a step",
                    100 * exposed[REORDERED] / step[REORDERED],
                    100 * exposed[RECORDED] / step[RECORDED]);
    line = bench_lines_add(lines, "ms", 1e3 * helped[REORDERED],
                           "%s: computed for others in waits, reordered", mesh);
    bench_line_floor(line, 1e3 * helped[RECORDED], "as recorded");
    bench_line_note(line, "mean of the ranks; not exposed");
    bench_waits_report(&r->waits, mesh, lines);
    for (int k = 0; k < ORDERS; k++) {
        line = bench_lines_add(lines, "ms", 1e3 * r->predicted[k], "%s: predicted step, %s", mesh,
                               k == RECORDED ? "as recorded" : "reordered");
        bench_line_floor(line, 1e3 * step[k], "measured");
        bench_line_note(line, "%+.0f %%, within 20 is wanted; %.2f ms of it exposed",
                        100 * (r->predicted[k] / step[k] - 1), 1e3 * r->exposed[k]);
    }
    line = bench_lines_add(lines, "%", 100 * gain, "%s: shorter than recorded", mesh);
    bench_line_floor(line, 100 * wanted, "predicted");
    bench_line_note(line, "median of the turns, each order's step after the other's");
    line = bench_lines_add(lines, "MiB", (double)r->order.bytes / 0x1p20,
                           "%s: memory of the step, reordered", mesh);
    bench_line_floor(line, (double)r->recorded.bytes / 0x1p20, "as recorded");
    bench_line_note(line, "%.1f allowed; the program holds %.1f of %.1f%s", (double)r->cap / 0x1p20,
                    (double)r->held / 0x1p20, (double)r->held_cap / 0x1p20,
                    r->order.taken ? "" : "; not taken: it needs more");
}

int bench_replay_order(const bench_order *asked, bench_lines *lines)
{
    char error[1024] = "", each[32];
    race *r = calloc(1, sizeof *r);
    measured *of = calloc(ORDERS, sizeof *of);
    if (!r || !of) {
        free(r);
        free(of);
        return cli_fail("bench replay", "out of memory");
    }
    r->asked = asked;
    for (int k = 0; k < ORDERS; k++)
        r->of[k] = &of[k];
    if (asked->threads > 0) {
        (void)snprintf(each, sizeof each, "%lld", (long long)asked->threads);
        (void)setenv("TESSERA_THREADS", each, 1); /* before the world opens */
    }
    ts_world_options world = {
        .struct_size = sizeof world, .engine = asked->engine, .rank_count = asked->ranks, .seed = 1
    };
    ts_status status = ts_launch_with(&world, work, r, error, sizeof error);
    if (status == TS_OK && r->turns > 0) report(r, lines);
    free(of);
    free(r);
    return status == TS_OK ? 0 : cli_fail_run("bench replay", status, error);
}
