/* SPDX-License-Identifier: Apache-2.0 */
/* border.c - settings of a model at the border of a recorded step (base/keep.h): masks of documents
 * and the factor of routers' losses are in its kept work as they were read. Where the step sets
 * them itself, it has its own; else it is run again only while they are those. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/keep.h"
#include "model/model.h"

typedef struct border {
    const ts_model *model;
    const ts_mask *documents; /* retained, or NULL */
    double router_factor;
} border;

static void border_destroy(void *context)
{
    border *b = context;
    ts_mask_release(b->documents);
    tsi_free(b);
}

static ts_status border_check(void *context)
{
    const border *b = context;
    const ts_model *m = b->model;
    if (m->documents == b->documents && m->router_factor == b->router_factor) return TS_OK;
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                          "step: %s was called since the step was recorded; run again it would do "
                          "as then: call it in the step, or record another one",
                          m->documents == b->documents ? "ts_model_router_factor"
                                                       : "ts_model_documents");
}

ts_status tsi_model_at_border(ts_model *m)
{
    bool own = tsi_keeps(m->rank) && m->set_in == m->rank->kept->number;
    if (own || !tsi_keep_notes(m->rank, &m->kept_in)) return TS_OK;
    border *b = tsi_alloc(sizeof *b);
    if (!b) return tsi_fail_memory("settings of a step", sizeof *b);
    *b = (border){ m, m->documents, m->router_factor };
    (void)ts_mask_retain(b->documents);
    const tsi_kept_border kept = { .check = border_check, .destroy = border_destroy, .context = b };
    return tsi_keep_border(m->rank, kept);
}

void tsi_model_set(ts_model *m)
{
    if (tsi_keeps(m->rank)) m->set_in = m->rank->kept->number;
}
