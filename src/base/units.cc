// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>

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

}  // namespace

Result<Duration> parse_duration(std::string_view text, Duration bare_unit) {
  const auto number = parse_number(text);
  if (!number) return tl::unexpected(number.error());
  double unit_ns = 0;
  if (number->suffix.empty()) {
    unit_ns = static_cast<double>(bare_unit.count());
  } else if (number->suffix == "ns") {
    unit_ns = 1;
  } else if (number->suffix == "us") {
    unit_ns = 1e3;
  } else if (number->suffix == "ms") {
    unit_ns = 1e6;
  } else if (number->suffix == "s") {
    unit_ns = 1e9;
  } else if (number->suffix == "m" || number->suffix == "min") {
    unit_ns = 60e9;
  } else if (number->suffix == "h") {
    unit_ns = 3600e9;
  } else {
    return fail(Code::kInvalid,
                "unknown unit of time '" + std::string(number->suffix.substr(0, 16)) + "' (use ns, us, ms, s, m or h)");
  }
  const double ns = number->value * unit_ns;
  // 2^62 ns is 146 years; anything near it is a mistake, and sums of two still fit.
  if (!(ns < 4.6e18)) return fail(Code::kInvalid, "duration too long: '" + std::string(text.substr(0, 64)) + "'");
  return Duration(static_cast<std::int64_t>(ns + 0.5));
}

std::string format_duration(Duration duration) {
  const double ns = static_cast<double>(duration.count());
  struct Unit {
    double size;
    const char* name;
  };
  static constexpr std::array<Unit, 5> kUnits{{{3600e9, "h"}, {60e9, "m"}, {1e9, "s"}, {1e6, "ms"}, {1e3, "us"}}};
  for (const Unit& unit : kUnits) {
    // Hours and minutes only when they are whole: "90s" reads better than "1.5m".
    const bool whole = duration.count() % static_cast<std::int64_t>(unit.size) == 0;
    if ((ns < 0 ? -ns : ns) >= unit.size && (unit.size <= 1e9 || whole)) {
      char buffer[48];
      std::snprintf(buffer, sizeof buffer, "%.*g%s", ns / unit.size >= 1000 ? 10 : 3, ns / unit.size, unit.name);
      return buffer;
    }
  }
  return std::to_string(duration.count()) + "ns";
}

namespace {

constexpr char kTimeLimitForms[] =
    "a number of seconds, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]], or a time with its "
    "unit such as 90m";

// A time limit of more is a mistake: ten years.
constexpr std::uint64_t kMostTimeLimitSeconds = 3660ull * 86400;

tl::unexpected<Error> not_a_time_limit(std::string_view text) {
  return fail(Code::kInvalid,
              "'" + std::string(text.substr(0, 64)) + "' is not a time limit above 0: write " + kTimeLimitForms);
}

}  // namespace

Result<Duration> parse_time_limit(std::string_view text) {
  const auto make = [&](std::uint64_t seconds) -> Result<Duration> {
    if (seconds == 0 || seconds > kMostTimeLimitSeconds) return not_a_time_limit(text);
    return std::chrono::seconds(static_cast<std::int64_t>(seconds));
  };
  if (text.find_first_of(":-") == std::string_view::npos) {
    const auto duration = parse_duration(text, std::chrono::seconds(1));
    const bool good = duration && *duration > Duration::zero() &&
                      *duration <= std::chrono::seconds(static_cast<std::int64_t>(kMostTimeLimitSeconds));
    return good ? duration : Result<Duration>(not_a_time_limit(text));
  }
  std::string_view rest = text;
  std::uint64_t days = 0;
  const std::size_t dash = rest.find('-');
  const bool has_days = dash != std::string_view::npos;
  if (has_days) {
    const auto parsed = parse_integer(rest.substr(0, dash), 0, kMostTimeLimitSeconds / 86400);
    if (!parsed) return not_a_time_limit(text);
    days = *parsed;
    rest.remove_prefix(dash + 1);
  }
  std::array<std::uint64_t, 3> fields{};
  std::size_t count = 0;
  for (;;) {
    const std::size_t colon = rest.find(':');
    // Every field but the first of all is a part of the one before it.
    const std::uint64_t most = count > 0 ? 59 : has_days ? 23 : kMostTimeLimitSeconds / 60;
    const auto parsed = parse_integer(rest.substr(0, colon), 0, most);
    if (!parsed || count == fields.size()) return not_a_time_limit(text);
    fields[count++] = *parsed;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (has_days) return make(days * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2]);
  return make(count == 2 ? fields[0] * 60 + fields[1] : fields[0] * 3600 + fields[1] * 60 + fields[2]);
}

std::string format_time_limit(Duration limit) {
  const auto seconds = static_cast<unsigned long long>(std::chrono::ceil<std::chrono::seconds>(limit).count());
  const unsigned long long days = seconds / 86400;
  const unsigned long long hours = seconds / 3600 % 24;
  const unsigned long long minutes = seconds / 60 % 60;
  char buffer[64];
  if (days > 0) {
    std::snprintf(buffer, sizeof buffer, "%llu-%02llu:%02llu:%02llu", days, hours, minutes, seconds % 60);
  } else if (hours > 0) {
    std::snprintf(buffer, sizeof buffer, "%llu:%02llu:%02llu", hours, minutes, seconds % 60);
  } else {
    std::snprintf(buffer, sizeof buffer, "%llu:%02llu", minutes, seconds % 60);
  }
  return buffer;
}

Result<std::uint64_t> parse_memory(std::string_view text) {
  auto bytes = parse_bytes(text, 1);
  if (!bytes) return bytes;
  const std::string shown(text.substr(0, 64));
  if (*bytes == 0) return fail(Code::kInvalid, "'" + shown + "' is no memory: ask for more than 0");
  if (text.back() >= '0' && text.back() <= '9')
    return fail(Code::kInvalid, "'" + shown + "' has no unit: write " + shown + "M or " + shown + "G");
  return bytes;
}

Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t bare_unit) {
  const auto number = parse_number(text);
  if (!number) return tl::unexpected(number.error());
  double unit = static_cast<double>(bare_unit);
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
      unit = 1;
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
  bool valid = !text.empty() && text.size() <= 20;
  for (std::size_t i = 0; valid && i < text.size(); ++i) {
    const char c = text[i];
    if (c < '0' || c > '9') valid = false;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (valid && value > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) valid = false;
    if (valid) value = value * 10 + digit;
  }
  if (!valid || value < minimum || value > maximum) {
    return fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) + "' is not a whole number from " +
                                    std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return value;
}

}  // namespace gpumux::base
