// SPDX-License-Identifier: Apache-2.0
#include "wire/attach_messages.h"

#include "wire/decode.h"

namespace gpumux::wire {
namespace {

// Decodes what is a struct by the shared decoder, and bytes (`Bytes`) as a view of them.
template <class Variant, class Bytes, class... Structs>
base::Result<Variant> decode_attach(std::span<const std::byte> bytes, std::size_t most_bytes) {
  const auto header = decode_header(bytes, kMaxAttachMessageBytes);
  if (!header) return tl::unexpected(header.error());
  if (header->type == static_cast<std::uint32_t>(Bytes::kType)) {
    const auto body = bytes.subspan(sizeof(Header));
    if (body.size() > most_bytes) {
      return base::fail(base::Code::kProtocol, "a message with " + std::to_string(body.size()) +
                                                   " bytes for a terminal, where " + std::to_string(most_bytes) +
                                                   " are the most");
    }
    return Variant(Bytes{std::string_view(reinterpret_cast<const char*>(body.data()), body.size())});
  }
  auto decoded = decode<Unchecked>(bytes, static_cast<const std::variant<Structs...>*>(nullptr));
  if (!decoded) return tl::unexpected(std::move(decoded).error());
  return std::visit([](const auto& message) { return Variant(message); }, *decoded);
}

}  // namespace

base::Result<FromAttached> decode_from_attached(std::span<const std::byte> bytes) {
  return decode_attach<FromAttached, AttachInput, AttachHello, AttachResize>(bytes, kMaxAttachInputBytes);
}

base::Result<ToAttached> decode_to_attached(std::span<const std::byte> bytes) {
  return decode_attach<ToAttached, AttachOutput, AttachWelcome, AttachLagging, AttachEnded>(bytes,
                                                                                            kMaxAttachOutputBytes);
}

Header attach_header(AttachType type, std::size_t bytes) {
  return Header{static_cast<std::uint32_t>(type), static_cast<std::uint32_t>(sizeof(Header) + bytes)};
}

}  // namespace gpumux::wire
