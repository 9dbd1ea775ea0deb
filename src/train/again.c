/* SPDX-License-Identifier: Apache-2.0 */
/* again.c - steps that are recorded once and then run again (train.replay).
 *
 * The first two steps run as usual: they note orders and fill caches. The third is recorded, the
 * rest are replays with new rows where the step reads them: the same bits (tessera/step.h). What a
 * step may not do to be run again is known before, or is found while it is recorded; the run then
 * goes on as usual and says why, once.
 *
 * With train.replay = 2 three replays are in the recorded order, the last of them timed; the
 * program of all ranks is reordered by these times, and the rest of the steps runs in that order.
 * The result has what was predicted beside what was measured.
 *
 * INV: all ranks record or none: what decides is the configuration, or one rank stops the others,
 * and they recover together. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/rank.h"
#include "device/capture.h"
#include "train/run.h"

enum {
    USUAL = 2,    /* steps before the recorded one */
    MEASURED = 3, /* replays in each order, whose shortest counts */
    TRIES = 200   /* of the search: every rank makes them */
};

/* Why the configuration's steps are never the same again; NULL: they may be. */
static const char *never(const tsi_run *run)
{
    const ts_train_config *c = run->config;
    const tsi_rank_device *device = tsi_rank_device_of(run->me);
    if (!device || (device->device != tsi_device_host() && !tsi_device_captures(device->device)))
        return "the device cannot record steps";
    if (run->scale.every > 0) return "the scale of the loss changes from step to step";
    if (c->log.norms > 0) return "norms of modules (log.norms) are read on the host";
    if (strcmp(c->data.documents, "separate") == 0)
        return "masks of documents differ from step to step";
    return NULL;
}

static void give_up(tsi_again *again, const char *why)
{
    again->refused = true;
    tsi_log(TSI_LOG_WARN, "train.replay: steps run as usual: %s", why);
}

/* The parts of a step one after another, as the trainer takes them, on rows that are there. */
static ts_status parts(tsi_run *run, ts_tensor *loss)
{
    int64_t mark = tsi_clock_ns();
    ts_status status = TS_OK;
    for (int64_t i = 0; i < run->config->train.accumulate && status == TS_OK; i++) {
        const tsi_rows_part *of = &run->again.part[i];
        ts_scope scope = ts_scope_open(run->me, NULL);
        if (!run->stages) ts_tape_begin(run->me);
        status =
            run->stages ? tsi_run_staged_again(run, of, loss) : tsi_run_part(run, of, loss, &mark);
        ts_status closed = ts_scope_close(scope);
        if (status == TS_OK) status = closed;
    }
    return status;
}

static ts_status body(void *context)
{
    tsi_run *run = context;
    ts_tensor *loss = ts_variable(run->me);
    ts_status status = loss ? parts(run, loss) : ts_rank_status(run->me);
    ts_group *stages = tsi_stages_group(run->stages);
    bool has_loss = !run->stages || tsi_stages_reads(run->stages, 1);
    if (status == TS_OK)
        status = ts_optimizer_step_with(
            run->optimizer,
            TS_OPTIONS(ts_step_options, .norm_max = run->config->train.clip,
                       .grad_scale = run->scale.value, .loss = has_loss ? loss : NULL,
                       .adds_loss = run->stages != NULL, .stages = stages,
                       .shared = run->model->tied_copy));
    ts_tensor_release(loss);
    return status;
}

/* The rows of part `number` of a step, in tensors of the scope that is open; of stages those that
 * they read. */
static ts_status rows_of(tsi_run *run, int64_t step, int64_t number, tsi_rows_part *out)
{
    int64_t rows = run->config->train.batch / run->config->train.accumulate;
    bool ids = !run->stages || tsi_stages_reads(run->stages, 0);
    bool labels = !run->stages || tsi_stages_reads(run->stages, 1);
    *out = (tsi_rows_part){ .number = number };
    if (ids) out->ids = tsi_run_rows(run, step, number * rows, rows, 0);
    if (labels) out->labels = tsi_run_rows(run, step, number * rows, rows, 1);
    return ts_rank_status(run->me);
}

static ts_status take_rows(tsi_run *run, int64_t step)
{
    int64_t count = run->config->train.accumulate;
    tsi_again *again = &run->again;
    again->part = tsi_calloc((size_t)count, sizeof *again->part);
    if (!again->part) return tsi_fail_memory("parts of a step", (size_t)count * 16);
    for (int64_t i = 0; i < count; i++) {
        tsi_rows_part part;
        TSI_TRY(rows_of(run, step, i, &part));
        again->part[i] = part;
        (void)ts_tensor_retain(part.ids);
        (void)ts_tensor_retain(part.labels);
    }
    return TS_OK;
}

static void drop_rows(tsi_run *run)
{
    tsi_rows_part *part = run->again.part;
    for (int64_t i = 0; part && i < run->config->train.accumulate; i++) {
        ts_tensor_release(part[i].ids);
        ts_tensor_release(part[i].labels);
    }
    tsi_free(part);
    run->again.part = NULL;
}

