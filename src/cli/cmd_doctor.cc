// SPDX-License-Identifier: Apache-2.0
// gpumux doctor: looks at an installation, and for everything that it finds says what it means and what to do.

#include "cli/doctor/checks.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/report.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

int doctor_command(const std::vector<char*>& arguments) {
  bool json = false;
  bool strict = false;
  std::string runtime_dir;
  CLI::App app("Checks this installation: driver, library, daemon, GPUs, environment. Each finding says what to do.",
               "gpumux doctor");
  app.add_flag("--json", json, "Print the findings as JSON");
  app.add_flag("--strict", strict, "Exit with 1 for warnings too");
  app.add_option("--runtime-dir", runtime_dir, "Look for the daemon whose sockets are in DIR")->type_name("DIR");
  app.footer(
      R"(The command creates no CUDA context, starts no daemon and changes nothing, so you can run it at any time.
A problem keeps a part of gpumux from working. A warning names a part that works, but perhaps not as you expect.

Examples:
  gpumux doctor
  gpumux doctor --json | jq -r '.findings[] | select(.level != "ok") | .title'
  gpumux doctor --strict && gpumux run -- python train.py

Exit status: 0 no problem (there may be warnings), 1 a problem (with --strict: or a warning), 2 wrong usage.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const Findings findings = check_all(collect_facts(runtime_dir));
  if (json) {
    print_json(findings_json(findings));
  } else {
    print_lines(findings_lines(findings, look_at_stdout()));
  }
  return findings_exit_status(findings, strict);
}

}  // namespace gpumux::cli
