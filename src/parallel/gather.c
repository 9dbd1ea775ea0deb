/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c - the parameters of a unit, from cut to whole and back.
 *
 * All parameters of a unit travel in one round, region by region into the blocks that operators
 * read: nothing is packed, padded or copied out. The round is in flight while other operators run;
 * the first that reads a parameter waits for it. Where ranks are threads of one process, parameters
 * lie where all of them read (shared.c), and nothing travels.
 *
 * A parameter that was changed while it was whole is written back to the shard: the change is the
 * same on all ranks, as everything is that is done to a whole tensor. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/keep.h"
#include "op/core/common.h"
#include "parallel/unit.h"
#include "tensor/scope.h"

/* Where ranks share shards: the handle shows what it did not show. On its way is neither. */
static inline void turn(tsi_unit_param *p)
{
    ts_tensor *value = p->value;
    tsi_array *array = value->array;
    const ts_layout *layout = value->layout;
    value->array = p->array;
    value->layout = p->layout;
    p->array = array;
    p->layout = layout;
    if (TSI_LIKELY(!p->mirrors)) return; /* it is another line of memory to look */
    int32_t dtype = value->dtype;
    value->dtype = p->dtype;
    p->dtype = dtype;
}

/* Values of the two tensors change places; handles, histories and owners stay. */
static void swap_values(const tsi_unit_param *p)
{
    ts_tensor *a = p->value, *b = p->other;
    ts_mesh *mesh = a->mesh;
    const ts_layout *layout = a->layout;
    tsi_array *array = a->array;
    tsi_move *move = a->move;
    a->mesh = b->mesh;
    a->layout = b->layout;
    a->array = b->array;
    a->move = b->move;
    b->mesh = mesh;
    b->layout = layout;
    b->array = array;
    b->move = move;
    int32_t dtype = a->dtype;
    a->dtype = b->dtype;
    b->dtype = dtype;
}

/* What it takes is the unit's, be it gathered while another runs. */
static ts_scope open_scope(const tsi_unit *u, const char *label)
{
    ts_scope scope =
        ts_scope_open_with(u->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1, .label = label));
    tsi_scope_relabel(scope, u->label);
    return scope;
}

/* ---- cut -> coming --------------------------------------------------------------------------- */

static ts_status refuse_shape(const tsi_unit *u, const tsi_unit_param *p)
{
    char name[TSI_PARAM_NAME_MAX], is[96], was[96];
    ts_shape shape = ts_tensor_shape(p->value);
    (void)tsi_name_text(&p->param->name, name, sizeof name);
    return TSI_FAIL(TS_ERR_SHAPE, "fsdp: unit %s: parameter %s is %s now and was declared as %s",
                    u->name, name, tsi_shape_text(&shape, is, sizeof is),
                    tsi_shape_text(&p->param->shape, was, sizeof was));
}

/* The shard may have been replaced by any value of the same shape. */
static ts_status check_shard(const tsi_unit *u, const tsi_unit_param *p)
{
    char text[TSI_EMPTY_TEXT];
    ts_tensor *value = p->value;
    if (!ts_tensor_layout(value))
        return TSI_FAIL(TS_ERR_STATE, "fsdp: unit %s: %s", u->name,
                        tsi_tensor_empty_text(value, text, sizeof text));
    ts_shape shape = ts_tensor_shape(value);
    if (!tsi_shape_same(&shape, &p->param->shape)) return refuse_shape(u, p);
    if (value->layout->sharding == p->cut) return TS_OK;
    return ts_tensor_relayout(value, p->cut);
}

static bool stays(const tsi_unit_param *p)
{
    return p->cut == p->whole && !p->mirrors;
}

static void note_shard(tsi_unit_param *p)
{
    p->shard = p->value->array;
    p->shard_version = tsi_array_version(p->shard);
}

/* A shard that was updated, or read from a file, since it was gathered last: what was kept of the
 * whole is not it any more, and tapes hold another value. */
