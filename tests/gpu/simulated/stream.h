/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - work in the order of streams, of events, and of graphs.
 *
 *   enqueue --> waiting --(somebody waits for it)--> done
 *
 * INV: work of a stream runs as late as the driver may run it: when somebody waits for it, asks
 * for it again and again, or WAITING_MOST others are ahead of it. So what a caller takes for done
 * without a wait is not done. The nodes of a graph run in an order of their dependencies that is as
 * unlike the order of their capture as it can be. The caller has the driver's lock. */
#ifndef TESTS_GPU_SIMULATED_STREAM_H
#define TESTS_GPU_SIMULATED_STREAM_H

#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "driver.h"

struct moment { /* a place in a stream that an event was recorded at */
    CUstream_st *stream;
    bool passed;
    double seconds; /* when it was passed */
};

struct node {
    simulated_work work;
    std::vector<size_t> behind;
};

struct CUgraph_st {
    std::vector<node> nodes;
    std::vector<std::shared_ptr<void>> memory; /* that its nodes take: goes with the last copy */
};
struct CUgraphExec_st {
    std::shared_ptr<CUgraph_st> graph;
};

struct capture {
    std::shared_ptr<CUgraph_st> graph;
    CUstream_st *origin;
    bool ended; /* by a call that nobody may make while a stream captures */
};

struct item {
    simulated_work work;
    std::shared_ptr<moment> behind;  /* not before this one is passed */
    std::shared_ptr<moment> reached; /* passed when this item is done */
};

struct CUstream_st {
    std::deque<item> waiting;
    std::shared_ptr<capture> captured; /* NULL: its work runs */
    std::set<size_t> last;             /* nodes that the next one is behind */
};

struct CUevent_st {
    std::shared_ptr<moment> recorded; /* NULL: never, or in a capture */
    std::shared_ptr<capture> captured;
    std::set<size_t> last;
};

extern CUresult stream_fault; /* what ended the GPU; success: nothing */
extern std::set<CUstream_st *> streams;

CUresult stream_put(CUstream_st *stream, item it);
void stream_step(CUstream_st *stream);               /* one item, with all that it is behind */
void stream_run(CUstream_st *stream);                /* all of them */
void stream_run_to(const std::shared_ptr<moment> &); /* until it is passed */
void stream_run_all();

CUresult capture_begin(CUstream_st *stream);
/* Of all streams, by a wait for everything; success: no stream captures. */
CUresult captures_end_early();
/* NULL in *graph: something is captured that the stream does not wait for, or nothing was begun. */
CUresult capture_end(CUstream_st *stream, CUgraph_st **graph);
/* The stream captures, too, if the event was recorded in a capture. */
CUresult capture_join(CUstream_st *stream, const CUevent_st *event);
CUresult graph_run(const CUgraph_st &graph);

#endif
