// SPDX-License-Identifier: Apache-2.0
#include "runner/report.h"

#include <unistd.h>

#include <cerrno>

#include "wire/messages.h"

namespace gpumux::runner {

void send_report(int pipe, ReportKind kind, std::uint32_t code, std::string_view text) {
  Report report;
  report.kind = kind;
  report.code = code;
  wire::set_text(report.text, text);
  while (::write(pipe, &report, sizeof report) < 0 && errno == EINTR) {
  }
}

std::optional<Report> receive_report(int pipe) {
  for (;;) {
    Report report;
    const ssize_t got = ::read(pipe, &report, sizeof report);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    const auto kind = static_cast<std::uint32_t>(report.kind);
    if (got != static_cast<ssize_t>(sizeof report) || kind < 1 || kind > 4) continue;
    report.text[sizeof report.text - 1] = '\0';
    return report;
  }
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& byte : out) {
    if (byte < ' ' || byte > '~') byte = '?';
  }
  return out;
}

}  // namespace gpumux::runner
