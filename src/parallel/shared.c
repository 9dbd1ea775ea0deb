/* SPDX-License-Identifier: Apache-2.0 */
/* shared.c - shards of a unit as slices of one storage, where ranks are threads of one process.
 *
 *              rank 0    rank 1    rank 2
 *   storage  [ slice   | slice   | slice  ]   the shards, or their mirrors: each rank updates its
 *            [ room                       ]   own. The same memory as every rank's operators see it
 *
 * So a gather copies nothing. After a write it is a fence: from there on all slices are as their
 * owners left them. One fence serves all units of a tree that were written before it, and where
 * nothing was written there is none. What is no run of the whole (another dim than the first)
 * travels as everywhere else, and so does what several ranks have the same shard of.
 *
 * INV: a slice is written only when every peer let go of the unit as often as this rank gathered
 * it: whoever writes asks (tsi_storage.ask). On a device that is so in the order of queues: the
 * fence orders them, and what is written stands behind what the queues of peers had to do when they
 * let go. Nobody writes into a room: who changes a parameter that is whole gets a block of his own,
 * which is written back. The storage lives until the last of its slices and rooms has gone, so that
 * of a rank that left there is memory, which nobody reads: the fence fails. Which units share, and
 * when there is a fence, follows from the program alone. */
#include "parallel/shared.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "base/keep.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "tensor/move.h"

/* ---- which parameters ------------------------------------------------------------------------ */

bool tsi_world_shares(ts_world *world)
{
    if (tsi_world_describes(world)) return world->together;
    return tsi_comm_engine(world) == tsi_engine_threads() && tsi_world_has_one_memory(world);
}

/* Where the block that `cut` gives the coordinate begins in the one that `whole` gives it; -1: it
 * is no run of it. */
static int64_t place_of(const ts_layout *cut, const ts_layout *whole, const int64_t *coord)
{
    tsi_arena arena = { 0 };
    tsi_region a, b;
    uint32_t joined = cut->sharding->joined | whole->sharding->joined;
    int64_t offset = 0, inner = 1;
    bool run = tsi_layout_region_joined(cut, coord, joined, &arena, &a) &&
               tsi_layout_region_joined(whole, coord, joined, &arena, &b);
    bool full = true; /* the dims behind this one are as in the whole */
    bool empty = run && tsi_region_count(&a) == 0;
    for (int32_t d = run && !empty ? a.ndim - 1 : -1; run && d >= 0; d--) {
        int64_t total = a.dim[d].total;
        int64_t begin = tsi_span_list_before(&b.dim[d], tsi_span_list_at(&a.dim[d], 0));
        int64_t end = tsi_span_list_before(&b.dim[d], tsi_span_list_at(&a.dim[d], total - 1)) + 1;
        bool within = tsi_span_list_intersect_count(&a.dim[d], &b.dim[d]) == total;
        run = within && end - begin == total && (full || total == 1);
        full = full && total == b.dim[d].total;
        offset += begin * inner;
        inner *= b.dim[d].total;
    }
    tsi_arena_release(&arena);
    return run ? offset : -1;
}

/* Is every rank's shard a run? Members of the storage differ from this rank in the cutting axes.
 * Where the whole is a cut of its own (experts), ranks that differ there have another storage, with
 * other extents; what is shared is the same for all, since what is not travels among all. */
static bool is_run(const tsi_unit *u, const ts_layout *cut, const ts_layout *whole)
{
    int64_t coord[TS_NDIM_MAX] = { 0 };
    int32_t ndim = ts_mesh_ndim(u->mesh), k = 0;
    uint32_t axes = u->axes_cut | whole->axes_cut;
    for (int32_t i = 0; i < ndim; i++)
        coord[i] = axes >> i & 1 ? 0 : u->mesh->coord[i];
    do {
        if (place_of(cut, whole, coord) < 0) return false;
        for (k = 0; k < ndim; k++) { /* the next one, the first axis fastest */
            if (!(axes >> k & 1)) continue;
            if (++coord[k] < ts_mesh_axis_size(u->mesh, k)) break;
            coord[k] = 0;
        }
    } while (k < ndim);
    return true;
}

/* Do several ranks of the storage have the same shard, since the plan cuts the parameter by some of
 * the unit's axes alone? In one slice each of them would update it. */