/* *done: the recorded step was this one. Where it cannot be recorded, nothing of it stays. */
static ts_status record(tsi_run *run, int64_t step, bool *done)
{
    tsi_again *again = &run->again;
    TSI_TRY(take_rows(run, step));
    int64_t begun = ts_optimizer_begun(run->optimizer);
    again->step = ts_step_record(run->me, body, run);
    *done = again->step != NULL;
    ts_status status = ts_rank_status(run->me);
    /* One that has not its part of the rows may be stopped by the others as late as in the norm:
     * no weight was written before all ranks were there. */
    bool here = status == TS_ERR_STATE && ts_optimizer_begun(run->optimizer) == begun;
    bool elsewhere = status == TS_ERR_PEER;
    if (*done || (!here && !elsewhere)) return status; /* it is an error of the step itself */
    give_up(again, elsewhere ? "a rank cannot record them" : ts_rank_error(run->me)->text);
    TSI_TRY(ts_rank_recover(run->me));
    return ts_module_reset(ts_model_module(run->model));
}

/* ---- in another order ------------------------------------------------------------------------ */

static void hear_pass(const ts_reorder_report *report, void *context)
{
    tsi_again *again = context;
    if (again->predicted_us[0] == 0) again->predicted_us[0] = report->makespan_before_us;
    again->predicted_us[1] = report->makespan_after_us;
}

/* [coll] All ranks reorder the same program, so they find the same order. */
static ts_status take_order(tsi_run *run)
{
    tsi_again *again = &run->again;
    ts_program *program = NULL, *better = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_reorder_options options;
    ts_reorder_options_init(&options);
    options.tries = TRIES;
    options.passes = TS_PASS_ALL & ~(uint32_t)TS_PASS_SPLIT; /* whether parts pay is not measured */
    ts_status status = ts_step_program(again->step, &program);
    if (status == TS_OK) status = ts_program_reorder(program, &options, hear_pass, again, &better);
    if (status == TS_OK) status = ts_step_reorder(again->step, better, 0, &is);
    ts_program_destroy(better);
    ts_program_destroy(program);
    again->moved = is.taken ? is.moved : 0;
    if (!is.taken) again->predicted_us[1] = again->predicted_us[0]; /* that order is run */
    return status;
}

static void note_time(tsi_again *again, int64_t ns)
{
    int64_t *least = again->replays <= MEASURED ? &again->ns_before : &again->ns_after;
    if (again->replays <= 2 * MEASURED && (*least == 0 || ns < *least)) *least = ns;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static ts_status replay(tsi_run *run, int64_t step)
{
    tsi_again *again = &run->again;
    for (int64_t i = 0; i < run->config->train.accumulate; i++) {
        tsi_rows_part part;
        TSI_TRY(rows_of(run, step, i, &part));
        if (part.ids) TSI_TRY(ts_step_input(again->step, again->part[i].ids, part.ids));
        if (part.labels) TSI_TRY(ts_step_input(again->step, again->part[i].labels, part.labels));
    }
    again->replays++;
    bool graphs = !tsi_rank_device_of(run->me)->device->host_readable; /* they keep their order */
    if (run->config->train.replay < 2 || graphs) return ts_step_replay(again->step);
    bool timed = again->replays == MEASURED;
    int64_t before = tsi_clock_ns();
    TSI_TRY(timed ? ts_step_time(again->step) : ts_step_replay(again->step));
    note_time(again, tsi_clock_ns() - before);
    return timed ? take_order(run) : TS_OK;
}

ts_status tsi_again_take(tsi_run *run, int64_t step, double rate, bool *done)
{
    tsi_again *again = &run->again;
    *done = false;
    if (!run->config->train.replay || again->refused) return TS_OK;
    const char *why = again->step ? NULL : never(run);
    if (why) give_up(again, why);
    if (why || again->seen++ < USUAL) return TS_OK;
    TSI_TRY(ts_optimizer_rate(run->optimizer, rate));
    ts_scope scope = ts_scope_open(run->me, NULL);
    bool recorded = again->step != NULL;
    ts_status status = recorded ? replay(run, step) : record(run, step, done);
    if (recorded) *done = status == TS_OK;
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

void tsi_again_tell(const tsi_again *again, ts_train_result *out)
{
    out->replays = again->replays;
    out->replay_moved = again->moved;
    if (again->ns_after == 0) return;
    out->replay_recorded = (double)again->ns_before * 1e-9;
    out->replay_reordered = (double)again->ns_after * 1e-9;
    out->replay_recorded_predicted = again->predicted_us[0] * 1e-6;
    out->replay_reordered_predicted = again->predicted_us[1] * 1e-6;
}

void tsi_again_close(tsi_run *run)
{
    ts_step_destroy(run->again.step);
    drop_rows(run);
    run->again = (tsi_again){ 0 };
}
