// SPDX-License-Identifier: Apache-2.0
#include "base/ids.h"

namespace gpumux::base {

std::string GpuUuid::to_string() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

Result<GpuUuid> GpuUuid::parse(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("GPU-") || rest.starts_with("MIG-")) rest.remove_prefix(4);
  GpuUuid uuid;
  std::size_t digits = 0;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (c == '-' && (i == 8 || i == 13 || i == 18 || i == 23)) continue;
    int value = -1;
    if (c >= '0' && c <= '9') value = c - '0';
    if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') value = c - 'A' + 10;
    if (value < 0 || digits >= 32) return fail(Code::kInvalid, "not a GPU UUID: " + std::string(text));
    std::uint8_t& byte = uuid.bytes[digits / 2];
    byte = static_cast<std::uint8_t>((byte << 4) | value);
    ++digits;
  }
  if (digits != 32) return fail(Code::kInvalid, "not a GPU UUID: " + std::string(text));
  return uuid;
}

}  // namespace gpumux::base
