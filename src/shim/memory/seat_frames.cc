// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/seat_frames.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/no_fork.h"

namespace gpumux::shim {
namespace {

// A quarter of what a connection takes before its reader is behind.
constexpr std::size_t kMostToldAtOnce = 64;

}  // namespace

bool SeatFrames::wants(std::uint64_t number, std::uint64_t bytes) {
  if ((wanted_.load(std::memory_order_relaxed) & base::frame_size(bytes)) == 0) return false;
  return number == 0 || is_current(number);
}

void SeatFrames::give(std::uint64_t number, std::uint64_t bytes, int fd) {
  // A frame that an earlier daemon lent has been freed by now: nothing has it any more.
  if (number == 0 || is_current(number))
    port_.give_frame({.slot = slot_, .number = number % wire::kFrameNumbers, .bytes = bytes}, fd);
  if (fd >= 0) ::close(fd);
}

base::FrameSizes SeatFrames::at_hand() {
  const base::Locked locked(mutex_);
  base::FrameSizes sizes = 0;
  for (const AtHand& frame : at_hand_) sizes |= frame.bytes != 0 ? base::frame_size(frame.bytes) : 0;
  return sizes;
}

// With the mutex held: a frame of `bytes`, or a free place (0 bytes). Null: there is none.
SeatFrames::AtHand* SeatFrames::find_at_hand(std::uint64_t bytes) {
  const auto found =
      std::find_if(at_hand_.begin(), at_hand_.end(), [&](const AtHand& frame) { return frame.bytes == bytes; });
  return found == at_hand_.end() ? nullptr : &*found;
}

std::optional<pager::Frames::Lent> SeatFrames::take(std::uint64_t bytes) {
  const base::Locked locked(mutex_);
  for (AtHand* found = nullptr; bytes != 0 && (found = find_at_hand(bytes)) != nullptr;) {
    found->bytes = 0;
    os::FileDescriptor frame = found->fd.release();
    if (frame) return Lent{found->number, frame.release()};
    freed_.push_back(found->number);  // the program has closed it
  }
  return std::nullopt;
}

void SeatFrames::freed(std::uint64_t number) {
  {
    const base::Locked locked(mutex_);
    if (!is_current(number)) return;
    freed_.push_back(number);
  }
  port_.wake_mover();
}

bool SeatFrames::tell_freed() {
  std::vector<std::uint64_t> freed;
  {
    const base::Locked locked(mutex_);
    const std::size_t rest = freed_.size() - std::min(freed_.size(), kMostToldAtOnce);
    freed.assign(freed_.begin() + static_cast<std::ptrdiff_t>(rest), freed_.end());
    freed_.resize(rest);
  }
  for (std::size_t i = 0; i < freed.size(); ++i) {
    if (!is_current(freed[i]) || port_.freed_frame({.slot = slot_, .number = freed[i] % wire::kFrameNumbers})) continue;
    // It reads too slowly, or does not know the seat yet.
    const base::Locked locked(mutex_);
    freed_.insert(freed_.end(), freed.begin() + static_cast<std::ptrdiff_t>(i), freed.end());
    break;
  }
  const base::Locked locked(mutex_);
  return freed_.empty();
}

void SeatFrames::on_room(const wire::Room& room) {
  wanted_.store(room.frames, std::memory_order_relaxed);
  if (room.room < std::exchange(room_, room.room)) drop();
}

int SeatFrames::descriptor(std::uint64_t number) {
  const base::Locked locked(mutex_);
  while (asked_.number != 0) mutex_.wait();
  if (!is_current(number)) return -1;
  asked_ = {.number = number, .answered = false, .fd = {}};
  {
    const base::Unlocked unlocked(mutex_);
    const std::uint64_t daemons = number % wire::kFrameNumbers;
    if (!port_.ask_for_frame({.slot = slot_, .number = daemons})) on_lent({.slot = slot_, .number = daemons}, {});
  }
  while (!asked_.answered) mutex_.wait();
  const int fd = asked_.fd.release();
  asked_ = {};
  mutex_.wake_all();
  return fd;
}

void SeatFrames::drop() {
  const base::NoFork no_fork;
  const base::Locked locked(mutex_);
  for (AtHand& frame : at_hand_) {
    if (frame.bytes == 0) continue;
    frame.fd.reset();
    frame.bytes = 0;
    freed_.push_back(frame.number);
  }
}

// In a forked child no thread holds the lock, and what it guards is whole (NoFork).
void SeatFrames::close_all() GPUMUX_NO_THREAD_SAFETY_ANALYSIS {
  for (AtHand& frame : at_hand_) {
    frame.fd.reset();
    frame.bytes = 0;
  }
}

void SeatFrames::on_lent(const wire::FrameLent& message, os::FileDescriptor frame) {
  const base::NoFork no_fork;
  const base::Locked locked(mutex_);
  const std::uint64_t number = tagged(message.number);
  if (message.bytes == 0) {
    if (asked_.number != number || asked_.answered) return;
    asked_.answered = true;
    asked_.fd = std::move(frame);
    mutex_.wake_all();
  } else {
    // Its descriptor was lost where this process has too many of them.
    AtHand* const place = frame ? find_at_hand(0) : nullptr;
    if (place == nullptr) return freed_.push_back(number);
    place->number = number;
    place->bytes = message.bytes;
    place->fd = os::KeptDescriptor(std::move(frame));
  }
}

void SeatFrames::on_lost() {
  const base::NoFork no_fork;
  const base::Locked locked(mutex_);
  wanted_.store(0, std::memory_order_relaxed);
  close_all();
  freed_.clear();
  // After all numbers of daemons are used, the next daemon's frames are taken for those of the first.
  daemon_.store(std::max<std::uint64_t>((daemon_.load() + 1) % (UINT64_MAX / wire::kFrameNumbers), 1));
  if (asked_.number != 0) asked_.answered = true;
  mutex_.wake_all();
}

}  // namespace gpumux::shim
