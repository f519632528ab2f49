// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/frame/command.h"
#include "cli/frame/words.h"

namespace gpumux::cli {
namespace {

struct Shown {
  const char* word;
  Colour colour;
};

Shown shown(Level level) {
  switch (level) {
    case Level::kOk: return {"ok", Colour::kGreen};
    case Level::kWarning: return {"warning", Colour::kYellow};
    case Level::kProblem: return {"problem", Colour::kRed};
  }
  return {"?", Colour::kNone};
}

std::size_t count(const Findings& findings, Level level) {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.level == level; }));
}

// "problem" and two spaces; the other lines of a finding stand under its text.
constexpr std::size_t kIndent = 9;
// Narrower than this, wrapping makes it worse.
constexpr std::size_t kNarrowest = 20;

}  // namespace

std::vector<std::string> findings_lines(const Findings& findings, const Output& output) {
  std::vector<std::string> lines;
  const std::size_t room = output.columns == 0 ? 0 : std::max(output.columns, kIndent + kNarrowest) - kIndent;
  for (const Finding& finding : findings) {
    const Shown level = shown(finding.level);
    std::string begin =
        paint(output, level.colour, level.word) + std::string(kIndent - std::string_view(level.word).size(), ' ');
    for (const std::string& line : wrap(printable(finding.check + ": " + finding.title), room)) {
      lines.push_back(begin + line);
      begin = std::string(kIndent, ' ');
    }
    for (const auto& [label, text] : {std::pair{"means: ", finding.meaning}, std::pair{"do: ", finding.advice}}) {
      if (text.empty()) continue;
      for (const std::string& line : wrap(printable(label + text), room)) lines.push_back(begin + line);
    }
  }
  const std::size_t problems = count(findings, Level::kProblem);
  const std::size_t warnings = count(findings, Level::kWarning);
  lines.emplace_back();
  lines.push_back(problems + warnings == 0 ? "Everything is in order."
                                           : plural(problems, "problem") + ", " + plural(warnings, "warning") + ".");
  return lines;
}

std::string findings_json(const Findings& findings) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"level", shown(finding.level).word},
                    {"title", finding.title},
                    {"meaning", finding.meaning},
                    {"advice", finding.advice}});
  }
  const Json all{{"findings", std::move(list)},
                 {"problems", count(findings, Level::kProblem)},
                 {"warnings", count(findings, Level::kWarning)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace);
}

int findings_exit_status(const Findings& findings, bool strict) {
  const bool failed = count(findings, Level::kProblem) > 0 || (strict && count(findings, Level::kWarning) > 0);
  return failed ? kExitFailed : kExitOk;
}

}  // namespace gpumux::cli
