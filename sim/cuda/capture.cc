// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/capture.h"

#include <algorithm>
#include <atomic>

#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

std::atomic<std::uint64_t> next_capture_id{1};
std::atomic<std::uint32_t> active{0};

// The captures that began and have not ended, invalid ones too. Guarded by graph_lock.
std::set<std::shared_ptr<Capture>>& captures() {
  static auto* set = new std::set<std::shared_ptr<Capture>>;
  return *set;
}

void dissolve(const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : capture->streams) {
    stream->capture = nullptr;
    stream->capture_tail.clear();
  }
  capture->streams.clear();
  captures().erase(capture);
  active.fetch_sub(1);
}

void add_to_tail(Stream& stream, const std::vector<GraphNode*>& nodes) {
  for (GraphNode* node : nodes) {
    auto& tail = stream.capture_tail;
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
}

// Calls `found` with each capture that silences a stream, which is its context's legacy one. Using that orders it with
// all blocking streams of the context; a capturing one cannot be ordered so.
template <class Found>
CUresult find_silencing(const Stream& stream, Found found) {
  if (&stream != stream.context()->legacy_stream().get()) return cuda::CUDA_SUCCESS;
  CUresult result = cuda::CUDA_SUCCESS;
  for (const auto& capture : captures()) {
    for (const auto& other : capture->streams) {
      if (other->context() != stream.context() || !other->blocking()) continue;
      found(*capture);
      result = cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return result;
}

CUresult check_legacy(const Stream& stream) {
  return find_silencing(stream, [](Capture& capture) { capture.invalid = true; });
}

// Everything that leads to a node that no end of the origin stream comes after.
bool is_joined(const Capture& capture) {
  std::set<const GraphNode*> reached;
  std::vector<const GraphNode*> todo(capture.origin->capture_tail.begin(), capture.origin->capture_tail.end());
  while (!todo.empty()) {
    const GraphNode* node = todo.back();
    todo.pop_back();
    if (!reached.insert(node).second) continue;
    todo.insert(todo.end(), node->before.begin(), node->before.end());
  }
  for (const auto& stream : capture.streams) {
    if (stream == capture.origin) continue;
    for (const GraphNode* node : stream->capture_tail) {
      if (reached.count(node) == 0) return false;
    }
  }
  return true;
}

}  // namespace

bool captures_active() { return active.load(std::memory_order_acquire) != 0; }  // pairs with begin_capture and dissolve

bool capturing(const std::shared_ptr<Stream>& stream) {
  if (!captures_active()) return false;
  const std::lock_guard lock(graph_lock());
  return stream->capture != nullptr;
}

CUresult begin_capture(const std::shared_ptr<Stream>& stream, cuda::CUstreamCaptureMode mode,
                       std::shared_ptr<Graph> into, std::vector<GraphNode*> tail) {
  if (mode > cuda::CU_STREAM_CAPTURE_MODE_RELAXED) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (stream == stream->context()->legacy_stream()) return cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard lock(graph_lock());
  if (stream->capture != nullptr) return cuda::CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_capture_id.fetch_add(1);
  capture->mode = mode;
  capture->thread = thread_state().id;
  capture->origin = stream;
  capture->into_existing = into != nullptr;
  capture->graph = into != nullptr ? std::move(into) : std::make_shared<Graph>();
  capture->streams.insert(stream);
  stream->capture = capture;
  stream->capture_tail = std::move(tail);
  captures().insert(std::move(capture));
  active.fetch_add(1);
  return cuda::CUDA_SUCCESS;
}

CUresult end_capture(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph) {
  *graph = nullptr;
  const std::lock_guard lock(graph_lock());
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return cuda::CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    capture->invalid = true;
    return cuda::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != cuda::CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_state().id) {
    capture->invalid = true;
    return cuda::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = cuda::CUDA_SUCCESS;
  if (capture->invalid) {
    result = cuda::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!is_joined(*capture)) {
    result = cuda::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  if (result == cuda::CUDA_SUCCESS) {
    *graph = capture->graph;
  } else if (!capture->into_existing) {
    forget_nodes(*capture->graph);
  }
  dissolve(capture);
  return result;
}

CUresult capture_task(const std::shared_ptr<Stream>& stream, const Task& task, bool* captured) {
  *captured = false;
  const std::lock_guard lock(graph_lock());
  const std::shared_ptr<Capture>& capture = stream->capture;
  if (capture == nullptr) return check_legacy(*stream);
  *captured = true;
  if (capture->invalid) return cuda::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream->capture_tail = {add_node(*capture->graph, task, stream->capture_tail)};
  return cuda::CUDA_SUCCESS;
}

CUresult capture_record(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, bool* captured) {
  *captured = false;
  const std::lock_guard lock(graph_lock());
  const std::shared_ptr<Capture>& capture = stream->capture;
  const std::lock_guard event_lock(event->mutex);
  if (capture == nullptr) {
    event->capture = nullptr;
    event->capture_nodes.clear();
    return check_legacy(*stream);
  }
  *captured = true;
  if (capture->invalid) return cuda::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event->capture = capture;
  event->capture_nodes = stream->capture_tail;
  return cuda::CUDA_SUCCESS;
}

CUresult capture_wait(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, bool* captured) {
  *captured = false;
  const std::lock_guard lock(graph_lock());
  const std::lock_guard event_lock(event->mutex);
  const std::shared_ptr<Capture> from = event->capture;
  const bool from_active = from != nullptr && captures().count(from) != 0;
  if (stream->capture == nullptr) {
    // An event of a capture that has ended stands for no work at all.
    if (!from_active) return check_legacy(*stream);
    *captured = true;
    if (from->invalid) return cuda::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream == stream->context()->legacy_stream()) {
      from->invalid = true;
      return cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = from;
    stream->capture_tail.clear();
    from->streams.insert(stream);
    add_to_tail(*stream, event->capture_nodes);
    return cuda::CUDA_SUCCESS;
  }
  *captured = true;
  if (stream->capture->invalid) return cuda::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!from_active) {
    // Work outside of the capture would have to be waited for.
    stream->capture->invalid = true;
    return cuda::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (from != stream->capture) {
    from->invalid = true;
    stream->capture->invalid = true;
    return cuda::CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  add_to_tail(*stream, event->capture_nodes);
  return cuda::CUDA_SUCCESS;
}

CUresult may_be_asked(const Stream& stream) {
  return find_silencing(stream, [](const Capture&) {});
}

CUresult may_wait_for(const std::shared_ptr<Stream>& stream) {
  if (!captures_active()) return cuda::CUDA_SUCCESS;
  const std::lock_guard lock(graph_lock());
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return check_legacy(*stream);
}

CUresult may_wait_for(Context& context) {
  if (!captures_active()) return cuda::CUDA_SUCCESS;
  const std::lock_guard lock(graph_lock());
  CUresult result = cuda::CUDA_SUCCESS;
  for (const auto& capture : captures()) {
    for (const auto& stream : capture->streams) {
      if (stream->context().get() != &context) continue;
      capture->invalid = true;
      result = cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult may_wait_for(Event& event) {
  if (!captures_active()) return cuda::CUDA_SUCCESS;
  const std::lock_guard lock(graph_lock());
  const std::lock_guard event_lock(event.mutex);
  if (event.capture == nullptr) return cuda::CUDA_SUCCESS;
  event.capture->invalid = true;
  return cuda::CUDA_ERROR_CAPTURED_EVENT;
}

CUresult may_call_unsafe() {
  if (!captures_active()) return cuda::CUDA_SUCCESS;
  const ThreadState& thread = thread_state();
  if (thread.capture_mode == cuda::CU_STREAM_CAPTURE_MODE_RELAXED) return cuda::CUDA_SUCCESS;
  const std::lock_guard lock(graph_lock());
  CUresult result = cuda::CUDA_SUCCESS;
  for (const auto& capture : captures()) {
    const bool own = capture->thread == thread.id && capture->mode != cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = capture->mode == cuda::CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        thread.capture_mode == cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->invalid = true;
    result = cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

void drop_from_capture(const std::shared_ptr<Stream>& stream) {
  if (!captures_active()) return;
  const std::lock_guard lock(graph_lock());
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return;
  capture->invalid = true;
  capture->streams.erase(stream);
  stream->capture = nullptr;
  stream->capture_tail.clear();
  if (capture->origin == stream) dissolve(capture);
}

}  // namespace gpumux::sim
