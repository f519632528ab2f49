// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

// A guess: a burst of connections is taken soon, and tenants' messages wait little for it. As kMessagesPerTurn.
constexpr int kAcceptsPerTurn = 16;
// A process or machine that is out of descriptors gets some back when others close theirs; trying at once would only
// burn time.
constexpr auto kAcceptPause = 100ms;

}  // namespace

UnixListener::UnixListener(asio::io_context& io, Closer& closer, Accepted accepted, std::function<void()> turn_ended)
    : closer_(closer), accepted_(std::move(accepted)), turn_ended_(std::move(turn_ended)), socket_(io), pause_(io) {}

void UnixListener::listen(os::FileDescriptor socket) {
  close();
  socket_.assign(socket.release());
  wait();
}

bool UnixListener::has_pending() {
  if (!socket_.is_open()) return false;
  pollfd poller{socket_.native_handle(), POLLIN, 0};
  return ::poll(&poller, 1, 0) == 1;
}

void UnixListener::wait() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [this, generation = generation_](const boost::system::error_code& error) {
                       if (error || generation != generation_) return;
                       accept_some();
                       turn_ended_();
                     });
}

void UnixListener::wait_after(std::chrono::milliseconds time) {
  pause_.expires_after(time);
  pause_.async_wait([this, generation = generation_](const boost::system::error_code& error) {
    if (!error && generation == generation_) wait();
  });
}

void UnixListener::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (closer_.is_behind()) return wait_after(kInterruptEvery);
    os::FileDescriptor socket(::accept4(socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) {
        is_short_ = false;
        break;
      }
      if (!std::exchange(is_short_, true))
        server::log_error("cannot accept connections; trying again and again", {{"why", std::strerror(errno)}});
      return wait_after(kAcceptPause);
    }
    try {
      accepted_(ForeignConnection(std::move(socket), closer_));
    } catch (const std::exception& e) {
      server::log_error("cannot take a connection", {{"why", e.what()}});
    }
  }
  wait();
}

void UnixListener::drain(os::FileDescriptor socket, Closer& closer, std::vector<ForeignConnection>& left) {
  // No connection comes after this. The connections that are there would otherwise be closed with the socket, in this
  // thread.
  ::shutdown(socket.get(), SHUT_RDWR);
  for (;;) {
    os::FileDescriptor connection(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      left.emplace_back(std::move(connection), closer);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // Without a descriptor to be had, the rest is closed with the socket.
      if (errno != EAGAIN && errno != EINVAL) closer.drop(std::move(socket));
      return;
    }
  }
}

void UnixListener::close() {
  ++generation_;
  pause_.cancel();
  if (!socket_.is_open()) return;
  std::vector<ForeignConnection> left;
  drain(os::FileDescriptor(socket_.release()), closer_, left);
}

}  // namespace gpumux::daemon
