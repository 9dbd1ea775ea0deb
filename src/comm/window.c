/* SPDX-License-Identifier: Apache-2.0 */
/* window.c - see window.h. */
#include "comm/window.h"

#include "base/alloc.h"
#include "base/error.h"
#include "comm/issue.h"
#include "tessera/symmetric.h"

enum { LEAST = 1 << 16, LINE = 64 };

struct tsi_window {
    tsi_window *next; /* of the rank */
    const tsi_team *team;
    ts_symmetric *memory; /* two halves; NULL: not yet, or it cannot be had */
    size_t half;
    uint64_t epoch, uses; /* of this epoch */
    bool refused;
};

static tsi_window *find(const ts_group *group)
{
    tsi_window *w = group->comm->windows;
    while (w && w->team != group->team)
        w = w->next;
    return w;
}

bool tsi_group_has_window(const ts_group *group)
{
    const ts_world *world = group->comm->rank->world;
    const tsi_engine *engine = tsi_comm_engine(world);
    if (engine->no_data || group->comm->no_loans || group->size < 2) return false;
    if (world->local_count == world->rank_count) return false;
    const tsi_window *w = group->team ? find(group) : NULL;
    return !w || !w->refused;
}

static ts_status find_or_make(ts_group *group, tsi_window **out)
{
    tsi_comm_rank *comm = group->comm;
    TSI_TRY(tsi_group_bind(group));
    *out = find(group);
    if (*out) return TS_OK;
    *out = tsi_calloc(1, sizeof **out);
    if (!*out) return tsi_fail_memory("a window", sizeof **out);
    **out = (tsi_window){ .next = comm->windows, .team = group->team, .epoch = comm->epoch };
    comm->windows = *out;
    return TS_OK;
}

static void begin_anew(tsi_window *w, uint64_t epoch)
{
    ts_symmetric_release(w->memory);
    w->memory = NULL;
    w->half = 0;
    w->uses = 0;
    w->epoch = epoch;
}

/* [coll] Nobody reads what was there: all have come to this. */
static ts_status grow(ts_group *group, tsi_window *w, size_t bytes)
{
    size_t half = LEAST;
    while (half < bytes)
        half *= 2;
    begin_anew(w, w->epoch);
    w->memory =
        (ts_symmetric_alloc)(group, 2 * half,
                             TS_OPTIONS(ts_symmetric_options, .name = "a window", .channels = 1));
    if (w->memory) {
        w->half = half;
        return TS_OK;
    }
    tsi_error_record *error = &group->comm->rank->error;
    if (error->error.status != TS_ERR_MISSING) return ts_rank_status(group->comm->rank);
    tsi_error_clear(error); /* all members have this answer, and go another way */
    w->refused = true;
    return TS_OK;
}

ts_status tsi_group_window(ts_group *group, size_t bytes, tsi_window **out)
{
    tsi_window *w = NULL;
    *out = NULL;
    TSI_TRY(find_or_make(group, &w));
    if (w->epoch != group->comm->epoch) begin_anew(w, group->comm->epoch);
    if (!w->refused && (!w->memory || w->half < bytes)) TSI_TRY(grow(group, w, bytes));
    if (w->refused) return TS_OK;
    w->uses++;
    *out = w;
    return TS_OK;
}

char *tsi_window_of(const tsi_window *w, int64_t member)
{
    return (char *)ts_symmetric_data(w->memory, member) + w->uses % 2 * w->half;
}

void tsi_windows_release(tsi_comm_rank *comm)
{
    while (comm->windows) {
        tsi_window *w = comm->windows;
        comm->windows = w->next;
        ts_symmetric_release(w->memory);
        tsi_free(w);
    }
}

ts_status tsi_group_meet(ts_group *group, ts_dtype dtype, int64_t bytes,
                         const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_EXCHANGE, options));
    if (call.skip) return TS_OK;
    call.local.base.print.dtype = (int32_t)dtype;
    call.local.base.bytes_read = bytes;
    return tsi_call_issue(&call);
}
