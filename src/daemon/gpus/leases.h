// SPDX-License-Identifier: Apache-2.0
// The node machine (node/machine.h) in the daemon: hands it events with the time, carries out its commands, and keeps
// records for people. Knows nothing of messages and sockets.
//
// Owned by the loop's thread.
#pragma once

#include <algorithm>
#include <bitset>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"
#include "daemon/gpus/inventory.h"
#include "daemon/gpus/refusals.h"
#include "daemon/loop/trace.h"
#include "node/machine.h"
#include "settings/structs.gen.h"

namespace gpumux::daemon {

using settings::GpuSettings;

struct Gpu {
  GpuInfo info;
  GpuSettings settings;
  sched::Mode mode = sched::Mode::kSerial;  // in force: the setting, or the mode that `auto` has chosen
  std::string refused;                      // why it is not served; empty: it is
  std::string claimed_by;                   // the process that keeps the lock's name (gpu_lock.h); empty: none
  GpuUse use;
  GpuLoad load;
};

class Leases final : private node::Probe {
 public:
  // Carries out one command. It must not call back into this object; the consequences of a failure are told later, by
  // events.
  using Executor = std::function<void(const node::Command&)>;

  Leases(const base::Clock& clock, Trace& trace);
  void set_executor(Executor executor) { executor_ = std::move(executor); }

  // In index order, before anything else. `refused`: why the GPU is only shown.
  void add_gpu(GpuInfo info, const GpuSettings& settings, std::string refused);
  // A GPU that was only shown is served from now on.
  void serve(base::GpuIndex gpu);
  const std::vector<Gpu>& gpus() const { return gpus_; }
  // The index of a GPU by the UUID that cuDeviceGetUuid_v2 gives.
  std::optional<base::GpuIndex> find(const base::GpuUuid& uuid) const;
  // Logs a change of its health.
  void set_use(std::size_t index, GpuUse use);
  void set_load(const std::vector<GpuLoad>& load) {
    for (std::size_t i = 0; i < std::min(load.size(), gpus_.size()); ++i) gpus_[i].load = load[i];
  }
  void set_claimed_by(base::GpuIndex gpu, std::string who) { gpus_.at(gpu.value).claimed_by = std::move(who); }
  void set_settings(base::GpuIndex gpu, const GpuSettings& settings);
  // Called when a GPU's settings have changed, or when it is served from now on. Must not call back.
  void on_settings_changed(std::function<void()> callback) { tell_settings_ = std::move(callback); }
  const node::Machine& machine() const { return machine_; }
  const sched::Residency& memory() const { return machine_.memory(); }
  sched::SeatTotals totals(base::SeatId seat, base::TimePoint now) const { return machine_.leases().totals(now, seat); }
  // GPUs whose memory has been planned since the last call.
  std::bitset<base::kMaxGpus> take_planned() { return machine_.take_planned(); }

  void connected(base::TenantId tenant, std::shared_ptr<const TenantLabel> label);
  // `why`: a literal, for the trace. `now`: the time up to which its seats' totals() were taken.
  void gone(base::TenantId tenant, std::string_view why, base::TimePoint now);
  // Any event about a connected tenant's seats, and the daemon's own.
  void apply(const node::Event& event) { apply(event, clock_.now()); }
  // The same for an event of a moment ago, after which there was none.
  void apply(const node::Event& event, base::TimePoint now);
  // All that has come in at once has been told.
  void rest() { apply(node::Rest{}); }

  // When apply(TimePassed) and rest() are wanted.
  std::optional<base::TimePoint> next_deadline() const { return machine_.next_deadline(); }
  base::TimePoint now() const { return clock_.now(); }

  // The last epoch that any daemon of this boot can have given by now: claims above it are false.
  base::LeaseEpoch newest_possible_epoch() const;

  std::vector<sched::GpuView> view() const { return machine_.leases().view(clock_.now()); }
  // Of a tenant that is not there, one without a name.
  std::shared_ptr<const TenantLabel> label(base::TenantId tenant) const;
  // Why a tenant's seat is remarkable ("does not answer", "does not drain"), for status. Empty: it is not.
  std::string note(base::SeatId seat) const;
  // Allocations that were refused, the latest first.
  std::vector<RefusedAllocation> refused_on(base::GpuIndex gpu) const { return refusals_.on(gpu); }

 private:
  void told(const sched::Event& event) override;
  void planning(base::GpuIndex, const std::vector<sched::Turn>&) override {}
  void planned(base::GpuIndex, const std::vector<sched::Turn>&) override {}
  void add_to_machine(base::GpuIndex gpu);
  bool grants(base::SeatId seat) const;
  void record_request(base::TimePoint now, base::SeatId seat);
  // `idle_before`: totals() before the event, of the seat that has drained by it.
  void record_event(base::TimePoint now, const node::Event& event, base::Duration idle_before);
  void forget(base::SeatId seat);
  void record_memory(base::TimePoint now, base::SeatId seat, const sched::MemoryReport& report);
  void record_command(base::TimePoint now, const sched::Command& command);
  void record_command(base::TimePoint now, const sched::RoomBound& bound);
  void record_command(base::TimePoint, const sched::ExpectEviction&) {}
  void record_command(base::TimePoint now, const node::ModeChanged& change);
  void record_command(base::TimePoint now, const node::TurnsForMemory& change);
  TraceEntry entry(base::TimePoint now, std::string_view name, base::SeatId seat) const;
  void record(base::TimePoint now, std::string_view name, base::SeatId seat, base::LeaseEpoch epoch = {},
              std::string_view detail = {});
  std::string names_of(const std::vector<base::SeatId>& seats, std::optional<uid_t> reader = {}) const;

  const base::Clock& clock_;
  Trace& trace_;
  Executor executor_;
  std::function<void()> tell_settings_ = [] {};
  node::Machine machine_;
  bool was_restless_ = false;  // and that was said
  std::vector<Gpu> gpus_;
  std::unordered_map<base::TenantId, std::shared_ptr<const TenantLabel>> labels_;
  enum class Moves : std::uint8_t { kNowhere, kOut, kIn };
  // The part of an open seat that people see and the machine does not need.
  struct Remembered {
    std::string note;                      // empty: the seat is not remarkable
    bool is_request_traced = false;        // a waiting tenant asks every 100 ms
    std::uint64_t resident = 0, away = 0;  // bytes, as last reported: more often than there is something for the trace
    Moves moves = Moves::kNowhere;
  };
  std::map<base::SeatId, Remembered> seats_;
  Refusals refusals_;
  std::shared_ptr<const std::string> settings_changes_;  // of the event that is about to be recorded
  node::Commands commands_;                              // kept only for its memory
};

}  // namespace gpumux::daemon
