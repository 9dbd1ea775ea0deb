/* SPDX-License-Identifier: Apache-2.0 */
/* routers.c - what the routers of experts did in a step: the step's numbers, and experts.jsonl with
 * the load of each expert of each layer.
 *
 *   {"step": 3, "layers": [{"layer": 1, "load": [12, 20, ..], "entropy": 2.01, "dropped": 0, ..}]}
 *
 * On a device that runs behind the host nothing is read, since that would wait for it; biases move
 * there all the same. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
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

/* Cuts the file behind its last whole line of a step up to `last`; lines are in order. */
static ts_status cut_lines(const char *path, int64_t last)
{
    static const char head[] = "{\"step\": ";
    char *text = NULL, *end;
    size_t length = 0, kept = 0;
    if (access(path, F_OK) != 0) return TS_OK;
    TSI_TRY(tsi_file_read(path, (size_t)1 << 36, &text, &length));
    while ((end = memchr(text + kept, '\n', length - kept)) != NULL &&
           strncmp(text + kept, head, sizeof head - 1) == 0 &&
           strtoll(text + kept + sizeof head - 1, NULL, 10) <= last)
        kept = (size_t)(end + 1 - text);
    tsi_free(text);
    if (truncate(path, (off_t)kept) == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
}

static ts_status write_line(tsi_run *run, tsi_text *text)
{
    char path[TSI_CONFIG_TEXT_MAX], *line = tsi_text_take(text);
    if (!line) return TS_ERR_MEMORY;
    ts_status status = TS_OK;
    if (!run->loads) {
        status = tsi_train_path(run->config, "experts.jsonl", path);
        if (status == TS_OK && run->plan.step_first > 0)
            status = cut_lines(path, run->plan.step_first);
        if (status == TS_OK) run->loads = fopen(path, run->plan.step_first > 0 ? "a" : "w");
    }
    bool good = run->loads && fputs(line, run->loads) >= 0 && fflush(run->loads) == 0;
    tsi_free(line);
    if (status != TS_OK || good) return status;
    return TSI_FAIL(TS_ERR_IO, "experts.jsonl: %s", strerror(errno));
}

static ts_status read_all(tsi_run *run, ts_train_step *s)
{
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
    if (status == TS_OK && ts_rank_index(run->me) == 0) return write_line(run, &text);
    tsi_free(tsi_text_take(&text));
    return status;
}

ts_status tsi_run_routers(tsi_run *run, ts_train_step *step)
{
    if (ts_model_router_count(run->model) == 0) return TS_OK;
    if (!run->late) TSI_TRY(read_all(run, step));
    return ts_model_router_step(run->model);
}
