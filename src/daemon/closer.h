// SPDX-License-Identifier: Apache-2.0
// Closes strangers' descriptors, so that the loop never does.
//
// The rule: the loop closes no descriptor that a stranger has made, and no connection in which a stranger's descriptor
// may lie unread; both go to the closer, and count for the stranger's account until they are closed.
//
// Why: close() takes as long as the file's maker likes. A TCP socket that lingers sleeps for its SO_LINGER; a file of a
// FUSE file system waits for its server. A connection's unread messages hold descriptors, which its end drops.
//
// Each account has a thread of its own while it has something to be closed: an account can delay only itself. A signal
// every kInterruptEvery ends the waits that a signal can end, which lingering is. The others (FUSE) leave one thread
// and what is queued behind it; the account's limits bound that (Admission; kMaxUnclosed).
//
// Any thread may call anything here. The threads outlive the closer: they may be waiting for ever.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "daemon/account.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

inline constexpr std::chrono::milliseconds kInterruptEvery{10};

// An account with this many descriptors that are not closed yet is not read from: a few messages with as many
// descriptors as the kernel lets travel, far more than an honest tenant ever has waiting.
inline constexpr std::size_t kMaxUnclosed = 1024;

class Closer {
 public:
  Closer();
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  void close(os::FileDescriptor fd, const Account& account);
  // Handed over for this account, and not closed yet.
  std::size_t unclosed(const Account& account) const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state, const Account& account);
  std::shared_ptr<State> state_;
};

// A descriptor that a stranger has made, with one owner. However it is dropped, the closer closes it.
class ForeignDescriptor {
 public:
  ForeignDescriptor() = default;
  ForeignDescriptor(os::FileDescriptor fd, Closer& closer, const Account& account)
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
  // For an owner that hands it to the closer, too.
  os::FileDescriptor take() { return std::move(fd_); }
  void reset() {
    if (fd_ && closer_ != nullptr) closer_->close(std::move(fd_), account_);
    fd_.reset();
  }

 private:
  os::FileDescriptor fd_;
  Closer* closer_ = nullptr;
  Account account_;
};

}  // namespace gpumux::daemon
