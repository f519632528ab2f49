// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/quantity.h"

#include <limits>
#include <optional>

namespace gpumux::kubernetes {
namespace {

__extension__ using Wide = unsigned __int128;

// More digits than any quantity needs. Every value that is computed from them has a place in 128 bits.
constexpr std::size_t kMostDigits = 18;

struct Scale {
  int base = 10;
  int exponent = 0;
};

std::optional<Scale> scale_of(std::string_view suffix) {
  constexpr std::pair<std::string_view, Scale> kSuffixes[] = {
      {"", {10, 0}},   {"n", {10, -9}}, {"u", {10, -6}}, {"m", {10, -3}}, {"k", {10, 3}},  {"M", {10, 6}},
      {"G", {10, 9}},  {"T", {10, 12}}, {"P", {10, 15}}, {"E", {10, 18}}, {"Ki", {2, 10}}, {"Mi", {2, 20}},
      {"Gi", {2, 30}}, {"Ti", {2, 40}}, {"Pi", {2, 50}}, {"Ei", {2, 60}}};
  for (const auto& [known, scale] : kSuffixes) {
    if (suffix == known) return scale;
  }
  if (suffix.front() != 'e' && suffix.front() != 'E') return std::nullopt;
  suffix.remove_prefix(1);
  int sign = 1;
  if (!suffix.empty() && (suffix.front() == '-' || suffix.front() == '+')) {
    sign = suffix.front() == '-' ? -1 : 1;
    suffix.remove_prefix(1);
  }
  if (suffix.empty() || suffix.size() > 2 || suffix.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  int exponent = 0;
  for (const char digit : suffix) exponent = 10 * exponent + (digit - '0');
  return Scale{10, sign * exponent};
}

}  // namespace

base::Result<std::uint64_t> parse_quantity(std::string_view text) {
  const auto fail = [&](const char* why) {
    return base::fail(base::Code::kInvalid, "'" + std::string(text) + "' is no quantity: " + why);
  };
  std::string_view rest = text;
  if (!rest.empty() && rest.front() == '+') rest.remove_prefix(1);
  if (!rest.empty() && rest.front() == '-') return fail("it is negative");
  Wide value = 0;
  std::size_t digits = 0;
  int after_point = 0;
  bool has_point = false;
  while (!rest.empty() && (rest.front() == '.' || (rest.front() >= '0' && rest.front() <= '9'))) {
    if (rest.front() == '.') {
      if (has_point) return fail("it has two points");
      has_point = true;
    } else {
      if (++digits > kMostDigits) return fail("it has too many digits");
      value = 10 * value + static_cast<unsigned>(rest.front() - '0');
      if (has_point) ++after_point;
    }
    rest.remove_prefix(1);
  }
  if (digits == 0) return fail("it begins with no number");
  const auto scale = scale_of(rest);
  if (!scale) return fail("nothing is known by its suffix");
  // A limit for each step: 10^18 times 2^60 has a place in 128 bits.
  for (int step = 0; step < scale->exponent; ++step) {
    if (value > (Wide{1} << 120)) return fail("it is too large");
    value *= static_cast<unsigned>(scale->base);
  }
  for (int step = 0; step < after_point; ++step) value /= 10;
  for (int step = scale->exponent; step < 0; ++step) value /= 10;
  if (value > std::numeric_limits<std::uint64_t>::max()) return fail("it is too large");
  return static_cast<std::uint64_t>(value);
}

std::string format_quantity(std::uint64_t bytes) {
  constexpr const char* kSuffixes[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  std::size_t suffix = 0;
  while (bytes != 0 && bytes % 1024 == 0 && suffix + 1 < std::size(kSuffixes)) {
    bytes /= 1024;
    ++suffix;
  }
  return std::to_string(bytes) + kSuffixes[suffix];
}

}  // namespace gpumux::kubernetes
