// SPDX-License-Identifier: Apache-2.0
// Entry points: executable graphs, and stream capture.
#include <algorithm>

#include "sim/cuda/api.h"
#include "sim/cuda/graph_params.h"

namespace gpumux::sim {
namespace {

using cuda::CUgraphNode;
using cuda::CUresult;

CUresult instantiate(const char* entry, cuda::CUgraphExec* out, cuda::CUgraph graph_handle, std::uint64_t flags) {
  return driver_call(entry, [&](Process& process) {
    const auto graph = process.graphs.find(graph_handle);
    if (out == nullptr || graph == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    constexpr std::uint64_t kKnown = cuda::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                     cuda::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                     cuda::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if ((flags & cuda::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) return cuda::CUDA_ERROR_NOT_SUPPORTED;
    if ((flags & ~kKnown) != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(graph_lock());
    if (has_cycle(*graph)) return cuda::CUDA_ERROR_INVALID_VALUE;
    auto exec = std::make_shared<GraphExec>();
    exec->graph = clone(*graph, CopyFor::kInstantiation);
    exec->flags = flags;
    *out = process.graph_execs.add<cuda::CUgraphExec>(std::move(exec));
    return cuda::CUDA_SUCCESS;
  });
}

CUresult instantiate_with_log(const char* entry, cuda::CUgraphExec* out, cuda::CUgraph graph, CUgraphNode* error_node,
                              char* log, std::size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) *log = '\0';
  return instantiate(entry, out, graph, 0);
}

// Instantiated graphs are where they run from the start: an upload only keeps the stream's order.
CUresult upload(const char* entry, bool per_thread, cuda::CUgraphExec handle, cuda::CUstream stream_handle) {
  return stream_call(entry, stream_handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (stream->context()->process().graph_execs.find(handle) == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    return issue(stream, EmptyTask{});
  });
}

CUresult instantiate_with_params(const char* entry, bool per_thread, cuda::CUgraphExec* out, cuda::CUgraph graph,
                                 cuda::CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  const CUresult result = instantiate(entry, out, graph, params->flags);
  params->result_out =
      result == cuda::CUDA_SUCCESS ? cuda::CUDA_GRAPH_INSTANTIATE_SUCCESS : cuda::CUDA_GRAPH_INSTANTIATE_ERROR;
  if (result == cuda::CUDA_SUCCESS && (params->flags & cuda::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
    return upload(entry, per_thread, *out, params->hUploadStream);
  }
  return result;
}

CUresult launch(const char* entry, bool per_thread, cuda::CUgraphExec handle, cuda::CUstream stream_handle) {
  return stream_call(entry, stream_handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    Context& context = *stream->context();
    const auto exec = context.process().graph_execs.find(handle);
    if (exec == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (captures_active()) {
      // A capturing stream gets the graph as a child.
      std::shared_ptr<Graph> child;
      {
        const std::lock_guard lock(graph_lock());
        child = stream->capture == nullptr ? nullptr : clone(*exec->graph, CopyFor::kProgram);
      }
      if (child != nullptr) child->owned_by_node = true;
      bool captured = false;
      const CUresult result =
          capture_task(stream, child == nullptr ? Task(EmptyTask{}) : Task(ChildGraphTask{child}), &captured);
      if (captured || result != cuda::CUDA_SUCCESS) return result;
    }
    Operation operation;
    std::shared_ptr<const Graph> graph;
    std::shared_ptr<Completion> previous;
    {
      const std::lock_guard lock(graph_lock());
      graph = exec->graph;
      previous = exec->last;
    }
    if (previous != nullptr && !previous->done()) operation.after.push_back(std::move(previous));
    operation.run = [graph = std::move(graph)](Worker& worker) { return run_graph(worker, *graph); };
    auto done = context.submit(*stream, std::move(operation));
    const std::lock_guard lock(graph_lock());
    exec->last = std::move(done);
    return cuda::CUDA_SUCCESS;
  });
}

// Changes one node of an executable graph: body(Process&, GraphNode&), in a copy that later launches take.
template <class Body>
CUresult change_exec(const char* entry, cuda::CUgraphExec handle, CUgraphNode node_handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const auto exec = process.graph_execs.find(handle);
    if (exec == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(graph_lock());
    const GraphNode* named = find_node(node_handle);
    if (named == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    auto changed = clone(*exec->graph, CopyFor::kChange);
    GraphNode* node = node_in_clone(*changed, *named);
    if (node == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = body(process, *node); result != cuda::CUDA_SUCCESS) return result;
    exec->graph = std::move(changed);
    return cuda::CUDA_SUCCESS;
  });
}

CUresult replace(GraphNode& node, Task task) {
  if (task.index() != node.task.index()) return cuda::CUDA_ERROR_INVALID_VALUE;
  node.task = std::move(task);
  return cuda::CUDA_SUCCESS;
}

template <class Params, class... More>
CUresult change_exec_described(const char* entry, cuda::CUgraphExec exec, CUgraphNode node_handle, const Params* params,
                               More... more) {
  return change_exec(entry, exec, node_handle, [&](Process& process, GraphNode& node) {
    Task task = EmptyTask{};
    if (params == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = task_of(process, *params, more..., &task); result != cuda::CUDA_SUCCESS) return result;
    return replace(node, std::move(task));
  });
}

template <class EventTask>
CUresult change_exec_event(const char* entry, cuda::CUgraphExec exec, CUgraphNode node_handle,
                           cuda::CUevent event_handle) {
  return change_exec(entry, exec, node_handle, [&](Process& process, GraphNode& node) {
    auto event = process.events.find(event_handle);
    if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    return replace(node, EventTask{std::move(event)});
  });
}

// Do the graphs have the same nodes and edges, in the same order of creation?
cuda::CUgraphExecUpdateResult compare(const Graph& before, const Graph& after) {
  if (before.nodes.size() != after.nodes.size()) return cuda::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::map<const GraphNode*, std::size_t> places;
  for (std::size_t i = 0; i < before.nodes.size(); ++i) {
    places[before.nodes[i].get()] = i;
    places[after.nodes[i].get()] = i;
  }
  for (std::size_t i = 0; i < before.nodes.size(); ++i) {
    const GraphNode& old_node = *before.nodes[i];
    const GraphNode& new_node = *after.nodes[i];
    if (old_node.task.index() != new_node.task.index()) return cuda::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (old_node.before.size() != new_node.before.size()) return cuda::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    std::vector<std::size_t> old_edges;
    std::vector<std::size_t> new_edges;
    for (const GraphNode* node : old_node.before) old_edges.push_back(places[node]);
    for (const GraphNode* node : new_node.before) new_edges.push_back(places[node]);
    std::sort(old_edges.begin(), old_edges.end());
    std::sort(new_edges.begin(), new_edges.end());
    if (old_edges != new_edges) return cuda::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  return cuda::CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult update(const char* entry, cuda::CUgraphExec handle, cuda::CUgraph graph_handle,
                cuda::CUgraphExecUpdateResultInfo* info) {
  return driver_call(entry, [&](Process& process) {
    const auto exec = process.graph_execs.find(handle);
    const auto graph = process.graphs.find(graph_handle);
    if (exec == nullptr || graph == nullptr || info == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(graph_lock());
    *info = {compare(*exec->graph, *graph), nullptr, nullptr};
    if (info->result != cuda::CU_GRAPH_EXEC_UPDATE_SUCCESS) return cuda::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    auto changed = clone(*graph, CopyFor::kInstantiation);
    // The program goes on naming nodes by those of the graph that was instantiated.
    for (std::size_t i = 0; i < changed->nodes.size(); ++i)
      changed->nodes[i]->original = exec->graph->nodes[i]->original;
    exec->graph = std::move(changed);
    return cuda::CUDA_SUCCESS;
  });
}

CUresult begin(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamCaptureMode mode) {
  return stream_call(entry, handle, per_thread,
                     [&](const std::shared_ptr<Stream>& stream) { return begin_capture(stream, mode, nullptr, {}); });
}

CUresult begin_global(const char* entry, bool per_thread, cuda::CUstream handle) {
  return begin(entry, per_thread, handle, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult begin_into(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUgraph graph_handle,
                    const CUgraphNode* dependencies, std::size_t count, cuda::CUstreamCaptureMode mode) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    auto graph = stream->context()->process().graphs.find(graph_handle);
    if (graph == nullptr || (count != 0 && dependencies == nullptr)) return cuda::CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> tail;
    {
      const std::lock_guard lock(graph_lock());
      for (std::size_t i = 0; i < count; ++i) {
        tail.push_back(find_node(dependencies[i]));
        if (tail.back() == nullptr || tail.back()->graph != graph.get()) return cuda::CUDA_ERROR_INVALID_VALUE;
      }
    }
    return begin_capture(stream, mode, std::move(graph), std::move(tail));
  });
}

CUresult end(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUgraph* out) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (out == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    std::shared_ptr<Graph> graph;
    const CUresult result = end_capture(stream, &graph);
    if (graph == nullptr) return result;
    auto& graphs = stream->context()->process().graphs;
    *out = graphs.find(graph.get()) != nullptr ? handle_of<cuda::CUgraph>(graph) : graphs.add<cuda::CUgraph>(graph);
    return result;
  });
}

// The answer stays valid until the thread asks again.
const CUgraphNode* remember(const std::vector<GraphNode*>& nodes) {
  thread_local std::vector<CUgraphNode> answer;
  answer.clear();
  for (GraphNode* node : nodes) answer.push_back(reinterpret_cast<CUgraphNode>(node));
  return answer.data();
}

CUresult info(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamCaptureStatus* status,
              std::uint64_t* id, cuda::CUgraph* graph, const CUgraphNode** dependencies,
              const cuda::CUgraphEdgeData** edges, std::size_t* count) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (status == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    *status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
    if (edges != nullptr) *edges = nullptr;
    const std::lock_guard lock(graph_lock());
    const Capture* capture = stream->capture.get();
    if (capture == nullptr) return may_be_asked(*stream);
    *status = capture->invalid ? cuda::CU_STREAM_CAPTURE_STATUS_INVALIDATED : cuda::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture->invalid) return cuda::CUDA_SUCCESS;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) {
      auto& graphs = stream->context()->process().graphs;
      if (graphs.find(capture->graph.get()) == nullptr) graphs.add<cuda::CUgraph>(capture->graph);
      *graph = handle_of<cuda::CUgraph>(capture->graph);
    }
    if (dependencies != nullptr) *dependencies = remember(stream->capture_tail);
    if (count != nullptr) *count = stream->capture_tail.size();
    return cuda::CUDA_SUCCESS;
  });
}

CUresult short_info(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamCaptureStatus* status,
                    std::uint64_t* id) {
  return info(entry, per_thread, handle, status, id, nullptr, nullptr, nullptr, nullptr);
}

CUresult info_v2(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamCaptureStatus* status,
                 std::uint64_t* id, cuda::CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  return info(entry, per_thread, handle, status, id, graph, dependencies, nullptr, count);
}

CUresult is_capturing(const char* entry, bool per_thread, cuda::CUstream handle, cuda::CUstreamCaptureStatus* status) {
  return short_info(entry, per_thread, handle, status, nullptr);
}

CUresult update_dependencies(const char* entry, bool per_thread, cuda::CUstream handle, CUgraphNode* nodes,
                             std::size_t count, unsigned flags) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    if (flags > cuda::CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && nodes == nullptr))
      return cuda::CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(graph_lock());
    if (stream->capture == nullptr) return cuda::CUDA_ERROR_ILLEGAL_STATE;
    std::vector<GraphNode*> tail;
    if (flags == cuda::CU_STREAM_ADD_CAPTURE_DEPENDENCIES) tail = stream->capture_tail;
    for (std::size_t i = 0; i < count; ++i) {
      GraphNode* node = find_node(nodes[i]);
      if (node == nullptr || node->graph != stream->capture->graph.get()) return cuda::CUDA_ERROR_INVALID_VALUE;
      if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
    }
    stream->capture_tail = std::move(tail);
    return cuda::CUDA_SUCCESS;
  });
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuGraphInstantiate(CUgraphExec* graph_exec, CUgraph graph, CUgraphNode* error_node, char* log_buffer,
                            std::size_t buffer_size) {
  return instantiate_with_log("cuGraphInstantiate", graph_exec, graph, error_node, log_buffer, buffer_size);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* graph_exec, CUgraph graph, CUgraphNode* error_node, char* log_buffer,
                               std::size_t buffer_size) {
  return instantiate_with_log("cuGraphInstantiate_v2", graph_exec, graph, error_node, log_buffer, buffer_size);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* graph_exec, CUgraph graph, unsigned long long flags) {
  return instantiate("cuGraphInstantiateWithFlags", graph_exec, graph, flags);
}
GPUMUX_SIM_STREAM_ENTRY(cuGraphInstantiateWithParams, _ptsz,
                        (CUgraphExec * graph_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params),
                        instantiate_with_params, graph_exec, graph, params)
