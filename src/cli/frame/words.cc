// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/words.h"

#include <array>
#include <ctime>

namespace gpumux::cli {

std::string plural(std::uint64_t count, std::string_view one, std::string_view many) {
  std::string text = std::to_string(count) + " ";
  if (count != 1 && !many.empty()) return text.append(many);
  return text.append(one) + (count == 1 ? "" : "s");
}

std::string local_time_text(std::int64_t unix_ns, const char* format) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 64> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &local)};
}

}  // namespace gpumux::cli
