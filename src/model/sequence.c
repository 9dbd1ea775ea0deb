/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.c - where activations lie: the batch over the axes that cut it, the sequence over cp.
 *
 *   tokens, labels   [B, T]      dp, replicate, fsdp: S(0)   cp: the cut, first
 *   before products  [B, T, C]   the same
 *   between blocks   [B, T, C]   with "sp" the cut's pieces also over tp
 *
 * The cut of the sequence is a placement; whoever needs positions reads them from regions, and
 * nobody permutes. Activations follow the ids: a model that is given ids of another cut takes it.
 *
 * INV: tokens, whole and residual have the same placement on cp. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/model.h"

#define BATCH "dp?:S(0) replicate?:S(0) fsdp?:S(0) ep?:S(0)"

static const ts_sharding *sharding_of(ts_model *m, const char *cut, bool between)
{
    size_t size = strlen(cut) + 128;
    char *text = tsi_alloc(size);
    if (!text) {
        tsi_fail_memory("placements of activations", size);
        return NULL;
    }
    bool both = between && ts_mesh_axis(m->mesh, "cp") >= 0; /* cp cuts first */
    (void)snprintf(text, size, BATCH " cp?:%s%s%s", cut, both ? "[0]" : "",
                   both      ? " tp?:S(1)[1]"
                   : between ? " tp?:S(1)"
                             : "");
    const ts_sharding *s = ts_sharding_retain(ts_sharding_get(m->mesh, text));
    tsi_free(text);
    return s;
}

ts_status tsi_model_place(ts_model *m, const char *cut)
{
    const ts_sharding *tokens = sharding_of(m, cut, false);
    const ts_sharding *residual = sharding_of(m, cut, m->sequence);
    if (!tokens || !residual) {
        ts_sharding_release(tokens);
        ts_sharding_release(residual);
        return ts_rank_status(m->rank);
    }
    ts_sharding_release(m->tokens);
    ts_sharding_release(m->whole);
    ts_sharding_release(m->residual);
    m->tokens = tokens;
    m->whole = ts_sharding_retain(tokens);
    m->residual = residual;
    return TS_OK;
}

const ts_sharding *ts_model_tokens(const ts_model *model)
{
    return model ? model->tokens : NULL;
}

ts_status tsi_model_follow(ts_model *m, ts_tensor *ids)
{
    return ids ? tsi_model_follow_to(m, ids->layout->sharding) : TS_OK;
}

ts_status tsi_model_follow_to(ts_model *m, const ts_sharding *have)
{
    int32_t cp = ts_mesh_axis(m->mesh, "cp");
    if (cp < 0 || !have) return TS_OK;
    if (have->mesh != m->mesh->desc) return TS_OK;
    ts_placement place = have->place[cp], mine = m->tokens->place[cp];
    if (!tsi_placement_cuts(&place) || place.dim != 1 || have == m->tokens) return TS_OK;
    place.order = mine.order = 0;
    if (tsi_placement_equal(&place, &mine, m->mesh->desc->size[cp])) return TS_OK;
    size_t size = tsi_placement_text(&place, m->mesh->desc->size[cp], 0, NULL, 0) + 1;
    char *cut = tsi_alloc(size);
    if (!cut) return tsi_fail_memory("a placement", size);
    (void)tsi_placement_text(&place, m->mesh->desc->size[cp], 0, cut, size);
    ts_status status = tsi_model_place(m, cut);
    tsi_free(cut);
    return status;
}

/* ---- cuts for a length ----------------------------------------------------------------------- */

static const ts_mask *mask_of(ts_model *m, const ts_mask *documents)
{
    const ts_mask *causal = ts_mask_get(m->rank->world, "causal");
    return documents ? ts_mask_and(causal, documents) : causal;
}

/* Blocks of a cut by cost are as long as tiles of kernels where there are enough of them. */
static int64_t align_of(int64_t length, int64_t ranks)
{
    int64_t align = 128;
    while (align > 1 && length / align < 8 * ranks)
        align /= 2;
    return align;
}

const ts_sharding *ts_model_tokens_of(ts_model *m, int64_t length, const ts_mask *documents)
{
    int32_t cp = m ? ts_mesh_axis(m->mesh, "cp") : -1;
    if (cp < 0) return ts_model_tokens(m);
    ts_cut_options options = TS_INIT(ts_cut_options);
    options.length = length;
    options.ranks = m->mesh->desc->size[cp];
    options.align = align_of(length, options.ranks);
    options.balance = m->balance;
    if (!documents && m->balance == TS_BALANCE_AUTO) options.balance = TS_BALANCE_HEAD_TAIL;
    if (options.balance == TS_BALANCE_NONE || options.balance == TS_BALANCE_HEAD_TAIL) {
        const ts_sharding *s =
            sharding_of(m, options.balance == TS_BALANCE_NONE ? "S(1)" : "HT(1)", false);
        ts_sharding_release(s); /* among the rank's recent ones */
        return s;
    }
    const ts_mask *mask = mask_of(m, documents);
    ts_cut cut;
    if (!mask || ts_cut_for(mask, &options, &cut) != TS_OK) return NULL;
    size_t size = ts_cut_text(&cut, 1, NULL, 0) + 1;
    char *text = tsi_alloc(size);
    if (text) (void)ts_cut_text(&cut, 1, text, size);
    ts_cut_release(&cut);
    const ts_sharding *s = text ? sharding_of(m, text, false) : NULL;
    ts_sharding_release(s);
    tsi_free(text);
    return s;
}

ts_status ts_model_documents(ts_model *m, const ts_mask *documents)
{
    if (!m) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(m->rank));
    (void)ts_mask_retain(documents);
    ts_mask_release(m->documents);
    m->documents = documents;
    tsi_model_set(m);
    return TS_OK;
}
