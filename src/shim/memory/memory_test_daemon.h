// SPDX-License-Identifier: Apache-2.0
// For memory_test: the daemon at the other end of the process's tenant. It grants, revokes and changes the room as fast
// as it can. It connects the seat to a mover. It checks each report against the bounds that it has set. It runs in a
// thread of its own.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "os/futex.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "pager/pager_test_support.h"
#include "shim/tenant/tenant.h"

namespace gpumux::shim {

using namespace std::chrono_literals;
using namespace cuda;
using pager::kMebibyte;

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

inline unsigned seed() {
  static const unsigned value = [] {
    const auto chosen = static_cast<unsigned>(from_environment("GPUMUX_TEST_SEED", std::random_device()()));
    std::printf("seed: GPUMUX_TEST_SEED=%u\n", chosen);
    return chosen;
  }();
  return value;
}

// The memory that the simulated GPU has for one process, without its context's.
constexpr std::uint64_t kCapacity = 48 * kMebibyte;
constexpr std::uint64_t kCommitment = 44 * kMebibyte;

enum class Phase { kIdle, kHolding, kRevoked, kDrained };

// Whether the driver is sure to be without memory for as long as it takes to claim it, while the room stays. With a
// sanitizer it was not so in one of three runs.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeetsClaims = false;
#else
constexpr bool kMeetsClaims = true;
#endif

class RoomDaemon {
 public:
  explicit RoomDaemon(const std::string& path) : path_(path), random_(seed()) {
    mover_.start();
    thread_ = std::thread([this] { run(); });
  }
  ~RoomDaemon() {
    stopping_ = true;
    thread_.join();
    if (page_ != nullptr) ::munmap(page_, wire::kLeasePageBytes);
  }

  // Grants what is asked for and gives all the room there is, and does nothing else.
  void calm(bool is) { calm_ = is; }

  // Once, in its own thread: before it refuses the next wish.
  void before_refusing(std::function<void()> act) {
    const std::lock_guard lock(mutex_);
    before_refusing_ = std::move(act);
  }

  // Under a sanitizer, or on a busy machine, memory moves too slowly for these moods.
  void slow_down() { slowness_ = std::min(2 * slowness_, 64u); }

  std::string complaints() {
    const std::lock_guard lock(mutex_);
    return complaints_;
  }
  std::uint64_t rooms() const { return rooms_; }
  std::uint64_t grants() const { return grants_; }
  std::uint64_t reports() const { return reports_; }
  std::uint64_t refusals() const { return refusals_; }
  std::uint64_t claims() const { return claims_; }
  wire::Memory last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  void complain(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (complaints_.size() < 4000) complaints_ += what + "\n";
  }
  unsigned dice(unsigned sides) { return static_cast<unsigned>(random_() % sides); }

