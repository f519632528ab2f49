// SPDX-License-Identifier: Apache-2.0
#include "mover/doors.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "wire/mover_messages.h"

namespace gpumux::mover {
namespace {

constexpr off_t kMostBytes = off_t{wire::kMostMoverBlocks} << 21;  // of a chunk

// ---- the doorkeeper

// An exported allocation: NVIDIA's device, or the simulated driver's memory file. The mover may have the last
// descriptor of it, so it must not be larger than a chunk. `memory`: a memory file of this process.
bool is_allocation(int fd, int memory) {
  if (!doorkeepers::is_harmless(fd, memory)) return false;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat file {};
  return seals < 0 || ((seals & F_SEAL_GROW) != 0 && ::fstat(fd, &file) == 0 && file.st_size <= kMostBytes);
}

// Messages of one direction: at most one has left its sender and is not with its receiver.
struct Way {
  int from = -1;
  int to = -1;
  std::vector<std::byte> held;
  os::FileDescriptor fd;  // that travels with it

  short awaits_from() const { return held.empty() ? POLLIN : 0; }
  short awaits_to() const { return held.empty() ? 0 : POLLOUT; }
};

struct Relay {
  os::FileDescriptor seat;
  os::FileDescriptor mover;
  os::FileDescriptor presence;
  Way in{seat.get(), mover.get(), {}, {}};
  Way out{mover.get(), seat.get(), {}, {}};
  bool is_ready = true;    // a socket of it has something
  bool has_ended = false;  // an end has closed: what is under way is lost, which both sides allow for
};

class Relays {
 public:
  explicit Relays(int channel) : channel_(channel), memory_(::memfd_create("gpumux-door", MFD_CLOEXEC)) {}

  [[noreturn]] void run() {
    for (;;) {
      wait();
      if (hears_channel_) hear();
      relays_.remove_if([this](Relay& relay) {
        if (!relay.is_ready || serve(relay)) return false;
        drop(relay);
        return true;
      });
    }
  }

 private:
  // Three messages for each relay, with its sockets in the order of Relay's.
  void hear() {
    for (;;) {
      std::byte nothing;
      auto order = os::receive_message(channel_, {&nothing, 1});
      if (!order && order.error().system_errno == EAGAIN) return;
      // The seats of this account are gone, or the mover is.
      if (!order || order->bytes == 0) ::_exit(EXIT_SUCCESS);
      // Without a descriptor this process has no room for more: the relay ends with its first message.
      sockets_.push_back(std::move(order->fd));
      if (sockets_.size() < 3) continue;
      relays_.push_back({std::move(sockets_[0]), std::move(sockets_[1]), std::move(sockets_[2])});
      sockets_.clear();
    }
  }

  void wait() {
    std::vector<pollfd> polled{{channel_, POLLIN, 0}};
    for (const Relay& relay : relays_) {
      polled.push_back({relay.presence.get(), POLLIN, 0});
      polled.push_back({relay.seat.get(), static_cast<short>(relay.in.awaits_from() | relay.out.awaits_to()), 0});
      polled.push_back({relay.mover.get(), static_cast<short>(relay.out.awaits_from() | relay.in.awaits_to()), 0});
    }
    ::poll(polled.data(), polled.size(), -1);
    hears_channel_ = polled[0].revents != 0;
    auto next = polled.begin() + 1;
    for (Relay& relay : relays_) {
      relay.is_ready = false;
      for (int i = 0; i < 3; ++i, ++next) {
        relay.is_ready = relay.is_ready || next->revents != 0;
        relay.has_ended = relay.has_ended || (next->revents & ~(POLLIN | POLLOUT)) != 0;
      }
    }
  }

  // False: it has ended.
  bool serve(Relay& relay) {
    return !relay.has_ended && carry(relay.in, true) && carry(relay.out, false) && answer(relay);
  }

  // Reads all that a stranger has sent before it is closed, for this process serves other seats of the account.
  void drop(const Relay& relay) {
    ::shutdown(relay.seat.get(), SHUT_RDWR);
    while (relay.seat && os::has_unread(relay.seat.get())) {
      // An error is said once: the other side closed with something unread.
      if (const auto arrived = os::receive_all(relay.seat.get(), buffer_, fds_)) take(*arrived, true);
    }
  }

  // The descriptor that has come, if one has.
  os::FileDescriptor take(const os::Arrived& arrived, bool is_strangers) {
    if (arrived.descriptors > 1 || (arrived.descriptors == 1 && is_strangers && !is_allocation(fds_[0], memory_.get())))
      end();
    return os::FileDescriptor(arrived.descriptors == 1 ? fds_[0] : -1);
  }