static void look_at_shard(tsi_unit_param *p)
{
    const tsi_array *array = p->value->array;
    if (p->shard == array && p->shard_version == tsi_array_version(array)) return;
    if (p->shard) p->value->changes++;
    tsi_tensor_release(p->part);
    p->part = NULL;
    note_shard(p);
}

/* What is sent: the shard, its mirror, or what was kept of the whole. */
static ts_status source_of(const tsi_unit *u, tsi_unit_param *p, ts_tensor **from)
{
    TSI_TRY(check_shard(u, p));
    TSI_TRY(tsi_tensor_ready(p->value));
    if (!p->slice) look_at_shard(p);
    *from = p->part ? p->part : p->value;
    if (p->part || !p->mirrors || p->slice) return TS_OK;
    tsi_array *block = p->param->mirror ? p->param->mirror->array : NULL;
    TSI_TRY(tsi_param_renew(p->param, (ts_dtype)p->mirrors, block));
    *from = p->param->mirror;
    return TS_OK;
}

/* What travels: all that is cut and does not lie where operators read it. */
static bool travels(const tsi_unit_param *p)
{
    return !stays(p) && !p->slice;
}

/* Values that are not in their slices move there; then peers are told. */
static ts_status settle(tsi_unit *u)
{
    /* A recorded step meets slices that its last run wrote, whatever they were when it was made. */
    bool settled = !tsi_keeps(u->rank) || u->fenced_in == u->rank->kept->number;
    for (int64_t i = 0; i < u->count && settled; i++)
        settled = !u->param[i].slice || tsi_param_settled(&u->param[i]);
    if (settled) return TS_OK;
    TSI_TRY(tsi_unit_adopt(u));
    return tsi_unit_fence(u);
}

static ts_status move_all(const tsi_unit *u, ts_tensor *const *from, const ts_sharding *const *to,
                          int32_t count, ts_tensor **out)
{
    if (!u->options.gather_fn)
        return tsi_redistribute_tagged(from, to, count, TSI_TAG_GATHERED, out);
    ts_status status = u->options.gather_fn(from, to, count, out, u->options.move_context);
    return tsi_unit_check_moved(u, "gather", status, from, to, count, out);
}

/* One round of all that travels. */
static ts_status exchange(tsi_unit *u, ts_tensor **from, ts_tensor **out)
{
    const ts_sharding **to = u->list_to;
    int32_t count = 0;
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        if (!tsi_param_settled(p)) TSI_TRY(source_of(u, p, &from[count]));
        p->version = p->value->array->storage->version;
        if (travels(p)) to[count++] = p->whole;
    }
    if (u->shared) TSI_TRY(settle(u));
    if (count > 0) TSI_TRY(move_all(u, from, to, count, out));
    count = 0;
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        if (p->slice) p->version = p->value->array->storage->version;
        if (!travels(p)) continue;
        p->other = tsi_tensor_retain(out[count++]);
        tsi_tensor_release(p->part);
        p->part = NULL;
    }
    return TS_OK;
}

/* Does all that is gathered lie where operators read it, and do peers know? The usual case where
 * shards are shared; a step under record meets other slices than those of now. */
static bool look_at_slices(tsi_unit *u, bool *all)
{
    int64_t i = 0;
    bool mirrors = false;
    *all = true;
    u->in_place = 0;
    if (!u->joined || !u->shared || tsi_keeps(u->rank)) return false;
    tsi_unit_note_fence(u);
    for (; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        if (!p->slice && !stays(p)) break;
        *all = *all && p->slice;
        mirrors = mirrors || p->mirrors;
        if (!p->slice) continue;
        if (!p->array || !tsi_param_settled(p)) break;
        p->version = p->mirrors ? p->value->array->storage->version : p->fenced;
    }
    u->in_place = i == u->count && *all && !mirrors;
    return i == u->count;
}

