/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.c - the mean loss of rows that are not trained on.
 *
 * Rows are read in order, always the same ones, as many at once as a part of a step has; forward
 * alone, without a tape. Every row has as many tokens, so the mean over rows is that over tokens,
 * added up in f64 in the order of the rows: the same on any mesh, but for the order of sums within
 * a row.
 *
 * INV: nothing that training reads is written: not gradients, not its loader, not its step. */
#include <math.h>

#include "base/error.h"
#include "base/intmath.h"
#include "train/run.h"

ts_status tsi_eval_open(tsi_run *run)
{
    const ts_train_config *c = run->config;
    tsi_held_out *h = &run->held_out;
    h->latest = h->best = (double)NAN;
    if (c->train.eval_every == 0) return TS_OK;
    /* All rows are of step 0. */
    tsi_source source = { "held_out", c->data.held_out, INT32_MAX, true };
    TSI_TRY(tsi_run_open(run, &source, &h->loader));
    h->rows = ts_loader_windows(h->loader);
    if (c->data.held_out_rows > h->rows)
        return TSI_FAIL(TS_ERR_ARG, "data.held_out_rows: is %lld, \"%s\" has %lld rows of %lld",
                        (long long)c->data.held_out_rows, c->data.held_out, (long long)h->rows,
                        (long long)c->data.context);
    if (c->data.held_out_rows > 0) h->rows = c->data.held_out_rows;
    if (ts_loader_tokenizer_hash(h->loader) != ts_loader_tokenizer_hash(run->loader))
        return TSI_FAIL(TS_ERR_ARG,
                        "data.held_out: \"%s\" was made by another tokenizer than "
                        "\"%s\"",
                        c->data.held_out, c->data.path);
    return TS_OK;
}

void tsi_eval_close(tsi_run *run)
{
    ts_loader_close(run->held_out.loader);
    run->held_out.loader = NULL;
}

bool tsi_eval_is_due(const tsi_run *run, int64_t step)
{
    int64_t every = run->config->train.eval_every;
    return every > 0 && (step % every == 0 || step == run->config->train.steps);
}

bool tsi_eval_is_over(const tsi_run *run)
{
    int64_t patience = run->config->train.patience;
    return patience > 0 && run->held_out.worse >= patience;
}

/* The mean loss of rows [first, first + count). */
static ts_status run_rows(tsi_run *run, int64_t first, int64_t count, double *mean)
{
    if (run->stages) return tsi_run_staged_eval(run, first, count, mean);
    ts_scope_options quiet = TS_INIT(ts_scope_options);
    quiet.no_grad = 1;
    ts_scope scope = ts_scope_open_with(run->me, &quiet);
    ts_status status = tsi_run_documents(run, 0, first, count);
    if (status == TS_OK) {
        ts_tensor *ids = tsi_run_rows(run, 0, first, count, 0);
        ts_tensor *labels = tsi_run_rows(run, 0, first, count, 1);
        status = ts_tensor_item(ts_model_loss(run->model, ids, labels), mean);
    }
    ts_scope_close(scope);
    return status;
}

/* While it runs, rows are read from the other loader. */
static ts_status run_all(tsi_run *run, double *sum)
{
    int64_t at_once = run->config->train.batch / run->config->train.accumulate;
    for (int64_t first = 0; first < run->held_out.rows; first += at_once) {
        int64_t count = tsi_min_i64(at_once, run->held_out.rows - first);
        double mean = (double)NAN;
        TSI_TRY(run_rows(run, first, count, &mean));
        *sum += mean * (double)count;
    }
    return TS_OK;
}

ts_status tsi_eval_run(tsi_run *run, int64_t step, double *loss)
{
    tsi_held_out *h = &run->held_out;
    ts_loader *training = run->loader;
    double sum = 0;
    run->loader = h->loader;
    ts_status status = run_all(run, &sum);
    run->loader = training;
    tsi_model_routers_clear(run->model); /* held-out rows move no bias */
    TSI_TRY(status);
    *loss = h->latest = sum / (double)h->rows;
    h->step = step;
    bool better = isnan(h->best) || *loss < h->best;
    h->worse = better ? 0 : h->worse + 1;
    if (!better) return TS_OK;
    h->best = *loss;
    h->best_step = step;
    return TS_OK;
}
