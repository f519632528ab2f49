// SPDX-License-Identifier: Apache-2.0
// The state that all parts of the lease core work with. Private to src/sched.
#pragma once

#include <utility>
#include <vector>

#include "sched/events.h"
#include "sched/lease/agenda.h"
#include "sched/lease/timers.h"

namespace gpumux::sched {

// The time, and what the core does because of an event: commands, deadlines, GPUs to look at.
struct Common {
  template <class OneCommand>
  void command(OneCommand c) {
    out->emplace_back(std::move(c));
  }

  TimePoint now{};
  std::vector<Command>* out = nullptr;  // during LeaseCore::apply()
  Timers timers;                        // made before all that has timers: these stop when it goes
  Agenda agenda;
};

// A part calls only the parts that it was given. Each part was given only parts that were made before it. state.h has
// them in that order.
class Part {
 protected:
  // Not owned.
  explicit Part(Common& common) : common_(common) {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() = default;

  TimePoint now() const { return common_.now; }
  Timers& timers() const { return common_.timers; }
  Agenda& agenda() const { return common_.agenda; }
  template <class OneCommand>
  void command(OneCommand c) const {
    common_.command(std::move(c));
  }

 private:
  Common& common_;
};

}  // namespace gpumux::sched
