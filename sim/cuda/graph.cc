// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/graph.h"

#include <algorithm>
#include <deque>

#include "sim/cuda/process.h"
#include "sim/cuda/stream.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

std::unordered_map<const void*, GraphNode*>& node_table() {
  static auto* table = new std::unordered_map<const void*, GraphNode*>;
  return *table;
}

GraphNode* append(Graph& graph, Task task) {
  auto node = std::make_unique<GraphNode>();
  node->graph = &graph;
  node->task = std::move(task);
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().get();
}

// A graph under way. Nodes that are ready at the same time run at the same time, each further one on a thread of its
// own. Kernels of different branches may wait for each other on their devices.
class Run : public std::enable_shared_from_this<Run> {
 public:
  explicit Run(const Graph& graph) {
    for (const auto& node : graph.nodes) {
      waits_for_[node.get()] = node->before.size();
      if (node->before.empty()) ready_.push_back(node.get());
    }
  }

  CUresult run(Worker& worker) {
    help(worker);
    std::unique_lock lock(mutex_);
    while (helpers_ != 0) {
      lock.unlock();
      worker.let_go();
      lock.lock();
      changed_.wait(lock, [this] { return helpers_ == 0 || !ready_.empty(); });
      lock.unlock();
      help(worker);
      lock.lock();
    }
    return result_;
  }

 private:
  // Runs ready nodes until there are none.
  void help(Worker& worker) {
    std::unique_lock lock(mutex_);
    while (!ready_.empty()) {
      GraphNode* node = ready_.front();
      ready_.pop_front();
      // Another thread for each of the others that could run now.
      for (; starting_ < ready_.size(); ++starting_) {
        ++helpers_;
        start_thread("sim graph", [self = shared_from_this()] { self->helper(); });
      }
      const bool skip = result_ != cuda::CUDA_SUCCESS;
      lock.unlock();
      const CUresult result = skip || !node->enabled ? cuda::CUDA_SUCCESS : run_task(worker, node->task);
      lock.lock();
      if (result != cuda::CUDA_SUCCESS && result_ == cuda::CUDA_SUCCESS) result_ = result;
      for (GraphNode* next : node->after) {
        if (--waits_for_[next] == 0) ready_.push_back(next);
      }
    }
  }

  void helper() {
    Worker worker;
    worker.begin();
    {
      const std::lock_guard lock(mutex_);
      --starting_;
    }
    help(worker);
    worker.settle();
    worker.let_go();
    const std::lock_guard lock(mutex_);
    --helpers_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<GraphNode*, std::size_t> waits_for_;
  std::deque<GraphNode*> ready_;
  std::size_t helpers_ = 0;   // threads beyond the stream's own
  std::size_t starting_ = 0;  // those of them that have not looked for a node yet
  CUresult result_ = cuda::CUDA_SUCCESS;
};

}  // namespace

std::mutex& graph_lock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

