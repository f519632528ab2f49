// SPDX-License-Identifier: Apache-2.0
// gpumux trace: who ran when.
#include <ctime>
#include <iostream>

#include "api_client/client.h"
#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/views/trace_view.h"
#include "os/system_clock.h"

namespace gpumux::cli {
namespace {

constexpr char kName[] = "trace";

base::Duration monotonic_to_wall() {
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  const base::Duration since_epoch(wall.tv_sec * 1'000'000'000 + wall.tv_nsec);
  return since_epoch - os::SystemClock().now().time_since_epoch();
}

}  // namespace

int trace_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  bool json = false;
  bool follow = false;
  std::uint64_t since = 0;
  CLI::App app("Shows who ran when: the daemon's last 65,536 lease events, oldest first.", "gpumux trace");
  app.add_flag("-f,--follow", follow, "Go on with each event as it happens, until Ctrl-C");
  app.add_flag("--json", json, "One JSON object a line, as the daemon gives them (docs/api.md, GET /v1/trace)");
  app.add_option("--since", since, "Begin with the event of this sequence number")->type_name("N");
  app.add_option("--runtime-dir", options.runtime_dir, "Ask the daemon whose sockets are in DIR")->type_name("DIR");
  app.footer(R"(Examples:
  gpumux trace
  gpumux trace --follow
  gpumux trace --json | jq -r 'select(.event == "grant") | [.time_ns, .gpu, .program] | @tsv'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running (or it ended while followed), 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const auto client = api_client::Client::connect(options);
  if (!client) return report_error(kName, client.error());

  const Output output = look_at_stdout();
  TraceView view(output, monotonic_to_wall());
  base::Status readable;
  const auto read = client->trace(follow, since, [&](std::string_view line) {
    if (json) {
      std::cout << json_for(output, line);
    } else {
      const auto event = api_client::parse_trace_event(line);
      if (!event) {
        readable = tl::unexpected(event.error());
        return false;
      }
      std::cout << view.line(*event) << "\n";
    }
    if (follow) std::cout << std::flush;
    return std::cout.good();
  });
  std::cout << std::flush;
  if (!readable) return report_error(kName, readable.error());
  if (!read) return report_error(kName, read.error());
  return kExitOk;
}

}  // namespace gpumux::cli