static bool has_copies(const tsi_unit *u, const ts_sharding *cut)
{
    for (int32_t k = 0; k < cut->ndim; k++) {
        bool shares = u->axes_cut >> k & 1 && cut->mesh->size[k] > 1;
        if (shares && !tsi_placement_cuts(&cut->place[k])) return true;
    }
    return false;
}

static int32_t source_dtype(const tsi_unit_param *p)
{
    return p->mirrors ? p->mirrors : p->param->dtype;
}

/* Where in the storage its room begins, in bytes; -1: it does not lie there. */
static ts_status place_param(const tsi_unit *u, tsi_unit_param *p, size_t *bytes)
{
    enum { ALIGNMENT = 64 };
    p->room_at = -1;
    if (p->cut == p->whole || has_copies(u, p->cut)) return TS_OK;
    const ts_layout *cut = tsi_layout_intern(p->cut, &p->param->shape);
    const ts_layout *whole = cut ? tsi_layout_intern(p->whole, &p->param->shape) : NULL;
    if (whole && is_run(u, cut, whole)) {
        ts_shape local = ts_layout_local(whole, u->mesh->coord);
        size_t size = ts_dtype_size((ts_dtype)source_dtype(p));
        p->room_at = (int64_t)*bytes;
        p->slice_at = place_of(cut, whole, u->mesh->coord) * (int64_t)size;
        *bytes +=
            ((size_t)ts_shape_count(&local) * size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    }
    ts_status status = whole ? TS_OK : ts_rank_status(u->rank);
    ts_layout_release(whole);
    ts_layout_release(cut);
    return status;
}

/* Sets u->shares: 1 yes, -1 no. */
static ts_status decide(tsi_unit *u)
{
    u->shares = -1;
    if (!u->axes_cut || !u->mesh->member || !tsi_world_shares(u->rank->world)) return TS_OK;
    if (u->options.gather_fn) return TS_OK; /* the program's own way */
    u->group = tsi_mesh_axes_group(u->mesh, u->axes_cut);
    if (!u->group) return ts_rank_status(u->rank);
    if (ts_group_size(u->group) < 2) return TS_OK;
    u->shared_bytes = 0;
    for (int64_t i = 0; i < u->count; i++) {
        TSI_TRY(place_param(u, &u->param[i], &u->shared_bytes));
        if (u->param[i].room_at >= 0) u->shares = 1; /* a rank without experts, too */
    }
    if (u->shared_bytes == 0) u->shared_bytes = 1;
    return TS_OK;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* The peer has it gathered still. */
static ts_status refuse_wait(const tsi_unit *u, int64_t peer, int64_t waited_ms)
{
    char doing[200];
    (void)snprintf(doing, sizeof doing, "a write to its shard of fsdp unit %.120s", u->name);
    return tsi_comm_unmet(u->group, peer, waited_ms, doing, u->name);
}

/* The rank's device, if work on it waits in a queue; else NULL. */
static const tsi_rank_device *queued(const tsi_unit *u)
{
    const tsi_rank_device *mine = tsi_rank_device_of(u->rank);
    return mine && mine->queue ? mine : NULL;
}

/* What this rank's queue gets from here on stands behind what the member's had to do when it let
 * go. It may have let go once more since: not behind a fence, which this rank did not call yet. */
static ts_status stand_behind(const tsi_unit *u, int64_t member)
{
    const tsi_rank_device *mine = queued(u);
    tsi_seat *other = &u->shared->seat[member];
    if (!mine) return TS_OK;
    pthread_mutex_lock(&other->lock);
    ts_status status = TS_OK;
    if (other->passed) status = mine->device->event_wait(mine->device, mine->queue, other->passed);
    pthread_mutex_unlock(&other->lock);
    return status;
}

/* Until the member let go as often as this rank gathered. */
static ts_status wait_for(tsi_unit *u, int64_t member)
{
    enum { LOOK_NS = 2000000, TIMEOUT_MS = 60000 };
    tsi_word *word = &u->shared->seat[member].released;
    const ts_world *world = u->rank->world;
    int64_t timeout_ms = world->timeout_ms > 0 ? world->timeout_ms : TIMEOUT_MS;
    int64_t begin = tsi_clock_ns(), now = begin, peer = ts_group_rank(u->group, member);
    ts_status status = TS_OK;
    atomic_fetch_add_explicit(&u->shared->waiting, 1, memory_order_seq_cst);
    for (;;) {
        uint32_t released = atomic_load_explicit(word, memory_order_seq_cst);
        if ((int32_t)(released - u->gathered) >= 0) break;
        if (tsi_comm_faulty(u->rank->world)) status = tsi_comm_ended(u->group, u->name);
        if (status == TS_OK && (now - begin) / 1000000 >= timeout_ms)
            status = refuse_wait(u, peer, timeout_ms);
        if (status != TS_OK) break;
        tsi_comm_awaits(u->rank, peer);
        (void)tsi_wait_word(word, released, 0, now + LOOK_NS);
        now = tsi_clock_ns();
    }
    if (now > begin) tsi_comm_awaits(u->rank, -1);
    atomic_fetch_sub_explicit(&u->shared->waiting, 1, memory_order_seq_cst);
    return status == TS_OK ? stand_behind(u, member) : status;
}

void tsi_unit_note_fence(tsi_unit *u)
{
    for (int64_t i = 0; u->fenced_late && i < u->count; i++)
        if (u->param[i].slice) u->param[i].fenced = u->param[i].slice_storage->version;
    u->fenced_late = 0;
}

static ts_status be_alone(void *unit)
{
    tsi_unit *u = unit;
    tsi_unit_note_fence(u); /* while versions are those of the fence */
    u->written = 1;
    int64_t size = ts_group_size(u->group), me = ts_group_index(u->group);
    for (int64_t i = 0; i < size; i++)
        if (i != me) TSI_TRY(wait_for(u, i));
    /* A step that runs again writes without the host: the next gather outside needs a fence. */
    for (int64_t i = 0; u->rank->kept && i < u->count; i++)
        if (u->param[i].slice) u->param[i].fenced = u->param[i].slice->storage->version - 1;
    return TS_OK;
}

/* Counts, waits and releases are part of a step that runs again (base/keep.h). */
ts_status tsi_unit_alone(tsi_unit *u)
{
    if (!u->shared || tsi_world_describes(u->rank->world)) return TS_OK;
    return tsi_keep_work(u->rank, (tsi_kept_work){ be_alone, u, NULL, &tsi_kept_fence });
}

static TSI_STEP_PATH ts_status count_gather(void *unit)
{
    ((tsi_unit *)unit)->gathered++;
    return TS_OK;
}

static const tsi_kept_kind last_kind = { TSI_KEPT_LAST, NULL };

/* Nobody waits for a unit that shares nothing: no piece of a step that others stand behind. */
TSI_STEP_PATH ts_status tsi_unit_count_gather(tsi_unit *u)
{
    if (!u->shared) return count_gather(u);
    return tsi_keep_work(u->rank, (tsi_kept_work){ count_gather, u, NULL, &last_kind });
}

static void mark_put(const tsi_rank_device *mine, tsi_seat *own, tsi_device_event *passed)
{
    pthread_mutex_lock(&own->lock);
    tsi_device_event *before = own->passed;
    own->passed = passed;
    pthread_mutex_unlock(&own->lock);
    if (before) mine->device->event_destroy(mine->device, before);
}

/* A queue that cannot be marked is waited for. */
static ts_status mark_queue(const tsi_unit *u, tsi_seat *own)
{
    const tsi_rank_device *mine = queued(u);
    if (!mine) return TS_OK;
    tsi_device_event *passed = NULL;
    ts_status status = mine->device->event_record(mine->device, mine->queue, &passed);
    if (status != TS_OK) (void)mine->device->stream_sync(mine->device, mine->queue);
    mark_put(mine, own, passed);
    return status;
}

static TSI_STEP_PATH ts_status tell_released(tsi_unit *u, uint32_t count)
{
    if (!u->shared) return TS_OK;
    tsi_seat *own = &u->shared->seat[ts_group_index(u->group)];
    ts_status status = mark_queue(u, own);
    atomic_store_explicit(&own->released, count, memory_order_seq_cst);
    if (atomic_load_explicit(&u->shared->waiting, memory_order_seq_cst) > 0)
        tsi_wake_all(&own->released);
    return status;
}

static TSI_STEP_PATH ts_status let_go(void *unit)
{
    tsi_unit *u = unit;
    return tell_released(u, u->gathered);
}

TSI_STEP_PATH void tsi_unit_let_go(tsi_unit *u)
{
    if (!u->shared) return;
    (void)tsi_keep_work(u->rank,
                        (tsi_kept_work){ let_go, u, NULL, &last_kind }); /* recorded if it fails */
}

/* Peers may have gathered it more often; they do not wait for this rank until it joins again. */
void tsi_unit_forget_shared(tsi_unit *u)
{
    enum { FAR = 1 << 30 };
    u->joined = u->in_place = 0;
    (void)tell_released(u, u->gathered + FAR);
}

/* A unit that was gathered ahead would be read by nobody before it is gathered again. What tapes
 * hold of it, views of the room too, will be another value. */
static ts_status ask_slice(void *context, void *tensor)
{
    (void)tensor;
    const tsi_unit_param *p = context;
    tsi_unit *u = p->unit;
    p->value->changes++;
    if (p->room) tsi_array_wrote(p->room);
    if (u->state == TSI_UNIT_COMING) TSI_TRY(tsi_unit_drop(u, false));
    if (p->slice) TSI_TRY(tsi_moves_ask(u->rank, p->slice->storage));
    return tsi_unit_alone(u);
}

static ts_status ask_room(void *context, void *tensor)
{
    const tsi_unit_param *p = context;
    ts_tensor *value = p->value;
    char name[TSI_PARAM_NAME_MAX];
    if (tensor != value || value->array != p->room) {
        (void)tsi_name_text(&p->param->name, name, sizeof name);
        return TSI_FAIL(TS_ERR_STATE,
                        "fsdp: unit %s: a view of %s cannot be written while it is gathered, the "
                        "parameter itself can",
                        p->unit->name, name);
    }
    if (tsi_keeps(value->rank)) tsi_tell(value->rank, TSI_NEWS_WRITE, value);
    tsi_array *own = tsi_tensor_block_tagged(value->mesh, value->layout, (ts_dtype)value->dtype,
                                             TSI_TAG_GATHERED);
    if (!own) return ts_rank_status(value->rank);
    ts_status status = tsi_array_copy(own, p->room);
    if (status != TS_OK) {
        tsi_array_release(own);
        return status;
    }
    tsi_array_release(value->array);
    value->array = own;
    return TS_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

static void shared_done(void *context)
{
    tsi_shared_release(context);
}

static tsi_array *piece(const tsi_unit *u, int64_t at, ts_dtype dtype, const ts_shape *shape)
{
    const tsi_rank_device *where = tsi_rank_device_of(u->rank);
    if (!where) return NULL;
    size_t bytes = (size_t)ts_shape_count(shape) * ts_dtype_size(dtype);
    tsi_storage *storage =
        tsi_storage_wrap(where, (char *)u->shared->data + at, bytes, shared_done, u->shared);
    if (!storage) return NULL;
    tsi_shared_retain(u->shared);
    return tsi_array_over(storage, dtype, shape);
}

static uint32_t tag_of(const tsi_unit_param *p)
{
    return p->mirrors ? TSI_TAG_MIRROR : TSI_TAG_PARAMETER;
}

static ts_status make_pieces(const tsi_unit *u, tsi_unit_param *p, tsi_pool *pool)
{
    ts_dtype dtype = (ts_dtype)source_dtype(p);
    const ts_layout *whole = tsi_layout_intern(p->whole, &p->param->shape);
    const ts_layout *cut = whole ? tsi_layout_intern(p->cut, &p->param->shape) : NULL;
    if (cut) {
        ts_shape all = ts_layout_local(whole, u->mesh->coord);
        ts_shape own = ts_layout_local(cut, u->mesh->coord);
        p->room = piece(u, p->room_at, dtype, &all);
        p->slice = p->room ? piece(u, p->room_at + p->slice_at, dtype, &own) : NULL;
    }
    ts_layout_release(whole);
    ts_layout_release(cut);
    if (!p->slice) return ts_rank_status(u->rank);
    p->slice_storage = p->slice->storage;
    p->fenced = p->slice_storage->version - 1; /* nobody knows of first values yet */
    p->room->storage->read_only = true;
    p->room->storage->ask = ask_room;
    p->slice->storage->ask = ask_slice;
    p->room->storage->ask_context = p->slice->storage->ask_context = p;
    tsi_pool_count_taken(pool, p->slice->storage->bytes, tag_of(p));
    return TS_OK;
}

static void drop_pieces(tsi_unit_param *p, tsi_pool *pool)
{
    TSI_ASSERT(!tsi_param_in_room(p));
    tsi_param_look_away(p);
    if (p->slice && pool) tsi_pool_count_live(pool, -(int64_t)p->slice->storage->bytes, tag_of(p));
    if (p->slice) p->slice->storage->ask = NULL; /* others may hold it longer than the unit lives */
    if (p->room) p->room->storage->ask = NULL;
    tsi_array_release(p->slice);
    tsi_array_release(p->room);
    p->slice = p->room = NULL;
}

/* Its queue may end before the storage does: nobody is to stand behind it any more. */
static void end_queue(const tsi_unit *u)
{
    const tsi_rank_device *mine = queued(u);
    if (!mine) return;
    (void)mine->device->stream_sync(mine->device, mine->queue);
    mark_put(mine, &u->shared->seat[ts_group_index(u->group)], NULL);
}

void tsi_unit_leave_shared(tsi_unit *u)
{
    if (!u->shared) return;
    tsi_unit_forget_shared(u);
    end_queue(u);
    tsi_pool *pool = tsi_pool_of(u->rank);
    for (int64_t i = 0; i < u->count; i++)
        drop_pieces(&u->param[i], pool);
    tsi_shared_release(u->shared);
    u->shared = NULL;
    u->serial = 0;
    u->gathered = 0;
}

/* How often this rank joined, in any unit: a member's next number is larger than all it had. */
typedef struct joins {
    int64_t count;
} joins;

static void *joins_create(ts_rank *rank)
{
    (void)rank;
    joins *j = tsi_calloc(1, sizeof *j);
    if (!j) (void)tsi_fail_memory("shards that ranks share", sizeof *j);
    return j;
}

/* [coll] Which storage: the one that all members have, or a new one. And how often it was gathered:
 * ranks of an abandoned step differ. */
static ts_status agree_serial(tsi_unit *u, joins *mine, int64_t *serial)
{
    int64_t in[4] = { u->serial, -u->serial, mine->count + 1, u->gathered };
    int64_t out[4] = { in[0], in[1], in[2], in[3] };
    ts_array from = TS_INIT(ts_array), to = from;
    from.meta = (ts_meta){ .shape = TS_SHAPE(4), .dtype = TS_DTYPE_I64 };
    to.meta = from.meta;
    from.data = in;
    to.data = out;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = u->name;
    TSI_TRY(ts_group_all_reduce(u->group, &from, &to, TS_REDUCE_MAX, &options));
    bool same = out[0] == -out[1] && out[0] > 0;
    *serial = same ? out[0] : out[2];
    if (!same) mine->count = out[2];
    u->gathered = (uint32_t)out[3];
    return TS_OK;
}

/* With all its pieces, or not at all: then the members agree on another one next time. */
static ts_status enter_shared(tsi_unit *u, uint64_t group, int64_t serial)
{
    tsi_pool *pool = tsi_pool_of(u->rank);
    tsi_unit_leave_shared(u);
    int64_t size = ts_group_size(u->group);
    u->shared = pool ? tsi_shared_take(u->rank, group, serial, u->shared_bytes, size) : NULL;
    ts_status status = u->shared ? TS_OK : ts_rank_status(u->rank);
    u->serial = serial;
    for (int64_t i = 0; status == TS_OK && i < u->count; i++)
        if (u->param[i].room_at >= 0) status = make_pieces(u, &u->param[i], pool);
    if (status != TS_OK) tsi_unit_leave_shared(u);
    return status;
}

static ts_status join(tsi_unit *u)
{
    if (tsi_keeps(u->rank))
        return TSI_FAIL(TS_ERR_STATE,
                        "fsdp: unit %s: its shards are placed in a step that is recorded; run one "
                        "step before it",
                        u->name);
    TSI_TRY(tsi_comm_now(u->rank, "fsdp"));
    joins *mine = tsi_rank_slot(u->rank, TSI_SLOT_PARALLEL, joins_create, tsi_free);
    if (!mine) return ts_rank_status(u->rank);
    int64_t serial = 0, size = ts_group_size(u->group);
    uint64_t group = 0;
    for (int64_t i = 0; i < size; i++)
        group = tsi_hash_mix(group, (uint64_t)ts_group_rank(u->group, i));
    TSI_TRY(agree_serial(u, mine, &serial));
    bool same = u->shared && serial == u->serial;
    if (!same) TSI_TRY(enter_shared(u, group, serial));
    tsi_unit_let_go(u);
    TSI_TRY(ts_group_barrier(u->group, NULL)); /* nobody gathers before all have told that */
    u->joined = 1;
    return TS_OK;
}

ts_status tsi_unit_join(tsi_unit *u)
{
    if (u->joined && u->shared) return TS_OK;
    if (u->shares == 0) TSI_TRY(decide(u));
    return u->shares > 0 ? join(u) : TS_OK;
}

ts_status tsi_unit_block(tsi_param *param, tsi_array **out)
{
    tsi_unit *u = param->unit;
    *out = NULL;
    TSI_TRY(tsi_unit_join(u));
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_unit_param *p = &u->param[i];
        if (p->param == param && p->slice && !p->mirrors) *out = tsi_array_retain(p->slice);
    }
    return TS_OK;
}

/* ---- a gather in place ----------------------------------------------------------------------- */

/* A value from elsewhere moves into its slice, and is shown from there. */
static ts_status adopt(tsi_unit_param *p)
{
    ts_tensor *value = p->value;
    if (p->mirrors) return tsi_param_renew(p->param, (ts_dtype)p->mirrors, p->slice);
    if (value->array == p->slice) return TS_OK;
    if (tsi_keeps(p->unit->rank))
        return TSI_FAIL(
            TS_ERR_STATE,
            "fsdp: unit %s: a parameter was replaced before a step that is recorded; run "
            "one step before it",
            p->unit->name);
    TSI_TRY(ask_slice(p, value));
    TSI_TRY(tsi_array_copy(p->slice, value->array));
    tsi_array_release(value->array);
    value->array = tsi_array_retain(p->slice);
    value->dtype = p->slice->dtype;
    return TS_OK;
}

/* A slice that is held for later (an undo of what replaced it) is not written: all ranks, which do
 * the same, take another storage. */
static bool is_held(const tsi_unit_param *p)
{
    return p->slice && !p->mirrors && p->value->array != p->slice && p->slice->references > 1;
}

ts_status tsi_unit_adopt(tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        if (!is_held(&u->param[i])) continue;
        tsi_unit_leave_shared(u);
        TSI_TRY(join(u));
    }
    for (int64_t i = 0; i < u->count; i++)
        if (u->param[i].slice) TSI_TRY(adopt(&u->param[i]));
    return TS_OK;
}

/* [coll] What was written into slices of any unit of this group is there for all. */
ts_status tsi_unit_fence(tsi_unit *u)
{
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = u->name;
    TSI_TRY(tsi_comm_now(u->rank, "fsdp"));
    bool at_work = tsi_watch_wait(u->all);
    TSI_TRY(ts_group_barrier(u->group, &options));
    tsi_watch_waited(u->all, at_work);
    int64_t count = u->all ? u->all->unit_count : 1;
    for (int64_t k = 0; k < count; k++) {
        tsi_unit *other = u->all ? u->all->unit[k] : u;
        if (other->group != u->group) continue;
        other->fenced_in = u->rank->kept ? u->rank->kept->number : 0;
        other->written = 0;
        other->fenced_late = 1;
        if (!other->in_place) tsi_unit_note_fence(other);
    }
    if (u->all) u->all->stats.fences++;
    return TS_OK;
}

/* Nothing is made for it: a body of its own would be another line of memory in every gather. */
ts_status tsi_param_look(tsi_unit_param *p)
{
    if (p->array) return TS_OK;
    p->layout = tsi_layout_intern(p->whole, &p->param->shape);
    if (!p->layout) return ts_rank_status(p->unit->rank);
    p->array = tsi_array_retain(p->room);
    p->dtype = source_dtype(p);
    return TS_OK;
}

void tsi_param_look_away(tsi_unit_param *p)
{
    tsi_array_release(p->array);
    ts_layout_release(p->layout);
    p->array = NULL;
    p->layout = NULL;
}
