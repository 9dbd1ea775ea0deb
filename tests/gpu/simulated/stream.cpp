/* SPDX-License-Identifier: Apache-2.0 */
/* stream.cpp - queues of work that run late, and graphs (stream.h). */
#include "stream.h"

#include <time.h>

CUresult stream_fault = CUDA_SUCCESS;
std::set<CUstream_st *> streams;

namespace
{

enum { WAITING_MOST = 512 };

double said; /* what work said that it took */

double seconds_now()
{
    timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return said + (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

CUresult put_node(CUstream_st *stream, const item &it)
{
    CUgraph_st &graph = *stream->captured->graph;
    if (stream->captured->ended) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!it.work) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION; /* a wait for what is outside */
    graph.nodes.push_back({ it.work, { stream->last.begin(), stream->last.end() } });
    stream->last = { graph.nodes.size() - 1 };
    return CUDA_SUCCESS;
}

} // namespace

void simulated_takes(double seconds)
{
    said += seconds;
}

/* ---- streams --------------------------------------------------------------------------------- */

CUresult stream_put(CUstream_st *stream, item it)
{
    if (stream_fault != CUDA_SUCCESS) return stream_fault;
    if (stream->captured) return put_node(stream, it);
    stream->waiting.push_back(std::move(it));
    while (stream->waiting.size() > WAITING_MOST)
        stream_step(stream);
    return CUDA_SUCCESS;
}

void stream_step(CUstream_st *stream)
{
    item it = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    if (it.behind) stream_run_to(it.behind);
    if (it.work && stream_fault == CUDA_SUCCESS) stream_fault = it.work();
    if (!it.reached) return;
    it.reached->passed = true;
    it.reached->seconds = seconds_now();
}

void stream_run(CUstream_st *stream)
{
    while (!stream->waiting.empty())
        stream_step(stream);
}

/* A moment is recorded before anything waits for it, so this ends. */
void stream_run_to(const std::shared_ptr<moment> &to)
{
    while (!to->passed)
        stream_step(to->stream);
}

void stream_run_all()
{
    for (CUstream_st *stream : streams)
        stream_run(stream);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

CUresult capture_begin(CUstream_st *stream)
{
    if (stream->captured) return CUDA_ERROR_ILLEGAL_STATE;
    stream->captured = std::make_shared<capture>();
    stream->captured->graph = std::make_shared<CUgraph_st>();
    stream->captured->origin = stream;
    stream->captured->ended = false;
    stream->last.clear();
    return CUDA_SUCCESS;
}

CUresult captures_end_early()
{
    CUresult result = CUDA_SUCCESS;
    for (CUstream_st *stream : streams) {
        if (!stream->captured) continue;
        stream->captured->ended = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult capture_join(CUstream_st *stream, const CUevent_st *event)
{
    if (stream->captured && stream->captured != event->captured)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (!stream->captured) stream->last.clear();
    stream->captured = event->captured;
    stream->last.insert(event->last.begin(), event->last.end());
    return CUDA_SUCCESS;
}

CUresult capture_end(CUstream_st *stream, CUgraph_st **graph)
{
    std::shared_ptr<capture> captured = stream->captured;
    *graph = nullptr;
    if (!captured || captured->origin != stream) return CUDA_ERROR_ILLEGAL_STATE;
    const std::vector<node> &nodes = captured->graph->nodes;
    std::vector<bool> waited(nodes.size(), false);
    for (size_t last : stream->last)
        waited[last] = true;
    size_t count = 0;
    for (size_t i = nodes.size(); i-- > 0; count += waited[i])
        for (size_t before : nodes[i].behind)
            if (waited[i]) waited[before] = true;
    for (CUstream_st *other : streams)
        if (other->captured == captured) other->captured = nullptr;
    if (captured->ended) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (count < nodes.size()) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = new CUgraph_st(*captured->graph);
    return CUDA_SUCCESS;
}

/* Of the nodes that may run the one that was captured last. */
CUresult graph_run(const CUgraph_st &graph)
{
    std::vector<size_t> left(graph.nodes.size());
    std::vector<std::vector<size_t>> next(graph.nodes.size());
    std::set<size_t> ready;
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        left[i] = graph.nodes[i].behind.size();
        for (size_t before : graph.nodes[i].behind)
            next[before].push_back(i);
        if (left[i] == 0) ready.insert(i);
    }
    while (!ready.empty()) {
        size_t i = *ready.rbegin();
        ready.erase(i);
        CUresult result = graph.nodes[i].work();
        if (result != CUDA_SUCCESS) return result;
        for (size_t behind : next[i])
            if (--left[behind] == 0) ready.insert(behind);
    }
    return CUDA_SUCCESS;
}
