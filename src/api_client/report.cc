// SPDX-License-Identifier: Apache-2.0
#include "api_client/report.h"

#include "api_client/client.h"
#include "api_client/json_reader.h"

namespace gpumux::api_client {
namespace {

using base::Result;
using nlohmann::json;

// Its sums are stored first, and a year's are read.
constexpr base::Duration kReportPatience = std::chrono::seconds(60);

void sums_fields(Reader& reader, ReportSums& sums) {
  reader.read("held_seconds", sums.held_seconds);
  reader.read("gpu_seconds", sums.gpu_seconds);
  reader.read("waited_seconds", sums.waited_seconds);
  reader.read("resident_byte_seconds", sums.resident_byte_seconds);
  reader.read("evicted_byte_seconds", sums.evicted_byte_seconds);
  reader.read("switches", sums.switches);
}

void row_fields(Reader& reader, ReportRow& row) {
  reader.read("uid", row.uid);
  reader.read("user", row.user);
  reader.read("job", row.job);
  reader.read("array", row.array);
  reader.read("array_index", row.array_index);
  reader.read("name", row.name);
  reader.read("namespace", row.pod_namespace);
  reader.read("pod", row.pod);
  reader.read("program", row.program);
  reader.read("run_seconds", row.run_seconds);
  reader.read("others", row.others);
  sums_fields(reader, row.sums);
}

}  // namespace

void ReportSums::add(const ReportSums& other) {
  held_seconds += other.held_seconds;
  gpu_seconds += other.gpu_seconds;
  waited_seconds += other.waited_seconds;
  resident_byte_seconds += other.resident_byte_seconds;
  evicted_byte_seconds += other.evicted_byte_seconds;
  switches += other.switches;
}

Result<Report> parse_report(std::string_view text) {
  return parse<Report>(
      text,
      [](Reader& reader, Report& report) {
        reader.read("since_unix_ns", report.since_unix_ns);
        reader.read("until_unix_ns", report.until_unix_ns);
        reader.read("by", report.by);
        reader.read("rows", report.rows, "a row of a report", row_fields);
        if (reader.find("rest") != nullptr)
          reader.read("rest", report.rest.emplace(), "the rest of a report", sums_fields);
      },
      "the report");
}

Result<std::string> Client::report_text(const ReportQuery& query) const {
  std::string target = "/v1/report?by=" + query.by + "&since_unix_ns=" + std::to_string(query.since_unix_ns);
  if (query.until_unix_ns) target += "&until_unix_ns=" + std::to_string(*query.until_unix_ns);
  if (!query.user.empty()) target += "&user=" + url_encoded(query.user);
  if (!query.job.empty()) target += "&job=" + url_encoded(query.job);
  return call({"GET", target}, kReportPatience);
}

}  // namespace gpumux::api_client
