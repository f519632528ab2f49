// SPDX-License-Identifier: Apache-2.0
#include "cli/views/trace_history.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cli/frame/table.h"
#include "cli/frame/words.h"
#include "cli/views/status_view.h"

namespace gpumux::cli {
namespace {

using api_client::TraceEvent;
using base::Duration;
using base::TimePoint;

// Without a terminal a picture has this many columns for the time.
constexpr std::size_t kPictureWidth = 64;
constexpr std::size_t kLeastPictureWidth = 8;
// A narrow terminal gives a name and its number this many columns, a wide one a quarter of all.
constexpr std::size_t kMostNameWidth = 24;
constexpr std::string_view kLegend = "The program had the GPU: \u2591 a little, \u2592 half, \u2588 all of the time";

std::string seconds(Duration duration, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f s", digits, static_cast<double>(duration.count()) / 1e9);
  return text;
}

std::string right(const std::string& text, std::size_t width) {
  const std::size_t now = display_width(text);
  return std::string(width - std::min(width, now), ' ') + text;
}

std::string percent(Duration part, Duration whole) {
  if (whole <= Duration::zero()) return "-";
  char text[16];
  std::snprintf(text, sizeof text, "%.1f%%",
                100.0 * static_cast<double>(part.count()) / static_cast<double>(whole.count()));
  return text;
}

}  // namespace

std::string_view shade(Duration held, Duration cell) {
  static constexpr std::array<std::string_view, 4> kShades{" ", "\u2591", "\u2592", "\u2588"};
  if (held <= Duration::zero()) return kShades[0];
  return kShades[static_cast<std::size_t>(std::clamp<std::int64_t>((3 * held + cell / 2) / cell, 1, 3))];
}

Duration TraceHistory::within(TimePoint from, TimePoint to) const {
  if (begin_) from = std::max(from, *begin_);
  return std::max(to - from, Duration::zero());
}

void TraceHistory::add(const TraceEvent& event) {
  if (!begin_) begin_ = event.time;
  end_ = std::max(end_, event.time);
  for (const Step& step : holds_.add(event)) take(step, event);
}

void TraceHistory::add_phase(const TraceEvent& phase) {
  if (gpus_[*phase.gpu].programs[phase.tenant].is_gone) return;
  if (const auto step = holds_.add_phase(phase)) take(*step, phase);
}

void TraceHistory::take(const Step& step, const TraceEvent& event) {
  Gpu& gpu = gpus_[step.gpu];
  Program& program = gpu.programs[step.tenant];
  if (!event.program.empty()) program.name = event.program;
  program.pid = event.pid;
  program.is_gone = step.goes;
  count(step, gpu, program);
  if (event.event == "evicted") program.is_away = true;
  if (event.event == "complete") {
    program.is_away = false;
    end_memory_wait(gpu, program, event.time);
  }
  if (!step.is_grant) return;
  if (program.is_away) program.memory_due = event.time;
  if (!counts(event.time)) return;
  ++program.grants;
  if (step.is_switch) gpu.switches.push_back(event.time);
}

void TraceHistory::count(const Step& step, Gpu& gpu, Program& program) const {
  if (step.unheld) gpu.unheld += within(step.unheld->from, step.unheld->to);
  if (step.waited && counts(step.waited->to)) {
    const Duration wait = within(step.waited->from, step.waited->to);
    program.waited += wait;
    program.longest_wait = std::max(program.longest_wait, wait);
  }
  if (!step.held) return;
  const auto& [from, to] = *step.held;
  if (counts(to)) program.held.emplace_back(std::max(from, begin_.value_or(from)), to);
  end_memory_wait(gpu, program, to);
}

void TraceHistory::end_memory_wait(Gpu& gpu, Program& program, TimePoint now) const {
  if (program.memory_due) gpu.memory += within(*std::exchange(program.memory_due, std::nullopt), now);
}

void TraceHistory::finish(TimePoint end) {
  end_ = std::max(end, end_);
  for (const Step& step : holds_.finish(end_)) {
    Gpu& gpu = gpus_[step.gpu];
    Program& program = gpu.programs[step.tenant];
    if (step.waited && counts(end_)) ++program.unmet;
    count(step, gpu, program);
  }
}

std::vector<TraceHistory::Turn> TraceHistory::turns(std::uint32_t gpu, TimePoint now) const {
  std::vector<Turn> turns;
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end()) return turns;
  for (const auto& [tenant, program] : found->second.programs) {
    for (const auto& [from, to] : program.held) turns.push_back({tenant, program.name, from, to});
    const auto since = holds_.held_since(gpu, tenant);
    if (since && *since < now) turns.push_back({tenant, program.name, *since, now});
  }
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.from < b.from; });
  return turns;
}

void TraceHistory::forget(TimePoint before) {
  for (auto& [index, gpu] : gpus_) {
    std::erase_if(gpu.switches, [&](TimePoint time) { return time < before; });
    for (auto& [tenant, program] : gpu.programs)
      std::erase_if(program.held, [&](const auto& turn) { return turn.second < before; });
    std::erase_if(gpu.programs, [](const auto& one) { return one.second.is_gone && one.second.held.empty(); });
  }
}

Duration TraceHistory::sum(const Program& program) {
  Duration all{};
  for (const auto& [from, to] : program.held) all += to - from;
  return all;
}

