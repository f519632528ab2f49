// SPDX-License-Identifier: Apache-2.0
// What the daemon's doorkeepers do (doorkeepers/starter.h): a doorkeeper receives one message from each connection that
// the daemon sends, and passes a harmless descriptor on. After any other it answers kRefused, and ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "base/result.h"
#include "doorkeepers/starter.h"

namespace gpumux::daemon {

// The work of doorkeepers::Starter.
[[noreturn]] void keep_door(int channel);

// Has a doorkeeper receive a memory file of ours. An error: the kernel, or a sandbox, refuses what doorkeepers need.
// For the start: it waits for the doorkeeper.
base::Status check(const doorkeepers::Starter& starter);

// A doorkeeper sends this first, about a message that it has received.
struct Answer {
  enum class Outcome : std::uint8_t {
    kReceived,  // the message follows; the descriptor comes along, if there was one
    kRefused,   // several descriptors, or one that is not known to be harmless. The doorkeeper ends.
  };
  Outcome outcome = Outcome::kReceived;
  bool was_cut = false;  // the message is longer than kMaxMessageBytes
};

// The most that comes through a channel at once: an Answer and a message.
inline constexpr std::size_t kAnswerBytes = sizeof(Answer) + base::kMaxMessageBytes;

}  // namespace gpumux::daemon
