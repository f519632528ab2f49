// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/run_suspension.h"

#include <algorithm>

#include "base/units.h"
#include "daemon/gpus/leases.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/tenant_table.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

std::string name_of(const Session& session) {
  return session.label->program + " (" + std::to_string(session.peer.pid) + ")";
}

}  // namespace

void RunSuspension::joined(Session& session) {
  if (session.run.empty()) return;
  Run& run = runs_[key_of(session)];
  run.tenants[session.id] = &session;
  session.is_suspended = run.suspension.has_value();
  if (run.suspension) unsettled_.insert(key_of(session));
}

void RunSuspension::left(const Session& session) {
  const auto run = runs_.find(key_of(session));
  if (run == runs_.end()) return;
  run->second.tenants.erase(session.id);
  if (run->second.suspension) {
    unsettled_.insert(run->first);
  } else if (run->second.tenants.empty()) {
    runs_.erase(run);
  }
}

void RunSuspension::heard(const Session& session) {
  if (session.is_suspended) unsettled_.insert(key_of(session));
}

std::vector<base::SeatId> RunSuspension::seats_of(const Run& run) {
  std::vector<base::SeatId> seats;
  for (const auto& [id, session] : run.tenants) {
    for (const auto& [number, slot] : session->slots()) seats.push_back(seat_of(*session, slot));
  }
  return seats;
}

void RunSuspension::set_suspended(const RunKey& key, bool is_suspended) {
  if (key.second.empty() || this->is_suspended(key) == is_suspended) return;
  Run& run = runs_[key];
  if (is_suspended) {
    run.suspension = Suspension{.least_since = leases_.now()};
  } else {
    run.suspension.reset();
  }
  std::vector<Session*> sessions;
  for (const auto& [id, session] : run.tenants) {
    session->is_suspended = is_suspended;
    sessions.push_back(session);
  }
  const std::vector<base::SeatId> seats = seats_of(run);
  if (!seats.empty()) leases_.apply(sched::SeatsSuspended{seats, is_suspended});
  if (is_suspended) {
    unsettled_.insert(key);
  } else {
    unsettled_.erase(key);
    if (run.tenants.empty()) runs_.erase(key);
  }
  server::log_info(is_suspended ? "a run is suspended: it gets no GPU, and its memory leaves" : "a run is resumed",
                   {{"run", key.second}, {"uid", key.first}, {"tenants", sessions.size()}, {"seats", seats.size()}});
  if (is_suspended) return;
  for (const Session* session : sessions) table_.changed(*session);
}

bool RunSuspension::is_suspended(const RunKey& key) const {
  const auto run = runs_.find(key);
  return run != runs_.end() && run->second.suspension;
}

RunState RunSuspension::state(const RunKey& key) const {
  const auto run = runs_.find(key);
  return run == runs_.end() ? RunState() : state_of(run->second);
}

RunState RunSuspension::state_of(const Run& run) const {
  RunState state;
  state.is_parked = run.suspension.has_value();
  for (const auto& [id, session] : run.tenants) {
    ++state.tenants;
    for (const auto& [number, slot] : session->slots()) add(run, *session, slot, state);
  }
  if (!run.suspension || state.is_parked || state.is_stuck) return state;
  if (state.undrained > 0) {
    state.why = "waits for its work to drain";
  } else if (state.evictable_on_gpu > 0) {
    state.why = base::format_bytes(state.evictable_on_gpu) + " are still on its GPUs";
  } else {
    state.why = "waits for its programs to take note";
  }
  return state;
}

void RunSuspension::add(const Run& run, const Session& session, const Slot& slot, RunState& state) const {
  const base::SeatId seat{session.id, slot.gpu};
  ++state.seats;
  RunState of_seat;
  if (leases_.machine().leases().phase(seat) != sched::SeatPhase::kSuspended) of_seat.undrained = 1;
  bool is_settled = true;
  const auto memory = leases_.memory().view(seat);
  if (!memory || !memory->speaks) {
    of_seat.left_to_driver = 1;
    is_settled = !memory || !memory->may_speak_yet;
  } else {
    of_seat.evictable_on_gpu = memory->report.resident;
    of_seat.unpageable = memory->report.unpageable;
    of_seat.allocated = memory->report.allocated;
    is_settled = memory->is_told && !memory->report.moving;
  }
  state.undrained += of_seat.undrained;
  state.evictable_on_gpu += of_seat.evictable_on_gpu;
  state.unpageable += of_seat.unpageable;
  state.allocated += of_seat.allocated;
  state.left_to_driver += of_seat.left_to_driver;
  if (!run.suspension) return;
  state.is_parked = state.is_parked && is_settled && of_seat.undrained == 0 && of_seat.evictable_on_gpu == 0;
  if (state.is_stuck) return;
  state.why = why_stuck(*run.suspension, session, seat, of_seat);
  state.is_stuck = !state.why.empty();
}