/* What is not cut is the whole. */
static ts_status look_at_rest(tsi_unit *u)
{
    ts_status status = TS_OK;
    for (int64_t i = 0; i < u->count && status == TS_OK; i++) {
        tsi_unit_param *p = &u->param[i];
        if (p->slice) continue;
        status = check_shard(u, p);
        if (status == TS_OK) status = tsi_tensor_ready(p->value);
        if (status == TS_OK) p->version = p->value->array->storage->version;
    }
    return status;
}

static ts_status gather_by_round(tsi_unit *u)
{
    const char *where = u->rank->where;
    ts_scope scope = open_scope(u, "gather");
    ts_status status = tsi_unit_join(u);
    (void)TS_HERE;
    if (status == TS_OK) status = exchange(u, u->list, u->list + u->count);
    for (int64_t i = 0; status == TS_OK && i < u->count; i++)
        if (u->param[i].slice) status = tsi_param_look(&u->param[i]);
    u->rank->where = where;
    ts_scope_close(scope);
    return status;
}

/* Does every handle show its slice? A value from elsewhere may have taken its place. */
static bool show_slices(const tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++)
        if (u->param[i].value->array != u->param[i].slice) return false;
    return true;
}

static ts_status look_and_gather(tsi_unit *u)
{
    bool all;
    if (!look_at_slices(u, &all)) return gather_by_round(u);
    return all ? TS_OK : look_at_rest(u);
}

/* `ahead`: whether handles show their slices is asked when it is bound. */
static TSI_STEP_PATH ts_status gather(tsi_unit *u, bool ahead)
{
    if (u->partly) TSI_TRY(tsi_unit_drop(u, false)); /* it is called once more in this backward */
    if (u->state != TSI_UNIT_CUT) return TS_OK;
    bool known = tsi_unit_in_place(u) && !tsi_keeps(u->rank);
    if (!known || (!ahead && !show_slices(u))) TSI_TRY(look_and_gather(u));
    TSI_TRY(tsi_unit_count_gather(u));
    u->state = TSI_UNIT_COMING;
    u->begun_in = tsi_keeps(u->rank) ? u->rank->kept->number : 0;
    if (u->all) u->all->stats.gathers++;
    return TS_OK;
}

TSI_STEP_PATH ts_status tsi_unit_gather(tsi_unit *u)
{
    return gather(u, false);
}

TSI_STEP_PATH ts_status tsi_unit_gather_ahead(tsi_unit *u)
{
    for (; u; u = u->beside)
        TSI_TRY(gather(u, true));
    return TS_OK;
}

/* A step that is recorded reads blocks: where handles lie before they turn is told. */
static void tell_turn(const tsi_unit *u)
{
    for (int64_t i = 0; tsi_keeps(u->rank) && i < u->count; i++) {
        ts_tensor *value = u->param[i].value;
        if (value->swaps && value->layout) tsi_tell(u->rank, TSI_NEWS_WRITE, value);
    }
}

/* ---- coming -> whole ------------------------------------------------------------------------- */

/* Was a shard changed while its whole was on its way? An update, or a file that was read. So it
 * will be for a step that is recorded, when that runs again: what came before it began does not
 * come once more. */
static bool is_stale(const tsi_unit *u)
{
    if (tsi_keeps(u->rank) && u->begun_in != u->rank->kept->number) return true;
    if (tsi_unit_in_place(u)) return !show_slices(u);
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_unit_param *p = &u->param[i];
        const ts_tensor *value = p->value;
        if (p->slice && !p->mirrors) {
            if (value->array != p->slice || p->slice_storage->version != p->version) return true;
            continue;
        }
        if (!value->layout || value->array->storage->version != p->version) return true;
    }
    return false;
}

TSI_STEP_PATH ts_status tsi_unit_bind(tsi_unit *u)
{
    if (u->state == TSI_UNIT_WHOLE) return TS_OK;
    if (u->state == TSI_UNIT_COMING && is_stale(u)) TSI_TRY(tsi_unit_drop(u, false));
    TSI_TRY(tsi_unit_gather(u));
    tell_turn(u);
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        if (p->slice && p->value->move) TSI_TRY(tsi_tensor_ready(p->value));
        if (p->slice) turn(p);
        if (p->slice || !p->other) continue;
        swap_values(p);
        p->seen = p->value->array;
        p->version = p->seen->storage->version;
    }
    u->state = TSI_UNIT_WHOLE;
    return TS_OK;
}

