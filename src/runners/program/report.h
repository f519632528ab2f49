// SPDX-License-Identifier: Apache-2.0
// The reports of the job's process to its supervisor on its way to the command, over a pipe: its progress, or its
// failure.
//
// With a set-up command the pipe is open in that command too, so a report is the user's own word about the user's own
// job. The supervisor reads at most kMostReports of them and makes their text harmless. They decide nothing but the
// description of that job's end.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpumux::runners {

enum class ReportKind : std::uint32_t {
  kNoCgroup = 1,   // it is not in the job's group; find it otherwise
  kSetup = 2,      // next thing the set-up command's shell is executed
  kLaunching = 3,  // next thing the command itself is executed
  kFailed = 4,     // it will end with status `code`, for the reason in the text
};

struct Report {
  ReportKind kind = ReportKind::kFailed;
  std::uint32_t code = 0;
  char text[248] = {};
};
static_assert(sizeof(Report) == 256 && sizeof(Report) <= PIPE_BUF, "a report is written whole or not at all");

// The most messages of one job, whatever else comes through the pipe included. A job's own processes send five at most.
inline constexpr int kMostReports = 64;

// Sends it; nothing if the supervisor is gone, or does not listen any more.
void send_report(int pipe, ReportKind kind, std::uint32_t code, std::string_view text);

// One read, which does not wait if the pipe does not.
enum class Received { kNothing, kReport, kSomethingElse };
Received receive_report(int pipe, Report& report);

// As people may see it on their terminals: control characters, and bytes beyond ASCII, become '?'.
std::string printable(std::string_view text);

}  // namespace gpumux::runners