// Empty: the run is not stuck, as far as the daemon can tell.
std::string RunSuspension::why_stuck(const Suspension& suspension, const Session& session, base::SeatId seat,
                                     const RunState& of_seat) const {
  const std::string who = name_of(session) + " on GPU " + std::to_string(seat.gpu.value);
  if (of_seat.undrained > 0) {
    const std::string note = leases_.note(seat);
    return note.empty() ? std::string() : who + ": " + note;
  }
  const auto memory = leases_.memory().view(seat);
  if (!memory || of_seat.evictable_on_gpu == 0) return {};
  if (!memory->answers) return who + " does not answer the daemon";
  const bool is_host_full = this->is_host_full();
  const base::Duration waited = leases_.now() - suspension.least_since;
  if (waited < (memory->report.stuck || is_host_full ? kClearingPatience : kLongestClearingPatience)) return {};
  const std::string what = base::format_bytes(of_seat.evictable_on_gpu);
  if (is_host_full) {
    return "host memory cannot take the " + what + " that " + who + " still has there: of " +
           base::format_bytes(host_.budget()) + " (host_memory), " + base::format_bytes(host_.lent()) + " are lent";
  }
  return who + " cannot give up " + what + ": nothing of it has left for " + base::format_duration(waited);
}

bool RunSuspension::is_host_full() const {
  return host_.is_short() || (host_.ready() == 0 && host_.taken() + host_.chunk_bytes() > host_.budget());
}

bool RunSuspension::is_parked(const Session& session) const {
  if (!session.is_suspended) return false;
  const auto run = runs_.find(key_of(session));
  if (run == runs_.end() || !run->second.suspension) return false;
  return run->second.suspension->told.is_parked && !unsettled_.contains(run->first);
}

RunMemory RunSuspension::memory_of(base::SeatId seat) const {
  const auto memory = leases_.memory().view(seat);
  if (!memory || !memory->speaks) return {};
  const sched::MemoryReport& report = memory->report;
  return {
      .on_gpu = report.resident + report.unpageable, .unpageable = report.unpageable, .allocated = report.allocated};
}

std::vector<RunMemory> RunSuspension::memory_outside(const std::set<RunKey>& runs) const {
  std::vector<RunMemory> gpus(leases_.gpus().size());
  table_.for_each_seat([&](const Session& session, const Slot& slot) {
    if (!session.run.empty() && runs.contains(key_of(session))) return;
    const RunMemory seat = memory_of(seat_of(session, slot));
    RunMemory& gpu = gpus.at(slot.gpu.value);
    gpu.on_gpu += seat.on_gpu;
    gpu.unpageable += seat.unpageable;
    gpu.allocated += seat.allocated;
  });
  return gpus;
}

void RunSuspension::note_progress(const Run& run, Suspension& suspension) const {
  std::uint64_t on_gpu = 0;
  for (const base::SeatId seat : seats_of(run)) {
    const auto memory = leases_.memory().view(seat);
    if (memory && memory->speaks) on_gpu += memory->report.resident;
  }
  // Before it has drained nothing can leave.
  const bool is_waiting = suspension.told.undrained > 0;
  if (on_gpu < suspension.least_on_gpu || is_waiting) suspension.least_since = leases_.now();
  suspension.least_on_gpu = std::min(suspension.least_on_gpu, on_gpu);
}

void RunSuspension::look() {
  for (const RunKey& key : std::set<RunKey>(unsettled_)) {
    Run& run = runs_.at(key);
    RunState& told = run.suspension->told;
    note_progress(run, *run.suspension);
    RunState state = state_of(run);
    // A run that is parked tells of no change by itself. Every other run is looked at each time.
    if (state.is_parked) unsettled_.erase(key);
    if (state == told) continue;
    const bool is_news = state.is_stuck && !told.is_stuck;
    const bool has_parked = state.is_parked && !told.is_parked;
    if (is_news)
      server::log_warning("a suspended run does not come to rest", {{"run", key.second}, {"why", state.why}});
    if (has_parked) server::log_info("a suspended run may be frozen", {{"run", key.second}});
    told = std::move(state);
    if (changed_) changed_(key.first, key.second);
    if (!has_parked) continue;
    // A restarted daemon need not wait for them.
    for (const auto& [id, session] : run.tenants) table_.changed(*session);
  }
}

}  // namespace gpumux::daemon
