/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c - a training run on one rank: the loop, and what is left at the end.
 *
 * A step: for each part of the batch forward and backward (gradients reduced with the last one),
 * the total norm, clipping, a check that all is finite, the update; then the ranks agree whether to
 * stop: the callbacks of any of them decide. A loss or norm that is not finite ends the run before
 * it touches the weights; where the loss is scaled by what fits, the step is left out and the scale
 * halved instead, but not for ever.
 *
 * All of a step that decides is done on the rank's device. Where that is not the host, the numbers
 * of step s are read, told and agreed on while step s + 1 runs: the device never waits for the
 * host. Steps that are saved, the last one, and those whose scale the next one depends on, are told
 * at once. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rank.h"
#include "train/run.h"

/* ---- one step -------------------------------------------------------------------------------- */

/* The time since *mark goes to a phase; the mark moves on. */
static void lap(tsi_run *run, tsi_phase phase, int64_t *mark)
{
    int64_t now = tsi_clock_ns();
    run->measures.phase[phase] += (double)(now - *mark) * 1e-9;
    tsi_seen_phase(&run->seen, (int32_t)phase, *mark, now);
    *mark = now;
}

/* In f64, where there are several. */
ts_status tsi_run_add_loss(tsi_run *run, ts_tensor *loss, ts_tensor *mean)
{
    int64_t parts = run->config->train.accumulate;
    if (parts == 1) return ts_tensor_write(loss, ts_detach(mean));
    ts_tensor *share = ts_mul_scalar(ts_cast(ts_detach(mean), TS_DTYPE_F64), 1.0 / (double)parts);
    return ts_tensor_write(loss, ts_tensor_layout(loss) ? ts_add(loss, share) : share);
}

ts_status tsi_run_part(tsi_run *run, const tsi_rows_part *of, ts_tensor *loss, int64_t *mark)
{
    int64_t parts = run->config->train.accumulate, rows = run->config->train.batch / parts;
    double factor = run->scale.value / (double)parts;
    TSI_TRY(ts_model_router_factor(run->model, factor));
    ts_tensor *mean = tsi_train_loss(&(tsi_rows_loss){ .model = run->model,
                                                       .ids = of->ids,
                                                       .labels = of->labels,
                                                       .rows = rows,
                                                       .context = run->config->data.context,
                                                       .z_loss = run->config->train.z_loss,
                                                       .factor = factor });
    ts_tensor *root = factor != 1.0 ? ts_mul_scalar(mean, factor) : mean;
    ts_status status = tsi_run_add_loss(run, loss, mean);
    lap(run, TSI_PHASE_FORWARD, mark);
    if (status == TS_OK)
        status =
            ts_backward(root, TS_OPTIONS(ts_backward_options,
                                         .lazy = tsi_train_waits(run->model, of->number, parts)));
    lap(run, TSI_PHASE_BACKWARD, mark);
    return status;
}

/* Forward and backward of one part of the rows. */
static ts_status run_part(tsi_run *run, int64_t step, int64_t part, ts_tensor *loss, int64_t *mark)
{
    int64_t rows = run->config->train.batch / run->config->train.accumulate;
    ts_scope scope = ts_scope_open(run->me, NULL);
    ts_tape_begin(run->me);
    TSI_TRY(tsi_run_documents(run, step, part * rows, rows));
    tsi_rows_part of = { .number = part };
    of.ids = tsi_run_rows(run, step, part * rows, rows, 0);
    of.labels = tsi_run_rows(run, step, part * rows, rows, 1);
    lap(run, TSI_PHASE_DATA, mark);
    ts_status status = tsi_run_part(run, &of, loss, mark);
    ts_scope_close(scope);
    return status;
}

