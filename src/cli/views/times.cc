// SPDX-License-Identifier: Apache-2.0
#include "cli/views/times.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <optional>

#include "base/units.h"
#include "cli/frame/words.h"

namespace gpumux::cli {
namespace {

using base::Result;

constexpr std::int64_t kSecond = 1'000'000'000;

std::tm local_time(std::int64_t unix_ns) {
  const std::time_t seconds = unix_ns / kSecond;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return local;
}

// The clock on that day may have been set back or forward since: mktime finds out.
std::int64_t begin_of_day(std::int64_t unix_ns, int days_before) {
  std::tm day = local_time(unix_ns);
  day.tm_mday -= days_before;
  day.tm_hour = day.tm_min = day.tm_sec = 0;
  day.tm_isdst = -1;
  return std::int64_t{std::mktime(&day)} * kSecond;
}

std::optional<std::int64_t> parse_date(const std::string& text) {
  for (const char* format :
       {"%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"}) {
    std::tm date{};
    const char* const end = ::strptime(text.c_str(), format, &date);
    if (end == nullptr || *end != '\0') continue;
    const int day = date.tm_mday;
    date.tm_isdst = -1;
    const std::int64_t seconds = std::mktime(&date);
    // There is no 31st of February, and nothing was used before 1970.
    if (seconds < 0 || date.tm_mday != day) return std::nullopt;
    return seconds * kSecond;
  }
  return std::nullopt;
}

// A part of a second as a clock shows it, with its point: ".25".
std::optional<std::int64_t> parse_fraction(std::string_view text) {
  constexpr std::size_t kDigits = 9;
  if (text.empty()) return 0;
  std::string digits(text.substr(1));
  if (digits.empty() || digits.size() > kDigits) return std::nullopt;
  digits.resize(kDigits, '0');
  const auto nanoseconds = base::parse_integer(digits, 0, kSecond);
  return nanoseconds ? std::optional(static_cast<std::int64_t>(*nanoseconds)) : std::nullopt;
}

// When the clock showed that last, or shows it next.
std::optional<std::int64_t> parse_clock(const std::string& text, std::int64_t now_unix_ns, bool is_next = false) {
  const std::size_t point = std::min(text.find('.'), text.size());
  const auto fraction = parse_fraction(std::string_view(text).substr(point));
  if (!fraction) return std::nullopt;
  for (const char* format : {"%H:%M", "%H:%M:%S"}) {
    std::tm time{};
    const std::string whole = text.substr(0, point);
    const char* const end = ::strptime(whole.c_str(), format, &time);
    if (end == nullptr || *end != '\0') continue;
    if (*fraction != 0 && format[5] == '\0') return std::nullopt;
    const auto on_day = [&](int days_before) {
      std::tm day = local_time(begin_of_day(now_unix_ns, days_before));
      day.tm_hour = time.tm_hour;
      day.tm_min = time.tm_min;
      day.tm_sec = time.tm_sec;
      day.tm_isdst = -1;
      return std::int64_t{std::mktime(&day)} * kSecond + *fraction;
    };
    const std::int64_t today = on_day(0);
    if (is_next) return today >= now_unix_ns ? today : on_day(-1);
    return today <= now_unix_ns ? today : on_day(1);
  }
  return std::nullopt;
}

}  // namespace

Result<std::int64_t> parse_time(std::string_view text, std::int64_t now_unix_ns) {
  if (text == "now") return now_unix_ns;
  if (text == "today") return begin_of_day(now_unix_ns, 0);
  if (text == "yesterday") return begin_of_day(now_unix_ns, 1);
  if (!text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0) {
    // Nothing was used before 1970.
    if (const auto ago = base::parse_duration(text, base::Duration(0)))
      return now_unix_ns - std::min(ago->count(), now_unix_ns);
  }
  if (const auto date = parse_date(std::string(text))) return *date;
  if (const auto clock = parse_clock(std::string(text), now_unix_ns)) return *clock;
  return base::fail(base::Code::kInvalid,
                    "'" + std::string(text) +
                        "' is no time: say how long ago (10s, 90m, 12h, 7d, 4w), a time (12:30, 12:30:15), a date "
                        "(2026-11-18, 2026-11-18T12:30), today, yesterday or now");
}

Result<std::int64_t> parse_begin(std::string_view text, std::int64_t now_unix_ns) {
  constexpr std::string_view kFromNow = "now+";
  if (text == "now") return now_unix_ns;
  if (text == "tomorrow") return begin_of_day(now_unix_ns, -1);
  if (text.starts_with(kFromNow)) {
    const auto span = base::parse_duration(text.substr(kFromNow.size()), std::chrono::seconds(1));
    if (span && span->count() <= INT64_MAX - now_unix_ns) return now_unix_ns + span->count();
  }
  if (const auto date = parse_date(std::string(text))) return *date;
  if (const auto clock = parse_clock(std::string(text), now_unix_ns, true)) return *clock;
  return base::fail(base::Code::kInvalid,
                    "'" + std::string(text) + "' is no time to begin: write now+1hour, 16:00 or 2026-12-01T08:00");
}

std::string time_text(std::int64_t unix_ns) { return local_time_text(unix_ns, "%Y-%m-%d %H:%M"); }

}  // namespace gpumux::cli
