// SPDX-License-Identifier: Apache-2.0
#include "cli/views/status_view.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/units.h"
#include "cli/frame/table.h"
#include "cli/frame/words.h"
#include "cli/views/seat_texts.h"

namespace gpumux::cli {
namespace {

using api_client::Gpu;
using api_client::Seat;

std::vector<Cell> seat_cells(const Seat& seat, const std::vector<Gpu>& gpus, base::Duration window) {
  return {{program_text(seat)},
          {std::to_string(seat.pid)},
          {user_text(seat)},
          {seat.job ? std::to_string(*seat.job) : ""},
          {phase_text(seat), colour_of(seat)},
          {short_duration(seat.since)},
          {recent_use_text(seat, window)},
          {seat.lease},
          {seat.gang},
          {seat.priority != 0 ? std::to_string(seat.priority) : ""},
          {share_text(seat)},
          {seat.mps ? "yes" : ""},
          {std::to_string(seat.grants)},
          {short_duration(seat.gpu_time)},
          {short_duration(seat.waited)},
          {waits_text(seat)},
          {seat.memory ? base::format_bytes(seat.memory->allocated) : ""},
          {seat.memory ? base::format_bytes(seat.memory->resident + seat.memory->unpageable) : ""},
          {why_text(seat, gpus)}};
}

// "pool 1.0 GiB, graph 64 MiB"
std::string reasons_of(const api_client::SeatMemory& memory) {
  std::string text;
  for (const auto& [reason, number] : memory.unpageable_by_reason) {
    const auto bytes = base::parse_integer(number, 0, UINT64_MAX);
    text += (text.empty() ? "" : ", ") + reason + " " + (bytes ? base::format_bytes(*bytes) : number);
  }
  return text;
}

std::vector<Cell> memory_cells(const Seat& seat) {
  const api_client::SeatMemory memory = seat.memory.value_or(api_client::SeatMemory{});
  return {{program_text(seat)},
          {std::to_string(seat.pid)},
          {user_text(seat)},
          {phase_text(seat), colour_of(seat)},
          {bytes_text(memory.allocated)},
          {bytes_text(memory.quota)},
          {bytes_text(memory.resident)},
          {bytes_text(memory.evicted)},
          {bytes_text(memory.unpageable)},
          {bytes_text(memory.host_used)},
          {bytes_text(memory.moved_out)},
          {bytes_text(memory.moved_in)},
          {bytes_text(memory.saved_clean + memory.saved_constant)},
          {seat.memory ? reasons_of(memory) : "left to the driver"}};
}

Table memory_table() {
  return Table({{.title = "PROGRAM", .minimum = 8},
                {.title = "PID", .align = Align::kRight, .leave_out = 2},
                {.title = "USER", .leave_out = 7, .minimum = 6},
                {.title = "STATE", .leave_out = 6},
                {.title = "ALLOCATED", .align = Align::kRight},
                {.title = "LIMIT", .align = Align::kRight, .leave_out = 5, .hide_if_empty = true},
                {.title = "RESIDENT", .align = Align::kRight},
                {.title = "EVICTED", .align = Align::kRight, .leave_out = 1},
                {.title = "UNPAGEABLE", .align = Align::kRight, .leave_out = 3, .hide_if_empty = true},
                {.title = "HOST", .align = Align::kRight, .leave_out = 4, .hide_if_empty = true},
                {.title = "MOVED OUT", .align = Align::kRight, .leave_out = 8, .hide_if_empty = true},
                {.title = "MOVED IN", .align = Align::kRight, .leave_out = 9, .hide_if_empty = true},
                {.title = "NOT COPIED", .align = Align::kRight, .leave_out = 10, .hide_if_empty = true},
                {.title = "UNPAGEABLE BY", .leave_out = 11, .minimum = 14, .hide_if_empty = true}},
               2);
}

// A program is known by its name: other columns go before it is cut to less.
constexpr std::size_t kLeastName = 16;

Table seat_table() {
  return Table({{.title = "PROGRAM", .minimum = kLeastName},
                {.title = "PID", .align = Align::kRight, .leave_out = 2},
                {.title = "USER", .leave_out = 5, .minimum = 6},
                {.title = "JOB", .align = Align::kRight, .leave_out = 3, .hide_if_empty = true},
                {.title = "STATE"},
                {.title = "FOR", .align = Align::kRight, .leave_out = 4},
                {.title = "LAST 5S", .align = Align::kRight, .leave_out = 1, .hide_if_empty = true},
                {.title = "LEASE", .leave_out = 6, .hide_if_empty = true},
                {.title = "GANG", .leave_out = 7, .minimum = 6, .hide_if_empty = true},
                {.title = "PRIO", .align = Align::kRight, .leave_out = 6, .hide_if_empty = true},
                {.title = "SHARE", .align = Align::kRight, .leave_out = 6, .hide_if_empty = true},
                {.title = "MPS", .leave_out = 6, .hide_if_empty = true},
                {.title = "GRANTS", .align = Align::kRight, .leave_out = 10},
                {.title = "GPU TIME", .align = Align::kRight, .leave_out = 8},
                {.title = "WAITED", .align = Align::kRight, .leave_out = 9},
                {.title = "P50 / P99", .align = Align::kRight, .leave_out = 11, .hide_if_empty = true},
                {.title = "MEMORY", .align = Align::kRight, .leave_out = 5, .hide_if_empty = true},
                {.title = "ON GPU", .align = Align::kRight, .leave_out = 5, .hide_if_empty = true},
                {.title = "WHY", .hide_if_empty = true, .below = true}},
               2);
}

// The owners of the memory on the GPU.
std::string places_line(const Gpu& gpu) {
  return "memory: " + base::format_bytes(gpu.memory.tenants) + " of programs under gpumux, " +
         base::format_bytes(gpu.memory.foreign) + " of other programs and contexts, " +
         base::format_bytes(gpu.memory.reserve) + " kept free";
}

// An older one is no news.
constexpr base::Duration kRefusalIsNews = std::chrono::hours(1);

// "large (4711) was refused 2.0 GiB 12.0s ago, in addition to 1.0 GiB: its limit is 2.5 GiB"
std::string refused_line(const api_client::RefusedAllocation& refused) {
  const std::uint64_t more = refused.wanted - std::min(refused.wanted, refused.had);
  std::string text = refused.program + " (" + std::to_string(refused.pid) + ") was refused " +
                     base::format_bytes(more) + " " + short_duration(refused.age) + " ago, in addition to " +
                     base::format_bytes(refused.had) + ": ";
  std::string holders;
  for (const api_client::MemoryHolder& holder : refused.holders) {
    holders += (holders.empty() ? "" : ", ") + holder.program + " (" + std::to_string(holder.pid) + ") has " +
               base::format_bytes(holder.bytes);
  }
  const std::string details = holders.empty() ? "" : " (" + holders + ")";
  if (refused.reason == "quota") return text + "its limit is " + base::format_bytes(refused.limit);
  if (refused.reason == "gpu_memory") {
    text += "the GPU has " + base::format_bytes(refused.limit) + ", of which " + base::format_bytes(refused.others) +
            " are kept free or belong to contexts and other programs";
    return holders.empty() ? text : text + ". Memory that cannot leave: " + holders;
  }
  if (refused.reason == "host_memory") return text + "GPUs and host memory are used up" + details;
  if (refused.reason == "nothing_moves") return text + "it would fit, but no memory moved for too long" + details;
  return text + refused.reason;
}

// Empty: nothing has moved.
std::string moved_line(const Gpu& gpu) {
  const api_client::GpuMemory& memory = gpu.memory;
  const std::uint64_t saved = memory.saved_clean + memory.saved_constant;
  if (memory.moved_out + memory.moved_in + saved == 0) return {};
  std::string text =
      "moved so far: " + base::format_bytes(memory.moved_out) + " out, " + base::format_bytes(memory.moved_in) + " in";
  if (saved > 0) {
    text += "; not copied: " + base::format_bytes(memory.saved_clean) + " unchanged, " +
            base::format_bytes(memory.saved_constant) + " constant";
  }
  return text;
}

// "97 % busy, 312 of 700 W, 61 C; 12.0 GiB of 80.0 GiB used": the driver's figures. Empty: nothing.
std::string load_line(const Gpu& gpu) {
  const api_client::GpuLoad& load = gpu.load;
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (load.utilization_percent) add(std::to_string(*load.utilization_percent) + " % busy");
  if (load.power_milliwatts) add(power_text(load));
  if (load.temperature_celsius) add(std::to_string(*load.temperature_celsius) + " C");
  if (gpu.memory_total_bytes > 0) {
    text += (text.empty() ? "" : "; ") + base::format_bytes(gpu.memory_used_bytes) + " of " +
            base::format_bytes(gpu.memory_total_bytes) + " used";
  }
  return text;
}

// A change of the GPU's context costs more, and cannot be measured while it happens (sched/lease/switch_cost.h). Less
// than this is the time between two events of the daemon, and no switch's cost.
constexpr base::Duration kLeastSwitchCost = std::chrono::microseconds(100);

std::string settings_line(const Gpu& gpu) {
  std::string text = settings_text(gpu) + "; " + plural(gpu.switches, "switch", "switches");
  if (gpu.switch_cost >= kLeastSwitchCost) text += ", " + short_duration(gpu.switch_cost) + " each";
  return text;
}

// "MPS of eva: 3 programs"
std::string mps_line(const api_client::MpsServer& server) {
  const std::string text = "MPS of " + server.user + ": " + plural(server.programs.size(), "program");
  if (server.state == "starting") return text + " wait until it has started";
  if (server.state == "faulted") return text + ". One of them has faulted, so all have its error";
  if (server.state == "died") return text + ". It has ended, so they fail at their next call";
  return text;
}

// The lines of a screen. Nothing is cut: a longer text goes on in the next line.
class Lines {
 public:
  explicit Lines(const Output& output) : output_(output) {}
  void add(Colour colour, const std::string& text, std::size_t indent = 2) {
    const std::string shown = std::string(indent, ' ') + printable(text);
    for (const std::string& line : wrap(shown, output_.columns, indent + 2))
      lines_.push_back(paint(output_, colour, line));
  }
  // Each if there is one.
  void add_if(Colour colour, const std::string& text) {
    if (!text.empty()) add(colour, text);
  }
  void add(const Table& table) {
    for (std::string& row : table.lines(output_)) lines_.push_back(std::move(row));
  }
  // Between two things.
  void part() {
    if (!lines_.empty()) lines_.emplace_back();
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  const Output& output_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string short_duration(base::Duration duration) {
  const std::int64_t ns = duration.count();
  if (ns <= 0) return "-";
  if (duration == base::Duration::max()) return "unlimited";
  char text[48];
  const std::int64_t seconds = ns / 1'000'000'000;
  if (seconds >= 86400) {
    std::snprintf(text, sizeof text, "%lldd%02lldh", static_cast<long long>(seconds / 86400),
                  static_cast<long long>(seconds / 3600 % 24));
  } else if (seconds >= 3600) {
    std::snprintf(text, sizeof text, "%lldh%02lldm", static_cast<long long>(seconds / 3600),
                  static_cast<long long>(seconds / 60 % 60));
  } else if (seconds >= 100) {
    std::snprintf(text, sizeof text, "%lldm%02llds", static_cast<long long>(seconds / 60),
                  static_cast<long long>(seconds % 60));
  } else {
    // Three digits, no more: the order of magnitude counts, and a jumping fifth digit only disturbs.
    struct Unit {
      double size;
      const char* name;
    };
    static constexpr std::array<Unit, 4> kUnits{{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}}};
    for (const Unit& unit : kUnits) {
      const double value = static_cast<double>(ns) / unit.size;
      if (value < 1) continue;
      std::snprintf(text, sizeof text,
                    value < 9.995   ? "%.2f%s"
                    : value < 99.95 ? "%.1f%s"
                                    : "%.0f%s",
                    value, unit.name);
      break;
    }
  }
  return text;
}

std::string turns_line(const api_client::Snapshot& snapshot) {
  std::string text;
  for (const Gpu& gpu : snapshot.gpus) {
    std::string holder;
    std::size_t waiting = 0;
    for (const Seat& seat : gpu.seats) {
      if (seat.phase == "waiting") ++waiting;
      if (holder.empty() && seat.lease == "exclusive") holder = seat.program + " (" + std::to_string(seat.pid) + ")";
    }
    if (holder.empty() && waiting == 0) continue;
    text += (text.empty() ? "GPU " : "; GPU ") + std::to_string(gpu.index) + ": ";
    text += holder.empty() ? "programs take turns" : holder + " has its turn";
    if (waiting > 0) text += ", " + std::to_string(waiting) + (waiting == 1 ? " waits" : " wait");
  }
  return text.empty() ? text : text + ". `gpumux status` says why a program waits";
}

std::vector<std::string> status_lines(const api_client::Snapshot& snapshot, const Output& output, StatusTable shown,
                                      const std::set<std::uint32_t>& gpus,
                                      const std::map<std::uint32_t, std::string>& jobs) {
  Lines lines(output);
  if (snapshot.gpus.empty())
    lines.add(Colour::kNone, "The daemon serves no GPU: it found none. `gpumux doctor` says why.", 0);
  for (const Gpu& gpu : snapshot.gpus) {
    if (!gpus.empty() && !gpus.contains(gpu.index)) continue;
    lines.part();
    lines.add(Colour::kBold, "GPU " + std::to_string(gpu.index) + "  " + gpu.name, 0);
    lines.add_if(Colour::kRed, gpu.sick.empty() ? "" : "sick: " + gpu.sick);
    if (!gpu.refused.empty()) {
      lines.add(Colour::kRed, "not served: " + gpu.refused);
      continue;
    }
    lines.add_if(Colour::kNone, load_line(gpu));
    lines.add(Colour::kNone, settings_line(gpu));
    if (const auto of_gpu = jobs.find(gpu.index); of_gpu != jobs.end()) lines.add(Colour::kNone, of_gpu->second);
    if (gpu.mode == "auto" && !gpu.mode_why.empty()) lines.add(Colour::kNone, "auto: " + gpu.mode_why);
    if (shown == StatusTable::kMemory) lines.add(Colour::kNone, places_line(gpu));
    lines.add_if(Colour::kNone, moved_line(gpu));
    lines.add_if(Colour::kYellow, name_tenants(gpu.remark, snapshot.gpus));
    for (const auto& refused : gpu.refused_allocations) {
      if (refused.age < kRefusalIsNews) lines.add(Colour::kRed, refused_line(refused));
    }
    if (!gpu.foreign.empty()) lines.add(Colour::kYellow, foreign_line(gpu));
    if (gpu.seats.empty()) {
      lines.add(Colour::kNone, "no program under gpumux uses it");
      continue;
    }
    Table table = shown == StatusTable::kMemory ? memory_table() : seat_table();
    for (const Seat* seat : in_order(gpu)) {
      table.add_row(shown == StatusTable::kMemory ? memory_cells(*seat)
                                                  : seat_cells(*seat, snapshot.gpus, snapshot.recent));
    }
    lines.add(table);
  }
  if (!snapshot.mps_servers.empty()) lines.part();
  for (const api_client::MpsServer& server : snapshot.mps_servers)
    lines.add(server.state == "faulted" || server.state == "died" ? Colour::kRed : Colour::kNone, mps_line(server), 0);
  const api_client::HostMemory& host = snapshot.host_memory;
  if (!host.why_no_mover.empty()) {
    lines.part();
    lines.add(Colour::kRed, "No program's memory leaves its GPU: " + host.why_no_mover, 0);
  }
  if (host.lent > 0 && gpus.empty()) {
    lines.part();
    lines.add(Colour::kNone,
              "Host memory for evicted data: " + base::format_bytes(host.lent) + " lent of " +
                  base::format_bytes(host.budget),
              0);
  }
  return lines.take();
}

}  // namespace gpumux::cli
