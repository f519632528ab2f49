// SPDX-License-Identifier: Apache-2.0
// Entry points: building graphs. Nothing executes here, and no context is asked whether it is whole.
#include <algorithm>
#include <cstring>

#include "sim/cuda/api.h"
#include "sim/cuda/graph_params.h"

namespace gpumux::sim {
namespace {

using cuda::CUgraphNode;
using cuda::CUresult;

CUgraphNode handle(const GraphNode* node) { return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(node)); }

// body(Process&, Graph&), under the graphs' lock
template <class Body>
CUresult graph_call(const char* entry, cuda::CUgraph graph_handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const auto graph = process.graphs.find(graph_handle);
    if (graph == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(graph_lock());
    return static_cast<CUresult>(body(process, *graph));
  });
}

// body(Process&, GraphNode&), under the graphs' lock
template <class Body>
CUresult node_call(const char* entry, CUgraphNode node_handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const std::lock_guard lock(graph_lock());
    GraphNode* node = find_node(node_handle);
    if (node == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    return static_cast<CUresult>(body(process, *node));
  });
}

// body(SomeTask&): a node of that kind
template <class SomeTask, class Body>
CUresult task_call(const char* entry, CUgraphNode node_handle, const void* in_or_out, Body body) {
  return node_call(entry, node_handle, [&](Process& process, GraphNode& node) {
    if (in_or_out == nullptr || !std::holds_alternative<SomeTask>(node.task)) return cuda::CUDA_ERROR_INVALID_VALUE;
    return static_cast<CUresult>(body(process, node));
  });
}

CUresult nodes_of(const Graph& graph, const CUgraphNode* handles, std::size_t count, std::vector<GraphNode*>* nodes) {
  if (count != 0 && handles == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode* node = find_node(handles[i]);
    if (node == nullptr || node->graph != &graph) return cuda::CUDA_ERROR_INVALID_VALUE;
    nodes->push_back(node);
  }
  return cuda::CUDA_SUCCESS;
}

