// SPDX-License-Identifier: Apache-2.0
// Goal: a report is read as the daemon writes it. Method: the JSON of docs/api.md, and broken copies of it.
#include "api_client/report.h"

#include <gtest/gtest.h>

namespace gpumux::api_client {
namespace {

TEST(ReportTest, AReportIsReadWhole) {
  const auto report = parse_report(R"({"since_unix_ns": 3, "until_unix_ns": 4, "by": "job", "rows": [
      {"uid": 1000, "user": "eva", "job": 17, "array": 14, "array_index": 3, "name": {"base64": "/w=="},
       "held_seconds": 12.5, "gpu_seconds": 11, "waited_seconds": 0.25, "resident_byte_seconds": 1e30,
       "evicted_byte_seconds": 7, "switches": 9},
      {"namespace": "team-a", "pod": "train-0", "program": "", "others": true, "held_seconds": 1}],
      "rest": {"held_seconds": 2, "switches": 1}})");
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->since_unix_ns, 3);
  EXPECT_EQ(report->until_unix_ns, 4);
  EXPECT_EQ(report->by, "job");
  ASSERT_EQ(report->rows.size(), 2u);
  const ReportRow& job = report->rows[0];
  EXPECT_EQ(job.uid, 1000u);
  EXPECT_EQ(job.user, "eva");
  EXPECT_EQ(job.job, 17u);
  EXPECT_EQ(job.array, 14u);
  EXPECT_EQ(job.array_index, 3u);
  EXPECT_EQ(job.name, "\xff");
  EXPECT_FALSE(job.program);
  EXPECT_FALSE(job.others);
  EXPECT_EQ(job.sums.held_seconds, 12.5);
  EXPECT_EQ(job.sums.gpu_seconds, 11);
  EXPECT_EQ(job.sums.waited_seconds, 0.25);
  EXPECT_EQ(job.sums.resident_byte_seconds, 1e30);
  EXPECT_EQ(job.sums.evicted_byte_seconds, 7);
  EXPECT_EQ(job.sums.switches, 9u);
  const ReportRow& pod = report->rows[1];
  EXPECT_FALSE(pod.uid);
  EXPECT_EQ(pod.pod_namespace + "/" + pod.pod, "team-a/train-0");
  EXPECT_EQ(pod.program, "");
  EXPECT_TRUE(pod.others);
  ASSERT_TRUE(report->rest);
  EXPECT_EQ(report->rest->held_seconds, 2);
  ReportSums sum = job.sums;
  sum.add(*report->rest);
  EXPECT_EQ(sum.held_seconds, 14.5);
  EXPECT_EQ(sum.switches, 10u);
}

TEST(ReportTest, WhatIsNoReportIsRefused) {
  EXPECT_FALSE(parse_report("report"));
  EXPECT_FALSE(parse_report(R"({"rows": [{"held_seconds": "1"}]})"));
  EXPECT_FALSE(parse_report(R"({"rows": [{"switches": -1}]})"));
  EXPECT_FALSE(parse_report(R"({"rows": {}})"));
  EXPECT_FALSE(parse_report(R"({"rest": 7})"));
  EXPECT_TRUE(parse_report("{}"));
}

}  // namespace
}  // namespace gpumux::api_client
