// SPDX-License-Identifier: Apache-2.0
// Events a second that the core takes. Seats are spread over 8 GPUs and all want them all the time: each GPU's quantum
// ends, the holder is revoked, closes, drains, asks again. Most events of a busy daemon are of this kind, and each of
// them moves a queue. The argument is the number of seats. `gangs`: half of the seats are in gangs of two GPUs.
// `claims`: eight seats of each GPU are one share group.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sched/lease/lease_core.h"

namespace gpumux::sched {
namespace {

constexpr std::uint32_t kGpus = 8;

class Machine {
 public:
  Machine(std::uint64_t seats, bool gangs, bool claims, PolicyKind policy) {
    GpuSettings settings;
    settings.in_flight = kUnlimited;
    settings.quantum = std::chrono::milliseconds(5);
    settings.policy = policy;
    for (std::uint32_t gpu = 0; gpu < kGpus; ++gpu) tell(GpuAdded{GpuIndex{gpu}, settings, LeaseEpoch{1}});
    for (std::uint64_t i = 0; i < seats; ++i) {
      const SeatId seat{TenantId{i + 1}, GpuIndex{static_cast<std::uint32_t>(i % kGpus)}};
      tell(TenantConnected{seat.tenant, 0});
      if (gangs && i % 4 < 2) tell(GangJoined{seat.tenant, "g" + std::to_string(i / 4), 2});
      const std::string claim = claims ? std::to_string(i / kGpus / 8) : "";
      tell(SeatOpened{.seat = seat, .share_group = claim});
      tell(Requested{seat});
    }
  }

  // One round: time passes, and every revocation is answered in full. Returns the number of events.
  std::int64_t round() {
    const std::int64_t before = events_;
    now_ = std::max(now_ + std::chrono::microseconds(10), core_.next_deadline().value_or(now_));
    tell(TimePassed{});
    while (!to_answer_.empty()) {
      const Revoke revoke = to_answer_.back();
      to_answer_.pop_back();
      tell(RevokeSeen{revoke.seat, revoke.epoch});
      tell(GateClosed{revoke.seat, revoke.epoch});
      tell(Requested{revoke.seat});
      tell(Drained{revoke.seat, revoke.epoch, false});
    }
    return events_ - before;
  }

 private:
  void tell(const Event& event) {
    commands_.clear();
    core_.apply(now_, event, commands_);
    ++events_;
    for (const Command& command : commands_) {
      if (const auto* revoke = std::get_if<Revoke>(&command)) to_answer_.push_back(*revoke);
    }
  }

  LeaseCore core_;
  TimePoint now_{};
  std::vector<Command> commands_;
  std::vector<Revoke> to_answer_;
  std::int64_t events_ = 0;
};

void run(benchmark::State& state, PolicyKind policy, bool gangs = false, bool claims = false) {
  Machine machine(static_cast<std::uint64_t>(state.range(0)), gangs, claims, policy);
  std::int64_t events = 0;
  for (auto _ : state) events += machine.round();
  state.SetItemsProcessed(events);
}

void BM_Fair(benchmark::State& state) { run(state, PolicyKind::kFair); }
void BM_Fifo(benchmark::State& state) { run(state, PolicyKind::kFifo); }
void BM_FairWithGangs(benchmark::State& state) { run(state, PolicyKind::kFair, true); }
void BM_FairWithClaims(benchmark::State& state) { run(state, PolicyKind::kFair, false, true); }

BENCHMARK(BM_Fair)->RangeMultiplier(10)->Range(10, 10000);
BENCHMARK(BM_Fifo)->RangeMultiplier(10)->Range(10, 10000);
BENCHMARK(BM_FairWithClaims)->RangeMultiplier(10)->Range(10, 10000);
BENCHMARK(BM_FairWithGangs)->RangeMultiplier(10)->Range(10, 10000);

}  // namespace
}  // namespace gpumux::sched

BENCHMARK_MAIN();
