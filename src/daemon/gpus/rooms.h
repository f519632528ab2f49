// SPDX-License-Identifier: Apache-2.0
// The residency planner in the daemon: hands it reports and turns with the time, passes on its bounds, tells it what of
// each GPU is not ours (sched/foreign_use.h), and brings about the mode that memory allows (sched/memory_mode.h) and
// that gives most (sched/gain.h). Knows nothing of messages and sockets.
//
// Planning happens when the loop has come to rest (settle), once for all that has come in, and only for GPUs whose
// memory or, where memory is tight, whose turns have changed: where programs fit together, leases change hands without
// it.
//
// Owned by the loop's thread.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/limits.h"
#include "daemon/gpus/leases.h"
#include "sched/foreign_use.h"
#include "sched/gain.h"
#include "sched/memory_mode.h"
#include "sched/residency.h"

namespace gpumux::daemon {

// Of a GPU with `capacity` bytes, unless configured.
std::uint64_t automatic_reserve(std::uint64_t capacity);

class Rooms {
 public:
  // Neither may call back.
  using OnBound = std::function<void(const sched::RoomBound&)>;
  using OnExpectEviction = std::function<void(const sched::ExpectEviction&)>;

  // Asks a seat how much it has submitted. False: it does not know how to answer.
  using OnMeasure = std::function<bool(base::SeatId, std::uint32_t question)>;

  explicit Rooms(Leases& leases) : leases_(leases) {}
  Rooms(const Rooms&) = delete;
  Rooms& operator=(const Rooms&) = delete;
  void on_bound(OnBound callback) { on_bound_ = std::move(callback); }
  void on_expect_eviction(OnExpectEviction callback) { on_expect_eviction_ = std::move(callback); }

  void on_measure(OnMeasure callback) { on_measure_ = std::move(callback); }

  void set_host_budget(std::uint64_t bytes, std::uint64_t chunk, std::uint64_t reserved) {
    planner_.set_host_budget(bytes, chunk, reserved);
  }
  // So much host memory is lent that no seat has a use for.
  void set_host_useless(std::uint64_t bytes);
  // Whether a seat waits for a commitment. It may be what set_host_useless() keeps from it.
  bool awaits_commitment() const { return planner_.awaits_commitment(); }
  // Tenants of an earlier daemon may come back until then (residency.h).
  void await_tenants(base::TimePoint until) { planner_.await_tenants(until); }

  // `gets_bound`: at once, not only when it has said what it has (residency.h).
  // `left`: what closed() has said of its process.
  void opened(base::SeatId seat, const sched::SeatOwner& owner, bool gets_bound, std::uint64_t left = 0);
  // Something has changed that decides whether its seats take turns.
  void look_again(base::GpuIndex gpu) { gpus_.at(gpu.value).dirty = true; }
  // How much of the GPU it may have left taken.
  std::uint64_t closed(base::SeatId seat);
  void set_suspended(base::SeatId seat, bool is_suspended);
  void reported(base::SeatId seat, const sched::MemoryReport& report);
  void wanted(base::SeatId seat, std::uint32_t ticket, std::uint64_t room, std::uint64_t commitment,
              std::uint64_t managed);

  // The answer to OnMeasure.
  void measured(base::SeatId seat, std::uint32_t question, std::uint64_t submissions);

  // NVML has said that so much of the GPU was used; it was asked at `asked_at`.
  void sampled(base::GpuIndex gpu, std::uint64_t used, base::TimePoint asked_at);
  // Whether somebody waits for memory of tenants that are gone, or to know what others have: look again soon.
  bool awaits_return() const;
  // Whether the last look came while memory moved and said nothing: where programs always move some, one a second would
  // never find out what others use.
  bool looks_again() const;

  // Brings everything to rest. After whatever has happened.
  void settle();
  // Called at the end of each settle; must not call back.
  void on_settled(std::function<void()> callback) { on_settled_ = std::move(callback); }
  // When settle() is wanted next, although nothing happens.
  std::optional<base::TimePoint> next_deadline() const { return deadline_; }

  // How much host memory all GPUs' programs may need together.
  sched::HostDemand host_demand() const;
  sched::GpuMemory view(base::GpuIndex gpu) const { return planner_.view(gpu); }
  std::uint64_t capacity(base::GpuIndex gpu) const { return planner_.capacity(gpu); }
  std::optional<sched::SeatMemoryView> view(base::SeatId seat) const { return planner_.view(seat); }
  // It may have come back, and has not said yet what it has.
  bool may_be_back(base::SeatId seat) const { return planner_.may_be_back(seat); }
  // Why the mode `auto` comes to what it does, for people, and what was measured for that, if anything.
  std::string why(base::GpuIndex gpu) const;
  const std::optional<sched::Gain::Finding>& finding(base::GpuIndex gpu) const {
    return gpus_[gpu.value].gain.finding();
  }
  std::string check_invariants() const { return planner_.check_invariants(); }

 private:
  struct GpuState {
    bool managed = false;
    bool dirty = false;
    std::uint64_t settings_changes = 0;  // Gpu's, as last looked at
    sched::MemoryMode mode;
    sched::Gain gain;
    bool is_by_gain = false;  // memory and standing leave it to that
    sched::ForeignUse foreign;
    // As of the last plan: whatever changes them makes the GPU dirty.
    bool is_tight = false;
    bool is_clearing = false;
    sched::HostDemand host_demand;
    base::TimePoint due_at = base::TimePoint::max();
  };

  void adopt(base::GpuIndex gpu);
  void tell_foreign(base::GpuIndex gpu);
  void note(base::GpuIndex gpu);
  void resolve_mode(base::GpuIndex gpu);
  sched::Way choose_way(base::GpuIndex gpu, bool is_open);
  // False: turns have changed because of it.
  bool plan(base::GpuIndex gpu);

  Leases& leases_;
  OnBound on_bound_;
  OnExpectEviction on_expect_eviction_;
  OnMeasure on_measure_;
  std::function<void()> on_settled_;
  sched::Residency planner_;
  std::array<GpuState, base::kMaxGpus> gpus_{};
  std::optional<base::TimePoint> deadline_;
  std::uint64_t host_useless_ = 0;
  std::vector<sched::Turn> turns_;     // kept only for its memory
  sched::Gain::Situation situation_;   // the same
  sched::ResidencyCommands commands_;  // the same
};

}  // namespace gpumux::daemon
