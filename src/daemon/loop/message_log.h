// SPDX-License-Identifier: Apache-2.0
// The lines that the log level `debug` adds: one for each message from and to tenants, each event and each decision. At
// other levels a call costs one comparison.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/ids.h"
#include "server/loop/log.h"
#include "wire/messages.h"

namespace gpumux::daemon {

// "Hello": the name of the message's type.
template <class Message>
constexpr std::string_view name_of() {
  // As g++ and clang write it: "... [with Message = gpumux::wire::Hello; ...]", "... [Message = gpumux::wire::Hello]".
  constexpr std::string_view kSays = "Message = ";
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find(kSays) + kSays.size());
  name = name.substr(0, name.find_first_of(";]"));
  return name.substr(name.rfind(':') + 1);
}
static_assert(name_of<wire::Hello>() == "Hello");

// Of a message only its identity: its texts are the tenant's own words, and are logged where they count.
struct MessageLine {
  base::TenantId tenant;
  pid_t pid = 0;
  std::string_view name;
  std::optional<std::uint32_t> slot;
  std::optional<std::uint64_t> epoch;
};
void write_line(std::string_view sentence, const MessageLine& line);

template <class Message>
void debug_message(std::string_view sentence, base::TenantId tenant, pid_t pid, const Message& message) {
  if (!server::is_logged(server::LogLevel::kDebug)) return;
  MessageLine line{.tenant = tenant, .pid = pid, .name = name_of<Message>(), .slot = {}, .epoch = {}};
  if constexpr (requires { message.slot; }) line.slot = message.slot;
  if constexpr (requires { message.epoch; }) line.epoch = message.epoch;
  write_line(sentence, line);
}

}  // namespace gpumux::daemon
