// SPDX-License-Identifier: Apache-2.0
#include "base/standing.h"

#include <charconv>
#include <optional>

namespace gpumux::base {
namespace {

// A number with at most `digits` digits behind the point, times 10^digits.
std::optional<std::uint32_t> parse_decimal(std::string_view text, int digits) {
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  std::string_view rest = point == std::string_view::npos ? std::string_view("0") : text.substr(point + 1);
  if (whole.empty() || whole.size() > 6 || rest.empty() || rest.size() > static_cast<std::size_t>(digits)) return {};
  std::uint32_t value = 0;
  const auto append = [&value](std::string_view part) {
    for (const char c : part) {
      if (c < '0' || c > '9') return false;
      value = value * 10 + static_cast<std::uint32_t>(c - '0');
    }
    return true;
  };
  if (!append(whole) || !append(rest)) return {};
  for (auto i = static_cast<int>(rest.size()); i < digits; ++i) value *= 10;
  return value;
}

std::string format_decimal(std::uint32_t value, std::uint32_t unit) {
  std::string text = std::to_string(value / unit);
  std::uint32_t rest = value % unit;
  if (rest != 0) text += '.';
  for (std::uint32_t digit = unit / 10; rest != 0; digit /= 10) {
    text += static_cast<char>('0' + rest / digit);
    rest %= digit;
  }
  return text;
}

}  // namespace

Result<std::int32_t> parse_priority(std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= -kMostPriority && value <= kMostPriority)
    return value;
  return fail(Code::kInvalid, "a priority is a whole number from -1000 to 1000, higher first");
}

Result<std::uint32_t> parse_share(std::string_view text) {
  const auto value = parse_decimal(text, 2);
  if (value && *value >= 1 && *value <= kMostShare) return *value;
  return fail(Code::kInvalid, "a share is a number from 0.01 to 100, such as 2 or 0.5");
}

Result<std::uint32_t> parse_max_share(std::string_view text) {
  if (!text.empty() && text.back() == '%') {
    const auto value = parse_decimal(text.substr(0, text.size() - 1), 1);
    if (value && *value >= 1 && *value <= kWholeGpu) return *value;
  }
  return fail(Code::kInvalid, "it is a part of all time from 0.1% to 100%, such as 30%");
}

std::string format_share(std::uint32_t share) { return format_decimal(share, kOneShare); }
std::string format_max_share(std::uint32_t max_share) { return format_decimal(max_share, kWholeGpu / 100) + "%"; }

}  // namespace gpumux::base