/* The same through the pipeline; what it says of the loss is a number already. */
static ts_status run_staged(tsi_run *run, int64_t step, int64_t part, ts_tensor *loss,
                            int64_t *mark)
{
    double mean = 0;
    TSI_TRY(tsi_run_staged_part(run, step, part, &mean));
    lap(run, TSI_PHASE_BACKWARD, mark);
    ts_scope scope = ts_scope_open(run->me, NULL);
    ts_tensor *number = ts_full(mean, ts_module_mesh(ts_model_module(run->model)), TS_DTYPE_F64,
                                TS_SHAPE_SCALAR, NULL);
    ts_status status = number ? tsi_run_add_loss(run, loss, number) : ts_rank_status(run->me);
    ts_scope_close(scope);
    return status;
}

ts_status tsi_run_forward_backward(tsi_run *run, int64_t step, int64_t part, ts_tensor *loss,
                                   int64_t *mark)
{
    return run->stages ? run_staged(run, step, part, loss, mark)
                       : run_part(run, step, part, loss, mark);
}

/* Leaves a step out whose gradients are not finite and halves the scale. A run in which that does
 * not help, or that would end without having learnt anything, fails: its weights are of no use. */
static ts_status skip_step(tsi_run *run, int64_t step, const ts_train_step *s)
{
    TSI_TRY(ts_loss_scale_update(&run->scale, false));
    bool nothing = step + 1 == run->config->train.steps && run->skipped == step + 1;
    if (run->skipped < run->config->train.skips_max && !nothing) return TS_OK;
    TSI_TRY(tsi_state_wait(run)); /* a state that is being written is good */
    return TSI_FAIL_BLAST(TS_BLAST_AGREED, TS_ERR_STATE,
                          "train: step %lld: the %lld steps up to here were left out, the loss is "
                          "%g and the total norm %g with a scale of %g; the weights are those of "
                          "step %lld; take a smaller train.loss_scale or optimizer.rate",
                          (long long)step + 1, (long long)run->skipped, s->loss, s->norm, s->scale,
                          (long long)(step + 1 - run->skipped));
}

/* Everything of a step goes into the queue. */
static ts_status take_step(tsi_run *run, int64_t step, ts_train_step *out, int64_t *mark)
{
    const ts_train_config *c = run->config;
    ts_rate_schedule schedule = tsi_train_schedule(c);
    out->rate = c->optimizer.rate * ts_rate_factor(&schedule, step);
    out->scale = run->scale.value;
    bool done;
    TSI_TRY(tsi_again_take(run, step, out->rate, &done));
    if (done) {
        lap(run, TSI_PHASE_UPDATE, mark);
        return tsi_run_routers(run, out);
    }
    ts_tensor *loss = ts_variable(run->me);
    ts_status status = loss ? TS_OK : ts_rank_status(run->me);
    for (int64_t part = 0; part < c->train.accumulate && status == TS_OK; part++)
        status = tsi_run_forward_backward(run, step, part, loss, mark);
    tsi_tracker_phase(&run->seen.tracker, "update");
    if (status == TS_OK) status = tsi_run_norms(run, step + 1);
    if (status == TS_OK) status = ts_optimizer_rate(run->optimizer, out->rate);
    if (status == TS_OK)
        status = ts_optimizer_step_with(
            run->optimizer,
            TS_OPTIONS(ts_step_options, .norm_max = c->train.clip, .grad_scale = run->scale.value,
                       .loss = loss, .skips = run->scale.every > 0,
                       .stages = tsi_stages_group(run->stages), .shared = run->model->tied_copy));
    ts_tensor_release(loss);
    if (status == TS_OK) status = tsi_run_routers(run, out);
    lap(run, TSI_PHASE_UPDATE, mark);
    return status;
}

/* The run ends; where the numbers came from is looked for first. */
static ts_status refuse_step(tsi_run *run, int64_t step, const ts_train_step *s)
{
    char first[512];
    TSI_TRY(tsi_state_wait(run)); /* one that is being written is of a step before: it is good */
    TSI_TRY(tsi_find_not_finite(run, step, first, sizeof first));
    return TSI_FAIL_BLAST(TS_BLAST_AGREED, TS_ERR_STATE,
                          "train: step %lld: the loss is %g and the total norm %g; the weights "
                          "were not changed%s",
                          (long long)step + 1, s->loss, s->norm, first);
}