/* ---- whole -> cut ---------------------------------------------------------------------------- */

/* The handle shows the changed whole. Its shard, retained; NULL: recorded. */
static ts_tensor *changed_shard(const tsi_unit *u, const tsi_unit_param *p)
{
    ts_tensor *value = p->value;
    ts_shape shape = ts_tensor_shape(value);
    if (!tsi_shape_same(&shape, &p->param->shape)) {
        (void)refuse_shape(u, p);
        return NULL;
    }
    ts_scope scope = open_scope(u, "write_back");
    ts_tensor *shard = (ts_redistribute_to)(value, p->cut);
    if (shard && tsi_tensor_ready(shard) != TS_OK) shard = NULL;
    (void)tsi_tensor_retain(shard);
    ts_scope_close(scope);
    return shard;
}

/* The shard is as tapes know the whole: so is its mirror. */
static ts_status write_one_back(tsi_unit_param *p, const ts_tensor *shard)
{
    uint32_t changes = p->value->changes;
    TSI_TRY(tsi_array_copy(p->value->array, shard->array));
    if (!p->slice) note_shard(p);
    if (!p->slice || !p->mirrors) return TS_OK;
    ts_status status = tsi_param_renew(p->param, (ts_dtype)p->mirrors, p->slice);
    p->value->changes = changes;
    return status;
}

/* The shards that were changed, when this rank has let go of the rest: who still reads a slice
 * finishes first. */
static ts_status write_back(tsi_unit *u)
{
    ts_status status = TS_OK;
    for (int64_t i = 0; i < u->count; i++) {
        ts_tensor *shard = u->list[i];
        u->list[i] = NULL;
        if (shard && status == TS_OK) status = tsi_unit_alone(u);
        if (shard && status == TS_OK) {
            status = write_one_back(&u->param[i], shard);
            if (u->all) u->all->stats.written_back++;
        }
        tsi_tensor_release(shard);
    }
    return status;
}

/* A shard over groups of neighbours, cut from the whole. */
static ts_status keep_part(const tsi_unit *u, tsi_unit_param *p)
{
    ts_tensor *part = NULL;
    ts_scope scope = open_scope(u, "keep");
    ts_status status = tsi_redistribute_tagged(&p->value, &p->kept, 1, TSI_TAG_GATHERED, &part);
    p->part = tsi_tensor_retain(part);
    if (status == TS_OK) status = tsi_tensor_ready(part);
    ts_scope_close(scope);
    return status;
}

static void let_other_go(tsi_unit_param *p)
{
    tsi_tensor_release(p->other);
    p->other = NULL;
    p->seen = NULL;
}

/* The handle shows the shard again, on the unit's mesh whatever was written meanwhile. */
static TSI_STEP_PATH void leave_room(tsi_unit_param *p)
{
    tsi_unit *u = p->unit;
    ts_tensor *value = p->value;
    turn(p);
    if (TSI_LIKELY(p->array == p->room)) return;
    if (value->mesh != u->mesh) {
        ts_mesh_release(value->mesh);
        value->mesh = ts_mesh_retain(u->mesh);
    }
    if (!p->mirrors) value->dtype = p->slice->dtype;
    tsi_param_look_away(p);
    u->in_place = 0;
}

/* Is the whole, which the handle shows, as it was bound? A room is not written: who changes what is
 * shown there gets another block. */
static bool is_unchanged(const tsi_unit_param *p)
{
    if (p->slice) return p->value->array == p->room;
    return p->value->array == p->seen && p->seen->storage->version == p->version;
}

/* The handle shows a whole of this unit's. */
static bool shows_whole(const tsi_unit_param *p)
{
    return p->slice ? tsi_param_in_room(p) : p->other != NULL;
}

