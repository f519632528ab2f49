// SPDX-License-Identifier: Apache-2.0
// The use of GPUs by users, jobs, pods and programs, from the daemon's HTTP API (docs/api.md, GET /v1/report).
//
// Strings come from other people's processes, as in types.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::api_client {

struct ReportQuery {
  std::string by = "user";  // user, job, pod, program
  std::int64_t since_unix_ns = 0;
  std::optional<std::int64_t> until_unix_ns = {};
  std::string user = {};  // empty: all users'
  std::string job = {};   // "17", "17_3"; empty: every job's
};

struct ReportSums {
  double held_seconds = 0;
  double gpu_seconds = 0;  // of those, without the time that the program was idle
  double waited_seconds = 0;
  double resident_byte_seconds = 0;
  double evicted_byte_seconds = 0;
  std::uint64_t switches = 0;

  void add(const ReportSums& other);
};

// Fields that the report is not by are not set.
struct ReportRow {
  std::optional<std::uint32_t> uid;  // none: in a container
  std::string user;
  std::optional<std::uint64_t> job;
  std::optional<std::uint64_t> array;
  std::optional<std::uint64_t> array_index;
  std::string name;  // the job's
  std::string pod_namespace;
  std::string pod;
  std::optional<std::string> program;
  double run_seconds = 0;  // by user and by job: of jobs, from their first starts to their ends
  bool others = false;     // a sum of jobs and programs that the daemon does not tell apart
  ReportSums sums;
};

struct Report {
  std::int64_t since_unix_ns = 0;  // the time that its periods cover
  std::int64_t until_unix_ns = 0;
  std::string by;
  std::vector<ReportRow> rows;     // the longest held first
  std::optional<ReportSums> rest;  // of further rows
};

base::Result<Report> parse_report(std::string_view json);

}  // namespace gpumux::api_client