/* What became of a step; it waits for that step alone. */
static ts_status judge_step(tsi_run *run, int64_t step, int64_t number, ts_train_step *out)
{
    ts_step_outcome is = TS_INIT(ts_step_outcome);
    TSI_TRY(ts_optimizer_outcome(run->optimizer, number, &is));
    out->loss = is.loss;
    out->norm = is.norm;
    bool finite = isfinite(out->loss) && isfinite(out->norm);
    out->skipped = !finite;
    run->skipped = finite ? 0 : run->skipped + 1;
    if (!finite && run->scale.every > 0) return skip_step(run, step, out);
    if (run->scale.every > 0) TSI_TRY(ts_loss_scale_update(&run->scale, true));
    return finite ? TS_OK : refuse_step(run, step, out);
}

/* Of this rank, and the largest of all ranks. */
typedef struct agreed {
    int64_t stop;   /* what the callbacks want */
    int64_t memory; /* the most that was held */
    /* Time not spent on waiting: the most, with the rank in the last digits, and minus the least.
     */
    int64_t busy_most, busy_least;
} agreed;
#define BUSY_RANKS ((int64_t)1 << 20) /* times in us and ranks share 63 bits */

static ts_status agree(tsi_run *run, agreed *words)
{
    ts_array array = TS_INIT(ts_array);
    array.data = words;
    array.meta =
        (ts_meta){ .shape = TS_SHAPE(sizeof *words / sizeof(int64_t)), .dtype = TS_DTYPE_I64 };
    return ts_group_all_reduce(run->all, &array, &array, TS_REDUCE_MAX, NULL);
}

/* The time since the step before was told, less what this rank waited for others. */
static void note_busy(tsi_run *run, int64_t told, agreed *words)
{
    int64_t waited = run->measures.times.comm_ns - run->waited_ns;
    int64_t busy = tsi_clock_ns() - told - waited;
    run->waited_ns += waited;
    if (busy < 0) busy = 0;
    run->busy += 1e-9 * (double)busy;
    words->busy_most = busy / 1000 * BUSY_RANKS + ts_rank_index(run->me) % BUSY_RANKS;
    words->busy_least = -(busy / 1000);
}

static void take_agreed(const agreed *words, ts_train_step *s)
{
    s->memory_bytes = words->memory;
    s->busy_rank = words->busy_most % BUSY_RANKS;
    s->busy_most = 1e-6 * (double)(words->busy_most / BUSY_RANKS);
    s->busy_least = -1e-6 * (double)words->busy_least;
}

static void fill_speed(tsi_run *run, ts_train_step *s, double seconds)
{
    run->seconds += seconds;
    s->seconds = seconds;
    s->tokens = s->step * run->plan.tokens_per_step;
    s->tokens_per_second = (double)run->plan.tokens_per_step / seconds;
    s->flops = s->tokens_per_second * run->plan.flops_per_token;
    int64_t done = s->step - run->plan.step_first;
    s->remaining = run->seconds / (double)done * (double)(s->steps - s->step);
}

/* What this rank's callbacks want; rank 0's has the step. */
static int64_t ask(const tsi_run *run, const ts_train_step *s)
{
    const ts_train_options *o = run->options;
    int64_t stop = 0;
    if (ts_rank_index(run->me) == 0 && o->on_step) stop = o->on_step(s, o->context) != 0;
    if (!o->stop) return stop;
    int asked = o->stop(o->context);
    return asked > stop ? asked : stop;
}

/* While steps are left out one after another the weights do not change: saving on the way would
 * only drive out the states of before. */
static bool save_is_due(const tsi_run *run, int64_t step, int64_t stop)
{
    const ts_train_config *c = run->config;
    int64_t every = c->checkpoint.every > 0 ? c->checkpoint.every : c->train.save_every;
    if (stop || step == tsi_last_step(c)) return true;
    if (run->keeps_best && run->held_out.best_step == step) return true;
    return every > 0 && step % every == 0 && run->skipped == 0;
}

/* A step that is in the queue, or that nobody was told of yet. */
typedef struct open_step {
    ts_train_step s;
    int64_t number; /* of the optimiser's steps; 0: none */
} open_step;

