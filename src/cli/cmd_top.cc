// SPDX-License-Identifier: Apache-2.0
// gpumux top: GPUs, programs and jobs on the whole terminal.
#include "api_client/client.h"
#include "cli/frame/command.h"
#include "top/top.h"

namespace gpumux::cli {

int top_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  CLI::App app("Shows GPUs, programs and jobs on the whole terminal, and follows them.", "gpumux top");
  add_runtime_dir(app, options.runtime_dir);
  app.footer(
      R"(Keys: arrow keys select, Tab changes between programs and jobs, / filters, s sorts, c cancels a job, H holds or
releases it, p changes a priority, ? shows all keys, q quits. Every change is asked about first.

Colours: on a terminal that has them, unless NO_COLOR is set. Bars and lines are drawn with letters of ASCII unless the
locale (LC_ALL, LC_CTYPE or LANG) is one with UTF-8.

Examples:
  gpumux top
  ssh -t server gpumux top
  NO_COLOR=1 gpumux top

Exit status: 0 quit, 1 failed, 2 wrong usage, 3 no daemon is running, 4 the daemon does not let you in.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const base::Status ended = top::run_top(options);
  return ended ? kExitOk : report_error("top", ended.error());
}

}  // namespace gpumux::cli