GPUMUX_SIM_STREAM_ENTRY(cuGraphUpload, _ptsz, (CUgraphExec graph_exec, CUstream stream), upload, graph_exec, stream)
GPUMUX_SIM_STREAM_ENTRY(cuGraphLaunch, _ptsz, (CUgraphExec graph_exec, CUstream stream), sim::launch, graph_exec,
                        stream)

CUresult cuGraphExecDestroy(CUgraphExec graph_exec) {
  return driver_call("cuGraphExecDestroy", [&](Process& process) {
    // A launch that is under way keeps what it runs.
    return process.graph_execs.remove(graph_exec) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec graph_exec, std::uint64_t* flags) {
  return driver_call("cuGraphExecGetFlags", [&](Process& process) {
    const auto exec = process.graph_execs.find(graph_exec);
    if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecUpdate(CUgraphExec graph_exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* update_result) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = update("cuGraphExecUpdate", graph_exec, graph, &info);
  if (error_node != nullptr) *error_node = nullptr;
  if (update_result != nullptr) *update_result = info.result;
  return result;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec graph_exec, CUgraph graph, CUgraphExecUpdateResultInfo* result_info) {
  return update("cuGraphExecUpdate_v2", graph_exec, graph, result_info);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph_exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return change_exec_described("cuGraphExecKernelNodeSetParams", graph_exec, node, params);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph_exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  return change_exec_described("cuGraphExecKernelNodeSetParams_v2", graph_exec, node, params);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec graph_exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                        CUcontext context) {
  return change_exec_described("cuGraphExecMemcpyNodeSetParams", graph_exec, node, params, context);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec graph_exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext context) {
  return change_exec_described("cuGraphExecMemsetNodeSetParams", graph_exec, node, params, context);
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec graph_exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return change_exec_described("cuGraphExecHostNodeSetParams", graph_exec, node, params);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec graph_exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return change_exec_described("cuGraphExecBatchMemOpNodeSetParams", graph_exec, node, params);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec graph_exec, CUgraphNode node, CUgraphNodeParams* params) {
  return change_exec_described("cuGraphExecNodeSetParams", graph_exec, node, params);
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec graph_exec, CUgraphNode node, CUevent event) {
  return change_exec_event<EventRecordTask>("cuGraphExecEventRecordNodeSetEvent", graph_exec, node, event);
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec graph_exec, CUgraphNode node, CUevent event) {
  return change_exec_event<EventWaitTask>("cuGraphExecEventWaitNodeSetEvent", graph_exec, node, event);
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec graph_exec, CUgraphNode node_handle, CUgraph child_graph) {
  return change_exec(
      "cuGraphExecChildGraphNodeSetParams", graph_exec, node_handle, [&](Process& process, GraphNode& node) {
        const auto child = process.graphs.find(child_graph);
        auto* task = std::get_if<ChildGraphTask>(&node.task);
        if (child == nullptr || task == nullptr || compare(*task->graph, *child) != CU_GRAPH_EXEC_UPDATE_SUCCESS)
          return CUDA_ERROR_INVALID_VALUE;
        return replace(node, ChildGraphTask{clone(*child, CopyFor::kInstantiation)});
      });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec graph_exec, CUgraphNode node_handle, unsigned int is_enabled) {
  return change_exec("cuGraphNodeSetEnabled", graph_exec, node_handle, [&](Process&, GraphNode& node) {
    const CUgraphNodeType type = type_of(node.task);
    if (type != CU_GRAPH_NODE_TYPE_KERNEL && type != CU_GRAPH_NODE_TYPE_MEMSET && type != CU_GRAPH_NODE_TYPE_MEMCPY) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    node.enabled = is_enabled != 0;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphNodeGetEnabled(CUgraphExec graph_exec, CUgraphNode node_handle, unsigned int* is_enabled) {
  return change_exec("cuGraphNodeGetEnabled", graph_exec, node_handle, [&](Process&, GraphNode& node) {
    if (is_enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *is_enabled = node.enabled ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

GPUMUX_SIM_STREAM_ENTRY(cuStreamBeginCapture, _ptsz, (CUstream stream), begin_global, stream)
GPUMUX_SIM_STREAM_ENTRY(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode), begin, stream,
                        mode)
GPUMUX_SIM_STREAM_ENTRY(cuStreamBeginCaptureToGraph, _ptsz,
                        (CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*,
                         std::size_t count, CUstreamCaptureMode mode),
                        begin_into, stream, graph, dependencies, count, mode)
GPUMUX_SIM_STREAM_ENTRY(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph* graph), end, stream, graph)
GPUMUX_SIM_STREAM_ENTRY(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus* status), is_capturing,
                        stream, status)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetCaptureInfo, _ptsz,
                        (CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id), short_info, stream, status,
                        id)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetCaptureInfo_v2, _ptsz,
                        (CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id, CUgraph* graph,
                         const CUgraphNode** dependencies, std::size_t* count),
                        info_v2, stream, status, id, graph, dependencies, count)
GPUMUX_SIM_STREAM_ENTRY(cuStreamGetCaptureInfo_v3, _ptsz,
                        (CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id, CUgraph* graph,
                         const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count),
                        sim::info, stream, status, id, graph, dependencies, edges, count)
GPUMUX_SIM_STREAM_ENTRY(cuStreamUpdateCaptureDependencies, _ptsz,
                        (CUstream stream, CUgraphNode* nodes, std::size_t count, unsigned int flags),
                        update_dependencies, stream, nodes, count, flags)
GPUMUX_SIM_STREAM_ENTRY(cuStreamUpdateCaptureDependencies_v2, _ptsz,
                        (CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, std::size_t count,
                         unsigned int flags),
                        update_dependencies, stream, nodes, count, flags)

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return driver_call("cuThreadExchangeStreamCaptureMode", [&](Process&) {
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_state().capture_mode);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
}  // namespace gpumux::cuda
