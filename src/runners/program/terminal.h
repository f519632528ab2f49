// SPDX-License-Identifier: Apache-2.0
// The process that holds an interactive job's terminal. It copies the job's output to the log and to the attached
// clients, and their keys to the job. A child of the supervisor, with the job's user's rights and nothing more.
//
// The job must never wait for a reader, and a reader must not miss anything that can still be had. So there is one ring
// of the last kAttachBacklogBytes of output, and each client is a position in it. A late client begins at the ring's
// beginning. A slow one is told and dropped when the ring has run over its position. Nothing is queued for any client.
// The log comes first and is written whole. Bytes that cannot be written (the disk is full) are counted, and the log
// says so once it can be written again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "wire/runner_records.h"

namespace gpumux::runners {

// Between the supervisor and this process, over a pair of sockets.
enum class LinkKind : std::uint32_t {
  kReady = 1,    // to the supervisor, with the job's side of the pty
  kDrain = 2,    // to the terminal: the job has ended; take what is left in the pty
  kDrained = 3,  // to the supervisor: the log has all of it
  kEnded = 4,    // to the terminal: tell the attached clients, and end
};

struct LinkMessage {
  LinkKind kind = LinkKind::kReady;
  std::uint32_t how = 0;  // kEnded: wire::EndHow
  std::uint32_t code = 0;
};

struct TerminalPlan {
  const wire::RunnerSpec* spec = nullptr;
  int link = -1;
  int report = -1;
  int listener = -1;  // the attach socket
};

// Never returns. Ends when the supervisor says so or is gone.
[[noreturn]] void become_terminal(const TerminalPlan& plan);

}  // namespace gpumux::runners