/* What a state of this step is worth: where there are held-out rows, only those tell. */
static double worth(const tsi_run *run, const ts_train_result *out)
{
    if (!run->held_out.loader) return out->loss;
    return run->held_out.step == out->step ? run->held_out.latest : HUGE_VAL;
}

/* The held-out rows, if they are due; the time that takes is no step's. */
static ts_status evaluate(tsi_run *run, ts_train_step *s, int64_t *told)
{
    int64_t begin = tsi_clock_ns();
    if (!tsi_eval_is_due(run, s->step)) return TS_OK;
    tsi_measure_step(run); /* up to here it is the step's */
    TSI_TRY(tsi_eval_run(run, s->step, &s->eval_loss));
    run->measures.event = ts_rank_event(run->me); /* what evaluating did is no step's */
    *told += tsi_clock_ns() - begin;
    return TS_OK;
}

/* Judges, logs and tells a step; what the callbacks want is agreed on. */
static ts_status tell_step(tsi_run *run, open_step *open, ts_train_result *out, int64_t *told,
                           int64_t *stop)
{
    ts_train_step *s = &open->s;
    TSI_TRY(judge_step(run, s->step - 1, open->number, s));
    open->number = 0;
    TSI_TRY(evaluate(run, s, told));
    tsi_measure_step(run);
    agreed words = { .memory = run->measures.memory_peak };
    note_busy(run, *told, &words);
    TSI_TRY(agree(run, &words));
    take_agreed(&words, s);
    int64_t now = tsi_clock_ns();
    fill_speed(run, s, (double)(now - *told) * 1e-9);
    *told = now;
    if (ts_rank_index(run->me) == 0) {
        TSI_TRY(tsi_history_add(&run->history, s));
        TSI_TRY(tsi_tensorboard_add(&run->board, s));
    }
    words = (agreed){ .stop = ask(run, s) };
    TSI_TRY(agree(run, &words));
    if (words.stop > *stop) *stop = words.stop;
    if (*stop == 0 && tsi_eval_is_over(run)) *stop = 1;
    out->step = s->step;
    out->loss = s->loss;
    return TS_OK;
}

/* One step is looked at closely, for the report. */
static ts_status look_begin(tsi_run *run)
{
    TSI_TRY(tsi_traffic_begin(&run->traffic, tsi_model_mesh(run->model)));
    if (!run->config->log.report) return TS_OK;
    return tsi_seen_begin(&run->seen, run->me, ts_model_module(run->model));
}

static ts_status look_end(tsi_run *run, ts_status status)
{
    tsi_traffic_end(&run->traffic);
    TSI_TRY(status);
    return tsi_seen_end(&run->seen, run->all, ts_model_module(run->model), run->optimizer);
}

static ts_status loop(tsi_run *run, ts_train_result *out)
{
    const ts_train_config *c = run->config;
    int64_t stop = tsi_eval_is_over(run), mark = tsi_clock_ns(), told = mark;
    open_step before = { .number = 0 };
    for (int64_t step = run->plan.step_first; step < tsi_last_step(c) && !stop; step++) {
        open_step now = { { .struct_size = sizeof now.s,
                            .step = step + 1,
                            .steps = c->train.steps,
                            .eval_loss = (double)NAN },
                          0 };
        TSI_TRY(tsi_trace_begin(run, step + 1, told));
        bool counted = step == run->plan.step_first + 1; /* caches are filled, orders noted */
        if (counted) TSI_TRY(look_begin(run));
        ts_status status = take_step(run, step, &now.s, &mark);
        if (counted) TSI_TRY(look_end(run, status));
        TSI_TRY(status);
        now.number = ts_optimizer_begun(run->optimizer);
        if (before.number) TSI_TRY(tell_step(run, &before, out, &told, &stop));
        before = now;
        bool waits =
            run->late && !save_is_due(run, step + 1, stop) && !tsi_eval_is_due(run, step + 1);
        if (!waits) TSI_TRY(tell_step(run, &before, out, &told, &stop));
        if (tsi_trace_is_due(run, step + 1)) TSI_TRY(tsi_trace_write(run));
        TSI_TRY(tsi_state_poll(run));
        lap(run, TSI_PHASE_OTHER, &mark);
        /* Before the save: who goes on from that state takes the sample for written. */
        if (stop <= 1) TSI_TRY(tsi_run_sample_step(run, step + 1, &told, &mark));
        if (!waits && save_is_due(run, step + 1, stop))
            TSI_TRY(tsi_state_save(run, step + 1, worth(run, out)));
        lap(run, TSI_PHASE_OTHER, &mark);
    }
    out->stopped = stop != 0;
    out->patience_ended = tsi_eval_is_over(run);
    if (run->trace_ns > 0) TSI_TRY(tsi_trace_write(run)); /* the run ends before the last of them */
    return tsi_state_wait(run);
}

