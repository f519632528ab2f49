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