/* Was the whole changed since it was looked at last? */
static bool is_edited(tsi_unit_param *p)
{
    if (is_unchanged(p)) return false;
    const tsi_array *array = p->value->array;
    uint32_t version = tsi_array_version(array);
    bool same = p->edited == array && p->edited_version == version;
    p->edited = array;
    p->edited_version = version;
    return !same;
}

void tsi_unit_look(tsi_unit *u, bool inside)
{
    for (int64_t i = 0; u->state == TSI_UNIT_WHOLE && i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        if (shows_whole(p) && is_edited(p) && !inside) p->value->changes++;
    }
}

/* The changed shard of parameter i, for later. */
static ts_status note_changed(tsi_unit *u, int64_t i, bool *any)
{
    for (int64_t k = 0; k < u->count && !*any; k++)
        u->list[k] = NULL;
    *any = true;
    if (is_edited(&u->param[i])) u->param[i].value->changes++;
    u->param[i].edited = NULL; /* its block goes, and the next one may lie there */
    u->list[i] = changed_shard(u, &u->param[i]);
    return u->list[i] ? TS_OK : ts_rank_status(u->rank);
}

static ts_status unbind(tsi_unit *u, int64_t i, bool keeps_part, bool *changed)
{
    tsi_unit_param *p = &u->param[i];
    ts_tensor *value = p->value;
    if (value->move) TSI_TRY(tsi_tensor_ready(value));
    if (!is_unchanged(p)) TSI_TRY(note_changed(u, i, changed));
    if (p->slice) {
        leave_room(p);
        return TS_OK;
    }
    if (keeps_part && p->kept) TSI_TRY(keep_part(u, p));
    swap_values(p);
    return TS_OK;
}

/* What was taken out of the first ones goes. */
static ts_status drop_failed(tsi_unit *u, int64_t count, ts_status status)
{
    for (int64_t i = 0; i < count; i++) {
        tsi_tensor_release(u->list[i]);
        u->list[i] = NULL;
    }
    return status;
}

TSI_STEP_PATH ts_status tsi_unit_drop(tsi_unit *u, bool keeps_part)
{
    if (u->state == TSI_UNIT_CUT) return TS_OK;
    bool whole = u->state == TSI_UNIT_WHOLE, changed = false;
    if (whole) tell_turn(u);
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        if (!shows_whole(p)) continue;
        ts_status status = whole ? unbind(u, i, keeps_part, &changed) : TS_OK;
        if (status != TS_OK) return changed ? drop_failed(u, i + 1, status) : status;
        if (p->other) let_other_go(p);
    }
    if (!whole && u->all) u->all->stats.dropped++;
    u->state = TSI_UNIT_CUT;
    u->partly = 0;
    tsi_unit_let_go(u);
    return changed ? write_back(u) : TS_OK;
}

ts_status tsi_param_drop(tsi_unit_param *p)
{
    tsi_unit *u = p->unit;
    if (u->state != TSI_UNIT_WHOLE || !p->other || p->slice) return TS_OK;
    if (p->value->move) TSI_TRY(tsi_tensor_ready(p->value));
    if (!is_unchanged(p)) return TS_OK; /* the unit writes it back when it goes */
    if (tsi_keeps(u->rank) && p->value->swaps) tsi_tell(u->rank, TSI_NEWS_WRITE, p->value);
    swap_values(p);
    let_other_go(p);
    u->partly = 1;
    return TS_OK;
}

void tsi_unit_forget(tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        /* A unit that failed half way has some parameters that are whole and some that are not. */
        if (tsi_param_in_room(p)) leave_room(p);
        if (p->other && p->seen) swap_values(p);
        if (p->other) let_other_go(p);
        tsi_tensor_release(p->part);
        p->part = NULL;
        p->shard = p->edited = NULL;
        p->ready = 0;
    }
    tsi_unit_forget_shared(u);
    tsi_unit_forget_use(u);
    u->state = TSI_UNIT_CUT;
    u->partly = 0;
    u->users = u->backwards = u->forward_passed = u->backward_passed = 0;
    u->ready_count = u->open = 0;
}