/* ---- the end --------------------------------------------------------------------------------- */

bool tsi_run_tokenizer(const ts_train_config *config, char *out, size_t size)
{
    const char *from = config->data.tokenizer;
    struct stat about;
    if (strcmp(from, "byte") == 0) return false;
    bool folder = stat(from, &about) == 0 && S_ISDIR(about.st_mode); /* as ts_tokenizer_open */
    snprintf(out, size, "%s%s", from, folder ? "/tokenizer.json" : "");
    return true;
}

/* The tokenizer that goes with a model lies beside it. */
static ts_status save_tokenizer(const tsi_run *run, const char *directory)
{
    char path[TSI_CONFIG_TEXT_MAX + 32], *text = NULL;
    size_t length = 0;
    if (ts_rank_index(run->me) != 0) return TS_OK;
    if (!tsi_run_tokenizer(run->config, path, sizeof path)) {
        /* One that came with the weights would read this model's tokens wrongly. */
        snprintf(path, sizeof path, "%s/tokenizer.json", directory);
        if (run->tokenized) unlink(path);
        return TS_OK;
    }
    TSI_TRY(tsi_file_read(path, (size_t)1 << 30, &text, &length));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    ts_status status = tsi_file_replace(path, text, length);
    tsi_free(text);
    return status;
}

static ts_status gather_peaks(tsi_run *run)
{
    int64_t ranks = ts_rank_count(run->me), mine = ts_rank_index(run->me);
    run->peak_of = tsi_calloc((size_t)(2 * ranks), sizeof *run->peak_of);
    if (!run->peak_of) return tsi_fail_memory("the memory of ranks", (size_t)ranks * 16);
    run->peak_of[mine] = run->planned.peak;
    run->peak_of[ranks + mine] = run->measures.memory.peak;
    ts_array all = TS_INIT(ts_array); /* each rank has its own, the others are 0 */
    all.data = run->peak_of;
    all.meta = (ts_meta){ .shape = TS_SHAPE(2 * ranks), .dtype = TS_DTYPE_I64 };
    return ts_group_all_reduce(run->all, &all, &all, TS_REDUCE_SUM, NULL);
}

/* What the report wants of all ranks: what each took, and the rates of the machine, where the run
 * was long enough to compare with. */
static ts_status gather_numbers(tsi_run *run, const ts_train_result *out)
{
    enum { WORTH = 1 }; /* seconds */
    int64_t ranks = ts_rank_count(run->me), steps = out->step - run->plan.step_first;
    run->busy_of = tsi_calloc((size_t)ranks, sizeof *run->busy_of);
    if (!run->busy_of) return tsi_fail_memory("the times of ranks", (size_t)ranks * 8);
    run->busy_of[ts_rank_index(run->me)] = steps > 0 ? run->busy / (double)steps : 0;
    ts_array all = TS_INIT(ts_array);
    all.data = run->busy_of;
    all.meta = (ts_meta){ .shape = TS_SHAPE(ranks), .dtype = TS_DTYPE_F64 };
    TSI_TRY(ts_group_all_reduce(run->all, &all, &all, TS_REDUCE_SUM, NULL));
    TSI_TRY(gather_peaks(run));
    double seconds = run->seconds; /* the first rank's decides */
    all.data = &seconds;
    all.meta.shape = TS_SHAPE(1);
    TSI_TRY(ts_group_broadcast(run->all, &all, 0, NULL));
    return seconds >= WORTH ? ts_train_measure(run->me, run->cost, &run->rates) : TS_OK;
}

