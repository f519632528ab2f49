// SPDX-License-Identifier: Apache-2.0
// The control daemon of MPS, for one user and one simulated machine.
//
// It starts a server when the first client comes, and another when a client comes after a server has died. A server is
// a process that only lives. It has a slot of the machine, its clients' slots name it, and their contexts are broken
// when it is dead. It dies with its control daemon.
//
// Files in the pipe directory: `control`, the socket; `control_lock`, locked while a control daemon lives, which the
// kernel ends with it; `nvidia-cuda-mps-control.pid`. `control.log` and `server.log` in the log directory.
//
// One thread; nothing that a client or a command does holds it up.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "os/file_descriptor.h"
#include "os/unix_socket.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

class MpsDaemon {
 public:
  // Takes the directories. kExists: another control daemon serves the pipe directory. `says_log`: the log goes to
  // standard error, too.
  static base::Result<std::unique_ptr<MpsDaemon>> open(bool says_log);
  // The process that serves is this one.
  base::Status begin();
  // Until a command or a signal ends it, and its clients have ended.
  void serve();

 private:
  struct Connection {
    enum class State { kAsks, kJoins, kQuits };  // kJoins: a client whose slot may not name the server yet
    os::FileDescriptor socket;
    os::PeerCredentials peer;
    State state = State::kAsks;
  };

  MpsDaemon() = default;
  void accept_all();
  // False: the connection is over.
  bool hear(Connection& connection);
  std::string admit(Connection& connection, std::string_view machine);
  std::string command(Connection& connection, std::string_view line);
  std::string status();
  std::string client_list();
  bool ensure_server();
  void reap_server();
  void note_fault();
  void stop_server();
  void end(std::optional<base::Duration> at_most);
  bool over();
  void log(const std::string& text);

  Machine* machine_ = nullptr;
  std::string pipe_directory_;
  os::FileDescriptor lock_;
  os::FileDescriptor log_;
  os::FileDescriptor server_log_;
  os::FileDescriptor listener_;
  os::FileDescriptor signals_;
  bool says_log_ = false;
  std::vector<Connection> connections_;
  pid_t server_pid_ = 0;                    // 0: there is none
  std::uint64_t server_ = 0;                // its identity
  bool was_in_fault_ = false;               // the server's log says so
  std::optional<base::TimePoint> ends_by_;  // set: it ends as soon as its clients have ended, or then
};

}  // namespace gpumux::sim
