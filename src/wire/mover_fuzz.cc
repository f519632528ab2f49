// SPDX-License-Identifier: Apache-2.0
// Goal: any bytes at all are safe to decode as a message to or from the node's mover. Method: decode the input; encode
// what came out, and compare. A broken promise traps.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <variant>

#include "wire/encode.h"
#include "wire/mover_messages.h"

namespace {

using namespace gpumux;

void promise(bool kept) {
  if (!kept) __builtin_trap();
}

// `decode` takes what it has given, and gives the same.
template <class Message, class Decode>
void look_at(const Message& message, std::span<const wire::MoverBlock> blocks, Decode decode) {
  promise(blocks.size() <= wire::kMostMoverBlocks && blocks.size() == message.blocks);
  alignas(8) std::byte buffer[wire::kMostMoverBytes];
  const auto again = decode(wire::encode_for_mover(message, blocks, buffer));
  promise(again.has_value() && std::ranges::equal(std::as_bytes(again->blocks), std::as_bytes(blocks)));
}

template <class Variant>
void look_at_control(std::span<const std::byte> bytes, base::Result<Variant> (*decode)(std::span<const std::byte>)) {
  const base::Result<Variant> first = decode(bytes);
  if (!first) return promise(first.error().code == base::Code::kProtocol && !first.error().message().empty());
  std::visit(
      [decode](const auto& message) {
        const auto encoded = wire::encode(message);
        const base::Result<Variant> second = decode(encoded.bytes());
        promise(second.has_value());
        const auto* again = std::get_if<std::remove_cvref_t<decltype(message)>>(&*second);
        promise(again != nullptr && std::memcmp(again, &message, sizeof message) == 0);
      },
      *first);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  alignas(8) std::byte copy[2 * wire::kMostMoverBytes];
  if (size > sizeof copy) return 0;
  if (size != 0) std::memcpy(copy, data, size);
  const auto bytes = std::span<const std::byte>(copy, size);
  if (const auto message = wire::decode_to_mover(bytes))
    std::visit([&](const auto& what) { look_at(what, message->blocks, wire::decode_to_mover); }, message->message);
  if (const auto message = wire::decode_from_mover(bytes))
    look_at(message->message, message->blocks, wire::decode_from_mover);
  look_at_control(bytes, wire::decode_from_movers_daemon);
  look_at_control(bytes, wire::decode_to_movers_daemon);
  return 0;
}
