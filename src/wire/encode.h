// SPDX-License-Identifier: Apache-2.0
// From a message's struct to its bytes, and text in fields of a fixed size. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/limits.h"
#include "wire/header.h"

namespace gpumux::wire {

// A message as it goes on the wire.
template <class Message>
struct Encoded {
  Header header{static_cast<std::uint32_t>(Message::kType), sizeof(Encoded)};
  Message message;
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
};

template <class Message>
Encoded<Message> encode(const Message& message) {
  static_assert(sizeof(Encoded<Message>) == sizeof(Header) + sizeof(Message), "no padding between header and message");
  static_assert(sizeof(Encoded<Message>) <= base::kMaxMessageBytes);
  static_assert(Message::kMinimumBytes <= sizeof(Message));
  return Encoded<Message>{.message = message};
}

// The text of a fixed field, up to its first zero.
template <std::size_t N>
std::string_view text_of(const char (&field)[N]) {
  std::size_t length = 0;
  while (length < N && field[length] != '\0') ++length;
  return {field, length};
}

// Copies as much of `text` as fits, always leaving a terminating zero.
template <std::size_t N>
void set_text(char (&field)[N], std::string_view text) {
  const std::size_t length = text.size() < N ? text.size() : N - 1;
  for (std::size_t i = 0; i < N; ++i) field[i] = i < length ? text[i] : '\0';
}

}  // namespace gpumux::wire
