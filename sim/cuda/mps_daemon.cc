// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/mps_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "base/units.h"
#include "sim/cuda/mps.h"

namespace gpumux::sim {
namespace {

constexpr char kPidFile[] = "/nvidia-cuda-mps-control.pid";

// Deaths and faults of clients wake no thread, so a control daemon looks for them this often.
constexpr int kLookAgainMilliseconds = 5;

base::Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return base::fail_errno(errno, "cannot create " + path);
  return {};
}

base::Result<os::FileDescriptor> open_file(const std::string& path, int flags) {
  os::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644));
  if (!file) return base::fail_errno(errno, "cannot write " + path);
  return file;
}

base::Status write_all(int file, std::string_view text) {
  if (::write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return base::fail_errno(errno, "cannot write a file");
  return {};
}

std::string time_text() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  tm parts{};
  ::localtime_r(&time.tv_sec, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &parts);
  char whole[48];
  std::snprintf(whole, sizeof whole, "%s.%03ld", date, time.tv_nsec / 1'000'000);
  return whole;
}

sigset_t handled_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD}) ::sigaddset(&set, number);
  return set;
}

// The server: lives until it is killed. Tells its identity through `ready`.
[[noreturn]] void be_server(Machine& machine, pid_t parent, int ready) {
  ::prctl(PR_SET_NAME, "nvidia-cuda-mps-server");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent || !machine.join()) ::_exit(1);
  machine.become_server();
  const std::uint64_t identity = machine.identity(machine.own_slot());
  if (::write(ready, &identity, sizeof identity) != sizeof identity) ::_exit(1);
  ::close(ready);
  const sigset_t handled = handled_signals();
  ::sigprocmask(SIG_UNBLOCK, &handled, nullptr);
  for (;;) ::pause();
}

}  // namespace

