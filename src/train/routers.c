/* SPDX-License-Identifier: Apache-2.0 */
/* routers.c - what the routers of experts did in a step: the step's numbers, and experts.jsonl with
 * the load of each expert of each layer.
 *
 *   {"step": 3, "layers": [{"layer": 1, "load": [12, 20, ..], "entropy": 2.01, "dropped": 0, ..}]}
 *
 * On a device that runs behind the host nothing is read, since that would wait for it; biases move
 * there all the same.
 *
 * INV: biases move with the update: not in a step that is left out or ends the run, which the
 * device knows before the host does. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "nn/optimizer.h"
#include "train/run.h"

static void real(tsi_text *text, const char *name, double value)
{
    tsi_text_printf(text, ", \"%s\": ", name);
    tsi_text_real(text, value);
}

static void add_layer(tsi_text *text, const ts_router_report *r, const double *load, int64_t count)
{
    tsi_text_printf(text, "{\"layer\": %lld, \"load\": [", (long long)r->layer);
    for (int64_t e = 0; e < count; e++)
        tsi_text_printf(text, "%s%.0f", e ? ", " : "", load[e]);
    tsi_text_printf(text, "], \"dropped\": %lld", (long long)r->dropped);
    real(text, "load_ratio", r->load_ratio);
    real(text, "entropy", r->entropy);
    real(text, "aux_loss", r->aux_loss);
    real(text, "sequence_loss", r->sequence_loss);
    real(text, "z_loss", r->z_loss);
    tsi_text_add(text, "}");
}

static void add_step(const ts_router_report *r, bool first, ts_train_step *s)
{
    s->load_ratio = fmax(s->load_ratio, r->load_ratio);
    s->load_entropy = first ? r->entropy : fmin(s->load_entropy, r->entropy);
    s->dropped += r->dropped;
    s->router_loss += r->aux_loss + r->sequence_loss + r->z_loss;
}

static ts_status read_all(tsi_run *run, ts_train_step *s)
{
    if (run->late || ts_model_router_count(run->model) == 0) return TS_OK;
    int64_t experts = ts_model_configuration(run->model)->experts;
    double *load = tsi_alloc_array((size_t)experts + 1, sizeof *load);
    if (!load) return tsi_fail_memory("the loads of experts", (size_t)experts * sizeof *load);
    tsi_text text = { 0 };
    ts_status status = TS_OK;
    tsi_text_printf(&text, "{\"step\": %lld, \"layers\": [", (long long)s->step);
    for (int64_t i = 0; i < ts_model_router_count(run->model) && status == TS_OK; i++) {
        ts_router_report report = TS_INIT(ts_router_report);
        status = ts_model_router_read(run->model, i, &report, load);
        if (status == TS_OK) status = tsi_run_staged_router(run, &report, load);
        if (i) tsi_text_add(&text, ", ");
        add_layer(&text, &report, load, experts);
        add_step(&report, i == 0, s);
    }
    tsi_text_add(&text, "]}\n");
    tsi_free(load);
    if (status == TS_OK && ts_rank_index(run->me) == 0)
        return tsi_run_line(run, &run->loads, "experts.jsonl", &text);
    tsi_free(tsi_text_take(&text));
    return status;
}

ts_status tsi_run_routers(tsi_run *run, ts_train_step *step)
{
    if (ts_model_router_count(run->model) == 0) return TS_OK;
    TSI_TRY(read_all(run, step));
    ts_scope scope = ts_scope_open(run->me, NULL);
    ts_tensor *taken = tsi_optimizer_taken(run->optimizer, run->model->mesh);
    ts_status status = taken ? tsi_model_router_step(run->model, taken) : ts_rank_status(run->me);
    ts_scope_close(scope);
    return status;
}
