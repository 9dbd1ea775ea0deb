/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c - keys and values of the tokens that a model has seen, so that those behind them are
 * computed alone.
 *
 *   of each layer   k [B, G, room, D]   v [B, G, room, E]        the first `length` of the room
 *
 * Batch and heads lie as the layer's products left them. The sequence is whole on every rank: few
 * queries follow, and they go where the keys are. New rows are written into the room, which doubles
 * when it is full, so a token costs its own rows and one reading of the others.
 *
 * INV: `length` changes when all layers have their rows; what a failed call wrote behind it is
 * written again. */
#include "base/alloc.h"
#include "base/error.h"
#include "layout/layout.h"
#include "model/model.h"

enum { KEYS, VALUES, KEPT };

struct ts_model_cache {
    ts_model *model;
    int64_t length, rows; /* positions, and of how many sequences */
    int64_t made_for;     /* the length whose rotary frequencies the keys have: `length`, or more
                             where some were forgotten */
    ts_tensor **kept;     /* [layers][KEPT], retained; NULL: nothing yet, or not of this rank */
};

enum { ROOM_MIN = 64 };

/* ---- one tensor ------------------------------------------------------------------------------ */

/* As it lies but for cuts inside sequences and heads, which attention would undo at every call. */
static const ts_sharding *sharding_of(const ts_tensor *x)
{
    const ts_sharding *given = x->layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < given->ndim; k++) {
        const ts_placement *p = &given->place[k];
        bool stays = tsi_placement_cuts(p) && p->dim_last <= 1;
        place[k] =
            stays ? *p : (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    return tsi_sharding_intern(x->mesh->desc, place);
}

/* Uninitialised, of the innermost scope. */
static ts_tensor *room_for(const ts_tensor *x, int64_t room)
{
    ts_shape shape = x->layout->shape;
    shape.extent[2] = room;
    const ts_sharding *sharding = sharding_of(x);
    const ts_layout *layout = sharding ? tsi_layout_intern(sharding, &shape) : NULL;
    ts_dtype dtype = (ts_dtype)x->dtype;
    tsi_array *block = layout ? tsi_tensor_block(x->mesh, layout, dtype) : NULL;
    ts_tensor *made = block ? tsi_tensor_make(x->mesh, layout, dtype, block, NULL) : NULL;
    ts_layout_release(layout);
    ts_sharding_release(sharding);
    return made;
}

static ts_tensor *rows_of(ts_tensor *x, int64_t begin, int64_t end)
{
    ts_slice_options options = TS_INIT(ts_slice_options);
    options.start = begin;
    options.end = end;
    options.end_is_given = 1;
    return ts_slice(x, 2, &options);
}

static ts_status write_rows(ts_tensor *to, int64_t begin, ts_tensor *from)
{
    ts_tensor *view = rows_of(to, begin, begin + ts_tensor_shape(from).extent[2]);
    if (!view) return ts_rank_status(to->rank);
    return ts_foreach_copy((ts_list){ &view, 1 }, (ts_list){ &from, 1 });
}

/* ROOM_MIN doubled until it is enough, but not beyond the positions that the model has. */
static int64_t room_of(const ts_model *m, int64_t needed)
{
    int64_t room = ROOM_MIN;
    while (room < needed)
        room *= 2;
    int64_t most = m->config.positions > needed ? m->config.positions : needed;
    return room < most ? room : most;
}

static ts_status make_room(const ts_model_cache *c, ts_tensor **kept, const ts_tensor *x)
{
    int64_t needed = c->length + x->layout->shape.extent[2];
    bool others = *kept && (*kept)->layout->shape.extent[0] != x->layout->shape.extent[0];
    if (others && c->length == 0) { /* begins anew, with another batch */
        tsi_tensor_release(*kept);
        *kept = NULL;
    }
    if (*kept && (*kept)->layout->shape.extent[2] >= needed) return TS_OK;
    ts_tensor *grown = room_for(*kept ? *kept : x, room_of(c->model, needed));
    if (!grown) return ts_rank_status(x->rank);
    if (c->length > 0) {
        ts_tensor *old = rows_of(*kept, 0, c->length);
        if (!old) return ts_rank_status(x->rank);
        TSI_TRY(write_rows(grown, 0, old));
    }
    tsi_tensor_retain(grown);
    tsi_tensor_release(*kept);
    *kept = grown;
    return TS_OK;
}

ts_status tsi_cache_join(ts_model_cache *c, int64_t layer, ts_tensor *qkv[3])
{
    for (int32_t i = KEYS; i < KEPT; i++) {
        ts_tensor **kept = &c->kept[layer * KEPT + i], *x = qkv[1 + i];
        if (!x) return ts_rank_status(c->model->rank);
        int64_t end = c->length + x->layout->shape.extent[2];
        TSI_TRY(make_room(c, kept, x));
        TSI_TRY(write_rows(*kept, c->length, x));
        if (c->length > 0) qkv[1 + i] = rows_of(*kept, 0, end); /* else as they lie, cut or not */
    }
    return ts_rank_status(c->model->rank);
}

/* ---- the value ------------------------------------------------------------------------------- */

int64_t tsi_model_begin(const ts_model *m)
{
    return m->cache ? m->cache->length : 0;
}

ts_model_cache *ts_model_cache_create(ts_model *model)
{
    if (!model || tsi_rank_enter(model->rank) != TS_OK) return NULL;
    ts_model_cache *c = tsi_calloc(1, sizeof *c);
    size_t count = (size_t)model->config.layers * KEPT;
    if (c) c->kept = tsi_calloc(count, sizeof(ts_tensor *));
    if (c && c->kept) {
        c->model = model;
        return c;
    }
    tsi_free(c);
    tsi_fail_memory("a cache of keys and values", count * sizeof(ts_tensor *));
    return NULL;
}

void ts_model_cache_destroy(ts_model_cache *c)
{
    if (!c) return;
    for (int64_t i = 0; i < c->model->config.layers * KEPT; i++)
        tsi_tensor_release(c->kept[i]);
    tsi_free(c->kept);
    tsi_free(c);
}

int64_t ts_model_cache_length(const ts_model_cache *c)
{
    return c ? c->length : 0;
}

ts_status ts_model_cache_keep(ts_model_cache *c, int64_t length)
{
    if (!c) return TSI_FAIL(TS_ERR_NULL, "model_cache_keep: the cache is NULL");
    TSI_TRY(tsi_rank_enter(c->model->rank));
    if (length < 0 || length > c->length)
        return TSI_FAIL(TS_ERR_ARG, "model_cache_keep: %lld tokens of %lld", (long long)length,
                        (long long)c->length);
    c->length = length;
    if (length == 0) c->made_for = 0;
    return TS_OK;
}

int32_t ts_model_cache_fits(const ts_model_cache *c, int64_t count)
{
    if (!c) return 0;
    if (c->length == 0) return 1;
    /* Choices that have no room depend on the sequence as a whole. */
    if (c->model->router_options.capacity > 0) return 0;
    return tsi_rope_same(&c->model->config, c->made_for, c->length + count);
}

/* ---- logits ---------------------------------------------------------------------------------- */

static ts_status check_ids(const ts_model_cache *c, ts_tensor *ids)
{
    ts_shape s = ts_tensor_shape(ids);
    if (s.ndim != 2)
        return TSI_FAIL(TS_ERR_SHAPE, "model_logits_after: ids have %d dims, not [rows, length]",
                        (int)s.ndim);
    if (c->length > 0 && s.extent[0] != c->rows)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "model_logits_after: ids of %lld rows, the cache has tokens of %lld",
                        (long long)s.extent[0], (long long)c->rows);
    if (tsi_keeps(c->model->rank))
        return TSI_FAIL(TS_ERR_STATE,
                        "model_logits_after: a step is recorded, and each time that "
                        "it is run again it would stand behind as many tokens as now");
    if (c->model->documents)
        return TSI_FAIL(TS_ERR_STATE, "model_logits_after: rows are packed documents, which are "
                                      "complete; ts_model_documents(model, NULL) ends that");
    if (ts_model_cache_fits(c, s.extent[1])) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE,
                    "model_logits_after: with %lld tokens behind %lld the model computes those "
                    "otherwise, too; begin anew (ts_model_cache_keep) with all of them",
                    (long long)s.extent[1], (long long)c->length);
}

ts_tensor *(ts_model_logits_after)(ts_model_cache *c, ts_tensor *ids)
{
    if (!c || !ids || tsi_rank_enter(c->model->rank) != TS_OK) return NULL;
    ts_model *m = c->model;
    if (check_ids(c, ids) != TS_OK) return NULL;
    ts_scope scope =
        ts_scope_open_with(m->rank, TS_OPTIONS(ts_scope_options, .label = "after", .no_grad = 1));
    m->cache = c;
    ts_tensor *logits = ts_model_logits(m, ids);
    m->cache = NULL;
    if (logits) {
        c->length += ts_tensor_shape(ids).extent[1];
        c->made_for = c->length;
        c->rows = ts_tensor_shape(ids).extent[0];
    }
    return ts_scope_leave(scope, logits);
}
