// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/timers.h"

namespace gpumux::sched {

void Timers::arm(Timer& timer, base::TimePoint at) {
  if (at == base::TimePoint::max()) return stop(timer);
  if (timer.armed() && timer.at_ == at) return;
  timer.at_ = at;
  timer.armed_as_ = next_armed_as_++;
  if (!timer.armed()) {
    timer.in_ = this;
    heap_.push_back(&timer);
    timer.index_ = heap_.size() - 1;
  }
  sift(timer.index_);
}

void Timers::stop(Timer& timer) {
  if (!timer.armed()) return;
  const std::size_t hole = timer.index_;
  timer.in_ = nullptr;
  Timer* const last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  put(last, hole);
  sift(hole);
}

void Timers::put(Timer* timer, std::size_t index) {
  heap_[index] = timer;
  timer->index_ = index;
}

// A timer that goes up is earlier than all that are below it then.
void Timers::sift(std::size_t index) {
  Timer* const moving = heap_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (!before(*moving, *heap_[parent])) break;
    put(heap_[parent], index);
    index = parent;
  }
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && before(*heap_[child + 1], *heap_[child])) ++child;
    if (!before(*heap_[child], *moving)) break;
    put(heap_[child], index);
    index = child;
  }
  put(moving, index);
}

}  // namespace gpumux::sched
