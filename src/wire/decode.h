// SPDX-License-Identifier: Apache-2.0
// The one decoder behind every family of messages: a Header, then one of a variant's structs. The struct may have an
// older peer's shorter form or a newer one's longer form (wire/messages.h says what both mean).
//
// `Checks` has two functions for each struct that needs them. tidy(struct&) ends its texts. known(const struct&) says
// whether its enumerations are ones of this version. The code that uses a value checks its meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <variant>

#include "base/result.h"
#include "wire/messages.h"

namespace gpumux::wire {

// Whether `value` is one of the enumeration's from `first` to `last`.
template <class Enum>
bool within(Enum value, Enum first, Enum last) {
  return static_cast<std::uint32_t>(value) >= static_cast<std::uint32_t>(first) &&
         static_cast<std::uint32_t>(value) <= static_cast<std::uint32_t>(last);
}

template <std::size_t N>
void terminate(char (&field)[N]) {
  field[N - 1] = '\0';
}

// The checks of messages that need none.
struct Unchecked {
  template <class Message>
  static void tidy(Message&) {}
  template <class Message>
  static bool known(const Message&) {
    return true;
  }
};

template <class Checks, class Variant, class Message>
base::Result<Variant> decode_as(std::span<const std::byte> body) {
  static_assert(std::is_trivially_copyable_v<Message>);
  if (body.size() < Message::kMinimumBytes) {
    return base::fail(base::Code::kProtocol,
                      "message of type " + std::to_string(static_cast<unsigned>(Message::kType)) + " is too short");
  }
  Message message{};
  std::memcpy(&message, body.data(), body.size() < sizeof message ? body.size() : sizeof message);
  Checks::tidy(message);
  if (!Checks::known(message)) {
    return base::fail(
        base::Code::kProtocol,
        "message of type " + std::to_string(static_cast<unsigned>(Message::kType)) + " has an unknown value");
  }
  return Variant(message);
}

// The header, if it fits the received bytes.
inline base::Result<Header> decode_header(std::span<const std::byte> bytes, std::size_t most) {
  Header header;
  if (bytes.size() < sizeof header || bytes.size() > most) {
    return base::fail(base::Code::kProtocol, "a message of " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.bytes != bytes.size())
    return base::fail(base::Code::kProtocol, "a message's length field does not match its length");
  return header;
}

template <class Checks, class... Messages>
base::Result<std::variant<Messages...>> decode(std::span<const std::byte> bytes, const std::variant<Messages...>*) {
  using Variant = std::variant<Messages...>;
  const auto header = decode_header(bytes, base::kMaxMessageBytes);
  if (!header) return tl::unexpected(header.error());
  const auto body = bytes.subspan(sizeof(Header));
  base::Result<Variant> result =
      base::fail(base::Code::kProtocol, "unknown message type " + std::to_string(header->type));
  const bool found = ((header->type == static_cast<std::uint32_t>(Messages::kType) &&
                       (result = decode_as<Checks, Variant, Messages>(body), true)) ||
                      ...);
  static_cast<void>(found);
  return result;
}

}  // namespace gpumux::wire
