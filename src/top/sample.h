// SPDX-License-Identifier: Apache-2.0
// For tests: a machine with programs and jobs, as its daemon describes it.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "top/model.h"

namespace gpumux::top {

inline constexpr base::TimePoint kSampleNow{std::chrono::seconds(1000)};
inline base::TimePoint at(double seconds) {
  return base::TimePoint(base::Duration(static_cast<std::int64_t>(seconds * 1e9)));
}
inline constexpr std::int64_t kSampleUnixNs = 1'700'000'000'000'000'000;

inline api_client::Seat sample_seat(std::uint64_t tenant, std::string program, std::string phase,
                                    std::uint64_t place = 0) {
  constexpr std::uint64_t kGiB = 1ull << 30;
  api_client::Seat seat;
  seat.tenant = tenant;
  seat.pid = 4700 + static_cast<std::int64_t>(tenant);
  seat.user = "eva";
  seat.program = std::move(program);
  seat.phase = std::move(phase);
  seat.queue_place = place;
  seat.since = std::chrono::seconds(2);
  if (seat.phase == "holding") seat.lease = "exclusive";
  if (place > 0) seat.waits_for = "quantum of tenant 1";
  seat.gpu_time = std::chrono::seconds(100 * tenant);
  api_client::SeatMemory& memory = seat.memory.emplace();
  memory.allocated = 24 * kGiB;
  memory.resident = place > 1 ? 4 * kGiB : 20 * kGiB;
  memory.evicted = memory.allocated - memory.resident;
  memory.room = memory.allocated;
  return seat;
}

// `gpus` GPUs, each with a holder, two waiters and an idle program, and turns of the first two.
inline Model sample_model(std::uint32_t gpus) {
  constexpr std::uint64_t kGiB = 1ull << 30;
  Model model("/run/gpumux");
  api_client::Snapshot snapshot;
  snapshot.recent = std::chrono::seconds(5);
  std::uint64_t sequence = 0;
  for (std::uint32_t index = 0; index < gpus; ++index) {
    api_client::Gpu& gpu = snapshot.gpus.emplace_back();
    gpu.index = index;
    gpu.name = "NVIDIA H100 80GB HBM3";
    gpu.mode = "auto";
    gpu.mode_now = "serial";
    gpu.policy = "fair";
    gpu.quantum = "auto";
    gpu.memory_total_bytes = 80 * kGiB;
    gpu.memory_used_bytes = 52 * kGiB;
    gpu.memory.foreign = 6 * kGiB;
    gpu.memory.reserve = 2 * kGiB;
    gpu.load.utilization_percent = 97;
    gpu.load.temperature_celsius = 61;
    gpu.load.power_milliwatts = 312'500;
    const std::uint64_t tenant = 4 * index + 1;
    gpu.seats = {sample_seat(tenant + 3, "notebook", "idle"), sample_seat(tenant + 2, "serve.py", "waiting", 2),
                 sample_seat(tenant + 1, "tune.py", "waiting", 1), sample_seat(tenant, "train.py", "holding")};
    std::string lines;
    for (std::uint64_t turn = 0; turn < 5; ++turn) {
      const std::uint64_t holder = tenant + turn % 2;
      const auto add = [&](const char* event, std::int64_t seconds) {
        lines += "{\"sequence\":" + std::to_string(++sequence) +
                 ",\"time_ns\":" + std::to_string(seconds * 1'000'000'000) + ",\"gpu\":" + std::to_string(index) +
                 ",\"event\":\"" + event + "\",\"lease\":\"exclusive\",\"tenant\":" + std::to_string(holder) +
                 ",\"pid\":" + std::to_string(4700 + holder) + ",\"program\":\"" +
                 (turn % 2 == 0 ? "train.py" : "tune.py") + "\"}\n";
      };
      const auto begin = static_cast<std::int64_t>(950 + 10 * turn);
      add("grant", begin);
      if (turn < 4) add("gate_closed", begin + 10);
    }
    static_cast<void>(model.take_trace(lines));
  }
  model.take_snapshot(std::move(snapshot), kSampleNow);
  api_client::JobPage page;
  for (std::uint64_t id = 1; id <= 5; ++id) {
    api_client::Job& job = page.jobs.emplace_back();
    job.id = id;
    job.name = "job-" + std::to_string(id);
    job.user = id % 2 == 0 ? "eva" : "tom";
    job.state = id < 3 ? "running" : id == 5 ? "held" : "queued";
    job.submitted_unix_ns = kSampleUnixNs - 60'000'000'000;
    if (id < 3) {
      job.gpus = {0};
      job.started_unix_ns = kSampleUnixNs - 30'000'000'000;
    } else {
      job.gpus_wanted = 1;
      if (id < 5) job.place = id - 2;
      job.why = id < 5 ? "GPU 0 has 9.5 GiB free of 80.0 GiB: job 1 (job-1) has 70.5 GiB" : "it is held";
    }
  }
  model.take_jobs(std::move(page));
  return model;
}

}  // namespace gpumux::top
