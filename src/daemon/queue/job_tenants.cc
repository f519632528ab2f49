// SPDX-License-Identifier: Apache-2.0
#include "daemon/queue/job_tenants.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "daemon/gpus/leases.h"
#include "daemon/loop/trace.h"
#include "daemon/tenants/foreign_processes.h"
#include "daemon/tenants/run_suspension.h"
#include "daemon/tenants/tenant_parts.h"
#include "jobs/service/job_queue.h"

namespace gpumux::daemon {
namespace {

// Memory that others than jobs have of a GPU keeps a job waiting only beyond this part, a sixteenth. The memory of a
// display or a monitor is no reason to wait.
constexpr std::uint64_t kToleratedPart = 16;
// A context takes some 0.5 GiB of an H100's 80.
constexpr std::uint64_t kContextPart = 160;
// Jobs start after this even if programs that were there before keep allocating, so that no look is certain. A guess.
constexpr base::Duration kFirstLookPatience = std::chrono::seconds(10);

}  // namespace

JobTenants::JobTenants(const Leases& leases, TenantParts& tenants, Trace& trace, std::function<void()> settle)
    : leases_(leases), tenants_(tenants), trace_(trace), settle_(std::move(settle)) {}

void JobTenants::suspend(uid_t uid, const std::string& run) {
  tenants_.suspension.set_suspended({uid, run}, true);
  settle_();
}

void JobTenants::resume(uid_t uid, const std::string& run) {
  tenants_.suspension.set_suspended({uid, run}, false);
  settle_();
}

void JobTenants::set_priority(uid_t uid, const std::string& run, std::int32_t priority) {
  tenants_.standings.set_run_priority(uid, run, priority);
  settle_();
}

jobs::ProgramsState JobTenants::state(uid_t uid, const std::string& run) const {
  const RunState state = tenants_.suspension.state({uid, run});
  return {.is_off = state.is_parked, .is_stuck = state.is_stuck, .why = state.why};
}

// The entry says what ends with it, for its beginning may have left the trace by then.
void JobTenants::changed(const jobs::StateChange& change) {
  trace_.record({.time = change.at,
                 .event = "job",
                 .detail = to_string(change.now),
                 .before = to_string(change.before),
                 .lasted = change.lasted,
                 .label = TenantLabel::make(0, change.uid, change.name, {}, change.job.value)});
}

// Of no job: tenants, and processes that are none.
std::vector<std::vector<jobs::ForeignProgram>> JobTenants::programs_outside(
    const std::set<std::pair<uid_t, std::string>>& runs) const {
  std::vector<std::vector<jobs::ForeignProgram>> programs(leases_.gpus().size());
  for (const auto& [id, session] : tenants_.table.sessions()) {
    if (runs.contains({session->peer.uid, session->run})) continue;
    for (const auto& [number, slot] : session->slots()) {
      const std::uint64_t bytes = tenants_.suspension.memory_of(seat_of(*session, slot)).allocated;
      if (bytes > 0) programs[slot.gpu.value].push_back({session->peer.uid, session->label->program, bytes});
    }
  }
  const ForeignProcesses foreign(tenants_);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    for (const GpuProcess& process : foreign.on(leases_.gpus()[i]))
      programs[i].push_back({std::nullopt, process.name, process.memory});
  }
  return programs;
}

void JobTenants::look_at_first(jobs::JobQueue& jobs, base::TimePoint asked_at) {
  if (jobs.is_looked_at()) return;
  if (!first_look_at_) first_look_at_ = asked_at;
  // Programs that come back to a restarted daemon move memory: then the next look tells.
  if (leases_.machine().looks_again() && asked_at - *first_look_at_ < kFirstLookPatience) return;
  look_for_foreign_use(jobs);
  jobs.set_looked_at();
}

void JobTenants::look_for_foreign_use(jobs::JobQueue& jobs) const {
  if (jobs.runs() == nullptr) return;
  std::set<RunKey> runs;
  std::set<std::uint32_t> unknown;
  jobs.runs()->for_each_run([&](jobs::JobId job, uid_t uid, const std::string& run) {
    runs.emplace(uid, run);
    const auto standing = jobs.standing(job);
    if (!standing || standing->state != jobs::JobState::kSuspended) return;
    // Frozen since before this daemon: its programs are not known yet, and look like others'.
    if (tenants_.suspension.state({uid, run}).tenants > 0) return;
    for (const base::GpuIndex gpu : standing->gpus) unknown.insert(gpu.value);
  });
  // The contexts of jobs' own programs. Only the driver's figure for each process tells them from others' memory.
  // Without such a figure the usual size counts.
  std::vector<std::uint64_t> contexts(leases_.gpus().size());
  for (const auto& [id, session] : tenants_.table.sessions()) {
    if (!runs.contains({session->peer.uid, session->run})) continue;
    for (const auto& [number, slot] : session->slots()) {
      const std::size_t i = slot.gpu.value;
      const Gpu& gpu = leases_.gpus()[i];
      std::uint64_t all = 0;
      for (const GpuProcess& process : gpu.use.processes) {
        if (process.pid == session->peer.pid) all = process.memory;
      }
      const std::uint64_t known = tenants_.suspension.memory_of(seat_of(*session, slot)).on_gpu;
      contexts[i] += all > known ? all - known : gpu.info.memory_total / kContextPart;
    }
  }
  // The mover's context is there for the jobs' programs, too.
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const Gpu& gpu = leases_.gpus()[i];
    for (const GpuProcess& process : gpu.use.processes) {
      if (!tenants_.mover_seats.is_mover(process.pid)) continue;
      contexts[i] += process.memory > 0 ? process.memory : gpu.info.memory_total / kContextPart;
    }
  }
  const std::vector<RunMemory> others = tenants_.suspension.memory_outside(runs);
  std::vector<std::vector<jobs::ForeignProgram>> programs = programs_outside(runs);
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
    const base::GpuIndex gpu{static_cast<std::uint32_t>(i)};
    const Gpu& known = leases_.gpus()[i];
    if (!known.refused.empty()) continue;
    const std::uint64_t foreign = unknown.contains(gpu.value) ? 0 : leases_.memory().view(gpu).foreign;
    std::uint64_t used = foreign - std::min(foreign, contexts[i]);
    if (i < others.size()) used += others[i].allocated;
    jobs.set_foreign_programs(gpu, std::move(programs[i]));
    jobs.set_foreign_use(gpu, used <= known.info.memory_total / kToleratedPart ? 0 : used);
  }
}

}  // namespace gpumux::daemon
