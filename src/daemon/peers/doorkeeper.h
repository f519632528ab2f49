// SPDX-License-Identifier: Apache-2.0
// Receives messages with descriptors, so that no stranger's descriptor comes into the daemon unless closing it never
// asks a stranger. A process does it (doorkeepers/starter.h); this is the loop's side.
//
// The rule: a doorkeeper that was sent an unknown descriptor serves no other connection. It ends, on the account that
// sent the descriptor. Another doorkeeper serves the others at once.
//
//   an account whose doorkeeper has not ended     kBusy: nothing of it is received until then. So an account keeps one
//                                                 doorkeeper at most, with the descriptors of one message.
//   a doorkeeper that says nothing                is told to end after kLookPatience, on the same terms. It asks only
//                                                 the kernel, so this needs a kernel that asks a stranger all the same,
//                                                 or a machine that stands still.
//
// Owned by the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/peers/closer.h"
#include "daemon/peers/doorkeeper_process.h"
#include "os/file_descriptor.h"
#include "server/peers/account.h"

namespace gpumux::daemon {

// Others wait as long as this in the worst case. A doorkeeper's work takes microseconds; a machine that swaps is
// slower.
inline constexpr std::chrono::seconds kLookPatience{5};

struct Look {
  enum class Outcome {
    kReceived,
    kRefused,  // the message is gone, with its descriptors
    kBusy,     // the message is still there: try again later
    kLost,     // the doorkeeper has ended, or does not answer: the message may be gone
  };
  Outcome outcome = Outcome::kBusy;
  std::span<const std::byte> message;  // empty: the other side has closed
  bool was_cut = false;                // the message is longer than kMaxMessageBytes
  os::FileDescriptor fd;               // a harmless one, if one came along
};

class Doorkeeper {
 public:
  using Done = std::function<void(Look)>;

  Doorkeeper(boost::asio::io_context& io, Closer& closer);
  ~Doorkeeper();
  Doorkeeper(const Doorkeeper&) = delete;
  Doorkeeper& operator=(const Doorkeeper&) = delete;

  // Receives the next message of a connection. REQUIRES: `connection` stays open, and no other caller reads it, until
  // `done` is called. That may be at once.
  void receive(int connection, const server::Account& account, Done done);
  // Whether descriptors can be received here at all (doorkeeper_process.h, check).
  base::Status check();
  // Stops receiving: waiting connections are told kBusy. Waits for no doorkeeper.
  void close();

 private:
  using Channel = boost::asio::posix::stream_descriptor;
  struct Request {
    int connection;
    server::Account account;
    Done done;
  };
  void next();
  bool ask(const Request& request);
  std::shared_ptr<Channel> open_channel();
  void wait(const std::shared_ptr<Channel>& channel);
  void readable(const std::shared_ptr<Channel>& channel);
  void overdue();
  void answer(Look look);

  boost::asio::io_context& io_;
  Closer& closer_;
  std::optional<doorkeepers::Starter> starter_;
  boost::asio::steady_timer patience_;
  RateLimit told_{5, 1};         // of log lines
  std::deque<Request> waiting_;  // the first one has been asked about, if is_asked_
  bool is_asked_ = false;
  std::shared_ptr<Channel> current_;                           // none: the next request needs another
  std::map<server::Account, std::shared_ptr<Channel>> spent_;  // have not ended yet
};

}  // namespace gpumux::daemon
