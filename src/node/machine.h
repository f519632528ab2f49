// SPDX-License-Identifier: Apache-2.0
// The node machine: which program may use which GPU of this machine, when, with how much memory, at once or by turns.
//
// It owns the lease core (sched/lease/lease_core.h), the residency planner (sched/memory/residency.h), and for each GPU
// what is known of others' memory and the mode. An event is told to all of them that it concerns. Memory is planned at
// Rest, once for all that has come in. A GPU is planned only if its memory has changed or, while memory is tight, its
// turns have. If programs fit together, leases change hands without it.
//
// Pure, as its parts are: no clock, no I/O, no threads. Owned by one thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "node/events.h"
#include "sched/lease/lease_core.h"
#include "sched/memory/foreign_use.h"
#include "sched/memory/memory_mode.h"
#include "sched/memory/residency.h"

namespace gpumux::node {

// For logs, tests and simulations: sees what the parts tell each other. It must not call back.
class Probe {
 public:
  Probe() = default;
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  virtual ~Probe() = default;
  // The lease core has been told of this.
  virtual void told(const sched::Event& event) = 0;
  // The GPU is about to be planned with these turns, and then has been.
  virtual void planning(GpuIndex gpu, const std::vector<sched::Turn>& turns) = 0;
  virtual void planned(GpuIndex gpu, const std::vector<sched::Turn>& turns) = 0;
};

class Machine {
 public:
  // `probe` is not owned.
  explicit Machine(Probe* probe = nullptr) : probe_(probe) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Applies one event and appends the commands that follow, in order. `now` never goes backwards. Events that make no
  // sense change nothing: tenants are hostile and messages cross.
  void apply(TimePoint now, const Event& event, Commands& commands);

  // When TimePassed is wanted, and then Rest; none: only other events can change anything.
  std::optional<TimePoint> next_deadline() const;

  const sched::LeaseCore& leases() const { return leases_; }
  const sched::Residency& memory() const { return memory_; }
  // None: no such GPU.
  std::optional<sched::Mode> mode(GpuIndex gpu) const;
  sched::MemoryMode::Reason mode_reason(GpuIndex gpu) const { return at(gpu).memory_mode.reason(); }
  // Whether memory and standing leave it open whether its programs run at once or by turns.
  bool is_open(GpuIndex gpu) const { return at(gpu).is_open; }
  sched::Way way(GpuIndex gpu) const { return at(gpu).way; }  // chosen last
  // GPUs whose memory has been planned anew since the last call.
  std::bitset<base::kMaxGpus> take_planned() { return std::exchange(planned_, {}); }

  // Host memory that all GPUs' programs may need together.
  sched::HostDemand host_demand() const;
  // Whether a tenant waits for memory of tenants that are gone, or to know what others have: look again soon.
  bool awaits_look() const;
  // Whether the last look came while memory moved and said nothing. Where programs always move some, one look a second
  // would never find out what others use.
  bool looks_again() const;

  // The GPU whose plan was cut off, for it did not come to rest. Every plan but the last one changes turns for a seat,
  // so this is a fault of the planner's.
  std::optional<GpuIndex> restless() const { return restless_; }

  // Empty, or the first violated invariant in words. Builds with GPUMUX_CHECKED, which are all but the release, ask it
  // at the end of each apply() and end themselves if it is violated. The daemon asks it now and then, and goes on.
  std::string check_invariants() const;

 private:
  // Programs that are no tenants, on one GPU. The first look that sees some may have seen a tenant that begins or ends.
  enum class Others { kNone, kSeenOnce, kThere };
  // How far a GPU's last plan holds.
  enum class Plan {
    kStale,         // its memory has changed since
    kFollowsTurns,  // memory is tight: it is stale as soon as the turns are others, or another GPU's plan is stale
    kStands,
  };
  struct Gpu {
    settings::GpuSettings settings;
    sched::Mode mode = sched::Mode::kSerial;  // in force
    sched::MemoryMode memory_mode;
    sched::Way way = sched::Way::kAtOnce;
    bool is_open = false;
    bool has_overruns = false;  // LeaseCore::has_overruns, as the mode in force knows it
    sched::ForeignUse foreign;
    Others others = Others::kNone;
    Plan plan = Plan::kStands;
    std::vector<sched::Turn> turns;  // that the plan was made with
    sched::HostDemand host_demand;
    std::optional<TimePoint> due_at;  // of the next plan, if nothing happens
  };

  void on(const GpuAdded& event);
  void on(const SettingsChanged& event);
  void on(const WayChosen& event);
  void on(const HostBudget& event);
  void on(const TenantsAwaited& event);
  void on(const SeatOpened& event);
  void on(const sched::StandingChanged& event);
  void on(const sched::SeatClosed& event);
  void on(const sched::TenantGone& event);
  void on(const sched::SeatsSuspended& event);
  void on(const MemoryReported& event);
  void on(const RoomWanted& event);
  void on(const GpuSampled& event);
  void on(const sched::TimePassed& event);
  void on(const Rest& event);
  // The lease core's alone.
  template <class LeaseEvent>
  void on(const LeaseEvent& event) {
    tell(event);
  }

  // Null: no such GPU.
  Gpu* find(GpuIndex gpu);
  // As a GPU that was just added, if there is none.
  const Gpu& at(GpuIndex gpu) const;
  // Whether its size is known. Without that it has leases only, and its memory is never planned.
  bool has_memory(GpuIndex gpu) const { return memory_.capacity(gpu) > 0; }
  void make_stale(GpuIndex gpu);
  bool is_any_stale() const;
  void tell(const sched::Event& event);
  void close_memory(SeatId seat);
  void set_mode(GpuIndex index, sched::Mode mode);
  void resolve_mode(GpuIndex index);
  void tell_foreign(GpuIndex index);
  bool wants_plan(GpuIndex index, bool was_any_stale);
  void rest(GpuIndex index);
  void plan(GpuIndex index);

  Probe* const probe_;
  sched::LeaseCore leases_;
  sched::Residency memory_;
  std::vector<Gpu> gpus_;  // by index
  std::bitset<base::kMaxGpus> planned_;
  std::optional<GpuIndex> restless_;

  // During apply().
  TimePoint now_{};
  Commands* commands_ = nullptr;
  // Kept only for their memory.
  std::vector<sched::Command> told_;
  std::vector<sched::Turn> turns_;
  sched::ResidencyCommands plan_;
};

}  // namespace gpumux::node
