/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - communicators: made on first use of a group's channel or of a pair, ended with the
 * world, or aborted.
 *
 *   NEW -> MEETING   member 0 makes an id; it is broadcast by the engine below, on a team of its
 * own
 *       -> JOINING   ncclCommInitRankConfig, which does not block; it is asked now and then
 *       -> READY
 *
 * The engine below knows of these teams alone, so the ranks of a process share them. A lane whose
 * communicator was aborted stays broken until recover, which forgets it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/nccl/internal.h"

enum { MOST_BLOCKS = 16, CLOSE_NS_MAX = 1000000000 };

/* ---- teams ----------------------------------------------------------------------------------- */

typedef struct tsi_nccl_team {
    struct tsi_nccl_team *next;
    tsi_team team;
    int64_t ranks[];
} tsi_nccl_team;

static tsi_nccl_team *team_find(const tsi_nccl *nccl, uint64_t hash)
{
    tsi_nccl_team *own = nccl->teams;
    while (own && own->team.hash != hash)
        own = own->next;
    return own;
}

static tsi_nccl_team *team_make(tsi_nccl *nccl, uint64_t hash, const int64_t *ranks, int64_t size)
{
    size_t bytes = (size_t)size * sizeof *ranks;
    tsi_nccl_team *own = tsi_calloc(1, sizeof *own + bytes);
    if (!own) return NULL;
    memcpy(own->ranks, ranks, bytes);
    own->team.hash = hash;
    own->team.size = size;
    own->team.rank = own->ranks;
    own->team.name = "nccl";
    own->next = nccl->teams;
    nccl->teams = own;
    return own;
}

/* The team of the engine below with this list, the same for all ranks of the process. */
static tsi_team *team_of(tsi_nccl *nccl, uint64_t hash, const int64_t *ranks, int64_t size)
{
    pthread_mutex_lock(&nccl->lock);
    tsi_nccl_team *own = team_find(nccl, hash);
    if (!own) own = team_make(nccl, hash, ranks, size);
    pthread_mutex_unlock(&nccl->lock);
    return own ? &own->team : NULL;
}

