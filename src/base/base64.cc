// SPDX-License-Identifier: Apache-2.0
#include "base/base64.h"

#include <array>
#include <cstdint>

namespace gpumux::base {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::int8_t kNone = -1;

constexpr std::array<std::int8_t, 256> make_values() {
  std::array<std::int8_t, 256> values{};
  values.fill(kNone);
  for (std::size_t i = 0; i < kLetters.size(); ++i)
    values[static_cast<unsigned char>(kLetters[i])] = static_cast<std::int8_t>(i);
  return values;
}
constexpr auto kValues = make_values();

std::uint32_t byte_at(std::string_view bytes, std::size_t i) {
  return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
}

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::uint32_t word = byte_at(bytes, i) << 16 | byte_at(bytes, i + 1) << 8 | byte_at(bytes, i + 2);
    text += kLetters[word >> 18];
    text += kLetters[word >> 12 & 63];
    text += i + 1 < bytes.size() ? kLetters[word >> 6 & 63] : '=';
    text += i + 2 < bytes.size() ? kLetters[word & 63] : '=';
  }
  return text;
}

Result<std::string> decode_base64(std::string_view text) {
  const auto bad = [] { return fail(Code::kInvalid, "this is not base64"); };
  if (text.size() % 4 != 0) return bad();
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < text.size() - padding; ++i) {
    const std::int8_t value = kValues[static_cast<unsigned char>(text[i])];
    if (value == kNone) return bad();
    word = word << 6 | static_cast<std::uint32_t>(value);
    if (i % 4 == 0) continue;
    // After the second letter there are 12 bits, 8 of which are a byte; after the third 10, after the fourth 8.
    const unsigned left = 6 - 2 * (i % 4);
    bytes += static_cast<char>(word >> left & 255);
  }
  // The bits that padding leaves unused must be zero: one text for each value.
  if (padding > 0 && (word & ((1u << (padding * 2)) - 1)) != 0) return bad();
  return bytes;
}

}  // namespace gpumux::base
