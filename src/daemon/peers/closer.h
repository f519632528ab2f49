// SPDX-License-Identifier: Apache-2.0
// Closes descriptors that strangers have made, so that the loop never waits for a close.
//
// Why: close() can take long. A TCP socket that lingers sleeps for its SO_LINGER. A connection's unread messages hold
// descriptors, which its end drops. The last descriptor of memory frees the memory.
//
// Two kinds are closed in two ways:
//
//   a connection             at once, by its owner, if nothing lies in it unread; else by the connections' thread. The
//                            kernel drops unread descriptors without asking their file system. So only lingering can
//                            wait, and a signal every kInterruptEvery ends that.
//   a received descriptor    by a thread of its account. It is harmless (daemon/peers/doorkeeper.h): closing it takes
//                            as long as its memory is large, and asks no stranger.
//
// The bounds, which tenants cannot pass:
//
//   unclosed connections     kMaxUnclosedConnections, a turn's accepted ones, and those that were admitted: no
//                            connection is accepted while is_behind()
//   received and unclosed    kMaxUnclosed for each account, and one for each of its connections: no message with a
//                            descriptor is received while an account has kMaxUnclosed
//   threads                  one for the connections, one for each account that has sent descriptors
//
// A lane is the connections', or an account's. A lane that can have no thread tries again when something is added to
// it, and when a caller asks how much is unclosed.
//
// Any thread may call anything here. A thread outlives the closer while it is still closing.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "server/peers/account.h"

namespace gpumux::daemon {

// A lingering socket delays the others of its thread by this. Shorter: signals cost more than closing does.
inline constexpr std::chrono::milliseconds kInterruptEvery{1};

// Fewer would slow down the hand-over of frames, which are closed by the same thread.
inline constexpr std::size_t kMaxUnclosed = 256;

// A quarter of a second of the connections' thread, if a lingering socket lies in each.
inline constexpr std::size_t kMaxUnclosedConnections = 256;

class Closer {
 public:
  Closer();
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  void drop(os::FileDescriptor connection);
  // No connection may be accepted: too many are not closed yet.
  bool is_behind() const;

  void close(os::FileDescriptor received, const server::Account& account);
  // Received from this account, handed over, and not closed yet.
  std::size_t unclosed(const server::Account& account) const;

 private:
  struct State;
  struct Queue;
  using Lane = std::optional<server::Account>;  // none: the connections'
  void add(os::FileDescriptor fd, const Lane& name);
  std::size_t unclosed_in(const Lane& name) const;
  // Under the state's mutex.
  static base::Status start(const std::shared_ptr<State>& state, const Lane& name, Queue& lane);
  static void run(const std::shared_ptr<State>& state, const Lane& name);
  std::shared_ptr<State> state_;
};

// A stranger's connection, with one owner. However it is dropped, the loop does not wait.
class ForeignConnection {
 public:
  ForeignConnection(os::FileDescriptor fd, Closer& closer) : fd_(std::move(fd)), closer_(&closer) {}
  ForeignConnection(ForeignConnection&&) noexcept = default;
  ForeignConnection& operator=(ForeignConnection&&) = delete;
  ~ForeignConnection() {
    if (fd_) closer_->drop(std::move(fd_));
  }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  // For an owner that has the closer drop it, too.
  int release() { return fd_.release(); }

 private:
  os::FileDescriptor fd_;
  Closer* closer_;
};

// A harmless descriptor that came with a stranger's message, with one owner. However it is dropped, the closer closes
// it.
class ForeignDescriptor {
 public:
  ForeignDescriptor() = default;
  ForeignDescriptor(os::FileDescriptor fd, Closer& closer, const server::Account& account)
      : fd_(std::move(fd)), closer_(&closer), account_(account) {}
  // Of a file that the daemon or a test has made itself: closed where it is dropped.
  explicit ForeignDescriptor(os::FileDescriptor own) : fd_(std::move(own)) {}
  ForeignDescriptor(ForeignDescriptor&& other) noexcept = default;
  ForeignDescriptor& operator=(ForeignDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
      closer_ = other.closer_;
      account_ = other.account_;
    }
    return *this;
  }
  ~ForeignDescriptor() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset() {
    if (fd_ && closer_ != nullptr) closer_->close(std::move(fd_), account_);
    fd_.reset();
  }

 private:
  os::FileDescriptor fd_;
  Closer* closer_ = nullptr;
  server::Account account_;
};

}  // namespace gpumux::daemon
