// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/mover_process.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "os/pidfd.h"
#include "os/system_clock.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

// The kernel gives back tens of GiB of pinned memory when a mover ends. A guess.
constexpr base::Duration kEndPatience = 5s;
constexpr base::Duration kEndLook = 5ms;

}  // namespace

bool MoverProcess::has_ended() const {
  if (pid == 0) return true;
  const pid_t reaped = ::waitpid(pid, nullptr, WNOHANG);
  // An earlier daemon's is no child of this one.
  return reaped == pid || (reaped < 0 && (!pidfd || os::has_ended(pidfd.get())));
}

void MoverProcess::end() const {
  kill();
  const base::TimePoint late = os::now() + kEndPatience;
  while (!has_ended() && os::now() < late) std::this_thread::sleep_for(kEndLook);
}

void MoverProcess::kill() const {
  if (pidfd) {
    static_cast<void>(os::kill_process(pidfd.get()));
  } else if (pid != 0) {
    ::kill(pid, SIGKILL);
  }
}

}  // namespace gpumux::daemon
