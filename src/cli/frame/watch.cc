// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/watch.h"

#include <chrono>
#include <iostream>
#include <thread>
#include <utility>

namespace gpumux::cli {
namespace {

// A faster redraw than this cannot be read.
constexpr double kShortestInterval = 0.1;
constexpr double kLongestInterval = 86400;

std::string check_interval(const std::string& text) {
  double seconds = 0;
  if (CLI::detail::lexical_cast(text, seconds) && seconds >= kShortestInterval && seconds <= kLongestInterval)
    return "";
  return "must be a number of seconds from 0.1 to 86400, not '" + text + "'";
}

// Draws over the last screen, without clearing first, so nothing flickers. Lines that do not fit are cut off at the
// bottom.
void redraw(std::vector<std::string> lines, const Output& output) {
  if (lines.size() >= output.rows && output.rows > 1) {
    const std::size_t hidden = lines.size() - (output.rows - 2);
    lines.resize(output.rows - 2);
    lines.push_back("... " + std::to_string(hidden) + " more lines; enlarge the terminal");
  }
  std::string frame = "\x1b[H";
  for (const std::string& line : lines) frame += line + "\x1b[K\n";
  frame += "\x1b[J";
  std::cout << frame << std::flush;
}

}  // namespace

Watch::Watch(CLI::App& app)
    : option_(app.add_option("-w,--watch", seconds_, "Update every SECONDS (default 1), until Ctrl-C")
                  ->expected(0, 1)
                  ->type_name("[SECONDS]")
                  ->check(check_interval)) {}

int Watch::screens(const char* command, const Look& look) const { return watch(command, look, true); }
int Watch::documents(const char* command, const Look& look) const { return watch(command, look, false); }

int Watch::watch(const char* command, const Look& look, bool is_for_people) const {
  for (bool first = true; std::cout.good(); first = false) {
    const Output output = look_at_stdout();
    auto lines = look(output);
    if (!lines) {
      if (first || lines.error().code == base::Code::kDenied) return report_error(command, lines.error());
      lines = is_for_people ? std::vector{printable(lines.error().message())} : std::vector<std::string>();
    }
    if (is_for_people && output.moves) {
      if (first) std::cout << "\x1b[2J";
      redraw(std::move(*lines), output);
    } else {
      if (is_for_people && !first) std::cout << "\n";
      for (const std::string& line : *lines) std::cout << line << "\n";
      std::cout << std::flush;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
  }
  return kExitOk;
}

}  // namespace gpumux::cli