cuda::CUgraphNodeType type_of(const Task& task) {
  struct Visitor {
    cuda::CUgraphNodeType operator()(const KernelTask&) const { return cuda::CU_GRAPH_NODE_TYPE_KERNEL; }
    cuda::CUgraphNodeType operator()(const CopyTask&) const { return cuda::CU_GRAPH_NODE_TYPE_MEMCPY; }
    cuda::CUgraphNodeType operator()(const FillTask&) const { return cuda::CU_GRAPH_NODE_TYPE_MEMSET; }
    cuda::CUgraphNodeType operator()(const HostTask&) const { return cuda::CU_GRAPH_NODE_TYPE_HOST; }
    cuda::CUgraphNodeType operator()(const MemoryOperationsTask&) const {
      return cuda::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    }
    cuda::CUgraphNodeType operator()(const EmptyTask&) const { return cuda::CU_GRAPH_NODE_TYPE_EMPTY; }
    cuda::CUgraphNodeType operator()(const ChildGraphTask&) const { return cuda::CU_GRAPH_NODE_TYPE_GRAPH; }
    cuda::CUgraphNodeType operator()(const EventRecordTask&) const { return cuda::CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    cuda::CUgraphNodeType operator()(const EventWaitTask&) const { return cuda::CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
  };
  return std::visit(Visitor(), task);
}

GraphNode* add_node(Graph& graph, Task task, const std::vector<GraphNode*>& before) {
  GraphNode* added = append(graph, std::move(task));
  node_table()[added] = added;
  for (GraphNode* earlier : before) add_edge(*earlier, *added);
  return added;
}

void add_edge(GraphNode& from, GraphNode& to) {
  if (std::find(to.before.begin(), to.before.end(), &from) != to.before.end()) return;
  to.before.push_back(&from);
  from.after.push_back(&to);
}

bool remove_edge(GraphNode& from, GraphNode& to) {
  const auto edge = std::find(to.before.begin(), to.before.end(), &from);
  if (edge == to.before.end()) return false;
  to.before.erase(edge);
  from.after.erase(std::find(from.after.begin(), from.after.end(), &to));
  return true;
}

void destroy_node(GraphNode& node) {
  while (!node.before.empty()) remove_edge(*node.before.back(), node);
  while (!node.after.empty()) remove_edge(node, *node.after.back());
  node_table().erase(&node);
  if (const auto* child = std::get_if<ChildGraphTask>(&node.task)) forget_nodes(*child->graph);
  auto& nodes = node.graph->nodes;
  nodes.erase(std::find_if(nodes.begin(), nodes.end(), [&](const auto& other) { return other.get() == &node; }));
}

void forget_nodes(Graph& graph) {
  for (const auto& node : graph.nodes) {
    node_table().erase(node.get());
    if (const auto* child = std::get_if<ChildGraphTask>(&node->task)) forget_nodes(*child->graph);
  }
}

GraphNode* find_node(const void* handle) {
  const auto found = node_table().find(handle);
  return found == node_table().end() ? nullptr : found->second;
}

std::shared_ptr<Graph> clone(const Graph& graph, CopyFor whom) {
  auto copy = std::make_shared<Graph>();
  std::map<const GraphNode*, GraphNode*> twins;
  for (const auto& node : graph.nodes) {
    Task task = node->task;
    if (auto* child = std::get_if<ChildGraphTask>(&task)) {
      child->graph = clone(*child->graph, whom);
      child->graph->owned_by_node = true;
    }
    GraphNode* twin = append(*copy, std::move(task));
    if (whom == CopyFor::kProgram) node_table()[twin] = twin;
    twin->enabled = node->enabled;
    twin->original = whom == CopyFor::kChange ? node->original : reinterpret_cast<std::uint64_t>(node.get());
    twins[node.get()] = twin;
  }
  for (const auto& node : graph.nodes) {
    for (const GraphNode* earlier : node->before) add_edge(*twins[earlier], *twins[node.get()]);
  }
  return copy;
}

GraphNode* node_in_clone(const Graph& copy, const GraphNode& original) {
  for (const auto& node : copy.nodes) {
    if (node->original == reinterpret_cast<std::uint64_t>(&original)) return node.get();
  }
  return nullptr;
}

bool has_cycle(const Graph& graph) {
  std::map<const GraphNode*, std::size_t> waits_for;
  std::vector<const GraphNode*> ready;
  for (const auto& node : graph.nodes) {
    waits_for[node.get()] = node->before.size();
    if (node->before.empty()) ready.push_back(node.get());
  }
  std::size_t seen = 0;
  for (; !ready.empty(); ++seen) {
    const GraphNode* node = ready.back();
    ready.pop_back();
    for (const GraphNode* next : node->after) {
      if (--waits_for[next] == 0) ready.push_back(next);
    }
  }
  return seen != graph.nodes.size();
}

CUresult run_graph(Worker& worker, const Graph& graph) { return std::make_shared<Run>(graph)->run(worker); }

}  // namespace gpumux::sim
