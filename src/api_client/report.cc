// SPDX-License-Identifier: Apache-2.0
#include "api_client/report.h"

#include "api_client/client.h"
#include "api_client/fields.gen.h"

namespace gpumux::api_client {
namespace {

using base::Result;

// Its sums are stored first, and a year's are read.
constexpr base::Duration kReportPatience = std::chrono::seconds(60);

}  // namespace

void ReportSums::add(const ReportSums& other) {
  held_seconds += other.held_seconds;
  gpu_seconds += other.gpu_seconds;
  waited_seconds += other.waited_seconds;
  resident_byte_seconds += other.resident_byte_seconds;
  evicted_byte_seconds += other.evicted_byte_seconds;
  switches += other.switches;
}

Result<Report> parse_report(std::string_view text) { return parse(text, report_fields, "the report"); }

Result<std::string> Client::report_text(const ReportQuery& query) const {
  std::string target = "/v1/report?by=" + query.by + "&since_unix_ns=" + std::to_string(query.since_unix_ns);
  if (query.until_unix_ns) target += "&until_unix_ns=" + std::to_string(*query.until_unix_ns);
  if (!query.user.empty()) target += "&user=" + url_encoded(query.user);
  if (!query.job.empty()) target += "&job=" + url_encoded(query.job);
  return call({"GET", target}, kReportPatience);
}

}  // namespace gpumux::api_client
