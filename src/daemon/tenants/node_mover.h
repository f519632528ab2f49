// SPDX-License-Identifier: Apache-2.0
// The node's mover (docs/decisions/0039) is a process. The daemon starts it for the first seat that needs one, lends it
// host memory, and keeps the books. So the next mover knows all content that the last one has saved.
//
//   None --connect--> Starting --MoverReady--> Serving
//                        ^  |                     |
//                        |  +----it has ended-----+
//                        |            v
//                        +--pause-- Resting
//
// A mover that ends while it is Starting has *failed*. The daemon starts the next one after a pause that doubles with
// each failure. Until a mover is Serving the memory of connected seats cannot leave its GPU (why_not).
//
// A mover outlives its daemon for its seats. The next daemon of the same folder takes it over (TakingOver): the mover
// hands over the books, all host memory and its seats, and then it is Serving. If that takes longer than
// kTakeOverPatience, the mover stays with its seats until they end, and gets no other seat: None. The kernel says that
// the mover is of the daemon's user. A private daemon has a folder of its own, so it never reaches the system's mover.
//
// The daemon asks a Serving mover at each look. The daemon kills a mover that has not answered for kSilentLooks looks
// in a row, and starts the next one. A mover that answers may stand still on a GPU, in a call of the driver. The daemon
// says so, and no more: the other GPUs' seats need that mover.
//
// A Serving mover that has had no seat for kIdleLooks looks in a row is left, and ends by itself: None. Not before its
// doorkeepers have ended, for the next mover would not know of them. The daemon's own end kills it.
//
// Where the daemon's end is the mover's, too (in a container), host memory is attached at a folder. There the books,
// the chunks, the seats and the mover have names (host_names.h), and tell the next daemon what a mover would hand over.
// That daemon starts a mover for them when the earlier one has ended.
//
// The door, where a mover listens for the next daemon, is bound by the daemon that starts this mover. So its name
// always belongs to the newest mover of the folder's lock.
//
// A seat that asks for a connection and cannot have one at once waits until it can. A seat whose process has lost its
// connection to the daemon keeps its content until the process has ended.
//
// On the loop's thread.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/host_names.h"
#include "daemon/tenants/mover_process.h"
#include "os/file_descriptor.h"
#include "wire/mover_messages.h"

namespace gpumux::daemon {

class NodeMover {
 public:
  // A guess: a take-over takes some milliseconds.
  static constexpr base::Duration kTakeOverPatience = std::chrono::seconds(3);
  // A mover without a seat at so many looks in a row ends. A guess: a program that follows another one at once finds
  // the mover there.
  static constexpr std::size_t kIdleLooks = 5;
  // A guess. The thread that answers waits for nothing but unused host memory that goes back, for less than a second.
  static constexpr std::size_t kSilentLooks = 30;

  // `program`: e.g. /usr/libexec/gpumux/gpumux-mover. `door`: the socket where a mover listens for its next daemon.
  // REQUIRES: the caller holds the lock of the door's folder.
  NodeMover(boost::asio::io_context& io, HostMemory& host, std::string program, std::string door);
  ~NodeMover();
  NodeMover(const NodeMover&) = delete;
  NodeMover& operator=(const NodeMover&) = delete;

  // Takes over the mover that an earlier daemon has left, or what that mover had. Before the first tenant.
  void take_over();

  // Every seat without a connection may ask for one: a mover serves, or an earlier daemon's was not taken over.
  void on_may_connect(std::function<void()> callback) { on_may_connect_ = std::move(callback); }
  // why_not() has changed.
  void on_why_not(std::function<void()> callback) { on_why_not_ = std::move(callback); }
  // Whether the process is a mover that this daemon has started or taken over.
  bool is_its(pid_t pid) const;
  // Why no mover can be started, for people. Empty: one serves, or none has failed since one did.
  const std::string& why_not() const { return why_not_; }

  // A seat of a process. It has its content even if its connection to the daemon ends and comes back.
  struct Seat {
    pid_t pid = 0;
    std::uint64_t process_start = 0;  // process_info.h; 0: not known
    std::uint32_t slot = 0;
    auto operator<=>(const Seat&) const = default;
  };
  // The seat gets a new connection (on_connected), or waits until it can have one (on_may_connect). `account`: its
  // key. `domain`: seats of one trust domain hand physical memory over to each other; empty: this one does not.
  // `asker`: two sessions of one process may have the same seat, after a fork that no library has seen.
  void connect(const Seat& seat, base::TenantId asker, const base::GpuUuid& gpu, std::uint64_t account,
               const std::string& domain);
  // The asker's end of a connection that it asked for.
  void on_connected(std::function<void(const Seat&, base::TenantId, const os::FileDescriptor&)> callback) {
    on_connected_ = std::move(callback);
  }
  // Whether the seat has a connection to this mover, as far as the daemon can tell, or the mover makes one.
  bool has_connection(const Seat& seat) const;
  // Whether the seat has been connected to this mover and may have content there, or waits for a connection.
  bool knows(const Seat& seat) const;
  // The seat's process has connected again, with a connection to a mover. False: this daemon's mover is another one.
  bool is_back(const Seat& seat, base::TenantId asker);
  // The seat may have so many bytes of host memory.
  void bound(const Seat& seat, std::uint64_t most);
  // The seat is closed.
  void closed(const Seat& seat);
  // This session's connection to the daemon has ended.
  void left(const Seat& seat, base::TenantId asker);
  // About once a second.
  void look();
  // Host memory for it (HostMemory::on_lent).
  void lent(std::uint64_t chunk);

