// SPDX-License-Identifier: Apache-2.0
// nvidia-cuda-mps-control of a simulated machine:
//
//   -d        starts a control daemon in the background; returns when clients can connect
//   -f        is the control daemon
//   (none)    sends commands, read from standard input line by line, to the control daemon
//
// docs/simulated-driver.md lists the commands.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "os/unix_socket.h"
#include "sim/cuda/mps.h"
#include "sim/cuda/mps_daemon.h"

namespace gpumux::sim {
namespace {

int fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return 1;
}

int serve_here() {
  const auto daemon = MpsDaemon::open(true);
  if (!daemon) return fail(daemon.error().message());
  if (const auto begun = (*daemon)->begin(); !begun) return fail(begun.error().message());
  (*daemon)->serve();
  return 0;
}

void leave_terminal() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, stream);
  ::close(null);
}

int serve_in_background() {
  const auto daemon = MpsDaemon::open(false);
  if (!daemon) return fail(daemon.error().message());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail("cannot make a pipe");
  const pid_t child = ::fork();
  if (child < 0) return fail("cannot start a process");
  if (child != 0) {
    ::close(ends[1]);
    char ready = 0;
    return ::read(ends[0], &ready, 1) == 1 ? 0 : 1;
  }
  ::setsid();
  ::close(ends[0]);
  if (const auto begun = (*daemon)->begin(); !begun) return fail(begun.error().message());
  const bool told = ::write(ends[1], "r", 1) == 1;
  ::close(ends[1]);
  if (!told) return 1;
  leave_terminal();
  (*daemon)->serve();
  return 0;
}

int send_commands() {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.find_first_not_of(' ') == std::string::npos) continue;
    const auto connection = os::connect_seqpacket(mps_socket(mps_pipe_directory()));
    if (!connection || !send_mps(connection->get(), line)) return fail("Cannot find MPS control daemon process");
    // A command waits for as long as its answer takes: `quit` for all clients.
    std::cout << receive_mps(connection->get(), base::Duration(-1)) << std::flush;
  }
  return 0;
}

}  // namespace
}  // namespace gpumux::sim

int main(int count, char** arguments) {
  using namespace gpumux::sim;
  const std::string_view option = count > 1 ? arguments[1] : "";
  ::signal(SIGPIPE, SIG_IGN);
  if (count == 1) return send_commands();
  if (count == 2 && option == "-d") return serve_in_background();
  if (count == 2 && option == "-f") return serve_here();
  return fail("usage: nvidia-cuda-mps-control [-d | -f]");
}
