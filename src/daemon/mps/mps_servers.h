// SPDX-License-Identifier: Apache-2.0
// The MPS control daemons that this daemon starts and ends, one for each user.
//
// A server here is one run of NVIDIA's nvidia-cuda-mps-control, with a folder of its own. It has a runner
// (runners/runners.h): so it runs as its user, in a control group of its own, and outlives this daemon.
//
//   kStarting --programs can connect--> kServing --a program faults--> kFaulted, which takes no new program
//   each of them: its last program ends --> kEnding --its runner says so--> gone
//                 it ends by itself     --> kDied, and gone with its last program
//
// A program that comes when its user has no server that takes it gets a new one. Old and new serve next to each other.
//
// A program is a server's client from the moment it is told of the server until its process ends. Only the program
// knows whether it has initialised CUDA, so that does not count. The server's folder names its clients, so that the
// next daemon knows them.
//
// Owned by the loop's thread. Callbacks come from the loop, or from within the call where it says so.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/tenants/mps_view.h"
#include "runners/runner_link.h"
#include "runners/runners.h"
#include "server/peers/access.h"

namespace gpumux::daemon {

class MpsServers {
 public:
  // Each is kSweepAgain after the last one: for two seconds. A runner that lives on after that hangs, or was stopped.
  // The next daemon finds its folder.
  static constexpr int kSweepTries = 100;

  struct Places {
    std::string folder;  // of all servers: each has UID.NUMBER in it, which only the daemon enters
    // The same for folders of the users' own. Users write below this folder only. It may be a file system of its own:
    // a user who fills it takes no room from the daemon's records.
    std::string users_folder;
    std::string control;                   // nvidia-cuda-mps-control
    std::vector<std::string> environment;  // NAME=value, added to the variables that each server gets
    runners::RunnerPlaces runners;         // jobs_dir is `folder`/runners
    std::string why_not;                   // no server can be started here; empty: they can
  };
  struct Answer {
    std::uint32_t number = 0;      // 0: no server
    std::string pipe_directory{};  // CUDA_MPS_PIPE_DIRECTORY
    std::string why{};             // there is none; for people
  };
  using Done = std::function<void(const Answer&)>;

  // `pool` removes a server's files, for that takes time.
  MpsServers(boost::asio::io_context& io, boost::asio::thread_pool& pool) : io_(io), pool_(pool) {}
  ~MpsServers();

  // Finds the servers of an earlier daemon. Once, before everything else.
  void open(Places places);

  // REQUIRES: a pidfd of the peer's process. The program becomes a client of its user's server, which is started if
  // need be. `done` is called within, or when the server is ready, or when it is known not to start.
  void join(const server::Peer& peer, Done done);
  // Whether the program is a client of this server of its user's.
  bool has_client(std::uint32_t number, const server::Peer& peer) const;

  std::vector<MpsServerView> view() const;

  // About once a second.
  void look();

 private:
  enum class Phase { kStarting, kServing, kFaulted, kEnding, kDied };
  struct Client {
    std::unique_ptr<boost::asio::posix::stream_descriptor> process;  // its pidfd
    Done done;                                                       // to be called when the server is ready
    std::uint64_t start = 0;                                         // when the process began (process_info.h)
  };
  struct Server {
    uid_t uid = 0;
    std::uint32_t number = 0;
    Phase phase = Phase::kStarting;
    std::string folder;
    std::string users_folder;
    std::unique_ptr<runners::RunnerLink> runner;
    pid_t control = 0;  // 0: not known yet
    std::map<pid_t, Client> clients;
    std::unique_ptr<boost::asio::steady_timer> ready;  // while it starts
    base::TimePoint give_up;                           // when a start counts as failed
    std::uint64_t log_read = 0;                        // bytes of its log that were looked at
  };
  using Number = std::uint32_t;

  std::string runner_folder(const Server& server) const;
  Server* find(Number number);  // null: it is gone
  Server* serving(uid_t uid);
  base::Result<Server*> start(const server::Peer& peer);
  base::Status make_folders(const Server& server, gid_t gid) const;
  wire::RunnerSpec spec_of(const Server& server, const server::Peer& peer) const;
  void connect(Server& server, os::FileDescriptor connection);
  void heard(Number number, const wire::FromRunner& message);
  void await_ready(Server& server);
  void await_ready_soon(Server& server);
  void find_clients(Server& server);
  Client& watch(Server& server, pid_t pid, std::uint64_t start, os::FileDescriptor process);
  void left(Number number, pid_t pid);
  void answer(Server& server);
  enum class Cause { kItself, kAsked };
  void ended(Number number, const std::string& why, Cause cause = Cause::kItself);
  void end_if_unused(Server& server);
  void look_at_log(Server& server);
  void remove(Number number);
  void sweep(std::string runner, std::string folder, std::string users_folder, int tries = kSweepTries);
  static Answer answer_of(const Server& server);

  boost::asio::io_context& io_;
  boost::asio::thread_pool& pool_;
  Places places_;
  std::map<Number, Server> servers_;
  Number next_ = 1;
};

}  // namespace gpumux::daemon
