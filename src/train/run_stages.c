/* SPDX-License-Identifier: Apache-2.0 */
/* run_stages.c - where a run and its stages meet: tokens of a step, documents of a micro-batch. */
#include <string.h>

#include "base/error.h"
#include "train/run.h"

typedef struct rows { /* of a part of a step */
    tsi_run *run;
    int64_t step, first, count;
} rows;

static ts_tensor *tokens_of(void *context, int64_t shift)
{
    const rows *r = context;
    return tsi_run_rows(r->run, r->step, r->first, r->count, shift);
}

/* Rows are counted from the part's first. */
static ts_status documents_of(void *context, const int64_t *row, int64_t count)
{
    const rows *r = context;
    return tsi_run_documents_of(r->run, r->step, row, r->first, count);
}

ts_status tsi_run_staged_part(tsi_run *run, int64_t step, int64_t part, double *loss)
{
    const ts_train_config *c = run->config;
    int64_t parts = c->train.accumulate, count = c->train.batch / parts;
    rows r = { run, step, part * count, count };
    bool separate = strcmp(c->data.documents, "separate") == 0;
    tsi_part all = { .rows = count,
                     .context = c->data.context,
                     .factor = run->scale.value / (double)parts,
                     .tokens = tokens_of,
                     .documents = separate ? documents_of : NULL,
                     .of = &r };
    TSI_TRY(tsi_run_documents(run, step, r.first, count));
    return tsi_stages_run(run->stages, &all, loss);
}
