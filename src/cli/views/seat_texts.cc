// SPDX-License-Identifier: Apache-2.0
#include "cli/views/seat_texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "base/units.h"
#include "cli/views/status_view.h"

namespace gpumux::cli {
namespace {

using api_client::Gpu;
using api_client::Seat;

// In this order seats are shown; each phase has its colour.
struct Phase {
  std::string_view name;
  Colour colour;
};
constexpr std::array<Phase, 7> kPhases{{{"holding", Colour::kGreen},
                                        {"revoked", Colour::kCyan},
                                        {"draining", Colour::kCyan},
                                        {"silent", Colour::kRed},
                                        {"waiting", Colour::kYellow},
                                        {"idle", Colour::kNone},
                                        {"suspended", Colour::kNone}}};

std::size_t phase_rank(const std::string& name) {
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    if (kPhases[i].name == name) return i;
  }
  return kPhases.size();
}

// How far a switch is that moves much memory. Empty: nothing is to move.
std::string move_of(const Seat& seat) {
  if (!seat.memory) return {};
  const api_client::SeatMemory& memory = *seat.memory;
  const std::string all = base::format_bytes(memory.allocated);
  if (seat.phase == "holding" && memory.evicted > 0) {
    const std::uint64_t there = memory.allocated - std::min(memory.allocated, memory.evicted);
    return "its memory comes: " + base::format_bytes(there) + " of " + all + " are on the GPU";
  }
  if (seat.phase != "holding" && memory.resident > memory.room)
    return "its memory leaves: " + base::format_bytes(memory.resident) + " of " + all + " are still on the GPU";
  return {};
}

}  // namespace

std::vector<const Seat*> in_order(const Gpu& gpu) {
  std::vector<const Seat*> seats;
  for (const Seat& seat : gpu.seats) seats.push_back(&seat);
  std::stable_sort(seats.begin(), seats.end(), [](const Seat* a, const Seat* b) {
    const std::size_t rank_a = phase_rank(a->phase);
    const std::size_t rank_b = phase_rank(b->phase);
    return rank_a != rank_b ? rank_a < rank_b : a->queue_place < b->queue_place;
  });
  return seats;
}

std::string name_tenants(std::string_view text, const std::vector<Gpu>& gpus) {
  constexpr std::string_view kWord = "tenant ";
  const auto name_of = [&](std::uint64_t tenant) -> std::string {
    for (const Gpu& gpu : gpus) {
      for (const Seat& seat : gpu.seats) {
        if (seat.tenant == tenant) return seat.program + " (" + std::to_string(seat.pid) + ")";
      }
    }
    return {};
  };
  std::string named;
  for (std::size_t at; (at = text.find(kWord)) != std::string_view::npos;) {
    const std::size_t begin = at + kWord.size();
    const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    const auto number = base::parse_integer(text.substr(begin, end - begin), 0, UINT64_MAX);
    const std::string name = number ? name_of(*number) : "";
    named += text.substr(0, at);
    named += name.empty() ? std::string(text.substr(at, end - at)) : name;
    text.remove_prefix(end);
  }
  return named + std::string(text);
}

std::string why_text(const Seat& seat, const std::vector<Gpu>& gpus) {
  std::string text = name_tenants(seat.waits_for, gpus);
  const auto add = [&](const std::string& more) { text += (text.empty() || more.empty() ? "" : "; ") + more; };
  if (seat.poisoned) add("its context has failed and can run nothing more");
  if (seat.is_frozen) add("its work stands still in the middle");
  add(move_of(seat));
  if (seat.memory && seat.memory->wanted > 0)
    add("its allocation waits for room: " + base::format_bytes(seat.memory->wanted) + " in all");
  add(seat.note);
  return text;
}

std::string share_text(const Seat& seat) {
  std::string text = seat.share == "1" ? "" : seat.share;
  if (!seat.max_share.empty() && seat.max_share != "100%") text += (text.empty() ? "<= " : ", <= ") + seat.max_share;
  // Under MPS the share is in force as a part of the threads, which is fixed when the program starts.
  if (seat.mps && seat.mps->thread_percentage < 100)
    text += (text.empty() ? "" : ", ") + std::to_string(seat.mps->thread_percentage) + "% of threads";
  return text;
}

std::string waits_text(const Seat& seat) {
  if (seat.wait_p99 == base::Duration::zero()) return {};
  return short_duration(seat.wait_p50) + " / " + short_duration(seat.wait_p99);
}

std::string phase_text(const Seat& seat) {
  return seat.queue_place > 0 ? seat.phase + " #" + std::to_string(seat.queue_place) : seat.phase;
}

Colour colour_of(const Seat& seat) {
  if (seat.poisoned) return Colour::kRed;
  const std::size_t rank = phase_rank(seat.phase);
  return rank < kPhases.size() ? kPhases[rank].colour : Colour::kNone;
}

std::string program_text(const Seat& seat) {
  constexpr std::size_t kShortId = 12;  // as other tools shorten it
  constexpr std::string_view kSlurm = "slurm-";
  std::string text = seat.program.empty() ? "?" : seat.program;
  const api_client::Container& container = seat.container;
  if (!container.pod.empty()) {
    text += " in " + container.pod_namespace + "/" + container.pod;
  } else if (container.id.starts_with(kSlurm)) {
    text += " in Slurm job " + container.id.substr(kSlurm.size());
  } else if (!container.id.empty()) {
    text += " in container " + container.id.substr(0, kShortId);
  }
  return text;
}

std::string user_text(const Seat& seat) { return seat.user.empty() ? std::to_string(seat.uid) : seat.user; }

std::string recent_use_text(const Seat& seat, base::Duration window) {
  if (window <= base::Duration::zero()) return {};
  const double percent = 100 * static_cast<double>(seat.recent_gpu_time.count()) / static_cast<double>(window.count());
  const bool is_little = percent > 0 && percent < 0.5;
  return is_little ? "<1%" : std::to_string(std::lround(std::clamp(percent, 0.0, 100.0))) + "%";
}

std::string settings_text(const Gpu& gpu) {
  std::string text = gpu.mode;
  if (gpu.mode == "auto" && !gpu.mode_now.empty()) text += " (now " + gpu.mode_now + ")";
  text += ", " + gpu.policy + ", quantum " + gpu.quantum;
  if (gpu.quantum == "auto" && gpu.quantum_now > base::Duration::zero())
    text += " (now " + short_duration(gpu.quantum_now) + ")";
  return text;
}

std::string bytes_text(std::uint64_t bytes) { return bytes == 0 ? "" : base::format_bytes(bytes); }

std::string power_text(const api_client::GpuLoad& load) {
  const auto watts = [](std::uint32_t milliwatts) { return std::to_string((milliwatts + 500) / 1000); };
  const std::string limit = load.power_limit_milliwatts ? " of " + watts(*load.power_limit_milliwatts) : "";
  return watts(*load.power_milliwatts) + limit + " W";
}

std::string foreign_line(const api_client::Gpu& gpu) {
  std::string text = "not under gpumux:";
  for (const auto& process : gpu.foreign) {
    text += (text.back() == ':' ? " " : ", ") + process.name + " (" + std::to_string(process.pid);
    if (process.memory_bytes > 0) text += ", " + base::format_bytes(process.memory_bytes);
    text += ")";
  }
  return text;
}

}  // namespace gpumux::cli
