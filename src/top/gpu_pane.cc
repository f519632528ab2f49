// SPDX-License-Identifier: Apache-2.0
#include "top/gpu_pane.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/units.h"
#include "cli/frame/words.h"
#include "cli/views/seat_texts.h"
#include "cli/views/status_view.h"
#include "top/strip.h"

namespace gpumux::top {
namespace {

using api_client::Gpu;
using api_client::Seat;

// From here on, load and memory stand side by side.
constexpr std::size_t kWide = 100;
constexpr std::size_t kIndent = 2;
// The names of bars, and of rows of the timeline.
constexpr std::size_t kLabel = 6;
constexpr std::size_t kLaneLabel = 16;
// A GPU may have hundreds of programs; the table shows them all.
constexpr std::size_t kMostLanes = 12;
constexpr Style kWrong{.hue = Hue::kRed, .bold = true};

// The driver's word on the whole GPU: "61 C  312 of 700 W".
std::string heat_of(const Gpu& gpu) {
  std::string text;
  if (gpu.load.temperature_celsius) text += std::to_string(*gpu.load.temperature_celsius) + " C";
  if (gpu.load.power_milliwatts) text += (text.empty() ? "" : "  ") + cli::power_text(gpu.load);
  return text;
}

// "auto (now serial), fair, quantum 200ms, 12 switches"
std::string settings_of(const Gpu& gpu) {
  return cli::settings_text(gpu) + ", " + cli::plural(gpu.switches, "switch", "switches");
}

// The remark that people should read before anything else. Empty: there is none.
std::string wrong_with(const Gpu& gpu) {
  if (!gpu.sick.empty()) return "sick: " + gpu.sick;
  return gpu.remark;
}

std::string_view shade_of(base::Duration held, base::Duration cell, Letters letters) {
  const std::string_view shade = cli::shade(held, cell);
  if (letters == Letters::kUnicode || shade == " ") return shade;
  return shade == "█" ? "#" : shade == "▒" ? "+" : ".";
}

bool has_turn(const Seat& seat) { return !seat.lease.empty(); }

std::uint64_t evicted_from(const Gpu& gpu) {
  std::uint64_t sum = 0;
  for (const Seat& seat : gpu.seats) sum += seat.memory ? seat.memory->evicted : 0;
  return sum;
}

}  // namespace

GpuPane::GpuPane(const Model& model, const View& view, const Clocks& clocks, const Look& look, std::size_t most_rows,
                 std::size_t spare_rows)
    : model_(model), view_(view), clocks_(clocks), look_(look) {
  if (!model.snapshot()) return;
  for (const Gpu& gpu : model.snapshot()->gpus) gpus_.push_back(&gpu);
  for (const Form form : {Form::kTall, Form::kFull, Form::kShort, Form::kLine}) {
    form_ = form;
    if (rows_in(form) <= (form == Form::kTall ? spare_rows : most_rows)) return;
  }
  // Not even lines fit.
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    if (view.gpu == gpus_[i]->index) chosen = i;
  }
  const std::size_t first = std::min(chosen - std::min(chosen, most_rows / 2), gpus_.size() - most_rows);
  gpus_.erase(gpus_.begin(), gpus_.begin() + static_cast<std::ptrdiff_t>(first));
  gpus_.resize(most_rows);
}

bool GpuPane::is_wide() const { return look_.columns >= kWide; }

std::size_t GpuPane::rows_of(const Gpu& gpu, Form form) const {
  if (form == Form::kLine) return 1;
  if (form == Form::kShort) return 2;
  if (!gpu.refused.empty()) return 2;
  std::size_t rows = is_wide() ? 4 : 5;
  if (!wrong_with(gpu).empty()) ++rows;
  if (!gpu.foreign.empty()) ++rows;
  if (form == Form::kTall) rows += std::min(gpu.seats.size(), kMostLanes);
  return rows;
}

std::size_t GpuPane::rows_in(Form form) const {
  std::size_t rows = 0;
  for (const Gpu* gpu : gpus_) rows += rows_of(*gpu, form);
  return rows;
}

std::size_t GpuPane::rows() const { return rows_in(form_); }

