// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/waiting_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "cli/frame/terminal.h"

namespace gpumux::cli {
namespace {

bool can_move() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && term != nullptr && term[0] != '\0' && std::string_view(term) != "dumb";
}

}  // namespace

WaitingLine::WaitingLine() : moves_(can_move()) {}

void WaitingLine::show(const std::string& text) {
  if (text == shown_) return;
  shown_ = text;
  if (!moves_) {
    std::cerr << printable(text) << "\n" << std::flush;
    return;
  }
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  std::cerr << "\r" << fit(printable(text), (known ? size.ws_col : 80u) - 1) << "\x1b[K" << std::flush;
  on_screen_ = true;
}

void WaitingLine::clear() {
  if (on_screen_) std::cerr << "\r\x1b[K" << std::flush;
  on_screen_ = false;
  shown_.clear();
}

}  // namespace gpumux::cli
