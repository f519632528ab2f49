// SPDX-License-Identifier: Apache-2.0
// What the pagers of two processes are lent by: host memory that is all there beforehand, and frames that the processes
// pass to each other over a socket.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "os/file_descriptor.h"
#include "os/unix_socket.h"
#include "pager/pager.h"
#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {

// Huge pages, all there before a pager wants them.
class PopulatedHostMemory final : public pager::HostMemory {
 public:
  explicit PopulatedHostMemory(std::uint64_t bytes) {
    bytes_ = pager::round_up(bytes, pager::kHostChunkBytes);
    void* const memory =
        ::mmap(nullptr, bytes_ + pager::kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("no host memory");
    base_ = reinterpret_cast<std::byte*>(pager::round_up(reinterpret_cast<std::uintptr_t>(memory), pager::kBlockBytes));
    ::madvise(base_, bytes_, MADV_HUGEPAGE);
    std::vector<std::thread> threads;
    const std::uint64_t share = pager::round_up(bytes_ / 16, pager::kBlockBytes);
    for (std::uint64_t at = 0; at < bytes_; at += share)
      threads.emplace_back([this, at, share] { std::memset(base_ + at, 0, std::min(share, bytes_ - at)); });
    for (std::thread& thread : threads) thread.join();
    for (std::uint64_t at = 0; at < bytes_; at += pager::kHostChunkBytes) free_.push_back(base_ + at);
  }
  std::optional<pager::HostChunk> lend(std::uint64_t) override {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::nullopt;
    std::byte* const chunk = free_.back();
    free_.pop_back();
    lent_.push_back(chunk);
    return pager::HostChunk{chunk, pager::kHostChunkBytes, 0};
  }
  void give_back(const pager::HostChunk& chunk) override {
    const std::lock_guard lock(mutex_);
    free_.push_back(chunk.address);
    lent_.erase(std::find(lent_.begin(), lent_.end(), chunk.address));
  }
  std::vector<std::byte*> lent() {
    const std::lock_guard lock(mutex_);
    return lent_;
  }

 private:
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::byte*> free_;
  std::vector<std::byte*> lent_;
};

// The frames that the two processes hand over to each other. Each keeps the descriptors that it has heard of, and says
// to the other one what it gives and what it has freed.
class PassedFrames final : public pager::Frames {
 public:
  enum class To { kNobody, kOther, kSelf };

  // `number`: 1 or 2, of this process.
  PassedFrames(int socket, std::uint64_t number) : socket_(socket), next_(number) {}

  bool wants(std::uint64_t, std::uint64_t) override { return to_ != To::kNobody; }
  base::FrameSizes at_hand() override {
    receive();
    base::FrameSizes sizes = 0;
    for (const auto& [bytes, numbers] : here_) sizes |= numbers.empty() ? 0 : base::frame_size(bytes);
    return sizes;
  }
  void give(std::uint64_t number, std::uint64_t bytes, int fd) override {
    if (number == 0) {
      number = next_;
      next_ += 2;
      known_[number].fd = os::FileDescriptor(fd);
    }
    if (to_ == To::kSelf) return here_[bytes].push_back(number);
    Known& known = known_.at(number);
    send({number, bytes}, known.to_both ? -1 : known.fd.get());
    known.to_both = true;
  }
  std::optional<Lent> take(std::uint64_t bytes) override {
    receive();
    auto& of_size = here_[bytes];
    if (of_size.empty()) return std::nullopt;
    const std::uint64_t number = of_size.back();
    of_size.pop_back();
    return Lent{number, ::dup(known_.at(number).fd.get())};
  }
  void drop() override {}
  void freed(std::uint64_t number) override {
    if (known_.at(number).to_both) send({number, 0}, -1);
    known_.erase(number);
  }
  int descriptor(std::uint64_t) override { return -1; }

  // From now on `to` gets the frames that are given.
  void set(To to) {
    receive();
    to_ = to;
  }

 private:
  struct Message {
    std::uint64_t number;
    std::uint64_t bytes;  // 0: freed
  };
  void send(const Message& message, int fd) const {
    while (!os::send_message(socket_, std::as_bytes(std::span(&message, 1)), fd)) sleep_ns(10'000);  // it is full
  }
  void receive() {
    for (;;) {
      Message message{};
      auto received = os::receive_message(socket_, std::as_writable_bytes(std::span(&message, 1)));
      if (!received || received->bytes != sizeof message) return;
      if (received->fd) known_[message.number] = {std::move(received->fd), true};
      if (message.bytes != 0) {
        here_[message.bytes].push_back(message.number);
      } else {
        known_.erase(message.number);
      }
    }
  }

  const int socket_;
  std::uint64_t next_;
  To to_ = To::kNobody;
  struct Known {
    os::FileDescriptor fd;
    bool to_both = false;
  };
  std::map<std::uint64_t, Known> known_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> here_;  // given to this one, by size
};

}  // namespace gpumux::tests
