// SPDX-License-Identifier: Apache-2.0
// The lease core in the daemon: hands it events with the time, passes on its commands, keeps what people want to see
// beside it. Knows nothing of messages and sockets.
//
// Owned by the loop's thread.
#pragma once

#include <bitset>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"
#include "daemon/gpus/inventory.h"
#include "daemon/loop/trace.h"
#include "sched/events.h"
#include "sched/lease_core.h"
#include "settings/structs.gen.h"

namespace gpumux::daemon {

using settings::GpuSettings;

struct Gpu {
  GpuInfo info;
  GpuSettings settings;
  std::uint64_t settings_changes = 0;       // how often they were
  sched::Mode mode = sched::Mode::kSerial;  // in force: what `auto` comes to, or what was set
  std::string refused;                      // why it is not served; empty: it is
  std::string claimed_by;                   // who keeps its name without being obeyed (gpu_lock.h); empty: nobody
  bool has_foreign_work = false;            // programs that are not ours have been on it in two looks in a row
  bool was_foreign_seen = false;            // in the last one
  GpuUse use;
};

class Leases {
 public:
  // Carries out one command. It must not call back into this object; what follows from a failure is told later, by
  // events.
  using Executor = std::function<void(const sched::Command&)>;

  Leases(const base::Clock& clock, Trace& trace);
  void set_executor(Executor executor) { executor_ = std::move(executor); }

  // In index order, before anything else. `refused`: why the GPU is only shown.
  void add_gpu(GpuInfo info, const GpuSettings& settings, std::string refused);
  // A GPU that was only shown is served from now on.
  void serve(base::GpuIndex gpu);
  const std::vector<Gpu>& gpus() const { return gpus_; }
  // The index of a GPU by what cuDeviceGetUuid_v2 says of it.
  std::optional<base::GpuIndex> find(const base::GpuUuid& uuid) const;
  // Logs a change of its health.
  void set_use(std::size_t index, GpuUse use);
  void set_claimed_by(base::GpuIndex gpu, std::string who) { gpus_.at(gpu.value).claimed_by = std::move(who); }
  void set_settings(base::GpuIndex gpu, const GpuSettings& settings);
  // What the mode `auto` comes to, or what stands in for a mode that cannot be had now.
  void set_mode(base::GpuIndex gpu, sched::Mode mode);
  // After each look. With programs beside its own that nobody tells of time slices it has the driver's, if it may
  // choose: a short one would leave the GPU to those. One look may be too early for who is just connecting.
  void foreign_work_seen(base::GpuIndex gpu, bool is_seen);
  // Its seats, nearest turn first. Writes over `turns`.
  void turns(base::GpuIndex gpu, std::vector<sched::Turn>& turns) const { core_.turns(gpu, turns); }
  bool wants_turns(base::GpuIndex gpu) const { return core_.wants_turns(gpu); }
  void uses(base::GpuIndex gpu, std::vector<sched::SeatUse>& uses) const { core_.uses(clock_.now(), gpu, uses); }
  settings::Limit<base::Duration> quantum(base::GpuIndex gpu) const { return core_.quantum(gpu); }
  std::optional<sched::SeatPhase> phase(base::SeatId seat) const { return core_.phase(seat); }
  sched::SeatTotals totals(base::SeatId seat, base::TimePoint now) const { return core_.totals(now, seat); }
  // GPUs whose turns may have changed since the last call.
  std::bitset<base::kMaxGpus> take_changed() { return std::exchange(changed_, {}); }

  void connected(base::TenantId tenant, std::shared_ptr<const TenantLabel> label);
  // `why`: a literal, for the trace. `now`: the time up to which its seats' totals() were taken.
  void gone(base::TenantId tenant, std::string_view why, base::TimePoint now);
  // An allocation of the seat's was refused. For the trace; `why`: a literal.
  void trace_refusal(base::SeatId seat, std::string_view why);
  // Any event about a connected tenant's seats, and the daemon's own.
  void apply(const sched::Event& event) { apply(event, clock_.now()); }
  // The same for an event of a moment ago, after which there was none.
  void apply(const sched::Event& event, base::TimePoint now);

  // When apply(TimePassed) is wanted.
  std::optional<base::TimePoint> next_deadline() const { return core_.next_deadline(); }
  base::TimePoint now() const { return clock_.now(); }

  // The last epoch that any daemon of this boot can have given by now: claims above it are false.
  base::LeaseEpoch newest_possible_epoch() const;

  std::vector<sched::GpuView> view() const { return core_.view(clock_.now()); }
  std::shared_ptr<const TenantLabel> label(base::TenantId tenant) const;
  // Why a tenant's seat is remarkable ("does not answer", "does not drain"), for status. Empty: it is not.
  std::string note(base::SeatId seat) const;
  std::string check_invariants() const { return core_.check_invariants(); }

 private:
  bool grants(base::SeatId seat) const;
  void record_event(base::TimePoint now, const sched::Event& event);
  void forget(base::SeatId seat);
  void record_command(base::TimePoint now, const sched::Command& command);
  TraceEntry entry(base::TimePoint now, std::string_view name, base::SeatId seat) const;

  sched::GpuSettings core_settings(const Gpu& gpu) const;
  void note_changed(const sched::Event& event);

  const base::Clock& clock_;
  Trace& trace_;
  Executor executor_;
  sched::LeaseCore core_;
  std::vector<Gpu> gpus_;
  std::unordered_map<base::TenantId, std::shared_ptr<const TenantLabel>> labels_;
  std::unordered_map<std::uint64_t, std::string> notes_;  // by tenant and GPU
  // What the trace has said last: a tenant that waits asks every 100 ms, and reports ever so often.
  std::unordered_set<std::uint64_t> traced_requests_, traced_evicted_;
  std::bitset<base::kMaxGpus> changed_;
  std::vector<sched::Command> commands_;  // kept only for its memory
};

}  // namespace gpumux::daemon
