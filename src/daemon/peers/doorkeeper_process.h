// SPDX-License-Identifier: Apache-2.0
// The processes that receive strangers' messages with descriptors.
//
// Why processes: a thread that closes a FUSE file can wait for ever, and SIGKILL does not end it. It keeps everything
// that it has: in a thread of the daemon's the daemon's memory, and the process itself.
//
//   daemon -- control --> starter --forks--> guard --forks--> doorkeeper
//      \______________________ channel _______|__________________/
//
//   starter     is forked when the daemon begins, and has nothing but the control socket. It forks a guard for each
//               channel that the daemon sends.
//   guard       waits until its doorkeeper has ended, and holds the channel open until then. So the channel's end says
//               that the doorkeeper has closed everything, or has been ended by the kernel.
//   doorkeeper  receives one message from each connection that the daemon sends, and passes a harmless descriptor on.
//               After any other it answers kRefused, and ends: the kernel closes what it has, for as long as that
//               takes.
//
// All end when the daemon does: the starter and an idle doorkeeper read the end of their sockets. A doorkeeper that
// waits in a close that signals can end is killed with its parent.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/limits.h"
#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// The process's name, as `ps` shows it.
inline constexpr char kDoorkeeperName[] = "gpumux-door";

// The starter, as the daemon has it. Ending it ends its doorkeepers; the destructor waits for the starter alone.
class Starter {
 public:
  // Forks it. The caller may have threads.
  static base::Result<Starter> start();
  Starter(Starter&& other) noexcept : control_(std::move(other.control_)), pid_(std::exchange(other.pid_, -1)) {}
  Starter& operator=(Starter&&) = delete;
  ~Starter();

  // The daemon's end of a channel to another doorkeeper.
  base::Result<os::FileDescriptor> add() const;

  // Has a doorkeeper receive a memory file of ours. An error: the kernel, or a sandbox, refuses what doorkeepers need.
  // For the start: it waits for the doorkeeper.
  base::Status check() const;

 private:
  Starter(os::FileDescriptor control, pid_t pid) : control_(std::move(control)), pid_(pid) {}
  os::FileDescriptor control_;
  pid_t pid_;
};

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

// Whether closing and mapping it never asks a stranger: a memory file of the kernel's own file system (memfd_create),
// or NVIDIA's device. Asks no file system. `memory`: a memory file of this process.
bool is_harmless(int fd, int memory);

}  // namespace gpumux::daemon
