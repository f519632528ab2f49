// SPDX-License-Identifier: Apache-2.0
// An event: the last place in a stream where it was recorded.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/context.h"

namespace gpumux::sim {

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;

  std::mutex mutex;                      // guards the rest
  std::shared_ptr<Completion> recorded;  // null: never recorded
  // Recorded while its stream was capturing: the capture and where in it (graph.h). Then `recorded` is not looked at.
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> capture_nodes;

  std::shared_ptr<Completion> last() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
};

}  // namespace gpumux::sim