static ts_status finish(tsi_run *run, ts_train_result *out)
{
    TSI_TRY(tsi_train_path(run->config, "model", out->model));
    TSI_TRY(tsi_train_path(run->config, "train.jsonl", out->log));
    TSI_TRY(ts_model_save(run->model, out->model));
    TSI_TRY(save_tokenizer(run, out->model));
    TSI_TRY(tsi_run_staged_end(run, out));
    if (run->config->log.sample > 0 && run->config->log.prompt[0])
        TSI_TRY(tsi_run_sample(run, &out->sample));
    out->seconds = run->seconds;
    out->eval_loss = run->held_out.latest;
    out->eval_step = run->held_out.step;
    out->eval_best = run->held_out.best;
    out->eval_best_step = run->held_out.best_step;
    if (run->history.count > 0) out->loss = run->history.step[run->history.count - 1].loss;
    if (run->config->log.report == 0) return TS_OK;
    TSI_TRY(tsi_train_path(run->config, "report.html", out->report));
    /* A run that had nothing left to do keeps the report of the one that did it. */
    if (out->step > run->plan.step_first) TSI_TRY(gather_numbers(run, out));
    bool kept = out->step == run->plan.step_first && access(out->report, F_OK) == 0;
    if (ts_rank_index(run->me) == 0 && !kept) TSI_TRY(tsi_report_write(run, out));
    return TS_OK;
}

ts_status ts_train_run(ts_rank *me, const ts_train_config *config, const ts_train_options *options,
                       ts_train_result *out)
{
    if (!me || !config || !out) return TSI_FAIL(TS_ERR_NULL, "train: an argument is NULL");
    *out = (ts_train_result){ .struct_size = sizeof *out };
    TSI_TRY(tsi_rank_enter(me));
    ts_train_options taken = { .struct_size = sizeof taken };
    if (options)
        memcpy(&taken, options,
               options->struct_size < sizeof taken ? options->struct_size : sizeof taken);
    tsi_run run = { .me = me, .config = config, .options = &taken, .lock = -1 };
    run.plan.struct_size = sizeof run.plan;
    run.scale = (ts_loss_scale){ .struct_size = sizeof run.scale,
                                 .value = config->train.loss_scale,
                                 .every = config->train.loss_scale_every };
    run.measures.times.struct_size = sizeof run.measures.times;
    ts_status status = tsi_run_set_up(&run);
    if (status == TS_OK && taken.on_plan && ts_rank_index(me) == 0)
        taken.on_plan(&run.plan, taken.context);
    run.measures.event = ts_rank_event(me);
    bool measures = config->log.report != 0; /* operators of replays, too */
    me->traced += measures;
    out->step = run.plan.step_first;
    if (status == TS_OK) status = loop(&run, out);
    if (status == TS_OK) status = finish(&run, out);
    me->traced -= measures;
    tsi_history_close(&run.history);
    tsi_tensorboard_close(&run.board);
    if (run.loads) fclose(run.loads);
    if (run.norms) fclose(run.norms);
    if (run.samples) fclose(run.samples);
    ts_state_destroy(run.state);
    tsi_seen_release(&run.seen); /* it looks at memory that goes now */
    tsi_again_tell(&run.again, out);
    tsi_again_close(&run);
    ts_optimizer_destroy(run.optimizer);
    tsi_stages_measured_release(&run.measured);
    tsi_stages_close(run.stages);
    ts_model_destroy(run.model);
    ts_loader_close(run.loader);
    tsi_eval_close(&run);
    tsi_free(run.row);
    tsi_free(run.cost);
    tsi_free(run.busy_of);
    tsi_free(run.peak_of);
    ts_mesh_release(run.mesh);
    (void)tsi_limit_tell(me, NULL);
    tsi_output_close(&run);
    return status;
}
