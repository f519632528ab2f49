// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/doorkeeper.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"

namespace gpumux::daemon {

namespace asio = boost::asio;

Doorkeeper::Doorkeeper(asio::io_context& io, Closer& closer) : io_(io), closer_(closer), patience_(io) {
  // Before the daemon has locks, sockets and much memory.
  current_ = open_channel();
}

Doorkeeper::~Doorkeeper() { close(); }

base::Status Doorkeeper::check() {
  if (!starter_) {
    auto started = doorkeepers::Starter::start(keep_door);
    if (!started) return tl::unexpected(started.error());
    starter_.emplace(std::move(*started));
  }
  return daemon::check(*starter_);
}

void Doorkeeper::close() {
  patience_.cancel();
  is_asked_ = false;
  current_.reset();
  spent_.clear();
  starter_.reset();
  for (auto left = std::exchange(waiting_, {}); !left.empty(); left.pop_front()) left.front().done({});
}

void Doorkeeper::receive(int connection, const server::Account& account, Done done) {
  waiting_.push_back({connection, account, std::move(done)});
  next();
}

void Doorkeeper::next() {
  while (!is_asked_ && !waiting_.empty()) {
    is_asked_ = ask(waiting_.front());
    if (is_asked_) return;
    const Request first = std::move(waiting_.front());
    waiting_.pop_front();
    first.done({});
  }
}

bool Doorkeeper::ask(const Request& request) {
  if (spent_.contains(request.account)) return false;
  if (!current_) current_ = open_channel();
  if (!current_) return false;
  const std::byte order{};
  if (const auto sent = os::send_message(current_->native_handle(), {&order, 1}, request.connection); !sent) {
    // The doorkeeper has ended without being told to.
    server::log_warning("a doorkeeper cannot be asked; another one is started", {{"why", sent.error().message()}});
    current_.reset();
    return false;
  }
  patience_.expires_after(kLookPatience);
  patience_.async_wait([this](const boost::system::error_code& error) {
    if (!error) overdue();
  });
  return true;
}

std::shared_ptr<Doorkeeper::Channel> Doorkeeper::open_channel() {
  if (!starter_) {
    auto started = doorkeepers::Starter::start(keep_door);
    if (!started) {
      server::log_error("descriptors of tenants cannot be received; trying again",
                        {{"why", started.error().message()}});
      return nullptr;
    }
    starter_.emplace(std::move(*started));
  }
  auto ours = starter_->add();
  if (!ours) {
    server::log_warning("cannot start another doorkeeper; trying again", {{"why", ours.error().message()}});
    starter_.reset();
    return nullptr;
  }
  const auto channel = std::make_shared<Channel>(io_);
  boost::system::error_code error;
  channel->assign(ours->get(), error);
  if (error) return nullptr;
  ours->release();
  wait(channel);
  return channel;
}

void Doorkeeper::wait(const std::shared_ptr<Channel>& channel) {
  channel->async_wait(asio::posix::stream_descriptor::wait_read,
                      [this, known = std::weak_ptr(channel)](const boost::system::error_code& error) {
                        if (const auto open = known.lock(); open && !error) readable(open);
                      });
}

void Doorkeeper::readable(const std::shared_ptr<Channel>& channel) {
  std::array<std::byte, kAnswerBytes> buffer;
  auto received = os::receive_message(channel->native_handle(), buffer);
  if (!received && received.error().system_errno == EAGAIN) return wait(channel);
  const bool is_current = channel == current_;
  if (!received || received->bytes < sizeof(Answer)) {
    // It has ended, and all that it had is closed.
    if (is_current) current_.reset();
    std::erase_if(spent_, [&](const auto& spent) { return spent.second == channel; });
    if (is_current && is_asked_) {
      const bool is_there = os::peek(waiting_.front().connection, {}).has_value();
      if (told_.take(os::now())) {
        server::log_warning(
            "a doorkeeper has ended by itself; another one is started",
            {{"account", waiting_.front().account.text()}, {"message", is_there ? "not received" : "lost"}});
      }
      return answer({is_there ? Look::Outcome::kBusy : Look::Outcome::kLost, {}, false, {}});
    }
    return next();
  }
  if (!is_current) {
    // An answer after all, for which no caller waits any more.
    for (const auto& [account, spent] : spent_) {
      if (spent == channel) closer_.close(std::move(received->fd), account);
    }
    return wait(channel);
  }
  wait(channel);
  Answer said;
  std::memcpy(&said, buffer.data(), sizeof said);
  if (said.outcome == Answer::Outcome::kRefused) {
    spent_[waiting_.front().account] = std::exchange(current_, nullptr);
    answer({Look::Outcome::kRefused, {}, false, {}});
  } else {
    answer({.outcome = Look::Outcome::kReceived,
            .message = std::span<const std::byte>(buffer).first(received->bytes).subspan(sizeof said),
            .was_cut = said.was_cut,
            .fd = std::move(received->fd)});
  }
}

void Doorkeeper::overdue() {
  // The timer of a request that has been answered since.
  if (!is_asked_ || patience_.expiry() > asio::steady_timer::clock_type::now()) return;
  // The daemon itself may have slept: is the answer there?
  if (os::peek(current_->native_handle(), {})) return;
  server::log_warning("a doorkeeper does not answer; another one is started",
                      {{"account", waiting_.front().account.text()}});
  // It ends when it goes on, if it ever does. Until then it may receive from this connection, which so is of no use.
  ::shutdown(current_->native_handle(), SHUT_WR);
  spent_[waiting_.front().account] = std::exchange(current_, nullptr);
  answer({Look::Outcome::kLost, {}, false, {}});
}

// The next request comes first: an exception of `done` delays no request.
void Doorkeeper::answer(Look look) {
  patience_.cancel();
  is_asked_ = false;
  const Request first = std::move(waiting_.front());
  waiting_.pop_front();
  next();
  first.done(std::move(look));
}

}  // namespace gpumux::daemon
