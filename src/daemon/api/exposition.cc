// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/exposition.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/api/api_types.h"

namespace gpumux::daemon {
namespace {

// Whole nanoseconds as a decimal fraction, exactly.
std::string seconds_text(base::Duration value) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  std::string text = value.count() < 0 ? "-" : "";
  const std::int64_t nanoseconds = std::abs(value.count());
  text += std::to_string(nanoseconds / kSecond);
  const std::int64_t rest = nanoseconds % kSecond;
  if (rest == 0) return text;
  std::string fraction = std::to_string(rest + kSecond).substr(1);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return text + "." + fraction;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

// Replaces bytes that are not UTF-8 by U+FFFD.
std::string valid_utf8(std::string_view text) {
  const bool is_ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 128; });
  return is_ascii ? std::string(text) : nlohmann::json::parse(server::json_string(text)).get<std::string>();
}

void append_escaped(std::string& text, std::string_view value, bool is_label) {
  for (const char c : value) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '"' && is_label) {
      text += "\\\"";
    } else {
      text += c;
    }
  }
}

std::string_view kind_text(Exposition::Kind kind) {
  switch (kind) {
    case Exposition::Kind::kGauge: return "gauge";
    case Exposition::Kind::kCounter: return "counter";
    case Exposition::Kind::kHistogram: return "histogram";
  }
  return "unknown";
}

}  // namespace

// Prometheus asks for OpenMetrics before all else, if it knows it.
MetricsFormat metrics_format(std::string_view accept) {
  return accept.find("application/openmetrics-text") != std::string_view::npos ? MetricsFormat::kOpenMetrics
                                                                               : MetricsFormat::kPrometheus;
}

std::string_view content_type(MetricsFormat format) {
  return format == MetricsFormat::kOpenMetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                               : "text/plain; version=0.0.4; charset=utf-8";
}

Labels& Labels::add(std::string_view name, std::string_view value) {
  if (value.empty()) return *this;
  if (!text_.empty()) text_ += ',';
  text_ += name;
  text_ += "=\"";
  append_escaped(text_, valid_utf8(value), true);
  text_ += '"';
  return *this;
}

void Exposition::begin_family(std::string_view name, Kind kind, std::string_view help) {
  name_ = name;
  suffix_ = kind == Kind::kCounter ? "_total" : "";
  // Prometheus's format names what the samples are called, OpenMetrics the family.
  const std::string title = format_ == MetricsFormat::kPrometheus ? name_ + std::string(suffix_) : name_;
  text_ += "# HELP " + title + ' ';
  append_escaped(text_, help, format_ == MetricsFormat::kOpenMetrics);
  text_.append("\n# TYPE " + title + ' ').append(kind_text(kind)).append("\n");
  if (format_ == MetricsFormat::kPrometheus) return;
  for (const std::string_view unit : {"seconds", "bytes", "ratio"}) {
    if (name.ends_with("_" + std::string(unit))) text_.append("# UNIT " + title + ' ').append(unit).append("\n");
  }
}

void Exposition::line(std::string_view suffix, std::string_view labels, std::string_view value) {
  text_.append(name_).append(suffix);
  if (!labels.empty()) text_.append("{").append(labels).append("}");
  text_.append(" ").append(value).append("\n");
}

void Exposition::sample(const Labels& labels, std::uint64_t value) {
  line(suffix_, labels.text(), std::to_string(value));
}

void Exposition::sample(const Labels& labels, double value) { line(suffix_, labels.text(), number_text(value)); }

void Exposition::sample(const Labels& labels, base::Duration value) {
  line(suffix_, labels.text(), seconds_text(value));
}

void Exposition::sample(const Labels& labels, const server::WaitHistogram& waits) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < waits.counts.size(); ++i) {
    count += waits.counts[i];
    Labels bucket = labels;
    bucket.add("le", i < server::kWaitBounds.size()
                         ? number_text(std::chrono::duration<double>(server::kWaitBounds[i]).count())
                         : "+Inf");
    line("_bucket", bucket.text(), std::to_string(count));
  }
  line("_sum", labels.text(), seconds_text(waits.sum));
  line("_count", labels.text(), std::to_string(count));
}

std::string Exposition::finish() && {
  if (format_ == MetricsFormat::kOpenMetrics) text_ += "# EOF\n";
  return std::move(text_);
}

}  // namespace gpumux::daemon
