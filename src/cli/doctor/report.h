// SPDX-License-Identifier: Apache-2.0
// Findings for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/finding.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// Wrapped at the terminal's width; nothing is cut off, for advice is there to be followed.
std::vector<std::string> findings_lines(const Findings& findings, const Output& output);

// {"findings": [{"check", "level": "ok"|"warning"|"problem", "title", "meaning", "advice"}], "problems": N, "warnings":
// N}
std::string findings_json(const Findings& findings);

int findings_exit_status(const Findings& findings, bool strict);

}  // namespace gpumux::cli
