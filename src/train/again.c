/* SPDX-License-Identifier: Apache-2.0 */
/* again.c - steps that are recorded once and then run again (train.replay).
 *
 * The first two steps run as usual: they note orders and fill caches. The third is recorded, the
 * rest are replays with new rows where the step reads them: the same bits (tessera/step.h). What a
 * step may not do to be run again is known before, or is found while it is recorded; the run then
 * goes on as usual and says why, once.
 *
 * INV: all ranks record or none: what decides is the configuration, or one rank stops the others,
 * and they recover together. */
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/rank.h"
#include "device/capture.h"
#include "train/run.h"

enum { USUAL = 2 }; /* steps before the recorded one */

/* Why the configuration's steps are never the same again; NULL: they may be. */
static const char *never(const tsi_run *run)
{
    const ts_train_config *c = run->config;
    const tsi_rank_device *device = tsi_rank_device_of(run->me);
    if (!device || (device->device != tsi_device_host() && !tsi_device_captures(device->device)))
        return "the device cannot record steps";
    if (run->stages) return "pipelines decide on the host what comes next";
    if (c->train.accumulate > 1) return "parts of a batch (train.accumulate) are added on the host";
    if (run->scale.every > 0 || run->scale.value != 1.0) return "the loss is scaled";
    if (c->log.norms > 0) return "norms of modules (log.norms) are read on the host";
    if (strcmp(c->data.documents, "separate") == 0)
        return "masks of documents differ from step to step";
    if (ts_model_configuration(run->model)->experts > 0)
        return "routers of experts are read on the host";
    return NULL;
}

static void give_up(tsi_again *again, const char *why)
{
    again->refused = true;
    tsi_log(TSI_LOG_WARN, "train.replay: steps run as usual: %s", why);
}

static ts_status body(void *context)
{
    const tsi_run *run = context;
    ts_scope scope = ts_scope_open(run->me, NULL);
    ts_tape_begin(run->me);
    const ts_train_config *c = run->config;
    ts_tensor *mean = tsi_train_loss(&(tsi_rows_loss){ .model = run->model,
                                                       .ids = run->again.ids,
                                                       .labels = run->again.labels,
                                                       .rows = c->train.batch,
                                                       .context = c->data.context,
                                                       .z_loss = c->train.z_loss,
                                                       .factor = 1.0 });
    ts_status status = ts_backward(mean, NULL);
    if (status == TS_OK)
        status = ts_optimizer_step_with(run->optimizer,
                                        TS_OPTIONS(ts_step_options, .norm_max = c->train.clip,
                                                   .grad_scale = 1.0, .loss = mean,
                                                   .shared = run->model->tied_copy));
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* The rows of a step, in tensors of the scope that is open. */
static ts_status rows_of(tsi_run *run, int64_t step, ts_tensor **ids, ts_tensor **labels)
{
    int64_t rows = run->config->train.batch;
    *ids = tsi_run_rows(run, step, 0, rows, 0);
    *labels = tsi_run_rows(run, step, 0, rows, 1);
    return *ids && *labels ? TS_OK : ts_rank_status(run->me);
}

/* *done: the recorded step was this one. Where it cannot be recorded, nothing of it stays. */
static ts_status record(tsi_run *run, int64_t step, bool *done)
{
    ts_tensor *ids, *labels;
    tsi_again *again = &run->again;
    TSI_TRY(rows_of(run, step, &ids, &labels));
    again->ids = ts_tensor_retain(ids);
    again->labels = ts_tensor_retain(labels);
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

static ts_status replay(tsi_run *run, int64_t step)
{
    ts_tensor *ids, *labels;
    tsi_again *again = &run->again;
    TSI_TRY(rows_of(run, step, &ids, &labels));
    TSI_TRY(ts_step_input(again->step, again->ids, ids));
    TSI_TRY(ts_step_input(again->step, again->labels, labels));
    return ts_step_replay(again->step);
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

void tsi_again_close(tsi_again *again)
{
    ts_step_destroy(again->step);
    ts_tensor_release(again->ids);
    ts_tensor_release(again->labels);
    *again = (tsi_again){ 0 };
}