void GpuPane::draw(Canvas& canvas, std::size_t top) const {
  for (const Gpu* gpu : gpus_) {
    switch (form_) {
      case Form::kTall:
      case Form::kFull: top = draw_full(canvas, top, *gpu); break;
      case Form::kShort: top = draw_short(canvas, top, *gpu); break;
      case Form::kLine: top = draw_line(canvas, top, *gpu); break;
    }
  }
}

void GpuPane::draw_title(Canvas& canvas, std::size_t row, const Gpu& gpu) const {
  std::size_t column = canvas.put(row, 0, "GPU " + std::to_string(gpu.index) + "  " + gpu.name,
                                  {.bold = true, .reversed = view_.gpu == gpu.index});
  if (!gpu.refused.empty()) return;
  const std::string heat = heat_of(gpu);
  const std::size_t end = look_.columns - std::min(look_.columns, heat.size() + (heat.empty() ? 0 : 2));
  column += 2;
  if (column < end) canvas.put(row, column, settings_of(gpu), kDim, end - column);
  canvas.put_right(row, look_.columns, heat, kDim);
}

std::size_t GpuPane::draw_full(Canvas& canvas, std::size_t row, const Gpu& gpu) const {
  draw_title(canvas, row++, gpu);
  if (!gpu.refused.empty()) {
    canvas.put(row, kIndent, "not served: " + gpu.refused, kWrong);
    return row + 1;
  }
  if (const std::string wrong = wrong_with(gpu); !wrong.empty())
    canvas.put(row++, kIndent, cli::name_tenants(wrong, model_.snapshot()->gpus), {.hue = Hue::kYellow});
  const std::size_t room = look_.columns - std::min(look_.columns, kIndent);
  if (is_wide()) {
    const std::size_t load = room / 3;
    draw_meter(canvas, {row, kIndent, load}, "busy  ", gpu.load.utilization_percent);
    draw_memory(canvas, {row++, kIndent + load + 2, room - load - 2}, gpu);
  } else {
    draw_meter(canvas, {row++, kIndent, room}, "busy  ", gpu.load.utilization_percent);
    draw_memory(canvas, {row++, kIndent, room}, gpu);
  }
  if (!gpu.foreign.empty()) canvas.put(row++, kIndent, cli::foreign_line(gpu), {.hue = Hue::kYellow});
  draw_turns(canvas, {row++, kIndent, room}, gpu);
  draw_timeline(canvas, {row++, kIndent, room}, gpu);
  return form_ == Form::kTall ? draw_lanes(canvas, row, gpu) : row;
}

std::size_t GpuPane::draw_short(Canvas& canvas, std::size_t row, const Gpu& gpu) const {
  if (!gpu.refused.empty()) {
    draw_title(canvas, row, gpu);
    canvas.put(row + 1, kIndent, "not served: " + gpu.refused, kWrong);
    return row + 2;
  }
  const std::size_t third = look_.columns / 3;
  const std::string title = "GPU " + std::to_string(gpu.index) + "  " + gpu.name;
  canvas.put(row, 0, title,
             {.hue = gpu.sick.empty() ? Hue::kNone : Hue::kRed, .bold = true, .reversed = view_.gpu == gpu.index},
             third);
  const std::size_t rest = look_.columns - std::min(look_.columns, third + 2);
  draw_turns(canvas, {row, third + 2, rest}, gpu);
  draw_meter(canvas, {row + 1, kIndent, std::min<std::size_t>(third - std::min(third, kIndent), 20)}, "busy",
             gpu.load.utilization_percent);
  draw_memory(canvas, {row + 1, std::min(third, kIndent + 20) + 1, rest / 2}, gpu);
  const std::size_t timeline = std::min(third, kIndent + 20) + 2 + rest / 2;
  draw_timeline(canvas, {row + 1, timeline, look_.columns - std::min(look_.columns, timeline)}, gpu);
  return row + 2;
}