// Adds a node; `make(Process&, Task*)` makes what it does.
template <class Make>
CUresult add(const char* entry, CUgraphNode* out, cuda::CUgraph graph_handle, const CUgraphNode* dependencies,
             std::size_t count, Make make) {
  return graph_call(entry, graph_handle, [&](Process& process, Graph& graph) {
    if (out == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> before;
    if (const CUresult result = nodes_of(graph, dependencies, count, &before); result != cuda::CUDA_SUCCESS)
      return result;
    Task task = EmptyTask{};
    if (const CUresult result = make(process, &task); result != cuda::CUDA_SUCCESS) return result;
    *out = handle(add_node(graph, std::move(task), before));
    return cuda::CUDA_SUCCESS;
  });
}

template <class Params, class... More>
CUresult add_described(const char* entry, CUgraphNode* out, cuda::CUgraph graph, const CUgraphNode* dependencies,
                       std::size_t count, const Params* params, More... more) {
  return add(entry, out, graph, dependencies, count, [&](Process& process, Task* task) {
    return params == nullptr ? cuda::CUDA_ERROR_INVALID_VALUE : task_of(process, *params, more..., task);
  });
}

template <class EventTask>
CUresult add_event_node(const char* entry, CUgraphNode* out, cuda::CUgraph graph, const CUgraphNode* dependencies,
                        std::size_t count, cuda::CUevent event_handle) {
  return add(entry, out, graph, dependencies, count, [&](Process& process, Task* task) {
    auto event = process.events.find(event_handle);
    if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    *task = EventTask{std::move(event)};
    return cuda::CUDA_SUCCESS;
  });
}

// Replaces what a node does by something of the same kind.
template <class Make>
CUresult change(const char* entry, CUgraphNode node_handle, Make make) {
  return node_call(entry, node_handle, [&](Process& process, GraphNode& node) {
    Task task = EmptyTask{};
    if (const CUresult result = make(process, node, &task); result != cuda::CUDA_SUCCESS) return result;
    if (task.index() != node.task.index()) return cuda::CUDA_ERROR_INVALID_VALUE;
    node.task = std::move(task);
    return cuda::CUDA_SUCCESS;
  });
}

// The API's way with lists: without room it says how many there are; with room it fills in and says how many it was.
template <class Item>
void put_list(const std::vector<Item>& items, Item* out, std::size_t* count) {
  if (out == nullptr) {
    *count = items.size();
    return;
  }
  const std::size_t room = *count;
  for (std::size_t i = 0; i < room; ++i) out[i] = i < items.size() ? items[i] : Item{};
  *count = std::min(room, items.size());
}

CUresult put_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, std::size_t* count) {
  if (count == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> handles;
  for (const GraphNode* node : nodes) handles.push_back(handle(node));
  put_list(handles, out, count);
  return cuda::CUDA_SUCCESS;
}

void clear_edge_data(cuda::CUgraphEdgeData* data, const std::size_t* count) {
  if (data != nullptr && count != nullptr) std::fill_n(data, *count, cuda::CUgraphEdgeData{});
}

CUresult get_nodes(const char* entry, cuda::CUgraph graph_handle, CUgraphNode* nodes, std::size_t* count,
                   bool roots_only) {
  return graph_call(entry, graph_handle, [&](Process&, Graph& graph) {
    std::vector<GraphNode*> found;
    for (const auto& node : graph.nodes) {
      if (!roots_only || node->before.empty()) found.push_back(node.get());
    }
    return put_nodes(found, nodes, count);
  });
}

CUresult get_edges(const char* entry, cuda::CUgraph graph_handle, CUgraphNode* from, CUgraphNode* to,
                   cuda::CUgraphEdgeData* data, std::size_t* count) {
  return graph_call(entry, graph_handle, [&](Process&, Graph& graph) {
    if (count == nullptr || (from == nullptr) != (to == nullptr)) return cuda::CUDA_ERROR_INVALID_VALUE;
    std::vector<CUgraphNode> sources;
    std::vector<CUgraphNode> targets;
    for (const auto& node : graph.nodes) {
      for (const GraphNode* earlier : node->before) {
        sources.push_back(handle(earlier));
        targets.push_back(handle(node.get()));
      }
    }
    std::size_t room = *count;
    put_list(sources, from, &room);
    put_list(targets, to, count);
    clear_edge_data(data, from == nullptr ? nullptr : count);
    return cuda::CUDA_SUCCESS;
  });
}

CUresult change_edges(const char* entry, cuda::CUgraph graph_handle, const CUgraphNode* from, const CUgraphNode* to,
                      std::size_t count, bool remove) {
  return graph_call(entry, graph_handle, [&](Process&, Graph& graph) {
    std::vector<GraphNode*> sources;
    std::vector<GraphNode*> targets;
    if (const CUresult result = nodes_of(graph, from, count, &sources); result != cuda::CUDA_SUCCESS) return result;
    if (const CUresult result = nodes_of(graph, to, count, &targets); result != cuda::CUDA_SUCCESS) return result;
    for (std::size_t i = 0; i < count; ++i) {
      if (sources[i] == targets[i]) return cuda::CUDA_ERROR_INVALID_VALUE;
      if (!remove) add_edge(*sources[i], *targets[i]);
      if (remove && !remove_edge(*sources[i], *targets[i])) return cuda::CUDA_ERROR_INVALID_VALUE;
    }
    return cuda::CUDA_SUCCESS;
  });
}

template <class Params>
CUresult get_kernel_params(const char* entry, CUgraphNode node_handle, Params* params) {
  return task_call<KernelTask>(entry, node_handle, params, [&](Process&, GraphNode& node) {
    const cuda::CUDA_KERNEL_NODE_PARAMS whole = kernel_params_of(node);
    // The older structure is the beginning of the newer one.
    std::memcpy(params, &whole, sizeof *params);
    return cuda::CUDA_SUCCESS;
  });
}

template <class Params, class... More>
CUresult change_described(const char* entry, CUgraphNode node, const Params* params, More... more) {
  return change(entry, node, [&](Process& process, GraphNode&, Task* task) {
    return params == nullptr ? cuda::CUDA_ERROR_INVALID_VALUE : task_of(process, *params, more..., task);
  });
}

template <class EventTask>
CUresult get_event(const char* entry, CUgraphNode node_handle, cuda::CUevent* event) {
  return task_call<EventTask>(entry, node_handle, event, [&](Process&, GraphNode& node) {
    *event = handle_of<cuda::CUevent>(std::get<EventTask>(node.task).event);
    return cuda::CUDA_SUCCESS;
  });
}

template <class EventTask>
CUresult set_event(const char* entry, CUgraphNode node_handle, cuda::CUevent handle) {
  return change(entry, node_handle, [&](Process& process, GraphNode&, Task* task) {
    auto event = process.events.find(handle);
    if (event == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    *task = EventTask{std::move(event)};
    return cuda::CUDA_SUCCESS;
  });
}

// The context in which a copy or fill node was made, for a change that names none.
cuda::CUcontext context_handle(const GraphNode& node) {
  if (const auto* copy = std::get_if<CopyTask>(&node.task)) return handle_of<cuda::CUcontext>(copy->context);
  if (const auto* fill = std::get_if<FillTask>(&node.task)) return handle_of<cuda::CUcontext>(fill->context);
  return nullptr;
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  return driver_call("cuGraphCreate", [&](Process& process) {
    if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = process.graphs.add<CUgraph>(std::make_shared<Graph>());
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return graph_call("cuGraphDestroy", handle, [&](Process& process, Graph& graph) {
    if (graph.owned_by_node) return CUDA_ERROR_INVALID_VALUE;
    forget_nodes(graph);
    process.graphs.remove(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphClone(CUgraph* graph_clone, CUgraph original_graph) {
  return graph_call("cuGraphClone", original_graph, [&](Process& process, Graph& graph) {
    if (graph_clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *graph_clone = process.graphs.add<CUgraph>(clone(graph, CopyFor::kProgram));
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original_node, CUgraph cloned_graph) {
  return graph_call("cuGraphNodeFindInClone", cloned_graph, [&](Process&, Graph& graph) {
    const GraphNode* original = find_node(original_node);
    const GraphNode* twin = original == nullptr ? nullptr : node_in_clone(graph, *original);
    if (node == nullptr || twin == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *node = sim::handle(twin);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return add_described("cuGraphAddKernelNode", node, graph, dependencies, count, params);
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
  return add_described("cuGraphAddKernelNode_v2", node, graph, dependencies, count, params);
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                              const CUDA_MEMCPY3D* params, CUcontext context) {
  return add_described("cuGraphAddMemcpyNode", node, graph, dependencies, count, params, context);
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return add_described("cuGraphAddMemsetNode", node, graph, dependencies, count, params, context);
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  return add_described("cuGraphAddHostNode", node, graph, dependencies, count, params);
}
CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return add_described("cuGraphAddBatchMemOpNode", node, graph, dependencies, count, params);
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                        CUgraphNodeParams* params) {
  return add_described("cuGraphAddNode", node, graph, dependencies, count, params);
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*,
                           std::size_t count, CUgraphNodeParams* params) {
  return add_described("cuGraphAddNode_v2", node, graph, dependencies, count, params);
}
CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count) {
  return add("cuGraphAddEmptyNode", node, graph, dependencies, count, [](Process&, Task*) { return CUDA_SUCCESS; });
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                   CUevent event) {
  return add_event_node<EventRecordTask>("cuGraphAddEventRecordNode", node, graph, dependencies, count, event);
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                 CUevent event) {
  return add_event_node<EventWaitTask>("cuGraphAddEventWaitNode", node, graph, dependencies, count, event);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                  CUgraph child_graph) {
  return add("cuGraphAddChildGraphNode", node, graph, dependencies, count, [&](Process& process, Task* task) {
    const auto child = process.graphs.find(child_graph);
    if (child == nullptr || child_graph == graph) return CUDA_ERROR_INVALID_VALUE;
    auto copy = clone(*child, CopyFor::kProgram);
    copy->owned_by_node = true;
    process.graphs.add<CUgraph>(copy);
    *task = ChildGraphTask{std::move(copy)};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node_handle, CUgraph* graph) {
  return task_call<ChildGraphTask>("cuGraphChildGraphNodeGetGraph", node_handle, graph,
                                   [&](Process& process, GraphNode& node) {
                                     const auto& child = std::get<ChildGraphTask>(node.task).graph;
                                     // A child graph from a clone or a capture has no handle yet.
                                     if (process.graphs.find(child.get()) == nullptr)
                                       process.graphs.add<CUgraph>(child);
                                     *graph = handle_of<CUgraph>(child);
                                     return CUDA_SUCCESS;
                                   });
}

CUresult cuGraphDestroyNode(CUgraphNode node_handle) {
  return node_call("cuGraphDestroyNode", node_handle, [](Process&, GraphNode& node) {
    destroy_node(node);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* node_count) {
  return get_nodes("cuGraphGetNodes", graph, nodes, node_count, false);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* root_nodes, std::size_t* root_node_count) {
  return get_nodes("cuGraphGetRootNodes", graph, root_nodes, root_node_count, true);
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, std::size_t* edge_count) {
  return get_edges("cuGraphGetEdges", graph, from, to, nullptr, edge_count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edge_data,
                            std::size_t* edge_count) {
  return get_edges("cuGraphGetEdges_v2", graph, from, to, edge_data, edge_count);
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, std::size_t count) {
  return change_edges("cuGraphAddDependencies", graph, from, to, count, false);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, std::size_t count) {
  return change_edges("cuGraphAddDependencies_v2", graph, from, to, count, false);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, std::size_t count) {
  return change_edges("cuGraphRemoveDependencies", graph, from, to, count, true);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, std::size_t count) {
  return change_edges("cuGraphRemoveDependencies_v2", graph, from, to, count, true);
}

CUresult cuGraphNodeGetType(CUgraphNode node_handle, CUgraphNodeType* type) {
  return node_call("cuGraphNodeGetType", node_handle, [&](Process&, GraphNode& node) {
    if (type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = type_of(node.task);
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node_handle, CUgraphNode* dependencies, std::size_t* count) {
  return node_call("cuGraphNodeGetDependencies", node_handle,
                   [&](Process&, GraphNode& node) { return put_nodes(node.before, dependencies, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node_handle, CUgraphNode* dependencies, CUgraphEdgeData* edge_data,
                                       std::size_t* count) {
  return node_call("cuGraphNodeGetDependencies_v2", node_handle, [&](Process&, GraphNode& node) {
    const CUresult result = put_nodes(node.before, dependencies, count);
    clear_edge_data(edge_data, dependencies == nullptr ? nullptr : count);
    return result;
  });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node_handle, CUgraphNode* dependents, std::size_t* count) {
  return node_call("cuGraphNodeGetDependentNodes", node_handle,
                   [&](Process&, GraphNode& node) { return put_nodes(node.after, dependents, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node_handle, CUgraphNode* dependents, CUgraphEdgeData* edge_data,
                                         std::size_t* count) {
  return node_call("cuGraphNodeGetDependentNodes_v2", node_handle, [&](Process&, GraphNode& node) {
    const CUresult result = put_nodes(node.after, dependents, count);
    clear_edge_data(edge_data, dependents == nullptr ? nullptr : count);
    return result;
  });
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return get_kernel_params("cuGraphKernelNodeGetParams", node, params);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return get_kernel_params("cuGraphKernelNodeGetParams_v2", node, params);
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return change_described("cuGraphKernelNodeSetParams", node, params);
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return change_described("cuGraphKernelNodeSetParams_v2", node, params);
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node_handle, CUDA_MEMCPY3D* params) {
  return task_call<CopyTask>("cuGraphMemcpyNodeGetParams", node_handle, params, [&](Process&, GraphNode& node) {
    *params = std::get<CopyTask>(node.task).described;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node_handle, const CUDA_MEMCPY3D* params) {
  return change("cuGraphMemcpyNodeSetParams", node_handle, [&](Process& process, GraphNode& node, Task* task) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : task_of(process, *params, context_handle(node), task);
  });
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node_handle, CUDA_MEMSET_NODE_PARAMS* params) {
  return task_call<FillTask>("cuGraphMemsetNodeGetParams", node_handle, params, [&](Process&, GraphNode& node) {
    *params = memset_params_of(std::get<FillTask>(node.task));
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node_handle, const CUDA_MEMSET_NODE_PARAMS* params) {
  return change("cuGraphMemsetNodeSetParams", node_handle, [&](Process& process, GraphNode& node, Task* task) {
    return params == nullptr ? CUDA_ERROR_INVALID_VALUE : task_of(process, *params, context_handle(node), task);
  });
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node_handle, CUDA_HOST_NODE_PARAMS* params) {
  return task_call<HostTask>("cuGraphHostNodeGetParams", node_handle, params, [&](Process&, GraphNode& node) {
    const auto& task = std::get<HostTask>(node.task);
    *params = {task.function, task.user_data};
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return change_described("cuGraphHostNodeSetParams", node, params);
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  return change_described("cuGraphNodeSetParams", node, params);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return get_event<EventRecordTask>("cuGraphEventRecordNodeGetEvent", node, event);
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return set_event<EventRecordTask>("cuGraphEventRecordNodeSetEvent", node, event);
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return get_event<EventWaitTask>("cuGraphEventWaitNodeGetEvent", node, event);
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return set_event<EventWaitTask>("cuGraphEventWaitNodeSetEvent", node, event);
}

// Attributes of kernel nodes are hints to hardware that is not there: accepted, and read back as zero.
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node_handle, CUkernelNodeAttrID, CUkernelNodeAttrValue* value) {
  return task_call<KernelTask>("cuGraphKernelNodeGetAttribute", node_handle, value, [&](Process&, GraphNode&) {
    *value = CUkernelNodeAttrValue{};
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node_handle, CUkernelNodeAttrID,
                                       const CUkernelNodeAttrValue* value) {
  return task_call<KernelTask>("cuGraphKernelNodeSetAttribute", node_handle, value,
                               [](Process&, GraphNode&) { return CUDA_SUCCESS; });
}
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode destination, CUgraphNode source) {
  return task_call<KernelTask>("cuGraphKernelNodeCopyAttributes", destination, source,
                               [](Process&, GraphNode&) { return CUDA_SUCCESS; });
}

}  // extern "C"
}  // namespace gpumux::cuda
