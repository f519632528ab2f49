// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/metrics.h"

#include <algorithm>
#include <functional>

namespace gpumux::daemon {
namespace {

using Kind = Exposition::Kind;

Labels with(Labels labels, std::string_view name, std::string_view value) { return labels.add(name, value); }

// As NVIDIA's DCGM exporter spells them, so that dashboards can join on them.
Labels gpu_labels(const GpuStatus& gpu) {
  return Labels().add("gpu", std::to_string(gpu.index)).add("UUID", gpu.gpu.info.uuid_text);
}

void write_daemon(Exposition& out, const MetricsSnapshot& snapshot) {
  out.begin_family("gpumux_build_info", Kind::kGauge, "Always 1; the labels say which daemon this is.");
  out.sample(Labels()
                 .add("version", snapshot.info.version)
                 .add("cuda_version", snapshot.info.driver.cuda_version)
                 .add("driver_version", snapshot.info.driver.nvml_version),
             std::uint64_t{1});
  out.begin_family("gpumux_daemon_start_time_seconds", Kind::kGauge, "When the daemon started, since 1970.");
  out.sample({}, base::Duration(snapshot.info.started_unix_ns));
  out.begin_family("gpumux_tenants", Kind::kGauge, "Processes that use GPUs through gpumux.");
  out.sample({}, snapshot.tenants);
  out.begin_family("gpumux_daemon_deadlines", Kind::kCounter, "Deadlines that the daemon had set itself.");
  out.sample({}, snapshot.loop.fired);
  out.begin_family("gpumux_daemon_late_deadlines", Kind::kCounter,
                   "Deadlines that the daemon met more than 1 ms late.");
  out.sample({}, snapshot.loop.late_over_1ms);
  out.begin_family("gpumux_broken_invariants", Kind::kCounter,
                   "Times that the daemon found its own state wrong. The log says what.");
  out.sample({}, snapshot.loop.broken_invariants);
  out.begin_family("gpumux_unknown_driver_calls", Kind::kCounter,
                   "Calls of driver entries that the library does not know, and so does not hold up.");
  out.sample({}, snapshot.unknown_calls);
}

void write_host_memory(Exposition& out, const StatusSnapshot& status) {
  const auto bytes = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    out.begin_family(name, Kind::kGauge, help);
    out.sample({}, value);
  };
  bytes("gpumux_host_memory_budget_bytes", "Host memory that evicted memory may take.", status.host_budget);
  bytes("gpumux_host_memory_lent_bytes", "Host memory that the mover has.", status.host_lent);
  bytes("gpumux_host_memory_ready_bytes", "Host memory that is made and not lent.", status.host_ready);
  out.begin_family("gpumux_host_memory_short", Kind::kGauge, "1 while host memory is refused for the budget.");
  out.sample({}, std::uint64_t{status.host_is_short});
  out.begin_family("gpumux_host_memory_loan_waits", Kind::kCounter,
                   "Loans of host memory that were not there at once.");
  out.sample({}, status.host_loans.waited);
  out.begin_family("gpumux_host_memory_loan_wait_seconds", Kind::kCounter, "How long loans were waited for.");
  out.sample({}, status.host_loans.waiting);
}

// One family with one sample for each GPU.
template <class Value>
void each_gpu(Exposition& out, const StatusSnapshot& status, std::string_view name, Kind kind, std::string_view help,
              Value value) {
  out.begin_family(name, kind, help);
  for (const GpuStatus& gpu : status.gpus) out.sample(gpu_labels(gpu), value(gpu));
}

// One family with samples for each GPU that is served, told apart by one more label.
template <class Samples>
void each_gpu_by(Exposition& out, const StatusSnapshot& status, std::string_view name, Kind kind, std::string_view help,
                 std::string_view label, Samples samples) {
  out.begin_family(name, kind, help);
  for (const GpuStatus& gpu : status.gpus) {
    if (!gpu.gpu.refused.empty()) continue;
    const Labels labels = gpu_labels(gpu);
    samples(gpu, [&](std::string_view which, auto value) { out.sample(with(labels, label, which), value); });
  }
}

void write_gpus(Exposition& out, const StatusSnapshot& status) {
  using U = std::uint64_t;
  out.begin_family("gpumux_gpu_info", Kind::kGauge, "Always 1; the labels say which GPU this is.");
  for (const GpuStatus& gpu : status.gpus) {
    const GpuInfo& info = gpu.gpu.info;
    out.sample(gpu_labels(gpu).add("model", info.name).add("pci_bus_id", info.pci_bus_id), U{1});
  }
  each_gpu(out, status, "gpumux_gpu_served", Kind::kGauge, "1 if this daemon serves the GPU.",
           [](const GpuStatus& gpu) { return U{gpu.gpu.refused.empty()}; });
  each_gpu(out, status, "gpumux_gpu_healthy", Kind::kGauge, "0 if the driver has said that the GPU is broken.",
           [](const GpuStatus& gpu) { return U{gpu.gpu.use.sick.empty()}; });
  each_gpu(out, status, "gpumux_gpu_memory_total_bytes", Kind::kGauge, "The GPU's memory.",
           [](const GpuStatus& gpu) { return gpu.gpu.info.memory_total; });
  each_gpu(out, status, "gpumux_gpu_memory_used_bytes", Kind::kGauge, "GPU memory in use, as the driver says.",
           [](const GpuStatus& gpu) { return gpu.gpu.use.memory_used; });
  each_gpu(out, status, "gpumux_gpu_foreign_processes", Kind::kGauge,
           "Processes that use the GPU and that gpumux does not hold up.",
           [](const GpuStatus& gpu) { return U{gpu.foreign.size()}; });
  each_gpu_by(out, status, "gpumux_gpu_tenant_memory_bytes", Kind::kGauge,
              "Memory of programs: on the GPU, in host memory, and on the GPU and unable to leave.", "state",
              [](const GpuStatus& gpu, const auto& sample) {
                U resident = 0, evicted = 0, unpageable = 0;
                for (const sched::SeatMemoryView& seat : gpu.memory.seats) {
                  resident += seat.report.resident;
                  evicted += seat.report.evicted;
                  unpageable += seat.report.unpageable;
                }
                sample("resident", resident);
                sample("evicted", evicted);
                sample("unpageable", unpageable);
              });
  each_gpu_by(out, status, "gpumux_gpu_other_memory_bytes", Kind::kGauge,
              "GPU memory that programs under gpumux cannot have, and why.", "reason",
              [](const GpuStatus& gpu, const auto& sample) {
                sample("foreign", gpu.memory.foreign);
                sample("returning", gpu.memory.returning);
                sample("reserve", gpu.memory.reserve);
              });
  each_gpu_by(
      out, status, "gpumux_gpu_seats", Kind::kGauge, "Programs on the GPU, by what they do.", "phase",
      [](const GpuStatus& gpu, const auto& sample) {
        using sched::SeatPhase;
        for (const SeatPhase phase : {SeatPhase::kIdle, SeatPhase::kWaiting, SeatPhase::kHolding, SeatPhase::kRevoked,
                                      SeatPhase::kDraining, SeatPhase::kSilent, SeatPhase::kSuspended}) {
          sample(phase_text(phase),
                 static_cast<U>(std::count_if(gpu.seats.begin(), gpu.seats.end(),
                                              [&](const SeatStatus& seat) { return seat.view.phase == phase; })));
        }
      });
  each_gpu_by(out, status, "gpumux_gpu_mode", Kind::kGauge, "1 for the way in which programs share the GPU now.",
              "mode", [](const GpuStatus& gpu, const auto& sample) {
                sample("serial", U{gpu.gpu.mode == sched::Mode::kSerial});
                sample("concurrent", U{gpu.gpu.mode == sched::Mode::kConcurrent});
              });
  each_gpu(out, status, "gpumux_gpu_held_seconds", Kind::kCounter, "How long some program held a lease of the GPU.",
           [](const GpuStatus& gpu) { return gpu.view.held; });
  each_gpu(out, status, "gpumux_gpu_switches", Kind::kCounter, "How often the GPU changed hands.",
           [](const GpuStatus& gpu) { return gpu.view.switches; });
  each_gpu(out, status, "gpumux_gpu_interrupts", Kind::kCounter, "How often unfinished work was taken off the GPU.",
           [](const GpuStatus& gpu) { return gpu.view.interrupts; });
  each_gpu(out, status, "gpumux_gpu_longest_wait_seconds", Kind::kGauge,
           "How long the program that has waited longest has waited; 0: none waits.", [&](const GpuStatus& gpu) {
             base::Duration longest{};
             for (const SeatStatus& seat : gpu.seats) {
               if (seat.view.phase == sched::SeatPhase::kWaiting)
                 longest = std::max(longest, status.now - seat.view.since);
             }
             return longest;
           });
  each_gpu_by(out, status, "gpumux_gpu_moved_bytes", Kind::kCounter,
              "Memory that was copied: out to host memory, in to the GPU.", "direction",
              [](const GpuStatus& gpu, const auto& sample) {
                sample("out", gpu.moved.out);
                sample("in", gpu.moved.in);
              });
  each_gpu_by(out, status, "gpumux_gpu_not_copied_bytes", Kind::kCounter,
              "Memory that had to leave and was not copied, and why.", "reason",
              [](const GpuStatus& gpu, const auto& sample) {
                sample("unchanged", gpu.moved.saved_clean);
                sample("constant", gpu.moved.saved_constant);
                sample("handed_over", gpu.moved.handed_over);
              });
}

// The events of a GPU that the trace has counted.
const TraceCounters::Counts& counts_of(const MetricsSnapshot& snapshot, std::int32_t gpu) {
  static const TraceCounters::Counts kNone;
  const auto found = snapshot.counters.find(gpu);
  return found == snapshot.counters.end() ? kNone : found->second;
}

void write_trace_counters(Exposition& out, const MetricsSnapshot& snapshot) {
  const auto by_detail = [&](std::string_view name, std::string_view help, std::string_view event,
                             std::string_view label, std::string_view without) {
    each_gpu_by(out, snapshot.status, name, Kind::kCounter, help, label, [&](const GpuStatus& gpu, const auto& sample) {
      const auto& counts = counts_of(snapshot, static_cast<std::int32_t>(gpu.index));
      for (const auto& [kind, count] : counts.events) {
        if (kind.first == event) sample(kind.second.empty() ? without : kind.second, count);
      }
    });
  };
  by_detail("gpumux_gpu_grants", "Leases that were given, by kind.", "grant", "lease", "exclusive");
  by_detail("gpumux_gpu_revocations", "Leases that were taken back, and why.", "revoke", "reason", "other");
  by_detail("gpumux_allocations_refused", "Allocations of programs that were refused, and why.", "refused", "reason",
            "other");
  const auto of_event = [&](std::string_view name, std::string_view help, std::string_view event) {
    each_gpu(out, snapshot.status, name, Kind::kCounter, help, [&](const GpuStatus& gpu) {
      const auto& counts = counts_of(snapshot, static_cast<std::int32_t>(gpu.index));
      const auto found = counts.events.find({event, ""});
      return found == counts.events.end() ? std::uint64_t{0} : found->second;
    });
  };
  of_event("gpumux_gpu_stalls", "Programs whose work did not finish in time when they were to leave.", "stall");
  of_event("gpumux_gpu_silences", "Programs that did not answer in time when they were to leave.", "silent");
  out.begin_family("gpumux_gpu_wait_seconds", Kind::kHistogram, "How long programs waited for a lease.");
  for (const GpuStatus& gpu : snapshot.status.gpus) {
    const auto& counts = counts_of(snapshot, static_cast<std::int32_t>(gpu.index));
    out.sample(gpu_labels(gpu), counts.waits);
  }
  const auto& others = counts_of(snapshot, -1);
  const auto of_no_gpu = [&](std::string_view name, std::string_view help, std::string_view event) {
    out.begin_family(name, Kind::kCounter, help);
    for (const auto& [kind, count] : others.events) {
      if (kind.first == event) out.sample(Labels().add("reason", kind.second), count);
    }
  };
  of_no_gpu("gpumux_tenants_gone", "Processes that used GPUs through gpumux and do not any more.", "gone");
  of_no_gpu("gpumux_tenants_killed", "Processes that the daemon killed.", "kill");
}

void write_ledger(Exposition& out, const MetricsSnapshot& snapshot, StatusRenderer& names) {
  if (snapshot.ledger.empty()) return;
  std::vector<Labels> labels;
  labels.reserve(snapshot.ledger.size());
  for (const LedgerLine& line : snapshot.ledger) {
    const LedgerOwner& owner = line.key.owner;
    Labels of = gpu_labels(snapshot.status.gpus.at(line.key.gpu.value));
    if (owner.uid) of.add("user", names.user(*owner.uid));
    of.add("namespace", owner.pod_namespace).add("pod", owner.pod);
    if (const auto* program = std::get_if<LedgerProgram>(&line.key.what)) {
      of.add("program", program->name).add("container", program->container);
      if (program->job != 0) of.add("job", std::to_string(program->job));
    } else {
      of.add("others", "true");
    }
    labels.push_back(std::move(of));
  }
  const auto family = [&](std::string_view name, Kind kind, std::string_view help, auto value) {
    out.begin_family(name, kind, help);
    for (std::size_t i = 0; i < labels.size(); ++i) out.sample(labels[i], value(snapshot.ledger[i]));
  };
  family("gpumux_program_seats", Kind::kGauge, "Processes of the program that are there.",
         [](const LedgerLine& line) { return line.live; });
  family("gpumux_program_held_seconds", Kind::kCounter, "How long the program held leases of the GPU.",
         [](const LedgerLine& line) { return line.figures.held; });
  family("gpumux_program_gpu_seconds", Kind::kCounter,
         "The same without the time that it was idle before it gave leases up.",
         [](const LedgerLine& line) { return line.figures.gpu_time; });
  family("gpumux_program_waited_seconds", Kind::kCounter, "How long the program waited for leases.",
         [](const LedgerLine& line) { return line.figures.waited; });
  family("gpumux_program_grants", Kind::kCounter, "How often the program got a lease.",
         [](const LedgerLine& line) { return line.figures.grants; });
  family("gpumux_program_switches", Kind::kCounter, "How often it got the GPU after another program.",
         [](const LedgerLine& line) { return line.figures.switches; });
  family("gpumux_program_resident_byte_seconds", Kind::kCounter, "Its memory on the GPU, times how long it was there.",
         [](const LedgerLine& line) { return line.figures.resident_byte_seconds; });
  family("gpumux_program_evicted_byte_seconds", Kind::kCounter,
         "Its memory in host memory, times how long it was there.",
         [](const LedgerLine& line) { return line.figures.evicted_byte_seconds; });
  family("gpumux_program_moved_out_bytes", Kind::kCounter, "Its memory that was copied to host memory.",
         [](const LedgerLine& line) { return line.figures.moved.out; });
  family("gpumux_program_moved_in_bytes", Kind::kCounter, "Its memory that was copied to the GPU.",
         [](const LedgerLine& line) { return line.figures.moved.in; });
}

void write_queue(Exposition& out, const jobs::QueueFigures& queue, StatusRenderer& names) {
  out.begin_family("gpumux_queue_available", Kind::kGauge, "1 if the daemon has a job queue that works.");
  out.sample({}, std::uint64_t{queue.is_available});
  if (!queue.is_available) return;
  out.begin_family("gpumux_queue_paused", Kind::kGauge, "1 while no job is started.");
  out.sample({}, std::uint64_t{queue.is_paused});
  out.begin_family("gpumux_jobs", Kind::kGauge, "Jobs that are not done, by state.");
  for (const auto& [state, count] : queue.jobs) out.sample(Labels().add("state", state), count);
  out.begin_family("gpumux_jobs_ended", Kind::kCounter, "Jobs that ended, and how.");
  for (const auto& [outcome, count] : queue.ended) out.sample(Labels().add("outcome", outcome), count);
  out.begin_family("gpumux_job_wait_seconds", Kind::kHistogram, "From a job's submission to its first start.");
  out.sample({}, queue.waits);
  const auto by_user = [&](std::string_view name, std::string_view help, auto value) {
    out.begin_family(name, Kind::kGauge, help);
    for (const jobs::QueueFigures::User& user : queue.users)
      out.sample(Labels().add("user", names.user(user.uid)), value(user));
  };
  by_user("gpumux_user_running_jobs", "Jobs of the user that run.", [](const auto& user) { return user.running; });
  by_user("gpumux_user_queued_jobs", "Jobs of the user that wait.", [](const auto& user) { return user.queued; });
  by_user("gpumux_user_job_gpus", "GPUs that the user's jobs have.", [](const auto& user) { return user.gpus; });
}

}  // namespace

std::string render_metrics(const MetricsSnapshot& snapshot, StatusRenderer& names, MetricsFormat format) {
  Exposition out(format);
  write_daemon(out, snapshot);
  write_host_memory(out, snapshot.status);
  write_gpus(out, snapshot.status);
  write_trace_counters(out, snapshot);
  write_ledger(out, snapshot, names);
  write_queue(out, snapshot.queue, names);
  return std::move(out).finish();
}

}  // namespace gpumux::daemon
