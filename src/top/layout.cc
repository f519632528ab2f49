// SPDX-License-Identifier: Apache-2.0
#include "top/layout.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "base/units.h"
#include "cli/frame/words.h"
#include "cli/jobs/job_texts.h"
#include "cli/jobs/job_view.h"
#include "cli/views/seat_texts.h"
#include "top/gpu_pane.h"
#include "top/tables.h"

namespace gpumux::top {
namespace {

constexpr Style kBold{.bold = true};
constexpr Style kAlarm{.hue = Hue::kRed, .bold = true, .reversed = true};

// Head, message and keys.
constexpr std::size_t kFrameRows = 3;
// Titles and a few rows.
constexpr std::size_t kLeastTable = 3;

struct Hint {
  std::string_view key;
  std::string_view does;
};
// The most important first: those that do not fit are left out.
constexpr std::array<Hint, 11> kHints{{{"q", "Quit"},
                                       {"?", "Help"},
                                       {"Tab", "Pane"},
                                       {"/", "Filter"},
                                       {"s", "Sort"},
                                       {"c", "Cancel"},
                                       {"H", "Hold"},
                                       {"p", "Priority"},
                                       {"t", "Time"},
                                       {"<>", "GPU"},
                                       {"Esc", "Show all"}}};

constexpr std::array<std::string_view, 31> kHelp{
    "gpumux top shows the GPUs, the programs on them, and the queue of jobs.",
    "",
    "Up, Down, k, j         select another row",
    "Page Up, Page Down     a page at a time; also b and Space",
    "Home, End, g, G        the first row, the last row",
    "Tab                    programs or jobs",
    "Left, Right            only the programs of one GPU",
    "/ or F3, F4            show only rows with a text: program, user, state, job",
    "Escape                 show all rows again",
    "s or F6                choose the order",
    "t                      the time that timelines show: 15 s, 1 min, 5 min",
    "c or F9                cancel the selected job, or the job of the selected program",
    "H                      hold a job that waits, or release it",
    "p or F7                change the priority of the selected job or program",
    "? or h, F1             this help",
    "q or F10               quit",
    "",
    "A change is asked about before it is made: y makes it, any other key does not.",
    "",
    "Each program has a letter and a colour, and keeps them.",
    "busy      the part of the last second in which the GPU ran kernels",
    "memory    on the GPU, by program; x: of others and contexts; dots: kept free",
    "          evicted: in host memory, until the program's next turn",
    "timeline  which program held the GPU, from the past to now; a line is a switch",
    "          shaded: several in turn; at once (=): together; dots: no program",
    "",
    "LAST 5S   the part of the last five seconds that the program had the GPU",
    "STATE     holding, revoked, draining, waiting #N, idle, silent, suspended",
    "          with room for it, a row for each program: darker, more of the time",
    "",
    "Press any other key to go back."};

std::string time_of_day(std::int64_t unix_ns) { return cli::local_time_text(unix_ns, cli::kTimeOfDay); }

// "3 programs, 1 holds, 2 wait"
std::string counts_of(const Model& model) {
  if (!model.snapshot()) return {};
  std::size_t programs = 0, holding = 0, waiting = 0;
  for (const api_client::Gpu& gpu : model.snapshot()->gpus) {
    for (const api_client::Seat& seat : gpu.seats) {
      ++programs;
      if (!seat.lease.empty()) ++holding;
      if (seat.phase == "waiting") ++waiting;
    }
  }
  std::string text = cli::plural(programs, "program");
  if (programs > 0) {
    text += ", " + std::to_string(holding) + (holding == 1 ? " holds" : " hold");
    text += ", " + std::to_string(waiting) + (waiting == 1 ? " waits" : " wait");
  }
  const api_client::HostMemory& host = model.snapshot()->host_memory;
  if (host.lent > 0)
    text += "; host memory " + base::format_bytes(host.lent) + " of " + base::format_bytes(host.budget);
  return text;
}

void draw_head(Canvas& canvas, const Model& model, const Clocks& clocks) {
  if (model.lost()) {
    canvas.fill(0, 0, canvas.columns(), kAlarm);
    canvas.put(0, 0,
               "gpumux top  " + time_of_day(clocks.unix_ns) +
                   (model.lost()->is_gone ? "  The daemon is gone since " : "  The daemon gives no answer since ") +
                   time_of_day(model.lost()->since_unix_ns) + ": trying again every second",
               kAlarm);
    return;
  }
  std::size_t column = canvas.put(0, 0, "gpumux top", kBold);
  column = canvas.put(0, column, "  " + time_of_day(clocks.unix_ns));
  const std::string counts = counts_of(model);
  const std::string daemon = "  daemon in " + model.runtime_dir();
  if (column + cli::display_width(cli::printable(daemon)) + counts.size() + 2 <= canvas.columns())
    canvas.put(0, column, daemon, kDim);
  if (column + counts.size() + 2 <= canvas.columns()) canvas.put_right(0, canvas.columns(), counts);
}

void draw_hints(Canvas& canvas, std::size_t row, std::span<const Hint> hints) {
  std::size_t column = 0;
  for (const Hint& hint : hints) {
    const std::size_t width = hint.key.size() + hint.does.size() + 3;
    if (column + width > canvas.columns() + 1) break;
    column = canvas.put(row, column, std::string(hint.key) + " ", kBold);
    column = canvas.put(row, column, hint.does, {.hue = Hue::kCyan, .reversed = true});
    column = canvas.put(row, column, " ");
  }
}

// The selected row's state and reason, which may be cut in the table.
std::string detail_of(const Model& model, const View& view, std::int64_t now) {
  if (view.pane == Pane::kPrograms) {
    const auto rows = program_rows(model, view);
    std::vector<RowId> ids;
    for (const ProgramRow& row : rows) ids.push_back(row.id());
    if (rows.empty()) return {};
    const api_client::Seat& seat = *rows[row_of(view.programs, ids)].seat;
    const std::string why = cli::why_text(seat, model.snapshot()->gpus);
    return cli::program_text(seat) + " (" + std::to_string(seat.pid) + ") of " + cli::user_text(seat) + " is " +
           cli::phase_text(seat) + (why.empty() ? "" : ": " + why);
  }
  const auto rows = job_rows(model, view, now);
  std::vector<RowId> ids;
  for (const api_client::Job* job : rows) ids.push_back({0, job->id});
  if (rows.empty()) return {};
  const api_client::Job& job = *rows[row_of(view.jobs, ids)];
  const std::string reason = cli::job_reason(job);
  return name_of(job) + " is " + cli::state_text(job) + (reason.empty() ? "" : ": " + reason);
}

// Ends at `row`, and takes up to `free` more rows above it if the text is longer than one.
void draw_lines(Canvas& canvas, std::size_t row, std::size_t free, std::string_view text, Style style) {
  const std::vector<std::string> lines = cli::wrap(cli::printable(text), canvas.columns());
  if (lines.empty()) return;
  const std::size_t shown = std::min(lines.size(), free + 1);
  for (std::size_t i = 0; i + 1 < shown; ++i) canvas.put(row + 1 - shown + i, 0, lines[i], style);
  // The last row has all the rest, and cuts it.
  std::string rest = lines[shown - 1];
  for (std::size_t i = shown; i < lines.size(); ++i) rest += " " + lines[i];
  canvas.put(row, 0, rest, style);
}

// The line above the keys. `free`: the rows above it in which nothing stands.
void draw_message(Canvas& canvas, std::size_t row, std::size_t free, const Model& model, const View& view,
                  const Clocks& clocks) {
  const Style question{.hue = Hue::kYellow, .bold = true};
  if (const auto* input = std::get_if<AskingPriority>(&view.mode)) {
    std::size_t column = canvas.put(
        row, 0, "New priority of " + input->target.name + " (" + std::to_string(input->target.now) + "): ", question,
        canvas.columns() - std::min<std::size_t>(canvas.columns(), 20));
    column = canvas.put(row, column, input->text + "_", kBold);
    if (!view.message.text.empty()) canvas.put(row, column + 2, view.message.text, {.hue = Hue::kRed});
    return;
  }
  if (const auto* asked = std::get_if<Confirming>(&view.mode)) {
    constexpr std::string_view kAnswers = " y/N ";
    const std::size_t room = canvas.columns() - std::min(canvas.columns(), kAnswers.size() + 1);
    const std::size_t column = canvas.put(row, 0, asked->change.question, question, room);
    canvas.put(row, column + 1, kAnswers, {.hue = Hue::kYellow, .bold = true, .reversed = true});
    return;
  }
  if (std::holds_alternative<Filtering>(view.mode)) {
    const std::size_t column = canvas.put(row, 0, "Show only: ", question);
    canvas.put(row, column, view.filter + "_", kBold);
    return;
  }
  if (!view.message.text.empty()) {
    canvas.put(row, 0, view.message.text, view.message.is_error ? Style{.hue = Hue::kRed, .bold = true} : kBold);
    return;
  }
  if (model.lost()) {
    draw_lines(canvas, row, free, model.lost()->why, {.hue = Hue::kRed});
    return;
  }
  std::size_t column = 0;
  if (!view.filter.empty()) column = canvas.put(row, 0, "Only \"" + view.filter + "\".  ", question);
  if (view.gpu) column = canvas.put(row, column, "Only GPU " + std::to_string(*view.gpu) + ".  ", question);
  const std::string detail = detail_of(model, view, clocks.unix_ns);
  if (column > 0) {
    canvas.put(row, column, detail, kDim);
  } else {
    draw_lines(canvas, row, free, detail, kDim);
  }
}

void draw_help(Canvas& canvas, const Helping& help) {
  const std::size_t rows = canvas.rows() - std::min<std::size_t>(canvas.rows(), 1);
  const std::size_t first = std::min(help.top, kHelp.size() - std::min(kHelp.size(), rows));
  for (std::size_t i = 0; i < rows && first + i < kHelp.size(); ++i)
    canvas.put(i, 1, kHelp[first + i], first + i == 0 ? kBold : Style{});
  constexpr std::array<Hint, 2> kHelpHints{{{"Down", "Further"}, {"Esc", "Back"}}};
  draw_hints(canvas, canvas.rows() - 1, kHelpHints);
}

// Over the tables, at the left.
void draw_menu(Canvas& canvas, std::size_t top, const View& view, const Sorting& menu) {
  const std::span<const std::string_view> orders = view.pane == Pane::kPrograms
                                                       ? std::span<const std::string_view>(kProgramOrders)
                                                       : std::span<const std::string_view>(kJobOrders);
  constexpr std::size_t kWidth = 34;
  const Style frame{.hue = Hue::kGreen, .reversed = true};
  top = std::min(top, canvas.rows() - std::min(canvas.rows(), orders.size() + 3));
  canvas.fill(top, 0, kWidth, frame);
  canvas.put(top, 1, view.pane == Pane::kPrograms ? "Sort programs by" : "Sort jobs by", frame, kWidth - 1);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    const std::size_t row = top + 1 + i;
    const bool is_chosen = i == menu.choice;
    const Style style{.hue = Hue::kCyan, .reversed = is_chosen};
    canvas.fill(row, 0, kWidth, style);
    canvas.put(row, 0, std::string(is_chosen ? "> " : "  ") + std::string(orders[i]), style, kWidth);
  }
}

struct TableRows {
  std::size_t programs = 0;
  std::size_t jobs = 0;
};

// Jobs get what programs leave, and a third at least. Where there is no room for both, the pane with the focus has it.
TableRows share_rows(std::size_t room, std::size_t programs, std::size_t jobs, Pane focus) {
  if (room < 2 * kLeastTable) return focus == Pane::kPrograms ? TableRows{room, 0} : TableRows{0, room};
  const std::size_t wanted_jobs = std::max<std::size_t>(jobs, 1) + 1;
  const std::size_t wanted_programs = std::max<std::size_t>(programs, 1) + 1;
  const std::size_t left = room - std::min(room, wanted_programs);
  const std::size_t given = std::max(room / 3, left);
  const std::size_t to_jobs = std::min(wanted_jobs, given);
  // The programs' table ends where its rows do, so that the jobs follow them.
  return {std::min(wanted_programs, room - to_jobs), std::max(to_jobs, left)};
}

}  // namespace