std::size_t GpuPane::draw_line(Canvas& canvas, std::size_t row, const Gpu& gpu) const {
  const std::string index = std::to_string(gpu.index);
  canvas.put(row, 0, std::string(3 - std::min<std::size_t>(3, index.size()), ' ') + index,
             {.hue = gpu.sick.empty() && gpu.refused.empty() ? Hue::kNone : Hue::kRed,
              .bold = true,
              .reversed = view_.gpu == gpu.index});
  if (!gpu.refused.empty()) {
    canvas.put(row, 4, "not served: " + gpu.refused, kWrong);
    return row + 1;
  }
  // A bar with a percentage in it.
  constexpr std::size_t kBusy = 13;
  const std::size_t room = look_.columns - std::min(look_.columns, 4 + kBusy + 2);
  draw_meter(canvas, {row, 4, kBusy}, "", gpu.load.utilization_percent);
  draw_memory(canvas, {row, 4 + kBusy + 1, room / 2}, gpu);
  draw_timeline(canvas, {row, 4 + kBusy + 2 + room / 2, room - room / 2}, gpu);
  return row + 1;
}

// "memory [a train.py    |b serve.py |x      ] 52.1 GiB of 80.0 GiB, 12.0 GiB evicted"
void GpuPane::draw_memory(Canvas& canvas, const Span& span, const Gpu& gpu) const {
  const std::uint64_t evicted = evicted_from(gpu);
  std::string after = "] " + base::format_bytes(gpu.memory_used_bytes);
  if (is_full()) after += " of " + base::format_bytes(gpu.memory_total_bytes);
  if (evicted > 0)
    after += is_full() ? ", " + base::format_bytes(evicted) + " evicted" : " +" + base::format_bytes(evicted);
  const std::string before = is_full() ? "memory [" : "[";
  if (span.width < before.size() + after.size() + 4) return;
  std::size_t column = canvas.put(span.row, span.column, before, kDim);
  const std::size_t width = span.width - before.size() - after.size();
  std::vector<std::uint64_t> parts;
  std::vector<Run> runs;
  for (const Seat* seat : cli::in_order(gpu)) {
    const std::uint64_t bytes = seat->memory ? seat->memory->resident + seat->memory->unpageable : 0;
    if (bytes == 0) continue;
    parts.push_back(bytes);
    runs.push_back({model_.mark_of(gpu.index, seat->tenant), cli::program_text(*seat), !runs.empty()});
  }
  parts.push_back(gpu.memory.foreign);
  const bool is_one = gpu.foreign.size() == 1;
  runs.push_back({{'x', Hue::kWhite}, is_one ? gpu.foreign.front().name : "others", !runs.empty()});
  const auto cells = share_cells(parts, gpu.memory_total_bytes, width);
  const std::size_t end = column + width;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    draw_run(canvas, look_, {span.row, column, cells[i]}, runs[i]);
    column += cells[i];
  }
  // The reserve is the last of the free memory.
  const auto reserve = share_cells({gpu.memory.reserve}, gpu.memory_total_bytes, width).front();
  for (std::size_t i = end - std::min(reserve, end - column); i < end; ++i) canvas.put(span.row, i, ".", kDim);
  const std::size_t dim_from = canvas.put(span.row, end, "]", kDim);
  canvas.put(span.row, dim_from, after.substr(1));
}

// "a train.py (4711) of eva holds it for 1.20s; next b serve.py (4712): quantum of train.py; then c, d"
void GpuPane::draw_turns(Canvas& canvas, const Span& span, const Gpu& gpu) const {
  const std::size_t end = span.column + span.width;
  std::size_t column = span.column;
  const auto put = [&](std::string_view text, Style style = {}) {
    if (column < end) column = canvas.put(span.row, column, text, style, end - column);
  };
  const auto put_seat = [&](const Seat& seat) {
    const Mark mark = model_.mark_of(gpu.index, seat.tenant);
    put(std::string(1, mark.letter), {.hue = mark.hue, .bold = true});
    put(" " + cli::program_text(seat) + " (" + std::to_string(seat.pid) + ")");
  };
  std::vector<const Seat*> holders;
  std::vector<const Seat*> waiters;
  for (const Seat* seat : cli::in_order(gpu)) {
    if (has_turn(*seat)) holders.push_back(seat);
    if (seat->phase == "waiting") waiters.push_back(seat);
  }
  put(holders.empty() ? "no program holds it" : "held by ", kDim);
  for (std::size_t i = 0; i < holders.size(); ++i) {
    put(i == 0 ? "" : ", ", kDim);
    put_seat(*holders[i]);
    if (holders.size() == 1) put(" for " + cli::short_duration(holders[i]->since), kDim);
  }
  for (std::size_t i = 0; i < waiters.size(); ++i) {
    put(i == 0 ? "   next " : i == 1 ? "   then " : ", ", kDim);
    put_seat(*waiters[i]);
    const std::string why = cli::why_text(*waiters[i], model_.snapshot()->gpus);
    if (i == 0 && !why.empty()) put(": " + why, {.hue = Hue::kYellow});
  }
}

