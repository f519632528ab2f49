// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/watch.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <optional>
#include <thread>

#include "cli/frame/keys.h"
#include "cli/frame/words.h"

namespace gpumux::cli {
namespace {

// A faster redraw than this cannot be read.
constexpr double kShortestInterval = 0.1;
constexpr double kLongestInterval = 86400;
constexpr base::Duration kDefaultInterval = std::chrono::seconds(1);

std::string check_interval(const std::string& text) {
  double seconds = 0;
  if (CLI::detail::lexical_cast(text, seconds) && seconds >= kShortestInterval && seconds <= kLongestInterval)
    return "";
  return "'" + text + "' is not a number of seconds from 0.1 to 86400";
}

// Draws over the last screen, without clearing first, so nothing flickers.
void redraw(const std::vector<std::string>& lines) {
  std::string frame = "\x1b[H";
  for (const std::string& line : lines) frame += line + "\x1b[K\n";
  frame += "\x1b[J";
  std::cout << frame << std::flush;
}

std::string short_number(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// The lines that scroll.
std::size_t body_rows(std::size_t rows, std::size_t lines) {
  const std::size_t room = rows > 2 ? rows - 2 : 1;  // the head, and the cursor's own line
  return lines <= room ? room : std::max<std::size_t>(room - 1, 1);
}

void scroll(Key key, std::size_t page, std::size_t& top) {
  switch (key) {
    case Key::kUp: top -= std::min<std::size_t>(top, 1); break;
    case Key::kDown: ++top; break;
    case Key::kPageUp: top -= std::min(top, page); break;
    case Key::kPageDown: top += page; break;
    case Key::kFirst: top = 0; break;
    case Key::kLast: top = SIZE_MAX; break;
    case Key::kNone:
    case Key::kQuit: break;
  }
}

}  // namespace

std::vector<std::string> screen_of(const std::string& head, const std::vector<std::string>& lines, std::size_t rows,
                                   bool has_keys, std::size_t& top) {
  const std::size_t shown = body_rows(rows, lines.size());
  top = std::min(top, lines.size() - std::min(lines.size(), shown));
  const std::size_t end = std::min(top + shown, lines.size());
  std::vector<std::string> screen{head};
  screen.insert(screen.end(), lines.begin() + static_cast<std::ptrdiff_t>(top),
                lines.begin() + static_cast<std::ptrdiff_t>(end));
  if (shown < lines.size()) {
    screen.push_back("... lines " + std::to_string(top + 1) + " to " + std::to_string(end) + " of " +
                     std::to_string(lines.size()) + (has_keys ? ": arrow keys scroll" : ": enlarge the terminal"));
  }
  return screen;
}

Watch::Watch(CLI::App& app)
    : option_(app.add_option("-w,--watch", seconds_, "Update every SECONDS (default 1), until q or Ctrl-C is pressed")
                  ->expected(0, 1)
                  ->type_name("[SECONDS]")
                  ->check(check_interval)) {}

// Without a number the parser leaves 0 there.
base::Duration Watch::interval() const {
  if (seconds_ <= 0) return kDefaultInterval;
  return std::chrono::round<base::Duration>(std::chrono::duration<double>(seconds_));
}

std::string Watch::head(const char* command, const Output& output, bool has_keys) const {
  const std::string text = "gpumux " + std::string(command) + "  " +
                           local_time_text(std::int64_t{std::time(nullptr)} * 1'000'000'000, kTimeOfDay) + "  every " +
                           short_number(std::chrono::duration<double>(interval()).count()) + " s" +
                           (has_keys ? "  q quits" : "") + "  daemon in " + printable(runtime_dir_);
  return paint(output, Colour::kDim, output.columns == 0 ? text : fit(text, output.columns));
}

int Watch::screens(const char* command, const Look& look) const {
  std::optional<Keys> keys;
  std::size_t top = 0;
  for (bool first = true; std::cout.good(); first = false) {
    Output output = look_at_stdout();
    auto lines = look(output);
    if (!lines) {
      if (first || lines.error().code == base::Code::kDenied) return report_error(command, lines.error());
      lines = std::vector{printable(lines.error().message())};
    }
    if (!output.moves) {
      if (!first) std::cout << "\n";
      std::cout << head(command, output, false) << "\n";
      print_lines(*lines);
      std::this_thread::sleep_for(interval());
      continue;
    }
    if (first) std::cout << "\x1b[2J";
    if (!keys) keys.emplace();
    // Keys move what was seen; a new look comes when it is due, or with another size of the terminal.
    using Clock = std::chrono::steady_clock;
    for (const Clock::time_point due = Clock::now() + interval();;) {
      redraw(screen_of(head(command, output, keys->are_there()), *lines, output.rows, keys->are_there(), top));
      const Key key = keys->wait(std::max<base::Duration>(due - Clock::now(), base::Duration::zero()));
      if (key == Key::kQuit) return kExitOk;
      if (key == Key::kNone) break;
      scroll(key, body_rows(output.rows, lines->size()), top);
    }
  }
  return kExitOk;
}

int Watch::documents(const char* command, const Look& look) const {
  for (bool first = true; std::cout.good(); first = false) {
    const auto lines = look(look_at_stdout());
    if (!lines && (first || lines.error().code == base::Code::kDenied)) return report_error(command, lines.error());
    if (lines) print_lines(*lines);
    std::this_thread::sleep_for(interval());
  }
  return kExitOk;
}

}  // namespace gpumux::cli
