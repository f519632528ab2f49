// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/mps_servers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "os/durable_file.h"
#include "os/pidfd.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"
#include "server/loop/pool_work.h"
#include "server/peers/process_info.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr auto kReadyLook = 5ms;      // a control daemon takes connections some 30 ms after it was executed
constexpr auto kStartPatience = 10s;  // the driver may have to be loaded first
// As kLookAgain in jobs/service/job_runs.cc: a runner that ends still holds its claim for a moment.
constexpr auto kSweepAgain = 20ms;
// The most programs of one user: each has a descriptor of the daemon's. A GPU takes fewer as clients.
constexpr std::size_t kMostPrograms = 256;
// From TERM, at which a control daemon ends with its server, to KILL.
constexpr auto kEndGrace = 5s;
// The server writes these words to its log when a client's fault has hit all clients.
constexpr std::string_view kFaultWords = "fatal GPU error";
constexpr std::size_t kMostLogBytes = 64u << 10;  // looked at in one go

// A folder of the user's. The user may change all in it: nothing of it is trusted.
base::Status make_folder(const std::string& path, uid_t uid, gid_t gid) {
  if (::mkdir(path.c_str(), 0700) != 0) return base::fail_errno(errno, "cannot create " + path);
  if (::geteuid() != uid && ::lchown(path.c_str(), uid, gid) != 0)
    return base::fail_errno(errno, "cannot give " + path + " to user " + std::to_string(uid));
  return {};
}

std::string folder_of(const std::string& all, std::uint64_t uid, std::uint32_t number) {
  return all + "/" + std::to_string(uid) + "." + std::to_string(number);
}

// Of a server's `users_folder`.
std::string pipes_of(const std::string& folder) { return folder + "/pipe"; }
std::string logs_of(const std::string& folder) { return folder + "/log"; }

// Of a server's `folder`. An empty file "PID.START" for each client (process_info.h), by which the next daemon knows
// them.
std::string clients_of(const std::string& folder) { return folder + "/clients"; }

std::string client_file(const std::string& folder, pid_t pid, std::uint64_t start) {
  return clients_of(folder) + "/" + std::to_string(pid) + "." + std::to_string(start);
}

