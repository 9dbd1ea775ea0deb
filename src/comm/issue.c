/* SPDX-License-Identifier: Apache-2.0 */
/* issue.c - the common path of all collectives, and batches. See issue.h.
 *
 * A blocking call keeps its work on the stack and borrows the caller's lists; an asynchronous or
 * batched one moves into a handle that keeps copies. */
#include "comm/issue.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/again.h"

enum { TIMEOUT_DEFAULT_MS = 60000 };

/* ---- begin ----------------------------------------------------------------------------------- */

static ts_status read_options(tsi_call *call, const ts_comm_options *options)
{
    if (options == NULL) return TS_OK;
    if (options->struct_size < sizeof *options)
        return TSI_FAIL(TS_ERR_ARG, "%s: struct_size of the options is %zu, not %zu", call->name,
                        options->struct_size, sizeof *options);
    call->options = *options;
    if (options->work != NULL) *options->work = NULL;
    if (options->channel < 0 || options->channel >= TS_CHANNEL_COUNT)
        return TSI_FAIL(TS_ERR_ARG, "%s: channel %d, 0 to %d are possible", call->name,
                        options->channel, TS_CHANNEL_COUNT - 1);
    if (options->timeout_ms < 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: timeout_ms is %" PRId64 ", it must not be negative",
                        call->name, options->timeout_ms);
    return TS_OK;
}

ts_status tsi_call_begin(tsi_call *call, ts_group *group, tsi_comm_kind kind,
                         const ts_comm_options *options)
{
    call->group = group;
    call->name = tsi_comm_kind_name(kind);
    call->options = (ts_comm_options){ 0 };
    if (group == NULL) {
        ts_rank *rank = tsi_rank_current();
        if (rank != NULL && rank->error.error.status != TS_OK) return rank->error.error.status;
        return TSI_FAIL(TS_ERR_NULL, "%s: the group is NULL", call->name);
    }
    TSI_TRY(tsi_rank_enter(group->comm->rank));
    TSI_TRY(read_options(call, options));
    call->skip = group->member < 0;
    if (call->skip) return TS_OK;
    if (group->comm->batch_open && call->options.work != NULL)
        return TSI_FAIL(TS_ERR_STATE,
                        "%s: inside a batch only ts_group_batch_end gives a work handle",
                        call->name);
    TSI_TRY(tsi_group_bind(group));
    call->local = (ts_work){ .comm = group->comm, .on_stack = true };
    tsi_work *work = &call->local.base;
    work->rank = group->comm->rank;
    work->group = group;
    work->team = group->team;
    work->member = group->member;
    work->print.kind = (int32_t)kind;
    work->print.root = -1;
    work->device = tsi_device_host();
    return TS_OK;
}

ts_status tsi_call_device(tsi_call *call, int32_t device)
{
    tsi_work *work = &call->local.base;
    if (device == 0 || device == work->device->dlpack_type) return TS_OK;
    const tsi_rank_device *mine = tsi_rank_device_of(work->rank);
    if (!mine) return ts_rank_status(work->rank);
    if (device != mine->device->dlpack_type)
        return TSI_FAIL(TS_ERR_ARG, "memory of device type %d, the rank's device is %s", device,
                        mine->device->name);
    work->device = mine->device;
    return TS_OK;
}

/* ---- the fingerprint and the event ----------------------------------------------------------- */

static void copy_head(char *to, size_t size, const char *from)
{
    size_t length = 0;
    while (length + 1 < size && from[length] != '\0')
        length++;
    memcpy(to, from, length);
    to[length] = '\0';
}

/* A path is known by its end. */
static void copy_tail(char *to, size_t size, const char *from)
{
    size_t length = strlen(from);
    if (length < size) {
        memcpy(to, from, length + 1);
        return;
    }
    memcpy(to, "...", 3);
    memcpy(to + 3, from + length - (size - 4), size - 3);
}

/* Numbers are used up here: from now on the operation counts for the peers. */
static ts_status next_sequence(const tsi_call *call, uint64_t *sequence)
{
    const tsi_fingerprint *print = &call->local.base.print;
    tsi_seat *seat = call->group->seat;
    if (print->kind != TSI_COMM_SEND && print->kind != TSI_COMM_RECV) {
        *sequence = ++seat->sequence[call->options.channel];
        return TS_OK;
    }
    TSI_TRY(tsi_seat_peers(seat));
    uint64_t *counter = print->kind == TSI_COMM_SEND ? seat->sent : seat->received;
    *sequence = ++counter[print->root];
    return TS_OK;
}