  // A few messages, so that no seat holds up the others of its account. False: one end has closed.
  bool carry(Way& way, bool is_strangers) {
    for (int carried = 0; carried < kMostCarried; ++carried) {
      if (way.held.empty()) {
        const auto arrived = os::receive_all(way.from, buffer_, fds_);
        if (!arrived && arrived.error().system_errno == EAGAIN) return true;
        const os::Arrived got = arrived.value_or(os::Arrived());
        way.fd = take(got, is_strangers);
        if (got.bytes == 0 || got.was_cut) return false;
        way.held.assign(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(got.bytes));
      }
      const auto sent = os::send_message(way.to, way.held, way.fd.get());
      if (!sent) return sent.error().system_errno == EAGAIN;
      way.held.clear();
      way.fd.reset();
    }
    return true;
  }

  // False: the seat's end has closed, or the mover's.
  static bool answer(const Relay& relay) {
    std::byte question[8];
    for (;;) {
      const auto asked = os::receive_message(relay.presence.get(), question);
      if (!asked) return asked.error().system_errno == EAGAIN;
      pollfd end{relay.seat.get(), POLLRDHUP, 0};
      if (asked->bytes == 0 || ::poll(&end, 1, 0) != 0) return false;
      if (!os::send_message(relay.presence.get(), std::span(question).first(asked->bytes))) return false;
    }
  }

  // With an unknown descriptor: all who are connected learn it before the kernel closes that, for as long as it takes.
  [[noreturn]] void end() {
    hear();
    const std::byte spent{};
    static_cast<void>(os::send_message(channel_, {&spent, 1}));
    for (const Relay& relay : relays_) {
      ::shutdown(relay.seat.get(), SHUT_RDWR);
      ::shutdown(relay.mover.get(), SHUT_RDWR);
      ::shutdown(relay.presence.get(), SHUT_RDWR);
    }
    ::_exit(EXIT_SUCCESS);
  }

  static constexpr int kMostCarried = 64;

  const int channel_;
  const os::FileDescriptor memory_;
  bool hears_channel_ = false;
  std::vector<os::FileDescriptor> sockets_;  // of a relay that has not come whole
  std::list<Relay> relays_;
  std::array<std::byte, wire::kMostMoverBytes> buffer_;
  std::array<int, os::kMaxDescriptors> fds_;
};

void keep_door(int channel) {
  ::fcntl(channel, F_SETFL, O_NONBLOCK);
  Relays(channel).run();
}

}  // namespace

// ---- the mover

namespace {

// For people (wire::MoverSeat::account).
std::string text_of(std::uint64_t account) {
  constexpr const char* kKinds[] = {"unknown containers, number ", "user ", "container ", "account "};
  return kKinds[account % 4] + std::to_string(account / 4);
}

}  // namespace

base::Result<Doors> Doors::start() {
  auto starter = doorkeepers::Starter::start(keep_door);
  if (!starter) return tl::unexpected(starter.error());
  return Doors(std::move(*starter));
}

void Doors::look() {
  const base::TimePoint now = os::now();
  doors_.remove_if([now](Door& door) {
    if (door.state == State::kEnded) return now >= door.ended_at + kPause;
    std::byte said;
    const auto received = os::receive_message(door.channel.get(), {&said, 1});
    if (!received && received.error().system_errno == EAGAIN) return false;
    if (!received || received->bytes == 0) {
      door.state = State::kEnded;
      door.ended_at = now;
      return false;
    }
    door.state = State::kEnding;
    std::fprintf(stderr,
                 "gpumux-mover: a program of %s has sent a descriptor that is no GPU memory. The connections of all "
                 "its programs are closed, and they get others when the kernel has closed that descriptor\n",
                 text_of(door.account).c_str());
    return false;
  });
}

std::size_t Doors::ending() const {
  return static_cast<std::size_t>(
      std::count_if(doors_.begin(), doors_.end(), [](const Door& door) { return door.state == State::kEnding; }));
}

std::optional<Doors::Connection> Doors::open(std::uint64_t account) {
  look();
  auto door = std::find_if(doors_.begin(), doors_.end(), [account](const Door& one) { return one.account == account; });
  if (door == doors_.end()) {
    auto channel = starter_.add();
    is_broken_ = !channel && (channel.error().system_errno == EPIPE || channel.error().system_errno == ECONNRESET);
    if (!channel) return std::nullopt;
    door = doors_.insert(door, Door{.account = account, .channel = std::move(*channel)});
  }
  if (door->state >= State::kEnding) return std::nullopt;
  door->state = State::kServing;
  os::FileDescriptor ours[3];
  os::FileDescriptor theirs[3];
  for (int i = 0; i < 3; ++i) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return std::nullopt;
    ours[i] = os::FileDescriptor(ends[0]);
    theirs[i] = os::FileDescriptor(ends[1]);
  }
  // No program has the seat's end yet, so what is closed here is empty.
  for (const os::FileDescriptor& end : theirs) {
    const std::byte order{};
    if (os::send_message(door->channel.get(), {&order, 1}, end.get())) continue;
    Doors::end(*door);
    return std::nullopt;
  }
  return Connection{std::move(ours[0]), std::move(ours[1]), std::move(ours[2])};
}

void Doors::end(Door& door) {
  door.state = State::kEnding;
  ::shutdown(door.channel.get(), SHUT_WR);
}

}  // namespace gpumux::mover
