// SPDX-License-Identifier: Apache-2.0
// How a report is shown: as a table for people, and as CSV for spreadsheets and programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api_client/report.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// The period that was asked for, and when the use begins if that is later. Then the rows, and their sum if there are
// several.
// `asked`: the request that the report answers. `now`: nanoseconds since 1970.
std::vector<std::string> report_lines(const api_client::Report& report, const api_client::ReportQuery& asked,
                                      std::int64_t now, const Output& output);

// RFC 4180 with newlines; the first line names the columns. A text that a spreadsheet would take for a formula has a '
// before it. Control characters and what is not UTF-8 become '?'.
std::string report_csv(const api_client::Report& report);

// "1:30:05": hours, minutes, seconds. Hours may be any number.
std::string clock_text(double seconds);

}  // namespace gpumux::cli
