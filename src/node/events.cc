// SPDX-License-Identifier: Apache-2.0
#include "node/events.h"

namespace gpumux::node {
namespace {

using sched::to_string;

struct Texts {
  std::string operator()(const sched::Command& command) const { return sched::to_string(command); }
  std::string operator()(const sched::RoomBound& bound) const {
    return "room " + to_string(bound.seat) + " #" + std::to_string(bound.sequence) + " " + std::to_string(bound.room) +
           " " + std::to_string(bound.commitment) + " " + std::to_string(bound.ticket) +
           (bound.refused() ? " refused" : "");
  }
  std::string operator()(const sched::ExpectEviction& eviction) const {
    return "expect_eviction " + to_string(eviction.seat) + " " + std::to_string(eviction.managed);
  }
  std::string operator()(const ModeChanged& change) const {
    return "mode gpu " + std::to_string(change.gpu.value) +
           (change.mode == sched::Mode::kSerial ? " serial" : " concurrent");
  }
  std::string operator()(const TurnsForMemory& change) const {
    return "turns_for_memory gpu " + std::to_string(change.gpu.value) + (change.are_needed ? " yes" : " no");
  }
};

}  // namespace

std::string to_string(const Command& command) { return std::visit(Texts{}, command); }

}  // namespace gpumux::node
