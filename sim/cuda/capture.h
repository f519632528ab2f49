// SPDX-License-Identifier: Apache-2.0
// Stream capture: work that is submitted to a capturing stream becomes a graph instead of being executed.
//
// A capture begins on one stream, and spreads to streams that wait for events that were recorded in it. They must have
// come together again when it ends. Calls that would have to wait for work that does not exist, or that silently order
// all streams, are errors and make the capture invalid. Which threads' calls count follows from the capture's mode and
// the thread's.
//
// The state lies in Stream::capture, Stream::capture_tail and Event::capture, guarded by graph_lock. While no stream
// captures, submitting costs one load (captures_active).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/graph.h"

namespace gpumux::sim {

struct Capture {
  std::uint64_t id = 0;
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t thread = 0;  // that began it
  std::shared_ptr<Stream> origin;
  std::shared_ptr<Graph> graph;
  bool into_existing = false;  // cuStreamBeginCaptureToGraph
  std::set<std::shared_ptr<Stream>> streams;
  bool invalid = false;
};

bool captures_active();
// Whether what the stream is given becomes part of a graph.
bool capturing(const std::shared_ptr<Stream>& stream);

cuda::CUresult begin_capture(const std::shared_ptr<Stream>& stream, cuda::CUstreamCaptureMode mode,
                             std::shared_ptr<Graph> into, std::vector<GraphNode*> tail);
// The finished graph, or null and why.
cuda::CUresult end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph);

// Adds the task to the stream's capture. `*captured` says whether there is one. If not, nothing was done, and the task
// may be executed unless the result is an error. (It is one for the legacy stream, while a stream that it would wait
// for is capturing.)
cuda::CUresult capture_task(const std::shared_ptr<Stream>& stream, const Task& task, bool* captured);
cuda::CUresult capture_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
                              bool* captured);
cuda::CUresult capture_wait(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, bool* captured);

// May it be asked whether the stream captures? Not the legacy stream while a capture silences it. With graph_lock held.
cuda::CUresult may_be_asked(const Stream& stream);
// May the stream be waited for or asked? Otherwise its capture is invalid from now on.
cuda::CUresult may_wait_for(const std::shared_ptr<Stream>& stream);
cuda::CUresult may_wait_for(Context& context);
// May an event be waited for or asked? Not one whose last record was captured.
cuda::CUresult may_wait_for(Event& event);
// May the calling thread make a call that could get in a capture's way (allocate, free, and the like)?
cuda::CUresult may_call_unsafe();

// A destroyed stream leaves its capture invalid.
void drop_from_capture(const std::shared_ptr<Stream>& stream);

}  // namespace gpumux::sim
