// SPDX-License-Identifier: Apache-2.0
// For tests: seats and gangs whose work can be frozen.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sched/testing/two_gangs.h"

namespace gpumux::sched {

struct FreezingScript : Script {
  explicit FreezingScript(std::uint32_t gpus = 1, const GpuSettings& settings = fifo()) : Script(gpus, settings) {}

  void open(SeatId s, bool can_freeze = true, std::int32_t priority = 0) {
    tell(TenantConnected{s.tenant, 0});
    tell(SeatOpened{.seat = s, .priority = priority, .can_freeze = can_freeze});
  }
  std::string frozen(SeatId s) {
    std::string text;
    for (const Event& event :
         {Event(GateClosed{s, epoch(s)}), Event(Drained{s, epoch(s), false, true}), Event(Requested{s})}) {
      const std::string more = tell(event);
      text += (text.empty() || more.empty() ? "" : "; ") + more;
    }
    return text;
  }
  // None: the core does not know it.
  std::optional<TurnKind> turn_of(SeatId s) {
    std::vector<Turn> turns;
    core().turns(s.gpu, turns);
    for (const Turn& turn : turns) {
      if (turn.seat == s) return turn.kind;
    }
    return std::nullopt;
  }
  std::string cannot_freeze(SeatId s) { return tell(CannotFreeze{s}); }
};

// A holds, and B waits.
struct TwoSeats : FreezingScript {
  explicit TwoSeats(const GpuSettings& settings = fifo(), bool can_freeze = true) : FreezingScript(1, settings) {
    open(kA, can_freeze);
    open(kB);
    request(kA);
    request(kB);
  }
};

// The gang X holds both GPUs, and another seat waits for the first.
struct FreezingGang : FreezingScript {
  explicit FreezingGang(bool can_second_freeze = true, bool can_first_freeze = true) : FreezingScript(2) {
    open(kX0, can_first_freeze);
    open(kX1, can_second_freeze);
    for (const SeatId one : {kX0, kX1}) tell(GangJoined{one.tenant, "x", 2});
    open(kS0);
    request(kX0);
    request(kS0);
  }
};

}  // namespace gpumux::sched