  void run() {
    auto listening = os::listen_seqpacket(path_, 0600, 4);
    if (!listening) return complain(listening.error().message());
    while (!stopping_) {
      std::array<pollfd, 2> waiting{{{listening->get(), POLLIN, 0}, {socket_ ? socket_.get() : -1, POLLIN, 0}}};
      const timespec wait{0, 50'000};
      ::ppoll(waiting.data(), waiting.size(), &wait, nullptr);
      if ((waiting[0].revents & POLLIN) != 0) {
        socket_ = os::FileDescriptor(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        is_open_ = false;
      }
      if ((waiting[1].revents & (POLLIN | POLLHUP)) != 0) receive();
      if (!socket_ || !is_open_) continue;
      if (os::now() >= next_whim_) act();
      if (!calm_ && os::now() >= next_room_) change_room();
      // Gone for a moment: everything is kept, and told to the next connection.
      if (!calm_ && dice(20'000) == 0) socket_.reset();
    }
  }

  void receive() {
    std::array<std::byte, base::kMaxMessageBytes> buffer;
    while (socket_) {
      auto received = os::receive_message(socket_.get(), buffer);
      if (!received && received.error().system_errno == EAGAIN) return;
      if (!received || received->bytes == 0) return socket_.reset();
      const auto message = wire::decode_from_tenant(std::span(buffer).first(received->bytes));
      if (!message) {
        complain(message.error().message());
        continue;
      }
      if (std::holds_alternative<wire::Hello>(*message)) {
        if (page_ == nullptr) {
          page_ = static_cast<wire::LeasePage*>(
              ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, received->fd.get(), 0));
        }
        send(wire::Welcome{.protocol = wire::kProtocolVersion, .tenant = 1});
        continue;
      }
      std::visit([this](const auto& m) { on(m); }, *message);
      const auto* const report = std::get_if<wire::Memory>(&*message);
      just_reported_ = report != nullptr ? std::optional(*report) : std::nullopt;
    }
  }

  template <class Message>
  void send(const Message& message, int fd = -1) {
    if (socket_ && !os::send_message(socket_.get(), wire::encode(message).bytes(), fd)) socket_.reset();
  }

  // ---- memory

  void give_room(std::uint64_t room, std::uint32_t refused = 0) {
    // The old room may be in force until the new one is acknowledged.
    ++sequence_;
    given_.push_back({sequence_, room});
    ++rooms_;
    send(wire::Room{.slot = 0,
                    .sequence = sequence_,
                    .room = room,
                    .commitment = kCommitment,
                    .total = kCapacity,
                    .ticket = ticket_,
                    .refused = refused});
  }

  // In bursts that nothing can follow, and between them long enough that memory moves.
  void change_room() {
    next_room_ = os::now() + std::chrono::microseconds(dice(10) != 0 ? 0 : slowness_ * dice(30'000));
    switch (dice(4)) {
      case 0: return give_room(0);
      case 1: return give_room(kCapacity);
      default: return give_room(dice(kCapacity / kMebibyte) * kMebibyte);
    }
  }

  void on(const wire::Memory& memory) {
    ++reports_;
    std::uint64_t on_gpu = memory.resident;
    for (const std::uint64_t bytes : memory.unpageable) on_gpu += bytes;
    // The most that it may have: by any bound since the one in force last time, or what it had then.
    std::uint64_t most = had_;
    for (const Given& given : given_) most = std::max(most, given.room);
    while (!given_.empty() && given_.front().sequence < memory.room_sequence) given_.pop_front();
    if (memory.room_sequence != 0 && on_gpu > most) {
      complain("has " + std::to_string(on_gpu) + " where it may have " + std::to_string(most));
    }
    if (memory.room_sequence != 0 && memory.allocated > kCommitment) complain("has allocated more than it may");
    if (memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kPool)] != 0) complain("a pool is the driver's");
    had_ = on_gpu;
    // All has moved that had to.
    const bool is_settled = memory.room_sequence == sequence_ && !given_.empty() && on_gpu <= given_.back().room;
    if (phase_ == Phase::kDrained && is_settled && !calm_) next_whim_ = os::now();
    if (memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kOther)] != 0) ++claims_;
    const std::lock_guard lock(mutex_);
    last_ = memory;
  }

  void on(const wire::RoomWanted& wanted) {
    if (wanted.ticket == 0) complain("a wish without a ticket");
    if (!just_reported_) complain("a wish without a report of what the seat has");
    ticket_ = wanted.ticket;
    const bool refuse = wanted.room > kCapacity || wanted.commitment > kCommitment;
    if (refuse) {
      std::unique_lock lock(mutex_);
      const auto act = std::exchange(before_refusing_, nullptr);
      lock.unlock();
      if (act) act();
      ++refusals_;
    }
    give_room(refuse ? kCapacity : std::max(wanted.room, kCapacity / 2), refuse ? 1 : 0);
  }

  // ---- leases

  void on(const wire::SeatOpen& open) {
    if (open.slot != 0) complain("another slot");
    wanted_ = false;
    switch (open.state) {
      case wire::SeatState::kHolding: phase_ = Phase::kHolding; break;
      case wire::SeatState::kDraining: phase_ = Phase::kRevoked; break;
      default: phase_ = Phase::kIdle;
    }
    is_open_ = true;
    // This connection counts from anew. The room given before may still be in force.
    std::uint64_t most = had_;
    for (const Given& given : given_) most = std::max(most, given.room);
    had_ = most;
    given_.clear();
    sequence_ = 0;
    ticket_ = 0;
    send(wire::SeatOpened{.slot = 0, .gpu_index = 0});
    if (open.has_mover == 0) connect_to_mover();
    give_room(kCapacity);
  }
  void on(const wire::MoverWanted&) { connect_to_mover(); }
  void connect_to_mover() {
    const os::FileDescriptor end = mover_.connect(1);
    send(wire::MoverOpened{.slot = 0, .number = ++mover_connections_}, end.get());
  }
  void on(const wire::Request&) { wanted_ = true; }
  void on(const wire::Drained& drained) {
    if (drained.epoch != epoch_) return;
    if (drained.poisoned != 0) complain("the context is poisoned");
    phase_ = Phase::kDrained;
    if (!calm_ && dice(2) == 0) give_room(0);
    // Usually long enough to be evicted in.
    next_whim_ = os::now() + std::chrono::microseconds(dice(3) == 0 ? dice(2000) : slowness_ * dice(60'000));
  }
  template <class Other>
  void on(const Other&) {}

  void act() {
    wire::LeaseSlot& words = page_->slots[0];
    next_whim_ = os::now() + std::chrono::microseconds(dice(3000));
    switch (phase_) {
      case Phase::kIdle:
      case Phase::kDrained:
        if (!wanted_ && dice(20) != 0) break;
        wanted_ = false;
        phase_ = Phase::kHolding;
        ++grants_;
        words.epoch.store(++epoch_, std::memory_order_relaxed);
        store(wire::kGranted | wire::kExclusive);
        break;
      case Phase::kHolding:
        if (calm_) {
          give_room(kCapacity);
          break;
        }
        if (dice(3) == 0) words.word.fetch_or(wire::kContended);
        if (dice(3) != 0) break;
        store(0);
        phase_ = Phase::kRevoked;
        send(wire::Revoke{.slot = 0, .epoch = epoch_});
        if (dice(4) == 0) send(wire::PrepareSwapOut{.slot = 0, .epoch = epoch_, .managed = kCapacity});
        // The seat asks for another one.
        if (dice(64) == 0) connect_to_mover();
        break;
      case Phase::kRevoked:
        if (dice(4) != 0) break;
        phase_ = Phase::kHolding;
        words.epoch.store(++epoch_, std::memory_order_relaxed);
        store(wire::kGranted | wire::kExclusive);
        send(wire::Reopen{.slot = 0, .epoch = epoch_});
        break;
    }
  }

  void store(std::uint32_t flags) {
    word_sequence_ += wire::kSequenceOne;
    page_->slots[0].word.store(flags | word_sequence_, std::memory_order_release);
    os::futex_wake(page_->slots[0].word, os::FutexScope::kShared);
  }

  struct Given {
    std::uint32_t sequence;
    std::uint64_t room;
  };

  const std::string path_;
  std::mt19937 random_;
  pager::HostFiles files_;
  const os::FileDescriptor books_ = pager::TestMover::make_books();
  pager::TestMover mover_{pager::faulty_mover_driver(), files_, books_.get()};
  os::FileDescriptor socket_;
  wire::LeasePage* page_ = nullptr;
  bool is_open_ = false;
  bool wanted_ = false;
  Phase phase_ = Phase::kIdle;
  std::uint64_t epoch_ = 0;
  std::uint32_t word_sequence_ = 0;
  base::TimePoint next_whim_{};
  base::TimePoint next_room_{};
  std::uint32_t sequence_ = 0;
  std::uint32_t ticket_ = 0;
  std::deque<Given> given_;
  std::optional<wire::Memory> just_reported_;  // the last message, if that was a report
  std::uint64_t had_ = 0;
  std::uint32_t mover_connections_ = 0;
  std::atomic<std::uint64_t> claims_{0};
  std::atomic<std::uint64_t> rooms_{0}, grants_{0}, reports_{0}, refusals_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> calm_{false};
  std::atomic<unsigned> slowness_{1};
  std::mutex mutex_;
  std::string complaints_;
  std::function<void()> before_refusing_;
  wire::Memory last_;
  std::thread thread_;
};

}  // namespace gpumux::shim
