// SPDX-License-Identifier: Apache-2.0
// gpumux-runner: supervises one job. Started by gpumuxd, or by the service manager for it, with the connection to the
// daemon as standard input; never by people.
//
//   gpumux-runner            in a place of its own already (a unit of the service manager's)
//   gpumux-runner --detach   leaves its parent, its session and its standard streams behind first
//   gpumux-runner --launch   after a job's set-up command (runners/program/launch.h); runs as the job's user
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/version.h"
#include "os/file_descriptor.h"
#include "runners/program/child.h"
#include "runners/program/launch.h"
#include "runners/program/supervisor.h"

namespace {

using namespace gpumux;

bool is_socket(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

// A copy of the connection that is not standard input, so that standard input can be nothing.
os::FileDescriptor take_connection() {
  os::FileDescriptor connection(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (connection) ::fcntl(connection.get(), F_SETFL, O_NONBLOCK);
  return connection;
}

int supervise(bool detach) {
  if (detach) {
    // The daemon waits for this process only, which ends now; the next one is not its child.
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child > 0) ::_exit(0);
    ::setsid();
  }
  ::umask(0077);
  if (::chdir("/") != 0) return 1;
  os::FileDescriptor connection = take_connection();
  if (!connection) return 1;
  runners::close_all_but({connection.get()});
  if (detach) {
    if (!runners::empty_standard_streams()) return 1;
  } else {
    // Its messages are the service manager's.
    const os::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing || ::dup2(nothing.get(), STDIN_FILENO) < 0) return 1;
  }
  return runners::Supervisor(std::move(connection)).run();
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc == 2 ? argv[1] : "";
  if (std::strcmp(mode, runners::kLaunchArgument) == 0) runners::launch_main();
  if (std::strcmp(mode, "--version") == 0) {
    std::printf("gpumux-runner %s\n", gpumux::base::version());
    return 0;
  }
  const bool detach = std::strcmp(mode, "--detach") == 0;
  if ((argc > 1 && !detach) || !is_socket(STDIN_FILENO)) {
    std::fprintf(
        stderr,
        "gpumux-runner: supervises one job of gpumux's queue. It is started by gpumuxd, with a connection to it "
        "as standard input, and is of no use otherwise.\n");
    return 2;
  }
  return supervise(detach);
}