const char *tsi_call_title(const tsi_call *call)
{
    const ts_rank *rank = call->group->comm->rank;
    if (call->options.name != NULL) return call->options.name;
    return rank->label != NULL ? rank->label : "";
}

static void note_place(tsi_work *work)
{
    const char *where = work->rank->where;
    copy_tail(work->print.where, sizeof work->print.where, where != NULL ? where : "");
}

static ts_status make_print(tsi_call *call)
{
    tsi_work *work = &call->local.base;
    tsi_fingerprint *print = &work->print;
    const ts_group *group = call->group;
    TSI_TRY(next_sequence(call, &print->sequence));
    print->team = work->team->hash;
    bool point = print->kind == TSI_COMM_SEND || print->kind == TSI_COMM_RECV;
    print->channel = point ? 0 : call->options.channel; /* sends are outside the channels */
    print->rank = work->rank->index;
    copy_head(print->name, sizeof print->name, tsi_call_title(call));
    copy_head(print->group, sizeof print->group,
              group->name != NULL ? group->name : group->team->name);
    note_place(work);
    tsi_fingerprint_seal(work);
    return TS_OK;
}

static uint32_t queue_of(const tsi_fingerprint *print)
{
    bool point = print->kind == TSI_COMM_SEND || print->kind == TSI_COMM_RECV;
    return point ? TS_CHANNEL_COUNT + 1 : (uint32_t)print->channel + 1;
}

/* `name`: kept by the ring. */
static TSI_STEP_PATH void begin_event(tsi_work *work, const char *kind_name, const char *name)
{
    ts_rank *rank = work->rank;
    tsi_event event = {
        .kind = TSI_EVENT_COMM,
        .kind_name = kind_name,
        .name = name,
        .where = rank->where != NULL ? rank->where : "",
        .queue = queue_of(&work->print),
        .sequence = work->print.sequence,
        .group = work->print.team,
    };
    work->event = tsi_ring_begin(rank->ring, &event);
}

static int64_t timeout_of(const ts_group *group, const ts_comm_options *options)
{
    if (options->timeout_ms > 0) return options->timeout_ms;
    if (group->timeout_ms > 0) return group->timeout_ms;
    int64_t world_ms = group->comm->rank->world->timeout_ms;
    return world_ms > 0 ? world_ms : TIMEOUT_DEFAULT_MS;
}

/* ---- copies of the caller's lists ------------------------------------------------------------ */

static bool send_is_sorted(const tsi_work *work)
{
    for (int64_t i = 1; i < work->send_count; i++)
        if (work->send[i - 1].peer > work->send[i].peer) return false;
    return true;
}

/* Stable: the order of parts for one peer is what they are matched by. Merging halves keeps it. */
static void sort_parts(ts_part *part, ts_part *scratch, int64_t count)
{
    if (count < 2) return;
    int64_t half = count / 2, i = 0, j = half, k = 0;
    sort_parts(part, scratch, half);
    sort_parts(part + half, scratch, count - half);
    if (part[half - 1].peer <= part[half].peer) return;
    while (i < half && j < count)
        scratch[k++] = part[j].peer < part[i].peer ? part[j++] : part[i++];
    while (i < half)
        scratch[k++] = part[i++];
    memcpy(part, scratch, (size_t)k * sizeof *part);
}

static size_t kept_bytes(const tsi_work *work, bool sorted)
{
    size_t rows = (size_t)work->team->size * sizeof(int64_t);
    size_t bytes = (work->send_rows != NULL ? rows : 0) + (work->recv_rows != NULL ? rows : 0);
    bytes += (size_t)(work->send_count + work->recv_count) * sizeof(ts_part);
    if (!sorted) bytes += (size_t)work->send_count * sizeof(ts_part); /* scratch of the sort */
    return bytes;
}

static const void *keep(char **at, const void *list, size_t bytes)
{
    if (list == NULL) return NULL;
    void *copy = *at;
    memcpy(copy, list, bytes);
    *at += bytes;
    return copy;
}

ts_status tsi_call_copy_lists(tsi_work *work, bool outlives, void **kept)
{
    bool sorted = work->lists_stay || send_is_sorted(work);
    size_t bytes = outlives || !sorted ? kept_bytes(work, sorted) : 0;
    if (bytes == 0) return TS_OK;
    *kept = tsi_copies_take(work->group->comm, bytes);
    if (*kept == NULL) return tsi_fail_memory("copies of an operation's lists", bytes);
    char *at = *kept;
    size_t rows = (size_t)work->team->size * sizeof(int64_t);
    work->send_rows = keep(&at, work->send_rows, rows);
    work->recv_rows = keep(&at, work->recv_rows, rows);
    ts_part *send = (ts_part *)(void *)at;
    work->send = keep(&at, work->send, (size_t)work->send_count * sizeof(ts_part));
    work->recv = keep(&at, work->recv, (size_t)work->recv_count * sizeof(ts_part));
    if (!sorted) sort_parts(send, (ts_part *)(void *)at, work->send_count);
    return TS_OK;
}

