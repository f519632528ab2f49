// SPDX-License-Identifier: Apache-2.0
#include "cli/views/report_view.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "cli/frame/table.h"
#include "cli/views/times.h"

namespace gpumux::cli {
namespace {

using api_client::Report;
using api_client::ReportQuery;
using api_client::ReportRow;
using api_client::ReportSums;

constexpr double kGibHour = 3600.0 * (1 << 30);
// In place of what a sum of several has not.
constexpr char kOthers[] = "(others)";
constexpr char kNone[] = "-";

std::string pod_of(const ReportRow& row) {
  return row.pod_namespace.empty() ? row.pod : row.pod_namespace + "/" + row.pod;
}

std::string job_of(const ReportRow& row) {
  if (!row.job) return "";
  if (row.array && row.array_index) return std::to_string(*row.array) + "_" + std::to_string(*row.array_index);
  return std::to_string(*row.job);
}

std::string or_none(std::string text) { return text.empty() ? kNone : text; }

std::string gib_hours(double byte_seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", byte_seconds / kGibHour);
  return text;
}

// How long jobs ran. Programs of `gpumux run` are no jobs.
bool has_runs(const Report& report) { return report.by == "user" || report.by == "job"; }

std::vector<Column> columns_of(const Report& report) {
  std::vector<Column> columns;
  if (report.by == "job") columns = {{"JOB"}, {.title = "NAME", .leave_out = 3, .minimum = 8, .hide_if_empty = true}};
  if (report.by == "pod") columns = {{.title = "POD", .minimum = 8}};
  if (report.by == "program") {
    columns = {{.title = "PROGRAM", .minimum = 8},
               {.title = "POD", .leave_out = 2, .minimum = 8, .hide_if_empty = true}};
  }
  columns.push_back({.title = "USER", .minimum = 6});
  if (has_runs(report)) columns.push_back({"RUN TIME", Align::kRight});
  for (const std::string_view title : {"HELD", "GPU TIME", "WAITED"}) columns.push_back({title, Align::kRight});
  columns.push_back({.title = "GIB HOURS", .align = Align::kRight, .leave_out = 4});
  columns.push_back({.title = "IN HOST MEMORY", .align = Align::kRight, .leave_out = 6});
  columns.push_back({.title = "SWITCHES", .align = Align::kRight, .leave_out = 5});
  return columns;
}

// The texts that name the row's user, job, pod or program, in the order of columns_of.
std::vector<std::string> texts_of(const Report& report, const ReportRow& row) {
  std::vector<std::string> texts;
  if (report.by == "job") texts = {row.others ? kOthers : or_none(job_of(row)), row.name};
  if (report.by == "pod") texts = {or_none(pod_of(row))};
  if (report.by == "program") texts = {row.others ? kOthers : row.program.value_or(""), pod_of(row)};
  texts.push_back(or_none(row.user));
  return texts;
}

void add_row(Table& table, const std::vector<std::string>& texts, std::optional<double> run, const ReportSums& sums,
             Colour colour) {
  std::vector<Cell> cells;
  for (const std::string& text : texts) cells.push_back({text, colour});
  if (run) cells.push_back({clock_text(*run), colour});
  for (const double seconds : {sums.held_seconds, sums.gpu_seconds, sums.waited_seconds})
    cells.push_back({clock_text(seconds), colour});
  cells.push_back({gib_hours(sums.resident_byte_seconds), colour});
  cells.push_back({gib_hours(sums.evicted_byte_seconds), colour});
  cells.push_back({std::to_string(sums.switches), colour});
  table.add_row(std::move(cells));
}

// The shortest text that reads back as the same number.
std::string number(double value) {
  std::array<char, 512> text{};  // no finite number is longer
  const auto end = std::to_chars(text.begin(), text.end(), value, std::chars_format::fixed).ptr;
  return {text.begin(), end};
}

std::string csv_text(std::string_view text) {
  std::string clean = printable(text);
  if (!clean.empty() && std::string_view("=+-@").find(clean.front()) != std::string_view::npos)
    clean.insert(0, 1, '\'');
  if (clean.find_first_of(",\"") == std::string::npos &&
      (clean.empty() || (clean.front() != ' ' && clean.back() != ' ')))
    return clean;
  std::string quoted = "\"";
  for (const char c : clean) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::clamp(std::round(seconds), 0.0, 1e18));
  char text[64];
  std::snprintf(text, sizeof text, "%llu:%02u:%02u", static_cast<unsigned long long>(whole / 3600),
                static_cast<unsigned>(whole / 60 % 60), static_cast<unsigned>(whole % 60));
  return text;
}

std::vector<std::string> report_lines(const Report& report, const ReportQuery& asked, std::int64_t now,
                                      const Output& output) {
  // Whole hours and days: the first and the last may begin before and end after what was asked for.
  const std::int64_t first = report.since_unix_ns;
  const std::int64_t begin = asked.since_unix_ns == 0 ? first : std::min(asked.since_unix_ns, first);
  const std::int64_t end = std::min(std::max(asked.until_unix_ns.value_or(now), report.until_unix_ns), now);
  const std::string period = "from " + time_text(begin) + " to " + time_text(end);
  if (report.rows.empty()) {
    const std::string who = asked.job.empty() ? "No program has used a GPU" : "Job " + asked.job + " has used no GPU";
    return {who + (asked.since_unix_ns == 0 ? "." : " " + period + ".")};
  }
  std::vector<std::string> lines;
  lines.push_back(period + (begin < first ? "; no use before " + time_text(first) : ""));
  const std::vector<Column> columns = columns_of(report);
  Table table(columns);
  ReportSums all;
  double all_runs = 0;
  const auto run_of = [&](double seconds) { return has_runs(report) ? std::optional(seconds) : std::nullopt; };
  for (const ReportRow& row : report.rows) {
    add_row(table, texts_of(report, row), run_of(row.run_seconds), row.sums, Colour::kNone);
    all.add(row.sums);
    all_runs += row.run_seconds;
  }
  std::vector<std::string> texts(texts_of(report, {}).size());
  if (report.rest) {
    texts.front() = kOthers;
    add_row(table, texts, run_of(0), *report.rest, Colour::kNone);
    all.add(*report.rest);
  }
  if (report.rows.size() > 1) {
    texts.front() = "all";
    add_row(table, texts, run_of(all_runs), all, Colour::kBold);
  }
  for (std::string& line : table.lines(output)) lines.push_back(std::move(line));
  return lines;
}

std::string report_csv(const Report& report) {
  std::string csv;
  const auto add_line = [&csv](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) csv += (i == 0 ? "" : ",") + cells[i];
    csv += "\n";
  };
  const auto whole = [](const auto& value) { return value ? std::to_string(*value) : std::string(); };
  const auto add = [&](const ReportRow& row) {
    std::vector<std::string> cells;
    if (report.by == "job") cells = {whole(row.job), whole(row.array), whole(row.array_index), csv_text(row.name)};
    if (report.by == "program") cells = {csv_text(row.program.value_or(""))};
    if (report.by == "pod" || report.by == "program") {
      cells.push_back(csv_text(row.pod_namespace));
      cells.push_back(csv_text(row.pod));
    }
    cells.insert(cells.end(), {csv_text(row.user), whole(row.uid), row.others ? "1" : "0"});
    for (const double value : {row.sums.held_seconds, row.sums.gpu_seconds, row.sums.waited_seconds,
                               row.sums.resident_byte_seconds, row.sums.evicted_byte_seconds})
      cells.push_back(number(value));
    cells.push_back(std::to_string(row.sums.switches));
    if (has_runs(report)) cells.push_back(number(row.run_seconds));
    add_line(cells);
  };
  std::vector<std::string> names;
  if (report.by == "job") names = {"job", "array", "array_index", "name"};
  if (report.by == "program") names = {"program"};
  if (report.by == "pod" || report.by == "program") names.insert(names.end(), {"namespace", "pod"});
  names.insert(names.end(), {"user", "uid", "others", "held_seconds", "gpu_seconds", "waited_seconds",
                             "resident_byte_seconds", "evicted_byte_seconds", "switches"});
  if (has_runs(report)) names.emplace_back("run_seconds");
  add_line(names);
  for (const ReportRow& row : report.rows) add(row);
  if (report.rest) {
    ReportRow rest;
    rest.others = true;
    rest.sums = *report.rest;
    add(rest);
  }
  return csv;
}

}  // namespace gpumux::cli
