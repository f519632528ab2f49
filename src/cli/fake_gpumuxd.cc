// SPDX-License-Identifier: Apache-2.0
// For tests: a program that `gpumux run` takes for a daemon. It appends a line with its arguments and pid to
// $FAKE_DIR/started. Then it acts as FAKE_BEHAVIOUR says. serve: it answers the API, and ends when $FAKE_DIR/stop
// appears. fail: it says why and ends. mute: it never says that it serves. absent: it says that it serves, but has no
// socket.
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "api_client/scripted_server.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

void wait_until_stopped() {
  // A test that fails must not leave a process behind for ever.
  for (int i = 0; i < 6000 && !exists(variable("FAKE_DIR") + "/stop"); ++i) ::poll(nullptr, 0, 10);
}

}  // namespace

int main(int argc, char** argv) {
  std::string line = std::to_string(::getpid()) + " " + std::to_string(::getsid(0)) + " " + std::to_string(::getppid());
  int notify = -1;
  for (int i = 1; i < argc; ++i) {
    line += std::string(" ") + argv[i];
    if (std::string(argv[i]) == "--notify-fd" && i + 1 < argc) notify = std::atoi(argv[i + 1]);
  }
  line += " fds";
  for (int fd = 0; fd < 256; ++fd) {
    char path[64];
    char target[256];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (::readlink(path, target, sizeof target) > 0) line += " " + std::to_string(fd);
  }
  line += "\n";
  std::FILE* started = std::fopen((variable("FAKE_DIR") + "/started").c_str(), "a");
  if (started == nullptr) return 1;
  std::fputs(line.c_str(), started);
  std::fclose(started);

  const std::string behaviour = variable("FAKE_BEHAVIOUR");
  if (behaviour == "fail") {
    std::fputs("gpumuxd: no GPU was found: \x1b[31mthe driver is not loaded\n", stderr);
    return 1;
  }
  if (behaviour == "mute") {
    wait_until_stopped();
    return 0;
  }
  if (behaviour == "absent") return ::write(notify, "1", 1) == 1 ? 0 : 1;
  const gpumux::api_client::ScriptedServer server(
      variable("GPUMUX_RUNTIME_DIR") + "/api.sock", [](const gpumux::api_client::ScriptedRequest&, int connection) {
        gpumux::api_client::ScriptedServer::send_all(connection,
                                                     gpumux::api_client::ScriptedServer::response(200, "{}"));
      });
  if (::write(notify, "1", 1) != 1) return 1;
  ::close(notify);
  wait_until_stopped();
}