/* ---- queues ---------------------------------------------------------------------------------- */

/* Peers that read each other's memory meet in their queues, too. */
static void take_device(tsi_work *work, const tsi_engine *engine)
{
    if (work->print.kind != TSI_COMM_BARRIER || !engine->direct) return;
    const tsi_rank_device *mine = tsi_slot_get(work->rank, TSI_SLOT_DEVICE);
    if (mine && !mine->device->host_readable) work->device = mine->device;
}

/* The bytes move behind what the queue has so far, and the host goes on, if there is a thread that
 * will notice when they do not move. */
static ts_status enter_queue(tsi_work *work)
{
    tsi_comm_world *world = work->group->comm->world;
    take_device(work, world->engine);
    if (work->device->host_readable) return TS_OK;
    const tsi_rank_device *mine = tsi_rank_device_of(work->rank);
    if (!mine) return ts_rank_status(work->rank);
    if (!world->engine->direct) (void)tsi_helpers_start(&world->helpers);
    work->in_order = world->engine->direct || world->helpers.count > 0;
    work->timed = work->rank->moments != NULL;
    tsi_rank_set_current(NULL); /* no memory for an event: the host waits, and nobody fails */
    ts_status status = work->device->event_record(work->device, mine->queue, &work->ready);
    tsi_rank_set_current(work->rank);
    return status == TS_OK ? TS_OK : tsi_rank_device_sync(work->rank);
}

/* Helpers look at what is left in queues. */
static void watch(const ts_work *work)
{
    tsi_comm_world *world = work->comm->world;
    if (work->base.in_order && !world->engine->direct) tsi_helpers_kick(&world->helpers, 1);
}

/* ---- issue ----------------------------------------------------------------------------------- */

static ts_status issue_blocking(tsi_call *call)
{
    ts_work *work = &call->local;
    tsi_work *base = &work->base;
    ts_status status = tsi_work_launch(work);
    if (status == TS_OK) status = tsi_work_complete(work);
    tsi_work_absorb(base); /* if it could not be launched */
    watch(work);
    tsi_ring_end(base->rank->ring, base->event,
                 status == TS_OK ? tsi_work_bytes_received(base) : 0);
    if (status == TS_OK)
        tsi_tell(base->rank, TSI_NEWS_ISSUE, &(tsi_issued){ base, tsi_call_title(call), NULL });
    tsi_free(base->error);
    return status;
}

static ts_work *to_handle(tsi_call *call)
{
    ts_work *work = tsi_work_take(call->group->comm);
    if (work == NULL) return NULL;
    work->base = call->local.base;
    work->kept = call->local.kept;
    call->local.kept = NULL;
    call->local.base.ready = NULL;
    tsi_group_retain(call->group);
    return work;
}

static TSI_STEP_PATH ts_status post(ts_work *work, const char *title, ts_work **out)
{
    const tsi_comm_rank *comm = work->comm;
    (void)tsi_helpers_start(&comm->world->helpers);
    ts_status status = tsi_work_launch(work);
    if (status != TS_OK) {
        tsi_work_put(work);
        return status;
    }
    tsi_work_link(work);
    *out = work;
    tsi_tell(comm->rank, TSI_NEWS_ISSUE, &(tsi_issued){ &work->base, title, work });
    if (!comm->world->engine->direct) tsi_helpers_kick(&comm->world->helpers, 1);
    return TS_OK;
}

static ts_status issue_posted(tsi_call *call)
{
    tsi_comm_rank *comm = call->group->comm;
    call->local.base.asynchronous = 1;
    ts_work *work = to_handle(call);
    if (work == NULL) {
        tsi_work_absorb(&call->local.base);
        tsi_ring_end(comm->rank->ring, call->local.base.event, 0);
        return TS_ERR_MEMORY;
    }
    if (comm->batch_open) {
        *comm->batch_end = work;
        comm->batch_end = &work->next;
        tsi_tell(comm->rank, TSI_NEWS_ISSUE,
                 &(tsi_issued){ &work->base, tsi_call_title(call), work });
        return TS_OK;
    }
    return post(work, tsi_call_title(call), call->options.work);
}

