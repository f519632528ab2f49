// SPDX-License-Identifier: Apache-2.0
#include "wire/messages.h"

#include <cstring>
#include <type_traits>

namespace gpumux::wire {
namespace {

template <std::size_t N>
void terminate(char (&field)[N]) {
  field[N - 1] = '\0';
}

// Each message's own checks: text ends, enumerations are known. What a value means is checked where it is used.
void tidy(Hello& m) {
  terminate(m.program);
  terminate(m.gang);
  terminate(m.version);
  terminate(m.run);
}
void tidy(GangJoin& m) { terminate(m.key); }
void tidy(Note& m) { terminate(m.text); }
void tidy(Welcome& m) { terminate(m.version); }
void tidy(Refused& m) { terminate(m.text); }
void tidy(SeatRefused& m) { terminate(m.text); }
template <class Message>
void tidy(Message&) {}

bool known(const SeatOpen& m) {
  return static_cast<std::uint32_t>(m.state) <= static_cast<std::uint32_t>(SeatState::kDraining);
}
bool known(const Note& m) {
  return static_cast<std::uint32_t>(m.severity) <= static_cast<std::uint32_t>(Severity::kError) &&
         static_cast<std::uint32_t>(m.kind) <= static_cast<std::uint32_t>(NoteKind::kUnknownEntry);
}
bool known(const Welcome& m) {
  return static_cast<std::uint32_t>(m.on_daemon_loss) <= static_cast<std::uint32_t>(OnDaemonLoss::kUngated);
}
bool known(const HostForget& m) { return m.count <= kMostForgotten; }
template <class Message>
bool known(const Message&) {
  return true;
}

template <class Variant, class Message>
base::Result<Variant> decode_as(std::span<const std::byte> body) {
  static_assert(std::is_trivially_copyable_v<Message>);
  if (body.size() < Message::kMinimumBytes) {
    return base::fail(base::Code::kProtocol,
                      "message of type " + std::to_string(static_cast<unsigned>(Message::kType)) + " is too short");
  }
  Message message{};
  std::memcpy(&message, body.data(), body.size() < sizeof message ? body.size() : sizeof message);
  tidy(message);
  if (!known(message)) {
    return base::fail(
        base::Code::kProtocol,
        "message of type " + std::to_string(static_cast<unsigned>(Message::kType)) + " has an unknown value");
  }
  return Variant(message);
}

template <class... Messages>
base::Result<std::variant<Messages...>> decode(std::span<const std::byte> bytes, const std::variant<Messages...>*) {
  using Variant = std::variant<Messages...>;
  Header header;
  if (bytes.size() < sizeof header || bytes.size() > base::kMaxMessageBytes) {
    return base::fail(base::Code::kProtocol, "a message of " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.bytes != bytes.size())
    return base::fail(base::Code::kProtocol, "a message's length field does not match its length");
  const auto body = bytes.subspan(sizeof header);
  base::Result<Variant> result =
      base::fail(base::Code::kProtocol, "unknown message type " + std::to_string(header.type));
  const bool found = ((header.type == static_cast<std::uint32_t>(Messages::kType) &&
                       (result = decode_as<Variant, Messages>(body), true)) ||
                      ...);
  static_cast<void>(found);
  return result;
}

}  // namespace

base::Result<TenantMessage> decode_from_tenant(std::span<const std::byte> bytes) {
  return decode(bytes, static_cast<const TenantMessage*>(nullptr));
}

base::Result<DaemonMessage> decode_from_daemon(std::span<const std::byte> bytes) {
  return decode(bytes, static_cast<const DaemonMessage*>(nullptr));
}

}  // namespace gpumux::wire
