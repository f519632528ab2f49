// SPDX-License-Identifier: Apache-2.0
// The queues of units that wait.
//
// A *shape* is a set of GPUs that units wait for together. All units of one shape can start at the same moments, so
// each shape has one queue. To find the next unit of a GPU, the core looks at the first units of the few shapes that
// contain it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "sched/events.h"

namespace gpumux::sched {

struct Gpu;
struct Unit;

struct QueueEntry {
  bool obstructed = false;  // cannot run for want of memory: behind all that can
  std::int64_t level = 0;   // level_of(): minus the priority, unless the unit is lifted or yields
  std::int64_t rank = 0;    // fair: virtual_time_of(); 0 under fifo, and for lifted units
  TimePoint requested{};
  SeatId lead;
  Unit* unit = nullptr;
  friend bool operator<(const QueueEntry& a, const QueueEntry& b) {
    if (a.obstructed != b.obstructed) return b.obstructed;
    if (a.level != b.level) return a.level < b.level;
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.requested != b.requested) return a.requested < b.requested;
    return a.lead < b.lead;
  }
};

class Shape {
 public:
  explicit Shape(std::vector<Gpu*> gpus) : gpus_(std::move(gpus)) {}

  const std::vector<Gpu*>& gpus() const { return gpus_; }  // ascending
  // Waiting units, next first, in the order of the first GPU's policy.
  const std::set<QueueEntry>& queue() const { return queue_; }
  // nullptr: no unit waits.
  Unit* first() const { return queue_.empty() ? nullptr : queue_.begin()->unit; }

  void insert(const QueueEntry& entry);
  // REQUIRES: the unit is in the queue.
  void erase(const Unit& unit);

 private:
  friend class Shapes;

  std::vector<Gpu*> gpus_;
  std::set<QueueEntry> queue_;
  std::uint32_t units_ = 0;
};

// All shapes that units have, and the shapes that contain each GPU.
class Shapes {
 public:
  // A unit has this shape from now on. REQUIRES: the GPUs ascend, and there is one at least.
  Shape& join(std::vector<Gpu*> gpus);
  // A unit has it no more. REQUIRES: that unit does not wait.
  void leave(Shape& shape);

  // In one order: a vector of GPUs' numbers, and its shape.
  auto begin() const { return shapes_.begin(); }
  auto end() const { return shapes_.end(); }

 private:
  std::map<std::vector<std::uint32_t>, std::unique_ptr<Shape>> shapes_;
};

}  // namespace gpumux::sched
