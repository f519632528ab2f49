// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/message_log.h"

namespace gpumux::daemon {

void write_line(std::string_view sentence, const MessageLine& line) {
  const auto text = [](const auto& number) { return number ? std::to_string(*number) : std::string("-"); };
  server::log_debug(sentence, {{"tenant", line.tenant.value},
                               {"pid", line.pid},
                               {"message", line.name},
                               {"slot", text(line.slot)},
                               {"epoch", text(line.epoch)}});
}

}  // namespace gpumux::daemon
