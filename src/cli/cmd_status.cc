// SPDX-License-Identifier: Apache-2.0
// gpumux status: who holds what, who waits for whom, and why.
#include <chrono>
#include <iostream>
#include <thread>

#include "api_client/client.h"
#include "cli/command.h"
#include "cli/status_view.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

constexpr char kName[] = "status";

// A faster redraw than this cannot be read.
constexpr double kShortestInterval = 0.1;
constexpr double kLongestInterval = 86400;

std::string check_interval(const std::string& text) {
  double seconds = 0;
  if (CLI::detail::lexical_cast(text, seconds) && seconds >= kShortestInterval && seconds <= kLongestInterval)
    return "";
  return "must be a number of seconds from 0.1 to 86400, not '" + text + "'";
}

int print_json(const api_client::Client& client) {
  const auto text = client.snapshot_text();
  if (!text) return report_error(kName, text.error());
  std::cout << *text << (text->ends_with('\n') ? "" : "\n") << std::flush;
  return kExitOk;
}

// Draws over what was drawn last, without clearing first, so nothing flickers. What does not fit is cut off at the
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

// For ever, or until the output is closed. A daemon that restarts meanwhile is waited for: watching is for seeing such
// things.
int watch(const api_client::Options& options, bool json, double seconds) {
  bool first = true;
  while (std::cout.good()) {
    const Output output = look_at_stdout();
    std::vector<std::string> lines;
    const auto client = api_client::Client::connect(options);
    const auto text = client ? client->snapshot_text() : base::Result<std::string>(tl::unexpected(client.error()));
    if (!text && (first || text.error().code == base::Code::kDenied)) return report_error(kName, text.error());
    if (json) {
      if (text) std::cout << *text << (text->ends_with('\n') ? "" : "\n") << std::flush;
    } else {
      const auto snapshot = text.and_then([](const std::string& body) { return api_client::parse_snapshot(body); });
      if (snapshot) {
        lines = status_lines(*snapshot, output);
      } else {
        lines = {printable(snapshot.error().message())};
      }
      if (output.moves) {
        if (first) std::cout << "\x1b[2J";
        redraw(std::move(lines), output);
      } else {
        if (!first) std::cout << "\n";
        for (const std::string& line : lines) std::cout << line << "\n";
        std::cout << std::flush;
      }
    }
    first = false;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  return kExitOk;
}

}  // namespace

int status_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  bool json = false;
  double interval = 1;
  CLI::App app("Shows the GPUs, who holds and who waits for each, and why.", "gpumux status");
  app.add_flag("--json", json, "Print the daemon's answer as it is (docs/api.md, GET /v1/status)");
  auto* watch_option = app.add_option("-w,--watch", interval, "Show it again every SECONDS (1), until Ctrl-C")
                           ->expected(0, 1)
                           ->type_name("[SECONDS]")
                           ->check(check_interval);
  app.add_option("--runtime-dir", options.runtime_dir, "Ask the daemon whose sockets are in DIR")->type_name("DIR");
  app.footer(
      R"(States: holding (may use the GPU), revoked (asked to give it back), draining (submits nothing any more, work
still running), waiting #N (N-th in the queue), idle (wants nothing), silent (does not answer: stopped, or in a
debugger). FOR is how long it has been so; HELD and WAITED are sums.

Examples:
  gpumux status
  gpumux status --watch 0.5
  gpumux status --json | jq '.gpus[].seats[] | select(.phase == "holding") | .program'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 the daemon does not let you in.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (watch_option->count() > 0) return watch(options, json, interval);
  const auto client = api_client::Client::connect(options);
  if (!client) return report_error(kName, client.error());
  if (json) return print_json(*client);
  const auto snapshot = client->snapshot();
  if (!snapshot) return report_error(kName, snapshot.error());
  for (const std::string& line : status_lines(*snapshot, look_at_stdout())) std::cout << line << "\n";
  std::cout << std::flush;
  return kExitOk;
}

}  // namespace gpumux::cli