ts_status tsi_call_issue(tsi_call *call)
{
    tsi_work *work = &call->local.base;
    TSI_ASSERT(!call->skip && work->team); /* a rank outside the group has nothing to issue */
    if (TSI_UNLIKELY(tsi_keeps(work->rank))) return tsi_again_issue(call);
    bool posted = call->options.work != NULL || call->group->comm->batch_open;
    TSI_TRY(enter_queue(work));
    bool outlives = posted && !work->lists_stay;
    ts_status status = tsi_call_copy_lists(work, outlives, &call->local.kept);
    if (status == TS_OK) status = make_print(call);
    if (status == TS_OK) {
        work->timeout_ms = timeout_of(call->group, &call->options);
        begin_event(work, call->name, tsi_ring_name(work->rank->ring, tsi_call_title(call)));
        status = posted ? issue_posted(call) : issue_blocking(call);
    } else {
        tsi_work_absorb(work);
    }
    tsi_copies_put(call->group->comm, call->local.kept);
    return status;
}

/* ---- standing ones --------------------------------------------------------------------------- */

/* INV: `work` is in no list while it is not in flight, and holds nothing then. It comes first:
 * one whose owner has gone is used again, and freed, as any other work. */
struct tsi_standing {
    ts_work work;
    const char *title;      /* as the caller named it */
    const char *event_name; /* the same, kept by the ring */
    const char *kind_name;
    const char *where; /* the rank's, when it was noted: places outlive the ring */
};

/* Nothing but the number, the place in the program and what becomes of it changes from one issue
 * to the next. On a device it has events, in a step that is recorded it stands elsewhere, and what
 * an engine that packs leaves in a work is its own. */
void tsi_standing_note(tsi_standing **standing, const tsi_call *call)
{
    const tsi_work *base = &call->local.base;
    const tsi_comm_rank *comm = call->group->comm;
    bool alike = call->options.work && call->options.name && base->lists_stay &&
                 base->device->host_readable && comm->world->engine->direct && !comm->batch_open &&
                 !tsi_keeps(base->rank);
    tsi_standing *s = alike && !*standing ? tsi_calloc(1, sizeof *s) : NULL;
    if (s == NULL) return; /* it is described each time */
    s->work = (ts_work){ .comm = call->group->comm, .standing = true };
    s->work.base = *base;
    s->title = call->options.name;
    s->event_name = tsi_ring_name(base->rank->ring, s->title);
    s->kind_name = call->name;
    s->where = base->rank->where;
    *standing = s;
}

TSI_STEP_PATH bool tsi_standing_serves(const tsi_standing *s, const ts_group *group,
                                       const ts_comm_options *options)
{
    return s && s->work.base.group == group && s->title == options->name && options->work &&
           s->work.base.print.channel == options->channel && !group->comm->batch_open &&
           !tsi_keeps(group->comm->rank);
}

TSI_STEP_PATH ts_status tsi_standing_issue(tsi_standing *s, const ts_comm_options *options)
{
    tsi_work *work = &s->work.base;
    ts_group *group = work->group;
    *options->work = NULL;
    TSI_TRY(tsi_rank_enter(work->rank));
    TSI_TRY(tsi_group_bind(group));
    TSI_ASSERT(!work->ready && !work->done && !work->error && !s->work.kept);
    s->work.stale = false;
    work->next = NULL;
    work->status = TS_OK;
    work->deadline_ns = 0;
    work->engine_state = NULL;
    memset(work->engine_word, 0, sizeof work->engine_word);
    atomic_store_explicit(&work->state, TSI_WORK_NEW, memory_order_relaxed);
    work->print.sequence = ++group->seat->sequence[options->channel];
    work->timeout_ms = timeout_of(group, options);
    if (work->rank->where != s->where) note_place(work);
    s->where = work->rank->where;
    tsi_fingerprint_seal(work);
    begin_event(work, s->kind_name, s->event_name);
    return post(&s->work, s->title, options->work);
}

void tsi_standing_destroy(tsi_standing *standing)
{
    if (standing != NULL) tsi_work_disown(&standing->work);
}

/* ---- batches --------------------------------------------------------------------------------- */

ts_status tsi_comm_now(ts_rank *rank, const char *what)
{
    const tsi_comm_rank *comm =
        atomic_load_explicit(&rank->slot[TSI_SLOT_COMM].state, memory_order_acquire);
    if (TSI_LIKELY(comm == NULL || !comm->batch_open)) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE,
                    "%s: it asks other ranks, and a batch is open; ts_group_batch_end comes first",
                    what);
}

