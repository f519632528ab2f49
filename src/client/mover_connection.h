// SPDX-License-Identifier: Apache-2.0
// A seat's connection to the node's mover (wire/mover_messages.h). The daemon gives it, and gives another one if the
// mover has been started again, or the seat has lost it.
//
// The agent's thread: offer, withdraw. One thread that steps the seat's jobs: the functions of pager::MoverLink. Any:
// forget.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/lock.h"
#include "client/kept_memory.h"
#include "os/file_descriptor.h"
#include "os/kept_descriptor.h"
#include "pager/mover_link.h"
#include "wire/mover_messages.h"

namespace gpumux::client {

class MoverConnection final : public pager::MoverLink {
 public:
  explicit MoverConnection(bool verifies) : verifies_(verifies) {}
  ~MoverConnection() = default;
  MoverConnection(const MoverConnection&) = delete;
  MoverConnection& operator=(const MoverConnection&) = delete;

  // A connection. An earlier one is closed.
  // `number`: the daemon's.
  void offer(os::FileDescriptor socket, std::uint32_t number = 0);
  std::uint32_t number() const { return number_.load(std::memory_order_relaxed); }
  // Whether there is one, and the mover at its end has not gone. Any thread.
  bool is_connected();
  // In a forked child: the parent's connection is not the child's.
  void close_after_fork();

  // The number of its loss, if the connection is lost; otherwise 0.
  std::uint64_t lost() const {
    const std::uint64_t number = connection();
    return number % 2 == 0 ? number : 0;
  }
  std::uint64_t connection() const override { return connections_.load(std::memory_order_acquire); }
  bool wants_names() override;
  void name_all(std::span<const Named> all) override;
  bool save(std::uint64_t ticket, std::uint64_t chunk, const pager::Saved& saved, int memory, bool may_keep) override;
  bool load(std::uint64_t ticket, std::uint64_t chunk, const pager::Saved& saved, int memory) override;
  void cancel(std::uint64_t ticket) override;
  void forget(std::uint64_t chunk, const pager::Saved& saved, bool are_copies) override;
  void give(std::uint64_t ticket, bool is_released) override;
  void make_way(std::uint64_t bytes) override;
  bool may_keep_frame() override { return memory_.has_space(); }
  std::optional<Answer> next() override;
  void wait() override;

 private:
  template <class Message>
  bool send(const Message& message, const pager::Saved& saved, int memory) GPUMUX_REQUIRES(mutex_);
  bool send_bytes(std::span<const std::byte> bytes, int memory) GPUMUX_REQUIRES(mutex_);
  void send_unsaid() GPUMUX_REQUIRES(mutex_);
  template <class Message>
  void send_or_keep(const Message& message, const pager::Saved& saved) GPUMUX_REQUIRES(mutex_);
  void lose() GPUMUX_REQUIRES(mutex_);

  const bool verifies_;
  KeptMemory memory_;                          // outlives connections
  std::atomic<std::uint64_t> connections_{0};  // begun and lost; odd: there is one
  std::atomic<std::uint32_t> number_{0};       // of the latest one
  base::Mutex mutex_;
  os::KeptDescriptor socket_ GPUMUX_GUARDED_BY(mutex_);
  std::vector<std::vector<std::byte>> unsaid_ GPUMUX_GUARDED_BY(mutex_);  // messages that may come late, in order
  bool wants_names_ GPUMUX_GUARDED_BY(mutex_) = false;                    // name_all follows, on this connection
  std::deque<std::vector<std::byte>> names_ GPUMUX_GUARDED_BY(mutex_);    // of name_all: not sent yet
  alignas(8) std::byte buffer_[wire::kMostMoverBytes] GPUMUX_GUARDED_BY(mutex_);
};

}  // namespace gpumux::client