// The programs that had the GPU or waited for it, in the order in which they came.
std::vector<const TraceHistory::Program*> TraceHistory::shown(const Gpu& gpu) const {
  std::vector<const Program*> programs;
  for (const auto& [tenant, program] : gpu.programs) {
    if (!program.held.empty() || program.waited > Duration::zero()) programs.push_back(&program);
  }
  return programs;
}

std::string TraceHistory::heading(std::uint32_t index) const {
  return "GPU " + std::to_string(index) + ", " + seconds(end_ - begin_.value_or(end_), 1);
}

std::vector<std::string> TraceHistory::picture(const Output& output) const {
  constexpr std::string_view kTitles = "   turns     held   waited";
  std::vector<std::string> lines;
  const TimePoint begin = begin_.value_or(end_);
  for (const auto& [index, gpu] : gpus_) {
    const auto programs = shown(gpu);
    if (programs.empty()) continue;
    std::vector<std::string> names;
    std::size_t name_width = 10;
    // A process's number is never cut: it tells programs of one name apart.
    const std::size_t most = std::max(output.columns / 4, kMostNameWidth);
    for (const Program* program : programs) {
      const std::string number = " (" + std::to_string(program->pid) + ")";
      const std::string name = printable(program->name);
      names.push_back((output.columns == 0 ? name : fit(name, most - number.size())) + number);
      name_width = std::max(name_width, display_width(names.back()));
    }
    const std::size_t beside = name_width + 1 + kTitles.size();
    const std::size_t width = output.columns == 0
                                  ? kPictureWidth
                                  : std::max(output.columns - std::min(output.columns, beside), kLeastPictureWidth);
    const Duration span = std::max(end_ - begin, Duration(1));
    if (!lines.empty()) lines.emplace_back();
    lines.push_back(paint(output, Colour::kBold, heading(index)));
    const std::string last = seconds(span, 1);
    lines.push_back(std::string(name_width + 1, ' ') + pad("0 s", width - std::min(width, last.size())) + last +
                    std::string(kTitles));
    const auto border = [&](std::size_t cell) {
      return begin + Duration(static_cast<std::int64_t>(static_cast<double>(span.count()) * static_cast<double>(cell) /
                                                        static_cast<double>(width)));
    };
    for (std::size_t i = 0; i < programs.size(); ++i) {
      std::string row;
      for (std::size_t cell = 0; cell < width; ++cell) {
        Duration held{};
        const TimePoint from = border(cell), to = border(cell + 1);
        for (const auto& [a, b] : programs[i]->held) held += std::max(std::min(b, to) - std::max(a, from), Duration());
        row += shade(held, std::max(to - from, Duration(1)));
      }
      lines.push_back(pad(names[i], name_width) + " " + row + right(std::to_string(programs[i]->grants), 8) +
                      right(seconds(sum(*programs[i]), 2), 9) + right(seconds(programs[i]->waited, 2), 9));
    }
  }
  if (lines.empty()) return {"No program had a GPU or waited for one."};
  lines.push_back(paint(output, Colour::kDim, kLegend));
  return lines;
}

std::vector<std::string> TraceHistory::summary(const Output& output) const {
  std::vector<std::string> lines;
  for (const auto& [index, gpu] : gpus_) {
    const auto programs = shown(gpu);
    if (programs.empty()) continue;
    if (!lines.empty()) lines.emplace_back();
    lines.push_back(paint(output, Colour::kBold, heading(index)));
    const Duration span = end_ - begin_.value_or(end_);
    Table table({{.title = "PROGRAM", .minimum = 8},
                 {.title = "PID", .align = Align::kRight, .leave_out = 1},
                 {.title = "HELD", .align = Align::kRight},
                 {.title = "PART", .align = Align::kRight, .leave_out = 4},
                 {.title = "GRANTS", .align = Align::kRight, .leave_out = 3},
                 {.title = "WAITED", .align = Align::kRight, .leave_out = 5},
                 {.title = "MEAN WAIT", .align = Align::kRight},
                 {.title = "LONGEST WAIT", .align = Align::kRight, .leave_out = 2}},
                2);
    for (const Program* program : programs) {
      const auto waits = static_cast<std::int64_t>(std::max<std::uint64_t>(program->grants + program->unmet, 1));
      table.add_row({{program->name},
                     {std::to_string(program->pid)},
                     {short_duration(sum(*program))},
                     {percent(sum(*program), span)},
                     {std::to_string(program->grants)},
                     {short_duration(program->waited)},
                     {short_duration(program->waited / waits)},
                     {short_duration(program->longest_wait)}});
    }
    for (std::string& line : table.lines(output)) lines.push_back(std::move(line));
    const Duration cost = gpu.unheld + gpu.memory;
    const std::size_t switches = gpu.switches.size();
    std::string text = plural(switches, "switch", "switches");
    if (switches > 0 && cost > Duration::zero()) {
      text += ", " + short_duration(cost / static_cast<std::int64_t>(switches)) + " each: no program had the GPU for " +
              short_duration(gpu.unheld) + " while some waited";
      if (gpu.memory > Duration::zero())
        text += ", and holders waited " + short_duration(gpu.memory) + " for their memory";
    }
    for (const std::string& line : wrap("  " + text, output.columns, 4)) lines.push_back(line);
  }
  if (lines.empty()) lines.emplace_back("No program had a GPU or waited for one.");
  return lines;
}

}  // namespace gpumux::cli