 private:
  struct Unsent {
    std::vector<std::byte> bytes;
    int lent = -1;  // a descriptor of the host memory's
    os::FileDescriptor own;
  };

  using Process = MoverProcess;
  struct None {};
  struct Starting {
    Process process;
    std::size_t looks = 0;
  };
  struct TakingOver {
    Process process;
  };
  struct Serving {
    Process process;
    bool answers = false;                  // an older one does not know how
    std::uint32_t ending_doorkeepers = 0;  // by its last answer
    std::size_t silent_looks = 0;          // since its last answer
    std::size_t still_looks = 0;           // at which it has stood still on a GPU, in a row
  };
  // `process`: the last mover, until it has ended.
  struct Resting {
    Process process;
    base::TimePoint since{};
  };

  // Of a seat.
  enum class Connection {
    kNone,
    kAwaited,  // it has asked for one
    kAsked,    // and the mover, too
    kGiven,    // to the mover that runs, as far as the daemon can tell
  };
  struct Known {
    std::uint64_t number = 0;  // by which the mover knows the seat; 0: it does not, and has no content of the seat's
    std::uint64_t most = 0;    // host memory that it may have, bytes
    base::TenantId asker{};    // whose session has asked for a connection, or come back with one, last
    Connection connection = Connection::kNone;
    bool has_left = false;  // its process has lost its connection to the daemon
  };

  void find_kept();
  void add_seat(const Seat& seat, std::uint64_t number);
  bool is_taking_over() const { return std::holds_alternative<TakingOver>(state_); }
  base::Status start();
  bool is_running() const { return socket_.is_open(); }
  void lost(std::string_view why);
  void rest(Process process);
  void wait_to_start(base::Duration pause);
  void say_why(std::string why);
  void drop();
  void fail(std::string why);
  void rested();
  void ask(Serving& serving);
  void retire();
  bool has_seat() const;
  static bool has_ended(const Seat& seat);
  void hear();
  void wait_read();
  void wait_write();
  void flush();
  template <class Message>
  void send(const Message& message, int lent = -1, os::FileDescriptor own = {});
  void send_chunk(std::uint64_t number, std::uint64_t loan);
  void on(const wire::MoverHostWanted& wanted, os::FileDescriptor);
  void on(const wire::MoverHostReturned& returned, os::FileDescriptor);
  void on(const wire::MoverReady& ready, os::FileDescriptor);
  void on(const wire::MoverAnswered& answered, os::FileDescriptor);
  void on(const wire::MoverConnected& connected, os::FileDescriptor connection);
  void on(const wire::MoverBooks& books, os::FileDescriptor file);
  void on(const wire::MoverHost& host, os::FileDescriptor file);
  void on(const wire::MoverSeat& seat, os::FileDescriptor);
  static wire::MoverSeat describe(const Seat& seat, const Known& known);

  boost::asio::io_context& io_;
  HostMemory& host_;
  const std::string program_;
  const std::string door_;
  HostNames names_;
  std::function<void()> on_may_connect_ = [] {};
  std::function<void()> on_why_not_ = [] {};
  std::function<void(const Seat&, base::TenantId, const os::FileDescriptor&)> on_connected_ = [](const auto&, auto,
                                                                                                 const auto&) {};
  os::FileDescriptor books_;
  std::uint32_t slots_ = 0;
  std::map<std::uint64_t, std::uint64_t> loans_;  // by the chunk's number in the books
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer again_;  // taking over, resting, and before seats connect after a failed take-over
  std::deque<Unsent> unsent_;
  std::variant<None, Starting, TakingOver, Serving, Resting> state_;
  base::Duration pause_;  // before the next start
  // A mover that has been left, and may not have ended yet.
  struct Retired {
    Process process;
    std::map<std::uint64_t, std::uint64_t> loans;
  };
  std::vector<Retired> retired_;
  std::size_t idle_looks_ = 0;  // at which the mover has had no seat, in a row
  std::string why_not_;
  std::uint64_t last_number_ = 0;
  std::map<std::string, std::uint64_t> domains_;  // of the seats, by number
  std::uint64_t last_domain_ = 0;
  std::map<Seat, Known> seats_;
};

}  // namespace gpumux::daemon
