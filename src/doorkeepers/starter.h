// SPDX-License-Identifier: Apache-2.0
// Processes that receive strangers' messages with descriptors, for one that must not.
//
// Why processes: a thread that closes a FUSE file can wait for ever, and SIGKILL does not end it. It keeps everything
// that it has: in a thread of the owner's the owner's memory, and the process itself.
//
//   owner -- control --> starter --forks--> guard --forks--> doorkeeper
//      \______________________ channel _______|__________________/
//
//   starter     is forked when the owner begins, and has nothing but the control socket. It forks a guard for each
//               channel that the owner sends.
//   guard       waits until its doorkeeper has ended, and holds the channel open until then. So the channel's end says
//               that the doorkeeper has closed everything, or has been ended by the kernel.
//   doorkeeper  does the owner's `work`: it receives strangers' messages, and passes harmless descriptors on. With any
//               other it ends: the kernel closes what it has, for as long as that takes.
//
// All end when the owner does: the starter and an idle doorkeeper read the end of their sockets. A doorkeeper that
// waits in a close that signals can end is killed with its parent.
#pragma once

#include <sys/types.h>

#include <utility>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::doorkeepers {

// The processes' name, as `ps` shows it.
inline constexpr char kName[] = "gpumux-door";

// The starter, as its owner has it. Ending it ends its doorkeepers; the destructor waits for the starter alone.
class Starter {
 public:
  // In the doorkeeper: `channel` is its end, and all that it has besides /dev/null as 0 to 2. Does not return.
  using Work = void (*)(int channel);

  // Forks it. The caller may have threads.
  static base::Result<Starter> start(Work work);
  Starter(Starter&& other) noexcept : control_(std::move(other.control_)), pid_(std::exchange(other.pid_, -1)) {}
  Starter& operator=(Starter&&) = delete;
  ~Starter();

  // The owner's end of a channel to another doorkeeper: whole messages, does not block.
  base::Result<os::FileDescriptor> add() const;

 private:
  Starter(os::FileDescriptor control, pid_t pid) : control_(std::move(control)), pid_(pid) {}
  os::FileDescriptor control_;
  pid_t pid_;
};

// Whether closing and mapping it never asks a stranger: a memory file of the kernel's own file system (memfd_create),
// or NVIDIA's device. Asks no file system. `memory`: a memory file of this process.
bool is_harmless(int fd, int memory);

}  // namespace gpumux::doorkeepers
