// SPDX-License-Identifier: Apache-2.0
// Goal: any bytes at all are safe to decode, by either side; and what was decoded says the same when it is sent on.
// Method: decode the input; encode what came out, decode that, and compare. A broken promise traps.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <variant>

#include "wire/messages.h"

namespace {

using namespace gpumux;

void promise(bool kept) {
  if (!kept) __builtin_trap();
}

template <class Variant>
void look_at(std::span<const std::byte> bytes, base::Result<Variant> (*decode)(std::span<const std::byte>)) {
  const base::Result<Variant> first = decode(bytes);
  if (!first) {
    promise(first.error().code == base::Code::kProtocol && !first.error().message().empty());
    return;
  }
  promise(bytes.size() <= base::kMaxMessageBytes);
  std::visit(
      [decode](const auto& message) {
        const auto encoded = wire::encode(message);
        const base::Result<Variant> second = decode(encoded.bytes());
        promise(second.has_value());
        const auto* again = std::get_if<std::remove_cvref_t<decltype(message)>>(&*second);
        promise(again != nullptr && std::memcmp(again, &message, sizeof message) == 0);
        if constexpr (requires { message.text; }) promise(wire::text_of(message.text).size() < sizeof message.text);
        if constexpr (requires { message.program; }) {
          promise(wire::text_of(message.program).size() < sizeof message.program);
          promise(wire::text_of(message.gang).size() < sizeof message.gang);
        }
      },
      *first);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  look_at(bytes, wire::decode_from_tenant);
  look_at(bytes, wire::decode_from_daemon);
  return 0;
}
