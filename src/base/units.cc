// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

namespace gpumux::base {
namespace {

struct Number {
  double value;
  std::string_view suffix;
};

// Splits "1.5GiB" into 1.5 and "GiB". Only digits and one point: strtod's "inf", "0x" and "1e9" are not for people's
// settings.
Result<Number> parse_number(std::string_view text) {
  std::size_t end = 0;
  bool digits = false;
  bool point = false;
  while (end < text.size()) {
    const char c = text[end];
    if (c >= '0' && c <= '9') {
      digits = true;
    } else if (c == '.' && !point) {
      point = true;
    } else {
      break;
    }
    ++end;
  }
  // 32 digits are more than any setting needs and keep the copy below small.
  if (!digits || end > 32) return fail(Code::kInvalid, "not a number: '" + std::string(text.substr(0, 64)) + "'");
  const std::string digits_only(text.substr(0, end));
  std::string_view suffix = text.substr(end);
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  return Number{std::strtod(digits_only.c_str(), nullptr), suffix};
}

// Lengths in nanoseconds and their names, the longest first.
struct TimeUnit {
  std::int64_t length;
  std::array<std::string_view, 4> names;
};
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::array<TimeUnit, 8> kTimeUnits{{{7 * 86400 * kSecond, {"w", "week", "weeks"}},
                                              {86400 * kSecond, {"d", "day", "days"}},
                                              {3600 * kSecond, {"h", "hour", "hours"}},
                                              {60 * kSecond, {"m", "min", "minute", "minutes"}},
                                              {kSecond, {"s", "sec", "second", "seconds"}},
                                              {1'000'000, {"ms"}},
                                              {1'000, {"us"}},
                                              {1, {"ns"}}}};

// 2^62 ns is 146 years; anything near it is a mistake, and sums of two still fit.
constexpr double kMostNanoseconds = 4.6e18;

std::int64_t length_of(std::string_view unit) {
  for (const TimeUnit& known : kTimeUnits) {
    for (const std::string_view name : known.names) {
      if (!name.empty() && name == unit) return known.length;
    }
  }
  return 0;
}

tl::unexpected<Error> too_long(std::string_view text) {
  return fail(Code::kInvalid, "duration too long: '" + std::string(text.substr(0, 64)) + "'");
}

// "90:00", "1:30:00", "2-12", "2-12:30", "2-12:30:00". Every field but the first of all is a part of the one before it.
Result<Duration> parse_clock_form(std::string_view text) {
  constexpr std::uint64_t kMostDays = 50'000;
  const auto wrong = [&] {
    return fail(Code::kInvalid,
                "'" + std::string(text.substr(0, 64)) +
                    "' is not MINUTES:SECONDS, HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES[:SECONDS]]");
  };
  std::string_view rest = text;
  std::uint64_t days = 0;
  const std::size_t dash = rest.find('-');
  const bool has_days = dash != std::string_view::npos;
  if (has_days) {
    const auto parsed = parse_integer(rest.substr(0, dash), 0, kMostDays);
    if (!parsed) return wrong();
    days = *parsed;
    rest.remove_prefix(dash + 1);
  }
  std::array<std::uint64_t, 3> fields{};
  std::size_t count = 0;
  for (;;) {
    const std::size_t colon = rest.find(':');
    const std::uint64_t most = count > 0 ? 59 : has_days ? 23 : kMostDays * 24;
    const auto parsed = parse_integer(rest.substr(0, colon), 0, most);
    if (!parsed || count == fields.size()) return wrong();
    fields[count++] = *parsed;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (!has_days && count == 2) fields = {0, fields[0], fields[1]};
  const std::uint64_t seconds = days * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2];
  return Duration(std::chrono::seconds(static_cast<std::int64_t>(seconds)));
}

// "1h30m", "2d12h30m05s": the parts that there are, from the first on with two digits.
std::string in_parts(std::int64_t seconds) {
  std::string text;
  for (const auto& [length, name] : {std::pair<std::int64_t, char>{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}}) {
    const std::int64_t count = seconds / length;
    seconds %= length;
    if (text.empty() && count == 0) continue;
    text += (!text.empty() && count < 10 ? "0" : "") + std::to_string(count) + name;
    if (seconds == 0) break;
  }
  return text;
}

}  // namespace

Result<Duration> parse_duration(std::string_view text, Duration bare_unit) {
  const bool is_clock =
      !text.empty() && text.front() >= '0' && text.front() <= '9' && text.find_first_of(":-") != std::string_view::npos;
  if (is_clock) return parse_clock_form(text);
  std::int64_t sum = 0;
  std::int64_t last = INT64_MAX;
  for (std::string_view rest = text;;) {
    const auto number = parse_number(rest);
    if (!number) return tl::unexpected(number.error());
    const std::size_t end = std::min(number->suffix.find_first_of("0123456789."), number->suffix.size());
    std::string_view unit = number->suffix.substr(0, end);
    while (!unit.empty() && unit.back() == ' ') unit.remove_suffix(1);
    rest = number->suffix.substr(end);
    const bool is_bare = unit.empty() && rest.empty() && last == INT64_MAX;
    const std::int64_t length = is_bare ? bare_unit.count() : length_of(unit);
    if (length == 0 && unit.empty())
      return fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) + "' has a number without a unit");
    if (length == 0) {
      return fail(Code::kInvalid,
                  "unknown unit of time '" + std::string(unit.substr(0, 16)) + "' (use ns, us, ms, s, m, h, d or w)");
    }
    if (length >= last) return fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) + "': longer units go first");
    last = length;
    const double ns = number->value * static_cast<double>(length);
    if (!(ns + static_cast<double>(sum) < kMostNanoseconds)) return too_long(text);
    sum += static_cast<std::int64_t>(ns + 0.5);
    if (rest.empty()) return Duration(sum);
  }
}

