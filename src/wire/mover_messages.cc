// SPDX-License-Identifier: Apache-2.0
#include "wire/mover_messages.h"

#include <algorithm>
#include <string>

#include "wire/decode.h"

namespace gpumux::wire {
namespace {

// Structs grow as in wire/messages.h: a part that is missing is zero, and one that is not known is ignored. The blocks
// are the last bytes of the message.
template <class Message>
base::Result<std::span<const MoverBlock>> read(std::span<const std::byte> body, Message* message) {
  std::memcpy(message, body.data(), std::min(body.size(), sizeof *message));
  const std::size_t bytes = std::size_t{message->blocks} * sizeof(MoverBlock);
  if (body.size() < Message::kMinimumBytes || message->blocks > kMostMoverBlocks ||
      body.size() < Message::kMinimumBytes + bytes || body.size() % sizeof(MoverBlock) != 0)
    return base::fail(base::Code::kProtocol, "a message for the mover has another number of blocks than it says");
  const std::size_t own = body.size() - bytes;
  *message = {};
  std::memcpy(message, body.data(), std::min(own, sizeof *message));
  // 8 bytes of header before it, and all sizes multiples of 8: as aligned as the buffer.
  return std::span(reinterpret_cast<const MoverBlock*>(body.data() + own), message->blocks);
}

template <class Message>
base::Result<ToMoverMessage> to_mover(std::span<const std::byte> body) {
  Message message;
  const auto blocks = read(body, &message);
  if (!blocks) return tl::unexpected(blocks.error());
  return ToMoverMessage{message, *blocks};
}

}  // namespace

base::Result<ToMoverMessage> decode_to_mover(std::span<const std::byte> bytes) {
  const auto header = decode_header(bytes, kMostMoverBytes);
  if (!header) return tl::unexpected(header.error());
  const auto body = bytes.subspan(sizeof(Header));
  switch (static_cast<MoverType>(header->type)) {
    case MoverType::kSave: return to_mover<MoverSave>(body);
    case MoverType::kLoad: return to_mover<MoverLoad>(body);
    case MoverType::kForget: return to_mover<MoverForget>(body);
    case MoverType::kCancel: return to_mover<MoverCancel>(body);
    case MoverType::kGiven: return to_mover<MoverGiven>(body);
    case MoverType::kMakeWay: return to_mover<MoverMakeWay>(body);
    case MoverType::kNames: return to_mover<MoverNames>(body);
    case MoverType::kMoved: break;
  }
  return base::fail(base::Code::kProtocol, "a message of type " + std::to_string(header->type) + " for the mover");
}

base::Result<FromMoverMessage> decode_from_mover(std::span<const std::byte> bytes) {
  const auto header = decode_header(bytes, kMostMoverBytes);
  if (!header) return tl::unexpected(header.error());
  if (header->type != static_cast<std::uint32_t>(MoverType::kMoved))
    return base::fail(base::Code::kProtocol, "a message of type " + std::to_string(header->type) + " from the mover");
  MoverMoved message;
  const auto blocks = read(bytes.subspan(sizeof(Header)), &message);
  if (!blocks) return tl::unexpected(blocks.error());
  return FromMoverMessage{message, *blocks};
}

base::Result<FromMoversDaemon> decode_from_movers_daemon(std::span<const std::byte> bytes) {
  return decode<Unchecked>(bytes, static_cast<const FromMoversDaemon*>(nullptr));
}

base::Result<ToMoversDaemon> decode_to_movers_daemon(std::span<const std::byte> bytes) {
  return decode<Unchecked>(bytes, static_cast<const ToMoversDaemon*>(nullptr));
}

}  // namespace gpumux::wire
