// SPDX-License-Identifier: Apache-2.0
// Frames: the memory of chunks that are saved, which the mover keeps mapped for the next seat.
//
//   saved --offer--> offered --given--> kept --take--> loaded, and another seat's memory
//                       |                  \--make_way, look--> freed
//                       \-- the giver goes on with it, or is gone: let go
//
// An offered frame is still the memory of the seat that has saved it, in the books of daemon and seat. A kept frame is
// memory that this seat has left and that no other seat has. So a kept frame goes as soon as a seat lacks memory, and
// soon after the memory of its trust domain has stopped moving.
//
// On the thread of the worker that owns it.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "base/clock.h"
#include "base/frame_sizes.h"
#include "mover/books.h"
#include "mover/mapping.h"
#include "wire/mover_messages.h"

namespace gpumux::mover {

// A trust domain, by the daemon's number; 0: none.
using Domain = std::uint64_t;

class Frames {
 public:
  // Each has a descriptor and a mapping. A GPU of 80 GiB in chunks of 128 MiB has 640.
  static constexpr std::size_t kMost = 1024;
  // After a domain's last save or load, until its kept frames go. The giver's report goes to the daemon, which gives
  // the next seat room for a frame, and that seat asks for it: some milliseconds. A guess.
  static constexpr base::Duration kPatience = std::chrono::milliseconds(20);

  // The seat has saved the memory, and is to say what becomes of it (`ticket`). REQUIRES: !is_full().
  void offer(SeatNumber giver, std::uint64_t ticket, Domain domain, Mapping memory);
  // The giver has answered the offer. Nothing happens if that frame is gone.
  void answered(SeatNumber giver, std::uint64_t ticket, bool is_released);
  // Memory with any content for a seat of this domain.
  std::optional<Mapping> take(Domain domain, std::uint64_t bytes);
  // Frees so many bytes, or all kept ones.
  void make_way(std::uint64_t bytes);
  // Frees the kept frames that no seat has come for. `moves(domain)`: a seat of the domain is saving or loading.
  // Returns the time at which the caller looks again. Nothing: the caller looks again when something changes.
  template <class Moves>
  std::optional<base::TimePoint> look(base::TimePoint now, Moves moves);
  // The giver's connection has ended: what it was to say never comes.
  void gone(SeatNumber giver);

  // Of kept ones.
  base::FrameSizes sizes(Domain domain) const;
  // Offered ones included.
  std::size_t count(Domain domain, std::uint64_t bytes) const;
  std::size_t size() const { return frames_.size(); }
  bool is_full() const { return frames_.size() >= kMost; }

 private:
  enum class State : std::uint8_t { kOffered, kKept };
  struct Frame {
    State state = State::kOffered;
    SeatNumber giver = 0;
    std::uint64_t ticket = 0;
    Domain domain = 0;
    Mapping memory;
    std::optional<base::TimePoint> until;  // of a kept one
  };
  std::list<Frame> frames_;  // the oldest first
};

template <class Moves>
std::optional<base::TimePoint> Frames::look(base::TimePoint now, Moves moves) {
  std::optional<base::TimePoint> next;
  frames_.remove_if([&](Frame& frame) {
    if (frame.state != State::kKept) return false;
    if (!frame.until || moves(frame.domain)) frame.until = now + kPatience;
    if (now >= *frame.until) return true;
    next = next ? std::min(*next, *frame.until) : *frame.until;
    return false;
  });
  return next;
}

// The chunks that a seat has in host memory, as far as this mover has saved them: the seat can use frames of these
// sizes.
class Away {
 public:
  // A hostile seat may name any number of chunks. An H200 in chunks of 2 MiB has about so many.
  static constexpr std::size_t kMost = std::size_t{1} << 16;

  void saved(std::uint64_t chunk, std::uint32_t blocks);
  // It is on the GPU again, or of no use.
  void forgotten(std::uint64_t chunk);
  std::uint32_t count(std::uint32_t blocks) const { return counts_[blocks]; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> chunks_;
  std::array<std::uint32_t, wire::kMostMoverBlocks + 1> counts_{};
};

}  // namespace gpumux::mover