std::string format_duration(Duration duration) {
  const std::int64_t ns = duration.count();
  if (ns < 0) return "-" + format_duration(Duration(ns == INT64_MIN ? INT64_MAX : -ns));
  // "90s" reads better than "1m30s".
  constexpr std::int64_t kLongestInSeconds = 100 * kSecond;
  if (ns > 0 && (ns >= kLongestInSeconds || ns % (60 * kSecond) == 0)) return in_parts((ns + kSecond / 2) / kSecond);
  for (const auto& [length, name] :
       {std::pair<std::int64_t, const char*>{kSecond, "s"}, {1'000'000, "ms"}, {1'000, "us"}}) {
    if (ns < length) continue;
    char buffer[48];
    std::snprintf(buffer, sizeof buffer, "%.3g%s", static_cast<double>(ns) / static_cast<double>(length), name);
    return buffer;
  }
  return std::to_string(ns) + "ns";
}

Result<Duration> parse_time_limit(std::string_view text) {
  // A time limit of more is a mistake: ten years.
  constexpr std::chrono::seconds kMost(std::int64_t{3660} * 86400);
  const auto limit = parse_duration(text, std::chrono::seconds(1));
  if (limit && *limit > Duration::zero() && *limit <= kMost) return limit;
  return fail(Code::kInvalid,
              "'" + std::string(text.substr(0, 64)) +
                  "' is not a time limit above 0: write 90 (seconds), 90m, 1h30m, HOURS:MINUTES:SECONDS "
                  "or DAYS-HOURS:MINUTES");
}

std::string format_time_limit(Duration limit) {
  return format_duration(std::chrono::ceil<std::chrono::seconds>(limit));
}

Result<std::uint64_t> parse_memory(std::string_view text) {
  auto bytes = parse_bytes(text);
  if (!bytes) return bytes;
  const std::string shown(text.substr(0, 64));
  if (*bytes == 0) return fail(Code::kInvalid, "'" + shown + "' is no memory: ask for more than 0");
  if (text.back() >= '0' && text.back() <= '9')
    return fail(Code::kInvalid, "'" + shown + "' has no unit: write " + shown + "M or " + shown + "G");
  return bytes;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto number = parse_number(text);
  if (!number) return tl::unexpected(number.error());
  double unit = 1;
  std::string_view suffix = number->suffix;
  if (!suffix.empty()) {
    static constexpr std::string_view kLetters = "KMGT";
    const char letter =
        suffix.front() >= 'a' && suffix.front() <= 'z' ? static_cast<char>(suffix.front() - 'a' + 'A') : suffix.front();
    const std::size_t power = kLetters.find(letter);
    if (power != std::string_view::npos) {
      unit = static_cast<double>(1ull << (10 * (power + 1)));
      suffix.remove_prefix(1);
      if (suffix.starts_with('i')) suffix.remove_prefix(1);
      if (suffix == "B" || suffix == "b") suffix.remove_prefix(1);
    } else if (suffix == "B" || suffix == "b") {
      suffix.remove_prefix(1);
    }
    if (!suffix.empty())
      return fail(Code::kInvalid,
                  "unknown unit of memory in '" + std::string(text.substr(0, 64)) + "' (use K, M, G or T)");
  }
  const double bytes = number->value * unit;
  if (!(bytes < 9.2e18)) return fail(Code::kInvalid, "too many bytes: '" + std::string(text.substr(0, 64)) + "'");
  return static_cast<std::uint64_t>(bytes + 0.5);
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, kNames[unit]);
  return buffer;
}

Result<std::uint64_t> parse_integer(std::string_view text, std::uint64_t minimum, std::uint64_t maximum) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum || value > maximum) {
    return fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) + "' is not a whole number from " +
                                    std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return value;
}

}  // namespace gpumux::base