base::Result<std::unique_ptr<MpsDaemon>> MpsDaemon::open(bool says_log) {
  std::unique_ptr<MpsDaemon> daemon(new MpsDaemon);
  daemon->says_log_ = says_log;
  daemon->pipe_directory_ = mps_pipe_directory();
  const std::string log_directory = mps_log_directory();
  GPUMUX_TRY(make_directory(daemon->pipe_directory_));
  GPUMUX_TRY(make_directory(log_directory));
  auto lock = open_file(daemon->pipe_directory_ + "/control_lock", 0);
  if (!lock) return tl::unexpected(lock.error());
  daemon->lock_ = std::move(*lock);
  if (::flock(daemon->lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return base::fail(base::Code::kExists, "An instance of this daemon is already running");
  auto log = open_file(log_directory + "/control.log", O_APPEND);
  if (!log) return tl::unexpected(log.error());
  daemon->log_ = std::move(*log);
  auto server_log = open_file(log_directory + "/server.log", O_APPEND);
  if (!server_log) return tl::unexpected(server_log.error());
  daemon->server_log_ = std::move(*server_log);
  auto machine = Machine::get();
  if (!machine) return tl::unexpected(machine.error());
  daemon->machine_ = *machine;
  // Every process may connect, and is told whether it is served.
  auto listener = os::listen_seqpacket(mps_socket(daemon->pipe_directory_), 0666, SOMAXCONN);
  if (!listener) return tl::unexpected(listener.error());
  daemon->listener_ = std::move(*listener);
  return daemon;
}

base::Status MpsDaemon::begin() {
  const sigset_t handled = handled_signals();
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  signals_ = os::FileDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return base::fail_errno(errno, "cannot make a signalfd");
  const auto file = open_file(pipe_directory_ + kPidFile, O_TRUNC);
  if (!file) return tl::unexpected(file.error());
  GPUMUX_TRY(write_all(file->get(), std::to_string(::getpid()) + "\n"));
  log("Starting control daemon using socket " + mps_socket(pipe_directory_));
  log("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + pipe_directory_);
  return {};
}

void MpsDaemon::serve() {
  while (!over()) {
    std::vector<pollfd> sources{{signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) sources.push_back({connection.socket.get(), POLLIN, 0});
    ::poll(sources.data(), sources.size(), ends_by_ || server_pid_ != 0 ? kLookAgainMilliseconds : -1);
    signalfd_siginfo signal{};
    while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
      if (signal.ssi_signo != SIGCHLD) end(std::nullopt);
    }
    reap_server();
    note_fault();
    // In the order of `sources`; a connection that is over leaves its place empty until all have been heard.
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (sources[2 + i].revents != 0 && !hear(connections_[i])) connections_[i].socket.reset();
    }
    std::erase_if(connections_, [](const Connection& connection) { return !connection.socket; });
    accept_all();
  }
  stop_server();
  log("Exit");
  ::unlink(mps_socket(pipe_directory_).c_str());
  ::unlink((pipe_directory_ + kPidFile).c_str());
}

void MpsDaemon::accept_all() {
  for (;;) {
    os::FileDescriptor socket = os::accept_connection(listener_.get());
    if (!socket) return;
    const auto peer = os::peer_credentials(socket.get());
    if (peer) connections_.push_back({std::move(socket), *peer});
  }
}

bool MpsDaemon::hear(Connection& connection) {
  std::array<char, 256> buffer;
  const auto received = os::receive_message(connection.socket.get(), std::as_writable_bytes(std::span(buffer)));
  if (!received || received->bytes == 0) return false;
  const std::string_view message(buffer.data(), received->bytes);
  constexpr std::string_view kClient = "client ";
  const bool is_client = message.substr(0, kClient.size()) == kClient;
  const std::string answer =
      is_client ? admit(connection, message.substr(kClient.size())) : command(connection, message);
  if (connection.state == Connection::State::kQuits) return true;  // the answer is that the daemon is gone
  return send_mps(connection.socket.get(), answer) && connection.state == Connection::State::kJoins;
}

std::string MpsDaemon::admit(Connection& connection, std::string_view machine) {
  const std::string failed = "error " + std::to_string(cuda::CUDA_ERROR_MPS_CONNECTION_FAILED);
  if (machine != std::to_string(machine_->id())) return "none";
  const std::string who = std::to_string(connection.peer.pid) + " from user " + std::to_string(connection.peer.uid);
  if (connection.peer.uid != ::geteuid() || ends_by_ || !ensure_server()) {
    log("CLIENT " + who + " is not served");
    return failed;
  }
  if (is_in_fault(*machine_, server_)) {
    log("CLIENT " + who + " is not served: the server is in FAULT");
    return "error " + std::to_string(cuda::CUDA_ERROR_MPS_SERVER_NOT_READY);
  }
  log("NEW CLIENT " + who);
  connection.state = Connection::State::kJoins;
  return "server " + std::to_string(server_);
}

std::string MpsDaemon::command(Connection& connection, std::string_view line) {
  if (connection.peer.uid != ::geteuid() && connection.peer.uid != 0) return "Insufficient permission\n";
  std::vector<std::string> words;
  while (!line.empty()) {
    const std::size_t space = line.find(' ');
    if (space != 0) words.emplace_back(line.substr(0, space));
    line = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  }
  if (words.empty()) return "";
  const std::string& name = words[0];
  if (name == "quit" && (words.size() == 1 || (words.size() == 3 && words[1] == "-t"))) {
    std::optional<base::Duration> at_most;
    if (words.size() == 3) {
      constexpr std::uint64_t kMostSeconds = 1'000'000'000;
      const auto seconds = base::parse_integer(words[2], 0, kMostSeconds);
      if (!seconds) return "Invalid timeout " + words[2] + "\n";
      at_most = base::Duration(static_cast<std::int64_t>(*seconds) * 1'000'000'000);
    }
    connection.state = Connection::State::kQuits;
    end(at_most);
    return "";
  }
  if (name == "get_server_list" && words.size() == 1) return server_pid_ == 0 ? "" : std::to_string(server_pid_) + "\n";
  if ((name == "get_server_status" || name == "get_client_list") && words.size() == 2) {
    if (server_pid_ == 0 || words[1] != std::to_string(server_pid_)) return "Server " + words[1] + " not found\n";
    return name == "get_server_status" ? status() : client_list();
  }
  return "Unknown command\n";
}

std::string MpsDaemon::status() { return is_in_fault(*machine_, server_) ? "FAULT\n" : "ACTIVE\n"; }

std::string MpsDaemon::client_list() {
  std::string text;
  for (const std::uint32_t client : machine_->clients(server_)) {
    text += std::to_string(machine_->process_of(client)) + "\n";
  }
  return text;
}

bool MpsDaemon::ensure_server() {
  reap_server();
  if (server_pid_ != 0) return true;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const os::FileDescriptor from_server(ends[0]);
  os::FileDescriptor to_daemon(ends[1]);
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return false;
  if (child == 0) {
    // These are only the daemon's.
    lock_.reset();
    listener_.reset();
    connections_.clear();
    be_server(*machine_, self, to_daemon.get());
  }
  to_daemon.reset();
  if (::read(from_server.get(), &server_, sizeof server_) != sizeof server_) {
    ::waitpid(child, nullptr, 0);
    return false;
  }
  server_pid_ = child;
  log("NEW SERVER " + std::to_string(child) + ": Ready");
  return true;
}

void MpsDaemon::reap_server() {
  int how = 0;
  if (server_pid_ == 0 || ::waitpid(server_pid_, &how, WNOHANG) != server_pid_) return;
  log("Server " + std::to_string(server_pid_) + " has ended, wait status " + std::to_string(how));
  server_pid_ = 0;
  server_ = 0;
}

// As NVIDIA's server does. Its control daemon writes for it here: a server only lives.
void MpsDaemon::note_fault() {
  const bool has_faulted = server_pid_ != 0 && is_in_fault(*machine_, server_);
  if (has_faulted && !was_in_fault_) {
    const std::string line = "[" + time_text() + " Server " + std::to_string(server_pid_) + "] ";
    static_cast<void>(write_all(server_log_.get(), line + "Server is handling a fatal GPU error.\n"));
  }
  was_in_fault_ = has_faulted;
}

void MpsDaemon::stop_server() {
  if (server_pid_ == 0) return;
  ::kill(server_pid_, SIGKILL);
  ::waitpid(server_pid_, nullptr, 0);
  server_pid_ = 0;
}

// The earliest end counts.
void MpsDaemon::end(std::optional<base::Duration> at_most) {
  const base::TimePoint by = at_most ? now() + *at_most : base::TimePoint::max();
  if (!ends_by_) log("Quit: no client is served any more");
  ends_by_ = ends_by_ ? std::min(*ends_by_, by) : by;
}

bool MpsDaemon::over() {
  if (!ends_by_) return false;
  if (now() >= *ends_by_) return true;
  const bool joins = std::any_of(connections_.begin(), connections_.end(), [](const Connection& connection) {
    return connection.state == Connection::State::kJoins;
  });
  return !joins && (server_pid_ == 0 || machine_->clients(server_).empty());
}

void MpsDaemon::log(const std::string& text) {
  const std::string line = "[" + time_text() + " Control " + std::to_string(::getpid()) + "] " + text + "\n";
  // A full disk keeps no daemon from its work.
  static_cast<void>(write_all(log_.get(), line));
  if (says_log_) static_cast<void>(write_all(STDERR_FILENO, line));
}

}  // namespace gpumux::sim
