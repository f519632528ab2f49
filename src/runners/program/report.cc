// SPDX-License-Identifier: Apache-2.0
#include "runners/program/report.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "wire/messages.h"

namespace gpumux::runners {

void send_report(int pipe, ReportKind kind, std::uint32_t code, std::string_view text) {
  Report report;
  report.kind = kind;
  report.code = code;
  wire::set_text(report.text, text);
  struct sigaction ignored {};
  struct sigaction before {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, &before);
  while (::write(pipe, &report, sizeof report) < 0 && errno == EINTR) {
  }
  ::sigaction(SIGPIPE, &before, nullptr);
}

Received receive_report(int pipe, Report& report) {
  ssize_t got;
  while ((got = ::read(pipe, &report, sizeof report)) < 0 && errno == EINTR) {
  }
  if (got <= 0) return Received::kNothing;
  const auto kind = static_cast<std::uint32_t>(report.kind);
  if (got != static_cast<ssize_t>(sizeof report) || kind < 1 || kind > 4) return Received::kSomethingElse;
  report.text[sizeof report.text - 1] = '\0';
  return Received::kReport;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& byte : out) {
    if (byte < ' ' || byte > '~') byte = '?';
  }
  return out;
}

}  // namespace gpumux::runners