ts_status tsi_comm_once(ts_rank *rank, const char *what)
{
    if (TSI_UNLIKELY(tsi_keeps(rank)))
        return TSI_FAIL(TS_ERR_STATE,
                        "%s: a step is recorded, which cannot do this again; call it before or "
                        "after",
                        what);
    return tsi_comm_now(rank, what);
}

void tsi_batch_drop(tsi_comm_rank *comm)
{
    while (comm->batch != NULL) {
        ts_work *work = comm->batch;
        comm->batch = work->next;
        work->next = NULL;
        tsi_ring_end(work->base.rank->ring, work->base.event, 0);
        tsi_work_put(work);
    }
    comm->batch_end = &comm->batch;
    comm->batch_open = false;
}

ts_status ts_group_batch_begin(ts_rank *me)
{
    TSI_TRY(tsi_rank_enter(me));
    tsi_comm_rank *comm = tsi_comm_of_rank(me);
    if (comm == NULL) return me->error.error.status;
    if (comm->batch_open) return TSI_FAIL(TS_ERR_STATE, "batch: one is open already");
    if (TSI_UNLIKELY(tsi_keeps(me))) return tsi_again_batch_begin(me);
    comm->batch_open = true;
    return TS_OK;
}

static void never_started(ts_work *work, ts_status status)
{
    tsi_ring_end(work->base.rank->ring, work->base.event, 0);
    work->base.status = status;
    atomic_store_explicit(&work->base.state, TSI_WORK_DONE, memory_order_release);
}

/* An engine that takes them all at once ends all of them itself when it fails. */
static ts_status launch_together(const tsi_comm_world *world, ts_work *batch)
{
    int64_t count = 0;
    for (const ts_work *one = batch->inside; one != NULL; one = one->next)
        count++;
    tsi_work **list = tsi_copies_take(batch->comm, (size_t)count * sizeof *list);
    if (list == NULL) {
        for (ts_work *one = batch->inside; one != NULL; one = one->next)
            never_started(one, TS_ERR_MEMORY);
        return tsi_fail_memory("the list of a batch", (size_t)count * sizeof *list);
    }
    batch->kept = list;
    for (ts_work *one = batch->inside; one != NULL; one = one->next)
        *list++ = &one->base;
    return world->engine->start_batch(world->engine_state, batch->kept, count);
}

/* Starts all of them; those after a failed one end with its status. */
static ts_status batch_launch(tsi_comm_rank *comm, ts_work *batch)
{
    const tsi_comm_world *world = comm->world;
    (void)tsi_helpers_start(&comm->world->helpers);
    if (world->engine->start_batch != NULL) return launch_together(world, batch);
    ts_status status = TS_OK;
    for (ts_work *one = batch->inside; one != NULL; one = one->next) {
        if (status == TS_OK)
            status = tsi_work_launch(one);
        else
            never_started(one, status);
    }
    if (!world->engine->direct) tsi_helpers_kick(&comm->world->helpers, 1);
    return status;
}

static ts_status batch_finish(ts_work *batch, const ts_comm_options *options, ts_status status)
{
    if (status == TS_OK && options != NULL && options->work != NULL) {
        tsi_work_link(batch);
        *options->work = batch;
        return TS_OK;
    }
    ts_status complete = tsi_work_complete(batch);
    tsi_work_tell(batch);
    tsi_work_put(batch);
    return status != TS_OK ? status : complete;
}

ts_status ts_group_batch_end(ts_rank *me, const ts_comm_options *options)
{
    if (options != NULL && options->work != NULL) *options->work = NULL;
    if (me == NULL || me != tsi_rank_current()) return tsi_rank_enter(me);
    tsi_comm_rank *comm = tsi_comm_of_rank(me);
    ts_status status = tsi_rank_enter(me);
    if (comm == NULL || status != TS_OK) {
        if (comm != NULL) tsi_batch_drop(comm);
        return me->error.error.status;
    }
    if (!comm->batch_open) return TSI_FAIL(TS_ERR_STATE, "batch: none is open");
    if (TSI_UNLIKELY(tsi_keeps(me))) return tsi_again_batch_end(me, options);
    ts_work *batch = tsi_work_take(comm);
    if (batch == NULL) {
        tsi_batch_drop(comm);
        return TS_ERR_MEMORY;
    }
    batch->batch = true;
    batch->inside = comm->batch;
    comm->batch = NULL;
    tsi_batch_drop(comm); /* closes it; the operations moved */
    return batch_finish(batch, options, batch_launch(comm, batch));
}
