// SPDX-License-Identifier: Apache-2.0
// Graphs: tasks with an order among them, their instantiation, and its execution.
//
// One lock guards all graphs and captures of the process (graph_lock): they are built rarely and never while it
// matters.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/task.h"

namespace gpumux::sim {

struct GraphNode {
  Graph* graph = nullptr;
  Task task;
  std::vector<GraphNode*> before;  // must be over before this one starts
  std::vector<GraphNode*> after;
  std::uint64_t original = 0;  // in a copy: the address of the program's node that it was made from
  bool enabled = true;         // a disabled node of an instantiated graph does nothing
  // For a program that asks a kernel node for its parameters: pointers into its task.
  void* parameters[kMaxParameters] = {};
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  // in the order of creation
  bool owned_by_node = false;                     // a child graph's own copy: its handle may not be destroyed
};

// An executable graph: a copy of the graph, so that the program may change or destroy its own. A launch takes the copy
// that is there then; changes make a new one.
struct GraphExec {
  std::shared_ptr<const Graph> graph;
  std::uint64_t flags = 0;
  std::shared_ptr<Completion> last;  // the latest launch: launches of one of these follow each other
};

std::mutex& graph_lock();

// All of these want graph_lock held.

cuda::CUgraphNodeType type_of(const Task& task);
GraphNode* add_node(Graph& graph, Task task, const std::vector<GraphNode*>& before);
void add_edge(GraphNode& from, GraphNode& to);
bool remove_edge(GraphNode& from, GraphNode& to);
void destroy_node(GraphNode& node);
// Its node's handles become invalid.
void forget_nodes(Graph& graph);
// Null: not a node.
GraphNode* find_node(const void* handle);
// With copies of child graphs. The program may name the nodes of its own copy. The nodes of an executable graph are
// found by the nodes that they were made from. The nodes of a changed executable graph are found by the same as before.
enum class CopyFor { kProgram, kInstantiation, kChange };
std::shared_ptr<Graph> clone(const Graph& graph, CopyFor whom);
// The node of `copy` that was made from `original`; null: none.
GraphNode* node_in_clone(const Graph& copy, const GraphNode& original);
bool has_cycle(const Graph& graph);

// Without the lock: runs all nodes in an order that the edges allow, independent ones at the same time; returns when
// all are over.
cuda::CUresult run_graph(Worker& worker, const Graph& graph);

}  // namespace gpumux::sim
