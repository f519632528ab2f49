// SPDX-License-Identifier: Apache-2.0
#include "top/tables.h"

#include <algorithm>

#include "cli/jobs/job_groups.h"
#include "cli/jobs/job_texts.h"
#include "cli/jobs/job_view.h"
#include "cli/views/seat_texts.h"
#include "cli/views/status_view.h"

namespace gpumux::top {
namespace {

using api_client::Job;
using api_client::Seat;
using cli::Align;

constexpr std::size_t kGap = 2;
// Other columns are left out before a reason is cut to less.
constexpr std::size_t kLeastWhy = 24;

// "4 to 12 of 30"
std::string shown_text(std::size_t first, std::size_t shown, std::size_t all) {
  if (shown >= all) return {};
  return std::to_string(first + 1) + " to " + std::to_string(first + shown) + " of " + std::to_string(all);
}

}  // namespace

ScrolledTable programs_table(const Model& model, const View& view) {
  ScrolledTable table;
  table.columns = {{.title = ""},
                   {.title = "GPU", .align = Align::kRight, .leave_out = 3, .hide_if_empty = true},
                   {.title = "PROGRAM", .minimum = 8},
                   {.title = "PID", .align = Align::kRight, .leave_out = 4},
                   {.title = "USER", .leave_out = 5, .minimum = 6},
                   {.title = "STATE"},
                   {.title = "FOR", .align = Align::kRight, .leave_out = 6},
                   {.title = "LAST 5S", .align = Align::kRight, .leave_out = 1, .hide_if_empty = true},
                   {.title = "JOB", .align = Align::kRight, .leave_out = 7, .hide_if_empty = true},
                   {.title = "PRIO", .align = Align::kRight, .leave_out = 7, .hide_if_empty = true},
                   {.title = "ON GPU", .align = Align::kRight, .leave_out = 2, .hide_if_empty = true},
                   {.title = "EVICTED", .align = Align::kRight, .leave_out = 8, .hide_if_empty = true},
                   {.title = "GPU TIME", .align = Align::kRight, .leave_out = 9},
                   {.title = "WAITED", .align = Align::kRight, .leave_out = 10},
                   {.title = "P50 / P99", .align = Align::kRight, .leave_out = 12, .hide_if_empty = true},
                   {.title = "WHY", .minimum = kLeastWhy, .hide_if_empty = true}};
  std::vector<RowId> ids;
  const base::Duration recent = model.snapshot() ? model.snapshot()->recent : base::Duration::zero();
  const bool has_several = model.snapshot() && model.snapshot()->gpus.size() > 1;
  for (const ProgramRow& row : program_rows(model, view)) {
    const Seat& seat = *row.seat;
    const Mark mark = model.mark_of(row.gpu->index, seat.tenant);
    const std::uint64_t job = model.job_of(seat.tenant);
    const std::uint64_t on_gpu = seat.memory ? seat.memory->resident + seat.memory->unpageable : 0;
    table.rows.push_back({{std::string(1, mark.letter), {.hue = mark.hue, .bold = true}},
                          {has_several ? std::to_string(row.gpu->index) : "", {}},
                          {cli::program_text(seat), {}},
                          {std::to_string(seat.pid), {}},
                          {cli::user_text(seat), {}},
                          {cli::phase_text(seat), style_of(cli::colour_of(seat))},
                          {cli::short_duration(seat.since), {}},
                          {cli::recent_use_text(seat, recent), {}},
                          {job == 0 ? "" : std::to_string(job), {}},
                          {seat.priority == 0 ? "" : std::to_string(seat.priority), {}},
                          {cli::bytes_text(on_gpu), {}},
                          {cli::bytes_text(seat.memory ? seat.memory->evicted : 0), {}},
                          {cli::short_duration(seat.gpu_time), {}},
                          {cli::short_duration(seat.waited), {}},
                          {cli::waits_text(seat), {}},
                          {cli::why_text(seat, model.snapshot()->gpus), {}}});
    ids.push_back(row.id());
  }
  table.selected = row_of(view.programs, ids);
  table.has_focus = view.pane == Pane::kPrograms;
  if (view.program_order != 0) table.remark = "by " + std::string(kProgramOrders[view.program_order]);
  table.if_empty = view.filter.empty() && !view.gpu ? "No program under gpumux uses a GPU."
                                                    : "No program matches: Escape shows all.";
  return table;
}

ScrolledTable jobs_table(const Model& model, const View& view, const Clocks& clocks) {
  ScrolledTable table;
  table.columns = {{.title = "JOB"},
                   {.title = "NAME", .leave_out = 1, .minimum = 8, .hide_if_empty = true},
                   {.title = "USER", .leave_out = 5, .minimum = 6},
                   {.title = "STATE"},
                   {.title = "PLACE", .align = Align::kRight, .leave_out = 4, .hide_if_empty = true},
                   {.title = "STARTS", .leave_out = 6, .hide_if_empty = true},
                   {.title = "GPUS", .leave_out = 2, .minimum = 6},
                   {.title = "MEM", .align = Align::kRight, .leave_out = 8},
                   {.title = "TIME", .align = Align::kRight, .leave_out = 3},
                   {.title = "LIMIT", .align = Align::kRight, .leave_out = 9, .hide_if_empty = true},
                   {.title = "PRIO", .align = Align::kRight, .leave_out = 7, .hide_if_empty = true},
                   {.title = "COMMAND", .leave_out = 10, .minimum = 16, .hide_if_empty = true},
                   {.title = "WHY", .minimum = kLeastWhy, .hide_if_empty = true}};
  std::vector<RowId> ids;
  for (const Job* job : job_rows(model, view, clocks.unix_ns)) {
    table.rows.push_back({{cli::job_label(*job), {}},
                          {job->name, {}},
                          {job->user, {}},
                          {cli::state_text(*job), style_of(cli::colour_of(*job))},
                          {job->place ? "#" + std::to_string(*job->place) : "", {}},
                          {cli::start_text(*job), {}},
                          {cli::gpus_text(*job), {}},
                          {cli::memory_text(*job), {}},
                          {cli::time_text(cli::elapsed(*job, clocks.unix_ns)), {}},
                          {job->limit_in ? cli::time_left(*job) : cli::limit_text(*job), {}},
                          {job->priority == 0 ? "" : std::to_string(job->priority), {}},
                          {job->command, {}},
                          {cli::job_reason(*job), {}}});
    ids.push_back({0, job->id});
  }
  table.selected = row_of(view.jobs, ids);
  table.has_focus = view.pane == Pane::kJobs;
  if (view.job_order != 0) table.remark = "by " + std::string(kJobOrders[view.job_order]);
  const auto add = [&](const std::string& text) { table.remark += (table.remark.empty() ? "" : ", ") + text; };
  if (!view.pages.empty()) add("page " + std::to_string(view.pages.size() + 1));
  if (model.jobs().more) add("more below");
  table.if_empty = view.filter.empty() ? "No jobs." : "No job matches: Escape shows all.";
  return table;
}

void draw_table(Canvas& canvas, const ScrolledTable& table, std::size_t top, std::size_t height) {
  if (height == 0) return;
  std::vector<std::size_t> natural;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    std::size_t widest = 0;
    for (const auto& row : table.rows) widest = std::max(widest, cli::display_width(cli::printable(row[i].text)));
    const bool is_hidden = widest == 0 && (table.columns[i].hide_if_empty || table.columns[i].title.empty());
    natural.push_back(is_hidden ? 0 : std::max({widest, cli::display_width(table.columns[i].title), std::size_t{1}}));
  }
  const std::vector<std::size_t> widths = cli::lay_out(table.columns, natural, canvas.columns());
  const auto draw_row = [&](std::size_t row, auto cell_at) {
    std::size_t column = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] == 0) continue;
      const TableCell cell = cell_at(i);
      const std::size_t width = cli::display_width(cli::printable(cell.text));
      const bool is_right = table.columns[i].align == Align::kRight && width < widths[i];
      canvas.put(row, column + (is_right ? widths[i] - width : 0), cell.text, cell.style, widths[i]);
      column += widths[i] + kGap;
    }
  };

  const std::size_t shown = std::min(height - 1, table.rows.size());
  const std::size_t half = shown / 2;
  const std::size_t first = std::min(table.selected - std::min(table.selected, half), table.rows.size() - shown);
  const Style titles{.hue = table.has_focus ? Hue::kGreen : Hue::kNone, .reversed = true};
  canvas.fill(top, 0, canvas.columns(), titles);
  draw_row(top, [&](std::size_t i) { return TableCell{std::string(table.columns[i].title), titles}; });
  std::string remark = table.remark;
  if (const std::string part = shown_text(first, shown, table.rows.size()); !part.empty())
    remark += (remark.empty() ? "" : ", ") + part;
  if (!remark.empty()) canvas.put_right(top, canvas.columns(), " " + remark + " ", titles);

  if (table.rows.empty() && height > 1) canvas.put(top + 1, 2, table.if_empty, {.dim = true});
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t row = top + 1 + i;
    const bool is_selected = first + i == table.selected && table.has_focus;
    if (is_selected) canvas.fill(row, 0, canvas.columns(), {.hue = Hue::kCyan, .reversed = true});
    draw_row(row, [&](std::size_t column) {
      TableCell cell = table.rows[first + i][column];
      if (is_selected) cell.style = {.hue = Hue::kCyan, .reversed = true};
      return cell;
    });
  }
}

}  // namespace gpumux::top
