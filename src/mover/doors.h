// SPDX-License-Identifier: Apache-2.0
// Seats' messages come through processes of their own (doorkeepers/starter.h), so that no stranger's descriptor comes
// into the mover unless closing it never asks a stranger.
//
//   seat -- connection -- doorkeeper -- relay, presence -- mover
//
// The rule: an account has one doorkeeper, which passes all messages of its seats on, both ways. One that is sent an
// unknown descriptor shuts all of its connections, and ends. An account gets no other until its last one has ended. So
// an account keeps one doorkeeper at most from ending.
//
// A relay ends later than the connection. So there is a second socket beside it, `presence`: the doorkeeper answers
// each message there with the same one, if the seat's end is open at that moment.
//
// Owned by one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "doorkeepers/starter.h"
#include "os/file_descriptor.h"

namespace gpumux::mover {

class Doors {
 public:
  // Before the process has much that a fork copies.
  static base::Result<Doors> start();

  // All are non-blocking sockets.
  struct Connection {
    os::FileDescriptor seat;  // the seat's end
    os::FileDescriptor relay;
    os::FileDescriptor presence;
  };
  // A connection of a seat of the account. None: the account's last doorkeeper has not ended, or none can be started.
  std::optional<Connection> open(std::uint64_t account);
  // From time to time: doorkeepers end whose account has had no seat the last time, nor now.
  template <class HasSeat>
  void end_unused(HasSeat has_seat);
  // That have been told to end, or end by themselves, and have not.
  std::size_t ending() const;
  // No doorkeeper can be started any more: the process that forks them has ended.
  bool is_broken() const { return is_broken_; }

 private:
  // An account whose doorkeeper has ended gets the next one after this. A guess.
  static constexpr base::Duration kPause = std::chrono::seconds(1);
  enum class State : std::uint8_t {
    kServing,
    kUnused,  // the same, and its account has had no seat
    kEnding,
    kEnded,
  };
  struct Door {
    std::uint64_t account = 0;
    State state = State::kServing;
    os::FileDescriptor channel;
    base::TimePoint ended_at{};
  };

  explicit Doors(doorkeepers::Starter starter) : starter_(std::move(starter)) {}
  static void end(Door& door);
  void look();

  doorkeepers::Starter starter_;
  std::list<Door> doors_;  // the last one of each account, until kPause after its end
  bool is_broken_ = false;
};

template <class HasSeat>
void Doors::end_unused(HasSeat has_seat) {
  look();
  for (Door& door : doors_) {
    if (door.state >= State::kEnding) continue;
    if (has_seat(door.account)) {
      door.state = State::kServing;
    } else if (door.state == State::kServing) {
      door.state = State::kUnused;
    } else {
      end(door);
    }
  }
}

}  // namespace gpumux::mover