// "60s [a train.py    |b serve|a train.py  ....|c]"
void GpuPane::draw_timeline(Canvas& canvas, const Span& span, const Gpu& gpu) const {
  std::string begin = base::format_duration(window());
  if (is_full()) begin.resize(form_ == Form::kTall ? kLaneLabel : kLabel, ' ');
  begin += " [";
  if (span.width < begin.size() + 5) return;
  const std::size_t first = canvas.put(span.row, span.column, begin, kDim);
  const TimeScale scale(clocks_.now, window(), span.column + span.width - 1 - first);
  const auto cells = strip_of(model_.history().turns(gpu.index, clocks_.now), scale);
  for (std::size_t i = 0; i < cells.size();) {
    std::size_t end = i + 1;
    while (end < cells.size() && cells[end].continues(cells[end - 1])) ++end;
    const Span run{span.row, first + i, end - i};
    switch (cells[i].kind) {
      case StripCell::Kind::kNobody:
        for (std::size_t cell = i; cell < end; ++cell) canvas.put(span.row, first + cell, ".", kDim);
        break;
      case StripCell::Kind::kOne:
        draw_run(canvas, look_, run, {model_.mark_of(gpu.index, cells[i].tenant), cells[i].program, i > 0});
        break;
      case StripCell::Kind::kTogether: draw_run(canvas, look_, run, {{'=', Hue::kWhite}, "at once", i > 0}); break;
      case StripCell::Kind::kSeveral: {
        const bool has_shades = look_.letters == Letters::kUnicode;
        const Mark mark = model_.mark_of(gpu.index, cells[i].tenant);
        const std::string letter(1, look_.colours && !has_shades ? mark.letter : '*');
        for (std::size_t cell = i; cell < end; ++cell)
          canvas.put(span.row, first + cell, has_shades ? "▒" : letter, {.hue = mark.hue});
        break;
      }
    }
    i = end;
  }
  canvas.put(span.row, first + cells.size(), "]", kDim);
}

// "a train.py        [   ███ ▒▒ ███]"
std::size_t GpuPane::draw_lanes(Canvas& canvas, std::size_t row, const Gpu& gpu) const {
  const auto turns = model_.history().turns(gpu.index, clocks_.now);
  // In an order that stays, for rows that change their places at every switch cannot be read.
  std::vector<const Seat*> seats = cli::in_order(gpu);
  std::stable_sort(seats.begin(), seats.end(), [](const Seat* a, const Seat* b) { return a->tenant < b->tenant; });
  for (std::size_t i = 0; i < std::min(seats.size(), kMostLanes); ++i, ++row) {
    const Mark mark = model_.mark_of(gpu.index, seats[i]->tenant);
    canvas.put(row, kIndent, std::string(1, mark.letter), {.hue = mark.hue, .bold = true});
    canvas.put(row, kIndent + 2, cli::program_text(*seats[i]), {}, kLaneLabel - 2);
    const std::size_t first = canvas.put(row, kIndent + kLaneLabel, " [", kDim);
    if (look_.columns < first + 2) continue;
    const TimeScale scale(clocks_.now, window(), look_.columns - 1 - first);
    const auto lane = lane_of(turns, seats[i]->tenant, scale);
    for (std::size_t cell = 0; cell < lane.size(); ++cell)
      canvas.put(row, first + cell, shade_of(lane[cell], scale.cell, look_.letters), {.hue = mark.hue});
    canvas.put(row, first + lane.size(), "]", kDim);
  }
  return row;
}

}  // namespace gpumux::top