void tsi_teams_free(tsi_nccl *nccl)
{
    while (nccl->teams) {
        tsi_nccl_team *own = nccl->teams;
        nccl->teams = own->next;
        tsi_free(own);
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static tsi_nccl_lane *lane_make(tsi_nccl_rank *rank, const tsi_work *work, uint64_t key,
                                const int64_t *ranks, int64_t size, int64_t member)
{
    tsi_nccl_lane *lane = tsi_calloc(1, sizeof *lane);
    tsi_team *team = lane ? team_of(rank->nccl, key, ranks, size) : NULL;
    if (!team) {
        tsi_free(lane);
        (void)tsi_fail_memory("a communicator", sizeof *lane);
        return NULL;
    }
    lane->rank = rank;
    lane->key = key;
    lane->team = team;
    lane->member = member;
    lane->device = work->device;
    if (lane->device->stream_create(lane->device, &lane->stream) != TS_OK) {
        tsi_free(lane);
        return NULL;
    }
    lane->next = rank->lanes;
    rank->lanes = lane;
    return lane;
}

tsi_nccl_lane *tsi_lane_for(tsi_nccl_rank *rank, const tsi_work *work)
{
    const tsi_team *team = work->team;
    bool point = tsi_is_point(work), sends = work->print.kind == TSI_COMM_SEND;
    int64_t peer = point ? team->rank[work->print.root] : -1, me = team->rank[work->member];
    const int64_t pair[2] = { sends ? me : peer, sends ? peer : me };
    uint64_t key = tsi_mix(team->hash, point ? 0x70616972 : (uint64_t)work->print.channel + 1);
    if (point) key = tsi_mix(key, (uint64_t)pair[0] << 32 | (uint64_t)pair[1]);
    for (tsi_nccl_lane *lane = rank->lanes; lane; lane = lane->next)
        if (lane->key == key) return lane;
    return point ? lane_make(rank, work, key, pair, 2, sends ? 0 : 1)
                 : lane_make(rank, work, key, team->rank, team->size, work->member);
}

typedef struct tsi_nccl_space {
    struct tsi_nccl_space *next;
    void *memory;
    void *handle; /* of its registration; NULL: there is none */
    size_t bytes;
} tsi_nccl_space;

/* The library may then read and write it from afar without copies of its own. Arrays of callers
 * are not registered: they go back to a pool that knows nothing of communicators. */
static void space_enlist(const tsi_nccl_lane *lane, tsi_nccl_space *space)
{
    const tsi_nccl_api *api = lane->rank->nccl->api;
    if (!api->enlist) return;
    (void)lane->device->stream_handle(lane->device, lane->stream);
    if (api->enlist(lane->comm, space->memory, space->bytes, &space->handle) != TSI_NCCL_SUCCESS)
        space->handle = NULL; /* it goes without */
}

/* Before the communicator ends well; one that is aborted takes its registrations along. */
static void spaces_delist(const tsi_nccl_lane *lane)
{
    const tsi_nccl_api *api = lane->rank->nccl->api;
    for (tsi_nccl_space *space = lane->spaces; space; space = space->next) {
        if (space->handle) (void)api->delist(lane->comm, space->handle);
        space->handle = NULL;
    }
}

/* It doubles, and what it outgrew is kept: a device gives memory back when all its streams have
 * passed, and one of them may wait for a peer that waits for this rank. */
ts_status tsi_lane_space(tsi_nccl_lane *lane, size_t bytes)
{
    const tsi_device *device = lane->device;
    size_t want = lane->space_bytes > 0 ? 2 * lane->space_bytes : (size_t)1 << 20;
    if (bytes <= lane->space_bytes) return TS_OK;
    while (want < bytes)
        want *= 2;
    tsi_nccl_space *space = tsi_calloc(1, sizeof *space);
    if (!space || device->buffer_alloc(device, want, &space->memory) != TS_OK) {
        tsi_free(space);
        return tsi_fail_memory("staging of a communicator", want);
    }
    space->bytes = want;
    space_enlist(lane, space);
    space->next = lane->spaces;
    lane->spaces = space;
    lane->space = space->memory;
    lane->space_bytes = want;
    return TS_OK;
}

static void spaces_free(tsi_nccl_lane *lane)
{
    while (lane->spaces) {
        tsi_nccl_space *space = lane->spaces;
        lane->spaces = space->next;
        lane->device->buffer_free(lane->device, space->memory, space->bytes);
        tsi_free(space);
    }
}

/* ---- words ----------------------------------------------------------------------------------- */

void tsi_lane_text(const tsi_nccl_lane *lane, tsi_nccl_result result, char *out, size_t size)
{
    const tsi_nccl_api *api = lane->rank->nccl->api;
    const char *text = api->text(result), *last = api->last(lane->comm);
    (void)snprintf(out, size, "NCCL: %s%s%s%s", text ? text : "no reason was given",
                   last && *last ? " (" : "", last && *last ? last : "", last && *last ? ")" : "");
}

/* ---- joining --------------------------------------------------------------------------------- */

static ts_status meet(tsi_nccl_lane *lane, const tsi_work *work, char *text, size_t size)
{
    tsi_nccl *nccl = lane->rank->nccl;
    if (lane->member == 0) {
        tsi_nccl_result result = nccl->api->make_id(&lane->id);
        if (result != TSI_NCCL_SUCCESS) {
            tsi_lane_text(lane, result, text, size);
            return TS_ERR_PEER;
        }
    }
    tsi_block block = { .data = &lane->id,
                        .dtype = TS_DTYPE_U8,
                        .ndim = 1,
                        .extent = { TSI_NCCL_ID_BYTES },
                        .stride = { 1 } };
    tsi_work *meeting = &lane->meeting;
    *meeting = (tsi_work){ .rank = work->rank,
                           .group = work->group,
                           .team = lane->team,
                           .member = lane->member,
                           .print = work->print,
                           .out = block,
                           .deadline_ns = INT64_MAX,
                           .timeout_ms = work->timeout_ms,
                           .device = nccl->host->cpu };
    tsi_fingerprint *print = &meeting->print;
    print->kind = TSI_COMM_BROADCAST;
    print->dtype = TS_DTYPE_U8;
    print->reduce = TS_REDUCE_NONE;
    print->count = print->extent[0] = TSI_NCCL_ID_BYTES;
    print->ndim = 1;
    print->root = print->channel = 0;
    print->team = lane->team->hash;
    print->sequence = 1; /* the only one of its team in an epoch */
    print->hash = tsi_mix(lane->team->hash, TSI_COMM_BROADCAST);
    (void)snprintf(print->name, sizeof print->name, "id of a communicator");
    lane->state = TSI_LANE_MEETING;
    return nccl->inner->start(nccl->inner_state, meeting);
}

static tsi_nccl_result join(tsi_nccl_lane *lane)
{
    tsi_nccl_config config = { .size = sizeof config,
                               .magic = TSI_NCCL_MAGIC,
                               .version = TSI_NCCL_VERSION_LEAST,
                               .blocking = 0,
                               .cluster_size = TSI_NCCL_UNSET,
                               .least_blocks = TSI_NCCL_UNSET,
                               .most_blocks = MOST_BLOCKS,
                               .split_share = TSI_NCCL_UNSET };
    (void)lane->device->stream_handle(lane->device, lane->stream); /* makes its GPU current */
    lane->state = TSI_LANE_JOINING;
    return lane->rank->nccl->api->join(&lane->comm, (int)lane->team->size, lane->id,
                                       (int)lane->member, &config);
}

tsi_nccl_result tsi_lane_look(const tsi_nccl_lane *lane)
{
    tsi_nccl_result state = TSI_NCCL_SUCCESS;
    if (!lane->comm) return TSI_NCCL_INTERNAL;
    tsi_nccl_result asked = lane->rank->nccl->api->state(lane->comm, &state);
    return asked != TSI_NCCL_SUCCESS ? asked : state;
}

static bool is_met(const tsi_nccl_lane *lane)
{
    return atomic_load_explicit(&lane->meeting.state, memory_order_acquire) == TSI_WORK_DONE;
}

static void end_meeting(tsi_nccl_lane *lane, ts_status status)
{
    lane->meeting.status = status;
    atomic_store_explicit(&lane->meeting.state, TSI_WORK_DONE, memory_order_release);
}

/* The broadcast of the id failed: what the engine below says of it. */
static ts_status not_met(tsi_nccl_lane *lane, char *text, size_t size)
{
    tsi_work *meeting = &lane->meeting;
    (void)snprintf(text, size, "%s",
                   meeting->error ? meeting->error->text
                                  : lane->rank->nccl->host->status_meaning(meeting->status));
    tsi_free(meeting->error);
    meeting->error = NULL;
    return meeting->status;
}

ts_status tsi_lane_join(tsi_nccl_lane *lane, const tsi_work *work, char *text, size_t size)
{
    tsi_nccl *nccl = lane->rank->nccl;
    tsi_nccl_result result = TSI_NCCL_SUCCESS;
    if (lane->state == TSI_LANE_BROKEN) {
        (void)snprintf(text, size, "its communicator was aborted");
        return TS_ERR_PEER;
    }
    if (lane->state == TSI_LANE_NEW) {
        ts_status status = meet(lane, work, text, size);
        if (status != TS_OK && lane->state == TSI_LANE_NEW) return status;
        if (status != TS_OK) {
            if (!is_met(lane)) end_meeting(lane, status); /* it was never started */
            return not_met(lane, text, size);
        }
    }
    if (lane->state == TSI_LANE_MEETING) {
        if (!nccl->inner->test(nccl->inner_state, &lane->meeting)) return TS_OK;
        if (lane->meeting.status != TS_OK) return not_met(lane, text, size);
        result = join(lane);
    }
    if (lane->state == TSI_LANE_JOINING && result == TSI_NCCL_SUCCESS) result = tsi_lane_look(lane);
    if (result == TSI_NCCL_SUCCESS) lane->state = TSI_LANE_READY;
    if (result == TSI_NCCL_SUCCESS || result == TSI_NCCL_IN_PROGRESS) return TS_OK;
    tsi_lane_text(lane, result, text, size);
    return TS_ERR_PEER;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What waits in the stream for peers that will never come is released. Nobody waits for the stream
 * here: it may stand behind another lane that is aborted next. */
void tsi_lane_abort(tsi_nccl_lane *lane)
{
    tsi_nccl *nccl = lane->rank->nccl;
    lane->state = TSI_LANE_BROKEN;
    if (!lane->comm) return;
    (void)lane->device->stream_handle(lane->device, lane->stream);
    (void)nccl->api->abort(lane->comm);
    lane->comm = NULL;
}

static void lane_free(tsi_nccl_lane *lane)
{
    const tsi_device *device = lane->device;
    const tsi_nccl *nccl = lane->rank->nccl;
    /* The engine below is at fault where a meeting is left, so this ends soon; until then others
     * may write what they bring. */
    bool begun = atomic_load_explicit(&lane->meeting.state, memory_order_acquire) != TSI_WORK_NEW;
    if (begun && !is_met(lane)) (void)nccl->inner->wait(nccl->inner_state, &lane->meeting);
    device->stream_destroy(device, lane->stream);
    spaces_free(lane);
    tsi_free(lane->meeting.error);
    tsi_free(lane);
}

/* All are aborted before any stream is waited for. */
void tsi_lanes_abort(tsi_nccl_rank *rank)
{
    for (tsi_nccl_lane *lane = rank->lanes; lane; lane = lane->next)
        tsi_lane_abort(lane);
    while (rank->lanes) {
        tsi_nccl_lane *lane = rank->lanes;
        rank->lanes = lane->next;
        lane_free(lane);
    }
}

/* All of the process are asked to end before any is waited for: they end together. */
static void finalize_all(const tsi_nccl *nccl)
{
    for (int64_t i = 0; i < nccl->world->local_count; i++)
        for (tsi_nccl_lane *lane = nccl->rank[i].lanes; lane; lane = lane->next) {
            if (lane->state != TSI_LANE_READY) continue;
            (void)lane->device->stream_handle(lane->device, lane->stream);
            (void)nccl->api->finalize(lane->comm);
        }
}

static void lane_close(tsi_nccl_lane *lane, int64_t until_ns)
{
    const tsi_nccl_api *api = lane->rank->nccl->api;
    tsi_nccl_result result = TSI_NCCL_IN_PROGRESS;
    while (lane->state == TSI_LANE_READY && tsi_clock_ns() < until_ns) {
        result = tsi_lane_look(lane);
        if (result != TSI_NCCL_IN_PROGRESS) break;
        (void)nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
    }
    if (result == TSI_NCCL_SUCCESS && lane->state == TSI_LANE_READY) {
        spaces_delist(lane);
        (void)api->destroy(lane->comm);
        lane->comm = NULL;
    }
    tsi_lane_abort(lane);
    lane_free(lane);
}

void tsi_lanes_close(tsi_nccl *nccl, bool aborted)
{
    int64_t limit = tsi_mul_most(nccl->timeout_ms, 1000000);
    int64_t until = tsi_clock_ns() + tsi_min_i64(limit, CLOSE_NS_MAX);
    if (!aborted && nccl->api) finalize_all(nccl);
    for (int64_t i = 0; aborted && i < nccl->world->local_count; i++)
        for (tsi_nccl_lane *lane = nccl->rank[i].lanes; lane; lane = lane->next)
            tsi_lane_abort(lane);
    for (int64_t i = 0; i < nccl->world->local_count; i++)
        while (nccl->rank[i].lanes) {
            tsi_nccl_lane *lane = nccl->rank[i].lanes;
            nccl->rank[i].lanes = lane->next;
            lane_close(lane, until);
        }
}