// "12.34": two numbers.
std::optional<std::pair<std::uint64_t, std::uint64_t>> two_numbers(std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto first = base::parse_integer(name.substr(0, dot), 0, UINT64_MAX);
  const auto second = base::parse_integer(name.substr(dot + 1), 0, UINT64_MAX);
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

std::vector<std::string> names_in(const std::string& folder) {
  return os::list_directory(folder).value_or(std::vector<std::string>());
}

// All that MPS and the daemon have made. A folder in which the user has put another file stays, with its parent:
// removing the user's files may take any time.
void remove_folders(const std::string& folder, const std::string& users) {
  for (const std::string& name : names_in(clients_of(folder))) ::unlink((clients_of(folder) + "/" + name).c_str());
  for (const char* name : {"/control", "/control_lock", "/control_privileged", "/log", "/nvidia-cuda-mps-control.pid"})
    ::unlink((pipes_of(users) + name).c_str());
  for (const char* name : {"/control.log", "/server.log", "/output"}) ::unlink((logs_of(users) + name).c_str());
  for (const std::string& each : {clients_of(folder), folder, pipes_of(users), logs_of(users), users})
    ::rmdir(each.c_str());
}

// Of the user's log from `offset` on; nothing if it is no file. For the loop: no name that the user chooses is
// followed, for all folders of the path are in one of the daemon's. So it is a file of the same file system as the
// runtime directory, or is not opened (a link), or opened without waiting (O_NONBLOCK: a FIFO, or a lease of the
// user's).
std::string read_log(const std::string& path, std::uint64_t offset) {
  const os::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string text(kMostLogBytes, '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(offset));
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

// Whether the control daemon takes connections. For the loop: the socket in the user's folder is opened without
// following a link (O_PATH), and the connection goes to what was opened. So the user cannot have another name put in
// between, which might lead to a server that does not answer. Connecting does not wait: see connect_seqpacket.
bool takes_connections(const std::string& control) {
  const os::FileDescriptor socket(::open(control.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!socket || ::fstat(socket.get(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  return os::connect_seqpacket("/proc/self/fd/" + std::to_string(socket.get())).has_value();
}

}  // namespace

MpsServers::~MpsServers() = default;

std::string MpsServers::runner_folder(const Server& server) const {
  return runners::runner_directory(places_.runners, server.uid, server.number);
}

void MpsServers::open(Places places) {
  places_ = std::move(places);
  if (const auto self = os::open_pidfd(::getpid()); !self && places_.why_not.empty())
    places_.why_not = "programs cannot be watched: " + self.error().message();
  for (const std::string& all : {places_.folder, places_.users_folder}) {
    for (const std::string& name : names_in(all)) {
      if (const auto numbers = two_numbers(name)) next_ = std::max(next_, static_cast<Number>(numbers->second) + 1);
    }
  }
  const auto found = runners::list_runners(places_.runners);
  if (!found) return;  // there is no such folder: no user had a server
  for (const runners::RunnerDirectory& one : *found) {
    const std::string folder = folder_of(places_.folder, one.job, one.attempt);
    const std::string users_folder = folder_of(places_.users_folder, one.job, one.attempt);
    const auto standing = runners::look_at_runner(one.path);
    auto connection = standing && standing->standing == runners::RunnerStanding::kAlive && !standing->end
                          ? runners::await_runner(one.path)
                          : base::Result<os::FileDescriptor>(base::fail(base::Code::kNotFound, "it has ended"));
    if (!connection) {
      static_cast<void>(runners::abandon_runner(one.path));
      sweep(one.path, folder, users_folder);
      continue;
    }
    Server& server = servers_[one.attempt];
    server.uid = static_cast<uid_t>(one.job);
    server.number = one.attempt;
    server.phase = Phase::kServing;
    server.folder = folder;
    server.users_folder = users_folder;
    connect(server, std::move(*connection));
    find_clients(server);
    look_at_log(server);
    server::log_info("MPS of an earlier daemon goes on",
                     {{"uid", server.uid}, {"server", server.number}, {"programs", server.clients.size()}});
  }
}

void MpsServers::find_clients(Server& server) {
  for (const std::string& name : names_in(clients_of(server.folder))) {
    const auto numbers = two_numbers(name);
    const pid_t pid = numbers ? static_cast<pid_t>(numbers->first) : 0;
    auto process = os::open_pidfd(pid);
    const auto info = process ? server::process_info(pid) : std::nullopt;
    // Looked at while the descriptor is open: the facts are of that process.
    if (info && info->start_time == numbers->second && !os::has_ended(process->get())) {
      watch(server, pid, info->start_time, std::move(*process));
    } else {
      ::unlink((clients_of(server.folder) + "/" + name).c_str());
    }
  }
}

// ---- programs ----

void MpsServers::join(const server::Peer& peer, Done done) {
  const auto refuse = [&](const std::string& why) {
    server::log_warning("a program gets no MPS", {{"uid", peer.uid}, {"pid", peer.pid}, {"why", why}});
    done({.why = why});
  };
  std::size_t programs = 0;
  for (const auto& [number, server] : servers_) programs += server.uid == peer.uid ? server.clients.size() : 0;
  if (programs >= kMostPrograms) return refuse("a user may have 256 programs under MPS");
  os::FileDescriptor process(::fcntl(peer.process->get(), F_DUPFD_CLOEXEC, 0));
  const auto info = server::process_info(peer.pid);
  if (!process || !info) return refuse("its process cannot be watched");
  Server* server = serving(peer.uid);
  if (server == nullptr) {
    auto started = start(peer);
    if (!started) return refuse(started.error().message());
    server = *started;
  }
  // A client that the next daemon does not know would lose its server then.
  const std::string record = client_file(server->folder, peer.pid, info->start_time);
  if (!os::FileDescriptor(::open(record.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600))) {
    refuse("cannot write " + record + ": " + std::strerror(errno));
    return end_if_unused(*server);
  }
  Client& client = watch(*server, peer.pid, info->start_time, std::move(process));
  if (server->phase == Phase::kServing) return done(answer_of(*server));
  client.done = std::move(done);
}

bool MpsServers::has_client(std::uint32_t number, const server::Peer& peer) const {
  const auto found = servers_.find(number);
  return found != servers_.end() && found->second.uid == peer.uid && found->second.clients.contains(peer.pid);
}

MpsServers::Client& MpsServers::watch(Server& server, pid_t pid, std::uint64_t start, os::FileDescriptor process) {
  Client& client = server.clients[pid];
  if (client.process != nullptr) return client;  // the same process, which has executed another program
  client.start = start;
  client.process = std::make_unique<asio::posix::stream_descriptor>(io_, process.release());
  client.process->async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, number = server.number, pid](const boost::system::error_code& error) {
                               if (!error) left(number, pid);
                             });
  return client;
}

void MpsServers::left(Number number, pid_t pid) {
  Server* const server = find(number);
  if (server == nullptr) return;
  const auto client = server->clients.find(pid);
  if (client == server->clients.end()) return;
  ::unlink(client_file(server->folder, pid, client->second.start).c_str());
  server->clients.erase(client);
  end_if_unused(*server);
}

MpsServers::Answer MpsServers::answer_of(const Server& server) {
  return {.number = server.number, .pipe_directory = pipes_of(server.users_folder)};
}

void MpsServers::answer(Server& server) {
  for (auto& [pid, client] : server.clients) {
    if (client.done) std::exchange(client.done, nullptr)(answer_of(server));
  }
}

// ---- servers ----

MpsServers::Server* MpsServers::find(Number number) {
  const auto found = servers_.find(number);
  return found == servers_.end() ? nullptr : &found->second;
}

MpsServers::Server* MpsServers::serving(uid_t uid) {
  for (auto& [number, server] : servers_) {
    if (server.uid != uid) continue;
    if (server.phase == Phase::kServing) look_at_log(server);
    if (server.phase == Phase::kServing || server.phase == Phase::kStarting) return &server;
  }
  return nullptr;
}

base::Status MpsServers::make_folders(const Server& server, gid_t gid) const {
  const std::string longest = pipes_of(server.users_folder) + "/control_privileged";
  if (longest.size() >= sizeof sockaddr_un::sun_path)
    return base::fail(base::Code::kInvalid, "the runtime directory's path is too long for MPS: " + places_.folder);
  if (::mkdir(clients_of(server.folder).c_str(), 0700) != 0)
    return base::fail_errno(errno, "cannot create " + clients_of(server.folder));
  for (const std::string& folder : {pipes_of(server.users_folder), logs_of(server.users_folder)})
    GPUMUX_TRY(make_folder(folder, server.uid, gid));
  return {};
}

wire::RunnerSpec MpsServers::spec_of(const Server& server, const server::Peer& peer) const {
  wire::RunnerSpec spec;
  spec.job = server.uid;
  spec.attempt = server.number;
  spec.uid = peer.uid;
  spec.gid = peer.groups.front();
  spec.groups = {peer.groups.begin(), peer.groups.end()};
  spec.no_new_privs = true;
  spec.directory = "/";
  spec.arguments = {places_.control, "-f"};
  // The control daemon and its server use the driver, and are no programs under gpumux.
  spec.environment = {"PATH=/usr/bin:/bin", "GPUMUX_DISABLE=1",
                      "CUDA_MPS_PIPE_DIRECTORY=" + pipes_of(server.users_folder),
                      "CUDA_MPS_LOG_DIRECTORY=" + logs_of(server.users_folder)};
  spec.log_path = logs_of(server.users_folder) + "/output";
  spec.umask = 0077;
  spec.environment.insert(spec.environment.end(), places_.environment.begin(), places_.environment.end());
  return spec;
}

base::Result<MpsServers::Server*> MpsServers::start(const server::Peer& peer) {
  if (!places_.why_not.empty()) return base::fail(base::Code::kNotFound, places_.why_not);
  Server server;
  server.uid = peer.uid;
  server.number = next_++;
  server.folder = folder_of(places_.folder, server.uid, server.number);
  server.users_folder = folder_of(places_.users_folder, server.uid, server.number);
  // The user passes through those of mode 0711, and has folders of its own in the last one.
  for (const auto& [folder, mode] :
       {std::pair(places_.folder, 0711), std::pair(places_.runners.jobs_dir, 0700), std::pair(server.folder, 0700),
        std::pair(places_.users_folder, 0711), std::pair(server.users_folder, 0711)}) {
    if (::mkdir(folder.c_str(), static_cast<mode_t>(mode)) == 0) {
      static_cast<void>(::chmod(folder.c_str(), static_cast<mode_t>(mode)));  // independent of the umask
    } else if (errno != EEXIST) {
      return base::fail_errno(errno, "cannot create " + folder);
    }
  }
  const auto begin = [&]() -> base::Result<os::FileDescriptor> {
    GPUMUX_TRY(make_folders(server, peer.groups.front()));
    GPUMUX_TRY(runners::prepare_runner(places_.runners, spec_of(server, peer)));
    return runners::start_runner(places_.runners, runner_folder(server));
  };
  auto connection = begin();
  if (!connection) {
    static_cast<void>(runners::abandon_runner(runner_folder(server)));
    sweep(runner_folder(server), server.folder, server.users_folder);
    return tl::unexpected(connection.error());
  }
  server.give_up = os::now() + kStartPatience;
  Server& kept = servers_[server.number] = std::move(server);
  connect(kept, std::move(*connection));
  await_ready_soon(kept);
  server::log_info("MPS is started for a user", {{"uid", kept.uid}, {"server", kept.number}});
  return &kept;
}

void MpsServers::connect(Server& server, os::FileDescriptor connection) {
  const Number number = server.number;
  server.runner = std::make_unique<runners::RunnerLink>(
      io_, std::move(connection), [this, number](const wire::FromRunner& message) { heard(number, message); },
      [this, number] { ended(number, "its supervisor has ended"); });
}

void MpsServers::heard(Number number, const wire::FromRunner& message) {
  if (const auto* end = std::get_if<wire::RunnerEnded>(&message)) {
    const std::string text(wire::text_of(end->text));
    const char* how = end->how == wire::EndHow::kSignaled ? "signal " : "exit status ";
    return ended(number, text.empty() ? how + std::to_string(end->code) : text,
                 end->reason == wire::EndReason::kNone ? Cause::kItself : Cause::kAsked);
  }
  if (const auto* refused = std::get_if<wire::RunnerRefused>(&message))
    return ended(number, std::string(wire::text_of(refused->text)));
  const auto* state = std::get_if<wire::RunnerState>(&message);
  Server* const server = find(number);
  if (state == nullptr || server == nullptr) return;
  server->control = static_cast<pid_t>(state->main_pid);
  if (state->phase == wire::RunnerPhase::kRunning && server->phase == Phase::kStarting) await_ready(*server);
}

void MpsServers::await_ready(Server& server) {
  if (takes_connections(pipes_of(server.users_folder) + "/control")) {
    server.ready.reset();
    server.phase = Phase::kServing;
    server::log_info("MPS serves a user", {{"uid", server.uid}, {"server", server.number}, {"pid", server.control}});
    answer(server);
    return end_if_unused(server);
  }
  if (os::now() >= server.give_up) return ended(server.number, "it took no connection in 10 s");
  await_ready_soon(server);
}

void MpsServers::await_ready_soon(Server& server) {
  if (server.ready == nullptr) server.ready = std::make_unique<asio::steady_timer>(io_);
  server.ready->expires_after(kReadyLook);
  server.ready->async_wait([this, number = server.number](const boost::system::error_code& error) {
    Server* const waits = error ? nullptr : find(number);
    if (waits != nullptr && waits->phase == Phase::kStarting) await_ready(*waits);
  });
}

// The runner has said so, or cannot be heard any more: then the control daemon has died with it.
void MpsServers::ended(Number number, const std::string& why, Cause cause) {
  Server* const found = find(number);
  if (found == nullptr) return;
  Server& server = *found;
  const Phase was = std::exchange(server.phase, Phase::kDied);
  if (server.runner != nullptr) {
    static_cast<void>(server.runner->terminate(wire::EndReason::kDaemon, 0ns));  // one that did not get ready
    server.runner->note_end();
  }
  if (was == Phase::kStarting) {
    server::log_warning("MPS did not start for a user", {{"uid", server.uid}, {"server", number}, {"why", why}});
    auto clients = std::exchange(server.clients, {});
    remove(number);
    for (auto& [pid, client] : clients) {
      if (client.done) client.done({.why = "MPS did not start: " + why});
    }
    return;
  }
  // Its last program may have failed because of it, and have been seen to end first.
  if (cause == Cause::kItself && was != Phase::kDied) {
    server::log_warning("MPS of a user has ended by itself, and programs under it fail at their next call",
                        {{"uid", server.uid}, {"server", number}, {"programs", server.clients.size()}, {"why", why}});
  }
  if (server.clients.empty()) remove(number);
}

void MpsServers::end_if_unused(Server& server) {
  if (!server.clients.empty()) return;
  if (server.phase == Phase::kDied) return remove(server.number);
  if (server.phase != Phase::kServing && server.phase != Phase::kFaulted) return;
  server.phase = Phase::kEnding;
  server::log_info("MPS of a user ends with its last program", {{"uid", server.uid}, {"server", server.number}});
  if (server.runner != nullptr) static_cast<void>(server.runner->terminate(wire::EndReason::kDaemon, kEndGrace));
}

// The user may write anything there. A false line only keeps the user's own programs from the user's own server.
void MpsServers::look_at_log(Server& server) {
  const std::string text = read_log(logs_of(server.users_folder) + "/server.log", server.log_read);
  // The words may lie across two looks.
  server.log_read += text.size() >= kFaultWords.size() ? text.size() - kFaultWords.size() + 1 : 0;
  if (server.phase != Phase::kServing || text.find(kFaultWords) == std::string::npos) return;
  server.phase = Phase::kFaulted;
  server::log_warning("a program under MPS has faulted, and all programs of that server have its error",
                      {{"uid", server.uid}, {"server", server.number}, {"programs", server.clients.size()}});
}

void MpsServers::look() {
  std::vector<Number> numbers;
  for (const auto& [number, server] : servers_) numbers.push_back(number);
  for (const Number number : numbers) {
    Server& server = servers_.at(number);
    if (server.phase == Phase::kServing) look_at_log(server);
    end_if_unused(server);
  }
}

void MpsServers::remove(Number number) {
  const auto found = servers_.find(number);
  if (found == servers_.end()) return;
  sweep(runner_folder(found->second), found->second.folder, found->second.users_folder);
  // A callback of the link may be at work.
  asio::post(io_, [link = std::shared_ptr<runners::RunnerLink>(std::move(found->second.runner))] {});
  servers_.erase(found);
}

// The runner says that it has ended a moment before it has.
void MpsServers::sweep(std::string runner, std::string folder, std::string users_folder, int tries) {
  server::work_then(
      pool_, io_,
      [runner, folder, users_folder] {
        const auto forgotten = runners::forget_runner(runner);
        const bool runs = !forgotten && forgotten.error().code == base::Code::kUnavailable;
        if (!runs) remove_folders(folder, users_folder);
        return runs;
      },
      [this, runner, folder, users_folder, tries](bool runs) {
        if (!runs) return;
        if (tries == 0)
          return server::log_warning("the folder of an MPS server is left: its supervisor does not end",
                                     {{"folder", folder}});
        const auto later = std::make_shared<asio::steady_timer>(io_, kSweepAgain);
        later->async_wait([this, later, runner, folder, users_folder, tries](const boost::system::error_code& error) {
          if (!error) sweep(runner, folder, users_folder, tries - 1);
        });
      });
}

std::vector<MpsServerView> MpsServers::view() const {
  static constexpr std::array<std::string_view, 5> kNames{"starting", "serving", "faulted", "ending", "died"};
  std::vector<MpsServerView> all;
  for (const auto& [number, server] : servers_) {
    MpsServerView& one = all.emplace_back();
    one.number = number;
    one.uid = server.uid;
    one.state = kNames.at(static_cast<std::size_t>(server.phase));
    one.pid = server.control;
    for (const auto& [pid, client] : server.clients) one.programs.push_back(pid);
  }
  return all;
}

}  // namespace gpumux::daemon
