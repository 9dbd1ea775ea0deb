/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c - what a device does in a step, as graphs.
 *
 *   recorded   kernels, copies | a function of the host | kernels | ...
 *   kept       graph           | the function           | graph   | ...
 *
 * A graph is launched when it ends, so the step is done, in its order, when it has been recorded.
 *
 * INV: while a function of the host runs, nothing is captured: it finds the queue as it always is.
 */
#include "device/capture.h"

#include "base/alloc.h"
#include "base/error.h"
#include "device/moments.h"

typedef struct kept_graph {
    const tsi_rank_device *where;
    tsi_device_graph *graph;
} kept_graph;

bool tsi_device_captures(const tsi_device *device)
{
    return device->capture_begin && device->capture_end && device->graph_launch;
}

static ts_status graph_run(void *context)
{
    const kept_graph *k = context;
    ts_rank *rank = tsi_rank_current();
    tsi_device_event *mark = tsi_moment_mark(rank, k->where->queue);
    ts_status status = k->where->device->graph_launch(k->where->device, k->graph, k->where->queue);
    tsi_event event = { .kind_name = "graph", .name = "", .where = "" };
    tsi_moment_passed(rank, k->where->queue, mark, &event);
    return status;
}

bool tsi_capture_is_graph(const tsi_kept_work *work)
{
    return work->run == graph_run;
}

static void graph_drop(void *context)
{
    kept_graph *k = context;
    k->where->device->graph_destroy(k->where->device, k->graph);
    tsi_free(k);
}

/* The graph of what was captured; *out NULL: nothing was. */
static ts_status take_graph(const tsi_rank_device *where, kept_graph **out)
{
    kept_graph *k = tsi_calloc(1, sizeof *k);
    *out = NULL;
    tsi_device_graph *graph = NULL;
    ts_status status = where->device->capture_end(where->device, where->queue, &graph);
    if (status == TS_OK && !k) status = tsi_fail_memory("a graph of a step", sizeof *k);
    if (status != TS_OK || !graph) {
        if (graph) where->device->graph_destroy(where->device, graph);
        tsi_free(k);
        return status;
    }
    *k = (kept_graph){ where, graph };
    *out = k;
    return TS_OK;
}

static ts_status turn(tsi_kept *kept, bool on)
{
    const tsi_rank_device *where = kept->turns;
    kept_graph *k;
    if (on) return where->device->capture_begin(where->device, where->queue);
    TSI_TRY(take_graph(where, &k));
    if (!k) return TS_OK;
    ts_status status = graph_run(k);
    if (status == TS_OK)
        return tsi_keep_done(tsi_rank_current(), (tsi_kept_work){ graph_run, k, graph_drop, NULL });
    graph_drop(k);
    return status;
}

ts_status tsi_capture_begin(tsi_kept *kept, const tsi_rank_device *where)
{
    kept->turns = (void *)(uintptr_t)where;
    TSI_TRY(turn(kept, true));
    kept->turn = turn;
    return TS_OK;
}

ts_status tsi_capture_end(tsi_kept *kept, ts_status status)
{
    kept_graph *k = NULL;
    if (status == TS_OK)
        status = turn(kept, false);
    else if (take_graph(kept->turns, &k) == TS_OK && k)
        graph_drop(k);
    kept->turn = NULL;
    return status;
}
