// SPDX-License-Identifier: Apache-2.0
// Goal: scrapers can read the metrics, in both formats. Method: texts compared whole. tests/e2e/metrics_test.py has
// real scrapers read them.
#include "daemon/api/exposition.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

using Kind = Exposition::Kind;
using namespace std::chrono_literals;

std::string text_in(MetricsFormat format) {
  Exposition out(format);
  out.begin_family("gpumux_waited_seconds", Kind::kCounter, "How long\nit \"waited\" for C:\\.");
  out.sample(Labels().add("user", "eva").add("job", ""), base::Duration(1'500'000'000));
  out.begin_family("gpumux_used_bytes", Kind::kGauge, "Memory.");
  out.sample({}, UINT64_MAX);
  out.begin_family("gpumux_part_ratio", Kind::kGauge, "A part.");
  out.sample({}, 0.25);
  return std::move(out).finish();
}

TEST(Exposition, IsPrometheusText) {
  EXPECT_EQ(text_in(MetricsFormat::kPrometheus),
            "# HELP gpumux_waited_seconds_total How long\\nit \"waited\" for C:\\\\.\n"
            "# TYPE gpumux_waited_seconds_total counter\n"
            "gpumux_waited_seconds_total{user=\"eva\"} 1.5\n"
            "# HELP gpumux_used_bytes Memory.\n"
            "# TYPE gpumux_used_bytes gauge\n"
            "gpumux_used_bytes 18446744073709551615\n"
            "# HELP gpumux_part_ratio A part.\n"
            "# TYPE gpumux_part_ratio gauge\n"
            "gpumux_part_ratio 0.25\n");
}

TEST(Exposition, IsOpenMetrics) {
  EXPECT_EQ(text_in(MetricsFormat::kOpenMetrics),
            "# HELP gpumux_waited_seconds How long\\nit \\\"waited\\\" for C:\\\\.\n"
            "# TYPE gpumux_waited_seconds counter\n"
            "# UNIT gpumux_waited_seconds seconds\n"
            "gpumux_waited_seconds_total{user=\"eva\"} 1.5\n"
            "# HELP gpumux_used_bytes Memory.\n"
            "# TYPE gpumux_used_bytes gauge\n"
            "# UNIT gpumux_used_bytes bytes\n"
            "gpumux_used_bytes 18446744073709551615\n"
            "# HELP gpumux_part_ratio A part.\n"
            "# TYPE gpumux_part_ratio gauge\n"
            "# UNIT gpumux_part_ratio ratio\n"
            "gpumux_part_ratio 0.25\n"
            "# EOF\n");
}

TEST(Exposition, EscapesLabels) {
  EXPECT_EQ(Labels().add("program", "a\"b\\c\nd").text(), R"(program="a\"b\\c\nd")");
  EXPECT_EQ(Labels().add("program", "x\xff\x1b[31m").text(), "program=\"x\xef\xbf\xbd\x1b[31m\"");
  EXPECT_EQ(Labels().add("program", "h\xc3\xa9").text(), "program=\"h\xc3\xa9\"");
}

TEST(Exposition, CountsBucketsUp) {
  server::WaitHistogram waits;
  waits.add(1ms);  // on a bound: in its bucket
  waits.add(2ms);
  waits.add(3h);
  Exposition out(MetricsFormat::kPrometheus);
  out.begin_family("gpumux_wait_seconds", Kind::kHistogram, "Waits.");
  out.sample(Labels().add("gpu", "0"), waits);
  const std::string text = std::move(out).finish();
  for (const char* line :
       {"gpumux_wait_seconds_bucket{gpu=\"0\",le=\"1e-04\"} 0\n",
        "gpumux_wait_seconds_bucket{gpu=\"0\",le=\"0.001\"} 1\n",
        "gpumux_wait_seconds_bucket{gpu=\"0\",le=\"0.003\"} 2\n",
        "gpumux_wait_seconds_bucket{gpu=\"0\",le=\"3600\"} 2\n",
        "gpumux_wait_seconds_bucket{gpu=\"0\",le=\"+Inf\"} 3\n", "gpumux_wait_seconds_sum{gpu=\"0\"} 10800.003\n",
        "gpumux_wait_seconds_count{gpu=\"0\"} 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(Exposition, ChoosesTheFormatThatIsAskedFor) {
  EXPECT_EQ(metrics_format(""), MetricsFormat::kPrometheus);
  EXPECT_EQ(metrics_format("text/plain;version=0.0.4"), MetricsFormat::kPrometheus);
  // As Prometheus 2.42 asks.
  EXPECT_EQ(metrics_format("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
                           "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
            MetricsFormat::kOpenMetrics);
}

}  // namespace
}  // namespace gpumux::daemon
