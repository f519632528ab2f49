// SPDX-License-Identifier: Apache-2.0
// gpumux version: this program's, and the daemon's where one runs.
#include <iostream>

#include "api_client/client.h"
#include "base/version.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

int version_command(const std::vector<char*>& arguments) {
  CLI::App app("Prints gpumux's version and commit, and the version of the daemon if one is running.",
               "gpumux version");
  app.footer("Example:\n  gpumux version\n\nExit status: 0, whether or not a daemon is running; 2 wrong usage.");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  std::cout << "gpumux " << base::version() << " (commit " << base::commit() << ")\n";
  const auto info =
      api_client::Client::connect({}).and_then([](const api_client::Client& client) { return client.daemon_info(); });
  if (info) {
    std::cout << "daemon " << printable(info->version) << " (pid " << info->pid << ", " << printable(info->runtime_dir)
              << ")\n";
  } else {
    std::cout << "daemon: none\n";
  }
  std::cout << std::flush;
  return kExitOk;
}

}  // namespace gpumux::cli
