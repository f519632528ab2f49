// SPDX-License-Identifier: Apache-2.0
// The messages between a terminal that is attached to an interactive job and the process that holds the job's pty.
//
// Transport as in wire/messages.h: whole messages, SOCK_SEQPACKET. Processes of the job's user, and root's, may
// connect, and any number may watch at once. All of them see the same output, and the keys of each go to the job.
//
//   client                                   terminal
//   AttachHello         ------------------>                  its window's size, and the first byte that it wants
//                       <------------------  AttachWelcome
//                       <------------------  AttachOutput    first the missed output, then the new one
//   AttachInput         ------------------>
//   AttachResize        ------------------>
//                       <------------------  AttachLagging   it read too slowly: the next output is no longer kept.
//                                                            It is disconnected; the log has everything
//                       <------------------  AttachEnded     everything has been sent, and the job has ended
//
// Detaching is closing. Output is counted in bytes since the job began. So a client that comes back asks for the part
// that it has not seen yet. The job never waits for a client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "wire/messages.h"

namespace gpumux::wire {

inline constexpr std::uint32_t kAttachProtocolVersion = 1;

// This many bytes of the last output are kept for clients that come late or read slowly: some ten thousand lines.
inline constexpr std::size_t kAttachBacklogBytes = 1u << 20;
// Output in one message; input in one message. Small enough for any socket buffer, large enough to be few.
inline constexpr std::size_t kMaxAttachOutputBytes = 16384;
inline constexpr std::size_t kMaxAttachInputBytes = 4096;
inline constexpr std::size_t kMaxAttachMessageBytes = kMaxAttachOutputBytes + 64;

enum class AttachType : std::uint32_t {
  kHello = 1,
  kInput = 2,
  kResize = 3,

  kWelcome = 64,
  kOutput = 65,
  kLagging = 66,
  kEnded = 67,
};

struct WindowSize {
  std::uint16_t rows = 0;  // 0 of both: not known, leave it as it is
  std::uint16_t columns = 0;
};

struct AttachHello {
  static constexpr AttachType kType = AttachType::kHello;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t protocol = kAttachProtocolVersion;
  WindowSize window;
  std::uint64_t from = 0;  // the first byte of output that it wants; bytes that are no longer kept are left out
};

struct AttachInput {
  static constexpr AttachType kType = AttachType::kInput;
  std::string_view bytes;  // at most kMaxAttachInputBytes; points into the received message
};

struct AttachResize {
  static constexpr AttachType kType = AttachType::kResize;
  static constexpr std::size_t kMinimumBytes = 4;
  WindowSize window;
};

struct AttachWelcome {
  static constexpr AttachType kType = AttachType::kWelcome;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint32_t protocol = kAttachProtocolVersion;
  std::uint32_t reserved = 0;
  std::uint64_t from = 0;   // where the output that follows begins; more than was asked for if that is gone
  std::uint64_t until = 0;  // the length of the output so far: the bytes in between are backlog
};

struct AttachOutput {
  static constexpr AttachType kType = AttachType::kOutput;
  std::string_view bytes;
};

struct AttachLagging {
  static constexpr AttachType kType = AttachType::kLagging;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint64_t next = 0;  // the first byte that it was not sent
};

struct AttachEnded {
  static constexpr AttachType kType = AttachType::kEnded;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t how = 0;  // wire::EndHow; 0: the runner is gone, and the terminal's process does not know how the job
                          // ended
  std::uint32_t code = 0;
};

using FromAttached = std::variant<AttachHello, AttachInput, AttachResize>;
using ToAttached = std::variant<AttachWelcome, AttachOutput, AttachLagging, AttachEnded>;

base::Result<FromAttached> decode_from_attached(std::span<const std::byte> bytes);
base::Result<ToAttached> decode_to_attached(std::span<const std::byte> bytes);

// A header for `bytes` of input or output, to be sent before them in one message.
Header attach_header(AttachType type, std::size_t bytes);

}  // namespace gpumux::wire