Screen draw(const Model& model, const View& view, const Clocks& clocks, const Look& look) {
  Screen screen{Canvas(look.rows, look.columns, look.letters)};
  Canvas& canvas = screen.canvas;
  if (look.rows == 0 || look.columns == 0) return screen;
  if (const auto* help = std::get_if<Helping>(&view.mode)) {
    draw_help(canvas, *help);
    screen.page = std::max<std::size_t>(look.rows, 2) - 1;
    return screen;
  }
  draw_head(canvas, model, clocks);
  if (look.rows <= kFrameRows) return screen;
  const std::size_t room = look.rows - kFrameRows;
  std::size_t free = 0;
  if (!model.snapshot()) {
    canvas.put(2, 2, model.lost() ? "" : "Asking the daemon ...", kDim);
  } else {
    const std::size_t most = room >= 2 * kLeastTable ? std::min(look.rows / 2 + 1, room - kLeastTable) : room;
    const ScrolledTable programs = programs_table(model, view);
    const ScrolledTable jobs = jobs_table(model, view, clocks);
    const std::size_t wanted =
        std::max<std::size_t>(programs.rows.size(), 1) + std::max<std::size_t>(jobs.rows.size(), 1) + 2;
    const GpuPane gpus(model, view, clocks, look, most, room - std::min(room, wanted));
    gpus.draw(canvas, 1);
    if (model.snapshot()->gpus.empty())
      canvas.put(1, 0, "The daemon serves no GPU: it found none. `gpumux doctor` says why.", {.hue = Hue::kYellow});
    const std::size_t used = std::max<std::size_t>(gpus.rows(), 1);
    const TableRows tables = share_rows(room - used, programs.rows.size(), jobs.rows.size(), view.pane);
    draw_table(canvas, programs, 1 + used, tables.programs);
    draw_table(canvas, jobs, 1 + used + tables.programs, tables.jobs);
    const std::size_t height = view.pane == Pane::kPrograms ? tables.programs : tables.jobs;
    screen.page = std::max<std::size_t>(height, 2) - 1;
    free = tables.jobs - std::min(tables.jobs, std::max<std::size_t>(jobs.rows.size(), 1) + 1);
    if (const auto* menu = std::get_if<Sorting>(&view.mode)) draw_menu(canvas, 1 + used, view, *menu);
  }
  draw_message(canvas, look.rows - 2, free, model, view, clocks);
  draw_hints(canvas, look.rows - 1, kHints);
  return screen;
}

}  // namespace gpumux::top
