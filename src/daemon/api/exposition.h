// SPDX-License-Identifier: Apache-2.0
// Metrics as text: Prometheus's text format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/) or
// OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/). The two differ in counters' names,
// units and the end mark; all else is the same.
//
// A family's samples follow its begin_family() at once. Any thread, one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "server/loop/wait_histogram.h"

namespace gpumux::daemon {

enum class MetricsFormat { kPrometheus, kOpenMetrics };

// The format that a scraper's Accept header asks for.
MetricsFormat metrics_format(std::string_view accept);
std::string_view content_type(MetricsFormat format);

// Labels as they stand between braces: `gpu="0",user="eva"`.
class Labels {
 public:
  // Bytes that are not UTF-8 become U+FFFD; an empty value is left out, for it means the same as no label.
  Labels& add(std::string_view name, std::string_view value);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Exposition {
 public:
  enum class Kind { kGauge, kCounter, kHistogram };

  explicit Exposition(MetricsFormat format) : format_(format) {}

  // `name`: of a counter without `_total`. Ends in its base unit, if it has one: `_seconds`, `_bytes`, `_ratio`.
  void begin_family(std::string_view name, Kind kind, std::string_view help);
  void sample(const Labels& labels, std::uint64_t value);
  void sample(const Labels& labels, double value);
  void sample(const Labels& labels, base::Duration value);  // in seconds
  void sample(const Labels& labels, const server::WaitHistogram& waits);
  // No more samples.
  std::string finish() &&;

 private:
  void line(std::string_view suffix, std::string_view labels, std::string_view value);

  const MetricsFormat format_;
  std::string name_;
  std::string_view suffix_;  // of a sample's name in this family
  std::string text_;
};

}  // namespace gpumux::daemon
